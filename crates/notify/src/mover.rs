//! Movers: from the outboxes of bucket indexes into the queues of topics.
//!
//! A bucket has a mover as long as it has shards to be looked at: those that a finish of this gateway wrote records to, and
//! those that the scan found. A turn of it reads a page of each, enqueues the events, and removes the records that have all
//! their events in queues. What can't be moved now is passed and tried again; of a record whose events are moved in part
//! the rest stays.

mod page;
mod receipts;
mod replay;

pub(crate) use page::IndexPage;
pub(crate) use receipts::forget_receipts;

use crate::core::{Core, ShardKey, queue_id};
use crate::error::{Error, Result};
use crate::lane::{Lane, Left, Taken, Ticket};
use crate::metrics::add;
use crate::rados::Written;
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
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Records in a page.
pub(crate) const PAGE: u64 = 512;
/// Shards of an index that a turn looks at.
const SHARDS_A_TURN: usize = 64;
/// Readings in a turn: whenever a lane was not known before a page was read, the page is read again.
const ATTEMPTS: usize = 4;
/// Looks at a bucket's outbox that is to be emptied.
const DRAINS: usize = 200;
/// The wait after a turn that moved nothing, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Buckets with something to be moved.
pub(crate) struct Mover {
    work: Mutex<Work>,
    active: Semaphore,
}

#[derive(Default)]
struct Work {
    buckets: BTreeMap<String, Dirty>,
    /// Topics whose generations are being changed by this gateway.
    changes: BTreeSet<TopicArn>,
    /// Topics whose generations a task of this gateway is going to change.
    queued_changes: BTreeSet<TopicArn>,
}

#[derive(Default)]
struct Dirty {
    shards: BTreeSet<String>,
}

impl Mover {
    pub(crate) fn new(active: usize) -> Mover {
        Mover { work: Mutex::default(), active: Semaphore::new(active.max(1)) }
    }

    /// Whether no other task changes the generations of the topic's queues.
    pub(crate) fn begin_change(&self, arn: &TopicArn) -> bool {
        self.work.lock().changes.insert(arn.clone())
    }

    pub(crate) fn end_change(&self, arn: &TopicArn) {
        self.work.lock().changes.remove(arn);
    }

    /// Whether no other task is going to change them.
    pub(crate) fn queue_change(&self, arn: &TopicArn) -> bool {
        self.work.lock().queued_changes.insert(arn.clone())
    }

    pub(crate) fn unqueue_change(&self, arn: &TopicArn) {
        self.work.lock().queued_changes.remove(arn);
    }

    /// Notes shards to be looked at; tells whether the bucket had no mover.
    fn note(&self, bucket: &str, shards: impl IntoIterator<Item = String>) -> bool {
        let mut work = self.work.lock();
        let is_new = !work.buckets.contains_key(bucket);
        work.buckets.entry(bucket.to_owned()).or_default().shards.extend(shards);
        is_new
    }

    /// Takes shards to look at; without any the bucket's mover ends.
    fn take(&self, bucket: &str) -> Vec<String> {
        let mut work = self.work.lock();
        let Some(dirty) = work.buckets.get_mut(bucket) else { return Vec::new() };
        let mut taken = Vec::new();
        while taken.len() < SHARDS_A_TURN
            && let Some(shard) = dirty.shards.pop_first()
        {
            taken.push(shard);
        }
        if taken.is_empty() {
            work.buckets.remove(bucket);
        }
        taken
    }

    fn end(&self, bucket: &str) {
        self.work.lock().buckets.remove(bucket);
    }

    /// Shards of indexes that are to be looked at.
    pub(crate) fn backlog(&self) -> usize {
        self.work.lock().buckets.values().map(|dirty| dirty.shards.len()).sum()
    }
}

