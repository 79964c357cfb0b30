//! Versions of an object. All of them are in the omap of its head. The newest one is also in the head's attributes and data, so
//! that a read of the current object need not know about versions (docs/format/rgw.md).
//!
//! Every change is one compare-and-swap of the head. It is built again on the new state if another change was faster. An object
//! from before its bucket had versions becomes the version `null` with the first write that makes another version.

mod removal;

use super::commit::{CommitGuard, HeadRead};
use super::head_state::{CurrentObject, HeadState, VERSIONS};
use super::index_op::{Committed, PrepareIntent};
use super::read_size::MIN_READ_BYTES;
use super::remove::tombstone_steps;
use super::{
    DataLocation, HEAD, HEAD_BYTES, Head, IndexOp, Manifest, ObjectReader, PutOp, WriteCondition, head_name,
};
use crate::bucket::{Bucket, Versioning};
use crate::error::{Error, Result};
use crate::gateway::Gateway;
use crate::index::{Stats, Tails};
use crate::notifications::{Cause, ChangeEvents};
use crate::record;
use bytes::Bytes;
use nacre_client::{OpReply, ReadOp};
use nacre_index::commit::{self, ListingUpdate};
use nacre_index::op::Step;
use nacre_index::record::{CommitRecord, Subject};
use nacre_topics::event::EventType;
use nacre_types::encoding::Versioned;
use nacre_types::errno::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The id of a version that is made while the bucket makes no versions.
pub(crate) const NULL_VERSION: &str = "null";
/// Digits of a version's order in its id; the tag of its write follows.
const ORDER_DIGITS: usize = 16;
const TAG_DIGITS: usize = 32;
/// Attempts at a read that conflicts with changes, and by how much the delay between them grows each time.
const ATTEMPTS: u32 = 40;
const READ_RETRY_DELAY: Duration = Duration::from_millis(1);
/// Versions in a page.
const PAGE: u64 = 1000;

/// What a head records about its versions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct VersionsAttr {
    /// The order of the version made last; the next version gets a higher one.
    last: u64,
    /// The order of the version `null`, if there is one.
    null: Option<u64>,
    /// The totals of all versions, without delete markers.
    pub(super) held: Stats,
}

impl Versioned for VersionsAttr {
    const NAME: &'static str = "versions of an object";
}

/// A version, with the part of its data that is in the head.
struct StoredVersion {
    head: Head,
    data: Bytes,
}

/// The slot of a version in its head's omap. Newer versions sort first.
fn slot(order: u64, suffix: &str) -> String {
    format!("{:0ORDER_DIGITS$x}{suffix}", u64::MAX - order)
}

fn head_key(slot: &str) -> Bytes {
    format!("v{slot}").into()
}

fn data_key(slot: &str) -> Bytes {
    format!("d{slot}").into()
}

/// Fails with [`Error::InvalidVersionId`] if `id` can't be a version's id.
fn check_id(id: &str) -> Result<()> {
    let digits = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if id == NULL_VERSION || (id.len() == ORDER_DIGITS + TAG_DIGITS && id.bytes().all(digits)) {
        Ok(())
    } else {
        Err(Error::InvalidVersionId)
    }
}

impl VersionsAttr {
    /// The slot of the version `id`. `None` if that is `null` and there is no such version; other ids are not checked.
    fn slot_of(&self, id: &str) -> Option<String> {
        if id == NULL_VERSION {
            self.null.map(|order| slot(order, NULL_VERSION))
        } else {
            Some(id.to_owned())
        }
    }
}

impl Head {
    /// What the version adds to the totals.
    fn counted(&self) -> Stats {
        if self.marker { Stats::default() } else { Stats { objects: 1, bytes: self.size } }
    }

    /// The id of this version.
    pub fn version_id(&self) -> &str {
        if self.version.is_empty() { NULL_VERSION } else { &self.version }
    }

    /// The tails that hold its data. `inline` is the data in the RADOS object of the head.
    pub(super) fn tails(&self, name: &str, inline: &[u8]) -> Result<Vec<Tails>> {
        Ok(match &self.data {
            DataLocation::Inline => Vec::new(),
            DataLocation::Tails(tails) => vec![tails.clone()],
            DataLocation::Parts(_) => {
                let manifest = record::decode::<Manifest>(name, inline)?;
                manifest.parts.into_iter().map(|part| part.tails).collect()
            }
        })
    }

