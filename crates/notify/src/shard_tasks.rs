//! The tasks that deliver queue shards, and the task that starts them when their checks are due.

use crate::core::Core;
use crate::error::Error;
use crate::generations::GenerationChanges;
use crate::metrics::GaugeGuard;
use crate::owner::{NextCheck, Owners};
use crate::queue_shard::ShardKey;
use crate::schedule::{CheckTarget, ShardWaker};
use crate::topic_state::TopicStates;
use futures::FutureExt as _;
use std::sync::Arc;
use std::time::Duration;

/// The shortest and the longest delay after an error.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// The tasks of queue shards.
pub(crate) struct ShardTasks {
    core: Arc<Core>,
    states: Arc<TopicStates>,
    owners: Owners,
}

impl ShardTasks {
    pub(crate) fn new(
        core: &Arc<Core>,
        states: &Arc<TopicStates>,
        changes: &Arc<GenerationChanges>,
    ) -> ShardTasks {
        let owners = Owners::new(core, states, changes);
        ShardTasks { core: Arc::clone(core), states: Arc::clone(states), owners }
    }

    /// Reports that events were enqueued into a shard, or that it may have events.
    pub(crate) fn wake(self: &Arc<Self>, key: ShardKey) {
        let core = &self.core;
        if core.schedule.is_watched(&key) {
            return;
        }
        if core.schedule.is_running(&key) {
            return self.check(key);
        }
        let endpoint = self.states.endpoints.peek(key.topic);
        let Some(endpoint) = endpoint.filter(|endpoint| endpoint.blocked_until_ns().is_some()) else {
            return self.check(key);
        };
        let stored = core.topics.peek(key.topic);
        let policy = stored.map(|stored| core.settings.retry_policy(&stored.record.topic.attributes));
        if let Some(limit_ns) = policy.and_then(|policy| policy.time_to_live_ns) {
            core.schedule.wake_at(key, core.mono_ns().saturating_add(limit_ns));
        }
        endpoint.add_waiting(key);
    }

    /// Reports that a shard's object is full.
    pub(crate) fn request_spill(self: &Arc<Self>, key: ShardKey) {
        self.wake_or_start(key, true);
    }

    /// Checks a shard now: wakes its task, or starts one.
    pub(crate) fn check(self: &Arc<Self>, key: ShardKey) {
        self.wake_or_start(key, false);
    }

    fn wake_or_start(self: &Arc<Self>, key: ShardKey, must_spill: bool) {
        let core = &self.core;
        if core.tasks.is_stopped() || !core.settings.delivers() {
            return;
        }
        if let Some(waker) = core.schedule.wake_or_add(key, must_spill) {
            let tasks = Arc::clone(self);
            core.tasks.spawn(async move { tasks.run(key, &waker).await });
        }
    }

    /// The task of a shard.
    async fn run(&self, key: ShardKey, waker: &ShardWaker) {
        let core = &self.core;
        let mut guard = TaskGuard { core, key, is_over: false };
        let mut wait = BACKOFF.0;
        loop {
            let slot = self.owners.slot(key.topic).await;
            waker.begin_check();
            let owned = GaugeGuard::new(&core.metrics.shards_owned);
            // Boxed, so that tasks that wait for a slot are small.
            let result = self.owners.deliver(key, waker).boxed().await;
            drop((owned, slot));
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
            // A shard that was woken in the meantime is processed again, unless it has to wait anyway.
            let repeats = matches!(next, NextCheck::Done) && !core.tasks.is_stopped();
            if !core.schedule.end_task(&key, waker, repeats) {
                continue;
            }
            guard.is_over = true;
            return self.schedule_next(key, next);
        }
    }

    fn schedule_next(&self, key: ShardKey, next: NextCheck) {
        let (schedule, endpoints) = (&self.core.schedule, &self.states.endpoints);
        match next {
            NextCheck::Done => {}
            NextCheck::Elsewhere => schedule.watch_remote_shard(key),
            NextCheck::At(at_ns) => schedule.wake_at(key, at_ns),
            NextCheck::Endpoint(endpoint) => match endpoints.peek(key.topic) {
                Some(now) if Arc::ptr_eq(&now, &endpoint) => endpoint.add_waiting(key),
                // The topic has another endpoint by now, which would not wake this shard.
                Some(_) => schedule.wake_at(key, self.core.mono_ns()),
                None => {}
            },
        }
        // This shard may have been selected as the probe, but had nothing to send.
        if let Some(endpoint) = endpoints.peek(key.topic).filter(|endpoint| endpoint.waiting() > 0) {
            schedule.probe_at(key.topic, endpoint.blocked_until_ns().unwrap_or(0));
        }
    }

