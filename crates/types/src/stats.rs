//! Usage and state reports, from OSDs to the map authority.

use crate::ids::{Epoch, Eversion, Interval, OsdId, PgId, PoolId};
use serde::{Deserialize, Serialize};

/// Bits of [`PgStats::state`]; [`pg_state::to_text`] prints them as Ceph does.
pub mod pg_state {
    /// Names in the order in which Ceph prints them.
    pub const NAMES: &[(u64, &str)] = &[
        (STALE, "stale"),
        (CREATING, "creating"),
        (ACTIVE, "active"),
        (CLEAN, "clean"),
        (RECOVERY_WAIT, "recovery_wait"),
        (RECOVERY_TOOFULL, "recovery_toofull"),
        (RECOVERING, "recovering"),
        (DOWN, "down"),
        (UNDERSIZED, "undersized"),
        (DEGRADED, "degraded"),
        (REMAPPED, "remapped"),
        (SCRUBBING, "scrubbing"),
        (DEEP_SCRUB, "deep"),
        (INCONSISTENT, "inconsistent"),
        (PEERING, "peering"),
        (REPAIR, "repair"),
        (BACKFILL_WAIT, "backfill_wait"),
        (BACKFILLING, "backfilling"),
        (BACKFILL_TOOFULL, "backfill_toofull"),
        (INCOMPLETE, "incomplete"),
        (PEERED, "peered"),
        (SNAPTRIM, "snaptrim"),
    ];
    /// No report from its primary.
    pub const STALE: u64 = 1 << 0;
    /// Not yet created.
    pub const CREATING: u64 = 1 << 1;
    /// Serves I/O.
    pub const ACTIVE: u64 = 1 << 2;
    /// Fully replicated on the OSDs that CRUSH selects.
    pub const CLEAN: u64 = 1 << 3;
    /// Waits for a recovery slot.
    pub const RECOVERY_WAIT: u64 = 1 << 4;
    /// Recovery stopped for lack of space.
    pub const RECOVERY_TOOFULL: u64 = 1 << 5;
    /// Copies objects that are missing according to the log.
    pub const RECOVERING: u64 = 1 << 6;
    /// A required in-sync member is down.
    pub const DOWN: u64 = 1 << 7;
    /// Fewer copies than the pool's size.
    pub const UNDERSIZED: u64 = 1 << 8;
    /// Some objects have fewer copies than wanted.
    pub const DEGRADED: u64 = 1 << 9;
    /// Acting set and up set differ.
    pub const REMAPPED: u64 = 1 << 10;
    /// A scrub is running.
    pub const SCRUBBING: u64 = 1 << 11;
    /// The scrub is a deep one.
    pub const DEEP_SCRUB: u64 = 1 << 12;
    /// Scrub found errors.
    pub const INCONSISTENT: u64 = 1 << 13;
    /// Agreeing on the PG's history.
    pub const PEERING: u64 = 1 << 14;
    /// A repair is running.
    pub const REPAIR: u64 = 1 << 15;
    /// Waits for a backfill slot.
    pub const BACKFILL_WAIT: u64 = 1 << 16;
    /// Copies all objects to a new member.
    pub const BACKFILLING: u64 = 1 << 17;
    /// Backfill stopped for lack of space.
    pub const BACKFILL_TOOFULL: u64 = 1 << 18;
    /// No usable copy of the PG's history.
    pub const INCOMPLETE: u64 = 1 << 19;
    /// Peered but below min_size: no I/O.
    pub const PEERED: u64 = 1 << 20;
    /// Trims snapshots.
    pub const SNAPTRIM: u64 = 1 << 21;

    /// Formats as `active+clean`; `unknown` if no bit is set.
    pub fn to_text(state: u64) -> String {
        let names: Vec<_> = NAMES.iter().filter(|(bit, _)| state & bit != 0).map(|(_, name)| *name).collect();
        if names.is_empty() { "unknown".into() } else { names.join("+") }
    }
}

