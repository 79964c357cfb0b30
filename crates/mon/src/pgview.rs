//! PGs as commands and health checks use them: the map's membership, the up set and the primary's last report combined.

use crate::logic::{MapState, has_lost_copy};
use nacre_types::ids::{OsdId, PgId};
use nacre_types::osdmap::{Member, PgMembership};
use nacre_types::placement::PgMapper;
use nacre_types::stats::{PgStats, pg_state};
use std::collections::BTreeMap;

/// The current state of one PG.
#[derive(Clone, Debug)]
pub(crate) struct PgView {
    pub(crate) pg: PgId,
    /// Bits of [`pg_state`]; 0 is `unknown`.
    pub(crate) state: u64,
    /// The up set, the preferred primary first.
    pub(crate) up: Vec<OsdId>,
    /// The in-sync set, the primary first.
    pub(crate) acting: Vec<OsdId>,
    /// The last report, or an empty one.
    pub(crate) stats: PgStats,
    /// Whether there is a report.
    pub(crate) reported: bool,
    /// The members that lost their contents, if no member has kept them.
    pub(crate) lost_by: Vec<OsdId>,
}

impl PgView {
    /// `active+clean` and the like.
    pub(crate) fn state_text(&self) -> String {
        pg_state::to_text(self.state)
    }

    pub(crate) fn has_state(&self, bits: u64) -> bool {
        self.state & bits != 0
    }
}

/// Sums over PGs.
#[derive(Clone, Debug, Default)]
pub(crate) struct PgSums {
    pub(crate) bytes: u64,
    pub(crate) objects: u64,
    /// The number of object copies that should exist.
    pub(crate) copies: u64,
    pub(crate) degraded: u64,
    pub(crate) misplaced: u64,
    pub(crate) unfound: u64,
    /// PGs by state, most frequent first.
    pub(crate) by_state: Vec<(String, usize)>,
    pub(crate) pgs: usize,
    pub(crate) inactive: usize,
    pub(crate) unknown: usize,
    pub(crate) remapped: usize,
}

impl MapState {
    /// All PGs, in order of pools and seeds.
    pub(crate) fn pg_views(&self) -> Vec<PgView> {
        let map = &self.committed;
        let mut mapper = PgMapper::new(map);
        map.pg_ids().map(|pg| self.view(&mut mapper, pg)).collect()
    }

    fn view(&self, mapper: &mut PgMapper<'_>, pg: PgId) -> PgView {
        let map = &self.committed;
        let up = mapper.up(pg);
        let membership = map.membership(pg);
        let report = self.stats.pgs.get(&pg);
        let mut state = report.map_or(0, |stats| stats.state);
        if report.is_some() && self.stats.is_stale(map, pg) {
            state |= pg_state::STALE;
        }
        let acting = match membership {
            Some(membership) => membership
                .acting()
                .into_iter()
                .filter(|osd| map.osds.get(osd).is_some_and(|o| o.up))
                .collect(),
            None => up.clone(),
        };
        let mut stats = report.cloned().unwrap_or_else(|| PgStats { pg, ..PgStats::default() });
        let lost_by = membership.map_or_else(Vec::new, |membership| self.lost_by(membership));
        if !lost_by.is_empty() {
            // The report dates from before the loss.
            state = pg_state::INCOMPLETE;
            stats.unfound = stats.sums.objects;
        }
        PgView { pg, state, up, acting, stats, reported: report.is_some(), lost_by }
    }

    /// The members of a PG if all of them lost their contents or were removed; empty while one may still have them.
    fn lost_by(&self, membership: &PgMembership) -> Vec<OsdId> {
        // Members of an empty PG in its first interval have nothing to lose.
        if membership.interval.is_creation() {
            return Vec::new();
        }
        let lost = |member: &&Member| has_lost_copy(&self.committed, **member);
        let lost: Vec<OsdId> = membership.in_sync.iter().filter(lost).map(|member| member.osd).collect();
        if lost.len() == membership.in_sync.len() { lost } else { Vec::new() }
    }

    pub(crate) fn pg_sums(&self, views: &[PgView]) -> PgSums {
        let mut sums = PgSums::default();
        let mut by_state: BTreeMap<String, usize> = BTreeMap::new();
        for view in views {
            let size = self.committed.pools.get(&view.pg.pool).map_or(0, |pool| u64::from(pool.size));
            sums.bytes += view.stats.sums.bytes;
            sums.objects += view.stats.sums.objects;
            sums.copies += view.stats.sums.objects * size;
            sums.degraded += view.stats.degraded;
            sums.misplaced += view.stats.misplaced;
            sums.unfound += view.stats.unfound;
            sums.pgs += 1;
            sums.inactive += usize::from(view.state != 0 && !view.has_state(pg_state::ACTIVE));
            sums.unknown += usize::from(view.state == 0);
            sums.remapped += usize::from(view.has_state(pg_state::REMAPPED));
            *by_state.entry(view.state_text()).or_default() += 1;
        }
        sums.by_state = by_state.into_iter().collect();
        sums.by_state.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        sums
    }
}