    /// Fails with [`Error::DeleteMarker`] if this is a delete marker. `named` tells whether the request named the version.
    pub(crate) fn check_not_delete_marker(&self, named: bool) -> Result<()> {
        if self.marker {
            let (version, mtime_ns) = (self.version_id().to_owned(), self.mtime_ns);
            return Err(Error::DeleteMarker { version, mtime_ns, named });
        }
        Ok(())
    }
}

/// Whether an operation failed because the head was changed since it was read.
fn is_overtaken(error: &nacre_client::Error) -> bool {
    matches!(error.errno(), Errno::ERANGE | Errno::EOVERFLOW | Errno::EEXIST) || error.is_not_found()
}

async fn wait(attempt: u32) {
    tokio::time::sleep(READ_RETRY_DELAY * attempt).await;
}

/// A change of a head's versions, as the steps of one write.
#[derive(Default)]
struct VersionEdit {
    steps: Vec<Step>,
    set: Vec<(Bytes, Bytes)>,
    gone: Vec<Bytes>,
    versions: VersionsAttr,
}

impl VersionEdit {
    fn of(versions: VersionsAttr) -> VersionEdit {
        VersionEdit { versions, ..VersionEdit::default() }
    }

    fn add_version(&mut self, slot: &str, stored: &StoredVersion) {
        self.set.push((head_key(slot), record::encode(&stored.head)));
        if !stored.data.is_empty() {
            self.set.push((data_key(slot), stored.data.clone()));
        }
        self.versions.held.add(stored.head.counted());
    }

    fn remove(&mut self, slot: &str, head: &Head) {
        self.gone.extend([head_key(slot), data_key(slot)]);
        self.versions.held.subtract(head.counted());
        if head.version == NULL_VERSION {
            self.versions.null = None;
        }
    }

    /// Makes a version the current one.
    fn set_current(&mut self, stored: &StoredVersion) {
        self.steps.extend(super::head_write_steps(&stored.head, [stored.data.clone()]));
    }

    /// The steps, and the totals of all versions.
    fn into_steps(mut self) -> (Vec<Step>, Stats) {
        self.steps.push(Step::SetAttr(VERSIONS, record::encode(&self.versions)));
        self.finish();
        (self.steps, self.versions.held)
    }

    /// The steps that turn the head into a tombstone, because its last version is removed.
    fn into_tombstone_steps(mut self) -> Vec<Step> {
        self.steps = tombstone_steps(true);
        self.finish();
        self.steps
    }

    fn finish(&mut self) {
        if !self.gone.is_empty() {
            self.steps.push(Step::OmapRemove(std::mem::take(&mut self.gone)));
        }
        if !self.set.is_empty() {
            self.steps.push(Step::OmapSet(std::mem::take(&mut self.set)));
        }
    }
}

/// Adds a version to an object in a bucket with versions, or replaces the version `null`.
pub(super) async fn add(
    gateway: &Arc<Gateway>,
    put: PutOp,
    (op, events): (Option<IndexOp>, ChangeEvents),
    data: Bytes,
) -> Result<Head> {
    let name = head_name(&put.bucket, &put.key);
    let prepare = async {
        match op {
            Some(op) => Ok(op),
            None => {
                let intent = PrepareIntent { events, ..PrepareIntent::default() };
                IndexOp::prepare(gateway, &put.bucket, (&put.key, &put.head.tag), intent).await
            }
        }
    };
    let (op, state) = futures::join!(prepare, gateway.head_state(&name));
    let mut op = op?;
    let added = async { commit_version(gateway, &put, &mut op, &name, (state?, &data)).await };
    let added = added.await;
    op.resolve(added).await
}

