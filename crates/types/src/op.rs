//! Object operations: the ops on one object in one atomic request, and the replies.
//!
//! Names follow librados and `CEPH_OSD_OP_*`. Variants are only ever appended: the encoding numbers them.

mod info;
mod replies;

pub use info::{OI_ATTR, ObjectInfo, WatchInfo, object_flag, user_attr};
pub use replies::{
    CopyCursor, CopyGetReply, ExtentsReply, ListDirtyReply, ListReply, NotifyReply, OmapKeysReply,
    OmapValsReply, OpResult, Pairs, SparseReadReply, StatReply, WatchersReply,
};

use crate::errno::Errno;
use crate::ids::ReqId;
use crate::payload::Payload;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// How `cmpxattr` and `omap_cmp` compare (`CEPH_OSD_CMPXATTR_OP_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CmpOp {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Greater: the given value is greater than the stored one.
    Gt,
    /// Greater or equal.
    Gte,
    /// Less.
    Lt,
    /// Less or equal.
    Lte,
}

/// The value that `cmpxattr` compares with (`CEPH_OSD_CMPXATTR_MODE_*`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CmpValue {
    /// As bytes.
    Bytes(Bytes),
    /// As an unsigned number; the stored text is parsed as decimal.
    U64(u64),
}

impl CmpOp {
    /// Whether `given OP stored` is true: Ceph compares the given value with the stored one, in this order.
    pub fn holds<T: Ord + ?Sized>(self, given: &T, stored: &T) -> bool {
        match self {
            CmpOp::Eq => given == stored,
            CmpOp::Ne => given != stored,
            CmpOp::Gt => given > stored,
            CmpOp::Gte => given >= stored,
            CmpOp::Lt => given < stored,
            CmpOp::Lte => given <= stored,
        }
    }

    /// Whether `stored OP given` is true for omap values: here Ceph compares in this order, and supports only EQ, LT and GT
    /// (EINVAL for others).
    pub fn holds_for_omap(self, stored: &[u8], given: &[u8]) -> Result<bool, Errno> {
        match self {
            CmpOp::Eq => Ok(stored == given),
            CmpOp::Lt => Ok(stored < given),
            CmpOp::Gt => Ok(stored > given),
            CmpOp::Ne | CmpOp::Gte | CmpOp::Lte => Err(Errno::EINVAL),
        }
    }
}

impl CmpValue {
    /// Whether `given OP stored` is true for a stored attribute; an absent one counts as empty.
    pub fn holds(&self, op: CmpOp, stored: &[u8]) -> bool {
        match self {
            CmpValue::Bytes(given) => op.holds(&given[..], stored),
            CmpValue::U64(given) => op.holds(given, &leading_number(stored)),
        }
    }
}

/// `strtoull(text, NULL, 10)` of a stored attribute: leading digits count, an empty text is 0, overflow saturates.
fn leading_number(text: &[u8]) -> u64 {
    text.trim_ascii_start()
        .iter()
        .map_while(|byte| byte.is_ascii_digit().then(|| u64::from(byte - b'0')))
        .fold(0_u64, |number, digit| number.saturating_mul(10).saturating_add(digit))
}

