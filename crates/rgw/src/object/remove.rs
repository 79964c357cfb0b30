//! Removes objects. In a bucket with versions, hides them behind delete markers instead.

use super::commit::{CommitGuard, HeadRead};
use super::index_op::{Committed, PrepareIntent, subject_of};
use super::{BufferList, IndexOp, ObjectWriter, PutOp, WriteCondition};
use crate::bucket::{Bucket, Versioning};
use crate::error::{Error, Result};
use crate::notifications::{Cause, ChangeEvents};
use crate::spawn::spawn_boxed;
use crate::stored::{ETAG, HEAD, Head, HeadState, VERSIONS, head_name};
use crate::time::now_ns;
use nacre_index::commit;
use nacre_index::op::Step;
use nacre_index::record::EventSubject;
use nacre_topics::event::EventType;
use std::sync::Arc;

/// The result of a removal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemovalResult {
    /// Whether there was an object. Always true if a delete marker was made.
    pub existed: bool,
    /// The id of the delete marker that hides the object now.
    pub marker: Option<String>,
}

/// The types of events that a removal may have.
#[derive(Clone, Copy, Debug)]
pub struct RemovalEventTypes {
    /// If the object or a version is removed.
    pub removed: &'static [EventType],
    /// If a delete marker is made.
    pub(crate) marker: &'static [EventType],
}

impl RemovalEventTypes {
    /// For a client's request.
    pub const REQUEST: RemovalEventTypes = RemovalEventTypes {
        removed: &[EventType::ObjectRemovedDelete],
        marker: &[EventType::ObjectRemovedDeleteMarkerCreated],
    };
    /// For a lifecycle rule for current versions.
    pub(crate) const EXPIRATION: RemovalEventTypes = RemovalEventTypes {
        removed: &[EventType::ObjectExpirationCurrent, EventType::LifecycleExpirationDelete],
        marker: &[EventType::ObjectExpirationCurrent, EventType::LifecycleExpirationDeleteMarkerCreated],
    };
}

/// The steps that turn an object's head into a tombstone: they remove its data and attributes.
pub(super) fn tombstone_steps(has_versions: bool) -> Vec<Step> {
    let mut steps = vec![Step::Truncate(0), Step::RemoveAttr(HEAD), Step::RemoveAttr(ETAG)];
    if has_versions {
        steps.push(Step::RemoveAttr(VERSIONS));
    }
    steps
}

impl ObjectWriter {
    /// Removes an object. In a bucket with versions, hides it behind a delete marker of `owner` instead.
    pub async fn remove_object(
        self: &Arc<ObjectWriter>,
        bucket: &Arc<Bucket>,
        (key, owner): (&str, &str),
        condition: WriteCondition,
        (cause, types): (&Cause, RemovalEventTypes),
    ) -> Result<RemovalResult> {
        let tag = self.connection.new_tag();
        if bucket.versioning != Versioning::Off {
            let head =
                Head { tag, marker: true, owner: owner.to_owned(), mtime_ns: now_ns(), ..Head::default() };
            let events = self.notifications.change_events(bucket, key, types.marker, cause).await?;
            let put = PutOp {
                bucket: Arc::clone(bucket),
                key: key.to_owned(),
                head,
                condition,
                cause: cause.clone(),
                types: types.marker,
            };
            // Boxed to keep the future of removals without versions small.
            let head = Box::pin(put.commit(self, (None, events), BufferList::default(), None, None)).await?;
            return Ok(RemovalResult { existed: true, marker: Some(head.version) });
        }
        let events = self.notifications.change_events(bucket, key, types.removed, cause).await?;
        let (writer, bucket, key) = (Arc::clone(self), Arc::clone(bucket), key.to_owned());
        // A separate task, which completes even if the client disconnects.
        let removal =
            spawn_boxed(async move { writer.remove_plain(&bucket, (&key, &tag), condition, events).await });
        let there = removal.await.map_err(Error::task_failed("the removal of an object"))??;
        Ok(RemovalResult { existed: there, marker: None })
    }

    /// Removes an object in a bucket without versions. Returns whether there was one.
    async fn remove_plain(
        self: &Arc<ObjectWriter>,
        bucket: &Arc<Bucket>,
        (key, tag): (&str, &str),
        condition: WriteCondition,
        events: ChangeEvents,
    ) -> Result<bool> {
        let name = head_name(&bucket.id, key);
        let mut state = None;
        let mut subject = EventSubject::default();
        // Filters are evaluated for the removed version, also after a crash, so the prepare records its metadata and tags. If
        // most objects have none, the head is read only if the index does not show that this object has none.
        if events.wants_attributes() && !self.commits.expects_no_attributes(bucket) {
            let read = self.objects.head_state(&name).await?;
            condition.check(read.object.as_ref().map(|object| (&object.head, object.mark)))?;
            let Some(object) = &read.object else { return Ok(false) };
            subject = subject_of(&events, &object.head, "");
            state = Some(read);
        }
        let intent = PrepareIntent { slot: true, events, subject, ..PrepareIntent::default() };
        let mut op = IndexOp::prepare(self, bucket, (key, tag), intent).await?;
        let committed = commit_removal(self, &mut op, &name, &condition, state).await;
        Ok(op.resolve_optional(committed).await?.is_some())
    }
}

/// Commits a removal; `None` if there is nothing to remove.
async fn commit_removal(
    writer: &Arc<ObjectWriter>,
    op: &mut IndexOp,
    name: &str,
    condition: &WriteCondition,
    mut state: Option<HeadState>,
) -> Result<Option<Committed<()>>> {
    let mut turn = CommitGuard::acquire(writer, name).await;
    let mut guess = match state {
        Some(_) => None,
        None => turn.take_assumed_head(op.view()).or_else(|| op.view().assume_for_removal()),
    };
    guess = guess.filter(|base| condition.is_decided_on(base));
    let mut tried = EventSubject::default();
    loop {
        let told = guess.take().and_then(|base| {
            let listed = op.listing_for_event(&base)?;
            let subject =
                EventSubject { size: listed.size, etag: listed.etag.clone(), ..EventSubject::default() };
            Some((base, subject))
        });
        let (base, guards, steps, subject) = match told {
            Some((base, subject)) => {
                op.record_removed_is_plain(true);
                (base, condition.guards(), tombstone_steps(false), subject)
            }
            None => {
                let read = match state.take() {
                    Some(read) => read,
                    None => match turn.read_head(op).await? {
                        HeadRead::Committed(evidence) => return Ok(Some(((), *evidence, tried))),
                        HeadRead::State(read) => *read,
                    },
                };
                condition.check(read.object.as_ref().map(|object| (&object.head, object.mark)))?;
                let Some(object) = &read.object else { return Ok(None) };
                let subject = op.subject_of(&object.head, "");
                op.record_removed_is_plain(subject.attributes.is_none());
                op.set_removal_subject(&subject).await?;
                (read.assumed_head(), Vec::new(), tombstone_steps(false), subject)
            }
        };
        let removal = commit::remove(op.change(&subject), &base, guards, steps);
        let built = match removal {
            Ok(commit::RemovalStep::Nothing) => return Ok(None),
            Ok(commit::RemovalStep::ReadHead) => continue,
            Ok(commit::RemovalStep::Commit(commit)) => Ok(*commit),
            Err(error) => Err(error),
        };
        if let Some(evidence) = turn.commit(op, built).await? {
            return Ok(Some(((), evidence, subject)));
        }
        tried = subject;
    }
}
