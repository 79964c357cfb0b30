//! Slow ops: warnings in the log and the cluster log, and the count for health (SLOW_OPS).

use super::Control;
use crate::tracker::ClockReading;
use nacre_types::ids::PgId;
use nacre_types::msg::LogAppend;
use nacre_types::stats::SlowOps;
use std::collections::BTreeMap;

/// The most ops that are logged per shard and round: more lines of a flood add no information.
const MAX_COMPLAINTS: usize = 5;

impl Control {
    /// Logs slow ops that are due, in Ceph's wording. Returns the slow ops.
    pub(crate) fn watch_slow_ops(&mut self, now_ns: u64) -> SlowOps {
        let complaint_ns = self.shared.config.get().osd.osd_op_complaint_time.as_nanos() as u64;
        self.looks.update_slow_ops(now_ns, &self.shared.progress, complaint_ns);
        let slow = self.looks.slow_ops();
        if slow.count == 0 {
            return slow;
        }
        let clocks = ClockReading { now_ns, wall_ns: self.shared.world.wall_ns() };
        let mut complained = false;
        let metrics = &self.shared.metrics;
        self.looks.visit_idle_shards(|at, shard| {
            for line in shard.tracker_mut().complaints(clocks, MAX_COMPLAINTS) {
                tracing::warn!("{line}");
                complained = true;
                metrics[at].op_slow.inc();
            }
        });
        if complained && self.shared.config.get().global.clog_to_monitors {
            let text = self.slow_summary(now_ns, slow.count);
            self.shared.to_mon(&LogAppend { level: "warn".to_owned(), text });
        }
        slow
    }

    /// `2 slow requests (by type [ 'delayed' : 2 ] most affected pool [ 'p' : 2 ])`.
    fn slow_summary(&mut self, now_ns: u64, count: u64) -> String {
        let mut types: BTreeMap<&str, u64> = BTreeMap::new();
        let mut pools: BTreeMap<_, u64> = BTreeMap::new();
        self.looks.visit_idle_shards(|_, shard| {
            shard.tracker().slow_by(now_ns, |text, pg: PgId| {
                *types.entry(text).or_default() += 1;
                *pools.entry(pg.pool).or_default() += 1;
            });
        });
        let types: Vec<String> = types.iter().map(|(text, n)| format!("'{text}' : {n}")).collect();
        let mut out = format!("{count} slow requests (by type [ {} ]", types.join(" "));
        if let Some((pool, n)) = pools.iter().max_by_key(|(_, n)| **n) {
            let map = self.shared.map.load();
            let name = map.as_ref().and_then(|map| map.pools.get(pool).map(|pool| pool.name.clone()));
            let name = name.unwrap_or_else(|| pool.to_string());
            out.push_str(&format!(" most affected pool [ '{name}' : {n} ]"));
        }
        out.push(')');
        out
    }
}
