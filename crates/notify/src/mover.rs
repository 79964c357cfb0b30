//! Movers: they move events from the outboxes of bucket indexes into the queues of topics.
//!
//! A bucket has a mover as long as it has shards to process: shards to which a finish of this gateway wrote records, and
//! shards that the scan found. A turn reads a page of each shard, enqueues the events, and removes the records whose events
//! are all in queues. Records that can't be moved now are skipped and retried. If only some events of a record are moved,
//! the others remain in it.

mod dirty;
mod receipts;
mod replay;

use crate::core::Core;
use crate::error::{Error, Result};
use crate::generations::GenerationChanges;
use crate::metrics::add;
use crate::outbox::page::{self, OutboxCursor, OutboxRecordPage};
use crate::outbox::{MAX_PAGE_RECORDS, MAX_READ_BYTES, OutboxTrim};
use crate::producer::{EnqueueOutcome, EpochToken, NotMovedReason, ShardProducer};
use crate::queue_shard::ShardKey;
use crate::shard_tasks::ShardTasks;
use crate::topic_state::TopicStates;
use crate::topic_store::StoredTopic;
use dirty::{DirtyBuckets, OutboxPart};
use futures::FutureExt as _;
use futures::future::join_all;
use nacre_queues::enqueue::OutboxEvent;
use nacre_queues::layout::Generation;
use nacre_queues::name::SourceId;
use nacre_queues::record::EventId;
use nacre_topics::topic::TopicId;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// The most readings in one turn: if a producer was unknown before a page was read, the page is read again.
const READ_ATTEMPTS: usize = 4;
/// The most records that a turn reads from all shards together. A page has at least [`MIN_PAGE_RECORDS`].
const RECORDS_PER_TURN: u64 = 2048;
const MIN_PAGE_RECORDS: u64 = 64;
/// The fewest bytes of events in a page, if they share [`MAX_READ_BYTES`] with other pages; a record has an event for each
/// topic.
const MIN_PAGE_BYTES: u64 = 16 << 10;
/// The most tokens that are kept for buckets without a mover.
const MAX_TOKENS: usize = 65_536;
/// The most checks of the outbox of a bucket that is to be emptied.
const MAX_DRAIN_CHECKS: usize = 200;
/// The shortest and the longest delay after a turn that moved nothing.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// The movers of a gateway.
pub(crate) struct Movers {
    core: Arc<Core>,
    states: Arc<TopicStates>,
    changes: Arc<GenerationChanges>,
    shard_tasks: Arc<ShardTasks>,
    dirty: DirtyBuckets,
    /// Topics whose dead letters a task replays.
    replays: Mutex<BTreeSet<TopicId>>,
    active: Semaphore,
    most_active: usize,
    /// The tokens of movers that ended, by bucket. They save the next mover of the bucket a second read of its pages.
    tokens: Mutex<BTreeMap<String, EpochTokens>>,
}

/// Tokens of the producers for a bucket's events.
type EpochTokens = BTreeMap<ShardKey, EpochToken>;

impl Movers {
    pub(crate) fn new(
        core: &Arc<Core>,
        states: &Arc<TopicStates>,
        changes: &Arc<GenerationChanges>,
        shard_tasks: &Arc<ShardTasks>,
    ) -> Movers {
        let most_active = core.settings.active_buckets.max(1);
        Movers {
            core: Arc::clone(core),
            states: Arc::clone(states),
            changes: Arc::clone(changes),
            shard_tasks: Arc::clone(shard_tasks),
            dirty: DirtyBuckets::default(),
            replays: Mutex::default(),
            active: Semaphore::new(most_active),
            most_active,
            tokens: Mutex::default(),
        }
    }

    /// Adds shards of a bucket's index that may have outbox records.
    pub(crate) fn mark_shards_dirty(
        self: &Arc<Self>,
        bucket: &str,
        shards: impl IntoIterator<Item = String>,
    ) {
        self.mark_dirty(bucket, shards.into_iter().map(|shard| (shard, OutboxPart::All)));
    }

