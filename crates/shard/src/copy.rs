//! What a request's copy-from ops need of other objects.

use bytes::Bytes;
use nacre_exec::Copied;
use nacre_types::encoding::decode;
use nacre_types::errno::Errno;
use nacre_types::object::{ObjectId, SNAP_HEAD};
use nacre_types::op::{CopyCursor, CopyGetReply, Op};
use tokio::sync::OwnedSemaphorePermit;

/// How often a copy starts over because its source changed, where no version was asked for.
const MAX_RESTARTS: usize = 4;

/// The sources of a request's copy-from ops, with their share of the memory.
#[derive(Default)]
pub struct Fetched {
    /// By op: the copy, or why there is none.
    pub copies: Vec<Result<Copied, Errno>>,
    /// Shares of the memory; given back when dropped.
    pub rooms: Vec<OwnedSemaphorePermit>,
}

impl Fetched {
    /// Bytes that the copies write.
    pub fn bytes(&self) -> u64 {
        self.copies.iter().flatten().map(Copied::bytes).sum()
    }
}

/// A source that is being read in pieces, all of the same version.
#[derive(Debug)]
pub struct CopyReader {
    source: ObjectId,
    /// The version asked for; 0 for any.
    wanted: u64,
    /// The version of the pieces so far; 0 before the first where any will do.
    version: u64,
    /// Bits of [`nacre_types::op::copy_from_flag`].
    pub flags: u32,
    max_bytes: u64,
    piece_bytes: u64,
    cursor: CopyCursor,
    copied: Copied,
    restarts: usize,
}

impl CopyReader {
    /// Reads the source of a copy-from op, of at most `max_bytes`, in pieces of about `piece_bytes`. `None` for other ops.
    pub fn new(op: &Op, max_bytes: u64, piece_bytes: u64) -> Option<CopyReader> {
        let Op::CopyFrom { source, version, flags, .. } = op else { return None };
        Some(CopyReader {
            source: source.clone(),
            wanted: *version,
            version: *version,
            flags: *flags,
            max_bytes,
            piece_bytes,
            cursor: CopyCursor::default(),
            copied: Copied::default(),
            restarts: 0,
        })
    }

    /// The source, which must be a head.
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

    /// Takes in a piece, or why there is none. Returns what becomes of the copy; `None` where another piece must be read.
    pub fn on_piece(&mut self, piece: Result<Bytes, Errno>) -> Option<Result<Copied, Errno>> {
        match piece.and_then(|piece| self.add(&piece)) {
            Ok(()) if self.cursor.complete => Some(Ok(std::mem::take(&mut self.copied))),
            Ok(()) => None,
            Err(Errno::ERANGE | Errno::EOVERFLOW) if self.wanted == 0 && self.restarts < MAX_RESTARTS => {
                self.restarts += 1;
                (self.version, self.cursor, self.copied) = (0, CopyCursor::default(), Copied::default());
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
        self.version = piece.user_version;
        self.cursor = piece.cursor.clone();
        self.copied.add(piece, self.max_bytes)
    }

    /// Bytes of data that further pieces will bring; 0 before the first.
    pub fn left(&self) -> u64 {
        self.copied.head.size.saturating_sub(self.cursor.offset)
    }
}
