//! The lifecycle worker, which applies buckets' rules. The buckets that have rules are listed in [`SHARDS`] objects of the log
//! pool (docs/format/rgw.md). A gateway that works on one of these objects holds its lock, so that several gateways share the
//! work.

use crate::bucket::{Bucket, Versioning};
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::index::{BucketIndex, ConvertedBuckets, ListQuery, ListingEntry};
use crate::lifecycle::{DAY, LifecycleConfig};
use crate::notifications::Notifications;
use crate::object::{ObjectWriter, RemovalEventTypes, WriteCondition};
use crate::record;
use crate::stored::versions::VersionPage;
use crate::stored::{Head, StoredObjects};
use crate::time::now_ns;
use crate::uploads::Uploads;
use bytes::Bytes;
use futures::stream::{self, StreamExt};
use nacre_client::{IoCtx, WriteOp};
use nacre_topics::event::EventType;
use nacre_types::encoding::Versioned;
use nacre_types::errno::Errno;
use nacre_types::hash::ceph_str_hash_rjenkins;
use nacre_types::op::CmpOp;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Objects that list buckets (`rgw_lc_max_objs`).
const SHARDS: u32 = 32;
/// Keys in a page, and how many of them are processed at the same time.
const PAGE: usize = 1000;
const KEYS: usize = 8;
/// Attempts at a change of the list that conflicts with concurrent changes.
const CHANGE_ATTEMPTS: usize = 16;
/// Buckets in a page.
const BUCKETS: u64 = 1000;
/// The lock of a shard, and how long it lasts without renewal (`rgw_lc_lock_max_time`).
const LOCK: &str = "lc_process";
const LOCK_TIME: Duration = Duration::from_secs(90);
/// How often the worker checks whether something is due.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(60);

/// The types of events for versions and delete markers that rules remove or move.
const EXPIRED_NONCURRENT: &[EventType] =
    &[EventType::ObjectExpirationNoncurrent, EventType::LifecycleExpirationDelete];
const MOVED: &[EventType] = &[EventType::ObjectTransitionCurrent, EventType::LifecycleTransition];
const MOVED_NONCURRENT: &[EventType] =
    &[EventType::ObjectTransitionNoncurrent, EventType::LifecycleTransition];
const EXPIRED_MARKER: &[EventType] =
    &[EventType::ObjectExpirationDeleteMarker, EventType::LifecycleExpirationDelete];

/// The schedule of the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LifecycleSchedule {
    /// The length of a day in rules; 24 hours except in tests.
    pub(crate) day: Duration,
    /// The seconds of the day (UTC) between which work starts.
    pub(crate) from: u32,
    pub(crate) to: u32,
}

impl LifecycleSchedule {
    /// Reads `rgw_lifecycle_work_time`, `HH:MM-HH:MM`, and `rgw_lc_debug_interval`, the length of a day in seconds if it is above
    /// zero.
    pub(crate) fn read(time: &str, debug: i64) -> Result<LifecycleSchedule> {
        let wrong = || Error::Invalid(format!("rgw_lifecycle_work_time is HH:MM-HH:MM, not '{time}'"));
        let seconds = |text: &str| -> Option<u32> {
            let (hours, minutes) = text.trim().split_once(':')?;
            let (hours, minutes): (u32, u32) = (hours.parse().ok()?, minutes.parse().ok()?);
            (hours < 24 && minutes < 60).then_some((hours * 60 + minutes) * 60)
        };
        let (from, to) = time.split_once('-').ok_or_else(wrong)?;
        let (from, to) = (seconds(from).ok_or_else(wrong)?, seconds(to).ok_or_else(wrong)?);
        let day = u64::try_from(debug).ok().filter(|debug| *debug > 0).map_or(DAY, Duration::from_secs);
        Ok(LifecycleSchedule { day, from, to })
    }

    /// How often the worker checks whether something is due.
    fn look(&self) -> Duration {
        self.day.min(MAX_POLL_INTERVAL)
    }

