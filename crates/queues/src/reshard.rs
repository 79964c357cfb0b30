//! Changing the generation of a live topic, step by step. Each step may be repeated, and any gateway may go
//! on where another died.
//!
//! 1. The topic's record names the next generation ([`crate::layout::Layout::begin`]).
//! 2. For each index of a visible object, as [`step`] says:
//!    - a shard of the current generation is taken over (its lease, so that the epoch rises) and [`close`]d.
//!      From here on it takes no events, nor does its former owner settle any;
//!    - the outbox records that its receipts name are removed from their outboxes ([`receipts_of`]), because
//!      nothing will know of these receipts afterwards;
//!    - everything else is copied to the shard's hidden object ([`begin_copy`], [`copy_page`],
//!      [`finish_copy`]). The copy is bounded: what was spilled stays where it is;
//!    - one operation makes the visible object an empty shard of the next generation, or removes it
//!      ([`switch`]). This operation decides where the shard of the old generation is: before it in the
//!      visible object, after it in the hidden one;
//!    - an object that is missing is reserved, and activated after the topic's record was read again
//!      ([`crate::shard::reserve`]).
//!
//!    A hidden next generation's object is reserved and activated in the same way ([`hidden_step`]). A hidden
//!    current generation stays where it is: its shards are taken over, closed, and their receipts' records
//!    removed.
//! 3. One compare-and-swap of the topic's record makes the next generation the current one
//!    ([`crate::layout::Layout::commit`]). Movers enqueue into it only after that, so that every event of the
//!    old generation is older than any of the new one.
//!
//! In the meantime outboxes keep events; no operation of a client waits or fails. Gateways that do the same
//! change at the same time take shards from each other, which is safe but slow: a lock on the topic keeps
//! them apart.

use crate::error::{Result, corrupt};
use crate::layout::Generation;
use crate::name::{self, RECEIPTS, SourceId, TopicId};
use crate::op::{ObjectKey, ObjectOp, ObjectRead, ObjectReply, Step};
use crate::record::{
    self, CLOSED, COPY, CopyState, EventId, HEAD, ID, Identity, OWNER, Receipts, STATE, TAIL,
};
use crate::shard::{Found, Shard, copy_state};
use bytes::Bytes;

/// What is to be done with an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardStep {
    /// Nothing: it is as it should be.
    Done,
    /// Reserve it.
    Reserve,
    /// Read the topic's record again; if it names the same next generation, activate the object, which has
    /// this token.
    Activate(Bytes, Identity),
    /// Close and copy the shard that is there, then make the object this shard, or remove it.
    Relocate(Option<Identity>),
    /// Remove the object, which is reserved with this token.
    RemoveReserved(Bytes),
    /// The change is over: read the topic's record again.
    Stale,
    /// The object belongs to another topic. Where that exists no more, remove the object and look again;
    /// otherwise two topics have one name.
    Foreign(TopicId),
}

/// What is to be done with the visible object of index `index`, which is this.
pub fn step(
    topic: &TopicId,
    current: Option<Generation>,
    next: Generation,
    index: u32,
    found: Option<&Found>,
) -> ShardStep {
    let wanted = (next.is_visible && index < next.shards).then(|| next.identity(topic, index));
    let is_current = |id: &Identity| {
        current.is_some_and(|current| current.is_visible && current.identity(topic, index) == *id)
    };
    match (found, wanted) {
        (None, None) => ShardStep::Done,
        (None, Some(_)) => ShardStep::Reserve,
        (Some(Found::Reserved(token)), None) => ShardStep::RemoveReserved(token.clone()),
        (Some(Found::Reserved(token)), Some(wanted)) => ShardStep::Activate(token.clone(), wanted),
        (Some(Found::Shard(id)), Some(wanted)) if *id == wanted => ShardStep::Done,
        (Some(Found::Shard(id)), wanted) if is_current(id) => ShardStep::Relocate(wanted),
        (Some(Found::Shard(id)), _) if id.topic == *topic => ShardStep::Stale,
        (Some(Found::Shard(id)), Some(_)) => ShardStep::Foreign(id.topic.clone()),
        (Some(Found::Shard(_)), None) => ShardStep::Done,
    }
}

