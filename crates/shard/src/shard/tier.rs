//! Cache tiers: how a cache's PG handles an operation whose object it does not have, and the transfer of objects between the
//! pools of a tier.
//!
//! A PG's machine orders operations as in any other pool. Before one is executed, it is checked ([`Shard::maybe_handle_cache`]): it is
//! executed on the cache's contents, or withdrawn from the machine. Then it waits here while its object is promoted or evicted,
//! or it is proxied: sent to the base in its client's name. Later operations on the same object wait behind it.
//!
//! Why that is safe:
//! - Each request to the base names the sender's interval and map ([`nacre_types::tier::TierSender`]): a request of a deposed
//!   primary takes no effect after its successor's first request.
//! - The base and the cache refuse requests with maps older than the last change of the overlay. A copy counts only if it was
//!   read from the base under the current overlay ([`exec::tier::is_valid`]), so that the base has executed nothing since
//!   without the cache.
//! - A write is proxied only while the cache durably has no valid copy of the object, and no promotion starts before it is
//!   answered.
//! - The base's answer is sent like that of a read: only while this primary holds its leases.
//! - A resend that this PG does not know may have been executed in the other pool, before the overlay changed or by proxy: that
//!   pool is queried first ([`Op::QueryRequest`]).
//! - A flush is a copy that the base reads from the current primary of the cache's PG: a committed state. Versions of an object
//!   rise over both pools, so a late flush is recognised by its version.

mod advice;
mod agent;
mod dirty_log;
mod flush;
mod objects;
mod requests;
mod role;

pub use advice::{PgAccesses, advise};
pub(super) use agent::CacheState;
pub(super) use objects::TierObjects;
pub(super) use objects::{InternalChange, TierOpState};
pub(super) use role::TierRole;

use super::Shard;
use super::ops::{InflightOp, OpOutcome, RequestAdmission, answer, backoff, backoff_in_order};
use crate::copy::is_copy_read;
use nacre_exec::tier::TierChange;
use nacre_exec::{self as exec, ObjectContext};
use nacre_pg::{ClientOp, ExecuteReply, Mutation};
use nacre_tier::hit_set::history::AccessRecord;
use nacre_tier::promote::{self, MissDecision};
use nacre_types::errno::Errno;
use nacre_types::ids::{Epoch, Interval};
use nacre_types::msg::OsdRequest;
use nacre_types::object::ObjectId;
use nacre_types::op::{Op, OsdOp, request_flag};
use nacre_types::pool::CacheMode;
use objects::{BusyObject, Deferred, ObjectWork};
use role::{bypasses_clean_copy, concerns_cached_copy, is_cache_op, needs_cached_copy};
use std::collections::VecDeque;
use std::sync::Arc;

/// The refusal of a request whose sender is no longer the primary of its PG, or whose map is older than the overlay.
pub(super) const DEPOSED: Errno = Errno::ENOTCONN;

/// The decision about an operation before its execution.
pub(super) enum CacheResult {
    /// Execute it on this state of its object.
    Execute(ObjectContext),
    /// Answer the machine with this.
    Done(ExecuteReply),
}

/// Creates the operation that is passed to the PG's machine again.
fn ordered(request: &OsdRequest, write: bool) -> ClientOp {
    ClientOp {
        token: 0,
        reqid: request.reqid,
        oldest_tid: request.oldest_tid,
        attempt: request.attempt,
        interval: request.interval,
        object: request.object.clone(),
        write,
        listing: false,
        dup_check_by_host: true,
        requeued: true,
    }
}

/// The properties of an operation that a cache's policies use.
fn traits_of(op: &InflightOp) -> promote::RequestTraits {
    let ordered = op.request.flags & request_flag::ORDER_READS_WRITES != 0;
    let mut request = promote::RequestTraits::of(&op.request.ops, ordered);
    request.writes = op.writes;
    // A removal through the cache must reach the base too.
    request.skip_cache = false;
    request
}

impl Shard {
    /// The PG's role in a tier, if it has one.
    pub(super) fn tier_role(&self, slot: u32) -> Option<Arc<TierRole>> {
        self.slots.get(slot as usize)?.as_ref()?.role.clone()
    }

