//! Enforcement of quotas.
//!
//! Quotas are checked against usage that a gateway caches for a bounded time (`rgw_bucket_quota_ttl`), as radosgw does, and
//! not against the index at each write. Between two reads of the index, this gateway's own changes update the cached usage
//! when they are finished ([`QuotaCache::apply_finished`]), and writes in flight reserve their amounts
//! ([`QuotaReservation`]). Changes of other gateways are included by the next read. So a quota can be exceeded only by what
//! other gateways write in that time. If no quota is enabled, nothing is counted or read.

use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::gateway::Gateway;
use crate::quota::{Quota, QuotaUsage, UsageDelta};
use crate::user::User;
use futures::stream::{FuturesUnordered, StreamExt};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The maximum number of scopes with cached usage; beyond it, all are dropped and read again. With this many reservations in
/// a scope, old ones are dropped.
const REMEMBERED: usize = 10_000;
/// The minimum time for which a reservation counts that is neither finished nor released. It is longer than a write and the
/// finish of its index entry take, however short the maximum age of cached usage is.
const RESERVATION_TIMEOUT: Duration = Duration::from_secs(60);
/// Buckets of a user that are read concurrently.
const BUCKETS: usize = 8;

/// What a quota applies to: a bucket, by its id, or all buckets of a user.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum QuotaScope {
    Bucket(String),
    User(String),
}

/// The cached usage of a scope.
#[derive(Debug)]
struct CachedUsage {
    usage: QuotaUsage,
    read: Instant,
    /// Whether a new read is in progress.
    renewed: bool,
    /// The reservations of writes in flight, by the tag of the write.
    reserved: HashMap<String, ReservedUsage>,
}

#[derive(Debug)]
struct ReservedUsage {
    usage: QuotaUsage,
    since: Instant,
    /// The upload that a part belongs to; empty for an object.
    upload: String,
}

/// The cached usage of a gateway.
#[derive(Debug, Default)]
pub(crate) struct QuotaCache {
    known: Mutex<HashMap<QuotaScope, CachedUsage>>,
    /// The owners of buckets with cached usage, by the bucket's id.
    owners: Mutex<HashMap<String, String>>,
    /// Whether usage is cached at all. Most gateways have none, and their writes check nothing else.
    any: AtomicBool,
}

/// The kind of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReservationKind<'a> {
    /// An object.
    Object,
    /// A part of this upload.
    Part(&'a str),
    /// An object that consists of the parts of this upload. The parts do not count in addition to it.
    Completion(&'a str),
}

/// Space that is reserved for a write in flight. It is released when the reservation is dropped; [`QuotaReservation::keep`]
/// keeps it until the write is finished in the index.
pub(crate) struct QuotaReservation {
    quotas: Arc<QuotaCache>,
    scopes: Vec<(QuotaScope, Quota)>,
    tag: String,
    kept: bool,
}

impl CachedUsage {
    /// Returns the usage with all reservations except the write's own (`but`) and those of the upload that the write
    /// completes (`completed`).
    fn total(&self, but: &str, completed: &str) -> QuotaUsage {
        let is_own = |tag: &str, reserved: &ReservedUsage| {
            tag == but || (!completed.is_empty() && reserved.upload == completed)
        };
        let reserved = self
            .reserved
            .iter()
            .filter(|(tag, reserved)| !is_own(tag, reserved))
            .map(|(_, reserved)| reserved.usage);
        reserved.fold(self.usage, |total, usage| total + usage)
    }
}

impl QuotaCache {
    /// The scopes that the bucket `id` belongs to, as far as its owner is known.
    fn scopes_of(&self, id: &str) -> [Option<QuotaScope>; 2] {
        let owner = self.owners.lock().get(id).cloned();
        [Some(QuotaScope::Bucket(id.to_owned())), owner.map(QuotaScope::User)]
    }

    /// Notes that changes of the index of the bucket `id` are finished, and how they changed its usage.
    pub(crate) fn apply_finished<'a>(
        &self,
        id: &str,
        tags: impl Iterator<Item = &'a str> + Clone,
        delta: UsageDelta,
    ) {
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        let scopes = self.scopes_of(id);
        let mut all = self.known.lock();
        for scope in scopes.iter().flatten() {
            let Some(known) = all.get_mut(scope) else { continue };
            known.usage.objects = known.usage.objects.saturating_add_signed(delta.objects);
            known.usage.bytes = known.usage.bytes.saturating_add_signed(delta.bytes);
            for tag in tags.clone() {
                known.reserved.remove(tag);
            }
        }
    }

    /// Releases the reservations of the parts of an upload that was completed or aborted.
    pub(crate) fn release_upload(&self, id: &str, upload: &str) {
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        let scopes = self.scopes_of(id);
        let mut all = self.known.lock();
        for scope in scopes.iter().flatten() {
            if let Some(known) = all.get_mut(scope) {
                known.reserved.retain(|_, reserved| reserved.upload != upload);
            }
        }
    }

    fn release(&self, scopes: &[(QuotaScope, Quota)], tag: &str) {
        let mut all = self.known.lock();
        for (scope, _) in scopes {
            if let Some(known) = all.get_mut(scope) {
                known.reserved.remove(tag);
            }
        }
    }
}

