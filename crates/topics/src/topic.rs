//! The topic record, and how requests change it.
//!
//! A topic has a name, which clients use, and an id, which is made with it and never again. Queues belong to the id: a
//! topic that is made again under an old name has none of the old one's events.
//!
//! The queues of a topic have generations. Resharding opens a new one; events of a key wait there until those of older
//! generations are delivered, and a generation ends when it is empty. This module keeps the list; the queues themselves are
//! the gateway's.

mod describe;

use crate::arn::TopicArn;
use crate::attributes::Attributes;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result, quoted};
use crate::names;
use nacre_types::encoding::Versioned;
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::str::FromStr;

/// The most generations of a topic's queues at a time, and the most of which queues remain to be removed.
pub const MAX_GENERATIONS: usize = 16;
/// Hexadecimal digits of a topic's id.
const ID_DIGITS: usize = 32;

/// What a topic is known by internally: 128 random bits, which the gateway draws for each topic that it makes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TopicId(u128);

impl TopicId {
    /// An id of random bytes.
    pub fn from_random(bytes: [u8; 16]) -> TopicId {
        TopicId(u128::from_be_bytes(bytes))
    }
}

impl fmt::Display for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for TopicId {
    type Err = Error;

    fn from_str(text: &str) -> Result<TopicId> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let is_id = text.len() == ID_DIGITS && text.bytes().all(is_digit);
        let bits = u128::from_str_radix(text, 16).ok().filter(|_| is_id);
        bits.map(TopicId).ok_or_else(|| Error::invalid("topic id", format!("{} is none", quoted(text))))
    }
}

/// A set of queues that a topic had since it was made or resharded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generation {
    /// Its number, one more than that of the generation before it. The first one is 0.
    pub number: u64,
    /// How many queues it has.
    pub shards: u32,
}

/// A topic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topic {
    /// Its id.
    pub id: TopicId,
    /// Its names: zone group, tenant and name.
    pub arn: TopicArn,
    /// The user that made it and that may do everything with it.
    pub owner: String,
    /// When it was made, in nanoseconds since 1970.
    pub created_ns: u64,
    /// Counts its changes, so that queues and gateways know the newer of two copies.
    pub version: u64,
    /// Its attributes.
    pub attributes: Attributes,
    /// DeleteTopic was called. Requests treat the topic as absent; the record stays until its queues are removed, and
    /// CreateTopic of the name finishes that first.
    pub deleted: bool,
    /// The generations of its queues that are not empty or take events, oldest first; never empty. The last one takes new
    /// events. A topic without queues keeps one: its number of shards was decided when it was made.
    #[serde(deserialize_with = "stored_generations")]
    generations: Vec<Generation>,
    /// Generations whose queues remain to be removed, with the events in them. No queue is created before.
    #[serde(deserialize_with = "stored_removals")]
    removals: Vec<Generation>,
}

fn stored_generations<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Generation>, D::Error> {
    let generations = stored_removals(deserializer)?;
    if generations.is_empty() {
        return Err(serde::de::Error::custom("no generation"));
    }
    Ok(generations)
}

/// Reads generations in ascending order, each with queues.
fn stored_removals<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Generation>, D::Error> {
    let generations = Vec::<Generation>::deserialize(deserializer)?;
    let is_ordered = generations.windows(2).all(|pair| pair[0].number < pair[1].number);
    let is_sound = |one: &Generation| one.number < u64::MAX / 2 && names::check_shards(one.shards).is_ok();
    if !is_ordered || !generations.iter().all(is_sound) {
        return Err(serde::de::Error::custom("generations that no topic can have"));
    }
    Ok(generations)
}

impl Versioned for Topic {
    const NAME: &'static str = "topic";
}

/// What becomes of a topic's queues when its attributes change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueChange {
    /// They stay as they are, or there are none.
    None,
    /// Those of the current generation must be created, before the record that says so is written.
    Create,
    /// Those of [`Topic::removals`] must be removed, after the record that says so is written.
    Remove,
}

impl Topic {
    /// A new topic with so many shards. `id` must be a new one.
    pub fn new(
        id: TopicId,
        arn: TopicArn,
        owner: &str,
        created_ns: u64,
        shards: u32,
        attributes: Attributes,
    ) -> Result<Topic> {
        names::check_topic(&arn.name)?;
        names::check_tenant(&arn.tenant)?;
        names::check_shards(shards)?;
        attributes.endpoint(&arn.name)?;
        let generations = vec![Generation { number: 0, shards }];
        Ok(Topic {
            id,
            arn,
            owner: owner.to_owned(),
            created_ns,
            version: 1,
            attributes,
            deleted: false,
            generations,
            removals: Vec::new(),
        })
    }

