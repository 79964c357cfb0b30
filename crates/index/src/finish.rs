//! Finishing changes: the third step, one compare-and-swap of the shard for many changes, after the requests were answered.
//!
//! [`FinishBatch`] holds changes of one shard whose outcome is known, and drives a loop: read the shard ([`FinishBatch::read`]),
//! decide ([`FinishBatch::decide`]), and either read some heads and start over ([`FinishStep::ReadHeads`]) or execute a [`FinishPlan`]. A plan
//! replaces entries, corrects sums, turns pending changes that have an event into outbox records, and removes the pending
//! records. It does this in one write that asserts every record that the plan depends on.
//!
//! Changes of a key are finished in the order of their commits, never before a predecessor. If an unfinished predecessor
//! belongs to another gateway, dead or alive, its evidence is in the head, and this gateway finishes both changes.

mod plan;
mod resolve;

pub use plan::{FinishPlan, UploadResolution};

use crate::error::Result;
use crate::head::ObjectHead;
use crate::key;
use crate::op::{Fetch, Read, ReadReply};
use crate::record::{self, CommitRecord, Entry, EntryTails, Pending, Stats};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// The most changes that are finished at once.
pub const MAX_BATCH: usize = 128;

/// The outcome of a change.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ChangeOutcome {
    /// It was committed, with this evidence.
    Committed(Box<CommitRecord>),
    /// It was not committed and can't be committed any more. Its upload does not carry its mark.
    Cancelled,
}

/// A change whose outcome its gateway knows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ResolvedChange {
    /// The object's key.
    pub key: String,
    /// The change's tag.
    pub tag: String,
    /// The outcome.
    pub outcome: ChangeOutcome,
}

/// The next step of a finish.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FinishStep {
    /// All changes are finished.
    Done,
    /// The heads of these keys must be read and passed to [`FinishBatch::add_head`]. Then the shard is read again.
    ReadHeads(Vec<String>),
    /// This plan is to be executed. If the write fails with ECANCELED, another gateway changed the shard first, and it is
    /// read again.
    Execute(Box<FinishPlan>),
}

/// Changes of one shard to be finished.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FinishBatch {
    keys: BTreeMap<String, Work>,
}

/// The changes of one key to be finished.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Work {
    /// Changes of this gateway, by tag.
    own: BTreeMap<String, ChangeOutcome>,
    /// Changes of gateways that are fenced.
    orphans: BTreeSet<String>,
    /// The records of the key in the shard when its head was requested.
    asked: Option<RawKeyRecords>,
    /// The head, read after that.
    looked: Option<ReadHead>,
}

/// The records of a key in the shard except its pending changes, as bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct RawKeyRecords {
    entry: Option<Bytes>,
    slot: Option<Bytes>,
}

/// A head that was read after the shard had these records.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ReadHead {
    place: RawKeyRecords,
    head: Option<ObjectHead>,
}

/// The records of a key that a read of the shard found.
#[derive(Debug, Default)]
struct KeyRecords {
    place: RawKeyRecords,
    entry: Option<Entry>,
    tails: EntryTails,
    has_tails: bool,
    /// The requested pending changes that exist, by tag.
    pending: BTreeMap<String, Pending>,
    slot: Option<String>,
}

impl FinishBatch {
    /// Starts with changes of this gateway.
    pub fn new(settled: impl IntoIterator<Item = ResolvedChange>) -> FinishBatch {
        let mut finish = FinishBatch::default();
        for ResolvedChange { key, tag, outcome } in settled {
            finish.keys.entry(key).or_default().own.insert(tag, outcome);
        }
        finish
    }

    /// Adds a pending change of a fenced gateway: none of its operations can reach an OSD any more.
    pub fn add_orphan(&mut self, key: &str, tag: &str) {
        self.keys.entry(key.to_owned()).or_default().orphans.insert(tag.to_owned());
    }

