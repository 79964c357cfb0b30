//! Resolves a transaction into a record: checks everything that can fail, computes new records, checksums and steps, and
//! queues them. The collection is not changed before the record is queued. Copies are in [`copy`].

mod copy;

use super::collection::{Collection, NO_SEQ, ObjectEntry, PendingChange};
use super::db::{attr_key, omap_header_key, omap_key, sums_key};
use super::object::{Attr, BLOCK_BYTES, Object};
use super::queue::QueuedTxn;
use super::step::{Family, FileIndex, JournalRecord, Step, UsageChange};
use super::{ATTR_PREFIX, Inner, sys};
use crate::Completion;
use crate::blue::keys;
use crate::error::{Result, StoreError};
use bytes::Bytes;
use nacre_objectstore::admission::{self, range_end};
use nacre_types::crc32c::crc32c;
use nacre_types::ids::PgId;
use nacre_types::object::ObjectId;
use nacre_types::payload::Payload;
use nacre_types::txn::{Transaction, TxnOp};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// If more chunks of checksums than this are removed, a range deletion is used.
const MANY_CHUNKS: usize = 64;

/// An object with the changes of the transaction so far.
struct Draft {
    entry: ObjectEntry,
    /// Stored and allocated bytes before the transaction, or `None` if the object did not exist.
    before: Option<(u64, u64)>,
    changed: bool,
    omap_changed: bool,
    /// Changed chunks of checksums of the current incarnation.
    chunks: BTreeSet<u32>,
}

impl Draft {
    fn add(&mut self, change: PendingChange) {
        self.entry.pending.push((NO_SEQ, change));
    }
}

/// A transaction being resolved.
pub(super) struct TxnPlanner<'a> {
    inner: &'a Inner,
    collection: &'a mut Collection,
    id: PgId,
    exists: bool,
    meta_changed: bool,
    drafts: BTreeMap<ObjectId, Draft>,
    files: Vec<(ObjectId, u64)>,
    steps: Vec<Step>,
    clones: Vec<(u64, File)>,
}

