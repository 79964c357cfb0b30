//! The usage of buckets and users that a gateway caches, and the space that its writes in flight reserve.
//! [`crate::quota_enforcer`] reads the usage and checks quotas against it.

use crate::error::{Error, Result};
use crate::quota::{Quota, QuotaUsage, UsageDelta};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The maximum number of scopes with cached usage; beyond it, all are dropped and read again. With this many reservations in
/// a scope, old ones are dropped.
const REMEMBERED: usize = 10_000;

/// What a quota applies to: a bucket, by its id, or all buckets of a user.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum QuotaScope {
    Bucket(String),
    User(String),
}

/// A read of the usage of a scope.
#[derive(Debug)]
pub(crate) struct UsageRead {
    /// [`CachedUsage::increased`] when it began.
    increased: QuotaUsage,
}

/// The cached usage of a scope.
#[derive(Debug, Default)]
struct CachedUsage {
    usage: QuotaUsage,
    /// When the usage was read; `None` before the first read.
    read: Option<Instant>,
    /// The sum of all finished changes that increased the usage.
    increased: QuotaUsage,
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

/// What is known of the usage of a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UsageState {
    /// The usage may be used.
    Fresh,
    /// The usage may be used, but the caller must read it again.
    Renew,
    /// The usage must be read before it is used.
    Outdated,
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
            known.increased = known.increased + delta.increase();
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

    /// Notes that usage is cached, and who owns the bucket `id`.
    pub(crate) fn set_owner(&self, id: &str, owner: &str) {
        self.any.store(true, Ordering::Relaxed);
        let mut owners = self.owners.lock();
        if owners.get(id).is_some_and(|known| known == owner) {
            return;
        }
        if owners.len() >= REMEMBERED {
            owners.clear();
        }
        owners.insert(id.to_owned(), owner.to_owned());
    }

    /// Returns what is known of the usage of a scope, which may be used up to the age `max_age`. Usage that is older than half
    /// of that age is to be read again; one caller is told so, which then calls [`QuotaCache::set_usage`] or
    /// [`QuotaCache::set_not_renewed`].
    pub(crate) fn usage_state(&self, scope: &QuotaScope, max_age: Duration) -> UsageState {
        let mut all = self.known.lock();
        let Some(known) = all.get_mut(scope) else { return UsageState::Outdated };
        let Some(age) = known.read.map(|read| read.elapsed()) else { return UsageState::Outdated };
        if age > max_age {
            return UsageState::Outdated;
        }
        if age <= max_age / 2 || known.renewed {
            return UsageState::Fresh;
        }
        known.renewed = true;
        UsageState::Renew
    }

    /// Notes that the usage of a scope is being read. Returns a value for [`QuotaCache::set_usage`].
    pub(crate) fn begin_read(&self, scope: &QuotaScope) -> UsageRead {
        let mut all = self.known.lock();
        if all.len() >= REMEMBERED && !all.contains_key(scope) {
            all.clear();
        }
        UsageRead { increased: all.entry(scope.clone()).or_default().increased }
    }

    /// Caches the usage of a scope as it was read. Changes that increased it and were finished during the read are added, although
    /// the read may include them: until the next read, the usage may be too high, but not too low. Drops reservations that are
    /// older than `reservation_timeout`.
    pub(crate) fn set_usage(
        &self,
        scope: &QuotaScope,
        read: &UsageRead,
        usage: QuotaUsage,
        reservation_timeout: Duration,
    ) {
        let mut all = self.known.lock();
        let known = all.entry(scope.clone()).or_default();
        known.usage = usage + known.increased.saturating_sub(read.increased);
        (known.read, known.renewed) = (Some(Instant::now()), false);
        known.reserved.retain(|_, reserved| reserved.since.elapsed() < reservation_timeout);
    }

    /// Notes that the usage of a scope could not be read again.
    pub(crate) fn set_not_renewed(&self, scope: &QuotaScope) {
        if let Some(known) = self.known.lock().get_mut(scope) {
            known.renewed = false;
        }
    }

    /// Reserves space for the write `tag` in all scopes, or fails with [`Error::QuotaExceeded`].
    pub(crate) fn reserve(
        self: &Arc<QuotaCache>,
        scopes: Vec<(QuotaScope, Quota)>,
        (tag, kind): (&str, ReservationKind<'_>),
        usage: QuotaUsage,
        reservation_timeout: Duration,
    ) -> Result<QuotaReservation> {
        let (upload, completed) = match kind {
            ReservationKind::Object => ("", ""),
            ReservationKind::Part(upload) => (upload, ""),
            ReservationKind::Completion(upload) => ("", upload),
        };
        let mut all = self.known.lock();
        for (scope, quota) in &scopes {
            if let Some(known) = all.get_mut(scope) {
                // A reservation that is neither finished nor released must not count forever.
                if known.reserved.len() >= REMEMBERED {
                    known.reserved.retain(|_, reserved| reserved.since.elapsed() < reservation_timeout);
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
        Ok(QuotaReservation { quotas: Arc::clone(self), scopes, tag: tag.to_owned(), kept: false })
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

    /// Keeps the space reserved unless the write has certainly failed.
    pub(crate) fn settle<T>(self, written: &Result<T>) {
        if written.as_ref().err().is_none_or(Error::is_outcome_unknown) {
            self.keep();
        }
    }
}

impl Drop for QuotaReservation {
    fn drop(&mut self) {
        if !self.kept {
            self.quotas.release(&self.scopes, &self.tag);
        }
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
                read: Some(Instant::now()),
                reserved: reserved.into(),
                ..CachedUsage::default()
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

    #[test]
    fn a_change_that_is_finished_while_the_usage_is_read_counts() {
        let quotas = QuotaCache::default();
        quotas.set_owner("b1", "alice");
        let (scope, timeout) = (QuotaScope::Bucket("b1".into()), Duration::from_secs(60));
        let state = || quotas.usage_state(&scope, timeout);
        assert_eq!(state(), UsageState::Outdated);
        let total = || quotas.known.lock()[&scope].total("", "");
        for before in [0, 8] {
            let read = quotas.begin_read(&scope);
            quotas.apply_finished("b1", ["t"].into_iter(), UsageDelta { objects: 1, bytes: 8 });
            quotas.apply_finished("b1", ["u"].into_iter(), UsageDelta { objects: -1, bytes: -5 });
            quotas.set_usage(&scope, &read, QuotaUsage { objects: 3, bytes: before }, timeout);
            assert_eq!((state(), total()), (UsageState::Fresh, QuotaUsage { objects: 4, bytes: before + 8 }));
        }
    }
}
