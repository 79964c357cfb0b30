//! A shard: one RADOS object with its attributes, its log of batches and what stands beside the log.
//!
//! A [`Shard`] is what one read of the object showed. Functions build operations that compare what they
//! depend on with that state, and return the state after the operation, so that a gateway that is alone reads
//! only once.

use crate::error::{Result, corrupt};
use crate::name::{self, KeyHash, Kind, SourceId};
use crate::op::{ObjectKey, ObjectOp, ObjectRead, ObjectReply, Step};
use crate::record::{
    self, CLOSED, COPY, CopyState, EventId, HEAD, Head, ID, Identity, OPEN, OWNER, Owner, Parked, RESERVED,
    Receipts, STATE, TAIL, Tail,
};
use bytes::Bytes;
use nacre_types::encoding::Versioned;
use std::collections::{BTreeMap, BTreeSet};

/// A record as it is stored. The stored bytes are what guards compare, so that appendices of newer releases
/// survive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored<T> {
    /// What it says.
    pub value: T,
    /// Its bytes; empty where it is absent.
    pub raw: Bytes,
}

impl<T: Versioned> Stored<T> {
    /// A record that is to be written.
    pub fn new(value: T) -> Stored<T> {
        let raw = record::encode(&value);
        Stored { value, raw }
    }
}

/// Receipts of a source, or that there are none.
pub type ReceiptsOf = BTreeMap<SourceId, BTreeSet<EventId>>;

/// A shard as it was read, or as an operation made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Where it is.
    pub object: ObjectKey,
    /// Whose queue it is.
    pub id: Stored<Identity>,
    /// Whether it takes events.
    pub is_open: bool,
    /// What came in.
    pub tail: Stored<Tail>,
    /// What went out.
    pub head: Stored<Head>,
    /// Who may settle events.
    pub owner: Stored<Owner>,
    /// Receipts of the sources that were read; a source that is not here is not known.
    pub receipts: ReceiptsOf,
}

/// The attributes of a shard that nothing was enqueued into.
fn fresh(id: Identity, owner: Owner) -> [(&'static str, Bytes); 5] {
    [
        (ID, record::encode(&id)),
        (STATE, Bytes::from_static(OPEN)),
        (TAIL, record::encode(&Tail::default())),
        (HEAD, record::encode(&Head::default())),
        (OWNER, record::encode(&owner)),
    ]
}

/// Reserves an object for a shard that is to be; fails with EEXIST where there is an object. `token` was
/// never used before.
///
/// RADOS can't refuse a creation that arrives late, after the object was made, used and removed by others.
/// Therefore an object is made in two steps: what arrives late is only reserved, hence no shard of anything.
/// Between the steps the topic's record is read again. If it still names the same next generation, that one
/// is not complete, which would need this object to be activated; so an activation that arrives after the
/// completion finds another token, or none.
pub fn reserve(object: &ObjectKey, token: &str) -> ObjectOp {
    ObjectOp::create(object).set_xattr(RESERVED, &Bytes::copy_from_slice(token.as_bytes()))
}

/// Makes a reserved object an empty shard. Anybody who does the same change of generations may activate what
/// another one reserved.
pub fn activate(object: &ObjectKey, token: &Bytes, id: &Identity) -> ObjectOp {
    let op = ObjectOp::on(object).if_xattr(RESERVED, token).set_xattr(RESERVED, &Bytes::new());
    fresh(id.clone(), Owner::default()).into_iter().fold(op, |op, (name, value)| op.set_xattr(name, &value))
}

/// Removes an object that is reserved and not needed.
pub fn remove_reserved(object: &ObjectKey, token: &Bytes) -> ObjectOp {
    ObjectOp::on(object).if_xattr(RESERVED, token).then(Step::Remove)
}

/// What an object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A shard.
    Shard(Identity),
    /// Reserved, with this token.
    Reserved(Bytes),
}

/// What an object is, by its attributes.
pub fn found(object: &ObjectKey, reply: &ObjectReply) -> Result<Found> {
    match reply.xattrs.get(RESERVED).filter(|token| !token.is_empty()) {
        Some(token) => Ok(Found::Reserved(token.clone())),
        None => Ok(Found::Shard(identity_of(object, reply)?.value)),
    }
}

