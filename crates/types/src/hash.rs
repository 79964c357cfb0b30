//! Hashes that place objects: Robert Jenkins' string hash as Ceph uses it, and the stable modulo.

/// The placement hash of an object name (`ceph_str_hash_rjenkins`, after Jenkins' evahash, public domain).
pub fn ceph_str_hash_rjenkins(text: &[u8]) -> u32 {
    let word = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    let (mut a, mut b, mut c) = (0x9e37_79b9u32, 0x9e37_79b9u32, 0u32);
    let mut chunks = text.chunks_exact(12);
    for chunk in &mut chunks {
        a = a.wrapping_add(word(&chunk[0..]));
        b = b.wrapping_add(word(&chunk[4..]));
        c = c.wrapping_add(word(&chunk[8..]));
        (a, b, c) = mix(a, b, c);
    }
    let tail = chunks.remainder();
    c = c.wrapping_add(text.len() as u32);
    for (i, &byte) in tail.iter().enumerate() {
        let byte = u32::from(byte);
        match i {
            0..=3 => a = a.wrapping_add(byte << (8 * i)),
            4..=7 => b = b.wrapping_add(byte << (8 * (i - 4))),
            // The lowest byte of c holds the length.
            _ => c = c.wrapping_add(byte << (8 * (i - 7))),
        }
    }
    mix(a, b, c).2
}

fn mix(mut a: u32, mut b: u32, mut c: u32) -> (u32, u32, u32) {
    a = a.wrapping_sub(b).wrapping_sub(c) ^ (c >> 13);
    b = b.wrapping_sub(c).wrapping_sub(a) ^ (a << 8);
    c = c.wrapping_sub(a).wrapping_sub(b) ^ (b >> 13);
    a = a.wrapping_sub(b).wrapping_sub(c) ^ (c >> 12);
    b = b.wrapping_sub(c).wrapping_sub(a) ^ (a << 16);
    c = c.wrapping_sub(a).wrapping_sub(b) ^ (b >> 5);
    a = a.wrapping_sub(b).wrapping_sub(c) ^ (c >> 3);
    b = b.wrapping_sub(c).wrapping_sub(a) ^ (a << 10);
    c = c.wrapping_sub(a).wrapping_sub(b) ^ (b >> 15);
    (a, b, c)
}

/// Maps `x` to `0..b` so that growing `b` towards the next power of two moves few inputs (`ceph_stable_mod`).
/// `mask` is the next power of two of `b`, less one.
pub fn stable_mod(x: u32, b: u32, mask: u32) -> u32 {
    if x & mask < b { x & mask } else { x & (mask >> 1) }
}

/// The mask that goes with `count` PGs in [`stable_mod`]: the next power of two, less one.
pub fn pg_mask(count: u32) -> u32 {
    count.max(1).next_power_of_two() - 1
}
