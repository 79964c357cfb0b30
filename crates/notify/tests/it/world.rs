//! A cluster, gateways that come and go, buckets whose changes have events, and endpoints.

use crate::bucket::{self, BUCKETS, Bucket, Buckets};
use crate::check::{Check, Which, names};
use crate::mutation::{Mutation, mutate};
use crate::s3::{Change, Request, S3};
use crate::scene::Scene;
use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use nacre_engine::IoCtx;
use nacre_index::key;
use nacre_index::record::{Event as IndexEvent, EventSubject, OutboxRecord, Pending};
use nacre_index::seq::{HeadIncarnation, Seq};
use nacre_index::state::{STATE, frozen};
use nacre_notify::push::{Connection, EndpointConnector, PushFailure, PushMessage, PushTarget};
use nacre_notify::topic_store::TopicStore;
use nacre_notify::{Notifier, NotifierConfig, Settings, TopicDefaults};
use nacre_queues::name::DEAD_LETTER_NAMESPACE;
use nacre_queues::record::{self, DeadLetter};
use nacre_queues::retry::{Backoff, BreakerPolicy};
use nacre_queues::window::WindowLimits;
use nacre_sim::gateway::executor::{Executor, ProcessId};
use nacre_sim::gateway::faults::Faults;
use nacre_sim::gateway::mem_engine::MemCluster;
use nacre_sim::random::{Random, Stream};
use nacre_sim::schedule::{MILLI, Nanos, SECOND};
use nacre_task::Env;
use nacre_topics::arn::TopicArn;
use nacre_topics::attributes::{Attributes, FullQueuePolicy};
use nacre_topics::event::EventType;
use nacre_topics::notification_config::MetadataTagFilter;
use nacre_topics::pending::{PendingEvent, PendingEvents};
use nacre_topics::record::{BucketInfo, Event, RequestInfo};
use nacre_topics::topic::{Topic, TopicId};
use nacre_types::encoding;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;

const LOG: &str = "default.rgw.log";
const META: &str = "default.rgw.meta";
const INDEX: &str = "default.rgw.buckets.index";
const DATA: &str = "default.rgw.buckets.data";
/// How long a gateway counts as running after its end.
const LEASE: Nanos = 3 * SECOND;
/// What clocks jump by, in nanoseconds.
const HOUR: i64 = 3600 * SECOND as i64;
/// The longest that a future of a test takes.
const LIMIT: Nanos = 600 * SECOND;

/// What gateways share beside the cluster.
pub(crate) struct Shared {
    pub(crate) check: Mutex<Check>,
    /// Sessions that count as running.
    pub(crate) running: Mutex<Vec<u64>>,
    /// Topics whose endpoints do not answer.
    pub(crate) dead: Mutex<BTreeSet<String>>,
    /// Changes whose events endpoints refuse.
    pub(crate) refused: Mutex<BTreeSet<String>>,
    /// Topics whose endpoints refuse nothing.
    pub(crate) patient: Mutex<BTreeSet<String>>,
    /// How often the mutation broke its rule.
    struck: AtomicU64,
    /// Whoever carries out a request has a copy.
    busy: Arc<()>,
}

impl Shared {
    pub(crate) fn new() -> Shared {
        Shared {
            check: Mutex::default(),
            running: Mutex::default(),
            dead: Mutex::default(),
            refused: Mutex::default(),
            patient: Mutex::default(),
            struck: AtomicU64::new(0),
            busy: Arc::default(),
        }
    }

    pub(crate) fn note(&self, scene: Scene, count: usize) {
        self.check.lock().scenes.note(scene, count);
    }

