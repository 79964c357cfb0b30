//! The messages between simulated machines.

use bytes::Bytes;
use nacre_pg::PgEnvelope;
use nacre_pg::heartbeat::HbEnvelope;
use nacre_session::{ConnectReply, ConnectRequest};
use nacre_types::crc32c::crc32c;
use nacre_types::encoding;
use nacre_types::msg::{
    ConfigReport, EncodedMessage, LogAppend, MapPublish, Message, MonSubscribe, OsdBackoff, OsdBeacon,
    OsdBoot, OsdFailure, OsdMarkMeDown, OsdReply, OsdRequest, PgCas, PgCasReply, StatsReport, WatchLost,
    WatchNotify,
};
use nacre_types::osdmap::{Incremental, OsdMap};
use nacre_types::placement::PgMapper;
use nacre_types::{ClientId, OsdId, PgId};
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

/// Longer contents of a socket are not shown in full.
const SHOWN_BYTES: usize = 64 << 10;

/// A map with derived data that is computed once for all users.
#[derive(Debug)]
pub struct MapView {
    /// The map.
    pub map: Arc<OsdMap>,
    /// CRUSH's up set of every PG, without holes.
    pub up: BTreeMap<PgId, Vec<OsdId>>,
    /// The encoded incremental from the previous map; `None` if the map starts a generation.
    incremental: Option<Bytes>,
    /// The encoded full map, once it is needed.
    full: OnceLock<Bytes>,
}

impl MapView {
    /// Maps every PG. `incremental` is the change from the previous map.
    pub fn new(map: OsdMap, incremental: Option<&Incremental>) -> MapView {
        let mut mapper = PgMapper::new(&map);
        let up: BTreeMap<PgId, Vec<OsdId>> = map.pg_ids().map(|pg| (pg, mapper.up(pg))).collect();
        let incremental = incremental.map(|incremental| encoding::encode(incremental).into());
        MapView { map: Arc::new(map), up, incremental, full: OnceLock::new() }
    }

    /// The encoded incremental from the previous map; `None` if the map starts a generation.
    pub fn incremental(&self) -> Option<&Bytes> {
        self.incremental.as_ref()
    }

    /// The encoded full map.
    pub fn full(&self) -> &Bytes {
        self.full.get_or_init(|| encoding::encode(&*self.map).into())
    }
}

/// An event of a socket.
#[derive(Clone)]
pub enum SocketEvent {
    /// A process connects for this session; a client states its id. The handshake counts as one message.
    Connect(ConnectRequest, Option<ClientId>),
    /// The other side answers.
    Ready(ConnectReply),
    /// No process listens at the socket's destination.
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

/// An event of a socket, on its way to the other end.
#[derive(Clone, Debug)]
pub struct Packet {
    /// The socket's number.
    pub socket: u64,
    /// The event.
    pub event: SocketEvent,
}

impl Packet {
    /// The approximate size on the wire.
    pub fn bytes(&self) -> u64 {
        let contents = match &self.event {
            SocketEvent::Bytes(bytes) => bytes.len(),
            _ => 0,
        };
        contents as u64 + 80
    }

    /// Adds the distinguishing parts of a packet to a trace hash. It is cheap, since any difference soon affects times and orders too.
    pub fn fold(&self, state: &mut impl Hasher) {
        self.socket.hash(state);
        std::mem::discriminant(&self.event).hash(state);
        if let SocketEvent::Bytes(bytes) = &self.event {
            // The first header has the checksums of what follows it.
            (bytes.len(), &bytes[..bytes.len().min(44)]).hash(state);
        }
    }
}

/// The text for a message in a trace.
pub fn describe(message: &EncodedMessage) -> String {
    fn show<M: Message + fmt::Debug>(message: &EncodedMessage) -> String {
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
        OsdBeacon::KIND => show::<OsdBeacon>(message),
        OsdMarkMeDown::KIND => show::<OsdMarkMeDown>(message),
        StatsReport::KIND => show::<StatsReport>(message),
        ConfigReport::KIND => show::<ConfigReport>(message),
        LogAppend::KIND => show::<LogAppend>(message),
        kind => format!("a message of kind {kind}"),
    }
}
