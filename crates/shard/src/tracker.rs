//! Ops in flight, the slowest recent ones and those that are too slow: `dump_ops_in_flight`, `dump_historic_ops`, SLOW_OPS.
//!
//! Each shard has one tracker. Tracking an op costs a slot in a slab and two words per stage, with times that the shard has
//! read anyway; texts are created on request.

mod dump;
#[cfg(test)]
mod tests;

pub use dump::ClockReading;

use nacre_types::ids::{PgId, ReqId};
use nacre_types::msg::OsdRequest;
use nacre_types::object::ObjectId;
use nacre_types::op::Op;
use nacre_types::stats::SlowOps;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// The progress of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Received.
    Initiated,
    /// Passed to its PG.
    ReachedPg,
    /// Delayed until its PG is active: peering, or below min_size.
    WaitingForActive,
    /// Delayed by its PG for another reason: recovery of its object, an earlier write, a lease.
    Delayed,
    /// Execution has started.
    Started,
    /// Executed and sent to the replicas.
    WaitingForSubOps,
    /// Its reply was sent.
    CommitSent,
    /// Finished.
    Done,
}

/// The number of stages that are kept per op. An op that is delayed repeatedly shows its last ones.
const STAGES: usize = 8;

/// The slot of a tracked op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpHandle(u32);

#[derive(Clone, Debug)]
struct Tracked {
    reqid: ReqId,
    pg: PgId,
    object: ObjectId,
    client_addr: Option<SocketAddr>,
    op: &'static str,
    extent: Option<(u64, u64)>,
    more_ops: usize,
    started_ns: u64,
    /// Stages with microseconds since `started_ns`; the first `reached` count.
    stages: [(Stage, u32); STAGES],
    reached: u8,
    /// The age at which it is reported as slow next.
    complain_ns: u64,
}

impl Tracked {
    fn stage(&self) -> Stage {
        self.stages[usize::from(self.reached) - 1].0
    }

    fn reach(&mut self, stage: Stage, now_ns: u64) {
        let after_us = now_ns.saturating_sub(self.started_ns) / 1000;
        let at = usize::from(self.reached).min(STAGES - 1);
        self.stages[at] = (stage, u32::try_from(after_us).unwrap_or(u32::MAX));
        self.reached = at as u8 + 1;
    }
}

/// A finished op.
#[derive(Clone, Debug)]
struct Finished {
    took_ns: u64,
    ended_ns: u64,
    op: Tracked,
}

/// Limits and thresholds, from the options.
#[derive(Clone, Debug)]
pub struct TrackerLimits {
    /// `osd_op_complaint_time` in nanoseconds; 0 for never.
    pub complaint_ns: u64,
    /// `osd_op_history_size`.
    pub history_size: usize,
    /// `osd_op_history_duration` in nanoseconds.
    pub history_ns: u64,
    /// `osd_op_history_slow_op_size`.
    pub slow_size: usize,
    /// `osd_op_history_slow_op_threshold` in nanoseconds.
    pub slow_ns: u64,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct OpTracker {
    slots: Vec<Option<Tracked>>,
    free: Vec<u32>,
    /// The slowest recent ops.
    history: VecDeque<Finished>,
    /// The ops above the slow threshold, oldest first.
    slow: VecDeque<Finished>,
    /// The duration that an op must exceed to enter a full history.
    history_floor_ns: u64,
    limits: TrackerLimits,
}

impl OpTracker {
    /// Creates an empty tracker.
    pub fn new(limits: TrackerLimits) -> OpTracker {
        OpTracker {
            slots: Vec::new(),
            free: Vec::new(),
            history: VecDeque::new(),
            slow: VecDeque::new(),
            history_floor_ns: 0,
            limits,
        }
    }

    /// Changes the limits.
    pub fn set_limits(&mut self, limits: TrackerLimits) {
        self.history_floor_ns = 0;
        self.limits = limits;
    }

    /// The limits.
    pub fn limits(&self) -> &TrackerLimits {
        &self.limits
    }

    /// Starts to track a request that arrived at `arrived_ns` and was passed to its PG at `now_ns`. `client_addr` is `None` for
    /// the OSD's own requests.
    pub fn start(
        &mut self,
        request: &OsdRequest,
        client_addr: Option<SocketAddr>,
        arrived_ns: u64,
        now_ns: u64,
    ) -> OpHandle {
        let (op, extent) = request.ops.first().map_or(("none", None), |op| (op.op.name(), extent_of(&op.op)));
        let mut tracked = Tracked {
            reqid: request.reqid,
            pg: request.pg,
            object: request.object.clone(),
            client_addr,
            op,
            extent,
            more_ops: request.ops.len().saturating_sub(1),
            started_ns: arrived_ns,
            stages: [(Stage::Initiated, 0); STAGES],
            reached: 1,
            complain_ns: self.limits.complaint_ns,
        };
        tracked.reach(Stage::ReachedPg, now_ns);
        match self.free.pop() {
            Some(at) => {
                self.slots[at as usize] = Some(tracked);
                OpHandle(at)
            }
            None => {
                self.slots.push(Some(tracked));
                OpHandle(self.slots.len() as u32 - 1)
            }
        }
    }

