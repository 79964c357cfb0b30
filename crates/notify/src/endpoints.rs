//! The endpoints of topics: connections, and the circuit breaker that stops pushes to an endpoint that fails.
//!
//! Each topic has its own, so only the topic's own endpoint can delay it. While a breaker is open, the shards of its topic
//! that have events are in a list. One of them probes the endpoint; the others follow when it works again.

use crate::core::{Core, ShardKey};
use crate::metrics::add;
use crate::push::{Connection, PushFailure, PushMessage, PushTarget};
use crate::topic_store::StoredTopic;
use nacre_queues::retry::{Breaker, BreakerState};
use nacre_topics::endpoint::Endpoint;
use nacre_topics::topic::TopicId;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Semaphore;

/// The endpoints of all topics.
#[derive(Default)]
pub(crate) struct EndpointTable {
    of_topics: Mutex<BTreeMap<TopicId, Arc<TopicEndpoint>>>,
}

/// The endpoint of a topic.
pub(crate) struct TopicEndpoint {
    pub(crate) topic: TopicId,
    pub(crate) endpoint: Endpoint,
    /// The newest known version of the topic's record with this endpoint.
    version: AtomicU64,
    connection: Mutex<Option<Arc<dyn Connection>>>,
    breaker: Mutex<Breaker>,
    /// Limits the pushes in flight.
    pub(crate) pushes: Semaphore,
    waiting: Mutex<BTreeSet<ShardKey>>,
    /// The shard that made the last probe.
    last_probe: Mutex<Option<ShardKey>>,
}

impl EndpointTable {
    /// The endpoint of a topic according to this record; `None` if it has none. A new endpoint has a closed breaker.
    pub(crate) fn get(&self, core: &Core, stored: &StoredTopic) -> Option<Arc<TopicEndpoint>> {
        let topic = &stored.record.topic;
        let known = self.of_topics.lock().get(&topic.id).cloned();
        if let Some(known) = &known
            && known.version.load(Ordering::Relaxed) >= topic.version
        {
            return Some(Arc::clone(known));
        }
        let endpoint = match topic.endpoint() {
            Ok(endpoint) => endpoint?,
            Err(error) => {
                tracing::error!(topic = %topic.arn, %error, "notifications: the topic's endpoint can't be used");
                return None;
            }
        };
        if let Some(known) = known.filter(|known| known.endpoint == endpoint) {
            known.version.fetch_max(topic.version, Ordering::Relaxed);
            return Some(known);
        }
        let made = Arc::new(TopicEndpoint {
            topic: topic.id,
            endpoint,
            version: AtomicU64::new(topic.version),
            connection: Mutex::default(),
            breaker: Mutex::new(Breaker::new(core.settings.breaker)),
            pushes: Semaphore::new(core.settings.pushes.max(1)),
            waiting: Mutex::default(),
            last_probe: Mutex::default(),
        });
        let before = self.of_topics.lock().insert(topic.id, Arc::clone(&made));
        if let Some(before) = before {
            core.owners.schedule_checks(before.take_waiting());
        }
        Some(made)
    }

    /// The known endpoint of a topic.
    pub(crate) fn peek(&self, topic: TopicId) -> Option<Arc<TopicEndpoint>> {
        self.of_topics.lock().get(&topic).cloned()
    }

    /// Wakes all shards that wait for endpoints, because the expiry times of their events may have changed.
    pub(crate) fn wake_waiting(&self, core: &Core) {
        let endpoints: Vec<Arc<TopicEndpoint>> = self.of_topics.lock().values().cloned().collect();
        for endpoint in endpoints {
            core.owners.schedule_checks(endpoint.take_waiting());
        }
    }

    /// The topic or its endpoint no longer exists.
    pub(crate) fn forget(&self, topic: TopicId) {
        self.of_topics.lock().remove(&topic);
    }
}

impl TopicEndpoint {
    /// The connection that shards of the topic share.
    pub(crate) fn connection(&self, core: &Core) -> Result<Arc<dyn Connection>, PushFailure> {
        let mut connection = self.connection.lock();
        if let Some(connection) = &*connection {
            return Ok(Arc::clone(connection));
        }
        let target = PushTarget { endpoint: self.endpoint.clone(), topic: self.topic, queue: None };
        let made = core.pusher.open(&target)?;
        *connection = Some(Arc::clone(&made));
        Ok(made)
    }

