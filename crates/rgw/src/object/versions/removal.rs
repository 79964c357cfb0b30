//! The permanent removal of a version.

use super::super::commit::{CommitGuard, HeadRead};
use super::super::index_op::{self, Committed, PrepareIntent};
use super::super::remove::tombstone_steps;
use super::super::{IndexOp, ObjectWriter};
use super::{VersionEdit, event_version_id, made};
use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::notifications::{Cause, ChangeEvents};
use crate::spawn::spawn_boxed;
use crate::stored::versions::{
    NULL_VERSION, READ_ATTEMPTS, StoredVersion, check_id, data_key, decode_version, head_key, unless_changed,
    wait_before_retry,
};
use crate::stored::{Head, HeadState, head_name};
use nacre_client::ReadOp;
use nacre_index::commit::{self, ListingUpdate};
use nacre_index::op::Step;
use nacre_index::record::{ListingEntry, Tails};
use nacre_topics::event::EventType;
use std::sync::Arc;

/// A removal of a version.
struct VersionRemoval {
    /// The removed version.
    head: Head,
    /// Its tails, unless the index knows them.
    replaced: Vec<Tails>,
    /// What a listing shows of the object afterwards; `None` if this was the last version.
    listed: Option<ListingEntry>,
    steps: Vec<Step>,
}

/// The result of planning the removal of a version.
enum VersionRemovalPlan {
    /// The head changed while it was read.
    Changed,
    /// There is no such version.
    Absent,
    Version(Box<VersionRemoval>),
}

