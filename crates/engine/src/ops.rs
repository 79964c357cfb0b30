//! Compound operations on one object, like `rados_write_op_t` and `rados_read_op_t` in C.
//!
//! An operation is applied completely or not at all, in the order in which its parts were added.

use crate::error::{Error, Result};
use bytes::Bytes;
use nacre_types::encoding;
use nacre_types::errno::Errno;
use nacre_types::op::{
    ChecksumKind, CmpOp, CmpValue, ExtentsReply, OmapKeysReply, OmapValsReply, Op, OpResult, OsdOp, Pairs,
    SparseReadReply, StatReply, WatchInfo, WatchersReply, op_flag, request_flag,
};
use nacre_types::payload::Payload;
use std::collections::BTreeMap;

/// Methods of both reads and writes.
macro_rules! guards {
    () => {
        /// Fails the operation with ENOENT if the object is absent.
        pub fn assert_exists(&mut self) -> &mut Self {
            self.push(Op::AssertExists)
        }

        /// Fails the operation with ERANGE or EOVERFLOW unless the object's user version is this one.
        pub fn assert_version(&mut self, version: u64) -> &mut Self {
            self.push(Op::AssertVersion { version })
        }

        /// Fails the operation with ECANCELED unless `value OP attribute` is true, both as bytes.
        pub fn cmp_xattr(&mut self, name: &str, op: CmpOp, value: impl Into<Bytes>) -> &mut Self {
            let value = CmpValue::Bytes(value.into());
            self.push(Op::CmpXattr { name: name.to_owned(), op, value })
        }

        /// Like [`Self::cmp_xattr`], with both as unsigned numbers.
        pub fn cmp_xattr_u64(&mut self, name: &str, op: CmpOp, value: u64) -> &mut Self {
            self.push(Op::CmpXattr { name: name.to_owned(), op, value: CmpValue::U64(value) })
        }

        /// Fails the operation with ECANCELED unless every `(key, OP, value)` is true.
        pub fn omap_cmp(&mut self, assertions: Vec<(Bytes, CmpOp, Bytes)>) -> &mut Self {
            self.push(Op::OmapCmp { assertions })
        }

        /// Calls an object class's method.
        pub fn call(&mut self, class: &str, method: &str, input: impl Into<Bytes>) -> &mut Self {
            self.push(Op::Call { class: class.to_owned(), method: method.to_owned(), input: input.into() })
        }

        /// Fails the operation unless the object has `data` at `offset`, with zeros beyond its end. The result is then
        /// [`nacre_types::op::cmpext_mismatch_result`].
        pub fn cmpext(&mut self, offset: u64, data: impl Into<Bytes>) -> &mut Self {
            self.push(Op::CmpExt { offset, data: data.into() })
        }

        /// Sets flags ([`op_flag`]) of the part added last.
        pub fn op_flags(&mut self, flags: u32) -> &mut Self {
            if let Some(last) = self.ops.last_mut() {
                last.flags |= flags;
            }
            self
        }

        /// Adds request flags ([`request_flag`]).
        pub fn flags(&mut self, flags: u32) -> &mut Self {
            self.flags |= flags;
            self
        }

        /// Adds any part.
        pub fn push(&mut self, op: Op) -> &mut Self {
            self.ops.push(OsdOp::from(op));
            self
        }

        /// Number of parts.
        pub fn len(&self) -> usize {
            self.ops.len()
        }

        /// Whether there are no parts.
        pub fn is_empty(&self) -> bool {
            self.ops.is_empty()
        }
    };
}

/// A compound write.
#[derive(Debug, Clone, Default)]
pub struct WriteOp {
    pub(crate) ops: Vec<OsdOp>,
    pub(crate) flags: u32,
    pub(crate) mtime_ns: Option<u64>,
}

impl WriteOp {
    /// Creates an empty operation.
    pub fn new() -> WriteOp {
        WriteOp::default()
    }

    guards!();

    /// Creates the object; with `exclusive` an existing one fails the operation with EEXIST.
    pub fn create(&mut self, exclusive: bool) -> &mut Self {
        self.push(Op::Create { exclusive });
        if exclusive { self.op_flags(op_flag::EXCL) } else { self }
    }

    /// Writes at `offset` bytes.
    pub fn write(&mut self, offset: u64, data: impl Into<Payload>) -> &mut Self {
        self.push(Op::Write { offset, data: data.into() })
    }

    /// Fills `len` bytes at `offset` with repetitions of `data`, whose length must divide `len` (EINVAL).
    pub fn write_same(&mut self, offset: u64, len: u64, data: impl Into<Bytes>) -> &mut Self {
        self.push(Op::WriteSame { offset, len, data: data.into() })
    }

