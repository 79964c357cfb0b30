//! Processes: the units that crash and pause, with their own clocks and random numbers.

use super::sleep::{Sleep, Timer};
use super::{Event, Scheduler};
use crate::random::{Random, Stream};
use crate::schedule::{Clock, Nanos, SECOND};
use nacre_task::{BoxedFuture, Environment, Instant, Result};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The wall clock at the start of a run: 1 January 2026.
const WALL_BEGIN: Nanos = 1_767_225_600 * SECOND;
/// The longest wait of a timer.
const FAR: Nanos = 1_000_000_000 * SECOND;

/// A process by its number; numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u32);

/// The executor's record of a process.
pub(super) struct Process {
    pub(super) alive: bool,
    pub(super) paused_until: Nanos,
    pub(super) wall_offset_ns: i64,
    pub(super) polls: u64,
    /// The number of polls after which the process crashes.
    pub(super) crash_at: Option<u64>,
    clock: Clock,
    random: Random,
}

impl Process {
    pub(super) fn new(id: ProcessId, seed: u64, now: Nanos, drift_ppm: u64) -> Process {
        let mut random = Random::new(seed, Stream::Process(id.0));
        let clock = Clock::new(&mut random, now, drift_ppm);
        Process { alive: true, paused_until: 0, wall_offset_ns: 0, polls: 0, crash_at: None, clock, random }
    }
}

/// The correct wall clock at true time `now`, in nanoseconds since 1970.
pub(super) fn wall_ns(now: Nanos) -> u64 {
    WALL_BEGIN + now
}

/// The environment of a process's tasks.
pub(super) struct ProcessEnvironment {
    scheduler: Scheduler,
    process: ProcessId,
}

impl ProcessEnvironment {
    pub(super) fn new(scheduler: Scheduler, process: ProcessId) -> ProcessEnvironment {
        ProcessEnvironment { scheduler, process }
    }
}

impl Environment for ProcessEnvironment {
    fn now(&self) -> Instant {
        let state = self.scheduler.shared.state.lock();
        let now = state.schedule.now();
        let shown = state.processes.get(&self.process).map_or(now, |process| process.clock.read(now));
        Instant::from_origin(Duration::from_nanos(shown))
    }

    fn wall(&self) -> SystemTime {
        let state = self.scheduler.shared.state.lock();
        let offset = state.processes.get(&self.process).map_or(0, |process| process.wall_offset_ns);
        UNIX_EPOCH + Duration::from_nanos(wall_ns(state.schedule.now()).saturating_add_signed(offset))
    }

    fn sleep_until(&self, at: Instant) -> BoxedFuture {
        let mut guard = self.scheduler.shared.state.lock();
        let state = &mut *guard;
        let now = state.schedule.now();
        let Some(clock) = state.alive(self.process).map(|process| process.clock) else {
            return Box::pin(std::future::pending());
        };
        let wanted = u64::try_from(at.since_origin().as_nanos()).unwrap_or(u64::MAX);
        let due = clock.when(wanted.min(clock.read(now) + FAR)).max(now);
        let late = state.random.range(0, state.settings.timer_lateness + 1);
        let timer = state.number();
        state.timers.insert(timer, Timer::default());
        state.schedule.at(due + late, Event::Timer(timer));
        Box::pin(Sleep::new(self.scheduler.clone(), timer))
    }

    fn spawn(&self, task: BoxedFuture) {
        self.scheduler.spawn(self.process, task);
    }

    fn fill_random(&self, out: &mut [u8]) -> Result<()> {
        let mut state = self.scheduler.shared.state.lock();
        if let Some(process) = state.processes.get_mut(&self.process) {
            process.random.fill(out);
        }
        Ok(())
    }
}
