//! Clients' requests from arrival to reply.

use super::space::{MemberSpace, SpaceCheck};
use super::tier::{CacheResult, InternalChange, TierOpState};
use super::{Hosted, Shard};
use crate::access;
use crate::copy::AdmittedCopy;
use crate::host::Observation;
use crate::session::{IncomingRequest, Session, is_ordered};
use crate::tracker::{OpHandle, Stage};
use bytes::Bytes;
use nacre_common::error::Error;
use nacre_common::{conn::ConnRef, throttle::Permit};
use nacre_exec::{self as exec, ExecEnv, ObjectContext, Origin, SumsDelta, WatchNotifyEffect};
use nacre_objectstore::{ObjectStore, StoreError};
use nacre_pg::log::MAX_DUP_RESULT_BYTES;
use nacre_pg::{ClientOp, DropReason, ExecuteReply, Mutation, PgEvent};
use nacre_types::errno::Errno;
use nacre_types::ids::{ClientId, Epoch, Eversion, Interval, OsdId, PgId, ReqId};
use nacre_types::msg::{Message, OsdBackoff, OsdReply, OsdRequest};
use nacre_types::op::{Op, OpResult, OsdOp, request_flag};
use nacre_types::osdmap::{OsdMap, flag};
use nacre_types::tier::ProxiedClient;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr};

/// The space reserved for a write in addition to its payload: the object's info and log entry, allocation units.
const WRITE_OVERHEAD_BYTES: u64 = 64 << 10;

/// The source address of the OSD's own requests.
const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// The contents of a reply without its addressee; kept with the log for resends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct OpOutcome {
    pub(super) result: i32,
    pub(super) user_version: u64,
    /// Empty if all are successes without output. The number of results is that of the request's ops.
    pub(super) ops: Vec<OpResult>,
}

/// A request that a PG holds.
pub(super) struct InflightOp {
    pub(super) request: OsdRequest,
    /// The connection for the reply; `None` for the OSD's own requests.
    pub(super) conn: Option<ConnRef>,
    pub(super) permit: Option<Permit>,
    /// The client for which it is executed.
    pub(super) client: ClientId,
    pub(super) slot: u32,
    pub(super) track: OpHandle,
    arrived_ns: u64,
    pub(super) writes: bool,
    /// The bytes that are counted as in flight to the members, and these members.
    charged: Option<(u64, Vec<OsdId>)>,
    pub(super) effects: Vec<WatchNotifyEffect>,
    copy: Option<AdmittedCopy>,
    pub(super) outcome: Option<OpOutcome>,
    /// The state of the request in a cache tier.
    pub(super) tier: TierOpState,
    /// The version of its change.
    wrote: Option<Eversion>,
}

impl OpOutcome {
    /// Decodes a recorded outcome.
    pub(super) fn decode_recorded(reqid: &ReqId, result: &Bytes) -> OpOutcome {
        postcard::from_bytes(result).unwrap_or_else(|error| {
            tracing::error!(%reqid, %error, "a recorded reply is corrupt");
            OpOutcome { result: Errno::EIO.negated(), ..OpOutcome::default() }
        })
    }
}

impl InflightOp {
    /// Creates a request that is not executed yet.
    pub(super) fn new(
        request: OsdRequest,
        conn: Option<ConnRef>,
        client: ClientId,
        slot: u32,
        track: OpHandle,
        arrived_ns: u64,
        writes: bool,
    ) -> InflightOp {
        InflightOp {
            request,
            conn,
            permit: None,
            client,
            slot,
            track,
            arrived_ns,
            writes,
            charged: None,
            effects: Vec::new(),
            copy: None,
            outcome: None,
            tier: TierOpState::default(),
            wrote: None,
        }
    }
}

impl InflightOp {
    /// Releases the room of the request's copy: it is not executed here, or has been.
    pub(super) fn drop_copy(&mut self) {
        self.copy = None;
    }

    /// The copy that replaces its object.
    fn copied(&self) -> Option<&AdmittedCopy> {
        match &self.tier.own {
            Some(InternalChange::Promote { copy, .. }) => Some(copy),
            _ => self.copy.as_ref(),
        }
    }
}

/// The requests that PGs hold, by token.
#[derive(Default)]
pub(super) struct InflightOps {
    slots: Vec<(u32, Option<Box<InflightOp>>)>,
    free: Vec<u32>,
}

