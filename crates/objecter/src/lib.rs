//! The objecter: decides to which OSD each request is sent, when it is sent again, and when it fails. It has no clock and no sockets: it
//! takes events and calls a [`Sink`].
//!
//! Invariants (rule R6):
//! - Requests of one PG are sent and resent in tid order: while a PG or its OSD is held, later requests wait too.
//! - A request is resent whenever its PG's interval, its primary or the primary's process changes, its connection was lost, or its OSD
//!   asked for it. Dup records on the OSDs make this safe for writes.
//! - An answer to any attempt counts (a deposed primary can't answer: leases and fences forbid it); a backoff counts only for the newest
//!   attempt.
//! - `oldest_tid` never passes a request that still waits.
//! - The pool is resolved at each send, because maps add and remove overlays of cache tiers.
//!
//! [`Watches`] keeps the session's watches on top of it. The native engine of `nacre-client` and the clients of the simulator drive both.

mod publication;
mod target;
mod watches;

use nacre_engine::Error;
use nacre_types::errno::Errno;
use nacre_types::msg::{OsdBackoff, OsdReply, OsdRequest};
use nacre_types::op::Op;
use nacre_types::osdmap::{BLOCKLIST_RANGE_PREFIX, OsdMap};
use nacre_types::tier::TierSender;
use nacre_types::{ClientId, Epoch, Interval, ObjectId, OsdId, PgId, PoolId, ReqId};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use target::{Placement, place};

pub use publication::apply_publish;
pub use target::Target;
pub use watches::{WatchAttempt, WatchEffect, WatchStep, Watches};

/// The first delay, in milliseconds, before a retry after a backoff or a lost connection. It doubles with each failure.
const FIRST_RETRY_MS: u64 = 10;
/// The longest such delay, in milliseconds.
const LONGEST_RETRY_MS: u64 = 2_000;
/// The deadline of a request that never expires.
const NO_DEADLINE: u64 = u64::MAX;

/// The environment of the [`Objecter`].
pub trait Sink<T> {
    /// Sends on the connection to `osd`, which is opened if there is none. Never blocks.
    fn send(&mut self, osd: OsdId, addr: SocketAddr, request: &OsdRequest) -> SendOutcome;
    /// Closes the connection to `osd`: its process has ended or is unreachable.
    fn close(&mut self, osd: OsdId);
    /// Completes a request that was answered or has failed.
    fn complete(&mut self, token: T, result: Result<Answer, Error>);
}

/// Outcome of [`Sink::send`].
#[derive(Debug)]
pub enum SendOutcome {
    /// The request is queued, or its connection's reset will be reported.
    Queued,
    /// The connection's out-queue is full.
    Full,
    /// The request can never be sent.
    Refused(Error),
}

/// A request's answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The OSD's reply.
    pub reply: OsdReply,
    /// The target to which it was sent.
    pub target: Target,
}

/// A request from the caller, without its target and tid.
#[derive(Debug)]
pub struct Submission {
    /// The object, in the pool that the caller named.
    pub object: ObjectId,
    /// The ops on it.
    pub ops: Vec<nacre_types::op::OsdOp>,
    /// Bits of [`nacre_types::op::request_flag`].
    pub flags: u32,
    /// Snapshot to read.
    pub snap: u64,
    /// Snapshot context for writes.
    pub snap_context: Option<(u64, Vec<u64>)>,
    /// The client's clock, nanoseconds since 1970.
    pub mtime_ns: u64,
    /// When the request expires, on the caller's clock in milliseconds.
    pub deadline_ms: Option<u64>,
    /// The sender, if it is an OSD for a PG of a cache tier.
    pub tier: Option<Box<TierSender>>,
}

