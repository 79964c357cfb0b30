//! Writes to pieces other than the first. While requests are in flight, small sequential writes share the next ones, so that
//! many small writes in flight cost as much as a few large ones.
//!
//! A *lane* is one position in the stripe; its pieces follow one another. The outstanding data of a lane is sent in two
//! requests at a time, each with about half of it. While one request is in flight, the writes of the other one are answered
//! and the program issues new ones. A write that does not continue the waiting ones is never delayed.

use super::Inner;
use super::layout::{Layout, PieceExtent};
use super::meta::{Meta, PieceIdentity, piece_name, piece_origin};
use super::object::Object;
use super::parts::{self, GuardOutcome, verdict};
use bytes::{Bytes, BytesMut};
use futures::future::join;
use nacre_engine::{Error, OpReply, Pending, Result};
use nacre_types::errno::Errno;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Requests in flight for one lane. Further writes share the next request.
const MAX_INFLIGHT_REQUESTS: u32 = 2;
/// Maximum size of a shared request in bytes.
const MAX_SHARED_BYTES: u64 = 2 << 20;
/// Writes of at least this many bytes get their own request. Also the size of the parts of a larger write that has the lane to
/// itself.
const MIN_OWN_REQUEST_BYTES: u64 = 1 << 20;

/// Attempts on a piece that is a stray. More than one is needed only if further strays are created meanwhile.
pub(super) const MAX_STRAY_ATTEMPTS: usize = 8;

/// Tells whether a write held.
type Outcome = Pin<Box<dyn Future<Output = Result<bool>> + Send>>;

/// The target of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PieceTarget {
    pub(super) stamp: PieceIdentity,
    pub(super) piece: u64,
    pub(super) offset: u64,
}

/// The writes of a lane.
#[derive(Debug, Default)]
pub(super) struct Lane {
    /// Number of requests in flight, and their bytes.
    in_flight: u32,
    flying: u64,
    /// Bytes of the waiting writes.
    waiting: u64,
    /// The largest number of bytes that were outstanding recently.
    window: u64,
    /// The waiting writes in order of arrival. Each run continues the one before.
    runs: VecDeque<PieceRun>,
}

/// Consecutive writes in one piece.
#[derive(Debug)]
struct PieceRun {
    at: PieceTarget,
    len: u64,
    writes: VecDeque<Waiting>,
}

/// A waiting write.
#[derive(Debug)]
struct Waiting {
    data: Bytes,
    /// The minimum size that the object must get, or 0 if it is ensured elsewhere.
    reach: u64,
    waiter: oneshot::Sender<Result<bool>>,
}

impl PieceRun {
    /// Whether `at` is the lane's next byte after this run.
    fn ends_at(&self, layout: &Layout, at: PieceTarget) -> bool {
        let end = self.at.offset + self.len;
        let (piece, offset) = if end < layout.object_size() {
            (self.at.piece, end)
        } else {
            (self.at.piece + layout.stripe_count(), 0)
        };
        (at.stamp.epoch, at.piece, at.offset) == (self.at.stamp.epoch, piece, offset)
    }
}

impl Lane {
    /// Whether a request of `len` bytes may be sent now, although others may be in flight.
    fn admits(&self, len: u64) -> bool {
        self.in_flight == 0
            || len >= MAX_SHARED_BYTES
            || (self.in_flight < MAX_INFLIGHT_REQUESTS && len >= self.window / 2)
    }

    /// Accepts a write. Returns how it is sent, and the runs to send before it.
    fn take(
        &mut self,
        layout: &Layout,
        at: PieceTarget,
        data: &Bytes,
        reach: u64,
    ) -> (SendMode, VecDeque<PieceRun>) {
        let len = data.len() as u64;
        self.window = self.window.max(self.waiting + self.flying + len);
        let follows = self.runs.back().is_none_or(|run| run.ends_at(layout, at));
        if !follows || len >= MIN_OWN_REQUEST_BYTES || (self.runs.is_empty() && self.admits(len)) {
            let before = self.drain();
            self.sent(len);
            return (SendMode::Now, before);
        }
        let (waiter, outcome) = oneshot::channel();
        self.push(at, Waiting { data: data.clone(), reach, waiter });
        (SendMode::Shared(outcome), self.all_due())
    }

    fn sent(&mut self, len: u64) {
        self.in_flight += 1;
        self.flying += len;
    }

    fn ended(&mut self, len: u64) {
        self.in_flight -= 1;
        self.flying -= len;
        if self.in_flight == 0 {
            // The window was larger than the data that arrived, so it shrinks.
            self.window = self.waiting.max(self.window / 4 * 3);
        }
    }

    /// Adds a write that continues the waiting ones.
    fn push(&mut self, at: PieceTarget, write: Waiting) {
        let len = write.data.len() as u64;
        self.waiting += len;
        match self.runs.back_mut() {
            Some(run) if run.at.piece == at.piece => {
                run.len += len;
                run.writes.push_back(write);
            }
            _ => self.runs.push_back(PieceRun { at, len, writes: VecDeque::from([write]) }),
        }
    }

    /// The runs that are due. The caller sends them.
    fn all_due(&mut self) -> VecDeque<PieceRun> {
        std::iter::from_fn(|| self.due()).collect()
    }