    /// Answers operations that do not need the object: proxied operations whose answer has arrived, requests of deposed
    /// senders, queries about requests.
    pub(super) fn answer_tier_request(&mut self, slot: u32, token: u64) -> bool {
        let Some(op) = self.ops.get_mut(token) else { return false };
        if let Some(outcome) = op.tier.answer.take() {
            op.outcome = Some(outcome);
            return true;
        }
        if let [OsdOp { op: Op::ListDirty { cursor, max, namespace }, .. }] = &op.request.ops[..] {
            let (cursor, max, namespace) = (cursor.clone(), *max, namespace.clone());
            let outcome = self.list_dirty(slot, &cursor, max, namespace.as_deref());
            if let Some(op) = self.ops.get_mut(token) {
                op.outcome = Some(outcome);
            }
            return true;
        }
        let Some(sender) = op.request.tier.clone() else { return false };
        let known = match op.request.ops[..] {
            [OsdOp { op: Op::QueryRequest { reqid, attempt }, .. }] => Some((reqid, attempt)),
            _ => None,
        };
        let is_deposed = self.is_deposed(&sender, slot);
        let outcome = match known {
            _ if is_deposed => OpOutcome { result: DEPOSED.negated(), ..OpOutcome::default() },
            Some((reqid, attempt)) => self.lookup_request(slot, reqid, attempt),
            None => return false,
        };
        if let Some(op) = self.ops.get_mut(token) {
            op.outcome = Some(outcome);
        }
        true
    }

    /// Decides about a client's operation before its execution on the object that `context` describes.
    pub(super) fn maybe_handle_cache(
        &mut self,
        slot: u32,
        token: u64,
        context: ObjectContext,
    ) -> CacheResult {
        let Some(role) = self.tier_role(slot) else { return CacheResult::Execute(context) };
        let Some(op) = self.ops.get_mut(token) else { return CacheResult::Execute(context) };
        let request = &op.request;
        let lists = || request.ops.iter().any(|op| op.op.is_pg_listing());
        if op.conn.is_none()
            || request.tier.is_some()
            || request.flags & request_flag::IGNORE_CACHE != 0
            || lists()
        {
            return CacheResult::Execute(context);
        }
        if role.is_older(request) {
            return self.withdraw(token, |shard, op| shard.backoff_op(*op, shard.epoch()));
        }
        let object = request.object.clone();
        let (writes, resent) = (op.writes, request.attempt > 0);
        if self.tiers.is_busy(&object) {
            op.tier.absent = None;
        }
        if self.tiers.is_busy(&object) && !self.may_join(&object, &role, slot, token, &context) {
            return self.withdraw(token, |shard, op| shard.park(&object, op));
        }
        let Some(op) = self.ops.get_mut(token) else { return CacheResult::Execute(context) };
        let goes_past = role.cache.is_none() && op.request.flags & request_flag::IGNORE_OVERLAY != 0;
        // Watches may be registered again.
        if writes && resent && !op.tier.is_checked && !goes_past && !needs_cached_copy(&op.request) {
            return self.withdraw(token, |shard, op| shard.query_other_pool(slot, &role, object, op));
        }
        match role.mode() {
            Some(mode) => self.gate_of_cache(slot, token, context, &role, mode),
            None => CacheResult::Execute(context),
        }
    }

