//! Where a request goes by a map.

use nacre_types::msg::OsdRequest;
use nacre_types::op::{Op, request_flag};
use nacre_types::osdmap::{OsdMap, flag};
use nacre_types::pool::{Pool, flag as pool_flag};
use nacre_types::{Interval, OsdId, PgId, PoolId};
use std::net::SocketAddr;

/// The one process that may execute a request, and the interval in which it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The object's PG.
    pub pg: PgId,
    /// How many PGs its pool has.
    pub pg_num: u32,
    /// The PG's interval.
    pub interval: Interval,
    /// Its primary.
    pub osd: OsdId,
    /// Where that listens.
    pub addr: SocketAddr,
    /// The primary's process.
    pub boot_nonce: u64,
}

impl Target {
    /// Whether the map still shows the same process as primary of the same interval.
    pub(super) fn still_stands(&self, map: &OsdMap) -> bool {
        let same_process = map.osds.get(&self.osd).is_some_and(|info| {
            info.up && info.addr == Some(self.addr) && info.boot_nonce == self.boot_nonce
        });
        let same_interval =
            map.membership(self.pg).is_some_and(|m| m.interval == self.interval && m.primary == self.osd);
        let same_pool = map.pools.get(&self.pg.pool).is_some_and(|pool| pool.pg_num == self.pg_num);
        same_process && same_interval && same_pool
    }
}

/// What the map says of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Send it there.
    At(Target),
    /// Nobody serves it now: no primary that is up, paused, or full.
    Wait,
    /// Its pool was removed.
    NoPool,
}

/// Places a request for `pool` by `map`; `request.object`'s own pool is that of an earlier send and does not count.
pub(crate) fn place(map: &OsdMap, pool: PoolId, request: &OsdRequest, writes: bool) -> Placement {
    let Some(base) = map.pools.get(&pool) else {
        // An id above all that the map knows is of a pool so new that the map has yet to come.
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

/// Where writes to an object of `pool` with this hash go, if anywhere: watches are registered by writes.
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

/// Whether the request does nothing but take watches up again: that changes no object, and a watch whose new primary does not
/// hear of it lapses.
fn only_reconnects(request: &OsdRequest) -> bool {
    !request.ops.is_empty() && request.ops.iter().all(|op| matches!(op.op, Op::WatchReconnect { .. }))
}

/// Whether the request can only make room: those go on while the cluster is full, or it would stay so for ever.
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
