//! The policies of cache tiers: how a PG of a cache pool records accesses, which objects it promotes, and how hard its agent flushes and
//! evicts.
//!
//! The crate is pure: no I/O, no clock, no threads, no randomness. Times, sums and sizes are arguments; data to be read or written is
//! returned as values. The same code runs in an OSD and in the simulator.
//!
//! The path of an access to an object of a cache pool:
//!
//! 1. [`hit_set`] records it in the PG's current hit set, and reports when that set must be sealed and archived.
//! 2. If the object is absent from the cache, [`promote`] decides whether it is promoted or the request is proxied to the base pool. A
//!    throttle bounds the rate of promotions; a frequency filter can replace recency.
//! 3. [`agent_policy`] derives the agent's modes from the PG's sums and the pool's targets, which it limits to what the OSDs can store.
//! 4. [`temperature`] classifies single objects for the agent: whether one may be flushed, and whether it is old and cold enough to be
//!    evicted.
//! 5. [`cache_sizing`] samples the same accesses and estimates the hit rate of other cache sizes.
//!
//! Behaviour is that of Ceph's Reef release, except for the differences that a module lists.

pub mod agent_policy;
pub mod cache_sizing;
pub mod hit_set;
pub mod key;
pub mod promote;
pub mod temperature;

#[cfg(test)]
mod fuzz;

/// The unit of fixed-point ratios, positions and efforts: a million.
pub const MICRO: u64 = 1_000_000;
