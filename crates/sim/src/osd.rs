//! A simulated OSD: its real shards and control, on a simulated disk and a clock of its own.
//!
//! [`nacre_shard`] handles PGs, clients, peers and the map authority as in production. This module drives it: it delivers
//! messages, and runs the turns of shards and control. It does not know the faults of the network and the disk: messages to
//! be sent, and events for the invariants, are passed to the caller ([`OsdOutput`]).

mod host;
mod pings;

use crate::bounds::{Bound, BoundCounts, LONG_OMAP};
use crate::disk::{Disk, Image};
use crate::monitor::FSID;
use crate::network::Node;
use crate::packet::SocketEvent;
use crate::schedule::{Clock, Nanos};
use crate::sessions::{Delivery, Event, SessionOutput, SessionSettings, Sessions};
use crate::stalls::{ACTORS, CONTROL, SHARDS, StallOrder, Stalled};
use crate::store::Store;
use bytes::Bytes;
use host::Host;
use nacre_common::Config;
use nacre_objectstore::ObjectStore;
use nacre_pg::heartbeat::HbEnvelope;
use nacre_pg::log::{FLOOR_PREFIX, FORGOTTEN_CLIENT_KEY, RECORD_PREFIX};
use nacre_pg::{Pg, PgEnvelope};
use nacre_session::Policy;
use nacre_shard::control::Control;
use nacre_shard::host::ShardHost;
use nacre_shard::inbox::ShardMessage;
use nacre_shard::session::{IncomingRequest, Session};
use nacre_shard::shard::{REMOVING_KEY, Shard, ShardCell, Turn};
use nacre_shard::shared::{RunState, ShardSettings, Shared};
use nacre_shard::superblock::{OsdRecords, Superblock};
use nacre_types::encoding::DecodeError;
use nacre_types::msg::{MapPublish, Message, OsdRequest, PgCasReply};
use nacre_types::osdmap::{Member, PgMembership};
use nacre_types::stats::pg_state;
use nacre_types::{Epoch, Eversion, Incarnation, Interval, ObjectId, OsdId, PgId};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Actions that an OSD requests, and events that it reports.
#[derive(Debug)]
pub enum OsdOutput {
    /// A PG's next membership was proposed to the map authority.
    Proposed(PgId, Box<PgMembership>),
    /// A machine ordered an update of this PG in this interval.
    Ordered {
        /// The PG.
        pg: PgId,
        /// The version's interval.
        interval: Interval,
    },
    /// A client was answered on this PG in this interval, with this version if it wrote.
    Answered {
        /// The PG.
        pg: PgId,
        /// The interval under which the machine answered.
        interval: Interval,
        /// The write's version; `None` for reads.
        wrote: Option<Eversion>,
        /// The true time at which the clock was read for checking the leases.
        judged: Nanos,
    },
    /// A client got the answer that an object is unreadable.
    Unreadable {
        /// The PG.
        pg: PgId,
        /// The object.
        object: ObjectId,
        /// The interval in which the machine answered.
        interval: Interval,
        /// Whether the OSD itself has a readable copy.
        has_own: bool,
    },
    /// A shard requests the source of a request's copy.
    Fetch {
        /// The shard.
        shard: usize,
        /// The request.
        arrival: Box<IncomingRequest>,
    },
    /// A shard requests an object of another pool, or the execution of a request there.
    AskOther {
        /// The shard.
        shard: usize,
        /// The shard's number for the request.
        ticket: u64,
        /// The request; its copy-from op names the object to be read.
        request: Box<OsdRequest>,
        /// Whether the object is read.
        reads: bool,
    },
    /// An action for its sessions.
    Session(SessionOutput),
    /// An actor stalls in the middle of a turn, as ordered.
    Stalled(StallOrder),
    /// A bound was reached.
    Reached(Bound),
    /// The contract between machine and host was broken.
    Broken(&'static str, String),
}

/// Settings of an OSD's machines.
#[derive(Clone, Debug)]
pub struct OsdSettings {
    /// PGs, heartbeats and leases.
    pub shards: ShardSettings,
    /// Sessions with peers, and connections of clients.
    pub sessions: SessionSettings,
    /// The options that the simulation does not choose.
    pub config: Config,
    /// Clients that are the sessions of OSDs.
    pub osd_sessions: Range<u32>,
    /// Whether stores have production's bounds.
    pub real_bounds: bool,
}

/// The state of an OSD that survives its processes, and the process while it runs.
#[derive(Debug)]
pub struct Osd {
    /// Its id.
    pub id: OsdId,
    /// The identity of the disk.
    pub uuid: Uuid,
    /// The identity of the disk's contents.
    pub incarnation: Incarnation,
    /// The machine's clock.
    pub clock: Clock,
    /// The number of the process; events for an earlier one are ignored.
    pub life: u32,
    /// How far its wall clock is ahead of the others', in nanoseconds.
    pub wall_ahead: i64,
    store: Arc<Store>,
    process: Option<Process>,
    settings: OsdSettings,
    reached: BoundCounts,
}

/// A running OSD process.
struct Process {
    shared: Arc<Shared>,
    cells: Arc<Vec<ShardCell>>,
    host: Arc<Host>,
    control: Arc<Mutex<Control>>,
    stall: Option<StallOrder>,
    stalled: [Option<Stalled>; ACTORS],
    osd_sessions: Range<u32>,
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Process").field("boot_nonce", &self.shared.boot_nonce).finish_non_exhaustive()
    }
}

