//! etcd as the map store.
//!
//! All keys are below a prefix, so that clusters can share an etcd. Requests go to one member at a time; the next one is tried
//! when it fails or does not answer within a second. Reads are linearizable and transactions replicated by etcd, so it makes
//! no difference which member answers.
//!
//! Old revisions are removed regularly ([`MapStore::maintain`]): etcd keeps all of them and refuses writes when its database
//! has reached a limit.

mod watch;

use async_trait::async_trait;
use etcd_client::{
    AlarmAction, AlarmType, Certificate, Client, Compare as EtcdCompare, CompareOp, ConnectOptions,
    GetOptions, Identity, KeyValue, PutOptions, TlsOptions, Txn as EtcdTxn, TxnOp,
};
use nacre_mapstore::{
    Compare, LeaseId, MAX_PAGE, MapStore, MapStoreError, Op, PAGE_BYTES, RangePage, StoreHealth, StoredEntry,
    Txn, TxnOutcome, Watch,
};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use watch::EtcdWatch;

/// How long a member may take to answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// The pause after a failed request; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// Interval of [`KEPT_HISTORY`]'s samples and of questions for the size of the database.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(60);
/// Interval of compactions.
const COMPACTION_INTERVAL: Duration = Duration::from_secs(5 * 60);
/// The age from which revisions are removed.
const KEPT_HISTORY: Duration = Duration::from_secs(10 * 60);
/// Interval of pings on idle connections with requests in flight. etcd ends connections with pings every five seconds or less.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of entries in one answer of etcd. Few are requested until their sizes are known.
const MAX_ANSWER_ENTRIES: usize = 64;
const FIRST_ANSWER_ENTRIES: usize = 4;
/// The size of an answer that is aimed at, in bytes.
const ANSWER_BYTES: usize = 512 << 10;
/// Maximum size of an answer: its entries, each of which has been in a transaction.
const MAX_ANSWER_BYTES: usize = (MAX_ANSWER_ENTRIES + 1) * nacre_mapstore::MAX_TXN_BYTES;

/// Where etcd is: `etcd://HOST:PORT,HOST:PORT…/PREFIX`. The prefix is `nacre` if there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdUrl {
    endpoints: Vec<String>,
    prefix: String,
}

impl FromStr for EtcdUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<EtcdUrl, String> {
        let rest =
            text.strip_prefix("etcd://").ok_or_else(|| format!("'{text}' does not begin with etcd://"))?;
        let (hosts, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let endpoints: Vec<String> = hosts.split(',').map(|host| host.trim().to_owned()).collect();
        for endpoint in &endpoints {
            let authority = endpoint.parse::<http::uri::Authority>().ok();
            if authority
                .is_none_or(|a| a.host().is_empty() || a.port_u16().is_none() || a.as_str().contains('@'))
            {
                return Err(format!("'{endpoint}' in '{text}' is not HOST:PORT"));
            }
        }
        let prefix = prefix.trim_matches('/');
        // One cluster's range of keys would be inside another one's.
        if prefix.contains('/') {
            return Err(format!("the prefix '{prefix}' contains '/'"));
        }
        Ok(EtcdUrl { endpoints, prefix: if prefix.is_empty() { "nacre" } else { prefix }.to_owned() })
    }
}

impl fmt::Display for EtcdUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "etcd://{}/{}", self.endpoints.join(","), self.prefix)
    }
}

/// How a map authority authenticates itself to etcd, and etcd to it.
#[derive(Clone, Debug, Default)]
pub struct EtcdAccess {
    /// The file of the authority that has signed the members' certificates. Without it, connections are not encrypted.
    pub ca_file: Option<PathBuf>,
    /// The files of this client's certificate and its key.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Name and password of a user.
    pub user: Option<(String, String)>,
}

