//! The delivery window of one shard: which of its events may be sent, in which order, and what becomes of
//! them.
//!
//! It is a state machine in the memory of the shard's owner. Events are loaded in order; [`Window::next`]
//! hands out those that may be sent; results come back; [`Window::settlements`] says what is to be written
//! ([`crate::settle`]), [`Window::written`] that it was.
//!
//! Invariants:
//! - Of each key at most one event is in flight, and always the first one that is not delivered. So a
//!   consumer sees the first occurrences of a key's events in order, whatever other owners send: each of them
//!   sends a key's events in order, from the same log.
//! - An event that failed is parked before others pass it for good, with its attempts; later events of its
//!   key wait.
//! - An event that became a dead letter blocks its key until that is durable. Otherwise the next owner could
//!   deliver it after later ones.
//! - Events of the log are loaded less than [`WindowLimits::window`] beyond the cursor, so that no more than
//!   that are sent again by the next owner.

use crate::clock::age_ns;
use crate::name::KeyHash;
use crate::record::{DeadLetter, DeadReason, Event, Head, Parked, clip_detail};
use crate::retry::RetryPolicy;
use crate::settle::{Fate, MAX_SETTLED, MAX_SETTLED_BYTES, Place, Settlement};
use crate::shard::Progress;
use std::collections::{BTreeMap, BTreeSet};

/// The bounds of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowLimits {
    /// How far beyond the cursor events are loaded. At most [`MAX_WINDOW`].
    pub window: u64,
    /// Events in flight.
    pub in_flight: usize,
    /// Parked events. Beyond it an event that fails keeps its place in the log, and the shard may have to
    /// wait for it.
    pub parked: usize,
}

/// The widest window: the head's list of settled events stays below 16 KiB.
pub const MAX_WINDOW: u64 = 1024;

/// The times by which a window judges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// What [`crate::clock::SteadyClock::now_ns`] returned.
    pub steady_ns: u64,
    /// The monotonic clock.
    pub mono_ns: u64,
}

/// The state of older generations, as far as this shard's keys may be in them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OlderShards {
    /// For each older generation that is not drained: its number of shards, and what is known of them. A
    /// shard that is not known is busy.
    pub generations: Vec<(u32, BTreeMap<u32, Progress>)>,
}

/// Whether older generations hold an event back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hold {
    /// No.
    Free,
    /// As long as a parked event is not delivered.
    Parked,
    /// Until a shard is drained, which is under way.
    Busy,
}

impl OlderShards {
    /// Whether events of a key may be left in an older generation.
    pub fn hold(&self, key: KeyHash) -> Hold {
        let holds = self.generations.iter().map(|(shards, known)| match known.get(&key.shard(*shards)) {
            None | Some(Progress::Busy) => Hold::Busy,
            Some(progress) if progress.may_hold(key) => Hold::Parked,
            Some(_) => Hold::Free,
        });
        holds.max().unwrap_or(Hold::Free)
    }
}

/// An event that is to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sendable {
    /// Its sequence number.
    pub sequence: u64,
    /// The event.
    pub event: Event,
    /// Attempts that failed.
    pub attempts: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Status {
    Waiting,
    InFlight,
    Delivered,
    Dead(DeadReason),
}

#[derive(Clone, Debug)]
struct Slot {
    event: Event,
    place: Place,
    status: Status,
    attempts: u32,
    detail: String,
    /// When it may be tried again, by the monotonic clock.
    due_ns: u64,
    /// The same for the next owner, in nanoseconds since 1970.
    due_wall_ns: u64,
    known_since_ns: u64,
    /// Whether it is to be parked, or its parked record is older than what is known here.
    is_dirty: bool,
}

/// The delivery window of a shard.
#[derive(Clone, Debug)]
pub struct Window {
    limits: WindowLimits,
    policy: RetryPolicy,
    cursor: u64,
    slots: BTreeMap<u64, Slot>,
    /// Events of each key that are neither delivered nor durably dead, by sequence number.
    keys: BTreeMap<KeyHash, BTreeSet<u64>>,
    /// Events that may be sent now: the first ones of their keys.
    ready: BTreeSet<u64>,
    /// Events that may be sent later: when and which.
    timers: BTreeSet<(u64, u64)>,
    /// Events that older generations hold back, and how.
    held: BTreeMap<u64, Hold>,
    in_flight: usize,
    /// Events in flight that were dropped to make room, with their keys: until their pushes end, the next events of these keys
    /// are not sent, or they could arrive first.
    dropped: BTreeMap<u64, KeyHash>,
    parked: usize,
    /// Bytes of the events that are loaded.
    bytes: u64,
    /// The next event of the log to be loaded.
    load_from: u64,
}

