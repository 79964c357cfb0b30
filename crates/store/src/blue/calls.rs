//! The interface of the store: [`ObjectStore`] for [`BlueStore`].

use super::apply;
use super::commit::QueuedTxn;
use super::db::{Family, RawBatch};
use super::keys;
use super::omap;
use super::onode::BLOCK_BYTES;
use super::reclaim::ReadToken;
use super::state;
use super::{BlueStore, Inner};
use crate::error::{Result, StoreError};
use crate::{
    CommitWaiter, Completion, DataOptions, FreeSpace, ObjectStat, ObjectStore, Page, ReadStore,
    SpaceReservation, Statfs,
};
use bytes::Bytes;
use nacre_common::metrics::Metric;
use nacre_types::ids::{Eversion, Incarnation, PgId, PoolId};
use nacre_types::object::ObjectId;
use nacre_types::txn::{Transaction, TxnOp};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A read in progress. Leaves the gate when dropped.
struct ActiveRead<'a> {
    inner: &'a Inner,
    ticket: Option<ReadToken>,
}

impl<'a> ActiveRead<'a> {
    /// Must be called while the record that refers to the blocks can't change.
    fn begin(inner: &'a Inner) -> ActiveRead<'a> {
        ActiveRead { inner, ticket: Some(inner.gate.enter()) }
    }
}

impl Drop for ActiveRead<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.inner.give_back(self.inner.gate.leave(ticket));
        }
    }
}

