//! The resources of the host that the striper needs: time and random numbers. In a simulation they come from the seed.

use nacre_engine::Result;
use std::time::Duration;

/// Time and random numbers.
pub trait Clock: Send + Sync + 'static {
    /// Monotonic time since an arbitrary origin.
    fn now(&self) -> Duration;

    /// The time of day, in nanoseconds since 1970.
    fn wall_ns(&self) -> u64;

    /// A random number. It must be practically unique among all calls on all machines.
    fn random_u64(&self) -> Result<u64>;
}
