//! Dead-letter queues: one object for each topic, independent of the generations of its queue.
//!
//! An event becomes a dead letter in one operation on its shard, which removes it from the queue and records it beside the
//! log ([`crate::settle`]). From there it is moved to the dead-letter queue by the same protocol as outbox records
//! ([`crate::enqueue`]): the operation that adds the letter also adds a receipt, a receipt is removed once the shard's
//! record is gone, and every operation compares the attribute [`LETTERS`], whose revision rises. So a letter that was
//! purged or replayed in the meantime does not reappear.
//!
//! Replaying uses the same protocol in the other direction: one operation turns a letter into an outbox record of this
//! object, and movers enqueue it into the topic's queue as an event that is marked as replayed.
//!
//! The queue is bounded: the oldest letters are dropped and counted.

use crate::enqueue::{EnqueuedRecords, OutboxEvent, OutboxPage};
use crate::error::{Result, corrupt};
use crate::name::{self, QueueRecordKind, SourceId, TopicId};
use crate::op::{ObjectKey, ObjectOp, ObjectRead, ObjectReply};
use crate::record::{self, DeadLetter, Event, EventId, LETTERS, Receipts};
use crate::settle::{MAX_SETTLED_BYTES, dead_letter_id};
use crate::shard::{ReceiptsBySource, Shard, Stored};
use bytes::Bytes;
use nacre_types::encoding::Versioned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The most letters that one operation adds. It adds up to [`MAX_SETTLED_BYTES`], or a single letter. Pages for purging and
/// replaying are not larger.
pub const MAX_LETTERS_PER_OP: usize = 256;

/// [`LETTERS`]: the counters of a dead-letter queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetterCounters {
    /// The number of operations on the queue.
    pub revision: u64,
    /// The sequence number of the next letter.
    pub next: u64,
    /// The number of letters.
    pub entries: u64,
    /// The bytes of their events.
    pub bytes: u64,
    /// Letters that were dropped to make room.
    pub dropped: u64,
    /// The number of the next letter to be replayed.
    pub next_replay: u64,
}

impl Versioned for DeadLetterCounters {
    const NAME: &'static str = "dead-letter queue";
}

/// The bounds of a dead-letter queue. A single letter is always accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadLetterLimit {
    /// The most letters.
    pub entries: u64,
    /// The most bytes of their events.
    pub bytes: u64,
}

/// A dead-letter queue, as it was read or as an operation changed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterQueue {
    /// Its object.
    pub object: ObjectKey,
    /// Its counters.
    pub counters: Stored<DeadLetterCounters>,
    /// The receipts of the sources that were read.
    pub receipts: ReceiptsBySource,
}

/// A dead letter with its sequence number in the queue.
pub type NumberedLetter = (u64, DeadLetter);

/// A mover's reading of the dead letters beside the log of one shard. They were read after the dead-letter queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterPage {
    /// The shard's source ([`SourceId::dead`]).
    pub source: SourceId,
    /// The queue's revision before the reading.
    pub revision: u64,
    /// Letters with their numbers in the shard, starting with the first one.
    pub letters: Vec<(u64, DeadLetter)>,
    /// Whether the shard has no other letters.
    pub is_complete: bool,
}

/// The result of planning to add letters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddLettersResult {
    /// This operation is to be executed.
    Write(Box<AddLettersPlan>),
    /// The queue already has all letters.
    Nothing(EnqueuedRecords),
    /// The page was read before the queue, or the source's receipts were not read.
    Stale,
    /// Letters must be dropped: read at least this many of the oldest ones together with the queue, and plan again.
    NeedsOldest(u64),
}

/// An operation that adds letters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddLettersPlan {
    /// The operation. ECANCELED means that the queue changed: read the queue again, then the shard.
    pub op: ObjectOp,
    /// The queue after the operation.
    pub after: DeadLetterQueue,
    /// The letters that are in the queue after the operation.
    pub moved: EnqueuedRecords,
}

/// Creates the dead-letter queue of a topic; fails with EEXIST if it exists.
pub fn create(topic: &TopicId) -> ObjectOp {
    let counters = record::encode(&DeadLetterCounters::default());
    ObjectOp::create(&name::dead_letter_object(topic)).set_xattr(LETTERS, &counters)
}

