//! Multipart uploads: the data of parts, and the completion and abortion of uploads. [`crate::uploads`] has the records.

use super::index_op::PrepareIntent as ChangeIntent;
use super::put::{PutOp, write_tails};
use super::{Digests, IndexOp, ObjectWriter, Salt, UploadBody, WriteCondition, tail_count, tails_name};
use crate::bucket::Bucket;
use crate::error::{BodyFault, Error, Result};
use crate::notifications::Cause;
use crate::quota::QuotaUsage;
use crate::quota_cache::ReservationKind;
use crate::record;
use crate::spawn::spawn_boxed;
use crate::stored::{
    DataLocation, Head, MAX_MANIFEST_BYTES, Manifest, ManifestPart, STRIPE_BYTES, StoredChecksum,
};
use crate::time::now_ns;
use crate::uploads::{Part, Upload, upload_name};
use bytes::Bytes;
use nacre_index::record::Tails;
use nacre_topics::event::EventType;
use nacre_types::errno::Errno;
use s3s::crypto::{Checksum as _, Md5};
use std::sync::Arc;

/// The largest part, and the largest object that is not uploaded in parts.
pub const MAX_PART_BYTES: u64 = 5 << 30;
/// The largest object.
const MAX_OBJECT_BYTES: u64 = 5 << 40;
/// The smallest part, except for the last one (`rgw_multipart_min_part_size`).
const MIN_PART_BYTES: u64 = 5 << 20;
/// The most parts (`rgw_multipart_part_upload_limit`).
pub const MAX_PARTS: u32 = 10_000;

/// Identifies a part of an upload.
#[derive(Clone, Copy, Debug)]
pub struct PartId<'a> {
    /// The name of the object.
    pub key: &'a str,
    /// The id of the upload.
    pub upload: &'a str,
    /// 1 to 10 000.
    pub number: u32,
    /// The upload's storage class; empty for STANDARD.
    pub class: &'a str,
}

/// A part that a completion names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedPart {
    /// The number of the part.
    pub number: u32,
    /// The ETag that it must have, without quotes.
    pub etag: Option<String>,
}

fn bytes_of_md5(etag: &str) -> Option<[u8; 16]> {
    u128::from_str_radix(etag, 16).ok().filter(|_| etag.len() == 32).map(u128::to_be_bytes)
}

impl ObjectWriter {
    /// Writes a part's data into its upload's storage class and lists the part, in place of an earlier part with its number.
    /// `seal` gets the digests when all data has been taken. The body is encrypted with the key that `salt` belongs to.
    pub async fn put_part(
        self: &Arc<ObjectWriter>,
        bucket: &Bucket,
        place: PartId<'_>,
        (mut body, salt): (UploadBody, Option<Salt>),
        length: Option<u64>,
        seal: impl FnOnce(Digests) -> Result<(String, Option<StoredChecksum>)>,
    ) -> Result<Part> {
        let PartId { key, upload, number, class } = place;
        let pool = self.classes.pool_for_write(class).await?;
        let name = upload_name(bucket, key, upload);
        let tag = self.connection.new_tag();
        let most = body.stored_len(length.unwrap_or(MAX_PART_BYTES));
        let mut tails = Tails { name: tails_name(bucket, class, &tag), count: tail_count(most) };
        let usage = |bytes| QuotaUsage { objects: 0, bytes };
        let held = self
            .quotas
            .reserve(bucket, &tag, usage(length.unwrap_or(0)), ReservationKind::Part(upload))
            .await?;
        self.uploads.prepare_part(&name, &tag, &tails).await?;
        body.limit_memory(&self.put_memory);
        let first = body.gather(STRIPE_BYTES as usize).await?;
        let stored = write_tails(&pool, &tails.name, first, &mut body).await?;
        tails.count = tail_count(stored);
        let size = body.bytes_read();
        // Incomplete data must not replace an earlier part.
        if length.is_some_and(|length| length != size) {
            return Err(BodyFault::Incomplete.into());
        }
        if let Some(held) = held.as_ref().filter(|_| length.is_none()) {
            held.resize(usage(size))?;
        }
        let (etag, checksum) = seal(body.digests().await)?;
        let part = Part { size, mtime_ns: now_ns(), etag, checksum, tails, salt };
        match self.uploads.list_part(&name, number, &tag, &part).await {
            // The gateway that completed or aborted the upload discarded only what had been written by then.
            Err(Error::NoSuchUpload) => {
                self.garbage.queue(std::slice::from_ref(&part.tails)).await?;
                Err(Error::NoSuchUpload)
            }
            listed => {
                if let Some(held) = held {
                    held.settle(&listed);
                }
                listed.map(|()| part)
            }
        }
    }

