//! The contents of the journal: transactions resolved into steps on files and on the database.
//!
//! A step on a file states the result and does not depend on the previous contents. It may be repeated over any
//! later state of the file, if all following steps are repeated too. Steps on the database are executed only once,
//! because the database records its position with each batch.

use crate::PoolUsage;
use bytes::Bytes;
use nacre_types::encoding::DecodeError;
use nacre_types::ids::PgId;
use nacre_types::object::ObjectId;
use nacre_types::payload::{self, Payload};
use serde::{Deserialize, Serialize};

/// The database's column families by number. The numbers are stored in journals and must never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Family {
    /// Objects' records.
    Objects,
    /// Checksums by number and chunk.
    Sums,
    /// Attributes that are not stored with the file, by number and name.
    Attrs,
    /// Omap by number and key.
    Omap,
    /// PG logs.
    Log,
    /// Collections and their own values.
    Collections,
    /// The store's own state and values.
    Super,
}

/// A file, as index in [`JournalRecord::files`].
pub(super) type FileIndex = u32;

/// One step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Step {
    /// The collection's directory exists.
    MakeCollection,
    /// The collection's directory does not exist, if it is empty.
    RemoveCollection,
    /// The file exists.
    Create(FileIndex),
    /// The file is the prepared clone.
    Adopt(FileIndex),
    /// The file contains `data` at `offset`.
    Write { file: FileIndex, offset: u64, data: Payload },
    /// The range reads as zeros.
    Zero { file: FileIndex, offset: u64, len: u64 },
    /// The file has this length.
    SetLen { file: FileIndex, size: u64 },
    /// The file has the attribute.
    SetXattr { file: FileIndex, name: String, value: Bytes },
    /// The file does not have the attribute.
    RemoveXattr { file: FileIndex, name: String },
    /// The file has the name of the second entry, which has the same number as the first.
    Rename { from: FileIndex, to: FileIndex },
    /// The file does not exist.
    Unlink(FileIndex),
    /// The entry is in the database.
    Put { family: Family, key: Bytes, value: Bytes },
    /// The entry is not in the database.
    Delete { family: Family, key: Bytes },
    /// No entry with `first <= key < end` is in the database.
    DeleteRange { family: Family, first: Bytes, end: Bytes },
    /// The object with the second number has a copy of the omap of the first.
    CopyOmap { from: u64, to: u64 },
}

/// The change that a transaction makes to its pool's usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct UsageChange {
    pub(super) stored: i64,
    pub(super) allocated: i64,
    pub(super) objects: i64,
}

impl UsageChange {
    /// Adds the change to `usage`.
    pub(super) fn apply_to(self, usage: &mut PoolUsage) {
        usage.stored_bytes = usage.stored_bytes.saturating_add_signed(self.stored);
        usage.allocated_bytes = usage.allocated_bytes.saturating_add_signed(self.allocated);
        usage.objects = usage.objects.saturating_add_signed(self.objects);
    }
}

/// A transaction in the form in which it is journalled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct JournalRecord {
    pub(super) coll: PgId,
    /// Files that steps refer to: the object and the number of its incarnation.
    pub(super) files: Vec<(ObjectId, u64)>,
    pub(super) steps: Vec<Step>,
    pub(super) usage: UsageChange,
    /// Every number that was assigned is below this.
    pub(super) next_number: u64,
}

impl JournalRecord {
    /// Approximate number of bytes that the record takes in memory and in the journal.
    pub(super) fn bytes(&self) -> u64 {
        let step = |step: &Step| match step {
            Step::Write { data, .. } => data.len() + 32,
            Step::SetXattr { name, value, .. } => name.len() + value.len() + 32,
            Step::RemoveXattr { name, .. } => name.len() + 32,
            Step::Put { key, value, .. } => key.len() + value.len() + 32,
            Step::DeleteRange { first, end, .. } => first.len() + end.len() + 32,
            Step::Delete { key, .. } => key.len() + 32,
            _ => 32,
        };
        let text = |oid: &ObjectId| oid.namespace().len() + oid.locator().len() + oid.name().len();
        let names: usize = self.files.iter().map(|(oid, _)| text(oid) + 64).sum();
        (names + self.steps.iter().map(step).sum::<usize>() + 64) as u64
    }
}

/// Encodes records as a journal entry's description and data.
pub(super) fn encode(records: &[&JournalRecord]) -> payload::SplitMessage {
    payload::encode(&records)
}

