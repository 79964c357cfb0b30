//! Execution of records on files and database, the sync that makes them durable, and recovery from the journal.
//!
//! # Why replay is safe
//! After a crash, the files are in the state of the last sync plus any part of the later changes; the database is exactly at
//! its position. All records since the last sync are executed again in order. Steps on files state the result,
//! and file names are never reused, so the last step on each byte, size, attribute and name decides, as it did
//! before the crash. A file may already have a name from a later record; [`Applier::aliases`] contains all names. Steps on the
//! database are skipped up to its position.

use super::backend::Backend;
use super::db::{DbState, SequencerPosition, attr_key};
use super::queue::{ApplyWork, QueuedTxn};
use super::step::{Family, FileIndex, JournalRecord, Step};
use super::{ATTR_PREFIX, Inner, sys};
use crate::PoolUsage;
use crate::blue::keys;
use crate::error::{Result, StoreError};
use nacre_objectstore::files::{read_if_present, write_atomically};
use nacre_types::crc32c::crc32c;
use nacre_types::ids::PoolId;
use nacre_types::object::ObjectId;
use rocksdb::WriteBatch;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A database batch is written when it exceeds this size.
const MAX_BATCH_BYTES: usize = 4 << 20;

/// Executes records.
pub(super) struct Applier {
    batch: WriteBatch,
    position: SequencerPosition,
    next_number: u64,
    usage: BTreeMap<PoolId, PoolUsage>,
    changed_pools: BTreeSet<PoolId>,
    /// During recovery: all names of each file in the journal, by number.
    aliases: HashMap<u64, Vec<ObjectId>>,
    /// During recovery: keys of attributes that a file accepted before the crash and does not accept now. They were put into
    /// the database by steps before its position, so later steps on them must be executed too.
    moved: BTreeSet<Vec<u8>>,
}

impl Applier {
    /// Continues from the state of the database.
    pub(super) fn new(state: &DbState) -> Applier {
        Applier {
            batch: WriteBatch::default(),
            position: state.position,
            next_number: state.next_number,
            usage: state.usage.clone(),
            changed_pools: BTreeSet::new(),
            aliases: HashMap::new(),
            moved: BTreeSet::new(),
        }
    }

    /// Records the names of files, before anything is replayed.
    pub(super) fn register_aliases(&mut self, record: &JournalRecord) {
        fail::fail_point!("filestore::forget_names", |_| ());
        for (oid, number) in &record.files {
            let names = self.aliases.entry(*number).or_default();
            if !names.contains(oid) {
                names.push(oid.clone());
            }
        }
    }

    /// Ends recovery. The names of files are no longer needed.
    pub(super) fn clear_aliases(&mut self) {
        self.aliases = HashMap::new();
        self.moved = BTreeSet::new();
    }

    pub(super) fn state(&self) -> DbState {
        DbState { position: self.position, next_number: self.next_number, usage: self.usage.clone() }
    }

    /// Executes a record. The database contains it after [`Applier::finish`].
    pub(super) fn apply_record(&mut self, backend: &Backend, seq: u64, record: &JournalRecord) -> Result<()> {
        for (at, step) in record.steps.iter().enumerate() {
            let here = SequencerPosition { seq, step: at as u32 };
            self.file_step(backend, record, step, here)?;
            if here >= self.position {
                self.database_step(backend, step, here)?;
            } else if !self.moved.is_empty() {
                self.moved_step(backend, step);
            }
        }
        self.next_number = self.next_number.max(record.next_number);
        if self.position.seq <= seq {
            record.usage.apply_to(self.usage.entry(record.coll.pool).or_default());
            self.changed_pools.insert(record.coll.pool);
            self.position = SequencerPosition { seq: seq + 1, step: 0 };
        }
        Ok(())
    }

    /// Skips lost records: the next record has the number `seq`.
    pub(super) fn skip_to(&mut self, seq: u64) {
        self.position = self.position.max(SequencerPosition { seq, step: 0 });
    }

    /// Writes the collected batch, with the usage of all records that were executed.
    pub(super) fn finish(&mut self, backend: &Backend) -> Result<()> {
        let mut batch = std::mem::take(&mut self.batch);
        let usage = std::mem::take(&mut self.changed_pools);
        let usage = usage.into_iter().map(|pool| (pool, self.usage.get(&pool).copied().unwrap_or_default()));
        backend.db.put_state(&mut batch, self.next_number, usage);
        backend.db.write(batch, self.position)
    }

