//! Caches in memory whose OSDs are all killed at once.

use super::{read, write};
use crate::failures::{Load, conf, open};
use crate::support::{Daemon, TestCluster};
use nacre_client::block_on;
use nacre_types::errno::Errno;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// OSDs with MemStores, which hold the cache. As many others hold the base pool.
const CACHE_OSDS: std::ops::Range<usize> = 0..3;
const LOST: &str = "CACHE_POOL_DIRTY_LOST";

/// A cluster with the pools `base`, on disks, and `cache`, in memory, which is a tier of `base`.
fn cluster() -> TestCluster {
    let kinds = "memstore,memstore,memstore,bluestore,bluestore,bluestore";
    let cluster = TestCluster::start_with(6, kinds, conf());
    let classes = cluster.ok(&["ceph", "osd", "crush", "class", "ls", "--format", "json"]);
    let classes: Vec<String> = serde_json::from_str(&classes).unwrap();
    let disks = classes.iter().find(|class| *class != "mem").expect("a class of disks");
    for (pool, class) in [("base", disks.as_str()), ("cache", "mem")] {
        cluster.ok(&["ceph", "osd", "crush", "rule", "create-replicated", class, "default", "osd", class]);
        cluster.ok(&["ceph", "osd", "pool", "create", pool, "8", "8", "replicated", class]);
        cluster.ok(&["ceph", "osd", "pool", "application", "enable", pool, "test"]);
    }
    cluster.wait_healthy();
    cluster.ok(&["ceph", "osd", "tier", "add", "base", "cache"]);
    cluster
}

/// Kills all OSDs of the cache, and restarts them empty.
fn lose_the_cache(cluster: &mut TestCluster) {
    CACHE_OSDS.for_each(|osd| cluster.kill(Daemon::Osd(osd)));
    CACHE_OSDS.for_each(|osd| cluster.spawn(Daemon::Osd(osd)));
}

fn health(cluster: &TestCluster) -> String {
    String::from_utf8(cluster.run(&["ceph", "health", "detail"]).stdout).unwrap()
}

/// The PGs that health reports as lost.
fn lost_pgs(cluster: &TestCluster) -> Vec<String> {
    let said = health(cluster);
    let lines = said.lines().filter(|line| line.contains("of cache pool 'cache' lost all copies"));
    lines.filter_map(|line| line.trim().split(' ').nth(1)).map(str::to_owned).collect()
}

/// Waits until every PG of the cache is reported as lost, and accepts the loss.
fn accept_loss(cluster: &TestCluster) {
    cluster.wait_for("the loss of the cache's PGs", |cluster| lost_pgs(cluster).len() == 8);
    for pg in lost_pgs(cluster) {
        let text = cluster.run(&["ceph", "osd", "force-create-pg", &pg, "--yes-i-really-mean-it"]);
        assert!(text.status.success(), "{pg}: {}", String::from_utf8_lossy(&text.stderr));
    }
    assert_eq!(lost_pgs(cluster), [""; 0]);
}

#[test]
fn a_cache_that_writes_through_loses_nothing_that_was_acknowledged() {
    let mut cluster = cluster();
    // Needs no flag: no acknowledged change is only in memory.
    cluster.ok(&["ceph", "osd", "pool", "set", "cache", "cache_write_through", "true"]);
    cluster.ok(&["ceph", "osd", "tier", "cache-mode", "cache", "writeback"]);
    cluster.ok(&["ceph", "osd", "tier", "set-overlay", "base", "cache"]);
    let load = Load::start(&cluster, "base", "client", 3);
    for writes in [40, 7, 61] {
        load.expect_progress(writes, &cluster);
        lose_the_cache(&mut cluster);
        accept_loss(&cluster);
    }
    load.expect_progress(40, &cluster);
    // The cache is lost once more, now without a client that could resend a write.
    let written = load.finish(&cluster);
    assert!(written >= 60);
    let base = open(&cluster, "base");
    for number in 0..40 {
        write(&base, &format!("o{number}"), &format!("contents {number}"));
    }
    block_on(base.remove("o7")).unwrap();
    lose_the_cache(&mut cluster);
    cluster.wait_for("what the loss means", |cluster| health(cluster).contains(LOST));
    accept_loss(&cluster);
    for number in 0..40 {
        let expected = match number {
            7 => Err(Errno::ENOENT),
            _ => Ok(format!("contents {number}").into_bytes()),
        };
        assert_eq!(read(&base, &format!("o{number}")), expected, "o{number}");
    }
}