/// Reads a shard with the receipts of these sources.
pub fn read(object: &ObjectKey, sources: &[SourceId]) -> ObjectRead {
    ObjectRead::keys(object, sources.iter().map(name::receipts_key).collect())
}

impl Shard {
    /// Interprets what [`read`] returned; `sources` are those it was given.
    pub fn from_reply(object: &ObjectKey, sources: &[SourceId], reply: &ObjectReply) -> Result<Shard> {
        let mut receipts = ReceiptsOf::new();
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

    /// Fails where what went out is more than what came in.
    fn check(&self) -> Result<()> {
        let (tail, head) = (&self.tail.value, &self.head.value);
        let end = head.settled.last().map_or(head.cursor, |(first, len)| first + len);
        let sound = end <= tail.next
            && head.removed <= tail.next
            && head.removed_bytes <= tail.bytes
            && head.left_bytes <= tail.bytes;
        if sound { Ok(()) } else { Err(corrupt(&self.object, "queue", "more went out than came in")) }
    }

    /// Events that count: enqueued and not removed.
    pub fn entries(&self) -> u64 {
        self.tail.value.next - self.head.value.removed
    }

    /// Bytes of the events that count.
    pub fn size_bytes(&self) -> u64 {
        self.tail.value.bytes - self.head.value.removed_bytes
    }

    /// Whether there is nothing to be delivered, and no batch to be removed: those whose events others dropped stay until
    /// an owner settles.
    pub fn is_drained(&self) -> bool {
        self.is_empty() && self.is_log_empty() && self.resident_bytes() == 0
    }

    /// Bytes of events whose batches are in this object, rather than in spill segments.
    pub fn resident_bytes(&self) -> u64 {
        self.tail.value.bytes - self.head.value.left_bytes
    }

    /// Events that are parked: they left the log and still count.
    pub fn parked(&self) -> u64 {
        let head = &self.head.value;
        let settled = head.cursor + head.settled.iter().map(|(_, len)| len).sum::<u64>();
        settled.saturating_sub(head.removed)
    }

    /// Whether no events count.
    pub fn is_empty(&self) -> bool {
        self.entries() == 0
    }

    /// Whether every event is settled; what is parked may be left.
    pub fn is_log_empty(&self) -> bool {
        self.head.value.cursor == self.tail.value.next
    }

    /// An operation on this object, as long as it is the same shard.
    pub(crate) fn op(&self) -> ObjectOp {
        ObjectOp::on(&self.object).if_xattr(ID, &self.id.raw)
    }

    /// An operation of the owner that was read: it fails once there is another one.
    pub(crate) fn owned_op(&self) -> ObjectOp {
        self.op().if_xattr(OWNER, &self.owner.raw)
    }

    /// Whether this is the owner. Asked after each reading before something is done as the owner: operations
    /// compare the owner that was read, whoever that is.
    pub fn is_owned_by(&self, owner: Owner) -> bool {
        self.owner.value == owner
    }

    /// Whether a reply to another read of the object is from the same shard under the same owner. Asked of
    /// each page that an owner reads: the object may have become a shard of the next generation.
    pub fn is_still(&self, reply: &ObjectReply) -> bool {
        reply.xattrs.get(ID) == Some(&self.id.raw) && reply.xattrs.get(OWNER) == Some(&self.owner.raw)
    }

    /// Removes the object of a deleted topic, whatever it holds. Its segments must have been removed.
    pub fn remove(&self) -> ObjectOp {
        self.op().then(Step::Remove)
    }

    /// Removes a closed shard; `None` as long as it holds anything. `beside_is_empty` is what
    /// [`is_nothing_left`] says.
    ///
    /// Compares tail, head and owner, so that it fails once anything changed.
    pub fn retire(&self, beside_is_empty: bool) -> Option<ObjectOp> {
        let may = !self.is_open && self.is_empty() && self.is_log_empty() && beside_is_empty;
        let op = || {
            let op = self.owned_op().if_xattr(STATE, &Bytes::from_static(CLOSED));
            op.if_xattr(TAIL, &self.tail.raw).if_xattr(HEAD, &self.head.raw).then(Step::Remove)
        };
        may.then(op)
    }

    /// Replaces the contents by those of an empty shard of a later generation, in the same object. Owner
    /// only.
    pub(crate) fn replace(&self, id: &Identity) -> ObjectOp {
        let op = self.owned_op().if_xattr(STATE, &Bytes::from_static(CLOSED)).then(Step::OmapClear);
        let attributes = fresh(id.clone(), self.owner.value);
        attributes.into_iter().fold(op, |op, (name, value)| op.set_xattr(name, &value))
    }

    /// What all shards compare before they take events.
    pub(crate) fn enqueue_op(&self) -> ObjectOp {
        self.op().if_xattr(STATE, &Bytes::from_static(OPEN)).if_xattr(TAIL, &self.tail.raw)
    }
}

/// Reads what is left beside the log of a shard: dead letters on their way, parked events and segments'
/// manifests all sort before receipts, and batches are settled. At most `max` entries; receipts do not count.
pub fn beside_log(object: &ObjectKey, max: u64) -> ObjectRead {
    ObjectRead::page(object, Bytes::new(), "", max)
}

/// Whether a page of [`beside_log`] shows that nothing but receipts is left.
pub fn is_nothing_left(page: &[(Bytes, Bytes)]) -> bool {
    page.iter().all(|(key, _)| key.starts_with(name::RECEIPTS.as_bytes()))
}

/// Parked events of a page, with their sequence numbers.
pub fn parked_of(object: &ObjectKey, page: &[(Bytes, Bytes)]) -> Result<Vec<(u64, Parked)>> {
    let sequence = |key: &Bytes| {
        Kind::Parked.sequence(key).ok_or_else(|| corrupt(object, Parked::NAME, "the key has no sequence"))
    };
    page.iter().map(|(key, value)| Ok((sequence(key)?, record::decode(object, value)?))).collect()
}

/// What an older shard still holds, for the shards of later generations that may have to wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing that can be delivered.
    Drained,
    /// Parked events only: of keys with these hashes.
    OnlyParked(BTreeSet<KeyHash>),
    /// Anything.
    Busy,
}