impl InflightOps {
    fn insert(&mut self, op: Box<InflightOp>) -> u64 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            self.slots.len() as u32 - 1
        });
        let (serial, slot) = &mut self.slots[at as usize];
        *slot = Some(op);
        u64::from(*serial) << 32 | u64::from(at)
    }

    fn at(&self, token: u64) -> Option<usize> {
        let at = token as u32 as usize;
        self.slots.get(at).is_some_and(|(serial, _)| *serial == (token >> 32) as u32).then_some(at)
    }

    pub(super) fn get_mut(&mut self, token: u64) -> Option<&mut InflightOp> {
        let at = self.at(token)?;
        self.slots[at].1.as_deref_mut()
    }

    fn remove(&mut self, token: u64) -> Option<Box<InflightOp>> {
        let at = self.at(token)?;
        let (serial, slot) = &mut self.slots[at];
        let op = slot.take()?;
        // Another request in the same slot gets a different token.
        *serial = serial.wrapping_add(1);
        self.free.push(at as u32);
        Some(op)
    }

    /// The number of requests.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn tokens_of(&self, of: u32) -> Vec<u64> {
        self.slots
            .iter()
            .enumerate()
            .filter(|(_, (_, op))| op.as_ref().is_some_and(|op| op.slot == of))
            .map(|(at, (serial, _))| u64::from(*serial) << 32 | at as u64)
            .collect()
    }
}

impl Shard {
    /// Handles a client's request.
    pub fn on_request(&mut self, arrival: IncomingRequest) {
        let Some(map) = self.map.clone() else {
            self.wait_for_map(arrival);
            return;
        };
        let IncomingRequest { request, conn, .. } = &arrival;
        if is_ordered(request) && conn.context::<Session>().is_some_and(|s| s.is_out_of_order(request)) {
            self.metrics.op_backoffs.inc();
            return backoff(conn, request, map.epoch);
        }
        if request.min_epoch() > map.epoch {
            self.wait_for_map(arrival);
            return;
        }
        if request.tier.is_none() && request.flags & request_flag::IGNORE_CACHE == 0 {
            self.tiers.client_ns = self.now_ns;
        }
        let admission = self.admit(&map, request, conn);
        if matches!(admission, RequestAdmission::Pass { .. }) {
            self.note_watch_pings(request, conn);
        }
        match admission {
            RequestAdmission::Pass { passed, copies } if copies || self.copies.is_any() => {
                if let Some(arrival) = self.wait_for_copy(arrival, passed, copies) {
                    self.start_request(arrival, passed, None);
                }
            }
            RequestAdmission::Pass { passed, .. } => self.start_request(arrival, passed, None),
            RequestAdmission::Answer(errno) => {
                self.metrics.op_errors.inc();
                answer(
                    conn,
                    request,
                    map.epoch,
                    OpOutcome { result: errno.negated(), ..OpOutcome::default() },
                );
            }
            RequestAdmission::Backoff => {
                self.metrics.op_backoffs.inc();
                if map.pools.contains_key(&request.pg.pool) {
                    backoff_in_order(conn, request, map.epoch);
                } else {
                    // Without a PG, the request's operations have no order.
                    backoff(conn, request, map.epoch);
                }
            }
        }
    }

