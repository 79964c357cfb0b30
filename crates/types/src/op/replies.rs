//! Results of ops, and the encodings of their outputs.

use super::WatchInfo;
#[cfg(doc)]
use super::{Op, object_flag};
use crate::encoding::Versioned;
use crate::errno::Errno;
use crate::ids::{Eversion, ReqId};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The result of one op of a request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OpResult {
    /// 0 or more on success, else a negated errno.
    pub code: i32,
    /// The op's output.
    #[serde(with = "crate::payload")]
    pub output: Bytes,
}

impl OpResult {
    /// Creates a success with output.
    pub fn output(output: impl Into<Bytes>) -> OpResult {
        OpResult { code: 0, output: output.into() }
    }

    /// Creates a failure.
    pub fn error(errno: Errno) -> OpResult {
        OpResult { code: errno.negated(), output: Bytes::new() }
    }
}

/// Output of [`Op::Stat`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatReply {
    /// Size in bytes.
    pub size: u64,
    /// Modification time, nanoseconds since 1970.
    pub mtime_ns: u64,
}

/// Output of [`Op::OmapGetKeys`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OmapKeysReply {
    /// The keys in order.
    pub keys: Vec<Bytes>,
    /// Whether there are more.
    pub more: bool,
}

/// Output of [`Op::OmapGetVals`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OmapValsReply {
    /// Keys and values in order.
    pub entries: Vec<(Bytes, Bytes)>,
    /// Whether there are more.
    pub more: bool,
}

/// Output of [`Op::PgList`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListReply {
    /// The objects, in order.
    pub objects: Vec<crate::object::ObjectId>,
    /// The position to continue at; `None` at the PG's end.
    pub next: Option<crate::object::ObjectId>,
}

/// Output of [`Op::ListDirty`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListDirtyReply {
    /// The objects, in order, and whether each is deleted.
    pub objects: Vec<(crate::object::ObjectId, bool)>,
    /// The position to continue at; `None` at the PG's end.
    pub next: Option<crate::object::ObjectId>,
}

/// Output of [`Op::SparseRead`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SparseReadReply {
    /// Offset and length of each part, in order.
    pub extents: Vec<(u64, u64)>,
    /// The parts' data, concatenated.
    pub data: Bytes,
}

/// Output of [`Op::MapExt`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtentsReply {
    /// Offset and length of each part, in order.
    pub extents: Vec<(u64, u64)>,
}

/// Output of [`Op::ListWatchers`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchersReply {
    /// The watches, by client and cookie.
    pub watchers: Vec<WatchInfo>,
}

/// Output of [`Op::Notify`]: the watchers that acknowledged and those that did not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NotifyReply {
    /// The notify's number; not part of the encoding.
    pub notify_id: u64,
    /// Client, cookie and answer of each watcher that acknowledged.
    pub acks: Vec<(u64, u64, Bytes)>,
    /// Client and cookie of each watcher that did not.
    pub missed: Vec<(u64, u64)>,
}

impl NotifyReply {
    /// Encodes as Ceph does, for librados' callers: a map from (client, cookie) to the answer, then a set of (client, cookie).
    /// Counts and lengths are u32, all little-endian.
    pub fn encode(&self) -> Bytes {
        let answers: usize = self.acks.iter().map(|(_, _, answer)| 20 + answer.len()).sum();
        let mut out = Vec::with_capacity(8 + answers + 16 * self.missed.len());
        let length = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes();
        out.extend_from_slice(&length(self.acks.len()));
        for (client, cookie, answer) in &self.acks {
            out.extend_from_slice(&client.to_le_bytes());
            out.extend_from_slice(&cookie.to_le_bytes());
            out.extend_from_slice(&length(answer.len()));
            out.extend_from_slice(answer);
        }
        out.extend_from_slice(&length(self.missed.len()));
        for (client, cookie) in &self.missed {
            out.extend_from_slice(&client.to_le_bytes());
            out.extend_from_slice(&cookie.to_le_bytes());
        }
        out.into()
    }