    fn gate_of_cache(
        &mut self,
        slot: u32,
        token: u64,
        mut context: ObjectContext,
        role: &Arc<TierRole>,
        mode: CacheMode,
    ) -> CacheResult {
        let Some(op) = self.ops.get_mut(token) else { return CacheResult::Execute(context) };
        let object = op.request.object.clone();
        if let [OsdOp { op: asked @ (Op::CacheFlush | Op::CacheTryFlush | Op::CacheEvict), .. }] =
            &op.request.ops[..]
        {
            let asked = asked.clone();
            return self.handle_cache_op(slot, token, &context, &asked);
        }
        if concerns_cached_copy(&op.request) {
            return CacheResult::Execute(context);
        }
        let valid = exec::tier::is_valid(&context, role.overlay_epoch);
        let needs_copy = needs_cached_copy(&op.request);
        let (writes, goes_past, absent) = (op.writes, op.tier.must_proxy, op.tier.absent.take());
        let has_waited = op.tier.has_waited;
        let passes = bypasses_clean_copy(mode);
        let is_hit = valid && (!passes || exec::tier::is_dirty(&context) && !writes || needs_copy);
        let recorded = self.recorded(slot, token, &context, is_hit);
        if is_hit {
            if writes && !self.is_logged(slot, role, &object) {
                return self.withdraw(token, |shard, op| shard.log_dirty(slot, role, &object, op));
            }
            if writes && role.writes_through {
                if self.holds_too_many() {
                    // The object would be dirty, and no operation would wait for its flush.
                    return self.withdraw(token, |shard, op| shard.send_op_back(*op));
                }
                if !self.try_add_unflushed(slot, &object, exec::tier::is_dirty(&context)) {
                    return self.withdraw(token, |shard, op| {
                        shard.begin(slot, &object, ObjectWork::Flush, Some(op));
                        shard.flush(slot, &object, &context, None);
                    });
                }
            }
            if writes && !needs_copy && !has_waited && self.waits_for_room(slot) {
                return self.wait_for_room(slot, token, &object);
            }
            return CacheResult::Execute(context);
        }
        // In a mode that bypasses clean copies, nothing may become dirty: operations that waited for a promotion for a watch are proxied.
        if let Some(version) = absent.filter(|_| needs_copy || !passes)
            && !context.exists
        {
            if writes && !self.is_logged(slot, role, &object) {
                return self.withdraw(token, |shard, op| shard.log_dirty(slot, role, &object, op));
            }
            context.info.user_version = context.info.user_version.max(version);
            // It is a copy of the base's object under this overlay.
            context.info.tier_epoch = role.overlay_epoch;
            if writes && role.writes_through {
                self.try_add_unflushed(slot, &object, false);
            }
            return CacheResult::Execute(context);
        }
        if valid && exec::tier::is_dirty(&context) {
            // Nothing may be dirty when the overlay is removed: the write waits for the flush, and then the base executes it.
            return self.withdraw(token, |shard, op| shard.flush(slot, &object, &context, Some((op, true))));
        }
        if valid && writes {
            // The base changes without the copy: the copy must not count then, whichever OSD is primary.
            let version = context.info.version;
            let change = match exec::tier::is_unpinned_unwatched(&context) {
                true => TierChange::Evict { version, is_flushed: false, is_unused: false },
                false => TierChange::Invalidate { version },
            };
            return self.withdraw(token, |shard, op| {
                shard.begin(slot, &object, ObjectWork::Own, Some(op));
                shard.change_tier_object(slot, &object, InternalChange::Change(change));
            });
        }
        let reads_copy = self.ops.get_mut(token).is_some_and(|op| is_copy_read(&op.request));
        let (promotes, afterwards) = match self.decide(slot, token, role, mode, recorded, true) {
            _ if needs_copy => (true, false),
            _ if goes_past || reads_copy => (false, false),
            MissDecision::Execute => return CacheResult::Execute(context),
            MissDecision::Promote => (true, false),
            MissDecision::ProxyRead { promote } | MissDecision::ProxyWrite { promote } => (false, promote),
            // The base can always execute it, so that no operation waits for the agent.
            MissDecision::Redirect | MissDecision::WaitForRoom => (false, false),
        };
        // An operation that makes the promoted object dirty is executed when the object is here.
        if promotes && writes && !self.is_logged(slot, role, &object) {
            return self.withdraw(token, |shard, op| shard.log_dirty(slot, role, &object, op));
        }
        if promotes || afterwards {
            self.on_promotion_started(slot);
        }
        if promotes {
            return self.withdraw(token, |shard, op| shard.promote(slot, role, &object, Some(op)));
        }
        self.withdraw(token, |shard, op| shard.proxy(slot, role, &object, op, afterwards))
    }

