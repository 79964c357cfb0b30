//! Watches and notifies: executes the actions that the table of [`crate::watch`] returns.

use super::Shard;
use super::ops::{InflightOp, OpOutcome, answer, backoff};
use super::tier::TierOpState;
use crate::session::Session;
use crate::shared::Shared;
use crate::watch::{NotifyLimitReached, WatchAction, WatchId, WatchLimits, Watches, timeout_ns};
use bytes::{BufMut, Bytes, BytesMut};
use nacre_common::conn::ConnRef;
use nacre_exec::{self as exec, WatchNotifyEffect};
use nacre_objectstore::StoreError;
use nacre_pg::{ClientOp, Mutation};
use nacre_types::errno::Errno;
use nacre_types::ids::{ClientId, Epoch, Interval, PgId, ReqId};
use nacre_types::msg::{OsdRequest, WatchLost};
use nacre_types::object::{ObjectId, SNAP_HEAD};
use nacre_types::op::{NotifyReply, Op, OpResult, OsdOp, WatchInfo};
use nacre_types::osdmap::OsdMap;

/// The table of a shard: watchers by connection, notifiers by their requests.
pub(super) type WatchTable = Watches<ConnRef, Box<InflightOp>>;
/// An action of the table.
type Happened = WatchAction<ConnRef, Box<InflightOp>>;

/// The most notifies in progress on one shard.
const MAX_NOTIFIES: usize = 4096;
/// The most bytes of their payloads and answers.
const MAX_NOTIFY_BYTES: usize = 64 << 20;

/// Creates an empty table. Notifies of later runs of the process have higher numbers.
pub(super) fn new_watch_table(shared: &Shared) -> WatchTable {
    let limits = WatchLimits { notifies: MAX_NOTIFIES, bytes: MAX_NOTIFY_BYTES };
    Watches::new(limits, shared.watch_counts.clone(), shared.world.wall_ns())
}

impl Shard {
    /// The request id of the OSD's own changes, which have no client.
    pub(super) const INTERNAL_REQID: ReqId = ReqId { client: ClientId(0), tid: 0 };

    /// Answers a request that has effects in addition to its change.
    pub(super) fn reply_with_effects(&mut self, mut op: Box<InflightOp>, mut outcome: OpOutcome) {
        let mut out = Vec::new();
        let object = op.request.object.clone();
        for effect in std::mem::take(&mut op.effects) {
            match effect {
                WatchNotifyEffect::Connect { cookie, timeout_s } => match self.may_connect(&op, cookie) {
                    Ok(()) => self.connect(&op, (op.client, cookie), timeout_s, &mut out),
                    Err(errno) => {
                        let result = OpResult::error(errno);
                        (outcome.result, outcome.ops) = (result.code, vec![result]);
                    }
                },
                WatchNotifyEffect::Ping { cookie } => {
                    let own = |conn: &ConnRef| op.conn.as_ref() == Some(conn);
                    if !self.watches.ping(&object, (op.client, cookie), self.now_ns, own) {
                        let result = OpResult::error(Errno::ETIMEDOUT);
                        (outcome.result, outcome.ops) = (result.code, vec![result]);
                    }
                }
                WatchNotifyEffect::Disconnect { cookie } => {
                    // The client of a lapsed watch does not know that it lapsed.
                    let tell = op.conn.is_none();
                    self.watches.remove(&object, (op.client, cookie), tell, &mut out);
                }
                WatchNotifyEffect::DisconnectAll => self.watches.remove_all(&object, &mut out),
                WatchNotifyEffect::Ack { notify_id, cookie, payload } => {
                    self.watches.ack(&object, notify_id, (op.client, cookie), payload, &mut out);
                }
                // It is the only op of its request.
                WatchNotifyEffect::Notify { timeout_s, payload } => {
                    self.begin_notify(op, timeout_s, payload, &mut out);
                    return self.carry_out_watches(out);
                }
            }
        }
        self.finish_request(&op, outcome);
        self.carry_out_watches(out);
    }

