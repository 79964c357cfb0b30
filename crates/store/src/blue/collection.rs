//! One PG's state in memory: cached onodes, and an overlay of all queued changes that are not yet in the database.
//!
//! # Invariants
//! - Changes of a transaction stay here until it is committed: cached onodes (also of absent objects), names
//!   of created and removed objects, omap entries, log entries, shared blobs. Reads look here first, then in the
//!   database, which contains everything else.
//! - Entries carry the sequence number of their last change. *Settling* drops entries up to the committed number.

use super::onode::{Onode, SharedBlob};
use crate::DataOptions;
use bytes::Bytes;
use nacre_types::ids::{Eversion, PgId};
use nacre_types::object::ObjectId;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

/// A PG's state.
#[derive(Debug)]
pub(super) struct Collection {
    pub(super) id: PgId,
    /// Whether the collection does not exist: it was removed or not yet created. It is kept while its overlays hold queued
    /// removals.
    pub(super) removed: bool,
    pub(super) objects: u64,
    /// The options for new data, and the version of the store's options that they were copied from.
    pub(super) data: DataOptions,
    pub(super) data_version: u64,
    pub(super) meta: BTreeMap<String, Bytes>,
    pub(super) log: Log,
    pub(super) onodes: OnodeCache,
    pub(super) names: ExistenceOverlay,
    pub(super) omaps: OmapOverlays,
    pub(super) shared: SharedBlobOverlay,
}

impl Collection {
    pub(super) fn new(id: PgId) -> Collection {
        Collection {
            id,
            removed: true,
            objects: 0,
            data: DataOptions::default(),
            data_version: 0,
            meta: BTreeMap::new(),
            log: Log::default(),
            onodes: OnodeCache::default(),
            names: ExistenceOverlay::default(),
            omaps: OmapOverlays::default(),
            shared: SharedBlobOverlay::default(),
        }
    }

    /// Drops overlay entries that are committed.
    pub(super) fn trim_overlay(&mut self, committed: u64) {
        self.log.settle(committed);
        self.names.settle(committed);
        self.omaps.settle(committed);
        self.shared.settle(committed);
    }

    /// Whether all changes were committed when the collection was last settled.
    pub(super) fn is_overlay_empty(&self) -> bool {
        self.log.pending.is_empty()
            && self.names.pending.is_empty()
            && self.omaps.pending.is_empty()
            && self.shared.pending.is_empty()
    }
}

/// Marks log entries of a transaction that has no sequence number yet.
const NO_SEQ: u64 = u64::MAX;

/// The versions of the log's entries, and the entries that are not yet committed.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// Whether the versions in the database have not been loaded into `entries` yet.
    unloaded: bool,
    entries: BTreeMap<Eversion, Option<(u64, Bytes)>>,
    pending: VecDeque<(u64, Eversion)>,
}

impl Log {
    /// Whether the versions in the database must be loaded before any other call.
    pub(super) fn is_unloaded(&self) -> bool {
        self.unloaded
    }

    /// Marks the log as not loaded: the database may hold versions.
    pub(super) fn set_unloaded(&mut self) {
        self.unloaded = true;
    }

    /// Marks the log as loaded.
    pub(super) fn set_loaded(&mut self) {
        self.unloaded = false;
    }

    /// Registers an entry that is in the database.
    pub(super) fn insert_stored(&mut self, version: Eversion) {
        self.entries.insert(version, None);
    }

    /// Adds or replaces an entry that is not yet committed. Returns whether the version existed before.
    pub(super) fn append(&mut self, version: Eversion, entry: Bytes) -> bool {
        self.pending.push_back((NO_SEQ, version));
        self.entries.insert(version, Some((NO_SEQ, entry))).is_some()
    }

