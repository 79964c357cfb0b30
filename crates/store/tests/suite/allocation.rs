//! What BlueStore knows of allocation at a start: by which source, that damage to one leads to the next and never to
//! wrong answers, and that both scans agree with it.

use crate::flips::copy;
use crate::stores::{blue_config, oid, pattern, pg, txn, write};
use nacre_store::{
    AllocationSource, BlueStore, BlueStoreConfig, FillPlan, FsckFinding, IgnoreEvents, MountReport,
    ObjectStore, ReadStore, ScanProgress, StoreError, StoreEvents,
};
use nacre_types::txn::TxnOp;
use parking_lot::Mutex;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const SIZE: u64 = 256 << 20;
const FOLDER: &str = "ALLOCATOR_NCB_DIR";
const FILE: &str = "ALLOCATOR_NCB_DIR/ALLOCATOR_NCB_FILE";

fn new_store() -> TempDir {
    let directory = tempfile::Builder::new().prefix("nacre-store-").tempdir().unwrap();
    BlueStore::mkfs(directory.path(), SIZE, &blue_config()).unwrap();
    directory
}

fn mount_with(directory: &Path, config: BlueStoreConfig) -> (BlueStore, MountReport) {
    BlueStore::mount(directory, config, Arc::new(IgnoreEvents)).unwrap()
}

fn mount(directory: &Path) -> (BlueStore, MountReport) {
    mount_with(directory, blue_config())
}

/// Writes, overwrites, clones and removes objects; calls with different seeds touch the same objects.
fn work(store: &BlueStore, seed: u64) {
    for i in 0..30 {
        let name = format!("object {}", (seed + i) % 20);
        let mut ops = vec![TxnOp::CreateCollection, write(&name, i * 3000, pattern(seed + i, 20_000))];
        match i % 5 {
            0 => ops.push(TxnOp::Remove(oid(&format!("object {}", (seed + i + 7) % 20)))),
            1 => ops.push(TxnOp::Clone { from: oid(&name), to: oid(&format!("clone {}", i % 3)) }),
            2 => ops.push(write(&name, 0, pattern(i, 100))),
            _ => {}
        }
        store.commit(&txn(pg(i as u32 % 3), ops)).unwrap();
    }
}

fn sound(directory: &Path) {
    let report = BlueStore::fsck(directory, &blue_config(), true).unwrap();
    assert_eq!(report.findings, []);
}

fn is_scan(source: &Option<AllocationSource>) -> bool {
    matches!(source, Some(AllocationSource::Scan { .. }))
}

/// A store with work done, closed cleanly or not.
fn worked(clean: bool, checkpoint_bytes: u64) -> TempDir {
    let directory = new_store();
    let (store, _) = mount_with(directory.path(), BlueStoreConfig { checkpoint_bytes, ..blue_config() });
    work(&store, 1);
    work(&store, 40);
    // A checkpoint is made beside the commits: wait until there was one where there are to be some.
    let deadline = Instant::now() + Duration::from_secs(20);
    while (1..4096).contains(&checkpoint_bytes) && store.counters().unwrap().checkpoints == 0 {
        assert!(Instant::now() < deadline, "no checkpoint was made");
        work(&store, 3);
    }
    if clean {
        store.umount().unwrap();
    }
    drop(store);
    directory
}

#[test]
fn clean_stores_start_from_the_file_and_crashed_ones_from_a_checkpoint() {
    let directory = worked(true, 1 << 20);
    assert!(directory.path().join(FILE).exists());
    sound(directory.path());
    let (store, report) = mount(directory.path());
    assert_eq!((report.allocation, report.clean), (Some(AllocationSource::File), true));
    assert!(!directory.path().join(FILE).exists(), "it would be believed after a change");
    work(&store, 5);
    store.flush().unwrap();
    let before = (store.statfs().unwrap().pools, store.free_space(usize::MAX).unwrap());
    drop(store);
    sound(directory.path());
    let (store, report) = mount(directory.path());
    assert!(matches!(report.allocation, Some(AllocationSource::Checkpoint { deltas: 60.. })), "{report:?}");
    assert_eq!((store.statfs().unwrap().pools, store.free_space(usize::MAX).unwrap()), before);
    drop(store);
}

