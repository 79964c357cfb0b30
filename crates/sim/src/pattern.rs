//! Generated data: how large objects are filled, and how the data is recognised.
//!
//! The data of a *token* is a run of eight-byte words (little-endian): the first is the token, and each further one is larger
//! by [`STEP`]. So a word identifies its token and its position in the data, and any part of such data, cut at words, is
//! again a run, which is determined by its first word and its length.

use bytes::Bytes;

/// The difference of two consecutive words: odd, so that all words of a run are different.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// Bytes of a word.
const WORD: usize = 8;

/// Appends `len` bytes of the run that starts with `first`. The last word may be incomplete.
pub fn extend(data: &mut Vec<u8>, first: u64, len: usize) {
    let start = data.len();
    data.resize(start + len, 0);
    let (words, rest) = data[start..].as_chunks_mut::<WORD>();
    let mut word = first;
    for place in words {
        *place = word.to_le_bytes();
        word = word.wrapping_add(STEP);
    }
    rest.copy_from_slice(&word.to_le_bytes()[..len % WORD]);
}

/// The word `count` words after `first`.
pub fn word_at(first: u64, count: usize) -> u64 {
    first.wrapping_add(STEP.wrapping_mul(count as u64))
}

/// The data of a token.
pub fn of_token(token: u64, len: usize) -> Bytes {
    let mut data = Vec::new();
    extend(&mut data, token, len);
    data.into()
}

/// The first word of `data` if all of it is one run of whole words.
pub fn first_word(data: &[u8]) -> Option<u64> {
    let (words, rest) = data.as_chunks::<WORD>();
    let first = u64::from_le_bytes(*words.first()?);
    let differs =
        |pair: &[[u8; WORD]]| u64::from_le_bytes(pair[1]).wrapping_sub(u64::from_le_bytes(pair[0])) != STEP;
    (rest.is_empty() && !words.windows(2).any(differs)).then_some(first)
}

/// The token of data that contains its run from the first word on; 0 for zeros.
pub fn token_of(data: &[u8]) -> Option<u64> {
    if is_zero(data) { Some(0) } else { first_word(data) }
}

/// Whether all bytes are zero.
pub fn is_zero(data: &[u8]) -> bool {
    let (words, rest) = data.as_chunks::<WORD>();
    words.iter().all(|word| u64::from_le_bytes(*word) == 0) && rest.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_tells_its_token_and_parts_their_place() {
        let data = of_token(7, 80);
        assert_eq!((data.len(), token_of(&data)), (80, Some(7)));
        assert_eq!(of_token(7, 8)[..], 7_u64.to_le_bytes());
        let part = first_word(&data[16..64]).unwrap();
        let mut again = Vec::new();
        extend(&mut again, part, 48);
        assert_eq!(again, data[16..64]);
        let moved = [&data[8..16], &data[..8]].concat();
        assert_eq!(token_of(&moved), None);
        assert_eq!(token_of(&[0; 80]), Some(0));
        assert_eq!(first_word(&data[..12]), None);
    }
}
