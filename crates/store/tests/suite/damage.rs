//! Damage on BlueStore's device and in its database is noticed, reported and never served; failed fsyncs stop it.

use crate::flips::copy;
use crate::stores::{Collect, blue_config, oid, pattern, pg, txn, version, write};
use bytes::Bytes;
use nacre_store::{
    AllocationSource, BlueStore, BlueStoreConfig, Completion, FsckFinding, IgnoreEvents, MountReport,
    ObjectStore, ReadStore, StoreError, StoreEvents,
};
use nacre_types::errno::Errno;
use nacre_types::txn::{Transaction, TxnOp};
use parking_lot::Mutex;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const SIZE: u64 = 64 << 20;

fn new_store() -> TempDir {
    let directory = tempfile::Builder::new().prefix("nacre-store-").tempdir().unwrap();
    BlueStore::mkfs(directory.path(), SIZE, &blue_config()).unwrap();
    directory
}

fn mount(directory: &Path) -> (BlueStore, MountReport) {
    BlueStore::mount(directory, blue_config(), Arc::new(IgnoreEvents)).unwrap()
}

fn fsck(directory: &Path) -> Vec<FsckFinding> {
    BlueStore::fsck(directory, &blue_config(), true).unwrap().findings
}

/// Finds `needle` on the device and changes one bit of it.
fn flip_on_device(directory: &Path, needle: &[u8]) {
    let path = directory.join("block");
    let device = std::fs::read(&path).unwrap();
    let found: Vec<_> =
        (0..device.len() / 4096).filter(|block| device[block * 4096..].starts_with(needle)).collect();
    assert_eq!(found.len(), 1, "blocks that begin with the pattern");
    let file = OpenOptions::new().write(true).open(path).unwrap();
    let at = found[0] * 4096 + 100;
    file.write_all_at(&[device[at] ^ 0x10], at as u64).unwrap();
}

#[test]
fn flipped_bit_is_an_io_error_and_spares_the_rest() {
    let directory = new_store();
    let data = pattern(5, 200_000);
    let (store, _) = mount(directory.path());
    store
        .commit(&txn(
            pg(0),
            vec![TxnOp::CreateCollection, write("a", 0, data.clone()), write("b", 0, "fine")],
        ))
        .unwrap();
    store.umount().unwrap();
    flip_on_device(directory.path(), &data[8192..8192 + 64]);
    let findings = fsck(directory.path());
    assert!(
        matches!(&findings[..], [FsckFinding::BadData(object, _)] if *object == oid("a")),
        "{findings:?}"
    );
    let (store, _) = mount(directory.path());
    for _ in 0..2 {
        let error = store.read(pg(0), &oid("a"), 8000, 1000).unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { .. }) && error.errno() == Errno::EIO, "{error}");
        assert!(store.read(pg(0), &oid("a"), 0, u64::MAX).is_err());
    }
    assert!(store.read(pg(0), &oid("a"), 12_288, 50_000).unwrap() == data[12_288..62_288]);
    assert_eq!(store.read(pg(0), &oid("b"), 0, 10).unwrap(), "fine");
    assert!(store.health().iter().any(|(code, _)| code == "BLUESTORE_DAMAGED"));
    // A partial overwrite needs the damaged block and must not launder it; a full one repairs.
    assert!(store.queue_transaction(&txn(pg(0), vec![write("a", 8200, "x")]), None).is_err());
    store.commit(&txn(pg(0), vec![write("a", 8192, data[8192..12_288].to_vec())])).unwrap();
    assert!(store.read(pg(0), &oid("a"), 0, u64::MAX).unwrap() == data);
    store.umount().unwrap();
    assert_eq!(fsck(directory.path()), []);
}

/// Puts a value into the closed store's database.
fn put_in_database(
    directory: &Path,
    family: &str,
    change: impl Fn(&[u8], &[u8]) -> Option<(Vec<u8>, Vec<u8>)>,
) -> usize {
    let path = directory.join("db");
    let options = rocksdb::Options::default();
    let families = rocksdb::DB::list_cf(&options, &path).unwrap();
    let db = rocksdb::DB::open_cf(&options, &path, families).unwrap();
    let handle = db.cf_handle(family).unwrap();
    let entries: Vec<_> = db.iterator_cf(handle, rocksdb::IteratorMode::Start).map(Result::unwrap).collect();
    let changes: Vec<_> = entries.iter().filter_map(|(key, value)| change(key, value)).collect();
    changes.iter().for_each(|(key, value)| db.put_cf(handle, key, value).unwrap());
    changes.len()
}

