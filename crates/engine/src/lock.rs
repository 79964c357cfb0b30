//! Advisory locks: object class `lock`, called as by librados' `lock_exclusive` and related functions.

use crate::completion::Pending;
use crate::error::{Error, Result};
use crate::ioctx::IoCtx;
use bytes::Bytes;
use nacre_types::ceph::{CephEncoding, SessionName, UTime};
use nacre_types::cls::lock::{
    AssertOp, BreakOp, GetInfoOp, ListReply, LockInfo, LockKind, LockOp, SetCookieOp, UnlockOp,
};
use std::time::Duration;

const CLASS: &str = "lock";

/// Locks on objects.
impl IoCtx {
    /// Takes a lock as specified by `op`. Fails with EBUSY if others hold it, and with EEXIST if the caller does (see
    /// [`nacre_types::cls::lock::MAY_RENEW`]). Creates the object if it is absent.
    pub fn lock(&self, name: &str, op: &LockOp) -> Pending<()> {
        self.exec(name, CLASS, "lock", op.to_bytes())
    }

    /// Takes a lock with a single holder. It expires after `duration`, unless that is zero.
    pub fn lock_exclusive(
        &self,
        name: &str,
        lock: &str,
        cookie: &str,
        description: &str,
        duration: Duration,
        flags: u8,
    ) -> Pending<()> {
        self.lock(name, &lock_op(LockKind::Exclusive, lock, (cookie, ""), description, duration, flags))
    }

    /// Like [`IoCtx::lock_exclusive`]; the object is removed when the lock is released.
    pub fn lock_exclusive_ephemeral(
        &self,
        name: &str,
        lock: &str,
        cookie: &str,
        description: &str,
        duration: Duration,
        flags: u8,
    ) -> Pending<()> {
        let kind = LockKind::ExclusiveEphemeral;
        self.lock(name, &lock_op(kind, lock, (cookie, ""), description, duration, flags))
    }

    /// Takes a lock with any number of holders that use the same tag. `hold` is the caller's cookie and the tag.
    pub fn lock_shared(
        &self,
        name: &str,
        lock: &str,
        hold: (&str, &str),
        description: &str,
        duration: Duration,
        flags: u8,
    ) -> Pending<()> {
        self.lock(name, &lock_op(LockKind::Shared, lock, hold, description, duration, flags))
    }

    /// Releases a lock. Fails with ENOENT if the caller does not hold it with this cookie.
    pub fn unlock(&self, name: &str, lock: &str, cookie: &str) -> Pending<()> {
        let op = UnlockOp { name: text(lock), cookie: text(cookie) };
        self.exec(name, CLASS, "unlock", op.to_bytes())
    }

    /// Revokes the lock of `holder`, such as `client.4123` (EINVAL if it is not such a name).
    pub fn break_lock(&self, name: &str, lock: &str, holder: &str, cookie: &str) -> Pending<()> {
        let Some(locker) = SessionName::parse(holder) else {
            let detail = format!("'{holder}' is no client such as client.4123");
            return Pending::ready(Err(Error::Invalid { errno: nacre_types::errno::Errno::EINVAL, detail }));
        };
        let op = BreakOp { name: text(lock), locker, cookie: text(cookie) };
        self.exec(name, CLASS, "break_lock", op.to_bytes())
    }

    /// Returns the holders of a lock; there are none if the lock does not exist.
    pub fn lock_info(&self, name: &str, lock: &str) -> Pending<LockInfo> {
        let op = GetInfoOp { name: text(lock) };
        self.call(name, CLASS, "get_info", op.to_bytes()).then(|reply| decode(reply?))
    }

    /// Names of the object's locks.
    pub fn list_locks(&self, name: &str) -> Pending<Vec<Bytes>> {
        let reply = self.call(name, CLASS, "list_locks", Bytes::new());
        reply.then(|reply| Ok(decode::<ListReply>(reply?)?.locks))
    }

    /// Fails with EBUSY unless the caller holds the lock exactly as `op` specifies.
    pub fn assert_locked(&self, name: &str, op: &AssertOp) -> Pending<()> {
        self.exec(name, CLASS, "assert_locked", op.to_bytes())
    }

    /// Changes the cookie of the caller's hold.
    pub fn set_lock_cookie(&self, name: &str, op: &SetCookieOp) -> Pending<()> {
        self.exec(name, CLASS, "set_cookie", op.to_bytes())
    }

    fn exec(&self, name: &str, class: &str, method: &str, input: Bytes) -> Pending<()> {
        self.call(name, class, method, input).then(|reply| reply.map(drop))
    }
}

fn text(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn decode<T: CephEncoding>(bytes: Bytes) -> Result<T> {
    Ok(T::from_bytes(&bytes)?)
}

fn lock_op(
    kind: LockKind,
    lock: &str,
    (cookie, tag): (&str, &str),
    description: &str,
    duration: Duration,
    flags: u8,
) -> LockOp {
    let duration = UTime::from_ns(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    let (cookie, tag) = (text(cookie), text(tag));
    LockOp { name: text(lock), kind, cookie, tag, description: text(description), duration, flags }
}