impl ObjectWriter {
    /// Removes a version permanently, unless `may` refuses, which is told whether the version is the newest. Returns the head of
    /// the removed version; `None` if there was none.
    pub async fn remove_version(
        self: &Arc<ObjectWriter>,
        bucket: &Arc<Bucket>,
        (key, id): (&str, &str),
        (cause, types): (&Cause, &'static [EventType]),
        may: impl Fn(&Head, bool) -> Result<()> + Send + Sync + 'static,
    ) -> Result<Option<Head>> {
        check_id(id)?;
        let events = self.notifications.change_events(bucket, key, types, cause).await?;
        let (writer, bucket, key, id) = (Arc::clone(self), Arc::clone(bucket), key.to_owned(), id.to_owned());
        // A separate task, which completes even if the client disconnects.
        let removal =
            spawn_boxed(async move { writer.try_remove_version(&bucket, (&key, &id), events, &may).await });
        removal.await.map_err(Error::task_failed("the removal of a version"))?
    }

    async fn try_remove_version(
        self: &Arc<ObjectWriter>,
        bucket: &Arc<Bucket>,
        (key, id): (&str, &str),
        events: ChangeEvents,
        may: &(impl Fn(&Head, bool) -> Result<()> + Sync),
    ) -> Result<Option<Head>> {
        let name = head_name(&bucket.id, key);
        // The prepare records what is removed.
        let mut attempt = 0;
        let (state, removal) = loop {
            let state = self.objects.head_state(&name).await?;
            match self.plan_version_removal(&name, id, &state, may).await? {
                VersionRemovalPlan::Changed if attempt == READ_ATTEMPTS => {
                    return Err(Error::Contended(key.to_owned()));
                }
                VersionRemovalPlan::Changed => wait_before_retry(attempt).await,
                VersionRemovalPlan::Absent => return Ok(None),
                VersionRemovalPlan::Version(removal) => break (state, removal),
            }
            attempt += 1;
        };
        let subject = index_op::subject_of(&events, &removal.head, event_version_id(bucket, &removal.head));
        let replaced = removal.replaced.clone();
        let intent = PrepareIntent { slot: true, replaced, events, subject, ..PrepareIntent::default() };
        let mut op = IndexOp::prepare(self, bucket, (key, &self.connection.new_tag()), intent).await?;
        let removed = self.commit_version_removal(bucket, (&name, id), &mut op, (state, *removal), may).await;
        op.resolve_optional(removed).await
    }

    async fn commit_version_removal(
        self: &Arc<ObjectWriter>,
        bucket: &Bucket,
        (name, id): (&str, &str),
        op: &mut IndexOp,
        first: (HeadState, VersionRemoval),
        may: &(impl Fn(&Head, bool) -> Result<()> + Sync),
    ) -> Result<Option<Committed<Head>>> {
        let mut turn = CommitGuard::acquire(self, name).await;
        let is_current = turn.is_current(first.0.version());
        let mut known = Some(first).filter(|_| is_current);
        let mut tried = None;
        loop {
            let (state, removal) = match known.take() {
                Some(known) => known,
                None => {
                    let state = match turn.read_head(op).await? {
                        HeadRead::Committed(evidence) => return made(tried, *evidence).map(Some),
                        HeadRead::State(state) => *state,
                    };
                    match self.plan_version_removal(name, id, &state, may).await? {
                        VersionRemovalPlan::Changed => {
                            turn.back_off().await?;
                            continue;
                        }
                        VersionRemovalPlan::Absent => return Ok(None),
                        VersionRemovalPlan::Version(removal) => (state, *removal),
                    }
                }
            };
            let VersionRemoval { head, replaced, listed, steps } = removal;
            let subject = op.subject_of(&head, event_version_id(bucket, &head));
            op.set_replaced_tails(replaced).await?;
            op.set_event_subject(&subject).await?;
            let base = state.assumed_head();
            let commit = match &listed {
                Some(listed) => {
                    let new = ListingUpdate::Object(listed, None);
                    commit::write(op.change(&subject), &base, new, Vec::new(), steps).map(Some)
                }
                None => commit::remove(op.change(&subject), &base, Vec::new(), steps).map(|removal| {
                    match removal {
                        commit::RemovalStep::Commit(commit) => Some(*commit),
                        // Not reached: the head was read and is no tombstone.
                        commit::RemovalStep::Nothing | commit::RemovalStep::ReadHead => None,
                    }
                }),
            };
            let Some(commit) = commit.transpose() else { return Ok(None) };
            if let Some(evidence) = turn.commit(op, commit).await? {
                return Ok(Some((head, evidence, subject)));
            }
            tried = Some((head, subject));
        }
    }

    /// Plans the removal of a version from a head that was read.
    async fn plan_version_removal(
        &self,
        name: &str,
        id: &str,
        state: &HeadState,
        may: &(impl Fn(&Head, bool) -> Result<()> + Sync),
    ) -> Result<VersionRemovalPlan> {
        let Some(current) = &state.object else { return Ok(VersionRemovalPlan::Absent) };
        let Some(versions) = current.versions else {
            if id != NULL_VERSION {
                return Ok(VersionRemovalPlan::Absent);
            }
            may(&current.head, true)?;
            // The index knows the tails of an object without versions.
            let (head, replaced, listed) = (current.head.clone(), Vec::new(), None);
            let removal = VersionRemoval { head, replaced, listed, steps: tombstone_steps(false) };
            return Ok(VersionRemovalPlan::Version(Box::new(removal)));
        };
        let Some(slot) = versions.slot_of(id) else { return Ok(VersionRemovalPlan::Absent) };
        let mut read = ReadOp::new();
        read.assert_version(current.version)
            .omap_get_vals_by_keys(vec![head_key(&slot), data_key(&slot)])
            .omap_get_vals("", "v", 2);
        let reply = unless_changed(self.connection.pools.data.operate_read(name, read).await)?;
        let Some(mut reply) = reply else { return Ok(VersionRemovalPlan::Changed) };
        let (found, newest) = (reply.pairs(1)?, reply.omap_vals(2)?.entries);
        let Some(StoredVersion { head, data }) = decode_version(name, &slot, found)? else {
            return Ok(VersionRemovalPlan::Absent);
        };
        let is_newest = newest.first().is_some_and(|(key, _)| *key == head_key(&slot));
        may(&head, is_newest)?;
        let replaced = head.tails(name, &data)?;
        let mut edit = VersionEdit::of(versions);
        edit.remove(&slot, &head);
        if is_newest && newest.len() == 1 {
            let removal = VersionRemoval { head, replaced, listed: None, steps: edit.into_tombstone_steps() };
            return Ok(VersionRemovalPlan::Version(Box::new(removal)));
        }
        let mut shown = current.head.clone();
        if let (true, Some((next, _))) = (is_newest, newest.get(1)) {
            let next = String::from_utf8_lossy(&next[1..]).into_owned();
            let Some(next) = self.objects.stored_version(name, current.version, &next).await? else {
                return Ok(VersionRemovalPlan::Changed);
            };
            edit.set_current(&next);
            shown = next.head;
        }
        let (steps, held) = edit.into_steps();
        let listed = Some(shown.listed(Some(held)));
        Ok(VersionRemovalPlan::Version(Box::new(VersionRemoval { head, replaced, listed, steps })))
    }
}
