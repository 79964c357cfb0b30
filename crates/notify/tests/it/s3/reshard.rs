//! Moving a bucket's index to other shards while the bucket is in use, as crates/rgw does.
//!
//! Records are copied into closed shards of the next generation; then the old shards are closed and frozen, what differs is
//! copied, and the bucket's record names the new ones. Whatever ends in between is taken up by any gateway: the record says
//! that the index shall move.

use super::S3;
use crate::bucket::{Bucket, is_overtaken};
use crate::scene::Scene;
use bytes::Bytes;
use nacre_engine::{OpReply, Result, WriteOp};
use nacre_index::key::{self, IndexRecordKind};
use nacre_index::record::{self, Stats};
use nacre_index::reshard;
use nacre_index::state::{OPEN, STATE, closed, frozen};
use nacre_types::cls::lock::MAY_RENEW;
use nacre_types::errno::Errno;
use std::collections::BTreeMap;
use std::time::Duration;

/// The lock of who reshards: its object, its name, and how long it lasts. It is not renewed, so that there may be two resharders.
const LOCKS: &str = "reshard";
const LOCK: &str = "process";
const LOCK_TIME: Duration = Duration::from_secs(2);
/// Records that are read at a time.
const PAGE: u64 = 20;
/// Looks whether pending changes are finished, and what is waited between them.
const LOOKS: usize = 6;
const BETWEEN: Duration = Duration::from_millis(40);
/// Attempts at a shard whose state others change.
const CHANGE_ATTEMPTS: usize = 16;
/// The records that are copied while the bucket is in use.
const BULK: [IndexRecordKind; 3] = [IndexRecordKind::Upload, IndexRecordKind::Entry, IndexRecordKind::Tails];

impl S3 {
    /// The index of a bucket shall have so many shards.
    pub(crate) async fn ask_reshard(&self, id: &str, shards: u32) -> Result<()> {
        let asked = self.buckets.modify(id, |bucket| {
            bucket.wanted = Some(shards);
            true
        });
        asked.await?;
        self.reshard(id).await
    }

    /// Moves the index of a bucket that is to be moved, unless another gateway does.
    pub(crate) async fn reshard(&self, id: &str) -> Result<()> {
        if self.buckets.get(id).await?.wanted.is_none() || !self.lock(id).await? {
            return Ok(());
        }
        let done = self.reshard_locked(id).await;
        let cookie = self.session.to_string();
        // Its time may be over.
        let _: Result<()> = self.buckets.records.unlock(&lock_name(id), LOCK, &cookie).await;
        done
    }

    async fn lock(&self, id: &str) -> Result<bool> {
        let (records, cookie) = (&self.buckets.records, self.session.to_string());
        match records.lock_exclusive(&lock_name(id), LOCK, &cookie, "", LOCK_TIME, MAY_RENEW).await {
            Err(error) if matches!(error.errno(), Errno::EBUSY | Errno::EEXIST) => Ok(false),
            taken => taken.map(|()| true),
        }
    }

    async fn reshard_locked(&self, id: &str) -> Result<()> {
        let old = self.buckets.get(id).await?;
        let Some(shards) = old.wanted else { return Ok(()) };
        let Some(old) = self.end_other_attempts(&old).await? else { return Ok(()) };
        // Writers do not wait for this one as long as it only copies.
        if let Some(tag) = &old.closed_by {
            self.release(&old, tag).await?;
        }
        if old.shards == shards {
            // An attempt may have ended after the record did not name it any more and before it had opened what it froze.
            for shard in old.shard_names() {
                self.buckets.open_left(&old, &shard).await?;
            }
            return self.end_reshard(&old).await;
        }
        let generation = old.generation.max(old.left.map_or(0, |(generation, _)| generation)) + 1;
        let new = old.of((generation, shards));
        let noted = self.buckets.modify(id, |bucket| {
            // Another attempt may have done what was asked for.
            let is_wanted = bucket.wanted == Some(shards) && bucket.next.is_none();
            (bucket.next, bucket.left) = (Some((generation, shards)), None);
            is_wanted && bucket.generation == old.generation
        });
        let Some(old) = noted.await? else { return Ok(()) };
        let tag = self.new_tag();
        match self.move_records(&old, &new, &tag).await {
            Ok(true) => {}
            Err(error) if !error.is_not_found() => return Err(error),
            // Another attempt stands in the way, and may have removed the shards of this one.
            Ok(false) | Err(_) => {
                if self.release(&old, &tag).await? {
                    self.remove_shards(&new).await?;
                }
                return Ok(());
            }
        }
        self.shared.note(Scene::Moved, 1);
        self.open(&new, &tag).await?;
        self.remove_shards(&old).await?;
        self.end_reshard(&new).await
    }

