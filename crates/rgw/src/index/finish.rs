//! Finishing changes after their requests were answered: entries are replaced, sums counted and what was replaced given to
//! the garbage, for many changes of a shard at a time.
//!
//! All of it goes by compare-and-swap: one operation asserts what was read of the entries and of the sums, and that the
//! changes are still pending, so that each is finished once, however many see it through. Of two changes of a key the one
//! whose head has the higher version counts, in whatever order they are finished.

use super::{Entry, STATS, Stats, Tails, bucket_id, entry_key, pending_key, pending_of, tails_key};
use crate::error::{Error, Result};
use crate::gateway::Gateway;
use crate::quota::Delta;
use crate::record;
use bytes::Bytes;
use futures::FutureExt;
use nacre_client::{ReadOp, WriteOp};
use nacre_types::errno::Errno;
use nacre_types::op::CmpOp;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::panic::AssertUnwindSafe;
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
            let finishing = AssertUnwindSafe(finish_all(&gateway, &shard, &changes)).catch_unwind();
            let Ok(finished) = finishing.await else {
                // The panic hook has printed what and where. Others finish the changes after this gateway has ended.
                tracing::error!(shard, "rgw: finishing changes panicked: they stay pending");
                break;
            };
            match finished {
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

/// Finishes changes, in parts where they come to more than one operation may carry; returns the shard's sums then.
async fn finish_all(gateway: &Gateway, shard: &str, changes: &[Arc<Finished>]) -> Result<Stats> {
    let (mut left, mut most) = (changes, changes.len());
    loop {
        let (some, rest) = left.split_at(most.min(left.len()));
        match finish(gateway, shard, some).await {
            Err(Error::Rados(error))
                if matches!(error.errno(), Errno::EOVERFLOW | Errno::EMSGSIZE) && some.len() > 1 =>
            {
                most = some.len() / 2;
            }
            finished if rest.is_empty() => return finished,
            finished => {
                finished?;
                left = rest;
            }
        }
    }
}

/// What a shard holds of the keys of some changes.
#[derive(Debug, Default)]
struct Found {
    /// Entries and their tails, what is pending of the changes, and the sums.
    values: BTreeMap<Bytes, Bytes>,
    /// Keys that have nothing pending but these changes.
    alone: BTreeSet<String>,
}

/// Reads entries, sums and the changes' own notes, and of the keys in `removed` whether anything else is pending.
async fn look(
    gateway: &Gateway,
    shard: &str,
    changes: &[Arc<Finished>],
    removed: &BTreeSet<String>,
) -> Result<Found> {
    let keys: BTreeSet<&str> = changes.iter().map(|change| change.key.as_str()).collect();
    let tags: BTreeSet<&str> = changes.iter().map(|change| change.tag.as_str()).collect();
    let mut op = ReadOp::new();
    let entries = keys.iter().flat_map(|key| [entry_key(key), tails_key(key)]);
    let notes = changes.iter().map(|change| pending_key(&change.key, &change.tag));
    op.omap_get_vals_by_keys(entries.chain(notes).chain([Bytes::from_static(STATS)]).collect());
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
            alone.insert(key.clone());
        }
    }
    Ok(Found { values, alone })
}

impl Found {
    /// Those of `changes` that are not finished yet. Of several that see a change through each may come with its own news of
    /// it, and the first one counts: when the others come, the object may be another one, or gone.
    fn unfinished<'a>(&self, changes: &'a [Arc<Finished>]) -> Vec<&'a Finished> {
        let is_noted =
            |change: &&'a Finished| self.values.contains_key(&pending_key(&change.key, &change.tag));
        changes.iter().map(Arc::as_ref).filter(is_noted).collect()
    }

    fn entries<'a>(&self, shard: &str, changes: &[&'a Finished]) -> Result<BTreeMap<&'a str, Option<Entry>>> {
        let mut entries = BTreeMap::new();
        for change in changes {
            if !entries.contains_key(change.key.as_str()) {
                let tails = self.values.get(&tails_key(&change.key));
                let entry = self.values.get(&entry_key(&change.key));
                let entry = entry.map(|entry| Entry::stored(shard, entry, tails)).transpose()?;
                entries.insert(change.key.as_str(), entry);
            }
        }
        Ok(entries)
    }
}

/// What is to be done to a shard.
#[derive(Debug, Default)]
struct Plan {
    /// Goes first, before the entries that name it are gone.
    garbage: Vec<Tails>,
    asserted: Vec<(Bytes, CmpOp, Bytes)>,
    set: Vec<(Bytes, Bytes)>,
    gone: Vec<Bytes>,
    /// The shard's sums before and after.
    before: Stats,
    stats: Stats,
}