async fn commit_version(
    gateway: &Arc<Gateway>,
    put: &PutOp,
    op: &mut IndexOp,
    name: &str,
    (state, data): (HeadState, &Bytes),
) -> Result<Committed<Head>> {
    let suspended = put.bucket.versioning == Versioning::Suspended;
    let mut turn = CommitGuard::acquire(gateway, name).await;
    let is_current = turn.is_current(state.version());
    let mut known = Some(state).filter(|_| is_current);
    let mut tried = None;
    loop {
        let state = match known.take() {
            Some(state) => state,
            None => match turn.read_head(op).await? {
                HeadRead::Committed(evidence) => return made(tried, *evidence),
                HeadRead::State(state) => *state,
            },
        };
        let base = state.base();
        let mut head = put.head.clone();
        let edited = edit(gateway, name, state.object, &mut head, data, (&put.condition, suspended)).await?;
        // The head changed while its versions were read.
        let Some((edit, replaced)) = edited else {
            turn.retry().await?;
            continue;
        };
        op.set_replaced_tails(replaced).await?;
        let (steps, held) = edit.into_steps();
        let (listed, subject) = (head.listed(Some(held)), op.subject_of(&head, head.version_id()));
        let new = ListingUpdate::Object(&listed, None);
        let commit = commit::write(op.change(&subject), &base, new, Vec::new(), steps);
        if let Some(evidence) = turn.commit(op, commit).await? {
            return Ok((head, evidence, subject));
        }
        tried = Some((head, subject));
    }
}

/// The result of a change of a version whose attempt `tried` took effect, although it was refused.
fn made(tried: Option<(Head, Subject)>, evidence: CommitRecord) -> Result<Committed<Head>> {
    let (head, subject) = tried.ok_or_else(|| Error::Contended(evidence.tag.clone()))?;
    Ok((head, evidence, subject))
}

/// The steps that make `head` the newest version, given the current state, and the tails that become unreferenced. `None` if the
/// head changed meanwhile. Fails if a locked version would be replaced: a change that was prepared while the bucket was suspended
/// may get here long after that.
async fn edit(
    gateway: &Gateway,
    name: &str,
    current: Option<CurrentObject>,
    head: &mut Head,
    data: &Bytes,
    (condition, null): (&WriteCondition, bool),
) -> Result<Option<(VersionEdit, Vec<Tails>)>> {
    let there = current.as_ref().filter(|current| !current.head.marker);
    condition.check(there.map(|current| (&current.head, current.mark)))?;
    let mut edit = VersionEdit::default();
    let mut replaced = Vec::new();
    match current {
        None => {}
        Some(CurrentObject { versions: Some(versions), version, .. }) => {
            edit.versions = versions;
            if null && let Some(order) = versions.null {
                let slot = slot(order, NULL_VERSION);
                let Some(old) = gateway.stored(name, version, &slot).await? else { return Ok(None) };
                old.head.check_lock(false)?;
                replaced = old.head.tails(name, &old.data)?;
                edit.remove(&slot, &old.head);
            }
        }
        Some(CurrentObject { head: old, versions: None, version, .. }) => {
            let Some(data) = gateway.inline(name, &old, version).await? else { return Ok(None) };
            if null {
                old.check_lock(false)?;
                replaced = old.tails(name, &data)?;
            } else {
                let old = Head { version: NULL_VERSION.to_owned(), ..old };
                edit.versions = VersionsAttr { last: 1, null: Some(1), held: Stats::default() };
                edit.add_version(&slot(1, NULL_VERSION), &StoredVersion { head: old, data });
            }
        }
    }
    edit.versions.last += 1;
    let order = edit.versions.last;
    let slot = slot(order, if null { NULL_VERSION } else { &head.tag });
    if null {
        NULL_VERSION.clone_into(&mut head.version);
        edit.versions.null = Some(order);
    } else {
        head.version.clone_from(&slot);
    }
    let stored = StoredVersion { head: head.clone(), data: data.clone() };
    edit.add_version(&slot, &stored);
    edit.set_current(&stored);
    Ok(Some((edit, replaced)))
}

/// The result of a change of a version's attributes.
struct Modified {
    head: Head,
    steps: Vec<Step>,
}

/// The place of a version in its head's omap.
pub(super) struct VersionSlot(String);

