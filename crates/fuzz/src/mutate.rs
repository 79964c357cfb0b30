//! Damages inputs before they are tried.

/// Boundary values of lengths, counts and offsets.
const NUMBERS: [u64; 14] = [
    0,
    1,
    2,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    0x1_0000_0000,
    0x7fff_ffff_ffff_ffff,
    0xffff_ffff_ffff_ffff,
];

/// FNV-1a.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// A source of damage that is derived from a name.
pub(crate) struct Mutator {
    state: u64,
}

impl Mutator {
    pub(crate) fn new(name: &str) -> Mutator {
        Mutator { state: hash(name.as_bytes()) }
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `end`, or 0 if `end` is 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { (self.next() % end as u64) as usize }
    }

    /// Damages `input` in one to four places.
    pub(crate) fn mutate(&mut self, input: &mut Vec<u8>, other: &[u8], words: &[&str]) {
        for _ in 0..=self.below(4) {
            self.mutate_once(input, other, words);
        }
    }

    fn mutate_once(&mut self, input: &mut Vec<u8>, other: &[u8], words: &[&str]) {
        let at = self.below(input.len() + 1);
        let kinds = if words.is_empty() { 9 } else { 12 };
        match self.below(kinds) {
            // Flip a bit.
            0 => {
                let bit = self.below(8);
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= 1 << bit;
                }
            }
            // Replace a byte.
            1 => {
                let value = self.next() as u8;
                if let Some(byte) = input.get_mut(at) {
                    *byte = value;
                }
            }
            // Truncate.
            2 => input.truncate(at),
            // Remove a piece.
            3 => {
                let end = (at + 1 + self.below(16)).min(input.len());
                input.drain(at.min(end)..end);
            }
            // Repeat a piece.
            4 => {
                let end = (at + 1 + self.below(64)).min(input.len());
                let piece = input[at.min(end)..end].to_vec();
                input.splice(at..at, piece);
            }
            // Continue with the rest of the other input.
            5 => {
                let from = self.below(other.len() + 1);
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            // Write a number of fixed length.
            6 => {
                let number = self.number(input.len());
                let width = [1, 2, 4, 8][self.below(4)];
                let bytes = if self.below(4) == 0 {
                    number.to_be_bytes()[8 - width..].to_vec()
                } else {
                    number.to_le_bytes()[..width].to_vec()
                };
                for (place, byte) in input.iter_mut().skip(at).zip(bytes) {
                    *place = byte;
                }
            }
            // Write a number of variable length in place of a byte.
            7 => {
                let mut number = self.number(input.len());
                let mut bytes = Vec::new();
                while number >= 0x80 {
                    bytes.push(number as u8 | 0x80);
                    number >>= 7;
                }
                bytes.push(number as u8);
                let end = (at + 1).min(input.len());
                input.splice(at.min(end)..end, bytes);
            }
            // Insert random bytes.
            8 => {
                let rubbish: Vec<u8> = (0..=self.below(16)).map(|_| self.next() as u8).collect();
                input.splice(at..at, rubbish);
            }
            // Insert a word. More frequent than the others if there are words.
            _ => {
                let word = words[self.below(words.len())];
                let end = if self.below(2) == 0 { at } else { (at + self.below(16)).min(input.len()) };
                input.splice(at..end, word.bytes());
            }
        }
    }

    fn number(&mut self, length: usize) -> u64 {
        match self.below(NUMBERS.len() + 3) {
            at if at < NUMBERS.len() => NUMBERS[at],
            at => (length + at - NUMBERS.len()) as u64,
        }
    }
}
