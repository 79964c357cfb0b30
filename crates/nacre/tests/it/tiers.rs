//! Cache tiers on real clusters: the behaviour for clients, and that nothing is lost while a tier is added and removed.

mod lost;

use crate::failures::{Load, conf, open};
use crate::support::{Daemon, TestCluster};
use nacre_client::{IoCtx, block_on};
use nacre_types::errno::Errno;
use serde_json::Value;

/// A cluster with the pools `base` and `cache`, where `cache` is a tier of `base` in that mode, with its overlay.
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

/// Removes the tier, as described in docs/tiers.md.
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
    // The changes are only in the cache until they are flushed.
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

/// Hits and misses of the cache so far, over all OSDs.
fn hits_and_misses(cluster: &TestCluster) -> (u64, u64) {
    let of = |osd: usize, name: &str| {
        let text = cluster.ok(&["ceph", "tell", &format!("osd.{osd}"), "perf", "dump"]);
        let dump: Value = serde_json::from_str(&text).unwrap();
        dump["osd"][name].as_u64().unwrap()
    };
    let sum = |name| (0..3).map(|osd| of(osd, name)).sum();
    (sum("tier_hits"), sum("tier_misses"))
}

fn advice(cluster: &TestCluster) -> Value {
    serde_json::from_str(&cluster.ok(&["tier", "advise", "cache", "--format", "json"])).unwrap()
}

/// The predicted hit rate for a target `scale` times as large.
fn predicted(advice: &Value, scale: f64, admission: &str) -> f64 {
    let cells = advice["predicted"].as_array().unwrap();
    let is_wanted = |cell: &&Value| {
        let recency = &cell["min_read_recency_for_promote"];
        cell["scale"] == scale && cell["admission"] == admission && (recency.is_null() || *recency == 0)
    };
    cells.iter().find(is_wanted).unwrap()["hit_rate"].as_f64().unwrap()
}

/// Deterministic numbers from 0 to 1.
fn uniform(turn: u64) -> f64 {
    let mut z = turn.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}

