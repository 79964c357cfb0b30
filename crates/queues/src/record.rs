//! The records of queues in RADOS: attributes and omap values, each a structure in a versioned envelope
//! (docs/format/queues.md).

use crate::error::{Error, Result};
use crate::name::{KeyHash, TopicId};
use bytes::Bytes;
use nacre_types::encoding::{self, Versioned};
use serde::{Deserialize, Serialize};

/// The attribute that identifies the queue that an object belongs to ([`ShardIdentity`]).
pub const ID: &str = "rgw.queue.id";
/// The attribute that tells whether the shard accepts events: [`OPEN`] or [`CLOSED`].
pub const STATE: &str = "rgw.queue.state";
/// The attribute with the counters of enqueued events ([`QueueTail`]).
pub const TAIL: &str = "rgw.queue.tail";
/// The attribute with the counters of settled events ([`QueueHead`]).
pub const HEAD: &str = "rgw.queue.head";
/// The attribute that names the owner ([`Owner`]).
pub const OWNER: &str = "rgw.queue.owner";
/// The attribute of a copy of a shard ([`CopyState`]).
pub const COPY: &str = "rgw.queue.copy";
/// The attribute of an object that is reserved for a shard: the token of the gateway that reserved it. Empty or absent in a
/// shard.
pub const RESERVED: &str = "rgw.queue.reserved";
/// The attribute of a dead-letter queue ([`DeadLetterQueue`](crate::dead_letters::DeadLetterQueue)).
pub const LETTERS: &str = "rgw.queue.letters";

/// The value of [`STATE`] of a shard that accepts events.
pub const OPEN: &[u8] = b"open";
/// The value of [`STATE`] of a shard of a closed generation.
pub const CLOSED: &[u8] = b"closed";

/// The largest event, in bytes.
pub const MAX_EVENT_BYTES: usize = 256 << 10;
/// The longest id of an event, in bytes.
pub const MAX_EVENT_ID_BYTES: usize = 64;
/// The longest text about a failure that is stored, in bytes.
const MAX_DETAIL_BYTES: usize = 512;

/// An event's id within its source. It is never used for another event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EventId(Bytes);

impl EventId {
    /// Accepts 1 to 64 bytes: the operation's tag, followed by the configuration's number if the operation has several
    /// events.
    pub fn new(id: impl Into<Bytes>) -> Result<EventId> {
        let id = id.into();
        if id.is_empty() || id.len() > MAX_EVENT_ID_BYTES {
            let name = String::from_utf8_lossy(&id).into_owned();
            return Err(Error::InvalidName { what: "an event's id", name, reason: "it has 1 to 64 bytes" });
        }
        Ok(EventId(id))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// An event in a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The hash of its bucket and key.
    pub key: KeyHash,
    /// When the operation took place, in nanoseconds since 1970. The time to live starts at this time.
    pub time_ns: u64,
    /// Whether it was replayed from the dead-letter queue.
    pub replayed: bool,
    /// The event record, which queues do not interpret.
    pub payload: Bytes,
}

impl Event {
    /// Its contribution to a queue's size.
    pub fn size_bytes(&self) -> u64 {
        self.payload.len() as u64
    }

    /// Fails if the event exceeds the size limit of queues.
    pub fn check(&self) -> Result<()> {
        if self.payload.len() > MAX_EVENT_BYTES {
            return Err(Error::TooLarge { bytes: self.payload.len(), limit: MAX_EVENT_BYTES });
        }
        Ok(())
    }
}

/// [`ID`]: the queue that an object belongs to. Every operation on the object compares it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardIdentity {
    /// The topic.
    pub topic: TopicId,
    /// The generation of its queue.
    pub generation: u64,
    /// The shard.
    pub shard: u32,
    /// The number of shards of this generation.
    pub shards: u32,
}

impl Versioned for ShardIdentity {
    const NAME: &'static str = "queue identity";
}

/// [`TAIL`]: counters of all events ever enqueued. Every change of a record that enqueues read or write raises `revision`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueTail {
    /// The number of operations that changed the tail or receipts.
    pub revision: u64,
    /// The sequence number of the next event.
    pub next: u64,
    /// The bytes of all events ever enqueued.
    pub bytes: u64,
}

impl Versioned for QueueTail {
    const NAME: &'static str = "queue tail";
}

