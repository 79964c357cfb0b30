//! The engine seam: the operations of a RADOS cluster, independent of the protocol's implementation.
//!
//! [`Cluster`] and [`IoCtx`] are built on the [`engine::Engine`] trait. Implementations are the client crate's native engine,
//! with Nacre's protocol, and the simulator's engine in memory. Every operation starts at once and returns a [`Pending`], which
//! any executor can poll and any thread can wait for.
//!
//! Invariants: an operation completes exactly once; a compound operation is applied completely or not at all. The crate has no
//! sockets, no timers, no clock and no threads, so that code above the seam can run on a virtual clock.
//!
//! An engine completes operations with [`Pending::channel`] and [`Completer`], marks the thread that does so with
//! [`mark_completion_thread`], and converts its cluster's answers with [`command_result`] and [`pg_end`].

mod cluster;
mod completion;
mod compound;
mod copy;
pub mod engine;
mod error;
mod ioctx;
mod list;
mod lock;
mod ops;
mod watch;

pub use cluster::{Cluster, ClusterStats, PoolStats, command_result};
pub use completion::{Completer, Pending, block_on, is_completion_thread, mark_completion_thread};
pub use engine::{CommandReply, Cursor, Engine, EngineStats, Notification, OnDone, WatchHandler};
pub use error::{Error, Result};
pub use ioctx::IoCtx;
pub use list::{ListRange, Lister, pg_end};
pub use ops::{OpReply, ReadOp, WriteOp};
pub use watch::NotifyOutcome;
