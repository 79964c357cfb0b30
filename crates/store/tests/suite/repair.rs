//! Repairs mend what can be counted or belongs to nothing, and leave damage alone.

use crate::stores::{blue_config, oid, pattern, pg, txn, write};
use nacre_store::{
    BlueStore, BlueStoreConfig, FsckFinding, IgnoreEvents, KvKind, KvStore, ObjectStore, ReadStore,
    RepairReport,
};
use nacre_types::txn::TxnOp;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

/// Objects with checksums and omaps of their own, and a clone.
fn filled() -> TempDir {
    let directory = tempfile::Builder::new().prefix("nacre-store-").tempdir().unwrap();
    BlueStore::mkfs(directory.path(), 64 << 20, &blue_config()).unwrap();
    let (store, _) = BlueStore::mount(directory.path(), blue_config(), Arc::new(IgnoreEvents)).unwrap();
    store.commit(&txn(pg(0), vec![TxnOp::CreateCollection])).unwrap();
    for number in 0..8_u64 {
        let name = format!("object {number}");
        let entries = vec![("key".into(), "value".into())];
        let ops =
            vec![write(&name, 0, pattern(number, 600_000)), TxnOp::OmapSet { oid: oid(&name), entries }];
        store.commit(&txn(pg(0), ops)).unwrap();
    }
    let clone = TxnOp::Clone { from: oid("object 0"), to: oid("copy") };
    store.commit(&txn(pg(0), vec![clone])).unwrap();
    store.umount().unwrap();
    directory
}

fn repair(directory: &Path) -> RepairReport {
    BlueStore::repair(directory, &blue_config(), true).unwrap()
}

/// The entries of a prefix.
fn entries(store: &KvStore, prefix: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    let see = |_: &str, key: &[u8], value: &[u8]| {
        found.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    };
    store.for_each(Some(prefix), see).unwrap();
    found
}

fn assert_whole(directory: &Path, names: impl Iterator<Item = u64>) {
    assert_eq!(BlueStore::fsck(directory, &blue_config(), true).unwrap().findings, []);
    let (store, report) = BlueStore::mount(directory, blue_config(), Arc::new(IgnoreEvents)).unwrap();
    assert_eq!(report.quarantined_bytes, 0);
    for number in names {
        let read = store.read(pg(0), &oid(&format!("object {number}")), 0, u64::MAX).unwrap();
        assert!(read == pattern(number, 600_000), "object {number}");
    }
    store.umount().unwrap();
    assert_eq!(BlueStore::fsck(directory, &blue_config(), true).unwrap().findings, []);
}

#[test]
fn a_sound_store_is_left_as_it_is() {
    let directory = filled();
    let report = repair(directory.path());
    assert_eq!((&report.repaired[..], &report.remaining.findings[..]), (&[][..], &[][..]));
    assert_whole(directory.path(), 0..8);
}

#[test]
fn what_belongs_to_nothing_goes_and_counts_are_counted_again() {
    let directory = filled();
    let store = KvStore::open(KvKind::BlueStoreKv, directory.path()).unwrap();
    let stray = 0xffff_ffff_u64.to_be_bytes();
    store.set("csum", &stray, &entries(&store, "csum")[0].1).unwrap();
    store.set("omap", &[&stray[..], &[1], b"key"].concat(), b"value").unwrap();
    // The clone's record goes; what it shared counts one holder too many.
    let (clone, _) =
        entries(&store, "onodes").into_iter().find(|(key, _)| key.windows(4).any(|w| w == b"copy")).unwrap();
    store.rm("onodes", &clone).unwrap();
    drop(store);
    let report = repair(directory.path());
    let has = |kind: fn(&FsckFinding) -> bool| report.repaired.iter().any(kind);
    assert!(has(|finding| matches!(finding, FsckFinding::StrayChecksums(0xffff_ffff))), "{report:?}");
    assert!(has(|finding| matches!(finding, FsckFinding::StrayOmap(0xffff_ffff))), "{report:?}");
    assert!(has(|finding| matches!(finding, FsckFinding::WrongReferences(_, 2, 1))), "{report:?}");
    assert_eq!(report.remaining.findings, []);
    assert!(report.repaired.iter().all(|finding| !finding.to_string().is_empty()));
    assert_whole(directory.path(), 0..8);
}

