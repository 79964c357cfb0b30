//! Reading an object: its head and the data in it, in one operation, then its tails. How much of the head's data the first
//! operation asks for is estimated ([`ReadSizeEstimator`](super::ReadSizeEstimator)); if the head has more, a second
//! operation asks for all of it.

use super::{
    DataLocation, Encryption, HEAD, Head, MAX_HEAD_BYTES, MAX_INLINE_BYTES, MAX_MANIFEST_BYTES, Manifest,
    ManifestPart, PIECE_BYTES, STRIPE_BYTES, StoredObjects, decode_head, head_name,
};
use crate::crypt::{self, Secret};
use crate::error::{Error, Result};
use crate::record;
use bytes::Bytes;
use futures::stream::{self, Stream, StreamExt};
use nacre_client::{IoCtx, ReadOp};
use nacre_index::record::Tails;
use nacre_types::errno::Errno;
use std::ops::Range;

/// Pieces of one object that are read at the same time.
const PIECES: usize = 4;

/// A range of bytes in a RADOS object.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Span {
    object: String,
    offset: u64,
    len: u64,
}

/// An object that is being read.
pub struct ObjectReader {
    /// What the head says about the object.
    pub head: Head,
    /// The parts, if the object was uploaded in parts.
    pub manifest: Manifest,
    /// The secret that the data is decrypted with, if it is encrypted.
    pub secret: Option<Secret>,
    /// The data that was read from the head's RADOS object, from byte `inline_at` on.
    inline: Bytes,
    inline_at: u64,
    /// The pool of its tails.
    pool: IoCtx,
}

impl StoredObjects {
    /// Returns the pool that contains the data of an object, as far as it is not in the head.
    pub(crate) async fn data_pool(&self, head: &Head) -> Result<IoCtx> {
        match head.data {
            // There is no such data, so the zone need not be read.
            DataLocation::Inline => Ok(self.data.clone()),
            DataLocation::Tails(_) | DataLocation::Parts(_) => self.classes.pool_for_read(&head.class).await,
        }
    }

    /// Opens the newest version of an object for reading; it may be a delete marker.
    pub(crate) async fn open_object(&self, bucket_id: &str, key: &str) -> Result<ObjectReader> {
        let mut asked = self.read_sizes.first_read_len(bucket_id);
        let mut again = false;
        loop {
            let (name, head, inline) = self.read_head(bucket_id, key, 0..asked).await?;
            match head.longer_read(inline.len() as u64, asked) {
                // The second read is too short only if the object was replaced in between.
                Some(longer) => asked = if again { MAX_HEAD_BYTES } else { longer },
                None => {
                    self.read_sizes.record_read(bucket_id, inline.len() as u64);
                    let pool = self.data_pool(&head).await?;
                    return ObjectReader::new(name, head, inline, pool);
                }
            }
            again = true;
        }
    }

    /// Like [`StoredObjects::open_object`], for a caller that reads nothing but `range`. Fetches no more than that, unless the data in
    /// the head is encrypted or is a manifest.
    pub(crate) async fn open_range(
        &self,
        bucket_id: &str,
        key: &str,
        range: Range<u64>,
    ) -> Result<ObjectReader> {
        let most = MAX_INLINE_BYTES as u64;
        let range = range.start.min(most)..range.end.min(most);
        let whole = range.end - range.start;
        let mut asked = self.read_sizes.first_read_len(bucket_id).min(whole);
        let mut again = false;
        loop {
            let (name, head, inline) =
                self.read_head(bucket_id, key, range.start..range.start + asked).await?;
            match &head.data {
                DataLocation::Tails(_) => {
                    self.read_sizes.record_read(bucket_id, 0);
                    let pool = self.data_pool(&head).await?;
                    return ObjectReader::new(name, head, Bytes::new(), pool);
                }
                DataLocation::Inline if head.encryption.is_none() => {
                    let there = range.end.min(head.size).saturating_sub(range.start);
                    if there <= asked {
                        check_len(&name, &inline, there)?;
                        self.read_sizes.record_read(bucket_id, there);
                        let inline_at = range.start;
                        return Ok(ObjectReader {
                            inline,
                            inline_at,
                            ..ObjectReader::head_only(head, self.data.clone())
                        });
                    }
                    asked = if again { whole } else { there };
                }
                _ => return self.open_object(bucket_id, key).await,
            }
            again = true;
        }
    }

