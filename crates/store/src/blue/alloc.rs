//! Which blocks of the device are free: a bitmap with a summary, allocated next-fit so that what is written together
//! lies together.
//!
//! Only blocks below the *frontier* are handed out; the frontier moves up as [`super::device::Device::grow`] provides
//! space, and nothing at or above it was ever written. Freed blocks come here only when rule B1 allows their reuse.

use super::onode::Run;

/// The bitmap. A set bit is a block in use, quarantined or beyond the frontier.
#[derive(Debug)]
pub(super) struct Allocator {
    words: Vec<u64>,
    /// One bit per word: the word is full.
    full: Vec<u64>,
    frontier: u64,
    device_blocks: u64,
    free: u64,
    cursor: u64,
    quarantined: u64,
    /// Runs that more than one record claims: never released.
    disputed: Vec<Run>,
}

impl Allocator {
    /// An allocator of which `first..frontier` is free.
    pub(super) fn new(first: u64, frontier: u64, device_blocks: u64) -> Allocator {
        let words = device_blocks.div_ceil(64) as usize;
        let mut allocator = Allocator {
            words: vec![u64::MAX; words],
            full: vec![u64::MAX; words.div_ceil(64)],
            frontier: first,
            device_blocks,
            free: 0,
            cursor: first,
            quarantined: 0,
            disputed: Vec::new(),
        };
        allocator.extend_frontier(frontier);
        allocator
    }

    /// Blocks that can be handed out now.
    pub(super) fn free(&self) -> u64 {
        self.free
    }

    /// Blocks that [`Allocator::extend_frontier`] may still add.
    pub(super) fn ungrown(&self) -> u64 {
        self.device_blocks - self.frontier
    }

    pub(super) fn frontier(&self) -> u64 {
        self.frontier
    }

    pub(super) fn quarantined(&self) -> u64 {
        self.quarantined
    }

    /// Adds the blocks up to `frontier`.
    pub(super) fn extend_frontier(&mut self, frontier: u64) {
        let frontier = frontier.min(self.device_blocks);
        if frontier > self.frontier {
            let run = Run { start: self.frontier, blocks: frontier - self.frontier };
            self.frontier = frontier;
            self.set(run, false);
            self.free += run.blocks;
        }
    }

    /// Takes up to `blocks`, in runs of at most `max_run` appended to `out`; all or nothing.
    #[must_use]
    pub(super) fn allocate(&mut self, mut blocks: u64, max_run: u64, out: &mut Vec<Run>) -> bool {
        if blocks > self.free {
            return false;
        }
        while blocks > 0 {
            let wanted = blocks.min(max_run);
            let run = self.find(wanted);
            self.set(run, true);
            self.free -= run.blocks;
            self.cursor = run.start + run.blocks;
            blocks -= run.blocks;
            out.push(run);
        }
        true
    }

    /// Gives back a run that was allocated.
    pub(super) fn release(&mut self, run: Run) {
        debug_assert!(self.is_used(run), "{run:?} is not allocated");
        if self.disputed.is_empty() {
            self.set(run, false);
            self.free += run.blocks;
            return;
        }
        for block in run.start..run.start + run.blocks {
            // A record may name any run.
            let holds = |held: &Run| block >= held.start && block - held.start < held.blocks;
            if !self.disputed.iter().any(holds) {
                self.set(Run { start: block, blocks: 1 }, false);
                self.free += 1;
            }
        }
    }

    /// Takes a run that a record owns, at mount; `false` where a block of it is taken already or out of range.
    #[must_use]
    pub(super) fn claim(&mut self, run: Run) -> bool {
        let fits = run.start.checked_add(run.blocks).is_some_and(|end| end <= self.frontier);
        if !fits || (run.start..run.start + run.blocks).any(|block| self.bit(block)) {
            return false;
        }
        self.set(run, true);
        self.free -= run.blocks;
        true
    }

    /// Withholds a run for good, whoever else owns parts of it.
    pub(super) fn quarantine(&mut self, run: Run) {
        self.disputed.push(run);
        for block in run.start..run.start.saturating_add(run.blocks).min(self.frontier) {
            if !self.bit(block) {
                self.set(Run { start: block, blocks: 1 }, true);
                self.free -= 1;
            }
            self.quarantined += 1;
        }
    }

