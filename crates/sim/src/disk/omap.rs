//! An object's omap in leaves that images share until they change, so that a million entries are cheap to clone and to compare.

use bytes::{Bytes, BytesMut};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// The most entries of a leaf.
const LEAF: usize = 512;
/// A leaf with at least this many entries keeps them in one buffer.
const PACKED: usize = 32;
/// Up to this many entries are inserted one by one.
const FEW: usize = 8;
/// The number of entries in debug output.
const SHOWN: usize = 40;

type Entry = (Bytes, Bytes);

/// See the module's documentation.
#[derive(Clone, Default)]
pub struct Omap {
    /// In the order of their keys; no leaf is empty.
    leaves: Vec<Arc<Leaf>>,
    len: usize,
}

#[derive(Clone, Default)]
struct Leaf {
    entries: Vec<Entry>,
    /// The sum of the entries' hashes.
    sum: u64,
    /// Bytes of keys and values.
    bytes: usize,
}

fn hash_of((key, value): &Entry) -> u64 {
    let mut hasher = DefaultHasher::new();
    (key, value).hash(&mut hasher);
    hasher.finish()
}

fn bytes_of((key, value): &Entry) -> usize {
    key.len() + value.len()
}

impl Leaf {
    fn new(entries: &[Entry]) -> Leaf {
        let sum = entries.iter().fold(0, |sum: u64, entry| sum.wrapping_add(hash_of(entry)));
        let bytes = entries.iter().map(bytes_of).sum();
        if entries.len() < PACKED {
            return Leaf { entries: entries.to_vec(), sum, bytes };
        }
        let mut buffer = BytesMut::with_capacity(bytes);
        for (key, value) in entries {
            buffer.extend_from_slice(key);
            buffer.extend_from_slice(value);
        }
        let mut buffer = buffer.freeze();
        let pack = |(key, value): &Entry| (buffer.split_to(key.len()), buffer.split_to(value.len()));
        Leaf { entries: entries.iter().map(pack).collect(), sum, bytes }
    }

    fn set(&mut self, entry: &Entry) -> bool {
        self.sum = self.sum.wrapping_add(hash_of(entry));
        self.bytes += bytes_of(entry);
        match self.entries.binary_search_by(|(key, _)| key.cmp(&entry.0)) {
            Ok(at) => {
                self.sum = self.sum.wrapping_sub(hash_of(&self.entries[at]));
                self.bytes -= bytes_of(&self.entries[at]);
                self.entries[at] = entry.clone();
                false
            }
            Err(at) => {
                self.entries.insert(at, entry.clone());
                true
            }
        }
    }
}

/// Merges two sorted lists; of equal keys the new entry is kept.
fn merge(old: &[Entry], new: &[Entry]) -> Vec<Entry> {
    let mut merged = Vec::with_capacity(old.len() + new.len());
    let mut old = old.iter().peekable();
    for entry in new {
        merged.extend(std::iter::from_fn(|| old.next_if(|(key, _)| *key < entry.0)).cloned());
        old.next_if(|(key, _)| *key == entry.0);
        merged.push(entry.clone());
    }
    merged.extend(old.cloned());
    merged
}

impl Omap {
    /// The number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes of keys and values.
    pub fn bytes(&self) -> usize {
        self.leaves.iter().map(|leaf| leaf.bytes).sum()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A key's value.
    pub fn get(&self, key: &[u8]) -> Option<&Bytes> {
        let leaf = self.leaves.get(self.leaf_of(key))?;
        let at = leaf.entries.binary_search_by(|(other, _)| other[..].cmp(key)).ok()?;
        Some(&leaf.entries[at].1)
    }

    /// Entries in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Bytes, &Bytes)> {
        self.from((0, 0))
    }

    /// Keys in order.
    pub fn keys(&self) -> impl Iterator<Item = &Bytes> {
        self.iter().map(|(key, _)| key)
    }

    /// Entries whose keys are `key` or higher, in order.
    pub fn at_or_above(&self, key: &[u8]) -> impl Iterator<Item = (&Bytes, &Bytes)> {
        self.from(self.position(key))
    }

    /// Sets entries; of several with one key the last is kept.
    pub fn set(&mut self, entries: &[Entry]) {
        if entries.len() <= FEW {
            return entries.iter().for_each(|entry| self.set_one(entry));
        }
        let mut sorted = entries.to_vec();
        sorted.sort_by(|a, b| a.0.cmp(&b.0));
        // Of equal keys the last one is kept: it is first in the reversed order.
        sorted.reverse();
        sorted.dedup_by(|later, first| later.0 == first.0);
        sorted.reverse();
        let mut rest = &sorted[..];
        while let Some((key, _)) = rest.first() {
            let index = self.leaf_of(key);
            let bound = self.leaves.get(index + 1).map(|leaf| leaf.entries[0].0.clone());
            let count = rest.partition_point(|(key, _)| bound.as_ref().is_none_or(|bound| key < bound));
            let old = self.leaves.get(index).map_or(&[][..], |leaf| &leaf.entries);
            let (known, merged) = (old.len(), merge(old, &rest[..count]));
            self.len += merged.len() - known;
            self.replace(index, &merged);
            rest = &rest[count..];
        }
    }

    /// Removes keys.
    pub fn remove(&mut self, keys: &[Bytes]) {
        for key in keys {
            let (index, at) = self.position(key);
            if self.leaves.get(index).is_some_and(|leaf| leaf.entries[at].0 == key) {
                self.cut(index, at, at + 1);
            }
        }
    }

    /// Removes the keys in `first..last`.
    pub fn remove_range(&mut self, first: &[u8], last: &[u8]) {
        loop {
            let (index, at) = self.position(first);
            let Some(leaf) = self.leaves.get(index) else { return };
            let end = leaf.entries.partition_point(|(key, _)| key[..] < *last);
            if end <= at {
                return;
            }
            self.cut(index, at, end);
        }
    }

