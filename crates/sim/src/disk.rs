//! A simulated store: the state that the OSD sees, the state after a crash, and the duration of a flush.
//!
//! There are two images of the same contents: transactions apply to the *seen* image at once, and to the *durable* image in
//! the same order when they are flushed. A crash keeps the durable image and any prefix of the unflushed changes.
//! Transactions are applied completely or not at all, as in the real stores.
//!
//! Objects may be damaged: their data or their whole record is unreadable until it is replaced, and a transaction that needs it is refused.

mod data;
mod omap;

pub use data::Data;
pub use omap::Omap;

use bytes::Bytes;
use nacre_objectstore::{ObjectStat, Page, ReadStore, Result, StoreError};
use nacre_types::txn::{Transaction, TxnOp};
use nacre_types::{Eversion, ObjectId, PgId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Bound;
use std::sync::Arc;

/// Two images share an object with more data than this, or more omap entries than [`LARGE_OMAP`].
const LARGE_BYTES: usize = 1 << 20;
/// See [`LARGE_BYTES`].
const LARGE_OMAP: usize = 4_096;

/// An object's contents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Object {
    /// Its data.
    pub data: Data,
    /// Its attributes.
    pub attrs: BTreeMap<String, Bytes>,
    /// Its omap entries.
    pub omap: Omap,
    /// Its omap header.
    pub header: Bytes,
}

impl Object {
    /// Whether images share the object.
    fn is_large(&self) -> bool {
        self.data.len() > LARGE_BYTES || self.omap.len() > LARGE_OMAP
    }

    /// A digest of the contents.
    pub fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.data, &self.attrs, self.omap.digest(), &self.header).hash(&mut hasher);
        hasher.finish()
    }

    /// A user attribute.
    pub fn user_attr(&self, name: &str) -> Option<&Bytes> {
        self.attrs.get(&nacre_types::op::user_attr(name))
    }
}

/// One PG's contents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collection {
    /// Objects in listing order.
    pub objects: BTreeMap<ObjectId, Arc<Object>>,
    /// The log.
    pub log: BTreeMap<Eversion, Bytes>,
    /// The highest version ever trimmed from the log.
    pub trimmed: Eversion,
    /// Small values.
    pub meta: BTreeMap<String, Bytes>,
}

/// A transaction that violates the contract, which is a defect of the machine that made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadTransaction(pub String);

/// The unreadable part of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// Its data.
    Data,
    /// Everything.
    Record,
}

/// A store's contents at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// The PGs.
    pub collections: BTreeMap<PgId, Collection>,
    /// The unreadable parts of objects.
    pub damaged: BTreeMap<(PgId, ObjectId), Damage>,
    /// Values of the OSD itself (its superblock), by name.
    pub superblock: BTreeMap<String, Bytes>,
}

/// A store with its unflushed changes.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    seen: Image,
    durable: Image,
    unflushed: VecDeque<Transaction>,
    /// Objects that flushes have touched since the last [`Disk::take_newly_durable`].
    touched: BTreeSet<(PgId, ObjectId)>,
    /// Capacity in bytes; 0 for no limit.
    capacity: u64,
}

impl Disk {
    /// The image that the OSD sees.
    pub fn visible(&self) -> &Image {
        &self.seen
    }

    /// The durable image.
    pub fn durable(&self) -> &Image {
        &self.durable
    }

    /// A PG in the image that the OSD sees.
    pub fn collection(&self, pg: PgId) -> Option<&Collection> {
        self.seen.collections.get(&pg)
    }

    /// Damages an object in both images. An object that is being replaced, or is damaged at least as badly, stays unchanged.
    pub fn damage(&mut self, pg: PgId, oid: &ObjectId, damage: Damage) {
        let key = (pg, oid.clone());
        let is_settled = self.seen.object_of(pg, oid) == self.durable.object_of(pg, oid)
            && self.seen.damaged.get(&key) == self.durable.damaged.get(&key);
        if !is_settled || self.seen.object_of(pg, oid).is_none() {
            return;
        }
        for image in [&mut self.seen, &mut self.durable] {
            let known = image.damaged.entry(key.clone()).or_insert(damage);
            if damage == Damage::Record {
                *known = damage;
            }
        }
    }

    /// Whether a transaction needs a damaged part of an object, so that the store refuses it.
    pub fn needs_damaged_part(&self, transaction: &Transaction) -> bool {
        self.seen.is_prevented(transaction)
    }

