//! Checking a bucket, and mending it: every index entry against its object's head, every head against its entry, shards'
//! sums, what is pending too long, uploads, and data that nothing names.
//!
//! The bucket may be in use meanwhile. What differs is looked at again until nothing is pending of it: only what stays
//! different while nothing happens is a problem. Data that seems to belong to nothing was listed before all that could
//! name it is read, in the direction in which names move: uploads, pending changes, entries, garbage. A check ends where the
//! bucket's index moves meanwhile or the bucket goes: what it reads then says nothing of what is there.

use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::gateway::{Gateway, now_ns};
use crate::index::{self, Found, StaleIntent, Stats, Tails};
use crate::object::multipart::UploadEntry;
use crate::object::{HeadEntry, Role, role_of};
use crate::record;
use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use nacre_client::{ReadOp, WriteOp};
use nacre_index::key::{self, Kind};
use nacre_index::op::Page;
use nacre_index::record::{Entry, EntryTails, Listed, Pending, Tidy, VersionKind};
use nacre_index::recovery;
use nacre_index::seq::Seq;
use nacre_types::op::CmpOp;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Entries read at a time.
const PAGE: u64 = 1000;
/// Heads looked at at the same time.
const HEADS: usize = 16;
/// How often something that differs is looked at again, and between that.
const LOOKS: usize = 50;
const BETWEEN: Duration = Duration::from_millis(100);
/// Problems that a report names, of each kind; more are counted.
const NAMED: usize = 10_000;

/// Something that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Problem {
    /// A shard of the index is absent.
    MissingShard(String),
    /// A shard takes no changes, though no attempt keeps it closed.
    ClosedShard(String),
    /// The entry of this key is not what the object's head says, or stands for no object, or the object has none.
    WrongEntry(String),
    /// The entry of this key can't be decoded.
    CorruptEntry(String),
    /// The head of this key can't be decoded.
    CorruptHead(String),
    /// A change of this key is pending longer than any change takes, and its gateway is gone or was not heard.
    StalePending(String),
    /// A shard's sums are not those of its entries.
    WrongSums(String),
    /// An upload is listed that is not there: key and id.
    MissingUpload(String, String),
    /// An upload is there that is not listed: key and id.
    UnlistedUpload(String, String),
    /// Data that nothing names: what the names of the RADOS objects begin with, and how many at most.
    Orphan(String, u64),
    /// A shard changes all the time; its sums could not be compared.
    BusyShard(String),
}

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// Objects and bytes as the index' sums have them.
    pub existing: (u64, u64),
    /// Objects and bytes as its entries have them.
    pub calculated: (u64, u64),
    /// What is wrong; at most 10 000.
    pub problems: BTreeSet<Problem>,
    /// How many problems were found.
    pub found: u64,
}

impl CheckReport {
    fn add(&mut self, problem: Problem) {
        self.found += 1;
        if self.problems.len() < NAMED {
            self.problems.insert(problem);
        }
    }
}

/// An entry as it lies in its shard, with nothing pending, and the head at that time.
struct Compared {
    value: Option<Bytes>,
    head: Head,
}

/// What a key's head is.
#[derive(Debug, Default)]
enum Head {
    #[default]
    Absent,
    /// A tombstone, and the sequence of its last change.
    Tombstone(Seq),
    Object(HeadEntry),
}

/// Names of runs of tails.
type Runs = BTreeSet<String>;

