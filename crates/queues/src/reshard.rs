//! The steps that change the generation of a live topic. Each step may be repeated, and any gateway may continue where
//! another one died.
//!
//! 1. The topic's record names the next generation ([`crate::layout::QueueLayout::begin`]).
//! 2. For each index of a visible object, [`next_step`] returns the next action:
//!    - A shard of the current generation is taken over (taking its lease raises the epoch) and [`close`]d. From then on it
//!      accepts no events, and its former owner can't settle any.
//!    - The outbox records that its receipts name are removed from their outboxes ([`parse_receipts`]), because these receipts
//!      are lost afterwards.
//!    - All other records are copied to the shard's hidden object ([`begin_copy`], [`copy_page`], [`finish_copy`]). The
//!      copy is bounded: spilled events stay where they are.
//!    - One operation turns the visible object into an empty shard of the next generation, or removes it ([`switch_over`]). This
//!      operation determines where the shard of the old generation is: before it in the visible object, after it in the
//!      hidden one.
//!    - A missing object is reserved, and activated after the topic's record was read again ([`crate::shard::reserve`]).
//!
//!    The object of a hidden next generation is reserved and activated in the same way ([`hidden_step`]). A hidden current
//!    generation stays where it is: its shards are taken over and closed, and the outbox records of their receipts are
//!    removed.
//! 3. One compare-and-swap of the topic's record makes the next generation the current one
//!    ([`crate::layout::QueueLayout::commit`]). Movers enqueue into it only after that, so every event of the old generation is
//!    older than any event of the new one.
//!
//! In the meantime outboxes keep the events; no operation of a client waits or fails. Gateways that make the same change at
//! the same time take shards from each other, which is safe but slow. A lock on the topic prevents this.

use crate::error::{Result, corrupt};
use crate::layout::Generation;
use crate::name::{self, RECEIPTS_PREFIX, SourceId, TopicId};
use crate::op::{ObjectKey, ObjectOp, ObjectRead, ObjectReply, Step};
use crate::record::{
    self, CLOSED, COPY, CopyState, EventId, HEAD, ID, OWNER, Receipts, STATE, ShardIdentity, TAIL,
};
use crate::shard::{ObjectContent, Shard, copy_state};
use bytes::Bytes;

/// The next action for an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardStep {
    /// Nothing: the object is as required.
    Done,
    /// Reserve the object.
    Reserve,
    /// Read the topic's record again. If it names the same next generation, activate the object, which is reserved with
    /// this token.
    Activate(Bytes, ShardIdentity),
    /// Close and copy the shard in the object, then turn the object into this shard, or remove it.
    Relocate(Option<ShardIdentity>),
    /// Remove the object, which is reserved with this token.
    RemoveReserved(Bytes),
    /// The change is over: read the topic's record again.
    Stale,
    /// The object belongs to another topic. If that topic no longer exists, remove the object and check again; otherwise
    /// two topics have the same name.
    Foreign(TopicId),
}

/// The next action for the visible object of index `index`, in which `found` was read.
pub fn next_step(
    topic: &TopicId,
    current: Option<Generation>,
    next: Generation,
    index: u32,
    found: Option<&ObjectContent>,
) -> ShardStep {
    let wanted = (next.is_visible && index < next.shards).then(|| next.identity(topic, index));
    let is_current = |id: &ShardIdentity| {
        current.is_some_and(|current| current.is_visible && current.identity(topic, index) == *id)
    };
    match (found, wanted) {
        (None, None) => ShardStep::Done,
        (None, Some(_)) => ShardStep::Reserve,
        (Some(ObjectContent::Reserved(token)), None) => ShardStep::RemoveReserved(token.clone()),
        (Some(ObjectContent::Reserved(token)), Some(wanted)) => ShardStep::Activate(token.clone(), wanted),
        (Some(ObjectContent::Shard(id)), Some(wanted)) if *id == wanted => ShardStep::Done,
        (Some(ObjectContent::Shard(id)), wanted) if is_current(id) => ShardStep::Relocate(wanted),
        (Some(ObjectContent::Shard(id)), _) if id.topic == *topic => ShardStep::Stale,
        (Some(ObjectContent::Shard(id)), Some(_)) => ShardStep::Foreign(id.topic.clone()),
        (Some(ObjectContent::Shard(_)), None) => ShardStep::Done,
    }
}

/// The next action for the hidden object of a next generation that is not visible.
pub fn hidden_step(topic: &TopicId, next: Generation, found: Option<&ObjectContent>) -> ShardStep {
    let wanted = next.identity(topic, 0);
    match found {
        None => ShardStep::Reserve,
        Some(ObjectContent::Reserved(token)) => ShardStep::Activate(token.clone(), wanted),
        Some(ObjectContent::Shard(id)) if *id == wanted => ShardStep::Done,
        Some(ObjectContent::Shard(_)) => ShardStep::Stale,
    }
}

