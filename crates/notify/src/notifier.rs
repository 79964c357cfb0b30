//! The interface of the delivery of notifications in one gateway.

use crate::admin::{self, DeadLetterInfo, LetterAction, LetterSelection, QueuedEvent, TopicReport};
use crate::admission::QueueReservation;
use crate::core::Core;
use crate::error::{Error, Result};
use crate::generations::GenerationChanges;
use crate::metrics::Metrics;
use crate::mover::Movers;
use crate::outboxes::Outboxes;
use crate::push::EndpointConnector;
use crate::rados::ObjectIo;
use crate::removal;
use crate::scan::Scanner;
use crate::settings::Settings;
use crate::shard_tasks::ShardTasks;
use crate::sync_push::{self, SyncPushResult};
use crate::topic_cache::TopicCache;
use crate::topic_state::TopicStates;
use crate::topic_store::{StoredTopic, TopicRecord, TopicStore};
use futures::future::{Either, select};
use nacre_engine::IoCtx;
use nacre_queues::layout::BeginResult;
use nacre_queues::retry::BreakerState;
use nacre_task::Env;
use nacre_topics::arn::TopicArn;
use nacre_topics::pending::TopicEvent;
use nacre_topics::topic::{Topic, TopicId};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// The most time that [`Notifier::stop`] waits.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// The most attempts to change a record that others change concurrently.
const CHANGE_ATTEMPTS: usize = 32;

/// The dependencies of delivery.
pub struct NotifierConfig {
    /// Time, tasks and random numbers.
    pub env: Env,
    /// The pool of queues: `default.rgw.log`.
    pub log: IoCtx,
    /// The pool of bucket indexes.
    pub index: IoCtx,
    /// The records of topics.
    pub topics: TopicStore,
    /// Opens connections to endpoints.
    pub pusher: Arc<dyn EndpointConnector>,
    /// Locates outboxes and lists the running gateways.
    pub outboxes: Arc<dyn Outboxes>,
    /// The number of this gateway's RADOS session (`Cluster::bind_session`). [`Outboxes::gateways`] uses the same numbers.
    pub session: u64,
    /// Limits and timeouts.
    pub settings: Settings,
}

/// The delivery of notifications in one gateway.
///
/// Topics are created, changed and deleted by its methods, which write the record and adapt the queues before they return.
/// The gateway authorizes requests before, and afterwards informs the other gateways, which call
/// [`Notifier::topic_changed`].
pub struct Notifier {
    core: Arc<Core>,
    states: Arc<TopicStates>,
    changes: Arc<GenerationChanges>,
    shard_tasks: Arc<ShardTasks>,
    movers: Arc<Movers>,
    scanner: Arc<Scanner>,
}

impl Notifier {
    /// Starts delivery: tasks of the environment that run until [`Notifier::stop`].
    pub fn start(config: NotifierConfig) -> Arc<Notifier> {
        let NotifierConfig { env, log, index, topics, pusher, outboxes, session, settings } = config;
        let rados = ObjectIo::new(&log, &index);
        let topics = TopicCache::new(topics, env.clone());
        let core = Arc::new(Core::new(env, rados, topics, outboxes, session, settings));
        let states = Arc::new(TopicStates::new(&core, pusher));
        let changes = Arc::new(GenerationChanges::new(&core, &states));
        let shard_tasks = Arc::new(ShardTasks::new(&core, &states, &changes));
        let movers = Arc::new(Movers::new(&core, &states, &changes, &shard_tasks));
        let scanner = Arc::new(Scanner::new(&core, &states, &changes, &shard_tasks, &movers));
        core.tasks.spawn(Arc::clone(&shard_tasks).run_timers());
        core.tasks.spawn(Arc::clone(&scanner).watch_gateways());
        core.tasks.spawn(Arc::clone(&scanner).scan());
        core.tasks.spawn(follow_defaults(Arc::clone(&core), Arc::clone(&states)));
        core.tasks.spawn(sweep_periodically(Arc::clone(&core)));
        Arc::new(Notifier { core, states, changes, shard_tasks, movers, scanner })
    }

    /// Ends delivery: owners settle acknowledged events and release their leases. Returns after a few seconds at the
    /// latest.
    pub async fn stop(&self) {
        self.core.tasks.stop();
        self.core.schedule.wake_all();
        if !self.core.tasks.wait_until_ended(STOP_TIMEOUT).await {
            tracing::warn!("notifications: delivery did not end in time; leases lapse by themselves");
        }
    }

    /// The metrics of this gateway.
    pub fn metrics(&self) -> &Metrics {
        &self.core.metrics
    }

    /// The records of topics.
    pub fn topics(&self) -> &TopicStore {
        &self.core.topics.store
    }

