//! Writes and appends.

use super::Inner;
use super::guarded_ops::{self, GuardOutcome, verdict};
use super::layout::PieceExtent;
use super::meta::{
    EPOCH, INSTANCE, Meta, OBJECT_SIZE, PIECE_BOUND, SIZE, STRIPE_COUNT, STRIPE_UNIT, Unfinished, piece_name,
};
use super::object::{Batch, CachedState, Object};
use super::pieces::{both_held, split_extents};
use super::{MAX_ATTEMPTS, check_range};
use bytes::{Bytes, BytesMut};
use futures::future::{join, join_all};
use nacre_engine::{Error, OpReply, Pending, Result, WriteOp};
use nacre_types::errno::Errno;
use std::sync::Arc;
use std::task::Poll;
use tokio::sync::oneshot;

/// Maximum number of pieces announced ahead of those written. At most as many are announced ahead as are needed, so that small
/// objects stay small.
const MAX_ANNOUNCED_AHEAD: u64 = 64;
/// Confirmations of size and epoch in flight for one object. Further writes share the next one.
const MAX_CONFIRMATIONS: u32 = 2;
/// Attempts of a confirmation in its two forms. More than one is needed only if writes failed.
const MAX_CONFIRM_ATTEMPTS: usize = 8;

/// The outcome of an attempt.
enum WriteAttempt {
    Done,
    /// The epoch has passed; these pieces may have been created in it.
    Stale {
        meta: Meta,
        made: Vec<u64>,
    },
    /// Another append claimed the range first.
    Lost,
}

/// An object that is ready to be written.
enum WritableObject {
    Known(CachedState),
    /// The object was created with the data.
    Written,
}

impl Inner {
    /// Writes `data` at `offset`. Returns when data and size are durable.
    pub(super) async fn write(self: Arc<Self>, name: String, offset: u64, data: Bytes) -> Result<()> {
        check_range(offset, data.len())?;
        let writing = self.object(&name)?.register_write()?;
        for _ in 0..MAX_ATTEMPTS {
            match self.attempt(&writing.0, offset, &data).await? {
                WriteAttempt::Done => return Ok(()),
                WriteAttempt::Stale { meta, made } => {
                    self.undo_stale_write(&writing.0, meta, made).await?;
                }
                WriteAttempt::Lost => {}
            }
        }
        Err(Errno::EBUSY.into())
    }

    /// Writes `data` at the end. Returns when data and size are durable.
    pub(super) async fn append(self: Arc<Self>, name: String, data: Bytes) -> Result<()> {
        let writing = self.object(&name)?.register_write()?;
        for _ in 0..MAX_ATTEMPTS {
            match self.attempt_append(&writing.0, &data).await? {
                WriteAttempt::Done => return Ok(()),
                WriteAttempt::Stale { meta, made } => {
                    self.undo_stale_write(&writing.0, meta, made).await?;
                }
                WriteAttempt::Lost => {}
            }
        }
        Err(Errno::EBUSY.into())
    }

    async fn attempt(
        self: &Arc<Self>,
        object: &Arc<Object>,
        offset: u64,
        data: &Bytes,
    ) -> Result<WriteAttempt> {
        let order = object.order.lock().await;
        let known = match self.open(object, offset, data).await? {
            WritableObject::Written => return Ok(WriteAttempt::Done),
            WritableObject::Known(known) => known,
        };
        let (epoch, end) = (known.meta.epoch, offset + data.len() as u64);
        let mut extents = known.meta.layout.extents(offset, data.len() as u64);
        if !self.announced(object, &known, &extents).await? {
            return Ok(WriteAttempt::Stale { meta: known.meta, made: Vec::new() });
        }
        let first = extents.first().is_some_and(|extent| extent.piece == 0).then(|| extents.remove(0));
        let (made, sent) = (unmarked(&known, &extents), self.clock.now());
        let extents = split_extents(object, extents);
        // A single request for data also takes care of the size.
        let reach = if first.is_none() && extents.len() == 1 { end } else { 0 };
        let pieces = self.send_pieces(object, &known, extents, data, reach);
        let confirmed = async {
            match first {
                Some(first) => self.write_first(object, epoch, end, first.offset, gather(data, &first)).await,
                None if reach > 0 => Ok(true),
                None => self.confirm_shared(object, epoch, end).await,
            }
        };
        let mut all = Box::pin(join(pieces, confirmed));
        // All requests are sent before the next write's turn.
        let polled = futures::poll!(all.as_mut());
        drop(order);
        let (pieces, confirmed) = match polled {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => all.await,
        };
        // After an error, too, some pieces may have been created, and the epoch may have passed.
        if !both_held(pieces, confirmed).inspect_err(|_| object.record_created(known.meta, &made))? {
            // Whatever the outcome for the pieces: some may exist that no removal would find.
            return Ok(WriteAttempt::Stale { meta: known.meta, made });
        }
        object.record_epoch_held(epoch, sent);
        object.record_created(known.meta, &made);
        Ok(WriteAttempt::Done)
    }

