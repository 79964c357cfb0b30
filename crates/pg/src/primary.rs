//! The primary's hot path: admit and execute, then replicate and acknowledge (`commit.rs`).
//!
//! A write gets the next version and goes into the log, to the store and to every member. It is acknowledged when all required
//! members have it durable: the in-sync set, and every proposed set whose outcome is unknown (R1). Acks are cumulative. Reads
//! execute at once and are answered when the writes that they may have seen are committed (R3). Resends are answered from the
//! log (R6). All answers need leases (R4): acks may be in flight for a long time, and nothing of this interval may be seen once
//! a later one acts (R5).

mod commit;
mod state;

use crate::api::{ClientOp, DropReason, ExecuteReply, LeaseView, PgCommand};
use crate::log::{DupCheck, EntryKind, LogEntry, MAX_DUP_RESULT_BYTES};
use crate::membership::{SHRINK_CHECK_RETRIES, ShrinkCheck};
use crate::peering::Peering;
use crate::pg::Pg;
use crate::recovery::CatchUp;
use crate::settings::{Mutation, PgSettings};
use bytes::Bytes;
use nacre_types::errno::Errno;
use nacre_types::ids::{ClientId, Epoch, Eversion, Interval, OsdId, ReqId};
use nacre_types::msg::PgCas;
use nacre_types::object::ObjectId;
use nacre_types::osdmap::{Member, PgMembership};
use nacre_types::txn::Transaction;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The maximum size of a log's entries, and again of the entries of uncommitted updates. A member is sent all of them, with the
/// dup records, in one message.
pub(crate) const MAX_LOG_BYTES: usize = 8 << 20;

/// The phase of a primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PrimaryPhase {
    /// Brings the in-sync members to one log.
    Peering,
    /// The members that are up are equal, but too few to serve.
    Peered,
    /// The PG serves clients.
    Active,
}

/// A write that is ordered but not committed.
#[derive(Debug)]
struct Inflight {
    version: Eversion,
    token: u64,
    /// The size of its log entry.
    log_bytes: usize,
}

/// A request that waits for a version to commit, or for leases.
#[derive(Clone, Copy, Debug)]
enum Waiter {
    /// Its reply is ready.
    Reply(u64),
    /// The request was executed before; the reply is in the log.
    Dup(u64, ReqId),
}

impl Waiter {
    fn token(self) -> u64 {
        match self {
            Waiter::Reply(token) | Waiter::Dup(token, _) => token,
        }
    }
}

/// The state of a PG's primary in addition to the state of every member.
#[derive(Debug)]
pub(crate) struct Primary {
    /// The interval since which this OSD has been primary without interruption.
    pub(crate) since: Interval,
    pub(crate) phase: PrimaryPhase,
    pub(crate) peering: Peering,
    /// Whether the interval must rise before anything is ordered.
    pub(crate) needs_new_interval: bool,
    /// The highest interval that a member has promised to another OSD.
    pub(crate) highest_promised: Interval,
    /// The members that promised a later interval to another OSD.
    pub(crate) promised_elsewhere: BTreeSet<OsdId>,
    /// Required members whose OSD runs a different store now: answers of that OSD do not count for them.
    pub(crate) replaced: Vec<Member>,
    /// Required members that lack required data.
    pub(crate) lost_copies: BTreeSet<OsdId>,
    /// The version up to which each other member's log is durable.
    pub(crate) heads: BTreeMap<OsdId, Eversion>,
    /// The in-sync members that have not confirmed that the record of the interval is durable on them (R7).
    pub(crate) record_unconfirmed: BTreeSet<OsdId>,
    /// The number of the query whose answer confirms it.
    pub(crate) record_round: u64,
    inflight: VecDeque<Inflight>,
    /// The size of the log entries of `inflight`.
    inflight_bytes: usize,
    pub(crate) waiting: VecDeque<ClientOp>,
    /// By object that is being sent to a member in several pieces: a write that waits for its arrival, and the operations after
    /// it.
    wait_copy: BTreeMap<ObjectId, VecDeque<ClientOp>>,
    wait_commit: BTreeMap<Eversion, Vec<Waiter>>,
    wait_lease: Vec<Waiter>,
    executing: Option<(ClientOp, Eversion)>,
    pub(crate) proposal: Option<(PgCas, u64)>,
    /// Proposals that were refused, but of which another copy in flight may still be accepted (R1).
    pub(crate) refused: Vec<PgMembership>,
    pub(crate) refused_at: u64,
    pub(crate) handing_over: bool,
    pub(crate) departure: Option<ShrinkCheck>,
    pub(crate) catching_up: BTreeMap<OsdId, CatchUp>,
    /// Members that need a backfill, which the map's flags currently forbid.
    pub(crate) deferred: BTreeSet<Member>,
    pub(crate) slot_asked: bool,
    pub(crate) slot_held: bool,
    /// Whether the slot is one for backfills, which also permits recovery. `slot_priority` is the requested priority.
    pub(crate) slot_backfill: bool,
    pub(crate) slot_priority: u8,
    /// Members that need a backfill while the held slot does not permit backfills.
    pub(crate) wait_backfill: BTreeSet<Member>,
    /// OSDs whose stores accept no more objects: nothing is copied to them.
    pub(crate) too_full: BTreeSet<OsdId>,
    /// OSDs that became too full for a backfill while it ran.
    pub(crate) backfill_full: BTreeSet<OsdId>,
    /// For each earlier primary, the expiry of the leases that it holds from before this OSD became primary.
    pub(crate) quiet: BTreeMap<OsdId, u64>,
    /// The last expiry among those that this primary waits for.
    pub(crate) quiet_at: Option<u64>,
    /// The last time when a request that updates wait for was repeated or answered.
    pub(crate) retried_at: u64,
    /// Whether too few of the in-sync members are up for the set to shrink: nothing commits until one returns.
    pub(crate) blocked: bool,
    /// When a write was last committed, or the first write in flight was ordered.
    progressed_at: u64,
    /// Since when replies wait for leases, if any do.
    lease_missed_at: u64,
    /// The number of replies in `wait_commit`.
    commit_waiters: usize,
    /// When the filling of members was last checked for requests to repeat. Updates do not postpone this check.
    pub(crate) recovery_retried_at: u64,
}