/// Decodes a journal entry and checks that all references in it are valid.
pub(super) fn decode(meta: &[u8], data: Bytes) -> Result<Vec<JournalRecord>, DecodeError> {
    const WHAT: &str = "journal entry";
    let records: Vec<JournalRecord> = payload::decode(WHAT, meta, data)?;
    for record in &records {
        let known = |file: &FileIndex| (*file as usize) < record.files.len();
        let sound = record.steps.iter().all(|step| match step {
            Step::Create(file) | Step::Adopt(file) | Step::Unlink(file) => known(file),
            Step::Write { file, offset, data } => {
                known(file)
                    && offset.checked_add(data.len() as u64).is_some_and(|end| end <= crate::MAX_OBJECT_BYTES)
            }
            Step::Zero { file, offset, len } => {
                known(file) && offset.checked_add(*len).is_some_and(|end| end <= crate::MAX_OBJECT_BYTES)
            }
            Step::SetLen { file, size } => known(file) && *size <= crate::MAX_OBJECT_BYTES,
            Step::SetXattr { file, .. } | Step::RemoveXattr { file, .. } => known(file),
            Step::Rename { from, to } => {
                known(from) && known(to) && record.files[*from as usize].1 == record.files[*to as usize].1
            }
            _ => true,
        });
        if !sound {
            return Err(DecodeError::Corrupt { what: WHAT, detail: "a step refers to nothing".into() });
        }
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_fuzz::Target;
    use nacre_types::ids::PoolId;
    use std::path::Path;

    fn records() -> Vec<JournalRecord> {
        let oid = ObjectId::new(PoolId(3), "", "", "object");
        let bytes = Bytes::from_static;
        let steps = vec![
            Step::MakeCollection,
            Step::Create(0),
            Step::Write { file: 0, offset: 4096, data: bytes(b"some data").into() },
            Step::Zero { file: 0, offset: 1, len: 2 },
            Step::SetLen { file: 0, size: 5 },
            Step::SetXattr { file: 0, name: "user.ceph._".into(), value: bytes(b"info") },
            Step::RemoveXattr { file: 0, name: "user.ceph.x".into() },
            Step::Rename { from: 0, to: 1 },
            Step::Adopt(1),
            Step::Unlink(1),
            Step::Put { family: Family::Objects, key: bytes(b"k"), value: bytes(b"v") },
            Step::Delete { family: Family::Attrs, key: bytes(b"k") },
            Step::DeleteRange { family: Family::Omap, first: bytes(b"a"), end: bytes(b"b") },
            Step::CopyOmap { from: 1, to: 2 },
            Step::RemoveCollection,
        ];
        let usage = UsageChange { stored: 9, allocated: 4096, objects: 1 };
        let files = vec![(oid.clone(), 7), (oid.with_snap(4), 7)];
        let one = JournalRecord { coll: PgId::new(PoolId(3), 1), files, steps, usage, next_number: 8 };
        let two = JournalRecord { steps: vec![Step::Create(1)], ..one.clone() };
        vec![one, two]
    }

    /// The length of the description, the description and the data.
    fn frame(records: &[JournalRecord]) -> Vec<u8> {
        let split = encode(&records.iter().collect::<Vec<_>>());
        let length = split.meta.len() as u32;
        [
            &length.to_le_bytes()[..],
            &split.meta,
            &split.data.iter().flat_map(|part| part.to_vec()).collect::<Vec<u8>>(),
        ]
        .concat()
    }

    #[test]
    fn records_are_no_longer_in_the_journal_than_they_are_taken_for() {
        let long = |byte: &str| byte.repeat(20_000);
        let oid = ObjectId::new(PoolId(i64::MAX), &long("n"), &long("l"), &long("o"));
        let record = JournalRecord {
            files: vec![(oid.with_snap(u64::MAX - 1), u64::MAX)],
            steps: vec![Step::RemoveXattr { file: 0, name: long("a") }],
            ..records().swap_remove(1)
        };
        for record in records().iter().chain([&record]) {
            let split = encode(&[record]);
            let length = (split.meta.len() + split.data_len()) as u64;
            assert!(length <= record.bytes(), "{length} bytes, taken for {}", record.bytes());
        }
    }

    #[test]
    fn fuzz_journal_entries() {
        let corpus = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"));
        let seeds = vec![frame(&records()), frame(&records()[1..]), frame(&[])];
        Target::new("filestore-journal", corpus, seeds).run(|input| {
            let (length, rest) = input.split_first_chunk::<4>()?;
            let (meta, data) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            Some(frame(&decode(meta, Bytes::copy_from_slice(data)).ok()?))
        });
    }
}