impl Osd {
    /// An OSD that never ran.
    pub fn new(id: OsdId, clock: Clock, settings: OsdSettings) -> Osd {
        let number = u128::from(id.0);
        Osd {
            id,
            uuid: Uuid::from_u128(0x1000 + number),
            incarnation: Incarnation(Uuid::from_u128((0x2000 + number) << 32)),
            clock,
            life: 0,
            wall_ahead: 0,
            store: Arc::new(Store::new(settings.real_bounds)),
            process: None,
            settings,
            reached: BoundCounts::default(),
        }
    }

    /// This OSD as a member.
    pub fn member(&self) -> Member {
        Member { osd: self.id, incarnation: self.incarnation }
    }

    /// Its disk. The guard must be dropped before the OSD acts.
    pub fn disk(&self) -> MutexGuard<'_, Disk> {
        self.store.disk()
    }

    /// Whether its process runs.
    pub fn is_running(&self) -> bool {
        self.process.is_some()
    }

    /// Starts a process.
    pub fn start(&mut self, now: Nanos, out: &mut Vec<OsdOutput>) {
        self.life += 1;
        let nonce = (u64::from(self.id.0) + 1) << 32 | u64::from(self.life);
        let sessions = Sessions::new(self.settings.sessions, nonce, SHARDS);
        let (store, local) = (Arc::clone(&self.store), self.clock.read(now));
        let host = Arc::new(Host::new(self.copies(), store, nonce, local, sessions));
        let world = Arc::clone(&host) as Arc<dyn ShardHost>;
        let store = Arc::clone(&self.store) as Arc<dyn ObjectStore>;
        let settings = &self.settings;
        let shared = Shared::new(&settings.config, self.member(), nonce, store, world, &settings.shards);
        let cells: Vec<ShardCell> =
            (0..shared.inboxes.len()).map(|index| ShardCell::new(&shared, index)).collect();
        let pgs: Vec<PgId> = self.disk().visible().collections.keys().copied().collect();
        for pg in pgs {
            if let Err(error) = cells[shared.shard_of(pg)].with(|shard| shard.load(pg)) {
                out.push(OsdOutput::Broken("a PG does not load", format!("{pg} on {}: {error}", self.id)));
            }
        }
        let cells = Arc::new(cells);
        let records = OsdRecords::read(&*self.store).unwrap_or_else(|error| {
            out.push(OsdOutput::Broken("a superblock does not load", format!("{}: {error}", self.id)));
            None
        });
        let records = records.unwrap_or_else(|| self.mkfs());
        let mut control = Control::new(Arc::clone(&shared), Arc::clone(&cells), records, BTreeMap::new());
        control.set_turn_timeout(Duration::ZERO);
        let control = Arc::new(Mutex::new(control));
        self.process = Some(Process {
            shared,
            cells,
            host,
            control,
            stall: None,
            stalled: [const { None }; ACTORS],
            osd_sessions: self.settings.osd_sessions.clone(),
        });
        self.act(now, out, |process| process.host.connect_mon_if_due());
    }

    /// The records of a new disk.
    fn mkfs(&self) -> OsdRecords {
        OsdRecords::new(Superblock {
            fsid: FSID,
            osd: self.id,
            uuid: self.uuid,
            epoch: Epoch(0),
            generation: 0,
        })
    }

    fn copies(&self) -> Copies {
        Copies { member: self.member(), settings: self.settings.shards.pg.clone() }
    }

    /// The PG's highest record that the disk would have after a crash.
    pub fn durable_membership(&self, pg: PgId) -> Option<PgMembership> {
        self.copies().load(self.disk().durable(), pg)?.highest_recorded().cloned()
    }

    /// The start of the durable log of a complete copy of the PG.
    pub fn durable_tail(&self, pg: PgId) -> Option<Eversion> {
        let info = self.copies().load(self.disk().durable(), pg)?.query(0, 0).info;
        info.complete.then_some(info.tail)
    }

    /// Whether the PG has a durable copy that is not being removed.
    pub fn has_copy(&self, pg: PgId) -> bool {
        self.copies().load(self.disk().durable(), pg).is_some()
    }

    /// Whether the PG has a durable copy that is complete as far as is known.
    pub fn has_whole_copy(&self, pg: PgId) -> bool {
        let is_undamaged = |image: &Image| !image.damaged.keys().any(|(of, _)| *of == pg);
        let disk = self.disk();
        self.copies().load(disk.durable(), pg).is_some_and(|copy| copy.is_whole())
            && is_undamaged(disk.durable())
            && is_undamaged(disk.visible())
    }

    /// Whether the disk has a readable copy of the object, and no record that it is not the newest.
    pub fn has_current_copy(&self, pg: PgId, object: &ObjectId) -> bool {
        self.copies().has_stored(&self.disk(), pg, object)
    }

    /// Whether the copy is known to lack the object, or has an unreadable one.
    pub fn lacks(&self, pg: PgId, object: &ObjectId) -> bool {
        let disk = self.disk();
        disk.visible().damaged.contains_key(&(pg, object.clone()))
            || self.copies().load(disk.visible(), pg).is_some_and(|copy| copy.lacks(object))
    }

    /// Whether the durable copy is known to lack the object.
    pub fn durably_lacks(&self, pg: PgId, object: &ObjectId) -> bool {
        self.copies().load(self.disk().durable(), pg).is_some_and(|copy| copy.lacks(object))
    }

    /// The process dies. The disk keeps the flushed changes and `surviving` more.
    pub fn crash(&mut self, surviving: usize) {
        if let Some(process) = &mut self.process {
            process.end_stalled();
        }
        self.harvest();
        self.process = None;
        self.life += 1;
        self.store.drop_completions();
        self.disk().crash(surviving);
    }

    /// Its process starts an orderly shutdown: it informs the map authority, and continues until [`Osd::stop`].
    pub fn begin_to_stop(&mut self, now: Nanos, out: &mut Vec<OsdOutput>) {
        self.act(now, out, |process| {
            process.shared.prepare_to_stop();
        });
    }

    /// Whether the newest map here shows its process up.
    pub fn is_up_in_map(&self) -> bool {
        self.process.as_ref().is_some_and(Process::is_shown_up)
    }

    /// Its process ends in order: queued messages are dropped, and all writes become durable in the store.
    pub fn stop(&mut self, now: Nanos, out: &mut Vec<OsdOutput>) {
        self.act(now, out, |process| {
            for cell in process.cells.iter() {
                cell.with(Shard::close);
            }
            if let Err(error) = process.control.lock().save_superblock() {
                process.host.broken("the superblock is not saved", error.to_string());
            }
        });
        let all = self.disk().unflushed();
        self.crash(all);
    }

    /// Takes the process's counts of bounds.
    fn harvest(&mut self) {
        let Osd { process, reached, .. } = self;
        for cell in process.iter().flat_map(|process| process.cells.iter()) {
            cell.inspect(|shard| {
                for counted in shard.pgs().filter_map(|pg| shard.machine(pg)).map(Pg::limit_hits) {
                    reached.add(Bound::SessionExpired, counted.sessions_expired);
                    reached.add(Bound::WritesInFlight, counted.writes_held);
                }
            });
        }
    }

    /// The counts of bounds. If its process still runs, it is not counted from then on.
    pub fn take_bound_counts(&mut self) -> BoundCounts {
        if let Some(process) = &mut self.process {
            process.end_stalled();
        }
        self.harvest();
        let mut reached = std::mem::take(&mut self.reached);
        for collection in self.disk().durable().collections.values() {
            let has = |prefix: &str| u64::from(collection.meta.keys().any(|key| key.starts_with(prefix)));
            reached.add(Bound::LogTrimmed, u64::from(collection.trimmed > Eversion::default()));
            reached.add(Bound::DupRetained, has(RECORD_PREFIX));
            reached.add(Bound::DupDropped, has(FLOOR_PREFIX));
            reached.add(Bound::ClientsForgotten, has(FORGOTTEN_CLIENT_KEY));
            let has_long_omap = collection.objects.values().any(|object| object.omap.len() >= LONG_OMAP);
            reached.add(Bound::LongOmap, u64::from(has_long_omap));
        }
        reached
    }

    /// The disk is replaced by another one, as that of a new OSD with the same id.
    pub fn replace_disk(&mut self) {
        self.wipe();
        self.uuid = Uuid::from_u128(self.uuid.as_u128() + (1 << 32));
    }

    /// The disk is replaced by an empty one.
    pub fn wipe(&mut self) {
        assert!(self.process.is_none(), "invariant: disks are replaced while the OSD is down");
        self.disk().wipe();
        self.incarnation = Incarnation(Uuid::from_u128(self.incarnation.0.as_u128() + 1));
    }

    /// Its process's nonce; 0 if none runs.
    pub fn nonce(&self) -> u64 {
        self.process.as_ref().map_or(0, |p| p.shared.boot_nonce)
    }

    /// Accesses a hosted PG's machine, unless its shard stalls.
    pub fn with_machine<R>(&self, pg: PgId, look: impl FnOnce(&Pg) -> R) -> Option<R> {
        self.process.as_ref()?.free_cell_of(pg)?.inspect(|shard| shard.machine(pg).map(look))
    }

    /// Whether the PG can answer clients at this time: it is active as primary and holds all leases. A shard that stalls
    /// answers no requests.
    pub fn serves(&self, pg: PgId, now: Nanos) -> bool {
        let Some(process) = &self.process else { return false };
        let serves = |machine: &Pg| self.is_serving(process, machine, now);
        self.with_machine(pg, serves).unwrap_or(false)
    }

    /// The PGs for which [`Osd::serves`] holds, in order.
    pub fn serving(&self, now: Nanos) -> Vec<PgId> {
        let mut pgs = Vec::new();
        if let Some(process) = &self.process {
            let serves = |machine: &Pg| self.is_serving(process, machine, now);
            for cell in process.free_cells() {
                cell.inspect(|shard| {
                    pgs.extend(shard.pgs().filter(|pg| shard.machine(*pg).is_some_and(serves)));
                });
            }
        }
        pgs.sort_unstable();
        pgs
    }

    fn is_serving(&self, process: &Process, machine: &Pg, now: Nanos) -> bool {
        machine.state() & pg_state::ACTIVE != 0
            && machine.holds_leases(&process.shared.heartbeats.lock().lease_snapshot(self.clock.read(now)))
    }

    /// The state of a hosted PG's machine, as a text.
    pub fn describe(&self, pg: PgId) -> Option<String> {
        let said = self.process.as_ref()?.free_cell_of(pg)?.with(|shard| shard.query(pg))?;
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

    /// Requests of clients that the shards hold, except shards that stall.
    pub fn waiting_requests(&self) -> usize {
        let cells = self.process.iter().flat_map(Process::free_cells);
        cells.map(|cell| cell.inspect(Shard::held_requests)).sum()
    }

    /// Each shard's next turn, and whether messages wait for it. A shard that stalls needs none, because it is in a turn.
    pub fn pending_turns(&self) -> impl Iterator<Item = (Turn, bool)> {
        let shards = self.process.iter().flat_map(|process| process.cells.iter().zip(&process.stalled));
        shards.map(|(cell, stalled)| match stalled {
            None => (cell.pending(), !cell.inbox().is_empty()),
            Some(_) => (Turn { next_ns: None, busy: false }, false),
        })
    }

    /// Orders that an actor stalls in one of its next turns, if the process runs. Replaces an earlier order.
    pub fn schedule_stall(&mut self, order: Option<StallOrder>) {
        if let Some(process) = &mut self.process {
            process.stall = order;
        }
    }

    /// An actor that stalls continues its turn.
    pub fn resume_actor(&mut self, now: Nanos, actor: usize, out: &mut Vec<OsdOutput>) {
        let stalled = self.process.as_ref().and_then(|process| process.stalled[actor].as_ref());
        let jump = stalled.and_then(|stalled| stalled.order.jump);
        self.wall_ahead = jump.unwrap_or(self.wall_ahead);
        self.act(now, out, |process| process.go_on(actor));
    }

    /// A shard's turn.
    pub fn on_turn(&mut self, now: Nanos, shard: usize, out: &mut Vec<OsdOutput>) {
        self.act(now, out, |process| {
            process.shard_turn(shard, |cell| {
                cell.turn();
            });
        });
    }

    /// Runs an action of the process, and takes the results.
    fn act(&mut self, now: Nanos, out: &mut Vec<OsdOutput>, act: impl FnOnce(&mut Process)) {
        let local = self.clock.read(now);
        let Some(process) = &mut self.process else { return };
        process.host.set_time(now, local, self.wall_ahead);
        act(process);
        process.hear();
        process.host.sessions().flush();
        process.host.take(out);
        if let RunState::Failed(reason) = &*process.shared.state.borrow() {
            out.push(OsdOutput::Broken("an OSD stops", format!("{}: {reason}", self.id)));
        }
    }

    /// Handles an event of a socket.
    pub fn on_socket(
        &mut self,
        now: Nanos,
        from: Node,
        (number, event): (u64, SocketEvent),
        out: &mut Vec<OsdOutput>,
    ) {
        self.act(now, out, |process| {
            let local = process.host.local_ns();
            process.host.sessions().on_socket(local, from, number, event);
        });
    }

    /// Delivers the answer to a shard's request to other PGs.
    pub fn on_message(&mut self, now: Nanos, shard: usize, message: ShardMessage, out: &mut Vec<OsdOutput>) {
        self.act(now, out, |process| process.shared.inboxes[shard].post(message));
    }

    /// The `count` oldest unflushed changes are durable.
    pub fn on_flushed(&mut self, now: Nanos, count: usize, out: &mut Vec<OsdOutput>) {
        let store = Arc::clone(&self.store);
        self.act(now, out, |_| store.flush(count));
    }

    /// Gives up the session with a peer, as if its queue were full.
    pub fn drop_peer(&mut self, now: Nanos, peer: OsdId, out: &mut Vec<OsdOutput>) {
        self.act(now, out, |process| {
            process.host.drop_peer(peer);
            process.shared.post_all(|| ShardMessage::PeerReset(peer));
        });
    }

    /// The process is about to end in order: it informs peers and clients.
    pub fn close_sessions(&mut self, now: Nanos, out: &mut Vec<OsdOutput>) {
        self.act(now, out, |process| process.host.sessions().close());
    }

    /// Runs the sessions' timers.
    pub fn on_session_time(&mut self, now: Nanos, out: &mut Vec<OsdOutput>) {
        self.act(now, out, |process| {
            let local = process.host.local_ns();
            process.host.sessions().on_time(local);
        });
    }

    /// The true time at which [`Osd::on_session_time`] has to run.
    pub fn next_session_time(&self) -> Option<Nanos> {
        Some(self.clock.when(self.process.as_ref()?.host.sessions().next_wake()?))
    }

    /// A turn of the control thread. The shards have turns of their own.
    pub fn on_tick(&mut self, now: Nanos, out: &mut Vec<OsdOutput>) {
        self.act(now, out, |process| {
            process.host.connect_mon_if_due();
            if process.stalled[CONTROL].is_none() {
                let is_woken = process.shared.heartbeats.lock().has_commands();
                process.control_turn(move |control| {
                    if is_woken {
                        control.request_report();
                    }
                    control.tick();
                });
            }
        });
    }

    /// The latest true time at which [`Osd::on_tick`] has to run; `None` while control stalls.
    pub fn next_tick(&self) -> Option<Nanos> {
        let process = self.process.as_ref()?;
        // A ping may have requested a turn.
        let is_woken = process.shared.heartbeats.lock().has_commands();
        let control_ns = || if is_woken { process.host.local_ns() } else { process.control.lock().next_ns() };
        let control = process.stalled[CONTROL].is_none().then(control_ns);
        let next = process.host.next_mon_wake().into_iter().chain(control).min()?;
        Some(self.clock.when(next))
    }
}

