//! Copy-get and copy-from: copies of an object with its user version and the requests that produced it.

use crate::copied_object::CopiedObject;
use crate::op_context::OpContext;
use bytes::Bytes;
use nacre_types::encoding::encode;
use nacre_types::errno::Errno;
use nacre_types::op::{CopyCursor, CopyGetReply, OpResult, copy_from_flag, object_flag};

/// Maximum number of requests that a copy includes, as in Ceph.
pub const MAX_COPIED_REQIDS: usize = 10;

/// Reads one piece: attributes and omap header first, then data, then omap entries. `for_tier` is set if the request comes from another
/// pool of the pool's tier.
pub(super) fn get(
    object: &OpContext<'_>,
    cursor: &CopyCursor,
    max_bytes: u64,
    for_tier: bool,
) -> Result<OpResult, Errno> {
    if !object.exists() {
        if !for_tier {
            return Err(Errno::ENOENT);
        }
        let cursor = CopyCursor { complete: true, ..CopyCursor::default() };
        let user_version = object.absent_user_version();
        let piece = CopyGetReply { is_absent: true, user_version, cursor, ..CopyGetReply::default() };
        return Ok(OpResult::output(encode(&piece)));
    }
    let info = object.info();
    let mut piece = CopyGetReply {
        size: object.size(),
        mtime_ns: info.mtime_ns,
        user_version: info.user_version,
        version: info.version,
        flags: info.flags & (object_flag::OMAP | object_flag::DATA_DIGEST | object_flag::OMAP_DIGEST),
        data_digest: info.data_digest,
        omap_digest: info.omap_digest,
        truncate: (info.truncate_seq, info.truncate_size),
        cursor: cursor.clone(),
        ..CopyGetReply::default()
    };
    let mut left = max_bytes.clamp(1, object.limits().max_omap_bytes_per_request.max(1));
    if !cursor.attrs {
        let attrs = object.user_attrs()?.into_iter().map(|(name, value)| (Bytes::from(name), value));
        piece.attrs = attrs.collect();
        piece.omap_header = object.omap_header()?;
        piece.cursor.attrs = true;
    }
    let missing = object.size().saturating_sub(cursor.offset);
    if missing > 0 {
        piece.data = object.read(cursor.offset, missing.min(left))?;
        piece.cursor.offset += piece.data.len() as u64;
        left -= piece.data.len() as u64;
    }
    if piece.cursor.offset >= object.size() && left > 0 {
        let mut more = false;
        object.omap_scan(&cursor.omap_after, &Bytes::new(), &mut |key, value| {
            if left == 0 {
                more = true;
                return false;
            }
            left = left.saturating_sub((key.len() + value.len()) as u64);
            piece.omap.push((key, value));
            true
        })?;
        if let Some((last, _)) = piece.omap.last() {
            piece.cursor.omap_after = last.clone();
        }
        piece.cursor.complete = !more;
    }
    if piece.cursor.complete {
        piece.reqids = object.recent_requests();
        piece.reqids.extend(info.copied_requests.iter().copied());
        piece.reqids.truncate(MAX_COPIED_REQIDS);
        if for_tier {
            piece.watchers = info.watchers.clone();
        }
    }
    Ok(OpResult::output(encode(&piece)))
}

/// Replaces the object by the copy that was read for this op.
pub(super) fn from(object: &mut OpContext<'_>, flags: u32, truncate: (u32, u64)) -> Result<OpResult, Errno> {
    if flags & !copy_from_flag::ALL != 0 {
        return Err(Errno::EINVAL);
    }
    let copied = object.source_copy().ok_or(Errno::EINVAL)??;
    if flags & copy_from_flag::FLUSH != 0 && object.exists() {
        match object.info().user_version {
            // A delayed flush must not restore older contents.
            newer if newer > copied.head.user_version => return Err(Errno::ERANGE),
            same if same == copied.head.user_version => {
                if object.flush_copies_watches() && object.info().watchers != copied.head.watchers {
                    object.watchers_mut().clone_from(&copied.head.watchers);
                }
                return Ok(OpResult::default());
            }
            _ => {}
        }
    }
    let attrs = attrs_of(object, copied)?;
    let given = flags & copy_from_flag::TRUNCATE_SEQ != 0;
    object.replace(copied, attrs, if given { truncate } else { copied.head.truncate });
    if flags & copy_from_flag::FLUSH != 0 && object.flush_copies_watches() {
        *object.watchers_mut() = copied.head.watchers.clone();
    }
    Ok(OpResult::default())
}

/// Returns the attributes of a copy. Fails if the copy exceeds the object's limits.
pub(super) fn attrs_of(object: &OpContext<'_>, copied: &CopiedObject) -> Result<Vec<(String, Bytes)>, Errno> {
    if copied.head.size > object.limits().max_object_size_bytes {
        return Err(Errno::EFBIG);
    }
    let mut attrs = Vec::with_capacity(copied.head.attrs.len());
    for (name, value) in &copied.head.attrs {
        let name = std::str::from_utf8(name).map_err(|_| Errno::EIO)?;
        attrs.push((name.to_owned(), value.clone()));
    }
    Ok(attrs)
}
