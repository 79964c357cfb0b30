//! Watches and notifies.
//!
//! The watch itself is stored with its object. Keepalives are not sent individually: a session that can reach the cluster
//! counts as having sent one at every whole interval since its watch was registered.

use super::request::RequestId;
use super::{Afterwards, Inner, SessionState, World, info_of};
use crate::gateway::executor::ProcessId;
use crate::schedule::{MILLI, Nanos, SECOND};
use bytes::{BufMut, Bytes, BytesMut};
use nacre_engine::engine::ObjectRequest;
use nacre_engine::{Error, Notification, OnDone, OpReply, Result, WatchHandler};
use nacre_exec::WatchNotifyEffect;
use nacre_types::errno::Errno;
use nacre_types::object::SNAP_HEAD;
use nacre_types::op::{NotifyReply, Op, OpResult, OsdOp, WatchInfo};
use nacre_types::{ClientId, ObjectId, PgId};
use std::sync::Arc;
use std::time::Duration;

/// The longest time between two keepalives, as in the native engine.
const LONGEST_PING: Nanos = 5 * SECOND;

/// A session's record of a watch.
pub(super) struct SessionWatch {
    object: ObjectId,
    handler: Arc<dyn WatchHandler>,
    timeout: Nanos,
    /// When it was registered; `None` before.
    since: Option<Nanos>,
    /// The time of the last keepalive, if the session is unreachable now.
    last_sign: Option<Nanos>,
    lost: Option<Error>,
}

impl SessionWatch {
    fn ping(&self) -> Nanos {
        (self.timeout / 3).clamp(100 * MILLI, LONGEST_PING)
    }

    /// The last keepalive that the cluster has at `now`.
    fn last_sign(&self, now: Nanos) -> Nanos {
        let since = self.since.unwrap_or(now);
        self.last_sign.unwrap_or_else(|| now - (now - since) % self.ping())
    }
}

/// A notify that waits for answers.
pub(super) struct RunningNotify {
    pub(super) object: ObjectId,
    payload: Bytes,
    notifier: RequestId,
    process: ProcessId,
    back: Option<Nanos>,
    waiting: Vec<(ClientId, u64)>,
    acks: Vec<(u64, u64, Bytes)>,
}

/// Ends all watches of a session as lost.
pub(super) fn lose_all(state: &mut SessionState, error: &Error) -> Afterwards {
    let mut afterwards = Afterwards::new();
    for (cookie, watch) in &mut state.watches {
        afterwards.extend(lose(*cookie, watch, error));
    }
    afterwards
}

/// Ends a watch as lost: its handler is called once.
fn lose(cookie: u64, watch: &mut SessionWatch, error: &Error) -> Option<Box<dyn FnOnce() + Send>> {
    if watch.lost.is_some() {
        return None;
    }
    watch.lost = Some(error.clone());
    let (handler, error) = (watch.handler.clone(), error.clone());
    Some(Box::new(move || handler.lost(cookie, error)))
}

fn request(object: ObjectId, flags: u32, op: Op) -> ObjectRequest {
    let ops = vec![OsdOp::from(op)];
    ObjectRequest { object, ops, flags, snap: SNAP_HEAD, snap_context: None, mtime_ns: None, tier: None }
}

/// The session's part.
impl Inner {
    pub(super) fn watch(
        self: &Arc<Self>,
        (session, process): (u64, ProcessId),
        (object, flags): (ObjectId, u32),
        timeout_s: u32,
        handler: Arc<dyn WatchHandler>,
        done: OnDone,
    ) -> u64 {
        let cookie = {
            let mut world = self.world.lock();
            let kept_s = if timeout_s == 0 { world.limits.watch_timeout_s } else { timeout_s };
            let Some(state) = world.sessions.get_mut(&session) else { return 0 };
            let cookie = state.next_cookie;
            state.next_cookie += 1;
            let watch = SessionWatch {
                object: object.clone(),
                handler,
                timeout: Nanos::from(kept_s) * SECOND,
                since: None,
                last_sign: None,
                lost: None,
            };
            state.watches.insert(cookie, watch);
            cookie
        };
        let inner = self.clone();
        let registered = move |reply: Result<OpReply>| {
            let outcome = reply.and_then(OpReply::success).map(drop);
            inner.on_registered(session, cookie, outcome.is_ok());
            done(outcome);
        };
        let op = Op::Watch { cookie, timeout_s };
        self.start(session, process, request(object, flags, op), Box::new(registered));
        cookie
    }