#[test]
fn what_an_unreadable_object_may_own_stays() {
    let directory = filled();
    let store = KvStore::open(KvKind::BlueStoreKv, directory.path()).unwrap();
    let (key, mut value) = entries(&store, "onodes")
        .into_iter()
        .find(|(key, _)| key.windows(8).any(|w| w == b"object 5"))
        .unwrap();
    let middle = value.len() / 2;
    value[middle] ^= 4;
    store.set("onodes", &key, &value).unwrap();
    let before = (entries(&store, "csum"), entries(&store, "omap"));
    drop(store);
    let report = repair(directory.path());
    let unread = |finding: &FsckFinding| matches!(finding, FsckFinding::Undecodable("onodes", _));
    assert!(report.remaining.findings.iter().any(unread), "{report:?}");
    let store = KvStore::open(KvKind::BlueStoreKv, directory.path()).unwrap();
    assert!((entries(&store, "csum"), entries(&store, "omap")) == before);
}

/// Gives one of the store's own numbers an earlier value, as a repair of the database may.
fn set_back(directory: &Path, key: &str, value: u64) {
    let store = KvStore::open(KvKind::BlueStoreKv, directory).unwrap();
    assert!(store.get("super", key.as_bytes()).unwrap().is_some());
    store.set("super", key.as_bytes(), &value.to_le_bytes()).unwrap();
}

#[test]
fn of_several_numbers_that_are_too_high_the_highest_counts() {
    let directory = filled();
    set_back(directory.path(), "m/id_max", 1);
    let report = repair(directory.path());
    let too_high = report.repaired.iter().filter(|finding| matches!(finding, FsckFinding::NumberTooHigh(_)));
    assert!(too_high.count() > 8, "{report:?}");
    assert_eq!(report.remaining.findings, []);
    assert_whole(directory.path(), 0..8);
}

#[test]
fn checksums_of_blobs_beyond_the_known_blocks_stay() {
    let directory = filled();
    let everything = |directory: &Path| {
        let store = KvStore::open(KvKind::BlueStoreKv, directory).unwrap();
        ["csum", "omap", "shared"].map(|prefix| entries(&store, prefix))
    };
    let before = everything(directory.path());
    assert!(!before[0].is_empty());
    set_back(directory.path(), "m/frontier", 16);
    let report = repair(directory.path());
    assert!(
        report.remaining.findings.iter().any(|finding| matches!(finding, FsckFinding::OutOfBounds(..))),
        "{report:?}"
    );
    assert!(everything(directory.path()) == before, "{report:?}");
    // A start scans, and finds where the used blocks end.
    let (store, _) = BlueStore::mount(directory.path(), blue_config(), Arc::new(IgnoreEvents)).unwrap();
    store.umount().unwrap();
    assert_whole(directory.path(), 0..8);
}

#[test]
fn a_start_with_old_numbers_gives_nothing_out_twice() {
    for threads in [0, 2] {
        let directory = filled();
        let path = directory.path();
        // An omap whose object is lost.
        let store = KvStore::open(KvKind::BlueStoreKv, path).unwrap();
        let (lost, _) = entries(&store, "onodes")
            .into_iter()
            .find(|(key, _)| key.windows(8).any(|w| w == b"object 7"))
            .unwrap();
        store.rm("onodes", &lost).unwrap();
        drop(store);
        set_back(path, "m/id_max", 1);
        set_back(path, "m/frontier", 16);
        let scans =
            [0, 1, 2].map(|threads| BlueStore::scan(path, &blue_config(), threads, &IgnoreEvents).unwrap());
        assert!(scans.iter().all(|scan| scan.health.is_empty() && scan.same_allocator(&scans[0])));
        let config = BlueStoreConfig { recovery_threads: threads, ..blue_config() };
        let (store, report) = BlueStore::mount(path, config, Arc::new(IgnoreEvents)).unwrap();
        assert_eq!(report.quarantined_bytes, 0);
        for number in 8..40_u64 {
            let name = format!("object {number}");
            let ops = vec![
                write(&name, 0, pattern(number, 600_000)),
                TxnOp::OmapSet { oid: oid(&name), entries: vec![("other".into(), "value".into())] },
            ];
            store.commit(&txn(pg(0), ops)).unwrap();
        }
        for number in (0..7).chain(8..40) {
            let keys =
                store.omap_get_keys(pg(0), &oid(&format!("object {number}")), None, b"", 9, 999).unwrap();
            assert_eq!(keys.entries, [if number < 8 { "key" } else { "other" }], "object {number}");
        }
        store.umount().unwrap();
        // All that is left of the lost object.
        let findings = repair(path).repaired;
        assert!(
            findings.iter().all(|f| matches!(f, FsckFinding::StrayOmap(_) | FsckFinding::StrayChecksums(_))),
            "{findings:?}"
        );
        assert_whole(path, (0..7).chain(8..40));
    }
}
