//! A simulated OSD: its real shards, on a simulated disk and a clock of its own.
//!
//! [`nacre_shard`] does for PGs and clients what it does in life. What the daemon's control thread does is done here: maps are
//! handed on, heartbeats and reports sent, fullness judged. Nothing here knows of the network's or the disk's tempers: what is
//! to be sent, and what happened that the invariants want to know, goes to the caller ([`Out`]).

mod host;

use crate::disk::{Collection, Disk, Image};
use crate::network::Node;
use crate::packet::{MapView, Packet};
use crate::schedule::{Clock, Nanos, SECOND};
use crate::store::{MARGIN_BYTES, Store};
use bytes::Bytes;
use host::Host;
use nacre_common::Config;
use nacre_mon::logic;
use nacre_objectstore::ObjectStore;
use nacre_pg::heartbeat::{HbCommand, HbEnvelope, HbEvent, HeartbeatMap};
use nacre_pg::{KnownOsds, Pg};
use nacre_shard::inbox::ShardMessage;
use nacre_shard::session::Arrival;
use nacre_shard::shard::{REMOVING_KEY, Shard, ShardCell, Turn};
use nacre_shard::shared::{RunState, ShardSettings, Shared};
use nacre_shard::world::World;
use nacre_types::encoding::{self, DecodeError};
use nacre_types::msg::{OsdAlive, OsdBoot, OsdRequest, PgCasReply};
use nacre_types::osdmap::{Member, PgMembership};
use nacre_types::stats::pg_state;
use nacre_types::{Epoch, Eversion, Incarnation, Interval, ObjectId, OsdId, PgId};
use parking_lot::MutexGuard;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uuid::Uuid;

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

/// What the machines of an OSD obey.
#[derive(Clone, Debug)]
pub struct OsdSettings {
    /// PGs, heartbeats and leases.
    pub shards: ShardSettings,
    /// The options, for what the simulation does not choose.
    pub config: Config,
}

/// What survives of an OSD between processes, and the process while it runs.
#[derive(Debug)]
pub struct Osd {
    /// Its id.
    pub id: OsdId,
    /// Identity of the disk.
    pub uuid: Uuid,
    /// Identity of the disk's contents.
    pub incarnation: Incarnation,
    /// The machine's clock.
    pub clock: Clock,
    /// Counts processes; events made for an earlier one are not for this one.
    pub life: u32,
    store: Arc<Store>,
    process: Option<Process>,
    settings: Arc<OsdSettings>,
}

/// A running OSD process.
struct Process {
    shared: Arc<Shared>,
    cells: Vec<ShardCell>,
    host: Arc<Host>,
    view: Option<Arc<MapView>>,
    known: KnownOsds,
    next_beacon: Nanos,
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Process").field("boot_nonce", &self.shared.boot_nonce).finish_non_exhaustive()
    }
}

impl Osd {
    /// An OSD that never ran.
    pub fn new(id: OsdId, clock: Clock, settings: Arc<OsdSettings>) -> Osd {
        let number = u128::from(id.0);
        Osd {
            id,
            uuid: Uuid::from_u128(0x1000 + number),
            incarnation: Incarnation(Uuid::from_u128((0x2000 + number) << 32)),
            clock,
            life: 0,
            store: Arc::default(),
            process: None,
            settings,
        }
    }

    /// This OSD as a member.
    pub fn member(&self) -> Member {
        Member { osd: self.id, incarnation: self.incarnation }
    }

