//! Enforcement of quotas.
//!
//! Quotas are checked against usage that a gateway caches for a bounded time (`rgw_bucket_quota_ttl`), as radosgw does, and
//! not against the index at each write. Between two reads of the index, this gateway's own changes update the cached usage
//! when they are finished ([`QuotaCache::apply_finished`]), and writes in flight reserve their amounts
//! ([`QuotaReservation`]). Changes of other gateways are included by the next read. So a quota can be exceeded only by what
//! other gateways write in that time. If no quota is enabled, nothing is counted or read.

use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::index::ConvertedBuckets;
use crate::quota::{QuotaTtls, QuotaUsage};
use crate::quota_cache::{QuotaCache, QuotaReservation, QuotaScope, ReservationKind, UsageState};
use crate::shards::IndexShards;
use crate::user::{User, Users};
use futures::stream::{FuturesUnordered, StreamExt};
use std::sync::Arc;
use std::time::Duration;

/// The minimum time for which a reservation counts that is neither finished nor released. It is longer than a write and the
/// finish of its index entry take, however short the maximum age of cached usage is.
const RESERVATION_TIMEOUT: Duration = Duration::from_secs(60);
/// Buckets of a user that are read concurrently.
const BUCKETS: usize = 8;

/// Checks writes against the quotas of buckets and users.
pub(crate) struct QuotaEnforcer {
    cache: Arc<QuotaCache>,
    users: Arc<Users>,
    buckets: Arc<ConvertedBuckets>,
    shards: Arc<IndexShards>,
    ttls: QuotaTtls,
}

impl QuotaEnforcer {
    pub(crate) fn new(
        cache: &Arc<QuotaCache>,
        users: &Arc<Users>,
        buckets: &Arc<ConvertedBuckets>,
        shards: &Arc<IndexShards>,
        ttls: QuotaTtls,
    ) -> Arc<QuotaEnforcer> {
        Arc::new(QuotaEnforcer {
            cache: Arc::clone(cache),
            users: Arc::clone(users),
            buckets: Arc::clone(buckets),
            shards: Arc::clone(shards),
            ttls,
        })
    }

