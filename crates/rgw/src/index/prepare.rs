//! Prepares changes. Changes of one shard that wait at the same time share one write, and one read, of the shard.
//!
//! While a batch of a shard is in flight, other changes gather. The next batch takes up to [`MAX_BATCH`] of them. A bucket
//! has at most one batch in flight for every [`SHARDS_PER_BATCH`] shards, so that changes gather although they are scattered
//! over many shards; the shards take turns. If a request is dropped before it gets the result, its change is cancelled here.

use super::Finisher;
use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::execute;
use crate::lease::Leases;
use crate::shards::{IndexShards, open_state};
use crate::spawn::spawn_boxed;
use futures::FutureExt;
use nacre_index::finish::{ChangeOutcome, ResolvedChange};
use nacre_index::prepare::{KeyView, MAX_BATCH, Prepare, PrepareBatch, PrepareRefusal};
use nacre_index::seq::HeadIncarnation;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// The number of a bucket's shards for each batch in flight. Two batches may be in flight in any case.
const SHARDS_PER_BATCH: u32 = 3;
/// The maximum time that a batch keeps its turn: a shard that does not answer must not stop the others.
const LONGEST_TURN: Duration = Duration::from_millis(5);
/// The number of remembered buckets at which those without waiting changes are forgotten.
const REMEMBERED_TURNS: usize = 1024;
/// The maximum number of changes that wait in a gateway. Further requests wait to enter the queue.
const WAITING: usize = 16_384;
/// The maximum number of runs of tails in the records of one batch; about as many fit into one operation.
const MAX_TAILS: usize = 12_000;
/// Attempts with the removal slots that changes ask for. The last one asks for none.
const SLOT_ATTEMPTS: u32 = 8;

/// A prepared change.
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    /// Whether it holds the key's removal slot.
    pub(crate) slot: bool,
    /// The index generation, and the version of the shard after the prepare.
    pub(crate) at: HeadIncarnation,
    pub(crate) view: KeyView,
}

/// Prepares the changes of this gateway.
pub(crate) struct Preparer {
    queues: PrepareQueues,
    shards: Arc<IndexShards>,
    leases: Arc<Leases>,
    /// Cancels changes whose requests are dropped.
    finisher: Arc<Finisher>,
}

/// Changes that wait to be prepared, by shard.
#[derive(Debug)]
struct PrepareQueues {
    /// The queues of changes. A shard is in the map while a task sends its batches.
    shards: Mutex<HashMap<String, VecDeque<QueuedPrepare>>>,
    /// The turns of buckets with waiting changes, by the bucket's id.
    turns: Mutex<HashMap<String, Weak<Semaphore>>>,
    room: Arc<Semaphore>,
}

#[derive(Debug)]
struct QueuedPrepare {
    bucket: Arc<Bucket>,
    change: Prepare,
    answer: oneshot::Sender<Result<Prepared>>,
    _room: Option<OwnedSemaphorePermit>,
}

impl Default for PrepareQueues {
    fn default() -> PrepareQueues {
        PrepareQueues {
            shards: Mutex::default(),
            turns: Mutex::default(),
            room: Arc::new(Semaphore::new(WAITING)),
        }
    }
}

impl Preparer {
    pub(super) fn new(shards: &Arc<IndexShards>, leases: &Arc<Leases>, finisher: &Arc<Finisher>) -> Preparer {
        let queues = PrepareQueues::default();
        let (shards, leases, finisher) = (Arc::clone(shards), Arc::clone(leases), Arc::clone(finisher));
        Preparer { queues, shards, leases, finisher }
    }

    /// Prepares a change in a shard of the bucket's index. Fails with [`Error::IndexBusy`] if the shard is closed or absent,
    /// or does not have the state that `bucket` implies. If the future is dropped or fails, the change is cancelled in case
    /// it was prepared nevertheless.
    pub(crate) async fn prepare(
        self: &Arc<Preparer>,
        bucket: &Arc<Bucket>,
        shard: &str,
        change: Prepare,
    ) -> Result<Prepared> {
        self.leases.ensure_held().await?;
        let (answer, prepared) = oneshot::channel();
        if self.queues.add(bucket, shard, change, answer).await {
            let turns = self.queues.turns_of(bucket);
            spawn_boxed(run(Arc::clone(self), turns, shard.to_owned()));
        }
        prepared.await.unwrap_or_else(|_| {
            let detail = "the task that prepares them ended".to_owned();
            Err(Error::Internal { what: "the prepare of changes", detail })
        })
    }

