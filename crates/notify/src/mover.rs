//! Movers: they move events from the outboxes of bucket indexes into the queues of topics.
//!
//! A bucket has a mover as long as it has shards to process: shards to which a finish of this gateway wrote records, and
//! shards that the scan found. A turn reads a page of each shard, enqueues the events, and removes the records whose events
//! are all in queues. Records that can't be moved now are skipped and retried. If only some events of a record are moved,
//! the others remain in it.

mod page;
mod receipts;
mod replay;

pub(crate) use page::OutboxRecordPage;
pub(crate) use receipts::remove_enqueued_records;

use crate::core::{Core, ShardKey, queue_id};
use crate::error::{Error, Result};
use crate::metrics::add;
use crate::producer::{EnqueueOutcome, EpochToken, NotMovedReason, ShardProducer};
use crate::rados::WriteOutcome;
use crate::topic_store::StoredTopic;
use futures::FutureExt as _;
use futures::future::join_all;
use nacre_index::op::{Guard, Step, Write};
use nacre_index::state;
use nacre_queues::enqueue::OutboxEvent;
use nacre_queues::layout::Generation;
use nacre_queues::name::SourceId;
use nacre_queues::record::EventId;
use nacre_topics::arn::TopicArn;
use nacre_topics::topic::TopicId;
use parking_lot::Mutex;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// The most records in a page.
pub(crate) const MAX_PAGE_RECORDS: u64 = 512;
/// The most shards of an index in one turn.
const SHARDS_PER_TURN: usize = 64;
/// The most readings in one turn: if a producer was unknown before a page was read, the page is read again.
const ATTEMPTS: usize = 4;
/// The most object keys that are remembered for a shard. Beyond it, its whole outbox is read.
const MAX_KEYS: usize = 256;
/// The most records that a turn reads from all shards together. A page has at least [`MIN_PAGE_RECORDS`].
const RECORDS_PER_TURN: u64 = 2048;
const MIN_PAGE_RECORDS: u64 = 64;
/// The most bytes of events that all current turns together read from outboxes. A page has at least [`MIN_PAGE_BYTES`]; a
/// record has an event for each topic.
const MAX_READ_BYTES: u64 = 16 << 20;
const MIN_PAGE_BYTES: u64 = 16 << 10;
/// The most tokens that are kept for buckets without a mover.
const MAX_TOKENS: usize = 65_536;
/// The most checks of the outbox of a bucket that is to be emptied.
const MAX_DRAIN_CHECKS: usize = 200;
/// The shortest and the longest delay after a turn that moved nothing.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// The buckets with events to be moved.
pub(crate) struct Mover {
    work: Mutex<Work>,
    active: Semaphore,
    most_active: usize,
    /// The tokens of movers that ended, by bucket. They save the next mover of the bucket a second read of its pages.
    tokens: Mutex<BTreeMap<String, EpochTokens>>,
}

/// Tokens of the producers for a bucket's events.
type EpochTokens = BTreeMap<ShardKey, EpochToken>;

#[derive(Default)]
struct Work {
    buckets: BTreeMap<String, DirtyShards>,
    /// Topics whose generations this gateway is changing.
    changes: BTreeSet<TopicArn>,
    /// Topics whose generations a task of this gateway will change.
    queued_changes: BTreeSet<TopicArn>,
    /// Topics whose dead letters a task of this gateway replays.
    replays: BTreeSet<TopicId>,
}

/// The part of a shard's outbox to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OutboxPart {
    /// The records of these objects. Other records, and traces of removed records, are not read.
    Keys(BTreeSet<String>),
    /// All records.
    All,
}

impl OutboxPart {
    fn add(&mut self, more: OutboxPart) {
        let is_too_much = match (&mut *self, more) {
            (OutboxPart::Keys(keys), OutboxPart::Keys(more)) => {
                keys.extend(more);
                keys.len() > MAX_KEYS
            }
            _ => true,
        };
        if is_too_much {
            *self = OutboxPart::All;
        }
    }
}

#[derive(Default)]
struct DirtyShards {
    shards: BTreeMap<String, OutboxPart>,
    /// The last shard that was taken.
    last: String,
    /// Whether shards were added since the mover last checked.
    has_news: bool,
}

impl DirtyShards {
    fn after_last(&self) -> Option<String> {
        let mut behind = self.shards.range::<str, _>((Bound::Excluded(self.last.as_str()), Bound::Unbounded));
        behind.next().or_else(|| self.shards.first_key_value()).map(|(shard, _)| shard.clone())
    }
}