/// Loses the store's notes of allocation, so that the next mount reads all records.
fn forget_allocation(directory: &Path) {
    std::fs::remove_dir_all(directory.join("ALLOCATOR_NCB_DIR")).unwrap();
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

#[test]
fn objects_whose_shared_blob_has_no_readable_record_can_be_removed_and_replaced() {
    let directory = new_store();
    let (store, _) = mount(directory.path());
    let clone = |from: &str, to: &str| TxnOp::Clone { from: oid(from), to: oid(to) };
    store.commit(&txn(pg(0), vec![TxnOp::CreateCollection, write("good", 0, pattern(1, 100_000))])).unwrap();
    for name in ["a", "b", "c", "d"] {
        let copy = format!("copy of {name}");
        store.commit(&txn(pg(0), vec![write(name, 0, pattern(2, 100_000)), clone(name, &copy)])).unwrap();
    }
    store.umount().unwrap();
    let changed = put_in_database(directory.path(), "shared", |key, value| {
        Some((key.to_vec(), value[..value.len() - 1].to_vec()))
    });
    assert_eq!(changed, 4);
    let (store, _) = mount(directory.path());
    // What else needs the record fails as before.
    let error =
        store.queue_transaction(&txn(pg(0), vec![write("a", 0, pattern(3, 100_000))]), None).unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
    store.commit(&txn(pg(0), vec![TxnOp::Remove(oid("a"))])).unwrap();
    store.commit(&txn(pg(0), vec![clone("good", "b")])).unwrap();
    store.commit(&txn(pg(0), vec![TxnOp::Remove(oid("c")), write("c", 0, pattern(4, 5_000))])).unwrap();
    let more = vec![write("new", 0, pattern(5, 9_000)), TxnOp::Rename { from: oid("new"), to: oid("d") }];
    store.commit(&txn(pg(0), more)).unwrap();
    let check = |store: &BlueStore| {
        assert!(!store.exists(pg(0), &oid("a")).unwrap());
        let read = |name: &str| store.read(pg(0), &oid(name), 0, u64::MAX).unwrap();
        assert!(read("b") == pattern(1, 100_000) && read("good") == pattern(1, 100_000));
        assert!(read("c") == pattern(4, 5_000) && read("d") == pattern(5, 9_000));
        // The other holders keep their data.
        assert!(
            ["a", "b", "c", "d"].iter().all(|name| read(&format!("copy of {name}")) == pattern(2, 100_000))
        );
    };
    check(&store);
    store.commit(&txn(pg(0), vec![write("much", 0, pattern(6, 8 << 20))])).unwrap();
    store.umount().unwrap();
    let (store, _) = mount(directory.path());
    check(&store);
    store.umount().unwrap();
    forget_allocation(directory.path());
    let (store, report) = mount(directory.path());
    assert!(report.quarantined_bytes > 0, "what the other holders name is withheld: {report:?}");
    check(&store);
    store.umount().unwrap();
}

#[test]
fn a_shared_blobs_record_that_nobody_needs_is_deleted_and_its_blocks_come_back() {
    let directory = new_store();
    let (store, _) = mount(directory.path());
    let clone = TxnOp::Clone { from: oid("a"), to: oid("copy") };
    let ops = vec![TxnOp::CreateCollection, write("a", 0, pattern(2, 100_000)), clone];
    store.commit(&txn(pg(0), ops)).unwrap();
    store.umount().unwrap();
    let cut = |key: &[u8], value: &[u8]| Some((key.to_vec(), value[..value.len() - 1].to_vec()));
    assert_eq!(put_in_database(directory.path(), "shared", cut), 1);
    let (store, _) = mount(directory.path());
    store.commit(&txn(pg(0), vec![TxnOp::Remove(oid("a")), TxnOp::Remove(oid("copy"))])).unwrap();
    store.umount().unwrap();
    // Its blocks belong to nobody: only a scan of all objects shows that.
    let (store, report) = mount(directory.path());
    assert!(matches!(report.allocation, Some(AllocationSource::Scan { .. })), "{report:?}");
    assert_eq!(report.quarantined_bytes, 0);
    assert_eq!(store.health(), []);
    store.umount().unwrap();
    assert_eq!(fsck(directory.path()), []);
    let (store, report) = mount(directory.path());
    assert_eq!(report.allocation, Some(AllocationSource::File));
    store.umount().unwrap();
}

#[test]
fn garbage_record_withholds_free_space_and_can_be_removed() {
    let directory = new_store();
    let (store, _) = mount(directory.path());
    let ops = vec![
        TxnOp::CreateCollection,
        write("good", 0, pattern(1, 100_000)),
        write("garbage", 0, pattern(2, 100_000)),
    ];
    store.commit(&txn(pg(0), ops)).unwrap();
    store.umount().unwrap();
    let changed = put_in_database(directory.path(), "onodes", |key, value| {
        let mut value = value.to_vec();
        let last = value.len() / 2;
        value[last] ^= 1;
        contains(key, b"garbage").then(|| (key.to_vec(), value))
    });
    assert_eq!(changed, 1);
    assert!(matches!(fsck(directory.path())[..], [FsckFinding::Undecodable("onodes", _), ..]));
    // By its notes a store knows the record's blocks without it.
    let (store, report) = mount(directory.path());
    assert_eq!((report.allocation, report.quarantined_bytes), (Some(AllocationSource::File), 0));
    store.umount().unwrap();
    forget_allocation(directory.path());
    let (store, report) = mount(directory.path());
    assert!(report.quarantined_bytes > 0, "{report:?}");
    assert!(store.health().iter().any(|(code, _)| code == "BLUESTORE_QUARANTINE"));
    let error = store.read(pg(0), &oid("garbage"), 0, 10).unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
    assert!(matches!(
        store.queue_transaction(&txn(pg(0), vec![write("garbage", 0, "x")]), None),
        Err(StoreError::Corrupt { .. })
    ));
    assert!(store.read(pg(0), &oid("good"), 0, u64::MAX).unwrap() == pattern(1, 100_000));
    // New data must not land where the damaged object's may be: that is still on the device afterwards.
    store.commit(&txn(pg(0), vec![write("new", 0, pattern(3, 3 << 20))])).unwrap();
    store.commit(&txn(pg(0), vec![TxnOp::Remove(oid("garbage"))])).unwrap();
    assert!(!store.exists(pg(0), &oid("garbage")).unwrap());
    store.umount().unwrap();
    let device = std::fs::read(directory.path().join("block")).unwrap();
    assert!(device.chunks(4096).any(|block| block == &pattern(2, 100_000)[..4096]));
    // With the record gone nothing is withheld any more; the usage it took was lost with it.
    let findings = fsck(directory.path());
    assert!(matches!(findings[..], [] | [FsckFinding::WrongUsage(..)]), "{findings:?}");
    let (store, report) = mount(directory.path());
    assert_eq!(report.quarantined_bytes, 0);
    assert!(matches!(report.allocation, Some(AllocationSource::Scan { .. })), "{report:?}");
    assert!(store.read(pg(0), &oid("new"), 0, u64::MAX).unwrap() == pattern(3, 3 << 20));
    store.umount().unwrap();
}

#[test]
fn two_owners_of_a_block_are_both_quarantined() {
    let directory = new_store();
    let (store, _) = mount(directory.path());
    let ops = vec![
        TxnOp::CreateCollection,
        write("twin-a", 0, pattern(1, 50_000)),
        write("other", 0, pattern(2, 9_000)),
    ];
    store.commit(&txn(pg(0), ops)).unwrap();
    store.umount().unwrap();
    // A second record of the same blobs under another name of the same length.
    let changed = put_in_database(directory.path(), "onodes", |key, value| {
        let at = key.windows(6).position(|window| window == b"twin-a")?;
        let mut key = key.to_vec();
        key[at + 5] = b'b';
        Some((key, value.to_vec()))
    });
    assert_eq!(changed, 1);
    assert!(fsck(directory.path()).iter().any(|finding| matches!(finding, FsckFinding::OwnedTwice(_))));
    forget_allocation(directory.path());
    let (store, report) = mount(directory.path());
    assert!(report.quarantined_bytes >= 50_000, "{report:?}");
    assert!(!store.health().is_empty());
    // Both are removed, yet the blocks stay out of use: nothing written later overwrites them.
    store.commit(&txn(pg(0), vec![TxnOp::Remove(oid("twin-a"))])).unwrap();
    for i in 0..40 {
        store.commit(&txn(pg(0), vec![write(&format!("fill {i}"), 0, pattern(100 + i, 1 << 20))])).unwrap();
    }
    store.umount().unwrap();
    let device = std::fs::read(directory.path().join("block")).unwrap();
    assert!(device.chunks(4096).any(|block| block == &pattern(1, 50_000)[..4096]));
}

/// Changes a bit of `needle` in the write-ahead log.
fn flip_in_log(directory: &Path, needle: &[u8]) {
    let mut damaged = 0;
    for entry in std::fs::read_dir(directory.join("db")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "log") {
            let mut bytes = std::fs::read(&path).unwrap();
            if let Some(at) = bytes.windows(needle.len()).position(|window| window == needle) {
                bytes[at] ^= 1;
                std::fs::write(&path, bytes).unwrap();
                damaged += 1;
            }
        }
    }
    assert_eq!(damaged, 1);
}

