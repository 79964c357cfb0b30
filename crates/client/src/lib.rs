//! The RADOS client: the native engine around the objecter, the striper, and the production environment of code above.
//!
//! [`Cluster`] and [`IoCtx`] stand on the [`engine::Engine`] trait (both of the engine crate, whose items this crate
//! exports too); [`native`] is the engine that speaks Nacre's protocol. Every operation starts at once and returns a
//! [`Pending`], which any executor can poll and any thread can wait for: callers need no runtime of their own.
//!
//! Invariants: an operation completes exactly once; requests of one PG are sent and resent in order (rule R6); what is
//! in flight is bounded. The client knows nothing of stores, of replication or of how the cluster map is made.

/// Counts for tests that damage what is decoded.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: nacre_fuzz::CountingAllocator = nacre_fuzz::CountingAllocator;

mod environment;
pub mod native;
mod striper;
mod throttle;

pub use environment::tokio_environment;
pub use nacre_engine::engine;
pub use nacre_engine::{
    Cluster, ClusterStats, CommandReply, Cursor, EngineStats, Error, IoCtx, ListRange, Lister, Notification,
    NotifyOutcome, OnDone, OpReply, Pending, PoolStats, ReadOp, Result, WatchHandler, WriteOp, block_on,
};
pub use native::{Network, connect, connect_on};
pub use striper::{Layout, MIN_STRIPE_UNIT, PieceExtent, StripedLister, StripedStat, Striper};
