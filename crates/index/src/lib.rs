//! The bucket index protocol (docs/format/index.md): the RADOS operations by which a gateway changes an object together
//! with its bucket index and the event outbox, and the meaning of the replies.
//!
//! The crate is pure. Its functions build operations ([`op::Write`], [`op::Read`]) and interpret their results; the caller
//! that executes the operations is responsible for I/O, retries, batching and time. The gateway and the model test run the
//! same functions.
//!
//! A change of an object goes through these modules, in this order:
//!
//! 1. [`prepare`]: writes a *pending* entry to the index shard, one write for many changes. The entry has what an event
//!    needs.
//! 2. [`commit`]: one compare-and-swap of the object's head. It gives the change its [`seq::Seq`] and leaves *evidence* of
//!    it ([`head`]).
//! 3. [`finish`]: one compare-and-swap of the shard for up to 128 changes. It updates entries, sums and outbox records, and
//!    removes the pending entries.
//! 4. [`tidy`]: removes evidence and tombstones that are no longer needed. Most changes leave none.
//!
//! [`recovery`] finishes or cancels the pending changes of a dead gateway; [`outbox`] reads the events; [`reshard`] moves
//! records to other shards; [`legacy`] converts shards of format 1.

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
/// The operations that the functions build.
pub use nacre_types::compound as op;

#[cfg(test)]
#[global_allocator]
static ALLOCATOR: nacre_fuzz::CountingAllocator = nacre_fuzz::CountingAllocator;
