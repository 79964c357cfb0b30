//! Checks and repairs a bucket: every index entry against its object's head, every head against its entry, the sums of
//! shards, changes that are pending for too long, uploads, and unreferenced data.
//!
//! The bucket may be in use meanwhile. A difference is checked again until its key has no pending changes: only a difference
//! that persists without pending changes is a problem. Data that seems unreferenced is listed before all records that could
//! reference it are read. These are read in the direction in which references move: uploads, pending changes, entries,
//! garbage. If the index is moved or the bucket is removed, the check ends, because what it reads then says nothing about
//! the bucket's state.

use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::garbage::GarbageQueue;
use crate::index::{BucketIndex, ConvertedBuckets, StaleIntent};
use crate::object::ObjectWriter;
use crate::record;
use crate::shards::{IndexShards, ShardCheck, shard_name, shard_of};
use crate::storage_classes::StorageClasses;
use crate::stored::{DataObjectKind, HeadEntry, StoredObjects, classify_data_object};
use crate::time::now_ns;
use crate::uploads::{UploadEntry, Uploads};
use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use nacre_client::{ReadOp, WriteOp};
use nacre_index::key::{self, IndexRecordKind};
use nacre_index::op::Page;
use nacre_index::record::{Entry, EntryTails, ListingEntry, Pending, Stats, Tails, Tidy, VersionKind};
use nacre_index::recovery;
use nacre_index::seq::Seq;
use nacre_types::op::CmpOp;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Entries per page.
const PAGE: u64 = 1000;
/// Heads read concurrently.
const HEADS: usize = 16;
/// How often a difference is checked again, and the interval between the checks.
const RECHECKS: usize = 50;
const RECHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The maximum number of problems that a report names; further ones are only counted.
const MAX_REPORTED_PROBLEMS: usize = 10_000;

/// An inconsistency of a bucket.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BucketInconsistency {
    /// A shard of the index is absent.
    MissingShard(String),
    /// A shard is closed, but no attempt keeps it closed.
    ClosedShard(String),
    /// The entry of this key differs from the object's head, or has no object, or is absent although the object exists.
    WrongEntry(String),
    /// The entry of this key can't be decoded.
    CorruptEntry(String),
    /// The head of this key can't be decoded.
    CorruptHead(String),
    /// A change of this key is pending for longer than any change takes.
    StalePending(String),
    /// A shard's sums differ from those of its entries.
    WrongSums(String),
    /// An upload is listed but does not exist: key and id.
    MissingUpload(String, String),
    /// An upload exists but is not listed: key and id.
    UnlistedUpload(String, String),
    /// Unreferenced data: the prefix of the RADOS objects' names, and the maximum number of these objects.
    Orphan(String, u64),
    /// A shard changes continuously, so its sums could not be compared.
    BusyShard(String),
}

/// The result of a check.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// Objects and bytes according to the index's sums.
    pub existing: (u64, u64),
    /// Objects and bytes according to the index's entries.
    pub calculated: (u64, u64),
    /// The problems; at most 10 000.
    pub problems: BTreeSet<BucketInconsistency>,
    /// The number of problems found.
    pub found: u64,
}

impl CheckReport {
    fn add(&mut self, problem: BucketInconsistency) {
        self.found += 1;
        if self.problems.len() < MAX_REPORTED_PROBLEMS {
            self.problems.insert(problem);
        }
    }
}

/// An entry as stored in its shard while the key had no pending changes, and the head at that time.
struct Compared {
    value: Option<Bytes>,
    head: ObservedHead,
}

/// The state of a key's head.
#[derive(Debug, Default)]
enum ObservedHead {
    #[default]
    Absent,
    /// A tombstone, and the sequence of its last change.
    Tombstone(Seq),
    Object(HeadEntry),
}

/// Names of runs of tails.
type Runs = BTreeSet<String>;

