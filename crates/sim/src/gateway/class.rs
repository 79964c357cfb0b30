//! Object classes: `lock`, whose rules are the OSD's own ([`nacre_types::cls::lock`]).

use crate::gateway::object::Working;
use bytes::Bytes;
use nacre_types::ceph::{CephEncoding, SessionName, UTime};
use nacre_types::cls::lock::{
    ATTRIBUTE_PREFIX, AssertOp, BreakOp, GetInfoOp, ListReply, LockInfo, LockKind, LockOp, LockerId,
    SetCookieOp, UnlockOp, attribute,
};
use nacre_types::errno::Errno;
use nacre_types::op::OpResult;

/// Whether a method writes; `None` where there is no such class or method.
pub fn writes(class: &str, method: &str) -> Option<bool> {
    match (class, method) {
        ("lock", "lock" | "unlock" | "break_lock" | "set_cookie") => Some(true),
        ("lock", "get_info" | "list_locks" | "assert_locked") => Some(false),
        _ => None,
    }
}

/// Calls a method.
pub(super) fn call(
    object: &mut Working<'_>,
    class: &str,
    method: &str,
    input: &[u8],
) -> Result<OpResult, Errno> {
    writes(class, method).ok_or(Errno::EOPNOTSUPP)?;
    let output = match method {
        "lock" => lock(object, decode(input)?)?,
        "unlock" => {
            let op: UnlockOp = decode(input)?;
            let id = (holder(object), op.cookie);
            release(object, &op.name, &id)?
        }
        "break_lock" => {
            let op: BreakOp = decode(input)?;
            release(object, &op.name, &(op.locker, op.cookie))?
        }
        "get_info" => {
            let op: GetInfoOp = decode(input)?;
            read(object, &attribute(&op.name)?)?.to_bytes()
        }
        "list_locks" => {
            let names = object.present()?.attrs.keys().filter_map(|name| name.strip_prefix(ATTRIBUTE_PREFIX));
            ListReply { locks: names.map(|name| name.to_owned().into()).collect() }.to_bytes()
        }
        "assert_locked" => {
            let op: AssertOp = decode(input)?;
            held(object, (&op.name, op.kind), &op.tag, op.cookie)?;
            Bytes::new()
        }
        _ => set_cookie(object, decode(input)?)?,
    };
    Ok(OpResult::output(output))
}

/// A method's input; EINVAL where it does not decode.
fn decode<T: CephEncoding>(input: &[u8]) -> Result<T, Errno> {
    T::from_bytes(input).map_err(|_| Errno::EINVAL)
}

fn holder(object: &Working<'_>) -> SessionName {
    SessionName::client(object.context().client)
}

fn now(object: &Working<'_>) -> UTime {
    UTime::from_ns(object.context().now_ns)
}

/// A lock without the holds that have lapsed; ENOENT where the object is absent.
fn read(object: &Working<'_>, attribute: &str) -> Result<LockInfo, Errno> {
    let mut info = match object.attr(attribute)? {
        Some(stored) => LockInfo::from_bytes(&stored).map_err(|_| Errno::EIO)?,
        None => LockInfo::default(),
    };
    info.expire(now(object));
    Ok(info)
}

fn write(object: &mut Working<'_>, attribute: &str, info: &LockInfo) -> Result<Bytes, Errno> {
    object.set_attr(attribute, info.to_bytes())?;
    Ok(Bytes::new())
}

fn lock(object: &mut Working<'_>, op: LockOp) -> Result<Bytes, Errno> {
    op.validate()?;
    let attribute = attribute(&op.name)?;
    let mut info = match read(object, &attribute) {
        Err(Errno::ENOENT) => LockInfo::default(),
        other => other?,
    };
    info.take(op, holder(object), object.context().addr, now(object))?;
    write(object, &attribute, &info)
}

fn release(object: &mut Working<'_>, name: &[u8], id: &LockerId) -> Result<Bytes, Errno> {
    let attribute = attribute(name)?;
    let mut info = read(object, &attribute)?;
    info.release(id)?;
    if info.kind == LockKind::ExclusiveEphemeral {
        object.remove()?;
        return Ok(Bytes::new());
    }
    write(object, &attribute, &info)
}

/// The lock with the caller's hold, or EBUSY where it does not hold just this.
fn held(
    object: &Working<'_>,
    (name, kind): (&[u8], LockKind),
    tag: &Bytes,
    cookie: Bytes,
) -> Result<(String, LockInfo, LockerId), Errno> {
    if !kind.is_valid() || name.is_empty() {
        return Err(Errno::EINVAL);
    }
    let attribute = attribute(name)?;
    let info = read(object, &attribute)?;
    let id = (holder(object), cookie);
    info.check_held(kind, tag, &id)?;
    Ok((attribute, info, id))
}

fn set_cookie(object: &mut Working<'_>, op: SetCookieOp) -> Result<Bytes, Errno> {
    let (attribute, mut info, id) = held(object, (&op.name, op.kind), &op.tag, op.cookie)?;
    info.set_cookie(id, op.new_cookie)?;
    write(object, &attribute, &info)
}
