//! What each op does, in the OSD's order of checks.

use super::{Effect, MAX_OBJECT_BYTES, Object, Working};
use crate::gateway::class;
use bytes::Bytes;
use nacre_types::encoding::encode;
use nacre_types::errno::Errno;
use nacre_types::op::{
    CmpOp, ExtentsReply, OmapKeysReply, OmapValsReply, Op, OpResult, OsdOp, Pairs, SparseReadReply,
    StatReply, WatchInfo, WatchersReply, cmpext_mismatch, op_flag,
};
use std::ops::Bound;
use std::sync::Arc;

/// `osd_max_attr_name_len` (ENAMETOOLONG).
pub(super) const MAX_ATTR_NAME_BYTES: usize = 100;
/// `osd_max_omap_entries_per_request`: a reply is cut there.
const MAX_OMAP_ENTRIES: u64 = 1024;
/// `osd_client_watch_timeout`: of watches that do not say, in seconds.
const WATCH_TIMEOUT_S: u32 = 30;
/// The code of a comparison that holds, as Ceph returns it.
const COMPARISON_HOLDS: i32 = 1;

/// Runs one op.
pub(super) fn run(object: &mut Working<'_>, op: &OsdOp) -> Result<OpResult, Errno> {
    match &op.op {
        Op::GetXattr { name }
        | Op::SetXattr { name, .. }
        | Op::RmXattr { name }
        | Op::CmpXattr { name, .. }
            if name.is_empty() =>
        {
            return Err(Errno::EINVAL);
        }
        Op::Create { exclusive } => {
            if object.now.is_some() && (*exclusive || op.flags & op_flag::EXCL != 0) {
                return Err(Errno::EEXIST);
            }
            object.create();
        }
        Op::Write { offset, data } => write(object, *offset, data)?,
        Op::Append { data } => write(object, object.size(), data)?,
        Op::WriteFull { data } => {
            if data.len() as u64 > MAX_OBJECT_BYTES {
                return Err(Errno::EFBIG);
            }
            object.create().data = data.to_vec();
        }
        Op::WriteSame { offset, len, data } => write_same(object, *offset, *len, data)?,
        Op::Truncate { size } => {
            if object.now.is_some() {
                check_range(*size, 0)?;
                object.present_mut()?.data.resize(*size as usize, 0);
            }
        }
        Op::Zero { offset, len } => zero(object, *offset, *len)?,
        Op::Remove => object.remove()?,
        Op::SetXattr { name, value } => object.set_attr(name, value.clone())?,
        Op::RmXattr { name } => drop(object.present_mut()?.attrs.remove(name)),
        Op::SetAllocHint { .. } => {
            object.create();
        }
        Op::OmapSet { entries } => object.create().omap.extend(entries.iter().cloned()),
        Op::OmapSetHeader { header } => object.create().omap_header = header.clone(),
        Op::OmapRmKeys { keys } => {
            let stored = object.present_mut()?;
            keys.iter().for_each(|key| drop(stored.omap.remove(key)));
        }
        Op::OmapRmRange { first, last } => {
            object.present_mut()?.omap.retain(|key, _| key < first || key >= last);
        }
        Op::OmapClear => clear_omap(object)?,
        Op::Watch { .. } | Op::WatchReconnect { .. } | Op::WatchPing { .. } | Op::Unwatch { .. } => {
            watch(object, &op.op)?;
        }
        Op::Notify { timeout_s, payload } => {
            object.present()?;
            let (timeout_s, payload) = (*timeout_s, payload.clone());
            object.effects.push(Effect::Notify { timeout_s, payload });
        }
        Op::NotifyAck { notify_id, cookie, payload } => {
            object.present()?;
            let (notify_id, cookie, payload) = (*notify_id, *cookie, payload.clone());
            object.effects.push(Effect::Ack { notify_id, cookie, payload });
        }
        Op::AssertExists => {
            object.present()?;
        }
        Op::AssertVersion { version } => assert_version(*version, object.version)?,
        Op::OmapCmp { assertions } => compare_omap(object.present()?, assertions)?,
        _ => return read(object, op),
    }
    Ok(OpResult::default())
}

