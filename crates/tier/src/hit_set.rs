//! Hit sets: the objects of a PG that were accessed during a period.
//!
//! A [`HitSet`] records objects until it is sealed. A [`SealedHitSet`] is immutable, can be encoded, and reports whether it contains an
//! object. [`history::HitSetHistory`] holds a PG's sets and determines when to seal, archive and trim them.
//!
//! There are Ceph's three kinds (`hit_set_type`):
//! - `explicit_hash` holds placement hashes. Objects with the same hash are not distinguished.
//! - `explicit_object` holds names.
//! - `bloom` holds a Bloom filter of placement hashes, sized for an expected number of objects and a false positive probability; sealing
//!   folds it to the size that its contents need.
//!
//! A set is full when it has recorded as many *different* objects as it was sized for. Two differences from Ceph: there, explicit sets grow
//! without limit, and a Bloom filter counts every access, so that one busy object fills it.
//!
//! # Encoding
//!
//! A sealed set is an envelope (docs/format/encoding.md) named `HitSet`, version 1, with the postcard body:
//!
//! | field | type | meaning |
//! |---|---|---|
//! | unique | varint u64 | different objects that were recorded |
//! | kind | varint u32 | 0 explicit_hash, 1 explicit_object, 2 bloom |
//! | 0: hashes | sequence of varint u32 | ascending; each as the difference from the one before |
//! | 1: objects | sequence of object ids | ascending |
//! | 2: seed | varint u64 | of the filter's hash function |
//! | 2: hashes | u8 | number of hash functions, 1 to 32 |
//! | 2: unfolded_bytes | varint u32 | the table's size before it was folded |
//! | 2: table | bytes | the filter's bits, the lowest of the first byte first |

mod bloom;
pub mod history;

use bloom::{Bloom, MAX_HASHES};
use bytes::Bytes;
use nacre_types::ObjectId;
use nacre_types::encoding::{self, DecodeError, Versioned};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Bytes of names per object of an explicit_object set's limit: longer names fill it earlier.
const NAME_BYTES_PER_OBJECT: u64 = 128;

/// A set that records objects.
#[derive(Clone, Debug)]
pub struct HitSet {
    limit: u32,
    unique: u64,
    contents: Contents,
}

#[derive(Clone, Debug)]
enum Contents {
    ExplicitHash(BTreeSet<u32>),
    ExplicitObject { objects: BTreeSet<ObjectId>, name_bytes: u64 },
    Bloom(Bloom),
}

impl HitSet {
    /// Creates a set of up to `limit` placement hashes.
    pub fn explicit_hash(limit: u32) -> HitSet {
        HitSet { limit, unique: 0, contents: Contents::ExplicitHash(BTreeSet::new()) }
    }

    /// Creates a set of up to `limit` names.
    pub fn explicit_object(limit: u32) -> HitSet {
        let contents = Contents::ExplicitObject { objects: BTreeSet::new(), name_bytes: 0 };
        HitSet { limit, unique: 0, contents }
    }

    /// Creates a Bloom filter sized for `target` objects, with a false positive probability of `fpp` at that number.
    pub fn bloom(target: u32, fpp: f64, seed: u64) -> HitSet {
        HitSet { limit: target, unique: 0, contents: Contents::Bloom(Bloom::new(target, fpp, seed)) }
    }

    /// Records an access. A full explicit set records no more objects; a full Bloom filter does, and its false positive probability rises.
    pub fn insert(&mut self, object: &ObjectId) {
        let full = self.is_full();
        let new = match &mut self.contents {
            Contents::ExplicitHash(hashes) => !full && hashes.insert(object.hash()),
            Contents::ExplicitObject { objects, name_bytes } => {
                let new = !full && objects.insert(object.clone());
                *name_bytes += if new { name_len(object) } else { 0 };
                new
            }
            Contents::Bloom(bloom) => bloom.insert(object.hash()),
        };
        self.unique += u64::from(new);
    }

    /// Whether the object was recorded. A Bloom filter has false positives.
    pub fn contains(&self, object: &ObjectId) -> bool {
        match &self.contents {
            Contents::ExplicitHash(hashes) => hashes.contains(&object.hash()),
            Contents::ExplicitObject { objects, .. } => objects.contains(object),
            Contents::Bloom(bloom) => bloom.contains(object.hash()),
        }
    }

    /// Whether the set has as many different objects as it was sized for.
    pub fn is_full(&self) -> bool {
        let full = self.unique >= u64::from(self.limit);
        match self.contents {
            Contents::ExplicitObject { name_bytes, .. } => {
                full || name_bytes >= u64::from(self.limit) * NAME_BYTES_PER_OBJECT
            }
            _ => full,
        }
    }