impl EtcdAccess {
    fn options(&self) -> Result<ConnectOptions, MapStoreError> {
        let read = |path: &PathBuf| {
            std::fs::read(path).map_err(|e| MapStoreError::Denied(format!("{}: {e}", path.display())))
        };
        let mut options = ConnectOptions::new()
            .with_connect_timeout(REQUEST_TIMEOUT)
            .with_keep_alive(PING_INTERVAL, REQUEST_TIMEOUT)
            .with_keep_alive_while_idle(false)
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        if let Some(ca_file) = &self.ca_file {
            let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(read(ca_file)?));
            if let Some((certificate, key)) = &self.certificate {
                tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
            }
            options = options.with_tls(tls);
        }
        if let Some((name, password)) = &self.user {
            options = options.with_user(name.clone(), password.clone());
        }
        Ok(options)
    }
}

/// See the module's documentation. Its methods must be called on a Tokio runtime, always the same one.
pub struct EtcdStore {
    url: EtcdUrl,
    access: EtcdAccess,
    /// The limit of etcd's database in bytes, if etcd does not report it.
    quota: u64,
    prefix: Vec<u8>,
    has_connected: AtomicBool,
    /// The number of entries that the next answer may have.
    answer_entries: AtomicUsize,
    connection: Mutex<Connection>,
    health: Mutex<StoreHealth>,
    maintenance: Mutex<MaintenanceState>,
}

/// The member that is asked.
#[derive(Default)]
struct Connection {
    /// Its position among the endpoints.
    endpoint: usize,
    client: Option<Client>,
    /// Failures since the last answer.
    failures: u32,
}

/// What is known for [`MapStore::maintain`].
#[derive(Default)]
struct MaintenanceState {
    /// The highest revision that an answer had.
    revision: u64,
    /// Revisions with the times at which they were the highest, oldest first.
    samples: VecDeque<(Instant, u64)>,
    compacted: Option<Instant>,
}

impl EtcdStore {
    /// A store that connects when it is first used. `quota` is the limit of etcd's database in bytes, for members that do not
    /// report it (before etcd 3.6).
    pub fn new(url: EtcdUrl, access: EtcdAccess, quota: u64) -> EtcdStore {
        let prefix = format!("{}/", url.prefix).into_bytes();
        EtcdStore {
            url,
            access,
            quota,
            prefix,
            has_connected: AtomicBool::new(false),
            answer_entries: AtomicUsize::new(FIRST_ANSWER_ENTRIES),
            connection: Mutex::default(),
            health: Mutex::default(),
            maintenance: Mutex::default(),
        }
    }

    /// A client of the member `endpoint`.
    async fn client(&self, endpoint: usize) -> Result<Client, Failure> {
        if let Some(client) = self.connection.lock().client.as_ref() {
            return Ok(client.clone());
        }
        let options =
            self.access.options().map_err(|error| match self.has_connected.load(Ordering::Relaxed) {
                // A certificate may be being replaced.
                true => Failure::Unavailable(error.to_string()),
                false => Failure::Final(error),
            })?;
        let client = Client::connect([&self.url.endpoints[endpoint]], Some(options)).await;
        let client = client.map_err(|e| classify(&e))?;
        self.has_connected.store(true, Ordering::Relaxed);
        let mut connection = self.connection.lock();
        if connection.endpoint == endpoint {
            connection.client = Some(client.clone());
        }
        Ok(client)
    }

    /// Sends a request to one member. After a failure the next request goes to the next member.
    async fn call<T>(
        &self,
        request: impl AsyncFnOnce(Client) -> Result<T, etcd_client::Error>,
    ) -> Result<T, MapStoreError> {
        let endpoint = self.connection.lock().endpoint;
        let attempt = async {
            let client = self.client(endpoint).await?;
            request(client).await.map_err(|e| classify(&e))
        };
        let failure = match tokio::time::timeout(REQUEST_TIMEOUT, attempt).await {
            Ok(Ok(answer)) => {
                self.connection.lock().failures = 0;
                self.health.lock().unavailable = None;
                return Ok(answer);
            }
            Ok(Err(failure)) => failure,
            Err(_) => Failure::Unavailable(format!("no answer within {REQUEST_TIMEOUT:?}")),
        };
        Err(self.on_failure(endpoint, failure).await)
    }