impl ObjectStore for BlueStore {
    fn kind(&self) -> &'static str {
        "bluestore"
    }

    fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    fn queue_transaction(&self, txn: &Transaction, on_commit: Option<Completion>) -> Result<()> {
        let inner = self.inner()?;
        inner.check()?;
        inner.queue.wait_for_room(&inner)?;
        let creates = || txn.ops.iter().any(|op| matches!(op, TxnOp::CreateCollection));
        let collection = match inner.collection(txn.collection) {
            Err(StoreError::NoCollection(_)) if creates() => inner.collection_or_new(txn.collection),
            other => other?,
        };
        let mut collection = collection.lock();
        collection.trim_overlay(inner.queue.committed_seq());
        inner.refresh_data_options(&mut collection);
        let cache_bytes = apply::Txn::new(&inner, &mut collection).apply_and_queue(txn, on_commit)?;
        drop(collection);
        inner.account(cache_bytes);
        inner.trim_cache();
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        let inner = self.inner()?;
        inner.queue.flush(&inner)
    }

    fn umount(&self) -> Result<()> {
        let inner = self.close(true).ok_or(StoreError::NotMounted)?;
        let saved = inner.save();
        self.end_compaction(&inner);
        saved
    }

    fn stopped(&self) -> Option<StoreError> {
        self.inner().ok()?.stopped.get().cloned()
    }

    fn health(&self) -> Vec<(String, String)> {
        let Ok(inner) = self.inner() else { return Vec::new() };
        let mut health = inner.scan_health.clone();
        let damaged = inner.damaged.lock().len();
        if damaged > 0 {
            let text = format!("{damaged} blobs or records were found damaged when read");
            health.push(("BLUESTORE_DAMAGED".into(), text));
        }
        if let Some(problem) = inner.checkpoints.problem() {
            let text =
                format!("the allocator can't be checkpointed, a start after a crash takes longer: {problem}");
            health.push(("BLUESTORE_CHECKPOINT".into(), text));
        }
        if inner.db_full.load(Ordering::Relaxed) {
            let text = format!("the file system of {} is full", inner.directory.display());
            health.push(("BLUESTORE_DB_FULL".into(), text));
        }
        if let Some(error) = inner.stopped.get() {
            health.push(("BLUESTORE_STOPPED".into(), error.to_string()));
        }
        health
    }

    fn metrics(&self, out: &mut Vec<Metric>) {
        // A stopped or closed store reports nothing.
        let (Ok(counters), Ok(usage)) = (self.counters(), self.statfs()) else { return };
        let counter = |name, help, value| Metric::counter("bluestore", name, help, value);
        let gauge = |name, help, value| Metric::gauge("bluestore", name, help, value);
        out.extend([
            counter("txc", "Transactions committed", counters.transactions),
            counter("kv_batches", "Group commits, each one synced write of the database", counters.batches),
            counter("device_flushes", "Flushes of the block device", counters.device_flushes),
            gauge("allocated", "Bytes allocated for objects' data", usage.allocated_bytes),
            gauge("stored", "Bytes of objects' data as written", usage.stored_bytes),
            gauge("omap", "Bytes of omap entries, as estimated by the database", usage.omap_bytes),
            gauge("meta", "Bytes of other metadata, as estimated by the database", usage.meta_bytes),
        ]);
    }

    fn compact(&self, progress: &mut dyn FnMut(&str, usize, usize)) -> Result<()> {
        // Does not hold the mounted state: closing the store ends the compaction instead of waiting for it.
        let _compacting = self.compacting.lock();
        let inner = Arc::clone(self.inner()?.0.as_ref().ok_or(StoreError::NotMounted)?);
        inner.check()?;
        let done = inner.db.compact(&inner.ending, progress);
        inner.check()?;
        if done { Ok(()) } else { Err(StoreError::NotMounted) }
    }

    fn free_space(&self, max: usize) -> Option<FreeSpace> {
        let inner = self.inner().ok()?;
        let space = inner.space.lock();
        let (runs, more) = space.free_runs(max);
        Some(FreeSpace {
            capacity_bytes: inner.total_bytes(),
            unit_bytes: inner.unit_blocks * BLOCK_BYTES,
            free_bytes: (space.free_blocks() + space.blocks_above_frontier()) * BLOCK_BYTES,
            extents: runs.iter().map(|run| (run.start * BLOCK_BYTES, run.blocks * BLOCK_BYTES)).collect(),
            more,
        })
    }

    fn set_data_options(&self, pools: BTreeMap<PoolId, DataOptions>) {
        if let Ok(inner) = self.inner() {
            *inner.data_options.write() = pools;
            inner.data_version.fetch_add(1, Ordering::Release);
        }
    }

    fn statfs(&self) -> Result<Statfs> {
        let inner = self.inner()?;
        inner.check()?;
        let pools = inner.queue.usage();
        let room_bytes = inner.device_room();
        let available_bytes = if inner.is_db_full() { 0 } else { room_bytes };
        let taken_bytes = {
            let space = inner.space.lock();
            inner.total_bytes() - (space.free_blocks() + space.blocks_above_frontier()) * BLOCK_BYTES
        };
        Ok(Statfs {
            // A device that grows on demand is no larger than the file system below has room for. A database's file system
            // that is low on space does not reduce its size.
            total_bytes: inner.total_bytes().min(taken_bytes + room_bytes),
            available_bytes,
            allocated_bytes: pools.values().map(|pool| pool.allocated_bytes).sum(),
            stored_bytes: pools.values().map(|pool| pool.stored_bytes).sum(),
            omap_bytes: inner.db.estimated_bytes(Family::Omap),
            meta_bytes: [Family::Onodes, Family::Csum, Family::PgLog, Family::Collections, Family::Shared]
                .into_iter()
                .map(|family| inner.db.estimated_bytes(family))
                .sum(),
            pools,
        })
    }

    fn reserve(&self, bytes: u64) -> Result<SpaceReservation> {
        let inner = self.inner()?;
        inner.check()?;
        // The first and the last unit may be used only in part, but count in full.
        let bytes = bytes.saturating_add(2 * (inner.unit_blocks - 1) * BLOCK_BYTES);
        let spare =
            u128::from(inner.total_bytes()) * u128::from(1_000_000 - inner.config.full_micro) / 1_000_000;
        // Commits and `statfs` check the database's file system. While it is low, even a reservation of 0 bytes fails.
        let is_low = inner.db_full.load(Ordering::Relaxed);
        let room = if is_low { 0 } else { inner.device_room() };
        let available =
            room.saturating_sub(spare as u64).saturating_sub(inner.reserved.load(Ordering::Relaxed));
        if is_low || bytes > available {
            return Err(StoreError::NoSpace { wanted_bytes: bytes, available_bytes: available });
        }
        Ok(SpaceReservation::new(&inner.reserved, bytes))
    }

    fn super_get(&self, key: &str) -> Result<Option<Bytes>> {
        let inner = self.inner()?;
        inner.check()?;
        let value = inner.db.get(Family::Super, &[state::OWNER_PREFIX, key.as_bytes()].concat())?;
        Ok(value.map(|value| Bytes::copy_from_slice(&value)))
    }

    fn super_set(&self, values: &[(&str, Option<Bytes>)]) -> Result<()> {
        let inner = self.inner()?;
        inner.check()?;
        let mut batch = RawBatch::default();
        for (key, value) in values {
            let key = [state::OWNER_PREFIX, key.as_bytes()].concat();
            match value {
                Some(value) => batch.put(inner.ids, Family::Super, &key, value),
                None => batch.delete(inner.ids, Family::Super, &key),
            }
        }
        let wait = Arc::new(CommitWaiter::default());
        inner.queue.push(QueuedTxn {
            batch,
            writes: Vec::new(),
            overwrites: Vec::new(),
            allocated: Vec::new(),
            freed: Vec::new(),
            pool: PoolId(0),
            usage: apply::UsageChange::default(),
            collection: None,
            on_commit: Some(Completion { sink: wait.clone(), token: 0 }),
        })?;
        wait.wait()
    }

    fn super_list(&self, prefix: &str) -> Result<Vec<(String, Bytes)>> {
        let inner = self.inner()?;
        inner.check()?;
        let first = [state::OWNER_PREFIX, prefix.as_bytes()].concat();
        let mut range = inner.db.range(Family::Super, &first, None);
        let mut found = Vec::new();
        while let Some((key, value)) = range.next()? {
            let Some(key) =
                key.strip_prefix(state::OWNER_PREFIX).filter(|key| key.starts_with(prefix.as_bytes()))
            else {
                break;
            };
            found.push((String::from_utf8_lossy(key).into_owned(), Bytes::copy_from_slice(value)));
        }
        Ok(found)
    }
}

