//! Class `lock`: advisory locks, kept in an attribute of the object for each lock.

use super::access::{PROMOTE, READ, WRITE};
use super::{Class, Context, Method, done, input};
use bytes::Bytes;
use nacre_types::ceph::{CephEncoding, UTime};
use nacre_types::cls::lock::{
    AssertOp, BreakOp, GetInfoOp, ListReply, LockInfo, LockKind, LockOp, Locker, LockerId, MAY_RENEW,
    MUST_RENEW, SetCookieOp, UnlockOp,
};
use nacre_types::errno::Errno;
use nacre_types::op::OpResult;

pub(super) struct Lock;

impl Class for Lock {
    fn name(&self) -> &'static str {
        "lock"
    }

    fn methods(&self) -> &'static [Method] {
        const METHODS: &[Method] = &[
            Method { name: "lock", access: READ | WRITE | PROMOTE, run: lock },
            Method { name: "unlock", access: READ | WRITE | PROMOTE, run: unlock },
            Method { name: "break_lock", access: READ | WRITE, run: break_lock },
            Method { name: "get_info", access: READ, run: get_info },
            Method { name: "list_locks", access: READ, run: list_locks },
            Method { name: "assert_locked", access: READ | PROMOTE, run: assert_locked },
            Method { name: "set_cookie", access: READ | WRITE | PROMOTE, run: set_cookie },
        ];
        METHODS
    }
}

/// What precedes a lock's name in its attribute's.
const PREFIX: &str = "lock.";

fn attribute(name: &[u8]) -> Result<String, Errno> {
    let name = std::str::from_utf8(name).map_err(|_| Errno::EINVAL)?;
    Ok([PREFIX, name].concat())
}

/// A lock without the holds that have lapsed.
fn read(object: &mut Context<'_, '_>, attribute: &str) -> Result<LockInfo, Errno> {
    let mut info: LockInfo = object.get_decoded(attribute)?.unwrap_or_default();
    let now = object.now();
    info.lockers.retain(|_, locker| locker.expiration.is_zero() || locker.expiration >= now);
    Ok(info)
}

fn write(object: &mut Context<'_, '_>, attribute: &str, info: &LockInfo) -> Result<OpResult, Errno> {
    object.set_xattr(attribute, info.to_bytes())?;
    done()
}

fn lock(object: &mut Context<'_, '_>, bytes: &Bytes) -> Result<OpResult, Errno> {
    let op: LockOp = input(bytes)?;
    let (may_renew, must_renew) = (op.flags & MAY_RENEW != 0, op.flags & MUST_RENEW != 0);
    if !op.kind.is_valid() || op.name.is_empty() || may_renew && must_renew {
        return Err(Errno::EINVAL);
    }
    let attribute = attribute(&op.name)?;
    let mut info = match read(object, &attribute) {
        Err(Errno::ENOENT) => LockInfo::default(),
        other => other?,
    };
    // Before a hold of the caller's own is taken away, after which the tag would not be looked at.
    if !info.lockers.is_empty() && info.tag != op.tag {
        return Err(Errno::EBUSY);
    }
    let (name, addr) = object.origin();
    let id: LockerId = (name, op.cookie);
    if info.lockers.contains_key(&id) {
        if !may_renew && !must_renew {
            return Err(Errno::EEXIST);
        }
        info.lockers.remove(&id);
    } else if must_renew {
        return Err(Errno::ENOENT);
    }
    if !info.lockers.is_empty() && (op.kind.is_exclusive() || info.kind != op.kind) {
        return Err(Errno::EBUSY);
    }
    let expiration = match op.duration.is_zero() {
        true => UTime::default(),
        false => UTime::from_ns(object.now().as_ns().saturating_add(op.duration.as_ns())),
    };
    (info.kind, info.tag) = (op.kind, op.tag);
    info.lockers.insert(id, Locker { expiration, addr, description: op.description });
    write(object, &attribute, &info)
}

fn unlock(object: &mut Context<'_, '_>, bytes: &Bytes) -> Result<OpResult, Errno> {
    let op: UnlockOp = input(bytes)?;
    let (name, _) = object.origin();
    remove(object, &op.name, &(name, op.cookie))
}

fn break_lock(object: &mut Context<'_, '_>, bytes: &Bytes) -> Result<OpResult, Errno> {
    let op: BreakOp = input(bytes)?;
    remove(object, &op.name, &(op.locker, op.cookie))
}

fn remove(object: &mut Context<'_, '_>, name: &[u8], id: &LockerId) -> Result<OpResult, Errno> {
    let attribute = attribute(name)?;
    let mut info = read(object, &attribute)?;
    info.lockers.remove(id).ok_or(Errno::ENOENT)?;
    if info.kind == LockKind::ExclusiveEphemeral {
        object.remove()?;
        return done();
    }
    write(object, &attribute, &info)
}

fn get_info(object: &mut Context<'_, '_>, bytes: &Bytes) -> Result<OpResult, Errno> {
    let op: GetInfoOp = input(bytes)?;
    Ok(OpResult::output(read(object, &attribute(&op.name)?)?.to_bytes()))
}

fn list_locks(object: &mut Context<'_, '_>, _bytes: &Bytes) -> Result<OpResult, Errno> {
    let attrs = object.get_xattrs()?;
    let names = attrs.into_iter().filter_map(|(name, _)| Some(name.strip_prefix(PREFIX)?.to_owned().into()));
    Ok(OpResult::output(ListReply { locks: names.collect() }.to_bytes()))
}

/// The lock with the caller's hold, or EBUSY where it does not hold just this.
fn held(
    object: &mut Context<'_, '_>,
    (name, kind): (&[u8], LockKind),
    tag: &Bytes,
    cookie: &Bytes,
) -> Result<(String, LockInfo, LockerId), Errno> {
    if !kind.is_valid() || name.is_empty() {
        return Err(Errno::EINVAL);
    }
    let attribute = attribute(name)?;
    let info = read(object, &attribute)?;
    let id = (object.origin().0, cookie.clone());
    let held = info.kind == kind && info.tag == *tag && info.lockers.contains_key(&id);
    if held { Ok((attribute, info, id)) } else { Err(Errno::EBUSY) }
}

fn assert_locked(object: &mut Context<'_, '_>, bytes: &Bytes) -> Result<OpResult, Errno> {
    let op: AssertOp = input(bytes)?;
    held(object, (&op.name, op.kind), &op.tag, &op.cookie)?;
    done()
}

fn set_cookie(object: &mut Context<'_, '_>, bytes: &Bytes) -> Result<OpResult, Errno> {
    let op: SetCookieOp = input(bytes)?;
    let (attribute, mut info, id) = held(object, (&op.name, op.kind), &op.tag, &op.cookie)?;
    let renamed = (id.0, op.new_cookie);
    if info.lockers.contains_key(&renamed) {
        return Err(Errno::EBUSY);
    }
    if let Some(locker) = info.lockers.remove(&id) {
        info.lockers.insert(renamed, locker);
    }
    write(object, &attribute, &info)
}
