//! The effort of a PG's agent: its flush mode, its evict mode and its evict effort.
//!
//! [`choose_agent_mode`] follows `PrimaryLogPG::agent_choose_mode` of Ceph's Reef release. A PG's share of the pool's targets is the target divided by
//! [`pg_divisor`]. The level *full* is the greater ratio of the PG's bytes and objects to that share. The level *dirty* is the same for its
//! dirty objects, whose size is assumed to be the average.
//!
//! | compared | above | mode |
//! |---|---|---|
//! | dirty | `cache_target_dirty_ratio` | flush low |
//! | dirty | `cache_target_dirty_high_ratio` | flush high |
//! | full | `cache_target_full_ratio` | evict some, with an effort between 0 and 1 |
//! | full | 1 | evict everything clean (full); requests that need room wait |
//!
//! A mode begins above the ratio plus `osd_agent_slop` times the ratio and ends at the ratio minus as much, so that the agent does not
//! start and stop with each object. The high ratio moves by the low ratio's slop, as in Ceph.
//!
//! The effort rises from 0 at the full ratio to 1 at the target, is at least `osd_agent_min_evict_effort`, and is a multiple of
//! `osd_agent_quantize_effort`. It is the share of objects, coldest first, that may be evicted
//! ([`TemperatureHistogram::is_cold`](crate::temperature::TemperatureHistogram::is_cold)).
//!
//! # The effective target
//!
//! A target larger than the OSDs' space has no effect: the agent would never run, and writes would fail for lack of space.
//! [`effective_target`] lowers `target_max_bytes` to what the fullest OSD can store, and gives pools without a target one.
//! target one.

use crate::MICRO;
use nacre_types::hash::pg_mask;
use nacre_types::pool::Tiering;

/// Objects that a step of the agent checks for eviction (`osd_pool_default_cache_max_evict_check_size` is 10 in Ceph).
pub const STEP_CHECKS: usize = 32;
/// Objects of one PG that a step evicts at most.
pub const STEP_EVICTIONS: usize = 16;
/// Time between two steps while there is work, in nanoseconds.
pub const BUSY_STEP_NS: u64 = 50_000_000;
/// Time between two checks of a PG while there is no work, in nanoseconds.
pub const IDLE_STEP_NS: u64 = 1_000_000_000;
/// Rounds over all objects after which the counts of the temperature histogram are halved.
pub const HALFLIFE_ROUNDS: u32 = 4;
/// How far below the full ratio a PG has room, as a multiple of the slop. Evictions end one slop below the ratio.
const ROOM_SLOPS: u64 = 3;

/// How fast the agent flushes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlushMode {
    /// No flushes.
    #[default]
    Idle,
    /// Up to `osd_agent_max_low_ops` at once.
    Low,
    /// Up to `osd_agent_max_ops` at once.
    High,
}

/// What the agent evicts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum EvictMode {
    /// No evictions.
    #[default]
    Idle,
    /// Objects that are old and cold enough.
    Some,
    /// Every clean object.
    Full,
}

impl FlushMode {
    /// Ceph's spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            FlushMode::Idle => "idle",
            FlushMode::Low => "low",
            FlushMode::High => "high",
        }
    }
}

impl EvictMode {
    /// Ceph's spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            EvictMode::Idle => "idle",
            EvictMode::Some => "some",
            EvictMode::Full => "full",
        }
    }
}

/// The mode of a PG's agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentMode {
    /// How fast it flushes.
    pub flush: FlushMode,
    /// What it evicts.
    pub evict: EvictMode,
    /// The share of objects that it evicts, in millionths: 0 for [`EvictMode::Idle`], a million for [`EvictMode::Full`].
    pub evict_effort_micro: u32,
}

impl AgentMode {
    /// Whether the agent has nothing to do.
    pub fn is_idle(&self) -> bool {
        self.flush == FlushMode::Idle && self.evict == EvictMode::Idle
    }
}

