//! What arrives of an object's data: pieces, and the digests of all of it.

use crate::error::{Error, Result};
use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt};
use s3s::checksum::ChecksumHasher;
use s3s::crypto::{Checksum as _, Md5};
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
}

/// The digests of all data.
pub(crate) struct Digests {
    pub(crate) md5: [u8; 16],
    pub(crate) checksums: Checksum,
}

impl Body {
    /// Data of at most `max` bytes, of which these checksums are wanted.
    pub(crate) fn new(source: Source, max: u64, checksums: ChecksumHasher) -> Body {
        Body { source, rest: Bytes::new(), ended: false, taken: 0, max, md5: Md5::new(), checksums }
    }

    /// The next `len` bytes; fewer at the end, where it is empty.
    pub(crate) async fn take(&mut self, len: usize) -> Result<Bytes> {
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
        self.md5.update(&piece);
        self.checksums.update(&piece);
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
    pub(crate) fn digests(self) -> Digests {
        Digests { md5: self.md5.finalize(), checksums: self.checksums.finalize() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(body.digests().md5, Md5::checksum(b"hello, world"));
            let mut body = Body::new(source(chunks), 11, ChecksumHasher::default());
            assert!(matches!(body.take(100).await, Err(Error::TooLarge)));
        }
    }
}