impl VersionSlot {
    /// The steps that replace the version in this slot, and the data that the head has of it. If the version is the current one,
    /// they also replace the head's attributes and data.
    pub(super) fn replace(&self, head: &Head, data: Bytes, is_current: bool) -> Vec<Step> {
        let mut steps = if is_current { super::head_write_steps(head, [data.clone()]) } else { Vec::new() };
        let mut set = vec![(head_key(&self.0), record::encode(head))];
        if data.is_empty() {
            steps.push(Step::OmapRemove(vec![data_key(&self.0)]));
        } else {
            set.push((data_key(&self.0), data));
        }
        steps.push(Step::OmapSet(set));
        steps
    }
}

/// The result of looking up a version in a head.
pub(super) enum VersionLookup {
    /// The head changed since it was read.
    Changed,
    /// There is no such version.
    Absent,
    Version(VersionSlot, Box<Head>),
}

/// The version id that events name: empty if the bucket has no versions.
pub(super) fn event_version_id<'a>(bucket: &Bucket, head: &'a Head) -> &'a str {
    if bucket.versioning == Versioning::Off { "" } else { head.version_id() }
}

/// The reply to a read that asserted a version; `None` if the head has another version by now.
fn unless_changed(reply: nacre_client::Result<OpReply>) -> Result<Option<OpReply>> {
    match reply.and_then(|reply| reply.success()) {
        Err(error) if is_overtaken(&error) => Ok(None),
        reply => Ok(Some(reply?)),
    }
}

impl Gateway {
    /// The data in a head with this RADOS version; `None` if the head has another version by now.
    pub(super) async fn inline(&self, name: &str, head: &Head, version: u64) -> Result<Option<Bytes>> {
        let mut op = ReadOp::new();
        // A read of length 0 would read everything.
        op.assert_version(version).read(0, head.inline_bytes().max(1));
        let reply = unless_changed(self.pools.data.operate_read(name, op).await)?;
        reply.map(|mut reply| Ok(reply.output(1)?)).transpose()
    }

    /// The version in a slot of a head with this RADOS version; `None` if there is none, or if the head has another version by
    /// now.
    async fn stored(&self, name: &str, version: u64, slot: &str) -> Result<Option<StoredVersion>> {
        let mut op = ReadOp::new();
        op.assert_version(version).omap_get_vals_by_keys(vec![head_key(slot), data_key(slot)]);
        let reply = unless_changed(self.pools.data.operate_read(name, op).await)?;
        let Some(mut reply) = reply else { return Ok(None) };
        decode_version(name, slot, reply.pairs(1)?)
    }

    /// Looks up the version `id` of an object whose head was read.
    pub(super) async fn lookup_version(
        &self,
        name: &str,
        current: &CurrentObject,
        id: &str,
    ) -> Result<VersionLookup> {
        let slot = current.versions.and_then(|versions| versions.slot_of(id));
        let Some(slot) = slot else { return Ok(VersionLookup::Absent) };
        let mut op = ReadOp::new();
        op.assert_version(current.version).omap_get_vals_by_keys(vec![head_key(&slot)]);
        let reply = unless_changed(self.pools.data.operate_read(name, op).await)?;
        let Some(mut reply) = reply else { return Ok(VersionLookup::Changed) };
        Ok(match decode_version(name, &slot, reply.pairs(1)?)? {
            Some(StoredVersion { head, .. }) => VersionLookup::Version(VersionSlot(slot), Box::new(head)),
            None => VersionLookup::Absent,
        })
    }

    /// The version `id` of an object, and the part of its data that is in the head.
    pub(super) async fn version(&self, bucket: &Bucket, key: &str, id: &str) -> Result<(Head, Bytes)> {
        check_id(id)?;
        let name = head_name(bucket, key);
        for attempt in 0..ATTEMPTS {
            let current = self.current(bucket, key).await?.ok_or(Error::NoSuchVersion)?;
            let Some(versions) = current.versions else {
                if id != NULL_VERSION {
                    return Err(Error::NoSuchVersion);
                }
                match self.inline(&name, &current.head, current.version).await? {
                    Some(data) => return Ok((current.head, data)),
                    None => {
                        wait(attempt).await;
                        continue;
                    }
                }
            };
            let slot = versions.slot_of(id).ok_or(Error::NoSuchVersion)?;
            let wanted = vec![head_key(&slot), data_key(&slot)];
            let found = match self.pools.data.omap_get_vals_by_keys(&name, wanted).await {
                Err(error) if error.is_not_found() => return Err(Error::NoSuchVersion),
                found => found?,
            };
            match decode_version(&name, &slot, found)? {
                Some(StoredVersion { head, data }) => return Ok((head, data)),
                // Another version became `null` meanwhile.
                None if id == NULL_VERSION => wait(attempt).await,
                None => return Err(Error::NoSuchVersion),
            }
        }
        Err(Error::Contended(key.to_owned()))
    }

