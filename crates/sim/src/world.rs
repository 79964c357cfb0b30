//! One run: all machines, the network between them, and the schedule.
//!
//! Every event is a [`WorldEvent`] on the schedule; each is handled completely before the next, and the invariants are checked
//! in between. The run ends when the faults have stopped, every PG is clean, every request is answered and every object was
//! read once more, or with the first broken invariant.

mod ending;
pub mod nemesis;
mod processes;
mod sockets;
mod workload;

use crate::bounds::{Bound, BoundCounts};
use crate::client::{Client, ClientOutput};
use crate::gateway::executor::ProcessId;
use crate::history::History;
use crate::invariants::Invariants;
use crate::linearize;
use crate::monitor::{MonOutput, Monitor};
use crate::network::{Delays, Due, Link, Network, Node};
use crate::osd::{Osd, OsdOutput, show_membership};
use crate::packet::{MapView, Packet};
use crate::program::Program;
use crate::random::{Random, Stream};
use crate::scenario::{Fault, Scenario};
use crate::schedule::{Clock, MICRO, MILLI, Nanos, SECOND, Schedule};
use crate::stalls::SHARDS;
use crate::{Failure, Options, Report, take_breaches};
use ending::RunPhase;
use nacre_engine::Error;
use nacre_exec::CopiedObject;
use nacre_objecter::Answer;
use nacre_shard::shard::Turn;
use nacre_types::errno::Errno;
use nacre_types::{ClientId, OsdId, PoolId};
use nemesis::{FaultEvent, Nemesis, TROUBLE_BEGINS};
use processes::Processes;
use sockets::Sockets;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use workload::Fetching;

/// The maximum number of clients' requests that one OSD holds.
const MAX_HELD: usize = 2_000;

/// An event.
#[derive(Clone, Debug)]
pub enum WorldEvent {
    /// The head of a direction's queue may have arrived.
    Deliver(Link),
    /// A flush that began in this life ends: this number of changes is durable.
    Flushed(u32, u32, usize),
    /// A shard's turn.
    Turn(u32, u32, usize),
    /// An OSD's scheduled wake-up.
    OsdTick(u32, u32),
    /// An OSD's process starts.
    OsdStart(u32),
    /// The scheduled wake-up of an OSD's sessions.
    SessionTime(u32, u32),
    /// The map authority's commit is durable.
    Committed(u32),
    /// A tick of the map authority.
    MonTick(u32),
    /// The map authority's process starts.
    MonStart,
    /// A client may send a request.
    Ask(u32),
    /// A client may watch or notify.
    Attend(u32),
    /// A client may list a pool, or read or remove a copy.
    Chore(u32),
    /// A client's timer.
    ClientTime(u32),
    /// A client continues with a new session.
    NewSession(u32),
    /// The source of a copy was read, or could not be.
    Copied(u64, Box<Result<CopiedObject, Errno>>),
    /// Another pool answered an OSD's request.
    Other(u64, Box<Result<Answer, Error>>),
    /// A step of processes' tasks.
    Tasks,
    /// Checks whether the events that processes wait for have occurred.
    Errands,
    /// A process that is a client starts, by its place.
    ProcessStart(usize),
    /// A process that is a client ends, if it is still this one.
    ProcessEnd(usize, ProcessId),
    /// A fault of a process that is a client.
    ProcessFault(usize),
    /// The start or the end of a fault.
    FaultEvent(FaultEvent),
    /// The end of all faults.
    Calm,
    /// Checks whether the cluster is whole.
    Look,
}

/// A shard's next turn.
#[derive(Clone, Copy, Debug, Default)]
struct NextTurn {
    at: Option<Nanos>,
    /// Whether a message woke its thread.
    woken: bool,
}