    /// Records an operation's access at its first check. A miss that waits for its promotion remains a miss.
    fn recorded(&mut self, slot: u32, token: u64, context: &ObjectContext, is_hit: bool) -> AccessRecord {
        let unknown = AccessRecord { was_in_current: false, rotation_due: false };
        let Some(op) = self.ops.get_mut(token) else { return unknown };
        if let Some(recorded) = op.tier.recorded {
            return recorded;
        }
        let (object, request) = (op.request.object.clone(), traits_of(op));
        let bytes = context.exists.then_some(context.size);
        let recorded = self.record_access(slot, &object, request, bytes, is_hit);
        if let Some(op) = self.ops.get_mut(token) {
            op.tier.recorded = Some(recorded);
        }
        match is_hit {
            true => self.metrics.tier_hits.inc(),
            false => self.metrics.tier_misses.inc(),
        }
        recorded
    }

    /// Decides about an operation whose object the cache lacks. `starts`: a promotion in parallel may start.
    fn decide(
        &mut self,
        slot: u32,
        token: u64,
        role: &TierRole,
        mode: CacheMode,
        recorded: AccessRecord,
        starts: bool,
    ) -> MissDecision {
        let Some(op) = self.ops.get_mut(token) else { return MissDecision::Execute };
        let request = traits_of(op);
        let object = op.request.object.clone();
        let is_full = self.waits_for_room(slot);
        let now_ns = self.now_ns;
        let hosted = self.slots.get(slot as usize).and_then(Option::as_ref);
        let (Some(hosted), Some(tiering)) = (hosted, role.tiering()) else { return MissDecision::Execute };
        let Some(cache) = &hosted.cache else {
            // The PG has only just become active.
            return if request.writes {
                MissDecision::ProxyWrite { promote: false }
            } else {
                MissDecision::ProxyRead { promote: false }
            };
        };
        let throttle = &self.shared.promotions;
        promote::decide(mode, &object, &request, is_full, cache.admission(tiering, recorded), || {
            starts && throttle.lock().try_start(now_ns)
        })
    }

    /// Whether an operation on an object that is being proxied may be proxied in parallel: the base orders them.
    fn may_join(
        &mut self,
        object: &ObjectId,
        role: &TierRole,
        slot: u32,
        token: u64,
        context: &ObjectContext,
    ) -> bool {
        let Some(op) = self.ops.get_mut(token) else { return false };
        let resent = op.writes && op.request.attempt > 0 && !op.tier.is_checked;
        let past = op.tier.must_proxy;
        let (Some(mode), false) = (role.mode(), resent) else { return false };
        let copy =
            needs_cached_copy(&op.request) || concerns_cached_copy(&op.request) || is_cache_op(&op.request);
        let valid = exec::tier::is_valid(context, role.overlay_epoch);
        if copy || valid || !self.tiers.is_proxying(object) {
            return false;
        }
        // The copy may be a proxied operation that is waited for: its source is read in parallel.
        if is_copy_read(&op.request) {
            return true;
        }
        if !self.tiers.only_proxies(object) {
            return false;
        }
        let recorded = AccessRecord { was_in_current: true, rotation_due: false };
        let decision = self.decide(slot, token, role, mode, recorded, false);
        past || !matches!(decision, MissDecision::Promote)
    }

    /// Makes a write wait until the agent has made room.
    fn wait_for_room(&mut self, slot: u32, token: u64, object: &ObjectId) -> CacheResult {
        self.withdraw(token, |shard, op| {
            shard.begin(slot, object, ObjectWork::Room, Some(op));
            shard.schedule_agent(slot, shard.now_ns);
        })
    }

    /// Withdraws an operation from its PG's machine.
    fn withdraw(&mut self, token: u64, then: impl FnOnce(&mut Shard, Box<InflightOp>)) -> CacheResult {
        if let Some(op) = self.take_op(token) {
            then(self, op);
        }
        CacheResult::Done(ExecuteReply::Withdrawn)
    }

    /// Marks an object as busy. The operation that made it busy waits unless it is proxied itself.
    fn begin(&mut self, slot: u32, object: &ObjectId, work: ObjectWork, op: Option<Box<InflightOp>>) {
        self.tiers.begin(object, BusyObject::new(slot, work));
        if let Some(op) = op {
            self.park(object, op);
        }
    }

