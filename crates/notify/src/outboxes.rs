//! The interface to the gateway: it locates outboxes and lists the running gateways.

use futures::future::BoxFuture;

/// A bucket whose index may hold events.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BucketOutbox {
    /// The bucket's id, which is never reused.
    pub bucket: String,
    /// The objects of its index that the bucket's record names now. While the index is being resharded, these are the old
    /// ones, until the record names the new ones.
    pub shards: Vec<String>,
}

/// Implemented by the gateway.
pub trait Outboxes: Send + Sync + 'static {
    /// The buckets that have notification configurations, or had some when an unfinished change started.
    fn list(&self) -> BoxFuture<'static, nacre_engine::Result<Vec<BucketOutbox>>>;

    /// A bucket according to its current record; `None` if the bucket no longer exists.
    fn find(&self, bucket: &str) -> BoxFuture<'static, nacre_engine::Result<Option<BucketOutbox>>>;

    /// Opens a frozen shard of a bucket's index, unless the bucket's record names the attempt that froze it, because the
    /// gateway of that attempt may have ended. Does nothing for shards of earlier generations.
    fn open_left(&self, bucket: &str, shard: &str) -> BoxFuture<'static, nacre_engine::Result<()>>;

    /// The RADOS sessions of the running gateways, including this one. The list may be outdated: it determines which
    /// gateway delivers what, but safety does not depend on it.
    fn gateways(&self) -> BoxFuture<'static, nacre_engine::Result<Vec<u64>>>;
}