/// The state of a run.
pub struct World {
    pub(crate) scenario: Scenario,
    pub(crate) schedule: Schedule<WorldEvent>,
    pub(crate) network: Network<Packet>,
    pub(crate) monitor: Monitor,
    pub(crate) osds: Vec<Osd>,
    pub(crate) clients: Vec<Client>,
    pub(crate) nemesis: Nemesis,
    pub(crate) disk_random: Random,
    pub(crate) clock_random: Random,
    pub(crate) invariants: Invariants,
    pub(crate) reached: BoundCounts,
    pub(crate) history: History,
    workload: Random,
    /// When clients watch and notify, and what.
    attendance: Random,
    /// When clients list pools, read and remove copies, and which.
    chores: Random,
    /// Requests whose sources are being read, by numbers: their OSD, its life, their shard.
    copying: BTreeMap<u64, (u32, u32, usize, Fetching)>,
    /// Requests of OSDs to other pools: the OSD, its life, its shard, the shard's number for the request.
    asking: BTreeMap<u64, (u32, u32, usize, u64)>,
    last_copy: u64,
    /// The generation of the last published map.
    generation: u64,
    monitor_random: Random,
    /// Whether each OSD has a flush in progress.
    flushing: Vec<bool>,
    /// When each OSD wakes up next.
    wakes: Vec<Option<Nanos>>,
    /// When each OSD's shards have their next turns.
    turns: Vec<[NextTurn; SHARDS]>,
    /// Directions cut by partitions.
    pub(crate) partitioned: BTreeSet<Link>,
    /// Sockets, and their messages.
    sockets: Sockets,
    /// When each OSD's sessions wake up next.
    session_wakes: Vec<Option<Nanos>>,
    /// Processes that are clients.
    processes: Option<Processes>,
    asked: u32,
    /// The number of batches of omap entries that were written at least once.
    batches: u32,
    /// Whether clients continue while the cluster heals.
    busy: bool,
    next_session: u64,
    ending: RunPhase,
    /// When the cluster must be whole again.
    whole_by: Nanos,
    /// Pools that an operator deleted: their copies may be gone even if a restored map contains them again.
    pub(crate) deleted: BTreeSet<PoolId>,
    pub(crate) failure: Option<Failure>,
    events: u64,
    hash: DefaultHasher,
    thorough: bool,
    trace: bool,
    out: Vec<OsdOutput>,
    mon_out: Vec<MonOutput>,
}

impl World {
    /// The initial world of a scenario, with the program of its processes, if it has one.
    pub fn new(scenario: &Scenario, options: &Options, program: Option<Box<dyn Program>>) -> World {
        let seed = scenario.seed;
        let mut clock_random = Random::new(seed, Stream::Clock);
        let mutation = options.mutation;
        let osds: Vec<Osd> = (0..scenario.osds)
            .map(|id| {
                let clock = Clock::new(&mut clock_random, 0, scenario.drift_ppm);
                let mut settings = scenario.settings(OsdId(id), mutation);
                settings.sessions.trace = options.trace;
                Osd::new(OsdId(id), clock, settings)
            })
            .collect();
        // OSDs have their own sessions to read the sources of copies.
        let clients = (0..scenario.clients + scenario.osds + scenario.processes)
            .map(|n| {
                let random = Random::new(seed, Stream::Client(n));
                let mut settings = scenario.client_sessions(mutation);
                settings.trace = options.trace;
                Client::new(Node::Client(n), ClientId(u64::from(n) + 1), nonce_of(n), settings, random)
                    .with_token_bytes(scenario.token_bytes)
            })
            .collect();
        let (map, tuning) = (scenario.first_map(), scenario.tuning());
        let mut settings = scenario.mon_sessions(mutation);
        settings.trace = options.trace;
        let monitor = Monitor::new(0, map, tuning, scenario.publishing(), settings);
        let count = osds.len();
        let mut world = World {
            scenario: scenario.clone(),
            schedule: Schedule::default(),
            network: Network::new(Random::new(seed, Stream::Network), Delays::default()),
            monitor,
            osds,
            clients,
            nemesis: Nemesis::new(scenario, scenario.settings(OsdId(0), mutation).shards.pg),
            disk_random: Random::new(seed, Stream::Disk),
            clock_random,
            invariants: Invariants::default(),
            reached: BoundCounts::default(),
            history: History::default(),
            workload: Random::new(seed, Stream::Workload),
            attendance: Random::new(seed, Stream::Attendance),
            chores: Random::new(seed, Stream::Chores),
            copying: BTreeMap::new(),
            asking: BTreeMap::new(),
            last_copy: 0,
            generation: 0,
            monitor_random: Random::new(seed, Stream::Monitor),
            flushing: vec![false; count],
            wakes: vec![None; count],
            turns: vec![[NextTurn::default(); SHARDS]; count],
            partitioned: BTreeSet::new(),
            sockets: Sockets::new(seed),
            session_wakes: vec![None; count],
            processes: program.map(|program| Processes::of(scenario, program)),
            asked: 0,
            batches: 0,
            busy: scenario.busy,
            next_session: u64::from(scenario.clients + scenario.osds + scenario.processes) + 1,
            ending: RunPhase::Trouble,
            whole_by: 0,
            deleted: BTreeSet::new(),
            failure: None,
            events: 0,
            hash: DefaultHasher::new(),
            thorough: options.thorough,
            trace: options.trace,
            out: Vec::new(),
            mon_out: Vec::new(),
        };
        world.history.watching.drift_ppm = scenario.drift_ppm;
        world.begin();
        world
    }

