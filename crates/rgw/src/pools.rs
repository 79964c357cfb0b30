//! The pools that contain all of the gateway's data, with the names that radosgw gives them.

use crate::classes::ClassPools;
use crate::error::Result;
use crate::zone::{ROOT_POOL, Zone};
use nacre_client::{Cluster, IoCtx};
use nacre_notify::topic_store::TopicStore;
use nacre_types::errno::Errno;

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

/// Pools that hold few objects and get few requests.
const SMALL: [&str; 3] = [ROOT_POOL, "default.rgw.control", "default.rgw.meta"];
/// Their PGs: radosgw's `rgw_rados_pool_pg_num_min`.
const SMALL_PG_NUM: u32 = 8;

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
    /// The data of objects in other storage classes.
    pub(crate) classes: ClassPools,
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
    /// Bucket indexes, data and the log get the cluster's default number of PGs, the other pools at most [`SMALL_PG_NUM`].
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
            classes: ClassPools::default(),
            root,
        })
    }
}

/// Opens a pool; creates it if it does not exist.
pub(crate) async fn open_or_create(cluster: &Cluster, name: &str) -> Result<IoCtx> {
    match cluster.open_pool(name).await {
        Err(error) if error.is_not_found() => {}
        opened => return Ok(opened?),
    }
    let default = cluster.option("osd_pool_default_pg_num").and_then(|text| text.parse().ok());
    let default: u32 = default.unwrap_or(32).max(1);
    let pg_num = if SMALL.contains(&name) { default.min(SMALL_PG_NUM) } else { default };
    create(cluster, name, pg_num).await?;
    // A pool without an application raises a health warning.
    let command = serde_json::json!({
        "prefix": "osd pool application enable", "pool": name, "app": "rgw",
    });
    cluster.command(command.to_string(), "").await?;
    Ok(cluster.open_pool(name).await?)
}

/// Creates a pool of `pg_num` PGs, or of as many as the cluster's limit on PGs per OSD allows.
async fn create(cluster: &Cluster, name: &str, mut pg_num: u32) -> Result<()> {
    loop {
        let command = serde_json::json!({ "prefix": "osd pool create", "pool": name, "pg_num": pg_num });
        match cluster.command(command.to_string(), "").await {
            // Another gateway has created it at the same time.
            Err(error) if error.errno() == Errno::EEXIST => break,
            Err(error) if error.errno() == Errno::ERANGE && pg_num > 1 => {
                tracing::warn!(pool = name, pg_num, %error, "rgw: the pool is made with fewer PGs");
                // A quarter leaves room for the pools that are still to be created.
                pg_num = (pg_num / 4).max(1);
            }
            made => {
                made?;
                break;
            }
        }
    }
    Ok(cluster.engine().refresh_map().await?)
}
