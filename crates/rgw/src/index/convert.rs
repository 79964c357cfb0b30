//! Converts indexes of format 1 (docs/format/index.md, "Conversion of format 1").
//!
//! A bucket is converted before its index is used in any other way. The conversion waits for pending changes of gateways of
//! earlier releases. Dead gateways are fenced, and the records of keys with their pending changes are written according to
//! the heads.

use super::{ChangeRecovery, IndexParts};
use crate::bucket::{Bucket, Buckets, FreezeReason, IndexFormat};
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::execute;
use crate::garbage::GarbageQueue;
use crate::lease::Leases;
use crate::message::GatewayMessage;
use crate::peers::{MetadataCache, Peers};
use crate::shards::{IndexShards, RESHARD_POLL_INTERVAL, RESHARD_WAIT_TIMEOUT, shard_name};
use crate::stored::StoredObjects;
use crate::uploads::Uploads;
use bytes::Bytes;
use futures::stream::{self, TryStreamExt};
use nacre_index::key::{self, IndexRecordKind};
use nacre_index::legacy::{self, OldPending};
use nacre_index::record::{self, Stats};
use nacre_index::reshard;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Records per page.
const PAGE: u64 = 1000;
/// Shards converted concurrently.
const SHARDS: usize = 8;
/// How long to wait for pending changes of running gateways.
const FINISH_TIMEOUT: Duration = Duration::from_secs(10);

/// A pending change of format 1: shard, key, tag and record.
type OldChange = (String, String, String, OldPending);

/// The buckets as requests use them: with indexes in the current format.
pub(crate) struct ConvertedBuckets {
    connection: Arc<Connection>,
    peers: Arc<Peers>,
    leases: Arc<Leases>,
    pub(super) records: Arc<Buckets>,
    shards: Arc<IndexShards>,
    uploads: Arc<Uploads>,
    objects: Arc<StoredObjects>,
    garbage: Arc<GarbageQueue>,
    recovery: Arc<ChangeRecovery>,
    cache: MetadataCache<Bucket>,
}

impl ConvertedBuckets {
    pub(crate) fn new(parts: &IndexParts, recovery: &Arc<ChangeRecovery>) -> Arc<ConvertedBuckets> {
        let cache = MetadataCache::new(&parts.peers, |buckets, change| {
            if let GatewayMessage::Bucket(name) = change {
                buckets.remove(name);
            }
        });
        Arc::new(ConvertedBuckets {
            connection: Arc::clone(&parts.connection),
            peers: Arc::clone(&parts.peers),
            leases: Arc::clone(&parts.leases),
            records: Arc::clone(&parts.buckets),
            shards: Arc::clone(&parts.shards),
            uploads: Arc::clone(&parts.uploads),
            objects: Arc::clone(&parts.objects),
            garbage: Arc::clone(&parts.garbage),
            recovery: Arc::clone(recovery),
            cache,
        })
    }

    /// Reads the bucket of that name. Converts an index of an older format first.
    pub(crate) async fn get(self: &Arc<ConvertedBuckets>, name: &str) -> Result<Bucket> {
        let mut bucket = self.records.record(name).await?;
        let deadline = Instant::now() + RESHARD_WAIT_TIMEOUT;
        loop {
            if bucket.index_format == IndexFormat::V2 {
                return Ok(bucket);
            }
            let buckets = Arc::clone(self);
            let seen = bucket.clone();
            // The conversion must continue if the request is dropped.
            let converting = tokio::spawn(async move { buckets.convert_index(&seen).await });
            match converting.await.map_err(Error::task_failed("the conversion of a bucket's index"))? {
                // Another gateway may be converting it.
                Err(Error::IndexBusy(_)) if Instant::now() < deadline => {}
                converted => return converted,
            }
            tokio::time::sleep(RESHARD_POLL_INTERVAL).await;
            bucket = self.records.record(&bucket.name).await?;
        }
    }

    /// Returns the bucket of that name, as of the beginning of the call or later.
    pub(crate) async fn cached(self: &Arc<ConvertedBuckets>, name: &str) -> Result<Arc<Bucket>> {
        self.cache.get(name, self.get(name)).await
    }

    async fn convert_index(&self, seen: &Bucket) -> Result<Bucket> {
        let tag = self.connection.new_tag();
        let bucket = self.shards.begin_freeze(seen, FreezeReason::Conversion, &tag).await?;
        let converting = async {
            let orphans = self.old_orphans(&bucket).await?;
            self.convert_shards(&bucket, &tag, &orphans).await?;
            self.records
                .modify(&bucket.name, |now| {
                    if now.id != bucket.id || now.generation != bucket.generation || !now.is_frozen_by(&tag) {
                        return Err(Error::IndexBusy(now.name.clone()));
                    }
                    (now.index_format, now.closing) = (IndexFormat::V2, None);
                    Ok(())
                })
                .await
        };
        // Converting a large index takes longer than others wait for an attempt that is not renewed.
        let converted = tokio::select! {
            converted = converting => converted,
            lost = self.shards.renew_until_lost(&bucket, &tag) => Err(lost),
        };
        let now = match converted {
            Ok(now) => now,
            Err(error) => {
                self.shards.abort_freeze(&bucket, &tag).await?;
                return Err(error);
            }
        };
        self.shards.thaw(&now, &tag).await?;
        for number in 0..now.shards.max(1) {
            self.shards.drop_old_records(&shard_name(&now, number)).await?;
        }
        tracing::info!(bucket = now.name, "rgw: a bucket's index is converted to format 2");
        self.records.record(&now.name).await
    }