impl Plan {
    fn new(shard: &str, found: &Found, changes: &[&Finished]) -> Result<Plan> {
        let mut entries = found.entries(shard, changes)?;
        let old_stats = found.values.get(STATS).cloned().unwrap_or_default();
        let before: Stats =
            if old_stats.is_empty() { Stats::default() } else { record::decode(shard, &old_stats)? };
        let mut plan = Plan { before, stats: before, ..Plan::default() };
        for entry in entries.values().flatten() {
            plan.stats.subtract(entry.counted());
        }
        for change in changes {
            plan.take(change, entries.entry(&change.key).or_default());
        }
        // An upload that was completed twice made two objects of the same parts: what one of them still names stays.
        let staying = entries.values().flatten().flat_map(|entry| &entry.tails);
        let staying: BTreeSet<&str> = staying.map(|tails| tails.name.as_str()).collect();
        plan.garbage.retain(|tails| !staying.contains(tails.name.as_str()));
        for (key, entry) in &entries {
            let (name, tails) = (entry_key(key), tails_key(key));
            let old = found.values.get(&name).cloned().unwrap_or_default();
            plan.asserted.push((name.clone(), CmpOp::Eq, old));
            match entry {
                // Nothing older than the removal can arrive any more: whatever is pending was begun after it.
                Some(entry) if entry.removed && found.alone.contains(*key) => plan.gone.extend([name, tails]),
                Some(entry) => {
                    plan.stats.add(entry.counted());
                    plan.set.push((name, record::encode(entry)));
                    match entry.encoded_tails() {
                        Some(encoded) => plan.set.push((tails, encoded)),
                        None if found.values.contains_key(&tails) => plan.gone.push(tails),
                        None => {}
                    }
                }
                None => {}
            }
        }
        plan.asserted.push((Bytes::from_static(STATS), CmpOp::Eq, old_stats));
        plan.set.push((Bytes::from_static(STATS), record::encode(&plan.stats)));
        for change in changes {
            let note = pending_key(&change.key, &change.tag);
            // That it is there: it is never empty.
            plan.asserted.push((note.clone(), CmpOp::Gt, Bytes::new()));
            plan.gone.push(note);
        }
        Ok(plan)
    }

    /// Makes an entry what it is after a change.
    fn take(&mut self, change: &Finished, entry: &mut Option<Entry>) {
        let before = entry.as_ref().map_or(0, |entry| entry.version);
        self.garbage.extend(change.garbage.iter().cloned());
        match &change.outcome {
            Outcome::Nothing => {}
            // Seen through by somebody who met it, and by who began it.
            Outcome::Put(put) if entry.as_ref().is_some_and(|entry| put.is_known(entry)) => {}
            Outcome::Put(put) if put.version > before => {
                let old = entry.replace(put.clone());
                // Where there are versions what is replaced stays as one of them.
                if put.held.is_none() {
                    self.garbage.extend(old.into_iter().flat_map(|old| old.tails));
                }
            }
            Outcome::Put(_) if entry.as_ref().is_some_and(|entry| entry.held.is_some()) => {}
            Outcome::Put(put) => self.garbage.extend(put.tails.iter().cloned()),
            // Of the entry's own version is the removal of just what it stands for.
            Outcome::Removed(version) if *version >= before => {
                let removed = Entry { version: *version, removed: true, ..Entry::default() };
                self.garbage.extend(entry.replace(removed).into_iter().flat_map(|old| old.tails));
            }
            Outcome::Removed(_) => {}
        }
    }
}

