//! Leases: which gateway delivers a shard.
//!
//! The lock [`LOCK`] of class `lock` on the shard's object says who may become the owner, and for how long
//! no other gateway may. OSDs measure that time. Each taking of the lock raises the epoch in the shard's owner
//! attribute in the same operation. The epoch is what makes settling safe: every operation of an owner
//! compares it. The lock and its time only decide when another gateway may try, so that clocks that are wrong
//! cost time or redeliveries, never events.
//!
//! A gateway holds leases only of shards that it works on. It releases a shard that is empty, and one whose
//! endpoint's breaker is open unless it must spill; so topics without work cost no renewals.

use crate::op::{ObjectOp, ObjectReply, Step};
use crate::record::{self, OWNER, Owner};
use crate::shard::Shard;
use bytes::Bytes;
use nacre_types::ceph::{CephEncoding, SessionName, UTime};
use nacre_types::cls::lock::{BreakOp, LockInfo, LockKind, LockOp, MAY_RENEW, UnlockOp, attribute};
use nacre_types::ids::ClientId;

/// The lock's name.
pub const LOCK: &str = "deliver";
/// The lock's cookie.
const COOKIE: &[u8] = b"owner";
/// Renewals in a term.
pub const RENEWALS: u64 = 4;
/// The part of a term, in the holder's view, in which it does not send any more: a fourth, so that clocks may
/// differ.
const MARGIN: u64 = 4;

impl Shard {
    /// Takes the lease; fails with EBUSY while another session has it, with ECANCELED if the owner changed.
    /// Also returns the owner that the shard has after it.
    ///
    /// The new owner reads the shard again, because the owner before may have settled events until this
    /// moment, and goes on only if the shard still has this owner ([`Shard::is_owned_by`]).
    pub fn take_lease(&self, client: u64, duration_ns: u64) -> (ObjectOp, Owner) {
        self.take(client, |op| op.then(lock(duration_ns)))
    }

    /// Takes the lease of an owner whose gateway is known to have ended; fails with ENOENT where its lock has
    /// lapsed, so that [`Shard::take_lease`] succeeds.
    ///
    /// Taking it from an owner that lives does no harm but to cause redeliveries.
    pub fn take_lease_of_dead(&self, client: u64, duration_ns: u64) -> (ObjectOp, Owner) {
        let locker = SessionName::client(ClientId(self.owner.value.client));
        let broken =
            BreakOp { name: Bytes::from(LOCK), locker, cookie: Bytes::from_static(COOKIE) }.to_bytes();
        let broken = Step::Call { class: "lock", method: "break_lock", input: broken };
        self.take(client, |op| op.then(broken).then(lock(duration_ns)))
    }

    fn take(&self, client: u64, lock: impl FnOnce(ObjectOp) -> ObjectOp) -> (ObjectOp, Owner) {
        let owner = Owner { epoch: self.owner.value.epoch + 1, client };
        (lock(self.owned_op()).set_xattr(OWNER, &record::encode(&owner)), owner)
    }

    /// Renews the lease of the owner that was read; fails with ECANCELED if there is another one.
    pub fn renew_lease(&self, duration_ns: u64) -> ObjectOp {
        self.owned_op().then(lock(duration_ns))
    }

    /// Renews the lease with another operation of the owner that was read.
    #[must_use]
    pub fn renewing(&self, op: ObjectOp, duration_ns: u64) -> ObjectOp {
        debug_assert!(op.object == self.object, "the lease is on the shard's object");
        op.then(lock(duration_ns))
    }

    /// Gives the lease back. The owner attribute stays: the next owner takes the next epoch.
    pub fn release_lease(&self) -> ObjectOp {
        let input = UnlockOp { name: Bytes::from(LOCK), cookie: Bytes::from_static(COOKIE) }.to_bytes();
        self.owned_op().then(Step::Call { class: "lock", method: "unlock", input })
    }
}

/// Whether somebody has the lease of a shard, by a reading of its attributes and the wall clock. A hint: only taking it
/// tells.
pub fn is_leased(reply: &ObjectReply, wall_ns: u64) -> bool {
    let attribute = attribute(LOCK.as_bytes()).unwrap_or_default();
    let Some(Ok(mut info)) = reply.xattrs.get(&attribute).map(|bytes| LockInfo::from_bytes(bytes)) else {
        return false;
    };
    info.expire(UTime::from_ns(wall_ns));
    !info.lockers.is_empty()
}

fn lock(duration_ns: u64) -> Step {
    let input = LockOp {
        name: Bytes::from(LOCK),
        kind: LockKind::Exclusive,
        cookie: Bytes::from_static(COOKIE),
        duration: UTime::from_ns(duration_ns),
        flags: MAY_RENEW,
        ..LockOp::default()
    };
    Step::Call { class: "lock", method: "lock", input: input.to_bytes() }
}

/// The holder's view of its lease, by its monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerm {
    sent_ns: u64,
    duration_ns: u64,
}

impl LeaseTerm {
    /// Of a taking or renewal that succeeded and was sent at `sent_ns`.
    pub fn new(sent_ns: u64, duration_ns: u64) -> LeaseTerm {
        LeaseTerm { sent_ns, duration_ns }
    }

    /// When it is to be renewed.
    pub fn renew_at_ns(self) -> u64 {
        self.sent_ns.saturating_add(self.duration_ns / RENEWALS)
    }

    /// From when on no more events may be sent to the endpoint.
    pub fn send_until_ns(self) -> u64 {
        self.sent_ns.saturating_add(self.duration_ns - self.duration_ns / MARGIN)
    }

    /// Whether events may still be sent to the endpoint. Checked before each push: an owner that was
    /// suspended stops here.
    pub fn may_send(self, now_ns: u64) -> bool {
        now_ns < self.send_until_ns()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_stops_sending_before_others_may_take_the_lease() {
        let term = LeaseTerm::new(1000, 400);
        assert_eq!(term.renew_at_ns(), 1100);
        assert!(term.may_send(1299) && !term.may_send(1300));
        assert!(LeaseTerm::new(u64::MAX - 1, 400).may_send(u64::MAX - 1));
    }
}