#[test]
fn a_crash_within_a_checkpoint_leaves_the_one_before() {
    let directory = worked(false, 1 << 10);
    let (store, _) =
        mount_with(directory.path(), BlueStoreConfig { checkpoint_bytes: 1 << 10, ..blue_config() });
    let _faults = fail::FailScenario::setup();
    // From here on pages are written, and no head that names them.
    fail::cfg("store::checkpoint_pages", "return").unwrap();
    let before = store.counters().unwrap().checkpoints;
    work(&store, 7);
    work(&store, 9);
    assert_eq!(store.counters().unwrap().checkpoints, before);
    drop(store);
    fail::remove("store::checkpoint_pages");
    sound(directory.path());
    let (store, report) = mount(directory.path());
    assert!(matches!(report.allocation, Some(AllocationSource::Checkpoint { deltas: 60.. })), "{report:?}");
    work(&store, 11);
    store.umount().unwrap();
    sound(directory.path());
}

/// Runs in a process of its own: failpoints are the process'.
const CUT_SHORT: &str = "NACRE_TEST_CUT_SHORT";

#[test]
fn a_checkpoint_of_a_start_that_was_cut_short_never_counts() {
    if let Ok(source) = std::env::var(CUT_SHORT) {
        return cut_short(source == "file");
    }
    for source in ["checkpoint", "file"] {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "allocation::a_checkpoint_of_a_start_that_was_cut_short_never_counts",
                "--nocapture",
            ])
            .env(CUT_SHORT, source)
            .output()
            .unwrap();
        assert!(child.status.success(), "{source}: {}", String::from_utf8_lossy(&child.stderr));
    }
}

fn cut_short(clean: bool) {
    let directory = worked(clean, 8 << 20);
    // The checkpoint can't be read for a moment, and the power fails before its slot is emptied.
    let pages = directory.path().join(FOLDER).join("pages");
    let hidden = directory.path().join("hidden");
    if clean {
        std::fs::rename(&pages, &hidden).unwrap();
    } else {
        fail::cfg("store::checkpoint_read", "1*return").unwrap();
    }
    fail::cfg("store::checkpoint_replaced", "return").unwrap();
    let cut = BlueStore::mount(directory.path(), blue_config(), Arc::new(IgnoreEvents)).unwrap_err();
    assert_eq!(cut, StoreError::Interrupted);
    fail::remove("store::checkpoint_replaced");
    if clean {
        std::fs::rename(&hidden, &pages).unwrap();
    }
    let (store, report) = mount(directory.path());
    assert!(is_scan(&report.allocation), "{report:?}");
    work(&store, 5);
    drop(store);
    sound(directory.path());
    let (store, report) = mount(directory.path());
    assert!(matches!(report.allocation, Some(AllocationSource::Checkpoint { .. })), "{report:?}");
    work(&store, 9);
    store.umount().unwrap();
    sound(directory.path());
}

