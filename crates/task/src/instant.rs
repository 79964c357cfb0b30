//! Points of a monotonic clock.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A point of an environment's monotonic clock. Points of different environments can't be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(Duration);

impl Instant {
    /// Creates the point at this time after the clock's origin, which each environment chooses.
    pub const fn from_origin(since: Duration) -> Instant {
        Instant(since)
    }

    /// The time since the clock's origin.
    pub const fn since_origin(self) -> Duration {
        self.0
    }

    /// The time from `earlier` to this point; zero if `earlier` is later.
    pub const fn duration_since(self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    /// Saturates, so that a far deadline does not overflow and never passes.
    fn add(self, wait: Duration) -> Instant {
        Instant(self.0.saturating_add(wait))
    }
}

impl Sub for Instant {
    type Output = Duration;

    /// See [`Instant::duration_since`].
    fn sub(self, earlier: Instant) -> Duration {
        self.duration_since(earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        let early = Instant::from_origin(Duration::from_secs(1));
        let late = early + Duration::from_secs(2);
        assert_eq!((late - early, early - late), (Duration::from_secs(2), Duration::ZERO));
        assert_eq!((late + Duration::MAX).since_origin(), Duration::MAX);
    }
}
