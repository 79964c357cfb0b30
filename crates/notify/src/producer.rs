//! Producers: the path of events into one shard of a queue.
//!
//! A producer knows the shard's state after its own last operation, so a gateway that works alone reads nothing. Movers of many
//! buckets pass events to the producer at the same time, and one operation enqueues all of them.
//!
//! Invariant (`nacre_queues::enqueue`): an event is enqueued based on a state of the shard only if it was seen in its
//! outbox after that state was known. An *epoch token* is a mover's proof of this. It names an epoch of the producer, during
//! which no other gateway changed the tail. A mover takes a token before it reads the outbox; the producer refuses the token
//! once the epoch has ended.

use crate::core::Core;
use crate::error::{Error, Result};
use crate::metrics::add;
use crate::queue_shard::{ShardKey, queue_id};
use crate::rados::WriteOutcome;
use bytes::Bytes;
use futures::channel::oneshot;
use nacre_queues::enqueue::{self, EnqueueRefusal, EnqueueResult, OutboxEvent, OutboxPage, ShardLimit};
use nacre_queues::layout::{self, Generation};
use nacre_queues::name::{QueueRecordKind, SourceId};
use nacre_queues::op::{ObjectKey, ObjectRead};
use nacre_queues::record::{Event, EventId, ShardIdentity};
use nacre_queues::settle::{self, DropCandidate, LogIndex};
use nacre_queues::shard::{self, Shard};
use nacre_topics::attributes::FullQueuePolicy;
use nacre_topics::topic::{Topic, TopicId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The most producers that are kept. Beyond it, unused ones are dropped.
const MAX_PRODUCERS: usize = 16_384;
/// The most sources whose receipts a producer keeps in memory.
const MAX_SOURCES: usize = 64;
/// The number of events of a full queue that are remembered as the next to be dropped, and the number of entries of a page
/// with them.
const MAX_DROP_CANDIDATES: usize = 512;
const DROP_PAGE_ENTRIES: u64 = 64;
/// The most operations in one turn of a producer.
const MAX_OPS: usize = 64;

/// Proof that a mover knew the producer's epoch before it read an outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EpochToken(u64);

/// The reason why events were left in their outbox.
#[derive(Clone, Debug)]
pub(crate) enum NotMovedReason {
    /// The epoch of the token has ended: take a new token and read the outbox again.
    Stale,
    /// The generation is closed, or its object is gone: read the topic again.
    Closed,
    /// The shard has too many receipts of the source: determine which records are gone.
    TooManyReceipts,
    /// The owner must spill first.
    NotSpilled,
    /// RADOS failed; events may have been enqueued.
    Failed(Error),
}

/// The result of passing events to a producer.
#[derive(Clone, Debug, Default)]
pub(crate) struct EnqueueOutcome {
    /// Events that are now in the queue, or already were.
    pub(crate) moved: BTreeSet<EventId>,
    /// The reason why the others are not.
    pub(crate) left: Option<NotMovedReason>,
}

/// The producers of all topics.
pub(crate) struct Producers {
    core: Arc<Core>,
    by_shard: Mutex<BTreeMap<ShardKey, Arc<ShardProducer>>>,
    /// The next epoch. Producers share it, so that a token of a removed producer is not valid for its successor.
    epochs: Arc<AtomicU64>,
}

impl Producers {
    pub(crate) fn new(core: &Arc<Core>) -> Producers {
        Producers { core: Arc::clone(core), by_shard: Mutex::default(), epochs: Arc::new(AtomicU64::new(1)) }
    }

    /// The producer for a shard of the current generation of a topic.
    pub(crate) fn get(&self, topic: &Topic, generation: Generation, shard: u32) -> Arc<ShardProducer> {
        let key = ShardKey { topic: topic.id, generation: generation.number, shard };
        let limit = self.shard_limit(topic, generation.shards);
        let mut producers = self.by_shard.lock();
        if let Some(producer) = producers.get(&key).filter(|producer| producer.limit == limit) {
            return Arc::clone(producer);
        }
        if producers.len() >= MAX_PRODUCERS {
            producers.retain(|_, producer| Arc::strong_count(producer) > 1);
        }
        let id = queue_id(topic.id);
        let (visible, hidden) =
            layout::candidate_objects(&topic.arn.tenant, &topic.arn.name, &id, generation, shard);
        let object = (visible.unwrap_or(hidden), generation.identity(&id, shard));
        let (core, epochs) = (Arc::clone(&self.core), Arc::clone(&self.epochs));
        let producer = Arc::new(ShardProducer::new(core, epochs, key, object, limit));
        producers.insert(key, Arc::clone(&producer));
        producer
    }

    /// Removes a producer whose generation is closed.
    pub(crate) fn remove(&self, key: &ShardKey) {
        self.by_shard.lock().remove(key);
    }

    /// The topic no longer exists.
    pub(crate) fn forget(&self, topic: TopicId) {
        self.by_shard.lock().retain(|key, _| key.topic != topic);
    }

    /// The limit for one shard of a topic that drops its oldest events.
    fn shard_limit(&self, topic: &Topic, shards: u32) -> Option<ShardLimit> {
        if topic.attributes.full_queue_policy() != FullQueuePolicy::DropOldest {
            return None;
        }
        let bytes = self.core.settings.queue_limit_bytes(&topic.attributes)? / u64::from(shards.max(1));
        Some(ShardLimit { entries: u64::MAX, bytes: bytes.max(1) })
    }
}

/// The producer for a shard of the current generation of a topic's queue.
pub(crate) struct ShardProducer {
    core: Arc<Core>,
    epochs: Arc<AtomicU64>,
    pub(crate) key: ShardKey,
    object: ObjectKey,
    identity: ShardIdentity,
    limit: Option<ShardLimit>,
    state: futures::lock::Mutex<State>,
    waiting: Mutex<Vec<EnqueueRequest>>,
}

#[derive(Default)]
struct State {
    known: Option<Known>,
    /// Records that are gone from their outboxes but may still have receipts.
    gone: BTreeMap<SourceId, BTreeSet<EventId>>,
    /// The most recently used sources, the latest one last.
    recent: Vec<SourceId>,
    /// Events that a full queue may drop next. Some may have been settled since they were read.
    oldest: Vec<DropCandidate>,
}

impl State {
    /// Marks a source as used. Its receipts are kept in memory instead of those of another source.
    fn used(&mut self, source: &SourceId) {
        self.recent.retain(|one| one != source);
        if self.recent.len() >= MAX_SOURCES {
            self.recent.remove(0);
        }
        self.recent.push(source.clone());
    }
}

struct Known {
    shard: Shard,
    epoch: u64,
}

struct EnqueueRequest {
    token: EpochToken,
    source: SourceId,
    events: Vec<OutboxEvent>,
    reply: oneshot::Sender<EnqueueOutcome>,
}

impl ShardProducer {
    pub(crate) fn new(
        core: Arc<Core>,
        epochs: Arc<AtomicU64>,
        key: ShardKey,
        (object, identity): (ObjectKey, ShardIdentity),
        limit: Option<ShardLimit>,
    ) -> ShardProducer {
        let (state, waiting) = Default::default();
        ShardProducer { core, epochs, key, object, identity, limit, state, waiting }
    }

    /// A token for outbox records that are read from now on; `None` if the generation is closed or gone.
    pub(crate) async fn epoch_token(&self, source: &SourceId) -> Result<Option<EpochToken>> {
        let mut state = self.state.lock().await;
        state.used(source);
        if let Some(known) = &state.known
            && known.shard.receipts.contains_key(source)
        {
            return Ok(Some(EpochToken(known.epoch)));
        }
        if !self.refresh(&mut state, Some(source)).await? {
            return Ok(None);
        }
        Ok(state.known.as_ref().map(|known| EpochToken(known.epoch)))
    }

    /// Reads the shard with the receipts of the known sources and of one more. The epoch continues if no other gateway
    /// changed the tail. Returns `false` if the generation is closed or gone.
    async fn refresh(&self, state: &mut State, more: Option<&SourceId>) -> Result<bool> {
        let mut sources: Vec<SourceId> = more.into_iter().cloned().collect();
        let old = state.known.take();
        if let Some(old) = &old {
            let receipts = &old.shard.receipts;
            let others = state.recent.iter().rev();
            let others = others.filter(|source| Some(*source) != more && receipts.contains_key(*source));
            sources.extend(others.take(MAX_SOURCES - 1).cloned());
        }
        let Some(reply) = self.core.rados.read(&shard::read(&self.object, &sources)).await? else {
            return Ok(false);
        };
        let fresh = match shard::classify(&self.object, &reply)? {
            shard::ObjectContent::Shard(identity) if identity == self.identity => {
                Shard::from_reply(&self.object, &sources, &reply)?
            }
            _ => return Ok(false),
        };
        if !fresh.is_open {
            return Ok(false);
        }
        let epoch = match old {
            Some(old) if old.shard.tail == fresh.tail => old.epoch,
            _ => self.epochs.fetch_add(1, Ordering::Relaxed),
        };
        state.known = Some(Known { shard: fresh, epoch });
        Ok(true)
    }

    /// The known receipts of a source.
    pub(crate) async fn receipts(&self, source: &SourceId) -> Option<BTreeSet<EventId>> {
        let state = self.state.lock().await;
        state.known.as_ref()?.shard.receipts.get(source).cloned()
    }

    /// These records are gone from their outbox: the next operation removes their receipts.
    pub(crate) async fn drop_receipts(&self, source: &SourceId, ids: impl IntoIterator<Item = EventId>) {
        let mut state = self.state.lock().await;
        let State { known, gone, .. } = &mut *state;
        let had = known.as_ref().and_then(|known| known.shard.receipts.get(source));
        let gone = gone.entry(source.clone()).or_default();
        // A record without a receipt needs no removal, unless the shard's receipts are unknown.
        gone.extend(ids.into_iter().filter(|id| had.is_none_or(|had| had.contains(id))));
        while gone.len() > enqueue::MAX_RECEIPTS {
            gone.pop_first();
        }
    }

    /// Enqueues events of a source. Events of one key must be in the order of its outbox.
    pub(crate) async fn enqueue(
        &self,
        token: EpochToken,
        source: SourceId,
        events: Vec<OutboxEvent>,
    ) -> EnqueueOutcome {
        let (reply, answer) = oneshot::channel();
        self.waiting.lock().push(EnqueueRequest { token, source, events, reply });
        {
            // The first task to get the lock enqueues for all waiting tasks.
            let mut state = self.state.lock().await;
            let requests = std::mem::take(&mut *self.waiting.lock());
            if !requests.is_empty() {
                self.turn(&mut state, requests).await;
            }
        }
        answer.await.unwrap_or_else(|_| EnqueueOutcome {
            moved: BTreeSet::new(),
            left: Some(NotMovedReason::Failed(Error::Stopped)),
        })
    }

    async fn turn(&self, state: &mut State, requests: Vec<EnqueueRequest>) {
        let mut valid = Vec::new();
        for request in requests {
            let is_valid = state.known.as_ref().is_some_and(|known| {
                known.epoch == request.token.0 && known.shard.receipts.contains_key(&request.source)
            });
            if is_valid {
                state.used(&request.source);
                valid.push(request);
            } else {
                answer(request.reply, BTreeSet::new(), Some(NotMovedReason::Stale));
            }
        }
        let mut by_source: BTreeMap<SourceId, Vec<OutboxEvent>> = BTreeMap::new();
        for one in &valid {
            by_source.entry(one.source.clone()).or_default().extend(one.events.iter().cloned());
        }
        let mut moved: BTreeMap<SourceId, BTreeSet<EventId>> = BTreeMap::new();
        let left = self.write(state, by_source, &mut moved).await;
        if !matches!(left, None | Some(NotMovedReason::NotSpilled | NotMovedReason::TooManyReceipts)) {
            state.known = None;
        }
        for one in valid {
            let of_source = moved.get(&one.source);
            let taken =
                one.events.iter().filter(|event| of_source.is_some_and(|ids| ids.contains(&event.id)));
            let taken: BTreeSet<EventId> = taken.map(|event| event.id.clone()).collect();
            let is_whole = taken.len() == one.events.len();
            answer(one.reply, taken, left.clone().filter(|_| !is_whole));
        }
    }

    /// Enqueues as many events as possible. Returns the reason why others are left.
    async fn write(
        &self,
        state: &mut State,
        by_source: BTreeMap<SourceId, Vec<OutboxEvent>>,
        moved: &mut BTreeMap<SourceId, BTreeSet<EventId>>,
    ) -> Option<NotMovedReason> {
        let mut rest: BTreeMap<SourceId, Vec<OutboxEvent>> = by_source;
        let mut is_refreshed = false;
        for _ in 0..MAX_OPS {
            let Some(known) = state.known.as_mut() else { return Some(NotMovedReason::Stale) };
            let page = |(source, events): (&SourceId, &Vec<OutboxEvent>)| OutboxPage {
                source: source.clone(),
                basis: known.shard.basis(),
                events: events.clone(),
                gone: state.gone.get(source).cloned().unwrap_or_default(),
                is_complete: false,
            };
            let pages: Vec<OutboxPage> = rest.iter().map(page).collect();
            let resident_bytes = self.core.settings.spill.resident_bytes;
            let refusal = match enqueue::plan(&known.shard, pages, self.limit, resident_bytes) {
                Err(error) => return Some(NotMovedReason::Failed(error.into())),
                Ok(EnqueueResult::Nothing(had)) => {
                    had.into_iter().for_each(|had| moved.entry(had.source).or_default().extend(had.ids));
                    return None;
                }
                Ok(EnqueueResult::Write(plan)) => match self.core.rados.write(plan.op).await {
                    Ok(WriteOutcome::Done) => {
                        add(&self.core.metrics.enqueued, plan.added);
                        for source in rest.keys() {
                            state.gone.remove(source);
                        }
                        known.shard = plan.after;
                        plan.moved
                            .into_iter()
                            .for_each(|one| moved.entry(one.source).or_default().extend(one.ids));
                        if plan.rest.is_empty() {
                            return None;
                        }
                        rest = plan.rest.into_iter().map(|page| (page.source, page.events)).collect();
                        continue;
                    }
                    Ok(_) => {
                        add(&self.core.metrics.enqueue_conflicts, 1);
                        return Some(NotMovedReason::Stale);
                    }
                    Err(error) => return Some(NotMovedReason::Failed(error)),
                },
                Ok(EnqueueResult::Refused(refusal)) => refusal,
            };
            match refusal {
                EnqueueRefusal::Closed => return Some(NotMovedReason::Closed),
                EnqueueRefusal::StalePages(_) | EnqueueRefusal::UnknownReceipts(_) => {
                    return Some(NotMovedReason::Stale);
                }
                EnqueueRefusal::TooManyReceipts(_) => return Some(NotMovedReason::TooManyReceipts),
                // The owner may have made room since the producer last read the shard.
                EnqueueRefusal::NotSpilled | EnqueueRefusal::NoRoom { .. } if !is_refreshed => {
                    is_refreshed = true;
                    let epoch = known.epoch;
                    match self.refresh(state, None).await {
                        Ok(true) => {}
                        Ok(false) => return Some(NotMovedReason::Closed),
                        Err(error) => return Some(NotMovedReason::Failed(error)),
                    }
                    if state.known.as_ref().is_none_or(|known| known.epoch != epoch) {
                        return Some(NotMovedReason::Stale);
                    }
                }
                EnqueueRefusal::NotSpilled => return Some(NotMovedReason::NotSpilled),
                EnqueueRefusal::NoRoom { entries, bytes } => {
                    is_refreshed = false;
                    match drop_oldest(&self.core, &mut known.shard, &mut state.oldest, entries, bytes).await {
                        Ok(true) => {}
                        // Another gateway changed the head.
                        Ok(false) => return Some(NotMovedReason::NotSpilled),
                        Err(error) => return Some(NotMovedReason::Failed(error)),
                    }
                }
            }
        }
        Some(NotMovedReason::NotSpilled)
    }
}

fn answer(reply: oneshot::Sender<EnqueueOutcome>, moved: BTreeSet<EventId>, left: Option<NotMovedReason>) {
    // A mover that was dropped in the meantime reads its outbox again.
    let _ = reply.send(EnqueueOutcome { moved, left });
}

/// Drops the oldest events of a shard, based on the head that was read. Returns `false` if the head has changed or nothing
/// can be dropped. `oldest` are the events known to be dropped next.
async fn drop_oldest(
    core: &Core,
    shard: &mut Shard,
    oldest: &mut Vec<DropCandidate>,
    entries: u64,
    bytes: u64,
) -> Result<bool> {
    oldest.retain(|event| !shard.head.value.is_settled(event.sequence));
    if oldest.is_empty() {
        *oldest = read_oldest(core, shard).await?;
    }
    let dropped_before = shard.head.value.dropped;
    let Some((op, after)) = settle::drop_oldest(shard, oldest, entries, bytes) else { return Ok(false) };
    if !core.rados.write(op).await?.is_done() {
        return Ok(false);
    }
    core.metrics.dropped_oldest.fetch_add(after.head.value.dropped - dropped_before, Ordering::Relaxed);
    *shard = after;
    Ok(true)
}

/// Reads the oldest events of a shard's log that are not settled. Returns none if the head has changed.
///
/// Events that other gateways dropped remain in the object until its owner settles. So the log is read from the cursor, not
/// from its first batch.
async fn read_oldest(core: &Core, shard: &Shard) -> Result<Vec<DropCandidate>> {
    let of = |events: Vec<(u64, Event)>| {
        let oldest = |(sequence, event): (u64, Event)| DropCandidate { sequence, bytes: event.size_bytes() };
        events.into_iter().take(MAX_DROP_CANDIDATES).map(oldest).collect()
    };
    let cursor = shard.head.value.cursor;
    let mut log = LogIndex::default();
    let mut after = Bytes::new();
    loop {
        let manifests =
            settle::read_records(&shard.object, QueueRecordKind::Segment, after, DROP_PAGE_ENTRIES);
        let Some(reply) = core.rados.read(&manifests).await? else { return Ok(Vec::new()) };
        log.add_segments(shard, &reply.page)?;
        if let Some((first, object)) = log.segment_from(shard, cursor) {
            let Some(reply) = core.rados.read(&ObjectRead::data(&object)).await? else {
                return Ok(Vec::new());
            };
            return Ok(of(log.decode_segment(shard, first, &reply.data)?.events));
        }
        let Some((last, _)) = reply.page.last().filter(|_| reply.more) else { break };
        after = last.clone();
    }
    // The batch with the cursor starts after this key.
    let mut after = cursor.checked_sub(enqueue::BATCH_EVENTS as u64);
    loop {
        let batches = settle::read_batches(&shard.object, after, DROP_PAGE_ENTRIES);
        let Some(reply) = core.rados.read(&batches).await? else { return Ok(Vec::new()) };
        let fresh = Shard::from_reply(&shard.object, &[], &reply)?;
        if fresh.id != shard.id || fresh.head != shard.head {
            return Ok(Vec::new());
        }
        let events = log.add_batches(&fresh, &reply.page)?.events;
        let last = reply
            .page
            .last()
            .filter(|_| reply.more)
            .and_then(|(last, _)| QueueRecordKind::Batch.sequence(last));
        if !events.is_empty() || last.is_none() {
            return Ok(of(events));
        }
        after = last;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use crate::testing::{self, BUCKET};
    use crate::topic_store::StoredTopic;

    fn first_producer(producers: &Producers, stored: &StoredTopic) -> Arc<ShardProducer> {
        producers.get(&stored.record.topic, stored.record.layout.current.unwrap(), 0)
    }

    async fn token(producer: &ShardProducer, source: &SourceId) -> EpochToken {
        producer.epoch_token(source).await.unwrap().expect("the generation is open")
    }

    #[test]
    fn a_token_is_valid_until_another_gateway_enqueues() {
        testing::run(Settings::default(), |core| async move {
            let stored = testing::create_topic(&core, &[1], &[]).await;
            let event = |change| vec![testing::outbox_event(&stored.record.topic, change)];
            let source = SourceId::new(BUCKET).unwrap();
            let [own, other] = [Producers::new(&core), Producers::new(&core)]
                .map(|producers| first_producer(&producers, &stored));
            let (first, others) = (token(&own, &source).await, token(&other, &source).await);
            // An event that the queue already has is not enqueued again.
            for _ in 0..2 {
                let outcome = own.enqueue(first, source.clone(), event("one")).await;
                assert!(outcome.moved.len() == 1 && outcome.left.is_none(), "{outcome:?}");
            }
            assert_eq!(core.metrics.enqueued.load(Ordering::Relaxed), 1);
            let outcome = other.enqueue(others, source.clone(), event("two")).await;
            assert!(matches!(outcome.left, Some(NotMovedReason::Stale)), "{outcome:?}");
            let others = token(&other, &source).await;
            let outcome = other.enqueue(others, source.clone(), event("two")).await;
            assert!(outcome.left.is_none(), "{outcome:?}");
            assert_eq!(other.receipts(&source).await.unwrap().len(), 2);
        });
    }

    #[test]
    fn a_token_of_a_removed_producer_is_refused() {
        testing::run(Settings::default(), |core| async move {
            let stored = testing::create_topic(&core, &[1], &[]).await;
            let source = SourceId::new(BUCKET).unwrap();
            let producers = Producers::new(&core);
            let removed = first_producer(&producers, &stored);
            assert!(Arc::ptr_eq(&removed, &first_producer(&producers, &stored)));
            let of_removed = token(&removed, &source).await;
            producers.remove(&removed.key);
            let producer = first_producer(&producers, &stored);
            let current = token(&producer, &source).await;
            let event = || vec![testing::outbox_event(&stored.record.topic, "one")];
            let outcome = producer.enqueue(of_removed, source.clone(), event()).await;
            assert!(matches!(outcome.left, Some(NotMovedReason::Stale)), "{outcome:?}");
            let outcome = producer.enqueue(current, source, event()).await;
            assert!(outcome.left.is_none(), "{outcome:?}");
        });
    }
}
