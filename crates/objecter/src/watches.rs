//! The watches of a session (Ceph's linger operations): they are registered, kept alive, and reconnected when the object's primary or the
//! connection to it changes.
//!
//! The owner submits the operations of [`WatchEffect::Send`] in order, and reports their outcomes to [`Watches::on_step`] in the order in which
//! the answers arrive.

use crate::Answer;
use crate::target::{Target, primary_of};
use nacre_engine::{Error, Result};
use nacre_types::errno::Errno;
use nacre_types::op::Op;
use nacre_types::osdmap::OsdMap;
use nacre_types::{ObjectId, OsdId};
use std::collections::BTreeMap;

/// The maximum time between two pings of a watch, in milliseconds (the default of Ceph's `objecter_tick_interval`).
const LONGEST_PING_MS: u64 = 5_000;

/// State of a watch.
#[derive(Debug)]
enum Phase {
    /// A registration or reconnection is in flight.
    Connecting,
    /// Registered at this primary.
    Connected(Target),
    /// Lost, with the reason.
    Lost(Error),
}

/// An operation of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchStep {
    /// Registers the watch.
    Register,
    /// Reconnects it, at another primary or on another connection.
    Reconnect,
    /// Keeps it alive.
    Ping,
}

/// An attempt of a step. The owner returns it with the outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchAttempt {
    /// The watch.
    pub cookie: u64,
    /// The step.
    pub step: WatchStep,
    /// The watch's round in which it was sent.
    round: u64,
    /// When it was sent, on the owner's clock in milliseconds.
    pub sent_ms: u64,
}

/// An action that the owner must take.
#[derive(Debug)]
pub enum WatchEffect<W> {
    /// Submit an operation, with a deadline that the owner chooses, and pass its outcome to [`Watches::on_step`].
    Send {
        /// Identifies the attempt.
        attempt: WatchAttempt,
        /// The watched object.
        object: ObjectId,
        /// Bits of [`nacre_types::op::request_flag`].
        flags: u32,
        /// The operation.
        op: Op,
    },
    /// Notify the watcher that its watch is lost. Occurs once for each watch.
    Lost {
        /// The watch, which stays until it is removed.
        cookie: u64,
        /// The watcher.
        watcher: W,
        /// The reason.
        error: Error,
    },
}

#[derive(Debug)]
struct Watch<W> {
    object: ObjectId,
    flags: u32,
    ping_ms: u64,
    watcher: W,
    phase: Phase,
    /// Increases with every disconnect: outcomes of earlier rounds are ignored.
    round: u64,
    /// When the last answered ping, or the registration, was sent.
    valid_ms: u64,
    next_ping_ms: u64,
    pinging: bool,
}

impl<W: Clone> Watch<W> {
    /// Prepares a reconnect. Answers to earlier operations no longer count, and a ping in flight must not prevent later ones.
    fn disconnect(&mut self) {
        self.phase = Phase::Connecting;
        self.round += 1;
        self.pinging = false;
    }

    fn send(&self, cookie: u64, step: WatchStep, now_ms: u64, op: Op) -> WatchEffect<W> {
        let attempt = WatchAttempt { cookie, step, round: self.round, sent_ms: now_ms };
        WatchEffect::Send { attempt, object: self.object.clone(), flags: self.flags, op }
    }

    fn reconnect(&self, cookie: u64, now_ms: u64) -> WatchEffect<W> {
        self.send(cookie, WatchStep::Reconnect, now_ms, Op::WatchReconnect { cookie })
    }

    fn lose(&mut self, cookie: u64, error: Error) -> Option<WatchEffect<W>> {
        if matches!(self.phase, Phase::Lost(_)) {
            return None;
        }
        self.phase = Phase::Lost(error.clone());
        Some(WatchEffect::Lost { cookie, watcher: self.watcher.clone(), error })
    }

    /// Handles the outcome of a step of the current round. Returns whether the watch must be reconnected.
    fn on_outcome(&mut self, attempt: WatchAttempt, outcome: &Result<Target>) -> bool {
        if attempt.step == WatchStep::Ping {
            self.pinging = false;
        }
        match outcome {
            Ok(target) => {
                self.valid_ms = attempt.sent_ms;
                if attempt.step != WatchStep::Ping {
                    self.next_ping_ms = attempt.sent_ms + self.ping_ms;
                    self.phase = Phase::Connected(*target);
                }
            }
            // The OSD has the watch, but not on this connection.
            Err(Error::Refused(Errno::ETIMEDOUT)) if attempt.step == WatchStep::Ping => {
                self.disconnect();
                return true;
            }
            Err(_) => {}
        }
        false
    }

