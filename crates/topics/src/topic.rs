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

/// The most generations of a topic's queues at a time.
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
    /// The generations of its queues that are not empty or take events, oldest first; never empty. The last one takes new
    /// events. A topic without queues keeps them: its number of shards was decided when it was made.
    #[serde(deserialize_with = "stored_generations")]
    generations: Vec<Generation>,
}

/// Reads generations of which there is one at least, in order, each with queues.
fn stored_generations<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Generation>, D::Error> {
    let generations = Vec::<Generation>::deserialize(deserializer)?;
    let is_ordered = generations.windows(2).all(|pair| pair[0].number < pair[1].number);
    let have_shards = generations.iter().all(|generation| names::check_shards(generation.shards).is_ok());
    if generations.is_empty() || !is_ordered || !have_shards {
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
    /// They must be created, before the record that says so is written.
    Create,
    /// They must be removed with what is in them, after the record that says so is written.
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
        Ok(Topic { id, arn, owner: owner.to_owned(), created_ns, version: 1, attributes, generations })
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
            (true, false) => QueueChange::Remove,
            _ => QueueChange::None,
        };
        if attributes != self.attributes {
            self.version += 1;
            self.attributes = attributes;
        }
        Ok(change)
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
        let opened = Generation { number: self.current().number + 1, shards };
        if self.attributes.is_queued() {
            if self.generations.len() == MAX_GENERATIONS {
                return Err(Error::TooLarge { what: "the number of generations not drained", limit: MAX_GENERATIONS });
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

    /// After the removal of all queues ([`QueueChange::Remove`]): one empty generation is left, of the same number of
    /// shards and a number that no queue ever had.
    pub fn forget_queues(&mut self) {
        let opened = Generation { number: self.current().number + 1, shards: self.shards() };
        self.generations = vec![opened];
        self.version += 1;
    }
}

#[cfg(test)]
mod tests;