/// Shards of a bucket's index have outbox records, or may have.
pub(crate) fn note(core: &Arc<Core>, bucket: &str, shards: impl IntoIterator<Item = String>) {
    if core.is_stopped() || !core.mover.note(bucket, shards) {
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
    let mut move_ = Move {
        core: &core,
        bucket: &bucket,
        source,
        tickets: BTreeMap::new(),
        handed: Vec::new(),
        cursors: BTreeMap::new(),
    };
    let mut wait = core.settings.linger;
    loop {
        if !core.pause(wait).await {
            return core.mover.end(&bucket);
        }
        let shards = core.mover.take(&bucket);
        if shards.is_empty() {
            return;
        }
        let turn = match core.mover.active.acquire().await {
            Ok(_permit) => move_.turn(&shards).await,
            Err(_) => return core.mover.end(&bucket),
        };
        match turn {
            Ok(turn) => {
                wait = if turn.is_blocked { next_wait(wait) } else { core.settings.linger };
                core.mover.note(&bucket, turn.again);
            }
            Err(error) => {
                tracing::warn!(bucket, %error, "notifications: events are not moved; tried again later");
                wait = next_wait(wait);
                core.mover.note(&bucket, shards);
            }
        }
    }
}

fn next_wait(wait: Duration) -> Duration {
    (wait * 2).clamp(BACKOFF.0, BACKOFF.1)
}

/// What a turn left.
#[derive(Default)]
struct Turn {
    /// Shards that have, or may have, more records.
    again: BTreeSet<String>,
    /// Whether nothing was moved of what there is.
    is_blocked: bool,
}

/// The work of one bucket.
struct Move<'a> {
    core: &'a Arc<Core>,
    bucket: &'a str,
    source: SourceId,
    tickets: BTreeMap<ShardKey, Ticket>,
    /// The lanes that events were handed to in this turn.
    handed: Vec<Arc<Lane>>,
    /// Behind which record the next page of a shard begins, where those before it can't be moved now.
    cursors: BTreeMap<String, bytes::Bytes>,
}

/// Events of pages for one lane.
struct ForLane {
    lane: Arc<Lane>,
    events: Vec<OutboxEvent>,
}

/// What pages hold, by what is to be done with it.
#[derive(Default)]
struct Sorted {
    lanes: BTreeMap<ShardKey, ForLane>,
    /// Events that no queue will take: they count as moved.
    settled: BTreeSet<EventId>,
    is_blocked: bool,
}

