//! The path of a request: from its session to its PG, its execution, and the reply.

use super::{InFlight, Inner, Observation, World};
use crate::gateway::executor::ProcessId;
use crate::interpreter::{self, ExecContext};
use crate::schedule::{Nanos, SECOND};
use nacre_engine::engine::{ObjectRequest, OnReply};
use nacre_engine::{Error, OpReply, Result};
use nacre_exec::{ExecResult, WatchNotifyEffect};
use nacre_types::errno::Errno;
use nacre_types::msg::OsdRequest;
use nacre_types::op::Op;
use nacre_types::{ClientId, Epoch, Eversion, Interval, PgId, ReqId};
use std::sync::Arc;

/// Identifies a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestId {
    pub(super) session: u64,
    pub(super) tid: u64,
}

/// A request in flight.
pub(super) struct Sent {
    id: RequestId,
    request: ObjectRequest,
    /// The newest map that its session had.
    epoch: u32,
    /// The delay of its reply; `None` if it is lost.
    back: Option<Nanos>,
    /// Its process crashed while it was in flight.
    ghost: bool,
}

impl Inner {
    /// Sends a request; `done` receives its outcome.
    pub(super) fn start(
        self: &Arc<Self>,
        session: u64,
        process: ProcessId,
        request: ObjectRequest,
        done: OnReply,
    ) {
        // Messages that destructors of a crashed process send are dropped.
        if !self.scheduler.is_alive(process) {
            return drop(done);
        }
        let (now, own_wall_ns) = (self.scheduler.now(), self.scheduler.env(process).wall_ns());
        let refused = {
            let mut guard = self.world.lock();
            let world = &mut *guard;
            match self.admit(world, session, &request) {
                Ok(pg) => {
                    let id = self.send(world, (session, process), pg, request, (now, own_wall_ns));
                    let text = format!("{} at pg {pg}", id.tid);
                    if let Some(state) = world.sessions.get_mut(&session) {
                        state.in_flight.insert(id.tid, InFlight { done, text });
                    }
                    return;
                }
                Err(error) => error,
            }
        };
        done(Err(refused));
    }

    /// The destination of a request, or the reason why it is not sent.
    fn admit(&self, world: &World, session: u64, request: &ObjectRequest) -> Result<PgId> {
        let state = world.sessions.get(&session).ok_or(Error::ShutDown)?;
        if state.shut_down {
            return Err(Error::ShutDown);
        }
        if state.blocklisted {
            return Err(Error::Blocklisted);
        }
        let pool = request.object.pool();
        world.pg_of(&request.object).ok_or_else(|| Error::NoSuchPool(pool.to_string()))
    }

    fn send(
        self: &Arc<Self>,
        world: &mut World,
        (session, process): (u64, ProcessId),
        pg: PgId,
        mut request: ObjectRequest,
        (now, own_wall_ns): (Nanos, u64),
    ) -> RequestId {
        let fate = world.draws.fate(&mut world.figures);
        let leaves = world.reachable_at(process, now);
        let op_timeout = world.draws.faults().op_timeout;
        let state = world.sessions.get_mut(&session).expect("invariant: the request was admitted");
        let id = RequestId { session, tid: state.next_tid };
        state.next_tid += 1;
        request.mtime_ns = Some(request.mtime_ns.unwrap_or(own_wall_ns));
        if op_timeout > 0 {
            // A notify waits for its watchers.
            let waits_s = match request.ops.first().map(|op| &op.op) {
                Some(Op::Notify { timeout_s, .. }) => u64::from(*timeout_s),
                _ => 0,
            };
            let (inner, wait) = (self.clone(), op_timeout + waits_s * SECOND);
            let given_up = Error::TimedOut(format!("request {} of client.{session} was given up", id.tid));
            self.scheduler.deliver_after(process, wait, move || inner.complete(id, process, Err(given_up)));
        }
        if let Some(out) = fate.out {
            let mut arrives = leaves + out;
            if !fate.late {
                let last = state.last_arrival.entry(pg).or_default();
                arrives = arrives.max(*last + 1);
                *last = arrives;
            }
            let sent = Sent { id, request, epoch: state.epoch, back: fate.back, ghost: false };
            self.arrive_after(arrives - now, sent);
        }
        id
    }

    fn arrive_after(self: &Arc<Self>, wait: Nanos, sent: Sent) {
        let inner = self.clone();
        self.scheduler.call_after(wait, move || inner.arrive(sent));
    }

    /// Handles the arrival of a request at its PG.
    fn arrive(self: &Arc<Self>, mut sent: Sent) {
        let (now, wall_ns) = (self.scheduler.now(), self.scheduler.wall_ns());
        let mut guard = self.world.lock();
        let world = &mut *guard;
        let Some(process) = world.sessions.get(&sent.id.session).map(|state| state.process) else { return };
        if !sent.ghost && !self.scheduler.is_alive(process) {
            sent.ghost = true;
            match world.draws.ghost() {
                Some(wait) => self.arrive_after(wait, sent),
                None => world.figures.lost_with_process += 1,
            }
            return;
        }
        let Some(id) = world.pg_of(&sent.request.object) else {
            let gone = Error::NoSuchPool(sent.request.object.pool().to_string());
            return self.reply(world, (sent.id, process), Err(gone), sent.back);
        };
        let pg = world.pgs.entry(id).or_default();
        if pg.stopped_until > now {
            world.figures.waited += 1;
            return self.arrive_after(pg.stopped_until - now, sent);
        }
        let epoch = pg.learn(sent.epoch, now);
        if std::mem::replace(&mut pg.swept, epoch) < epoch {
            self.end_blocklisted(world, id, epoch);
        }
        if world.is_blocklisted(sent.id.session, epoch, wall_ns) {
            world.figures.refused += 1;
            let refused = failure(Errno::EBLOCKLISTED);
            return self.reply(world, (sent.id, process), Ok(refused), sent.back);
        }
        self.carry(world, id, (&sent, process), wall_ns);
    }