impl Primary {
    pub(crate) fn new(since: Interval, must_bump: bool) -> Primary {
        Primary {
            since,
            phase: PrimaryPhase::Peering,
            peering: Peering::default(),
            needs_new_interval: must_bump,
            highest_promised: Interval(0),
            promised_elsewhere: BTreeSet::new(),
            replaced: Vec::new(),
            lost_copies: BTreeSet::new(),
            heads: BTreeMap::new(),
            record_unconfirmed: BTreeSet::new(),
            record_round: 0,
            inflight: VecDeque::new(),
            inflight_bytes: 0,
            waiting: VecDeque::new(),
            wait_copy: BTreeMap::new(),
            wait_commit: BTreeMap::new(),
            wait_lease: Vec::new(),
            executing: None,
            proposal: None,
            refused: Vec::new(),
            refused_at: 0,
            handing_over: false,
            departure: None,
            catching_up: BTreeMap::new(),
            deferred: BTreeSet::new(),
            slot_asked: false,
            slot_held: false,
            slot_backfill: false,
            slot_priority: 0,
            wait_backfill: BTreeSet::new(),
            too_full: BTreeSet::new(),
            backfill_full: BTreeSet::new(),
            quiet: BTreeMap::new(),
            quiet_at: None,
            retried_at: 0,
            blocked: false,
            progressed_at: 0,
            lease_missed_at: 0,
            commit_waiters: 0,
            recovery_retried_at: 0,
        }
    }

    /// Every request that waits here, each once.
    pub(crate) fn all_tokens(&self) -> BTreeSet<u64> {
        let waiters = self.wait_commit.values().flatten().chain(&self.wait_lease).map(|w| w.token());
        let inflight = self.inflight.iter().map(|i| i.token);
        let waiting = self.waiting.iter().chain(self.wait_copy.values().flatten()).map(|op| op.token);
        inflight.chain(waiting).chain(waiters).collect()
    }

    /// Removes and returns the requests of the selected uncommitted writes, and the requests that wait for these writes.
    pub(crate) fn take_uncommitted(&mut self, selects: impl Fn(Eversion) -> bool) -> Vec<u64> {
        let mut tokens = Vec::new();
        self.inflight.retain(|write| {
            let is_taken = selects(write.version);
            tokens.extend(is_taken.then_some(write.token));
            self.inflight_bytes -= if is_taken { write.log_bytes } else { 0 };
            !is_taken
        });
        let waiters = self.wait_commit.extract_if(.., |version, _| selects(*version));
        let before = tokens.len();
        tokens.extend(waiters.flat_map(|(_, waiters)| waiters).map(Waiter::token));
        self.commit_waiters -= tokens.len() - before;
        tokens
    }

