//! Replication of ordered updates: sending them to the members, logging, trimming and acknowledging them.

use super::{Inflight, MAX_LOG_BYTES, Primary, PrimaryPhase, Waiter};
use crate::api::{ClientOp, LeaseView, PeerMsg, PgCommand};
use crate::log::LogEntry;
use crate::pg::{OnCommit, Pg};
use crate::settings::Mutation;
use nacre_types::ids::{Eversion, Interval, OsdId};
use nacre_types::osdmap::Member;
use nacre_types::txn::{Transaction, TxnOp};
use std::sync::Arc;

impl Pg {
    pub(crate) fn replicate(
        &mut self,
        entry: LogEntry,
        mut txn: Transaction,
        op: &ClientOp,
        out: &mut Vec<PgCommand>,
    ) {
        let version = entry.version;
        let (encoded, log_bytes) = (entry.encode(), entry.size());
        let trim_to = self.trim_target();
        let shared = Arc::new(txn.clone());
        let (interval, committed_to, boot_nonce) = (self.interval(), self.committed_to, self.boot_nonce);
        let kind = entry.kind;
        let message = |txn: &Arc<Transaction>| PeerMsg::RepOp {
            interval,
            entry: encoded.clone(),
            txn: txn.clone(),
            committed_to,
            trim_to,
            oldest_tid: op.oldest_tid,
            boot_nonce,
        };
        let me = self.me.osd;
        let past_cursor = self.settings.breaks(Mutation::ApplyPastCursor);
        for member in self.in_sync().iter().filter(|m| m.osd != me) {
            out.push(PgCommand::Send { to: member.osd, msg: message(&shared) });
        }
        if let Some(primary) = &mut self.primary {
            for (to, catching_up) in primary.catching_up.iter_mut().filter(|(_, c)| c.receives_updates()) {
                let applies = catching_up.should_send_op(&entry.object, version, kind) || past_cursor;
                let logged_only = || Arc::new(Transaction::new(self.id));
                let msg = if applies { message(&shared) } else { message(&logged_only()) };
                out.push(PgCommand::Send { to: *to, msg });
            }
            if primary.inflight.is_empty() {
                (primary.retried_at, primary.progressed_at) = (self.now, self.now);
            }
            primary.inflight.push_back(Inflight { version, token: op.token, log_bytes });
            primary.inflight_bytes += log_bytes;
        }
        self.log.append(entry);
        txn.push(TxnOp::LogAppend(vec![(version, encoded)]));
        self.trim(trim_to, &mut txn);
        self.persist(txn, OnCommit::Head(version), out);
    }

    /// The version to trim the log to; its tail for no trimming.
    fn trim_target(&self) -> Eversion {
        let (min, max) = (self.settings.min_log_entries, self.settings.max_log_entries);
        // Trimming in strides avoids its cost for most writes. A member that was away catches up from the entries that are
        // kept.
        let len = self.log.len();
        let due = len >= max || len >= min + min / 4 + 64 && self.has_all_copies();
        let target = due.then(|| self.log.trim_point(min, min, self.committed_to)).flatten();
        let is_large = self.log.bytes() > MAX_LOG_BYTES;
        let by_size = is_large
            .then(|| self.log.trim_point_for_size(MAX_LOG_BYTES * 3 / 4, self.committed_to))
            .flatten();
        target.max(by_size).unwrap_or(self.log.tail())
    }

    /// Trims a log that is too large for a message, for example one from an earlier release.
    pub(crate) fn trim_oversized_log(&mut self, out: &mut Vec<PgCommand>) {
        if self.log.bytes() <= MAX_LOG_BYTES {
            return;
        }
        let to = self.trim_target();
        if to > self.log.tail() {
            let mut txn = Transaction::new(self.id);
            self.trim(to, &mut txn);
            self.persist(txn, OnCommit::Nothing, out);
        }
    }

    /// Whether as many in-sync members are up as the pool's size.
    fn has_all_copies(&self) -> bool {
        let up = self.in_sync().iter().filter(|m| m.osd == self.me.osd || self.is_member_up(**m)).count();
        up >= self.size()
    }

    /// Trims the log in `txn`, and updates the dup records.
    pub(crate) fn trim(&mut self, to: Eversion, txn: &mut Transaction) {
        if to <= self.log.tail() || !self.log.contains(to) {
            return;
        }
        self.log.trim_to(to);
        txn.push(TxnOp::LogTrim(to));
        self.put_dups(txn);
        self.put_record(txn);
    }

    pub(crate) fn put_dups(&mut self, txn: &mut Transaction) {
        let (mut set, mut removed) = (Vec::new(), Vec::new());
        for (key, value) in self.log.dup_meta_updates() {
            match value {
                Some(value) => set.push((key, value)),
                None => removed.push(key),
            }
        }
        if !removed.is_empty() {
            txn.push(TxnOp::MetaRm(removed));
        }
        if !set.is_empty() {
            txn.push(TxnOp::MetaSet(set));
        }
    }

