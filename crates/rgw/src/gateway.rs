//! A gateway's connection to its cluster: pools, caches of users and buckets, tags, and the work that continues after a
//! request is answered.
//!
//! Cached records are valid while the gateway's watch on [`NOTIFY_OBJECT`] is established. A gateway that changes a user or a
//! bucket notifies all gateways. Its request succeeds only after each of them has acknowledged or has lost its watch. A
//! gateway whose watch gave no sign of life for [`WATCH_TIMEOUT`] may have lost it without knowing; it uses no cached
//! record.

use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::index::{Finisher, Preparer};
use crate::lease::GatewayLease;
use crate::lifecycle::LifecycleSchedule;
use crate::notifications::{self, Delivery, EndpointRules};
use crate::object::{LastCommits, ReadSizeEstimator, SECRET_BYTES, Secret, SseKeySource};
use crate::pools::Pools;
use crate::quota::{Quota, QuotaCache, QuotaTtls};
use crate::ratelimit::RateLimits;
use crate::record;
use crate::role::Role;
use crate::session::TokenSealer;
use crate::usage::UsageLog;
use crate::user::User;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use nacre_client::{Cluster, Notification, WatchHandler};
use nacre_notify::Notifier;
use nacre_topics::topic::Topic;
use nacre_types::encoding::Versioned;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{OnceCell, Semaphore, watch};
use tokio::task::JoinHandle;

/// The object in `default.rgw.control` that all gateways watch.
pub(crate) const NOTIFY_OBJECT: &str = "notify.0";
/// The monitors' config-key for the secret for SSE-S3, in base64. It is the key that earlier releases used, and the prefix
/// of the keys of generated secrets.
const SECRET_KEY: &str = "rgw/crypt/default_encryption_key";
/// The record in `default.rgw.control` that names the secret in use.
const ACTIVE_SECRET: &str = "sse_secret";
/// The maximum number of records in each cache.
const REMEMBERED: usize = 10_000;
/// A watch is lost after this time without a sign of life.
const WATCH_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a change waits for the other gateways. By then, gateways that do not answer have lost their watches.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(15);
const _: () = assert!(WATCH_TIMEOUT.as_secs() < NOTIFY_TIMEOUT.as_secs());
/// How long to wait for answers of other gateways.
pub(crate) const QUERY_TIMEOUT: Duration = Duration::from_secs(5);
/// Attempts to notify the other gateways of a change.
const NOTIFY_ATTEMPTS: u32 = 5;
/// How long a record is cached, as Ceph's `rgw_cache_expiry_interval`: a gateway may die after it changed a record and
/// before it notified the others.
const CACHE_TTL: Duration = Duration::from_secs(900);
/// The bytes that one permit of [`Gateway::put_memory`] stands for.
pub(crate) const PERMIT_BYTES: usize = 1024;
/// How long each step of a shutdown waits for the cluster.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a health check waits for the cluster, and how long its result is cached.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
const ANSWER_AGE: Duration = Duration::from_secs(1);
/// The delay before another attempt to watch or to notify.
const WATCH_RETRY: Duration = Duration::from_secs(1);

