//! Tests that at most one of two stores can be opened, wherever a migration is interrupted and whoever works at the same time.

use super::*;
use crate::faulty::{Fate, FaultyStore};
use crate::persistence::tests::{commit, made, make_large_changes, open};
use crate::{
    Compare, LeaseId, MapBackup, MapStoreError, MemoryStore, RangePage, StoredEntry, TxnOutcome, Watch,
    export, import, read_prefix,
};
use async_trait::async_trait;
use futures::executor::block_on;
use nacre_crush::CrushMap;
use nacre_types::osdmap::OsdMap;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// A store with contents of several transactions.
fn filled() -> MemoryStore {
    let store = made();
    let (mut persistence, mut state) = open(&store);
    make_large_changes(&mut state, 1);
    commit(&mut persistence, &mut state).unwrap();
    store
}

fn is_openable(store: &MemoryStore) -> bool {
    block_on(Persistence::open(Arc::new(store.clone()), "a")).is_ok()
}

fn contents(store: &MemoryStore) -> Vec<KeyValue> {
    block_on(read_contents(store)).unwrap()
}

fn move_to(source: &MemoryStore, destination: &dyn MapStore) -> Result<Migrated> {
    block_on(migrate(Arc::new(source.clone()), destination, "there"))
}

fn abort(source: &MemoryStore, destination: &dyn MapStore) -> Result<()> {
    block_on(abort_migration(Arc::new(source.clone()), destination, false))
}

/// A store that ends after `count` transactions.
fn mortal(store: &MemoryStore, count: usize) -> Arc<FaultyStore> {
    FaultyStore::new(store, std::iter::repeat_n(Fate::Answered, count).chain([Fate::Crash]))
}

/// A source, and a destination that is empty or the one that the cluster has moved from.
fn pairs() -> Vec<(MemoryStore, MemoryStore)> {
    let (first, second) = (filled(), MemoryStore::default());
    let empty = (first.snapshot(), MemoryStore::default());
    move_to(&first, &second).unwrap();
    vec![empty, (second, first)]
}

#[test]
fn a_migration_moves_everything_and_back() {
    let (source, destination) = (filled(), MemoryStore::default());
    let expected = contents(&source);
    let moved = block_on(migrate(Arc::new(source.clone()), &destination, "etcd://there/nacre")).unwrap();
    assert_eq!(moved.keys, expected.len());
    let refused = block_on(Persistence::open(Arc::new(source.clone()), "a")).err().unwrap();
    assert_eq!(refused.to_string(), "the map store is sealed: its cluster has moved to etcd://there/nacre");
    assert!(is_openable(&destination));
    // Repeated, it changes nothing.
    assert_eq!(move_to(&source, &destination).unwrap(), moved);
    let (mut persistence, mut state) = open(&destination);
    make_large_changes(&mut state, 2);
    commit(&mut persistence, &mut state).unwrap();
    for other in [&destination, &MemoryStore::default()] {
        assert!(matches!(abort(&source, other), Err(PersistError::InUse(_))));
    }
    move_to(&destination, &source).unwrap();
    assert!(!is_openable(&destination) && is_openable(&source));
    assert_eq!(open(&source).1.map(), state.map());
}

#[test]
fn a_migration_that_is_killed_anywhere_is_completed_or_aborted() {
    for (made, empty) in pairs() {
        let expected = contents(&made);
        for (kill_source, aborts) in [(false, false), (false, true), (true, false), (true, true)] {
            for count in 0.. {
                let (source, destination) = (made.snapshot(), empty.snapshot());
                let outcome = if kill_source {
                    block_on(migrate(mortal(&source, count), &destination, "there"))
                } else {
                    move_to(&source, mortal(&destination, count).as_ref())
                };
                let openable = (is_openable(&source), is_openable(&destination));
                if outcome.is_ok() {
                    assert_eq!(openable, (false, true));
                    assert!(count >= 1, "{count} transactions");
                    break;
                }
                assert!(openable != (true, true), "after {count} transactions");
                let was_begun = block_on(read_transfer(&destination)).unwrap().is_some();
                if aborts && was_begun {
                    // The abort is killed, too, and repeated.
                    for count in 0..3 {
                        let _ = abort(&source, mortal(&destination, count).as_ref());
                        let _ = block_on(abort_migration(mortal(&source, count), &destination, false));
                        assert!(!(is_openable(&source) && is_openable(&destination)));
                    }
                    if block_on(read_transfer(&destination)).unwrap().is_some() {
                        abort(&source, &destination).unwrap();
                    }
                    assert_eq!((is_openable(&source), is_openable(&destination)), (true, false));
                    assert!(block_on(read_prefix(&destination, b"")).unwrap().is_empty());
                } else {
                    move_to(&source, &destination).unwrap();
                    assert_eq!((is_openable(&source), is_openable(&destination)), (false, true));
                }
                let survivor = if aborts && was_begun { &source } else { &destination };
                assert!(contents(survivor) == expected, "after {count} transactions");
            }
        }
    }
}

