//! Tests of bounds, order and deduplication of single operations.

use super::*;
use crate::name::{KeyHash, TopicId, queue_object};
use crate::op::{Guard, ObjectReply, Step};
use crate::record::{HEAD, ID, OPEN, OWNER, Owner, QueueHead, STATE, ShardIdentity, encode};
use crate::settle::{DropCandidate, drop_oldest};
use crate::shard;

fn source(name: &str) -> SourceId {
    SourceId::new(name).expect("valid")
}

/// An empty shard that was read with the receipts of these sources.
fn empty(sources: &[&str]) -> Shard {
    let topic = TopicId::new("t").expect("valid");
    let id = ShardIdentity { topic, generation: 4, shard: 0, shards: 1 };
    let mut reply = ObjectReply::default();
    for (name, value) in [
        (ID, encode(&id)),
        (STATE, Bytes::from_static(OPEN)),
        (TAIL, encode(&QueueTail::default())),
        (HEAD, encode(&QueueHead::default())),
        (OWNER, encode(&Owner::default())),
    ] {
        reply.xattrs.insert(name.to_owned(), value);
    }
    let sources: Vec<_> = sources.iter().map(|name| source(name)).collect();
    Shard::from_reply(&queue_object("", "t", 0), &sources, &reply).expect("sound")
}

fn record(id: u64, bytes: usize) -> OutboxEvent {
    let payload = Bytes::from(vec![b'x'; bytes]);
    let event = Event { key: KeyHash(id as u32), time_ns: id, replayed: false, payload };
    OutboxEvent { id: EventId::new(id.to_be_bytes().to_vec()).expect("valid"), event }
}

fn page(shard: &Shard, name: &str, events: Vec<OutboxEvent>) -> OutboxPage {
    let (source, basis, gone) = (source(name), shard.basis(), BTreeSet::new());
    OutboxPage { source, basis, events, gone, is_complete: true }
}

fn plan(shard: &Shard, pages: Vec<OutboxPage>, limit: Option<ShardLimit>) -> Result<EnqueueResult> {
    super::plan(shard, pages, limit, MAX_RESIDENT_BYTES)
}

fn written(plan: EnqueueResult) -> EnqueuePlan {
    match plan {
        EnqueueResult::Write(plan) => *plan,
        other => panic!("{other:?}"),
    }
}

fn enqueue(shard: &Shard, name: &str, events: Vec<OutboxEvent>) -> EnqueuePlan {
    written(plan(shard, vec![page(shard, name, events)], None).expect("no event is too large"))
}

/// The keys of batches that an operation adds, with the ids (times) of their events.
fn batches_of(op: &ObjectOp) -> Vec<(u64, Vec<u64>)> {
    let entries = op.write.steps.iter().flat_map(|step| match step {
        Step::OmapSet(entries) => &entries[..],
        _ => &[],
    });
    let batches = entries.filter_map(|(key, value)| Some((QueueRecordKind::Batch.sequence(key)?, value)));
    let times = |value: &Bytes| {
        let batch: Batch = record::decode(&"test", value).expect("sound");
        batch.events.iter().map(|event| event.time_ns).collect()
    };
    batches.map(|(sequence, value)| (sequence, times(value))).collect()
}

#[test]
fn an_operation_compares_identity_state_and_tail() {
    let shard = empty(&["a"]);
    let plan = enqueue(&shard, "a", vec![record(1, 10)]);
    let compared = plan.op.write.guards.iter().map(|guard| match guard {
        Guard::Exists => "exists",
        Guard::AttrEquals(name, _) => *name,
        _ => "another",
    });
    assert_eq!(compared.collect::<Vec<_>>(), ["exists", ID, STATE, TAIL]);
    assert_eq!((plan.after.entries(), plan.after.size_bytes(), plan.added), (1, 10, 1));
    assert_ne!(plan.after.basis(), shard.basis());
}

#[test]
fn events_of_many_sources_share_an_operation_in_their_order() {
    let shard = empty(&["a", "b"]);
    let pages = vec![
        page(&shard, "a", vec![record(1, 10), record(2, 10)]),
        page(&shard, "b", vec![record(7, 10), record(3, 10)]),
    ];
    let plan = written(plan(&shard, pages, None).expect("small"));
    assert_eq!(batches_of(&plan.op), [(0, vec![1, 2, 7, 3])]);
    assert_eq!(plan.moved.iter().map(|moved| moved.ids.len()).collect::<Vec<_>>(), [2, 2]);
}