/// One operation of a compound request on one object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Op {
    /// Creates the object; with `exclusive` an existing one fails with EEXIST.
    Create {
        /// Whether to fail if it exists.
        exclusive: bool,
    },
    /// Reads; a length of 0 reads to the end. Output: the data, short at the object's end.
    Read {
        /// Start in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Writes at an offset.
    Write {
        /// Start in bytes.
        offset: u64,
        /// The data.
        data: Payload,
    },
    /// Replaces the whole object's data.
    WriteFull {
        /// The data.
        data: Payload,
    },
    /// Appends to the object.
    Append {
        /// The data.
        data: Payload,
    },
    /// Sets the size.
    Truncate {
        /// New size in bytes.
        size: u64,
    },
    /// Zeroes a range without extending the object.
    Zero {
        /// Start in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Removes the object. Fails with ENOENT if it is absent.
    Remove,
    /// Output: [`StatReply`].
    Stat,
    /// Output: the attribute's value; ENODATA if it is absent.
    GetXattr {
        /// The user's name for it.
        name: String,
    },
    /// Output: a list of (name, value) encoded as [`Pairs`].
    GetXattrs,
    /// Sets an attribute.
    SetXattr {
        /// The user's name for it.
        name: String,
        /// The value.
        value: Bytes,
    },
    /// Removes an attribute.
    RmXattr {
        /// The user's name for it.
        name: String,
    },
    /// Fails with ECANCELED unless the comparison is true.
    CmpXattr {
        /// The user's name for it.
        name: String,
        /// The comparison.
        op: CmpOp,
        /// The given value.
        value: CmpValue,
    },
    /// Output: [`OmapKeysReply`].
    OmapGetKeys {
        /// Only keys after this one.
        start_after: Bytes,
        /// Maximum number of keys.
        max: u64,
    },
    /// Output: [`OmapValsReply`].
    OmapGetVals {
        /// Only keys after this one.
        start_after: Bytes,
        /// Only keys with this prefix.
        filter_prefix: Bytes,
        /// Maximum number of entries.
        max: u64,
    },
    /// Output: the entries that exist, encoded as [`Pairs`].
    OmapGetValsByKeys {
        /// The keys.
        keys: Vec<Bytes>,
    },
    /// Output: the header.
    OmapGetHeader,
    /// Sets entries.
    OmapSet {
        /// Keys and values.
        entries: Vec<(Bytes, Bytes)>,
    },
    /// Sets the header.
    OmapSetHeader {
        /// The header.
        header: Bytes,
    },
    /// Removes entries.
    OmapRmKeys {
        /// The keys.
        keys: Vec<Bytes>,
    },
    /// Removes entries with `first <= key < last`.
    OmapRmRange {
        /// The first removed.
        first: Bytes,
        /// The first kept.
        last: Bytes,
    },
    /// Removes all entries and the header.
    OmapClear,
    /// Fails with ECANCELED unless all comparisons are true.
    OmapCmp {
        /// Key, comparison, given value.
        assertions: Vec<(Bytes, CmpOp, Bytes)>,
    },
    /// Fails with ENOENT if the object is absent.
    AssertExists,
    /// Fails with ERANGE if the object's user version is above the given one, and with EOVERFLOW if it is below.
    AssertVersion {
        /// The version expected.
        version: u64,
    },
    /// Lists a PG's objects in hash order. Of the request's object only the PG counts. Output: [`ListReply`].
    PgList {
        /// The position to continue at; `None` starts the listing.
        cursor: Option<crate::object::ObjectId>,
        /// Maximum number of objects.
        max: u64,
        /// Only this namespace; `None` means all of them.
        namespace: Option<String>,
    },
    /// Calls an object class method. Output: the method's output.
    Call {
        /// The class.
        class: String,
        /// The method.
        method: String,
        /// Its input.
        input: Bytes,
    },
    /// Sets an allocation hint. Never fails.
    SetAllocHint {
        /// Expected object size in bytes.
        expected_object_size: u64,
        /// Expected write size in bytes.
        expected_write_size: u64,
        /// `LIBRADOS_ALLOC_HINT_FLAG_*`.
        flags: u32,
    },
    /// Reads the allocated extents of a range. Output: [`SparseReadReply`].
    SparseRead {
        /// Start in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Lists the allocated extents of a range; a length of 0 means to the end. Output: [`ExtentsReply`].
    MapExt {
        /// Start in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Fails with [`cmpext_mismatch_result`] unless the object has these bytes. Beyond its end the object counts as zeros.
    CmpExt {
        /// Start in bytes.
        offset: u64,
        /// The expected bytes.
        #[serde(with = "crate::payload")]
        data: Bytes,
    },
    /// Fills a range with repetitions of `data`, whose length must divide the range's.
    WriteSame {
        /// Start in bytes.
        offset: u64,
        /// Length of the range in bytes.
        len: u64,
        /// The data to repeat.
        #[serde(with = "crate::payload")]
        data: Bytes,
    },
    /// Computes checksums of a range, or of the whole object if offset and length are 0. Output: the number of checksums as
    /// u32, then each checksum, all little-endian, as in Ceph's encoding.
    Checksum {
        /// The kind of checksum.
        kind: ChecksumKind,
        /// The initial value; 32-bit kinds use its lower half.
        init: u64,
        /// Start in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Number of bytes for each checksum; 0 for one checksum of the whole range.
        chunk: u32,
    },
    /// Registers a watch unless it is registered already.
    Watch {
        /// The client's id of the watch.
        cookie: u64,
        /// Timeout in seconds without a ping; 0 for the OSD's `osd_client_watch_timeout`.
        timeout_s: u32,
    },
    /// Reconnects a registered watch on a new connection or at another primary. Fails with ENOTCONN if it has timed out.
    WatchReconnect {
        /// The client's id of the watch.
        cookie: u64,
    },
    /// Keeps a watch alive. Fails with ENOTCONN if it is not registered, and with ETIMEDOUT if it is not connected.
    WatchPing {
        /// The client's id of the watch.
        cookie: u64,
    },
    /// Ends a watch. Has no effect if there is none.
    Unwatch {
        /// The client's id of the watch.
        cookie: u64,
    },
    /// Notifies all watchers and waits for their answers. Answered when every watcher has acknowledged, or after the timeout
    /// (then with ETIMEDOUT). Output: the notify's number as u64, then [`NotifyReply`] in Ceph's encoding.
    Notify {
        /// The timeout in seconds; 0 for the OSD's `osd_default_notify_timeout`.
        timeout_s: u32,
        /// The payload for the watchers.
        #[serde(with = "crate::payload")]
        payload: Bytes,
    },
    /// Acknowledges a notify.
    NotifyAck {
        /// The notify's number.
        notify_id: u64,
        /// The watch.
        cookie: u64,
        /// The payload for the notifier.
        #[serde(with = "crate::payload")]
        payload: Bytes,
    },
    /// Output: [`WatchersReply`].
    ListWatchers,
    /// Reads a piece of the object with all of its parts, for a copy. Output: [`CopyGetReply`].
    CopyGet {
        /// The position to continue at; the default starts at the beginning.
        cursor: CopyCursor,
        /// Approximate maximum size in bytes.
        max_bytes: u64,
    },
    /// Replaces the object by a copy of another one, with its user version and the requests that produced it. The OSD reads the
    /// source itself.
    CopyFrom {
        /// The source.
        source: crate::object::ObjectId,
        /// The expected user version of the source (failures are those of [`Op::AssertVersion`]); 0 for any.
        version: u64,
        /// Bits of [`copy_from_flag`].
        flags: u32,
        /// With [`copy_from_flag::TRUNCATE_SEQ`]: the copy's truncation sequence and size.
        truncate: (u32, u64),
    },
    /// Writes the object to the base pool if it was changed since its last flush; starts over if clients write meanwhile. For
    /// cache tiers.
    CacheFlush,
    /// Like [`Op::CacheFlush`], but fails with EBUSY if the object is changed meanwhile.
    CacheTryFlush,
    /// Removes the cache's copy of an unchanged object. Fails with EBUSY if it is dirty or watched.
    CacheEvict,
    /// Pins the object in the cache.
    CachePin,
    /// Reverts [`Op::CachePin`].
    CacheUnpin,
    /// Whether the object was changed since its last flush. Output: one byte.
    IsDirty,
    /// Marks the object as clean, regardless of the base.
    Undirty,
    /// Lists the dirty objects of a cache's PG in hash order. Of the request's object only the PG counts. Fails with EAGAIN
    /// while the PG does not know all of them. Output: [`ListDirtyReply`].
    ListDirty {
        /// The position to continue at.
        cursor: crate::object::ObjectId,
        /// Maximum number of objects.
        max: u64,
        /// Only this namespace; `None` means all of them.
        namespace: Option<String>,
    },
    /// Returns the PG's record of a client's request on the object. Output: [`crate::tier::RequestRecord`]. Used between the
    /// pools of a tier.
    QueryRequest {
        /// The request.
        reqid: ReqId,
        /// How often it was sent before.
        attempt: u32,
    },
}

/// Bits of [`Op::CopyFrom::flags`] (`CEPH_OSD_COPY_FROM_FLAG_*`).
pub mod copy_from_flag {
    /// Part of a flush to a base tier.
    pub const FLUSH: u32 = 0x1;
    /// Read the source's pool itself, not its cache tier.
    pub const IGNORE_OVERLAY: u32 = 0x2;
    /// Ignore the source's cache logic.
    pub const IGNORE_CACHE: u32 = 0x4;
    /// Map snapshots of the source onto the head.
    pub const MAP_SNAP_CLONE: u32 = 0x8;
    /// Order with writes to the source.
    pub const RWORDERED: u32 = 0x10;
    /// The copy gets the truncation sequence and size of the request instead of the source's.
    pub const TRUNCATE_SEQ: u32 = 0x20;
    /// All known flags.
    pub const ALL: u32 = 0x3f;
}

/// Checksums that OSDs calculate (`CEPH_OSD_CHECKSUM_OP_TYPE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChecksumKind {
    /// 32-bit xxHash.
    XxHash32,
    /// 64-bit xxHash.
    XxHash64,
    /// CRC-32C without final inversion, as `ceph_crc32c`.
    Crc32c,
}

/// Linux's highest errno: results of [`Op::CmpExt`] are below its negation.
pub const MAX_ERRNO: i32 = 4095;

/// Returns the result of [`Op::CmpExt`] if the byte at `index` of the data differs.
pub fn cmpext_mismatch_result(index: usize) -> i32 {
    // The size of data is limited to far less than 2 GiB.
    -MAX_ERRNO - i32::try_from(index).unwrap_or(i32::MAX - MAX_ERRNO - 1)
}

/// Returns the index of the first byte that differs if `result` is that of a failed [`Op::CmpExt`].
pub fn cmpext_mismatch_index(result: i32) -> Option<usize> {
    (result <= -MAX_ERRNO).then(|| result.unsigned_abs() as usize - MAX_ERRNO as usize)
}

impl Op {
    /// Whether it changes the object.
    pub fn is_write(&self) -> bool {
        use Op::*;
        matches!(
            self,
            Create { .. }
                | Write { .. }
                | WriteFull { .. }
                | Append { .. }
                | Truncate { .. }
                | Zero { .. }
                | Remove
                | SetXattr { .. }
                | RmXattr { .. }
                | OmapSet { .. }
                | OmapSetHeader { .. }
                | OmapRmKeys { .. }
                | OmapRmRange { .. }
                | OmapClear
                | SetAllocHint { .. }
                | WriteSame { .. }
                | Watch { .. }
                | WatchReconnect { .. }
                | Unwatch { .. }
                | CachePin
                | CacheUnpin
                | Undirty
                | CopyFrom { .. }
        )
    }

    /// Whether it lists a PG instead of accessing one object.
    pub fn is_pg_listing(&self) -> bool {
        matches!(self, Op::PgList { .. } | Op::ListDirty { .. })
    }

    /// Whether its changes are visible to users and so raise the object's user version. Changes of watches are invisible.
    pub fn raises_user_version(&self) -> bool {
        !matches!(self, Op::Watch { .. } | Op::WatchReconnect { .. } | Op::Unwatch { .. })
    }

    /// Ceph's name for it in op traces (`ceph_osd_op_name`).
    pub fn name(&self) -> &'static str {
        use Op::*;
        match self {
            Create { .. } => "create",
            Read { .. } => "read",
            Write { .. } => "write",
            WriteFull { .. } => "writefull",
            Append { .. } => "append",
            Truncate { .. } => "truncate",
            Zero { .. } => "zero",
            Remove => "delete",
            Stat => "stat",
            GetXattr { .. } => "getxattr",
            GetXattrs => "getxattrs",
            SetXattr { .. } => "setxattr",
            RmXattr { .. } => "rmxattr",
            CmpXattr { .. } => "cmpxattr",
            OmapGetKeys { .. } => "omap-get-keys",
            OmapGetVals { .. } => "omap-get-vals",
            OmapGetValsByKeys { .. } => "omap-get-vals-by-keys",
            OmapGetHeader => "omap-get-header",
            OmapSet { .. } => "omap-set-vals",
            OmapSetHeader { .. } => "omap-set-header",
            OmapRmKeys { .. } => "omap-rm-keys",
            OmapRmRange { .. } => "omap-rm-key-range",
            OmapClear => "omap-clear",
            OmapCmp { .. } => "omap-cmp",
            AssertExists => "assert-exists",
            AssertVersion { .. } => "assert-version",
            PgList { .. } => "pgnls",
            Call { .. } => "call",
            SetAllocHint { .. } => "set-alloc-hint",
            SparseRead { .. } => "sparse-read",
            MapExt { .. } => "mapext",
            CmpExt { .. } => "cmpext",
            WriteSame { .. } => "writesame",
            Checksum { .. } => "checksum",
            Watch { .. } => "watch",
            WatchReconnect { .. } => "watch reconnect",
            WatchPing { .. } => "watch ping",
            Unwatch { .. } => "watch unwatch",
            Notify { .. } => "notify",
            NotifyAck { .. } => "notify-ack",
            ListWatchers => "list-watchers",
            CopyGet { .. } => "copy-get",
            CopyFrom { .. } => "copy-from",
            CacheFlush => "cache-flush",
            CacheTryFlush => "cache-try-flush",
            CacheEvict => "cache-evict",
            CachePin => "cache-pin",
            CacheUnpin => "cache-unpin",
            IsDirty => "isdirty",
            Undirty => "undirty",
            ListDirty { .. } => "list-dirty",
            QueryRequest { .. } => "query-request",
        }
    }
}

/// An [`Op`] with its flags.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OsdOp {
    /// The op.
    pub op: Op,
    /// Bits of [`op_flag`].
    pub flags: u32,
}

