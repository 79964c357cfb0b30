//! What travels between simulated machines.

use bytes::Bytes;
use nacre_pg::PgEnvelope;
use nacre_pg::heartbeat::HbEnvelope;
use nacre_session::{Confirm, Ready};
use nacre_types::crc32c::crc32c;
use nacre_types::encoding;
use nacre_types::msg::{
    ConfigReport, Encoded, LogAppend, MapPublish, Message, MonSubscribe, OsdAlive, OsdBackoff, OsdBoot,
    OsdFailure, OsdMarkMeDown, OsdReply, OsdRequest, PgCas, PgCasReply, StatsReport, WatchLost, WatchNotify,
};
use nacre_types::osdmap::{Incremental, OsdMap};
use nacre_types::placement::PgMapper;
use nacre_types::{ClientId, OsdId, PgId};
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
    /// A process connects, for this session; a client says which it is. The handshake counts as one message.
    Connect(Confirm, Option<ClientId>),
    /// The other one answers.
    Ready(Ready),
    /// No process listens where this was to lead.
    Refused,
    /// Frames, or parts of frames.
    Bytes(Bytes),
    /// The sender's end is closed.
    Closed,
}

impl fmt::Debug for SocketEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SocketEvent::Connect(confirm, client) => {
                f.debug_tuple("Connect").field(confirm).field(client).finish()
            }
            SocketEvent::Ready(ready) => f.debug_tuple("Ready").field(ready).finish(),
            SocketEvent::Refused => f.write_str("Refused"),
            SocketEvent::Bytes(bytes) if bytes.len() > SHOWN_BYTES => {
                write!(f, "Bytes({} bytes with a sum of {:08x})", bytes.len(), crc32c(bytes))
            }
            SocketEvent::Bytes(bytes) => f.debug_tuple("Bytes").field(bytes).finish(),
            SocketEvent::Closed => f.write_str("Closed"),
        }
    }
}

/// What travels by a socket, to whoever is at its other end.
#[derive(Clone, Debug)]
pub struct Packet {
    /// The socket's number.
    pub socket: u64,
    /// What it carries.
    pub event: SocketEvent,
}

impl Packet {
    /// About how long it is on the wire.
    pub fn bytes(&self) -> u64 {
        let contents = match &self.event {
            SocketEvent::Bytes(bytes) => bytes.len(),
            _ => 0,
        };
        contents as u64 + 80
    }

    /// Folds what tells packets apart into a trace hash: cheap, since any difference soon shows in times and orders too.
    pub fn fold(&self, state: &mut impl Hasher) {
        self.socket.hash(state);
        std::mem::discriminant(&self.event).hash(state);
        if let SocketEvent::Bytes(bytes) = &self.event {
            // The first header has the checksums of what follows it.
            (bytes.len(), &bytes[..bytes.len().min(44)]).hash(state);
        }
    }
}

/// What a trace says of a message that goes by a session or connection.
pub fn describe(message: &Encoded) -> String {
    fn show<M: Message + fmt::Debug>(message: &Encoded) -> String {
        message.clone().decode::<M>().map_or_else(|error| error.to_string(), |decoded| format!("{decoded:?}"))
    }
    match message.kind {
        PgEnvelope::KIND => show::<PgEnvelope>(message),
        HbEnvelope::KIND => show::<HbEnvelope>(message),
        OsdRequest::KIND => show::<OsdRequest>(message),
        OsdReply::KIND => show::<OsdReply>(message),
        OsdBackoff::KIND => show::<OsdBackoff>(message),
        WatchNotify::KIND => show::<WatchNotify>(message),
        WatchLost::KIND => show::<WatchLost>(message),
        MonSubscribe::KIND => show::<MonSubscribe>(message),
        MapPublish::KIND => show::<MapPublish>(message),
        PgCas::KIND => show::<PgCas>(message),
        PgCasReply::KIND => show::<PgCasReply>(message),
        OsdBoot::KIND => show::<OsdBoot>(message),
        OsdFailure::KIND => show::<OsdFailure>(message),
        OsdAlive::KIND => show::<OsdAlive>(message),
        OsdMarkMeDown::KIND => show::<OsdMarkMeDown>(message),
        StatsReport::KIND => show::<StatsReport>(message),
        ConfigReport::KIND => show::<ConfigReport>(message),
        LogAppend::KIND => show::<LogAppend>(message),
        kind => format!("a message of kind {kind}"),
    }
}