    /// Records a failure of the member `endpoint` and waits before the caller may try again.
    async fn on_failure(&self, endpoint: usize, failure: Failure) -> MapStoreError {
        let (text, no_space) = match failure {
            Failure::Final(error) => return error,
            // The callers know which one.
            Failure::NoLease => return MapStoreError::NoLease(0),
            Failure::NoSpace(text) => (text, true),
            Failure::Unavailable(text) => (text, false),
        };
        let failures = {
            let mut connection = self.connection.lock();
            connection.failures = connection.failures.saturating_add(1);
            // A full database is so on every member. Another request may have chosen the next member already.
            if !no_space && connection.endpoint == endpoint {
                connection.client = None;
                connection.endpoint = (endpoint + 1) % self.url.endpoints.len();
            }
            connection.failures
        };
        let text = format!("etcd at {}: {text}", self.url.endpoints[endpoint]);
        {
            let mut health = self.health.lock();
            health.no_space |= no_space;
            health.unavailable = Some(text.clone());
        }
        // The other members are asked at once.
        let rounds = failures / self.url.endpoints.len() as u32;
        if no_space || rounds > 0 {
            let pause = FIRST_PAUSE.saturating_mul(1 << rounds.clamp(1, 6).saturating_sub(1));
            tokio::time::sleep(pause.min(MAX_PAUSE)).await;
        }
        MapStoreError::Unavailable(text)
    }

    fn full_key(&self, key: &[u8]) -> Vec<u8> {
        [&self.prefix, key].concat()
    }

    fn compare(&self, compare: &Compare) -> EtcdCompare {
        let key = self.full_key(compare.key());
        match compare {
            Compare::Value { value, .. } => EtcdCompare::value(key, CompareOp::Equal, value.clone()),
            Compare::ModRevision { revision, .. } => {
                EtcdCompare::mod_revision(key, CompareOp::Equal, *revision as i64)
            }
            Compare::Absent { .. } => EtcdCompare::create_revision(key, CompareOp::Equal, 0),
        }
    }

    fn op(&self, op: &Op) -> TxnOp {
        let key = self.full_key(op.key());
        match op {
            Op::Put { value, lease, .. } => {
                let options = lease.map(|lease| PutOptions::new().with_lease(lease.0 as i64));
                TxnOp::put(key, value.clone(), options)
            }
            Op::Delete { .. } => TxnOp::delete(key, None),
        }
    }

    fn entry(&self, found: &KeyValue) -> StoredEntry {
        StoredEntry {
            key: found.key().get(self.prefix.len()..).unwrap_or_default().to_vec(),
            value: found.value().to_vec(),
            create_revision: found.create_revision() as u64,
            mod_revision: found.mod_revision() as u64,
            lease: (found.lease() != 0).then_some(LeaseId(found.lease() as u64)),
        }
    }

    /// Notes the revision of an answer and returns it.
    fn note_revision(&self, header: Option<&etcd_client::ResponseHeader>) -> u64 {
        let revision = header.map_or(0, |header| header.revision()) as u64;
        let mut state = self.maintenance.lock();
        state.revision = state.revision.max(revision);
        revision
    }

    /// The revision up to which history may be removed now, if that is due.
    fn due_compaction(&self, now: Instant) -> Option<u64> {
        let mut state = self.maintenance.lock();
        if state.compacted.is_some_and(|at| now < at + COMPACTION_INTERVAL) {
            return None;
        }
        let old = state.samples.partition_point(|(at, _)| *at + KEPT_HISTORY <= now);
        let (_, revision) = state.samples.drain(..old).next_back()?;
        state.compacted = Some(now);
        Some(revision)
    }

    /// Asks for the size of the database and whether it is full.
    async fn refresh_usage(&self) {
        let status = self.call(async |mut client| client.status().await).await;
        let alarms =
            self.call(async |mut client| client.alarm(AlarmAction::Get, AlarmType::None, None).await).await;
        let mut health = self.health.lock();
        if let Ok(status) = status {
            let limit = if status.db_size_quota() > 0 { status.db_size_quota() as u64 } else { self.quota };
            health.usage = Some((status.db_size() as u64, limit));
        }
        if let Ok(alarms) = alarms {
            health.no_space = alarms.alarms().iter().any(|alarm| alarm.alarm() == AlarmType::Nospace);
        }
    }
}

