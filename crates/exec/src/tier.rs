//! Changes that an OSD itself makes to objects of a cache tier, and clients' cache ops.

use crate::context::ObjectContext;
use crate::copy::attrs_of;
use crate::op_context::OpContext;
use crate::{CopiedObject, ExecEnv, ExecResult, finish};
use nacre_types::errno::Errno;
use nacre_types::ids::{Epoch, Eversion};
use nacre_types::msg::OsdRequest;
use nacre_types::op::{Op, OpResult, object_flag, request_flag};

/// A change of an object without a client's request.
#[derive(Clone, Copy, Debug)]
pub enum TierChange<'a> {
    /// Replaces the object by the base's: a clean copy, or a whiteout if the base has none.
    Promote {
        /// The base's object.
        copied: &'a CopiedObject,
        /// The epoch of the map by which it was read.
        epoch: Epoch,
    },
    /// Marks the object clean if it still has this version, which the base now has.
    Flushed {
        /// The object version that was flushed.
        version: Eversion,
        /// The epoch of the map by which the base accepted it.
        epoch: Epoch,
    },
    /// Removes the object from the cache if it still has this version and is clean, or is a whiteout whose removal is flushed.
    Evict {
        /// The object's version.
        version: Eversion,
        /// Whether it is a whiteout and the base has removed the object.
        is_flushed: bool,
        /// Whether the base has its watches, because no client is sent to the cache.
        is_unused: bool,
    },
    /// Removes the object from the cache if it still has this version and is not valid ([`is_valid`]).
    Discard {
        /// The object's version.
        version: Eversion,
        /// The epoch of the last change of the overlay.
        overlay_epoch: Epoch,
    },
    /// Invalidates the cache's copy, which is clean in this version, because the base is about to change.
    Invalidate {
        /// The object's version.
        version: Eversion,
    },
    /// Removes the object from the base because it was deleted in the cache, at this user version.
    RemoveBase {
        /// The deletion's user version.
        user_version: u64,
    },
}

/// Whether the cache's copy represents the object: either the base's state is known under a map since which no client has bypassed the
/// cache (`overlay_epoch`), or the copy does not come from the base and its changes are not in the base.
///
/// A dirty copy from before the removal of the overlay is invalid: an overlay is removed only when everything acknowledged is in the base,
/// which has changed since.
pub fn is_valid(context: &ObjectContext, overlay_epoch: Epoch) -> bool {
    let known = context.info.tier_epoch;
    let counts = context.exists && context.info.flags & object_flag::OBSOLETE == 0;
    counts && (known >= overlay_epoch.max(Epoch(1)) || is_dirty(context) && known == Epoch(0))
}

/// Whether the object was changed since its last flush.
pub fn is_dirty(context: &ObjectContext) -> bool {
    context.exists && context.info.flags & object_flag::DIRTY != 0
}

/// Whether the object is a whiteout.
pub fn is_whiteout(context: &ObjectContext) -> bool {
    context.exists && context.info.flags & object_flag::WHITEOUT != 0
}

/// Whether the object is neither pinned nor watched, so that it may be evicted unless it is dirty.
pub fn is_unpinned_unwatched(context: &ObjectContext) -> bool {
    context.info.watchers.is_empty() && context.info.flags & object_flag::CACHE_PIN == 0
}

/// Whether it is a read from the tier's other pool, which returns information about absent objects too.
pub(crate) fn is_tier_read(request: &OsdRequest) -> bool {
    let gets = |op: &Op| matches!(op, Op::CopyGet { .. } | Op::AssertVersion { .. });
    request.flags & request_flag::IGNORE_CACHE != 0 && request.ops.iter().all(|op| gets(&op.op))
}

/// Executes a change. Fails with EBUSY if the object is not in the required state, and with ERANGE if a base has a newer object than the
/// deletion.
pub fn change(
    env: &ExecEnv<'_>,
    request: &OsdRequest,
    context: &ObjectContext,
    change: TierChange<'_>,
) -> ExecResult {
    let user_version = context.user_version(env.last_user_version);
    let mut pending = OpContext::new(env, &request.object, context, 8);
    match apply(&mut pending, context, change) {
        Ok(()) => {}
        Err(errno) => return ExecResult::failed(errno, user_version),
    }
    let effects = pending.take_effects();
    let mut made = finish(env, request, context, pending);
    if let TierChange::RemoveBase { user_version } = change {
        made.context.info.user_version = user_version.max(made.context.info.user_version);
    }
    let user_version = made.reply_version(user_version);
    ExecResult { result: 0, ops: Vec::new(), user_version, change: Some(made), effects, damaged: false }
}

