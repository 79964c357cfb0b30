//! The endpoints of topics: connections, and the circuit breaker that stops pushes to an endpoint that fails.
//!
//! Each topic has its own, so only the topic's own endpoint can delay it. While a breaker is open, the shards of its topic
//! that have events are in a list. One of them probes the endpoint; the others follow when it works again.

use crate::core::Core;
use crate::metrics::add;
use crate::push::{Connection, EndpointConnector, PushFailure, PushMessage, PushTarget};
use crate::queue_shard::ShardKey;
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
pub(crate) struct EndpointTable {
    core: Arc<Core>,
    connector: Arc<dyn EndpointConnector>,
    of_topics: Mutex<BTreeMap<TopicId, Arc<TopicEndpoint>>>,
}

/// The endpoint of a topic.
pub(crate) struct TopicEndpoint {
    core: Arc<Core>,
    connector: Arc<dyn EndpointConnector>,
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
    pub(crate) fn new(core: &Arc<Core>, connector: Arc<dyn EndpointConnector>) -> EndpointTable {
        EndpointTable { core: Arc::clone(core), connector, of_topics: Mutex::default() }
    }

    /// The endpoint of a topic according to this record; `None` if it has none. A new endpoint has a closed breaker.
    pub(crate) fn get(&self, stored: &StoredTopic) -> Option<Arc<TopicEndpoint>> {
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
            core: Arc::clone(&self.core),
            connector: Arc::clone(&self.connector),
            topic: topic.id,
            endpoint,
            version: AtomicU64::new(topic.version),
            connection: Mutex::default(),
            breaker: Mutex::new(Breaker::new(self.core.settings.breaker)),
            pushes: Semaphore::new(self.core.settings.pushes.max(1)),
            waiting: Mutex::default(),
            last_probe: Mutex::default(),
        });
        let before = self.of_topics.lock().insert(topic.id, Arc::clone(&made));
        if let Some(before) = before {
            self.core.schedule.schedule_checks(before.take_waiting());
        }
        Some(made)
    }

    /// The known endpoint of a topic.
    pub(crate) fn peek(&self, topic: TopicId) -> Option<Arc<TopicEndpoint>> {
        self.of_topics.lock().get(&topic).cloned()
    }

    /// Wakes all shards that wait for endpoints, because the expiry times of their events may have changed.
    pub(crate) fn wake_waiting(&self) {
        let endpoints: Vec<Arc<TopicEndpoint>> = self.of_topics.lock().values().cloned().collect();
        for endpoint in endpoints {
            self.core.schedule.schedule_checks(endpoint.take_waiting());
        }
    }

    /// The topic or its endpoint no longer exists.
    pub(crate) fn forget(&self, topic: TopicId) {
        self.of_topics.lock().remove(&topic);
    }
}

impl TopicEndpoint {
    /// The connection that shards of the topic share.
    pub(crate) fn connection(&self) -> Result<Arc<dyn Connection>, PushFailure> {
        let mut connection = self.connection.lock();
        if let Some(connection) = &*connection {
            return Ok(Arc::clone(connection));
        }
        let made = self.open(None)?;
        *connection = Some(Arc::clone(&made));
        Ok(made)
    }

    /// Opens a connection that only this queue uses.
    pub(crate) fn connection_of_queue(&self, queue: String) -> Result<Arc<dyn Connection>, PushFailure> {
        self.open(Some(queue))
    }

    fn open(&self, queue: Option<String>) -> Result<Arc<dyn Connection>, PushFailure> {
        self.connector.open(&PushTarget { endpoint: self.endpoint.clone(), topic: self.topic, queue })
    }

    /// Whether events of each queue are written in transactions of the queue.
    pub(crate) fn is_transactional(&self) -> bool {
        matches!(&self.endpoint, Endpoint::Kafka(kafka) if kafka.transactional)
    }

    /// The most events in a push.
    pub(crate) fn max_batch_size(&self) -> usize {
        match &self.endpoint {
            Endpoint::Http(http) => http.batch_size.max(1) as usize,
            Endpoint::Kafka(_) | Endpoint::Amqp(_) => self.core.settings.push_events.max(1),
        }
    }

    /// The state of its breaker.
    pub(crate) fn breaker(&self) -> BreakerState {
        self.breaker.lock().state()
    }