/// The contents of a PG of the cache pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheSums {
    /// Number of objects, including whiteouts and archived hit sets.
    pub objects: u64,
    /// Bytes of their data.
    pub bytes: u64,
    /// Number of dirty objects, including whiteouts.
    pub dirty: u64,
    /// Number of archived hit sets, which can't be flushed.
    pub archives: u64,
    /// Bytes of archived hit sets.
    pub archive_bytes: u64,
    /// The store's estimate of an object's space in addition to its data, in bytes.
    pub object_overhead_bytes: u64,
}

impl CacheSums {
    fn user_objects(&self) -> u128 {
        self.objects.saturating_sub(self.archives).into()
    }

    fn user_bytes(&self) -> u128 {
        let data = self.bytes.saturating_sub(self.archive_bytes);
        u128::from(data) + self.user_objects() * u128::from(self.object_overhead_bytes)
    }
}

/// The pool's targets. A target of 0 means none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheTargets {
    /// `target_max_bytes`, or the result of [`effective_target`].
    pub max_bytes: u64,
    /// `target_max_objects`.
    pub max_objects: u64,
    /// The divisor of the targets for the PG's share ([`pg_divisor`]).
    pub divisor: u32,
    /// `cache_target_dirty_ratio` in millionths.
    pub dirty_ratio_micro: u32,
    /// `cache_target_dirty_high_ratio` in millionths.
    pub dirty_high_ratio_micro: u32,
    /// `cache_target_full_ratio` in millionths.
    pub full_ratio_micro: u32,
}

impl CacheTargets {
    /// The pool's targets for a PG, with `max_bytes` from [`effective_target`].
    pub fn new(tiering: &Tiering, max_bytes: u64, divisor: u32) -> CacheTargets {
        CacheTargets {
            max_bytes,
            max_objects: tiering.target_max_objects,
            divisor,
            dirty_ratio_micro: tiering.dirty_ratio_micro,
            dirty_high_ratio_micro: tiering.dirty_high_ratio_micro,
            full_ratio_micro: tiering.full_ratio_micro,
        }
    }

    /// The PG's share of the bytes; 0 without a target.
    pub fn pg_bytes(&self) -> u64 {
        self.share(self.max_bytes)
    }

    /// The PG's share of the objects; 0 without a target.
    pub fn pg_objects(&self) -> u64 {
        self.share(self.max_objects)
    }

    /// The PG's share, at least 1; 0 for a target of 0.
    fn share(&self, target: u64) -> u64 {
        if target == 0 { 0 } else { (target / u64::from(self.divisor.max(1))).max(1) }
    }
}

/// The OSD's options for its agents, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentOptions {
    /// `osd_agent_slop`.
    pub slop_micro: u32,
    /// `osd_agent_min_evict_effort`.
    pub min_evict_effort_micro: u32,
    /// `osd_agent_quantize_effort`.
    pub quantize_effort_micro: u32,
}

impl Default for AgentOptions {
    /// Ceph's defaults.
    fn default() -> AgentOptions {
        AgentOptions { slop_micro: 20_000, min_evict_effort_micro: 100_000, quantize_effort_micro: 100_000 }
    }
}

/// How dirty and how full a PG is, in millionths of its share of the targets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheLevel {
    /// Dirty objects, or their bytes by average size.
    pub dirty_micro: u64,
    /// All objects, or their bytes.
    pub full_micro: u64,
}

impl CacheLevel {
    /// Computes the level of a PG with these sums. Without a target it is 0.
    pub fn new(sums: &CacheSums, targets: &CacheTargets) -> CacheLevel {
        let (objects, dirty) = (sums.user_objects(), u128::from(sums.dirty));
        let ratio = |amount: u128, share: u64| match share {
            0 => 0,
            share => {
                u64::try_from(amount.saturating_mul(MICRO.into()) / u128::from(share)).unwrap_or(u64::MAX)
            }
        };
        let average = sums.user_bytes().checked_div(objects).unwrap_or(0);
        let (bytes_share, objects_share) = (targets.pg_bytes(), targets.share(targets.max_objects));
        let level =
            |count: u128| ratio(count.saturating_mul(average), bytes_share).max(ratio(count, objects_share));
        CacheLevel { dirty_micro: level(dirty), full_micro: level(objects) }
    }
}