#[test]
fn advice_says_what_is_and_what_more_would_bring() {
    const OBJECTS: u64 = 800;
    const TARGET: u64 = 200;
    let conf =
        format!("{}osd_tier_promote_max_objects_sec = 0\nosd_tier_promote_max_bytes_sec = 0\n", conf());
    let cluster = TestCluster::start_with(3, "memstore", &conf);
    for pool in ["base", "cache"] {
        cluster.create_pool(pool, 4, 2, 1);
    }
    cluster.wait_healthy();
    let base = open(&cluster, "base");
    let refused = cluster.run(&["tier", "advise", "base"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("pool 'base' is not a cache tier"));
    let refused = cluster.run(&["tier", "advise", "none"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("unrecognized pool 'none'"));
    (0..OBJECTS).for_each(|number| write(&base, &format!("o{number}"), &"contents ".repeat(100)));
    cluster.ok(&["ceph", "osd", "tier", "add", "base", "cache"]);
    cluster.ok(&["ceph", "osd", "tier", "cache-mode", "cache", "writeback", "--yes-i-really-mean-it"]);
    for (name, value) in [("hit_set_type", "bloom"), ("hit_set_count", "4"), ("hit_set_period", "5")] {
        cluster.ok(&["ceph", "osd", "pool", "set", "cache", name, value]);
    }
    cluster.ok(&["ceph", "osd", "tier", "set-overlay", "base", "cache"]);
    assert!(cluster.ok(&["tier", "advise", "cache"]).ends_with("no accesses are recorded yet\n"));
    let set_target = |objects: u64| {
        cluster.ok(&["ceph", "osd", "pool", "set", "cache", "target_max_objects", &objects.to_string()]);
    };
    let sums: Vec<f64> = (1..=OBJECTS)
        .scan(0.0, |sum, rank| {
            *sum += (rank as f64).powf(-0.99);
            Some(*sum)
        })
        .collect();
    let zipf = |turn: u64| {
        let at = uniform(turn) * sums.last().unwrap();
        sums.partition_point(|sum| *sum <= at) as u64
    };
    let run = |turns: std::ops::Range<u64>| {
        turns.for_each(|turn| _ = read(&base, &format!("o{}", zipf(turn) % OBJECTS)).unwrap());
    };
    set_target(TARGET);
    // Accesses are recorded from the agents' first pass on. The accuracy of the rates is tested with the policies alone
    // (`nacre_tier::cache_sizing`): in a cluster the agent's speed has an effect, too.
    cluster.wait_for("advice", |cluster| {
        run(0..1000);
        let advice = advice(cluster);
        let rates = || [0.25, 1.0, 4.0].map(|scale| predicted(&advice, scale, "recency"));
        let is_known = advice["target_objects"] == TARGET && !advice["hit_rate"].is_null();
        is_known && rates().is_sorted() && rates()[0] < rates()[2]
    });
    cluster.wait_for("advice as text", |cluster| {
        let text = cluster.ok(&["tier", "advise", "cache"]);
        text.contains("RECENCY 2   FREQUENCY\n") && text.contains("\n 0.25x  ")
    });
}

#[test]
fn limits_of_promotions_are_followed_while_osds_run() {
    const OBJECTS: u64 = 300;
    let cluster = TestCluster::start_with(3, "memstore", conf());
    let limit = |objects: &str| {
        cluster.ok(&["ceph", "config", "set", "osd", "osd_tier_promote_max_objects_sec", objects]);
    };
    limit("1");
    for pool in ["base", "cache"] {
        cluster.create_pool(pool, 4, 2, 1);
    }
    cluster.wait_healthy();
    let base = open(&cluster, "base");
    (0..OBJECTS).for_each(|number| write(&base, &format!("o{number}"), "contents"));
    cluster.ok(&["ceph", "osd", "tier", "add", "base", "cache"]);
    cluster.ok(&["ceph", "osd", "tier", "cache-mode", "cache", "writeback", "--yes-i-really-mean-it"]);
    // Without hit sets promotions are not limited.
    let variables = [
        ("hit_set_type", "bloom"),
        ("hit_set_count", "1"),
        ("hit_set_period", "3600"),
        ("min_read_recency_for_promote", "0"),
    ];
    for (variable, value) in variables {
        cluster.ok(&["ceph", "osd", "pool", "set", "cache", variable, value]);
    }
    cluster.ok(&["ceph", "osd", "tier", "set-overlay", "base", "cache"]);
    let read_all = || {
        let read = |number| _ = read(&base, &format!("o{number}")).unwrap();
        (0..OBJECTS).for_each(read);
    };
    read_all();
    assert!(names(&cluster, "cache").len() < OBJECTS as usize / 2, "a second each is a minute and a half");
    limit("100000");
    cluster.wait_for("all objects to be promoted", |cluster| {
        read_all();
        names(cluster, "cache").len() == OBJECTS as usize
    });
}

#[test]
fn a_scan_does_not_empty_a_cache_that_admits_by_frequency() {
    const HOT: u64 = 60;
    const SCANNED: u64 = 600;
    let conf = format!("{}osd_tier_promote_admission = frequency\n", conf());
    let cluster = TestCluster::start_with(3, "memstore", &conf);
    for pool in ["base", "cache"] {
        cluster.create_pool(pool, 1, 2, 1);
    }
    cluster.wait_healthy();
    let base = open(&cluster, "base");
    (0..HOT + SCANNED).for_each(|number| write(&base, &format!("o{number}"), "contents"));
    cluster.ok(&["ceph", "osd", "tier", "add", "base", "cache"]);
    cluster.ok(&["ceph", "osd", "tier", "cache-mode", "cache", "writeback", "--yes-i-really-mean-it"]);
    cluster.ok(&["ceph", "osd", "pool", "set", "cache", "target_max_objects", "100"]);
    cluster.ok(&["ceph", "osd", "tier", "set-overlay", "base", "cache"]);
    let run = |objects: std::ops::Range<u64>| {
        objects.for_each(|number| _ = read(&base, &format!("o{number}")).unwrap());
    };
    // The agent creates the filter when it has counted the objects.
    cluster.wait_for("accesses to be sampled", |cluster| {
        run(0..HOT);
        !advice(cluster)["hit_rate"].is_null()
    });
    let hit_rate = || {
        let (hits_before, misses_before) = hits_and_misses(&cluster);
        run(0..HOT);
        let (hits, misses) = hits_and_misses(&cluster);
        (hits - hits_before) as f64 / (hits + misses - hits_before - misses_before) as f64
    };
    (0..10).for_each(|_| run(0..HOT));
    let before = hit_rate();
    run(HOT..HOT + SCANNED);
    let after = hit_rate();
    assert!(before > 0.9 && after >= 0.9 * before, "{before} {after}");
}
