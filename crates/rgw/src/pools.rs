//! The pools that contain all of the gateway's data, with the names that radosgw gives them.

use crate::error::Result;
use crate::pool_creation::{ROOT_POOL, open_or_create};
use crate::zone::Zone;
use nacre_client::{Cluster, IoCtx};
use nacre_notify::topic_store::TopicStore;

/// The namespace of users in `default.rgw.meta`, by their ids.
const USERS: &str = "users.uid";
/// The namespace of access keys in `default.rgw.meta`.
const KEYS: &str = "users.keys";
/// The namespace of roles in `default.rgw.meta`.
const ROLES: &str = "roles";
/// The namespace of the key of session tokens in `default.rgw.meta`.
const STS: &str = "sts";
/// The namespace of buckets in `default.rgw.meta`.
const BUCKETS: &str = "root";
/// The namespace of garbage in the log pool.
const GARBAGE: &str = "gc";
/// The namespace of the usage log in [`Pools::log`].
const USAGE: &str = "usage";
/// The namespace of the list of buckets to be resharded in the log pool.
const RESHARD: &str = "reshard";
/// The namespace of the buckets with lifecycles in the log pool.
const LIFECYCLE: &str = "lc";

/// Handles of all pools and of the namespaces in them.
#[derive(Clone)]
pub(crate) struct Pools {
    pub(crate) users: IoCtx,
    pub(crate) keys: IoCtx,
    pub(crate) buckets: IoCtx,
    pub(crate) roles: IoCtx,
    pub(crate) sts: IoCtx,
    pub(crate) garbage: IoCtx,
    pub(crate) usage: IoCtx,
    pub(crate) lifecycle: IoCtx,
    pub(crate) reshard: IoCtx,
    /// Objects by which gateways notify one another of changes.
    pub(crate) control: IoCtx,
    pub(crate) index: IoCtx,
    /// The heads of all objects, and the data of objects in STANDARD.
    pub(crate) data: IoCtx,
    /// The zone's record.
    pub(crate) root: IoCtx,
    /// Records of notification topics.
    pub(crate) topics: TopicStore,
    /// Queues of notification topics, in namespaces of their own.
    pub(crate) log: IoCtx,
}

impl Pools {
    /// Opens the pools and creates missing ones. The zone names the pool of objects' data; opening the pools with `serves`
    /// fixes that choice.
    ///
    /// Bucket indexes, data and the log get the cluster's default number of PGs, the other pools at most radosgw's `rgw_rados_pool_pg_num_min`.
    /// If the cluster's limit on PGs per OSD refuses a pool, it is created with fewer PGs.
    pub(crate) async fn open(cluster: &Cluster, serves: bool) -> Result<Pools> {
        let pool = async |name: &str| open_or_create(cluster, name).await;
        let root = pool(ROOT_POOL).await?;
        let zone = Zone::open(&root, serves).await?;
        let meta = pool("default.rgw.meta").await?;
        let log = pool("default.rgw.log").await?;
        Ok(Pools {
            users: meta.with_namespace(USERS),
            keys: meta.with_namespace(KEYS),
            buckets: meta.with_namespace(BUCKETS),
            roles: meta.with_namespace(ROLES),
            sts: meta.with_namespace(STS),
            garbage: log.with_namespace(GARBAGE),
            usage: log.with_namespace(USAGE),
            lifecycle: log.with_namespace(LIFECYCLE),
            reshard: log.with_namespace(RESHARD),
            topics: TopicStore::new(&meta),
            log,
            control: pool("default.rgw.control").await?,
            index: pool("default.rgw.buckets.index").await?,
            data: pool(&zone.data_pool).await?,
            root,
        })
    }
}
