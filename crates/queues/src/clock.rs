//! Ages of events under clocks that jump.
//!
//! An event has the time of the gateway that made the change, and the clock of the gateway that delivers it may jump by an
//! hour. Such a jump must not turn queued events into dead letters. So the delivering gateway uses the *smaller* of two
//! times: the wall clock, and the wall clock before the last jump advanced by the monotonic clock. A jump forward is
//! ignored for [`JUMP_DISTRUST_NS`]; a jump backward makes events live longer by at most that jump. An event is also at least as old
//! as the time for which this gateway has known it, so an event with a time in the future expires as well. If the clocks of
//! two gateways differ, events of one gateway expire at the other too early or too late by the difference.

/// The clock has jumped if the difference between wall and monotonic clock grows by more than this between two calls.
const TOLERANCE_NS: u64 = 2_000_000_000;
/// How long a clock must run after a jump before it is trusted: a day.
pub const JUMP_DISTRUST_NS: u64 = 24 * 3600 * 1_000_000_000;

/// A point in time on both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockSample {
    /// Nanoseconds since 1970.
    pub wall_ns: u64,
    /// Nanoseconds of the monotonic clock.
    pub mono_ns: u64,
}

/// A clock that follows slow corrections of the wall clock but no jumps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SteadyClock {
    /// A point in time on the trusted clock.
    anchor: ClockSample,
    /// The clock after a jump: a point in time on it, and the monotonic time when it was first observed.
    other: Option<(ClockSample, u64)>,
}

impl SteadyClock {
    /// Creates a clock that initially trusts the wall clock.
    pub fn new(now: ClockSample) -> SteadyClock {
        SteadyClock { anchor: now, other: None }
    }

    /// The time for computing ages of events, in nanoseconds since 1970. Must be called at least once a minute.
    pub fn now_ns(&mut self, now: ClockSample) -> u64 {
        let steady = carried(self.anchor, now);
        if steady.abs_diff(now.wall_ns) <= TOLERANCE_NS {
            *self = SteadyClock::new(now);
            return now.wall_ns;
        }
        let since = match self.other {
            Some((other, since)) if carried(other, now).abs_diff(now.wall_ns) <= TOLERANCE_NS => since,
            _ => now.mono_ns,
        };
        if now.mono_ns.saturating_sub(since) >= JUMP_DISTRUST_NS {
            *self = SteadyClock::new(now);
            return now.wall_ns;
        }
        self.other = Some((now, since));
        steady.min(now.wall_ns)
    }
}

/// The wall clock at `now` if it had run from `anchor` without corrections.
fn carried(anchor: ClockSample, now: ClockSample) -> u64 {
    anchor.wall_ns.saturating_add(now.mono_ns.saturating_sub(anchor.mono_ns))
}

/// The age of an event. `steady_ns` is the result of [`SteadyClock::now_ns`]; `known_since_ns` and `mono_ns` are monotonic
/// times.
pub fn age_ns(event_ns: u64, steady_ns: u64, known_since_ns: u64, mono_ns: u64) -> u64 {
    steady_ns.saturating_sub(event_ns).max(mono_ns.saturating_sub(known_since_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const HOUR: u64 = 3600 * SECOND;
    const START: u64 = 1_700_000_000 * SECOND;

    fn at(wall_ns: u64, mono_ns: u64) -> ClockSample {
        ClockSample { wall_ns, mono_ns }
    }

    #[test]
    fn a_jump_forward_does_not_age_events() {
        let mut clock = SteadyClock::new(at(START, 0));
        let event = START;
        for second in 1..120 {
            let jump = if second >= 60 { HOUR } else { 0 };
            let now = clock.now_ns(at(START + second * SECOND + jump, second * SECOND));
            assert_eq!(age_ns(event, now, 0, second * SECOND), second * SECOND, "after {second} s");
        }
        // The clock jumps back.
        let now = clock.now_ns(at(START + 120 * SECOND, 120 * SECOND));
        assert_eq!(now, START + 120 * SECOND);
    }

    #[test]
    fn a_jump_backward_keeps_no_event_for_ever() {
        let mut clock = SteadyClock::new(at(START, 0));
        let now = clock.now_ns(at(START + SECOND - HOUR, SECOND));
        assert_eq!(age_ns(START, now, 0, SECOND), SECOND, "as long as it was known");
        let now = clock.now_ns(at(START - HOUR + 50 * SECOND, 50 * SECOND));
        assert_eq!(age_ns(START, now, 0, 50 * SECOND), 50 * SECOND);
        // The event is from another gateway, whose clock is correct.
        assert_eq!(age_ns(START + HOUR, now, 10 * SECOND, 50 * SECOND), 40 * SECOND);
    }

    #[test]
    fn slow_corrections_are_followed() {
        let mut clock = SteadyClock::new(at(START, 0));
        let mut now = 0;
        for minute in 1..=600 {
            now = clock.now_ns(at(START + minute * 61 * SECOND, minute * 60 * SECOND));
        }
        assert_eq!(now, START + 600 * 61 * SECOND);
    }

    #[test]
    fn a_clock_that_stays_changed_is_believed_after_a_day() {
        let mut clock = SteadyClock::new(at(START, 0));
        let mut changed = None;
        for minute in 1..2000 {
            let mono = minute * 60 * SECOND;
            let wall = START + HOUR + mono;
            if clock.now_ns(at(wall, mono)) == wall && changed.is_none() {
                changed = Some(minute);
            }
        }
        assert_eq!(changed, Some(24 * 60 + 1));
    }
}