impl Move<'_> {
    async fn turn(&mut self, shards: &[String]) -> Result<Turn> {
        let mut turn = Turn::default();
        for _ in 0..ATTEMPTS {
            let pages = self.read(shards, &mut turn).await?;
            if pages.iter().all(|page| page.records.is_empty()) {
                return Ok(turn);
            }
            let sorted = self.sort(&pages).await?;
            turn.is_blocked |= sorted.is_blocked;
            if !self.take_tickets(&sorted).await? {
                continue;
            }
            let moved = self.enqueue(sorted, &mut turn).await?;
            self.remove(pages, &moved, &mut turn).await?;
            return Ok(turn);
        }
        turn.is_blocked = true;
        turn.again.extend(shards.iter().cloned());
        Ok(turn)
    }

    /// A page of each shard.
    async fn read(&self, shards: &[String], turn: &mut Turn) -> Result<Vec<IndexPage>> {
        let mut reads = Vec::new();
        for shard in shards {
            let after = self.cursors.get(shard).cloned().unwrap_or_default();
            reads.push(page::read(self.core, shard, after, PAGE).boxed());
        }
        let mut pages = Vec::new();
        for (shard, page) in shards.iter().zip(join_all(reads).await) {
            match page? {
                page::Read::Page(page) => pages.push(page),
                page::Read::Frozen => {
                    turn.again.insert(shard.clone());
                    turn.is_blocked = true;
                }
                // The index was resharded, or the bucket is gone.
                page::Read::Absent => {
                    let found = self.core.outboxes.find(self.bucket).await?;
                    let shards = found.map(|found| found.shards).unwrap_or_default();
                    turn.is_blocked |= shards.contains(shard);
                    turn.again.extend(shards);
                }
            }
        }
        Ok(pages)
    }

    /// Assigns events to lanes.
    async fn sort(&self, pages: &[IndexPage]) -> Result<Sorted> {
        let mut sorted = Sorted::default();
        for event in pages.iter().flat_map(|page| &page.records).flat_map(|record| &record.events) {
            let Some(stored) = self.core.topics.get(&event.topic, event.topic_id).await? else {
                add(&self.core.metrics.dropped_topic_gone, 1);
                sorted.settled.insert(event.id.clone());
                continue;
            };
            let Some(generation) = self.current(&stored, event.topic_id).await? else {
                sorted.is_blocked = true;
                continue;
            };
            let Some(generation) = generation else {
                add(&self.core.metrics.dropped_unqueueable, 1);
                sorted.settled.insert(event.id.clone());
                continue;
            };
            if event.event.check().is_err() {
                tracing::error!(bucket = self.bucket, topic = %event.topic, "notifications: an event is too large and is dropped");
                add(&self.core.metrics.dropped_unqueueable, 1);
                sorted.settled.insert(event.id.clone());
                continue;
            }
            let shard = generation.shard_of(event.event.key);
            let key = ShardKey { topic: event.topic_id, generation: generation.number, shard };
            let for_lane = sorted.lanes.entry(key).or_insert_with(|| ForLane {
                lane: self.core.lane(&stored.record.topic, generation, shard),
                events: Vec::new(),
            });
            for_lane.events.push(OutboxEvent { id: event.id.clone(), event: event.event.clone() });
        }
        Ok(sorted)
    }

    /// The generation that takes events of a topic. `None` where it remains to be made, `Some(None)` where the topic has no
    /// queues and never had.
    async fn current(
        &self,
        stored: &Arc<StoredTopic>,
        id: nacre_topics::topic::TopicId,
    ) -> Result<Option<Option<Generation>>> {
        if let Some(current) = stored.record.layout.current {
            return Ok(Some(Some(current)));
        }
        let arn = &stored.record.topic.arn;
        let Some(fresh) = self.core.topics.fresh(arn, id).await? else { return Ok(None) };
        let record = &fresh.record;
        if record.layout.current.is_some() {
            return Ok(Some(record.layout.current));
        }
        if record.layout.next.is_none() && !record.topic.is_queued() {
            return Ok(Some(None));
        }
        self.core.change_soon(&fresh);
        Ok(None)
    }

    /// Takes tickets of the lanes that need new ones; `false` if there were any, so that the pages must be read again.
    async fn take_tickets(&mut self, sorted: &Sorted) -> Result<bool> {
        let mut are_good = true;
        for (key, for_lane) in &sorted.lanes {
            if self.tickets.contains_key(key) {
                continue;
            }
            are_good = false;
            match for_lane.lane.ticket(self.core, &self.source).await? {
                Some(ticket) => drop(self.tickets.insert(*key, ticket)),
                None => self.closed(&for_lane.lane).await?,
            }
        }
        if self.tickets.len() > 4 * PAGE as usize {
            self.tickets.retain(|key, _| sorted.lanes.contains_key(key));
        }
        Ok(are_good)
    }

    /// A lane's generation is closed: the topic is read again.
    async fn closed(&mut self, lane: &Arc<Lane>) -> Result<()> {
        self.tickets.remove(&lane.key);
        self.core.forget_lane(&lane.key);
        let Some(stored) = self.core.topics.peek(lane.key.topic) else { return Ok(()) };
        let arn = stored.record.topic.arn.clone();
        if let Some(fresh) = self.core.topics.fresh(&arn, lane.key.topic).await?
            && fresh.record.layout.next.is_some()
        {
            self.core.change_soon(&fresh);
        }
        Ok(())
    }

    /// Hands events to their lanes; returns the ids of those that are in queues.
    async fn enqueue(&mut self, sorted: Sorted, turn: &mut Turn) -> Result<BTreeSet<EventId>> {
        let mut moved = sorted.settled;
        let handed: Vec<(Arc<Lane>, Ticket, Vec<OutboxEvent>)> = sorted
            .lanes
            .into_iter()
            .filter_map(|(key, for_lane)| Some((for_lane.lane, *self.tickets.get(&key)?, for_lane.events)))
            .collect();
        let mut enqueues = Vec::new();
        for (lane, ticket, events) in &handed {
            enqueues.push(lane.enqueue(self.core, *ticket, self.source.clone(), events.clone()).boxed());
        }
        let taken: Vec<Taken> = join_all(enqueues).await;
        let mut crowded = Vec::new();
        let mut has_progress = false;
        for ((lane, ..), taken) in handed.iter().zip(taken) {
            if !taken.moved.is_empty() {
                has_progress = true;
                self.core.admissions.moved(lane.key.topic, &taken.moved);
                crate::owner::has_events(self.core, lane.key);
            }
            moved.extend(taken.moved);
            match taken.left {
                None => {}
                Some(Left::Stale) => drop(self.tickets.remove(&lane.key)),
                Some(Left::Closed) => self.closed(lane).await?,
                Some(Left::Crowded) => crowded.push(Arc::clone(lane)),
                Some(Left::NotSpilled) => crate::owner::must_spill(self.core, lane.key),
                Some(Left::Failed(error)) => {
                    tracing::warn!(bucket = self.bucket, %error, "notifications: events are not enqueued; tried again");
                    self.tickets.remove(&lane.key);
                }
            }
        }
        turn.is_blocked |= !has_progress && !handed.is_empty();
        self.handed = handed.into_iter().map(|(lane, ..)| lane).collect();
        if !crowded.is_empty() {
            receipts::clean(self.core, self.bucket, &self.source, &crowded).await?;
        }
        Ok(moved)
    }

    /// Removes records that are in all their queues, and notes in others which events are.
    async fn remove(
        &mut self,
        pages: Vec<IndexPage>,
        moved: &BTreeSet<EventId>,
        turn: &mut Turn,
    ) -> Result<()> {
        let removals: Vec<(IndexPage, Removal)> = pages
            .into_iter()
            .map(|page| {
                let removal = Removal::of(&page, |id| moved.contains(id));
                (page, removal)
            })
            .collect();
        let mut writes = Vec::new();
        for (page, removal) in &removals {
            writes.push(removal.write(self.core, &page.shard).boxed());
        }
        let mut gone = BTreeSet::new();
        for ((page, removal), written) in removals.iter().zip(join_all(writes).await) {
            if written? {
                gone.extend(removal.gone.iter().cloned());
                add(&self.core.metrics.outbox_removed, removal.names.len() as u64);
            } else {
                turn.again.insert(page.shard.clone());
            }
            let is_stuck = removal.names.is_empty() && !page.records.is_empty();
            match page.records.last().filter(|_| is_stuck && page.more) {
                Some(last) => drop(self.cursors.insert(page.shard.clone(), last.name.clone())),
                None => drop(self.cursors.remove(&page.shard)),
            }
            if page.more || removal.names.len() < page.records.len() {
                turn.again.insert(page.shard.clone());
            }
        }
        for lane in std::mem::take(&mut self.handed) {
            lane.forget(&self.source, gone.iter().cloned()).await;
        }
        Ok(())
    }
}