#[test]
fn the_base_is_not_served_in_place_of_lost_writes_until_that_is_accepted() {
    let mut cluster = cluster();
    let base = open(&cluster, "base");
    for name in ["old", "removed"] {
        write(&base, name, "in the base");
    }
    cluster.ok(&["ceph", "osd", "tier", "cache-mode", "cache", "writeback", "--yes-i-really-mean-it"]);
    cluster.ok(&["ceph", "osd", "tier", "set-overlay", "base", "cache"]);
    write(&base, "flushed", "once");
    cluster.ok(&["rados", "-p", "cache", "cache-flush", "flushed"]);
    write(&base, "old", "in the cache");
    write(&base, "new", "in the cache");
    // Only a removal may bypass the cache.
    write(&base, "removed", "in the cache");
    block_on(base.remove("removed")).unwrap();
    cluster.wait_for("reports of what is dirty", |cluster| {
        let dump = cluster.ok(&["ceph", "pg", "dump", "pgs", "--format", "json"]);
        health(cluster).contains("has 3 dirty objects") && !dump.contains("\"dirty_stats_invalid\":true")
    });
    lose_the_cache(&mut cluster);
    cluster.wait_for("the loss of the cache's PGs", |cluster| lost_pgs(cluster).len() == 8);
    let said = health(&cluster);
    assert!(
        said.contains(&format!("[ERR] {LOST}: 8 pgs of cache pools lost all copies, with 3 dirty objects")),
        "{said}"
    );

    // A read waits, however long that takes.
    let is_answered = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let found = read(&base, "old");
            is_answered.store(true, Ordering::SeqCst);
            found
        });
        let until = Instant::now() + Duration::from_secs(5);
        while Instant::now() < until {
            assert!(!is_answered.load(Ordering::SeqCst), "the base's older object was served");
            std::thread::sleep(Duration::from_millis(50));
        }
        // The overlay of a lost cache can't be removed either.
        assert!(!cluster.run(&["ceph", "osd", "tier", "remove-overlay", "base"]).status.success());
        accept_loss(&cluster);
        assert_eq!(reader.join().unwrap().unwrap(), b"in the base");
    });
    assert_eq!(read(&base, "removed").unwrap(), b"in the base");
    assert_eq!(read(&base, "flushed").unwrap(), b"once");
    assert_eq!(read(&base, "new"), Err(Errno::ENOENT));
    // The cache works as before.
    write(&base, "new", "again");
    assert_eq!(read(&base, "new").unwrap(), b"again");
    cluster.wait_for("health without the loss", |cluster| !health(cluster).contains("lost"));
}

#[test]
fn the_base_has_the_names_of_what_a_lost_cache_had() {
    let mut cluster = cluster();
    let base = open(&cluster, "base");
    cluster.ok(&["ceph", "osd", "tier", "cache-mode", "cache", "writeback", "--yes-i-really-mean-it"]);
    cluster.ok(&["ceph", "osd", "tier", "set-overlay", "base", "cache"]);
    write(&base, "before", "the log");
    let refused = cluster.run(&["tier", "dirty", "cache"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("cache_dirty_log is false"), "{said}");
    cluster.ok(&["ceph", "osd", "pool", "set", "cache", "cache_dirty_log", "true"]);
    let dirty = |cluster: &TestCluster| {
        let listed = cluster.ok(&["tier", "dirty", "cache", "--format", "json"]);
        let listed: Vec<serde_json::Value> = serde_json::from_str(&listed).unwrap();
        let mut names: Vec<_> = listed.iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect();
        names.sort_unstable();
        names
    };
    // The agents record objects that were dirty before.
    cluster.wait_for("the object from before", |cluster| dirty(cluster) == ["before"]);
    for name in ["clean", "new", "removed"] {
        write(&base, name, "in the cache");
    }
    assert_eq!(
        dirty(&cluster),
        ["before", "clean", "new", "removed"],
        "a write is answered after its object is recorded"
    );
    cluster.ok(&["rados", "-p", "cache", "cache-flush", "clean"]);
    block_on(base.remove("removed")).unwrap();
    let expected = ["before", "new", "removed"];
    cluster.wait_for("the names of what is dirty", |cluster| dirty(cluster) == expected);
    // Users don't see the objects that contain the names.
    assert_eq!(cluster.ok(&["rados", "-p", "base", "ls"]).lines().count(), 3);
    lose_the_cache(&mut cluster);
    cluster.wait_for("the loss of the cache's PGs", |cluster| lost_pgs(cluster).len() == 8);
    assert_eq!(dirty(&cluster), expected);
    let lines = cluster.ok(&["tier", "dirty", "cache"]);
    assert!(lines.lines().count() == 3 && lines.contains("\t\"removed\"\n"), "{lines}");
    accept_loss(&cluster);
    // New primaries clean up.
    cluster.wait_for("logs without names", |cluster| dirty(cluster).is_empty());
    assert_eq!(read(&base, "clean").unwrap(), b"in the cache");
}