    /// Opens a version for reading; without an id, the newest one.
    pub async fn open_version(&self, bucket: &Bucket, key: &str, id: Option<&str>) -> Result<ObjectReader> {
        self.open_range_of_version(bucket, key, id, None).await
    }

    /// Like [`Gateway::open_version`]. If `range` is given, the caller reads nothing else.
    pub async fn open_range_of_version(
        &self,
        bucket: &Bucket,
        key: &str,
        id: Option<&str>,
        range: Option<Range<u64>>,
    ) -> Result<ObjectReader> {
        let reader = match (id, range) {
            (None, None) => self.open_object(bucket, key).await?,
            (None, Some(range)) => self.open_range(bucket, key, range).await?,
            (Some(id), _) => {
                let (head, data) = self.version(bucket, key, id).await?;
                let pool = self.data_pool(&head).await?;
                ObjectReader::new(head_name(bucket, key), head, data, pool)?
            }
        };
        reader.head.check_not_delete_marker(id.is_some())?;
        Ok(reader)
    }

    /// Like [`Gateway::open_version`], for a caller that needs only the head.
    pub async fn open_head(&self, bucket: &Bucket, key: &str, id: Option<&str>) -> Result<ObjectReader> {
        let head = match id {
            None => self.head(bucket, key).await?.ok_or(Error::NoSuchKey)?.0,
            Some(id) => self.version(bucket, key, id).await?.0,
        };
        head.check_not_delete_marker(id.is_some())?;
        Ok(ObjectReader::head_only(head, self.pools.data.clone()))
    }

    /// The head of a version; without an id, that of the newest one.
    pub async fn head_of_version(&self, bucket: &Bucket, key: &str, id: Option<&str>) -> Result<Head> {
        let head = match id {
            None => self.head(bucket, key).await?.ok_or(Error::NoSuchKey)?.0,
            Some(id) => self.version(bucket, key, id).await?.0,
        };
        head.check_not_delete_marker(id.is_some())?;
        Ok(head)
    }

