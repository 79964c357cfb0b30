//! What must hold: at each commit of a change, at each operation on a queue, at each push that arrives, and at the end.

use crate::bucket::attribute;
use crate::s3;
use crate::scene::{Scene, Scenes};
use bytes::Bytes;
use nacre_index::head;
use nacre_index::record::CommitRecord;
use nacre_index::seq::Seq;
use nacre_queues::name::{CLOSED_NAMESPACE, QUEUE_NAMESPACE, QueueRecordKind, SPILL_NAMESPACE};
use nacre_queues::record::{
    self, Batch, COPY, DeadLetter, DeadReason, HEAD, ID, OPEN, OWNER, Owner, ParkedEvent, QueueHead,
    QueueTail, STATE, ShardIdentity, TAIL,
};
use nacre_sim::disk::Object;
use nacre_sim::gateway::mem_engine::Observation;
use nacre_sim::schedule::{MILLI, Nanos};
use nacre_topics::pending::TopicEvent;
use nacre_topics::record::Event;
use nacre_types::PoolId;
use nacre_types::encoding::{self, Versioned};
use nacre_types::op::{Op, OsdOp};
use std::collections::{BTreeMap, BTreeSet};

/// By how much an event may seem older than it is: clocks drift.
const DRIFT: Nanos = 100 * MILLI;

/// An event for a topic, as it is told from others.
pub(crate) type Which = (String, String);

/// A shard of a topic's queue: topic, generation, number.
type ShardId = (String, u64, u32);

#[derive(Default)]
pub(crate) struct Check {
    /// The first promise that was broken.
    pub(crate) broken: Option<String>,
    pub(crate) scenes: Scenes,
    /// Operations are not observed: of changes that is known what gateways say of them.
    pub(crate) unobserved: bool,
    /// Events of changes of which no gateway has said what became of them.
    undecided: BTreeSet<Which>,
    /// The pool of heads.
    pub(crate) data: Option<PoolId>,
    /// The most bytes of events that a topic may hold.
    pub(crate) bounds: BTreeMap<String, u64>,
    /// How long the events of a topic live.
    pub(crate) time_to_live: BTreeMap<String, Nanos>,
    /// Events that changes have if they take effect, by the changes' tags.
    pending: BTreeMap<String, Vec<Which>>,
    /// The places of changes that took effect among those of their keys, by tag.
    sequencers: BTreeMap<String, String>,
    /// Events that exist.
    pub(crate) produced: BTreeSet<Which>,
    enqueued: BTreeSet<Which>,
    /// Which event has which place in a queue.
    places: BTreeMap<(ShardId, u64), Which>,
    /// Bytes of events in shards.
    sizes: BTreeMap<ShardId, u64>,
    /// Events that were dropped to make room.
    dropped: BTreeSet<Which>,
    pub(crate) delivered: BTreeSet<Which>,
    /// The sequencer of the last first occurrence of each key at a topic's consumer.
    last: BTreeMap<(String, String), String>,
}

/// The events of a change, as they are told from others.
pub(crate) fn names(events: &[TopicEvent]) -> Vec<Which> {
    events.iter().map(|event| (event.topic_id.to_string(), event.event.id())).collect()
}

impl Check {
    pub(crate) fn broken(&mut self, what: String) {
        self.broken.get_or_insert(what);
    }

    /// A change is about to be prepared, which has these events if it takes effect.
    pub(crate) fn begin(&mut self, tag: &str, events: Vec<Which>) {
        self.undecided.extend(events.iter().filter(|_| self.unobserved).cloned());
        self.pending.insert(tag.to_owned(), events);
    }

    /// A gateway knows whether a change took effect.
    pub(crate) fn decided(&mut self, tag: &str, is_committed: bool) {
        if !self.unobserved {
            return;
        }
        for event in self.pending.remove(tag).unwrap_or_default() {
            self.undecided.remove(&event);
            if is_committed {
                self.produced.insert(event);
            } else if self.delivered.contains(&event) {
                self.broken(format!("{event:?} is delivered of a change that did not take effect"));
            }
        }
    }

    /// An operation was carried out; `wall_ns` is the right time of day.
    pub(crate) fn observed(&mut self, seen: &Observation<'_>, wall_ns: u64) {
        if Some(seen.object.pool()) == self.data {
            return self.head_changed(seen);
        }
        match seen.object.namespace() {
            QUEUE_NAMESPACE | CLOSED_NAMESPACE => self.queue_changed(seen, wall_ns),
            SPILL_NAMESPACE if removes(seen.ops) => self.scenes.note(Scene::Drained, 1),
            _ => {}
        }
    }

