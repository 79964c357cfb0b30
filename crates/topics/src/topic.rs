//! The topic record, and how requests change it.
//!
//! A topic has a name, which clients use, and an id, which is assigned when it is created and never reused. Queues belong
//! to the id: a topic that is created again under an old name has none of the old topic's events.
//!
//! The record tells whether the topic has queues, and how many. The generations of queues are recorded separately, by the
//! code that creates and removes them.

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

/// Hexadecimal digits of a topic's id.
const ID_DIGITS: usize = 32;

/// The internal identifier of a topic: 128 random bits, which the gateway draws for each new topic.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TopicId(u128);

impl TopicId {
    /// Creates an id from random bytes.
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

/// A topic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topic {
    /// Its id.
    pub id: TopicId,
    /// Its ARN: zone group, tenant and name.
    pub arn: TopicArn,
    /// The user that created it and that may perform all actions on it.
    pub owner: String,
    /// The time of its creation, in nanoseconds since 1970.
    pub created_ns: u64,
    /// The number of its changes, so that queues and gateways can tell which of two copies is newer.
    pub version: u64,
    /// Its attributes.
    pub attributes: Attributes,
    /// The number of its queues while it is persistent. Set when it is created, and changed by resharding only.
    #[serde(deserialize_with = "stored_shards")]
    pub shards: u32,
}

fn stored_shards<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let shards = u32::deserialize(deserializer)?;
    names::check_shards(shards).map_err(serde::de::Error::custom)?;
    Ok(shards)
}

impl Versioned for Topic {
    const NAME: &'static str = "topic";
}

impl Topic {
    /// Creates a topic with `shards` shards. `id` must be new.
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
        Ok(Topic { id, arn, owner: owner.to_owned(), created_ns, version: 1, attributes, shards })
    }

    /// The topic's endpoint; `None` if it has none, and therefore no events.
    pub fn endpoint(&self) -> Result<Option<Endpoint>> {
        self.attributes.endpoint(&self.arn.name)
    }

    /// Whether the topic has queues: it is persistent and has an endpoint.
    pub fn is_queued(&self) -> bool {
        self.attributes.is_queued()
    }

    /// CreateTopic for an existing name: replaces all attributes. Id, owner and number of shards remain.
    pub fn replace(&mut self, attributes: Attributes) -> Result<()> {
        attributes.endpoint(&self.arn.name)?;
        if attributes != self.attributes {
            self.version += 1;
            self.attributes = attributes;
        }
        Ok(())
    }

    /// SetTopicAttributes: sets one attribute, or resets it to its default if the value is empty. Any attribute may be set.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let mut attributes = self.attributes.clone();
        attributes.set(name, value)?;
        self.replace(attributes)
    }

    /// Changes the number of shards.
    pub fn reshard(&mut self, shards: u32) -> Result<()> {
        names::check_shards(shards)?;
        if shards != self.shards {
            self.version += 1;
            self.shards = shards;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