/// Checks and repairs buckets.
pub struct BucketChecker {
    buckets: Arc<ConvertedBuckets>,
    shards: Arc<IndexShards>,
    index: Arc<BucketIndex>,
    uploads: Arc<Uploads>,
    objects: Arc<StoredObjects>,
    classes: Arc<StorageClasses>,
    garbage: Arc<GarbageQueue>,
    writer: Arc<ObjectWriter>,
    /// How old a change must be before it is reported as pending for too long.
    pending_expiration: Duration,
}

impl BucketChecker {
    pub(crate) fn new(writer: &Arc<ObjectWriter>, pending_expiration: Duration) -> BucketChecker {
        BucketChecker {
            buckets: Arc::clone(&writer.buckets),
            shards: Arc::clone(&writer.shards),
            index: Arc::clone(&writer.index),
            uploads: Arc::clone(&writer.uploads),
            objects: Arc::clone(&writer.objects),
            classes: Arc::clone(&writer.classes),
            garbage: Arc::clone(&writer.garbage),
            writer: Arc::clone(writer),
            pending_expiration,
        }
    }

    /// Checks a bucket; with `fix`, repairs what is wrong. Garbage is not removed at once: that is left to garbage
    /// collection.
    pub async fn check(&self, name: &str, fix: bool) -> Result<CheckReport> {
        let bucket = self.buckets.get(name).await?;
        let mut report = CheckReport::default();
        for shard in 0..bucket.shards.max(1) {
            self.check_shard(&bucket, &shard_name(&bucket, shard), fix, &mut report).await?;
        }
        self.check_pending(&bucket, fix, &mut report).await?;
        let runs = self.check_data(&bucket, fix, &mut report).await?;
        self.check_entries(&bucket, fix, &mut report).await?;
        self.check_uploads(&bucket, fix, &mut report).await?;
        if !runs.is_empty() {
            self.check_orphans(&bucket, runs, fix, &mut report).await?;
        }
        // The sums must include the repairs. The wait is bounded: a busy gateway always has changes to finish.
        self.index.finisher.drain().await;
        for shard in 0..bucket.shards.max(1) {
            self.check_sums(&shard_name(&bucket, shard), fix, &mut report).await?;
        }
        Ok(report)
    }

    async fn check_shard(
        &self,
        bucket: &Bucket,
        shard: &str,
        fix: bool,
        report: &mut CheckReport,
    ) -> Result<()> {
        match self.shards.check(bucket, shard, fix).await? {
            ShardCheck::Consistent => {}
            ShardCheck::Absent => report.add(BucketInconsistency::MissingShard(shard.to_owned())),
            ShardCheck::Abandoned => report.add(BucketInconsistency::ClosedShard(shard.to_owned())),
        }
        Ok(())
    }

    /// Fails if the bucket's index was replaced or removed. To be called before a difference is attributed to an error of
    /// the index.
    async fn must_stand(&self, bucket: &Bucket) -> Result<()> {
        match self.buckets.get(&bucket.name).await? {
            now if now.id == bucket.id && now.generation == bucket.generation => Ok(()),
            _ => Err(Error::IndexBusy(bucket.name.clone())),
        }
    }

    /// Reads a page of a shard's records of one kind; returns an empty page if the shard is absent.
    async fn page(&self, shard: &str, kind: IndexRecordKind, after: Bytes) -> Result<Page> {
        match self.shards.pool().omap_get_vals(shard, after, kind.prefix(), PAGE).await {
            Err(error) if error.is_not_found() => Ok(Page::default()),
            page => page.map(|page| Page { entries: page.entries, more: page.more }).map_err(Error::from),
        }
    }

