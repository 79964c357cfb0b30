//! A deterministic executor: one thread, a virtual clock, and a seeded choice of the next action.
//!
//! Each step polls a ready task, or executes the next event (a timer, a delivery). The choice among all ready tasks and an
//! event that is due is drawn from the seed; if there is neither, time advances to the next event. A poll takes a random
//! time, timers fire late by a random time, and each process has its own monotonic clock with a drift and an origin. So code
//! can't rely on an order that real machines do not guarantee.
//!
//! Invariants: no lock is held while a task is polled or dropped or a call runs, so that those may use the executor; a
//! process that has crashed is never polled again, and nothing is delivered to it.

mod process;
mod sleep;
#[cfg(test)]
mod tests;

pub use process::ProcessId;

use crate::random::{Random, Stream};
use crate::schedule::{MICRO, MILLI, Nanos, Schedule};
use nacre_task::{BoxedFuture, Env};
use parking_lot::Mutex;
use process::{Process, ProcessEnvironment};
use sleep::Timer;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

/// The ranges of random choices.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The longest duration of one poll of a task.
    pub longest_poll: Nanos,
    /// The longest lateness of timers.
    pub timer_lateness: Nanos,
    /// The largest drift of monotonic clocks, in parts per million.
    pub drift_ppm: u64,
    /// Whether to keep a line for each step.
    pub trace: bool,
}

impl Default for Settings {
    /// Polls of up to 20 µs, timers up to 1 ms late, clocks within 200 ppm.
    fn default() -> Settings {
        Settings { longest_poll: 20 * MICRO, timer_lateness: MILLI, drift_ppm: 200, trace: false }
    }
}

/// Why a future did not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stuck {
    /// No task is ready and no event is scheduled.
    Idle,
    /// The time limit has passed.
    OutOfTime,
    /// Its process crashed.
    Crashed,
}

type Call = Box<dyn FnOnce() + Send>;
type OnSilence = Arc<dyn Fn(ProcessId, Option<Nanos>) + Send + Sync>;

enum Event {
    /// A timer fires.
    Timer(u64),
    /// A call that is independent of processes.
    Call(Call),
    /// A delivery to a process.
    Delivery(ProcessId, Call),
    /// A pause of a process ends.
    Resume,
}

struct Task {
    process: ProcessId,
    /// `None` while it is polled.
    future: Option<BoxedFuture>,
    ready: bool,
    waker: Waker,
}

struct State {
    schedule: Schedule<Event>,
    random: Random,
    settings: Settings,
    seed: u64,
    tasks: BTreeMap<u64, Task>,
    ready: Vec<u64>,
    timers: BTreeMap<u64, Timer>,
    processes: BTreeMap<ProcessId, Process>,
    on_silence: Vec<OnSilence>,
    /// Calls by step; the second number preserves their order.
    at_steps: BTreeMap<(u64, u64), Call>,
    /// Tasks and timers are numbered together.
    numbered: u64,
    steps: u64,
    hash: DefaultHasher,
    trace: Vec<String>,
    /// The executor was dropped.
    ended: bool,
}

struct Shared {
    state: Mutex<State>,
}

/// The part of a step that runs after the lock is released.
enum Action {
    Poll(u64, BoxedFuture, Waker),
    Wake(Waker),
    Run(Call),
    /// A delivery to a process that has ended.
    Discard(Call),
    Nothing,
    Idle,
}

impl State {
    fn note(&mut self, kind: &str, number: u64) {
        let now = self.schedule.now();
        (now, kind, number).hash(&mut self.hash);
        if self.settings.trace {
            self.trace.push(format!("{now} {kind} {number}"));
        }
    }

    fn number(&mut self) -> u64 {
        self.numbered += 1;
        self.numbered
    }

    /// A live process.
    fn alive(&mut self, process: ProcessId) -> Option<&mut Process> {
        self.processes.get_mut(&process).filter(|process| process.alive)
    }

    fn choose(&mut self) -> Action {
        self.steps += 1;
        let steps = self.steps;
        if self.at_steps.first_key_value().is_some_and(|((step, _), _)| *step <= steps)
            && let Some((_, call)) = self.at_steps.pop_first()
        {
            self.note("step", steps);
            return Action::Run(call);
        }
        let now = self.schedule.now();
        let may_run = |id: &u64| {
            let process = self.tasks.get(id).and_then(|task| self.processes.get(&task.process));
            process.is_some_and(|process| process.paused_until <= now)
        };
        let runnable: Vec<usize> =
            (0..self.ready.len()).filter(|index| may_run(&self.ready[*index])).collect();
        let due = self.schedule.next_at().is_some_and(|at| at <= now);
        let choices = runnable.len() + usize::from(due);
        match runnable.get(self.random.index(choices)) {
            Some(index) => self.take(*index),
            None => self.next_event(),
        }
    }