    /// Removes all.
    pub fn clear(&mut self) {
        *self = Omap::default();
    }

    /// A digest of the contents, independent of the order of changes.
    pub fn digest(&self) -> u64 {
        self.leaves.iter().fold(self.len as u64, |sum, leaf| sum.wrapping_add(leaf.sum))
    }

    fn set_one(&mut self, entry: &Entry) {
        let index = self.leaf_of(&entry.0);
        if self.leaves.is_empty() {
            self.leaves.push(Arc::default());
        }
        let leaf = Arc::make_mut(&mut self.leaves[index]);
        self.len += usize::from(leaf.set(entry));
        if leaf.entries.len() > LEAF {
            let entries = std::mem::take(&mut leaf.entries);
            self.replace(index, &entries);
        }
    }

    /// Removes a leaf's entries `from..to`.
    fn cut(&mut self, index: usize, from: usize, to: usize) {
        let leaf = Arc::make_mut(&mut self.leaves[index]);
        for entry in leaf.entries.drain(from..to) {
            leaf.sum = leaf.sum.wrapping_sub(hash_of(&entry));
            leaf.bytes -= bytes_of(&entry);
        }
        self.len -= to - from;
        if leaf.entries.is_empty() {
            self.leaves.remove(index);
        }
    }

    /// Replaces a leaf, if it exists, with as many leaves as these entries need.
    fn replace(&mut self, index: usize, entries: &[Entry]) {
        let count = entries.len().div_ceil(LEAF).max(1);
        let leaves =
            entries.chunks(entries.len().div_ceil(count).max(1)).map(|part| Arc::new(Leaf::new(part)));
        self.leaves.splice(index..self.leaves.len().min(index + 1), leaves);
    }

    /// The leaf that contains a key or would contain it.
    fn leaf_of(&self, key: &[u8]) -> usize {
        self.leaves.partition_point(|leaf| leaf.entries[0].0[..] <= *key).saturating_sub(1)
    }

    /// The position of the first entry whose key is `key` or higher: its leaf and its index there.
    fn position(&self, key: &[u8]) -> (usize, usize) {
        let index = self.leaf_of(key);
        let Some(leaf) = self.leaves.get(index) else { return (index, 0) };
        match leaf.entries.partition_point(|(other, _)| other[..] < *key) {
            at if at == leaf.entries.len() => (index + 1, 0),
            at => (index, at),
        }
    }

    fn from(&self, (index, at): (usize, usize)) -> impl Iterator<Item = (&Bytes, &Bytes)> {
        let leaves = self.leaves.get(index..).unwrap_or_default();
        let first = move |number: usize| if number == 0 { at } else { 0 };
        let parts = leaves.iter().enumerate().map(move |(number, leaf)| &leaf.entries[first(number)..]);
        parts.flatten().map(|(key, value)| (key, value))
    }
}

impl PartialEq for Omap {
    fn eq(&self, other: &Omap) -> bool {
        self.len == other.len && self.digest() == other.digest() && self.iter().eq(other.iter())
    }
}

impl Eq for Omap {}

impl fmt::Debug for Omap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.len <= SHOWN {
            return f.debug_map().entries(self.iter()).finish();
        }
        write!(f, "{} entries with a sum of {:x}", self.len, self.digest())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Random, Stream};
    use std::collections::BTreeMap;

    fn key(number: u64) -> Bytes {
        format!("{number:05}").into()
    }

    #[test]
    fn an_omap_in_leaves_is_what_a_map_is() {
        let mut random = Random::new(4, Stream::Disk);
        let (mut omap, mut plain) = (Omap::default(), BTreeMap::new());
        for round in 0..300_u64 {
            let first = random.range(0, 6_000);
            match random.range(0, 6) {
                0 => {
                    let keys: Vec<Bytes> = (0..20).map(|_| key(random.range(0, 6_000))).collect();
                    omap.remove(&keys);
                    plain.retain(|key, _| !keys.contains(key));
                }
                1 => {
                    let last = first + random.range(0, 900);
                    omap.remove_range(&key(first), &key(last));
                    plain.retain(|other, _| *other < key(first) || *other >= key(last));
                }
                n => {
                    let count = if n == 2 { random.range(1, 6) } else { random.range(1, 2_000) };
                    let mut entries: Vec<Entry> =
                        (first..first + count).map(|n| (key(n), key(round))).collect();
                    entries.push((key(first), key(7)));
                    omap.set(&entries);
                    plain.extend(entries);
                }
            }
            assert!(omap.iter().eq(plain.iter()), "round {round}");
            assert_eq!(omap.len(), plain.len());
            assert_eq!(omap.bytes(), plain.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>());
            assert_eq!(omap.get(&key(first)), plain.get(&key(first)));
            assert!(omap.at_or_above(&key(first)).eq(plain.range(key(first)..)), "round {round}");
            let mut again = Omap::default();
            plain.iter().for_each(|(key, value)| again.set(&[(key.clone(), value.clone())]));
            assert!(again == omap && again.digest() == omap.digest(), "round {round}");
        }
    }

    #[test]
    fn clones_share_what_does_not_change() {
        let mut omap = Omap::default();
        let entries: Vec<Entry> = (0..50_000).map(|n| (key(n), key(n))).collect();
        omap.set(&entries);
        let other = omap.clone();
        omap.set(&[(key(17), key(3))]);
        let shared = omap.leaves.iter().zip(&other.leaves).filter(|(a, b)| Arc::ptr_eq(a, b)).count();
        assert_eq!(shared, omap.leaves.len() - 1);
        assert_ne!(omap, other);
    }
}
