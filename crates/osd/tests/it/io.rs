//! Reads and writes of clients.

use super::cluster::TestCluster;
use bytes::Bytes;
use nacre_types::errno::Errno;
use nacre_types::ids::OsdId;
use std::collections::BTreeSet;

fn payload(seed: u32, len: usize) -> Bytes {
    (0..len as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8)
        .collect::<Vec<_>>()
        .into()
}

#[test]
fn one_osd_boots_and_serves() {
    let cluster = TestCluster::start(1, &[]);
    let pool = cluster.create_pool("data", 1, 1, 8);
    cluster.wait_clean(pool);
    let io = cluster.io("data");
    cluster.block_on(async {
        for i in 0..50 {
            io.write_full(&format!("o{i}"), payload(i, 1000)).await.unwrap();
        }
        for i in 0..50 {
            assert_eq!(io.read(&format!("o{i}"), 0, 0).await.unwrap(), payload(i, 1000));
        }
        assert_eq!(io.read("absent", 0, 0).await.unwrap_err().errno(), Errno::ENOENT);
        io.set_xattr("o1", "a", "value").await.unwrap();
        assert_eq!(io.get_xattr("o1", "a").await.unwrap(), "value");
        io.remove("o0").await.unwrap();
        assert_eq!(io.stat("o0").await.unwrap_err().errno(), Errno::ENOENT);
    });
    cluster.wait("the sums are reported", |c| {
        c.authority.pg_stats().values().map(|s| s.sums.objects).sum::<u64>() == 49
    });
}

#[test]
fn three_osds_replicate_and_list() {
    let cluster = TestCluster::start(3, &[("osd_op_num_shards", "2")]);
    let pool = cluster.create_pool("data", 3, 2, 16);
    cluster.wait_clean(pool);
    let io = cluster.io("data");
    cluster.block_on(async {
        let writes: Vec<_> = (0..200).map(|i| io.write_full(&format!("o{i}"), payload(i, 4096))).collect();
        for write in writes {
            write.await.unwrap();
        }
        io.write("big", 3 << 20, payload(7, 1 << 20)).await.unwrap();
        let big = io.read("big", 0, 0).await.unwrap();
        assert_eq!((big.len(), &big[3 << 20..]), (4 << 20, &payload(7, 1 << 20)[..]));
        let mut lister = io.list();
        let mut found = BTreeSet::new();
        while let Some(object) = lister.next().await.unwrap() {
            found.insert(object.name().to_owned());
        }
        assert_eq!(found.len(), 201);
    });
    for osd in 0..3 {
        let perf = cluster.osd(OsdId(osd)).perf().dump(None, None);
        assert!(perf["osd"]["transactions"].as_u64().unwrap() >= 201, "{perf}");
        assert!(perf["msgr"]["recv_messages"].as_u64().unwrap() >= 201, "{perf}");
    }
}

#[test]
fn capabilities_limit_what_clients_do() {
    let cluster = TestCluster::start(1, &[]);
    cluster.create_pool("data", 1, 1, 4);
    cluster.create_pool("secret", 1, 1, 4);
    let admin = cluster.io("data");
    let reader = cluster.client("reader");
    cluster.block_on(async {
        admin.write_full("o", "readable").await.unwrap();
        let data = reader.open_pool("data").await.unwrap();
        assert_eq!(data.read("o", 0, 0).await.unwrap(), "readable");
        assert_eq!(data.write_full("o", "no").await.unwrap_err().errno(), Errno::EPERM);
        let secret = reader.open_pool("secret").await.unwrap();
        assert_eq!(secret.read("o", 0, 0).await.unwrap_err().errno(), Errno::EPERM);
    });
}

