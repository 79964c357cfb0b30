//! Common parts of the tests of bucket notifications: topics, configurations and objects by a small client, topics' statistics
//! by the product's commands, HTTP servers that receive events, and a check of the received events.

use crate::s3::S3;
use crate::s3_faults::Gateway;
use crate::s3_notifications_faults::client::{Answer, Connection, Keys, Reply, Request, text_of};
use crate::servers::sink::{self, Sink};
use crate::support::{TEST_TIMEOUT, TestCluster, nacre};
use http::{Method, StatusCode};
use serde_json::Value;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};

/// The namespaces of topics' queues: of current shards, of closed ones, of spilled events and of dead letters.
pub(crate) const NAMESPACES: [&str; 4] = ["notif", "notif.closed", "notif.spill", "notif.dead"];
/// Interval between polls.
const LOOK: Duration = Duration::from_millis(50);
/// Maximum number of differences that are printed.
const SHOWN: usize = 10;

/// Runs a future to completion.
pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    static RUNTIME: LazyLock<Runtime> =
        LazyLock::new(|| Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap());
    RUNTIME.block_on(future)
}

/// Polls until `look` succeeds. When it fails, it returns a description of the state.
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        match look() {
            Ok(found) => return found,
            Err(seen) => assert!(Instant::now() < deadline, "never: {what}: {seen}"),
        }
        std::thread::sleep(LOOK);
    }
}

/// A request to create or replace an object of `size` bytes.
pub(crate) fn put(bucket: &str, key: &str, size: usize) -> Request {
    Request::new(Method::PUT, bucket, key).body(vec![b'.'; size])
}

/// A request to remove an object.
pub(crate) fn remove(bucket: &str, key: &str) -> Request {
    Request::new(Method::DELETE, bucket, key)
}

/// Whether a request was refused because a queue is full.
pub(crate) fn is_slow_down(answer: &Answer) -> bool {
    answer.status == StatusCode::SERVICE_UNAVAILABLE && answer.error() == Some("SlowDown")
}

/// The ARN of a topic.
fn arn_of(topic: &str) -> String {
    format!("arn:aws:sns:default::{topic}")
}

/// A gateway, with its user and its administrator.
pub(crate) struct TestGateway {
    endpoint: String,
    pub(crate) keys: Keys,
    conf: PathBuf,
}

impl TestGateway {
    /// The gateway of a served cluster.
    pub(crate) fn of(s3: &S3) -> TestGateway {
        let keys = Keys { access: s3.access.clone(), secret: s3.secret.clone() };
        TestGateway { endpoint: s3.endpoint.clone(), keys, conf: s3.conf() }
    }

    /// One of several gateways.
    pub(crate) fn of_gateway(cluster: &TestCluster, gateway: &Gateway, keys: &Keys) -> TestGateway {
        TestGateway { endpoint: gateway.endpoint(), keys: keys.clone(), conf: cluster.conf() }
    }

    /// Posts a form to the topic API.
    fn post(&self, action: &str, fields: &[(&str, &str)]) -> Answer {
        let mut form = format!("Action={action}");
        for (name, value) in fields {
            form += &format!("&{name}={}", urlencoding::encode(value));
        }
        let request = Request::new(Method::POST, "", "");
        self.answer(&request.header("content-type", "application/x-www-form-urlencoded").body(form))
    }

    /// Sends a request to create a topic.
    pub(crate) fn try_create_topic(&self, name: &str, attributes: &[(&str, &str)]) -> Answer {
        let entry = |number: usize, part: &str| format!("Attributes.entry.{number}.{part}");
        let entries = (1..=attributes.len()).map(|number| (entry(number, "key"), entry(number, "value")));
        let entries: Vec<(String, String)> = entries.collect();
        let mut fields = vec![("Name", name)];
        for ((key, value), attribute) in entries.iter().zip(attributes) {
            fields.extend([(key.as_str(), attribute.0), (value.as_str(), attribute.1)]);
        }
        self.post("CreateTopic", &fields)
    }

    /// Creates a persistent topic, or replaces its attributes.
    pub(crate) fn create_topic(&self, name: &str, endpoint: &str, more: &[(&str, &str)]) {
        let fixed = [("push-endpoint", endpoint), ("persistent", "true")];
        let made = self.try_create_topic(name, &[&fixed[..], more].concat());
        assert_eq!(text_of(&made.body, "TopicArn"), Some(&*arn_of(name)), "{made:?}");
    }

    /// Sets one attribute of a topic.
    pub(crate) fn set_attribute(&self, topic: &str, name: &str, value: &str) {
        let arn = arn_of(topic);
        let fields = [("TopicArn", arn.as_str()), ("AttributeName", name), ("AttributeValue", value)];
        let answer = self.post("SetTopicAttributes", &fields);
        assert!(answer.status.is_success(), "{answer:?}");
    }

