//! Virtual time: the queue of future events, and the clocks of machines.
//!
//! Events at the same time happen in the order in which they were scheduled, so a run is a function of its seed. The module
//! does not interpret events.

use crate::random::Random;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Nanoseconds of true (virtual) time since the run began.
pub type Nanos = u64;
/// One microsecond.
pub const MICRO: Nanos = 1_000;
/// One millisecond.
pub const MILLI: Nanos = 1_000_000;
/// One second.
pub const SECOND: Nanos = 1_000_000_000;

/// Future events, in order of time, then of scheduling.
#[derive(Debug)]
pub struct Schedule<E> {
    now: Nanos,
    scheduled: u64,
    queue: BinaryHeap<Entry<E>>,
}

#[derive(Debug)]
struct Entry<E> {
    at: Nanos,
    number: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}
impl<E> Eq for Entry<E> {}
impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<E> Ord for Entry<E> {
    /// Reversed: the heap's greatest entry is the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl<E> Default for Schedule<E> {
    fn default() -> Self {
        Schedule { now: 0, scheduled: 0, queue: BinaryHeap::new() }
    }
}

impl<E> Schedule<E> {
    /// True time.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Schedules `event` at `at`, or now if that has passed.
    pub fn at(&mut self, at: Nanos, event: E) {
        self.scheduled += 1;
        self.queue.push(Entry { at: at.max(self.now), number: self.scheduled, event });
    }

    /// Schedules `event` `wait` from now.
    pub fn after(&mut self, wait: Nanos, event: E) {
        self.at(self.now + wait, event);
    }

    /// Takes the next event and advances the time to it; time never goes back.
    pub fn pop(&mut self) -> Option<E> {
        let entry = self.queue.pop()?;
        self.now = self.now.max(entry.at);
        Some(entry.event)
    }

    /// When the next event is due.
    pub fn next_at(&self) -> Option<Nanos> {
        self.queue.peek().map(|entry| entry.at)
    }

    /// Advances the time; events that become due meanwhile are handled late.
    pub fn advance(&mut self, wait: Nanos) {
        self.now += wait;
    }

    /// Takes all pending events, in no particular order.
    pub fn drain(&mut self) -> Vec<E> {
        self.queue.drain().map(|entry| entry.event).collect()
    }

    /// The number of pending events.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether no events are pending.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

/// `span * number / of`, rounded towards zero.
fn of_ratio(span: Nanos, number: i64, of: i64) -> i64 {
    let narrow = i64::try_from(span).ok().and_then(|span| span.checked_mul(number));
    match narrow {
        Some(product) => product / of,
        None => (i128::from(span) * i128::from(number) / i128::from(of)) as i64,
    }
}

/// A machine's clock: an arbitrary offset and a constant drift, like CLOCK_BOOTTIME of different machines.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// The clock's reading at true time `since`.
    base: Nanos,
    since: Nanos,
    drift_ppm: i64,
}

impl Clock {
    /// A clock that at true time `now` shows up to a thousand seconds and drifts by at most `bound_ppm`.
    pub fn new(random: &mut Random, now: Nanos, bound_ppm: u64) -> Clock {
        let drift_ppm = random.range(0, 2 * bound_ppm + 1) as i64 - bound_ppm as i64;
        Clock { base: SECOND + random.range(0, 1000 * SECOND), since: now, drift_ppm }
    }

    /// A clock that shows true time plus one second.
    pub fn exact() -> Clock {
        Clock { base: SECOND, since: 0, drift_ppm: 0 }
    }

    /// The clock's reading at true time `now`.
    pub fn read(&self, now: Nanos) -> Nanos {
        let elapsed = now - self.since;
        let ahead = of_ratio(elapsed, self.drift_ppm, 1_000_000);
        (self.base + elapsed).wrapping_add_signed(ahead)
    }

    /// The first true time at which the clock shows `local` or more.
    pub fn when(&self, local: Nanos) -> Nanos {
        if local <= self.base {
            return self.since;
        }
        let wanted = local - self.base;
        let mut at = self.since + of_ratio(wanted, 1_000_000, 1_000_000 + self.drift_ppm) as Nanos;
        while self.read(at) < local {
            at += 1;
        }
        at
    }

    /// Continues from `now` with another drift; the readings are continuous.
    pub fn set_drift(&mut self, now: Nanos, drift_ppm: i64) {
        *self = Clock { base: self.read(now), since: now, drift_ppm };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Stream;

    #[test]
    fn events_come_by_time_then_by_scheduling() {
        let mut schedule = Schedule::default();
        schedule.at(20, "c");
        schedule.at(10, "a");
        schedule.at(10, "b");
        assert_eq!(schedule.pop(), Some("a"));
        schedule.at(5, "late counts as now");
        assert_eq!(schedule.pop(), Some("b"));
        assert_eq!(schedule.pop(), Some("late counts as now"));
        assert_eq!((schedule.pop(), schedule.now()), (Some("c"), 20));
        assert!(schedule.pop().is_none() && schedule.is_empty());
    }

    #[test]
    fn time_that_passes_makes_events_late_and_never_goes_back() {
        let mut schedule = Schedule::default();
        schedule.at(10, "a");
        schedule.advance(25);
        assert_eq!((schedule.next_at(), schedule.now()), (Some(10), 25));
        assert_eq!((schedule.pop(), schedule.now()), (Some("a"), 25));
    }

    #[test]
    fn clocks_invert_their_reading() {
        let mut random = Random::new(3, Stream::Clock);
        for _ in 0..200 {
            let mut clock = Clock::new(&mut random, 17, 400);
            let now = random.range(17, 1000 * SECOND);
            let local = clock.read(now);
            let when = clock.when(local);
            assert!(when <= now && clock.read(when) >= local);
            clock.set_drift(now, 100_000);
            assert_eq!(clock.read(now), local);
            assert_eq!(clock.read(now + SECOND), local + SECOND + SECOND / 10);
        }
    }
}
