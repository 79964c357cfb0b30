//! Tracked ops in the output of Ceph's commands.

use super::{Finished, OpTracker, Stage, Tracked};
use nacre_types::ceph::SessionAddr;
use nacre_types::time::stamp;
use serde_json::{Value, json};

/// One point in time on both clocks: ops are timed by the monotonic clock and shown by the other.
#[derive(Clone, Copy, Debug)]
pub struct ClockReading {
    /// CLOCK_BOOTTIME, nanoseconds.
    pub now_ns: u64,
    /// Nanoseconds since 1970.
    pub wall_ns: u64,
}

impl ClockReading {
    /// The wall-clock time of `at_ns`, for people.
    pub(super) fn stamp(&self, at_ns: u64) -> String {
        stamp(self.wall_ns.saturating_sub(self.now_ns.saturating_sub(at_ns)))
    }
}

impl Stage {
    /// Ceph's text for `flag_point`.
    pub fn text(self) -> &'static str {
        match self {
            Stage::Initiated => "queued for pg",
            Stage::ReachedPg => "reached pg",
            Stage::WaitingForActive | Stage::Delayed => "delayed",
            Stage::Started => "started",
            Stage::WaitingForSubOps => "waiting for sub ops",
            Stage::CommitSent | Stage::Done => "commit sent; apply or cleanup",
        }
    }

    /// Ceph's name of the event.
    fn event(self) -> &'static str {
        match self {
            Stage::Initiated => "initiated",
            Stage::ReachedPg => "reached_pg",
            Stage::WaitingForActive => "waiting for active",
            Stage::Delayed => "delayed",
            Stage::Started => "started",
            Stage::WaitingForSubOps => "waiting for subops",
            Stage::CommitSent => "commit_sent",
            Stage::Done => "done",
        }
    }
}

/// An op's duration in nanoseconds and its output: to be sorted and collected over shards.
pub(crate) type DumpedOp = (u64, Value);

impl OpTracker {
    /// The ops in flight whose descriptions contain one of `filters`, or all; only slow ones with `blocked`.
    pub fn dump_in_flight(&self, clocks: ClockReading, filters: &[&str], blocked: bool) -> Vec<DumpedOp> {
        self.slots
            .iter()
            .flatten()
            .filter(|op| !blocked || self.is_slow(op, clocks.now_ns))
            .filter(|op| op.matches(filters))
            .map(|op| {
                let age_ns = clocks.now_ns.saturating_sub(op.started_ns);
                (age_ns, op.dump(clocks, age_ns))
            })
            .collect()
    }

    /// The slowest recent ops; only those above the slow threshold with `slow`.
    pub fn dump_history(&self, clocks: ClockReading, filters: &[&str], slow: bool) -> Vec<(u64, DumpedOp)> {
        let horizon = clocks.now_ns.saturating_sub(self.limits.history_ns);
        let kept: Vec<&Finished> = if slow {
            self.slow.iter().collect()
        } else {
            self.history.iter().filter(|finished| finished.ended_ns >= horizon).collect()
        };
        kept.into_iter()
            .filter(|finished| finished.op.matches(filters))
            .map(|finished| {
                let shown = (finished.took_ns, finished.op.dump(clocks, finished.took_ns));
                (finished.op.started_ns, shown)
            })
            .collect()
    }
}

impl Tracked {
    pub(super) fn description(&self) -> String {
        let extent = self.extent.map(|(offset, len)| format!(" {offset}~{len}")).unwrap_or_default();
        let more = if self.more_ops > 0 { format!(" +{}", self.more_ops) } else { String::new() };
        let Tracked { reqid, pg, object, op, .. } = self;
        format!("osd_op({reqid} {pg} {object} [{op}{extent}{more}])")
    }

    fn matches(&self, filters: &[&str]) -> bool {
        if filters.is_empty() {
            return true;
        }
        let description = self.description();
        filters.iter().any(|filter| description.contains(filter))
    }

    fn dump(&self, clocks: ClockReading, duration_ns: u64) -> Value {
        let reached = &self.stages[..usize::from(self.reached)];
        let seconds = |us: u32| f64::from(us) / 1e6;
        let events: Vec<Value> = reached
            .iter()
            .enumerate()
            .map(|(at, (stage, us))| {
                // The time in this stage; the last stage shows the total.
                let stayed = match reached.get(at + 1) {
                    Some((_, next_us)) => seconds(next_us.saturating_sub(*us)),
                    None => duration_ns as f64 / 1e9,
                };
                json!({
                    "event": stage.event(),
                    "time": clocks.stamp(self.started_ns + u64::from(*us) * 1000),
                    "duration": stayed,
                })
            })
            .collect();
        let session = self.client_addr.map(|addr| SessionAddr::client(addr.ip(), self.reqid.client));
        let addr = session.map_or_else(|| "-".to_owned(), |session| session.to_string());
        json!({
            "description": self.description(),
            "initiated_at": clocks.stamp(self.started_ns),
            "age": clocks.now_ns.saturating_sub(self.started_ns) as f64 / 1e9,
            "duration": duration_ns as f64 / 1e9,
            "type_data": {
                "flag_point": self.stage().text(),
                "client_info": {
                    "client": format!("client.{}", self.reqid.client),
                    "client_addr": addr,
                    "tid": self.reqid.tid,
                },
                "events": events,
            },
        })
    }
}