/// Reads a dead-letter queue: its counters and the receipts of a source.
pub fn read(topic: &TopicId, source: &SourceId) -> ObjectRead {
    ObjectRead::keys(&name::dead_letter_object(topic), vec![name::receipts_key(source)])
}

/// Reads the counters, and the letters after a sequence number.
pub fn read_letters(topic: &TopicId, kind: LetterKind, after: Option<u64>, max: u64) -> ObjectRead {
    let kind = kind.key();
    let after = after.map(|sequence| kind.key(sequence)).unwrap_or_default();
    ObjectRead::page(&name::dead_letter_object(topic), after, kind.prefix(), max)
}

/// The two kinds of letters in a dead-letter queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LetterKind {
    /// Letters that stay in the queue.
    Kept,
    /// Letters to be replayed.
    Replayed,
}

impl LetterKind {
    fn key(self) -> QueueRecordKind {
        match self {
            LetterKind::Kept => QueueRecordKind::Letter,
            LetterKind::Replayed => QueueRecordKind::Replay,
        }
    }
}

impl DeadLetterQueue {
    /// Interprets a reply; `sources` are those whose receipts were read.
    pub fn from_reply(topic: &TopicId, sources: &[SourceId], reply: &ObjectReply) -> Result<DeadLetterQueue> {
        let object = name::dead_letter_object(topic);
        let raw = reply.xattrs.get(LETTERS).cloned();
        let raw =
            raw.ok_or_else(|| corrupt(&object, DeadLetterCounters::NAME, "the attribute is missing"))?;
        let counters = Stored { value: record::decode(&object, &raw)?, raw };
        let mut receipts = ReceiptsBySource::new();
        for source in sources {
            let ids = match reply.values.get(&name::receipts_key(source)) {
                Some(bytes) => record::decode::<Receipts>(&object, bytes)?.ids,
                None => Vec::new(),
            };
            receipts.insert(source.clone(), ids.into_iter().collect());
        }
        Ok(DeadLetterQueue { object, counters, receipts })
    }

    /// Decodes the letters of a page, with their sequence numbers.
    pub fn letters(&self, kind: LetterKind, page: &[(Bytes, Bytes)]) -> Result<Vec<NumberedLetter>> {
        let parse = |(key, value): &(Bytes, Bytes)| {
            let sequence = kind.key().sequence(key);
            let sequence = sequence
                .ok_or_else(|| corrupt(&self.object, DeadLetterCounters::NAME, "a key has no number"))?;
            Ok((sequence, record::decode(&self.object, value)?))
        };
        page.iter().map(parse).collect()
    }

    /// Plans to add letters of a shard. `oldest` contains the first letters of the queue, from the same read; it may be
    /// empty as long as there is room.
    pub fn add(
        &self,
        page: DeadLetterPage,
        limit: DeadLetterLimit,
        oldest: &[NumberedLetter],
    ) -> AddLettersResult {
        let DeadLetterPage { source, revision, mut letters, is_complete } = page;
        let Some(had) = self.receipts.get(&source).filter(|_| revision == self.counters.value.revision)
        else {
            return AddLettersResult::Stale;
        };
        let fitting = fitting(&letters);
        let is_complete = is_complete && letters.len() == fitting;
        letters.truncate(fitting);
        let numbers: BTreeSet<EventId> = letters.iter().map(|(number, _)| dead_letter_id(*number)).collect();
        let covered = Covered::new(&letters, is_complete);
        let is_gone = |id: &EventId| covered.has(id) && !numbers.contains(id);
        let mut kept: BTreeSet<EventId> = had.iter().filter(|id| !is_gone(id)).cloned().collect();
        let mut counters = self.counters.value;
        let mut set = Vec::new();
        for (number, letter) in letters {
            if kept.insert(dead_letter_id(number)) {
                set.push((QueueRecordKind::Letter.key(counters.next), record::encode(&letter)));
                counters.next += 1;
                counters.entries += 1;
                counters.bytes += letter.event.size_bytes();
            }
        }
        let moved = EnqueuedRecords { source: source.clone(), ids: numbers.into_iter().collect() };
        if set.is_empty() && kept == *had {
            return AddLettersResult::Nothing(moved);
        }
        let added = set.len() as u64;
        let mut remove = Vec::new();
        let mut oldest = oldest.iter();
        while counters.entries > limit.entries.max(added) || counters.bytes > limit.bytes {
            let Some((sequence, letter)) = oldest.next() else { break };
            remove.push(QueueRecordKind::Letter.key(*sequence));
            counters.entries = counters.entries.saturating_sub(1);
            counters.bytes = counters.bytes.saturating_sub(letter.event.size_bytes());
            counters.dropped += 1;
        }
        // All remaining letters are added by this operation, once all others were dropped.
        let others = counters.entries.saturating_sub(added);
        if others > 0 && (counters.entries > limit.entries || counters.bytes > limit.bytes) {
            return AddLettersResult::NeedsOldest(
                self.counters.value.entries.min(added + remove.len() as u64 * 2),
            );
        }
        let receipts = (name::receipts_key(&source), Receipts { ids: kept.iter().cloned().collect() });
        if kept.is_empty() {
            remove.push(receipts.0);
        } else {
            set.push((receipts.0, record::encode(&receipts.1)));
        }
        let (op, mut after) = self.change(counters);
        after.receipts.insert(source, kept);
        AddLettersResult::Write(Box::new(AddLettersPlan {
            op: op.omap_set(set).omap_remove(remove),
            after,
            moved,
        }))
    }

