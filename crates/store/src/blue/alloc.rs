//! Tracks the free blocks of the device in a bitmap with a summary. Allocation is next-fit, so that blocks written together
//! are close together.
//!
//! Only blocks below the *frontier* are allocated. The frontier moves up as [`super::device::Device::ensure_allocated`] provides
//! space; blocks at or above it were never written. Freed blocks are released here only when rule B1 allows their reuse.

use super::allocation::bits;
use super::onode::Run;

/// The bitmap. A bit is set if its block is in use, quarantined or beyond the frontier.
#[derive(Debug)]
pub(super) struct Allocator {
    words: Vec<u64>,
    /// One bit per word, set if the word is full.
    full: Vec<u64>,
    frontier: u64,
    device_blocks: u64,
    free: u64,
    cursor: u64,
    quarantined: u64,
    /// Runs that more than one record claims. They are never released.
    disputed: Vec<Run>,
}

impl Allocator {
    /// An allocator in which `first..frontier` is free.
    #[cfg(test)]
    pub(super) fn new(first: u64, frontier: u64, device_blocks: u64) -> Allocator {
        Allocator::with_used(bits::empty(device_blocks), first, frontier, device_blocks)
    }

    /// An allocator for `first..frontier` without the blocks whose bits are set in `used`.
    pub(super) fn with_used(mut used: Vec<u64>, first: u64, frontier: u64, device_blocks: u64) -> Allocator {
        bits::clip(&mut used, first, frontier);
        let free = frontier - first - bits::count(&used);
        let mut allocator = Allocator {
            full: vec![0; used.len().div_ceil(64)],
            words: used,
            frontier,
            device_blocks,
            free,
            cursor: first,
            quarantined: 0,
            disputed: Vec::new(),
        };
        let outside = allocator.words.len() as u64 * 64 - frontier;
        allocator.set_words(Run { start: 0, blocks: first }, true);
        allocator.set_words(Run { start: frontier, blocks: outside }, true);
        for (at, words) in allocator.words.chunks(64).enumerate() {
            // Missing words count as full.
            let there = words.iter().enumerate().fold(u64::MAX, |full, (bit, word)| {
                if *word == u64::MAX { full } else { full & !(1 << bit) }
            });
            allocator.full[at] = there;
        }
        allocator
    }

    /// The used blocks in `first..frontier`, including withheld ones, as a bitmap.
    pub(super) fn used_bitmap(&self, first: u64) -> Vec<u64> {
        let mut used = self.words.clone();
        bits::clip(&mut used, first, self.frontier);
        used
    }

    /// Number of blocks that can be allocated now.
    pub(super) fn free_blocks(&self) -> u64 {
        self.free
    }

    /// Number of blocks that [`Allocator::extend_frontier`] can still add.
    pub(super) fn blocks_above_frontier(&self) -> u64 {
        self.device_blocks - self.frontier
    }

    pub(super) fn frontier(&self) -> u64 {
        self.frontier
    }

    pub(super) fn quarantined_blocks(&self) -> u64 {
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

    /// Allocates exactly `blocks` blocks in runs of at most `max_run`, appended to `out`. Returns false and allocates nothing
    /// if there are not enough.
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

    /// Releases an allocated run. If a part of the run is free already, another owner has released it: the run is then
    /// withheld, and `false` is returned.
    #[must_use]
    pub(super) fn release(&mut self, run: Run) -> bool {
        if !self.is_used(run) {
            self.quarantine(run);
            return false;
        }
        if self.disputed.is_empty() {
            self.set(run, false);
            self.free += run.blocks;
            return true;
        }
        for block in run.start..run.start + run.blocks {
            // The run comes from a record and may be invalid.
            let holds = |held: &Run| block >= held.start && block - held.start < held.blocks;
            if !self.disputed.iter().any(holds) {
                self.set(Run { start: block, blocks: 1 }, false);
                self.free += 1;
            }
        }
        true
    }

    /// Withholds a run permanently, even if parts of it are owned.
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

    /// Withholds all free blocks below the frontier.
    pub(super) fn quarantine_all_free(&mut self) {
        self.quarantined += self.free;
        self.set(Run { start: 0, blocks: self.frontier }, true);
        self.free = 0;
    }

    /// The first `max` free runs, in order, and whether there are more. Includes the space above the frontier.
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
        if self.blocks_above_frontier() > 0 {
            let full = runs.len() == max;
            match runs.last_mut().filter(|run| run.start + run.blocks == self.frontier) {
                Some(last) => last.blocks += self.blocks_above_frontier(),
                None if full => return (runs, true),
                None => runs.push(Run { start: self.frontier, blocks: self.blocks_above_frontier() }),
            }
        }
        (runs, false)
    }

    /// Whether all blocks of the run are in use.
    pub(super) fn is_used(&self, run: Run) -> bool {
        (run.start..run.start + run.blocks).all(|block| self.bit(block))
    }