/// The configuration of a gateway.
#[derive(Clone, Debug)]
pub struct Config {
    /// `rgw_override_bucket_index_max_shards`: the number of shards of a new bucket's index.
    pub index_shards: u32,
    /// `rgw_max_put_memory`: the maximum number of bytes of objects' data that all requests together hold in memory on their
    /// way into RADOS.
    pub put_bytes: u64,
    /// `rgw_gc_obj_min_wait`: how long unreferenced tails are kept, for readers that still use them.
    pub gc_wait: Duration,
    /// `rgw_gc_processor_period`: how often garbage is collected.
    pub gc_period: Duration,
    /// `rgw_pending_bucket_index_op_expiration`: how old a pending change of another gateway must be before this gateway
    /// checks whether the other one is dead.
    pub pending_expiration: Duration,
    /// `rgw_gateway_lease_duration`: how long a gateway's lease lasts without renewal. A gateway that holds its lease is not
    /// fenced.
    pub lease: Duration,
    /// `rgw_region`: the region that is reported to clients.
    pub region: String,
    /// `rgw_admin_entry`: the beginning of the paths of the admin API; empty to disable the API.
    pub admin_entry: String,
    /// The maximum age of the usage that quotas are checked against.
    pub quota_ttls: QuotaTtls,
    /// `rgw_user_default_quota_…`: the user quota of new users.
    pub default_user_quota: Quota,
    /// `rgw_bucket_default_quota_…`: the bucket quota of new users.
    pub default_bucket_quota: Quota,
    /// `rgw_enable_usage_log`: the settings of the usage log; `None` disables it.
    pub usage: Option<UsageSettings>,
    /// Whether the gateway watches for changes by others, and so may cache records. This does not pay off for a short-lived
    /// process with few requests.
    pub watch: bool,
    /// `rgw_crypt_default_encryption_key`: the secret for SSE-S3. If none is given, one is generated and stored by the
    /// monitors.
    pub encryption_key: Option<[u8; 32]>,
    /// `rgw_crypt_require_ssl`: whether encryption keys of clients are refused if they come unencrypted from another host.
    pub require_tls_for_keys: bool,
    /// `rgw_max_objs_per_shard`: the number of objects that a shard of an index should have at most; 0 for no limit.
    pub objects_per_shard: u64,
    /// `rgw_dynamic_resharding`: whether this gateway reshards buckets that exceed `objects_per_shard`.
    pub dynamic_resharding: bool,
    /// `rgw_max_dynamic_shards`: the maximum number of shards that dynamic resharding gives a bucket.
    pub dynamic_shards: u32,
    /// `rgw_reshard_bucket_lock_duration`: how long a gateway that reshards may be silent before another one takes over.
    pub reshard_lock: Duration,
    /// `rgw_reshard_thread_interval`: how often the gateway checks for buckets to reshard.
    pub reshard_period: Duration,
    /// `rgw_enable_lc_threads`: whether this gateway applies the lifecycle rules of buckets.
    pub lifecycle: bool,
    /// `rgw_lifecycle_work_time`: the time of day for that work, `HH:MM-HH:MM` (UTC).
    pub lifecycle_time: String,
    /// `rgw_lc_debug_interval`: the number of seconds that a day of lifecycle rules lasts; a real day if it is not above 0.
    pub lifecycle_debug: i64,
    /// The settings for the queues of topics; `None` for a process that does not process them.
    pub delivery: Option<Delivery>,
}

/// Names the secret for SSE-S3 in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ActiveSecret {
    /// The monitors' config-key that contains it.
    key: String,
}

impl Versioned for ActiveSecret {
    const NAME: &'static str = "choice of a secret";
}

/// How the usage log is written.
#[derive(Clone, Copy, Debug)]
pub struct UsageSettings {
    /// `rgw_usage_log_flush_threshold`: the number of records at which the log is written at once.
    pub threshold: usize,
    /// `rgw_usage_log_tick_interval`: how often it is written.
    pub period: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            index_shards: 11,
            put_bytes: 128 << 20,
            gc_wait: Duration::from_secs(2 * 3600),
            gc_period: Duration::from_secs(3600),
            pending_expiration: Duration::from_secs(120),
            lease: Duration::from_secs(30),
            region: "default".into(),
            admin_entry: "admin".into(),
            quota_ttls: QuotaTtls { bucket: Duration::from_secs(600), user: Duration::from_secs(180) },
            default_user_quota: Quota::default(),
            default_bucket_quota: Quota::default(),
            usage: None,
            watch: true,
            encryption_key: None,
            require_tls_for_keys: true,
            objects_per_shard: 100_000,
            dynamic_resharding: true,
            dynamic_shards: 1999,
            reshard_lock: Duration::from_secs(360),
            reshard_period: Duration::from_secs(600),
            lifecycle: true,
            lifecycle_time: "00:00-06:00".into(),
            lifecycle_debug: -1,
            delivery: None,
        }
    }
}

/// A notification from one gateway to the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum GatewayMessage {
    /// A user or its keys.
    User(String),
    /// A bucket.
    Bucket(String),
    /// A role.
    Role(String),
    /// A notification topic, by tenant and name: `TENANT:NAME`.
    Topic(String),
    /// Not a change, but a request for the state of the circuit breaker of the topic with that id in each gateway. The
    /// acknowledgement contains the answer ([`BreakerState::as_str`](nacre_queues::retry::BreakerState::as_str)).
    AskBreaker(String),
    /// Not a change, but a question: whether a gateway supports storage classes
    /// ([`STORAGE_CLASSES_ANSWER`](crate::zone::STORAGE_CLASSES_ANSWER)).
    AskStorageClasses,
}

