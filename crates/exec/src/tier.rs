//! What an OSD does with objects of a cache tier on its own account, and clients' ops on them.

use crate::context::ObjectContext;
use crate::copy::attrs_of;
use crate::pending::Pending;
use crate::{Copied, Environment, Executed, finish};
use nacre_types::errno::Errno;
use nacre_types::ids::{Epoch, Eversion};
use nacre_types::msg::OsdRequest;
use nacre_types::op::{Op, OpResult, object_flag, request_flag};

/// A change of an object that no client asked for.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// It becomes what the base has: a clean copy, or a whiteout where the base has none.
    Promote {
        /// The base's object.
        copied: &'a Copied,
        /// The epoch by whose map it was read.
        epoch: Epoch,
    },
    /// The base has it as it was in this version: if it still is, it is clean.
    Flushed {
        /// The object's version that was flushed.
        version: Eversion,
        /// The epoch by whose map the base took it.
        epoch: Epoch,
    },
    /// It leaves the cache, if it still has this version and is clean or a whiteout that the base knows of.
    Evict {
        /// The object's version.
        version: Eversion,
        /// It is a whiteout whose removal the base has.
        is_flushed: bool,
        /// Its watches are the base's now: no client is sent to the cache.
        is_unused: bool,
    },
    /// It leaves the cache, if it still has this version and does not stand for the object ([`is_valid`]).
    Discard {
        /// The object's version.
        version: Eversion,
        /// The epoch of the last change of the overlay.
        overlay_epoch: Epoch,
    },
    /// The base is about to change: the cache's copy, which is clean in this version, counts no more.
    Invalidate {
        /// The object's version.
        version: Eversion,
    },
    /// The base removes the object since the cache's was deleted, in this user version.
    RemoveBase {
        /// The deletion's user version.
        user_version: u64,
    },
}

/// Whether the cache's copy of an object stands for the object: the base's state is known under a map since which no client went
/// past the cache (`overlay_epoch`), or the copy comes from no base and its changes are not in the base.
///
/// A dirty copy from the time before the overlay was removed does not count: an overlay is removed once all that was acknowledged
/// is in the base, which has changed since.
pub fn is_valid(context: &ObjectContext, overlay_epoch: Epoch) -> bool {
    let known = context.info.tier_epoch;
    let counts = context.exists && context.info.flags & object_flag::OBSOLETE == 0;
    counts && (known >= overlay_epoch.max(Epoch(1)) || is_dirty(context) && known == Epoch(0))
}

/// Whether the object was changed since it was flushed.
pub fn is_dirty(context: &ObjectContext) -> bool {
    context.exists && context.info.flags & object_flag::DIRTY != 0
}

/// Whether the object is a whiteout.
pub fn is_whiteout(context: &ObjectContext) -> bool {
    context.exists && context.info.flags & object_flag::WHITEOUT != 0
}

/// Whether the object may leave the cache, but for its being dirty.
pub fn is_evictable(context: &ObjectContext) -> bool {
    context.info.watchers.is_empty() && context.info.flags & object_flag::CACHE_PIN == 0
}

/// Whether a read learns something of an absent object too: one of a tier's other pool.
pub(crate) fn reads_absent(request: &OsdRequest) -> bool {
    let gets = |op: &Op| matches!(op, Op::CopyGet { .. } | Op::AssertVersion { .. });
    request.flags & request_flag::IGNORE_CACHE != 0 && request.ops.iter().all(|op| gets(&op.op))
}

/// Carries out a change. EBUSY where the object is not as it says.
pub fn change(
    env: &Environment<'_>,
    request: &OsdRequest,
    context: &ObjectContext,
    change: Change<'_>,
) -> Executed {
    let user_version = context.user_version(env.last_user_version);
    let mut pending = Pending::new(env, &request.object, context, 8);
    match apply(&mut pending, context, change) {
        Ok(()) => {}
        Err(errno) => return Executed::failed(errno, user_version),
    }
    let effects = pending.take_effects();
    let mut made = finish(env, request, context, pending);
    if let Change::RemoveBase { user_version } = change {
        made.context.info.user_version = user_version.max(made.context.info.user_version);
    }
    let user_version = made.reply_version(user_version);
    Executed { result: 0, ops: Vec::new(), user_version, change: Some(made), effects, damaged: false }
}

fn apply(pending: &mut Pending<'_>, context: &ObjectContext, change: Change<'_>) -> Result<(), Errno> {
    let is_at = |version: Eversion| context.exists && context.info.version == version;
    match change {
        Change::Promote { copied, epoch } => {
            if is_valid(context, epoch) {
                return Err(Errno::EBUSY);
            }
            if copied.head.is_absent {
                pending.promote_absence(copied.head.user_version, epoch);
            } else {
                let attrs = attrs_of(pending, copied)?;
                pending.promote(copied, attrs, epoch);
            }
        }
        Change::Flushed { version, epoch } => {
            if !is_at(version) {
                return Err(Errno::EBUSY);
            }
            let info = pending.info_mut();
            info.flags &= !object_flag::DIRTY;
            info.tier_epoch = epoch;
        }
        Change::Evict { version, is_flushed, is_unused } => {
            let is_kept = is_dirty(context) && !(is_flushed && is_whiteout(context));
            if !is_at(version) || is_kept || !(is_evictable(context) || is_unused) {
                return Err(Errno::EBUSY);
            }
            pending.evict();
        }
        Change::Discard { version, overlay_epoch } => {
            if !is_at(version) || is_valid(context, overlay_epoch) {
                return Err(Errno::EBUSY);
            }
            pending.evict();
        }
        Change::Invalidate { version } => {
            if !is_at(version) || is_dirty(context) {
                return Err(Errno::EBUSY);
            }
            pending.info_mut().flags |= object_flag::OBSOLETE;
        }
        Change::RemoveBase { user_version } => {
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

/// Clients' ops.
pub(crate) fn run(object: &mut Pending<'_>, op: &Op) -> Result<OpResult, Errno> {
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
            if !object.is_cached() {
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
            // It was changed before the overlay was removed and set again.
            (DIRTY, 6, 7, false),
            (DIRTY, 0, 7, true),
            (0, 0, 7, false),
            (0, 0, 0, false),
            (object_flag::OBSOLETE, 7, 7, false),
            // A watch of a copy that the base changed past has lapsed.
            (object_flag::OBSOLETE | DIRTY, 7, 7, false),
        ] {
            let context = copy(flags, copied);
            assert_eq!(is_valid(&context, Epoch(overlay)), counts, "{flags:#x} {copied} {overlay}");
        }
        assert!(!is_valid(&ObjectContext::default(), Epoch(1)));
    }
}
