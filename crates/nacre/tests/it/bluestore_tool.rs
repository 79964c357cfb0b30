//! `nacre bluestore-tool` on the folders of stopped OSDs.

use crate::support::nacre;
use nacre_store::{BlueStore, BlueStoreConfig, IgnoreEvents, ObjectStore};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

fn tool(path: &Path, words: &str) -> Output {
    Command::new(nacre())
        .arg("bluestore-tool")
        .arg("--path")
        .arg(path)
        .args(words.split(' '))
        .output()
        .unwrap()
}

fn ok(path: &Path, words: &str) -> String {
    let out = tool(path, words);
    assert!(out.status.success(), "{words}: {out:?}");
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn verbs_tell_what_is_allocated() {
    let folder = tempfile::Builder::new().prefix("nacre-tool-").tempdir().unwrap();
    let path = folder.path().join("osd");
    let path = path.as_path();
    let filled = ok(path, "fill --mkfs 256Mi --onodes 300 --extents 1000 --pgs 4 --extent-blocks 2");
    assert!(filled.contains("filled: 300 objects, 1000 extents in "), "{filled}");
    // Without threads there is nothing to compare.
    let alone = ok(path, "recovery-compare --bluestore_allocation_recovery_threads=0");
    assert!(alone.contains("Legacy recovery result=0 took ") && !alone.contains("New recovery"), "{alone}");
    assert!(
        alone.ends_with(
            "\nbluestore_allocation_recovery_threads = 0\nNo multithread recovery to compare.\nrecovery-compare success\n"
        ),
        "{alone}"
    );
    let all = ok(path, "recovery-compare --cold --both-orders");
    assert_eq!(all.matches("Allocators the same.").count(), 2, "{all}");
    let table = all.lines().rev().take(6).collect::<Vec<_>>();
    assert!(table[5].starts_with("recovery   cache") && table[4].starts_with("New        cold"), "{all}");
    let map = ok(path, "allocmap");
    assert!(map.contains("2000 blocks allocated by a checkpoint and 0 deltas"), "{map}");
    assert!(map.ends_with("FSstats the same.\nAllocators the same.\nallocmap success\n"), "{map}");
    let dump = ok(path, "free-dump");
    let dump: serde_json::Value = serde_json::from_str(dump.strip_prefix("block:\n").unwrap()).unwrap();
    assert_eq!((&dump["alloc_unit"], &dump["alloc_name"]), (&4096.into(), &"block".into()));
    assert_eq!(dump["extents"].as_array().unwrap().len(), 1000, "one behind each extent");
    let score = ok(path, "free-score");
    let score: serde_json::Value = serde_json::from_str(score.strip_prefix("block:\n").unwrap()).unwrap();
    let rating = score["fragmentation_rating"].as_f64().unwrap();
    assert!(rating > 0.3 && rating < 1.0, "{rating}");
}

#[test]
fn stores_in_use_and_no_stores_are_refused() {
    let folder = tempfile::Builder::new().prefix("nacre-tool-").tempdir().unwrap();
    let config = BlueStoreConfig::default();
    BlueStore::mkfs(folder.path(), 64 << 20, &config).unwrap();
    let (store, _) = BlueStore::mount(folder.path(), config, Arc::new(IgnoreEvents)).unwrap();
    for verb in ["recovery-compare", "allocmap", "free-dump", "free-score", "fill"] {
        let out = tool(folder.path(), verb);
        assert_eq!(out.status.code(), Some(1), "{verb}");
        assert!(String::from_utf8_lossy(&out.stderr).contains("in use"), "{verb}: {out:?}");
    }
    store.umount().unwrap();
    drop(store);
    ok(folder.path(), "allocmap");
    let out = tool(&folder.path().join("nothing"), "allocmap");
    assert_eq!(out.status.code(), Some(1), "{out:?}");
    let out = Command::new(nacre()).args(["bluestore-tool", "allocmap"]).output().unwrap();
    assert!(String::from_utf8_lossy(&out.stderr).contains("must specify --path"), "{out:?}");
}
