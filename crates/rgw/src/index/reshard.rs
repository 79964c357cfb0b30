//! Moves a bucket's index into another number of shards, while the bucket is in use.
//!
//! Entries and uploads are copied into closed shards of the next generation while the bucket is written to. Then the old
//! shards are closed, and pending changes get some time to be finished. After that the old shards are frozen: nothing is
//! finished in them either. All records that differ are copied, including changes that are still pending, and the outbox.
//! The bucket's record is set to the new generation, its shards are opened, and the old ones are removed. Writers wait
//! between the closing and the opening, about as long as two reads of the index take. Gateways that finish changes wait
//! while the shards are frozen, and then follow the records.
//!
//! If an attempt is interrupted, the worker of any gateway takes over: the bucket stays on a list until the work is done,
//! and the work starts again with another generation. The bucket's record names the attempt that it waits for, and the
//! attempt that keeps the old shards closed. No other attempt can complete the work or open the shards.

use super::{BucketIndex, ConvertedBuckets};
use crate::bucket::{Bucket, Buckets, FreezeReason};
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::execute;
use crate::record;
use crate::shards::{IndexShards, shard_name};
use crate::time::now_ns;
use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use nacre_client::IoCtx;
use nacre_index::key::{self, IndexRecordKind};
use nacre_index::op::{Guard, Step, Write};
use nacre_index::record::Stats;
use nacre_index::reshard;
use nacre_types::encoding::Versioned;
use nacre_types::errno::Errno;
use nacre_types::hash::ceph_str_hash_rjenkins;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The object in the log pool that lists buckets to be resharded.
const LIST: &str = "reshard.0";
/// Its lock, held by the gateway that reshards.
const LOCK: &str = "reshard_process";
/// The maximum number of shards of a bucket (`rgw_max_dynamic_shards` is lower).
pub const MAX_SHARDS: u32 = 65_521;
/// Entries per page.
const PAGE: u64 = 1000;
/// Shards processed concurrently.
const SHARDS: usize = 8;
/// How long to wait for pending changes. Changes that are left move with the other records.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a requested resharding waits for the lock of another gateway.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);
/// Time between attempts to take the lock.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// The kinds of records that are copied while the bucket is in use. There are few records of other kinds.
const BULK: [IndexRecordKind; 3] = [IndexRecordKind::Upload, IndexRecordKind::Entry, IndexRecordKind::Tails];

/// A bucket that is to be resharded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReshardEntry {
    /// The bucket's id.
    pub id: String,
    /// The number of shards that it had at the time of the request.
    pub from: u32,
    /// The requested number of shards.
    pub shards: u32,
    /// The time of the request, in nanoseconds since 1970.
    pub requested_ns: u64,
}

impl Versioned for ReshardEntry {
    const NAME: &'static str = "reshard entry";
}

/// Returns the bucket with another generation of its index, given with the number of its shards.
fn with_generation(bucket: &Bucket, (generation, shards): (u32, u32)) -> Bucket {
    Bucket { generation, shards, ..bucket.clone() }
}

/// Returns the shard of `bucket` that a record belongs to; `None` for records that are not moved.
fn shard_for(bucket: &Bucket, name: &[u8]) -> Option<u32> {
    reshard::routing_key(name).map(|key| ceph_str_hash_rjenkins(key.as_bytes()) % bucket.shards.max(1))
}

/// How a gateway reshards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReshardSettings {
    /// The number of objects that a shard should have at most; 0 for no limit.
    pub(crate) objects_per_shard: u64,
    /// The maximum number of shards that a bucket gets because it has too many objects.
    pub(crate) dynamic_shards: u32,
    /// How long a gateway that reshards may be silent before another one takes over.
    pub(crate) lock_time: Duration,
}

/// Moves buckets' indexes into other numbers of shards.
pub struct Resharder {
    connection: Arc<Connection>,
    records: Arc<Buckets>,
    buckets: Arc<ConvertedBuckets>,
    shards: Arc<IndexShards>,
    index: Arc<BucketIndex>,
    settings: ReshardSettings,
}

impl Resharder {
    pub(crate) fn new(
        connection: &Arc<Connection>,
        buckets: &Arc<ConvertedBuckets>,
        index: &Arc<BucketIndex>,
        settings: ReshardSettings,
    ) -> Resharder {
        Resharder {
            connection: Arc::clone(connection),
            records: Arc::clone(&buckets.records),
            buckets: Arc::clone(buckets),
            shards: Arc::clone(&index.shards),
            index: Arc::clone(index),
            settings,
        }
    }

