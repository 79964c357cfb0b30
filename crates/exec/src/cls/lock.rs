//! Class `lock`: advisory locks. Each lock is an attribute of the object.

use super::access::{PROMOTE, READ, WRITE};
use super::{Class, Method, MethodContext, done, input};
use bytes::Bytes;
use nacre_types::ceph::CephEncoding;
use nacre_types::cls::lock::{
    ATTRIBUTE_PREFIX, AssertOp, BreakOp, GetInfoOp, ListReply, LockInfo, LockKind, LockOp, LockerId,
    SetCookieOp, UnlockOp, attribute,
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

/// Reads a lock without its expired holders.
fn read(object: &mut MethodContext<'_, '_>, attribute: &str) -> Result<LockInfo, Errno> {
    let mut info: LockInfo = object.get_decoded(attribute)?.unwrap_or_default();
    info.remove_expired(object.now());
    Ok(info)
}

fn write(object: &mut MethodContext<'_, '_>, attribute: &str, info: &LockInfo) -> Result<OpResult, Errno> {
    object.set_xattr(attribute, info.to_bytes())?;
    done()
}

fn lock(object: &mut MethodContext<'_, '_>, bytes: &Bytes) -> Result<OpResult, Errno> {
    let op: LockOp = input(bytes)?;
    op.validate()?;
    let attribute = attribute(&op.name)?;
    let mut info = match read(object, &attribute) {
        Err(Errno::ENOENT) => LockInfo::default(),
        other => other?,
    };
    let (name, addr) = object.origin();
    info.take(op, name, addr, object.now())?;
    write(object, &attribute, &info)
}

fn unlock(object: &mut MethodContext<'_, '_>, bytes: &Bytes) -> Result<OpResult, Errno> {
    let op: UnlockOp = input(bytes)?;
    let (name, _) = object.origin();
    remove(object, &op.name, &(name, op.cookie))
}

fn break_lock(object: &mut MethodContext<'_, '_>, bytes: &Bytes) -> Result<OpResult, Errno> {
    let op: BreakOp = input(bytes)?;
    remove(object, &op.name, &(op.locker, op.cookie))
}

fn remove(object: &mut MethodContext<'_, '_>, name: &[u8], id: &LockerId) -> Result<OpResult, Errno> {
    let attribute = attribute(name)?;
    let mut info = read(object, &attribute)?;
    info.release(id)?;
    if info.kind == LockKind::ExclusiveEphemeral {
        object.remove()?;
        return done();
    }
    write(object, &attribute, &info)
}

fn get_info(object: &mut MethodContext<'_, '_>, bytes: &Bytes) -> Result<OpResult, Errno> {
    let op: GetInfoOp = input(bytes)?;
    Ok(OpResult::output(read(object, &attribute(&op.name)?)?.to_bytes()))
}

fn list_locks(object: &mut MethodContext<'_, '_>, _bytes: &Bytes) -> Result<OpResult, Errno> {
    let attrs = object.get_xattrs()?;
    let names = attrs
        .into_iter()
        .filter_map(|(name, _)| Some(name.strip_prefix(ATTRIBUTE_PREFIX)?.to_owned().into()));
    Ok(OpResult::output(ListReply { locks: names.collect() }.to_bytes()))
}

/// Returns the lock and the caller's hold. Fails with EBUSY if the caller does not hold exactly this.
fn held(
    object: &mut MethodContext<'_, '_>,
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
    info.check_held(kind, tag, &id)?;
    Ok((attribute, info, id))
}

fn assert_locked(object: &mut MethodContext<'_, '_>, bytes: &Bytes) -> Result<OpResult, Errno> {
    let op: AssertOp = input(bytes)?;
    held(object, (&op.name, op.kind), &op.tag, &op.cookie)?;
    done()
}

fn set_cookie(object: &mut MethodContext<'_, '_>, bytes: &Bytes) -> Result<OpResult, Errno> {
    let op: SetCookieOp = input(bytes)?;
    let (attribute, mut info, id) = held(object, (&op.name, op.kind), &op.tag, &op.cookie)?;
    info.set_cookie(id, op.new_cookie)?;
    write(object, &attribute, &info)
}
