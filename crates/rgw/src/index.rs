//! Bucket indexes: RADOS objects in `default.rgw.buckets.index` whose omap says what a bucket holds
//! (docs/format/rgw.md).
//!
//! An object's own head is what commits a change of it: a reader of the object never looks here. Before the head is
//! written an entry *pending* is made here; after it, when the client has its answer, [`finish`] replaces the entry of the
//! object and takes the pending one away, many at a time. A listing asks the heads of those keys that have something
//! pending. So index and head never disagree for a reader, whatever stops between the steps.

mod finish;
mod heal;
mod list;

pub(crate) use finish::{Finished, Finisher, Outcome};
pub(crate) use list::{ListQuery, Listing};

use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::gateway::{Gateway, now_ns};
use crate::object::multipart::UploadEntry;
use crate::record;
use bytes::Bytes;
use nacre_client::{IoCtx, WriteOp};
use nacre_types::encoding::Versioned;
use nacre_types::hash::ceph_str_hash_rjenkins;
use nacre_types::op::CmpOp;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The attribute of a shard that says whether anything may be begun in it.
const STATE: &str = "rgw.state";
const OPEN: &str = "open";
const CLOSED: &str = "closed";
/// The key of a shard's sums.
const STATS: &[u8] = b"s";
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
    /// RADOS objects that hold its data beside the head.
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
    /// The session of the gateway that began it.
    pub(crate) session: String,
    /// What it may have written besides the head.
    pub(crate) tails: Option<Tails>,
}

/// A shard's sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stats {
    /// Objects.
    pub(crate) objects: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
}

impl Versioned for Entry {
    const NAME: &'static str = "index entry";
}

impl Versioned for Pending {
    const NAME: &'static str = "pending index entry";
}

impl Versioned for Stats {
    const NAME: &'static str = "index sums";
}

/// The name of a shard's RADOS object.
fn shard_name(bucket: &Bucket, shard: u32) -> String {
    format!(".dir.{}.{}.{shard}", bucket.id, bucket.generation)
}

/// The shard that a key belongs to.
pub(crate) fn shard_of(bucket: &Bucket, key: &str) -> String {
    shard_name(bucket, ceph_str_hash_rjenkins(key.as_bytes()) % bucket.shards.max(1))
}

fn entry_key(key: &str) -> Bytes {
    [b"o", key.as_bytes()].concat().into()
}

fn pending_key(key: &str, tag: &str) -> Bytes {
    [b"p", key.as_bytes(), b"\0", tag.as_bytes()].concat().into()
}

/// Takes a pending entry's key apart: key and tag.
fn pending_of(bytes: &[u8]) -> Option<(&str, &str)> {
    let (key, tag) = bytes.strip_prefix(b"p")?.split_at_checked(bytes.len().checked_sub(2 + TAG_BYTES)?)?;
    let tag = tag.strip_prefix(b"\0")?;
    Some((std::str::from_utf8(key).ok()?, std::str::from_utf8(tag).ok()?))
}

/// Makes an empty index.
pub(crate) async fn create(pool: &IoCtx, bucket: &Bucket) -> Result<()> {
    for_all(bucket, |shard| {
        let mut op = WriteOp::new();
        op.create(true).set_xattr(STATE, OPEN);
        pool.operate(&shard, op)
    })
    .await
}

/// Lets nothing be begun any more; what was begun is finished nevertheless.
pub(crate) async fn close(pool: &IoCtx, bucket: &Bucket) -> Result<()> {
    for_all(bucket, |shard| {
        let mut op = WriteOp::new();
        op.assert_exists().set_xattr(STATE, CLOSED);
        pool.operate(&shard, op)
    })
    .await
}

