//! Quotas: how many objects and bytes a bucket, or all buckets of a user, may hold.
//!
//! They are judged from sums that a gateway remembers for a bounded time (`rgw_bucket_quota_ttl`), as radosgw does, and not
//! from the index at each write. Between two readings the sums follow what this gateway's own changes did to the index
//! ([`Quotas::finished`]) and count what is on its way into RADOS ([`Held`]); of other gateways' changes they learn by the
//! next reading. So a quota may be exceeded by what the others write in that time, and by nothing else. Where no quota is
//! enabled nothing is counted and nothing read.

use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::gateway::Gateway;
use crate::user::User;
use futures::stream::{FuturesUnordered, StreamExt};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Sums remembered, and writes held in each, at most; past it what is oldest is forgotten and read again.
const REMEMBERED: usize = 10_000;
/// Buckets of a user that are read at the same time.
const BUCKETS: usize = 8;

/// A quota. A limit below zero is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// Whether it is enforced.
    pub enabled: bool,
    /// Bytes.
    pub max_size: i64,
    /// Objects.
    pub max_objects: i64,
}

impl Default for Quota {
    fn default() -> Quota {
        Quota { enabled: false, max_size: -1, max_objects: -1 }
    }
}

/// What of a quota is to be changed; `None` stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaChange {
    /// Whether it is enforced.
    pub enabled: Option<bool>,
    /// Bytes; below zero for no limit.
    pub max_size: Option<i64>,
    /// Objects; below zero for no limit.
    pub max_objects: Option<i64>,
}

impl QuotaChange {
    /// The quota after the change.
    pub fn apply(&self, quota: Quota) -> Quota {
        let limit = |limit: i64| limit.max(-1);
        Quota {
            enabled: self.enabled.unwrap_or(quota.enabled),
            max_size: self.max_size.map_or(quota.max_size, limit),
            max_objects: self.max_objects.map_or(quota.max_objects, limit),
        }
    }
}

impl Quota {
    /// What radosgw-admin prints of it.
    pub fn describe(&self) -> serde_json::Value {
        let kb = if self.max_size > 0 { (self.max_size + 1023) / 1024 } else { 0 };
        serde_json::json!({
            "enabled": self.enabled, "check_on_raw": false, "max_size": self.max_size, "max_size_kb": kb,
            "max_objects": self.max_objects,
        })
    }

    fn limits(&self) -> bool {
        self.enabled && (self.max_size >= 0 || self.max_objects >= 0)
    }

    /// Whether so much fits.
    fn has_room(&self, sums: Sums) -> bool {
        let below = |sum: u64, max: i64| u64::try_from(max).map_or(true, |max| sum <= max);
        !self.enabled || (below(sums.objects, self.max_objects) && below(sums.bytes, self.max_size))
    }
}

/// Objects and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl std::ops::Add for Sums {
    type Output = Sums;

    fn add(self, other: Sums) -> Sums {
        let objects = self.objects.saturating_add(other.objects);
        Sums { objects, bytes: self.bytes.saturating_add(other.bytes) }
    }
}

/// How a change of an index changed its sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delta {
    pub(crate) objects: i64,
    pub(crate) bytes: i64,
}

/// How old remembered sums may be.
#[derive(Clone, Copy, Debug)]
pub struct Ages {
    /// `rgw_bucket_quota_ttl`: of a bucket; also how long parts count that no upload was completed with.
    pub bucket: Duration,
    /// `rgw_user_quota_bucket_sync_interval`: of a user.
    pub user: Duration,
}

/// What is counted together: a bucket, by its id, or all buckets of a user.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Scope {
    Bucket(String),
    User(String),
}

/// Remembered sums.
#[derive(Debug)]
struct Known {
    sums: Sums,
    read: Instant,
    /// A reading is under way.
    renewed: bool,
    /// What is on its way into RADOS, by the tag of the write.
    held: HashMap<String, HeldSums>,
}

#[derive(Debug)]
struct HeldSums {
    sums: Sums,
    since: Instant,
    /// The upload that a part belongs to; empty for an object.
    upload: String,
}

