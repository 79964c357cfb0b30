//! What must hold: at each operation on a queue, at each push that arrives, and at the end.

use bytes::Bytes;
use nacre_queues::name::{CLOSED, Kind, QUEUES};
use nacre_queues::record::{self, Batch, COPY, HEAD, ID, Identity, OPEN, OWNER, Owner, STATE, TAIL};
use nacre_sim::gateway::mem_engine::Observation;
use nacre_topics::record::Event;
use nacre_types::encoding;
use nacre_types::op::Op;
use std::collections::{BTreeMap, BTreeSet};

/// An event for a topic, as it is told from others.
pub(crate) type Which = (String, String);

/// How often something happened, so that a test can tell that its scenes are played.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scenes {
    pub(crate) crashes: u64,
    pub(crate) takeovers: u64,
    pub(crate) redeliveries: u64,
    pub(crate) relocations: u64,
    pub(crate) parked: u64,
    pub(crate) letters: u64,
    pub(crate) replays: u64,
    pub(crate) failures: u64,
}

impl Scenes {
    pub(crate) fn add(&mut self, more: Scenes) {
        self.crashes += more.crashes;
        self.takeovers += more.takeovers;
        self.redeliveries += more.redeliveries;
        self.relocations += more.relocations;
        self.parked += more.parked;
        self.letters += more.letters;
        self.replays += more.replays;
        self.failures += more.failures;
    }

    pub(crate) fn has_all(&self) -> bool {
        let all = [
            self.crashes,
            self.takeovers,
            self.redeliveries,
            self.relocations,
            self.parked,
            self.letters,
            self.replays,
            self.failures,
        ];
        all.iter().all(|count| *count > 0)
    }
}

#[derive(Default)]
pub(crate) struct Check {
    /// The first promise that was broken.
    pub(crate) broken: Option<String>,
    pub(crate) scenes: Scenes,
    /// Events that exist.
    pub(crate) produced: BTreeSet<Which>,
    enqueued: BTreeSet<Which>,
    pub(crate) delivered: BTreeSet<Which>,
    /// The sequencer of the last first occurrence of each key at a topic's consumer.
    last: BTreeMap<(String, String), String>,
}

impl Check {
    fn broken(&mut self, what: String) {
        self.broken.get_or_insert(what);
    }

    /// An operation was carried out.
    pub(crate) fn observed(&mut self, seen: &Observation<'_>) {
        let namespace = seen.object.namespace();
        if namespace != QUEUES && namespace != CLOSED {
            return;
        }
        let sets = |attribute: &str| {
            seen.ops.iter().any(|op| matches!(&op.op, Op::SetXattr { name, .. } if name == attribute))
        };
        if sets(OWNER) && !sets(ID) {
            self.scenes.takeovers += 1;
        }
        let Some(before) = seen.before else { return };
        let is_copy = sets(COPY) || seen.ops.iter().any(|op| compares(&op.op, COPY));
        self.scenes.relocations += u64::from(is_copy && sets(ID));
        if namespace == CLOSED && sets(ID) && !is_copy && before.attrs.contains_key(ID) {
            self.broken(format!("{} becomes another shard", seen.object));
        }
        if is_copy || sets(ID) {
            return;
        }
        if sets(HEAD)
            && let Some(owner) = before.attrs.get(OWNER)
        {
            let owner: Owner = record::decode(&"owner", owner).unwrap();
            if owner.client != seen.session {
                self.broken(format!("client.{} settles what {owner:?} owns", seen.session));
            }
        }
        let entries = seen.ops.iter().filter_map(|op| match &op.op {
            Op::OmapSet { entries } => Some(entries),
            _ => None,
        });
        let entries: Vec<&(Bytes, Bytes)> = entries.flatten().collect();
        self.scenes.parked +=
            entries.iter().filter(|(key, _)| Kind::Parked.sequence(key).is_some()).count() as u64;
        if !sets(TAIL) {
            return;
        }
        if before.attrs.get(STATE).is_none_or(|state| state != OPEN) {
            self.broken(format!("{} takes events though it is closed", seen.object));
        }
        let identity: Identity = record::decode(&"identity", &before.attrs[ID]).unwrap();
        for (key, value) in entries {
            if Kind::Batch.sequence(key).is_none() {
                continue;
            }
            let batch: Batch = record::decode(&"batch", value).unwrap();
            for event in batch.events.into_iter().filter(|event| !event.replayed) {
                let which = (identity.topic.to_string(), decode(&event.payload).id());
                if !self.enqueued.insert(which.clone()) {
                    self.broken(format!("{which:?} is enqueued twice"));
                }
            }
        }
    }

    /// A push of an event arrives at the consumer of a topic.
    pub(crate) fn arrived(&mut self, topic: &str, event: &Event, is_replayed: bool) {
        let which = (topic.to_owned(), event.id());
        if !self.produced.contains(&which) {
            self.broken(format!("{which:?} was never produced"));
        }
        if !self.delivered.insert(which) {
            self.scenes.redeliveries += 1;
            return;
        }
        if is_replayed {
            self.scenes.replays += 1;
            return;
        }
        let key = (topic.to_owned(), event.message_key());
        let sequencer = event.object.sequencer.clone();
        let before = self.last.insert(key.clone(), sequencer.clone());
        if before.as_ref().is_some_and(|before| *before > sequencer) {
            self.broken(format!("{key:?}: {sequencer} is delivered after {before:?}"));
        }
    }

    /// Nothing more happens; these are the dead letters.
    pub(crate) fn end(&mut self, letters: &BTreeSet<Which>) {
        self.scenes.letters += letters.len() as u64;
        let lost =
            self.produced.iter().find(|which| !self.delivered.contains(*which) && !letters.contains(*which));
        if let Some(lost) = lost.cloned() {
            self.broken(format!("{lost:?} is lost"));
        }
    }
}

fn compares(op: &Op, attribute: &str) -> bool {
    matches!(op, Op::CmpXattr { name, .. } if name == attribute)
}

pub(crate) fn decode(payload: &[u8]) -> Event {
    encoding::decode(payload).unwrap()
}
