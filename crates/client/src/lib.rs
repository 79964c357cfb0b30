//! The RADOS client: the native engine around the objecter, and the production environment of code above it, including the striper.
//!
//! [`Cluster`] and [`IoCtx`] are built on the [`engine::Engine`] trait (both are in the engine crate, whose items this crate re-exports);
//! [`native`] is the engine that implements Nacre's protocol. Every operation starts at once and returns a [`Pending`], which any executor
//! can poll and any thread can wait for: callers need no runtime of their own.
//!
//! Invariants: an operation completes exactly once; requests of one PG are sent and resent in order (rule R6); the requests in flight are
//! bounded. The client is independent of stores, of replication and of how the cluster map is produced.

mod environment;
pub mod native;
mod throttle;

pub use environment::{striper, tokio_environment};
pub use nacre_engine::engine;
pub use nacre_engine::{
    Cluster, ClusterStats, CommandReply, Cursor, EngineStats, Error, IoCtx, ListRange, Lister, Notification,
    NotifyOutcome, OnDone, OpReply, Pending, PoolStats, ReadOp, Result, WatchHandler, WriteOp, block_on,
};
pub use nacre_striper::{Layout, MIN_STRIPE_UNIT, PieceExtent, StripedLister, StripedStat, Striper};
pub use native::{NetworkThread, connect, connect_on};