#[test]
fn a_checkpoint_that_is_newer_than_the_database_proves_a_loss() {
    let directory = worked(false, 1 << 10);
    let old = tempfile::Builder::new().prefix("nacre-store-").tempdir().unwrap();
    copy(directory.path(), old.path());
    let config = BlueStoreConfig { checkpoint_bytes: 1 << 10, ..blue_config() };
    let (store, before) = mount_with(directory.path(), config);
    let deadline = Instant::now() + Duration::from_secs(20);
    while store.counters().unwrap().checkpoints < 2 {
        assert!(Instant::now() < deadline, "no checkpoint was made");
        work(&store, 3);
    }
    drop(store);
    // The database as it was, and no watermark.
    std::fs::remove_dir_all(directory.path().join("db")).unwrap();
    copy(&old.path().join("db"), &directory.path().join("db"));
    let device = OpenOptions::new().write(true).open(directory.path().join("block")).unwrap();
    device.write_all_at(&[0; 8192], 4096).unwrap();
    let (store, after) = mount(directory.path());
    assert!(after.loss.as_ref().is_some_and(|loss| loss.contains("allocation delta")), "{after:?}");
    assert_ne!(after.incarnation, before.incarnation);
    drop(store);
    // Said once.
    let (store, again) = mount(directory.path());
    assert_eq!((again.loss, again.incarnation), (None, after.incarnation));
    store.umount().unwrap();
}

#[test]
fn deltas_stay_few() {
    let directory = worked(false, 1 << 10);
    let (_store, report) = mount(directory.path());
    let Some(AllocationSource::Checkpoint { deltas }) = report.allocation else { panic!("{report:?}") };
    assert!(deltas < 80, "{deltas}");
}

