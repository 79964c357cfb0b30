//! Writing an object: its data as it arrives, then its head.

use super::commit::{CommitGuard, HeadRead};
use super::index_op::{Committed, PrepareIntent};
use super::{BufferList, Digests, IndexOp, ObjectWriter, UploadBody, WriteCondition};
use super::{head_write_steps, tail_count, tails_name, versions};
use crate::bucket::{Bucket, Versioning};
use crate::error::{Error, Result};
use crate::notifications::{Cause, ChangeEvents};
use crate::quota::QuotaUsage;
use crate::quota_cache::{QuotaReservation, ReservationKind};
use crate::spawn::spawn_boxed;
use crate::stored::{DataLocation, Head, MAX_INLINE_BYTES, STRIPE_BYTES, head_name};
use crate::time::now_ns;
use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt};
use nacre_client::{IoCtx, WriteOp};
use nacre_index::commit::{self, AssumedHead, ListingUpdate};
use nacre_index::record::Tails;
use nacre_topics::event::EventType;
use std::sync::Arc;

/// The most data in the head of an object with versions. The head stores it twice, once in omap.
const VERSION_INLINE_BYTES: usize = 64 << 10;
/// The most data in a head that is written on the guess that its key is new.
const MOST_GUESSED_BYTES: usize = 64 << 10;
/// Writes of one object's tails that are in flight at the same time.
const WRITES: usize = 2;

/// An object to be written.
pub struct PutOp {
    /// The bucket of the object.
    pub bucket: Arc<Bucket>,
    /// The name of the object.
    pub key: String,
    /// Set by the caller, except for tag, size, time, ETag and data.
    pub head: Head,
    /// What must hold of the present object for the write to take effect.
    pub condition: WriteCondition,
    /// Who makes the change, and by which request.
    pub cause: Cause,
    /// The types of events that the change may have.
    pub types: &'static [EventType],
}

/// The data of a body: in memory for the head, or written to tails.
pub(super) struct WrittenData {
    pub(super) inline: BufferList,
    pub(super) tails: Option<Tails>,
}

impl PutOp {
    /// Writes the data, then the head. When all data has been taken, `seal` gets its digests; it completes the head or fails.
    pub async fn run(
        mut self,
        writer: &Arc<ObjectWriter>,
        mut body: UploadBody,
        length: Option<u64>,
        seal: impl FnOnce(Digests, &mut Head) -> Result<()>,
    ) -> Result<Head> {
        self.head.tag = writer.connection.new_tag();
        let pool = writer.classes.pool_for_write(&self.head.class).await?;
        let usage = |bytes| QuotaUsage { objects: 1, bytes };
        let held = writer
            .quotas
            .reserve(&self.bucket, &self.head.tag, usage(length.unwrap_or(0)), ReservationKind::Object)
            .await?;
        let events =
            writer.notifications.change_events(&self.bucket, &self.key, self.types, &self.cause).await?;
        let mut op = None;
        let written = write_data(writer, &self, &mut body, (length, &pool), (&mut op, &events)).await?;
        self.head.size = body.bytes_read();
        if let Some(held) = held.as_ref().filter(|_| length.is_none()) {
            held.resize(usage(self.head.size))?;
        }
        self.head.mtime_ns = now_ns();
        seal(body.digests().await, &mut self.head)?;
        if let Some(tails) = &written.tails {
            self.head.data = DataLocation::Tails(tails.clone());
        }
        self.commit(writer, (op, events), written.inline, written.tails, held).await
    }

    /// The most bytes of data that may be in the head.
    fn inline_bytes(&self) -> usize {
        if self.bucket.versioning == Versioning::Off { MAX_INLINE_BYTES } else { VERSION_INLINE_BYTES }
    }

    /// Writes the head with `data` in it. This commits the change, which is prepared first if there is no prepared change yet.
    /// `tails` are the object's tails, and `held` is what a quota has reserved for it. Returns the head as it was written.
    pub(crate) async fn commit(
        self,
        writer: &Arc<ObjectWriter>,
        (op, events): (Option<IndexOp>, ChangeEvents),
        data: BufferList,
        tails: Option<Tails>,
        held: Option<QuotaReservation>,
    ) -> Result<Head> {
        let writer = Arc::clone(writer);
        // A separate task, which completes even if the client disconnects.
        let commit = spawn_boxed(async move {
            let committed = self.run_commit(&writer, (op, events), data, tails).await;
            if let Some(held) = held {
                held.settle(&committed);
            }
            committed
        });
        commit.await.map_err(Error::task_failed("the write of an object"))?
    }

    async fn run_commit(
        self,
        writer: &Arc<ObjectWriter>,
        (op, events): (Option<IndexOp>, ChangeEvents),
        data: BufferList,
        tails: Option<Tails>,
    ) -> Result<Head> {
        if self.bucket.versioning != Versioning::Off {
            return Box::pin(versions::add(writer, self, (op, events), data.into_bytes())).await;
        }
        let mut op = match op {
            Some(op) => op,
            None => {
                // A wrong guess sends the data twice.
                let overwrites = data.len() <= MOST_GUESSED_BYTES;
                let intent = PrepareIntent { events, overwrites, ..PrepareIntent::default() };
                IndexOp::prepare(writer, &self.bucket, (&self.key, &self.head.tag), intent).await?
            }
        };
        let committed = commit_plain(writer, &self, &mut op, &data, tails.as_ref()).await;
        op.resolve(committed).await?;
        Ok(self.head)
    }
}

