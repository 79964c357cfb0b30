//! What gateways do: move, deliver, reshard, replay. Written as a gateway would be, on the crate's functions.

use super::rados::Fail;
use super::room::{Gateway, Mutation};
use bytes::Bytes;
use nacre_queues::dead_letters::{
    self, AddLettersResult, DeadLetterLimit, DeadLetterPage, DeadLetterQueue, LetterKind,
};
use nacre_queues::enqueue::{self, EnqueueRefusal, EnqueueResult, EnqueuedRecords, OutboxPage, ShardLimit};
use nacre_queues::layout::{self, Generation, QueueLayout};
use nacre_queues::name::{self, KeyHash, QueueRecordKind, SourceId, TopicId};
use nacre_queues::op::{Guard, ObjectKey, ObjectOp, ObjectRead, ObjectReply, Step};
use nacre_queues::record::{Event, EventId, OWNER};
use nacre_queues::reshard::{self, BeginCopy, ShardStep};
use nacre_queues::retry::{Backoff, RetryPolicy};
use nacre_queues::settle::{self, DropCandidate, LogIndex};
use nacre_queues::shard::{self, ObjectContent, RemainingEvents, Shard};
use nacre_queues::spill;
use nacre_queues::window::{OlderGenerations, Window, WindowLimits, WindowTime};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;

pub(crate) const NAME: &str = "fishtopic";
pub(crate) const LIMITS: WindowLimits = WindowLimits { window: 6, in_flight: 4, parked: 5 };
/// Of a shard that drops its oldest events.
const LIMIT: ShardLimit = ShardLimit { entries: 8, bytes: 200 };
const LETTERS: DeadLetterLimit = DeadLetterLimit { entries: 10_000, bytes: 1 << 20 };
/// Long enough that leases end only when the scheduler says so.
const TERM_NS: u64 = 1_000_000_000;

pub(crate) fn topic() -> TopicId {
    TopicId::new("0123456789abcdef").unwrap()
}

/// Buckets whose events go to the topic.
pub(crate) fn buckets() -> [SourceId; 2] {
    [SourceId::new("bucket.a").unwrap(), SourceId::new("bucket.b").unwrap()]
}

fn policy() -> RetryPolicy {
    let backoff = Backoff { base_ns: 3, max_ns: 20 };
    RetryPolicy { time_to_live_ns: None, max_retries: Some(4), sleep_ns: None, backoff }
}

fn times(gateway: &Gateway) -> WindowTime {
    WindowTime { steady_ns: gateway.now_ns(), mono_ns: gateway.now_ns() }
}

/// Every third generation drops its oldest events.
fn limit(layout: &QueueLayout) -> Option<ShardLimit> {
    layout.last_number.is_multiple_of(3).then_some(LIMIT)
}

type Running = Pin<Box<dyn Future<Output = ()>>>;

/// Repeats a piece of work for ever. Conflicts end one turn of it.
macro_rules! worker {
    ($name:ident, $turn:ident) => {
        pub(crate) fn $name(gateway: Gateway) -> Running {
            Box::pin(async move {
                loop {
                    gateway.pause().await;
                    // Whatever was in the way is read again in the next turn.
                    let _: Result<(), Fail> = $turn(&gateway).await;
                }
            })
        }
    };
}

worker!(mover, move_events);
worker!(deliverer, deliver);
worker!(resharder, reshard_topic);
worker!(operator, replay);

/// Where a shard is; `None` where it is gone, which only one of a closed generation can be.
async fn locate(gateway: &Gateway, generation: Generation, index: u32) -> Option<ObjectKey> {
    let (visible, hidden) = layout::candidate_objects("", NAME, &topic(), generation, index);
    let wanted = generation.identity(&topic(), index);
    for object in visible.into_iter().chain([hidden]) {
        if let Ok(reply) = gateway.read(ObjectRead::attributes(&object)).await
            && shard::identity_of(&object, &reply).is_ok_and(|id| id.value == wanted)
        {
            return Some(object);
        }
    }
    None
}