#[test]
fn without_deltas_a_crash_costs_a_scan_and_a_clean_stop_none() {
    let directory = worked(false, 0);
    let (store, report) =
        mount_with(directory.path(), BlueStoreConfig { checkpoint_bytes: 0, ..blue_config() });
    assert!(is_scan(&report.allocation), "{report:?}");
    store.umount().unwrap();
    sound(directory.path());
    let (store, report) =
        mount_with(directory.path(), BlueStoreConfig { checkpoint_bytes: 0, ..blue_config() });
    assert_eq!(report.allocation, Some(AllocationSource::File));
    drop(store);
    // The crash right after: the file is gone, and nothing was noted.
    let (_, report) = mount(directory.path());
    assert!(is_scan(&report.allocation), "{report:?}");
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    let at = at % bytes.len();
    bytes[at] ^= 4;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn damage_to_any_note_leads_to_the_next_source() {
    let heads = [format!("{FOLDER}/checkpoint.0"), format!("{FOLDER}/checkpoint.1")];
    let pages = format!("{FOLDER}/pages");
    // The file with anything else intact; then the checkpoint too.
    for at in [3, 30, 50, 60, 85, 110, 4100, 5000] {
        let directory = worked(true, 1 << 20);
        let path = |name: &str| -> PathBuf { directory.path().join(name) };
        flip(&path(FILE), at);
        sound(directory.path());
        let (store, report) = mount(directory.path());
        assert!(matches!(report.allocation, Some(AllocationSource::Checkpoint { .. })), "{at}: {report:?}");
        work(&store, 9);
        drop(store);
        heads.iter().filter(|head| path(head).exists()).for_each(|head| flip(&path(head), at));
        let (store, report) = mount(directory.path());
        assert!(is_scan(&report.allocation), "{at}: {report:?}");
        work(&store, 10);
        drop(store);
        sound(directory.path());
        let (_, report) = mount(directory.path());
        assert!(matches!(report.allocation, Some(AllocationSource::Checkpoint { .. })), "{at}: {report:?}");
    }
    let directory = worked(false, 1 << 10);
    let path = directory.path().join(pages);
    for page in 0..std::fs::metadata(&path).unwrap().len() as usize / 4096 {
        flip(&path, page * 4096 + 8);
    }
    let (store, report) = mount(directory.path());
    assert!(is_scan(&report.allocation), "{report:?}");
    drop(store);
    sound(directory.path());
}

#[test]
fn files_of_another_time_or_store_are_not_believed() {
    let (one, two) = (worked(true, 1 << 20), worked(true, 1 << 20));
    std::fs::copy(two.path().join(FILE), one.path().join(FILE)).unwrap();
    let (store, report) = mount(one.path());
    assert!(matches!(report.allocation, Some(AllocationSource::Checkpoint { .. })), "{report:?}");
    store.umount().unwrap();
    let old = std::fs::read(one.path().join(FILE)).unwrap();
    let (store, _) = mount(one.path());
    work(&store, 77);
    store.umount().unwrap();
    std::fs::write(one.path().join(FILE), &old).unwrap();
    let (store, report) = mount(one.path());
    assert!(matches!(report.allocation, Some(AllocationSource::Checkpoint { .. })), "{report:?}");
    drop(store);
    // After a crash no file counts, whatever it says.
    std::fs::write(one.path().join(FILE), &old).unwrap();
    sound(one.path());
    let (store, report) = mount(one.path());
    assert!(matches!(report.allocation, Some(AllocationSource::Checkpoint { .. })), "{report:?}");
    store.umount().unwrap();
    sound(one.path());
}

#[test]
fn stores_change_over_to_records_in_the_database_and_back() {
    let records = BlueStoreConfig { allocation_from_file: false, ..blue_config() };
    for clean in [true, false] {
        let directory = worked(clean, 1 << 20);
        let (store, report) = mount_with(directory.path(), records.clone());
        assert!(!is_scan(&report.allocation), "{report:?}");
        work(&store, 3);
        store.flush().unwrap();
        let before = (store.statfs().unwrap().pools, store.free_space(usize::MAX).unwrap());
        if clean {
            store.umount().unwrap();
        }
        drop(store);
        assert!(!directory.path().join(FILE).exists());
        sound(directory.path());
        let (store, report) = mount_with(directory.path(), records.clone());
        assert_eq!(report.allocation, Some(AllocationSource::Records));
        assert_eq!((store.statfs().unwrap().pools, store.free_space(usize::MAX).unwrap()), before);
        work(&store, 8);
        drop(store);
        sound(directory.path());
        // Back: records are read once more, then the file counts.
        let (store, report) = mount(directory.path());
        assert_eq!(report.allocation, Some(AllocationSource::Records));
        work(&store, 4);
        drop(store);
        sound(directory.path());
        let (store, report) = mount(directory.path());
        assert!(matches!(report.allocation, Some(AllocationSource::Checkpoint { .. })), "{report:?}");
        store.umount().unwrap();
        let (_, report) = mount(directory.path());
        assert_eq!(report.allocation, Some(AllocationSource::File));
    }
}

#[test]
fn all_ways_to_find_out_agree() {
    let directory = worked(false, 1 << 10);
    let config = blue_config();
    let simple = BlueStore::scan(directory.path(), &config, 0, &IgnoreEvents).unwrap();
    assert!(simple.stats.shared_blob_count > 0 && simple.stats.extent_count > 0, "{:?}", simple.stats);
    for threads in [1, 2, 5] {
        let parallel = BlueStore::scan(directory.path(), &config, threads, &IgnoreEvents).unwrap();
        assert_eq!(parallel.stats, simple.stats);
        assert!(parallel.same_allocator(&simple) && parallel.same_usage(&simple));
        assert_eq!(parallel.free_space(usize::MAX), simple.free_space(usize::MAX));
    }
    let noted = BlueStore::saved_allocation(directory.path(), &config).unwrap().unwrap();
    assert!(noted.same_allocator(&simple) && noted.same_usage(&simple));
    assert_eq!(noted.differences(&simple), (0, 0));
    sound(directory.path());
}

#[test]
fn filled_stores_are_sound_and_scans_of_many_ranges_agree() {
    let directory = new_store();
    let (onodes, extents) = (4000, 9001);
    let plan = FillPlan { onodes, extents, extent_blocks: 2, keyed_percent: 30, pgs: 7, pool: 4 };
    let config = blue_config();
    let mut told = 0;
    BlueStore::fill(directory.path(), &config, plan, &mut |made| told = made).unwrap();
    assert_eq!(told, onodes);
    sound(directory.path());
    assert!(BlueStore::fill(directory.path(), &config, plan, &mut |_| {}).is_err(), "it is not empty");
    let simple = BlueStore::scan(directory.path(), &config, 0, &IgnoreEvents).unwrap();
    let stats = simple.stats;
    assert_eq!((stats.onode_count, stats.extent_count, stats.insert_count), (onodes, extents, extents));
    assert_eq!(stats.shard_count, onodes + onodes * 3 / 10);
    let parallel = BlueStore::scan(directory.path(), &config, 8, &IgnoreEvents).unwrap();
    assert_eq!(parallel.stats, stats);
    assert!(parallel.same_allocator(&simple) && parallel.same_usage(&simple));
    let (store, report) = mount(directory.path());
    assert!(matches!(report.allocation, Some(AllocationSource::Checkpoint { deltas: 0 })), "{report:?}");
    assert_eq!(report.objects, onodes);
    let object = plan.object(1234);
    let data = store.read(plan.pg(&object), &object, 0, u64::MAX).unwrap();
    assert!(data.len() == 4 << 20 && data.iter().all(|byte| *byte == 0));
    store.umount().unwrap();
    sound(directory.path());
}

/// Tells the scan to end once it has begun.
#[derive(Default)]
struct Impatient(Mutex<Vec<Option<ScanProgress>>>);

impl StoreEvents for Impatient {
    fn fatal(&self, error: &StoreError) {
        panic!("{error}");
    }

    fn scanning(&self, progress: Option<&ScanProgress>) {
        self.0.lock().push(progress.copied());
    }

    fn cancelled(&self) -> bool {
        true
    }
}

#[test]
fn scans_end_when_told_to() {
    let directory = worked(false, 0);
    let events = Impatient::default();
    let ended = BlueStore::scan(directory.path(), &blue_config(), 0, &events);
    assert!(matches!(ended, Err(StoreError::Interrupted)), "{ended:?}");
    assert_eq!(*events.0.lock(), [None], "health must not say that a scan goes on");
}

/// Takes what an object that nobody can read owns for leaked, never for free.
#[test]
fn removing_an_unreadable_object_leaks_until_the_next_scan() {
    let directory = worked(true, 1 << 20);
    let path = directory.path().join("db");
    let families = rocksdb::DB::list_cf(&rocksdb::Options::default(), &path).unwrap();
    let db = rocksdb::DB::open_cf(&rocksdb::Options::default(), &path, families).unwrap();
    let handle = db.cf_handle("onodes").unwrap();
    let (key, mut value) =
        db.iterator_cf(handle, rocksdb::IteratorMode::Start).map(Result::unwrap).next().unwrap();
    value[5] ^= 1;
    db.put_cf(handle, &key, &value).unwrap();
    drop(db);
    let (store, report) = mount(directory.path());
    assert_eq!((report.allocation, report.quarantined_bytes), (Some(AllocationSource::File), 0));
    for collection in store.list_collections().unwrap() {
        for object in store
            .list_objects(
                collection,
                &nacre_types::object::ObjectId::min_at_hash(collection.pool, 0),
                None,
                100,
            )
            .unwrap()
            .entries
        {
            if store.stat(collection, &object).is_err() {
                store.commit(&txn(collection, vec![TxnOp::Remove(object)])).unwrap();
            }
        }
    }
    drop(store);
    let findings = BlueStore::fsck(directory.path(), &blue_config(), true).unwrap().findings;
    let leaks =
        |finding: &FsckFinding| matches!(finding, FsckFinding::WrongAllocation(leaked, 0) if *leaked > 0);
    assert!(findings.iter().any(leaks), "{findings:?}");
    std::fs::remove_dir_all(directory.path().join(FOLDER)).unwrap();
    let (store, report) = mount(directory.path());
    assert!(is_scan(&report.allocation), "{report:?}");
    store.umount().unwrap();
    let findings = BlueStore::fsck(directory.path(), &blue_config(), true).unwrap().findings;
    assert!(!findings.iter().any(leaks), "{findings:?}");
}