    pub(super) fn admit(&mut self, map: &OsdMap, request: &OsdRequest, conn: &ConnRef) -> RequestAdmission {
        let Some(session) = conn.context::<Session>() else {
            return RequestAdmission::Answer(Errno::EPERM);
        };
        if session.client.is_some_and(|id| id != request.reqid.client) {
            tracing::warn!(entity = %session.entity, reqid = %request.reqid, "a request in another session's name");
            return RequestAdmission::Answer(Errno::EPERM);
        }
        let Some(pool) = map.pools.get(&request.pg.pool) else { return RequestAdmission::Backoff };
        if request.tier.is_some() && session.entity.osd_id().is_none() {
            tracing::warn!(entity = %session.entity, reqid = %request.reqid, "only OSDs speak for cache tiers");
            return RequestAdmission::Answer(Errno::EPERM);
        }
        if request.object.pool() != request.pg.pool || request.pg.seed >= pool.pg_num {
            return RequestAdmission::Answer(Errno::EINVAL);
        }
        let special = |op: &OsdOp| op.op.is_pg_listing() || matches!(op.op, Op::CopyFrom { .. });
        let special = request.ops.iter().find(|op| special(op));
        let copies = special.is_some_and(|op| matches!(op.op, Op::CopyFrom { .. }));
        let listing = special.is_some() && !copies;
        if !listing && pool.pg_of(&request.object) != request.pg {
            // An older map may have placed it there. With the current map, it is misdirected.
            return if request.epoch < pool.last_change {
                RequestAdmission::Backoff
            } else {
                RequestAdmission::Answer(Errno::ENXIO)
            };
        }
        let limits = self.shared.limits.load();
        if let Err(errno) = exec::validate(request, &limits) {
            return RequestAdmission::Answer(errno);
        }
        let writes = exec::may_write(request);
        let ip = conn.peer_addr().ip();
        // A client with access to a pool has access to the cache that serves it.
        let base = pool.tiering.tier_of.and_then(|base| map.pools.get(&base));
        let is_allowed = |pool| access::is_allowed(&session.caps, map, pool, request, &limits, ip);
        if !is_allowed(pool) && !base.is_some_and(|base| is_allowed(base)) {
            self.metrics.op_denied.inc();
            return RequestAdmission::Answer(Errno::EPERM);
        }
        let proxied = request.tier.as_ref().and_then(|sender| sender.client.as_ref());
        let shut_out =
            |client: &ProxiedClient| Session::is_client_blocklisted(map, client.reqid.client, client.addr);
        if (session.is_blocklisted(map) || proxied.is_some_and(shut_out))
            && !self.shared.settings.breaks(Mutation::IgnoreBlocklist)
        {
            return RequestAdmission::Answer(Errno::ESHUTDOWN);
        }
        let forced = request.flags & request_flag::FULL_FORCE != 0;
        if writes
            && !forced
            && fit(&self.space, map, request.pg, request.payload_bytes() as u64) == SpaceCheck::Later
        {
            return RequestAdmission::Backoff;
        }
        match self.by_pg.get(&request.pg) {
            Some(slot) => {
                RequestAdmission::Pass { passed: AdmittedRequest { slot: *slot, writes, listing }, copies }
            }
            None => RequestAdmission::Backoff,
        }
    }

    /// Passes an admitted request to its PG, with the source of its copy-from op if it has one.
    pub(super) fn start_request(
        &mut self,
        arrival: IncomingRequest,
        passed: AdmittedRequest,
        copy: Option<AdmittedCopy>,
    ) {
        let AdmittedRequest { slot, writes, listing } = passed;
        let IncomingRequest { request, conn, permit, arrived_ns } = arrival;
        let track = self.tracker.start(&request, Some(conn.peer_addr()), arrived_ns, self.now_ns);
        let proxied = request.tier.as_ref().and_then(|sender| sender.client.as_ref());
        let (reqid, oldest_tid, attempt) = match proxied {
            Some(client) => (client.reqid, client.oldest_tid, client.attempt),
            None => (request.reqid, request.oldest_tid, request.attempt),
        };
        let vouched =
            self.slots.get(slot as usize).and_then(Option::as_ref).is_some_and(|h| h.role.is_some());
        let op = ClientOp {
            token: 0,
            reqid,
            oldest_tid,
            attempt,
            interval: request.interval,
            object: request.object.clone(),
            write: writes,
            listing,
            dup_check_by_host: vouched,
            requeued: false,
        };
        let client = reqid.client;
        let mut in_hand = InflightOp::new(request, Some(conn), client, slot, track, arrived_ns, writes);
        (in_hand.permit, in_hand.copy) = (permit, copy);
        self.submit_op(slot, op, in_hand);
    }

    /// Passes a request to its PG.
    pub(super) fn submit_op(&mut self, slot: u32, mut op: ClientOp, inflight_op: InflightOp) {
        op.token = self.ops.insert(Box::new(inflight_op));
        let token = op.token;
        self.feed(slot, PgEvent::Client(op));
        // It was executed at once, or its PG delays it.
        if let Some(op) = self.ops.get_mut(token)
            && op.outcome.is_none()
        {
            let active = self.slots[slot as usize].as_ref().is_some_and(|hosted| hosted.active);
            let stage = if active { Stage::Delayed } else { Stage::WaitingForActive };
            self.tracker.stage(op.track, stage, self.now_ns);
        }
    }

