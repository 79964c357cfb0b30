//! The records of multipart uploads. An upload has a RADOS object in the data pool, whose omap lists its parts, and an entry in
//! the bucket's index, by which it is found (docs/format/rgw.md).
//!
//! A part's data is recorded before it is written, and the part is listed afterwards, so that an aborted upload leaves nothing
//! behind. An upload is marked with the tag of the write that completes it, after that write is pending in the index and before
//! its head is written. From then on no part is listed or replaced. A completion that fails removes its mark before it ceases to
//! be pending. So if the write of a mark is not pending, the upload became an object or is being aborted: its parts are never
//! used a second time.

mod ending;
mod parts;

use crate::bucket::{Bucket, Buckets};
use crate::connection::Connection;
use crate::crypt::Salt;
use crate::error::{Error, Result};
use crate::execute;
use crate::garbage::GarbageQueue;
use crate::quota_cache::QuotaCache;
use crate::record;
use crate::shards::{
    IndexShards, RESHARD_POLL_INTERVAL, RESHARD_WAIT_TIMEOUT, open_state, shard_name, shard_of,
};
use crate::storage_classes::StorageClasses;
use crate::stored::{Head, HeadV1, StoredChecksum, StoredObjects};
use crate::time::now_ns;
use bytes::Bytes;
use nacre_client::{IoCtx, ReadOp};
use nacre_index::key::{self, IndexRecordKind};
use nacre_index::op::{Guard, Step, Write};
use nacre_index::record::Tails;
use nacre_index::state;
use nacre_types::encoding::{self, DecodeError, Versioned};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Instant;

/// The largest record of an upload; a larger one is damaged.
const MAX_UPLOAD_BYTES: u64 = 4 << 20;
/// Uploads of a key per page.
const UPLOADS: u64 = 100;
/// The omap key of an upload's mark: the tag of the operation that completes or aborts the upload.
const MARK: &[u8] = b"c";

/// The index entry of an upload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadEntry {
    /// Nanoseconds since 1970.
    pub begun_ns: u64,
    /// The id of the user that owns the upload.
    pub owner: String,
    /// The storage class; empty for STANDARD, in which case it is not encoded.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub class: String,
}

impl Versioned for UploadEntry {
    const NAME: &'static str = "index entry of an upload";
    const VERSION: u8 = 2;
    const COMPAT: u8 = 2;

    fn envelope(&self) -> (u8, u8) {
        if self.class.is_empty() { (1, 1) } else { (2, 2) }
    }

    fn decode_old(_version: u8, body: &[u8]) -> Result<UploadEntry, DecodeError> {
        let (begun_ns, owner) = encoding::decode_body(Self::NAME, body)?;
        Ok(UploadEntry { begun_ns, owner, class: String::new() })
    }
}

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
    pub(crate) tails: Tails,
    /// The salt that the key to the data is derived with, if the upload is encrypted.
    pub(crate) salt: Option<Salt>,
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

pub(crate) fn upload_name(bucket: &Bucket, key: &str, id: &str) -> String {
    format!("{}__multipart_{key}.{id}", bucket.id)
}

fn part_key(number: u32) -> Bytes {
    format!("p{number:05}").into()
}

fn intent_key(tag: &str) -> Bytes {
    format!("i{tag}").into()
}

impl Upload {
    /// An upload of an object with this head.
    pub fn new(head: Head, algorithm: &str, whole: bool) -> Upload {
        Upload { head, started_ns: 0, algorithm: algorithm.to_owned(), whole }
    }
}

/// The uploads of all buckets.
pub struct Uploads {
    connection: Arc<Connection>,
    buckets: Arc<Buckets>,
    shards: Arc<IndexShards>,
    classes: Arc<StorageClasses>,
    objects: Arc<StoredObjects>,
    garbage: Arc<GarbageQueue>,
    quotas: Arc<QuotaCache>,
}

impl Uploads {
    pub(crate) fn new(
        connection: &Arc<Connection>,
        (buckets, shards): (&Arc<Buckets>, &Arc<IndexShards>),
        (classes, objects): (&Arc<StorageClasses>, &Arc<StoredObjects>),
        garbage: &Arc<GarbageQueue>,
        quotas: &Arc<QuotaCache>,
    ) -> Uploads {
        Uploads {
            connection: Arc::clone(connection),
            buckets: Arc::clone(buckets),
            shards: Arc::clone(shards),
            classes: Arc::clone(classes),
            objects: Arc::clone(objects),
            garbage: Arc::clone(garbage),
            quotas: Arc::clone(quotas),
        }
    }

    /// The pool of uploads' objects.
    fn data(&self) -> &IoCtx {
        &self.connection.pools.data
    }

    /// Creates an upload and returns its id.
    pub async fn create(&self, bucket: &Bucket, key: &str, mut upload: Upload) -> Result<String> {
        let id = self.connection.new_tag();
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
        self.add_entry(bucket, key, &id, &entry).await?;
        if !record::create(self.data(), &upload_name(bucket, key, &id), &upload).await? {
            let detail = format!("{id} was given out before");
            return Err(Error::Internal { what: "the id of an upload", detail });
        }
        Ok(id)
    }