    /// Reads a head and a range of the data in it, in one operation.
    async fn read_head(
        &self,
        bucket_id: &str,
        key: &str,
        range: Range<u64>,
    ) -> Result<(String, Head, Bytes)> {
        let name = head_name(bucket_id, key);
        let mut op = ReadOp::new();
        // A read of length 0 would read everything.
        op.get_xattr(HEAD).read(range.start, (range.end - range.start).max(1));
        let reply = self.data.operate_read(&name, op).await.and_then(|reply| reply.success());
        let mut reply = match reply {
            Err(error) if error.is_not_found() => return Err(Error::NoSuchKey),
            // A tombstone.
            Err(error) if error.errno() == Errno::ENODATA => return Err(Error::NoSuchKey),
            reply => reply?,
        };
        let head = decode_head(&mut reply, 0, &name)?;
        Ok((name, head, reply.output(1)?))
    }
}

impl Head {
    /// Returns how many bytes of the head's data a read must ask for to get all of it. `None` if a read that asked for `asked`
    /// bytes and got `got` bytes has all of it.
    fn longer_read(&self, got: u64, asked: u64) -> Option<u64> {
        if got < asked {
            // The data ends there. Its length is checked when it is used.
            return None;
        }
        let needed = self.max_inline_bytes();
        (needed > asked).then_some(needed)
    }

    /// The most bytes of data that are in the head's RADOS object.
    pub(crate) fn max_inline_bytes(&self) -> u64 {
        let size = self.size.min(MAX_HEAD_BYTES);
        let bytes = match &self.data {
            DataLocation::Inline if self.encryption.is_some() => crypt::stored_len(size),
            DataLocation::Inline => size,
            DataLocation::Tails(_) => 0,
            // The length of a manifest is not recorded.
            DataLocation::Parts(_) => MAX_MANIFEST_BYTES as u64,
        };
        bytes.min(MAX_HEAD_BYTES)
    }
}

/// Fails with [`Error::Corrupt`] unless the data has the expected length.
fn check_len(name: &str, data: &Bytes, wanted: u64) -> Result<()> {
    if data.len() as u64 == wanted {
        return Ok(());
    }
    let detail = format!("{} bytes of data where {wanted} should be", data.len());
    let source = nacre_types::encoding::DecodeError::Corrupt { what: "object data", detail };
    Err(Error::Corrupt { name: name.to_owned(), source })
}

impl ObjectReader {
    /// A reader of an object. `inline` is the data in its head's RADOS object, `name`.
    pub(crate) fn new(name: String, head: Head, inline: Bytes, pool: IoCtx) -> Result<ObjectReader> {
        let manifest = match head.data {
            DataLocation::Parts(_) => record::decode(&name, &inline)?,
            _ => Manifest::default(),
        };
        let stored = if head.encryption.is_some() { crypt::stored_len(head.size) } else { head.size };
        if head.data == DataLocation::Inline {
            check_len(&name, &inline, stored)?;
        }
        Ok(ObjectReader { head, manifest, secret: None, inline, inline_at: 0, pool })
    }

    /// A reader of an object of which only the head is needed.
    pub(crate) fn head_only(head: Head, pool: IoCtx) -> ObjectReader {
        ObjectReader {
            head,
            manifest: Manifest::default(),
            secret: None,
            inline: Bytes::new(),
            inline_at: 0,
            pool,
        }
    }