    /// Takes a ready task in order to poll it.
    fn take(&mut self, index: usize) -> Action {
        let id = self.ready.swap_remove(index);
        let spent = self.random.range(0, self.settings.longest_poll + 1);
        self.schedule.advance(spent);
        self.note("poll", id);
        let task = self.tasks.get_mut(&id).expect("invariant: only tasks that exist are ready");
        task.ready = false;
        let future = task.future.take().expect("invariant: a task is not polled within its own poll");
        Action::Poll(id, future, task.waker.clone())
    }

    fn next_event(&mut self) -> Action {
        let Some(event) = self.schedule.pop() else { return Action::Idle };
        match event {
            Event::Timer(id) => {
                let Some(timer) = self.timers.get_mut(&id) else { return Action::Nothing };
                let waker = timer.fire();
                self.note("timer", id);
                waker.map_or(Action::Nothing, Action::Wake)
            }
            Event::Call(call) => {
                self.note("call", 0);
                Action::Run(call)
            }
            Event::Delivery(process, call) => {
                let now = self.schedule.now();
                let Some(paused_until) = self.alive(process).map(|process| process.paused_until) else {
                    return Action::Discard(call);
                };
                if paused_until > now {
                    self.schedule.at(paused_until, Event::Delivery(process, call));
                    return Action::Nothing;
                }
                self.note("delivery", u64::from(process.0));
                Action::Run(call)
            }
            Event::Resume => Action::Nothing,
        }
    }
}

struct TaskWaker {
    shared: Weak<Shared>,
    task: u64,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        let Some(shared) = self.shared.upgrade() else { return };
        let mut guard = shared.state.lock();
        let state = &mut *guard;
        if let Some(task) = state.tasks.get_mut(&self.task)
            && !task.ready
        {
            task.ready = true;
            state.ready.push(self.task);
        }
    }
}

/// The executor. Dropping it crashes all processes.
pub struct Executor {
    scheduler: Scheduler,
}

impl Executor {
    /// An executor without processes, at time 0.
    pub fn new(seed: u64, settings: Settings) -> Executor {
        let state = State {
            schedule: Schedule::default(),
            random: Random::new(seed, Stream::Tasks),
            settings,
            seed,
            tasks: BTreeMap::new(),
            ready: Vec::new(),
            timers: BTreeMap::new(),
            processes: BTreeMap::new(),
            on_silence: Vec::new(),
            at_steps: BTreeMap::new(),
            numbered: 0,
            steps: 0,
            hash: DefaultHasher::new(),
            trace: Vec::new(),
            ended: false,
        };
        Executor { scheduler: Scheduler { shared: Arc::new(Shared { state: Mutex::new(state) }) } }
    }

    /// The interface for the world around the tasks.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Starts a process, which has no tasks yet. A restarted program is a new process.
    pub fn start_process(&self) -> ProcessId {
        let mut guard = self.scheduler.shared.state.lock();
        let state = &mut *guard;
        let id = ProcessId(u32::try_from(state.processes.len()).unwrap_or(u32::MAX));
        let process = Process::new(id, state.seed, state.schedule.now(), state.settings.drift_ppm);
        state.processes.insert(id, process);
        state.note("start", u64::from(id.0));
        id
    }

    /// The environment of a process.
    pub fn env(&self, process: ProcessId) -> Env {
        Env::new(ProcessEnvironment::new(self.scheduler.clone(), process))
    }

    /// Ends a process at once: its tasks are dropped, and it receives nothing any more.
    pub fn crash(&self, process: ProcessId) {
        self.scheduler.crash(process);
    }

    /// Crashes a process after `polls` more polls of its tasks.
    pub fn crash_after(&self, process: ProcessId, polls: u64) {
        let mut state = self.scheduler.shared.state.lock();
        if let Some(process) = state.alive(process) {
            process.crash_at = Some(process.polls + polls);
        }
    }

    /// How often tasks of a process were polled.
    pub fn polls(&self, process: ProcessId) -> u64 {
        self.scheduler.shared.state.lock().processes.get(&process).map_or(0, |process| process.polls)
    }

    /// Runs a call `steps` steps from now, between two others. A test that tries each number in turn runs it at every point.
    pub fn after_steps(&self, steps: u64, call: impl FnOnce() + Send + 'static) {
        let mut guard = self.scheduler.shared.state.lock();
        let state = &mut *guard;
        let at = (state.steps + steps, state.number());
        state.at_steps.insert(at, Box::new(call));
    }

