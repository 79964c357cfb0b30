//! Bucket indexes: RADOS objects in `default.rgw.buckets.index` whose omap says what a bucket holds
//! (docs/format/rgw.md).
//!
//! An object's own head is what commits a change of it: a reader of the object never looks here. Before the head is
//! written an entry *pending* is made here; after it, when the client has its answer, [`finish`] replaces the entry of the
//! object and takes the pending one away, many at a time. A listing asks the heads of those keys that have something
//! pending. So index and head never disagree for a reader, whatever stops between the steps.

mod closure;
mod finish;
mod heal;
mod list;
mod reshard;
mod versions;

pub(crate) use closure::{Closed, Closing, Found, close, create, look, open, open_state, release};
pub(crate) use finish::{Finished, Finisher, Outcome};
pub(crate) use heal::Suspect;
pub(crate) use list::{ListQuery, Listing};
pub(crate) use reshard::work as reshard;
pub use reshard::{MAX_SHARDS, ReshardEntry};
pub(crate) use versions::ListedVersion;

use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::gateway::{Gateway, now_ns};
use crate::object::multipart::UploadEntry;
use crate::record;
use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use nacre_client::{IoCtx, WriteOp};
use nacre_types::encoding::Versioned;
use nacre_types::hash::ceph_str_hash_rjenkins;
use nacre_types::op::CmpOp;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The key of a shard's sums.
pub(crate) const STATS: &[u8] = b"s";
/// Shards whose sums are read at the same time.
const SUMS: usize = 16;
/// Uploads of a key read at a time.
const UPLOADS: u64 = 100;
/// How long a change waits for a bucket that is being resharded, and how often it looks.
pub(crate) const RESHARD_PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const RESHARD_LOOK: Duration = Duration::from_millis(50);
/// Bytes of a tag.
const TAG_BYTES: usize = 32;

/// What a bucket's index says of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// The RADOS version of the object's head when this was so; of two, the higher one counts.
    pub(crate) version: u64,
    /// The tag of the write that made it.
    pub(crate) tag: String,
    /// The object was removed; the entry stays until nothing older can arrive any more.
    pub(crate) removed: bool,
    /// Bytes.
    pub(crate) size: u64,
    /// Nanoseconds since 1970.
    pub(crate) mtime_ns: u64,
    /// Without quotes.
    pub(crate) etag: String,
    /// The owner's id.
    pub(crate) owner: String,
    /// RADOS objects that hold its data beside the head. Of an object with versions none: what belongs to those is known
    /// by who removes them. There may be thousands, so they have a key of their own ([`tails_key`]), which listings do not
    /// read.
    #[serde(skip)]
    pub(crate) tails: Vec<Tails>,
    /// The current version is a delete marker: there is no object for who does not ask for versions.
    pub(crate) marker: bool,
    /// What all its versions come to, where it has versions.
    pub(crate) held: Option<Stats>,
}

impl Entry {
    /// Whether `known` says this or what came after it of the same write.
    fn is_known(&self, known: &Entry) -> bool {
        known.tag == self.tag && known.version >= self.version
    }

    /// An entry as a shard has it, with its tails.
    fn stored(shard: &str, entry: &[u8], tails: Option<&Bytes>) -> Result<Entry> {
        let entry = record::decode::<Entry>(shard, entry)?;
        let tails = tails.map(|tails| record::decode::<EntryTails>(shard, tails)).transpose()?;
        Ok(Entry { tails: tails.unwrap_or_default().tails, ..entry })
    }

    /// The value of the key of its tails, where it has any.
    pub(crate) fn encoded_tails(&self) -> Option<Bytes> {
        (!self.tails.is_empty()).then(|| record::encode(&EntryTails { tails: self.tails.clone() }))
    }

    /// What the key adds to its shard's sums.
    pub(crate) fn counted(&self) -> Stats {
        match self.held {
            _ if self.removed => Stats::default(),
            Some(held) => held,
            None => Stats { objects: 1, bytes: self.size },
        }
    }
}

/// What an object that an entry is of has beside its head.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EntryTails {
    pub(crate) tails: Vec<Tails>,
}

/// A run of RADOS objects that hold data: `NAME_0`, `NAME_1`, …
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tails {
    /// What their names begin with.
    pub(crate) name: String,
    /// How many.
    pub(crate) count: u64,
}