    /// Whether a bucket whose last run started at `begun_ns` is due at `now_ns`.
    fn is_due(&self, begun_ns: u64, now_ns: u64) -> bool {
        if self.day != DAY {
            return now_ns.saturating_sub(begun_ns) >= self.day.as_nanos() as u64;
        }
        let day_ns = DAY.as_nanos() as u64;
        let second = (now_ns % day_ns / 1_000_000_000) as u32;
        // The window may include midnight.
        let within = if self.from <= self.to {
            (self.from..=self.to).contains(&second)
        } else {
            second >= self.from || second <= self.to
        };
        within && now_ns.saturating_sub(begun_ns) > day_ns / 2
    }
}

/// The progress of the work on a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LifecycleStatus {
    /// Never processed.
    #[default]
    Uninitial,
    /// Being processed, or the gateway that was processing it has ended.
    Processing,
    /// Processed to the end.
    Complete,
}

/// A bucket that has rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LifecycleEntry {
    /// The bucket's id.
    pub id: String,
    /// When its last run started, in nanoseconds since 1970.
    pub begun_ns: u64,
    /// The progress of that run.
    pub status: LifecycleStatus,
    /// Changes whenever rules are set. A gateway that finds no rules removes only the entry that was listed before.
    pub tag: String,
}

impl Versioned for LifecycleEntry {
    const NAME: &'static str = "lifecycle entry";
}

/// What rules removed or moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LifecycleCounts {
    /// Objects removed, or hidden behind a delete marker.
    pub objects: u64,
    /// Noncurrent versions removed.
    pub noncurrent: u64,
    /// Delete markers removed.
    pub markers: u64,
    /// Uploads aborted.
    pub uploads: u64,
    /// Versions moved to another storage class.
    pub moved: u64,
}

impl LifecycleCounts {
    fn add(&mut self, other: LifecycleCounts) {
        self.objects += other.objects;
        self.noncurrent += other.noncurrent;
        self.markers += other.markers;
        self.uploads += other.uploads;
        self.moved += other.moved;
    }
}

fn shard_of(bucket: &str) -> String {
    format!("lc.{}", ceph_str_hash_rjenkins(bucket.as_bytes()) % SHARDS)
}

/// Applies the lifecycle rules of buckets.
pub struct LifecycleWorker {
    connection: Arc<Connection>,
    buckets: Arc<ConvertedBuckets>,
    index: Arc<BucketIndex>,
    uploads: Arc<Uploads>,
    objects: Arc<StoredObjects>,
    notifications: Arc<Notifications>,
    writer: Arc<ObjectWriter>,
    pub(crate) schedule: LifecycleSchedule,
}

impl LifecycleWorker {
    pub(crate) fn new(writer: &Arc<ObjectWriter>, schedule: LifecycleSchedule) -> LifecycleWorker {
        LifecycleWorker {
            connection: Arc::clone(&writer.connection),
            buckets: Arc::clone(&writer.buckets),
            index: Arc::clone(&writer.index),
            uploads: Arc::clone(&writer.uploads),
            objects: Arc::clone(&writer.objects),
            notifications: Arc::clone(&writer.notifications),
            writer: Arc::clone(writer),
            schedule,
        }
    }

    /// The pool of the list of buckets with rules.
    fn list(&self) -> &IoCtx {
        &self.connection.pools.lifecycle
    }

    /// Adds a bucket to the list of buckets with rules, or removes it.
    pub async fn register(&self, bucket: &Bucket, has_rules: bool) -> Result<()> {
        let (shard, name) = (shard_of(&bucket.name), Bytes::from(bucket.name.clone()));
        if has_rules {
            let (id, tag) = (bucket.id.clone(), self.connection.new_tag());
            let entry = LifecycleEntry { id, tag, ..LifecycleEntry::default() };
            self.list().omap_set(&shard, vec![(name, record::encode(&entry))]).await?;
            return Ok(());
        }
        match self.entry(&bucket.name).await? {
            Some(entry) if entry.id == bucket.id => self.unlist(&bucket.name, &entry.tag).await,
            _ => Ok(()),
        }
    }

    /// The entry of a bucket in the list.
    pub async fn entry(&self, bucket: &str) -> Result<Option<LifecycleEntry>> {
        let (shard, name) = (shard_of(bucket), Bytes::from(bucket.to_owned()));
        let found = match self.list().omap_get_vals_by_keys(&shard, vec![name.clone()]).await {
            Err(error) if error.is_not_found() => return Ok(None),
            found => found?,
        };
        found.get(&name).map(|entry| record::decode(&shard, entry)).transpose()
    }

