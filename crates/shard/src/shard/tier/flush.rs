//! Flushing and evicting: changes of a cache's objects are copied to the base, clean objects are removed from the cache.

use super::super::Shard;
use super::super::ops::{InflightOp, OpOutcome};
use super::objects::{InflightFlush, InternalChange, ObjectWork, TierRequest};
use super::role::is_cache_op;
use super::{CacheResult, DEPOSED};
use nacre_exec::tier::TierChange;
use nacre_exec::{self as exec, ObjectContext};
use nacre_pg::{ExecuteReply, Mutation};
use nacre_types::errno::Errno;
use nacre_types::ids::{Epoch, Eversion, Interval};
use nacre_types::msg::OsdReply;
use nacre_types::object::ObjectId;
use nacre_types::op::{Op, OsdOp, copy_from_flag, request_flag};
use std::collections::VecDeque;

/// How often a flush starts over because its object was changed, before its client gets an error.
const MAX_RESTARTS: u32 = 8;
/// How often a flush that the base refuses is retried while answers wait for it, before they are sent back.
const MAX_REFUSALS: u32 = 30;
/// The time after which it is retried, in nanoseconds.
const RETRY_NS: u64 = 1_000_000_000;

impl Shard {
    /// Handles clients' cache-flush, cache-try-flush and cache-evict.
    pub(super) fn handle_cache_op(
        &mut self,
        slot: u32,
        token: u64,
        context: &ObjectContext,
        asked: &Op,
    ) -> CacheResult {
        let role = self.tier_role(slot);
        let is_unused = role.as_ref().is_some_and(|role| !role.serves);
        let overlay_epoch = role.map_or(Epoch(0), |role| role.overlay_epoch);
        let is_obsolete = context.exists && !exec::tier::is_valid(context, overlay_epoch);
        let Some(op) = self.ops.get_mut(token) else { return CacheResult::Done(ExecuteReply::Read) };
        let object = op.request.object.clone();
        let result = match asked {
            _ if !context.exists => Errno::ENOENT.negated(),
            _ if is_obsolete => {
                let version = context.info.version;
                return self.withdraw(token, |shard, op| {
                    shard.tiers.evictions.insert(object.clone(), op);
                    shard.discard_stale_copy(slot, &object, version, overlay_epoch);
                });
            }
            Op::CacheEvict
                if exec::tier::is_dirty(context)
                    || !(is_unused || exec::tier::is_unpinned_unwatched(context)) =>
            {
                Errno::EBUSY.negated()
            }
            Op::CacheEvict => {
                let own = InternalChange::Change(TierChange::Evict {
                    version: context.info.version,
                    is_flushed: false,
                    is_unused,
                });
                return self.withdraw(token, |shard, op| {
                    shard.begin(slot, &object, ObjectWork::Own, None);
                    shard.tiers.evictions.insert(object.clone(), op);
                    shard.change_tier_object(slot, &object, own);
                });
            }
            _ if exec::tier::is_dirty(context) => {
                let insists = matches!(asked, Op::CacheFlush);
                let context = context.clone();
                return self
                    .withdraw(token, |shard, op| shard.flush(slot, &object, &context, Some((op, insists))));
            }
            _ => 0,
        };
        op.outcome =
            Some(OpOutcome { result, user_version: context.user_version(0), ..OpOutcome::default() });
        CacheResult::Done(ExecuteReply::Read)
    }

    /// Writes an object's changes to the base.
    pub(super) fn flush(
        &mut self,
        slot: u32,
        object: &ObjectId,
        context: &ObjectContext,
        waiting: Option<(Box<InflightOp>, bool)>,
    ) {
        if let Some(flush) = self.tiers.flushes.get_mut(object) {
            flush.waiting.extend(waiting);
            return self.hold_object(slot, object);
        }
        let version = context.info.version;
        let is_whiteout = exec::tier::is_whiteout(context);
        let waiting = waiting.into_iter().collect();
        let flush = InflightFlush {
            slot,
            began_ns: self.now_ns,
            version,
            is_whiteout,
            waiting,
            restarts: 0,
            refusals: 0,
            retry_ns: None,
        };
        self.tiers.flushes.insert(object.clone(), flush);
        self.hold_object(slot, object);
        self.send_flush(slot, object, context);
    }

    /// Makes operations on the object wait for its flush if answers wait for it.
    fn hold_object(&mut self, slot: u32, object: &ObjectId) {
        let holds = self.tiers.flushes.get(object).is_some_and(InflightFlush::holds_answers);
        if holds && (!self.tiers.is_busy(object) || self.tiers.is_resuming(object)) {
            self.begin(slot, object, ObjectWork::Flush, None);
        }
    }

