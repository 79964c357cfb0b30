//! The environment of a simulated OSD process: its current clock, connections to other machines, and the simulation that observes it.

use super::pings::HeartbeatConnections;
use super::{Copies, OsdOutput};
use crate::bounds::Bound;
use crate::monitor::START_WALL_NS;
use crate::schedule::{MILLI, Nanos, SECOND};
use crate::sessions::{MonLink, SessionConnection, Sessions, Waits};
use crate::stalls::{Call, stall_point, true_time, wall_clock_stall_point};
use crate::store::Store;
use nacre_common::auth::Peer;
use nacre_common::conn::ConnRef;
use nacre_common::error::Error;
use nacre_pg::heartbeat::HbEnvelope;
use nacre_session::Policy;
use nacre_shard::host::{Observation, ShardHost};
use nacre_shard::peers::Peers;
use nacre_shard::session::{IncomingRequest, Session};
use nacre_types::errno::Errno;
use nacre_types::ids::EntityName;
use nacre_types::msg::{EncodedMessage, Message, MonSubscribe, OsdRequest, PgCas};
use nacre_types::osdmap::OsdMap;
use nacre_types::{ClientId, OsdId};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use uuid::Uuid;

const ADDR: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);

/// Waits between connection attempts to the map authority, as in the OSD.
const MON_WAITS: Waits = Waits { least: 0, first: 100 * MILLI, longest: 2 * SECOND };

/// See the module's documentation.
pub(super) struct Host {
    copies: Copies,
    store: Arc<Store>,
    local_ns: AtomicU64,
    /// The same time in true time.
    true_ns: AtomicU64,
    wall_ahead: AtomicI64,
    /// The nonce of the process.
    nonce: u64,
    uuids: AtomicU64,
    out: Mutex<Vec<OsdOutput>>,
    /// Lossy connections that were accepted: of clients, and of peers for their heartbeats.
    conns: Mutex<BTreeMap<u64, ConnRef>>,
    /// Sessions with peers, and the sessions that shards use.
    sessions: Arc<Mutex<Sessions>>,
    peers: Mutex<Peers>,
    pings: Mutex<HeartbeatConnections>,
    mon: Mutex<MonLink>,
}

impl Host {
    /// The environment of the process `nonce` on `store`, whose clock shows `local_ns`.
    pub(super) fn new(
        copies: Copies,
        store: Arc<Store>,
        nonce: u64,
        local_ns: Nanos,
        sessions: Sessions,
    ) -> Host {
        Host {
            copies,
            store,
            local_ns: AtomicU64::new(local_ns),
            true_ns: AtomicU64::new(0),
            wall_ahead: AtomicI64::new(0),
            nonce,
            uuids: AtomicU64::new(1),
            out: Mutex::default(),
            conns: Mutex::default(),
            sessions: Arc::new(Mutex::new(sessions)),
            peers: Mutex::default(),
            pings: Mutex::default(),
            mon: Mutex::new(MonLink::new(MON_WAITS, 0)),
        }
    }

    /// The sessions with peers, and connections of clients.
    pub(super) fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock()
    }

    /// Sets the clock and the wall clock's lead.
    pub(super) fn set_time(&self, now: Nanos, local_ns: Nanos, wall_ahead: i64) {
        self.true_ns.store(now, Ordering::Relaxed);
        self.local_ns.store(local_ns, Ordering::Relaxed);
        self.wall_ahead.store(wall_ahead, Ordering::Relaxed);
    }

    /// The current time of the clock.
    pub(super) fn local_ns(&self) -> Nanos {
        self.local_ns.load(Ordering::Relaxed)
    }

    /// True time.
    pub(super) fn true_ns(&self) -> Nanos {
        self.true_ns.load(Ordering::Relaxed)
    }

    /// Reports an event or requests an action.
    pub(super) fn tell(&self, out: OsdOutput) {
        self.out.lock().push(out);
    }

    /// Takes the events and requested actions since the last call.
    pub(super) fn take(&self, out: &mut Vec<OsdOutput>) {
        out.append(&mut self.out.lock());
        out.extend(self.sessions().take().map(OsdOutput::Session));
    }

    /// A bound was reached.
    pub(super) fn reached(&self, bound: Bound) {
        self.out.lock().push(OsdOutput::Reached(bound));
    }

    /// Reports a broken rule.
    pub(super) fn broken(&self, rule: &'static str, detail: String) {
        self.out.lock().push(OsdOutput::Broken(rule, detail));
    }

    /// Accepts a lossy connection of `osd`, or of a client.
    pub(super) fn accept(&self, id: u64, session: Option<ClientId>, osd: Option<OsdId>) {
        let peer = Peer {
            entity: osd.map_or_else(|| EntityName::client("admin"), EntityName::osd),
            client: session,
            caps: [("osd".to_owned(), "allow *".to_owned())].into(),
            nonce: 0,
            key_fingerprint: 0,
            expires_unix: None,
        };
        let context = Box::new(Session::new(&peer, ADDR));
        let conn = SessionConnection::of(&self.sessions, id, ADDR, Some(context));
        let mut conns = self.conns.lock();
        // Connections that shards have ended.
        conns.retain(|_, conn| !conn.is_over());
        conns.insert(id, ConnRef::new(Arc::new(conn)));
    }

    /// A connection that was accepted.
    pub(super) fn accepted(&self, id: u64) -> Option<ConnRef> {
        self.conns.lock().get(&id).cloned()
    }

    /// Connects to the map authority if there is no connection and the wait is over.
    pub(super) fn connect_mon_if_due(&self) {
        self.mon.lock().connect_if_due(self.local_ns(), &mut self.sessions());
    }

    /// When [`Host::connect_mon_if_due`] has to run.
    pub(super) fn next_mon_wake(&self) -> Option<Nanos> {
        self.mon.lock().next_wake()
    }

    /// Handles an established connection. Returns whether it is the one to the map authority.
    pub(super) fn mon_connected(&self, id: u64) -> bool {
        self.mon.lock().on_connected(id)
    }

    /// Handles a lost connection. Returns whether it is the one to the map authority.
    pub(super) fn mon_lost(&self, id: u64) -> bool {
        self.mon.lock().on_reset(self.local_ns(), id)
    }

    /// Whether it is the connection to the map authority.
    pub(super) fn is_mon(&self, id: u64) -> bool {
        self.mon.lock().is_current(id)
    }

    /// Removes an accepted connection that is over. Returns whether `holds` is true for its session.
    pub(super) fn lose_accepted(&self, id: u64, holds: impl FnOnce(&Session) -> bool) -> bool {
        let conn = self.conns.lock().remove(&id);
        conn.is_some_and(|conn| conn.context::<Session>().is_some_and(holds))
    }

    /// The connections made for heartbeats.
    pub(super) fn pings(&self) -> MutexGuard<'_, HeartbeatConnections> {
        self.pings.lock()
    }
}

