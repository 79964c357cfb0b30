//! The less frequent ops on data: sparse reads, comparisons, repeated writes, checksums.

use crate::op_context::OpContext;
use bytes::{Bytes, BytesMut};
use nacre_types::encoding::encode;
use nacre_types::errno::Errno;
use nacre_types::op::{ChecksumKind, ExtentsReply, OpResult, SparseReadReply, cmpext_mismatch_result};
use xxhash_rust::xxh32::xxh32;
use xxhash_rust::xxh64::xxh64;

/// A short pattern is repeated in one buffer of about this size, which is written repeatedly.
const PATTERN_BYTES: usize = 1 << 20;

/// Maximum number of checksums in an op's output.
const MAX_CHECKSUMS: usize = 8 << 20;

/// Reads the allocated extents of a range, with their data.
pub(super) fn sparse_read(object: &OpContext<'_>, offset: u64, len: u64) -> Result<OpResult, Errno> {
    let extents = object.extents(offset, len)?;
    let mut parts = Vec::with_capacity(extents.len());
    for (at, len) in &extents {
        parts.push(object.read(*at, *len)?);
    }
    let data = match &parts[..] {
        [only] => only.clone(),
        parts => parts.concat().into(),
    };
    Ok(OpResult::output(encode(&SparseReadReply { extents, data })))
}

/// Lists the allocated extents of a range.
pub(super) fn map_extents(object: &OpContext<'_>, offset: u64, len: u64) -> Result<OpResult, Errno> {
    let len = if len == 0 { object.size() } else { len };
    Ok(OpResult::output(encode(&ExtentsReply { extents: object.extents(offset, len)? })))
}

/// Compares data; bytes beyond the object's end count as zeros (`finish_extent_cmp`).
pub(super) fn compare(object: &OpContext<'_>, offset: u64, expected: &Bytes) -> Result<OpResult, Errno> {
    let stored =
        if expected.is_empty() { Bytes::new() } else { object.read(offset, expected.len() as u64)? };
    let differs =
        expected.iter().enumerate().find(|(at, byte)| **byte != stored.get(*at).copied().unwrap_or(0));
    let code = differs.map_or(0, |(at, _)| cmpext_mismatch_result(at));
    Ok(OpResult { code, output: Bytes::new() })
}

/// `do_writesame`: an empty range writes nothing; EINVAL if the data's length does not divide the range's.
pub(super) fn write_same(
    object: &mut OpContext<'_>,
    offset: u64,
    len: u64,
    data: &Bytes,
) -> Result<OpResult, Errno> {
    let unit = data.len() as u64;
    if len == 0 {
        return Ok(OpResult::default());
    }
    if unit == 0 || !len.is_multiple_of(unit) {
        return Err(Errno::EINVAL);
    }
    object.limits().check_range(offset, len)?;
    object.create();
    let repeats = (PATTERN_BYTES / data.len()).clamp(1, usize::try_from(len / unit).unwrap_or(1));
    let pattern = if repeats == 1 {
        data.clone()
    } else {
        let mut pattern = BytesMut::with_capacity(repeats * data.len());
        (0..repeats).for_each(|_| pattern.extend_from_slice(data));
        pattern.freeze()
    };
    let mut at = 0;
    while at < len {
        let part = (len - at).min(pattern.len() as u64);
        object.write(offset + at, pattern.slice(..part as usize).into());
        at += part;
    }
    Ok(OpResult::default())
}

/// `do_checksum`: a chunk's length must divide the requested length; chunks that the object's end truncates are omitted.
pub(super) fn checksum(
    object: &OpContext<'_>,
    kind: ChecksumKind,
    init: u64,
    (offset, len): (u64, u64),
    chunk: u32,
) -> Result<OpResult, Errno> {
    let chunk = u64::from(chunk);
    if chunk > 0 && (len == 0 || !len.is_multiple_of(chunk)) {
        return Err(Errno::EINVAL);
    }
    let len = if offset == 0 && len == 0 { object.size() } else { len };
    // A length of 0 at another offset than 0 is empty, whereas for reads it means everything that follows.
    let data = if len == 0 { Bytes::new() } else { object.read(offset, len)? };
    let size = if chunk > 0 { chunk as usize } else { data.len() };
    let count = data.len().checked_div(size).unwrap_or(0);
    if count > MAX_CHECKSUMS {
        return Err(Errno::EOVERFLOW);
    }
    let mut output = Vec::with_capacity(4 + 8 * count);
    output.extend_from_slice(&u32::try_from(count).map_err(|_| Errno::EINVAL)?.to_le_bytes());
    for part in data.chunks_exact(size.max(1)) {
        match kind {
            ChecksumKind::XxHash32 => output.extend_from_slice(&xxh32(part, init as u32).to_le_bytes()),
            ChecksumKind::XxHash64 => output.extend_from_slice(&xxh64(part, init).to_le_bytes()),
            ChecksumKind::Crc32c => {
                // The library inverts before and after, as the standard requires; Ceph does neither.
                let crc = !nacre_types::crc32c::append(!(init as u32), part);
                output.extend_from_slice(&crc.to_le_bytes());
            }
        }
    }
    Ok(OpResult::output(output))
}