impl ReadStore for BlueStore {
    fn read(&self, coll: PgId, oid: &ObjectId, offset: u64, len: u64) -> Result<Bytes> {
        let inner = self.inner()?;
        // Held until the data that was read is cached. Until then, data that overwrites these blocks stays in the cache, and
        // is not replaced by the data that was read.
        let (onode, len, loaded, _reading) = inner.with(coll, |collection| {
            let onode = inner.existing(collection, oid)?;
            let len = len.min(onode.size.saturating_sub(offset));
            let loaded = inner.load_range_checksums(&onode, offset, offset + len)?;
            Ok((onode, len, loaded, ActiveRead::begin(&inner)))
        })?;
        fail::fail_point!("store::read");
        let mut fills = Vec::new();
        let read = inner.read_with_checksums(&onode, &loaded, offset, len, &mut fills);
        drop(onode);
        let fill_bytes: usize = fills.iter().map(|(_, _, bytes)| bytes.len()).sum();
        if fill_bytes > 0 && fill_bytes as u64 <= inner.config.cache_bytes / 8 {
            inner.with(coll, |collection| {
                inner.account(collection.onodes.add_contents(oid, fills));
                Ok(())
            })?;
        }
        inner.trim_cache();
        read
    }

    fn extents(&self, coll: PgId, oid: &ObjectId, offset: u64, len: u64) -> Result<Vec<(u64, u64)>> {
        let inner = self.inner()?;
        let onode = inner.with(coll, |collection| inner.existing(collection, oid))?;
        let end = offset.saturating_add(len).min(onode.size);
        let first = onode.extents.partition_point(|extent| extent.end() <= offset);
        let touched = onode.extents[first..].iter().take_while(|extent| extent.logical < end);
        Ok(touched
            .map(|extent| {
                let from = extent.logical.max(offset);
                (from, extent.end().min(end) - from)
            })
            .collect())
    }

    fn stat(&self, coll: PgId, oid: &ObjectId) -> Result<ObjectStat> {
        let inner = self.inner()?;
        let onode = inner.with(coll, |collection| inner.existing(collection, oid))?;
        Ok(ObjectStat { size: onode.size, has_omap: onode.omap != 0 })
    }

    fn get_attr(&self, coll: PgId, oid: &ObjectId, name: &str) -> Result<Option<Bytes>> {
        let inner = self.inner()?;
        let onode = inner.with(coll, |collection| inner.existing(collection, oid))?;
        Ok(onode.attr(name).cloned())
    }

    fn get_attrs(&self, coll: PgId, oid: &ObjectId) -> Result<Vec<(String, Bytes)>> {
        let inner = self.inner()?;
        let onode = inner.with(coll, |collection| inner.existing(collection, oid))?;
        Ok(onode.attrs.iter().map(|(name, value)| (name.to_string(), value.clone())).collect())
    }

    fn omap_get_header(&self, coll: PgId, oid: &ObjectId) -> Result<Bytes> {
        let inner = self.inner()?;
        inner.with(coll, |collection| {
            let id = inner.existing(collection, oid)?.omap;
            if id == 0 {
                return Ok(Bytes::new());
            }
            let header = omap::get(&inner, id, collection.omaps.get(id), &omap::header_key())?;
            Ok(header.unwrap_or_default())
        })
    }

