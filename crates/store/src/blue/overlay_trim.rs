//! Releases the memory of collections that have no new transactions.
//!
//! A transaction settles only its own collection. Therefore each group commit settles one more collection, in rotation. The
//! memory of a burst of writes to one PG is thus released although the PG is not written to again, as long as any PG is. A
//! removed collection is dropped once all its changes are committed.

use super::Inner;
use nacre_types::ids::PgId;
use std::collections::btree_map::Entry;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

impl Inner {
    /// Settles the next collection in rotation, unless it is in use. Must be called without a collection's lock.
    pub(super) fn trim_next_overlay(&self) {
        let Some(mut turn) = self.settle_turn.try_lock() else { return };
        let collections = self.collections.read();
        let after = turn.map_or(Unbounded, Excluded);
        let next = collections.range((after, Unbounded)).next().or_else(|| collections.iter().next());
        let Some((id, collection)) = next else { return };
        let id = *id;
        *turn = Some(id);
        drop(turn);
        let Some(mut collection) = collection.try_lock() else { return };
        collection.trim_overlay(self.queue.committed_seq());
        let is_gone = collection.removed && collection.is_overlay_empty();
        drop(collection);
        drop(collections);
        if is_gone {
            self.forget(id);
        }
    }

    /// Drops a removed collection, unless it was created again or a thread is about to create it.
    fn forget(&self, id: PgId) {
        let mut collections = self.collections.write();
        let Entry::Occupied(entry) = collections.entry(id) else { return };
        // A thread that holds a reference may create the collection again. A thread that looks it up waits for the map.
        if Arc::strong_count(entry.get()) > 1 {
            return;
        }
        let freed = {
            let collection = entry.get().lock();
            (collection.removed && collection.is_overlay_empty()).then(|| collection.onodes.memory())
        };
        if let Some(freed) = freed {
            entry.remove();
            self.account(-(freed as i64));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{BlueStore, BlueStoreConfig, IgnoreEvents, ObjectStore, ReadStore};
    use bytes::Bytes;
    use nacre_types::ids::{Eversion, Interval, PgId, PoolId};
    use nacre_types::object::ObjectId;
    use nacre_types::txn::{Transaction, TxnOp};
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    #[test]
    fn idle_collections_are_settled_and_removed_ones_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let config = BlueStoreConfig { ballast_bytes: 1 << 20, ..BlueStoreConfig::default() };
        BlueStore::mkfs(directory.path(), 64 << 20, &config).unwrap();
        let (store, _) = BlueStore::mount(directory.path(), config, Arc::new(IgnoreEvents)).unwrap();
        let [busy, idle, gone] = [0, 1, 2].map(|seed| PgId::new(PoolId(3), seed));
        let commit = |collection, ops| store.commit(&Transaction { collection, ops }).unwrap();
        let oid = ObjectId::new(PoolId(3), "", "", "an object");
        let entry = |version| {
            let version = Eversion { interval: Interval(1), version };
            TxnOp::LogAppend(vec![(version, Bytes::from_static(b"entry"))])
        };
        let fill = || vec![TxnOp::CreateCollection, TxnOp::Touch(oid.clone()), entry(1), entry(2)];
        commit(busy, vec![TxnOp::CreateCollection]);
        let inner = store.inner().unwrap();
        let used = inner.cache_used.load(Ordering::Relaxed);
        commit(gone, fill());
        commit(gone, vec![TxnOp::Remove(oid.clone()), TxnOp::RemoveCollection]);
        commit(idle, fill());
        let of_idle = inner.cache_used.load(Ordering::Relaxed) - used;
        let note = || vec![TxnOp::MetaSet(vec![("interval".to_owned(), Bytes::from_static(b"2"))])];
        (0..9).for_each(|_| commit(busy, note()));
        assert!(inner.collections.read()[&idle].lock().is_overlay_empty());
        assert_eq!(inner.collections.read().keys().copied().collect::<Vec<_>>(), [busy, idle]);
        let left = inner.cache_used.load(Ordering::Relaxed) - used;
        assert!(left > 0 && left < of_idle, "{left} bytes of {of_idle}");
        assert_eq!(store.read_log(idle, Eversion::default(), 9).unwrap().len(), 2);
        // A new collection with the same name starts empty.
        commit(gone, vec![TxnOp::CreateCollection]);
        assert!(store.read_log(gone, Eversion::default(), 9).unwrap().is_empty());
        assert!(!store.exists(gone, &oid).unwrap());
        commit(gone, fill());
        assert_eq!(store.read_log(gone, Eversion::default(), 9).unwrap().len(), 2);
        drop(inner);
        store.umount().unwrap();
    }
}
