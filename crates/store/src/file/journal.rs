//! The write-ahead journal: a ring of checksummed entries in one file (docs/format/filestore.md).
//!
//! One entry contains the records of one group commit. At most one entry is written and not yet synced at any time, so
//! only the last entry can be torn. Two header blocks, written in turn, record where the ring begins and up to which record it
//! was durable. A ring that ends before that record is damaged, not torn.

use super::step::{self, JournalRecord};
use super::sys;
use crate::error::{Result, StoreError};
use bytes::Bytes;
use nacre_types::crc32c::crc32c;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use uuid::Uuid;

/// Alignment of entries and size of a header block, in bytes.
const ALIGN: u64 = 4096;
/// Offset of the ring in the file.
const RING_AT: u64 = 2 * ALIGN;
const HEADER_MAGIC: &[u8; 8] = b"nacrefsj";
const ENTRY_MAGIC: &[u8; 8] = b"nacrefse";
const ENTRY_HEADER_BYTES: usize = 64;
/// Range behind an unreadable entry header that is searched for further entries, in bytes.
const SEARCH_BYTES: u64 = 16 << 20;
/// Payload parts of at least this size are written without copying.
const BY_REFERENCE_BYTES: usize = 32 << 10;
/// Minimum size of the ring, in bytes.
pub(super) const MIN_BYTES: u64 = 1 << 20;

/// The start of the ring, and what was durable when the header was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Header {
    generation: u64,
    capacity: u64,
    /// Position of the first entry that is needed. Positions only grow; the ring wraps.
    start: u64,
    /// Every record up to this number was durable in the journal.
    watermark: u64,
}

impl Header {
    fn encode(&self, uuid: Uuid) -> Vec<u8> {
        let mut out = Vec::with_capacity(ALIGN as usize);
        out.extend_from_slice(HEADER_MAGIC);
        out.extend_from_slice(uuid.as_bytes());
        for number in [self.generation, self.capacity, self.start, self.watermark] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        let crc = crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out.resize(ALIGN as usize, 0);
        out
    }

    fn decode(block: &[u8], uuid: Uuid) -> Option<Header> {
        let (body, crc) = block.get(..60)?.split_last_chunk::<4>()?;
        let sound = u32::from_le_bytes(*crc) == crc32c(body)
            && &body[..8] == HEADER_MAGIC
            && &body[8..24] == uuid.as_bytes();
        let number = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().expect("invariant: 8 bytes"));
        sound.then(|| Header {
            generation: number(24),
            capacity: number(32),
            start: number(40),
            watermark: number(48),
        })
    }
}

/// The header of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EntryHeader {
    body_crc: u32,
    position: u64,
    first_seq: u64,
    count: u32,
    meta_bytes: u32,
    data_bytes: u64,
}

impl EntryHeader {
    fn encode(&self, uuid: Uuid) -> [u8; ENTRY_HEADER_BYTES] {
        let mut out = [0; ENTRY_HEADER_BYTES];
        out[..8].copy_from_slice(ENTRY_MAGIC);
        out[12..16].copy_from_slice(&self.body_crc.to_le_bytes());
        out[16..24].copy_from_slice(&uuid.as_bytes()[..8]);
        out[24..32].copy_from_slice(&self.position.to_le_bytes());
        out[32..40].copy_from_slice(&self.first_seq.to_le_bytes());
        out[40..44].copy_from_slice(&self.count.to_le_bytes());
        out[44..48].copy_from_slice(&self.meta_bytes.to_le_bytes());
        out[48..56].copy_from_slice(&self.data_bytes.to_le_bytes());
        let crc = crc32c(&out[12..]);
        out[8..12].copy_from_slice(&crc.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8], uuid: Uuid) -> Option<EntryHeader> {
        let bytes: &[u8; ENTRY_HEADER_BYTES] = bytes.get(..ENTRY_HEADER_BYTES)?.try_into().ok()?;
        let small = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("invariant: 4 bytes"));
        let large = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("invariant: 8 bytes"));
        let sound = &bytes[..8] == ENTRY_MAGIC
            && small(8) == crc32c(&bytes[12..])
            && bytes[16..24] == uuid.as_bytes()[..8];
        sound.then(|| EntryHeader {
            body_crc: small(12),
            position: large(24),
            first_seq: large(32),
            count: small(40),
            meta_bytes: small(44),
            data_bytes: large(48),
        })
    }

    /// The entry's length in the ring.
    fn length(&self) -> u64 {
        entry_bytes(u64::from(self.meta_bytes).saturating_add(self.data_bytes))
    }
}

