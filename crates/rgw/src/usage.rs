//! The usage log: the number of requests by kind, and the bytes transferred, for each user's buckets and each hour.
//!
//! A gateway counts in memory and periodically adds its counts to records in `default.rgw.log` (docs/format/rgw.md). It uses
//! compare-and-swap, so any number of gateways can add to the same record. If a gateway dies, the counts since its last
//! write are lost.

use crate::error::{Error, Result};
use crate::record;
use crate::time::now_ns;
use bytes::Bytes;
use nacre_client::{IoCtx, ReadOp, WriteOp};
use nacre_types::encoding::Versioned;
use nacre_types::hash::ceph_str_hash_rjenkins;
use nacre_types::op::CmpOp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// `rgw_usage_max_shards`.
const SHARDS: u32 = 32;
/// Records read, written or removed at a time.
const PAGE: u64 = 500;
/// The maximum number of records that wait to be written. Beyond it, requests that need a new record are not counted, which
/// is logged.
const WAITING: usize = 100_000;
/// Attempts to add to a record that others add to concurrently.
const ADD_ATTEMPTS: usize = 32;
const HOUR: u64 = 3600;
/// Digits of a record's hour in its key.
const EPOCH_DIGITS: usize = 11;

/// The counts of one kind of request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageCounts {
    /// Bytes of answers.
    pub bytes_sent: u64,
    /// Bytes of requests.
    pub bytes_received: u64,
    /// Requests.
    pub ops: u64,
    /// Requests that were neither refused nor failed.
    pub successful_ops: u64,
}

/// Counts by category, which is radosgw's term for a kind of request.
pub(crate) type Categories = BTreeMap<String, UsageCounts>;

/// A record of the log: one bucket in one hour.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct UsageRecord {
    categories: Categories,
}

impl Versioned for UsageRecord {
    const NAME: &'static str = "usage";
}

/// What a record is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UsageKey {
    /// The bucket's owner, or the requester if no bucket was named.
    pub user: String,
    /// The beginning of the hour, in seconds since 1970.
    pub epoch: u64,
    /// The bucket; empty if none was named, `-` if it does not exist.
    pub bucket: String,
}

/// Selects the records to read or to remove.
#[derive(Clone, Debug, Default)]
pub struct UsageFilter {
    /// Records of this user; `None` for all users.
    pub user: Option<String>,
    /// Records of this bucket; `None` for all buckets.
    pub bucket: Option<String>,
    /// Records from this time on, in seconds since 1970.
    pub start: u64,
    /// Records before this time, in seconds since 1970; `None` for no end.
    pub end: Option<u64>,
    /// The categories to show; empty for all.
    pub categories: Vec<String>,
}

impl UsageCounts {
    fn add(&mut self, other: &UsageCounts) {
        self.bytes_sent = self.bytes_sent.saturating_add(other.bytes_sent);
        self.bytes_received = self.bytes_received.saturating_add(other.bytes_received);
        self.ops = self.ops.saturating_add(other.ops);
        self.successful_ops = self.successful_ops.saturating_add(other.successful_ops);
    }

    fn describe(&self) -> Value {
        json!({
            "bytes_sent": self.bytes_sent, "bytes_received": self.bytes_received, "ops": self.ops,
            "successful_ops": self.successful_ops,
        })
    }
}

fn add_all(to: &mut Categories, from: &Categories) {
    for (category, counts) in from {
        to.entry(category.clone()).or_default().add(counts);
    }
}

impl UsageKey {
    /// Returns the record's key. Users' ids and buckets' names contain no NUL bytes.
    fn key(&self) -> Bytes {
        format!("{}\0{:0EPOCH_DIGITS$}\0{}", self.user, self.epoch, self.bucket).into()
    }

    fn of_key(key: &[u8]) -> Option<UsageKey> {
        let mut parts = std::str::from_utf8(key).ok()?.splitn(3, '\0');
        let (user, epoch, bucket) = (parts.next()?, parts.next()?, parts.next()?);
        Some(UsageKey { user: user.to_owned(), epoch: epoch.parse().ok()?, bucket: bucket.to_owned() })
    }

    fn shard(user: &str) -> String {
        format!("usage.{}", ceph_str_hash_rjenkins(user.as_bytes()) % SHARDS)
    }
}

