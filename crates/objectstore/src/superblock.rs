//! The own small values of a MemStore or FileStore, in the file `super.log`, durable at once so that they survive a crash.
//!
//! They are few and rarely set: each change replaces the file (docs/format/memstore.md). So no part of it is ever torn, and
//! what does not fit its checksum is damage, never a change that was not acknowledged.
//!
//! Earlier releases appended a record for each change. Such a file is read once and replaced at mount.

use crate::error::{Result, StoreError};
use crate::files::{read_if_present, write_atomically};
use bytes::Bytes;
use nacre_types::crc32c::crc32c;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// First bytes of the file. One with appended records begins with the length of the first.
const MAGIC: &[u8; 16] = b"nacre superblk 2";

type Values = BTreeMap<String, Bytes>;

/// The values and their file.
pub struct SuperblockLog {
    path: PathBuf,
    values: Values,
    /// An earlier change failed: which values are on disk is unknown, so nothing more is taken.
    failed: Option<StoreError>,
}

impl SuperblockLog {
    /// Reads the values of the store in `directory`; makes the file where there is none. Fails with
    /// [`StoreError::Corrupt`] where any of it is damaged.
    pub fn open(directory: &Path) -> Result<SuperblockLog> {
        let path = directory.join("super.log");
        let corrupt = |detail| StoreError::corrupt(path.display().to_string(), detail);
        let (values, is_current) = match read_if_present(&path)? {
            None => (Values::new(), false),
            Some(file) => match file.strip_prefix(MAGIC) {
                Some(record) => (decode(record).ok_or_else(|| corrupt("damaged"))?, true),
                None => (journal::read(&file).map_err(corrupt)?, false),
            },
        };
        if !is_current {
            write_atomically(&path, &[&encode(&values)])?;
        }
        Ok(SuperblockLog { path, values, failed: None })
    }

    /// A value.
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

    /// Sets or removes values, all or none; durable on return. After an error nothing more can be set before the next mount.
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
    // As one record of a journal that sets them all: a release that knows journals only finds it behind what it takes for a
    // damaged one, and refuses the store instead of dropping its values.
    let record = journal::encode(values.iter().map(|(key, value)| (key.as_str(), Some(value))));
    [&MAGIC[..], &record].concat()
}

/// The values of what follows the magic; `None` where it is damaged.
fn decode(record: &[u8]) -> Option<Values> {
    let (changes, []) = journal::whole_record(record)? else { return None };
    changes.into_iter().map(|(key, value)| Some((key, value?))).collect()
}

