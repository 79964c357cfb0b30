//! A cluster in memory, for tests of the gateway's parts. It executes operations as OSDs do and has no faults; its time is
//! virtual.

use crate::bucket::Bucket;
use crate::connection::Connection;
use crate::index::{BucketIndex, ConvertedBuckets, IndexLimits, IndexParts};
use crate::notifications::Notifications;
use crate::object::ObjectWriter;
use crate::peers::Peers;
use crate::quota::{Quota, QuotaTtls};
use crate::quota_enforcer::QuotaEnforcer;
use crate::record;
use crate::storage_classes::StorageClasses;
use crate::topics::{EndpointRules, Topics};
use crate::user::{DefaultQuotas, Users};
use nacre_sim::gateway::executor::{Executor, ProcessId};
use nacre_sim::gateway::faults::Faults;
use nacre_sim::gateway::mem_engine::MemCluster;
use std::sync::Arc;
use std::time::Duration;

/// The virtual time within which an operation must end.
const LIMIT: Duration = Duration::from_secs(60);

/// How often [`TestCluster::run_on_tokio`] checks whether the cluster has something to do.
const IDLE_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A cluster, and a process for all its clients.
pub(crate) struct TestCluster {
    executor: Executor,
    cluster: MemCluster,
    process: ProcessId,
}

impl TestCluster {
    /// An empty cluster.
    pub(crate) fn new() -> TestCluster {
        let executor = Executor::new(1, Default::default());
        let cluster = MemCluster::new(&executor, 1, Faults::none());
        let process = executor.start_process();
        TestCluster { executor, cluster, process }
    }

    /// The connection of another gateway, with a session of its own. The gateway does not watch, so it caches nothing.
    pub(crate) fn connect(&self) -> (Arc<Connection>, Arc<Peers>) {
        let cluster = self.cluster.connect(self.process);
        let connection = self.run(async { Connection::open(cluster, true).await.unwrap() });
        let connection = Arc::new(connection);
        let peers = Peers::new(&connection);
        (connection, peers)
    }

    /// Runs a future to its end.
    pub(crate) fn run<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> T {
        self.executor.run(self.process, LIMIT.as_nanos() as u64, future).expect("it must end in time")
    }

    /// Sets an option of the monitors.
    pub(crate) fn set_option(&self, name: &str, value: &str) {
        self.cluster.set_option(name, value);
    }

    /// Lets time pass.
    pub(crate) fn pass(&self, time: Duration) {
        self.executor.run_for(time.as_nanos() as u64);
    }

    /// Runs a future of code that uses tokio's tasks and timers to its end. The time of these is real; the cluster's time passes
    /// as fast as possible.
    pub(crate) fn run_on_tokio<T>(&self, future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let steps = async {
            loop {
                if self.executor.step() {
                    tokio::task::yield_now().await;
                } else {
                    tokio::time::sleep(IDLE_POLL_INTERVAL).await;
                }
            }
        };
        runtime.block_on(async {
            tokio::select! {
                done = tokio::time::timeout(LIMIT, future) => done.expect("it must end in time"),
                () = steps => unreachable!("the cluster is executed forever"),
            }
        })
    }
}

/// The parts of a gateway that the index uses. Garbage is collected at once.
pub(crate) fn index_parts(connection: &Arc<Connection>, peers: &Arc<Peers>) -> IndexParts {
    let classes = Arc::new(StorageClasses::new(connection));
    let rules = EndpointRules::new(&connection.cluster);
    let topics = Topics::new(connection, peers, "default", rules);
    IndexParts::new((connection, peers), &classes, topics, Duration::ZERO, LIMIT)
}

/// An index on these parts, and the buckets with such indexes.
pub(crate) fn index_on(parts: &IndexParts) -> (Arc<BucketIndex>, Arc<ConvertedBuckets>) {
    let limits = IndexLimits { pending_expiration: Duration::from_secs(1), objects_per_shard: 0 };
    let index = BucketIndex::new(parts, limits);
    let buckets = ConvertedBuckets::new(parts, &index.recovery);
    (index, buckets)
}

/// A writer of objects on these parts, without quotas.
pub(crate) fn writer_on(parts: &IndexParts) -> Arc<ObjectWriter> {
    let (index, buckets) = index_on(parts);
    let classes = Arc::new(StorageClasses::new(&parts.connection));
    let none = DefaultQuotas { user: Quota::default(), bucket: Quota::default() };
    let users = Arc::new(Users::new(&parts.connection, &parts.peers, none));
    let ttls = QuotaTtls { bucket: LIMIT, user: LIMIT };
    let quotas = QuotaEnforcer::new(&parts.quotas, &users, &buckets, &parts.shards, ttls);
    let notifications = Arc::new(Notifications::new(parts, &buckets, "default"));
    Arc::new(ObjectWriter::new(parts, (&index, &buckets), &classes, &quotas, &notifications, 0))
}

/// Creates a bucket of `owner` with an empty index.
pub(crate) async fn create_bucket(parts: &IndexParts, name: &str, owner: &str) -> Arc<Bucket> {
    let (name, owner) = (name.to_owned(), owner.to_owned());
    let bucket = Bucket { id: parts.connection.new_tag(), name, owner, shards: 2, ..Bucket::default() };
    assert!(record::create(&parts.connection.pools.buckets, &bucket.name, &bucket).await.unwrap());
    parts.shards.create(&bucket).await.unwrap();
    Arc::new(bucket)
}
