//! The mounted store: its parts, free space, and the cached state of collections and objects.

use super::backend::Backend;
use super::collection::{Collection, ObjectEntry};
use super::db::{attr_key, omap_key};
use super::journal::Journal;
use super::mount::Label;
use super::object::{Attr, Object};
use super::queue::TxnQueue;
use super::step::Family;
use super::{ATTR_PREFIX, Counters, FileStoreConfig, sys};
use crate::blue::keys;
use crate::error::{Result, StoreError};
use crate::{Page, StoreEvents};
use bytes::Bytes;
use nacre_objectstore::files::StoreLock;
use nacre_objectstore::superblock::SuperblockFile;
use nacre_types::crc32c::crc32c;
use nacre_types::ids::PgId;
use nacre_types::object::ObjectId;
use parking_lot::{Mutex, MutexGuard, RwLock};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long a measurement of the file system's free space is used.
const FILE_SYSTEM_TTL: Duration = Duration::from_millis(100);
/// Maximum number of damaged objects that are remembered.
const MAX_DAMAGED: usize = 1024;

/// The mounted store, shared with its threads.
pub(super) struct Inner {
    pub(super) config: FileStoreConfig,
    pub(super) directory: PathBuf,
    pub(super) current: PathBuf,
    pub(super) label: Label,
    pub(super) backend: Backend,
    pub(super) journal: Journal,
    pub(super) queue: TxnQueue,
    pub(super) counters: Counters,
    pub(super) next_number: AtomicU64,
    /// Removed collections stay in the map and are marked as removed.
    pub(super) collections: RwLock<BTreeMap<PgId, Arc<Mutex<Collection>>>>,
    pub(super) superblock: Mutex<SuperblockFile>,
    pub(super) reserved: Arc<AtomicU64>,
    /// Free bytes of the file system, and when they were measured.
    pub(super) file_system: Mutex<Option<(Instant, u64)>>,
    pub(super) stopped: OnceLock<StoreError>,
    pub(super) events: Arc<dyn StoreEvents>,
    pub(super) damaged: Mutex<HashSet<ObjectId>>,
    /// Held while the store is mounted.
    pub(super) _lock: StoreLock,
}