fn set_attr(value: &str) -> Transaction {
    let attrs = vec![("mark".to_owned(), Bytes::from(value.to_owned()))];
    txn(pg(0), vec![TxnOp::SetAttrs { oid: oid("a"), attrs }])
}

#[test]
fn a_lost_last_change_of_metadata_is_noticed() {
    let directory = new_store();
    let (store, report) = mount(directory.path());
    store.commit(&txn(pg(0), vec![TxnOp::CreateCollection, write("a", 0, "data")])).unwrap();
    store.commit(&set_attr("the last change")).unwrap();
    // Nothing follows that would take the watermark along.
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let copied = tempfile::Builder::new().prefix("nacre-store-").tempdir().unwrap();
        copy(directory.path(), copied.path());
        flip_in_log(copied.path(), b"the last change");
        let (copied, after) = mount(copied.path());
        assert_eq!(copied.get_attr(pg(0), &oid("a"), "mark").unwrap(), None);
        if after.loss.is_some() && after.incarnation != report.incarnation {
            break;
        }
        assert!(Instant::now() < deadline, "{after:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn metadata_alone_is_followed_by_flushes_of_the_watermark() {
    let directory = new_store();
    let (store, _) = mount(directory.path());
    store.commit(&txn(pg(0), vec![TxnOp::CreateCollection, write("a", 0, "data")])).unwrap();
    let flushes = || store.counters().unwrap().device_flushes;
    let (before, began) = (flushes(), Instant::now());
    // Without a pause that is long enough for the watermark of an idle store.
    while began.elapsed() < Duration::from_millis(3500) || flushes() < before + 2 {
        store.commit(&set_attr("a value")).unwrap();
        assert!(began.elapsed() < Duration::from_secs(30));
    }
    // One a second, not one with each commit; the data has one of its own.
    let (flushed, passed) = (flushes() - before, began.elapsed());
    assert!(flushed <= 3 + passed.as_secs(), "{flushed} flushes in {passed:?}");
}

#[test]
fn wal_damaged_in_its_synced_part_is_a_loss() {
    let directory = new_store();
    let config = BlueStoreConfig { watermark_interval: Duration::ZERO, ..blue_config() };
    let (store, report) = BlueStore::mount(directory.path(), config.clone(), Arc::new(IgnoreEvents)).unwrap();
    let incarnation = report.incarnation;
    store.commit(&txn(pg(0), vec![TxnOp::CreateCollection])).unwrap();
    for i in 0..50 {
        let attrs = vec![("mark".to_owned(), Bytes::from(format!("attribute of {i}")))];
        let ops = vec![write("a", i * 4096, pattern(i, 4096)), TxnOp::SetAttrs { oid: oid("a"), attrs }];
        store.commit(&txn(pg(0), ops)).unwrap();
    }
    // A crash of the process: the log holds everything and was synced.
    drop(store);
    flip_in_log(directory.path(), b"attribute of 25");
    match BlueStore::mount(directory.path(), config, Arc::new(IgnoreEvents)) {
        Ok((store, report)) => {
            assert!(report.loss.is_some() && report.incarnation != incarnation, "{report:?}");
            store.umount().unwrap();
            // Said once: the store now is what it is, under its new identity.
            let (store, again) = mount(directory.path());
            assert_eq!((again.loss, again.incarnation), (None, report.incarnation));
            store.umount().unwrap();
        }
        Err(error) => assert!(matches!(error, StoreError::Corrupt { .. }), "{error}"),
    }
}

#[test]
fn crash_of_the_process_loses_nothing() {
    let directory = new_store();
    for round in 0..3 {
        let (store, report) = mount(directory.path());
        assert_eq!(
            (report.loss.clone(), report.clean, report.objects),
            (None, round == 0, round * 20),
            "{report:?}"
        );
        for i in 0..20 {
            let name = format!("{round} {i}");
            let ops = vec![
                TxnOp::CreateCollection,
                write(&name, 0, pattern(i, 10_000)),
                TxnOp::LogAppend(vec![(version(round + 1, i + 1), "e".into())]),
            ];
            store.commit(&txn(pg(0), ops)).unwrap();
        }
        drop(store);
    }
    assert_eq!(fsck(directory.path()), []);
}

#[test]
fn foreign_and_busy_devices_are_refused() {
    let (one, two) = (new_store(), new_store());
    let (store, _) = mount(one.path());
    assert!(matches!(
        BlueStore::mount(one.path(), blue_config(), Arc::new(IgnoreEvents)),
        Err(StoreError::InUse(_))
    ));
    assert!(matches!(BlueStore::fsck(one.path(), &blue_config(), false), Err(StoreError::InUse(_))));
    store.umount().unwrap();
    std::fs::rename(one.path().join("block"), two.path().join("block")).unwrap();
    let refused = BlueStore::mount(two.path(), blue_config(), Arc::new(IgnoreEvents)).unwrap_err();
    assert!(matches!(refused, StoreError::WrongStore { .. }), "{refused}");
    OpenOptions::new()
        .write(true)
        .open(two.path().join("block"))
        .unwrap()
        .write_all_at(&[0; 512], 0)
        .unwrap();
    let refused = BlueStore::mount(two.path(), blue_config(), Arc::new(IgnoreEvents)).unwrap_err();
    assert!(matches!(refused, StoreError::WrongStore { .. }), "{refused}");
    assert!(matches!(BlueStore::mkfs(one.path(), SIZE, &blue_config()), Err(StoreError::WrongStore { .. })));
}

#[derive(Default)]
struct Fatal(Mutex<Vec<StoreError>>);

impl StoreEvents for Fatal {
    fn fatal(&self, error: &StoreError) {
        self.0.lock().push(error.clone());
    }
}

/// Runs in a process of its own: failpoints are the process'.
const FAILPOINT: &str = "NACRE_TEST_FAILPOINT";

#[test]
fn failed_writes_and_syncs_stop_the_store_for_good() {
    if let Ok(failpoint) = std::env::var(FAILPOINT) {
        return stop_by(&failpoint);
    }
    for failpoint in ["store::data_flush", "store::data_write", "store::wal_write"] {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "damage::failed_writes_and_syncs_stop_the_store_for_good", "--nocapture"])
            .env(FAILPOINT, failpoint)
            .output()
            .unwrap();
        assert!(child.status.success(), "{failpoint}: {}", String::from_utf8_lossy(&child.stderr));
    }
}