    /// A topic for operations on objects, from a cache; its record may be up to ten seconds old. `None` if the topic with
    /// that id no longer exists.
    pub async fn topic(&self, arn: &TopicArn, id: TopicId) -> Result<Option<Arc<StoredTopic>>> {
        self.core.topics.get(arn, id).await
    }

    /// Reports that a finish wrote outbox records of these objects, or of any objects if `keys` is empty, into this shard
    /// of a bucket's index.
    pub fn outbox_written(&self, bucket: &str, shard: &str, keys: &[String]) {
        self.movers.mark_keys_dirty(bucket, shard, keys);
    }

    /// Reports that another gateway changed, created or deleted the topic of that name.
    pub fn topic_changed(&self, arn: &TopicArn) {
        let ids = self.core.topics.invalidate(arn);
        self.core.schedule.wake_all();
        let (scanner, arn) = (Arc::clone(&self.scanner), arn.clone());
        self.core.tasks.spawn(async move {
            if let Err(error) = scanner.adopt_topic(&arn, ids).await {
                tracing::warn!(topic = %arn, %error, "notifications: a topic that changed is read again later");
            }
        });
    }

    /// Reports that the gateway with this session has ended: its shards are taken over immediately, and its outboxes are
    /// emptied.
    pub fn gateway_ended(&self, session: u64) {
        if session == self.core.session {
            return;
        }
        self.core.gateways.mark_ended(session);
        let watched = self.core.schedule.watched();
        for (key, _) in watched.into_iter().filter(|(_, watched)| watched.owner.client == session) {
            self.core.schedule.update_watched(key, None);
            self.shard_tasks.check(key);
        }
        self.scanner.scan_now();
    }

    /// Creates a topic, with queues if it is persistent; `None` if the name is taken.
    pub async fn create_topic(&self, topic: Topic) -> Result<Option<Arc<StoredTopic>>> {
        let record = TopicRecord::new(topic)?;
        let Some(stored) = self.core.topics.store.create(&record).await? else { return Ok(None) };
        let arn = stored.record.topic.arn.clone();
        self.core.topics.put(stored);
        self.complete(&arn).await.map(Some)
    }

    /// Changes a topic's attributes with `change`, which may be called several times, and adapts its queues. Fails with
    /// [`Error::NoSuchTopic`], or with the error of `change`.
    pub async fn update_topic<E: From<Error>>(
        &self,
        arn: &TopicArn,
        mut change: impl FnMut(&mut Topic) -> std::result::Result<(), E>,
    ) -> std::result::Result<Arc<StoredTopic>, E> {
        for _ in 0..CHANGE_ATTEMPTS {
            let stored = self.existing(arn).await?;
            let mut record = stored.record.clone();
            change(&mut record.topic)?;
            // A change in progress is completed first; then this one is started.
            if record.begin_change()? == BeginResult::TooMany {
                return Err(Error::TooManyGenerations(arn.clone()).into());
            }
            if record == stored.record {
                return Ok(self.complete(arn).await?);
            }
            if let Some(stored) = self.core.topics.store.update(&stored, &record).await.map_err(E::from)? {
                self.core.topics.put(stored);
                return Ok(self.complete(arn).await?);
            }
        }
        Err(Error::Contended(arn.to_string()).into())
    }

    /// Changes the number of shards of a topic's queues. The shards of the old generation are drained at the same time and
    /// afterwards.
    pub async fn reshard_topic(&self, arn: &TopicArn, shards: u32) -> Result<Arc<StoredTopic>> {
        self.update_topic(arn, |topic| topic.reshard(shards).map_err(Error::from)).await
    }

    /// Deletes a topic with its queues and dead letters; `false` if it does not exist. Returns when the name is free. The
    /// queues are removed by then, or are removed by the next gateway that checks the topic.
    pub async fn delete_topic(&self, arn: &TopicArn) -> Result<bool> {
        self.delete(arn, |_| true).await
    }

    /// Like [`Notifier::delete_topic`], but only for the topic with that id: another topic that has the name by now is
    /// kept.
    pub async fn delete_topic_with_id(&self, arn: &TopicArn, id: TopicId) -> Result<bool> {
        self.delete(arn, |stored| stored.record.topic.id == id).await
    }

    async fn delete(&self, arn: &TopicArn, is_meant: impl Fn(&StoredTopic) -> bool) -> Result<bool> {
        for _ in 0..CHANGE_ATTEMPTS {
            let found = self.core.topics.store.get(arn).await?;
            let Some(stored) = found.filter(&is_meant) else { return Ok(false) };
            let Some(deleted) = self.core.topics.store.delete(&stored).await? else { continue };
            let deleted = self.core.topics.put(deleted);
            self.core.schedule.wake_all();
            if let Err(error) = removal::remove_topic(&self.core, &self.states, &deleted).await {
                tracing::warn!(topic = %arn, %error, "notifications: the queues of a deleted topic are removed later");
            }
            return Ok(true);
        }
        Err(Error::Contended(arn.to_string()))
    }

