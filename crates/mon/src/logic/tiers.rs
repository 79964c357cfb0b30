//! Cache tiers: what the reports of a cache's PGs prove, and which OSDs keep a cache in memory.
//!
//! Reports are not stored and arrive late: a sum of the received ones does not cover PGs that have not reported, or reported
//! before a change. Commands that would hide or mix data require a report of each PG, made with a map that contains the change.

use super::{MapState, Now};
use nacre_types::ids::{Epoch, OsdId, PgId, PoolId};
use nacre_types::pool::{Pool, flag};
use nacre_types::stats::PgStats;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Why a pool is not known to satisfy a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UnverifiedReason {
    /// PGs have not reported with a map of the epoch or later, or still count their objects.
    Unreported {
        /// The number of PGs.
        pgs: usize,
        /// One of them.
        first: PgId,
    },
    /// PGs have objects that they must not have.
    Objects {
        /// The number of objects.
        objects: u64,
        /// A PG that has some.
        first: PgId,
    },
}

/// Objects of a PG of a cache that the base lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirtySums {
    /// The number of objects.
    pub objects: u64,
    /// Bytes of their data.
    pub bytes: u64,
}

/// The dirty objects of PGs of caches at their last reports. They survive a restart of the map authority, and are shown for
/// PGs that lost all copies.
#[derive(Clone, Debug, Default)]
pub struct LastReportedDirty {
    pgs: BTreeMap<PgId, DirtySums>,
    /// Pools with unstored changes.
    changed: BTreeSet<PoolId>,
    stored_ms: u64,
}

impl LastReportedDirty {
    /// The time between two times of storing, in milliseconds.
    const STORE_MS: u64 = 10_000;

    /// Adds the stored record of a pool.
    ///
    /// # Errors
    /// If the record can't be decoded.
    pub fn load_record(&mut self, record: &[u8]) -> Result<(), postcard::Error> {
        self.pgs.extend(postcard::from_bytes::<Vec<(PgId, DirtySums)>>(record)?);
        Ok(())
    }

    /// The dirty objects of a PG; `None` if they are unknown.
    pub fn of(&self, pg: PgId) -> Option<DirtySums> {
        self.pgs.get(&pg).copied()
    }

    fn note(&mut self, stats: &PgStats) {
        let sums = DirtySums { objects: stats.sums.dirty, bytes: stats.sums.dirty_bytes };
        if self.pgs.insert(stats.pg, sums) != Some(sums) {
            self.changed.insert(stats.pg.pool);
        }
    }

    /// Removes a PG that is created again.
    pub(crate) fn forget(&mut self, pg: PgId) {
        if self.pgs.remove(&pg).is_some() {
            self.changed.insert(pg.pool);
        }
    }

    fn retain(&mut self, is_cache: impl Fn(PoolId) -> bool) {
        let changed = &mut self.changed;
        self.pgs.retain(|pg, _| {
            let stays = is_cache(pg.pool);
            if !stays {
                changed.insert(pg.pool);
            }
            stays
        });
    }

    /// The records that are due to be stored, `None` for those to be removed.
    fn take_due(&mut self, now_ms: u64) -> Vec<(PoolId, Option<Vec<u8>>)> {
        if self.changed.is_empty() || now_ms < self.stored_ms + Self::STORE_MS {
            return Vec::new();
        }
        self.stored_ms = now_ms;
        let changed = std::mem::take(&mut self.changed).into_iter();
        let record = |pool: PoolId| {
            let range = PgId::new(pool, 0)..=PgId::new(pool, u32::MAX);
            let pgs: Vec<(PgId, DirtySums)> = self.pgs.range(range).map(|(pg, sums)| (*pg, *sums)).collect();
            let encode = || postcard::to_allocvec(&pgs).expect("invariant: a plain structure always encodes");
            (!pgs.is_empty()).then(encode)
        };
        changed.map(|pool| (pool, record(pool))).collect()
    }
}

impl MapState {
    /// Whether all PGs of `pool` have reported completely since `epoch`, and `count` gives 0 for each. Objects that are known
    /// to exist take precedence over missing reports.
    pub(crate) fn all_pgs_report_zero(
        &self,
        pool: PoolId,
        epoch: Epoch,
        count: impl Fn(&PgStats) -> u64,
    ) -> Result<(), UnverifiedReason> {
        let pgs = (0..self.working.pools[&pool].pg_num).map(|seed| PgId::new(pool, seed));
        let (mut unreported, mut holding) = (Vec::new(), Vec::new());
        let mut objects = 0_u64;
        for pg in pgs {
            let report = self.stats.pgs.get(&pg);
            let found = report.map_or(0, &count);
            if found > 0 {
                objects += found;
                holding.push(pg);
            } else if !report.is_some_and(|stats| stats.reported_epoch >= epoch && stats.sums_complete) {
                unreported.push(pg);
            }
        }
        match (holding.first(), unreported.first()) {
            (Some(first), _) => Err(UnverifiedReason::Objects { objects, first: *first }),
            (None, Some(first)) => Err(UnverifiedReason::Unreported { pgs: unreported.len(), first: *first }),
            (None, None) => Ok(()),
        }
    }

