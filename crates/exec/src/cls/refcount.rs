//! Class `refcount`: an object is removed when its last reference is put.

use super::access::{READ, WRITE};
use super::{Class, Method, MethodContext, done, input};
use bytes::Bytes;
use nacre_types::ceph::CephEncoding;
use nacre_types::cls::refcount::{ReadOp, RefList, RefOp, Refcount};
use nacre_types::errno::Errno;
use nacre_types::op::OpResult;

pub(super) struct RefCount;

impl Class for RefCount {
    fn name(&self) -> &'static str {
        "refcount"
    }

    fn methods(&self) -> &'static [Method] {
        const METHODS: &[Method] = &[
            Method { name: "get", access: READ | WRITE, run: get },
            Method { name: "put", access: READ | WRITE, run: put },
            Method { name: "set", access: READ | WRITE, run: set },
            Method { name: "read", access: READ, run: read },
        ];
        METHODS
    }
}

const ATTRIBUTE: &str = "refcount";
/// The tag of the implicit reference of an object without references.
const IMPLICIT: Bytes = Bytes::new();

fn stored(object: &mut MethodContext<'_, '_>, implicit: bool) -> Result<Refcount, Errno> {
    let stored: Option<Refcount> = object.get_decoded(ATTRIBUTE)?;
    Ok(stored.unwrap_or_else(|| {
        let mut none = Refcount::default();
        if implicit {
            none.refs.insert(IMPLICIT, true);
        }
        none
    }))
}

fn write(object: &mut MethodContext<'_, '_>, refcount: &Refcount) -> Result<OpResult, Errno> {
    object.set_xattr(ATTRIBUTE, refcount.to_bytes())?;
    done()
}

fn get(object: &mut MethodContext<'_, '_>, bytes: &Bytes) -> Result<OpResult, Errno> {
    let op: RefOp = input(bytes)?;
    let mut refcount = stored(object, op.implicit)?;
    refcount.refs.insert(op.tag, true);
    write(object, &refcount)
}

fn put(object: &mut MethodContext<'_, '_>, bytes: &Bytes) -> Result<OpResult, Errno> {
    let op: RefOp = input(bytes)?;
    let mut refcount = stored(object, op.implicit)?;
    if refcount.refs.is_empty() {
        return Err(Errno::EINVAL);
    }
    let named = refcount.refs.contains_key(&op.tag).then(|| op.tag.clone());
    let found = named.or_else(|| (op.implicit && refcount.refs.contains_key(&IMPLICIT)).then_some(IMPLICIT));
    let Some(found) = found.filter(|_| !refcount.retired.contains(&op.tag)) else { return done() };
    refcount.retired.insert(op.tag);
    refcount.refs.remove(&found);
    if refcount.refs.is_empty() {
        object.remove()?;
        return done();
    }
    write(object, &refcount)
}

fn set(object: &mut MethodContext<'_, '_>, bytes: &Bytes) -> Result<OpResult, Errno> {
    let op: RefList = input(bytes)?;
    if op.refs.is_empty() {
        object.remove()?;
        return done();
    }
    let refs = op.refs.into_iter().map(|tag| (tag, true)).collect();
    write(object, &Refcount { refs, ..Refcount::default() })
}

fn read(object: &mut MethodContext<'_, '_>, bytes: &Bytes) -> Result<OpResult, Errno> {
    let op: ReadOp = input(bytes)?;
    let refs = stored(object, op.implicit)?.refs.into_keys().collect();
    Ok(OpResult::output(RefList { refs }.to_bytes()))
}
