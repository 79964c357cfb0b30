//! Maps an object's name to its PG and to CRUSH's input: `rjenkins` string hash, `stable_mod`, PG masks, placement seed.
//!
//! These are pure functions whose values are a part of the cluster's format: they determine where objects are stored.

use nacre_crush::{hash32_2, rjenkins};

/// Separates the namespace from the object's name (or locator key) in the input of the hash.
const NAMESPACE_SEPARATOR: u8 = 0o37;

/// `ceph_str_hash_rjenkins`: Jenkins' `lookup2` over bytes, the hash of objects' names.
pub fn ceph_str_hash_rjenkins(bytes: &[u8]) -> u32 {
    let mut a = 0x9e37_79b9_u32;
    let mut b = a;
    let mut c = 0_u32;
    let mut words = bytes.chunks_exact(12);
    for word in &mut words {
        a = a.wrapping_add(u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        b = b.wrapping_add(u32::from_le_bytes([word[4], word[5], word[6], word[7]]));
        c = c.wrapping_add(u32::from_le_bytes([word[8], word[9], word[10], word[11]]));
        rjenkins::mix(&mut a, &mut b, &mut c);
    }
    // The lowest byte of the last word contains the length, so the tail's third part is shifted by one byte.
    let mut tail = [0_u8; 12];
    let rest = words.remainder();
    for (at, &byte) in rest.iter().enumerate() {
        tail[if at < 8 { at } else { at + 1 }] = byte;
    }
    a = a.wrapping_add(u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]));
    b = b.wrapping_add(u32::from_le_bytes([tail[4], tail[5], tail[6], tail[7]]));
    c = c.wrapping_add(u32::from_le_bytes([0, tail[9], tail[10], tail[11]])).wrapping_add(bytes.len() as u32);
    rjenkins::mix(&mut a, &mut b, &mut c);
    c
}

/// Returns the placement hash of an object: of its locator key if it has one, else of its name, within its namespace
/// (`pg_pool_t::hash_key`).
pub fn object_hash(namespace: &[u8], name_or_locator: &[u8]) -> u32 {
    if namespace.is_empty() {
        return ceph_str_hash_rjenkins(name_or_locator);
    }
    let mut key = Vec::with_capacity(namespace.len() + 1 + name_or_locator.len());
    key.extend_from_slice(namespace);
    key.push(NAMESPACE_SEPARATOR);
    key.extend_from_slice(name_or_locator);
    ceph_str_hash_rjenkins(&key)
}

/// `ceph_stable_mod`: `x` modulo `b` such that growing `b` splits buckets instead of reshuffling them.
/// `mask` is [`pg_mask`] of `b`.
#[inline]
pub fn stable_mod(x: u32, b: u32, mask: u32) -> u32 {
    if x & mask < b { x & mask } else { x & (mask >> 1) }
}

/// The smallest `2^k - 1` that covers PG numbers `0..pg_num`.
#[inline]
pub fn pg_mask(pg_num: u32) -> u32 {
    match pg_num {
        0 | 1 => 0,
        n => u32::MAX >> (n - 1).leading_zeros(),
    }
}

/// Returns the PG number for a placement hash (`raw_pg_to_pg`).
#[inline]
pub fn pg_of_hash(hash: u32, pg_num: u32) -> u32 {
    stable_mod(hash, pg_num, pg_mask(pg_num))
}

/// Returns CRUSH's input for a PG (`raw_pg_to_pps`). With `hashpspool` the pool's id is included in a hash; without it, PGs of
/// successive pools overlap (`pg + pool`).
#[inline]
pub fn placement_seed(pg: u32, pgp_num: u32, pool: i64, hashpspool: bool) -> u32 {
    let base = stable_mod(pg, pgp_num, pg_mask(pgp_num));
    if hashpspool { hash32_2(base, pool as u32) } else { base.wrapping_add(pool as u32) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_cover_exactly_the_pg_numbers() {
        for (pg_num, mask) in
            [(0, 0), (1, 0), (2, 1), (3, 3), (4, 3), (5, 7), (8, 7), (9, 15), (u32::MAX, u32::MAX)]
        {
            assert_eq!(pg_mask(pg_num), mask, "pg_num {pg_num}");
        }
    }

    #[test]
    fn growing_a_pool_only_splits_pgs() {
        for pg_num in 1..200_u32 {
            for hash in (0..5000_u32).map(|i| i.wrapping_mul(2_654_435_761)) {
                let before = pg_of_hash(hash, pg_num);
                let after = pg_of_hash(hash, pg_num + 1);
                assert!(
                    after == before || after == pg_num,
                    "{hash} went from {before} to {after} of {pg_num}+1"
                );
            }
        }
    }

    #[test]
    fn every_tail_length_of_the_string_hash_matters() {
        let text = b"the quick brown fox jumps over";
        let hashes: std::collections::BTreeSet<u32> =
            (0..=text.len()).map(|n| ceph_str_hash_rjenkins(&text[..n])).collect();
        assert_eq!(hashes.len(), text.len() + 1);
    }
}