    /// Adds a shard that has outbox records of these objects, or of any object if `keys` is empty.
    pub(crate) fn mark_keys_dirty(self: &Arc<Self>, bucket: &str, shard: &str, keys: &[String]) {
        self.mark_dirty(bucket, [(shard.to_owned(), OutboxPart::of_keys(keys))]);
    }

    fn mark_dirty(self: &Arc<Self>, bucket: &str, shards: impl IntoIterator<Item = (String, OutboxPart)>) {
        if self.core.tasks.is_stopped() || !self.dirty.add(bucket, shards) {
            return;
        }
        let (movers, bucket) = (Arc::clone(self), bucket.to_owned());
        self.core.tasks.spawn(async move { movers.run(&bucket).await });
    }

    /// The number of index shards to be processed.
    pub(crate) fn backlog(&self) -> usize {
        self.dirty.backlog()
    }

    /// Moves all events out of a bucket's outbox. Fails with [`Error::Contended`] if some can't be moved now.
    pub(crate) async fn drain(self: &Arc<Self>, bucket: &str) -> Result<()> {
        let core = &self.core;
        for _ in 0..MAX_DRAIN_CHECKS {
            core.tasks.check_running()?;
            let Some(found) = core.outboxes.find(bucket).await? else { return Ok(()) };
            let mut is_empty = true;
            for shard in found.shards {
                let range = page::PageRange { keys: None, after: Default::default(), max: 1, max_bytes: 0 };
                let page = page::read(&core.rados, &shard, range).await?;
                let has_records = match page {
                    page::PageRead::Page(page) => !page.records.is_empty(),
                    page::PageRead::Frozen => true,
                    page::PageRead::Absent => false,
                };
                if has_records {
                    is_empty = false;
                    self.mark_shards_dirty(bucket, [shard]);
                }
            }
            if is_empty {
                return Ok(());
            }
            core.tasks.sleep(core.settings.linger * 2).await;
        }
        Err(Error::Contended(format!("the outbox of bucket {bucket}")))
    }

    /// Replays the topic's letters that are marked for it.
    pub(crate) async fn replay(&self, stored: &StoredTopic) -> Result<()> {
        replay::replay(self, stored).await
    }

    /// The bytes of events that each of the current turns may read.
    fn bytes_a_turn(&self) -> u64 {
        let active = self.most_active.saturating_sub(self.active.available_permits());
        MAX_READ_BYTES / (active as u64).max(1)
    }

    fn take_tokens(&self, bucket: &str) -> EpochTokens {
        self.tokens.lock().remove(bucket).unwrap_or_default()
    }

    fn keep_tokens(&self, bucket: &str, tokens: EpochTokens) {
        let mut kept = self.tokens.lock();
        if kept.values().map(BTreeMap::len).sum::<usize>() + tokens.len() > MAX_TOKENS {
            kept.clear();
        }
        kept.insert(bucket.to_owned(), tokens);
    }

    /// The mover of a bucket.
    async fn run(&self, bucket: &str) {
        let core = &self.core;
        let Ok(source) = SourceId::new(bucket) else {
            tracing::error!(bucket, "notifications: the bucket's id can't be the source of events");
            return self.dirty.remove(bucket);
        };
        let mut bucket_mover = BucketMover {
            movers: self,
            core,
            bucket,
            source,
            tokens: self.take_tokens(bucket),
            submitted: Vec::new(),
            cursors: BTreeMap::new(),
        };
        let mut guard = MoverGuard { dirty: &self.dirty, bucket, is_over: false };
        let mut wait = core.settings.linger;
        let mut is_busy = false;
        loop {
            if !(if is_busy { self.gather(bucket).await } else { core.tasks.sleep(wait).await }) {
                return self.dirty.remove(bucket);
            }
            let shards = self.dirty.take(bucket);
            if shards.is_empty() {
                guard.is_over = true;
                return self.keep_tokens(bucket, bucket_mover.tokens);
            }
            let turn = match self.active.acquire().await {
                Ok(_permit) => bucket_mover.turn(&shards).await,
                Err(_) => return self.dirty.remove(bucket),
            };
            match turn {
                Ok(turn) => {
                    is_busy = !turn.is_blocked && !turn.is_full && turn.removed >= core.settings.busy_turn;
                    wait = match turn {
                        Turn { is_blocked: true, .. } => next_wait(wait),
                        Turn { is_full: true, .. } => Duration::ZERO,
                        _ => core.settings.linger,
                    };
                    self.dirty.add(bucket, turn.again.into_iter().map(|shard| (shard, OutboxPart::All)));
                }
                Err(error) => {
                    tracing::warn!(bucket, %error, "notifications: events are not moved; tried again later");
                    (wait, is_busy) = (next_wait(wait), false);
                    self.dirty.add(bucket, shards);
                }
            }
        }
    }