fn entry_bytes(body: u64) -> u64 {
    body.saturating_add(ENTRY_HEADER_BYTES as u64).checked_next_multiple_of(ALIGN).unwrap_or(u64::MAX)
}

/// An open journal.
pub(super) struct Journal {
    file: File,
    path: PathBuf,
    uuid: Uuid,
    header: Mutex<Header>,
    capacity: u64,
    /// Position after the last entry.
    head: AtomicU64,
    /// Position of the first entry that is needed.
    tail: AtomicU64,
    /// Last record and end position of each entry from the first needed one.
    ends: Mutex<VecDeque<(u64, u64)>>,
}

/// The result of reading a journal.
#[derive(Debug)]
pub(super) struct ReplayEnd {
    /// Number of the last record read, 0 if there was none.
    pub(super) last_seq: u64,
    /// Every record up to this number was durable, in the journal or meanwhile in the files.
    pub(super) watermark: u64,
    /// Durable data that is missing, if the ring itself shows it.
    pub(super) loss: Option<String>,
}

impl Journal {
    /// Creates an empty journal of `bytes` in a new file or, with `reuse`, in the existing file or device. Durable on
    /// return, except for its name in the directory.
    pub(super) fn create(path: &Path, uuid: Uuid, bytes: u64, reuse: bool) -> Result<()> {
        let failed = |error: &io::Error| StoreError::io(format!("create {}", path.display()), error);
        let mut options = OpenOptions::new();
        options.write(true).mode(0o600);
        let file = if reuse { options.create(true) } else { options.create_new(true) };
        let file = file.open(path).map_err(|e| failed(&e))?;
        let mut capacity = bytes.max(MIN_BYTES) / ALIGN * ALIGN;
        if file.metadata().map_err(|e| failed(&e))?.is_file() {
            file.set_len(RING_AT + capacity).map_err(|e| failed(&e))?;
            sys::preallocate(&file, RING_AT + capacity).map_err(|e| failed(&e))?;
        } else {
            let size = (&file).seek(SeekFrom::End(0)).map_err(|e| failed(&e))?;
            capacity = capacity.min(size.saturating_sub(RING_AT) / ALIGN * ALIGN);
        }
        if capacity < MIN_BYTES {
            return Err(StoreError::Invalid("the journal's device is too small"));
        }
        let header = Header { generation: 1, capacity, start: 0, watermark: 0 };
        file.write_all_at(&vec![0; ALIGN as usize], 0).map_err(|e| failed(&e))?;
        file.write_all_at(&header.encode(uuid), ALIGN).map_err(|e| failed(&e))?;
        file.sync_all().map_err(|e| failed(&e))
    }