    /// Waits until only fenced gateways have pending changes, and returns these changes.
    async fn old_orphans(&self, bucket: &Bucket) -> Result<Vec<OldChange>> {
        let started = Instant::now();
        let mut fenced = BTreeSet::new();
        loop {
            let pending = self.old_pending(bucket).await?;
            let alive = self.peers.live_gateways().await?;
            let sessions: BTreeSet<&str> = pending.iter().map(|(.., old)| old.session.as_str()).collect();
            let mut waiting = false;
            for session in sessions {
                if fenced.contains(session) {
                    continue;
                }
                if !alive.contains(session) && self.leases.claim_if_dead(session).await? {
                    self.recovery.fence(session).await?;
                    self.leases.remove(session).await?;
                    fenced.insert(session.to_owned());
                } else {
                    waiting = true;
                }
            }
            if !waiting {
                return Ok(pending);
            }
            if started.elapsed() > FINISH_TIMEOUT {
                return Err(Error::IndexBusy(bucket.name.clone()));
            }
            tokio::time::sleep(RESHARD_POLL_INTERVAL).await;
        }
    }

    async fn old_pending(&self, bucket: &Bucket) -> Result<Vec<OldChange>> {
        let mut found = Vec::new();
        for number in 0..bucket.shards.max(1) {
            let shard = shard_name(bucket, number);
            let mut after = Bytes::new();
            loop {
                let page = self.shards.pool().omap_get_vals(&shard, after, "p", PAGE).await?;
                for (name, value) in &page.entries {
                    if let Some((key, tag, old)) = legacy::pending(&shard, name, value)? {
                        found.push((shard.clone(), key, tag, old));
                    }
                }
                match page.entries.last() {
                    Some((last, _)) if page.more => after = last.clone(),
                    _ => break,
                }
            }
        }
        Ok(found)
    }

    /// Writes the records of format 2 beside those of format 1.
    async fn convert_shards(&self, bucket: &Bucket, tag: &str, orphans: &[OldChange]) -> Result<()> {
        stream::iter((0..bucket.shards.max(1)).map(Ok::<_, Error>))
            .try_for_each_concurrent(SHARDS, |number| async move {
                let shard = shard_name(bucket, number);
                execute::write(self.shards.pool(), &shard, legacy::clear_converted(tag)).await?;
                for kind in ["o", "t", "m"] {
                    self.copy_old_records(&shard, kind, tag).await?;
                }
                let mut keys: BTreeMap<&str, Vec<&OldChange>> = BTreeMap::new();
                for change in orphans.iter().filter(|(of, ..)| *of == shard) {
                    keys.entry(&change.1).or_default().push(change);
                }
                for (key, changes) in keys {
                    self.convert_orphans(bucket, (&shard, tag), key, &changes).await?;
                }
                self.sum_records(&shard, tag).await
            })
            .await
    }

    async fn copy_old_records(&self, shard: &str, kind: &'static str, tag: &str) -> Result<()> {
        let mut after = Bytes::new();
        loop {
            let page = self.shards.pool().omap_get_vals(shard, after, kind, PAGE).await?;
            if !page.entries.is_empty() {
                let write = legacy::convert_page(shard, tag, &page.entries)?;
                execute::write(self.shards.pool(), shard, write).await?;
            }
            match page.entries.last() {
                Some((last, _)) if page.more => after = last.clone(),
                _ => return Ok(()),
            }
        }
    }

    /// Makes the records of a key equal to what its head says, and passes the tails that its pending changes left to garbage
    /// collection.
    async fn convert_orphans(
        &self,
        bucket: &Bucket,
        (shard, tag): (&str, &str),
        key: &str,
        changes: &[&OldChange],
    ) -> Result<()> {
        for (_, _, change, old) in changes {
            if !old.parts.is_empty() {
                self.uploads.resolve_v1(bucket, key, change).await?;
            }
        }
        // Uploads are read first, because parts move from them to the head.
        let mut named = Vec::new();
        for id in self.uploads.ids_of(bucket, key).await? {
            named.extend(self.uploads.tails(bucket, key, &id).await?.unwrap_or_default());
        }
        let head = self.objects.head_index_entry(&bucket.id, key).await?;
        named.extend(self.objects.referenced_tails(&bucket.id, key).await?);
        let stored = self.shards.pool().omap_get_vals_by_keys(shard, vec![key::tails(key)]).await?;
        let before = match stored.get(&key::tails(key)) {
            Some(value) => record::decode::<record::EntryTails>(shard, value)?.tails,
            None => Vec::new(),
        };
        let own =
            changes.iter().flat_map(|(.., old)| old.tails.iter().chain(&old.replaced).chain(&old.parts));
        let garbage: Vec<_> = own
            .chain(&before)
            .filter(|tails| named.iter().all(|named| named.name != tails.name))
            .cloned()
            .collect();
        self.garbage.queue(&garbage).await?;
        let object = head.map(|head| (head.listed, head.tails));
        execute::write(self.shards.pool(), shard, legacy::replace_converted(tag, key, object)).await?;
        Ok(())
    }

    /// Writes the sums of a shard's converted entries.
    async fn sum_records(&self, shard: &str, tag: &str) -> Result<()> {
        let mut sums = Stats::default();
        let mut after = Bytes::new();
        loop {
            let page =
                self.shards.pool().omap_get_vals(shard, after, IndexRecordKind::Entry.prefix(), PAGE).await?;
            for (name, value) in &page.entries {
                sums.add(reshard::record_stats(shard, name, value)?);
            }
            match page.entries.last() {
                Some((last, _)) if page.more => after = last.clone(),
                _ => break,
            }
        }
        let sums = (Bytes::from_static(key::STATS), record::encode(&sums));
        execute::write(self.shards.pool(), shard, reshard::add(tag, vec![sums])).await?;
        Ok(())
    }
}