    async fn attempt_append(self: &Arc<Self>, object: &Arc<Object>, data: &Bytes) -> Result<WriteAttempt> {
        let order = object.order.lock().await;
        let WritableObject::Known(known) = self.open(object, 0, &Bytes::new()).await? else {
            unreachable!("an object is made with data only where there is some")
        };
        let (epoch, from) = (known.meta.epoch, known.tail.unwrap_or(known.meta.size));
        check_range(from, data.len())?;
        let end = from + data.len() as u64;
        let mut extents = known.meta.layout.extents(from, data.len() as u64);
        if !self.announced(object, &known, &extents).await? {
            return Ok(WriteAttempt::Stale { meta: known.meta, made: Vec::new() });
        }
        let mut claim = guarded_ops::claim_append(epoch, from, end);
        if extents.first().is_some_and(|extent| extent.piece == 0) {
            // The data for the first piece is sent with the claim.
            let first = extents.remove(0);
            claim.write(first.offset, gather(data, &first));
        }
        let sent = self.clock.now();
        let mut claimed = self.pool.operate(&piece_name(&object.name, 0), claim);
        // The next append's claim is sent after this one, and holds if this one does.
        let polled = futures::poll!(&mut claimed);
        object.update(epoch, |known| known.tail = Some(end));
        drop(order);
        let answer = match polled {
            Poll::Ready(answer) => answer,
            Poll::Pending => claimed.await,
        };
        match verdict(answer).inspect_err(|_| object.update(epoch, |known| known.tail = None))? {
            GuardOutcome::Done => {}
            GuardOutcome::GuardFailed(0) => {
                return Ok(WriteAttempt::Stale { meta: known.meta, made: Vec::new() });
            }
            GuardOutcome::GuardFailed(_) => {
                // The claims that followed this one are lost too. Each loads the state again, in turn.
                let _order = object.order.lock().await;
                object.update(epoch, |known| known.tail = None);
                self.refresh(object).await?;
                return Ok(WriteAttempt::Lost);
            }
        }
        object.update(epoch, |known| {
            known.asked = known.asked.max(end);
            known.confirm(end, sent);
        });
        object.record_epoch_held(epoch, sent);
        // The claimed range is final: if the epoch passes now, the append took effect before that.
        let made = unmarked(&known, &extents);
        let sent = async {
            let held = self.send_pieces(object, &known, extents, data, 0).await?;
            Ok((held, held && (made.is_empty() || self.ensure_size(object, epoch, end).await?)))
        };
        let (held, confirmed) =
            sent.await.inspect_err(|_: &Error| object.record_created(known.meta, &made))?;
        if confirmed {
            return Ok(WriteAttempt::Done);
        }
        let now = self.undo_stale_write(object, known.meta, made).await?;
        if !held && now.is_some_and(|now| now.is_same_object(&known.meta) && now.size > from) {
            // A truncation came before the data and left a part of the range, which is zeros or was written by others since.
            return Err(Errno::ECANCELED.into());
        }
        Ok(WriteAttempt::Done)
    }

    /// Loads the object's state again.
    async fn refresh(&self, object: &Object) -> Result<()> {
        let asked_at = self.clock.now();
        if let Some(loaded) = self.load(&object.name).await? {
            object.merge_state(loaded.meta, asked_at);
        }
        Ok(())
    }