    fn begin(&mut self) {
        for osd in 0..self.osds.len() as u32 {
            self.schedule.at(u64::from(osd) * MILLI, WorldEvent::OsdStart(osd));
        }
        for client in 0..self.clients.len() as u32 {
            self.schedule.at(SECOND, WorldEvent::ClientTime(client));
        }
        for client in 0..self.scenario.clients {
            let wait = self.workload.exponential(self.scenario.think);
            self.schedule.at(2 * SECOND + wait, WorldEvent::Ask(client));
            self.schedule.at(3 * SECOND + wait, WorldEvent::Attend(client));
            self.schedule.at(4 * SECOND + wait, WorldEvent::Chore(client));
        }
        self.begin_processes();
        self.schedule.at(0, WorldEvent::MonTick(self.monitor.life));
        for (at, fault_event) in self.nemesis.first() {
            self.schedule.at(at, WorldEvent::FaultEvent(fault_event));
        }
        self.schedule.at(TROUBLE_BEGINS + self.scenario.trouble, WorldEvent::Calm);
    }

    /// Runs to the end or to the first failure.
    pub fn run(mut self) -> Report {
        while self.failure.is_none() && self.ending != RunPhase::Over {
            let Some(happening) = self.schedule.pop() else {
                let unfinished = self.describe_unfinished();
                self.fail("nothing happens any more", unfinished);
                break;
            };
            self.events += 1;
            self.note(&happening);
            self.handle(happening);
            if self.events > self.scenario.max_events() {
                let unfinished = self.describe_unfinished();
                self.fail("events without end", unfinished);
            }
        }
        self.history.note_fences();
        if self.failure.is_none()
            && let Err(broken) = linearize::check_all(&self.history)
        {
            self.fail(broken.rule, broken.detail);
        }
        if self.thorough {
            for osd in &self.osds {
                absorb(&mut self.hash, format_args!("{:?}", *osd.disk()));
            }
        }
        if let Some(processes) = &self.processes {
            processes.hash().hash(&mut self.hash);
        }
        for osd in &mut self.osds {
            self.reached.merge(&osd.take_bound_counts());
        }
        Report {
            failure: self.failure,
            hash: self.hash.finish(),
            events: self.events,
            answered: self.history.answered() as u64,
            virtual_ns: self.schedule.now(),
            struck: self.nemesis.struck().clone(),
            sessions: self.sockets.troubles,
            reached: self.reached,
            breaches: take_breaches(),
        }
    }

    /// Ends the run with a failure; only the first counts.
    pub(crate) fn fail(&mut self, rule: &str, detail: String) {
        if self.failure.is_none() {
            let detail = shorten(detail);
            self.failure = Some(Failure { rule: rule.to_owned(), detail, at: self.schedule.now() });
        }
    }

    fn note(&mut self, happening: &WorldEvent) {
        self.schedule.now().hash(&mut self.hash);
        std::mem::discriminant(happening).hash(&mut self.hash);
        if self.trace
            && !matches!(
                happening,
                WorldEvent::Deliver(_)
                    | WorldEvent::OsdTick(..)
                    | WorldEvent::SessionTime(..)
                    | WorldEvent::MonTick(_)
                    | WorldEvent::Tasks
                    | WorldEvent::Errands
            )
        {
            self.say(format_args!("{happening:?}"));
        }
    }