    /// Assigns the sequence number to the entries appended last.
    pub(super) fn assign_seq(&mut self, seq: u64) {
        for (stamp, version) in self.pending.iter_mut().rev().take_while(|(stamp, _)| *stamp == NO_SEQ) {
            *stamp = seq;
            if let Some(Some((stamp, _))) = self.entries.get_mut(version) {
                *stamp = seq;
            }
        }
    }

    pub(super) fn pop_first_up_to(&mut self, to: Eversion) -> Option<Eversion> {
        let first = self.entries.first_entry().filter(|first| *first.key() <= to)?;
        Some(first.remove_entry().0)
    }

    pub(super) fn pop_last_above(&mut self, to: Eversion) -> Option<Eversion> {
        let last = self.entries.last_entry().filter(|last| *last.key() > to)?;
        Some(last.remove_entry().0)
    }

    /// The versions above `after`, with the contents of entries that are not yet committed.
    pub(super) fn after(&self, after: Eversion, max: usize) -> Vec<(Eversion, Option<Bytes>)> {
        let range = (std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded);
        self.entries
            .range(range)
            .take(max)
            .map(|(version, entry)| (*version, entry.as_ref().map(|(_, bytes)| bytes.clone())))
            .collect()
    }

    fn settle(&mut self, committed: u64) {
        while let Some((_, version)) = self.pending.pop_front_if(|(seq, _)| *seq <= committed) {
            if let Some(entry) = self.entries.get_mut(&version)
                && entry.as_ref().is_some_and(|(seq, _)| *seq <= committed)
            {
                *entry = None;
            }
        }
    }
}

/// Objects created or removed by transactions that are not yet committed.
#[derive(Debug, Default)]
pub(super) struct ExistenceOverlay {
    names: BTreeMap<ObjectId, (u64, bool)>,
    pending: VecDeque<(u64, ObjectId)>,
}

impl ExistenceOverlay {
    pub(super) fn set(&mut self, oid: &ObjectId, exists: bool, seq: u64) {
        self.names.insert(oid.clone(), (seq, exists));
        self.pending.push_back((seq, oid.clone()));
    }

    /// The names in `from..to`, and whether they exist.
    pub(super) fn range(&self, from: &ObjectId, to: Option<&ObjectId>) -> Vec<(ObjectId, bool)> {
        let entries = self.names.range(from.clone()..);
        entries
            .take_while(|(oid, _)| to.is_none_or(|to| *oid < to))
            .map(|(oid, (_, exists))| (oid.clone(), *exists))
            .collect()
    }

    fn settle(&mut self, committed: u64) {
        while let Some((_, oid)) = self.pending.pop_front_if(|(seq, _)| *seq <= committed) {
            if self.names.get(&oid).is_some_and(|(seq, _)| *seq <= committed) {
                self.names.remove(&oid);
            }
        }
    }
}

/// Reference counts of shared blobs that were changed by transactions that are not yet committed.
#[derive(Debug, Default)]
pub(super) struct SharedBlobOverlay {
    blobs: HashMap<u64, (u64, Option<SharedBlob>)>,
    pending: VecDeque<(u64, u64)>,
}

impl SharedBlobOverlay {
    /// `None` if there is no recent change, `Some(None)` if the blob was removed.
    pub(super) fn get(&self, id: u64) -> Option<Option<SharedBlob>> {
        self.blobs.get(&id).map(|(_, blob)| *blob)
    }

    pub(super) fn set(&mut self, id: u64, blob: Option<SharedBlob>, seq: u64) {
        self.blobs.insert(id, (seq, blob));
        self.pending.push_back((seq, id));
    }

    fn settle(&mut self, committed: u64) {
        while let Some((_, id)) = self.pending.pop_front_if(|(seq, _)| *seq <= committed) {
            if self.blobs.get(&id).is_some_and(|(seq, _)| *seq <= committed) {
                self.blobs.remove(&id);
            }
        }
    }
}

/// A key without the omap's id: a kind byte and the user's key.
pub(super) type TaggedOmapKey = Arc<[u8]>;

