//! Statistics of OSDs and PGs, as last reported. Not stored: OSDs repeat all of them from time to time.

use super::{MapState, Now};
use nacre_types::ids::{Epoch, OsdId, PgId, PoolId};
use nacre_types::msg::StatsReport;
use nacre_types::osdmap::OsdMap;
use nacre_types::stats::{IoCounters, OsdStats, PgStats};
use std::collections::{BTreeMap, VecDeque};

/// Samples of I/O counters kept for rates.
const SAMPLES: usize = 64;
/// Time over which rates are averaged, in milliseconds.
const SMOOTH_MS: u64 = 10_000;
/// Health lines that are kept for one OSD.
const MAX_OSD_HEALTH: usize = 64;
/// How long a report of a starting OSD is valid, in milliseconds.
const STARTING_MS: u64 = 10_000;

/// I/O rates of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PoolIoRates {
    /// Bytes read per second.
    pub read_bytes_s: u64,
    /// Bytes written per second.
    pub write_bytes_s: u64,
    /// Reads per second.
    pub reads_s: u64,
    /// Writes per second.
    pub writes_s: u64,
    /// Objects recovered per second.
    pub recovered_objects_s: u64,
    /// Bytes recovered per second.
    pub recovered_bytes_s: u64,
}

/// The latest reports.
#[derive(Clone, Debug, Default)]
pub struct StatsState {
    /// By OSD.
    pub osds: BTreeMap<OsdId, OsdStats>,
    /// By PG, from its primary.
    pub pgs: BTreeMap<PgId, PgStats>,
    /// The last reports of starting OSDs, and when they arrived.
    starting: BTreeMap<OsdId, (u64, Vec<(String, String)>)>,
    /// The OSD that sent a PG's report.
    reporters: BTreeMap<PgId, OsdId>,
    /// Each OSD's last counters of each PG that it was the primary of. An OSD keeps counting where it left off when it becomes
    /// primary again.
    counters: BTreeMap<(PgId, OsdId), IoCounters>,
    /// PGs of caches that write through and have since reported that nothing was dirty, with the epoch of that report:
    /// everything that they acknowledged is in the base.
    pub(super) written_through: BTreeMap<PgId, Epoch>,
    /// I/O since this map authority started, by pool.
    totals: BTreeMap<PoolId, IoCounters>,
    samples: VecDeque<(u64, BTreeMap<PoolId, IoCounters>)>,
    /// The number of reports; `pg dump` shows it as its version.
    pub version: u64,
    /// When the last report arrived, in nanoseconds since 1970.
    pub stamp_ns: u64,
}

impl StatsState {
    /// Whether the OSD that reported the PG is down, so that its report is out of date.
    pub fn is_stale(&self, map: &OsdMap, pg: PgId) -> bool {
        self.reporters.get(&pg).is_some_and(|osd| !map.is_up(*osd))
    }

    /// The reports of starting OSDs: OSD, code, text.
    pub fn starting(&self, now: Now) -> impl Iterator<Item = (OsdId, &str, &str)> {
        let current = move |at: u64| now.mono_ms.saturating_sub(at) < STARTING_MS;
        let told = self.starting.iter().filter(move |(_, (at, _))| current(*at));
        told.flat_map(|(osd, (_, lines))| {
            lines.iter().map(|(code, text)| (*osd, code.as_str(), text.as_str()))
        })
    }

    /// I/O since this map authority started.
    pub fn pool_io_counters(&self, pool: PoolId) -> IoCounters {
        self.totals.get(&pool).copied().unwrap_or_default()
    }

    /// Rates over the last ten seconds.
    pub fn io_rates(&self) -> BTreeMap<PoolId, PoolIoRates> {
        let Some((last_ms, last)) = self.samples.back() else { return BTreeMap::new() };
        let from = last_ms.saturating_sub(SMOOTH_MS);
        let Some((first_ms, first)) = self.samples.iter().find(|(at, _)| *at >= from) else {
            return BTreeMap::new();
        };
        let elapsed_ms = last_ms - first_ms;
        if elapsed_ms == 0 {
            return BTreeMap::new();
        }
        let rate = |later: u64, earlier: u64| later.saturating_sub(earlier).saturating_mul(1000) / elapsed_ms;
        let pool_rate = |(pool, b): (&PoolId, &IoCounters)| {
            let a = first.get(pool).copied().unwrap_or_default();
            let io = PoolIoRates {
                read_bytes_s: rate(b.read_bytes, a.read_bytes),
                write_bytes_s: rate(b.write_bytes, a.write_bytes),
                reads_s: rate(b.reads, a.reads),
                writes_s: rate(b.writes, a.writes),
                recovered_objects_s: rate(b.recovered_objects, a.recovered_objects),
                recovered_bytes_s: rate(b.recovered_bytes, a.recovered_bytes),
            };
            (*pool, io)
        };
        last.iter().map(pool_rate).collect()
    }