    /// Removes letters permanently.
    pub fn purge(&self, letters: &[NumberedLetter]) -> (ObjectOp, DeadLetterQueue) {
        let (counters, keys) = self.without(letters);
        let (op, after) = self.change(counters);
        (op.omap_remove(keys), after)
    }

    /// Turns letters into outbox records of this object. Their time to live starts at `now_ns`, in nanoseconds since 1970.
    pub fn replay(&self, letters: &[NumberedLetter], now_ns: u64) -> (ObjectOp, DeadLetterQueue) {
        let (mut counters, keys) = self.without(letters);
        let mut set = Vec::with_capacity(letters.len());
        for (_, letter) in letters {
            let event = Event { time_ns: now_ns, replayed: true, ..letter.event.clone() };
            let letter = DeadLetter { event, ..letter.clone() };
            set.push((QueueRecordKind::Replay.key(counters.next_replay), record::encode(&letter)));
            counters.next_replay += 1;
        }
        let (op, after) = self.change(counters);
        (op.omap_set(set).omap_remove(keys), after)
    }

    /// The counters without these letters, and the letters' keys.
    fn without(&self, letters: &[NumberedLetter]) -> (DeadLetterCounters, Vec<Bytes>) {
        let mut counters = self.counters.value;
        let bytes: u64 = letters.iter().map(|(_, letter)| letter.event.size_bytes()).sum();
        counters.entries = counters.entries.saturating_sub(letters.len() as u64);
        counters.bytes = counters.bytes.saturating_sub(bytes);
        (counters, letters.iter().map(|(sequence, _)| QueueRecordKind::Letter.key(*sequence)).collect())
    }

    fn change(&self, counters: DeadLetterCounters) -> (ObjectOp, DeadLetterQueue) {
        let revision = self.counters.value.revision + 1;
        let counters = Stored::new(DeadLetterCounters { revision, ..counters });
        let op = ObjectOp::on(&self.object).if_xattr(LETTERS, &self.counters.raw);
        (op.set_xattr(LETTERS, &counters.raw), DeadLetterQueue { counters, ..self.clone() })
    }
}

/// The number of these letters that fit into one operation.
fn fitting(letters: &[NumberedLetter]) -> usize {
    let mut bytes = 0;
    let fits = |(_, letter): &&NumberedLetter| {
        bytes += letter.event.size_bytes();
        bytes <= MAX_SETTLED_BYTES
    };
    letters.iter().take(MAX_LETTERS_PER_OP).take_while(fits).count().max(1).min(letters.len())
}

/// The range of numbers that a page covers completely; the page starts with the first letter.
#[derive(Clone, Copy, Debug)]
struct Covered(Option<u64>);

impl Covered {
    fn new(letters: &[NumberedLetter], is_complete: bool) -> Covered {
        Covered(if is_complete { Some(u64::MAX) } else { letters.last().map(|(number, _)| *number) })
    }

    fn has(self, id: &EventId) -> bool {
        self.0.is_some_and(|last| letter_number(id).is_some_and(|number| number <= last))
    }
}