    /// Applies a transaction to the seen image and queues it for the next flush.
    pub fn apply(&mut self, transaction: Transaction) -> Result<(), BadTransaction> {
        self.seen.apply(&transaction)?;
        self.unflushed.push_back(transaction);
        Ok(())
    }

    /// Sets or removes a value of the OSD itself; durable on return.
    pub fn set_superblock(&mut self, name: &str, value: Option<Bytes>) {
        for image in [&mut self.seen, &mut self.durable] {
            match &value {
                Some(value) => image.superblock.insert(name.to_owned(), value.clone()),
                None => image.superblock.remove(name),
            };
        }
    }

    /// Changes not yet flushed.
    pub fn unflushed(&self) -> usize {
        self.unflushed.len()
    }

    /// Makes the `count` oldest unflushed changes durable.
    pub fn flush(&mut self, count: usize) {
        for transaction in self.unflushed.drain(..count.min(self.unflushed.len())) {
            let objects = transaction.ops.iter().flat_map(objects_of).flatten();
            self.touched.extend(objects.map(|oid| (transaction.collection, oid.clone())));
            self.durable.apply(&transaction).expect("invariant: it applied to the same contents before");
        }
        if self.unflushed.is_empty() {
            self.share_large();
        }
    }

    /// Called when everything is flushed, so both images have the same objects. Shares the large objects that were touched.
    fn share_large(&mut self) {
        for (pg, oid) in &self.touched {
            let of = |image: &mut Image| image.collections.get(pg)?.objects.get(oid).cloned();
            if let Some(object) = of(&mut self.seen).filter(|object| object.is_large())
                && let Some(collection) = self.durable.collections.get_mut(pg)
            {
                collection.objects.insert(oid.clone(), object);
            }
        }
    }

    /// Objects that have become durable, or were removed durably, since the last call.
    pub fn take_newly_durable(&mut self) -> BTreeSet<(PgId, ObjectId)> {
        std::mem::take(&mut self.touched)
    }

    /// Simulates a power failure: the `surviving` oldest unflushed changes are durable, the others are lost.
    pub fn crash(&mut self, surviving: usize) {
        self.flush(surviving);
        self.unflushed.clear();
        self.seen = self.durable.clone();
    }

    /// Erases the contents.
    pub fn wipe(&mut self) {
        *self = Disk { capacity: self.capacity, ..Disk::default() };
    }

    /// Sets the capacity; 0 removes the limit.
    pub fn set_capacity(&mut self, bytes: u64) {
        self.capacity = bytes;
    }

    /// Whether `bytes` more would exceed the capacity.
    pub fn lacks_room(&self, bytes: u64) -> bool {
        self.capacity > 0 && self.used() + bytes > self.capacity
    }

    /// The capacity in bytes, if it is limited.
    pub fn capacity(&self) -> Option<u64> {
        (self.capacity > 0).then_some(self.capacity)
    }

    /// The free bytes.
    pub fn free_bytes(&self) -> u64 {
        if self.capacity == 0 { u64::MAX } else { self.capacity.saturating_sub(self.used()) }
    }

    /// Bytes of objects' data and omaps.
    pub fn used(&self) -> u64 {
        let objects = self.seen.collections.values().flat_map(|c| c.objects.values());
        objects.map(|object| (object.data.len() + object.omap.bytes()) as u64).sum()
    }
}

/// The objects that an op changes.
fn objects_of(op: &TxnOp) -> [Option<&ObjectId>; 2] {
    match op {
        TxnOp::Touch(oid)
        | TxnOp::Write { oid, .. }
        | TxnOp::Zero { oid, .. }
        | TxnOp::Truncate { oid, .. }
        | TxnOp::Remove(oid)
        | TxnOp::SetAttrs { oid, .. }
        | TxnOp::RmAttr { oid, .. }
        | TxnOp::RmAttrs(oid)
        | TxnOp::OmapSet { oid, .. }
        | TxnOp::OmapRm { oid, .. }
        | TxnOp::OmapRmRange { oid, .. }
        | TxnOp::OmapClear(oid)
        | TxnOp::OmapSetHeader { oid, .. }
        | TxnOp::AllocHint { oid, .. } => [Some(oid), None],
        TxnOp::Clone { to, .. } | TxnOp::CloneRange { to, .. } => [Some(to), None],
        TxnOp::Rename { from, to } => [Some(from), Some(to)],
        _ => [None, None],
    }
}

