//! The list of buckets whose indexes may hold events: those that have notification configurations, or had some.
//!
//! A bucket is listed under its id before it gets its first configuration, and removed from the list once it is gone: a change
//! that was prepared under a configuration may be finished by another gateway long after the configuration was removed. Checking
//! the index of a bucket that has no events any more costs little.

use crate::bucket::{Bucket, Buckets};
use crate::error::{Error, Result};
use crate::record;
use bytes::Bytes;
use nacre_client::{IoCtx, WriteOp};
use nacre_types::encoding::Versioned;
use nacre_types::op::CmpOp;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The namespace of the list in the pool of the log.
const NAMESPACE: &str = "notif.buckets";
/// The RADOS object whose omap is the list.
const LIST: &str = "buckets";
/// Entries read at a time.
const PAGE: u64 = 1000;

/// An entry of the list; its key is the bucket's id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct NotifyingBucket {
    /// The bucket's name.
    name: String,
}

impl Versioned for NotifyingBucket {
    const NAME: &'static str = "a bucket with notifications";
}

/// The list of buckets with notifications.
pub(crate) struct NotifyingBuckets {
    list: IoCtx,
    buckets: Arc<Buckets>,
}

impl NotifyingBuckets {
    /// `log` is the pool of the log.
    pub(crate) fn new(log: &IoCtx, buckets: &Arc<Buckets>) -> NotifyingBuckets {
        NotifyingBuckets { list: log.with_namespace(NAMESPACE), buckets: Arc::clone(buckets) }
    }

    /// Lists a bucket that is about to get notification configurations.
    pub(crate) async fn register(&self, bucket: &Bucket) -> Result<()> {
        let entry = record::encode(&NotifyingBucket { name: bucket.name.clone() });
        Ok(self.list.omap_set(LIST, vec![(Bytes::from(bucket.id.clone()), entry)]).await?)
    }

    /// The bucket with that id, as its record says now, if it is listed and still exists.
    pub(crate) async fn get(&self, id: &str) -> Result<Option<Bucket>> {
        let key = Bytes::from(id.to_owned());
        let found = match self.list.omap_get_vals_by_keys(LIST, vec![key.clone()]).await {
            Err(error) if error.is_not_found() => return Ok(None),
            found => found?,
        };
        match found.get(&key) {
            Some(value) => self.listed_bucket(id, value).await,
            None => Ok(None),
        }
    }

    /// All listed buckets that still exist. Removes the others from the list.
    pub(crate) async fn all(&self) -> Result<Vec<Bucket>> {
        let (mut found, mut after) = (Vec::new(), Bytes::new());
        loop {
            let page = match self.list.omap_get_vals(LIST, after.clone(), "", PAGE).await {
                Err(error) if error.is_not_found() => return Ok(found),
                page => page?,
            };
            for (key, value) in &page.entries {
                let id = String::from_utf8_lossy(key).into_owned();
                match self.listed_bucket(&id, value).await {
                    Ok(Some(bucket)) => found.push(bucket),
                    // Ids are never reused, so this entry can't become valid again.
                    Ok(None) => self.unlist(key, value).await?,
                    // A damaged bucket must not stop the events of others.
                    Err(error @ Error::Corrupt { .. }) => {
                        tracing::error!(%error, id, "rgw: a bucket with notifications is damaged");
                    }
                    Err(error) => return Err(error),
                }
                after = key.clone();
            }
            if !page.more {
                return Ok(found);
            }
        }
    }

    async fn listed_bucket(&self, id: &str, value: &Bytes) -> Result<Option<Bucket>> {
        let NotifyingBucket { name } = record::decode(LIST, value)?;
        match self.buckets.record_without_documents(&name).await {
            Ok(bucket) if bucket.id == id => Ok(Some(bucket)),
            Ok(_) | Err(Error::NoSuchBucket(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn unlist(&self, key: &Bytes, value: &Bytes) -> Result<()> {
        let mut op = WriteOp::new();
        op.omap_cmp(vec![(key.clone(), CmpOp::Eq, value.clone())]).omap_rm_keys(vec![key.clone()]);
        match self.list.operate(LIST, op).await?.success().map_err(Error::from) {
            Err(error) if error.is_canceled() || error.is_not_found() => Ok(()),
            done => done.map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestCluster;

    #[test]
    fn buckets_are_listed_until_they_are_gone() {
        let cluster = TestCluster::new();
        let (connection, peers) = cluster.connect();
        cluster.run(async move {
            let buckets = Arc::new(Buckets::new(&connection, &peers));
            let listed = NotifyingBuckets::new(&connection.pools.log, &buckets);
            assert!(listed.all().await.unwrap().is_empty() && listed.get("1").await.unwrap().is_none());
            for (name, id) in [("a", "1"), ("b", "2")] {
                let bucket = Bucket { name: name.into(), id: id.into(), ..Bucket::default() };
                assert!(record::create(&connection.pools.buckets, name, &bucket).await.unwrap());
                listed.register(&bucket).await.unwrap();
            }
            assert_eq!(listed.all().await.unwrap().len(), 2);
            assert_eq!(listed.get("2").await.unwrap().unwrap().name, "b");
            // Another bucket of the same name is not the listed one.
            let replace = |bucket: &mut Bucket| {
                bucket.id = "3".into();
                Ok(())
            };
            buckets.modify("a", replace).await.unwrap();
            assert!(listed.get("1").await.unwrap().is_none());
            assert_eq!(listed.all().await.unwrap()[0].id, "2");
            assert_eq!(listed.list.omap_get_vals(LIST, "", "", PAGE).await.unwrap().entries.len(), 1);
        });
    }
}