    /// Whether a request may connect its watch now. One that changed nothing waited for earlier updates of the object, but has
    /// no version among them: all of them are answered before it, and a later one may have removed the watch. A watch that is
    /// not in the object's info must not be connected (ENOTCONN).
    fn may_connect(&mut self, op: &InflightOp, cookie: u64) -> Result<(), Errno> {
        if exec::may_change(&op.request) {
            return Ok(());
        }
        let infos = self.watchers_of(op.slot, &op.request.object).map_err(|error| {
            tracing::warn!(object = %op.request.object, %error, "the watchers of an object can't be read");
            error.errno()
        })?;
        let is_there = infos.iter().any(|info| info.client == op.client && info.cookie == cookie);
        if is_there { Ok(()) } else { Err(Errno::ENOTCONN) }
    }

    /// Connects a watch to the request's connection from now on.
    fn connect(&mut self, op: &InflightOp, watch: WatchId, timeout_s: u32, out: &mut Vec<Happened>) {
        let (slot, object) = (op.slot, &op.request.object);
        let early = self.shared.settings.breaks(Mutation::LapseEarly);
        let timeout_s = if early { timeout_s / 2 } else { timeout_s };
        let conn = op.conn.as_ref();
        // In this order: only watching connections report their end.
        conn.and_then(|conn| conn.context::<Session>()).into_iter().for_each(Session::set_watching);
        match conn.filter(|conn| !conn.is_over()) {
            Some(conn) => {
                self.watches.connect((slot, object), watch, timeout_s, conn.clone(), self.now_ns, out);
            }
            None => {
                let info = WatchInfo { client: watch.0, cookie: watch.1, timeout_s, addr: String::new() };
                self.watches.adopt(slot, object, &[info], self.now_ns);
            }
        }
        self.inbox.wake_task();
    }

    fn begin_notify(
        &mut self,
        mut op: Box<InflightOp>,
        timeout_s: u32,
        payload: Bytes,
        out: &mut Vec<Happened>,
    ) {
        // From here on, the notify waits for the watchers, not for the OSD; and the table counts the bytes.
        self.tracker.finish(op.track, self.now_ns);
        op.permit = None;
        let (slot, object) = (op.slot, op.request.object.clone());
        // The request may have been executed before a change of the interval that emptied the table: read the watchers again.
        let broken = [Mutation::NotifyUnread, Mutation::ForgetWatchers];
        let broken = broken.into_iter().any(|rule| self.shared.settings.breaks(rule));
        match self.watchers_of(slot, &object) {
            Ok(_) if broken => {}
            Ok(infos) => self.watches.adopt(slot, &object, &infos, self.now_ns),
            Err(error) => {
                tracing::warn!(%object, %error, "the watchers of an object can't be read");
                if let Some(conn) = &op.conn {
                    backoff(conn, &op.request, self.epoch());
                }
                return;
            }
        }
        let attempt = (op.request.reqid, op.request.attempt);
        let when = (self.now_ns, timeout_ns(timeout_s));
        match self.watches.notify((slot, &object), attempt, op, payload, when, out) {
            Ok(()) => self.inbox.wake_task(),
            Err(NotifyLimitReached(op)) => {
                let refused = OpOutcome { result: Errno::EBUSY.negated(), ..OpOutcome::default() };
                self.answer_notifier(&op, refused);
            }
        }
    }

    pub(super) fn answer_notifier(&self, op: &InflightOp, outcome: OpOutcome) {
        if let Some(conn) = &op.conn {
            answer(conn, &op.request, self.epoch(), outcome);
        }
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.map.as_ref().map_or(Epoch(0), |map| map.epoch)
    }

    /// Handles the replacement of the object by one with these watches.
    pub(super) fn replace_watches(&mut self, slot: u32, object: &ObjectId, infos: &[WatchInfo]) {
        let mut out = Vec::new();
        self.watches.retain(object, infos, &mut out);
        self.watches.adopt(slot, object, infos, self.now_ns);
        self.carry_out_watches(out);
        self.inbox.wake_task();
    }