    async fn check_pending(&self, bucket: &Bucket, fix: bool, report: &mut CheckReport) -> Result<()> {
        for number in 0..bucket.shards.max(1) {
            let shard = shard_name(bucket, number);
            let mut after = Bytes::new();
            loop {
                let page = self.page(&shard, IndexRecordKind::Pending, after.clone()).await?;
                let mut stale = Vec::new();
                for change in recovery::parse(&shard, &page)? {
                    after = change.name.clone();
                    let intent = StaleIntent::from(change);
                    if intent.is_older(self.pending_expiration) {
                        report.add(BucketInconsistency::StalePending(intent.key.clone()));
                        stale.push(intent);
                    }
                }
                if fix {
                    self.index.recovery.recover_stale(bucket, stale).await?;
                }
                if !page.more {
                    break;
                }
            }
        }
        self.index.finisher.drain().await;
        Ok(())
    }

    /// Reads a key's current head.
    async fn checked_head(&self, bucket: &Bucket, key: &str) -> Result<ObservedHead> {
        if let Some(head) = self.objects.head_index_entry(&bucket.id, key).await? {
            return Ok(ObservedHead::Object(head));
        }
        let head = self.objects.protocol_head(&bucket.id, key).await?;
        Ok(head
            .filter(|head| head.is_tombstone())
            .map_or(ObservedHead::Absent, |head| ObservedHead::Tombstone(head.last_seq())))
    }

    /// Reads an entry and its head until the entry is the same before and after the head is read, without pending changes of
    /// the key. Returns `None` if this does not happen, or if a change stays pending until it is recovered.
    async fn compare(&self, bucket: &Bucket, key: &str) -> Result<Option<Compared>> {
        let shard = shard_of(bucket, key);
        let mut before: Option<Option<Bytes>> = None;
        let mut head = ObservedHead::default();
        for _ in 0..RECHECKS {
            let mut op = ReadOp::new();
            op.omap_get_vals_by_keys(vec![key::entry(key)]);
            op.omap_get_vals("", key::prefix(IndexRecordKind::Pending, key), PAGE);
            let reply = self.shards.pool().operate_read(&shard, op).await.and_then(|reply| reply.success());
            let (value, pending) = match reply {
                Err(error) if error.is_not_found() => (None, false),
                reply => {
                    let mut reply = reply?;
                    let value = reply.pairs(0)?.remove(&key::entry(key));
                    let found = reply.omap_vals(1)?;
                    let page = Page { entries: found.entries, more: found.more };
                    let pending = recovery::parse(&shard, &page)?;
                    let mut intents = pending.into_iter().map(StaleIntent::from).peekable();
                    let is_pending = intents.peek().is_some();
                    if intents.any(|intent| intent.is_older(self.pending_expiration)) {
                        return Ok(None);
                    }
                    (value, is_pending)
                }
            };
            if pending {
                before = None;
                tokio::time::sleep(RECHECK_INTERVAL).await;
                continue;
            }
            if before.as_ref() == Some(&value) {
                return Ok(Some(Compared { value, head }));
            }
            head = self.checked_head(bucket, key).await?;
            before = Some(value);
        }
        Ok(None)
    }