#[async_trait]
impl MapStore for EtcdStore {
    async fn transact(&self, txn: &Txn) -> Result<TxnOutcome, MapStoreError> {
        txn.check_limits()?;
        let request = EtcdTxn::new()
            .when(txn.compares.iter().map(|compare| self.compare(compare)).collect::<Vec<_>>())
            .and_then(txn.ops.iter().map(|op| self.op(op)).collect::<Vec<_>>());
        let answer = self.call(async |mut client| client.txn(request).await).await;
        let answer = answer.map_err(|error| match (error, txn.lease()) {
            (MapStoreError::NoLease(_), Some(lease)) => MapStoreError::NoLease(lease.0),
            (other, _) => other,
        })?;
        let revision = self.note_revision(answer.header());
        if txn.ops.iter().any(|op| matches!(op, Op::Put { .. })) {
            self.health.lock().no_space = false;
        }
        Ok(match answer.succeeded() {
            true => TxnOutcome::Committed { revision },
            false => TxnOutcome::Conflict { revision },
        })
    }

    async fn get(&self, key: &[u8]) -> Result<Option<StoredEntry>, MapStoreError> {
        let key = self.full_key(key);
        let answer = self
            .call(async |client| {
                client.kv_client().max_decoding_message_size(MAX_ANSWER_BYTES).get(key, None).await
            })
            .await?;
        self.note_revision(answer.header());
        Ok(answer.kvs().first().map(|found| self.entry(found)))
    }