    /// The topic's endpoint; `None` if it has none, and so no events.
    pub fn endpoint(&self) -> Result<Option<Endpoint>> {
        self.attributes.endpoint(&self.arn.name)
    }

    /// CreateTopic of a name that exists: replaces all attributes. Id, owner, number of shards and generations stay.
    pub fn replace(&mut self, attributes: Attributes) -> Result<QueueChange> {
        attributes.endpoint(&self.arn.name)?;
        let change = match (self.attributes.is_queued(), attributes.is_queued()) {
            (false, true) => QueueChange::Create,
            (true, false) => {
                if self.removals.len() + self.generations.len() > MAX_GENERATIONS {
                    let what = "the number of generations that are not removed yet";
                    return Err(Error::TooLarge { what, limit: MAX_GENERATIONS });
                }
                self.remove_queues();
                QueueChange::Remove
            }
            _ => QueueChange::None,
        };
        if attributes != self.attributes {
            self.version += 1;
            self.attributes = attributes;
        }
        Ok(change)
    }

    /// DeleteTopic: marks the topic and all its queues as to be removed.
    pub fn delete(&mut self) -> QueueChange {
        if !self.deleted {
            self.deleted = true;
            self.version += 1;
            if self.attributes.is_queued() {
                self.remove_queues();
            }
        }
        if self.removals.is_empty() { QueueChange::None } else { QueueChange::Remove }
    }

    /// Moves all generations to those that are to be removed, and opens an empty one with as many shards.
    fn remove_queues(&mut self) {
        let opened = self.next_generation(self.shards());
        self.removals.append(&mut self.generations);
        self.generations.push(opened);
    }

    fn next_generation(&self, shards: u32) -> Generation {
        Generation { number: self.current().number + 1, shards }
    }

    /// SetTopicAttributes: sets one attribute, or resets it to its default if the value is empty. Every attribute may be
    /// set.
    pub fn set(&mut self, name: &str, value: &str) -> Result<QueueChange> {
        let mut attributes = self.attributes.clone();
        attributes.set(name, value)?;
        self.replace(attributes)
    }

    /// The generation that takes new events.
    pub fn current(&self) -> Generation {
        *self.generations.last().expect("invariant: a topic has a generation")
    }

    /// The generations of queues, oldest first.
    pub fn generations(&self) -> &[Generation] {
        &self.generations
    }

    /// The number of shards of new events' queues.
    pub fn shards(&self) -> u32 {
        self.current().shards
    }

    /// The queue for a key's new events: the current generation and the shard.
    pub fn queue_of(&self, bucket: &str, key: &str) -> (Generation, u32) {
        let current = self.current();
        (current, names::shard_of(bucket, key, current.shards))
    }

    /// Opens a generation with another number of shards and returns it. Only queues that exist have a history: a topic
    /// without queues just gets the new number.
    pub fn reshard(&mut self, shards: u32) -> Result<Generation> {
        names::check_shards(shards)?;
        let opened = self.next_generation(shards);
        if self.attributes.is_queued() {
            if self.generations.len() == MAX_GENERATIONS {
                return Err(Error::TooLarge {
                    what: "the number of generations not drained",
                    limit: MAX_GENERATIONS,
                });
            }
        } else {
            self.generations.clear();
        }
        self.generations.push(opened);
        self.version += 1;
        Ok(opened)
    }

    /// Ends the oldest generation, which must be empty and not be the current one; tells whether it was the one with that
    /// number.
    pub fn retire(&mut self, number: u64) -> bool {
        let is_oldest = self.generations.len() > 1 && self.generations[0].number == number;
        if is_oldest {
            self.generations.remove(0);
            self.version += 1;
        }
        is_oldest
    }

    /// The generations whose queues remain to be removed, oldest first.
    pub fn removals(&self) -> &[Generation] {
        &self.removals
    }

    /// The queues of a generation are removed; tells whether they were to be.
    pub fn removed(&mut self, number: u64) -> bool {
        let before = self.removals.len();
        self.removals.retain(|generation| generation.number != number);
        let was_there = self.removals.len() < before;
        self.version += u64::from(was_there);
        was_there
    }
}

#[cfg(test)]
mod tests;
