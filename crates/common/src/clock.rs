//! The seam for time: code that runs in simulations and tests takes a [`Clock`] instead of using the system's.
//!
//! Monotonic time is CLOCK_BOOTTIME, which includes suspends: a lease (rule R4) measured with a clock that stops would outlive
//! its grant.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A source of time.
pub trait Clock: Send + Sync + 'static {
    /// Time since a fixed point. It never goes back and includes suspends.
    fn monotonic(&self) -> Duration;

    /// Nanoseconds since 1970 by the machine's clock.
    fn wall_ns(&self) -> u64;
}

/// The machine's clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn monotonic(&self) -> Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
    }

    fn wall_ns(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
    }
}

/// A clock that stands still until it is advanced.
#[derive(Debug, Default)]
pub struct VirtualClock {
    monotonic_ns: AtomicU64,
    wall_ns: AtomicU64,
}

impl VirtualClock {
    /// Creates a clock at monotonic zero and the given wall time.
    pub fn new(wall_ns: u64) -> VirtualClock {
        VirtualClock { monotonic_ns: AtomicU64::new(0), wall_ns: AtomicU64::new(wall_ns) }
    }

    /// Advances both clocks.
    pub fn advance(&self, by: Duration) {
        self.monotonic_ns.fetch_add(by.as_nanos() as u64, Ordering::SeqCst);
        self.wall_ns.fetch_add(by.as_nanos() as u64, Ordering::SeqCst);
    }

    /// Sets the wall clock, as an operator or NTP would. Monotonic time does not change.
    pub fn set_wall(&self, wall_ns: u64) {
        self.wall_ns.store(wall_ns, Ordering::SeqCst);
    }
}

impl Clock for VirtualClock {
    fn monotonic(&self) -> Duration {
        Duration::from_nanos(self.monotonic_ns.load(Ordering::SeqCst))
    }

    fn wall_ns(&self) -> u64 {
        self.wall_ns.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_time_moves_forward_and_virtual_time_only_when_told() {
        let before = SystemClock.monotonic();
        assert!(before > Duration::ZERO && SystemClock.monotonic() >= before);
        let clock = VirtualClock::new(5);
        assert_eq!((clock.monotonic(), clock.wall_ns()), (Duration::ZERO, 5));
        clock.advance(Duration::from_nanos(7));
        clock.set_wall(1);
        assert_eq!((clock.monotonic(), clock.wall_ns()), (Duration::from_nanos(7), 1));
    }
}
