//! Cache tiers: what the reports of a cache's PGs prove, and which OSDs keep a cache in memory.
//!
//! Reports are not stored and come late: a sum of all that came says nothing of PGs that did not report, or did so
//! before a change. Commands that would hide or mix data ask for a report of each PG, made with a map that has the change.

use super::MapState;
use nacre_types::ids::{Epoch, OsdId, PgId, PoolId};
use nacre_types::pool::{Pool, flag};
use nacre_types::stats::PgStats;

/// Why a pool is not known to be as it has to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// PGs have not reported with a map of the epoch or later, or still count their objects.
    Unreported {
        /// How many.
        pgs: usize,
        /// One of them.
        first: PgId,
    },
    /// PGs have objects that they must not have.
    Objects {
        /// How many objects.
        objects: u64,
        /// A PG that has some.
        first: PgId,
    },
}

impl MapState {
    /// Whether all PGs of `pool` have reported completely since `epoch`, and `count` gives 0 for each. Objects that are known
    /// to be there count for more than reports that are missing.
    pub(crate) fn all_report_none(
        &self,
        pool: PoolId,
        epoch: Epoch,
        count: impl Fn(&PgStats) -> u64,
    ) -> Result<(), Doubt> {
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
            (Some(first), _) => Err(Doubt::Objects { objects, first: *first }),
            (None, Some(first)) => Err(Doubt::Unreported { pgs: unreported.len(), first: *first }),
            (None, None) => Ok(()),
        }
    }

    /// Whether nothing is dirty in a cache, nor can become so in its mode: its overlay may go.
    pub fn is_flushed(&self, cache: PoolId) -> bool {
        let tiering = &self.working.pools[&cache].tiering;
        let since = tiering.mode_epoch.max(tiering.overlay_epoch);
        !tiering.cache_mode.keeps_writes()
            && self.all_report_none(cache, since, |stats| stats.sums.dirty).is_ok()
    }

    /// OSDs with MemStores among those that a CRUSH rule can choose: what they keep is gone after a power cut.
    pub(crate) fn volatile_osds(&self, rule: u8) -> Vec<OsdId> {
        let devices = self.devices_of_rule(u32::from(rule)).into_iter();
        let osds = devices.filter_map(|device| u32::try_from(device).ok().map(OsdId));
        let kind = |osd: &OsdId| self.working.osds.get(osd)?.metadata.get("osd_objectstore");
        osds.filter(|osd| kind(osd).is_some_and(|kind| kind == "memstore")).collect()
    }

    /// The OSDs with MemStores of a cache whose mode keeps acknowledged writes; none for other pools.
    pub(crate) fn volatile_cache(&self, pool: &Pool) -> Vec<OsdId> {
        let writes_through = pool.has_flag(flag::CACHE_WRITE_THROUGH);
        if pool.tiering.tier_of.is_none() || !pool.tiering.cache_mode.keeps_writes() || writes_through {
            return Vec::new();
        }
        self.volatile_osds(pool.crush_rule)
    }
}
