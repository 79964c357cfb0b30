//! Tells the device which blocks are unused, in a separate thread (`bdev_enable_discard`).
//!
//! Blocks are queued here when rule B1 allows their reuse, and become free only after the device was told. So data that is
//! written later can't be discarded. The queue is bounded. Blocks that do not fit, and blocks that are needed immediately, become
//! free without telling the device.

use super::Inner;
use super::onode::{BLOCK_BYTES, Run};
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Maximum number of queued runs.
const MAX_QUEUED: usize = 64 << 10;

#[derive(Debug, Default)]
struct State {
    runs: Vec<Run>,
    ended: bool,
}

/// Blocks that are about to become free.
#[derive(Debug, Default)]
pub(super) struct DiscardQueue {
    state: Mutex<State>,
    work: Condvar,
    off: AtomicBool,
    discarded: AtomicU64,
}

impl DiscardQueue {
    /// Creates a queue. With `on` false, it accepts no runs.
    pub(super) fn new(on: bool) -> DiscardQueue {
        DiscardQueue { off: AtomicBool::new(!on), ..DiscardQueue::default() }
    }

    /// Number of bytes discarded.
    pub(super) fn discarded_bytes(&self) -> u64 {
        self.discarded.load(Ordering::Relaxed)
    }

    /// Queues runs to be discarded. Returns the runs that are free immediately.
    pub(super) fn enqueue(&self, runs: Vec<Run>) -> Vec<Run> {
        if runs.is_empty() || self.off.load(Ordering::Relaxed) {
            return runs;
        }
        let mut state = self.state.lock();
        if state.ended || state.runs.len() + runs.len() > MAX_QUEUED {
            return runs;
        }
        state.runs.extend(runs);
        self.work.notify_one();
        Vec::new()
    }

    /// Takes all queued runs, which become free without telling the device.
    pub(super) fn drain(&self) -> Vec<Run> {
        std::mem::take(&mut self.state.lock().runs)
    }

    /// Tells the thread to end.
    pub(super) fn end(&self) {
        self.state.lock().ended = true;
        self.work.notify_one();
    }

    fn next(&self) -> Option<Vec<Run>> {
        let mut state = self.state.lock();
        while state.runs.is_empty() && !state.ended {
            self.work.wait(&mut state);
        }
        if state.ended { None } else { Some(std::mem::take(&mut state.runs)) }
    }

    /// The thread. Runs until it is told to end; runs that are queued then stay in the queue.
    pub(super) fn run(&self, inner: &Inner) {
        while let Some(mut runs) = self.next() {
            runs.sort_unstable_by_key(|run| run.start);
            for joined in runs.chunk_by(|run, next| run.start + run.blocks == next.start) {
                let (from, to) = match joined {
                    [first, .., last] => (first.start, last.start + last.blocks),
                    [only] => (only.start, only.start + only.blocks),
                    [] => continue,
                };
                if self.off.load(Ordering::Relaxed) {
                    break;
                }
                match inner.device.discard(from * BLOCK_BYTES, to * BLOCK_BYTES) {
                    Ok(()) => _ = self.discarded.fetch_add((to - from) * BLOCK_BYTES, Ordering::Relaxed),
                    Err(error) => {
                        tracing::warn!(%error, "bluestore: the device does not discard, it is told no more");
                        self.off.store(true, Ordering::Relaxed);
                    }
                }
            }
            inner.release(runs);
        }
    }
}