/// What is to be done with the hidden object of a next generation that is not visible.
pub fn hidden_step(topic: &TopicId, next: Generation, found: Option<&Found>) -> ShardStep {
    let wanted = next.identity(topic, 0);
    match found {
        None => ShardStep::Reserve,
        Some(Found::Reserved(token)) => ShardStep::Activate(token.clone(), wanted),
        Some(Found::Shard(id)) if *id == wanted => ShardStep::Done,
        Some(Found::Shard(_)) => ShardStep::Stale,
    }
}

/// The indices of visible objects that a change is about.
pub fn indices(current: Option<Generation>, next: Generation) -> std::ops::Range<u32> {
    let generations = current.into_iter().chain([next]).filter(|generation| generation.is_visible);
    0..generations.map(|generation| generation.shards).max().unwrap_or(0)
}

/// Closes a shard. Owner only.
pub fn close(shard: &Shard) -> (ObjectOp, Shard) {
    let op = shard.owned_op().set_xattr(STATE, &Bytes::from_static(CLOSED));
    (op, Shard { is_open: false, ..shard.clone() })
}

/// Reads a page of everything in a shard's omap. The reply counts if [`Shard::is_still`] says so.
pub fn read_page(object: &ObjectKey, after: Bytes, max: u64) -> ObjectRead {
    ObjectRead::page(object, after, "", max)
}

/// The receipts of a page: outbox records that are in the queue and may go. Of a closed shard they do not
/// change any more.
pub fn receipts_of(object: &ObjectKey, page: &[(Bytes, Bytes)]) -> Result<Vec<(SourceId, Vec<EventId>)>> {
    let receipts = page.iter().filter(|(key, _)| is_receipts(key));
    let parse = |(key, value): &(Bytes, Bytes)| {
        let source = name::receipts_source(key);
        let source = source.ok_or_else(|| corrupt(object, "queue receipts", "the key names no source"))?;
        Ok((source, record::decode::<Receipts>(object, value)?.ids))
    };
    receipts.map(parse).collect()
}

/// How to begin a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BeginCopy {
    /// This operation begins it. EEXIST and ECANCELED mean that another gateway does the same: take the shard
    /// over again.
    Write(ObjectOp),
    /// This owner has completed it: switch.
    Complete,
    /// A later owner has started one: this one is fenced.
    Fenced,
}

/// Begins to copy a closed shard to its hidden object, of which `found` is what it holds. Owner only.
pub fn begin_copy(shard: &Shard, found: Option<&ObjectReply>) -> Result<BeginCopy> {
    let target = copy_of(shard);
    let epoch = shard.owner.value.epoch;
    let mine = record::encode(&CopyState { epoch, is_complete: false });
    let Some(found) = found else {
        return Ok(BeginCopy::Write(ObjectOp::create(&target).set_xattr(COPY, &mine)));
    };
    let state = copy_state(&target, found)?;
    let state = state.ok_or_else(|| corrupt(&target, "queue copy", "the object is no copy of a shard"))?;
    Ok(if state.value.epoch > epoch {
        BeginCopy::Fenced
    } else if state.value.epoch == epoch && state.value.is_complete {
        BeginCopy::Complete
    } else {
        let op = ObjectOp::on(&target).if_xattr(COPY, &state.raw);
        BeginCopy::Write(op.then(Step::OmapClear).set_xattr(COPY, &mine))
    })
}

/// Copies a page of the shard's omap. Receipts are left out: their outbox records are gone.
pub fn copy_page(shard: &Shard, page: &[(Bytes, Bytes)]) -> ObjectOp {
    let kept = page.iter().filter(|(key, _)| !is_receipts(key)).cloned().collect();
    copy_op(shard).omap_set(kept)
}

