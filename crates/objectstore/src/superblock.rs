//! The own small values of a MemStore or FileStore, journalled to `super.log` at once so that they survive a crash.
//!
//! A record is `length u32 | crc32c u32 | postcard of [(key, Option value)]`; a torn last record was never acknowledged
//! and is dropped, whatever part of it was written. The journal is rewritten at mount and when it has outgrown its contents.

use crate::error::{Result, StoreError};
use crate::files::{read_if_present, write_atomically};
use bytes::Bytes;
use nacre_types::crc32c::crc32c;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The journal is rewritten when it is this much longer than what it holds.
const SLACK_BYTES: u64 = 4 << 20;

/// The journal, open, and the values that it makes.
pub struct SuperblockLog {
    path: PathBuf,
    values: BTreeMap<String, Bytes>,
    journal: File,
    journal_bytes: u64,
    /// An earlier append failed: the journal's end is unknown, so nothing more is taken.
    failed: Option<StoreError>,
}

impl SuperblockLog {
    /// Opens the journal of the store in `directory`, or begins it.
    pub fn open(directory: &Path) -> Result<SuperblockLog> {
        let path = directory.join("super.log");
        let mut values = BTreeMap::new();
        let journal = read_if_present(&path)?.unwrap_or_default();
        let mut rest = &journal[..];
        while let Some((changes, after)) = next_record(rest, &path)? {
            for (key, value) in changes {
                match value {
                    Some(value) => _ = values.insert(key, value),
                    None => _ = values.remove(&key),
                }
            }
            rest = after;
        }
        let (journal, journal_bytes) = rewrite(&path, &values)?;
        Ok(SuperblockLog { path, values, journal, journal_bytes, failed: None })
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

    /// Sets or removes values, all or none; durable on return.
    pub fn set(&mut self, values: &[(&str, Option<Bytes>)]) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let record = encode(values.iter().map(|(key, value)| (*key, value.as_ref())));
        let appended = self.journal.write_all(&record).and_then(|()| self.journal.sync_data());
        if let Err(error) = appended {
            let error = StoreError::io(format!("append to {}", self.path.display()), &error);
            self.failed = Some(error.clone());
            return Err(error);
        }
        self.journal_bytes += record.len() as u64;
        for (key, value) in values {
            match value {
                Some(value) => _ = self.values.insert((*key).to_owned(), Bytes::copy_from_slice(value)),
                None => _ = self.values.remove(*key),
            }
        }
        let live: u64 = self.values.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum();
        if self.journal_bytes > 2 * live + SLACK_BYTES {
            (self.journal, self.journal_bytes) = rewrite(&self.path, &self.values)?;
        }
        Ok(())
    }
}

fn encode<'a>(values: impl Iterator<Item = (&'a str, Option<&'a Bytes>)>) -> Vec<u8> {
    let body = postcard::to_extend(&values.collect::<Vec<_>>(), Vec::new())
        .expect("invariant: strings and bytes always encode");
    let mut record = Vec::with_capacity(body.len() + 8);
    record.extend_from_slice(&(body.len() as u32).to_le_bytes());
    record.extend_from_slice(&crc32c(&body).to_le_bytes());
    record.extend_from_slice(&body);
    record
}

type Changes = Vec<(String, Option<Bytes>)>;

/// A whole record at the begin of `journal`, and what follows it.
fn whole_record(journal: &[u8]) -> Option<(Changes, &[u8])> {
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

/// The next record and what follows it; `None` at the end or at a torn last record.
fn next_record<'a>(journal: &'a [u8], path: &Path) -> Result<Option<(Changes, &'a [u8])>> {
    if let Some(found) = whole_record(journal) {
        return Ok(Some(found));
    }
    // A file system may record a new size before the data, and write blocks in any order: zeros stand for what a torn append did
    // not write, in its length too. Followed by a further record it can't be one, since each is durable before the next begins.
    if (1..journal.len()).any(|at| whole_record(&journal[at..]).is_some()) {
        return Err(StoreError::corrupt(
            path.display().to_string(),
            "a record before the last one is damaged",
        ));
    }
    Ok(None)
}

/// Replaces the journal by one record of all values and opens it for appending.
fn rewrite(path: &Path, values: &BTreeMap<String, Bytes>) -> Result<(File, u64)> {
    let record = encode(values.iter().map(|(key, value)| (key.as_str(), Some(value))));
    write_atomically(path, &[&record])?;
    let journal = OpenOptions::new()
        .append(true)
        .open(path)
        .map_err(|e| StoreError::io(format!("open {}", path.display()), &e))?;
    Ok((journal, record.len() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_fuzz::Target;

    /// Makes the first record's checksum right.
    fn reseal(journal: &mut [u8]) {
        if let Some((header, rest)) = journal.split_at_mut_checked(8) {
            let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
            if let Some(body) = rest.get(..length) {
                header[4..].copy_from_slice(&crc32c(body).to_le_bytes());
            }
        }
    }

    #[test]
    fn an_append_that_ends_in_zeros_is_torn() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("super.log");
        let kept = Bytes::from_static(b"kept");
        let whole = encode([("a", Some(&kept))].into_iter());
        // Long enough for a length of two bytes, either of which may be missing.
        let late = Bytes::from(vec![7; 300]);
        let torn = encode([("b", Some(&late))].into_iter());
        for written in 0..torn.len() {
            let mut journal = [&whole[..], &torn[..written]].concat();
            journal.resize(whole.len() + torn.len(), 0);
            std::fs::write(&path, journal).unwrap();
            let log = SuperblockLog::open(directory.path()).unwrap();
            assert_eq!(log.list(""), [("a".to_owned(), kept.clone())], "{written} bytes");
        }
        // Any part of it may be missing, its head too.
        for first in 0..torn.len() {
            for missing in [4, 100, torn.len()] {
                let mut journal = [&whole[..], &torn[..]].concat();
                let from = whole.len() + first;
                let to = (from + missing).min(journal.len());
                let lost = journal[from..to].iter().any(|byte| *byte != 0);
                journal[from..to].fill(0);
                std::fs::write(&path, journal).unwrap();
                let log = SuperblockLog::open(directory.path()).unwrap();
                assert_eq!(log.get("a"), Some(kept.clone()));
                assert_eq!(log.get("b"), (!lost).then(|| late.clone()), "{missing} bytes at {first}");
            }
        }
        // Behind a record that is damaged there is another: not torn.
        let mut cut = [&whole[..], &torn[..]].concat();
        cut[..8].fill(0);
        std::fs::write(&path, cut).unwrap();
        assert!(matches!(SuperblockLog::open(directory.path()), Err(StoreError::Corrupt { .. })));
        let mut damaged = [&whole[..], &torn[..]].concat();
        damaged[10] ^= 1;
        std::fs::write(&path, damaged).unwrap();
        assert!(matches!(SuperblockLog::open(directory.path()), Err(StoreError::Corrupt { .. })));
    }

    #[test]
    fn fuzz_journals() {
        let corpus = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"));
        let value = Bytes::from_static(b"value");
        let record = || encode([("a", Some(&value)), ("bc", None)].into_iter());
        let seeds = vec![record(), [record(), record()].concat()];
        let target = Target { repair: reseal, ..Target::new("memstore-journal", corpus, seeds) };
        target.run(|input| {
            let mut written = Vec::new();
            let mut rest = input;
            while let Some((changes, after)) = next_record(rest, Path::new("fuzzed")).ok()? {
                let changes = changes.iter().map(|(key, value)| (key.as_str(), value.as_ref()));
                written.extend(encode(changes));
                rest = after;
            }
            Some(written)
        });
    }
}
