//! The part of a client that watches and notifies.

use super::{Client, ClientOutput, Token, millis};
use crate::history::{Action, GuaranteeViolation, History};
use crate::schedule::{MILLI, Nanos, SECOND};
use bytes::Bytes;
use nacre_engine::Error;
use nacre_objecter::{Answer, WatchAttempt, WatchEffect, WatchStep, Watches};
use nacre_types::errno::Errno;
use nacre_types::msg::{WatchLost, WatchNotify};
use nacre_types::op::{NotifyReply, Op};
use nacre_types::{ObjectId, OsdId};

/// A notify without an answer.
#[derive(Clone, Debug)]
pub(super) struct Notifying {
    pub(super) object: ObjectId,
    asked: Nanos,
}

impl Client {
    /// Executes the effects of the watch state machine.
    pub(super) fn carry_out(
        &mut self,
        now: Nanos,
        history: &mut History,
        effects: Vec<WatchEffect<(ObjectId, Nanos)>>,
    ) -> Result<(), GuaranteeViolation> {
        for effect in effects {
            match effect {
                WatchEffect::Send { attempt, object, op, .. } => {
                    self.submit(now, (object, vec![op]), Token::Step(attempt));
                }
                WatchEffect::Lost { cookie, watcher: (object, _), error } => {
                    let pool_is_gone = self.map().is_none_or(|map| !map.pools.contains_key(&object.pool()));
                    let excused = pool_is_gone || error.errno() != Errno::ENOTCONN;
                    history.watching.lost((self.objecter.client(), cookie), now, excused)?;
                    self.end_watch(now, history, cookie);
                }
            }
        }
        Ok(())
    }

    /// Ends a watch that its client removes or that is lost.
    fn end_watch(&mut self, now: Nanos, history: &mut History, cookie: u64) {
        history.watching.ended((self.objecter.client(), cookie));
        self.cookies.retain(|own| *own != cookie);
        if let Some((object, _)) = self.watches.remove(cookie) {
            self.submit(now, (object, vec![Op::Unwatch { cookie }]), Token::Silent);
        }
    }

    pub(super) fn on_step(
        &mut self,
        now: Nanos,
        history: &mut History,
        attempt: WatchAttempt,
        result: &Result<Answer, Error>,
    ) -> Result<(), GuaranteeViolation> {
        let WatchAttempt { cookie, step, sent_ms, .. } = attempt;
        let (id, sent) = ((self.objecter.client(), cookie), (sent_ms - 1) * MILLI);
        let watcher = self.watches.watcher(cookie).cloned();
        let stands = self.watches.since_confirmed_ms(cookie, millis(now)).is_ok();
        if let (Ok(answer), Some((object, timeout))) = (result, watcher)
            && answer.reply.result >= 0
            && stands
        {
            match step {
                WatchStep::Register => history.watching.registered(id, object, timeout, (sent, now)),
                _ => history.watching.confirmed(id, sent)?,
            }
        }
        let map = self.map().cloned();
        let effects = self.watches.on_step(attempt, result, map.as_deref(), millis(now));
        if self.watches.watcher(cookie).is_none() {
            self.cookies.retain(|own| *own != cookie);
        }
        self.carry_out(now, history, effects)
    }

    pub(super) fn on_notified(
        &mut self,
        now: Nanos,
        history: &mut History,
        number: u64,
        result: Result<Answer, Error>,
    ) -> Result<(), GuaranteeViolation> {
        let Some(Notifying { object, asked }) = self.notifying.remove(&number) else {
            let detail = format!("notify {}:{number}", self.node);
            return Err(GuaranteeViolation { rule: "a request is answered twice", detail });
        };
        let Ok(answer) = result else { return Ok(()) };
        let timed_out = answer.reply.result == Errno::ETIMEDOUT.negated();
        let output = answer.reply.ops.first().map(|part| part.output.clone()).unwrap_or_default();
        let Some((id, _)) = output.split_first_chunk().filter(|_| timed_out || answer.reply.result >= 0)
        else {
            return Ok(());
        };
        let malformed = |detail: String| GuaranteeViolation { rule: "malformed reply", detail };
        let reply = NotifyReply::decode(u64::from_le_bytes(*id), &output.slice(8..))
            .map_err(|error| malformed(error.to_string()))?;
        if timed_out == reply.missed.is_empty() {
            return Err(malformed(format!("notify {number}: {reply:?} with {}", answer.reply.result)));
        }
        history.watching.notified(&object, (asked, now), &reply)
    }

