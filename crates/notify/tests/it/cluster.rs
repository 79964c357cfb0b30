//! Gateways on whole simulated clusters: what befalls OSDs, disks, the network and the map authority befalls their requests.
//!
//! The gateways are those of the other histories. Operations can't be observed where they are carried out, for one that was may be
//! undone before it is durable; so what is judged is what gateways and consumers are told, and what is there at the end.
//!
//! Nothing is resharded: the lock on that lasts by an OSD's time of day, and those of simulated OSDs differ by minutes.

mod heads;

use crate::bucket::{BUCKETS, Bucket, Buckets, id};
use crate::check::Which;
use crate::mutation::{Mutation, mutate};
use crate::s3::{Change, OBJECT, Request, S3, head_name};
use crate::world::{Consumers, Shared, events, settings};
use heads::Heads;
use nacre_engine::engine::ObjectRequest;
use nacre_engine::{Error, IoCtx, Result};
use nacre_index::key::{self, IndexRecordKind, position};
use nacre_index::record::{self as index_record, Entry};
use nacre_notify::topic_store::TopicStore;
use nacre_notify::{Notifier, NotifierConfig, Settings, TopicDefaults};
use nacre_queues::name::{CLOSED_NAMESPACE, DEAD_LETTER_NAMESPACE, QUEUE_NAMESPACE};
use nacre_queues::record::{self, DeadLetter};
use nacre_sim::gateway::executor::Scheduler;
use nacre_sim::history::GuaranteeViolation;
use nacre_sim::program::{ProcessContext, Program};
use nacre_sim::random::{Random, Stream};
use nacre_sim::scenario::profile::Profile;
use nacre_sim::scenario::{Fault, Scenario};
use nacre_sim::schedule::{Nanos, SECOND};
use nacre_sim::{Options, run_program};
use nacre_task::{BoxedFuture, Env};
use nacre_topics::arn::TopicArn;
use nacre_topics::attributes::Attributes;
use nacre_topics::event::EventType;
use nacre_topics::record::Event;
use nacre_topics::topic::{Topic, TopicId};
use nacre_types::encoding;
use nacre_types::errno::Errno;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// The pool of everything.
const POOL: &str = "pool1";
/// How long a gateway counts as running after its end.
const LEASE: Nanos = 3 * SECOND;
/// Between two looks at something that others do.
const LOOK: Duration = Duration::from_millis(100);
/// Between two looks whether everything is drained.
const DRAINED: Duration = Duration::from_secs(2);
/// Requests that one gateway carries out at a time.
const TASKS: u64 = 3;
/// Clusters among which one must notice a mutation.
const MUTATED: u64 = 40;
/// Records that are read at a time.
const PAGE: u64 = 1000;

/// What gateways share, and what outlives them.
struct Room {
    shared: Arc<Shared>,
    heads: Mutex<Heads>,
    /// Buckets and topics are there.
    made: AtomicBool,
    finishing: AtomicBool,
    topics: Vec<Topic>,
    keys: u64,
    think: Duration,
    changes: AtomicU64,
    /// Sessions of the gateways at their places.
    sessions: Mutex<BTreeMap<usize, u64>>,
    /// Sessions of gateways that ended, and when the others learn of it.
    ended: Mutex<BTreeMap<u64, Nanos>>,
    scheduler: Mutex<Option<Scheduler>>,
    defaults: watch::Sender<TopicDefaults>,
    /// Sessions of gateways that carry out requests.
    working: Mutex<BTreeSet<u64>>,
    /// What was not drained at the last look.
    left: Mutex<Vec<String>>,
}

struct Gateways {
    room: Arc<Room>,
    mutation: Mutation,
}

impl Gateways {
    fn new(scenario: &Scenario, mutation: Mutation) -> Gateways {
        let mut random = Random::new(scenario.seed, Stream::Program);
        let shared = Shared::new();
        shared.check.lock().unobserved = true;
        let topics = [("first", 3), ("second", 2)].map(|(name, shards)| {
            let pairs = [("push-endpoint", "http://sink"), ("persistent", "true")];
            let pairs: Vec<_> = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
            let attributes = Attributes::from_pairs(&pairs).unwrap();
            let arn = TopicArn { zonegroup: "default".into(), tenant: String::new(), name: name.to_owned() };
            let mut id = [0; 16];
            random.fill(&mut id);
            Topic::new(TopicId::from_random(id), arn, "u", 1, shards, attributes).unwrap()
        });
        let room = Room {
            shared: Arc::new(shared),
            heads: Mutex::default(),
            made: AtomicBool::new(false),
            finishing: AtomicBool::new(false),
            topics: topics.into(),
            keys: random.range(2, 6),
            think: Duration::from_millis(random.range(50, 600)),
            changes: AtomicU64::new(0),
            sessions: Mutex::default(),
            ended: Mutex::default(),
            scheduler: Mutex::default(),
            defaults: watch::Sender::new(TopicDefaults { max_retries: 3, ..TopicDefaults::default() }),
            working: Mutex::default(),
            left: Mutex::default(),
        };
        Gateways { room: Arc::new(room), mutation }
    }
}