impl Process {
    /// The shard of the PG, unless it stalls.
    fn free_cell_of(&self, pg: PgId) -> Option<&ShardCell> {
        let shard = self.shared.shard_of(pg);
        self.stalled[shard].is_none().then(|| &self.cells[shard])
    }

    /// The shards that do not stall.
    fn free_cells(&self) -> impl Iterator<Item = &ShardCell> {
        self.cells.iter().zip(&self.stalled).filter(|(_, stalled)| stalled.is_none()).map(|(cell, _)| cell)
    }

    /// A turn of control, which must not be in one.
    fn control_turn(&mut self, turn: impl FnOnce(&mut Control) + Send + 'static) {
        let control = Arc::clone(&self.control);
        self.turn(CONTROL, move || turn(&mut control.lock()));
    }

    /// A turn of a shard, which must not be in one.
    fn shard_turn(&mut self, shard: usize, turn: impl FnOnce(&ShardCell) + Send + 'static) {
        let cells = Arc::clone(&self.cells);
        self.turn(shard, move || turn(&cells[shard]));
    }

    fn turn(&mut self, actor: usize, turn: impl FnOnce() + Send + 'static) {
        assert!(self.stalled[actor].is_none(), "invariant: an actor has one turn at a time");
        let Some(order) = self.stall.take_if(|order| order.actor == actor) else { return turn() };
        match Stalled::run(order, (self.host.local_ns(), self.host.true_ns()), turn) {
            Some(stalled) => {
                self.host.tell(OsdOutput::Stalled(order));
                self.set_stalled(actor, Some(stalled));
            }
            None => self.stall = order.after_a_turn(),
        }
    }

