//! Finishes changes after their requests were answered, up to 128 changes of a shard at a time (docs/format/index.md, step
//! 3).
//!
//! The queue of a shard gathers changes for a short time. Then a task executes [`FinishBatch`]: it reads the shard and, if
//! needed, heads; settles uploads; records garbage; writes the shard by compare-and-swap; and tidies. Changes of fenced
//! gateways go through the same queue. If the records of the shard have moved, the changes follow them.

use super::{IndexParts, Tidier};
use crate::bucket::{Bucket, Buckets};
use crate::error::{Error, Result};
use crate::execute;
use crate::garbage::GarbageQueue;
use crate::quota::UsageDelta;
use crate::quota_cache::QuotaCache;
use crate::shards::{IndexShards, RESHARD_POLL_INTERVAL, bucket_id, shard_of};
use crate::stored::StoredObjects;
use crate::topics::Topics;
use crate::uploads::Uploads;
use futures::FutureExt;
use futures::stream::{self, StreamExt, TryStreamExt};
use nacre_index::finish::{ChangeOutcome, FinishBatch, FinishPlan, FinishStep, MAX_BATCH, ResolvedChange};
use nacre_index::op::Fetch;
use nacre_index::record::Stats;
use nacre_index::state;
use nacre_types::errno::Errno;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// How long changes gather.
const BATCH_DELAY: Duration = Duration::from_millis(50);
/// The maximum number of changes that wait in a gateway. When it is reached, further requests are not answered until there
/// is room.
const MAX_QUEUED: usize = 16_384;
/// The maximum number of remembered buckets with too many objects per shard. Other buckets are noticed again later.
const FULL_BUCKETS: usize = 1000;
/// Heads read concurrently.
const HEADS: usize = 16;
/// How long [`Finisher::drain`] waits.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// The delay before another attempt after a concurrent change.
const CAS_RETRY_DELAY: Duration = Duration::from_millis(5);
/// The delay before another attempt after a failure.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// A change to be finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FinishTask {
    /// A change of this gateway.
    Own(ResolvedChange),
    /// A pending change of a fenced gateway.
    Orphan {
        /// The object's key.
        key: String,
        /// The change's tag.
        tag: String,
    },
}

impl From<ResolvedChange> for FinishTask {
    fn from(settled: ResolvedChange) -> FinishTask {
        FinishTask::Own(settled)
    }
}

impl FinishTask {
    fn key(&self) -> &str {
        match self {
            FinishTask::Own(settled) => &settled.key,
            FinishTask::Orphan { key, .. } => key,
        }
    }

    fn tag(&self) -> &str {
        match self {
            FinishTask::Own(settled) => &settled.tag,
            FinishTask::Orphan { tag, .. } => tag,
        }
    }
}

/// Finishes changes.
pub(crate) struct Finisher {
    queues: FinishQueues,
    buckets: Arc<Buckets>,
    shards: Arc<IndexShards>,
    uploads: Arc<Uploads>,
    objects: Arc<StoredObjects>,
    garbage: Arc<GarbageQueue>,
    quotas: Arc<QuotaCache>,
    topics: Arc<Topics>,
    tidier: Arc<Tidier>,
    /// The number of objects that a shard should have at most; 0 for no limit.
    objects_per_shard: u64,
    /// The number of writes of indexes that left events in an outbox.
    pub(super) outbox_writes: Arc<AtomicU64>,
}

/// Changes that wait to be finished, by shard.
#[derive(Debug)]
struct FinishQueues {
    shards: Mutex<HashMap<String, Queue>>,
    room: Arc<Semaphore>,
    idle: Notify,
    /// Buckets with a shard that has more objects than it should have.
    full: Mutex<BTreeSet<String>>,
}

/// A change, with the permit by which it may wait.
#[derive(Clone, Debug)]
struct QueuedFinish {
    change: Arc<FinishTask>,
    _room: Option<Arc<OwnedSemaphorePermit>>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<QueuedFinish>,
    writing: Vec<QueuedFinish>,
}

impl Default for FinishQueues {
    fn default() -> FinishQueues {
        let room = Arc::new(Semaphore::new(MAX_QUEUED));
        FinishQueues { shards: Mutex::default(), room, idle: Notify::new(), full: Mutex::default() }
    }
}

impl Finisher {
    pub(super) fn new(parts: &IndexParts, tidier: &Arc<Tidier>, objects_per_shard: u64) -> Finisher {
        Finisher {
            queues: FinishQueues::default(),
            buckets: Arc::clone(&parts.buckets),
            shards: Arc::clone(&parts.shards),
            uploads: Arc::clone(&parts.uploads),
            objects: Arc::clone(&parts.objects),
            garbage: Arc::clone(&parts.garbage),
            quotas: Arc::clone(&parts.quotas),
            topics: Arc::clone(&parts.topics),
            tidier: Arc::clone(tidier),
            objects_per_shard,
            outbox_writes: Arc::default(),
        }
    }

