//! Lanes: the way of events into one shard of a queue.
//!
//! A lane knows the shard as its own last operation left it, so that a gateway that is alone reads nothing. Movers of many
//! buckets hand events to it at the same time, and one operation takes them all.
//!
//! Invariant (`nacre_queues::enqueue`): events are enqueued only if they were seen in their outbox after the shard's state
//! was known from which they are enqueued. A *ticket* is a mover's proof of that: it names an epoch of the lane, in which
//! no other gateway changed the tail. A mover takes it before it reads the outbox; the lane refuses it once the epoch has ended.

use crate::core::{Core, ShardKey};
use crate::error::{Error, Result};
use crate::metrics::add;
use crate::rados::Written;
use bytes::Bytes;
use futures::channel::oneshot;
use nacre_queues::enqueue::{self, Enqueue, OutboxEvent, Refusal, ShardLimit, SourcePage};
use nacre_queues::name::{Kind, SourceId};
use nacre_queues::op::{ObjectKey, ObjectRead};
use nacre_queues::record::{Event, EventId, Identity};
use nacre_queues::settle::{self, LogMap, Oldest};
use nacre_queues::shard::{self, Shard};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

/// Sources whose receipts a lane keeps in memory.
const MAX_SOURCES: usize = 64;
/// Events of a queue that is full which are remembered to be dropped next, and entries of a page that shows them.
const OLDEST: usize = 512;
const OLDEST_PAGE: u64 = 64;
/// Operations that one turn of a lane does at most.
const MAX_OPS: usize = 64;

/// Proof that a mover knew the lane's epoch before it read an outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

/// Why events were left in their outbox.
#[derive(Clone, Debug)]
pub(crate) enum Left {
    /// The ticket is of an epoch that has ended: take a new one and read the outbox again.
    Stale,
    /// The generation is closed or its object is gone: read the topic again.
    Closed,
    /// The shard has too many receipts of the source: find out which records are gone.
    Crowded,
    /// The owner must spill first.
    NotSpilled,
    /// RADOS did not answer; events may have been enqueued.
    Failed(Error),
}

/// What came of handing over events.
#[derive(Clone, Debug, Default)]
pub(crate) struct Taken {
    /// Events that are in the queue now, or were already.
    pub(crate) moved: BTreeSet<EventId>,
    /// Why the others are not.
    pub(crate) left: Option<Left>,
}

/// A lane. Made for the present generation of a topic's queue.
pub(crate) struct Lane {
    pub(crate) key: ShardKey,
    object: ObjectKey,
    identity: Identity,
    limit: Option<ShardLimit>,
    state: futures::lock::Mutex<State>,
    waiting: Mutex<Vec<Handed>>,
}

#[derive(Default)]
struct State {
    known: Option<Known>,
    /// Records that are gone from their outboxes and may still have receipts.
    gone: BTreeMap<SourceId, BTreeSet<EventId>>,
    /// The sources that were used last, the latest at the end.
    recent: Vec<SourceId>,
    /// Events that a queue which is full may drop next. Some may be settled since they were read.
    oldest: Vec<Oldest>,
}

impl State {
    /// A source is used: its receipts are kept in memory, and those of another one forgotten.
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

struct Handed {
    ticket: Ticket,
    source: SourceId,
    events: Vec<OutboxEvent>,
    reply: oneshot::Sender<Taken>,
}

impl Lane {
    pub(crate) fn new(
        key: ShardKey,
        object: ObjectKey,
        identity: Identity,
        limit: Option<ShardLimit>,
    ) -> Lane {
        Lane { key, object, identity, limit, state: Default::default(), waiting: Mutex::default() }
    }

    /// The limit that it was made with.
    pub(crate) fn limit(&self) -> Option<ShardLimit> {
        self.limit
    }

    /// A ticket for outbox records that are read from now on; `None` where the generation is closed or gone.
    pub(crate) async fn ticket(&self, core: &Core, source: &SourceId) -> Result<Option<Ticket>> {
        let mut state = self.state.lock().await;
        state.used(source);
        if let Some(known) = &state.known
            && known.shard.receipts.contains_key(source)
        {
            return Ok(Some(Ticket(known.epoch)));
        }
        if !self.refresh(core, &mut state, Some(source)).await? {
            return Ok(None);
        }
        Ok(state.known.as_ref().map(|known| Ticket(known.epoch)))
    }