    /// The mutation breaks its rule.
    pub(crate) fn strike(&self) {
        self.struck.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn struck(&self) -> u64 {
        self.struck.load(Ordering::Relaxed)
    }

    fn is_busy(&self) -> bool {
        Arc::strong_count(&self.busy) > 1
    }
}

/// A consumer for each topic. A push takes a while until it arrives, and a while until its sender knows.
pub(crate) struct Consumers {
    pub(crate) shared: Arc<Shared>,
    pub(crate) env: Env,
    pub(crate) mutation: Mutation,
}

impl EndpointConnector for Consumers {
    fn open(&self, target: &PushTarget) -> Result<Arc<dyn Connection>, PushFailure> {
        Ok(Arc::new(Consumer {
            shared: Arc::clone(&self.shared),
            env: self.env.clone(),
            topic: target.topic.to_string(),
            mutation: self.mutation,
        }))
    }
}

#[derive(Clone)]
struct Consumer {
    shared: Arc<Shared>,
    env: Env,
    topic: String,
    mutation: Mutation,
}

impl Consumer {
    async fn take(self, messages: Vec<PushMessage>) -> Vec<Result<(), PushFailure>> {
        self.env.sleep(self.env.jitter(Duration::from_millis(5))).await;
        let outcome = |message: &PushMessage| {
            if self.shared.dead.lock().contains(&self.topic) {
                return Err(PushFailure::Unavailable("no answer".to_owned()));
            }
            let is_patient = message.is_replayed || self.shared.patient.lock().contains(&self.topic);
            if !is_patient && self.shared.refused.lock().contains(&message.event.change) {
                return Err(PushFailure::Refused("no".to_owned()));
            }
            self.shared.check.lock().arrived(&self.topic, &message.event, message.is_replayed);
            Ok(())
        };
        let outcomes: Vec<_> = messages.iter().map(outcome).collect();
        self.shared.note(Scene::Failure, outcomes.iter().filter(|one| one.is_err()).count());
        self.env.sleep(self.env.jitter(Duration::from_millis(5))).await;
        outcomes
    }
}

impl Connection for Consumer {
    fn push(&self, messages: Vec<PushMessage>) -> BoxFuture<'static, Vec<Result<(), PushFailure>>> {
        let consumer = self.clone();
        if self.mutation == Mutation::TrimBeforeAck {
            self.shared.strike();
            let (count, env) = (messages.len(), self.env.clone());
            drop(env.spawn(async move {
                consumer.env.sleep(Duration::from_millis(200)).await;
                consumer.take(messages).await
            }));
            return async move { vec![Ok(()); count] }.boxed();
        }
        consumer.take(messages).boxed()
    }
}

pub(crate) struct Gateway {
    pub(crate) process: ProcessId,
    pub(crate) session: u64,
    pub(crate) notifier: Arc<Notifier>,
    s3: Arc<S3>,
    /// By how much its time of day is off.
    off_ns: i64,
}

pub(crate) struct World {
    pub(crate) executor: Executor,
    pub(crate) cluster: MemCluster,
    pub(crate) shared: Arc<Shared>,
    pub(crate) random: Random,
    pub(crate) gateways: Vec<Gateway>,
    pub(crate) topics: Vec<Topic>,
    /// Of a thousand changes, those whose events endpoints refuse.
    pub(crate) refused_rate: u32,
    /// What options of all gateways say.
    pub(crate) defaults: watch::Sender<TopicDefaults>,
    /// Whether every change asks topics that may refuse.
    pub(crate) are_bounds_kept: bool,
    /// Gateways that were ended.
    pub(crate) crashes: u64,
    settings: Settings,
    /// Gateways that were started.
    started: u64,
    /// Gateways that ended, and when others learn of it.
    ended: Vec<(u64, Nanos)>,
    mutation: Mutation,
    /// Makes buckets, and outbox records without changes.
    client: ProcessId,
    index: IoCtx,
    buckets: Buckets,
    numbers: BTreeMap<(u64, u64), u64>,
    changes: u64,
}