    /// Withholds everything free below the frontier.
    pub(super) fn quarantine_all_free(&mut self) {
        self.quarantined += self.free;
        self.set(Run { start: 0, blocks: self.frontier }, true);
        self.free = 0;
    }

    /// The first `max` free runs, in order, and whether there are more. Space that was never grown into counts.
    pub(super) fn free_runs(&self, max: usize) -> (Vec<Run>, bool) {
        let mut runs: Vec<Run> = Vec::new();
        let mut at = 0;
        while let Some(start) = self.next_free(at, self.frontier) {
            if runs.len() == max {
                return (runs, true);
            }
            let end = self.run_end(start, self.frontier);
            runs.push(Run { start, blocks: end - start });
            at = end;
        }
        if self.ungrown() > 0 {
            let full = runs.len() == max;
            match runs.last_mut().filter(|run| run.start + run.blocks == self.frontier) {
                Some(last) => last.blocks += self.ungrown(),
                None if full => return (runs, true),
                None => runs.push(Run { start: self.frontier, blocks: self.ungrown() }),
            }
        }
        (runs, false)
    }

    /// Whether all of the run is in use.
    pub(super) fn is_used(&self, run: Run) -> bool {
        (run.start..run.start + run.blocks).all(|block| self.bit(block))
    }

    fn bit(&self, block: u64) -> bool {
        self.words.get((block / 64) as usize).is_none_or(|word| word >> (block % 64) & 1 == 1)
    }

    /// The next run of `wanted` blocks from the cursor on; a shorter one where there is none nearby. There is a free
    /// block.
    fn find(&self, wanted: u64) -> Run {
        /// Shorter runs looked at before taking the longest of them.
        const PATIENCE: usize = 256;
        let mut best = Run { start: 0, blocks: 0 };
        let mut seen = 0;
        for (from, to) in [(self.cursor, self.frontier), (0, self.cursor)] {
            let mut at = from;
            while let Some(start) = self.next_free(at, to) {
                let end = self.run_end(start, to.min(start + wanted));
                if end - start > best.blocks {
                    best = Run { start, blocks: end - start };
                }
                seen += 1;
                if best.blocks == wanted || seen == PATIENCE {
                    return best;
                }
                at = end;
            }
        }
        assert!(best.blocks > 0, "invariant: the free count says that there are free blocks");
        best
    }

    fn next_free(&self, from: u64, to: u64) -> Option<u64> {
        let mut at = from;
        while at < to {
            let word = (at / 64) as usize;
            let free = !self.words[word] & u64::MAX << (at % 64);
            if free != 0 {
                let block = word as u64 * 64 + u64::from(free.trailing_zeros());
                return (block < to).then_some(block);
            }
            let next = word + 1;
            // Skip 64 full words at a time where the summary says so.
            at = if next.is_multiple_of(64) && self.full.get(next / 64) == Some(&u64::MAX) {
                (next as u64 + 64) * 64
            } else {
                next as u64 * 64
            };
        }
        None
    }

    /// The first used block from `start` on, or `limit`.
    fn run_end(&self, start: u64, limit: u64) -> u64 {
        let mut at = start;
        while at < limit {
            let used = self.words[(at / 64) as usize] >> (at % 64);
            if used != 0 {
                return limit.min(at + u64::from(used.trailing_zeros()));
            }
            at = (at / 64 + 1) * 64;
        }
        limit
    }