    /// Stops a process for `wait`, like SIGSTOP: its clocks continue, its tasks do not.
    pub fn pause(&self, process: ProcessId, wait: Nanos) {
        let (listeners, until) = {
            let mut guard = self.scheduler.shared.state.lock();
            let state = &mut *guard;
            let until = state.schedule.now() + wait;
            let Some(paused) = state.alive(process) else { return };
            paused.paused_until = paused.paused_until.max(until);
            state.schedule.at(until, Event::Resume);
            state.note("pause", u64::from(process.0));
            (state.on_silence.clone(), until)
        };
        listeners.iter().for_each(|listener| listener(process, Some(until)));
    }

    /// Moves the wall clock of a process by `by_ns` nanoseconds.
    pub fn jump_wall(&self, process: ProcessId, by_ns: i64) {
        if let Some(process) = self.scheduler.shared.state.lock().alive(process) {
            process.wall_offset_ns += by_ns;
        }
    }

    /// True time.
    pub fn now(&self) -> Nanos {
        self.scheduler.now()
    }

    /// Steps taken.
    pub fn steps(&self) -> u64 {
        self.scheduler.shared.state.lock().steps
    }

    /// A hash of all events in order.
    pub fn hash(&self) -> u64 {
        self.scheduler.shared.state.lock().hash.finish()
    }

    /// The lines of the trace, if [`Settings::trace`] is set.
    pub fn trace(&self) -> Vec<String> {
        self.scheduler.shared.state.lock().trace.clone()
    }

    /// When the next step happens: now if a task is ready.
    pub fn next_at(&self) -> Option<Nanos> {
        self.scheduler.next_at()
    }

    /// Advances the time to `now`, unless it is later already: the executor follows another clock. Nothing may be due before.
    pub fn follow(&self, now: Nanos) {
        let mut state = self.scheduler.shared.state.lock();
        let left = now.saturating_sub(state.schedule.now());
        state.schedule.advance(left);
    }

    /// Executes one step; returns `false` if no task is ready and no event is scheduled.
    pub fn step(&self) -> bool {
        let action = self.scheduler.shared.state.lock().choose();
        match action {
            Action::Poll(id, future, waker) => self.poll(id, future, &waker),
            Action::Wake(waker) => waker.wake(),
            Action::Run(call) => call(),
            Action::Discard(call) => drop(call),
            Action::Nothing => {}
            Action::Idle => return false,
        }
        true
    }

    /// Executes the steps of the next `wait` of true time.
    pub fn run_for(&self, wait: Nanos) {
        let end = self.now() + wait;
        while self.scheduler.next_at().is_some_and(|at| at <= end) && self.step() {}
        let mut state = self.scheduler.shared.state.lock();
        let left = end.saturating_sub(state.schedule.now());
        state.schedule.advance(left);
    }

    /// Runs a future as a task of `process` until it completes, for at most `limit` of true time.
    pub fn run<T: Send + 'static>(
        &self,
        process: ProcessId,
        limit: Nanos,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Stuck> {
        let end = self.now() + limit;
        let mut handle = self.env(process).spawn(future);
        loop {
            let joined = Pin::new(&mut handle).poll(&mut Context::from_waker(Waker::noop()));
            if let Poll::Ready(outcome) = joined {
                return outcome.map_err(|_| Stuck::Crashed);
            }
            if self.now() > end {
                return Err(Stuck::OutOfTime);
            }
            if !self.step() {
                return Err(Stuck::Idle);
            }
        }
    }

    fn poll(&self, id: u64, mut future: BoxedFuture, waker: &Waker) {
        let pending = future.as_mut().poll(&mut Context::from_waker(waker)).is_pending();
        let (finished, crashed) = {
            let mut guard = self.scheduler.shared.state.lock();
            let state = &mut *guard;
            let process = state.tasks.get(&id).map(|task| task.process);
            // A task that crashed its own process is no longer in the table.
            let finished = match state.tasks.get_mut(&id).filter(|_| pending) {
                Some(task) => {
                    task.future = Some(future);
                    None
                }
                None => {
                    state.ready.retain(|ready| *ready != id);
                    Some((future, state.tasks.remove(&id)))
                }
            };
            let crashed = process.filter(|process| {
                let polled = state.alive(*process);
                polled.is_some_and(|process| {
                    process.polls += 1;
                    process.crash_at.is_some_and(|at| process.polls >= at)
                })
            });
            (finished, crashed)
        };
        drop(finished);
        if let Some(process) = crashed {
            self.crash(process);
        }
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        let alive: Vec<ProcessId> = {
            let state = self.scheduler.shared.state.lock();
            state.processes.iter().filter(|(_, process)| process.alive).map(|(id, _)| *id).collect()
        };
        alive.into_iter().for_each(|process| self.crash(process));
        // Nothing is dropped under the lock: destructors may use the scheduler.
        let dropped = {
            let mut guard = self.scheduler.shared.state.lock();
            let state = &mut *guard;
            state.ended = true;
            let calls = (std::mem::take(&mut state.on_silence), std::mem::take(&mut state.at_steps));
            (std::mem::take(&mut state.tasks), state.schedule.drain(), calls)
        };
        drop(dropped);
    }
}