/// Records, and the files of earlier releases that were made of them.
///
/// A record is `length u32 | crc32c u32 | postcard of [(key, Option value)]`. At each mount such a file was replaced by one
/// of a single record, and records were appended to that; so a torn append may be what follows the first record.
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

    /// A whole record at the begin of `journal`, and what follows it.
    pub(super) fn whole_record(journal: &[u8]) -> Option<(Changes, &[u8])> {
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

    /// The values that a whole journal makes; a torn last record was never acknowledged and is dropped. The text says what
    /// is damaged.
    pub(super) fn read(journal: &[u8]) -> Result<Values, &'static str> {
        let mut values = Values::new();
        let (mut changes, mut rest) = whole_record(journal).ok_or("the first record is damaged")?;
        loop {
            for (key, value) in changes {
                match value {
                    Some(value) => _ = values.insert(key, value),
                    None => _ = values.remove(&key),
                }
            }
            let Some((more, after)) = whole_record(rest) else { break };
            (changes, rest) = (more, after);
        }
        // A file system may record a new size before the data, and write blocks in any order: zeros stand for what a torn
        // append did not write, in its length too. Followed by a further record it can't be one, since each is durable before
        // the next begins.
        if (1..rest.len()).any(|at| whole_record(&rest[at..]).is_some()) {
            return Err("a record before the last one is damaged");
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_fuzz::Target;

    /// Makes the checksum of the record behind the first `at` bytes right.
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
        let mut superblock = SuperblockLog::open(directory.path()).unwrap();
        let values = [("whoami", "7"), ("map", "a longer value"), ("known", "")];
        for (key, value) in values {
            superblock.set(&[(key, Some(Bytes::from(value)))]).unwrap();
        }
        let all = superblock.list("");
        assert_eq!(all.len(), values.len());
        let file = std::fs::read(&path).unwrap();
        let is_refused = |file: &[u8]| {
            std::fs::write(&path, file).unwrap();
            matches!(SuperblockLog::open(directory.path()), Err(StoreError::Corrupt { .. }))
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
        assert_eq!(SuperblockLog::open(directory.path()).unwrap().list(""), all);
    }

    #[test]
    fn an_error_leaves_the_values_and_ends_changes() {
        let directory = tempfile::tempdir().unwrap();
        let mut superblock = SuperblockLog::open(directory.path()).unwrap();
        superblock.set(&[("a", Some("1".into()))]).unwrap();
        // In the way of the file that is to become the new one.
        let obstacle = directory.path().join("super.new");
        std::fs::create_dir(&obstacle).unwrap();
        superblock.set(&[("a", Some("2".into()))]).unwrap_err();
        std::fs::remove_dir(&obstacle).unwrap();
        superblock.set(&[("b", Some("3".into()))]).unwrap_err();
        let values = [("a".to_owned(), Bytes::from("1"))];
        assert_eq!(superblock.list(""), values);
        assert_eq!(SuperblockLog::open(directory.path()).unwrap().list(""), values);
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
        assert_eq!(SuperblockLog::open(directory.path()).unwrap().list(""), values);
        assert!(std::fs::read(&path).unwrap().starts_with(MAGIC));
        assert_eq!(SuperblockLog::open(directory.path()).unwrap().list(""), values);
        // An earlier release refuses the new file: it finds a whole record that is not at the begin.
        let file = std::fs::read(&path).unwrap();
        assert!(
            journal::whole_record(&file).is_none() && journal::whole_record(&file[MAGIC.len()..]).is_some()
        );
        // The first record was never appended.
        for at in 0..first.len() {
            let mut damaged = first.clone();
            damaged[at] ^= 1;
            std::fs::write(&path, damaged).unwrap();
            assert!(
                matches!(SuperblockLog::open(directory.path()), Err(StoreError::Corrupt { .. })),
                "byte {at}"
            );
        }
    }

    #[test]
    fn a_journals_append_that_ends_in_zeros_is_torn() {
        let kept = Bytes::from_static(b"kept");
        let whole = journal::encode([("a", Some(&kept))].into_iter());
        // Long enough for a length of two bytes, either of which may be missing.
        let late = Bytes::from(vec![7; 300]);
        let torn = journal::encode([("b", Some(&late))].into_iter());
        for written in 0..torn.len() {
            let mut file = [&whole[..], &torn[..written]].concat();
            file.resize(whole.len() + torn.len(), 0);
            let values = journal::read(&file).unwrap();
            assert_eq!(values, Values::from([("a".to_owned(), kept.clone())]), "{written} bytes");
        }
        // Any part of it may be missing, its head too.
        for first in 0..torn.len() {
            for missing in [4, 100, torn.len()] {
                let mut file = [&whole[..], &torn[..]].concat();
                let from = whole.len() + first;
                let to = (from + missing).min(file.len());
                let lost = file[from..to].iter().any(|byte| *byte != 0);
                file[from..to].fill(0);
                let values = journal::read(&file).unwrap();
                assert_eq!(values.get("a"), Some(&kept));
                assert_eq!(values.get("b"), (!lost).then_some(&late), "{missing} bytes at {first}");
            }
        }
        // Behind a record that is damaged there is another: not torn.
        let mut cut = [&whole[..], &torn[..]].concat();
        cut[..8].fill(0);
        assert!(journal::read(&cut).is_err());
        let mut damaged = [&whole[..], &torn[..]].concat();
        damaged[10] ^= 1;
        assert!(journal::read(&damaged).is_err());
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
            let values = journal::read(input).ok()?;
            Some(journal::encode(values.iter().map(|(key, value)| (key.as_str(), Some(value)))))
        });
    }
}
