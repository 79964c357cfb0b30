//! What pools and operators choose of BlueStore: checksums, compression, the unit of allocation, where the database is,
//! discards, and a device that grows.

use crate::stores::{POOL, blue_config, oid, pattern, pg, soft, txn, write};
use nacre_store::{
    AllocationSource, BlueStore, BlueStoreConfig, ChecksumType, CompressionAlgorithm, CompressionMode,
    DataOptions, IgnoreEvents, ObjectStore, PoolUsage, ReadStore, StoreError,
};
use nacre_types::txn::TxnOp;
use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const SIZE: u64 = 128 << 20;

fn folder() -> TempDir {
    tempfile::Builder::new().prefix("nacre-store-").tempdir().unwrap()
}

fn new_store(config: &BlueStoreConfig) -> TempDir {
    let directory = folder();
    BlueStore::mkfs(directory.path(), SIZE, config).unwrap();
    directory
}

fn mount(directory: &Path, config: &BlueStoreConfig, options: DataOptions) -> BlueStore {
    let (store, _) = BlueStore::mount(directory, config.clone(), Arc::new(IgnoreEvents)).unwrap();
    store.set_data_options([(POOL, options)].into());
    store
}

fn put(store: &BlueStore, ops: Vec<TxnOp>) {
    let first = if store.collection_exists(pg(0)).unwrap() { None } else { Some(TxnOp::CreateCollection) };
    store.commit(&txn(pg(0), first.into_iter().chain(ops).collect())).unwrap();
}

fn get(store: &BlueStore, name: &str) -> Vec<u8> {
    store.read(pg(0), &oid(name), 0, u64::MAX).unwrap().to_vec()
}

fn usage(store: &BlueStore) -> PoolUsage {
    store.statfs().unwrap().pools.get(&POOL).copied().unwrap_or_default()
}

fn sound(directory: &Path) {
    assert_eq!(BlueStore::fsck(directory, &blue_config(), true).unwrap().findings, []);
}

/// Changes a bit of the first block that begins with `needle`.
fn flip(directory: &Path, needle: &[u8]) {
    let path = directory.join("block");
    let device = std::fs::read(&path).unwrap();
    let at =
        (0..device.len() / 4096).find(|block| device[block * 4096..].starts_with(needle)).unwrap() * 4096;
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&[device[at + 1000] ^ 4], at as u64 + 1000).unwrap();
}

#[test]
fn every_checksum_finds_damage_and_none_does_not() {
    use ChecksumType::{Crc32c, Crc32c8, Crc32c16, None, Xxhash32, Xxhash64};
    for checksum in [Crc32c, Crc32c16, Crc32c8, Xxhash32, Xxhash64, None] {
        for min_chunk_bytes in [4 << 10, 16 << 10, 1 << 20] {
            let directory = new_store(&blue_config());
            let options = DataOptions { checksum, min_chunk_bytes, ..DataOptions::default() };
            let store = mount(directory.path(), &blue_config(), options);
            let data = pattern(9, 700_000);
            put(&store, vec![write("a", 0, data.clone()), write("b", 5000, pattern(3, 90_000))]);
            // Cuts chunks, and blobs whose checksums are not in the object's record.
            put(&store, vec![write("a", 300_000, pattern(1, 5000)), write("b", 20_000, pattern(2, 100))]);
            let mut wanted = data.clone();
            wanted[300_000..305_000].copy_from_slice(&pattern(1, 5000));
            store.umount().unwrap();
            sound(directory.path());
            let store = mount(directory.path(), &blue_config(), options);
            assert_eq!(get(&store, "a"), wanted);
            for (offset, len) in [(0, 10), (4096, 4096), (290_000, 30_000), (699_999, 1)] {
                let read = store.read(pg(0), &oid("a"), offset, len).unwrap();
                assert_eq!(read[..], wanted[offset as usize..(offset + len) as usize]);
            }
            store.umount().unwrap();
            flip(directory.path(), &data[8192..8292]);
            let found = BlueStore::fsck(directory.path(), &blue_config(), true).unwrap().findings;
            let store = mount(directory.path(), &blue_config(), options);
            let read = store.read(pg(0), &oid("a"), 8192, 4096);
            if checksum == None {
                assert!(read.is_ok() && found.is_empty());
            } else {
                assert!(matches!(read, Err(StoreError::Corrupt { .. })), "{checksum:?}: {read:?}");
                assert_eq!(found.len(), 1, "{checksum:?} {found:?}");
                let apart = store.read(pg(0), &oid("a"), 600_000, 50_000).unwrap();
                assert_eq!(apart[..], wanted[600_000..650_000]);
            }
        }
    }
}

