//! A simulated OSD: the host of its PG machines, on a simulated disk and an own clock.
//!
//! It does for [`nacre_pg::Pg`] what the real OSD does: feeds events, carries commands out in order, keeps clients'
//! requests, remembers its newest map, boots, beats and reports. It knows nothing of the network's or the disk's tempers:
//! what is to be sent, and what happened that the invariants want to know, goes to the caller ([`Out`]).

mod execution;

use crate::disk::{Collection, Disk, Image};
use crate::network::Node;
use crate::packet::{MapView, Packet};
use crate::schedule::{Clock, Nanos, SECOND};
use bytes::Bytes;
use nacre_exec::{Limits, pieces};
use nacre_mon::logic;
use nacre_pg::heartbeat::{HbCommand, HbEvent, Heartbeat, HeartbeatMap};
use nacre_pg::lease::LeaseTable;
use nacre_pg::reserve::{Reservation, Reserver};
use nacre_pg::{
    ClientOp, Command, DropReason, Event, Executed, KnownOsds, PeerMsg, Pg, PieceCursor, Refusal,
};
use nacre_types::encoding::{self, DecodeError};
use nacre_types::errno::Errno;
use nacre_types::msg::{OsdAlive, OsdBackoff, OsdBoot, OsdReply, OsdRequest, PgCasReply};
use nacre_types::osdmap::{Member, PgMembership};
use nacre_types::stats::pg_state;
use nacre_types::{Epoch, Eversion, Incarnation, Interval, ObjectId, OsdId, PgId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use uuid::Uuid;

/// Requests kept for maps that this OSD does not have yet; further ones are sent back.
const MAX_EARLY_REQUESTS: usize = 256;
/// How often the map authority hears from an OSD.
const BEACON: Nanos = 2 * SECOND;
/// Names of the superblock's values.
const NEWEST_MAP: &str = "map";
const KNOWN_OSDS: &str = "known";

/// What an OSD wants done or known.
#[derive(Debug)]
pub enum Out {
    /// Send.
    Send(Node, Packet),
    /// Feed this back after the store's read latency.
    Read(Handle, ReadRequest),
    /// Feed back that a recovery slot is free for the machine.
    Reserved(Handle),
    /// The same for a copy that another OSD fills.
    TargetReserved(Handle),
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
    },
    /// A client was told that an object can't be read.
    Unreadable {
        /// The PG.
        pg: PgId,
        /// The object.
        object: ObjectId,
        /// The interval under which the machine said so.
        interval: Interval,
        /// Whether the OSD itself has a copy that can be read.
        has_own: bool,
    },
    /// A rule of the contract between machine and host was broken.
    Broken(&'static str, String),
}

/// Names a machine: a PG may be removed and hosted again, and answers to the old machine are not for the new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Handle {
    /// The PG.
    pub pg: PgId,
    serial: u64,
}

/// A read that a machine asked for.
#[derive(Clone, Debug)]
pub enum ReadRequest {
    /// [`Command::ReadObject`].
    Object {
        /// Handle.
        read: u64,
        /// Which.
        object: ObjectId,
        /// From where.
        cursor: PieceCursor,
        /// How much.
        max_bytes: usize,
    },
    /// [`Command::ListObjects`].
    List {
        /// Handle.
        list: u64,
        /// From where.
        from: Option<ObjectId>,
        /// How many.
        max: usize,
    },
}

#[derive(Debug)]
struct Request {
    from: Node,
    request: OsdRequest,
    reply: Option<OsdReply>,
    wrote: Option<Eversion>,
}

#[derive(Debug)]
struct Hosted {
    serial: u64,
    machine: Pg,
    requests: BTreeMap<u64, Request>,
}

/// What the machines of an OSD obey.
#[derive(Clone, Debug)]
pub struct OsdSettings {
    /// The PG machines.
    pub pg: Arc<nacre_pg::Settings>,
    /// Heartbeats.
    pub heartbeat: nacre_pg::heartbeat::HeartbeatSettings,
    /// Leases.
    pub lease: nacre_pg::lease::LeaseSettings,
    /// PGs that recover at once.
    pub recoveries: usize,
    /// Ceph's limits on requests.
    pub limits: Limits,
}

/// What survives of an OSD between processes, and the process while it runs.
#[derive(Debug)]
pub struct Osd {
    /// Its id.
    pub id: OsdId,
    /// Its disk.
    pub disk: Disk,
    /// Identity of the disk.
    pub uuid: Uuid,
    /// Identity of the disk's contents.
    pub incarnation: Incarnation,
    /// The machine's clock.
    pub clock: Clock,
    /// Counts processes; events made for an earlier one are not for this one.
    pub life: u32,
    /// The process, while it runs.
    pub process: Option<Process>,
    settings: Arc<OsdSettings>,
}