    /// Removes a topic.
    pub(crate) fn delete_topic(&self, topic: &str) {
        let arn = arn_of(topic);
        let answer = self.post("DeleteTopic", &[("TopicArn", arn.as_str())]);
        assert!(answer.status.is_success(), "{answer:?}");
    }

    /// Creates a bucket with a configuration for each of these topics, with the topic's name, for the creation and removal of
    /// objects.
    pub(crate) fn create_bucket(&self, bucket: &str, topics: &[&str]) {
        self.succeed(&Request::new(Method::PUT, bucket, ""));
        let configuration = |topic: &&str| {
            let arn = arn_of(topic);
            format!("<TopicConfiguration><Id>{topic}</Id><Topic>{arn}</Topic></TopicConfiguration>")
        };
        let configurations: String = topics.iter().map(configuration).collect();
        let document = format!("<NotificationConfiguration>{configurations}</NotificationConfiguration>");
        let request = Request::new(Method::PUT, bucket, "").query("notification", "");
        self.succeed(&request.document(document));
    }

    /// A connection to the gateway.
    pub(crate) fn connect(&self) -> Connection {
        Connection::new(Ipv4Addr::LOCALHOST, self.endpoint["http://".len()..].parse().unwrap())
    }

    /// Sends a request, which must be answered.
    pub(crate) async fn ask(&self, connection: &mut Connection, request: &Request) -> Answer {
        match connection.send(&self.keys, request).await {
            Reply::Answered(answer) => answer,
            reply => panic!("{request:?}: {reply:?}"),
        }
    }

    /// Sends a request, which must be answered, on its own connection.
    pub(crate) fn answer(&self, request: &Request) -> Answer {
        run(self.ask(&mut self.connect(), request))
    }

    /// Sends a request, which must succeed.
    pub(crate) async fn carry_out(&self, connection: &mut Connection, request: &Request) -> Answer {
        let answer = self.ask(connection, request).await;
        assert_eq!(answer.error(), None, "{request:?}: {answer:?}");
        answer
    }

    /// Sends a request, which must succeed, on its own connection.
    pub(crate) fn succeed(&self, request: &Request) -> Answer {
        run(self.carry_out(&mut self.connect(), request))
    }

    /// Runs a command of Nacre's, which must succeed. Returns its output.
    pub(crate) fn command(&self, args: &[&str]) -> String {
        let out = Command::new(nacre()).arg("-c").arg(&self.conf).args(args).output().unwrap();
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    /// Runs a command of Nacre's that prints JSON.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let text = self.command(args);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{args:?}: {error}: {text}"))
    }

    /// The objects of topics' queues in a namespace.
    pub(crate) fn objects(&self, namespace: &str) -> BTreeSet<String> {
        let listed = self.command(&["rados", "-p", "default.rgw.log", "-N", namespace, "ls"]);
        listed.lines().map(str::to_owned).collect()
    }

    /// The output of `topic stats`.
    pub(crate) fn stats(&self, topic: &str) -> Value {
        self.json(&["topic", "stats", topic])
    }

    /// Waits until a topic's queue contains `count` events.
    pub(crate) fn wait_entries(&self, topic: &str, count: usize) {
        wait_for(&format!("{topic} holds {count} events"), || {
            let stats = self.stats(topic);
            if stats["Topic Stats"]["Entries"] == count { Ok(()) } else { Err(stats.to_string()) }
        });
    }

    /// A topic's dead letters.
    pub(crate) fn dead_letters(&self, topic: &str) -> Vec<Value> {
        let listed = self.json(&["topic", "dlq", "list", topic]);
        listed.as_array().unwrap_or_else(|| panic!("no list: {listed}")).clone()
    }

    /// Waits until a topic has `count` dead letters. Returns them.
    pub(crate) fn wait_dead_letters(&self, topic: &str, count: usize) -> Vec<Value> {
        wait_for(&format!("{topic} has {count} dead letters"), || {
            let letters = self.dead_letters(topic);
            if letters.len() == count { Ok(letters) } else { Err(format!("{letters:?}")) }
        })
    }
}

/// An HTTP server that keeps the events that it accepts, in the order in which they arrived.
pub(crate) struct EventConsumer {
    sink: Sink,
    accepted: Arc<Mutex<Vec<Value>>>,
}

fn lock(records: &Mutex<Vec<Value>>) -> MutexGuard<'_, Vec<Value>> {
    records.lock().unwrap_or_else(PoisonError::into_inner)
}

impl EventConsumer {
    /// Starts a server that accepts all events.
    pub(crate) fn start() -> EventConsumer {
        EventConsumer::new(Sink::start())
    }

