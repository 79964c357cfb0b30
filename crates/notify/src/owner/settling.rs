//! Settling: writes the outcomes of events, and renews the lease in the same operation.

use super::{Ownership, nanos};
use crate::error::{Error, Result};
use crate::metrics::add;
use crate::rados::WriteOutcome;
use nacre_queues::lease::LeaseTerm;
use nacre_queues::op::{ObjectOp, Step};
use nacre_queues::settle::{self, EventOutcome};
use nacre_queues::window::WindowTime;

/// The number of outcomes that are settled without waiting for more.
const SETTLE_BATCH: usize = 512;

impl Ownership<'_> {
    /// Records that an operation sent at `sent_ns` renewed the lease.
    pub(super) fn renewed(&mut self, sent_ns: u64) {
        self.term = LeaseTerm::new(sent_ns, self.lease_ns());
        self.pushes.set_term(self.term);
    }

    /// Renews the lease.
    pub(super) async fn renew(&mut self, now: WindowTime) -> Result<()> {
        // Settling outcomes renews the lease as well.
        if self.unsettled > 0 && self.settle().await? {
            return Ok(());
        }
        match self.core.rados.write(self.shard.renew_lease(self.lease_ns())).await? {
            WriteOutcome::Done => {
                self.renewed(now.mono_ns);
                Ok(())
            }
            _ => Err(Error::Changed(self.shard.object.to_string())),
        }
    }

    /// Whether it is time to settle.
    pub(super) fn should_settle(&self, now: WindowTime) -> bool {
        let linger = nanos(self.core.settings.settle_linger);
        let is_due = self.unsettled_since_ns.is_some_and(|since| now.mono_ns >= since + linger);
        let is_still = self.window.in_flight() == 0 && !self.window.has_ready(now);
        // A full window may have to park events that block it.
        let is_blocked = is_still || (self.unsettled == 0 && self.window.is_stuck(now));
        let is_stuck = is_blocked && !self.is_settled_in_vain && !self.window.is_empty();
        self.unsettled >= SETTLE_BATCH
            || (self.unsettled > 0 && (is_due || is_still))
            || is_stuck
            || self.log.needs_trim(&self.shard)
    }

    /// Settles the available outcomes. Returns whether there was anything to write.
    pub(super) async fn settle(&mut self) -> Result<bool> {
        let core = self.core;
        let settlements = self.window.settlements(core.env.wall_ns());
        let is_empty = settlements.is_empty() && !self.log.needs_trim(&self.shard);
        if is_empty {
            self.unsettled = 0;
            self.unsettled_since_ns = None;
            self.is_settled_in_vain = true;
            return Ok(false);
        }
        let plan = settle::settle(&self.shard, &self.log, &settlements);
        let op = self.shard.with_renewal(plan.op, self.lease_ns());
        let sent = core.mono_ns();
        match core.rados.write(op).await? {
            WriteOutcome::Done => {
                self.window.settled(&settlements, &plan.after.head.value);
                (self.shard, self.log) = (plan.after, plan.log);
                self.renewed(sent);
                let dead = settlements.iter().filter(|one| matches!(one.fate, EventOutcome::Dead(_))).count();
                add(&core.metrics.dead, dead as u64);
                self.has_letters |= dead > 0;
                let is_more = self.window.is_unsettled();
                self.unsettled = usize::from(is_more);
                self.unsettled_since_ns = is_more.then_some(sent);
                self.update_loaded_gauge();
            }
            // Events were dropped to make room, or the shard has another owner.
            WriteOutcome::Changed => self.refresh().await?,
            _ => return Err(Error::Changed(self.shard.object.to_string())),
        }
        self.remove_segments().await?;
        Ok(true)
    }

    /// Removes segments that the cursor has passed, then their manifests.
    async fn remove_segments(&mut self) -> Result<()> {
        let Some((segments, manifests)) = self.log.removable_segments(&self.shard) else { return Ok(()) };
        for object in segments {
            match self.core.rados.write(ObjectOp::on(&object).then(Step::Remove)).await? {
                WriteOutcome::Done | WriteOutcome::Absent => {}
                _ => return Err(Error::Changed(object.to_string())),
            }
        }
        self.core.rados.write_or_fail(manifests).await?;
        self.log.forget_removed_segments();
        Ok(())
    }
}
