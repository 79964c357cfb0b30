//! A change of an object between its prepare in the index and its outcome.

use super::ObjectWriter;
use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::execute;
use crate::index::Prepared;
use crate::notifications::ChangeEvents;
use crate::shards::{RESHARD_POLL_INTERVAL, RESHARD_WAIT_TIMEOUT, open_state, shard_of};
use crate::stored::Head;
use crate::time::now_ns;
use crate::uploads::upload_name;
use nacre_index::commit::{AssumedHead, PreparedChange};
use nacre_index::finish::{ChangeOutcome, ResolvedChange};
use nacre_index::prepare::{self, KeyView, Prepare, PrepareBatch};
use nacre_index::record::{
    Attributes, ChangeEffect, CommitRecord, EventSubject, ListingEntry, Pending, Tails, VersionKind,
};
use nacre_index::seq::HeadIncarnation;
use std::sync::Arc;
use std::time::Instant;

/// What a change records in the index when it is prepared.
#[derive(Debug, Default)]
pub(super) struct PrepareIntent {
    /// Tails that the change may write.
    pub(super) tails: Option<Tails>,
    /// Tails that become unreferenced when the change is committed, in addition to those that the index knows.
    pub(super) replaced: Vec<Tails>,
    /// Tails of the parts of the upload that the change completes. Without an upload, tails of parts that the change may write.
    pub(super) parts: Vec<Tails>,
    /// The upload that the change completes.
    pub(super) upload: Option<String>,
    /// Whether the change may remove the head.
    pub(super) slot: bool,
    /// Whether the change creates or replaces the object and reads the head only if its commit is refused.
    pub(super) overwrites: bool,
    /// The events of the change.
    pub(super) events: ChangeEvents,
    /// The version that the events are about, as far as it is known.
    pub(super) subject: EventSubject,
}

/// A change that is prepared and has no outcome yet. Dropping it cancels the change, so no commit of it may be in flight then.
pub struct IndexOp {
    writer: Arc<ObjectWriter>,
    bucket: Arc<Bucket>,
    shard: String,
    change: Prepare,
    at: HeadIncarnation,
    view: KeyView,
    events: ChangeEvents,
    /// Whether the upload that the change completes may carry its mark.
    is_marked: bool,
    settled: bool,
}

impl IndexOp {
    /// Prepares a change in the index. Waits while the index is being resharded.
    pub(super) async fn prepare(
        writer: &Arc<ObjectWriter>,
        bucket: &Arc<Bucket>,
        (key, tag): (&str, &str),
        intent: PrepareIntent,
    ) -> Result<IndexOp> {
        let PrepareIntent { tails, replaced, parts, upload, slot, overwrites, events, subject } = intent;
        let expect_new = overwrites && writer.commits.expects_new(bucket, key);
        let (begun_ns, session) = (now_ns(), writer.connection.session().to_owned());
        let event = events.index_event(subject);
        let pending = Pending { begun_ns, session, tails, replaced, parts, upload, slot, event };
        let mut change = Prepare { key: key.to_owned(), tag: tag.to_owned(), pending, expect_new };
        let deadline = Instant::now() + RESHARD_WAIT_TIMEOUT;
        let mut current = Arc::clone(bucket);
        loop {
            let shard = shard_of(&current, key);
            match writer.index.preparer.prepare(&current, &shard, change.clone()).await {
                Ok(Prepared { slot, at, view }) => {
                    change.pending.slot = slot;
                    if overwrites && !expect_new {
                        writer.commits.record_is_new(bucket, view.entry.is_none());
                    }
                    let writer = Arc::clone(writer);
                    let (is_marked, settled) = (false, false);
                    return Ok(IndexOp {
                        writer,
                        bucket: current,
                        shard,
                        change,
                        at,
                        view,
                        events,
                        is_marked,
                        settled,
                    });
                }
                // The index may be being resharded.
                Err(Error::IndexBusy(_)) if Instant::now() < deadline => {}
                Err(error) => return Err(error),
            }
            tokio::time::sleep(RESHARD_POLL_INTERVAL).await;
            let now = writer.buckets.get(&bucket.name).await?;
            // It is another bucket with that name, or its state is another one and the change would have to be made differently.
            if now.id != bucket.id || open_state(&now) != open_state(bucket) {
                return Err(Error::IndexBusy(bucket.name.clone()));
            }
            current = Arc::new(now);
        }
    }

    /// The change, as its commit needs it. `subject` is what its event is about.
    pub(super) fn change<'a>(&'a self, subject: &'a EventSubject) -> PreparedChange<'a> {
        PreparedChange {
            key: &self.change.key,
            tag: &self.change.tag,
            prepared: self.at,
            slot: self.change.pending.slot,
            view: &self.view,
            subject: self.change.pending.event.as_ref().map(|_| subject),
        }
    }

