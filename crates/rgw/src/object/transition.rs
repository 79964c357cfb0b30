//! Moves the data of a version to another storage class. Everything else about the version stays: id, tag, time, ETag, size,
//! metadata.
//!
//! The data is copied as it is stored, encrypted or not, to new tails. The change records them in the index before they are
//! written, so that recovery knows what to discard. Then one commit replaces the old tails with the new ones, and the old ones
//! become garbage. The commit is made only if the version still has the data that was copied.

use super::commit::{CommitTurn, HeadRead};
use super::head_state::CurrentObject;
use super::index_op::{Committed, Intent};
use super::versions::{Placed, event_version};
use super::{Data, Head, IndexOp, Manifest, STRIPE_BYTES, crypt, head_name, tail_count, tails_name, written};
use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::gateway::{Gateway, spawn_large};
use crate::index::Tails;
use crate::notifications::Cause;
use crate::record;
use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use nacre_client::{IoCtx, WriteOp};
use nacre_index::commit::{self, New};
use nacre_index::record::Subject;
use nacre_topics::event::EventType;
use nacre_types::errno::Errno;
use std::sync::Arc;

/// Tails of one version that are copied at the same time.
const COPIES: usize = 2;

/// A version's data, and where it is moved to.
struct Move {
    /// The version as it was read, without its data.
    from: Head,
    /// The data in its head: a manifest or the data itself.
    inline: Bytes,
    /// The location of the data, and the manifest, after the move.
    data: Data,
    manifest: Bytes,
    /// Tails that are copied, the bytes in them, and their new names.
    copies: Vec<(Tails, u64, Tails)>,
}

impl Move {
    /// The tails of the version after the move; `None` if its data is inline or in parts.
    fn tails(&self) -> Option<Tails> {
        match &self.data {
            Data::Tails(tails) => Some(tails.clone()),
            Data::Inline | Data::Parts(_) => None,
        }
    }

    /// The tails of the version's parts after the move.
    fn parts(&self) -> Vec<Tails> {
        match &self.data {
            Data::Parts(_) => self.copies.iter().map(|(_, _, new)| new.clone()).collect(),
            Data::Inline | Data::Tails(_) => Vec::new(),
        }
    }

    /// Whether a version still has the data that was read.
    fn is_of(&self, head: &Head) -> bool {
        (&head.tag, &head.data, &head.class) == (&self.from.tag, &self.from.data, &self.from.class)
    }

    /// The head of the version after the move.
    fn moved(&self, head: &Head, class: &str) -> Head {
        Head { data: self.data.clone(), class: class.to_owned(), ..head.clone() }
    }
}

