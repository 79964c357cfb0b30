//! Garbage: tails that nothing names any more, kept for those who still read them and then removed
//! (docs/format/rgw.md).
//!
//! Records lie in the omap of [`SHARDS`] objects, in the order of the time at which they may go. Any gateway works on any
//! of them: removing twice does no harm.

use crate::error::Result;
use crate::gateway::{Gateway, now_ns};
use crate::index::Tails;
use crate::record;
use bytes::Bytes;
use futures::stream::{self, StreamExt};
use nacre_types::encoding::Versioned;
use nacre_types::hash::ceph_str_hash_rjenkins;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// `rgw_gc_max_objs`.
const SHARDS: u32 = 32;
/// Records looked at at a time.
const PAGE: u64 = 128;
/// Tails removed at the same time.
const REMOVALS: usize = 16;

/// A record of garbage.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Garbage {
    tails: Tails,
}

impl Versioned for Garbage {
    const NAME: &'static str = "garbage";
}

/// A record as it is listed: shard, key, when it may go, what.
pub struct GarbageRecord {
    shard: String,
    key: Bytes,
    /// When it may be removed, in nanoseconds since 1970.
    pub due_ns: u64,
    /// What the names of the RADOS objects begin with.
    pub name: String,
    /// How many there are at most.
    pub count: u64,
}

impl Gateway {
    /// Notes tails that belong to nothing any more.
    pub(crate) async fn discard(&self, garbage: &[Tails]) -> Result<()> {
        let due = now_ns() + self.config.gc_wait.as_nanos() as u64;
        for tails in garbage.iter().filter(|tails| tails.count > 0) {
            let shard = format!("gc.{}", ceph_str_hash_rjenkins(tails.name.as_bytes()) % SHARDS);
            let key = [&due.to_be_bytes(), tails.name.as_bytes()].concat();
            let value = record::encode(&Garbage { tails: tails.clone() });
            self.pools.garbage.omap_set(&shard, vec![(key.into(), value)]).await?;
        }
        Ok(())
    }

    /// At most `max` records, and whether there are more; those that may go, or with `all` every one.
    pub async fn garbage(&self, all: bool, max: usize) -> Result<Vec<GarbageRecord>> {
        let now = now_ns();
        let mut found = Vec::new();
        for shard in (0..SHARDS).map(|shard| format!("gc.{shard}")) {
            let mut after = Bytes::new();
            loop {
                let page = self.pools.garbage.omap_get_vals(&shard, after.clone(), "", PAGE).await;
                let page = match page {
                    Err(error) if error.is_not_found() => break,
                    page => page?,
                };
                let mut due = true;
                for (key, value) in page.entries {
                    after = key.clone();
                    let due_ns = key.first_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes));
                    due = all || due_ns <= now;
                    if !due || found.len() == max {
                        break;
                    }
                    let Garbage { tails } = record::decode(&shard, &value)?;
                    let (name, count) = (tails.name, tails.count);
                    found.push(GarbageRecord { shard: shard.clone(), key, due_ns, name, count });
                }
                if found.len() == max {
                    return Ok(found);
                }
                if !due || !page.more {
                    break;
                }
            }
        }
        Ok(found)
    }

    /// Removes what may go, or with `all` every piece of garbage; returns the number of records.
    pub async fn collect_garbage(&self, all: bool) -> Result<u64> {
        let mut collected = 0;
        loop {
            let records = self.garbage(all, PAGE as usize).await?;
            if records.is_empty() {
                return Ok(collected);
            }
            for record in records {
                let mut removals = stream::iter(0..record.count)
                    .map(|at| self.pools.data.remove(&format!("{}_{at}", record.name)))
                    .map(|removal| async move {
                        match removal.await {
                            Err(error) if error.is_not_found() => Ok(()),
                            removed => removed,
                        }
                    })
                    .buffer_unordered(REMOVALS);
                while let Some(removed) = removals.next().await {
                    removed?;
                }
                self.pools.garbage.omap_rm_keys(&record.shard, vec![record.key]).await?;
                collected += 1;
            }
        }
    }
}

/// Collects from time to time, as long as the gateway is there.
pub(crate) async fn work(gateway: std::sync::Weak<Gateway>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        let Some(gateway) = gateway.upgrade() else { return };
        if let Err(error) = Arc::clone(&gateway).collect_garbage(false).await {
            tracing::warn!(%error, "rgw: garbage waits to be collected");
        }
    }
}