/// Finishes those of `changes` that are not finished yet; returns the shard's sums then.
async fn finish(gateway: &Gateway, shard: &str, changes: &[Arc<Finished>]) -> Result<Stats> {
    let removals = changes.iter().filter(|change| matches!(change.outcome, Outcome::Removed(_)));
    let mut removed: BTreeSet<String> = removals.map(|change| change.key.clone()).collect();
    let (found, unfinished) = loop {
        let found = look(gateway, shard, changes, &removed).await?;
        let unfinished = found.unfinished(changes);
        // What stayed of earlier removals may be able to go now.
        let is_left = |entry: &Option<Entry>| entry.as_ref().is_some_and(|entry| entry.removed);
        let entries = found.entries(shard, &unfinished)?;
        let left = entries.iter().filter(|(_, entry)| is_left(entry)).map(|(key, _)| *key);
        let more: Vec<String> = left.filter(|key| !removed.contains(*key)).map(ToOwned::to_owned).collect();
        if more.is_empty() {
            break (found, unfinished);
        }
        removed.extend(more);
    };
    let plan = Plan::new(shard, &found, &unfinished)?;
    let tags = changes.iter().map(|change| change.tag.as_str());
    if unfinished.is_empty() {
        gateway.quotas.finished(bucket_id(shard), tags, Delta::default());
        return Ok(plan.stats);
    }
    gateway.discard(&plan.garbage).await?;
    let mut op = WriteOp::new();
    op.assert_exists().omap_cmp(plan.asserted).omap_set(plan.set).omap_rm_keys(plan.gone);
    gateway.pools.index.operate(shard, op).await?.success()?;
    let change = |now: u64, before: u64| now.wrapping_sub(before) as i64;
    let delta = Delta {
        objects: change(plan.stats.objects, plan.before.objects),
        bytes: change(plan.stats.bytes, plan.before.bytes),
    };
    gateway.quotas.finished(bucket_id(shard), tags, delta);
    Ok(plan.stats)
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: &str = "00000000000000000000000000000001";
    const D: &str = "00000000000000000000000000000002";

    fn run(name: &str) -> Tails {
        Tails { name: name.to_owned(), count: 1 }
    }

    fn put(version: u64, tag: &str) -> Entry {
        let (tails, tag) = (vec![run(tag)], tag.to_owned());
        Entry { version, tag, size: 7, tails, ..Entry::default() }
    }

    fn finished(tag: &str, outcome: Outcome) -> Arc<Finished> {
        Arc::new(Finished { key: "k".into(), tag: tag.into(), outcome, garbage: Vec::new() })
    }

    /// A shard, and changes finished in it as an OSD would.
    #[derive(Default)]
    struct Shard(BTreeMap<Bytes, Bytes>);

    impl Shard {
        fn begin(&mut self, tag: &str) {
            self.0.insert(pending_key("k", tag), Bytes::from_static(b"noted"));
        }

        fn found(&self, alone: bool) -> Found {
            let alone = alone.then(|| "k".to_owned()).into_iter().collect();
            Found { values: self.0.clone(), alone }
        }

        /// Does what was planned; tells whether what it asserts was so.
        fn apply(&mut self, plan: Plan) -> bool {
            let holds = |(key, op, given): &(Bytes, CmpOp, Bytes)| {
                let there = self.0.get(key).cloned().unwrap_or_default();
                if *op == CmpOp::Gt { there > *given } else { there == *given }
            };
            let holds = plan.asserted.iter().all(holds);
            if holds {
                self.0.extend(plan.set);
                plan.gone.iter().for_each(|key| drop(self.0.remove(key)));
            }
            holds
        }

        fn finish(&mut self, changes: &[Arc<Finished>]) -> Plan {
            let found = self.found(true);
            Plan::new("shard", &found, &found.unfinished(changes)).unwrap()
        }

        fn entry(&self) -> Option<Entry> {
            let entry = self.0.get(&entry_key("k"))?;
            Some(Entry::stored("shard", entry, self.0.get(&tails_key("k"))).unwrap())
        }

        fn stats(&self) -> Stats {
            self.0.get(STATS).map_or_else(Stats::default, |stats| record::decode("shard", stats).unwrap())
        }
    }

    #[test]
    fn a_change_that_somebody_else_finished_is_not_finished_again() {
        let mut shard = Shard::default();
        shard.0.insert(Bytes::from_static(STATS), record::encode(&Stats::default()));
        shard.begin(T);
        let change = [finished(T, Outcome::Put(put(5, T)))];
        // Read before the other one finished it.
        let late = shard.finish(&change);
        let first = shard.finish(&change);
        assert!(shard.apply(first));
        assert_eq!(shard.stats(), Stats { objects: 1, bytes: 7 });
        shard.begin(D);
        let removal = shard.finish(&[finished(D, Outcome::Removed(6))]);
        assert_eq!(removal.garbage, [run(T)]);
        assert!(shard.apply(removal));
        assert_eq!(shard.entry(), None);
        assert!(!shard.apply(late), "the removed object is back");
        let again = shard.finish(&change);
        assert!(shard.apply(again));
        assert_eq!((shard.entry(), shard.stats()), (None, Stats::default()));
        assert_eq!(shard.0.len(), 1, "something but the sums stays: {:?}", shard.0);
    }

    #[test]
    fn tails_are_beside_their_entry_and_go_with_it() {
        let mut shard = Shard::default();
        shard.begin(T);
        let plan = shard.finish(&[finished(T, Outcome::Put(put(5, T)))]);
        assert!(shard.apply(plan));
        let bare: Entry = record::decode("shard", &shard.0[&entry_key("k")]).unwrap();
        assert_eq!((bare.tails.len(), shard.entry().unwrap().tails), (0, vec![run(T)]));
        shard.begin(D);
        let inline = Entry { tails: Vec::new(), ..put(6, D) };
        let plan = shard.finish(&[finished(D, Outcome::Put(inline.clone()))]);
        assert_eq!(plan.garbage, [run(T)]);
        assert!(shard.apply(plan));
        assert_eq!(shard.entry(), Some(inline));
        assert!(!shard.0.contains_key(&tails_key("k")));
    }
}
