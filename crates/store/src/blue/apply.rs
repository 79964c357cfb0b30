//! Applies a transaction: builds the changed records on copies, then installs them, the overlays and the queued commit
//! in one step. An earlier error leaves nothing behind except unused numbers.

use super::Inner;
use super::collection::{Collection, OmapChange, OmapOverlay};
use super::commit::{QueuedTxn, is_early_reuse_enabled};
use super::db::{Family, RawBatch};
use super::keys;
use super::omap;
use super::onode::{AllocHint, Onode, Run, SharedBlob};
use crate::error::{Result, StoreError};
use crate::{Completion, PoolUsage};
use bytes::Bytes;
use nacre_objectstore::admission::{range_end, writes_no_data};
use nacre_types::object::ObjectId;
use nacre_types::txn::{Transaction, TxnOp};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A transaction being applied to a locked collection.
pub(super) struct Txn<'a> {
    pub(super) inner: &'a Inner,
    pub(super) coll: &'a mut Collection,
    pub(super) batch: RawBatch,
    objects: Vec<TouchedObject>,
    /// (first block on the device, whole blocks).
    pub(super) writes: Vec<(u64, Bytes)>,
    /// Writes that overwrite blocks in place, in the same form.
    pub(super) overwrites: Vec<(u64, Bytes)>,
    pub(super) allocated: Vec<Run>,
    pub(super) freed: Vec<Run>,
    /// Changes in the size of compressed data, and in the bytes allocated for it.
    pub(super) packed: (i64, i64),
    omap: Vec<(u64, OmapChange)>,
    shared: Vec<(u64, Option<SharedBlob>)>,
    installed: bool,
}

/// An object that the transaction uses.
struct TouchedObject {
    oid: ObjectId,
    before: Option<Arc<Onode>>,
    /// Whether the record existed but could not be read.
    damaged: bool,
    /// The error, if the object still exists and can't be read. It can only be removed.
    unreadable: Option<StoreError>,
    now: Option<Onode>,
    changed: bool,
}

/// Changes of a pool's usage by a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UsageChange {
    pub(super) stored: i64,
    pub(super) allocated: i64,
    pub(super) objects: i64,
    pub(super) packed: i64,
    pub(super) packed_allocated: i64,
    pub(super) packed_stored: i64,
}

impl UsageChange {
    /// Whether nothing changes.
    pub(super) fn is_none(&self) -> bool {
        *self == UsageChange::default()
    }

    pub(super) fn apply_to(self, usage: &mut PoolUsage) {
        let change = |sum: &mut u64, by: i64| *sum = sum.saturating_add_signed(by);
        change(&mut usage.stored_bytes, self.stored);
        change(&mut usage.allocated_bytes, self.allocated);
        change(&mut usage.objects, self.objects);
        change(&mut usage.compressed_bytes, self.packed);
        change(&mut usage.compressed_allocated_bytes, self.packed_allocated);
        change(&mut usage.compressed_original_bytes, self.packed_stored);
    }
}

