//! Processes that are clients: the program of a scenario ([`crate::program`]) on the world's clock.
//!
//! The executor takes one step for each [`WorldEvent::Tasks`]. The requests that a process made in it are sent at once;
//! answers, and anything else that wakes a task, schedule the next step. A process that ended starts again with another session.

use super::ending::RunPhase;
use super::{World, WorldEvent};
use crate::gateway::cluster_engine::{OnAnswer, ProcessRequest, QueuedRequest, RequestPort};
use crate::gateway::executor::{Executor, ProcessId, Settings};
use crate::history::MapVersion;
use crate::network::Node;
use crate::program::{ProcessContext, Program};
use crate::random::{Random, Stream};
use crate::scenario::{Fault, Scenario};
use crate::schedule::{MICRO, MILLI, Nanos, SECOND};
use nacre_engine::{Cluster, CommandReply, Completer, Error, Result};
use nacre_objecter::Answer;
use nacre_types::errno::Errno;
use nacre_types::{ClientId, ObjectId, PoolId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The pool that programs use.
const POOL: PoolId = PoolId(1);

/// How often the events that processes wait for are checked.
const ERRANDS: Nanos = 50 * MILLI;

/// Mean time between two faults of one process.
const FAULT_INTERVAL: Nanos = 18 * SECOND;

/// A process, or a place where one will start.
#[derive(Default)]
struct Place {
    process: Option<ProcessId>,
    /// The number of processes that started here.
    lives: u32,
    /// Whether it has finished its work.
    finished: Arc<AtomicBool>,
}

/// A request without an answer.
struct Waiting {
    process: ProcessId,
    object: ObjectId,
    asked: Nanos,
    done: OnAnswer,
}

/// An event other than an OSD's answer that a process waits for.
enum Errand {
    /// A session is on the blocklist of the published map.
    Fence(u64, Completer<CommandReply>),
    /// A client has a map of this version or a later one.
    NewestMap(u32, MapVersion, Completer<()>),
}

/// The processes of a scenario's program.
pub(super) struct Processes {
    program: Box<dyn Program>,
    executor: Executor,
    port: RequestPort,
    places: Vec<Place>,
    /// The client of the first place.
    first_client: u32,
    waiting: BTreeMap<u64, Waiting>,
    last_request: u64,
    errands: Vec<(ProcessId, Errand)>,
    /// When the next step is scheduled.
    wake: Option<Nanos>,
    random: Random,
    /// Whether the last checks have started.
    looks: bool,
    /// Whether requests are being sent.
    sending: bool,
}

impl Processes {
    pub(super) fn of(scenario: &Scenario, program: Box<dyn Program>) -> Processes {
        let settings = Settings { drift_ppm: scenario.drift_ppm, ..Settings::default() };
        Processes {
            program,
            executor: Executor::new(scenario.seed, settings),
            port: RequestPort::default(),
            places: (0..scenario.processes).map(|_| Place::default()).collect(),
            first_client: scenario.clients + scenario.osds,
            waiting: BTreeMap::new(),
            last_request: 0,
            errands: Vec::new(),
            wake: None,
            random: Random::new(scenario.seed, Stream::Processes),
            looks: false,
            sending: false,
        }
    }

    fn client(&self, place: usize) -> u32 {
        self.first_client + place as u32
    }

    fn place_of(&self, client: u32) -> Option<usize> {
        client.checked_sub(self.first_client).map(|place| place as usize)
    }

    /// Whether all processes have finished their work.
    fn is_done(&self) -> bool {
        let is_done = |place: &Place| place.process.is_some() && place.finished.load(Ordering::Relaxed);
        if self.looks { is_done(&self.places[0]) } else { self.places.iter().all(is_done) }
    }

    /// A hash of all actions of tasks.
    pub(super) fn hash(&self) -> u64 {
        self.executor.hash()
    }
}

/// Whether an answer means that the session is over: the process ends then, as if its caller gave up.
fn ends_session(result: &Result<Answer>) -> bool {
    match result {
        Ok(answer) => [Errno::ESTALE, Errno::EBLOCKLISTED].map(Errno::negated).contains(&answer.reply.result),
        Err(error) => matches!(error, Error::Blocklisted),
    }
}

impl World {
    /// Clients by which processes use the cluster.
    pub(crate) fn process_clients(&self) -> impl Iterator<Item = u32> + use<> {
        let first = self.scenario.clients + self.scenario.osds;
        first..first + self.scenario.processes
    }

    pub(super) fn begin_processes(&mut self) {
        let Some(processes) = &mut self.processes else { return };
        for place in 0..processes.places.len() {
            let wait = processes.random.range(0, SECOND);
            self.schedule.at(2 * SECOND + wait, WorldEvent::ProcessStart(place));
            let wait = processes.random.exponential(FAULT_INTERVAL);
            self.schedule.at(4 * SECOND + wait, WorldEvent::ProcessFault(place));
        }
    }

    /// Executes one step of the tasks.
    pub(super) fn run_tasks(&mut self) {
        let now = self.schedule.now();
        let Some(processes) = &mut self.processes else { return };
        if processes.wake.take_if(|at| *at <= now).is_none() {
            return;
        }
        processes.executor.follow(now);
        processes.executor.step();
        let scheduler = processes.executor.scheduler();
        let gone = |(at, place): (usize, &Place)| {
            let process = place.process.filter(|process| !scheduler.is_alive(*process))?;
            Some((at, process))
        };
        // A process that gives up ends itself.
        let gone = processes.places.iter().enumerate().find_map(gone);
        let broken = processes.program.broken();
        if let Some((place, process)) = gone {
            self.end_process(place, process);
        }
        if let Some(broken) = broken {
            self.fail(broken.rule, broken.detail);
        }
        self.after_tasks();
    }

    /// Sends the processes' requests, and schedules the next step.
    pub(super) fn after_tasks(&mut self) {
        let now = self.schedule.now();
        let Some(processes) = self.processes.as_mut().filter(|processes| !processes.sending) else { return };
        processes.sending = true;
        while let Some(wanted) = self.processes.as_ref().and_then(|processes| processes.port.take()) {
            self.take_up(now, wanted);
        }
        let Some(processes) = &mut self.processes else { return };
        processes.sending = false;
        if let Some(at) = processes.executor.next_at().map(|at| at.max(now))
            && processes.wake.is_none_or(|known| at < known)
        {
            processes.wake = Some(at);
            self.schedule.at(at, WorldEvent::Tasks);
        }
    }

    /// Executes a request of a process.
    fn take_up(&mut self, now: Nanos, QueuedRequest { client, process, want }: QueuedRequest) {
        let (view, Some(processes)) = (self.monitor.view(), &mut self.processes) else { return };
        let errand = match want {
            ProcessRequest::Request(request, done) => {
                let (request, timeout) = (processes.program.change(request), processes.program.op_timeout());
                processes.last_request += 1;
                let number = processes.last_request;
                let waiting = Waiting { process, object: request.object.clone(), asked: now, done };
                processes.waiting.insert(number, waiting);
                return self.with_client(client, |client, history, out| {
                    client.send_process_request(now, history, (number, request, timeout), out);
                });
            }
            ProcessRequest::Fence(session, done) => Errand::Fence(session, done),
            ProcessRequest::NewestMap(done) => {
                Errand::NewestMap(client, (view.map.generation, view.map.epoch), done)
            }
        };
        if processes.errands.is_empty() {
            self.schedule.after(ERRANDS, WorldEvent::Errands);
        }
        processes.errands.push((process, errand));
    }

    /// Checks the events that processes wait for; repeats requests that the map authority may have lost.
    pub(super) fn run_errands(&mut self) {
        let Some(processes) = &mut self.processes else { return };
        let (map, mut again) = (self.monitor.view().map.clone(), Vec::new());
        let scheduler = processes.executor.scheduler().clone();
        for (process, errand) in std::mem::take(&mut processes.errands) {
            match errand {
                Errand::Fence(session, done) if map.blocklist.contains_key(&format!("client.{session}")) => {
                    let reply = CommandReply::default();
                    scheduler.deliver_after(process, 0, move || done.complete(Ok(reply)));
                }
                Errand::NewestMap(client, stamp, done)
                    if self.clients[client as usize].map_version() >= stamp =>
                {
                    scheduler.deliver_after(process, 0, move || done.complete(Ok(())));
                }
                errand if scheduler.is_alive(process) => again.push((process, errand)),
                _ => {}
            }
        }
        let fences: Vec<u64> = again
            .iter()
            .filter_map(|(_, errand)| match errand {
                Errand::Fence(session, _) => Some(*session),
                Errand::NewestMap(..) => None,
            })
            .collect();
        if !again.is_empty() {
            self.schedule.after(ERRANDS, WorldEvent::Errands);
        }
        processes.errands = again;
        for session in fences {
            self.blocklist_session(ClientId(session));
        }
        self.after_tasks();
    }

    /// Called after an action of a client that may be a process's: its map may have changed, and tasks may be ready.
    pub(super) fn after_client(&mut self, client: u32) {
        let Some(processes) = &self.processes else { return };
        if processes.place_of(client).is_none() {
            return;
        }
        if let Some(map) = self.clients[client as usize].map() {
            processes.port.set_map(client, map);
        }
        self.after_tasks();
    }

    /// Delivers the outcome of a request to its process.
    pub(super) fn answer_process(&mut self, client: u32, number: u64, result: Result<Answer>) {
        let Some(processes) = &mut self.processes else { return };
        // Its process may have ended.
        let Some(waiting) = processes.waiting.remove(&number) else { return };
        let ends = ends_session(&result);
        if let (true, Some(place)) = (ends, processes.place_of(client)) {
            self.schedule.after(MICRO, WorldEvent::ProcessEnd(place, waiting.process));
        }
        let errno = result.as_ref().map_or(0, |answer| answer.reply.result);
        let Waiting { process, object, asked, done } = waiting;
        let scheduler = processes.executor.scheduler();
        scheduler.deliver_after(process, 0, move || done(result));
        if errno == Errno::ENOSPC.negated() {
            self.judge_no_space(&object, asked);
        }
        if errno == Errno::ESTALE.negated() {
            self.judge_stale(client, asked);
        }
    }

    /// Starts a process, unless there is one.
    pub(super) fn start_process(&mut self, place: usize) {
        let Some(processes) = &mut self.processes else { return };
        if processes.places[place].process.is_some() || processes.looks {
            return;
        }
        self.launch(place, |program, start| program.start(start));
    }

    fn launch(
        &mut self,
        place: usize,
        task: impl FnOnce(&mut dyn Program, ProcessContext) -> nacre_task::BoxedFuture,
    ) {
        let now = self.schedule.now();
        let Some(client) = self.processes.as_ref().map(|processes| processes.client(place)) else { return };
        self.handle(WorldEvent::NewSession(client));
        let session = self.clients[client as usize].session();
        let Some(processes) = &mut self.processes else { return };
        processes.executor.follow(now);
        let process = processes.executor.start_process();
        let scheduler = processes.executor.scheduler().clone();
        let engine = processes.port.session(&scheduler, (client, process), session.0);
        let env = processes.executor.env(process);
        let start = ProcessContext {
            place,
            process,
            env: env.clone(),
            scheduler: scheduler.clone(),
            cluster: Cluster::from_engine(Arc::new(engine)),
        };
        let work = task(&mut *processes.program, start);
        let finished = Arc::new(AtomicBool::new(false));
        let here = &mut processes.places[place];
        *here = Place { process: Some(process), lives: here.lives + 1, finished: finished.clone() };
        scheduler.spawn(
            process,
            Box::pin(async move {
                work.await;
                finished.store(true, Ordering::Relaxed);
            }),
        );
        self.say(format_args!("process {place} starts as client.{session}"));
        self.after_tasks();
    }

    /// Ends a process at once, if it is still the same one, and starts another after a while.
    pub(super) fn end_process(&mut self, place: usize, process: ProcessId) {
        let Some(processes) = &mut self.processes else { return };
        if processes.places[place].process != Some(process) || processes.looks {
            return;
        }
        let client = processes.client(place);
        processes.executor.crash(process);
        processes.places[place].process = None;
        processes.waiting.retain(|_, waiting| waiting.process != process);
        processes.program.ended(place);
        let falls_silent = processes.random.chance(500);
        let calm = self.ending != RunPhase::Trouble;
        let wait = processes.random.range(20 * MILLI, if calm { SECOND } else { 4 * SECOND });
        self.say(format_args!("process {place} ends"));
        // Its messages may be in transit for long; its connections end now or when the next process starts.
        if falls_silent {
            self.handle(WorldEvent::NewSession(client));
        }
        self.schedule.after(wait, WorldEvent::ProcessStart(place));
    }

    /// Causes a fault of a process.
    pub(super) fn strike_process(&mut self, place: usize) {
        if self.ending != RunPhase::Trouble {
            return;
        }
        let kinds = [Fault::ClientStop, Fault::ClientPause, Fault::Fence];
        let kinds: Vec<Fault> =
            kinds.into_iter().filter(|kind| self.scenario.faults.contains(kind)).collect();
        let Some(processes) = &mut self.processes else { return };
        let wait = processes.random.exponential(FAULT_INTERVAL);
        self.schedule.after(wait, WorldEvent::ProcessFault(place));
        let draws = [0; 2].map(|_| processes.random.bits());
        let Some(kind) = kinds.get(draws[0] as usize % kinds.len().max(1)) else { return };
        let (client, Some(process)) = (processes.client(place), processes.places[place].process) else {
            return;
        };
        match kind {
            Fault::ClientStop => self.end_process(place, process),
            Fault::ClientPause => {
                let wait = MILLI + draws[1] % if draws[1] & 15 == 0 { 40 * SECOND } else { 4 * SECOND };
                processes.executor.pause(process, wait);
                self.say(format_args!("process {place} is paused for {wait} ns"));
                self.pause_client(client, wait);
            }
            _ => {
                let session = self.clients[client as usize].session();
                self.say(format_args!("process {place} is shut out"));
                self.blocklist_session(session);
            }
        }
        self.after_tasks();
    }

    /// Faults have ended: processes finish, unless clients continue.
    pub(super) fn finish_processes(&mut self) {
        if let Some(processes) = &mut self.processes
            && !self.busy
        {
            processes.program.finish();
        }
    }

    /// Whether all processes have finished. If the pool has lost PGs, some may wait for ever.
    pub(super) fn processes_are_done(&self) -> bool {
        let Some(processes) = &self.processes else { return true };
        processes.is_done() || self.lost_pgs().iter().any(|pg| pg.pool == POOL)
    }

    /// Starts a process that checks everything once more.
    pub(super) fn start_final_check(&mut self) {
        let is_lost = self.lost_pgs().iter().any(|pg| pg.pool == POOL);
        let Some(processes) = self.processes.as_mut().filter(|_| !is_lost) else { return };
        processes.looks = true;
        if let Some(before) = processes.places[0].process.take() {
            processes.executor.crash(before);
            processes.waiting.retain(|_, waiting| waiting.process != before);
        }
        self.launch(0, |program, start| program.last_looks(start));
    }

    pub(super) fn say_of_program(&self) {
        if let Some(processes) = &self.processes {
            self.say(format_args!("{}", processes.program.describe()));
        }
    }

    /// The pending requests of processes, for reports.
    pub(super) fn describe_processes(&self) -> Vec<String> {
        let Some(processes) = self.processes.as_ref().filter(|_| !self.processes_are_done()) else {
            return Vec::new();
        };
        let mut lines = vec![processes.program.describe()];
        for (at, place) in processes.places.iter().enumerate() {
            let done = place.finished.load(Ordering::Relaxed);
            lines.push(format!("process {at}: {:?}, {} lives, done: {done}", place.process, place.lives));
            let client = &self.clients[processes.client(at) as usize];
            debug_assert_eq!(client.node, Node::Client(processes.client(at)));
            lines.extend(client.describe_requests());
        }
        lines
    }
}