    /// The open file of a record's entry. It is created if it does not exist.
    fn file(&self, backend: &Backend, record: &JournalRecord, index: FileIndex) -> Result<Arc<File>> {
        let (oid, number) = &record.files[index as usize];
        let mut names = vec![oid];
        names.extend(self.aliases.get(number).into_iter().flatten().filter(|name| *name != oid));
        match backend.open_existing(record.coll, &names, *number)? {
            Some(file) => Ok(file),
            None => backend.create(record.coll, oid, *number),
        }
    }

    fn file_step(
        &mut self,
        backend: &Backend,
        record: &JournalRecord,
        step: &Step,
        here: SequencerPosition,
    ) -> Result<()> {
        fail::fail_point!("filestore::apply", |_| Err(StoreError::Io {
            what: "apply (failpoint)".into(),
            code: libc::EIO
        }));
        let coll = record.coll;
        let failed = |index: FileIndex, error: std::io::Error| {
            StoreError::io(format!("change the file of {}", record.files[index as usize].0), &error)
        };
        match step {
            Step::MakeCollection => backend.dirs.make_collection(coll),
            Step::RemoveCollection => backend.dirs.remove_collection(coll),
            Step::Create(index) if self.aliases.is_empty() => {
                let (oid, number) = &record.files[*index as usize];
                backend.create(coll, oid, *number).map(drop)
            }
            Step::Create(index) => self.file(backend, record, *index).map(drop),
            Step::Adopt(index) => {
                let (oid, number) = &record.files[*index as usize];
                let prepared = backend.clone_path(*number);
                if !prepared.exists() {
                    return Ok(());
                }
                backend.dirs.adopt(coll, oid, *number, &prepared)
            }
            Step::Write { file: index, offset, data } => {
                let file = self.file(backend, record, *index)?;
                file.write_all_at(data, *offset).map_err(|e| failed(*index, e))
            }
            Step::Zero { file: index, offset, len } => {
                let file = self.file(backend, record, *index)?;
                sys::zero(&file, *offset, *len).map_err(|e| failed(*index, e))
            }
            Step::SetLen { file: index, size } => {
                self.file(backend, record, *index)?.set_len(*size).map_err(|e| failed(*index, e))
            }
            Step::SetXattr { file: index, name, value } => {
                let file = self.file(backend, record, *index)?;
                match sys::set_xattr(&file, name, value) {
                    Ok(()) => Ok(()),
                    Err(error) if fits_not(&error) => {
                        // The file system does not accept another attribute for this file, or not this name. The
                        // database has room.
                        remove_xattr(&file, name).map_err(|e| failed(*index, e))?;
                        let number = record.files[*index as usize].1;
                        let key = attr_key(number, name.strip_prefix(ATTR_PREFIX).unwrap_or(name));
                        backend.db.put(&mut self.batch, Family::Attrs, &key, value);
                        if here < self.position {
                            self.moved.insert(key);
                        }
                        Ok(())
                    }
                    Err(error) => Err(failed(*index, error)),
                }
            }
            Step::RemoveXattr { file: index, name } => {
                let file = self.file(backend, record, *index)?;
                remove_xattr(&file, name).map_err(|e| failed(*index, e))
            }
            Step::Rename { from, to } => {
                let (from, number) = &record.files[*from as usize];
                // A file that already has this or a later name stays there; a later step renames it further.
                backend.dirs.rename(coll, from, &record.files[*to as usize].0, *number)
            }
            Step::Unlink(index) => {
                let (oid, number) = &record.files[*index as usize];
                backend.evict_file(*number);
                backend.dirs.unlink(coll, oid, *number)?;
                for name in self.aliases.get(number).into_iter().flatten() {
                    backend.dirs.unlink(coll, name, *number)?;
                }
                // Prepared, recorded and removed again before it was adopted.
                if self.aliases.is_empty() { Ok(()) } else { backend.remove_clone(*number) }
            }
            Step::Put { .. } | Step::Delete { .. } | Step::DeleteRange { .. } | Step::CopyOmap { .. } => {
                Ok(())
            }
        }
    }

    fn database_step(&mut self, backend: &Backend, step: &Step, here: SequencerPosition) -> Result<()> {
        match step {
            Step::Put { family, key, value } => backend.db.put(&mut self.batch, *family, key, value),
            Step::Delete { family, key } => backend.db.delete(&mut self.batch, *family, key),
            Step::DeleteRange { family, first, end } => {
                backend.db.delete_range(&mut self.batch, *family, first, end);
            }
            Step::CopyOmap { from, to } => self.copy_omap(backend, *from, *to, here)?,
            _ => {}
        }
        Ok(())
    }