    /// Reads the shard, with receipts of the sources that are known and of one more. The epoch goes on if no other
    /// gateway changed the tail. `false` where the generation is closed or gone.
    async fn refresh(&self, core: &Core, state: &mut State, more: Option<&SourceId>) -> Result<bool> {
        let mut sources: Vec<SourceId> = more.into_iter().cloned().collect();
        let old = state.known.take();
        if let Some(old) = &old {
            let receipts = &old.shard.receipts;
            let others = state.recent.iter().rev();
            let others = others.filter(|source| Some(*source) != more && receipts.contains_key(*source));
            sources.extend(others.take(MAX_SOURCES - 1).cloned());
        }
        let Some(reply) = core.rados.read(&shard::read(&self.object, &sources)).await? else {
            return Ok(false);
        };
        let fresh = match shard::found(&self.object, &reply)? {
            shard::Found::Shard(identity) if identity == self.identity => {
                Shard::from_reply(&self.object, &sources, &reply)?
            }
            _ => return Ok(false),
        };
        if !fresh.is_open {
            return Ok(false);
        }
        let epoch = match old {
            Some(old) if old.shard.tail == fresh.tail => old.epoch,
            _ => core.next_epoch(),
        };
        state.known = Some(Known { shard: fresh, epoch });
        Ok(true)
    }

    /// The receipts of a source that the lane knows.
    pub(crate) async fn receipts(&self, source: &SourceId) -> Option<BTreeSet<EventId>> {
        let state = self.state.lock().await;
        state.known.as_ref()?.shard.receipts.get(source).cloned()
    }

    /// These records are gone from their outbox: their receipts go with the next operation.
    pub(crate) async fn forget(&self, source: &SourceId, ids: impl IntoIterator<Item = EventId>) {
        let mut state = self.state.lock().await;
        let State { known, gone, .. } = &mut *state;
        let had = known.as_ref().and_then(|known| known.shard.receipts.get(source));
        let gone = gone.entry(source.clone()).or_default();
        // What has no receipt here needs none to be dropped, unless the shard is not known.
        gone.extend(ids.into_iter().filter(|id| had.is_none_or(|had| had.contains(id))));
        while gone.len() > enqueue::MAX_RECEIPTS {
            gone.pop_first();
        }
    }

    /// Enqueues events of a source, those of a key in the order of its outbox.
    pub(crate) async fn enqueue(
        &self,
        core: &Core,
        ticket: Ticket,
        source: SourceId,
        events: Vec<OutboxEvent>,
    ) -> Taken {
        let (reply, answer) = oneshot::channel();
        self.waiting.lock().push(Handed { ticket, source, events, reply });
        {
            // Whoever gets here first does it for all who wait.
            let mut state = self.state.lock().await;
            let handed = std::mem::take(&mut *self.waiting.lock());
            if !handed.is_empty() {
                self.turn(core, &mut state, handed).await;
            }
        }
        answer
            .await
            .unwrap_or_else(|_| Taken { moved: BTreeSet::new(), left: Some(Left::Failed(Error::Stopped)) })
    }