    /// Whether nothing in a cache is dirty, and nothing can become dirty in its mode: its overlay may be removed.
    pub fn is_flushed(&self, cache: PoolId) -> bool {
        let tiering = &self.working.pools[&cache].tiering;
        let since = tiering.mode_epoch.max(tiering.overlay_epoch);
        !tiering.cache_mode.allows_dirty()
            && self.all_pgs_report_zero(cache, since, |stats| stats.sums.dirty).is_ok()
    }

    /// Records the dirty objects of a PG of a cache.
    pub(super) fn note_dirty(&mut self, stats: &PgStats) {
        let Some(pool) = self.working.pools.get(&stats.pg.pool) else { return };
        if pool.tiering.tier_of.is_none() || !stats.sums_complete {
            return;
        }
        self.last_dirty.note(stats);
        let writes_through = pool.has_flag(flag::CACHE_WRITE_THROUGH);
        if writes_through && stats.reported_epoch >= pool.last_change && stats.sums.dirty == 0 {
            self.stats.written_through.insert(stats.pg, stats.reported_epoch);
        }
    }

    /// Makes the dirty objects of PGs of caches durable from time to time.
    pub(super) fn persist_dirty_sums(&mut self, now: Now) {
        let is_cache =
            |pool: PoolId| self.working.pools.get(&pool).is_some_and(|pool| pool.tiering.tier_of.is_some());
        self.last_dirty.retain(is_cache);
        for (pool, value) in self.last_dirty.take_due(now.mono_ms) {
            self.keys.insert(crate::keys::tier_dirty(pool), value);
        }
    }

    /// Whether everything that a PG of a cache has acknowledged is in the base. Objects may be dirty: they are being
    /// flushed, and their changes are not acknowledged yet.
    pub(crate) fn has_flushed_acked(&self, pg: PgId) -> bool {
        let Some(pool) = self.committed.pools.get(&pg.pool) else { return false };
        pool.has_flag(flag::CACHE_WRITE_THROUGH)
            && self.stats.written_through.get(&pg).is_some_and(|since| *since >= pool.last_change)
    }

    /// Whether a PG of a cache whose copies are lost had nothing that the base lacks.
    pub(crate) fn had_no_dirty_objects(&self, pg: PgId) -> bool {
        let Some(pool) = self.committed.pools.get(&pg.pool) else { return false };
        let since = pool.tiering.mode_epoch.max(pool.tiering.overlay_epoch);
        let report =
            self.stats.pgs.get(&pg).filter(|stats| stats.sums_complete && stats.reported_epoch >= since);
        let was_clean = report.is_some_and(|stats| stats.sums.dirty == 0);
        self.has_flushed_acked(pg) || !pool.tiering.cache_mode.allows_dirty() && was_clean
    }

    /// Objects and bytes that only the cache has and that were acknowledged to clients.
    pub(crate) fn acknowledged_dirty(&self, pool: PoolId) -> (u64, u64) {
        let pgs = self.stats.pgs.iter().filter(|(pg, _)| pg.pool == pool && !self.has_flushed_acked(**pg));
        pgs.fold((0, 0), |(objects, bytes), (_, stats)| {
            (objects + stats.sums.dirty, bytes + stats.sums.dirty_bytes)
        })
    }

    /// OSDs with MemStores among those that a CRUSH rule can choose. A power failure loses their contents.
    pub(crate) fn memstore_osds(&self, rule: u8) -> Vec<OsdId> {
        let devices = self.devices_of_rule(u32::from(rule)).into_iter();
        let osds = devices.filter_map(|device| u32::try_from(device).ok().map(OsdId));
        let kind = |osd: &OsdId| self.working.osds.get(osd)?.metadata.get("osd_objectstore");
        osds.filter(|osd| kind(osd).is_some_and(|kind| kind == "memstore")).collect()
    }

    /// The OSDs with MemStores of a cache whose mode keeps acknowledged writes; empty for other pools.
    pub(crate) fn cache_memstore_osds(&self, pool: &Pool) -> Vec<OsdId> {
        let writes_through = pool.has_flag(flag::CACHE_WRITE_THROUGH);
        if pool.tiering.tier_of.is_none() || !pool.tiering.cache_mode.allows_dirty() || writes_through {
            return Vec::new();
        }
        self.memstore_osds(pool.crush_rule)
    }
}
