//! Bucket indexes: what their shards ([`crate::shards`]) list of a bucket, and the steps of a change (docs/format/index.md).
//!
//! An object's head commits each change; readers of the object read only the head. A change is prepared in the index before
//! the commit ([`prepare`]). After the commit, when the client has its response, the change is finished in the index,
//! together with other changes ([`finish`]). A listing reads the heads of keys that have pending changes. So readers of the
//! index and readers of heads see the same, even if a gateway dies between the steps. `nacre_index` defines the protocol;
//! this module executes it.

mod convert;
mod finish;
mod list;
mod prepare;
mod recovery;
mod reshard;
#[cfg(test)]
mod tests;
mod tidy;
mod versions;

pub(crate) use convert::ConvertedBuckets;
pub(crate) use finish::Finisher;
pub use list::{ListQuery, Listing};
pub(crate) use prepare::{Prepared, Preparer};
pub(crate) use recovery::{ChangeRecovery, StaleIntent, recover_periodically};
pub use reshard::{MAX_SHARDS, ReshardEntry, Resharder};
pub(crate) use reshard::{ReshardSettings, reshard_periodically};
pub(crate) use tidy::Tidier;
pub use versions::{ListedVersion, VersionListing};

pub use nacre_index::record::ListingEntry;

use crate::bucket::{Bucket, Buckets};
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::garbage::GarbageQueue;
use crate::last_commits::LastCommits;
use crate::lease::Leases;
use crate::notifying_buckets::NotifyingBuckets;
use crate::peers::Peers;
use crate::quota_cache::QuotaCache;
use crate::shards::IndexShards;
use crate::storage_classes::StorageClasses;
use crate::stored::StoredObjects;
use crate::topics::Topics;
use crate::uploads::Uploads;
use nacre_index::key::IndexRecordKind;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// How long [`BucketIndex::wait_no_pending`] waits, and how often waits for records check.
const FINISH_TIMEOUT: Duration = Duration::from_secs(10);
const FINISH_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The parts that the index uses.
pub(crate) struct IndexParts {
    pub(crate) connection: Arc<Connection>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) buckets: Arc<Buckets>,
    pub(crate) shards: Arc<IndexShards>,
    pub(crate) uploads: Arc<Uploads>,
    pub(crate) objects: Arc<StoredObjects>,
    pub(crate) garbage: Arc<GarbageQueue>,
    /// Learns what finished changes add and remove.
    pub(crate) quotas: Arc<QuotaCache>,
    /// Forgets heads that are tidied.
    pub(crate) commits: Arc<LastCommits>,
    /// The buckets whose changes are recovered without a listing.
    pub(crate) notifying: Arc<NotifyingBuckets>,
    /// Learns of events in outboxes and of gateways that ended.
    pub(crate) topics: Arc<Topics>,
}

impl IndexParts {
    /// Creates all parts but the given ones. `gc_wait` is how long unreferenced tails are kept, `lease` how long a
    /// gateway's lease lasts without renewal.
    pub(crate) fn new(
        (connection, peers): (&Arc<Connection>, &Arc<Peers>),
        classes: &Arc<StorageClasses>,
        topics: Arc<Topics>,
        gc_wait: Duration,
        lease: Duration,
    ) -> IndexParts {
        let pools = &connection.pools;
        let buckets = Arc::new(Buckets::new(connection, peers));
        let shards = Arc::new(IndexShards::new(connection, &buckets));
        let objects = Arc::new(StoredObjects::new(pools.data.clone(), classes));
        let garbage = Arc::new(GarbageQueue::new(&pools.garbage, classes, gc_wait));
        let quotas = Arc::default();
        let uploads = Uploads::new(connection, (&buckets, &shards), (classes, &objects), &garbage, &quotas);
        IndexParts {
            connection: Arc::clone(connection),
            peers: Arc::clone(peers),
            leases: Arc::new(Leases::new(connection, peers, lease)),
            notifying: Arc::new(NotifyingBuckets::new(&pools.log, &buckets)),
            topics,
            uploads: Arc::new(uploads),
            commits: Arc::default(),
            buckets,
            shards,
            objects,
            garbage,
            quotas,
        }
    }
}

/// Limits of the index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexLimits {
    /// How old a pending change of another gateway must be before this gateway checks whether the other one is dead.
    pub(crate) pending_expiration: Duration,
    /// The number of objects that a shard should have at most; 0 for no limit.
    pub(crate) objects_per_shard: u64,
}

/// The indexes of all buckets: their listings, and the parts that change them.
pub struct BucketIndex {
    shards: Arc<IndexShards>,
    objects: Arc<StoredObjects>,
    pending_expiration: Duration,
    pub(crate) preparer: Arc<Preparer>,
    pub(crate) finisher: Arc<Finisher>,
    pub(crate) recovery: Arc<ChangeRecovery>,
    pub(crate) tidier: Arc<Tidier>,
    /// The number of writes of indexes that left events in an outbox.
    pub outbox_writes: Arc<AtomicU64>,
}

impl BucketIndex {
    pub(crate) fn new(parts: &IndexParts, limits: IndexLimits) -> Arc<BucketIndex> {
        let tidier = Arc::new(Tidier::new(&parts.connection, &parts.commits));
        let finisher = Arc::new(Finisher::new(parts, &tidier, limits.objects_per_shard));
        let recovery = ChangeRecovery::new(parts, &finisher, limits.pending_expiration);
        Arc::new(BucketIndex {
            shards: Arc::clone(&parts.shards),
            objects: Arc::clone(&parts.objects),
            pending_expiration: limits.pending_expiration,
            preparer: Arc::new(Preparer::new(&parts.shards, &parts.leases, &finisher)),
            outbox_writes: Arc::clone(&finisher.outbox_writes),
            recovery: Arc::new(recovery),
            finisher,
            tidier,
        })
    }

    /// Whether a bucket contains nothing that a listing would show, and no versions.
    pub(crate) async fn is_empty(&self, bucket: &Bucket) -> Result<bool> {
        let query = ListQuery { max: 1, markers: true, ..ListQuery::default() };
        let found = self.list(bucket, &query).await?;
        Ok(found.entries.is_empty())
    }

    /// Waits until a closed bucket has no pending changes.
    pub(crate) async fn wait_no_pending(&self, bucket: &Bucket) -> Result<()> {
        self.wait_no_records(bucket, IndexRecordKind::Pending, FINISH_TIMEOUT).await
    }

    /// Waits until a closed bucket's index has no record of that kind.
    pub(crate) async fn wait_no_records(
        &self,
        bucket: &Bucket,
        kind: IndexRecordKind,
        timeout: Duration,
    ) -> Result<()> {
        let started = Instant::now();
        while self.shards.has_records(bucket, kind).await? {
            match kind {
                // A listing starts the recovery of changes of dead gateways.
                IndexRecordKind::Pending => drop(self.is_empty(bucket).await?),
                IndexRecordKind::Tidy => self.tidier.tidy_bucket(bucket).await?,
                _ => {}
            }
            if started.elapsed() > timeout {
                return Err(Error::IndexBusy(bucket.name.clone()));
            }
            tokio::time::sleep(FINISH_POLL_INTERVAL).await;
        }
        Ok(())
    }
}