impl QuotaReservation {
    /// Changes the reserved amount. Fails if it exceeds a quota, and then keeps the previous amount.
    pub(crate) fn resize(&self, usage: QuotaUsage) -> Result<()> {
        let mut all = self.quotas.known.lock();
        let fits = self.scopes.iter().all(|(scope, quota)| {
            all.get(scope).is_none_or(|known| quota.has_room(known.total(&self.tag, "") + usage))
        });
        if !fits {
            return Err(Error::QuotaExceeded);
        }
        for (scope, _) in &self.scopes {
            if let Some(reserved) = all.get_mut(scope).and_then(|known| known.reserved.get_mut(&self.tag)) {
                reserved.usage = usage;
            }
        }
        Ok(())
    }

    /// Keeps the space reserved: the write succeeded, and counts when its index entry is finished.
    pub(crate) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for QuotaReservation {
    fn drop(&mut self) {
        if !self.kept {
            self.quotas.release(&self.scopes, &self.tag);
        }
    }
}

impl Gateway {
    /// Reserves space for a write of `tag` into a bucket, or fails with [`Error::QuotaExceeded`]. Returns `None` if no quota
    /// applies to it.
    pub(crate) async fn reserve_quota(
        self: &Arc<Gateway>,
        bucket: &Bucket,
        tag: &str,
        usage: QuotaUsage,
        purpose: ReservationKind<'_>,
    ) -> Result<Option<QuotaReservation>> {
        let (upload, completed) = match purpose {
            ReservationKind::Object => ("", ""),
            ReservationKind::Part(upload) => (upload, ""),
            ReservationKind::Completion(upload) => ("", upload),
        };
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
        let mut all = self.quotas.known.lock();
        for (scope, quota) in &scopes {
            if let Some(known) = all.get_mut(scope) {
                // A reservation that is neither finished nor released must not count forever.
                if known.reserved.len() >= REMEMBERED {
                    known
                        .reserved
                        .retain(|_, reserved| reserved.since.elapsed() < self.reservation_timeout());
                }
                if !quota.has_room(known.total(tag, completed) + usage) {
                    return Err(Error::QuotaExceeded);
                }
            }
        }
        for (scope, _) in &scopes {
            if let Some(known) = all.get_mut(scope) {
                let reserved = ReservedUsage { usage, since: Instant::now(), upload: upload.to_owned() };
                known.reserved.insert(tag.to_owned(), reserved);
            }
        }
        drop(all);
        Ok(Some(QuotaReservation {
            quotas: Arc::clone(&self.quotas),
            scopes,
            tag: tag.to_owned(),
            kept: false,
        }))
    }