    pub(crate) fn say(&self, what: fmt::Arguments<'_>) {
        if self.trace {
            println!("{:>14.6} {what}", self.schedule.now() as f64 / 1e9);
        }
    }

    fn handle(&mut self, happening: WorldEvent) {
        let now = self.schedule.now();
        if let Some(until) = self.waits_for_stopped(&happening) {
            // The process continues before, because that is scheduled first.
            return self.schedule.at(until, happening);
        }
        match happening {
            WorldEvent::Deliver(link) => {
                let (packet, due) = self.network.deliver(now, link);
                self.due(due);
                if let Some(packet) = packet {
                    self.arrive(link, packet);
                }
            }
            WorldEvent::Flushed(osd, life, count) => {
                if self.osds[osd as usize].life == life {
                    self.flushing[osd as usize] = false;
                    self.with_osd(osd, |osd, out| osd.on_flushed(now, count, out));
                    self.check_contents(osd);
                }
            }
            WorldEvent::Turn(osd, life, shard) => {
                let turn = &mut self.turns[osd as usize][shard];
                // It may have been replaced by an earlier turn.
                if self.osds[osd as usize].life == life && turn.at.is_some_and(|at| at <= now) {
                    *turn = NextTurn::default();
                    self.with_osd(osd, |osd, out| osd.on_turn(now, shard, out));
                }
            }
            WorldEvent::OsdTick(osd, life) => {
                let wake = &mut self.wakes[osd as usize];
                if self.osds[osd as usize].life == life && wake.take_if(|at| *at <= now).is_some() {
                    self.with_osd(osd, |osd, out| osd.on_tick(now, out));
                }
            }
            WorldEvent::OsdStart(osd) => self.start_osd(osd),
            WorldEvent::SessionTime(osd, life) => {
                let wake = &mut self.session_wakes[osd as usize];
                if self.osds[osd as usize].life == life && wake.take_if(|at| *at <= now).is_some() {
                    self.with_osd(osd, |osd, out| osd.on_session_time(now, out));
                }
            }
            WorldEvent::Committed(life) => {
                if self.monitor.life == life {
                    self.with_monitor(|monitor, out| monitor.committed(now, out));
                }
            }
            WorldEvent::MonTick(life) => {
                if self.monitor.life == life {
                    self.schedule.after(Monitor::TICK, WorldEvent::MonTick(life));
                    self.with_monitor(|monitor, out| monitor.on_tick(now, out));
                }
            }
            WorldEvent::MonStart => self.start_monitor(),
            WorldEvent::Ask(client) => self.random_request(client),
            WorldEvent::Attend(client) => self.random_watch_op(client),
            WorldEvent::Chore(client) => self.do_chore(client),
            WorldEvent::ClientTime(client) => {
                self.with_client(client, |client, history, out| client.on_time(now, history, out));
            }
            WorldEvent::NewSession(client) => {
                let session = ClientId(self.next_session);
                self.next_session += 1;
                self.with_client(client, |client, history, out| {
                    client.restart_session(now, history, session, out);
                });
            }
            WorldEvent::Copied(copy, copied) => self.on_copy_source_read(copy, *copied),
            WorldEvent::Other(number, result) => self.on_other_pool_reply(number, *result),
            WorldEvent::Tasks => self.run_tasks(),
            WorldEvent::Errands => self.run_errands(),
            WorldEvent::ProcessStart(place) => self.start_process(place),
            WorldEvent::ProcessEnd(place, process) => self.end_process(place, process),
            WorldEvent::ProcessFault(place) => self.strike_process(place),
            WorldEvent::FaultEvent(fault_event) => self.apply_fault(fault_event),
            WorldEvent::Calm => self.end_faults(),
            WorldEvent::Look => self.check_progress(),
        }
    }

    // Messages.

    fn due(&mut self, due: Due) {
        if let Some((at, link)) = due {
            self.schedule.at(at, WorldEvent::Deliver(link));
        }
    }

    /// How long bytes that a machine sends now wait for earlier ones, and take to leave it.
    fn transmit(&mut self, from: Node, bytes: u64) -> Nanos {
        if self.scenario.bandwidth == 0 {
            return 0;
        }
        let takes = bytes * SECOND / self.scenario.bandwidth;
        let waits = self.network.occupy(self.schedule.now(), from, takes);
        self.reached.add(Bound::Bandwidth, u64::from(waits > takes));
        waits
    }