    /// The state of the object on which an operation is executed. Otherwise the immediate answer to the machine.
    fn context_for(&mut self, slot: u32, token: u64) -> Result<ObjectContext, ExecuteReply> {
        let shared = std::sync::Arc::clone(&self.shared);
        let Some(hosted) = self.slots[slot as usize].as_mut() else { return Err(ExecuteReply::Read) };
        let Some(op) = self.ops.get_mut(token) else {
            tracing::error!(pg = %hosted.pg, token, "execution of an unknown request");
            return Err(ExecuteReply::Read);
        };
        let request = &op.request;
        self.tracker.stage(op.track, Stage::Started, self.now_ns);
        let listing = request.ops.iter().any(|op| op.op.is_pg_listing());
        if !listing && hosted.machine.lacks(&request.object) {
            return Err(damaged(hosted, op, &*shared.store));
        }
        if let Some(context) = self.contexts.get(&request.object, hosted.generation) {
            self.metrics.context_hits.inc();
            return Ok(context.clone());
        }
        self.metrics.context_misses.inc();
        match exec::load_context(&*shared.store, hosted.pg, &request.object) {
            Ok(context) => {
                let forgets = shared.settings.breaks(Mutation::ForgetWatchers);
                let serves = hosted.role.as_ref().is_none_or(|role| role.serves);
                if !context.info.watchers.is_empty() && !forgets && serves {
                    let infos = &context.info.watchers;
                    self.watches.adopt(slot, &request.object, infos, self.now_ns);
                    self.inbox.wake_task();
                }
                self.contexts.put(&request.object, hosted.generation, context.clone());
                Ok(context)
            }
            // A PG that was never written has no collection yet.
            Err(StoreError::NoCollection(_)) => Ok(ObjectContext::default()),
            Err(error) => {
                tracing::error!(object = %request.object, %error, "can't read an object's state");
                match error.is_damage() {
                    true => Err(damaged(hosted, op, &*shared.store)),
                    false => Err(failed(op, error.errno())),
                }
            }
        }
    }