/// A gateway of one cluster. All its methods may be called from any task.
pub struct Gateway {
    /// The connection to the cluster.
    pub cluster: Cluster,
    pub(crate) pools: Pools,
    /// The configuration that the gateway was started with.
    pub config: Config,
    /// A reference to this gateway itself, for tasks that need a handle.
    own: Weak<Gateway>,
    pub(crate) preparer: Preparer,
    pub(crate) commits: LastCommits,
    pub(crate) finisher: Finisher,
    /// The number of writes of bucket indexes that left events in an outbox.
    pub outbox_writes: Arc<AtomicU64>,
    pub(crate) lifecycle: LifecycleSchedule,
    pub(crate) lease: GatewayLease,
    /// Permits of [`PERMIT_BYTES`] each.
    pub(crate) put_memory: Arc<Semaphore>,
    /// How many bytes of a head a GET reads first.
    pub(crate) read_sizes: ReadSizeEstimator,
    pub(crate) quotas: QuotaCache,
    /// Seals session tokens; created when it is first needed.
    pub(crate) sealer: OnceCell<TokenSealer>,
    /// The usage log; `None` if it is disabled.
    pub usage: Option<Arc<UsageLog>>,
    /// The remaining rate limits of users and buckets in this gateway.
    pub ratelimits: RateLimits,
    /// The rules for the endpoints of topics.
    pub(crate) rules: EndpointRules,
    /// Processes the queues of topics, if this process does so.
    pub(crate) notifier: OnceLock<Arc<Notifier>>,
    /// The number of garbage records that the last collection could not decode.
    pub damaged_garbage: Arc<AtomicU64>,
    pub(crate) caches: MetadataCaches,
    secret: OnceCell<Secret>,
    /// The time and the result of the last health check of the cluster.
    answered: tokio::sync::Mutex<Option<(Instant, bool)>>,
    session: String,
    /// Whether the cluster has blocklisted this gateway.
    blocklisted: watch::Sender<bool>,
    /// The first half of tags. The second half is a counter.
    instance: u64,
    counted: AtomicU64,
}

/// Caches of users, by access key and by id, of roles, of buckets and of topics.
#[derive(Default)]
pub(crate) struct MetadataCaches {
    /// The watch's cookie; and whether the gateway has ended, so that no watch is wanted.
    watch: Mutex<Option<u64>>,
    ended: AtomicBool,
    /// Incremented by every change: a record that was read before a change must not be cached after it.
    changes: AtomicU64,
    users: MetadataCache<User>,
    owners: MetadataCache<User>,
    roles: MetadataCache<Role>,
    buckets: MetadataCache<Bucket>,
    /// Also caches that a topic does not exist, because configurations outlive their topics.
    pub(crate) topics: MetadataCache<Option<Arc<Topic>>>,
}

/// Cached records by name, each with the time at which it was cached.
pub(crate) struct MetadataCache<T>(Mutex<HashMap<String, (Instant, Arc<T>)>>);

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway").field("session", &self.session).finish_non_exhaustive()
    }
}

/// Returns the current time, in nanoseconds since 1970.
pub fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Spawns a task for a large future. The future is boxed, because it would be moved several times before it runs.
pub fn spawn_boxed<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(Box::pin(future))
}

/// Returns the name of a session in blocklists, which does not depend on the session's address.
fn session_name(number: u64) -> String {
    format!("client.{number}")
}

