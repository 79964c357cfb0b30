//! A gateway of a cluster: its parts, and the work that continues after a request is answered.

use crate::bucket::{Bucket, Buckets};
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::garbage::GarbageQueue;
use crate::index::{Finisher, Preparer};
use crate::lease::Leases;
use crate::lifecycle_worker::LifecycleSchedule;
use crate::message::{GatewayMessage, NOTIFY_OBJECT};
use crate::notifications::{self, DeliveryConfig};
use crate::object::LastCommits;
use crate::peers::{MessageListener, MetadataCache, Peers};
use crate::pools::Pools;
use crate::quota::{Quota, QuotaTtls};
use crate::quota_cache::QuotaCache;
use crate::ratelimit::RateLimiter;
use crate::role::Roles;
use crate::session::Authenticator;
use crate::sse_secret::SseSecret;
use crate::storage_classes::StorageClasses;
use crate::stored::StoredObjects;
use crate::topics::{EndpointRules, Topics, refresh_endpoint_rules};
use crate::usage::UsageStore;
use crate::user::{DefaultQuotas, Users};
use nacre_client::Cluster;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// The bytes that one permit of [`Gateway::put_memory`] stands for.
pub(crate) const PERMIT_BYTES: usize = 1024;
/// How long each step of a shutdown waits for the cluster.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a health check waits for the cluster, and how long its result is cached.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
const ANSWER_AGE: Duration = Duration::from_secs(1);
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
    pub delivery: Option<DeliveryConfig>,
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

/// A gateway of one cluster. All its methods may be called from any task.
pub struct Gateway {
    /// The cluster.
    pub cluster: Cluster,
    pub(crate) pools: Pools,
    pub(crate) connection: Arc<Connection>,
    /// The gateways of the cluster.
    pub(crate) peers: Arc<Peers>,
    /// The users of the cluster.
    pub users: Arc<Users>,
    /// The roles of the cluster.
    pub roles: Arc<Roles>,
    /// Identifies the senders of requests.
    pub authenticator: Authenticator,
    /// The records of buckets.
    pub buckets: Buckets,
    /// The storage classes and their pools.
    pub classes: Arc<StorageClasses>,
    /// The objects of all buckets, for reading.
    pub objects: StoredObjects,
    /// Unreferenced data.
    pub garbage: GarbageQueue,
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
    pub(crate) leases: Arc<Leases>,
    /// Permits of [`PERMIT_BYTES`] each.
    pub(crate) put_memory: Arc<Semaphore>,
    pub(crate) quotas: Arc<QuotaCache>,
    /// The usage log.
    pub usage: Arc<UsageStore>,
    /// The remaining rate limits of users and buckets in this gateway.
    pub ratelimits: RateLimiter,
    pub(crate) bucket_cache: MetadataCache<Bucket>,
    /// The topics of the cluster.
    pub topics: Arc<Topics>,
    /// The secret for SSE-S3.
    pub sse_secret: SseSecret,
    /// The time and the result of the last health check of the cluster.
    answered: tokio::sync::Mutex<Option<(Instant, bool)>>,
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway").field("session", &self.connection.session()).finish_non_exhaustive()
    }
}

/// Spawns a task for a large future. The future is boxed, because it would be moved several times before it runs.
pub fn spawn_boxed<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(Box::pin(future))
}

/// Answers questions of other gateways about this release.
struct ReleaseListener;

impl MessageListener for ReleaseListener {
    fn changed(&self, _change: &GatewayMessage) {}

    fn answer(&self, question: &GatewayMessage) -> Option<&'static str> {
        match question {
            GatewayMessage::AskStorageClasses => Some(crate::zone::STORAGE_CLASSES_ANSWER),
            _ => None,
        }
    }
}