    fn bit(&self, block: u64) -> bool {
        self.words.get((block / 64) as usize).is_none_or(|word| word >> (block % 64) & 1 == 1)
    }

    /// The next free run of `wanted` blocks from the cursor on, or a shorter one if none is nearby. At least one block must be
    /// free.
    fn find(&self, wanted: u64) -> Run {
        /// Number of shorter runs to look at before the longest of them is taken.
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
            // Skips 64 words at a time that are full according to the summary.
            at = if next.is_multiple_of(64) && self.full.get(next / 64) == Some(&u64::MAX) {
                (next as u64 + 64) * 64
            } else {
                next as u64 * 64
            };
        }
        None
    }

    /// The first used block from `start` on, at most `limit`.
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

    fn set_words(&mut self, run: Run, used: bool) {
        for (at, mask) in bits::masks(run) {
            if used {
                self.words[at] |= mask;
            } else {
                self.words[at] &= !mask;
            }
        }
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
                        prop_assert!(allocator.free_blocks() < amount);
                        allocator.extend_frontier(allocator.frontier() + 1_000);
                    }
                } else if !held.is_empty() {
                    let run = held.swap_remove(amount as usize % held.len());
                    (run.start..run.start + run.blocks).for_each(|block| _ = used.remove(&block));
                    prop_assert!(allocator.release(run));
                }
                prop_assert_eq!(allocator.free_blocks(), allocator.frontier() - 16 - used.len() as u64);
            }
        }
    }

    /// Claims of damaged records, in any order: pairs of start and length.
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
            let mut used = bits::empty(250);
            let (mut claimed, mut withheld) = (Vec::new(), Vec::new());
            for pair in input.as_chunks::<16>().0 {
                let (start, blocks) = pair.split_at(8);
                let number = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes);
                let run = Run { start: number(start).ok()?, blocks: number(blocks).ok()? };
                let inside =
                    run.start >= 16 && run.start.checked_add(run.blocks).is_some_and(|end| end <= 200);
                match inside && bits::set_range(&mut used, run, true) {
                    true => claimed.push(run),
                    false => withheld.push(run),
                }
            }
            let mut allocator = Allocator::with_used(used, 16, 200, 250);
            withheld.into_iter().for_each(|run| allocator.quarantine(run));
            // Whatever was claimed, the count of free blocks is correct and each block is allocated once.
            let owned =
                |allocator: &Allocator| (16..200).filter(|block| !allocator.bit(*block)).count() as u64;
            assert_eq!(allocator.free_blocks(), owned(&allocator));
            assert!(claimed.into_iter().all(|run| allocator.release(run)));
            assert_eq!(allocator.free_blocks(), owned(&allocator));
            let mut all = Vec::new();
            assert!(
                allocator.allocate(allocator.free_blocks(), 64, &mut all) && allocator.free_blocks() == 0
            );
            assert!(all.iter().all(|run| run.start >= 16 && run.start + run.blocks <= 200));
            Some(input.to_vec())
        });
    }

    #[test]
    fn quarantine_withholds_from_all_owners() {
        let mut used = bits::empty(1_000);
        let run = Run { start: 100, blocks: 10 };
        assert!(bits::set_range(&mut used, run, true));
        let mut allocator = Allocator::with_used(used, 16, 1_000, 1_000);
        assert_eq!(allocator.free_blocks(), 984 - 10);
        allocator.quarantine(Run { start: 105, blocks: 10 });
        assert_eq!((allocator.free_blocks(), allocator.quarantined_blocks()), (984 - 15, 10));
        assert!(allocator.release(run));
        assert_eq!(allocator.free_blocks(), 984 - 10);
        // Released once more, by another owner: withheld.
        assert!(!allocator.release(run));
        assert_eq!(allocator.free_blocks(), 984 - 15);
        assert_eq!(bits::count(&allocator.used_bitmap(16)), 15);
        allocator.quarantine_all_free();
        assert!(!allocator.allocate(1, 1, &mut Vec::new()));
    }

    #[test]
    fn an_allocator_made_of_used_blocks_is_that_of_their_allocation() {
        let mut used = bits::empty(70_000);
        let mut by_hand = Allocator::new(16, 66_000, 70_000);
        for run in [
            Run { start: 16, blocks: 4_096 },
            Run { start: 5_000, blocks: 3 },
            Run { start: 65_000, blocks: 1_000 },
        ] {
            assert!(bits::set_range(&mut used, run, true));
            by_hand.set(run, true);
            by_hand.free -= run.blocks;
        }
        let made = Allocator::with_used(used.clone(), 16, 66_000, 70_000);
        assert_eq!((&made.words, &made.full, made.free), (&by_hand.words, &by_hand.full, by_hand.free));
        assert_eq!(made.used_bitmap(16), used);
    }
}