    /// Waits while records are being added to a busy bucket's outbox, for at most `busy_linger`. Returns `false` if the gateway
    /// stops.
    async fn gather(&self, bucket: &str) -> bool {
        let core = &self.core;
        // The last events of a burst wait for one or two steps.
        let step = core.settings.linger / 4;
        let mut left = core.settings.busy_linger;
        self.dirty.take_news(bucket);
        loop {
            if !core.tasks.sleep(step.min(left)).await {
                return false;
            }
            left = left.saturating_sub(step);
            if left.is_zero() || step.is_zero() || !self.dirty.take_news(bucket) {
                return true;
            }
        }
    }
}

/// Guard: the task is the mover of the bucket. After a panic, the scan can start another mover.
struct MoverGuard<'a> {
    dirty: &'a DirtyBuckets,
    bucket: &'a str,
    is_over: bool,
}

impl Drop for MoverGuard<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.dirty.remove(self.bucket);
        }
    }
}

fn next_wait(wait: Duration) -> Duration {
    (wait * 2).clamp(BACKOFF.0, BACKOFF.1)
}

/// The result of a turn.
#[derive(Default)]
struct Turn {
    /// Shards that have, or may have, more records.
    again: BTreeSet<String>,
    /// Whether no event could be moved.
    is_blocked: bool,
    /// Whether there are more records than a turn reads, so that the next turn needs no delay.
    is_full: bool,
    /// The number of records that were removed.
    removed: u64,
}

/// The work of one bucket.
struct BucketMover<'a> {
    movers: &'a Movers,
    core: &'a Arc<Core>,
    bucket: &'a str,
    source: SourceId,
    tokens: EpochTokens,
    /// The producers to which events were passed in this turn, and the events' ids.
    submitted: Vec<(Arc<ShardProducer>, Vec<EventId>)>,
    /// The start of the next page of a shard, if the records before it can't be moved now.
    cursors: BTreeMap<String, OutboxCursor>,
}

/// The destination of a topic's events.
#[derive(Clone)]
enum Route {
    /// This generation of its queues.
    Into(Arc<StoredTopic>, Generation),
    /// Its queues do not exist yet.
    Blocked,
    /// The topic no longer exists.
    Gone,
    /// The topic has no queues and never had any.
    NoQueue,
}

/// Events of pages for one producer.
struct ProducerBatch {
    producer: Arc<ShardProducer>,
    events: Vec<OutboxEvent>,
}

/// The content of pages, grouped by how it is processed.
#[derive(Default)]
struct Sorted {
    batches: BTreeMap<ShardKey, ProducerBatch>,
    /// Events that no queue accepts: they count as moved.
    settled: BTreeSet<EventId>,
    /// The number of these whose topic is gone, and the number of the others.
    gone: u64,
    unqueueable: u64,
    is_blocked: bool,
}