    /// A head was changed: a change took effect, unless the head is tidied.
    fn head_changed(&mut self, seen: &Observation<'_>) {
        let Some(tag) = s3::tag_of(seen.ops) else { return };
        let seq = match (attribute(seen.ops, head::CHANGE), seen.before) {
            (Some(evidence), _) => Some(decode::<CommitRecord>(evidence).seq),
            (None, Some(before)) => {
                let last = std::str::from_utf8(before.user_attr(head::SEQ).unwrap()).unwrap();
                Seq::parse(last).map(Seq::successor)
            }
            (None, None) => None,
        };
        let (Some(seq), Some(events)) = (seq, self.pending.remove(&tag)) else {
            return self.broken(format!("{tag} takes effect twice, or without being prepared"));
        };
        self.produced.extend(events);
        self.sequencers.insert(tag, seq.to_string());
    }

    fn queue_changed(&mut self, seen: &Observation<'_>, wall_ns: u64) {
        let sets = |name: &str| attribute(seen.ops, name).is_some();
        if sets(OWNER) && !sets(ID) {
            self.scenes.note(Scene::Takeover, 1);
        }
        let Some(before) = seen.before else { return };
        let is_copy = sets(COPY) || seen.ops.iter().any(|op| compares(&op.op, COPY));
        self.scenes.note(Scene::Relocation, usize::from(is_copy && sets(ID)));
        if seen.object.namespace() == CLOSED_NAMESPACE
            && sets(ID)
            && !is_copy
            && before.user_attr(ID).is_some()
        {
            self.broken(format!("{} becomes another shard", seen.object));
        }
        let Some(identity) = before.user_attr(ID).filter(|_| !is_copy && !sets(ID)) else { return };
        let identity: ShardIdentity = decode(identity);
        let shard = (identity.topic.to_string(), identity.generation, identity.shard);
        let entries = seen.ops.iter().filter_map(|op| match &op.op {
            Op::OmapSet { entries } => Some(entries),
            _ => None,
        });
        let entries: Vec<&(Bytes, Bytes)> = entries.flatten().collect();
        if let Some(head) = attribute(seen.ops, HEAD) {
            self.settled(seen, before, (&shard, &decode(head)), &entries, wall_ns);
        }
        if sets(TAIL) {
            self.enqueued(seen, before, &shard, &entries);
        }
        if sets(HEAD) || sets(TAIL) {
            self.measure(seen.ops, before, shard);
        }
    }

    /// What went out of a shard has changed.
    fn settled(
        &mut self,
        seen: &Observation<'_>,
        before: &Object,
        (shard, new): (&ShardId, &QueueHead),
        entries: &[&(Bytes, Bytes)],
        wall_ns: u64,
    ) {
        let (old, owner): (QueueHead, Owner) =
            (decode(before.user_attr(HEAD).unwrap()), decode(before.user_attr(OWNER).unwrap()));
        let tail: QueueTail = decode(before.user_attr(TAIL).unwrap());
        let is_dropping = new.dropped > old.dropped;
        // Any mover may drop the oldest events, which settles no others.
        if owner.client != seen.session && !is_dropping {
            self.broken(format!("client.{} settles what {owner:?} owns", seen.session));
        }
        if new.dropped < old.dropped {
            self.broken(format!("client.{} settles what others dropped", seen.session));
        }
        let mut kept = BTreeSet::new();
        for (key, value) in entries {
            if QueueRecordKind::Parked.sequence(key).is_some() {
                self.scenes.note(Scene::Parked, 1);
                kept.insert(which(&shard.0, &decode::<ParkedEvent>(value).event));
            } else if QueueRecordKind::Dead.sequence(key).is_some() {
                let letter: DeadLetter = decode(value);
                self.died(&shard.0, &letter, wall_ns);
                kept.insert(which(&shard.0, &letter.event));
            } else if QueueRecordKind::Segment.sequence(key).is_some() {
                self.scenes.note(Scene::Spill, 1);
            }
        }
        let of_log =
            (old.cursor..tail.next).filter(|place| new.is_settled(*place) && !old.is_settled(*place));
        let unparked = seen.ops.iter().flat_map(|op| match &op.op {
            Op::OmapRmKeys { keys } => &keys[..],
            _ => &[],
        });
        let unparked = unparked.filter_map(|key| QueueRecordKind::Parked.sequence(key));
        for place in of_log.chain(unparked).collect::<Vec<u64>>() {
            let Some(which) = self.places.get(&(shard.clone(), place)).cloned() else {
                self.broken(format!("{shard:?} settles {place}, which it never had"));
                continue;
            };
            if is_dropping {
                self.scenes.note(Scene::Dropped, 1);
                self.dropped.insert(which);
            } else if !kept.contains(&which) && !self.delivered.contains(&which) {
                self.broken(format!("{which:?} is settled before it is delivered"));
            }
        }
    }

