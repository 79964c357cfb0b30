//! A gateway of a cluster: its parts, and the work that continues after a request is answered.

use crate::bucket::Buckets;
use crate::check::BucketChecker;
use crate::connection::Connection;
use crate::error::Result;
use crate::garbage::GarbageQueue;
use crate::index::{
    BucketIndex, ConvertedBuckets, IndexLimits, IndexParts, ReshardSettings, Resharder, recover_periodically,
    reshard_periodically,
};
use crate::lease::Leases;
use crate::lifecycle_worker::{LifecycleSchedule, LifecycleWorker, apply_periodically};
use crate::message::{GatewayMessage, NOTIFY_OBJECT};
use crate::notifications::{DeliveryConfig, Notifications};
use crate::object::ObjectWriter;
use crate::peers::{MessageListener, Peers};
use crate::pools::Pools;
use crate::quota::{Quota, QuotaTtls};
use crate::quota_enforcer::QuotaEnforcer;
use crate::ratelimit::RateLimiter;
use crate::role::Roles;
use crate::session::Authenticator;
use crate::shards::IndexShards;
use crate::sse_secret::SseSecret;
use crate::storage_classes::StorageClasses;
use crate::stored::StoredObjects;
use crate::topics::{EndpointRules, Topics, refresh_endpoint_rules};
use crate::uploads::Uploads;
use crate::usage::UsageStore;
use crate::user::{DefaultQuotas, Users};
use nacre_client::Cluster;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

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
    pub buckets: Arc<Buckets>,
    /// The buckets as requests use them.
    pub(crate) converted: Arc<ConvertedBuckets>,
    /// The shards of buckets' indexes.
    pub shards: Arc<IndexShards>,
    /// The indexes of buckets.
    pub index: Arc<BucketIndex>,
    /// Moves indexes into other numbers of shards.
    pub resharder: Arc<Resharder>,
    /// The records of multipart uploads.
    pub uploads: Arc<Uploads>,
    /// The storage classes and their pools.
    pub classes: Arc<StorageClasses>,
    /// The objects of all buckets, for reading.
    pub objects: Arc<StoredObjects>,
    /// Unreferenced data.
    pub garbage: Arc<GarbageQueue>,
    /// The configuration that the gateway was started with.
    pub config: Config,
    /// Writes and removes objects.
    pub writer: Arc<ObjectWriter>,
    /// Applies the lifecycle rules of buckets.
    pub lifecycle: Arc<LifecycleWorker>,
    /// Checks and repairs buckets.
    pub checker: BucketChecker,
    /// The notifications of buckets.
    pub notifications: Arc<Notifications>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) quotas: Arc<QuotaEnforcer>,
    /// The usage log.
    pub usage: Arc<UsageStore>,
    /// The remaining rate limits of users and buckets in this gateway.
    pub ratelimits: RateLimiter,
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
        let schedule = LifecycleSchedule::read(&config.lifecycle_time, config.lifecycle_debug)?;
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
            None => EndpointRules::new(&connection.cluster),
        };
        let topics = Topics::new(&connection, &peers, &config.region, rules);
        let parts = IndexParts::new((&connection, &peers), &classes, topics, config.gc_wait, config.lease);
        let limits = IndexLimits {
            pending_expiration: config.pending_expiration,
            objects_per_shard: config.objects_per_shard,
        };
        let index = BucketIndex::new(&parts, limits);
        let converted = ConvertedBuckets::new(&parts, &index.recovery);
        let quotas = QuotaEnforcer::new(&parts.quotas, &users, &converted, &parts.shards, config.quota_ttls);
        let notifications = Arc::new(Notifications::new(&parts, &converted, &config.region));
        let (of_index, put_bytes) = ((&index, &converted), config.put_bytes);
        let writer = ObjectWriter::new(&parts, of_index, &classes, &quotas, &notifications, put_bytes);
        let writer = Arc::new(writer);
        let settings = ReshardSettings {
            objects_per_shard: config.objects_per_shard,
            dynamic_shards: config.dynamic_shards,
            lock_time: config.reshard_lock,
        };
        let IndexParts { buckets, shards, uploads, objects, garbage, leases, topics, .. } = parts;
        let gateway = Arc::new(Gateway {
            resharder: Arc::new(Resharder::new(&connection, &converted, &index, settings)),
            lifecycle: Arc::new(LifecycleWorker::new(&writer, schedule)),
            checker: BucketChecker::new(&writer, config.pending_expiration),
            writer,
            notifications,
            quotas,
            index,
            converted,
            uploads,
            shards,
            authenticator: Authenticator::new(&pools.sts, &users, &roles),
            buckets,
            objects,
            garbage,
            usage: Arc::new(UsageStore::new(&pools.usage, config.usage.map(|usage| usage.threshold))),
            leases,
            topics,
            sse_secret: SseSecret::new(&connection, config.encryption_key),
            users,
            roles,
            classes,
            ratelimits: RateLimiter::default(),
            answered: tokio::sync::Mutex::new(None),
            peers,
            connection,
            cluster,
            pools,
            config,
        });
        gateway.start_tasks();
        Ok(gateway)
    }

    /// Starts the tasks that run while the gateway exists.
    fn start_tasks(self: &Arc<Gateway>) {
        self.peers.add_listener(Arc::new(ReleaseListener));
        if self.config.watch {
            tokio::spawn(crate::peers::keep_watching(Arc::downgrade(&self.peers)));
        }
        if let Some(delivery) = &self.config.delivery {
            self.notifications.start_delivery(delivery);
            tokio::spawn(refresh_endpoint_rules(Arc::downgrade(&self.topics)));
        }
        tokio::spawn(crate::lease::renew_periodically(Arc::downgrade(&self.leases), self.config.lease));
        if self.config.watch {
            tokio::spawn(recover_periodically(Arc::downgrade(&self.index.recovery)));
        }
        tokio::spawn(run_gc(Arc::downgrade(self), self.config.gc_period));
        if let (Some(log), Some(usage)) = (&self.usage.log, &self.config.usage) {
            let log = Arc::clone(log);
            tokio::spawn(crate::usage::flush_periodically(Arc::downgrade(&self.usage), log, usage.period));
        }
        if self.config.dynamic_resharding {
            tokio::spawn(reshard_periodically(Arc::downgrade(&self.resharder), self.config.reshard_period));
        }
        if self.config.lifecycle {
            let worker = Arc::downgrade(&self.lifecycle);
            tokio::spawn(apply_periodically(worker, self.lifecycle.schedule));
        }
    }

    /// Finishes the index entries of changes that were acknowledged, and gives up the watch: other gateways no longer wait
    /// for this one when they change something. The gateway may still be used, but caches nothing.
    ///
    /// If the cluster does not answer, it gives up after a while: other gateways recover the pending changes.
    pub async fn shut_down(&self) {
        if let Some(notifier) = self.topics.notifier() {
            notifier.stop().await;
        }
        if !self.index.finisher.drain().await {
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

    /// Returns a name that nothing in the cluster has or ever had: 32 hexadecimal digits.
    pub fn new_tag(&self) -> String {
        self.connection.new_tag()
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
        if let Err(error) = gateway.index.tidier.tidy_all(&gateway.converted).await {
            tracing::debug!(%error, "rgw: heads are tidied later");
        }
        if let Err(error) = gateway.index.recovery.sweep_leases().await {
            tracing::debug!(%error, "rgw: leases of gateways that ended are not removed now");
        }
    }
}