#[test]
fn hints_of_steady_objects_make_for_fewer_checksums() {
    let directory = new_store(&blue_config());
    let store = mount(directory.path(), &blue_config(), DataOptions::default());
    // To be read in sequence, not to be changed.
    let hint = TxnOp::AllocHint {
        oid: oid("steady"),
        expected_object_size: 4 << 20,
        expected_write_size: 4 << 20,
        flags: 4 | 32,
    };
    put(&store, vec![hint, write("steady", 0, pattern(1, 4 << 20))]);
    let steady = store.statfs().unwrap().meta_bytes;
    put(&store, vec![write("plain", 0, pattern(1, 4 << 20))]);
    store.umount().unwrap();
    let scanned = BlueStore::scan(directory.path(), &blue_config(), 0, &IgnoreEvents).unwrap();
    // Beside the record of each: 15 of 16 blobs of the plain one, and of the steady one none.
    assert_eq!(scanned.stats.shard_count, 2 + 15, "{steady}");
}

#[test]
fn compressible_data_takes_less_and_is_counted() {
    for algorithm in [CompressionAlgorithm::Lz4, CompressionAlgorithm::Zstd, CompressionAlgorithm::Snappy] {
        let config = BlueStoreConfig { checkpoint_bytes: 1 << 10, ..blue_config() };
        let directory = new_store(&config);
        let options = DataOptions { mode: CompressionMode::Force, algorithm, ..DataOptions::default() };
        let store = mount(directory.path(), &config, options);
        let data = soft(5, 1 << 20);
        put(&store, vec![write("soft", 0, data.clone()), write("hard", 0, pattern(6, 1 << 20))]);
        let all = usage(&store);
        assert_eq!((all.stored_bytes, all.compressed_original_bytes), (2 << 20, 1 << 20), "{algorithm:?}");
        assert!(all.compressed_allocated_bytes <= (1 << 20) / 4, "{algorithm:?} {all:?}");
        assert!(all.compressed_bytes <= all.compressed_allocated_bytes, "{algorithm:?} {all:?}");
        assert_eq!(all.allocated_bytes, (1 << 20) + all.compressed_allocated_bytes);
        // A clone shares; the copy of a part does too.
        put(&store, vec![TxnOp::Clone { from: oid("soft"), to: oid("copy") }]);
        let shared = usage(&store);
        assert_eq!(shared.compressed_allocated_bytes, all.compressed_allocated_bytes);
        assert_eq!(shared.compressed_original_bytes, 2 << 20);
        assert_eq!((get(&store, "soft"), get(&store, "copy")), (data.clone(), data.clone()));
        drop(store);
        // By a checkpoint after a crash, by the file after a clean end, and by both scans it is the same.
        let store = mount(directory.path(), &config, options);
        assert_eq!(usage(&store), shared, "{algorithm:?}");
        store.umount().unwrap();
        sound(directory.path());
        let store = mount(directory.path(), &config, options);
        assert_eq!((usage(&store), get(&store, "soft")), (shared, data.clone()));
        store.umount().unwrap();
        for threads in [0, 1, 3] {
            let scanned = BlueStore::scan(directory.path(), &config, threads, &IgnoreEvents).unwrap();
            assert_eq!(scanned.pools.get(&POOL), Some(&shared), "{threads} threads");
            assert_eq!(scanned.stats.compressed_blob_count, 32);
        }
        flip(directory.path(), &pattern(6, 100));
        let store = mount(directory.path(), &config, options);
        put(&store, vec![TxnOp::Remove(oid("soft")), TxnOp::Remove(oid("hard"))]);
        assert_eq!(usage(&store).compressed_allocated_bytes, all.compressed_allocated_bytes);
        put(&store, vec![TxnOp::Remove(oid("copy"))]);
        assert_eq!(usage(&store), PoolUsage::default());
        store.umount().unwrap();
        sound(directory.path());
    }
}

