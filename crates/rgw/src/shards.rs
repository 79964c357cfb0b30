//! The shards of bucket indexes: RADOS objects in `default.rgw.buckets.index`, by their names, their states, and the sums of
//! their entries. [`crate::index`] makes the changes of entries in them.

mod freeze;

pub(crate) use freeze::{ShardCheck, open_state};

use crate::bucket::{Bucket, Buckets};
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::record;
use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use nacre_client::{IoCtx, WriteOp};
use nacre_index::key::{self, IndexRecordKind};
use nacre_index::record::Stats;
use nacre_types::hash::ceph_str_hash_rjenkins;
use std::sync::Arc;
use std::time::Duration;

/// Shards whose sums are read concurrently.
const SUMS: usize = 16;
/// How long a change waits for a bucket that is being resharded, and how often it checks.
pub(crate) const RESHARD_WAIT_TIMEOUT: Duration = Duration::from_secs(20);
pub(crate) const RESHARD_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Returns the name of a shard's RADOS object.
pub(crate) fn shard_name(bucket: &Bucket, shard: u32) -> String {
    format!(".dir.{}.{}.{shard}", bucket.id, bucket.generation)
}

/// Returns the id of the bucket that a shard belongs to.
pub(crate) fn bucket_id(shard: &str) -> &str {
    shard.strip_prefix(".dir.").and_then(|rest| rest.split('.').next()).unwrap_or_default()
}

/// Returns the name of the shard that a key belongs to.
pub(crate) fn shard_of(bucket: &Bucket, key: &str) -> String {
    shard_name(bucket, ceph_str_hash_rjenkins(key.as_bytes()) % bucket.shards.max(1))
}

/// The shards of all buckets' indexes.
pub struct IndexShards {
    connection: Arc<Connection>,
    buckets: Arc<Buckets>,
}

impl IndexShards {
    pub(crate) fn new(connection: &Arc<Connection>, buckets: &Arc<Buckets>) -> IndexShards {
        IndexShards { connection: Arc::clone(connection), buckets: Arc::clone(buckets) }
    }

    /// The pool of the shards.
    pub(crate) fn pool(&self) -> &IoCtx {
        &self.connection.pools.index
    }

    /// The records of buckets, which name the attempts that close shards.
    fn records(&self) -> &IoCtx {
        &self.connection.pools.buckets
    }

    /// Removes an index.
    pub(crate) async fn remove(&self, bucket: &Bucket) -> Result<()> {
        self.for_all(bucket, |pool, shard| {
            let mut op = WriteOp::new();
            op.remove();
            pool.operate(&shard, op)
        })
        .await
    }

    /// Executes an operation on all shards concurrently; skips shards that are absent.
    async fn for_all(
        &self,
        bucket: &Bucket,
        each: impl Fn(&IoCtx, String) -> nacre_client::Pending<nacre_client::OpReply>,
    ) -> Result<()> {
        let all = (0..bucket.shards.max(1)).map(|shard| each(self.pool(), shard_name(bucket, shard)));
        for reply in futures::future::join_all(all).await {
            match reply.and_then(|reply| reply.success()) {
                Err(error) if error.is_not_found() => {}
                done => drop(done?),
            }
        }
        Ok(())
    }

    /// Returns the error for an operation on a shard that failed. If the shard does not exist, the index is being resharded or
    /// removed.
    pub(crate) fn unavailable(&self, bucket: &Bucket, error: nacre_client::Error) -> Error {
        if !error.is_not_found() {
            return error.into();
        }
        self.buckets.invalidate(&bucket.name);
        Error::IndexBusy(bucket.name.clone())
    }

    /// Whether the change with that tag is pending.
    pub(crate) async fn is_pending(&self, bucket: &Bucket, key: &str, tag: &str) -> Result<bool> {
        let name = key::pending(key, tag);
        let found = self.pool().omap_get_vals_by_keys(&shard_of(bucket, key), vec![name.clone()]).await;
        Ok(found.map_err(|error| self.unavailable(bucket, error))?.contains_key(&name))
    }

