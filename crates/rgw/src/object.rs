//! Objects: a head in `default.rgw.buckets.data`, named by bucket and key, whose attribute says what the object is; data of
//! up to [`INLINE_BYTES`] is in it, more is in tails of [`STRIPE_BYTES`] each that nothing but the head names
//! (docs/format/rgw.md).
//!
//! Writing the head commits a change. Tails are written before it, under names that were never used, and are never
//! changed: who reads an object that is replaced meanwhile reads what it was, until the garbage is collected.

mod body;
mod get;
pub(crate) mod multipart;
mod put;

pub(crate) use body::{Body, Digests, Source};
pub(crate) use get::Reader;
pub(crate) use put::Put;

use crate::acl::Acl;
use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::gateway::Gateway;
use crate::index::{self, Entry, Finished, Outcome, Tails};
use crate::record;
use nacre_client::{OpReply, ReadOp, WriteOp};
use nacre_types::encoding::Versioned;
use nacre_types::errno::Errno;
use nacre_types::op::CmpOp;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Data of up to this size is in the head (`rgw_max_chunk_size` is 4 MiB in Ceph; less is held in memory here).
pub(crate) const INLINE_BYTES: usize = 1 << 20;
/// Data is written and read in pieces of this size.
pub(crate) const PIECE_BYTES: usize = 1 << 20;
/// Size of a tail (`rgw_obj_stripe_size`).
pub(crate) const STRIPE_BYTES: u64 = 4 << 20;
/// Attempts at a change that others change at the same time.
const ATTEMPTS: usize = 16;
/// The attribute of a head that says what the object is.
const HEAD: &str = "rgw.head";
/// The attribute of a head that has the ETag, for conditions.
const ETAG: &str = "rgw.etag";

/// An object, but for its data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    /// The tag of the write that made it.
    pub(crate) tag: String,
    /// Bytes of data.
    pub(crate) size: u64,
    /// Nanoseconds since 1970.
    pub(crate) mtime_ns: u64,
    /// Without quotes.
    pub(crate) etag: String,
    /// The owner's id.
    pub(crate) owner: String,
    /// Headers that come back as they were sent, by their names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    /// `x-amz-meta-…`, without that.
    pub(crate) metadata: Vec<(String, String)>,
    /// Tags.
    pub(crate) tags: Vec<(String, String)>,
    /// A checksum besides the ETag.
    pub(crate) checksum: Option<StoredChecksum>,
    /// Who besides its owner may read it.
    pub(crate) acl: Acl,
    /// The upload that it was made of; empty where it was not uploaded in parts.
    pub(crate) upload: String,
    /// Where the data is.
    pub(crate) data: Data,
}

/// A checksum that S3 keeps with an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredChecksum {
    /// `CRC32`, `CRC32C`, `CRC64NVME`, `SHA1` or `SHA256`.
    pub(crate) algorithm: String,
    /// In base64; of several parts with `-` and their number where it is composite.
    pub(crate) value: String,
    /// Whether it is that of the whole data, and not one of its parts' checksums.
    pub(crate) whole: bool,
}

/// Where an object's data is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Data {
    /// In the head.
    #[default]
    Inline,
    /// In tails; all but the last are [`STRIPE_BYTES`] long.
    Tails(Tails),
    /// In the tails of so many parts, which the head's data lists ([`Manifest`]).
    Parts(u32),
}

/// The parts of an object that was uploaded in parts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) parts: Vec<ManifestPart>,
}

/// A part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ManifestPart {
    /// Its number, as it was uploaded.
    pub(crate) number: u32,
    /// Bytes.
    pub(crate) size: u64,
    /// Where they are.
    pub(crate) tails: Tails,
}

impl Versioned for Head {
    const NAME: &'static str = "object head";
}

impl Versioned for Manifest {
    const NAME: &'static str = "object manifest";
}

/// What a write or removal asks of the object that is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Condition {
    /// Nothing.
    #[default]
    None,
    /// That there is none.
    Absent,
    /// That there is one.
    Present,
    /// That there is one with this ETag.
    Etag(String),
}

