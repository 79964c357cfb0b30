//! A gateway's connection to its cluster: its pools, its session, and the tags that it makes.

use crate::error::{Error, Result};
use crate::pools::Pools;
use nacre_client::Cluster;
use std::sync::atomic::{AtomicU64, Ordering};

/// A gateway's connection to its cluster.
pub(crate) struct Connection {
    pub(crate) cluster: Cluster,
    pub(crate) pools: Pools,
    /// The number of the session, by which the cluster knows the gateway.
    pub(crate) number: u64,
    session: String,
    /// The first half of tags. The second half is a counter.
    instance: u64,
    counted: AtomicU64,
}

impl Connection {
    /// Opens the pools, and creates missing ones if `create` is set.
    pub(crate) async fn open(cluster: Cluster, create: bool) -> Result<Connection> {
        let pools = Pools::open(&cluster, create).await?;
        // Gateways that recover this gateway's changes blocklist it by this name, so it must not continue under another one.
        let number = cluster.bind_session();
        let mut instance = [0; 8];
        getrandom::fill(&mut instance).map_err(Error::no_random_numbers)?;
        Ok(Connection {
            cluster,
            pools,
            number,
            session: session_name(number),
            instance: u64::from_be_bytes(instance),
            counted: AtomicU64::new(0),
        })
    }

    /// Returns a name that nothing in the cluster has or ever had: 32 hexadecimal digits.
    pub(crate) fn new_tag(&self) -> String {
        format!("{:016x}{:016x}", self.instance, self.counted.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the name of this gateway's session in blocklists.
    pub(crate) fn session(&self) -> &str {
        &self.session
    }
}

/// Returns the name of a session in blocklists, which does not depend on the session's address.
pub(crate) fn session_name(number: u64) -> String {
    format!("client.{number}")
}