    /// The read of the shard.
    pub fn read(&self) -> Read {
        let mut keys = vec![Bytes::from_static(key::STATS)];
        for (key, work) in &self.keys {
            keys.extend([key::entry(key), key::tails(key), key::removal_slot(key)]);
            keys.extend(work.tags().iter().map(|tag| key::pending(key, tag)));
        }
        Read::of(vec![Fetch::Keys(keys)])
    }

    /// Decides the next step from `reply` to [`FinishBatch::read`].
    pub fn decide(&mut self, reply: &ReadReply) -> Result<FinishStep> {
        let values = reply.pairs(0)?;
        let stats = values.get(key::STATS).cloned();
        let mut found = Vec::with_capacity(self.keys.len());
        let mut unclear = Vec::new();
        for (key, work) in &self.keys {
            let at_key = KeyRecords::of(key, work, values)?;
            match resolve::resolve(work, &at_key) {
                Some(resolved) => found.push((key.as_str(), at_key, resolved)),
                None => unclear.push((key.clone(), at_key.place)),
            }
        }
        if !unclear.is_empty() {
            drop(found);
            return Ok(FinishStep::ReadHeads(self.ask(unclear)));
        }
        let own = |key: &str, tag: &str| self.keys.get(key).is_some_and(|work| work.own.contains_key(tag));
        let plan = plan::make(found, stats, own)?;
        Ok(plan.map_or(FinishStep::Done, |plan| FinishStep::Execute(Box::new(plan))))
    }

    /// Remembers the records of keys whose heads must be read; returns the keys.
    fn ask(&mut self, unclear: Vec<(String, RawKeyRecords)>) -> Vec<String> {
        let mut keys = Vec::with_capacity(unclear.len());
        for (key, place) in unclear {
            if let Some(work) = self.keys.get_mut(&key) {
                (work.asked, work.looked) = (Some(place), None);
            }
            keys.push(key);
        }
        keys
    }

    /// Takes the head of a key, read after the reply that led to [`FinishStep::ReadHeads`].
    pub fn add_head(&mut self, key: &str, head: Option<ObjectHead>) {
        if let Some(work) = self.keys.get_mut(key)
            && let Some(place) = work.asked.take()
        {
            work.looked = Some(ReadHead { place, head });
        }
    }
}

impl Work {
    /// The tags of changes whose pending records are needed.
    fn tags(&self) -> BTreeSet<&str> {
        let mut tags: BTreeSet<&str> = self.own.keys().chain(&self.orphans).map(String::as_str).collect();
        if let Some(ReadHead { place, head }) = &self.looked {
            let evidence = head.iter().flat_map(ObjectHead::commit_records);
            tags.extend(evidence.map(|evidence| evidence.tag.as_str()));
            tags.extend(place.slot.as_deref().and_then(|slot| std::str::from_utf8(slot).ok()));
        }
        tags
    }
}

impl KeyRecords {
    fn of(key: &str, work: &Work, values: &BTreeMap<Bytes, Bytes>) -> Result<KeyRecords> {
        let get = |name: Bytes| values.get(&name).cloned();
        let place = RawKeyRecords { entry: get(key::entry(key)), slot: get(key::removal_slot(key)) };
        let entry = place.entry.as_ref().map(|value| record::decode::<Entry>(key, value)).transpose()?;
        let tails = get(key::tails(key));
        let has_tails = tails.is_some();
        let tails = tails.map(|value| record::decode::<EntryTails>(key, &value)).transpose()?;
        let mut pending = BTreeMap::new();
        for tag in work.tags() {
            if let Some(value) = values.get(&key::pending(key, tag)) {
                pending.insert(tag.to_owned(), record::decode::<Pending>(key, value)?);
            }
        }
        let slot = place.slot.as_deref().map(|slot| String::from_utf8_lossy(slot).into_owned());
        Ok(KeyRecords { place, entry, tails: tails.unwrap_or_default(), has_tails, pending, slot })
    }
}

/// The sums of a shard.
fn stats_of(value: Option<&Bytes>) -> Result<Stats> {
    value.map_or(Ok(Stats::default()), |value| record::decode("sums of a shard", value))
}

#[cfg(test)]
mod tests;
