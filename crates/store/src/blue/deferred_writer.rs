//! Writes deferred data that the commit thread has not yet written to its place, one epoch at a time, in a separate thread.
//! It then flushes the device, after which the copies are no longer needed.
//!
//! Blocks that are overwritten in place may still be accessed by a read that began before. The thread waits for such reads
//! ([`super::reclaim::BlockReclaimer::wait_for_readers`]). Later reads find the new data in the cache until everything is in its place.

use super::Inner;
use super::commit::write_coalesced;
use crate::error::Result;
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// Deferred data of one epoch. All of it is durable as copies.
#[derive(Debug)]
pub(super) struct DeferredBatch {
    pub(super) epoch: u64,
    /// The last transaction whose data is in the job or was placed before.
    pub(super) seq: u64,
    /// Data for fresh blocks that is not yet in its place: (first block, whole blocks).
    pub(super) fresh: Vec<(u64, Bytes)>,
    /// Data that overwrites blocks in place. Written after the fresh data.
    pub(super) overwrites: BTreeMap<u64, Bytes>,
}

/// A completed job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeferredBatchDone {
    pub(super) epoch: u64,
    pub(super) seq: u64,
}

#[derive(Debug, Default)]
struct State {
    job: Option<DeferredBatch>,
    busy: bool,
    done: Option<DeferredBatchDone>,
    ended: bool,
}

/// The counterpart of [`super::deferred::Deferred`] in the placing thread.
#[derive(Debug, Default)]
pub(super) struct DeferredWriter {
    state: Mutex<State>,
    changed: Condvar,
}

impl DeferredWriter {
    /// Hands over a job. No other job may be in progress.
    pub(super) fn start(&self, job: DeferredBatch) {
        let mut state = self.state.lock();
        debug_assert!(!state.busy && state.done.is_none(), "one job at a time");
        (state.job, state.busy) = (Some(job), true);
        self.changed.notify_all();
    }

    /// The job that was completed since the last call.
    pub(super) fn take_done(&self) -> Option<DeferredBatchDone> {
        self.state.lock().done.take()
    }

    /// Waits until no job is in progress.
    pub(super) fn wait(&self) {
        let mut state = self.state.lock();
        while state.busy && !state.ended {
            self.changed.wait(&mut state);
        }
    }

    /// Tells the thread to end. Data that it has not placed is left, as in a crash.
    pub(super) fn end(&self) {
        self.state.lock().ended = true;
        self.changed.notify_all();
    }

    fn next(&self) -> Option<DeferredBatch> {
        let mut state = self.state.lock();
        loop {
            if state.ended {
                return None;
            }
            if let Some(job) = state.job.take() {
                return Some(job);
            }
            self.changed.wait(&mut state);
        }
    }

    /// The thread. Runs until it is told to end or an error occurs.
    pub(super) fn run(&self, inner: &Inner) {
        while let Some(job) = self.next() {
            let done = DeferredBatchDone { epoch: job.epoch, seq: job.seq };
            let placed = place(inner, job);
            let mut state = self.state.lock();
            state.busy = false;
            match placed {
                Ok(()) => state.done = Some(done),
                // The next batch detects that the store has stopped.
                Err(error) => {
                    state.ended = true;
                    inner.stop(error);
                }
            }
            self.changed.notify_all();
            drop(state);
            inner.queue.wake();
        }
    }
}

fn place(inner: &Inner, job: DeferredBatch) -> Result<()> {
    inner.give_back(inner.gate.wait_for_readers());
    write_coalesced(inner, job.fresh)?;
    write_coalesced(inner, job.overwrites.into_iter().collect())?;
    inner.device.flush()?;
    inner.counters.flushes.fetch_add(1, Ordering::Relaxed);
    Ok(())
}
