//! Bucket indexes: RADOS objects in `default.rgw.buckets.index` whose omap lists what a bucket contains
//! (docs/format/index.md has the records and the steps of a change).
//!
//! An object's head commits each change; readers of the object read only the head. A change is prepared in the index before
//! the commit ([`prepare`]). After the commit, when the client has its response, the change is finished in the index,
//! together with other changes ([`finish`]). A listing reads the heads of keys that have pending changes. So readers of the
//! index and readers of heads see the same, even if a gateway dies between the steps. `nacre_index` defines the protocol;
//! this module executes it.

mod convert;
mod finish;
mod freeze;
mod list;
mod prepare;
mod recovery;
mod reshard;
mod tidy;
mod versions;

pub(crate) use finish::Finisher;
pub(crate) use freeze::{
    ShardCheck, abort_freeze, begin_freeze, check_shard_state, create_index, open_state, thaw, thaw_abandoned,
};
pub use list::{ListQuery, Listing};
pub(crate) use prepare::{Prepared, Preparer};
pub(crate) use recovery::{StaleIntent, run_recovery as recover};
pub(crate) use reshard::run_reshard as reshard;
pub use reshard::{MAX_SHARDS, ReshardEntry};
pub use versions::{ListedVersion, VersionListing};

pub use nacre_index::record::{ListingEntry, Stats, Tails};

use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::execute;
use crate::gateway::Gateway;
use crate::record;
use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use nacre_client::{IoCtx, WriteOp};
use nacre_index::key::{self, IndexRecordKind};
use nacre_index::op::{Guard, Step, Write};
use nacre_index::state;
use nacre_types::encoding::{self, DecodeError, Versioned};
use nacre_types::hash::ceph_str_hash_rjenkins;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Shards whose sums are read concurrently.
const SUMS: usize = 16;
/// Uploads of a key per page.
const UPLOADS: u64 = 100;
/// How long a change waits for a bucket that is being resharded, and how often it checks.
pub(crate) const RESHARD_WAIT_TIMEOUT: Duration = Duration::from_secs(20);
pub(crate) const RESHARD_POLL_INTERVAL: Duration = Duration::from_millis(50);

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

/// Returns the name of a shard's RADOS object.
pub(crate) fn shard_name(bucket: &Bucket, shard: u32) -> String {
    format!(".dir.{}.{}.{shard}", bucket.id, bucket.generation)
}

/// Returns the id of the bucket that a shard belongs to.
pub(crate) fn bucket_id(shard: &str) -> &str {
    shard.strip_prefix(".dir.").and_then(|rest| rest.split('.').next()).unwrap_or_default()
}