#[test]
fn class_calls_need_capabilities_of_their_own() {
    let cluster = TestCluster::start(1, &[]);
    cluster.create_pool("data", 1, 1, 4);
    let admin = cluster.io("data");
    let caller = cluster.client("caller");
    let reader = cluster.client("reader");
    cluster.block_on(async {
        admin.call("o", "hello", "record_hello", "all").await.unwrap();
        let data = caller.open_pool("data").await.unwrap();
        assert_eq!(data.call("o", "hello", "replay", "").await.unwrap(), "Hello, all!");
        let refused = data.call("o", "hello", "turn_it_to_11", "").await.unwrap_err();
        assert_eq!(refused.errno(), Errno::EPERM, "class-read is not class-write");
        assert_eq!(data.read("o", 0, 0).await.unwrap_err().errno(), Errno::EPERM);
        let data = reader.open_pool("data").await.unwrap();
        assert_eq!(data.call("o", "hello", "replay", "").await.unwrap_err().errno(), Errno::EPERM);
    });
}

#[test]
fn removed_pools_take_their_data_along() {
    let cluster = TestCluster::start(2, &[]);
    let pool = cluster.create_pool("data", 2, 1, 4);
    let io = cluster.io("data");
    cluster.block_on(async {
        for i in 0..100 {
            io.write_full(&format!("o{i}"), payload(i, 10_000)).await.unwrap();
        }
    });
    cluster.authority.remove_pool(pool);
    for osd in 0..2 {
        cluster.wait("the PGs are gone", |c| status(c, osd)["num_pgs"] == 0);
    }
}

fn status(cluster: &TestCluster, osd: u32) -> serde_json::Value {
    let client = cluster.client("admin");
    let reply = cluster.block_on(client.tell(OsdId(osd), r#"{"prefix": "status"}"#, Bytes::new())).unwrap();
    serde_json::from_slice(&reply.output).unwrap()
}

#[test]
fn full_stores_refuse_writes_and_take_removals() {
    let cluster = TestCluster::start(1, &[("memstore_device_bytes", "32Mi")]);
    cluster.create_pool("data", 1, 1, 4);
    let io = cluster.io("data").with_full_try();
    cluster.block_on(async {
        let mut written = 0;
        let refused = loop {
            match io.write_full(&format!("o{written}"), payload(written, 1 << 20)).await {
                Ok(()) => written += 1,
                Err(error) => break error.errno(),
            }
            assert!(written < 32, "more fits than there is room for");
        };
        assert_eq!(refused, Errno::ENOSPC);
        assert!(written > 20, "refused after {written} MiB");
        for i in 0..written {
            assert_eq!(io.read(&format!("o{i}"), 0, 0).await.unwrap(), payload(i, 1 << 20));
        }
        for i in 0..written / 2 {
            io.remove(&format!("o{i}")).await.unwrap();
        }
    });
    cluster.wait("the map shows room again", |c| !c.map().osds[&OsdId(0)].full);
    cluster.block_on(async {
        io.write_full("again", payload(1, 1 << 20)).await.unwrap();
    });
}

#[test]
fn full_replicas_refuse_before_anything_is_ordered() {
    let cluster = TestCluster::start(3, &[("memstore_device_bytes", "64Mi")]);
    cluster.create_pool("data", 2, 1, 8);
    let io = cluster.io("data").with_full_try();
    let mut kept = BTreeSet::new();
    cluster.block_on(async {
        let mut refused = 0;
        for round in 0..40_u32 {
            let writes: Vec<_> = (0..8)
                .map(|i| {
                    (
                        round * 8 + i,
                        io.write_full(&format!("o{}", round * 8 + i), payload(round * 8 + i, 400_000)),
                    )
                })
                .collect();
            for (seed, write) in writes {
                match write.await {
                    Ok(()) => {
                        kept.insert(seed);
                    }
                    Err(error) => {
                        assert_eq!(error.errno(), Errno::ENOSPC);
                        refused += 1;
                    }
                }
            }
        }
        assert!(refused > 0, "192 MiB do not hold 256 MB in all");
        assert!(kept.len() > 150, "only {} objects fit", kept.len());
        for seed in &kept {
            assert_eq!(io.read(&format!("o{seed}"), 0, 0).await.unwrap(), payload(*seed, 400_000));
        }
    });
    for osd in 0..3 {
        assert_eq!(status(&cluster, osd)["state"], "active", "osd.{osd} must not stop for lack of space");
    }
}