    /// Makes an object of an upload's parts. `seal` gets the named parts with their numbers; it completes the head or fails.
    pub async fn complete_upload(
        self: &Arc<ObjectWriter>,
        bucket: &Arc<Bucket>,
        (key, id): (&str, &str),
        named: Vec<RequestedPart>,
        (condition, cause): (WriteCondition, Cause),
        seal: impl FnOnce(&Upload, &[(u32, Part)], &mut Head) -> Result<()> + Send + 'static,
    ) -> Result<Head> {
        let (writer, bucket) = (Arc::clone(self), Arc::clone(bucket));
        let (key, id) = (key.to_owned(), id.to_owned());
        // A separate task, which completes even if the client disconnects.
        let completion = spawn_boxed(async move {
            writer.try_complete_upload(&bucket, (&key, &id), &named, (condition, cause), seal).await
        });
        completion.await.map_err(Error::task_failed("the completion of an upload"))?
    }

    async fn try_complete_upload(
        self: &Arc<ObjectWriter>,
        bucket: &Arc<Bucket>,
        (key, id): (&str, &str),
        named: &[RequestedPart],
        (condition, cause): (WriteCondition, Cause),
        seal: impl FnOnce(&Upload, &[(u32, Part)], &mut Head) -> Result<()>,
    ) -> Result<Head> {
        let name = upload_name(bucket, key, id);
        let Some((upload, mark, version)) = self.uploads.marked(&name).await? else {
            // The reply to the attempt that completed the upload may have been lost.
            return match self.objects.head(&bucket.id, key).await? {
                Some((head, _)) if head.upload == id => Ok(head),
                _ => Err(Error::NoSuchUpload),
            };
        };
        if let Some(tag) = mark {
            return self.completed(bucket, key, id, &tag).await;
        }
        let there = self.uploads.all_parts(bucket, key, id).await?;
        let chosen = choose(&there, named)?;
        let mut head = upload.head.clone();
        head.size = chosen.iter().map(|(_, part)| part.size).sum();
        if head.size > MAX_OBJECT_BYTES {
            return Err(Error::TooLarge);
        }
        let mut md5s = Vec::with_capacity(chosen.len() * 16);
        for (number, part) in &chosen {
            md5s.extend(bytes_of_md5(&part.etag).ok_or(Error::InvalidPart(*number as i32))?);
        }
        let digest = u128::from_be_bytes(Md5::checksum(&md5s));
        head.etag = format!("{digest:032x}-{}", chosen.len());
        head.mtime_ns = now_ns();
        head.tag = self.connection.new_tag();
        head.data = DataLocation::Parts(chosen.len() as u32);
        seal(&upload, &chosen, &mut head)?;
        let usage = QuotaUsage { objects: 1, bytes: head.size };
        let held = self.quotas.reserve(bucket, &head.tag, usage, ReservationKind::Completion(id)).await?;
        let tails: Vec<Tails> = chosen.iter().map(|(_, part)| part.tails.clone()).collect();
        let parts = chosen
            .iter()
            .map(|(number, part)| ManifestPart {
                number: *number,
                size: part.size,
                tails: part.tails.clone(),
                salt: part.salt,
                checksum: part.checksum.clone().filter(|_| !upload.algorithm.is_empty()),
            })
            .collect();
        let manifest: Bytes = record::encode(&Manifest { parts });
        if manifest.len() > MAX_MANIFEST_BYTES {
            return Err(Error::TooLarge);
        }
        let types = &[EventType::ObjectCreatedCompleteMultipartUpload];
        let events = self.notifications.change_events(bucket, key, types, &cause).await?;
        let (parts, upload) = (tails, Some(id.to_owned()));
        let intent = ChangeIntent { parts, upload, events: events.clone(), ..ChangeIntent::default() };
        let mut change = IndexOp::prepare(self, bucket, (key, &head.tag), intent).await?;
        change.set_upload_marked();
        if let Err(error) = self.uploads.mark(&name, version, &head.tag).await {
            let answer = match &error {
                error if error.is_not_found() => Some(Error::NoSuchUpload),
                // A part was listed, or another completion began.
                error if record::is_cas_conflict(error) => Some(Error::IndexBusy(bucket.name.clone())),
                _ => None,
            };
            let error = error.into();
            change.abort(&error).await;
            return Err(answer.unwrap_or(error));
        }
        let put = PutOp { bucket: Arc::clone(bucket), key: key.to_owned(), head, condition, cause, types };
        put.commit(self, (Some(change), events), manifest.into(), None, held).await
    }