/// Returns radosgw's category for an S3 operation.
fn category_of(operation: &str) -> String {
    let known = match operation {
        "PutObject" | "PostObject" | "UploadPart" | "UploadPartCopy" => "put_obj",
        "GetObject" | "HeadObject" => "get_obj",
        "DeleteObject" => "delete_obj",
        "CopyObject" => "copy_obj",
        "DeleteObjects" => "multi_object_delete",
        "ListObjects" | "ListObjectsV2" | "ListObjectVersions" => "list_bucket",
        "HeadBucket" => "stat_bucket",
        "GetBucketAcl" | "GetObjectAcl" => "get_acls",
        "PutBucketAcl" | "PutObjectAcl" => "put_acls",
        "CreateMultipartUpload" => "init_multipart",
        "CompleteMultipartUpload" => "complete_multipart",
        "AbortMultipartUpload" => "abort_multipart",
        "ListParts" => "list_multipart",
        "ListMultipartUploads" => "list_bucket_multiparts",
        "GetBucketCors" => "get_cors",
        "PutBucketCors" => "put_cors",
        "DeleteBucketCors" => "delete_cors",
        _ => "",
    };
    if !known.is_empty() {
        return known.to_owned();
    }
    let mut name = String::with_capacity(operation.len() + 4);
    for (at, letter) in operation.char_indices() {
        if letter.is_ascii_uppercase() && at > 0 {
            name.push('_');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}

/// The counts that a gateway has not written yet.
#[derive(Debug, Default)]
pub struct UsageBuffer {
    waiting: Mutex<BTreeMap<UsageKey, Categories>>,
    /// Notified when enough records wait, so that they are written early.
    full: tokio::sync::Notify,
    threshold: usize,
}

impl UsageBuffer {
    /// Creates a log that is written at the latest when `threshold` records wait.
    pub(crate) fn new(threshold: usize) -> UsageBuffer {
        UsageBuffer { threshold: threshold.max(1), ..UsageBuffer::default() }
    }

    /// Counts a request that has ended.
    pub fn count(&self, user: &str, bucket: &str, operation: &str, counts: UsageCounts) {
        let epoch = now_ns() / 1_000_000_000 / HOUR * HOUR;
        let subject = UsageKey { user: user.to_owned(), epoch, bucket: bucket.to_owned() };
        let mut waiting = self.waiting.lock();
        if waiting.len() >= WAITING && !waiting.contains_key(&subject) {
            tracing::warn!(user, bucket, "rgw: too much usage waits to be written, a request is not counted");
            return;
        }
        waiting.entry(subject).or_default().entry(category_of(operation)).or_default().add(&counts);
        if waiting.len() >= self.threshold {
            self.full.notify_one();
        }
    }

    fn put_back(&self, subject: UsageKey, categories: &Categories) {
        add_all(self.waiting.lock().entry(subject).or_default(), categories);
    }
}

/// The usage log of a zone.
pub struct UsageStore {
    pool: IoCtx,
    /// This gateway's counts; `None` if it does not count.
    pub log: Option<Arc<UsageBuffer>>,
}

impl UsageStore {
    /// `pool` contains the records. The log is written at the latest when `threshold` records wait.
    pub(crate) fn new(pool: &IoCtx, threshold: Option<usize>) -> UsageStore {
        UsageStore {
            pool: pool.clone(),
            log: threshold.map(|threshold| Arc::new(UsageBuffer::new(threshold))),
        }
    }

    /// Writes the counts. Counts that were certainly not written wait for the next attempt.
    pub async fn flush(&self) -> Result<()> {
        let Some(log) = &self.log else { return Ok(()) };
        let mut shards: BTreeMap<String, Vec<(UsageKey, Categories)>> = BTreeMap::new();
        for (subject, categories) in std::mem::take(&mut *log.waiting.lock()) {
            shards.entry(UsageKey::shard(&subject.user)).or_default().push((subject, categories));
        }
        let mut failed = None;
        for (shard, all) in shards {
            for page in all.chunks(PAGE as usize) {
                if let Err(error) = self.add(&shard, page).await {
                    // If it is not known whether they were written, they must not be counted twice.
                    if !error.is_outcome_unknown() {
                        page.iter()
                            .for_each(|(subject, categories)| log.put_back(subject.clone(), categories));
                    }
                    failed = Some(error);
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }

    async fn add(&self, shard: &str, page: &[(UsageKey, Categories)]) -> Result<()> {
        let pool = &self.pool;
        for _ in 0..ADD_ATTEMPTS {
            let keys = page.iter().map(|(subject, _)| subject.key()).collect();
            let mut op = ReadOp::new();
            op.omap_get_vals_by_keys(keys);
            let found = match pool.operate_read(shard, op).await.and_then(|reply| reply.success()) {
                Err(error) if error.is_not_found() => BTreeMap::new(),
                reply => reply?.pairs(0)?,
            };
            let (mut asserted, mut set) = (Vec::new(), Vec::new());
            for (subject, categories) in page {
                let key = subject.key();
                let old = found.get(&key).cloned().unwrap_or_default();
                let mut record = if old.is_empty() {
                    UsageRecord::default()
                } else {
                    record::decode::<UsageRecord>(shard, &old)?
                };
                add_all(&mut record.categories, categories);
                asserted.push((key.clone(), CmpOp::Eq, old));
                set.push((key, record::encode(&record)));
            }
            let mut op = WriteOp::new();
            op.create(false).omap_cmp(asserted).omap_set(set);
            match pool.operate(shard, op).await.and_then(|reply| reply.success()).map_err(Error::from) {
                Err(error) if error.is_canceled() => {}
                written => return written.map(drop),
            }
        }
        Err(Error::Contended(shard.to_owned()))
    }

    /// Calls `each` with the records that match a filter. The records of a shard come in the order of users and hours.
    async fn walk(
        &self,
        filter: &UsageFilter,
        mut each: impl FnMut(&str, &Bytes, UsageKey, Categories),
    ) -> Result<()> {
        let shards: Vec<String> = match &filter.user {
            Some(user) => vec![UsageKey::shard(user)],
            None => (0..SHARDS).map(|shard| format!("usage.{shard}")).collect(),
        };
        for shard in &shards {
            let prefix = filter.user.as_ref().map_or_else(String::new, |user| format!("{user}\0"));
            let mut after = Bytes::new();
            loop {
                let page = self.pool.omap_get_vals(shard, after.clone(), prefix.clone(), PAGE).await;
                let page = match page {
                    Err(error) if error.is_not_found() => break,
                    page => page?,
                };
                for (key, value) in &page.entries {
                    let record = record::decode::<UsageRecord>(shard, value)?;
                    let Some(subject) = UsageKey::of_key(key) else { continue };
                    let wanted = subject.epoch + HOUR > filter.start
                        && filter.end.is_none_or(|end| subject.epoch < end)
                        && filter.bucket.as_ref().is_none_or(|bucket| *bucket == subject.bucket);
                    if wanted {
                        each(shard, key, subject, record.categories);
                    }
                }
                match page.entries.last() {
                    Some((key, _)) if page.more => after = key.clone(),
                    _ => break,
                }
            }
        }
        Ok(())
    }

    /// Returns the log as radosgw-admin prints it, with its entries, the sums by user, or both. Counts that gateways have
    /// not written yet are missing.
    pub async fn report(&self, filter: &UsageFilter, entries: bool, summary: bool) -> Result<Value> {
        let mut found: BTreeMap<UsageKey, Categories> = BTreeMap::new();
        self.walk(filter, |_, _, subject, mut categories| {
            if !filter.categories.is_empty() {
                categories.retain(|category, _| filter.categories.contains(category));
            }
            if !categories.is_empty() {
                found.insert(subject, categories);
            }
        })
        .await?;
        Ok(describe(&found, entries, summary))
    }

    /// Removes the records that match a filter; returns their number.
    pub async fn trim(&self, filter: &UsageFilter) -> Result<u64> {
        let mut gone: BTreeMap<String, Vec<Bytes>> = BTreeMap::new();
        self.walk(filter, |shard, key, _, _| gone.entry(shard.to_owned()).or_default().push(key.clone()))
            .await?;
        let mut count = 0;
        for (shard, keys) in gone {
            for page in keys.chunks(PAGE as usize) {
                self.pool.omap_rm_keys(&shard, page.to_vec()).await?;
                count += page.len() as u64;
            }
        }
        Ok(count)
    }
}

fn categories(categories: &Categories) -> Value {
    let one = |(category, counts): (&String, &UsageCounts)| {
        let mut value = counts.describe();
        value["category"] = json!(category);
        value
    };
    categories.iter().map(one).collect()
}

fn describe(found: &BTreeMap<UsageKey, Categories>, entries: bool, summary: bool) -> Value {
    let mut users: BTreeMap<&str, (Vec<Value>, Categories)> = BTreeMap::new();
    for (subject, counted) in found {
        let (buckets, sums) = users.entry(&subject.user).or_default();
        buckets.push(json!({
            "bucket": subject.bucket, "time": crate::time::format_usage_time(subject.epoch), "epoch": subject.epoch,
            "owner": subject.user, "categories": categories(counted),
        }));
        add_all(sums, counted);
    }
    let mut all = json!({});
    if entries {
        let entry =
            |(user, (buckets, _)): (&&str, &(Vec<Value>, _))| json!({ "user": user, "buckets": buckets });
        all["entries"] = users.iter().map(entry).collect();
    }
    if summary {
        let sum = |(user, (_, sums)): (&&str, &(_, Categories))| {
            let mut total = UsageCounts::default();
            sums.values().for_each(|counts| total.add(counts));
            json!({ "user": user, "categories": categories(sums), "total": total.describe() })
        };
        all["summary"] = users.iter().map(sum).collect();
    }
    all
}

/// Writes the counts periodically, while the gateway exists.
pub(crate) async fn flush_periodically(usage: Weak<UsageStore>, log: Arc<UsageBuffer>, every: Duration) {
    loop {
        // The task must not keep the gateway alive while it waits.
        _ = tokio::time::timeout(every, log.full.notified()).await;
        let Some(usage) = usage.upgrade() else { return };
        if let Err(error) = usage.flush().await {
            tracing::warn!(%error, "rgw: usage can't be written");
            drop(usage);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestCluster;

    #[test]
    fn categories_have_radosgws_names() {
        for (operation, category) in [
            ("PutObject", "put_obj"),
            ("ListBuckets", "list_buckets"),
            ("CreateBucket", "create_bucket"),
            ("GetBucketLocation", "get_bucket_location"),
            ("HeadObject", "get_obj"),
        ] {
            assert_eq!(category_of(operation), category);
        }
    }

    #[test]
    fn keys_say_what_they_are_of_and_lie_in_order() {
        let subject = |epoch| UsageKey { user: "a".into(), epoch, bucket: "b".into() };
        assert_eq!(UsageKey::of_key(&subject(3600).key()), Some(subject(3600)));
        assert!(subject(3600).key() < subject(1_800_000_000).key());
        assert_eq!(UsageKey::of_key(b"a\0b"), None);
    }

    #[test]
    fn requests_are_summed_by_user_bucket_and_category() {
        let log = UsageBuffer::new(2);
        let counts =
            |successful_ops| UsageCounts { bytes_sent: 1, bytes_received: 10, ops: 1, successful_ops };
        log.count("alice", "b", "PutObject", counts(1));
        log.count("alice", "b", "UploadPart", counts(0));
        log.count("alice", "b", "GetObject", counts(1));
        log.count("alice", "c", "GetObject", counts(1));
        let shown = describe(&log.waiting.lock(), true, true);
        let buckets = shown["entries"][0]["buckets"].as_array().unwrap();
        assert_eq!(buckets.len(), 2, "{shown}");
        let put = &buckets[0]["categories"][1];
        assert_eq!(
            (&put["category"], &put["ops"], &put["successful_ops"]),
            (&"put_obj".into(), &2.into(), &1.into())
        );
        assert_eq!(shown["summary"][0]["total"]["bytes_received"], 40);
        assert_eq!(describe(&log.waiting.lock(), false, false), json!({}));
    }

    #[test]
    fn counts_of_gateways_are_added_and_trimmed() {
        let cluster = TestCluster::new();
        let (connection, _) = cluster.connect();
        cluster.run(async move {
            let [first, second] = [0, 1].map(|_| UsageStore::new(&connection.pools.usage, Some(100)));
            let counts = |ops| UsageCounts { bytes_sent: 10, bytes_received: 1, ops, successful_ops: ops };
            first.log.as_ref().unwrap().count("alice", "b", "GetObject", counts(1));
            first.log.as_ref().unwrap().count("bob", "c", "GetObject", counts(5));
            second.log.as_ref().unwrap().count("alice", "b", "GetObject", counts(2));
            let alice = UsageFilter { user: Some("alice".into()), ..UsageFilter::default() };
            let total = async |usage: &UsageStore, filter: &UsageFilter| {
                let report = usage.report(filter, false, true).await.unwrap();
                report["summary"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|user| user["total"]["ops"].as_u64().unwrap())
                    .sum::<u64>()
            };
            assert_eq!(total(&first, &UsageFilter::default()).await, 0, "nothing is written yet");
            first.flush().await.unwrap();
            second.flush().await.unwrap();
            // What was written is not written again.
            first.flush().await.unwrap();
            assert_eq!(total(&first, &alice).await, 3);
            assert_eq!(total(&second, &UsageFilter::default()).await, 8);
            assert_eq!(first.trim(&alice).await.unwrap(), 1);
            assert_eq!(total(&second, &UsageFilter::default()).await, 5);
        });
    }
}
