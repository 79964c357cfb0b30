//! A PG's objects in memory: recently used records, and queued changes that are not yet in the files.

use super::object::Object;
use bytes::Bytes;
use nacre_types::ids::PgId;
use nacre_types::object::ObjectId;
use std::collections::BTreeMap;

/// A change to a file that may not have been applied yet.
#[derive(Clone, Debug)]
pub(super) enum PendingChange {
    /// The file is new: earlier contents do not count.
    Fresh,
    /// The file is a prepared clone.
    Adopted,
    /// The file may still have the name of this object.
    RenamedFrom(ObjectId),
    Write(u64, Bytes),
    Zero(u64, u64),
    SetLen(u64),
}

/// A pending change of a transaction that has no number yet.
pub(super) const NO_SEQ: u64 = u64::MAX;

/// The cached state of an object.
#[derive(Clone, Debug, Default)]
pub(super) struct ObjectEntry {
    /// The object as of the last queued transaction, or `None` if it does not exist.
    pub(super) object: Option<Object>,
    /// Pending changes with the number of their transaction, in order.
    pub(super) pending: Vec<(u64, PendingChange)>,
    /// The last transaction that changed the object.
    pub(super) last_seq: u64,
    /// The last transaction that changed its omap.
    pub(super) omap_seq: u64,
}

/// A PG.
#[derive(Debug)]
pub(super) struct Collection {
    pub(super) id: PgId,
    pub(super) exists: bool,
    pub(super) entries: BTreeMap<ObjectId, ObjectEntry>,
    /// The last transaction that changed log, values or existence of the collection.
    pub(super) meta_seq: u64,
}

impl Collection {
    pub(super) fn new(id: PgId, exists: bool) -> Collection {
        Collection { id, exists, entries: BTreeMap::new(), meta_seq: 0 }
    }

    /// Drops the pending changes of `oids` that are now in the files, and the entries of removed objects.
    pub(super) fn settle<'a>(&mut self, oids: impl Iterator<Item = &'a ObjectId>, applied: u64) {
        for oid in oids {
            if let Some(entry) = self.entries.get_mut(oid) {
                entry.pending.retain(|(seq, _)| *seq > applied);
                if entry.object.is_none() && entry.last_seq <= applied {
                    self.entries.remove(oid);
                }
            }
        }
    }

    /// If there are more than `limit` records, evicts records that are in the database, down to about half of `limit`.
    pub(super) fn trim(&mut self, limit: usize, applied: u64) {
        if self.entries.len() <= limit {
            return;
        }
        let mut excess = self.entries.len() - limit / 2;
        self.entries.retain(|_, entry| {
            let evict = excess > 0 && entry.last_seq <= applied && entry.pending.is_empty();
            excess -= usize::from(evict);
            !evict
        });
    }
}
