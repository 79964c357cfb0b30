//! Reads: without locks, and without a round trip before the data's if the object is known.

use super::Inner;
use super::guarded_ops;
use super::layout::PieceExtent;
use super::meta::{Meta, Unfinished, piece_name};
use super::{LoadedMeta, MAX_ATTEMPTS};
use bytes::Bytes;
use futures::future::{join, join_all};
use nacre_engine::{Error, ReadOp, Result};
use nacre_types::errno::Errno;
use std::sync::Arc;

/// Zeros for holes.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The result of a read, in the order of the object.
#[derive(Default)]
struct ReadBuffers {
    runs: Vec<Bytes>,
    /// Whether some of the range was in no piece.
    holes: bool,
}

impl Inner {
    /// Reads at most `len` bytes, as consecutive buffers. The result is short at the object's end.
    pub(super) async fn read(self: Arc<Self>, name: String, offset: u64, len: u64) -> Result<Vec<Bytes>> {
        let object = self.object(&name)?;
        let end = offset.saturating_add(len);
        let mut known = object.known();
        for _ in 0..MAX_ATTEMPTS {
            let Some(before) = known else {
                let asked_at = self.clock.now();
                let meta = self.load(&name).await?.and_then(readable).ok_or(Errno::ENOENT)?;
                object.merge_state(meta, asked_at);
                known = Some(meta);
                continue;
            };
            // Data that was read together with a larger size may be older than that size, so it is read again.
            let (mut runs, mut at, mut trusted) = (Vec::new(), offset, before.size);
            let again = loop {
                let upto = end.min(trusted).max(at);
                let asked_at = self.clock.now();
                let (read, mut meta) = self.read_with_state(&name, &before, at, upto).await?;
                if read.holes && meta.is_some() {
                    // Pieces that a removal deletes meanwhile are also absent, so the object must be checked again.
                    meta = self.load(&name).await?.and_then(readable);
                }
                let Some(meta) = meta else {
                    object.forget(before.epoch);
                    return Err(Errno::ENOENT.into());
                };
                object.merge_state(meta, asked_at);
                if meta.epoch != before.epoch || meta.layout != before.layout {
                    break Some(meta);
                }
                runs.extend(read.runs);
                (at, trusted) = (upto, meta.size);
                if at >= end.min(trusted) {
                    break None;
                }
            };
            match again {
                None => return Ok(runs),
                meta => known = meta,
            }
        }
        Err(Errno::EBUSY.into())
    }

    /// Reads the pieces of a range and, at the same time, the object's state. `known` is the state that the caller expects:
    /// pieces of other objects and strays count as absent.
    async fn read_with_state(
        &self,
        name: &str,
        known: &Meta,
        from: u64,
        upto: u64,
    ) -> Result<(ReadBuffers, Option<Meta>)> {
        let mut extents = known.layout.extents(from, upto - from);
        let first = extents.first().is_some_and(|extent| extent.piece == 0).then(|| extents.remove(0));
        let mut op = ReadOp::new();
        op.get_xattrs();
        if let Some(first) = &first {
            op.read(first.offset, first.len);
        }
        let state = self.pool.operate_read(&piece_name(name, 0), op);
        let pieces: Vec<_> = extents
            .iter()
            .map(|extent| {
                let identity = known.piece_identity(extent.piece);
                let op = guarded_ops::read_piece(identity, extent.offset, extent.len);
                self.pool.operate_read(&piece_name(name, extent.piece), op)
            })
            .collect();
        let (state, pieces) = join(state, join_all(pieces)).await;
        let mut state = match state.and_then(|reply| reply.success()) {
            Ok(state) => state,
            Err(error) if error.is_not_found() => return Ok((ReadBuffers::default(), None)),
            Err(error) => return Err(error),
        };
        let meta = Meta::parse(&state.pairs(0)?)?.filter(|meta| meta.unfinished != Some(Unfinished::Removal));
        let (mut found, len) = (Vec::new(), (upto - from) as usize);
        if let Some(first) = first {
            found.push((first, state.output(1)?));
        }
        for (extent, piece) in extents.into_iter().zip(pieces) {
            match piece.and_then(|reply| reply.success()) {
                Ok(mut reply) => found.push((extent, reply.output(guarded_ops::READ_PART)?)),
                // A hole, or a stray in its place.
                Err(error) if error.is_not_found() || error.errno() == Errno::ECANCELED => {}
                Err(error) => return Err(error),
            }
        }
        let holes = found.iter().map(|(_, data)| data.len()).sum::<usize>() < len;
        Ok((ReadBuffers { runs: assemble(len, found), holes }, meta))
    }

    /// Loads the first piece's attributes; `None` if there is no such object. Fails with ENOENT if the object of that name is
    /// not a first piece.
    pub(super) async fn load(&self, name: &str) -> Result<Option<LoadedMeta>> {
        let mut op = ReadOp::new();
        op.get_xattrs().stat();
        let reply = self.pool.operate_read(&piece_name(name, 0), op).await;
        let mut reply = match reply.and_then(|reply| reply.success()) {
            Ok(reply) => reply,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error),
        };
        let attrs = reply.pairs(0)?;
        let mtime_ns = reply.stat(1)?.mtime_ns;
        let Some(meta) = Meta::parse(&attrs)? else {
            let detail = format!("'{}' is not the first piece of a striped object", piece_name(name, 0));
            return Err(Error::Invalid { errno: Errno::ENOENT, detail });
        };
        Ok(Some(LoadedMeta { meta, mtime_ns, attrs }))
    }

    /// Like [`Inner::load`] for operations that only look: ENOENT if there is no striped object, or a removed one.
    pub(super) async fn load_existing(&self, name: &str) -> Result<LoadedMeta> {
        let loaded = self.load(name).await?;
        let found = loaded.filter(|loaded| loaded.meta.unfinished != Some(Unfinished::Removal));
        Ok(found.ok_or(Errno::ENOENT)?)
    }
}

fn readable(loaded: LoadedMeta) -> Option<Meta> {
    (loaded.meta.unfinished != Some(Unfinished::Removal)).then_some(loaded.meta)
}

/// Orders the data that was found, and fills the gaps with zeros.
fn assemble(len: usize, found: Vec<(PieceExtent, Bytes)>) -> Vec<Bytes> {
    let mut parts: Vec<(usize, Bytes)> = Vec::new();
    for (extent, data) in found {
        let mut taken = 0;
        for (at, len) in extent.parts {
            // Short if the piece ends before its part of the object does.
            let part = data.slice(taken.min(data.len())..(taken + len).min(data.len()));
            taken += len;
            parts.push((at, part));
        }
    }
    parts.sort_by_key(|(at, _)| *at);
    let (mut runs, mut end) = (Vec::with_capacity(parts.len()), 0);
    for (at, part) in parts {
        zeros(&mut runs, at - end);
        end = at + part.len();
        runs.push(part);
    }
    zeros(&mut runs, len - end);
    runs.retain(|run| !run.is_empty());
    runs
}

fn zeros(runs: &mut Vec<Bytes>, len: usize) {
    let mut left = len;
    while left > 0 {
        let run = left.min(ZEROS.len());
        runs.push(Bytes::from_static(&ZEROS[..run]));
        left -= run;
    }
}

/// Joins the result of a read into one buffer, without a copy if it is a single one.
pub(super) fn join_buffers(mut runs: Vec<Bytes>) -> Bytes {
    match runs.len() {
        0 => Bytes::new(),
        1 => runs.remove(0),
        _ => runs.concat().into(),
    }
}
