//! Finishing changes after their requests were answered: entries are replaced, sums counted and what was replaced given to
//! the garbage, for many changes of a shard at a time.
//!
//! All of it goes by compare-and-swap: one operation asserts what was read of the entries and of the sums. Of two changes
//! of a key the one whose head has the higher version counts, in whatever order they are finished.

use super::{Entry, STATS, Stats, Tails, bucket_id, entry_key, pending_key, pending_of};
use crate::error::{Error, Result};
use crate::gateway::Gateway;
use crate::quota::Delta;
use crate::record;
use bytes::Bytes;
use nacre_client::{ReadOp, WriteOp};
use nacre_types::op::CmpOp;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Changes gather for so long.
const GATHER: Duration = Duration::from_millis(50);
/// The most changes finished at once.
const BATCH: usize = 128;
/// The most changes that wait in a gateway; more requests wait to be answered.
const WAITING: usize = 16_384;
/// The most crowded buckets that are remembered; others are met again.
const CROWDED: usize = 1000;
/// Before another attempt where somebody else was faster.
const AGAIN: Duration = Duration::from_millis(5);
/// Between attempts that fail.
const RETRY: Duration = Duration::from_millis(200);
/// Other pending changes of a removed key that are looked for: one that is not its own is enough.
const OTHERS: u64 = 2;

/// What became of a change.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// The head says this now; the entry has its version.
    Put(Entry),
    /// The head is removed, of this version or one before.
    Removed(u64),
    /// Nothing changed.
    Nothing,
}

/// A change to be finished.
#[derive(Clone, Debug)]
pub(crate) struct Finished {
    pub(crate) key: String,
    pub(crate) tag: String,
    pub(crate) outcome: Outcome,
    /// Tails that nothing names any more, or never did.
    pub(crate) garbage: Vec<Tails>,
}

/// Changes that wait to be finished, by shard.
#[derive(Debug)]
pub(crate) struct Finisher {
    shards: Mutex<HashMap<String, Queue>>,
    room: Arc<Semaphore>,
    idle: Notify,
    /// Buckets that have a shard with more objects than it should have.
    crowded: Mutex<BTreeSet<String>>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<Arc<Finished>>,
    permits: Vec<OwnedSemaphorePermit>,
    writing: Vec<Arc<Finished>>,
}

impl Default for Finisher {
    fn default() -> Finisher {
        let room = Arc::new(Semaphore::new(WAITING));
        Finisher { shards: Mutex::default(), room, idle: Notify::new(), crowded: Mutex::default() }
    }
}

impl Finisher {
    /// Has a change finished soon; waits where too many wait already.
    pub(crate) async fn add(&self, gateway: &Arc<Gateway>, (bucket, shard): (&str, &str), change: Finished) {
        let room = Arc::clone(&self.room).acquire_owned().await;
        let begins = {
            let mut shards = self.shards.lock();
            let queue = shards.get_mut(shard);
            let begins = queue.is_none();
            let queue = match queue {
                Some(queue) => queue,
                None => shards.entry(shard.to_owned()).or_default(),
            };
            queue.waiting.push(Arc::new(change));
            // The semaphore is never closed.
            queue.permits.extend(room);
            begins
        };
        if begins {
            tokio::spawn(run(Arc::clone(gateway), bucket.to_owned(), shard.to_owned()));
        }
    }

    fn note_crowd(&self, bucket: &str, shard: Stats, limit: u64) {
        if limit > 0 && shard.objects > limit {
            let mut crowded = self.crowded.lock();
            if crowded.len() < CROWDED && !crowded.contains(bucket) {
                crowded.insert(bucket.to_owned());
            }
        }
    }

    /// The buckets that became crowded since this was asked last.
    pub(super) fn crowded(&self) -> BTreeSet<String> {
        std::mem::take(&mut *self.crowded.lock())
    }

    /// Waits until nothing is left to be finished.
    pub(crate) async fn drain(&self) {
        loop {
            let idle = self.idle.notified();
            if self.shards.lock().is_empty() {
                return;
            }
            idle.await;
        }
    }