impl<'a> TxnPlanner<'a> {
    pub(super) fn new(inner: &'a Inner, collection: &'a mut Collection) -> TxnPlanner<'a> {
        let (id, exists) = (collection.id, collection.exists);
        TxnPlanner {
            inner,
            collection,
            id,
            exists,
            meta_changed: false,
            drafts: BTreeMap::new(),
            files: Vec::new(),
            steps: Vec::new(),
            clones: Vec::new(),
        }
    }

    /// Resolves and queues `txn`. On an error nothing has changed.
    pub(super) fn run(
        mut self,
        txn: &Transaction,
        shared: Arc<Mutex<Collection>>,
        on_commit: Option<Completion>,
    ) -> Result<()> {
        let wanted_bytes = self.wanted_bytes(txn)?;
        self.inner.admit(wanted_bytes, admission::writes_no_data(txn))?;
        match self.resolve(txn).and_then(|()| self.record()) {
            Ok(record) => self.queue(record, shared, on_commit),
            Err(error) => {
                for (number, _) in &self.clones {
                    if let Err(error) = self.inner.backend.remove_clone(*number) {
                        tracing::debug!(%error, "filestore: a prepared clone stays until the next start");
                    }
                }
                Err(error)
            }
        }
    }

    /// Upper estimate of the space in bytes that the transaction takes.
    fn wanted_bytes(&mut self, txn: &Transaction) -> Result<u64> {
        let mut wanted = 0;
        for op in &txn.ops {
            wanted += match op {
                TxnOp::Write { data, .. } => (data.len() as u64).next_multiple_of(BLOCK_BYTES),
                TxnOp::CloneRange { from, len, .. } => {
                    self.allocated(from)?.min(len.next_multiple_of(BLOCK_BYTES))
                }
                TxnOp::Clone { from, .. } => self.allocated(from)?,
                _ => 0,
            };
        }
        Ok(wanted)
    }

    fn allocated(&mut self, oid: &ObjectId) -> Result<u64> {
        let object = self.inner.entry(self.collection, oid)?.and_then(|entry| entry.object.as_ref());
        Ok(object.map_or(0, Object::allocated_bytes))
    }

    fn resolve(&mut self, txn: &Transaction) -> Result<()> {
        for op in &txn.ops {
            if !self.exists && !matches!(op, TxnOp::CreateCollection) {
                return Err(StoreError::NoCollection(self.id));
            }
            match op {
                TxnOp::CreateCollection => self.create_collection(),
                TxnOp::RemoveCollection => self.remove_collection()?,
                TxnOp::Touch(oid) | TxnOp::AllocHint { oid, .. } => self.existing_or_new(oid).map(drop)?,
                TxnOp::Write { oid, offset, data } => {
                    range_end(oid, *offset, data.len() as u64)?;
                    self.existing_or_new(oid)?;
                    self.write(oid, *offset, data)?;
                }
                TxnOp::Zero { oid, offset, len } => {
                    range_end(oid, *offset, *len)?;
                    self.existing_or_new(oid)?;
                    self.zero(oid, *offset, *len)?;
                }
                TxnOp::Truncate { oid, size } => {
                    range_end(oid, *size, 0)?;
                    self.existing_or_new(oid)?;
                    self.truncate(oid, *size)?;
                }
                TxnOp::Remove(oid) => self.remove(oid)?,
                TxnOp::SetAttrs { oid, attrs } => {
                    self.existing_or_new(oid)?;
                    attrs.iter().for_each(|(name, value)| self.set_attr(oid, name, value));
                }
                TxnOp::RmAttr { oid, name } => {
                    if self.is_there(oid)? {
                        self.remove_attr(oid, name);
                    }
                }
                TxnOp::RmAttrs(oid) => {
                    if self.is_there(oid)? {
                        let object = self.drafts.get(oid).and_then(|draft| draft.entry.object.as_ref());
                        let names: Vec<_> = object
                            .iter()
                            .flat_map(|object| &object.attrs)
                            .map(|attr| attr.name.clone())
                            .collect();
                        names.iter().for_each(|name| self.remove_attr(oid, name));
                    }
                }
                TxnOp::OmapSet { oid, entries } => {
                    let number = self.change_omap(oid)?;
                    self.steps.extend(entries.iter().map(|(key, value)| Step::Put {
                        family: Family::Omap,
                        key: omap_key(number, key).into(),
                        value: value.clone(),
                    }));
                }
                TxnOp::OmapSetHeader { oid, header } => {
                    let number = self.change_omap(oid)?;
                    let key = omap_header_key(number).into();
                    self.steps.push(Step::Put { family: Family::Omap, key, value: header.clone() });
                }
                TxnOp::OmapRm { oid, keys } => {
                    if let Some(number) = self.omap_of(oid)? {
                        self.steps.extend(keys.iter().map(|key| Step::Delete {
                            family: Family::Omap,
                            key: omap_key(number, key).into(),
                        }));
                    }
                }
                TxnOp::OmapRmRange { oid, first, last } => {
                    if first < last
                        && let Some(number) = self.omap_of(oid)?
                    {
                        let (first, end) = (omap_key(number, first).into(), omap_key(number, last).into());
                        self.steps.push(Step::DeleteRange { family: Family::Omap, first, end });
                    }
                }
                TxnOp::OmapClear(oid) => {
                    if let Some(number) = self.omap_of(oid)? {
                        self.delete_number(Family::Omap, number);
                    }
                }
                TxnOp::Clone { from, to } => self.clone_object(from, to)?,
                TxnOp::CloneRange { from, to, from_offset, len, to_offset } => {
                    range_end(from, *from_offset, *len)?;
                    range_end(to, *to_offset, *len)?;
                    self.clone_range(from, to, *from_offset, *len, *to_offset)?;
                }
                TxnOp::Rename { from, to } => self.rename(from, to)?,
                TxnOp::MetaSet(values) => {
                    self.meta_changed = true;
                    self.steps.extend(values.iter().map(|(name, value)| Step::Put {
                        family: Family::Collections,
                        key: keys::collection_meta(self.id, name).into(),
                        value: value.clone(),
                    }));
                }
                TxnOp::MetaRm(names) => {
                    self.meta_changed = true;
                    self.steps.extend(names.iter().map(|name| Step::Delete {
                        family: Family::Collections,
                        key: keys::collection_meta(self.id, name).into(),
                    }));
                }
                TxnOp::LogAppend(entries) => {
                    self.meta_changed = true;
                    self.steps.extend(entries.iter().map(|(version, entry)| Step::Put {
                        family: Family::Log,
                        key: keys::log(self.id, *version).to_vec().into(),
                        value: entry.clone(),
                    }));
                }
                TxnOp::LogTrim(to) => {
                    self.meta_changed = true;
                    let first = keys::collection(self.id).to_vec().into();
                    // The key after the one of `to`.
                    let end = [&keys::log(self.id, *to)[..], &[0]].concat().into();
                    self.steps.push(Step::DeleteRange { family: Family::Log, first, end });
                }
                TxnOp::LogTruncate(to) => {
                    self.meta_changed = true;
                    let first = [&keys::log(self.id, *to)[..], &[0]].concat().into();
                    let end = keys::collection_end(self.id).into();
                    self.steps.push(Step::DeleteRange { family: Family::Log, first, end });
                }
            }
        }
        Ok(())
    }

    fn create_collection(&mut self) {
        if self.exists {
            return;
        }
        self.exists = true;
        self.meta_changed = true;
        self.steps.push(Step::MakeCollection);
        let key = keys::collection_record(self.id).into();
        self.steps.push(Step::Put { family: Family::Collections, key, value: Bytes::new() });
    }

    fn remove_collection(&mut self) -> Result<()> {
        let drafted = self.drafts.values().any(|draft| draft.entry.object.is_some());
        let gone = |oid: &ObjectId| self.drafts.get(oid).is_some_and(|draft| draft.entry.object.is_none());
        let mut others =
            self.inner.list(self.collection, &min_object_id(), None, self.drafts.len() + 1)?.entries;
        others.retain(|oid| !gone(oid));
        if drafted || !others.is_empty() {
            return Err(StoreError::NotEmpty(self.id));
        }
        self.exists = false;
        self.meta_changed = true;
        let (first, end) = (keys::collection(self.id).to_vec(), keys::collection_end(self.id));
        for family in [Family::Log, Family::Collections] {
            let (first, end) = (first.clone().into(), end.clone().into());
            self.steps.push(Step::DeleteRange { family, first, end });
        }
        self.steps.push(Step::RemoveCollection);
        Ok(())
    }

    /// The draft of an object. It is loaded if the transaction has not used the object before.
    fn draft(&mut self, oid: &ObjectId) -> Result<&mut Draft> {
        if !self.drafts.contains_key(oid) {
            let entry = self.inner.entry(self.collection, oid)?.cloned().unwrap_or_default();
            let before = entry.object.as_ref().map(|object| (object.stored_bytes, object.allocated_bytes()));
            let draft = Draft { entry, before, changed: false, omap_changed: false, chunks: BTreeSet::new() };
            self.drafts.insert(oid.clone(), draft);
        }
        Ok(self.known(oid))
    }

    /// The draft of an object that has one.
    fn known(&mut self, oid: &ObjectId) -> &mut Draft {
        self.drafts.get_mut(oid).expect("invariant: drafted before")
    }

    /// The object of a draft that has one.
    fn object(&mut self, oid: &ObjectId) -> &mut Object {
        self.known(oid).entry.object.as_mut().expect("invariant: created before")
    }

    fn is_there(&mut self, oid: &ObjectId) -> Result<bool> {
        Ok(self.draft(oid)?.entry.object.is_some())
    }

    /// Marks the object as changed and returns its number. Creates the object if it does not exist.
    fn existing_or_new(&mut self, oid: &ObjectId) -> Result<u64> {
        let draft = self.draft(oid)?;
        draft.changed = true;
        if let Some(object) = &draft.entry.object {
            return Ok(object.number);
        }
        let number = self.new_number();
        let draft = self.known(oid);
        draft.entry.object = Some(Object::new(number));
        draft.entry.pending.clear();
        draft.add(PendingChange::Fresh);
        draft.chunks.clear();
        let file = self.file(oid, number);
        self.steps.push(Step::Create(file));
        Ok(number)
    }

    fn new_number(&self) -> u64 {
        self.inner.next_number.fetch_add(1, Ordering::Relaxed)
    }

    fn file(&mut self, oid: &ObjectId, number: u64) -> FileIndex {
        let known = self.files.iter().position(|(have, its)| its == &number && have == oid);
        known.unwrap_or_else(|| {
            self.files.push((oid.clone(), number));
            self.files.len() - 1
        }) as FileIndex
    }

    /// The file of an existing object.
    fn own_file(&mut self, oid: &ObjectId) -> FileIndex {
        let number = self.object(oid).number;
        self.file(oid, number)
    }

    fn delete_number(&mut self, family: Family, number: u64) {
        let (first, end) = (keys::id(number).to_vec().into(), keys::id(number + 1).to_vec().into());
        self.steps.push(Step::DeleteRange { family, first, end });
    }

    /// Loads the checksums of a range and of the current last block.
    fn load(&mut self, oid: &ObjectId, offset: u64, end: u64) -> Result<()> {
        let db = &self.inner.backend.db;
        let object = self.drafts.get_mut(oid).and_then(|draft| draft.entry.object.as_mut());
        let object = object.expect("invariant: created before");
        let size = object.size;
        object.load_sums(db, oid, offset, end)?;
        object.load_sums(db, oid, size.saturating_sub(1), size)
    }

    /// The current contents of a block, verified. Its checksum must be loaded.
    fn block(&mut self, oid: &ObjectId, block: u64) -> Result<Vec<u8>> {
        let entry = &self.drafts.get(oid).expect("invariant: drafted before").entry;
        let object = entry.object.as_ref().expect("invariant: created before");
        let first = block * BLOCK_BYTES;
        if object.sum(block).is_none() {
            return Ok(vec![0; BLOCK_BYTES as usize]);
        }
        self.inner.read_blocks(self.id, oid, object, &entry.pending, first, first + BLOCK_BYTES)
    }

    fn set_sum(&mut self, oid: &ObjectId, block: u64, sum: Option<u32>) {
        let draft = self.known(oid);
        let object = draft.entry.object.as_mut().expect("invariant: created before");
        let chunk = object.set_sum(block, sum);
        draft.chunks.insert(chunk);
    }

    fn write(&mut self, oid: &ObjectId, offset: u64, data: &Payload) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let end = offset + data.len() as u64;
        self.load(oid, offset, end)?;
        let mut sums = Vec::with_capacity(data.len() / BLOCK_BYTES as usize + 2);
        let known = if offset.is_multiple_of(BLOCK_BYTES) { data.checksums() } else { None };
        let mut at = offset;
        while at < end {
            let block = at / BLOCK_BYTES;
            let to = ((block + 1) * BLOCK_BYTES).min(end);
            let part = &data[(at - offset) as usize..(to - offset) as usize];
            let sum = if part.len() as u64 == BLOCK_BYTES {
                known.map_or_else(|| crc32c(part), |sums| sums[((at - offset) / BLOCK_BYTES) as usize])
            } else {
                let mut whole = self.block(oid, block)?;
                whole[(at % BLOCK_BYTES) as usize..][..part.len()].copy_from_slice(part);
                crc32c(&whole)
            };
            sums.push((block, sum));
            at = to;
        }
        sums.into_iter().for_each(|(block, sum)| self.set_sum(oid, block, Some(sum)));
        let object = self.object(oid);
        object.set_size(object.size.max(end));
        let file = self.own_file(oid);
        self.steps.push(Step::Write { file, offset, data: data.clone() });
        self.known(oid).add(PendingChange::Write(offset, data.bytes().clone()));
        Ok(())
    }

    fn zero(&mut self, oid: &ObjectId, offset: u64, len: u64) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let end = offset + len;
        self.load(oid, offset, end)?;
        self.drop_blocks(oid, offset, end)?;
        let size = self.object(oid).size;
        let file = self.own_file(oid);
        if offset < size {
            let len = end.min(size) - offset;
            self.steps.push(Step::Zero { file, offset, len });
            self.known(oid).add(PendingChange::Zero(offset, len));
        }
        if end > size {
            self.steps.push(Step::SetLen { file, size: end });
            self.known(oid).add(PendingChange::SetLen(end));
        }
        self.object(oid).set_size(size.max(end));
        Ok(())
    }

    fn truncate(&mut self, oid: &ObjectId, size: u64) -> Result<()> {
        let old = self.object(oid).size;
        self.load(oid, size.min(old), old)?;
        if size < old {
            self.drop_blocks(oid, size, old.next_multiple_of(BLOCK_BYTES))?;
        }
        self.object(oid).set_size(size);
        let file = self.own_file(oid);
        self.steps.push(Step::SetLen { file, size });
        self.known(oid).add(PendingChange::SetLen(size));
        Ok(())
    }

    /// Updates the checksums for a range that becomes zero. Whole blocks become holes. Checksums must be loaded.
    fn drop_blocks(&mut self, oid: &ObjectId, offset: u64, end: u64) -> Result<()> {
        let behind = self.object(oid).size.next_multiple_of(BLOCK_BYTES);
        let mut at = offset;
        while at < end.min(behind) {
            let block = at / BLOCK_BYTES;
            let to = ((block + 1) * BLOCK_BYTES).min(end);
            if self.object(oid).sum(block).is_some() {
                let sum = if to - at == BLOCK_BYTES {
                    None
                } else {
                    let mut whole = self.block(oid, block)?;
                    whole[(at % BLOCK_BYTES) as usize..][..(to - at) as usize].fill(0);
                    Some(crc32c(&whole))
                };
                self.set_sum(oid, block, sum);
            }
            at = to;
        }
        Ok(())
    }

    fn remove(&mut self, oid: &ObjectId) -> Result<()> {
        let draft = match self.draft(oid) {
            Err(error) if error.is_damage() => {
                // It is unknown what belongs to the object. A check finds the file.
                let (entry, before) = (ObjectEntry::default(), Some((0, 0)));
                let draft =
                    Draft { entry, before, changed: true, omap_changed: true, chunks: BTreeSet::new() };
                self.drafts.insert(oid.clone(), draft);
                return Ok(());
            }
            other => other?,
        };
        let Some(object) = draft.entry.object.take() else { return Ok(()) };
        draft.changed = true;
        draft.entry.pending.clear();
        // Chunks that this transaction has removed may still be in the database.
        let gone = std::mem::take(&mut draft.chunks);
        if object.has_omap {
            draft.omap_changed = true;
            self.delete_number(Family::Omap, object.number);
        }
        let chunks: BTreeSet<u32> = object.checksum_chunks().take(MANY_CHUNKS + 1).chain(gone).collect();
        if chunks.len() > MANY_CHUNKS {
            self.delete_number(Family::Sums, object.number);
        } else {
            self.steps.extend(chunks.into_iter().map(|chunk| Step::Delete {
                family: Family::Sums,
                key: sums_key(object.number, chunk).into(),
            }));
        }
        for attr in &object.attrs {
            // The value may be in the database although the attribute is stored with the file, because it did not fit there.
            let key = attr_key(object.number, &attr.name).into();
            self.steps.push(Step::Delete { family: Family::Attrs, key });
        }
        let file = self.file(oid, object.number);
        self.steps.push(Step::Unlink(file));
        Ok(())
    }

    fn set_attr(&mut self, oid: &ObjectId, name: &str, value: &Bytes) {
        let limits = self.inner.backend.xattrs;
        let object = self.object(oid);
        let number = object.number;
        let place = object.attrs.binary_search_by(|attr| (*attr.name).cmp(name));
        let was_inline = place.is_ok_and(|at| object.attrs[at].inline);
        let inline_now = object.attrs.iter().filter(|attr| attr.inline).count();
        let xattr = format!("{ATTR_PREFIX}{name}");
        let fits = value.len() <= limits.max_bytes && sys::is_xattr_name(&xattr);
        let inline = fits && (was_inline || inline_now < limits.max_count);
        // Copied, because the value is kept and may be a slice of a large buffer.
        let kept = Bytes::copy_from_slice(value);
        let attr = Attr { name: name.into(), crc: crc32c(value), value: Some(kept.clone()), inline };
        match place {
            Ok(at) => object.attrs[at] = attr,
            Err(at) => object.attrs.insert(at, attr),
        }
        let file = self.own_file(oid);
        let key = Bytes::from(attr_key(number, name));
        if inline {
            if place.is_ok() && !was_inline {
                self.steps.push(Step::Delete { family: Family::Attrs, key });
            }
            self.steps.push(Step::SetXattr { file, name: xattr, value: kept });
        } else {
            if was_inline {
                self.steps.push(Step::RemoveXattr { file, name: xattr });
            }
            self.steps.push(Step::Put { family: Family::Attrs, key, value: kept });
        }
    }

    fn remove_attr(&mut self, oid: &ObjectId, name: &str) {
        let draft = self.known(oid);
        draft.changed = true;
        let object = draft.entry.object.as_mut().expect("invariant: the caller has looked");
        let Ok(at) = object.attrs.binary_search_by(|attr| (*attr.name).cmp(name)) else { return };
        let number = object.number;
        let attr = object.attrs.remove(at);
        if attr.inline {
            let file = self.own_file(oid);
            self.steps.push(Step::RemoveXattr { file, name: format!("{ATTR_PREFIX}{name}") });
        }
        self.steps.push(Step::Delete { family: Family::Attrs, key: attr_key(number, name).into() });
    }

    /// Marks the omap as existing and changed, and returns the object's number. Creates the object if it does not exist.
    fn change_omap(&mut self, oid: &ObjectId) -> Result<u64> {
        let number = self.existing_or_new(oid)?;
        self.object(oid).has_omap = true;
        self.known(oid).omap_changed = true;
        Ok(number)
    }

    /// Marks the omap as changed and returns the object's number, or `None` if the object has no omap.
    fn omap_of(&mut self, oid: &ObjectId) -> Result<Option<u64>> {
        let draft = self.draft(oid)?;
        let Some(object) = draft.entry.object.as_ref().filter(|object| object.has_omap) else {
            return Ok(None);
        };
        let number = object.number;
        draft.changed = true;
        draft.omap_changed = true;
        Ok(Some(number))
    }

    /// Builds the record of the transaction. Fails if it can't be journalled.
    fn record(&mut self) -> Result<JournalRecord> {
        let mut usage = UsageChange::default();
        let mut puts = Vec::new();
        for (oid, draft) in self.drafts.iter().filter(|(_, draft)| draft.changed) {
            let key = Bytes::from(keys::onode(self.id, oid));
            let (stored, allocated) = draft.before.unwrap_or_default();
            usage.stored -= stored as i64;
            usage.allocated -= allocated as i64;
            usage.objects -= i64::from(draft.before.is_some());
            let Some(object) = &draft.entry.object else {
                if draft.before.is_some() {
                    puts.push(Step::Delete { family: Family::Objects, key });
                }
                continue;
            };
            usage.stored += object.stored_bytes as i64;
            usage.allocated += object.allocated_bytes() as i64;
            usage.objects += 1;
            puts.push(Step::Put { family: Family::Objects, key, value: object.encode() });
            for chunk in &draft.chunks {
                let key = Bytes::from(sums_key(object.number, *chunk));
                puts.push(match object.encode_checksum_chunk(*chunk) {
                    Some(value) => Step::Put { family: Family::Sums, key, value },
                    None => Step::Delete { family: Family::Sums, key },
                });
            }
        }
        self.steps.extend(puts);
        let record = JournalRecord {
            coll: self.id,
            files: std::mem::take(&mut self.files),
            steps: std::mem::take(&mut self.steps),
            usage,
            next_number: self.inner.next_number.load(Ordering::Relaxed),
        };
        if record.bytes() > self.inner.journal.max_entry() {
            return Err(StoreError::Invalid(
                "the transaction is larger than half the journal (osd_journal_size)",
            ));
        }
        Ok(record)
    }

    fn queue(
        mut self,
        record: JournalRecord,
        shared: Arc<Mutex<Collection>>,
        on_commit: Option<Completion>,
    ) -> Result<()> {
        let changed = |(oid, draft): (&ObjectId, &Draft)| draft.changed.then(|| oid.clone());
        let usage = record.usage;
        let queued = QueuedTxn {
            seq: 0,
            bytes: record.bytes(),
            record,
            collection: shared,
            touched: self.drafts.iter().filter_map(changed).collect(),
            clones: std::mem::take(&mut self.clones).into_iter().map(|(_, file)| file).collect(),
            on_commit,
        };
        let seq = self.inner.queue.push(queued, self.id.pool, usage)?;
        for (oid, mut draft) in std::mem::take(&mut self.drafts) {
            if !draft.changed && draft.entry.object.is_none() {
                // The draft contains no change, and an absent object without pending changes needs no entry.
                continue;
            }
            if draft.changed {
                for (number, _) in &mut draft.entry.pending {
                    *number = (*number).min(seq);
                }
                draft.entry.last_seq = seq;
                if draft.omap_changed {
                    draft.entry.omap_seq = seq;
                }
            }
            self.collection.entries.insert(oid, draft.entry);
        }
        self.collection.exists = self.exists;
        if self.meta_changed {
            self.collection.meta_seq = seq;
        }
        Ok(())
    }
}

/// A lower bound of all object ids.
pub(super) fn min_object_id() -> ObjectId {
    ObjectId::min_at_hash(nacre_types::ids::PoolId(i64::MIN), 0)
}