    fn carry_out_watches(&mut self, actions: Vec<Happened>) {
        for action in actions {
            match action {
                WatchAction::Tell(conn, message) => {
                    if let Err(error) = conn.send(&message) {
                        // The client connects again, and learns what it missed.
                        tracing::debug!(watcher = ?conn.peer_addr(), %error, "a watcher can't be told");
                        conn.abort();
                        self.on_watch_conn_closed(conn.id());
                    }
                }
                WatchAction::TellLost(conn, cookie) => {
                    if let Err(error) = conn.send(&WatchLost { cookie }) {
                        tracing::debug!(watcher = ?conn.peer_addr(), %error, "a watcher can't be told");
                    }
                }
                WatchAction::Complete { notifier, reply, timed_out } => {
                    self.complete_notify(notifier, &reply, timed_out);
                }
                WatchAction::Lapse { slot, object, watch } => self.remove_lapsed(slot, object, watch),
            }
        }
    }

    fn complete_notify(&mut self, notifier: Box<InflightOp>, reply: &NotifyReply, timed_out: bool) {
        let code = if timed_out { Errno::ETIMEDOUT.negated() } else { 0 };
        let answers = reply.encode();
        let mut output = BytesMut::with_capacity(8 + answers.len());
        output.put_u64_le(reply.notify_id);
        output.put(answers);
        let ops = vec![OpResult { code, output: output.freeze() }];
        let user_version = notifier.outcome.as_ref().map_or(0, |outcome| outcome.user_version);
        let outcome = OpOutcome { result: code, user_version, ops };
        match self.tier_role(notifier.slot).filter(|role| role.cache.is_some()) {
            Some(role) => self.confirm_notify(&role, notifier, outcome),
            None => self.answer_notifier(&notifier, outcome),
        }
    }

    /// Removes a lapsed watch from its object's info by an update of the OSD's own.
    fn remove_lapsed(&mut self, slot: u32, object: ObjectId, (client, cookie): WatchId) {
        tracing::info!(%object, client = %client, cookie, "a watch has lapsed");
        self.submit_internal_change(slot, object, Op::Unwatch { cookie }, client);
    }

    /// Changes an object in the name of `client`. The outcome is not sent to anyone.
    pub(super) fn submit_internal_change(&mut self, slot: u32, object: ObjectId, op: Op, client: ClientId) {
        let Some(hosted) = self.slots.get(slot as usize).and_then(Option::as_ref) else { return };
        let place = (hosted.pg, hosted.interval);
        self.submit_internal(slot, place, object, vec![OsdOp::from(op)], client, TierOpState::default());
    }

    /// Passes a request of the OSD's own to its PG, which is in that interval.
    pub(super) fn submit_internal(
        &mut self,
        slot: u32,
        (pg, interval): (PgId, Interval),
        object: ObjectId,
        ops: Vec<OsdOp>,
        client: ClientId,
        tier: TierOpState,
    ) {
        let request = OsdRequest {
            reqid: Self::INTERNAL_REQID,
            oldest_tid: 0,
            attempt: 0,
            epoch: self.epoch(),
            pg,
            interval,
            object: object.clone(),
            mtime_ns: 0,
            flags: 0,
            snap: SNAP_HEAD,
            snap_context: None,
            ops,
            tier: None,
        };
        let op = ClientOp {
            token: 0,
            reqid: Self::INTERNAL_REQID,
            oldest_tid: 0,
            attempt: 0,
            interval,
            object,
            write: true,
            listing: false,
            dup_check_by_host: false,
            requeued: false,
        };
        let track = self.tracker.start(&request, None, self.now_ns, self.now_ns);
        let mut in_hand = InflightOp::new(request, None, client, slot, track, self.now_ns, true);
        in_hand.tier = tier;
        self.submit_op(slot, op, in_hand);
    }

    /// Makes a watch lapse again, to retry its removal, which was not executed or `failed`.
    pub(super) fn retry_watch_removal(&mut self, op: &InflightOp, failed: bool) {
        for part in &op.request.ops {
            if let Op::Unwatch { cookie } = part.op {
                self.watches.lapse_again(&op.request.object, (op.client, cookie), self.now_ns, failed);
            }
        }
        self.inbox.wake_task();
    }

    /// Removes a lapsed watch whose object does not exist any more.
    pub(super) fn forget_watch(&mut self, op: &InflightOp) {
        let mut out = Vec::new();
        for part in &op.request.ops {
            if let Op::Unwatch { cookie } = part.op {
                self.watches.remove(&op.request.object, (op.client, cookie), false, &mut out);
            }
        }
        self.carry_out_watches(out);
    }

