//! What lies beyond a simulated OSD process: its clock as it is read now, connections to other machines, and the simulation
//! that watches it.

use super::sessions::{SessionConnection, Sessions};
use super::stalls::{Call, pass, pass_time_of_day, true_time};
use super::{Copies, Out};
use crate::bounds::Bound;
use crate::monitor::WALL;
use crate::network::Node;
use crate::packet::Packet;
use crate::schedule::Nanos;
use crate::store::Store;
use nacre_common::auth::Peer;
use nacre_common::conn::{ConnRef, Connection};
use nacre_common::error::{Error, Result};
use nacre_mon::logic;
use nacre_pg::heartbeat::HbEnvelope;
use nacre_shard::peers::Peers;
use nacre_shard::session::{Arrival, Session};
use nacre_shard::world::{Observation, World};
use nacre_types::errno::Errno;
use nacre_types::ids::EntityName;
use nacre_types::msg::{
    ConfigReport, Encoded, LogAppend, Message, MonSubscribe, OsdAlive, OsdBackoff, OsdBoot, OsdFailure,
    OsdMarkMeDown, OsdReply, PgCas, StatsReport, WatchLost, WatchNotify,
};
use nacre_types::osdmap::OsdMap;
use nacre_types::{ClientId, OsdId};
use parking_lot::{Mutex, MutexGuard};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use uuid::Uuid;

const ADDR: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);

/// See the module's documentation.
pub(super) struct Host {
    copies: Copies,
    store: Arc<Store>,
    local_ns: AtomicU64,
    /// The same moment in true time.
    true_ns: AtomicU64,
    wall_ahead: AtomicI64,
    /// The process.
    nonce: u64,
    uuids: AtomicU64,
    out: Arc<Mutex<Vec<Out>>>,
    /// Connections of clients, by their numbers there.
    conns: Mutex<BTreeMap<(Node, u64), ConnRef>>,
    /// Those of them that are over.
    over: Mutex<BTreeSet<(Node, u64)>>,
    next_conn: AtomicU64,
    /// Sessions with peers, and which of them shards use.
    sessions: Arc<Mutex<Sessions>>,
    peers: Mutex<Peers>,
}

impl Host {
    /// The process `nonce` on `store`, whose clock shows `local_ns`.
    pub(super) fn new(
        copies: Copies,
        store: Arc<Store>,
        nonce: u64,
        local_ns: Nanos,
        out: Arc<Mutex<Vec<Out>>>,
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
            out,
            conns: Mutex::default(),
            over: Mutex::default(),
            next_conn: AtomicU64::new(1),
            sessions: Arc::new(Mutex::new(sessions)),
            peers: Mutex::default(),
        }
    }

    /// The sessions with peers.
    pub(super) fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock()
    }

    /// The clock goes on; the time of day is so far ahead.
    pub(super) fn set_time(&self, now: Nanos, local_ns: Nanos, wall_ahead: i64) {
        self.true_ns.store(now, Ordering::Relaxed);
        self.local_ns.store(local_ns, Ordering::Relaxed);
        self.wall_ahead.store(wall_ahead, Ordering::Relaxed);
    }

    /// What the clock shows now.
    pub(super) fn local_ns(&self) -> Nanos {
        self.local_ns.load(Ordering::Relaxed)
    }

    /// True time.
    pub(super) fn true_ns(&self) -> Nanos {
        self.true_ns.load(Ordering::Relaxed)
    }

    /// What is to be done or known.
    pub(super) fn tell(&self, out: Out) {
        self.out.lock().push(out);
    }

    /// What the process wants done or known since this was asked last.
    pub(super) fn take(&self, out: &mut Vec<Out>) {
        out.append(&mut self.out.lock());
    }

    /// A bound was reached.
    pub(super) fn reached(&self, bound: Bound) {
        self.out.lock().push(Out::Reached(bound));
    }

    /// A rule does not hold.
    pub(super) fn broken(&self, rule: &'static str, detail: String) {
        self.out.lock().push(Out::Broken(rule, detail));
    }

    fn send(&self, to: Node, packet: Packet) {
        pass(Call::Send);
        self.out.lock().push(Out::Send(to, packet));
    }

    fn connect(&self, to: Node, number: u64, session: Session) -> ConnRef {
        let id = self.next_conn.fetch_add(1, Ordering::Relaxed);
        let out = Arc::clone(&self.out);
        ConnRef::new(Arc::new(SimConnection { to, number, id, out, session, over: AtomicBool::new(false) }))
    }

    /// A connection of a client's. Where it is over, what comes by it was still in its socket.
    pub(super) fn conn_of_client(&self, from: (Node, u64), session: ClientId) -> ConnRef {
        let mut conns = self.conns.lock();
        if let Some(conn) = conns.get(&from) {
            return conn.clone();
        }
        let peer = Peer {
            entity: EntityName::client("admin"),
            client: Some(session),
            caps: [("osd".to_owned(), "allow *".to_owned())].into(),
            nonce: 0,
            key_fingerprint: 0,
            expires_unix: None,
        };
        let (client, number) = from;
        let conn = self.connect(client, number, Session::new(&peer, ADDR));
        if self.over.lock().contains(&from) {
            conn.abort();
        } else {
            conns.insert(from, conn.clone());
        }
        conn
    }

    /// A client's connection is over; returns its id here.
    pub(super) fn lose_client(&self, from: (Node, u64)) -> Option<u64> {
        self.over.lock().insert(from);
        let conn = self.conns.lock().remove(&from)?;
        conn.abort();
        Some(conn.id())
    }
}

