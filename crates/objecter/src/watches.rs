//! The watches of a session (Ceph's linger operations): registered, kept alive, taken up again when the object's primary
//! or the connection to it is another one.
//!
//! The owner submits the operations that [`Effect::Send`] names in the order in which they come, and reports the outcome of
//! each to [`Watches::on_step`] in the order in which answers arrive.

use crate::Answer;
use crate::target::{Target, primary_of};
use nacre_engine::{Error, Result};
use nacre_types::errno::Errno;
use nacre_types::op::Op;
use nacre_types::osdmap::OsdMap;
use nacre_types::{ObjectId, OsdId};
use std::collections::BTreeMap;

/// The longest time between two pings of a watch, in milliseconds (Ceph's `objecter_tick_interval`, by default).
const LONGEST_PING_MS: u64 = 5_000;

/// How far a watch is.
#[derive(Debug)]
enum Phase {
    /// A registration or reconnection is in flight.
    Connecting,
    /// Registered at this primary.
    Connected(Target),
    /// Over, and why.
    Lost(Error),
}

/// An operation of a watch's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The watch is registered.
    Register,
    /// It is taken up again, at another primary or on another connection.
    Reconnect,
    /// It is kept alive.
    Ping,
}

/// A try of a step: comes back with its outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The watch.
    pub cookie: u64,
    /// What was tried.
    pub step: Step,
    /// The watch's round in which it was sent.
    round: u64,
    /// When, on the owner's clock in milliseconds.
    pub sent_ms: u64,
}

/// What the owner has to do.
#[derive(Debug)]
pub enum Effect<W> {
    /// Submit an operation, with the deadline that the owner chooses; its outcome goes to [`Watches::on_step`].
    Send {
        /// Names it.
        attempt: Attempt,
        /// The watched object.
        object: ObjectId,
        /// Bits of [`nacre_types::op::request_flag`].
        flags: u32,
        /// What it does.
        op: Op,
    },
    /// Tell the watcher that its watch is lost. Comes once for each watch.
    Lost {
        /// The watch, which stays until it is removed.
        cookie: u64,
        /// Who watches.
        watcher: W,
        /// Why.
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
    /// Rises with every disconnect: outcomes of earlier rounds are ignored.
    round: u64,
    /// When the last ping that was answered was sent, or the registration.
    valid_ms: u64,
    next_ping_ms: u64,
    pinging: bool,
}

impl<W: Clone> Watch<W> {
    /// The watch is to be taken up again. Answers to what was sent before do not count, and a ping that is still in flight
    /// must not keep later ones from being sent.
    fn disconnect(&mut self) {
        self.phase = Phase::Connecting;
        self.round += 1;
        self.pinging = false;
    }

    fn send(&self, cookie: u64, step: Step, now_ms: u64, op: Op) -> Effect<W> {
        let attempt = Attempt { cookie, step, round: self.round, sent_ms: now_ms };
        Effect::Send { attempt, object: self.object.clone(), flags: self.flags, op }
    }

    fn reconnect(&self, cookie: u64, now_ms: u64) -> Effect<W> {
        self.send(cookie, Step::Reconnect, now_ms, Op::WatchReconnect { cookie })
    }

    fn lose(&mut self, cookie: u64, error: Error) -> Option<Effect<W>> {
        if matches!(self.phase, Phase::Lost(_)) {
            return None;
        }
        self.phase = Phase::Lost(error.clone());
        Some(Effect::Lost { cookie, watcher: self.watcher.clone(), error })
    }

    /// Takes in the outcome of a step of the current round. Returns whether the watch is to be taken up again.
    fn on_outcome(&mut self, attempt: Attempt, outcome: &Result<Target>) -> bool {
        if attempt.step == Step::Ping {
            self.pinging = false;
        }
        match outcome {
            Ok(target) => {
                self.valid_ms = attempt.sent_ms;
                if attempt.step != Step::Ping {
                    self.next_ping_ms = attempt.sent_ms + self.ping_ms;
                    self.phase = Phase::Connected(*target);
                }
            }
            // The OSD knows the watch, but not by this connection.
            Err(Error::Refused(Errno::ETIMEDOUT)) if attempt.step == Step::Ping => {
                self.disconnect();
                return true;
            }
            Err(_) => {}
        }
        false
    }

    fn has_moved(&self, map: &OsdMap, target: Target) -> bool {
        let now = primary_of(map, self.object.pool(), self.flags, self.object.hash());
        // Without a primary there is nowhere to go; the next map that has one shows that it is another interval.
        now.is_some_and(|now| now != target)
    }
}

/// The watches of a session by cookie; `W` is what the owner knows a watcher by.
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
    /// Registers a watch that lapses after `timeout_s` seconds of silence (0 for the OSD's default). Returns its cookie and
    /// what is to be sent.
    pub fn register(
        &mut self,
        object: ObjectId,
        flags: u32,
        timeout_s: u32,
        watcher: W,
        now_ms: u64,
    ) -> (u64, Effect<W>) {
        // Three pings may be lost before the watch is; a timeout that is not known is no shorter than Ceph's.
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
        let send = watch.send(cookie, Step::Register, now_ms, Op::Watch { cookie, timeout_s });
        self.watches.insert(cookie, watch);
        (cookie, send)
    }