    /// Replaces the object's data.
    pub fn write_full(&mut self, data: impl Into<Payload>) -> &mut Self {
        self.push(Op::WriteFull { data: data.into() })
    }

    /// Appends to the object.
    pub fn append(&mut self, data: impl Into<Payload>) -> &mut Self {
        self.push(Op::Append { data: data.into() })
    }

    /// Sets the object's size in bytes.
    pub fn truncate(&mut self, size: u64) -> &mut Self {
        self.push(Op::Truncate { size })
    }

    /// Zeroes a range.
    pub fn zero(&mut self, offset: u64, len: u64) -> &mut Self {
        self.push(Op::Zero { offset, len })
    }

    /// Removes the object.
    pub fn remove(&mut self) -> &mut Self {
        self.push(Op::Remove)
    }

    /// Sets an attribute.
    pub fn set_xattr(&mut self, name: &str, value: impl Into<Bytes>) -> &mut Self {
        self.push(Op::SetXattr { name: name.to_owned(), value: value.into() })
    }

    /// Removes an attribute.
    pub fn rm_xattr(&mut self, name: &str) -> &mut Self {
        self.push(Op::RmXattr { name: name.to_owned() })
    }

    /// Sets omap entries.
    pub fn omap_set(&mut self, entries: Vec<(Bytes, Bytes)>) -> &mut Self {
        self.push(Op::OmapSet { entries })
    }

    /// Sets the omap header.
    pub fn omap_set_header(&mut self, header: impl Into<Bytes>) -> &mut Self {
        self.push(Op::OmapSetHeader { header: header.into() })
    }

    /// Removes omap entries.
    pub fn omap_rm_keys(&mut self, keys: Vec<Bytes>) -> &mut Self {
        self.push(Op::OmapRmKeys { keys })
    }

    /// Removes omap entries with `first <= key < last`.
    pub fn omap_rm_range(&mut self, first: impl Into<Bytes>, last: impl Into<Bytes>) -> &mut Self {
        self.push(Op::OmapRmRange { first: first.into(), last: last.into() })
    }

    /// Removes all omap entries and the header.
    pub fn omap_clear(&mut self) -> &mut Self {
        self.push(Op::OmapClear)
    }

    /// Sets hints of the object's final size and the size of writes, in bytes.
    pub fn set_alloc_hint(
        &mut self,
        expected_object_size: u64,
        expected_write_size: u64,
        flags: u32,
    ) -> &mut Self {
        self.push(Op::SetAllocHint { expected_object_size, expected_write_size, flags })
    }

    /// Sets the object's modification time, in nanoseconds since 1970, instead of the current time.
    pub fn mtime_ns(&mut self, mtime_ns: u64) -> &mut Self {
        self.mtime_ns = Some(mtime_ns);
        self
    }

    /// Continues although the cluster or pool is full.
    pub fn full_force(&mut self) -> &mut Self {
        self.flags(request_flag::FULL_FORCE)
    }

    /// Also returns the results and outputs of the parts of a successful write. Each output is limited to
    /// `osd_max_write_op_reply_len` bytes (EOVERFLOW).
    pub fn return_vec(&mut self) -> &mut Self {
        self.flags(request_flag::RETURNVEC)
    }

    /// Continues although the cluster or pool is full. Fails with ENOSPC or EDQUOT if there is no room.
    pub fn full_try(&mut self) -> &mut Self {
        self.flags(request_flag::FULL_TRY)
    }

    /// Converts the parts to a compound read. Its calls of class methods do not wait when writes wait: only the OSD knows which
    /// of them write.
    pub fn into_read(self) -> ReadOp {
        ReadOp { ops: self.ops, flags: self.flags }
    }
}

/// A compound read. Outputs are returned in the order in which the parts were added ([`OpReply`]).
#[derive(Debug, Clone, Default)]
pub struct ReadOp {
    pub(crate) ops: Vec<OsdOp>,
    pub(crate) flags: u32,
}

impl ReadOp {
    /// Creates an empty operation.
    pub fn new() -> ReadOp {
        ReadOp::default()
    }

    guards!();

    /// Reads `len` bytes from `offset`, or to the end if `len` is 0.
    pub fn read(&mut self, offset: u64, len: u64) -> &mut Self {
        self.push(Op::Read { offset, len })
    }

    /// Reads the allocated extents of a range ([`OpReply::sparse`]).
    pub fn sparse_read(&mut self, offset: u64, len: u64) -> &mut Self {
        self.push(Op::SparseRead { offset, len })
    }

    /// Lists the allocated extents of a range, or to the object's end if `len` is 0 ([`OpReply::extents`]).
    pub fn map_extents(&mut self, offset: u64, len: u64) -> &mut Self {
        self.push(Op::MapExt { offset, len })
    }

