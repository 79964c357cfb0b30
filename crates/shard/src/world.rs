//! The seam between an OSD and the world: clocks, sessions with peers and the map authority, heartbeats, the copier.

use crate::session::Arrival;
use nacre_common::conn::ConnRef;
use nacre_common::error::Error;
use nacre_objectstore::ObjectStore;
use nacre_pg::heartbeat::HbEnvelope;
use nacre_types::ids::{Eversion, Interval, OsdId, PgId};
use nacre_types::msg::{Encoded, OsdRequest};
use nacre_types::object::ObjectId;
use nacre_types::osdmap::OsdMap;
use std::net::SocketAddr;
use uuid::Uuid;

/// What shards reach beyond their OSD. The daemon's is made of sockets and the machine's clocks; a simulation has its own.
pub trait World: Send + Sync {
    /// Nanoseconds of CLOCK_BOOTTIME: goes on through suspends, and is never set. Leases and deadlines run on it.
    fn boot_ns(&self) -> u64;

    /// Nanoseconds since 1970, for what people and other machines read.
    fn wall_ns(&self) -> u64;

    /// A number that was never used before.
    fn fresh_uuid(&self) -> Uuid;

    /// Sends to the map authority; without a connection nothing is sent, and who asked asks again.
    fn to_mon(&self, message: Encoded);

    /// The session with the process of `osd` that the map shows, for messages about PGs of the shard `shard`; made where there
    /// is none. `None` while the map shows no process.
    fn peer(&self, osd: OsdId, shard: usize) -> Result<Option<ConnRef>, Error>;

    /// Ends the session with `osd`: something that was to be sent on it could not be.
    fn drop_peer(&self, osd: OsdId);

    /// The map is followed: sessions with processes that it does not show end. Returns peers whose process is another one than
    /// before.
    fn follow_map(&self, map: &OsdMap) -> Vec<OsdId>;

    /// Sends a heartbeat to the process of `osd` that the map shows, by a lossy connection that carries nothing else. Called by control
    /// only.
    fn ping(&self, osd: OsdId, message: &HbEnvelope);

    /// Where peers reach this OSD; `None` until it can take part.
    fn public_addr(&self) -> Option<SocketAddr>;

    /// The map's pools are others than before.
    fn pools_changed(&self) {}

    /// What operators must know of the store: (health code, text).
    fn health(&self, store: &dyn ObjectStore) -> Vec<(String, String)> {
        store.health()
    }

    /// Reads the sources of the request's copy-from ops; the shard `shard` hears of it by
    /// [`ShardMessage::Fetched`](crate::inbox::ShardMessage::Fetched).
    fn fetch(&self, shard: usize, arrival: Box<Arrival>);

    /// Reads the source of the request's copy-from op, of at most `max_bytes`, in another pool of the tier; the shard `shard` hears of it by
    /// [`ShardMessage::ReadOther`](crate::inbox::ShardMessage::ReadOther).
    fn read_other(&self, shard: usize, ticket: u64, request: Box<OsdRequest>, max_bytes: u64);

    /// Sends a request to the other pool of a tier, in the order of calls; the shard `shard` hears of the answer by
    /// [`ShardMessage::Answered`](crate::inbox::ShardMessage::Answered).
    fn ask_other(&self, shard: usize, ticket: u64, request: Box<OsdRequest>);

    /// Tells of an event that only simulations observe.
    fn observe(&self, _what: Observation<'_>) {}
}

/// See [`World::observe`].
#[derive(Clone, Copy, Debug)]
pub enum Observation<'a> {
    /// A machine ordered an update: of this PG, under this interval.
    Ordered {
        /// The PG.
        pg: PgId,
        /// The version's interval.
        interval: Interval,
    },
    /// A client was answered: of this PG, under this interval, with this version if it wrote.
    Answered {
        /// The PG.
        pg: PgId,
        /// The interval under which the machine answered.
        interval: Interval,
        /// The write's version; `None` for reads.
        wrote: Option<Eversion>,
        /// The result.
        result: i32,
        /// CLOCK_BOOTTIME as the shard had read it when the machine let the answer go: by this time leases were judged.
        judged_ns: u64,
    },
    /// A client was told that an object can't be read.
    Unreadable {
        /// The PG.
        pg: PgId,
        /// The object.
        object: &'a ObjectId,
        /// The interval under which the machine said so.
        interval: Interval,
    },
    /// A request was sent back because as many wait as may.
    SentBack,
    /// A machine named a request that it does not have.
    UnknownRequest {
        /// The PG, where it is hosted still.
        pg: Option<PgId>,
        /// The request's token.
        token: u64,
    },
}