impl Image {
    /// Applies a transaction completely, or returns what is wrong with it.
    pub fn apply(&mut self, transaction: &Transaction) -> Result<(), BadTransaction> {
        let pg = transaction.collection;
        for op in &transaction.ops {
            self.step(pg, op).map_err(|why| BadTransaction(format!("{why} ({op:?} on {pg})")))?;
            self.follow_damage(pg, op);
        }
        Ok(())
    }

    fn is_prevented(&self, transaction: &Transaction) -> bool {
        if self.damaged.is_empty() {
            return false;
        }
        let pg = transaction.collection;
        let mut now = Image { damaged: self.damaged.clone(), ..Image::default() };
        transaction.ops.iter().any(|op| {
            let damage = |oid: &ObjectId| now.damaged.get(&(pg, oid.clone())).copied();
            let prevents = match op {
                TxnOp::Write { oid, .. } | TxnOp::Zero { oid, .. } => damage(oid).is_some(),
                TxnOp::Truncate { oid, size } => {
                    damage(oid) == Some(Damage::Record) || (damage(oid).is_some() && *size > 0)
                }
                TxnOp::CloneRange { from, to, .. } => damage(from).or(damage(to)).is_some(),
                TxnOp::Touch(oid)
                | TxnOp::SetAttrs { oid, .. }
                | TxnOp::RmAttr { oid, .. }
                | TxnOp::RmAttrs(oid)
                | TxnOp::OmapSet { oid, .. }
                | TxnOp::OmapRm { oid, .. }
                | TxnOp::OmapRmRange { oid, .. }
                | TxnOp::OmapClear(oid)
                | TxnOp::OmapSetHeader { oid, .. }
                | TxnOp::AllocHint { oid, .. } => damage(oid) == Some(Damage::Record),
                // The replaced object must be readable too, because its space is freed.
                TxnOp::Clone { from, to } | TxnOp::Rename { from, to } => {
                    [from, to].into_iter().any(|oid| damage(oid) == Some(Damage::Record))
                }
                _ => false,
            };
            now.follow_damage(pg, op);
            prevents
        })
    }

    /// Removes or moves the damage of objects according to an op.
    fn follow_damage(&mut self, pg: PgId, op: &TxnOp) {
        if self.damaged.is_empty() {
            return;
        }
        match op {
            TxnOp::Remove(oid) | TxnOp::Truncate { oid, size: 0 } => {
                self.damaged.remove(&(pg, oid.clone()));
            }
            TxnOp::Clone { from, to } | TxnOp::Rename { from, to } => {
                let damage = match op {
                    TxnOp::Clone { .. } => self.damaged.get(&(pg, from.clone())).copied(),
                    _ => self.damaged.remove(&(pg, from.clone())),
                };
                self.damaged.remove(&(pg, to.clone()));
                self.damaged.extend(damage.map(|damage| ((pg, to.clone()), damage)));
            }
            TxnOp::RemoveCollection => self.damaged.retain(|(of, _), _| *of != pg),
            _ => {}
        }
    }

    /// An object, readable or not.
    pub fn object_of(&self, pg: PgId, oid: &ObjectId) -> Option<&Object> {
        self.collections.get(&pg)?.objects.get(oid).map(|object| &**object)
    }

    fn step(&mut self, pg: PgId, op: &TxnOp) -> Result<(), &'static str> {
        match op {
            TxnOp::CreateCollection => {
                self.collections.entry(pg).or_default();
                return Ok(());
            }
            TxnOp::RemoveCollection => {
                let Some(collection) = self.collections.remove(&pg) else { return Err("no such collection") };
                return if collection.objects.is_empty() { Ok(()) } else { Err("collection is not empty") };
            }
            _ => {}
        }
        let collection = self.collections.get_mut(&pg).ok_or("no such collection")?;
        collection.step(op)
    }

    /// A PG's contents; fails if it does not exist.
    pub fn existing(&self, pg: PgId) -> Result<&Collection> {
        self.collections.get(&pg).ok_or(StoreError::NoCollection(pg))
    }

    /// An object; fails if it is absent or unreadable.
    pub fn object(&self, pg: PgId, oid: &ObjectId) -> Result<&Object> {
        let object = self.existing(pg)?.objects.get(oid).ok_or_else(|| StoreError::NotFound(oid.clone()))?;
        self.readable(pg, oid, Damage::Record)?;
        Ok(object)
    }

    /// Fails if an object has damage of this kind or a worse one.
    fn readable(&self, pg: PgId, oid: &ObjectId, met: Damage) -> Result<()> {
        if self.damaged.is_empty() {
            return Ok(());
        }
        match self.damaged.get(&(pg, oid.clone())) {
            Some(damage) if *damage == met || *damage == Damage::Record => {
                Err(StoreError::corrupt(oid.to_string(), "damaged by the simulation"))
            }
            _ => Ok(()),
        }
    }
}