    /// Checks a key that seemed to differ, and with `fix` repairs it.
    async fn check_key(&self, bucket: &Bucket, key: &str, fix: bool, report: &mut CheckReport) -> Result<()> {
        let compared = match self.compare(bucket, key).await {
            Err(Error::Corrupt { .. }) => {
                report.add(BucketInconsistency::CorruptHead(key.to_owned()));
                return Ok(());
            }
            compared => compared?,
        };
        let Some(Compared { value, head }) = compared else { return Ok(()) };
        let shard = shard_of(bucket, key);
        let entry = value.as_ref().map(|value| record::decode::<Entry>(&shard, value));
        match (&entry, &head) {
            (None, ObservedHead::Absent) => return Ok(()),
            // Tidying has removed the head but not yet the entry.
            (Some(Ok(Entry { object: None, .. })), ObservedHead::Absent) => {
                return if fix { self.index.tidier.tidy_key(&bucket.id, &shard, key).await } else { Ok(()) };
            }
            (Some(Ok(Entry { object: None, seq })), ObservedHead::Tombstone(last)) if seq == last => {
                return Ok(());
            }
            (Some(Ok(entry)), ObservedHead::Object(head)) if agree(entry, head) => return Ok(()),
            _ => self.must_stand(bucket).await?,
        }
        match &entry {
            Some(Err(_)) => report.add(BucketInconsistency::CorruptEntry(key.to_owned())),
            _ => report.add(BucketInconsistency::WrongEntry(key.to_owned())),
        }
        if !fix {
            return Ok(());
        }
        // Tails that only the wrong entry references are found as orphans.
        let (name, tails) = (key::entry(key), key::tails(key));
        let mut op = WriteOp::new();
        op.assert_exists().omap_cmp(vec![(name.clone(), CmpOp::Eq, value.unwrap_or_default())]);
        let gone = match &head {
            ObservedHead::Absent => vec![name.clone(), tails.clone()],
            ObservedHead::Tombstone(_) | ObservedHead::Object(_) => vec![tails.clone()],
        };
        op.omap_rm_keys(gone);
        match head {
            ObservedHead::Absent => {}
            // Tidying removes both the head and the entry.
            ObservedHead::Tombstone(seq) => {
                let tidy = (key::tidy(key), record::encode(&Tidy { up_to: seq }));
                op.omap_set(vec![(name, record::encode(&Entry { seq, object: None })), tidy]);
            }
            ObservedHead::Object(head) => {
                let entry = Entry { seq: head.seq, object: Some(head.listed) };
                let mut set = vec![(name, record::encode(&entry))];
                if !head.tails.is_empty() {
                    set.push((tails, record::encode(&EntryTails { tails: head.tails })));
                }
                op.omap_set(set);
            }
        }
        match self.shards.pool().operate(&shard, op).await?.success().map_err(Error::from) {
            // The entry was changed since it was read, so it is no longer the wrong one.
            Err(error) if error.is_canceled() => Ok(()),
            mended => mended.map(drop),
        }
    }

    /// Checks every entry against its head.
    async fn check_entries(&self, bucket: &Bucket, fix: bool, report: &mut CheckReport) -> Result<()> {
        for number in 0..bucket.shards.max(1) {
            let shard = shard_name(bucket, number);
            let mut after = Bytes::new();
            loop {
                let page = self.page(&shard, IndexRecordKind::Entry, after.clone()).await?;
                let differing: Vec<Option<String>> = stream::iter(&page.entries)
                    .map(|(name, value)| {
                        let shard = &shard;
                        async move {
                            // A record whose name can't be parsed says nothing about any object.
                            let Some(name) = key::parse(name) else { return Ok(None) };
                            let entry = record::decode::<Entry>(shard, value).ok();
                            let current = match self.objects.current(&bucket.id, &name.key).await {
                                Err(Error::Corrupt { .. }) => return Ok(Some(name.key)),
                                current => current?,
                            };
                            let same = match (&entry, current) {
                                (Some(entry), Some(current)) => {
                                    says(entry, current.mark.seq(), &current.listed())
                                }
                                // Checked again, together with the head.
                                (Some(_) | None, None) | (None, Some(_)) => false,
                            };
                            Ok::<_, Error>((!same).then_some(name.key))
                        }
                    })
                    .buffered(HEADS)
                    .try_collect()
                    .await?;
                for key in differing.into_iter().flatten() {
                    self.check_key(bucket, &key, fix, report).await?;
                }
                match page.entries.last() {
                    Some((last, _)) if page.more => after = last.clone(),
                    _ => break,
                }
            }
        }
        Ok(())
    }

    /// Checks every head and every upload against its index record; returns the runs of tails that exist.
    async fn check_data(&self, bucket: &Bucket, fix: bool, report: &mut CheckReport) -> Result<Runs> {
        let mut runs = Runs::new();
        for place in self.classes.pools().await? {
            let mut lister = place.pool.list();
            while let Some(object) = lister.next().await? {
                match classify_data_object(&bucket.id, object.name()) {
                    Some(DataObjectKind::Tail(run)) if place.has_tails(&run) => drop(runs.insert(run)),
                    Some(role @ (DataObjectKind::Head(_) | DataObjectKind::Upload(..)))
                        if place.has_heads() =>
                    {
                        self.check_role(bucket, role, fix, report).await?;
                    }
                    // It is not in the pool where the gateway would look for it.
                    Some(_) | None => {}
                }
            }
        }
        Ok(runs)
    }

