//! `nacre bluestore-tool` on the folders of stopped OSDs.

use crate::support::{Daemon, TestCluster, nacre};
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
    // Unsupported commands of Ceph's are refused with a reason.
    let refused = tool(folder.path(), "bluefs-export --out-dir x");
    let told = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{told}");
    assert!(told.contains("bluefs-export is refused: there is no BlueFS"), "{told}");
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

#[test]
fn stores_are_checked_mended_and_described() {
    let folder = tempfile::Builder::new().prefix("nacre-tool-").tempdir().unwrap();
    let path = folder.path().join("osd");
    let path = path.as_path();
    ok(path, "fill --mkfs 256Mi --onodes 500 --extents 900 --pgs 4");
    let label: serde_json::Value = serde_json::from_str(&ok(path, "show-label")).unwrap();
    let label = &label[path.join("block").display().to_string()];
    assert_eq!((label["size"].as_u64(), label["description"].as_str()), (Some(256 << 20), Some("main")));
    assert!(ok(path, "fsck").ends_with("fsck 500 objects checked\nfsck success\n"));
    assert!(ok(path, "qfsck").ends_with("qfsck success\n"));
    let stats = ok(path, "bluefs-stats");
    assert!(stats.contains("onodes") && stats.contains("size 0x10000000"), "{stats}");
    // The same for scripts: one document and no other output.
    let document = |words: &str| -> serde_json::Value { serde_json::from_str(&ok(path, words)).unwrap() };
    let sound = document("fsck --format json");
    assert_eq!((&sound["success"], &sound["objects"]), (&true.into(), &500.into()), "{sound}");
    assert_eq!(document("--format json-pretty qfsck")["success"], true);
    assert_eq!(document("bluefs-stats -f json")["block_bytes"], 256 << 20);
    assert!(document("free-score -f json")["block"]["fragmentation_rating"].is_number());
    assert!(document("free-dump -f json")["block"]["extents"].is_array());
    assert_eq!(document("bluefs-bdev-expand -f json")["after_bytes"], 256 << 20);
    assert!(document("show-label -f json")[path.join("block").display().to_string()].is_object());
    let scans = document("recovery-compare -f json");
    assert_eq!(scans["success"], true);
    assert!(scans["scans"][0]["stats"]["onode_count"].as_u64() >= Some(500), "{scans}");
    let kvstore = |words: &str| {
        let mut tool = Command::new(nacre());
        tool.args(["kvstore-tool", "bluestore-kv"]).arg(path).args(words.split(' '));
        let out = tool.output().unwrap();
        let document: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        (out.status.code(), document)
    };
    let (code, listed) = kvstore("list onodes --format json");
    let listed = listed.as_array().unwrap();
    assert!(code == Some(0) && listed.len() >= 500, "{} entries", listed.len());
    assert_eq!(listed[0]["prefix"], "onodes");
    let key = listed[0]["key"].as_str().unwrap();
    let (_, entry) = kvstore(&format!("get onodes {key} --format json"));
    assert_eq!(entry["size"].as_u64(), entry["value"].as_str().map(|hex| hex.len() as u64 / 2));
    let (code, absent) = kvstore("--format=json exists onodes nothing");
    assert_eq!((code, &absent["exists"]), (Some(1), &false.into()));
    let (_, none) = kvstore("list omap_none_such --format json-pretty");
    assert_eq!(none, serde_json::json!([]));
    assert!(kvstore("get-size --format json").1["total"].as_u64() > Some(0));
    assert!(kvstore("compact --format json").1["after_bytes"].is_number());
    let mut set = Command::new(nacre());
    set.args(["kvstore-tool", "bluestore-kv"]).arg(path);
    let out = set.args(["set", "omap", "%ff%ff%ff%ff%ff%ff%ff%f0%01key", "ver", "1"]).output().unwrap();
    assert!(out.status.success(), "{out:?}");
    let refused = tool(path, "fsck");
    let said = String::from_utf8_lossy(&refused.stdout).into_owned();
    assert!(refused.status.code() == Some(1) && said.contains("belongs to no object"), "{said}");
    let mended = ok(path, "repair");
    let mended_all =
        mended.contains("repair repaired: omap ") && mended.contains("remaining 0 error(s) and 1 repaired");
    assert!(mended_all, "{mended}");
    assert!(ok(path, "fsck").contains("fsck success"));
}

#[test]
fn objects_go_to_another_store_by_a_file() {
    let mut cluster = TestCluster::start_with(1, "bluestore", "[global]\nmon_allow_pool_size_one = true\n");
    let other = tempfile::tempdir().unwrap();
    cluster.create_pool("p", 8, 1, 1);
    for name in ["one", "two"] {
        let file = cluster.folder().join(name);
        std::fs::write(&file, format!("contents of {name}")).unwrap();
        cluster.ok(&["rados", "-p", "p", "put", name, &file.display().to_string()]);
    }
    cluster.terminate(Daemon::Osd(0));
    let store = cluster.folder().join("osd/0");
    let (all, one) = (other.path().join("all"), other.path().join("one"));
    let (all, one) = (all.display(), one.display());
    assert!(ok(&store, &format!("export --dest-file {all}")).starts_with("exported "));
    let again = tool(&store, &format!("export --dest-file {all}"));
    assert!(!again.status.success(), "a file that is there is not overwritten");
    assert!(ok(&store, &format!("export --object one --dest-file {one}")).contains(" 1 objects, 15 bytes"));
    let refused = tool(&store, &format!("import --input-file {one}"));
    assert!(!refused.status.success(), "{refused:?}");
    ok(&store, &format!("import --force --input-file {one}"));
    let empty = other.path().join("store");
    BlueStore::mkfs(&empty, 64 << 20, &BlueStoreConfig::default()).unwrap();
    ok(&empty, &format!("import --input-file {all}"));
    assert!(ok(&empty, "fsck --deep").contains("fsck success"));
    // The replaced data is served.
    cluster.spawn(Daemon::Osd(0));
    let back = other.path().join("back");
    cluster.ok(&["rados", "-p", "p", "get", "one", &back.display().to_string()]);
    assert_eq!(std::fs::read_to_string(back).unwrap(), "contents of one");
}