    /// Sends a batch and answers each of its requests.
    async fn send(&self, shard: &str, waiting: Vec<QueuedPrepare>) {
        let Some(bucket) = waiting.first().map(|first| Arc::clone(&first.bucket)) else { return };
        let changes = waiting.iter().map(|waiting| waiting.change.clone()).collect();
        let prepared =
            self.prepare_batch(&bucket, shard, PrepareBatch::new(open_state(&bucket), changes)).await;
        let answers: Vec<Result<Prepared>> = match prepared {
            Ok(prepared) => prepared,
            Err(error) => waiting.iter().map(|_| Err(error.clone())).collect(),
        };
        for (waiting, answer) in waiting.into_iter().zip(answers) {
            // Only this error implies that the change is certainly not prepared.
            let is_there = !matches!(answer, Err(Error::IndexBusy(_)));
            let failed = answer.is_err();
            let is_unheard = waiting.answer.send(answer).is_err();
            if is_there && (failed || is_unheard) {
                let Prepare { key, tag, .. } = waiting.change;
                let change = ResolvedChange { key, tag, outcome: ChangeOutcome::Cancelled };
                self.finisher.enqueue((&bucket.name, shard), change.into()).await;
            }
        }
    }

    /// Prepares a batch; returns the outcome of each of its changes.
    async fn prepare_batch(
        &self,
        bucket: &Bucket,
        shard: &str,
        mut batch: PrepareBatch,
    ) -> Result<Vec<Result<Prepared>>> {
        let pool = self.shards.pool();
        let mut attempts = 0;
        loop {
            let write = execute::write(pool, shard, batch.write());
            let (written, found) = match batch.read() {
                Some(read) => {
                    let (written, found) = futures::join!(write, execute::read(pool, shard, &read));
                    (written, Some(found))
                }
                None => (write.await, None),
            };
            let version = match written {
                Ok(version) => version,
                Err(error) if error.is_not_found() => {
                    return Err(self.shards.recover_closed(bucket, shard).await);
                }
                Err(error) if error.is_canceled() => {
                    attempts += 1;
                    let refusal = match execute::read(pool, shard, &batch.refusal_read()).await? {
                        Some(reply) => batch.refusal(&reply)?,
                        None => return Err(self.shards.recover_closed(bucket, shard).await),
                    };
                    batch = match refusal {
                        PrepareRefusal::State(_) => {
                            return Err(self.shards.recover_closed(bucket, shard).await);
                        }
                        PrepareRefusal::Slots(batch) if attempts < SLOT_ATTEMPTS => batch,
                        PrepareRefusal::Slots(batch) => without_slots(bucket, &batch),
                    };
                    continue;
                }
                Err(error) => return Err(error),
            };
            let views = match found {
                // The shard existed a moment ago. Its changes have moved, or the bucket was removed.
                Some(found) => batch.views(&found?.ok_or_else(|| Error::Contended(bucket.name.clone()))?)?,
                None => batch.default_views(),
            };
            let at = HeadIncarnation { generation: bucket.generation, version };
            let prepared = |(change, view): (&Prepare, nacre_index::Result<KeyView>)| {
                Ok(Prepared { slot: change.pending.slot, at, view: view? })
            };
            return Ok(batch.changes().iter().zip(views).map(prepared).collect());
        }
    }
}

impl PrepareQueues {
    /// Adds a change to the queue of its shard; waits if too many changes wait already. Returns whether the shard had no
    /// queue, so that the caller must start a task that sends its batches.
    async fn add(
        &self,
        bucket: &Arc<Bucket>,
        shard: &str,
        change: Prepare,
        answer: oneshot::Sender<Result<Prepared>>,
    ) -> bool {
        // The semaphore is never closed.
        let room = Arc::clone(&self.room).acquire_owned().await.ok();
        let waiting = QueuedPrepare { bucket: Arc::clone(bucket), change, answer, _room: room };
        let mut shards = self.shards.lock();
        match shards.get_mut(shard) {
            Some(queue) => {
                queue.push_back(waiting);
                false
            }
            None => {
                shards.insert(shard.to_owned(), VecDeque::from([waiting]));
                true
            }
        }
    }

    /// Returns the permits for batches of a bucket.
    fn turns_of(&self, bucket: &Bucket) -> Arc<Semaphore> {
        let mut all = self.turns.lock();
        if let Some(turns) = all.get(&bucket.id).and_then(Weak::upgrade) {
            return turns;
        }
        if all.len() >= REMEMBERED_TURNS {
            all.retain(|_, turns| turns.strong_count() > 0);
        }
        let turns = Arc::new(Semaphore::new((bucket.shards / SHARDS_PER_BATCH).max(2) as usize));
        all.insert(bucket.id.clone(), Arc::downgrade(&turns));
        turns
    }