fn apply(pending: &mut OpContext<'_>, context: &ObjectContext, change: TierChange<'_>) -> Result<(), Errno> {
    let is_at = |version: Eversion| context.exists && context.info.version == version;
    match change {
        TierChange::Promote { copied, epoch } => {
            if is_valid(context, epoch) {
                return Err(Errno::EBUSY);
            }
            if copied.head.is_absent {
                pending.promote_whiteout(copied.head.user_version, epoch);
            } else {
                let attrs = attrs_of(pending, copied)?;
                pending.promote(copied, attrs, epoch);
            }
        }
        TierChange::Flushed { version, epoch } => {
            if !is_at(version) {
                return Err(Errno::EBUSY);
            }
            let info = pending.info_mut();
            info.flags &= !object_flag::DIRTY;
            info.tier_epoch = epoch;
        }
        TierChange::Evict { version, is_flushed, is_unused } => {
            let is_kept = is_dirty(context) && !(is_flushed && is_whiteout(context));
            if !is_at(version) || is_kept || !(is_unpinned_unwatched(context) || is_unused) {
                return Err(Errno::EBUSY);
            }
            pending.evict();
        }
        TierChange::Discard { version, overlay_epoch } => {
            if !is_at(version) || is_valid(context, overlay_epoch) {
                return Err(Errno::EBUSY);
            }
            pending.evict();
        }
        TierChange::Invalidate { version } => {
            if !is_at(version) || is_dirty(context) {
                return Err(Errno::EBUSY);
            }
            pending.info_mut().flags |= object_flag::OBSOLETE;
        }
        TierChange::RemoveBase { user_version } => {
            if context.exists && context.info.user_version > user_version {
                return Err(Errno::ERANGE);
            }
            if context.exists {
                pending.remove();
            }
        }
    }
    Ok(())
}

/// Runs a client's cache op.
pub(crate) fn run(object: &mut OpContext<'_>, op: &Op) -> Result<OpResult, Errno> {
    match op {
        Op::IsDirty => {
            let is_dirty = object.info().flags & object_flag::DIRTY != 0;
            return Ok(OpResult::output(vec![u8::from(is_dirty)]));
        }
        Op::Undirty => {
            if object.exists() && object.info().flags & object_flag::DIRTY != 0 {
                object.info_mut().flags &= !object_flag::DIRTY;
            }
        }
        Op::CachePin | Op::CacheUnpin => {
            if !object.is_cache_pool() {
                return Err(Errno::EINVAL);
            }
            if !object.exists() {
                return Err(Errno::ENOENT);
            }
            match op {
                Op::CachePin => object.info_mut().flags |= object_flag::CACHE_PIN,
                _ => object.info_mut().flags &= !object_flag::CACHE_PIN,
            }
        }
        _ => return Err(Errno::EINVAL),
    }
    Ok(OpResult::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_count_that_come_from_the_present_overlay_or_from_no_base() {
        let copy = |flags: u32, tier_epoch: u32| {
            let mut context = ObjectContext { exists: true, ..ObjectContext::default() };
            (context.info.flags, context.info.tier_epoch) = (flags, Epoch(tier_epoch));
            context
        };
        const DIRTY: u32 = object_flag::DIRTY;
        // Flags, epoch of the copy, epoch of the overlay.
        for (flags, copied, overlay, counts) in [
            (0, 7, 7, true),
            (0, 6, 7, false),
            (DIRTY, 7, 7, true),
            // Changed before the overlay was removed and set again.
            (DIRTY, 6, 7, false),
            (DIRTY, 0, 7, true),
            (0, 0, 7, false),
            (0, 0, 0, false),
            (object_flag::OBSOLETE, 7, 7, false),
            // An invalid copy, dirty because one of its watches timed out.
            (object_flag::OBSOLETE | DIRTY, 7, 7, false),
        ] {
            let context = copy(flags, copied);
            assert_eq!(is_valid(&context, Epoch(overlay)), counts, "{flags:#x} {copied} {overlay}");
        }
        assert!(!is_valid(&ObjectContext::default(), Epoch(1)));
    }
}
