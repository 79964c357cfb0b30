//! The thread that advances the checkpoint while the store is mounted. It only reads the database.

use super::checkpoint::{Advance, Checkpoint};
use crate::blue::Inner;
use crate::error::StoreError;
use nacre_types::errno::Errno;
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, Ordering};

/// State shared by the commit thread and the checkpoint thread.
#[derive(Debug, Default)]
pub(in crate::blue) struct CheckpointWorker {
    state: Mutex<State>,
    changed: Condvar,
    cancel: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// Position and frontier of a checkpoint that is requested or in progress.
    wanted: Option<(u64, u64)>,
    /// Position of the last completed checkpoint.
    done: u64,
    checkpoints: u64,
    /// Why the last checkpoint failed.
    problem: Option<String>,
    /// Whether deltas and checkpoint contradict each other.
    broken: bool,
    end: bool,
}

impl CheckpointWorker {
    /// Requests a checkpoint. Returns false if one is in progress or none can be made.
    pub(super) fn request(&self, position: u64, frontier: u64) -> bool {
        let mut state = self.state.lock();
        if state.wanted.is_some() || state.broken || state.end {
            return false;
        }
        state.wanted = Some((position, frontier));
        self.changed.notify_all();
        true
    }

    /// Waits until the checkpoint in progress is complete or has failed.
    pub(super) fn wait(&self, position: u64) {
        let mut state = self.state.lock();
        while state.wanted.is_some_and(|(wanted, _)| wanted <= position) && !state.end {
            self.changed.wait(&mut state);
        }
    }

    pub(super) fn checkpointed_position(&self) -> u64 {
        self.state.lock().done
    }

    pub(super) fn is_inconsistent(&self) -> bool {
        self.state.lock().broken
    }

    /// Number of checkpoints made since the store was mounted.
    pub(in crate::blue) fn checkpoints(&self) -> u64 {
        self.state.lock().checkpoints
    }

    /// Why checkpoints fail, if they do.
    pub(in crate::blue) fn problem(&self) -> Option<String> {
        self.state.lock().problem.clone()
    }

    /// Tells the thread to end soon. A checkpoint in progress is abandoned.
    pub(in crate::blue) fn end(&self) {
        self.cancel.store(true, Ordering::Relaxed);
        self.state.lock().end = true;
        self.changed.notify_all();
    }

    /// The checkpoint thread.
    pub(in crate::blue) fn run(&self, inner: &Inner, mut checkpoint: Checkpoint) {
        loop {
            let (position, frontier) = {
                let mut state = self.state.lock();
                loop {
                    match state.wanted {
                        _ if state.end => return,
                        Some(wanted) => break wanted,
                        None => self.changed.wait(&mut state),
                    }
                }
            };
            let result = checkpoint.advance(&inner.db, position, frontier, &self.cancel);
            let mut state = self.state.lock();
            state.wanted = None;
            match result {
                Ok(Advance::Cancelled) => {}
                Ok(Advance::Done) => {
                    (state.done, state.problem) = (position, None);
                    state.checkpoints += 1;
                    tracing::debug!(position, "bluestore: checkpoint of the allocator");
                }
                Err(error) => {
                    tracing::error!(%error, "bluestore: no checkpoint of the allocator can be made");
                    state.problem = Some(error.to_string());
                    match &error {
                        StoreError::Corrupt { .. } => state.broken = true,
                        // Space may become available again. The deltas are kept until then.
                        StoreError::Io { code, .. } if *code == Errno::ENOSPC.0 => {}
                        _ => {
                            drop(state);
                            self.changed.notify_all();
                            inner.stop(error);
                            return;
                        }
                    }
                }
            }
            drop(state);
            self.changed.notify_all();
        }
    }
}