    fn set_stalled(&mut self, actor: usize, stalled: Option<Stalled>) {
        self.host.sessions().set_stalled(actor, stalled.is_some());
        self.stalled[actor] = stalled;
    }

    /// An actor that stalls continues.
    fn go_on(&mut self, actor: usize) {
        if let Some(stalled) = self.stalled[actor].take() {
            stalled.go_on();
        }
        self.set_stalled(actor, None);
    }

    /// The process dies: ends the turns that stall.
    fn end_stalled(&mut self) {
        self.stalled.iter_mut().filter_map(Option::take).for_each(Stalled::die);
    }

    /// Handles the events of sessions and connections for the shards, on the threads that own them.
    fn hear(&mut self) {
        let now = self.host.local_ns();
        loop {
            let event = self.host.sessions().next_event(now);
            let taken = match event {
                None => return,
                Some(Event::Accepted(id, client, from)) => {
                    self.host.accept(id, client, self.osd_of(from));
                    Ok(())
                }
                Some(Event::Connected(id)) => {
                    if self.host.mon_connected(id) {
                        self.control_turn(Control::on_connected);
                    }
                    Ok(())
                }
                Some(Event::Message(delivery)) => match delivery.from {
                    Node::Osd(osd) if delivery.kind == HbEnvelope::KIND => {
                        self.on_heartbeat(OsdId(osd), &delivery)
                    }
                    Node::Osd(_) => self.on_envelope(delivery),
                    Node::Client(_) => self.on_request(delivery),
                    Node::Mon => self.on_mon_message(&delivery),
                },
                Some(Event::Reset {
                    id,
                    peer: Node::Osd(osd),
                    policy: Policy::Lossy,
                    is_lost,
                    cause,
                    ..
                }) => {
                    self.lose_pings(OsdId(osd), id, is_lost, cause);
                    Ok(())
                }
                Some(Event::Reset { peer: Node::Osd(osd), is_lost, .. }) => {
                    if is_lost {
                        self.host.drop_peer(OsdId(osd));
                    }
                    self.shared.post_all(|| ShardMessage::PeerReset(OsdId(osd)));
                    Ok(())
                }
                Some(Event::Reset { id, peer: Node::Mon, .. }) => {
                    if self.host.mon_lost(id) {
                        self.control_turn(Control::on_disconnected);
                    }
                    Ok(())
                }
                Some(Event::Reset { id, .. }) => {
                    if self.host.lose_accepted(id, Session::is_watching) {
                        self.shared.post_all(|| ShardMessage::WatchConnClosed(id));
                    }
                    Ok(())
                }
            };
            if let Err(error) = taken {
                self.host.broken("a message that can't be decoded", error.to_string());
            }
        }
    }