impl Gateway {
    /// Opens the pools, creates missing ones, and starts to watch. Must be called within a runtime.
    pub async fn open(cluster: Cluster, config: Config) -> Result<Arc<Gateway>> {
        let lifecycle = LifecycleSchedule::read(&config.lifecycle_time, config.lifecycle_debug)?;
        let connection = Arc::new(Connection::open(cluster, config.watch).await?);
        let (cluster, pools) = (connection.cluster.clone(), connection.pools.clone());
        let peers = Peers::new(&connection);
        let default_quotas =
            DefaultQuotas { user: config.default_user_quota, bucket: config.default_bucket_quota };
        let users = Arc::new(Users::new(&connection, &peers, default_quotas));
        let roles = Arc::new(Roles::new(&connection, &peers));
        let classes = Arc::new(StorageClasses::new(&connection));
        let rules = match &config.delivery {
            Some(delivery) => delivery.rules.clone(),
            None => EndpointRules::new(&cluster),
        };
        // At least one piece must fit.
        let room = config.put_bytes.max(crate::stored::PIECE_BYTES as u64);
        let permits = (room as usize / PERMIT_BYTES).min(u32::MAX as usize);
        let gateway = Arc::new_cyclic(|own| Gateway {
            own: Weak::clone(own),
            preparer: Preparer::default(),
            commits: LastCommits::default(),
            outbox_writes: Arc::default(),
            finisher: Finisher::default(),
            lifecycle,
            authenticator: Authenticator::new(&pools.sts, &users, &roles),
            buckets: Buckets::new(&connection, &peers),
            objects: StoredObjects::new(pools.data.clone(), &classes),
            garbage: GarbageQueue::new(&pools.garbage, &classes, config.gc_wait),
            usage: Arc::new(UsageStore::new(&pools.usage, config.usage.map(|usage| usage.threshold))),
            leases: Arc::new(Leases::new(&connection, &peers, config.lease)),
            bucket_cache: MetadataCache::new(&peers, |buckets, change| {
                if let GatewayMessage::Bucket(name) = change {
                    buckets.remove(name);
                }
            }),
            topics: Topics::new(&connection, &peers, &config.region, rules),
            sse_secret: SseSecret::new(&connection, config.encryption_key),
            users,
            roles,
            classes,
            put_memory: Arc::new(Semaphore::new(permits)),
            quotas: Arc::default(),
            ratelimits: RateLimiter::default(),
            answered: tokio::sync::Mutex::new(None),
            peers,
            connection,
            cluster,
            pools,
            config,
        });
        gateway.peers.add_listener(Arc::new(ReleaseListener));
        if gateway.config.watch {
            tokio::spawn(crate::peers::keep_watching(Arc::downgrade(&gateway.peers)));
        }
        if let Some(delivery) = &gateway.config.delivery {
            let notifier = notifications::start(&gateway, delivery, gateway.connection.number);
            gateway.topics.set_notifier(notifier);
            tokio::spawn(refresh_endpoint_rules(Arc::downgrade(&gateway.topics)));
        }
        tokio::spawn(crate::lease::renew_periodically(Arc::downgrade(&gateway.leases), gateway.config.lease));
        if gateway.config.watch {
            tokio::spawn(crate::index::recover(Arc::downgrade(&gateway)));
        }
        tokio::spawn(run_gc(Arc::downgrade(&gateway), gateway.config.gc_period));
        if let (Some(log), Some(usage)) = (&gateway.usage.log, &gateway.config.usage) {
            let log = Arc::clone(log);
            tokio::spawn(crate::usage::flush_periodically(Arc::downgrade(&gateway.usage), log, usage.period));
        }
        if gateway.config.dynamic_resharding {
            tokio::spawn(crate::index::reshard(Arc::downgrade(&gateway), gateway.config.reshard_period));
        }
        if gateway.config.lifecycle {
            tokio::spawn(crate::lifecycle_worker::run_lifecycle(Arc::downgrade(&gateway), lifecycle));
        }
        Ok(gateway)
    }