    /// The pool of the list of buckets to be resharded.
    fn list(&self) -> &IoCtx {
        &self.connection.pools.reshard
    }

    /// Requests that the worker of a gateway reshards a bucket.
    pub async fn request(&self, bucket: &Bucket, shards: u32) -> Result<()> {
        if !(1..=MAX_SHARDS).contains(&shards) {
            return Err(Error::Invalid(format!("a bucket has between 1 and {MAX_SHARDS} shards")));
        }
        let from = bucket.shards;
        let entry = ReshardEntry { id: bucket.id.clone(), from, shards, requested_ns: now_ns() };
        let entry = (Bytes::from(bucket.name.clone()), record::encode(&entry));
        Ok(self.list().omap_set(LIST, vec![entry]).await?)
    }

    /// Returns the buckets that are to be resharded.
    pub async fn entries(&self) -> Result<Vec<(String, ReshardEntry)>> {
        let (mut all, mut after) = (Vec::new(), Bytes::new());
        loop {
            let page = match self.list().omap_get_vals(LIST, after.clone(), "", PAGE).await {
                Err(error) if error.is_not_found() => return Ok(all),
                page => page?,
            };
            for (name, value) in &page.entries {
                after = name.clone();
                all.push((String::from_utf8_lossy(name).into_owned(), record::decode(LIST, value)?));
            }
            if !page.more {
                return Ok(all);
            }
        }
    }

    /// Removes a bucket from the list of buckets to be resharded. An attempt that has started goes on.
    pub async fn withdraw_request(&self, name: &str) -> Result<()> {
        match self.list().omap_rm_keys(LIST, vec![Bytes::from(name.to_owned())]).await {
            Err(error) if error.is_not_found() => Ok(()),
            removed => Ok(removed?),
        }
    }

    /// Moves a bucket's index into `shards` shards, and waits until that is done. While another gateway reshards, this waits for
    /// at most [`LOCK_TIMEOUT`].
    pub async fn reshard_bucket(&self, name: &str, shards: u32) -> Result<()> {
        let bucket = self.buckets.get(name).await?;
        // Before the request, so that the worker of a gateway does not take the lock for it.
        let deadline = Instant::now() + LOCK_TIMEOUT;
        while !self.lock().await? {
            if Instant::now() >= deadline {
                return Err(Error::Contended("the list of buckets to reshard".into()));
            }
            tokio::time::sleep(LOCK_RETRY_INTERVAL).await;
        }
        let work = async {
            self.request(&bucket, shards).await?;
            self.reshard(name).await
        };
        self.holding_lock(work).await
    }

    /// Reshards the buckets on the list, unless another gateway does.
    pub async fn process(&self) -> Result<()> {
        if self.entries().await?.is_empty() || !self.lock().await? {
            return Ok(());
        }
        let all = async {
            for (name, _) in self.entries().await? {
                if let Err(error) = self.reshard(&name).await {
                    tracing::warn!(%error, bucket = name, "rgw: a bucket waits to be resharded");
                }
            }
            Ok(())
        };
        self.holding_lock(all).await
    }