    /// Aborts an upload and discards its parts.
    pub async fn abort_upload(self: &Arc<ObjectWriter>, bucket: &Bucket, key: &str, id: &str) -> Result<()> {
        let name = upload_name(bucket, key, id);
        let Some((_, mark, _)) = self.uploads.marked(&name).await? else {
            // The upload may be listed without having been created.
            self.uploads.remove_entry(bucket, key, id).await?;
            return Err(Error::NoSuchUpload);
        };
        if let Some(tag) = &mark {
            if self.shards.is_pending(bucket, key, tag).await? {
                self.index.recovery.recover_change(bucket, key, tag).await?;
                return Err(Error::IndexBusy(bucket.name.clone()));
            }
            if self.uploads.purge_completed(bucket, key, id, tag).await?.is_some() {
                return Ok(());
            }
        }
        // After this write no completion can start, and none has started since the mark was read, which may be that of a failed
        // completion. If the upload became an object that was replaced, its parts are garbage already.
        match self.uploads.mark_aborted(&name, mark).await {
            Ok(()) => self.uploads.purge(bucket, (key, id), &[]).await,
            Err(error) if error.is_not_found() => Err(Error::NoSuchUpload),
            // Another request completes or aborts the upload.
            Err(error) if error.errno() == Errno::ECANCELED => Err(Error::IndexBusy(bucket.name.clone())),
            Err(error) => Err(error.into()),
        }
    }

    /// The outcome of an upload that carries the mark `tag`: the head of its object, or an error if it has not become one.
    async fn completed(
        self: &Arc<ObjectWriter>,
        bucket: &Bucket,
        key: &str,
        id: &str,
        tag: &str,
    ) -> Result<Head> {
        // The order matters: a change that is no longer pending has its outcome.
        let pending = self.shards.is_pending(bucket, key, tag).await?;
        if let Some(head) = self.uploads.purge_completed(bucket, key, id, tag).await? {
            return Ok(head);
        }
        if pending {
            self.index.recovery.recover_change(bucket, key, tag).await?;
        }
        let marked = self.uploads.marked(&upload_name(bucket, key, id)).await?;
        match marked {
            // The completion is in progress, or failed just now.
            Some((_, mark, _)) if pending || mark.as_deref() != Some(tag) => {
                Err(Error::IndexBusy(bucket.name.clone()))
            }
            _ => Err(Error::NoSuchUpload),
        }
    }
}

/// Returns the named parts, in order.
fn choose(there: &[(u32, Part)], named: &[RequestedPart]) -> Result<Vec<(u32, Part)>> {
    if named.is_empty() {
        return Err(Error::Invalid("a completion names at least one part".into()));
    }
    if named.windows(2).any(|pair| pair[0].number >= pair[1].number) {
        return Err(Error::InvalidPartOrder);
    }
    let mut chosen = Vec::with_capacity(named.len());
    for (at, name) in named.iter().enumerate() {
        let invalid = || Error::InvalidPart(name.number as i32);
        let found = there.binary_search_by_key(&name.number, |(number, _)| *number).map_err(|_| invalid())?;
        let (number, part) = &there[found];
        if name.etag.as_ref().is_some_and(|etag| *etag != part.etag) {
            return Err(invalid());
        }
        if at + 1 < named.len() && part.size < MIN_PART_BYTES {
            return Err(Error::PartTooSmall(*number as i32));
        }
        chosen.push((*number, part.clone()));
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zone::MAX_CLASS_CHARS;

    #[test]
    fn the_longest_manifest_fits_into_a_head() {
        let tag = "f".repeat(32);
        let bucket = Bucket { id: tag.clone(), ..Bucket::default() };
        let class = "C".repeat(MAX_CLASS_CHARS);
        let tails = Tails { name: tails_name(&bucket, &class, &tag), count: tail_count(2 * MAX_PART_BYTES) };
        let part = |number| ManifestPart {
            number,
            size: MAX_PART_BYTES,
            tails: tails.clone(),
            salt: Some([u8::MAX; size_of::<Salt>()]),
            checksum: Some(StoredChecksum { algorithm: "SHA256".into(), value: "f".repeat(44), whole: true }),
        };
        let manifest = Manifest { parts: (1..=MAX_PARTS).map(part).collect() };
        let encoded = record::encode(&manifest);
        assert!(encoded.len() <= MAX_MANIFEST_BYTES, "{} bytes", encoded.len());
        assert_eq!(record::decode::<Manifest>("head", &encoded).unwrap(), manifest);
    }

    #[test]
    fn manifests_of_the_first_format_are_read() {
        let tails = Tails { name: "run".into(), count: 2 };
        let body = postcard::to_stdvec(&vec![(7_u32, 5_u64, &tails, None::<Salt>)]).unwrap();
        let encoded = [&[1, 1][..], &(body.len() as u32).to_le_bytes(), &body].concat();
        let part = ManifestPart { number: 7, size: 5, tails, salt: None, checksum: None };
        let manifest = record::decode::<Manifest>("head", &encoded).unwrap();
        assert_eq!(manifest, Manifest { parts: vec![part] });
    }
}