/// A running OSD process.
#[derive(Debug)]
pub struct Process {
    nonce: u64,
    view: Option<Arc<MapView>>,
    known: KnownOsds,
    pgs: BTreeMap<PgId, Hosted>,
    heartbeat: Heartbeat,
    leases: LeaseTable,
    slots: Reserver<PgId>,
    targets: Reserver<PgId>,
    /// Whose transaction each unflushed change of the disk is, oldest first.
    persists: VecDeque<Option<(Handle, u64)>>,
    early: VecDeque<(Node, OsdRequest)>,
    next_token: u64,
    next_serial: u64,
    next_tid: u64,
    next_beacon: Nanos,
}

impl Osd {
    /// An OSD that never ran.
    pub fn new(id: OsdId, clock: Clock, settings: Arc<OsdSettings>) -> Osd {
        let number = u128::from(id.0);
        Osd {
            id,
            disk: Disk::default(),
            uuid: Uuid::from_u128(0x1000 + number),
            incarnation: Incarnation(Uuid::from_u128((0x2000 + number) << 32)),
            clock,
            life: 0,
            process: None,
            settings,
        }
    }

    /// This OSD as a member.
    pub fn member(&self) -> Member {
        Member { osd: self.id, incarnation: self.incarnation }
    }

    /// Whether its process runs.
    pub fn is_running(&self) -> bool {
        self.process.is_some()
    }

    /// Starts a process. `view` is the map that its superblock names, if any.
    pub fn start(&mut self, now: Nanos, view: Option<Arc<MapView>>, out: &mut Vec<Out>) {
        self.life += 1;
        let nonce = (u64::from(self.id.0) + 1) << 32 | u64::from(self.life);
        let local = self.clock.read(now);
        let mut pgs = BTreeMap::new();
        for (pg, collection) in &self.disk.seen().collections {
            match self.load(*pg, collection, nonce) {
                Ok(machine) => {
                    pgs.insert(*pg, Hosted { serial: 0, machine, requests: BTreeMap::new() });
                }
                Err(error) => {
                    out.push(Out::Broken("a PG does not load", format!("{pg} on {}: {error}", self.id)))
                }
            }
        }
        let known = self.disk.seen().superblock.get(KNOWN_OSDS).map(|bytes| encoding::decode(bytes));
        let known = known.unwrap_or(Ok(KnownOsds::default())).unwrap_or_else(|error| {
            out.push(Out::Broken("a superblock does not load", format!("{}: {error}", self.id)));
            KnownOsds::default()
        });
        self.process = Some(Process {
            nonce,
            view: None,
            known,
            pgs,
            heartbeat: Heartbeat::new(self.id, nonce, self.settings.heartbeat),
            leases: LeaseTable::new(self.settings.lease, nonce, local),
            slots: Reserver::new(self.settings.recoveries),
            targets: Reserver::new(self.settings.recoveries),
            persists: VecDeque::new(),
            early: VecDeque::new(),
            next_token: 1,
            next_serial: 1,
            next_tid: 1,
            next_beacon: local,
        });
        if let Some(view) = view {
            self.on_map(now, &view, out);
        }
        self.hello(out);
    }

    fn load(&self, pg: PgId, collection: &Collection, nonce: u64) -> Result<Pg, DecodeError> {
        let meta: Vec<(String, Bytes)> =
            collection.meta.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        let log = collection.log.iter().map(|(version, entry)| (*version, entry.clone())).collect();
        Pg::load(pg, self.member(), nonce, self.settings.pg.clone(), &meta, log)
    }

    /// The highest record of the PG that the disk would show after a crash.
    pub fn remembered(&self, pg: PgId) -> Option<PgMembership> {
        let collection = self.disk.durable().collections.get(&pg)?;
        self.load(pg, collection, 0).ok()?.remembered().cloned()
    }

    /// Where the durable log of a complete copy of the PG begins.
    pub fn durable_tail(&self, pg: PgId) -> Option<Eversion> {
        let collection = self.disk.durable().collections.get(&pg)?;
        let info = self.load(pg, collection, 0).ok()?.query(0, 0).info;
        info.complete.then_some(info.tail)
    }

