//! When failed events are retried, and when no events are sent to an endpoint that fails.
//!
//! Random numbers and times are arguments. Times are those of a monotonic clock, in nanoseconds.

/// Exponential backoff with jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The first delay.
    pub base_ns: u64,
    /// The longest delay.
    pub max_ns: u64,
}

impl Backoff {
    /// The delay after `failures` consecutive failures: between half and all of `base × 2^(failures - 1)`, but not more
    /// than the longest delay.
    ///
    /// `random` must be uniformly distributed.
    pub fn delay_ns(self, failures: u32, random: u32) -> u64 {
        let exponent = failures.saturating_sub(1).min(63);
        let full = u128::from(self.base_ns) << exponent;
        let full = full.min(u128::from(self.max_ns)) as u64;
        let half = full / 2;
        half + (u128::from(full - half) * u128::from(random) / u128::from(u32::MAX)) as u64
    }
}

/// The settings of a topic for events that fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// `time_to_live`, counted from the operation; `None` for no limit.
    pub time_to_live_ns: Option<u64>,
    /// `max_retries`: attempts after the first one; `None` for no limit.
    pub max_retries: Option<u32>,
    /// `retry_sleep_duration`; `None` for exponential backoff.
    pub sleep_ns: Option<u64>,
    /// The backoff if `retry_sleep_duration` is not set.
    pub backoff: Backoff,
}

impl RetryPolicy {
    /// Whether an event with this number of failed attempts is not retried any more.
    pub fn is_exhausted(&self, attempts: u32) -> bool {
        self.max_retries.is_some_and(|retries| attempts > retries)
    }

    /// The time until the next attempt.
    pub fn delay_ns(&self, attempts: u32, random: u32) -> u64 {
        self.sleep_ns.unwrap_or_else(|| self.backoff.delay_ns(attempts, random))
    }

    /// The longest time between two attempts. A stored time that is further in the future is ignored.
    pub fn longest_delay_ns(&self) -> u64 {
        self.sleep_ns.unwrap_or(self.backoff.max_ns)
    }

    /// Whether an event of this age is not delivered any more.
    pub fn is_expired(&self, age_ns: u64) -> bool {
        self.time_to_live_ns.is_some_and(|limit| age_ns > limit)
    }
}

/// The limits of a circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerPolicy {
    /// The number of consecutive failures of the endpoint that open the breaker; at least 1.
    pub failures: u32,
    /// The time for which it stays open.
    pub backoff: Backoff,
}

/// The state of a breaker as shown to operators, in ascending order of severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BreakerState {
    /// Events are sent.
    Closed,
    /// One push tests whether the endpoint works again.
    HalfOpen,
    /// Nothing is sent.
    Open,
}

impl BreakerState {
    /// The state with the name `text` ([`BreakerState::as_str`]).
    pub fn from_name(text: &str) -> Option<BreakerState> {
        [BreakerState::Closed, BreakerState::HalfOpen, BreakerState::Open]
            .into_iter()
            .find(|state| state.as_str() == text)
    }

    /// The name in `topic stats` and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            BreakerState::Closed => "closed",
            BreakerState::Open => "open",
            BreakerState::HalfOpen => "half-open",
        }
    }
}

/// A circuit breaker of one endpoint in one gateway.
///
/// Failures of the endpoint (for example no connection, a timeout, 5xx or 429) count; an event that the endpoint rejects
/// shows that it is alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breaker {
    policy: BreakerPolicy,
    /// Consecutive failures while closed.
    failures: u32,
    /// The number of times that it was opened since the last success.
    openings: u32,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed,
    Open {
        until_ns: u64,
    },
    /// A probe is in flight. If it has no result by this time, another one is sent.
    HalfOpen {
        until_ns: u64,
    },
}

impl Breaker {
    /// Creates a closed breaker.
    pub fn new(policy: BreakerPolicy) -> Breaker {
        Breaker { policy, failures: 0, openings: 0, state: State::Closed }
    }

