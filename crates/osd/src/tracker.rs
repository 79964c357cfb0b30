//! Ops in flight and the slowest ones of late: `dump_ops_in_flight`, `dump_historic_ops`, slow op warnings.
//!
//! One tracker belongs to one shard. Following an op costs a slot in a slab and two words per stage; texts are made
//! when somebody asks.

use nacre_types::ids::{PgId, ReqId};
use nacre_types::msg::OsdRequest;
use nacre_types::object::ObjectId;
use nacre_types::op::Op;
use serde_json::{Value, json};
use std::collections::VecDeque;

/// How far an op has come; Ceph's texts of `flag_point`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Handed to its PG's shard.
    Queued,
    /// Given to its PG.
    ReachedPg,
    /// Its PG holds it back: peering, below min_size, recovery of its object, an earlier write.
    Delayed,
    /// Executed and sent to the replicas.
    WaitingForSubOps,
    /// Answered.
    Done,
}

impl Stage {
    /// Ceph's text.
    pub fn text(self) -> &'static str {
        match self {
            Stage::Queued => "queued for pg",
            Stage::ReachedPg => "reached pg",
            Stage::Delayed => "delayed",
            Stage::WaitingForSubOps => "waiting for sub ops",
            Stage::Done => "done",
        }
    }
}

/// A followed op's slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpHandle(u32);

#[derive(Clone, Debug)]
struct Tracked {
    reqid: ReqId,
    pg: PgId,
    object: ObjectId,
    op: &'static str,
    extent: Option<(u64, u64)>,
    more_ops: usize,
    started_ns: u64,
    stage: Stage,
    stage_ns: u64,
}

/// Limits and thresholds, from the options.
#[derive(Clone, Debug)]
pub struct TrackerLimits {
    /// `osd_op_complaint_time` in nanoseconds.
    pub complaint_ns: u64,
    /// `osd_op_history_size`.
    pub history_size: usize,
    /// `osd_op_history_duration` in nanoseconds.
    pub history_ns: u64,
}

/// Slow ops at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlowOps {
    /// How many are older than the complaint time.
    pub count: u64,
    /// Age of the oldest one in nanoseconds.
    pub oldest_ns: u64,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct OpTracker {
    slots: Vec<Option<Tracked>>,
    free: Vec<u32>,
    /// Finished ops: (duration, when, what), the slowest ones of the last while.
    history: VecDeque<(u64, u64, Tracked)>,
    /// What an op must exceed to enter a full history.
    history_floor_ns: u64,
    limits: TrackerLimits,
}

impl OpTracker {
    /// An empty tracker.
    pub fn new(limits: TrackerLimits) -> OpTracker {
        OpTracker {
            slots: Vec::new(),
            free: Vec::new(),
            history: VecDeque::new(),
            history_floor_ns: 0,
            limits,
        }
    }

