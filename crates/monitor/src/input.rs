//! What the thread of the map authority receives.

use nacre_common::auth::RotatingSecrets;
use nacre_common::metrics::Exposition;
use nacre_mapstore::{CommittedIncremental, PersistError};
use nacre_mon::logic::{ClusterLogEntry, Proposal};
use nacre_runtime::admin::AdminReply;
use nacre_runtime::msgr::{Conn, Frame};
use std::ops::Range;
use std::sync::mpsc::Sender;

/// An input of the thread.
pub(super) enum Input {
    Message(Conn, Frame),
    /// A connection has ended.
    Disconnected(u64),
    /// A command on the admin socket.
    Admin(String, Sender<AdminReply>),
    /// A request for the metrics.
    Metrics(Sender<(Exposition, Vec<String>)>),
    /// The map store has done what the authority asked for.
    Store(StoreReply),
    Stop,
}

/// What the thread of the map store has done.
pub(super) enum StoreReply {
    /// A proposal and log lines are durable, with the encoding of the incremental.
    Committed(Box<Proposal>, Vec<ClusterLogEntry>, Option<CommittedIncremental>),
    /// Obsolete entries were deleted.
    Trimmed,
    /// New service keys are durable and may be used.
    ServiceKeysStored(RotatingSecrets),
    /// Client ids that were never assigned before.
    ClientIdsReserved(Range<u64>),
    /// The store failed, or another authority has taken over. The thread has ended.
    Failed(PersistError),
}