    /// Executes a request against the store.
    pub(super) fn execute(&mut self, slot: u32, token: u64, version: Eversion) -> ExecuteReply {
        let shared = std::sync::Arc::clone(&self.shared);
        let has_role = self.slots[slot as usize].as_ref().is_some_and(|hosted| hosted.role.is_some());
        let in_tier = has_role || self.ops.get_mut(token).is_some_and(|op| op.request.tier.is_some());
        if in_tier && self.answer_tier_request(slot, token) {
            return ExecuteReply::Read;
        }
        let mut context = match self.context_for(slot, token) {
            Ok(context) => context,
            Err(executed) => return executed,
        };
        if in_tier {
            match self.maybe_handle_cache(slot, token, context) {
                CacheResult::Execute(seen) => context = seen,
                CacheResult::Done(executed) => return executed,
            }
        }
        let (Some(hosted), Some(map)) = (self.slots[slot as usize].as_mut(), self.map.as_ref()) else {
            return ExecuteReply::Read;
        };
        let Some(op) = self.ops.get_mut(token) else { return ExecuteReply::Read };
        let request = &op.request;
        let Some(pool) = map.pools.get(&hosted.pg.pool) else {
            op.outcome = Some(OpOutcome { result: Errno::ENOENT.negated(), ..OpOutcome::default() });
            return ExecuteReply::Read;
        };
        let (mut full, mut no_space) = (false, false);
        let mut payload = 0;
        if op.writes {
            payload = (request.payload_bytes() as u64)
                .saturating_add(op.copied().map_or(0, AdmittedCopy::payload_bytes));
            full = shared.is_full()
                || map.has_flag(flag::FULL)
                || any_member_full(map, hosted.pg)
                || fit(&self.space, map, hosted.pg, payload) == SpaceCheck::No;
            match shared.store.reserve(payload.saturating_add(WRITE_OVERHEAD_BYTES)) {
                // Held until the change is queued (rule B6).
                Ok(reservation) => self.reservations.push(reservation),
                Err(StoreError::NoSpace { .. }) => {
                    no_space = true;
                    shared.report.notify_one();
                }
                Err(error) => return failed(op, error.errno()),
            }
        }
        let limits = shared.limits.load();
        let env = ExecEnv {
            store: &*shared.store,
            pg: hosted.pg,
            pool,
            limits: &limits,
            full,
            no_space,
            at: version,
            whiteouts: hosted.role.as_ref().is_some_and(|role| role.leaves_whiteouts())
                && !shared.settings.breaks(Mutation::ForgetWhiteout),
            takes_watches: hosted.role.as_ref().is_some_and(|role| role.cache.is_none() && !role.serves),
            last_user_version: hosted.machine.user_version(),
            origin: Origin {
                client: op.client,
                ip: op.conn.as_ref().map_or(LOCALHOST, |c| c.peer_addr().ip()),
            },
            wall_ns: &|| shared.world.wall_ns(),
            fresh_uuid: &|| shared.world.fresh_uuid(),
            watches: &|client| shared.watch_counts.of(client),
            copied: op.copy.as_ref().and_then(AdmittedCopy::get),
            recent_requests: &|oid| match shared.settings.breaks(Mutation::LoseRequestIds) {
                true => Vec::new(),
                false => hosted.machine.requests_of(oid, exec::MAX_COPIED_REQIDS),
            },
            missing: &|first, end| match shared.settings.breaks(Mutation::ListWithoutMissing) {
                true => Vec::new(),
                false => hosted.machine.missing_in(first, end).cloned().collect(),
            },
        };
        let mut executed = match tier_change(op) {
            Some(change) => exec::tier::change(&env, request, &context, change),
            None => exec::execute(&env, request, &context),
        };
        if executed.damaged {
            // It is executed again once the object is complete.
            return damaged(hosted, op, &*shared.store);
        }
        if let Some(copy) = &mut op.copy {
            copy.release_data();
        }
        if let Some(InternalChange::Promote { copy, .. }) = &mut op.tier.own {
            copy.release_data();
        }
        op.effects = std::mem::take(&mut executed.effects);
        count(&self.metrics, &mut hosted.io, op.writes, request, &executed);
        let trivial = executed.ops.iter().all(|op| op.code == 0 && op.output.is_empty());
        let outcome = OpOutcome {
            result: executed.result,
            user_version: executed.user_version,
            ops: if trivial { Vec::new() } else { executed.ops },
        };
        let Some(change) = executed.change else {
            // This includes a lack of space: a late copy of the request must not take effect after its client was told that it
            // failed, or that it succeeded.
            let failed = outcome.result < 0;
            let recorded = op.writes && (failed || exec::may_change(request));
            let result = recorded.then(|| record(&outcome));
            op.outcome = Some(outcome);
            return match result {
                None => ExecuteReply::Read,
                Some(result) if failed => ExecuteReply::Failed { result },
                Some(result) => ExecuteReply::Unchanged { result },
            };
        };
        hosted.sums.apply_change(&request.object, &change.delta);
        if let Some(cache) = &mut hosted.cache {
            cache.note(&request.object, &change.context);
        }
        if self.space.is_scarce() {
            let members: Vec<OsdId> = map.membership(hosted.pg).map(|m| m.acting()).unwrap_or_default();
            // Methods of object classes may write more than their input.
            let bytes = payload.max(change.written_bytes);
            self.space.add_inflight(members.iter().copied(), bytes);
            op.charged = Some((bytes, members));
        }
        let result = encode(&outcome);
        (op.outcome, op.wrote) = (Some(outcome), Some(version));
        self.tracker.stage(op.track, Stage::WaitingForSubOps, self.now_ns);
        let (delete, user_version, mtime_ns) =
            (!change.context.exists, change.context.info.user_version, change.context.info.mtime_ns);
        self.contexts.put(&request.object, hosted.generation, change.context);
        ExecuteReply::Write {
            txn: change.transaction,
            delete,
            prior: change.prior_version,
            user_version,
            mtime_ns,
            result: Bytes::from(result),
        }
    }

    /// Removes a request from those that its PG holds.
    pub(super) fn take_op(&mut self, token: u64) -> Option<Box<InflightOp>> {
        let mut op = self.ops.remove(token)?;
        if let Some((bytes, members)) = op.charged.take() {
            self.space.remove_inflight(members.into_iter(), bytes);
        }
        Some(op)
    }