async fn read_shard(
    gateway: &Gateway,
    object: &ObjectKey,
    (generation, index): (Generation, u32),
    sources: &[SourceId],
) -> Result<Shard, Fail> {
    let reply = gateway.read(shard::read(object, sources)).await?;
    let shard = Shard::from_reply(object, sources, &reply).map_err(|_| Fail::Absent)?;
    if shard.id.value == generation.identity(&topic(), index) { Ok(shard) } else { Err(Fail::Absent) }
}

async fn move_events(gateway: &Gateway) -> Result<(), Fail> {
    let layout = gateway.topic().await;
    let Some(current) = layout.current else { return Ok(()) };
    let index = gateway.below(u64::from(current.shards)) as u32;
    let Some(object) = locate(gateway, current, index).await else { return Ok(()) };
    let [a, b] = buckets();
    let sources = [a, b, SourceId::replay(&topic())];
    let mut early = Vec::new();
    if gateway.mutation() == Mutation::StalePages {
        for source in &sources[..2] {
            early.push(gateway.outbox(source).await);
        }
    }
    let mut shard = read_shard(gateway, &object, (current, index), &sources).await?;
    let mut pages = Vec::new();
    for (at, source) in sources.iter().enumerate() {
        let belongs = |key: KeyHash| current.shard_of(key) == index;
        if at == 2 {
            pages.push(replays(gateway, &shard, belongs).await?);
            continue;
        }
        let records = match early.get(at) {
            Some(records) => records.clone(),
            None => gateway.outbox(source).await,
        };
        let mut events: Vec<_> = records.into_iter().filter(|record| belongs(record.event.key)).collect();
        let is_complete = gateway.below(4) > 0;
        if !is_complete {
            events.truncate(events.len() / 2);
        }
        let (source, gone) = (source.clone(), BTreeSet::new());
        pages.push(OutboxPage { source, basis: shard.basis(), events, gone, is_complete });
    }
    if gateway.mutation() == Mutation::NoDedup {
        shard.receipts.values_mut().for_each(BTreeSet::clear);
    }
    match enqueue::plan(&shard, pages, limit(&layout), enqueue::MAX_RESIDENT_BYTES).expect("events are small")
    {
        EnqueueResult::Write(plan) => {
            gateway.write(plan.op, None).await?;
            forget_moved(gateway, plan.moved).await
        }
        EnqueueResult::Nothing(moved) => forget_moved(gateway, moved).await,
        EnqueueResult::Refused(EnqueueRefusal::NoRoom { entries, bytes }) => {
            drop_oldest(gateway, &shard, entries, bytes).await
        }
        EnqueueResult::Refused(_) => Ok(()),
    }
}

/// Letters that are to be replayed into a shard.
async fn replays(
    gateway: &Gateway,
    shard: &Shard,
    belongs: impl Fn(KeyHash) -> bool,
) -> Result<OutboxPage, Fail> {
    let reply = gateway.read(dead_letters::read_letters(&topic(), LetterKind::Replayed, None, 3)).await;
    let (letters, is_complete) = match reply {
        Err(Fail::Absent) => (Vec::new(), true),
        reply => {
            let reply = reply?;
            let queue = DeadLetterQueue::from_reply(&topic(), &[], &reply).expect("sound");
            (queue.letters(LetterKind::Replayed, &reply.page).expect("sound"), !reply.more)
        }
    };
    Ok(dead_letters::replay_page(&topic(), &letters, shard, is_complete, |event| belongs(event.key)))
}

async fn forget_moved(gateway: &Gateway, moved: Vec<EnqueuedRecords>) -> Result<(), Fail> {
    for EnqueuedRecords { source, ids } in moved {
        forget_records(gateway, &source, ids).await?;
    }
    Ok(())
}

