//! Freezes an index while its bucket is removed or versioning is enabled, or while the index is moved or converted. An attempt
//! first closes the shards: no change may be prepared in them. Where records are copied it then freezes them: pending changes
//! are not finished in them either (docs/format/index.md, "State of a shard").
//!
//! The bucket's record names the attempt that closes the index, and the state of each closed shard names the attempt that
//! closed it. An attempt is valid while the record names it. The purpose of the closing is one change of the record, which
//! asserts that the attempt is valid and removes its name. An attempt that may have died gives way to others; if it is
//! alive, it fails. A shard that an invalid attempt closed is opened by any gateway that meets it.

use super::{IndexShards, shard_name};
use crate::bucket::{Bucket, FreezeLease, FreezeReason, IndexFormat, Versioning};
use crate::error::{Error, Result};
use crate::execute;
use crate::record;
use crate::time::now_ns;
use bytes::Bytes;
use nacre_client::WriteOp;
use nacre_index::legacy;
use nacre_index::reshard;
use nacre_index::state::{self, STATE, closed};
use nacre_types::op::CmpOp;
use std::time::Duration;

/// The states of open shards of format 1.
const V1_OPEN: &str = "open";
const V1_VERSIONED: &str = "versioned";
/// Attempts at a shard whose state others change.
const CHANGE_ATTEMPTS: usize = 16;
/// How often an attempt that may take long renews itself.
const RENEWAL: Duration = Duration::from_secs(30);
/// Records per page.
const PAGE: u64 = 1000;

/// Returns the state of an open index. It depends on versioning, so that a request with an outdated record of the bucket
/// can't prepare a change without versions in a bucket with versions.
pub(crate) fn open_state(bucket: &Bucket) -> &'static str {
    match (bucket.index_format, bucket.versioning) {
        (IndexFormat::V2, Versioning::Off) => state::OPEN,
        (IndexFormat::V2, Versioning::Enabled | Versioning::Suspended) => state::VERSIONED,
        (IndexFormat::V1, Versioning::Off) => V1_OPEN,
        (IndexFormat::V1, Versioning::Enabled | Versioning::Suspended) => V1_VERSIONED,
    }
}

/// The result of checking whether a shard is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShardCheck {
    /// The shard is as it should be, or closed by a valid attempt.
    Consistent,
    /// The shard does not exist.
    Absent,
    /// The shard is closed, but not by a valid attempt.
    Abandoned,
}

impl IndexShards {
    /// Creates an empty index.
    pub(crate) async fn create(&self, bucket: &Bucket) -> Result<()> {
        self.create_as(bucket, open_state(bucket)).await
    }

    /// Creates an empty index that the attempt of that tag keeps closed.
    pub(crate) async fn create_closed(&self, bucket: &Bucket, tag: &str) -> Result<()> {
        self.create_as(bucket, &closed(tag)).await
    }

    async fn create_as(&self, bucket: &Bucket, state: &str) -> Result<()> {
        self.for_all(bucket, |pool, shard| {
            let mut op = WriteOp::new();
            op.create(true).set_xattr(STATE, state.to_owned());
            pool.operate(&shard, op)
        })
        .await
    }

    /// Closes an index for the attempt of that tag: no more changes are prepared, but pending ones are still finished. Returns
    /// the bucket afterwards. Fails with [`Error::IndexBusy`] if another attempt is valid and does not give way, or if the
    /// bucket's index is not the one in `seen`.
    pub(crate) async fn begin_freeze(&self, seen: &Bucket, why: FreezeReason, tag: &str) -> Result<Bucket> {
        let busy = || Error::IndexBusy(seen.name.clone());
        let closing = FreezeLease { tag: tag.to_owned(), reason: why, since_ns: now_ns() };
        let place = |bucket: &Bucket| (bucket.id.clone(), bucket.generation, bucket.resharding);
        let bucket = record::update(self.records(), &seen.name, |bucket: &mut Bucket| {
            let stands = bucket.closing.as_ref().is_some_and(|other| !other.gives_way_to(why));
            if stands || place(bucket) != place(seen) {
                return Err(busy());
            }
            bucket.closing = Some(closing.clone());
            Ok(())
        });
        let bucket = bucket.await?.ok_or_else(|| Error::NoSuchBucket(seen.name.clone()))?;
        let closing = (0..bucket.shards.max(1)).map(|shard| {
            let bucket = &bucket;
            async move { self.close_shard(bucket, &shard_name(bucket, shard), (why, tag)).await }
        });
        let closed: Result<()> = futures::future::join_all(closing).await.into_iter().collect();
        if let Err(error) = closed {
            self.abort_freeze(&bucket, tag).await?;
            return Err(error);
        }
        Ok(bucket)
    }

