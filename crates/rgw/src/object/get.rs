//! Reading an object: its head with what is in it, in one operation, then its tails.

use super::{Data, HEAD, Head, INLINE_BYTES, Manifest, PIECE_BYTES, STRIPE_BYTES, head_name, head_of};
use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::gateway::Gateway;
use crate::index::Tails;
use crate::record;
use bytes::Bytes;
use futures::stream::{self, Stream, StreamExt};
use nacre_client::{IoCtx, ReadOp};
use nacre_types::errno::Errno;
use std::ops::Range;

/// Pieces of one object that are read at the same time.
const PIECES: usize = 4;

/// A run of bytes in a RADOS object.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Span {
    object: String,
    offset: u64,
    len: u64,
}

/// An object that is being read.
pub(crate) struct Reader {
    pub(crate) head: Head,
    /// The parts, where it was uploaded in parts.
    pub(crate) manifest: Manifest,
    inline: Bytes,
    pool: IoCtx,
}

impl Gateway {
    /// Opens an object for reading.
    pub(crate) async fn open_object(&self, bucket: &Bucket, key: &str) -> Result<Reader> {
        let name = head_name(bucket, key);
        let mut op = ReadOp::new();
        op.get_xattr(HEAD).read(0, INLINE_BYTES as u64);
        let reply = self.pools.data.operate_read(&name, op).await.and_then(|reply| reply.success());
        let mut reply = match reply {
            Err(error) if error.is_not_found() => return Err(Error::NoSuchKey),
            reply => reply?,
        };
        let head = head_of(&mut reply, 0, &name)?;
        let inline = reply.output(1)?;
        let manifest = match head.data {
            Data::Parts(_) => record::decode(&name, &inline)?,
            _ => Manifest::default(),
        };
        if head.data == Data::Inline && inline.len() as u64 != head.size {
            let detail = format!("{} bytes of data where {} should be", inline.len(), head.size);
            let source = nacre_types::encoding::DecodeError::Corrupt { what: "object data", detail };
            return Err(Error::Corrupt { name, source });
        }
        Ok(Reader { head, manifest, inline, pool: self.pools.data.clone() })
    }
}

impl Reader {
    /// The data in `range`, which lies within the object. A piece that is not whole ends it with an error.
    pub(crate) fn data(&self, range: Range<u64>) -> impl Stream<Item = Result<Bytes>> + Send + 'static {
        let (inline, spans) = match &self.head.data {
            Data::Inline => (self.inline.slice(range.start as usize..range.end as usize), Vec::new()),
            Data::Tails(tails) => (Bytes::new(), spans(tails, range)),
            Data::Parts(_) => (Bytes::new(), self.spans_of_parts(range)),
        };
        let pool = self.pool.clone();
        let pieces = stream::iter(spans).map(move |span| read(pool.clone(), span)).buffered(PIECES);
        let inline = (!inline.is_empty()).then_some(Ok(inline));
        stream::iter(inline).chain(pieces)
    }

    fn spans_of_parts(&self, range: Range<u64>) -> Vec<Span> {
        let (mut all, mut begin) = (Vec::new(), 0);
        for part in &self.manifest.parts {
            let end = begin + part.size;
            let (from, to) = (range.start.max(begin), range.end.min(end));
            if from < to {
                all.extend(spans(&part.tails, from - begin..to - begin));
            }
            begin = end;
        }
        all
    }
}

/// Where the bytes of `range` are in tails, by pieces.
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
mod tests {
    use super::*;

    #[test]
    fn spans_cover_a_range_once() {
        let tails = Tails { name: "t".into(), count: 3 };
        let total = 2 * STRIPE_BYTES + 5;
        for range in [0..total, 0..1, 5..5, STRIPE_BYTES - 1..STRIPE_BYTES + 1, 3..total] {
            let mut at = range.start;
            for span in spans(&tails, range.clone()) {
                assert_eq!(span.object, format!("t_{}", at / STRIPE_BYTES));
                assert_eq!(span.offset, at % STRIPE_BYTES);
                assert!(span.len > 0 && span.offset + span.len <= STRIPE_BYTES);
                at += span.len;
            }
            assert_eq!(at, range.end);
        }
    }
}
