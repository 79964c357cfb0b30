//! Class `version`: a version that the user controls, with conditions on it.

use super::access::{READ, WRITE};
use super::{Class, Method, MethodContext, done, input};
use bytes::Bytes;
use nacre_types::ceph::CephEncoding;
use nacre_types::cls::version::{ConditionsOp, ObjVersion, VersionOp};
use nacre_types::errno::Errno;
use nacre_types::op::OpResult;

pub(super) struct Version;

impl Class for Version {
    fn name(&self) -> &'static str {
        "version"
    }

    fn methods(&self) -> &'static [Method] {
        const METHODS: &[Method] = &[
            Method { name: "set", access: READ | WRITE, run: set },
            Method { name: "inc", access: READ | WRITE, run: increment },
            Method { name: "inc_conds", access: READ | WRITE, run: increment },
            Method { name: "read", access: READ, run: read },
            Method { name: "check_conds", access: READ, run: check },
        ];
        METHODS
    }
}

const ATTRIBUTE: &str = "ceph.objclass.version";
/// Number of characters of a new object's tag.
const TAG_BYTES: usize = 24;
/// Characters of tags (`cls_gen_rand_base64`).
const TAG_ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

fn stored(object: &mut MethodContext<'_, '_>) -> Result<Option<ObjVersion>, Errno> {
    match object.get_decoded(ATTRIBUTE) {
        Err(Errno::ENOENT) => Ok(None),
        other => other,
    }
}

fn write(object: &mut MethodContext<'_, '_>, version: &ObjVersion) -> Result<OpResult, Errno> {
    object.set_xattr(ATTRIBUTE, version.to_bytes())?;
    done()
}

fn random_tag(object: &MethodContext<'_, '_>) -> Bytes {
    let random = [*object.fresh_uuid().as_bytes(), *object.fresh_uuid().as_bytes()].concat();
    random[..TAG_BYTES].iter().map(|byte| TAG_ALPHABET[usize::from(byte & 63)]).collect()
}

fn set(object: &mut MethodContext<'_, '_>, bytes: &Bytes) -> Result<OpResult, Errno> {
    write(object, &input::<VersionOp>(bytes)?.version)
}

/// Increments the version. A missing version starts at 1, and the conditions are checked against that.
fn increment(object: &mut MethodContext<'_, '_>, bytes: &Bytes) -> Result<OpResult, Errno> {
    let op: ConditionsOp = input(bytes)?;
    let mut version = match stored(object)? {
        Some(version) => version,
        None => ObjVersion { version: 1, tag: random_tag(object) },
    };
    conditions_hold(&op, &version)?;
    version.version = version.version.wrapping_add(1);
    write(object, &version)
}

fn conditions_hold(op: &ConditionsOp, version: &ObjVersion) -> Result<(), Errno> {
    let holds = op.conditions.iter().all(|(given, condition)| condition.holds(version, given));
    if holds { Ok(()) } else { Err(Errno::ECANCELED) }
}

fn read(object: &mut MethodContext<'_, '_>, _bytes: &Bytes) -> Result<OpResult, Errno> {
    let version = stored(object)?.unwrap_or_default();
    Ok(OpResult::output(VersionOp { version }.to_bytes()))
}

fn check(object: &mut MethodContext<'_, '_>, bytes: &Bytes) -> Result<OpResult, Errno> {
    let op: ConditionsOp = input(bytes)?;
    conditions_hold(&op, &stored(object)?.unwrap_or_default())?;
    done()
}
