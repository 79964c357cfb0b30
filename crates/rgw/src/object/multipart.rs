//! Multipart uploads. An upload has a RADOS object in the data pool, whose omap lists its parts, and an entry in the bucket's
//! index, by which it is found (docs/format/rgw.md).
//!
//! A part's data is recorded before it is written, and the part is listed afterwards, so that an aborted upload leaves nothing
//! behind. An upload is marked with the tag of the write that completes it, after that write is pending in the index and before
//! its head is written. From then on no part is listed or replaced. A completion that fails removes its mark before it ceases to
//! be pending. So if the write of a mark is not pending, the upload became an object or is being aborted: its parts are never
//! used a second time.

use super::index_op::PrepareIntent as ChangeIntent;
use super::put::{PutOp, write_tails};
use super::{Digests, IndexOp, Salt, UploadBody, WriteCondition, tail_count, tails_name};
use crate::bucket::Bucket;
use crate::error::{BodyFault, Error, Result};
use crate::gateway::{Gateway, spawn_boxed};
use crate::index::{self, Tails, UploadEntry};
use crate::notifications::Cause;
use crate::quota::QuotaUsage;
use crate::quota_cache::ReservationKind;
use crate::record;
use crate::stored::{
    DataLocation, Head, HeadV1, MAX_MANIFEST_BYTES, Manifest, ManifestPart, ObjectReader, STRIPE_BYTES,
    StoredChecksum,
};
use crate::time::now_ns;
use bytes::Bytes;
use nacre_client::{IoCtx, ReadOp, WriteOp};
use nacre_index::finish::UploadResolution;
use nacre_index::key;
use nacre_index::record::Pending;
use nacre_topics::event::EventType;
use nacre_types::encoding::{self, DecodeError, Versioned};
use nacre_types::op::CmpOp;
use s3s::crypto::{Checksum as _, Md5};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The largest part, and the largest object that is not uploaded in parts.
pub const MAX_PART_BYTES: u64 = 5 << 30;
/// The largest object.
const MAX_OBJECT_BYTES: u64 = 5 << 40;
/// The smallest part, except for the last one (`rgw_multipart_min_part_size`).
const MIN_PART_BYTES: u64 = 5 << 20;
/// The largest record of an upload; a larger one is damaged.
const MAX_UPLOAD_BYTES: u64 = 4 << 20;
/// The most parts (`rgw_multipart_part_upload_limit`).
pub const MAX_PARTS: u32 = 10_000;
/// Parts read at a time.
const PAGE: u64 = 1000;
/// The omap key of an upload's mark: the tag of the operation that completes or aborts the upload.
const MARK: &[u8] = b"c";
/// Attempts at a change that conflicts with concurrent changes.
const ATTEMPTS: usize = 16;

/// An upload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upload {
    /// The head of the future object, without data.
    pub head: Head,
    /// Nanoseconds since 1970.
    pub(crate) started_ns: u64,
    /// The algorithm of the parts' checksums; empty if none was requested.
    pub algorithm: String,
    /// Whether the object gets a checksum of all its data.
    pub whole: bool,
}

/// A part that was uploaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Bytes.
    pub size: u64,
    /// Nanoseconds since 1970.
    pub mtime_ns: u64,
    /// The ETag of its data, without quotes.
    pub etag: String,
    /// The checksum of its data; `None` if the upload names no algorithm.
    pub checksum: Option<StoredChecksum>,
    tails: Tails,
    /// The salt that the key to the data is derived with, if the upload is encrypted.
    salt: Option<Salt>,
}

/// [`Upload`] without a class.
#[derive(Deserialize)]
struct UnclassedUpload {
    head: HeadV1,
    begun_ns: u64,
    algorithm: String,
    whole: bool,
}

/// The tails of a part that is being written or was replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PartIntent {
    tails: Tails,
}

impl Versioned for Upload {
    const NAME: &'static str = "upload";
    const VERSION: u8 = 2;
    /// Readers that do not know classes would put parts into another pool.
    const COMPAT: u8 = 2;