/// A change of an omap.
#[derive(Clone, Debug)]
pub(super) enum OmapChange {
    Set(TaggedOmapKey, Bytes),
    Remove(TaggedOmapKey),
    RemoveRange(TaggedOmapKey, TaggedOmapKey),
}

/// Omap changes of transactions that are not yet committed, by omap id.
#[derive(Debug, Default)]
pub(super) struct OmapOverlays {
    overlays: HashMap<u64, OmapOverlay>,
    /// Sequence number, omap id, and the changed key or `None` for a removed range.
    pending: VecDeque<(u64, u64, Option<TaggedOmapKey>)>,
}

/// The changes of one omap: removed ranges, and above them keys that were set or removed.
#[derive(Clone, Debug, Default)]
pub(super) struct OmapOverlay {
    pub(super) entries: BTreeMap<Arc<[u8]>, (u64, Option<Bytes>)>,
    ranges: Vec<(u64, TaggedOmapKey, TaggedOmapKey)>,
}

impl OmapOverlay {
    /// Applies a change on top of the earlier ones.
    pub(super) fn apply(&mut self, change: &OmapChange, seq: u64) {
        match change {
            OmapChange::Set(key, value) => _ = self.entries.insert(key.clone(), (seq, Some(value.clone()))),
            OmapChange::Remove(key) => _ = self.entries.insert(key.clone(), (seq, None)),
            OmapChange::RemoveRange(first, last) => {
                if first < last {
                    self.entries.retain(|key, _| key < first || key >= last);
                    self.ranges.push((seq, first.clone(), last.clone()));
                }
            }
        }
    }

    /// Whether a removed range hides the value of `key` in the database.
    pub(super) fn hides(&self, key: &[u8]) -> bool {
        self.ranges.iter().any(|(_, first, last)| &**first <= key && key < &**last)
    }
}

impl OmapOverlays {
    pub(super) fn get(&self, id: u64) -> Option<&OmapOverlay> {
        self.overlays.get(&id)
    }

    pub(super) fn apply(&mut self, id: u64, change: &OmapChange, seq: u64) {
        self.overlays.entry(id).or_default().apply(change, seq);
        let key = match change {
            OmapChange::Set(key, _) | OmapChange::Remove(key) => Some(key.clone()),
            OmapChange::RemoveRange(..) => None,
        };
        self.pending.push_back((seq, id, key));
    }

    fn settle(&mut self, committed: u64) {
        while let Some((_, id, key)) = self.pending.pop_front_if(|(seq, ..)| *seq <= committed) {
            let Some(overlay) = self.overlays.get_mut(&id) else { continue };
            match key {
                Some(key) => {
                    if overlay.entries.get(&key).is_some_and(|(seq, _)| *seq <= committed) {
                        overlay.entries.remove(&key);
                    }
                }
                None => overlay.ranges.retain(|(seq, ..)| *seq > committed),
            }
            if overlay.entries.is_empty() && overlay.ranges.is_empty() {
                self.overlays.remove(&id);
            }
        }
    }
}

/// Cached onodes and their cached data. Evicted with the clock algorithm, data before records.
#[derive(Debug, Default)]
pub(super) struct OnodeCache {
    index: HashMap<ObjectId, usize>,
    slots: Vec<Slot>,
    hand: usize,
}

#[derive(Debug)]
struct Slot {
    oid: ObjectId,
    /// The record, or `None` if the object is known not to exist.
    onode: Option<Arc<Onode>>,
    /// The last transaction that changed it. The slot can't be evicted before that is committed and its data is in its place.
    seq: u64,
    memory: u64,
    used: bool,
}

/// Memory of a slot and its index entry besides the onode, in bytes.
const SLOT_BYTES: u64 = 256;

fn memory_of(onode: Option<&Arc<Onode>>) -> u64 {
    SLOT_BYTES + onode.map_or(0, |onode| onode.memory())
}

