//! Taking the lease of a shard.

use crate::core::Core;
use crate::error::Result;
use crate::owner::nanos;
use crate::queue_shard::{ShardKey, locate};
use crate::rados::WriteOutcome;
use crate::topic_store::StoredTopic;
use nacre_queues::layout::Generation;
use nacre_queues::lease::LeaseTerm;
use nacre_queues::op::{ObjectKey, ObjectRead};
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

/// Takes the lease of a shard that has work to do.
pub(crate) async fn take_lease(
    core: &Core,
    key: ShardKey,
    stored: &StoredTopic,
    generation: Generation,
) -> Result<LeaseOutcome> {
    let is_current = stored.record.layout.current == Some(generation);
    let letters = |object: &ObjectKey| ObjectRead::page(object, Default::default(), "d", 1);
    let found = locate(&core.rados, stored, generation, key.shard, letters).await?;
    let Some((shard, reply)) = found else { return Ok(LeaseOutcome::Gone) };
    let is_empty = shard.is_drained() && reply.page.is_empty();
    if is_empty && is_current {
        return Ok(LeaseOutcome::Empty);
    }
    let duration = nanos(core.settings.lease);
    let sent = core.mono_ns();
    let mut written = WriteOutcome::Busy;
    let (take, mut owner) = shard.take_lease(core.session, duration);
    if core.gateways.is_ended(shard.owner.value.client) {
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
