//! One PG's objects, log and metadata in memory, and how a transaction changes them.
//!
//! [`Collection::check`] detects everything that can fail. [`Collection::apply`] can't fail after it.

use super::cost::{btree_entry, buffer_bytes, heap_bytes};
use super::data::Data;
use crate::admission::range_end;
use crate::error::{Result, StoreError};
use crate::{Page, PoolUsage};
use bytes::Bytes;
use nacre_types::ids::{Eversion, PgId};
use nacre_types::object::ObjectId;
use nacre_types::txn::{Transaction, TxnOp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound;

/// Attributes, omap and data of one object.
#[derive(Clone, Debug, Default)]
pub(super) struct Object {
    pub(super) data: Data,
    attrs: Vec<(Box<str>, Bytes)>,
    omap: Option<Box<Omap>>,
    /// Bytes that the whole object takes, including its key in the object map, as last counted.
    cost: u64,
}

#[derive(Clone, Debug, Default)]
struct Omap {
    header: Bytes,
    entries: BTreeMap<Bytes, Bytes>,
    /// Bytes that the entries take, without the header.
    cost: u64,
}

/// A PG's contents.
#[derive(Debug)]
pub(super) struct Collection {
    id: PgId,
    objects: BTreeMap<ObjectId, Object>,
    meta: BTreeMap<String, Bytes>,
    log: BTreeMap<Eversion, Bytes>,
    cost: u64,
    usage: PoolUsage,
    removed: bool,
}

/// The saved form of an object.
#[derive(Serialize, Deserialize)]
pub(super) struct SavedObject {
    oid: ObjectId,
    size: u64,
    parts: Vec<(u64, Bytes)>,
    attrs: Vec<(String, Bytes)>,
    omap_header: Option<Bytes>,
    omap: Vec<(Bytes, Bytes)>,
}

impl SavedObject {
    /// Whether the parts lie within the object, are in order and do not overlap.
    pub(super) fn is_sound(&self) -> bool {
        let mut end = 0;
        self.size <= crate::MAX_OBJECT_BYTES
            && self.parts.iter().all(|(at, bytes)| {
                let sound = *at >= end && !bytes.is_empty();
                end = at.saturating_add(bytes.len() as u64);
                sound && end <= self.size
            })
    }
}

fn omap_cost(key: &Bytes, value: &Bytes) -> u64 {
    btree_entry(2 * size_of::<Bytes>()) + buffer_bytes(key.len()) + buffer_bytes(value.len())
}

fn log_cost(entry: &Bytes) -> u64 {
    btree_entry(size_of::<Eversion>() + size_of::<Bytes>()) + buffer_bytes(entry.len())
}

fn meta_cost(name: &str, value: &Bytes) -> u64 {
    btree_entry(size_of::<String>() + size_of::<Bytes>()) + heap_bytes(name.len()) + buffer_bytes(value.len())
}

/// Tracks which objects exist while the ops of a transaction are checked. A transaction changes few objects.
struct Existence<'a> {
    before: &'a BTreeMap<ObjectId, Object>,
    changed: Vec<(&'a ObjectId, bool)>,
    count: i64,
}

impl<'a> Existence<'a> {
    fn there(&self, oid: &ObjectId) -> bool {
        let changed = self.changed.iter().rev().find(|(have, _)| *have == oid);
        changed.map_or_else(|| self.before.contains_key(oid), |(_, now)| *now)
    }

    fn set(&mut self, oid: &'a ObjectId, now: bool) {
        self.count += i64::from(now) - i64::from(self.there(oid));
        self.changed.push((oid, now));
    }
}

/// Copies `bytes`, which may be a slice of a large receive buffer.
fn own(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

impl Object {
    pub(super) fn has_omap(&self) -> bool {
        self.omap.is_some()
    }

    pub(super) fn attr(&self, name: &str) -> Option<Bytes> {
        let at = self.attrs.binary_search_by(|(have, _)| (**have).cmp(name)).ok()?;
        Some(self.attrs[at].1.clone())
    }

    pub(super) fn attrs(&self) -> Vec<(String, Bytes)> {
        self.attrs.iter().map(|(name, value)| (name.to_string(), value.clone())).collect()
    }

    pub(super) fn omap_header(&self) -> Bytes {
        self.omap.as_ref().map(|omap| omap.header.clone()).unwrap_or_default()
    }

    pub(super) fn omap_get(&self, keys: &[Bytes]) -> Vec<(Bytes, Bytes)> {
        let Some(omap) = &self.omap else { return Vec::new() };
        keys.iter().filter_map(|key| Some((key.clone(), omap.entries.get(key)?.clone()))).collect()
    }

    pub(super) fn omap_page<T>(
        &self,
        start_after: Option<&[u8]>,
        prefix: &[u8],
        max: usize,
        max_bytes: usize,
        make: impl Fn(&Bytes, &Bytes) -> (T, usize),
    ) -> Page<T> {
        let mut page = Page { entries: Vec::new(), more: false };
        let Some(omap) = &self.omap else { return page };
        let start = match start_after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let mut bytes = 0;
        for (key, value) in omap.entries.range::<[u8], _>((start, Bound::Unbounded)) {
            if !key.starts_with(prefix) {
                break;
            }
            let (entry, entry_bytes) = make(key, value);
            if page.entries.len() >= max || (!page.entries.is_empty() && bytes + entry_bytes > max_bytes) {
                page.more = true;
                break;
            }
            bytes += entry_bytes;
            page.entries.push(entry);
        }
        page
    }

    fn set_attr(&mut self, name: &str, value: &Bytes) {
        match self.attrs.binary_search_by(|(have, _)| (**have).cmp(name)) {
            Ok(at) => self.attrs[at].1 = own(value),
            Err(at) => self.attrs.insert(at, (name.into(), own(value))),
        }
    }

    /// Bytes of everything but the key in the object map.
    fn contents_cost(&self) -> u64 {
        let attrs: u64 =
            self.attrs.iter().map(|(name, value)| heap_bytes(name.len()) + buffer_bytes(value.len())).sum();
        let omap = self
            .omap
            .as_ref()
            .map_or(0, |omap| heap_bytes(size_of::<Omap>()) + buffer_bytes(omap.header.len()) + omap.cost);
        self.data.memory_bytes()
            + attrs
            + heap_bytes(self.attrs.capacity() * size_of::<(Box<str>, Bytes)>())
            + omap
    }
}

fn key_cost(oid: &ObjectId) -> u64 {
    let text = oid.namespace().len() + oid.locator().len() + oid.name().len();
    // The shared text of the name is preceded by two reference counters.
    btree_entry(size_of::<ObjectId>() + size_of::<Object>()) + heap_bytes(text + 16)
}

impl Collection {
    pub(super) fn new(id: PgId) -> Collection {
        Collection {
            id,
            objects: BTreeMap::new(),
            meta: BTreeMap::new(),
            log: BTreeMap::new(),
            cost: heap_bytes(size_of::<Collection>() + 64),
            usage: PoolUsage::default(),
            removed: false,
        }
    }

    pub(super) fn id(&self) -> PgId {
        self.id
    }

    /// Bytes of memory that the collection takes.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.cost
    }

    pub(super) fn usage(&self) -> PoolUsage {
        self.usage
    }

    pub(super) fn is_removed(&self) -> bool {
        self.removed
    }

    pub(super) fn object(&self, oid: &ObjectId) -> Result<&Object> {
        if self.removed {
            return Err(StoreError::NoCollection(self.id));
        }
        self.objects.get(oid).ok_or_else(|| StoreError::NotFound(oid.clone()))
    }

    pub(super) fn meta(&self) -> Vec<(String, Bytes)> {
        self.meta.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    pub(super) fn log_after(&self, after: Eversion, max: usize) -> Vec<(Eversion, Bytes)> {
        let range = (Bound::Excluded(after), Bound::Unbounded);
        self.log.range(range).take(max).map(|(version, entry)| (*version, entry.clone())).collect()
    }

    pub(super) fn list(&self, from: &ObjectId, to: Option<&ObjectId>, max: usize) -> Page<ObjectId> {
        if to.is_some_and(|to| to <= from) {
            return Page { entries: Vec::new(), more: false };
        }
        let end = to.map_or(Bound::Unbounded, Bound::Excluded);
        let mut range = self.objects.range((Bound::Included(from), end)).map(|(oid, _)| oid.clone());
        let entries: Vec<_> = range.by_ref().take(max).collect();
        Page { entries, more: range.next().is_some() }
    }

    /// Checks whether `txn` can be applied. `exists` tells whether the collection exists before it.
    pub(super) fn check<'a>(&'a self, txn: &'a Transaction, mut exists: bool) -> Result<()> {
        let mut objects =
            Existence { before: &self.objects, changed: Vec::new(), count: self.objects.len() as i64 };
        for op in &txn.ops {
            if !exists && !matches!(op, TxnOp::CreateCollection) {
                return Err(StoreError::NoCollection(self.id));
            }
            match op {
                TxnOp::CreateCollection => exists = true,
                TxnOp::RemoveCollection => {
                    if objects.count > 0 {
                        return Err(StoreError::NotEmpty(self.id));
                    }
                    exists = false;
                }
                TxnOp::Write { oid, offset, data } => {
                    range_end(oid, *offset, data.len() as u64)?;
                    objects.set(oid, true);
                }
                TxnOp::Zero { oid, offset, len } => {
                    range_end(oid, *offset, *len)?;
                    objects.set(oid, true);
                }
                TxnOp::Truncate { oid, size } => {
                    range_end(oid, *size, 0)?;
                    objects.set(oid, true);
                }
                TxnOp::Touch(oid)
                | TxnOp::SetAttrs { oid, .. }
                | TxnOp::OmapSet { oid, .. }
                | TxnOp::OmapSetHeader { oid, .. }
                | TxnOp::AllocHint { oid, .. } => objects.set(oid, true),
                TxnOp::Remove(oid) => objects.set(oid, false),
                TxnOp::Clone { from, to } => {
                    if !objects.there(from) {
                        return Err(StoreError::NotFound(from.clone()));
                    }
                    objects.set(to, true);
                }
                TxnOp::CloneRange { from, to, from_offset, len, to_offset } => {
                    if !objects.there(from) {
                        return Err(StoreError::NotFound(from.clone()));
                    }
                    range_end(from, *from_offset, *len)?;
                    range_end(to, *to_offset, *len)?;
                    objects.set(to, true);
                }
                TxnOp::Rename { from, to } => {
                    if !objects.there(from) {
                        return Err(StoreError::NotFound(from.clone()));
                    }
                    objects.set(from, false);
                    objects.set(to, true);
                }
                TxnOp::RmAttr { .. }
                | TxnOp::RmAttrs(_)
                | TxnOp::OmapRm { .. }
                | TxnOp::OmapRmRange { .. }
                | TxnOp::OmapClear(_)
                | TxnOp::MetaSet(_)
                | TxnOp::MetaRm(_)
                | TxnOp::LogAppend(_)
                | TxnOp::LogTrim(_)
                | TxnOp::LogTruncate(_) => {}
            }
        }
        Ok(())
    }

    /// Upper estimate of the memory in bytes that `txn` will take, except for gaps inside windows.
    pub(super) fn estimate_memory(&self, txn: &Transaction) -> u64 {
        let object = |oid: &ObjectId| if self.objects.contains_key(oid) { 0 } else { key_cost(oid) };
        let cost = |op: &TxnOp| match op {
            TxnOp::Touch(oid) => object(oid),
            TxnOp::Write { oid, data, .. } => object(oid) + heap_bytes(data.len()) + 64,
            TxnOp::SetAttrs { oid, attrs } => {
                object(oid)
                    + attrs
                        .iter()
                        .map(|(name, value)| heap_bytes(name.len()) + buffer_bytes(value.len()) + 64)
                        .sum::<u64>()
            }
            TxnOp::OmapSet { oid, entries } => {
                object(oid) + entries.iter().map(|(key, value)| omap_cost(key, value)).sum::<u64>()
            }
            TxnOp::OmapSetHeader { oid, header } => object(oid) + buffer_bytes(header.len()),
            TxnOp::Clone { from, .. } => self.objects.get(from).map_or(0, |object| object.cost),
            TxnOp::CloneRange { to, len, .. } => object(to) + heap_bytes(*len as usize),
            TxnOp::MetaSet(values) => values.iter().map(|(name, value)| meta_cost(name, value)).sum(),
            TxnOp::LogAppend(entries) => entries.iter().map(|(_, entry)| log_cost(entry)).sum(),
            _ => 0,
        };
        txn.ops.iter().map(cost).sum()
    }

    /// Applies a transaction that [`Collection::check`] has passed. Returns whether the collection exists afterwards.
    pub(super) fn apply(&mut self, txn: &Transaction, mut exists: bool) -> bool {
        for op in &txn.ops {
            match op {
                TxnOp::CreateCollection => {
                    exists = true;
                    self.removed = false;
                }
                TxnOp::RemoveCollection => {
                    *self = Collection::new(self.id);
                    self.removed = true;
                    exists = false;
                }
                TxnOp::Touch(oid) | TxnOp::AllocHint { oid, .. } => self.change(oid, |_| {}),
                TxnOp::Write { oid, offset, data } => self.change(oid, |object| {
                    if !data.is_empty() {
                        object.data.write(*offset, data.bytes());
                    }
                }),
                TxnOp::Zero { oid, offset, len } => self.change(oid, |object| {
                    if *len > 0 {
                        object.data.zero(*offset, *len);
                    }
                }),
                TxnOp::Truncate { oid, size } => self.change(oid, |object| object.data.truncate(*size)),
                TxnOp::Remove(oid) => {
                    if let Some(object) = self.objects.remove(oid) {
                        self.forget(&object);
                    }
                }
                TxnOp::SetAttrs { oid, attrs } => self.change(oid, |object| {
                    attrs.iter().for_each(|(name, value)| object.set_attr(name, value));
                }),
                TxnOp::RmAttr { oid, name } => self.change_existing(oid, |object| {
                    object.attrs.retain(|(have, _)| **have != **name);
                }),
                TxnOp::RmAttrs(oid) => self.change_existing(oid, |object| object.attrs = Vec::new()),
                TxnOp::OmapSet { oid, entries } => self.change(oid, |object| {
                    let omap = object.omap.get_or_insert_default();
                    for (key, value) in entries {
                        omap.cost += omap_cost(key, value);
                        match omap.entries.entry(own(key)) {
                            Entry::Vacant(slot) => _ = slot.insert(own(value)),
                            Entry::Occupied(mut slot) => {
                                let old = slot.insert(own(value));
                                omap.cost -= omap_cost(key, &old);
                            }
                        }
                    }
                }),
                TxnOp::OmapRm { oid, keys } => self.change_existing(oid, |object| {
                    let Some(omap) = &mut object.omap else { return };
                    for key in keys {
                        if let Some(old) = omap.entries.remove(key) {
                            omap.cost -= omap_cost(key, &old);
                        }
                    }
                }),
                TxnOp::OmapRmRange { oid, first, last } => self.change_existing(oid, |object| {
                    let Some(omap) = &mut object.omap else { return };
                    if first >= last {
                        return;
                    }
                    let mut tail = omap.entries.split_off(first);
                    let mut kept = tail.split_off(last);
                    omap.cost -= tail.iter().map(|(key, value)| omap_cost(key, value)).sum::<u64>();
                    omap.entries.append(&mut kept);
                }),
                TxnOp::OmapClear(oid) => self.change_existing(oid, |object| object.omap = None),
                TxnOp::OmapSetHeader { oid, header } => self.change(oid, |object| {
                    object.omap.get_or_insert_default().header = own(header);
                }),
                TxnOp::Clone { from, to } => {
                    let copy = self.objects.get(from).cloned();
                    let copy = copy.expect("invariant: check() found the source");
                    if from != to {
                        self.change(to, |object| {
                            let cost = object.cost;
                            *object = copy;
                            object.cost = cost;
                        });
                    }
                }
                TxnOp::CloneRange { from, to, from_offset, len, to_offset } => {
                    let source = &self.objects.get(from).expect("invariant: check() found the source").data;
                    let len = (*len).min(source.size().saturating_sub(*from_offset));
                    let parts = source.parts(*from_offset, len);
                    self.change(to, |object| {
                        if len > 0 {
                            object.data.zero(*to_offset, len);
                        }
                        for (at, bytes) in parts {
                            object.data.write(at - from_offset + to_offset, &own(&bytes));
                        }
                    });
                }
                TxnOp::Rename { from, to } => {
                    let object = self.objects.remove(from).expect("invariant: check() found the source");
                    self.forget(&object);
                    self.change(to, |slot| {
                        let cost = slot.cost;
                        *slot = object;
                        slot.cost = cost;
                    });
                }
                TxnOp::MetaSet(values) => {
                    for (name, value) in values {
                        self.cost += meta_cost(name, value);
                        if let Some(old) = self.meta.insert(name.clone(), own(value)) {
                            self.cost -= meta_cost(name, &old);
                        }
                    }
                }
                TxnOp::MetaRm(names) => {
                    for name in names {
                        if let Some(old) = self.meta.remove(name) {
                            self.cost -= meta_cost(name, &old);
                        }
                    }
                }
                TxnOp::LogAppend(entries) => {
                    for (version, entry) in entries {
                        self.cost += log_cost(entry);
                        if let Some(old) = self.log.insert(*version, own(entry)) {
                            self.cost -= log_cost(&old);
                        }
                    }
                }
                TxnOp::LogTrim(to) => {
                    while let Some(first) = self.log.first_entry().filter(|first| first.key() <= to) {
                        self.cost -= log_cost(&first.remove());
                    }
                }
                TxnOp::LogTruncate(to) => {
                    while let Some(last) = self.log.last_entry().filter(|last| last.key() > to) {
                        self.cost -= log_cost(&last.remove());
                    }
                }
            }
        }
        exists
    }

    /// Changes an object, and creates it if it does not exist.
    fn change(&mut self, oid: &ObjectId, f: impl FnOnce(&mut Object)) {
        let object = match self.objects.entry(oid.clone()) {
            Entry::Vacant(slot) => {
                self.usage.objects += 1;
                slot.insert(Object::default())
            }
            Entry::Occupied(slot) => slot.into_mut(),
        };
        let stored = object.data.stored_bytes();
        f(object);
        let cost = key_cost(oid) + object.contents_cost();
        self.cost = self.cost + cost - object.cost;
        self.usage.allocated_bytes = self.usage.allocated_bytes + cost - object.cost;
        self.usage.stored_bytes = self.usage.stored_bytes + object.data.stored_bytes() - stored;
        object.cost = cost;
    }

    fn change_existing(&mut self, oid: &ObjectId, f: impl FnOnce(&mut Object)) {
        if self.objects.contains_key(oid) {
            self.change(oid, f);
        }
    }

    /// Subtracts a removed object from the totals.
    fn forget(&mut self, object: &Object) {
        self.cost -= object.cost;
        self.usage.objects -= 1;
        self.usage.allocated_bytes -= object.cost;
        self.usage.stored_bytes -= object.data.stored_bytes();
    }

    /// The saved form of metadata and log, with the number of objects.
    pub(super) fn save_header(&self) -> (PgId, &BTreeMap<String, Bytes>, &BTreeMap<Eversion, Bytes>, u64) {
        (self.id, &self.meta, &self.log, self.objects.len() as u64)
    }

    /// The saved form of the objects.
    pub(super) fn save_objects(&self) -> impl Iterator<Item = SavedObject> + '_ {
        self.objects.iter().map(|(oid, object)| SavedObject {
            oid: oid.clone(),
            size: object.data.size(),
            parts: object.data.parts(0, object.data.size()),
            attrs: object.attrs(),
            omap_header: object.omap.as_ref().map(|omap| omap.header.clone()),
            omap: object
                .omap
                .iter()
                .flat_map(|omap| &omap.entries)
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
        })
    }

    /// Restores a saved object.
    pub(super) fn load_object(&mut self, saved: SavedObject) {
        self.change(&saved.oid, |object| {
            for (at, bytes) in &saved.parts {
                object.data.write(*at, bytes);
            }
            object.data.truncate(saved.size);
            object.attrs =
                saved.attrs.iter().map(|(name, value)| (name.as_str().into(), value.clone())).collect();
            object.omap = saved.omap_header.map(|header| {
                let cost = saved.omap.iter().map(|(key, value)| omap_cost(key, value)).sum();
                Box::new(Omap { header, entries: saved.omap.into_iter().collect(), cost })
            });
        });
    }

    /// Restores saved metadata and log.
    pub(super) fn load_header(&mut self, meta: BTreeMap<String, Bytes>, log: BTreeMap<Eversion, Bytes>) {
        self.cost += meta.iter().map(|(name, value)| meta_cost(name, value)).sum::<u64>();
        self.cost += log.values().map(log_cost).sum::<u64>();
        (self.meta, self.log) = (meta, log);
    }
}
