//! The checks of documents 000 to 003: striped backup volumes, MemStore and cache tiers, BlueStore's scan, RocksDB.

use super::place::{Contract, ReferenceCluster, nothing};
use super::table::{self, Verdict};
use crate::support::{free_port, nacre};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

/// A second rule, which the document adds for its OSDs in memory.
const SECOND_RULE: &str = "\
rule memstore {
	id 1
	type replicated
	min_size 1
	max_size 10
	step take default
	step chooseleaf firstn 0 type osd
	step emit
}
";

/// Checks the required output of both scans of a store, as in the document.
fn scans_agree(_: &ReferenceCluster, output: &str) {
    let mut lines = output.lines();
    assert_eq!(lines.next(), Some("recovery-compare bluestore compare new and legacy onode recovery"));
    let mut told = Vec::new();
    for name in ["New", "Legacy"] {
        assert_eq!(lines.next(), Some(&*format!("{name} recovery start")));
        let took = lines.next().unwrap();
        let took = took.strip_prefix(&format!("{name} recovery result=0 took ")).unwrap();
        assert!(took.strip_suffix(" seconds").unwrap().parse::<f64>().unwrap() > 0.0);
        assert_eq!(lines.next(), Some(&*format!("{name} recovery stats=")));
        let rule = "==========================================================";
        assert_eq!(lines.next(), Some(rule));
        told.push(lines.by_ref().take_while(|line| *line != rule).collect::<Vec<_>>());
        assert_eq!(lines.next(), Some(""));
    }
    assert_eq!(told[0], told[1]);
    assert_eq!(
        told[0],
        [
            "onode_count             =       2000",
            "shard_count             =       2600",
            "shared_blob_count       =          0",
            "compressed_blob_count   =          0",
            "spanning_blob_count     =          0",
            "skipped_illegal_extent  =          0",
            "extent_count            =       9000",
            "insert_count            =       9000",
            "store store_statfs(0x0/0x0/0x0, data 0x0/0x0, compress 0x0/0x0/0x0, omap 0x0, meta 0x0)",
            "pool 1 store_statfs(0x0/0x0/0x0, data 0x4650000/0x4650000, compress 0x0/0x0/0x0, omap 0x0, meta 0x0)",
        ]
    );
    let rest: Vec<&str> = lines.collect();
    assert_eq!(rest, ["FSstats the same.", "Allocators the same.", "recovery-compare success"]);
}

/// A pool's line of `osd pool ls detail`.
fn pool_line(place: &ReferenceCluster, pool: &str) -> String {
    let lines = place.ok("ceph osd pool ls detail");
    lines.lines().find(|line| line.contains(&format!(" '{pool}' "))).unwrap_or_default().to_owned()
}

/// Checks a variable of the cache pool.
fn variable_is(place: &ReferenceCluster, name: &str, value: &str) {
    assert_eq!(place.ok(&format!("ceph osd pool get cachepool {name}")), format!("{name}: {value}\n"));
}

