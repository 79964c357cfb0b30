//! Removals and truncations, which any client can complete.

use super::guarded_ops::{self, GuardOutcome, verdict};
use super::meta::{Meta, REMOVAL, SIZE, Unfinished, piece_name};
use super::object::Object;
use super::pieces::MAX_STRAY_ATTEMPTS;
use super::{Inner, MAX_ATTEMPTS, check_range};
use futures::future::join_all;
use nacre_engine::{Result, WriteOp};
use nacre_types::errno::Errno;
use std::ops::Range;
use std::sync::Arc;

/// Number of pieces that are cut or removed concurrently.
const MAX_CONCURRENT_PIECES: u64 = 64;

impl Inner {
    /// Removes the object and all its pieces. Fails with ENOENT if it does not exist.
    pub(super) async fn remove(self: Arc<Self>, name: String) -> Result<()> {
        let excluding = self.object(&name)?.register_exclusive()?;
        for _ in 0..MAX_ATTEMPTS {
            let loaded = self.load(&name).await?.ok_or(Errno::ENOENT)?;
            if loaded.meta.unfinished == Some(Unfinished::Removal) {
                return self.finish_unfinished(&excluding.0, loaded.meta).await;
            }
            if self
                .begin(&excluding.0, loaded.meta, guarded_ops::record_unfinished(loaded.meta.epoch, REMOVAL))
                .await?
            {
                return Ok(());
            }
        }
        Err(Errno::EBUSY.into())
    }

    /// Sets the object's size to `size` bytes. Fails with ENOENT if it does not exist. Added bytes read as zeros.
    pub(super) async fn truncate(self: Arc<Self>, name: String, size: u64) -> Result<()> {
        check_range(size, 0)?;
        let excluding = self.object(&name)?.register_exclusive()?;
        self.truncate_alone(&excluding.0, size).await
    }

    /// Empties the object if it exists, then writes it.
    pub(super) async fn write_full(self: Arc<Self>, name: String, data: bytes::Bytes) -> Result<()> {
        {
            let excluding = self.object(&name)?.register_exclusive()?;
            match self.truncate_alone(&excluding.0, 0).await {
                Err(error) if error.is_not_found() => {}
                other => other?,
            }
        }
        self.write(name, 0, data).await
    }

    async fn truncate_alone(&self, object: &Arc<Object>, size: u64) -> Result<()> {
        for _ in 0..MAX_ATTEMPTS {
            let meta = self.load(&object.name).await?.ok_or(Errno::ENOENT)?.meta;
            match meta.unfinished {
                Some(Unfinished::Removal) => return Err(Errno::ENOENT.into()),
                Some(Unfinished::Truncation(_)) => {
                    self.finish_unfinished(object, meta).await?;
                    continue;
                }
                None => {}
            }
            if size == meta.size {
                return Ok(());
            }
            // The size never exceeds the announced pieces. Writers within the size rely on that, and so does a truncation.
            let pieces = meta.pieces.max(meta.layout.piece_count(size));
            let mut announce = guarded_ops::announce(meta.epoch, pieces);
            announce.full_force();
            if let GuardOutcome::GuardFailed(0) =
                verdict(self.pool.operate(&piece_name(&object.name, 0), announce).await)?
            {
                continue;
            }
            let done = if size > meta.size {
                let mut op = guarded_ops::in_epoch(meta.epoch);
                guarded_ops::grow(&mut op, size);
                let answer = self.pool.operate(&piece_name(&object.name, 0), op).await;
                matches!(verdict(answer)?, GuardOutcome::Done)
            } else {
                let mut op = guarded_ops::record_unfinished(meta.epoch, &size.to_string());
                op.set_xattr(SIZE, size.to_string()).truncate(meta.layout.piece_len(0, size));
                self.begin(object, meta, op).await?
            };
            if done {
                return Ok(());
            }
        }
        Err(Errno::EBUSY.into())
    }