    /// Flushes the object's current state again.
    fn flush_again(&mut self, slot: u32, object: &ObjectId, context: &ObjectContext) {
        let Some(flush) = self.tiers.flushes.get_mut(object) else { return };
        (flush.version, flush.is_whiteout) = (context.info.version, exec::tier::is_whiteout(context));
        flush.retry_ns = None;
        self.hold_object(slot, object);
        self.send_flush(slot, object, context);
    }

    /// Retries flushes that the base refused.
    pub(super) fn retry_flushes(&mut self, slot: u32) {
        for object in self.tiers.flushes_to_retry(slot, self.now_ns) {
            match self.context_of(slot, &object).filter(exec::tier::is_dirty) {
                Some(context) => self.flush_again(slot, &object, &context),
                None => self.end_flush(&object, Errno::EBUSY.negated()),
            }
        }
    }

    /// Sends back the operations that wait for flushes to be retried: the PG is no cache any more, or not active.
    pub(super) fn drop_flush_retries(&mut self, slot: u32) {
        for object in self.tiers.flushes_to_retry(slot, u64::MAX) {
            self.end_flush(&object, Errno::ESTALE.negated());
        }
    }

    fn send_flush(&mut self, slot: u32, object: &ObjectId, context: &ObjectContext) {
        let overlay_epoch = self.tier_role(slot).map_or(Epoch(0), |role| role.overlay_epoch);
        if !exec::tier::is_valid(context, overlay_epoch) {
            // The base has changed without it.
            return self.end_flush(object, Errno::ESTALE.negated());
        }
        let user_version = context.info.user_version;
        let is_whiteout = exec::tier::is_whiteout(context);
        let op = match is_whiteout {
            true => Op::Remove,
            false => Op::CopyFrom {
                source: object.clone(),
                version: user_version,
                flags: copy_from_flag::FLUSH | copy_from_flag::IGNORE_OVERLAY | copy_from_flag::IGNORE_CACHE,
                truncate: (0, 0),
            },
        };
        let asked = self
            .tier_role(slot)
            .and_then(|role| self.request_to_other(slot, role.other, object, vec![OsdOp::from(op)], None));
        let Some(mut asked) = asked else { return self.end_flush(object, Errno::EBUSY.negated()) };
        asked.mtime_ns = context.info.mtime_ns;
        asked.flags |= request_flag::FULL_TRY;
        if let Some(sender) = asked.tier.as_mut().filter(|_| is_whiteout) {
            sender.user_version = user_version;
        }
        let (interval, epoch) = (asked.interval, asked.epoch);
        let ticket =
            self.tiers.add_request(TierRequest::Flush { slot, interval, object: object.clone(), epoch });
        self.shared.world.request_other_pool(self.index, ticket, asked);
    }

    /// Handles the base's answer to a flush.
    pub(super) fn on_flushed(
        &mut self,
        slot: u32,
        interval: Interval,
        object: &ObjectId,
        epoch: Epoch,
        reply: Result<OsdReply, Errno>,
    ) {
        if !self.is_in(slot, interval) {
            return;
        }
        let Some(flush) = self.tiers.flushes.get_mut(object) else { return };
        let (version, is_whiteout) = (flush.version, flush.is_whiteout);
        let result = reply.map(|reply| reply.result);
        if result == Ok(0) {
            for (mut op, outcome) in flush.take_flushed(version) {
                op.tier.is_flushed = true;
                self.tell(slot, op, outcome);
            }
            if self.context_of(slot, object).is_some_and(|context| context.info.version == version) {
                self.mark_all_flushed(slot, object);
            }
        }
        match result {
            Ok(0) if is_whiteout => {
                let own =
                    InternalChange::Change(TierChange::Evict { version, is_flushed: true, is_unused: false });
                self.change_tier_object(slot, object, own);
            }
            Ok(0) => {
                let version = match self.context_of(slot, object) {
                    Some(context) if self.shared.settings.breaks(Mutation::FlushOutOfOrder) => {
                        context.info.version
                    }
                    _ => version,
                };
                self.change_tier_object(
                    slot,
                    object,
                    InternalChange::Change(TierChange::Flushed { version, epoch }),
                );
            }
            Ok(result) if result == DEPOSED.negated() => self.end_flush(object, result),
            Ok(result) => {
                // The object was changed before the base fetched it.
                let changed =
                    [Errno::ERANGE, Errno::EOVERFLOW, Errno::ENOENT].map(Errno::negated).contains(&result);
                let result = if changed { Errno::EBUSY.negated() } else { result };
                self.flush_done(slot, object, result);
            }
            Err(_) => self.end_flush(object, Errno::ESTALE.negated()),
        }
    }

