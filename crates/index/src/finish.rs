//! Finishing changes: the third step, one compare-and-swap of the shard for many changes, after the requests were answered.
//!
//! [`Finish`] holds the changes of one shard whose outcome is known, and drives a loop: read the shard
//! ([`Finish::read`]), decide ([`Finish::decide`]), and either read some heads and begin again ([`Next::Look`]) or execute a
//! [`Plan`]. A plan replaces entries, corrects sums, turns pending changes that have an event into outbox records and
//! removes the pending records, all in one write that asserts every record it was made of.
//!
//! Changes of a key are finished in the order of their commits, never one before its predecessor. Where an unfinished
//! predecessor belongs to another gateway, dead or alive, its evidence is in the head and this gateway finishes both.

mod plan;
mod resolve;

pub use plan::{Plan, UploadEnd};

use crate::error::Result;
use crate::head::Head;
use crate::key;
use crate::op::{Fetch, Read, ReadReply};
use crate::record::{self, Entry, EntryTails, Evidence, Pending, Stats};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// The most changes that are finished at once.
pub const MAX_BATCH: usize = 128;

/// What became of a change.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It was committed; this is what its commit proves.
    Committed(Box<Evidence>),
    /// It was not committed and can't be any more. Its upload does not carry its mark.
    Cancelled,
}

/// A change whose outcome its gateway knows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settled {
    /// The object's key.
    pub key: String,
    /// The change's tag.
    pub tag: String,
    /// What became of it.
    pub outcome: Outcome,
}

/// How to go on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Next {
    /// All of it is finished.
    Done,
    /// The heads of these keys have to be read: [`Finish::look`] takes them. Then the shard is read again.
    Look(Vec<String>),
    /// This is to be done. Where the write fails with ECANCELED somebody else was faster, and the shard is read again.
    Execute(Box<Plan>),
}

/// Changes of one shard to be finished.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Finish {
    keys: BTreeMap<String, Work>,
}

/// What is to be finished of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Work {
    /// Changes of this gateway, by tag.
    own: BTreeMap<String, Outcome>,
    /// Changes of gateways that are fenced.
    orphans: BTreeSet<String>,
    /// What the shard had of the key when its head was asked for.
    asked: Option<Place>,
    /// The head, read after that.
    looked: Option<Looked>,
}

/// What the shard has of a key besides pending changes, as bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Place {
    entry: Option<Bytes>,
    slot: Option<Bytes>,
}

/// A head that was read after the shard had been found so.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Looked {
    place: Place,
    head: Option<Head>,
}

/// What a read of the shard found of a key.
#[derive(Debug, Default)]
struct Found {
    place: Place,
    entry: Option<Entry>,
    tails: EntryTails,
    has_tails: bool,
    /// Pending changes that were asked for and are there, by tag.
    pending: BTreeMap<String, Pending>,
    slot: Option<String>,
}

impl Finish {
    /// Changes of this gateway.
    pub fn new(settled: impl IntoIterator<Item = Settled>) -> Finish {
        let mut finish = Finish::default();
        for Settled { key, tag, outcome } in settled {
            finish.keys.entry(key).or_default().own.insert(tag, outcome);
        }
        finish
    }

    /// Adds a pending change of a gateway that is fenced: nothing of it can arrive at an OSD any more.
    pub fn add_orphan(&mut self, key: &str, tag: &str) {
        self.keys.entry(key.to_owned()).or_default().orphans.insert(tag.to_owned());
    }

    /// The read of the shard.
    pub fn read(&self) -> Read {
        let mut keys = vec![Bytes::from_static(key::STATS)];
        for (key, work) in &self.keys {
            keys.extend([key::entry(key), key::tails(key), key::slot(key)]);
            keys.extend(work.tags().iter().map(|tag| key::pending(key, tag)));
        }
        Read::of(vec![Fetch::Keys(keys)])
    }

    /// What follows from `reply` to [`Finish::read`].
    pub fn decide(&mut self, reply: &ReadReply) -> Result<Next> {
        let values = reply.pairs(0)?;
        let stats = values.get(key::STATS).cloned();
        let mut found = Vec::with_capacity(self.keys.len());
        let mut unclear = Vec::new();
        for (key, work) in &self.keys {
            let at_key = Found::of(key, work, values)?;
            match resolve::resolve(work, &at_key) {
                Some(resolved) => found.push((key.as_str(), at_key, resolved)),
                None => unclear.push((key.clone(), at_key.place)),
            }
        }
        if !unclear.is_empty() {
            drop(found);
            return Ok(Next::Look(self.ask(unclear)));
        }
        let own = |key: &str, tag: &str| self.keys.get(key).is_some_and(|work| work.own.contains_key(tag));
        let plan = plan::make(found, stats, own)?;
        Ok(plan.map_or(Next::Done, |plan| Next::Execute(Box::new(plan))))
    }

    /// Notes what the shard has of keys whose heads have to be read.
    fn ask(&mut self, unclear: Vec<(String, Place)>) -> Vec<String> {
        let mut keys = Vec::with_capacity(unclear.len());
        for (key, place) in unclear {
            if let Some(work) = self.keys.get_mut(&key) {
                (work.asked, work.looked) = (Some(place), None);
            }
            keys.push(key);
        }
        keys
    }

    /// Takes the head of a key, which was read after the reply that [`Next::Look`] followed from.
    pub fn look(&mut self, key: &str, head: Option<Head>) {
        if let Some(work) = self.keys.get_mut(key)
            && let Some(place) = work.asked.take()
        {
            work.looked = Some(Looked { place, head });
        }
    }
}

impl Work {
    /// Changes whose pending records matter.
    fn tags(&self) -> BTreeSet<&str> {
        let mut tags: BTreeSet<&str> = self.own.keys().chain(&self.orphans).map(String::as_str).collect();
        if let Some(Looked { place, head }) = &self.looked {
            let evidence = head.iter().flat_map(Head::evidence);
            tags.extend(evidence.map(|evidence| evidence.tag.as_str()));
            tags.extend(place.slot.as_deref().and_then(|slot| std::str::from_utf8(slot).ok()));
        }
        tags
    }
}

impl Found {
    fn of(key: &str, work: &Work, values: &BTreeMap<Bytes, Bytes>) -> Result<Found> {
        let get = |name: Bytes| values.get(&name).cloned();
        let place = Place { entry: get(key::entry(key)), slot: get(key::slot(key)) };
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
        Ok(Found { place, entry, tails: tails.unwrap_or_default(), has_tails, pending, slot })
    }
}

/// The sums of a shard.
fn stats_of(value: Option<&Bytes>) -> Result<Stats> {
    value.map_or(Ok(Stats::default()), |value| record::decode("sums of a shard", value))
}

#[cfg(test)]
mod tests;
