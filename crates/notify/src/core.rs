//! The state that all parts of delivery share: the environment, RADOS, topics, metrics, and tasks that end together.

use crate::admission::TopicAdmissions;
use crate::drain_progress::DrainProgressCache;
use crate::endpoints::EndpointTable;
use crate::error::{Error, Result};
use crate::metrics::Metrics;
use crate::mover::Mover;
use crate::outboxes::Outboxes;
use crate::producer::ShardProducer;
use crate::push::EndpointConnector;
use crate::rados::ObjectIo;
use crate::settings::Settings;
use crate::shard_tasks::ShardTasks;
use crate::topic_cache::TopicCache;
use crate::topic_store::StoredTopic;
use nacre_queues::clock::{ClockSample, SteadyClock};
use nacre_queues::enqueue::ShardLimit;
use nacre_queues::layout::{self, Generation};
use nacre_queues::name as queue_name;
use nacre_queues::window::WindowTime;
use nacre_task::Env;
use nacre_topics::attributes::FullQueuePolicy;
use nacre_topics::topic::{Topic, TopicId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// The most producers that are kept. Beyond it, unused ones are dropped.
const MAX_PRODUCERS: usize = 16_384;

/// A shard of a topic's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ShardKey {
    /// The topic.
    pub(crate) topic: TopicId,
    /// The generation.
    pub(crate) generation: u64,
    /// The shard.
    pub(crate) shard: u32,
}

/// The id of a topic in the form that queues use.
pub(crate) fn queue_id(id: TopicId) -> queue_name::TopicId {
    queue_name::TopicId::new(&id.to_string()).expect("invariant: an id has hexadecimal digits only")
}

pub(crate) struct Core {
    pub(crate) env: Env,
    pub(crate) rados: ObjectIo,
    pub(crate) topics: TopicCache,
    pub(crate) pusher: Arc<dyn EndpointConnector>,
    pub(crate) outboxes: Arc<dyn Outboxes>,
    pub(crate) settings: Settings,
    pub(crate) metrics: Metrics,
    /// This gateway's RADOS session.
    pub(crate) session: u64,
    pub(crate) mover: Mover,
    pub(crate) owners: ShardTasks,
    pub(crate) endpoints: EndpointTable,
    pub(crate) progress: DrainProgressCache,
    pub(crate) admissions: TopicAdmissions,
    producers: Mutex<BTreeMap<ShardKey, Arc<ShardProducer>>>,
    epochs: AtomicU64,
    clock: Mutex<SteadyClock>,
    gateways: Mutex<Gateways>,
    is_stopped: AtomicBool,
    /// Notified once, when delivery is stopped.
    pub(crate) stopping: Notify,
    tasks: AtomicUsize,
    idle: Notify,
}

/// Known gateways.
#[derive(Default)]
struct Gateways {
    /// Sessions of running gateways, in ascending order; empty if they are unknown.
    running: Vec<u64>,
    /// Sessions that have ended.
    ended: BTreeSet<u64>,
}

/// The delay after a failed change of generations.
const CHANGE_RETRY: Duration = Duration::from_secs(2);
/// The most ended sessions that are remembered.
const MAX_ENDED: usize = 1024;

/// The parts of [`Core`] that the caller provides.
pub(crate) struct CoreParts {
    pub(crate) env: Env,
    pub(crate) rados: ObjectIo,
    pub(crate) topics: TopicCache,
    pub(crate) pusher: Arc<dyn EndpointConnector>,
    pub(crate) outboxes: Arc<dyn Outboxes>,
    pub(crate) settings: Settings,
    pub(crate) session: u64,
}