    /// Makes an operation wait for its object.
    fn park(&mut self, object: &ObjectId, op: Box<InflightOp>) {
        if !self.may_hold(&op) {
            return self.send_op_back(*op);
        }
        if let Err(op) = self.tiers.park(object, op) {
            self.send_op_back(*op);
        }
    }

    /// Whether an operation may wait here. Proxied copies need room for the reads of their sources.
    fn may_hold(&self, op: &InflightOp) -> bool {
        let most = self.shared.settings.max_waiting_inactive;
        !self.holds_too_many() || is_copy_read(&op.request) && self.tiers.held() < 2 * most
    }

    /// Whether the maximum number of operations waits here.
    fn holds_too_many(&self) -> bool {
        self.tiers.held() >= self.shared.settings.max_waiting_inactive
    }

    /// Sends an operation back like a request that finds no room.
    fn send_op_back(&mut self, op: InflightOp) {
        self.tracker.finish(op.track, self.now_ns);
        self.metrics.op_backoffs.inc();
        self.shared.world.observe(crate::host::Observation::SentBack);
        if let Some(conn) = &op.conn {
            backoff_in_order(conn, &op.request, self.epoch());
        }
    }

    /// Sends an operation back like a request of another interval or overlay: its client determines the PG again with a map of
    /// at least `epoch`.
    pub(super) fn backoff_op(&mut self, op: InflightOp, epoch: Epoch) {
        self.tracker.finish(op.track, self.now_ns);
        self.metrics.op_backoffs.inc();
        if let Some(conn) = &op.conn {
            backoff(conn, &op.request, epoch);
        }
    }

    /// Holds an answer until the base has the change that it reports. Returns the operation if it need not wait.
    ///
    /// In a cache that writes through, no answer depends on contents that only the cache has: neither an answer to a write and
    /// its resends, nor one to a read of a change that is not answered yet. If nothing stays in the cache, the base has a
    /// change of watches before its client is answered, or before notifies continue without a lapsed watch. The reason is that
    /// the overlay may be removed at any time.
    pub(super) fn hold_reply_until_flushed(
        &mut self,
        slot: u32,
        mut op: Box<InflightOp>,
        outcome: OpOutcome,
    ) -> Option<(Box<InflightOp>, OpOutcome)> {
        let Some(role) = self.tier_role(slot) else { return Some((op, outcome)) };
        if op.conn.is_some() && role.is_older(&op.request) && needs_cached_copy(&op.request) {
            // The overlay has changed since the execution: the client connects to the other pool.
            self.backoff_op(*op, self.epoch());
            return None;
        }
        let request = &op.request;
        let registers = |op: &OsdOp| matches!(op.op, Op::Watch { .. } | Op::Unwatch { .. });
        let passes = role.mode().is_some_and(bypasses_clean_copy);
        let is_held = role.writes_through && !concerns_cached_copy(request) && !is_cache_op(request)
            || passes && outcome.result >= 0 && request.ops.iter().any(registers);
        let waits = is_held
            && op.tier.own.is_none()
            && !op.tier.is_flushed
            && request.tier.is_none()
            && request.flags & request_flag::IGNORE_CACHE == 0
            && !request.ops.iter().any(|op| op.op.is_pg_listing());
        if !waits {
            return Some((op, outcome));
        }
        let object = request.object.clone();
        // A watch that lapsed on a copy that does not count may still exist in the base: its removal is not flushed, and is
        // repeated.
        let copy = match op.conn.is_none() {
            true => self.context_of(slot, &object),
            false => self.valid_copy(slot, &role, &object),
        };
        let Some(context) = copy.filter(exec::tier::is_dirty) else {
            self.clear_unflushed(slot, &object);
            return Some((op, outcome));
        };
        if op.conn.is_some() && self.holds_too_many() {
            // The resend is answered when the object is flushed.
            self.send_op_back(*op);
            return None;
        }
        // The store has the data, and the flush needs the room.
        op.drop_copy();
        op.tier.after_flush = Some((outcome, context.info.version));
        self.flush(slot, &object, &context, Some((op, false)));
        None
    }

