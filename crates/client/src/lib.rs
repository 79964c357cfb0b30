//! The RADOS client: engine seam, objecter, I/O contexts and handles of operations in flight.
//!
//! [`Cluster`] and [`IoCtx`] stand on the [`engine::Engine`] trait; [`native`] is the engine that speaks Nacre's
//! protocol. Every operation starts at once and returns a [`Pending`], which any executor can poll and any thread can
//! wait for: callers need no runtime of their own.
//!
//! Invariants: an operation completes exactly once; requests of one PG are sent and resent in order (rule R6); what is
//! in flight is bounded. The client knows nothing of stores, of replication or of how the cluster map is made.

/// Counts for tests that damage what is decoded.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: nacre_fuzz::CountingAllocator = nacre_fuzz::CountingAllocator;

mod cluster;
mod completion;
pub mod engine;
mod error;
mod ioctx;
mod list;
mod lock;
pub mod native;
mod objecter;
mod ops;
mod striper;
mod throttle;
mod watch;

pub use cluster::{Cluster, ClusterStats, PoolStats};
pub use completion::{Pending, block_on};
pub use engine::{CommandReply, Cursor, EngineStats};
pub use error::{Error, Result};
pub use ioctx::IoCtx;
pub use list::{ListRange, Lister};
pub use native::{Network, connect, connect_on};
pub use ops::{OpReply, ReadOp, WriteOp};
pub use striper::{Layout, MIN_STRIPE_UNIT, PieceExtent, StripedLister, StripedStat, Striper};
pub use watch::{Notification, NotifyOutcome, OnDone, WatchHandler};
