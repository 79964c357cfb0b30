//! A connection to a cluster: commands, pools, and I/O contexts.

use crate::completion::Pending;
use crate::engine::{CommandReply, CommandTarget, Engine};
use crate::error::{Error, Result};
use crate::ioctx::IoCtx;
use bytes::Bytes;
use nacre_types::ceph::SessionAddr;
use nacre_types::errno::Errno;
use nacre_types::osdmap::OsdMap;
use nacre_types::{OsdId, PgId, PoolId};
use serde_json::{Value, json};
use std::sync::Arc;

/// A cluster, with any engine. Cheap to clone; the session ends with [`Cluster::shut_down`] or with the last clone of it and
/// its I/O contexts.
#[derive(Clone)]
pub struct Cluster {
    engine: Arc<dyn Engine>,
}

/// Space of a cluster (`rados_cluster_stat`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClusterStats {
    /// Size of all stores in bytes.
    pub total_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Bytes available.
    pub available_bytes: u64,
    /// Objects.
    pub objects: u64,
}

/// Statistics of one pool (`rados_ioctx_pool_stat`, `rados df`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// The pool.
    pub id: i64,
    /// Its name.
    pub name: String,
    /// Bytes of data as clients see it.
    pub bytes: u64,
    /// Bytes used on all stores.
    pub used_bytes: u64,
    /// Objects.
    pub objects: u64,
    /// Clones.
    pub clones: u64,
    /// Copies of objects that should exist.
    pub copies: u64,
    /// Objects missing on their primary.
    pub missing_on_primary: u64,
    /// Objects without any known copy.
    pub unfound: u64,
    /// Copies missing.
    pub degraded: u64,
    /// Read operations.
    pub reads: u64,
    /// Bytes read, in KiB.
    pub read_kib: u64,
    /// Write operations.
    pub writes: u64,
    /// Bytes written, in KiB.
    pub write_kib: u64,
    /// Bytes used by compressed data.
    pub compressed_used_bytes: u64,
    /// Bytes that were compressed.
    pub compressed_original_bytes: u64,
}

impl Cluster {
    /// Creates a handle on an engine's cluster.
    pub fn from_engine(engine: Arc<dyn Engine>) -> Cluster {
        Cluster { engine }
    }

    /// The engine.
    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    /// The cluster's id.
    pub fn fsid(&self) -> String {
        self.engine.fsid()
    }

    /// This session's number, unique in the cluster.
    pub fn instance_id(&self) -> u64 {
        self.engine.instance_id()
    }

    /// Binds this handle to its current session, for callers that others know by its number and may blocklist as
    /// `client.NUMBER`. If the cluster gives the handle another number, after hours without contact, its operations fail with
    /// [`crate::Error::Blocklisted`]. Returns the session's number.
    pub fn bind_session(&self) -> u64 {
        self.engine.bind_session()
    }

    /// This session's address as in blocklists and lists of watchers: `127.0.0.1:0/4123`.
    pub fn address(&self) -> Option<SessionAddr> {
        self.engine.address()
    }

    /// The current cluster map, if the engine has one in Nacre's form.
    pub fn osdmap(&self) -> Option<Arc<OsdMap>> {
        self.engine.osdmap()
    }

    /// Returns once the engine has the newest cluster map.
    pub fn refresh_map(&self) -> Pending<()> {
        self.engine.refresh_map()
    }

    /// Runs a command of the map authority, in Ceph's JSON form.
    pub fn command(&self, command: impl Into<String>, input: impl Into<Bytes>) -> Pending<CommandReply> {
        self.engine.command(CommandTarget::Mon, command.into(), input.into())
    }

    /// Runs a command of an OSD.
    pub fn tell(
        &self,
        osd: OsdId,
        command: impl Into<String>,
        input: impl Into<Bytes>,
    ) -> Pending<CommandReply> {
        self.engine.command(CommandTarget::Osd(osd), command.into(), input.into())
    }

    /// Runs a command of a PG's primary.
    pub fn tell_pg(
        &self,
        pg: PgId,
        command: impl Into<String>,
        input: impl Into<Bytes>,
    ) -> Pending<CommandReply> {
        self.engine.command(CommandTarget::Pg(pg), command.into(), input.into())
    }

    /// Runs a command of the map authority and reads its JSON output.
    pub async fn command_json(&self, command: Value) -> Result<Value> {
        let mut command = command;
        command["format"] = "json".into();
        let reply = self.command(command.to_string(), Bytes::new()).await?;
        serde_json::from_slice(&reply.output).map_err(|error| {
            let detail = format!("{error} in the output of {command}");
            Error::Corrupt(nacre_types::encoding::DecodeError::Corrupt { what: "command output", detail })
        })
    }

    /// Returns the pool with this name. Requests the newest map if the current one does not have it.
    pub async fn lookup_pool(&self, name: &str) -> Result<PoolId> {
        if let Some(id) = self.engine.pool_id(name) {
            return Ok(id);
        }
        self.engine.refresh_map().await?;
        self.engine.pool_id(name).ok_or_else(|| Error::NoSuchPool(format!("'{name}'")))
    }