    /// Ensures that usage is cached and not too old. Usage that is older than half of its maximum age is read again while
    /// the request continues.
    async fn ensure_cached(
        self: &Arc<Gateway>,
        scope: &QuotaScope,
        bucket: &Bucket,
        owner: &User,
    ) -> Result<()> {
        let most = match scope {
            QuotaScope::Bucket(_) => self.config.quota_ttls.bucket,
            QuotaScope::User(_) => self.config.quota_ttls.user,
        };
        self.quotas.any.store(true, Ordering::Relaxed);
        let known = |id: &str| self.quotas.owners.lock().get(id).is_some_and(|known| *known == owner.id);
        if !known(&bucket.id) {
            let mut owners = self.quotas.owners.lock();
            if owners.len() >= REMEMBERED {
                owners.clear();
            }
            owners.insert(bucket.id.clone(), owner.id.clone());
        }
        let age = {
            let mut all = self.quotas.known.lock();
            all.get_mut(scope).map(|known| {
                let age = known.read.elapsed();
                let renew = age > most / 2 && age <= most && !known.renewed;
                known.renewed |= renew;
                (age, renew)
            })
        };
        match age {
            Some((age, false)) if age <= most => Ok(()),
            Some((_, true)) => {
                let (gateway, scope, bucket) = (Arc::clone(self), scope.clone(), bucket.clone());
                tokio::spawn(async move {
                    if let Err(error) = gateway.read_usage(&scope, &bucket).await {
                        tracing::warn!(%error, ?scope, "rgw: usage for a quota can't be read");
                        if let Some(known) = gateway.quotas.known.lock().get_mut(&scope) {
                            known.renewed = false;
                        }
                    }
                });
                Ok(())
            }
            _ => self.read_usage(scope, bucket).await,
        }
    }

    /// How long a reservation counts that is neither finished nor released.
    fn reservation_timeout(&self) -> Duration {
        self.config.quota_ttls.bucket.max(RESERVATION_TIMEOUT)
    }

    async fn read_usage(&self, scope: &QuotaScope, bucket: &Bucket) -> Result<()> {
        let usage = match scope {
            QuotaScope::Bucket(_) => {
                let (objects, bytes) = self.bucket_usage(bucket).await?;
                QuotaUsage { objects, bytes }
            }
            QuotaScope::User(id) => self.user_usage(id).await?,
        };
        let mut all = self.quotas.known.lock();
        if all.len() >= REMEMBERED && !all.contains_key(scope) {
            all.clear();
        }
        let reserved = all.remove(scope).map(|known| known.reserved).unwrap_or_default();
        let most = self.reservation_timeout();
        let reserved = reserved.into_iter().filter(|(_, reserved)| reserved.since.elapsed() < most).collect();
        all.insert(scope.clone(), CachedUsage { usage, read: Instant::now(), renewed: false, reserved });
        Ok(())
    }

    /// Reads the objects and bytes of all buckets of a user, without pending changes.
    pub async fn user_usage(&self, id: &str) -> Result<QuotaUsage> {
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
        let bucket = match self.cached_bucket(&name).await {
            // A bucket is listed before it is created, and until after it is removed.
            Err(Error::NoSuchBucket(_)) => return Ok(QuotaUsage::default()),
            bucket => bucket?,
        };
        if bucket.owner != user {
            return Ok(QuotaUsage::default());
        }
        let (objects, bytes) = self.bucket_usage(&bucket).await?;
        Ok(QuotaUsage { objects, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_finished_counts_in_place_of_what_was_held() {
        let quotas = QuotaCache::default();
        quotas.any.store(true, Ordering::Relaxed);
        quotas.owners.lock().insert("b1".into(), "alice".into());
        let usage = |objects, bytes| QuotaUsage { objects, bytes };
        for scope in [QuotaScope::Bucket("b1".into()), QuotaScope::User("alice".into())] {
            let reserved = |upload: &str| ReservedUsage {
                usage: usage(1, 10),
                since: Instant::now(),
                upload: upload.into(),
            };
            let reserved = [
                ("t1".to_owned(), reserved("")),
                ("t2".to_owned(), reserved("u")),
                ("t3".to_owned(), reserved("u")),
            ];
            let known = CachedUsage {
                usage: usage(5, 50),
                read: Instant::now(),
                renewed: false,
                reserved: reserved.into(),
            };
            quotas.known.lock().insert(scope, known);
        }
        let totals = || quotas.known.lock().values().map(|known| known.total("", "")).collect::<Vec<_>>();
        assert_eq!(totals(), [usage(8, 80); 2]);
        quotas.apply_finished("b1", ["t1"].into_iter(), UsageDelta { objects: 1, bytes: 8 });
        assert_eq!(totals(), [usage(8, 78); 2]);
        quotas.release_upload("b1", "u");
        quotas.apply_finished("b1", [].into_iter(), UsageDelta { objects: -9, bytes: -9 });
        assert_eq!(totals(), [usage(0, 49); 2]);
    }
}