/// What is done with the records of a page.
#[derive(Default)]
pub(crate) struct Removal {
    /// Records to be removed.
    pub(crate) names: Vec<bytes::Bytes>,
    /// Records of which some events are in queues: as they are, and as they shall be.
    updates: Vec<(bytes::Bytes, bytes::Bytes, bytes::Bytes)>,
    /// Events that the outbox does not have after it.
    pub(crate) gone: BTreeSet<EventId>,
}

impl Removal {
    /// Of events that are in queues.
    pub(crate) fn of(page: &IndexPage, is_moved: impl Fn(&EventId) -> bool) -> Removal {
        let mut removal = Removal::default();
        for record in &page.records {
            let left: Vec<_> = record.events.iter().filter(|event| !is_moved(&event.id)).collect();
            if left.is_empty() && record.is_whole {
                removal.names.push(record.name.clone());
                removal.gone.extend(record.events.iter().map(|event| event.id.clone()));
                continue;
            }
            // A configuration leaves the record when all its events are moved.
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

    /// Does it in one operation; `false` where the records are being moved to other shards, or another mover changed them.
    pub(crate) async fn write(&self, core: &Core, shard: &str) -> Result<bool> {
        if self.names.is_empty() && self.updates.is_empty() {
            return Ok(true);
        }
        let mut guards = vec![Guard::Exists, state::is_not_frozen()];
        let mut steps = vec![Step::OmapRemove(self.names.clone())];
        for (name, old, _) in &self.updates {
            guards.push(Guard::OmapEquals(name.clone(), old.clone()));
        }
        let set: Vec<_> = self.updates.iter().map(|(name, _, new)| (name.clone(), new.clone())).collect();
        if !set.is_empty() {
            steps.push(Step::OmapSet(set));
        }
        Ok(core.rados.write_index(shard, Write { guards, steps }).await? == Written::Done)
    }
}

/// The id of an event within its bucket: the change, and the event among those of the change.
pub(crate) fn event_id(change: &str, ordinal: u16) -> Result<EventId> {
    let id: Vec<u8> = [change.as_bytes(), b".", &ordinal.to_be_bytes()].concat();
    EventId::new(id).map_err(Error::from)
}

/// Moves all events out of a bucket's outbox. Fails with [`Error::Contended`] where some can't be moved now.
pub(crate) async fn drain(core: &Arc<Core>, bucket: &str) -> Result<()> {
    for _ in 0..DRAINS {
        core.check_running()?;
        let Some(found) = core.outboxes.find(bucket).await? else { return Ok(()) };
        let mut is_empty = true;
        for shard in found.shards {
            let page = page::read(core, &shard, Default::default(), 1).await?;
            let has_records = match page {
                page::Read::Page(page) => !page.records.is_empty(),
                page::Read::Frozen => true,
                page::Read::Absent => false,
            };
            if has_records {
                is_empty = false;
                note(core, bucket, [shard]);
            }
        }
        if is_empty {
            return Ok(());
        }
        core.pause(core.settings.linger * 2).await;
    }
    Err(Error::Contended(format!("the outbox of bucket {bucket}")))
}

/// Looks for topics' letters to be replayed, and replays them.
pub(crate) async fn replay(core: &Arc<Core>, stored: &StoredTopic) -> Result<()> {
    let id = queue_id(stored.record.topic.id);
    replay::replay_letters(core, stored, &id).await
}