fn stop_by(failpoint: &str) {
    let directory = new_store();
    let events = Arc::new(Fatal::default());
    let (store, _) = BlueStore::mount(directory.path(), blue_config(), events.clone()).unwrap();
    store.commit(&txn(pg(0), vec![TxnOp::CreateCollection, write("a", 0, pattern(1, 5000))])).unwrap();
    // Once only: a retry would succeed, and must not happen.
    fail::cfg(failpoint, "1*return").unwrap();
    let sink = Arc::new(Collect::default());
    let completion = Completion { sink: sink.clone(), token: 9 };
    store.queue_transaction(&txn(pg(0), vec![write("a", 0, pattern(2, 100_000))]), Some(completion)).unwrap();
    let error = store.flush().unwrap_err();
    assert!(matches!(error, StoreError::Stopped(_)), "{error}");
    fail::remove(failpoint);
    assert!(matches!(store.commit(&txn(pg(0), vec![write("b", 0, "x")])), Err(StoreError::Stopped(_))));
    assert!(matches!(store.read(pg(0), &oid("a"), 0, 1), Err(StoreError::Stopped(_))));
    assert!(matches!(store.super_set(&[("k", None)]), Err(StoreError::Stopped(_))));
    assert!(store.stopped().is_some() && store.health().iter().any(|(code, _)| code == "BLUESTORE_STOPPED"));
    assert!(store.umount().is_err());
    assert_eq!(events.0.lock().len(), 1);
    assert!(sink.groups.lock().is_empty());
    assert_eq!(sink.failures.lock().iter().map(|(tokens, _)| tokens.clone()).collect::<Vec<_>>(), [[9]]);
    // What was acknowledged before is there after a restart.
    let (store, _) = mount(directory.path());
    assert_eq!(store.read(pg(0), &oid("a"), 0, u64::MAX).unwrap().len(), 5000);
    store.umount().unwrap();
    assert_eq!(fsck(directory.path()), []);
}

