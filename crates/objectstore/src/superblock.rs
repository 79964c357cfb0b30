//! The store's own values of a MemStore or FileStore, in the file `super.log`. Each change is durable immediately and
//! survives a crash.
//!
//! The values are few and rarely set, so each change replaces the file (docs/format/memstore.md). The file is therefore never
//! torn: a checksum mismatch is damage and never an unacknowledged change.
//!
//! Earlier releases appended a record for each change. Such a file is read once, at mount, and replaced.

use crate::error::{Result, StoreError};
use crate::files::{read_if_present, write_atomically};
use bytes::Bytes;
use nacre_types::crc32c::crc32c;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// First bytes of the file. The files of earlier releases start with the length of the first record instead.
const MAGIC: &[u8; 16] = b"nacre superblk 2";

type Values = BTreeMap<String, Bytes>;

/// The values and their file.
pub struct SuperblockFile {
    path: PathBuf,
    values: Values,
    /// The error of an earlier change. The values on disk are then unknown, so further changes are refused.
    failed: Option<StoreError>,
}

impl SuperblockFile {
    /// Reads the values of the store in `directory`, and creates the file if it does not exist. Fails with
    /// [`StoreError::Corrupt`] if any part of the file is damaged.
    pub fn open(directory: &Path) -> Result<SuperblockFile> {
        let path = directory.join("super.log");
        let corrupt = |detail| StoreError::corrupt(path.display().to_string(), detail);
        let (values, is_current) = match read_if_present(&path)? {
            None => (Values::new(), false),
            Some(file) => match file.strip_prefix(MAGIC) {
                Some(record) => (decode(record).ok_or_else(|| corrupt("damaged"))?, true),
                None => (journal::replay(&file).map_err(corrupt)?, false),
            },
        };
        if !is_current {
            write_atomically(&path, &[&encode(&values)])?;
        }
        Ok(SuperblockFile { path, values, failed: None })
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<Bytes> {
        self.values.get(key).cloned()
    }

    /// The values whose keys begin with `prefix`, in key order.
    pub fn list(&self, prefix: &str) -> Vec<(String, Bytes)> {
        let from = self.values.range(prefix.to_owned()..);
        from.take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }

    /// Sets or removes values, all or none. Durable on return. After an error every change is refused until the next mount.
    pub fn set(&mut self, values: &[(&str, Option<Bytes>)]) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let mut changed = self.values.clone();
        for (key, value) in values {
            match value {
                Some(value) => _ = changed.insert((*key).to_owned(), Bytes::copy_from_slice(value)),
                None => _ = changed.remove(*key),
            }
        }
        if let Err(error) = write_atomically(&self.path, &[&encode(&changed)]) {
            self.failed = Some(error.clone());
            return Err(error);
        }
        self.values = changed;
        Ok(())
    }
}

fn encode(values: &Values) -> Vec<u8> {
    // One journal record that sets all values. A release that only knows journals takes the magic for a damaged record, finds
    // this whole record behind it, and refuses the store instead of dropping its values.
    let record = journal::encode(values.iter().map(|(key, value)| (key.as_str(), Some(value))));
    [&MAGIC[..], &record].concat()
}

/// Decodes the values behind the magic. `None` if they are damaged.
fn decode(record: &[u8]) -> Option<Values> {
    let (changes, []) = journal::decode_record(record)? else { return None };
    changes.into_iter().map(|(key, value)| Some((key, value?))).collect()
}

/// The record format, and the journal files of earlier releases that consist of such records.
///
/// A record is `length u32 | crc32c u32 | postcard of [(key, Option value)]`. Earlier releases replaced the file at each mount by
/// one with a single record and appended records to it, so only records after the first can be torn.
mod journal {
    use super::{Bytes, Values, crc32c};

    pub(super) type Changes = Vec<(String, Option<Bytes>)>;

