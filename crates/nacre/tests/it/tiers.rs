//! Cache tiers on real clusters: what clients see through one, and that nothing is lost while it comes and goes.

mod lost;

use crate::failures::{Load, conf, open};
use crate::support::{Daemon, TestCluster};
use nacre_client::{IoCtx, block_on};
use nacre_types::errno::Errno;
use serde_json::Value;

/// A cluster with the pools `base` and `cache`, the one a tier of the other in that mode, with its overlay.
fn tiered(mode: &str) -> TestCluster {
    let cluster = TestCluster::start_with(3, "bluestore", conf());
    for pool in ["base", "cache"] {
        cluster.create_pool(pool, 8, 3, 2);
    }
    cluster.wait_healthy();
    cluster.ok(&["ceph", "osd", "tier", "add", "base", "cache"]);
    cluster.ok(&["ceph", "osd", "tier", "cache-mode", "cache", mode]);
    cluster.ok(&["ceph", "osd", "tier", "set-overlay", "base", "cache"]);
    cluster
}

/// Takes the tier away, as docs/tiers.md says.
fn remove_tier(cluster: &TestCluster) {
    cluster.ok(&["ceph", "osd", "tier", "cache-mode", "cache", "proxy"]);
    cluster.wait_for("the cache to be empty", |cluster| {
        cluster.run(&["rados", "-p", "cache", "cache-flush-evict-all"]).status.success()
    });
    cluster.wait_for("the overlay to go", |cluster| {
        cluster.run(&["ceph", "osd", "tier", "remove-overlay", "base"]).status.success()
    });
    cluster.ok(&["ceph", "osd", "tier", "remove", "base", "cache"]);
}

fn names(cluster: &TestCluster, pool: &str) -> Vec<String> {
    let listed = cluster.ok(&["rados", "-p", pool, "ls"]);
    let mut names: Vec<String> = listed.lines().map(str::to_owned).collect();
    names.sort();
    names
}

fn read(pool: &IoCtx, name: &str) -> Result<Vec<u8>, Errno> {
    block_on(pool.read(name, 0, 0)).map(|data| data.to_vec()).map_err(|error| error.errno())
}

fn write(pool: &IoCtx, name: &str, data: &str) {
    block_on(pool.write_full(name, data.to_owned().into_bytes())).unwrap();
}

#[test]
fn a_tier_serves_what_the_base_has_and_gives_it_back() {
    let cluster = TestCluster::start_with(3, "bluestore", conf());
    for pool in ["base", "cache"] {
        cluster.create_pool(pool, 8, 3, 2);
    }
    cluster.wait_healthy();
    let base = open(&cluster, "base");
    for name in ["kept", "changed", "removed"] {
        write(&base, name, "before");
    }
    block_on(base.omap_set("kept", vec![("key".into(), "value".into())])).unwrap();
    cluster.ok(&["ceph", "osd", "tier", "add", "base", "cache"]);
    cluster.ok(&["ceph", "osd", "tier", "cache-mode", "cache", "writeback"]);
    cluster.ok(&["ceph", "osd", "tier", "set-overlay", "base", "cache"]);
    assert_eq!(read(&base, "kept").unwrap(), b"before");
    assert_eq!(read(&base, "removed").unwrap(), b"before");
    write(&base, "changed", "after");
    write(&base, "made", "new");
    block_on(base.remove("removed")).unwrap();
    assert_eq!(read(&base, "removed"), Err(Errno::ENOENT));
    assert_eq!(read(&base, "never"), Err(Errno::ENOENT));
    let all = ["changed", "kept", "made"];
    assert_eq!(names(&cluster, "base"), all, "both pools' objects, each once, without the deleted one");
    // The changes are in the cache alone, until they are flushed.
    let output = cluster.run(&["ceph", "osd", "tier", "remove-overlay", "base"]);
    assert_eq!(output.status.code(), Some(i32::from(Errno::EBUSY.0 as u8)));
    remove_tier(&cluster);
    assert_eq!(names(&cluster, "cache"), [""; 0]);
    assert_eq!(names(&cluster, "base"), all);
    for (name, data) in [("kept", "before"), ("changed", "after"), ("made", "new")] {
        assert_eq!(read(&base, name).unwrap(), data.as_bytes(), "{name}");
    }
    assert_eq!(read(&base, "removed"), Err(Errno::ENOENT));
    let pairs = cluster.ok(&["rados", "-p", "base", "listomapkeys", "kept"]);
    assert_eq!(pairs.trim(), "key");
}

#[test]
fn clients_lose_nothing_while_a_tier_comes_and_goes() {
    let mut cluster = TestCluster::start_with(3, "bluestore", conf());
    for pool in ["base", "cache"] {
        cluster.create_pool(pool, 8, 3, 2);
    }
    cluster.wait_healthy();
    let load = Load::start(&cluster, "base", "client", 3);
    load.expect_progress(50, &cluster);
    cluster.ok(&["ceph", "osd", "tier", "add", "base", "cache"]);
    cluster.ok(&["ceph", "osd", "tier", "cache-mode", "cache", "writeback"]);
    cluster.ok(&["ceph", "osd", "tier", "set-overlay", "base", "cache"]);
    load.expect_progress(100, &cluster);
    cluster.kill(Daemon::Osd(1));
    load.expect_progress(50, &cluster);
    cluster.spawn(Daemon::Osd(1));
    load.expect_progress(50, &cluster);
    cluster.ok(&["ceph", "osd", "tier", "cache-mode", "cache", "readproxy"]);
    load.expect_progress(50, &cluster);
    remove_tier(&cluster);
    load.expect_progress(100, &cluster);
    load.finish(&cluster);
}

#[test]
fn the_agent_keeps_a_cache_below_its_target() {
    const OBJECTS: usize = 300;
    const TARGET: u64 = 80;
    let cluster = tiered("writeback");
    cluster.ok(&["ceph", "osd", "pool", "set", "cache", "target_max_objects", &TARGET.to_string()]);
    let base = open(&cluster, "base");
    for number in 0..OBJECTS {
        write(&base, &format!("o{number}"), &format!("contents {number}"));
    }
    cluster.wait_for("the cache to be below its target", |cluster| {
        let text = cluster.ok(&["ceph", "df", "--format", "json"]);
        let df: Value = serde_json::from_str(&text).unwrap();
        let pools = df["pools"].as_array().unwrap();
        let cache = pools.iter().find(|pool| pool["name"] == "cache").unwrap();
        cache["stats"]["objects"].as_u64().unwrap() <= TARGET
    });
    assert_eq!(names(&cluster, "base").len(), OBJECTS);
    for number in 0..OBJECTS {
        assert_eq!(read(&base, &format!("o{number}")).unwrap(), format!("contents {number}").as_bytes());
    }
}
