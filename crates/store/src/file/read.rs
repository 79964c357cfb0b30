//! Reading an object's data: the file, the changes pending over it, and verification of the checksums.

use super::Inner;
use super::collection::{ObjectEntry, PendingChange};
use super::object::{BLOCK_BYTES, Object};
use crate::error::{Result, StoreError};
use bytes::Bytes;
use nacre_types::crc32c::crc32c;
use nacre_types::ids::PgId;
use nacre_types::object::ObjectId;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;

/// Fills `buffer` from `offset`, up to the end of the file.
pub(super) fn read_up_to(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

impl Inner {
    /// Reads and verifies `offset..offset + len`, which must be within the object. The caller holds the collection's lock.
    pub(super) fn read_object(
        &self,
        coll: PgId,
        oid: &ObjectId,
        entry: &mut ObjectEntry,
        offset: u64,
        len: u64,
    ) -> Result<Bytes> {
        if len == 0 {
            return Ok(Bytes::new());
        }
        let object = entry.object.as_mut().ok_or_else(|| StoreError::NotFound(oid.clone()))?;
        object.load_sums(&self.backend.db, oid, offset, offset + len)?;
        let object = entry.object.as_ref().ok_or_else(|| StoreError::NotFound(oid.clone()))?;
        let first = offset / BLOCK_BYTES * BLOCK_BYTES;
        let end = (offset + len).next_multiple_of(BLOCK_BYTES);
        let data = self.read_blocks(coll, oid, object, &entry.pending, first, end)?;
        let from = (offset - first) as usize;
        Ok(Bytes::from(data).slice(from..from + len as usize))
    }

    /// Reads and verifies whole blocks. Holes and ranges beyond the file read as zeros. Checksums must be loaded.
    pub(super) fn read_blocks(
        &self,
        coll: PgId,
        oid: &ObjectId,
        object: &Object,
        pending: &[(u64, PendingChange)],
        first: u64,
        end: u64,
    ) -> Result<Vec<u8>> {
        let mut data = vec![0; (end - first) as usize];
        // An object that consists of holes does not need its file.
        if object.extents(first, end).is_empty() {
            return Ok(data);
        }
        let fresh = pending.iter().rposition(|(_, change)| matches!(change, PendingChange::Fresh));
        if fresh.is_none() {
            let mut names = vec![oid];
            names.extend(pending.iter().rev().filter_map(|(_, change)| match change {
                PendingChange::RenamedFrom(name) => Some(name),
                _ => None,
            }));
            let damaged =
                |detail: &str| self.record_damage(oid, StoreError::corrupt(oid.to_string(), detail));
            let file = self.backend.open_existing(coll, &names, object.number)?;
            let file = file.ok_or_else(|| damaged("its file is missing"))?;
            read_up_to(&file, &mut data, first).map_err(|e| {
                self.record_damage(oid, StoreError::io(format!("read the file of {oid}"), &e))
            })?;
        }
        for (_, change) in &pending[fresh.map_or(0, |at| at + 1)..] {
            let place = |at: u64| (at.clamp(first, end) - first) as usize;
            match change {
                PendingChange::Write(at, bytes) => {
                    let (from, to) = (place(*at), place(at + bytes.len() as u64));
                    if from < to {
                        let skip = (first + from as u64 - at) as usize;
                        data[from..to].copy_from_slice(&bytes[skip..skip + to - from]);
                    }
                }
                PendingChange::Zero(at, len) => data[place(*at)..place(at + len)].fill(0),
                PendingChange::SetLen(size) => data[place(*size)..].fill(0),
                PendingChange::Fresh | PendingChange::Adopted | PendingChange::RenamedFrom(_) => {}
            }
        }
        for (at, block) in data.chunks_mut(BLOCK_BYTES as usize).enumerate() {
            let number = first / BLOCK_BYTES + at as u64;
            match object.sum(number) {
                Some(sum) if crc32c(block) == sum => {}
                Some(_) => {
                    let detail = format!("checksum mismatch in block {number} of its file");
                    return Err(self.record_damage(oid, StoreError::corrupt(oid.to_string(), detail)));
                }
                // Never written: the file's contents there are not part of the object.
                None => block.fill(0),
            }
        }
        Ok(data)
    }
}
