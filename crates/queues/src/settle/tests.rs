//! Tests of single operations of an owner, including spilling.

use super::*;
use crate::name::{KeyHash, TopicId, queue_object};
use crate::op::{Guard, ObjectReply, Step};
use crate::record::{DeadReason, ID, OWNER, Owner, QueueTail, ShardIdentity, TAIL, encode};
use crate::spill;

/// A shard with batches of these sizes; each event has 10 bytes.
fn shard(batches: &[u64]) -> (Shard, Vec<(Bytes, Bytes)>) {
    let topic = TopicId::new("t").expect("valid");
    let id = ShardIdentity { topic, generation: 4, shard: 2, shards: 3 };
    let next: u64 = batches.iter().sum();
    let tail = QueueTail { revision: 1, next, bytes: next * 10 };
    let mut reply = ObjectReply::default();
    for (name, value) in [
        (ID, encode(&id)),
        (STATE, Bytes::from_static(OPEN)),
        (TAIL, encode(&tail)),
        (HEAD, encode(&QueueHead::default())),
        (OWNER, encode(&Owner { epoch: 7, client: 5 })),
    ] {
        reply.xattrs.insert(name.to_owned(), value);
    }
    let mut first = 0;
    let mut page = Vec::new();
    for count in batches {
        let events = (first..first + count).map(event).collect();
        page.push((QueueRecordKind::Batch.key(first), encode(&Batch { events })));
        first += count;
    }
    (Shard::from_reply(&queue_object("", "t", 2), &[], &reply).expect("sound"), page)
}

fn event(sequence: u64) -> Event {
    let payload = Bytes::from_static(b"0123456789");
    Event { key: KeyHash(1), time_ns: 100 + sequence, replayed: false, payload }
}

fn of_log(sequence: u64, fate: EventOutcome) -> Settlement {
    Settlement { sequence, place: EventPlace::Log, bytes: 10, fate }
}

fn removed(op: &ObjectOp) -> Vec<Bytes> {
    let keys = op.write.steps.iter().filter_map(|step| match step {
        Step::OmapRemove(keys) => Some(keys.clone()),
        _ => None,
    });
    keys.flatten().collect()
}

fn set(op: &ObjectOp) -> Vec<Bytes> {
    let entries = op.write.steps.iter().filter_map(|step| match step {
        Step::OmapSet(entries) => Some(entries.clone()),
        _ => None,
    });
    entries.flatten().map(|(key, _)| key).collect()
}

#[test]
fn owner_and_head_are_compared() {
    let (shard, page) = shard(&[2]);
    let mut log = LogIndex::default();
    log.add_batches(&shard, &page).expect("sound");
    let plan = settle(&shard, &log, &[of_log(0, EventOutcome::Delivered)]);
    for (name, value) in [(ID, &shard.id.raw), (OWNER, &shard.owner.raw), (HEAD, &shard.head.raw)] {
        let guard = Guard::AttrEquals(name, value.clone());
        assert!(plan.op.write.guards.contains(&guard), "{name} is not compared");
    }
}

#[test]
fn batches_go_when_all_of_their_events_are_settled() {
    let (shard, page) = shard(&[2, 3]);
    let mut log = LogIndex::default();
    let loaded = log.add_batches(&shard, &page).expect("sound");
    assert_eq!((loaded.events.len(), loaded.end), (5, 5));
    let plan =
        settle(&shard, &log, &[of_log(1, EventOutcome::Delivered), of_log(3, EventOutcome::Delivered)]);
    assert!(removed(&plan.op).is_empty());
    assert_eq!((plan.after.entries(), plan.after.size_bytes(), plan.after.resident_bytes()), (3, 30, 50));
    let plan = settle(
        &plan.after,
        &plan.log,
        &[of_log(0, EventOutcome::Delivered), of_log(0, EventOutcome::Delivered)],
    );
    assert_eq!(removed(&plan.op), [QueueRecordKind::Batch.key(0)]);
    assert_eq!((plan.after.entries(), plan.after.resident_bytes()), (2, 30));
    let plan = settle(
        &plan.after,
        &plan.log,
        &[of_log(2, EventOutcome::Delivered), of_log(4, EventOutcome::Delivered)],
    );
    assert_eq!(removed(&plan.op), [QueueRecordKind::Batch.key(2)]);
    assert!(plan.after.is_empty() && plan.after.is_log_empty());
    assert_eq!((plan.after.resident_bytes(), plan.log.batch_cursor(5)), (0, Some(2)));
}

