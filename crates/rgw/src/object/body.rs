//! What arrives of an object's data: pieces, and the digests of all of it.

use super::crypt::{CHUNK_BYTES, Cipher, Encryptor};
use super::md5::Md5;
use crate::error::{Error, Result};
use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt};
use s3s::checksum::ChecksumHasher;
use s3s::dto::Checksum;
use std::pin::Pin;
use std::time::Duration;

/// How long a client may send nothing: it holds room that others wait for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where data comes from.
pub(crate) type Source =
    Pin<Box<dyn Stream<Item = Result<Bytes, Box<dyn std::error::Error + Send + Sync>>> + Send>>;

/// Data on its way into an object.
pub(crate) struct Body {
    source: Source,
    /// What arrived and was not taken.
    rest: Bytes,
    ended: bool,
    taken: u64,
    max: u64,
    md5: Md5,
    checksums: ChecksumHasher,
    encryptor: Option<Encryptor>,
}

/// The digests of all data.
pub(crate) struct Digests {
    pub(crate) md5: [u8; 16],
    pub(crate) checksums: Checksum,
}

impl Body {
    /// Data of at most `max` bytes, of which these checksums are wanted.
    pub(crate) fn new(source: Source, max: u64, checksums: ChecksumHasher) -> Body {
        let (rest, md5) = (Bytes::new(), Md5::new());
        Body { source, rest, ended: false, taken: 0, max, md5, checksums, encryptor: None }
    }

    /// Has the data encrypted as it is taken; digests stay those of the data as it came.
    pub(crate) fn encrypted(self, cipher: Cipher) -> Body {
        Body { encryptor: Some(Encryptor::new(cipher)), ..self }
    }

    /// How many bytes so much data becomes as it is taken.
    pub(crate) fn stored_len(&self, len: u64) -> u64 {
        if self.encryptor.is_some() { super::crypt::stored_len(len) } else { len }
    }

    /// Bytes that came and were taken.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// The next `len` bytes to be stored; fewer at the end, where it is empty.
    pub(crate) async fn take(&mut self, len: usize) -> Result<Bytes> {
        let Some(mut encryptor) = self.encryptor.take() else { return self.take_plain(len).await };
        while encryptor.ready() < len {
            let chunk = self.take_plain(CHUNK_BYTES).await?;
            if chunk.is_empty() {
                break;
            }
            encryptor.push(&chunk);
        }
        let ready = encryptor.take(len);
        self.encryptor = Some(encryptor);
        Ok(ready)
    }

    /// The next `len` bytes as they came.
    async fn take_plain(&mut self, len: usize) -> Result<Bytes> {
        let first = self.some().await?;
        let piece = if first.len() >= len || self.ended {
            self.split(first, len)
        } else {
            // Several chunks: one copy, that of the socket's buffers into the piece that goes to RADOS.
            let mut piece = BytesMut::with_capacity(len);
            let mut next = first;
            loop {
                let part = self.split(next, len - piece.len());
                piece.extend_from_slice(&part);
                if piece.len() == len {
                    break;
                }
                next = self.some().await?;
                if next.is_empty() {
                    break;
                }
            }
            piece.freeze()
        };
        self.taken += piece.len() as u64;
        if self.taken > self.max {
            return Err(Error::TooLarge);
        }
        self.checksums.update(&piece);
        self.md5.update(piece.clone()).await;
        Ok(piece)
    }

    /// What is left over, or the next chunk that is not empty; empty at the end.
    async fn some(&mut self) -> Result<Bytes> {
        while self.rest.is_empty() && !self.ended {
            match tokio::time::timeout(PATIENCE, self.source.next()).await {
                Ok(Some(Ok(chunk))) => self.rest = chunk,
                Ok(Some(Err(error))) => return Err(Error::Body(error.to_string())),
                Ok(None) => self.ended = true,
                Err(_) => return Err(Error::Body(format!("nothing came for {} s", PATIENCE.as_secs()))),
            }
        }
        Ok(std::mem::take(&mut self.rest))
    }

    fn split(&mut self, mut chunk: Bytes, len: usize) -> Bytes {
        if chunk.len() > len {
            self.rest = chunk.split_off(len);
        }
        chunk
    }

    /// The digests of what was taken.
    pub(crate) async fn digests(self) -> Digests {
        Digests { md5: self.md5.finish().await, checksums: self.checksums.finalize() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use s3s::crypto::{Checksum as _, Md5};

    fn source(chunks: &[&'static str]) -> Source {
        let chunks: Vec<_> = chunks.iter().map(|chunk| Ok(Bytes::from_static(chunk.as_bytes()))).collect();
        Box::pin(futures::stream::iter(chunks))
    }

    #[tokio::test]
    async fn pieces_have_their_length_whatever_the_chunks() {
        for chunks in [&["hello, world"][..], &["h", "", "ello", ", wor", "ld"], &["hello, ", "world"]] {
            let mut body = Body::new(source(chunks), 12, ChecksumHasher::default());
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
            let mut body = Body::new(source(chunks), 11, ChecksumHasher::default());
            assert!(matches!(body.take(100).await, Err(Error::TooLarge)));
        }
    }
}