    fn arrive(&mut self, link: Link, packet: Packet) {
        let now = self.schedule.now();
        (link, now).hash(&mut self.hash);
        packet.fold(&mut self.hash);
        if self.thorough {
            absorb(&mut self.hash, format_args!("{packet:?}"));
        }
        if self.trace {
            self.say(format_args!("{} < {} {}", link.to, link.from, short(&packet)));
        }
        if !self.accept_packet(link, &packet) {
            return;
        }
        let Packet { socket, event } = packet;
        match link.to {
            Node::Mon => self.with_monitor(|monitor, _| monitor.on_socket(now, link.from, socket, event)),
            Node::Osd(osd) => {
                self.with_osd(osd, |osd, out| osd.on_socket(now, link.from, (socket, event), out));
            }
            Node::Client(client) => {
                self.with_client(client, |client, _, _| client.on_socket(now, link.from, socket, event));
            }
        }
    }

    /// Runs an action of a client and executes its results.
    pub(crate) fn with_client(
        &mut self,
        number: u32,
        act: impl FnOnce(&mut Client, &mut History, &mut Vec<ClientOutput>),
    ) {
        if self.nemesis.is_stopped(number) {
            return;
        }
        let (now, node) = (self.schedule.now(), Node::Client(number));
        let mut out = Vec::new();
        let mut expired = false;
        let client = &mut self.clients[number as usize];
        act(client, &mut self.history, &mut out);
        client.pump_connections(now, &mut self.history, &mut out);
        for wanted in out {
            match wanted {
                ClientOutput::Session(wanted) => self.session_out(node, wanted),
                ClientOutput::Reached(bound) => self.reached.add(bound, 1),
                ClientOutput::Expired if expired => {}
                ClientOutput::Expired => {
                    expired = true;
                    self.reached.add(Bound::NewSession, 1);
                    self.schedule.after(0, WorldEvent::NewSession(number));
                }
                ClientOutput::Stale(asked) => self.judge_stale(number, asked),
                ClientOutput::NoSpace(object, asked) => self.judge_no_space(&object, asked),
                ClientOutput::Copied(copy, copied) => {
                    self.schedule.after(0, WorldEvent::Copied(copy, copied))
                }
                ClientOutput::Other(number, result) => {
                    self.schedule.after(0, WorldEvent::Other(number, result))
                }
                ClientOutput::Answered(request, result) => self.answer_process(number, request, *result),
                ClientOutput::Broken(broken) => return self.fail(broken.rule, broken.detail),
            }
        }
        self.after_client(number);
        if let Some(at) = self.clients[number as usize].sooner_wake(now) {
            self.schedule.at(at, WorldEvent::ClientTime(number));
        }
    }

    // Machines.

    /// Runs an action of an OSD, executes its results, and checks the invariants.
    pub(crate) fn with_osd(&mut self, id: u32, act: impl FnOnce(&mut Osd, &mut Vec<OsdOutput>)) {
        let mut out = std::mem::take(&mut self.out);
        act(&mut self.osds[id as usize], &mut out);
        for wanted in out.drain(..) {
            match wanted {
                OsdOutput::Proposed(pg, membership) => self.invariants.propose(pg, &membership),
                OsdOutput::Ordered { pg, interval } => {
                    let checked = self.invariants.check_orderer(&self.osds[id as usize], pg, interval);
                    self.check(checked);
                }
                OsdOutput::Answered { pg, interval, wrote, judged } => {
                    self.say(format_args!("osd.{id} answers {pg} interval {interval} wrote {wrote:?}"));
                    let (view, what) = (self.monitor.view(), (wrote, judged));
                    let checked = self.invariants.answered(&self.osds, view, id, pg, interval, what);
                    self.check(checked);
                }
                OsdOutput::Unreadable { pg, object, interval, has_own } => {
                    self.say(format_args!("osd.{id} can't read {object} of {pg} in interval {interval}"));
                    if has_own || !self.scenario.faults.contains(&Fault::Damage) {
                        self.fail("EIO without damage", format!("{object} of {pg} on osd.{id}"));
                    }
                    self.reached.add(Bound::Unfound, 1);
                    let checked = self.invariants.check_unreadable(&self.osds, id, pg, &object, interval);
                    self.check(checked);
                }
                OsdOutput::Fetch { shard, arrival } => self.read_copy_source(id, shard, arrival),
                OsdOutput::AskOther { shard, ticket, request, reads } => {
                    self.send_to_other_pool(id, (shard, ticket), *request, reads);
                }
                OsdOutput::Stalled(order) => self.begin_stall(id, order),
                OsdOutput::Reached(bound) => self.reached.add(bound, 1),
                OsdOutput::Broken(rule, detail) => self.fail(rule, detail),
                OsdOutput::Session(wanted) => self.session_out(Node::Osd(id), wanted),
            }
        }
        self.out = out;
        self.after_osd(id);
    }

