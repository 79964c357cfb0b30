//! Store transactions: a primary creates them from client operations, sends them to replicas and applies them to its store.
//!
//! A transaction changes one collection (one PG) and is applied completely or not at all. The order of its steps matters.

use crate::encoding::Versioned;
use crate::ids::{Eversion, PgId};
use crate::msg::KV_ENTRY_OVERHEAD_BYTES;
use crate::object::ObjectId;
use crate::payload::Payload;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// One step of a [`Transaction`]. Steps that change an object create it if it is absent, except for `Remove`, `RmAttr`,
/// `OmapRm…`, `Clone` and `Rename`: `Clone` and `Rename` of an absent source fail the transaction, the others have no effect.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum TxnOp {
    /// Creates the collection unless it exists.
    CreateCollection,
    /// Removes the collection, which must not have any objects, with its log and metadata.
    RemoveCollection,
    /// Creates the object empty.
    Touch(ObjectId),
    /// Writes `data` at `offset`. Extends the object, with a hole before the data, if needed.
    Write {
        /// The object.
        oid: ObjectId,
        /// The offset in bytes.
        offset: u64,
        /// The data.
        data: Payload,
    },
    /// Zeroes a range and extends the object if needed.
    Zero {
        /// The object.
        oid: ObjectId,
        /// Start in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Sets the size. Truncates the data or adds a hole.
    Truncate {
        /// The object.
        oid: ObjectId,
        /// The new size in bytes.
        size: u64,
    },
    /// Removes the object with its attributes and omap.
    Remove(ObjectId),
    /// Sets attributes.
    SetAttrs {
        /// The object.
        oid: ObjectId,
        /// Names and values.
        attrs: Vec<(String, Bytes)>,
    },
    /// Removes one attribute.
    RmAttr {
        /// The object.
        oid: ObjectId,
        /// Its name.
        name: String,
    },
    /// Removes all attributes.
    RmAttrs(ObjectId),
    /// Sets omap entries.
    OmapSet {
        /// The object.
        oid: ObjectId,
        /// Keys and values.
        entries: Vec<(Bytes, Bytes)>,
    },
    /// Removes omap entries.
    OmapRm {
        /// The object.
        oid: ObjectId,
        /// Their keys.
        keys: Vec<Bytes>,
    },
    /// Removes omap entries with `first <= key < last`.
    OmapRmRange {
        /// The object.
        oid: ObjectId,
        /// The first key removed.
        first: Bytes,
        /// The first key kept.
        last: Bytes,
    },
    /// Removes all omap entries and the header.
    OmapClear(ObjectId),
    /// Sets the omap header.
    OmapSetHeader {
        /// The object.
        oid: ObjectId,
        /// The header.
        header: Bytes,
    },
    /// Replaces `to` by a copy of `from`: data (shared instead of copied if the store can), attributes and omap.
    Clone {
        /// The source.
        from: ObjectId,
        /// The copy.
        to: ObjectId,
    },
    /// Copies a range of data between objects.
    CloneRange {
        /// The source.
        from: ObjectId,
        /// The destination.
        to: ObjectId,
        /// Start in the source.
        from_offset: u64,
        /// Length in bytes.
        len: u64,
        /// Start in the destination.
        to_offset: u64,
    },
    /// Renames an object within the collection. Replaces an object with the new name.
    Rename {
        /// The old name.
        from: ObjectId,
        /// The new name.
        to: ObjectId,
    },
    /// Sets hints of the object's final size and its writes.
    AllocHint {
        /// The object.
        oid: ObjectId,
        /// Expected object size in bytes.
        expected_object_size: u64,
        /// Expected write size in bytes.
        expected_write_size: u64,
        /// `LIBRADOS_ALLOC_HINT_FLAG_*`.
        flags: u32,
    },
    /// Sets the collection's own small values (PG info and others).
    MetaSet(Vec<(String, Bytes)>),
    /// Removes the collection's own values.
    MetaRm(Vec<String>),
    /// Appends entries to the collection's log.
    LogAppend(Vec<(Eversion, Bytes)>),
    /// Removes log entries up to and including this version.
    LogTrim(Eversion),
    /// Removes log entries after this version, which are divergent.
    LogTruncate(Eversion),
}

impl TxnOp {
    /// Whether it changes an object, as opposed to the collection itself, its values or its log.
    pub fn changes_object(&self) -> bool {
        !matches!(
            self,
            TxnOp::CreateCollection
                | TxnOp::RemoveCollection
                | TxnOp::MetaSet(_)
                | TxnOp::MetaRm(_)
                | TxnOp::LogAppend(_)
                | TxnOp::LogTrim(_)
                | TxnOp::LogTruncate(_)
        )
    }
}

/// An atomic change of one collection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Transaction {
    /// The collection: one PG's objects, log and metadata.
    pub collection: PgId,
    /// The steps, in order.
    pub ops: Vec<TxnOp>,
}

impl Versioned for Transaction {
    const NAME: &'static str = "Transaction";
}

impl Transaction {
    /// Creates a transaction without steps.
    pub fn new(collection: PgId) -> Transaction {
        Transaction { collection, ops: Vec::new() }
    }

    /// Adds a step.
    pub fn push(&mut self, op: TxnOp) -> &mut Transaction {
        self.ops.push(op);
        self
    }

    /// The maximum number of bytes that it takes in a store, for checks of space: an attribute or omap entry counts
    /// [`KV_ENTRY_OVERHEAD_BYTES`] more than its contents.
    pub fn payload_bytes(&self) -> usize {
        let entry = |key: usize, value: usize| KV_ENTRY_OVERHEAD_BYTES + key + value;
        self.ops
            .iter()
            .map(|op| match op {
                TxnOp::Write { data, .. } => data.len(),
                TxnOp::SetAttrs { attrs, .. } => attrs.iter().map(|(k, v)| entry(k.len(), v.len())).sum(),
                TxnOp::OmapSet { entries, .. } => entries.iter().map(|(k, v)| entry(k.len(), v.len())).sum(),
                TxnOp::OmapSetHeader { header, .. } => header.len(),
                TxnOp::MetaSet(list) => list.iter().map(|(k, v)| k.len() + v.len()).sum(),
                TxnOp::LogAppend(list) => list.iter().map(|(_, v)| v.len()).sum(),
                _ => 0,
            })
            .sum()
    }
}
