//! Buckets with an index of format 1 from earlier releases: converted when they are used, even after a gateway failed.

use crate::s3::S3;
use bytes::Bytes;
use nacre_client::{IoCtx, WriteOp, block_on};
use nacre_common::config::ConfigBuilder;
use nacre_types::encoding::{Versioned, decode, encode};
use nacre_types::ids::EntityName;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An entry of format 2, from docs/format/index.md.
#[derive(Serialize, Deserialize)]
struct Entry {
    seq: (u32, u64, u64),
    object: Option<Listed>,
}

#[derive(Serialize, Deserialize)]
struct Listed {
    tag: String,
    size: u64,
    mtime_ns: u64,
    etag: String,
    owner: String,
    kind: u8,
    held: Option<(u64, u64)>,
}

/// An entry of format 1.
#[derive(Serialize, Deserialize)]
struct OldEntry {
    version: u64,
    tag: String,
    removed: bool,
    size: u64,
    mtime_ns: u64,
    etag: String,
    owner: String,
    marker: bool,
    held: Option<(u64, u64)>,
}

/// A pending change of format 1.
#[derive(Serialize, Deserialize)]
struct OldPending {
    begun_ns: u64,
    session: String,
    tails: Option<(String, u64)>,
    replaced: Vec<(String, u64)>,
    parts: Vec<(String, u64)>,
}

impl Versioned for Entry {
    const NAME: &'static str = "index entry";
    const VERSION: u8 = 3;
    const COMPAT: u8 = 3;
}

impl Versioned for OldEntry {
    const NAME: &'static str = "index entry";
}

impl Versioned for OldPending {
    const NAME: &'static str = "pending index entry";
}

struct Pools {
    buckets: IoCtx,
    index: IoCtx,
    data: IoCtx,
}

fn pools(s3: &S3) -> Pools {
    let config = ConfigBuilder::new(EntityName::client("admin")).conf(s3.conf()).build().unwrap();
    let cluster = nacre_client::native::connect(&config).wait().unwrap();
    let open = |name: &str| block_on(cluster.open_pool(name)).unwrap();
    let buckets = open("default.rgw.meta").with_namespace("root");
    Pools { buckets, index: open("default.rgw.buckets.index"), data: open("default.rgw.buckets.data") }
}

fn operate(pool: &IoCtx, name: &str, op: WriteOp) {
    block_on(pool.operate(name, op)).unwrap().success().unwrap();
}

/// A record in format 1.
fn old_record(name: &Bytes, value: &Bytes) -> (Bytes, Bytes) {
    let kind = name[0].to_ascii_lowercase();
    let key: Vec<u8> = name[1..].iter().map(|byte| if *byte == 1 { 0 } else { *byte }).collect();
    let value = if kind == b'o' {
        let Listed { tag, size, mtime_ns, etag, owner, kind, held } =
            decode::<Entry>(value).unwrap().object.unwrap();
        let old = OldEntry {
            version: 1,
            tag,
            removed: false,
            size,
            mtime_ns,
            etag,
            owner,
            marker: kind == 1,
            held,
        };
        encode(&old).into()
    } else {
        value.clone()
    };
    (Bytes::from([&[kind], &key[..]].concat()), value)
}

/// Converts a shard to format 1.
fn age_shard(pools: &Pools, shard: &str) {
    let records = block_on(pools.index.omap_get_vals(shard, "", "", 1000)).unwrap().entries;
    let old = records.iter().map(|(name, value)| old_record(name, value)).collect();
    let mut op = WriteOp::new();
    op.omap_rm_keys(records.into_iter().map(|(name, _)| name).collect());
    op.omap_set(old);
    op.set_xattr("rgw.state", "open");
    operate(&pools.index, shard, op);
}