impl Window {
    /// An empty window at a shard's head.
    pub fn new(limits: WindowLimits, policy: RetryPolicy, head: &Head) -> Window {
        let limits = WindowLimits { window: limits.window.clamp(1, MAX_WINDOW), ..limits };
        Window {
            limits,
            policy,
            cursor: head.cursor,
            slots: BTreeMap::new(),
            keys: BTreeMap::new(),
            ready: BTreeSet::new(),
            timers: BTreeSet::new(),
            held: BTreeMap::new(),
            in_flight: 0,
            dropped: BTreeMap::new(),
            parked: 0,
            bytes: 0,
            load_from: head.cursor,
        }
    }

    /// The topic's attributes changed.
    pub fn set_policy(&mut self, policy: RetryPolicy) {
        self.policy = policy;
    }

    /// Loads a parked event. All parked events are loaded before any of the log.
    pub fn load_parked(&mut self, sequence: u64, parked: Parked, wall_ns: u64, now: Times) {
        debug_assert!(self.load_from == self.cursor, "parked events come first");
        // No event waits for longer than the longest delay. If a clock was wrong it is tried now: owners that leave while it
        // waits would begin to wait again and again.
        let wait = parked.next_ns.saturating_sub(wall_ns);
        let wait = if wait > self.policy.longest_delay_ns() { 0 } else { wait };
        let slot = Slot {
            event: parked.event,
            place: Place::Parked,
            status: Status::Waiting,
            attempts: parked.attempts,
            detail: parked.detail,
            due_ns: if wait == 0 { 0 } else { now.mono_ns.saturating_add(wait) },
            due_wall_ns: parked.next_ns,
            known_since_ns: now.mono_ns,
            is_dirty: false,
        };
        self.parked += 1;
        self.insert(sequence, slot);
    }

    /// The next event of the log to be loaded and the end up to which there is room; `None` where there is no
    /// room.
    pub fn wants(&self) -> Option<(u64, u64)> {
        let end = self.cursor + self.limits.window;
        (self.load_from < end).then_some((self.load_from, end))
    }

    /// Whether the next events of the log are loaded: those behind the cursor.
    pub fn is_front_loaded(&self) -> bool {
        self.load_from > self.cursor
    }

    /// Loads events of the log that are not settled, in order; `end` is the sequence number behind the part
    /// of the log that was read. Returns where the next load begins: before `end` if there was no room.
    pub fn load(&mut self, events: impl IntoIterator<Item = (u64, Event)>, end: u64, now: Times) -> u64 {
        let limit = self.cursor + self.limits.window;
        for (sequence, event) in events {
            if sequence < self.load_from || self.slots.contains_key(&sequence) {
                continue;
            }
            if sequence >= limit {
                break;
            }
            let slot = Slot {
                event,
                place: Place::Log,
                status: Status::Waiting,
                attempts: 0,
                detail: String::new(),
                due_ns: 0,
                due_wall_ns: 0,
                known_since_ns: now.mono_ns,
                is_dirty: false,
            };
            self.insert(sequence, slot);
        }
        self.load_from = self.load_from.max(end.min(limit));
        self.load_from
    }

    fn insert(&mut self, sequence: u64, slot: Slot) {
        let key = slot.event.key;
        self.bytes += slot.event.size_bytes();
        self.slots.insert(sequence, slot);
        let order = self.keys.entry(key).or_default();
        order.insert(sequence);
        let mut first = order.iter();
        if first.next() == Some(&sequence) {
            let second = first.next().copied();
            second.into_iter().for_each(|second| self.unschedule(second));
            self.schedule(sequence);
        }
    }

    /// Takes back what [`Window::schedule`] did.
    fn unschedule(&mut self, sequence: u64) {
        let due_ns = self.slots.get(&sequence).map_or(0, |slot| slot.due_ns);
        self.timers.remove(&(due_ns, sequence));
        self.ready.remove(&sequence);
        self.held.remove(&sequence);
    }

    /// Makes the first event of a key ready, or has it wait for its time.
    fn schedule(&mut self, sequence: u64) {
        let Some(slot) = self.slots.get(&sequence) else { return };
        if slot.status != Status::Waiting {
            return;
        }
        if slot.due_ns == 0 {
            self.ready.insert(sequence);
        } else {
            self.timers.insert((slot.due_ns, sequence));
        }
    }