    fn wait_for_commit(&mut self, version: Eversion, waiter: Waiter) {
        self.wait_commit.entry(version).or_default().push(waiter);
        self.commit_waiters += 1;
    }

    fn wait_for_leases(&mut self, waiters: impl IntoIterator<Item = Waiter>, now: u64) {
        if self.wait_lease.is_empty() {
            self.lease_missed_at = now;
        }
        self.wait_lease.extend(waiters);
    }

    /// The number of operations that were executed and are not answered.
    fn unanswered(&self) -> usize {
        self.inflight.len() + self.commit_waiters + self.wait_lease.len()
    }

    /// Whether answers can't be expected soon: too few members are up, or no write was committed for `patience_ns`, or leases
    /// are missing.
    fn is_stalled(&self, now: u64, patience_ns: u64) -> bool {
        self.blocked
            || !self.inflight.is_empty() && now >= self.progressed_at + patience_ns
            || !self.wait_lease.is_empty() && now >= self.lease_missed_at + patience_ns
    }

    /// Proposals whose outcome is unknown.
    pub(crate) fn proposals(&self) -> impl Iterator<Item = &PgMembership> {
        self.proposal.iter().map(|(cas, _)| &cas.proposed).chain(&self.refused)
    }

    /// Whether members are being filled or are about to be.
    pub(crate) fn is_recovering(&self) -> bool {
        !self.catching_up.is_empty() || self.slot_asked
    }

    pub(crate) fn phase_name(&self) -> &'static str {
        match self.phase {
            PrimaryPhase::Peering if self.quiet_at.is_some() => {
                "waiting for an earlier primary's leases to run out"
            }
            PrimaryPhase::Peering => "peering",
            PrimaryPhase::Peered => "peered, but too few members to serve",
            PrimaryPhase::Active => "active",
        }
    }

    pub(crate) fn next_wake(&self, settings: &PgSettings) -> Option<u64> {
        let peering = match self.phase {
            PrimaryPhase::Peering if !self.needs_new_interval => {
                let asked = self.peering.retry_at(settings.retry_ns);
                Some(self.quiet_at.map_or(asked, |quiet_at| quiet_at.min(asked)))
            }
            _ => None,
        };
        let proposal = self.proposal.as_ref().map(|(_, sent)| sent + settings.cas_retry_ns);
        let refused = (self.refused_at > 0).then_some(self.refused_at + settings.cas_retry_ns);
        let stuck = !self.inflight.is_empty() || !self.wait_lease.is_empty();
        let retry = stuck.then_some(self.retried_at + settings.retry_ns);
        let recovers = !self.catching_up.is_empty();
        let recovery = recovers.then_some(self.recovery_retried_at + settings.retry_ns);
        let departure =
            self.departure.as_ref().map(|d| d.asked_at + SHRINK_CHECK_RETRIES * settings.retry_ns);
        [peering, proposal, refused, retry, recovery, departure].into_iter().flatten().min()
    }
}

/// Appends an operation. One that the host had before precedes the operations on its object that arrived later.
pub(crate) fn enqueue(waiting: &mut VecDeque<ClientOp>, op: ClientOp) {
    let came_later = |other: &ClientOp| !other.requeued && other.object == op.object;
    let at = if op.requeued { waiting.iter().position(came_later) } else { None };
    waiting.insert(at.unwrap_or(waiting.len()), op);
}

impl Pg {
    // Admission.

    pub(crate) fn on_client(&mut self, leases: &dyn LeaseView, op: ClientOp, out: &mut Vec<PgCommand>) {
        let stale = self.settings.breaks(Mutation::ExecuteStaleOps);
        let limit = self.waiting_limit();
        let is_stalled = self.is_stalled();
        let Some(primary) = &mut self.primary else {
            out.push(PgCommand::Drop { token: op.token, reason: DropReason::StaleInterval });
            return;
        };
        if op.interval < primary.since && !stale {
            out.push(PgCommand::Drop { token: op.token, reason: DropReason::StaleInterval });
            return;
        }
        let is_first = primary.waiting.is_empty();
        let for_copies: usize = primary.wait_copy.values().map(VecDeque::len).sum();
        // While the PG is stalled, the unanswered operations count like those that wait for them.
        let unanswered = if is_stalled { primary.unanswered() } else { 0 };
        let is_full = primary.waiting.len() + for_copies + unanswered >= limit;
        let may_start = is_first && !(is_stalled && is_full);
        if may_start && !self.waits_for_copy(&op) && self.can_order(&op) {
            self.start(leases, op, out);
        } else if is_full && !op.requeued {
            out.push(PgCommand::Drop { token: op.token, reason: DropReason::Full });
        } else if let Some(primary) = &mut self.primary {
            enqueue(&mut primary.waiting, op);
            if is_first {
                self.resume_waiting(leases, out);
            }
        }
    }