#[test]
fn a_bucket_of_format_1_is_converted_when_it_is_used() {
    let s3 = S3::start_with(&["rgw_override_bucket_index_max_shards=1"]);
    let aws = |args: &[&str]| {
        s3.ok("/usr/bin/aws", &[&["--endpoint-url", s3.endpoint.as_str(), "s3api"], args].concat())
    };
    let (small, large) = (s3.file("small", 3000), s3.file("large", 6 << 20));
    aws(&["create-bucket", "--bucket", "old"]);
    for (key, file) in [("a", &small), ("l", &large), ("r", &small)] {
        aws(&["put-object", "--bucket", "old", "--key", key, "--body", file]);
    }
    aws(&["create-multipart-upload", "--bucket", "old", "--key", "u"]);
    s3.wait_finished("old", 3);
    let stats: Value = serde_json::from_slice(&s3.nacre(&["bucket", "stats", "--bucket", "old"])).unwrap();
    let id = stats["id"].as_str().unwrap();
    let pools = pools(&s3);
    let shard = format!(".dir.{id}.0.0");
    age_shard(&pools, &shard);
    for key in ["a", "l", "r"] {
        let mut op = WriteOp::new();
        op.rm_xattr("rgw.seq").rm_xattr("rgw.change");
        operate(&pools.data, &format!("{id}_{key}"), op);
    }
    // A failed gateway was about to replace `a`, and had removed `r`.
    let run = format!("{id}__shadow_{:032x}", 7);
    block_on(pools.data.write_full(&format!("{run}_0"), Bytes::from_static(b"tail"))).unwrap();
    block_on(pools.data.remove(&format!("{id}_r"))).unwrap();
    let pending = |tails| OldPending {
        begun_ns: 1,
        session: "client.4000000000".into(),
        tails,
        replaced: Vec::new(),
        parts: Vec::new(),
    };
    let pending = vec![
        (Bytes::from(format!("pa\0{:032x}", 7)), Bytes::from(encode(&pending(Some((run.clone(), 1)))))),
        (Bytes::from(format!("pr\0{:032x}", 8)), Bytes::from(encode(&pending(None)))),
    ];
    block_on(pools.index.omap_set(&shard, pending)).unwrap();
    // The last byte of the record is the format; records of format 1 do not have it.
    let record = block_on(pools.buckets.read("old", 0, 1 << 20)).unwrap();
    let body = &record[6..record.len() - 1];
    let old = [&[1, 1][..], &(body.len() as u32).to_le_bytes(), body].concat();
    block_on(pools.buckets.write_full("old", old)).unwrap();

    // The gateway caches the earlier state of the bucket, and the shard refuses its request.
    aws(&["put-object", "--bucket", "old", "--key", "new", "--body", &small]);
    let listed = aws(&["list-objects-v2", "--bucket", "old"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let keys: Vec<&str> =
        listed["Contents"].as_array().unwrap().iter().map(|entry| entry["Key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["a", "l", "new"]);
    aws(&["put-object", "--bucket", "old", "--key", "a", "--body", &large]);
    for key in ["a", "l"] {
        aws(&["get-object", "--bucket", "old", "--key", key, "back"]);
        s3.ok("cmp", &["back", &large]);
    }
    aws(&["delete-object", "--bucket", "old", "--key", "l"]);
    let uploads = aws(&["list-multipart-uploads", "--bucket", "old"]);
    let uploads: Value = serde_json::from_slice(&uploads.stdout).unwrap();
    assert_eq!(uploads["Uploads"][0]["Key"], "u");
    s3.wait_finished("old", 2);
    let names = block_on(pools.index.omap_get_vals(&shard, "", "", 1000)).unwrap().entries;
    assert!(names.iter().all(|(name, _)| name[0].is_ascii_uppercase()), "{names:?}");
    let report: Value = serde_json::from_slice(&s3.nacre(&["bucket", "check", "--bucket", "old"])).unwrap();
    assert_eq!(report["num_problems"], 0, "{report}");
    s3.nacre(&["bucket", "rm", "--bucket", "old", "--purge-objects"]);
    s3.nacre(&["gc", "process", "--include-all"]);
    let left = s3.nacre(&["rados", "-p", "default.rgw.buckets.data", "ls"]);
    assert_eq!(String::from_utf8_lossy(&left), "");
}
