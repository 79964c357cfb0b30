//! Changes of objects ([`crate::stored`] describes how they are stored). Writing the head commits a change; [`IndexOp`] is the
//! change in the index. Tails are written before the head, under names that were never used.

mod body;
mod commit;
mod index_op;
mod md5;
pub mod multipart;
mod put;
mod remove;
mod transition;
pub(crate) mod versions;

use crate::crypt;
pub use crate::crypt::{Cipher, Encryption, SECRET_BYTES, Salt, Secret, SseKeySource, random_salt};
pub(crate) use body::BufferList;
use body::memory_for_bodies;
pub use body::{BodyStream, Digests, UploadBody};
pub use index_op::IndexOp;
pub use put::PutOp;
pub use remove::{RemovalEventTypes, RemovalResult};

use crate::bucket::Bucket;
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::garbage::GarbageQueue;
use crate::index::{BucketIndex, ConvertedBuckets, IndexParts};
use crate::last_commits::LastCommits;
use crate::notifications::Notifications;
use crate::quota_enforcer::QuotaEnforcer;
use crate::record;
use crate::shards::IndexShards;
use crate::storage_classes::StorageClasses;
use crate::stored::{ETAG, HEAD, Head, HeadStateId, STRIPE_BYTES, StoredObjects};
use crate::uploads::Uploads;
use bytes::Bytes;
use nacre_index::commit::AssumedHead;
use nacre_index::op::{Guard, Step};
use nacre_index::record::Tails;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Writes and removes objects.
pub struct ObjectWriter {
    pub(crate) connection: Arc<Connection>,
    pub(crate) buckets: Arc<ConvertedBuckets>,
    pub(crate) shards: Arc<IndexShards>,
    pub(crate) index: Arc<BucketIndex>,
    pub(crate) uploads: Arc<Uploads>,
    pub(crate) objects: Arc<StoredObjects>,
    pub(crate) classes: Arc<StorageClasses>,
    pub(crate) garbage: Arc<GarbageQueue>,
    commits: Arc<LastCommits>,
    quotas: Arc<QuotaEnforcer>,
    pub(crate) notifications: Arc<Notifications>,
    /// The memory for data on its way into RADOS.
    put_memory: Arc<Semaphore>,
}

impl ObjectWriter {
    /// A writer whose requests together hold at most `put_bytes` bytes of data in memory.
    pub(crate) fn new(
        parts: &IndexParts,
        (index, buckets): (&Arc<BucketIndex>, &Arc<ConvertedBuckets>),
        classes: &Arc<StorageClasses>,
        quotas: &Arc<QuotaEnforcer>,
        notifications: &Arc<Notifications>,
        put_bytes: u64,
    ) -> ObjectWriter {
        ObjectWriter {
            connection: Arc::clone(&parts.connection),
            buckets: Arc::clone(buckets),
            shards: Arc::clone(&parts.shards),
            index: Arc::clone(index),
            uploads: Arc::clone(&parts.uploads),
            objects: Arc::clone(&parts.objects),
            classes: Arc::clone(classes),
            garbage: Arc::clone(&parts.garbage),
            commits: Arc::clone(&parts.commits),
            quotas: Arc::clone(quotas),
            notifications: Arc::clone(notifications),
            put_memory: memory_for_bodies(put_bytes),
        }
    }
}

/// A condition of a write or removal on the existing object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum WriteCondition {
    /// There is no condition.
    #[default]
    None,
    /// The object does not exist.
    Absent,
    /// The object exists.
    Present,
    /// The object exists and has this ETag.
    Etag(String),
    /// The object's head is in this state.
    Unchanged(HeadStateId),
}

/// Returns the prefix of the names of the tails that belong to `tag`, in a storage class.
fn tails_name(bucket: &Bucket, class: &str, tag: &str) -> String {
    Tails::name_for(&bucket.id, class, tag)
}

/// Returns the number of tails that hold so many bytes.
fn tail_count(bytes: u64) -> u64 {
    bytes.div_ceil(STRIPE_BYTES)
}

/// Returns the steps that write the data and attributes of a head.
fn head_write_steps(head: &Head, data: impl IntoIterator<Item = Bytes>) -> Vec<Step> {
    let mut pieces = data.into_iter();
    let first = pieces.next().unwrap_or_default();
    let mut offset = first.len() as u64;
    let mut steps = vec![Step::WriteFull(first)];
    for piece in pieces {
        let len = piece.len() as u64;
        steps.push(Step::Write { offset, data: piece });
        offset += len;
    }
    steps.push(Step::SetAttr(HEAD, record::encode(head)));
    steps.push(Step::SetAttr(ETAG, Bytes::from(head.etag.clone().into_bytes())));
    steps
}

impl WriteCondition {
    /// Whether a commit on `base` with [`WriteCondition::guards`] is refused if the condition does not hold. Otherwise the head
    /// must be read.
    fn is_decided_on(&self, base: &AssumedHead) -> bool {
        let is_object = match base {
            AssumedHead::Absent => false,
            AssumedHead::Entry(_) => true,
            AssumedHead::Head(head) => !head.is_tombstone(),
        };
        match self {
            WriteCondition::None => true,
            WriteCondition::Absent => !is_object,
            WriteCondition::Present | WriteCondition::Etag(_) => is_object,
            WriteCondition::Unchanged(mark) => is_object && base.seq() == Some(mark.seq()),
        }
    }

    /// Returns the guards of a commit that is built without reading the head.
    fn guards(&self) -> Vec<Guard> {
        match self {
            WriteCondition::Etag(etag) => {
                vec![Guard::AttrEquals(ETAG, Bytes::from(etag.clone().into_bytes()))]
            }
            WriteCondition::None
            | WriteCondition::Absent
            | WriteCondition::Present
            | WriteCondition::Unchanged(_) => Vec::new(),
        }
    }

    /// Fails if the condition does not hold for the head that was read.
    fn check(&self, there: Option<(&Head, HeadStateId)>) -> Result<()> {
        match (self, there) {
            (WriteCondition::Unchanged(wanted), Some((_, mark))) if wanted.is_same_state(mark) => Ok(()),
            (WriteCondition::Unchanged(_), _) => Err(Error::Precondition("unchanged")),
            (WriteCondition::None, _)
            | (WriteCondition::Absent, None)
            | (WriteCondition::Present, Some(_)) => Ok(()),
            (WriteCondition::Absent, Some(_)) => Err(Error::Precondition("If-None-Match")),
            (WriteCondition::Present | WriteCondition::Etag(_), None) => Err(Error::NoSuchKey),
            (WriteCondition::Etag(etag), Some((head, _))) if *etag == head.etag => Ok(()),
            (WriteCondition::Etag(_), Some(_)) => Err(Error::Precondition("If-Match")),
        }
    }
}

#[cfg(test)]
mod tests;
