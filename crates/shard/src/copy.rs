//! The source of a request's copy-from op: reading it in pieces, and its memory.

use bytes::Bytes;
use nacre_common::throttle::{Permit, Throttle};
use nacre_exec::CopiedObject;
use nacre_types::encoding::decode;
use nacre_types::errno::Errno;
use nacre_types::ids::Eversion;
use nacre_types::msg::OsdRequest;
use nacre_types::object::{ObjectId, SNAP_HEAD};
use nacre_types::op::{CopyCursor, CopyGetReply, Op, OsdOp};
use tokio::sync::OwnedSemaphorePermit;

/// How often a copy starts over because its source changed, if no version was requested.
const MAX_RESTARTS: usize = 4;

/// The memory for copies in bytes: this much for those that are being read, and as much again for those that PGs hold.
pub const MAX_COPY_BYTES: u64 = 256 << 20;
/// The same for copies between the pools of cache tiers: other copies wait for these, so they must not wait for the others.
pub const MAX_TIER_COPY_BYTES: u64 = 128 << 20;

/// The limits of requests that copy.
pub(crate) struct CopyThrottle {
    /// Requests that copy, or that wait for a copy of their object.
    pub(crate) requests: Throttle,
    /// Bytes of copies that PGs hold.
    pub(crate) bytes: Throttle,
}

impl CopyThrottle {
    /// Creates it for this many requests and bytes.
    pub(crate) fn new(requests: u64, bytes: u64) -> CopyThrottle {
        CopyThrottle { requests: Throttle::new(u64::MAX, requests), bytes: Throttle::new(bytes, 0) }
    }
}

/// Whether a request reads the source of a copy. Such a read waits for no copy and for no request that may be a copy: reads of
/// copy sources have no order relative to other requests of the same session.
pub(crate) fn is_copy_read(request: &OsdRequest) -> bool {
    matches!(request.ops.last(), Some(OsdOp { op: Op::CopyGet { .. }, .. })) && !request.may_write()
}

/// The source of a request's copy-from op, with its share of the memory for copies that are being read.
pub struct FetchedSource {
    /// The copy, or the error.
    pub copy: Result<Box<CopiedObject>, Errno>,
    /// The share; released when dropped.
    pub share: Option<OwnedSemaphorePermit>,
}

/// A copy that a PG holds, with its share of the memory for such copies.
pub(crate) struct AdmittedCopy {
    /// The copy, or the error; `None` once the request was executed.
    copy: Option<Result<Box<CopiedObject>, Errno>>,
    /// Kept until the request is answered, because the change holds the data until then.
    _share: Permit,
}

impl AdmittedCopy {
    /// Takes the copy's share of `throttle`; `None` if there is no room.
    pub(crate) fn new(copy: Result<Box<CopiedObject>, Errno>, throttle: &Throttle) -> Option<AdmittedCopy> {
        let share = throttle.try_take(copy.as_ref().map_or(0, |copy| copy.payload_bytes()))?;
        Some(AdmittedCopy { copy: Some(copy), _share: share })
    }

    /// The copy, or the error.
    pub(crate) fn get(&self) -> Option<Result<&CopiedObject, Errno>> {
        self.copy.as_ref().map(|copy| copy.as_deref().map_err(|errno| *errno))
    }

    /// The bytes that the copy writes.
    pub(crate) fn payload_bytes(&self) -> u64 {
        self.copy.iter().flatten().map(|copy| copy.payload_bytes()).sum()
    }

    /// Drops the copy, because the request was executed: the change has the data that it needs.
    pub(crate) fn release_data(&mut self) {
        self.copy = None;
    }
}

/// A source that is being read in pieces, all of the same version.
///
/// Pieces are requested by the user version of the previous pieces, and also compared by the object's own version: if another
/// copy of the same object replaces the source, the user version is the same.
#[derive(Debug)]
pub struct CopyReader {
    source: ObjectId,
    /// The requested version; 0 for any.
    wanted: u64,
    /// The version of the pieces so far; 0 before the first one if any version is accepted.
    version: u64,
    /// The object's own version at the first piece.
    object_version: Eversion,
    /// Whether the last piece is of a different state than the previous ones.
    is_torn: bool,
    /// Bits of [`nacre_types::op::copy_from_flag`].
    pub flags: u32,
    max_bytes: u64,
    piece_bytes: u64,
    cursor: CopyCursor,
    copied: CopiedObject,
    restarts: usize,
}

impl CopyReader {
    /// Creates a reader for the source of a copy-from op, of at most `max_bytes`, in pieces of about `piece_bytes`. `None` for
    /// other ops.
    pub fn new(op: &Op, max_bytes: u64, piece_bytes: u64) -> Option<CopyReader> {
        let Op::CopyFrom { source, version, flags, .. } = op else { return None };
        Some(CopyReader {
            source: source.clone(),
            wanted: *version,
            version: *version,
            object_version: Eversion::default(),
            is_torn: false,
            flags: *flags,
            max_bytes,
            piece_bytes,
            cursor: CopyCursor::default(),
            copied: CopiedObject::default(),
            restarts: 0,
        })
    }