    pub(super) fn open(path: &Path, uuid: Uuid) -> Result<Journal> {
        let failed = |error: &io::Error| StoreError::io(format!("open {}", path.display()), error);
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(|e| failed(&e))?;
        // Seeking also returns the size of devices.
        let len = (&file).seek(SeekFrom::End(0)).map_err(|e| failed(&e))?;
        let mut blocks = vec![0; RING_AT as usize];
        match file.read_exact_at(&mut blocks, 0) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                return Err(StoreError::corrupt(path.display().to_string(), "cut short"));
            }
            Err(error) => return Err(failed(&error)),
        }
        let headers = blocks.chunks(ALIGN as usize).filter_map(|block| Header::decode(block, uuid));
        let header = headers
            .filter(|header| header.capacity.is_multiple_of(ALIGN) && header.capacity >= MIN_BYTES)
            .filter(|header| header.capacity.checked_add(RING_AT).is_some_and(|end| end <= len))
            .max_by_key(|header| header.generation)
            .ok_or_else(|| StoreError::corrupt(path.display().to_string(), "no header of this store"))?;
        Ok(Journal {
            file,
            path: path.to_owned(),
            uuid,
            header: Mutex::new(header),
            capacity: header.capacity,
            head: AtomicU64::new(header.start),
            tail: AtomicU64::new(header.start),
            ends: Mutex::default(),
        })
    }

    /// The size of the ring in bytes.
    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Maximum size in bytes of the records in one entry.
    pub(super) fn max_entry(&self) -> u64 {
        self.capacity / 2
    }

    /// Bytes in entries that are needed.
    pub(super) fn used(&self) -> u64 {
        self.head.load(Ordering::Acquire) - self.tail.load(Ordering::Acquire)
    }

    /// Position after the last entry.
    pub(super) fn head(&self) -> u64 {
        self.head.load(Ordering::Acquire)
    }

    /// Whether an entry with about `bytes` bytes of records fits.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        self.used() + bytes + bytes / 8 + 2 * ALIGN <= self.capacity
    }

    /// Calls `each` with the records of every entry, starting at the first one that is needed. May be called again.
    pub(super) fn replay(
        &self,
        mut each: impl FnMut(u64, Vec<JournalRecord>) -> Result<()>,
    ) -> Result<ReplayEnd> {
        let watermark = self.header.lock().watermark;
        let mut end = ReplayEnd { last_seq: 0, watermark, loss: None };
        let start = self.tail.load(Ordering::Acquire);
        self.head.store(start, Ordering::Release);
        let mut next_seq = None;
        loop {
            let at = self.head();
            if at - start >= self.capacity {
                break;
            }
            let header = self.entry_header(at)?;
            let entry = match header {
                Some(header) if next_seq.is_none_or(|next| next == header.first_seq) => {
                    self.entry_body(&header)?.map(|body| (header, body))
                }
                _ => None,
            };
            let Some((entry, body)) = entry else {
                let within = header.map(|header| header.length());
                if let Some(seq) = self.later_entry(at, within, next_seq.unwrap_or(0))? {
                    end.loss = Some(format!(
                        "the journal is damaged: it ends at record {}, but a later entry begins with {seq}",
                        end.last_seq
                    ));
                }
                break;
            };
            let meta = entry.meta_bytes as usize;
            let records = step::decode(&body[..meta], body.slice(meta..))?;
            if records.len() != entry.count as usize {
                return Err(StoreError::corrupt(
                    self.path.display().to_string(),
                    "an entry of too few records",
                ));
            }
            let count = records.len() as u64;
            each(entry.first_seq, records)?;
            next_seq = Some(entry.first_seq + count);
            end.last_seq = entry.first_seq + count - 1;
            self.head.store(at + entry.length(), Ordering::Release);
        }
        Ok(end)
    }

    fn entry_header(&self, position: u64) -> Result<Option<EntryHeader>> {
        let mut bytes = [0; ENTRY_HEADER_BYTES];
        self.read_ring(position, &mut bytes)?;
        Ok(EntryHeader::decode(&bytes, self.uuid).filter(|header| {
            header.position == position && header.length() <= self.capacity && header.count > 0
        }))
    }

    fn entry_body(&self, header: &EntryHeader) -> Result<Option<Bytes>> {
        let mut body = vec![0; header.meta_bytes as usize + header.data_bytes as usize];
        self.read_ring(header.position + ENTRY_HEADER_BYTES as u64, &mut body)?;
        Ok((crc32c(&body) == header.body_crc).then(|| body.into()))
    }

    /// The first record of an entry behind the unreadable one at `position`, which proves that the unreadable one was durable.
    fn later_entry(&self, position: u64, length: Option<u64>, after: u64) -> Result<Option<u64>> {
        let (from, to) = match length {
            Some(length) => (position + length, position + length + ALIGN),
            None => (position + ALIGN, position + SEARCH_BYTES.min(self.capacity)),
        };
        let mut chunk = vec![0; 1 << 20];
        let mut at = from;
        while at < to {
            let step = (to - at).min(chunk.len() as u64) as usize;
            self.read_ring(at, &mut chunk[..step])?;
            for (index, block) in chunk[..step].chunks(ALIGN as usize).enumerate() {
                let here = at + index as u64 * ALIGN;
                if let Some(header) = EntryHeader::decode(block, self.uuid)
                    && header.position == here
                    && header.first_seq > after
                {
                    return Ok(Some(header.first_seq));
                }
            }
            at += step as u64;
        }
        Ok(None)
    }

    /// Appends an entry of `records`, the first of which has the number `first_seq`. Durable after [`Journal::sync`]. The
    /// caller ensures that there is room.
    pub(super) fn append(&self, first_seq: u64, records: &[&JournalRecord]) -> Result<()> {
        fail::fail_point!("filestore::journal_write", |_| Err(StoreError::Io {
            what: "write the journal (failpoint)".into(),
            code: libc::EIO
        }));
        let split = step::encode(records);
        let crc = split.data.iter().fold(crc32c(&split.meta), |crc, part| part.extend_crc(crc));
        let position = self.head();
        let header = EntryHeader {
            body_crc: crc,
            position,
            first_seq,
            count: records.len() as u32,
            meta_bytes: split.meta.len() as u32,
            data_bytes: split.data_len() as u64,
        };
        if header.length() > self.capacity - self.used() {
            return Err(StoreError::Invalid("a journal entry is larger than the room made for it"));
        }
        let mut small = Vec::with_capacity(ENTRY_HEADER_BYTES + split.meta.len() + ALIGN as usize);
        small.extend_from_slice(&header.encode(self.uuid));
        small.extend_from_slice(&split.meta);
        let mut at = position;
        for part in &split.data {
            if part.len() < BY_REFERENCE_BYTES {
                small.extend_from_slice(part);
                continue;
            }
            self.write_ring(at, &small)?;
            at += small.len() as u64;
            small.clear();
            self.write_ring(at, part)?;
            at += part.len() as u64;
        }
        small.resize((position + header.length() - at) as usize, 0);
        self.write_ring(at, &small)?;
        let end = position + header.length();
        self.head.store(end, Ordering::Release);
        self.ends.lock().push_back((first_seq + records.len() as u64 - 1, end));
        Ok(())
    }

    /// The position after the last entry whose records all have numbers up to `seq`. Entries before it are not returned
    /// again.
    pub(super) fn take_trim_position(&self, seq: u64) -> Option<u64> {
        let mut ends = self.ends.lock();
        let mut found = None;
        while let Some((last, end)) = ends.front()
            && *last <= seq
        {
            found = Some(*end);
            ends.pop_front();
        }
        found
    }

    /// Makes everything appended durable.
    pub(super) fn sync(&self) -> Result<()> {
        fail::fail_point!("filestore::skip_journal_sync", |_| Ok(()));
        fail::fail_point!("filestore::journal_sync", |_| Err(StoreError::Io {
            what: "fsync the journal (failpoint)".into(),
            code: libc::EIO
        }));
        self.file.sync_data().map_err(|e| self.failed("fsync", &e))
    }

    /// Records that everything up to the record `seq` is durable. The watermark itself is durable with the next sync.
    pub(super) fn set_watermark(&self, seq: u64) -> Result<()> {
        let mut header = self.header.lock();
        header.watermark = header.watermark.max(seq);
        self.write_header(&mut header)
    }

    /// Releases the entries before `position`. Durable on return.
    pub(super) fn trim(&self, position: u64) -> Result<()> {
        fail::fail_point!("filestore::trim", |_| Err(StoreError::Io {
            what: "trim the journal (failpoint)".into(),
            code: libc::EIO
        }));
        let mut header = self.header.lock();
        header.start = position;
        self.write_header(&mut header)?;
        drop(header);
        self.file.sync_data().map_err(|e| self.failed("fsync", &e))?;
        self.tail.store(position, Ordering::Release);
        Ok(())
    }

    /// Empties the ring and records that records up to `seq` are no longer needed. Durable on return.
    pub(super) fn reset(&self, seq: u64) -> Result<()> {
        // Skips a whole ring, so that old data behind the last good entry is not taken for a later entry.
        let position = self.head() + self.capacity;
        self.header.lock().watermark = seq;
        self.head.store(position, Ordering::Release);
        self.trim(position)
    }

    fn write_header(&self, header: &mut Header) -> Result<()> {
        header.generation += 1;
        let at = header.generation % 2 * ALIGN;
        self.file.write_all_at(&header.encode(self.uuid), at).map_err(|e| self.failed("write", &e))
    }

    /// Splits a range of the ring where it wraps. Each piece is an offset in the file and its start and end in the range.
    fn pieces(&self, position: u64, len: usize) -> [(u64, usize, usize); 2] {
        let at = position % self.capacity;
        let first = len.min((self.capacity - at) as usize);
        [(RING_AT + at, 0, first), (RING_AT, first, len)]
    }

    fn write_ring(&self, position: u64, bytes: &[u8]) -> Result<()> {
        for (at, from, to) in self.pieces(position, bytes.len()) {
            if from < to {
                self.file.write_all_at(&bytes[from..to], at).map_err(|e| self.failed("write", &e))?;
            }
        }
        Ok(())
    }

    fn read_ring(&self, position: u64, bytes: &mut [u8]) -> Result<()> {
        for (at, from, to) in self.pieces(position, bytes.len()) {
            self.file.read_exact_at(&mut bytes[from..to], at).map_err(|e| self.failed("read", &e))?;
        }
        Ok(())
    }

    fn failed(&self, what: &str, error: &io::Error) -> StoreError {
        StoreError::io(format!("{what} {}", self.path.display()), error)
    }
}