/// Removes outbox records that are in the queue.
async fn forget_records(gateway: &Gateway, source: &SourceId, ids: Vec<EventId>) -> Result<(), Fail> {
    if *source == SourceId::replay(&topic()) {
        let numbers: Vec<u64> = ids.iter().filter_map(dead_letters::letter_number).collect();
        return gateway.write(dead_letters::remove_replayed(&topic(), &numbers), None).await;
    }
    gateway.remove_outbox(source, ids).await;
    Ok(())
}

async fn drop_oldest(gateway: &Gateway, shard: &Shard, entries: u64, bytes: u64) -> Result<(), Fail> {
    let mut log = LogIndex::default();
    let manifests =
        gateway.read(settle::read_records(&shard.object, QueueRecordKind::Segment, Bytes::new(), 9)).await?;
    log.add_segments(shard, &manifests.page).expect("sound");
    let mut events = Vec::new();
    if let Some((first, object)) = log.segment_from(shard, shard.head.value.cursor) {
        let reply = gateway.read(ObjectRead::data(&object)).await?;
        events.extend(log.decode_segment(shard, first, &reply.data).map_err(|_| Fail::Canceled)?.events);
    } else {
        let reply = gateway.read(settle::read_batches(&shard.object, None, 9)).await?;
        let Ok(fresh) = Shard::from_reply(&shard.object, &[], &reply) else { return Err(Fail::Canceled) };
        if fresh.head != shard.head {
            return Err(Fail::Canceled);
        }
        events.extend(log.add_batches(&fresh, &reply.page).expect("sound").events);
    }
    let oldest =
        |(sequence, event): &(u64, Event)| DropCandidate { sequence: *sequence, bytes: event.size_bytes() };
    let oldest: Vec<DropCandidate> = events.iter().map(oldest).collect();
    match settle::drop_oldest(shard, &oldest, entries, bytes) {
        Some((op, _)) => gateway.write(op, None).await,
        // Parked events are not dropped; they leave when their attempts are over.
        None => Ok(()),
    }
}

/// The owner's view of a shard.
struct Owned {
    place: (Generation, u32),
    shard: Shard,
    log: LogIndex,
    window: Window,
}

impl Owned {
    fn claim(&self) -> Option<u64> {
        Some(self.shard.owner.value.epoch)
    }
}

async fn deliver(gateway: &Gateway) -> Result<(), Fail> {
    let layout = gateway.topic().await;
    let generations: Vec<Generation> = layout.deliverable().collect();
    if generations.is_empty() {
        return Ok(());
    }
    let generation = generations[gateway.below(generations.len() as u64) as usize];
    let index = gateway.below(u64::from(generation.shards)) as u32;
    let Some(object) = locate(gateway, generation, index).await else {
        return retire_generation(gateway, layout, generation).await;
    };
    let Some(mut owned) = take_over(gateway, &object, (generation, index)).await? else { return Ok(()) };
    for _ in 0..gateway.below(10) + 1 {
        load(gateway, &mut owned).await?;
        send(gateway, &mut owned, &layout).await?;
        settle_events(gateway, &mut owned).await?;
        match gateway.below(6) {
            0 => spill_batches(gateway, &mut owned).await?,
            1 => hand_over_letters(gateway, &owned).await?,
            _ => {}
        }
    }
    hand_over_letters(gateway, &owned).await?;
    if layout.older.contains(&generation) {
        let beside = gateway.read(shard::read_side_records(&object, 1)).await?;
        if let Some(op) = owned.shard.retire(shard::has_only_receipts(&beside.page)) {
            gateway.write(op, owned.claim()).await?;
            return retire_generation(gateway, layout, generation).await;
        }
    }
    gateway.write(owned.shard.release_lease(), owned.claim()).await
}