/// Completes a copy: gives it the shard's attributes.
pub fn finish_copy(shard: &Shard) -> ObjectOp {
    let state = CopyState { epoch: shard.owner.value.epoch, is_complete: true };
    copy_op(shard)
        .set_xattr(ID, &shard.id.raw)
        .set_xattr(STATE, &Bytes::from_static(CLOSED))
        .set_xattr(TAIL, &shard.tail.raw)
        .set_xattr(HEAD, &shard.head.raw)
        .set_xattr(OWNER, &shard.owner.raw)
        .set_xattr(COPY, &record::encode(&state))
}

/// After the copy is complete: makes the visible object a shard of the next generation, or removes it. Owner
/// only.
pub fn switch(shard: &Shard, next: Option<&Identity>) -> ObjectOp {
    match next {
        Some(next) => shard.replace(next),
        None => shard.owned_op().if_xattr(STATE, &Bytes::from_static(CLOSED)).then(Step::Remove),
    }
}

/// The hidden object of a shard.
pub fn copy_of(shard: &Shard) -> ObjectKey {
    let id = &shard.id.value;
    name::closed_object(&id.topic, id.generation, id.shard)
}

/// An operation on the copy that this owner makes.
fn copy_op(shard: &Shard) -> ObjectOp {
    let state = CopyState { epoch: shard.owner.value.epoch, is_complete: false };
    ObjectOp::on(&copy_of(shard)).if_xattr(COPY, &record::encode(&state))
}

fn is_receipts(key: &[u8]) -> bool {
    key.starts_with(RECEIPTS.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generation(number: u64, shards: u32, is_visible: bool) -> Generation {
        Generation { number, shards, is_visible }
    }

    #[test]
    fn each_index_has_its_step_until_all_are_done() {
        let topic = TopicId::new("t").expect("valid");
        let (old, new) = (generation(1, 3, true), generation(2, 2, true));
        assert_eq!(indices(Some(old), new), 0..3);
        let id = |of: Generation, index| of.identity(&topic, index);
        let found = |of: Generation, index| Some(Found::Shard(of.identity(&topic, index)));
        let step = |index, found: Option<Found>| step(&topic, Some(old), new, index, found.as_ref());
        assert_eq!(step(0, found(old, 0)), ShardStep::Relocate(Some(id(new, 0))));
        assert_eq!(step(0, found(new, 0)), ShardStep::Done);
        assert_eq!(step(1, None), ShardStep::Reserve);
        let token = Bytes::from_static(b"token");
        let reserved = || Some(Found::Reserved(token.clone()));
        assert_eq!(step(1, reserved()), ShardStep::Activate(token.clone(), id(new, 1)));
        assert_eq!(step(2, reserved()), ShardStep::RemoveReserved(token.clone()));
        assert_eq!(step(2, found(old, 2)), ShardStep::Relocate(None));
        assert_eq!(step(2, None), ShardStep::Done);
        assert_eq!(step(1, found(generation(3, 5, true), 1)), ShardStep::Stale);
    }

    #[test]
    fn objects_of_other_topics_are_left_alone() {
        let (topic, other) = (TopicId::new("t").expect("valid"), TopicId::new("u").expect("valid"));
        let new = generation(1, 2, true);
        let found = Found::Shard(new.identity(&other, 0));
        assert_eq!(step(&topic, None, new, 0, Some(&found)), ShardStep::Foreign(other.clone()));
        let hidden = generation(2, 1, false);
        let found = Found::Shard(new.identity(&other, 1));
        assert_eq!(step(&topic, Some(new), hidden, 1, Some(&found)), ShardStep::Done);
        assert_eq!((indices(Some(new), hidden), indices(None, hidden)), (0..2, 0..0));
        assert_eq!(hidden_step(&topic, hidden, None), ShardStep::Reserve);
        let done = Found::Shard(hidden.identity(&topic, 0));
        assert_eq!(hidden_step(&topic, hidden, Some(&done)), ShardStep::Done);
    }
}
