//! Garbage: unreferenced tails, which are kept for readers that still use them and are then removed (docs/format/rgw.md).
//!
//! Records are in the omap of [`SHARDS`] objects, in the order of the time from which their tails may be removed. Any
//! gateway may process any of them: removing the same tails twice does no harm.

use crate::error::Result;
use crate::record;
use crate::storage_classes::StorageClasses;
use crate::time::now_ns;
use bytes::Bytes;
use futures::stream::{self, StreamExt};
use nacre_client::IoCtx;
use nacre_index::record::{Tails, storage_class_of};
use nacre_types::encoding::{self, DecodeError, Versioned};
use nacre_types::hash::ceph_str_hash_rjenkins;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// `rgw_gc_max_objs`.
const SHARDS: u32 = 32;
/// Records per page.
const PAGE: u64 = 128;
/// The maximum number of tails of a record. An object or a part of 5 TiB in tails of 4 MiB has a twelfth of that.
const MAX_TAILS: u64 = 16 << 20;
/// Tails removed concurrently.
const REMOVALS: usize = 16;

/// A record of garbage.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Garbage {
    tails: Tails,
}

/// Format 2 is format 1 with tails in the pool of a class.
impl Versioned for Garbage {
    const NAME: &'static str = "garbage";
    const VERSION: u8 = 2;
    /// A reader that does not know classes would not find the tails and would consider them removed.
    const COMPAT: u8 = 2;

    fn envelope(&self) -> (u8, u8) {
        if self.tails.storage_class().is_empty() { (1, 1) } else { (2, 2) }
    }

    fn decode_old(_version: u8, body: &[u8]) -> std::result::Result<Garbage, DecodeError> {
        encoding::decode_body(Self::NAME, body)
    }
}

/// A garbage record, as it is listed.
pub struct GarbageRecord {
    shard: String,
    key: Bytes,
    /// When its objects may be removed, in nanoseconds since 1970.
    pub due_ns: u64,
    /// The prefix of the names of the RADOS objects.
    pub name: String,
    /// The maximum number of these objects.
    pub count: u64,
    /// What is wrong with the record. A damaged record stays, and so do the objects that it names.
    pub damage: Option<String>,
}

/// The result of a collection, in garbage records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GcResult {
    /// Records whose objects it removed.
    pub removed: u64,
    /// Records that can't be decoded. They stay.
    pub damaged: u64,
    /// Records whose objects could not be removed this time.
    pub failed: u64,
}

impl GarbageRecord {
    fn read(shard: &str, key: Bytes, value: &[u8]) -> GarbageRecord {
        let due_ns = key.first_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        let (name, count, damage) = match record::decode::<Garbage>(shard, value) {
            Ok(Garbage { tails }) if tails.count <= MAX_TAILS => (tails.name, tails.count, None),
            Ok(Garbage { tails }) => {
                let damage = format!("{} objects are more than there can be", tails.count);
                (tails.name, 0, Some(damage))
            }
            Err(error) => {
                let name = key.get(8..).unwrap_or_default();
                (String::from_utf8_lossy(name).into_owned(), 0, Some(error.to_string()))
            }
        };
        GarbageRecord { shard: shard.to_owned(), key, due_ns, name, count, damage }
    }
}

/// The garbage of a zone.
pub struct GarbageQueue {
    pool: IoCtx,
    classes: Arc<StorageClasses>,
    /// How long garbage is kept for readers that still use it.
    wait: Duration,
    /// The number of records that the last collection could not decode.
    pub damaged: Arc<AtomicU64>,
}

impl GarbageQueue {
    /// `pool` contains the records.
    pub(crate) fn new(pool: &IoCtx, classes: &Arc<StorageClasses>, wait: Duration) -> GarbageQueue {
        GarbageQueue { pool: pool.clone(), classes: Arc::clone(classes), wait, damaged: Arc::default() }
    }

    /// Records unreferenced tails as garbage.
    pub(crate) async fn queue(&self, garbage: &[Tails]) -> Result<()> {
        let due = now_ns() + self.wait.as_nanos() as u64;
        for tails in garbage.iter().filter(|tails| tails.count > 0) {
            let shard = format!("gc.{}", ceph_str_hash_rjenkins(tails.name.as_bytes()) % SHARDS);
            let key = [&due.to_be_bytes(), tails.name.as_bytes()].concat();
            let value = record::encode(&Garbage { tails: tails.clone() });
            self.pool.omap_set(&shard, vec![(key.into(), value)]).await?;
        }
        Ok(())
    }