    async fn lock(&self) -> Result<bool> {
        let renew = nacre_types::cls::lock::MAY_RENEW;
        let time = self.settings.lock_time;
        let taken = self.list().lock_exclusive(LIST, LOCK, self.connection.session(), "", time, renew);
        match taken.await {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.errno(), Errno::EBUSY | Errno::EEXIST) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Runs `work` while the lock can be renewed, and then releases the lock.
    async fn holding_lock(&self, work: impl Future<Output = Result<()>>) -> Result<()> {
        let keep = async {
            loop {
                tokio::time::sleep(self.settings.lock_time / 3).await;
                match self.lock().await {
                    Ok(true) => {}
                    Ok(false) => return Error::Contended("the list of buckets to reshard".into()),
                    Err(error) => return error,
                }
            }
        };
        let done = tokio::select! {
            done = work => done,
            lost = keep => Err(lost),
        };
        if let Err(error) = self.list().unlock(LIST, LOCK, self.connection.session()).await {
            tracing::debug!(%error, "rgw: a lock was not given back");
        }
        done
    }

    /// Reshards a bucket as the list says. The caller holds the lock. If another gateway has taken the lock meanwhile, the
    /// bucket's record prevents this attempt from completing.
    async fn reshard(&self, name: &str) -> Result<()> {
        let entries: HashMap<String, ReshardEntry> = self.entries().await?.into_iter().collect();
        let Some(entry) = entries.get(name) else { return Ok(()) };
        let entry = &self.renew_entry(name, entry).await?;
        let old = match self.buckets.get(name).await {
            Ok(bucket) if bucket.id == entry.id => bucket,
            // The bucket was removed, or is another one of the same name.
            Ok(_) | Err(Error::NoSuchBucket(_)) => return self.withdraw_request(name).await,
            Err(error) => return Err(error),
        };
        let old = self.clean_up_other_attempts(&old).await?;
        // Opens the index: writers need not wait while this attempt only copies.
        if let Some(closing) = old.closing.as_ref().filter(|closing| closing.reason == FreezeReason::Reshard)
        {
            self.shards.abort_freeze(&old, &closing.tag).await?;
        }
        if old.shards == entry.shards {
            // An attempt may have ended after the record no longer named it, but before it opened what it had frozen.
            for shard in 0..old.shards.max(1) {
                self.shards.thaw_abandoned(&old, &shard_name(&old, shard)).await?;
            }
            return self.complete_reshard(&old, entry).await;
        }
        let generation = old.generation.max(old.stale_generation.map_or(0, |(generation, _)| generation)) + 1;
        let new = with_generation(&old, (generation, entry.shards));
        let noted = self.records.modify(name, |bucket| {
            let is_same = bucket.id == old.id && bucket.generation == old.generation;
            if !is_same || bucket.resharding.is_some() {
                return Err(Error::IndexBusy(bucket.name.clone()));
            }
            (bucket.resharding, bucket.stale_generation) = (Some((generation, new.shards)), None);
            Ok(())
        });
        let old = noted.await?;
        tracing::info!(
            bucket = name,
            from = old.shards,
            to = new.shards,
            "rgw: a bucket's index is resharded"
        );
        let tag = self.connection.new_tag();
        let moving = async {
            self.shards.create_closed(&new, &tag).await?;
            self.copy(&old, &new, (&*tag, &BULK[..])).await?;
            self.shards.begin_freeze(&old, FreezeReason::Reshard, &tag).await?;
            self.switch(&old, &new, &tag).await
        };
        let new = match moving.await {
            Ok(new) => new,
            Err(error) => {
                // Opens the index: writers need not wait for the next attempt. If this attempt is no longer valid, it either
                // completed without learning of it, or another attempt takes over what it leaves. In both cases its shards
                // stay, unless the bucket was removed.
                let gone = match self.buckets.get(name).await {
                    Ok(now) => now.id != old.id,
                    Err(Error::NoSuchBucket(_)) => true,
                    Err(error) => return Err(error),
                };
                if gone || self.shards.abort_freeze(&old, &tag).await? {
                    self.shards.remove(&new).await?;
                }
                return Err(error);
            }
        };
        self.shards.thaw(&new, &tag).await?;
        self.shards.remove(&old).await?;
        self.complete_reshard(&new, entry).await
    }

    /// Removes what other attempts have left, whether the record names them as current or as ended; returns the bucket
    /// afterwards.
    async fn clean_up_other_attempts(&self, seen: &Bucket) -> Result<Bucket> {
        // This was the index before a completed attempt, or never became the index.
        if let Some(left) = seen.stale_generation {
            self.shards.remove(&with_generation(seen, left)).await?;
        }
        // From here on, an attempt that still runs in a gateway without the lock can't complete. What it created may be
        // removed only after that, because it could have become the index before.
        let ended = self.records.modify(&seen.name, |bucket| {
            if bucket.id != seen.id || bucket.generation != seen.generation {
                return Err(Error::IndexBusy(bucket.name.clone()));
            }
            bucket.stale_generation = bucket.resharding.take().or(bucket.stale_generation);
            Ok(())
        });
        let now = ended.await?;
        if let Some(left) = now.stale_generation {
            self.shards.remove(&with_generation(&now, left)).await?;
        }
        Ok(now)
    }

    /// Notes that nothing is left of the previous generation.
    async fn complete_reshard(&self, bucket: &Bucket, entry: &ReshardEntry) -> Result<()> {
        let generation = bucket.generation;
        self.records
            .modify(&bucket.name, |bucket| {
                if bucket.generation == generation && bucket.resharding.is_none() {
                    // The generation of a failed attempt is not used again, because operations of that attempt may arrive late.
                    bucket.stale_generation = bucket.stale_generation.filter(|(left, _)| *left > generation);
                }
                Ok(())
            })
            .await?;
        let name = Bytes::from(bucket.name.clone());
        let guards = vec![Guard::OmapEquals(name.clone(), record::encode(entry))];
        let write = Write { guards, steps: vec![Step::OmapRemove(vec![name])] };
        match execute::write(self.list(), LIST, write).await {
            // Another attempt has renewed the entry, or there was another request.
            Err(error) if error.is_canceled() || error.is_not_found() => Ok(()),
            removed => removed.map(drop),
        }
    }

    /// Renews a bucket's entry in the list before an attempt begins, so that an earlier attempt that ends late does not
    /// remove it. So the bucket is still listed if this attempt's gateway ends.
    async fn renew_entry(&self, name: &str, entry: &ReshardEntry) -> Result<ReshardEntry> {
        let renewed = ReshardEntry { requested_ns: now_ns().max(entry.requested_ns + 1), ..entry.clone() };
        let name = Bytes::from(name.to_owned());
        let steps = vec![Step::OmapSet(vec![(name.clone(), record::encode(&renewed))])];
        let guards = vec![Guard::OmapEquals(name, record::encode(entry))];
        match execute::write(self.list(), LIST, Write { guards, steps }).await {
            Err(error) if error.is_canceled() || error.is_not_found() => {
                Err(Error::Contended("the list of buckets to reshard".into()))
            }
            written => written.map(|_| renewed),
        }
    }

    /// Makes the new shards equal to the old ones, while the attempt of that tag keeps them closed, and makes the bucket's
    /// record name the new ones. Returns the bucket afterwards.
    async fn switch(&self, old: &Bucket, new: &Bucket, tag: &str) -> Result<Bucket> {
        match self.index.wait_no_records(old, IndexRecordKind::Pending, FINISH_TIMEOUT).await {
            // Pending changes move, too.
            Err(Error::IndexBusy(_)) => {}
            finished => finished?,
        }
        self.shards.freeze(old, tag).await?;
        let sums = self.copy(old, new, (tag, &IndexRecordKind::ALL[..])).await?;
        self.drop_stale(old, new, tag).await?;
        stream::iter((0..new.shards).zip(sums).map(Ok::<_, Error>))
            .try_for_each_concurrent(SHARDS, |(shard, sums)| async move {
                let sums = (Bytes::from_static(key::STATS), record::encode(&sums));
                self.add_records(&shard_name(new, shard), tag, vec![sums]).await
            })
            .await?;
        let (generation, shards) = (new.generation, new.shards);
        self.records
            .modify(&old.name, |bucket| {
                let own =
                    bucket.generation == old.generation && bucket.resharding == Some((generation, shards));
                if bucket.id != old.id || !own || !bucket.is_frozen_by(tag) {
                    return Err(Error::IndexBusy(bucket.name.clone()));
                }
                (bucket.stale_generation, bucket.closing) = (Some((bucket.generation, bucket.shards)), None);
                (bucket.generation, bucket.shards, bucket.resharding) = (generation, shards, None);
                Ok(())
            })
            .await
    }

    /// Copies records that the new shards lack or have with another value. Returns the sums of the old shards' entries by
    /// new shard. Fails if the attempt of that tag no longer keeps the new shards closed.
    async fn copy(
        &self,
        old: &Bucket,
        new: &Bucket,
        (tag, kinds): (&str, &[IndexRecordKind]),
    ) -> Result<Vec<Stats>> {
        let copied: Vec<BTreeMap<u32, Stats>> = stream::iter(0..old.shards.max(1))
            .map(|shard| self.copy_shard(shard_name(old, shard), new, (tag, kinds)))
            .buffer_unordered(SHARDS)
            .try_collect()
            .await?;
        let mut sums = vec![Stats::default(); new.shards as usize];
        for (shard, stats) in copied.into_iter().flatten() {
            sums[shard as usize].add(stats);
        }
        Ok(sums)
    }

    async fn copy_shard(
        &self,
        from: String,
        new: &Bucket,
        (tag, kinds): (&str, &[IndexRecordKind]),
    ) -> Result<BTreeMap<u32, Stats>> {
        let mut sums: BTreeMap<u32, Stats> = BTreeMap::new();
        for kind in kinds {
            let mut after = Bytes::new();
            loop {
                let page =
                    self.shards.pool().omap_get_vals(&from, after.clone(), kind.prefix(), PAGE).await?;
                let mut parts: BTreeMap<u32, Vec<(Bytes, Bytes)>> = BTreeMap::new();
                for (name, value) in &page.entries {
                    after = name.clone();
                    let Some(shard) = shard_for(new, name) else { continue };
                    sums.entry(shard).or_default().add(reshard::record_stats(&from, name, value)?);
                    parts.entry(shard).or_default().push((name.clone(), value.clone()));
                }
                for (shard, records) in parts {
                    self.copy_records(&shard_name(new, shard), tag, records).await?;
                }
                if !page.more {
                    break;
                }
            }
        }
        Ok(sums)
    }

    /// Writes those of `records` that a shard lacks or has with another value.
    async fn copy_records(&self, shard: &str, tag: &str, mut records: Vec<(Bytes, Bytes)>) -> Result<()> {
        let names = records.iter().map(|(name, _)| name.clone()).collect();
        let there = self.shards.pool().omap_get_vals_by_keys(shard, names).await?;
        records.retain(|(name, value)| there.get(name) != Some(value));
        if records.is_empty() {
            return Ok(());
        }
        self.add_records(shard, tag, records).await
    }

    /// Writes records of a new shard, which the attempt of that tag must keep closed.
    async fn add_records(&self, shard: &str, tag: &str, records: Vec<(Bytes, Bytes)>) -> Result<()> {
        execute::write(self.shards.pool(), shard, reshard::add(tag, records)).await.map(drop)
    }

    /// Removes copied records that are no longer in the old shards.
    async fn drop_stale(&self, old: &Bucket, new: &Bucket, tag: &str) -> Result<()> {
        stream::iter((0..new.shards).map(Ok::<_, Error>))
            .try_for_each_concurrent(SHARDS, |shard| async move {
                let name = shard_name(new, shard);
                for kind in IndexRecordKind::ALL {
                    self.drop_stale_records(old, &name, (tag, kind)).await?;
                }
                Ok(())
            })
            .await
    }

    async fn drop_stale_records(
        &self,
        old: &Bucket,
        name: &str,
        (tag, kind): (&str, IndexRecordKind),
    ) -> Result<()> {
        let mut after = Bytes::new();
        loop {
            let page = self.shards.pool().omap_get_vals(name, after.clone(), kind.prefix(), PAGE).await?;
            let mut parts: BTreeMap<u32, Vec<Bytes>> = BTreeMap::new();
            for (record, _) in &page.entries {
                after = record.clone();
                if let Some(shard) = shard_for(old, record) {
                    parts.entry(shard).or_default().push(record.clone());
                }
            }
            for (shard, records) in parts {
                let from = shard_name(old, shard);
                let there = self.shards.pool().omap_get_vals_by_keys(&from, records.clone()).await?;
                let stale: Vec<Bytes> =
                    records.into_iter().filter(|record| !there.contains_key(record)).collect();
                if !stale.is_empty() {
                    execute::write(self.shards.pool(), name, reshard::remove(tag, stale)).await?;
                }
            }
            if !page.more {
                return Ok(());
            }
        }
    }

    /// Requests that a bucket is resharded if it has more objects than its shards should have.
    async fn request_if_oversized(&self, name: &str) -> Result<()> {
        let bucket = self.buckets.get(name).await?;
        let (objects, _) = self.shards.usage(&bucket).await?;
        let limit = self.settings.objects_per_shard;
        if limit == 0 || objects <= limit * u64::from(bucket.shards.max(1)) {
            return Ok(());
        }
        // Leaves room for as many objects again.
        let wanted = (objects * 2).div_ceil(limit).min(u64::from(self.settings.dynamic_shards));
        let wanted = u32::try_from(wanted).unwrap_or(MAX_SHARDS);
        if wanted <= bucket.shards {
            return Ok(());
        }
        self.request(&bucket, wanted).await
    }
}

/// Reshards buckets with too many objects in a shard, and those for which it was requested, while the gateway exists.
pub(crate) async fn reshard_periodically(resharder: Weak<Resharder>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        let Some(resharder) = resharder.upgrade() else { return };
        for name in resharder.index.finisher.take_oversized_buckets() {
            match resharder.request_if_oversized(&name).await {
                Ok(()) | Err(Error::NoSuchBucket(_)) => {}
                Err(error) => tracing::warn!(%error, bucket = name, "rgw: a bucket waits to be resharded"),
            }
        }
        if let Err(error) = resharder.process().await {
            tracing::warn!(%error, "rgw: buckets wait to be resharded");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_go_where_their_keys_belong() {
        let bucket = Bucket { shards: 17, ..Bucket::default() };
        let tag = "0123456789abcdef0123456789abcdef";
        for name in ["a", "a/b", "", "ü", "z\0"] {
            let shard = shard_for(&bucket, &key::entry(name)).unwrap();
            for record in
                [key::tails(name), key::upload(name, tag), key::pending(name, tag), key::removal_slot(name)]
            {
                assert_eq!(shard_for(&bucket, &record), Some(shard));
            }
            assert_eq!(shard_name(&bucket, shard), crate::shards::shard_of(&bucket, name));
        }
        assert_eq!(shard_for(&bucket, key::STATS), None);
    }
}