struct PendingRequest<T> {
    token: T,
    request: OsdRequest,
    /// The pool that the caller named. The request's object has the pool to which it is sent.
    pool: PoolId,
    writes: bool,
    /// A notify: it leaves no dup record, and may wait for a long time.
    waits: bool,
    /// When the request expires; [`NO_DEADLINE`] for never. Not an `Option`: optimised code compares the value before it checks whether
    /// there is one, and valgrind reports that.
    deadline_ms: u64,
    sent: Option<Target>,
    /// Waits to be sent or resent.
    waiting: bool,
}

/// Suspends sending to an OSD or PG.
#[derive(Debug, Default, Clone, Copy)]
struct SendHold {
    failures: u32,
    /// Holds until this time; 0 once it has passed.
    until_ms: u64,
    /// Holds until this epoch.
    epoch: Epoch,
}

impl SendHold {
    fn delay(&mut self, now_ms: u64) {
        let delay = FIRST_RETRY_MS.saturating_mul(1 << self.failures.min(20)).min(LONGEST_RETRY_MS);
        self.failures += 1;
        self.until_ms = now_ms + delay;
    }

    fn holds(&self, map: &OsdMap) -> bool {
        self.until_ms > 0 || self.epoch > map.epoch
    }
}

/// A connection to an OSD's process.
struct Session {
    addr: SocketAddr,
    boot_nonce: u64,
    hold: SendHold,
}

/// The state of all requests of one client. The caller gets `T` back with the answer.
pub struct Objecter<T> {
    client: ClientId,
    /// The only allowed client id, if the objecter is bound to one.
    bound: Option<ClientId>,
    next_tid: u64,
    map: Option<Arc<OsdMap>>,
    ops: BTreeMap<u64, Box<PendingRequest<T>>>,
    sessions: BTreeMap<OsdId, Session>,
    held_pgs: BTreeMap<PgId, SendHold>,
    blocklisted: bool,
    resends: u64,
}

impl<T> Objecter<T> {
    /// Creates an objecter without requests and without a map.
    pub fn new(client: ClientId) -> Objecter<T> {
        Objecter {
            client,
            bound: None,
            next_tid: 1,
            map: None,
            ops: BTreeMap::new(),
            sessions: BTreeMap::new(),
            held_pgs: BTreeMap::new(),
            blocklisted: false,
            resends: 0,
        }
    }

    /// The session's id.
    pub fn client(&self) -> ClientId {
        self.client
    }

    /// Sets the client id of a new session. Requests in flight belong to the old session and fail, because it is unknown whether they were
    /// executed. Returns whether the id changed.
    pub fn set_client(&mut self, client: ClientId, sink: &mut impl Sink<T>) -> bool {
        let changed = self.client != client;
        if changed {
            self.client = client;
            let shuts_out = |map: &Arc<OsdMap>| is_blocklisted(map, client);
            self.blocklisted = self.is_over() || self.map.as_ref().is_some_and(shuts_out);
            // Connections belong to the session in which they were made: OSDs refuse another session's requests on them.
            for osd in std::mem::take(&mut self.sessions).into_keys() {
                sink.close(osd);
            }
            let lost = "the session was lost: writes in flight may or may not have taken effect";
            self.fail_all(&Error::TimedOut(lost.to_owned()), sink);
        }
        changed
    }

    /// Binds the objecter to its current client id and returns it. If the id changes later, all requests fail as if blocklisted.
    pub fn pin_session(&mut self) -> ClientId {
        self.bound = Some(self.client);
        self.client
    }

    /// Whether the session to which it is bound has ended.
    fn is_over(&self) -> bool {
        self.bound.is_some_and(|bound| bound != self.client)
    }

    /// Whether the map blocklists this client.
    pub fn is_blocklisted(&self) -> bool {
        self.blocklisted
    }

    /// The number of resends.
    pub fn resends(&self) -> u64 {
        self.resends
    }

    /// The current map.
    pub fn map(&self) -> Option<&Arc<OsdMap>> {
        self.map.as_ref()
    }

    /// The number of unanswered requests.
    pub fn in_flight(&self) -> usize {
        self.ops.len()
    }