#[test]
fn full_file_system_refuses_writes_and_takes_deletes() {
    let directory = new_store();
    let (store, _) = mount(directory.path());
    store.commit(&txn(pg(0), vec![TxnOp::CreateCollection, write("a", 0, "data")])).unwrap();
    store.umount().unwrap();
    assert!(directory.path().join("db/ballast").exists());
    // No file system has this much: the database's looks full, far below the level at which the ballast goes.
    let full = BlueStoreConfig { db_min_free_bytes: u64::MAX / 2, ..blue_config() };
    let (store, _) = BlueStore::mount(directory.path(), full.clone(), Arc::new(IgnoreEvents)).unwrap();
    assert!(!directory.path().join("db/ballast").exists());
    let refused = store.queue_transaction(&txn(pg(0), vec![write("b", 0, "x")]), None).unwrap_err();
    assert_eq!(refused.errno(), Errno::ENOSPC);
    assert!(store.reserve(1).is_err());
    // Other members hear it by this.
    assert_eq!(store.statfs().unwrap().available_bytes, 0);
    // What a member of a PG has to note is taken all the same.
    let noted = vec![("interval".to_owned(), Bytes::from_static(b"2"))];
    store.commit(&txn(pg(0), vec![TxnOp::MetaSet(noted.clone())])).unwrap();
    store.commit(&txn(pg(1), vec![TxnOp::CreateCollection, TxnOp::MetaSet(noted)])).unwrap();
    store.commit(&txn(pg(0), Vec::new())).unwrap();
    assert!(store.health().iter().any(|(code, _)| code == "BLUESTORE_DB_FULL"));
    store.commit(&txn(pg(0), vec![TxnOp::Remove(oid("a"))])).unwrap();
    assert_eq!(store.read(pg(0), &oid("a"), 0, 1).unwrap_err(), StoreError::NotFound(oid("a")));
    store.umount().unwrap();
    let (store, _) = mount(directory.path());
    store.commit(&txn(pg(0), vec![write("b", 0, "x")])).unwrap();
    store.umount().unwrap();
    // Opening the database alone, which a full file system may refuse, gives the ballast up before.
    assert!(directory.path().join("db/ballast").exists());
    assert_eq!(BlueStore::fsck(directory.path(), &full, false).unwrap().findings, []);
    assert!(!directory.path().join("db/ballast").exists());
}