    /// Whether a copy of the PG is durable that lacks nothing, as far as is known.
    pub fn has_whole_copy(&self, pg: PgId) -> bool {
        let is_undamaged = |image: &Image| !image.damaged.keys().any(|(of, _)| *of == pg);
        let copy = self.disk.durable().collections.get(&pg);
        let copy = copy.and_then(|collection| self.load(pg, collection, 0).ok());
        copy.is_some_and(|copy| copy.is_whole())
            && is_undamaged(self.disk.durable())
            && is_undamaged(self.disk.seen())
    }

    /// Whether the disk has a copy of the object that can be read, and no record that it is not the newest.
    pub fn has_stored(&self, pg: PgId, object: &ObjectId) -> bool {
        let seen = self.disk.seen();
        let Some(collection) = seen.collections.get(&pg) else { return false };
        collection.objects.contains_key(object)
            && !seen.damaged.contains_key(&(pg, object.clone()))
            && self.load(pg, collection, 0).is_ok_and(|copy| !copy.lacks(object))
    }

    /// Whether the copy is known to lack the object, or has one that can't be read.
    pub fn lacks(&self, pg: PgId, object: &ObjectId) -> bool {
        let seen = self.disk.seen();
        let loaded = || seen.collections.get(&pg).and_then(|collection| self.load(pg, collection, 0).ok());
        seen.damaged.contains_key(&(pg, object.clone())) || loaded().is_some_and(|copy| copy.lacks(object))
    }

    /// The process dies. The disk keeps what was flushed and `surviving` more changes.
    pub fn crash(&mut self, surviving: usize) {
        self.process = None;
        self.life += 1;
        self.disk.crash(surviving);
    }

    /// The disk is replaced by an empty one.
    pub fn wipe(&mut self) {
        assert!(self.process.is_none(), "invariant: disks are replaced while the OSD is down");
        self.disk.wipe();
        self.incarnation = Incarnation(Uuid::from_u128(self.incarnation.0.as_u128() + 1));
    }

    /// The map (generation, epoch) that its superblock names.
    pub fn stored_map(&self) -> Option<(u64, Epoch)> {
        let bytes: &[u8] = self.disk.seen().superblock.get(NEWEST_MAP)?;
        let (generation, epoch) = bytes.split_at(8);
        Some((
            u64::from_le_bytes(generation.try_into().ok()?),
            Epoch(u32::from_le_bytes(epoch.try_into().ok()?)),
        ))
    }

    /// Its map.
    pub fn view(&self) -> Option<&Arc<MapView>> {
        self.process.as_ref()?.view.as_ref()
    }

    /// Its process's nonce; 0 while none runs.
    pub fn nonce(&self) -> u64 {
        self.process.as_ref().map_or(0, |p| p.nonce)
    }

    /// A hosted PG's machine.
    pub fn machine(&self, pg: PgId) -> Option<&Pg> {
        self.process.as_ref()?.pgs.get(&pg).map(|hosted| &hosted.machine)
    }

    /// Whether the PG answers clients here at this very moment: it is active as primary and holds all leases.
    pub fn serves(&self, pg: PgId, now: Nanos) -> bool {
        let Some(process) = &self.process else { return false };
        let local = self.clock.read(now);
        let leases = process.leases.at(local);
        process.pgs.get(&pg).is_some_and(|hosted| {
            let machine = &hosted.machine;
            machine.state() & pg_state::ACTIVE != 0 && machine.holds_leases(&leases)
        })
    }

    /// What a hosted PG's machine says of itself.
    pub fn describe(&mut self, pg: PgId) -> Option<String> {
        let machine = &mut self.process.as_mut()?.pgs.get_mut(&pg)?.machine;
        let said = machine.query(0, 0);
        let state = pg_state::to_text(said.stats.state);
        let info = &said.info;
        let sets = |list: &[PgMembership]| list.iter().map(show_membership).collect::<Vec<_>>().join(" ");
        Some(format!(
            "{} {state}, in effect {}, highest {}, log {}..{} acknowledged {} complete {} missing {}, proposals [{}], \
             catching up {:?}, blocked by {:?}",
            said.phase,
            said.membership.as_ref().map_or("none".into(), show_membership),
            info.highest.as_ref().map_or("none".into(), show_membership),
            info.tail,
            info.head,
            info.committed_to,
            info.complete,
            info.missing,
            sets(&said.proposals),
            said.catching_up,
            said.blocked_by
        ))
    }

    /// The hosted PGs.
    pub fn hosted(&self) -> Vec<PgId> {
        self.process.as_ref().map_or_else(Vec::new, |p| p.pgs.keys().copied().collect())
    }

    /// Requests that the PG holds for clients.
    pub fn waiting_requests(&self) -> usize {
        let Some(process) = &self.process else { return 0 };
        process.early.len() + process.pgs.values().map(|h| h.requests.len()).sum::<usize>()
    }