    /// Handles the end of a flush, or a change of its object during the flush.
    pub(super) fn flush_done(&mut self, slot: u32, object: &ObjectId, result: i32) {
        if result == 0 {
            self.metrics.tier_flushes.inc();
        }
        // Some waiting operations may have arrived after a later change: the flush is done when the object is clean.
        let changed = result == 0 || result == Errno::EBUSY.negated();
        let context =
            self.context_of(slot, object).filter(|context| changed && exec::tier::is_dirty(context));
        let Some(flush) = self.tiers.flushes.get_mut(object) else { return };
        if result == 0 {
            flush.refusals = 0;
        }
        if let Some(context) = context
            && flush.restarts < MAX_RESTARTS
            && flush.needs_newer_flush()
        {
            flush.restarts += 1;
            return self.flush_again(slot, object, &context);
        }
        // The base may get room, or become reachable again.
        let is_refused = !changed && result != DEPOSED.negated() && result != Errno::ESTALE.negated();
        let holds = flush.holds_answers() || self.tiers.waits_for_flush(object);
        let Some(flush) = self.tiers.flushes.get_mut(object) else { return };
        if is_refused && holds && flush.refusals < MAX_REFUSALS {
            flush.refusals += 1;
            let retry_ns = self.now_ns + RETRY_NS;
            flush.retry_ns = Some(retry_ns);
            return self.schedule_agent_by(slot, retry_ns);
        }
        self.end_flush(object, result);
    }

    fn end_flush(&mut self, object: &ObjectId, result: i32) {
        let Some(mut flush) = self.tiers.flushes.remove(object) else { return };
        if result == 0 {
            for (mut op, outcome) in flush.take_flushed(flush.version) {
                op.tier.is_flushed = true;
                self.tell(flush.slot, op, outcome);
            }
            // The agent can start the next one.
            self.pause_flushing(flush.slot, self.now_ns.saturating_sub(flush.began_ns));
        }
        let mut going_on = VecDeque::new();
        for (mut op, _) in flush.waiting {
            if result != 0 && op.conn.is_none() {
                self.retry_watch_removal(&op, true);
            } else if result == DEPOSED.negated() {
                // The base knows a newer map.
                self.backoff_op(*op, self.epoch().next());
            } else if result == Errno::ESTALE.negated() {
                self.backoff_op(*op, self.epoch());
            } else if op.tier.after_flush.take().is_some() {
                // The resend waits for the next flush.
                self.send_op_back(*op);
            } else if is_cache_op(&op.request) {
                self.tell(flush.slot, op, OpOutcome { result, ..OpOutcome::default() });
            } else if result == 0 {
                going_on.push_back(op);
            } else {
                self.send_op_back(*op);
            }
        }
        match self.tiers.waits_for_flush(object) {
            true if result == 0 => self.release(object, |_| {}),
            true => self.send_waiting_back(object),
            false => {}
        }
        // They arrived before the operations that waited for the object.
        self.resume(object, going_on);
    }

    /// Drops a copy that does not count.
    pub(super) fn discard_stale_copy(
        &mut self,
        slot: u32,
        object: &ObjectId,
        version: Eversion,
        overlay_epoch: Epoch,
    ) {
        self.begin(slot, object, ObjectWork::Own, None);
        self.change_tier_object(
            slot,
            object,
            InternalChange::Change(TierChange::Discard { version, overlay_epoch }),
        );
    }

    /// Handles the end of an eviction.
    pub(super) fn on_evicted(&mut self, object: &ObjectId, result: i32) {
        if let Some(op) = self.tiers.evictions.remove(object) {
            self.tell(op.slot, op, OpOutcome { result, ..OpOutcome::default() });
        }
        self.release(object, |_| {});
    }

    /// The object's current state in the store.
    pub(super) fn context_of(&mut self, slot: u32, object: &ObjectId) -> Option<ObjectContext> {
        let hosted = self.slots.get(slot as usize)?.as_ref()?;
        if let Some(context) = self.contexts.get(object, hosted.generation) {
            return Some(context.clone());
        }
        exec::load_context(&*self.shared.store, hosted.pg, object).ok()
    }
}
