//! A cluster, gateways that come and go, buckets whose changes have events, and endpoints.

use crate::check::{Check, Which};
use crate::engine::{Mutation, mutated};
use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use nacre_engine::{Cluster, IoCtx};
use nacre_index::key;
use nacre_index::record::{OutboxRecord, Subject};
use nacre_index::seq::{Incarnation, Seq};
use nacre_index::state::{OPEN, STATE};
use nacre_notify::push::{Connection, Failure, Message, Pusher, Target};
use nacre_notify::topic_store::TopicStore;
use nacre_notify::{BucketOutbox, Notifier, NotifierConfig, Outboxes, Settings};
use nacre_queues::name::DEAD;
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
use nacre_topics::attributes::Attributes;
use nacre_topics::config::AttributeFilter;
use nacre_topics::event::EventType;
use nacre_topics::pending::{PendingEvent, PendingEvents};
use nacre_topics::record::{BucketInfo, Event, RequestInfo};
use nacre_topics::topic::{Topic, TopicId};
use nacre_types::encoding;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

const LOG: &str = "default.rgw.log";
const META: &str = "default.rgw.meta";
const INDEX: &str = "default.rgw.buckets.index";
/// Buckets, with two index shards each.
pub(crate) const BUCKETS: u64 = 2;
const SHARDS: u64 = 2;
/// How long a gateway counts as running after its end.
const LEASE: Nanos = 3 * SECOND;
/// The longest that a future of a test takes.
const LIMIT: Nanos = 600 * SECOND;

/// What gateways share beside the cluster.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) check: Mutex<Check>,
    running: Mutex<Vec<u64>>,
    /// Topics whose endpoints do not answer.
    pub(crate) dead: Mutex<BTreeSet<String>>,
    /// Changes whose events endpoints refuse.
    pub(crate) refused: Mutex<BTreeSet<String>>,
}

fn shard_name(bucket: u64, shard: u64) -> String {
    format!(".dir.bucket{bucket}.{shard}")
}

fn bucket(number: u64) -> BucketOutbox {
    BucketOutbox {
        bucket: format!("bucket{number}"),
        shards: (0..SHARDS).map(|shard| shard_name(number, shard)).collect(),
    }
}

struct Buckets(Arc<Shared>);

impl Outboxes for Buckets {
    fn list(&self) -> BoxFuture<'static, nacre_engine::Result<Vec<BucketOutbox>>> {
        async { Ok((0..BUCKETS).map(bucket).collect()) }.boxed()
    }

    fn find(&self, name: &str) -> BoxFuture<'static, nacre_engine::Result<Option<BucketOutbox>>> {
        let found = (0..BUCKETS).map(bucket).find(|found| found.bucket == name);
        async { Ok(found) }.boxed()
    }

    fn gateways(&self) -> BoxFuture<'static, nacre_engine::Result<Vec<u64>>> {
        let running = self.0.running.lock().clone();
        async { Ok(running) }.boxed()
    }
}

/// A consumer for each topic. A push takes a while until it arrives, and a while until its sender hears of it.
struct Consumers {
    shared: Arc<Shared>,
    env: Env,
    mutation: Mutation,
}