    /// Queues a change to be finished; waits if too many changes wait already.
    pub(crate) async fn enqueue(self: &Arc<Finisher>, (bucket, shard): (&str, &str), change: FinishTask) {
        // The semaphore is never closed.
        let room = Arc::clone(&self.queues.room).acquire_owned().await.ok().map(Arc::new);
        self.push((bucket, shard), QueuedFinish { change: Arc::new(change), _room: room });
    }

    fn push(self: &Arc<Finisher>, (bucket, shard): (&str, &str), waiting: QueuedFinish) {
        if self.queues.add(shard, waiting) {
            tokio::spawn(run(Arc::clone(self), bucket.to_owned(), shard.to_owned()));
        }
    }

    /// Returns the buckets with too many objects in a shard that were noticed since the last call.
    pub(super) fn take_oversized_buckets(&self) -> BTreeSet<String> {
        self.queues.take_oversized_buckets()
    }

    /// Waits for a bounded time until no change is left to be finished. Returns whether there is none.
    pub(crate) async fn drain(&self) -> bool {
        tokio::time::timeout(DRAIN_TIMEOUT, self.queues.drain()).await.is_ok()
    }

    /// Returns the known outcomes of this gateway's unfinished changes of a key, by tag.
    pub(super) fn unfinished_outcomes(&self, shard: &str, key: &str) -> BTreeMap<String, ChangeOutcome> {
        self.queues.unfinished_outcomes(shard, key)
    }

    /// Notes that a finish left events of these objects in the outbox of a shard of that bucket. If `keys` is empty, they
    /// may be events of any objects.
    pub(crate) fn outbox_written(&self, bucket: &str, shard: &str, keys: &[String]) {
        self.outbox_writes.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(bucket, shard, "rgw: events are in an outbox");
        if let Some(notifier) = self.topics.notifier() {
            notifier.outbox_written(bucket_id(shard), shard, keys);
        }
    }