/// Reads of an image, with the semantics of any store; the model test of `nacre-store` checks them.
impl ReadStore for Image {
    fn read(&self, coll: PgId, oid: &ObjectId, offset: u64, len: u64) -> Result<Bytes> {
        let data = &self.object(coll, oid)?.data;
        self.readable(coll, oid, Damage::Data)?;
        Ok(data.read(offset, len))
    }

    fn extents(&self, coll: PgId, oid: &ObjectId, offset: u64, len: u64) -> Result<Vec<(u64, u64)>> {
        let size = self.object(coll, oid)?.data.len() as u64;
        let end = offset.saturating_add(len).min(size);
        Ok(if offset < end { vec![(offset, end - offset)] } else { Vec::new() })
    }

    fn stat(&self, coll: PgId, oid: &ObjectId) -> Result<ObjectStat> {
        let object = self.object(coll, oid)?;
        let has_omap = !object.omap.is_empty() || !object.header.is_empty();
        Ok(ObjectStat { size: object.data.len() as u64, has_omap })
    }

    fn get_attr(&self, coll: PgId, oid: &ObjectId, name: &str) -> Result<Option<Bytes>> {
        Ok(self.object(coll, oid)?.attrs.get(name).cloned())
    }

    fn get_attrs(&self, coll: PgId, oid: &ObjectId) -> Result<Vec<(String, Bytes)>> {
        Ok(pairs(&self.object(coll, oid)?.attrs))
    }

    fn omap_get_header(&self, coll: PgId, oid: &ObjectId) -> Result<Bytes> {
        Ok(self.object(coll, oid)?.header.clone())
    }

    fn omap_get(&self, coll: PgId, oid: &ObjectId, keys: &[Bytes]) -> Result<Vec<(Bytes, Bytes)>> {
        let omap = &self.object(coll, oid)?.omap;
        Ok(keys.iter().filter_map(|key| Some((key.clone(), omap.get(key)?.clone()))).collect())
    }

    fn omap_iterate(
        &self,
        coll: PgId,
        oid: &ObjectId,
        start_after: Option<&[u8]>,
        prefix: &[u8],
        max: usize,
        max_bytes: usize,
    ) -> Result<Page<(Bytes, Bytes)>> {
        let omap = &self.object(coll, oid)?.omap;
        Ok(omap_page(omap, start_after, prefix, max, max_bytes, |key, value| {
            ((key.clone(), value.clone()), key.len() + value.len())
        }))
    }

    fn omap_get_keys(
        &self,
        coll: PgId,
        oid: &ObjectId,
        start_after: Option<&[u8]>,
        prefix: &[u8],
        max: usize,
        max_bytes: usize,
    ) -> Result<Page<Bytes>> {
        let omap = &self.object(coll, oid)?.omap;
        Ok(omap_page(omap, start_after, prefix, max, max_bytes, |key, _| (key.clone(), key.len())))
    }

    fn list_objects(
        &self,
        coll: PgId,
        from: &ObjectId,
        to: Option<&ObjectId>,
        max: usize,
    ) -> Result<Page<ObjectId>> {
        let objects = &self.existing(coll)?.objects;
        if to.is_some_and(|to| to <= from) {
            return Ok(Page { entries: Vec::new(), more: false });
        }
        let end = to.map_or(Bound::Unbounded, Bound::Excluded);
        let mut range = objects.range((Bound::Included(from), end)).map(|(oid, _)| oid.clone());
        let entries = range.by_ref().take(max).collect();
        Ok(Page { entries, more: range.next().is_some() })
    }

    fn list_collections(&self) -> Result<Vec<PgId>> {
        Ok(self.collections.keys().copied().collect())
    }

    fn collection_exists(&self, coll: PgId) -> Result<bool> {
        Ok(self.collections.contains_key(&coll))
    }

    fn collection_meta(&self, coll: PgId) -> Result<Vec<(String, Bytes)>> {
        Ok(pairs(&self.existing(coll)?.meta))
    }

