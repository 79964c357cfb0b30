//! The arithmetic of MD5 (RFC 1321), for one stream and for many at a time. The compiler vectorizes the loop over lanes, for the
//! vector instructions that the processor is found to have at run time.

/// The most streams that are digested together.
pub(super) const LANES: usize = 16;
/// Bytes of a block.
pub(super) const BLOCK: usize = 64;

/// The state of a stream: A, B, C and D of RFC 1321.
pub(super) type Md5State = [u32; 4];

/// The state of an empty stream.
pub(super) const INITIAL_STATE: Md5State = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

/// The absolute sines of 1 to 64 (radians) times 2^32, rounded down.
#[rustfmt::skip]
const SINES: [u32; 64] = [
    0xd76a_a478, 0xe8c7_b756, 0x2420_70db, 0xc1bd_ceee, 0xf57c_0faf, 0x4787_c62a, 0xa830_4613, 0xfd46_9501,
    0x6980_98d8, 0x8b44_f7af, 0xffff_5bb1, 0x895c_d7be, 0x6b90_1122, 0xfd98_7193, 0xa679_438e, 0x49b4_0821,
    0xf61e_2562, 0xc040_b340, 0x265e_5a51, 0xe9b6_c7aa, 0xd62f_105d, 0x0244_1453, 0xd8a1_e681, 0xe7d3_fbc8,
    0x21e1_cde6, 0xc337_07d6, 0xf4d5_0d87, 0x455a_14ed, 0xa9e3_e905, 0xfcef_a3f8, 0x676f_02d9, 0x8d2a_4c8a,
    0xfffa_3942, 0x8771_f681, 0x6d9d_6122, 0xfde5_380c, 0xa4be_ea44, 0x4bde_cfa9, 0xf6bb_4b60, 0xbebf_bc70,
    0x289b_7ec6, 0xeaa1_27fa, 0xd4ef_3085, 0x0488_1d05, 0xd9d4_d039, 0xe6db_99e5, 0x1fa2_7cf8, 0xc4ac_5665,
    0xf429_2244, 0x432a_ff97, 0xab94_23a7, 0xfc93_a039, 0x655b_59c3, 0x8f0c_cc92, 0xffef_f47d, 0x8584_5dd1,
    0x6fa8_7e4f, 0xfe2c_e6e0, 0xa301_4314, 0x4e08_11a1, 0xf753_7e82, 0xbd3a_f235, 0x2ad7_d2bb, 0xeb86_d391,
];

/// A round of sixteen steps with these shifts. `word(i)` is the word of the block that step `i` adds.
#[inline(always)]
fn round<const S0: u32, const S1: u32, const S2: u32, const S3: u32>(
    [mut a, mut b, mut c, mut d]: Md5State,
    word: impl Fn(usize) -> u32,
    sines: &[u32; 16],
    mix: impl Fn(u32, u32, u32) -> u32,
) -> Md5State {
    let step = |shift: u32, i: usize, a: u32, b: u32, c: u32, d: u32| {
        let sum = a.wrapping_add(mix(b, c, d)).wrapping_add(word(i).wrapping_add(sines[i]));
        b.wrapping_add(sum.rotate_left(shift))
    };
    macro_rules! four { ($($i:literal)*) => {$(
        a = step(S0, $i, a, b, c, d);
        d = step(S1, $i + 1, d, a, b, c);
        c = step(S2, $i + 2, c, d, a, b);
        b = step(S3, $i + 3, b, c, d, a);
    )*}}
    four!(0 4 8 12);
    [a, b, c, d]
}

/// Returns `state` after a block, whose words are given by `word`.
#[inline(always)]
fn block(state: Md5State, word: impl Fn(usize) -> u32) -> Md5State {
    let (sines, _) = SINES.as_chunks::<16>();
    let next = round::<7, 12, 17, 22>(state, &word, &sines[0], |x, y, z| z ^ (x & (y ^ z)));
    let next =
        round::<5, 9, 14, 20>(next, |i| word((5 * i + 1) % 16), &sines[1], |x, y, z| y ^ (z & (x ^ y)));
    let next = round::<4, 11, 16, 23>(next, |i| word((3 * i + 5) % 16), &sines[2], |x, y, z| x ^ y ^ z);
    let next = round::<6, 10, 15, 21>(next, |i| word((7 * i) % 16), &sines[3], |x, y, z| y ^ (x | !z));
    std::array::from_fn(|i| state[i].wrapping_add(next[i]))
}

/// Digests `blocks` blocks of each lane's data into its state.
#[inline(always)]
fn compress<const N: usize>(states: &mut [[u32; N]; 4], data: &[&[u8]; N], blocks: usize) {
    for at in 0..blocks {
        let mut words = [[0; N]; 16];
        for (lane, data) in data.iter().enumerate() {
            let (chunks, _) = data[at * BLOCK..][..BLOCK].as_chunks::<4>();
            for (word, chunk) in words.iter_mut().zip(chunks) {
                word[lane] = u32::from_le_bytes(*chunk);
            }
        }
        let [sa, sb, sc, sd] = states;
        for lane in 0..N {
            let state = [sa[lane], sb[lane], sc[lane], sd[lane]];
            [sa[lane], sb[lane], sc[lane], sd[lane]] = block(state, |i| words[i][lane]);
        }
    }
}

/// Digests `blocks` blocks of all lanes at once. As many lanes as a vector has words take hardly longer than one lane.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512bw", "x86_64+avx2"))]
pub(super) fn compress_lanes<const N: usize>(states: &mut [[u32; N]; 4], data: &[&[u8]; N], blocks: usize) {
    compress(states, data, blocks);
}

/// Digests all of `data`, which consists of whole blocks.
pub(super) fn compress_one(state: &mut Md5State, data: &[u8]) {
    let mut states = state.map(|word| [word]);
    compress(&mut states, &[data], data.len() / BLOCK);
    *state = states.map(|[word]| word);
}
