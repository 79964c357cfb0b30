//! Moves the data of a version to another storage class. Everything else about the version stays: id, tag, time, ETag, size,
//! metadata.
//!
//! The data is copied as it is stored, encrypted or not, to new tails. The change records them in the index before they are
//! written, so that recovery knows what to discard. Then one commit replaces the old tails with the new ones, and the old ones
//! become garbage. The commit is made only if the version still has the data that was copied.

use super::commit::{CommitGuard, HeadRead};
use super::index_op::{Committed, PrepareIntent};
use super::versions::event_version_id;
use super::{IndexOp, ObjectWriter, crypt, head_write_steps, tail_count, tails_name};
use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::notifications::Cause;
use crate::record;
use crate::spawn::spawn_boxed;
use crate::stored::versions::VersionLookup;
use crate::stored::{CurrentObject, DataLocation, Head, Manifest, STRIPE_BYTES, head_name};
use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use nacre_client::{IoCtx, WriteOp};
use nacre_index::commit::{self, ListingUpdate};
use nacre_index::record::{EventSubject, Tails};
use nacre_topics::event::EventType;
use nacre_types::errno::Errno;
use std::sync::Arc;

/// Tails of one version that are copied at the same time.
const COPIES: usize = 2;

/// A version's data, and where it is moved to.
struct TransitionPlan {
    /// The version as it was read, without its data.
    from: Head,
    /// The data in its head: a manifest or the data itself.
    inline: Bytes,
    /// The location of the data, and the manifest, after the move.
    data: DataLocation,
    manifest: Bytes,
    /// Tails that are copied, the bytes in them, and their new names.
    copies: Vec<(Tails, u64, Tails)>,
}

impl TransitionPlan {
    /// The tails of the version after the move; `None` if its data is inline or in parts.
    fn tails(&self) -> Option<Tails> {
        match &self.data {
            DataLocation::Tails(tails) => Some(tails.clone()),
            DataLocation::Inline | DataLocation::Parts(_) => None,
        }
    }

    /// The tails of the version's parts after the move.
    fn parts(&self) -> Vec<Tails> {
        match &self.data {
            DataLocation::Parts(_) => self.copies.iter().map(|(_, _, new)| new.clone()).collect(),
            DataLocation::Inline | DataLocation::Tails(_) => Vec::new(),
        }
    }

    /// Whether a version still has the data that was read.
    fn has_same_data(&self, head: &Head) -> bool {
        (&head.tag, &head.data, &head.class) == (&self.from.tag, &self.from.data, &self.from.class)
    }

    /// The head of the version after the move.
    fn moved(&self, head: &Head, class: &str) -> Head {
        Head { data: self.data.clone(), class: class.to_owned(), ..head.clone() }
    }
}