    /// Changes attributes of a version, but neither its data nor what a listing shows of it; without an id, of the newest one.
    /// `change` may refuse. Returns the version's head after the change.
    pub async fn modify_version(
        self: &Arc<Gateway>,
        bucket: &Arc<Bucket>,
        (key, id): (&str, Option<&str>),
        (cause, types): (&Cause, &'static [EventType]),
        mut change: impl FnMut(&mut Head) -> Result<()>,
    ) -> Result<Head> {
        let name = head_name(bucket, key);
        id.map_or(Ok(()), check_id)?;
        let (events, tag) = (self.change_events(bucket, key, types, cause).await?, self.new_tag());
        let intent = PrepareIntent { events, ..PrepareIntent::default() };
        let prepare = IndexOp::prepare(self, bucket, (key, &tag), intent);
        let (op, state) = futures::join!(prepare, self.head_state(&name));
        let mut op = op?;
        let modified =
            async { self.commit_modification(bucket, (&name, id), &mut op, state?, &mut change).await };
        let modified = modified.await;
        op.resolve(modified).await
    }

    async fn commit_modification(
        self: &Arc<Gateway>,
        bucket: &Bucket,
        (name, id): (&str, Option<&str>),
        op: &mut IndexOp,
        state: HeadState,
        change: &mut impl FnMut(&mut Head) -> Result<()>,
    ) -> Result<Committed<Head>> {
        let mut turn = CommitGuard::acquire(self, name).await;
        let is_current = turn.is_current(state.version());
        let mut known = Some(state).filter(|_| is_current);
        let mut tried = None;
        loop {
            let state = match known.take() {
                Some(state) => state,
                None => match turn.read_head(op).await? {
                    HeadRead::Committed(evidence) => return made(tried, *evidence),
                    HeadRead::State(state) => *state,
                },
            };
            let base = state.base();
            let absent = if id.is_some() { Error::NoSuchVersion } else { Error::NoSuchKey };
            let current = state.object.ok_or(absent)?;
            let Modified { head, steps } = self.modified(name, id, current, change).await?;
            let subject = op.subject_of(&head, event_version_id(bucket, &head));
            let commit =
                commit::write(op.change(&subject), &base, ListingUpdate::Unchanged, Vec::new(), steps);
            if let Some(evidence) = turn.commit(op, commit).await? {
                return Ok((head, evidence, subject));
            }
            tried = Some((head, subject));
        }
    }

    /// The head of a version after a change, and the steps that make the change.
    async fn modified(
        &self,
        name: &str,
        id: Option<&str>,
        current: CurrentObject,
        change: &mut impl FnMut(&mut Head) -> Result<()>,
    ) -> Result<Modified> {
        let CurrentObject { head: newest, versions, .. } = current;
        let shown = id.is_none_or(|id| id == newest.version_id());
        let Some(versions) = versions else {
            if !shown {
                return Err(Error::NoSuchVersion);
            }
            let mut head = newest;
            change(&mut head)?;
            let steps = vec![Step::SetAttr(HEAD, record::encode(&head))];
            return Ok(Modified { head, steps });
        };
        let slot = versions.slot_of(id.unwrap_or(newest.version_id())).ok_or(Error::NoSuchVersion)?;
        let mut head = if shown {
            newest
        } else {
            let found = self.pools.data.omap_get_vals_by_keys(name, vec![head_key(&slot)]).await;
            let found = match found {
                Err(error) if error.is_not_found() => return Err(Error::NoSuchVersion),
                found => decode_version(name, &slot, found?)?,
            };
            found.ok_or(Error::NoSuchVersion)?.head
        };
        head.check_not_delete_marker(id.is_some())?;
        change(&mut head)?;
        let encoded = record::encode(&head);
        let mut steps = Vec::new();
        if shown {
            steps.push(Step::SetAttr(HEAD, encoded.clone()));
        }
        steps.push(Step::OmapSet(vec![(head_key(&slot), encoded)]));
        Ok(Modified { head, steps })
    }

    /// At most `max` versions of an object after the version `after`, newest first, and whether there are more; `None` if
    /// the position of `after` is not known. An object that never had versions has one.
    pub(crate) async fn versions(
        &self,
        bucket: &Bucket,
        key: &str,
        after: Option<&str>,
        max: usize,
    ) -> Result<Option<(Vec<Head>, bool)>> {
        let name = head_name(bucket, key);
        let Some(current) = self.current(bucket, key).await? else { return Ok(Some((Vec::new(), false))) };
        let Some(versions) = current.versions else {
            return Ok(Some((if after.is_none() { vec![current.head] } else { Vec::new() }, false)));
        };
        let mut behind = match after {
            None => Bytes::new(),
            Some(id) => match versions.slot_of(id) {
                Some(slot) => head_key(&slot),
                // The version `null` is gone.
                None => return Ok(None),
            },
        };
        let mut heads = Vec::new();
        loop {
            let room = (max - heads.len()) as u64;
            let (page, more) = self.versions_after(&name, &mut behind, room.min(PAGE)).await?;
            heads.extend(page);
            if !more || heads.len() >= max {
                return Ok(Some((heads, more)));
            }
        }
    }

    /// At most `max` versions of an object with versions, newest first, behind the omap key `behind`, which becomes that of
    /// the last one. Returns whether there are more.
    async fn versions_after(&self, name: &str, behind: &mut Bytes, max: u64) -> Result<(Vec<Head>, bool)> {
        let page = match self.pools.data.omap_get_vals(name, behind.clone(), "v", max).await {
            Err(error) if error.is_not_found() => return Ok((Vec::new(), false)),
            page => page?,
        };
        let mut heads = Vec::with_capacity(page.entries.len());
        for (key, value) in &page.entries {
            heads.push(record::decode::<Head>(name, value)?);
            *behind = key.clone();
        }
        Ok((heads, page.more))
    }

    /// All tails of an object, in all its versions.
    pub(crate) async fn referenced_tails(&self, bucket: &Bucket, key: &str) -> Result<Vec<Tails>> {
        let name = head_name(bucket, key);
        let mut asked = MIN_READ_BYTES;
        let (current, data) = loop {
            let mut op = ReadOp::new();
            op.get_xattrs().read(0, asked);
            let reply = self.pools.data.operate_read(&name, op).await.and_then(|reply| reply.success());
            let mut reply = match reply {
                Err(error) if error.is_not_found() => return Ok(Vec::new()),
                reply => reply?,
            };
            let attributes = reply.pairs(0)?;
            let Some(current) = CurrentObject::decode(&name, reply.version, &attributes)? else {
                return Ok(Vec::new());
            };
            let data = reply.output(1)?;
            // Of the data, only a manifest is needed.
            let is_cut = matches!(current.head.data, DataLocation::Parts(_)) && data.len() as u64 == asked;
            if !is_cut || asked == HEAD_BYTES {
                break (current, data);
            }
            asked = HEAD_BYTES;
        };
        // If the object has versions, the same tails may be listed again below.
        let mut all = current.head.tails(&name, &data)?;
        if current.versions.is_none() {
            return Ok(all);
        }
        let mut after = Bytes::new();
        loop {
            let page = match self.pools.data.omap_get_vals(&name, after.clone(), "v", PAGE).await {
                Err(error) if error.is_not_found() => return Ok(all),
                page => page?,
            };
            for (key, value) in &page.entries {
                let head = record::decode::<Head>(&name, value)?;
                let data = match head.data {
                    DataLocation::Parts(_) => {
                        let wanted = Bytes::from([b"d", &key[1..]].concat());
                        let found = self.pools.data.omap_get_vals_by_keys(&name, vec![wanted.clone()]).await;
                        match found {
                            Err(error) if error.is_not_found() => continue,
                            found => found?.remove(&wanted),
                        }
                    }
                    _ => Some(Bytes::new()),
                };
                // The version was removed meanwhile; its removal discards its tails.
                let Some(data) = data else { continue };
                all.extend(head.tails(&name, &data)?);
            }
            match page.entries.last() {
                Some((key, _)) if page.more => after = key.clone(),
                _ => return Ok(all),
            }
        }
    }

    /// The version that the write with this tag made, with its manifest, if it exists.
    pub(crate) async fn version_by_tag(
        &self,
        bucket: &Bucket,
        key: &str,
        tag: &str,
    ) -> Result<Option<ObjectReader>> {
        let name = head_name(bucket, key);
        let Some(current) = self.current(bucket, key).await? else { return Ok(None) };
        let mut found = Some(current.head).filter(|head| head.tag == tag);
        // By their places: the version `null` that ends a page may be removed before the next page is read.
        let (mut behind, mut more) = (Bytes::new(), current.versions.is_some());
        while found.is_none() && more {
            let heads;
            (heads, more) = self.versions_after(&name, &mut behind, PAGE).await?;
            found = heads.into_iter().find(|head| head.tag == tag);
        }
        let Some(head) = found else { return Ok(None) };
        match self.open_version(bucket, key, Some(head.version_id())).await {
            Ok(reader) if reader.head.tag == tag => Ok(Some(reader)),
            Ok(_) | Err(Error::NoSuchKey | Error::NoSuchVersion) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Decodes the version in a slot from entries of a head's omap.
fn decode_version(
    name: &str,
    slot: &str,
    mut found: BTreeMap<Bytes, Bytes>,
) -> Result<Option<StoredVersion>> {
    let Some(head) = found.remove(&head_key(slot)) else { return Ok(None) };
    let head = record::decode::<Head>(name, &head)?;
    Ok(Some(StoredVersion { head, data: found.remove(&data_key(slot)).unwrap_or_default() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_versions_come_first() {
        let tag = "0123456789abcdef0123456789abcdef";
        assert!(slot(2, tag) < slot(1, NULL_VERSION));
        assert!(slot(u64::from(u32::MAX), NULL_VERSION) < slot(9, tag));
        check_id(&slot(7, tag)).unwrap();
        check_id(NULL_VERSION).unwrap();
        for wrong in ["", "NULL", "x", &slot(7, NULL_VERSION), &slot(7, tag).to_uppercase()] {
            assert!(check_id(wrong).is_err(), "{wrong}");
        }
    }
}
