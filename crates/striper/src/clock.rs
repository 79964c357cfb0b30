//! What the striper takes from the machine that it runs on: time and random numbers. In a simulation they come from its seed.

use nacre_engine::Result;
use std::time::Duration;

/// Time and random numbers.
pub trait Clock: Send + Sync + 'static {
    /// Monotonic time, from an origin of the clock's own.
    fn now(&self) -> Duration;

    /// The time of day, in nanoseconds since 1970.
    fn wall_ns(&self) -> u64;

    /// A random number: no two calls, on any machine, may be expected to return the same one.
    fn random_u64(&self) -> Result<u64>;
}