    /// Executes a step before the database's position, if it concerns an attribute that was moved to the database since.
    fn moved_step(&mut self, backend: &Backend, step: &Step) {
        match step {
            Step::Put { family: Family::Attrs, key, value } if self.moved.contains(&key[..]) => {
                backend.db.put(&mut self.batch, Family::Attrs, key, value);
            }
            Step::Delete { family: Family::Attrs, key } if self.moved.remove(&key[..]) => {
                backend.db.delete(&mut self.batch, Family::Attrs, key);
            }
            Step::DeleteRange { family: Family::Attrs, first, end } => {
                let gone: Vec<_> = self.moved.range(first.to_vec()..end.to_vec()).cloned().collect();
                for key in gone {
                    backend.db.delete(&mut self.batch, Family::Attrs, &key);
                    self.moved.remove(&key);
                }
            }
            _ => {}
        }
    }

    /// Copies an omap as of this step. All earlier steps must be in the database first.
    fn copy_omap(&mut self, backend: &Backend, from: u64, to: u64, here: SequencerPosition) -> Result<()> {
        self.position = here;
        self.finish(backend)?;
        let (first, end) = (keys::id(from), keys::id(from + 1));
        let mut batch = WriteBatch::default();
        backend.db.scan(Family::Omap, &first, &end, |key, value| {
            let key = [&keys::id(to)[..], &key[first.len()..]].concat();
            backend.db.put(&mut batch, Family::Omap, &key, value);
            if batch.size_in_bytes() > MAX_BATCH_BYTES {
                backend.db.write(std::mem::take(&mut batch), here)?;
            }
            Ok(true)
        })?;
        self.batch = batch;
        Ok(())
    }
}