impl<'a> Txn<'a> {
    pub(super) fn new(inner: &'a Inner, coll: &'a mut Collection) -> Txn<'a> {
        Txn {
            inner,
            coll,
            batch: inner.batches.take(),
            objects: Vec::with_capacity(1),
            writes: Vec::new(),
            overwrites: Vec::new(),
            allocated: Vec::new(),
            freed: Vec::new(),
            packed: (0, 0),
            omap: Vec::new(),
            shared: Vec::new(),
            installed: false,
        }
    }

    /// Applies `txn` and queues its commit. Returns the change in the memory use of the collection's cache.
    pub(super) fn apply_and_queue(mut self, txn: &Transaction, on_commit: Option<Completion>) -> Result<i64> {
        self.inner.admit(writes_no_data(txn))?;
        if touches_log(txn) {
            self.inner.load_log(self.coll)?;
        }
        let exists = !self.coll.removed;
        self.change_objects(txn, exists)?;
        let mut usage = UsageChange::default();
        for at in 0..self.objects.len() {
            self.encode_object(at, &mut usage);
        }
        for (id, blob) in &self.shared {
            let ids = self.inner.ids;
            match blob {
                Some(blob) => self.batch.put(ids, Family::Shared, &keys::id(*id), &blob.encode()),
                None => self.batch.delete(ids, Family::Shared, &keys::id(*id)),
            }
        }
        let blocks = |runs: &[Run]| runs.iter().map(|run| run.blocks as i64).sum::<i64>();
        usage.allocated = (blocks(&self.allocated) - blocks(&self.freed)) * super::onode::BLOCK_BYTES as i64;
        (usage.packed, usage.packed_allocated) = self.packed;
        self.encode_omap();
        let exists = self.keep_books(txn, exists);
        self.install(usage, exists, on_commit)
    }

    /// Applies the ops to objects. Everything that can fail is done here.
    fn change_objects(&mut self, txn: &Transaction, mut exists: bool) -> Result<()> {
        for op in &txn.ops {
            if !exists && !matches!(op, TxnOp::CreateCollection) {
                return Err(StoreError::NoCollection(self.coll.id));
            }
            match op {
                TxnOp::CreateCollection => exists = true,
                TxnOp::RemoveCollection => {
                    let change = |touched: &TouchedObject| {
                        i64::from(touched.exists()) - i64::from(touched.existed_before())
                    };
                    if self.coll.objects as i64 + self.objects.iter().map(change).sum::<i64>() > 0 {
                        return Err(StoreError::NotEmpty(self.coll.id));
                    }
                    exists = false;
                }
                TxnOp::Touch(oid) => _ = self.create(oid)?,
                TxnOp::Write { oid, offset, data } => {
                    range_end(oid, *offset, data.len() as u64)?;
                    let at = self.create(oid)?;
                    if !data.is_empty() {
                        self.with(at, |txn, onode| txn.write(onode, *offset, data))?;
                    }
                }
                TxnOp::Zero { oid, offset, len } => {
                    let end = range_end(oid, *offset, *len)?;
                    let at = self.create(oid)?;
                    if *len > 0 {
                        self.with(at, |txn, onode| {
                            txn.punch_hole(onode, *offset, end)?;
                            onode.size = onode.size.max(end);
                            Ok(())
                        })?;
                    }
                }
                TxnOp::Truncate { oid, size } => {
                    range_end(oid, *size, 0)?;
                    let at = self.create(oid)?;
                    self.with(at, |txn, onode| {
                        if *size < onode.size {
                            txn.punch_hole(onode, *size, onode.size)?;
                        }
                        onode.size = *size;
                        Ok(())
                    })?;
                }
                TxnOp::Remove(oid) => {
                    let at = self.load(oid)?;
                    let existed = self.objects[at].exists();
                    self.objects[at].unreadable = None;
                    if let Some(onode) = self.objects[at].now.take() {
                        self.discard(onode)?;
                    }
                    self.objects[at].changed |= existed;
                }
                TxnOp::SetAttrs { oid, attrs } => {
                    let at = self.create(oid)?;
                    self.with(at, |_, onode| {
                        for (name, value) in attrs {
                            // Copied, because the value may be a slice of a much larger receive buffer.
                            let value = Bytes::copy_from_slice(value);
                            match onode.attrs.binary_search_by(|(have, _)| (**have).cmp(name)) {
                                Ok(at) => onode.attrs[at].1 = value,
                                Err(at) => onode.attrs.insert(at, (name.as_str().into(), value)),
                            }
                        }
                        Ok(())
                    })?;
                }
                TxnOp::RmAttr { oid, name } => {
                    self.with_existing(oid, |_, onode| {
                        onode.attrs.retain(|(have, _)| **have != **name);
                        Ok(())
                    })?;
                }
                TxnOp::RmAttrs(oid) => self.with_existing(oid, |_, onode| {
                    onode.attrs.clear();
                    Ok(())
                })?,
                TxnOp::OmapSet { oid, entries } => {
                    let at = self.create(oid)?;
                    self.with(at, |txn, onode| {
                        let id = txn.omap_id(onode);
                        for (key, value) in entries {
                            let value = Bytes::copy_from_slice(value);
                            txn.omap.push((id, OmapChange::Set(omap::entry_key(key), value)));
                        }
                        Ok(())
                    })?;
                }
                TxnOp::OmapSetHeader { oid, header } => {
                    let at = self.create(oid)?;
                    self.with(at, |txn, onode| {
                        let id = txn.omap_id(onode);
                        let header = Bytes::copy_from_slice(header);
                        txn.omap.push((id, OmapChange::Set(omap::header_key(), header)));
                        Ok(())
                    })?;
                }
                TxnOp::OmapRm { oid, keys } => self.with_existing(oid, |txn, onode| {
                    if onode.omap != 0 {
                        let removed = keys.iter().map(|key| OmapChange::Remove(omap::entry_key(key)));
                        txn.omap.extend(removed.map(|change| (onode.omap, change)));
                    }
                    Ok(())
                })?,
                TxnOp::OmapRmRange { oid, first, last } => self.with_existing(oid, |txn, onode| {
                    if onode.omap != 0 && first < last {
                        let (first, last) = (omap::entry_key(first), omap::entry_key(last));
                        txn.omap.push((onode.omap, OmapChange::RemoveRange(first, last)));
                    }
                    Ok(())
                })?,
                TxnOp::OmapClear(oid) => self.with_existing(oid, |txn, onode| {
                    txn.drop_omap(std::mem::take(&mut onode.omap));
                    Ok(())
                })?,
                TxnOp::Clone { from, to } => self.clone_object(from, to)?,
                TxnOp::CloneRange { from, to, from_offset, len, to_offset } => {
                    range_end(from, *from_offset, *len)?;
                    range_end(to, *to_offset, *len)?;
                    self.clone_range(from, to, *from_offset, *len, *to_offset)?;
                }
                TxnOp::Rename { from, to } => self.rename(from, to)?,
                TxnOp::AllocHint { oid, expected_object_size, expected_write_size, flags } => {
                    let at = self.create(oid)?;
                    let hint = AllocHint {
                        object_size: *expected_object_size,
                        write_size: *expected_write_size,
                        flags: *flags,
                    };
                    self.with(at, |_, onode| {
                        onode.hint = Some(hint);
                        Ok(())
                    })?;
                }
                TxnOp::MetaSet(_)
                | TxnOp::MetaRm(_)
                | TxnOp::LogAppend(_)
                | TxnOp::LogTrim(_)
                | TxnOp::LogTruncate(_) => {}
            }
        }
        Ok(())
    }

    /// The index of the object in `objects`. The object is loaded if necessary.
    fn load(&mut self, oid: &ObjectId) -> Result<usize> {
        if let Some(at) = self.objects.iter().position(|touched| touched.oid == *oid) {
            return Ok(at);
        }
        let (before, unreadable) = match self.inner.onode(self.coll, oid) {
            Ok(before) => (before, None),
            Err(error) if error.is_damage() => (None, Some(error)),
            Err(error) => return Err(error),
        };
        let now = before.as_deref().cloned();
        let damaged = unreadable.is_some();
        self.objects.push(TouchedObject {
            oid: oid.clone(),
            before,
            damaged,
            unreadable,
            now,
            changed: false,
        });
        Ok(self.objects.len() - 1)
    }

    fn create(&mut self, oid: &ObjectId) -> Result<usize> {
        let at = self.load(oid)?;
        let touched = &mut self.objects[at];
        if let Some(error) = &touched.unreadable {
            return Err(error.clone());
        }
        if touched.now.is_none() {
            touched.now = Some(Onode { nid: self.inner.new_id(), ..Onode::default() });
        }
        touched.changed = true;
        Ok(at)
    }

    /// Runs `f` on the record of an existing object, with access to the rest of the transaction.
    fn with<R>(&mut self, at: usize, f: impl FnOnce(&mut Txn<'a>, &mut Onode) -> Result<R>) -> Result<R> {
        let mut onode = self.objects[at].now.take().expect("invariant: create() made the record");
        let result = f(self, &mut onode);
        self.objects[at].now = Some(onode);
        result
    }

    /// Like [`Txn::with`], but does nothing if the object does not exist.
    fn with_existing(
        &mut self,
        oid: &ObjectId,
        f: impl FnOnce(&mut Txn<'a>, &mut Onode) -> Result<()>,
    ) -> Result<()> {
        let at = self.load(oid)?;
        if self.objects[at].now.is_none() && self.objects[at].unreadable.is_none() {
            return Ok(());
        }
        let at = self.create(oid)?;
        self.with(at, f)
    }

    /// The index of an object that must exist.
    fn source(&mut self, oid: &ObjectId) -> Result<usize> {
        let at = self.load(oid)?;
        let touched = &self.objects[at];
        match (&touched.now, &touched.unreadable) {
            (_, Some(error)) => Err(error.clone()),
            (None, None) => Err(StoreError::NotFound(oid.clone())),
            (Some(_), None) => Ok(at),
        }
    }

    fn clone_object(&mut self, from: &ObjectId, to: &ObjectId) -> Result<()> {
        let from_at = self.source(from)?;
        if from == to {
            return Ok(());
        }
        // The source first, because its blobs become shared.
        let mut copy = self.with(from_at, |txn, onode| {
            let copy = txn.share_all(onode)?;
            Ok(copy)
        })?;
        self.objects[from_at].changed = true;
        copy.nid = self.inner.new_id();
        if copy.omap != 0 {
            let overlay = self.overlay_of(copy.omap);
            let entries = omap::read_all(self.inner, copy.omap, overlay.as_ref())?;
            copy.omap = self.inner.new_id();
            let id = copy.omap;
            self.omap.extend(entries.into_iter().map(|(key, value)| (id, OmapChange::Set(key, value))));
        }
        let to_at = self.create(to)?;
        if let Some(old) = self.objects[to_at].now.replace(copy) {
            self.discard(old)?;
        }
        Ok(())
    }

    fn clone_range(
        &mut self,
        from: &ObjectId,
        to: &ObjectId,
        from_offset: u64,
        len: u64,
        to_offset: u64,
    ) -> Result<()> {
        let from_at = self.source(from)?;
        let to_at = self.create(to)?;
        let size = self.objects[from_at].now.as_ref().map_or(0, |onode| onode.size);
        let len = len.min(size.saturating_sub(from_offset));
        if len == 0 {
            return Ok(());
        }
        let aligned = (from_offset ^ to_offset).is_multiple_of(super::onode::BLOCK_BYTES);
        if from_at == to_at || !aligned {
            let data = self.with(from_at, |txn, onode| txn.inner.read_onode(onode, from_offset, len))?;
            return self.with(to_at, |txn, onode| txn.write(onode, to_offset, &data.into()));
        }
        let (blobs, extents) = self.with(from_at, |txn, onode| txn.share_range(onode, from_offset, len))?;
        self.objects[from_at].changed = true;
        self.with(to_at, |txn, onode| {
            txn.punch_hole(onode, to_offset, to_offset + len)?;
            txn.map_shared_extents(onode, &blobs, &extents, to_offset.wrapping_sub(from_offset))?;
            onode.size = onode.size.max(to_offset + len);
            Ok(())
        })
    }

    fn rename(&mut self, from: &ObjectId, to: &ObjectId) -> Result<()> {
        let from_at = self.source(from)?;
        if from == to {
            return Ok(());
        }
        let to_at = self.create(to)?;
        self.objects[from_at].changed = true;
        let onode = self.objects[from_at].now.take();
        if let Some(old) = std::mem::replace(&mut self.objects[to_at].now, onode) {
            self.discard(old)?;
        }
        Ok(())
    }

    /// Releases everything that a record owns.
    fn discard(&mut self, onode: Onode) -> Result<()> {
        self.drop_omap(onode.omap);
        for blob in &onode.blobs {
            match self.release_blob(blob) {
                // The record of a shared blob can't be read. Other objects may hold its blocks, so they stay allocated until
                // a scan. The object is removed nevertheless, because removing it is the way to repair its damage.
                Err(error) if error.is_damage() => self.inner.suspicious.store(true, Ordering::Relaxed),
                other => other?,
            }
        }
        Ok(())
    }

    fn omap_id(&mut self, onode: &mut Onode) -> u64 {
        if onode.omap == 0 {
            onode.omap = self.inner.new_id();
        }
        onode.omap
    }

    fn drop_omap(&mut self, id: u64) {
        if id != 0 {
            self.omap.push((id, OmapChange::RemoveRange(omap::first_key(), omap::end_key())));
        }
    }

    /// The queued and staged changes of an omap.
    fn overlay_of(&self, id: u64) -> Option<OmapOverlay> {
        let mut overlay = self.coll.omaps.get(id).cloned();
        for (_, change) in self.omap.iter().filter(|(have, _)| *have == id) {
            overlay.get_or_insert_default().apply(change, u64::MAX);
        }
        overlay
    }

    pub(super) fn shared_blob(&self, id: u64) -> Result<SharedBlob> {
        let staged = self.shared.iter().rev().find(|(have, _)| *have == id).map(|(_, blob)| *blob);
        let known = match staged.or_else(|| self.coll.shared.get(id)) {
            Some(known) => known,
            None => self.inner.db.get(Family::Shared, &keys::id(id))?.as_deref().and_then(SharedBlob::decode),
        };
        known.ok_or_else(|| {
            self.inner.damaged(id, StoreError::corrupt(format!("shared blob {id}"), "no readable record"))
        })
    }

    pub(super) fn set_shared_blob(&mut self, id: u64, blob: Option<SharedBlob>) {
        match self.shared.iter_mut().find(|(have, _)| *have == id) {
            Some(staged) => staged.1 = blob,
            None => self.shared.push((id, blob)),
        }
    }

    fn encode_object(&mut self, at: usize, usage: &mut UsageChange) {
        let touched = &self.objects[at];
        if !touched.changed {
            return;
        }
        let (ids, coll) = (self.inner.ids, self.coll.id);
        let key = keys::onode(coll, &touched.oid);
        let stored = |onode: Option<&Onode>| onode.map_or((0, 0), Onode::stored_and_compressed);
        let (now, before) = (stored(touched.now.as_ref()), stored(touched.before.as_deref()));
        usage.stored += now.0 as i64 - before.0 as i64;
        usage.packed_stored += now.1 as i64 - before.1 as i64;
        usage.objects += i64::from(touched.now.is_some()) - i64::from(touched.existed_before());
        match &touched.now {
            Some(onode) => {
                let mut value = Vec::with_capacity(256);
                onode.encode_into(&mut value);
                self.batch.put(ids, Family::Onodes, &key, &value);
            }
            None if touched.existed_before() => self.batch.delete(ids, Family::Onodes, &key),
            None => {}
        }
    }

    fn encode_omap(&mut self) {
        let ids = self.inner.ids;
        let full = |id: u64, key: &[u8]| [&id.to_be_bytes()[..], key].concat();
        for (id, change) in &self.omap {
            match change {
                OmapChange::Set(key, value) => self.batch.put(ids, Family::Omap, &full(*id, key), value),
                OmapChange::Remove(key) => self.batch.delete(ids, Family::Omap, &full(*id, key)),
                OmapChange::RemoveRange(first, last) => {
                    self.batch.delete_range(ids, Family::Omap, &full(*id, first), &full(*id, last));
                }
            }
        }
    }

    /// Log, metadata and the collection's own record. Can't fail. Log entries get their sequence number in
    /// [`Txn::install`].
    fn keep_books(&mut self, txn: &Transaction, mut exists: bool) -> bool {
        let (ids, coll) = (self.inner.ids, self.coll.id);
        for op in &txn.ops {
            match op {
                TxnOp::CreateCollection if !exists => {
                    self.batch.put(ids, Family::Collections, &keys::collection_record(coll), &[1, 1]);
                    exists = true;
                }
                TxnOp::RemoveCollection => {
                    while let Some(version) = self.coll.log.pop_first_up_to(super::LAST_VERSION) {
                        self.batch.single_delete(ids, Family::PgLog, &keys::log(coll, version));
                    }
                    for name in std::mem::take(&mut self.coll.meta).into_keys() {
                        self.batch.delete(ids, Family::Collections, &keys::collection_meta(coll, &name));
                    }
                    self.batch.delete(ids, Family::Collections, &keys::collection_record(coll));
                    exists = false;
                }
                TxnOp::MetaSet(values) => {
                    for (name, value) in values {
                        let key = keys::collection_meta(coll, name);
                        self.batch.put(ids, Family::Collections, &key, value);
                        let value = Bytes::copy_from_slice(value);
                        match self.coll.meta.get_mut(name) {
                            Some(slot) => *slot = value,
                            None => _ = self.coll.meta.insert(name.clone(), value),
                        }
                    }
                }
                TxnOp::MetaRm(names) => {
                    for name in names {
                        if self.coll.meta.remove(name).is_some() {
                            self.batch.delete(ids, Family::Collections, &keys::collection_meta(coll, name));
                        }
                    }
                }
                TxnOp::LogAppend(entries) => {
                    for (version, entry) in entries {
                        let key = keys::log(coll, *version);
                        if self.coll.log.append(*version, Bytes::copy_from_slice(entry)) {
                            // A single delete must match exactly one put.
                            self.batch.single_delete(ids, Family::PgLog, &key);
                        }
                        self.batch.put(ids, Family::PgLog, &key, entry);
                    }
                }
                TxnOp::LogTrim(to) => {
                    while let Some(version) = self.coll.log.pop_first_up_to(*to) {
                        self.batch.single_delete(ids, Family::PgLog, &keys::log(coll, version));
                    }
                }
                TxnOp::LogTruncate(to) => {
                    while let Some(version) = self.coll.log.pop_last_above(*to) {
                        self.batch.single_delete(ids, Family::PgLog, &keys::log(coll, version));
                    }
                }
                _ => {}
            }
        }
        exists
    }

    fn install(mut self, usage: UsageChange, exists: bool, on_commit: Option<Completion>) -> Result<i64> {
        let objects = self.coll.objects.saturating_add_signed(usage.objects);
        let collection = match (exists, self.coll.removed) {
            (true, false) if usage.objects == 0 => None,
            (true, _) => Some((self.coll.id, Some(objects))),
            (false, true) => None,
            (false, false) => Some((self.coll.id, None)),
        };
        let freed = std::mem::take(&mut self.freed);
        if is_early_reuse_enabled() {
            self.inner.release(freed.clone());
        }
        let queued = QueuedTxn {
            batch: std::mem::take(&mut self.batch),
            writes: std::mem::take(&mut self.writes),
            overwrites: std::mem::take(&mut self.overwrites),
            allocated: std::mem::take(&mut self.allocated),
            freed,
            pool: self.coll.id.pool,
            usage,
            collection,
            on_commit,
        };
        let seq = self.inner.queue.push(queued)?;
        self.installed = true;
        self.coll.log.assign_seq(seq);
        for (id, change) in &self.omap {
            self.coll.omaps.apply(*id, change, seq);
        }
        for (id, blob) in &self.shared {
            self.coll.shared.set(*id, *blob, seq);
        }
        self.coll.removed = !exists;
        let mut cache_bytes = 0;
        for touched in std::mem::take(&mut self.objects) {
            if !touched.changed {
                continue;
            }
            let (before, after) = (touched.existed_before(), touched.now.is_some());
            if before != after {
                self.coll.names.set(&touched.oid, after, seq);
                self.coll.objects =
                    self.coll.objects.saturating_add_signed(i64::from(after) - i64::from(before));
            }
            cache_bytes += self.coll.onodes.set(&touched.oid, touched.now.map(Arc::new), seq);
        }
        Ok(cache_bytes)
    }
}

/// Whether a transaction needs the versions of the log's entries.
fn touches_log(txn: &Transaction) -> bool {
    txn.ops.iter().any(|op| {
        matches!(
            op,
            TxnOp::LogAppend(_) | TxnOp::LogTrim(_) | TxnOp::LogTruncate(_) | TxnOp::RemoveCollection
        )
    })
}

impl TouchedObject {
    /// Whether the object existed when the transaction began.
    fn existed_before(&self) -> bool {
        self.before.is_some() || self.damaged
    }

    /// Whether the object exists at this point of the transaction, readable or not.
    fn exists(&self) -> bool {
        self.now.is_some() || self.unreadable.is_some()
    }
}

impl Drop for Txn<'_> {
    fn drop(&mut self) {
        if !self.installed && !self.allocated.is_empty() {
            self.inner.release(std::mem::take(&mut self.allocated));
        }
    }
}
