//! Writes to pieces other than the first, in the requests that the piece's lane forms ([`WriteQueue`](super::lane::WriteQueue)). Strays in
//! their place are removed first.

use super::Inner;
use super::guarded_ops::{self, GuardOutcome, verdict};
use super::lane::{MIN_OWN_REQUEST_BYTES, PieceRun, PieceTarget, SendMode};
use super::layout::PieceExtent;
use super::meta::{Meta, PieceIdentity, piece_name, piece_origin};
use super::object::Object;
use bytes::{Bytes, BytesMut};
use futures::future::join;
use nacre_engine::{Error, OpReply, Pending, Result};
use nacre_types::errno::Errno;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// Attempts on a piece that is a stray. More than one is needed only if further strays are created meanwhile.
pub(super) const MAX_STRAY_ATTEMPTS: usize = 8;

/// Tells whether a write held.
type Outcome = Pin<Box<dyn Future<Output = Result<bool>> + Send>>;

/// A request in flight.
struct Sent {
    pending: Pending<OpReply>,
    /// Its data, in case it has to be sent again.
    data: Bytes,
    /// Whether the piece was known to carry the epoch.
    marked: bool,
    /// The time at which it was sent.
    at: Duration,
}

impl Inner {
    /// Starts a write; the outcome tells whether it held. If `reach` is not 0, it also ensures that the object's size is at
    /// least `reach`: writes that share a request also share the request for the size, which is sent at the same time. Writes
    /// to one piece take effect in the order of these calls. If the piece is a stray, the writes in flight at that time are
    /// sent again after it was removed, and take effect in any order.
    pub(super) fn write_piece(
        self: &Arc<Self>,
        object: &Arc<Object>,
        meta: &Meta,
        piece: u64,
        offset: u64,
        data: Bytes,
        reach: u64,
    ) -> Outcome {
        let (len, layout) = (data.len() as u64, meta.layout);
        let at = PieceTarget { stamp: meta.piece_identity(piece), piece, offset };
        let number = piece % layout.stripe_count();
        let _sending = object.sending.lock();
        let (turn, due) = {
            let mut state = object.state.lock();
            state.lanes.entry(number).or_default().add_write(&layout, at, &data, reach)
        };
        for run in due {
            self.spawn_run(object, number, run);
        }
        match turn {
            SendMode::Shared(outcome) => {
                Box::pin(async move { outcome.await.unwrap_or(Err(Error::ShutDown)) })
            }
            SendMode::Now => {
                let sent = self.request(object, at, data);
                let (inner, object) = (self.clone(), object.clone());
                Box::pin(async move {
                    let held = inner.settle(&object, at, sent, reach).await;
                    inner.ended(&object, number, len);
                    held
                })
            }
        }
    }

    fn request(&self, object: &Object, at: PieceTarget, data: Bytes) -> Sent {
        let marked = object.carries_epoch(at.stamp.epoch, at.piece);
        let op = guarded_ops::write_piece(at.stamp, marked, at.offset, data.clone());
        let sent_at = self.clock.now();
        Sent {
            pending: self.pool.operate(&piece_name(&object.name, at.piece), op),
            data,
            marked,
            at: sent_at,
        }
    }

    /// Sends a run that is already counted as in flight, then what waits behind it. The caller holds `sending`.
    fn spawn_run(self: &Arc<Self>, object: &Arc<Object>, lane: u64, run: PieceRun) {
        let PieceRun { at, len, mut writes } = run;
        let reach = writes.iter().map(|write| write.reach).max().unwrap_or(0);
        let data = match &mut writes.make_contiguous()[..] {
            [only] => std::mem::take(&mut only.data),
            all => {
                let mut joined = BytesMut::with_capacity(len as usize);
                all.iter().for_each(|write| joined.extend_from_slice(&write.data));
                joined.freeze()
            }
        };
        let waiters: Vec<_> = writes.into_iter().map(|write| write.waiter).collect();
        let sent = self.request(object, at, data);
        let (inner, object) = (self.clone(), object.clone());
        self.pool.engine().spawn(Box::pin(async move {
            let held = inner.settle(&object, at, sent, reach).await;
            for waiter in waiters {
                // The receiver may be gone.
                let _ = waiter.send(held.clone());
            }
            inner.ended(&object, lane, len);
        }));
    }