impl World for Host {
    fn boot_ns(&self) -> u64 {
        pass(Call::Clock);
        self.local_ns()
    }

    fn wall_ns(&self) -> u64 {
        pass_time_of_day();
        (WALL + self.local_ns()).saturating_add_signed(self.wall_ahead.load(Ordering::Relaxed))
    }

    fn fresh_uuid(&self) -> Uuid {
        let number = self.uuids.fetch_add(1, Ordering::Relaxed);
        Uuid::from_u64_pair(self.nonce, number)
    }

    fn to_mon(&self, message: Encoded) {
        let kind = message.kind;
        let osd = self.copies.member.osd;
        let event = match kind {
            PgCas::KIND => {
                message.decode().map(|cas| logic::Event::Cas { origin: logic::Origin(0), osd, cas })
            }
            OsdFailure::KIND => {
                message.decode().map(|report| logic::Event::Failure { reporter: osd, report })
            }
            OsdAlive::KIND => message.decode().map(|alive| logic::Event::Alive { osd, alive }),
            OsdBoot::KIND => message.decode().map(logic::Event::Boot),
            OsdMarkMeDown::KIND => message.decode().map(|request| logic::Event::MarkMeDown { osd, request }),
            MonSubscribe::KIND => match message.decode::<MonSubscribe>() {
                Ok(subscribe) => {
                    if !subscribe.config {
                        self.out.lock().push(Out::Reached(Bound::MapAsked));
                    }
                    return self.send(Node::Mon, Packet::Subscribe(subscribe.next_epoch.0));
                }
                Err(error) => Err(error),
            },
            StatsReport::KIND => message.decode().map(|report| logic::Event::Stats { osd, report }),
            // The simulated map authority does not use options and the cluster log.
            ConfigReport::KIND | LogAppend::KIND => return,
            _ => return self.broken("an unexpected message", format!("kind {kind}")),
        };
        match event {
            Ok(event) => self.send(Node::Mon, Packet::ToMon(Box::new(event))),
            Err(error) => self.broken("a message that can't be decoded", error.to_string()),
        }
    }

    fn peer(&self, osd: OsdId, shard: usize) -> Result<Option<ConnRef>, Error> {
        self.peers.lock().get(osd, |process| {
            let conn = SessionConnection::new(&self.sessions, self.local_ns(), osd, shard, process.addr);
            Ok(ConnRef::new(Arc::new(conn)))
        })
    }

    fn drop_peer(&self, osd: OsdId) {
        self.peers.lock().drop_conn(osd);
    }

    fn follow_map(&self, map: &OsdMap) -> Vec<OsdId> {
        self.peers.lock().on_map(map, self.copies.member.osd)
    }

    fn ping(&self, osd: OsdId, message: &HbEnvelope) {
        self.send(Node::Osd(osd.0), Packet::Heartbeat(*message));
    }

    fn public_addr(&self) -> Option<SocketAddr> {
        Some(ADDR)
    }

    fn fetch(&self, shard: usize, arrival: Box<Arrival>) {
        pass(Call::Send);
        self.out.lock().push(Out::Fetch { shard, arrival });
    }

    fn observe(&self, what: Observation<'_>) {
        let osd = self.copies.member.osd;
        let out = match what {
            Observation::Ordered { pg, interval } => Out::Ordered { pg, interval },
            Observation::Answered { pg, result, .. } if result == Errno::EIO.negated() => {
                Out::Broken("an execution failed with EIO", format!("{pg} on {osd}"))
            }
            Observation::Answered { pg, interval, wrote, judged_ns, .. } => {
                let judged = true_time(judged_ns, self.true_ns());
                Out::Answered { pg, interval, wrote, judged }
            }
            Observation::Unreadable { pg, object, interval } => {
                let has_own = self.copies.has_stored(&self.store.disk(), pg, object);
                Out::Unreadable { pg, object: object.clone(), interval, has_own }
            }
            Observation::SentBack => Out::Reached(Bound::RequestsHeld),
            Observation::UnknownRequest { pg, token } => {
                Out::Broken("a command about an unknown request", format!("{pg:?} on {osd}: {token}"))
            }
        };
        self.out.lock().push(out);
    }
}

/// An OSD's end of a client's connection.
struct SimConnection {
    to: Node,
    /// A client's number of it.
    number: u64,
    id: u64,
    out: Arc<Mutex<Vec<Out>>>,
    session: Session,
    over: AtomicBool,
}

impl Connection for SimConnection {
    fn send_encoded(&self, message: Encoded) -> Result<()> {
        pass(Call::Send);
        if self.is_over() {
            return Err(Error::Closed);
        }
        let kind = message.kind;
        let packet = match kind {
            OsdReply::KIND => message.decode().map(|reply| Packet::Reply(self.number, reply)),
            OsdBackoff::KIND => message.decode().map(|backoff| Packet::Backoff(self.number, backoff)),
            WatchNotify::KIND => message.decode().map(|notify| Packet::Notify(self.number, notify)),
            WatchLost::KIND => message.decode().map(|lost| Packet::Lost(self.number, lost)),
            _ => {
                self.out.lock().push(Out::Broken("an unexpected message", format!("kind {kind}")));
                return Ok(());
            }
        };
        self.out.lock().push(match packet {
            Ok(packet) => Out::Send(self.to, packet),
            Err(error) => Out::Broken("a message that can't be decoded", error.to_string()),
        });
        Ok(())
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn peer_addr(&self) -> SocketAddr {
        ADDR
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn abort(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    fn context(&self) -> Option<&(dyn Any + Send + Sync)> {
        Some(&self.session)
    }
}