    /// Reserves space for a write of `tag` into a bucket, or fails with [`Error::QuotaExceeded`]. Returns `None` if no quota
    /// applies to it.
    pub(crate) async fn reserve(
        self: &Arc<QuotaEnforcer>,
        bucket: &Bucket,
        tag: &str,
        usage: QuotaUsage,
        kind: ReservationKind<'_>,
    ) -> Result<Option<QuotaReservation>> {
        let owner = match self.users.cached(&bucket.owner).await {
            Ok(owner) => owner,
            Err(Error::NoSuchUser(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let own = bucket.quota.filter(|quota| quota.enabled).unwrap_or(owner.bucket_quota);
        if !own.is_effective() && !owner.user_quota.is_effective() {
            return Ok(None);
        }
        let mut scopes = Vec::new();
        if own.is_effective() {
            scopes.push((QuotaScope::Bucket(bucket.id.clone()), own));
        }
        if owner.user_quota.is_effective() {
            scopes.push((QuotaScope::User(owner.id.clone()), owner.user_quota));
        }
        for (scope, _) in &scopes {
            self.ensure_cached(scope, bucket, &owner).await?;
        }
        self.cache.reserve(scopes, (tag, kind), usage, self.reservation_timeout()).map(Some)
    }

    /// Ensures that usage is cached and not too old. Usage that is older than half of its maximum age is read again while
    /// the request continues.
    async fn ensure_cached(
        self: &Arc<QuotaEnforcer>,
        scope: &QuotaScope,
        bucket: &Bucket,
        owner: &User,
    ) -> Result<()> {
        let max_age = match scope {
            QuotaScope::Bucket(_) => self.ttls.bucket,
            QuotaScope::User(_) => self.ttls.user,
        };
        self.cache.set_owner(&bucket.id, &owner.id);
        match self.cache.usage_state(scope, max_age) {
            UsageState::Fresh => Ok(()),
            UsageState::Renew => {
                let (enforcer, scope, bucket) = (Arc::clone(self), scope.clone(), bucket.clone());
                tokio::spawn(async move {
                    if let Err(error) = enforcer.read_usage(&scope, &bucket).await {
                        tracing::warn!(%error, ?scope, "rgw: usage for a quota can't be read");
                        enforcer.cache.set_not_renewed(&scope);
                    }
                });
                Ok(())
            }
            UsageState::Outdated => self.read_usage(scope, bucket).await,
        }
    }

    /// How long a reservation counts that is neither finished nor released.
    fn reservation_timeout(&self) -> Duration {
        self.ttls.bucket.max(RESERVATION_TIMEOUT)
    }

    async fn read_usage(&self, scope: &QuotaScope, bucket: &Bucket) -> Result<()> {
        let read = self.cache.begin_read(scope);
        let usage = match scope {
            QuotaScope::Bucket(_) => {
                let (objects, bytes) = self.shards.usage(bucket).await?;
                QuotaUsage { objects, bytes }
            }
            QuotaScope::User(id) => self.user_usage(id).await?,
        };
        self.cache.set_usage(scope, &read, usage, self.reservation_timeout());
        Ok(())
    }

    /// Reads the objects and bytes of all buckets of a user, without pending changes.
    pub(crate) async fn user_usage(&self, id: &str) -> Result<QuotaUsage> {
        let own = self.users.buckets.list(id, "", u64::MAX).await?;
        let mut reads = FuturesUnordered::new();
        let mut total = QuotaUsage::default();
        for (name, _) in own {
            if reads.len() >= BUCKETS
                && let Some(usage) = reads.next().await
            {
                total = total + usage?;
            }
            reads.push(self.usage_of(id, name));
        }
        while let Some(usage) = reads.next().await {
            total = total + usage?;
        }
        Ok(total)
    }

    /// Reads the usage of a bucket, if the bucket belongs to that user.
    async fn usage_of(&self, user: &str, name: String) -> Result<QuotaUsage> {
        let bucket = match self.buckets.cached(&name).await {
            // A bucket is listed before it is created, and until after it is removed.
            Err(Error::NoSuchBucket(_)) => return Ok(QuotaUsage::default()),
            bucket => bucket?,
        };
        if bucket.owner != user {
            return Ok(QuotaUsage::default());
        }
        let (objects, bytes) = self.shards.usage(&bucket).await?;
        Ok(QuotaUsage { objects, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TestCluster, create_bucket, index_on, index_parts};
    use crate::user::DefaultQuotas;

    #[test]
    fn a_write_that_exceeds_the_quota_of_its_owner_is_refused() {
        let cluster = TestCluster::new();
        let (connection, peers) = cluster.connect();
        cluster.run_on_tokio(async {
            let parts = index_parts(&connection, &peers);
            let bucket = create_bucket(&parts, "b", "alice").await;
            let (cache, shards) = (Arc::clone(&parts.quotas), Arc::clone(&parts.shards));
            let none = Default::default();
            let users = Users::new(&connection, &peers, DefaultQuotas { user: none, bucket: none });
            let users = Arc::new(users);
            let ttls = QuotaTtls { bucket: RESERVATION_TIMEOUT, user: RESERVATION_TIMEOUT };
            let quotas = QuotaEnforcer::new(&cache, &users, &index_on(&parts).1, &shards, ttls);
            let reserve = async |tag| {
                let usage = QuotaUsage { objects: 1, bytes: 6 };
                quotas.reserve(&bucket, tag, usage, ReservationKind::Object).await
            };
            // Without an owner there is no quota.
            assert!(reserve("t0").await.unwrap().is_none());
            users.create(&User::new("alice", "Alice")).await.unwrap();
            assert!(reserve("t0").await.unwrap().is_none());
            let limit = |user: &mut User| {
                (user.user_quota.enabled, user.user_quota.max_size) = (true, 10);
                Ok(())
            };
            users.modify("alice", limit).await.unwrap();
            let held = reserve("t1").await.unwrap().unwrap();
            assert!(matches!(reserve("t2").await, Err(Error::QuotaExceeded)));
            assert!(held.resize(QuotaUsage { objects: 1, bytes: 11 }).is_err());
            drop(held);
            reserve("t2").await.unwrap().unwrap().keep();
            assert!(matches!(reserve("t3").await, Err(Error::QuotaExceeded)));
            assert_eq!(quotas.user_usage("alice").await.unwrap(), QuotaUsage::default());
        });
    }
}