    /// Whether the PG's state permits the execution of operations.
    fn serves(&self, primary: &Primary) -> bool {
        let below = self.settings.breaks(Mutation::AckBelowMinSize);
        primary.phase == PrimaryPhase::Active
            && !primary.handing_over
            && !self.repair_pending
            && !self.interval().is_creation()
            && (self.in_sync().len() >= self.min_size() || below)
    }

    /// Whether `op` may be executed now.
    fn can_order(&self, op: &ClientOp) -> bool {
        let Some(primary) = &self.primary else { return false };
        let has_room = primary.inflight.len() < self.settings.max_inflight_writes
            && primary.inflight_bytes < MAX_LOG_BYTES;
        self.serves(primary) && (!op.write || has_room)
    }

    /// Whether `op` waits for a copy of its object, or follows an operation that does. Operations on other objects continue.
    fn waits_for_copy(&self, op: &ClientOp) -> bool {
        let waits = self.primary.as_ref().is_some_and(|p| p.wait_copy.contains_key(&op.object));
        waits || op.write && self.is_pushed_in_pieces(&op.object)
    }

    /// Moves operations that waited for a copy of their object to the front of `waiting`: those whose copy has arrived, or all
    /// if the PG no longer serves.
    fn release_copied(&mut self) {
        let Some(primary) = self.primary.as_ref().filter(|p| !p.wait_copy.is_empty()) else { return };
        let all = !self.serves(primary);
        let objects = primary.wait_copy.keys().filter(|object| all || !self.is_pushed_in_pieces(object));
        let released: Vec<ObjectId> = objects.cloned().collect();
        let Some(primary) = &mut self.primary else { return };
        for ops in released.iter().filter_map(|object| primary.wait_copy.remove(object)) {
            ops.into_iter().rev().for_each(|op| primary.waiting.push_front(op));
        }
    }

    /// Whether clients get answers: the PG serves, and everything that answers need is available as far as is known.
    pub fn can_answer(&self, leases: &dyn LeaseView) -> bool {
        self.can_execute() && self.holds_leases(leases)
    }

    /// Whether operations are executed as they arrive, and previously executed ones make progress.
    pub fn can_execute(&self) -> bool {
        self.primary.as_ref().is_some_and(|primary| self.serves(primary)) && !self.is_stalled()
    }

    fn is_stalled(&self) -> bool {
        self.primary.as_ref().is_some_and(|primary| primary.is_stalled(self.now, self.settings.retry_ns))
    }

    /// Records whether too few members are up for anything to be committed. Must be called when the map or the membership has
    /// changed.
    pub(crate) fn update_below_min_size(&mut self) {
        let set = self.in_sync();
        let live = set.iter().filter(|m| m.osd == self.me.osd || self.is_member_up(**m)).count();
        let blocked = live < set.len() && live < self.min_size();
        if let Some(primary) = &mut self.primary {
            primary.blocked = blocked;
        }
    }

    /// The number of operations that may wait.
    fn waiting_limit(&self) -> usize {
        let serves = self.primary.as_ref().is_some_and(|primary| self.serves(primary));
        if serves && !self.is_stalled() {
            self.settings.max_waiting_ops
        } else {
            self.settings.max_waiting_inactive
        }
    }

    /// Drops the latest of the waiting operations that exceed the limit.
    pub(crate) fn shed_waiting(&mut self, out: &mut Vec<PgCommand>) {
        let limit = self.waiting_limit();
        let Some(primary) = self.primary.as_mut().filter(|p| p.waiting.len() > limit) else { return };
        let shed = primary.waiting.drain(limit..);
        out.extend(shed.map(|op| PgCommand::Drop { token: op.token, reason: DropReason::Full }));
    }