    /// The number of pushes that may be sent now. A probe is assumed to be sent.
    pub(crate) fn permits(&self) -> usize {
        self.breaker.lock().permits(self.core.mono_ns())
    }

    /// When its breaker permits a push again; `None` if it does so now.
    pub(crate) fn blocked_until_ns(&self) -> Option<u64> {
        let now = self.core.mono_ns();
        self.breaker.lock().next_permit_ns().filter(|until| *until > now)
    }

    /// The endpoint answered.
    pub(crate) fn succeeded(&self) {
        let was_open = {
            let mut breaker = self.breaker.lock();
            let was_open = breaker.state() != BreakerState::Closed;
            breaker.succeeded();
            was_open
        };
        if was_open {
            tracing::info!(endpoint = %self.endpoint, "notifications: the endpoint answers again");
            self.core.schedule.schedule_checks(self.take_waiting());
        }
    }

    /// The endpoint failed.
    pub(crate) fn failed(&self, detail: &str) {
        let (now, random) = (self.core.mono_ns(), self.core.random());
        let mut breaker = self.breaker.lock();
        let was_closed = breaker.state() == BreakerState::Closed;
        breaker.failed(now, random);
        if was_closed && breaker.state() == BreakerState::Open {
            add(&self.core.metrics.breaker_opened, 1);
            tracing::warn!(endpoint = %self.endpoint, detail, "notifications: the endpoint fails and is left alone for a while");
        }
    }

    /// Records that a shard has events and waits for the endpoint.
    pub(crate) fn add_waiting(&self, key: ShardKey) {
        self.waiting.lock().insert(key);
        // The breaker may permit a push by now.
        match self.blocked_until_ns() {
            Some(until) => self.core.schedule.probe_at(self.topic, until),
            None => self.core.schedule.probe_at(self.topic, self.core.mono_ns()),
        }
    }

    /// The shard that may probe the endpoint now, if a probe is due. Shards take turns, so that a shard with events that
    /// the endpoint can't accept does not decide for all.
    pub(crate) fn next_probe(&self) -> Option<ShardKey> {
        if let Some(until) = self.blocked_until_ns() {
            self.core.schedule.probe_at(self.topic, until);
            return None;
        }
        if self.breaker() == BreakerState::Closed {
            self.core.schedule.schedule_checks(self.take_waiting());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::CheckTarget;
    use crate::settings::Settings;
    use crate::testing::{self, TestEndpoint};

    #[test]
    fn shards_wait_until_the_endpoint_answers_a_probe() {
        testing::run(Settings::default(), |core| async move {
            let stored = testing::create_topic(&core, &[2], &[]).await;
            let endpoints = EndpointTable::new(&core, TestEndpoint::default().connector());
            let endpoint = endpoints.get(&stored).unwrap();
            assert!(Arc::ptr_eq(&endpoint, &endpoints.get(&stored).unwrap()));
            (0..core.settings.breaker.failures).for_each(|_| endpoint.failed("no answer"));
            assert_eq!((endpoint.breaker(), endpoint.permits()), (BreakerState::Open, 0));
            assert_eq!(core.metrics.breaker_opened.load(Ordering::Relaxed), 1);
            let shards = [0, 1].map(|shard| testing::current_shard(&stored, shard));
            shards.iter().for_each(|key| endpoint.add_waiting(*key));
            let probe_at_ns = endpoint.blocked_until_ns().unwrap();
            assert!(endpoint.next_probe().is_none());
            assert_eq!(core.schedule.next_at_ns(), Some(probe_at_ns));
            core.env.sleep(std::time::Duration::from_nanos(probe_at_ns - core.mono_ns())).await;
            assert_eq!(core.schedule.take_due(core.mono_ns()), [CheckTarget::Endpoint(endpoint.topic)]);
            assert_eq!((endpoint.next_probe(), endpoint.waiting()), (Some(shards[0]), 1));
            endpoint.succeeded();
            assert_eq!((endpoint.breaker(), endpoint.waiting()), (BreakerState::Closed, 0));
            assert_eq!(core.schedule.take_due(core.mono_ns()), [CheckTarget::Shard(shards[1])]);
        });
    }
}