    /// Removes what attempts that ended have left; returns the bucket as it is then, unless its index moved meanwhile.
    async fn end_other_attempts(&self, seen: &Bucket) -> Result<Option<Bucket>> {
        // This was the index before an attempt that came to its end, or never became it.
        if let Some(left) = seen.left {
            self.remove_shards(&seen.of(left)).await?;
        }
        // An attempt that goes on can't come to its end from here on. Only after that may go what it made.
        let ended = self.buckets.modify(&seen.id, |bucket| {
            bucket.left = bucket.next.take().or(bucket.left);
            bucket.generation == seen.generation
        });
        let Some(now) = ended.await? else { return Ok(None) };
        if let Some(left) = now.left {
            self.shared.note(Scene::Resumed, 1);
            self.remove_shards(&now.of(left)).await?;
        }
        Ok(Some(now))
    }

    /// Nothing of the generation before is left.
    async fn end_reshard(&self, bucket: &Bucket) -> Result<()> {
        let ended = self.buckets.modify(&bucket.id, |now| {
            if now.next.is_none() {
                // The number of an attempt that came to nothing is not given again: what it sent may arrive late.
                now.left = now.left.filter(|(left, _)| *left > now.generation);
            }
            // Another attempt that ends in between must be taken up.
            if now.next.is_none() && now.closed_by.is_none() && now.wanted == Some(bucket.shards) {
                now.wanted = None;
            }
            now.generation == bucket.generation
        });
        ended.await.map(drop)
    }

    /// Makes the new shards what the old ones are, and the record name them; `false` where another attempt is in the way.
    async fn move_records(&self, old: &Bucket, new: &Bucket, tag: &str) -> Result<bool> {
        for shard in new.shard_names() {
            let mut op = WriteOp::new();
            op.create(true).set_xattr(STATE, closed(tag));
            match self.index.operate(&shard, op).await.and_then(OpReply::success) {
                Err(error) if error.errno() == Errno::EEXIST => return Ok(false),
                done => drop(done?),
            }
        }
        self.copy(old, new, &BULK).await?;
        if !self.close(old, tag).await? {
            return Ok(false);
        }
        for _ in 0..LOOKS {
            if !self.has_pending(old).await? {
                break;
            }
            self.env.sleep(BETWEEN).await;
        }
        for shard in old.shard_names() {
            let written = self.index.execute(&shard, reshard::freeze(tag)).await;
            if is_overtaken(&written) {
                return Ok(false);
            }
            written?;
        }
        let sums = self.copy(old, new, &IndexRecordKind::ALL).await?;
        self.drop_stale(old, new).await?;
        for (shard, sums) in (0..new.shards).zip(sums) {
            let sums = (Bytes::from_static(key::STATS), record::encode(&sums));
            let written = self.index.execute(&new.shard_name(shard), reshard::add(tag, vec![sums])).await;
            if is_overtaken(&written) {
                return Ok(false);
            }
            written?;
        }
        let switched = self.buckets.modify(&old.id, |bucket| {
            let is_own = bucket.generation == old.generation
                && bucket.next == Some((new.generation, new.shards))
                && bucket.closed_by.as_deref() == Some(tag);
            (bucket.left, bucket.closed_by) = (Some((old.generation, old.shards)), None);
            (bucket.generation, bucket.shards, bucket.next) = (new.generation, new.shards, None);
            is_own
        });
        Ok(switched.await?.is_some())
    }