    /// Removes a bucket from the list, unless its entry has another tag by now.
    pub async fn unlist(&self, bucket: &str, tag: &str) -> Result<()> {
        for _ in 0..CHANGE_ATTEMPTS {
            let listed = self.entry(bucket).await?;
            let Some(listed) = listed.filter(|listed| listed.tag == tag) else { return Ok(()) };
            if self.swap(bucket, &listed, None).await? {
                return Ok(());
            }
        }
        Err(Error::Contended(bucket.to_owned()))
    }

    /// Replaces the entry `old` of a bucket with `new`, or removes it, by compare-and-swap. Returns whether the list had `old`.
    async fn swap(&self, bucket: &str, old: &LifecycleEntry, new: Option<LifecycleEntry>) -> Result<bool> {
        let name = Bytes::from(bucket.to_owned());
        let mut op = WriteOp::new();
        op.omap_cmp(vec![(name.clone(), CmpOp::Eq, record::encode(old))]);
        match new {
            Some(new) => op.omap_set(vec![(name, record::encode(&new))]),
            None => op.omap_rm_keys(vec![name]),
        };
        let reply = self.list().operate(&shard_of(bucket), op).await;
        match reply.and_then(|reply| reply.success()).map_err(Error::from) {
            Err(error) if error.is_not_found() || error.is_canceled() => Ok(false),
            swapped => swapped.map(|_| true),
        }
    }

    async fn shard(&self, shard: &str) -> Result<Vec<(String, LifecycleEntry)>> {
        let (mut all, mut after) = (Vec::new(), Bytes::new());
        loop {
            let page = self.list().omap_get_vals(shard, after.clone(), "", BUCKETS).await;
            let page = match page {
                Err(error) if error.is_not_found() => return Ok(all),
                page => page?,
            };
            for (name, value) in &page.entries {
                after = name.clone();
                let name = String::from_utf8_lossy(name).into_owned();
                match record::decode(shard, value) {
                    Ok(entry) => all.push((name, entry)),
                    // The other buckets are still processed.
                    Err(error) => {
                        tracing::error!(%error, bucket = name, "rgw: the entry of a bucket in the list of lifecycles is damaged");
                    }
                }
            }
            if !page.more {
                return Ok(all);
            }
        }
    }

    /// The buckets that have rules.
    pub async fn entries(&self) -> Result<Vec<(String, LifecycleEntry)>> {
        let mut all = Vec::new();
        for shard in 0..SHARDS {
            all.extend(self.shard(&format!("lc.{shard}")).await?);
        }
        all.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Ok(all)
    }