impl Mover {
    pub(crate) fn new(active: usize) -> Mover {
        let most_active = active.max(1);
        Mover {
            work: Mutex::default(),
            active: Semaphore::new(most_active),
            most_active,
            tokens: Mutex::default(),
        }
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

    /// Marks the topic's generations as being changed by the calling task. Returns `false` if another task is changing
    /// them.
    pub(crate) fn begin_change(&self, arn: &TopicArn) -> bool {
        self.work.lock().changes.insert(arn.clone())
    }

    pub(crate) fn end_change(&self, arn: &TopicArn) {
        self.work.lock().changes.remove(arn);
    }

    /// Marks a change of the topic's generations as scheduled. Returns `false` if another task has scheduled one.
    pub(crate) fn mark_change_scheduled(&self, arn: &TopicArn) -> bool {
        self.work.lock().queued_changes.insert(arn.clone())
    }

    pub(crate) fn clear_change_scheduled(&self, arn: &TopicArn) {
        self.work.lock().queued_changes.remove(arn);
    }

    /// Adds shards to be processed. Returns whether the bucket had no mover.
    fn mark_dirty(&self, bucket: &str, shards: impl IntoIterator<Item = (String, OutboxPart)>) -> bool {
        let mut work = self.work.lock();
        let is_new = !work.buckets.contains_key(bucket);
        let dirty = work.buckets.entry(bucket.to_owned()).or_default();
        for (shard, part) in shards {
            match dirty.shards.entry(shard) {
                Entry::Vacant(new) => drop(new.insert(part)),
                Entry::Occupied(mut known) => known.get_mut().add(part),
            }
        }
        dirty.has_news = true;
        is_new
    }

    /// Takes shards to process. If there are none, the bucket's mover ends.
    fn take(&self, bucket: &str) -> Vec<(String, OutboxPart)> {
        let mut work = self.work.lock();
        let Some(dirty) = work.buckets.get_mut(bucket) else { return Vec::new() };
        let mut taken = Vec::new();
        // Shards take turns, because the first ones may always have records.
        while taken.len() < SHARDS_PER_TURN
            && let Some(shard) = dirty.after_last()
        {
            let Some(part) = dirty.shards.remove(&shard) else { break };
            dirty.last.clone_from(&shard);
            taken.push((shard, part));
        }
        if taken.is_empty() {
            work.buckets.remove(bucket);
        }
        taken
    }

    /// Whether shards were added since the last call.
    fn take_news(&self, bucket: &str) -> bool {
        let mut work = self.work.lock();
        work.buckets.get_mut(bucket).is_some_and(|dirty| std::mem::take(&mut dirty.has_news))
    }

    fn end(&self, bucket: &str) {
        self.work.lock().buckets.remove(bucket);
    }

    /// The number of index shards to be processed.
    pub(crate) fn backlog(&self) -> usize {
        self.work.lock().buckets.values().map(|dirty| dirty.shards.len()).sum()
    }
}

/// Adds shards of a bucket's index that may have outbox records.
pub(crate) fn mark_shards_dirty(core: &Arc<Core>, bucket: &str, shards: impl IntoIterator<Item = String>) {
    note_parts(core, bucket, shards.into_iter().map(|shard| (shard, OutboxPart::All)));
}

/// Adds a shard that has outbox records of these objects, or of any object if `keys` is empty.
pub(crate) fn mark_keys_dirty(core: &Arc<Core>, bucket: &str, shard: &str, keys: &[String]) {
    let some = !keys.is_empty() && keys.len() <= MAX_KEYS;
    let part = if some { OutboxPart::Keys(keys.iter().cloned().collect()) } else { OutboxPart::All };
    note_parts(core, bucket, [(shard.to_owned(), part)]);
}

fn note_parts(core: &Arc<Core>, bucket: &str, shards: impl IntoIterator<Item = (String, OutboxPart)>) {
    if core.is_stopped() || !core.mover.mark_dirty(bucket, shards) {
        return;
    }
    let (task, bucket) = (Arc::clone(core), bucket.to_owned());
    core.spawn(async move { run(task, bucket).await });
}

async fn run(core: Arc<Core>, bucket: String) {
    let Ok(source) = SourceId::new(&bucket) else {
        tracing::error!(bucket, "notifications: the bucket's id can't be the source of events");
        return core.mover.end(&bucket);
    };
    let mut bucket_mover = BucketMover {
        core: &core,
        bucket: &bucket,
        source,
        tokens: core.mover.take_tokens(&bucket),
        submitted: Vec::new(),
        cursors: BTreeMap::new(),
    };
    let mut guard = MoverGuard { mover: &core.mover, bucket: &bucket, is_over: false };
    let mut wait = core.settings.linger;
    let mut is_busy = false;
    loop {
        if !(if is_busy { gather(&core, &bucket).await } else { core.sleep_unless_stopped(wait).await }) {
            return core.mover.end(&bucket);
        }
        let shards = core.mover.take(&bucket);
        if shards.is_empty() {
            guard.is_over = true;
            return core.mover.keep_tokens(&bucket, bucket_mover.tokens);
        }
        let turn = match core.mover.active.acquire().await {
            Ok(_permit) => bucket_mover.turn(&shards).await,
            Err(_) => return core.mover.end(&bucket),
        };
        match turn {
            Ok(turn) => {
                is_busy = !turn.is_blocked && !turn.is_full && turn.removed >= core.settings.busy_turn;
                wait = match turn {
                    Turn { is_blocked: true, .. } => next_wait(wait),
                    Turn { is_full: true, .. } => Duration::ZERO,
                    _ => core.settings.linger,
                };
                core.mover.mark_dirty(&bucket, turn.again.into_iter().map(|shard| (shard, OutboxPart::All)));
            }
            Err(error) => {
                tracing::warn!(bucket, %error, "notifications: events are not moved; tried again later");
                (wait, is_busy) = (next_wait(wait), false);
                core.mover.mark_dirty(&bucket, shards);
            }
        }
    }
}

/// Waits while records are being added to a busy bucket's outbox, for at most `busy_linger`. Returns `false` if the gateway
/// stops.
async fn gather(core: &Core, bucket: &str) -> bool {
    // The last events of a burst wait for one or two steps.
    let step = core.settings.linger / 4;
    let mut left = core.settings.busy_linger;
    core.mover.take_news(bucket);
    loop {
        if !core.sleep_unless_stopped(step.min(left)).await {
            return false;
        }
        left = left.saturating_sub(step);
        if left.is_zero() || step.is_zero() || !core.mover.take_news(bucket) {
            return true;
        }
    }
}

/// Guard: the task is the mover of the bucket. After a panic, the scan can start another mover.
struct MoverGuard<'a> {
    mover: &'a Mover,
    bucket: &'a str,
    is_over: bool,
}