    /// Number of different objects that were recorded. A Bloom filter counts those that changed it, which are slightly fewer.
    pub fn unique(&self) -> u64 {
        self.unique
    }

    /// Ends the recording.
    pub fn seal(self) -> SealedHitSet {
        let contents = match self.contents {
            Contents::ExplicitHash(hashes) => SealedContents::ExplicitHash(hashes.into_iter().collect()),
            Contents::ExplicitObject { objects, .. } => {
                SealedContents::ExplicitObject(objects.into_iter().collect())
            }
            Contents::Bloom(mut bloom) => {
                bloom.fold();
                SealedContents::Bloom(bloom)
            }
        };
        SealedHitSet { unique: self.unique, contents }
    }
}

fn name_len(object: &ObjectId) -> u64 {
    (object.namespace().len() + object.locator().len() + object.name().len()) as u64
}

/// An immutable set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedHitSet {
    unique: u64,
    contents: SealedContents,
}

/// Vectors are in strictly ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SealedContents {
    ExplicitHash(Vec<u32>),
    ExplicitObject(Vec<ObjectId>),
    Bloom(Bloom),
}

impl SealedHitSet {
    /// Whether the object was recorded. A Bloom filter has false positives.
    pub fn contains(&self, object: &ObjectId) -> bool {
        match &self.contents {
            SealedContents::ExplicitHash(hashes) => hashes.binary_search(&object.hash()).is_ok(),
            SealedContents::ExplicitObject(objects) => objects.binary_search(object).is_ok(),
            SealedContents::Bloom(bloom) => bloom.contains(object.hash()),
        }
    }

    /// Number of different objects that were recorded.
    pub fn unique(&self) -> u64 {
        self.unique
    }

    /// `hit_set_type` of the set.
    pub fn type_name(&self) -> &'static str {
        match self.contents {
            SealedContents::ExplicitHash(_) => "explicit_hash",
            SealedContents::ExplicitObject(_) => "explicit_object",
            SealedContents::Bloom(_) => "bloom",
        }
    }

    /// Encodes the set for its archive object.
    pub fn encode(&self) -> Vec<u8> {
        encoding::encode(&Stored::from(self))
    }

    /// Decodes an archive object.
    ///
    /// # Errors
    /// If the bytes are not a hit set, or one of a newer release.
    pub fn decode(bytes: &[u8]) -> Result<SealedHitSet, DecodeError> {
        encoding::decode::<Stored>(bytes)?
            .try_into()
            .map_err(|detail: &str| DecodeError::Corrupt { what: Stored::NAME, detail: detail.to_owned() })
    }
}

/// The encoded form of a [`SealedHitSet`]: see the module's table.
#[derive(Serialize, Deserialize)]
struct Stored {
    unique: u64,
    contents: StoredContents,
}

#[derive(Serialize, Deserialize)]
enum StoredContents {
    ExplicitHash { differences: Vec<u32> },
    ExplicitObject { objects: Vec<ObjectId> },
    Bloom { seed: u64, hashes: u8, unfolded_bytes: u32, table: Bytes },
}

impl Versioned for Stored {
    const NAME: &'static str = "HitSet";
}

impl From<&SealedHitSet> for Stored {
    fn from(set: &SealedHitSet) -> Stored {
        let contents = match &set.contents {
            SealedContents::ExplicitHash(hashes) => {
                let before = std::iter::once(0).chain(hashes.iter().copied());
                let differences = hashes.iter().zip(before).map(|(hash, before)| hash - before).collect();
                StoredContents::ExplicitHash { differences }
            }
            SealedContents::ExplicitObject(objects) => {
                StoredContents::ExplicitObject { objects: objects.clone() }
            }
            SealedContents::Bloom(bloom) => StoredContents::Bloom {
                seed: bloom.seed,
                hashes: bloom.hashes,
                unfolded_bytes: bloom.unfolded_bytes,
                table: bloom.table.clone().into(),
            },
        };
        Stored { unique: set.unique, contents }
    }
}

impl TryFrom<Stored> for SealedHitSet {
    type Error = &'static str;

    fn try_from(stored: Stored) -> Result<SealedHitSet, &'static str> {
        let contents = match stored.contents {
            StoredContents::ExplicitHash { differences } => {
                SealedContents::ExplicitHash(ascending(&differences).ok_or("hashes do not ascend")?)
            }
            StoredContents::ExplicitObject { objects } => {
                if !objects.is_sorted_by(|a, b| a < b) {
                    return Err("objects do not ascend");
                }
                SealedContents::ExplicitObject(objects)
            }
            StoredContents::Bloom { seed, hashes, unfolded_bytes, table } => {
                if !(1..=MAX_HASHES).contains(&hashes) {
                    return Err("number of hash functions out of range");
                }
                if table.is_empty() || table.len() > unfolded_bytes as usize {
                    return Err("size of the filter's table out of range");
                }
                SealedContents::Bloom(Bloom { seed, hashes, unfolded_bytes, table: table.into() })
            }
        };
        Ok(SealedHitSet { unique: stored.unique, contents })
    }
}

