//! An object's data as it arrives: pieces, and the digests of all data.

use super::md5::Md5;
use crate::crypt::{CHUNK_BYTES, Cipher, Encryptor};
use crate::error::{BodyFault, Error, Result};
use crate::stored::PIECE_BYTES;
use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt};
use s3s::checksum::ChecksumHasher;
use s3s::dto::Checksum;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The bytes that one permit of the memory for bodies stands for.
const PERMIT_BYTES: usize = 1024;
/// How long a request that gathers data waits for more data or memory before it checks whether others need the memory that it
/// holds.
const TICK: Duration = Duration::from_secs(1);
/// Gathered data of at least this size is worth a write of its own.
const SHORT_BYTES: usize = 256 << 10;

/// The stream that data comes from.
pub type BodyStream =
    Pin<Box<dyn Stream<Item = Result<Bytes, Box<dyn std::error::Error + Send + Sync>>> + Send>>;

/// Data on its way into an object.
pub struct UploadBody {
    source: BodyStream,
    /// Data that arrived and was not taken yet.
    rest: Bytes,
    ended: bool,
    taken: u64,
    max: u64,
    md5: Md5,
    checksums: ChecksumHasher,
    encryptor: Option<Encryptor>,
    memory: Option<Arc<Semaphore>>,
    /// The permits of `memory` for data that is being gathered.
    room: Option<OwnedSemaphorePermit>,
}

/// Gathered data, and its reserved memory, which is released when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct BufferList {
    list: Vec<Bytes>,
    len: usize,
    room: Option<OwnedSemaphorePermit>,
}

impl BufferList {
    fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.len += piece.len();
            self.list.push(piece);
        }
    }

    /// The bytes of all pieces.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The pieces, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Bytes> {
        self.list.iter()
    }

    /// Joins all pieces into one.
    pub(crate) fn into_bytes(mut self) -> Bytes {
        match self.list.len() {
            0 | 1 => self.list.pop().unwrap_or_default(),
            _ => self.list.concat().into(),
        }
    }

    /// The reserved memory of the pieces, to be held until they are written.
    pub(crate) fn into_permit(self) -> Option<OwnedSemaphorePermit> {
        self.room
    }
}

impl From<Bytes> for BufferList {
    fn from(piece: Bytes) -> BufferList {
        let mut pieces = BufferList::default();
        pieces.push(piece);
        pieces
    }
}

/// The digests of all data.
pub struct Digests {
    /// The MD5 of the data.
    pub md5: [u8; 16],
    /// The checksums that [`UploadBody::new`] was asked for.
    pub checksums: Checksum,
}

impl UploadBody {
    /// A body of at most `max` bytes of data, for which `checksums` are computed.
    pub fn new(source: BodyStream, max: u64, checksums: ChecksumHasher) -> UploadBody {
        let (rest, md5) = (Bytes::new(), Md5::new());
        UploadBody {
            source,
            rest,
            ended: false,
            taken: 0,
            max,
            md5,
            checksums,
            encryptor: None,
            memory: None,
            room: None,
        }
    }

    /// Encrypts the data as it is taken. The digests are still those of the unencrypted data.
    pub fn encrypted(self, cipher: Cipher) -> UploadBody {
        UploadBody { encryptor: Some(Encryptor::new(cipher)), ..self }
    }

    /// How many bytes `len` bytes of data take when they are stored.
    pub(crate) fn stored_len(&self, len: u64) -> u64 {
        if self.encryptor.is_some() { crate::crypt::stored_len(len) } else { len }
    }

