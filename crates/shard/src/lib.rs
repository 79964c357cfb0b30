//! The shards and the control of an OSD: its PGs with everything that is done for them, and its dealings with maps, peers and
//! the map authority, as machines that can be simulated.
//!
//! A [`shard::ShardCell`] is entered with a message, or with [`shard::ShardCell::turn`] when time has passed, and does what
//! follows before it returns. It reads clocks and sends messages by a [`world::World`], and keeps its PGs in an
//! [`nacre_objectstore::ObjectStore`]. [`control::Control`] takes what the map authority sends and has rounds of its own. Sockets, threads and timers belong to whoever drives it: `nacre-osd` with a loop for
//! each shard's thread, `nacre-sim` with a virtual clock.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod access;
pub mod control;
pub mod copy;
pub mod heartbeats;
pub mod inbox;
pub mod metrics;
pub mod peers;
pub mod progress;
pub mod session;
pub mod shard;
pub mod shared;
pub mod superblock;
pub mod tracker;
pub mod up_sets;
mod watch;
pub mod world;
