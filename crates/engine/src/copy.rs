//! Copies of objects, as parts of compound writes.

use crate::error::Result;
use crate::ioctx::IoCtx;
use crate::ops::WriteOp;
use nacre_types::op::{Op, copy_from_flag};

impl WriteOp {
    /// Replaces the object by a copy of `name` in `source`, with its user version. If `version` is not 0, fails with ERANGE or
    /// EOVERFLOW unless the source has that user version.
    pub fn copy_from(&mut self, source: &IoCtx, name: &str, version: u64) -> Result<&mut Self> {
        self.copy_from_with(source, name, version, 0, (0, 0))
    }

    /// Like [`WriteOp::copy_from`], but with this truncation sequence and size instead of the source's.
    pub fn copy_from_truncated(
        &mut self,
        source: &IoCtx,
        name: &str,
        version: u64,
        truncate_seq: u32,
        truncate_size: u64,
    ) -> Result<&mut Self> {
        let flags = copy_from_flag::TRUNCATE_SEQ;
        self.copy_from_with(source, name, version, flags, (truncate_seq, truncate_size))
    }

    fn copy_from_with(
        &mut self,
        source: &IoCtx,
        name: &str,
        version: u64,
        flags: u32,
        truncate: (u32, u64),
    ) -> Result<&mut Self> {
        let source = source.object(name)?;
        Ok(self.push(Op::CopyFrom { source, version, flags, truncate }))
    }
}
