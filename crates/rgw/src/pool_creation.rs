//! Creation of the gateway's pools.

use crate::error::Result;
use nacre_client::{Cluster, IoCtx};
use nacre_types::errno::Errno;

/// The pool of the zone's record.
pub(crate) const ROOT_POOL: &str = ".rgw.root";
/// Pools that hold few objects and get few requests.
const SMALL: [&str; 3] = [ROOT_POOL, "default.rgw.control", "default.rgw.meta"];
/// Their PGs: radosgw's `rgw_rados_pool_pg_num_min`.
const SMALL_PG_NUM: u32 = 8;

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
