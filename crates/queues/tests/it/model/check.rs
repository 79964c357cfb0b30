//! What must hold: after every operation on an object, and at the end.

use super::rados::{Object, Rados};
use bytes::Bytes;
use nacre_queues::name::{self, QueueRecordKind};
use nacre_queues::op::{ObjectKey, ObjectOp, ObjectRead, Step};
use nacre_queues::record::{
    self, Batch, COPY, CopyState, DeadLetter, Event, HEAD, ID, OWNER, Owner, ParkedEvent, QueueHead,
    SegmentData, SegmentManifest, ShardIdentity, TAIL,
};
use nacre_queues::shard::Shard;
use nacre_types::encoding::Versioned;
use std::collections::{BTreeMap, BTreeSet};

/// How often something happened, so that a test can tell that its scenes are played.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scenes {
    pub(crate) takeovers: u64,
    pub(crate) redeliveries: u64,
    pub(crate) relocations: u64,
    pub(crate) spilled: u64,
    pub(crate) parked: u64,
    pub(crate) letters: u64,
    pub(crate) replays: u64,
    pub(crate) dropped: u64,
}

impl Scenes {
    pub(crate) fn add(&mut self, more: Scenes) {
        self.takeovers += more.takeovers;
        self.redeliveries += more.redeliveries;
        self.relocations += more.relocations;
        self.spilled += more.spilled;
        self.parked += more.parked;
        self.letters += more.letters;
        self.replays += more.replays;
        self.dropped += more.dropped;
    }

    pub(crate) fn has_all(&self) -> bool {
        let Scenes { takeovers, redeliveries, relocations, spilled, parked, letters, replays, dropped } =
            *self;
        [takeovers, redeliveries, relocations, spilled, parked, letters, replays, dropped]
            .iter()
            .all(|n| *n > 0)
    }
}

/// What was seen so far.
#[derive(Debug, Default)]
pub(crate) struct Check {
    /// All events of operations that took effect.
    pub(crate) produced: Vec<Event>,
    enqueued: BTreeSet<Bytes>,
    /// Events that the endpoint took, and whether their shard's owner sent them.
    deliveries: Vec<(Event, bool)>,
    pub(crate) scenes: Scenes,
}

fn decode<T: Versioned>(bytes: &[u8]) -> T {
    record::decode(&"model", bytes).expect("sound")
}

fn attribute<T: Versioned>(object: Option<&Object>, name: &str) -> Option<T> {
    object?.xattrs.get(name).map(|bytes| decode(bytes))
}

fn set_by<T: Versioned>(op: &ObjectOp, wanted: &str) -> Option<T> {
    op.write.steps.iter().find_map(|step| match step {
        Step::SetAttr(name, value) if *name == wanted => Some(decode(value)),
        _ => None,
    })
}

impl Check {
    pub(crate) fn delivered(&mut self, event: &Event, by_owner: bool) {
        self.deliveries.push((event.clone(), by_owner));
    }

    /// An operation was applied; `before` is the object as it was.
    pub(crate) fn written(
        &mut self,
        op: &ObjectOp,
        claim: Option<u64>,
        before: Option<&Object>,
        rados: &Rados,
    ) -> Result<(), String> {
        let owner = attribute::<Owner>(before, OWNER).unwrap_or_default();
        if claim.is_some_and(|epoch| epoch != owner.epoch) {
            return Err(format!("the owner of epoch {claim:?} changed {}, which {owner:?} owns", op.object));
        }
        if set_by::<Owner>(op, OWNER).is_some_and(|next| next.epoch == owner.epoch + 1) {
            self.scenes.takeovers += 1;
        }
        if let (Some(old), Some(new)) = (attribute::<QueueHead>(before, HEAD), set_by::<QueueHead>(op, HEAD))
        {
            self.scenes.dropped += new.dropped.saturating_sub(old.dropped);
        }
        if set_by::<record::QueueTail>(op, TAIL).is_some() {
            for event in op.write.steps.iter().flat_map(enqueued_by).filter(|event| !event.replayed) {
                if !self.enqueued.insert(event.payload.clone()) {
                    return Err(format!("{:?} is enqueued twice, into {}", event.payload, op.object));
                }
            }
        }
        for key in op.write.steps.iter().flat_map(keys_set_by) {
            let is = |kind: QueueRecordKind| u64::from(kind.sequence(&key).is_some());
            self.scenes.parked += is(QueueRecordKind::Parked);
            self.scenes.letters += is(QueueRecordKind::Letter);
            self.scenes.replays += is(QueueRecordKind::Replay);
            self.scenes.spilled += is(QueueRecordKind::Segment);
        }
        audit(&op.object, rados)?;
        // A shard that has left its visible object is its copy from now on.
        let id = |object: Option<&Object>| attribute::<ShardIdentity>(object, ID);
        match id(before) {
            Some(left) if id(rados.objects.get(&op.object)).as_ref() != Some(&left) => {
                self.scenes.relocations += 1;
                audit(&name::closed_object(&left.topic, left.generation, left.shard), rados)
            }
            _ => Ok(()),
        }
    }