    /// Checks a head or an upload in the pool of heads.
    async fn check_role(
        &self,
        bucket: &Bucket,
        role: DataObjectKind,
        fix: bool,
        report: &mut CheckReport,
    ) -> Result<()> {
        match role {
            DataObjectKind::Tail(_) => {}
            DataObjectKind::Head(key) => {
                let shard = shard_of(bucket, &key);
                let name = key::entry(&key);
                let found = self.shards.pool().omap_get_vals_by_keys(&shard, vec![name.clone()]).await;
                // The scan of the entries checks whether it is the right one.
                if !found.is_ok_and(|found| found.contains_key(&name)) {
                    self.check_key(bucket, &key, fix, report).await?;
                }
            }
            DataObjectKind::Upload(key, id) => {
                let shard = shard_of(bucket, &key);
                let name = key::upload(&key, &id);
                let listed = async || -> Result<bool> {
                    let found = self.shards.pool().omap_get_vals_by_keys(&shard, vec![name.clone()]).await?;
                    Ok(found.contains_key(&name))
                };
                if listed().await? || self.uploads.tails(bucket, &key, &id).await?.is_none() {
                    return Ok(());
                }
                self.must_stand(bucket).await?;
                report.add(BucketInconsistency::UnlistedUpload(key.clone(), id.clone()));
                if fix {
                    self.writer.abort_upload(bucket, &key, &id).await?;
                }
            }
        }
        Ok(())
    }

