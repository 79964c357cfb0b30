//! Notification configurations of buckets: which changes of which objects have events, and for which topics.
//!
//! A bucket has up to [`MAX_CONFIGURATIONS`] configurations, each with an id, a topic, patterns of event types and a
//! filter. They are evaluated in two steps. [`Matcher::candidates`] uses the type and the key, which are known before a
//! change starts. [`MetadataTagFilter::matches`] uses metadata and tags, and is called after the change took effect, for the
//! version that it created or removed.

mod document;
mod matching;

pub use matching::{Candidate, Matcher};

use crate::arn::TopicArn;
use crate::error::{Error, Result, quoted};
use crate::event::EventPattern;
use nacre_types::encoding::Versioned;
use serde::{Deserialize, Serialize};

/// The most configurations of a bucket: S3's limit.
pub const MAX_CONFIGURATIONS: usize = 100;
/// The longest id of a configuration, in bytes.
pub const MAX_ID_BYTES: usize = 255;
/// The most event patterns of a configuration.
pub const MAX_EVENT_PATTERNS: usize = 64;
/// The longest prefix, suffix or regular expression, in bytes: the limit for keys.
pub const MAX_KEY_RULE_BYTES: usize = 1024;
/// The most metadata rules of a configuration, and the most tag rules.
pub const MAX_FILTER_RULES: usize = 20;
/// The longest name or value of a metadata or tag rule, in bytes.
pub const MAX_FILTER_RULE_BYTES: usize = 1024;
/// The prefix of metadata names in rules and event records.
pub const METADATA_PREFIX: &str = "x-amz-meta-";

/// All configurations of a bucket, in the order in which they were set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotificationConfig {
    /// The configurations. No two have the same id.
    pub configurations: Vec<TopicConfiguration>,
}

impl Versioned for NotificationConfig {
    const NAME: &'static str = "bucket notification configuration";
}

/// One configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicConfiguration {
    /// Its id, unique in the bucket.
    pub id: String,
    /// The topic that receives its events.
    pub topic: TopicArn,
    /// Event patterns, one of which must match an event's type; never empty.
    pub events: Vec<EventPattern>,
    /// Rules for keys, all of which must hold.
    pub key: KeyFilter,
    /// Rules for metadata and tags, all of which must hold.
    pub attributes: MetadataTagFilter,
}

/// Rules for keys. An empty rule holds for every key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyFilter {
    /// A prefix of the key.
    pub prefix: String,
    /// A suffix of the key.
    pub suffix: String,
    /// A regular expression that matches the whole key.
    pub regex: String,
}

/// Rules for metadata and tags: pairs that an object must have. It may have more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetadataTagFilter {
    /// Names of metadata in lower case without `x-amz-meta-`, and values.
    pub metadata: Vec<(String, String)>,
    /// Keys of tags, and values.
    pub tags: Vec<(String, String)>,
}

impl NotificationConfig {
    /// The configuration with the id `id`.
    pub fn get(&self, id: &str) -> Option<&TopicConfiguration> {
        self.configurations.iter().find(|configuration| configuration.id == id)
    }

    /// Removes the configuration with the id `id`, or all configurations if `id` is `None`. Returns whether there was one.
    pub fn remove(&mut self, id: Option<&str>) -> bool {
        let before = self.configurations.len();
        self.configurations.retain(|configuration| id.is_some_and(|id| configuration.id != id));
        self.configurations.len() < before
    }

    /// Whether a configuration sends events to the topic `topic`.
    pub fn references_topic(&self, topic: &TopicArn) -> bool {
        self.configurations.iter().any(|configuration| configuration.topic.is_same_topic(topic))
    }
}

impl MetadataTagFilter {
    /// Whether there are no rules. If there are some, an event depends on the version that the change created or removed.
    pub fn is_empty(&self) -> bool {
        self.metadata.is_empty() && self.tags.is_empty()
    }

    /// Whether a version's metadata (names in lower case without `x-amz-meta-`) and tags satisfy all rules.
    pub fn matches(&self, metadata: &[(String, String)], tags: &[(String, String)]) -> bool {
        let satisfy = |pairs: &[(String, String)], rules: &[(String, String)]| {
            rules.iter().all(|rule| pairs.contains(rule))
        };
        satisfy(metadata, &self.metadata) && satisfy(tags, &self.tags)
    }
}

/// Refuses ids that a client's request could not contain.
fn check_id(id: &str) -> Result<()> {
    let reason = if id.is_empty() {
        "is empty".to_owned()
    } else if id.len() > MAX_ID_BYTES {
        format!("is longer than {MAX_ID_BYTES} bytes")
    } else if id.chars().any(char::is_control) {
        format!("{} has control characters", quoted(id))
    } else {
        return Ok(());
    };
    Err(Error::invalid("Id", reason))
}

#[cfg(test)]
mod tests;