pub(crate) fn settings() -> Settings {
    let backoff = Backoff { base_ns: SECOND / 5, max_ns: 2 * SECOND };
    Settings {
        linger: Duration::from_millis(20),
        lease: Duration::from_secs(3),
        idle: Duration::from_secs(1),
        watch: Duration::from_secs(1),
        scan: Duration::from_secs(3),
        sweep: Duration::from_secs(20),
        window: WindowLimits { window: 16, in_flight: 8, parked: 12 },
        active_shards: 4,
        turn: Duration::from_millis(500),
        pushes: 4,
        push_events: 3,
        backoff,
        breaker: BreakerPolicy { failures: 3, backoff },
        ..Settings::default()
    }
}

impl World {
    pub(crate) fn new(seed: u64, mutation: Mutation, faults: Faults, gateways: usize) -> World {
        World::with_settings(seed, mutation, faults, gateways, settings())
    }

    pub(crate) fn with_settings(
        seed: u64,
        mutation: Mutation,
        faults: Faults,
        gateways: usize,
        settings: Settings,
    ) -> World {
        let executor = Executor::new(seed, Default::default());
        let cluster = MemCluster::new(&executor, seed, faults);
        for pool in [LOG, META, INDEX] {
            cluster.make_pool(pool, 8);
        }
        let shared = Arc::new(Shared::new());
        shared.check.lock().data = Some(cluster.make_pool(DATA, 8));
        let (observed, scheduler) = (Arc::clone(&shared), executor.scheduler().clone());
        cluster.observe(move |seen| observed.check.lock().observed(seen, scheduler.wall_ns()));
        let client = executor.start_process();
        let connected = cluster.connect(client);
        let open = async move {
            Ok::<_, nacre_engine::Error>((
                connected.open_pool(INDEX).await?,
                connected.open_pool(META).await?,
            ))
        };
        let (index, meta) = run(&executor, client, open).unwrap();
        let buckets = Buckets::new(&meta, &index, &shared);
        let (making, into) = (buckets.clone(), index.clone());
        run(&executor, client, async move { making.make(&into).await }).unwrap();
        let mut world = World {
            executor,
            cluster,
            shared,
            random: Random::new(seed, Stream::Scenario),
            gateways: Vec::new(),
            topics: Vec::new(),
            refused_rate: 60,
            defaults: watch::Sender::new(TopicDefaults { max_retries: 3, ..TopicDefaults::default() }),
            are_bounds_kept: false,
            crashes: 0,
            settings,
            started: 0,
            ended: Vec::new(),
            mutation,
            client,
            index,
            buckets,
            numbers: BTreeMap::new(),
            changes: 0,
        };
        (0..gateways).for_each(|_| world.start_gateway());
        world
    }