impl Inner {
    /// Fails if the store has stopped.
    pub(super) fn check_running(&self) -> Result<()> {
        match self.stopped.get() {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Stops the store permanently. Returns the error for all later calls.
    pub(super) fn stop(&self, error: StoreError) -> StoreError {
        let stopped = StoreError::Stopped(error.to_string().into());
        if self.stopped.set(stopped.clone()).is_ok() {
            tracing::error!(directory = %self.directory.display(), %error, "filestore: stopped");
            self.events.fatal(&error);
        }
        stopped
    }

    /// Records that an object is damaged, and logs it once per object. Returns `error`.
    pub(super) fn record_damage(&self, oid: &ObjectId, error: StoreError) -> StoreError {
        let mut damaged = self.damaged.lock();
        if damaged.len() < MAX_DAMAGED && damaged.insert(oid.clone()) {
            tracing::error!(directory = %self.directory.display(), %error, "filestore: damaged");
        }
        error
    }

    /// Checks whether there is space for a transaction that takes `wanted_bytes`.
    pub(super) fn admit(&self, wanted_bytes: u64, writes_no_data: bool) -> Result<()> {
        self.check_running()?;
        if writes_no_data {
            return Ok(());
        }
        let available_bytes = self.available_bytes();
        if wanted_bytes <= available_bytes && self.file_system_room()? > 0 {
            return Ok(());
        }
        Err(StoreError::NoSpace { wanted_bytes, available_bytes })
    }

    /// Free bytes of the file system, as of at most [`FILE_SYSTEM_TTL`] ago.
    pub(super) fn file_system_free(&self) -> Result<u64> {
        let mut measured = self.file_system.lock();
        if let Some((at, free)) = *measured
            && at.elapsed() < FILE_SYSTEM_TTL
        {
            return Ok(free);
        }
        let space = rustix::fs::statvfs(&self.directory)
            .map_err(|e| StoreError::io(format!("statvfs {}", self.directory.display()), &e.into()))?;
        let free = space.f_bavail * space.f_frsize;
        *measured = Some((Instant::now(), free));
        Ok(free)
    }

    /// Bytes that can still be written to the file system, without the reserve and the transactions in flight.
    pub(super) fn file_system_room(&self) -> Result<u64> {
        let kept = self.config.min_free_bytes.saturating_add(self.queue.pending_bytes());
        Ok(self.file_system_free()?.saturating_sub(kept))
    }

    pub(super) fn total_bytes(&self) -> u64 {
        match self.config.device_bytes {
            0 => self.queue.allocated() + self.file_system_free().unwrap_or(0),
            bytes => bytes,
        }
    }

    /// Bytes still available for data.
    pub(super) fn available_bytes(&self) -> u64 {
        let room = self.file_system_room().unwrap_or(0);
        match self.config.device_bytes {
            0 => room,
            bytes => room.min(bytes.saturating_sub(self.queue.allocated())),
        }
    }

    pub(super) fn collection(&self, coll: PgId) -> Result<Arc<Mutex<Collection>>> {
        self.check_running()?;
        self.collections.read().get(&coll).cloned().ok_or(StoreError::NoCollection(coll))
    }

    pub(super) fn collection_or_new(&self, coll: PgId) -> Arc<Mutex<Collection>> {
        let fresh = || Arc::new(Mutex::new(Collection::new(coll, false)));
        Arc::clone(self.collections.write().entry(coll).or_insert_with(fresh))
    }

    /// Maximum number of object records that a collection keeps. Must be called without a collection's lock.
    pub(super) fn collection_cache_limit(&self) -> usize {
        let collections = self.collections.read().len().max(1);
        (self.config.cached_objects / collections).max(64)
    }

    /// Runs `f` on a locked, existing collection.
    pub(super) fn with<R>(
        &self,
        coll: PgId,
        f: impl FnOnce(&mut MutexGuard<'_, Collection>) -> Result<R>,
    ) -> Result<R> {
        let (collection, limit) = (self.collection(coll)?, self.collection_cache_limit());
        let mut collection = collection.lock();
        if !collection.exists {
            return Err(StoreError::NoCollection(coll));
        }
        let before = collection.entries.len();
        let result = f(&mut collection);
        // Trimming costs time even if nothing can be evicted yet, so it runs only after a record was added.
        if collection.entries.len() > before {
            collection.trim(limit, self.queue.applied());
        }
        result
    }

    /// Runs `f` on a locked collection whose log and values are in the database. Waits for pending changes first.
    pub(super) fn with_applied_meta<R>(&self, coll: PgId, f: impl Fn(&Collection) -> Result<R>) -> Result<R> {
        loop {
            let pending = self.with(coll, |collection| {
                if collection.meta_seq > self.queue.applied() {
                    return Ok(Err(collection.meta_seq));
                }
                f(collection).map(Ok)
            })?;
            match pending {
                Ok(result) => return Ok(result),
                Err(seq) => self.queue.wait_applied(self, seq)?,
            }
        }
    }

    /// Runs `f` with the number of an object whose omap is in the database, or `None` if it has no omap. Waits for pending
    /// changes first.
    pub(super) fn with_applied_omap<R>(
        &self,
        coll: PgId,
        oid: &ObjectId,
        f: impl Fn(Option<u64>) -> Result<R>,
    ) -> Result<R> {
        loop {
            let pending = self.with(coll, |collection| {
                let entry = self.existing(collection, oid)?;
                if entry.omap_seq > self.queue.applied() {
                    return Ok(Err(entry.omap_seq));
                }
                let number =
                    entry.object.as_ref().filter(|object| object.has_omap).map(|object| object.number);
                f(number).map(Ok)
            })?;
            match pending {
                Ok(result) => return Ok(result),
                Err(seq) => self.queue.wait_applied(self, seq)?,
            }
        }
    }

    /// The cached state of an object, loaded if necessary. `None` if the object does not exist and nothing of it is pending.
    pub(super) fn entry<'a>(
        &self,
        collection: &'a mut Collection,
        oid: &ObjectId,
    ) -> Result<Option<&'a mut ObjectEntry>> {
        if !collection.entries.contains_key(oid) {
            let Some(object) = self.load(collection.id, oid)? else { return Ok(None) };
            collection
                .entries
                .insert(oid.clone(), ObjectEntry { object: Some(object), ..ObjectEntry::default() });
        }
        Ok(collection.entries.get_mut(oid))
    }

    pub(super) fn existing<'a>(
        &self,
        collection: &'a mut Collection,
        oid: &ObjectId,
    ) -> Result<&'a mut ObjectEntry> {
        let entry = self.entry(collection, oid)?.filter(|entry| entry.object.is_some());
        entry.ok_or_else(|| StoreError::NotFound(oid.clone()))
    }

    /// Reads an object's record and attributes.
    pub(super) fn load(&self, coll: PgId, oid: &ObjectId) -> Result<Option<Object>> {
        let Some(record) = self.backend.db.get(Family::Objects, &keys::onode(coll, oid))? else {
            return Ok(None);
        };
        let mut object = Object::decode(oid, &record).map_err(|error| self.record_damage(oid, error))?;
        if let Err(detail) = load_attrs(&self.backend, coll, oid, &mut object)? {
            self.record_damage(oid, StoreError::corrupt(oid.to_string(), detail));
        }
        Ok(Some(object))
    }

    /// Objects with `from <= id < to`, at most `max`: the contents of the database, with pending changes applied.
    pub(super) fn list(
        &self,
        collection: &Collection,
        from: &ObjectId,
        to: Option<&ObjectId>,
        max: usize,
    ) -> Result<Page<ObjectId>> {
        if to.is_some_and(|to| to <= from) {
            return Ok(Page { entries: Vec::new(), more: false });
        }
        let known = || {
            let below_end = |(oid, _): &(&ObjectId, &ObjectEntry)| to.is_none_or(|to| *oid < to);
            collection.entries.range(from.clone()..).take_while(below_end)
        };
        let gone = known().filter(|(_, entry)| entry.object.is_none()).count();
        let wanted = max.saturating_add(gone).saturating_add(1);
        let first = keys::onode(collection.id, from);
        let end = to.map_or_else(|| keys::collection_end(collection.id), |to| keys::onode(collection.id, to));
        let mut found = BTreeSet::new();
        self.backend.db.scan(Family::Objects, &first, &end, |key, _| {
            let (_, oid) = keys::split_onode(key)
                .ok_or_else(|| StoreError::corrupt("key of an object's record", "undecodable"))?;
            found.insert(oid);
            Ok(found.len() < wanted)
        })?;
        // Nothing is known about ids after the last one of a page that was cut short.
        let last = if found.len() >= wanted { found.last().cloned() } else { None };
        for (oid, entry) in known().take_while(|(oid, _)| last.as_ref().is_none_or(|last| *oid <= last)) {
            if entry.object.is_some() {
                found.insert(oid.clone());
            } else {
                found.remove(oid);
            }
        }
        let more = found.len() > max;
        Ok(Page { entries: found.into_iter().take(max).collect(), more })
    }
}