    /// The OSD of a connecting process, if it is an OSD's.
    fn osd_of(&self, from: Node) -> Option<OsdId> {
        match from {
            Node::Osd(osd) => Some(OsdId(osd)),
            Node::Client(n) if self.osd_sessions.contains(&n) => Some(OsdId(n - self.osd_sessions.start)),
            _ => None,
        }
    }

    fn on_request(&mut self, mut delivery: Delivery) -> Result<(), DecodeError> {
        let Some(conn) = self.host.accepted(delivery.id) else { return Ok(()) };
        let request: OsdRequest = delivery.decode()?;
        let arrived_ns = self.host.local_ns();
        let arrival = IncomingRequest { conn, permit: delivery.permit.take(), arrived_ns, request };
        let owner = self.shared.shard_of(arrival.request.pg);
        if owner == delivery.lane {
            self.shard_turn(owner, |cell| {
                cell.enter(|shard| shard.on_request(arrival));
            });
        } else {
            self.shared.inboxes[owner].post(ShardMessage::Client(Box::new(arrival)));
        }
        Ok(())
    }

    fn on_envelope(&mut self, mut delivery: Delivery) -> Result<(), DecodeError> {
        let envelope: PgEnvelope = delivery.decode()?;
        let Node::Osd(from) = delivery.from else { return Ok(()) };
        let (from, permit) = (OsdId(from), delivery.permit.take());
        BoundCounts::of_peer(&envelope.msg).into_iter().for_each(|bound| self.host.reached(bound));
        let owner = self.shared.shard_of(envelope.pg);
        if owner == delivery.lane {
            self.shard_turn(owner, move |cell| {
                cell.enter(|shard| shard.on_peer(from, envelope));
                drop(permit);
            });
        } else {
            let envelope = Box::new(envelope);
            self.shared.inboxes[owner].post(ShardMessage::Peer { from, envelope, permit });
        }
        Ok(())
    }