    /// Checks the objects that have become durable on an OSD.
    pub(crate) fn check_contents(&mut self, osd: u32) {
        let checked = self.invariants.flushed(&self.osds[osd as usize]);
        self.check(checked);
    }

    fn after_osd(&mut self, id: u32) {
        let now = self.schedule.now();
        let osd = &self.osds[id as usize];
        if !osd.is_running() {
            return;
        }
        let unflushed = osd.disk().unflushed();
        if !self.flushing[id as usize] && unflushed > 0 {
            self.flushing[id as usize] = true;
            let slow = self.nemesis.flush_factor(id);
            let wait = (100 * MICRO + self.disk_random.range(0, self.scenario.flush)) * slow;
            let wait = wait.max(self.nemesis.disk_hung_until(id).saturating_sub(now));
            self.schedule.after(wait, WorldEvent::Flushed(id, osd.life, unflushed));
        }
        for (shard, (turn, has_messages)) in osd.pending_turns().enumerate() {
            let next = &mut self.turns[id as usize][shard];
            if has_messages && std::mem::replace(&mut next.woken, has_messages) {
                continue;
            }
            let random = &mut self.disk_random;
            let at = match turn {
                // Most threads wake up soon; some are busy, or get no CPU. Background work waits for the store.
                _ if has_messages && random.chance(10) => now + random.range(20 * MICRO, 50 * MILLI),
                _ if has_messages => now + random.range(MICRO, 20 * MICRO),
                Turn { busy: true, .. } => now + random.range(10 * MICRO, 2 * MILLI),
                Turn { next_ns: Some(local), .. } => osd.clock.when(local).max(now + 1),
                Turn { next_ns: None, .. } => continue,
            };
            if next.at.is_none_or(|known| at < known) {
                next.at = Some(at);
                self.schedule.at(at, WorldEvent::Turn(id, osd.life, shard));
            }
        }
        let held = osd.waiting_requests();
        if let Some(at) = osd.next_tick() {
            let at = at.max(now + 1);
            if self.wakes[id as usize].is_none_or(|known| at < known) {
                self.wakes[id as usize] = Some(at);
                self.schedule.at(at, WorldEvent::OsdTick(id, osd.life));
            }
        }
        if let Some(at) = osd.next_session_time() {
            let at = at.max(now + 1);
            if self.session_wakes[id as usize].is_none_or(|known| at < known) {
                self.session_wakes[id as usize] = Some(at);
                self.schedule.at(at, WorldEvent::SessionTime(id, osd.life));
            }
        }
        if held > MAX_HELD {
            self.fail("a queue without bound", format!("osd.{id} holds {held} requests"));
        }
        let checked = self.invariants.check_single_server(&self.osds, id, now);
        self.check(checked);
    }

