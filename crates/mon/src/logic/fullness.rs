//! Full OSDs and full pools: flags in the map that stop writes before OSDs run out of space.
//!
//! Reports are not stored. A map authority that has just started does not know which OSDs are full and how many objects exist.
//! So it clears a pool's flags only after every OSD whose report could confirm them has reported.

use super::{LogLevel, MapState, Now};
use nacre_types::ids::{OsdId, PgId, PoolId};
use nacre_types::osdmap::OsdInfo;
use nacre_types::pool::{Pool, flag};
use nacre_types::stats::ObjectSums;
use std::cell::LazyCell;
use std::collections::BTreeSet;
use std::sync::Arc;

/// How full an OSD is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fullness {
    /// Has room for writes and backfill.
    Fine,
    /// Above `nearfull_ratio`.
    Near,
    /// Above `backfillfull_ratio`: accepts no backfill.
    Backfill,
    /// Above `full_ratio`, or reported full by its store: accepts no writes.
    Full,
}

impl MapState {
    /// How full an OSD is, according to its last report and its store's full state.
    pub fn fullness(&self, osd: OsdId) -> Fullness {
        let map = &self.working;
        if map.osds.get(&osd).is_some_and(|info| info.full) {
            return Fullness::Full;
        }
        let Some(stats) = self.stats.osds.get(&osd).filter(|s| s.total_bytes > 0) else {
            return Fullness::Fine;
        };
        let used = stats.total_bytes.saturating_sub(stats.available_bytes) as f64 / stats.total_bytes as f64;
        if used >= f64::from(map.full_ratio) {
            Fullness::Full
        } else if used >= f64::from(map.backfillfull_ratio) {
            Fullness::Backfill
        } else if used >= f64::from(map.nearfull_ratio) {
            Fullness::Near
        } else {
            Fullness::Fine
        }
    }

    /// The objects of a pool, as last reported.
    pub fn pool_sums(&self, pool: PoolId) -> ObjectSums {
        let mut sums = ObjectSums::default();
        let pgs = self.stats.pgs.iter().filter(|(pg, _)| pg.pool == pool);
        for (_, stats) in pgs {
            sums.bytes += stats.sums.bytes;
            sums.objects += stats.sums.objects;
            sums.clones += stats.sums.clones;
            sums.dirty += stats.sums.dirty;
            sums.dirty_bytes += stats.sums.dirty_bytes;
            sums.whiteouts += stats.sums.whiteouts;
            sums.omap_objects += stats.sums.omap_objects;
            sums.omap_bytes += stats.sums.omap_bytes;
            sums.omap_keys += stats.sums.omap_keys;
        }
        sums
    }

    /// Sets and clears the pools' full flags and the OSDs' full marks.
    pub(crate) fn update_fullness(&mut self, now: Now) {
        self.stats.prune(&self.working);
        let level = |wanted: Fullness| -> BTreeSet<i32> {
            let osds = self.working.osds.iter().filter(|(_, info)| info.up && info.is_in());
            osds.filter(|(id, _)| self.fullness(**id) >= wanted).map(|(id, _)| id.0 as i32).collect()
        };
        let (full, backfill, near) =
            (level(Fullness::Full), level(Fullness::Backfill), level(Fullness::Near));
        let mut changed = Vec::new();
        for (id, pool) in &self.working.pools {
            // Computed only if an OSD is near full, which is rare.
            let devices = LazyCell::new(|| self.devices_of_rule(u32::from(pool.crush_rule)));
            let hit = |osds: &BTreeSet<i32>| osds.iter().any(|o| devices.contains(o));
            let over_quota = (pool.quota_max_bytes > 0 || pool.quota_max_objects > 0) && {
                let sums = self.pool_sums(*id);
                (pool.quota_max_bytes > 0 && sums.bytes >= pool.quota_max_bytes)
                    || (pool.quota_max_objects > 0 && sums.objects >= pool.quota_max_objects)
                    || (pool.has_flag(flag::FULL_QUOTA) && !self.is_below_quota(*id, pool, sums))
            };
            let stays_full = || pool.has_flag(flag::FULL) && !self.all_osds_reported(&devices);
            let mut flags =
                pool.flags & !(flag::FULL | flag::FULL_QUOTA | flag::BACKFILLFULL | flag::NEARFULL);
            if over_quota {
                flags |= flag::FULL | flag::FULL_QUOTA;
            } else if hit(&full) || stays_full() {
                flags |= flag::FULL;
            } else if hit(&backfill) {
                flags |= flag::BACKFILLFULL;
            } else if hit(&near) {
                flags |= flag::NEARFULL;
            }
            if flags != pool.flags {
                changed.push((*id, flags, over_quota));
            }
        }
        let next = self.next_epoch();
        for (id, flags, over_quota) in changed {
            let Some(pool) = self.working.pools.get_mut(&id).map(Arc::make_mut) else { continue };
            let was = pool.flags;
            pool.flags = flags;
            pool.last_change = next;
            self.changes.pools.insert(id);
            let text = if over_quota && was & flag::FULL_QUOTA == 0 {
                format!("pool '{}' is full (running out of quota)", pool.name)
            } else if flags & flag::FULL != 0 && was & flag::FULL == 0 {
                format!("pool '{}' is full (no space)", pool.name)
            } else if flags & flag::FULL == 0 && was & flag::FULL != 0 {
                format!("pool '{}' no longer out of quota or space; removing NO_QUOTA flag", pool.name)
            } else {
                continue;
            };
            self.log.append(now, "mon", LogLevel::Warn, text);
        }
    }

    /// Whether there are OSDs among `devices` that are up and in, and all of these have reported since this map authority started.
    fn all_osds_reported(&self, devices: &BTreeSet<i32>) -> bool {
        let counts =
            |osd: OsdId, info: &OsdInfo| info.up && info.is_in() && devices.contains(&(osd.0 as i32));
        let mut counting = self.working.osds.iter().filter(|(osd, info)| counts(**osd, info)).peekable();
        counting.peek().is_some() && counting.all(|(osd, _)| self.stats.osds.contains_key(osd))
    }

    /// Whether a pool whose reported PGs sum up to `sums` is below its quota. All PGs whose primary is up must have been
    /// reported since this map authority started. The primaries of the others may never come back: those PGs count as last
    /// reported, or otherwise with the average of the pool, since objects are spread over PGs by their hash.
    fn is_below_quota(&self, id: PoolId, pool: &Pool, sums: ObjectSums) -> bool {
        let (mut reported, mut unknown) = (0_u128, 0_u128);
        for seed in 0..pool.pg_num {
            let pg = PgId::new(id, seed);
            if self.stats.pgs.contains_key(&pg) {
                reported += 1;
            } else if self.working.membership(pg).is_some_and(|m| !self.working.is_up(m.primary)) {
                unknown += 1;
            } else {
                return false;
            }
        }
        let below = |quota: u64, sum: u64| {
            quota == 0 || u128::from(sum) * (reported + unknown) < u128::from(quota) * reported
        };
        reported > 0 && below(pool.quota_max_bytes, sums.bytes) && below(pool.quota_max_objects, sums.objects)
    }

    /// The devices that a rule can choose.
    pub(super) fn devices_of_rule(&self, rule: u32) -> BTreeSet<i32> {
        let crush = &self.working.crush;
        crush.rule_roots(rule).into_iter().flat_map(|root| crush.devices_below(root)).collect()
    }
}