impl Core {
    pub(crate) fn new(parts: CoreParts) -> Core {
        let CoreParts { env, rados, topics, pusher, outboxes, settings, session } = parts;
        let clock = Mutex::new(SteadyClock::new(moment(&env)));
        Core {
            owners: ShardTasks::new(settings.active_shards),
            mover: Mover::new(settings.active_buckets),
            endpoints: EndpointTable::default(),
            progress: DrainProgressCache::default(),
            admissions: TopicAdmissions::default(),
            env,
            rados,
            topics,
            pusher,
            outboxes,
            settings,
            metrics: Metrics::default(),
            session,
            producers: Mutex::default(),
            epochs: AtomicU64::new(1),
            clock,
            gateways: Mutex::default(),
            is_stopped: AtomicBool::new(false),
            stopping: Notify::new(),
            tasks: AtomicUsize::new(0),
            idle: Notify::new(),
        }
    }

    /// A number that no producer has had as its epoch.
    pub(crate) fn next_producer_epoch(&self) -> u64 {
        self.epochs.fetch_add(1, Ordering::Relaxed)
    }

    /// The current time on the clocks that windows use.
    pub(crate) fn window_time(&self) -> WindowTime {
        let now = moment(&self.env);
        WindowTime { steady_ns: self.clock.lock().now_ns(now), mono_ns: now.mono_ns }
    }

    /// The monotonic clock, in nanoseconds.
    pub(crate) fn mono_ns(&self) -> u64 {
        moment(&self.env).mono_ns
    }

    /// Thirty-two random bits.
    pub(crate) fn random(&self) -> u32 {
        // Without random numbers, delays are not spread.
        self.env.random_u64().unwrap_or_default() as u32
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }

    /// Runs a task that [`Core::stop`] waits for. The task must end soon after [`Core::is_stopped`].
    pub(crate) fn spawn(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.fetch_add(1, Ordering::AcqRel);
        let running = Running(Arc::clone(self));
        drop(self.env.spawn(async move {
            let _running = running;
            task.await;
        }));
    }

    /// Ends all tasks. Returns when they have ended, or after `limit`.
    pub(crate) async fn stop(&self, limit: Duration) {
        self.is_stopped.store(true, Ordering::Release);
        self.stopping.notify_waiters();
        self.owners.wake_all();
        let ended = async {
            loop {
                let idle = self.idle.notified();
                if self.tasks.load(Ordering::Acquire) == 0 {
                    return;
                }
                idle.await;
            }
        };
        if self.env.timeout(limit, ended).await.is_err() {
            tracing::warn!("notifications: delivery did not end in time; leases lapse by themselves");
        }
    }

    /// Waits for `wait`; returns `false` if delivery is stopped.
    pub(crate) async fn sleep_unless_stopped(&self, wait: Duration) -> bool {
        let stopped = self.stopping.notified();
        if self.is_stopped() {
            return false;
        }
        let _ = self.env.timeout(wait, stopped).await;
        !self.is_stopped()
    }

    /// Fails once delivery is stopped.
    pub(crate) fn check_running(&self) -> Result<()> {
        if self.is_stopped() { Err(Error::Stopped) } else { Ok(()) }
    }

    /// The producer for a shard of the current generation of a topic.
    pub(crate) fn producer(&self, topic: &Topic, generation: Generation, shard: u32) -> Arc<ShardProducer> {
        let key = ShardKey { topic: topic.id, generation: generation.number, shard };
        let limit = self.shard_limit(topic, generation.shards);
        let mut producers = self.producers.lock();
        if let Some(producer) = producers.get(&key).filter(|producer| producer.limit() == limit) {
            return Arc::clone(producer);
        }
        if producers.len() >= MAX_PRODUCERS {
            producers.retain(|_, producer| Arc::strong_count(producer) > 1);
        }
        let id = queue_id(topic.id);
        let (visible, hidden) =
            layout::candidate_objects(&topic.arn.tenant, &topic.arn.name, &id, generation, shard);
        let identity = generation.identity(&id, shard);
        let producer = Arc::new(ShardProducer::new(key, visible.unwrap_or(hidden), identity, limit));
        producers.insert(key, Arc::clone(&producer));
        producer
    }

    /// Removes a producer whose generation is closed.
    pub(crate) fn remove_producer(&self, key: &ShardKey) {
        self.producers.lock().remove(key);
    }

