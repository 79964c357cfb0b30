//! Brings what the commit thread has not yet written of deferred data to its place, in a thread of its own, an epoch of it at a
//! time; then flushes the device, after which the copies are not needed any more.
//!
//! Blocks that are overwritten where they are may be under a read that began before: the thread waits for such reads
//! ([`super::gate::ReadGate::pass`]). Reads that begin later find the new data in the cache until all is in its place.

use super::Inner;
use super::commit::write_merged;
use crate::error::Result;
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// Deferred data of one epoch, all of it durable as copies.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) epoch: u64,
    /// The last transaction whose data is in it or was placed before.
    pub(super) seq: u64,
    /// Data of blocks that nothing was in, as far as it is not there: (first block, whole blocks).
    pub(super) fresh: Vec<(u64, Bytes)>,
    /// What blocks are overwritten with; goes over the fresh data.
    pub(super) overwrites: BTreeMap<u64, Bytes>,
}

/// A job that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Done {
    pub(super) epoch: u64,
    pub(super) seq: u64,
}

#[derive(Debug, Default)]
struct State {
    job: Option<Job>,
    busy: bool,
    done: Option<Done>,
    ended: bool,
}

/// The thread's side of [`super::deferred::Deferred`].
#[derive(Debug, Default)]
pub(super) struct Placer {
    state: Mutex<State>,
    changed: Condvar,
}

impl Placer {
    /// Hands a job over; there is none under way.
    pub(super) fn start(&self, job: Job) {
        let mut state = self.state.lock();
        debug_assert!(!state.busy && state.done.is_none(), "one job at a time");
        (state.job, state.busy) = (Some(job), true);
        self.changed.notify_all();
    }

    /// The job that was done since the last call.
    pub(super) fn take_done(&self) -> Option<Done> {
        self.state.lock().done.take()
    }

    /// Waits until no job is under way.
    pub(super) fn wait(&self) {
        let mut state = self.state.lock();
        while state.busy && !state.ended {
            self.changed.wait(&mut state);
        }
    }

    /// Lets the thread end; what it has not placed it leaves, as in a crash.
    pub(super) fn end(&self) {
        self.state.lock().ended = true;
        self.changed.notify_all();
    }

    fn next(&self) -> Option<Job> {
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

    /// The thread: runs until it is told to end or something fails.
    pub(super) fn run(&self, inner: &Inner) {
        while let Some(job) = self.next() {
            let done = Done { epoch: job.epoch, seq: job.seq };
            let placed = place(inner, job);
            let mut state = self.state.lock();
            state.busy = false;
            match placed {
                Ok(()) => state.done = Some(done),
                // The next batch finds the store stopped.
                Err(error) => {
                    state.ended = true;
                    inner.stop(error);
                }
            }
            self.changed.notify_all();
            drop(state);
            inner.queue.news();
        }
    }
}

fn place(inner: &Inner, job: Job) -> Result<()> {
    inner.give_back(inner.gate.pass());
    write_merged(inner, job.fresh)?;
    write_merged(inner, job.overwrites.into_iter().collect())?;
    inner.device.flush()?;
    inner.counters.flushes.fetch_add(1, Ordering::Relaxed);
    Ok(())
}