    /// Returns the address of an OSD that is up, for other uses than requests. The connection is closed like those of requests when the map
    /// shows that its process has changed or ended.
    pub fn open_session(&mut self, osd: OsdId) -> Option<SocketAddr> {
        let info = self.map.as_ref()?.osds.get(&osd).filter(|info| info.up)?;
        let (addr, boot_nonce) = (info.addr?, info.boot_nonce);
        self.sessions.entry(osd).or_insert_with(|| Session { addr, boot_nonce, hold: SendHold::default() });
        Some(addr)
    }

    /// Accepts a request and sends it unless it is held.
    pub fn submit(&mut self, submission: Submission, token: T, now_ms: u64, sink: &mut impl Sink<T>) {
        if self.blocklisted {
            return sink.complete(token, Err(Error::Blocklisted));
        }
        let tid = self.next_tid;
        self.next_tid += 1;
        let pool = submission.object.pool();
        let request = OsdRequest {
            reqid: ReqId { client: self.client, tid },
            oldest_tid: tid,
            attempt: 0,
            epoch: Epoch(0),
            pg: PgId::new(pool, 0),
            interval: Interval(0),
            object: submission.object,
            mtime_ns: submission.mtime_ns,
            flags: submission.flags,
            snap: submission.snap,
            snap_context: submission.snap_context,
            ops: submission.ops,
            tier: submission.tier,
        };
        let writes = request.may_write();
        let deadline_ms = submission.deadline_ms.unwrap_or(NO_DEADLINE);
        let waits = matches!(request.ops.first().map(|op| &op.op), Some(Op::Notify { .. }));
        let pending =
            PendingRequest { token, request, pool, writes, waits, deadline_ms, sent: None, waiting: true };
        self.ops.insert(tid, Box::new(pending));
        self.try_send(tid, now_ms, sink);
    }

    /// Sends one waiting request unless it is held.
    fn try_send(&mut self, tid: u64, now_ms: u64, sink: &mut impl Sink<T>) {
        let Some(map) = self.map.as_ref() else { return };
        let oldest_tid = self.ops.iter().find(|(_, op)| !op.waits).map_or(tid, |(oldest, _)| *oldest);
        let Some(op) = self.ops.get_mut(&tid) else { return };
        let target = match place(map, op.pool, &op.request, op.writes) {
            Placement::At(target) => target,
            Placement::Wait => return,
            Placement::NoPool => {
                return self.finish(tid, Err(Error::NoSuchPool(pool_text(tid, &self.ops))), sink);
            }
        };
        if self.held_pgs.get(&target.pg).is_some_and(|hold| hold.holds(map)) {
            return;
        }
        let session = self.sessions.entry(target.osd).or_insert_with(|| Session {
            addr: target.addr,
            boot_nonce: target.boot_nonce,
            hold: SendHold::default(),
        });
        if session.hold.holds(map) {
            return;
        }
        let request = &mut op.request;
        let resent = op.sent.is_some();
        if resent {
            request.attempt += 1;
        }
        request.oldest_tid = oldest_tid;
        request.epoch = map.epoch;
        request.pg = target.pg;
        request.interval = target.interval;
        if request.object.pool() != target.pg.pool {
            request.object = request.object.with_pool(target.pg.pool);
        }
        match sink.send(target.osd, target.addr, request) {
            SendOutcome::Queued => {
                op.sent = Some(target);
                op.waiting = false;
                self.resends += u64::from(resent);
            }
            // Nothing was sent, so the next try has the same attempt number. An OSD that does not know the client refuses later attempts.
            SendOutcome::Full => {
                request.attempt -= u32::from(resent);
                op.waiting = true;
                session.hold.delay(now_ms);
            }
            SendOutcome::Refused(error) => self.finish(tid, Err(error), sink),
        }
    }