    /// Processes the buckets that are due by the schedule; with `all`, every bucket.
    pub async fn process(&self, all: bool) -> Result<LifecycleCounts> {
        let (mut expired, mut failed) = (LifecycleCounts::default(), None);
        for shard in (0..SHARDS).map(|shard| format!("lc.{shard}")) {
            match self.process_due_shard(&shard, all).await {
                Ok(done) => expired.add(done),
                // Other shards may be on other OSDs and are still processed.
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(expired), Err)
    }

    /// Does what is due in the buckets of a shard, or in all of them, while it holds the shard's lock.
    async fn process_due_shard(&self, shard: &str, all: bool) -> Result<LifecycleCounts> {
        let entries = self.shard(shard).await?;
        let is_due = |entry: &LifecycleEntry| all || self.schedule.is_due(entry.begun_ns, now_ns());
        if !entries.iter().any(|(_, entry)| is_due(entry)) || !self.lock(shard).await? {
            return Ok(LifecycleCounts::default());
        }
        let done = self.process_shard(shard, all).await;
        match self.list().unlock(shard, LOCK, self.connection.session()).await {
            Ok(()) => {}
            // The lock expired.
            Err(error) if error.is_not_found() => {}
            Err(error) => tracing::debug!(%error, shard, "rgw: a lock was not given back"),
        }
        done
    }

    /// Takes or renews a shard's lock. Returns whether this gateway holds it.
    async fn lock(&self, shard: &str) -> Result<bool> {
        let renew = nacre_types::cls::lock::MAY_RENEW;
        let taken = self.list().lock_exclusive(shard, LOCK, self.connection.session(), "", LOCK_TIME, renew);
        match taken.await {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.errno(), Errno::EBUSY | Errno::EEXIST) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    async fn process_shard(&self, shard: &str, all: bool) -> Result<LifecycleCounts> {
        let mut expired = LifecycleCounts::default();
        // The entries are read again: another gateway may have processed them meanwhile.
        for (name, entry) in self.shard(shard).await? {
            if !all && !self.schedule.is_due(entry.begun_ns, now_ns()) {
                continue;
            }
            match self.process_bucket(&name).await {
                Ok(done) => expired.add(done),
                // The bucket is gone, or has no rules.
                Err(Error::NoSuchBucket(_)) => {
                    self.unlist(&name, &entry.tag).await?;
                }
                Err(error) => {
                    tracing::warn!(%error, bucket = name, "rgw: a bucket's lifecycle is not done with")
                }
            }
        }
        Ok(expired)
    }

    /// Does everything that is due in a bucket now.
    pub async fn process_bucket(&self, name: &str) -> Result<LifecycleCounts> {
        let bucket = Arc::new(self.buckets.get(name).await?);
        let (mut bucket, mut rules) = ruled(bucket, name)?;
        let (shard, begun_ns) = (shard_of(name), now_ns());
        self.note_progress(&bucket, begun_ns, LifecycleStatus::Processing).await?;
        let mut expired = LifecycleCounts::default();
        let mut query = ListQuery { max: PAGE, markers: true, ..ListQuery::default() };
        let mut renewed = begun_ns;
        loop {
            let found = self.index.list(&bucket, &query).await?;
            let mut keys = stream::iter(found.entries)
                .map(|(key, entry)| {
                    let expiring = self.expire(&bucket, &rules, key.clone(), entry, begun_ns);
                    async move { (key, expiring.await) }
                })
                .buffer_unordered(KEYS);
            while let Some((key, done)) = keys.next().await {
                match done {
                    Ok(done) => expired.add(done),
                    // The other objects are still processed.
                    Err(
                        error @ (Error::Corrupt { .. } | Error::Contended(_) | Error::NoSuchStorageClass(_)),
                    ) => {
                        tracing::warn!(%error, bucket = name, key, "rgw: an object's lifecycle failed and is left for the next run");
                    }
                    Err(error) => return Err(error),
                }
            }
            drop(keys);
            (bucket, rules) = self.still_ruled(&bucket).await?;
            let Some((last, _)) = found.next else { break };
            query.after = last;
            if now_ns() - renewed > LOCK_TIME.as_nanos() as u64 / 3 {
                // The gateway that holds the lock now does the rest.
                if !self.lock(&shard).await? {
                    return Ok(expired);
                }
                renewed = now_ns();
            }
        }
        if rules.has_aborts() {
            expired.uploads = self.expire_uploads(&bucket, &rules, begun_ns).await?;
        }
        self.note_progress(&bucket, begun_ns, LifecycleStatus::Complete).await?;
        if expired != LifecycleCounts::default() {
            tracing::info!(bucket = name, ?expired, "rgw: what was due by the bucket's lifecycle is gone");
        }
        Ok(expired)
    }

    /// A bucket and its rules as they are now: either may have changed or been removed since a page was listed.
    async fn still_ruled(&self, bucket: &Bucket) -> Result<(Arc<Bucket>, Arc<LifecycleConfig>)> {
        let now = self.buckets.cached(&bucket.name).await?;
        if now.id == bucket.id {
            ruled(now, &bucket.name)
        } else {
            Err(Error::NoSuchBucket(now.name.clone()))
        }
    }

    /// Records the progress of the work on a bucket, if the bucket is still listed.
    async fn note_progress(&self, bucket: &Bucket, begun_ns: u64, status: LifecycleStatus) -> Result<()> {
        for _ in 0..CHANGE_ATTEMPTS {
            let listed = self.entry(&bucket.name).await?;
            let Some(listed) = listed.filter(|listed| listed.id == bucket.id) else { return Ok(()) };
            let now = LifecycleEntry { begun_ns, status, ..listed.clone() };
            if self.swap(&bucket.name, &listed, Some(now)).await? {
                return Ok(());
            }
        }
        Err(Error::Contended(bucket.name.clone()))
    }

    /// Does what is due for a key.
    async fn expire(
        &self,
        bucket: &Arc<Bucket>,
        rules: &LifecycleConfig,
        key: String,
        entry: ListingEntry,
        now: u64,
    ) -> Result<LifecycleCounts> {
        let key = key.as_str();
        let mut expired = LifecycleCounts::default();
        let day = self.schedule.day;
        let ListingEntry { size, mtime_ns, held, class, .. } = entry;
        let has_versions = held.is_some();
        let listed = Head { size, mtime_ns, class, ..Head::default() };
        let may_go = rules.may_expire(key, size, mtime_ns, now, day);
        if !has_versions && !may_go && !rules.may_transition(key, &listed, now, day) {
            return Ok(expired);
        }
        let (bucket, rules) = self.still_ruled(bucket).await?;
        let bucket = &bucket;
        let Some(current) = self.objects.current(&bucket.id, key).await? else { return Ok(expired) };
        let newest = &current.head;
        if !newest.marker && rules.expiration(key, newest, day).is_some_and(|(due, _)| due <= now) {
            // An object that was written since must not be removed.
            let unchanged = WriteCondition::Unchanged(current.mark);
            let (cause, owner) = (self.notifications.lifecycle_cause(), (key, &*bucket.owner));
            let events = (&cause, RemovalEventTypes::EXPIRATION);
            match self.writer.remove_object(bucket, owner, unchanged, events).await {
                Ok(_) => expired.objects += 1,
                Err(Error::Precondition(_) | Error::NoSuchKey) => {}
                Err(error) => return Err(error),
            }
        } else if !newest.marker
            && let Some(class) = rules.transition(key, newest, now, day)
        {
            let events = (&self.notifications.lifecycle_cause(), MOVED);
            expired.moved +=
                u64::from(self.writer.transition_version(bucket, (key, newest), class, events).await?);
        }
        if bucket.versioning != Versioning::Off && has_versions {
            expired.add(self.expire_versions(bucket, key, now).await?);
        }
        Ok(expired)
    }

    /// Does what is due for the delete marker and the noncurrent versions of a key.
    async fn expire_versions(&self, bucket: &Bucket, key: &str, now: u64) -> Result<LifecycleCounts> {
        let (mut expired, day) = (LifecycleCounts::default(), self.schedule.day);
        let (mut after, mut newer_ns, mut at): (Option<String>, u64, u64) = (None, 0, 0);
        loop {
            let (bucket, rules) = self.still_ruled(bucket).await?;
            // Without the position, newer versions can't be counted: the next run handles the others.
            let Some(VersionPage { heads, more, .. }) =
                self.objects.versions(&bucket.id, key, after.as_deref(), PAGE).await?
            else {
                return Ok(expired);
            };
            let alone = after.is_none() && heads.len() == 1 && !more;
            for head in &heads {
                let id = head.version_id();
                let goes = if at == 0 {
                    alone && head.marker && rules.removes_marker(key, head, now, day)
                } else {
                    rules.removes_noncurrent((key, head), (newer_ns, at - 1), now, day)
                };
                if goes {
                    // The version that followed it may have been removed meanwhile; then this one is the current object.
                    let newest = at == 0;
                    let may = move |head: &Head, is_newest| match is_newest == newest {
                        true => head.check_lock(false),
                        false => Err(Error::Precondition("unchanged")),
                    };
                    let types = if newest { EXPIRED_MARKER } else { EXPIRED_NONCURRENT };
                    let events = (&self.notifications.lifecycle_cause(), types);
                    match self.writer.remove_version(&bucket, (key, id), events, may).await {
                        Ok(Some(head)) if head.marker => expired.markers += 1,
                        Ok(Some(_)) => expired.noncurrent += 1,
                        Ok(None) | Err(Error::Locked | Error::Precondition(_)) => {}
                        Err(error) => return Err(error),
                    }
                } else if at > 0 && !head.marker {
                    let place = (newer_ns, at - 1);
                    if let Some(class) = rules.noncurrent_transition((key, head), place, now, day) {
                        let events = (&self.notifications.lifecycle_cause(), MOVED_NONCURRENT);
                        let moved =
                            self.writer.transition_version(&bucket, (key, head), class, events).await?;
                        expired.moved += u64::from(moved);
                    }
                }
                (newer_ns, at) = (head.mtime_ns, at + 1);
            }
            match heads.last() {
                Some(last) if more => after = Some(last.version_id().to_owned()),
                _ => return Ok(expired),
            }
        }
    }

    async fn expire_uploads(&self, bucket: &Bucket, rules: &LifecycleConfig, now: u64) -> Result<u64> {
        let mut ended = 0;
        let mut after: Option<(String, String)> = None;
        loop {
            let behind = after.as_ref().map(|(key, id)| (key.as_str(), id.as_str()));
            let (found, more) = self.uploads.list(bucket, "", behind, PAGE).await?;
            for (key, id, upload) in &found {
                if !rules.aborts(key, upload.begun_ns, now, self.schedule.day) {
                    continue;
                }
                let (bucket, rules) = self.still_ruled(bucket).await?;
                if !rules.aborts(key, upload.begun_ns, now, self.schedule.day) {
                    continue;
                }
                match self.writer.abort_upload(&bucket, key, id).await {
                    Ok(()) => ended += 1,
                    // The upload was completed or aborted meanwhile, or is about to be.
                    Err(Error::NoSuchUpload | Error::IndexBusy(_)) => {}
                    Err(error) => return Err(error),
                }
            }
            match found.last() {
                Some((key, id, _)) if more => after = Some((key.clone(), id.clone())),
                _ => return Ok(ended),
            }
        }
    }
}

/// A bucket and its rules. A bucket without rules counts as gone.
fn ruled(bucket: Arc<Bucket>, name: &str) -> Result<(Arc<Bucket>, Arc<LifecycleConfig>)> {
    let rules = bucket.lifecycle.clone().ok_or_else(|| Error::NoSuchBucket(name.to_owned()))?;
    Ok((bucket, rules))
}

/// Processes due buckets periodically, as long as the gateway exists.
pub(crate) async fn apply_periodically(worker: Weak<LifecycleWorker>, schedule: LifecycleSchedule) {
    loop {
        tokio::time::sleep(schedule.look()).await;
        let Some(worker) = worker.upgrade() else { return };
        if let Err(error) = worker.process(false).await {
            tracing::warn!(%error, "rgw: buckets' lifecycles wait");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TestCluster, create_bucket, index_parts, writer_on};

    #[test]
    fn work_is_done_once_a_day_at_its_time() {
        let hour = 3600 * 1_000_000_000_u64;
        let schedule = LifecycleSchedule::read("22:30-02:00", -1).unwrap();
        assert_eq!(schedule.day, DAY);
        let at = |hours: u64| 100 * 24 * hour + hours * hour;
        assert!(schedule.is_due(0, at(23)) && schedule.is_due(0, at(1)) && !schedule.is_due(0, at(12)));
        assert!(!schedule.is_due(at(23), at(25)) && schedule.is_due(at(23), at(47)));
        let trying = LifecycleSchedule::read("00:00-06:00", 10).unwrap();
        assert!(trying.is_due(at(12), at(12) + 10_000_000_000) && !trying.is_due(at(12), at(12) + 1));
        for wrong in ["", "1-2", "25:00-26:00", "00:00", "00:60-01:00"] {
            assert!(LifecycleSchedule::read(wrong, -1).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_bucket_is_listed_until_it_has_no_rules() {
        let cluster = TestCluster::new();
        let (connection, peers) = cluster.connect();
        cluster.run_on_tokio(async {
            let parts = index_parts(&connection, &peers);
            let bucket = create_bucket(&parts, "b", "alice").await;
            let schedule = LifecycleSchedule::read("00:00-00:00", -1).unwrap();
            let worker = LifecycleWorker::new(&writer_on(&parts), schedule);
            for _ in 0..2 {
                worker.register(&bucket, true).await.unwrap();
            }
            let listed = worker.entries().await.unwrap();
            assert_eq!((listed.len(), listed[0].0.as_str()), (1, "b"));
            assert_eq!(listed[0].1.status, LifecycleStatus::Uninitial);
            worker.unlist("b", "another tag").await.unwrap();
            assert_eq!(worker.entry("b").await.unwrap().unwrap().id, bucket.id);
            assert!(matches!(worker.process_bucket("b").await, Err(Error::NoSuchBucket(_))));
            assert_eq!(worker.process(true).await.unwrap(), LifecycleCounts::default());
            assert!(worker.entry("b").await.unwrap().is_none());
        });
    }
}