    /// The tag of the change.
    pub(super) fn tag(&self) -> &str {
        &self.change.tag
    }

    /// What the shard had of the key when it was last read.
    pub(super) fn view(&self) -> &KeyView {
        &self.view
    }

    /// What the change's events say of a version, with metadata and tags if they may be needed.
    pub(super) fn subject_of(&self, head: &Head, version_id: &str) -> EventSubject {
        subject_of(&self.events, head, version_id)
    }

    /// Notes that the upload that the change completes may carry its mark from now on.
    pub(super) fn set_upload_marked(&mut self) {
        self.is_marked = true;
    }

    /// Records in the index which tails become unreferenced when the change is committed. No commit of it may be in flight.
    pub(super) async fn set_replaced_tails(&mut self, replaced: Vec<Tails>) -> Result<()> {
        if self.change.pending.replaced == replaced {
            return Ok(());
        }
        self.change.pending.replaced = replaced;
        self.amend().await
    }

    /// Records in the index what the change's event is about. No commit of it may be in flight.
    pub(super) async fn set_event_subject(&mut self, subject: &EventSubject) -> Result<()> {
        match &mut self.change.pending.event {
            Some(event) if event.subject != *subject => event.subject = subject.clone(),
            _ => return Ok(()),
        }
        self.amend().await
    }

    /// Like [`IndexOp::set_event_subject`], for a removed object. Its size and ETag need not be recorded, because the index entry has
    /// them.
    pub(super) async fn set_removal_subject(&mut self, subject: &EventSubject) -> Result<()> {
        let noted = self.change.pending.event.as_ref().map(|event| &event.subject.attributes);
        if noted == Some(&subject.attributes) { Ok(()) } else { self.set_event_subject(subject).await }
    }

    /// What the head's last change left, if that is all that the events of a removal need.
    pub(super) fn listing_for_event<'a>(&'a self, base: &'a AssumedHead) -> Option<&'a ListingEntry> {
        let listed = match base {
            AssumedHead::Absent => None,
            AssumedHead::Entry(_) => self.view.entry.as_ref()?.object.as_ref(),
            AssumedHead::Head(head) => match &head.last.as_ref()?.content {
                ChangeEffect::Object(listed) => Some(listed),
                ChangeEffect::Unchanged | ChangeEffect::Tombstone | ChangeEffect::Removed => None,
            },
        };
        listed.filter(|listed| !self.events.wants_attributes() || listed.kind == VersionKind::Plain)
    }

    /// Records whether a removed object had metadata or tags, if the removal may have an event.
    pub(super) fn record_removed_is_plain(&self, is_plain: bool) {
        if self.events.wants_attributes() {
            self.writer.commits.record_no_attributes(&self.bucket, is_plain);
        }
    }

    async fn amend(&mut self) -> Result<()> {
        let deadline = Instant::now() + RESHARD_WAIT_TIMEOUT;
        loop {
            let write = prepare::amend(&self.change);
            match execute::write(&self.writer.connection.pools.index, &self.shard, write).await {
                Err(error) if error.is_canceled() || error.is_not_found() => {}
                amended => return amended.map(drop),
            }
            if Instant::now() > deadline {
                return Err(Error::IndexBusy(self.bucket.name.clone()));
            }
            tokio::time::sleep(RESHARD_POLL_INTERVAL).await;
            self.follow().await?;
        }
    }

    /// Finds the shard that has the change's records now.
    async fn follow(&mut self) -> Result<()> {
        let now = self.writer.buckets.get(&self.bucket.name).await?;
        if now.id != self.bucket.id {
            return Err(Error::NoSuchBucket(self.bucket.name.clone()));
        }
        self.shard = shard_of(&now, &self.change.key);
        self.bucket = Arc::new(now);
        Ok(())
    }

    /// Records whether the key of a committed write was new, if the prepare did not read that.
    pub(super) fn record_key_is_new(&self, is_new: bool) {
        if self.change.expect_new {
            self.writer.commits.record_is_new(&self.bucket, is_new);
        }
    }

    /// Returns what a write may take the head for after its commit was refused. If the key was expected to be new, reads what the
    /// shard has of it. `None` if the head has to be read.
    pub(super) async fn next_assumed_head(&mut self) -> Result<Option<AssumedHead>> {
        if !self.change.expect_new {
            return Ok(None);
        }
        self.record_key_is_new(false);
        self.refresh_view().await?;
        Ok(self.view.assume_for_removal())
    }