    /// The object's state if it counts.
    fn valid_copy(&mut self, slot: u32, role: &TierRole, object: &ObjectId) -> Option<ObjectContext> {
        let context = self.context_of(slot, object)?;
        let counts = role.cache.is_none() || exec::tier::is_valid(&context, role.overlay_epoch);
        (context.exists && counts).then_some(context)
    }

    /// Whether a watch is not in the state that the operation left. In that case, the base's object, which lacked the change,
    /// has replaced the copy.
    pub(super) fn lost_watch_change(&mut self, slot: u32, role: &TierRole, op: &InflightOp) -> bool {
        let wanted = |op: &OsdOp| match op.op {
            Op::Watch { cookie, .. } => Some((cookie, true)),
            Op::Unwatch { cookie } => Some((cookie, false)),
            _ => None,
        };
        let [Some((cookie, registers))] = op.request.ops.iter().map(wanted).collect::<Vec<_>>()[..] else {
            return false;
        };
        let context = self.valid_copy(slot, role, &op.request.object);
        let is_registered = context.is_some_and(|context| {
            context.info.watchers.iter().any(|known| (known.client, known.cookie) == (op.client, cookie))
        });
        is_registered != registers
    }

    /// Executes a resend that changes a watch. Such a change may be executed twice.
    pub(super) fn reexecute(&mut self, slot: u32, op: Box<InflightOp>) {
        self.tiers.deferred.push_back(Deferred::Repeat { slot, op });
    }

    fn repeat_now(&mut self, slot: u32, op: InflightOp) {
        let again = ClientOp { reqid: Self::INTERNAL_REQID, attempt: 0, ..ordered(&op.request, true) };
        self.submit_op(slot, again, op);
    }

    /// Runs the deferred work. A PG's machine that waits for the answer to an execution must not receive other events before
    /// that answer.
    pub(super) fn run_deferred(&mut self) {
        while let Some(deferred) = self.tiers.deferred.pop_front() {
            match deferred {
                Deferred::Resume(object) if self.tiers.is_resuming(&object) => {
                    self.tiers.end(&object).into_iter().for_each(|op| self.resume_now(op));
                }
                Deferred::Resume(_) => {}
                Deferred::Reply { slot, op, outcome } => self.tell_now(slot, op, outcome),
                Deferred::Repeat { slot, op } => self.repeat_now(slot, *op),
                Deferred::Change { slot, object, own } => self.change_now(slot, &object, own),
            }
        }
    }

    /// Resumes operations that waited for the object, in order and before later ones.
    fn resume(&mut self, object: &ObjectId, ops: VecDeque<Box<InflightOp>>) {
        if self.tiers.resume(object, ops) {
            self.tiers.deferred.push_back(Deferred::Resume(object.clone()));
        }
    }

    /// Passes an operation to its PG again.
    fn resume_now(&mut self, op: Box<InflightOp>) {
        let Some(map) = self.map.clone() else { return };
        let Some(conn) = op.conn.clone() else { return };
        match self.admit(&map, &op.request, &conn) {
            RequestAdmission::Pass { passed, .. } => {
                self.submit_op(passed.slot, ordered(&op.request, op.writes), *op);
            }
            RequestAdmission::Answer(errno) => {
                let outcome = OpOutcome { result: errno.negated(), ..OpOutcome::default() };
                self.tracker.finish(op.track, self.now_ns);
                answer(&conn, &op.request, map.epoch, outcome);
            }
            RequestAdmission::Backoff => self.backoff_op(*op, map.epoch),
        }
    }

    /// Sends the base's answer once this primary may.
    fn tell(&mut self, slot: u32, op: Box<InflightOp>, outcome: OpOutcome) {
        self.tiers.deferred.push_back(Deferred::Reply { slot, op, outcome });
    }

    fn tell_now(&mut self, slot: u32, mut op: Box<InflightOp>, outcome: OpOutcome) {
        op.tier.answer = Some(outcome);
        self.submit_op(slot, ordered(&op.request, false), *op);
    }

