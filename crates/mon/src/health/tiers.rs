//! Checks of cache tiers: `CACHE_POOL_NEAR_FULL`, `CACHE_POOL_NO_HIT_SET`, `CACHE_POOL_VOLATILE` and `CACHE_POOL_DIRTY_LOST`.

use super::{Health, Severity};
use crate::logic::MapState;
use crate::pgview::PgView;
use crate::text::{bytes, count, plural};
use nacre_types::ids::OsdId;
use nacre_types::pool::{CacheMode, HitSetKind, flag};

/// The number of OSDs that a line lists.
const NAMED_OSDS: usize = 4;

impl MapState {
    pub(super) fn check_tiers(&self, views: &[PgView], health: &mut Health) {
        self.check_cache_targets(health);
        self.check_hit_sets(health);
        self.check_volatile_caches(health);
        self.check_lost_caches(views, health);
    }

    /// Pools that approach their targets (`PGMap::get_health_checks`).
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

    /// Caches without hit sets, which can't tell which objects are in use (`OSDMap::check_health`).
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

    /// Writes that only MemStores have, which a power failure would lose.
    fn check_volatile_caches(&self, health: &mut Health) {
        let mut detail = Vec::new();
        for (id, pool) in &self.committed.pools {
            let t = &pool.tiering;
            let Some(base) = t.tier_of else { continue };
            let (dirty, dirty_bytes) = self.acknowledged_dirty(*id);
            let keeps_writes = t.cache_mode.allows_dirty() && !pool.has_flag(flag::CACHE_WRITE_THROUGH);
            if !keeps_writes && dirty == 0 {
                continue;
            }
            let osds = self.memstore_osds(pool.crush_rule);
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
                count(dirty),
                bytes(dirty_bytes),
                self.committed.pools.get(&base).map_or("?", |base| base.name.as_str()),
                names.join(", ")
            ));
        }
        let what = "cache pools keep writes in memory before they are flushed";
        health.add_each("CACHE_POOL_VOLATILE", Severity::Warn, what, detail);
    }

    /// PGs of caches that lost all copies. They serve nothing until the operator accepts the loss.
    fn check_lost_caches(&self, views: &[PgView], health: &mut Health) {
        let (mut detail, mut objects, mut lost_bytes, mut is_all_safe, mut is_all_known) =
            (Vec::new(), 0, 0, true, true);
        for view in views.iter().filter(|view| !view.lost_by.is_empty()) {
            let Some(pool) = self.committed.pools.get(&view.pg.pool) else { continue };
            let Some(base) = pool.tiering.tier_of.and_then(|base| self.committed.pools.get(&base)) else {
                continue;
            };
            let pg = view.pg;
            let is_safe = self.had_no_dirty_objects(pg);
            let what = if is_safe {
                format!("all that it acknowledged is in pool '{}'", base.name)
            } else if let Some(dirty) = self.last_dirty.of(pg) {
                objects += dirty.objects;
                lost_bytes += dirty.bytes;
                format!(
                    "{} dirty {} ({}) of pool '{}' at its last report",
                    count(dirty.objects),
                    objects_of(dirty.objects),
                    bytes(dirty.bytes),
                    base.name
                )
            } else {
                is_all_known = false;
                format!("how many objects of pool '{}' were dirty is not known", base.name)
            };
            is_all_safe &= is_safe;
            detail.push(format!(
                "pg {pg} of cache pool '{}' lost all copies: {what}; operations wait until ceph osd force-create-pg {pg} \
                 --yes-i-really-mean-it accepts that",
                pool.name
            ));
        }
        if detail.is_empty() {
            return;
        }
        let pgs = detail.len();
        let mut summary = format!("{pgs} {} of cache pools lost all copies", plural(pgs, "pg"));
        summary += &if is_all_safe {
            ", with nothing that the base pools lack".to_owned()
        } else {
            let more = if is_all_known { "" } else { " or more" };
            let what = objects_of(objects);
            format!(
                ", with {}{more} dirty {what} ({}) at their last reports",
                count(objects),
                bytes(lost_bytes)
            )
        };
        let severity = if is_all_safe { Severity::Warn } else { Severity::Error };
        health.add("CACHE_POOL_DIRTY_LOST", severity, summary, pgs, detail);
    }
}

fn objects_of(number: u64) -> &'static str {
    if number == 1 { "object" } else { "objects" }
}