/// The RADOS object of a key's head.
fn head_name(bucket: &Bucket, key: &str) -> String {
    format!("{}_{key}", bucket.id)
}

/// What the names of tails that belong to `tag` begin with.
fn tails_name(bucket: &Bucket, tag: &str) -> String {
    format!("{}__shadow_{tag}", bucket.id)
}

/// How many tails hold so many bytes.
fn tail_count(bytes: u64) -> u64 {
    bytes.div_ceil(STRIPE_BYTES)
}

impl Head {
    /// The index entry that goes with it.
    fn entry(&self, version: u64, tails: Vec<Tails>) -> Entry {
        Entry {
            version,
            tag: self.tag.clone(),
            removed: false,
            size: self.size,
            mtime_ns: self.mtime_ns,
            etag: self.etag.clone(),
            owner: self.owner.clone(),
            tails,
        }
    }
}

impl Condition {
    fn guard(&self, op: &mut WriteOp) {
        match self {
            Condition::None => {}
            Condition::Absent => drop(op.create(true)),
            Condition::Present => drop(op.assert_exists()),
            Condition::Etag(etag) => drop(op.assert_exists().cmp_xattr(ETAG, CmpOp::Eq, etag.clone())),
        }
    }

    /// What it means that the operation failed so.
    fn failure(&self, error: Error) -> Error {
        match (&error, self) {
            (Error::Rados(rados), Condition::Absent) if rados.errno() == Errno::EEXIST => {
                Error::Precondition("If-None-Match")
            }
            (Error::Rados(rados), Condition::Etag(_)) if rados.errno() == Errno::ECANCELED => {
                Error::Precondition("If-Match")
            }
            (Error::Rados(rados), Condition::Present | Condition::Etag(_)) if rados.is_not_found() => {
                Error::NoSuchKey
            }
            _ => error,
        }
    }
}

/// A change that was begun and whose fate is not known yet. Dropped before that, nothing came of it.
pub(crate) struct Begun {
    gateway: Arc<Gateway>,
    shard: String,
    key: String,
    tag: String,
    tails: Option<Tails>,
    settled: bool,
}

impl Begun {
    /// Notes in the index that the change begins.
    async fn begin(
        gateway: &Arc<Gateway>,
        bucket: &Bucket,
        key: &str,
        tag: &str,
        tails: Option<Tails>,
    ) -> Result<Begun> {
        let shard = index::shard_of(bucket, key);
        // From here on: whether the note was made may never be heard.
        let begun = Begun {
            gateway: Arc::clone(gateway),
            shard,
            key: key.to_owned(),
            tag: tag.to_owned(),
            tails: tails.clone(),
            settled: false,
        };
        index::begin(gateway, bucket, key, tag, tails).await?;
        Ok(begun)
    }

    /// Has the change finished in the index.
    async fn settle(mut self, outcome: Outcome) {
        self.settled = true;
        let change = Finished { key: self.key.clone(), tag: self.tag.clone(), outcome };
        self.gateway.finisher.add(&self.gateway, self.shard.clone(), change).await;
    }

    /// As [`Begun::settle`] for a change that failed; one that may have taken effect stays pending.
    async fn fail(mut self, error: &Error) {
        if error.is_unknown() {
            self.settled = true;
        } else {
            let tails = self.tails.take();
            self.settle(Outcome::Nothing(tails)).await;
        }
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        let (gateway, shard) = (Arc::clone(&self.gateway), std::mem::take(&mut self.shard));
        let outcome = Outcome::Nothing(self.tails.take());
        let change =
            Finished { key: std::mem::take(&mut self.key), tag: std::mem::take(&mut self.tag), outcome };
        // Without a runtime the process ends, and what is pending is seen through by others.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { gateway.finisher.add(&gateway, shard, change).await });
        }
    }
}

/// Takes a head's attribute out of a reply.
fn head_of(reply: &mut OpReply, part: usize, name: &str) -> Result<Head> {
    record::decode(name, &reply.output(part)?)
}