/// Opens a closed index again.
pub(crate) async fn open(pool: &IoCtx, bucket: &Bucket) -> Result<()> {
    for_all(bucket, |shard| {
        let mut op = WriteOp::new();
        op.assert_exists().set_xattr(STATE, OPEN);
        pool.operate(&shard, op)
    })
    .await
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

/// Notes that the object `key` is about to change. Fails with [`Error::IndexBusy`] where the index is closed or gone.
pub(crate) async fn begin(
    gateway: &Gateway,
    bucket: &Bucket,
    key: &str,
    tag: &str,
    tails: Option<Tails>,
) -> Result<()> {
    let pending = Pending { begun_ns: now_ns(), session: gateway.session().to_owned(), tails };
    let mut op = WriteOp::new();
    op.cmp_xattr(STATE, CmpOp::Eq, OPEN).omap_set(vec![(pending_key(key, tag), record::encode(&pending))]);
    let reply = gateway.pools.index.operate(&shard_of(bucket, key), op).await;
    match reply.and_then(|reply| reply.success()).map_err(Error::from) {
        Ok(_) => Ok(()),
        Err(error) if error.is_canceled() || error.is_absent() => {
            gateway.forget_bucket(&bucket.name);
            Err(Error::IndexBusy(bucket.name.clone()))
        }
        Err(error) => Err(error),
    }
}

fn upload_key(key: &str, id: &str) -> Bytes {
    [b"m", key.as_bytes(), b"\0", id.as_bytes()].concat().into()
}

/// Lists an upload.
pub(crate) async fn add_upload(
    gateway: &Gateway,
    bucket: &Bucket,
    key: &str,
    id: &str,
    entry: &UploadEntry,
) -> Result<()> {
    let mut op = WriteOp::new();
    op.cmp_xattr(STATE, CmpOp::Eq, OPEN).omap_set(vec![(upload_key(key, id), record::encode(entry))]);
    let reply = gateway.pools.index.operate(&shard_of(bucket, key), op).await;
    match reply.and_then(|reply| reply.success()).map_err(Error::from) {
        Err(error) if error.is_canceled() || error.is_absent() => Err(Error::IndexBusy(bucket.name.clone())),
        done => done.map(drop),
    }
}

/// Takes an upload off the list.
pub(crate) async fn remove_upload(gateway: &Gateway, bucket: &Bucket, key: &str, id: &str) -> Result<()> {
    let mut op = WriteOp::new();
    op.assert_exists().omap_rm_keys(vec![upload_key(key, id)]);
    gateway.pools.index.operate(&shard_of(bucket, key), op).await?.success()?;
    Ok(())
}

/// Whether the change of that tag is pending.
pub(crate) async fn is_pending(gateway: &Gateway, bucket: &Bucket, key: &str, tag: &str) -> Result<bool> {
    let name = pending_key(key, tag);
    let found = gateway.pools.index.omap_get_vals_by_keys(&shard_of(bucket, key), vec![name.clone()]).await?;
    Ok(found.contains_key(&name))
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
            let page = self.pools.index.omap_get_vals(&name, begin.clone(), filter, max as u64 + 1).await?;
            for (key, value) in &page.entries {
                let parts = key.strip_prefix(b"m").and_then(|rest| {
                    let (key, id) = rest.split_at_checked(rest.len().checked_sub(1 + TAG_BYTES)?)?;
                    Some((std::str::from_utf8(key).ok()?, std::str::from_utf8(&id[1..]).ok()?))
                });
                if let Some((key, id)) = parts {
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

    /// Whether a bucket holds nothing that a listing would show.
    pub(crate) async fn is_empty(self: &Arc<Gateway>, bucket: &Bucket) -> Result<bool> {
        let found = self.list(bucket, &ListQuery { max: 1, ..ListQuery::default() }).await?;
        Ok(found.entries.is_empty())
    }

    /// Objects and bytes of a bucket, without what is pending.
    pub async fn bucket_usage(&self, bucket: &Bucket) -> Result<(u64, u64)> {
        let (mut objects, mut bytes) = (0, 0);
        for shard in 0..bucket.shards.max(1) {
            let name = shard_name(bucket, shard);
            let found =
                self.pools.index.omap_get_vals_by_keys(&name, vec![Bytes::from_static(STATS)]).await?;
            if let Some(value) = found.get(STATS) {
                let stats = record::decode::<Stats>(&name, value)?;
                objects += stats.objects;
                bytes += stats.bytes;
            }
        }
        Ok((objects, bytes))
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