    async fn range(
        &self,
        start: &[u8],
        end: &[u8],
        limit: usize,
        revision: Option<u64>,
    ) -> Result<RangePage, MapStoreError> {
        if limit == 0 {
            return Err(MapStoreError::Malformed("a page of no entries"));
        }
        let limit = limit.min(MAX_PAGE);
        let (mut from, until) = (self.full_key(start), self.full_key(end));
        let mut page = RangePage { entries: Vec::new(), more: false, revision: revision.unwrap_or(0) };
        let mut bytes = 0;
        loop {
            let wanted = self.answer_entries.load(Ordering::Relaxed);
            let count = (limit - page.entries.len()).min(wanted);
            let mut options = GetOptions::new().with_range(until.clone()).with_limit(count as i64);
            if page.revision > 0 {
                options = options.with_revision(page.revision as i64);
            }
            let key = from.clone();
            let answer = self
                .call(async |client| {
                    let mut client = client.kv_client().max_decoding_message_size(MAX_ANSWER_BYTES);
                    client.get(key, Some(options)).await
                })
                .await;
            if matches!(answer, Err(MapStoreError::Unavailable(_))) {
                // It may have been too large for the time.
                self.answer_entries.store((count / 2).max(1), Ordering::Relaxed);
            }
            let answer = answer?;
            let revision = self.note_revision(answer.header());
            if page.revision == 0 {
                page.revision = revision;
            }
            let answer_bytes: usize = answer.kvs().iter().map(|kv| kv.key().len() + kv.value().len()).sum();
            let fitting = (count * ANSWER_BYTES / answer_bytes.max(1)).clamp(1, count * 2);
            self.answer_entries.store(fitting.min(MAX_ANSWER_ENTRIES), Ordering::Relaxed);
            let answered = page.entries.len() + answer.kvs().len();
            for found in answer.kvs() {
                bytes += found.key().len() + found.value().len();
                page.entries.push(self.entry(found));
                if bytes > PAGE_BYTES {
                    break;
                }
            }
            page.more = answer.more() || page.entries.len() < answered;
            let Some(last) = answer.kvs().last() else { return Ok(page) };
            if !page.more || page.entries.len() >= limit || bytes > PAGE_BYTES {
                return Ok(page);
            }
            from = [last.key(), &[0]].concat();
        }
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<LeaseId, MapStoreError> {
        let seconds = ttl.as_millis().div_ceil(1000).max(1) as i64;
        let answer = self.call(async |mut client| client.lease_grant(seconds, None).await).await?;
        Ok(LeaseId(answer.id() as u64))
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), MapStoreError> {
        let id = lease.0 as i64;
        self.call(async |mut client| match client.lease_keep_alive(id).await {
            Err(etcd_client::Error::LeaseKeepAliveError(_)) => Ok(Err(MapStoreError::NoLease(lease.0))),
            other => other.map(|_| Ok(())),
        })
        .await?
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<(), MapStoreError> {
        let id = lease.0 as i64;
        let revoked = self.call(async |mut client| client.lease_revoke(id).await.map(|_| ())).await;
        revoked.map_err(|error| match error {
            MapStoreError::NoLease(_) => MapStoreError::NoLease(lease.0),
            other => other,
        })
    }

    async fn watch(&self, start: &[u8], end: &[u8], revision: u64) -> Result<Box<dyn Watch>, MapStoreError> {
        let (start, end) = (self.full_key(start), self.full_key(end));
        let mut watch = EtcdWatch::new(&self.url, &self.access, start, end, self.prefix.len(), revision);
        watch.connect().await?;
        Ok(Box::new(watch))
    }

    async fn maintain(&self) {
        let now = Instant::now();
        {
            let mut state = self.maintenance.lock();
            if state.samples.back().is_some_and(|(at, _)| now < *at + SAMPLE_INTERVAL) {
                return;
            }
            let revision = state.revision;
            state.samples.push_back((now, revision));
        }
        self.refresh_usage().await;
        if let Some(revision) = self.due_compaction(now) {
            let compacted =
                self.call(async |mut client| client.compact(revision as i64, None).await.map(|_| ())).await;
            match compacted {
                Ok(()) => tracing::debug!(revision, "the history of the map store is compacted"),
                // Somebody else has compacted it further.
                Err(MapStoreError::Compacted { .. }) => {}
                Err(error) => tracing::warn!(%error, "the history of the map store was not compacted"),
            }
        }
    }

    fn health(&self) -> StoreHealth {
        self.health.lock().clone()
    }
}

/// Why a request failed.
#[derive(Debug)]
enum Failure {
    /// The outcome is unknown; another attempt may succeed.
    Unavailable(String),
    /// The database is full. Another attempt may succeed when somebody has made room.
    NoSpace(String),
    /// The request's lease does not exist.
    NoLease,
    /// Another attempt would fail, too.
    Final(MapStoreError),
}

/// What an error of etcd means.
fn classify(error: &etcd_client::Error) -> Failure {
    // The codes of gRPC, as etcd's api/v3rpc/rpctypes uses them.
    const INVALID_ARGUMENT: i32 = 3;
    const NOT_FOUND: i32 = 5;
    const PERMISSION_DENIED: i32 = 7;
    const RESOURCE_EXHAUSTED: i32 = 8;
    const OUT_OF_RANGE: i32 = 11;
    const DATA_LOSS: i32 = 15;
    const UNAUTHENTICATED: i32 = 16;
    let etcd_client::Error::GRpcStatus(status) = error else {
        return Failure::Unavailable(error.to_string());
    };
    let text = status.message();
    match status.code() as i32 {
        RESOURCE_EXHAUSTED if text.contains("database space exceeded") => Failure::NoSpace(text.to_owned()),
        RESOURCE_EXHAUSTED if text.contains("larger than max") => {
            Failure::Final(MapStoreError::Io(text.to_owned()))
        }
        DATA_LOSS => Failure::Final(MapStoreError::Corrupt(text.to_owned())),
        NOT_FOUND if text.contains("lease") => Failure::NoLease,
        OUT_OF_RANGE if text.contains("compacted") => Failure::Final(MapStoreError::Compacted { oldest: 0 }),
        // The token has expired, or the member has restarted; the next connection gets another token.
        UNAUTHENTICATED if text.contains("invalid auth token") => Failure::Unavailable(text.to_owned()),
        PERMISSION_DENIED | UNAUTHENTICATED => Failure::Final(MapStoreError::Denied(text.to_owned())),
        INVALID_ARGUMENT if text.contains("authentication failed") => {
            Failure::Final(MapStoreError::Denied(text.to_owned()))
        }
        // Users were changed since the connection was opened; the next one authenticates again.
        INVALID_ARGUMENT if text.contains("auth") || text.contains("user name is empty") => {
            Failure::Unavailable(text.to_owned())
        }
        INVALID_ARGUMENT => Failure::Final(MapStoreError::Io(text.to_owned())),
        _ => Failure::Unavailable(text.to_owned()),
    }
}