    async fn turn(&self, core: &Core, state: &mut State, handed: Vec<Handed>) {
        let mut valid = Vec::new();
        for one in handed {
            let is_valid = state.known.as_ref().is_some_and(|known| {
                known.epoch == one.ticket.0 && known.shard.receipts.contains_key(&one.source)
            });
            if is_valid {
                state.used(&one.source);
                valid.push(one);
            } else {
                answer(one.reply, BTreeSet::new(), Some(Left::Stale));
            }
        }
        let mut by_source: BTreeMap<SourceId, Vec<OutboxEvent>> = BTreeMap::new();
        for one in &valid {
            by_source.entry(one.source.clone()).or_default().extend(one.events.iter().cloned());
        }
        let mut moved: BTreeMap<SourceId, BTreeSet<EventId>> = BTreeMap::new();
        let left = self.write(core, state, by_source, &mut moved).await;
        if !matches!(left, None | Some(Left::NotSpilled | Left::Crowded)) {
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

    /// Writes what it can; tells why the rest is left.
    async fn write(
        &self,
        core: &Core,
        state: &mut State,
        by_source: BTreeMap<SourceId, Vec<OutboxEvent>>,
        moved: &mut BTreeMap<SourceId, BTreeSet<EventId>>,
    ) -> Option<Left> {
        let mut rest: BTreeMap<SourceId, Vec<OutboxEvent>> = by_source;
        let mut is_refreshed = false;
        for _ in 0..MAX_OPS {
            let Some(known) = state.known.as_mut() else { return Some(Left::Stale) };
            let page = |(source, events): (&SourceId, &Vec<OutboxEvent>)| SourcePage {
                source: source.clone(),
                basis: known.shard.basis(),
                events: events.clone(),
                gone: state.gone.get(source).cloned().unwrap_or_default(),
                is_complete: false,
            };
            let pages: Vec<SourcePage> = rest.iter().map(page).collect();
            let resident_bytes = core.settings.spill.resident_bytes;
            let refusal = match enqueue::plan(&known.shard, pages, self.limit, resident_bytes) {
                Err(error) => return Some(Left::Failed(error.into())),
                Ok(Enqueue::Nothing(had)) => {
                    had.into_iter().for_each(|had| moved.entry(had.source).or_default().extend(had.ids));
                    return None;
                }
                Ok(Enqueue::Write(plan)) => match core.rados.write(plan.op).await {
                    Ok(Written::Done) => {
                        add(&core.metrics.enqueued, plan.added);
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
                        add(&core.metrics.enqueue_conflicts, 1);
                        return Some(Left::Stale);
                    }
                    Err(error) => return Some(Left::Failed(error)),
                },
                Ok(Enqueue::Refused(refusal)) => refusal,
            };
            match refusal {
                Refusal::Closed => return Some(Left::Closed),
                Refusal::StalePages(_) | Refusal::UnknownReceipts(_) => return Some(Left::Stale),
                Refusal::TooManyReceipts(_) => return Some(Left::Crowded),
                // What its owner did is not known: the state is as old as the lane's last reading.
                Refusal::NotSpilled | Refusal::NoRoom { .. } if !is_refreshed => {
                    is_refreshed = true;
                    let epoch = known.epoch;
                    match self.refresh(core, state, None).await {
                        Ok(true) => {}
                        Ok(false) => return Some(Left::Closed),
                        Err(error) => return Some(Left::Failed(error)),
                    }
                    if state.known.as_ref().is_none_or(|known| known.epoch != epoch) {
                        return Some(Left::Stale);
                    }
                }
                Refusal::NotSpilled => return Some(Left::NotSpilled),
                Refusal::NoRoom { entries, bytes } => {
                    is_refreshed = false;
                    match drop_oldest(core, &mut known.shard, &mut state.oldest, entries, bytes).await {
                        Ok(true) => {}
                        // Somebody else changed the head.
                        Ok(false) => return Some(Left::NotSpilled),
                        Err(error) => return Some(Left::Failed(error)),
                    }
                }
            }
        }
        Some(Left::NotSpilled)
    }
}

fn answer(reply: oneshot::Sender<Taken>, moved: BTreeSet<EventId>, left: Option<Left>) {
    // A mover that was dropped meanwhile reads its outbox again.
    let _ = reply.send(Taken { moved, left });
}

/// Drops the oldest events of a shard whose head is as it was read; `false` where it has changed or nothing can be dropped.
/// `oldest` are events that can be dropped next, as far as they are known.
async fn drop_oldest(
    core: &Core,
    shard: &mut Shard,
    oldest: &mut Vec<Oldest>,
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

/// Reads the oldest events of a shard's log that are not settled; none where its head is not as it was read.
///
/// What others dropped stays in the object until its owner settles: the log is read from the cursor on, wherever it begins.
async fn read_oldest(core: &Core, shard: &Shard) -> Result<Vec<Oldest>> {
    let of = |events: Vec<(u64, Event)>| {
        let oldest = |(sequence, event): (u64, Event)| Oldest { sequence, bytes: event.size_bytes() };
        events.into_iter().take(OLDEST).map(oldest).collect()
    };
    let cursor = shard.head.value.cursor;
    let mut log = LogMap::default();
    let mut after = Bytes::new();
    loop {
        let manifests = settle::read_kind(&shard.object, Kind::Segment, after, OLDEST_PAGE);
        let Some(reply) = core.rados.read(&manifests).await? else { return Ok(Vec::new()) };
        log.add_segments(shard, &reply.page)?;
        if let Some((first, object)) = log.segment_at(shard, cursor) {
            let Some(reply) = core.rados.read(&ObjectRead::data(&object)).await? else {
                return Ok(Vec::new());
            };
            return Ok(of(log.segment_events(shard, first, &reply.data)?.events));
        }
        let Some((last, _)) = reply.page.last().filter(|_| reply.more) else { break };
        after = last.clone();
    }
    // The batch with the cursor begins behind this.
    let mut after = cursor.checked_sub(enqueue::BATCH_EVENTS as u64);
    loop {
        let batches = settle::read_batches(&shard.object, after, OLDEST_PAGE);
        let Some(reply) = core.rados.read(&batches).await? else { return Ok(Vec::new()) };
        let fresh = Shard::from_reply(&shard.object, &[], &reply)?;
        if fresh.id != shard.id || fresh.head != shard.head {
            return Ok(Vec::new());
        }
        let events = log.add_batches(&fresh, &reply.page)?.events;
        let last = reply.page.last().filter(|_| reply.more).and_then(|(last, _)| Kind::Batch.sequence(last));
        if !events.is_empty() || last.is_none() {
            return Ok(of(events));
        }
        after = last;
    }
}
