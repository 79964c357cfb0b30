//! Concurrent clients that change overlapping keys of both buckets, and record their requests and answers.
//!
//! A request whose answer is lost is never sent again: its outcome is unknown. The choices of each client depend only on the
//! seed, but the interleaving of the operations of different clients does not.

use super::client::{Answer, Connection, Keys, Reply, Request, elements_of, text_of};
use super::history::{
    History, MAX_OPERATIONS, NEVER, OpInterval, OpKind, OpOutcome, Operation, PLAIN, ReadObservation,
    VERSIONED, address_of,
};
use crate::support::TEST_TIMEOUT;
use http::{Method, StatusCode};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Number of concurrent clients.
const CLIENTS: u64 = 12;
/// Number of versions of a key from which removals and tags choose.
const REMEMBERED: usize = 16;
/// Minimum size of a part that is not the last.
const PART: usize = 5 << 20;

/// The parameters of the load.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) operations: u32,
    /// Keys in each bucket.
    pub(super) keys: u32,
    pub(super) gateways: Vec<SocketAddr>,
    pub(super) credentials: Keys,
}

/// A load in progress.
pub(super) struct Load {
    plan: Plan,
    started: Instant,
    /// The number that was assigned last.
    numbers: AtomicU32,
    /// The last acknowledged versions, by key.
    versions: Mutex<BTreeMap<String, VecDeque<String>>>,
}

impl Load {
    pub(super) fn new(plan: Plan) -> Arc<Load> {
        assert!(plan.operations < MAX_OPERATIONS);
        let numbers = AtomicU32::new(0);
        Arc::new(Load { plan, started: Instant::now(), numbers, versions: Mutex::default() })
    }

    /// Runs all operations. Returns their history.
    pub(super) async fn run(self: Arc<Load>) -> History {
        let clients = (0..CLIENTS).map(|number| {
            let seed = self.plan.seed.wrapping_mul(CLIENTS).wrapping_add(number);
            let client = Client {
                load: Arc::clone(&self),
                random: StdRng::seed_from_u64(seed),
                history: History::default(),
            };
            tokio::spawn(client.run())
        });
        let mut history = History::default();
        for client in clients.collect::<Vec<_>>() {
            let done = client.await.unwrap();
            history.operations.extend(done.operations);
            history.reads.extend(done.reads);
        }
        history
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap()
    }

    fn remember(&self, key: &str, version: Option<&String>) {
        let Some(version) = version else { return };
        let mut versions = self.versions.lock().unwrap_or_else(PoisonError::into_inner);
        let versions = versions.entry(key.to_owned()).or_default();
        versions.push_back(version.clone());
        if versions.len() > REMEMBERED {
            versions.pop_front();
        }
    }
}

struct Client {
    load: Arc<Load>,
    random: StdRng,
    history: History,
}

/// An operation's connection.
struct Session {
    load: Arc<Load>,
    number: u32,
    /// The gateway to try next.
    gateway: usize,
    connection: Option<Connection>,
}

impl Session {
    /// Sends a request once to a gateway that accepts the connection. The answer is `None` if it is lost.
    async fn once(&mut self, request: &Request) -> (Option<Answer>, OpInterval) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            let plan = &self.load.plan;
            let to = plan.gateways[self.gateway % plan.gateways.len()];
            let mut connection =
                self.connection.take().unwrap_or_else(|| Connection::new(address_of(self.number), to));
            let invoked = self.load.now();
            let reply = connection.send(&plan.credentials, request).await;
            match reply {
                Reply::Answered(answer) => {
                    self.connection = Some(connection);
                    return (Some(answer), OpInterval { invoked, answered: self.load.now() });
                }
                Reply::Lost => return (None, OpInterval { invoked, answered: NEVER }),
                Reply::NotSent => {
                    assert!(Instant::now() < deadline, "no gateway takes connections");
                    self.gateway += 1;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }
}

/// The outcome of a change, from its answer.
fn outcome_of(answer: Option<&Answer>) -> OpOutcome {
    let Some(answer) = answer else { return OpOutcome::Unknown };
    if answer.is_refusal() {
        OpOutcome::Refused
    } else if answer.error().is_some() {
        OpOutcome::Unknown
    } else {
        let request_id = answer.header("x-amz-request-id").unwrap_or_default();
        OpOutcome::Acknowledged { version: answer.header("x-amz-version-id"), request_id }
    }
}

fn upload_of(bucket: &str, key: &str, method: Method, upload: &str) -> Request {
    Request::new(method, bucket, key).query("uploadId", upload)
}

impl Client {
    async fn run(mut self) -> History {
        loop {
            let number = 1 + self.load.numbers.fetch_add(1, Ordering::Relaxed);
            if number > self.load.plan.operations {
                return self.history;
            }
            let gateway = self.random.random_range(0..self.load.plan.gateways.len());
            let mut session = Session { load: Arc::clone(&self.load), number, gateway, connection: None };
            let bucket = *[PLAIN, VERSIONED].choose(&mut self.random).unwrap();
            let key = self.key();
            match self.random.random_range(0..100) {
                0..28 => self.put(&mut session, bucket, &key, false).await,
                28..33 => self.put(&mut session, bucket, &key, true).await,
                33..50 => self.remove(&mut session, bucket, &key).await,
                50..55 => self.remove_many(&mut session, bucket).await,
                55..65 => self.copy(&mut session, bucket, &key).await,
                65..74 => self.upload(&mut session, bucket, &key).await,
                74..86 => self.tag(&mut session, bucket, &key).await,
                86..92 => self.remove_version(&mut session, &key).await,
                _ => self.get(&mut session, bucket, &key).await,
            }
        }
    }

