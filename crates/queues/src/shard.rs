//! A shard: one RADOS object with its attributes, its log of batches, and the records beside the log.
//!
//! A [`Shard`] is the state that one read of the object returned. Functions build operations that compare the parts of this
//! state on which they depend, and return the state after the operation. So a gateway that works alone reads only once.

use crate::error::{Result, corrupt};
use crate::name::{self, KeyHash, QueueRecordKind, SourceId};
use crate::op::{ObjectKey, ObjectOp, ObjectRead, ObjectReply, Step};
use crate::record::{
    self, CLOSED, COPY, CopyState, EventId, HEAD, ID, OPEN, OWNER, Owner, ParkedEvent, QueueHead, QueueTail,
    RESERVED, Receipts, STATE, ShardIdentity, TAIL,
};
use bytes::Bytes;
use nacre_types::encoding::Versioned;
use std::collections::{BTreeMap, BTreeSet};

/// A record with its stored bytes. Guards compare the stored bytes, so fields that newer releases appended survive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored<T> {
    /// The decoded record.
    pub value: T,
    /// The stored bytes; empty if the record is absent.
    pub raw: Bytes,
}

impl<T: Versioned> Stored<T> {
    /// Encodes a record that is to be written.
    pub fn new(value: T) -> Stored<T> {
        let raw = record::encode(&value);
        Stored { value, raw }
    }
}

/// The receipts of each source; an empty set if it has none.
pub type ReceiptsBySource = BTreeMap<SourceId, BTreeSet<EventId>>;

/// A shard, as it was read or as an operation changed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Its object.
    pub object: ObjectKey,
    /// The queue that it belongs to.
    pub id: Stored<ShardIdentity>,
    /// Whether it accepts events.
    pub is_open: bool,
    /// Counters of enqueued events.
    pub tail: Stored<QueueTail>,
    /// Counters of settled events.
    pub head: Stored<QueueHead>,
    /// The gateway that may settle events.
    pub owner: Stored<Owner>,
    /// Receipts of the sources that were read. The receipts of other sources are unknown.
    pub receipts: ReceiptsBySource,
}

/// The attributes of an empty shard.
fn fresh(id: ShardIdentity, owner: Owner) -> [(&'static str, Bytes); 5] {
    [
        (ID, record::encode(&id)),
        (STATE, Bytes::from_static(OPEN)),
        (TAIL, record::encode(&QueueTail::default())),
        (HEAD, record::encode(&QueueHead::default())),
        (OWNER, record::encode(&owner)),
    ]
}

/// Reserves an object for a future shard; fails with EEXIST if the object exists. `token` was never used before.
///
/// RADOS can't refuse a creation that arrives late, after other gateways created, used and removed the object. Therefore an
/// object is created in two steps: a late creation only reserves the object, so it is not a shard. The topic's record is
/// read again between the steps. If it still names the same next generation, that generation is not complete, because it
/// would need this object to be activated. So an activation that arrives after the completion finds another token, or none.
pub fn reserve(object: &ObjectKey, token: &str) -> ObjectOp {
    ObjectOp::create(object).set_xattr(RESERVED, &Bytes::copy_from_slice(token.as_bytes()))
}

/// Turns a reserved object into an empty shard. Any gateway that makes the same change of generations may activate an
/// object that another one reserved.
pub fn activate(object: &ObjectKey, token: &Bytes, id: &ShardIdentity) -> ObjectOp {
    let op = ObjectOp::on(object).if_xattr(RESERVED, token).set_xattr(RESERVED, &Bytes::new());
    fresh(id.clone(), Owner::default()).into_iter().fold(op, |op, (name, value)| op.set_xattr(name, &value))
}

/// Removes a reserved object that is not needed.
pub fn remove_reserved(object: &ObjectKey, token: &Bytes) -> ObjectOp {
    ObjectOp::on(object).if_xattr(RESERVED, token).then(Step::Remove)
}

/// The content of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectContent {
    /// A shard.
    Shard(ShardIdentity),
    /// Reserved, with this token.
    Reserved(Bytes),
}

/// The content of an object according to its attributes.
pub fn classify(object: &ObjectKey, reply: &ObjectReply) -> Result<ObjectContent> {
    match reply.xattrs.get(RESERVED).filter(|token| !token.is_empty()) {
        Some(token) => Ok(ObjectContent::Reserved(token.clone())),
        None => Ok(ObjectContent::Shard(identity_of(object, reply)?.value)),
    }
}

/// Reads a shard with the receipts of `sources`.
pub fn read(object: &ObjectKey, sources: &[SourceId]) -> ObjectRead {
    ObjectRead::keys(object, sources.iter().map(name::receipts_key).collect())
}

