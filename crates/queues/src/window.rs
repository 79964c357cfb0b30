//! The delivery window of one shard: which of its events may be sent, in which order, and their outcomes.
//!
//! It is a state machine in the memory of the shard's owner. Events are loaded in order. [`Window::next`] returns events
//! that may be sent, and their results are reported back. [`Window::settlements`] returns the outcomes to be written
//! ([`crate::settle`]), and [`Window::settled`] is called when they are durable.
//!
//! Invariants:
//! - At most one event of each key is in flight, and it is always the first one that is not delivered. So a consumer sees
//!   the first occurrences of a key's events in order, whatever other owners send: each owner sends a key's events in
//!   order, from the same log.
//! - A failed event is parked, with its attempts, before other events pass it permanently; later events of its key wait.
//! - An event that became a dead letter blocks its key until this is durable. Otherwise the next owner could deliver it
//!   after later events.
//! - Events of the log are loaded less than [`WindowLimits::window`] beyond the cursor. So the next owner resends at most
//!   that many events.

use crate::clock::age_ns;
use crate::name::KeyHash;
use crate::record::{DeadLetter, DeadReason, Event, ParkedEvent, QueueHead, clip_detail};
use crate::retry::RetryPolicy;
use crate::settle::{EventOutcome, EventPlace, MAX_SETTLED, MAX_SETTLED_BYTES, Settlement};
use crate::shard::RemainingEvents;
use std::collections::{BTreeMap, BTreeSet};

/// The bounds of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowLimits {
    /// The number of events beyond the cursor that are loaded. At most [`MAX_WINDOW`].
    pub window: u64,
    /// The most events in flight.
    pub in_flight: usize,
    /// The most parked events. Beyond it, a failed event keeps its place in the log, and the shard may have to wait for it.
    pub parked: usize,
}

/// The largest window: it keeps the head's list of settled events below 16 KiB.
pub const MAX_WINDOW: u64 = 1024;

/// The current time on the clocks that a window uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowTime {
    /// The result of [`crate::clock::SteadyClock::now_ns`].
    pub steady_ns: u64,
    /// The monotonic clock.
    pub mono_ns: u64,
}

/// The progress of older generations, as far as they may have events of this shard's keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OlderGenerations {
    /// For each older generation that is not drained: its number of shards, and the known progress of shards. A shard whose
    /// progress is unknown is busy.
    pub generations: Vec<(u32, BTreeMap<u32, RemainingEvents>)>,
}

/// Whether older generations block an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OrderingHold {
    /// They do not.
    Free,
    /// Until a parked event is delivered.
    Parked,
    /// Until a shard is drained, which is in progress.
    Busy,
}

impl OlderGenerations {
    /// Whether an older generation may still have events of a key.
    pub fn hold(&self, key: KeyHash) -> OrderingHold {
        let holds = self.generations.iter().map(|(shards, known)| match known.get(&key.shard(*shards)) {
            None | Some(RemainingEvents::Any) => OrderingHold::Busy,
            Some(progress) if progress.may_have_events(key) => OrderingHold::Parked,
            Some(_) => OrderingHold::Free,
        });
        holds.max().unwrap_or(OrderingHold::Free)
    }
}

/// An event to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyEvent {
    /// Its sequence number.
    pub sequence: u64,
    /// The event.
    pub event: Event,
    /// The number of failed attempts.
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
    place: EventPlace,
    status: Status,
    attempts: u32,
    detail: String,
    /// When it may be retried, by the monotonic clock.
    due_ns: u64,
    /// The same time for the next owner, in nanoseconds since 1970.
    due_wall_ns: u64,
    known_since_ns: u64,
    /// Whether it must be parked, or its parked record is outdated.
    is_dirty: bool,
}

/// The delivery window of a shard.
#[derive(Clone, Debug)]
pub struct Window {
    limits: WindowLimits,
    policy: RetryPolicy,
    cursor: u64,
    slots: BTreeMap<u64, Slot>,
    /// Events of each key that are neither delivered nor durably dead letters, by sequence number.
    keys: BTreeMap<KeyHash, BTreeSet<u64>>,
    /// Events that may be sent now: the first events of their keys.
    ready: BTreeSet<u64>,
    /// Events that may be sent later, by time and sequence number.
    timers: BTreeSet<(u64, u64)>,
    /// Events that older generations block, and why.
    held: BTreeMap<u64, OrderingHold>,
    in_flight: usize,
    /// Events in flight that were dropped to make room, with their keys. Until their pushes end, the next events of these
    /// keys are not sent, because they could arrive first.
    dropped: BTreeMap<u64, KeyHash>,
    parked: usize,
    /// The bytes of the loaded events.
    bytes: u64,
    /// The next event of the log to load.
    load_from: u64,
}

