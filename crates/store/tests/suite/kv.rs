//! A store's database by itself, offline; and its compaction while the store is in use.

use crate::stores::{blue_config, oid, pattern, pg, txn, version, write};
use nacre_store::{BlueStore, IgnoreEvents, KvKind, KvStore, ObjectStore, ReadStore, StoreError};
use nacre_types::txn::TxnOp;
use rocksdb::perf::{PerfContext, PerfMetric, PerfStatsLevel, set_perf_stats};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

fn mount(directory: &Path) -> BlueStore {
    BlueStore::mount(directory, blue_config(), Arc::new(IgnoreEvents)).unwrap().0
}

/// A store with some of everything, unmounted.
fn filled() -> TempDir {
    let directory = tempfile::Builder::new().prefix("nacre-store-").tempdir().unwrap();
    BlueStore::mkfs(directory.path(), 64 << 20, &blue_config()).unwrap();
    let store = mount(directory.path());
    store.commit(&txn(pg(0), vec![TxnOp::CreateCollection])).unwrap();
    for number in 1..=50 {
        let name = format!("object {number}");
        let log = TxnOp::LogAppend(vec![(version(1, number), pattern(number, 100).into())]);
        store.commit(&txn(pg(0), vec![write(&name, 0, pattern(number, 9_000)), log])).unwrap();
    }
    store.umount().unwrap();
    directory
}