    pub(crate) fn resume_waiting(&mut self, leases: &dyn LeaseView, out: &mut Vec<PgCommand>) {
        self.release_copied();
        // The host answers `Execute` immediately, but only after this event: so one at a time.
        while let Some(primary) = self.primary.as_mut().filter(|p| p.executing.is_none())
            && let Some(op) = primary.waiting.pop_front()
        {
            let serves = || self.primary.as_ref().is_some_and(|primary| self.serves(primary));
            if self.waits_for_copy(&op) && serves() {
                if let Some(primary) = &mut self.primary {
                    enqueue(primary.wait_copy.entry(op.object.clone()).or_default(), op);
                }
                continue;
            }
            if !self.can_order(&op) {
                let is_full = serves();
                self.reached.writes_held += u64::from(is_full);
                if let Some(primary) = &mut self.primary {
                    primary.waiting.push_front(op);
                }
                return;
            }
            self.start(leases, op, out);
        }
    }

    fn start(&mut self, leases: &dyn LeaseView, op: ClientOp, out: &mut Vec<PgCommand>) {
        self.log.update_oldest_tid(op.reqid.client, op.oldest_tid, self.now);
        if op.write && !self.settings.breaks(Mutation::ForgetDups) {
            // For vouched operations, the host determines the outcome of resends.
            let attempt = if op.dup_check_by_host { 0 } else { op.attempt };
            match self.log.admit(op.reqid, attempt) {
                DupCheck::Execute => {}
                DupCheck::Refused if self.settings.breaks(Mutation::ExecuteForgotten) => {}
                DupCheck::Refused => {
                    out.push(PgCommand::Refuse { token: op.token, errno: Errno::ESTALE });
                    return;
                }
                // The contents that it wrote are lost.
                DupCheck::Duplicate(_) if self.lacks(&op.object) => {
                    out.push(PgCommand::Refuse { token: op.token, errno: Errno::EIO });
                    return;
                }
                DupCheck::Duplicate(dup) if dup.version <= self.committed_to => {
                    return self.answer(leases, Waiter::Dup(op.token, op.reqid), out);
                }
                DupCheck::Duplicate(dup) => {
                    if let Some(primary) = &mut self.primary {
                        primary.wait_for_commit(dup.version, Waiter::Dup(op.token, op.reqid));
                    }
                    return;
                }
            }
        }
        let head = self.log.head();
        let version = Eversion::new(self.interval(), head.version + 1);
        let token = op.token;
        let Some(primary) = &mut self.primary else { return };
        assert!(primary.executing.is_none(), "an execution must be answered before the next event");
        primary.executing = Some((op, version));
        out.push(PgCommand::Execute { token, version });
    }

    pub(crate) fn on_executed(
        &mut self,
        leases: &dyn LeaseView,
        token: u64,
        outcome: ExecuteReply,
        out: &mut Vec<PgCommand>,
    ) {
        let Some((op, version)) = self.primary.as_mut().and_then(|p| p.executing.take()) else { return };
        assert_eq!(op.token, token, "executions are answered in order");
        match outcome {
            ExecuteReply::Damaged { removal } => {
                return self.on_damaged_op(leases, op, version, removal, out);
            }
            ExecuteReply::Read => self.answer_read(leases, &op, out),
            ExecuteReply::Withdrawn => {}
            ExecuteReply::Write { txn, delete, prior, user_version, mtime_ns, result } => {
                let kind = if delete { EntryKind::Delete } else { EntryKind::Modify };
                let object = op.object.clone();
                let reqid = op.reqid;
                let entry = LogEntry {
                    version,
                    prior,
                    object,
                    kind,
                    reqid,
                    user_version,
                    mtime_ns,
                    result: dup_result(result),
                };
                self.replicate(entry, txn, &op, out);
            }
            // No client waits for the OSD's own requests, and they are never sent again.
            ExecuteReply::Unchanged { .. }
                if op.reqid.client == ClientId(0) || self.settings.breaks(Mutation::ForgetUnchanged) =>
            {
                self.answer_read(leases, &op, out);
            }
            ExecuteReply::Failed { result } | ExecuteReply::Unchanged { result } => {
                // After this answer, a late copy of the request must not take effect. So the absence of an effect is an update
                // too. It is durable on all members before the answer, because the copy may reach another primary.
                let entry = LogEntry {
                    version,
                    prior: Eversion::default(),
                    object: op.object.clone(),
                    kind: EntryKind::Error,
                    reqid: op.reqid,
                    user_version: 0,
                    mtime_ns: 0,
                    result: dup_result(result),
                };
                self.replicate(entry, Transaction::new(self.id), &op, out);
            }
        }
        self.resume_waiting(leases, out);
    }