/// Removes an attribute from a file, even if the file system does not accept such an attribute.
fn remove_xattr(file: &File, name: &str) -> std::io::Result<()> {
    match sys::remove_xattr(file, name) {
        Err(error) if !fits_not(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Whether the file system does not accept the attribute: its value or, with EINVAL and ERANGE, its name.
fn fits_not(error: &std::io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOSPC | libc::E2BIG | libc::ENOTSUP | libc::ERANGE | libc::EINVAL)
    )
}

/// The file that records up to which record everything is durable in files and database.
fn commit_path(current: &Path) -> PathBuf {
    current.join("commit_op_seq")
}

/// Records that everything up to the record `seq` is durable. Durable on return.
pub(super) fn write_commit_seq(current: &Path, seq: u64) -> Result<()> {
    let text = seq.to_string();
    let line = format!("{text} {:08x}\n", crc32c(text.as_bytes()));
    write_atomically(&commit_path(current), &[line.as_bytes()])
}

/// The number of the record up to which everything is durable, or `None` if the file does not exist or is damaged.
pub(super) fn read_commit_seq(current: &Path) -> Result<Option<u64>> {
    let Some(bytes) = read_if_present(&commit_path(current))? else { return Ok(None) };
    Ok(String::from_utf8(bytes).ok().and_then(|line| {
        let (text, crc) = line.strip_suffix('\n')?.split_once(' ')?;
        let crc = u32::from_str_radix(crc, 16).ok()?;
        if crc == crc32c(text.as_bytes()) { text.parse().ok() } else { None }
    }))
}

/// The applying thread. Runs until the queue ends or an error occurs.
pub(super) fn run(inner: &Inner, mut applier: Applier) {
    let mut unsynced_since: Option<Instant> = None;
    let mut synced_at = Instant::now();
    let mut last = inner.queue.applied();
    loop {
        let sync_at = unsynced_since.map(|since| {
            let config = &inner.config;
            let due = since + config.max_sync_interval;
            // If the ring is half full, the sync is due earlier, but not more often than `min_sync_interval`.
            if inner.journal.used() > inner.journal.capacity() / 2 {
                due.min(synced_at + config.min_sync_interval)
            } else {
                due
            }
        });
        let done = match inner.queue.take_for_apply(sync_at) {
            ApplyWork::Apply(batch) => {
                let result = apply_batch(inner, &mut applier, batch, &mut last);
                unsynced_since = unsynced_since.or_else(|| Some(Instant::now()));
                result.map(|()| false)
            }
            ApplyWork::Sync => {
                unsynced_since = None;
                let result = sync(inner, last);
                synced_at = Instant::now();
                result.map(|()| false)
            }
            ApplyWork::Finish => sync(inner, last).map(|()| true),
            ApplyWork::Abandon => return,
        };
        match done {
            Ok(false) => {}
            Ok(true) => return,
            Err(error) => {
                let stopped = inner.stop(error);
                inner.queue.fail(&stopped);
                return;
            }
        }
    }
}

fn apply_batch(inner: &Inner, applier: &mut Applier, batch: Vec<QueuedTxn>, last: &mut u64) -> Result<()> {
    inner.check_running()?;
    for queued in &batch {
        applier.apply_record(&inner.backend, queued.seq, &queued.record)?;
    }
    applier.finish(&inner.backend)?;
    *last = batch.last().map_or(*last, |queued| queued.seq);
    let bytes = batch.iter().map(|queued| queued.bytes).sum();
    inner.queue.mark_applied(*last, bytes, batch.len());
    for queued in &batch {
        queued.collection.lock().settle(queued.touched.iter(), *last);
    }
    Ok(())
}

/// Makes everything up to the record `last` durable in files and database, and trims the journal up to it.
fn sync(inner: &Inner, last: u64) -> Result<()> {
    // An entry that is applied only in part is kept as a whole.
    let position = inner.journal.take_trim_position(last);
    let begun = Instant::now();
    inner.backend.sync()?;
    inner.counters.syncs.fetch_add(3, Ordering::Relaxed);
    write_commit_seq(&inner.current, last)?;
    if let Some(position) = position {
        inner.journal.trim(position)?;
    }
    inner.queue.notify_trimmed();
    let took = begun.elapsed();
    if took > Duration::from_secs(10) {
        tracing::warn!(?took, "filestore: syncing the file system takes long");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::FileStoreConfig;
    use super::super::step::UsageChange;
    use super::*;
    use bytes::Bytes;
    use nacre_types::ids::PgId;

    fn backend() -> (tempfile::TempDir, Backend) {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join(super::super::backend::CLONES)).unwrap();
        let backend = Backend::open(directory.path(), &FileStoreConfig::default(), true).unwrap();
        (directory, backend)
    }

    /// A record with steps on a single object and file.
    fn record(steps: Vec<Step>) -> JournalRecord {
        JournalRecord {
            coll: PgId::new(PoolId(3), 0),
            files: vec![(ObjectId::new(PoolId(3), "", "", "object"), 7)],
            steps,
            usage: UsageChange::default(),
            next_number: 8,
        }
    }

    #[test]
    fn attributes_that_the_file_can_not_name_go_to_the_database() {
        let (_directory, backend) = backend();
        let mut applier = Applier::new(&DbState::default());
        let make = record(vec![Step::MakeCollection, Step::Create(0)]);
        applier.apply_record(&backend, 1, &make).unwrap();
        let value = Bytes::from_static(b"value");
        let names = ["with\0nul".to_owned(), "n".repeat(246)];
        for (name, seq) in names.iter().zip(2..) {
            let (xattr, value) = (format!("{ATTR_PREFIX}{name}"), value.clone());
            let set = record(vec![Step::SetXattr { file: 0, name: xattr, value }]);
            applier.apply_record(&backend, seq, &set).unwrap();
        }
        applier.finish(&backend).unwrap();
        for (name, seq) in names.iter().zip(4..) {
            let kept = backend.db.get(Family::Attrs, &attr_key(7, name)).unwrap();
            assert_eq!(kept.as_deref(), Some(&value[..]), "{name:?}");
            let remove = Step::RemoveXattr { file: 0, name: format!("{ATTR_PREFIX}{name}") };
            applier.apply_record(&backend, seq, &record(vec![remove])).unwrap();
        }
    }

    #[test]
    fn attributes_that_a_file_takes_no_more_when_they_are_replayed_go_to_the_database() {
        let (_directory, backend) = backend();
        // The database contains everything that the journal contains.
        let state = DbState { position: SequencerPosition { seq: 9, step: 0 }, ..DbState::default() };
        let mut applier = Applier::new(&state);
        // No file accepts such names, which simulates a file system that is now full.
        let names = ["kept\0", "removed\0", "replaced\0"];
        let set = |name: &str, value: &'static str| Step::SetXattr {
            file: 0,
            name: format!("{ATTR_PREFIX}{name}"),
            value: Bytes::from_static(value.as_bytes()),
        };
        let mut steps = vec![Step::MakeCollection, Step::Create(0)];
        steps.extend(names.map(|name| set(name, "first")));
        let remove = Step::RemoveXattr { file: 0, name: format!("{ATTR_PREFIX}{}", names[1]) };
        let delete = Step::Delete { family: Family::Attrs, key: attr_key(7, names[1]).into() };
        steps.extend([remove, delete, set(names[2], "second")]);
        applier.apply_record(&backend, 1, &record(steps)).unwrap();
        applier.finish(&backend).unwrap();
        let kept = names.map(|name| backend.db.get(Family::Attrs, &attr_key(7, name)).unwrap());
        let kept = kept.each_ref().map(|value| value.as_deref());
        assert_eq!(kept, [Some(&b"first"[..]), None, Some(b"second")]);
    }
}