impl Shard {
    /// Interprets the reply to [`read`] with the same `sources`.
    pub fn from_reply(object: &ObjectKey, sources: &[SourceId], reply: &ObjectReply) -> Result<Shard> {
        let mut receipts = ReceiptsBySource::new();
        for source in sources {
            let ids = match reply.values.get(&name::receipts_key(source)) {
                Some(bytes) => record::decode::<Receipts>(object, bytes)?.ids,
                None => Vec::new(),
            };
            receipts.insert(source.clone(), ids.into_iter().collect());
        }
        let head = attribute(object, HEAD, reply)?.clone();
        let state = attribute(object, STATE, reply)?;
        let is_open = match &state[..] {
            OPEN => true,
            CLOSED => false,
            _ => return Err(corrupt(object, "queue state", "it is neither open nor closed")),
        };
        let shard = Shard {
            object: object.clone(),
            id: stored(object, ID, reply)?,
            is_open,
            tail: stored(object, TAIL, reply)?,
            head: Stored { value: record::decode_head(object, &head)?, raw: head },
            owner: stored(object, OWNER, reply)?,
            receipts,
        };
        shard.check()?;
        Ok(shard)
    }

    /// Fails if more events were settled than enqueued.
    fn check(&self) -> Result<()> {
        let (tail, head) = (&self.tail.value, &self.head.value);
        let end = head.settled.last().map_or(head.cursor, |(first, len)| first + len);
        let sound = end <= tail.next
            && head.removed <= tail.next
            && head.removed_bytes <= tail.bytes
            && head.left_bytes <= tail.bytes;
        if sound { Ok(()) } else { Err(corrupt(&self.object, "queue", "more went out than came in")) }
    }

    /// The number of events that count: enqueued and not removed.
    pub fn entries(&self) -> u64 {
        self.tail.value.next - self.head.value.removed
    }

    /// The bytes of the events that count.
    pub fn size_bytes(&self) -> u64 {
        self.tail.value.bytes - self.head.value.removed_bytes
    }

    /// Whether there is nothing to deliver and no batch to remove. Batches whose events other gateways dropped remain until
    /// an owner settles.
    pub fn is_drained(&self) -> bool {
        self.is_empty() && self.is_log_empty() && self.resident_bytes() == 0
    }

    /// The bytes of events in batches in this object, not in spill segments.
    pub fn resident_bytes(&self) -> u64 {
        self.tail.value.bytes - self.head.value.left_bytes
    }

    /// The number of parked events: they left the log but still count.
    pub fn parked(&self) -> u64 {
        let head = &self.head.value;
        let settled = head.cursor + head.settled.iter().map(|(_, len)| len).sum::<u64>();
        settled.saturating_sub(head.removed)
    }

    /// Whether no events count.
    pub fn is_empty(&self) -> bool {
        self.entries() == 0
    }

    /// Whether every event of the log is settled. Parked events may be left.
    pub fn is_log_empty(&self) -> bool {
        self.head.value.cursor == self.tail.value.next
    }

    /// Starts an operation on this object, which fails if the object is no longer this shard.
    pub(crate) fn op(&self) -> ObjectOp {
        ObjectOp::on(&self.object).if_xattr(ID, &self.id.raw)
    }

    /// Starts an operation of the owner that was read, which fails if the shard has another owner.
    pub(crate) fn owned_op(&self) -> ObjectOp {
        self.op().if_xattr(OWNER, &self.owner.raw)
    }

    /// Whether the shard has this owner. Must be checked after each read before acting as the owner: operations compare the
    /// owner that was read, whichever it is.
    pub fn is_owned_by(&self, owner: Owner) -> bool {
        self.owner.value == owner
    }

    /// Whether a reply to another read of the object is from the same shard with the same owner. An owner checks each page
    /// that it reads, because the object may have become a shard of the next generation.
    pub fn has_same_owner(&self, reply: &ObjectReply) -> bool {
        reply.xattrs.get(ID) == Some(&self.id.raw) && reply.xattrs.get(OWNER) == Some(&self.owner.raw)
    }

    /// Removes the object of a deleted topic with all its content. Its segments must have been removed.
    pub fn remove(&self) -> ObjectOp {
        self.op().then(Step::Remove)
    }