/// Returns the numbers with these differences, the first from 0. Only the first difference may be 0.
fn ascending(differences: &[u32]) -> Option<Vec<u32>> {
    let mut numbers: Vec<u32> = Vec::with_capacity(differences.len());
    for &difference in differences {
        let number = match numbers.last() {
            None => difference,
            Some(_) if difference == 0 => return None,
            Some(last) => last.checked_add(difference)?,
        };
        numbers.push(number);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::PoolId;
    use proptest::prelude::*;

    fn object(n: u32) -> ObjectId {
        ObjectId::new(PoolId(1), "", "", &format!("object-{n}"))
    }

    fn empty_sets() -> [HitSet; 3] {
        [HitSet::explicit_hash(1000), HitSet::explicit_object(1000), HitSet::bloom(1000, 0.001, 3)]
    }

    proptest! {
        #[test]
        fn every_recorded_object_is_found_before_and_after_encoding(
            names in proptest::collection::vec(0..10_000_u32, 0..300)
        ) {
            for mut set in empty_sets() {
                for &n in &names {
                    set.insert(&object(n));
                }
                prop_assert!(names.iter().all(|&n| set.contains(&object(n))));
                let sealed = set.seal();
                let read = SealedHitSet::decode(&sealed.encode()).unwrap();
                prop_assert_eq!(&read, &sealed);
                prop_assert!(names.iter().all(|&n| read.contains(&object(n))));
                let others = (20_000..21_000).filter(|&n| read.contains(&object(n))).count();
                prop_assert!(others <= 30, "{} false positives of 1000", others);
            }
        }
    }

    #[test]
    fn repeated_accesses_count_once() {
        for mut set in empty_sets() {
            for _ in 0..5000 {
                set.insert(&object(1));
            }
            assert_eq!((set.unique(), set.is_full()), (1, false));
        }
    }

    #[test]
    fn full_explicit_sets_do_not_grow() {
        for mut set in empty_sets() {
            for n in 0..5000 {
                set.insert(&object(n));
            }
            assert!(set.is_full());
            let kept = (0..5000).filter(|&n| set.contains(&object(n))).count();
            match set.contents {
                Contents::Bloom(ref bloom) => assert!(kept == 5000 && bloom.table.len() < 2000),
                _ => assert_eq!((kept, set.unique()), (1000, 1000)),
            }
        }
    }

    #[test]
    fn long_names_fill_a_set_early() {
        let mut set = HitSet::explicit_object(100);
        for n in 0..100 {
            set.insert(&ObjectId::new(PoolId(1), "", "", &format!("{n:02000}")));
        }
        assert!(set.is_full());
        assert_eq!(set.unique(), 7);
    }

    #[test]
    fn sealed_filters_have_the_size_of_what_they_hold() {
        let mut set = HitSet::bloom(100_000, 0.0125, 1);
        for n in 0..1000 {
            set.insert(&object(n));
        }
        let bytes = set.seal().encode().len();
        assert!((500..3000).contains(&bytes), "{bytes} bytes for 1000 objects");
    }

    #[test]
    fn corrupt_sets_are_refused() {
        let refused = |contents| {
            let bytes = encoding::encode(&Stored { unique: 1, contents });
            SealedHitSet::decode(&bytes).unwrap_err().to_string()
        };
        let hashes = |differences| refused(StoredContents::ExplicitHash { differences });
        assert!(hashes(vec![1, 0]).contains("do not ascend"));
        assert!(hashes(vec![u32::MAX, 1]).contains("do not ascend"));
        let objects = StoredContents::ExplicitObject { objects: vec![object(1), object(1)] };
        assert!(refused(objects).contains("HitSet: corrupt encoding (objects do not ascend)"));
        let bloom = |hashes, unfolded_bytes, table: &'static [u8]| {
            refused(StoredContents::Bloom { seed: 0, hashes, unfolded_bytes, table: table.into() })
        };
        assert!(bloom(0, 2, b"ab").contains("hash functions"));
        assert!(bloom(33, 2, b"ab").contains("hash functions"));
        assert!(bloom(1, 1, b"ab").contains("table"));
        assert!(bloom(1, 1, b"").contains("table"));
        let bytes = HitSet::bloom(10, 0.1, 0).seal().encode();
        for cut in 0..bytes.len() {
            assert!(SealedHitSet::decode(&bytes[..cut]).is_err(), "cut at {cut}");
        }
    }
}