    fn is_shown_up(&self) -> bool {
        self.shared.is_shown_up()
    }

    fn on_mon_message(&mut self, delivery: &Delivery) -> Result<(), DecodeError> {
        if !self.host.is_mon(delivery.id) {
            return Ok(());
        }
        match delivery.kind {
            PgCasReply::KIND => {
                let reply = delivery.decode()?;
                self.control_turn(move |control| control.on_cas(reply));
            }
            _ => {
                let publish: MapPublish = delivery.decode()?;
                let host = Arc::clone(&self.host);
                self.control_turn(move |control| {
                    if let Err(error) = control.on_maps(&publish) {
                        host.broken("a map that can't be decoded", error.to_string());
                    }
                });
            }
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end_stalled();
        for cell in self.cells.iter() {
            cell.with(Shard::close);
        }
    }
}

/// Reads copies of PGs from disks, like a process that starts.
#[derive(Clone, Debug)]
struct Copies {
    member: Member,
    settings: nacre_pg::PgSettings,
}

impl Copies {
    /// The copy in an image; `None` if there is none, or one that is being removed.
    fn load(&self, image: &Image, pg: PgId) -> Option<Pg> {
        let collection = image.collections.get(&pg)?;
        if collection.meta.contains_key(REMOVING_KEY) {
            return None;
        }
        let meta: Vec<(String, Bytes)> =
            collection.meta.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        let log = collection.log.iter().map(|(version, entry)| (*version, entry.clone())).collect();
        Pg::load(pg, self.member, 0, Arc::new(self.settings.clone()), &meta, log).ok()
    }

    /// Whether the disk has a readable copy of the object, and no record that it is not the newest.
    fn has_stored(&self, disk: &Disk, pg: PgId, object: &ObjectId) -> bool {
        let seen = disk.visible();
        seen.collections.get(&pg).is_some_and(|collection| collection.objects.contains_key(object))
            && !seen.damaged.contains_key(&(pg, object.clone()))
            && self.load(seen, pg).is_some_and(|copy| !copy.lacks(object))
    }
}

/// A membership in a short form; members other than an OSD's first incarnation show their incarnation.
pub fn show_membership(membership: &PgMembership) -> String {
    let member = |m: &Member| match m.incarnation.0.as_u128() & 0xffff_ffff {
        0 => m.osd.0.to_string(),
        n => format!("{}~{n}", m.osd.0),
    };
    let set: Vec<String> = membership.in_sync.iter().map(member).collect();
    format!("i{} p{} [{}]", membership.interval, membership.primary.0, set.join(" "))
}