    /// The source, which must be a head; otherwise EINVAL.
    pub fn source(&self) -> Result<&ObjectId, Errno> {
        if self.source.snap() == SNAP_HEAD { Ok(&self.source) } else { Err(Errno::EINVAL) }
    }

    /// The request that reads the next piece. The output of its last op is for [`CopyReader::on_piece`].
    pub fn request(&self) -> Vec<Op> {
        let get = Op::CopyGet { cursor: self.cursor.clone(), max_bytes: self.piece_bytes };
        match self.version {
            0 => vec![get],
            version => vec![Op::AssertVersion { version }, get],
        }
    }

    /// Handles a piece, or the error. Returns the result of the copy; `None` if another piece must be read.
    pub fn on_piece(&mut self, piece: Result<Bytes, Errno>) -> Option<Result<CopiedObject, Errno>> {
        match piece.and_then(|piece| self.add(&piece)) {
            Ok(()) if self.cursor.complete => Some(Ok(std::mem::take(&mut self.copied))),
            Ok(()) => None,
            // The requested version may still exist if the pieces are torn.
            Err(Errno::ERANGE | Errno::EOVERFLOW)
                if (self.wanted == 0 || self.is_torn) && self.restarts < MAX_RESTARTS =>
            {
                self.restarts += 1;
                self.is_torn = false;
                (self.version, self.cursor, self.copied) =
                    (self.wanted, CopyCursor::default(), CopiedObject::default());
                None
            }
            Err(errno) => Some(Err(errno)),
        }
    }

    fn add(&mut self, piece: &Bytes) -> Result<(), Errno> {
        let piece: CopyGetReply = decode(piece).map_err(|error| {
            tracing::error!(source = %self.source, %error, "a piece of a copy is corrupt");
            Errno::EIO
        })?;
        if piece.size > self.max_bytes {
            return Err(Errno::EFBIG);
        }
        if self.cursor == CopyCursor::default() {
            self.object_version = piece.version;
        }
        if piece.version != self.object_version {
            self.is_torn = true;
            return Err(Errno::ERANGE);
        }
        self.version = piece.user_version;
        self.cursor = piece.cursor.clone();
        self.copied.add(piece, self.max_bytes)
    }

    /// The bytes of data that further pieces will have; 0 before the first.
    pub fn remaining_bytes(&self) -> u64 {
        self.copied.head.size.saturating_sub(self.cursor.offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::encoding::encode;
    use nacre_types::ids::{Interval, PoolId};

    fn reader(version: u64) -> CopyReader {
        let source = ObjectId::new(PoolId(1), "", "", "source");
        let op = Op::CopyFrom { source, version, flags: 0, truncate: (0, 0) };
        CopyReader::new(&op, 100, 4).unwrap()
    }

    /// A piece of four bytes out of eight, of the object's version `at`.
    fn piece(text: &'static str, offset: u64, at: u64) -> Result<Bytes, Errno> {
        let end = offset + text.len() as u64;
        let cursor = CopyCursor { attrs: true, offset: end, complete: end == 8, ..CopyCursor::default() };
        let reply = CopyGetReply {
            size: 8,
            user_version: 10,
            data: Bytes::from_static(text.as_bytes()),
            cursor,
            version: Eversion::new(Interval(1), at),
            ..CopyGetReply::default()
        };
        Ok(encode(&reply).into())
    }

    #[test]
    fn pieces_of_two_copies_of_one_object_are_not_mixed() {
        for wanted in [0, 10] {
            let mut reader = reader(wanted);
            assert!(reader.on_piece(piece("aaaa", 0, 5)).is_none());
            // Both have the user version of the object that they are copies of.
            assert!(reader.on_piece(piece("bbbb", 4, 6)).is_none(), "it begins again");
            assert_eq!(reader.request().len(), if wanted == 0 { 1 } else { 2 });
            assert!(reader.on_piece(piece("bbbb", 0, 6)).is_none());
            let copied = reader.on_piece(piece("bbbb", 4, 6)).unwrap().unwrap();
            assert_eq!(copied.data.concat(), b"bbbbbbbb");
        }
    }

    #[test]
    fn a_source_that_changes_all_the_time_is_given_up() {
        let mut reader = reader(0);
        let mut ends = (0..).flat_map(|n| [piece("aaaa", 0, n), piece("aaaa", 4, n + 1)]);
        let end = ends.find_map(|piece| reader.on_piece(piece));
        assert_eq!(end.unwrap().unwrap_err(), Errno::ERANGE);
    }
}