    /// Sends the outcome of the execution.
    pub(super) fn reply(&mut self, slot: u32, token: u64) {
        let Some(mut op) = self.take_op(token) else {
            tracing::error!(token, "answer to an unknown request");
            return self.observe_unknown(slot, token);
        };
        let Some(outcome) = op.outcome.take() else {
            tracing::error!(reqid = %op.request.reqid, "answer without an outcome");
            return self.observe_unknown(slot, token);
        };
        let mut outcome = outcome;
        if self.slots[slot as usize].as_ref().is_some_and(|hosted| hosted.role.is_some()) {
            match self.hold_reply_until_flushed(slot, op, outcome) {
                Some((flushed, told)) => (op, outcome) = (flushed, told),
                None => return,
            }
        }
        self.observe_answer(&op, op.wrote, outcome.result);
        if !op.effects.is_empty() {
            return self.reply_with_effects(op, outcome);
        }
        self.finish_request(&op, outcome);
    }

    /// Answers a resend with the recorded outcome.
    pub(super) fn reply_dup(&mut self, slot: u32, token: u64, version: Eversion, result: &Bytes) {
        let Some(mut op) = self.take_op(token) else { return self.observe_unknown(slot, token) };
        let mut outcome = OpOutcome::decode_recorded(&op.request.reqid, result);
        op.wrote = Some(version);
        if let Some(role) = self.tier_role(slot) {
            if role.is_older(&op.request) {
                return self.backoff_op(*op, self.epoch());
            }
            if outcome.result >= 0 && self.lost_watch_change(slot, &role, &op) {
                return self.reexecute(slot, op);
            }
        }
        if outcome.result >= 0 {
            self.reconnect_watches(&op);
        }
        match self.hold_reply_until_flushed(slot, op, outcome) {
            Some((flushed, told)) => (op, outcome) = (flushed, told),
            None => return,
        }
        self.observe_answer(&op, op.wrote, outcome.result);
        self.finish_request(&op, outcome);
    }

    /// Answers with an error.
    pub(super) fn refuse(&mut self, slot: u32, token: u64, errno: Errno) {
        let Some(op) = self.take_op(token) else { return self.observe_unknown(slot, token) };
        if errno == Errno::EIO
            && let Some((pg, interval)) = self.place_of(op.slot)
        {
            let object = &op.request.object;
            self.shared.world.observe(Observation::Unreadable { pg, object, interval });
        }
        self.finish_request(&op, OpOutcome { result: errno.negated(), ..OpOutcome::default() });
    }

    /// The PG in a slot, and its machine's interval.
    fn place_of(&self, slot: u32) -> Option<(PgId, Interval)> {
        let hosted = self.slots[slot as usize].as_ref()?;
        Some((hosted.pg, hosted.machine.interval()))
    }

    fn observe_answer(&self, op: &InflightOp, wrote: Option<Eversion>, result: i32) {
        // A copy may fail because its source can't be read.
        let copies = |op: &OsdOp| matches!(op.op, Op::CopyFrom { .. });
        let lacks_source = result == Errno::EIO.negated() && op.request.ops.iter().any(copies);
        if op.conn.is_some()
            && !lacks_source
            && let Some((pg, interval)) = self.place_of(op.slot)
        {
            let judged_ns = self.now_ns;
            self.shared.world.observe(Observation::Answered { pg, interval, wrote, result, judged_ns });
        }
    }

    /// Reports a token of a machine for which there is no request.
    fn observe_unknown(&self, slot: u32, token: u64) {
        let pg = self.place_of(slot).map(|(pg, _)| pg);
        self.shared.world.observe(Observation::UnknownRequest { pg, token });
    }

    /// Sends the request back to its client.
    pub(super) fn backoff_request(&mut self, slot: u32, token: u64, reason: DropReason) {
        let Some(op) = self.take_op(token) else { return self.observe_unknown(slot, token) };
        self.tracker.finish(op.track, self.now_ns);
        self.metrics.op_dropped.inc();
        let epoch = self.map.as_ref().map_or(Epoch(0), |map| map.epoch);
        tracing::debug!(reqid = %op.request.reqid, ?reason, %epoch, "request sent back");
        if reason == DropReason::Full {
            self.shared.world.observe(Observation::SentBack);
        }
        match &op.conn {
            Some(conn) if reason == DropReason::Full => backoff_in_order(conn, &op.request, epoch),
            Some(conn) => backoff(conn, &op.request, epoch),
            None if op.tier.own.is_some() => self.on_internal_done(&op, Errno::ESTALE.negated()),
            None => self.retry_watch_removal(&op, false),
        }
    }