    /// Tells the map authority that it is up, as often as it takes, and asks for maps.
    pub fn hello(&mut self, out: &mut Vec<Out>) {
        let Some(process) = &self.process else { return };
        let (generation, epoch) =
            process.view.as_ref().map_or((0, Epoch(0)), |view| (view.map.generation, view.map.epoch));
        out.push(Out::Send(Node::Mon, Packet::Subscribe(generation, epoch.0)));
        if !process.is_up(self.id) {
            let boot = OsdBoot {
                osd: self.id,
                uuid: self.uuid,
                incarnation: self.incarnation,
                boot_nonce: process.nonce,
                addr: ([127, 0, 0, 1], 40_000 + self.id.0 as u16).into(),
                epoch,
                generation,
                total_bytes: 1 << 40,
                metadata: BTreeMap::new(),
                location: [("root", "default".to_owned()), ("host", format!("host{}", self.id.0))]
                    .map(|(kind, name)| (kind.to_owned(), name))
                    .into(),
                device_class: String::new(),
            };
            out.push(Out::Send(Node::Mon, Packet::ToMon(Box::new(logic::Event::Boot(boot)))));
        }
    }

    /// A packet arrived.
    pub fn on_packet(&mut self, now: Nanos, from: Node, packet: Packet, out: &mut Vec<Out>) {
        if self.process.is_none() {
            return;
        }
        match (from, packet) {
            (Node::Client(_), Packet::Request(request)) => self.on_request(now, from, request, out),
            (Node::Osd(peer), Packet::Peer(pg, msg)) => self.on_peer(now, OsdId(peer), pg, msg, out),
            (Node::Osd(peer), Packet::Heartbeat(msg)) => {
                self.beat(now, HbEvent::Message { from: OsdId(peer), msg }, out);
            }
            (Node::Mon, Packet::Map(view)) => self.on_map(now, &view, out),
            (Node::Mon, Packet::Cas(reply)) => self.on_cas(now, reply, out),
            (from, packet) => {
                out.push(Out::Broken("a packet for somebody else", format!("{from}: {packet:?}")))
            }
        }
    }

    fn on_request(&mut self, now: Nanos, from: Node, request: OsdRequest, out: &mut Vec<Out>) {
        let Some(process) = &mut self.process else { return };
        let epoch = process.epoch();
        if request.epoch > epoch {
            if process.early.len() < MAX_EARLY_REQUESTS {
                process.early.push_back((from, request));
            } else {
                out.push(backoff(from, &request, epoch));
            }
            return;
        }
        let (pg, token) = (request.pg, process.next_token);
        let Some(hosted) = process.pgs.get_mut(&pg) else {
            out.push(backoff(from, &request, epoch));
            return;
        };
        process.next_token += 1;
        let op = ClientOp {
            token,
            reqid: request.reqid,
            oldest_tid: request.oldest_tid,
            attempt: request.attempt,
            interval: request.interval,
            object: request.object.clone(),
            write: nacre_exec::may_write(&request),
            listing: false,
        };
        hosted.requests.insert(token, Request { from, request, reply: None, wrote: None });
        self.feed(now, pg, Event::Client(op), out);
    }

    fn on_peer(&mut self, now: Nanos, from: OsdId, pg: PgId, msg: PeerMsg, out: &mut Vec<Out>) {
        let Some(process) = &self.process else { return };
        if !process.pgs.contains_key(&pg) {
            let Some(view) = process.view.clone() else { return };
            if !view.map.pools.contains_key(&pg.pool) {
                return;
            }
            self.host(now, pg, &view, out);
        }
        self.feed(now, pg, Event::Peer { from, msg }, out);
    }