    /// A server with `sink`'s address that accepts all events.
    pub(crate) fn new(sink: Sink) -> EventConsumer {
        let consumer = EventConsumer { sink, accepted: Arc::default() };
        consumer.accept(|_| true);
        consumer
    }

    /// Where topics send their events.
    pub(crate) fn url(&self) -> String {
        format!("{}/events", self.sink.url())
    }

    /// The certificate to verify the server's certificate.
    pub(crate) fn ca(&self) -> PathBuf {
        self.sink.ca()
    }

    /// From now on accepts requests if `is_accepted` holds for all their events, and answers others with 400.
    pub(crate) fn accept(&self, is_accepted: impl Fn(&Value) -> bool + Send + 'static) {
        let accepted = Arc::clone(&self.accepted);
        self.sink.answer(move |request| {
            let mut body: Value = serde_json::from_slice(&request.body).unwrap();
            let Value::Array(records) = body["Records"].take() else { panic!("no events: {body}") };
            if !records.iter().all(&is_accepted) {
                return sink::Answer::status(400);
            }
            lock(&accepted).extend(records);
            sink::Answer::status(200)
        });
    }

    /// The events that it accepted.
    pub(crate) fn records(&self) -> Vec<Value> {
        lock(&self.accepted).clone()
    }

    /// The accepted events of a configuration, which has the name of its topic.
    pub(crate) fn records_of(&self, topic: &str) -> Vec<Value> {
        let mut records = self.records();
        records.retain(|record| record["s3"]["configurationId"] == topic);
        records
    }

    /// Waits until it has accepted exactly these events of a topic.
    pub(crate) fn wait_for(&self, topic: &str, expected: &Expected) {
        wait_for(&format!("the events of {topic} arrived"), || expected.check(&self.records_of(topic)));
    }
}

/// A text in an event.
pub(crate) fn text(record: &Value, path: &str) -> String {
    let text = record.pointer(path).and_then(Value::as_str);
    text.unwrap_or_else(|| panic!("no {path}: {record}")).to_owned()
}

/// The first event of each id, in order of arrival. An event that arrives again must be identical.
fn first_occurrences(records: &[Value]) -> Vec<&Value> {
    let (mut known, mut firsts) = (BTreeMap::new(), Vec::new());
    for record in records {
        match known.entry(text(record, "/eventId")) {
            Entry::Vacant(entry) => {
                entry.insert(record);
                firsts.push(record);
            }
            Entry::Occupied(first) => assert_eq!(*first.get(), record, "delivered again with other fields"),
        }
    }
    firsts
}

/// An event: its type, and the object's size if it was created.
type Expectation = (String, Option<usize>);

/// The expected events of each key, in the order of its changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Expected(BTreeMap<String, Vec<Expectation>>);

impl Expected {
    fn add(&mut self, key: &str, name: &str, size: Option<usize>) {
        self.0.entry(key.to_owned()).or_default().push((name.to_owned(), size));
    }

    /// Expects the event of an object of that size that was put.
    pub(crate) fn created(&mut self, key: &str, size: usize) {
        self.add(key, "ObjectCreated:Put", Some(size));
    }

    /// Expects the event of an object that was removed.
    pub(crate) fn removed(&mut self, key: &str) {
        self.add(key, "ObjectRemoved:Delete", None);
    }

    /// Number of expected events.
    pub(crate) fn count(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    /// Compares the events that arrived, in this order, with the expected ones, and returns an error with the differences.
    /// Events may arrive again under their id. Fails if the events of a key, each at its first arrival, are not in the order of
    /// their sequencers.
    pub(crate) fn check(&self, records: &[Value]) -> Result<(), String> {
        let mut found = Expected::default();
        let mut last: BTreeMap<String, String> = BTreeMap::new();
        for record in first_occurrences(records) {
            let (key, sequencer) = (text(record, "/s3/object/key"), text(record, "/s3/object/sequencer"));
            let before = last.insert(key.clone(), sequencer.clone()).unwrap_or_default();
            assert!(before < sequencer, "{record} arrived after an event with the sequencer {before}");
            let name = text(record, "/eventName");
            let size = record.pointer("/s3/object/size").and_then(Value::as_u64);
            let size = size.filter(|_| name.starts_with("ObjectCreated:"));
            found.add(&key, &name, size.map(|size| usize::try_from(size).unwrap()));
        }
        if found == *self {
            return Ok(());
        }
        let keys: BTreeSet<&String> = self.0.keys().chain(found.0.keys()).collect();
        let differing = keys.into_iter().filter(|key| self.0.get(*key) != found.0.get(*key));
        let shown: Vec<String> = differing
            .take(SHOWN)
            .map(|key| format!("{key}: {:?}, not {:?}", found.0.get(key), self.0.get(key)))
            .collect();
        Err(format!("{} of {} events; keys that differ: {shown:#?}", found.count(), self.count()))
    }
}