    pub(super) fn sample_io(&mut self, now: Now) {
        self.samples.push_back((now.mono_ms, self.totals.clone()));
        if self.samples.len() > SAMPLES {
            self.samples.pop_front();
        }
    }

    fn take(&mut self, osd: OsdId, stats: PgStats) {
        let old = self.pgs.get(&stats.pg);
        let same_source = self.reporters.get(&stats.pg) == Some(&osd);
        if same_source
            && old.is_some_and(|o| o.reported_seq > stats.reported_seq && o.interval == stats.interval)
        {
            return;
        }
        let before = self.counters.insert((stats.pg, osd), stats.io).unwrap_or_default();
        let total = self.totals.entry(stats.pg.pool).or_default();
        // The counters of a new process start at 0, so their whole value is new.
        let grown = |now: u64, before: u64| if now >= before { now - before } else { now };
        total.reads += grown(stats.io.reads, before.reads);
        total.read_bytes += grown(stats.io.read_bytes, before.read_bytes);
        total.writes += grown(stats.io.writes, before.writes);
        total.write_bytes += grown(stats.io.write_bytes, before.write_bytes);
        total.recovered_objects += grown(stats.io.recovered_objects, before.recovered_objects);
        total.recovered_bytes += grown(stats.io.recovered_bytes, before.recovered_bytes);
        self.reporters.insert(stats.pg, osd);
        self.pgs.insert(stats.pg, stats);
    }

    /// Removes the reports of pools, PGs and OSDs that no longer exist.
    pub(super) fn prune(&mut self, map: &OsdMap) {
        let exists = |pg: &PgId| map.pools.get(&pg.pool).is_some_and(|pool| pg.seed < pool.pg_num);
        self.pgs.retain(|pg, _| exists(pg));
        self.reporters.retain(|pg, _| exists(pg));
        self.counters.retain(|(pg, osd), _| exists(pg) && map.osds.contains_key(osd));
        self.written_through.retain(|pg, _| exists(pg));
        self.totals.retain(|pool, _| map.pools.contains_key(pool));
        self.osds.retain(|osd, _| map.osds.contains_key(osd));
        self.starting.retain(|osd, _| map.osds.contains_key(osd));
    }
}

impl MapState {
    pub(super) fn report(&mut self, now: Now, osd: OsdId, mut report: StatsReport) {
        report.osd.health.truncate(MAX_OSD_HEALTH);
        if report.starting {
            if self.working.osds.contains_key(&osd) {
                self.stats.starting.insert(osd, (now.mono_ms, report.osd.health));
            }
            return;
        }
        if !self.working.is_up(osd) {
            return;
        }
        self.stats.starting.remove(&osd);
        self.last_beacon.insert(osd, now.mono_ms);
        self.stats.osds.insert(osd, report.osd);
        let incarnation = self.working.osds.get(&osd).and_then(|info| info.incarnation);
        for mut stats in report.pgs {
            // Only the primary's report of a PG counts.
            let Some(membership) = self.working.membership(stats.pg).filter(|m| m.primary == osd) else {
                continue;
            };
            // A primary that lost its contents does not know the PG's former contents.
            let own = membership.in_sync.iter().find(|member| member.osd == osd);
            if !membership.interval.is_creation()
                && own.is_some_and(|own| incarnation.is_some_and(|now| now != own.incarnation))
                && let Some(before) = self.stats.pgs.get(&stats.pg)
            {
                stats.sums = before.sums;
                (stats.sums_complete, stats.reported_epoch) = (before.sums_complete, before.reported_epoch);
            }
            self.note_dirty(&stats);
            self.stats.take(osd, stats);
        }
        self.stats.version += 1;
        self.stats.stamp_ns = now.wall_ns;
        self.update_fullness(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_is_counted_once_when_the_primary_changes_and_returns() {
        let pg = PgId { pool: PoolId(1), seed: 0 };
        let report =
            |writes| PgStats { pg, io: IoCounters { writes, ..Default::default() }, ..Default::default() };
        let mut stats = StatsState::default();
        for (osd, writes, total) in [(0, 100, 100), (1, 10, 110), (0, 105, 115), (1, 30, 135), (1, 5, 140)] {
            stats.take(OsdId(osd), report(writes));
            assert_eq!(stats.pool_io_counters(pg.pool).writes, total, "osd.{osd} reports {writes}");
        }
    }
}