impl From<Op> for OsdOp {
    fn from(op: Op) -> OsdOp {
        OsdOp { op, flags: 0 }
    }
}

/// Per-op flags (`LIBRADOS_OP_FLAG_*`).
pub mod op_flag {
    /// Fail the op if the object exists.
    pub const EXCL: u32 = 0x1;
    /// A failure of this op does not fail the request.
    pub const FAILOK: u32 = 0x2;
    /// Random access is expected.
    pub const FADVISE_RANDOM: u32 = 0x4;
    /// Sequential access is expected.
    pub const FADVISE_SEQUENTIAL: u32 = 0x8;
    /// The data will be needed soon.
    pub const FADVISE_WILLNEED: u32 = 0x10;
    /// The data will not be needed soon.
    pub const FADVISE_DONTNEED: u32 = 0x20;
    /// The data will not be cached.
    pub const FADVISE_NOCACHE: u32 = 0x40;
}

/// Request flags (`LIBRADOS_OPERATION_*`).
pub mod request_flag {
    /// Reads may go to any in-sync replica.
    pub const BALANCE_READS: u32 = 0x1;
    /// Reads may go to a nearby replica.
    pub const LOCALIZE_READS: u32 = 0x2;
    /// Order reads with earlier writes.
    pub const ORDER_READS_WRITES: u32 = 0x4;
    /// Use the pool itself, not its cache tier.
    pub const IGNORE_OVERLAY: u32 = 0x8;
    /// If the pool is full, fail at once with ENOSPC or EDQUOT instead of waiting.
    pub const FULL_TRY: u32 = 0x10;
    /// Write although the pool is full.
    pub const FULL_FORCE: u32 = 0x20;
    /// Ignore redirects.
    pub const IGNORE_REDIRECT: u32 = 0x40;
    /// Order by snapshot context.
    pub const ORDERSNAP: u32 = 0x80;
    /// Return values and outputs of write ops too.
    pub const RETURNVEC: u32 = 0x100;
    /// The client declares the request as a write although none of its ops is one: it calls methods of object classes, and only
    /// the OSD knows which of them write. It is delayed like writes (`CEPH_OSD_FLAG_WRITE`).
    pub const WRITE: u32 = 0x200;
    /// Execute on the pool's own objects, without promotion or proxying (`CEPH_OSD_FLAG_IGNORE_CACHE`).
    pub const IGNORE_CACHE: u32 = 0x400;
}

#[cfg(test)]
mod tests;