    fn on_registered(&self, session: u64, cookie: u64, stands: bool) {
        let now = self.scheduler.now();
        let removed = {
            let mut world = self.world.lock();
            let Some(state) = world.sessions.get_mut(&session) else { return };
            match state.watches.get_mut(&cookie) {
                Some(watch) if stands => {
                    watch.since = Some(watch.since.unwrap_or(now));
                    None
                }
                _ => state.watches.remove(&cookie),
            }
        };
        drop(removed);
    }

    pub(super) fn unwatch(self: &Arc<Self>, (session, process): (u64, ProcessId), cookie: u64, done: OnDone) {
        let removed = {
            let mut world = self.world.lock();
            world.sessions.get_mut(&session).and_then(|state| state.watches.remove(&cookie))
        };
        let Some(watch) = removed else { return done(Err(Errno::ENOTCONN.into())) };
        let answered = move |reply: Result<OpReply>| done(reply.and_then(OpReply::success).map(drop));
        let request = request(watch.object.clone(), 0, Op::Unwatch { cookie });
        drop(watch);
        self.start(session, process, request, Box::new(answered));
    }

    pub(super) fn watch_check(&self, session: u64, cookie: u64) -> Result<Duration> {
        let now = self.scheduler.now();
        let world = self.world.lock();
        let watch = world.sessions.get(&session).and_then(|state| state.watches.get(&cookie));
        let watch = watch.ok_or(Error::from(Errno::ENOTCONN))?;
        match &watch.lost {
            Some(error) => Err(error.clone()),
            None => Ok(Duration::from_nanos(now - watch.last_sign(now))),
        }
    }
}

/// The cluster's part.
impl Inner {
    /// Handles a session that falls silent, for ever or until then. Its watches lapse after their timeouts.
    pub(super) fn on_session_silent(
        self: &Arc<Self>,
        session: u64,
        state: &mut SessionState,
        until: Option<Nanos>,
    ) {
        let now = self.scheduler.now();
        for (cookie, watch) in &mut state.watches {
            let last = watch.last_sign(now);
            watch.last_sign = Some(last);
            let lapses = (last + watch.timeout).max(now);
            let (inner, object, id) = (self.clone(), watch.object.clone(), (ClientId(session), *cookie));
            match until {
                Some(until) if until <= lapses => {
                    self.scheduler.call_after(until - now, move || inner.heard_again(id));
                }
                _ => self.scheduler.call_after(lapses - now, move || inner.lapse(&object, id)),
            }
        }
    }

    /// Handles a process whose disconnection ends: it sends keepalives again, in time.
    fn heard_again(&self, (client, cookie): (ClientId, u64)) {
        let now = self.scheduler.now();
        let mut guard = self.world.lock();
        let world = &mut *guard;
        let Some(state) = world.sessions.get(&client.0) else { return };
        // Its disconnection may have been extended meanwhile.
        if world.reachable_at(state.process, now) > now {
            return;
        }
        if let Some(watch) =
            world.sessions.get_mut(&client.0).and_then(|state| state.watches.get_mut(&cookie))
        {
            watch.last_sign = None;
        }
    }

    /// Ends a watch whose session was silent for its timeout: it is removed from its object, and no notify waits for it.
    fn lapse(self: &Arc<Self>, object: &ObjectId, watch: (ClientId, u64)) {
        self.end_watch(&mut self.world.lock(), object, watch);
    }

