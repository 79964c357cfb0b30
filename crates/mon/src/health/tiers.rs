//! Checks of cache tiers: `CACHE_POOL_NEAR_FULL`, `CACHE_POOL_NO_HIT_SET` and `CACHE_POOL_VOLATILE`.

use super::{Health, Severity};
use crate::logic::MapState;
use crate::text::{bytes, count};
use nacre_types::ids::OsdId;
use nacre_types::pool::{CacheMode, HitSetKind};

/// OSDs that a line names.
const NAMED_OSDS: usize = 4;

impl MapState {
    pub(super) fn check_tiers(&self, health: &mut Health) {
        self.check_cache_targets(health);
        self.check_hit_sets(health);
        self.check_volatile_caches(health);
    }

    /// Pools that come close to their targets (`PGMap::get_health_checks`).
    fn check_cache_targets(&self, health: &mut Health) {
        let (mut pools, mut detail) = (0, Vec::new());
        for (id, pool) in &self.committed.pools {
            let t = &pool.tiering;
            if t.target_max_objects == 0 && t.target_max_bytes == 0 {
                continue;
            }
            let sums = self.pool_sums(*id);
            let full = f64::from(t.full_ratio_micro) / 1e6;
            let ratio = full + (1.0 - full) * self.tuning.cache_target_full_warn_ratio;
            let is_near = |used: u64, target: u64| target > 0 && used as f64 > target as f64 * ratio;
            let before = detail.len();
            if is_near(sums.objects, t.target_max_objects) {
                detail.push(format!(
                    "cache pool '{}' with {} objects at/near target max {} objects",
                    pool.name,
                    count(sums.objects),
                    count(t.target_max_objects)
                ));
            }
            if is_near(sums.bytes, t.target_max_bytes) {
                detail.push(format!(
                    "cache pool '{}' with {} at/near target max {}",
                    pool.name,
                    bytes(sums.bytes),
                    bytes(t.target_max_bytes)
                ));
            }
            pools += usize::from(detail.len() > before);
        }
        if pools > 0 {
            let summary = format!("{pools} cache pools at or near target size");
            health.add("CACHE_POOL_NEAR_FULL", Severity::Warn, summary, pools, detail);
        }
    }

    /// Caches that can't tell what is in use (`OSDMap::check_health`).
    fn check_hit_sets(&self, health: &mut Health) {
        if !self.tuning.warn_on_cache_pools_without_hit_sets {
            return;
        }
        let needs_one =
            |mode| matches!(mode, CacheMode::Writeback | CacheMode::Readforward | CacheMode::Readproxy);
        let pools = self.committed.pools.values();
        let blind = pools
            .filter(|pool| needs_one(pool.tiering.cache_mode) && pool.tiering.hit_set == HitSetKind::None);
        let detail = blind.map(|pool| {
            format!(
                "pool '{}' with cache_mode {} needs hit_set_type to be set but it is not",
                pool.name,
                pool.tiering.cache_mode.as_str()
            )
        });
        let detail: Vec<String> = detail.collect();
        health.add_each("CACHE_POOL_NO_HIT_SET", Severity::Warn, "cache pools are missing hit_sets", detail);
    }

    /// What a power cut would lose: writes that only MemStores have.
    fn check_volatile_caches(&self, health: &mut Health) {
        let mut detail = Vec::new();
        for (id, pool) in &self.committed.pools {
            let t = &pool.tiering;
            let Some(base) = t.tier_of else { continue };
            let sums = self.pool_sums(*id);
            if !t.cache_mode.keeps_writes() && sums.dirty == 0 {
                continue;
            }
            let osds = self.volatile_osds(pool.crush_rule);
            if osds.is_empty() {
                continue;
            }
            let mut names: Vec<String> = osds.iter().take(NAMED_OSDS).map(OsdId::to_string).collect();
            if osds.len() > NAMED_OSDS {
                names.push(format!("{} more", osds.len() - NAMED_OSDS));
            }
            detail.push(format!(
                "pool '{}' with cache_mode {} has {} dirty objects ({}) of pool '{}' in memory ({}): a power cut loses them",
                pool.name,
                t.cache_mode.as_str(),
                count(sums.dirty),
                bytes(sums.dirty_bytes),
                self.committed.pools.get(&base).map_or("?", |base| base.name.as_str()),
                names.join(", ")
            ));
        }
        let what = "cache pools keep writes in memory before they are flushed";
        health.add_each("CACHE_POOL_VOLATILE", Severity::Warn, what, detail);
    }
}