    pub(super) fn encode<'a>(values: impl Iterator<Item = (&'a str, Option<&'a Bytes>)>) -> Vec<u8> {
        let body = postcard::to_extend(&values.collect::<Vec<_>>(), Vec::new())
            .expect("invariant: strings and bytes always encode");
        let mut record = Vec::with_capacity(body.len() + 8);
        record.extend_from_slice(&(body.len() as u32).to_le_bytes());
        record.extend_from_slice(&crc32c(&body).to_le_bytes());
        record.extend_from_slice(&body);
        record
    }

    /// Decodes the record at the start of `journal` if it is whole. Returns its changes and the bytes after it.
    pub(super) fn decode_record(journal: &[u8]) -> Option<(Changes, &[u8])> {
        let (header, rest) = journal.split_at_checked(8)?;
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let crc = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
        // No record is empty.
        let (body, after) = rest.split_at_checked(length).filter(|_| length > 0)?;
        if crc32c(body) != crc {
            return None;
        }
        Some((postcard::from_bytes(body).ok()?, after))
    }

    /// The values that a whole journal sets. A torn last record was never acknowledged and is dropped. The error text says what
    /// is damaged.
    pub(super) fn replay(journal: &[u8]) -> Result<Values, &'static str> {
        let mut values = Values::new();
        let (mut changes, mut rest) = decode_record(journal).ok_or("the first record is damaged")?;
        loop {
            for (key, value) in changes {
                match value {
                    Some(value) => _ = values.insert(key, value),
                    None => _ = values.remove(&key),
                }
            }
            let Some((more, after)) = decode_record(rest) else { break };
            (changes, rest) = (more, after);
        }
        // A file system may record a new size before the data and may write blocks in any order, so a torn append can contain
        // zeros, even in its length. A damaged record before a whole one is not a torn append, because each record is durable
        // before the next is written.
        if (1..rest.len()).any(|at| decode_record(&rest[at..]).is_some()) {
            return Err("a record before the last one is damaged");
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_fuzz::Target;

    /// Corrects the checksum of the record after the first `at` bytes.
    fn reseal(file: &mut [u8], at: usize) {
        let Some((_, record)) = file.split_at_mut_checked(at) else { return };
        if let Some((header, rest)) = record.split_at_mut_checked(8) {
            let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
            if let Some(body) = rest.get(..length) {
                header[4..].copy_from_slice(&crc32c(body).to_le_bytes());
            }
        }
    }

    #[test]
    fn damage_is_noticed_wherever_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("super.log");
        let mut superblock = SuperblockFile::open(directory.path()).unwrap();
        let values = [("whoami", "7"), ("map", "a longer value"), ("known", "")];
        for (key, value) in values {
            superblock.set(&[(key, Some(Bytes::from(value)))]).unwrap();
        }
        let all = superblock.list("");
        assert_eq!(all.len(), values.len());
        let file = std::fs::read(&path).unwrap();
        let is_refused = |file: &[u8]| {
            std::fs::write(&path, file).unwrap();
            matches!(SuperblockFile::open(directory.path()), Err(StoreError::Corrupt { .. }))
        };
        for at in 0..file.len() {
            for damage in [1, 0x80, 0xff, file[at]] {
                let mut damaged = file.clone();
                damaged[at] ^= damage;
                assert!(damage == 0 || is_refused(&damaged), "byte {at} changed by {damage:#x}");
            }
            assert!(is_refused(&file[..at]), "{at} bytes left");
            let mut zeroed = file.clone();
            zeroed[..=at].fill(0);
            assert!(is_refused(&zeroed), "zeros up to byte {at}");
        }
        assert!(is_refused(&[&file[..], &[0]].concat()));
        std::fs::write(&path, &file).unwrap();
        assert_eq!(SuperblockFile::open(directory.path()).unwrap().list(""), all);
    }

    #[test]
    fn an_error_leaves_the_values_and_ends_changes() {
        let directory = tempfile::tempdir().unwrap();
        let mut superblock = SuperblockFile::open(directory.path()).unwrap();
        superblock.set(&[("a", Some("1".into()))]).unwrap();
        // A directory at the path of the temporary file makes the replacement fail.
        let obstacle = directory.path().join("super.new");
        std::fs::create_dir(&obstacle).unwrap();
        superblock.set(&[("a", Some("2".into()))]).unwrap_err();
        std::fs::remove_dir(&obstacle).unwrap();
        superblock.set(&[("b", Some("3".into()))]).unwrap_err();
        let values = [("a".to_owned(), Bytes::from("1"))];
        assert_eq!(superblock.list(""), values);
        assert_eq!(SuperblockFile::open(directory.path()).unwrap().list(""), values);
    }

    #[test]
    fn journals_of_earlier_releases_are_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("super.log");
        let (one, two) = (Bytes::from("1"), Bytes::from("2"));
        let first = journal::encode([("a", Some(&one)), ("b", Some(&one))].into_iter());
        let second = journal::encode([("a", None), ("b", Some(&two))].into_iter());
        std::fs::write(&path, [&first[..], &second].concat()).unwrap();
        let values = [("b".to_owned(), two)];
        assert_eq!(SuperblockFile::open(directory.path()).unwrap().list(""), values);
        assert!(std::fs::read(&path).unwrap().starts_with(MAGIC));
        assert_eq!(SuperblockFile::open(directory.path()).unwrap().list(""), values);
        // An earlier release refuses the new file, because it finds a whole record that is not at the start.
        let file = std::fs::read(&path).unwrap();
        assert!(
            journal::decode_record(&file).is_none() && journal::decode_record(&file[MAGIC.len()..]).is_some()
        );
        // The first record can't be torn, because it was never appended.
        for at in 0..first.len() {
            let mut damaged = first.clone();
            damaged[at] ^= 1;
            std::fs::write(&path, damaged).unwrap();
            assert!(
                matches!(SuperblockFile::open(directory.path()), Err(StoreError::Corrupt { .. })),
                "byte {at}"
            );
        }
    }

    #[test]
    fn a_journals_append_that_ends_in_zeros_is_torn() {
        let kept = Bytes::from_static(b"kept");
        let whole = journal::encode([("a", Some(&kept))].into_iter());
        // Long enough for a length of two bytes, either of which can be missing.
        let late = Bytes::from(vec![7; 300]);
        let torn = journal::encode([("b", Some(&late))].into_iter());
        for written in 0..torn.len() {
            let mut file = [&whole[..], &torn[..written]].concat();
            file.resize(whole.len() + torn.len(), 0);
            let values = journal::replay(&file).unwrap();
            assert_eq!(values, Values::from([("a".to_owned(), kept.clone())]), "{written} bytes");
        }
        // Any part of the record can be missing, its header too.
        for first in 0..torn.len() {
            for missing in [4, 100, torn.len()] {
                let mut file = [&whole[..], &torn[..]].concat();
                let from = whole.len() + first;
                let to = (from + missing).min(file.len());
                let lost = file[from..to].iter().any(|byte| *byte != 0);
                file[from..to].fill(0);
                let values = journal::replay(&file).unwrap();
                assert_eq!(values.get("a"), Some(&kept));
                assert_eq!(values.get("b"), (!lost).then_some(&late), "{missing} bytes at {first}");
            }
        }
        // A damaged record that is followed by another one is not a torn append.
        let mut cut = [&whole[..], &torn[..]].concat();
        cut[..8].fill(0);
        assert!(journal::replay(&cut).is_err());
        let mut damaged = [&whole[..], &torn[..]].concat();
        damaged[10] ^= 1;
        assert!(journal::replay(&damaged).is_err());
    }

    fn corpus() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"))
    }

    #[test]
    fn fuzz_superblocks() {
        let values =
            |keys: &[&str]| keys.iter().map(|key| ((*key).to_owned(), Bytes::from("value"))).collect();
        let seeds = vec![encode(&values(&[])), encode(&values(&["a", "bc"]))];
        let repair = |file: &mut [u8]| reseal(file, MAGIC.len());
        let target = Target { repair, ..Target::new("superblock", corpus(), seeds) };
        target.run(|input| Some(encode(&decode(input.strip_prefix(MAGIC)?)?)));
    }

    #[test]
    fn fuzz_journals() {
        let value = Bytes::from_static(b"value");
        let record = || journal::encode([("a", Some(&value)), ("bc", None)].into_iter());
        let seeds = vec![record(), [record(), record()].concat()];
        let repair = |file: &mut [u8]| reseal(file, 0);
        let target = Target { repair, ..Target::new("memstore-journal", corpus(), seeds) };
        target.run(|input| {
            let values = journal::replay(input).ok()?;
            Some(journal::encode(values.iter().map(|(key, value)| (key.as_str(), Some(value)))))
        });
    }
}