/// A change that was begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pending {
    /// When, in nanoseconds since 1970.
    pub(crate) begun_ns: u64,
    /// The session of the gateway that began it, as blocklists name it.
    pub(crate) session: String,
    /// What it may have written besides the head.
    pub(crate) tails: Option<Tails>,
    /// What nothing names any more when it is done: data of a version that it removes.
    pub(crate) replaced: Vec<Tails>,
    /// Parts that an upload named and that the object names when it is done.
    pub(crate) parts: Vec<Tails>,
}

/// Sums of objects, each version by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stats {
    /// Objects.
    pub(crate) objects: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
}

impl Stats {
    pub(crate) fn add(&mut self, other: Stats) {
        self.objects += other.objects;
        self.bytes += other.bytes;
    }

    pub(crate) fn subtract(&mut self, other: Stats) {
        self.objects = self.objects.saturating_sub(other.objects);
        self.bytes = self.bytes.saturating_sub(other.bytes);
    }
}

impl Versioned for Entry {
    const NAME: &'static str = "index entry";
}

impl Versioned for EntryTails {
    const NAME: &'static str = "tails of an index entry";
}

impl Versioned for Pending {
    const NAME: &'static str = "pending index entry";
}

impl Versioned for Stats {
    const NAME: &'static str = "index sums";
}

/// The name of a shard's RADOS object.
pub(crate) fn shard_name(bucket: &Bucket, shard: u32) -> String {
    format!(".dir.{}.{}.{shard}", bucket.id, bucket.generation)
}

/// The id of the bucket that a shard belongs to.
pub(crate) fn bucket_id(shard: &str) -> &str {
    shard.strip_prefix(".dir.").and_then(|rest| rest.split('.').next()).unwrap_or_default()
}

/// The shard that a key belongs to.
pub(crate) fn shard_of(bucket: &Bucket, key: &str) -> String {
    shard_name(bucket, ceph_str_hash_rjenkins(key.as_bytes()) % bucket.shards.max(1))
}

pub(crate) fn entry_key(key: &str) -> Bytes {
    [b"o", key.as_bytes()].concat().into()
}

/// The key of an entry's tails.
pub(crate) fn tails_key(key: &str) -> Bytes {
    [b"t", key.as_bytes()].concat().into()
}

pub(crate) fn pending_key(key: &str, tag: &str) -> Bytes {
    [b"p", key.as_bytes(), b"\0", tag.as_bytes()].concat().into()
}

/// Takes a pending entry's key apart: key and tag.
pub(crate) fn pending_of(bytes: &[u8]) -> Option<(&str, &str)> {
    let (key, tag) = bytes.strip_prefix(b"p")?.split_at_checked(bytes.len().checked_sub(2 + TAG_BYTES)?)?;
    let tag = tag.strip_prefix(b"\0")?;
    Some((std::str::from_utf8(key).ok()?, std::str::from_utf8(tag).ok()?))
}

/// Removes an index.
pub(crate) async fn remove(pool: &IoCtx, bucket: &Bucket) -> Result<()> {
    for_all(bucket, |shard| {
        let mut op = WriteOp::new();
        op.remove();
        pool.operate(&shard, op)
    })
    .await
}

/// Does something with all shards at once; one that is absent is left out.
async fn for_all(
    bucket: &Bucket,
    each: impl Fn(String) -> nacre_client::Pending<nacre_client::OpReply>,
) -> Result<()> {
    let all = (0..bucket.shards.max(1)).map(|shard| each(shard_name(bucket, shard)));
    for reply in futures::future::join_all(all).await {
        match reply.and_then(|reply| reply.success()) {
            Err(error) if error.is_not_found() => {}
            done => drop(done?),
        }
    }
    Ok(())
}

/// Notes that the object `key` is about to change, in the shard that it belongs to. Fails with [`Error::IndexBusy`] where that
/// is closed or gone, or not as `bucket` has it.
pub(crate) async fn begin(
    gateway: &Gateway,
    bucket: &Bucket,
    (shard, key): (&str, &str),
    tag: &str,
    (tails, replaced, parts): (Option<Tails>, Vec<Tails>, Vec<Tails>),
) -> Result<()> {
    gateway.hold_lease().await?;
    let (begun_ns, session) = (now_ns(), gateway.session().to_owned());
    let pending = Pending { begun_ns, session, tails, replaced, parts };
    let mut op = WriteOp::new();
    closure::guard(&mut op, bucket);
    op.omap_set(vec![(pending_key(key, tag), record::encode(&pending))]);
    let reply = gateway.pools.index.operate(shard, op).await;
    match reply.and_then(|reply| reply.success()).map_err(Error::from) {
        Ok(_) => Ok(()),
        Err(error) if error.is_canceled() || error.is_absent() => {
            Err(closure::busy(gateway, bucket, shard).await)
        }
        Err(error) => Err(error),
    }
}

