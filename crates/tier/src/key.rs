//! 64-bit keys of objects: uniform hashes for sketches and samples.

use nacre_types::ObjectId;
use nacre_types::hash::ceph_str_hash_rjenkins;

/// Returns a key that is uniformly distributed over all 64 bits and independent of the pool, so that it is the same in a cache pool and its
/// base.
///
/// It is computed from the placement hash, which is known already. The name is included only if a locator key places several objects at one
/// hash.
pub fn object_key(object: &ObjectId) -> u64 {
    let name = match object.locator() {
        "" => 0,
        _ => ceph_str_hash_rjenkins(object.name().as_bytes()),
    };
    mix(u64::from(object.hash()) | u64::from(name) << 32)
}

/// The finaliser of SplitMix64: a bijection in which each bit of the input changes each bit of the output with probability one half.
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::PoolId;
    use std::collections::BTreeSet;

    #[test]
    fn keys_are_of_the_object_and_not_of_its_pool() {
        let object = ObjectId::new(PoolId(1), "", "", "a");
        assert_eq!(object_key(&object), object_key(&object.with_pool(PoolId(2))));
        let located = |name| object_key(&ObjectId::new(PoolId(1), "", "one place", name));
        assert_ne!(located("a"), located("b"));
    }

    #[test]
    fn keys_of_one_pg_spread_over_the_whole_range() {
        // Hashes in one PG of 256 differ only in their upper 24 bits.
        let keys: Vec<u64> = (0..4096_u64).map(|n| mix(n << 8 | 0x1f)).collect();
        for shift in [0, 20, 40, 56] {
            let cells: BTreeSet<u64> = keys.iter().map(|key| key >> shift & 0xff).collect();
            assert_eq!(cells.len(), 256, "bits {shift}");
        }
    }
}