    fn key(&mut self) -> String {
        format!("k{}", self.random.random_range(0..self.load.plan.keys))
    }

    /// Data that is unique to the operation.
    fn body(&mut self, number: u32) -> Vec<u8> {
        let size = match self.random.random_range(0..100) {
            0..90 => self.random.random_range(0..10_000),
            90..99 => self.random.random_range(10_000..300_000),
            _ => self.random.random_range(PART..PART + 1_000_000),
        };
        let mut body = format!("{number}\n").into_bytes();
        body.resize(body.len() + size, b'.');
        body
    }

    /// Sends a request that changes a key, and records it. Returns the answer if it was acknowledged.
    async fn change(
        &mut self,
        session: &mut Session,
        (bucket, key, kind): (&str, &str, OpKind),
        request: &Request,
    ) -> Option<Answer> {
        let (answer, span) = session.once(request).await;
        let outcome = outcome_of(answer.as_ref());
        if let (OpOutcome::Acknowledged { version, .. }, VERSIONED) = (&outcome, bucket)
            && (kind.is_creation() || kind == OpKind::Delete)
        {
            self.load.remember(key, version.as_ref());
        }
        let is_acknowledged = matches!(outcome, OpOutcome::Acknowledged { .. });
        self.note(session.number, (bucket, key, kind), span, outcome);
        answer.filter(|_| is_acknowledged)
    }

    fn note(
        &mut self,
        number: u32,
        (bucket, key, kind): (&str, &str, OpKind),
        span: OpInterval,
        outcome: OpOutcome,
    ) {
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        self.history.operations.push(Operation { number, bucket, key, kind, span, outcome });
    }

    fn saw(&mut self, bucket: &str, key: &str, span: OpInterval, number: Option<u32>) {
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        self.history.reads.push(ReadObservation { bucket, key, span, number });
    }

    async fn put(&mut self, session: &mut Session, bucket: &str, key: &str, only_new: bool) {
        let mut request = Request::new(Method::PUT, bucket, key)
            .header("x-amz-meta-op", session.number.to_string())
            .body(self.body(session.number));
        if only_new {
            request = request.header("if-none-match", "*");
        }
        self.change(session, (bucket, key, OpKind::Put { only_new }), &request).await;
    }

    async fn remove(&mut self, session: &mut Session, bucket: &str, key: &str) {
        self.change(session, (bucket, key, OpKind::Delete), &Request::new(Method::DELETE, bucket, key)).await;
    }

    async fn remove_many(&mut self, session: &mut Session, bucket: &str) {
        let mut keys: Vec<_> = (0..self.random.random_range(2..5)).map(|_| self.key()).collect();
        keys.sort_unstable();
        keys.dedup();
        let objects: String = keys.iter().map(|key| format!("<Object><Key>{key}</Key></Object>")).collect();
        let request = Request::new(Method::POST, bucket, "").query("delete", "");
        let request = request.document(format!("<Delete>{objects}</Delete>"));
        let (answer, span) = session.once(&request).await;
        for key in &keys {
            let outcome = outcome_of_key(answer.as_ref(), key);
            if let (OpOutcome::Acknowledged { version, .. }, VERSIONED) = (&outcome, bucket) {
                self.load.remember(key, version.as_ref());
            }
            self.note(session.number, (bucket, key, OpKind::Delete), span, outcome);
        }
    }

    async fn copy(&mut self, session: &mut Session, bucket: &str, key: &str) {
        let source = self.key();
        let request = Request::new(Method::PUT, bucket, key)
            .header("x-amz-copy-source", format!("/{bucket}/{source}"))
            .header("x-amz-metadata-directive", "REPLACE")
            .header("x-amz-tagging-directive", "REPLACE")
            .header("x-amz-meta-op", session.number.to_string());
        self.change(session, (bucket, key, OpKind::Copy), &request).await;
    }