    fn on_map(&mut self, now: Nanos, view: &Arc<MapView>, out: &mut Vec<Out>) {
        let Some(process) = &mut self.process else { return };
        let stamp = |view: &MapView| (view.map.generation, view.map.epoch);
        if process.view.as_ref().is_some_and(|known| stamp(known) >= stamp(view)) {
            return;
        }
        process.view = Some(view.clone());
        let mut superblock = view.map.generation.to_le_bytes().to_vec();
        superblock.extend_from_slice(&view.map.epoch.0.to_le_bytes());
        self.disk.set_superblock(NEWEST_MAP, superblock.into());
        process.persists.push_back(None);
        if process.known.on_map(&view.map) {
            self.disk.set_superblock(KNOWN_OSDS, encoding::encode(&process.known).into());
            process.persists.push_back(None);
        }
        let unlisted = process.unlisted();
        let sharing: BTreeSet<OsdId> = view
            .up
            .iter()
            .filter_map(|(pg, up)| {
                let members = view.map.membership(*pg).map(|m| m.acting()).unwrap_or_default();
                let all: Vec<OsdId> = up.iter().copied().chain(members).collect();
                all.contains(&self.id).then_some(all)
            })
            .flatten()
            .collect();
        let map = HeartbeatMap::new(&view.map, self.id, &sharing, 3);
        self.beat(now, HbEvent::Map(map), out);
        let Some(process) = &mut self.process else { return };
        let wanted: Vec<PgId> = view
            .up
            .iter()
            .filter(|(pg, up)| {
                let member =
                    view.map.membership(**pg).is_some_and(|m| m.in_sync.iter().any(|m| m.osd == self.id));
                (up.contains(&self.id) || member) && !process.pgs.contains_key(pg)
            })
            .map(|(pg, _)| *pg)
            .collect();
        let known: Vec<PgId> = process.pgs.keys().copied().collect();
        for pg in known {
            let up = view.up.get(&pg).cloned().unwrap_or_default();
            let unlisted = unlisted.clone();
            self.feed(now, pg, Event::Map { map: view.map.clone(), up, unlisted }, out);
        }
        for pg in wanted {
            self.host(now, pg, view, out);
        }
        let Some(process) = &mut self.process else { return };
        if !process.is_up(self.id) {
            self.hello(out);
        }
        let Some(process) = &mut self.process else { return };
        for (from, request) in std::mem::take(&mut process.early) {
            self.on_request(now, from, request, out);
        }
    }

    /// Begins to host a PG of which the disk has nothing.
    fn host(&mut self, now: Nanos, pg: PgId, view: &MapView, out: &mut Vec<Out>) {
        let member = self.member();
        let Some(process) = &mut self.process else { return };
        let machine = Pg::new(pg, member, process.nonce, self.settings.pg.clone());
        process.pgs.insert(pg, Hosted { serial: process.next_serial, machine, requests: BTreeMap::new() });
        process.next_serial += 1;
        let (up, unlisted) = (view.up.get(&pg).cloned().unwrap_or_default(), process.unlisted());
        self.feed(now, pg, Event::Map { map: view.map.clone(), up, unlisted }, out);
    }

    fn on_cas(&mut self, now: Nanos, reply: PgCasReply, out: &mut Vec<Out>) {
        if let Some(process) = &mut self.process {
            process.leases.acts_on(reply.epoch);
        }
        self.feed(now, reply.pg, Event::Cas(reply), out);
    }

    /// The `count` oldest unflushed changes are durable.
    pub fn on_flushed(&mut self, now: Nanos, count: usize, out: &mut Vec<Out>) {
        self.disk.flush(count);
        let Some(process) = &mut self.process else { return };
        let durable: BTreeMap<Handle, u64> = process.persists.drain(..count).flatten().collect();
        for (handle, persist) in durable {
            if self.is_same(handle) {
                self.feed(now, handle.pg, Event::Committed { persist }, out);
            }
        }
    }

    fn is_same(&self, handle: Handle) -> bool {
        let hosted = self.process.as_ref().and_then(|process| process.pgs.get(&handle.pg));
        hosted.is_some_and(|hosted| hosted.serial == handle.serial)
    }

    /// The store has read what a machine asked for.
    pub fn on_read(&mut self, now: Nanos, handle: Handle, request: ReadRequest, out: &mut Vec<Out>) {
        let pg = handle.pg;
        if !self.is_same(handle) {
            return;
        }
        let event = match request {
            ReadRequest::Object { read, object, cursor, max_bytes } => {
                let piece = pieces::read_piece(self.disk.seen(), pg, &object, &cursor, max_bytes);
                Event::ObjectRead { read, piece: piece.map_err(|error| pieces::read_errno(&error)) }
            }
            ReadRequest::List { list, from, max } => {
                let listed = pieces::list_versions(self.disk.seen(), pg, from.as_ref(), max);
                let (objects, end) = listed.expect("invariant: damage of an object ends no listing");
                Event::Listed { list, objects, end }
            }
        };
        self.feed(now, pg, event, out);
    }

    /// The session with a peer was lost, or its process is another one.
    pub fn on_peer_reset(&mut self, now: Nanos, peer: OsdId, out: &mut Vec<Out>) {
        self.feed_all(now, &Event::PeerReset(peer), out);
    }

