//! The bucket index protocol: which RADOS operations a gateway sends to change an object, its bucket index and the event
//! outbox together, and what the answers mean (docs/format/index.md).
//!
//! The crate is pure. Functions build operations ([`op::Write`], [`op::Read`]) and interpret what they returned; whoever
//! executes them owns I/O, retries, batching and time. The gateway and the model test run the same functions.
//!
//! A change of an object goes through these modules, in this order:
//!
//! 1. [`prepare`]: a *pending* entry in the index shard, many of them in one write. It carries what an event needs.
//! 2. [`commit`]: one compare-and-swap of the object's head. It gives the change its [`seq::Seq`] and leaves *evidence*
//!    of it ([`head`]).
//! 3. [`finish`]: one compare-and-swap of the shard for up to 128 changes: entries, sums and outbox records change, and the
//!    pending entries go.
//! 4. [`tidy`]: removes evidence and tombstones that nothing needs any more. Most changes leave none.
//!
//! [`recovery`] finishes or cancels what a dead gateway left pending; [`outbox`] reads the events; [`reshard`] moves records
//! to other shards; [`legacy`] converts shards of format 1.

pub mod commit;
mod error;
pub mod finish;
#[cfg(test)]
mod fuzz;
pub mod head;
pub mod key;
pub mod legacy;
pub mod outbox;
pub mod prepare;
pub mod record;
pub mod recovery;
pub mod reshard;
pub mod seq;
pub mod state;
pub mod tidy;

pub use error::{Error, Result};
/// The operations that functions build.
pub use nacre_types::compound as op;

#[cfg(test)]
#[global_allocator]
static ALLOCATOR: nacre_fuzz::CountingAllocator = nacre_fuzz::CountingAllocator;