#[cfg(test)]
mod tests {
    use super::step::{Step, UsageChange};
    use super::*;
    use nacre_types::ids::{PgId, PoolId};
    use nacre_types::object::ObjectId;

    fn record(seq: u64, len: usize) -> JournalRecord {
        let oid = ObjectId::new(PoolId(3), "", "", &format!("object {seq}"));
        let data = Bytes::from(vec![seq as u8; len]);
        JournalRecord {
            coll: PgId::new(PoolId(3), 0),
            files: vec![(oid, seq)],
            steps: vec![Step::Write { file: 0, offset: 0, data: data.into() }],
            usage: UsageChange::default(),
            next_number: seq + 1,
        }
    }

    fn read(path: &Path, uuid: Uuid) -> (Vec<u64>, Option<String>) {
        let mut seen = Vec::new();
        let journal = Journal::open(path, uuid).unwrap();
        let end = journal.replay(|first, records| {
            for (at, have) in records.into_iter().enumerate() {
                let seq = first + at as u64;
                let Step::Write { data, .. } = &have.steps[0] else { panic!("{have:?}") };
                assert_eq!(have, record(seq, data.len()));
                seen.push(seq);
            }
            Ok(())
        });
        let end = end.unwrap();
        (seen, end.loss.or_else(|| (end.last_seq < end.watermark).then(|| "watermark".into())))
    }