#[test]
fn parked_events_do_not_stop_a_queue_that_drops_the_oldest() {
    let mut shard = enqueue(&empty(&["a"]), "a", vec![record(1, 50), record(2, 50)]).after;
    let limit = Some(ShardLimit { entries: u64::MAX, bytes: 100 });
    let more = |shard: &Shard| {
        let page = OutboxPage { is_complete: false, ..page(shard, "a", vec![record(3, 60)]) };
        plan(shard, vec![page], limit)
    };
    assert!(matches!(more(&shard), Ok(EnqueueResult::Refused(EnqueueRefusal::NoRoom { .. }))));
    shard.head = Stored::new(QueueHead { cursor: 2, ..QueueHead::default() });
    assert_eq!((shard.entries(), written(more(&shard).expect("small")).added), (2, 1));
}

#[test]
fn what_the_shard_had_is_moved_but_not_enqueued() {
    let shard = enqueue(&empty(&["a"]), "a", vec![record(1, 10)]).after;
    let again = plan(&shard, vec![page(&shard, "a", vec![record(1, 10)])], None).expect("small");
    let moved = EnqueuedRecords { source: source("a"), ids: vec![record(1, 10).id] };
    assert_eq!(again, EnqueueResult::Nothing(vec![moved]));
    let plan = enqueue(&shard, "a", vec![record(1, 10), record(2, 10)]);
    assert_eq!(batches_of(&plan.op), [(1, vec![2])]);
    assert_eq!(plan.moved[0].ids.len(), 2);
}

#[test]
fn receipts_go_when_the_outbox_record_is_known_to_be_gone() {
    let first = enqueue(&empty(&["a"]), "a", vec![record(1, 10), record(2, 10)]).after;
    let some = OutboxPage { is_complete: false, ..page(&first, "a", Vec::new()) };
    assert_eq!(plan(&first, vec![some.clone()], None), Ok(EnqueueResult::Nothing(Vec::new())));
    let gone = BTreeSet::from([record(1, 10).id]);
    let after = written(plan(&first, vec![OutboxPage { gone, ..some }], None).expect("small")).after;
    assert_eq!(after.receipts[&source("a")], BTreeSet::from([record(2, 10).id]));
    assert_eq!(after.entries(), 2);
    let all = written(plan(&after, vec![page(&after, "a", Vec::new())], None).expect("small"));
    assert!(all.after.receipts[&source("a")].is_empty());
    assert!(all.op.write.steps.contains(&Step::OmapRemove(vec![name::receipts_key(&source("a"))])));
}

#[test]
fn a_record_that_is_known_to_be_gone_is_not_enqueued() {
    let shard = empty(&["a"]);
    let gone = BTreeSet::from([record(1, 10).id]);
    let page = OutboxPage { gone, ..page(&shard, "a", vec![record(1, 10)]) };
    assert_eq!(plan(&shard, vec![page], None), Ok(EnqueueResult::Nothing(Vec::new())));
}

#[test]
fn pages_from_before_the_state_and_unknown_sources_are_refused() {
    let shard = empty(&["a"]);
    let early = page(&shard, "a", vec![record(2, 10)]);
    let after = enqueue(&shard, "a", vec![record(1, 10)]).after;
    let stale = Ok(EnqueueResult::Refused(EnqueueRefusal::StalePages(vec![source("a")])));
    assert_eq!(plan(&after, vec![early.clone()], None), stale);
    assert_eq!(plan(&shard, vec![early.clone(), early.clone()], None), stale);
    let unknown = page(&shard, "b", vec![record(2, 10)]);
    let refusal = EnqueueRefusal::UnknownReceipts(vec![source("b")]);
    assert_eq!(plan(&shard, vec![unknown], None), Ok(EnqueueResult::Refused(refusal)));
    let closed = Shard { is_open: false, ..shard };
    assert_eq!(plan(&closed, vec![early], None), Ok(EnqueueResult::Refused(EnqueueRefusal::Closed)));
}

#[test]
fn large_pages_are_split_into_batches_and_operations() {
    let shard = empty(&["a"]);
    let events = (0..3000).map(|id| record(id, 1000)).collect();
    let plan = enqueue(&shard, "a", events);
    let batches = batches_of(&plan.op);
    assert!(batches.iter().all(|(_, events)| events.len() as u64 * 1000 <= BATCH_BYTES));
    assert_eq!(plan.added, MAX_OP_BYTES / 1000);
    let [rest] = &plan.rest[..] else { panic!("{} pages are left", plan.rest.len()) };
    assert_eq!((rest.events.len() as u64, rest.basis), (3000 - plan.added, plan.after.basis()));
    let next = written(super::plan(&plan.after, plan.rest.clone(), None, MAX_RESIDENT_BYTES).expect("small"));
    assert_eq!(batches_of(&next.op)[0].1[0], plan.added);
    let small = enqueue(&shard, "a", (0..600).map(|id| record(id, 1)).collect());
    assert_eq!(batches_of(&small.op).len(), 2);
    let large = plan_error(&shard, record(1, record::MAX_EVENT_BYTES + 1));
    assert!(matches!(large, crate::Error::TooLarge { .. }));
}