/// Runs one op that has an output or a code of its own.
fn read(object: &mut Working<'_>, op: &OsdOp) -> Result<OpResult, Errno> {
    let output: Bytes = match &op.op {
        Op::CmpXattr { name, op, value } => {
            let stored = object.attr(name)?.unwrap_or_default();
            if !value.holds(*op, &stored) {
                return Err(Errno::ECANCELED);
            }
            return Ok(OpResult { code: COMPARISON_HOLDS, output: Bytes::new() });
        }
        Op::CmpExt { offset, data } => {
            let stored = part(object, *offset, data.len() as u64);
            let differs =
                data.iter().enumerate().find(|(at, byte)| **byte != stored.get(*at).copied().unwrap_or(0));
            let code = differs.map_or(0, |(at, _)| cmpext_mismatch(at));
            return Ok(OpResult { code, output: Bytes::new() });
        }
        Op::Call { class, method, input } => return class::call(object, class, method, input),
        Op::Read { offset, len } => part(object, *offset, if *len == 0 { u64::MAX } else { *len }),
        Op::SparseRead { offset, len } => {
            let extents = extents(object, *offset, *len);
            let data = part(object, *offset, *len);
            encode(&SparseReadReply { extents, data }).into()
        }
        Op::MapExt { offset, len } => {
            let len = if *len == 0 { object.size() } else { *len };
            encode(&ExtentsReply { extents: extents(object, *offset, len) }).into()
        }
        Op::Stat => {
            let stored = object.present()?;
            encode(&StatReply { size: stored.data.len() as u64, mtime_ns: stored.mtime_ns }).into()
        }
        Op::GetXattr { name } => object.attr(name)?.ok_or(Errno::ENODATA)?,
        Op::GetXattrs => {
            let attrs = object.present()?.attrs.iter();
            let pairs = attrs.map(|(name, value)| (Bytes::from(name.clone()), value.clone()));
            encode(&Pairs(pairs.collect())).into()
        }
        Op::OmapGetKeys { start_after, max } => {
            let page = omap_page(object, start_after, &Bytes::new(), *max);
            let keys = page.entries.into_iter().map(|(key, _)| key).collect();
            encode(&OmapKeysReply { keys, more: page.more }).into()
        }
        Op::OmapGetVals { start_after, filter_prefix, max } => {
            encode(&omap_page(object, start_after, filter_prefix, *max)).into()
        }
        Op::OmapGetValsByKeys { keys } => encode(&Pairs(omap_values(object, keys))).into(),
        Op::OmapGetHeader => object.now.as_ref().map_or_else(Bytes::new, |stored| stored.omap_header.clone()),
        Op::ListWatchers => encode(&WatchersReply { watchers: object.present()?.watchers.clone() }).into(),
        Op::PgList { .. } => return Err(Errno::EINVAL),
        _ => return Err(Errno::EOPNOTSUPP),
    };
    Ok(OpResult::output(output))
}

/// EFBIG beyond the largest size of an object. A negative offset of a client arrives as a huge one.
fn check_range(offset: u64, len: u64) -> Result<(), Errno> {
    let fits = offset < MAX_OBJECT_BYTES && len <= MAX_OBJECT_BYTES && offset + len <= MAX_OBJECT_BYTES;
    if fits { Ok(()) } else { Err(Errno::EFBIG) }
}

fn write(object: &mut Working<'_>, offset: u64, data: &[u8]) -> Result<(), Errno> {
    check_range(offset, data.len() as u64)?;
    let stored = &mut object.create().data;
    let (start, end) = (offset as usize, offset as usize + data.len());
    if stored.len() < end {
        stored.resize(end, 0);
    }
    stored[start..end].copy_from_slice(data);
    Ok(())
}

/// A range of no length is nothing, one that the data's length does not divide is EINVAL.
fn write_same(object: &mut Working<'_>, offset: u64, len: u64, data: &[u8]) -> Result<(), Errno> {
    if len == 0 {
        return Ok(());
    }
    if data.is_empty() || !len.is_multiple_of(data.len() as u64) {
        return Err(Errno::EINVAL);
    }
    check_range(offset, len)?;
    write(object, offset, &data.repeat((len / data.len() as u64) as usize))
}

/// Zeroing up to the end is a truncation, beyond the end it is nothing.
fn zero(object: &mut Working<'_>, offset: u64, len: u64) -> Result<(), Errno> {
    let (exists, size) = (object.now.is_some(), object.size());
    let sane = offset < MAX_OBJECT_BYTES && (1..=MAX_OBJECT_BYTES).contains(&len);
    if exists && sane && offset + len >= size {
        if offset < size {
            object.present_mut()?.data.resize(offset as usize, 0);
        }
        return Ok(());
    }
    check_range(offset, len)?;
    if len > 0 && exists {
        object.present_mut()?.data[offset as usize..(offset + len) as usize].fill(0);
    }
    Ok(())
}

/// Data at `offset`, short at the object's end; nothing of an absent object.
fn part(object: &Working<'_>, offset: u64, len: u64) -> Bytes {
    let Some(stored) = &object.now else { return Bytes::new() };
    let size = stored.data.len() as u64;
    let start = offset.min(size);
    let end = start.saturating_add(len).min(size);
    Bytes::copy_from_slice(&stored.data[start as usize..end as usize])
}

