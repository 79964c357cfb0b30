//! What travels between simulated machines.

use bytes::Bytes;
use nacre_mon::logic;
use nacre_pg::heartbeat::HbEnvelope;
use nacre_session::{Confirm, Ready};
use nacre_types::crc32c::crc32c;
use nacre_types::encoding;
use nacre_types::msg::{MapPublish, OsdBackoff, OsdReply, OsdRequest, PgCasReply, WatchLost, WatchNotify};
use nacre_types::osdmap::{Incremental, OsdMap};
use nacre_types::placement::PgMapper;
use nacre_types::{OsdId, PgId};
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

/// Longer bytes of a socket are not shown in full.
const SHOWN_BYTES: usize = 64 << 10;

/// A map with what everybody computes from it, computed once.
#[derive(Debug)]
pub struct MapView {
    /// The map.
    pub map: Arc<OsdMap>,
    /// CRUSH's up set of every PG, holes left out.
    pub up: BTreeMap<PgId, Vec<OsdId>>,
    /// How the map follows from the one before, encoded; `None` where it begins a generation.
    incremental: Option<Bytes>,
    /// The map, encoded once somebody needs it whole.
    full: OnceLock<Bytes>,
}

impl MapView {
    /// Maps every PG. `incremental` leads to the map from the one before.
    pub fn new(map: OsdMap, incremental: Option<&Incremental>) -> MapView {
        let mut mapper = PgMapper::new(&map);
        let up: BTreeMap<PgId, Vec<OsdId>> = map.pg_ids().map(|pg| (pg, mapper.up(pg))).collect();
        let incremental = incremental.map(|incremental| encoding::encode(incremental).into());
        MapView { map: Arc::new(map), up, incremental, full: OnceLock::new() }
    }

    /// How the map follows from the one before, encoded; `None` where it begins a generation.
    pub fn incremental(&self) -> Option<&Bytes> {
        self.incremental.as_ref()
    }

    /// The whole map, encoded.
    pub fn full(&self) -> &Bytes {
        self.full.get_or_init(|| encoding::encode(&*self.map).into())
    }
}

/// What a socket carries, or what becomes of it.
#[derive(Clone)]
pub enum SocketEvent {
    /// A process connects, for this session. The handshake counts as one message.
    Connect(Confirm),
    /// The other one answers.
    Ready(Ready),
    /// Frames, or parts of frames.
    Bytes(Bytes),
    /// The sender's end is closed.
    Closed,
}

impl fmt::Debug for SocketEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SocketEvent::Connect(confirm) => f.debug_tuple("Connect").field(confirm).finish(),
            SocketEvent::Ready(ready) => f.debug_tuple("Ready").field(ready).finish(),
            SocketEvent::Bytes(bytes) if bytes.len() > SHOWN_BYTES => {
                write!(f, "Bytes({} bytes with a sum of {:08x})", bytes.len(), crc32c(bytes))
            }
            SocketEvent::Bytes(bytes) => f.debug_tuple("Bytes").field(bytes).finish(),
            SocketEvent::Closed => f.write_str("Closed"),
        }
    }
}

/// A message.
#[derive(Clone, Debug)]
pub enum Packet {
    /// Client to OSD, by a connection of the client's.
    Request(u64, OsdRequest),
    /// OSD to client.
    Reply(u64, OsdReply),
    /// OSD to client.
    Backoff(u64, OsdBackoff),
    /// OSD to client.
    Notify(u64, WatchNotify),
    /// OSD to client.
    Lost(u64, WatchLost),
    /// OSD to OSD, by a socket of a session.
    Socket(u64, SocketEvent),
    /// OSD to OSD, about leases and life.
    Heartbeat(HbEnvelope),
    /// OSD to the map authority.
    ToMon(Box<logic::Event>),
    /// OSD or client to the map authority: send maps from this epoch on, now and as they come; 0 asks for a whole one.
    Subscribe(u32),
    /// From the map authority.
    Map(Arc<MapPublish>),
    /// From the map authority.
    Cas(PgCasReply),
}

impl Packet {
    /// The connection between a client and an OSD that it goes by.
    pub fn connection(&self) -> Option<u64> {
        match self {
            Packet::Request(conn, _)
            | Packet::Reply(conn, _)
            | Packet::Backoff(conn, _)
            | Packet::Notify(conn, _)
            | Packet::Lost(conn, _) => Some(*conn),
            _ => None,
        }
    }

    /// About how long it is on the wire.
    pub fn bytes(&self) -> u64 {
        let contents = match self {
            Packet::Map(maps) => {
                maps.full.len() + maps.incrementals.iter().map(|blob| blob.0.len()).sum::<usize>()
            }
            Packet::Request(_, request) => request.payload_bytes(),
            Packet::Socket(_, SocketEvent::Bytes(bytes)) => bytes.len(),
            _ => 0,
        };
        contents as u64 + 80
    }

    /// Folds what tells packets apart into a trace hash: cheap, since any difference soon shows in times and orders too.
    pub fn fold(&self, state: &mut impl Hasher) {
        std::mem::discriminant(self).hash(state);
        match self {
            Packet::Request(_, r) => (r.reqid, r.attempt, r.epoch, r.interval).hash(state),
            Packet::Reply(_, r) => (r.reqid, r.attempt, r.result, r.user_version).hash(state),
            Packet::Backoff(_, b) => (b.reqid, b.attempt, b.epoch).hash(state),
            Packet::Notify(_, n) => (n.cookie, n.notify_id).hash(state),
            Packet::Lost(_, lost) => lost.cookie.hash(state),
            Packet::Socket(socket, event) => {
                socket.hash(state);
                std::mem::discriminant(event).hash(state);
                if let SocketEvent::Bytes(bytes) = event {
                    // The first header has the checksums of what follows it.
                    (bytes.len(), &bytes[..bytes.len().min(44)]).hash(state);
                }
            }
            Packet::Heartbeat(beat) => std::mem::discriminant(&beat.msg).hash(state),
            Packet::ToMon(event) => std::mem::discriminant(&**event).hash(state),
            Packet::Subscribe(next_epoch) => next_epoch.hash(state),
            Packet::Map(maps) => (maps.newest, maps.full.len(), maps.incrementals.len()).hash(state),
            Packet::Cas(reply) => (reply.pg, reply.accepted, reply.epoch).hash(state),
        }
    }
}
