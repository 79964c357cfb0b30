//! The events that watchers and notifiers received, and their check (rule R9).
//!
//! A watch exists from the answer to its registration until its client ends it or learns that it is lost. A notify that
//! completes names each watch of its object that was registered before it was sent: as one that answered, or as one that did
//! not answer in time. A watch that it does not name must have been silent for its timeout, and its client learns of that: no
//! later message of the client may confirm the watch.

use super::GuaranteeViolation;
use crate::schedule::{MILLI, Nanos, SECOND};
use bytes::Bytes;
use nacre_types::op::NotifyReply;
use nacre_types::{ClientId, ObjectId, PoolId};
use std::collections::{BTreeMap, BTreeSet};

/// A watch: the session and the cookie.
pub type WatchId = (ClientId, u64);

/// The allowed lateness of any detection, in addition to the clocks' drift.
const SLACK: Nanos = 100 * MILLI;
/// How long a lapsed watch may continue without its client learning of it, if nothing prevents that.
const TOLD_WITHIN: Nanos = 20 * SECOND;

#[derive(Clone, Debug)]
struct Watch {
    object: ObjectId,
    timeout: Nanos,
    registered: Nanos,
    /// When the last keepalive that was answered was sent.
    valid: Nanos,
    /// When a notify completed without it.
    missed: Option<Nanos>,
}

impl Watch {
    /// Whether the watcher may have been silent for its timeout.
    fn may_have_lapsed(&self, now: Nanos, drift_ppm: u64) -> bool {
        now + SLACK + self.timeout * 2 * drift_ppm / 1_000_000 >= self.valid + self.timeout
    }
}

/// All existing watches, and all answers to notifies.
#[derive(Clone, Debug, Default)]
pub struct WatchChecker {
    /// Pools whose data an operator destroyed.
    given_up: BTreeSet<PoolId>,
    /// Sessions that are, or were, on the blocklist.
    fenced: BTreeSet<ClientId>,
    watches: BTreeMap<WatchId, Watch>,
    acks: BTreeMap<(u64, WatchId), Bytes>,
    /// The maximum drift of clocks.
    pub drift_ppm: u64,
}

impl WatchChecker {
    /// An operator deletes the pool: its watches are not checked any more.
    pub fn ignore_pool(&mut self, pool: PoolId) {
        self.given_up.insert(pool);
        self.watches.retain(|_, watch| watch.object.pool() != pool);
    }

    /// A registration that was sent at `sent` is answered.
    pub fn registered(&mut self, id: WatchId, object: ObjectId, timeout: Nanos, (sent, now): (Nanos, Nanos)) {
        if self.given_up.contains(&object.pool()) || self.fenced.contains(&id.0) {
            return;
        }
        let watch = Watch { object, timeout, registered: now, valid: sent, missed: None };
        self.watches.insert(id, watch);
    }

    /// A ping or a reconnection that was sent at `sent` is answered.
    pub fn confirmed(&mut self, id: WatchId, sent: Nanos) -> Result<(), GuaranteeViolation> {
        let Some(watch) = self.watches.get_mut(&id) else { return Ok(()) };
        watch.valid = watch.valid.max(sent);
        match watch.missed {
            Some(missed) if missed < sent => Err(GuaranteeViolation {
                rule: "a watch goes on that missed a notify",
                detail: format!(
                    "{id:?} of {}: missed {missed}, confirmed what was sent {sent}",
                    watch.object
                ),
            }),
            _ => Ok(()),
        }
    }

    /// The client ends its watch, or its session has ended.
    pub fn ended(&mut self, id: WatchId) {
        self.watches.remove(&id);
    }

    /// A session is on the blocklist, so its watches end.
    pub fn fenced(&mut self, session: ClientId) {
        self.fenced.insert(session);
        self.watches.retain(|(of, _), _| *of != session);
    }

    /// The client learns that its watch is lost; `excused` if its object is gone or unreadable.
    pub fn lost(&mut self, id: WatchId, now: Nanos, excused: bool) -> Result<(), GuaranteeViolation> {
        let Some(watch) = self.watches.remove(&id) else { return Ok(()) };
        if excused || watch.may_have_lapsed(now, self.drift_ppm) {
            return Ok(());
        }
        Err(GuaranteeViolation {
            rule: "a watch is lost before its time",
            detail: format!("{id:?} at {now}: {watch:?}"),
        })
    }

    /// A client answers a notify.
    pub fn acked(&mut self, notify: u64, id: WatchId, payload: Bytes) {
        self.acks.insert((notify, id), payload);
    }