/// Chooses the agent's next mode from its previous one. `restarts` is set if the agent paused because a round over all objects found
/// nothing to do: modes then begin as if it had been idle.
pub fn choose_agent_mode(
    before: &AgentMode,
    sums: &CacheSums,
    targets: &CacheTargets,
    options: &AgentOptions,
    restarts: bool,
) -> AgentMode {
    let level = CacheLevel::new(sums, targets);
    let (evict, evict_effort_micro) = evict_mode(before.evict, &level, targets, options, restarts);
    let flush = flush_mode(before.flush, &level, sums.dirty > 0, targets, options, restarts);
    AgentMode { flush, evict, evict_effort_micro }
}

/// The number of objects of average size that the PG may hold. Without a target, or if sizes are unknown, it is the number that the PG
/// holds.
pub fn capacity_objects(sums: &CacheSums, targets: &CacheTargets) -> u64 {
    let by_bytes = match sums.user_bytes().checked_div(sums.user_objects()) {
        None | Some(0) => 0,
        Some(average) => u64::try_from(u128::from(targets.pg_bytes()) / average).unwrap_or(u64::MAX),
    };
    let shares = [by_bytes, targets.pg_objects()];
    shares.into_iter().filter(|share| *share > 0).min().unwrap_or(sums.objects)
}

/// The number of objects that can be promoted without displacing others: until the PG reaches the lowest level to which the agent evicts.
pub fn room_objects(sums: &CacheSums, targets: &CacheTargets, options: &AgentOptions) -> u64 {
    if targets.max_bytes == 0 && targets.max_objects == 0 {
        return u64::MAX;
    }
    let below = ROOM_SLOPS * slop(targets.full_ratio_micro, options);
    let level = CacheLevel::new(sums, targets).full_micro;
    let left = u128::from(u64::from(targets.full_ratio_micro).saturating_sub(below).saturating_sub(level));
    match level {
        // Sizes are unknown.
        0 => STEP_CHECKS as u64,
        level => u64::try_from(sums.user_objects() * left / u128::from(level)).unwrap_or(u64::MAX),
    }
}

/// The number of objects of average size above the level at which evictions end.
pub fn surplus_objects(sums: &CacheSums, targets: &CacheTargets, options: &AgentOptions) -> u64 {
    let level = CacheLevel::new(sums, targets).full_micro;
    let slop = slop(targets.full_ratio_micro, options);
    let end = with_slop(targets.full_ratio_micro.into(), slop, false);
    let above = u128::from(level.saturating_sub(end));
    let surplus = (sums.user_objects() * above).div_ceil(u128::from(level.max(1)));
    u64::try_from(surplus).unwrap_or(u64::MAX)
}

/// A threshold with its slop: added for a mode that begins, subtracted for one that continues.
fn with_slop(threshold: u64, slop: u64, begins: bool) -> u64 {
    if begins { threshold + slop } else { threshold.saturating_sub(slop) }
}

fn slop(ratio_micro: u32, options: &AgentOptions) -> u64 {
    u64::from(ratio_micro) * u64::from(options.slop_micro) / MICRO
}

fn flush_mode(
    before: FlushMode,
    level: &CacheLevel,
    is_dirty: bool,
    targets: &CacheTargets,
    options: &AgentOptions,
    restarts: bool,
) -> FlushMode {
    let begins = restarts || before == FlushMode::Idle;
    let slop = slop(targets.dirty_ratio_micro, options);
    let low = with_slop(targets.dirty_ratio_micro.into(), slop, begins);
    let high = with_slop(targets.dirty_high_ratio_micro.into(), slop, begins);
    if level.dirty_micro > high {
        FlushMode::High
    } else if level.dirty_micro > low || (low == 0 && is_dirty) {
        FlushMode::Low
    } else {
        FlushMode::Idle
    }
}