    /// Returns the records whose tails may be removed now; with `all`, every record.
    pub async fn list(&self, all: bool) -> Result<Vec<GarbageRecord>> {
        let mut found = Vec::new();
        for shard in 0..SHARDS {
            let mut after = Some(Bytes::new());
            while let Some(from) = after {
                let page;
                (page, after) = self.page(shard, from, all).await?;
                found.extend(page);
            }
        }
        Ok(found)
    }

    /// Reads a page of a shard after `after`. Returns its records whose tails may be removed now (with `all`, every record),
    /// and the position of the next page.
    async fn page(&self, shard: u32, after: Bytes, all: bool) -> Result<(Vec<GarbageRecord>, Option<Bytes>)> {
        let (shard, now) = (format!("gc.{shard}"), now_ns());
        let page = match self.pool.omap_get_vals(&shard, after, "", PAGE).await {
            Err(error) if error.is_not_found() => return Ok((Vec::new(), None)),
            page => page?,
        };
        let mut next = page.entries.last().filter(|_| page.more).map(|(key, _)| key.clone());
        let mut records = Vec::with_capacity(page.entries.len());
        for (key, value) in page.entries {
            let record = GarbageRecord::read(&shard, key, &value);
            // Keys are in the order of their times.
            if !all && record.due_ns > now {
                next = None;
                break;
            }
            records.push(record);
        }
        Ok((records, next))
    }

    /// Removes the tails that may be removed now; with `all`, all garbage. Skips records that can't be decoded and records
    /// whose objects can't be removed. Fails if the cluster does not answer.
    pub async fn collect(&self, all: bool) -> Result<GcResult> {
        let mut collected = GcResult::default();
        for shard in 0..SHARDS {
            let mut after = Some(Bytes::new());
            while let Some(from) = after {
                let page;
                (page, after) = self.page(shard, from, all).await?;
                for record in page {
                    if let Some(damage) = &record.damage {
                        tracing::error!(
                            shard = record.shard,
                            name = record.name,
                            damage,
                            "rgw: a record of garbage is damaged: it stays, and so do its objects"
                        );
                        collected.damaged += 1;
                        continue;
                    }
                    match self.remove(&record).await {
                        Ok(()) => collected.removed += 1,
                        Err(error) if error.is_outcome_unknown() || error.is_unavailable() => {
                            return Err(error);
                        }
                        Err(error) => {
                            tracing::warn!(%error, name = record.name, "rgw: garbage can't be removed now");
                            collected.failed += 1;
                        }
                    }
                }
            }
        }
        self.damaged.store(collected.damaged, Ordering::Relaxed);
        Ok(collected)
    }

    async fn remove(&self, record: &GarbageRecord) -> Result<()> {
        let pool = self.classes.pool_for_read(storage_class_of(&record.name)).await?;
        let mut removals = stream::iter(0..record.count)
            .map(|at| pool.remove(&format!("{}_{at}", record.name)))
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
        Ok(self.pool.omap_rm_keys(&record.shard, vec![record.key.clone()]).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestCluster;

    #[test]
    fn tails_are_removed_when_they_are_due() {
        let cluster = TestCluster::new();
        let (connection, _) = cluster.connect();
        cluster.run(async move {
            let classes = Arc::new(StorageClasses::new(&connection));
            let data = &connection.pools.data;
            let tails = |name: &str| Tails { name: name.into(), count: 2 };
            for name in ["b__shadow_1_0", "b__shadow_1_1", "b__shadow_2_0", "b__shadow_2_1"] {
                data.write_full(name, "data").await.unwrap();
            }
            let later = GarbageQueue::new(&connection.pools.garbage, &classes, Duration::from_secs(3600));
            later.queue(&[tails("b__shadow_1")]).await.unwrap();
            let now = GarbageQueue::new(&connection.pools.garbage, &classes, Duration::ZERO);
            now.queue(&[tails("b__shadow_2")]).await.unwrap();
            assert_eq!((now.list(false).await.unwrap().len(), now.list(true).await.unwrap().len()), (1, 2));
            assert_eq!(now.collect(false).await.unwrap().removed, 1);
            assert!(data.stat("b__shadow_2_0").await.is_err() && data.stat("b__shadow_2_1").await.is_err());
            assert!(data.stat("b__shadow_1_0").await.is_ok());
            // Tails that are gone already are no failure.
            data.remove("b__shadow_1_0").await.unwrap();
            let collected = now.collect(true).await.unwrap();
            assert_eq!((collected.removed, collected.failed, collected.damaged), (1, 0, 0));
            assert!(data.stat("b__shadow_1_1").await.is_err());
            assert!(now.list(true).await.unwrap().is_empty());
        });
    }
}