    /// An event becomes a dead letter.
    fn died(&mut self, topic: &str, letter: &DeadLetter, wall_ns: u64) {
        if letter.reason != DeadReason::Expired {
            return;
        }
        self.scenes.note(Scene::Expired, 1);
        let (age, limit) = (wall_ns.saturating_sub(letter.event.time_ns), self.time_to_live.get(topic));
        if limit.is_none_or(|limit| age + DRIFT < *limit) {
            self.broken(format!("an event of {topic} expires after {} ms", age / MILLI));
        }
    }

    /// Events came into a shard.
    fn enqueued(
        &mut self,
        seen: &Observation<'_>,
        before: &Object,
        shard: &ShardId,
        entries: &[&(Bytes, Bytes)],
    ) {
        if before.user_attr(STATE).is_none_or(|state| state != OPEN) {
            self.broken(format!("{} takes events though it is closed", seen.object));
        }
        for (key, value) in entries {
            let Some(first) = QueueRecordKind::Batch.sequence(key) else { continue };
            for (place, event) in (first..).zip(decode::<Batch>(value).events) {
                let which = which(&shard.0, &event);
                self.places.insert((shard.clone(), place), which.clone());
                if event.replayed {
                    continue;
                }
                if !self.produced.contains(&which) {
                    self.broken(format!("{which:?} is enqueued before its change takes effect"));
                }
                if !self.enqueued.insert(which.clone()) {
                    self.broken(format!("{which:?} is enqueued twice"));
                }
            }
        }
    }

    /// The size of a shard has changed.
    fn measure(&mut self, ops: &[OsdOp], before: &Object, shard: ShardId) {
        let now = |name: &str| attribute(ops, name).or_else(|| before.user_attr(name)).unwrap().clone();
        let (tail, head): (QueueTail, QueueHead) = (decode(&now(TAIL)), decode(&now(HEAD)));
        let topic = shard.0.clone();
        self.sizes.insert(shard, tail.bytes.saturating_sub(head.removed_bytes));
        let Some(bound) = self.bounds.get(&topic).copied() else { return };
        let of_topic = self.sizes.iter().filter(|((of, ..), _)| *of == topic);
        let size: u64 = of_topic.map(|(_, size)| *size).sum();
        if size > bound {
            self.broken(format!("{topic} holds {size} bytes, more than {bound}"));
        }
    }

    /// A push of an event arrives at the consumer of a topic.
    pub(crate) fn arrived(&mut self, topic: &str, event: &Event, is_replayed: bool) {
        let which = (topic.to_owned(), event.id());
        if !self.produced.contains(&which) && !self.undecided.contains(&which) {
            self.broken(format!("{which:?} was never produced"));
        }
        let sequencer = event.object.sequencer.clone();
        if self.sequencers.get(&event.change).is_some_and(|own| *own != sequencer) {
            self.broken(format!("{which:?} has the sequencer {sequencer} of another change"));
        }
        if !self.delivered.insert(which) {
            self.scenes.note(Scene::Redelivery, 1);
            return;
        }
        if is_replayed {
            self.scenes.note(Scene::Replay, 1);
            return;
        }
        let key = (topic.to_owned(), event.message_key());
        let before = self.last.insert(key.clone(), sequencer.clone());
        if before.as_ref().is_some_and(|before| *before > sequencer) {
            self.broken(format!("{key:?}: {sequencer} is delivered after {before:?}"));
        }
    }

    /// Nothing more happens; these are the dead letters.
    pub(crate) fn end(&mut self, letters: &BTreeSet<Which>) {
        self.scenes.note(Scene::Letter, letters.len());
        let is_lost = |which: &&Which| {
            !self.delivered.contains(*which) && !letters.contains(*which) && !self.dropped.contains(*which)
        };
        let lost = self.produced.iter().find(is_lost).cloned();
        if let Some(lost) = lost {
            self.broken(format!("{lost:?} is lost"));
        }
    }
}

fn compares(op: &Op, attribute: &str) -> bool {
    matches!(op, Op::CmpXattr { name, .. } if name == attribute)
}

fn removes(ops: &[OsdOp]) -> bool {
    ops.iter().any(|op| op.op == Op::Remove)
}

fn which(topic: &str, event: &record::Event) -> Which {
    (topic.to_owned(), decode::<Event>(&event.payload).id())
}

/// What an object or an operation holds.
pub(crate) fn decode<T: Versioned>(bytes: &[u8]) -> T {
    encoding::decode(bytes).unwrap()
}