    /// Follows a request that came at `now_ns`.
    pub fn start(&mut self, request: &OsdRequest, now_ns: u64) -> OpHandle {
        let (op, extent) = request.ops.first().map_or(("none", None), |op| (op.op.name(), extent_of(&op.op)));
        let tracked = Tracked {
            reqid: request.reqid,
            pg: request.pg,
            object: request.object.clone(),
            op,
            extent,
            more_ops: request.ops.len().saturating_sub(1),
            started_ns: now_ns,
            stage: Stage::ReachedPg,
            stage_ns: now_ns,
        };
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

    /// Notes how far an op has come.
    pub fn stage(&mut self, op: OpHandle, stage: Stage, now_ns: u64) {
        if let Some(tracked) = self.slots.get_mut(op.0 as usize).and_then(Option::as_mut) {
            (tracked.stage, tracked.stage_ns) = (stage, now_ns);
        }
    }

    /// Ends an op; returns how long it took in nanoseconds.
    pub fn finish(&mut self, op: OpHandle, now_ns: u64) -> u64 {
        let Some(mut tracked) = self.slots.get_mut(op.0 as usize).and_then(Option::take) else {
            return 0;
        };
        self.free.push(op.0);
        let took = now_ns.saturating_sub(tracked.started_ns);
        let full = self.history.len() >= self.limits.history_size;
        if !full || took > self.history_floor_ns {
            tracked.stage = Stage::Done;
            self.remember(took, now_ns, tracked);
        }
        took
    }

    fn remember(&mut self, took: u64, now_ns: u64, tracked: Tracked) {
        let horizon = now_ns.saturating_sub(self.limits.history_ns);
        self.history.retain(|(_, ended, _)| *ended >= horizon);
        if self.history.len() >= self.limits.history_size {
            let quickest = self.history.iter().enumerate().min_by_key(|(_, (took, _, _))| *took);
            let Some((at, _)) = quickest else { return };
            self.history.remove(at);
        }
        self.history.push_back((took, now_ns, tracked));
        self.history_floor_ns = if self.history.len() < self.limits.history_size {
            0
        } else {
            self.history.iter().map(|(took, _, _)| *took).min().unwrap_or(0)
        };
    }

    /// How many ops are in flight.
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Ops that are older than the complaint time.
    pub fn slow(&self, now_ns: u64) -> SlowOps {
        self.slots.iter().flatten().fold(SlowOps::default(), |slow, op| {
            let age = now_ns.saturating_sub(op.started_ns);
            if age < self.limits.complaint_ns {
                return slow;
            }
            SlowOps { count: slow.count + 1, oldest_ns: slow.oldest_ns.max(age) }
        })
    }

    /// The ops in flight, as `dump_ops_in_flight` lists them.
    pub fn dump_in_flight(&self, now_ns: u64) -> Vec<Value> {
        let age = |op: &Tracked| now_ns.saturating_sub(op.started_ns);
        self.slots.iter().flatten().map(|op| op.dump(age(op))).collect()
    }

    /// The slowest ops of late, as `dump_historic_ops` lists them.
    pub fn dump_history(&self) -> Vec<Value> {
        self.history.iter().map(|(took, _, op)| op.dump(*took)).collect()
    }
}

impl Tracked {
    fn dump(&self, duration_ns: u64) -> Value {
        let extent = self.extent.map(|(offset, len)| format!(" {offset}~{len}")).unwrap_or_default();
        let more = if self.more_ops > 0 { format!(" +{}", self.more_ops) } else { String::new() };
        let Tracked { reqid, pg, object, op, .. } = self;
        json!({
            "description": format!("osd_op({reqid} {pg} {object} [{op}{extent}{more}])"),
            "age": duration_ns as f64 / 1e9,
            "duration": duration_ns as f64 / 1e9,
            "type_data": {
                "flag_point": self.stage.text(),
                "client_info": { "client": format!("client.{}", reqid.client), "tid": reqid.tid },
                "stage_after": self.stage_ns.saturating_sub(self.started_ns) as f64 / 1e9,
            },
        })
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

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::ids::{ClientId, Epoch, Interval, PoolId};
    use nacre_types::object::SNAP_HEAD;

    const MS: u64 = 1_000_000;

    fn request(tid: u64) -> OsdRequest {
        OsdRequest {
            reqid: ReqId { client: ClientId(1), tid },
            oldest_tid: 0,
            attempt: 0,
            epoch: Epoch(1),
            pg: PgId::new(PoolId(2), 3),
            interval: Interval(1),
            object: ObjectId::new(PoolId(2), "", "", "o"),
            mtime_ns: 0,
            flags: 0,
            snap: SNAP_HEAD,
            snap_context: None,
            ops: vec![Op::Read { offset: 4, len: 8 }.into()],
        }
    }

    fn tracker() -> OpTracker {
        OpTracker::new(TrackerLimits { complaint_ns: 10 * MS, history_size: 3, history_ns: 1000 * MS })
    }

    #[test]
    fn slow_ops_are_those_above_the_complaint_time() {
        let mut t = tracker();
        let first = t.start(&request(1), 0);
        t.start(&request(2), 15 * MS);
        assert_eq!(t.slow(20 * MS), SlowOps { count: 1, oldest_ns: 20 * MS });
        assert_eq!(t.slow(40 * MS).count, 2);
        t.finish(first, 41 * MS);
        assert_eq!((t.slow(42 * MS).count, t.in_flight()), (1, 1));
    }

    #[test]
    fn history_keeps_the_slowest_of_late() {
        let mut t = tracker();
        for (tid, took) in [5, 1, 9, 7, 2].into_iter().enumerate() {
            let op = t.start(&request(tid as u64), 0);
            assert_eq!(t.finish(op, took * MS), took * MS);
        }
        let mut durations: Vec<_> = t
            .dump_history()
            .iter()
            .map(|op| (op["duration"].as_f64().unwrap() * 1e3).round() as u64)
            .collect();
        durations.sort_unstable();
        assert_eq!(durations, [5, 7, 9]);
        let op = t.start(&request(9), 2000 * MS);
        t.finish(op, 2100 * MS);
        assert_eq!(t.dump_history().len(), 1, "old ones are forgotten");
    }

    #[test]
    fn an_op_is_described_by_what_it_does() {
        let mut t = tracker();
        let op = t.start(&request(7), 0);
        t.stage(op, Stage::Delayed, MS);
        let dump = &t.dump_in_flight(3 * MS)[0];
        let text = dump["description"].as_str().unwrap();
        assert!(text.starts_with("osd_op(client.1:7 2.3 2:") && text.ends_with("[read 4~8])"), "{text}");
        assert_eq!(dump["type_data"]["flag_point"], "delayed");
    }
}