/// The letters to be replayed into one shard of the queue, as a page of an outbox. `letters` start with the first existing
/// one. They were read after the shard, which was read with the receipts of [`SourceId::replay`].
pub fn replay_page(
    topic: &TopicId,
    letters: &[NumberedLetter],
    shard: &Shard,
    is_complete: bool,
    belongs: impl Fn(&Event) -> bool,
) -> OutboxPage {
    let source = SourceId::replay(topic);
    let events = letters.iter().filter(|(_, letter)| belongs(&letter.event));
    let event = |(number, letter): &NumberedLetter| OutboxEvent {
        id: dead_letter_id(*number),
        event: letter.event.clone(),
    };
    let events: Vec<OutboxEvent> = events.map(event).collect();
    let present: BTreeSet<&EventId> = events.iter().map(|outbox| &outbox.id).collect();
    let covered = Covered::new(letters, is_complete);
    let receipts = shard.receipts.get(&source).into_iter().flatten();
    let gone = receipts.filter(|id| covered.has(id) && !present.contains(id)).cloned().collect();
    OutboxPage { source, basis: shard.basis(), events, gone, is_complete }
}

/// The number in an id that [`dead_letter_id`] created.
pub fn letter_number(id: &EventId) -> Option<u64> {
    Some(u64::from_be_bytes(id.as_bytes().try_into().ok()?))
}

