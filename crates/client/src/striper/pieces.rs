//! Writes to pieces other than the first. Small ones that follow one another, while others of their piece are in flight,
//! share a request: many small writes in flight cost what few large ones do.

use super::Inner;
use super::meta::piece_name;
use super::object::{Object, Run};
use super::parts::{self, Verdict, verdict};
use crate::completion::Pending;
use crate::error::{Error, Result};
use crate::ops::OpReply;
use bytes::{Bytes, BytesMut};
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Requests in flight for one piece before further writes share the next one.
const REQUESTS: u32 = 2;
/// The largest request that writes share, and the size from which a write has one of its own, in bytes.
const SHARED_BYTES: u64 = 2 << 20;

/// Whether a write held.
type Outcome = Pin<Box<dyn Future<Output = Result<bool>> + Send>>;

/// What becomes of a write.
enum Turn {
    Now,
    Shared(oneshot::Receiver<Result<bool>>),
}

impl Inner {
    /// Starts a write; tells whether it held. Writes of one piece take effect in the order of these calls.
    pub(super) fn write_piece(
        self: &Arc<Self>,
        object: &Arc<Object>,
        epoch: u64,
        piece: u64,
        offset: u64,
        data: Bytes,
    ) -> Outcome {
        let len = data.len() as u64;
        let _sending = object.sending.lock();
        let (turn, overtaken) = {
            let mut state = object.state.lock();
            let writes = state.pieces.entry(piece).or_default();
            if writes.in_flight < REQUESTS {
                writes.in_flight += 1;
                (Turn::Now, None)
            } else if let Some(next) = &mut writes.next
                && next.epoch == epoch
                && next.offset + next.len == offset
                && next.len + len <= SHARED_BYTES
            {
                let (waiter, outcome) = oneshot::channel();
                next.len += len;
                next.parts.push(data.clone());
                next.waiters.push(waiter);
                (Turn::Shared(outcome), None)
            } else if writes.next.is_none() && len < SHARED_BYTES {
                let (waiter, outcome) = oneshot::channel();
                writes.next =
                    Some(Run { epoch, offset, len, parts: vec![data.clone()], waiters: vec![waiter] });
                (Turn::Shared(outcome), None)
            } else {
                // What waits was there before.
                let overtaken = writes.next.take();
                writes.in_flight += 1 + u32::from(overtaken.is_some());
                (Turn::Now, overtaken)
            }
        };
        if let Some(run) = overtaken {
            self.spawn_run(object, piece, run);
        }
        match turn {
            Turn::Shared(outcome) => Box::pin(async move { outcome.await.unwrap_or(Err(Error::ShutDown)) }),
            Turn::Now => {
                let pending = self.request(object, epoch, piece, offset, data);
                let (inner, object) = (self.clone(), object.clone());
                Box::pin(async move {
                    let held = settle(&object, epoch, piece, pending.await);
                    inner.ended(&object, piece);
                    held
                })
            }
        }
    }

    fn request(&self, object: &Object, epoch: u64, piece: u64, offset: u64, data: Bytes) -> Pending<OpReply> {
        let marked = object.is_marked(epoch, piece);
        self.pool.operate(&piece_name(&object.name, piece), parts::piece(epoch, marked, offset, data))
    }

    /// Sends a run, counted as in flight, and goes on with what waits behind it. The caller holds `sending`.
    fn spawn_run(self: &Arc<Self>, object: &Arc<Object>, piece: u64, run: Run) {
        let Run { epoch, offset, parts, waiters, .. } = run;
        let data = match parts.len() {
            1 => parts.into_iter().next().unwrap_or_default(),
            _ => {
                let mut joined = BytesMut::with_capacity(parts.iter().map(Bytes::len).sum());
                parts.iter().for_each(|part| joined.extend_from_slice(part));
                joined.freeze()
            }
        };
        let pending = self.request(object, epoch, piece, offset, data);
        let (inner, object) = (self.clone(), object.clone());
        self.pool.engine().spawn(Box::pin(async move {
            let held = settle(&object, epoch, piece, pending.await);
            for waiter in waiters {
                // Nobody may wait any more.
                let _ = waiter.send(held.clone());
            }
            inner.ended(&object, piece);
        }));
    }

    /// A request has ended: what waits is sent.
    fn ended(self: &Arc<Self>, object: &Arc<Object>, piece: u64) {
        let _sending = object.sending.lock();
        let next = {
            let mut state = object.state.lock();
            let Some(writes) = state.pieces.get_mut(&piece) else { return };
            writes.in_flight -= 1;
            let next = if writes.in_flight < REQUESTS { writes.next.take() } else { None };
            writes.in_flight += u32::from(next.is_some());
            if writes.in_flight == 0 {
                state.pieces.remove(&piece);
            }
            next
        };
        if let Some(run) = next {
            self.spawn_run(object, piece, run);
        }
    }
}

/// Whether a request held; its piece then carries the epoch.
fn settle(object: &Object, epoch: u64, piece: u64, answer: Result<OpReply>) -> Result<bool> {
    match verdict(answer)? {
        Verdict::Done => {
            object.update(epoch, |known| known.mark(piece));
            Ok(true)
        }
        Verdict::Held(_) => Ok(false),
    }
}