    /// Forgets a request that a resend has replaced.
    pub(super) fn forget_superseded(&mut self, slot: u32, token: u64) {
        match self.take_op(token) {
            Some(op) => {
                self.tracker.finish(op.track, self.now_ns);
            }
            None => self.observe_unknown(slot, token),
        }
    }

    /// Sends back all requests that a PG holds that is no longer hosted.
    pub(super) fn backoff_requests_of(&mut self, slot: u32) {
        for token in self.ops.tokens_of(slot) {
            self.backoff_request(slot, token, DropReason::StaleInterval);
        }
    }

    pub(super) fn finish_request(&mut self, op: &InflightOp, outcome: OpOutcome) {
        let now = self.shared.world.boot_ns();
        let took = self.tracker.finish(op.track, now).max(now.saturating_sub(op.arrived_ns));
        self.metrics.op.inc();
        self.metrics.op_latency.record(took);
        if op.writes {
            self.metrics.op_w.inc();
            self.metrics.op_w_latency.record(took);
        } else {
            self.metrics.op_r.inc();
            self.metrics.op_r_latency.record(took);
        }
        if outcome.result < 0 {
            self.metrics.op_errors.inc();
        }
        let epoch = self.map.as_ref().map_or(Epoch(0), |map| map.epoch);
        match &op.conn {
            Some(conn) => answer(conn, &op.request, epoch, outcome),
            None if op.tier.own.is_some() => self.on_internal_done(op, outcome.result),
            None if outcome.result == Errno::ENOENT.negated() => self.forget_watch(op),
            None if outcome.result < 0 => self.retry_watch_removal(op, true),
            None => {}
        }
    }
}

/// The change for a tier that the OSD makes instead of executing the request's ops.
fn tier_change(op: &InflightOp) -> Option<exec::tier::TierChange<'_>> {
    use exec::tier::TierChange;
    Some(match &op.tier.own {
        Some(InternalChange::Promote { copy, epoch }) => {
            TierChange::Promote { copied: copy.get().and_then(Result::ok)?, epoch: *epoch }
        }
        Some(InternalChange::Change(change)) => *change,
        Some(InternalChange::Internal) => return None,
        None => match op.request.tier.as_ref().map_or(0, |sender| sender.user_version) {
            0 => return None,
            user_version => TierChange::RemoveBase { user_version },
        },
    })
}

/// The outcome of a request whose object can't be read; the object may still be removed.
fn damaged(hosted: &mut Hosted, op: &mut InflightOp, store: &dyn ObjectStore) -> ExecuteReply {
    let object = &op.request.object;
    if !exec::only_deletes(&op.request) {
        return ExecuteReply::Damaged { removal: None };
    }
    if hosted.machine.is_unfound(object) {
        let delta = match exec::load_context(store, hosted.pg, object) {
            Ok(context) => SumsDelta::between(&context, &ObjectContext::default()),
            Err(_) => SumsDelta { objects: -1, ..SumsDelta::default() },
        };
        hosted.sums.apply_change(object, &delta);
    }
    let outcome = OpOutcome::default();
    let removal = Some(Bytes::from(encode(&outcome)));
    op.effects.push(WatchNotifyEffect::DisconnectAll);
    op.outcome = Some(outcome);
    ExecuteReply::Damaged { removal }
}

/// The outcome of a request that the store failed before it was executed. Its client is told, so a late copy of it must not
/// take effect when the store works again: a write leaves a record (rule R6).
fn failed(op: &mut InflightOp, errno: Errno) -> ExecuteReply {
    let outcome = OpOutcome { result: errno.negated(), ..OpOutcome::default() };
    let result = op.writes.then(|| record(&outcome));
    op.outcome = Some(outcome);
    result.map_or(ExecuteReply::Read, |result| ExecuteReply::Failed { result })
}

/// The recorded outcome of a request that changed nothing.
fn record(outcome: &OpOutcome) -> Bytes {
    match encode(outcome) {
        short if short.len() <= MAX_DUP_RESULT_BYTES => short.into(),
        _ => encode(&without_outputs(outcome)).into(),
    }
}

fn encode(outcome: &OpOutcome) -> Vec<u8> {
    postcard::to_extend(outcome, Vec::with_capacity(16))
        .expect("invariant: outcomes hold no unsized sequences")
}

