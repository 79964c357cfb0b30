//! Control's knowledge of the shards, which it asks only while they are not busy.
//!
//! A shard is busy as long as a call to its store takes. Waiting for it would keep this OSD from sending heartbeats and from
//! following the map, and after the lease term the PGs of all its shards would stop answering. So control continues with its
//! last knowledge.

use crate::progress::ShardActivity;
use crate::shard::{Shard, ShardCell};
use nacre_types::ids::OsdId;
use nacre_types::stats::{PgStats, SlowOps};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// How long control waits for the end of a shard's turn: twice the time of a turn that waits for nothing.
const WAIT: Duration = Duration::from_millis(20);

/// The last knowledge of one shard.
#[derive(Clone, Debug, Default)]
struct ProbedShard {
    neighbours: BTreeSet<OsdId>,
    pgs: usize,
    slow: SlowOps,
    /// Whether it did not end its turn in time: it is not waited for again in this round.
    busy: bool,
    /// Whether all its statistics were to be sent while it was busy.
    owes_all: bool,
}

/// See the module's documentation.
pub(super) struct ShardProbe {
    cells: Arc<Vec<ShardCell>>,
    looks: Vec<ProbedShard>,
    patience: Duration,
}

impl ShardProbe {
    pub(super) fn new(cells: Arc<Vec<ShardCell>>) -> ShardProbe {
        let looks = vec![ProbedShard::default(); cells.len()];
        ShardProbe { cells, looks, patience: WAIT }
    }

    /// Sets how long it waits for the end of a turn.
    pub(super) fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Starts a round, in which busy shards are waited for again.
    pub(super) fn begin_round(&mut self) {
        self.looks.iter_mut().for_each(|look| look.busy = false);
    }

    /// Visits each shard that is not busy.
    pub(super) fn visit_idle_shards(&mut self, mut f: impl FnMut(usize, &mut Shard)) {
        self.note(|at, shard, _| f(at, shard));
    }

    fn note(&mut self, mut f: impl FnMut(usize, &mut Shard, &mut ProbedShard)) {
        for (at, (cell, look)) in self.cells.iter().zip(&mut self.looks).enumerate() {
            let wait = if look.busy { Duration::ZERO } else { self.patience };
            look.busy = cell.try_with(wait, |shard| f(at, shard, look)).is_none();
        }
    }

    /// Adds the OSDs that share a PG with this one to `into`.
    pub(super) fn pg_peers(&mut self, into: &mut BTreeSet<OsdId>) {
        self.note(|_, shard, look| {
            look.neighbours.clear();
            shard.neighbours(&mut look.neighbours);
        });
        into.extend(self.looks.iter().flat_map(|look| &look.neighbours));
    }

    /// Looks for slow ops. A shard whose turn lasts at least `complaint_ns` has at least one, which it can't report.
    pub(super) fn update_slow_ops(&mut self, now_ns: u64, progress: &ShardActivity, complaint_ns: u64) {
        self.note(|_, shard, look| look.slow = shard.tracker().slow(now_ns));
        for (at, look) in self.looks.iter_mut().enumerate().filter(|(_, look)| look.busy) {
            let since_ns = progress.turn_since_ns(at).unwrap_or(now_ns);
            let lasts_ns = now_ns.saturating_sub(since_ns);
            if lasts_ns >= complaint_ns {
                let oldest_ms = look.slow.oldest_ms.max(lasts_ns / 1_000_000);
                let oldest = format!("shard {at} does not answer");
                look.slow = SlowOps { count: look.slow.count.max(1), oldest_ms, oldest };
            }
        }
    }

    /// The slow ops of all shards.
    pub(super) fn slow_ops(&self) -> SlowOps {
        self.looks.iter().map(|look| look.slow.clone()).fold(SlowOps::default(), |sum, slow| {
            let count = sum.count + slow.count;
            let older = if slow.oldest_ms > sum.oldest_ms { slow } else { sum };
            SlowOps { count, ..older }
        })
    }

    /// Statistics of PGs that changed since they were sent, or of all PGs. A busy shard's statistics are returned by a later
    /// call.
    pub(super) fn take_pg_stats(&mut self, all: bool) -> Vec<PgStats> {
        let mut pgs = Vec::new();
        self.looks.iter_mut().for_each(|look| look.owes_all |= all);
        self.note(|_, shard, look| {
            pgs.append(&mut shard.report(look.owes_all));
            (look.owes_all, look.pgs) = (false, shard.pg_count());
        });
        pgs
    }

    /// The number of PGs on all shards.
    pub(super) fn pg_count(&self) -> usize {
        self.looks.iter().map(|look| look.pgs).sum()
    }
}