async fn take_over(
    gateway: &Gateway,
    object: &ObjectKey,
    place: (Generation, u32),
) -> Result<Option<Owned>, Fail> {
    let shard = read_shard(gateway, object, place, &[]).await?;
    let (take, owner) = shard.take_lease(gateway.client, TERM_NS);
    gateway.write(take, None).await?;
    let shard = read_shard(gateway, object, place, &[]).await?;
    if !shard.is_owned_by(owner) {
        return Ok(None);
    }
    let window = Window::new(LIMITS, policy(), &shard.head.value);
    let mut owned = Owned { place, shard, log: LogIndex::default(), window };
    let mut after = Bytes::new();
    loop {
        let page = read_page(gateway, &owned, QueueRecordKind::Segment, after).await?;
        owned.log.add_segments(&owned.shard, &page.page).expect("sound");
        let Some((last, _)) = page.page.last().filter(|_| page.more) else { break };
        after = last.clone();
    }
    let mut after = Bytes::new();
    while gateway.mutation() != Mutation::ForgetParked {
        let page = read_page(gateway, &owned, QueueRecordKind::Parked, after).await?;
        for (sequence, parked) in shard::parse_parked(object, &page.page).expect("sound") {
            owned.window.load_parked(sequence, parked, gateway.now_ns(), times(gateway));
        }
        let Some((last, _)) = page.page.last().filter(|_| page.more) else { break };
        after = last.clone();
    }
    Ok(Some(owned))
}

async fn read_page(
    gateway: &Gateway,
    owned: &Owned,
    kind: QueueRecordKind,
    after: Bytes,
) -> Result<ObjectReply, Fail> {
    let reply = gateway.read(settle::read_records(&owned.shard.object, kind, after, 2)).await?;
    if owned.shard.has_same_owner(&reply) { Ok(reply) } else { Err(Fail::Canceled) }
}

/// Loads what the window has room for: a segment or a page of batches.
async fn load(gateway: &Gateway, owned: &mut Owned) -> Result<(), Fail> {
    let object = owned.shard.object.clone();
    let Some((from, _)) = owned.window.load_range() else { return refresh(gateway, owned).await };
    let loaded = if let Some((first, segment)) = owned.log.segment_from(&owned.shard, from) {
        let reply = gateway.read(ObjectRead::data(&segment)).await?;
        owned.log.decode_segment(&owned.shard, first, &reply.data).expect("sound")
    } else {
        let read = settle::read_batches(&object, owned.log.batch_cursor(from), 2);
        let reply = gateway.read(read).await?;
        let fresh = Shard::from_reply(&object, &[], &reply).map_err(|_| Fail::Absent)?;
        adopt(owned, fresh)?;
        owned.log.add_batches(&owned.shard, &reply.page).expect("sound")
    };
    owned.window.load(loaded.events, loaded.end, times(gateway));
    Ok(())
}

async fn refresh(gateway: &Gateway, owned: &mut Owned) -> Result<(), Fail> {
    let fresh = read_shard(gateway, &owned.shard.object, owned.place, &[]).await?;
    adopt(owned, fresh)
}

/// Goes on with a newer reading of the shard, unless there is another owner.
fn adopt(owned: &mut Owned, fresh: Shard) -> Result<(), Fail> {
    if fresh.owner != owned.shard.owner || fresh.id != owned.shard.id {
        return Err(Fail::Canceled);
    }
    if fresh.head != owned.shard.head {
        owned.window.skip_dropped(&fresh.head.value);
    }
    owned.shard = fresh;
    Ok(())
}

async fn send(gateway: &Gateway, owned: &mut Owned, layout: &QueueLayout) -> Result<(), Fail> {
    let older = older_shards(gateway, layout, owned.place.0).await;
    owned.window.recheck_held();
    let sent = owned.window.next(times(gateway), &older, 3);
    for sendable in sent {
        if gateway.mutation() == Mutation::TrimBeforeAck {
            owned.window.delivered(sendable.sequence);
            settle_events(gateway, owned).await?;
        }
        match gateway.push(sendable.event, &owned.shard.object).await {
            Ok(()) => owned.window.delivered(sendable.sequence),
            Err(_) => {
                let random = gateway.below(u64::from(u32::MAX)) as u32;
                owned.window.failed(sendable.sequence, "refused", gateway.now_ns(), times(gateway), random);
            }
        }
    }
    Ok(())
}

