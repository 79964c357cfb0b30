//! The zone's placement target: which pool has the data of objects.
//!
//! The choice is a record in `.rgw.root`, so that every gateway and every command makes it alike. It is free until the first
//! gateway starts, which marks the record: from then on objects may be in the pool, and the choice stays.

use crate::error::{Error, Result};
use crate::record;
use nacre_client::{Cluster, IoCtx};
use nacre_types::encoding::Versioned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The pool of the record.
pub(crate) const ROOT_POOL: &str = ".rgw.root";
/// The pool of buckets' records, and their namespace in it.
const BUCKETS: (&str, &str) = ("default.rgw.meta", "root");
/// The object that gateways watch, and its pool.
const WATCHED: (&str, &str) = ("default.rgw.control", crate::gateway::CONTROL);
/// The record.
pub(crate) const ZONE: &str = "zone_info.default";

/// The only placement target.
pub const PLACEMENT: &str = "default-placement";
/// The only storage class.
pub const STORAGE_CLASS: &str = "STANDARD";

/// A zone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Zone {
    /// The pool that has the data of objects.
    pub data_pool: String,
    /// Whether a gateway has served it.
    pub(crate) used: bool,
}

impl Versioned for Zone {
    const NAME: &'static str = "zone";
}

impl Default for Zone {
    fn default() -> Zone {
        Zone { data_pool: "default.rgw.buckets.data".to_owned(), used: false }
    }
}

impl Zone {
    /// The zone of a cluster, with or without gateways.
    pub async fn read(cluster: &Cluster) -> Result<Zone> {
        match cluster.open_pool(ROOT_POOL).await {
            Err(error) if error.is_not_found() => Ok(Zone::default()),
            root => Ok(record::read(&root?, ZONE).await?.map_or_else(Zone::default, |(zone, _)| zone)),
        }
    }

    /// The zone of who opens its pools. A gateway that will serve it marks it as used first.
    pub(crate) async fn open(root: &IoCtx, serves: bool) -> Result<Zone> {
        loop {
            let zone = match record::read::<Zone>(root, ZONE).await? {
                Some((zone, _)) => zone,
                None if serves => {
                    let zone = Zone { used: true, ..Zone::default() };
                    if record::create(root, ZONE, &zone).await? {
                        return Ok(zone);
                    }
                    continue;
                }
                None => Zone::default(),
            };
            if zone.used || !serves {
                return Ok(zone);
            }
            let mark = |zone: &mut Zone| {
                zone.used = true;
                Ok(())
            };
            if let Some(zone) = record::update(root, ZONE, mark).await? {
                return Ok(zone);
            }
        }
    }

    /// Chooses the pool of objects' data; the first gateway makes it where it is not there. Fails with [`Error::ZoneInUse`] when a
    /// gateway has served the zone.
    pub async fn set_data_pool(cluster: &Cluster, pool: &str) -> Result<Zone> {
        let root = crate::pools::open_or_create(cluster, ROOT_POOL).await?;
        let zone = Zone::open(&root, false).await?;
        let in_use = |zone: &Zone| Error::ZoneInUse(zone.data_pool.clone());
        if zone.data_pool == pool {
            return Ok(zone);
        }
        // Earlier releases did not mark the zone.
        if zone.used || has_buckets(cluster).await? || has_gateways(cluster).await? {
            return Err(in_use(&zone));
        }
        let chosen = Zone { data_pool: pool.to_owned(), used: false };
        if record::create(&root, ZONE, &chosen).await? {
            return Ok(chosen);
        }
        let choose = |zone: &mut Zone| {
            if zone.used {
                return Err(in_use(zone));
            }
            zone.data_pool = pool.to_owned();
            Ok(())
        };
        Ok(record::update(&root, ZONE, choose).await?.unwrap_or(chosen))
    }

    /// What `radosgw-admin zone placement list` prints.
    pub fn describe_placement(&self) -> Value {
        let mut classes = serde_json::Map::new();
        classes.insert(STORAGE_CLASS.to_owned(), json!({ "data_pool": self.data_pool }));
        json!([{
            "key": PLACEMENT,
            "val": {
                "index_pool": "default.rgw.buckets.index",
                "storage_classes": classes,
                "data_extra_pool": self.data_pool,
                "index_type": 0,
                "inline_data": true,
            },
        }])
    }

    /// What `radosgw-admin zone get` prints.
    pub fn describe(&self) -> Value {
        json!({
            "id": "default", "name": "default",
            "domain_root": "default.rgw.meta:root", "control_pool": "default.rgw.control",
            "gc_pool": "default.rgw.log:gc", "lc_pool": "default.rgw.log:lc", "log_pool": "default.rgw.log",
            "usage_log_pool": "default.rgw.log:usage", "reshard_pool": "default.rgw.log:reshard",
            "roles_pool": "default.rgw.meta:roles", "user_keys_pool": "default.rgw.meta:users.keys",
            "user_uid_pool": "default.rgw.meta:users.uid",
            "placement_pools": self.describe_placement(), "realm_id": "",
        })
    }
}

async fn has_buckets(cluster: &Cluster) -> Result<bool> {
    let (pool, namespace) = BUCKETS;
    match cluster.open_pool(pool).await {
        Err(error) if error.is_not_found() => Ok(false),
        meta => Ok(meta?.with_namespace(namespace).list().next().await?.is_some()),
    }
}

async fn has_gateways(cluster: &Cluster) -> Result<bool> {
    let (pool, object) = WATCHED;
    let control = match cluster.open_pool(pool).await {
        Err(error) if error.is_not_found() => return Ok(false),
        control => control?,
    };
    match control.list_watchers(object).await {
        Err(error) if error.is_not_found() => Ok(false),
        watchers => Ok(!watchers?.is_empty()),
    }
}
