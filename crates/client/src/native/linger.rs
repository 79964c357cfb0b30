//! Watches of this session (`linger` operations): registered, kept alive, taken up again when the object's primary or
//! the connection to it is another one.
//!
//! All that arrives, maps and resets too, is handled on the session's thread, so that an answer, and what comes after
//! it, are seen in order.

use super::Shared;
use super::state::{Done, Token};
use crate::objecter::{Answer, Target};
use crate::throttle::Share;
use nacre_engine::engine::ObjectRequest;
use nacre_engine::{Error, Notification, OnDone, Result, WatchHandler};
use nacre_types::errno::Errno;
use nacre_types::msg::{WatchLost, WatchNotify};
use nacre_types::object::SNAP_HEAD;
use nacre_types::op::{Op, OsdOp};
use nacre_types::osdmap::OsdMap;
use nacre_types::{ObjectId, OsdId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The longest time between two signs of life, in milliseconds (Ceph's `objecter_tick_interval`, by default).
const LONGEST_PING_MS: u64 = 5_000;

/// How far a watch is.
#[derive(Debug)]
enum Phase {
    /// Being registered, or taken up again.
    Connecting,
    /// Registered at this primary.
    Connected(Target),
    /// Over, and why.
    Lost(Error),
}

struct Linger {
    object: ObjectId,
    flags: u32,
    ping_ms: u64,
    handler: Arc<dyn WatchHandler>,
    phase: Phase,
    /// Rises whenever the watch is to be taken up again: answers to earlier attempts do not count.
    attempt: u64,
    /// When the last sign of life that was answered was sent, or the registration.
    valid_ms: u64,
    next_ping_ms: u64,
    pinging: bool,
}

/// The session's watches by cookie.
#[derive(Default)]
pub(super) struct Lingers {
    next: u64,
    watches: BTreeMap<u64, Linger>,
}

impl Lingers {
    /// When the next sign of life is due.
    pub(super) fn next_ms(&self) -> Option<u64> {
        let due = |linger: &&Linger| matches!(linger.phase, Phase::Connected(_)) && !linger.pinging;
        self.watches.values().filter(due).map(|linger| linger.next_ping_ms).min()
    }

    /// Forgets all of them.
    pub(super) fn clear(&mut self) {
        self.watches.clear();
    }

    /// Connected watches that `is_lost` says have to be taken up again.
    fn take_lost(&mut self, is_lost: impl Fn(&Linger, Target) -> bool) -> Vec<u64> {
        let mut cookies = Vec::new();
        for (cookie, linger) in &mut self.watches {
            if let Phase::Connected(target) = linger.phase
                && is_lost(linger, target)
            {
                linger.disconnect();
                cookies.push(*cookie);
            }
        }
        cookies
    }
}

impl Linger {
    /// The watch is to be taken up again. Answers to what was sent before do not count, and a ping that is still in
    /// flight must not keep later ones from being sent.
    fn disconnect(&mut self) {
        self.phase = Phase::Connecting;
        self.attempt += 1;
        self.pinging = false;
    }

    /// Takes in the outcome of a step of the current attempt. Returns whether the watch is to be taken up again.
    fn on_outcome(&mut self, step: Step, sent_ms: u64, outcome: &Result<Target>) -> bool {
        if step == Step::Ping {
            self.pinging = false;
        }
        match outcome {
            Ok(target) => {
                self.valid_ms = sent_ms;
                if step != Step::Ping {
                    self.next_ping_ms = sent_ms + self.ping_ms;
                    self.phase = Phase::Connected(*target);
                }
            }
            // The OSD knows the watch, but not by this connection.
            Err(Error::Refused(Errno::ETIMEDOUT)) if step == Step::Ping => {
                self.disconnect();
                return true;
            }
            Err(_) => {}
        }
        false
    }
}

/// An operation of a watch's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Register,
    Reconnect,
    Ping,
}

impl Shared {
    /// Registers a watch; returns its cookie.
    pub(super) fn watch(
        self: &Arc<Self>,
        object: ObjectId,
        flags: u32,
        timeout_s: u32,
        handler: Arc<dyn WatchHandler>,
        done: OnDone,
    ) -> u64 {
        // Three signs of life may be lost before the watch is; a timeout that is not known is no shorter than Ceph's.
        let third = if timeout_s == 0 { LONGEST_PING_MS } else { u64::from(timeout_s) * 1000 / 3 };
        let ping_ms = third.clamp(100, LONGEST_PING_MS);
        let cookie = {
            let mut state = self.state.lock();
            let lingers = &mut state.lingers;
            lingers.next += 1;
            let cookie = lingers.next;
            let linger = Linger {
                object,
                flags,
                ping_ms,
                handler,
                phase: Phase::Connecting,
                attempt: 0,
                valid_ms: 0,
                next_ping_ms: 0,
                pinging: false,
            };
            lingers.watches.insert(cookie, linger);
            cookie
        };
        self.step(cookie, Step::Register, Op::Watch { cookie, timeout_s }, Some(done));
        cookie
    }

    /// Ends a watch.
    pub(super) fn unwatch(self: &Arc<Self>, cookie: u64, done: OnDone) {
        let removed = self.state.lock().lingers.watches.remove(&cookie);
        let Some(linger) = removed else { return done(Err(Errno::ENOTCONN.into())) };
        let request = request(linger.object, linger.flags, Op::Unwatch { cookie });
        let answered = move |answer: Result<Answer>| done(answer.and_then(|answer| refusal(&answer)));
        self.start(request, Token { share: Share::default(), done: Done::Answer(Box::new(answered)) });
    }

    /// How long ago a watch was last known to stand.
    pub(super) fn watch_check(&self, cookie: u64) -> Result<Duration> {
        let now_ms = self.now_ms();
        let state = self.state.lock();
        let linger = state.lingers.watches.get(&cookie).ok_or(Error::from(Errno::ENOTCONN))?;
        match &linger.phase {
            Phase::Lost(error) => Err(error.clone()),
            _ => Ok(Duration::from_millis(now_ms.saturating_sub(linger.valid_ms))),
        }
    }

    fn step(self: &Arc<Self>, cookie: u64, step: Step, op: Op, done: Option<OnDone>) {
        let sent_ms = self.now_ms();
        let started = {
            let state = self.state.lock();
            let linger = state.lingers.watches.get(&cookie);
            linger.map(|linger| (request(linger.object.clone(), linger.flags, op), linger.attempt))
        };
        let Some((request, attempt)) = started else {
            // The session was shut down by another thread since the watch was entered.
            if let Some(done) = done {
                done(Err(Error::ShutDown));
            }
            return;
        };
        let shared = Arc::downgrade(self);
        let answered = move |answer: Result<Answer>| match (shared.upgrade(), done) {
            (Some(shared), done) => shared.on_step(cookie, step, attempt, sent_ms, answer, done),
            (None, Some(done)) => done(Err(Error::ShutDown)),
            (None, None) => {}
        };
        // Watches are few, and what keeps one alive must not wait for room.
        self.start(request, Token { share: Share::default(), done: Done::Answer(Box::new(answered)) });
    }

    fn on_step(
        self: &Arc<Self>,
        cookie: u64,
        step: Step,
        attempt: u64,
        sent_ms: u64,
        answer: Result<Answer>,
        done: Option<OnDone>,
    ) {
        let outcome = answer.and_then(|answer| refusal(&answer).map(|()| answer.target));
        let mut again = false;
        {
            let mut state = self.state.lock();
            let is_current = |l: &&mut Linger| l.attempt == attempt && !matches!(l.phase, Phase::Lost(_));
            let current = state.lingers.watches.get_mut(&cookie).filter(is_current);
            match current {
                Some(linger) => again = linger.on_outcome(step, sent_ms, &outcome),
                // Whoever registers the watch is told the outcome in any case.
                None if step == Step::Register => {}
                // A later attempt decides what becomes of the watch, or it is over.
                None => return,
            }
        }
        // A map may have come while the answer was on its way.
        if outcome.is_ok() && step != Step::Ping {
            self.watches_on_map();
        }
        self.timer.notify_one();
        if again {
            return self.reconnect(cookie);
        }
        match (step, outcome) {
            (Step::Register, outcome) => {
                if outcome.is_err() {
                    self.state.lock().lingers.watches.remove(&cookie);
                }
                if let Some(done) = done {
                    done(outcome.map(drop));
                }
            }
            (_, Err(Error::TimedOut(_))) if step == Step::Reconnect => self.reconnect(cookie),
            (_, Err(error @ (Error::Refused(_) | Error::NoSuchPool(_) | Error::Blocklisted))) => {
                // As Ceph has it, a watch whose object is gone is lost like any other.
                let error = if error.errno() == Errno::ENOENT { Errno::ENOTCONN.into() } else { error };
                self.lose_watch(cookie, error);
            }
            _ => {}
        }
    }

    fn reconnect(self: &Arc<Self>, cookie: u64) {
        self.step(cookie, Step::Reconnect, Op::WatchReconnect { cookie }, None);
    }

    /// Marks a watch as lost and says so, once.
    fn lose_watch(&self, cookie: u64, error: Error) {
        let handler = {
            let mut state = self.state.lock();
            let linger = state.lingers.watches.get_mut(&cookie);
            linger.filter(|linger| !matches!(linger.phase, Phase::Lost(_))).map(|linger| {
                linger.phase = Phase::Lost(error.clone());
                linger.handler.clone()
            })
        };
        if let Some(handler) = handler {
            handler.lost(cookie, error);
        }
    }

    /// The session is another one, or shut out: none of its watches stand.
    pub(super) fn lose_watches(&self, error: &Error) {
        let cookies: Vec<u64> = self.state.lock().lingers.watches.keys().copied().collect();
        for cookie in cookies {
            self.lose_watch(cookie, error.clone());
        }
    }

    /// The map is another one: watches go where their objects' primaries are.
    pub(super) fn watches_on_map(self: &Arc<Self>) {
        let (cookies, gone, blocklisted) = {
            let mut state = self.state.lock();
            if state.lingers.watches.is_empty() {
                return;
            }
            let Some(map) = state.objecter.map().cloned() else { return };
            let blocklisted = state.objecter.is_blocklisted();
            let is_gone = |linger: &Linger| !map.pools.contains_key(&linger.object.pool());
            let gone: Vec<u64> =
                state.lingers.watches.iter().filter(|(_, l)| is_gone(l)).map(|(c, _)| *c).collect();
            let cookies = state.lingers.take_lost(|linger, target| has_moved(&map, linger, target));
            (cookies, gone, blocklisted)
        };
        if blocklisted {
            return self.lose_watches(&Error::Blocklisted);
        }
        for cookie in gone {
            self.lose_watch(cookie, Errno::ENOTCONN.into());
        }
        for cookie in cookies {
            self.reconnect(cookie);
        }
    }

    /// The connection to an OSD was lost.
    pub(super) fn watches_on_reset(self: &Arc<Self>, osd: OsdId) {
        let cookies = self.state.lock().lingers.take_lost(|_, target| target.osd == osd);
        for cookie in cookies {
            self.reconnect(cookie);
        }
    }

    /// Signs of life that are due.
    pub(super) fn watches_on_tick(self: &Arc<Self>, now_ms: u64) {
        let silent = self.config.snapshot().client.objecter_inject_no_watch_ping;
        let due: Vec<u64> = {
            let mut state = self.state.lock();
            let mut due = Vec::new();
            for (cookie, linger) in &mut state.lingers.watches {
                let connected = matches!(linger.phase, Phase::Connected(_));
                if connected && !linger.pinging && linger.next_ping_ms <= now_ms {
                    linger.next_ping_ms = now_ms + linger.ping_ms;
                    if !silent {
                        linger.pinging = true;
                        due.push(*cookie);
                    }
                }
            }
            due
        };
        for cookie in due {
            self.step(cookie, Step::Ping, Op::WatchPing { cookie }, None);
        }
    }

    /// An OSD tells of a notify.
    pub(super) fn on_watch_notify(&self, message: WatchNotify) {
        let WatchNotify { cookie, notify_id, notifier, payload } = message;
        let handler = self.state.lock().lingers.watches.get(&cookie).map(|linger| linger.handler.clone());
        if let Some(handler) = handler {
            handler.notified(Notification { cookie, notify_id, notifier: notifier.0, payload });
        }
    }

    /// An OSD tells that a watch has lapsed.
    pub(super) fn on_watch_lost(&self, message: WatchLost) {
        self.lose_watch(message.cookie, Errno::ENOTCONN.into());
    }
}

fn has_moved(map: &OsdMap, linger: &Linger, target: Target) -> bool {
    let now = crate::objecter::primary_of(map, linger.object.pool(), linger.flags, linger.object.hash());
    // Without a primary there is nowhere to go; the next map that has one shows that it is another interval.
    now.is_some_and(|now| now != target)
}

fn refusal(answer: &Answer) -> Result<()> {
    Errno::from_result(answer.reply.result)?;
    Ok(())
}

fn request(object: ObjectId, flags: u32, op: Op) -> ObjectRequest {
    let ops = vec![OsdOp::from(op)];
    ObjectRequest { object, ops, flags, snap: SNAP_HEAD, snap_context: None, mtime_ns: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::{Network, start};
    use nacre_common::auth::Key;
    use nacre_common::config::ConfigBuilder;
    use nacre_types::ids::EntityName;
    use std::sync::mpsc;

    #[test]
    fn a_watch_that_a_shutdown_overtakes_has_an_outcome() {
        let config = ConfigBuilder::new(EntityName::client("admin"))
            .set("mon_host", "127.0.0.1:1")
            .set("key", Key::generate().unwrap().to_base64().as_str())
            .build()
            .unwrap();
        let native = start(&config, Network::start().unwrap()).unwrap();
        let (sender, receiver) = mpsc::channel();
        let done = Box::new(move |outcome| sender.send(outcome).unwrap());
        // A shutdown by another thread has removed the watch before its request is made.
        native.shared.step(7, Step::Register, Op::Watch { cookie: 7, timeout_s: 0 }, Some(done));
        assert!(matches!(receiver.try_recv(), Ok(Err(Error::ShutDown))));
    }
}