    /// Hands out up to `max` events to be sent, oldest first. They are in flight then.
    pub fn next(&mut self, now: Times, older: &OlderShards, max: usize) -> Vec<Sendable> {
        self.make_due_ready(now);
        let max = max.min(self.limits.in_flight.saturating_sub(self.in_flight));
        let mut sent = Vec::new();
        while sent.len() < max
            && let Some(sequence) = self.ready.pop_first()
        {
            sent.extend(self.take_off(sequence, older));
        }
        sent
    }

    /// Hands out one event that tries whether the endpoint is back. It is chosen by `random` among those that
    /// may be sent: an endpoint that fails because of one event must not look dead to all others.
    pub fn next_probe(&mut self, now: Times, older: &OlderShards, random: u32) -> Option<Sendable> {
        self.make_due_ready(now);
        while self.in_flight < self.limits.in_flight && !self.ready.is_empty() {
            let at = random as usize % self.ready.len();
            let sequence = self.ready.iter().nth(at).copied()?;
            self.ready.remove(&sequence);
            if let Some(sendable) = self.take_off(sequence, older) {
                return Some(sendable);
            }
        }
        None
    }

    fn make_due_ready(&mut self, now: Times) {
        while let Some(&(due_ns, sequence)) = self.timers.first()
            && due_ns <= now.mono_ns
        {
            self.timers.remove(&(due_ns, sequence));
            self.ready.insert(sequence);
        }
    }

    /// Marks an event that was ready as in flight, unless older generations hold it back.
    fn take_off(&mut self, sequence: u64, older: &OlderShards) -> Option<Sendable> {
        let slot = self.slots.get_mut(&sequence)?;
        let hold = older.hold(slot.event.key);
        if hold != Hold::Free {
            self.held.insert(sequence, hold);
            return None;
        }
        slot.status = Status::InFlight;
        self.in_flight += 1;
        Some(Sendable { sequence, event: slot.event.clone(), attempts: slot.attempts })
    }

    /// When [`Window::next`] may have events that it has not now, by the monotonic clock.
    pub fn next_due_ns(&self) -> Option<u64> {
        self.timers.first().map(|(due_ns, _)| *due_ns)
    }

    /// Older generations made progress: events that they held back are looked at again.
    pub fn older_changed(&mut self) {
        self.ready.extend(std::mem::take(&mut self.held).into_keys());
    }

    /// The endpoint acknowledged an event.
    pub fn delivered(&mut self, sequence: u64) {
        if let Some(slot) = self.landed(sequence) {
            slot.status = Status::Delivered;
            let key = slot.event.key;
            self.unblock(key, sequence);
        }
    }

    /// A push of an event failed, for whatever reason. `wall_ns` and `random` make the time of the next
    /// attempt.
    pub fn failed(&mut self, sequence: u64, detail: &str, wall_ns: u64, now: Times, random: u32) {
        let (policy, has_room) = (self.policy, self.parked < self.limits.parked);
        let Some(slot) = self.landed(sequence) else { return };
        slot.attempts = slot.attempts.saturating_add(1);
        slot.detail = clip_detail(detail);
        if policy.is_exhausted(slot.attempts) {
            slot.status = Status::Dead(DeadReason::Retries);
            return;
        }
        let delay = policy.delay_ns(slot.attempts, random);
        slot.status = Status::Waiting;
        slot.due_ns = now.mono_ns.saturating_add(delay).max(1);
        slot.due_wall_ns = wall_ns.saturating_add(delay);
        let is_new = slot.place == Place::Log && !slot.is_dirty;
        slot.is_dirty |= slot.place == Place::Parked || has_room;
        if is_new && slot.is_dirty {
            self.parked += 1;
        }
        self.schedule(sequence);
    }

    /// The endpoint could not be reached for an event, which says nothing about the event: it is tried again
    /// after a while and keeps its place in the log, as long as the window has room behind it. That it was tried
    /// is known to this owner only.
    pub fn unreachable(&mut self, sequence: u64, detail: &str, now: Times, random: u32) {
        let policy = self.policy;
        let Some(slot) = self.landed(sequence) else { return };
        slot.attempts = slot.attempts.saturating_add(1);
        slot.detail = clip_detail(detail);
        slot.status = Status::Waiting;
        slot.due_ns = now.mono_ns.saturating_add(policy.delay_ns(slot.attempts, random)).max(1);
        self.schedule(sequence);
    }

    /// A push was given up before anything was sent.
    pub fn not_sent(&mut self, sequence: u64) {
        if let Some(slot) = self.landed(sequence) {
            slot.status = Status::Waiting;
            self.schedule(sequence);
        }
    }

