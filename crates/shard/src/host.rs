//! The interface between an OSD and its environment: clocks, sessions with peers and the map authority, heartbeats, the internal client.

use crate::session::IncomingRequest;
use nacre_common::conn::ConnRef;
use nacre_common::error::Error;
use nacre_objectstore::ObjectStore;
use nacre_pg::heartbeat::HbEnvelope;
use nacre_types::ids::{Eversion, Interval, OsdId, PgId};
use nacre_types::msg::{EncodedMessage, OsdRequest};
use nacre_types::object::ObjectId;
use nacre_types::osdmap::OsdMap;
use std::net::SocketAddr;
use uuid::Uuid;

/// The environment of an OSD's shards. The daemon implements it with sockets and the machine's clocks; a simulation has its
/// own.
pub trait ShardHost: Send + Sync {
    /// Nanoseconds of CLOCK_BOOTTIME: it advances during suspends, and is never set. Leases and deadlines use it.
    fn boot_ns(&self) -> u64;

    /// Nanoseconds since 1970, for people and other machines.
    fn wall_ns(&self) -> u64;

    /// A UUID that was never used before.
    fn fresh_uuid(&self) -> Uuid;

    /// Sends to the map authority. Without a connection, nothing is sent, and the sender repeats its request.
    fn send_to_mon(&self, message: EncodedMessage);

    /// The session with the process of `osd` that the map shows, for messages about PGs of the shard `shard`; created if there
    /// is none. `None` while the map shows no process.
    fn peer(&self, osd: OsdId, shard: usize) -> Result<Option<ConnRef>, Error>;

    /// Ends the session with `osd`, because a message could not be sent on it.
    fn drop_peer(&self, osd: OsdId);

    /// Follows the map: ends sessions with processes that it does not show. Returns the peers whose sessions ended.
    fn follow_map(&self, map: &OsdMap) -> Vec<OsdId>;

    /// Sends a heartbeat to the process of `osd` that the map shows, on a lossy connection for heartbeats only. Only control
    /// calls it.
    fn ping(&self, osd: OsdId, message: &HbEnvelope);

    /// The address at which peers reach this OSD; `None` until it can take part.
    fn public_addr(&self) -> Option<SocketAddr>;

    /// The map's pools have changed.
    fn pools_changed(&self) {}

    /// The health warnings of the store: (health code, text).
    fn health(&self, store: &dyn ObjectStore) -> Vec<(String, String)> {
        store.health()
    }

    /// Reads the sources of the request's copy-from ops. The result is posted to the shard `shard` as
    /// [`ShardMessage::Fetched`](crate::inbox::ShardMessage::Fetched).
    fn fetch(&self, shard: usize, arrival: Box<IncomingRequest>);

    /// Reads the source of the request's copy-from op, of at most `max_bytes`, in another pool of the tier. The result is
    /// posted to the shard `shard` as [`ShardMessage::PromotionRead`](crate::inbox::ShardMessage::PromotionRead).
    fn read_base(&self, shard: usize, ticket: u64, request: Box<OsdRequest>, max_bytes: u64);

    /// Sends a request to the other pool of a tier, in the order of calls. The answer is posted to the shard `shard` as
    /// [`ShardMessage::TierReply`](crate::inbox::ShardMessage::TierReply).
    fn request_other_pool(&self, shard: usize, ticket: u64, request: Box<OsdRequest>);

    /// Reports an event that only simulations observe.
    fn observe(&self, _what: Observation<'_>) {}
}

/// See [`ShardHost::observe`].
#[derive(Clone, Copy, Debug)]
pub enum Observation<'a> {
    /// A machine ordered an update of this PG in this interval.
    Ordered {
        /// The PG.
        pg: PgId,
        /// The version's interval.
        interval: Interval,
    },
    /// A client was answered by this PG in this interval, with this version if it wrote.
    Answered {
        /// The PG.
        pg: PgId,
        /// The interval in which the machine answered.
        interval: Interval,
        /// The write's version; `None` for reads.
        wrote: Option<Eversion>,
        /// The result.
        result: i32,
        /// The shard's last reading of CLOCK_BOOTTIME when the machine released the answer: leases were judged by this time.
        judged_ns: u64,
    },
    /// A client was answered that an object can't be read.
    Unreadable {
        /// The PG.
        pg: PgId,
        /// The object.
        object: &'a ObjectId,
        /// The interval in which the machine answered.
        interval: Interval,
    },
    /// A request was sent back because the maximum number of requests waits.
    SentBack,
    /// A machine used the token of a request that does not exist.
    UnknownRequest {
        /// The PG, if it is still hosted.
        pg: Option<PgId>,
        /// The request's token.
        token: u64,
    },
}
