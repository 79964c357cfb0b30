//! Names: topics, sources, namespaces, RADOS objects, omap keys, and the hash that assigns keys to shards.
//!
//! No omap key contains NUL, because the C interface of librados takes cursors as C strings.

use crate::error::{Error, Result};
use crate::op::ObjectKey;
use bytes::Bytes;
use nacre_types::hash::ceph_str_hash_rjenkins;
use serde::{Deserialize, Serialize};

/// The namespace of the shards of current generations. It contains no other objects, so `rados ls` shows exactly these.
pub const QUEUE_NAMESPACE: &str = "notif";
/// The namespace of the shards of closed and hidden generations.
pub const CLOSED_NAMESPACE: &str = "notif.closed";
/// The namespace of spill segments.
pub const SPILL_NAMESPACE: &str = "notif.spill";
/// The namespace of dead-letter queues.
pub const DEAD_LETTER_NAMESPACE: &str = "notif.dead";

/// The most shards of a topic.
pub const MAX_SHARDS: u32 = 4096;

/// The longest id of a topic, in bytes. The id of a source may have 40 more.
const MAX_ID_BYTES: usize = 128;
/// The number of digits of a sequence number in a key.
const SEQUENCE_DIGITS: usize = 16;

/// A topic's id. Unlike a topic's name, it is never reused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TopicId(String);