    fn envelope(&self) -> (u8, u8) {
        if self.head.class.is_empty() { (1, 1) } else { (2, 2) }
    }

    fn decode_old(_version: u8, body: &[u8]) -> Result<Upload, DecodeError> {
        let old: UnclassedUpload = encoding::decode_body(Self::NAME, body)?;
        let UnclassedUpload { head, begun_ns, algorithm, whole } = old;
        Ok(Upload { head: head.into(), started_ns: begun_ns, algorithm, whole })
    }
}

/// Format 2 is format 1 with tails in the pool of a storage class.
impl Versioned for Part {
    const NAME: &'static str = "part";
    const VERSION: u8 = 2;
    const COMPAT: u8 = 2;

    fn envelope(&self) -> (u8, u8) {
        if self.tails.storage_class().is_empty() { (1, 1) } else { (2, 2) }
    }

    fn decode_old(_version: u8, body: &[u8]) -> Result<Part, DecodeError> {
        encoding::decode_body(Self::NAME, body)
    }
}

/// Format 2 is format 1 with tails in the pool of a storage class.
impl Versioned for PartIntent {
    const NAME: &'static str = "intent of a part";
    const VERSION: u8 = 2;
    const COMPAT: u8 = 2;

    fn envelope(&self) -> (u8, u8) {
        if self.tails.storage_class().is_empty() { (1, 1) } else { (2, 2) }
    }

    fn decode_old(_version: u8, body: &[u8]) -> Result<PartIntent, DecodeError> {
        encoding::decode_body(Self::NAME, body)
    }
}

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

pub(super) fn upload_name(bucket: &Bucket, key: &str, id: &str) -> String {
    format!("{}__multipart_{key}.{id}", bucket.id)
}

fn part_key(number: u32) -> Bytes {
    format!("p{number:05}").into()
}

fn intent_key(tag: &str) -> Bytes {
    format!("i{tag}").into()
}

fn bytes_of_md5(etag: &str) -> Option<[u8; 16]> {
    u128::from_str_radix(etag, 16).ok().filter(|_| etag.len() == 32).map(u128::to_be_bytes)
}

impl Upload {
    /// An upload of an object with this head.
    pub fn new(head: Head, algorithm: &str, whole: bool) -> Upload {
        Upload { head, started_ns: 0, algorithm: algorithm.to_owned(), whole }
    }
}

impl Gateway {
    /// Creates an upload and returns its id.
    pub async fn create_upload(&self, bucket: &Bucket, key: &str, mut upload: Upload) -> Result<String> {
        let id = self.new_tag();
        upload.started_ns = now_ns();
        upload.head.upload = id.clone();
        // Creates the pool of the class if necessary, or refuses the class.
        self.classes.pool_for_write(&upload.head.class).await?;
        let entry = UploadEntry {
            begun_ns: upload.started_ns,
            owner: upload.head.owner.clone(),
            class: upload.head.class.clone(),
        };
        // The upload is listed first: a listed upload that does not exist can be aborted, but an upload that is not listed would
        // stay forever.
        index::add_upload(self, bucket, key, &id, &entry).await?;
        if !record::create(&self.pools.data, &upload_name(bucket, key, &id), &upload).await? {
            let detail = format!("{id} was given out before");
            return Err(Error::Internal { what: "the id of an upload", detail });
        }
        Ok(id)
    }

    /// An upload, its mark and its RADOS version; `None` if it does not exist.
    async fn marked_upload(&self, name: &str) -> Result<Option<(Upload, Option<String>, u64)>> {
        let mut asked = record::FIRST_READ_BYTES;
        let (bytes, mut reply) = loop {
            let mut op = ReadOp::new();
            op.read(0, asked).omap_get_vals_by_keys(vec![Bytes::from_static(MARK)]);
            let reply = self.pools.data.operate_read(name, op).await.and_then(|reply| reply.success());
            let mut reply = match reply {
                Err(error) if error.is_not_found() => return Ok(None),
                reply => reply?,
            };
            let bytes = reply.output(0)?;
            if (bytes.len() as u64) < asked || asked == MAX_UPLOAD_BYTES {
                break (bytes, reply);
            }
            asked = MAX_UPLOAD_BYTES;
        };
        let upload = record::decode::<Upload>(name, &bytes)?;
        let mark = reply.pairs(1)?.remove(MARK).map(|tag| String::from_utf8_lossy(&tag).into_owned());
        Ok(Some((upload, mark, reply.version)))
    }