    /// An event that is not in flight any more; `None` where it was dropped meanwhile.
    fn landed(&mut self, sequence: u64) -> Option<&mut Slot> {
        if let Some(key) = self.dropped.remove(&sequence) {
            self.in_flight -= 1;
            self.unblock(key, sequence);
            return None;
        }
        let slot = self.slots.get_mut(&sequence).filter(|slot| slot.status == Status::InFlight)?;
        self.in_flight -= 1;
        Some(slot)
    }

    /// Finds events whose time to live is over, those in flight excepted; returns how many.
    pub fn expire(&mut self, now: Times) -> usize {
        let policy = self.policy;
        if policy.time_to_live_ns.is_none() {
            return 0;
        }
        let is_expired = |slot: &Slot| {
            let age = age_ns(slot.event.time_ns, now.steady_ns, slot.known_since_ns, now.mono_ns);
            slot.status == Status::Waiting && policy.is_expired(age)
        };
        let expired: Vec<u64> =
            self.slots.iter().filter(|(_, slot)| is_expired(slot)).map(|(sequence, _)| *sequence).collect();
        for &sequence in &expired {
            self.unschedule(sequence);
            if let Some(slot) = self.slots.get_mut(&sequence) {
                slot.status = Status::Dead(DeadReason::Expired);
            }
        }
        expired.len()
    }

    /// Removes an event from its key's order; the next one may be sent.
    fn unblock(&mut self, key: KeyHash, sequence: u64) {
        let Some(order) = self.keys.get_mut(&key) else { return };
        let was_first = order.first() == Some(&sequence);
        order.remove(&sequence);
        match order.first().copied() {
            None => drop(self.keys.remove(&key)),
            Some(next) if was_first => self.schedule(next),
            Some(_) => {}
        }
    }

    /// What is to be written now, oldest first. `wall_ns` is noted in dead letters. Nothing may be planned
    /// again before [`Window::written`] or [`Window::rebase`].
    pub fn settlements(&mut self, wall_ns: u64) -> Vec<Settlement> {
        self.park_what_blocks_the_window();
        let mut settlements = Vec::new();
        let mut bytes = 0;
        for (&sequence, slot) in &self.slots {
            let fate = match &slot.status {
                Status::Delivered => Fate::Delivered,
                Status::Dead(reason) => Fate::Dead(DeadLetter {
                    event: slot.event.clone(),
                    reason: *reason,
                    attempts: slot.attempts,
                    detail: slot.detail.clone(),
                    dead_ns: wall_ns,
                }),
                Status::Waiting | Status::InFlight if slot.is_dirty => Fate::Parked(Parked {
                    event: slot.event.clone(),
                    attempts: slot.attempts,
                    next_ns: slot.due_wall_ns,
                    detail: slot.detail.clone(),
                }),
                Status::Waiting | Status::InFlight => continue,
            };
            if fate != Fate::Delivered {
                bytes += slot.event.size_bytes();
            }
            if settlements.len() >= MAX_SETTLED || (bytes > MAX_SETTLED_BYTES && !settlements.is_empty()) {
                break;
            }
            settlements.push(Settlement {
                sequence,
                place: slot.place,
                bytes: slot.event.size_bytes(),
                fate,
            });
        }
        settlements
    }

    /// Where the window is full and nothing of it can be sent, parks events that wait for parked ones, so
    /// that other keys go on; and events that the endpoint did not answer, if it answered others.
    fn park_what_blocks_the_window(&mut self) {
        if !self.is_full() || !self.ready.is_empty() {
            return;
        }
        let is_parked = |slot: &Slot| slot.place == Place::Parked || slot.is_dirty;
        let is_left = |slot: &&Slot| {
            slot.place == Place::Log && matches!(slot.status, Status::Waiting | Status::InFlight)
        };
        // A dead endpoint leaves all of the window, and its events keep their places.
        let left = self.slots.values().filter(is_left).count() as u64;
        if left * 4 <= self.limits.window * 3 {
            let is_unanswered =
                |slot: &Slot| slot.status == Status::Waiting && slot.attempts > 0 && !is_parked(slot);
            let unanswered = self.slots.iter().filter(|(_, slot)| is_unanswered(slot));
            let unanswered: Vec<u64> = unanswered.map(|(sequence, _)| *sequence).collect();
            self.park(unanswered);
        }
        let waits_for_parked = |(sequence, slot): &(&u64, &Slot)| {
            let first = self.keys.get(&slot.event.key).and_then(BTreeSet::first);
            let first = first.filter(|first| first < sequence).and_then(|first| self.slots.get(first));
            slot.status == Status::Waiting
                && !is_parked(slot)
                && (first.is_some_and(is_parked) || self.held.get(*sequence) == Some(&Hold::Parked))
        };
        let waiting = self.slots.iter().filter(waits_for_parked).map(|(sequence, _)| *sequence);
        let waiting: Vec<u64> = waiting.collect();
        self.park(waiting);
    }