    pub(crate) fn on_rep_ack(
        &mut self,
        leases: &dyn LeaseView,
        from: OsdId,
        interval: Interval,
        head: Eversion,
        out: &mut Vec<PgCommand>,
    ) {
        let Some(primary) = &mut self.primary else { return };
        if interval < primary.since || head > self.log.head() {
            return;
        }
        let known = primary.heads.entry(from).or_default();
        *known = head.max(*known);
        if let Some(catching_up) = primary.catching_up.get_mut(&from) {
            catching_up.acked = catching_up.acked.max(head);
            catching_up.heard_at = self.now;
        }
        self.ack_durable_writes(leases, out);
        self.resume_waiting(leases, out);
    }

    /// Whether an outstanding proposal would make `osd` a member.
    pub(crate) fn is_proposed(&self, osd: OsdId) -> bool {
        self.outstanding_proposals().any(|m| m.in_sync.iter().any(|m| m.osd == osd))
    }

    /// The version up to which updates may be acknowledged: every required member has them (R1), and so has a member that is
    /// about to join. Otherwise that member might never have all acknowledged updates.
    fn agreed(&self) -> Eversion {
        let Some(primary) = &self.primary else { return self.committed_to };
        let joins = primary.catching_up.values().filter(|c| c.delays_acks(self.now, self.settings.retry_ns));
        joins.map(|c| c.acked).fold(self.durable_on_required(), Eversion::min)
    }

    /// The version up to which every required member has the log durable (R1). The log of a member that may not have recorded
    /// the membership does not count (R7).
    pub(super) fn durable_on_required(&self) -> Eversion {
        let Some(primary) = &self.primary else { return self.committed_to };
        let below = self.settings.breaks(Mutation::AckBelowMinSize);
        let head = |member: &Member| {
            let replaced = !primary.replaced.is_empty() && primary.replaced.contains(member);
            let counts = !replaced && !primary.record_unconfirmed.contains(&member.osd);
            primary.heads.get(&member.osd).copied().filter(|_| counts).unwrap_or_default()
        };
        let counts = |m: &&Member| !below || self.map.as_ref().is_some_and(|map| map.is_up(m.osd));
        let own = match self.settings.breaks(Mutation::ReplyBeforeDurable) {
            true => self.log.head(),
            false => self.durable_head,
        };
        self.required_members().filter(counts).map(head).fold(own, Eversion::min)
    }

    /// Records which required members' OSDs run a different store now.
    pub(crate) fn note_replaced_members(&mut self) {
        let Some(map) = self.map.clone() else { return };
        let shown = |m: &Member| map.osds.get(&m.osd).and_then(|info| info.incarnation);
        let replaced: Vec<Member> = self
            .required_members()
            .copied()
            .filter(|m| shown(m).is_some_and(|i| i != m.incarnation))
            .collect();
        if let Some(primary) = &mut self.primary {
            primary.replaced = replaced;
        }
    }

    /// Acknowledges the updates that have become durable on all required members.
    pub(crate) fn ack_durable_writes(&mut self, leases: &dyn LeaseView, out: &mut Vec<PgCommand>) {
        let remembered = self.pending.front().is_none_or(|(id, _)| *id > self.record_persist);
        // An update may be durable without its object (R10).
        let serves =
            self.primary.as_ref().is_some_and(|p| p.phase == PrimaryPhase::Active) && !self.repair_pending;
        if !remembered || !serves {
            return;
        }
        let agreed = self.agreed();
        if agreed > self.committed_to {
            self.committed_to = agreed;
        }
        let committed_to = self.committed_to;
        let done = |primary: &Primary| {
            primary.inflight.front().is_some_and(|write| write.version <= committed_to)
                || primary.wait_commit.first_key_value().is_some_and(|(version, _)| *version <= committed_to)
        };
        if !self.primary.as_ref().is_some_and(done) {
            return;
        }
        let held = self.holds_leases(leases);
        if held {
            // Requests that wait for leases were committed before: writes are answered in their order.
            self.release_lease_waiters(leases, out);
        }
        let Some(primary) = &mut self.primary else { return };
        while let Some(write) = primary.inflight.pop_front_if(|write| write.version <= committed_to) {
            (primary.retried_at, primary.progressed_at) = (self.now, self.now);
            primary.inflight_bytes -= write.log_bytes;
            if held {
                out.push(PgCommand::Reply { token: write.token });
            } else {
                primary.wait_for_leases([Waiter::Reply(write.token)], self.now);
            }
        }
        let mut ready = Vec::new();
        while let Some(entry) = primary.wait_commit.first_entry()
            && *entry.key() <= committed_to
        {
            ready.extend(entry.remove());
        }
        primary.commit_waiters -= ready.len();
        if !held {
            primary.wait_for_leases(ready, self.now);
            return;
        }
        for waiter in ready {
            self.answer_now(waiter, out);
        }
    }
}