    pub(crate) fn run<T: Send + 'static>(
        &self,
        process: ProcessId,
        future: impl Future<Output = T> + Send + 'static,
    ) -> T {
        run(&self.executor, process, future)
    }

    pub(crate) fn start_gateway(&mut self) {
        let process = self.executor.start_process();
        let (mutation, shared) = (self.mutation, Arc::clone(&self.shared));
        let cluster = self.cluster.connect_with(process, move |request| mutate(mutation, &shared, request));
        let opening = cluster.clone();
        let open = async move {
            Ok::<_, nacre_engine::Error>((
                opening.open_pool(LOG).await?,
                opening.open_pool(META).await?,
                opening.open_pool(INDEX).await?,
                opening.open_pool(DATA).await?,
            ))
        };
        let (log, meta, index, data) = self.run(process, open).unwrap();
        let env = self.executor.env(process);
        let session = cluster.bind_session();
        let consumers =
            Consumers { shared: Arc::clone(&self.shared), env: env.clone(), mutation: self.mutation };
        let buckets = Buckets::new(&meta, &index, &self.shared);
        let notifier = Notifier::start(NotifierConfig {
            env: env.clone(),
            log,
            index: index.clone(),
            topics: TopicStore::new(&meta),
            pusher: Arc::new(consumers),
            outboxes: Arc::new(buckets.clone()),
            session,
            settings: Settings { defaults: self.defaults.subscribe(), ..self.settings.clone() },
        });
        self.shared.running.lock().push(session);
        self.started += 1;
        self.set_bounds();
        let broken = Arc::clone(&self.shared);
        let s3 = Arc::new(S3 {
            env: env.clone(),
            cluster,
            index,
            data,
            buckets,
            session,
            notifier: Arc::clone(&notifier),
            shared: Arc::clone(&self.shared),
            mutation: self.mutation,
            // Nothing explains it: requests do not time out here, and who runs is not blocklisted.
            on_error: Arc::new(move |what, error| broken.check.lock().broken(format!("{what}: {error}"))),
            fenced: Mutex::default(),
        });
        drop(env.spawn(Arc::clone(&s3).maintain()));
        self.gateways.push(Gateway { process, session, notifier, s3, off_ns: 0 });
    }

    /// Topics that refuse are exceeded by what all gateways but one admit between two looks at the queue.
    fn set_bounds(&self) {
        for topic in &self.topics {
            if self.are_bounds_kept
                && topic.attributes.full_queue_policy() == FullQueuePolicy::Refuse
                && let Some(limit) = topic.attributes.queue_max_bytes
            {
                let allowance = self.settings.allowance_bytes.min(limit.div_ceil(4));
                let bound = limit + allowance * self.started.saturating_sub(1);
                self.shared.check.lock().bounds.insert(topic.id.to_string(), bound);
            }
        }
    }

    /// Ends a gateway where it is, and starts another one.
    pub(crate) fn crash(&mut self, at: usize) {
        let gateway = self.gateways.remove(at);
        self.executor.crash(gateway.process);
        self.ended.push((gateway.session, self.executor.now() + LEASE));
        self.shared.note(Scene::Crash, 1);
        self.crashes += 1;
        self.start_gateway();
    }

    /// The time of day of a gateway jumps by an hour, or back.
    pub(crate) fn jump(&mut self, at: usize, forward: bool) {
        let gateway = &mut self.gateways[at];
        let by = match gateway.off_ns {
            0 if forward => HOUR,
            0 => -HOUR,
            off => -off,
        };
        gateway.off_ns += by;
        self.executor.jump_wall(gateway.process, by);
        self.shared.note(Scene::Jump, 1);
    }

    /// What time brings: others learn that a gateway has ended.
    pub(crate) fn pass(&mut self, wait: Nanos) {
        self.executor.run_for(wait);
        let now = self.executor.now();
        let due: Vec<u64> =
            self.ended.iter().filter(|(_, at)| *at <= now).map(|(session, _)| *session).collect();
        self.ended.retain(|(_, at)| *at > now);
        for session in due {
            self.shared.running.lock().retain(|running| *running != session);
            self.gateways.iter().for_each(|gateway| gateway.notifier.gateway_ended(session));
        }
    }

    pub(crate) fn make_topic(&mut self, name: &str, shards: u32) {
        self.make_topic_with(name, shards, &[("persistent", "true")]);
    }

    pub(crate) fn make_topic_with(&mut self, name: &str, shards: u32, more: &[(&str, &str)]) {
        let mut pairs = vec![("push-endpoint", "http://sink")];
        pairs.extend(more);
        let pairs: Vec<_> =
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let attributes = Attributes::from_pairs(&pairs).unwrap();
        let arn = TopicArn { zonegroup: "default".into(), tenant: String::new(), name: name.to_owned() };
        let mut id = [0; 16];
        self.random.fill(&mut id);
        let topic = Topic::new(TopicId::from_random(id), arn, "u", 1, shards, attributes).unwrap();
        let (notifier, made) = (Arc::clone(&self.gateways[0].notifier), topic.clone());
        let process = self.gateways[0].process;
        let made = self.run(process, async move { notifier.create_topic(made).await });
        assert!(made.unwrap().is_some(), "the name is free");
        if let Some(seconds) = topic.attributes.time_to_live.filter(|seconds| *seconds > 0) {
            let limit = u64::from(seconds) * SECOND;
            self.shared.check.lock().time_to_live.insert(topic.id.to_string(), limit);
        }
        self.topics.push(topic);
        self.set_bounds();
    }

    /// The events of a change in a bucket: one for each topic.
    fn events(&self, bucket: u64, event: EventType) -> PendingEvents {
        // The clocks of gateways that take requests are right; those of deliverers jump.
        events(&self.topics, bucket, event, self.executor.scheduler().wall_ns())
    }

    /// The tag of a change, whose events endpoints refuse, perhaps.
    fn next_tag(&mut self) -> String {
        self.changes += 1;
        let tag = format!("{:032x}", self.changes);
        if self.random.chance(self.refused_rate) {
            self.shared.refused.lock().insert(tag.clone());
        }
        tag
    }

    /// A client asks a gateway to change an object, and does not wait for it.
    pub(crate) fn change(&mut self, keys: u64) {
        let (bucket, key) = (self.random.range(0, BUCKETS), self.random.range(0, keys));
        let (request, event) = match self.random.range(0, 10) {
            0..6 => (Request::Put, EventType::ObjectCreatedPut),
            6 => (Request::PutIfAbsent, EventType::ObjectCreatedPut),
            _ => (Request::Delete, EventType::ObjectRemovedDelete),
        };
        let (tag, events) = (self.next_tag(), self.events(bucket, event));
        let change = Change { request, bucket: bucket::id(bucket), key: format!("key{key}"), tag, events };
        let at = self.random.index(self.gateways.len());
        let (s3, busy) = (Arc::clone(&self.gateways[at].s3), Arc::clone(&self.shared.busy));
        drop(self.executor.env(self.gateways[at].process).spawn(async move {
            s3.carry_out(&change).await;
            drop(busy);
        }));
    }

    /// A change of an object is prepared, and never finished.
    pub(crate) fn prepare(&mut self) {
        self.changes += 1;
        let pending = self.events(0, EventType::ObjectCreatedPut);
        let event = IndexEvent {
            fixed: encoding::encode(&pending).into(),
            candidates: pending.candidates.iter().map(|one| one.configuration.clone()).collect(),
            subject: EventSubject::default(),
        };
        let session = self.gateways[0].session.to_string();
        let change = Pending { session, event: Some(event), ..Pending::default() };
        let name = key::pending("key", &format!("{:032x}", self.changes));
        let entry = (name, nacre_index::record::encode(&change));
        let (buckets, id) = (self.buckets.clone(), bucket::id(0));
        let shard = self.run(self.client, async move { buckets.get(&id).await }).unwrap().shard_name(0);
        let write = self.index.omap_set(&shard, vec![entry]);
        self.run(self.client, write).unwrap();
    }

    /// A change of an object is finished: its event for each topic is in the outbox. One gateway knows, perhaps.
    pub(crate) fn produce(&mut self, keys: u64) {
        let (bucket, key_number) = (self.random.range(0, BUCKETS), self.random.range(0, keys));
        let number = self.numbers.entry((bucket, key_number)).or_default();
        *number += 1;
        let seq = Seq { incarnation: HeadIncarnation { generation: 1, version: 7 }, number: *number };
        let (tag, key_name) = (self.next_tag(), format!("key{key_number}"));
        let pending = self.events(bucket, EventType::ObjectCreatedPut);
        let events = names(&pending.complete(&tag, &key_name, &Default::default()));
        self.shared.check.lock().produced.extend(events);
        let outbox = OutboxRecord {
            tag,
            seq,
            prepared_ns: pending.request.time_ns,
            fixed: encoding::encode(&pending).into(),
            candidates: pending.candidates.iter().map(|one| one.configuration.clone()).collect(),
            subject: EventSubject::default(),
        };
        let entry = (key::outbox(&key_name, seq), nacre_index::record::encode(&outbox));
        let shard = self.bucket(bucket).shard_of(&key_name);
        let write = self.index.omap_set(&shard, vec![entry]);
        self.run(self.client, write).unwrap();
        if self.random.chance(900) {
            let at = self.random.index(self.gateways.len());
            self.gateways[at].notifier.outbox_written(
                &bucket::id(bucket),
                &shard,
                std::slice::from_ref(&key_name),
            );
        }
    }

    /// The first gateway looks at the outboxes of all buckets.
    pub(crate) fn tell_of_outboxes(&self) {
        for bucket in (0..BUCKETS).map(|number| self.bucket(number)) {
            for shard in bucket.shard_names() {
                self.gateways[0].notifier.outbox_written(&bucket.id, &shard, &[]);
            }
        }
    }

    /// A bucket as its record says.
    fn bucket(&self, number: u64) -> Bucket {
        let object = self.buckets.records.object(&bucket::id(number)).unwrap();
        bucket::record_of(&self.cluster.object(&object).unwrap())
    }

    /// The index of a bucket shall have so many shards. A gateway moves it in the background, and may end with it.
    pub(crate) fn reshard_bucket(&mut self, at: usize, bucket: u64, shards: u32) {
        let s3 = Arc::clone(&self.gateways[at].s3);
        drop(self.executor.env(self.gateways[at].process).spawn(async move {
            if let Err(error) = s3.ask_reshard(&bucket::id(bucket), shards).await {
                s3.shared.check.lock().broken(format!("a reshard fails: {error}"));
            }
        }));
    }

    /// Something is done by a gateway in the background, and may end with it.
    pub(crate) fn reshard(&mut self, topic: usize, shards: u32) {
        let at = self.random.index(self.gateways.len());
        let (notifier, arn) = (Arc::clone(&self.gateways[at].notifier), self.topics[topic].arn.clone());
        drop(self.executor.env(self.gateways[at].process).spawn(async move {
            let _: Result<_, _> = notifier.reshard_topic(&arn, shards).await;
        }));
    }

    pub(crate) fn replay(&mut self, topic: usize) {
        let at = self.random.index(self.gateways.len());
        let (notifier, arn) = (Arc::clone(&self.gateways[at].notifier), self.topics[topic].arn.clone());
        drop(self.executor.env(self.gateways[at].process).spawn(async move {
            let _: Result<_, _> = notifier.replay_letters(&arn, nacre_notify::LetterSelection::All).await;
        }));
    }

    fn objects(&self, pool: &str, namespace: &str) -> Vec<(String, BTreeMap<Bytes, Bytes>)> {
        let pool = self.index.cluster().engine().pool_id(pool).unwrap();
        let objects = self.cluster.objects(pool).into_iter().filter(|object| object.namespace() == namespace);
        let entries = |object: nacre_types::ObjectId| {
            let found = self.cluster.object(&object);
            let entries = found.iter().flat_map(|found| found.omap.iter());
            (object.name().to_owned(), entries.map(|(key, value)| (key.clone(), value.clone())).collect())
        };
        objects.map(entries).collect()
    }

    /// The dead letters of all topics.
    pub(crate) fn letters(&self) -> BTreeSet<Which> {
        let mut letters = BTreeSet::new();
        for (topic, omap) in self.objects(LOG, DEAD_LETTER_NAMESPACE) {
            for (_, value) in omap.iter().filter(|(key, _)| key.starts_with(b"l")) {
                let letter: DeadLetter = record::decode(&"letter", value).unwrap();
                let event: Event = encoding::decode(&letter.event.payload).unwrap();
                letters.insert((topic.clone(), event.id()));
            }
        }
        letters
    }

    /// Outbox records, and events of queues, that are left.
    pub(crate) fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        let unfinished = [
            key::IndexRecordKind::Pending,
            key::IndexRecordKind::Slot,
            key::IndexRecordKind::Outbox,
            key::IndexRecordKind::Tidy,
        ];
        let is_left = |key: &&Bytes| key::parse(key).is_some_and(|key| unfinished.contains(&key.kind));
        for bucket in (0..BUCKETS).map(|number| self.bucket(number)) {
            if !bucket.is_at_rest() {
                left.push(format!("{bucket:?}"));
            }
            for shard in bucket.shard_names() {
                let object = self.index.object(&shard).unwrap();
                let Some(object) = self.cluster.object(&object) else { continue };
                left.extend(object.omap.keys().filter(is_left).map(|key| format!("{shard} {key:?}")));
            }
        }
        for namespace in [nacre_queues::name::QUEUE_NAMESPACE, nacre_queues::name::CLOSED_NAMESPACE] {
            for (object, omap) in self.objects(LOG, namespace) {
                let wanted = |key: &&Bytes| !key.starts_with(b"w");
                left.extend(omap.keys().filter(wanted).map(|key| format!("{namespace}/{object} {key:?}")));
                if namespace == nacre_queues::name::CLOSED_NAMESPACE {
                    left.push(format!("{namespace}/{object} exists"));
                }
            }
        }
        left.extend(
            self.objects(LOG, DEAD_LETTER_NAMESPACE)
                .into_iter()
                .flat_map(|(_, omap)| omap.into_keys())
                .filter(|key| key.starts_with(b"o"))
                .map(|key| format!("letter {key:?}")),
        );
        left
    }

    /// How many spill segments there are.
    pub(crate) fn segments(&self) -> usize {
        let pool = self.index.cluster().engine().pool_id(LOG).unwrap();
        let objects = self.cluster.objects(pool).into_iter();
        objects.filter(|object| object.namespace() == nacre_queues::name::SPILL_NAMESPACE).count()
    }

    /// The pool of queues.
    pub(crate) fn log_pool(&self) -> IoCtx {
        let cluster = self.index.cluster();
        self.run(self.client, async move { cluster.open_pool(LOG).await }).unwrap()
    }

    /// Freezes the index of a bucket for an attempt at a reshard that the bucket's record does not name.
    pub(crate) fn freeze_index(&self, number: u64) {
        let (index, bucket) = (self.index.clone(), self.bucket(number));
        let freeze = async move {
            for shard in bucket.shard_names() {
                index.set_xattr(&shard, STATE, frozen("gone")).await?;
            }
            Ok::<_, nacre_engine::Error>(())
        };
        self.run(self.client, freeze).unwrap();
    }

    /// The process that writes for clients.
    pub(crate) fn client(&self) -> ProcessId {
        self.client
    }

    /// The names of visible queue objects.
    pub(crate) fn visible(&self) -> BTreeSet<String> {
        self.objects(LOG, nacre_queues::name::QUEUE_NAMESPACE).into_iter().map(|(name, _)| name).collect()
    }

    /// No more trouble: everything must be delivered or a dead letter within the time allowed.
    pub(crate) fn calm_down(&mut self, limit: Nanos) -> Result<(), String> {
        self.cluster.set_faults(Faults::none());
        self.shared.dead.lock().clear();
        let end = self.executor.now() + limit;
        while self.executor.now() < end {
            self.pass(500 * MILLI);
            if let Some(broken) = self.shared.check.lock().broken.clone() {
                return Err(broken);
            }
            if !self.shared.is_busy() && self.ended.is_empty() && self.left().is_empty() {
                return Ok(());
            }
        }
        Err(format!("it does not drain: {:?}", self.left()))
    }
}

fn run<T: Send + 'static>(
    executor: &Executor,
    process: ProcessId,
    future: impl Future<Output = T> + Send + 'static,
) -> T {
    executor.run(process, LIMIT, future).expect("the future completes")
}

/// The events of a change in a bucket that begins at `time_ns`: one for each topic.
pub(crate) fn events(topics: &[Topic], bucket: u64, event: EventType, time_ns: u64) -> PendingEvents {
    let candidate = |(at, topic): (usize, &Topic)| PendingEvent {
        topic_id: topic.id,
        topic: topic.arn.clone(),
        configuration: format!("c{at}"),
        event,
        filter: MetadataTagFilter::default(),
    };
    PendingEvents {
        request: RequestInfo { time_ns, ..RequestInfo::default() },
        bucket: BucketInfo { name: format!("b{bucket}"), ..BucketInfo::default() },
        candidates: topics.iter().enumerate().map(candidate).collect(),
    }
}