    fn finish(&mut self, tid: u64, result: Result<Answer, Error>, sink: &mut impl Sink<T>) {
        if let Some(op) = self.ops.remove(&tid) {
            sink.complete(op.token, result);
        }
    }

    /// Handles an OSD's reply.
    pub fn on_reply(&mut self, reply: OsdReply, sink: &mut impl Sink<T>) {
        let tid = reply.reqid.tid;
        let current = reply.reqid.client == self.client;
        let Some(target) = self.ops.get(&tid).filter(|_| current).and_then(|op| op.sent) else { return };
        // The PG serves again. Its hold stays until its time or epoch: requests wait for that, and later ones must not overtake them.
        if let Some(hold) = self.held_pgs.get_mut(&target.pg) {
            hold.failures = 0;
        }
        if let Some(session) = self.sessions.get_mut(&target.osd).filter(|s| s.hold.until_ms == 0) {
            session.hold.failures = 0;
        }
        self.finish(tid, Ok(Answer { reply, target }), sink);
    }

    /// Handles a backoff: the OSD refuses a request until the client has a newer map. The whole PG waits and is resent in order.
    pub fn on_backoff(&mut self, backoff: OsdBackoff, now_ms: u64) {
        let op = self.ops.get(&backoff.reqid.tid).filter(|_| backoff.reqid.client == self.client);
        let Some(op) = op.filter(|op| op.request.attempt == backoff.attempt && !op.waiting) else { return };
        let (Some(target), Some(map)) = (op.sent, self.map.as_ref()) else { return };
        let hold = self.held_pgs.entry(target.pg).or_default();
        hold.epoch = hold.epoch.max(backoff.epoch);
        if hold.epoch <= map.epoch && hold.until_ms == 0 {
            hold.delay(now_ms);
        }
        for op in self.ops.values_mut().filter(|op| op.sent.is_some_and(|sent| sent.pg == target.pg)) {
            op.waiting = true;
        }
    }

    /// Handles the loss of the connection to `osd`: its requests are resent in order, after a growing delay.
    pub fn on_reset(&mut self, osd: OsdId, now_ms: u64) {
        let Some(session) = self.sessions.get_mut(&osd) else { return };
        session.hold.delay(now_ms);
        for op in self.ops.values_mut().filter(|op| op.sent.is_some_and(|sent| sent.osd == osd)) {
            op.waiting = true;
        }
    }

    /// Handles a newer map.
    pub fn on_map(&mut self, map: Arc<OsdMap>, now_ms: u64, sink: &mut impl Sink<T>) {
        // A newer generation supersedes all earlier ones: the map authority was restored from a copy (rule R7).
        let stamp = |map: &OsdMap| (map.generation, map.epoch);
        if self.map.as_ref().is_some_and(|known| stamp(known) >= stamp(&map)) {
            return;
        }
        self.map = Some(map.clone());
        self.blocklisted = self.is_over() || is_blocklisted(&map, self.client);
        self.sessions.retain(|osd, session| {
            let same = map.osds.get(osd).is_some_and(|info| {
                info.up && info.addr == Some(session.addr) && info.boot_nonce == session.boot_nonce
            });
            if !same {
                sink.close(*osd);
            }
            same
        });
        if self.blocklisted {
            return self.fail_all(&Error::Blocklisted, sink);
        }
        self.held_pgs.retain(|pg, _| map.pools.get(&pg.pool).is_some_and(|pool| pg.seed < pool.pg_num));
        for op in self.ops.values_mut().filter(|op| !op.waiting) {
            op.waiting = match place(&map, op.pool, &op.request, op.writes) {
                Placement::At(target) => op.sent != Some(target),
                Placement::NoPool => true,
                // Paused or without a primary: an answer may still come. If the target changes, the next map that has one shows it.
                Placement::Wait => !op.sent.is_some_and(|sent| sent.is_current(&map)),
            };
        }
        self.send_waiting(now_ms, sink);
    }