/// Commits an object in a bucket without versions.
async fn commit_plain(
    writer: &Arc<ObjectWriter>,
    put: &PutOp,
    op: &mut IndexOp,
    data: &BufferList,
    tails: Option<&Tails>,
) -> Result<Committed<()>> {
    let PutOp { bucket, key, head, condition, .. } = put;
    let name = head_name(&bucket.id, key);
    let (listed, subject) = (head.listed(None), op.subject_of(head, ""));
    let mut turn = CommitGuard::acquire(writer, &name).await;
    let guess = turn.take_assumed_head(op.view()).or_else(|| op.view().assume_for_write());
    let mut guess = guess.filter(|base| condition.is_decided_on(base));
    loop {
        let (base, guards) = match guess.take() {
            Some(base) => (base, condition.guards()),
            None => {
                let state = match turn.read_head(op).await? {
                    HeadRead::Committed(evidence) => return Ok(((), *evidence, subject)),
                    HeadRead::State(state) => *state,
                };
                condition.check(state.object.as_ref().map(|object| (&object.head, object.mark)))?;
                (state.assumed_head(), Vec::new())
            }
        };
        let body = head_write_steps(head, data.iter().cloned());
        let commit =
            commit::write(op.change(&subject), &base, ListingUpdate::Object(&listed, tails), guards, body);
        match turn.commit(op, commit).await? {
            Some(evidence) => {
                op.record_key_is_new(base == AssumedHead::Absent);
                return Ok(((), evidence, subject));
            }
            None => guess = op.next_assumed_head().await?.filter(|base| condition.is_decided_on(base)),
        }
    }
}

/// Takes all of a body. Short data stays in memory, for the head; long data is written to tails, which are recorded in the index
/// first. In a storage class all data is in tails, because heads are in the pool of STANDARD.
async fn write_data(
    writer: &Arc<ObjectWriter>,
    put: &PutOp,
    body: &mut UploadBody,
    (length, pool): (Option<u64>, &IoCtx),
    (op, events): (&mut Option<IndexOp>, &ChangeEvents),
) -> Result<WrittenData> {
    body.limit_memory(&writer.put_memory);
    let has_class = !put.head.class.is_empty();
    let inline = if has_class { MAX_INLINE_BYTES } else { put.inline_bytes() };
    let expected = length.map_or(inline, |length| body.stored_len(length).min(inline as u64) as usize);
    let first = body.gather(expected).await?;
    if body.is_at_end().await? && (!has_class || first.len() == 0) {
        return Ok(WrittenData { inline: first, tails: None });
    }
    let name = tails_name(&put.bucket, &put.head.class, &put.head.tag);
    // The most that may be written, for recovery after a crash.
    let most = length.map_or(super::multipart::MAX_PART_BYTES, |length| body.stored_len(length));
    let most = Tails { name: name.clone(), count: tail_count(most) };
    let overwrites = put.bucket.versioning == Versioning::Off;
    let intent =
        PrepareIntent { tails: Some(most), events: events.clone(), overwrites, ..PrepareIntent::default() };
    *op = Some(IndexOp::prepare(writer, &put.bucket, (&put.key, &put.head.tag), intent).await?);
    let size = Box::pin(write_tails(pool, &name, first, body)).await?;
    Ok(WrittenData { inline: BufferList::default(), tails: Some(Tails { name, count: tail_count(size) }) })
}

/// Writes `first`, which is no longer than a tail, and the rest of a body to tails named `name`. Returns how many bytes they
/// hold.
pub(super) async fn write_tails(
    pool: &IoCtx,
    name: &str,
    first: BufferList,
    body: &mut UploadBody,
) -> Result<u64> {
    let mut writes = FuturesUnordered::new();
    let (mut pieces, mut offset) = (first, 0);
    while pieces.len() > 0 {
        while writes.len() >= WRITES {
            if let Some(written) = writes.next().await {
                written?;
            }
        }
        let tail = format!("{name}_{}", offset / STRIPE_BYTES);
        let mut op = WriteOp::new();
        write_on(&mut op, offset % STRIPE_BYTES, pieces.iter().cloned());
        offset += pieces.len() as u64;
        let write = pool.operate(&tail, op);
        let room = pieces.into_permit();
        writes.push(async move {
            let reply = write.await.and_then(|reply| reply.success());
            drop(room);
            reply.map(drop)
        });
        // Writes in flight continue while more data is gathered. No write crosses the end of a tail.
        let next = body.gather((STRIPE_BYTES - offset % STRIPE_BYTES) as usize);
        tokio::pin!(next);
        pieces = loop {
            tokio::select! {
                gathered = &mut next => break gathered?,
                Some(written) = writes.next(), if !writes.is_empty() => written?,
            }
        };
    }
    while let Some(written) = writes.next().await {
        written?;
    }
    Ok(offset)
}

/// Adds writes of the pieces, one after the other from `offset` on, to an operation.
fn write_on(op: &mut WriteOp, mut offset: u64, pieces: impl Iterator<Item = Bytes>) {
    for piece in pieces {
        let len = piece.len() as u64;
        op.write(offset, piece);
        offset += len;
    }
}