    /// Records that an op reached a stage.
    pub fn stage(&mut self, op: OpHandle, stage: Stage, now_ns: u64) {
        if let Some(tracked) = self.slots.get_mut(op.0 as usize).and_then(Option::as_mut) {
            tracked.reach(stage, now_ns);
        }
    }

    /// Ends an op. Returns its duration in nanoseconds.
    pub fn finish(&mut self, op: OpHandle, now_ns: u64) -> u64 {
        let Some(tracked) = self.slots.get_mut(op.0 as usize).and_then(Option::take) else {
            return 0;
        };
        self.free.push(op.0);
        let took_ns = now_ns.saturating_sub(tracked.started_ns);
        let full = self.history.len() >= self.limits.history_size;
        let slow = self.limits.slow_ns > 0 && took_ns >= self.limits.slow_ns;
        let stale = now_ns.saturating_sub(self.limits.history_ns);
        let room = !full || self.history.front().is_some_and(|oldest| oldest.ended_ns < stale);
        if room || slow || took_ns > self.history_floor_ns {
            self.remember(took_ns, now_ns, tracked, slow);
        }
        took_ns
    }

    fn remember(&mut self, took_ns: u64, now_ns: u64, mut op: Tracked, slow: bool) {
        op.reach(Stage::CommitSent, now_ns);
        op.reach(Stage::Done, now_ns);
        let finished = Finished { took_ns, ended_ns: now_ns, op };
        if slow {
            self.slow.push_back(finished.clone());
            while self.slow.len() > self.limits.slow_size {
                self.slow.pop_front();
            }
        }
        let horizon = now_ns.saturating_sub(self.limits.history_ns);
        self.history.retain(|finished| finished.ended_ns >= horizon);
        self.history.push_back(finished);
        while self.history.len() > self.limits.history_size {
            let quickest = self.history.iter().enumerate().min_by_key(|(_, finished)| finished.took_ns);
            let Some((at, _)) = quickest else { return };
            self.history.remove(at);
        }
        self.history_floor_ns = if self.history.len() < self.limits.history_size {
            0
        } else {
            self.history.iter().map(|finished| finished.took_ns).min().unwrap_or(0)
        };
    }

    /// The number of ops in flight.
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn is_slow(&self, op: &Tracked, now_ns: u64) -> bool {
        self.limits.complaint_ns > 0 && now_ns.saturating_sub(op.started_ns) >= self.limits.complaint_ns
    }

    /// Ops that are older than the complaint time.
    pub fn slow(&self, now_ns: u64) -> SlowOps {
        let slow = self.slots.iter().flatten().filter(|op| self.is_slow(op, now_ns));
        let count = slow.clone().count() as u64;
        let oldest = slow.min_by_key(|op| op.started_ns);
        oldest.map_or_else(SlowOps::default, |op| SlowOps {
            count,
            oldest_ms: now_ns.saturating_sub(op.started_ns) / 1_000_000,
            oldest: format!("{} currently {}", op.description(), op.stage().text()),
        })
    }

    /// The log lines for slow ops that are due: each op at the complaint time, and again at twice the age of its last line; at
    /// most `max`, in Ceph's wording.
    pub fn complaints(&mut self, clocks: ClockReading, max: usize) -> Vec<String> {
        let complaint_ns = self.limits.complaint_ns;
        if complaint_ns == 0 {
            return Vec::new();
        }
        let mut lines = Vec::new();
        for op in self.slots.iter_mut().flatten() {
            let age_ns = clocks.now_ns.saturating_sub(op.started_ns);
            if age_ns < op.complain_ns.max(complaint_ns) {
                continue;
            }
            if lines.len() == max {
                break;
            }
            op.complain_ns = age_ns.saturating_mul(2);
            lines.push(format!(
                "slow request {} initiated {} currently {}",
                op.description(),
                clocks.stamp(op.started_ns),
                op.stage().text()
            ));
        }
        lines
    }

    /// Calls `each` for every slow op, with its stage and its PG.
    pub fn slow_by(&self, now_ns: u64, mut each: impl FnMut(&'static str, PgId)) {
        for op in self.slots.iter().flatten().filter(|op| self.is_slow(op, now_ns)) {
            each(op.stage().text(), op.pg);
        }
    }
}

fn extent_of(op: &Op) -> Option<(u64, u64)> {
    match op {
        Op::Read { offset, len } | Op::Zero { offset, len } => Some((*offset, *len)),
        Op::Write { offset, data } => Some((*offset, data.len() as u64)),
        Op::WriteFull { data } => Some((0, data.len() as u64)),
        _ => None,
    }
}