    async fn existing(&self, arn: &TopicArn) -> Result<StoredTopic> {
        let found = self.core.topics.store.get(arn).await?;
        found.ok_or_else(|| Error::NoSuchTopic(arn.clone()))
    }

    /// Completes changes of a topic's queues, and returns its record.
    async fn complete(&self, arn: &TopicArn) -> Result<Arc<StoredTopic>> {
        self.changes.reconcile(arn).await?;
        let stored = self.core.topics.put(self.existing(arn).await?);
        self.core.schedule.wake_all();
        Ok(stored)
    }

    /// Whether an operation that may have an event of `bytes` bytes for a topic may start; `None` means SlowDown, because
    /// the topic refuses operations when its queue is full. Must be called before the operation starts, never later.
    pub async fn admit(&self, arn: &TopicArn, id: TopicId, bytes: u64) -> Result<Option<QueueReservation>> {
        let Some(stored) = self.core.topics.get(arn, id).await? else {
            return Ok(Some(QueueReservation::unlimited()));
        };
        self.states.admissions.admit(&stored, bytes).await
    }

    /// Pushes events of non-persistent topics. Returns when the outcome of each is known, or after the timeout.
    pub async fn push_now(&self, events: Vec<TopicEvent>) -> SyncPushResult {
        sync_push::push_now(&self.core, &self.states.endpoints, events).await
    }

    /// The state of the circuit breaker of a topic's endpoint in this gateway. An unknown breaker was never used, so it is
    /// closed.
    pub fn breaker(&self, topic: TopicId) -> BreakerState {
        self.states.endpoints.peek(topic).map_or(BreakerState::Closed, |endpoint| endpoint.breaker())
    }

    /// The figures of a topic's queue, without the states of breakers ([`TopicReport::set_breakers`]).
    pub async fn report(&self, arn: &TopicArn) -> Result<TopicReport> {
        let stored = Arc::new(self.existing(arn).await?);
        admin::report(&self.core, &stored).await
    }

    /// The events of a topic's queue, oldest first in each shard, at most `max`.
    pub async fn dump(&self, arn: &TopicArn, max: usize) -> Result<Vec<QueuedEvent>> {
        admin::dump(&self.core, &self.existing(arn).await?, max).await
    }

    /// Up to `max` dead letters of a topic after a number, but not more than 256.
    pub async fn letters(&self, arn: &TopicArn, after: Option<u64>, max: u64) -> Result<Vec<DeadLetterInfo>> {
        admin::letters(&self.core, &self.existing(arn).await?, after, max).await
    }

    /// Removes dead letters permanently; returns their number.
    pub async fn purge_letters(&self, arn: &TopicArn, which: LetterSelection) -> Result<u64> {
        admin::apply_to_letters(&self.core, &self.existing(arn).await?, which, LetterAction::Purge).await
    }

    /// Replays dead letters; returns their number.
    pub async fn replay_letters(&self, arn: &TopicArn, which: LetterSelection) -> Result<u64> {
        let stored = self.core.topics.put(self.existing(arn).await?);
        let replayed = admin::apply_to_letters(&self.core, &stored, which, LetterAction::Replay).await?;
        self.movers.replay(&stored).await?;
        Ok(replayed)
    }

    /// Removes objects of queues that belong to no topic; returns their number. A task of the gateway also does this
    /// periodically.
    pub async fn sweep(&self) -> Result<u64> {
        removal::sweep(&self.core).await
    }

    /// The number of shards of bucket indexes that wait to be checked for events.
    pub fn backlog(&self) -> usize {
        self.movers.backlog()
    }

    /// Moves all events out of the outbox of a bucket that is about to be removed. Its index must no longer accept changes.
    pub async fn drain_bucket(&self, bucket: &str) -> Result<()> {
        self.movers.drain(bucket).await
    }
}

/// The task that makes owners adopt changed options.
async fn follow_defaults(core: Arc<Core>, states: Arc<TopicStates>) {
    let mut defaults = core.settings.defaults.clone();
    loop {
        let stopping = core.tasks.stopping();
        if core.tasks.is_stopped() {
            return;
        }
        match select(pin!(defaults.changed()), pin!(stopping)).await {
            Either::Left((Ok(()), _)) => {
                states.endpoints.wake_waiting();
                core.schedule.wake_all();
            }
            // The options can't change any more, or delivery is stopped.
            _ => return,
        }
    }
}

/// The task that removes objects without an owner.
async fn sweep_periodically(core: Arc<Core>) {
    let spread = core.env.jitter(core.settings.sweep);
    while core.tasks.sleep(core.settings.sweep / 2 + spread).await {
        if let Err(error) = removal::sweep(&core).await {
            tracing::warn!(%error, "notifications: objects without an owner are not looked for");
        }
    }
}
