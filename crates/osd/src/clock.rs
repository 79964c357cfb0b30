//! The clocks that an OSD reads.

use rustix::time::{ClockId, clock_gettime};

fn read(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

/// Nanoseconds of CLOCK_BOOTTIME, which includes suspends and is never set. Leases and deadlines use it.
pub(crate) fn boot_ns() -> u64 {
    read(ClockId::Boottime)
}

/// Nanoseconds since 1970, for output to people and other machines.
pub(crate) fn wall_ns() -> u64 {
    read(ClockId::Realtime)
}

/// Seconds since 1970.
pub(crate) fn wall_s() -> u64 {
    wall_ns() / 1_000_000_000
}
