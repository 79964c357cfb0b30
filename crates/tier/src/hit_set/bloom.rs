//! A Bloom filter of placement hashes that shrinks when it is sealed.

use crate::key::mix;

/// The maximum number of hash functions: the best number for a false positive probability of one in a million is 20.
pub(super) const MAX_HASHES: u8 = 32;

/// The minimum size of a folded table. In a smaller one the few bits of a single hash would coincide.
const MIN_FOLDED_BYTES: usize = 64;

/// A Bloom filter. Bit positions are `(a + i·b) mod size` for the halves `a` and `b` of one 64-bit hash (Kirsch and
/// Mitzenmacher).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bloom {
    pub(super) seed: u64,
    pub(super) hashes: u8,
    /// The table's size before it was folded, in bytes.
    pub(super) unfolded_bytes: u32,
    pub(super) table: Vec<u8>,
}

/// Returns the number of hash functions and of bytes for `target` hashes with a false positive probability of `fpp`. It is the number of
/// hash functions `k` with the smallest table of `-k·target / ln(1 - fpp^(1/k))` bits, as in Ceph's `bloom_filter`.
pub(super) fn sizing(target: u32, fpp: f64) -> (u8, u32) {
    let bits = |k: u8| -f64::from(k) * f64::from(target) / (1.0 - fpp.powf(1.0 / f64::from(k))).ln();
    let best = (1..=MAX_HASHES).min_by(|&a, &b| bits(a).total_cmp(&bits(b))).unwrap_or(1);
    // Conversions of floats saturate, so a table never exceeds 4 GiB.
    (best, ((bits(best).floor() / 8.0).ceil() as u32).max(1))
}

impl Bloom {
    pub(super) fn new(target: u32, fpp: f64, seed: u64) -> Bloom {
        let (hashes, bytes) = sizing(target, fpp);
        Bloom { seed, hashes, unfolded_bytes: bytes, table: vec![0; bytes as usize] }
    }

    fn positions(&self, hash: u32) -> impl Iterator<Item = usize> + use<> {
        let mixed = mix(mix(self.seed) ^ u64::from(hash));
        let (first, step) = (mixed >> 32, mixed & 0xffff_ffff | 1);
        let (unfolded, folded) = (u64::from(self.unfolded_bytes) * 8, self.table.len() as u64 * 8);
        (0..u64::from(self.hashes)).map(move |i| ((first + i * step) % unfolded % folded) as usize)
    }

    /// Returns whether a bit changed, so that the hash was certainly not in the filter.
    pub(super) fn insert(&mut self, hash: u32) -> bool {
        let mut changed = false;
        for position in self.positions(hash) {
            let (byte, bit) = (&mut self.table[position / 8], 1 << (position % 8));
            changed |= *byte & bit == 0;
            *byte |= bit;
        }
        changed
    }

    pub(super) fn contains(&self, hash: u32) -> bool {
        self.positions(hash).all(|position| self.table[position / 8] & 1 << (position % 8) != 0)
    }

    /// The share of bits that are set.
    pub(super) fn density(&self) -> f64 {
        let set: u64 = self.table.iter().map(|byte| u64::from(byte.count_ones())).sum();
        set as f64 / (self.table.len() * 8) as f64
    }

    /// Folds the table so that about half of its bits are set. A filter with fewer hashes than it was sized for keeps its false positive
    /// probability in less space.
    pub(super) fn fold(&mut self) {
        let kept = ((self.table.len() as f64 * self.density() * 2.0) as usize).max(MIN_FOLDED_BYTES);
        if kept >= self.table.len() {
            return;
        }
        let tail = self.table.split_off(kept);
        for chunk in tail.chunks(kept) {
            for (byte, more) in self.table.iter_mut().zip(chunk) {
                *byte |= more;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_the_sizes_that_theory_gives() {
        // -n·ln(p) / ln(2)² bits and log2(1/p) hashes, rounded to whole ones.
        assert_eq!(sizing(1000, 0.01), (7, 1199));
        assert_eq!(sizing(100_000, 0.0125), (6, 114_105));
        assert_eq!(sizing(1000, 0.000_001).0, 20);
        // Without any requirement there is still a table.
        assert_eq!(sizing(1000, 1.0), (1, 1));
        assert_eq!(sizing(0, 0.01).1, 1);
    }

    #[test]
    fn the_false_positive_probability_holds_full_and_folded() {
        for (inserted, folded) in [(2000_u32, false), (2000, true), (300, true), (20, true)] {
            let mut bloom = Bloom::new(2000, 0.02, 7);
            for hash in 0..inserted {
                bloom.insert(hash.wrapping_mul(2_654_435_761));
            }
            let before = bloom.table.len();
            if folded {
                bloom.fold();
            }
            assert!((0..inserted).all(|hash| bloom.contains(hash.wrapping_mul(2_654_435_761))));
            let wrong = (1_000_000..1_050_000_u32).filter(|&hash| bloom.contains(hash.wrapping_mul(40_503)));
            let rate = wrong.count() as f64 / 50_000.0;
            assert!(rate < 0.03, "{inserted} folded {folded}: {rate}");
            assert!(!folded || inserted == 2000 || bloom.table.len() * 3 < before);
        }
    }
}