fn entries(store: &KvStore, prefix: Option<&str>) -> Vec<(String, Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    let see = |prefix: &str, key: &[u8], value: &[u8]| {
        found.push((prefix.to_owned(), key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    };
    store.for_each(prefix, see).unwrap();
    found
}

fn assert_whole(directory: &Path) {
    assert_eq!(BlueStore::fsck(directory, &blue_config(), true).unwrap().findings, []);
    let store = mount(directory);
    for number in 1..=50_u64 {
        let read = store.read(pg(0), &oid(&format!("object {number}")), 0, u64::MAX).unwrap();
        assert!(read == pattern(number, 9_000), "object {number}");
    }
    store.umount().unwrap();
}

#[test]
fn a_database_is_read_changed_copied_and_compacted() {
    let directory = filled();
    let store = KvStore::open(KvKind::BlueStoreKv, directory.path()).unwrap();
    assert_eq!(entries(&store, Some("onodes")).len(), 50);
    assert_eq!(entries(&store, Some("pglog")).len(), 50);
    assert!(entries(&store, Some("nonesuch")).is_empty());
    let before = entries(&store, None);
    let mut seen = Vec::new();
    store.compact(None, (None, None), |prefix| seen.push(prefix.to_owned())).unwrap();
    assert!(seen.iter().map(String::as_str).eq(store.prefixes()));
    assert!(entries(&store, None) == before, "compaction changes nothing that is read");
    let elsewhere = tempfile::tempdir().unwrap();
    let copy = elsewhere.path().join("copy");
    let mut batches = 0;
    let copied = store.copy_to(&copy, 7, |_| batches += 1).unwrap();
    assert_eq!((copied.keys, copied.transactions), (before.len() as u64, batches));
    assert!(store.copy_to(&copy, 7, |_| ()).is_err(), "a copy replaces nothing");
    let crc = store.crc().unwrap();
    let other = KvStore::open(KvKind::RocksDb, &copy).unwrap();
    assert!(entries(&other, None) == before && other.crc().unwrap() == crc);
    other.set("super", b"u/x", b"1").unwrap();
    assert_ne!(other.crc().unwrap(), crc);
    drop(other);

    // Log entries vanish by single deletes: overwriting one by hand must not leave two.
    let (_, key, value) = entries(&store, Some("pglog")).swap_remove(3);
    store.set("pglog", &key, b"other").unwrap();
    store.set("pglog", &key, &value).unwrap();
    store.rm("pglog", &key).unwrap();
    assert_eq!(store.get("pglog", &key).unwrap(), None);
    store.set("pglog", &key, &value).unwrap();
    assert_eq!(store.get("pglog", &key).unwrap(), Some(value));
    assert!(store.set("nonesuch", b"k", b"v").is_err());
    assert!(store.size().unwrap().total() > 0);
    drop(store);
    assert_whole(directory.path());
}

#[test]
fn space_of_a_record_removed_by_hand_is_found_again() {
    let directory = filled();
    let free = |store: &BlueStore| store.free_space(0).unwrap().free_bytes;
    let store = mount(directory.path());
    let before = free(&store);
    store.umount().unwrap();
    let store = KvStore::open(KvKind::BlueStoreKv, directory.path()).unwrap();
    let (_, key, _) = entries(&store, Some("onodes")).swap_remove(0);
    store.rm("onodes", &key).unwrap();
    drop(store);
    let store = mount(directory.path());
    assert_eq!(free(&store), before + 12_288);
    store.umount().unwrap();
}

#[test]
fn a_store_in_use_is_left_alone() {
    let directory = filled();
    let store = mount(directory.path());
    let refused = KvStore::open(KvKind::BlueStoreKv, directory.path()).unwrap_err();
    assert!(matches!(refused, StoreError::InUse(_)), "{refused}");
    assert!(matches!(KvStore::repair(KvKind::BlueStoreKv, directory.path()), Err(StoreError::InUse(_))));
    store.umount().unwrap();
    let empty = tempfile::tempdir().unwrap();
    let refused = KvStore::open(KvKind::BlueStoreKv, empty.path()).unwrap_err();
    assert!(matches!(refused, StoreError::WrongStore { .. }), "{refused}");
    assert!(KvStore::open(KvKind::RocksDb, empty.path()).is_err());
    let plain = KvStore::open(KvKind::RocksDb, &directory.path().join("db")).unwrap_err();
    assert!(plain.to_string().contains("use bluestore-kv"), "{plain}");
    assert_whole(directory.path());
}

#[test]
fn a_repaired_database_serves_what_its_tables_had() {
    let directory = filled();
    let path = directory.path();
    assert!(!KvStore::repair(KvKind::BlueStoreKv, path).unwrap(), "nothing is wrong with it");
    let store = KvStore::open(KvKind::BlueStoreKv, path).unwrap();
    store.compact(None, (None, None), |_| ()).unwrap();
    let before = entries(&store, None);
    drop(store);
    std::fs::remove_file(path.join("db/CURRENT")).unwrap();
    assert!(KvStore::open(KvKind::BlueStoreKv, path).is_err());
    assert!(KvStore::repair(KvKind::BlueStoreKv, path).unwrap());
    let store = KvStore::open(KvKind::BlueStoreKv, path).unwrap();
    let after = entries(&store, None);
    let incarnation = |entries: &[(String, Vec<u8>, Vec<u8>)]| {
        entries.iter().find(|(_, key, _)| key == b"m/incarnation").unwrap().2.clone()
    };
    assert_ne!(
        incarnation(&after),
        incarnation(&before),
        "other members are not told of what it may have lost"
    );
    let kept = |entries: Vec<(String, Vec<u8>, Vec<u8>)>| -> Vec<_> {
        let stays =
            |(prefix, key, _): &(String, Vec<u8>, Vec<u8>)| prefix != "allocdelta" && key != b"m/incarnation";
        entries.into_iter().filter(stays).collect()
    };
    assert!(kept(after) == kept(before));
}

/// How many deleted entries a listing of an object's omap steps over.
fn stepped_over(store: &BlueStore, name: &str) -> u64 {
    set_perf_stats(PerfStatsLevel::EnableCount);
    let mut context = PerfContext::default();
    context.reset();
    let page = store.omap_get_keys(pg(0), &oid(name), None, b"", 10, usize::MAX).unwrap();
    assert_eq!(page.entries, ["zz"]);
    context.metric(PerfMetric::InternalDeleteSkippedCount)
}

#[test]
fn many_removals_do_not_stay_in_the_way() {
    const KEYS: usize = 60_000;
    let directory = tempfile::Builder::new().prefix("nacre-store-").tempdir().unwrap();
    BlueStore::mkfs(directory.path(), 64 << 20, &blue_config()).unwrap();
    let store = mount(directory.path());
    store.commit(&txn(pg(0), vec![TxnOp::CreateCollection, write("a", 0, "x")])).unwrap();
    let key = |number: usize| bytes::Bytes::from(format!("key {number:08}"));
    let set = |keys: Vec<(bytes::Bytes, bytes::Bytes)>| {
        store.commit(&txn(pg(0), vec![TxnOp::OmapSet { oid: oid("a"), entries: keys }])).unwrap();
    };
    for first in (0..KEYS).step_by(10_000) {
        set((first..first + 10_000).map(|number| (key(number), "value".into())).collect());
    }
    set(vec![("zz".into(), "last".into())]);
    for first in (0..KEYS).step_by(10_000) {
        let keys = (first..first + 10_000).map(key).collect();
        store.commit(&txn(pg(0), vec![TxnOp::OmapRm { oid: oid("a"), keys }])).unwrap();
    }
    let at_first = stepped_over(&store, "a");
    assert!(at_first >= 10_000, "the removals are there to begin with: {at_first}");
    // Listings, and writes to another object: a memtable is flushed by who writes to it.
    store.commit(&txn(pg(0), vec![write("b", 0, "x")])).unwrap();
    let began = Instant::now();
    loop {
        let entries = vec![("k".into(), "v".into())];
        store.commit(&txn(pg(0), vec![TxnOp::OmapSet { oid: oid("b"), entries }])).unwrap();
        let left = stepped_over(&store, "a");
        if left < 100 {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{left} of {at_first} are still there");
        std::thread::yield_now();
    }
    store.umount().unwrap();
}

#[test]
fn a_store_compacts_while_it_is_written() {
    let directory = filled();
    let store = mount(directory.path());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut written = 0_u64;
            while !stop.load(Ordering::Acquire) || written == 0 {
                let name = format!("more {}", written % 100);
                store.commit(&txn(pg(0), vec![write(&name, 0, pattern(7, 5_000))])).unwrap();
                written += 1;
            }
            written
        });
        let mut parts = Vec::new();
        store.compact(&mut |part, number, count| parts.push((part.to_owned(), number, count))).unwrap();
        stop.store(true, Ordering::Release);
        assert!(writer.join().unwrap() > 0);
        let count = parts.len();
        assert!(count >= 9 && parts.iter().enumerate().all(|(at, part)| (part.1, part.2) == (at + 1, count)));
    });
    store.umount().unwrap();
    assert!(store.compact(&mut |_, _, _| ()).is_err(), "a closed store compacts nothing");
    assert_whole(directory.path());
}

#[test]
fn a_compaction_does_not_hold_up_the_end_of_a_store() {
    let directory = filled();
    let store = mount(directory.path());
    std::thread::scope(|scope| {
        let (begun, told) = std::sync::mpsc::channel();
        let compacts = scope.spawn({
            let store = &store;
            move || {
                // The compaction goes on only once the store is closed to others.
                let mut progress = |_: &str, number, _| {
                    assert_eq!(number, 1, "it ends with the store");
                    begun.send(()).unwrap();
                    let began = Instant::now();
                    while !matches!(store.statfs(), Err(StoreError::NotMounted)) {
                        assert!(began.elapsed() < Duration::from_secs(60), "the end of the store waits");
                        std::thread::yield_now();
                    }
                };
                store.compact(&mut progress)
            }
        });
        told.recv().unwrap();
        store.umount().unwrap();
        // Its files and its lock are free.
        assert_whole(directory.path());
        assert!(matches!(compacts.join().unwrap(), Err(StoreError::NotMounted)));
    });
}