    /// Whether the index has a record of that kind.
    pub(crate) async fn has_records(&self, bucket: &Bucket, kind: IndexRecordKind) -> Result<bool> {
        let shards = (0..bucket.shards.max(1))
            .map(|shard| self.pool().omap_get_vals(&shard_name(bucket, shard), "", kind.prefix(), 1));
        for page in futures::future::join_all(shards).await {
            match page {
                Err(error) if error.is_not_found() => {}
                page => {
                    if !page?.entries.is_empty() {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }

    /// Reads the objects and bytes of a bucket, without pending changes.
    pub async fn usage(&self, bucket: &Bucket) -> Result<(u64, u64)> {
        let of_shard = |shard| async move {
            let name = shard_name(bucket, shard);
            let sums = vec![Bytes::from_static(key::STATS)];
            let found = self.pool().omap_get_vals_by_keys(&name, sums).await;
            let found = found.map_err(|error| self.unavailable(bucket, error))?;
            found.get(key::STATS).map_or(Ok(Stats::default()), |value| record::decode::<Stats>(&name, value))
        };
        let mut all = stream::iter(0..bucket.shards.max(1)).map(of_shard).buffer_unordered(SUMS);
        let mut sums = Stats::default();
        while let Some(of_shard) = all.try_next().await? {
            sums.add(of_shard);
        }
        Ok((sums.objects, sums.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::FreezeReason;
    use crate::testing::TestCluster;

    #[test]
    fn an_index_is_closed_by_one_attempt_and_opened_when_it_is_given_up() {
        let cluster = TestCluster::new();
        let (connection, peers) = cluster.connect();
        cluster.run(async move {
            let buckets = Arc::new(Buckets::new(&connection, &peers));
            let shards = IndexShards::new(&connection, &buckets);
            let bucket = Bucket { name: "b".into(), id: "0f".into(), shards: 3, ..Bucket::default() };
            let name = shard_name(&bucket, 1);
            assert_eq!(bucket_id(&name), "0f");
            assert!(record::create(&connection.pools.buckets, "b", &bucket).await.unwrap());
            assert!(matches!(shards.usage(&bucket).await, Err(Error::IndexBusy(_))));
            shards.create(&bucket).await.unwrap();
            assert_eq!(shards.usage(&bucket).await.unwrap(), (0, 0));
            let freeze = |tag| shards.begin_freeze(&bucket, FreezeReason::Removal, tag);
            let closed = freeze("t1").await.unwrap();
            assert!(closed.is_frozen_by("t1"));
            assert!(matches!(freeze("t2").await, Err(Error::IndexBusy(_))));
            // The attempt is valid, so its shards stay closed.
            assert_eq!(shards.check(&bucket, &name, true).await.unwrap(), ShardCheck::Consistent);
            assert!(!shards.abort_freeze(&bucket, "t2").await.unwrap());
            assert!(shards.abort_freeze(&bucket, "t1").await.unwrap());
            assert!(freeze("t3").await.unwrap().is_frozen_by("t3"));
            // A shard that an ended attempt closed is opened.
            let end = |now: &mut Bucket| {
                now.closing = None;
                Ok(())
            };
            buckets.modify("b", end).await.unwrap();
            assert_eq!(shards.check(&bucket, &name, false).await.unwrap(), ShardCheck::Abandoned);
            shards.thaw_abandoned(&bucket, &name).await.unwrap();
            assert_eq!(shards.check(&bucket, &name, false).await.unwrap(), ShardCheck::Consistent);
            // An absent shard is created, and removed with the index.
            connection.pools.index.remove(&name).await.unwrap();
            assert_eq!(shards.check(&bucket, &name, true).await.unwrap(), ShardCheck::Absent);
            assert_eq!(shards.check(&bucket, &name, true).await.unwrap(), ShardCheck::Consistent);
            assert!(!shards.has_records(&bucket, IndexRecordKind::Entry).await.unwrap());
            shards.remove(&bucket).await.unwrap();
            assert!(matches!(shards.is_pending(&bucket, "k", "t").await, Err(Error::IndexBusy(_))));
        });
    }
}
