//! Messages between entities and the monitors about tickets and service keys (kinds 40 to 49).
//!
//! They contain secrets and are sent only over secure connections, as those with a key credential always are.

use super::key::SessionKey;
use super::ticket::ServiceKey;
use bytes::Bytes;
use nacre_types::ids::ClientId;
use nacre_types::msg::Message;
use serde::{Deserialize, Serialize};

/// Requests a ticket for the OSDs and, for a daemon, the service keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AuthTicketRequest {
    /// Pairs the reply with the request on its connection.
    pub tid: u64,
    /// The ticket to replace, which may have expired: the session keeps its id. `None` starts a session.
    pub renew: Option<Bytes>,
}

/// The answer to an [`AuthTicketRequest`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AuthTicketReply {
    /// The request's number.
    pub tid: u64,
    /// 0 or a negated errno.
    pub code: i32,
    /// Text for people.
    pub status: String,
    /// The session's id.
    pub client: ClientId,
    /// The ticket.
    pub ticket: Option<TicketGrant>,
    /// The service keys, for OSDs.
    pub keys: Vec<ServiceKey>,
}

/// A ticket for its holder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TicketGrant {
    /// The sealed body.
    pub blob: Bytes,
    /// The ticket's secret.
    pub session_key: SessionKey,
    /// When it expires, seconds since 1970.
    pub expires_unix: u64,
}

/// The service keys in use from now on, sent to daemons when they rotate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RotatingKeys {
    /// Previous, current, next.
    pub keys: Vec<ServiceKey>,
}

impl Message for AuthTicketRequest {
    const KIND: u16 = 40;
    const NAME: &'static str = "AuthTicketRequest";
}

impl Message for AuthTicketReply {
    const KIND: u16 = 41;
    const NAME: &'static str = "AuthTicketReply";
}

impl Message for RotatingKeys {
    const KIND: u16 = 42;
    const NAME: &'static str = "RotatingKeys";
}