impl BucketMover<'_> {
    async fn turn(&mut self, shards: &[(String, OutboxPart)]) -> Result<Turn> {
        let mut turn = Turn::default();
        for _ in 0..READ_ATTEMPTS {
            let pages = self.read(shards, &mut turn).await?;
            if pages.iter().all(|page| page.records.is_empty() && page.passed.is_none()) {
                // The records before a cursor are read again.
                turn.again.extend(std::mem::take(&mut self.cursors).into_keys());
                return Ok(turn);
            }
            let sorted = self.sort(&pages).await?;
            turn.is_blocked |= sorted.is_blocked;
            if !self.take_tokens(&sorted).await? {
                continue;
            }
            let moved = self.enqueue(sorted, &mut turn).await?;
            self.remove(pages, &moved, &mut turn).await?;
            return Ok(turn);
        }
        turn.is_blocked = true;
        turn.again.extend(shards.iter().map(|(shard, _)| shard.clone()));
        Ok(turn)
    }

    /// Reads a page of each shard.
    async fn read(&self, shards: &[(String, OutboxPart)], turn: &mut Turn) -> Result<Vec<OutboxRecordPage>> {
        let count = (shards.len() as u64).max(1);
        let max = (RECORDS_PER_TURN / count).clamp(MIN_PAGE_RECORDS, MAX_PAGE_RECORDS);
        let max_bytes = (self.movers.bytes_a_turn() / count).max(MIN_PAGE_BYTES);
        let mut reads = Vec::new();
        for (shard, part) in shards {
            let cursor = self.cursors.get(shard).map(|cursor| cursor.name.clone());
            let keys = match part {
                OutboxPart::Keys(keys) if cursor.is_none() => Some(keys),
                _ => None,
            };
            let range = page::PageRange { keys, after: cursor.unwrap_or_default(), max, max_bytes };
            reads.push(page::read(&self.core.rados, shard, range).boxed());
        }
        let mut pages = Vec::new();
        for ((shard, _), page) in shards.iter().zip(join_all(reads).await) {
            match page? {
                page::PageRead::Page(mut page) => {
                    if let Some(cursor) = self.cursors.get(shard) {
                        page.skip_key(&cursor.key);
                    }
                    pages.push(page);
                }
                page::PageRead::Frozen => {
                    self.core.outboxes.open_left(self.bucket, shard).await?;
                    turn.again.insert(shard.clone());
                    turn.is_blocked = true;
                }
                // The index was resharded, or the bucket no longer exists.
                page::PageRead::Absent => {
                    let found = self.core.outboxes.find(self.bucket).await?;
                    let shards = found.map(|found| found.shards).unwrap_or_default();
                    turn.is_blocked |= shards.contains(shard);
                    turn.again.extend(shards);
                }
            }
        }
        Ok(pages)
    }

    /// Assigns events to producers.
    async fn sort(&self, pages: &[OutboxRecordPage]) -> Result<Sorted> {
        let mut sorted = Sorted::default();
        // A topic is looked up once, so that all events of a key have the same destination.
        let mut topics: BTreeMap<TopicId, Route> = BTreeMap::new();
        for event in pages.iter().flat_map(|page| &page.records).flat_map(|record| &record.events) {
            let route = match topics.get(&event.topic_id) {
                Some(route) => route.clone(),
                None => {
                    let route = self.route_of(event).await?;
                    topics.insert(event.topic_id, route.clone());
                    route
                }
            };
            let (stored, generation) = match route {
                Route::Gone => {
                    sorted.gone += 1;
                    sorted.settled.insert(event.id.clone());
                    continue;
                }
                Route::NoQueue => {
                    sorted.unqueueable += 1;
                    sorted.settled.insert(event.id.clone());
                    continue;
                }
                Route::Blocked => {
                    sorted.is_blocked = true;
                    continue;
                }
                Route::Into(stored, generation) => (stored, generation),
            };
            if event.event.check().is_err() {
                tracing::error!(bucket = self.bucket, topic = %event.topic, "notifications: an event is too large and is dropped");
                sorted.unqueueable += 1;
                sorted.settled.insert(event.id.clone());
                continue;
            }
            let shard = generation.shard_of(event.event.key);
            let key = ShardKey { topic: event.topic_id, generation: generation.number, shard };
            let batch = sorted.batches.entry(key).or_insert_with(|| ProducerBatch {
                producer: self.movers.states.producers.get(&stored.record.topic, generation, shard),
                events: Vec::new(),
            });
            batch.events.push(OutboxEvent { id: event.id.clone(), event: event.event.clone() });
        }
        Ok(sorted)
    }

    /// The destination of the event's topic.
    async fn route_of(&self, event: &page::FoundEvent) -> Result<Route> {
        let (arn, id) = (&event.topic, event.topic_id);
        let Some(stored) = self.core.topics.get(arn, id).await? else { return Ok(Route::Gone) };
        if let Some(current) = stored.record.layout.current {
            return Ok(Route::Into(stored, current));
        }
        let Some(fresh) = self.core.topics.fresh(arn, id).await? else { return Ok(Route::Gone) };
        let record = &fresh.record;
        if let Some(current) = record.layout.current {
            return Ok(Route::Into(fresh, current));
        }
        if record.layout.next.is_none() && !record.topic.is_queued() {
            return Ok(Route::NoQueue);
        }
        self.movers.changes.schedule(&fresh);
        Ok(Route::Blocked)
    }

    /// Takes tokens of the producers for which there is none. Returns `false` if there were any: then the pages must be read
    /// again.
    async fn take_tokens(&mut self, sorted: &Sorted) -> Result<bool> {
        let mut are_good = true;
        for (key, batch) in &sorted.batches {
            if self.tokens.contains_key(key) {
                continue;
            }
            are_good = false;
            match batch.producer.epoch_token(&self.source).await? {
                Some(token) => drop(self.tokens.insert(*key, token)),
                None => self.generation_closed(&batch.producer).await?,
            }
        }
        if self.tokens.len() > 4 * MAX_PAGE_RECORDS as usize {
            self.tokens.retain(|key, _| sorted.batches.contains_key(key));
        }
        Ok(are_good)
    }

    /// Reads the topic again after a producer reported its generation as closed.
    async fn generation_closed(&mut self, producer: &Arc<ShardProducer>) -> Result<()> {
        self.tokens.remove(&producer.key);
        self.movers.states.producers.remove(&producer.key);
        let Some(stored) = self.core.topics.peek(producer.key.topic) else { return Ok(()) };
        let arn = stored.record.topic.arn.clone();
        if let Some(fresh) = self.core.topics.fresh(&arn, producer.key.topic).await?
            && fresh.record.layout.next.is_some()
        {
            self.movers.changes.schedule(&fresh);
        }
        Ok(())
    }

    /// Passes events to their producers. Returns the ids of those that are in queues.
    async fn enqueue(&mut self, sorted: Sorted, turn: &mut Turn) -> Result<BTreeSet<EventId>> {
        add(&self.core.metrics.dropped_topic_gone, sorted.gone);
        add(&self.core.metrics.dropped_unqueueable, sorted.unqueueable);
        let mut moved = sorted.settled;
        let submitted: Vec<(Arc<ShardProducer>, EpochToken, Vec<OutboxEvent>)> = sorted
            .batches
            .into_iter()
            .filter_map(|(key, batch)| Some((batch.producer, *self.tokens.get(&key)?, batch.events)))
            .collect();
        let mut enqueues = Vec::new();
        for (producer, token, events) in &submitted {
            enqueues.push(producer.enqueue(*token, self.source.clone(), events.clone()).boxed());
        }
        let taken: Vec<EnqueueOutcome> = join_all(enqueues).await;
        let mut crowded = Vec::new();
        let mut has_progress = false;
        for ((producer, ..), taken) in submitted.iter().zip(taken) {
            if !taken.moved.is_empty() {
                has_progress = true;
                self.movers.states.admissions.mark_enqueued(producer.key.topic, &taken.moved);
                self.movers.shard_tasks.wake(producer.key);
            }
            moved.extend(taken.moved);
            match taken.left {
                None => {}
                Some(NotMovedReason::Stale) => drop(self.tokens.remove(&producer.key)),
                Some(NotMovedReason::Closed) => self.generation_closed(producer).await?,
                Some(NotMovedReason::TooManyReceipts) => crowded.push(Arc::clone(producer)),
                Some(NotMovedReason::NotSpilled) => self.movers.shard_tasks.request_spill(producer.key),
                Some(NotMovedReason::Failed(error)) => {
                    tracing::warn!(bucket = self.bucket, %error, "notifications: events are not enqueued; tried again");
                    self.tokens.remove(&producer.key);
                }
            }
        }
        turn.is_blocked |= !has_progress && !submitted.is_empty();
        let ids = |events: Vec<OutboxEvent>| events.into_iter().map(|one| one.id).collect();
        self.submitted = submitted.into_iter().map(|(producer, _, events)| (producer, ids(events))).collect();
        if !crowded.is_empty() {
            receipts::drop_gone_receipts(self.core, self.bucket, &self.source, &crowded).await?;
        }
        Ok(moved)
    }

    /// Removes records whose events are all in queues, and updates records of which some events are.
    async fn remove(
        &mut self,
        pages: Vec<OutboxRecordPage>,
        moved: &BTreeSet<EventId>,
        turn: &mut Turn,
    ) -> Result<()> {
        let trims: Vec<(OutboxRecordPage, OutboxTrim)> = pages
            .into_iter()
            .map(|page| {
                let trim = OutboxTrim::of(&page, |id| moved.contains(id));
                (page, trim)
            })
            .collect();
        let mut writes = Vec::new();
        for (page, trim) in &trims {
            writes.push(trim.write(&self.core.rados, &page.shard).boxed());
        }
        let mut gone = BTreeSet::new();
        let mut is_idle = true;
        for ((page, trim), written) in trims.iter().zip(join_all(writes).await) {
            if written? {
                gone.extend(trim.gone.iter().cloned());
                turn.removed += trim.names.len() as u64;
                add(&self.core.metrics.outbox_removed, trim.names.len() as u64);
            } else {
                turn.again.insert(page.shard.clone());
            }
            turn.is_full |= page.more && !trim.names.is_empty();
            is_idle &= trim.names.is_empty() && trim.updates.is_empty();
            let is_stuck = trim.names.is_empty() && page.more;
            match page.end().filter(|_| is_stuck) {
                Some(cursor) => drop(self.cursors.insert(page.shard.clone(), cursor)),
                // The records before the cursor are read again.
                None if self.cursors.remove(&page.shard).is_some() => {
                    turn.again.insert(page.shard.clone());
                }
                None => {}
            }
            if page.more || page.passed.is_some() || trim.names.len() < page.records.len() {
                turn.again.insert(page.shard.clone());
            }
        }
        // Records that can't be moved or decoded must not be read in a busy loop.
        turn.is_blocked |= is_idle;
        for (producer, ids) in std::mem::take(&mut self.submitted) {
            producer.drop_receipts(&self.source, ids.into_iter().filter(|id| gone.contains(id))).await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use crate::testing::{self, BUCKET, INDEX_SHARD, TestEndpoint};
    use std::sync::atomic::Ordering;

    #[test]
    fn events_are_moved_from_an_outbox_to_their_queue() {
        // This gateway delivers nothing.
        let settings = Settings { active_shards: 0, ..Settings::default() };
        testing::run(settings, |core| async move {
            let stored = testing::create_topic(&core, &[1], &[]).await;
            let states = Arc::new(TopicStates::new(&core, TestEndpoint::default().connector()));
            let changes = Arc::new(GenerationChanges::new(&core, &states));
            let shard_tasks = Arc::new(ShardTasks::new(&core, &states, &changes));
            let movers = Arc::new(Movers::new(&core, &states, &changes, &shard_tasks));
            for (number, change) in (1..).zip(["one", "two"]) {
                testing::write_outbox_record(&core, &stored.record.topic, change, number).await;
            }
            movers.mark_keys_dirty(BUCKET, INDEX_SHARD, &[]);
            assert_eq!(movers.backlog(), 1);
            movers.drain(BUCKET).await.unwrap();
            let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
            assert_eq!((count(&core.metrics.enqueued), count(&core.metrics.outbox_removed)), (2, 2));
            // The mover of the bucket ends when there is nothing to move.
            assert!(core.tasks.wait_until_ended(core.settings.linger * 4).await);
        });
    }
}