/// The indices of the visible objects that a change affects.
pub fn affected_indices(current: Option<Generation>, next: Generation) -> std::ops::Range<u32> {
    let generations = current.into_iter().chain([next]).filter(|generation| generation.is_visible);
    0..generations.map(|generation| generation.shards).max().unwrap_or(0)
}

/// Closes a shard. Owner only.
pub fn close(shard: &Shard) -> (ObjectOp, Shard) {
    let op = shard.owned_op().set_xattr(STATE, &Bytes::from_static(CLOSED));
    (op, Shard { is_open: false, ..shard.clone() })
}

/// Reads a page of a shard's omap, with all records. The reply is valid if [`Shard::has_same_owner`] confirms it.
pub fn read_page(object: &ObjectKey, after: Bytes, max: u64) -> ObjectRead {
    ObjectRead::page(object, after, "", max)
}

/// The receipts in a page: outbox records that may be removed because their events are in the queue. The receipts of a
/// closed shard no longer change.
pub fn parse_receipts(object: &ObjectKey, page: &[(Bytes, Bytes)]) -> Result<Vec<(SourceId, Vec<EventId>)>> {
    let receipts = page.iter().filter(|(key, _)| is_receipts(key));
    let parse = |(key, value): &(Bytes, Bytes)| {
        let source = name::receipts_source(key);
        let source = source.ok_or_else(|| corrupt(object, "queue receipts", "the key names no source"))?;
        Ok((source, record::decode::<Receipts>(object, value)?.ids))
    };
    receipts.map(parse).collect()
}

/// How to start a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BeginCopy {
    /// This operation starts the copy. EEXIST and ECANCELED mean that another gateway does the same: take over the shard
    /// again.
    Write(ObjectOp),
    /// This owner has completed the copy: switch.
    Complete,
    /// A later owner has started a copy: this owner is fenced.
    Fenced,
}

/// Starts to copy a closed shard to its hidden object, in which `found` was read. Owner only.
pub fn begin_copy(shard: &Shard, found: Option<&ObjectReply>) -> Result<BeginCopy> {
    let target = copy_object(shard);
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

/// Copies a page of the shard's omap. Receipts are omitted, because their outbox records are gone.
pub fn copy_page(shard: &Shard, page: &[(Bytes, Bytes)]) -> ObjectOp {
    let kept = page.iter().filter(|(key, _)| !is_receipts(key)).cloned().collect();
    copy_op(shard).omap_set(kept)
}

/// Completes a copy by setting the shard's attributes.
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

/// Turns the visible object into a shard of the next generation, or removes it, after the copy is complete. Owner only.
pub fn switch_over(shard: &Shard, next: Option<&ShardIdentity>) -> ObjectOp {
    match next {
        Some(next) => shard.replace(next),
        None => shard.owned_op().if_xattr(STATE, &Bytes::from_static(CLOSED)).then(Step::Remove),
    }
}

/// The hidden object of a shard.
pub fn copy_object(shard: &Shard) -> ObjectKey {
    let id = &shard.id.value;
    name::closed_object(&id.topic, id.generation, id.shard)
}

/// Starts an operation on the copy that this owner makes.
fn copy_op(shard: &Shard) -> ObjectOp {
    let state = CopyState { epoch: shard.owner.value.epoch, is_complete: false };
    ObjectOp::on(&copy_object(shard)).if_xattr(COPY, &record::encode(&state))
}

fn is_receipts(key: &[u8]) -> bool {
    key.starts_with(RECEIPTS_PREFIX.as_bytes())
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
        assert_eq!(affected_indices(Some(old), new), 0..3);
        let id = |of: Generation, index| of.identity(&topic, index);
        let found = |of: Generation, index| Some(ObjectContent::Shard(of.identity(&topic, index)));
        let step =
            |index, found: Option<ObjectContent>| next_step(&topic, Some(old), new, index, found.as_ref());
        assert_eq!(step(0, found(old, 0)), ShardStep::Relocate(Some(id(new, 0))));
        assert_eq!(step(0, found(new, 0)), ShardStep::Done);
        assert_eq!(step(1, None), ShardStep::Reserve);
        let token = Bytes::from_static(b"token");
        let reserved = || Some(ObjectContent::Reserved(token.clone()));
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
        let found = ObjectContent::Shard(new.identity(&other, 0));
        assert_eq!(next_step(&topic, None, new, 0, Some(&found)), ShardStep::Foreign(other.clone()));
        let hidden = generation(2, 1, false);
        let found = ObjectContent::Shard(new.identity(&other, 1));
        assert_eq!(next_step(&topic, Some(new), hidden, 1, Some(&found)), ShardStep::Done);
        assert_eq!((affected_indices(Some(new), hidden), affected_indices(None, hidden)), (0..2, 0..0));
        assert_eq!(hidden_step(&topic, hidden, None), ShardStep::Reserve);
        let done = ObjectContent::Shard(hidden.identity(&topic, 0));
        assert_eq!(hidden_step(&topic, hidden, Some(&done)), ShardStep::Done);
    }
}