/// A range as far as the object reaches counts as allocated.
fn extents(object: &Working<'_>, offset: u64, len: u64) -> Vec<(u64, u64)> {
    let len = len.min(object.size().saturating_sub(offset));
    if len == 0 { Vec::new() } else { vec![(offset, len)] }
}

fn assert_version(given: u64, now: u64) -> Result<(), Errno> {
    match given {
        0 => Err(Errno::EINVAL),
        given if given < now => Err(Errno::ERANGE),
        given if given > now => Err(Errno::EOVERFLOW),
        _ => Ok(()),
    }
}

/// A missing key counts as an empty value.
fn compare_omap(object: &Object, assertions: &[(Bytes, CmpOp, Bytes)]) -> Result<(), Errno> {
    for (key, op, given) in assertions {
        let stored = object.omap.get(key).map(|value| &value[..]).unwrap_or_default();
        if !op.holds_for_omap(stored, given)? {
            return Err(Errno::ECANCELED);
        }
    }
    Ok(())
}

/// Removes entries and header; of an object without any it changes nothing.
fn clear_omap(object: &mut Working<'_>) -> Result<(), Errno> {
    let stored = object.present()?;
    if !stored.omap.is_empty() || !stored.omap_header.is_empty() {
        let stored = object.present_mut()?;
        stored.omap.clear();
        stored.omap_header = Bytes::new();
    }
    Ok(())
}

/// Entries above `start_after` that begin with `prefix`, cut at the number allowed.
fn omap_page(object: &Working<'_>, start_after: &Bytes, prefix: &Bytes, max: u64) -> OmapValsReply {
    let mut page = OmapValsReply { entries: Vec::new(), more: false };
    let Some(stored) = &object.now else { return page };
    let max = max.min(MAX_OMAP_ENTRIES) as usize;
    let first = if prefix > start_after { Bound::Included(prefix) } else { Bound::Excluded(start_after) };
    let matching = stored.omap.range::<Bytes, _>((first, Bound::Unbounded));
    for (key, value) in matching.take_while(|(key, _)| key.starts_with(prefix)) {
        if page.entries.len() >= max {
            page.more = true;
            break;
        }
        page.entries.push((key.clone(), value.clone()));
    }
    page
}

/// What is there of `keys`, each once, in their order.
fn omap_values(object: &Working<'_>, keys: &[Bytes]) -> Vec<(Bytes, Bytes)> {
    let Some(stored) = &object.now else { return Vec::new() };
    let mut found: Vec<(Bytes, Bytes)> = Vec::new();
    for key in keys {
        if let Some(value) = stored.omap.get(key)
            && !found.iter().any(|(known, _)| known == key)
        {
            found.push((key.clone(), value.clone()));
        }
    }
    found
}

fn watch(object: &mut Working<'_>, op: &Op) -> Result<(), Errno> {
    let (client, addr) = (object.context().client, object.context().addr);
    let stored = object.present()?;
    let position = |cookie: u64| {
        stored.watchers.iter().position(|watch| watch.client == client && watch.cookie == cookie)
    };
    match op {
        Op::Watch { cookie, timeout_s } => {
            let timeout_s = if *timeout_s == 0 { WATCH_TIMEOUT_S } else { *timeout_s };
            if position(*cookie).is_none() {
                let watchers = watchers_mut(object)?;
                watchers.push(WatchInfo { client, cookie: *cookie, timeout_s, addr: addr.to_string() });
                watchers.sort_unstable_by_key(|watch| (watch.client, watch.cookie));
            }
            object.effects.push(Effect::Connect { cookie: *cookie });
        }
        Op::WatchReconnect { cookie } => {
            position(*cookie).ok_or(Errno::ENOTCONN)?;
            object.effects.push(Effect::Connect { cookie: *cookie });
        }
        Op::WatchPing { cookie } => {
            position(*cookie).ok_or(Errno::ENOTCONN)?;
        }
        Op::Unwatch { cookie } => {
            if let Some(at) = position(*cookie) {
                watchers_mut(object)?.remove(at);
                object.effects.push(Effect::Disconnect { cookie: *cookie });
            }
        }
        _ => return Err(Errno::EINVAL),
    }
    Ok(())
}

/// Watches are invisible: the user version does not rise with them.
fn watchers_mut<'a>(object: &'a mut Working<'_>) -> Result<&'a mut Vec<WatchInfo>, Errno> {
    let stored = object.now.as_mut().ok_or(Errno::ENOENT)?;
    object.watches_changed = true;
    Ok(&mut Arc::make_mut(stored).watchers)
}
