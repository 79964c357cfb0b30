//! Tests of the crate as a whole: decoders against damage, and the protocol against crashes.

#![allow(clippy::unwrap_used)]

mod fuzz;
mod model;

#[global_allocator]
static ALLOCATOR: nacre_fuzz::CountingAllocator = nacre_fuzz::CountingAllocator;
