//! Leases: which gateway delivers a shard.
//!
//! The lock [`LOCK`] of class `lock` on the shard's object determines who may become the owner, and for how long no other
//! gateway may. OSDs measure that time. Taking the lock raises the epoch in the shard's owner attribute in the same
//! operation. The epoch makes settling safe: every operation of an owner compares it. The lock and its duration only
//! determine when another gateway may try to take over. So wrong clocks cost time or cause redeliveries, but never lose
//! events.
//!
//! A gateway holds leases only for shards that it works on. It releases a shard that is empty, and a shard whose endpoint
//! has an open circuit breaker, unless it must spill. So topics without work cost no renewals.

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
/// The number of renewals in a lease term.
pub const RENEWALS_PER_TERM: u64 = 4;
/// The fraction of a lease term, at its end, in which the holder sends no more: a quarter, to allow for clock differences.
const MARGIN: u64 = 4;

impl Shard {
    /// Takes the lease; fails with EBUSY while another session holds it, and with ECANCELED if the owner changed. Also
    /// returns the owner of the shard after the operation.
    ///
    /// The new owner reads the shard again, because the previous owner may have settled events until now. It continues only
    /// if the shard still has this owner ([`Shard::is_owned_by`]).
    pub fn take_lease(&self, client: u64, duration_ns: u64) -> (ObjectOp, Owner) {
        self.take(client, |op| op.then(lock(duration_ns)))
    }

    /// Takes the lease of an owner whose gateway has ended; fails with ENOENT if its lock has expired, in which case
    /// [`Shard::take_lease`] succeeds.
    ///
    /// Taking the lease from a live owner only causes redeliveries.
    pub fn take_over_lease(&self, client: u64, duration_ns: u64) -> (ObjectOp, Owner) {
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

    /// Renews the lease of the owner that was read; fails with ECANCELED if the shard has another owner.
    pub fn renew_lease(&self, duration_ns: u64) -> ObjectOp {
        self.owned_op().then(lock(duration_ns))
    }

    /// Adds a renewal of the lease to another operation of the owner that was read.
    #[must_use]
    pub fn with_renewal(&self, op: ObjectOp, duration_ns: u64) -> ObjectOp {
        debug_assert!(op.object == self.object, "the lease is on the shard's object");
        op.then(lock(duration_ns))
    }

    /// Releases the lease. The owner attribute remains: the next owner uses the next epoch.
    pub fn release_lease(&self) -> ObjectOp {
        let input = UnlockOp { name: Bytes::from(LOCK), cookie: Bytes::from_static(COOKIE) }.to_bytes();
        self.owned_op().then(Step::Call { class: "lock", method: "unlock", input })
    }
}

/// Whether the shard's lease is held, according to its attributes and the wall clock. This is a hint; only taking the lease
/// tells for certain.
pub fn is_leased(reply: &ObjectReply, wall_ns: u64) -> bool {
    let attribute = attribute(LOCK.as_bytes()).unwrap_or_default();
    let Some(Ok(mut info)) = reply.xattrs.get(&attribute).map(|bytes| LockInfo::from_bytes(bytes)) else {
        return false;
    };
    info.remove_expired(UTime::from_ns(wall_ns));
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

/// The holder's view of its lease, based on its monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerm {
    sent_ns: u64,
    duration_ns: u64,
}

impl LeaseTerm {
    /// The term of a lease that was taken or renewed by an operation sent at `sent_ns`.
    pub fn new(sent_ns: u64, duration_ns: u64) -> LeaseTerm {
        LeaseTerm { sent_ns, duration_ns }
    }

    /// When the lease must be renewed.
    pub fn renew_at_ns(self) -> u64 {
        self.sent_ns.saturating_add(self.duration_ns / RENEWALS_PER_TERM)
    }

    /// The time after which no more events may be sent to the endpoint.
    pub fn send_until_ns(self) -> u64 {
        self.sent_ns.saturating_add(self.duration_ns - self.duration_ns / MARGIN)
    }

    /// Whether events may still be sent to the endpoint. Checked before each push, so that an owner that was suspended
    /// stops sending.
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