/// The interface of the executor for the world around the tasks. Cheap to clone.
#[derive(Clone)]
pub struct Scheduler {
    shared: Arc<Shared>,
}

impl Scheduler {
    /// True time.
    pub fn now(&self) -> Nanos {
        self.shared.state.lock().schedule.now()
    }

    /// The wall clock of the servers, which is correct, in nanoseconds since 1970.
    pub fn wall_ns(&self) -> u64 {
        process::wall_ns(self.now())
    }

    /// When the next step happens: now if a task is ready.
    fn next_at(&self) -> Option<Nanos> {
        let state = self.shared.state.lock();
        let now = state.schedule.now();
        let runs = |id: &u64| {
            let process = state.tasks.get(id).and_then(|task| state.processes.get(&task.process));
            process.is_some_and(|process| process.paused_until <= now)
        };
        if state.ready.iter().any(runs) { Some(now) } else { state.schedule.next_at() }
    }

    /// Runs a call `wait` from now, whichever processes are alive then.
    pub fn call_after(&self, wait: Nanos, call: impl FnOnce() + Send + 'static) {
        self.schedule(wait, Event::Call(Box::new(call)));
    }

    /// Delivers a call to a process `wait` from now: later if the process is paused then, never if it has ended.
    pub fn deliver_after(&self, process: ProcessId, wait: Nanos, call: impl FnOnce() + Send + 'static) {
        self.schedule(wait, Event::Delivery(process, Box::new(call)));
    }

    fn schedule(&self, wait: Nanos, event: Event) {
        let mut state = self.shared.state.lock();
        if !state.ended {
            state.schedule.after(wait, event);
        }
    }

    /// Whether a process has not crashed.
    pub fn is_alive(&self, process: ProcessId) -> bool {
        self.shared.state.lock().alive(process).is_some()
    }

    /// Calls `listener` whenever a process falls silent: with the end of a pause, or with `None` when the process crashes,
    /// before its tasks are dropped.
    pub fn on_silence(&self, listener: impl Fn(ProcessId, Option<Nanos>) + Send + Sync + 'static) {
        self.shared.state.lock().on_silence.push(Arc::new(listener));
    }

    /// Adds an event to the hash and to the trace.
    pub fn note(&self, kind: &str, number: u64) {
        self.shared.state.lock().note(kind, number);
    }

    /// The environment of a process.
    pub fn env(&self, process: ProcessId) -> Env {
        Env::new(ProcessEnvironment::new(self.clone(), process))
    }

    /// Ends a process at once: its tasks are dropped, and it receives nothing any more.
    pub fn crash(&self, process: ProcessId) {
        let listeners = {
            let mut guard = self.shared.state.lock();
            let state = &mut *guard;
            match state.alive(process) {
                Some(process) => process.alive = false,
                None => return,
            }
            state.note("crash", u64::from(process.0));
            state.on_silence.clone()
        };
        listeners.iter().for_each(|listener| listener(process, None));
        let dropped: Vec<Task> = {
            let mut guard = self.shared.state.lock();
            let state = &mut *guard;
            let of_process = |task: &Task| task.process == process;
            let gone: Vec<u64> =
                state.tasks.iter().filter(|(_, task)| of_process(task)).map(|(id, _)| *id).collect();
            state.ready.retain(|ready| !gone.contains(ready));
            gone.iter().filter_map(|id| state.tasks.remove(id)).collect()
        };
        drop(dropped);
    }

    /// Starts a task of a process; if the process has ended, the task is dropped.
    pub fn spawn(&self, process: ProcessId, future: BoxedFuture) {
        let mut guard = self.shared.state.lock();
        let state = &mut *guard;
        if state.ended || state.alive(process).is_none() {
            drop(guard);
            drop(future);
            return;
        }
        let id = state.number();
        let waker = Waker::from(Arc::new(TaskWaker { shared: Arc::downgrade(&self.shared), task: id }));
        state.tasks.insert(id, Task { process, future: Some(future), ready: true, waker });
        state.ready.push(id);
        state.note("spawn", id);
    }
}