impl Gateway {
    /// Opens the pools, creates missing ones, and starts to watch. Must be called within a runtime.
    pub async fn open(cluster: Cluster, config: Config) -> Result<Arc<Gateway>> {
        let lifecycle = LifecycleSchedule::read(&config.lifecycle_time, config.lifecycle_debug)?;
        let pools = Pools::open(&cluster, config.watch).await?;
        // Gateways that recover this gateway's changes blocklist it by this name, so it must not continue under another one.
        let number = cluster.bind_session();
        let session = session_name(number);
        let mut instance = [0; 8];
        getrandom::fill(&mut instance).map_err(Error::no_random_numbers)?;
        // At least one piece must fit.
        let room = config.put_bytes.max(crate::object::PIECE_BYTES as u64);
        let permits = (room as usize / PERMIT_BYTES).min(u32::MAX as usize);
        let gateway = Arc::new_cyclic(|own| Gateway {
            own: Weak::clone(own),
            preparer: Preparer::default(),
            commits: LastCommits::default(),
            outbox_writes: Arc::default(),
            finisher: Finisher::default(),
            lifecycle,
            lease: GatewayLease::default(),
            put_memory: Arc::new(Semaphore::new(permits)),
            read_sizes: ReadSizeEstimator::default(),
            quotas: QuotaCache::default(),
            sealer: OnceCell::new(),
            usage: config.usage.map(|usage| Arc::new(UsageLog::new(usage.threshold))),
            ratelimits: RateLimits::default(),
            rules: match &config.delivery {
                Some(delivery) => delivery.rules.clone(),
                None => EndpointRules::new(&cluster),
            },
            notifier: OnceLock::new(),
            damaged_garbage: Arc::default(),
            caches: MetadataCaches::default(),
            secret: OnceCell::new(),
            answered: tokio::sync::Mutex::new(None),
            session,
            blocklisted: watch::Sender::new(false),
            instance: u64::from_be_bytes(instance),
            counted: AtomicU64::new(0),
            cluster,
            pools,
            config,
        });
        if gateway.config.watch {
            tokio::spawn(keep_watching(Arc::downgrade(&gateway)));
        }
        if let Some(delivery) = &gateway.config.delivery {
            gateway.notifier.get_or_init(|| notifications::start(&gateway, delivery, number));
            tokio::spawn(notifications::note_gateways(Arc::downgrade(&gateway)));
        }
        tokio::spawn(crate::lease::renew_lease_periodically(Arc::downgrade(&gateway), gateway.config.lease));
        if gateway.config.watch {
            tokio::spawn(crate::index::recover(Arc::downgrade(&gateway)));
        }
        tokio::spawn(crate::garbage::run_gc(Arc::downgrade(&gateway), gateway.config.gc_period));
        if let (Some(log), Some(usage)) = (&gateway.usage, &gateway.config.usage) {
            let log = Arc::clone(log);
            tokio::spawn(crate::usage::flush_periodically(Arc::downgrade(&gateway), log, usage.period));
        }
        if gateway.config.dynamic_resharding {
            tokio::spawn(crate::index::reshard(Arc::downgrade(&gateway), gateway.config.reshard_period));
        }
        if gateway.config.lifecycle {
            tokio::spawn(crate::lifecycle::run_lifecycle(Arc::downgrade(&gateway), lifecycle));
        }
        Ok(gateway)
    }