    /// Bytes of data that were taken, before encryption.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.taken
    }

    /// Counts taken data against `memory`, in permits of [`PERMIT_BYTES`].
    pub(crate) fn limit_memory(&mut self, memory: &Arc<Semaphore>) {
        self.memory = Some(Arc::clone(memory));
    }

    /// Returns the next `len` bytes to be stored. Returns fewer at the end of the data, none after it, and fewer if memory is
    /// short: a slow client must not keep memory from others.
    pub(crate) async fn gather(&mut self, len: usize) -> Result<BufferList> {
        // The reservation of earlier data ends when that data is written, so its digest must not keep it in memory any longer.
        self.md5.wait_outstanding(1).await;
        let mut pieces = BufferList::default();
        while pieces.len < len {
            let wanted = (len - pieces.len).min(PIECE_BYTES);
            let piece = self.take(wanted).await?;
            let is_short = piece.len() < wanted;
            pieces.push(piece);
            if is_short {
                break;
            }
        }
        pieces.room = self.room.take();
        Ok(pieces)
    }

    /// Whether all data was taken. Polls the source for more, because errors in the data as a whole are found at its end.
    pub(crate) async fn is_at_end(&mut self) -> Result<bool> {
        if self.encryptor.as_ref().is_some_and(|encryptor| encryptor.ready() > 0) {
            return Ok(false);
        }
        let Some(rest) = self.some(false).await? else { return Ok(false) };
        self.rest = rest;
        Ok(self.rest.is_empty())
    }

    async fn take(&mut self, len: usize) -> Result<Bytes> {
        let Some(mut encryptor) = self.encryptor.take() else { return self.take_plain(len, true).await };
        // A chunk is encrypted as a whole, so memory for all of it is reserved.
        while encryptor.ready() < len && self.reserve(CHUNK_BYTES).await {
            let chunk = self.take_plain(CHUNK_BYTES, false).await?;
            if chunk.is_empty() {
                break;
            }
            encryptor.push(&chunk);
        }
        let ready = encryptor.take(len);
        self.encryptor = Some(encryptor);
        Ok(ready)
    }

    /// Returns the next `len` bytes of unencrypted data; fewer at the end, or if `reserves` and no memory can be reserved for
    /// them.
    async fn take_plain(&mut self, len: usize, reserves: bool) -> Result<Bytes> {
        let mut piece = Bytes::new();
        let mut joined = BytesMut::new();
        while piece.len() + joined.len() < len {
            let Some(chunk) = self.some(reserves).await? else { break };
            let missing = (len - piece.len() - joined.len()).min(chunk.len());
            if chunk.is_empty() || (reserves && !self.reserve(missing).await) {
                self.rest = chunk;
                break;
            }
            let part = self.split(chunk, missing);
            if piece.is_empty() && joined.is_empty() {
                piece = part;
                continue;
            }
            // Several chunks: they are copied once, from the socket's buffers into the piece that is written to RADOS.
            if joined.is_empty() {
                joined.reserve(len);
                joined.extend_from_slice(&std::mem::take(&mut piece));
            }
            joined.extend_from_slice(&part);
        }
        let piece = if joined.is_empty() { piece } else { joined.freeze() };
        self.taken += piece.len() as u64;
        if self.taken > self.max {
            return Err(Error::TooLarge);
        }
        self.checksums.update(&piece);
        self.md5.update(piece.clone()).await;
        Ok(piece)
    }

    /// Reserves memory for `bytes` bytes, at most the size of a piece. If memory is short, a request that already holds enough
    /// for a write gets `false` at once, and a request that holds less gets it after [`TICK`].
    async fn reserve(&mut self, bytes: usize) -> bool {
        let Some(memory) = &self.memory else { return true };
        let permits = bytes.div_ceil(PERMIT_BYTES) as u32;
        let room = match Arc::clone(memory).try_acquire_many_owned(permits) {
            Ok(room) => Some(room),
            Err(_) if self.room.is_none() => Arc::clone(memory).acquire_many_owned(permits).await.ok(),
            Err(_)
                if self
                    .room
                    .as_ref()
                    .is_some_and(|room| room.num_permits() * PERMIT_BYTES >= SHORT_BYTES) =>
            {
                return false;
            }
            Err(_) => {
                let acquiring = Arc::clone(memory).acquire_many_owned(permits);
                match tokio::time::timeout(TICK, acquiring).await {
                    Ok(room) => room.ok(),
                    Err(_) => return false,
                }
            }
        };
        match (&mut self.room, room) {
            (Some(held), Some(room)) => held.merge(room),
            (held, room) => *held = held.take().or(room),
        }
        true
    }

    /// Returns the data left over or else the next non-empty chunk; an empty chunk at the end. If `yields`, returns `None` if
    /// nothing arrives for [`TICK`] while the request holds memory that others could use.
    async fn some(&mut self, yields: bool) -> Result<Option<Bytes>> {
        while self.rest.is_empty() && !self.ended {
            match tokio::time::timeout(TICK, self.source.next()).await {
                Ok(Some(Ok(chunk))) => self.rest = chunk,
                // The source of a copy is read by this gateway, whose errors are returned unchanged.
                Ok(Some(Err(error))) => {
                    return Err(match error.downcast::<Error>() {
                        Ok(own) => *own,
                        Err(error) => BodyFault::of(&*error).into(),
                    });
                }
                Ok(None) => self.ended = true,
                Err(_) => {
                    let free = self.memory.as_ref().map_or(0, |memory| memory.available_permits());
                    if yields && self.room.is_some() && free * PERMIT_BYTES < PIECE_BYTES {
                        return Ok(None);
                    }
                }
            }
        }
        Ok(Some(std::mem::take(&mut self.rest)))
    }

    fn split(&mut self, mut chunk: Bytes, len: usize) -> Bytes {
        if chunk.len() > len {
            self.rest = chunk.split_off(len);
        }
        chunk
    }

    /// Returns the digests of the data that was taken.
    pub(crate) async fn digests(self) -> Digests {
        Digests { md5: self.md5.finish().await, checksums: self.checksums.finalize() }
    }
}

/// The memory for the data of all bodies together: at most `bytes`, but at least enough for one piece.
pub(super) fn memory_for_bodies(bytes: u64) -> Arc<Semaphore> {
    let room = bytes.max(PIECE_BYTES as u64);
    Arc::new(Semaphore::new((room as usize / PERMIT_BYTES).min(u32::MAX as usize)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use s3s::crypto::{Checksum as _, Md5};

    fn source(chunks: &[&'static str]) -> BodyStream {
        let chunks: Vec<_> = chunks.iter().map(|chunk| Ok(Bytes::from_static(chunk.as_bytes()))).collect();
        Box::pin(futures::stream::iter(chunks))
    }

    #[tokio::test]
    async fn pieces_have_their_length_whatever_the_chunks() {
        for chunks in [&["hello, world"][..], &["h", "", "ello", ", wor", "ld"], &["hello, ", "world"]] {
            let mut body = UploadBody::new(source(chunks), 12, ChecksumHasher::default());
            let mut pieces = Vec::new();
            loop {
                let piece = body.take(5).await.unwrap();
                if piece.is_empty() {
                    break;
                }
                pieces.push(piece);
            }
            assert_eq!(pieces, ["hello", ", wor", "ld"]);
            assert_eq!(body.digests().await.md5, Md5::checksum(b"hello, world"));
            let mut body = UploadBody::new(source(chunks), 11, ChecksumHasher::default());
            assert!(matches!(body.take(100).await, Err(Error::TooLarge)));
        }
    }
}