    /// Tries to finish changes until it succeeds. Changes that can't be finished stay pending.
    async fn finish_until_done(
        self: &Arc<Finisher>,
        (bucket, shard): (&str, &str),
        changes: &[QueuedFinish],
    ) {
        loop {
            match self.finish_all((bucket, shard), changes).await {
                Ok(Attempt::Finished(stats)) => {
                    if let Some(stats) = stats {
                        self.queues.note_shard_size(bucket, stats, self.objects_per_shard);
                    }
                    return;
                }
                Ok(Attempt::Moved) => match self.follow((bucket, shard), changes).await {
                    Ok(true) => return,
                    Ok(false) => tokio::time::sleep(RESHARD_POLL_INTERVAL).await,
                    Err(error) => {
                        tracing::warn!(%error, shard, "rgw: a bucket whose index moves can't be read");
                        tokio::time::sleep(RETRY_DELAY).await;
                    }
                },
                Err(Error::Rados(nacre_client::Error::ShutDown | nacre_client::Error::Blocklisted)) => return,
                Err(error @ Error::Corrupt { .. }) => {
                    tracing::error!(%error, shard, "rgw: changes can't be finished and stay pending");
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, shard, "rgw: changes wait to be finished");
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
        }
    }

    /// Passes changes to the queues of the shards that have their records now. Returns `false` if that is still this shard.
    async fn follow(
        self: &Arc<Finisher>,
        (name, shard): (&str, &str),
        changes: &[QueuedFinish],
    ) -> Result<bool> {
        let now = match self.buckets.record_without_documents(name).await {
            Ok(now) if now.id == bucket_id(shard) => now,
            // The bucket was removed, and its index with it.
            Ok(_) | Err(Error::NoSuchBucket(_)) => return Ok(true),
            Err(error) => return Err(error),
        };
        if changes.iter().any(|waiting| shard_of(&now, waiting.change.key()) == shard) {
            return Ok(false);
        }
        for waiting in changes {
            let target = shard_of(&now, waiting.change.key());
            self.push((name, &target), waiting.clone());
        }
        Ok(true)
    }

    /// Finishes changes. Splits them if they exceed what one operation may carry, or if some can't be finished.
    async fn finish_all(&self, (bucket, shard): (&str, &str), changes: &[QueuedFinish]) -> Result<Attempt> {
        let (mut left, mut most) = (changes, changes.len());
        let mut failed = None;
        let mut sums = None;
        while !left.is_empty() {
            let (some, rest) = left.split_at(most.min(left.len()));
            match self.finish((bucket, shard), some).await {
                Err(Error::Rados(error))
                    if matches!(error.errno(), Errno::EOVERFLOW | Errno::EMSGSIZE) && some.len() > 1 =>
                {
                    most = some.len() / 2;
                }
                Err(Error::Corrupt { .. }) if some.len() > 1 => most = 1,
                Err(error @ Error::Corrupt { .. }) => {
                    failed = Some(error);
                    left = rest;
                }
                Ok(Attempt::Finished(stats)) => {
                    sums = stats.or(sums);
                    left = rest;
                }
                moved => return moved,
            }
        }
        failed.map_or(Ok(Attempt::Finished(sums)), Err)
    }

    /// Finishes those of `changes` that are not finished yet.
    async fn finish(&self, (bucket, shard): (&str, &str), changes: &[QueuedFinish]) -> Result<Attempt> {
        let index = self.shards.pool();
        let own = changes.iter().filter_map(|waiting| match &*waiting.change {
            FinishTask::Own(settled) => Some(settled.clone()),
            FinishTask::Orphan { .. } => None,
        });
        let mut finish = FinishBatch::new(own);
        for waiting in changes {
            if let FinishTask::Orphan { key, tag } = &*waiting.change {
                finish.add_orphan(key, tag);
            }
        }
        loop {
            let mut read = finish.read();
            read.fetches.push(Fetch::Attrs);
            let Some(reply) = execute::read(index, shard, &read).await? else { return Ok(Attempt::Moved) };
            let attributes = reply.pairs(1).map_err(nacre_index::Error::from)?;
            let state = attributes.get(state::STATE.as_bytes());
            if state.is_some_and(|state| state::is_frozen(state)) {
                return Ok(Attempt::Moved);
            }
            match finish.decide(&reply)? {
                FinishStep::Done => {
                    let tags = changes.iter().map(|waiting| waiting.change.tag());
                    self.quotas.apply_finished(bucket_id(shard), tags, UsageDelta::default());
                    return Ok(Attempt::Finished(None));
                }
                FinishStep::ReadHeads(keys) => {
                    let heads: Vec<_> = stream::iter(keys)
                        .map(|key| async move {
                            let head = self.objects.protocol_head(bucket_id(shard), &key).await?;
                            Ok::<_, Error>((key, head))
                        })
                        .buffer_unordered(HEADS)
                        .try_collect()
                        .await?;
                    for (key, head) in heads {
                        finish.add_head(&key, head);
                    }
                }
                FinishStep::Execute(plan) => {
                    self.settle(bucket, shard, &plan).await?;
                    self.garbage.queue(&plan.garbage).await?;
                    match execute::write(index, shard, plan.write.clone()).await {
                        // Another gateway has changed one of these records, or they are being moved.
                        Err(error) if error.is_canceled() => tokio::time::sleep(CAS_RETRY_DELAY).await,
                        Err(error) if error.is_not_found() => return Ok(Attempt::Moved),
                        written => {
                            written?;
                            self.ended((bucket, shard), changes, &plan).await;
                            return Ok(Attempt::Finished(Some(plan.after)));
                        }
                    }
                }
            }
        }
    }

    /// Settles uploads whose completions are finished for other gateways.
    async fn settle(&self, bucket: &str, shard: &str, plan: &FinishPlan) -> Result<()> {
        if plan.uploads.is_empty() {
            return Ok(());
        }
        let bucket: Bucket = match self.buckets.record_without_documents(bucket).await {
            Ok(now) if now.id == bucket_id(shard) => now,
            Ok(_) | Err(Error::NoSuchBucket(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        for upload in &plan.uploads {
            self.uploads.resolve(&bucket, shard, upload).await?;
        }
        Ok(())
    }

    /// Does what follows a write that finished changes: updates quotas, announces events, and tidies.
    async fn ended(&self, (bucket, shard): (&str, &str), changes: &[QueuedFinish], plan: &FinishPlan) {
        let change = |now: u64, before: u64| now.wrapping_sub(before) as i64;
        let delta = UsageDelta {
            objects: change(plan.after.objects, plan.before.objects),
            bytes: change(plan.after.bytes, plan.before.bytes),
        };
        self.quotas.apply_finished(
            bucket_id(shard),
            changes.iter().map(|waiting| waiting.change.tag()),
            delta,
        );
        if plan.events > 0 {
            self.outbox_written(bucket, shard, &plan.event_keys);
        }
        self.tidier.tidy_keys(bucket_id(shard), shard, &plan.untidy).await;
    }
}

impl FinishQueues {
    /// Adds a change to the queue of its shard. Returns whether the shard had no queue, so that the caller must start a task
    /// that finishes its changes.
    fn add(&self, shard: &str, waiting: QueuedFinish) -> bool {
        let mut shards = self.shards.lock();
        match shards.get_mut(shard) {
            Some(queue) => {
                queue.waiting.push(waiting);
                false
            }
            None => {
                let queue = Queue { waiting: vec![waiting], writing: Vec::new() };
                shards.insert(shard.to_owned(), queue);
                true
            }
        }
    }

    fn note_shard_size(&self, bucket: &str, shard: Stats, limit: u64) {
        if limit > 0 && shard.objects > limit {
            let mut full = self.full.lock();
            if full.len() < FULL_BUCKETS && !full.contains(bucket) {
                full.insert(bucket.to_owned());
            }
        }
    }

    fn take_oversized_buckets(&self) -> BTreeSet<String> {
        std::mem::take(&mut *self.full.lock())
    }

    /// Waits until no change is left.
    async fn drain(&self) {
        loop {
            let idle = self.idle.notified();
            if self.shards.lock().is_empty() {
                return;
            }
            idle.await;
        }
    }

    fn unfinished_outcomes(&self, shard: &str, key: &str) -> BTreeMap<String, ChangeOutcome> {
        let shards = self.shards.lock();
        let Some(queue) = shards.get(shard) else { return BTreeMap::new() };
        let all = queue.waiting.iter().chain(&queue.writing);
        let own = all.filter_map(|waiting| match &*waiting.change {
            FinishTask::Own(settled) if settled.key == key => Some(settled),
            _ => None,
        });
        own.map(|settled| (settled.tag.clone(), settled.outcome.clone())).collect()
    }

    /// Returns the next changes of a shard. If there are none, forgets the shard and returns `None`.
    fn take(&self, shard: &str) -> Option<Vec<QueuedFinish>> {
        let mut shards = self.shards.lock();
        let queue = shards.get_mut(shard)?;
        if queue.waiting.is_empty() {
            shards.remove(shard);
            if shards.is_empty() {
                self.idle.notify_waiters();
            }
            return None;
        }
        let count = queue.waiting.len().min(MAX_BATCH);
        queue.writing = queue.waiting.drain(..count).collect();
        Some(queue.writing.clone())
    }
}

/// The result of an attempt to finish changes.
enum Attempt {
    /// The changes are finished. Contains the shard's new sums if the shard was written.
    Finished(Option<Stats>),
    /// Records of the shard are being moved, or the shard does not exist.
    Moved,
}

async fn run(finisher: Arc<Finisher>, bucket: String, shard: String) {
    loop {
        tokio::time::sleep(BATCH_DELAY).await;
        let Some(changes) = finisher.queues.take(&shard) else { return };
        let finishing = AssertUnwindSafe(finisher.finish_until_done((&bucket, &shard), &changes));
        if finishing.catch_unwind().await.is_err() {
            // The panic hook has printed the message and the place. Other gateways finish the changes after this one has
            // ended.
            tracing::error!(shard, "rgw: finishing changes panicked: they stay pending");
        }
        if let Some(queue) = finisher.queues.shards.lock().get_mut(&shard) {
            queue.writing.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_taken_in_bounded_batches_and_known_until_they_are_finished() {
        let queues = FinishQueues::default();
        let waiting = |tag: usize| {
            let settled =
                ResolvedChange { key: "k".into(), tag: tag.to_string(), outcome: ChangeOutcome::Cancelled };
            QueuedFinish { change: Arc::new(settled.into()), _room: None }
        };
        let queue = Queue { waiting: (0..=MAX_BATCH).map(waiting).collect(), writing: Vec::new() };
        queues.shards.lock().insert("s".into(), queue);
        assert_eq!(queues.unfinished_outcomes("s", "k").len(), MAX_BATCH + 1);
        assert_eq!(queues.take("s").map(|taken| taken.len()), Some(MAX_BATCH));
        assert_eq!(queues.unfinished_outcomes("s", "k").len(), MAX_BATCH + 1);
        assert_eq!(queues.take("s").map(|taken| taken.len()), Some(1));
        assert_eq!(queues.unfinished_outcomes("s", "k").len(), 1);
        assert!(queues.take("s").is_none() && queues.unfinished_outcomes("s", "k").is_empty());
    }

    #[test]
    fn full_buckets_are_told_once() {
        let queues = FinishQueues::default();
        queues.note_shard_size("b", Stats { objects: 11, bytes: 0 }, 10);
        queues.note_shard_size("a", Stats { objects: 11, bytes: 0 }, 0);
        assert_eq!(queues.take_oversized_buckets(), BTreeSet::from(["b".to_owned()]));
        assert!(queues.take_oversized_buckets().is_empty());
    }
}