    /// Removes the state of a topic that no longer exists.
    pub(crate) fn forget_topic(&self, topic: TopicId) {
        self.endpoints.forget(topic);
        self.admissions.forget(topic);
        self.progress.retain(topic, &[]);
        self.producers.lock().retain(|key, _| key.topic != topic);
    }

    /// The limit for one shard of a topic that drops its oldest events.
    fn shard_limit(&self, topic: &Topic, shards: u32) -> Option<ShardLimit> {
        if topic.attributes.full_queue_policy() != FullQueuePolicy::DropOldest {
            return None;
        }
        let bytes = self.queue_limit_bytes(topic)? / u64::from(shards.max(1));
        Some(ShardLimit { entries: u64::MAX, bytes: bytes.max(1) })
    }

    /// The size limit of a topic's queue, in bytes; `None` if there is none.
    pub(crate) fn queue_limit_bytes(&self, topic: &Topic) -> Option<u64> {
        topic.attributes.queue_max_bytes.or(self.settings.topic_defaults().queue_max_bytes)
    }

    /// Sets the sessions of running gateways, from the last read.
    pub(crate) fn set_running_gateways(&self, mut running: Vec<u64>) {
        running.sort_unstable();
        running.dedup();
        self.gateways.lock().running = running;
    }

    /// Records that a gateway has ended.
    pub(crate) fn mark_gateway_ended(&self, session: u64) {
        let mut gateways = self.gateways.lock();
        gateways.running.retain(|running| *running != session);
        gateways.ended.insert(session);
        while gateways.ended.len() > MAX_ENDED {
            gateways.ended.pop_first();
        }
    }

    /// Whether a gateway is known to have ended.
    pub(crate) fn is_gateway_ended(&self, session: u64) -> bool {
        self.gateways.lock().ended.contains(&session)
    }

    /// Whether a gateway may be running.
    pub(crate) fn may_be_running(&self, session: u64) -> bool {
        let gateways = self.gateways.lock();
        gateways.running.is_empty() || gateways.running.contains(&session)
    }

    /// Whether this gateway is the preferred gateway of a shard. Rendezvous hashing selects a preferred gateway for each
    /// shard, so few shards move when gateways start or end.
    pub(crate) fn is_preferred(&self, key: &ShardKey) -> bool {
        let gateways = self.gateways.lock();
        if !gateways.running.contains(&self.session) {
            return true;
        }
        let weight = |session: u64| {
            let text = format!("{}.{}.{}.{session}", key.topic, key.generation, key.shard);
            (nacre_types::hash::ceph_str_hash_rjenkins(text.as_bytes()), session)
        };
        gateways
            .running
            .iter()
            .map(|session| weight(*session))
            .max()
            .is_none_or(|(_, best)| best == self.session)
    }

    /// Starts the changes of a topic's queue that its record requires, including changes that other gateways left
    /// incomplete.
    pub(crate) fn schedule_reconcile(self: &Arc<Self>, stored: &StoredTopic) {
        let arn = stored.record.topic.arn.clone();
        if !self.mover.mark_change_scheduled(&arn) {
            return;
        }
        let core = Arc::clone(self);
        self.spawn(async move {
            if let Err(error) = crate::generations::reconcile(&core, &arn).await {
                tracing::warn!(topic = %arn, %error, "notifications: the change of a topic's queues is tried again later");
                // Owners and movers call this several times a second.
                core.sleep_unless_stopped(CHANGE_RETRY).await;
            }
            core.mover.clear_change_scheduled(&arn);
        });
    }
}

fn moment(env: &Env) -> ClockSample {
    let mono_ns = u64::try_from(env.now().since_origin().as_nanos()).unwrap_or(u64::MAX);
    ClockSample { wall_ns: env.wall_ns(), mono_ns }
}

/// Counts a task until it ends or is dropped.
struct Running(Arc<Core>);

impl Drop for Running {
    fn drop(&mut self) {
        if self.0.tasks.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}