fn plan_error(shard: &Shard, event: OutboxEvent) -> crate::Error {
    plan(shard, vec![page(shard, "a", vec![event])], None).expect_err("it is too large")
}

#[test]
fn receipts_of_a_source_are_bounded() {
    let shard = empty(&["a"]);
    let plan = enqueue(&shard, "a", (0..MAX_RECEIPTS as u64 + 5).map(|id| record(id, 1)).collect());
    assert_eq!((plan.added, plan.rest[0].events.len()), (MAX_RECEIPTS as u64, 5));
    let crowded = EnqueueRefusal::TooManyReceipts(vec![source("a")]);
    let rest = plan.rest.clone();
    assert_eq!(super::plan(&plan.after, rest, None, MAX_RESIDENT_BYTES), Ok(EnqueueResult::Refused(crowded)));
}

#[test]
fn an_object_that_is_not_spilled_takes_a_bounded_number_of_bytes() {
    let mut shard = empty(&["a"]);
    let mut id = 0;
    loop {
        let gone = shard.receipts[&source("a")].clone();
        let events = (id..id + 8).map(|id| record(id, 200 << 10)).collect();
        id += 8;
        let page = OutboxPage { gone, is_complete: false, ..page(&shard, "a", events) };
        match plan(&shard, vec![page], None).expect("small") {
            EnqueueResult::Write(plan) if plan.added > 0 => shard = plan.after,
            EnqueueResult::Write(plan) => {
                // This operation only removed receipts.
                assert_eq!(plan.after.resident_bytes(), shard.resident_bytes());
                shard = plan.after;
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(shard.resident_bytes() <= MAX_RESIDENT_BYTES);
    assert!(shard.resident_bytes() + (200 << 10) > MAX_RESIDENT_BYTES);
    let refused = plan(&shard, vec![page(&shard, "a", vec![record(id, 200 << 10)])], None);
    assert_eq!(refused, Ok(EnqueueResult::Refused(EnqueueRefusal::NotSpilled)));
}

#[test]
fn a_queue_that_drops_its_oldest_events_never_passes_its_limit() {
    let limit = ShardLimit { entries: 3, bytes: 1000 };
    let shard = enqueue(&empty(&["a"]), "a", (0..3).map(|id| record(id, 10)).collect()).after;
    let events: Vec<_> = (0..5).map(|id| record(id, 10)).collect();
    let refused = plan(&shard, vec![page(&shard, "a", events.clone())], Some(limit)).expect("small");
    // Events that the queue has count as moved, so the mover removes them first.
    assert!(matches!(refused, EnqueueResult::Nothing(moved) if moved[0].ids.len() == 3));
    let new = page(&shard, "a", events[3..].to_vec());
    let new = OutboxPage { is_complete: false, ..new };
    let refused = plan(&shard, vec![new.clone()], Some(limit)).expect("small");
    assert_eq!(refused, EnqueueResult::Refused(EnqueueRefusal::NoRoom { entries: 2, bytes: 0 }));
    let oldest: Vec<_> = (0..3).map(|sequence| DropCandidate { sequence, bytes: 10 }).collect();
    let (_, shard) = drop_oldest(&shard, &oldest, 2, 0).expect("there are some");
    assert_eq!((shard.entries(), shard.size_bytes(), shard.head.value.dropped), (1, 10, 2));
    let plan = written(plan(&shard, vec![new], Some(limit)).expect("small"));
    assert_eq!((plan.after.entries(), plan.after.size_bytes()), (3, 30));
    assert_eq!(drop_oldest(&shard, &[], 1, 0), None);
}

#[test]
fn an_empty_queue_takes_an_event_that_is_larger_than_its_limit() {
    let limit = Some(ShardLimit { entries: 1, bytes: 5 });
    let shard = empty(&["a"]);
    let plan = written(plan(&shard, vec![page(&shard, "a", vec![record(1, 10)])], limit).expect("small"));
    assert_eq!(plan.added, 1);
}

#[test]
fn reading_asks_for_the_receipts_of_each_source() {
    let read = shard::read(&queue_object("", "t", 0), &[source("a"), source("b")]);
    assert_eq!(read.keys, ["wa", "wb"]);
}