    fn read_log(&self, coll: PgId, after: Eversion, max: usize) -> Result<Vec<(Eversion, Bytes)>> {
        let range = self.existing(coll)?.log.range((Bound::Excluded(after), Bound::Unbounded));
        Ok(range.take(max).map(|(version, entry)| (*version, entry.clone())).collect())
    }
}

fn pairs(values: &BTreeMap<String, Bytes>) -> Vec<(String, Bytes)> {
    values.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn omap_page<T>(
    omap: &Omap,
    start_after: Option<&[u8]>,
    prefix: &[u8],
    max: usize,
    max_bytes: usize,
    make: impl Fn(&Bytes, &Bytes) -> (T, usize),
) -> Page<T> {
    let from = start_after.unwrap_or_default().max(prefix);
    let is_before = |key: &Bytes| start_after.is_some_and(|after| &key[..] <= after);
    let wanted = omap.at_or_above(from).skip_while(|(key, _)| is_before(key));
    let mut page = Page { entries: Vec::new(), more: false };
    let mut bytes = 0;
    for (key, value) in wanted.take_while(|(key, _)| key.starts_with(prefix)) {
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

impl Collection {
    fn object(&mut self, oid: &ObjectId) -> &mut Object {
        Arc::make_mut(self.objects.entry(oid.clone()).or_default())
    }

    fn existing(&mut self, oid: &ObjectId) -> Option<&mut Object> {
        self.objects.get_mut(oid).map(Arc::make_mut)
    }

    fn step(&mut self, op: &TxnOp) -> Result<(), &'static str> {
        match op {
            TxnOp::CreateCollection | TxnOp::RemoveCollection => {}
            TxnOp::Touch(oid) => {
                self.object(oid);
            }
            TxnOp::Write { oid, offset, data } => {
                self.object(oid).data.write(*offset, data);
            }
            TxnOp::Zero { oid, offset, len } => {
                self.object(oid).data.zero(*offset, *len);
            }
            TxnOp::Truncate { oid, size } => self.object(oid).data.resize(*size as usize),
            TxnOp::Remove(oid) => {
                self.objects.remove(oid);
            }
            TxnOp::SetAttrs { oid, attrs } => self.object(oid).attrs.extend(attrs.iter().cloned()),
            TxnOp::RmAttr { oid, name } => {
                if let Some(object) = self.existing(oid) {
                    object.attrs.remove(name);
                }
            }
            TxnOp::RmAttrs(oid) => {
                if let Some(object) = self.existing(oid) {
                    object.attrs.clear();
                }
            }
            TxnOp::OmapSet { oid, entries } => self.object(oid).omap.set(entries),
            TxnOp::OmapRm { oid, keys } => {
                if let Some(object) = self.existing(oid) {
                    object.omap.remove(keys);
                }
            }
            TxnOp::OmapRmRange { oid, first, last } => {
                if let Some(object) = self.existing(oid) {
                    object.omap.remove_range(first, last);
                }
            }
            TxnOp::OmapClear(oid) => {
                if let Some(object) = self.existing(oid) {
                    object.omap.clear();
                    object.header = Bytes::new();
                }
            }
            TxnOp::OmapSetHeader { oid, header } => self.object(oid).header = header.clone(),
            TxnOp::Clone { from, to } => {
                let source = self.objects.get(from).cloned().ok_or("clone of an absent object")?;
                self.objects.insert(to.clone(), source);
            }
            TxnOp::CloneRange { from, to, from_offset, len, to_offset } => {
                let source = self.objects.get(from).cloned().ok_or("clone of an absent object")?;
                let taken = source.data.read(*from_offset, *len);
                self.object(to).data.write(*to_offset, &taken);
            }
            TxnOp::Rename { from, to } => {
                let source = self.objects.remove(from).ok_or("rename of an absent object")?;
                self.objects.insert(to.clone(), source);
            }
            TxnOp::AllocHint { oid, .. } => {
                self.object(oid);
            }
            TxnOp::MetaSet(values) => self.meta.extend(values.iter().cloned()),
            TxnOp::MetaRm(names) => self.meta.retain(|name, _| !names.contains(name)),
            TxnOp::LogAppend(entries) => {
                for (version, entry) in entries {
                    if self.log.insert(*version, entry.clone()).is_some_and(|old| old != *entry) {
                        return Err("two entries of one version");
                    }
                }
            }
            TxnOp::LogTrim(upto) => {
                self.log = self.log.split_off(upto);
                self.log.remove(upto);
                self.trimmed = self.trimmed.max(*upto);
            }
            TxnOp::LogTruncate(after) => {
                self.log.retain(|version, _| version <= after);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::{Interval, PoolId};

    fn pg() -> PgId {
        PgId::new(PoolId(1), 0)
    }

    fn write(text: &str) -> Transaction {
        let oid = ObjectId::new(PoolId(1), "", "", "a");
        let mut txn = Transaction::new(pg());
        txn.push(TxnOp::CreateCollection);
        txn.push(TxnOp::Truncate { oid: oid.clone(), size: 0 });
        txn.push(TxnOp::Write { oid, offset: 0, data: Bytes::copy_from_slice(text.as_bytes()).into() });
        txn
    }

    fn data(disk: &Disk) -> Vec<u8> {
        disk.collection(pg()).unwrap().objects.values().next().unwrap().data.to_vec()
    }

    #[test]
    fn a_crash_keeps_what_was_flushed_and_a_prefix_of_the_rest() {
        let mut disk = Disk::default();
        for text in ["one", "two", "three", "four"] {
            disk.apply(write(text)).unwrap();
        }
        disk.flush(1);
        assert_eq!((data(&disk), disk.unflushed()), (b"four".to_vec(), 3));
        let mut other = disk.clone();
        disk.crash(1);
        assert_eq!((data(&disk), disk.unflushed()), (b"two".to_vec(), 0));
        other.crash(0);
        assert_eq!(data(&other), b"one");
        other.wipe();
        assert!(other.collection(pg()).is_none());
    }

    #[test]
    fn damage_stays_until_something_replaces_what_is_damaged() {
        let oid = ObjectId::new(PoolId(1), "", "", "a");
        let mut disk = Disk::default();
        disk.apply(write("one")).unwrap();
        disk.flush(1);
        let append = || {
            let mut txn = Transaction::new(pg());
            txn.push(TxnOp::Write { oid: oid.clone(), offset: 3, data: Bytes::from_static(b"x").into() });
            txn
        };
        assert!(!disk.needs_damaged_part(&append()));
        disk.damage(pg(), &oid, Damage::Data);
        let read = |disk: &Disk| disk.visible().read(pg(), &oid, 0, 9);
        assert!(read(&disk).unwrap_err().is_damage() && disk.visible().stat(pg(), &oid).is_ok());
        assert!(disk.needs_damaged_part(&append()));
        // The object was truncated to nothing first; a crash reverts that.
        assert!(!disk.needs_damaged_part(&write("two")));
        disk.apply(write("two")).unwrap();
        assert_eq!(read(&disk).unwrap(), "two");
        disk.crash(0);
        assert!(read(&disk).unwrap_err().is_damage());
        disk.damage(pg(), &oid, Damage::Record);
        assert!(
            disk.visible().stat(pg(), &oid).unwrap_err().is_damage()
                && disk.needs_damaged_part(&write("two"))
        );
        let mut remove = Transaction::new(pg());
        remove.push(TxnOp::Remove(oid.clone()));
        assert!(!disk.needs_damaged_part(&remove));
        disk.apply(remove).unwrap();
        disk.flush(1);
        disk.crash(0);
        disk.apply(write("two")).unwrap();
        assert_eq!(read(&disk).unwrap(), "two");
    }

    #[test]
    fn broken_contracts_are_noticed() {
        let mut disk = Disk::default();
        disk.apply(write("x")).unwrap();
        let mut remove = Transaction::new(pg());
        remove.push(TxnOp::RemoveCollection);
        assert!(disk.apply(remove).unwrap_err().0.contains("not empty"));
        let mut absent = Transaction::new(PgId::new(PoolId(2), 0));
        absent.push(TxnOp::LogTrim(Eversion::default()));
        assert!(disk.apply(absent).unwrap_err().0.contains("no such collection"));
        let mut log = Transaction::new(pg());
        log.push(TxnOp::CreateCollection);
        let version = Eversion::new(Interval(1), 1);
        log.push(TxnOp::LogAppend(vec![(version, Bytes::from_static(b"a"))]));
        log.push(TxnOp::LogAppend(vec![(version, Bytes::from_static(b"b"))]));
        assert!(disk.apply(log).unwrap_err().0.contains("two entries"));
    }
}