    /// Finishes the index entries of changes that were acknowledged, and gives up the watch: other gateways no longer wait
    /// for this one when they change something. The gateway may still be used, but caches nothing.
    ///
    /// If the cluster does not answer, it gives up after a while: other gateways recover the pending changes.
    pub async fn shut_down(&self) {
        if let Some(notifier) = self.notifier() {
            notifier.stop().await;
        }
        if !self.finish_changes().await {
            tracing::warn!("rgw: index entries are left pending, the cluster does not answer");
        }
        match tokio::time::timeout(FINISH_TIMEOUT, self.flush_usage()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "rgw: usage is not written"),
            Err(_) => tracing::warn!("rgw: usage is not written, the cluster does not answer"),
        }
        self.caches.ended.store(true, Ordering::Release);
        let cookie = self.caches.watch.lock().take();
        if let Some(cookie) = cookie {
            match tokio::time::timeout(FINISH_TIMEOUT, self.pools.control.unwatch(cookie)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "rgw: the watch was lost already"),
                Err(_) => tracing::warn!("rgw: the watch could not be given back"),
            }
        }
        // A lease that is not released expires.
        match tokio::time::timeout(FINISH_TIMEOUT, self.release_lease()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "rgw: the lease could not be given back"),
            Err(_) => tracing::warn!("rgw: the lease could not be given back"),
        }
    }

    /// Waits for a bounded time until this gateway has no change left to be finished in an index. Returns whether there is none.
    pub(crate) async fn finish_changes(&self) -> bool {
        tokio::time::timeout(FINISH_TIMEOUT, self.finisher.drain()).await.is_ok()
    }

    /// Waits until the cluster has blocklisted this gateway, because it was considered dead. Then all its operations fail,
    /// and it must be restarted.
    pub async fn wait_blocklisted(&self) {
        // The wait can't fail: this gateway owns the sender.
        _ = self.blocklisted.subscribe().wait_for(|is_out| *is_out).await;
    }

    /// Whether the cluster answers within two seconds. The cluster is asked at most once a second, however many callers
    /// there are.
    pub async fn is_cluster_responsive(&self) -> bool {
        let mut answered = self.answered.lock().await;
        if let Some((at, answers)) = *answered
            && at.elapsed() < ANSWER_AGE
        {
            return answers;
        }
        let asked = tokio::time::timeout(ANSWER_TIMEOUT, self.pools.control.stat(NOTIFY_OBJECT)).await;
        let answers = match asked {
            Ok(Ok(_)) => true,
            Ok(Err(error)) => error.is_not_found(),
            Err(_) => false,
        };
        *answered = Some((Instant::now(), answers));
        answers
    }

    /// Returns a handle for a task that may outlive the call. Fails while the gateway is being dropped.
    pub(crate) fn shared(&self) -> Result<Arc<Gateway>> {
        self.own.upgrade().ok_or(Error::Rados(nacre_client::Error::ShutDown))
    }

    /// Notes that a finish left events of these objects in the outbox of a shard of that bucket. If `keys` is empty, they
    /// may be events of any objects.
    pub(crate) fn outbox_written(&self, bucket: &str, shard: &str, keys: &[String]) {
        self.outbox_writes.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(bucket, shard, "rgw: events are in an outbox");
        if let Some(notifier) = self.notifier() {
            notifier.outbox_written(crate::index::bucket_id(shard), shard, keys);
        }
    }

    /// Returns a name that nothing in the cluster has or ever had: 32 hexadecimal digits.
    pub fn new_tag(&self) -> String {
        format!("{:016x}{:016x}", self.instance, self.counted.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the name of this gateway's session in blocklists.
    pub(crate) fn session(&self) -> &str {
        &self.session
    }

    /// Returns the cluster's secret for SSE-S3.
    pub async fn cluster_secret(&self) -> Result<Secret> {
        let known = self.secret.get_or_try_init(async || {
            let bytes = match self.config.encryption_key {
                Some(key) => key,
                None => self.stored_secret().await?,
            };
            Ok::<_, Error>(Secret::new(SseKeySource::Cluster, bytes))
        });
        known.await.cloned()
    }

    /// Returns the secret that the monitors store; generates one if there is none.
    ///
    /// Each gateway that finds none stores one under a name of its own. One record in RADOS, which is created once, names
    /// the one in use: a command to the monitors that arrives late can't replace it.
    async fn stored_secret(&self) -> Result<[u8; SECRET_BYTES]> {
        if let Some((choice, _)) = record::read::<ActiveSecret>(&self.pools.control, ACTIVE_SECRET).await? {
            return self.chosen_secret(&choice.key).await;
        }
        // Earlier releases used a single name and had no such record.
        let made = match self.ask_secret(SECRET_KEY).await? {
            Some(_) => None,
            None => Some(format!("{SECRET_KEY}/{}", self.new_tag())),
        };
        if let Some(key) = &made {
            let val = STANDARD.encode(crate::object::random_salt()?);
            let command = serde_json::json!({ "prefix": "config-key set", "key": key, "val": val });
            self.cluster.command(command.to_string(), "").await?;
        }
        let own = ActiveSecret { key: made.clone().unwrap_or_else(|| SECRET_KEY.to_owned()) };
        record::create(&self.pools.control, ACTIVE_SECRET, &own).await?;
        let (choice, _) = record::read::<ActiveSecret>(&self.pools.control, ACTIVE_SECRET)
            .await?
            .ok_or_else(|| Error::Contended("the secret for encryption".into()))?;
        if let Some(key) = made.filter(|key| *key != choice.key) {
            let command = serde_json::json!({ "prefix": "config-key rm", "key": key });
            if let Err(error) = self.cluster.command(command.to_string(), "").await {
                tracing::debug!(%error, key, "rgw: a secret that nothing uses is left with the monitors");
            }
        }
        self.chosen_secret(&choice.key).await
    }

    async fn chosen_secret(&self, key: &str) -> Result<[u8; SECRET_BYTES]> {
        let kept = self.ask_secret(key).await?;
        kept.ok_or_else(|| Error::Internal {
            what: "the secret for encryption",
            detail: format!("config-key {key} is gone"),
        })
    }

    async fn ask_secret(&self, key: &str) -> Result<Option<[u8; SECRET_BYTES]>> {
        let command = serde_json::json!({ "prefix": "config-key get", "key": key });
        let kept = match self.cluster.command(command.to_string(), "").await {
            Err(error) if error.is_not_found() => return Ok(None),
            kept => kept?.output,
        };
        let bytes = STANDARD.decode(kept.trim_ascii()).ok().and_then(|bytes| bytes.try_into().ok());
        let wrong = || Error::Internal {
            what: "the secret for encryption",
            detail: format!("config-key {key} is no secret of {SECRET_BYTES} bytes"),
        };
        bytes.map(Some).ok_or_else(wrong)
    }

    /// Returns the user of an access key, as of the beginning of the call or later.
    pub async fn cached_user(&self, access_key: &str) -> Result<Arc<User>> {
        self.get_cached(&self.caches.users, access_key, self.user_of_key(access_key)).await
    }

    /// Returns the user of that id, as of the beginning of the call or later.
    pub async fn cached_user_by_id(&self, id: &str) -> Result<Arc<User>> {
        self.get_cached(&self.caches.owners, id, self.user(id)).await
    }

    /// Returns the role of that name, as of the beginning of the call or later.
    pub async fn cached_role(&self, name: &str) -> Result<Arc<Role>> {
        self.get_cached(&self.caches.roles, name, self.role(name)).await
    }

    /// Returns the bucket of that name, as of the beginning of the call or later.
    pub async fn cached_bucket(&self, name: &str) -> Result<Arc<Bucket>> {
        self.get_cached(&self.caches.buckets, name, self.bucket(name)).await
    }

    pub(crate) async fn get_cached<T>(
        &self,
        cache: &MetadataCache<T>,
        name: &str,
        asking: impl Future<Output = Result<T>>,
    ) -> Result<Arc<T>> {
        if self.is_watching()
            && let Some(known) = cache.get(name)
        {
            return Ok(known);
        }
        let changes = self.caches.changes.load(Ordering::Acquire);
        let asked = Arc::new(asking.await?);
        if self.is_watching() {
            cache.insert_if_unchanged(&self.caches.changes, changes, name, &asked);
        }
        Ok(asked)
    }

    /// Whether the watch is certainly established. If so, no other gateway completes a change before it has notified this
    /// one.
    fn is_watching(&self) -> bool {
        let cookie = *self.caches.watch.lock();
        let silent = cookie.map(|cookie| self.pools.control.watch_check(cookie));
        silent.is_some_and(|silent| silent.is_ok_and(|silent| silent < WATCH_TIMEOUT))
    }

    /// Returns the sessions of all gateways that watch.
    pub(crate) async fn live_gateways(&self) -> Result<BTreeSet<String>> {
        let watchers = self.pools.control.list_watchers(NOTIFY_OBJECT).await?;
        Ok(watchers.into_iter().map(|watcher| session_name(watcher.client.0)).collect())
    }

    /// Returns the addresses of all gateways that watch.
    pub(crate) async fn gateway_addresses(&self) -> Result<BTreeSet<IpAddr>> {
        // Watchers' addresses have the form ADDRESS:PORT/NONCE.
        let address_of = |text: &str| {
            let socket = text.rsplit_once('/').map_or(text, |(socket, _)| socket);
            socket.parse::<SocketAddr>().ok().map(|socket| socket.ip())
        };
        let watchers = match self.pools.control.list_watchers(NOTIFY_OBJECT).await {
            Err(error) if error.is_not_found() => return Ok(BTreeSet::new()),
            watchers => watchers?,
        };
        Ok(watchers.iter().filter_map(|watcher| address_of(&watcher.addr)).collect())
    }

    /// Handles a change that this or another gateway made.
    fn invalidate(&self, change: &GatewayMessage) {
        self.caches.invalidate(change);
        if let (GatewayMessage::Topic(key), Some(notifier)) = (change, self.notifier()) {
            notifier.topic_changed(&notifications::arn_of_key(key, &self.config.region));
        }
    }

    /// Removes a bucket from this gateway's cache.
    pub(crate) fn invalidate_bucket(&self, name: &str) {
        self.caches.invalidate(&GatewayMessage::Bucket(name.to_owned()));
    }

    /// Makes a change and has all gateways invalidate their cached records of it, unless it was certainly not made. Fails if
    /// some gateways may not know of the change: they could use the old record for [`CACHE_TTL`], so the caller must request
    /// the change again.
    pub(crate) async fn with_invalidation<T>(
        &self,
        change: GatewayMessage,
        making: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let (made, told) = self.apply_and_notify(change, making).await;
        let made = made?;
        told.map(|()| made)
    }

    /// Like [`Gateway::with_invalidation`], but ignores failed notifications. It is for the creation or removal of a bucket,
    /// which takes further steps: gateways that do not know of it find the record, or no index, when they look.
    pub(crate) async fn with_best_effort_invalidation<T>(
        &self,
        change: GatewayMessage,
        making: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.apply_and_notify(change, making).await.0
    }

    async fn apply_and_notify<T>(
        &self,
        change: GatewayMessage,
        making: impl Future<Output = Result<T>>,
    ) -> (Result<T>, Result<()>) {
        let made = making.await;
        let may_be_made = made.as_ref().map_or_else(Error::is_outcome_unknown, |_| true);
        let told = if may_be_made { self.notify_gateways(change).await } else { Ok(()) };
        (made, told)
    }

    /// Asks all gateways a question; returns the answers with the numbers of the gateways' sessions. A gateway that does not
    /// answer in time is missing.
    pub(crate) async fn query_gateways(&self, question: &GatewayMessage) -> Result<Vec<(u64, Bytes)>> {
        let payload = postcard::to_stdvec(question).expect("invariant: names can be encoded");
        match self.pools.control.notify(NOTIFY_OBJECT, payload, Some(QUERY_TIMEOUT)).await {
            // No gateway ever watched.
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            outcome => {
                let acks = outcome?.reply.acks.into_iter();
                Ok(acks.map(|(session, _, answer)| (session, answer)).collect())
            }
        }
    }

    /// Notifies all gateways of a change that was made, including this one, and waits until they know. A gateway that does
    /// not answer has lost its watch and empties its caches. Fails if the gateways could not be notified after [`NOTIFY_ATTEMPTS`]
    /// attempts.
    pub(crate) async fn notify_gateways(&self, change: GatewayMessage) -> Result<()> {
        self.invalidate(&change);
        let payload = postcard::to_stdvec(&change).expect("invariant: names can be encoded");
        let mut attempt = 1;
        loop {
            match self.pools.control.notify(NOTIFY_OBJECT, payload.clone(), Some(NOTIFY_TIMEOUT)).await {
                Ok(outcome) if outcome.timed_out => {
                    tracing::warn!(?change, "rgw: a gateway did not answer");
                    return Ok(());
                }
                Ok(_) => return Ok(()),
                // No gateway ever watched.
                Err(error) if error.is_not_found() => return Ok(()),
                Err(error) => {
                    tracing::warn!(%error, ?change, "rgw: other gateways could not be told");
                    let is_over =
                        matches!(error, nacre_client::Error::ShutDown | nacre_client::Error::Blocklisted);
                    if is_over || attempt == NOTIFY_ATTEMPTS {
                        return Err(error.into());
                    }
                    attempt += 1;
                    tokio::time::sleep(WATCH_RETRY).await;
                }
            }
        }
    }
}

impl<T> Default for MetadataCache<T> {
    fn default() -> MetadataCache<T> {
        MetadataCache(Mutex::default())
    }
}

impl<T> MetadataCache<T> {
    fn get(&self, name: &str) -> Option<Arc<T>> {
        let map = self.0.lock();
        map.get(name).filter(|(since, _)| since.elapsed() < CACHE_TTL).map(|(_, value)| Arc::clone(value))
    }

    /// Caches a value that was read when `changed` was `before`, unless there was a change since.
    fn insert_if_unchanged(&self, changed: &AtomicU64, before: u64, name: &str, value: &Arc<T>) {
        let mut map = self.0.lock();
        if changed.load(Ordering::Acquire) == before {
            if map.len() >= REMEMBERED {
                map.clear();
            }
            map.insert(name.to_owned(), (Instant::now(), Arc::clone(value)));
        }
    }

    fn forget(&self, name: &str) {
        self.0.lock().remove(name);
    }
}

impl MetadataCaches {
    fn invalidate(&self, change: &GatewayMessage) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        match change {
            GatewayMessage::User(id) => {
                self.users.0.lock().retain(|_, (_, user)| user.id != *id);
                self.owners.forget(id);
            }
            GatewayMessage::Bucket(name) => self.buckets.forget(name),
            GatewayMessage::Role(name) => self.roles.forget(name),
            GatewayMessage::Topic(key) => self.topics.forget(key),
            GatewayMessage::AskBreaker(_) | GatewayMessage::AskStorageClasses => {}
        }
    }

    fn invalidate_all(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        self.users.0.lock().clear();
        self.owners.0.lock().clear();
        self.roles.0.lock().clear();
        self.buckets.0.lock().clear();
        self.topics.0.lock().clear();
    }
}