impl Gateway {
    /// An object's head and its RADOS version; `None` where there is none.
    pub(crate) async fn head(&self, bucket: &Bucket, key: &str) -> Result<Option<(Head, u64)>> {
        let name = head_name(bucket, key);
        let mut op = ReadOp::new();
        op.get_xattr(HEAD);
        match self.pools.data.operate_read(&name, op).await.and_then(|reply| reply.success()) {
            Err(error) if error.is_not_found() => Ok(None),
            reply => {
                let mut reply = reply?;
                Ok(Some((head_of(&mut reply, 0, &name)?, reply.version)))
            }
        }
    }

    /// The index entry that a key's head stands for now.
    pub(crate) async fn head_entry(&self, bucket: &Bucket, key: &str) -> Result<Option<Entry>> {
        Ok(self.head(bucket, key).await?.map(|(head, version)| head.entry(version, Vec::new())))
    }

    /// As [`Gateway::head_entry`], with what the object has beside its head.
    pub(crate) async fn head_with_tails(&self, bucket: &Bucket, key: &str) -> Result<Option<Entry>> {
        let Some((head, version)) = self.head(bucket, key).await? else { return Ok(None) };
        let tails = match &head.data {
            Data::Inline => Vec::new(),
            Data::Tails(tails) => vec![tails.clone()],
            Data::Parts(_) => match self.open_object(bucket, key).await {
                Ok(reader) if reader.head.tag == head.tag => {
                    reader.manifest.parts.into_iter().map(|part| part.tails).collect()
                }
                // It is another object meanwhile: who made that one knows.
                Ok(_) | Err(Error::NoSuchKey) => Vec::new(),
                Err(error) => return Err(error),
            },
        };
        Ok(Some(head.entry(version, tails)))
    }

    /// Changes what a head says of the object, but neither its data nor what the index has of it.
    pub(crate) async fn modify_head(
        &self,
        bucket: &Bucket,
        key: &str,
        mut change: impl FnMut(&mut Head),
    ) -> Result<()> {
        let name = head_name(bucket, key);
        for _ in 0..ATTEMPTS {
            let (mut head, version) = self.head(bucket, key).await?.ok_or(Error::NoSuchKey)?;
            change(&mut head);
            let mut op = WriteOp::new();
            op.assert_version(version).set_xattr(HEAD, record::encode(&head));
            match self.pools.data.operate(&name, op).await.and_then(|reply| reply.success()) {
                Ok(_) => return Ok(()),
                Err(error) if matches!(error.errno(), Errno::ERANGE | Errno::EOVERFLOW) => {}
                Err(error) if error.is_not_found() => return Err(Error::NoSuchKey),
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::Invalid("the object is being changed by too many at a time".into()))
    }

    /// Removes an object; tells whether there was one.
    pub(crate) async fn remove_object(
        self: &Arc<Gateway>,
        bucket: &Arc<Bucket>,
        key: &str,
        condition: Condition,
    ) -> Result<bool> {
        let (gateway, bucket, key) = (Arc::clone(self), Arc::clone(bucket), key.to_owned());
        // Whoever asked for it may go away in between.
        let removal = tokio::spawn(async move {
            let tag = gateway.tag();
            let begun = Begun::begin(&gateway, &bucket, &key, &tag, None).await?;
            let mut op = WriteOp::new();
            condition.guard(&mut op);
            op.remove();
            let reply = gateway.pools.data.operate(&head_name(&bucket, &key), op).await;
            match reply.and_then(|reply| reply.success()) {
                Ok(reply) => {
                    begun.settle(Outcome::Removed(reply.version)).await;
                    Ok(true)
                }
                Err(error) if error.is_not_found() && condition == Condition::None => {
                    begun.settle(Outcome::Nothing(None)).await;
                    Ok(false)
                }
                Err(error) => {
                    let error = condition.failure(error.into());
                    begun.fail(&error).await;
                    Err(error)
                }
            }
        });
        removal.await.map_err(|e| Error::Invalid(format!("the removal ended: {e}")))?
    }
}
