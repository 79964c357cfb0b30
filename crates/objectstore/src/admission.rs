//! Space rules for transactions: which transactions are accepted by a full store, and the size limit of objects.

use crate::MAX_OBJECT_BYTES;
use crate::error::{Result, StoreError};
use nacre_types::object::ObjectId;
use nacre_types::op::OI_ATTR;
use nacre_types::txn::{Transaction, TxnOp};

/// Whether `txn` writes only bookkeeping (log, metadata, the object's info, the existence of an object or a collection) or
/// removes data. A full store accepts such a transaction (rule B6) and takes the space from the ballast, because a member of
/// a PG must be able to apply it. New objects of clients are refused before they are ordered.
pub fn writes_no_data(txn: &Transaction) -> bool {
    let frees = |op: &TxnOp| {
        matches!(
            op,
            TxnOp::Remove(_)
                | TxnOp::RemoveCollection
                | TxnOp::RmAttr { .. }
                | TxnOp::RmAttrs(_)
                | TxnOp::OmapRm { .. }
                | TxnOp::OmapRmRange { .. }
                | TxnOp::OmapClear(_)
                | TxnOp::Truncate { .. }
                | TxnOp::LogTrim(_)
                | TxnOp::LogTruncate(_)
                | TxnOp::MetaRm(_)
        )
    };
    let bookkeeping = |op: &TxnOp| match op {
        // A PG can be created on an OSD that is already full.
        TxnOp::CreateCollection => true,
        TxnOp::MetaSet(_) | TxnOp::LogAppend(_) | TxnOp::Touch(_) | TxnOp::AllocHint { .. } => true,
        // Every change of an object also writes its info, which grows with the number of watchers.
        TxnOp::SetAttrs { attrs, .. } => attrs.iter().all(|(name, _)| name == OI_ATTR),
        _ => false,
    };
    txn.ops.iter().all(|op| frees(op) || bookkeeping(op))
}

/// The end of a range of `oid`. Fails with [`StoreError::TooLarge`] beyond [`MAX_OBJECT_BYTES`].
pub fn range_end(oid: &ObjectId, offset: u64, len: u64) -> Result<u64> {
    let end = offset.saturating_add(len);
    if end > MAX_OBJECT_BYTES {
        return Err(StoreError::TooLarge {
            oid: oid.clone(),
            size_bytes: end,
            limit_bytes: MAX_OBJECT_BYTES,
        });
    }
    Ok(end)
}