    /// An upload. Fails with [`Error::NoSuchUpload`] if it does not exist.
    pub async fn read_upload(&self, bucket: &Bucket, key: &str, id: &str) -> Result<Upload> {
        let found = record::read::<Upload>(&self.pools.data, &upload_name(bucket, key, id)).await?;
        found.map(|(upload, _)| upload).ok_or(Error::NoSuchUpload)
    }

    /// Writes a part's data into its upload's storage class and lists the part, in place of an earlier part with its number.
    /// `seal` gets the digests when all data has been taken. The body is encrypted with the key that `salt` belongs to.
    pub async fn put_part(
        self: &Arc<Gateway>,
        bucket: &Bucket,
        place: PartId<'_>,
        (mut body, salt): (UploadBody, Option<Salt>),
        length: Option<u64>,
        seal: impl FnOnce(Digests) -> Result<(String, Option<StoredChecksum>)>,
    ) -> Result<Part> {
        let PartId { key, upload, number, class } = place;
        let pool = self.classes.pool_for_write(class).await?;
        let name = upload_name(bucket, key, upload);
        let absent = |error: nacre_client::Error| {
            if error.is_not_found() { Error::NoSuchUpload } else { error.into() }
        };
        let tag = self.new_tag();
        let most = body.stored_len(length.unwrap_or(MAX_PART_BYTES));
        let mut tails = Tails { name: tails_name(bucket, class, &tag), count: tail_count(most) };
        let usage = |bytes| QuotaUsage { objects: 0, bytes };
        let held = self
            .reserve_quota(bucket, &tag, usage(length.unwrap_or(0)), ReservationKind::Part(upload))
            .await?;
        let mut op = WriteOp::new();
        let intent = PartIntent { tails: tails.clone() };
        // The write fails if the upload is marked, so a gateway that clears up a marked upload sees all intents.
        op.assert_exists()
            .omap_cmp(vec![(Bytes::from_static(MARK), CmpOp::Eq, Bytes::new())])
            .omap_set(vec![(intent_key(&tag), record::encode(&intent))]);
        match self.pools.data.operate(&name, op).await.and_then(|reply| reply.success()) {
            Err(error) if error.errno() == nacre_types::errno::Errno::ECANCELED => {
                return Err(Error::NoSuchUpload);
            }
            noted => drop(noted.map_err(absent)?),
        }
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
        match self.list_part(&name, number, &tag, &part).await {
            // The gateway that completed or aborted the upload discarded only what had been written by then.
            Err(Error::NoSuchUpload) => {
                self.garbage.queue(std::slice::from_ref(&part.tails)).await?;
                Err(Error::NoSuchUpload)
            }
            listed => {
                listed?;
                if let Some(held) = held {
                    held.keep();
                }
                Ok(part)
            }
        }
    }

