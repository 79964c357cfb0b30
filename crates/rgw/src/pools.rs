//! The pools that the gateway keeps everything in, with the names that radosgw gives them.

use crate::error::Result;
use nacre_client::{Cluster, IoCtx};

/// The namespace of users in [`Pools::meta`], by their ids.
const USERS: &str = "users.uid";
/// The namespace of access keys in [`Pools::meta`].
const KEYS: &str = "users.keys";
/// The namespace of roles in [`Pools::meta`].
const ROLES: &str = "roles";
/// The namespace of the key of session tokens in [`Pools::meta`].
const STS: &str = "sts";
/// The namespace of buckets in [`Pools::meta`].
const BUCKETS: &str = "root";
/// The namespace of garbage in the log pool.
const GARBAGE: &str = "gc";
/// The namespace of the usage log in [`Pools::log`].
const USAGE: &str = "usage";
/// The namespace of the buckets to be resharded in the log pool.
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
    /// Objects that tell gateways of one another's changes.
    pub(crate) control: IoCtx,
    pub(crate) index: IoCtx,
    pub(crate) data: IoCtx,
}

impl Pools {
    /// Opens the pools and makes those that are not there, as the cluster's defaults are.
    pub(crate) async fn open(cluster: &Cluster) -> Result<Pools> {
        let pool = async |name: &str| -> Result<IoCtx> {
            match cluster.open_pool(name).await {
                Err(error) if error.is_not_found() => {}
                opened => return Ok(opened?),
            }
            match cluster.create_pool(name).await {
                // Another gateway starts too.
                Err(error) if error.errno() == nacre_types::errno::Errno::EEXIST => {}
                made => drop(made?),
            }
            // Pools without an application raise a warning in health.
            let command = serde_json::json!({
                "prefix": "osd pool application enable", "pool": name, "app": "rgw",
            });
            cluster.command(command.to_string(), "").await?;
            Ok(cluster.open_pool(name).await?)
        };
        pool(".rgw.root").await?;
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
            control: pool("default.rgw.control").await?,
            index: pool("default.rgw.buckets.index").await?,
            data: pool("default.rgw.buckets.data").await?,
        })
    }
}