    /// The task that starts the checks that are due.
    pub(crate) async fn run_timers(self: Arc<Self>) {
        let core = &self.core;
        while !core.tasks.is_stopped() {
            let changed = core.schedule.changed();
            for target in core.schedule.take_due(core.mono_ns()) {
                let due = match target {
                    CheckTarget::Shard(key) => Some(key),
                    CheckTarget::Endpoint(topic) => {
                        self.states.endpoints.peek(topic).and_then(|endpoint| endpoint.next_probe())
                    }
                };
                due.into_iter().for_each(|key| self.check(key));
            }
            match core.schedule.next_at_ns() {
                Some(at_ns) => {
                    let wait = Duration::from_nanos(at_ns.saturating_sub(core.mono_ns()));
                    let _ = core.env.timeout(wait, changed).await;
                }
                None => changed.await,
            }
        }
    }
}

/// Guard: a task processes a shard. After a panic of the task, another one can process it.
struct TaskGuard<'a> {
    core: &'a Core,
    key: ShardKey,
    is_over: bool,
}

impl Drop for TaskGuard<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.core.schedule.remove_task(&self.key);
            let wait_ns = u64::try_from(BACKOFF.1.as_nanos()).unwrap_or(u64::MAX);
            self.core.schedule.wake_at(self.key, self.core.mono_ns().saturating_add(wait_ns));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use crate::testing::{self, BUCKET, TestEndpoint};
    use crate::topic_store::{StoredTopic, TopicRecord};
    use nacre_queues::name::SourceId;
    use nacre_queues::retry::BreakerPolicy;
    use std::sync::atomic::Ordering;

    fn shard_tasks(core: &Arc<Core>, endpoint: &TestEndpoint) -> Arc<ShardTasks> {
        let states = Arc::new(TopicStates::new(core, endpoint.connector()));
        let changes = Arc::new(GenerationChanges::new(core, &states));
        Arc::new(ShardTasks::new(core, &states, &changes))
    }

    async fn enqueue(tasks: &ShardTasks, stored: &StoredTopic, change: &str) {
        let TopicRecord { topic, layout } = &stored.record;
        let producer = tasks.states.producers.get(topic, layout.current.unwrap(), 0);
        let source = SourceId::new(BUCKET).unwrap();
        let token = producer.epoch_token(&source).await.unwrap().unwrap();
        let outcome = producer.enqueue(token, source, vec![testing::outbox_event(topic, change)]).await;
        assert!(outcome.left.is_none(), "{outcome:?}");
    }

    #[test]
    fn a_shard_that_is_woken_is_delivered() {
        testing::run(Settings::default(), |core| async move {
            let stored = testing::create_topic(&core, &[1], &[]).await;
            let (endpoint, key) = (TestEndpoint::default(), testing::current_shard(&stored, 0));
            let tasks = shard_tasks(&core, &endpoint);
            enqueue(&tasks, &stored, "one").await;
            tasks.wake(key);
            assert!(core.schedule.is_running(&key));
            core.env.sleep(Duration::from_secs(1)).await;
            assert_eq!(endpoint.received(), ["one"]);
            core.tasks.stop();
            core.schedule.wake_all();
            assert!(core.tasks.wait_until_ended(Duration::from_secs(1)).await);
            assert!(!core.schedule.is_running(&key));
            // A gateway that is stopped starts no tasks.
            tasks.wake(key);
            assert!(!core.schedule.is_running(&key));
        });
    }

    #[test]
    fn a_shard_that_waits_for_its_endpoint_is_delivered_when_it_answers() {
        let breaker = BreakerPolicy { failures: 1, ..Settings::default().breaker };
        testing::run(Settings { breaker, ..Settings::default() }, |core| async move {
            let stored = testing::create_topic(&core, &[1], &[]).await;
            let (endpoint, key) = (TestEndpoint::default(), testing::current_shard(&stored, 0));
            let tasks = shard_tasks(&core, &endpoint);
            core.tasks.spawn(Arc::clone(&tasks).run_timers());
            endpoint.set_unavailable(true);
            enqueue(&tasks, &stored, "one").await;
            tasks.wake(key);
            core.env.sleep(Duration::from_secs(20)).await;
            assert_eq!(core.metrics.breaker_opened.load(Ordering::Relaxed), 1);
            endpoint.set_unavailable(false);
            core.env.sleep(Duration::from_secs(60)).await;
            assert_eq!(endpoint.received(), ["one"]);
        });
    }
}