    /// The pool's name.
    pub fn pool_name(&self, pool: PoolId) -> Option<String> {
        self.engine.pool_name(pool)
    }

    /// All pools, by id.
    pub async fn pools(&self) -> Result<Vec<(PoolId, String)>> {
        self.engine.refresh_map().await?;
        Ok(self.engine.pools())
    }

    /// Creates a pool with the cluster's defaults and returns once it can be opened.
    pub async fn create_pool(&self, name: &str) -> Result<PoolId> {
        let command = json!({ "prefix": "osd pool create", "pool": name });
        self.command(command.to_string(), Bytes::new()).await?;
        self.engine.refresh_map().await?;
        self.engine.pool_id(name).ok_or_else(|| Error::NoSuchPool(format!("'{name}'")))
    }

    /// Removes a pool with all its contents.
    pub async fn remove_pool(&self, name: &str) -> Result<()> {
        let command = json!({
            "prefix": "osd pool rm", "pool": name, "pool2": name, "yes_i_really_really_mean_it": true,
        });
        self.command(command.to_string(), Bytes::new()).await?;
        self.engine.refresh_map().await
    }

    /// Opens a pool by name.
    pub async fn open_pool(&self, name: &str) -> Result<IoCtx> {
        let id = self.lookup_pool(name).await?;
        Ok(IoCtx::new(self.engine.clone(), id, name))
    }

    /// Opens a pool by id.
    pub async fn open_pool_id(&self, pool: PoolId) -> Result<IoCtx> {
        if self.engine.pool_name(pool).is_none() {
            self.engine.refresh_map().await?;
        }
        let name = self.engine.pool_name(pool).ok_or_else(|| Error::NoSuchPool(pool.to_string()))?;
        Ok(IoCtx::new(self.engine.clone(), pool, &name))
    }

    /// Space of the whole cluster.
    pub async fn stats(&self) -> Result<ClusterStats> {
        let df = self.command_json(json!({ "prefix": "df" })).await?;
        let stats = &df["stats"];
        let field = |name: &str| stats[name].as_u64().unwrap_or(0);
        let pools = df["pools"].as_array().map(Vec::as_slice).unwrap_or_default();
        Ok(ClusterStats {
            total_bytes: field("total_bytes"),
            used_bytes: field("total_used_raw_bytes"),
            available_bytes: field("total_avail_bytes"),
            objects: pools.iter().filter_map(|pool| pool["stats"]["objects"].as_u64()).sum(),
        })
    }

    /// Statistics of all pools, by id.
    pub async fn pool_stats(&self) -> Result<Vec<PoolStats>> {
        let dump = self.command_json(json!({ "prefix": "pg dump", "dumpcontents": ["pools"] })).await?;
        self.engine.refresh_map().await?;
        let listed = dump["pool_stats"].as_array().map(Vec::as_slice).unwrap_or_default();
        let pools = self.engine.pools();
        Ok(pools.into_iter().map(|(id, name)| pool_stats(id, name, listed)).collect())
    }

    /// Returns once all [`crate::WatchHandler`] calls that started before have returned.
    pub fn watch_flush(&self) -> Pending<()> {
        self.engine.watch_flush()
    }

    /// Ends the session. Operations in flight fail.
    pub fn shut_down(&self) {
        self.engine.shut_down();
    }

    /// An option's value in this client's configuration.
    pub fn option(&self, name: &str) -> Option<String> {
        self.engine.option(name)
    }
}

impl IoCtx {
    /// The cluster that the pool belongs to.
    pub fn cluster(&self) -> Cluster {
        Cluster::from_engine(self.engine().clone())
    }
}

fn pool_stats(id: PoolId, name: String, listed: &[Value]) -> PoolStats {
    let found = listed.iter().find(|pool| pool["poolid"].as_i64() == Some(id.0));
    let null = Value::Null;
    let pool = found.unwrap_or(&null);
    let field = |group: &str, name: &str| pool[group][name].as_u64().unwrap_or(0);
    let sum = |name: &str| field("stat_sum", name);
    let stored = |name: &str| field("store_stats", name);
    PoolStats {
        id: id.0,
        name,
        bytes: sum("num_bytes"),
        used_bytes: stored("allocated") + stored("omap_allocated"),
        objects: sum("num_objects"),
        clones: sum("num_object_clones"),
        copies: sum("num_object_copies"),
        missing_on_primary: sum("num_objects_missing_on_primary"),
        unfound: sum("num_objects_unfound"),
        degraded: sum("num_objects_degraded"),
        reads: sum("num_read"),
        read_kib: sum("num_read_kb"),
        writes: sum("num_write"),
        write_kib: sum("num_write_kb"),
        compressed_used_bytes: stored("data_compressed_allocated"),
        compressed_original_bytes: stored("data_compressed_original"),
    }
}

/// Converts a daemon's code, text and output to the outcome of a command.
pub fn command_result(code: i32, status: String, output: Bytes) -> Result<CommandReply> {
    match Errno::from_result(code) {
        Ok(_) => Ok(CommandReply { status, output }),
        Err(errno) => Err(Error::Command { errno, status }),
    }
}