impl Program for Gateways {
    fn start(&mut self, start: ProcessContext) -> BoxedFuture {
        let room = Arc::clone(&self.room);
        *room.scheduler.lock() = Some(start.scheduler.clone());
        room.sessions.lock().insert(start.place, start.cluster.bind_session());
        Box::pin(async move {
            let gateway = Gateway::open(room, &start).await;
            gateway.live(start.place).await;
        })
    }

    fn change(&self, request: ObjectRequest) -> ObjectRequest {
        mutate(self.mutation, &self.room.shared, request)
    }

    fn ended(&mut self, place: usize) {
        let now = self.room.scheduler.lock().as_ref().map_or(0, Scheduler::now);
        if let Some(session) = self.room.sessions.lock().remove(&place) {
            self.room.working.lock().remove(&session);
            self.room.ended.lock().insert(session, now + LEASE);
        }
    }

    fn finish(&mut self) {
        self.room.finishing.store(true, Ordering::Relaxed);
        self.room.shared.dead.lock().clear();
    }

    fn last_looks(&mut self, start: ProcessContext) -> BoxedFuture {
        let room = Arc::clone(&self.room);
        Box::pin(async move {
            let pool = open_pool(&start).await;
            if let Err(error) = look_at_all(&room, &pool, &start.scheduler).await {
                room.shared.check.lock().broken(format!("the last looks fail: {error}"));
            }
        })
    }

    fn broken(&self) -> Option<GuaranteeViolation> {
        let broken = self.room.shared.check.lock().broken.clone();
        let broken = broken.or_else(|| self.room.heads.lock().broken.clone());
        broken.map(|detail| GuaranteeViolation { rule: "gateways do not keep a promise", detail })
    }

    fn describe(&self) -> String {
        let (committed, delivered) = {
            let check = self.room.shared.check.lock();
            (check.produced.len(), check.delivered.len())
        };
        let changes = self.room.changes.load(Ordering::Relaxed);
        let left = self.room.left.lock();
        let (ended, running) = (self.room.ended.lock(), self.room.shared.running.lock());
        format!(
            "gateways: {changes} changes, {committed} events of those answered, {delivered} delivered; {} records are left: \
             {:?}; sessions {:?} run, {running:?} count as running, {ended:?} have ended",
            left.len(),
            left.iter().take(8).collect::<Vec<_>>(),
            self.room.sessions.lock(),
        )
    }
}

async fn open_pool(start: &ProcessContext) -> IoCtx {
    loop {
        if let Some(pool) = start.cluster.engine().pool_id(POOL) {
            return IoCtx::new(Arc::clone(start.cluster.engine()), pool, POOL);
        }
        start.env.sleep(LOOK).await;
    }
}

/// Whether a gateway ends by an error as it is: its session is over, or it found no space.
fn is_legitimate(error: &Error) -> bool {
    matches!(error, Error::Blocklisted | Error::TimedOut(_) | Error::ShutDown)
        || [Errno::ESTALE, Errno::EBLOCKLISTED, Errno::ENOSPC].contains(&error.errno())
}

/// A gateway that runs.
struct Gateway {
    room: Arc<Room>,
    env: Env,
    scheduler: Scheduler,
    s3: Arc<S3>,
}