    /// Its disk. It must be given back before the OSD acts.
    pub fn disk(&self) -> MutexGuard<'_, Disk> {
        self.store.disk()
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
        let host = Arc::new(Host::new(self.copies(), Arc::clone(&self.store), local));
        let world = Arc::clone(&host) as Arc<dyn World>;
        let store = Arc::clone(&self.store) as Arc<dyn ObjectStore>;
        let settings = &self.settings;
        let shared = Shared::new(&settings.config, self.member(), nonce, store, world, &settings.shards);
        let cells: Vec<ShardCell> =
            (0..shared.inboxes.len()).map(|index| ShardCell::new(&shared, index)).collect();
        let pgs: Vec<PgId> = self.disk().seen().collections.keys().copied().collect();
        for pg in pgs {
            if let Err(error) = cells[shared.shard_of(pg)].with(|shard| shard.load(pg)) {
                out.push(Out::Broken("a PG does not load", format!("{pg} on {}: {error}", self.id)));
            }
        }
        let known = self.disk().seen().superblock.get(KNOWN_OSDS).map(|bytes| encoding::decode(bytes));
        let known = known.unwrap_or(Ok(KnownOsds::default())).unwrap_or_else(|error| {
            out.push(Out::Broken("a superblock does not load", format!("{}: {error}", self.id)));
            KnownOsds::default()
        });
        self.process = Some(Process { shared, cells, host, view: None, known, next_beacon: local });
        if let Some(view) = view {
            self.on_map(now, &view, out);
        }
        self.hello(out);
    }

    fn copies(&self) -> Copies {
        Copies { member: self.member(), settings: self.settings.shards.pg.clone() }
    }

    /// The highest record of the PG that the disk would show after a crash.
    pub fn remembered(&self, pg: PgId) -> Option<PgMembership> {
        self.copies().load(self.disk().durable(), pg)?.remembered().cloned()
    }

    /// Where the durable log of a complete copy of the PG begins.
    pub fn durable_tail(&self, pg: PgId) -> Option<Eversion> {
        let info = self.copies().load(self.disk().durable(), pg)?.query(0, 0).info;
        info.complete.then_some(info.tail)
    }

    /// Whether a copy of the PG is durable that is not being removed.
    pub fn has_copy(&self, pg: PgId) -> bool {
        self.copies().load(self.disk().durable(), pg).is_some()
    }

    /// Whether a copy of the PG is durable that lacks nothing, as far as is known.
    pub fn has_whole_copy(&self, pg: PgId) -> bool {
        let is_undamaged = |image: &Image| !image.damaged.keys().any(|(of, _)| *of == pg);
        let disk = self.disk();
        self.copies().load(disk.durable(), pg).is_some_and(|copy| copy.is_whole())
            && is_undamaged(disk.durable())
            && is_undamaged(disk.seen())
    }

    /// Whether the disk has a copy of the object that can be read, and no record that it is not the newest.
    pub fn has_stored(&self, pg: PgId, object: &ObjectId) -> bool {
        self.copies().has_stored(&self.disk(), pg, object)
    }

    /// Whether the copy is known to lack the object, or has one that can't be read.
    pub fn lacks(&self, pg: PgId, object: &ObjectId) -> bool {
        let disk = self.disk();
        disk.seen().damaged.contains_key(&(pg, object.clone()))
            || self.copies().load(disk.seen(), pg).is_some_and(|copy| copy.lacks(object))
    }

    /// The process dies. The disk keeps what was flushed and `surviving` more changes.
    pub fn crash(&mut self, surviving: usize) {
        self.process = None;
        self.life += 1;
        self.store.forget();
        self.disk().crash(surviving);
    }

    /// The disk is replaced by an empty one.
    pub fn wipe(&mut self) {
        assert!(self.process.is_none(), "invariant: disks are replaced while the OSD is down");
        self.disk().wipe();
        self.incarnation = Incarnation(Uuid::from_u128(self.incarnation.0.as_u128() + 1));
    }

    /// The map (generation, epoch) that its superblock names.
    pub fn stored_map(&self) -> Option<(u64, Epoch)> {
        let bytes = self.disk().seen().superblock.get(NEWEST_MAP)?.clone();
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
        self.process.as_ref().map_or(0, |p| p.shared.boot_nonce)
    }

    /// Looks at a hosted PG's machine.
    pub fn with_machine<R>(&self, pg: PgId, look: impl FnOnce(&Pg) -> R) -> Option<R> {
        self.process.as_ref()?.cell_of(pg).inspect(|shard| shard.machine(pg).map(look))
    }

    /// Whether the PG answers clients here at this very moment: it is active as primary and holds all leases.
    pub fn serves(&self, pg: PgId, now: Nanos) -> bool {
        let Some(process) = &self.process else { return false };
        let local = self.clock.read(now);
        let heartbeats = process.shared.heartbeats.lock();
        let serves = |machine: &Pg| {
            machine.state() & pg_state::ACTIVE != 0 && machine.holds_leases(&heartbeats.view(local))
        };
        self.with_machine(pg, serves).unwrap_or(false)
    }

    /// What a hosted PG's machine says of itself.
    pub fn describe(&self, pg: PgId) -> Option<String> {
        let said = self.process.as_ref()?.cell_of(pg).with(|shard| shard.query(pg))?;
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
        let cells = self.process.iter().flat_map(|process| &process.cells);
        let mut pgs: Vec<PgId> =
            cells.flat_map(|cell| cell.inspect(|s| s.pgs().collect::<Vec<_>>())).collect();
        pgs.sort_unstable();
        pgs
    }

    /// Requests that the shards hold for clients.
    pub fn waiting_requests(&self) -> usize {
        let cells = self.process.iter().flat_map(|process| &process.cells);
        cells.map(|cell| cell.inspect(Shard::held_requests)).sum()
    }

    /// What each shard waits for, and whether messages wait for it.
    pub fn pending(&self) -> impl Iterator<Item = (Turn, bool)> {
        let cells = self.process.iter().flat_map(|process| &process.cells);
        cells.map(|cell| (cell.pending(), !cell.inbox().is_empty()))
    }

    /// A shard's turn.
    pub fn on_turn(&mut self, now: Nanos, shard: usize, out: &mut Vec<Out>) {
        self.act(now, out, |process| {
            process.cells[shard].turn();
        });
    }

    /// Lets the process do something, and takes what comes of it.
    fn act(&mut self, now: Nanos, out: &mut Vec<Out>, act: impl FnOnce(&mut Process)) {
        let local = self.clock.read(now);
        let Some(process) = &mut self.process else { return };
        process.host.set_time(local);
        act(process);
        process.host.take(out);
        if let RunState::Failed(reason) = &*process.shared.state.borrow() {
            out.push(Out::Broken("an OSD stops", format!("{}: {reason}", self.id)));
        }
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
                boot_nonce: process.shared.boot_nonce,
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
        match (from, packet) {
            (Node::Client(_), Packet::Request(request)) => self.on_request(now, from, request, out),
            (Node::Osd(peer), Packet::Peer(envelope)) => {
                let from = OsdId(peer);
                self.act(now, out, |process| {
                    process.cell_of(envelope.pg).enter(|shard| shard.on_peer(from, *envelope));
                });
            }
            (Node::Osd(peer), Packet::Heartbeat(HbEnvelope { space_bytes, msg })) => {
                let from = OsdId(peer);
                self.act(now, out, |process| {
                    process.shared.post_all(|| ShardMessage::Space { from, space_bytes });
                });
                self.beat(now, HbEvent::Message { from, msg }, out);
            }
            (Node::Mon, Packet::Map(view)) => self.on_map(now, &view, out),
            (Node::Mon, Packet::Cas(reply)) => self.on_cas(now, reply, out),
            (from, packet) => {
                out.push(Out::Broken("a packet for somebody else", format!("{from}: {packet:?}")))
            }
        }
    }

    fn on_request(&mut self, now: Nanos, from: Node, request: OsdRequest, out: &mut Vec<Out>) {
        self.act(now, out, |process| {
            let conn = process.host.conn_of_client(from, request.reqid.client);
            let arrived_ns = process.host.boot_ns();
            let arrival = Arrival { conn, permit: None, arrived_ns, request };
            process.cell_of(arrival.request.pg).enter(|shard| shard.on_request(arrival));
        });
    }

    /// A client has lost its connection.
    pub fn on_client_reset(&mut self, now: Nanos, client: Node, out: &mut Vec<Out>) {
        self.act(now, out, |process| {
            if let Some(conn) = process.host.lose_client(client) {
                process.shared.post_all(|| ShardMessage::WatchersGone(conn));
            }
        });
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
        self.store.set_superblock(NEWEST_MAP, superblock.into());
        if process.known.on_map(&view.map) {
            self.store.set_superblock(KNOWN_OSDS, encoding::encode(&process.known).into());
        }
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
        // The fences stand before any PG acts on the map.
        self.beat(now, HbEvent::Map(map), out);
        self.act(now, out, |process| {
            let unlisted: Arc<[OsdId]> = process.known.unlisted().collect();
            process.shared.map.store(Some(view.map.clone()));
            process.shared.post_all(|| ShardMessage::Map {
                map: view.map.clone(),
                up: view.up_sets.clone(),
                unlisted: unlisted.clone(),
            });
        });
        if self.process.as_ref().is_some_and(|process| !process.is_up(self.id)) {
            self.hello(out);
        }
    }

    fn on_cas(&mut self, now: Nanos, reply: PgCasReply, out: &mut Vec<Out>) {
        self.act(now, out, |process| {
            process.shared.heartbeats.lock().acts_on(reply.epoch);
            process.inbox_of(reply.pg).post(ShardMessage::Cas(reply));
        });
    }

    /// The `count` oldest unflushed changes are durable.
    pub fn on_flushed(&mut self, now: Nanos, count: usize, out: &mut Vec<Out>) {
        let store = Arc::clone(&self.store);
        self.act(now, out, |_| store.flush(count));
    }

    /// The session with a peer was lost, or its process is another one.
    pub fn on_peer_reset(&mut self, now: Nanos, peer: OsdId, out: &mut Vec<Out>) {
        self.act(now, out, |process| process.shared.post_all(|| ShardMessage::PeerReset(peer)));
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
        let (local, id) = (self.clock.read(now), self.id);
        let Some(process) = &self.process else { return };
        let commands = {
            let mut heartbeats = process.shared.heartbeats.lock();
            heartbeats.feed(local, event);
            heartbeats.take_said()
        };
        for command in commands {
            match command {
                HbCommand::SendPing { to, msg } | HbCommand::SendReply { to, msg } => {
                    out.push(Out::Send(Node::Osd(to.0), Packet::Heartbeat(process.shared.heartbeat(msg))));
                }
                HbCommand::ReportFailure(report) | HbCommand::CancelFailure(report) => {
                    let event = logic::Event::Failure { reporter: id, report };
                    out.push(Out::Send(Node::Mon, Packet::ToMon(Box::new(event))));
                }
                HbCommand::LeaseGained(_) => process.shared.post_all(|| ShardMessage::Leases),
                HbCommand::NewerMap(_) => self.subscribe(out),
            }
        }
    }

    fn subscribe(&self, out: &mut Vec<Out>) {
        let (generation, epoch) =
            self.view().map_or((0, Epoch(0)), |view| (view.map.generation, view.map.epoch));
        out.push(Out::Send(Node::Mon, Packet::Subscribe(generation, epoch.0)));
    }

    /// Time passed: heartbeats, fullness, and a word to the map authority. The shards have turns of their own.
    pub fn on_tick(&mut self, now: Nanos, out: &mut Vec<Out>) {
        let (local, id) = (self.clock.read(now), self.id);
        let (full, left) = {
            let disk = self.disk();
            (disk.lacks_room(MARGIN_BYTES), disk.left())
        };
        let Some(process) = &mut self.process else { return };
        process.shared.set_full(full);
        process.shared.space_bytes.store(left, std::sync::atomic::Ordering::Relaxed);
        if process.next_beacon <= local {
            process.next_beacon = local + BEACON;
            if let Some(view) = process.view.clone().filter(|_| process.is_up(id)) {
                let alive = OsdAlive { boot_nonce: process.shared.boot_nonce, epoch: view.map.epoch, full };
                let event = logic::Event::Alive { osd: id, alive };
                out.push(Out::Send(Node::Mon, Packet::ToMon(Box::new(event))));
                // Ceph's OSDs renew their subscription too, in case a map got lost on the way.
                out.push(Out::Send(Node::Mon, Packet::Subscribe(view.map.generation, view.map.epoch.0)));
            } else {
                self.hello(out);
            }
        }
        self.beat(now, HbEvent::Tick, out);
    }

    /// The true time at which [`Osd::on_tick`] has something to do, at the latest.
    pub fn next_tick(&self) -> Option<Nanos> {
        let process = self.process.as_ref()?;
        let beat = process.shared.heartbeats.lock().next_wake();
        let local = beat.into_iter().chain([process.next_beacon]).min()?;
        Some(self.clock.when(local))
    }
}

