//! The [`Core`] of a gateway over a cluster in memory, for tests of single parts. The cluster has no faults, and time is virtual.

use crate::core::Core;
use crate::outbox::event_id;
use crate::outboxes::{BucketOutbox, Outboxes};
use crate::push::{Connection, EndpointConnector, PushFailure, PushMessage, PushTarget};
use crate::queue_shard::{ShardKey, queue_id};
use crate::rados::ObjectIo;
use crate::settings::Settings;
use crate::topic_cache::TopicCache;
use crate::topic_store::{StoredTopic, TopicRecord, TopicStore};
use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use nacre_index::key;
use nacre_index::op::{Step, Write};
use nacre_index::record::{EventSubject, OutboxRecord};
use nacre_index::seq::{HeadIncarnation, Seq};
use nacre_index::state::{OPEN, STATE};
use nacre_queues::enqueue::OutboxEvent;
use nacre_queues::layout::{self, LayoutTarget};
use nacre_queues::name::KeyHash;
use nacre_queues::op::{ObjectKey, ObjectRead};
use nacre_queues::record::Event;
use nacre_queues::shard::{self, ObjectContent};
use nacre_sim::gateway::executor::Executor;
use nacre_sim::gateway::faults::Faults;
use nacre_sim::gateway::mem_engine::MemCluster;
use nacre_sim::schedule::SECOND;
use nacre_topics::arn::TopicArn;
use nacre_topics::attributes::Attributes;
use nacre_topics::event::EventType;
use nacre_topics::notification_config::MetadataTagFilter;
use nacre_topics::pending::{PendingEvent, PendingEvents, TopicEvent};
use nacre_topics::record::{BucketInfo, RequestInfo};
use nacre_topics::topic::{Topic, TopicId};
use nacre_types::encoding;
use parking_lot::Mutex;
use std::sync::Arc;

const LOG: &str = "default.rgw.log";
const META: &str = "default.rgw.meta";
const INDEX: &str = "default.rgw.buckets.index";
/// The bucket that [`Outboxes`] finds, and the shard of its index.
pub(crate) const BUCKET: &str = "bucket";
pub(crate) const INDEX_SHARD: &str = "bucket.0";
/// The key of all objects with events.
const OBJECT: &str = "object";

/// Runs a test with the core of a gateway that has no tasks yet.
pub(crate) fn run<F>(settings: Settings, test: impl FnOnce(Arc<Core>) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let executor = Executor::new(1, Default::default());
    let cluster = MemCluster::new(&executor, 1, Faults::none());
    for pool in [LOG, META, INDEX] {
        cluster.make_pool(pool, 8);
    }
    let process = executor.start_process();
    let client = cluster.connect(process);
    let session = client.bind_session();
    let open = async move {
        let (log, meta) = (client.open_pool(LOG).await.unwrap(), client.open_pool(META).await.unwrap());
        (log, meta, client.open_pool(INDEX).await.unwrap())
    };
    let (log, meta, index) = executor.run(process, SECOND, open).expect("the pools are opened in time");
    let env = executor.env(process);
    let topics = TopicCache::new(TopicStore::new(&meta), env.clone());
    let core = Core::new(env, ObjectIo::new(&log, &index), topics, Arc::new(OneBucket), session, settings);
    executor.run(process, 600 * SECOND, test(Arc::new(core))).expect("the test ends in time");
}

/// The record of a new topic with this number of shards.
pub(crate) fn topic_record(shards: u32, attributes: &[(&str, &str)]) -> TopicRecord {
    let pairs = attributes.iter().chain(&[("push-endpoint", "http://endpoint")]);
    let pairs: Vec<_> = pairs.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let arn = TopicArn { zonegroup: "default".into(), tenant: String::new(), name: "topic".into() };
    let attributes = Attributes::from_pairs(&pairs).unwrap();
    let topic = Topic::new(TopicId::from_random([7; 16]), arn, "user", 1, shards, attributes).unwrap();
    TopicRecord::new(topic).unwrap()
}

/// Creates a persistent topic whose generations have these numbers of shards. The current one, which is the last, has its
/// objects; the others have none.
pub(crate) async fn create_topic(
    core: &Core,
    generations: &[u32],
    attributes: &[(&str, &str)],
) -> Arc<StoredTopic> {
    let attributes: Vec<_> = attributes.iter().copied().chain([("persistent", "true")]).collect();
    let mut record = topic_record(generations[0], &attributes);
    for shards in generations {
        record.layout.begin(LayoutTarget::Shards(*shards)).unwrap();
        let next = record.layout.next.unwrap();
        assert!(record.layout.commit(next.number));
    }
    let stored = core.topics.store.create(&record).await.unwrap().expect("the name is free");
    let current = record.layout.current.unwrap();
    for shard in 0..current.shards {
        let (visible, _) = objects_of(&stored, current.number, shard);
        create_shard(core, &stored, current.number, shard, &visible).await;
    }
    core.topics.put(stored)
}

/// The visible and the hidden object of a shard.
pub(crate) fn objects_of(stored: &StoredTopic, generation: u64, shard: u32) -> (ObjectKey, ObjectKey) {
    let TopicRecord { topic, layout } = &stored.record;
    let generation = layout.deliverable().find(|one| one.number == generation).unwrap();
    let id = queue_id(topic.id);
    let (visible, hidden) =
        layout::candidate_objects(&topic.arn.tenant, &topic.arn.name, &id, generation, shard);
    (visible.unwrap(), hidden)
}

