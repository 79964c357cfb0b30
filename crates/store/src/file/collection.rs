//! A PG's objects in memory: recently used records, and what is queued but not yet in the files.

use super::object::Object;
use bytes::Bytes;
use nacre_types::ids::PgId;
use nacre_types::object::ObjectId;
use std::collections::BTreeMap;

/// A change to a file that may not be in it yet.
#[derive(Clone, Debug)]
pub(super) enum Pending {
    /// The file is new: what comes before does not count.
    Fresh,
    /// The file is a clone that lies prepared.
    Adopted,
    /// The file may still have this object's name.
    Was(ObjectId),
    Write(u64, Bytes),
    Zero(u64, u64),
    SetLen(u64),
}

/// A pending change of a transaction that has no number yet.
pub(super) const UNNUMBERED: u64 = u64::MAX;

/// What is known of an object.
#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
    /// The object as of the last queued transaction, `None` for an absent one.
    pub(super) object: Option<Object>,
    /// Changes by number of their transaction, in order.
    pub(super) pending: Vec<(u64, Pending)>,
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
    pub(super) entries: BTreeMap<ObjectId, Entry>,
    /// The last transaction that changed log, values or the collection itself.
    pub(super) meta_seq: u64,
}

impl Collection {
    pub(super) fn new(id: PgId, exists: bool) -> Collection {
        Collection { id, exists, entries: BTreeMap::new(), meta_seq: 0 }
    }

    /// Forgets what is in the files by now.
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

    /// Evicts records that are in the database, down to about half of `limit` where there are more than that.
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