    /// Closes an index by the attempt of that tag: no change is prepared any more.
    async fn close(&self, old: &Bucket, tag: &str) -> Result<bool> {
        let noted = self.buckets.modify(&old.id, |bucket| {
            bucket.closed_by = Some(tag.to_owned());
            (bucket.generation, bucket.next) == (old.generation, old.next)
        });
        if noted.await?.is_none() {
            return Ok(false);
        }
        for shard in old.shard_names() {
            if !self.close_shard(&shard, tag).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Closes a shard, whether it is open or was closed by an attempt that does not stand.
    async fn close_shard(&self, shard: &str, tag: &str) -> Result<bool> {
        let own = closed(tag);
        let mut known = Bytes::from_static(OPEN.as_bytes());
        for _ in 0..CHANGE_ATTEMPTS {
            if self.buckets.change_state(shard, known, &own).await? {
                return Ok(true);
            }
            known = match self.index.get_xattr(shard, STATE).await {
                Err(error) if error.is_not_found() => return Ok(false),
                known => known?,
            };
        }
        Ok(false)
    }

    /// Ends a failed attempt and thaws the index; returns whether the attempt was still valid.
    async fn release(&self, bucket: &Bucket, tag: &str) -> Result<bool> {
        let released = self.buckets.modify(&bucket.id, |now| now.closed_by.take().as_deref() == Some(tag));
        let Some(now) = released.await? else { return Ok(false) };
        self.open(&now, tag).await?;
        Ok(true)
    }

    /// Opens what an attempt closed or froze that the record does not name any more.
    async fn open(&self, bucket: &Bucket, tag: &str) -> Result<()> {
        for from in [closed(tag), frozen(tag)] {
            for shard in bucket.shard_names() {
                self.buckets.change_state(&shard, from.clone(), OPEN).await?;
            }
        }
        Ok(())
    }

    async fn has_pending(&self, bucket: &Bucket) -> Result<bool> {
        for shard in bucket.shard_names() {
            let page = self.index.omap_get_vals(&shard, "", IndexRecordKind::Pending.prefix(), 1).await?;
            if !page.entries.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn remove_shards(&self, bucket: &Bucket) -> Result<()> {
        for shard in bucket.shard_names() {
            match self.index.remove(&shard).await {
                Err(error) if error.is_not_found() => {}
                removed => removed?,
            }
        }
        Ok(())
    }

    /// Copies records that the new shards do not have just so; returns the sums of the entries among them by new shard.
    async fn copy(&self, old: &Bucket, new: &Bucket, kinds: &[IndexRecordKind]) -> Result<Vec<Stats>> {
        let mut sums = vec![Stats::default(); new.shards as usize];
        for from in old.shard_names() {
            for kind in kinds {
                let mut after = Bytes::new();
                loop {
                    let page = self.index.omap_get_vals(&from, after, kind.prefix(), PAGE).await?;
                    let mut parts: BTreeMap<u32, Vec<(Bytes, Bytes)>> = BTreeMap::new();
                    for (name, value) in &page.entries {
                        let Some(place) = reshard::routing_key(name) else { continue };
                        let shard = new.shard_number(&place);
                        sums[shard as usize].add(reshard::record_stats(&from, name, value).unwrap());
                        parts.entry(shard).or_default().push((name.clone(), value.clone()));
                    }
                    if *kind == IndexRecordKind::Outbox {
                        self.shared.note(Scene::Carried, page.entries.len());
                    }
                    for (shard, records) in parts {
                        self.copy_records(&new.shard_name(shard), records).await?;
                    }
                    match page.entries.last() {
                        Some((last, _)) if page.more => after = last.clone(),
                        _ => break,
                    }
                }
            }
        }
        Ok(sums)
    }

    /// Writes those of `records` that a shard does not have just so.
    async fn copy_records(&self, shard: &str, mut records: Vec<(Bytes, Bytes)>) -> Result<()> {
        let names = records.iter().map(|(name, _)| name.clone()).collect();
        let there = self.index.omap_get_vals_by_keys(shard, names).await?;
        records.retain(|(name, value)| there.get(name) != Some(value));
        if records.is_empty() {
            return Ok(());
        }
        let mut op = WriteOp::new();
        op.assert_exists().omap_set(records);
        self.index.operate(shard, op).await.and_then(OpReply::success).map(drop)
    }

    /// Removes what was copied and is not in the old shards any more.
    async fn drop_stale(&self, old: &Bucket, new: &Bucket) -> Result<()> {
        for shard in new.shard_names() {
            for kind in IndexRecordKind::ALL {
                let mut after = Bytes::new();
                loop {
                    let page = self.index.omap_get_vals(&shard, after, kind.prefix(), PAGE).await?;
                    let mut stale = Vec::new();
                    for (name, _) in &page.entries {
                        let Some(place) = reshard::routing_key(name) else { continue };
                        let from = old.shard_of(&place);
                        let there = self.index.omap_get_vals_by_keys(&from, vec![name.clone()]).await?;
                        if !there.contains_key(name) {
                            stale.push(name.clone());
                        }
                    }
                    if !stale.is_empty() {
                        self.index.omap_rm_keys(&shard, stale).await?;
                    }
                    match page.entries.last() {
                        Some((last, _)) if page.more => after = last.clone(),
                        _ => break,
                    }
                }
            }
        }
        Ok(())
    }
}

fn lock_name(id: &str) -> String {
    format!("{LOCKS}.{id}")
}