    async fn upload(&mut self, session: &mut Session, bucket: &str, key: &str) {
        let number = session.number;
        let create = Request::new(Method::POST, bucket, key)
            .query("uploads", "")
            .header("x-amz-meta-op", number.to_string());
        let (created, _) = session.once(&create).await;
        let created = created.filter(|answer| answer.status.is_success());
        let Some(upload) = created.as_ref().and_then(|answer| text_of(&answer.body, "UploadId")) else {
            return;
        };
        let mut parts = vec![self.body(number)];
        if self.random.random_bool(0.1) {
            parts.insert(0, vec![b'0' + (number % 10) as u8; PART]);
        }
        let mut document = String::new();
        for (part, at) in parts.into_iter().zip(1..) {
            let put = upload_of(bucket, key, Method::PUT, upload).query("partNumber", at.to_string());
            let (stored, _) = session.once(&put.body(part)).await;
            let stored = stored.filter(|answer| answer.status.is_success());
            let Some(etag) = stored.and_then(|answer| answer.header("etag")) else { return };
            document += &format!("<Part><PartNumber>{at}</PartNumber><ETag>{etag}</ETag></Part>");
        }
        if self.random.random_bool(0.15) {
            let abort = upload_of(bucket, key, Method::DELETE, upload);
            self.change(session, (bucket, key, OpKind::Nothing), &abort).await;
            return;
        }
        let document = format!("<CompleteMultipartUpload>{document}</CompleteMultipartUpload>");
        let complete = upload_of(bucket, key, Method::POST, upload).body(document);
        let completed = self.change(session, (bucket, key, OpKind::Complete), &complete).await;
        if completed.is_some() && self.random.random_bool(0.3) {
            // Repeats the completion: whatever the answer, only the first one has an event. The operation has one key, so the
            // repetition is not an operation of its own.
            session.once(&complete).await;
        }
    }

    async fn tag(&mut self, session: &mut Session, bucket: &str, key: &str) {
        let number = session.number;
        let tags = format!("<Tag><Key>op</Key><Value>{number}</Value></Tag>");
        let mut request = Request::new(Method::PUT, bucket, key).query("tagging", "");
        if bucket == VERSIONED
            && self.random.random_bool(0.5)
            && let Some(version) = self.version(key)
        {
            request = request.query("versionId", version);
        }
        let request = request.document(format!("<Tagging><TagSet>{tags}</TagSet></Tagging>"));
        let (answer, span) = session.once(&request).await;
        let outcome = outcome_of(answer.as_ref());
        if answer.is_some_and(|answer| answer.status == StatusCode::NOT_FOUND) {
            self.saw(bucket, key, span, None);
        }
        self.note(number, (bucket, key, OpKind::Tag), span, outcome);
    }

    /// An acknowledged version of the key.
    fn version(&mut self, key: &str) -> Option<String> {
        let versions = self.load.versions.lock().unwrap_or_else(PoisonError::into_inner);
        let versions = versions.get(key)?;
        Some(versions[self.random.random_range(0..versions.len())].clone())
    }

    async fn remove_version(&mut self, session: &mut Session, key: &str) {
        let Some(version) = self.version(key) else { return };
        let request = Request::new(Method::DELETE, VERSIONED, key).query("versionId", version.clone());
        self.change(session, (VERSIONED, key, OpKind::DeleteVersion(version)), &request).await;
    }

    async fn get(&mut self, session: &mut Session, bucket: &str, key: &str) {
        let (answer, span) = session.once(&Request::new(Method::GET, bucket, key)).await;
        let Some(answer) = answer else { return };
        if answer.status.is_success() {
            let number = answer.header("x-amz-meta-op").and_then(|number| number.parse().ok());
            assert!(number.is_some(), "an object that nobody wrote: {answer:?}");
            self.saw(bucket, key, span, number);
        } else if answer.status == StatusCode::NOT_FOUND {
            self.saw(bucket, key, span, None);
        }
    }
}

/// The outcome for one key of a DeleteObjects.
fn outcome_of_key(answer: Option<&Answer>, key: &str) -> OpOutcome {
    let Some(answer) = answer.filter(|answer| answer.status.is_success()) else {
        return outcome_of(answer);
    };
    let is_of_key = |part: &&str| text_of(part, "Key") == Some(key);
    if let Some(deleted) = elements_of(&answer.body, "Deleted").find(is_of_key) {
        let request_id = answer.header("x-amz-request-id").unwrap_or_default();
        let version = text_of(deleted, "DeleteMarkerVersionId").map(str::to_owned);
        return OpOutcome::Acknowledged { version, request_id };
    }
    let error = elements_of(&answer.body, "Error").find(is_of_key);
    match error.and_then(|error| text_of(error, "Code")) {
        Some("InternalError" | "SlowDown" | "ServiceUnavailable") | None => OpOutcome::Unknown,
        Some(_) => OpOutcome::Refused,
    }
}
