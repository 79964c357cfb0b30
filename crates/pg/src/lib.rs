//! The replication state machine of one placement group. It is pure: it takes events and returns commands.
//!
//! One [`Pg`] represents one PG on one OSD. The host (the OSD, or the simulator) passes [`PgEvent`]s to it and executes
//! the returned [`PgCommand`]s in order. The machine owns the PG's log, peering, replication, recovery and proposals of
//! new memberships. It does no I/O, reads no clock, and holds no data except payload handles in flight.
//!
//! The scheme is primary copy fenced by the map; `docs/replication.md` describes it, with rules R1 to R8 and R10. In
//! short: the OSDMap holds each PG's membership (interval, primary, in-sync set), which changes only by
//! compare-and-swap. A write is acknowledged when every in-sync member has it durable. So the logs of in-sync members
//! are prefixes of one another. A new primary brings all of them to the longest log before it serves, so no
//! acknowledged update is lost while the disk of one in-sync member survives. A member that is not in sync is rolled
//! back to the common part of the logs and filled before it enters the set.

mod api;
mod damage;
pub mod heartbeat;
mod known;
pub mod lease;
pub mod log;
mod membership;
mod peering;
mod pg;
mod pg_info;
mod primary;
mod recovery;
mod replica;
pub mod reserve;
mod restore;
mod settings;
mod tail;

pub use api::{
    CatchUpStatus, ClientOp, DropReason, ExecuteReply, LeaseView, LimitHits, MemberInfo, ObjectPiece,
    PeerMsg, PgCommand, PgEnvelope, PgEvent, PgQuery, PieceCursor, RestoreInfo, StoreRefusal,
};
pub use known::KnownOsds;
pub use pg::Pg;
pub use pg_info::{TEMP_NAMESPACE, is_temp};
#[cfg(feature = "mutations")]
pub use settings::take_breaches;
pub use settings::{Mutation, PgSettings};

#[cfg(test)]
mod tests;