impl Gateway {
    /// Moves a version, which was read as `expected`, to another storage class, which is empty for STANDARD. Returns whether it
    /// was moved: `false` if the version is gone, has other data by now, is in the class already, or is a delete marker.
    pub(crate) async fn move_version(
        self: &Arc<Gateway>,
        bucket: &Arc<Bucket>,
        (key, expected): (&str, &Head),
        class: &str,
        (cause, types): (&Cause, &'static [EventType]),
    ) -> Result<bool> {
        let (from, inline) = match self.version(bucket, key, expected.version_id()).await {
            Err(Error::NoSuchVersion | Error::NoSuchKey) => return Ok(false),
            found => found?,
        };
        if from.tag != expected.tag || from.class == class || from.marker {
            return Ok(false);
        }
        let pool = self.pool_for(class).await?;
        let source = self.data_pool(&from).await?;
        let events = self.change_events(bucket, key, types, cause).await?;
        let (gateway, bucket) = (Arc::clone(self), Arc::clone(bucket));
        let (key, class) = (key.to_owned(), class.to_owned());
        let moving = spawn_large(async move {
            let moving = gateway.plan_move(&bucket, (from, inline), &class)?;
            let intent = Intent { tails: moving.tails(), parts: moving.parts(), events, ..Intent::default() };
            let mut op = IndexOp::prepare(&gateway, &bucket, (&key, &gateway.tag()), intent).await?;
            let committed = async {
                copy(&moving, &source, &pool).await?;
                gateway.commit_move(&bucket, &key, &mut op, &moving, &class).await
            };
            let committed = committed.await;
            Ok(op.end_any(committed).await?.is_some())
        });
        moving.await.map_err(Error::task("the transition of an object"))?
    }

    fn plan_move(&self, bucket: &Bucket, (from, inline): (Head, Bytes), class: &str) -> Result<Move> {
        let new = |count| Tails { name: tails_name(bucket, class, &self.tag()), count };
        let stored = |size| if from.encryption.is_some() { crypt::stored_len(size) } else { size };
        let (mut copies, mut manifest) = (Vec::new(), Bytes::new());
        let data = match &from.data {
            Data::Inline if inline.is_empty() => Data::Inline,
            Data::Inline => Data::Tails(new(tail_count(inline.len() as u64))),
            Data::Tails(tails) => {
                let bytes = stored(from.size);
                let to = new(tail_count(bytes));
                copies.push((tails.clone(), bytes, to.clone()));
                Data::Tails(to)
            }
            Data::Parts(count) => {
                let mut parts = record::decode::<Manifest>(&bucket.name, &inline)?;
                for part in &mut parts.parts {
                    let bytes = stored(part.size);
                    let to = new(tail_count(bytes));
                    copies.push((std::mem::replace(&mut part.tails, to.clone()), bytes, to));
                }
                manifest = record::encode(&parts);
                Data::Parts(*count)
            }
        };
        Ok(Move { from, inline, data, manifest, copies })
    }

    async fn commit_move(
        self: &Arc<Gateway>,
        bucket: &Bucket,
        key: &str,
        op: &mut IndexOp,
        moving: &Move,
        class: &str,
    ) -> Result<Option<Committed<()>>> {
        let name = head_name(bucket, key);
        let mut turn = CommitTurn::wait(self, &name).await;
        let mut tried = Subject::default();
        let old = moving.from.tails(&name, &moving.inline)?;
        loop {
            let state = match turn.read_head(op).await? {
                HeadRead::Made(evidence) => return Ok(Some(((), *evidence, tried))),
                HeadRead::State(state) => *state,
            };
            let base = state.base();
            let Some(current) = state.object else { return Ok(None) };
            let id = moving.from.version_id();
            let is_current = current.head.version_id() == id;
            let data = moving.manifest.clone();
            let (new, head, steps) = match &current {
                // The index knows the tails of an object without versions.
                CurrentObject { versions: None, head, .. } => {
                    if !is_current || !moving.is_of(head) {
                        return Ok(None);
                    }
                    let head = moving.moved(head, class);
                    (Some(head.listed(None)), head.clone(), written(&head, [data]))
                }
                CurrentObject { versions: Some(_), .. } => match self.placed(&name, &current, id).await? {
                    Placed::Changed => {
                        turn.retry().await?;
                        continue;
                    }
                    Placed::Version(slot, head) if moving.is_of(&head) => {
                        let head = moving.moved(&head, class);
                        let listed = is_current.then(|| head.listed(current.held()));
                        (listed, head.clone(), slot.replace(&head, data, is_current))
                    }
                    Placed::Version(..) | Placed::Absent => return Ok(None),
                },
            };
            if current.held().is_some() {
                op.replaces(old.clone()).await?;
            }
            let subject = op.subject_of(&head, event_version(bucket, &head));
            let tails = moving.tails().filter(|_| current.held().is_none());
            let change = match &new {
                Some(listed) => New::Object(listed, tails.as_ref()),
                None => New::Unchanged,
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
async fn copy(moving: &Move, source: &IoCtx, pool: &IoCtx) -> Result<()> {
    if let (Data::Inline, Data::Tails(new)) = (&moving.from.data, &moving.data) {
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