    fn check(&mut self, checked: Result<(), (&'static str, String)>) {
        if let Err((rule, detail)) = checked {
            self.fail(rule, detail);
        }
    }

    /// Runs an action of the map authority and executes its results.
    pub(crate) fn with_monitor(&mut self, act: impl FnOnce(&mut Monitor, &mut Vec<MonOutput>)) {
        let mut out = std::mem::take(&mut self.mon_out);
        act(&mut self.monitor, &mut out);
        self.monitor.pump_connections(self.schedule.now(), &mut out);
        for wanted in out.drain(..) {
            match wanted {
                MonOutput::Session(wanted) => self.session_out(Node::Mon, wanted),
                MonOutput::Broken(rule, detail) => self.fail(rule, detail),
                MonOutput::Commit => {
                    let extra = self.nemesis.commit_delay();
                    let wait = 100 * MICRO + self.monitor_random.range(0, self.scenario.commit) + extra;
                    self.schedule.after(wait, WorldEvent::Committed(self.monitor.life));
                }
                MonOutput::Published(view) => {
                    if self.trace {
                        self.say(format_args!("published {}", describe_map(&view)));
                    }
                    self.note_blocklist(&view);
                    let checked = self.invariants.published(&self.osds, &view);
                    self.check(checked);
                }
                MonOutput::Reached(bound, times) => self.reached.add(bound, times),
            }
        }
        self.mon_out = out;
    }

    fn start_osd(&mut self, id: u32) {
        let now = self.schedule.now();
        if self.osds[id as usize].is_running() || self.nemesis.keeps_down(id) {
            return;
        }
        self.flushing[id as usize] = false;
        self.wakes[id as usize] = None;
        self.session_wakes[id as usize] = None;
        self.sockets.switched_off.remove(&Node::Osd(id));
        self.turns[id as usize] = [NextTurn::default(); SHARDS];
        self.handle(WorldEvent::NewSession(self.scenario.clients + id));
        self.with_osd(id, |osd, out| osd.start(now, out));
    }

    fn start_monitor(&mut self) {
        let now = self.schedule.now();
        if self.monitor.is_running() {
            return;
        }
        self.sockets.switched_off.remove(&Node::Mon);
        self.monitor.start(now);
        self.schedule.after(0, WorldEvent::MonTick(self.monitor.life));
    }

    /// Cuts a direction off, as in a partition.
    pub(crate) fn block_link(&mut self, link: Link) {
        self.partitioned.insert(link);
        self.network.block(link);
    }

    /// Opens a direction again, unless it is still partitioned.
    pub(crate) fn release(&mut self, link: Link) {
        if self.partitioned.contains(&link) {
            return;
        }
        for due in self.network.unblock(self.schedule.now(), link) {
            self.due(Some(due));
        }
        for link in self.network.connections(link) {
            self.make_late(link);
        }
    }
}

/// The beginning of a detail that contains large objects.
fn shorten(mut detail: String) -> String {
    const MAX: usize = 1 << 18;
    if detail.len() > MAX {
        let end = (0..MAX).rev().find(|end| detail.is_char_boundary(*end)).unwrap_or(0);
        detail.truncate(end);
        detail += " ...";
    }
    detail
}

/// Distinguishes a client's process from those of OSDs and other clients.
fn nonce_of(client: u32) -> u64 {
    (u64::from(client) + 101) << 32
}

/// Adds a text to a hash.
fn absorb(hash: &mut DefaultHasher, text: fmt::Arguments<'_>) {
    struct Absorb<'a>(&'a mut DefaultHasher);
    impl fmt::Write for Absorb<'_> {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.write(text.as_bytes());
            Ok(())
        }
    }
    // Writing to a hash can't fail.
    let _ = fmt::write(&mut Absorb(hash), text);
}

/// The text in a trace for a packet that arrives; its contents were traced when it was sent.
fn short(packet: &Packet) -> String {
    let text = format!("{packet:?}");
    text.chars().take(60).collect()
}

/// A map in one line.
pub(crate) fn describe_map(view: &MapView) -> String {
    let map = &view.map;
    let osds: Vec<String> = map
        .osds
        .iter()
        .map(|(id, info)| {
            let (up, into) = (if info.up { "up" } else { "down" }, if info.is_in() { "in" } else { "out" });
            format!("{id} {up} {into}")
        })
        .collect();
    let pgs: Vec<String> = map
        .pg_ids()
        .map(|pg| {
            let up: Vec<u32> = view.up.get(&pg).into_iter().flatten().map(|o| o.0).collect();
            match map.membership(pg) {
                Some(m) => format!("{pg} {} up {up:?}", show_membership(m)),
                None => format!("{pg} none up {up:?}"),
            }
        })
        .collect();
    format!("g{} e{} [{}] {}", map.generation, map.epoch, osds.join(", "), pgs.join("; "))
}
