//! What the thread of the map authority receives.

use crate::store_thread::StoreReply;
use nacre_common::metrics::Exposition;
use nacre_runtime::admin::AdminReply;
use nacre_runtime::msgr::{Conn, Frame};
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