impl TopicId {
    /// Accepts letters, digits, `-` and `_`.
    pub fn new(id: &str) -> Result<TopicId> {
        let valid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if id.is_empty() || id.len() > MAX_ID_BYTES || !id.bytes().all(valid) {
            let reason = "it has 1 to 128 letters, digits, '-' or '_'";
            return Err(Error::InvalidName { what: "a topic's id", name: id.to_owned(), reason });
        }
        Ok(TopicId(id.to_owned()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for TopicId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The source of events: the outbox of a bucket (its id), the replay outbox of a dead-letter queue, or the dead letters of
/// a shard.
///
/// An outbox record always belongs to the same source. An event id that is missing from a complete reading of a source
/// never appears in that source again.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SourceId(String);

impl SourceId {
    /// Accepts printable ASCII without spaces.
    pub fn new(id: &str) -> Result<SourceId> {
        if id.is_empty() || id.len() > MAX_ID_BYTES + 40 || !id.bytes().all(|byte| byte.is_ascii_graphic()) {
            let reason = "it has 1 to 168 printable characters";
            return Err(Error::InvalidName { what: "a source", name: id.to_owned(), reason });
        }
        Ok(SourceId(id.to_owned()))
    }

    /// The replay outbox of a topic's dead-letter queue.
    pub fn replay(topic: &TopicId) -> SourceId {
        SourceId(format!("replay.{topic}"))
    }

    /// The dead letters that a shard moves to the dead-letter queue.
    pub fn dead(topic: &TopicId, generation: u64, shard: u32) -> SourceId {
        SourceId(format!("dead.{topic}.{generation}.{shard}"))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The hash of an object's key within its bucket. It determines the shard. Events of keys with the same hash are delivered
/// in one order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KeyHash(pub u32);

impl KeyHash {
    /// `ceph_str_hash_rjenkins` of `BUCKET:KEY`.
    pub fn new(bucket: &str, key: &str) -> KeyHash {
        KeyHash(ceph_str_hash_rjenkins(format!("{bucket}:{key}").as_bytes()))
    }

    /// The shard of this hash among `shards`, which must not be 0.
    pub fn shard(self, shards: u32) -> u32 {
        self.0 % shards.max(1)
    }
}

/// The visible object of a shard: `TENANT:TOPIC` for shard 0, `TENANT:TOPIC.N` for shard N.
///
/// Topic names have no dots, so names of different topics never coincide.
pub fn queue_object(tenant: &str, topic: &str, shard: u32) -> ObjectKey {
    let name = if shard == 0 { format!("{tenant}:{topic}") } else { format!("{tenant}:{topic}.{shard}") };
    ObjectKey { namespace: QUEUE_NAMESPACE, name }
}

/// The object of a shard of a closed or hidden generation.
pub fn closed_object(topic: &TopicId, generation: u64, shard: u32) -> ObjectKey {
    ObjectKey { namespace: CLOSED_NAMESPACE, name: format!("{topic}.{generation}.{shard}") }
}

/// The object of a spill segment. The owner's epoch makes the names of different owners' segments distinct.
pub fn segment_object(topic: &TopicId, generation: u64, shard: u32, first: u64, epoch: u64) -> ObjectKey {
    ObjectKey {
        namespace: SPILL_NAMESPACE,
        name: format!("{topic}.{generation}.{shard}.{first:016x}.{epoch}"),
    }
}

/// The object of a topic's dead-letter queue.
pub fn dead_letter_object(topic: &TopicId) -> ObjectKey {
    ObjectKey { namespace: DEAD_LETTER_NAMESPACE, name: topic.to_string() }
}

/// Returns the topic that an object in [`CLOSED_NAMESPACE`], [`SPILL_NAMESPACE`] or [`DEAD_LETTER_NAMESPACE`] belongs to. A
/// sweep finds objects without a topic by it.
pub fn topic_of(object: &ObjectKey) -> Option<TopicId> {
    if object.namespace == QUEUE_NAMESPACE {
        return None;
    }
    TopicId::new(object.name.split('.').next()?).ok()
}

/// The kinds of records in a shard's omap, by the first byte of their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueRecordKind {
    /// `d`: a dead letter on its way to the dead-letter queue.
    Dead,
    /// `e`: a batch of events, keyed by the sequence number of the first one.
    Batch,
    /// `l`: a dead letter in the dead-letter queue.
    Letter,
    /// `o`: a dead letter to be replayed.
    Replay,
    /// `r`: a parked event.
    Parked,
    /// `s`: the manifest of a spill segment, keyed by the sequence number of its first event.
    Segment,
}

impl QueueRecordKind {
    /// The prefix of the keys.
    pub fn prefix(self) -> &'static str {
        match self {
            QueueRecordKind::Dead => "d",
            QueueRecordKind::Batch => "e",
            QueueRecordKind::Letter => "l",
            QueueRecordKind::Replay => "o",
            QueueRecordKind::Parked => "r",
            QueueRecordKind::Segment => "s",
        }
    }

    /// The key of a record: the prefix and 16 hexadecimal digits, which sort like the numbers.
    pub fn key(self, sequence: u64) -> Bytes {
        format!("{}{sequence:0SEQUENCE_DIGITS$x}", self.prefix()).into()
    }

    /// The sequence number in a key of this kind.
    pub fn sequence(self, key: &[u8]) -> Option<u64> {
        let digits = std::str::from_utf8(key).ok()?.strip_prefix(self.prefix())?;
        if digits.len() != SEQUENCE_DIGITS {
            return None;
        }
        u64::from_str_radix(digits, 16).ok()
    }
}

/// The prefix of the keys of receipts.
pub const RECEIPTS_PREFIX: &str = "w";

/// The key of the receipts of a source.
pub fn receipts_key(source: &SourceId) -> Bytes {
    format!("{RECEIPTS_PREFIX}{}", source.as_str()).into()
}

/// The source in a key of receipts.
pub fn receipts_source(key: &[u8]) -> Option<SourceId> {
    SourceId::new(std::str::from_utf8(key).ok()?.strip_prefix(RECEIPTS_PREFIX)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_named_as_rados_ls_prints_them() {
        let names: Vec<_> = (0..3).map(|shard| queue_object("", "fishtopic", shard).name).collect();
        assert_eq!(names, [":fishtopic", ":fishtopic.1", ":fishtopic.2"]);
        assert_eq!(queue_object("acme", "t", 10).name, "acme:t.10");
    }

    #[test]
    fn keys_sort_as_their_sequences_and_have_no_nul() {
        let mut last = Bytes::new();
        for sequence in [0, 1, 9, 10, 255, 256, u64::from(u32::MAX), u64::MAX] {
            let key = QueueRecordKind::Batch.key(sequence);
            assert!(key > last && !key.contains(&0));
            assert_eq!(QueueRecordKind::Batch.sequence(&key), Some(sequence));
            assert_eq!(QueueRecordKind::Parked.sequence(&key), None);
            last = key;
        }
        assert_eq!(QueueRecordKind::Batch.sequence(b"e12"), None);
    }

    #[test]
    fn ids_that_would_break_keys_or_names_are_refused() {
        for bad in ["", "a.b", "a b", "a\0b", "a:b", &"x".repeat(129)] {
            assert!(TopicId::new(bad).is_err(), "{bad:?}");
        }
        for bad in ["", "a b", "a\0b", "ä"] {
            assert!(SourceId::new(bad).is_err(), "{bad:?}");
        }
        let source = SourceId::new("bucket.0123").expect("valid");
        assert_eq!(receipts_source(&receipts_key(&source)), Some(source));
    }

    #[test]
    fn hidden_objects_tell_their_topic() {
        let topic = TopicId::new("00ff").expect("valid");
        for object in
            [closed_object(&topic, 3, 10), segment_object(&topic, 3, 10, 77, 5), dead_letter_object(&topic)]
        {
            assert_eq!(topic_of(&object), Some(topic.clone()), "{object}");
        }
        assert_eq!(topic_of(&queue_object("", "t", 0)), None);
    }

    /// The assignment is part of the format: another release must find a key in the same shard.
    #[test]
    fn a_key_is_assigned_by_the_hash_of_bucket_and_key() {
        let hash = KeyHash::new("bucket", "key");
        assert_eq!(hash.0, ceph_str_hash_rjenkins(b"bucket:key"));
        assert!((1..200).all(|shards| hash.shard(shards) == hash.0 % shards));
    }
}