    /// An upload. Fails with [`Error::NoSuchUpload`] if it does not exist.
    pub async fn read(&self, bucket: &Bucket, key: &str, id: &str) -> Result<Upload> {
        let found = record::read::<Upload>(self.data(), &upload_name(bucket, key, id)).await?;
        found.map(|(upload, _)| upload).ok_or(Error::NoSuchUpload)
    }

    /// An upload, its mark and its RADOS version; `None` if it does not exist.
    pub(crate) async fn marked(&self, name: &str) -> Result<Option<(Upload, Option<String>, u64)>> {
        let mut asked = record::FIRST_READ_BYTES;
        let (bytes, mut reply) = loop {
            let mut op = ReadOp::new();
            op.read(0, asked).omap_get_vals_by_keys(vec![Bytes::from_static(MARK)]);
            let reply = self.data().operate_read(name, op).await.and_then(|reply| reply.success());
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

    /// Adds an upload to the list of uploads.
    async fn add_entry(&self, bucket: &Bucket, key: &str, id: &str, entry: &UploadEntry) -> Result<()> {
        let shard = shard_of(bucket, key);
        let write = Write {
            guards: vec![Guard::Exists, state::guard_equals(open_state(bucket))],
            steps: vec![Step::OmapSet(vec![(key::upload(key, id), record::encode(entry))])],
        };
        match execute::write(self.shards.pool(), &shard, write).await {
            Err(error) if error.is_canceled() || error.is_not_found() => {
                Err(self.shards.recover_closed(bucket, &shard).await)
            }
            done => done.map(drop),
        }
    }

    /// Removes an upload from the list of uploads. Waits while the records of the index are being moved.
    pub(crate) async fn remove_entry(&self, bucket: &Bucket, key: &str, id: &str) -> Result<()> {
        let deadline = Instant::now() + RESHARD_WAIT_TIMEOUT;
        let mut fresh: Option<Bucket> = None;
        loop {
            let shard = shard_of(fresh.as_ref().unwrap_or(bucket), key);
            let write = Write {
                guards: vec![Guard::Exists, state::guard_not_frozen()],
                steps: vec![Step::OmapRemove(vec![key::upload(key, id)])],
            };
            match execute::write(self.shards.pool(), &shard, write).await {
                Err(error) if error.is_canceled() || error.is_not_found() => {}
                removed => return removed.map(drop),
            }
            if Instant::now() > deadline {
                return Err(Error::IndexBusy(bucket.name.clone()));
            }
            tokio::time::sleep(RESHARD_POLL_INTERVAL).await;
            match self.buckets.record_without_documents(&bucket.name).await {
                Ok(now) if now.id == bucket.id => fresh = Some(now),
                // The bucket was removed, and its index with it.
                Ok(_) | Err(Error::NoSuchBucket(_)) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the ids of the uploads of a key.
    pub(crate) async fn ids_of(&self, bucket: &Bucket, key: &str) -> Result<Vec<String>> {
        let shard = shard_of(bucket, key);
        let prefix = key::prefix(IndexRecordKind::Upload, key);
        let mut ids = Vec::new();
        let mut after = prefix.clone();
        loop {
            let page = self.shards.pool().omap_get_vals(&shard, after.clone(), prefix.clone(), UPLOADS).await;
            let page = page.map_err(|error| self.shards.unavailable(bucket, error))?;
            let Some((last, _)) = page.entries.last() else { return Ok(ids) };
            after = last.clone();
            let found = page.entries.iter().map(|(name, _)| &name[prefix.len()..]);
            ids.extend(found.map(|id| String::from_utf8_lossy(id).into_owned()));
            if !page.more {
                return Ok(ids);
            }
        }
    }

    /// Returns at most `max` uploads after `after` (key and id) whose keys begin with `prefix`, by key and id, and whether
    /// there are more.
    pub async fn list(
        &self,
        bucket: &Bucket,
        prefix: &str,
        after: Option<(&str, &str)>,
        max: usize,
    ) -> Result<(Vec<(String, String, UploadEntry)>, bool)> {
        let mut all = Vec::new();
        let mut more = false;
        // Without an id, the listing continues after all uploads of that key.
        let begin = after
            .map_or_else(Bytes::new, |(key, id)| key::upload(key, if id.is_empty() { "\u{7f}" } else { id }));
        for shard in 0..bucket.shards.max(1) {
            let name = shard_name(bucket, shard);
            let filter = key::position(IndexRecordKind::Upload, prefix.as_bytes());
            let page = self.shards.pool().omap_get_vals(&name, begin.clone(), filter, max as u64 + 1).await;
            let page = page.map_err(|error| self.shards.unavailable(bucket, error))?;
            for (key, value) in &page.entries {
                if let Some(upload) = key::parse(key) {
                    all.push((upload.key, upload.suffix, record::decode::<UploadEntry>(&name, value)?));
                }
            }
            more |= page.more;
        }
        all.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
        more |= all.len() > max;
        all.truncate(max);
        Ok((all, more))
    }
}

#[cfg(test)]
mod tests;