    /// The connection to the map authority was lost and made again: what had no answer is asked again by its owner.
    pub fn on_mon_reset(&mut self, now: Nanos, out: &mut Vec<Out>) {
        self.hello(out);
        if let Some(process) = &mut self.process {
            process.next_beacon = 0;
        }
        self.beat(now, HbEvent::MonReset, out);
    }

    /// A peer's process is gone, and the machine it ran on says so.
    pub fn on_refused(&mut self, now: Nanos, target: OsdId, out: &mut Vec<Out>) {
        let Some(info) = self.view().and_then(|view| view.map.osds.get(&target)) else { return };
        let boot_nonce = info.boot_nonce;
        self.beat(now, HbEvent::Refused { target, boot_nonce }, out);
    }

    fn beat(&mut self, now: Nanos, event: HbEvent, out: &mut Vec<Out>) {
        let local = self.clock.read(now);
        let id = self.id;
        let Some(process) = &mut self.process else { return };
        let mut commands = Vec::new();
        process.heartbeat.handle(local, &mut process.leases, event, &mut commands);
        let mut gained = false;
        for command in commands {
            match command {
                HbCommand::SendPing { to, msg } | HbCommand::SendReply { to, msg } => {
                    out.push(Out::Send(Node::Osd(to.0), Packet::Heartbeat(msg)));
                }
                HbCommand::ReportFailure(report) | HbCommand::CancelFailure(report) => {
                    let event = logic::Event::Failure { reporter: id, report };
                    out.push(Out::Send(Node::Mon, Packet::ToMon(Box::new(event))));
                }
                HbCommand::LeaseGained(_) => gained = true,
                HbCommand::NewerMap(_) => self.subscribe(out),
            }
        }
        if gained {
            self.feed_all(now, &Event::Leases, out);
        }
    }

    fn subscribe(&self, out: &mut Vec<Out>) {
        let (generation, epoch) =
            self.view().map_or((0, Epoch(0)), |view| (view.map.generation, view.map.epoch));
        out.push(Out::Send(Node::Mon, Packet::Subscribe(generation, epoch.0)));
    }

    /// Time passed.
    pub fn on_tick(&mut self, now: Nanos, out: &mut Vec<Out>) {
        let local = self.clock.read(now);
        let id = self.id;
        let full = self.disk.lacks_room(64);
        let Some(process) = &mut self.process else { return };
        if process.next_beacon <= local {
            process.next_beacon = local + BEACON;
            if let Some(view) = process.view.clone().filter(|_| process.is_up(id)) {
                let alive = OsdAlive { boot_nonce: process.nonce, epoch: view.map.epoch, full };
                let event = logic::Event::Alive { osd: id, alive };
                out.push(Out::Send(Node::Mon, Packet::ToMon(Box::new(event))));
                // Ceph's OSDs renew their subscription too, in case a map got lost on the way.
                out.push(Out::Send(Node::Mon, Packet::Subscribe(view.map.generation, view.map.epoch.0)));
            } else {
                self.hello(out);
            }
        }
        self.beat(now, HbEvent::Tick, out);
        let Some(process) = &mut self.process else { return };
        let due: Vec<PgId> = process
            .pgs
            .iter()
            .filter(|(_, hosted)| hosted.machine.next_wake().is_some_and(|at| at <= local))
            .map(|(pg, _)| *pg)
            .collect();
        for pg in due {
            self.feed(now, pg, Event::Tick, out);
        }
    }

    /// The true time at which [`Osd::on_tick`] has something to do, at the latest.
    pub fn next_tick(&self) -> Option<Nanos> {
        let process = self.process.as_ref()?;
        let machines = process.pgs.values().filter_map(|hosted| hosted.machine.next_wake());
        let beat = process.heartbeat.next_wake(&process.leases);
        let local = machines.chain([process.next_beacon]).chain(beat).min()?;
        Some(self.clock.when(local))
    }

    fn feed_all(&mut self, now: Nanos, event: &Event, out: &mut Vec<Out>) {
        for pg in self.hosted() {
            self.feed(now, pg, event.clone(), out);
        }
    }