    fn omap_get(&self, coll: PgId, oid: &ObjectId, keys: &[Bytes]) -> Result<Vec<(Bytes, Bytes)>> {
        let inner = self.inner()?;
        inner.with(coll, |collection| {
            let id = inner.existing(collection, oid)?.omap;
            let mut found = Vec::new();
            for key in keys.iter().filter(|_| id != 0) {
                if let Some(value) = omap::get(&inner, id, collection.omaps.get(id), &omap::entry_key(key))? {
                    found.push((key.clone(), value));
                }
            }
            Ok(found)
        })
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
        let bounds = omap::Bounds { start_after, prefix, max, max_bytes };
        self.omap_page(coll, oid, bounds, |key, value| {
            ((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)), key.len() + value.len())
        })
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
        let bounds = omap::Bounds { start_after, prefix, max, max_bytes };
        self.omap_page(coll, oid, bounds, |key, _| (Bytes::copy_from_slice(key), key.len()))
    }

    fn list_objects(
        &self,
        coll: PgId,
        from: &ObjectId,
        to: Option<&ObjectId>,
        max: usize,
    ) -> Result<Page<ObjectId>> {
        let inner = self.inner()?;
        if to.is_some_and(|to| to <= from) {
            inner.with(coll, |_| Ok(()))?;
            return Ok(Page { entries: Vec::new(), more: false });
        }
        let end = to.map_or_else(|| keys::collection_end(coll), |to| keys::onode(coll, to));
        // Both views are taken under the lock, so the iterator sees every entry that the overlay drops later.
        let (queued, mut stored) = inner.with(coll, |collection| {
            let queued = collection.names.range(from, to);
            Ok((queued, inner.db.range(Family::Onodes, &keys::onode(coll, from), Some(end))))
        })?;
        let mut queued = queued.into_iter().peekable();
        let mut entries = Vec::new();
        let mut next_stored = None;
        loop {
            if next_stored.is_none()
                && let Some((key, _)) = stored.next()?
            {
                let Some((_, oid)) = keys::split_onode(key) else { continue };
                next_stored = Some(oid);
            }
            let take_queued = match (&next_stored, queued.peek()) {
                (None, None) => return Ok(Page { entries, more: false }),
                (Some(stored), Some((queued, _))) => queued <= stored,
                (stored, _) => stored.is_none(),
            };
            let oid = if take_queued {
                let Some((oid, exists)) = queued.next() else { continue };
                if next_stored.as_ref() == Some(&oid) {
                    next_stored = None;
                }
                exists.then_some(oid)
            } else {
                next_stored.take()
            };
            if let Some(oid) = oid {
                if entries.len() >= max {
                    return Ok(Page { entries, more: true });
                }
                entries.push(oid);
            }
        }
    }

    fn list_collections(&self) -> Result<Vec<PgId>> {
        let inner = self.inner()?;
        inner.check()?;
        let collections = inner.collections.read();
        let existing = collections.iter().filter(|(_, collection)| !collection.lock().removed);
        Ok(existing.map(|(id, _)| *id).collect())
    }

    fn collection_exists(&self, coll: PgId) -> Result<bool> {
        match self.inner()?.with(coll, |_| Ok(())) {
            Ok(()) => Ok(true),
            Err(StoreError::NoCollection(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn collection_meta(&self, coll: PgId) -> Result<Vec<(String, Bytes)>> {
        self.inner()?.with(coll, |collection| {
            Ok(collection.meta.iter().map(|(name, value)| (name.clone(), value.clone())).collect())
        })
    }

    fn read_log(&self, coll: PgId, after: Eversion, max: usize) -> Result<Vec<(Eversion, Bytes)>> {
        let inner = self.inner()?;
        inner.with(coll, |collection| {
            inner.load_log(collection)?;
            let wanted = collection.log.after(after, max);
            let Some((first, _)) = wanted.iter().find(|(_, entry)| entry.is_none()) else {
                return Ok(wanted
                    .into_iter()
                    .filter_map(|(version, entry)| Some((version, entry?)))
                    .collect());
            };
            let end = Some(keys::collection_end(coll));
            let mut range = inner.db.range(Family::PgLog, &keys::log(coll, *first), end);
            let mut entries = Vec::with_capacity(wanted.len());
            for (version, entry) in wanted {
                let entry = match entry {
                    Some(entry) => entry,
                    None => loop {
                        let missing =
                            || StoreError::corrupt(format!("log of {coll}"), format!("no {version}"));
                        let (key, value) = range.next()?.ok_or_else(missing)?;
                        match keys::split_log(key) {
                            Some((_, found)) if found == version => break Bytes::copy_from_slice(value),
                            Some((_, found)) if found > version => return Err(missing()),
                            _ => {}
                        }
                    },
                };
                entries.push((version, entry));
            }
            Ok(entries)
        })
    }
}

impl BlueStore {
    fn omap_page<T>(
        &self,
        coll: PgId,
        oid: &ObjectId,
        bounds: omap::Bounds<'_>,
        make: impl Fn(&[u8], &[u8]) -> (T, usize),
    ) -> Result<Page<T>> {
        let inner = self.inner()?;
        inner.with(coll, |collection| match inner.existing(collection, oid)?.omap {
            0 => Ok(Page { entries: Vec::new(), more: false }),
            id => omap::page(&inner, id, collection.omaps.get(id), bounds, make),
        })
    }
}
