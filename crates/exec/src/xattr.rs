//! Sets and compares attributes, for ops and object classes.

use crate::op_context::OpContext;
use bytes::Bytes;
use nacre_types::errno::Errno;
use nacre_types::op::{CmpOp, CmpValue, OpResult};

/// The code of a comparison that is true, as in Ceph.
const COMPARISON_HOLDS: i32 = 1;

/// Sets a user's attribute, within the limits.
pub(crate) fn set(object: &mut OpContext<'_>, name: &str, value: Bytes) -> Result<(), Errno> {
    let limits = object.limits();
    if limits.max_attr_size_bytes > 0 && value.len() as u64 > limits.max_attr_size_bytes {
        return Err(Errno::EFBIG);
    }
    if name.len() > limits.max_attr_name_len {
        return Err(Errno::ENAMETOOLONG);
    }
    object.create();
    object.set_user_attr(name, value);
    Ok(())
}

/// Compares an attribute with a value; an absent one counts as empty.
pub(crate) fn compare(
    object: &OpContext<'_>,
    name: &str,
    op: CmpOp,
    value: &CmpValue,
) -> Result<OpResult, Errno> {
    let stored = object.user_attr(name)?.unwrap_or_default();
    if !value.holds(op, &stored) {
        return Err(Errno::ECANCELED);
    }
    Ok(OpResult { code: COMPARISON_HOLDS, output: Bytes::new() })
}