/// Creates a shard in an object.
pub(crate) async fn create_shard(
    core: &Core,
    stored: &StoredTopic,
    generation: u64,
    shard: u32,
    object: &ObjectKey,
) {
    let generation = stored.record.layout.deliverable().find(|one| one.number == generation).unwrap();
    let identity = generation.identity(&queue_id(stored.record.topic.id), shard);
    core.rados.write_or_fail(shard::reserve(object, "token")).await.unwrap();
    let reply = core.rados.read(&ObjectRead::attributes(object)).await.unwrap().unwrap();
    let ObjectContent::Reserved(token) = shard::classify(object, &reply).unwrap() else {
        panic!("{object} is reserved");
    };
    core.rados.write_or_fail(shard::activate(object, &token, &identity)).await.unwrap();
}

/// The key of a shard of the topic's current generation.
pub(crate) fn current_shard(stored: &StoredTopic, shard: u32) -> ShardKey {
    let current = stored.record.layout.current.unwrap();
    ShardKey { topic: stored.record.topic.id, generation: current.number, shard }
}

fn pending_events(topic: &Topic) -> PendingEvents {
    let event = PendingEvent {
        topic_id: topic.id,
        topic: topic.arn.clone(),
        configuration: "configuration".to_owned(),
        event: EventType::ObjectCreatedPut,
        filter: MetadataTagFilter::default(),
    };
    PendingEvents {
        request: RequestInfo::default(),
        bucket: BucketInfo { name: BUCKET.to_owned(), ..BucketInfo::default() },
        candidates: vec![event],
    }
}

/// The event of a change for the topic.
pub(crate) fn topic_event(topic: &Topic, change: &str) -> TopicEvent {
    pending_events(topic).complete(change, OBJECT, &Default::default()).remove(0)
}

/// The event of a change for the topic, in the form that queues store.
pub(crate) fn outbox_event(topic: &Topic, change: &str) -> OutboxEvent {
    let event = topic_event(topic, change).event;
    OutboxEvent {
        id: event_id(change, event.ordinal).unwrap(),
        event: Event {
            key: KeyHash::new(BUCKET, OBJECT),
            time_ns: 0,
            replayed: false,
            payload: encoding::encode(&event).into(),
        },
    }
}

/// Writes the outbox record of a change, which is the change `number` of its object, into [`INDEX_SHARD`].
pub(crate) async fn write_outbox_record(core: &Core, topic: &Topic, change: &str, number: u64) {
    let seq = Seq { incarnation: HeadIncarnation { generation: 1, version: 7 }, number };
    let pending = pending_events(topic);
    let record = OutboxRecord {
        tag: change.to_owned(),
        seq,
        prepared_ns: 0,
        fixed: encoding::encode(&pending).into(),
        candidates: pending.candidates.iter().map(|one| one.configuration.clone()).collect(),
        subject: EventSubject::default(),
    };
    let entry = (key::outbox(OBJECT, seq), nacre_index::record::encode(&record));
    let open = Step::SetAttr(STATE, Bytes::from_static(OPEN.as_bytes()));
    let write = Write { guards: Vec::new(), steps: vec![open, Step::OmapSet(vec![entry])] };
    assert!(core.rados.write_index(INDEX_SHARD, write).await.unwrap().is_done());
}

/// Finds [`BUCKET`], whose index has the shard [`INDEX_SHARD`]. No other gateway runs.
struct OneBucket;

impl Outboxes for OneBucket {
    fn list(&self) -> BoxFuture<'static, nacre_engine::Result<Vec<BucketOutbox>>> {
        let found = BucketOutbox { bucket: BUCKET.to_owned(), shards: vec![INDEX_SHARD.to_owned()] };
        async move { Ok(vec![found]) }.boxed()
    }

    fn find(&self, bucket: &str) -> BoxFuture<'static, nacre_engine::Result<Option<BucketOutbox>>> {
        let is_found = bucket == BUCKET;
        let list = self.list();
        async move { Ok(list.await?.pop().filter(|_| is_found)) }.boxed()
    }

    fn open_left(&self, _bucket: &str, _shard: &str) -> BoxFuture<'static, nacre_engine::Result<()>> {
        async { Ok(()) }.boxed()
    }

    fn gateways(&self) -> BoxFuture<'static, nacre_engine::Result<Vec<u64>>> {
        async { Ok(Vec::new()) }.boxed()
    }
}

/// All endpoints.
#[derive(Clone, Default)]
pub(crate) struct TestEndpoint(Arc<Mutex<EndpointState>>);

#[derive(Default)]
struct EndpointState {
    is_unavailable: bool,
    received: Vec<String>,
}

impl TestEndpoint {
    pub(crate) fn connector(&self) -> Arc<dyn EndpointConnector> {
        Arc::new(self.clone())
    }

    pub(crate) fn set_unavailable(&self, is_unavailable: bool) {
        self.0.lock().is_unavailable = is_unavailable;
    }

    /// The changes whose events were delivered.
    pub(crate) fn received(&self) -> Vec<String> {
        self.0.lock().received.clone()
    }
}

impl EndpointConnector for TestEndpoint {
    fn open(&self, _target: &PushTarget) -> Result<Arc<dyn Connection>, PushFailure> {
        Ok(Arc::new(self.clone()))
    }
}

impl Connection for TestEndpoint {
    fn push(&self, messages: Vec<PushMessage>) -> BoxFuture<'static, Vec<Result<(), PushFailure>>> {
        let mut state = self.0.lock();
        let failure = PushFailure::Unavailable("no answer".to_owned());
        let outcome = if state.is_unavailable { Err(failure) } else { Ok(()) };
        if outcome.is_ok() {
            state.received.extend(messages.iter().map(|message| message.event.change.clone()));
        }
        let outcomes = vec![outcome; messages.len()];
        async move { outcomes }.boxed()
    }
}
