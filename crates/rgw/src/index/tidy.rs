//! Removes evidence and tombstones that are no longer needed from heads (docs/format/index.md, step 4).

use super::ConvertedBuckets;
use crate::bucket::Bucket;
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::execute;
use crate::last_commits::LastCommits;
use crate::shards::shard_name;
use crate::stored::head_name;
use bytes::Bytes;
use futures::stream::{self, StreamExt};
use nacre_client::IoCtx;
use nacre_index::op::Fetched;
use nacre_index::tidy::{self, TidyWork};
use nacre_types::errno::Errno;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Keys per page, and keys tidied concurrently.
const PAGE: u64 = 256;
const KEYS: usize = 8;
/// The lock for tidying all buckets, and its object in the pool of garbage.
const LOCK: &str = "tidy";
const LOCK_OBJECT: &str = "tidy.0";
/// The duration of the lock of a gateway that tidies. A dead gateway blocks the others for this time. The lock is renewed
/// after a third of it.
const LOCK_TIME: Duration = Duration::from_secs(45);
/// The duration of the lock after everything is tidied, so that other gateways do not repeat the work.
const DONE_TIME: Duration = Duration::from_secs(600);

/// Tidies the heads of all buckets.
pub(crate) struct Tidier {
    connection: Arc<Connection>,
    commits: Arc<LastCommits>,
}

impl Tidier {
    pub(crate) fn new(connection: &Arc<Connection>, commits: &Arc<LastCommits>) -> Tidier {
        Tidier { connection: Arc::clone(connection), commits: Arc::clone(commits) }
    }

    /// Tidies a key, if this is possible now.
    pub(crate) async fn tidy_key(&self, id: &str, shard: &str, key: &str) -> Result<()> {
        let index: &IoCtx = &self.connection.pools.index;
        let Some(reply) = execute::read(index, shard, &tidy::read(key)).await? else { return Ok(()) };
        let TidyWork::Remove { head, shard: records } = tidy::plan(key, &reply)? else { return Ok(()) };
        let name = head_name(id, key);
        let removed = execute::write(&self.connection.pools.data, &name, head).await;
        // The head has another version now.
        self.commits.invalidate(&name);
        match removed {
            Err(error) if error.is_canceled() => return Ok(()),
            Err(error) if !error.is_not_found() => return Err(error),
            _ => {}
        }
        match execute::write(index, shard, records).await {
            Err(error) if error.is_canceled() || error.is_not_found() => Ok(()),
            done => done.map(drop),
        }
    }

    /// Tidies keys after their changes were finished. Keys that fail are left to a later scan.
    pub(super) async fn tidy_keys(&self, id: &str, shard: &str, keys: &[String]) {
        stream::iter(keys)
            .for_each_concurrent(KEYS, |key| async move {
                if let Err(error) = self.tidy_key(id, shard, key).await {
                    tracing::debug!(%error, shard, key, "rgw: a head is tidied later");
                }
            })
            .await;
    }

    /// Tidies all keys of a bucket for which this is possible now.
    pub(crate) async fn tidy_bucket(&self, bucket: &Bucket) -> Result<()> {
        self.tidy_shards(bucket, None).await.map(drop)
    }

    /// Like [`Tidier::tidy_bucket`], but holds the lock for tidying all buckets, which was renewed at `renewed`. Returns
    /// `false` if another gateway has taken the lock.
    async fn tidy_shards(&self, bucket: &Bucket, mut renewed: Option<&mut Instant>) -> Result<bool> {
        for number in 0..bucket.shards.max(1) {
            let shard = shard_name(bucket, number);
            let mut after = Bytes::new();
            loop {
                if let Some(renewed) = renewed.as_deref_mut()
                    && renewed.elapsed() >= LOCK_TIME / 3
                {
                    *renewed = Instant::now();
                    if !self.lock_tidying(LOCK_TIME).await? {
                        return Ok(false);
                    }
                }
                let reply =
                    execute::read(&self.connection.pools.index, &shard, &tidy::scan(after, PAGE)).await?;
                let Some(Fetched::Page(page)) = reply.and_then(|reply| reply.parts.into_iter().next()) else {
                    break;
                };
                self.tidy_keys(&bucket.id, &shard, &tidy::keys(&page)).await;
                match page.entries.last() {
                    Some((last, _)) if page.more => after = last.clone(),
                    _ => break,
                }
            }
        }
        Ok(true)
    }

    /// Takes the lock for tidying all buckets, or renews it. Returns `false` if another gateway has it.
    async fn lock_tidying(&self, time: Duration) -> Result<bool> {
        let renew = nacre_types::cls::lock::MAY_RENEW;
        let Connection { pools, .. } = &*self.connection;
        let session = self.connection.session();
        let taken = pools.garbage.lock_exclusive(LOCK_OBJECT, LOCK, session, "", time, renew);
        match taken.await {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.errno(), Errno::EBUSY | Errno::EEXIST) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Tidies all buckets, unless another gateway does. This handles keys that were finished by gateways that ended before
    /// they tidied them.
    pub(crate) async fn tidy_all(&self, buckets: &Arc<ConvertedBuckets>) -> Result<()> {
        let mut renewed = Instant::now();
        if !self.lock_tidying(LOCK_TIME).await? {
            return Ok(());
        }
        for name in buckets.records.list().await? {
            match buckets.get(&name).await {
                Ok(bucket) if !self.tidy_shards(&bucket, Some(&mut renewed)).await? => return Ok(()),
                // The bucket was removed, or its index is being converted: there is nothing to tidy.
                Ok(_) | Err(Error::NoSuchBucket(_) | Error::IndexBusy(_)) => {}
                Err(error) => tracing::warn!(%error, bucket = name, "rgw: a bucket is not tidied"),
            }
        }
        self.lock_tidying(DONE_TIME).await.map(drop)
    }
}
