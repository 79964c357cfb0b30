//! Advice on sizes: the hit rate that a cache of another size, or with other parameters, would have.
//!
//! [`Sampler`] is SHARDS of fixed size (Waldspurger, Park, Garthwaite and Ahmad, FAST 2015): it samples the accesses of objects whose key
//! is below a threshold. Any other access costs one comparison. It keeps the last accesses of a bounded number of objects, as a [`AccessTrace`].
//!
//! [`simulation`] runs the cache's own policies on traces, in caches scaled down by the share of sampled objects (miniature simulation:
//! Waldspurger, Saemundsson, Ahmad and Park, USENIX ATC 2017). Several sizes give the miss-ratio curve of this cache, with any parameters.
//! A curve from reuse distances would be for a cache that evicts the least recently used object. On a loop, for instance, an agent that
//! evicts by hit sets has far more hits.
//!
//! # Hot objects
//!
//! A few objects have a large part of the accesses, and it matters whether one of them happens to be sampled. All accesses are counted, and
//! the sample is corrected by the difference. SHARDS-adj counts the whole difference as hits; here the sample determines how many hits each
//! additional access stands for.
//!
//! # Accuracy
//!
//! In the tests an estimate differs by at most 3 points from a simulation of all accesses, on zipf(0.99), loops, and scans with a hot set,
//! with 2048 objects in each of 8 PGs, from a quarter of the present size to four times as much. Estimates are less accurate for caches in
//! which a PG holds fewer than some 50 sampled objects.
//!
//! An estimate applies to accesses like those in the trace. An object that was accessed once in it counts as new.

mod sampler;
pub mod simulation;

pub use sampler::{Access, AccessTrace, MEMORY_BYTES_PER_OBJECT, Sampler};

#[cfg(test)]
mod tests;