impl OnodeCache {
    /// The cached record: `None` if nothing is cached for the object, `Some(None)` if the object does not exist.
    pub(super) fn get(&mut self, oid: &ObjectId) -> Option<Option<Arc<Onode>>> {
        let slot = &mut self.slots[*self.index.get(oid)?];
        slot.used = true;
        Some(slot.onode.clone())
    }

    /// Caches a record read from the database (`seq` 0) or changed by a transaction. Returns the change in memory use.
    pub(super) fn set(&mut self, oid: &ObjectId, onode: Option<Arc<Onode>>, seq: u64) -> i64 {
        let memory = memory_of(onode.as_ref());
        if let Some(&at) = self.index.get(oid) {
            let slot = &mut self.slots[at];
            let before = slot.memory;
            (slot.onode, slot.seq, slot.memory) = (onode, slot.seq.max(seq), memory);
            return memory as i64 - before as i64;
        }
        self.index.insert(oid.clone(), self.slots.len());
        self.slots.push(Slot { oid: oid.clone(), onode, seq, memory, used: false });
        memory as i64
    }

    /// Adds data read from blobs to the cached record, if it still exists. Returns the change in memory use.
    pub(super) fn add_contents(&mut self, oid: &ObjectId, reads: Vec<(u64, u32, Bytes)>) -> i64 {
        let Some(slot) = self.index.get(oid).map(|at| &mut self.slots[*at]) else { return 0 };
        let Some(onode) = &mut slot.onode else { return 0 };
        let onode = Arc::make_mut(onode);
        for (id, first, bytes) in reads {
            let Some(blob) = onode.blobs.iter_mut().find(|blob| blob.id == id) else { continue };
            let blocks = (bytes.len() as u64 / super::onode::BLOCK_BYTES) as u32;
            let at = blob.cached.partition_point(|(start, _)| *start < first);
            let after_last = at == 0 || {
                let (start, have) = &blob.cached[at - 1];
                start + (have.len() as u64 / super::onode::BLOCK_BYTES) as u32 <= first
            };
            if after_last && blob.cached.get(at).is_none_or(|(start, _)| first + blocks <= *start) {
                blob.cached.insert(at, (first, bytes));
            }
        }
        let before = slot.memory;
        slot.memory = memory_of(slot.onode.as_ref());
        slot.memory as i64 - before as i64
    }

    /// Memory of all entries, in bytes.
    pub(super) fn memory(&self) -> u64 {
        self.slots.iter().map(|slot| slot.memory).sum()
    }

    /// Frees about `wanted` bytes of entries whose data is in its place. Returns the number of bytes freed.
    pub(super) fn evict(&mut self, placed: u64, wanted: u64) -> u64 {
        let mut freed = 0;
        // At most three rounds: the first clears use marks, the second drops data, the third drops records.
        let mut steps = 3 * self.slots.len();
        while freed < wanted && steps > 0 && !self.slots.is_empty() {
            steps -= 1;
            self.hand = if self.hand >= self.slots.len() { 0 } else { self.hand };
            let slot = &mut self.slots[self.hand];
            if slot.seq > placed || std::mem::take(&mut slot.used) {
                self.hand += 1;
            } else if let Some(onode) = &mut slot.onode
                && onode.blobs.iter().any(|blob| !blob.cached.is_empty())
            {
                for blob in &mut Arc::make_mut(onode).blobs {
                    blob.cached = Vec::new();
                }
                let memory = memory_of(slot.onode.as_ref());
                freed += slot.memory.saturating_sub(memory);
                slot.memory = memory;
                self.hand += 1;
            } else {
                freed += slot.memory;
                let gone = self.slots.swap_remove(self.hand);
                self.index.remove(&gone.oid);
                if let Some(moved) = self.slots.get(self.hand)
                    && let Some(at) = self.index.get_mut(&moved.oid)
                {
                    *at = self.hand;
                }
            }
        }
        freed
    }
}