    /// Decodes the bytes of [`NotifyReply::encode`].
    pub fn decode(notify_id: u64, bytes: &Bytes) -> Result<NotifyReply, crate::encoding::DecodeError> {
        let corrupt = || crate::encoding::DecodeError::Corrupt {
            what: "NotifyReply",
            detail: format!("cut short at {} bytes", bytes.len()),
        };
        let mut at = 0;
        let mut take = |len: usize| {
            let end = at + len;
            let part = bytes.get(at..end).map(|_| bytes.slice(at..end));
            at = end;
            part.ok_or_else(corrupt)
        };
        let u32_of = |part: Bytes| u32::from_le_bytes([part[0], part[1], part[2], part[3]]) as usize;
        let u64_of = |part: &[u8]| part.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte));
        let mut reply = NotifyReply { notify_id, ..NotifyReply::default() };
        for _ in 0..u32_of(take(4)?) {
            let pair = take(16)?;
            let len = u32_of(take(4)?);
            reply.acks.push((u64_of(&pair[..8]), u64_of(&pair[8..]), take(len)?));
        }
        for _ in 0..u32_of(take(4)?) {
            let pair = take(16)?;
            reply.missed.push((u64_of(&pair[..8]), u64_of(&pair[8..])));
        }
        Ok(reply)
    }
}

/// The progress of a copy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyCursor {
    /// Bytes of data copied.
    pub offset: u64,
    /// Whether attributes are complete.
    pub attrs: bool,
    /// The last omap key copied; empty before the first.
    pub omap_after: Bytes,
    /// Whether everything is copied.
    pub complete: bool,
}

/// Output of [`Op::CopyGet`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CopyGetReply {
    /// Size of the whole object in bytes.
    pub size: u64,
    /// Modification time, nanoseconds since 1970.
    pub mtime_ns: u64,
    /// Its user version.
    pub user_version: u64,
    /// Bits of [`object_flag`] that describe contents: OMAP and the digests.
    pub flags: u32,
    /// crc32c of the data, if DATA_DIGEST is set.
    pub data_digest: u32,
    /// crc32c of the omap, if OMAP_DIGEST is set.
    pub omap_digest: u32,
    /// The truncation sequence and size.
    pub truncate: (u32, u64),
    /// Attributes by users' names, in the first piece.
    pub attrs: Vec<(Bytes, Bytes)>,
    /// The omap header, in the first piece.
    pub omap_header: Bytes,
    /// Data from the cursor's offset on.
    pub data: Bytes,
    /// Omap entries after the cursor's key, once the data is complete.
    pub omap: Vec<(Bytes, Bytes)>,
    /// In the last piece: requests that recently changed the object, with the resulting user version of each, newest first.
    pub reqids: Vec<(ReqId, u64)>,
    /// The position to continue at.
    pub cursor: CopyCursor,
    /// The object's version, which is unique for each of its states. The user version of a copy is its source's.
    pub version: Eversion,
    /// Watches of the object, in the last piece for another pool of its tier.
    pub watchers: Vec<WatchInfo>,
    /// There is no object; `user_version` is the highest that the name may have had. Only for another pool of its tier.
    pub is_absent: bool,
}

impl Versioned for CopyGetReply {
    const NAME: &'static str = "CopyGetReply";
    const VERSION: u8 = 3;

    fn decode_old(version: u8, body: &[u8]) -> Result<Self, crate::encoding::DecodeError> {
        // Version 1 ends before the object's version, version 2 before the watchers. Each zero is one byte.
        let missing = if version == 1 { &[0; 4][..] } else { &[0; 2] };
        crate::encoding::decode_body(Self::NAME, &[body, missing].concat())
    }
}

/// Names or keys with their values, in outputs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pairs(pub Vec<(Bytes, Bytes)>);

macro_rules! versioned {
    ($($type:ty),*) => { $(impl Versioned for $type { const NAME: &'static str = stringify!($type); })* };
}
versioned!(StatReply, OmapKeysReply, OmapValsReply, ListReply, ListDirtyReply, Pairs);
versioned!(SparseReadReply, ExtentsReply, WatchersReply);