async fn older_shards(gateway: &Gateway, layout: &QueueLayout, generation: Generation) -> OlderGenerations {
    let mut older = OlderGenerations::default();
    if gateway.mutation() == Mutation::IgnoreOlder {
        return older;
    }
    for before in layout.before(generation.number) {
        let mut known = BTreeMap::new();
        for index in 0..before.shards {
            known.insert(index, progress(gateway, before, index).await);
        }
        older.generations.push((before.shards, known));
    }
    older
}

async fn progress(gateway: &Gateway, generation: Generation, index: u32) -> RemainingEvents {
    let Some(object) = locate(gateway, generation, index).await else { return RemainingEvents::None };
    let read = settle::read_records(&object, QueueRecordKind::Parked, Bytes::new(), 100);
    let Ok(reply) = gateway.read(read).await else { return RemainingEvents::Any };
    match Shard::from_reply(&object, &[], &reply) {
        Ok(shard) if shard.id.value == generation.identity(&topic(), index) && !reply.more => {
            RemainingEvents::of(&shard, &shard::parse_parked(&object, &reply.page).expect("sound"))
        }
        _ => RemainingEvents::Any,
    }
}

async fn settle_events(gateway: &Gateway, owned: &mut Owned) -> Result<(), Fail> {
    let settlements = owned.window.settlements(gateway.now_ns());
    if !settlements.is_empty() || owned.log.needs_trim(&owned.shard) {
        let plan = settle::settle(&owned.shard, &owned.log, &settlements);
        let mut op = plan.op;
        if gateway.mutation() == Mutation::UnfencedTrim {
            op.write.guards.retain(|guard| !matches!(guard, Guard::AttrEquals(name, _) if *name == OWNER));
        }
        match gateway.write(op, owned.claim()).await {
            Ok(()) => {
                owned.window.settled(&settlements, &plan.after.head.value);
                (owned.shard, owned.log) = (plan.after, plan.log);
            }
            Err(Fail::Canceled) => return refresh(gateway, owned).await,
            Err(fail) => return Err(fail),
        }
    }
    if let Some((segments, manifests)) = owned.log.removable_segments(&owned.shard) {
        for object in segments {
            let remove = ObjectOp::on(&object).then(Step::Remove);
            match gateway.write(remove, None).await {
                Ok(()) | Err(Fail::Absent) => {}
                Err(fail) => return Err(fail),
            }
        }
        gateway.write(manifests, owned.claim()).await?;
        owned.log.forget_removed_segments();
    }
    Ok(())
}

async fn spill_batches(gateway: &Gateway, owned: &mut Owned) -> Result<(), Fail> {
    let page = gateway.read(settle::read_batches(&owned.shard.object, None, 2)).await?;
    let fresh = Shard::from_reply(&owned.shard.object, &[], &page).map_err(|_| Fail::Absent)?;
    adopt(owned, fresh)?;
    let planned = spill::plan(&owned.shard, &owned.log, &page.page, spill::SEGMENT_BYTES).expect("sound");
    let Some(plan) = planned else { return Ok(()) };
    gateway.write(plan.write, None).await?;
    gateway.write(plan.commit, owned.claim()).await?;
    (owned.shard, owned.log) = (plan.after, plan.log);
    Ok(())
}

