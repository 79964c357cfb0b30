//! What all parts of delivery use: the environment and its clocks, RADOS, topics, options, metrics, known gateways, the schedule
//! of checks, and the tasks that end together.
//!
//! `Core` knows none of the parts. Each part has its own state and a `Core`.

use crate::gateways::Gateways;
use crate::metrics::Metrics;
use crate::outboxes::Outboxes;
use crate::rados::ObjectIo;
use crate::schedule::ShardSchedule;
use crate::settings::Settings;
use crate::tasks::TaskGroup;
use crate::topic_cache::TopicCache;
use nacre_queues::clock::{ClockSample, SteadyClock};
use nacre_queues::window::WindowTime;
use nacre_task::Env;
use parking_lot::Mutex;
use std::sync::Arc;

pub(crate) struct Core {
    pub(crate) env: Env,
    pub(crate) rados: ObjectIo,
    pub(crate) topics: TopicCache,
    pub(crate) outboxes: Arc<dyn Outboxes>,
    pub(crate) settings: Settings,
    pub(crate) metrics: Metrics,
    /// This gateway's RADOS session.
    pub(crate) session: u64,
    pub(crate) gateways: Gateways,
    pub(crate) schedule: ShardSchedule,
    pub(crate) tasks: Arc<TaskGroup>,
    clock: Mutex<SteadyClock>,
}

impl Core {
    pub(crate) fn new(
        env: Env,
        rados: ObjectIo,
        topics: TopicCache,
        outboxes: Arc<dyn Outboxes>,
        session: u64,
        settings: Settings,
    ) -> Core {
        Core {
            rados,
            topics,
            outboxes,
            settings,
            metrics: Metrics::default(),
            session,
            gateways: Gateways::new(session),
            schedule: ShardSchedule::default(),
            tasks: TaskGroup::new(env.clone()),
            clock: Mutex::new(SteadyClock::new(clock_sample(&env))),
            env,
        }
    }

    /// The current time on the clocks that windows use.
    pub(crate) fn window_time(&self) -> WindowTime {
        let now = clock_sample(&self.env);
        WindowTime { steady_ns: self.clock.lock().now_ns(now), mono_ns: now.mono_ns }
    }

    /// The monotonic clock, in nanoseconds.
    pub(crate) fn mono_ns(&self) -> u64 {
        clock_sample(&self.env).mono_ns
    }

    /// Thirty-two random bits.
    pub(crate) fn random(&self) -> u32 {
        // Without random numbers, delays are not spread.
        self.env.random_u64().unwrap_or_default() as u32
    }
}

fn clock_sample(env: &Env) -> ClockSample {
    let mono_ns = u64::try_from(env.now().since_origin().as_nanos()).unwrap_or(u64::MAX);
    ClockSample { wall_ns: env.wall_ns(), mono_ns }
}