#[test]
fn transactions_without_an_answer_take_effect_once() {
    for (source, empty) in pairs() {
        let expected = contents(&source);
        for fate in [Fate::RequestLost, Fate::AnswerLost, Fate::Late] {
            for at in 0..12 {
                let fates = || std::iter::repeat_n(Fate::Answered, at).chain([fate, Fate::Answered]);
                let (source, destination) = (source.snapshot(), empty.snapshot());
                let faulty = FaultyStore::new(&destination, fates());
                block_on(migrate(FaultyStore::losing_reads(&source, fates()), faulty.as_ref(), "there"))
                    .unwrap();
                assert!(contents(&destination) == expected, "{fate:?} of transaction {at}");
                assert!(is_openable(&destination) && !is_openable(&source));
                let backup = block_on(export(&destination)).unwrap();
                let restored = MemoryStore::default();
                block_on(import(FaultyStore::new(&restored, fates()).as_ref(), &backup, 1, &[])).unwrap();
                assert!(is_openable(&restored));
            }
        }
    }
}

/// A store whose calls take turns with those of others.
struct InterleavedStore(MemoryStore);

impl InterleavedStore {
    async fn turn(&self) {
        let mut has_waited = false;
        std::future::poll_fn(|_| {
            if std::mem::replace(&mut has_waited, true) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

#[async_trait]
impl MapStore for InterleavedStore {
    async fn transact(&self, txn: &Txn) -> std::result::Result<TxnOutcome, MapStoreError> {
        self.turn().await;
        self.0.transact(txn).await
    }
    async fn get(&self, key: &[u8]) -> std::result::Result<Option<StoredEntry>, MapStoreError> {
        self.turn().await;
        self.0.get(key).await
    }
    async fn range(
        &self,
        start: &[u8],
        end: &[u8],
        limit: usize,
        revision: Option<u64>,
    ) -> std::result::Result<RangePage, MapStoreError> {
        self.turn().await;
        self.0.range(start, end, limit, revision).await
    }
    async fn grant_lease(&self, ttl: Duration) -> std::result::Result<LeaseId, MapStoreError> {
        self.0.grant_lease(ttl).await
    }
    async fn keep_alive(&self, lease: LeaseId) -> std::result::Result<(), MapStoreError> {
        self.0.keep_alive(lease).await
    }
    async fn revoke_lease(&self, lease: LeaseId) -> std::result::Result<(), MapStoreError> {
        self.0.revoke_lease(lease).await
    }
    async fn watch(
        &self,
        start: &[u8],
        end: &[u8],
        revision: u64,
    ) -> std::result::Result<Box<dyn Watch>, MapStoreError> {
        self.0.watch(start, end, revision).await
    }
}

/// Polls two operations in an order that depends on the seed, until both have ended.
fn interleave(seed: u64, first: impl Future<Output = bool>, second: impl Future<Output = bool>) {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let (mut ended, mut state) = ([false; 2], seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut context = Context::from_waker(Waker::noop());
    while ended != [true; 2] {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        if state.is_multiple_of(2) && !ended[0] {
            ended[0] = first.as_mut().poll(&mut context).is_ready();
        } else if !ended[1] {
            ended[1] = second.as_mut().poll(&mut context).is_ready();
        }
    }
}

#[test]
fn operators_who_work_at_the_same_time_never_make_two_openable_stores() {
    let made = filled();
    let expected = contents(&made);
    for seed in 0..200 {
        let (source, here, there) = (made.snapshot(), MemoryStore::default(), MemoryStore::default());
        let store = |store: &MemoryStore| Arc::new(InterleavedStore(store.clone()));
        if seed % 3 == 0 {
            // An earlier migration was interrupted.
            assert!(move_to(&source, mortal(&here, seed as usize % 7).as_ref()).is_err());
        }
        let (first, second) = (store(&here), store(&there));
        let migration = async { migrate(store(&source), first.as_ref(), "here").await.is_ok() };
        match seed % 4 {
            0 => {
                let other = async { abort_migration(store(&source), first.as_ref(), false).await.is_ok() };
                interleave(seed, migration, other);
            }
            1 => {
                let other = async { migrate(store(&source), second.as_ref(), "there").await.is_ok() };
                interleave(seed, migration, other);
            }
            2 => {
                let other = async { migrate(store(&source), first.as_ref(), "here").await.is_ok() };
                interleave(seed, migration, other);
            }
            _ => {
                let map = OsdMap::new(Uuid::from_u128(8), 1, CrushMap::default());
                let keyring = nacre_common::auth::Keyring::new();
                let other = async { crate::mkfs(first.as_ref(), &map, &keyring).await.is_ok() };
                interleave(seed, migration, other);
            }
        }
        let holds = |store: &MemoryStore| is_openable(store) && contents(store) == expected;
        let openable = [&source, &here, &there].into_iter().filter(|store| holds(store)).count();
        assert!(openable <= 1, "seed {seed}");
        if openable == 0 {
            // The migration that has sealed the source, if any, is completed or aborted.
            let done = move_to(&source, &here).is_ok()
                || move_to(&source, &there).is_ok()
                || abort(&source, &here).is_ok()
                || abort(&source, &there).is_ok();
            assert!(done, "seed {seed}");
            assert!([&source, &here, &there].into_iter().filter(|store| holds(store)).count() == 1);
        }
    }
}

#[test]
fn a_store_with_something_else_is_not_touched() {
    let (source, other) = (filled(), made());
    assert!(matches!(move_to(&source, &other), Err(PersistError::AlreadyInitialised)));
    assert!(is_openable(&source) && is_openable(&other));
    // An unfinished operation from elsewhere.
    let destination = MemoryStore::default();
    assert!(move_to(&source, mortal(&destination, 2).as_ref()).is_err());
    assert!(matches!(move_to(&other, &destination), Err(PersistError::InUse(_))));
    assert!(matches!(abort(&other, &destination), Err(PersistError::InUse(_))));
    assert!(is_openable(&source) && is_openable(&other));
    // Keys of somebody else.
    let foreign = MemoryStore::default();
    block_on(foreign.transact(&Txn::default().put("registry/pods", "x"))).unwrap();
    let refused = move_to(&source, &foreign).err().unwrap().to_string();
    assert!(refused.contains("registry/pods"), "{refused}");
    assert!(abort(&source, &foreign).is_err());
    assert_eq!(block_on(read_prefix(&foreign, b"")).unwrap().len(), 1);
}

#[test]
fn a_lost_destination_is_given_up_by_force() {
    let (source, destination) = (filled(), MemoryStore::default());
    // Killed between the seal and the last transaction.
    let count = (1..).find(|count| {
        let (source, destination) = (source.snapshot(), destination.snapshot());
        move_to(&source, mortal(&destination, *count).as_ref()).is_err()
            && !is_openable(&source)
            && !is_openable(&destination)
    });
    assert!(move_to(&source, mortal(&destination, count.unwrap()).as_ref()).is_err());
    let replacement = MemoryStore::default();
    assert!(matches!(abort(&source, &replacement), Err(PersistError::InUse(_))));
    assert!(!is_openable(&source));
    block_on(abort_migration(Arc::new(source.clone()), &replacement, true)).unwrap();
    assert!(is_openable(&source));
    // What was lost comes back, and can't be completed.
    assert!(block_on(migrate(Arc::new(source.clone()), &made(), "there")).is_err());
    assert!(is_openable(&source) && !is_openable(&destination));
}

#[test]
fn an_import_begins_a_generation() {
    let source = filled();
    let backup = block_on(export(&source)).unwrap();
    let state = open(&source).1;
    assert!(is_openable(&source), "an export changes nothing");
    let bytes = backup.encode();
    for at in [0, bytes.len() / 2, bytes.len() - 1] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        assert!(MapBackup::decode(&damaged).is_err());
    }
    let backup = MapBackup::decode(&bytes).unwrap();
    let now_ns = 1_800_000_000_000_000_000;
    for count in 0.. {
        let destination = MemoryStore::default();
        let outcome = block_on(import(mortal(&destination, count).as_ref(), &backup, now_ns, &[]));
        if outcome.is_err() {
            assert!(!is_openable(&destination), "after {count} transactions");
            block_on(import(&destination, &backup, now_ns, &[])).unwrap();
        }
        let (_, imported) = open(&destination);
        assert_eq!(imported.map().generation, 1_800_000_000);
        assert!(imported.map().epoch > state.map().epoch);
        assert_eq!(imported.config().iter().count(), 300);
        if outcome.is_ok() {
            assert!(count > 3, "{count} transactions");
            break;
        }
    }
    assert!(block_on(import(&source, &backup, now_ns, &[])).is_err(), "it holds a cluster");
}

#[test]
fn an_old_release_does_not_open_a_store_whose_cluster_has_moved() {
    let (source, destination) = (filled(), MemoryStore::default());
    move_to(&source, &destination).unwrap();
    let absent = Compare::Absent { key: keys::CLUSTER.to_vec() };
    assert!(absent.holds(block_on(source.get(keys::CLUSTER)).unwrap().as_ref()));
}