    /// Lists a part whose data is written, in place of an earlier part with its number.
    async fn list_part(&self, name: &str, number: u32, tag: &str, part: &Part) -> Result<()> {
        let absent = |error: nacre_client::Error| {
            if error.is_not_found() { Error::NoSuchUpload } else { error.into() }
        };
        let mark = Bytes::from_static(MARK);
        for _ in 0..ATTEMPTS {
            let wanted = vec![part_key(number), mark.clone()];
            let mut found = self.pools.data.omap_get_vals_by_keys(name, wanted).await.map_err(absent)?;
            if found.contains_key(&mark) {
                return Err(Error::NoSuchUpload);
            }
            let old = found.remove(&part_key(number)).unwrap_or_default();
            let replaced = (!old.is_empty())
                .then(|| record::decode::<Part>(name, &old))
                .transpose()?
                .map(|old| old.tails);
            let mut set = vec![(part_key(number), record::encode(part))];
            // Until the replaced part is recorded as garbage, an intent names its tails.
            let left =
                replaced.as_ref().map(|tails| intent_key(tails.name.rsplit('_').next().unwrap_or_default()));
            if let (Some(key), Some(tails)) = (&left, &replaced) {
                set.push((key.clone(), record::encode(&PartIntent { tails: tails.clone() })));
            }
            let mut op = WriteOp::new();
            op.assert_exists()
                .omap_cmp(vec![(part_key(number), CmpOp::Eq, old), (mark.clone(), CmpOp::Eq, Bytes::new())])
                .omap_set(set)
                .omap_rm_keys(vec![intent_key(tag)]);
            match self.pools.data.operate(name, op).await.and_then(|reply| reply.success()) {
                Ok(_) => {}
                Err(error) if error.errno() == nacre_types::errno::Errno::ECANCELED => continue,
                Err(error) => return Err(absent(error)),
            }
            if let (Some(key), Some(tails)) = (left, replaced) {
                self.garbage.queue(&[tails]).await?;
                match self.pools.data.omap_rm_keys(name, vec![key]).await {
                    // The upload was ended meanwhile, and all of its tails were discarded.
                    Err(error) if error.is_not_found() => {}
                    removed => removed?,
                }
            }
            return Ok(());
        }
        Err(Error::Contended(format!("part {number}")))
    }

    /// At most `max` parts of an upload with numbers above `after`, and whether there are more.
    pub async fn parts(
        &self,
        bucket: &Bucket,
        key: &str,
        id: &str,
        after: u32,
        max: u64,
    ) -> Result<(Vec<(u32, Part)>, bool)> {
        let name = upload_name(bucket, key, id);
        let page = self.pools.data.omap_get_vals(&name, part_key(after), "p", max.min(PAGE)).await;
        let page = match page {
            Err(error) if error.is_not_found() => return Err(Error::NoSuchUpload),
            page => page?,
        };
        let mut parts = Vec::with_capacity(page.entries.len());
        for (key, value) in &page.entries {
            let number = std::str::from_utf8(&key[1..]).ok().and_then(|digits| digits.parse().ok());
            parts.push((number.unwrap_or(0), record::decode::<Part>(&name, value)?));
        }
        Ok((parts, page.more))
    }

    async fn all_parts(&self, bucket: &Bucket, key: &str, id: &str) -> Result<Vec<(u32, Part)>> {
        let mut all: Vec<(u32, Part)> = Vec::new();
        loop {
            let after = all.last().map_or(0, |(number, _)| *number);
            let (parts, more) = self.parts(bucket, key, id, after, PAGE).await?;
            all.extend(parts);
            if !more {
                return Ok(all);
            }
        }
    }

    /// Makes an object of an upload's parts. `seal` gets the named parts with their numbers; it completes the head or fails.
    pub async fn complete_upload(
        self: &Arc<Gateway>,
        bucket: &Arc<Bucket>,
        (key, id): (&str, &str),
        named: Vec<RequestedPart>,
        (condition, cause): (WriteCondition, Cause),
        seal: impl FnOnce(&Upload, &[(u32, Part)], &mut Head) -> Result<()> + Send + 'static,
    ) -> Result<Head> {
        let (gateway, bucket) = (Arc::clone(self), Arc::clone(bucket));
        let (key, id) = (key.to_owned(), id.to_owned());
        // A separate task, which completes even if the client disconnects.
        let completion = spawn_boxed(async move {
            gateway.try_complete_upload(&bucket, (&key, &id), &named, (condition, cause), seal).await
        });
        completion.await.map_err(Error::task_failed("the completion of an upload"))?
    }