    /// Handles a resend of an executed request: its watches are connected to the new connection.
    pub(super) fn reconnect_watches(&mut self, op: &InflightOp) {
        let cookies = op.request.ops.iter().filter_map(|part| match part.op {
            Op::Watch { cookie, .. } | Op::WatchReconnect { cookie } => Some(cookie),
            _ => None,
        });
        let cookies: Vec<u64> = cookies.collect();
        if cookies.is_empty() {
            return;
        }
        let infos = self.watchers_of(op.slot, &op.request.object).unwrap_or_default();
        let mut out = Vec::new();
        for cookie in cookies {
            let info = infos.iter().find(|info| info.client == op.client && info.cookie == cookie);
            if let Some(timeout_s) = info.map(|info| info.timeout_s) {
                self.connect(op, (op.client, cookie), timeout_s, &mut out);
            }
        }
        self.carry_out_watches(out);
    }

    /// The watches in an object's info; empty if this shard no longer hosts its PG.
    fn watchers_of(&mut self, slot: u32, object: &ObjectId) -> Result<Vec<WatchInfo>, StoreError> {
        let Some(hosted) = self.slots.get(slot as usize).and_then(Option::as_ref) else {
            return Ok(Vec::new());
        };
        if let Some(context) = self.contexts.get(object, hosted.generation) {
            return Ok(context.info.watchers.clone());
        }
        match exec::load_context(&*self.shared.store, hosted.pg, object) {
            Ok(context) => Ok(context.info.watchers),
            // A PG that was never written has no collection yet.
            Err(StoreError::NoCollection(_)) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Handles the end of a connection of watchers.
    pub(super) fn on_watch_conn_closed(&mut self, conn: u64) {
        self.watches.disconnect(self.now_ns, |known| known.id() == conn);
        self.inbox.wake_task();
    }

    /// Makes the watches of clients on the map's blocklist lapse.
    pub(super) fn lapse_blocklisted_watches(&mut self, map: &OsdMap) {
        if map.blocklist.is_empty() || self.watches.is_empty() {
            return;
        }
        let mut out = Vec::new();
        let is_out = |client: ClientId, conn: Option<&ConnRef>| {
            map.is_blocklisted(&format!("client.{client}"))
                || conn
                    .and_then(|conn| conn.context::<Session>())
                    .is_some_and(|session| session.is_blocklisted(map))
        };
        self.watches.end_sessions(is_out, &mut out);
        self.carry_out_watches(out);
    }

    /// Handles timeouts of watches and notifies.
    pub(super) fn check_watch_timeouts(&mut self) {
        if self.watches.next_ns().is_some_and(|at| at <= self.now_ns) {
            let mut out = Vec::new();
            let heartbeats = self.shared.heartbeats.lock();
            let leases = heartbeats.lease_snapshot(self.now_ns);
            let slots = &self.slots;
            // If another shard already has a newer map, clients may be sent to the other pool of a tier.
            let newest = self.shared.map.load().as_ref().map(|map| map.epoch);
            let is_behind = newest > self.map.as_ref().map(|map| map.epoch);
            let answers = |slot: u32| {
                let hosted = slots.get(slot as usize).and_then(Option::as_ref);
                !is_behind && hosted.is_some_and(|hosted| hosted.machine.can_answer(&leases))
            };
            self.watches.on_tick(self.now_ns, answers, &mut out);
            drop(heartbeats);
            self.carry_out_watches(out);
        }
    }

    /// Records the pings of an arrived request: its answer may take long, but the client is alive.
    pub(super) fn note_watch_pings(&mut self, request: &OsdRequest, conn: &ConnRef) {
        if self.watches.is_empty() {
            return;
        }
        for part in &request.ops {
            if let Op::WatchPing { cookie } = part.op {
                let watch = (request.reqid.client, cookie);
                self.watches.ping(&request.object, watch, self.now_ns, |own| own == conn);
            }
        }
    }

    /// Drops watches and notifies when the PG's interval changed, or this shard no longer hosts it: clients must send their
    /// requests again.
    pub(super) fn drop_watches(&mut self, slot: u32) {
        if self.watches.is_empty() {
            return;
        }
        let epoch = self.epoch();
        for op in self.watches.drop_slot(slot) {
            if let Some(conn) = &op.conn {
                backoff(conn, &op.request, epoch);
            }
        }
    }
}