/// Invalidates this gateway's cached records when another gateway notifies it of a change.
struct InvalidationHandler {
    gateway: Weak<Gateway>,
    lost: Arc<tokio::sync::Notify>,
}

impl WatchHandler for InvalidationHandler {
    fn notified(&self, notification: Notification) {
        let Some(gateway) = self.gateway.upgrade() else { return };
        let mut answer = "";
        match postcard::from_bytes::<GatewayMessage>(&notification.payload) {
            Ok(GatewayMessage::AskBreaker(topic)) => answer = gateway.local_breaker_state(&topic),
            Ok(GatewayMessage::AskStorageClasses) => answer = crate::zone::STORAGE_CLASSES_ANSWER,
            Ok(change) => gateway.invalidate(&change),
            // A message of a newer release may concern any record.
            Err(_) => gateway.caches.invalidate_all(),
        }
        gateway.pools.control.notify_ack(NOTIFY_OBJECT, notification.notify_id, notification.cookie, answer);
    }

    fn lost(&self, _cookie: u64, _error: nacre_client::Error) {
        if let Some(gateway) = self.gateway.upgrade() {
            gateway.caches.invalidate_all();
        }
        self.lost.notify_one();
    }
}

/// Watches while the gateway exists; watches again when the watch is lost.
async fn keep_watching(gateway: Weak<Gateway>) {
    let lost = Arc::new(tokio::sync::Notify::new());
    loop {
        let Some(strong) = gateway.upgrade() else { return };
        let control = strong.pools.control.clone();
        let handler = Arc::new(InvalidationHandler { gateway: gateway.clone(), lost: Arc::clone(&lost) });
        let watched = match control.create(NOTIFY_OBJECT, false).await {
            Ok(()) => {
                let (cookie, watched) = control.watch(NOTIFY_OBJECT, Some(WATCH_TIMEOUT), handler);
                watched.await.map(|()| cookie)
            }
            Err(error) => Err(error),
        };
        if let Ok(cookie) = &watched {
            // Reads in flight began before the watch, and this gateway was not notified of changes in between: their results
            // must not be cached.
            strong.caches.invalidate_all();
            *strong.caches.watch.lock() = Some(*cookie);
        }
        // The gateway may have ended before the watch was established.
        if strong.caches.ended.load(Ordering::Acquire) {
            let cookie = strong.caches.watch.lock().take();
            if let Some(cookie) = cookie {
                _ = control.unwatch(cookie).await;
            }
            return;
        }
        drop(strong);
        match watched {
            Ok(cookie) => {
                lost.notified().await;
                // The watch is lost, so the result does not matter.
                _ = control.unwatch(cookie).await;
            }
            Err(nacre_client::Error::ShutDown) => return,
            Err(error @ nacre_client::Error::Blocklisted) => {
                tracing::error!(%error, "rgw: the cluster has shut this gateway out: restart it");
                if let Some(gateway) = gateway.upgrade() {
                    gateway.blocklisted.send_replace(true);
                }
                return;
            }
            Err(error) => {
                tracing::warn!(%error, "rgw: can't watch for changes; nothing is remembered meanwhile");
                tokio::time::sleep(WATCH_RETRY).await;
            }
        }
    }
}
