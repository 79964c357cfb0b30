//! Computes the target of a request from a map.

use nacre_types::msg::OsdRequest;
use nacre_types::op::{Op, request_flag};
use nacre_types::osdmap::{OsdMap, flag};
use nacre_types::pool::{Pool, flag as pool_flag};
use nacre_types::{Interval, OsdId, PgId, PoolId};
use std::net::SocketAddr;

/// The one process that may execute a request, and the interval in which it may do so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The object's PG.
    pub pg: PgId,
    /// The number of PGs in its pool.
    pub pg_num: u32,
    /// The PG's interval.
    pub interval: Interval,
    /// Its primary.
    pub osd: OsdId,
    /// The primary's address.
    pub addr: SocketAddr,
    /// The primary's process.
    pub boot_nonce: u64,
}

impl Target {
    /// Whether the map still shows the same process as primary of the same interval.
    pub(super) fn is_current(&self, map: &OsdMap) -> bool {
        let same_process = map.osds.get(&self.osd).is_some_and(|info| {
            info.up && info.addr == Some(self.addr) && info.boot_nonce == self.boot_nonce
        });
        let same_interval =
            map.membership(self.pg).is_some_and(|m| m.interval == self.interval && m.primary == self.osd);
        let same_pool = map.pools.get(&self.pg.pool).is_some_and(|pool| pool.pg_num == self.pg_num);
        same_process && same_interval && same_pool
    }
}

/// Placement of a request by the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// The target to send it to.
    At(Target),
    /// No OSD serves it now: there is no primary that is up, or the request is paused, or the cluster or pool is full.
    Wait,
    /// Its pool was removed.
    NoPool,
}

/// Places a request for `pool` by `map`. The pool of `request.object` is that of an earlier send and is ignored.
pub(crate) fn place(map: &OsdMap, pool: PoolId, request: &OsdRequest, writes: bool) -> Placement {
    let Some(base) = map.pools.get(&pool) else {
        // An id above the map's maximum belongs to a pool that a later map contains.
        return if pool > map.pool_max { Placement::Wait } else { Placement::NoPool };
    };
    let (pool_id, pool) = served_by(map, (pool, base), request.flags, writes);
    if is_paused(map, pool, request, writes) {
        return Placement::Wait;
    }
    match primary_in(map, pool_id, pool, request.object.hash()) {
        Some(target) => Placement::At(target),
        None => Placement::Wait,
    }
}

/// The pool itself or the cache tier that serves it.
fn served_by<'a>(
    map: &'a OsdMap,
    (pool, base): (PoolId, &'a Pool),
    flags: u32,
    writes: bool,
) -> (PoolId, &'a Pool) {
    let tier = if flags & request_flag::IGNORE_OVERLAY != 0 {
        None
    } else if writes {
        base.tiering.write_tier
    } else {
        base.tiering.read_tier
    };
    match tier.and_then(|id| map.pools.get_key_value(&id)) {
        Some((id, tier)) => (*id, tier),
        None => (pool, base),
    }
}

fn primary_in(map: &OsdMap, pool_id: PoolId, pool: &Pool, hash: u32) -> Option<Target> {
    let pg = pool.pg_of_hash(pool_id, hash);
    let membership = map.membership(pg)?;
    let info = map.osds.get(&membership.primary).filter(|info| info.up)?;
    Some(Target {
        pg,
        pg_num: pool.pg_num,
        interval: membership.interval,
        osd: membership.primary,
        addr: info.addr?,
        boot_nonce: info.boot_nonce,
    })
}

/// The target of writes to an object of `pool` with this hash, if any. Watches are registered by writes.
pub(crate) fn primary_of(map: &OsdMap, pool: PoolId, flags: u32, hash: u32) -> Option<Target> {
    let base = map.pools.get(&pool)?;
    let (pool_id, pool) = served_by(map, (pool, base), flags, true);
    primary_in(map, pool_id, pool, hash)
}

fn is_paused(map: &OsdMap, pool: &Pool, request: &OsdRequest, writes: bool) -> bool {
    if !writes {
        return map.has_flag(flag::PAUSERD);
    }
    if only_reconnects(request) {
        return false;
    }
    if map.has_flag(flag::PAUSEWR) {
        return true;
    }
    let full = map.has_flag(flag::FULL) || pool.has_flag(pool_flag::FULL);
    let respects_full = request.flags & (request_flag::FULL_TRY | request_flag::FULL_FORCE) == 0;
    full && respects_full && !only_frees_space(request)
}

/// Whether the request only reconnects watches: this changes no object, and a watch that is not reconnected to its new primary times out.
fn only_reconnects(request: &OsdRequest) -> bool {
    !request.ops.is_empty() && request.ops.iter().all(|op| matches!(op.op, Op::WatchReconnect { .. }))
}

/// Whether the request can only free space: such requests continue while the cluster is full, or it would stay full.
fn only_frees_space(request: &OsdRequest) -> bool {
    let frees = |op: &Op| {
        matches!(
            op,
            Op::Remove
                | Op::RmXattr { .. }
                | Op::OmapRmKeys { .. }
                | Op::OmapRmRange { .. }
                | Op::OmapClear
                | Op::Unwatch { .. }
        )
    };
    let writes = |op: &Op| op.is_write() || matches!(op, Op::Call { .. });
    request.ops.iter().filter(|op| writes(&op.op)).all(|op| frees(&op.op))
}