fn evict_mode(
    before: EvictMode,
    level: &CacheLevel,
    targets: &CacheTargets,
    options: &AgentOptions,
    restarts: bool,
) -> (EvictMode, u32) {
    let begins = restarts || before == EvictMode::Idle;
    let threshold =
        with_slop(targets.full_ratio_micro.into(), slop(targets.full_ratio_micro, options), begins);
    if level.full_micro > MICRO {
        return (EvictMode::Full, MICRO as u32);
    }
    if level.full_micro <= threshold {
        return (EvictMode::Idle, 0);
    }
    // The threshold is below the level, which is at most a million.
    let effort = (level.full_micro - threshold) * MICRO / (MICRO - threshold);
    let step = u64::from(options.quantize_effort_micro).clamp(1, MICRO);
    let effort = effort.max(options.min_evict_effort_micro.into()).min(MICRO);
    (EvictMode::Some, ((effort - effort % step).max(step)) as u32)
}

/// The divisor of a pool's targets for the PG `seed` (`pg_pool_t::get_pg_num_divisor`). If `pg_num` is not a power of two, PGs that are not
/// split yet hold twice as much as the others.
pub fn pg_divisor(pg_num: u32, seed: u32) -> u32 {
    let mask = pg_mask(pg_num);
    let half = mask >> 1;
    // Numbers of PGs after and before the split under way. A pool of more than 2^31 PGs does not exist.
    let (after, before) = (mask.saturating_add(1), half + 1);
    if pg_num == after || seed & half < pg_num & half { after } else { before.max(1) }
}

/// An OSD that holds PGs of the cache pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheOsd {
    /// Bytes that its store can still store.
    pub free_bytes: u64,
    /// Bytes that its store can store in total.
    pub total_bytes: u64,
    /// Number of PGs of the cache pool of which it has a copy.
    pub pgs: u32,
}

/// The bytes that a cache pool may hold: the minimum of `target_max_bytes` (0 means none) and of what each OSD can store.
///
/// The pool holds `stored_bytes` in `pg_count` PGs. An OSD that holds `pgs` of them gets `pgs / pg_count` of each byte that is added. It is
/// full for the cache when only `reserve_ratio_micro` of its total is free; before that it can store
///
/// ```text
/// room    = free - reserve_ratio · total            negative if the reserve is already in use
/// growth  = room · pg_count / pgs                   of the whole pool, until this OSD is full
/// target  = stored + growth                         at least 1
/// ```
///
/// While the pool grows, `stored` rises as `free` falls, so that the target is constant. If an object takes more space than its bytes, or
/// other pools take space, the target falls over time. OSDs without PGs of the pool do not count.
///
/// Returns at least 1 if an OSD limits the pool, because 0 means no target: everything clean is then evicted. Returns 0 only if there is
/// neither a target nor an OSD.
pub fn effective_target(
    target_max_bytes: u64,
    stored_bytes: u64,
    pg_count: u32,
    osds: &[CacheOsd],
    reserve_ratio_micro: u32,
) -> u64 {
    let capacity = |osd: &CacheOsd| {
        let reserve = u128::from(osd.total_bytes) * u128::from(reserve_ratio_micro) / u128::from(MICRO);
        let room = i128::from(osd.free_bytes) - reserve as i128;
        let growth = room * i128::from(pg_count) / i128::from(osd.pgs);
        u64::try_from((i128::from(stored_bytes) + growth).max(1)).unwrap_or(u64::MAX)
    };
    let target = (target_max_bytes > 0).then_some(target_max_bytes);
    let capacities = osds.iter().filter(|osd| osd.pgs > 0).map(capacity);
    capacities.chain(target).min().unwrap_or(0)
}

#[cfg(test)]
mod tests;