pub(super) const CONTRACTS: &[Contract] = &[
    Contract {
        line: r#"df|grep "/var/lib/ceph/osd" |awk '{print $6}' |cut -d '-' -f 2|sort -n|xargs -n 1 -P 10 -I OSD ceph-kvstore-tool bluestore-kv /var/lib/ceph/osd/ceph-OSD compact"#,
        before: |place| {
            // The OSD of another cluster that does not run, at the place that `df` reports.
            let other = place.home().join("other");
            let listen = format!("127.0.0.1:{}", free_port());
            let args = ["--listen", &listen, "--objectstore", "bluestore", "--osds", "1", "--mkfs-only"];
            let made =
                Command::new(nacre()).args(["serve", "--data"]).arg(&other).args(args).output().unwrap();
            assert!(made.status.success(), "{made:?}");
            symlink(other.join("osd/0"), place.home().join("data/osd/ceph-0")).unwrap();
            let store = "ceph-kvstore-tool bluestore-kv ../data/osd/ceph-0";
            for value in 1..=3 {
                place.ok(&format!("{store} set super u/compacted ver {value}"));
            }
        },
        after: |place, _| {
            let store = "ceph-kvstore-tool bluestore-kv ../data/osd/ceph-0";
            let shown = place.ok(&format!("{store} get super u/compacted"));
            assert!(shown.starts_with("(super, u/compacted)\n00000000  03 00"), "{shown}");
            // Three values were written. After compaction, the database contains one.
            let stats = place.ok(&format!("{store} stats"));
            assert!(stats.contains("Compaction Stats [super]"), "{stats}");
            place.ok(&format!("{store} rm super u/compacted"));
            assert!(!place.run(&format!("{store} exists super u/compacted")).status.success());
            // The database of a running OSD is refused.
            let refused = place.run("ceph-kvstore-tool bluestore-kv ../data/osd/0 compact");
            assert!(!refused.status.success(), "{refused:?}");
        },
    },
    Contract {
        line: "ceph-bluestore-tool --path <osd-data-path> recovery-compare",
        before: |place| {
            let path = place.substituted("<osd-data-path>");
            place.ok(&format!(
                "ceph-bluestore-tool --path {path} fill --mkfs 1Gi --onodes 2000 --extents 9000 --pgs 8"
            ));
        },
        after: |place, output| {
            scans_agree(place, output);
            // As in Ceph without threads.
            let path = place.substituted("<osd-data-path>");
            let one = "--bluestore_allocation_recovery_threads=0 recovery-compare";
            let printed = place.ok(&format!("ceph-bluestore-tool --path {path} {one}"));
            for line in table::of("002", &Verdict::Output) {
                assert!(printed.lines().any(|printed| *printed == line), "{line}: {printed}");
            }
        },
    },
    Contract {
        line: "ceph-bluestore-tool --path <osd-data-path> --bluestore_allocation_recovery_threads=12 recovery-compare",
        before: nothing,
        after: scans_agree,
    },
    Contract {
        line: "rados -p backup ls",
        before: |place| {
            place.ok("ceph osd pool create backup");
            for part in 0..3 {
                place.ok(&format!("rados -p backup put Full-5409.{part:016} ceph.conf"));
            }
        },
        after: |_, output| {
            let listed: BTreeSet<&str> = output.lines().collect();
            let wanted =
                ["Full-5409.0000000000000000", "Full-5409.0000000000000001", "Full-5409.0000000000000002"];
            assert_eq!(listed, BTreeSet::from(wanted));
        },
    },
    Contract {
        line: "rados -p backup ls --striper",
        before: |place| {
            // Objects that were put there as plain objects are not striped.
            for part in 0..3 {
                place.ok(&format!("rados -p backup rm Full-5409.{part:016}"));
            }
            place.ok("head -c 10000000 /dev/zero > volume");
            for volume in ["Full-5409", "Incr-5822"] {
                place.ok(&format!("rados -p backup --striper put {volume} volume"));
            }
        },
        after: |place, output| {
            assert_eq!(output.lines().collect::<BTreeSet<_>>(), BTreeSet::from(["Full-5409", "Incr-5822"]));
            assert_eq!(place.ok("rados -p backup ls").lines().count(), 6);
        },
    },
    Contract {
        line: "ceph osd getcrushmap -o crushmap",
        before: nothing,
        after: |place, _| assert!(fs::metadata(place.work().join("crushmap")).unwrap().len() > 100),
    },
    Contract {
        line: "crushtool -d crushmap -o crush.map",
        before: nothing,
        after: |place, _| {
            let text = fs::read_to_string(place.work().join("crush.map")).unwrap();
            assert!(text.contains("# begin crush map") && text.contains("item osd.2 weight"), "{text}");
        },
    },
    Contract {
        line: "crushtool -c crush.map -o crushmap",
        before: |place| {
            let path = place.work().join("crush.map");
            let text = fs::read_to_string(&path).unwrap();
            fs::write(&path, text.replace("\n# end crush map", &format!("{SECOND_RULE}\n# end crush map")))
                .unwrap();
        },
        after: |place, _| {
            let back = place.ok("crushtool -d crushmap");
            assert!(back.contains("rule memstore {") && back.contains("rule replicated_rule {"), "{back}");
        },
    },
    Contract {
        line: "ceph osd setcrushmap -i crushmap",
        before: nothing,
        after: |place, _| assert_eq!(place.ok("ceph osd crush rule ls"), "replicated_rule\nmemstore\n"),
    },
    Contract {
        line: "ceph osd pool create cachepool 512 512 replicated",
        before: nothing,
        after: |place, _| {
            let pool = place.json("ceph osd pool get cachepool all");
            assert_eq!((&pool["pg_num"], &pool["pgp_num"]), (&512.into(), &512.into()));
        },
    },
    Contract {
        line: "ceph osd pool set cachepool crush_ruleset 1",
        before: nothing,
        after: |place, _| {
            assert_eq!(place.json("ceph osd pool get cachepool crush_rule")["crush_rule"], "memstore");
            assert_eq!(place.ok("ceph osd pool get cachepool crush_ruleset"), "crush_ruleset: 1\n");
        },
    },
    Contract {
        line: "ceph osd pool set .rgw.buckets crush_ruleset 0",
        before: |place| {
            place.ok("ceph osd pool create .rgw.buckets 8 8 replicated memstore");
        },
        after: |place, _| {
            assert_eq!(
                place.json("ceph osd pool get .rgw.buckets crush_rule")["crush_rule"],
                "replicated_rule"
            );
            place.ok("rados -p .rgw.buckets put o ceph.conf");
        },
    },
    Contract {
        line: "ceph osd tier add .rgw.buckets cachepool",
        before: nothing,
        after: |place, _| {
            assert!(pool_line(place, "cachepool").contains(" tier_of "));
            assert!(pool_line(place, ".rgw.buckets").contains(" tiers "));
        },
    },
    Contract {
        line: "ceph osd tier cache-mode cachepool writeback",
        // The OSDs are in memory, and a power failure would lose changes that are not flushed.
        before: nothing,
        after: |place, _| {
            assert!(pool_line(place, "cachepool").contains(" cache_mode writeback "));
            let health = place.ok("ceph health detail");
            let volatile = "pool 'cachepool' with cache_mode writeback has 0 dirty objects (0 B) of pool '.rgw.buckets' in memory";
            assert!(health.contains(volatile), "{health}");
        },
    },
    Contract {
        line: "ceph osd tier set-overlay .rgw.buckets cachepool",
        before: nothing,
        after: |place, _| {
            let base = pool_line(place, ".rgw.buckets");
            assert!(base.contains(" read_tier ") && base.contains(" write_tier "), "{base}");
            // Objects that are only in the cache remain visible.
            let refused = place.run("ceph osd tier remove-overlay .rgw.buckets");
            let said = String::from_utf8_lossy(&refused.stderr);
            assert!(said.contains("Error EBUSY: cache pool 'cachepool' is in mode writeback"), "{said}");
        },
    },
    Contract {
        line: "ceph osd pool set {cachepool} hit_set_type bloom",
        before: nothing,
        after: |place, _| variable_is(place, "hit_set_type", "bloom"),
    },
    Contract {
        line: "ceph osd pool set {cachepool} hit_set_count 1",
        before: nothing,
        after: |place, _| variable_is(place, "hit_set_count", "1"),
    },
    Contract {
        line: "ceph osd pool set {cachepool} hit_set_period 3600",
        before: nothing,
        after: |place, _| variable_is(place, "hit_set_period", "3600"),
    },
    Contract {
        line: "ceph osd pool set {cachepool} target_max_bytes 1000000000000",
        before: nothing,
        after: |place, _| variable_is(place, "target_max_bytes", "1000000000000"),
    },
    Contract {
        line: "ceph osd pool set {cachepool} cache_target_dirty_ratio {0.0..1.0}",
        before: nothing,
        after: |place, _| variable_is(place, "cache_target_dirty_ratio", "0.4"),
    },
    Contract {
        line: "ceph osd pool set {cachepool} cache_target_full_ratio {0.0..1.0}",
        before: nothing,
        after: |place, _| variable_is(place, "cache_target_full_ratio", "0.4"),
    },
    Contract {
        line: "ceph osd pool set {cachepool} target_max_objects {#objects}",
        before: nothing,
        after: |place, _| variable_is(place, "target_max_objects", "1000"),
    },
    Contract {
        line: "ceph osd pool set {cachepool} cache_min_flush_age {#seconds}",
        before: nothing,
        after: |place, _| variable_is(place, "cache_min_flush_age", "600"),
    },
    Contract {
        line: "ceph osd pool set {cachepool} cache_min_evict_age {#seconds}",
        before: nothing,
        after: |place, _| variable_is(place, "cache_min_evict_age", "600"),
    },
];
