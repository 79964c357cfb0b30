//! The omap ops.

use crate::MAX_OUTPUT_BYTES;
use crate::op_context::OpContext;
use bytes::Bytes;
use nacre_types::encoding::encode;
use nacre_types::errno::Errno;
use nacre_types::op::{CmpOp, OmapKeysReply, OmapValsReply, Op, OpResult, Pairs};
use std::collections::HashSet;

/// A page ends after entries of this many bytes regardless of the options, because it must fit a message.
const MAX_PAGE_BYTES: u64 = 64 << 20;
/// Keys looked up at a time.
const LOOKUP_KEYS: usize = 64;

/// Runs one omap op.
pub(super) fn run(object: &mut OpContext<'_>, op: &Op) -> Result<OpResult, Errno> {
    let done = || Ok(OpResult::default());
    match op {
        Op::OmapGetKeys { start_after, max } => {
            let page = page(object, start_after, &Bytes::new(), *max)?;
            let keys = page.entries.into_iter().map(|(key, _)| key).collect();
            Ok(OpResult::output(encode(&OmapKeysReply { keys, more: page.more })))
        }
        Op::OmapGetVals { start_after, filter_prefix, max } => {
            Ok(OpResult::output(encode(&page(object, start_after, filter_prefix, *max)?)))
        }
        Op::OmapGetValsByKeys { keys } => Ok(OpResult::output(encode(&Pairs(values(object, keys)?)))),
        Op::OmapGetHeader => Ok(OpResult::output(object.omap_header()?)),
        Op::OmapSet { entries } => {
            object.create();
            object.omap_set(entries.clone());
            done()
        }
        Op::OmapSetHeader { header } => {
            object.create();
            object.omap_set_header(header.clone());
            done()
        }
        Op::OmapRmKeys { keys } => {
            present(object)?;
            object.omap_rm(keys.clone());
            done()
        }
        Op::OmapRmRange { first, last } => {
            present(object)?;
            object.omap_rm_range(first.clone(), last.clone());
            done()
        }
        Op::OmapClear => {
            present(object)?;
            object.omap_clear();
            done()
        }
        Op::OmapCmp { assertions } => compare(object, assertions),
        _ => Err(Errno::EINVAL),
    }
}

/// Returns the values of those of `keys` that exist, each once. Looks up a few keys at a time, so that it stops early if the output is too
/// large.
fn values(object: &OpContext<'_>, keys: &[Bytes]) -> Result<Vec<(Bytes, Bytes)>, Errno> {
    let mut seen = HashSet::new();
    let keys: Vec<Bytes> = keys.iter().filter(|key| seen.insert(*key)).cloned().collect();
    if keys.is_empty() {
        return object.omap_values(&[]);
    }
    let mut all = Vec::new();
    let mut bytes = 0;
    for some in keys.chunks(LOOKUP_KEYS) {
        let found = object.omap_values(some)?;
        bytes += found.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
        if bytes > MAX_OUTPUT_BYTES {
            return Err(Errno::EOVERFLOW);
        }
        all.extend(found);
    }
    Ok(all)
}

fn present(object: &OpContext<'_>) -> Result<(), Errno> {
    if object.exists() { Ok(()) } else { Err(Errno::ENOENT) }
}

/// Returns the entries after `start_after` with `prefix`, limited to the configured number and size.
fn page(
    object: &OpContext<'_>,
    start_after: &Bytes,
    prefix: &Bytes,
    max: u64,
) -> Result<OmapValsReply, Errno> {
    let limits = object.limits();
    let max = usize::try_from(max.min(limits.max_omap_entries_per_request)).unwrap_or(usize::MAX);
    let mut entries: Vec<(Bytes, Bytes)> = Vec::new();
    let mut bytes = 0_u64;
    let mut more = false;
    object.omap_scan(start_after, prefix, &mut |key, value| {
        if entries.len() >= max || bytes >= limits.max_omap_bytes_per_request.min(MAX_PAGE_BYTES) {
            more = true;
            return false;
        }
        bytes += (key.len() + value.len()) as u64;
        entries.push((key, value));
        true
    })?;
    Ok(OmapValsReply { entries, more })
}

/// A missing key counts as an empty value.
fn compare(object: &OpContext<'_>, assertions: &[(Bytes, CmpOp, Bytes)]) -> Result<OpResult, Errno> {
    present(object)?;
    let keys: Vec<Bytes> = assertions.iter().map(|(key, _, _)| key.clone()).collect();
    let found = object.omap_values(&keys)?;
    for (key, op, given) in assertions {
        let stored = found.iter().find(|(k, _)| k == key).map(|(_, v)| &v[..]).unwrap_or_default();
        if !op.holds_for_omap(stored, given)? {
            return Err(Errno::ECANCELED);
        }
    }
    Ok(OpResult::default())
}