    /// The next run that is due, if any: at most half of the outstanding bytes, from one piece.
    fn due(&mut self) -> Option<PieceRun> {
        if !self.admits(self.waiting) {
            return None;
        }
        let most = (self.window / 2).min(MAX_SHARED_BYTES);
        let run = self.runs.front_mut()?;
        let mut due = PieceRun { at: run.at, len: 0, writes: VecDeque::new() };
        while let Some(write) = run.writes.front()
            && (due.len == 0 || due.len + write.data.len() as u64 <= most)
        {
            due.len += write.data.len() as u64;
            due.writes.extend(run.writes.pop_front());
        }
        run.at.offset += due.len;
        run.len -= due.len;
        if run.writes.is_empty() {
            self.runs.pop_front();
        }
        self.waiting -= due.len;
        self.sent(due.len);
        Some(due)
    }

    /// Takes all waiting runs, to be sent now.
    fn drain(&mut self) -> VecDeque<PieceRun> {
        let runs = std::mem::take(&mut self.runs);
        self.waiting = 0;
        runs.iter().for_each(|run| self.sent(run.len));
        runs
    }
}

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

/// How a write is sent: in its own request, or in a shared one.
enum SendMode {
    Now,
    Shared(oneshot::Receiver<Result<bool>>),
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
        let at = PieceTarget { stamp: meta.stamp(piece), piece, offset };
        let number = piece % layout.stripe_count();
        let _sending = object.sending.lock();
        let (turn, due) = {
            let mut state = object.state.lock();
            state.lanes.entry(number).or_default().take(&layout, at, &data, reach)
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
        let marked = object.is_marked(at.stamp.epoch, at.piece);
        let op = parts::piece(at.stamp, marked, at.offset, data.clone());
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
                _ => self.confirm(object, at.stamp.epoch, reach).await,
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
                GuardOutcome::GuardFailed(part) if !sent.marked && parts::is_stray(part) => {}
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
            parts::remove_of(born, epoch)
        } else {
            parts::renew_age(born, epoch)
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
            lane.ended(len);
            let due = lane.all_due();
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

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: u64 = 64 << 10;

    /// A program that keeps writes of one size in flight and waits for the oldest one. Requests are answered in order.
    struct Program {
        lane: Lane,
        layout: Layout,
        next: u64,
        /// Lengths of the requests in flight.
        requests: VecDeque<u64>,
        sent: Vec<u64>,
    }

    impl Program {
        fn new(layout: Layout) -> Program {
            Program { lane: Lane::default(), layout, next: 0, requests: VecDeque::new(), sent: Vec::new() }
        }

        fn send(&mut self, lens: impl Iterator<Item = u64>) {
            for len in lens {
                self.requests.push_back(len);
                self.sent.push(len);
            }
        }

        fn write(&mut self, at: u64, len: u64) {
            let (piece, offset) = (at / self.layout.object_size() + 1, at % self.layout.object_size());
            let data = Bytes::from(vec![0; len as usize]);
            let stamp = PieceIdentity { born: 1, epoch: 1, floor: 0 };
            let at = PieceTarget { stamp, piece, offset };
            let (turn, due) = self.lane.take(&self.layout, at, &data, 0);
            self.send(due.iter().map(|run| run.len));
            if matches!(turn, SendMode::Now) {
                self.send(std::iter::once(len));
            }
        }

        /// Issues sequential writes while fewer than `depth` are outstanding.
        fn fill(&mut self, depth: u64, len: u64) {
            while self.lane.waiting + self.lane.flying < depth * len {
                self.write(self.next, len);
                self.next += len;
            }
        }

        fn answer(&mut self) {
            let len = self.requests.pop_front().expect("something is always in flight");
            self.lane.ended(len);
            let due = self.lane.all_due();
            self.send(due.iter().map(|run| run.len));
        }
    }

    #[test]
    fn a_deep_stream_of_small_writes_goes_in_halves() {
        let mut program = Program::new(Layout::default());
        for _ in 0..400 {
            program.fill(16, UNIT);
            assert!(program.lane.in_flight <= MAX_INFLIGHT_REQUESTS);
            program.answer();
        }
        let requests = program.sent.len() as u64;
        let total: u64 = program.sent.iter().sum();
        // Eight writes each, except at piece boundaries.
        let pieces = total / (4 << 20);
        assert!(requests <= total / (8 * UNIT) + pieces + 8, "{requests} requests for {total} bytes");
        // All data is sent when the program issues no more writes.
        while program.lane.in_flight > 0 {
            program.answer();
        }
        assert_eq!((program.lane.waiting, program.sent.iter().sum::<u64>()), (0, program.next));
    }

    #[test]
    fn a_program_that_waits_for_each_write_never_waits_for_others() {
        let mut program = Program::new(Layout::default());
        program.fill(16, UNIT);
        while program.lane.in_flight > 0 {
            program.answer();
        }
        for depth in [1, 2] {
            for _ in 0..100 {
                program.fill(depth, UNIT);
                assert_eq!(program.lane.waiting, 0, "at depth {depth}");
                program.answer();
            }
            while program.lane.in_flight > 0 {
                program.answer();
            }
        }
    }

    #[test]
    fn scattered_and_large_writes_do_not_wait() {
        let mut program = Program::new(Layout::default());
        for n in 0..100 {
            program.write(n * 7 * UNIT, UNIT);
            assert!(program.lane.waiting <= UNIT && program.lane.in_flight as u64 >= n);
        }
        let mut program = Program::new(Layout::default());
        program.fill(16, 4 << 20);
        assert_eq!((program.lane.waiting, program.sent.len()), (0, 16));
        // Requests reach their maximum size before they hold half of the outstanding bytes.
        let mut program = Program::new(Layout::default());
        program.fill(512, 128 << 10);
        assert!(program.lane.waiting <= MAX_SHARED_BYTES, "{} bytes wait", program.lane.waiting);
        assert!(program.sent.iter().all(|len| *len <= MAX_SHARED_BYTES));
    }
}
