//! What a transaction may do to a store's space: which transactions only give space back, and limits on objects.

use crate::MAX_OBJECT_BYTES;
use crate::error::{Result, StoreError};
use nacre_types::object::ObjectId;
use nacre_types::op::OI_ATTR;
use nacre_types::txn::{Transaction, TxnOp};

/// Whether `txn` writes nothing but bookkeeping (log, metadata, the object's info, that it or a collection exists); it may remove data. Such a
/// transaction is taken even where the store is full (rule B6): its bookkeeping comes out of the ballast. A member of a PG can't
/// do without it. New objects of clients are refused before they are ordered.
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
        // A new PG of an OSD that is full already.
        TxnOp::CreateCollection => true,
        TxnOp::MetaSet(_) | TxnOp::LogAppend(_) | TxnOp::Touch(_) | TxnOp::AllocHint { .. } => true,
        // The object's info goes with every change of an object, and grows with its watchers.
        TxnOp::SetAttrs { attrs, .. } => attrs.iter().all(|(name, _)| name == OI_ATTR),
        _ => false,
    };
    txn.ops.iter().all(|op| frees(op) || bookkeeping(op))
}

/// The end of a range of `oid`, refused beyond [`MAX_OBJECT_BYTES`].
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