impl Gateway {
    async fn open(room: Arc<Room>, start: &ProcessContext) -> Arc<Gateway> {
        let pool = open_pool(start).await;
        let (env, scheduler, session) =
            (start.env.clone(), start.scheduler.clone(), start.cluster.bind_session());
        let buckets = Buckets::new(&pool, &pool, &room.shared);
        let pusher =
            Consumers { shared: Arc::clone(&room.shared), env: env.clone(), mutation: Mutation::None };
        let notifier = Notifier::start(NotifierConfig {
            env: env.clone(),
            log: pool.clone(),
            index: pool.clone(),
            topics: TopicStore::new(&pool),
            pusher: Arc::new(pusher),
            outboxes: Arc::new(buckets.clone()),
            session,
            settings: Settings { defaults: room.defaults.subscribe(), ..settings() },
        });
        room.shared.running.lock().push(session);
        let (failing, ending, process) = (Arc::clone(&room), scheduler.clone(), start.process);
        let s3 = S3 {
            env: env.clone(),
            cluster: start.cluster.clone(),
            index: pool.clone(),
            data: pool,
            buckets,
            session,
            notifier,
            shared: Arc::clone(&room.shared),
            mutation: Mutation::None,
            on_error: Arc::new(move |what, error| {
                if is_legitimate(error) {
                    ending.crash(process);
                } else {
                    failing.shared.check.lock().broken(format!("{what}: {error}"));
                }
            }),
            fenced: Mutex::default(),
        };
        Arc::new(Gateway { room, env, scheduler, s3: Arc::new(s3) })
    }

    async fn live(self: Arc<Gateway>, place: usize) {
        if place == 0 && !self.room.made.load(Ordering::Relaxed) {
            self.make().await;
        }
        while !self.room.made.load(Ordering::Relaxed) {
            self.env.sleep(LOOK).await;
        }
        self.room.working.lock().insert(self.s3.session);
        drop(self.env.spawn(Arc::clone(&self).hear_of_others()));
        drop(self.env.spawn(Arc::clone(&self.s3).maintain()));
        let tasks: Vec<_> = (0..TASKS).map(|_| self.env.spawn(Arc::clone(&self).work())).collect();
        for task in tasks {
            // It ends with its process only.
            let _ = task.await;
        }
        self.room.working.lock().remove(&self.s3.session);
        if place == 0 {
            self.drain().await;
        }
    }

    /// Makes buckets and topics, as far as a gateway that ended has not.
    async fn make(&self) {
        if let Err(error) = self.s3.buckets.make(&self.s3.index).await {
            self.s3.failed("making the buckets", &error);
        }
        for topic in &self.room.topics {
            let made = self.s3.notifier.create_topic(topic.clone()).await;
            // What has been made of it is completed.
            let made = match made {
                Ok(None) => self.s3.notifier.reshard_topic(&topic.arn, 4).await.map(Some),
                made => made,
            };
            match made {
                Ok(_) => {}
                Err(nacre_notify::Error::Rados(error)) => return self.s3.failed("making a topic", &error),
                Err(error) => {
                    return self.room.shared.check.lock().broken(format!("making a topic: {error}"));
                }
            }
        }
        self.room.made.store(true, Ordering::Relaxed);
    }

    /// Learns which gateways have ended.
    async fn hear_of_others(self: Arc<Gateway>) {
        let mut heard = BTreeSet::new();
        loop {
            self.env.sleep(LOOK).await;
            let now = self.scheduler.now();
            let ended = self.room.ended.lock().clone();
            for (session, _) in ended.into_iter().filter(|(_, at)| *at <= now) {
                if heard.insert(session) {
                    self.room.shared.running.lock().retain(|running| *running != session);
                    self.s3.notifier.gateway_ended(session);
                }
            }
        }
    }

    fn draw(&self, below: u64) -> u64 {
        self.env.random_u64().unwrap() % below.max(1)
    }

    async fn work(self: Arc<Gateway>) {
        while !self.room.finishing.load(Ordering::Relaxed) {
            self.env.sleep(self.env.jitter(self.room.think * 2)).await;
            let (bucket, key) = (self.draw(BUCKETS), format!("key{}", self.draw(self.room.keys)));
            match self.draw(100) {
                0..70 => self.change(bucket, &key).await,
                70..96 => self.get(bucket, &key).await,
                _ => {
                    let topic = self.room.topics[1].id.to_string();
                    let mut dead = self.room.shared.dead.lock();
                    if !dead.remove(&topic) {
                        dead.insert(topic);
                    }
                }
            }
        }
    }