/// The outcome for resends if the outcome of a request that changed nothing is too long to be kept: only the codes of a
/// failure, otherwise an error because the outputs are lost.
fn without_outputs(outcome: &OpOutcome) -> OpOutcome {
    if outcome.result >= 0 {
        return OpOutcome { result: Errno::EOVERFLOW.negated(), ops: Vec::new(), ..*outcome };
    }
    let codes = outcome.ops.iter().map(|op| OpResult { code: op.code, output: Bytes::new() });
    OpOutcome { ops: codes.collect(), ..*outcome }
}

/// The properties of an admitted request.
#[derive(Clone, Copy)]
pub(super) struct AdmittedRequest {
    pub(super) slot: u32,
    writes: bool,
    listing: bool,
}

pub(super) enum RequestAdmission {
    /// It is admitted; `copies` means that another object must be read first.
    Pass {
        passed: AdmittedRequest,
        copies: bool,
    },
    Answer(Errno),
    Backoff,
}

/// Whether `bytes` more fit all in-sync members of `pg`.
fn fit(space: &MemberSpace, map: &OsdMap, pg: PgId, bytes: u64) -> SpaceCheck {
    if bytes == 0 || !space.is_scarce() {
        return SpaceCheck::Yes;
    }
    let members = map.membership(pg).map(|m| &m.in_sync[..]).unwrap_or_default();
    space.fits(members.iter().map(|member| member.osd), bytes)
}

fn any_member_full(map: &OsdMap, pg: PgId) -> bool {
    let members = map.membership(pg).map(|membership| &membership.in_sync[..]).unwrap_or_default();
    members.iter().any(|member| map.osds.get(&member.osd).is_some_and(|info| info.full))
}

fn count(
    metrics: &crate::metrics::Metrics,
    io: &mut nacre_types::stats::IoCounters,
    writes: bool,
    request: &OsdRequest,
    executed: &exec::ExecResult,
) {
    if writes {
        let bytes = executed.change.as_ref().map_or(0, |change| change.written_bytes);
        io.writes += 1;
        io.write_bytes += bytes;
        metrics.op_in_bytes.add(bytes);
        metrics.op_w_in_bytes.add(bytes);
    } else {
        let bytes: usize = request
            .ops
            .iter()
            .zip(&executed.ops)
            .map(|(op, result)| if matches!(op.op, Op::Read { .. }) { result.output.len() } else { 0 })
            .sum();
        io.reads += 1;
        io.read_bytes += bytes as u64;
        metrics.op_out_bytes.add(bytes as u64);
        metrics.op_r_out_bytes.add(bytes as u64);
    }
}

pub(super) fn answer(conn: &ConnRef, request: &OsdRequest, epoch: Epoch, outcome: OpOutcome) {
    let OpOutcome { result, user_version, mut ops } = outcome;
    if ops.is_empty() && result >= 0 {
        ops = vec![OpResult::default(); request.ops.len()];
    }
    let reply = OsdReply { reqid: request.reqid, attempt: request.attempt, epoch, result, user_version, ops };
    tell(conn, &request.reqid, &reply);
}

pub(super) fn backoff(conn: &ConnRef, request: &OsdRequest, epoch: Epoch) {
    let message = OsdBackoff { reqid: request.reqid, attempt: request.attempt, epoch };
    tell(conn, &request.reqid, &message);
}

/// Like [`backoff`]; the client's later requests to the PG must not overtake it.
pub(super) fn backoff_in_order(conn: &ConnRef, request: &OsdRequest, epoch: Epoch) {
    let session = conn.context::<Session>().filter(|_| is_ordered(request));
    if session.is_some_and(|session| !session.note_backoff(request)) {
        tracing::warn!(peer = %conn.peer_addr(), "requests of too many PGs were sent back: the connection ends");
        return conn.abort();
    }
    backoff(conn, request, epoch);
}

/// Sends a message to a client. A client whose connection has ended resends on its next connection. A client that does not read
/// its messages must resend too: otherwise it would wait forever for a message that was lost while its connection lived.
fn tell<M: Message>(conn: &ConnRef, reqid: &ReqId, message: &M) {
    if let Err(error) = conn.send(message) {
        tracing::debug!(%reqid, message = M::NAME, %error, "a client can't be told");
        if matches!(error, Error::Full) {
            conn.abort();
        }
    }
}