    /// Sends all waiting requests that are not held, in tid order.
    fn send_waiting(&mut self, now_ms: u64, sink: &mut impl Sink<T>) {
        let waiting: Vec<u64> = self.ops.iter().filter(|(_, op)| op.waiting).map(|(tid, _)| *tid).collect();
        for tid in waiting {
            self.try_send(tid, now_ms, sink);
        }
    }

    /// Ends holds and expires requests as time passes.
    pub fn on_tick(&mut self, now_ms: u64, sink: &mut impl Sink<T>) {
        let expired: Vec<u64> =
            self.ops.iter().filter(|(_, op)| op.deadline_ms <= now_ms).map(|(tid, _)| *tid).collect();
        for tid in expired {
            let text = self.ops.get(&tid).map_or_else(String::new, |op| timeout_text(op));
            self.finish(tid, Err(Error::TimedOut(text)), sink);
        }
        let holds = self.held_pgs.values_mut().chain(self.sessions.values_mut().map(|s| &mut s.hold));
        let mut released = false;
        for hold in holds.filter(|hold| hold.until_ms > 0 && hold.until_ms <= now_ms) {
            hold.until_ms = 0;
            released = true;
        }
        if released {
            self.send_waiting(now_ms, sink);
        }
    }

    /// The latest time at which [`Objecter::on_tick`] has something to do, if known.
    pub fn next_wake_ms(&self) -> Option<u64> {
        let holds = self.held_pgs.values().chain(self.sessions.values().map(|s| &s.hold));
        let holds = holds.map(|hold| hold.until_ms).filter(|until| *until > 0);
        let deadlines =
            self.ops.values().map(|op| op.deadline_ms).filter(|deadline| *deadline != NO_DEADLINE);
        holds.chain(deadlines).min()
    }

    /// Fails all requests in flight.
    pub fn fail_all(&mut self, error: &Error, sink: &mut impl Sink<T>) {
        for op in std::mem::take(&mut self.ops).into_values() {
            sink.complete(op.token, Err(error.clone()));
        }
    }

    /// Describes the unanswered requests for people: `(tid, OSD, what)`.
    pub fn describe(&self) -> Vec<(u64, Option<OsdId>, String)> {
        let osd = |op: &PendingRequest<T>| op.sent.filter(|_| !op.waiting).map(|sent| sent.osd);
        self.ops.iter().map(|(tid, op)| (*tid, osd(op), op_text(op))).collect()
    }
}

fn pool_text<T>(tid: u64, ops: &BTreeMap<u64, Box<PendingRequest<T>>>) -> String {
    ops.get(&tid).map_or_else(String::new, |op| op.pool.to_string())
}

fn op_text<T>(op: &PendingRequest<T>) -> String {
    let names: Vec<_> = op.request.ops.iter().map(|op| op.op.name()).collect();
    format!("{} of '{}' in pool {}", names.join("+"), op.request.object.name(), op.pool)
}

fn timeout_text<T>(op: &PendingRequest<T>) -> String {
    let at = match op.sent.filter(|_| !op.waiting) {
        Some(sent) => format!("pg {} at {}", sent.pg, sent.osd),
        None => "not sent: no OSD serves its PG, the pool is full or paused".to_owned(),
    };
    format!("{}: {} ({at})", Errno::ETIMEDOUT.text(), op_text(op))
}

/// Whether a map blocklists a session, by its name or by its address, of which only the nonce identifies a session. OSDs report
/// blocklisting by a host's address or by a range.
fn is_blocklisted(map: &OsdMap, client: ClientId) -> bool {
    let (name, nonce) = (format!("client.{client}"), format!(":0/{}", client.0 as u32));
    let is_own = |who: &str| who == name || who.ends_with(&nonce) && !who.starts_with(BLOCKLIST_RANGE_PREFIX);
    map.blocklist.keys().any(|who| is_own(who))
}

#[cfg(test)]
mod tests;
