//! Damaged inputs for what queues keep in RADOS: see `nacre_fuzz`.

use bytes::Bytes;
use nacre_fuzz::Target;
use nacre_queues::dead_letters::DeadLetterCounters;
use nacre_queues::name::{KeyHash, TopicId};
use nacre_queues::record::{
    Batch, CopyState, DeadLetter, DeadReason, Event, EventId, Owner, ParkedEvent, QueueHead, QueueTail,
    Receipts, SegmentData, SegmentManifest, ShardIdentity,
};
use nacre_types::encoding::{self, Versioned};
use std::path::Path;

fn damage<T: Versioned>(name: &str, seeds: &[T]) {
    let corpus = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"));
    let seeds = seeds.iter().map(encoding::encode).collect();
    Target::new(name, corpus, seeds)
        .run(|input| encoding::decode::<T>(input).ok().map(|value| encoding::encode(&value)));
}

fn event() -> Event {
    let payload = Bytes::from_static(b"{\"eventName\":\"ObjectCreated:Put\"}");
    Event { key: KeyHash(0xdead_beef), time_ns: 1_700_000_000_000_000_000, replayed: true, payload }
}

#[test]
fn attributes() {
    let topic = TopicId::new("0123456789abcdef").unwrap();
    damage("Identity", &[ShardIdentity { topic, generation: 3, shard: 10, shards: 11 }]);
    damage("Tail", &[QueueTail { revision: 9, next: 1000, bytes: 1 << 20 }]);
    let settled = vec![(12, 3), (20, 1)];
    damage(
        "Head",
        &[QueueHead { cursor: 10, settled, removed: 12, removed_bytes: 99, ..QueueHead::default() }],
    );
    damage("Owner", &[Owner { epoch: 4, client: 4123 }]);
    damage("CopyState", &[CopyState { epoch: 4, is_complete: true }]);
    damage(
        "LetterBox",
        &[DeadLetterCounters { revision: 4, next: 2, entries: 1, ..DeadLetterCounters::default() }],
    );
}

#[test]
fn records_of_the_omap() {
    let batch = Batch { events: vec![event(), event()] };
    damage("Batch", std::slice::from_ref(&batch));
    damage("SegmentData", &[SegmentData { batches: vec![(7, batch)] }]);
    damage("Segment", &[SegmentManifest { end: 9, epoch: 3, bytes: 700, time_ns: 5 }]);
    damage(
        "Receipts",
        &[Receipts { ids: vec![EventId::new("tag").unwrap(), EventId::new(vec![0_u8]).unwrap()] }],
    );
    damage("Parked", &[ParkedEvent { event: event(), attempts: 2, next_ns: 77, detail: "refused".into() }]);
    let (reason, detail) = (DeadReason::Expired, "timeout".to_owned());
    damage("DeadLetter", &[DeadLetter { event: event(), reason, attempts: 2, detail, dead_ns: 99 }]);
}