impl Gateway {
    /// Checks a bucket, with `fix` mends what is wrong. Garbage is not removed at once: that stays what collecting is for.
    pub async fn check_bucket(self: &Arc<Gateway>, name: &str, fix: bool) -> Result<CheckReport> {
        let bucket = self.bucket(name).await?;
        let mut report = CheckReport::default();
        for shard in 0..bucket.shards.max(1) {
            self.check_shard(&bucket, &index::shard_name(&bucket, shard), fix, &mut report).await?;
        }
        self.check_pending(&bucket, fix, &mut report).await?;
        let runs = self.check_data(&bucket, fix, &mut report).await?;
        self.check_entries(&bucket, fix, &mut report).await?;
        self.check_uploads(&bucket, fix, &mut report).await?;
        if !runs.is_empty() {
            self.check_orphans(&bucket, runs, fix, &mut report).await?;
        }
        // What was mended is in the sums, too.
        self.finish().await;
        for shard in 0..bucket.shards.max(1) {
            self.check_sums(&index::shard_name(&bucket, shard), fix, &mut report).await?;
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
        match index::look(self, bucket, shard, fix).await? {
            Found::Sound => {}
            Found::Absent => report.add(Problem::MissingShard(shard.to_owned())),
            Found::Left => report.add(Problem::ClosedShard(shard.to_owned())),
        }
        Ok(())
    }

    /// Fails where the bucket's index is another one by now, or gone: before anything that the index does not name is taken for
    /// wrong.
    async fn must_stand(&self, bucket: &Bucket) -> Result<()> {
        match self.bucket(&bucket.name).await? {
            now if now.id == bucket.id && now.generation == bucket.generation => Ok(()),
            _ => Err(Error::IndexBusy(bucket.name.clone())),
        }
    }

    /// A page of a shard's records of one kind; empty where the shard is absent.
    async fn page(&self, shard: &str, kind: Kind, after: Bytes) -> Result<Page> {
        match self.pools.index.omap_get_vals(shard, after, kind.prefix(), PAGE).await {
            Err(error) if error.is_not_found() => Ok(Page::default()),
            page => page.map(|page| Page { entries: page.entries, more: page.more }).map_err(Error::from),
        }
    }

    async fn check_pending(
        self: &Arc<Gateway>,
        bucket: &Bucket,
        fix: bool,
        report: &mut CheckReport,
    ) -> Result<()> {
        for number in 0..bucket.shards.max(1) {
            let shard = index::shard_name(bucket, number);
            let mut after = Bytes::new();
            loop {
                let page = self.page(&shard, Kind::Pending, after.clone()).await?;
                let mut stale = Vec::new();
                for change in recovery::parse(&shard, &page)? {
                    after = change.name.clone();
                    let intent = StaleIntent::from(change);
                    if intent.is_older(self.config.pending_expiration) {
                        report.add(Problem::StalePending(intent.key.clone()));
                        stale.push(intent);
                    }
                }
                if fix {
                    self.recover(bucket, stale).await?;
                }
                if !page.more {
                    break;
                }
            }
        }
        self.finish().await;
        Ok(())
    }

    /// A key's head now.
    async fn checked_head(&self, bucket: &Bucket, key: &str) -> Result<Head> {
        if let Some(head) = self.head_with_tails(bucket, key).await? {
            return Ok(Head::Object(head));
        }
        let head = self.protocol_head(&bucket.id, key).await?;
        Ok(head.filter(|head| head.is_tombstone()).map_or(Head::Absent, |head| Head::Tombstone(head.seq())))
    }

    /// Looks at an entry and its head until nothing is pending of the key, and so nothing was while the head was read;
    /// `None` where there is always something, or a change that stays pending until it is recovered.
    async fn compare(&self, bucket: &Bucket, key: &str) -> Result<Option<Compared>> {
        let shard = index::shard_of(bucket, key);
        let mut before: Option<Option<Bytes>> = None;
        let mut head = Head::default();
        for _ in 0..LOOKS {
            let mut op = ReadOp::new();
            op.omap_get_vals_by_keys(vec![key::entry(key)]);
            op.omap_get_vals("", key::prefix(Kind::Pending, key), PAGE);
            let reply = self.pools.index.operate_read(&shard, op).await.and_then(|reply| reply.success());
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
                    if intents.any(|intent| intent.is_older(self.config.pending_expiration)) {
                        return Ok(None);
                    }
                    (value, is_pending)
                }
            };
            if pending {
                before = None;
                tokio::time::sleep(BETWEEN).await;
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

    /// Checks one key that seemed to differ, and mends it.
    async fn check_key(&self, bucket: &Bucket, key: &str, fix: bool, report: &mut CheckReport) -> Result<()> {
        let compared = match self.compare(bucket, key).await {
            Err(Error::Corrupt { .. }) => {
                report.add(Problem::CorruptHead(key.to_owned()));
                return Ok(());
            }
            compared => compared?,
        };
        let Some(Compared { value, head }) = compared else { return Ok(()) };
        let shard = index::shard_of(bucket, key);
        let entry = value.as_ref().map(|value| record::decode::<Entry>(&shard, value));
        match (&entry, &head) {
            (None, Head::Absent) => return Ok(()),
            // Its tidying has removed the head and not yet the entry.
            (Some(Ok(Entry { object: None, .. })), Head::Absent) => {
                return if fix { self.tidy_key(&bucket.id, &shard, key).await } else { Ok(()) };
            }
            (Some(Ok(Entry { object: None, seq })), Head::Tombstone(last)) if seq == last => return Ok(()),
            (Some(Ok(entry)), Head::Object(head)) if agree(entry, head) => return Ok(()),
            _ => self.must_stand(bucket).await?,
        }
        match &entry {
            Some(Err(_)) => report.add(Problem::CorruptEntry(key.to_owned())),
            _ => report.add(Problem::WrongEntry(key.to_owned())),
        }
        if !fix {
            return Ok(());
        }
        // Tails that only the wrong entry names are found as orphans.
        let (name, tails) = (key::entry(key), key::tails(key));
        let mut op = WriteOp::new();
        op.assert_exists().omap_cmp(vec![(name.clone(), CmpOp::Eq, value.unwrap_or_default())]);
        let gone = match &head {
            Head::Absent => vec![name.clone(), tails.clone()],
            Head::Tombstone(_) | Head::Object(_) => vec![tails.clone()],
        };
        op.omap_rm_keys(gone);
        match head {
            Head::Absent => {}
            // Tidying removes both.
            Head::Tombstone(seq) => {
                let tidy = (key::tidy(key), record::encode(&Tidy { up_to: seq }));
                op.omap_set(vec![(name, record::encode(&Entry { seq, object: None })), tidy]);
            }
            Head::Object(head) => {
                let entry = Entry { seq: head.seq, object: Some(head.listed) };
                let mut set = vec![(name, record::encode(&entry))];
                if !head.tails.is_empty() {
                    set.push((tails, record::encode(&EntryTails { tails: head.tails })));
                }
                op.omap_set(set);
            }
        }
        match self.pools.index.operate(&shard, op).await?.success().map_err(Error::from) {
            // It changed this moment: then it is not what was wrong any more.
            Err(error) if error.is_canceled() => Ok(()),
            mended => mended.map(drop),
        }
    }

    /// Every entry against its head.
    async fn check_entries(&self, bucket: &Bucket, fix: bool, report: &mut CheckReport) -> Result<()> {
        for number in 0..bucket.shards.max(1) {
            let shard = index::shard_name(bucket, number);
            let mut after = Bytes::new();
            loop {
                let page = self.page(&shard, Kind::Entry, after.clone()).await?;
                let differing: Vec<Option<String>> = stream::iter(&page.entries)
                    .map(|(name, value)| {
                        let shard = &shard;
                        async move {
                            // What is no key of an entry says nothing of any object.
                            let Some(name) = key::parse(name) else { return Ok(None) };
                            let entry = record::decode::<Entry>(shard, value).ok();
                            let current = match self.current(bucket, &name.key).await {
                                Err(Error::Corrupt { .. }) => return Ok(Some(name.key)),
                                current => current?,
                            };
                            let same = match (&entry, current) {
                                (Some(entry), Some(current)) => {
                                    says(entry, current.mark.seq(), &current.listed())
                                }
                                // Looked at again with its head.
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

    /// Every head against its entry, and every upload against its; returns the runs of tails that are there.
    async fn check_data(
        self: &Arc<Gateway>,
        bucket: &Bucket,
        fix: bool,
        report: &mut CheckReport,
    ) -> Result<Runs> {
        let mut runs = Runs::new();
        for place in self.data_pools().await? {
            let mut lister = place.pool.list();
            while let Some(object) = lister.next().await? {
                match role_of(bucket, object.name()) {
                    Some(Role::Tail(run)) if place.has_tails(&run) => drop(runs.insert(run)),
                    Some(role @ (Role::Head(_) | Role::Upload(..))) if place.has_heads() => {
                        self.check_role(bucket, role, fix, report).await?;
                    }
                    // It is not where the gateway would look for it.
                    Some(_) | None => {}
                }
            }
        }
        Ok(runs)
    }

    /// Checks a head or an upload that is in the pool of heads.
    async fn check_role(
        self: &Arc<Gateway>,
        bucket: &Bucket,
        role: Role,
        fix: bool,
        report: &mut CheckReport,
    ) -> Result<()> {
        match role {
            Role::Tail(_) => {}
            Role::Head(key) => {
                let shard = index::shard_of(bucket, &key);
                let name = key::entry(&key);
                let found = self.pools.index.omap_get_vals_by_keys(&shard, vec![name.clone()]).await;
                // Whether it is the right one is seen when entries are gone through.
                if !found.is_ok_and(|found| found.contains_key(&name)) {
                    self.check_key(bucket, &key, fix, report).await?;
                }
            }
            Role::Upload(key, id) => {
                let shard = index::shard_of(bucket, &key);
                let name = key::upload(&key, &id);
                let listed = async || -> Result<bool> {
                    let found = self.pools.index.omap_get_vals_by_keys(&shard, vec![name.clone()]).await?;
                    Ok(found.contains_key(&name))
                };
                if listed().await? || self.tails_of_upload(bucket, &key, &id).await?.is_none() {
                    return Ok(());
                }
                self.must_stand(bucket).await?;
                report.add(Problem::UnlistedUpload(key.clone(), id.clone()));
                if fix {
                    self.abort_upload(bucket, &key, &id).await?;
                }
            }
        }
        Ok(())
    }

    /// Every listed upload is there.
    async fn check_uploads(&self, bucket: &Bucket, fix: bool, report: &mut CheckReport) -> Result<()> {
        for number in 0..bucket.shards.max(1) {
            let shard = index::shard_name(bucket, number);
            let mut after = Bytes::new();
            loop {
                let page = self.page(&shard, Kind::Upload, after.clone()).await?;
                for (name, value) in &page.entries {
                    after = name.clone();
                    let Some(upload) = key::parse(name) else { continue };
                    let (key, id) = (&upload.key, &upload.suffix);
                    let entry = record::decode::<UploadEntry>(&shard, value)?;
                    let age = now_ns().saturating_sub(entry.begun_ns);
                    // Listed first, then made.
                    let young = u128::from(age) < self.config.pending_expiration.as_nanos();
                    if young || self.tails_of_upload(bucket, key, id).await?.is_some() {
                        continue;
                    }
                    report.add(Problem::MissingUpload(key.clone(), id.clone()));
                    if fix {
                        index::remove_upload(self, bucket, key, id).await?;
                    }
                }
                if !page.more {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Gives those of `runs` that nothing names to the garbage.
    async fn check_orphans(
        &self,
        bucket: &Bucket,
        mut runs: Runs,
        fix: bool,
        report: &mut CheckReport,
    ) -> Result<()> {
        let forget = |runs: &mut Runs, tails: &[Tails]| {
            for tails in tails {
                runs.remove(&tails.name);
            }
        };
        // In this order; see the module.
        for kind in [Kind::Upload, Kind::Pending, Kind::Tails] {
            for number in 0..bucket.shards.max(1) {
                let shard = index::shard_name(bucket, number);
                let mut after = Bytes::new();
                loop {
                    let page = self.page(&shard, kind, after.clone()).await?;
                    for (name, value) in &page.entries {
                        after = name.clone();
                        let Some(key::ShardKey { key, suffix, .. }) = key::parse(name) else { continue };
                        match kind {
                            Kind::Upload => {
                                let tails = self.tails_of_upload(bucket, &key, &suffix).await?;
                                forget(&mut runs, &tails.unwrap_or_default());
                            }
                            Kind::Pending => {
                                let pending = record::decode::<Pending>(&shard, value)?;
                                forget(&mut runs, pending.tails.as_slice());
                                forget(&mut runs, &pending.replaced);
                                forget(&mut runs, &pending.parts);
                                forget(&mut runs, &self.named_tails(bucket, &key).await?);
                            }
                            // What can't be decoded names nothing; its head, below, does.
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
        for garbage in self.garbage(true).await? {
            runs.remove(&garbage.name);
        }
        if runs.is_empty() {
            return Ok(());
        }
        // What the index does not name a head or an upload may, where the index is what is wrong. How many there are of
        // each run is counted by the way: they may have been collected meanwhile.
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        let mut readable = true;
        for place in self.data_pools().await? {
            let mut lister = place.pool.list();
            while let Some(object) = lister.next().await? {
                match role_of(bucket, object.name()) {
                    Some(Role::Head(key)) if place.has_heads() => {
                        match self.named_tails(bucket, &key).await {
                            Err(Error::Corrupt { .. }) => readable = false,
                            named => forget(&mut runs, &named?),
                        }
                    }
                    Some(Role::Upload(key, id)) if place.has_heads() => {
                        let tails = self.tails_of_upload(bucket, &key, &id).await?;
                        forget(&mut runs, &tails.unwrap_or_default());
                    }
                    Some(Role::Tail(run)) if place.has_tails(&run) => {
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
        self.must_stand(bucket).await?;
        for (name, count) in counts {
            report.add(Problem::Orphan(name.clone(), count));
            // A head that can't be read may be what names it.
            if fix && readable {
                self.discard(&[Tails { name, count }]).await?;
            }
        }
        Ok(())
    }

    /// A shard's sums against its entries, both read while the shard did not change.
    async fn check_sums(&self, shard: &str, fix: bool, report: &mut CheckReport) -> Result<()> {
        for _ in 0..LOOKS {
            let Some((existing, version)) = self.sums(shard).await? else { return Ok(()) };
            let mut calculated = Stats::default();
            let mut after = Bytes::new();
            loop {
                let page = self.page(shard, Kind::Entry, after.clone()).await?;
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
                tokio::time::sleep(BETWEEN).await;
                continue;
            }
            if existing.unwrap_or_default() != calculated {
                if fix {
                    let mut op = WriteOp::new();
                    op.assert_version(version)
                        .omap_set(vec![(Bytes::from_static(key::STATS), record::encode(&calculated))]);
                    if self.pools.index.operate(shard, op).await?.success().is_err() {
                        continue;
                    }
                }
                report.add(Problem::WrongSums(shard.to_owned()));
            }
            let existing = existing.unwrap_or_default();
            report.existing = (report.existing.0 + existing.objects, report.existing.1 + existing.bytes);
            report.calculated =
                (report.calculated.0 + calculated.objects, report.calculated.1 + calculated.bytes);
            return Ok(());
        }
        report.add(Problem::BusyShard(shard.to_owned()));
        Ok(())
    }

    /// A shard's sums, `None` where they can't be decoded or are absent, and its version.
    async fn sums(&self, shard: &str) -> Result<Option<(Option<Stats>, u64)>> {
        let mut op = ReadOp::new();
        op.omap_get_vals_by_keys(vec![Bytes::from_static(key::STATS)]);
        let reply = self.pools.index.operate_read(shard, op).await.and_then(|reply| reply.success());
        let mut reply = match reply {
            Err(error) if error.is_not_found() => return Ok(None),
            reply => reply?,
        };
        let value = reply.pairs(0)?.remove(key::STATS);
        let stats = value.and_then(|value| record::decode::<Stats>(shard, &value).ok());
        Ok(Some((stats, reply.version)))
    }
}

/// Whether an entry says what the head does. Tails are the head's own matter; an entry's are what is to be discarded with it.
fn agree(entry: &Entry, head: &HeadEntry) -> bool {
    says(entry, head.seq, &head.listed)
}

/// Whether an entry says that of an object. It need not know that the object has no metadata and tags.
fn says(entry: &Entry, seq: Seq, listed: &Listed) -> bool {
    let mut object = entry.object.clone();
    if let Some(object) = &mut object
        && (object.kind, listed.kind) == (VersionKind::Object, VersionKind::Plain)
    {
        object.kind = VersionKind::Plain;
    }
    entry.seq == seq && object.as_ref() == Some(listed)
}
