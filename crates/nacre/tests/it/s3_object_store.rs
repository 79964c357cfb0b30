//! Behaviour that the object_store crate relies on, by which Rust programs (DataFusion, Delta Lake, Lance, …) use S3.

use crate::s3::S3;
use crate::s3_programs::Client;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use object_store::aws::{AmazonS3, AmazonS3Builder, Checksum};
use object_store::buffered::BufWriter;
use object_store::path::Path as Key;
use object_store::{
    Error, GetOptions, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, PutPayload, RetryConfig,
    UpdateVersion,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;

fn client(to: &Client<'_>) -> AmazonS3Builder {
    AmazonS3Builder::new()
        .with_endpoint(to.endpoint)
        .with_allow_http(true)
        .with_region("us-east-1")
        .with_bucket_name("tables")
        // A gateway that was killed may take seconds to restart on a busy machine.
        .with_retry(RetryConfig { max_retries: 60, ..RetryConfig::default() })
        .with_access_key_id(to.access)
        .with_secret_access_key(to.secret)
}

/// Bytes that differ between positions.
fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(next).collect()
}

/// A table's files: many small ones concurrently, and a large one in parts while it is produced.
async fn keep_files(store: &Arc<AmazonS3>) {
    let key = |n: usize| Key::from(format!("table/day={}/part-{n} of 200.bin", n % 10));
    let len = |n: usize| 1 + n * 997 % 70_000;
    let puts = stream::iter(0..200).map(|n| async move {
        let data = bytes(len(n), n as u64);
        store.put(&key(n), PutPayload::from(data)).await.unwrap();
    });
    puts.buffer_unordered(16).collect::<Vec<_>>().await;

    let large = bytes(30_000_000, 77);
    let mut writer = BufWriter::with_capacity(Arc::clone(store) as Arc<dyn ObjectStore>, key(1000), 5 << 20);
    for chunk in large.chunks(777_777) {
        writer.write_all(chunk).await.unwrap();
    }
    writer.shutdown().await.unwrap();
    let got = store.get(&key(1000)).await.unwrap();
    assert_eq!(got.meta.size, large.len() as u64);
    assert!(got.meta.e_tag.as_ref().unwrap().contains("-6"), "{:?}", got.meta);
    assert!(got.bytes().await.unwrap() == large);
    let ranges = [0..10, 5_242_870..5_242_890, 29_999_990..30_000_000];
    let parts = store.get_ranges(&key(1000), &ranges).await.unwrap();
    for (range, part) in ranges.into_iter().zip(parts) {
        assert_eq!(part, large[range.start as usize..range.end as usize]);
    }

    let all: Vec<_> = store.list(Some(&Key::from("table"))).try_collect().await.unwrap();
    assert_eq!(all.len(), 201);
    for n in 0..200 {
        let meta = all.iter().find(|meta| meta.location == key(n)).unwrap();
        assert_eq!(meta.size, len(n) as u64);
        assert_eq!(store.get(&key(n)).await.unwrap().bytes().await.unwrap(), bytes(len(n), n as u64));
    }
    let days = store.list_with_delimiter(Some(&Key::from("table"))).await.unwrap();
    assert_eq!((days.common_prefixes.len(), days.objects.len()), (10, 0));
    let after = store.list_with_offset(Some(&Key::from("table")), &key(9));
    let after: Vec<_> = after.try_collect().await.unwrap();
    assert!(after.iter().all(|meta| meta.location > key(9)) && !after.is_empty());

    store.copy(&key(7), &Key::from("copy")).await.unwrap();
    store.rename(&Key::from("copy"), &Key::from("moved")).await.unwrap();
    assert_eq!(store.get(&Key::from("moved")).await.unwrap().bytes().await.unwrap(), bytes(len(7), 7));
    assert!(matches!(store.head(&Key::from("copy")).await, Err(Error::NotFound { .. })));
}