    /// Removes a closed shard; `None` as long as it contains anything. `beside_is_empty` is the result of
    /// [`has_only_receipts`].
    ///
    /// Compares tail, head and owner, so it fails if anything changed.
    pub fn retire(&self, beside_is_empty: bool) -> Option<ObjectOp> {
        let may = !self.is_open && self.is_empty() && self.is_log_empty() && beside_is_empty;
        let op = || {
            let op = self.owned_op().if_xattr(STATE, &Bytes::from_static(CLOSED));
            op.if_xattr(TAIL, &self.tail.raw).if_xattr(HEAD, &self.head.raw).then(Step::Remove)
        };
        may.then(op)
    }

    /// Replaces the content with an empty shard of a later generation, in the same object. Owner only.
    pub(crate) fn replace(&self, id: &ShardIdentity) -> ObjectOp {
        let op = self.owned_op().if_xattr(STATE, &Bytes::from_static(CLOSED)).then(Step::OmapClear);
        let attributes = fresh(id.clone(), self.owner.value);
        attributes.into_iter().fold(op, |op, (name, value)| op.set_xattr(name, &value))
    }

    /// Starts an operation that enqueues, with the guards that all shards need for it.
    pub(crate) fn enqueue_op(&self) -> ObjectOp {
        self.op().if_xattr(STATE, &Bytes::from_static(OPEN)).if_xattr(TAIL, &self.tail.raw)
    }
}

/// Reads the records beside the log of a shard. Dead letters, parked events and manifests of segments all sort before
/// receipts, and batches are settled. Returns at most `max` entries; receipts do not count.
pub fn read_side_records(object: &ObjectKey, max: u64) -> ObjectRead {
    ObjectRead::page(object, Bytes::new(), "", max)
}

/// Whether a page of [`read_side_records`] has no records except receipts.
pub fn has_only_receipts(page: &[(Bytes, Bytes)]) -> bool {
    page.iter().all(|(key, _)| key.starts_with(name::RECEIPTS_PREFIX.as_bytes()))
}

/// Decodes the parked events of a page, with their sequence numbers.
pub fn parse_parked(object: &ObjectKey, page: &[(Bytes, Bytes)]) -> Result<Vec<(u64, ParkedEvent)>> {
    let sequence = |key: &Bytes| {
        QueueRecordKind::Parked
            .sequence(key)
            .ok_or_else(|| corrupt(object, ParkedEvent::NAME, "the key has no sequence"))
    };
    page.iter().map(|(key, value)| Ok((sequence(key)?, record::decode(object, value)?))).collect()
}

/// The remaining events of an older shard, for which shards of later generations may have to wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemainingEvents {
    /// No events to deliver.
    None,
    /// Only parked events, of keys with these hashes.
    OnlyParked(BTreeSet<KeyHash>),
    /// Any events.
    Any,
}

impl RemainingEvents {
    /// The remaining events of a shard whose parked events are all in `parked`.
    ///
    /// Only in a closed shard they never become more.
    pub fn of(shard: &Shard, parked: &[(u64, ParkedEvent)]) -> RemainingEvents {
        if shard.is_open || !shard.is_log_empty() {
            return RemainingEvents::Any;
        }
        if parked.is_empty() {
            return RemainingEvents::None;
        }
        RemainingEvents::OnlyParked(parked.iter().map(|(_, parked)| parked.event.key).collect())
    }

    /// Whether the shard may have events of a key.
    pub fn may_have_events(&self, key: KeyHash) -> bool {
        match self {
            RemainingEvents::None => false,
            RemainingEvents::OnlyParked(keys) => keys.contains(&key),
            RemainingEvents::Any => true,
        }
    }
}

/// The raw value of an attribute.
fn attribute<'a>(object: &ObjectKey, name: &'static str, reply: &'a ObjectReply) -> Result<&'a Bytes> {
    reply.xattrs.get(name).ok_or_else(|| corrupt(object, name, "the attribute is missing"))
}

fn stored<T: Versioned>(object: &ObjectKey, name: &'static str, reply: &ObjectReply) -> Result<Stored<T>> {
    let raw = attribute(object, name, reply)?.clone();
    Ok(Stored { value: record::decode(object, &raw)?, raw })
}

/// The state of a copy, if the object is one.
pub(crate) fn copy_state(object: &ObjectKey, reply: &ObjectReply) -> Result<Option<Stored<CopyState>>> {
    let Some(raw) = reply.xattrs.get(COPY).filter(|raw| !raw.is_empty()) else { return Ok(None) };
    Ok(Some(Stored { value: record::decode(object, raw)?, raw: raw.clone() }))
}

/// The queue that an object belongs to, whatever else it contains. Used to clean up after a deleted topic.
pub fn identity_of(object: &ObjectKey, reply: &ObjectReply) -> Result<Stored<ShardIdentity>> {
    stored(object, ID, reply)
}