    /// Reads what the shard has of the key again.
    pub(super) async fn refresh_view(&mut self) -> Result<()> {
        self.change.expect_new = false;
        let batch = PrepareBatch::new(open_state(&self.bucket), vec![self.change.clone()]);
        let Some(read) = batch.read() else { return Ok(()) };
        match execute::read(&self.writer.connection.pools.index, &self.shard, &read).await? {
            Some(reply) => {
                if let Some(view) = batch.views(&reply)?.pop() {
                    self.view = view?;
                }
            }
            None => self.follow().await?,
        }
        Ok(())
    }

    /// Finishes a committed change in the index, and pushes its immediate events.
    async fn complete(mut self, evidence: CommitRecord, subject: &EventSubject) {
        self.settled = true;
        if let (true, Some(id)) = (self.is_marked, &self.change.pending.upload) {
            // The upload is cleared up while the change is pending, so that recovery would do it after a crash.
            let kept: Vec<&Tails> = self.change.pending.parts.iter().collect();
            let clearing = self.writer.uploads.purge(&self.bucket, (&self.change.key, id), &kept);
            if let Err(error) = clearing.await {
                tracing::warn!(%error, id, "rgw: an upload that became an object stays until it is ended");
            }
        }
        let (key, tag, seq) = (self.change.key.clone(), self.change.tag.clone(), evidence.seq);
        let events = std::mem::take(&mut self.events);
        events.note_committed(&key, &tag, seq, subject);
        let writer = Arc::clone(&self.writer);
        self.finish(ChangeOutcome::Committed(Box::new(evidence))).await;
        writer.notifications.push_immediately(events, &key, &tag, seq, subject).await;
    }

    /// Cancels a change that was not committed and won't be.
    async fn cancel(mut self) {
        self.settled = true;
        self.roll_back().await;
    }

    /// Like [`IndexOp::cancel`], unless the change may have taken effect: then it stays pending.
    pub(super) async fn abort(mut self, error: &Error) {
        self.settled = true;
        if error.is_outcome_unknown() {
            self.events.note_in_doubt(&self.change.tag);
        } else {
            self.roll_back().await;
        }
    }

    /// Completes the change if it was committed, and fails it otherwise. Returns the result of the commit.
    pub(super) async fn resolve<T>(self, committed: Result<Committed<T>>) -> Result<T> {
        match committed {
            Ok((value, evidence, subject)) => {
                self.complete(evidence, &subject).await;
                Ok(value)
            }
            Err(error) => {
                self.abort(&error).await;
                Err(error)
            }
        }
    }

    /// Like [`IndexOp::resolve`], for a change that may find nothing to do; then it is cancelled.
    pub(super) async fn resolve_optional<T>(
        self,
        committed: Result<Option<Committed<T>>>,
    ) -> Result<Option<T>> {
        match committed.transpose() {
            Some(committed) => self.resolve(committed).await.map(Some),
            None => {
                self.cancel().await;
                Ok(None)
            }
        }
    }

    async fn roll_back(self) {
        if let (true, Some(id)) = (self.is_marked, &self.change.pending.upload) {
            // The upload may be completed again. The mark is removed while the change is pending: otherwise the upload would be
            // taken for one that became an object.
            let name = upload_name(&self.bucket, &self.change.key, id);
            if let Err(error) = self.writer.uploads.unmark(&name, &self.change.tag).await {
                tracing::warn!(%error, id, "rgw: an upload stays marked as being completed");
                return;
            }
        }
        self.finish(ChangeOutcome::Cancelled).await;
    }

    async fn finish(self, outcome: ChangeOutcome) {
        let (key, tag) = (self.change.key.clone(), self.change.tag.clone());
        let change = ResolvedChange { key, tag, outcome };
        self.writer.index.finisher.enqueue((&self.bucket.name, &self.shard), change.into()).await;
    }
}

/// A committed change: its result, the evidence of it, and the version that its event is about.
pub(super) type Committed<T> = (T, CommitRecord, EventSubject);

/// What events say of a version, with metadata and tags if they may be needed.
pub(super) fn subject_of(events: &ChangeEvents, head: &Head, version_id: &str) -> EventSubject {
    let has_some = !head.metadata.is_empty() || !head.tags.is_empty();
    let attributes = (has_some && events.wants_attributes())
        .then(|| Attributes { metadata: head.metadata.clone(), tags: head.tags.clone() });
    EventSubject { version_id: version_id.to_owned(), size: head.size, etag: head.etag.clone(), attributes }
}

impl Drop for IndexOp {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        let op = IndexOp {
            writer: Arc::clone(&self.writer),
            bucket: Arc::clone(&self.bucket),
            shard: std::mem::take(&mut self.shard),
            change: self.change.clone(),
            at: self.at,
            view: std::mem::take(&mut self.view),
            events: ChangeEvents::none(),
            is_marked: self.is_marked,
            settled: true,
        };
        // Without a runtime, the process is ending, and other gateways recover the pending change.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(op.roll_back());
        }
    }
}
