//! Which writes share a request, and when it is sent. While requests are in flight, small sequential writes share the next ones,
//! so that many small writes in flight cost as much as a few large ones.
//!
//! A *lane* is one position in the stripe; its pieces follow one another. The outstanding data of a lane is sent in two
//! requests at a time, each with about half of it. While one request is in flight, the writes of the other one are answered
//! and the program issues new ones. A write that does not continue the waiting ones is never delayed.

use super::layout::Layout;
use super::meta::PieceIdentity;
use bytes::Bytes;
use nacre_engine::Result;
use std::collections::VecDeque;
use tokio::sync::oneshot;

/// Requests in flight for one lane. Further writes share the next request.
const MAX_INFLIGHT_REQUESTS: u32 = 2;
/// Maximum size of a shared request in bytes.
const MAX_SHARED_BYTES: u64 = 2 << 20;
/// Writes of at least this many bytes get their own request. Also the size of the parts of a larger write that has the lane to
/// itself.
pub(super) const MIN_OWN_REQUEST_BYTES: u64 = 1 << 20;

/// The target of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PieceTarget {
    pub(super) stamp: PieceIdentity,
    pub(super) piece: u64,
    pub(super) offset: u64,
}

/// The writes of a lane.
#[derive(Debug, Default)]
pub(super) struct WriteQueue {
    /// Number of requests in flight, and their bytes.
    pub(super) in_flight: u32,
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
pub(super) struct PieceRun {
    pub(super) at: PieceTarget,
    pub(super) len: u64,
    pub(super) writes: VecDeque<Waiting>,
}

/// A waiting write.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) data: Bytes,
    /// The minimum size that the object must get, or 0 if it is ensured elsewhere.
    pub(super) reach: u64,
    pub(super) waiter: oneshot::Sender<Result<bool>>,
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

impl WriteQueue {
    /// Whether a request of `len` bytes may be sent now, although others may be in flight.
    fn admits(&self, len: u64) -> bool {
        self.in_flight == 0
            || len >= MAX_SHARED_BYTES
            || (self.in_flight < MAX_INFLIGHT_REQUESTS && len >= self.window / 2)
    }

    /// Accepts a write. Returns how it is sent, and the runs to send before it.
    pub(super) fn add_write(
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
        (SendMode::Shared(outcome), self.take_due())
    }

    fn sent(&mut self, len: u64) {
        self.in_flight += 1;
        self.flying += len;
    }

    pub(super) fn request_done(&mut self, len: u64) {
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
    pub(super) fn take_due(&mut self) -> VecDeque<PieceRun> {
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

/// How a write is sent: in its own request, or in a shared one.
pub(super) enum SendMode {
    Now,
    Shared(oneshot::Receiver<Result<bool>>),
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: u64 = 64 << 10;

    /// A program that keeps writes of one size in flight and waits for the oldest one. Requests are answered in order.
    struct Program {
        lane: WriteQueue,
        layout: Layout,
        next: u64,
        /// Lengths of the requests in flight.
        requests: VecDeque<u64>,
        sent: Vec<u64>,
    }

    impl Program {
        fn new(layout: Layout) -> Program {
            Program {
                lane: WriteQueue::default(),
                layout,
                next: 0,
                requests: VecDeque::new(),
                sent: Vec::new(),
            }
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
            let (turn, due) = self.lane.add_write(&self.layout, at, &data, 0);
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
            self.lane.request_done(len);
            let due = self.lane.take_due();
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