impl Window {
    /// Creates an empty window at a shard's head.
    pub fn new(limits: WindowLimits, policy: RetryPolicy, head: &QueueHead) -> Window {
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

    /// Loads a parked event. All parked events must be loaded before any event of the log.
    pub fn load_parked(&mut self, sequence: u64, parked: ParkedEvent, wall_ns: u64, now: WindowTime) {
        debug_assert!(self.load_from == self.cursor, "parked events come first");
        // An event never waits longer than the longest delay. If it would, a clock was wrong and it is retried now.
        // Otherwise successive owners could each restart the wait.
        let wait = parked.next_ns.saturating_sub(wall_ns);
        let wait = if wait > self.policy.longest_delay_ns() { 0 } else { wait };
        let slot = Slot {
            event: parked.event,
            place: EventPlace::Parked,
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

    /// The next event of the log to load, and the end of the window; `None` if there is no room.
    pub fn load_range(&self) -> Option<(u64, u64)> {
        let end = self.cursor + self.limits.window;
        (self.load_from < end).then_some((self.load_from, end))
    }

    /// Whether the next events of the log after the cursor are loaded.
    pub fn has_loaded_next(&self) -> bool {
        self.load_from > self.cursor
    }

    /// Loads events of the log that are not settled, in order. `end` is the sequence number after the part of the log that
    /// was read. Returns where the next load starts: before `end` if there was not enough room.
    pub fn load(&mut self, events: impl IntoIterator<Item = (u64, Event)>, end: u64, now: WindowTime) -> u64 {
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
                place: EventPlace::Log,
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

    /// Undoes [`Window::schedule`].
    fn unschedule(&mut self, sequence: u64) {
        let due_ns = self.slots.get(&sequence).map_or(0, |slot| slot.due_ns);
        self.timers.remove(&(due_ns, sequence));
        self.ready.remove(&sequence);
        self.held.remove(&sequence);
    }

    /// Makes the first event of a key ready, or starts its timer.
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

    /// Returns up to `max` events to be sent, oldest first, and marks them as in flight.
    pub fn next(&mut self, now: WindowTime, older: &OlderGenerations, max: usize) -> Vec<ReadyEvent> {
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

    /// Returns one event as a probe of the endpoint. `random` selects it among the events that may be sent, so that an
    /// endpoint that fails because of one event does not look dead for all others.
    pub fn next_probe(
        &mut self,
        now: WindowTime,
        older: &OlderGenerations,
        random: u32,
    ) -> Option<ReadyEvent> {
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

    fn make_due_ready(&mut self, now: WindowTime) {
        while let Some(&(due_ns, sequence)) = self.timers.first()
            && due_ns <= now.mono_ns
        {
            self.timers.remove(&(due_ns, sequence));
            self.ready.insert(sequence);
        }
    }

    /// Marks a ready event as in flight, unless older generations block it.
    fn take_off(&mut self, sequence: u64, older: &OlderGenerations) -> Option<ReadyEvent> {
        let slot = self.slots.get_mut(&sequence)?;
        let hold = older.hold(slot.event.key);
        if hold != OrderingHold::Free {
            self.held.insert(sequence, hold);
            return None;
        }
        slot.status = Status::InFlight;
        self.in_flight += 1;
        Some(ReadyEvent { sequence, event: slot.event.clone(), attempts: slot.attempts })
    }

    /// When [`Window::next`] may have more events, by the monotonic clock.
    pub fn next_due_ns(&self) -> Option<u64> {
        self.timers.first().map(|(due_ns, _)| *due_ns)
    }

    /// Older generations made progress: the events that they blocked are checked again.
    pub fn recheck_held(&mut self) {
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

    /// A push of an event failed for any reason. `wall_ns` and `random` determine the time of the next attempt.
    pub fn failed(&mut self, sequence: u64, detail: &str, wall_ns: u64, now: WindowTime, random: u32) {
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
        let is_new = slot.place == EventPlace::Log && !slot.is_dirty;
        slot.is_dirty |= slot.place == EventPlace::Parked || has_room;
        if is_new && slot.is_dirty {
            self.parked += 1;
        }
        self.schedule(sequence);
    }

    /// The endpoint could not be reached, which says nothing about the event. The event is retried after a delay and keeps
    /// its place in the log, as long as the window has room beyond it. Only this owner knows of the attempt.
    pub fn unreachable(&mut self, sequence: u64, detail: &str, now: WindowTime, random: u32) {
        let policy = self.policy;
        let Some(slot) = self.landed(sequence) else { return };
        slot.attempts = slot.attempts.saturating_add(1);
        slot.detail = clip_detail(detail);
        slot.status = Status::Waiting;
        slot.due_ns = now.mono_ns.saturating_add(policy.delay_ns(slot.attempts, random)).max(1);
        self.schedule(sequence);
    }

    /// A push was abandoned before anything was sent.
    pub fn not_sent(&mut self, sequence: u64) {
        if let Some(slot) = self.landed(sequence) {
            slot.status = Status::Waiting;
            self.schedule(sequence);
        }
    }

    /// Takes an event out of flight; `None` if it was dropped in the meantime.
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

    /// Marks events whose time to live has ended as dead letters, except those in flight. Returns their number.
    pub fn expire(&mut self, now: WindowTime) -> usize {
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

    /// Removes an event from its key's order, so that the next one may be sent.
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

    /// The outcomes to be written now, oldest first. `wall_ns` is recorded in dead letters. Must not be called again before
    /// [`Window::settled`] or [`Window::skip_dropped`].
    pub fn settlements(&mut self, wall_ns: u64) -> Vec<Settlement> {
        self.park_what_blocks_the_window();
        let mut settlements = Vec::new();
        let mut bytes = 0;
        for (&sequence, slot) in &self.slots {
            let fate = match &slot.status {
                Status::Delivered => EventOutcome::Delivered,
                Status::Dead(reason) => EventOutcome::Dead(DeadLetter {
                    event: slot.event.clone(),
                    reason: *reason,
                    attempts: slot.attempts,
                    detail: slot.detail.clone(),
                    dead_ns: wall_ns,
                }),
                Status::Waiting | Status::InFlight if slot.is_dirty => EventOutcome::Parked(ParkedEvent {
                    event: slot.event.clone(),
                    attempts: slot.attempts,
                    next_ns: slot.due_wall_ns,
                    detail: slot.detail.clone(),
                }),
                Status::Waiting | Status::InFlight => continue,
            };
            if fate != EventOutcome::Delivered {
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

    /// If the window is full and none of its events can be sent, parks events that wait for parked ones, so that other keys
    /// can continue. It also parks events that the endpoint did not answer, if it answered others.
    fn park_what_blocks_the_window(&mut self) {
        if !self.is_full() || !self.ready.is_empty() {
            return;
        }
        let is_parked = |slot: &Slot| slot.place == EventPlace::Parked || slot.is_dirty;
        let is_left = |slot: &&Slot| {
            slot.place == EventPlace::Log && matches!(slot.status, Status::Waiting | Status::InFlight)
        };
        // If the endpoint is down, almost the whole window is left, and its events keep their places.
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
                && (first.is_some_and(is_parked) || self.held.get(*sequence) == Some(&OrderingHold::Parked))
        };
        let waiting = self.slots.iter().filter(waits_for_parked).map(|(sequence, _)| *sequence);
        let waiting: Vec<u64> = waiting.collect();
        self.park(waiting);
    }

    /// Lets the next settling park events of the log, as many as there is room for.
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

    /// The outcomes `settlements` are durable; `head` is the shard's head after them.
    pub fn settled(&mut self, settlements: &[Settlement], head: &QueueHead) {
        for settlement in settlements {
            let sequence = settlement.sequence;
            let Some(slot) = self.slots.get_mut(&sequence) else { continue };
            let key = slot.event.key;
            match &settlement.fate {
                EventOutcome::Parked(parked) => {
                    slot.place = EventPlace::Parked;
                    slot.is_dirty &= parked.attempts != slot.attempts;
                }
                EventOutcome::Delivered => self.forget(sequence),
                EventOutcome::Dead(_) => {
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
        if slot.place == EventPlace::Parked || slot.is_dirty {
            self.parked -= 1;
        }
    }

    /// Another gateway changed the head and dropped events: forgets these events.
    pub fn skip_dropped(&mut self, head: &QueueHead) {
        let is_dropped =
            |(sequence, slot): &(&u64, &Slot)| slot.place == EventPlace::Log && head.is_settled(**sequence);
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

    /// The number of events in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// The number of loaded events: they wait for other events of their key, for their time, or for older generations, are
    /// in flight, or have an outcome to be written.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// The bytes of the loaded events.
    pub fn size_bytes(&self) -> u64 {
        self.bytes
    }

    /// The time until the first of the loaded events expires; `None` if none does.
    pub fn time_to_expiry_ns(&self, now: WindowTime) -> Option<u64> {
        let limit = self.policy.time_to_live_ns?;
        let waiting = self.slots.values().filter(|slot| slot.status == Status::Waiting);
        let age = |slot: &Slot| age_ns(slot.event.time_ns, now.steady_ns, slot.known_since_ns, now.mono_ns);
        waiting.map(|slot| limit.saturating_sub(age(slot))).min()
    }

    /// Whether [`Window::next`] has an event now, unless older generations block it.
    pub fn has_ready(&self, now: WindowTime) -> bool {
        !self.ready.is_empty() || self.next_due_ns().is_some_and(|due_ns| due_ns <= now.mono_ns)
    }

    /// Whether nothing more can be loaded or sent because the endpoint did not answer the oldest event. Settling may park
    /// that event.
    pub fn is_stuck(&self, now: WindowTime) -> bool {
        let is_unanswered = |slot: &Slot| slot.status == Status::Waiting && slot.attempts > 0;
        self.is_full() && !self.has_ready(now) && self.slots.get(&self.cursor).is_some_and(is_unanswered)
    }

    /// Whether older generations block events.
    pub fn has_held_events(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether there are outcomes to be written: [`Window::settlements`] would not be empty.
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

    /// The number of parked events, including those about to be parked.
    pub fn parked(&self) -> usize {
        self.parked
    }
}

#[cfg(test)]
mod tests;
