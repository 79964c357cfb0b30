//! Removes evidence and tombstones that nothing needs any more from heads (docs/format/index.md, step 4).

use super::{execute, shard_name};
use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::gateway::Gateway;
use crate::object::head_name_in;
use bytes::Bytes;
use futures::stream::{self, StreamExt};
use nacre_client::IoCtx;
use nacre_index::op::Fetched;
use nacre_index::tidy::{self, Work};
use nacre_types::errno::Errno;
use std::time::Duration;

/// Keys read at a time, and how many of them are tidied at the same time.
const PAGE: u64 = 256;
const KEYS: usize = 8;
/// The lock of who tidies all buckets, its object in the pool of garbage, and how long it lasts.
const LOCK: &str = "tidy";
const LOCK_OBJECT: &str = "tidy.0";
const LOCK_TIME: Duration = Duration::from_secs(600);

impl Gateway {
    /// Tidies a key, if that can be done now.
    pub(crate) async fn tidy_key(&self, id: &str, shard: &str, key: &str) -> Result<()> {
        let index: &IoCtx = &self.pools.index;
        let Some(reply) = execute::read(index, shard, &tidy::read(key)).await? else { return Ok(()) };
        let Work::Remove { head, shard: records } = tidy::work(key, &reply)? else { return Ok(()) };
        let name = head_name_in(id, key);
        let removed = execute::write(&self.pools.data, &name, head).await;
        // The head's version is another one now.
        self.commits.forget(&name);
        match removed {
            Err(error) if error.is_canceled() => return Ok(()),
            Err(error) if !error.is_absent() => return Err(error),
            _ => {}
        }
        match execute::write(index, shard, records).await {
            Err(error) if error.is_canceled() || error.is_absent() => Ok(()),
            done => done.map(drop),
        }
    }

    /// Tidies keys after their changes were finished. What fails is left to a later scan.
    pub(super) async fn tidy_keys(&self, id: &str, shard: &str, keys: &[String]) {
        stream::iter(keys)
            .for_each_concurrent(KEYS, |key| async move {
                if let Err(error) = self.tidy_key(id, shard, key).await {
                    tracing::debug!(%error, shard, key, "rgw: a head is tidied later");
                }
            })
            .await;
    }

    /// Tidies all keys of a bucket that can be tidied now.
    pub(crate) async fn tidy_bucket(&self, bucket: &Bucket) -> Result<()> {
        for number in 0..bucket.shards.max(1) {
            let shard = shard_name(bucket, number);
            let mut after = Bytes::new();
            loop {
                let reply = execute::read(&self.pools.index, &shard, &tidy::scan(after, PAGE)).await?;
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
        Ok(())
    }

    /// Tidies all buckets, unless another gateway does: what was left by finishes that ended before they had tidied.
    pub(crate) async fn tidy_all(&self) -> Result<()> {
        let renew = nacre_types::cls::lock::MAY_RENEW;
        let pool = &self.pools.garbage;
        match pool.lock_exclusive(LOCK_OBJECT, LOCK, self.session(), "", LOCK_TIME, renew).await {
            Ok(()) => {}
            Err(error) if matches!(error.errno(), Errno::EBUSY | Errno::EEXIST) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        for name in self.buckets().await? {
            match self.bucket(&name).await {
                Ok(bucket) => self.tidy_bucket(&bucket).await?,
                // Removed, or its index is being converted: nothing to be tidied.
                Err(Error::NoSuchBucket(_) | Error::IndexBusy(_)) => {}
                Err(error) => tracing::warn!(%error, bucket = name, "rgw: a bucket is not tidied"),
            }
        }
        // The lock lasts until its time is over: others need not do the same again.
        Ok(())
    }
}