/// The remembered sums of a gateway.
#[derive(Debug, Default)]
pub(crate) struct Quotas {
    known: Mutex<HashMap<Scope, Known>>,
    /// Whose the buckets with remembered sums are, by id.
    owners: Mutex<HashMap<String, String>>,
    /// Whether there are any: most gateways have none, and their writes look no further.
    any: AtomicBool,
}

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose<'a> {
    /// An object.
    Object,
    /// A part of this upload.
    Part(&'a str),
    /// An object of the parts of this upload: they do not count beside it.
    Completion(&'a str),
}

/// Room taken for a write that is under way. Dropped, it is given back; [`Held::keep`] leaves it until the write is
/// finished in the index.
pub(crate) struct Held {
    gateway: Arc<Gateway>,
    scopes: Vec<(Scope, Quota)>,
    tag: String,
    kept: bool,
}

impl Known {
    /// All but what a write holds itself, and what it takes the place of.
    fn total(&self, but: &str, completed: &str) -> Sums {
        let is_own =
            |tag: &str, held: &HeldSums| tag == but || (!completed.is_empty() && held.upload == completed);
        let held = self.held.iter().filter(|(tag, held)| !is_own(tag, held)).map(|(_, held)| held.sums);
        held.fold(self.sums, |total, sums| total + sums)
    }
}

impl Quotas {
    /// Notes that changes of the index of the bucket `id` are finished, and what they did to its sums.
    pub(crate) fn finished<'a>(&self, id: &str, tags: impl Iterator<Item = &'a str> + Clone, delta: Delta) {
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        let owner = self.owners.lock().get(id).cloned();
        let scopes = [Some(Scope::Bucket(id.to_owned())), owner.map(Scope::User)];
        let mut all = self.known.lock();
        for scope in scopes.iter().flatten() {
            let Some(known) = all.get_mut(scope) else { continue };
            known.sums.objects = known.sums.objects.saturating_add_signed(delta.objects);
            known.sums.bytes = known.sums.bytes.saturating_add_signed(delta.bytes);
            for tag in tags.clone() {
                known.held.remove(tag);
            }
        }
    }

    /// Gives back what parts of an upload took that is completed or ended.
    pub(crate) fn ended(&self, id: &str, upload: &str) {
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        let owner = self.owners.lock().get(id).cloned();
        let scopes = [Some(Scope::Bucket(id.to_owned())), owner.map(Scope::User)];
        let mut all = self.known.lock();
        for scope in scopes.iter().flatten() {
            if let Some(known) = all.get_mut(scope) {
                known.held.retain(|_, held| held.upload != upload);
            }
        }
    }

    fn give_back(&self, scopes: &[(Scope, Quota)], tag: &str) {
        let mut all = self.known.lock();
        for (scope, _) in scopes {
            if let Some(known) = all.get_mut(scope) {
                known.held.remove(tag);
            }
        }
    }
}

impl Held {
    /// Takes room for other sums than at first; fails, and keeps what it had, where they do not fit.
    pub(crate) fn resize(&self, sums: Sums) -> Result<()> {
        let mut all = self.gateway.quotas.known.lock();
        let fits = self.scopes.iter().all(|(scope, quota)| {
            all.get(scope).is_none_or(|known| quota.has_room(known.total(&self.tag, "") + sums))
        });
        if !fits {
            return Err(Error::QuotaExceeded);
        }
        for (scope, _) in &self.scopes {
            if let Some(held) = all.get_mut(scope).and_then(|known| known.held.get_mut(&self.tag)) {
                held.sums = sums;
            }
        }
        Ok(())
    }

    /// Leaves the room taken: what it was taken for was written, and counts when its index entry is finished.
    pub(crate) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.kept {
            self.gateway.quotas.give_back(&self.scopes, &self.tag);
        }
    }
}

impl Gateway {
    /// Takes room for a write of `tag` into a bucket, or fails with [`Error::QuotaExceeded`]. `None` where no quota concerns
    /// it.
    pub(crate) async fn hold(
        self: &Arc<Gateway>,
        bucket: &Bucket,
        tag: &str,
        sums: Sums,
        purpose: Purpose<'_>,
    ) -> Result<Option<Held>> {
        let (upload, completed) = match purpose {
            Purpose::Object => ("", ""),
            Purpose::Part(upload) => (upload, ""),
            Purpose::Completion(upload) => ("", upload),
        };
        let owner = match self.known_user_id(&bucket.owner).await {
            Ok(owner) => owner,
            Err(Error::NoSuchUser(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let own = bucket.quota.filter(|quota| quota.enabled).unwrap_or(owner.bucket_quota);
        if !own.limits() && !owner.user_quota.limits() {
            return Ok(None);
        }
        let mut scopes = Vec::new();
        if own.limits() {
            scopes.push((Scope::Bucket(bucket.id.clone()), own));
        }
        if owner.user_quota.limits() {
            scopes.push((Scope::User(owner.id.clone()), owner.user_quota));
        }
        for (scope, _) in &scopes {
            self.know(scope, bucket, &owner).await?;
        }
        let mut all = self.quotas.known.lock();
        for (scope, quota) in &scopes {
            if let Some(known) = all.get_mut(scope) {
                // What never became an object, nor was given back, is not waited for without end.
                if known.held.len() >= REMEMBERED {
                    known.held.retain(|_, held| held.since.elapsed() < self.config.quota_ages.bucket);
                }
                if !quota.has_room(known.total(tag, completed) + sums) {
                    return Err(Error::QuotaExceeded);
                }
            }
        }
        for (scope, _) in &scopes {
            if let Some(known) = all.get_mut(scope) {
                let held = HeldSums { sums, since: Instant::now(), upload: upload.to_owned() };
                known.held.insert(tag.to_owned(), held);
            }
        }
        drop(all);
        Ok(Some(Held { gateway: Arc::clone(self), scopes, tag: tag.to_owned(), kept: false }))
    }

    /// Sees to it that sums are remembered and not too old. Those that are half as old as they may be are read again while
    /// the request goes on.
    async fn know(self: &Arc<Gateway>, scope: &Scope, bucket: &Bucket, owner: &User) -> Result<()> {
        let most = match scope {
            Scope::Bucket(_) => self.config.quota_ages.bucket,
            Scope::User(_) => self.config.quota_ages.user,
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
                    if let Err(error) = gateway.read_sums(&scope, &bucket).await {
                        tracing::warn!(%error, ?scope, "rgw: sums for a quota can't be read");
                        if let Some(known) = gateway.quotas.known.lock().get_mut(&scope) {
                            known.renewed = false;
                        }
                    }
                });
                Ok(())
            }
            _ => self.read_sums(scope, bucket).await,
        }
    }

