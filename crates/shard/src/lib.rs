//! The shards and the control of an OSD, as machines that can be simulated: its PGs and all work for them, and its
//! communication about maps, with peers and with the map authority.
//!
//! A [`shard::ShardCell`] is entered with a message, or with [`shard::ShardCell::turn`] when time has passed, and does all
//! resulting work before it returns. It reads clocks and sends messages through a [`host::ShardHost`], and keeps its PGs in an
//! [`nacre_objectstore::ObjectStore`]. [`control::Control`] handles the messages of the map authority and has rounds of its
//! own. Sockets, threads and timers belong to the driver: `nacre-osd` with a loop for each shard's thread, `nacre-sim` with a
//! virtual clock.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod access;
pub mod control;
pub mod copy;
pub mod error;
pub mod heartbeats;
pub mod host;
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