impl Drop for MoverGuard<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.mover.end(self.bucket);
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
    core: &'a Arc<Core>,
    bucket: &'a str,
    source: SourceId,
    tokens: EpochTokens,
    /// The producers to which events were passed in this turn, and the events' ids.
    submitted: Vec<(Arc<ShardProducer>, Vec<EventId>)>,
    /// The start of the next page of a shard, if the records before it can't be moved now.
    cursors: BTreeMap<String, Cursor>,
}

/// A place in the outbox of a shard.
struct Cursor {
    /// The record before it.
    name: bytes::Bytes,
    /// That record's key: later records of the key must not overtake the ones that are left.
    key: String,
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
        for _ in 0..ATTEMPTS {
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
        let max_bytes = (self.core.mover.bytes_a_turn() / count).max(MIN_PAGE_BYTES);
        let mut reads = Vec::new();
        for (shard, part) in shards {
            let cursor = self.cursors.get(shard).map(|cursor| cursor.name.clone());
            let keys = match part {
                OutboxPart::Keys(keys) if cursor.is_none() => Some(keys),
                _ => None,
            };
            let range = page::PageRange { keys, after: cursor.unwrap_or_default(), max, max_bytes };
            reads.push(page::read(self.core, shard, range).boxed());
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
                producer: self.core.producer(&stored.record.topic, generation, shard),
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
        self.core.schedule_reconcile(&fresh);
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
            match batch.producer.epoch_token(self.core, &self.source).await? {
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
        self.core.remove_producer(&producer.key);
        let Some(stored) = self.core.topics.peek(producer.key.topic) else { return Ok(()) };
        let arn = stored.record.topic.arn.clone();
        if let Some(fresh) = self.core.topics.fresh(&arn, producer.key.topic).await?
            && fresh.record.layout.next.is_some()
        {
            self.core.schedule_reconcile(&fresh);
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
            enqueues.push(producer.enqueue(self.core, *token, self.source.clone(), events.clone()).boxed());
        }
        let taken: Vec<EnqueueOutcome> = join_all(enqueues).await;
        let mut crowded = Vec::new();
        let mut has_progress = false;
        for ((producer, ..), taken) in submitted.iter().zip(taken) {
            if !taken.moved.is_empty() {
                has_progress = true;
                self.core.admissions.mark_enqueued(producer.key.topic, &taken.moved);
                crate::owner::wake_shard(self.core, producer.key);
            }
            moved.extend(taken.moved);
            match taken.left {
                None => {}
                Some(NotMovedReason::Stale) => drop(self.tokens.remove(&producer.key)),
                Some(NotMovedReason::Closed) => self.generation_closed(producer).await?,
                Some(NotMovedReason::TooManyReceipts) => crowded.push(Arc::clone(producer)),
                Some(NotMovedReason::NotSpilled) => crate::owner::request_spill(self.core, producer.key),
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
            receipts::clean(self.core, self.bucket, &self.source, &crowded).await?;
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
        let removals: Vec<(OutboxRecordPage, OutboxTrim)> = pages
            .into_iter()
            .map(|page| {
                let removal = OutboxTrim::of(&page, |id| moved.contains(id));
                (page, removal)
            })
            .collect();
        let mut writes = Vec::new();
        for (page, removal) in &removals {
            writes.push(removal.write(self.core, &page.shard).boxed());
        }
        let mut gone = BTreeSet::new();
        let mut is_idle = true;
        for ((page, removal), written) in removals.iter().zip(join_all(writes).await) {
            if written? {
                gone.extend(removal.gone.iter().cloned());
                turn.removed += removal.names.len() as u64;
                add(&self.core.metrics.outbox_removed, removal.names.len() as u64);
            } else {
                turn.again.insert(page.shard.clone());
            }
            turn.is_full |= page.more && !removal.names.is_empty();
            is_idle &= removal.names.is_empty() && removal.updates.is_empty();
            let is_stuck = removal.names.is_empty() && page.more;
            match page.end().filter(|_| is_stuck) {
                Some(cursor) => drop(self.cursors.insert(page.shard.clone(), cursor)),
                // The records before the cursor are read again.
                None if self.cursors.remove(&page.shard).is_some() => {
                    turn.again.insert(page.shard.clone());
                }
                None => {}
            }
            if page.more || page.passed.is_some() || removal.names.len() < page.records.len() {
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

/// The changes to the records of a page.
#[derive(Default)]
pub(crate) struct OutboxTrim {
    /// Records to be removed.
    pub(crate) names: Vec<bytes::Bytes>,
    /// Records of which some events are in queues: name, old value, new value.
    updates: Vec<(bytes::Bytes, bytes::Bytes, bytes::Bytes)>,
    /// Events that are no longer in the outbox afterwards.
    pub(crate) gone: BTreeSet<EventId>,
}

impl OutboxTrim {
    /// Computes the changes from the events that are in queues.
    pub(crate) fn of(page: &OutboxRecordPage, is_moved: impl Fn(&EventId) -> bool) -> OutboxTrim {
        let mut removal = OutboxTrim::default();
        for record in &page.records {
            let left: Vec<_> = record.events.iter().filter(|event| !is_moved(&event.id)).collect();
            if left.is_empty() && record.is_whole {
                removal.names.push(record.name.clone());
                removal.gone.extend(record.events.iter().map(|event| event.id.clone()));
                continue;
            }
            // A configuration is removed from the record when all its events are moved.
            let stays =
                |configuration: &String| left.iter().any(|event| event.configuration == *configuration);
            let staying: Vec<String> =
                record.record.candidates.iter().filter(|one| stays(one)).cloned().collect();
            if record.is_whole && !staying.is_empty() && staying.len() < record.record.candidates.len() {
                let changed = nacre_index::record::OutboxRecord {
                    candidates: staying.clone(),
                    ..record.record.clone()
                };
                let changed = nacre_index::record::encode(&changed);
                removal.updates.push((record.name.clone(), record.raw.clone(), changed));
                let leaves = record.events.iter().filter(|event| !staying.contains(&event.configuration));
                removal.gone.extend(leaves.map(|event| event.id.clone()));
            }
        }
        removal
    }

    /// Makes the changes in one operation. Returns `false` if the records are being moved to other shards, or if another
    /// mover changed them.
    pub(crate) async fn write(&self, core: &Core, shard: &str) -> Result<bool> {
        if self.names.is_empty() && self.updates.is_empty() {
            return Ok(true);
        }
        let mut guards = vec![Guard::Exists, state::guard_not_frozen()];
        let mut steps = vec![Step::OmapRemove(self.names.clone())];
        for (name, old, _) in &self.updates {
            guards.push(Guard::OmapEquals(name.clone(), old.clone()));
        }
        let set: Vec<_> = self.updates.iter().map(|(name, _, new)| (name.clone(), new.clone())).collect();
        if !set.is_empty() {
            steps.push(Step::OmapSet(set));
        }
        Ok(core.rados.write_index(shard, Write { guards, steps }).await? == WriteOutcome::Done)
    }
}

/// The id of an event within its bucket: the change, and the event's number among the events of the change.
pub(crate) fn event_id(change: &str, ordinal: u16) -> Result<EventId> {
    let id: Vec<u8> = [change.as_bytes(), b".", &ordinal.to_be_bytes()].concat();
    EventId::new(id).map_err(Error::from)
}

/// Moves all events out of a bucket's outbox. Fails with [`Error::Contended`] if some can't be moved now.
pub(crate) async fn drain(core: &Arc<Core>, bucket: &str) -> Result<()> {
    for _ in 0..MAX_DRAIN_CHECKS {
        core.check_running()?;
        let Some(found) = core.outboxes.find(bucket).await? else { return Ok(()) };
        let mut is_empty = true;
        for shard in found.shards {
            let range = page::PageRange { keys: None, after: Default::default(), max: 1, max_bytes: 0 };
            let page = page::read(core, &shard, range).await?;
            let has_records = match page {
                page::PageRead::Page(page) => !page.records.is_empty(),
                page::PageRead::Frozen => true,
                page::PageRead::Absent => false,
            };
            if has_records {
                is_empty = false;
                mark_shards_dirty(core, bucket, [shard]);
            }
        }
        if is_empty {
            return Ok(());
        }
        core.sleep_unless_stopped(core.settings.linger * 2).await;
    }
    Err(Error::Contended(format!("the outbox of bucket {bucket}")))
}

/// Replays the topic's letters that are marked for it. Only one task at a time may do this: a token does not cover what
/// another task with the same token enqueued and removed since the letters were read.
pub(crate) async fn replay(core: &Arc<Core>, stored: &StoredTopic) -> Result<()> {
    let topic = stored.record.topic.id;
    while !core.mover.work.lock().replays.insert(topic) {
        if !core.sleep_unless_stopped(BACKOFF.0).await {
            return Ok(());
        }
    }
    let _replay = Replay { core, topic };
    replay::replay_letters(core, stored, &queue_id(topic)).await
}

/// Guard: no other task of this gateway replays the letters of the topic.
struct Replay<'a> {
    core: &'a Core,
    topic: TopicId,
}

impl Drop for Replay<'_> {
    fn drop(&mut self) {
        self.core.mover.work.lock().replays.remove(&self.topic);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shard_of_a_large_index_has_its_turn() {
        let mover = Mover::new(1);
        let names = || (0..100).map(|number| (format!("shard.{number:03}"), OutboxPart::All));
        assert!(mover.mark_dirty("bucket", names()));
        let first = mover.take("bucket");
        assert!(!mover.mark_dirty("bucket", names()));
        let second = mover.take("bucket");
        assert_eq!((first.len(), second.len()), (SHARDS_PER_TURN, SHARDS_PER_TURN));
        let seen: BTreeSet<String> = first.into_iter().chain(second).map(|(shard, _)| shard).collect();
        assert_eq!(seen.len(), 100);
    }

    #[test]
    fn keys_are_remembered_as_long_as_they_are_few() {
        let keys =
            |from: usize, to: usize| OutboxPart::Keys((from..to).map(|number| number.to_string()).collect());
        let mover = Mover::new(1);
        mover.mark_dirty("bucket", [("shard".to_owned(), keys(0, 2))]);
        mover.mark_dirty("bucket", [("shard".to_owned(), keys(1, 3))]);
        assert_eq!(mover.take("bucket"), [("shard".to_owned(), keys(0, 3))]);
        for more in [keys(0, MAX_KEYS + 1), OutboxPart::All] {
            mover.mark_dirty("bucket", [("shard".to_owned(), keys(0, 1))]);
            mover.mark_dirty("bucket", [("shard".to_owned(), more)]);
            assert_eq!(mover.take("bucket"), [("shard".to_owned(), OutboxPart::All)]);
        }
    }
}