impl ShardHost for Host {
    fn boot_ns(&self) -> u64 {
        stall_point(Call::Clock);
        self.local_ns()
    }

    fn wall_ns(&self) -> u64 {
        wall_clock_stall_point();
        (START_WALL_NS + self.local_ns()).saturating_add_signed(self.wall_ahead.load(Ordering::Relaxed))
    }

    fn fresh_uuid(&self) -> Uuid {
        let number = self.uuids.fetch_add(1, Ordering::Relaxed);
        Uuid::from_u64_pair(self.nonce, number)
    }

    fn send_to_mon(&self, message: EncodedMessage) {
        let looked = match message.kind {
            PgCas::KIND => message.clone().decode::<PgCas>().map(|cas| {
                self.out.lock().push(OsdOutput::Proposed(cas.pg, Box::new(cas.proposed)));
            }),
            MonSubscribe::KIND => message.clone().decode::<MonSubscribe>().map(|subscribe| {
                if !subscribe.config {
                    self.reached(Bound::MapAsked);
                }
            }),
            _ => Ok(()),
        };
        if let Err(error) = looked {
            self.broken("a message that can't be decoded", error.to_string());
        }
        stall_point(Call::Send);
        // A message that can't be sent is lost, as in production: its owner repeats it in time or on the next connection.
        let _ = self.mon.lock().send_encoded(&mut self.sessions(), message);
    }

    fn peer(&self, osd: OsdId, shard: usize) -> Result<Option<ConnRef>, Error> {
        self.peers.lock().get(osd, |process| {
            let now = self.local_ns();
            let peer = (osd, Policy::Lossless);
            let conn = SessionConnection::begin(&self.sessions, now, peer, shard, process.addr);
            Ok(ConnRef::new(Arc::new(conn)))
        })
    }

    fn drop_peer(&self, osd: OsdId) {
        self.peers.lock().drop_conn(osd);
    }

    fn follow_map(&self, map: &OsdMap) -> Vec<OsdId> {
        let me = self.copies.member.osd;
        self.pings().on_map(map, me);
        self.peers.lock().on_map(map, me)
    }

    fn ping(&self, osd: OsdId, message: &HbEnvelope) {
        let conn = self.pings().get(self.local_ns(), osd, &self.sessions);
        if let Ok(Some(conn)) = conn {
            // A message that can't be sent is lost.
            let _ = conn.send(message);
        }
    }

    fn public_addr(&self) -> Option<SocketAddr> {
        Some(ADDR)
    }

    fn fetch(&self, shard: usize, arrival: Box<IncomingRequest>) {
        stall_point(Call::Send);
        self.out.lock().push(OsdOutput::Fetch { shard, arrival });
    }

    fn read_base(&self, shard: usize, ticket: u64, request: Box<OsdRequest>, _max_bytes: u64) {
        stall_point(Call::Send);
        self.out.lock().push(OsdOutput::AskOther { shard, ticket, request, reads: true });
    }

    fn request_other_pool(&self, shard: usize, ticket: u64, request: Box<OsdRequest>) {
        stall_point(Call::Send);
        self.out.lock().push(OsdOutput::AskOther { shard, ticket, request, reads: false });
    }

    fn observe(&self, what: Observation<'_>) {
        let osd = self.copies.member.osd;
        let out = match what {
            Observation::Ordered { pg, interval } => OsdOutput::Ordered { pg, interval },
            Observation::Answered { pg, result, .. } if result == Errno::EIO.negated() => {
                OsdOutput::Broken("an execution failed with EIO", format!("{pg} on {osd}"))
            }
            Observation::Answered { pg, interval, wrote, judged_ns, .. } => {
                let judged = true_time(judged_ns, self.true_ns());
                OsdOutput::Answered { pg, interval, wrote, judged }
            }
            Observation::Unreadable { pg, object, interval } => {
                let has_own = self.copies.has_stored(&self.store.disk(), pg, object);
                OsdOutput::Unreadable { pg, object: object.clone(), interval, has_own }
            }
            Observation::SentBack => OsdOutput::Reached(Bound::RequestsHeld),
            Observation::UnknownRequest { pg, token } => {
                OsdOutput::Broken("a command about an unknown request", format!("{pg:?} on {osd}: {token}"))
            }
        };
        self.out.lock().push(out);
    }
}