/// A table's log: many writers, each of which commits the next entry unless it exists. Returns the number of requests without an
/// answer, whose outcome is unknown. `once` sends a request once: the crate's own retries of a conditional write hide that the
/// first one had no answer and may have taken effect.
async fn commit(store: &AmazonS3, once: &AmazonS3) -> u32 {
    let unsure = AtomicU32::new(0);
    let no_answer = async || {
        unsure.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let entry = |n: usize| Key::from(format!("log/{n:05}.json"));
    let read = |key: Key| async move { store.get(&key).await.unwrap().bytes().await.unwrap() };
    let writers = (0..8).map(|writer| {
        let no_answer = &no_answer;
        async move {
            let mut at = 0;
            for n in 0..10 {
                let text = format!("{writer} {n}");
                loop {
                    let options = PutOptions::from(PutMode::Create);
                    match once.put_opts(&entry(at), text.clone().into(), options).await {
                        Ok(_) => break,
                        // It may be ours, if an earlier attempt had no answer.
                        Err(Error::AlreadyExists { .. }) if read(entry(at)).await == text => break,
                        Err(Error::AlreadyExists { .. }) => at += 1,
                        Err(_) => no_answer().await,
                    }
                }
            }
        }
    });
    futures::future::join_all(writers).await;
    let mut commits = Vec::new();
    for n in 0..80 {
        commits.push(String::from_utf8(read(entry(n)).await.to_vec()).unwrap());
    }
    commits.sort_unstable();
    let mut all: Vec<_> = (0..8).flat_map(|w| (0..10).map(move |n| format!("{w} {n}"))).collect();
    all.sort_unstable();
    assert_eq!(commits, all);

    // One counter that all of them increment.
    let counter = Key::from("counter");
    store.put(&counter, "0".into()).await.unwrap();
    let raise = |_| async {
        for _ in 0..5 {
            loop {
                let got = store.get(&counter).await.unwrap();
                let version = UpdateVersion { e_tag: got.meta.e_tag.clone(), version: None };
                let text = got.bytes().await.unwrap();
                let value: u32 = str::from_utf8(&text).unwrap().parse().unwrap();
                let options = PutOptions::from(PutMode::Update(version));
                match once.put_opts(&counter, (value + 1).to_string().into(), options).await {
                    Ok(_) => break,
                    Err(Error::Precondition { .. }) => {}
                    Err(_) => no_answer().await,
                }
            }
        }
    };
    futures::future::join_all((0..4).map(raise)).await;
    let unsure = unsure.into_inner();
    let value: u32 = str::from_utf8(&read(counter.clone()).await).unwrap().parse().unwrap();
    assert!((20..=20 + unsure).contains(&value), "{value}, {unsure} of unknown fate");
    let meta = store.head(&counter).await.unwrap();
    let unchanged = GetOptions { if_none_match: meta.e_tag.clone(), ..GetOptions::default() };
    assert!(matches!(store.get_opts(&counter, unchanged).await, Err(Error::NotModified { .. })));
    unsure
}

/// Uses a bucket `tables`, and empties it. Returns the number of requests without an answer.
pub(crate) fn run_object_store(to: &Client<'_>) -> u32 {
    to.ok("/usr/bin/aws", &["--endpoint-url", to.endpoint, "s3", "mb", "s3://tables"]);
    // Its HTTP client needs one even without TLS. Another test of this process may have installed one already.
    _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = Arc::new(client(to).build().unwrap());
        keep_files(&store).await;
        let once =
            client(to).with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() }).build().unwrap();
        let unsure = commit(&store, &once).await;
        let summed = client(to).with_checksum_algorithm(Checksum::SHA256).build().unwrap();
        summed.put(&Key::from("summed"), "summed".into()).await.unwrap();
        let stranger = client(to).with_secret_access_key("wrong").build().unwrap();
        let refused = stranger.head(&Key::from("summed")).await;
        assert!(matches!(refused, Err(Error::PermissionDenied { .. })), "{refused:?}");

        let keys = store.list(None).map_ok(|meta| meta.location).boxed();
        let removed: Vec<_> = store.delete_stream(keys).try_collect().await.unwrap();
        assert!(removed.len() > 280, "{}", removed.len());
        assert_eq!(store.list(None).try_collect::<Vec<_>>().await.unwrap(), []);
        unsure
    })
}

#[test]
fn rust_programs_keep_tables_in_buckets() {
    let s3 = S3::start();
    assert_eq!(run_object_store(&s3.client()), 0);
    s3.nacre(&["bucket", "check", "--bucket", "tables"]);
}