/// [`HEAD`]: counters of all events ever settled.
///
/// An event is *settled* when the log is no longer needed for it: it was delivered, dropped, parked, or became a dead
/// letter. It is *removed* when it no longer counts: it was delivered, dropped, or became a dead letter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueHead {
    /// All events below this sequence number are settled.
    pub cursor: u64,
    /// Settled events above the cursor: ranges of first sequence number and length, in ascending order. They touch neither
    /// each other nor the cursor.
    pub settled: Vec<(u64, u64)>,
    /// The number of removed events.
    pub removed: u64,
    /// The bytes of the removed events.
    pub removed_bytes: u64,
    /// The bytes of the events in batches that were removed from this object, because they were settled or spilled.
    pub left_bytes: u64,
    /// The number of the next dead letter.
    pub next_dead: u64,
    /// The number of removed events that were dropped to make room.
    pub dropped: u64,
}

impl Versioned for QueueHead {
    const NAME: &'static str = "queue head";
}

impl QueueHead {
    /// Whether an event is settled.
    pub fn is_settled(&self, sequence: u64) -> bool {
        let behind = self.settled.partition_point(|(first, _)| *first <= sequence);
        let in_range = |(first, len): &(u64, u64)| sequence - first < *len;
        sequence < self.cursor || behind.checked_sub(1).is_some_and(|at| in_range(&self.settled[at]))
    }

    /// Marks an event as settled; returns whether it was not settled before.
    pub fn settle(&mut self, sequence: u64) -> bool {
        if self.is_settled(sequence) {
            return false;
        }
        let at = self.settled.partition_point(|(first, _)| *first <= sequence);
        self.settled.insert(at, (sequence, 1));
        // Merges the new range with the next one, then with the previous one.
        for at in [at, at.wrapping_sub(1)] {
            if let (Some(&(first, len)), Some(&(next, more))) =
                (self.settled.get(at), self.settled.get(at.wrapping_add(1)))
                && first + len == next
            {
                self.settled[at].1 = len + more;
                self.settled.remove(at + 1);
            }
        }
        while let Some(&(first, len)) = self.settled.first()
            && first <= self.cursor
        {
            self.cursor = self.cursor.max(first + len);
            self.settled.remove(0);
        }
        true
    }

    /// Whether the ranges satisfy the conditions of [`QueueHead::settled`].
    fn is_sound(&self) -> bool {
        let mut end = self.cursor;
        self.settled.iter().all(|&(first, len)| {
            let apart = first > end && len > 0;
            match first.checked_add(len) {
                Some(sum) if apart => {
                    end = sum;
                    true
                }
                _ => false,
            }
        })
    }
}

/// [`OWNER`]: the gateway that may settle events. It is kept when the lease ends: the next owner uses the next epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Raised whenever the lease is taken.
    pub epoch: u64,
    /// The owner's RADOS session (`client.NUMBER`); 0 before the first owner.
    pub client: u64,
}

impl Versioned for Owner {
    const NAME: &'static str = "queue owner";
}

/// [`COPY`]: the state of a copy of a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyState {
    /// The epoch of the shard's owner that makes the copy.
    pub epoch: u64,
    /// Whether it is complete.
    pub is_complete: bool,
}

impl Versioned for CopyState {
    const NAME: &'static str = "queue copy";
}

/// A batch of consecutive events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// The events. The sequence number in the key belongs to the first one.
    pub events: Vec<Event>,
}

impl Versioned for Batch {
    const NAME: &'static str = "queue batch";
}

impl Batch {
    /// The sum of the events' sizes.
    pub fn size_bytes(&self) -> u64 {
        self.events.iter().map(Event::size_bytes).sum()
    }
}

/// Events of a source that a queue already had and whose outbox records may still exist.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipts {
    /// Their ids, ascending.
    pub ids: Vec<EventId>,
}

impl Versioned for Receipts {
    const NAME: &'static str = "queue receipts";
}

/// The manifest of a spill segment: an object with batches of consecutive events in its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentManifest {
    /// The sequence number after its last event.
    pub end: u64,
    /// The epoch in its name.
    pub epoch: u64,
    /// The bytes of its events.
    pub bytes: u64,
    /// The time of its first event, in nanoseconds since 1970.
    pub time_ns: u64,
}

impl Versioned for SegmentManifest {
    const NAME: &'static str = "queue segment";
}

/// The data of a spill segment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentData {
    /// The batches, with the sequence number of the first event of each.
    pub batches: Vec<(u64, Batch)>,
}

impl Versioned for SegmentData {
    const NAME: &'static str = "queue segment data";
}