    fn set(&mut self, run: Run, used: bool) {
        let (mut at, end) = (run.start, run.start + run.blocks);
        while at < end {
            let word = (at / 64) as usize;
            let upto = end.min((at / 64 + 1) * 64);
            let mask = (u64::MAX >> (64 - (upto - at))) << (at % 64);
            if used {
                self.words[word] |= mask;
            } else {
                self.words[word] &= !mask;
            }
            let bit = 1 << (word % 64);
            if self.words[word] == u64::MAX {
                self.full[word / 64] |= bit;
            } else {
                self.full[word / 64] &= !bit;
            }
            at = upto;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn consecutive_allocations_are_contiguous() {
        let mut allocator = Allocator::new(16, 10_000, 10_000);
        let mut runs = Vec::new();
        for _ in 0..50 {
            assert!(allocator.allocate(1, 64, &mut runs));
        }
        assert!(runs.windows(2).all(|pair| pair[0].start + 1 == pair[1].start));
        runs.clear();
        assert!(allocator.allocate(1000, 64, &mut runs));
        assert!(
            runs.iter().all(|run| run.blocks <= 64) && runs.iter().map(|run| run.blocks).sum::<u64>() == 1000
        );
    }

    proptest! {
        #[test]
        fn behaves_as_a_set_of_blocks(steps in proptest::collection::vec((any::<bool>(), 1..200_u64, 1..80_u64), 1..200)) {
            const SIZE: u64 = 6_000;
            let mut allocator = Allocator::new(16, 3_000, SIZE);
            let (mut held, mut used) = (Vec::<Run>::new(), BTreeSet::new());
            for (take, amount, max_run) in steps {
                if take {
                    let mut runs = Vec::new();
                    if allocator.allocate(amount, max_run, &mut runs) {
                        for run in &runs {
                            prop_assert!(run.blocks <= max_run && run.start >= 16);
                            for block in run.start..run.start + run.blocks {
                                prop_assert!(block < allocator.frontier() && used.insert(block));
                            }
                        }
                        prop_assert_eq!(runs.iter().map(|run| run.blocks).sum::<u64>(), amount);
                        held.extend(runs);
                    } else {
                        prop_assert!(allocator.free() < amount);
                        allocator.extend_frontier(allocator.frontier() + 1_000);
                    }
                } else if !held.is_empty() {
                    let run = held.swap_remove(amount as usize % held.len());
                    (run.start..run.start + run.blocks).for_each(|block| _ = used.remove(&block));
                    allocator.release(run);
                }
                prop_assert_eq!(allocator.free(), allocator.frontier() - 16 - used.len() as u64);
            }
        }
    }

    /// What damaged records may claim, in any order: pairs of start and length.
    #[test]
    fn fuzz_claims() {
        let corpus = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"));
        let seed = |runs: &[(u64, u64)]| -> Vec<u8> {
            runs.iter()
                .flat_map(|(start, blocks)| [start.to_le_bytes(), blocks.to_le_bytes()].concat())
                .collect()
        };
        let seeds = vec![
            seed(&[(16, 10), (26, 80), (20, 1)]),
            seed(&[(100, 100), (190, 20), (0, 8), (u64::MAX, 2), (150, 0)]),
        ];
        nacre_fuzz::Target::new("claims", corpus, seeds).run(|input| {
            let mut allocator = Allocator::new(16, 200, 250);
            let mut claimed = Vec::new();
            for pair in input.as_chunks::<16>().0 {
                let (start, blocks) = pair.split_at(8);
                let number = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes);
                let run = Run { start: number(start).ok()?, blocks: number(blocks).ok()? };
                match allocator.claim(run) {
                    true => claimed.push(run),
                    false => allocator.quarantine(run),
                }
            }
            // Whatever was claimed, what is free is told rightly, and given out once.
            let owned =
                |allocator: &Allocator| (16..200).filter(|block| !allocator.bit(*block)).count() as u64;
            assert_eq!(allocator.free(), owned(&allocator));
            claimed.into_iter().for_each(|run| allocator.release(run));
            assert_eq!(allocator.free(), owned(&allocator));
            let mut all = Vec::new();
            assert!(allocator.allocate(allocator.free(), 64, &mut all) && allocator.free() == 0);
            assert!(all.iter().all(|run| run.start >= 16 && run.start + run.blocks <= 200));
            Some(input.to_vec())
        });
    }

    #[test]
    fn claims_conflict_once_and_quarantine_withholds() {
        let mut allocator = Allocator::new(16, 1_000, 1_000);
        let run = Run { start: 100, blocks: 10 };
        assert!(allocator.claim(run));
        assert!(!allocator.claim(Run { start: 109, blocks: 3 }));
        assert!(!allocator.claim(Run { start: 995, blocks: 10 }));
        assert!(!allocator.claim(Run { start: u64::MAX, blocks: 10 }));
        allocator.quarantine(Run { start: 105, blocks: 10 });
        assert_eq!((allocator.free(), allocator.quarantined()), (984 - 15, 10));
        allocator.release(run);
        assert_eq!(allocator.free(), 984 - 10);
        allocator.quarantine_all_free();
        assert!(!allocator.allocate(1, 1, &mut Vec::new()));
    }
}