    /// Has events of the log parked with the next settling, as many as there is room for.
    fn park(&mut self, sequences: Vec<u64>) {
        let room = self.limits.parked.saturating_sub(self.parked);
        for sequence in sequences.into_iter().take(room) {
            if let Some(slot) = self.slots.get_mut(&sequence) {
                slot.is_dirty = true;
                self.parked += 1;
            }
        }
    }

    fn is_full(&self) -> bool {
        self.load_from >= self.cursor + self.limits.window
    }

    /// These settlements are durable; `head` is the shard's head after them.
    pub fn written(&mut self, settlements: &[Settlement], head: &Head) {
        for settlement in settlements {
            let sequence = settlement.sequence;
            let Some(slot) = self.slots.get_mut(&sequence) else { continue };
            let key = slot.event.key;
            match &settlement.fate {
                Fate::Parked(parked) => {
                    slot.place = Place::Parked;
                    slot.is_dirty &= parked.attempts != slot.attempts;
                }
                Fate::Delivered => self.forget(sequence),
                Fate::Dead(_) => {
                    self.forget(sequence);
                    self.unblock(key, sequence);
                }
            }
        }
        self.cursor = head.cursor;
    }

    fn forget(&mut self, sequence: u64) {
        let Some(slot) = self.slots.remove(&sequence) else { return };
        self.bytes -= slot.event.size_bytes();
        if slot.place == Place::Parked || slot.is_dirty {
            self.parked -= 1;
        }
    }

    /// The head was changed by somebody else, who dropped events: forgets those.
    pub fn rebase(&mut self, head: &Head) {
        let is_dropped =
            |(sequence, slot): &(&u64, &Slot)| slot.place == Place::Log && head.is_settled(**sequence);
        let dropped: Vec<u64> = self.slots.iter().filter(is_dropped).map(|(sequence, _)| *sequence).collect();
        for sequence in dropped {
            let Some(slot) = self.slots.get(&sequence) else { continue };
            let key = slot.event.key;
            if slot.status == Status::InFlight {
                self.dropped.insert(sequence, key);
                self.forget(sequence);
                continue;
            }
            self.unschedule(sequence);
            self.forget(sequence);
            self.unblock(key, sequence);
        }
        self.cursor = head.cursor;
        self.load_from = self.load_from.max(head.cursor);
    }

    /// Events in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Events that wait for others of their key, their time, or older generations, are in flight, or are to
    /// be written.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Bytes of the events that are loaded.
    pub fn size_bytes(&self) -> u64 {
        self.bytes
    }

    /// How long until the first of the events that are loaded expires; `None` where none does.
    pub fn next_expiry_ns(&self, now: Times) -> Option<u64> {
        let limit = self.policy.time_to_live_ns?;
        let waiting = self.slots.values().filter(|slot| slot.status == Status::Waiting);
        let age = |slot: &Slot| age_ns(slot.event.time_ns, now.steady_ns, slot.known_since_ns, now.mono_ns);
        waiting.map(|slot| limit.saturating_sub(age(slot))).min()
    }

    /// Whether [`Window::next`] has an event now, unless older generations hold it back.
    pub fn has_ready(&self, now: Times) -> bool {
        !self.ready.is_empty() || self.next_due_ns().is_some_and(|due_ns| due_ns <= now.mono_ns)
    }

    /// Whether nothing more can be loaded or sent because the endpoint did not answer the oldest event: settling
    /// may park that.
    pub fn is_stuck(&self, now: Times) -> bool {
        let is_unanswered = |slot: &Slot| slot.status == Status::Waiting && slot.attempts > 0;
        self.is_full() && !self.has_ready(now) && self.slots.get(&self.cursor).is_some_and(is_unanswered)
    }

    /// Whether older generations hold events back.
    pub fn is_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether there is something to be written: [`Window::settlements`] would not be empty.
    pub fn is_unsettled(&self) -> bool {
        let is_unsettled = |slot: &Slot| match slot.status {
            Status::Delivered | Status::Dead(_) => true,
            Status::Waiting | Status::InFlight => slot.is_dirty,
        };
        self.slots.values().any(is_unsettled)
    }

    /// Whether nothing is loaded.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Parked events, and those about to be parked.
    pub fn parked(&self) -> usize {
        self.parked
    }
}

#[cfg(test)]
mod tests;
