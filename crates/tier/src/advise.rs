//! Advice on sizes: which hit rate a cache of another size, or with other parameters, would have.
//!
//! [`Sampler`] is SHARDS of fixed size (Waldspurger, Park, Garthwaite and Ahmad, FAST 2015): it follows the accesses of
//! objects whose key is below a threshold. All other accesses cost it a comparison. It keeps the last accesses of a
//! bounded number of objects, as a [`Trace`].
//!
//! [`simulation`] runs the cache's own policies on traces, in caches that are smaller by the share of objects that are
//! followed (miniature simulation: Waldspurger, Saemundsson, Ahmad and Park, USENIX ATC 2017). At several sizes they give
//! the miss-ratio curve of this cache, with any parameters. A curve from reuse distances would be one of a cache that
//! evicts the least recently used object: on a loop, for instance, an agent that evicts by hit sets has far more hits.
//!
//! # Hot objects
//!
//! Few objects have a large part of the accesses, and it matters whether one of them happens to be followed. All accesses
//! are counted, and the sample is corrected by the difference. SHARDS-adj takes all of that for hits; here the sample tells
//! how many hits an access more stands for.
//!
//! # Accuracy
//!
//! The tests find at most 3 points between an estimate and a simulation of all accesses, on zipf(0.99), loops, and scans
//! with a hot set, with 2048 objects in each of 8 PGs, from a quarter of the present size to four times as much. Caches of
//! which a PG holds fewer than some 50 followed objects are estimated less well.
//!
//! An estimate speaks of accesses like those in the trace. An object that was accessed once in it counts as new then.

mod sampler;
pub mod simulation;

pub use sampler::{Access, BYTES_PER_OBJECT, Sampler, Trace};

#[cfg(test)]
mod tests;
