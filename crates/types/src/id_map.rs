//! A cheap hasher for keys that are numbers created by the cluster: ids of PGs and OSDs, placement hashes.
//!
//! Not for values that clients choose freely.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by ids.
pub type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;

/// Mixes whole words with a multiplication.
#[derive(Clone, Copy, Debug, Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_i64(&mut self, word: i64) {
        self.write_u64(word as u64);
    }

    fn write_u64(&mut self, word: u64) {
        // The odd multiplier of Fibonacci hashing; the map takes its bits from both ends.
        self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{PgId, PoolId};
    use std::hash::BuildHasher;

    #[test]
    fn neighbouring_ids_spread() {
        let build = BuildHasherDefault::<IdHasher>::default();
        let mut low = std::collections::BTreeSet::new();
        for pool in 1..5 {
            for seed in 0..256 {
                low.insert(build.hash_one(PgId::new(PoolId(pool), seed)) & 0xfff);
            }
        }
        assert!(low.len() > 800, "1024 ids fall into {} of 4096 buckets", low.len());
    }
}
