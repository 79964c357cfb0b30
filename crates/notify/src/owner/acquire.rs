//! Finding a shard and taking its lease.

use crate::core::{Core, ShardKey, queue_id};
use crate::error::Result;
use crate::owner::nanos;
use crate::rados::WriteOutcome;
use crate::topic_store::StoredTopic;
use nacre_queues::layout::{self, Generation};
use nacre_queues::lease::LeaseTerm;
use nacre_queues::op::{ObjectKey, ObjectRead, ObjectReply};
use nacre_queues::shard::{self, Shard};

/// The result of trying to take a lease.
pub(crate) enum LeaseOutcome {
    /// This gateway is the owner. The boolean tells whether there are dead letters beside the log.
    Owned(Box<Shard>, LeaseTerm, bool),
    /// There is nothing to deliver.
    Empty,
    /// The shard no longer exists.
    Gone,
    /// Another gateway has it.
    Elsewhere,
}

/// Finds a shard, and returns it with the reply to `read`. `None` if the shard is gone, which is only possible in a closed
/// generation.
pub(crate) async fn locate(
    core: &Core,
    stored: &StoredTopic,
    generation: Generation,
    index: u32,
    read: impl Fn(&ObjectKey) -> ObjectRead,
) -> Result<Option<(Shard, ObjectReply)>> {
    let topic = &stored.record.topic;
    let id = queue_id(topic.id);
    let (visible, hidden) =
        layout::candidate_objects(&topic.arn.tenant, &topic.arn.name, &id, generation, index);
    let wanted = generation.identity(&id, index);
    for object in visible.into_iter().chain([hidden]) {
        let Some(reply) = core.rados.read(&read(&object)).await? else { continue };
        // An object that is reserved, or a copy that is not complete, has no identity.
        if shard::identity_of(&object, &reply).is_ok_and(|id| id.value == wanted) {
            return Ok(Some((Shard::from_reply(&object, &[], &reply)?, reply)));
        }
    }
    Ok(None)
}

/// Reads a shard again from its object; `None` if the object has other content now.
pub(crate) async fn read_shard(core: &Core, of: &Shard) -> Result<Option<Shard>> {
    let Some(reply) = core.rados.read(&ObjectRead::attributes(&of.object)).await? else { return Ok(None) };
    if !shard::identity_of(&of.object, &reply).is_ok_and(|id| id == of.id) {
        return Ok(None);
    }
    Ok(Some(Shard::from_reply(&of.object, &[], &reply)?))
}

/// Takes the lease of a shard that has work to do.
pub(crate) async fn take_lease(
    core: &Core,
    key: ShardKey,
    stored: &StoredTopic,
    generation: Generation,
) -> Result<LeaseOutcome> {
    let is_current = stored.record.layout.current == Some(generation);
    let letters = |object: &ObjectKey| ObjectRead::page(object, Default::default(), "d", 1);
    let found = locate(core, stored, generation, key.shard, letters).await?;
    let Some((shard, reply)) = found else { return Ok(LeaseOutcome::Gone) };
    let is_empty = shard.is_drained() && reply.page.is_empty();
    if is_empty && is_current {
        return Ok(LeaseOutcome::Empty);
    }
    let duration = nanos(core.settings.lease);
    let sent = core.mono_ns();
    let mut written = WriteOutcome::Busy;
    let (take, mut owner) = shard.take_lease(core.session, duration);
    if core.is_gateway_ended(shard.owner.value.client) {
        let (take, of_dead) = shard.take_over_lease(core.session, duration);
        written = core.rados.write(take).await?;
        owner = of_dead;
    }
    // The lock of a dead gateway may have expired.
    if !written.is_done() {
        written = core.rados.write(take).await?;
    }
    if !written.is_done() {
        return Ok(LeaseOutcome::Elsewhere);
    }
    // The previous owner may have settled events until now.
    let Some(reply) = core.rados.read(&letters(&shard.object)).await? else {
        return Ok(LeaseOutcome::Elsewhere);
    };
    if !shard::identity_of(&shard.object, &reply).is_ok_and(|id| id == shard.id) {
        return Ok(LeaseOutcome::Elsewhere);
    }
    let shard = Shard::from_reply(&shard.object, &[], &reply)?;
    if !shard.is_owned_by(owner) {
        return Ok(LeaseOutcome::Elsewhere);
    }
    Ok(LeaseOutcome::Owned(Box::new(shard), LeaseTerm::new(sent, duration), !reply.page.is_empty()))
}
