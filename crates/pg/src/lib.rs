//! The replication state machine of one placement group: pure, events in, commands out.
//!
//! One [`Pg`] stands for one PG on one OSD. The host (the OSD, or the simulator) feeds it [`Event`]s and carries out the
//! [`Command`]s that come back, in order. The machine owns the PG's log, its peering, replication, recovery and the
//! proposals of new memberships; it does no I/O, reads no clock, and holds no data but payload handles in flight.
//!
//! The scheme is primary copy fenced by the map: `docs/replication.md` tells it from the start, with rules R1 to R8.
//! What keeps it safe, in one paragraph: the OSDMap holds each PG's membership (interval, primary, in-sync set), changed
//! only by compare-and-swap. A write is acknowledged when every in-sync member has it durable. Logs of in-sync members
//! are therefore prefixes of one another; a new primary brings all of them to the longest before it serves, so nothing
//! acknowledged is lost while one in-sync member's disk survives. Whoever was not in sync is rolled back to common
//! ground and filled before it enters the set.

mod api;
mod copy;
mod damage;
pub mod heartbeat;
mod known;
pub mod lease;
pub mod log;
mod membership;
mod peering;
mod pg;
mod primary;
mod recovery;
mod replica;
pub mod reserve;
mod restore;
mod settings;
mod tail;

pub use api::{
    CatchUpStatus, ClientOp, Command, DropReason, Event, Executed, LeaseView, MemberInfo, ObjectPiece,
    PeerMsg, PgEnvelope, PgQuery, PieceCursor, Reached, Refusal, Remembered,
};
pub use copy::{TEMP_NAMESPACE, is_temp};
pub use known::KnownOsds;
pub use pg::Pg;
#[cfg(feature = "mutations")]
pub use settings::take_breaches;
pub use settings::{Mutation, Settings};

#[cfg(test)]
mod tests;
