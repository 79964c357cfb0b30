//! Events of topics that are not persistent. The gateway that made a change pushes them once, while the client waits, for a bounded
//! time: an event that can't be delivered then is lost, and the log says so.

use super::{ChangeEvents, EndpointRules};
use crate::gateway::Gateway;
use crate::log_limit::LogLimit;
use futures::future::join_all;
use nacre_index::record::Subject;
use nacre_index::seq::Seq;
use nacre_notify::push::{Connection, Failure, Message, Pusher, Target};
use nacre_topics::pending::TopicEvent;
use nacre_topics::record::ObjectInfo;
use nacre_topics::topic::{Topic, TopicId};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The option that says how long an operation waits for endpoints, and what it says where it can't be read.
const TIMEOUT_OPTION: &str = "rgw_topic_push_timeout";
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an endpoint that could not be reached is not tried again, so that operations do not all wait for it.
const PAUSE: Duration = Duration::from_secs(1);
/// Topics whose connections are kept.
const KEPT: usize = 1024;
/// Messages about events that are lost, by topic.
static LOST_LOG: LogLimit = LogLimit::new(Duration::from_secs(60));

/// What pushes events to endpoints, and what says which endpoints may be connected to.
#[derive(Clone)]
pub struct Push {
    /// What endpoints may name: asked when topics are made, and by the clients at each connection.
    pub rules: EndpointRules,
    /// The clients of endpoints.
    pub pusher: Arc<dyn Pusher>,
}

impl std::fmt::Debug for Push {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Push").field("rules", &self.rules).finish_non_exhaustive()
    }
}

/// The connections of topics that are not persistent.
#[derive(Default)]
pub(crate) struct Connections {
    pusher: Option<Arc<dyn Pusher>>,
    open: Mutex<HashMap<TopicId, Arc<Open>>>,
}

/// The connection of a topic as it is since its change `version`.
struct Open {
    version: u64,
    connection: Arc<dyn Connection>,
    /// Until when its endpoint is not tried.
    paused_until: Mutex<Option<Instant>>,
}

impl Connections {
    pub(crate) fn new(push: Option<&Push>) -> Connections {
        Connections { pusher: push.map(|push| Arc::clone(&push.pusher)), open: Mutex::default() }
    }

    fn of(&self, topic: &Topic) -> Result<Arc<Open>, Failure> {
        if let Some(open) = self.open.lock().get(&topic.id).filter(|open| open.version == topic.version) {
            return Ok(Arc::clone(open));
        }
        let unusable = |reason: String| Failure::Unavailable(reason);
        let pusher =
            self.pusher.as_ref().ok_or_else(|| unusable("this process pushes nothing".to_owned()))?;
        let endpoint = topic.endpoint().map_err(|error| unusable(error.to_string()))?;
        let endpoint = endpoint.ok_or_else(|| unusable("the topic has no endpoint any more".to_owned()))?;
        let connection = pusher.open(&Target { endpoint, topic: topic.id, queue: None })?;
        let opened = Arc::new(Open { version: topic.version, connection, paused_until: Mutex::new(None) });
        let mut open = self.open.lock();
        if open.len() >= KEPT {
            open.clear();
        }
        open.insert(topic.id, Arc::clone(&opened));
        Ok(opened)
    }
}

impl Open {
    fn is_paused(&self) -> bool {
        self.paused_until.lock().is_some_and(|until| Instant::now() < until)
    }

    fn note(&self, failure: Option<&Failure>) {
        let pause = matches!(failure, Some(Failure::Unavailable(_)));
        *self.paused_until.lock() = pause.then(|| Instant::now() + PAUSE);
    }
}

/// The version of an object that a change was about, as events describe it.
fn object_of(seq: Seq, subject: &Subject) -> ObjectInfo {
    let attributes = subject.attributes.clone().unwrap_or_default();
    ObjectInfo {
        size: subject.size,
        etag: subject.etag.clone(),
        version_id: subject.version_id.clone(),
        sequencer: seq.to_string(),
        metadata: attributes.metadata,
        tags: attributes.tags,
    }
}

impl Gateway {
    /// Pushes the events of topics that are not persistent, after the change is committed. Returns when the fate of each is known, at
    /// the latest after `rgw_topic_push_timeout`.
    pub(crate) async fn push_immediately(
        &self,
        events: ChangeEvents,
        key: &str,
        tag: &str,
        seq: Seq,
        subject: &Subject,
    ) {
        let Some(pending) = &events.immediate else { return };
        // Topics do not wait for each other; events of one topic go in their order.
        let mut by_topic: Vec<Vec<TopicEvent>> = Vec::new();
        for event in pending.complete(tag, key, &object_of(seq, subject)) {
            match by_topic.iter_mut().find(|events| events[0].topic_id == event.topic_id) {
                Some(events) => events.push(event),
                None => by_topic.push(vec![event]),
            }
        }
        join_all(by_topic.into_iter().map(|events| self.push_to_topic(events))).await;
    }

