//! The shards that this gateway delivers, waits for, or watches because another gateway delivers them.

use crate::core::{Core, ShardKey};
use crate::error::Error;
use crate::metrics::{add, subtract};
use crate::owner::{self, NextCheck};
use futures::FutureExt as _;
use nacre_queues::record::Owner;
use nacre_queues::retry::BreakerState;
use nacre_topics::topic::TopicId;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{AcquireError, Notify, Semaphore, SemaphorePermit};

/// The most shards of other gateways that are watched; the scan finds the others.
const MAX_WATCHED: usize = 16_384;
/// The shortest and the longest delay after an error.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// The notifications for the task of a shard.
#[derive(Default)]
pub(crate) struct ShardWaker {
    pub(crate) notify: Notify,
    /// Whether it was woken since its last check.
    is_woken: AtomicBool,
    /// The shard's object is full, so batches must be spilled.
    pub(crate) must_spill: AtomicBool,
    /// The shard must be released.
    pub(crate) must_release: AtomicBool,
}

impl ShardWaker {
    fn wake(&self) {
        self.is_woken.store(true, Ordering::Release);
        self.notify.notify_one();
    }
}

/// A watched shard, which another gateway delivers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WatchedShard {
    pub(crate) owner: Owner,
    /// The number of checks in which no gateway had the lease.
    pub(crate) unowned_checks: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timed {
    Shard(ShardKey),
    Probe(TopicId),
}

#[derive(Default)]
struct Timers {
    at: BTreeSet<(u64, Timed)>,
    of: BTreeMap<Timed, u64>,
}

impl Timers {
    /// Sets a timer, unless it is already set for an earlier time.
    fn set(&mut self, timed: Timed, at_ns: u64) {
        if let Some(set) = self.of.get(&timed).copied() {
            if set <= at_ns {
                return;
            }
            self.at.remove(&(set, timed));
        }
        self.of.insert(timed, at_ns);
        self.at.insert((at_ns, timed));
    }

    fn pop_due(&mut self, now_ns: u64) -> Option<Timed> {
        let (at, timed) = *self.at.first().filter(|(at, _)| *at <= now_ns)?;
        self.at.remove(&(at, timed));
        self.of.remove(&timed);
        Some(timed)
    }
}

pub(crate) struct ShardTasks {
    running: Mutex<BTreeMap<ShardKey, Arc<ShardWaker>>>,
    watched: Mutex<BTreeMap<ShardKey, WatchedShard>>,
    timers: Mutex<Timers>,
    timers_changed: Notify,
    slots: Semaphore,
    /// Slots of shards that probe their endpoint, so that endpoints that never answer do not use the slots of others.
    probes: Semaphore,
    /// The number of tasks that wait for a slot.
    queueing: AtomicUsize,
    /// Limits concurrent spills, because each holds a segment in memory.
    pub(crate) spilling: Semaphore,
    /// Limits concurrent reads of segments.
    pub(crate) segments: Semaphore,
}

impl ShardTasks {
    pub(crate) fn new(slots: usize) -> ShardTasks {
        ShardTasks {
            running: Mutex::default(),
            watched: Mutex::default(),
            timers: Mutex::default(),
            timers_changed: Notify::new(),
            slots: Semaphore::new(slots.max(1)),
            probes: Semaphore::new(slots.max(1)),
            queueing: AtomicUsize::new(0),
            spilling: Semaphore::new(2),
            segments: Semaphore::new(4),
        }
    }

    /// Waits for a slot to process a shard.
    async fn slot(&self, core: &Core, key: &ShardKey) -> Result<SemaphorePermit<'_>, AcquireError> {
        let endpoint = core.endpoints.peek(key.topic);
        if endpoint.is_some_and(|endpoint| endpoint.breaker() != BreakerState::Closed) {
            return self.probes.acquire().await;
        }
        self.queueing.fetch_add(1, Ordering::Relaxed);
        let slot = self.slots.acquire().await;
        self.queueing.fetch_sub(1, Ordering::Relaxed);
        slot
    }

    /// Whether tasks wait for a slot.
    pub(crate) fn has_waiting_tasks(&self) -> bool {
        self.queueing.load(Ordering::Relaxed) > 0
    }

    /// Schedules a check of a shard at that time.
    pub(crate) fn wake_at(&self, key: ShardKey, at_ns: u64) {
        self.timers.lock().set(Timed::Shard(key), at_ns);
        self.timers_changed.notify_one();
    }

    /// Schedules an immediate check of shards by the timer task.
    pub(crate) fn schedule_checks(&self, keys: BTreeSet<ShardKey>) {
        let mut timers = self.timers.lock();
        keys.into_iter().for_each(|key| timers.set(Timed::Shard(key), 0));
        drop(timers);
        self.timers_changed.notify_one();
    }

    /// Schedules a probe of a topic's endpoint at that time.
    pub(crate) fn probe_at(&self, topic: TopicId, at_ns: u64) {
        self.timers.lock().set(Timed::Probe(topic), at_ns);
        self.timers_changed.notify_one();
    }

    pub(crate) fn wake_all(&self) {
        self.running.lock().values().for_each(|wake| wake.wake());
        self.timers_changed.notify_one();
    }

    /// Whether a task of this gateway processes the shard.
    pub(crate) fn is_running(&self, key: &ShardKey) -> bool {
        self.running.lock().contains_key(key)
    }

    /// Releases a shard if this gateway has it.
    pub(crate) fn release(&self, key: &ShardKey) {
        if let Some(wake) = self.running.lock().get(key) {
            wake.must_release.store(true, Ordering::Release);
            wake.wake();
        }
    }

    /// Watches a shard that has events and that another gateway delivers.
    pub(crate) fn watch_remote_shard(&self, key: ShardKey) {
        let mut watched = self.watched.lock();
        if watched.len() < MAX_WATCHED {
            watched.entry(key).or_default();
        }
    }

    pub(crate) fn watched(&self) -> BTreeMap<ShardKey, WatchedShard> {
        self.watched.lock().clone()
    }

    pub(crate) fn update_watched(&self, key: ShardKey, watched: Option<WatchedShard>) {
        match watched {
            Some(now) => drop(self.watched.lock().insert(key, now)),
            None => drop(self.watched.lock().remove(&key)),
        }
    }

    pub(crate) fn is_watched(&self, key: &ShardKey) -> bool {
        self.watched.lock().contains_key(key)
    }
}