pub(crate) fn upload_key(key: &str, id: &str) -> Bytes {
    [b"m", key.as_bytes(), b"\0", id.as_bytes()].concat().into()
}

/// Takes the name of an upload's entry apart: key and id.
pub(crate) fn upload_of(bytes: &[u8]) -> Option<(&str, &str)> {
    let (key, id) = bytes.strip_prefix(b"m")?.split_at_checked(bytes.len().checked_sub(2 + TAG_BYTES)?)?;
    Some((std::str::from_utf8(key).ok()?, std::str::from_utf8(id.strip_prefix(b"\0")?).ok()?))
}

/// Lists an upload.
pub(crate) async fn add_upload(
    gateway: &Gateway,
    bucket: &Bucket,
    key: &str,
    id: &str,
    entry: &UploadEntry,
) -> Result<()> {
    let shard = shard_of(bucket, key);
    let mut op = WriteOp::new();
    closure::guard(&mut op, bucket);
    op.omap_set(vec![(upload_key(key, id), record::encode(entry))]);
    let reply = gateway.pools.index.operate(&shard, op).await;
    match reply.and_then(|reply| reply.success()).map_err(Error::from) {
        Err(error) if error.is_canceled() || error.is_absent() => {
            Err(closure::busy(gateway, bucket, &shard).await)
        }
        done => done.map(drop),
    }
}

