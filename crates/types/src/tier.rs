//! Requests between the two pools of a cache tier.

use crate::encoding::Versioned;
use crate::ids::{Epoch, Interval, PgId, PoolId, ReqId};
use crate::object::ObjectId;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// The namespace of the OSDs' internal objects, which listings and sums do not include (`osd_hit_set_namespace`).
pub const INTERNAL_NAMESPACE: &str = ".ceph-internal";

/// Returns the object in which a PG of a cache with `cache_dirty_log` records the names of its dirty objects: an object of the
/// base pool, whose omap has a key for each ([`dirty_key`]).
pub fn dirty_log_object(base: PoolId, pg: PgId) -> ObjectId {
    ObjectId::new(base, INTERNAL_NAMESPACE, "", &format!("dirty.{pg}"))
}

/// Returns the key of a cache's object in its PG's [`dirty_log_object`].
pub fn dirty_key(object: &ObjectId) -> Bytes {
    postcard::to_allocvec(object).unwrap_or_default().into()
}

/// Returns the object of a key, or `None` if it is not from [`dirty_key`].
pub fn dirty_object(key: &[u8]) -> Option<ObjectId> {
    postcard::from_bytes(key).ok()
}

/// The identity of a PG's primary in its requests to the other pool of the tier.
///
/// The receiver executes the request only under a map of at least `epoch`, and only while that map shows no later interval of
/// the sender's PG. So no request of a deposed primary takes effect after its successor's first request has arrived: that has
/// an epoch whose map shows the successor's interval, and later primaries of the receiving PG have even later maps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierSender {
    /// The sender's PG.
    pub pg: PgId,
    /// The interval in which it is primary.
    pub interval: Interval,
    /// The epoch of its map, which shows that interval.
    pub epoch: Epoch,
    /// The client that issued this request; `None` for the sender's own.
    pub client: Option<ProxiedClient>,
    /// For the removal of an object that was deleted in the cache: the user version of that deletion; 0 for other requests.
    pub user_version: u64,
}

/// The client for which a proxied request is executed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxiedClient {
    /// The client's own id of the request.
    pub reqid: ReqId,
    /// How often the client had sent it before.
    pub attempt: u32,
    /// The oldest request for which the client still waits.
    pub oldest_tid: u64,
    /// The client's address.
    pub addr: SocketAddr,
}

/// A PG's record of a client's request ([`crate::op::Op::QueryRequest`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RequestRecord {
    /// The request was not executed and will not be.
    Unknown,
    /// The request took effect, with this recorded reply.
    Executed(#[serde(with = "crate::payload")] Bytes),
    /// The request may have taken effect: its record was dropped.
    Forgotten,
}

impl Versioned for RequestRecord {
    const NAME: &'static str = "RequestRecord";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_dirty_log_stand_for_objects() {
        for (namespace, locator, name) in
            [("", "", "x"), ("ns", "", "x"), ("", "near", "x"), ("a", "b", "c/\0")]
        {
            let object = ObjectId::new(PoolId(3), namespace, locator, name);
            assert_eq!(dirty_object(&dirty_key(&object)), Some(object));
        }
        assert_eq!(dirty_object(b""), None);
        assert_eq!(dirty_log_object(PoolId(1), PgId::new(PoolId(3), 26)).name(), "dirty.3.1a");
    }
}