impl Process {
    fn cell_of(&self, pg: PgId) -> &ShardCell {
        &self.cells[self.shared.shard_of(pg)]
    }

    fn inbox_of(&self, pg: PgId) -> &nacre_shard::inbox::Inbox {
        &self.shared.inboxes[self.shared.shard_of(pg)]
    }

    /// Whether the map shows this very process as up.
    fn is_up(&self, id: OsdId) -> bool {
        let info = self.view.as_ref().and_then(|view| view.map.osds.get(&id));
        info.is_some_and(|info| info.up && info.boot_nonce == self.shared.boot_nonce)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        for cell in &self.cells {
            cell.with(Shard::close);
        }
    }
}

/// Reads copies of PGs off disks, as a process that starts does.
#[derive(Clone, Debug)]
struct Copies {
    member: Member,
    settings: nacre_pg::Settings,
}

impl Copies {
    /// The copy in an image; `None` where there is none, or one that is being removed.
    fn load(&self, image: &Image, pg: PgId) -> Option<Pg> {
        let collection = image.collections.get(&pg)?;
        if collection.meta.contains_key(REMOVING_KEY) {
            return None;
        }
        self.parse(pg, collection).ok()
    }

    fn parse(&self, pg: PgId, collection: &Collection) -> Result<Pg, DecodeError> {
        let meta: Vec<(String, Bytes)> =
            collection.meta.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        let log = collection.log.iter().map(|(version, entry)| (*version, entry.clone())).collect();
        Pg::load(pg, self.member, 0, Arc::new(self.settings.clone()), &meta, log)
    }

    /// Whether the disk has a copy of the object that can be read, and no record that it is not the newest.
    fn has_stored(&self, disk: &Disk, pg: PgId, object: &ObjectId) -> bool {
        let seen = disk.seen();
        seen.collections.get(&pg).is_some_and(|collection| collection.objects.contains_key(object))
            && !seen.damaged.contains_key(&(pg, object.clone()))
            && self.load(seen, pg).is_some_and(|copy| !copy.lacks(object))
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