    /// Feeds one event to a machine and carries out what it commands, in order. What a machine says to
    /// [`Event::Executed`] comes before the rest of what it said before.
    fn feed(&mut self, now: Nanos, pg: PgId, event: Event, out: &mut Vec<Out>) {
        let local = self.clock.read(now);
        let Some(process) = &mut self.process else { return };
        let Some(hosted) = process.pgs.get_mut(&pg) else { return };
        let mut said = Vec::new();
        hosted.machine.handle(local, &process.leases.at(local), event, &mut said);
        let mut todo: VecDeque<Command> = said.drain(..).collect();
        while let Some(command) = todo.pop_front() {
            let Command::Execute { token, version } = command else {
                self.carry_out(local, pg, command, out);
                continue;
            };
            let Some(outcome) = self.execute(pg, token, version) else {
                out.push(Out::Broken(
                    "execution of an unknown request",
                    format!("{pg} on {}: {token}", self.id),
                ));
                continue;
            };
            if !matches!(outcome, Executed::Read | Executed::Damaged { removal: None }) {
                out.push(Out::Ordered { pg, interval: version.interval });
            }
            let Some(process) = &mut self.process else { return };
            let Some(hosted) = process.pgs.get_mut(&pg) else { return };
            let event = Event::Executed { token, outcome };
            hosted.machine.handle(local, &process.leases.at(local), event, &mut said);
            for command in said.drain(..).rev() {
                todo.push_front(command);
            }
        }
    }

    fn release(&mut self, pg: PgId, out: &mut Vec<Out>) {
        let Some(process) = &mut self.process else { return };
        for next in process.slots.release(&pg) {
            let Some(hosted) = process.pgs.get(&next) else { continue };
            out.push(Out::Reserved(Handle { pg: next, serial: hosted.serial }));
        }
    }

    fn release_target(&mut self, pg: PgId, out: &mut Vec<Out>) {
        let Some(process) = &mut self.process else { return };
        for next in process.targets.release(&pg) {
            let Some(hosted) = process.pgs.get(&next) else { continue };
            out.push(Out::TargetReserved(Handle { pg: next, serial: hosted.serial }));
        }
    }

    /// The slot for a copy that is filled is free.
    pub fn on_target_reserved(&mut self, now: Nanos, handle: Handle, out: &mut Vec<Out>) {
        let holds = self.process.as_ref().is_some_and(|process| process.targets.holds(&handle.pg));
        if holds && self.is_same(handle) {
            self.feed(now, handle.pg, Event::TargetReserved, out);
        }
    }

    /// The slot that a machine asked for is free.
    pub fn on_reserved(&mut self, now: Nanos, handle: Handle, out: &mut Vec<Out>) {
        let holds = self.process.as_ref().is_some_and(|process| process.slots.holds(&handle.pg));
        if holds && self.is_same(handle) {
            self.feed(now, handle.pg, Event::Reserved, out);
        }
    }