    /// Executes a request at its PG and sends the answer.
    fn carry(
        self: &Arc<Self>,
        world: &mut World,
        pg: PgId,
        (sent, process): (&Sent, ProcessId),
        wall_ns: u64,
    ) {
        world.figures.executed += 1;
        world.figures.ghosts += u64::from(sent.ghost);
        if let Some(state) = world.sessions.get_mut(&sent.id.session) {
            world.figures.overtaken += u64::from(sent.id.tid < state.newest_arrived);
            state.newest_arrived = state.newest_arrived.max(sent.id.tid);
        }
        self.scheduler.note("executed", sent.id.session << 32 | sent.id.tid);
        let from = (sent.id, process);
        let executed = match execute(world, pg, sent, wall_ns) {
            Ok(executed) => executed,
            Err(errno) => return self.reply(world, from, Ok(failure(errno)), sent.back),
        };
        let object = &sent.request.object;
        let watched = world.watchers(object);
        if let Some(change) = &executed.change {
            if let Some(observer) = self.observer.lock().as_mut() {
                let before = world.image.object(pg, object).ok();
                observer(&Observation { session: sent.id.session, object, ops: &sent.request.ops, before });
            }
            world.image.apply(&change.transaction).expect("invariant: it was made of what is there");
            if let Some(pg) = world.pgs.get_mut(&pg) {
                pg.version += 1;
            }
        }
        let ExecResult { result, ops, user_version, effects, .. } = executed;
        let notifies = effects.iter().any(|effect| matches!(effect, WatchNotifyEffect::Notify { .. }));
        for effect in effects {
            self.carry_out_effect(world, (sent.id, process, sent.back), (object, &watched), effect);
        }
        if !notifies {
            let reply = OpReply { result, version: user_version, ops };
            self.reply(world, from, Ok(reply), sent.back);
        }
    }

    /// Sends a reply, unless it is lost.
    pub(super) fn reply(
        self: &Arc<Self>,
        world: &World,
        (id, process): (RequestId, ProcessId),
        outcome: Result<OpReply>,
        back: Option<Nanos>,
    ) {
        let Some(back) = back else { return };
        let now = self.scheduler.now();
        let wait = world.reachable_at(process, now) - now + back;
        let inner = self.clone();
        self.scheduler.deliver_after(process, wait, move || inner.complete(id, process, outcome));
    }

    /// Delivers an outcome to its session, which uses the first one.
    fn complete(self: &Arc<Self>, id: RequestId, process: ProcessId, outcome: Result<OpReply>) {
        let now = self.scheduler.now();
        let done = {
            let mut guard = self.world.lock();
            let world = &mut *guard;
            // Giving up needs no connection.
            let held_until = if outcome.is_ok() { world.reachable_at(process, now) } else { now };
            if held_until > now {
                let inner = self.clone();
                let wait = held_until - now;
                self.scheduler.deliver_after(process, wait, move || inner.complete(id, process, outcome));
                return;
            }
            let state = world.sessions.get_mut(&id.session);
            state.and_then(|state| state.in_flight.remove(&id.tid)).map(|in_flight| in_flight.done)
        };
        if let Some(done) = done {
            done(outcome);
        }
    }
}

/// A reply that contains only an error.
fn failure(errno: Errno) -> OpReply {
    OpReply { result: errno.negated(), ..OpReply::default() }
}

/// Executes a request on the contents of its PG, like an OSD.
fn execute(world: &World, pg: PgId, sent: &Sent, wall_ns: u64) -> Result<ExecResult, Errno> {
    let pool = world.pools.get(&pg.pool).ok_or(Errno::ENOENT)?;
    let version = world.pgs.get(&pg).map_or(0, |pg| pg.version);
    let (client, sent) = (ClientId(sent.id.session), &sent.request);
    let request = OsdRequest {
        reqid: ReqId { client, tid: version + 1 },
        oldest_tid: 0,
        attempt: 0,
        epoch: Epoch(world.epoch),
        pg,
        interval: Interval(1),
        object: sent.object.clone(),
        mtime_ns: sent.mtime_ns.unwrap_or(0),
        flags: sent.flags,
        snap: sent.snap,
        snap_context: sent.snap_context.clone(),
        ops: sent.ops.clone(),
        tier: None,
    };
    nacre_exec::validate(&request, &world.limits)?;
    let setting = ExecContext {
        pool: &pool.settings,
        limits: &world.limits,
        full: false,
        at: Eversion::new(Interval(1), version + 1),
        wall_ns,
        recent_requests: &|_| Vec::new(),
    };
    Ok(interpreter::execute(&world.image, &setting, &request))
}
