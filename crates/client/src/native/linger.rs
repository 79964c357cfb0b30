//! The session's watches: executes the effects of their state machine ([`Watches`](nacre_objecter::Watches)).
//!
//! All arrivals, including maps and resets, are handled on the session's thread, so that a reply and what follows it are seen in order.

use super::Shared;
use super::state::{CompletionBatch, ReplyTarget, RequestToken, State};
use crate::throttle::ThrottleShare;
use nacre_engine::{Error, Notification, OnDone, Result, WatchHandler};
use nacre_objecter::{Answer, Submission, WatchAttempt, WatchEffect, WatchStep};
use nacre_runtime::msgr::Conn;
use nacre_types::errno::Errno;
use nacre_types::msg::{WatchLost, WatchNotify};
use nacre_types::object::SNAP_HEAD;
use nacre_types::op::{Op, OsdOp};
use nacre_types::{ObjectId, OsdId};
use std::sync::Arc;
use std::time::Duration;

/// The handler of a watch.
pub(super) type Watcher = Arc<dyn WatchHandler>;

impl Shared {
    /// Registers a watch and returns its cookie.
    pub(super) fn watch(
        self: &Arc<Self>,
        object: ObjectId,
        flags: u32,
        timeout_s: u32,
        handler: Watcher,
        done: OnDone,
    ) -> u64 {
        let now_ms = self.now_ms();
        let mut done = Some(done);
        let mut cookie = 0;
        self.with_state(|state, batch| {
            let (new, send) = state.watches.register(object, flags, timeout_s, handler, now_ms);
            cookie = new;
            self.carry_out(state, batch, vec![send], &mut done);
        });
        cookie
    }

    /// Ends a watch.
    pub(super) fn unwatch(self: &Arc<Self>, cookie: u64, done: OnDone) {
        let removed = self.state.lock().watches.remove(cookie);
        let Some((object, flags)) = removed else { return done(Err(Errno::ENOTCONN.into())) };
        let answered = move |answer: Result<Answer>| done(outcome(&answer));
        let token =
            RequestToken { share: ThrottleShare::default(), done: ReplyTarget::Answer(Box::new(answered)) };
        let submission = self.submission(object, flags, Op::Unwatch { cookie });
        self.with_state(|state, batch| self.submit(state, batch, submission, token));
    }

    /// Time since the watch was last known to be registered.
    pub(super) fn watch_check(&self, cookie: u64) -> Result<Duration> {
        let now_ms = self.now_ms();
        self.state.lock().watches.since_confirmed_ms(cookie, now_ms).map(Duration::from_millis)
    }

    fn submission(&self, object: ObjectId, flags: u32, op: Op) -> Submission {
        let deadline_ms = self.deadline_ms(&op);
        Submission {
            object,
            ops: vec![OsdOp::from(op)],
            flags,
            snap: SNAP_HEAD,
            snap_context: None,
            mtime_ns: super::now_ns(),
            deadline_ms,
            tier: None,
        }
    }

    /// Executes the machine's effects under the lock. Requests of watches bypass the throttle: watches are few, and their keepalives must
    /// not wait for room. `registered` is called when the registration among the effects is answered.
    fn carry_out(
        self: &Arc<Self>,
        state: &mut State,
        batch: &mut CompletionBatch,
        effects: Vec<WatchEffect<Watcher>>,
        registered: &mut Option<OnDone>,
    ) {
        for effect in effects {
            match effect {
                WatchEffect::Send { attempt, object, flags, op } => {
                    let done = registered.take_if(|_| attempt.step == WatchStep::Register);
                    let shared = Arc::downgrade(self);
                    let answered = move |answer: Result<Answer>| match (shared.upgrade(), done) {
                        (Some(shared), done) => shared.on_step(attempt, answer, done),
                        (None, Some(done)) => done(Err(Error::ShutDown)),
                        (None, None) => {}
                    };
                    let token = RequestToken {
                        share: ThrottleShare::default(),
                        done: ReplyTarget::Answer(Box::new(answered)),
                    };
                    let submission = self.submission(object, flags, op);
                    self.submit(state, batch, submission, token);
                }
                WatchEffect::Lost { cookie, watcher, error } => batch.lose_watch(cookie, watcher, error),
            }
        }
    }