    /// Closes a shard that is open or was closed by an invalid attempt.
    async fn close_shard(
        &self,
        bucket: &Bucket,
        shard: &str,
        (why, tag): (FreezeReason, &str),
    ) -> Result<()> {
        let own = Bytes::from(closed(tag));
        let mut known = Bytes::from(open_state(bucket));
        for _ in 0..CHANGE_ATTEMPTS {
            let mut op = WriteOp::new();
            op.cmp_xattr(STATE, CmpOp::Eq, known.clone()).set_xattr(STATE, own.clone());
            let reply = self.pool().operate(shard, op).await;
            match reply.and_then(|reply| reply.success()).map_err(Error::from) {
                Ok(_) => return Ok(()),
                Err(error) if error.is_canceled() => {
                    known = self.pool().get_xattr(shard, STATE).await?;
                    if known == own {
                        return Ok(());
                    }
                }
                // A damaged bucket can be removed. The missing shard is created closed, so that nothing is written into it if it
                // is repaired meanwhile.
                Err(error) if error.is_not_found() && why == FreezeReason::Removal => {
                    let mut op = WriteOp::new();
                    op.create(true).set_xattr(STATE, own.clone());
                    match self.pool().operate(shard, op).await?.success().map_err(Error::from) {
                        Err(error) if error.is_already_exists() => {}
                        made => return made.map(drop),
                    }
                }
                Err(error) if error.is_not_found() => break,
                Err(error) => return Err(error),
            }
        }
        Err(Error::IndexBusy(bucket.name.clone()))
    }

    /// Renews an attempt from time to time, so that it does not give way however long it takes. Returns when the attempt is no
    /// longer valid.
    pub(crate) async fn renew_until_lost(&self, bucket: &Bucket, tag: &str) -> Error {
        loop {
            tokio::time::sleep(RENEWAL).await;
            let renewed = record::update(self.records(), &bucket.name, |now: &mut Bucket| {
                if now.id != bucket.id || !now.is_frozen_by(tag) {
                    return Err(Error::IndexBusy(now.name.clone()));
                }
                if let Some(closing) = &mut now.closing {
                    closing.since_ns = now_ns();
                }
                Ok(())
            });
            match renewed.await {
                Ok(Some(_)) => {}
                Ok(None) => return Error::NoSuchBucket(bucket.name.clone()),
                Err(error @ Error::IndexBusy(_)) => return error,
                Err(error) => {
                    tracing::debug!(%error, bucket = bucket.name, "rgw: a bucket's record is not renewed")
                }
            }
        }
    }