    /// Finishes the index entries of changes that were acknowledged, and gives up the watch: other gateways no longer wait
    /// for this one when they change something. The gateway may still be used, but caches nothing.
    ///
    /// If the cluster does not answer, it gives up after a while: other gateways recover the pending changes.
    pub async fn shut_down(&self) {
        if let Some(notifier) = self.topics.notifier() {
            notifier.stop().await;
        }
        if !self.drain_finisher().await {
            tracing::warn!("rgw: index entries are left pending, the cluster does not answer");
        }
        match tokio::time::timeout(FINISH_TIMEOUT, self.usage.flush()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "rgw: usage is not written"),
            Err(_) => tracing::warn!("rgw: usage is not written, the cluster does not answer"),
        }
        self.peers.unwatch(FINISH_TIMEOUT).await;
        // A lease that is not released expires.
        match tokio::time::timeout(FINISH_TIMEOUT, self.leases.release()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "rgw: the lease could not be given back"),
            Err(_) => tracing::warn!("rgw: the lease could not be given back"),
        }
    }

    /// Waits for a bounded time until this gateway has no change left to be finished in an index. Returns whether there is none.
    pub(crate) async fn drain_finisher(&self) -> bool {
        tokio::time::timeout(FINISH_TIMEOUT, self.finisher.drain()).await.is_ok()
    }

    /// Waits until the cluster has blocklisted this gateway, because it was considered dead. Then all its operations fail,
    /// and it must be restarted.
    pub async fn wait_blocklisted(&self) {
        self.peers.wait_blocklisted().await;
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
    pub(crate) fn self_handle(&self) -> Result<Arc<Gateway>> {
        self.own.upgrade().ok_or(Error::Rados(nacre_client::Error::ShutDown))
    }

    /// Notes that a finish left events of these objects in the outbox of a shard of that bucket. If `keys` is empty, they
    /// may be events of any objects.
    pub(crate) fn outbox_written(&self, bucket: &str, shard: &str, keys: &[String]) {
        self.outbox_writes.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(bucket, shard, "rgw: events are in an outbox");
        if let Some(notifier) = self.topics.notifier() {
            notifier.outbox_written(crate::index::bucket_id(shard), shard, keys);
        }
    }

    /// Returns a name that nothing in the cluster has or ever had: 32 hexadecimal digits.
    pub fn new_tag(&self) -> String {
        self.connection.new_tag()
    }

    /// Returns the name of this gateway's session in blocklists.
    pub(crate) fn session(&self) -> &str {
        self.connection.session()
    }

    /// Returns the bucket of that name, as of the beginning of the call or later.
    pub async fn cached_bucket(&self, name: &str) -> Result<Arc<Bucket>> {
        self.bucket_cache.get(name, self.bucket(name)).await
    }

    /// Removes a bucket from this gateway's cache.
    pub(crate) fn invalidate_bucket(&self, name: &str) {
        self.peers.invalidate_local(&GatewayMessage::Bucket(name.to_owned()));
    }

    /// Removes leases of gateways that ended without releasing them. A lease stays while its gateway has pending changes in
    /// buckets with notifications: it is the record by which these changes are recovered ([`crate::index::recover`]).
    async fn sweep_leases(&self) -> Result<()> {
        for session in self.leases.unwatched_sessions().await? {
            // Checked before the claim, which would block the gateways that recover the changes, and again after it, when no
            // further changes are made.
            let has_pending = !self.notifying_buckets_with_pending(&session).await?.is_empty();
            if has_pending || !self.leases.claim_if_dead(&session).await? {
                continue;
            }
            if self.notifying_buckets_with_pending(&session).await?.is_empty() {
                self.leases.remove(&session).await?;
            }
        }
        Ok(())
    }
}

/// Collects garbage, tidies buckets and removes leases of ended gateways from time to time, while the gateway exists.
async fn run_gc(gateway: Weak<Gateway>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        let Some(gateway) = gateway.upgrade() else { return };
        if let Err(error) = gateway.garbage.collect(false).await {
            tracing::warn!(%error, "rgw: garbage waits to be collected");
        }
        if let Err(error) = gateway.tidy_all().await {
            tracing::debug!(%error, "rgw: heads are tidied later");
        }
        if let Err(error) = gateway.sweep_leases().await {
            tracing::debug!(%error, "rgw: leases of gateways that ended are not removed now");
        }
    }
}