#[test]
fn damaged_compressed_data_is_not_served() {
    let directory = new_store(&blue_config());
    let options = DataOptions { mode: CompressionMode::Force, ..DataOptions::default() };
    let store = mount(directory.path(), &blue_config(), options);
    put(&store, vec![write("soft", 0, soft(5, 1 << 20))]);
    store.umount().unwrap();
    // The first block of data on the device.
    let file = OpenOptions::new().read(true).write(true).open(directory.path().join("block")).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 16 * 4096 + 50).unwrap();
    file.write_all_at(&[byte[0] ^ 1], 16 * 4096 + 50).unwrap();
    let store = mount(directory.path(), &blue_config(), options);
    let damaged = (0..16).filter(|piece| store.read(pg(0), &oid("soft"), piece << 16, 100).is_err()).count();
    assert_eq!(damaged, 1);
    assert!(matches!(store.read(pg(0), &oid("soft"), 0, u64::MAX), Err(StoreError::Corrupt { .. })));
}

#[test]
fn modes_follow_hints() {
    let directory = new_store(&blue_config());
    let store = mount(directory.path(), &blue_config(), DataOptions::default());
    let mut packed = Vec::new();
    for mode in
        [CompressionMode::None, CompressionMode::Passive, CompressionMode::Aggressive, CompressionMode::Force]
    {
        store.set_data_options([(POOL, DataOptions { mode, ..DataOptions::default() })].into());
        for flags in [0, 256, 512] {
            let hint =
                TxnOp::AllocHint { oid: oid("a"), expected_object_size: 0, expected_write_size: 0, flags };
            put(&store, vec![TxnOp::Remove(oid("a")), hint, write("a", 0, soft(1, 65_536))]);
            packed.push(usage(&store).compressed_original_bytes > 0);
        }
    }
    let (yes, no) = (true, false);
    assert_eq!(packed, [no, no, no, no, yes, no, yes, yes, no, yes, yes, yes]);
    // Small writes and those that save too little stay as they are.
    let force = DataOptions { mode: CompressionMode::Force, ..DataOptions::default() };
    for (options, len) in [(force, 4096), (DataOptions { required_ratio: 0.01, ..force }, 65_536)] {
        store.set_data_options([(POOL, options)].into());
        put(&store, vec![TxnOp::Remove(oid("a")), write("a", 0, soft(1, len))]);
        assert_eq!(usage(&store).compressed_original_bytes, 0);
    }
}

#[test]
fn overwrites_of_compressed_data_do_not_keep_its_space() {
    let directory = new_store(&blue_config());
    let options = DataOptions { mode: CompressionMode::Force, ..DataOptions::default() };
    let store = mount(directory.path(), &blue_config(), options);
    let mut wanted = soft(5, 1 << 20);
    put(&store, vec![write("a", 0, wanted.clone())]);
    for at in 0..256_u64 {
        // Each block once, in an order that leaves pieces.
        let offset = (at * 97 % 256) * 4096;
        let data = pattern(at, 4096);
        wanted[offset as usize..offset as usize + 4096].copy_from_slice(&data);
        put(&store, vec![write("a", offset, data)]);
        let now = usage(&store);
        // What takes no more space uncompressed is no longer kept compressed.
        assert!(now.allocated_bytes <= (1 << 20) + (256 << 10), "{now:?}");
    }
    assert_eq!(get(&store, "a"), wanted);
    let now = usage(&store);
    assert_eq!((now.allocated_bytes, now.compressed_original_bytes), (1 << 20, 0), "{now:?}");
    store.umount().unwrap();
    sound(directory.path());
}