    async fn push_to_topic(&self, events: Vec<TopicEvent>) {
        let Some(first) = events.first() else { return };
        let (id, arn, count) = (first.topic_id, first.topic.clone(), events.len());
        let lost = |reason: &str| {
            if let Some(omitted) = LOST_LOG.pass(&arn.to_string(), Instant::now()) {
                tracing::warn!(topic = %arn, count, reason, omitted, "rgw: events of a topic that is not persistent are lost");
            }
        };
        let topic = match self.known_topic(&arn).await {
            Ok(Some(topic)) if topic.id == id => topic,
            // It was deleted since the change began, and its events with it.
            Ok(_) => return,
            Err(error) => return lost(&error.to_string()),
        };
        let open = match self.connections.of(&topic) {
            Ok(open) if open.is_paused() => return lost("the endpoint could not be reached a moment ago"),
            Ok(open) => open,
            Err(failure) => return lost(&failure.to_string()),
        };
        let opaque_data: Arc<str> = topic.attributes.opaque_data.as_str().into();
        let message = |found: TopicEvent| Message {
            event: Arc::new(found.event),
            opaque_data: Arc::clone(&opaque_data),
            is_replayed: false,
        };
        let pushing = open.connection.push(events.into_iter().map(message).collect());
        let failed = match tokio::time::timeout(self.push_timeout(), pushing).await {
            Ok(outcomes) => outcomes.into_iter().find_map(Result::err),
            Err(_) => Some(Failure::Unavailable("the endpoint has not answered in time".to_owned())),
        };
        open.note(failed.as_ref());
        if let Some(failure) = failed {
            lost(&failure.to_string());
        }
    }

    fn push_timeout(&self) -> Duration {
        let seconds = self.cluster.option(TIMEOUT_OPTION).and_then(|text| text.parse::<f64>().ok());
        seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or(DEFAULT_TIMEOUT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::future::BoxFuture;
    use nacre_topics::attributes::Attributes;
    use nacre_topics::endpoint::Endpoint;

    /// Counts the connections that it opens.
    #[derive(Default)]
    struct Counting(Mutex<Vec<Endpoint>>);

    impl Pusher for Counting {
        fn open(&self, target: &Target) -> Result<Arc<dyn Connection>, Failure> {
            self.0.lock().push(target.endpoint.clone());
            Ok(Arc::new(Accepting))
        }
    }

    struct Accepting;

    impl Connection for Accepting {
        fn push(&self, messages: Vec<Message>) -> BoxFuture<'static, Vec<Result<(), Failure>>> {
            Box::pin(async move { messages.iter().map(|_| Ok(())).collect() })
        }
    }

    fn topic(endpoint: &str) -> Topic {
        let pairs = [("push-endpoint".to_owned(), endpoint.to_owned())];
        let attributes = Attributes::from_pairs(&pairs).unwrap();
        let arn = "arn:aws:sns:default::t".parse().unwrap();
        Topic::new(TopicId::from_random([7; 16]), arn, "alice", 1, 11, attributes).unwrap()
    }

    #[test]
    fn a_changed_endpoint_has_a_connection_of_its_own() {
        let pusher = Arc::new(Counting::default());
        let connections =
            Connections { pusher: Some(Arc::clone(&pusher) as Arc<dyn Pusher>), open: Mutex::default() };
        let mut topic = topic("http://one");
        connections.of(&topic).unwrap();
        connections.of(&topic).unwrap();
        assert_eq!(pusher.0.lock().len(), 1);
        topic.set("push-endpoint", "http://two").unwrap();
        connections.of(&topic).unwrap();
        assert_eq!(pusher.0.lock().len(), 2);
        topic.set("push-endpoint", "").unwrap();
        assert!(matches!(connections.of(&topic), Err(Failure::Unavailable(_))));
    }

    #[test]
    fn an_endpoint_that_can_not_be_reached_is_left_alone_for_a_while() {
        let connections = Connections {
            pusher: Some(Arc::new(Counting::default()) as Arc<dyn Pusher>),
            open: Mutex::default(),
        };
        let open = connections.of(&topic("http://one")).unwrap();
        open.note(Some(&Failure::Refused("bad event".into())));
        assert!(!open.is_paused(), "the endpoint works");
        open.note(Some(&Failure::Unavailable("refused".into())));
        assert!(open.is_paused());
        open.note(None);
        assert!(!open.is_paused());
    }
}