    /// Whether every event is somewhere, in order, and not delivered too often.
    pub(crate) fn end(&mut self, letters: &[DeadLetter], window: u64) -> Result<(), String> {
        let delivered = self.deliveries.iter().map(|(event, _)| event);
        let seen = delivered.chain(letters.iter().map(|letter| &letter.event)).map(|event| &event.payload);
        let seen: BTreeSet<&Bytes> = seen.collect();
        let missing: Vec<_> = self.produced.iter().filter(|event| !seen.contains(&event.payload)).collect();
        if missing.len() as u64 > self.scenes.dropped {
            return Err(format!(
                "{} events are lost, {} were dropped: {missing:?}",
                missing.len(),
                self.scenes.dropped
            ));
        }
        let mut last: BTreeMap<u32, u64> = BTreeMap::new();
        let mut known = BTreeSet::new();
        let mut duplicates = 0;
        for (event, by_owner) in self.deliveries.iter().filter(|(event, _)| !event.replayed) {
            if !known.insert(&event.payload) {
                duplicates += 1;
                continue;
            }
            let (key, number) = (event.key.0, number_of(event));
            match last.get(&key) {
                Some(before) if *before > number && *by_owner => {
                    return Err(format!("of key {key} event {number} is delivered after {before}"));
                }
                // An owner that does not know that it is fenced sent what was given up in the meantime.
                // Leases make that rare; nothing in RADOS can prevent it.
                Some(before) if *before > number => {}
                _ => drop(last.insert(key, number)),
            }
        }
        self.scenes.redeliveries = duplicates;
        if duplicates > self.scenes.takeovers * window {
            return Err(format!("{duplicates} redeliveries in {} takeovers", self.scenes.takeovers));
        }
        Ok(())
    }
}

/// The number that a payload `KEY/NUMBER` ends with.
fn number_of(event: &Event) -> u64 {
    let text = std::str::from_utf8(&event.payload).unwrap();
    text.rsplit('/').next().unwrap().parse().unwrap()
}

fn keys_set_by(step: &Step) -> Vec<Bytes> {
    let Step::OmapSet(entries) = step else { return Vec::new() };
    entries.iter().map(|(key, _)| key.clone()).collect()
}

fn enqueued_by(step: &Step) -> Vec<Event> {
    let Step::OmapSet(entries) = step else { return Vec::new() };
    let batches = entries.iter().filter(|(key, _)| QueueRecordKind::Batch.sequence(key).is_some());
    batches.flat_map(|(_, value)| decode::<Batch>(value).events).collect()
}

/// Counts what an object holds and compares it with what its attributes say.
fn audit(key: &ObjectKey, rados: &Rados) -> Result<(), String> {
    let Some(object) = rados.objects.get(key).filter(|object| object.xattrs.contains_key(ID)) else {
        return Ok(());
    };
    let copy = attribute::<CopyState>(Some(object), COPY);
    let is_here = |(other, visible): (&ObjectKey, &Object)| {
        other.namespace == name::QUEUE_NAMESPACE && visible.xattrs.get(ID) == object.xattrs.get(ID)
    };
    // A copy counts when the shard is not in its visible object any more.
    if copy.is_some_and(|copy| !copy.is_complete || rados.objects.iter().any(is_here)) {
        return Ok(());
    }
    let reply = rados.read(&ObjectRead::attributes(key)).expect("it exists");
    let shard = Shard::from_reply(key, &[], &reply).map_err(|error| error.to_string())?;
    let (mut entries, mut bytes, mut resident) = (0, 0, 0);
    let mut count = |first: u64, batch: &Batch| {
        for (_, event) in (first..).zip(&batch.events).filter(|(at, _)| !shard.head.value.is_settled(*at)) {
            entries += 1;
            bytes += event.size_bytes();
        }
    };
    for (name, value) in &object.omap {
        if let Some(first) = QueueRecordKind::Batch.sequence(name) {
            let batch: Batch = decode(value);
            resident += batch.size_bytes();
            count(first, &batch);
        } else if let Some(first) = QueueRecordKind::Segment.sequence(name) {
            let segment: SegmentManifest = decode(value);
            if segment.end <= shard.head.value.cursor {
                continue;
            }
            let id = &shard.id.value;
            let name = name::segment_object(&id.topic, id.generation, id.shard, first, segment.epoch);
            let Some(stored) = rados.objects.get(&name) else { return Err(format!("{name} is missing")) };
            let data: SegmentData = decode(&stored.data);
            data.batches.iter().for_each(|(first, batch)| count(*first, batch));
        }
    }
    for (_, value) in object.omap.iter().filter(|(name, _)| QueueRecordKind::Parked.sequence(name).is_some())
    {
        let parked: ParkedEvent = decode(value);
        entries += 1;
        bytes += parked.event.size_bytes();
    }
    let counted = (entries, bytes, resident);
    let said = (shard.entries(), shard.size_bytes(), shard.resident_bytes());
    if counted == said {
        Ok(())
    } else {
        Err(format!("{key} holds {counted:?} but says {said:?}: {shard:?}"))
    }
}