impl ObjectWriter {
    /// Moves a version, which was read as `expected`, to another storage class, which is empty for STANDARD. Returns whether it
    /// was moved: `false` if the version is gone, has other data by now, is in the class already, or is a delete marker.
    pub(crate) async fn transition_version(
        self: &Arc<ObjectWriter>,
        bucket: &Arc<Bucket>,
        (key, expected): (&str, &Head),
        class: &str,
        (cause, types): (&Cause, &'static [EventType]),
    ) -> Result<bool> {
        let (from, inline) = match self.objects.read_version(&bucket.id, key, expected.version_id()).await {
            Err(Error::NoSuchVersion | Error::NoSuchKey) => return Ok(false),
            found => found?,
        };
        if from.tag != expected.tag || from.class == class || from.marker {
            return Ok(false);
        }
        let pool = self.classes.pool_for_write(class).await?;
        let source = self.objects.data_pool(&from).await?;
        let events = self.notifications.change_events(bucket, key, types, cause).await?;
        let (writer, bucket) = (Arc::clone(self), Arc::clone(bucket));
        let (key, class) = (key.to_owned(), class.to_owned());
        let moving = spawn_boxed(async move {
            let moving = writer.plan_move(&bucket, (from, inline), &class)?;
            let intent = PrepareIntent {
                tails: moving.tails(),
                parts: moving.parts(),
                events,
                ..PrepareIntent::default()
            };
            let mut op =
                IndexOp::prepare(&writer, &bucket, (&key, &writer.connection.new_tag()), intent).await?;
            let committed = async {
                copy(&moving, &source, &pool).await?;
                writer.commit_move(&bucket, &key, &mut op, &moving, &class).await
            };
            let committed = committed.await;
            Ok(op.resolve_optional(committed).await?.is_some())
        });
        moving.await.map_err(Error::task_failed("the transition of an object"))?
    }

    fn plan_move(
        &self,
        bucket: &Bucket,
        (from, inline): (Head, Bytes),
        class: &str,
    ) -> Result<TransitionPlan> {
        let new = |count| Tails { name: tails_name(bucket, class, &self.connection.new_tag()), count };
        let stored = |size| if from.encryption.is_some() { crypt::stored_len(size) } else { size };
        let (mut copies, mut manifest) = (Vec::new(), Bytes::new());
        let data = match &from.data {
            DataLocation::Inline if inline.is_empty() => DataLocation::Inline,
            DataLocation::Inline => DataLocation::Tails(new(tail_count(inline.len() as u64))),
            DataLocation::Tails(tails) => {
                let bytes = stored(from.size);
                let to = new(tail_count(bytes));
                copies.push((tails.clone(), bytes, to.clone()));
                DataLocation::Tails(to)
            }
            DataLocation::Parts(count) => {
                let mut parts = record::decode::<Manifest>(&bucket.name, &inline)?;
                for part in &mut parts.parts {
                    let bytes = stored(part.size);
                    let to = new(tail_count(bytes));
                    copies.push((std::mem::replace(&mut part.tails, to.clone()), bytes, to));
                }
                manifest = record::encode(&parts);
                DataLocation::Parts(*count)
            }
        };
        Ok(TransitionPlan { from, inline, data, manifest, copies })
    }

    async fn commit_move(
        self: &Arc<ObjectWriter>,
        bucket: &Bucket,
        key: &str,
        op: &mut IndexOp,
        moving: &TransitionPlan,
        class: &str,
    ) -> Result<Option<Committed<()>>> {
        let name = head_name(&bucket.id, key);
        let mut turn = CommitGuard::acquire(self, &name).await;
        let mut tried = EventSubject::default();
        let old = moving.from.tails(&name, &moving.inline)?;
        loop {
            let state = match turn.read_head(op).await? {
                HeadRead::Committed(evidence) => return Ok(Some(((), *evidence, tried))),
                HeadRead::State(state) => *state,
            };
            let base = state.assumed_head();
            let Some(current) = state.object else { return Ok(None) };
            let id = moving.from.version_id();
            let is_current = current.head.version_id() == id;
            let data = moving.manifest.clone();
            let (new, head, steps) = match &current {
                // The index knows the tails of an object without versions.
                CurrentObject { versions: None, head, .. } => {
                    if !is_current || !moving.has_same_data(head) {
                        return Ok(None);
                    }
                    let head = moving.moved(head, class);
                    (Some(head.listed(None)), head.clone(), head_write_steps(&head, [data]))
                }
                CurrentObject { versions: Some(_), .. } => {
                    match self.objects.lookup_version(&name, &current, id).await? {
                        VersionLookup::Changed => {
                            turn.back_off().await?;
                            continue;
                        }
                        VersionLookup::Version(slot, head) if moving.has_same_data(&head) => {
                            let head = moving.moved(&head, class);
                            let listed = is_current.then(|| head.listed(current.version_totals()));
                            (listed, head.clone(), slot.replace(&head, data, is_current))
                        }
                        VersionLookup::Version(..) | VersionLookup::Absent => return Ok(None),
                    }
                }
            };
            if current.version_totals().is_some() {
                op.set_replaced_tails(old.clone()).await?;
            }
            let subject = op.subject_of(&head, event_version_id(bucket, &head));
            let tails = moving.tails().filter(|_| current.version_totals().is_none());
            let change = match &new {
                Some(listed) => ListingUpdate::Object(listed, tails.as_ref()),
                None => ListingUpdate::Unchanged,
            };
            let built = commit::write(op.change(&subject), &base, change, Vec::new(), steps);
            if let Some(evidence) = turn.commit(op, built).await? {
                return Ok(Some(((), evidence, subject)));
            }
            tried = subject;
        }
    }
}

/// Copies a version's data into its new tails.
async fn copy(moving: &TransitionPlan, source: &IoCtx, pool: &IoCtx) -> Result<()> {
    if let (DataLocation::Inline, DataLocation::Tails(new)) = (&moving.from.data, &moving.data) {
        let mut rest = moving.inline.clone();
        let mut at = 0;
        while !rest.is_empty() {
            let piece = rest.split_to(rest.len().min(STRIPE_BYTES as usize));
            write(pool, &format!("{}_{at}", new.name), piece).await?;
            at += 1;
        }
        return Ok(());
    }
    let tails = moving.copies.iter().flat_map(|(old, bytes, new)| {
        (0..new.count).map(move |at| {
            let len = (bytes - at * STRIPE_BYTES).min(STRIPE_BYTES);
            (format!("{}_{at}", old.name), format!("{}_{at}", new.name), len)
        })
    });
    let copies = stream::iter(tails).map(Ok).try_for_each_concurrent(COPIES, |(old, new, len)| async move {
        let data = source.read(&old, 0, len).await?;
        // Incomplete data must not replace anything.
        if data.len() as u64 != len {
            return Err(nacre_client::Error::from(Errno::EIO).into());
        }
        write(pool, &new, data).await
    });
    copies.await
}

async fn write(pool: &IoCtx, name: &str, data: Bytes) -> Result<()> {
    let mut op = WriteOp::new();
    op.write_full(data);
    pool.operate(name, op).await?.success()?;
    Ok(())
}