    async fn read_sums(&self, scope: &Scope, bucket: &Bucket) -> Result<()> {
        let sums = match scope {
            Scope::Bucket(_) => {
                let (objects, bytes) = self.bucket_usage(bucket).await?;
                Sums { objects, bytes }
            }
            Scope::User(id) => self.user_sums(id).await?,
        };
        let mut all = self.quotas.known.lock();
        if all.len() >= REMEMBERED && !all.contains_key(scope) {
            all.clear();
        }
        let held = all.remove(scope).map(|known| known.held).unwrap_or_default();
        let most = self.config.quota_ages.bucket;
        let held = held.into_iter().filter(|(_, held)| held.since.elapsed() < most).collect();
        all.insert(scope.clone(), Known { sums, read: Instant::now(), renewed: false, held });
        Ok(())
    }

    /// Objects and bytes of all buckets of a user, without what is pending.
    pub async fn user_sums(&self, id: &str) -> Result<Sums> {
        let own = self.buckets_of(id, "", u64::MAX).await?;
        let mut reads = FuturesUnordered::new();
        let mut total = Sums::default();
        for (name, _) in own {
            if reads.len() >= BUCKETS
                && let Some(sums) = reads.next().await
            {
                total = total + sums?;
            }
            reads.push(self.sums_of(id, name));
        }
        while let Some(sums) = reads.next().await {
            total = total + sums?;
        }
        Ok(total)
    }

    /// What a bucket holds, if it is that user's.
    async fn sums_of(&self, user: &str, name: String) -> Result<Sums> {
        let bucket = match self.known_bucket(&name).await {
            // Listed before it is made, and until after it is removed.
            Err(Error::NoSuchBucket(_)) => return Ok(Sums::default()),
            bucket => bucket?,
        };
        if bucket.owner != user {
            return Ok(Sums::default());
        }
        let (objects, bytes) = self.bucket_usage(&bucket).await?;
        Ok(Sums { objects, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_inclusive_and_below_zero_none() {
        let quota = |max_size, max_objects| Quota { enabled: true, max_size, max_objects };
        let sums = |objects, bytes| Sums { objects, bytes };
        assert!(quota(100, -1).has_room(sums(1000, 100)));
        assert!(!quota(100, -1).has_room(sums(0, 101)));
        assert!(quota(-1, 2).has_room(sums(2, u64::MAX)));
        assert!(!quota(-1, 2).has_room(sums(3, 0)));
        assert!(!quota(0, 0).has_room(sums(1, 0)));
        assert!(Quota { enabled: false, max_size: 0, max_objects: 0 }.has_room(sums(9, 9)));
        assert!(!quota(-1, -1).limits() && quota(-1, 0).limits());
    }

    #[test]
    fn a_change_leaves_what_it_does_not_name() {
        let change = QuotaChange { max_size: Some(-7), enabled: Some(true), max_objects: None };
        let quota = change.apply(Quota { enabled: false, max_size: 4, max_objects: 9 });
        assert_eq!(quota, Quota { enabled: true, max_size: -1, max_objects: 9 });
        assert_eq!(quota.describe()["max_size_kb"], 0);
        assert_eq!(Quota { max_size: 1025, ..quota }.describe()["max_size_kb"], 2);
    }

    #[test]
    fn what_is_finished_counts_in_place_of_what_was_held() {
        let quotas = Quotas::default();
        quotas.any.store(true, Ordering::Relaxed);
        quotas.owners.lock().insert("b1".into(), "alice".into());
        let sums = |objects, bytes| Sums { objects, bytes };
        for scope in [Scope::Bucket("b1".into()), Scope::User("alice".into())] {
            let held =
                |upload: &str| HeldSums { sums: sums(1, 10), since: Instant::now(), upload: upload.into() };
            let held =
                [("t1".to_owned(), held("")), ("t2".to_owned(), held("u")), ("t3".to_owned(), held("u"))];
            let known = Known { sums: sums(5, 50), read: Instant::now(), renewed: false, held: held.into() };
            quotas.known.lock().insert(scope, known);
        }
        let totals = || quotas.known.lock().values().map(|known| known.total("", "")).collect::<Vec<_>>();
        assert_eq!(totals(), [sums(8, 80); 2]);
        quotas.finished("b1", ["t1"].into_iter(), Delta { objects: 1, bytes: 8 });
        assert_eq!(totals(), [sums(8, 78); 2]);
        quotas.ended("b1", "u");
        quotas.finished("b1", [].into_iter(), Delta { objects: -9, bytes: -9 });
        assert_eq!(totals(), [sums(0, 49); 2]);
    }
}