#[test]
fn space_is_allocated_in_the_unit_that_the_store_was_made_with() {
    let config = BlueStoreConfig { min_alloc_bytes: 65_536, ..blue_config() };
    let directory = new_store(&config);
    // Another unit counts for new stores alone.
    let store = mount(directory.path(), &blue_config(), DataOptions::default());
    put(&store, vec![write("small", 0, "x"), write("large", 0, pattern(1, 200_000))]);
    assert_eq!(usage(&store).allocated_bytes, 65_536 * 5);
    assert_eq!(store.free_space(1).unwrap().unit_bytes, 65_536);
    put(&store, vec![write("large", 100_000, pattern(2, 10)), write("small", 70_000, "y")]);
    let mut wanted = pattern(1, 200_000);
    wanted[100_000..100_010].copy_from_slice(&pattern(2, 10));
    assert_eq!(get(&store, "large"), wanted);
    assert_eq!(usage(&store).allocated_bytes, 65_536 * 6);
    put(&store, vec![TxnOp::Truncate { oid: oid("large"), size: 65_000 }]);
    assert_eq!(usage(&store).allocated_bytes, 65_536 * 3);
    store.umount().unwrap();
    sound(directory.path());
    for unit in [2048, 5000, 128 << 10] {
        let config = BlueStoreConfig { min_alloc_bytes: unit, ..blue_config() };
        let refused = BlueStore::mkfs(folder().path(), SIZE, &config).unwrap_err();
        assert!(refused.to_string().contains("unit of allocation"), "{refused}");
    }
}

#[test]
fn the_database_can_be_elsewhere() {
    let elsewhere = folder();
    let db = elsewhere.path().join("db-of-0");
    let config = BlueStoreConfig { db_path: Some(db.clone()), ..blue_config() };
    let directory = new_store(&config);
    assert!(db.join("CURRENT").exists() && directory.path().join("db").is_symlink());
    let store = mount(directory.path(), &blue_config(), DataOptions::default());
    put(&store, vec![write("a", 0, "data")]);
    store.umount().unwrap();
    sound(directory.path());
    let store = mount(directory.path(), &blue_config(), DataOptions::default());
    assert_eq!(get(&store, "a"), b"data");
    let refused = BlueStore::mkfs(folder().path(), SIZE, &config).unwrap_err();
    assert!(refused.to_string().contains("not empty"), "{refused}");
}

#[test]
fn a_store_takes_what_its_device_has_grown_by() {
    for clean in [true, false] {
        let directory = new_store(&blue_config());
        let store = mount(directory.path(), &blue_config(), DataOptions::default());
        put(&store, vec![write("a", 0, pattern(1, 3 << 20))]);
        if clean {
            store.umount().unwrap();
        }
        drop(store);
        assert_eq!(BlueStore::expand(directory.path(), &blue_config()).unwrap(), (SIZE, SIZE));
        let block = OpenOptions::new().write(true).open(directory.path().join("block")).unwrap();
        block.set_len(4 * SIZE + 100).unwrap();
        assert_eq!(BlueStore::expand(directory.path(), &blue_config()).unwrap(), (SIZE, 4 * SIZE));
        assert_eq!(BlueStore::label(directory.path()).unwrap().size_bytes, 4 * SIZE);
        sound(directory.path());
        let (store, report) =
            BlueStore::mount(directory.path(), blue_config(), Arc::new(IgnoreEvents)).unwrap();
        assert!(!matches!(report.allocation, Some(AllocationSource::Scan { .. })), "{report:?}");
        assert_eq!(get(&store, "a"), pattern(1, 3 << 20));
        // More than there was room for.
        for at in 0..80 {
            put(&store, vec![write(&format!("big {at}"), 0, pattern(at, 4 << 20))]);
        }
        assert!(usage(&store).allocated_bytes > SIZE);
        store.umount().unwrap();
        sound(directory.path());
    }
}

#[test]
fn a_file_gives_freed_space_back() {
    let config = BlueStoreConfig { discard: true, ..blue_config() };
    let directory = new_store(&config);
    let store = mount(directory.path(), &config, DataOptions::default());
    let taken = || std::fs::metadata(directory.path().join("block")).unwrap().blocks() * 512;
    for at in 0..8 {
        put(&store, vec![write(&format!("a {at}"), 0, pattern(at, 8 << 20))]);
    }
    store.flush().unwrap();
    let before = taken();
    put(&store, (0..8).map(|at| TxnOp::Remove(oid(&format!("a {at}")))).collect());
    let deadline = Instant::now() + Duration::from_secs(30);
    while store.counters().unwrap().discarded_bytes < 64 << 20 {
        assert!(Instant::now() < deadline, "{:?}", store.counters());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(before - taken() >= 60 << 20, "{before} before, {} after", taken());
    let data = pattern(77, 20 << 20);
    put(&store, vec![write("b", 0, data.clone())]);
    assert_eq!(get(&store, "b"), data);
    put(&store, vec![TxnOp::Remove(oid("b"))]);
    store.umount().unwrap();
    sound(directory.path());
}

#[test]
fn a_flush_does_not_wait_for_what_is_written_meanwhile() {
    let config = blue_config();
    let directory = new_store(&config);
    let store = mount(directory.path(), &config, DataOptions::default());
    let stop = std::sync::atomic::AtomicBool::new(false);
    let (told, flushed) = std::sync::mpsc::channel();
    let in_time = std::thread::scope(|scope| {
        let (store, stop) = (&store, &stop);
        for writer in 0..4 {
            scope.spawn(move || {
                let mut round = 0;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    put(store, vec![write(&format!("{writer}"), 0, pattern(round, 4096))]);
                    round += 1;
                }
            });
        }
        scope.spawn(move || {
            for round in 0..5 {
                put(store, vec![write("flushed", 0, pattern(round, 4096))]);
                store.flush().unwrap();
            }
            told.send(()).unwrap();
        });
        let in_time = flushed.recv_timeout(Duration::from_secs(30)).is_ok();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        in_time
    });
    assert!(in_time, "five flushes took longer than 30 s");
    store.umount().unwrap();
    sound(directory.path());
}

