//! The policies of cache tiers: what a PG of a cache pool remembers of accesses, which objects it promotes, and how hard
//! its agent flushes and evicts.
//!
//! The crate is pure: no I/O, no clock, no threads, no randomness. Times, sums and sizes are arguments, and what must be
//! read or written comes back as values. The same code runs in an OSD and in the simulator.
//!
//! The way of an access to an object of a cache pool:
//!
//! 1. [`hit_set`] records it in the PG's current hit set, and says when that set is to be sealed and archived.
//! 2. Where the object is absent from the cache, [`promote`] decides whether it is promoted or the request is proxied to
//!    the base pool. A throttle bounds the rate of promotions; a frequency filter can take the place of recency.
//! 3. [`effort`] derives the agent's modes from the PG's sums and the pool's targets, which it limits to what the OSDs
//!    can hold.
//! 4. [`temperature`] judges single objects for the agent: whether one may be flushed, whether it is old and cold enough
//!    to be evicted.
//! 5. [`advise`] samples the same accesses and estimates the hit rate of other cache sizes.
//!
//! Behaviour follows Ceph's Reef release wherever a module does not name a difference.

pub mod advise;
pub mod effort;
pub mod hit_set;
pub mod key;
pub mod promote;
pub mod temperature;

#[cfg(test)]
mod fuzz;

/// One in the fixed-point numbers of ratios, positions and efforts: a million.
pub const MICRO: u64 = 1_000_000;