    fn has_moved(&self, map: &OsdMap, target: Target) -> bool {
        let now = primary_of(map, self.object.pool(), self.flags, self.object.hash());
        // Without a primary there is no target; the next map that has one shows another interval.
        now.is_some_and(|now| now != target)
    }
}

/// The watches of a session by cookie. `W` is the owner's handle on a watcher.
#[derive(Debug)]
pub struct Watches<W> {
    last_cookie: u64,
    watches: BTreeMap<u64, Watch<W>>,
}

impl<W> Default for Watches<W> {
    fn default() -> Self {
        Watches { last_cookie: 0, watches: BTreeMap::new() }
    }
}

impl<W: Clone> Watches<W> {
    /// Registers a watch that times out after `timeout_s` seconds without a ping (0 for the OSD's default). Returns its cookie and the
    /// operation to send.
    pub fn register(
        &mut self,
        object: ObjectId,
        flags: u32,
        timeout_s: u32,
        watcher: W,
        now_ms: u64,
    ) -> (u64, WatchEffect<W>) {
        // Three pings may be lost before the watch times out. An unknown timeout is at least Ceph's.
        let third = if timeout_s == 0 { LONGEST_PING_MS } else { u64::from(timeout_s) * 1000 / 3 };
        self.last_cookie += 1;
        let cookie = self.last_cookie;
        let watch = Watch {
            object,
            flags,
            ping_ms: third.clamp(100, LONGEST_PING_MS),
            watcher,
            phase: Phase::Connecting,
            round: 0,
            valid_ms: 0,
            next_ping_ms: 0,
            pinging: false,
        };
        let send = watch.send(cookie, WatchStep::Register, now_ms, Op::Watch { cookie, timeout_s });
        self.watches.insert(cookie, watch);
        (cookie, send)
    }

    /// Removes a watch. Returns the object and the flags for the operation that ends it.
    pub fn remove(&mut self, cookie: u64) -> Option<(ObjectId, u32)> {
        self.watches.remove(&cookie).map(|watch| (watch.object, watch.flags))
    }

    /// Removes all watches.
    pub fn clear(&mut self) {
        self.watches.clear();
    }

    /// The watcher with this cookie.
    pub fn watcher(&self, cookie: u64) -> Option<&W> {
        self.watches.get(&cookie).map(|watch| &watch.watcher)
    }

    /// Milliseconds since the watch was last confirmed. Fails with ENOTCONN if there is no such watch, and with the reason if it is lost.
    pub fn since_confirmed_ms(&self, cookie: u64, now_ms: u64) -> Result<u64> {
        let watch = self.watches.get(&cookie).ok_or(Error::from(Errno::ENOTCONN))?;
        match &watch.phase {
            Phase::Lost(error) => Err(error.clone()),
            _ => Ok(now_ms.saturating_sub(watch.valid_ms)),
        }
    }

    /// When the next ping is due.
    pub fn next_wake_ms(&self) -> Option<u64> {
        let due = |watch: &&Watch<W>| matches!(watch.phase, Phase::Connected(_)) && !watch.pinging;
        self.watches.values().filter(due).map(|watch| watch.next_ping_ms).min()
    }