    /// Computes checksums of a range, or of the whole object if `offset` and `len` are 0: one for each `chunk` bytes, or a
    /// single one if that is 0. The output is in Ceph's encoding: [`Op::Checksum`].
    pub fn checksum(
        &mut self,
        kind: ChecksumKind,
        init: u64,
        offset: u64,
        len: u64,
        chunk: u32,
    ) -> &mut Self {
        self.push(Op::Checksum { kind, init, offset, len, chunk })
    }

    /// Lists the watches on the object ([`OpReply::watchers`]).
    pub fn list_watchers(&mut self) -> &mut Self {
        self.push(Op::ListWatchers)
    }

    /// Reads the size and modification time.
    pub fn stat(&mut self) -> &mut Self {
        self.push(Op::Stat)
    }

    /// Reads an attribute.
    pub fn get_xattr(&mut self, name: &str) -> &mut Self {
        self.push(Op::GetXattr { name: name.to_owned() })
    }

    /// Reads all attributes.
    pub fn get_xattrs(&mut self) -> &mut Self {
        self.push(Op::GetXattrs)
    }

    /// Reads at most `max` omap keys after `start_after`.
    pub fn omap_get_keys(&mut self, start_after: impl Into<Bytes>, max: u64) -> &mut Self {
        self.push(Op::OmapGetKeys { start_after: start_after.into(), max })
    }

    /// Reads at most `max` omap entries after `start_after` whose keys start with `filter_prefix`.
    pub fn omap_get_vals(
        &mut self,
        start_after: impl Into<Bytes>,
        filter_prefix: impl Into<Bytes>,
        max: u64,
    ) -> &mut Self {
        let (start_after, filter_prefix) = (start_after.into(), filter_prefix.into());
        self.push(Op::OmapGetVals { start_after, filter_prefix, max })
    }

    /// Reads those omap entries with these keys that exist.
    pub fn omap_get_vals_by_keys(&mut self, keys: Vec<Bytes>) -> &mut Self {
        self.push(Op::OmapGetValsByKeys { keys })
    }

    /// Reads the omap header.
    pub fn omap_get_header(&mut self) -> &mut Self {
        self.push(Op::OmapGetHeader)
    }
}

/// The outcome of an operation: its result, the object's version and one entry for each executed part.
#[derive(Debug, Clone, Default)]
pub struct OpReply {
    /// 0 or more on success, else a negated errno.
    pub result: i32,
    /// The object's user version after the operation.
    pub version: u64,
    /// Codes and outputs of the parts.
    pub ops: Vec<OpResult>,
}

impl OpReply {
    /// Returns the reply if the operation succeeded.
    pub fn success(self) -> Result<OpReply> {
        Errno::from_result(self.result)?;
        Ok(self)
    }

    /// Takes the output of part `at`. Returns the part's own error if it failed (with `FAILOK` the operation continues).
    pub fn output(&mut self, at: usize) -> Result<Bytes> {
        let part = self.ops.get_mut(at).ok_or_else(|| no_output(at))?;
        Errno::from_result(part.code)?;
        Ok(std::mem::take(&mut part.output))
    }

    /// Part `at` as [`StatReply`].
    pub fn stat(&mut self, at: usize) -> Result<StatReply> {
        Ok(encoding::decode(&self.output(at)?)?)
    }

    /// Part `at` as names or keys with values.
    pub fn pairs(&mut self, at: usize) -> Result<BTreeMap<Bytes, Bytes>> {
        let pairs: Pairs = encoding::decode(&self.output(at)?)?;
        Ok(pairs.0.into_iter().collect())
    }

    /// Part `at` as the parts of a sparse read.
    pub fn sparse(&mut self, at: usize) -> Result<SparseReadReply> {
        Ok(encoding::decode(&self.output(at)?)?)
    }

    /// Part `at` as offsets and lengths.
    pub fn extents(&mut self, at: usize) -> Result<Vec<(u64, u64)>> {
        let reply: ExtentsReply = encoding::decode(&self.output(at)?)?;
        Ok(reply.extents)
    }

    /// Part `at` as watches.
    pub fn watchers(&mut self, at: usize) -> Result<Vec<WatchInfo>> {
        let reply: WatchersReply = encoding::decode(&self.output(at)?)?;
        Ok(reply.watchers)
    }

    /// Part `at` as omap keys.
    pub fn omap_keys(&mut self, at: usize) -> Result<OmapKeysReply> {
        Ok(encoding::decode(&self.output(at)?)?)
    }

    /// Part `at` as omap entries.
    pub fn omap_vals(&mut self, at: usize) -> Result<OmapValsReply> {
        Ok(encoding::decode(&self.output(at)?)?)
    }
}

fn no_output(at: usize) -> Error {
    let detail = format!("the answer has no part {at}");
    Error::Corrupt(encoding::DecodeError::Corrupt { what: "OsdReply", detail })
}