    async fn change(&self, bucket: u64, key: &str) {
        let (request, event) = match self.draw(10) {
            0..6 => (Request::Put, EventType::ObjectCreatedPut),
            6 => (Request::PutIfAbsent, EventType::ObjectCreatedPut),
            _ => (Request::Delete, EventType::ObjectRemovedDelete),
        };
        let number = self.room.changes.fetch_add(1, Ordering::Relaxed) + 1;
        let tag = format!("{number:032x}");
        if self.draw(16) == 0 {
            self.room.shared.refused.lock().insert(tag.clone());
        }
        let events = events(&self.room.topics, bucket, event, self.scheduler.wall_ns());
        let change = Change { request, bucket: id(bucket), key: key.to_owned(), tag: tag.clone(), events };
        let head = head_name(&change.bucket, key);
        self.room.heads.lock().begin(self.scheduler.now(), &head, &tag, request == Request::Delete);
        let done = Arc::clone(&self.s3).carry_out(&change).await;
        if let Some(has_effect) = done {
            self.room.heads.lock().end(self.scheduler.now(), &tag, has_effect);
        }
    }

    async fn get(&self, bucket: u64, key: &str) {
        let head = head_name(&id(bucket), key);
        let started = self.scheduler.now();
        match tag_of_head(&self.s3.data, &head).await {
            Ok(tag) => {
                let now = self.scheduler.now();
                self.room.heads.lock().read((started, now), &head, tag.as_deref());
            }
            Err(error) => self.s3.failed("a GET", &error),
        }
    }

    /// Returns when all changes are finished and all events are delivered or dead letters.
    async fn drain(&self) {
        loop {
            self.env.sleep(DRAINED).await;
            let now = self.scheduler.now();
            let is_known = self.room.ended.lock().values().all(|at| *at + SECOND <= now);
            let is_quiet = is_known && self.room.working.lock().is_empty();
            match left(&self.s3.index, &self.s3.buckets).await {
                Ok(left) if left.is_empty() && is_quiet => return,
                Ok(left) => *self.room.left.lock() = left,
                Err(error) if error.is_not_found() => {}
                Err(error) => return self.s3.failed("a look at what is left", &error),
            }
        }
    }
}