    /// Forgets a watch; returns the object and the flags for the operation that ends it.
    pub fn remove(&mut self, cookie: u64) -> Option<(ObjectId, u32)> {
        self.watches.remove(&cookie).map(|watch| (watch.object, watch.flags))
    }

    /// Forgets all of them.
    pub fn clear(&mut self) {
        self.watches.clear();
    }

    /// Who watches by this cookie.
    pub fn watcher(&self, cookie: u64) -> Option<&W> {
        self.watches.get(&cookie).map(|watch| &watch.watcher)
    }

    /// Milliseconds since the last confirmed sign that the watch stands. Fails with ENOTCONN where there is none, and with
    /// the reason where it is lost.
    pub fn age_ms(&self, cookie: u64, now_ms: u64) -> Result<u64> {
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

    /// A step has its outcome; `map` is the newest one. A watch whose registration fails is removed: the owner tells the watcher
    /// itself, and no [`Effect::Lost`] follows.
    pub fn on_step(
        &mut self,
        attempt: Attempt,
        outcome: &Result<Answer>,
        map: Option<&OsdMap>,
        now_ms: u64,
    ) -> Vec<Effect<W>> {
        let Attempt { cookie, step, round, .. } = attempt;
        let outcome = match outcome {
            Ok(answer) => match Errno::from_result(answer.reply.result) {
                Ok(_) => Ok(answer.target),
                Err(errno) => Err(errno.into()),
            },
            Err(error) => Err(error.clone()),
        };
        let is_current = |w: &&mut Watch<W>| w.round == round && !matches!(w.phase, Phase::Lost(_));
        let Some(watch) = self.watches.get_mut(&cookie).filter(is_current) else {
            // A later round decides what becomes of the watch, or it is over.
            if step == Step::Register && outcome.is_err() {
                self.watches.remove(&cookie);
            }
            return Vec::new();
        };
        if watch.on_outcome(attempt, &outcome) {
            return vec![watch.reconnect(cookie, now_ms)];
        }
        let effect = match outcome {
            // A map may have come while the answer was on its way.
            Ok(target) if step != Step::Ping && map.is_some_and(|map| watch.has_moved(map, target)) => {
                watch.disconnect();
                Some(watch.reconnect(cookie, now_ms))
            }
            Ok(_) => None,
            Err(_) if step == Step::Register => {
                self.watches.remove(&cookie);
                None
            }
            Err(Error::TimedOut(_)) if step == Step::Reconnect => Some(watch.reconnect(cookie, now_ms)),
            Err(error @ (Error::Refused(_) | Error::NoSuchPool(_) | Error::Blocklisted)) => {
                // As Ceph has it, a watch whose object is gone is lost like any other.
                let error = if error.errno() == Errno::ENOENT { Errno::ENOTCONN.into() } else { error };
                watch.lose(cookie, error)
            }
            Err(_) => None,
        };
        effect.into_iter().collect()
    }

    /// The map is another one: watches go where their objects' primaries are. To be told after the objecter.
    pub fn on_map(&mut self, map: &OsdMap, now_ms: u64) -> Vec<Effect<W>> {
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

    /// The connection to an OSD was lost. To be told after the objecter.
    pub fn on_reset(&mut self, osd: OsdId, now_ms: u64) -> Vec<Effect<W>> {
        let mut effects = Vec::new();
        for (cookie, watch) in &mut self.watches {
            if matches!(watch.phase, Phase::Connected(target) if target.osd == osd) {
                watch.disconnect();
                effects.push(watch.reconnect(*cookie, now_ms));
            }
        }
        effects
    }

    /// Pings that are due; where `silent`, they are left out.
    pub fn on_tick(&mut self, now_ms: u64, silent: bool) -> Vec<Effect<W>> {
        let mut effects = Vec::new();
        for (cookie, watch) in &mut self.watches {
            let connected = matches!(watch.phase, Phase::Connected(_));
            if connected && !watch.pinging && watch.next_ping_ms <= now_ms {
                watch.next_ping_ms = now_ms + watch.ping_ms;
                if !silent {
                    watch.pinging = true;
                    effects.push(watch.send(*cookie, Step::Ping, now_ms, Op::WatchPing { cookie: *cookie }));
                }
            }
        }
        effects
    }

    /// `osd` tells that a watch has lapsed.
    ///
    /// That counts only where the watch is registered: a primary that has not heard of a change of the overlay misses the signs of
    /// life of watches that have moved to the other pool. What becomes of a watch that is being taken up again is told by the answer.
    pub fn on_lost(&mut self, osd: OsdId, cookie: u64) -> Option<Effect<W>> {
        let watch = self.watches.get_mut(&cookie)?;
        let is_there = matches!(watch.phase, Phase::Connected(target) if target.osd == osd);
        if is_there { watch.lose(cookie, Errno::ENOTCONN.into()) } else { None }
    }

    /// The session is another one, or shut out: none of its watches stand.
    pub fn lose_all(&mut self, error: &Error) -> Vec<Effect<W>> {
        self.watches.iter_mut().filter_map(|(cookie, watch)| watch.lose(*cookie, error.clone())).collect()
    }
}