impl Pusher for Consumers {
    fn open(&self, target: &Target) -> Result<Arc<dyn Connection>, Failure> {
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
    async fn take(self, messages: Vec<Message>) -> Vec<Result<(), Failure>> {
        self.env.sleep(self.env.jitter(Duration::from_millis(5))).await;
        let outcome = |message: &Message| {
            if self.shared.dead.lock().contains(&self.topic) {
                return Err(Failure::Unavailable("no answer".to_owned()));
            }
            if !message.is_replayed && self.shared.refused.lock().contains(&message.event.change) {
                return Err(Failure::Refused("no".to_owned()));
            }
            self.shared.check.lock().arrived(&self.topic, &message.event, message.is_replayed);
            Ok(())
        };
        let outcomes: Vec<_> = messages.iter().map(outcome).collect();
        self.shared.check.lock().scenes.failures += outcomes.iter().filter(|one| one.is_err()).count() as u64;
        self.env.sleep(self.env.jitter(Duration::from_millis(5))).await;
        outcomes
    }
}

impl Connection for Consumer {
    fn push(&self, messages: Vec<Message>) -> BoxFuture<'static, Vec<Result<(), Failure>>> {
        let consumer = self.clone();
        if self.mutation == Mutation::TrimBeforeAck {
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
    /// Gateways that ended, and when others learn of it.
    ended: Vec<(u64, Nanos)>,
    mutation: Mutation,
    /// Writes what finishes of changes write.
    client: (ProcessId, IoCtx),
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
        max_retries: 3,
        backoff,
        breaker: BreakerPolicy { failures: 3, backoff },
        ..Settings::default()
    }
}

impl World {
    pub(crate) fn new(seed: u64, mutation: Mutation, faults: Faults, gateways: usize) -> World {
        let executor = Executor::new(seed, Default::default());
        let cluster = MemCluster::new(&executor, seed, faults);
        for pool in [LOG, META, INDEX] {
            cluster.make_pool(pool, 8);
        }
        let shared = Arc::new(Shared::default());
        let observed = Arc::clone(&shared);
        cluster.observe(move |seen| observed.check.lock().observed(seen));
        let process = executor.start_process();
        let connected = cluster.connect(process);
        let index = run(&executor, process, async move { connected.open_pool(INDEX).await }).unwrap();
        let mut world = World {
            executor,
            cluster,
            shared,
            random: Random::new(seed, Stream::Scenario),
            gateways: Vec::new(),
            topics: Vec::new(),
            refused_rate: 60,
            ended: Vec::new(),
            mutation,
            client: (process, index),
            numbers: BTreeMap::new(),
            changes: 0,
        };
        for (bucket, shard) in (0..BUCKETS).flat_map(|bucket| (0..SHARDS).map(move |shard| (bucket, shard))) {
            let write = world.client.1.set_xattr(&shard_name(bucket, shard), STATE, OPEN);
            run(&world.executor, process, write).unwrap();
        }
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
        let cluster: Cluster = mutated(&self.cluster.connect(process), self.mutation);
        let opening = cluster.clone();
        let open = async move {
            Ok::<_, nacre_engine::Error>((
                opening.open_pool(LOG).await?,
                opening.open_pool(META).await?,
                opening.open_pool(INDEX).await?,
            ))
        };
        let (log, meta, index) = self.run(process, open).unwrap();
        let env = self.executor.env(process);
        let session = cluster.bind_session();
        let consumers =
            Consumers { shared: Arc::clone(&self.shared), env: env.clone(), mutation: self.mutation };
        let notifier = Notifier::start(NotifierConfig {
            env,
            log,
            index,
            topics: TopicStore::new(&meta),
            pusher: Arc::new(consumers),
            outboxes: Arc::new(Buckets(Arc::clone(&self.shared))),
            session,
            settings: settings(),
        });
        self.shared.running.lock().push(session);
        self.gateways.push(Gateway { process, session, notifier });
    }

    /// Ends a gateway where it is, and starts another one.
    pub(crate) fn crash(&mut self, at: usize) {
        let gateway = self.gateways.remove(at);
        self.executor.crash(gateway.process);
        self.ended.push((gateway.session, self.executor.now() + LEASE));
        self.shared.check.lock().scenes.crashes += 1;
        self.start_gateway();
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
        self.topics.push(topic);
    }