#[test]
fn parked_events_count_until_they_are_delivered_or_dead() {
    let (shard, page) = shard(&[2]);
    let mut log = LogIndex::default();
    log.add_batches(&shard, &page).expect("sound");
    let parked =
        |sequence| EventOutcome::Parked(ParkedEvent { event: event(sequence), ..ParkedEvent::default() });
    let plan = settle(&shard, &log, &[of_log(0, parked(0)), of_log(1, parked(1))]);
    assert_eq!(set(&plan.op), [QueueRecordKind::Parked.key(0), QueueRecordKind::Parked.key(1)]);
    assert_eq!(removed(&plan.op), [QueueRecordKind::Batch.key(0)]);
    assert_eq!((plan.after.entries(), plan.after.is_log_empty(), plan.after.parked()), (2, true, 2));
    let letter = DeadLetter {
        event: event(0),
        reason: DeadReason::Expired,
        attempts: 1,
        detail: String::new(),
        dead_ns: 5,
    };
    let of_parked = |sequence, fate| Settlement { sequence, place: EventPlace::Parked, bytes: 10, fate };
    let fates = [of_parked(0, EventOutcome::Dead(letter)), of_parked(1, EventOutcome::Delivered)];
    let plan = settle(&plan.after, &plan.log, &fates);
    assert_eq!(removed(&plan.op), [QueueRecordKind::Parked.key(0), QueueRecordKind::Parked.key(1)]);
    assert_eq!(set(&plan.op), [QueueRecordKind::Dead.key(0)]);
    assert_eq!((plan.after.entries(), plan.after.parked(), plan.after.head.value.next_dead), (0, 0, 1));
}

#[test]
fn spilled_batches_are_read_from_their_segment_and_go_with_it() {
    let (shard, page) = shard(&[2, 3]);
    let mut log = LogIndex::default();
    log.add_batches(&shard, &page).expect("sound");
    let plan =
        spill::plan(&shard, &log, &page, spill::SEGMENT_BYTES).expect("sound").expect("there are batches");
    assert_eq!(removed(&plan.commit), [QueueRecordKind::Batch.key(0), QueueRecordKind::Batch.key(2)]);
    assert_eq!((plan.after.resident_bytes(), plan.after.entries()), (0, 5));
    let [Step::WriteFull(data)] = &plan.write.write.steps[..] else { panic!("{:?}", plan.write) };
    let (shard, log) = (plan.after, plan.log);
    assert_eq!(log.segment_from(&shard, 3), Some((0, plan.write.object.clone())));
    let loaded = log.decode_segment(&shard, 0, data).expect("sound");
    assert_eq!((loaded.events.len(), loaded.end), (5, 5));
    assert!(log.decode_segment(&shard, 0, &data[1..]).is_err());
    let all: Vec<_> = (0..5).map(|sequence| of_log(sequence, EventOutcome::Delivered)).collect();
    let plan = settle(&shard, &log, &all);
    assert!(removed(&plan.op).is_empty());
    let (objects, manifests) = plan.log.removable_segments(&plan.after).expect("the segment is settled");
    assert_eq!(objects.len(), 1);
    assert_eq!(removed(&manifests), [QueueRecordKind::Segment.key(0)]);
    assert_eq!(spill::plan(&shard, &log, &[], spill::SEGMENT_BYTES), Ok(None));
}

#[test]
fn a_segment_is_bounded_and_begins_with_the_first_batch() {
    let (shard, page) = shard(&[1; 3]);
    let large = |first: u64| {
        let payload = Bytes::from(vec![0; (spill::SEGMENT_BYTES / 2) as usize]);
        let events = vec![Event { payload, ..event(first) }];
        (QueueRecordKind::Batch.key(first), encode(&Batch { events }))
    };
    let page: Vec<_> = (0..page.len() as u64).map(large).collect();
    let tail = QueueTail { bytes: 3 * spill::SEGMENT_BYTES / 2, ..shard.tail.value };
    let shard = Shard { tail: Stored::new(tail), ..shard };
    let plan = spill::plan(&shard, &LogIndex::default(), &page, spill::SEGMENT_BYTES)
        .expect("sound")
        .expect("there are batches");
    assert_eq!(removed(&plan.commit), [QueueRecordKind::Batch.key(0), QueueRecordKind::Batch.key(1)]);
}