    /// Whether events of each queue are written in transactions of the queue.
    pub(crate) fn is_transactional(&self) -> bool {
        matches!(&self.endpoint, Endpoint::Kafka(kafka) if kafka.transactional)
    }

    /// The most events in a push.
    pub(crate) fn max_batch_size(&self, core: &Core) -> usize {
        match &self.endpoint {
            Endpoint::Http(http) => http.batch_size.max(1) as usize,
            Endpoint::Kafka(_) | Endpoint::Amqp(_) => core.settings.push_events.max(1),
        }
    }

    /// The state of its breaker.
    pub(crate) fn breaker(&self) -> BreakerState {
        self.breaker.lock().state()
    }

    /// The number of pushes that may be sent now. A probe is assumed to be sent.
    pub(crate) fn permits(&self, core: &Core) -> usize {
        self.breaker.lock().permits(core.mono_ns())
    }

    /// When its breaker permits a push again; `None` if it does so now.
    pub(crate) fn blocked_until_ns(&self, core: &Core) -> Option<u64> {
        let now = core.mono_ns();
        self.breaker.lock().next_permit_ns().filter(|until| *until > now)
    }

    /// The endpoint answered.
    pub(crate) fn succeeded(&self, core: &Core) {
        let was_open = {
            let mut breaker = self.breaker.lock();
            let was_open = breaker.state() != BreakerState::Closed;
            breaker.succeeded();
            was_open
        };
        if was_open {
            tracing::info!(endpoint = %self.endpoint, "notifications: the endpoint answers again");
            core.owners.schedule_checks(self.take_waiting());
        }
    }

    /// The endpoint failed.
    pub(crate) fn failed(&self, core: &Core, detail: &str) {
        let (now, random) = (core.mono_ns(), core.random());
        let mut breaker = self.breaker.lock();
        let was_closed = breaker.state() == BreakerState::Closed;
        breaker.failed(now, random);
        if was_closed && breaker.state() == BreakerState::Open {
            add(&core.metrics.breaker_opened, 1);
            tracing::warn!(endpoint = %self.endpoint, detail, "notifications: the endpoint fails and is left alone for a while");
        }
    }

    /// Records that a shard has events and waits for the endpoint.
    pub(crate) fn add_waiting(&self, core: &Core, key: ShardKey) {
        self.waiting.lock().insert(key);
        // The breaker may permit a push by now.
        match self.blocked_until_ns(core) {
            Some(until) => core.owners.probe_at(self.topic, until),
            None => core.owners.probe_at(self.topic, core.mono_ns()),
        }
    }

    /// The shard that may probe the endpoint now, if a probe is due. Shards take turns, so that a shard with events that
    /// the endpoint can't accept does not decide for all.
    pub(crate) fn next_probe(&self, core: &Core) -> Option<ShardKey> {
        if let Some(until) = self.blocked_until_ns(core) {
            core.owners.probe_at(self.topic, until);
            return None;
        }
        if self.breaker() == BreakerState::Closed {
            core.owners.schedule_checks(self.take_waiting());
            return None;
        }
        let (mut waiting, mut last) = (self.waiting.lock(), self.last_probe.lock());
        let behind =
            |last: ShardKey| waiting.range((Bound::Excluded(last), Bound::Unbounded)).next().copied();
        let next = last.and_then(behind).or_else(|| waiting.first().copied())?;
        waiting.remove(&next);
        *last = Some(next);
        Some(next)
    }

    /// The number of shards that wait for the endpoint.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.lock().len()
    }

    fn take_waiting(&self) -> BTreeSet<ShardKey> {
        std::mem::take(&mut *self.waiting.lock())
    }
}

/// Pushes messages; returns an outcome for each of them.
pub(crate) async fn push(
    connection: Arc<dyn Connection>,
    messages: Vec<PushMessage>,
) -> Vec<Result<(), PushFailure>> {
    let count = messages.len();
    let mut outcomes = connection.push(messages).await;
    outcomes.resize(count, Err(PushFailure::Unavailable("the outcome is missing".to_owned())));
    outcomes
}