    /// A change of an object is finished: its event for each topic is in the outbox. One gateway knows, perhaps.
    pub(crate) fn produce(&mut self, keys: u64) {
        let (bucket, key_number) = (self.random.range(0, BUCKETS), self.random.range(0, keys));
        let number = self.numbers.entry((bucket, key_number)).or_default();
        *number += 1;
        let seq = Seq { incarnation: Incarnation { generation: 1, version: 7 }, number: *number };
        self.changes += 1;
        let (tag, key_name) = (format!("{:032x}", self.changes), format!("key{key_number}"));
        let wall_ns = self.executor.scheduler().wall_ns();
        let candidate = |(at, topic): (usize, &Topic)| PendingEvent {
            topic_id: topic.id,
            topic: topic.arn.clone(),
            configuration: format!("c{at}"),
            event: EventType::ObjectCreatedPut,
            filter: AttributeFilter::default(),
        };
        let pending = PendingEvents {
            request: RequestInfo { time_ns: wall_ns, ..RequestInfo::default() },
            bucket: BucketInfo { name: format!("b{bucket}"), ..BucketInfo::default() },
            candidates: self.topics.iter().enumerate().map(candidate).collect(),
        };
        for event in pending.complete(&tag, &key_name, &Default::default()) {
            let which = (event.topic_id.to_string(), event.event.id());
            self.shared.check.lock().produced.insert(which);
        }
        if self.random.chance(self.refused_rate) {
            self.shared.refused.lock().insert(tag.clone());
        }
        let outbox = OutboxRecord {
            tag,
            seq,
            begun_ns: wall_ns,
            fixed: encoding::encode(&pending).into(),
            candidates: pending.candidates.iter().map(|one| one.configuration.clone()).collect(),
            subject: Subject::default(),
        };
        let entry = (key::outbox(&key_name, seq), nacre_index::record::encode(&outbox));
        let shard = shard_name(bucket, key_number % SHARDS);
        let write = self.client.1.omap_set(&shard, vec![entry]);
        self.run(self.client.0, write).unwrap();
        if self.random.chance(900) {
            let at = self.random.index(self.gateways.len());
            self.gateways[at].notifier.outbox_written(&format!("bucket{bucket}"), &shard);
        }
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
            let _: Result<_, _> = notifier.replay_letters(&arn, nacre_notify::Letters::All).await;
        }));
    }

    fn objects(&self, pool: &str, namespace: &str) -> Vec<(String, BTreeMap<Bytes, Bytes>)> {
        let pool = self.client.1.cluster().engine().pool_id(pool).unwrap();
        let objects = self.cluster.objects(pool).into_iter().filter(|object| object.namespace() == namespace);
        let entries = |object: nacre_types::ObjectId| {
            let omap = self.cluster.object(&object).map(|found| found.omap.clone()).unwrap_or_default();
            (object.name().to_owned(), omap)
        };
        objects.map(entries).collect()
    }

    /// The dead letters of all topics.
    pub(crate) fn letters(&self) -> BTreeSet<Which> {
        let mut letters = BTreeSet::new();
        for (topic, omap) in self.objects(LOG, DEAD) {
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
        for (shard, omap) in self.objects(INDEX, "") {
            left.extend(omap.keys().map(|key| format!("{shard} {key:?}")));
        }
        for namespace in [nacre_queues::name::QUEUES, nacre_queues::name::CLOSED] {
            for (object, omap) in self.objects(LOG, namespace) {
                let wanted = |key: &&Bytes| !key.starts_with(b"w");
                left.extend(omap.keys().filter(wanted).map(|key| format!("{namespace}/{object} {key:?}")));
                if namespace == nacre_queues::name::CLOSED {
                    left.push(format!("{namespace}/{object} exists"));
                }
            }
        }
        left.extend(
            self.objects(LOG, DEAD)
                .into_iter()
                .flat_map(|(_, omap)| omap.into_keys())
                .filter(|key| key.starts_with(b"o"))
                .map(|key| format!("letter {key:?}")),
        );
        left
    }

    /// The names of visible queue objects.
    pub(crate) fn visible(&self) -> BTreeSet<String> {
        self.objects(LOG, nacre_queues::name::QUEUES).into_iter().map(|(name, _)| name).collect()
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
            if self.left().is_empty() && self.ended.is_empty() {
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