    /// Removes a watch from its object.
    fn end_watch(self: &Arc<Self>, world: &mut World, object: &ObjectId, watch: (ClientId, u64)) {
        world.figures.lapsed += u64::from(world.remove_watch(object, watch));
        self.give_up(world, object, watch);
        self.tell_lost(world, watch);
    }

    /// Informs the session of a lost watch, when it is reachable.
    fn tell_lost(self: &Arc<Self>, world: &mut World, (client, cookie): (ClientId, u64)) {
        let now = self.scheduler.now();
        let Some(process) = world.sessions.get(&client.0).map(|state| state.process) else { return };
        let wait = world.reachable_at(process, now) - now + world.draws.latency();
        let inner = self.clone();
        self.scheduler.deliver_after(process, wait, move || {
            let told = {
                let mut world = inner.world.lock();
                let state = world.sessions.get_mut(&client.0);
                let watch = state.and_then(|state| state.watches.get_mut(&cookie));
                watch.and_then(|watch| lose(cookie, watch, &Errno::ENOTCONN.into()))
            };
            if let Some(told) = told {
                told();
            }
        });
    }

    /// Makes notifies stop waiting for a watch, whose watcher neither answered nor missed anything.
    fn give_up(self: &Arc<Self>, world: &mut World, object: &ObjectId, watch: (ClientId, u64)) {
        let mut over = Vec::new();
        for (id, notify) in world.notifies.iter_mut().filter(|(_, notify)| notify.object == *object) {
            notify.waiting.retain(|waiting| *waiting != watch);
            if notify.waiting.is_empty() {
                over.push(*id);
            }
        }
        for id in over {
            self.finish_notify(world, id);
        }
    }

    /// Ends watches of sessions that a PG's new map blocklists.
    pub(super) fn end_blocklisted(self: &Arc<Self>, world: &mut World, pg: PgId, epoch: u32) {
        let wall_ns = self.scheduler.wall_ns();
        let mut ended = Vec::new();
        let contents = world.image.collections.get(&pg).into_iter();
        for (object, kept) in contents.flat_map(|collection| &collection.objects) {
            let watchers = info_of(kept).watchers.into_iter();
            let out = watchers.filter(|info| world.is_blocklisted(info.client.0, epoch, wall_ns));
            ended.extend(out.map(|info| (object.clone(), (info.client, info.cookie))));
        }
        for (object, watch) in ended {
            self.end_watch(world, &object, watch);
        }
    }

    /// Executes the effects of a request other than its change. `watched` are the watches that its object had before.
    pub(super) fn carry_out_effect(
        self: &Arc<Self>,
        world: &mut World,
        (id, process, back): (RequestId, ProcessId, Option<Nanos>),
        (object, watched): (&ObjectId, &[WatchInfo]),
        effect: WatchNotifyEffect,
    ) {
        let client = ClientId(id.session);
        match effect {
            WatchNotifyEffect::Connect { cookie, timeout_s } => {
                self.connect_watch(object, (client, cookie), timeout_s, process);
            }
            // Keepalives are not sent individually.
            WatchNotifyEffect::Ping { .. } => {}
            WatchNotifyEffect::Disconnect { cookie } => self.give_up(world, object, (client, cookie)),
            WatchNotifyEffect::DisconnectAll => {
                for info in watched {
                    let watch = (info.client, info.cookie);
                    self.give_up(world, object, watch);
                    self.tell_lost(world, watch);
                }
            }
            WatchNotifyEffect::Notify { timeout_s, payload } => {
                let waiting = watched.iter().map(|info| (info.client, info.cookie)).collect();
                let number = world.next_notify;
                world.next_notify += 1;
                let notify = RunningNotify {
                    object: object.clone(),
                    payload,
                    notifier: id,
                    process,
                    back,
                    waiting,
                    acks: Vec::new(),
                };
                let nobody = notify.waiting.is_empty();
                world.notifies.insert(number, notify);
                if nobody {
                    return self.finish_notify(world, number);
                }
                self.send_notifications(world, number);
                let inner = self.clone();
                self.scheduler.call_after(Nanos::from(timeout_s) * SECOND, move || {
                    inner.finish_notify(&mut inner.world.lock(), number);
                });
            }
            WatchNotifyEffect::Ack { notify_id, cookie, payload } => {
                let Some(notify) = world.notifies.get_mut(&notify_id) else { return };
                let Some(at) = notify.waiting.iter().position(|waiting| *waiting == (client, cookie)) else {
                    return;
                };
                notify.waiting.remove(at);
                notify.acks.push((client.0, cookie, payload));
                if notify.waiting.is_empty() {
                    self.finish_notify(world, notify_id);
                }
            }
        }
    }