    /// Runs a step of the machine and executes its effects.
    fn with_watches(self: &Arc<Self>, step: impl FnOnce(&mut State, u64) -> Vec<WatchEffect<Watcher>>) {
        let now_ms = self.now_ms();
        self.with_state(|state, batch| {
            let effects = step(state, now_ms);
            self.carry_out(state, batch, effects, &mut None);
        });
    }

    fn on_step(self: &Arc<Self>, attempt: WatchAttempt, answer: Result<Answer>, done: Option<OnDone>) {
        self.with_watches(|state, now_ms| {
            let map = state.objecter.map().cloned();
            state.watches.on_step(attempt, &answer, map.as_deref(), now_ms)
        });
        self.timer.notify_one();
        if let Some(done) = done {
            done(outcome(&answer));
        }
    }

    /// Fails all watches, because the session has a new client id.
    pub(super) fn lose_watches(self: &Arc<Self>, error: &Error) {
        self.with_watches(|state, _| state.watches.lose_all(error));
    }

    /// Applies a new map: watches move to their objects' primaries.
    pub(super) fn watches_on_map(self: &Arc<Self>) {
        self.with_watches(|state, now_ms| {
            if state.objecter.is_blocklisted() {
                return state.watches.lose_all(&Error::Blocklisted);
            }
            match state.objecter.map().cloned() {
                Some(map) => state.watches.on_map(&map, now_ms),
                None => Vec::new(),
            }
        });
    }

    /// Handles the loss of the connection to an OSD.
    pub(super) fn watches_on_reset(self: &Arc<Self>, osd: OsdId) {
        self.with_watches(|state, now_ms| state.watches.on_reset(osd, now_ms));
    }

    /// Sends the keepalives that are due.
    pub(super) fn watches_on_tick(self: &Arc<Self>) {
        let silent = self.config.snapshot().client.objecter_inject_no_watch_ping;
        self.with_watches(|state, now_ms| state.watches.on_tick(now_ms, silent));
    }

    /// Handles an OSD's message about a notify.
    pub(super) fn on_watch_notify(&self, message: WatchNotify) {
        let WatchNotify { cookie, notify_id, notifier, payload } = message;
        let handler = self.state.lock().watches.watcher(cookie).cloned();
        if let Some(handler) = handler {
            handler.notified(Notification { cookie, notify_id, notifier: notifier.0, payload });
        }
    }

    /// Handles an OSD's message that a watch has timed out.
    pub(super) fn on_watch_lost(self: &Arc<Self>, conn: &Conn, message: WatchLost) {
        self.with_watches(|state, _| {
            let osd = state.osd_at(conn);
            osd.and_then(|osd| state.watches.on_lost(osd, message.cookie)).into_iter().collect()
        });
    }
}

fn outcome(answer: &Result<Answer>) -> Result<()> {
    let answer = answer.as_ref().map_err(Clone::clone)?;
    Errno::from_result(answer.reply.result)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::{NetworkThread, start};
    use nacre_common::auth::Key;
    use nacre_common::config::ConfigBuilder;
    use nacre_types::ids::EntityName;
    use std::sync::mpsc;

    struct Silent;

    impl WatchHandler for Silent {
        fn notified(&self, _: Notification) {}
        fn lost(&self, _: u64, _: Error) {}
    }

    #[test]
    fn a_watch_that_a_shutdown_overtakes_has_an_outcome() {
        let config = ConfigBuilder::new(EntityName::client("admin"))
            .set("mon_host", "127.0.0.1:1")
            .set("key", Key::generate().unwrap().to_base64().as_str())
            .build()
            .unwrap();
        let native = start(&config, NetworkThread::start().unwrap()).unwrap();
        let (sender, receiver) = mpsc::channel();
        let done = Box::new(move |outcome| sender.send(outcome).unwrap());
        native.shared.shut_down();
        let object = ObjectId::new(nacre_types::PoolId(1), "", "", "name");
        native.shared.watch(object, 0, 0, Arc::new(Silent), done);
        assert!(matches!(receiver.try_recv(), Ok(Err(Error::ShutDown))));
    }
}
