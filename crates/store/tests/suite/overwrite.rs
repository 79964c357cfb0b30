//! Small overwrites on BlueStore: where they go, that reads see them whole while they are under way, and what clones keep.

use crate::stores::{blue_config, oid, pattern, pg, txn, write};
use nacre_store::{BlueStore, BlueStoreConfig, IgnoreEvents, ObjectStore, ReadStore};
use nacre_types::txn::TxnOp;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

const BLOCK: u64 = 4096;

/// Next to no cache: reads go to the device as soon as they may.
fn config() -> BlueStoreConfig {
    BlueStoreConfig { cache_bytes: 64 << 10, ..blue_config() }
}

fn new_store() -> TempDir {
    let directory = tempfile::Builder::new().prefix("nacre-store-").tempdir().unwrap();
    BlueStore::mkfs(directory.path(), 128 << 20, &config()).unwrap();
    directory
}

fn mount(directory: &Path) -> BlueStore {
    BlueStore::mount(directory, config(), Arc::new(IgnoreEvents)).unwrap().0
}

fn extents(store: &BlueStore, name: &str) -> usize {
    store.extents(pg(0), &oid(name), 0, u64::MAX).unwrap().len()
}

fn get(store: &BlueStore, name: &str) -> Vec<u8> {
    store.read(pg(0), &oid(name), 0, u64::MAX).unwrap().to_vec()
}

fn sound(directory: &Path) {
    assert_eq!(BlueStore::fsck(directory, &config(), true).unwrap().findings, []);
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

#[test]
fn random_overwrites_leave_an_object_in_as_many_pieces_as_it_was() {
    let directory = new_store();
    let mut store = mount(directory.path());
    let mut wanted = pattern(1, 4 << 20);
    store.commit(&txn(pg(0), vec![TxnOp::CreateCollection, write("a", 0, wanted.clone())])).unwrap();
    let (pieces, taken) = (extents(&store, "a"), store.statfs().unwrap().allocated_bytes);
    let mut random = Random(0x1234_5678_9abc_def1);
    for round in 0..1500_u64 {
        // Whole blocks, parts of blocks, and ranges over several blobs.
        let len = match round % 4 {
            0 => BLOCK,
            1 => 1 + random.below(BLOCK),
            2 => BLOCK * (1 + random.below(7)),
            _ => 1 + random.below(30_000),
        };
        let offset = random.below((4 << 20) - len) / if round % 4 == 0 { BLOCK } else { 1 };
        let offset = if round % 4 == 0 { offset * BLOCK } else { offset };
        let data = pattern(round, len as usize);
        wanted[offset as usize..][..data.len()].copy_from_slice(&data);
        store.queue_transaction(&txn(pg(0), vec![write("a", offset, data)]), None).unwrap();
        match round % 500 {
            100 => store.flush().unwrap(),
            // As in a crash: the copies are brought to their places by the next start.
            300 => {
                store.commit(&txn(pg(0), vec![TxnOp::Touch(oid("b"))])).unwrap();
                drop(store);
                sound(directory.path());
                store = mount(directory.path());
            }
            _ => {}
        }
        if round % 50 == 0 {
            let (from, len) = (random.below(3 << 20), 1 + random.below(1 << 20));
            let read = store.read(pg(0), &oid("a"), from, len).unwrap();
            assert!(read == wanted[from as usize..][..len as usize], "round {round}");
        }
    }
    assert_eq!(get(&store, "a"), wanted);
    assert_eq!((extents(&store, "a"), store.statfs().unwrap().allocated_bytes), (pieces, taken));
    store.umount().unwrap();
    sound(directory.path());
    assert_eq!(get(&mount(directory.path()), "a"), wanted);
}

#[test]
fn reads_see_overwrites_whole_and_never_fail() {
    let directory = new_store();
    let store = mount(directory.path());
    let blocks = 64;
    let first = vec![0; (blocks * BLOCK) as usize];
    store.commit(&txn(pg(0), vec![TxnOp::CreateCollection, write("a", 0, first)])).unwrap();
    let done = AtomicBool::new(false);
    let store = &store;
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3_u64)
            .map(|at| {
                let done = &done;
                scope.spawn(move || {
                    let (mut random, mut reads, mut newest) = (Random(at + 77), 0, 0);
                    while !done.load(Ordering::Relaxed) {
                        let from = random.below(blocks) * BLOCK;
                        let len = BLOCK * (1 + random.below(blocks - from / BLOCK));
                        let read = store.read(pg(0), &oid("a"), from, len).unwrap();
                        for block in read.chunks(BLOCK as usize) {
                            assert!(block.iter().all(|byte| *byte == block[0]), "a torn block");
                            newest = newest.max(block[0]);
                        }
                        reads += 1;
                    }
                    (reads, newest)
                })
            })
            .collect();
        let mut random = Random(5);
        for version in 1..=250_u8 {
            for _ in 0..40 {
                let block = random.below(blocks);
                let data = vec![version; BLOCK as usize];
                store.queue_transaction(&txn(pg(0), vec![write("a", block * BLOCK, data)]), None).unwrap();
            }
            if version % 10 == 0 {
                store.flush().unwrap();
            }
        }
        done.store(true, Ordering::Relaxed);
        for reader in readers {
            let (reads, newest) = reader.join().unwrap();
            assert!(reads > 10 && newest > 100, "{reads} reads up to version {newest}");
        }
    });
    assert_eq!(store.health(), []);
}