    /// Handles a registration that arrives after its process crashed: no keepalive follows for the watch.
    fn connect_watch(
        self: &Arc<Self>,
        object: &ObjectId,
        watch: (ClientId, u64),
        timeout_s: u32,
        process: ProcessId,
    ) {
        if !self.scheduler.is_alive(process) {
            let (inner, object) = (self.clone(), object.clone());
            let wait = Nanos::from(timeout_s) * SECOND;
            self.scheduler.call_after(wait, move || inner.lapse(&object, watch));
        }
    }

    /// Notifies the watchers that have not answered.
    pub(super) fn send_notifications(self: &Arc<Self>, world: &mut World, id: u64) {
        let now = self.scheduler.now();
        let Some(notify) = world.notifies.get(&id) else { return };
        let (waiting, payload) = (notify.waiting.clone(), notify.payload.clone());
        let notifier = notify.notifier.session;
        for (client, cookie) in waiting {
            let Some(process) = world.sessions.get(&client.0).map(|state| state.process) else { continue };
            let times = if world.draws.repeats() { 2 } else { 1 };
            world.figures.repeated_notifies += times - 1;
            for _ in 0..times {
                let wait = world.reachable_at(process, now) - now + world.draws.latency();
                let notification = Notification { cookie, notify_id: id, notifier, payload: payload.clone() };
                let inner = self.clone();
                self.scheduler.deliver_after(process, wait, move || inner.notify(client, notification));
            }
        }
    }

    /// Delivers a notification to a session.
    fn notify(&self, client: ClientId, notification: Notification) {
        let handler = {
            let world = self.world.lock();
            let state = world.sessions.get(&client.0).filter(|state| !state.shut_down);
            let watch = state.and_then(|state| state.watches.get(&notification.cookie));
            watch.filter(|watch| watch.lost.is_none()).map(|watch| watch.handler.clone())
        };
        if let Some(handler) = handler {
            handler.notified(notification);
        }
    }

    /// Ends a notify: the notifier receives the answers and the watchers that did not answer.
    fn finish_notify(self: &Arc<Self>, world: &mut World, id: u64) {
        let Some(notify) = world.notifies.remove(&id) else { return };
        let timed_out = !notify.waiting.is_empty();
        let mut reply = NotifyReply { notify_id: id, acks: notify.acks, ..NotifyReply::default() };
        reply.acks.sort_by_key(|(client, cookie, _)| (*client, *cookie));
        reply.missed = notify.waiting.into_iter().map(|(client, cookie)| (client.0, cookie)).collect();
        reply.missed.sort_unstable();
        let answers = reply.encode();
        let mut output = BytesMut::with_capacity(8 + answers.len());
        output.put_u64_le(id);
        output.put(answers);
        let code = if timed_out { Errno::ETIMEDOUT.negated() } else { 0 };
        let ops = vec![OpResult { code, output: output.freeze() }];
        let reply = OpReply { result: code, version: 0, ops };
        self.reply(world, (notify.notifier, notify.process), Ok(reply), notify.back);
    }
}