    /// Streams the data in `range`, which lies within the object. A piece that is too short yields an error.
    pub fn data(&self, range: Range<u64>) -> impl Stream<Item = Result<Bytes>> + Send + 'static {
        match &self.head.encryption {
            Some(encryption) => self.decrypted(encryption, range).left_stream(),
            None => self.plain(range).right_stream(),
        }
    }

    fn plain(&self, range: Range<u64>) -> impl Stream<Item = Result<Bytes>> + Send + use<> {
        let (inline, spans) = match &self.head.data {
            DataLocation::Inline => (Some(self.inline_range(range)), Vec::new()),
            DataLocation::Tails(tails) => (None, spans(tails, range)),
            DataLocation::Parts(_) => (None, self.spans_of_parts(range)),
        };
        stream::iter(inline).chain(self.pieces(spans))
    }

    /// A range of the data in the head.
    fn inline_range(&self, range: Range<u64>) -> Result<Bytes> {
        let at = |byte: u64| byte.checked_sub(self.inline_at).map(|at| at as usize);
        match (at(range.start), at(range.end)) {
            (Some(start), Some(end)) if end <= self.inline.len() => Ok(self.inline.slice(start..end)),
            _ if range.is_empty() => Ok(Bytes::new()),
            _ => Err(nacre_client::Error::from(Errno::EIO).into()),
        }
    }

    fn pieces(&self, spans: Vec<Span>) -> impl Stream<Item = Result<Bytes>> + Send + use<> {
        let pool = self.pool.clone();
        stream::iter(spans).map(move |span| read(pool.clone(), span)).buffered(PIECES)
    }

    fn decrypted(
        &self,
        encryption: &Encryption,
        range: Range<u64>,
    ) -> impl Stream<Item = Result<Bytes>> + Send + use<> {
        let mut streams = Vec::new();
        match (&self.secret, &self.head.data) {
            (None, _) => streams.push(stream::iter([Err(Error::WrongKey)]).boxed()),
            (Some(secret), DataLocation::Inline) => {
                let (stored, chunk) = crypt::stored_range(&range, self.head.size);
                let inline = self.inline.slice(stored.start as usize..stored.end as usize);
                let inline = stream::iter([Ok(inline)]);
                streams.push(crypt::decrypt(secret.cipher(encryption), inline, &range, chunk).boxed());
            }
            (Some(secret), DataLocation::Tails(tails)) => {
                let (stored, chunk) = crypt::stored_range(&range, self.head.size);
                let pieces = self.pieces(spans(tails, stored)).boxed();
                streams.push(crypt::decrypt(secret.cipher(encryption), pieces, &range, chunk).boxed());
            }
            (Some(secret), DataLocation::Parts(_)) => {
                for (part, range) in self.parts_of(range) {
                    let (stored, chunk) = crypt::stored_range(&range, part.size);
                    let pieces = self.pieces(spans(&part.tails, stored)).boxed();
                    // A part without a salt is damaged: nothing can be decrypted with the key that is derived here.
                    let cipher = secret.part_cipher(&part.salt.unwrap_or_default());
                    streams.push(crypt::decrypt(cipher, pieces, &range, chunk).boxed());
                }
            }
        }
        stream::iter(streams).flatten()
    }

    /// The parts that `range` overlaps, and the bytes of each that are in `range`.
    fn parts_of(&self, range: Range<u64>) -> Vec<(&ManifestPart, Range<u64>)> {
        let (mut all, mut begin) = (Vec::new(), 0);
        for part in &self.manifest.parts {
            let end = begin + part.size;
            let (from, to) = (range.start.max(begin), range.end.min(end));
            if from < to {
                all.push((part, from - begin..to - begin));
            }
            begin = end;
        }
        all
    }

    fn spans_of_parts(&self, range: Range<u64>) -> Vec<Span> {
        self.parts_of(range).into_iter().flat_map(|(part, range)| spans(&part.tails, range)).collect()
    }
}

/// Where the bytes of `range` are in the tails, split into pieces.
fn spans(tails: &Tails, range: Range<u64>) -> Vec<Span> {
    let mut all = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let offset = at % STRIPE_BYTES;
        let len = (STRIPE_BYTES - offset).min(PIECE_BYTES as u64).min(range.end - at);
        all.push(Span { object: format!("{}_{}", tails.name, at / STRIPE_BYTES), offset, len });
        at += len;
    }
    all
}

async fn read(pool: IoCtx, span: Span) -> Result<Bytes> {
    let bytes = pool.read(&span.object, span.offset, span.len).await?;
    if bytes.len() as u64 == span.len { Ok(bytes) } else { Err(nacre_client::Error::from(Errno::EIO).into()) }
}

#[cfg(test)]
mod tests;