    /// Handles the outcome of a step; `map` is the newest one. A watch whose registration fails is removed: the owner notifies the watcher
    /// itself, and no [`WatchEffect::Lost`] follows.
    pub fn on_step(
        &mut self,
        attempt: WatchAttempt,
        outcome: &Result<Answer>,
        map: Option<&OsdMap>,
        now_ms: u64,
    ) -> Vec<WatchEffect<W>> {
        let WatchAttempt { cookie, step, round, .. } = attempt;
        let outcome = match outcome {
            Ok(answer) => match Errno::from_result(answer.reply.result) {
                Ok(_) => Ok(answer.target),
                Err(errno) => Err(errno.into()),
            },
            Err(error) => Err(error.clone()),
        };
        let is_current = |w: &&mut Watch<W>| w.round == round && !matches!(w.phase, Phase::Lost(_));
        let Some(watch) = self.watches.get_mut(&cookie).filter(is_current) else {
            // Either a later round determines the state of the watch, or it has ended.
            if step == WatchStep::Register && outcome.is_err() {
                self.watches.remove(&cookie);
            }
            return Vec::new();
        };
        if watch.on_outcome(attempt, &outcome) {
            return vec![watch.reconnect(cookie, now_ms)];
        }
        let effect = match outcome {
            // A newer map may have arrived before the answer.
            Ok(target) if step != WatchStep::Ping && map.is_some_and(|map| watch.has_moved(map, target)) => {
                watch.disconnect();
                Some(watch.reconnect(cookie, now_ms))
            }
            Ok(_) => None,
            Err(_) if step == WatchStep::Register => {
                self.watches.remove(&cookie);
                None
            }
            Err(Error::TimedOut(_)) if step == WatchStep::Reconnect => Some(watch.reconnect(cookie, now_ms)),
            Err(error @ (Error::Refused(_) | Error::NoSuchPool(_) | Error::Blocklisted)) => {
                // As in Ceph, a watch whose object was removed is lost like any other.
                let error = if error.errno() == Errno::ENOENT { Errno::ENOTCONN.into() } else { error };
                watch.lose(cookie, error)
            }
            Err(_) => None,
        };
        effect.into_iter().collect()
    }

    /// Handles a new map: watches move to their objects' primaries. Must be called after the objecter's `on_map`.
    pub fn on_map(&mut self, map: &OsdMap, now_ms: u64) -> Vec<WatchEffect<W>> {
        let mut effects = Vec::new();
        for (cookie, watch) in &mut self.watches {
            if !map.pools.contains_key(&watch.object.pool()) {
                effects.extend(watch.lose(*cookie, Errno::ENOTCONN.into()));
            } else if let Phase::Connected(target) = watch.phase
                && watch.has_moved(map, target)
            {
                watch.disconnect();
                effects.push(watch.reconnect(*cookie, now_ms));
            }
        }
        effects
    }

    /// Handles the loss of the connection to an OSD. Must be called after the objecter's `on_reset`.
    pub fn on_reset(&mut self, osd: OsdId, now_ms: u64) -> Vec<WatchEffect<W>> {
        let mut effects = Vec::new();
        for (cookie, watch) in &mut self.watches {
            if matches!(watch.phase, Phase::Connected(target) if target.osd == osd) {
                watch.disconnect();
                effects.push(watch.reconnect(*cookie, now_ms));
            }
        }
        effects
    }

    /// Returns the pings that are due, or none if `silent`.
    pub fn on_tick(&mut self, now_ms: u64, silent: bool) -> Vec<WatchEffect<W>> {
        let mut effects = Vec::new();
        for (cookie, watch) in &mut self.watches {
            let connected = matches!(watch.phase, Phase::Connected(_));
            if connected && !watch.pinging && watch.next_ping_ms <= now_ms {
                watch.next_ping_ms = now_ms + watch.ping_ms;
                if !silent {
                    watch.pinging = true;
                    effects.push(watch.send(
                        *cookie,
                        WatchStep::Ping,
                        now_ms,
                        Op::WatchPing { cookie: *cookie },
                    ));
                }
            }
        }
        effects
    }

    /// Handles a message of `osd` that a watch has timed out.
    ///
    /// It counts only at the OSD where the watch is registered: a primary with an older map than a change of the overlay misses the pings
    /// of watches that have moved to the other pool. For a watch that is being reconnected the answer decides.
    pub fn on_lost(&mut self, osd: OsdId, cookie: u64) -> Option<WatchEffect<W>> {
        let watch = self.watches.get_mut(&cookie)?;
        let is_there = matches!(watch.phase, Phase::Connected(target) if target.osd == osd);
        if is_there { watch.lose(cookie, Errno::ENOTCONN.into()) } else { None }
    }

    /// Fails all watches, because the session has changed or is blocklisted.
    pub fn lose_all(&mut self, error: &Error) -> Vec<WatchEffect<W>> {
        self.watches.iter_mut().filter_map(|(cookie, watch)| watch.lose(*cookie, error.clone())).collect()
    }
}