/// An event that waits outside of the log, so that others can overtake it, because it or an earlier event of its key
/// failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParkedEvent {
    /// The event.
    pub event: Event,
    /// The number of failed attempts.
    pub attempts: u32,
    /// When it may be retried, in nanoseconds since 1970; 0 for immediately.
    pub next_ns: u64,
    /// The failure of the last attempt.
    pub detail: String,
}

impl Versioned for ParkedEvent {
    const NAME: &'static str = "parked event";
}

/// Why an event became a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeadReason {
    /// Its time to live ended.
    Expired,
    /// The maximum number of attempts failed.
    Retries,
}

impl DeadReason {
    /// The name that operators see.
    pub fn as_str(self) -> &'static str {
        match self {
            DeadReason::Expired => "time_to_live",
            DeadReason::Retries => "max_retries",
        }
    }
}

/// An event that will not be delivered, unless it is replayed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// The event.
    pub event: Event,
    /// The reason.
    pub reason: DeadReason,
    /// The number of failed attempts.
    pub attempts: u32,
    /// The failure of the last attempt; empty if there was none.
    pub detail: String,
    /// When it became a dead letter, in nanoseconds since 1970.
    pub dead_ns: u64,
}

impl Versioned for DeadLetter {
    const NAME: &'static str = "dead letter";
}

/// A text about a failure, truncated to the length that is stored.
pub fn clip_detail(detail: &str) -> String {
    let end = detail.floor_char_boundary(MAX_DETAIL_BYTES.min(detail.len()));
    detail[..end].to_owned()
}

/// Encodes the structure in its envelope.
pub fn encode<T: Versioned>(value: &T) -> Bytes {
    Bytes::from(encoding::encode(value))
}

/// Decodes a value that `object` holds.
pub fn decode<T: Versioned>(object: &impl std::fmt::Display, bytes: &[u8]) -> Result<T> {
    encoding::decode(bytes).map_err(|source| Error::Corrupt { object: object.to_string(), source })
}

/// Decodes a head and checks its ranges.
pub(crate) fn decode_head(object: &impl std::fmt::Display, bytes: &[u8]) -> Result<QueueHead> {
    let head: QueueHead = decode(object, bytes)?;
    if head.is_sound() {
        return Ok(head);
    }
    Err(crate::error::corrupt(object, QueueHead::NAME, "the settled ranges overlap"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Settles the numbers in this order, and compares with a plain set after each one.
    fn check(order: &[u64]) {
        let mut head = QueueHead::default();
        let mut model = std::collections::BTreeSet::new();
        for &sequence in order {
            assert_eq!(head.settle(sequence), model.insert(sequence), "{order:?} at {sequence}");
            let cursor = (0..).find(|n| !model.contains(n)).expect("the model is finite");
            assert_eq!(head.cursor, cursor, "{order:?} at {sequence}");
            assert!(head.is_sound(), "{order:?} at {sequence}: {head:?}");
            for n in 0..12 {
                assert_eq!(head.is_settled(n), model.contains(&n), "{order:?}: {n} in {head:?}");
            }
            let neighbours = head.settled.windows(2).any(|pair| pair[0].0 + pair[0].1 >= pair[1].0);
            assert!(!neighbours, "{head:?} has ranges that touch");
        }
    }

    #[test]
    fn settled_events_are_exactly_those_that_were_noted() {
        check(&[0, 1, 2, 3]);
        check(&[3, 2, 1, 0]);
        check(&[1, 3, 5, 7, 0, 2, 4, 6]);
        check(&[5, 3, 4, 0, 9, 8, 1, 2, 6, 7]);
        check(&[2, 2, 0, 0, 1, 1, 1]);
        check(&[10, 8, 9, 1, 0]);
    }

    #[test]
    fn ranges_that_overlap_are_damage() {
        for settled in [vec![(5, 0)], vec![(3, 2)], vec![(5, 2), (6, 1)], vec![(5, u64::MAX)]] {
            let head = QueueHead { cursor: 3, settled, ..QueueHead::default() };
            assert!(decode_head(&"q", &encode(&head)).is_err(), "{head:?}");
        }
        let head = QueueHead { cursor: 3, settled: vec![(5, 2), (8, 1)], ..QueueHead::default() };
        assert_eq!(decode_head(&"q", &encode(&head)), Ok(head));
    }

    #[test]
    fn details_are_cut_between_characters() {
        let long = "ä".repeat(MAX_DETAIL_BYTES);
        let cut = clip_detail(&long);
        assert!(cut.len() <= MAX_DETAIL_BYTES && cut.len() > MAX_DETAIL_BYTES - 2);
        assert_eq!(clip_detail("short"), "short");
    }
}
