//! Versions of an object. All of them are in the omap of its head. The newest one is also in the head's attributes and data, so
//! that a read of the current object need not know about versions (docs/format/rgw.md).
//!
//! Every change is one compare-and-swap of the head. It is built again on the new state if another change was faster. An object
//! from before its bucket had versions becomes the version `null` with the first write that makes another version.

mod removal;

use super::commit::{CommitGuard, HeadRead};
use super::index_op::{Committed, PrepareIntent};
use super::remove::tombstone_steps;
use super::{IndexOp, ObjectWriter, PutOp, WriteCondition};
use crate::bucket::{Bucket, Versioning};
use crate::error::{Error, Result};
use crate::notifications::{Cause, ChangeEvents};
use crate::record;
use crate::stored::versions::{
    NULL_VERSION, StoredVersion, VersionSlot, VersionsAttr, check_id, data_key, decode_version, head_key,
    slot,
};
use crate::stored::{CurrentObject, HEAD, Head, HeadState, VERSIONS, head_name};
use bytes::Bytes;
use nacre_index::commit::{self, ListingUpdate};
use nacre_index::op::Step;
use nacre_index::record::{CommitRecord, EventSubject, Stats, Tails};
use nacre_topics::event::EventType;
use std::sync::Arc;

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
    writer: &Arc<ObjectWriter>,
    put: PutOp,
    (op, events): (Option<IndexOp>, ChangeEvents),
    data: Bytes,
) -> Result<Head> {
    let name = head_name(&put.bucket.id, &put.key);
    let prepare = async {
        match op {
            Some(op) => Ok(op),
            None => {
                let intent = PrepareIntent { events, ..PrepareIntent::default() };
                IndexOp::prepare(writer, &put.bucket, (&put.key, &put.head.tag), intent).await
            }
        }
    };
    let (op, state) = futures::join!(prepare, writer.objects.head_state(&name));
    let mut op = op?;
    let added = async { commit_version(writer, &put, &mut op, &name, (state?, &data)).await };
    let added = added.await;
    op.resolve(added).await
}

async fn commit_version(
    writer: &Arc<ObjectWriter>,
    put: &PutOp,
    op: &mut IndexOp,
    name: &str,
    (state, data): (HeadState, &Bytes),
) -> Result<Committed<Head>> {
    let suspended = put.bucket.versioning == Versioning::Suspended;
    let mut turn = CommitGuard::acquire(writer, name).await;
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
        let base = state.assumed_head();
        let mut head = put.head.clone();
        let edited = edit(writer, name, state.object, &mut head, data, (&put.condition, suspended)).await?;
        // The head changed while its versions were read.
        let Some((edit, replaced)) = edited else {
            turn.back_off().await?;
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
fn made(tried: Option<(Head, EventSubject)>, evidence: CommitRecord) -> Result<Committed<Head>> {
    let (head, subject) = tried.ok_or_else(|| Error::Contended(evidence.tag.clone()))?;
    Ok((head, evidence, subject))
}

/// The steps that make `head` the newest version, given the current state, and the tails that become unreferenced. `None` if the
/// head changed meanwhile. Fails if a locked version would be replaced: a change that was prepared while the bucket was suspended
/// may get here long after that.
async fn edit(
    writer: &ObjectWriter,
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
                let Some(old) = writer.objects.stored_version(name, version, &slot).await? else {
                    return Ok(None);
                };
                old.head.check_lock(false)?;
                replaced = old.head.tails(name, &old.data)?;
                edit.remove(&slot, &old.head);
            }
        }
        Some(CurrentObject { head: old, versions: None, version, .. }) => {
            let Some(data) = writer.objects.read_inline_data(name, &old, version).await? else {
                return Ok(None);
            };
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

/// The version id that events name: empty if the bucket has no versions.
pub(super) fn event_version_id<'a>(bucket: &Bucket, head: &'a Head) -> &'a str {
    if bucket.versioning == Versioning::Off { "" } else { head.version_id() }
}

impl ObjectWriter {
    /// Changes attributes of a version, but neither its data nor what a listing shows of it; without an id, of the newest one.
    /// `change` may refuse. Returns the version's head after the change.
    pub async fn modify_version(
        self: &Arc<ObjectWriter>,
        bucket: &Arc<Bucket>,
        (key, id): (&str, Option<&str>),
        (cause, types): (&Cause, &'static [EventType]),
        mut change: impl FnMut(&mut Head) -> Result<()>,
    ) -> Result<Head> {
        let name = head_name(&bucket.id, key);
        id.map_or(Ok(()), check_id)?;
        let (events, tag) =
            (self.notifications.change_events(bucket, key, types, cause).await?, self.connection.new_tag());
        let intent = PrepareIntent { events, ..PrepareIntent::default() };
        let prepare = IndexOp::prepare(self, bucket, (key, &tag), intent);
        let (op, state) = futures::join!(prepare, self.objects.head_state(&name));
        let mut op = op?;
        let modified =
            async { self.commit_modification(bucket, (&name, id), &mut op, state?, &mut change).await };
        let modified = modified.await;
        op.resolve(modified).await
    }

    async fn commit_modification(
        self: &Arc<ObjectWriter>,
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
            let base = state.assumed_head();
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
            let found = self.connection.pools.data.omap_get_vals_by_keys(name, vec![head_key(&slot)]).await;
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
}
