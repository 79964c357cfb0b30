//! Robert Jenkins' integer mix, as CRUSH applies it to one to five words.
//!
//! All placement decisions depend on these functions: existing maps fix them permanently.

const SEED: u32 = 1_315_423_911;
const PAD_X: u32 = 231_232;
const PAD_Y: u32 = 1_232;

/// One round of the mix over three words (the 96-bit mix of Jenkins' `lookup2`).
#[inline(always)]
pub fn mix(a: &mut u32, b: &mut u32, c: &mut u32) {
    *a = a.wrapping_sub(*b).wrapping_sub(*c) ^ (*c >> 13);
    *b = b.wrapping_sub(*c).wrapping_sub(*a) ^ (*a << 8);
    *c = c.wrapping_sub(*a).wrapping_sub(*b) ^ (*b >> 13);
    *a = a.wrapping_sub(*b).wrapping_sub(*c) ^ (*c >> 12);
    *b = b.wrapping_sub(*c).wrapping_sub(*a) ^ (*a << 16);
    *c = c.wrapping_sub(*a).wrapping_sub(*b) ^ (*b >> 5);
    *a = a.wrapping_sub(*b).wrapping_sub(*c) ^ (*c >> 3);
    *b = b.wrapping_sub(*c).wrapping_sub(*a) ^ (*a << 10);
    *c = c.wrapping_sub(*a).wrapping_sub(*b) ^ (*b >> 15);
}

/// `crush_hash32`: hash of one word.
#[inline]
pub fn hash32_1(a: u32) -> u32 {
    let mut h = SEED ^ a;
    let (mut a, mut b, mut x, mut y) = (a, a, PAD_X, PAD_Y);
    mix(&mut b, &mut x, &mut h);
    mix(&mut y, &mut a, &mut h);
    h
}

/// `crush_hash32_2`: hash of two words.
#[inline]
pub fn hash32_2(a: u32, b: u32) -> u32 {
    let mut h = SEED ^ a ^ b;
    let (mut a, mut b, mut x, mut y) = (a, b, PAD_X, PAD_Y);
    mix(&mut a, &mut b, &mut h);
    mix(&mut x, &mut a, &mut h);
    mix(&mut b, &mut y, &mut h);
    h
}

/// `crush_hash32_3`: hash of three words.
#[inline]
pub fn hash32_3(a: u32, b: u32, c: u32) -> u32 {
    let mut h = SEED ^ a ^ b ^ c;
    let (mut a, mut b, mut c, mut x, mut y) = (a, b, c, PAD_X, PAD_Y);
    mix(&mut a, &mut b, &mut h);
    mix(&mut c, &mut x, &mut h);
    mix(&mut y, &mut a, &mut h);
    mix(&mut b, &mut x, &mut h);
    mix(&mut y, &mut c, &mut h);
    h
}

/// `crush_hash32_4`: hash of four words.
#[inline]
pub fn hash32_4(a: u32, b: u32, c: u32, d: u32) -> u32 {
    let mut h = SEED ^ a ^ b ^ c ^ d;
    let (mut a, mut b, mut c, mut d, mut x, mut y) = (a, b, c, d, PAD_X, PAD_Y);
    mix(&mut a, &mut b, &mut h);
    mix(&mut c, &mut d, &mut h);
    mix(&mut a, &mut x, &mut h);
    mix(&mut y, &mut b, &mut h);
    mix(&mut c, &mut x, &mut h);
    mix(&mut y, &mut d, &mut h);
    h
}

/// `crush_hash32_5`: hash of five words.
#[inline]
pub fn hash32_5(a: u32, b: u32, c: u32, d: u32, e: u32) -> u32 {
    let mut h = SEED ^ a ^ b ^ c ^ d ^ e;
    let (mut a, mut b, mut c, mut d, mut e, mut x, mut y) = (a, b, c, d, e, PAD_X, PAD_Y);
    mix(&mut a, &mut b, &mut h);
    mix(&mut c, &mut d, &mut h);
    mix(&mut e, &mut x, &mut h);
    mix(&mut y, &mut a, &mut h);
    mix(&mut b, &mut x, &mut h);
    mix(&mut y, &mut c, &mut h);
    mix(&mut d, &mut x, &mut h);
    mix(&mut y, &mut e, &mut h);
    h
}
