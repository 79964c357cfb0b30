//! The order of the changes of one key.
//!
//! Each committed change of a key has a [`Seq`], which its commit writes into the head. Within one *incarnation* of the
//! head (from the write that creates the RADOS object to the one that removes it), changes are numbered without gaps. A
//! later incarnation compares higher: its name consists of the index generation and of the shard's RADOS version after the
//! prepare of the change that creates it. docs/format/index.md explains why this value rises.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Digits of the text form: generation, shard version, number.
const DIGITS: [usize; 3] = [8, 16, 16];

/// An incarnation of a head's RADOS object: its life from creation to removal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HeadIncarnation {
    /// The generation of the bucket index in which the creating change was prepared.
    pub generation: u32,
    /// The shard's RADOS version after that prepare, never 0; 0 for heads that were created under format 1.
    pub version: u64,
}

/// A change's place in the order of its key's changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Seq {
    /// The incarnation of the head that the change belongs to.
    pub incarnation: HeadIncarnation,
    /// The number of the change in that incarnation, from 1.
    pub number: u64,
}

impl Seq {
    /// The sequence of an object of format 1, which is lower than all others.
    pub const LEGACY: Seq = Seq { incarnation: HeadIncarnation { generation: 0, version: 0 }, number: 0 };

    /// The first sequence of an incarnation, which belongs to the change that creates the head.
    pub fn first(incarnation: HeadIncarnation) -> Seq {
        debug_assert!(
            incarnation.version > 0,
            "an incarnation is named by the version of a shard that was written"
        );
        Seq { incarnation, number: 1 }
    }

    /// The next sequence of the same incarnation.
    #[must_use]
    pub fn successor(self) -> Seq {
        Seq { number: self.number + 1, ..self }
    }

    /// The previous sequence of the same incarnation; `None` for the first one.
    pub fn predecessor(self) -> Option<Seq> {
        let first = if self.incarnation == HeadIncarnation::default() { 0 } else { 1 };
        (self.number > first).then(|| Seq { number: self.number - 1, ..self })
    }

    /// Reads the text form.
    pub fn parse(text: &str) -> Option<Seq> {
        let upper = |b: u8| b.is_ascii_digit() || (b'A'..=b'F').contains(&b);
        if text.len() != DIGITS.iter().sum::<usize>() || !text.bytes().all(upper) {
            return None;
        }
        let (generation, rest) = text.split_at(DIGITS[0]);
        let (version, number) = rest.split_at(DIGITS[1]);
        let generation = u32::from_str_radix(generation, 16).ok()?;
        let version = u64::from_str_radix(version, 16).ok()?;
        let number = u64::from_str_radix(number, 16).ok()?;
        Some(Seq { incarnation: HeadIncarnation { generation, version }, number })
    }
}

/// The text form: 40 hexadecimal digits that sort as the sequence does; an event's `sequencer`.
impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HeadIncarnation { generation, version } = self.incarnation;
        write!(f, "{generation:08X}{version:016X}{:016X}", self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seq(generation: u32, version: u64, number: u64) -> Seq {
        Seq { incarnation: HeadIncarnation { generation, version }, number }
    }

    #[test]
    fn text_sorts_as_the_sequence() {
        let all = [
            Seq::LEGACY,
            Seq::LEGACY.successor(),
            seq(0, 1, 1),
            seq(0, 9, 1),
            seq(0, 10, 1),
            seq(0, 10, 0x1F),
            seq(0, 10, u64::MAX),
            seq(0, u64::MAX, 1),
            seq(1, 1, 1),
            seq(u32::MAX, 1, 1),
        ];
        for pair in all.windows(2) {
            assert!(pair[0] < pair[1]);
            assert!(pair[0].to_string() < pair[1].to_string(), "{} {}", pair[0], pair[1]);
        }
        for one in all {
            assert_eq!(Seq::parse(&one.to_string()), Some(one));
        }
        for wrong in ["", "0", &"g".repeat(40), &"a".repeat(40), &"0".repeat(41)] {
            assert_eq!(Seq::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn only_the_first_of_an_incarnation_has_no_predecessor() {
        let first = Seq::first(HeadIncarnation { generation: 2, version: 7 });
        assert_eq!(first.predecessor(), None);
        assert_eq!(first.successor().predecessor(), Some(first));
        // The first change of an object of format 1 follows the existing object.
        assert_eq!(Seq::LEGACY.successor().predecessor(), Some(Seq::LEGACY));
        assert_eq!(Seq::LEGACY.predecessor(), None);
    }
}