    /// A notify that was sent at `asked` has completed.
    pub fn notified(
        &mut self,
        object: &ObjectId,
        (asked, now): (Nanos, Nanos),
        reply: &NotifyReply,
    ) -> Result<(), GuaranteeViolation> {
        let mut named = BTreeSet::new();
        for (client, cookie, payload) in &reply.acks {
            let id = (ClientId(*client), *cookie);
            named.insert(id);
            if self.acks.get(&(reply.notify_id, id)) != Some(payload) {
                let detail = format!("notify {} of {object}: {id:?} said {payload:?}", reply.notify_id);
                return Err(GuaranteeViolation {
                    rule: "an answer to a notify that no watcher gave",
                    detail,
                });
            }
        }
        named.extend(reply.missed.iter().map(|(client, cookie)| (ClientId(*client), *cookie)));
        for (id, watch) in &mut self.watches {
            if watch.object != *object || watch.registered >= asked || named.contains(id) {
                continue;
            }
            if !watch.may_have_lapsed(now, self.drift_ppm) {
                let detail = format!("notify {}, {asked} to {now}: {id:?} {watch:?}", reply.notify_id);
                return Err(GuaranteeViolation { rule: "a notify completes without a watcher", detail });
            }
            watch.missed = watch.missed.or(Some(now));
        }
        Ok(())
    }

    /// Long after the end of all faults: clients that missed a notify must have learned of it, unless `excused`.
    pub fn check_at_rest(
        &self,
        now: Nanos,
        excused: impl Fn(ClientId, &ObjectId) -> bool,
    ) -> Result<(), (&'static str, String)> {
        for (id, watch) in &self.watches {
            if watch.missed.is_some_and(|missed| missed + TOLD_WITHIN < now) && !excused(id.0, &watch.object)
            {
                let detail = format!("{id:?} {watch:?}");
                return Err(("a watcher is not told that it missed a notify", detail));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: WatchId = (ClientId(1), 7);

    fn object() -> ObjectId {
        ObjectId::new(PoolId(1), "", "", "w")
    }

    /// A watch with a timeout of five seconds, registered at one second.
    fn watching() -> WatchChecker {
        let mut watching = WatchChecker::default();
        watching.registered(ID, object(), 5 * SECOND, (SECOND, SECOND));
        watching
    }

    fn without_it() -> NotifyReply {
        NotifyReply { notify_id: 3, ..NotifyReply::default() }
    }

    #[test]
    fn a_notify_waits_for_each_watch_that_stood_before_it() {
        let broken = watching().notified(&object(), (2 * SECOND, 3 * SECOND), &without_it()).unwrap_err();
        assert_eq!(broken.rule, "a notify completes without a watcher");
        watching().notified(&object(), (SECOND, 3 * SECOND), &without_it()).unwrap();
        let named = NotifyReply { missed: vec![(1, 7)], ..without_it() };
        watching().notified(&object(), (2 * SECOND, 3 * SECOND), &named).unwrap();
    }

    #[test]
    fn a_watch_that_missed_a_notify_is_over() {
        let mut watching = watching();
        watching.notified(&object(), (2 * SECOND, 7 * SECOND), &without_it()).unwrap();
        watching.confirmed(ID, 6 * SECOND).unwrap();
        assert!(watching.check_at_rest(60 * SECOND, |_, _| false).is_err());
        assert_eq!(
            watching.confirmed(ID, 8 * SECOND).unwrap_err().rule,
            "a watch goes on that missed a notify"
        );
        watching.lost(ID, 8 * SECOND, true).unwrap();
        watching.check_at_rest(60 * SECOND, |_, _| false).unwrap();
    }

    #[test]
    fn a_watch_lives_for_its_timeout_and_nobody_answers_in_its_name() {
        let broken = watching().lost(ID, 5 * SECOND, false).unwrap_err();
        assert_eq!(broken.rule, "a watch is lost before its time");
        watching().lost(ID, 6 * SECOND, false).unwrap();
        let mut watching = watching();
        let reply = NotifyReply { acks: vec![(1, 7, Bytes::from_static(b"a"))], ..without_it() };
        assert!(watching.notified(&object(), (2 * SECOND, 3 * SECOND), &reply).is_err());
        watching.acked(3, ID, Bytes::from_static(b"a"));
        watching.notified(&object(), (2 * SECOND, 3 * SECOND), &reply).unwrap();
    }
}