    fn carry_out(&mut self, local: Nanos, pg: PgId, command: Command, out: &mut Vec<Out>) {
        let id = self.id;
        let Some(process) = &mut self.process else { return };
        let epoch = process.epoch();
        let Some(hosted) = process.pgs.get_mut(&pg) else { return };
        let handle = Handle { pg, serial: hosted.serial };
        let unknown =
            |token: u64| Out::Broken("a command about an unknown request", format!("{pg} on {id}: {token}"));
        match command {
            Command::Execute { .. } => unreachable!("invariant: feed answers it"),
            Command::Persist { id: persist, txn } if self.disk.is_prevented(&txn) => {
                let mut said = Vec::new();
                if !hosted.machine.refused(local, persist, txn, Refusal::Damaged, &mut said) {
                    out.push(Out::Broken("a damaged object ends its OSD", format!("{pg} on {id}")));
                }
                for command in said {
                    self.carry_out(local, pg, command, out);
                }
            }
            Command::Persist { id: persist, txn } => match self.disk.apply(txn) {
                Ok(()) => process.persists.push_back(Some((handle, persist))),
                Err(error) => {
                    out.push(Out::Broken("a transaction that does not apply", format!("{id}: {}", error.0)))
                }
            },
            Command::Send { to, msg } => out.push(Out::Send(Node::Osd(to.0), Packet::Peer(pg, msg))),
            Command::Reply { token } => match hosted.requests.remove(&token) {
                Some(Request { from, reply: Some(mut reply), wrote, .. }) => {
                    if reply.result == Errno::EIO.negated() {
                        out.push(Out::Broken(
                            "an execution failed with EIO",
                            format!("{pg} on {id}: {reply:?}"),
                        ));
                    }
                    reply.epoch = epoch;
                    out.push(Out::Answered { pg, interval: hosted.machine.interval(), wrote });
                    out.push(Out::Send(from, Packet::Reply(reply)));
                }
                _ => out.push(unknown(token)),
            },
            Command::ReplyDup { token, version, result } => match hosted.requests.remove(&token) {
                Some(Request { from, request, .. }) => {
                    let (code, user_version) = result.split_at(4);
                    let reply = OsdReply {
                        reqid: request.reqid,
                        attempt: request.attempt,
                        epoch,
                        result: i32::from_le_bytes(code.try_into().expect("invariant: four bytes")),
                        user_version: u64::from_le_bytes(
                            user_version.try_into().expect("invariant: eight bytes"),
                        ),
                        ops: Vec::new(),
                    };
                    out.push(Out::Answered { pg, interval: hosted.machine.interval(), wrote: Some(version) });
                    out.push(Out::Send(from, Packet::Reply(reply)));
                }
                None => out.push(unknown(token)),
            },
            Command::Drop { token, reason: DropReason::StaleInterval | DropReason::Full } => {
                match hosted.requests.remove(&token) {
                    Some(Request { from, request, .. }) => out.push(backoff(from, &request, epoch)),
                    None => out.push(unknown(token)),
                }
            }
            Command::Refuse { token, errno } => match hosted.requests.remove(&token) {
                Some(Request { from, request, .. }) => {
                    if errno == Errno::EIO {
                        let (object, interval) = (request.object.clone(), hosted.machine.interval());
                        let has_own = self.has_stored(pg, &object);
                        out.push(Out::Unreadable { pg, object, interval, has_own });
                    }
                    let (reqid, attempt, result) = (request.reqid, request.attempt, errno.negated());
                    let reply = OsdReply { reqid, attempt, epoch, result, user_version: 0, ops: Vec::new() };
                    out.push(Out::Send(from, Packet::Reply(reply)));
                }
                None => out.push(unknown(token)),
            },
            Command::Forget { token } => {
                if hosted.requests.remove(&token).is_none() {
                    out.push(unknown(token));
                }
            }
            Command::Propose(mut cas) => {
                cas.tid = process.next_tid;
                process.next_tid += 1;
                let event = logic::Event::Cas { origin: logic::Origin(0), osd: id, cas };
                out.push(Out::Send(Node::Mon, Packet::ToMon(Box::new(event))));
            }
            Command::ReadObject { read, object, cursor, max_bytes } => {
                out.push(Out::Read(handle, ReadRequest::Object { read, object, cursor, max_bytes }));
            }
            Command::ListObjects { list, from, max } => {
                out.push(Out::Read(handle, ReadRequest::List { list, from, max }));
            }
            Command::Invalidate { .. } => {}
            Command::Reserve { priority, .. } => {
                if process.slots.request(pg, priority) == Reservation::Granted {
                    out.push(Out::Reserved(handle));
                }
            }
            Command::Release => self.release(pg, out),
            Command::ReserveTarget { priority } => {
                if process.targets.request(pg, priority) == Reservation::Granted {
                    out.push(Out::TargetReserved(handle));
                }
            }
            Command::ReleaseTarget => self.release_target(pg, out),
            Command::RemovePg => {
                let requests = std::mem::take(&mut hosted.requests);
                out.extend(requests.values().map(|r| backoff(r.from, &r.request, epoch)));
                process.pgs.remove(&pg);
                self.release(pg, out);
                self.release_target(pg, out);
                let Some(process) = &mut self.process else { return };
                let step = |disk: &Disk| {
                    pieces::removal(disk.seen(), pg).expect("invariant: a removal lists, and reads nothing")
                };
                while let Some(txn) = step(&self.disk) {
                    self.disk.apply(txn).expect("invariant: it names what is there");
                    process.persists.push_back(None);
                }
            }
        }
    }
}

impl Process {
    fn unlisted(&self) -> Arc<[OsdId]> {
        self.known.unlisted().collect()
    }

    fn epoch(&self) -> Epoch {
        self.view.as_ref().map_or(Epoch(0), |view| view.map.epoch)
    }

    /// Whether the map shows this very process as up.
    fn is_up(&self, id: OsdId) -> bool {
        let info = self.view.as_ref().and_then(|view| view.map.osds.get(&id));
        info.is_some_and(|info| info.up && info.boot_nonce == self.nonce)
    }
}

/// A membership in a few characters; members that are not an OSD's first incarnation show which they are.
pub fn show_membership(membership: &PgMembership) -> String {
    let member = |m: &Member| match m.incarnation.0.as_u128() & 0xffff_ffff {
        0 => m.osd.0.to_string(),
        n => format!("{}~{n}", m.osd.0),
    };
    let set: Vec<String> = membership.in_sync.iter().map(member).collect();
    format!("i{} p{} [{}]", membership.interval, membership.primary.0, set.join(" "))
}

fn backoff(to: Node, request: &OsdRequest, epoch: Epoch) -> Out {
    Out::Send(to, Packet::Backoff(OsdBackoff { reqid: request.reqid, attempt: request.attempt, epoch }))
}