/// Checks a shard now: wakes its task, or starts one.
pub(crate) fn check_shard(core: &Arc<Core>, key: ShardKey, must_spill: bool) {
    if core.is_stopped() || !core.settings.delivers() {
        return;
    }
    let wake = {
        let mut running = core.owners.running.lock();
        if let Some(wake) = running.get(&key) {
            wake.must_spill.fetch_or(must_spill, Ordering::AcqRel);
            wake.wake();
            return;
        }
        let wake = Arc::new(ShardWaker::default());
        wake.must_spill.store(must_spill, Ordering::Release);
        running.insert(key, Arc::clone(&wake));
        wake
    };
    let task = Arc::clone(core);
    core.spawn(async move { run(task, key, wake).await });
}

/// Guard: a task processes a shard. After a panic of the task, another one can process it.
struct CheckGuard<'a> {
    core: &'a Core,
    key: ShardKey,
    is_over: bool,
}

impl Drop for CheckGuard<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            let owners = &self.core.owners;
            owners.running.lock().remove(&self.key);
            let wait_ns = u64::try_from(BACKOFF.1.as_nanos()).unwrap_or(u64::MAX);
            owners.wake_at(self.key, self.core.mono_ns().saturating_add(wait_ns));
        }
    }
}

async fn run(core: Arc<Core>, key: ShardKey, wake: Arc<ShardWaker>) {
    let mut guard = CheckGuard { core: &core, key, is_over: false };
    let mut wait = BACKOFF.0;
    loop {
        let slot = core.owners.slot(&core, &key).await;
        wake.is_woken.store(false, Ordering::Release);
        add(&core.metrics.shards_owned, 1);
        // Boxed, so that tasks that wait for a slot are small.
        let result = owner::deliver_shard(&core, key, &wake).boxed().await;
        subtract(&core.metrics.shards_owned, 1);
        drop(slot);
        let next = match result {
            Ok(next) => {
                wait = BACKOFF.0;
                next
            }
            Err(error) => {
                match error {
                    // The topic is being removed, or another gateway took the lease.
                    Error::Changed(_) => {
                        tracing::debug!(?key, %error, "notifications: the lease of a queue shard is lost")
                    }
                    _ => {
                        tracing::warn!(?key, %error, "notifications: a queue shard is not delivered; tried again later")
                    }
                }
                wait = (wait * 2).min(BACKOFF.1);
                NextCheck::At(core.mono_ns() + u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX))
            }
        };
        let mut running = core.owners.running.lock();
        let is_woken = wake.is_woken.swap(false, Ordering::AcqRel);
        wake.must_release.store(false, Ordering::Release);
        // A shard that was woken in the meantime is processed again, unless it has to wait anyway.
        if is_woken && matches!(next, NextCheck::Done) && !core.is_stopped() {
            continue;
        }
        running.remove(&key);
        guard.is_over = true;
        drop(running);
        match next {
            NextCheck::Done => {}
            NextCheck::Elsewhere => core.owners.watch_remote_shard(key),
            NextCheck::At(at_ns) => core.owners.wake_at(key, at_ns),
            NextCheck::Endpoint(endpoint) => match core.endpoints.peek(key.topic) {
                Some(now) if Arc::ptr_eq(&now, &endpoint) => endpoint.add_waiting(&core, key),
                // The topic has another endpoint by now, which would not wake this shard.
                Some(_) => core.owners.wake_at(key, core.mono_ns()),
                None => {}
            },
        }
        // This shard may have been selected as the probe, but had nothing to send.
        if let Some(endpoint) = core.endpoints.peek(key.topic).filter(|endpoint| endpoint.waiting() > 0) {
            core.owners.probe_at(key.topic, endpoint.blocked_until_ns(&core).unwrap_or(0));
        }
        return;
    }
}

/// The timer task.
pub(crate) async fn timers(core: Arc<Core>) {
    while !core.is_stopped() {
        let changed = core.owners.timers_changed.notified();
        let now_ns = core.mono_ns();
        let due: Vec<Timed> = {
            let mut timers = core.owners.timers.lock();
            std::iter::from_fn(|| timers.pop_due(now_ns)).collect()
        };
        for timed in due {
            match timed {
                Timed::Shard(key) => check_shard(&core, key, false),
                Timed::Probe(topic) => {
                    let endpoint = core.endpoints.peek(topic);
                    let probe = endpoint.and_then(|endpoint| endpoint.next_probe(&core));
                    probe.into_iter().for_each(|key| check_shard(&core, key, false));
                }
            }
        }
        let next = core.owners.timers.lock().at.first().map(|(at, _)| *at);
        match next {
            Some(at) => {
                let wait = Duration::from_nanos(at.saturating_sub(core.mono_ns()));
                let _ = core.env.timeout(wait, changed).await;
            }
            None => changed.await,
        }
    }
}