/// The change that an object is of; `None` where there is none.
async fn tag_of_head(data: &IoCtx, head: &str) -> Result<Option<String>> {
    match data.get_xattr(head, OBJECT).await {
        Ok(tag) => Ok(Some(String::from_utf8_lossy(&tag).into_owned())),
        Err(error) if [Errno::ENOENT, Errno::ENODATA].contains(&error.errno()) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn keys_of(pool: &IoCtx, object: &str) -> Result<Vec<bytes::Bytes>> {
    match pool.omap_get_keys(object, "", PAGE).await {
        Ok(page) => Ok(page.keys),
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

async fn names_in(pool: &IoCtx, namespace: &str) -> Result<Vec<String>> {
    let (mut objects, mut names) = (pool.with_namespace(namespace).list(), Vec::new());
    while let Some(object) = objects.next().await? {
        names.push(object.name().to_owned());
    }
    Ok(names)
}

/// Changes that are not finished, outbox records, and events of queues.
async fn left(pool: &IoCtx, buckets: &Buckets) -> Result<Vec<String>> {
    let mut left = Vec::new();
    let unfinished =
        [IndexRecordKind::Pending, IndexRecordKind::Slot, IndexRecordKind::Outbox, IndexRecordKind::Tidy];
    for number in 0..BUCKETS {
        let bucket: Bucket = buckets.get(&id(number)).await?;
        if !bucket.is_at_rest() {
            left.push(format!("{bucket:?}"));
        }
        for shard in bucket.shard_names() {
            let keys = keys_of(pool, &shard).await?.into_iter();
            let is_left =
                |key: &bytes::Bytes| key::parse(key).is_some_and(|key| unfinished.contains(&key.kind));
            left.extend(keys.filter(is_left).map(|key| format!("{shard} {key:?}")));
        }
    }
    for namespace in [QUEUE_NAMESPACE, CLOSED_NAMESPACE, DEAD_LETTER_NAMESPACE] {
        let of_namespace = pool.with_namespace(namespace);
        for object in names_in(pool, namespace).await? {
            let keys = keys_of(&of_namespace, &object).await?.into_iter();
            let is_left = |key: &bytes::Bytes| match namespace {
                DEAD_LETTER_NAMESPACE => key.starts_with(b"o"),
                _ => !key.starts_with(b"w"),
            };
            left.extend(keys.filter(is_left).map(|key| format!("{namespace}/{object} {key:?}")));
            if namespace == CLOSED_NAMESPACE {
                left.push(format!("{namespace}/{object} exists"));
            }
        }
    }
    Ok(left)
}

/// The dead letters of all topics.
async fn letters(pool: &IoCtx) -> Result<BTreeSet<Which>> {
    let mut letters = BTreeSet::new();
    for topic in names_in(pool, DEAD_LETTER_NAMESPACE).await? {
        let page = pool.with_namespace(DEAD_LETTER_NAMESPACE).omap_get_vals(&topic, "", "l", PAGE).await?;
        for (_, value) in page.entries {
            let letter: DeadLetter = record::decode(&"letter", &value).unwrap();
            let event: Event = encoding::decode(&letter.event.payload).unwrap();
            letters.insert((topic.clone(), event.id()));
        }
    }
    Ok(letters)
}

/// Every event is delivered or a dead letter, and listings show what there is.
async fn look_at_all(room: &Room, pool: &IoCtx, scheduler: &Scheduler) -> Result<()> {
    let letters = letters(pool).await?;
    room.shared.check.lock().end(&letters);
    let buckets = Buckets::new(pool, pool, &room.shared);
    for number in 0..BUCKETS {
        let bucket = buckets.get(&id(number)).await?;
        for key in (0..room.keys).map(|key| format!("key{key}")) {
            let (shard, head) = (bucket.shard_of(&key), head_name(&bucket.id, &key));
            let started = scheduler.now();
            let tag = tag_of_head(pool, &head).await?;
            room.heads.lock().read((started, scheduler.now()), &head, tag.as_deref());
            let name = position(IndexRecordKind::Entry, key.as_bytes());
            let found = pool.omap_get_vals_by_keys(&shard, vec![name.clone()]).await?;
            let entry = found.get(&name).map(|entry| index_record::decode::<Entry>(&shard, entry).unwrap());
            let listed = entry.and_then(|entry| entry.object).map(|object| object.tag);
            if listed != tag {
                let wrong = format!("{head} is listed as {listed:?}, its head is {tag:?}");
                room.shared.check.lock().broken(wrong);
            }
        }
    }
    Ok(())
}

/// How many clusters are simulated.
fn seeds() -> u64 {
    match std::env::var("NEXTEST_PROFILE") {
        Ok(profile) if profile == "long" => 300,
        _ => 12,
    }
}

/// The scenario of a seed.
fn scenario(seed: u64) -> Scenario {
    // Locks of gateways that died last by the time of day of an OSD (`cls_lock`): where that jumps, so does their end.
    let scenario = Profile::Gateway.adjust_scenario(Scenario::of(seed)).without(Fault::WallJump);
    // Logs of PGs keep the answers of requests: a message with one exceeds the queues of other profiles.
    Scenario { peer_queue_bytes: 1 << 20, ..scenario }
}

/// Runs a seed, and returns what failed.
fn play(seed: u64, mutation: Mutation) -> Result<u64, String> {
    let scenario = scenario(seed);
    let options = Options { trace: std::env::var("TRACE").is_ok(), ..Options::default() };
    let report = run_program(&scenario, &options, Some(Box::new(Gateways::new(&scenario, mutation))));
    let failed = |failure: nacre_sim::Failure| {
        let faults = scenario.fault_list();
        let at = failure.at as f64 / 1e9;
        format!("seed {seed} at {at} s: {}: {}; faults {faults}", failure.rule, failure.detail)
    };
    report.failure.map_or(Ok(report.hash), |failure| Err(failed(failure)))
}

/// Plays every second seed, from `first` on; `SEED` in the environment names one.
fn play_all(first: u64) {
    let one = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    let (from, to) = one.map_or((first, seeds()), |seed: u64| (seed, seed + 1));
    for seed in (from..to).step_by(2) {
        if let Err(error) = play(seed, Mutation::None) {
            panic!("{error}");
        }
    }
}

#[test]
fn gateways_keep_their_promises_whatever_befalls_the_cluster() {
    play_all(0);
}

#[test]
fn gateways_keep_their_promises_on_other_clusters() {
    play_all(1);
}

#[test]
fn one_seed_names_one_history_of_a_cluster() {
    assert_eq!(play(3, Mutation::None).unwrap(), play(3, Mutation::None).unwrap());
}

/// Fails unless a cluster of the first ones notices the mutation, by what it does wrong.
fn noticed(mutation: Mutation, by: &str) {
    let found = (0..MUTATED).find_map(|seed| play(seed, mutation).err());
    let found = found.unwrap_or_else(|| panic!("{mutation:?} is unnoticed on {MUTATED} clusters"));
    assert!(found.contains(by), "{mutation:?}: {found}");
}

#[test]
fn finishing_without_an_outbox_record_is_noticed_on_a_cluster() {
    noticed(Mutation::FinishWithoutOutbox, "is lost");
}