    fn filled(sizes: &[usize]) -> (tempfile::TempDir, PathBuf, Uuid) {
        let directory = tempfile::tempdir().unwrap();
        let (path, uuid) = (directory.path().join("journal"), Uuid::new_v4());
        Journal::create(&path, uuid, MIN_BYTES, false).unwrap();
        let journal = Journal::open(&path, uuid).unwrap();
        for (at, len) in sizes.iter().enumerate() {
            journal.append(at as u64 + 1, &[&record(at as u64 + 1, *len)]).unwrap();
            journal.sync().unwrap();
        }
        (directory, path, uuid)
    }

    #[test]
    fn entries_are_read_back_around_the_ring() {
        let (_directory, path, uuid) = filled(&[]);
        let journal = Journal::open(&path, uuid).unwrap();
        let mut seq = 1;
        for _ in 0..60 {
            let records: Vec<_> =
                (seq..seq + 3).map(|seq| record(seq, 20_000 + 1000 * (seq % 30) as usize)).collect();
            assert!(journal.has_room(records.iter().map(JournalRecord::bytes).sum()));
            journal.append(seq, &records.iter().collect::<Vec<_>>()).unwrap();
            journal.sync().unwrap();
            assert_eq!(read(&path, uuid), ((seq..seq + 3).collect(), None));
            seq += 3;
            journal.trim(journal.head()).unwrap();
        }
        assert_eq!(read(&path, uuid), (vec![], None));
        assert!(Journal::open(&path, Uuid::new_v4()).is_err());
    }

    #[test]
    fn torn_last_entry_is_dropped_and_damage_before_it_is_a_loss() {
        let flip = |path: &Path, at: u64| {
            let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 1], at).unwrap();
        };
        let (_directory, path, uuid) = filled(&[100, 5000, 100]);
        // Entries are at 0, 4096 and 12288. Damage in the last one can't be distinguished from a torn write.
        flip(&path, RING_AT + 12_288 + 80);
        assert_eq!(read(&path, uuid), (vec![1, 2], None));
        let journal = Journal::open(&path, uuid).unwrap();
        journal.set_watermark(3).unwrap();
        assert!(matches!(read(&path, uuid), (seen, Some(_)) if seen == [1, 2]));
        for at in [RING_AT + 4096 + 70, RING_AT + 4096 + 20, RING_AT + 4096 + 5000] {
            let (_directory, path, uuid) = filled(&[100, 5000, 100]);
            flip(&path, at);
            let (seen, loss) = read(&path, uuid);
            assert!(seen == [1] && loss.is_some(), "{at}: {seen:?} {loss:?}");
        }
        // One of the two headers may be lost.
        let (_directory, path, uuid) = filled(&[100]);
        Journal::open(&path, uuid).unwrap().set_watermark(1).unwrap();
        flip(&path, 9);
        assert_eq!(read(&path, uuid), (vec![1], None));
    }
}
