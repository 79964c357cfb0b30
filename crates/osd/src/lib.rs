//! Object storage daemon: threads, sockets, sessions and commands around the shards of `nacre-shard`.
//!
//! An [`Osd`] is a store, some shards and a control thread:
//!
//! - A *shard* ([`nacre_shard`]) owns PGs exclusively: their replication machines (`nacre-pg`), the clients' requests to them, the object
//!   contexts. Each has a thread, which also runs connections, so that most messages are handled where they are read. It receives the
//!   store's completions in batches.
//! - The *control thread* has the session with the map authority, applies maps in order, sends heartbeats and reports.
//! - The *watchdog* is a thread that checks whether the shards and the store make progress.
//! - [`nacre_exec`] turns a request into results and one transaction; it is independent of replication.
//!
//! The path of a write: frame → `dispatch` → shard: admission, `Pg` orders it → `exec` → transaction to the store and to the replicas →
//! completions and acknowledgements back to `Pg` → reply. On a shard's own connections all of this runs on one thread.
//!
//! Invariants: a request is answered only when its PG's machine permits it. The OSD stops if the store refuses a transaction that is
//! already ordered, or if any write of the store fails. This crate makes no decisions about membership.

pub mod error;

mod clock;
mod commands;
mod control;
mod copy;
mod dispatch;
mod outside;
mod peers;
mod pings;
mod server;
mod shared;
mod starting;
mod store_kind;
mod ticket;
mod watchdog;
mod worker;

pub use commands::dump_free_space;
pub use error::OsdError;
pub use nacre_shard::shared::RunState;
pub use server::{Osd, RecordedMap, mkfs, read_recorded_map};
pub use store_kind::bluestore_config;
