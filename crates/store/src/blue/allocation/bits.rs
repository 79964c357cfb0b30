//! The set of used blocks as a bitmap of 64-bit words, which is changed only as records state.

use super::image_header::{PAGE_WORDS, page_count};
use crate::blue::onode::Run;

/// Number of words for `device_blocks` blocks, in whole pages.
pub(in crate::blue) fn word_count(device_blocks: u64) -> usize {
    page_count(device_blocks) * PAGE_WORDS
}

/// An empty bitmap.
pub(in crate::blue) fn empty(device_blocks: u64) -> Vec<u64> {
    vec![0; word_count(device_blocks)]
}

/// The words that contain a run, with the mask of its bits in each.
pub(in crate::blue) fn masks(run: Run) -> impl Iterator<Item = (usize, u64)> {
    let (mut at, end) = (run.start, run.start + run.blocks);
    std::iter::from_fn(move || {
        (at < end).then(|| {
            let upto = end.min((at / 64 + 1) * 64);
            let mask = (u64::MAX >> (64 - (upto - at))) << (at % 64);
            let word = (at / 64) as usize;
            at = upto;
            (word, mask)
        })
    })
}

/// Sets or clears a run. Returns false if a part of it was set or cleared already, in which case the word concerned is not
/// changed, or if the run lies outside.
#[must_use]
pub(in crate::blue) fn set_range(words: &mut [u64], run: Run, used: bool) -> bool {
    if run.start.checked_add(run.blocks).is_none_or(|end| end > words.len() as u64 * 64) {
        return false;
    }
    masks(run).all(|(at, mask)| {
        let word = &mut words[at];
        let fits = if used { *word & mask == 0 } else { *word & mask == mask };
        if fits {
            *word ^= mask;
        }
        fits
    })
}

/// Number of set bits.
pub(in crate::blue) fn count(words: &[u64]) -> u64 {
    words.iter().map(|word| u64::from(word.count_ones())).sum()
}

/// Clears all bits below `first` and from `end` on, which no record can own.
pub(in crate::blue) fn clip(words: &mut [u64], first: u64, end: u64) {
    let keep = |at: usize| {
        let start = at as u64 * 64;
        let low = first.saturating_sub(start).min(64);
        let high = end.saturating_sub(start).min(64);
        if low >= high { 0 } else { (u64::MAX >> (64 - (high - low))) << low }
    };
    let whole = (first.div_ceil(64) as usize)..((end / 64) as usize);
    for (at, word) in words.iter_mut().enumerate().take(whole.start) {
        *word &= keep(at);
    }
    for (at, word) in words.iter_mut().enumerate().skip(whole.end.max(whole.start)) {
        *word &= keep(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_added_and_removed_once() {
        let mut words = empty(1000);
        let run = |start, blocks| Run { start, blocks };
        assert!(set_range(&mut words, run(60, 80), true) && !set_range(&mut words, run(139, 2), true));
        assert!(!set_range(&mut words, run(200, 1), false) && !set_range(&mut words, run(u64::MAX, 2), true));
        assert_eq!(count(&words), 80);
        assert!(set_range(&mut words, run(64, 64), false));
        assert_eq!(masks(run(60, 5)).collect::<Vec<_>>(), [(0, 0xf << 60), (1, 1)]);
        clip(&mut words, 62, 130);
        assert_eq!(count(&words), 4);
        for block in [62, 63, 128, 129] {
            assert!(set_range(&mut words, run(block, 1), false));
        }
    }

    #[test]
    fn clipping_keeps_what_lies_between() {
        for (first, end) in [(0, 0), (0, 1), (16, 1000), (63, 65), (64, 128), (100, 70), (16, 5000)] {
            let mut words = vec![u64::MAX; word_count(1000)];
            let blocks = words.len() as u64 * 64;
            clip(&mut words, first, end);
            assert_eq!(count(&words), end.min(blocks).saturating_sub(first), "{first}..{end}");
        }
    }
}
