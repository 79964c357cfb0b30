//! Clones, copied ranges and renames.
//!
//! The contents of a copy must not depend on the contents of its source when a record is replayed. Small copies go through the
//! journal. Larger ones are written to a separate file, which is durable before the record and becomes the object's file.

use super::TxnPlanner;
use crate::error::{Result, StoreError};
use crate::file::collection::{NO_SEQ, PendingChange};
use crate::file::object::BLOCK_BYTES;
use crate::file::step::Step;
use bytes::Bytes;
use nacre_types::object::ObjectId;
use std::os::unix::fs::FileExt;

/// Copies of up to this many bytes go through the journal. Larger copies are prepared in advance.
const SMALL_COPY_BYTES: u64 = 64 << 10;
/// Number of bytes copied at a time.
const COPY_STEP_BYTES: u64 = 1 << 20;

impl TxnPlanner<'_> {
    pub(super) fn clone_object(&mut self, from: &ObjectId, to: &ObjectId) -> Result<()> {
        if !self.is_there(from)? {
            return Err(StoreError::NotFound(from.clone()));
        }
        if from == to {
            self.known(to).changed = true;
            return Ok(());
        }
        self.remove(to)?;
        let size = self.object(from).size;
        self.load(from, 0, size)?;
        let source = self.known(from).entry.clone();
        let object = source.object.as_ref().expect("invariant: looked up above");
        if let Some(attr) = object.attrs.iter().find(|attr| attr.value.is_none()) {
            return Err(StoreError::corrupt(
                format!("attribute {} of {from}", attr.name),
                "checksum mismatch",
            ));
        }
        let number = self.new_number();
        let file = self.file(to, number);
        let small = object.allocated_bytes() <= SMALL_COPY_BYTES;
        let mut pending = vec![(NO_SEQ, if small { PendingChange::Fresh } else { PendingChange::Adopted })];
        self.steps.push(if small { Step::Create(file) } else { Step::Adopt(file) });
        if !small {
            // Added to the list first, so that it is removed if anything fails.
            self.clones.push((number, self.inner.backend.create_clone(number)?));
        }
        let failed = |error: std::io::Error| StoreError::io(format!("clone {from}"), &error);
        for (start, len) in object.extents(0, size) {
            let mut at = start;
            while at < start + len {
                let to = (start + len).min(at + COPY_STEP_BYTES);
                let end = to.next_multiple_of(BLOCK_BYTES);
                let mut data = self.inner.read_blocks(self.id, from, object, &source.pending, at, end)?;
                data.truncate((to - at) as usize);
                match self.clones.last() {
                    Some((_, prepared)) if !small => prepared.write_all_at(&data, at).map_err(failed)?,
                    _ => {
                        let data = Bytes::from(data);
                        self.steps.push(Step::Write { file, offset: at, data: data.clone().into() });
                        pending.push((NO_SEQ, PendingChange::Write(at, data)));
                    }
                }
                at = to;
            }
        }
        match self.clones.last() {
            Some((_, prepared)) if !small => prepared.set_len(size).map_err(failed)?,
            _ => {
                self.steps.push(Step::SetLen { file, size });
                pending.push((NO_SEQ, PendingChange::SetLen(size)));
            }
        }
        let mut copy = object.copy(number);
        let attrs = std::mem::take(&mut copy.attrs);
        let (has_omap, old_number) = (copy.has_omap, object.number);
        let chunks = copy.checksum_chunks().collect();
        let target = self.draft(to)?;
        target.entry.object = Some(copy);
        target.entry.pending = pending;
        target.changed = true;
        target.chunks = chunks;
        target.omap_changed |= has_omap;
        for attr in attrs {
            self.set_attr(to, &attr.name, attr.value.as_ref().expect("invariant: checked above"));
        }
        if has_omap {
            self.steps.push(Step::CopyOmap { from: old_number, to: number });
        }
        Ok(())
    }

    pub(super) fn clone_range(
        &mut self,
        from: &ObjectId,
        to: &ObjectId,
        from_offset: u64,
        len: u64,
        to_offset: u64,
    ) -> Result<()> {
        if !self.is_there(from)? {
            return Err(StoreError::NotFound(from.clone()));
        }
        self.existing_or_new(to)?;
        let len = len.min(self.object(from).size.saturating_sub(from_offset));
        if len == 0 {
            return Ok(());
        }
        let end = from_offset + len;
        self.load(from, from_offset, end)?;
        let mut source = self.known(from).entry.clone();
        let object = source.object.as_ref().expect("invariant: looked up above");
        let parts = object.extents(from_offset, end);
        let covers_all = parts == [(from_offset, len)];
        let mut data = Vec::with_capacity(parts.len());
        for (at, len) in parts {
            data.push((at, self.inner.read_object(self.id, from, &mut source, at, len)?));
        }
        if !covers_all {
            self.zero(to, to_offset, len)?;
        }
        for (at, data) in data {
            self.write(to, at - from_offset + to_offset, &data.into())?;
        }
        Ok(())
    }

    pub(super) fn rename(&mut self, from: &ObjectId, to: &ObjectId) -> Result<()> {
        if !self.is_there(from)? {
            return Err(StoreError::NotFound(from.clone()));
        }
        if from == to {
            return Ok(());
        }
        self.remove(to)?;
        let source = self.known(from);
        source.changed = true;
        let mut entry = std::mem::take(&mut source.entry);
        let chunks = std::mem::take(&mut source.chunks);
        let omap_changed = source.omap_changed;
        entry.pending.push((NO_SEQ, PendingChange::RenamedFrom(from.clone())));
        let number = entry.object.as_ref().expect("invariant: looked up above").number;
        let target = self.draft(to)?;
        target.entry = entry;
        target.changed = true;
        target.omap_changed |= omap_changed;
        target.chunks = chunks;
        let (from, to) = (self.file(from, number), self.file(to, number));
        self.steps.push(Step::Rename { from, to });
        Ok(())
    }
}