    async fn try_complete_upload(
        self: &Arc<Gateway>,
        bucket: &Arc<Bucket>,
        (key, id): (&str, &str),
        named: &[RequestedPart],
        (condition, cause): (WriteCondition, Cause),
        seal: impl FnOnce(&Upload, &[(u32, Part)], &mut Head) -> Result<()>,
    ) -> Result<Head> {
        let name = upload_name(bucket, key, id);
        let Some((upload, mark, version)) = self.marked_upload(&name).await? else {
            // The reply to the attempt that completed the upload may have been lost.
            return match self.objects.head(&bucket.id, key).await? {
                Some((head, _)) if head.upload == id => Ok(head),
                _ => Err(Error::NoSuchUpload),
            };
        };
        if let Some(tag) = mark {
            return self.completed(bucket, key, id, &tag).await;
        }
        let there = self.all_parts(bucket, key, id).await?;
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
        head.tag = self.new_tag();
        head.data = DataLocation::Parts(chosen.len() as u32);
        seal(&upload, &chosen, &mut head)?;
        let usage = QuotaUsage { objects: 1, bytes: head.size };
        let held = self.reserve_quota(bucket, &head.tag, usage, ReservationKind::Completion(id)).await?;
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
        let events = self.change_events(bucket, key, types, &cause).await?;
        let (parts, upload) = (tails, Some(id.to_owned()));
        let intent = ChangeIntent { parts, upload, events: events.clone(), ..ChangeIntent::default() };
        let mut change = IndexOp::prepare(self, bucket, (key, &head.tag), intent).await?;
        let mut op = WriteOp::new();
        // This also fails if a part was listed since the parts were read.
        op.assert_version(version)
            .omap_set(vec![(Bytes::from_static(MARK), Bytes::from(head.tag.clone().into_bytes()))]);
        change.set_upload_marked();
        if let Err(error) = self.pools.data.operate(&name, op).await.and_then(|reply| reply.success()) {
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
        let head = put.commit(self, (Some(change), events), manifest.into(), None).await?;
        if let Some(held) = held {
            held.keep();
        }
        Ok(head)
    }

    /// Aborts an upload and discards its parts.
    pub async fn abort_upload(self: &Arc<Gateway>, bucket: &Bucket, key: &str, id: &str) -> Result<()> {
        let name = upload_name(bucket, key, id);
        let Some((_, mark, _)) = self.marked_upload(&name).await? else {
            // The upload may be listed without having been created.
            index::remove_upload(self, bucket, key, id).await?;
            return Err(Error::NoSuchUpload);
        };
        if let Some(tag) = &mark {
            if index::is_pending(self, bucket, key, tag).await? {
                self.recover_change(bucket, key, tag).await?;
                return Err(Error::IndexBusy(bucket.name.clone()));
            }
            if self.purge_completed_upload(bucket, key, id, tag).await?.is_some() {
                return Ok(());
            }
        }
        // After this write no completion can start, and none has started since the mark was read, which may be that of a failed
        // completion. If the upload became an object that was replaced, its parts are garbage already.
        let end = Bytes::from(self.new_tag().into_bytes());
        let mut op = WriteOp::new();
        op.assert_exists()
            .omap_cmp(vec![(Bytes::from_static(MARK), CmpOp::Eq, mark.unwrap_or_default().into())])
            .omap_set(vec![(Bytes::from_static(MARK), end)]);
        match self.pools.data.operate(&name, op).await.and_then(|reply| reply.success()) {
            Ok(_) => self.purge_upload(bucket, (key, id), &[]).await,
            Err(error) if error.is_not_found() => Err(Error::NoSuchUpload),
            // Another request completes or aborts the upload.
            Err(error) if error.errno() == nacre_types::errno::Errno::ECANCELED => {
                Err(Error::IndexBusy(bucket.name.clone()))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The outcome of an upload that carries the mark `new_tag`: the head of its object, or an error if it has not become one.
    async fn completed(self: &Arc<Gateway>, bucket: &Bucket, key: &str, id: &str, tag: &str) -> Result<Head> {
        // The order matters: a change that is no longer pending has its outcome.
        let pending = index::is_pending(self, bucket, key, tag).await?;
        if let Some(head) = self.purge_completed_upload(bucket, key, id, tag).await? {
            return Ok(head);
        }
        if pending {
            self.recover_change(bucket, key, tag).await?;
        }
        let marked = self.marked_upload(&upload_name(bucket, key, id)).await?;
        match marked {
            // The completion is in progress, or failed just now.
            Some((_, mark, _)) if pending || mark.as_deref() != Some(tag) => {
                Err(Error::IndexBusy(bucket.name.clone()))
            }
            _ => Err(Error::NoSuchUpload),
        }
    }

    /// The tails of an upload: those of its parts and of its intents; `None` if there is no upload.
    pub(crate) async fn upload_tails(
        &self,
        bucket: &Bucket,
        key: &str,
        id: &str,
    ) -> Result<Option<Vec<Tails>>> {
        let name = upload_name(bucket, key, id);
        let (mut all, mut after) = (Vec::new(), Bytes::new());
        loop {
            let page = match self.pools.data.omap_get_vals(&name, after.clone(), "", PAGE).await {
                Err(error) if error.is_not_found() => return Ok(None),
                page => page?,
            };
            for (key, value) in &page.entries {
                match key.first() {
                    Some(b'p') => all.push(record::decode::<Part>(&name, value)?.tails),
                    Some(b'i') => all.push(record::decode::<PartIntent>(&name, value)?.tails),
                    _ => {}
                }
            }
            match page.entries.last() {
                Some((key, _)) if page.more => after = key.clone(),
                _ => return Ok(Some(all)),
            }
        }
    }

    /// If the object with this tag exists, clears up the upload with the mark `new_tag`, except for the object's parts, and returns
    /// the object's head. Such a mark is never removed.
    async fn purge_completed_upload(
        &self,
        bucket: &Bucket,
        key: &str,
        id: &str,
        tag: &str,
    ) -> Result<Option<Head>> {
        let Some(ObjectReader { head, manifest, .. }) =
            self.objects.version_by_tag(&bucket.id, key, tag).await?
        else {
            return Ok(None);
        };
        let kept: Vec<&Tails> = manifest.parts.iter().map(|part| &part.tails).collect();
        self.purge_upload(bucket, (key, id), &kept).await?;
        Ok(Some(head))
    }

    /// Settles an upload whose completion is being finished for another gateway, while the completion is pending in `shard`. If
    /// the completion took effect, clears up the upload except for the object's parts; otherwise, the upload may be completed
    /// again.
    pub(crate) async fn resolve_upload(
        &self,
        bucket: &Bucket,
        shard: &str,
        end: &UploadResolution,
    ) -> Result<()> {
        let UploadResolution { key, upload, tag, completed } = end;
        let name = upload_name(bucket, key, upload);
        let marked = self.marked_upload(&name).await?;
        if marked.is_none_or(|(_, mark, _)| mark.as_deref() != Some(tag)) {
            return Ok(());
        }
        if !completed {
            return unmark_upload(&self.pools.data, &name, tag).await;
        }
        let noted = key::pending(key, tag);
        let found = self.pools.index.omap_get_vals_by_keys(shard, vec![noted.clone()]).await?;
        // If the record is gone, another gateway has settled the upload.
        let Some(pending) = found.get(&noted) else { return Ok(()) };
        let pending = record::decode::<Pending>(shard, pending)?;
        self.purge_upload(bucket, (key, upload), &pending.parts.iter().collect::<Vec<_>>()).await
    }

    /// Settles the uploads of a key whose completion was the change `new_tag`, which has format 1 and was made by a gateway that has
    /// ended. Clears them up if the object with that tag exists; otherwise they may be completed again.
    pub(crate) async fn resolve_v1_upload(&self, bucket: &Bucket, key: &str, tag: &str) -> Result<()> {
        for id in self.uploads_of(bucket, key).await? {
            let name = upload_name(bucket, key, &id);
            let marked = self.marked_upload(&name).await?;
            if marked.is_none_or(|(_, mark, _)| mark.as_deref() != Some(tag)) {
                continue;
            }
            if self.purge_completed_upload(bucket, key, &id, tag).await?.is_none() {
                unmark_upload(&self.pools.data, &name, tag).await?;
            }
        }
        Ok(())
    }

    /// Removes an upload whose mark is final, because it was completed or aborted, and discards its tails except for `kept`.
    pub(super) async fn purge_upload(
        &self,
        bucket: &Bucket,
        (key, id): (&str, &str),
        kept: &[&Tails],
    ) -> Result<()> {
        let name = upload_name(bucket, key, id);
        let mut after = Bytes::new();
        loop {
            let mut op = ReadOp::new();
            op.omap_get_vals(after.clone(), "", PAGE);
            let reply = self.pools.data.operate_read(&name, op).await.and_then(|reply| reply.success());
            let mut reply = match reply {
                Err(error) if error.is_not_found() => break,
                reply => reply?,
            };
            let page = reply.omap_vals(0)?;
            let mut garbage = Vec::new();
            for (key, value) in &page.entries {
                let tails = match key.first() {
                    Some(b'p') => record::decode::<Part>(&name, value)?.tails,
                    Some(b'i') => record::decode::<PartIntent>(&name, value)?.tails,
                    _ => continue,
                };
                if !kept.contains(&&tails) {
                    garbage.push(tails);
                }
            }
            self.garbage.queue(&garbage).await?;
            match page.entries.last() {
                Some((key, _)) if page.more => after = key.clone(),
                _ => break,
            }
        }
        index::remove_upload(self, bucket, key, id).await?;
        record::remove(&self.pools.data, &name).await?;
        self.quotas.release_upload(&bucket.id, id);
        Ok(())
    }
}

/// Removes the mark `new_tag` from an upload, if the upload carries it.
pub(super) async fn unmark_upload(pool: &IoCtx, name: &str, tag: &str) -> Result<()> {
    let mark = Bytes::from_static(MARK);
    let mut op = WriteOp::new();
    op.assert_exists()
        .omap_cmp(vec![(mark.clone(), CmpOp::Eq, Bytes::from(tag.to_owned().into_bytes()))])
        .omap_rm_keys(vec![mark]);
    match pool.operate(name, op).await.and_then(|reply| reply.success()) {
        Err(error) if error.is_not_found() || error.errno() == nacre_types::errno::Errno::ECANCELED => Ok(()),
        released => Ok(released.map(drop)?),
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
    fn records_of_uploads_with_a_class_refuse_readers_that_know_none() {
        for class in ["", "COLD"] {
            let version = if class.is_empty() { 1 } else { 2 };
            let head = Head { owner: "o".into(), class: class.into(), ..Head::default() };
            let upload = Upload::new(head, "CRC32", true);
            let encoded = record::encode(&upload);
            assert_eq!(encoded[1], version);
            assert_eq!(record::decode::<Upload>("upload", &encoded).unwrap(), upload);
            let entry = UploadEntry { begun_ns: 7, owner: "o".into(), class: class.into() };
            let encoded = record::encode(&entry);
            assert_eq!(encoded[1], version);
            assert_eq!(record::decode::<UploadEntry>("shard", &encoded).unwrap(), entry);
            let tails = Tails { name: tails_name(&Bucket::default(), class, "0f"), count: 1 };
            let intent = PartIntent { tails: tails.clone() };
            let encoded = record::encode(&intent);
            assert_eq!(encoded[1], version);
            assert_eq!(record::decode::<PartIntent>("upload", &encoded).unwrap(), intent);
            let part =
                Part { size: 5, mtime_ns: 6, etag: "e".into(), checksum: None, tails, salt: Some([3; 32]) };
            let encoded = record::encode(&part);
            assert_eq!(encoded[1], version);
            assert_eq!(record::decode::<Part>("upload", &encoded).unwrap(), part);
        }
    }

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
