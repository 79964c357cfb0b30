//! The role of a pool's PGs in a cache tier, and the requirements of requests.

use nacre_types::ids::{Epoch, PoolId};
use nacre_types::msg::OsdRequest;
use nacre_types::op::{Op, OsdOp, request_flag};
use nacre_types::osdmap::OsdMap;
use nacre_types::pool::{CacheMode, Tiering, flag};
use std::sync::Arc;

/// The role of a pool's PGs in a tier.
#[derive(Clone, Debug)]
pub(in super::super) struct TierRole {
    /// The last change of the overlay: requests with older maps may have been meant for another pool.
    pub(in super::super) overlay_epoch: Epoch,
    /// The pool that may have records of requests which this one does not have.
    pub(in super::super) other: PoolId,
    /// The parameters of a cache; `None` for a base.
    pub(in super::super) cache: Option<Tiering>,
    /// The mode of a cache; `None` for a base and for a cache that is not in use.
    mode: Option<CacheMode>,
    /// Whether clients of the base are sent to this pool: that pool keeps the watches, and the other one only records them.
    pub(in super::super) serves: bool,
    /// Whether operations executed here are answered only when the base has their changes.
    pub(in super::super) writes_through: bool,
    /// Whether the base records the names of objects that are dirty here. Not necessary if it has the objects themselves.
    pub(super) logs_dirty: bool,
}

impl TierRole {
    /// The role of `pool`, if it has one.
    pub(in super::super) fn of(map: &OsdMap, pool: PoolId) -> Option<Arc<TierRole>> {
        let tiering = &map.pools.get(&pool)?.tiering;
        let has_flag = |flag: u64| map.pools.get(&pool).is_some_and(|pool| pool.has_flag(flag));
        let overlay_epoch = tiering.overlay_epoch;
        let known = |id: &PoolId| map.pools.contains_key(id);
        if let Some(base) = tiering.tier_of.filter(known) {
            let base_tiering = &map.pools.get(&base)?.tiering;
            let is_overlay = [base_tiering.read_tier, base_tiering.write_tier].contains(&Some(pool));
            let mode = match tiering.cache_mode {
                // Clients of the base must not see an empty pool instead.
                CacheMode::None => is_overlay.then_some(CacheMode::Proxy),
                mode => Some(mode),
            };
            let cache = Some(tiering.clone());
            // Without an overlay, the base changes independently: nothing is flushed then.
            let writes_through = has_flag(flag::CACHE_WRITE_THROUGH) && is_overlay;
            let logs_dirty = has_flag(flag::CACHE_DIRTY_LOG) && is_overlay && !writes_through;
            let (serves, other) = (is_overlay, base);
            let role = TierRole { overlay_epoch, other, cache, mode, serves, writes_through, logs_dirty };
            return Some(Arc::new(role));
        }
        let other = tiering.tiers.iter().copied().find(known)?;
        let serves = tiering.read_tier.is_none() && tiering.write_tier.is_none();
        let (cache, mode) = (None, None);
        let (writes_through, logs_dirty) = (false, false);
        Some(Arc::new(TierRole { overlay_epoch, other, cache, mode, serves, writes_through, logs_dirty }))
    }

    /// Whether removed objects leave whiteouts.
    pub(in super::super) fn leaves_whiteouts(&self) -> bool {
        self.mode().is_some()
    }

    /// Whether a client sent the request with a map that had a different overlay.
    pub(in super::super) fn is_older(&self, request: &OsdRequest) -> bool {
        request.flags & request_flag::IGNORE_OVERLAY == 0 && request.epoch < self.overlay_epoch
    }

    pub(super) fn mode(&self) -> Option<CacheMode> {
        self.mode
    }

    /// The pool's parameters, if it is a cache.
    pub(super) fn tiering(&self) -> Option<&Tiering> {
        self.cache.as_ref()
    }
}

/// Whether the request needs the cache's own copy, because it concerns this OSD's connections or the cache itself.
pub(super) fn needs_cached_copy(request: &OsdRequest) -> bool {
    request.ops.iter().any(|op| {
        matches!(
            op.op,
            Op::Watch { .. }
                | Op::WatchReconnect { .. }
                | Op::WatchPing { .. }
                | Op::Unwatch { .. }
                | Op::Notify { .. }
                | Op::NotifyAck { .. }
                | Op::ListWatchers
                | Op::CachePin
        )
    })
}

/// Whether clean objects are not used in this mode, so that none becomes dirty.
pub(super) fn bypasses_clean_copy(mode: CacheMode) -> bool {
    matches!(mode, CacheMode::Proxy | CacheMode::Forward | CacheMode::Readforward)
}

/// Whether the request manages the cache.
pub(super) fn is_cache_op(request: &OsdRequest) -> bool {
    request.ops.iter().any(|op| matches!(op.op, Op::CacheFlush | Op::CacheTryFlush | Op::CacheEvict))
}

/// Whether the request reports the state of the cache's copy, or changes the copy itself.
pub(super) fn concerns_cached_copy(request: &OsdRequest) -> bool {
    let about = |op: &OsdOp| matches!(op.op, Op::CacheUnpin | Op::IsDirty | Op::Undirty);
    request.ops.iter().any(about)
}