    /// Returns the object's state, and creates the object if it does not exist: with the data if that fits into the first piece.
    async fn open(
        self: &Arc<Self>,
        object: &Arc<Object>,
        offset: u64,
        data: &Bytes,
    ) -> Result<WritableObject> {
        let mut epoch = 0;
        for _ in 0..MAX_ATTEMPTS {
            if let Some(known) = object.fresh_state() {
                return Ok(WritableObject::Known(known));
            }
            let asked_at = self.clock.now();
            match self.load(&object.name).await? {
                Some(loaded) if loaded.meta.unfinished.is_some() => {
                    epoch = epoch.max(loaded.meta.epoch + 2);
                    self.finish_unfinished(object, loaded.meta).await?;
                }
                Some(loaded) => {
                    object.merge_state(loaded.meta, asked_at);
                    self.take_back_unsure(object, Some(loaded.meta)).await?;
                }
                None => {
                    self.take_back_unsure(object, None).await?;
                    // Microseconds since 1970: later than the epochs of earlier objects of this name, if clocks are right.
                    epoch = epoch.max(self.clock.wall_ns() / 1000);
                    if self.create(object, epoch, offset, data).await? {
                        return Ok(WritableObject::Written);
                    }
                }
            }
        }
        Err(Errno::EBUSY.into())
    }

