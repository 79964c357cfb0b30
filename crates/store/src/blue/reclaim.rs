//! Prevents the reuse of freed blocks while a read that began before may still access them (rule B1).

use super::onode::Run;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;

/// Readers, grouped by generation. Each retirement of blocks starts a new generation.
#[derive(Debug)]
pub(super) struct BlockReclaimer {
    state: Mutex<State>,
    /// Signalled when a read ends while a thread waits for it.
    ended: Condvar,
}

#[derive(Debug)]
struct State {
    first: u64,
    generations: VecDeque<Generation>,
    /// Whether a thread waits for reads to end.
    awaited: bool,
}

#[derive(Debug, Default)]
struct Generation {
    readers: u64,
    /// Blocks freed while this was the newest generation. They are reusable when it and all earlier ones have no readers.
    retired: Vec<Run>,
}

/// A read in progress.
#[must_use]
#[derive(Debug)]
pub(super) struct ReadToken(u64);

impl Default for BlockReclaimer {
    fn default() -> Self {
        let generations = VecDeque::from([Generation::default()]);
        let state = State { first: 0, generations, awaited: false };
        BlockReclaimer { state: Mutex::new(state), ended: Condvar::new() }
    }
}

impl BlockReclaimer {
    /// Begins a read. Must be called while the record that refers to the blocks can't change.
    pub(super) fn enter(&self) -> ReadToken {
        let mut state = self.state.lock();
        let newest = state.first + state.generations.len() as u64 - 1;
        state.newest().readers += 1;
        ReadToken(newest)
    }

    /// Ends a read. Returns the blocks that became reusable by that.
    pub(super) fn leave(&self, ticket: ReadToken) -> Vec<Run> {
        let mut state = self.state.lock();
        let at = (ticket.0 - state.first) as usize;
        state.generations[at].readers -= 1;
        if state.awaited {
            self.ended.notify_all();
        }
        state.reap()
    }

    /// Waits until all reads that began before have ended. Returns the blocks that became reusable by that.
    pub(super) fn wait_for_readers(&self) -> Vec<Run> {
        let mut state = self.state.lock();
        state.generations.push_back(Generation::default());
        let until = state.first + state.generations.len() as u64 - 1;
        let mut reusable = state.reap();
        while state.first < until {
            state.awaited = true;
            self.ended.wait(&mut state);
            reusable.extend(state.reap());
        }
        state.awaited = false;
        reusable
    }

    /// Retires blocks whose release is durable. Returns the blocks that are reusable now.
    pub(super) fn retire(&self, runs: Vec<Run>) -> Vec<Run> {
        let mut state = self.state.lock();
        state.newest().retired.extend(runs);
        state.generations.push_back(Generation::default());
        state.reap()
    }
}

impl State {
    fn newest(&mut self) -> &mut Generation {
        self.generations.back_mut().expect("invariant: there is always a newest generation")
    }

    fn reap(&mut self) -> Vec<Run> {
        let mut reusable = Vec::new();
        while self.generations.len() > 1 && self.generations[0].readers == 0 {
            let done = self.generations.pop_front().unwrap_or_default();
            reusable.extend(done.retired);
            self.first += 1;
        }
        reusable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passing_waits_for_earlier_reads_only() {
        let gate = BlockReclaimer::default();
        assert_eq!(gate.wait_for_readers(), []);
        let early = gate.enter();
        std::thread::scope(|scope| {
            let passing = scope.spawn(|| gate.wait_for_readers());
            // Wait until the other thread waits.
            while !gate.state.lock().awaited {
                std::thread::yield_now();
            }
            let late = gate.enter();
            assert_eq!(gate.retire(vec![Run { start: 1, blocks: 1 }]), []);
            assert!(!passing.is_finished());
            assert_eq!(gate.leave(early), []);
            assert_eq!(passing.join().unwrap(), []);
            assert_eq!(gate.leave(late), [Run { start: 1, blocks: 1 }]);
        });
    }

    #[test]
    fn blocks_wait_for_earlier_reads_only() {
        let gate = BlockReclaimer::default();
        let run = |start| Run { start, blocks: 1 };
        assert_eq!(gate.retire(vec![run(1)]), [run(1)]);
        let early = gate.enter();
        assert_eq!(gate.retire(vec![run(2)]), []);
        let late = gate.enter();
        assert_eq!(gate.retire(vec![run(3)]), []);
        assert_eq!(gate.leave(early), [run(2)]);
        assert_eq!(gate.retire(vec![run(4)]), []);
        assert_eq!(gate.leave(late), [run(3), run(4)]);
    }
}