impl Progress {
    /// Of a shard whose parked events are all in `parked`.
    ///
    /// Only a closed shard makes progress that never goes back.
    pub fn of(shard: &Shard, parked: &[(u64, Parked)]) -> Progress {
        if shard.is_open || !shard.is_log_empty() {
            return Progress::Busy;
        }
        if parked.is_empty() {
            return Progress::Drained;
        }
        Progress::OnlyParked(parked.iter().map(|(_, parked)| parked.event.key).collect())
    }

    /// Whether events of a key in this shard may be left.
    pub fn may_hold(&self, key: KeyHash) -> bool {
        match self {
            Progress::Drained => false,
            Progress::OnlyParked(keys) => keys.contains(&key),
            Progress::Busy => true,
        }
    }
}

/// The bytes of an attribute.
fn attribute<'a>(object: &ObjectKey, name: &'static str, reply: &'a ObjectReply) -> Result<&'a Bytes> {
    reply.xattrs.get(name).ok_or_else(|| corrupt(object, name, "the attribute is missing"))
}

fn stored<T: Versioned>(object: &ObjectKey, name: &'static str, reply: &ObjectReply) -> Result<Stored<T>> {
    let raw = attribute(object, name, reply)?.clone();
    Ok(Stored { value: record::decode(object, &raw)?, raw })
}

/// The state of a copy, where the object is one.
pub(crate) fn copy_state(object: &ObjectKey, reply: &ObjectReply) -> Result<Option<Stored<CopyState>>> {
    let Some(raw) = reply.xattrs.get(COPY).filter(|raw| !raw.is_empty()) else { return Ok(None) };
    Ok(Some(Stored { value: record::decode(object, raw)?, raw: raw.clone() }))
}

/// Whose queue an object is, whatever else it holds: for clean-up after a topic that was deleted.
pub fn identity_of(object: &ObjectKey, reply: &ObjectReply) -> Result<Stored<Identity>> {
    stored(object, ID, reply)
}