#[test]
fn low_file_system_of_the_database_is_told_before_writes_are_refused() {
    let directory = new_store();
    let (store, _) = mount(directory.path());
    // Part of the block file has its space: that there is none for the database does not show in it.
    store.commit(&txn(pg(0), vec![TxnOp::CreateCollection, write("a", 0, "data")])).unwrap();
    assert!(store.statfs().unwrap().available_bytes > 0);
    store.umount().unwrap();
    let space = rustix::fs::statvfs(directory.path()).unwrap();
    let free = space.f_bavail * space.f_frsize;
    // More than half of the level is free, less than the level.
    let low = BlueStoreConfig { db_min_free_bytes: free + free / 3, ..blue_config() };
    let (store, _) = BlueStore::mount(directory.path(), low, Arc::new(IgnoreEvents)).unwrap();
    assert_eq!(store.statfs().unwrap().available_bytes, 0);
    for bytes in [0, 1] {
        assert!(matches!(store.reserve(bytes), Err(StoreError::NoSpace { .. })));
    }
    assert!(store.health().iter().any(|(code, _)| code == "BLUESTORE_DB_FULL"));
    // What was ordered before the others heard of it.
    store.commit(&txn(pg(0), vec![write("ordered", 0, pattern(2, 10_000))])).unwrap();
    assert!(store.read(pg(0), &oid("ordered"), 0, u64::MAX).unwrap() == pattern(2, 10_000));
    store.umount().unwrap();
}