    /// What is known here of changes of a key that are not finished yet, by tag.
    pub(super) fn known(&self, shard: &str, key: &str) -> BTreeMap<String, Outcome> {
        let shards = self.shards.lock();
        let Some(queue) = shards.get(shard) else { return BTreeMap::new() };
        let all = queue.waiting.iter().chain(&queue.writing);
        all.filter(|change| change.key == key)
            .map(|change| (change.tag.clone(), change.outcome.clone()))
            .collect()
    }

    /// The next changes of a shard; `None`, and the shard is forgotten, where there are none.
    fn take(&self, shard: &str) -> Option<(Vec<Arc<Finished>>, Vec<OwnedSemaphorePermit>)> {
        let mut shards = self.shards.lock();
        let queue = shards.get_mut(shard)?;
        if queue.waiting.is_empty() {
            shards.remove(shard);
            if shards.is_empty() {
                self.idle.notify_waiters();
            }
            return None;
        }
        let count = queue.waiting.len().min(BATCH);
        queue.writing = queue.waiting.drain(..count).collect();
        let permits = queue.permits.drain(..count.min(queue.permits.len())).collect();
        Some((queue.writing.clone(), permits))
    }
}

async fn run(gateway: Arc<Gateway>, bucket: String, shard: String) {
    loop {
        tokio::time::sleep(GATHER).await;
        let Some((changes, permits)) = gateway.finisher.take(&shard) else { return };
        loop {
            match finish(&gateway, &shard, &changes).await {
                Ok(stats) => {
                    gateway.finisher.note_crowd(&bucket, stats, gateway.config.objects_per_shard);
                    break;
                }
                // The bucket is gone, and the index with it.
                Err(error) if error.is_absent() => break,
                Err(Error::Rados(nacre_client::Error::ShutDown | nacre_client::Error::Blocklisted)) => break,
                // Somebody else changed something of it.
                Err(error) if error.is_canceled() => tokio::time::sleep(AGAIN).await,
                Err(error) => {
                    tracing::warn!(%error, shard, "rgw: index entries wait to be finished");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
        drop(permits);
        if let Some(queue) = gateway.finisher.shards.lock().get_mut(&shard) {
            queue.writing.clear();
        }
    }
}

/// What a shard holds of the keys of some changes.
struct Found {
    values: BTreeMap<Bytes, Bytes>,
    /// Keys that have nothing pending but these changes.
    alone: BTreeSet<String>,
}

/// Reads entries and sums, and of the keys in `removed` whether anything else is pending.
async fn look(
    gateway: &Gateway,
    shard: &str,
    changes: &[Arc<Finished>],
    removed: &BTreeSet<&str>,
) -> Result<Found> {
    let keys: BTreeSet<&str> = changes.iter().map(|change| change.key.as_str()).collect();
    let tags: BTreeSet<&str> = changes.iter().map(|change| change.tag.as_str()).collect();
    let mut op = ReadOp::new();
    let wanted = keys.iter().map(|key| entry_key(key)).chain([Bytes::from_static(STATS)]).collect();
    op.omap_get_vals_by_keys(wanted);
    for key in removed {
        let own = changes.iter().filter(|change| change.key == *key).count() as u64;
        op.omap_get_vals("", pending_key(key, ""), own + OTHERS);
    }
    let mut reply = gateway.pools.index.operate_read(shard, op).await?.success()?;
    let values = reply.pairs(0)?;
    let mut alone = BTreeSet::new();
    for (at, key) in removed.iter().enumerate() {
        let pending = reply.omap_vals(at + 1)?;
        let is_other = |(name, _): &(Bytes, Bytes)| {
            pending_of(name).is_some_and(|(of, tag)| of == *key && !tags.contains(tag))
        };
        if !pending.entries.iter().any(is_other) {
            alone.insert((*key).to_owned());
        }
    }
    Ok(Found { values, alone })
}

/// Finishes changes; returns the shard's sums then.
async fn finish(gateway: &Gateway, shard: &str, changes: &[Arc<Finished>]) -> Result<Stats> {
    let mut removed: BTreeSet<&str> = changes
        .iter()
        .filter(|change| matches!(change.outcome, Outcome::Removed(_)))
        .map(|change| change.key.as_str())
        .collect();
    let (found, mut entries) = loop {
        let found = look(gateway, shard, changes, &removed).await?;
        let mut entries: BTreeMap<&str, Option<Entry>> = BTreeMap::new();
        for change in changes {
            if !entries.contains_key(change.key.as_str()) {
                let value = found.values.get(&entry_key(&change.key));
                let entry = value.map(|value| record::decode::<Entry>(shard, value)).transpose()?;
                entries.insert(&change.key, entry);
            }
        }
        // What stayed of earlier removals may be able to go now.
        let is_left = |entry: &Option<Entry>| entry.as_ref().is_some_and(|entry| entry.removed);
        let left = entries.iter().filter(|(_, entry)| is_left(entry)).map(|(key, _)| *key);
        let more: Vec<&str> = left.filter(|key| !removed.contains(key)).collect();
        if more.is_empty() {
            break (found, entries);
        }
        removed.extend(more);
    };
    let old_stats = found.values.get(STATS).cloned().unwrap_or_default();
    let mut stats: Stats =
        if old_stats.is_empty() { Stats::default() } else { record::decode(shard, &old_stats)? };
    let stats_before = stats;
    for entry in entries.values().flatten() {
        stats.subtract(entry.counted());
    }
    let mut garbage = Vec::new();
    for change in changes {
        let entry = entries.entry(&change.key).or_default();
        let before = entry.as_ref().map_or(0, |entry| entry.version);
        garbage.extend(change.garbage.iter().cloned());
        match &change.outcome {
            Outcome::Nothing => {}
            // Finished by an attempt whose end was not heard of.
            Outcome::Put(put) if entry.as_ref().is_some_and(|entry| put.is_known(entry)) => {}
            Outcome::Put(put) if put.version > before => {
                let old = entry.replace(put.clone());
                // Where there are versions what is replaced stays as one of them.
                if put.held.is_none() {
                    garbage.extend(old.into_iter().flat_map(|old| old.tails));
                }
            }
            Outcome::Put(_) if entry.as_ref().is_some_and(|entry| entry.held.is_some()) => {}
            Outcome::Put(put) => garbage.extend(put.tails.iter().cloned()),
            // Of the entry's own version is the removal of just what it stands for.
            Outcome::Removed(version) if *version >= before => {
                let removed = Entry { version: *version, removed: true, ..Entry::default() };
                garbage.extend(entry.replace(removed).into_iter().flat_map(|old| old.tails));
            }
            Outcome::Removed(_) => {}
        }
    }
    // An upload that was completed twice made two objects of the same parts: what one of them still names stays.
    let staying = entries.values().flatten().flat_map(|entry| &entry.tails);
    let staying: BTreeSet<&str> = staying.map(|tails| tails.name.as_str()).collect();
    garbage.retain(|tails: &Tails| !staying.contains(tails.name.as_str()));
    // Before the entries that name it are gone.
    gateway.discard(&garbage).await?;
    let mut op = WriteOp::new();
    op.assert_exists();
    let (mut asserted, mut set, mut gone) = (Vec::new(), Vec::new(), Vec::new());
    for (key, entry) in &entries {
        let name = entry_key(key);
        let old = found.values.get(&name).cloned().unwrap_or_default();
        match entry {
            // Nothing older than the removal can arrive any more: whatever is pending was begun after it.
            Some(entry) if entry.removed && found.alone.contains(*key) => gone.push(name.clone()),
            Some(entry) => {
                stats.add(entry.counted());
                set.push((name.clone(), record::encode(entry)));
            }
            None => {}
        }
        asserted.push((name, CmpOp::Eq, old));
    }
    asserted.push((Bytes::from_static(STATS), CmpOp::Eq, old_stats));
    set.push((Bytes::from_static(STATS), record::encode(&stats)));
    gone.extend(changes.iter().map(|change| pending_key(&change.key, &change.tag)));
    op.omap_cmp(asserted).omap_set(set).omap_rm_keys(gone);
    gateway.pools.index.operate(shard, op).await?.success()?;
    let change = |now: u64, before: u64| now.wrapping_sub(before) as i64;
    let delta = Delta {
        objects: change(stats.objects, stats_before.objects),
        bytes: change(stats.bytes, stats_before.bytes),
    };
    gateway.quotas.finished(bucket_id(shard), changes.iter().map(|change| change.tag.as_str()), delta);
    Ok(stats)
}