/// Takes an upload off the list; of an index that is being resharded when that is done. As long as the change `tag`, the
/// upload's completion, is pending there is nothing to wait for: what it was noted in is not copied to the end.
pub(crate) async fn remove_upload(
    gateway: &Gateway,
    bucket: &Bucket,
    key: &str,
    id: &str,
    tag: Option<&str>,
) -> Result<()> {
    if let Some(tag) = tag {
        let mut op = WriteOp::new();
        op.assert_exists()
            .omap_cmp(vec![(pending_key(key, tag), CmpOp::Gt, Bytes::new())])
            .omap_rm_keys(vec![upload_key(key, id)]);
        let reply = gateway.pools.index.operate(&shard_of(bucket, key), op).await;
        match reply.and_then(|reply| reply.success()).map_err(Error::from) {
            Err(error) if error.is_canceled() || error.is_absent() => {}
            removed => return removed.map(drop),
        }
    }
    let deadline = Instant::now() + RESHARD_PATIENCE;
    let mut fresh: Option<Bucket> = None;
    loop {
        match try_remove_upload(gateway, fresh.as_ref().unwrap_or(bucket), key, id).await {
            Err(Error::IndexBusy(_)) if Instant::now() < deadline => {}
            removed => return removed,
        }
        tokio::time::sleep(RESHARD_LOOK).await;
        match gateway.bucket(&bucket.name).await {
            Ok(now) if now.id == bucket.id => fresh = Some(now),
            // It is gone, and the index with it.
            Ok(_) | Err(Error::NoSuchBucket(_)) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Takes an upload off the list, unless the shard may have been copied already.
async fn try_remove_upload(gateway: &Gateway, bucket: &Bucket, key: &str, id: &str) -> Result<()> {
    let shard = shard_of(bucket, key);
    let mut op = WriteOp::new();
    closure::guard_loss(&mut op, bucket);
    op.omap_rm_keys(vec![upload_key(key, id)]);
    let reply = gateway.pools.index.operate(&shard, op).await;
    match reply.and_then(|reply| reply.success()).map_err(Error::from) {
        Err(error) if error.is_canceled() || error.is_absent() => {
            Err(closure::busy(gateway, bucket, &shard).await)
        }
        removed => removed.map(drop),
    }
}

/// What it means that an operation on a shard failed so: where that is gone, the index is being resharded or removed.
fn moved(gateway: &Gateway, bucket: &Bucket, error: nacre_client::Error) -> Error {
    if !error.is_not_found() {
        return error.into();
    }
    gateway.forget_bucket(&bucket.name);
    Error::IndexBusy(bucket.name.clone())
}

/// Whether the change of that tag is pending.
pub(crate) async fn is_pending(gateway: &Gateway, bucket: &Bucket, key: &str, tag: &str) -> Result<bool> {
    let name = pending_key(key, tag);
    let found = gateway.pools.index.omap_get_vals_by_keys(&shard_of(bucket, key), vec![name.clone()]).await;
    Ok(found.map_err(|error| moved(gateway, bucket, error))?.contains_key(&name))
}

/// Whether anything that was begun is not finished yet.
pub(crate) async fn has_pending(pool: &IoCtx, bucket: &Bucket) -> Result<bool> {
    let shards =
        (0..bucket.shards.max(1)).map(|shard| pool.omap_get_vals(&shard_name(bucket, shard), "", "p", 1));
    for page in futures::future::join_all(shards).await {
        match page {
            Err(error) if error.is_not_found() => {}
            page => {
                if !page?.entries.is_empty() {
                    return Ok(true);
                }
            }
        }
    }
    Ok(false)
}

impl Gateway {
    /// The uploads of a key.
    pub(crate) async fn uploads_of(&self, bucket: &Bucket, key: &str) -> Result<Vec<String>> {
        let shard = shard_of(bucket, key);
        let prefix = upload_key(key, "");
        let mut ids = Vec::new();
        let mut after = prefix.clone();
        loop {
            let page = self.pools.index.omap_get_vals(&shard, after.clone(), prefix.clone(), UPLOADS).await;
            let page = page.map_err(|error| moved(self, bucket, error))?;
            let Some((last, _)) = page.entries.last() else { return Ok(ids) };
            after = last.clone();
            let found = page.entries.iter().map(|(name, _)| &name[prefix.len()..]);
            // Of longer keys that begin as this one and a zero there may be some.
            let own = found.filter(|id| id.len() == TAG_BYTES && !id.contains(&0));
            ids.extend(own.map(|id| String::from_utf8_lossy(id).into_owned()));
            if !page.more {
                return Ok(ids);
            }
        }
    }

    /// At most `max` uploads behind `after` (key and id) whose keys begin with `prefix`, by key and id, and whether there
    /// are more.
    pub(crate) async fn uploads(
        &self,
        bucket: &Bucket,
        prefix: &str,
        after: Option<(&str, &str)>,
        max: usize,
    ) -> Result<(Vec<(String, String, UploadEntry)>, bool)> {
        let mut all = Vec::new();
        let mut more = false;
        // An id that was not named is behind all that there are.
        let begin = after
            .map_or_else(Bytes::new, |(key, id)| upload_key(key, if id.is_empty() { "\u{7f}" } else { id }));
        for shard in 0..bucket.shards.max(1) {
            let name = shard_name(bucket, shard);
            let filter = [b"m", prefix.as_bytes()].concat();
            let page = self.pools.index.omap_get_vals(&name, begin.clone(), filter, max as u64 + 1).await;
            let page = page.map_err(|error| moved(self, bucket, error))?;
            for (key, value) in &page.entries {
                if let Some((key, id)) = upload_of(key) {
                    all.push((key.to_owned(), id.to_owned(), record::decode::<UploadEntry>(&name, value)?));
                }
            }
            more |= page.more;
        }
        all.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
        more |= all.len() > max;
        all.truncate(max);
        Ok((all, more))
    }

    /// Whether a bucket holds nothing that a listing would show, nor versions.
    pub(crate) async fn is_empty(self: &Arc<Gateway>, bucket: &Bucket) -> Result<bool> {
        let query = ListQuery { max: 1, markers: true, ..ListQuery::default() };
        let found = self.list(bucket, &query).await?;
        Ok(found.entries.is_empty())
    }

    /// Objects and bytes of a bucket, without what is pending.
    pub async fn bucket_usage(&self, bucket: &Bucket) -> Result<(u64, u64)> {
        let of_shard = |shard| async move {
            let name = shard_name(bucket, shard);
            let found = self.pools.index.omap_get_vals_by_keys(&name, vec![Bytes::from_static(STATS)]).await;
            let found = found.map_err(|error| moved(self, bucket, error))?;
            found.get(STATS).map_or(Ok(Stats::default()), |value| record::decode::<Stats>(&name, value))
        };
        let mut all = stream::iter(0..bucket.shards.max(1)).map(of_shard).buffer_unordered(SUMS);
        let mut sums = Stats::default();
        while let Some(of_shard) = all.try_next().await? {
            sums.add(of_shard);
        }
        Ok((sums.objects, sums.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pending_keys_say_what_they_are_of() {
        let tag = "0123456789abcdef0123456789abcdef";
        for key in ["a", "a/b", "ключ", "with\0zero", ""] {
            assert_eq!(pending_of(&pending_key(key, tag)), Some((key, tag)));
        }
        assert_eq!(pending_of(b"p"), None);
        assert_eq!(pending_of(&entry_key(&format!("k\0{tag}"))), None);
    }
}