/// Removes the outbox records of replayed letters that are in the queue.
pub fn remove_replayed(topic: &TopicId, numbers: &[u64]) -> ObjectOp {
    let keys = numbers.iter().map(|number| QueueRecordKind::Replay.key(*number)).collect();
    ObjectOp::on(&name::dead_letter_object(topic)).omap_remove(keys)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::KeyHash;
    use crate::record::{DeadReason, Owner, QueueHead, QueueTail, ShardIdentity};

    const LIMIT: DeadLetterLimit = DeadLetterLimit { entries: 4, bytes: 1000 };

    fn topic() -> TopicId {
        TopicId::new("t").expect("valid")
    }

    fn source() -> SourceId {
        SourceId::dead(&topic(), 1, 0)
    }

    fn letter(text: &'static str) -> DeadLetter {
        let event = Event {
            key: KeyHash(1),
            time_ns: 5,
            replayed: false,
            payload: Bytes::from_static(text.as_bytes()),
        };
        DeadLetter { event, reason: DeadReason::Retries, attempts: 3, detail: "refused".into(), dead_ns: 9 }
    }

    fn empty() -> DeadLetterQueue {
        let counters = Stored::new(DeadLetterCounters::default());
        let receipts = ReceiptsBySource::from([(source(), BTreeSet::new())]);
        DeadLetterQueue { object: name::dead_letter_object(&topic()), counters, receipts }
    }

    /// A shard that has enqueued the replays 0 and 9.
    fn shard() -> Shard {
        let id = ShardIdentity { topic: topic(), generation: 1, shard: 0, shards: 1 };
        let receipts = BTreeSet::from([dead_letter_id(0), dead_letter_id(9)]);
        Shard {
            object: name::queue_object("", "t", 0),
            id: Stored::new(id),
            is_open: true,
            tail: Stored::new(QueueTail::default()),
            head: Stored::new(QueueHead::default()),
            owner: Stored::new(Owner::default()),
            receipts: ReceiptsBySource::from([(SourceId::replay(&topic()), receipts)]),
        }
    }

    fn page(queue: &DeadLetterQueue, numbers: &[u64]) -> DeadLetterPage {
        let letters = numbers.iter().map(|number| (*number, letter("1234567890"))).collect();
        DeadLetterPage {
            source: source(),
            revision: queue.counters.value.revision,
            letters,
            is_complete: true,
        }
    }

    fn add(queue: &DeadLetterQueue, numbers: &[u64], oldest: &[NumberedLetter]) -> DeadLetterQueue {
        match queue.add(page(queue, numbers), LIMIT, oldest) {
            AddLettersResult::Write(plan) => plan.after,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_letter_is_added_once_although_it_was_purged() {
        let queue = add(&empty(), &[0, 1], &[]);
        assert_eq!((queue.counters.value.entries, queue.counters.value.bytes), (2, 20));
        let (_, queue) = queue.purge(&[(0, letter("1234567890")), (1, letter("1234567890"))]);
        assert_eq!((queue.counters.value.entries, queue.counters.value.bytes), (0, 0));
        assert!(matches!(queue.add(page(&queue, &[0, 1]), LIMIT, &[]), AddLettersResult::Nothing(_)));
        // Once the shard has removed the first letter, the queue removes its receipt.
        let queue = add(&queue, &[1, 2], &[]);
        assert_eq!(queue.counters.value.entries, 1);
        assert_eq!(queue.receipts[&source()], BTreeSet::from([dead_letter_id(1), dead_letter_id(2)]));
    }

    #[test]
    fn receipts_of_letters_before_a_page_go() {
        let queue = add(&empty(), &[0, 1, 2], &[]);
        let part = DeadLetterPage { is_complete: false, ..page(&queue, &[2, 3]) };
        let AddLettersResult::Write(plan) = queue.add(part, LIMIT, &[]) else {
            panic!("there is one to add")
        };
        assert_eq!(plan.after.receipts[&source()], BTreeSet::from([dead_letter_id(2), dead_letter_id(3)]));
    }

    #[test]
    fn a_page_that_was_read_before_the_queue_is_refused() {
        let first = page(&empty(), &[0]);
        let queue = add(&empty(), &[0], &[]);
        assert_eq!(queue.add(first, LIMIT, &[]), AddLettersResult::Stale);
        let unread = DeadLetterQueue { receipts: ReceiptsBySource::new(), ..empty() };
        assert_eq!(unread.add(page(&unread, &[0]), LIMIT, &[]), AddLettersResult::Stale);
    }

    #[test]
    fn the_oldest_letters_are_dropped_and_counted() {
        let queue = add(&empty(), &[0, 1, 2, 3], &[]);
        assert_eq!(queue.add(page(&queue, &[4, 5]), LIMIT, &[]), AddLettersResult::NeedsOldest(2));
        let oldest: Vec<_> = (0..2).map(|sequence| (sequence, letter("1234567890"))).collect();
        let queue = add(&queue, &[4, 5], &oldest);
        let DeadLetterCounters { entries, bytes, dropped, next, .. } = queue.counters.value;
        assert_eq!((entries, bytes, dropped, next), (4, 40, 2, 6));
    }

    #[test]
    fn an_operation_adds_a_bounded_number_of_letters() {
        let many: Vec<u64> = (0..MAX_LETTERS_PER_OP as u64 + 9).collect();
        let queue = empty();
        let limit = DeadLetterLimit { entries: 1000, bytes: 1 << 30 };
        let AddLettersResult::Write(plan) = queue.add(page(&queue, &many), limit, &[]) else {
            panic!("there is room")
        };
        assert_eq!(
            (plan.moved.ids.len(), plan.after.counters.value.entries),
            (MAX_LETTERS_PER_OP, MAX_LETTERS_PER_OP as u64)
        );
        let large = |number| {
            let mut letter = letter("");
            letter.event.payload = Bytes::from(vec![0; MAX_SETTLED_BYTES as usize]);
            (number, letter)
        };
        let letters = vec![large(0), large(1)];
        let page = DeadLetterPage { source: source(), revision: 0, letters, is_complete: true };
        let AddLettersResult::Write(plan) = queue.add(page, limit, &[]) else { panic!("there is room") };
        assert_eq!(plan.moved.ids, [dead_letter_id(0)]);
    }

    #[test]
    fn more_letters_than_the_limit_are_taken_by_an_empty_queue() {
        let queue = add(&empty(), &[0, 1, 2, 3, 4, 5], &[]);
        assert_eq!(queue.counters.value.entries, 6);
    }

    #[test]
    fn replayed_letters_are_marked_and_leave_the_queue() {
        let queue = add(&empty(), &[0], &[]);
        let (op, queue) = queue.replay(&[(0, letter("1234567890"))], 777);
        assert_eq!((queue.counters.value.entries, queue.counters.value.next_replay), (0, 1));
        let set = op.write.steps.iter().find_map(|step| match step {
            crate::op::Step::OmapSet(entries) => Some(entries.clone()),
            _ => None,
        });
        let letters = queue.letters(LetterKind::Replayed, &set.expect("it sets a record")).expect("sound");
        let shard = shard();
        let page = replay_page(&topic(), &letters, &shard, true, |_| true);
        let event = &page.events[0].event;
        assert!(event.replayed && event.time_ns == 777);
        assert_eq!((letter_number(&page.events[0].id), page.gone.len()), (Some(0), 1));
        let page = replay_page(&topic(), &letters, &shard, false, |_| true);
        assert!(page.gone.is_empty(), "what is behind the page is not known");
        assert!(replay_page(&topic(), &letters, &shard, true, |_| false).events.is_empty());
    }
}