/// Loads the values of an object's attributes. The inner result is an error if an attribute is damaged.
pub(super) fn load_attrs(
    backend: &Backend,
    coll: PgId,
    oid: &ObjectId,
    object: &mut Object,
) -> Result<Result<(), String>> {
    let number = object.number;
    let file = match object.attrs.iter().any(|attr| attr.inline) {
        true => backend.open_existing(coll, &[oid], number)?,
        false => None,
    };
    let mut outcome = Ok(());
    for attr in &mut object.attrs {
        let matches = |value: &[u8]| crc32c(value) == attr.crc;
        let with_file = match &file {
            Some(file) if attr.inline => {
                sys::get_xattr(file, &format!("{ATTR_PREFIX}{}", attr.name)).ok().flatten()
            }
            _ => None,
        };
        attr.value = match with_file.filter(|value| matches(value)) {
            Some(value) => Some(value.into()),
            // An attribute that did not fit the file is in the database.
            None => {
                let value = backend.db.get(Family::Attrs, &attr_key(number, &attr.name))?;
                value.filter(|value| matches(value))
            }
        };
        if attr.value.is_none() {
            outcome = Err(format!("attribute {} is damaged or missing", attr.name));
        }
    }
    Ok(outcome)
}

pub(super) fn attr_value(oid: &ObjectId, attr: &Attr) -> Result<Bytes> {
    let damaged = || StoreError::corrupt(format!("attribute {} of {oid}", attr.name), "checksum mismatch");
    attr.value.clone().ok_or_else(damaged)
}

/// A page of an omap. `take` converts an entry and returns the number of bytes that it counts for.
pub(super) fn omap_page<T>(
    inner: &Inner,
    number: Option<u64>,
    start_after: Option<&[u8]>,
    prefix: &[u8],
    max: usize,
    max_bytes: usize,
    take: impl Fn(&[u8], &[u8]) -> (T, usize),
) -> Result<Page<T>> {
    let mut page = Page { entries: Vec::new(), more: false };
    let Some(number) = number else { return Ok(page) };
    let lowest = omap_key(number, prefix);
    let first = match start_after {
        Some(after) => [&omap_key(number, after)[..], &[0]].concat().max(lowest.clone()),
        None => lowest.clone(),
    };
    let key_at = omap_key(number, b"").len();
    let mut bytes = 0;
    inner.backend.db.scan(Family::Omap, &first, &keys::prefix_end(&lowest), |key, value| {
        let (entry, size) = take(&key[key_at..], value);
        if page.entries.len() >= max || (!page.entries.is_empty() && bytes + size > max_bytes) {
            page.more = true;
            return Ok(false);
        }
        bytes += size;
        page.entries.push(entry);
        Ok(true)
    })?;
    Ok(page)
}