    /// Ends a failed attempt and opens what it closed; returns whether it was still valid.
    pub(crate) async fn abort_freeze(&self, bucket: &Bucket, tag: &str) -> Result<bool> {
        let released = record::update(self.records(), &bucket.name, |now: &mut Bucket| {
            if now.id != bucket.id || !now.is_frozen_by(tag) {
                return Err(Error::IndexBusy(now.name.clone()));
            }
            now.closing = None;
            Ok(())
        });
        match released.await {
            Ok(Some(now)) => {
                self.thaw(&now, tag).await?;
                Ok(true)
            }
            Ok(None) | Err(Error::IndexBusy(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Opens what an attempt closed or froze. The record must no longer name the attempt.
    pub(crate) async fn thaw(&self, bucket: &Bucket, tag: &str) -> Result<()> {
        for from in [closed(tag), state::frozen(tag)] {
            let opening = (0..bucket.shards.max(1)).map(|shard| {
                let mut op = WriteOp::new();
                op.cmp_xattr(STATE, CmpOp::Eq, from.clone()).set_xattr(STATE, open_state(bucket));
                self.pool().operate(&shard_name(bucket, shard), op)
            });
            for reply in futures::future::join_all(opening).await {
                match reply.and_then(|reply| reply.success()).map_err(Error::from) {
                    Err(error) if error.is_not_found() || error.is_canceled() => {}
                    opened => drop(opened?),
                }
            }
        }
        Ok(())
    }

    /// Freezes the shards that the attempt of that tag closed: nothing is finished in them, so their records can be copied.
    pub(crate) async fn freeze(&self, bucket: &Bucket, tag: &str) -> Result<()> {
        let freezing = (0..bucket.shards.max(1)).map(|shard| async move {
            execute::write(self.pool(), &shard_name(bucket, shard), reshard::freeze(tag)).await
        });
        for frozen in futures::future::join_all(freezing).await {
            match frozen {
                // Another attempt is valid, so this one can't complete.
                Err(error) if error.is_canceled() || error.is_not_found() => {
                    return Err(Error::IndexBusy(bucket.name.clone()));
                }
                frozen => drop(frozen?),
            }
        }
        Ok(())
    }

    /// Checks a shard of a bucket's index. With `mend`, opens the shard if no valid attempt closed it, and creates it if it is
    /// absent.
    pub(crate) async fn check(&self, bucket: &Bucket, shard: &str, mend: bool) -> Result<ShardCheck> {
        // The state is read before the record: the record names an attempt before the attempt closes anything, and never names
        // it again later.
        let state = match self.pool().get_xattr(shard, STATE).await {
            Err(error) if error.is_not_found() => None,
            state => Some(state?),
        };
        let now = match self.buckets.record_without_documents(&bucket.name).await {
            Ok(now) if now.id == bucket.id && now.generation == bucket.generation => now,
            // The shard no longer belongs to the bucket.
            Ok(_) | Err(Error::NoSuchBucket(_)) => return Ok(ShardCheck::Consistent),
            Err(error) => return Err(error),
        };
        let (found, known) = match state {
            None => (ShardCheck::Absent, Bytes::new()),
            Some(state) if *state == *open_state(&now).as_bytes() => return Ok(ShardCheck::Consistent),
            Some(state) => (ShardCheck::Abandoned, state),
        };
        match &now.closing {
            Some(closing) if !closing.is_expired() => return Ok(ShardCheck::Consistent),
            // This opens all that the attempt closed. If the attempt is alive, it fails.
            Some(closing) if mend => drop(self.abort_freeze(&now, &closing.tag).await?),
            _ => {}
        }
        if !mend {
            return Ok(found);
        }
        let known = if found == ShardCheck::Absent {
            // The shard is created closed, because the bucket may be removed or moved at the same time.
            let tag = self.connection.new_tag();
            let mut op = WriteOp::new();
            op.create(true).set_xattr(STATE, closed(&tag));
            self.pool().operate(shard, op).await?.success()?;
            let there = match self.buckets.record_without_documents(&bucket.name).await {
                Err(Error::NoSuchBucket(_)) => false,
                again => {
                    let again = again?;
                    again.id == now.id && again.generation == now.generation
                }
            };
            if !there {
                let mut op = WriteOp::new();
                op.cmp_xattr(STATE, CmpOp::Eq, closed(&tag)).remove();
                _ = self.pool().operate(shard, op).await?;
                return Ok(ShardCheck::Consistent);
            }
            Bytes::from(closed(&tag))
        } else {
            known
        };
        let mut op = WriteOp::new();
        op.cmp_xattr(STATE, CmpOp::Eq, known).set_xattr(STATE, open_state(&now));
        let reply = self.pool().operate(shard, op).await;
        match reply.and_then(|reply| reply.success()).map_err(Error::from) {
            // Another gateway has changed the state first.
            Err(error) if error.is_canceled() || error.is_not_found() => {}
            opened => drop(opened?),
        }
        if now.index_format == IndexFormat::V2 {
            // A conversion may have closed it.
            self.drop_old_records(shard).await?;
        }
        Ok(found)
    }

    /// Returns the error for a shard that refuses prepares. If no valid attempt closed the shard, opens it for the next prepare.
    pub(crate) async fn recover_closed(&self, bucket: &Bucket, shard: &str) -> Error {
        self.buckets.invalidate(&bucket.name);
        if let Err(error) = self.thaw_abandoned(bucket, shard).await {
            tracing::debug!(%error, shard, "rgw: can't see why an index is closed");
        }
        Error::IndexBusy(bucket.name.clone())
    }

    /// Opens a shard that no valid attempt closed or froze.
    pub(crate) async fn thaw_abandoned(&self, bucket: &Bucket, shard: &str) -> Result<()> {
        // Absent shards are left to checks of the bucket.
        if self.check(bucket, shard, false).await? == ShardCheck::Abandoned {
            self.check(bucket, shard, true).await?;
        }
        Ok(())
    }

    /// Removes records of format 1 from a shard of a converted bucket.
    pub(crate) async fn drop_old_records(&self, shard: &str) -> Result<()> {
        for kind in legacy::LEGACY_PREFIXES {
            loop {
                let page = match self.pool().omap_get_vals(shard, "", kind, PAGE).await {
                    Err(error) if error.is_not_found() => return Ok(()),
                    page => page?,
                };
                let names: Vec<Bytes> = page.entries.into_iter().map(|(name, _)| name).collect();
                if names.is_empty() {
                    break;
                }
                match execute::write(self.pool(), shard, legacy::drop_old(names)).await {
                    // The records of the shard are being moved, without those of format 1.
                    Err(error) if error.is_canceled() || error.is_not_found() => return Ok(()),
                    removed => drop(removed?),
                }
            }
        }
        Ok(())
    }
}