    /// Checks that every listed upload exists.
    async fn check_uploads(&self, bucket: &Bucket, fix: bool, report: &mut CheckReport) -> Result<()> {
        for number in 0..bucket.shards.max(1) {
            let shard = shard_name(bucket, number);
            let mut after = Bytes::new();
            loop {
                let page = self.page(&shard, IndexRecordKind::Upload, after.clone()).await?;
                for (name, value) in &page.entries {
                    after = name.clone();
                    let Some(upload) = key::parse(name) else { continue };
                    let (key, id) = (&upload.key, &upload.suffix);
                    let entry = record::decode::<UploadEntry>(&shard, value)?;
                    let age = now_ns().saturating_sub(entry.begun_ns);
                    // An upload is listed before it is created.
                    let young = u128::from(age) < self.pending_expiration.as_nanos();
                    if young || self.uploads.tails(bucket, key, id).await?.is_some() {
                        continue;
                    }
                    report.add(BucketInconsistency::MissingUpload(key.clone(), id.clone()));
                    if fix {
                        self.uploads.remove_entry(bucket, key, id).await?;
                    }
                }
                if !page.more {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Reports the `runs` that nothing references; with `fix`, passes them to garbage collection.
    async fn check_orphans(
        &self,
        bucket: &Bucket,
        mut runs: Runs,
        fix: bool,
        report: &mut CheckReport,
    ) -> Result<()> {
        // The order matters: see the module's documentation.
        for kind in [IndexRecordKind::Upload, IndexRecordKind::Pending, IndexRecordKind::Tails] {
            for number in 0..bucket.shards.max(1) {
                let shard = shard_name(bucket, number);
                let mut after = Bytes::new();
                loop {
                    let page = self.page(&shard, kind, after.clone()).await?;
                    for (name, value) in &page.entries {
                        after = name.clone();
                        let Some(key::IndexKey { key, suffix, .. }) = key::parse(name) else { continue };
                        match kind {
                            IndexRecordKind::Upload => {
                                let tails = self.uploads.tails(bucket, &key, &suffix).await?;
                                forget(&mut runs, &tails.unwrap_or_default());
                            }
                            IndexRecordKind::Pending => {
                                let pending = record::decode::<Pending>(&shard, value)?;
                                forget(&mut runs, pending.tails.as_slice());
                                forget(&mut runs, &pending.replaced);
                                forget(&mut runs, &pending.parts);
                                forget(&mut runs, &self.objects.referenced_tails(&bucket.id, &key).await?);
                            }
                            // A record that can't be decoded references nothing here; the scan of the heads below finds the
                            // references of its head.
                            _ => {
                                let own = record::decode::<EntryTails>(&shard, value).unwrap_or_default();
                                forget(&mut runs, &own.tails);
                            }
                        }
                    }
                    if !page.more {
                        break;
                    }
                }
            }
        }
        for garbage in self.garbage.list(true).await? {
            runs.remove(&garbage.name);
        }
        if runs.is_empty() {
            return Ok(());
        }
        let (counts, readable) = self.scan_data(bucket, &mut runs).await?;
        self.must_stand(bucket).await?;
        for (name, count) in counts {
            report.add(BucketInconsistency::Orphan(name.clone(), count));
            // A head that can't be read may reference it.
            if fix && readable {
                self.garbage.queue(&[Tails { name, count }]).await?;
            }
        }
        Ok(())
    }

    /// Removes from `runs` what heads and uploads reference: if the index is wrong, they may reference what the index does not.
    /// Returns the number of tails of the runs that are left, some of which may have been collected meanwhile, and whether all
    /// heads could be read.
    async fn scan_data(&self, bucket: &Bucket, runs: &mut Runs) -> Result<(BTreeMap<String, u64>, bool)> {
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        let mut readable = true;
        for place in self.classes.pools().await? {
            let mut lister = place.pool.list();
            while let Some(object) = lister.next().await? {
                match classify_data_object(&bucket.id, object.name()) {
                    Some(DataObjectKind::Head(key)) if place.has_heads() => {
                        match self.objects.referenced_tails(&bucket.id, &key).await {
                            Err(Error::Corrupt { .. }) => readable = false,
                            named => forget(runs, &named?),
                        }
                    }
                    Some(DataObjectKind::Upload(key, id)) if place.has_heads() => {
                        let tails = self.uploads.tails(bucket, &key, &id).await?;
                        forget(runs, &tails.unwrap_or_default());
                    }
                    Some(DataObjectKind::Tail(run)) if place.has_tails(&run) => {
                        let number =
                            object.name().rsplit('_').next().and_then(|number| number.parse::<u64>().ok());
                        if runs.contains(&run) {
                            let count = counts.entry(run).or_default();
                            *count = (*count).max(number.unwrap_or(0).saturating_add(1));
                        }
                    }
                    Some(_) | None => {}
                }
            }
        }
        counts.retain(|run, _| runs.contains(run));
        Ok((counts, readable))
    }

    /// Checks a shard's sums against its entries; both are read while the shard does not change.
    async fn check_sums(&self, shard: &str, fix: bool, report: &mut CheckReport) -> Result<()> {
        for _ in 0..RECHECKS {
            let Some((existing, version)) = self.sums(shard).await? else { return Ok(()) };
            let mut calculated = Stats::default();
            let mut after = Bytes::new();
            loop {
                let page = self.page(shard, IndexRecordKind::Entry, after.clone()).await?;
                for (name, value) in &page.entries {
                    after = name.clone();
                    if let Ok(entry) = record::decode::<Entry>(shard, value) {
                        calculated.add(entry.counted());
                    }
                }
                if !page.more {
                    break;
                }
            }
            let Some((_, now)) = self.sums(shard).await? else { return Ok(()) };
            if now != version {
                tokio::time::sleep(RECHECK_INTERVAL).await;
                continue;
            }
            if existing.unwrap_or_default() != calculated {
                if fix {
                    let mut op = WriteOp::new();
                    op.assert_version(version)
                        .omap_set(vec![(Bytes::from_static(key::STATS), record::encode(&calculated))]);
                    if self.shards.pool().operate(shard, op).await?.success().is_err() {
                        continue;
                    }
                }
                report.add(BucketInconsistency::WrongSums(shard.to_owned()));
            }
            let existing = existing.unwrap_or_default();
            report.existing = (report.existing.0 + existing.objects, report.existing.1 + existing.bytes);
            report.calculated =
                (report.calculated.0 + calculated.objects, report.calculated.1 + calculated.bytes);
            return Ok(());
        }
        report.add(BucketInconsistency::BusyShard(shard.to_owned()));
        Ok(())
    }

    /// Reads a shard's version and its sums, which are `None` if they are absent or can't be decoded. Returns `None` if the
    /// shard is absent.
    async fn sums(&self, shard: &str) -> Result<Option<(Option<Stats>, u64)>> {
        let mut op = ReadOp::new();
        op.omap_get_vals_by_keys(vec![Bytes::from_static(key::STATS)]);
        let reply = self.shards.pool().operate_read(shard, op).await.and_then(|reply| reply.success());
        let mut reply = match reply {
            Err(error) if error.is_not_found() => return Ok(None),
            reply => reply?,
        };
        let value = reply.pairs(0)?.remove(key::STATS);
        let stats = value.and_then(|value| record::decode::<Stats>(shard, &value).ok());
        Ok(Some((stats, reply.version)))
    }
}

/// Removes the runs of these tails.
fn forget(runs: &mut Runs, tails: &[Tails]) {
    for tails in tails {
        runs.remove(&tails.name);
    }
}

/// Whether an entry agrees with the head. Tails are not compared: those of an entry are what is discarded with it.
fn agree(entry: &Entry, head: &HeadEntry) -> bool {
    says(entry, head.seq, &head.listed)
}

/// Whether an entry has that sequence and describes that object. It need not know that the object has neither metadata nor
/// tags.
fn says(entry: &Entry, seq: Seq, listed: &ListingEntry) -> bool {
    let mut object = entry.object.clone();
    if let Some(object) = &mut object
        && (object.kind, listed.kind) == (VersionKind::Object, VersionKind::Plain)
    {
        object.kind = VersionKind::Plain;
    }
    entry.seq == seq && object.as_ref() == Some(listed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::NOTIFY_OBJECT;
    use crate::testing::{TestCluster, create_bucket, index_parts, writer_on};
    use crate::uploads::Upload;

    #[test]
    fn what_is_wrong_is_found_and_repaired() {
        let cluster = TestCluster::new();
        let (connection, peers) = cluster.connect();
        cluster.run_on_tokio(async {
            let parts = index_parts(&connection, &peers);
            let bucket = create_bucket(&parts, "b", "alice").await;
            let checker = BucketChecker::new(&writer_on(&parts), Duration::ZERO);
            // As a gateway that serves.
            connection.pools.control.write_full(NOTIFY_OBJECT, "").await.unwrap();
            let check = async |fix| checker.check("b", fix).await.unwrap().problems;
            assert!(check(true).await.is_empty());
            // An entry without an object, and an upload that is not listed.
            let (shard, pool) = (shard_of(&bucket, "k"), &connection.pools.index);
            let entry = Entry { object: Some(ListingEntry::default()), ..Entry::default() };
            pool.omap_set(&shard, vec![(key::entry("k"), record::encode(&entry))]).await.unwrap();
            let upload = Upload::new(crate::stored::Head::default(), "", false);
            let id = parts.uploads.create(&bucket, "u", upload).await.unwrap();
            parts.uploads.remove_entry(&bucket, "u", &id).await.unwrap();
            let wrong = BTreeSet::from([
                BucketInconsistency::WrongEntry("k".into()),
                BucketInconsistency::UnlistedUpload("u".into(), id),
            ]);
            assert!(check(false).await.is_superset(&wrong));
            assert!(check(true).await.is_superset(&wrong));
            assert!(check(false).await.is_empty());
        });
    }
}