    /// Waits for a request and for the request that ensures the size. Returns whether both held.
    async fn settle(&self, object: &Object, at: PieceTarget, sent: Sent, reach: u64) -> Result<bool> {
        let reached = async {
            match reach {
                0 => Ok(true),
                _ => self.ensure_size(object, at.stamp.epoch, reach).await,
            }
        };
        let (written, reached) = join(self.written(object, at, sent), reached).await;
        both_held(written, reached)
    }

    /// Waits until a request has been answered and returns whether it held; its piece then carries the epoch. A stray is
    /// removed first.
    async fn written(&self, object: &Object, at: PieceTarget, mut sent: Sent) -> Result<bool> {
        for _ in 0..MAX_STRAY_ATTEMPTS {
            let answer = sent.pending.await;
            match &answer {
                Ok(_) => object.record_answered(at.stamp.epoch, at.piece, sent.at),
                // A request to a piece that is known to carry the epoch never creates the piece.
                Err(_) if !sent.marked => object.record_unanswered(at.stamp.epoch, at.piece),
                Err(_) => {}
            }
            match verdict(answer)? {
                GuardOutcome::Done => {
                    object.update(at.stamp.epoch, |known| known.mark(at.piece));
                    return Ok(true);
                }
                GuardOutcome::GuardFailed(part) if !sent.marked && guarded_ops::is_stray_guard(part) => {}
                GuardOutcome::GuardFailed(_) => return Ok(false),
            }
            if !self.clear_stray(&object.name, at.piece, at.stamp).await? {
                return Ok(false);
            }
            sent = self.request(object, at, sent.data);
        }
        Err(Errno::EAGAIN.into())
    }

    /// Removes a piece that is a stray for the stamp's object. Returns whether that object and epoch are still the current ones.
    pub(super) async fn clear_stray(&self, object: &str, piece: u64, stamp: PieceIdentity) -> Result<bool> {
        let name = piece_name(object, piece);
        let origin = match self.pool.get_xattrs(&name).await {
            Ok(attrs) => Some(piece_origin(&attrs)?),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error),
        };
        // Read after the piece. An object that a piece belonged to before, and that is not the current one, no longer exists.
        let now = self.load(object).await?.map(|loaded| loaded.meta);
        if now.is_none_or(|now| (now.born, now.epoch) != (stamp.born, stamp.epoch)) {
            return Ok(false);
        }
        let Some((born, epoch)) = origin else { return Ok(true) };
        let of_another = born != 0 && born != stamp.born;
        let op = if of_another || epoch < stamp.floor {
            guarded_ops::remove_piece_in_epoch(born, epoch)
        } else {
            guarded_ops::set_epoch_inverse(born, epoch)
        };
        verdict(self.pool.operate(&name, op).await)?;
        Ok(true)
    }

    /// Accounts for a request that has ended, and sends the runs that are now due.
    fn ended(self: &Arc<Self>, object: &Arc<Object>, number: u64, len: u64) {
        let _sending = object.sending.lock();
        let due = {
            let mut state = object.state.lock();
            let Some(lane) = state.lanes.get_mut(&number) else { return };
            lane.request_done(len);
            let due = lane.take_due();
            if lane.in_flight == 0 {
                state.lanes.remove(&number);
            }
            due
        };
        for run in due {
            self.spawn_run(object, number, run);
        }
    }
}

/// Splits large extents into parts if nothing else is in flight, so that one part is sent while the previous one is stored.
/// If other writes are in flight, they have the same effect.
pub(super) fn split_extents(object: &Object, extents: Vec<PieceExtent>) -> Vec<PieceExtent> {
    if !object.state.lock().lanes.is_empty() {
        return extents;
    }
    let cut = |extent: PieceExtent| {
        let [(at, len)] = extent.parts[..] else { return vec![extent] };
        let part = |from: usize| {
            let len = (len - from).min(MIN_OWN_REQUEST_BYTES as usize);
            let (offset, parts) = (extent.offset + from as u64, vec![(at + from, len)]);
            PieceExtent { piece: extent.piece, offset, len: len as u64, parts }
        };
        (0..len).step_by(MIN_OWN_REQUEST_BYTES as usize).map(part).collect()
    };
    extents.into_iter().flat_map(cut).collect()
}

/// Whether data and size both held. If the epoch of the size has passed, the outcome of the data does not matter.
pub(super) fn both_held(data: Result<bool>, size: Result<bool>) -> Result<bool> {
    match (data, size) {
        (Ok(data), Ok(true)) => Ok(data),
        (_, Ok(false)) => Ok(false),
        (Err(error), Ok(true)) | (_, Err(error)) => Err(error),
    }
}