/// A read whose collection goes while it is under way must not be waited for ever after.
#[test]
fn reads_of_collections_that_go_hold_nothing_up() {
    let directory = new_store();
    let store = mount(directory.path());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    // There or not, as it happens.
                    let _ = store.read(pg(0), &oid("a"), 8192, 4096);
                }
            });
        }
        for round in 0..150 {
            let data = pattern(round, 100_000);
            let made = vec![TxnOp::CreateCollection, write("a", 0, data)];
            store.queue_transaction(&txn(pg(0), made), None).unwrap();
            store.flush().unwrap();
            // Drops the data from the cache: it is read from the device, and about to be cached when its collection goes.
            store
                .queue_transaction(&txn(pg(1), vec![TxnOp::CreateCollection, write("b", 0, "x")]), None)
                .unwrap();
            let gone = vec![TxnOp::Remove(oid("a")), TxnOp::RemoveCollection];
            store.queue_transaction(&txn(pg(0), gone), None).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    let (told, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let ops = vec![TxnOp::CreateCollection, write("c", 0, pattern(1, 100_000))];
        store.commit(&txn(pg(2), ops)).unwrap();
        store.commit(&txn(pg(2), vec![write("c", 8192, pattern(2, 4096))])).unwrap();
        // Brings the overwrite to its place, which waits for earlier reads.
        store.flush().unwrap();
        store.umount().unwrap();
        told.send(()).unwrap();
    });
    ended.recv_timeout(std::time::Duration::from_secs(60)).expect("the store waits for a read that is over");
    sound(directory.path());
}

#[test]
fn clones_keep_what_they_had() {
    let directory = new_store();
    let store = mount(directory.path());
    let old = pattern(1, 200_000);
    store.commit(&txn(pg(0), vec![TxnOp::CreateCollection, write("a", 0, old.clone())])).unwrap();
    let mut new = old.clone();
    let mut change = |store: &BlueStore, ops: Vec<TxnOp>, offset: usize, seed: u64| {
        let data = pattern(seed, 5000);
        new[offset..offset + 5000].copy_from_slice(&data);
        let ops = ops.into_iter().chain([write("a", offset as u64, data)]).collect();
        store.commit(&txn(pg(0), ops)).unwrap();
        new.clone()
    };
    // Before the clone, with it, and after.
    let before = change(&store, vec![], 10_000, 2);
    let clone = TxnOp::Clone { from: oid("a"), to: oid("whole") };
    change(&store, vec![clone], 60_000, 3);
    let range =
        TxnOp::CloneRange { from: oid("a"), to: oid("part"), from_offset: 0, len: 100_000, to_offset: 0 };
    let at_range = change(&store, vec![], 90_000, 4);
    change(&store, vec![range], 20_000, 5);
    let last = change(&store, vec![], 150_000, 6);
    for _ in 0..2 {
        assert_eq!(get(&store, "a"), last);
        assert_eq!(get(&store, "whole"), before);
        assert_eq!(get(&store, "part"), at_range[..100_000]);
        store.flush().unwrap();
    }
    store.umount().unwrap();
    sound(directory.path());
    let store = mount(directory.path());
    assert_eq!((get(&store, "a"), get(&store, "whole")), (last, before));
}
