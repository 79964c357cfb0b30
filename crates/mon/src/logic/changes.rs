//! The names of what has changed in the working map since the last incremental.

use nacre_types::ids::{OsdId, PgId, PoolId};
use nacre_types::osdmap::{Incremental, OsdMap, PgChange};
use std::collections::BTreeSet;

/// The names of all items that changed since the last proposal.
#[derive(Clone, Debug, Default)]
pub(crate) struct MapChanges {
    pub(crate) osds: BTreeSet<OsdId>,
    pub(crate) pools: BTreeSet<PoolId>,
    pub(crate) pgs: BTreeSet<PgId>,
    pub(crate) blocklist: BTreeSet<String>,
    pub(crate) crush: bool,
    pub(crate) flags: bool,
    pub(crate) ratios: bool,
    pub(crate) max_osd: bool,
    pub(crate) generation: bool,
}

impl MapChanges {
    /// Whether anything changed.
    pub(crate) fn any(&self) -> bool {
        !self.osds.is_empty()
            || !self.pools.is_empty()
            || !self.pgs.is_empty()
            || !self.blocklist.is_empty()
            || self.crush
            || self.flags
            || self.ratios
            || self.max_osd
            || self.generation
    }

    /// The difference from `from` to `to`, which differ only in what is named here.
    pub(crate) fn incremental(self, from: &OsdMap, to: &OsdMap) -> Incremental {
        let mut inc = Incremental {
            fsid: to.fsid,
            epoch: to.epoch,
            modified_ns: to.modified_ns,
            generation: self.generation.then_some(to.generation),
            flags: self.flags.then_some(to.flags),
            pool_max: (from.pool_max != to.pool_max).then_some(to.pool_max),
            max_osd: self.max_osd.then_some(to.max_osd),
            crush: self.crush.then(|| to.crush.clone()),
            ratios: self.ratios.then_some((to.full_ratio, to.backfillfull_ratio, to.nearfull_ratio)),
            ..Incremental::default()
        };
        for id in self.osds {
            match to.osds.get(&id) {
                Some(info) => {
                    inc.osds.insert(id, info.clone());
                }
                None => inc.removed_osds.push(id),
            }
        }
        for id in self.pools {
            match to.pools.get(&id) {
                Some(pool) => {
                    inc.pools.insert(id, pool.clone());
                }
                None => inc.removed_pools.push(id),
            }
        }
        for pg in self.pgs {
            // The PG's pool may have been removed since.
            if let Some(membership) = to.membership(pg) {
                inc.pgs.push(PgChange { pg, membership: membership.clone() });
            }
        }
        for who in self.blocklist {
            let until = to.blocklist.get(&who).copied();
            inc.blocklist.insert(who, until);
        }
        inc.continue_history(from.history);
        let wanted = || OsdMap { history: inc.history, ..to.clone() };
        debug_assert_eq!(from.apply(&inc).ok(), Some(wanted()), "invariant: the incremental is complete");
        inc
    }
}
