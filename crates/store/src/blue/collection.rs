//! One PG's state in memory: cached onodes, and an overlay of everything queued that the database does not hold yet.
//!
//! # Invariants
//! - What belongs to a transaction that is not committed stays here until it is: cached onodes (absent ones too), names
//!   of created and removed objects, omap entries, log entries, shared blobs. Reads look here first, then in the
//!   database, which by then holds the rest.
//! - Entries carry the sequence number of their last change; *settling* drops those at or below the committed one.

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
    /// Not there: removed, or not yet created. Kept for what its overlays know of removals still queued.
    pub(super) removed: bool,
    pub(super) objects: u64,
    /// How new data is kept, and the version of the store's options that this is of.
    pub(super) data: DataOptions,
    pub(super) data_version: u64,
    pub(super) meta: BTreeMap<String, Bytes>,
    pub(super) log: Log,
    pub(super) onodes: OnodeCache,
    pub(super) names: PendingNames,
    pub(super) omaps: OmapOverlays,
    pub(super) shared: SharedBlobs,
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
            names: PendingNames::default(),
            omaps: OmapOverlays::default(),
            shared: SharedBlobs::default(),
        }
    }

    /// Drops overlay entries that are committed.
    pub(super) fn settle(&mut self, committed: u64) {
        self.log.settle(committed);
        self.names.settle(committed);
        self.omaps.settle(committed);
        self.shared.settle(committed);
    }

    /// Whether all that was changed was committed when it was settled last.
    pub(super) fn is_settled(&self) -> bool {
        self.log.pending.is_empty()
            && self.names.pending.is_empty()
            && self.omaps.pending.is_empty()
            && self.shared.pending.is_empty()
    }
}

/// Marks log entries of a transaction that has no sequence number yet.
const UNSTAMPED: u64 = u64::MAX;

/// Which log versions exist, and the entries not yet committed.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// The database's versions are not among the entries yet: nobody has asked for them.
    unloaded: bool,
    entries: BTreeMap<Eversion, Option<(u64, Bytes)>>,
    pending: VecDeque<(u64, Eversion)>,
}

impl Log {
    /// Whether the versions that the database holds are to be loaded before anything else is done.
    pub(super) fn is_unloaded(&self) -> bool {
        self.unloaded
    }

    /// Says that the database may hold versions.
    pub(super) fn set_unloaded(&mut self) {
        self.unloaded = true;
    }

    /// Says that all versions were loaded.
    pub(super) fn set_loaded(&mut self) {
        self.unloaded = false;
    }

    /// Registers an entry that the database holds.
    pub(super) fn load(&mut self, version: Eversion) {
        self.entries.insert(version, None);
    }

    /// Adds or replaces an entry, not yet committed; tells whether there was one.
    pub(super) fn append(&mut self, version: Eversion, entry: Bytes) -> bool {
        self.pending.push_back((UNSTAMPED, version));
        self.entries.insert(version, Some((UNSTAMPED, entry))).is_some()
    }

    /// Gives the entries appended last their sequence number.
    pub(super) fn stamp(&mut self, seq: u64) {
        for (stamp, version) in self.pending.iter_mut().rev().take_while(|(stamp, _)| *stamp == UNSTAMPED) {
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

    /// The entries above `after`: their versions and, where not committed, contents.
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

/// Objects created or removed by transactions not yet committed.
#[derive(Debug, Default)]
pub(super) struct PendingNames {
    names: BTreeMap<ObjectId, (u64, bool)>,
    pending: VecDeque<(u64, ObjectId)>,
}

impl PendingNames {
    pub(super) fn set(&mut self, oid: &ObjectId, exists: bool, seq: u64) {
        self.names.insert(oid.clone(), (seq, exists));
        self.pending.push_back((seq, oid.clone()));
    }

    /// The names in `from..to` and whether they exist.
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

/// Reference counts of shared blobs changed by transactions not yet committed.
#[derive(Debug, Default)]
pub(super) struct SharedBlobs {
    blobs: HashMap<u64, (u64, Option<SharedBlob>)>,
    pending: VecDeque<(u64, u64)>,
}

impl SharedBlobs {
    /// `None`: not changed lately; `Some(None)`: removed.
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

/// A key without the omap's id: a kind byte, then the user's key.
pub(super) type OmapKey = Arc<[u8]>;

/// A change of an omap.
#[derive(Clone, Debug)]
pub(super) enum OmapChange {
    Set(OmapKey, Bytes),
    Remove(OmapKey),
    RemoveRange(OmapKey, OmapKey),
}

/// Omap changes of transactions not yet committed, by omap id.
#[derive(Debug, Default)]
pub(super) struct OmapOverlays {
    overlays: HashMap<u64, OmapOverlay>,
    /// Sequence number, omap and changed key, or `None` for a removed range.
    pending: VecDeque<(u64, u64, Option<OmapKey>)>,
}

/// One omap's changes: keys set or removed, and below them removed ranges.
#[derive(Clone, Debug, Default)]
pub(super) struct OmapOverlay {
    pub(super) entries: BTreeMap<Arc<[u8]>, (u64, Option<Bytes>)>,
    ranges: Vec<(u64, OmapKey, OmapKey)>,
}

impl OmapOverlay {
    /// Adds a change on top.
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

    /// Whether what the database has under `key` is hidden by a removed range.
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

/// Onodes in memory with what they have cached of their data; evicted by the clock algorithm, data before records.
#[derive(Debug, Default)]
pub(super) struct OnodeCache {
    index: HashMap<ObjectId, usize>,
    slots: Vec<Slot>,
    hand: usize,
}

#[derive(Debug)]
struct Slot {
    oid: ObjectId,
    /// `None`: the object is known to be absent.
    onode: Option<Arc<Onode>>,
    /// The last transaction that changed it; it can't be evicted before that is committed and its data in its place.
    seq: u64,
    memory: u64,
    used: bool,
}

/// Memory of a slot and its index entry beyond the onode, in bytes.
const SLOT_BYTES: u64 = 256;

fn memory_of(onode: Option<&Arc<Onode>>) -> u64 {
    SLOT_BYTES + onode.map_or(0, |onode| onode.memory())
}

impl OnodeCache {
    /// The cached record: `None` where nothing is known of the object, `Some(None)` where it is absent.
    pub(super) fn get(&mut self, oid: &ObjectId) -> Option<Option<Arc<Onode>>> {
        let slot = &mut self.slots[*self.index.get(oid)?];
        slot.used = true;
        Some(slot.onode.clone())
    }

    /// Caches a record read from the database (`seq` 0) or changed by a transaction. Returns the change of memory use.
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

    /// Adds what was read of a blob to the cached record, if it is still there. Returns the change of memory use.
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

    /// Frees about `wanted` bytes of entries whose data is in its place; returns how many it freed.
    pub(super) fn sweep(&mut self, placed: u64, wanted: u64) -> u64 {
        let mut freed = 0;
        // Three rounds at most: one clears use marks, one drops data, one drops records.
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