    /// The current state.
    pub fn state(&self) -> BreakerState {
        match self.state {
            State::Closed => BreakerState::Closed,
            State::Open { .. } => BreakerState::Open,
            State::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }

    /// The number of pushes that may be sent now: any number, one probe, or none. The probe is assumed to be sent.
    pub fn permits(&mut self, now_ns: u64) -> usize {
        match self.state {
            State::Closed => usize::MAX,
            State::Open { until_ns } | State::HalfOpen { until_ns } if now_ns >= until_ns => {
                let until_ns = now_ns.saturating_add(self.policy.backoff.max_ns);
                self.state = State::HalfOpen { until_ns };
                1
            }
            State::Open { .. } | State::HalfOpen { .. } => 0,
        }
    }

    /// When to call [`Breaker::permits`] again; `None` while it is closed.
    pub fn next_permit_ns(&self) -> Option<u64> {
        match self.state {
            State::Closed => None,
            State::Open { until_ns } | State::HalfOpen { until_ns } => Some(until_ns),
        }
    }

    /// The endpoint answered.
    pub fn succeeded(&mut self) {
        *self = Breaker::new(self.policy);
    }

    /// The endpoint failed. Failures of pushes that were sent before the breaker opened do not extend the open time.
    pub fn failed(&mut self, now_ns: u64, random: u32) {
        self.failures = self.failures.saturating_add(1);
        let opens = match self.state {
            State::Closed => self.failures >= self.policy.failures.max(1),
            State::HalfOpen { .. } => true,
            State::Open { .. } => false,
        };
        if opens {
            self.openings = self.openings.saturating_add(1);
            let delay = self.policy.backoff.delay_ns(self.openings, random);
            self.state = State::Open { until_ns: now_ns.saturating_add(delay) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_breakers_are_read_as_they_are_printed() {
        for state in [BreakerState::Closed, BreakerState::HalfOpen, BreakerState::Open] {
            assert_eq!(BreakerState::from_name(state.as_str()), Some(state));
        }
        assert_eq!(BreakerState::from_name(""), None);
        assert!(BreakerState::Open > BreakerState::HalfOpen && BreakerState::HalfOpen > BreakerState::Closed);
    }

    const BACKOFF: Backoff = Backoff { base_ns: 100, max_ns: 1000 };

    #[test]
    fn delays_double_up_to_the_longest_and_vary_by_half() {
        let longest: Vec<_> = (1..=6).map(|failures| BACKOFF.delay_ns(failures, u32::MAX)).collect();
        assert_eq!(longest, [100, 200, 400, 800, 1000, 1000]);
        let shortest: Vec<_> = (1..=6).map(|failures| BACKOFF.delay_ns(failures, 0)).collect();
        assert_eq!(shortest, [50, 100, 200, 400, 500, 500]);
        let between = BACKOFF.delay_ns(1, u32::MAX / 2);
        assert!((74..=76).contains(&between), "{between}");
        let huge = Backoff { base_ns: u64::MAX, max_ns: u64::MAX };
        assert_eq!(huge.delay_ns(u32::MAX, u32::MAX), u64::MAX);
    }

    #[test]
    fn events_are_tried_once_more_than_they_are_retried() {
        let policy = RetryPolicy {
            time_to_live_ns: Some(10),
            max_retries: Some(2),
            sleep_ns: Some(7),
            backoff: BACKOFF,
        };
        assert!(!policy.is_exhausted(2) && policy.is_exhausted(3));
        assert!(!policy.is_expired(10) && policy.is_expired(11));
        assert_eq!((policy.delay_ns(9, 5), policy.longest_delay_ns()), (7, 7));
        let endless = RetryPolicy { time_to_live_ns: None, max_retries: None, sleep_ns: None, ..policy };
        assert!(!endless.is_exhausted(u32::MAX) && !endless.is_expired(u64::MAX));
    }

    #[test]
    fn a_breaker_opens_after_failures_in_a_row_and_closes_with_a_probe() {
        let mut breaker = Breaker::new(BreakerPolicy { failures: 3, backoff: BACKOFF });
        for _ in 0..2 {
            breaker.failed(0, 0);
            breaker.failed(0, 0);
            breaker.succeeded();
        }
        assert_eq!(breaker.permits(0), usize::MAX);
        (0..3).for_each(|_| breaker.failed(0, u32::MAX));
        assert_eq!((breaker.state(), breaker.permits(99)), (BreakerState::Open, 0));
        assert_eq!(breaker.next_permit_ns(), Some(100));
        assert_eq!((breaker.permits(100), breaker.permits(100)), (1, 0), "there is one probe");
        breaker.failed(100, u32::MAX);
        assert_eq!(breaker.next_permit_ns(), Some(300), "it stays open for longer");
        breaker.failed(150, u32::MAX);
        assert_eq!(breaker.next_permit_ns(), Some(300), "a late failure prolongs nothing");
        assert_eq!(breaker.permits(300), 1);
        breaker.succeeded();
        assert_eq!((breaker.state(), breaker.permits(300)), (BreakerState::Closed, usize::MAX));
    }

    #[test]
    fn a_probe_that_is_lost_is_followed_by_another() {
        let mut breaker = Breaker::new(BreakerPolicy { failures: 1, backoff: BACKOFF });
        breaker.failed(0, u32::MAX);
        assert_eq!(breaker.permits(100), 1);
        assert_eq!(breaker.permits(1099), 0);
        assert_eq!(breaker.permits(1100), 1);
    }
}
