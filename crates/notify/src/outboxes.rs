//! What delivery asks of the gateway: where outboxes are, and which gateways run.

use futures::future::BoxFuture;

/// A bucket whose index may hold events.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BucketOutbox {
    /// The bucket's id, which is never used again.
    pub bucket: String,
    /// The objects of its index that the bucket's record names now. While the index is resharded these are the old ones,
    /// until the record names the new ones.
    pub shards: Vec<String>,
}

/// Implemented by the gateway.
pub trait Outboxes: Send + Sync + 'static {
    /// The buckets that have notification configurations, or had some when changes that are not finished began.
    fn list(&self) -> BoxFuture<'static, nacre_engine::Result<Vec<BucketOutbox>>>;

    /// A bucket as its record says now; `None` where the bucket is gone.
    fn find(&self, bucket: &str) -> BoxFuture<'static, nacre_engine::Result<Option<BucketOutbox>>>;

    /// Opens a frozen shard of a bucket's index, unless the bucket's record names the attempt that froze it: the gateway of that
    /// attempt may have ended. Nothing is done about shards of earlier generations.
    fn open_left(&self, bucket: &str, shard: &str) -> BoxFuture<'static, nacre_engine::Result<()>>;

    /// The RADOS sessions of the gateways that run, this one included. It decides who delivers what, not whether that is
    /// safe: it may be out of date.
    fn gateways(&self) -> BoxFuture<'static, nacre_engine::Result<Vec<u64>>>;
}