    /// Returns the next batch of a shard: changes that expect the same state of the shard. If no change waits, forgets the
    /// shard and returns `None`.
    fn take(&self, shard: &str) -> Option<Vec<QueuedPrepare>> {
        let mut shards = self.shards.lock();
        let queue = shards.get_mut(shard)?;
        let Some(first) = queue.front() else {
            shards.remove(shard);
            return None;
        };
        let state = open_state(&first.bucket);
        let (mut batch, mut tails) = (Vec::new(), 0);
        while let Some(next) = queue.front() {
            tails += next.change.pending.parts.len() + next.change.pending.replaced.len();
            let fits = batch.len() < MAX_BATCH && (batch.is_empty() || tails <= MAX_TAILS);
            if !fits || open_state(&next.bucket) != state {
                break;
            }
            batch.extend(queue.pop_front());
        }
        Some(batch)
    }
}

async fn run(preparer: Arc<Preparer>, turns: Arc<Semaphore>, shard: String) {
    // Requests that are ready to run join the first batch.
    tokio::task::yield_now().await;
    loop {
        // The semaphore is never closed.
        let turn = turns.acquire().await.ok();
        let Some(batch) = preparer.queues.take(&shard) else { return };
        let mut sending = pin!(AssertUnwindSafe(preparer.send(&shard, batch)).catch_unwind());
        let sent = match tokio::time::timeout(LONGEST_TURN, sending.as_mut()).await {
            Ok(sent) => sent,
            Err(_) => {
                drop(turn);
                sending.await
            }
        };
        if sent.is_err() {
            // The panic hook has printed the message and the place; the requests got errors.
            tracing::error!(shard, "rgw: preparing changes panicked");
        }
    }
}

/// Returns the batch without the slots that it asks for.
fn without_slots(bucket: &Bucket, batch: &PrepareBatch) -> PrepareBatch {
    let mut changes = batch.changes().to_vec();
    for change in &mut changes {
        change.pending.slot = false;
    }
    PrepareBatch::new(open_state(bucket), changes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::Versioning;
    use nacre_index::record::{Pending, Tails};

    fn waiting(versioning: Versioning, parts: usize) -> QueuedPrepare {
        let parts = vec![Tails::default(); parts];
        let change = Prepare {
            key: "k".into(),
            tag: "t".into(),
            pending: Pending { parts, ..Pending::default() },
            expect_new: false,
        };
        let bucket = Arc::new(Bucket { versioning, ..Bucket::default() });
        QueuedPrepare { bucket, change, answer: oneshot::channel().0, _room: None }
    }

    fn batches(waiting: Vec<QueuedPrepare>) -> Vec<usize> {
        let queues = PrepareQueues::default();
        queues.shards.lock().insert("s".into(), waiting.into());
        let mut sizes = Vec::new();
        while let Some(batch) = queues.take("s") {
            sizes.push(batch.len());
        }
        assert!(queues.shards.lock().is_empty(), "an idle shard is remembered");
        sizes
    }

    #[test]
    fn shards_of_a_bucket_take_turns_and_idle_buckets_are_forgotten() {
        let queues = PrepareQueues::default();
        let bucket = |id: usize| Bucket { id: id.to_string(), shards: 11, ..Bucket::default() };
        let turns = queues.turns_of(&bucket(0));
        assert!(Arc::ptr_eq(&turns, &queues.turns_of(&bucket(0))));
        assert_eq!(turns.available_permits(), 3);
        for id in 1..2 * REMEMBERED_TURNS {
            queues.turns_of(&bucket(id));
        }
        assert!(queues.turns.lock().len() <= REMEMBERED_TURNS);
        assert!(Arc::ptr_eq(&turns, &queues.turns_of(&bucket(0))));
    }

    #[test]
    fn a_batch_is_bounded_and_expects_one_state() {
        let plain = |count: usize| (0..count).map(|_| waiting(Versioning::Off, 0)).collect::<Vec<_>>();
        assert_eq!(batches(plain(3)), [3]);
        assert_eq!(batches(plain(MAX_BATCH + 2)), [MAX_BATCH, 2]);
        let mut mixed = plain(2);
        mixed.push(waiting(Versioning::Enabled, 0));
        mixed.extend(plain(1));
        assert_eq!(batches(mixed), [2, 1, 1]);
        let large = |_| waiting(Versioning::Off, 10_000);
        assert_eq!(batches((0..2).map(large).collect()), [1, 1]);
        assert_eq!(batches(vec![waiting(Versioning::Off, MAX_TAILS + 1)]), [1]);
    }
}