    /// Watches or notifies an object, or ends a watch of it, at random.
    pub fn random_watch_op(
        &mut self,
        now: Nanos,
        history: &mut History,
        object: ObjectId,
        out: &mut Vec<ClientOutput>,
    ) {
        let ensured = history.knows(&object);
        if !ensured {
            return self.ask(now, history, (object, Action::Ensure), true, out);
        }
        match self.random.range(0, 10) {
            0..4 if self.cookies.len() < 3 => {
                let timeout_s = self.random.range(4, 15);
                let watcher = (object.clone(), timeout_s * SECOND);
                let (cookie, effect) =
                    self.watches.register(object, 0, timeout_s as u32, watcher, millis(now));
                self.cookies.push(cookie);
                self.apply(now, history, out, |_, _| vec![effect]);
            }
            0..8 if self.notifying.len() < 4 => {
                self.last_number += 1;
                let number = self.last_number;
                self.notifying.insert(number, Notifying { object: object.clone(), asked: now });
                let payload = Bytes::copy_from_slice(&number.to_le_bytes());
                let timeout_s = self.random.range(2, 7) as u32;
                let op = Op::Notify { timeout_s, payload };
                self.submit(now, (object, vec![op]), Token::Notify(number));
            }
            8 => {
                if let Some(cookie) = self.cookies.first().copied() {
                    self.end_watch(now, history, cookie);
                }
            }
            _ => {}
        }
        self.step(now, history, out, |_, _| {});
    }

    /// Runs a step of the watch state machine.
    pub(super) fn apply(
        &mut self,
        now: Nanos,
        history: &mut History,
        out: &mut Vec<ClientOutput>,
        step: impl FnOnce(&mut Watches<(ObjectId, Nanos)>, u64) -> Vec<WatchEffect<(ObjectId, Nanos)>>,
    ) {
        let effects = step(&mut self.watches, millis(now));
        if let Err(broken) = self.carry_out(now, history, effects) {
            out.push(ClientOutput::Broken(broken));
        }
        self.step(now, history, out, |_, _| {});
    }

    /// Handles a notify. Most are answered.
    pub(super) fn on_notify(
        &mut self,
        now: Nanos,
        history: &mut History,
        (osd, conn): (OsdId, u64),
        message: &WatchNotify,
        out: &mut Vec<ClientOutput>,
    ) {
        let WatchNotify { cookie, notify_id, .. } = *message;
        let watcher = self.watches.watcher(cookie).cloned();
        let Some((object, _)) = watcher.filter(|_| self.connection(osd) == Some(conn)) else { return };
        if self.random.range(0, 8) > 0 {
            let payload = Bytes::copy_from_slice(
                &[message.payload.clone(), cookie.to_le_bytes().to_vec().into()].concat(),
            );
            history.watching.acked(notify_id, (self.objecter.client(), cookie), payload.clone());
            self.submit(now, (object, vec![Op::NotifyAck { notify_id, cookie, payload }]), Token::Silent);
        }
        self.step(now, history, out, |_, _| {});
    }

    /// Handles the lapse of a watch.
    pub(super) fn on_watch_lost(
        &mut self,
        now: Nanos,
        history: &mut History,
        (osd, conn): (OsdId, u64),
        message: WatchLost,
        out: &mut Vec<ClientOutput>,
    ) {
        if self.connection(osd) == Some(conn) {
            let lost =
                |watches: &mut Watches<_>, _| watches.on_lost(osd, message.cookie).into_iter().collect();
            self.apply(now, history, out, lost);
        }
    }
}