/// Moves dead letters of a shard to the dead-letter queue.
async fn hand_over_letters(gateway: &Gateway, owned: &Owned) -> Result<(), Fail> {
    let source = SourceId::dead(&topic(), owned.place.0.number, owned.place.1);
    let reply = match gateway.read(dead_letters::read(&topic(), &source)).await {
        Err(Fail::Absent) => return gateway.write(dead_letters::create(&topic()), None).await,
        reply => reply?,
    };
    let queue = DeadLetterQueue::from_reply(&topic(), std::slice::from_ref(&source), &reply).expect("sound");
    let reply = read_page(gateway, owned, QueueRecordKind::Dead, Bytes::new()).await?;
    let letters = settle::parse_dead_letters(&owned.shard.object, &reply.page).expect("sound");
    let revision = queue.counters.value.revision;
    let page = DeadLetterPage { source, revision, letters, is_complete: !reply.more };
    let moved = match queue.add(page, LETTERS, &[]) {
        AddLettersResult::Write(plan) => {
            gateway.write(plan.op, None).await?;
            plan.moved
        }
        AddLettersResult::Nothing(moved) => moved,
        AddLettersResult::Stale | AddLettersResult::NeedsOldest(_) => {
            panic!("it was read in order and has room")
        }
    };
    let numbers: Vec<u64> = moved.ids.iter().filter_map(dead_letters::letter_number).collect();
    if numbers.is_empty() {
        return Ok(());
    }
    gateway.write(settle::remove_dead_letters(&owned.shard, &numbers), owned.claim()).await
}

async fn retire_generation(
    gateway: &Gateway,
    layout: QueueLayout,
    generation: Generation,
) -> Result<(), Fail> {
    if !layout.older.contains(&generation) {
        return Ok(());
    }
    for index in 0..generation.shards {
        if locate(gateway, generation, index).await.is_some() {
            return Ok(());
        }
    }
    let mut next = layout.clone();
    if next.retire(generation.number) { gateway.write_topic(layout, next).await } else { Ok(()) }
}

async fn reshard_topic(gateway: &Gateway) -> Result<(), Fail> {
    let layout = gateway.topic().await;
    let Some(next) = layout.next else { return Ok(()) };
    for index in reshard::affected_indices(layout.current, next) {
        let object = name::queue_object("", NAME, index);
        loop {
            let found = find(gateway, &object).await?;
            let step = reshard::next_step(&topic(), layout.current, next, index, found.as_ref());
            if step == ShardStep::Done {
                break;
            }
            change(gateway, &layout, &object, index, step).await?;
        }
    }
    if let Some(hidden) = layout.current.filter(|current| !current.is_visible) {
        close(gateway, &name::closed_object(&topic(), hidden.number, 0), (hidden, 0)).await?;
    }
    let object = name::closed_object(&topic(), next.number, 0);
    loop {
        let step = match next.is_visible {
            true => ShardStep::Done,
            false => reshard::hidden_step(&topic(), next, find(gateway, &object).await?.as_ref()),
        };
        if step == ShardStep::Done {
            break;
        }
        change(gateway, &layout, &object, 0, step).await?;
    }
    let mut done = layout.clone();
    assert!(done.commit(next.number));
    gateway.write_topic(layout, done).await
}

async fn find(gateway: &Gateway, object: &ObjectKey) -> Result<Option<ObjectContent>, Fail> {
    match gateway.read(ObjectRead::attributes(object)).await {
        Err(Fail::Absent) => Ok(None),
        reply => Ok(Some(shard::classify(object, &reply?).expect("sound"))),
    }
}

async fn change(
    gateway: &Gateway,
    layout: &QueueLayout,
    object: &ObjectKey,
    index: u32,
    step: ShardStep,
) -> Result<(), Fail> {
    match step {
        ShardStep::Done => Ok(()),
        ShardStep::Reserve => {
            let token = format!("{}.{}", gateway.client, gateway.below(u64::MAX));
            gateway.write(shard::reserve(object, &token), None).await
        }
        ShardStep::Activate(token, id) => {
            if gateway.topic().await.next != layout.next {
                return Err(Fail::Canceled);
            }
            gateway.write(shard::activate(object, &token, &id), None).await
        }
        ShardStep::RemoveReserved(token) => gateway.write(shard::remove_reserved(object, &token), None).await,
        ShardStep::Relocate(then) => {
            let current = layout.current.expect("a shard of it is there");
            let shard = close(gateway, object, (current, index)).await?;
            copy(gateway, &shard).await?;
            gateway.write(reshard::switch_over(&shard, then.as_ref()), Some(shard.owner.value.epoch)).await
        }
        ShardStep::Stale => Err(Fail::Canceled),
        ShardStep::Foreign(of) => panic!("{object} belongs to {of}"),
    }
}