    fn answer_read(&mut self, leases: &dyn LeaseView, op: &ClientOp, out: &mut Vec<PgCommand>) {
        let uncommitted = self.settings.breaks(Mutation::ReadUncommitted);
        let newest = match op.listing {
            true => Some(self.log.head()),
            false => self.log.latest_for_object(&op.object).map(|entry| entry.version),
        };
        let newest = newest.filter(|v| *v > self.committed_to && !uncommitted);
        let Some(primary) = &mut self.primary else { return };
        match newest {
            Some(version) => primary.wait_for_commit(version, Waiter::Reply(op.token)),
            None => self.answer(leases, Waiter::Reply(op.token), out),
        }
    }

    /// R4: replies only while no other primary can act.
    fn answer(&mut self, leases: &dyn LeaseView, waiter: Waiter, out: &mut Vec<PgCommand>) {
        if self.holds_leases(leases) {
            self.answer_now(waiter, out);
        } else if let Some(primary) = &mut self.primary {
            primary.wait_for_leases([waiter], self.now);
        }
    }

    fn answer_now(&self, waiter: Waiter, out: &mut Vec<PgCommand>) {
        out.push(match waiter {
            Waiter::Reply(token) => PgCommand::Reply { token },
            Waiter::Dup(token, reqid) => match self.log.lookup(reqid) {
                Some(dup) => PgCommand::ReplyDup { token, version: dup.version, result: dup.result },
                None => PgCommand::Refuse { token, errno: Errno::ESTALE },
            },
        });
    }

    /// Whether this OSD holds every lease that it needs to answer as primary (R4).
    pub fn holds_leases(&self, leases: &dyn LeaseView) -> bool {
        let epoch = self.map.as_ref().map_or(Epoch(0), |map| map.epoch);
        self.settings.breaks(Mutation::IgnoreLease)
            || self.required_members().all(|m| leases.holds_lease(m.osd, epoch))
                && self.primary.as_ref().is_some_and(|p| !p.handing_over)
    }

    pub(crate) fn release_lease_waiters(&mut self, leases: &dyn LeaseView, out: &mut Vec<PgCommand>) {
        if self.primary.as_ref().is_none_or(|p| p.wait_lease.is_empty()) || !self.holds_leases(leases) {
            return;
        }
        if let Some(primary) = self.primary.as_mut().filter(|p| p.phase == PrimaryPhase::Active) {
            for waiter in std::mem::take(&mut primary.wait_lease) {
                self.answer_now(waiter, out);
            }
        }
    }

    /// Repeats the requests that the primary still waits for.
    pub(crate) fn retry_primary(&mut self, out: &mut Vec<PgCommand>) {
        let (now, settings) = (self.now, self.settings.clone());
        self.retry_peering(out);
        let members_move = self.durable_on_required() > self.committed_to;
        let Some(primary) = &mut self.primary else { return };
        if let Some((cas, sent)) = &mut primary.proposal
            && now >= *sent + settings.cas_retry_ns
        {
            *sent = now;
            out.push(PgCommand::Propose(cas.clone()));
        }
        if now >= primary.refused_at + settings.cas_retry_ns {
            primary.refused_at = 0;
        }
        if now >= primary.recovery_retried_at + settings.retry_ns {
            primary.recovery_retried_at = now;
            self.retry_recovery(out);
        }
        let Some(primary) = &mut self.primary else { return };
        if now < primary.retried_at + settings.retry_ns {
            return;
        }
        primary.retried_at = now;
        let stuck = primary.phase == PrimaryPhase::Active && !primary.inflight.is_empty() && !members_move;
        if stuck && self.in_sync().iter().all(|m| m.osd == self.me.osd || self.is_member_up(*m)) {
            // All members are up without progress: a connection lost a message.
            self.start_peering(out);
        }
    }

    /// Whether writes to `object` wait because it is being sent to a member in several pieces.
    pub(crate) fn is_pushed_in_pieces(&self, object: &ObjectId) -> bool {
        self.primary.as_ref().is_some_and(|p| p.catching_up.values().any(|c| c.is_pushing_pieces(object)))
    }
}

/// The part of a reply that is kept for resends.
pub(crate) fn dup_result(result: Bytes) -> Bytes {
    if result.len() > MAX_DUP_RESULT_BYTES { Bytes::new() } else { result }
}
