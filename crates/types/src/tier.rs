//! Requests between the two pools of a cache tier.

use crate::encoding::Versioned;
use crate::ids::{Epoch, Interval, PgId, ReqId};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// What the primary of a PG says of itself in its requests to the other pool of the tier.
///
/// The receiver executes the request only under a map of at least `epoch`, and only while that map shows no later interval of
/// the sender's PG. So nothing that a deposed primary sent takes effect after its successor's first request arrived: that
/// carries an epoch whose map shows the successor's interval, and later primaries of the receiving PG have later maps still.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierSender {
    /// The sender's PG.
    pub pg: PgId,
    /// The interval in which it is primary.
    pub interval: Interval,
    /// Its map's epoch, which shows that interval.
    pub epoch: Epoch,
    /// The client whose request this is; `None` for the sender's own.
    pub client: Option<ProxiedClient>,
    /// For the removal of an object that is deleted in the cache: the user version of that deletion, 0 for other requests.
    pub user_version: u64,
}

/// The client in whose name a proxied request is executed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxiedClient {
    /// The client's own name for the request.
    pub reqid: ReqId,
    /// How often the client had sent it before.
    pub attempt: u32,
    /// The oldest request for which the client still waits.
    pub oldest_tid: u64,
    /// Where the client is.
    pub addr: SocketAddr,
}

/// What a PG knows of a request of a client ([`crate::op::Op::QueryRequest`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RequestRecord {
    /// It was not executed, and will not be.
    Unknown,
    /// It took effect: the recorded reply.
    Executed(#[serde(with = "crate::payload")] Bytes),
    /// It may have taken effect: its record is gone.
    Forgotten,
}

impl Versioned for RequestRecord {
    const NAME: &'static str = "RequestRecord";
}