    /// Sends the request that begins a removal or truncation, then executes it. Returns whether the epoch still held.
    async fn begin(&self, object: &Object, meta: Meta, op: WriteOp) -> Result<bool> {
        let answer = self.pool.operate(&piece_name(&object.name, 0), op).await;
        object.forget(meta.epoch);
        if let GuardOutcome::GuardFailed(_) = verdict(answer)? {
            return Ok(false);
        }
        // Pieces may have been announced until the epoch ended, but not after it.
        match self.load(&object.name).await? {
            Some(loaded) if loaded.meta.unfinished.is_some() => {
                self.finish_unfinished(object, loaded.meta).await?
            }
            // Another client has completed it.
            _ => {}
        }
        Ok(true)
    }

    /// Completes a removal or truncation, whichever client began it.
    pub(super) async fn finish_unfinished(&self, object: &Object, meta: Meta) -> Result<()> {
        let name = &object.name;
        let first = piece_name(name, 0);
        match meta.unfinished {
            None => Ok(()),
            Some(Unfinished::Removal) => {
                self.remove_pieces(name, meta, 1).await?;
                verdict(self.pool.operate(&first, guarded_ops::end_removal(meta.epoch)).await).map(drop)
            }
            Some(Unfinished::Truncation(size)) => {
                let (layout, pieces) = (meta.layout, meta.layout.piece_count(size));
                // Only pieces of the last set can be longer than the new size allows.
                let last_set = (pieces - 1) / layout.stripe_count() * layout.stripe_count();
                let last_set = last_set.max(1)..pieces;
                let cut = async {
                    let cut = |piece| {
                        guarded_ops::truncate_piece(meta.piece_identity(piece), layout.piece_len(piece, size))
                    };
                    self.for_pieces(name, meta, last_set.clone(), cut).await?;
                    self.remove_pieces(name, meta, pieces).await?;
                    let op = guarded_ops::end_truncation(meta.epoch, size, pieces);
                    verdict(self.pool.operate(&first, op).await)
                };
                // After an error, other clients may complete the truncation, and the delayed requests of this one may create
                // pieces after that.
                let made: Vec<u64> = last_set.clone().collect();
                let ended = cut.await.inspect_err(|_| object.record_created(meta, &made))?;
                if let GuardOutcome::GuardFailed(_) = ended {
                    // Another client has completed it. The object may have been truncated again or removed since, so this
                    // truncation may have created pieces that belong to no object.
                    self.undo_stale_write(object, meta, made).await?;
                }
                Ok(())
            }
        }
    }

    /// Removes all pieces from number `from` on.
    async fn remove_pieces(&self, name: &str, meta: Meta, from: u64) -> Result<()> {
        // The guard does not hold for an absent piece, nor for one created since by a client that found this operation completed.
        self.for_pieces(name, meta, from..meta.pieces, |piece| {
            guarded_ops::remove_piece(meta.piece_identity(piece))
        })
        .await
    }

    /// Sends a request to each of `pieces`, at most `MAX_CONCURRENT_PIECES` at a time. Strays are removed first.
    async fn for_pieces(
        &self,
        name: &str,
        meta: Meta,
        mut pieces: Range<u64>,
        request: impl Fn(u64) -> WriteOp + Send + Sync,
    ) -> Result<()> {
        let request = &request;
        let one = |piece| async move {
            for _ in 0..MAX_STRAY_ATTEMPTS {
                let answer = self.pool.operate(&piece_name(name, piece), request(piece)).await;
                match verdict(answer)? {
                    GuardOutcome::GuardFailed(part) if guarded_ops::is_stray_guard(part) => {}
                    GuardOutcome::Done | GuardOutcome::GuardFailed(_) => return Ok(()),
                }
                if !self.clear_stray(name, piece, meta.piece_identity(piece)).await? {
                    return Ok(());
                }
            }
            Err(Errno::EAGAIN.into())
        };
        while !pieces.is_empty() {
            let window = pieces.by_ref().take(MAX_CONCURRENT_PIECES as usize).map(one);
            join_all(window).await.into_iter().collect::<Result<()>>()?;
        }
        Ok(())
    }
}