    /// Creates an object; returns whether it contains the data. Another client may create it at the same time.
    async fn create(&self, object: &Object, epoch: u64, offset: u64, data: &Bytes) -> Result<bool> {
        let layout = *self.layout.lock();
        layout.check()?;
        let extents = layout.extents(offset, data.len() as u64);
        let (size, inside) = match &extents[..] {
            [only] if only.piece == 0 => (offset + data.len() as u64, Some(only)),
            _ => (0, None),
        };
        let pieces = extents.last().map_or(1, |last| last.piece + 1);
        // Unique to this object, and not 0.
        let born = self.clock.random_u64()?.max(1);
        let sent = self.clock.now();
        let mut op = WriteOp::new();
        op.create(true);
        for (name, value) in [
            (STRIPE_UNIT, layout.stripe_unit),
            (STRIPE_COUNT, layout.stripe_count),
            (OBJECT_SIZE, layout.object_size),
            (SIZE, size),
            (EPOCH, epoch),
            (INSTANCE, born),
            (PIECE_BOUND, pieces),
        ] {
            op.set_xattr(name, value.to_string());
        }
        if let Some(only) = inside {
            op.write(only.offset, gather(data, only));
        }
        let answer = self.pool.operate(&piece_name(&object.name, 0), op).await;
        match answer.and_then(|reply| reply.success()) {
            Ok(_) => {
                object.merge_state(
                    Meta { layout, size, epoch, born, cut: None, pieces, unfinished: None },
                    sent,
                );
                Ok(inside.is_some())
            }
            Err(error) if error.errno() == Errno::EEXIST => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Ensures that the pieces are announced, so that a removal finds them. Returns false if the epoch has passed.
    async fn announced(
        self: &Arc<Self>,
        object: &Arc<Object>,
        known: &CachedState,
        extents: &[PieceExtent],
    ) -> Result<bool> {
        let (epoch, Some(last)) = (known.meta.epoch, extents.last()) else { return Ok(true) };
        let needed = last.piece + 1;
        let ahead = needed.min(MAX_ANNOUNCED_AHEAD);
        if needed > known.meta.pieces {
            return self.announce(object, epoch, needed + ahead).await;
        }
        if known.meta.pieces - needed < ahead / 2 && !known.announcing {
            object.update(epoch, |known| known.announcing = true);
            let (inner, object) = (self.clone(), object.clone());
            self.pool.engine().spawn(Box::pin(async move {
                let outcome = inner.announce(&object, epoch, needed + ahead).await;
                object.update(epoch, |known| known.announcing = false);
                // A write that needs the pieces announces them again and gets its own error.
                if let Err(error) = outcome {
                    tracing::debug!(object = object.name, %error, "pieces could not be announced ahead");
                }
            }));
        }
        Ok(true)
    }

    async fn announce(&self, object: &Object, epoch: u64, pieces: u64) -> Result<bool> {
        let op = guarded_ops::announce(epoch, pieces);
        match verdict(self.pool.operate(&piece_name(&object.name, 0), op).await)? {
            GuardOutcome::GuardFailed(0) => Ok(false),
            // At least as many pieces are announced already.
            GuardOutcome::Done | GuardOutcome::GuardFailed(_) => {
                object.update(epoch, |known| known.meta.pieces = known.meta.pieces.max(pieces));
                Ok(true)
            }
        }
    }

    /// Starts the writes to pieces other than the first. Returns whether all held, and whether the size is at least `reach`,
    /// unless that is 0.
    fn send_pieces(
        self: &Arc<Self>,
        object: &Arc<Object>,
        known: &CachedState,
        extents: Vec<PieceExtent>,
        data: &Bytes,
        reach: u64,
    ) -> impl Future<Output = Result<bool>> + Send + use<> {
        let meta = known.meta;
        let sent: Vec<_> = extents
            .into_iter()
            .map(|extent| {
                self.write_piece(object, &meta, extent.piece, extent.offset, gather(data, &extent), reach)
            })
            .collect();
        async move {
            let mut all_held = true;
            let mut failed = None;
            for outcome in join_all(sent).await {
                match outcome {
                    Ok(held) => all_held &= held,
                    Err(error) => failed = Some(error),
                }
            }
            failed.map_or(Ok(all_held), Err)
        }
    }

    /// Writes to the first piece together with the size. Returns whether the epoch still held.
    async fn write_first(
        &self,
        object: &Object,
        epoch: u64,
        end: u64,
        offset: u64,
        data: Bytes,
    ) -> Result<bool> {
        self.confirm_with(object, epoch, end, |grows| {
            let mut op = guarded_ops::in_epoch(epoch);
            if grows {
                guarded_ops::grow(&mut op, end)
            } else {
                guarded_ops::guard_min_size(&mut op, end)
            };
            op.write(offset, data.clone());
            (self.pool.operate(&piece_name(&object.name, 0), op), true)
        })
        .await
    }

    /// Ensures that the size is at least `end`. Returns whether the epoch still held.
    pub(super) async fn ensure_size(&self, object: &Object, epoch: u64, end: u64) -> Result<bool> {
        let name = piece_name(&object.name, 0);
        self.confirm_with(object, epoch, end, |grows| {
            if grows {
                let mut op = guarded_ops::in_epoch(epoch);
                guarded_ops::grow(&mut op, end);
                (self.pool.operate(&name, op), false)
            } else {
                (self.pool.operate_read(&name, guarded_ops::check(epoch, end)), false)
            }
        })
        .await
    }

    /// Sends the request that `request` makes for the assumption that the size must grow (true) or was already reached by an
    /// earlier request (false), until the assumption was right. `request` also tells whether it carries data, which must
    /// itself take effect.
    async fn confirm_with(
        &self,
        object: &Object,
        epoch: u64,
        end: u64,
        mut request: impl FnMut(bool) -> (Pending<OpReply>, bool),
    ) -> Result<bool> {
        let mut grows = true;
        object.update(epoch, |known| grows = end > known.asked);
        for _ in 0..MAX_CONFIRM_ATTEMPTS {
            let sent = self.clock.now();
            object.update(epoch, |known| known.asked = known.asked.max(end));
            let (pending, carries_data) = request(grows);
            match verdict(pending.await)? {
                GuardOutcome::GuardFailed(0) => return Ok(false),
                // The size is larger already, or the earlier request for a larger size failed.
                GuardOutcome::GuardFailed(_) if !grows || carries_data => grows = !grows,
                GuardOutcome::Done | GuardOutcome::GuardFailed(_) => {
                    object.update(epoch, |known| known.confirm(end, sent));
                    return Ok(true);
                }
            }
        }
        Err(Errno::EAGAIN.into())
    }

    /// Like [`Inner::ensure_size`], but concurrent writes share the requests.
    async fn confirm_shared(self: &Arc<Self>, object: &Arc<Object>, epoch: u64, end: u64) -> Result<bool> {
        let joined = {
            let mut state = object.state.lock();
            if state.confirming < MAX_CONFIRMATIONS {
                state.confirming += 1;
                None
            } else {
                let (waiter, result) = oneshot::channel();
                let next = state.next.get_or_insert_with(|| Batch { epoch, end, waiters: Vec::new() });
                if next.epoch == epoch {
                    next.end = next.end.max(end);
                    next.waiters.push(waiter);
                    Some(Some(result))
                } else {
                    Some(None)
                }
            }
        };
        match joined {
            Some(Some(result)) => return result.await.unwrap_or(Err(Error::ShutDown)),
            // The waiting writes are of another epoch.
            Some(None) => return self.ensure_size(object, epoch, end).await,
            None => {}
        }
        let confirmed = self.ensure_size(object, epoch, end).await;
        if let Some(batch) = next_batch(object) {
            self.pool.engine().spawn(Box::pin(self.clone().run_batches(object.clone(), batch)));
        }
        confirmed
    }

    async fn run_batches(self: Arc<Self>, object: Arc<Object>, mut batch: Batch) {
        loop {
            let confirmed = self.ensure_size(&object, batch.epoch, batch.end).await;
            for waiter in batch.waiters {
                // The receiver may be gone.
                let _ = waiter.send(confirmed.clone());
            }
            match next_batch(&object) {
                Some(next) => batch = next,
                None => return,
            }
        }
    }

    /// Handles an epoch that passed during a write: drops the known state and removes pieces that were created in passed
    /// epochs, now or before, and are not part of the current object. Returns the current object, if it exists.
    pub(super) async fn undo_stale_write(
        &self,
        object: &Object,
        before: Meta,
        made: Vec<u64>,
    ) -> Result<Option<Meta>> {
        object.forget(before.epoch);
        object.record_created(before, &made);
        let now = self.load(&object.name).await?.map(|loaded| loaded.meta);
        self.take_back_unsure(object, now).await?;
        Ok(now)
    }

    /// Removes pieces that were created in passed epochs and are not part of the current object.
    async fn take_back_unsure(&self, object: &Object, now: Option<Meta>) -> Result<()> {
        let lost = object.take_unconfirmed(now.map_or(u64::MAX, |now| now.epoch)).into_iter().filter(
            |(before, piece)| match now {
                // A client that cuts the object may have passed the piece already.
                Some(now) if now.is_same_object(before) && before.epoch >= now.min_epoch(*piece) => {
                    match now.unfinished {
                        Some(Unfinished::Truncation(size)) => *piece >= now.layout.piece_count(size),
                        _ => *piece >= now.pieces,
                    }
                }
                // Another object of this name, or another part of the object: its own pieces carry later epochs, or will.
                _ => true,
            },
        );
        let back = lost.map(|(before, piece)| async move {
            let answer = self
                .pool
                .operate(
                    &piece_name(&object.name, piece),
                    guarded_ops::remove_piece_in_epoch(before.born, before.epoch),
                )
                .await;
            // A piece that may still exist is left to the next write.
            verdict(answer).inspect_err(|_| object.record_created(before, &[piece])).map(drop)
        });
        join_all(back).await.into_iter().collect()
    }
}

/// Ends a confirmation. Returns the writes that wait for the next one.
fn next_batch(object: &Object) -> Option<Batch> {
    let mut state = object.state.lock();
    let next = state.next.take();
    if next.is_none() {
        state.confirming -= 1;
    }
    next
}

/// The pieces that a write may create.
fn unmarked(known: &CachedState, extents: &[PieceExtent]) -> Vec<u64> {
    extents.iter().map(|extent| extent.piece).filter(|piece| *piece > 0 && !known.is_marked(*piece)).collect()
}

/// The data for one piece: by reference if it is contiguous in the buffer.
fn gather(data: &Bytes, extent: &PieceExtent) -> Bytes {
    match &extent.parts[..] {
        [(at, len)] => data.slice(*at..at + len),
        parts => {
            let mut gathered = BytesMut::with_capacity(extent.len as usize);
            parts.iter().for_each(|(at, len)| gathered.extend_from_slice(&data[*at..at + len]));
            gathered.freeze()
        }
    }
}