/// Sums over a PG's objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectSums {
    /// Bytes of data as clients see it.
    pub bytes: u64,
    /// Head objects (whiteouts included).
    pub objects: u64,
    /// Clones (snapshots).
    pub clones: u64,
    /// Dirty objects (cache tiers).
    pub dirty: u64,
    /// Bytes of data of the dirty objects.
    pub dirty_bytes: u64,
    /// Whiteouts (cache tiers).
    pub whiteouts: u64,
    /// Objects with omap data.
    pub omap_objects: u64,
    /// Bytes of omap keys and values.
    pub omap_bytes: u64,
    /// Omap keys.
    pub omap_keys: u64,
}

/// I/O counters since the PG was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoCounters {
    /// Read requests.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Objects recovered.
    pub recovered_objects: u64,
    /// Bytes recovered.
    pub recovered_bytes: u64,
}

/// One PG's statistics from its primary.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PgStats {
    /// The PG.
    pub pg: PgId,
    /// Bits of [`pg_state`].
    pub state: u64,
    /// The epoch of the map that the PG used for the report.
    pub reported_epoch: Epoch,
    /// The number of the report of this process.
    pub reported_seq: u64,
    /// The membership's interval.
    pub interval: Interval,
    /// The OSDs on which CRUSH places the PG.
    pub up: Vec<OsdId>,
    /// The in-sync set, primary first.
    pub acting: Vec<OsdId>,
    /// OSDs to which backfill copies.
    pub backfill_targets: Vec<OsdId>,
    /// The last update.
    pub last_update: Eversion,
    /// All members have everything up to this version.
    pub last_complete: Eversion,
    /// The log's tail.
    pub log_tail: Eversion,
    /// Number of log entries.
    pub log_size: u64,
    /// Object sums.
    pub sums: ObjectSums,
    /// Whether `sums` includes every object of the PG, with those of updates that are ordered but not committed yet. It is
    /// false while a primary still counts its objects: more of them may be dirty than it knows.
    pub sums_complete: bool,
    /// I/O counters.
    pub io: IoCounters,
    /// Object copies missing on members.
    pub degraded: u64,
    /// Object copies on other OSDs than those of CRUSH.
    pub misplaced: u64,
    /// Objects without any known copy.
    pub unfound: u64,
    /// Bytes that the store uses for the PG on the primary.
    pub stored_bytes: u64,
    /// When the state last changed, nanoseconds since 1970.
    pub last_change_ns: u64,
    /// When it was last active, nanoseconds since 1970.
    pub last_active_ns: u64,
    /// When it was last clean, nanoseconds since 1970.
    pub last_clean_ns: u64,
}

/// Statistics of one OSD's store and process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OsdStats {
    /// Size of the store in bytes.
    pub total_bytes: u64,
    /// Bytes available for data.
    pub available_bytes: u64,
    /// Bytes of object data stored, as allocated.
    pub data_bytes: u64,
    /// Bytes of omap.
    pub omap_bytes: u64,
    /// Bytes of other metadata.
    pub meta_bytes: u64,
    /// Number of PGs that the OSD holds.
    pub pgs: u32,
    /// Average commit latency in milliseconds.
    pub commit_latency_ms: u32,
    /// Average apply latency in milliseconds.
    pub apply_latency_ms: u32,
    /// Peers with which it exchanges heartbeats.
    pub heartbeat_peers: Vec<OsdId>,
    /// The OSD's own health reports, such as a damaged store: (code, text).
    pub health: Vec<(String, String)>,
    /// Requests that take too long.
    pub slow_ops: SlowOps,
    /// Pools with compressed data in the store.
    pub compressed: Vec<PoolCompression>,
}

/// The effect of compression in one pool on one OSD.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolCompression {
    /// The pool.
    pub pool: PoolId,
    /// Size of the data after compression in bytes.
    pub compressed_bytes: u64,
    /// Bytes allocated for it.
    pub allocated_bytes: u64,
    /// Size of the same data before compression in bytes.
    pub original_bytes: u64,
}

/// Requests that are older than `osd_op_complaint_time`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowOps {
    /// Their number.
    pub count: u64,
    /// Age of the oldest one in milliseconds.
    pub oldest_ms: u64,
    /// Description of the oldest one and of what it waits for.
    pub oldest: String,
}