#[test]
fn a_write_that_gets_no_space_from_the_file_system_keeps_no_blocks() {
    let _faults = fail::FailScenario::setup();
    let config = BlueStoreConfig { discard: true, ..blue_config() };
    let directory = new_store(&config);
    let store = mount(directory.path(), &config, DataOptions::default());
    let free = || store.free_space(0).unwrap().free_bytes;
    let before = free();
    // Blocks that are given back are free once the thread that discards them has done so.
    let all_is_free_again = || {
        let deadline = Instant::now() + Duration::from_secs(30);
        while free() != before {
            assert!(
                Instant::now() < deadline,
                "{} bytes of {before} are free: {:?}",
                free(),
                store.counters()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    put(&store, vec![write("a", 0, pattern(1, 8 << 20))]);
    put(&store, vec![TxnOp::Remove(oid("a"))]);
    store.flush().unwrap();
    all_is_free_again();
    fail::cfg("store::grow", "return").unwrap();
    for _ in 0..4 {
        let refused =
            store.queue_transaction(&txn(pg(0), vec![write("b", 0, pattern(2, 2 << 20))]), None).unwrap_err();
        assert!(matches!(refused, StoreError::NoSpace { .. }), "{refused}");
    }
    fail::remove("store::grow");
    all_is_free_again();
    put(&store, vec![write("b", 0, pattern(2, 2 << 20))]);
    store.umount().unwrap();
    sound(directory.path());
}

#[test]
fn reads_beside_overwrites_find_no_damage() {
    const OBJECTS: usize = 16;
    const BYTES: usize = 1 << 20;
    const BLOCKS: u64 = (BYTES / 4096) as u64;
    // Records go out of the cache between two uses, so that checksums are read from the database.
    let config = BlueStoreConfig { cache_bytes: 64 << 10, ..blue_config() };
    let directory = new_store(&config);
    let store = mount(directory.path(), &config, DataOptions::default());
    let name = |at: usize| format!("object{at}");
    for at in 0..OBJECTS {
        put(&store, vec![write(&name(at), 0, vec![0; BYTES])]);
    }
    let _faults = fail::FailScenario::setup();
    // Between the record and the blocks.
    fail::cfg("store::read", "sleep(2)").unwrap();
    let until = Instant::now() + Duration::from_secs(3);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 1_u64.. {
                let block = turn * 7 % BLOCKS;
                let ops = (0..OBJECTS).map(|at| write(&name(at), block * 4096, vec![turn as u8; 4096]));
                store.commit(&txn(pg(0), ops.collect())).unwrap();
                if Instant::now() > until {
                    break;
                }
            }
        });
        for reader in 0..3 {
            let store = &store;
            scope.spawn(move || {
                for turn in reader.. {
                    let read = store.read(pg(0), &oid(&name(turn % OBJECTS)), 0, u64::MAX).unwrap();
                    // Each block is as one write left it.
                    assert!(read.chunks(4096).all(|block| block.iter().all(|byte| *byte == block[0])));
                    if Instant::now() > until {
                        break;
                    }
                }
            });
        }
    });
    assert_eq!(store.health(), []);
    store.umount().unwrap();
    sound(directory.path());
}