/// Takes a shard over, closes it and removes outbox records that it has.
async fn close(gateway: &Gateway, object: &ObjectKey, place: (Generation, u32)) -> Result<Shard, Fail> {
    let shard = read_shard(gateway, object, place, &[]).await?;
    let (take, owner) = shard.take_lease(gateway.client, TERM_NS);
    match gateway.write(take, None).await {
        // Who holds it is thought to be dead, now and then wrongly.
        Err(Fail::Busy) if gateway.below(8) == 0 => {
            let (take, _) = shard.take_over_lease(gateway.client, TERM_NS);
            gateway.write(take, None).await?;
        }
        taken => taken?,
    }
    let shard = read_shard(gateway, object, place, &[]).await?;
    if !shard.is_owned_by(owner) {
        return Err(Fail::Canceled);
    }
    gateway.write(reshard::close(&shard).0, Some(owner.epoch)).await?;
    let shard = read_shard(gateway, object, place, &[]).await?;
    if !shard.is_owned_by(owner) {
        return Err(Fail::Canceled);
    }
    let mut after = Bytes::new();
    loop {
        let page = gateway.read(reshard::read_page(object, after, 3)).await?;
        for (source, ids) in reshard::parse_receipts(object, &page.page).expect("sound") {
            if gateway.mutation() != Mutation::KeepReceiptsRecords {
                forget_records(gateway, &source, ids).await?;
            }
        }
        let Some((last, _)) = page.page.last().filter(|_| page.more) else { return Ok(shard) };
        after = last.clone();
    }
}

async fn copy(gateway: &Gateway, shard: &Shard) -> Result<(), Fail> {
    let found = match gateway.read(ObjectRead::attributes(&reshard::copy_object(shard))).await {
        Err(Fail::Absent) => None,
        reply => Some(reply?),
    };
    match reshard::begin_copy(shard, found.as_ref()).expect("sound") {
        BeginCopy::Write(op) => gateway.write(op, None).await?,
        BeginCopy::Complete => return Ok(()),
        BeginCopy::Fenced => return Err(Fail::Canceled),
    }
    let mut after = Bytes::new();
    loop {
        let mut page = gateway.read(reshard::read_page(&shard.object, after, 2)).await?;
        if !shard.has_same_owner(&page) {
            return Err(Fail::Canceled);
        }
        let last = page.page.last().filter(|_| page.more).map(|(last, _)| last.clone());
        if gateway.mutation() == Mutation::DropAtReshard {
            page.page.retain(|(key, _)| QueueRecordKind::Batch.sequence(key).is_none());
        }
        gateway.write(reshard::copy_page(shard, &page.page), None).await?;
        let Some(last) = last else { break };
        after = last;
    }
    gateway.write(reshard::finish_copy(shard), None).await
}

/// An operator replays a dead letter now and then.
async fn replay(gateway: &Gateway) -> Result<(), Fail> {
    if gateway.below(20) > 0 {
        return Ok(());
    }
    let reply = gateway.read(dead_letters::read_letters(&topic(), LetterKind::Kept, None, 2)).await?;
    let queue = DeadLetterQueue::from_reply(&topic(), &[], &reply).expect("sound");
    let letters = queue.letters(LetterKind::Kept, &reply.page).expect("sound");
    if letters.is_empty() {
        return Ok(());
    }
    gateway.write(queue.replay(&letters, gateway.now_ns()).0, None).await
}