/// Returns the name of the shard that a key belongs to.
pub(crate) fn shard_of(bucket: &Bucket, key: &str) -> String {
    shard_name(bucket, ceph_str_hash_rjenkins(key.as_bytes()) % bucket.shards.max(1))
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

/// Executes an operation on all shards concurrently; skips shards that are absent.
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

/// Adds an upload to the list of uploads.
pub(crate) async fn add_upload(
    gateway: &Gateway,
    bucket: &Bucket,
    key: &str,
    id: &str,
    entry: &UploadEntry,
) -> Result<()> {
    let shard = shard_of(bucket, key);
    let write = Write {
        guards: vec![Guard::Exists, state::guard_equals(open_state(bucket))],
        steps: vec![Step::OmapSet(vec![(key::upload(key, id), record::encode(entry))])],
    };
    match execute::write(&gateway.pools.index, &shard, write).await {
        Err(error) if error.is_canceled() || error.is_not_found() => {
            Err(freeze::recover_closed_shard(gateway, bucket, &shard).await)
        }
        done => done.map(drop),
    }
}

/// Removes an upload from the list of uploads. Waits while the records of the index are being moved.
pub(crate) async fn remove_upload(gateway: &Gateway, bucket: &Bucket, key: &str, id: &str) -> Result<()> {
    let deadline = Instant::now() + RESHARD_WAIT_TIMEOUT;
    let mut fresh: Option<Bucket> = None;
    loop {
        let shard = shard_of(fresh.as_ref().unwrap_or(bucket), key);
        let write = Write {
            guards: vec![Guard::Exists, state::guard_not_frozen()],
            steps: vec![Step::OmapRemove(vec![key::upload(key, id)])],
        };
        match execute::write(&gateway.pools.index, &shard, write).await {
            Err(error) if error.is_canceled() || error.is_not_found() => {}
            removed => return removed.map(drop),
        }
        if Instant::now() > deadline {
            return Err(Error::IndexBusy(bucket.name.clone()));
        }
        tokio::time::sleep(RESHARD_POLL_INTERVAL).await;
        match gateway.buckets.record_without_documents(&bucket.name).await {
            Ok(now) if now.id == bucket.id => fresh = Some(now),
            // The bucket was removed, and its index with it.
            Ok(_) | Err(Error::NoSuchBucket(_)) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Returns the error for an operation on a shard that failed. If the shard does not exist, the index is being resharded or
/// removed.
fn moved(gateway: &Gateway, bucket: &Bucket, error: nacre_client::Error) -> Error {
    if !error.is_not_found() {
        return error.into();
    }
    gateway.invalidate_bucket(&bucket.name);
    Error::IndexBusy(bucket.name.clone())
}

/// Whether the change with that tag is pending.
pub(crate) async fn is_pending(gateway: &Gateway, bucket: &Bucket, key: &str, tag: &str) -> Result<bool> {
    let name = key::pending(key, tag);
    let found = gateway.pools.index.omap_get_vals_by_keys(&shard_of(bucket, key), vec![name.clone()]).await;
    Ok(found.map_err(|error| moved(gateway, bucket, error))?.contains_key(&name))
}

/// Whether the index has a record of that kind.
pub(crate) async fn has_records(pool: &IoCtx, bucket: &Bucket, kind: IndexRecordKind) -> Result<bool> {
    has_prefix(pool, bucket, &kind.prefix()).await
}

async fn has_prefix(pool: &IoCtx, bucket: &Bucket, prefix: &Bytes) -> Result<bool> {
    let shards = (0..bucket.shards.max(1))
        .map(|shard| pool.omap_get_vals(&shard_name(bucket, shard), "", prefix.clone(), 1));
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
    /// Returns the ids of the uploads of a key.
    pub(crate) async fn uploads_of(&self, bucket: &Bucket, key: &str) -> Result<Vec<String>> {
        let shard = shard_of(bucket, key);
        let prefix = key::prefix(IndexRecordKind::Upload, key);
        let mut ids = Vec::new();
        let mut after = prefix.clone();
        loop {
            let page = self.pools.index.omap_get_vals(&shard, after.clone(), prefix.clone(), UPLOADS).await;
            let page = page.map_err(|error| moved(self, bucket, error))?;
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
    pub async fn uploads(
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
            let page = self.pools.index.omap_get_vals(&name, begin.clone(), filter, max as u64 + 1).await;
            let page = page.map_err(|error| moved(self, bucket, error))?;
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

    /// Whether a bucket contains nothing that a listing would show, and no versions.
    pub(crate) async fn is_empty(self: &Arc<Gateway>, bucket: &Bucket) -> Result<bool> {
        let query = ListQuery { max: 1, markers: true, ..ListQuery::default() };
        let found = self.list(bucket, &query).await?;
        Ok(found.entries.is_empty())
    }

    /// Reads the objects and bytes of a bucket, without pending changes.
    pub async fn bucket_usage(&self, bucket: &Bucket) -> Result<(u64, u64)> {
        let of_shard = |shard| async move {
            let name = shard_name(bucket, shard);
            let sums = vec![Bytes::from_static(key::STATS)];
            let found = self.pools.index.omap_get_vals_by_keys(&name, sums).await;
            let found = found.map_err(|error| moved(self, bucket, error))?;
            found.get(key::STATS).map_or(Ok(Stats::default()), |value| record::decode::<Stats>(&name, value))
        };
        let mut all = stream::iter(0..bucket.shards.max(1)).map(of_shard).buffer_unordered(SUMS);
        let mut sums = Stats::default();
        while let Some(of_shard) = all.try_next().await? {
            sums.add(of_shard);
        }
        Ok((sums.objects, sums.bytes))
    }
}