    /// Ends the work on an object: operations that waited for it continue, in order.
    fn release(&mut self, object: &ObjectId, change: impl Fn(&mut TierOpState)) {
        let mut waiting = self.tiers.end(object);
        if !waiting.is_empty() && self.shared.settings.breaks(Mutation::DropParked) {
            waiting.pop_back();
        }
        waiting.iter_mut().for_each(|op| change(&mut op.tier));
        self.resume(object, waiting);
    }

    fn send_waiting_back(&mut self, object: &ObjectId) {
        for op in self.tiers.end(object) {
            self.send_op_back(*op);
        }
    }

    /// Whether the store has an object of this name.
    fn has_copy(&mut self, slot: u32, object: &ObjectId) -> bool {
        let Some(hosted) = self.slots.get(slot as usize).and_then(Option::as_ref) else { return false };
        match self.contexts.get(object, hosted.generation) {
            Some(context) => context.exists,
            None => {
                exec::load_context(&*self.shared.store, hosted.pg, object).is_ok_and(|context| context.exists)
            }
        }
    }

    fn is_in(&self, slot: u32, interval: Interval) -> bool {
        let hosted = self.slots.get(slot as usize).and_then(Option::as_ref);
        hosted.is_some_and(|hosted| hosted.interval == interval && hosted.machine.interval() == interval)
    }

    /// Changes a cache's object without a client's request.
    fn change_tier_object(&mut self, slot: u32, object: &ObjectId, own: InternalChange) {
        self.tiers.deferred.push_back(Deferred::Change { slot, object: object.clone(), own });
    }

    fn change_now(&mut self, slot: u32, object: &ObjectId, own: InternalChange) {
        let Some(hosted) = self.slots.get(slot as usize).and_then(Option::as_ref) else { return };
        let (pg, interval) = (hosted.pg, hosted.interval);
        let client = nacre_types::ids::ClientId(0);
        let own = match own {
            InternalChange::Change(TierChange::Evict { version, .. })
                if self.shared.settings.breaks(Mutation::EvictDirty) =>
            {
                InternalChange::Change(TierChange::Discard { version, overlay_epoch: Epoch(u32::MAX) })
            }
            own => own,
        };
        let state = TierOpState { own: Some(own), ..TierOpState::default() };
        self.submit_internal(slot, (pg, interval), object.clone(), Vec::new(), client, state);
    }

    /// Handles the end of a change of the OSD's own, made or not.
    pub(super) fn on_internal_done(&mut self, op: &InflightOp, result: i32) {
        let Some(own) = &op.tier.own else { return };
        let object = &op.request.object;
        match own {
            InternalChange::Promote { .. } if result == 0 || result == Errno::EBUSY.negated() => {
                if result == 0 {
                    self.metrics.tier_promotions.inc();
                    let watchers = self.context_of(op.slot, object).map(|context| context.info.watchers);
                    if let Some(watchers) = watchers {
                        self.replace_watches(op.slot, object, &watchers);
                    }
                }
                self.release(object, |_| {});
            }
            InternalChange::Promote { .. } if result == Errno::ESTALE.negated() => {
                self.send_waiting_back(object)
            }
            InternalChange::Promote { .. } => self.release(object, |state| state.must_proxy = true),
            InternalChange::Change(
                TierChange::Flushed { .. } | TierChange::Evict { is_flushed: true, .. },
            ) => {
                self.flush_done(op.slot, object, result);
            }
            InternalChange::Change(TierChange::Evict { .. } | TierChange::Discard { .. }) => {
                if result == 0 {
                    self.metrics.tier_evictions.inc();
                }
                self.on_evicted(object, result);
            }
            InternalChange::Change(_) => self.release(object, |_| {}),
            InternalChange::Internal => {}
        }
    }

    /// Sends back the waiting operations when the PG begins another interval or is no longer hosted.
    pub(super) fn drop_tier_work(&mut self, slot: u32) {
        for op in self.tiers.drop_slot(slot) {
            self.backoff_op(*op, self.epoch());
        }
        if let Some(hosted) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) {
            hosted.cache = None;
        }
    }
}
