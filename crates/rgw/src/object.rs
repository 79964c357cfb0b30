//! Objects: a head in `default.rgw.buckets.data`, named by bucket and key, whose attribute says what the object is; data of
//! up to [`INLINE_BYTES`] is in it, more is in tails of [`STRIPE_BYTES`] each that nothing but the head names
//! (docs/format/rgw.md).
//!
//! Writing the head commits a change. Tails are written before it, under names that were never used, and are never
//! changed: who reads an object that is replaced meanwhile reads what it was, until the garbage is collected.

mod begun;
mod body;
mod crypt;
mod get;
mod md5;
pub(crate) mod multipart;
mod put;
mod read_size;
pub(crate) mod versions;

pub(crate) use begun::Begun;
pub(crate) use body::{Body, Digests, Pieces, Source};
pub(crate) use crypt::{Encryption, Holder, SECRET_BYTES, Salt, Secret, salt};
pub(crate) use get::Reader;
pub(crate) use put::Put;
pub(crate) use read_size::ReadSizes;

use crate::acl::Acl;
use crate::bucket::{Bucket, Versioning};
use crate::error::{Error, Result};
use crate::gateway::{Gateway, now_ns};
use crate::index::{Entry, Outcome, Tails};
use crate::record;
use nacre_client::{OpReply, ReadOp, WriteOp};
use nacre_types::encoding::{DecodeError, Versioned};
use nacre_types::errno::Errno;
use nacre_types::op::CmpOp;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Data of up to this size is in the head (`rgw_max_chunk_size`).
pub(crate) const INLINE_BYTES: usize = 4 << 20;
/// The manifest of an object that was uploaded in parts is no larger.
const MANIFEST_BYTES: usize = 2 << 20;
/// What a head has in it is no larger.
const HEAD_BYTES: u64 = if INLINE_BYTES > MANIFEST_BYTES { INLINE_BYTES } else { MANIFEST_BYTES } as u64;
/// Data is received and read in pieces of this size.
pub(crate) const PIECE_BYTES: usize = 1 << 20;
/// Size of a tail (`rgw_obj_stripe_size`).
pub(crate) const STRIPE_BYTES: u64 = 4 << 20;
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
    /// The id of this version; empty in a bucket that never had versions.
    pub(crate) version: String,
    /// There is no object, only the news that it was removed.
    pub(crate) marker: bool,
    /// Until when this version must not be removed.
    pub(crate) retention: Option<Retention>,
    /// This version must not be removed until that is taken back.
    pub(crate) legal_hold: bool,
    /// How its data is encrypted; sizes are those of the data before that.
    pub(crate) encryption: Option<Encryption>,
    /// Where the data is.
    pub(crate) data: Data,
}

/// How long a version must stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Retention {
    /// Nobody may shorten it, nor remove the version before.
    pub(crate) compliance: bool,
    /// Nanoseconds since 1970.
    pub(crate) until_ns: u64,
}

/// What came of a removal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Removal {
    /// Whether there was anything.
    pub(crate) there: bool,
    /// The id of the delete marker that hides the object now.
    pub(crate) marker: Option<String>,
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
    /// What the key to it is derived with, where the object is encrypted.
    pub(crate) salt: Option<Salt>,
    /// Of its data, where the upload had checksums.
    pub(crate) checksum: Option<StoredChecksum>,
}

/// The manifest's first format, whose parts had no checksums.
#[derive(Deserialize)]
struct ManifestV1 {
    parts: Vec<ManifestPartV1>,
}

#[derive(Deserialize)]
struct ManifestPartV1 {
    number: u32,
    size: u64,
    tails: Tails,
    salt: Option<Salt>,
}

impl Versioned for Head {
    const NAME: &'static str = "object head";
}

impl Versioned for Manifest {
    const NAME: &'static str = "object manifest";
    const VERSION: u8 = 2;
    /// What each part holds can't be skipped.
    const COMPAT: u8 = 2;

    fn decode_old(_version: u8, body: &[u8]) -> Result<Manifest, DecodeError> {
        let old: ManifestV1 = postcard::from_bytes(body)
            .map_err(|error| DecodeError::Corrupt { what: Self::NAME, detail: error.to_string() })?;
        let part = |ManifestPartV1 { number, size, tails, salt }| ManifestPart {
            number,
            size,
            tails,
            salt,
            checksum: None,
        };
        Ok(Manifest { parts: old.parts.into_iter().map(part).collect() })
    }
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
    /// That its head has this RADOS version.
    Unchanged(u64),
}

/// The RADOS object of a key's head. Tails and uploads have an underscore behind that of the bucket's id; a key that
/// begins with one gets a second one, lest it name them.
fn head_name(bucket: &Bucket, key: &str) -> String {
    let escape = if key.starts_with('_') { "_" } else { "" };
    format!("{}_{escape}{key}", bucket.id)
}

/// What a RADOS object of the data pool is to a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The head of this key.
    Head(String),
    /// A tail: what the names of its run begin with.
    Tail(String),
    /// An upload: key and id.
    Upload(String, String),
}

/// What the RADOS object of that name is to a bucket; `None` for nothing.
pub(crate) fn role_of(bucket: &Bucket, name: &str) -> Option<Role> {
    let rest = name.strip_prefix(bucket.id.as_str())?.strip_prefix('_')?;
    let Some(inner) = rest.strip_prefix('_') else { return Some(Role::Head(rest.to_owned())) };
    if inner.starts_with('_') {
        return Some(Role::Head(inner.to_owned()));
    }
    if inner.starts_with("shadow_") {
        let (run, number) = name.rsplit_once('_')?;
        return number.parse::<u64>().is_ok().then(|| Role::Tail(run.to_owned()));
    }
    let (key, id) = inner.strip_prefix("multipart_")?.rsplit_once('.')?;
    Some(Role::Upload(key.to_owned(), id.to_owned()))
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
            marker: self.marker,
            held: None,
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
            Condition::Unchanged(version) => drop(op.assert_version(*version)),
        }
    }

    /// Fails where it does not hold of what is there.
    fn check(&self, there: Option<&Head>, version: u64) -> Result<()> {
        match (self, there) {
            (Condition::Unchanged(wanted), Some(_)) if *wanted == version => Ok(()),
            (Condition::Unchanged(_), _) => Err(Error::Precondition("unchanged")),
            (Condition::None, _) | (Condition::Absent, None) | (Condition::Present, Some(_)) => Ok(()),
            (Condition::Absent, Some(_)) => Err(Error::Precondition("If-None-Match")),
            (Condition::Present | Condition::Etag(_), None) => Err(Error::NoSuchKey),
            (Condition::Etag(etag), Some(head)) if *etag == head.etag => Ok(()),
            (Condition::Etag(_), Some(_)) => Err(Error::Precondition("If-Match")),
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
            (Error::Rados(rados), Condition::Unchanged(_))
                if matches!(rados.errno(), Errno::ERANGE | Errno::EOVERFLOW) =>
            {
                Error::Precondition("unchanged")
            }
            (Error::Rados(rados), Condition::Present | Condition::Etag(_) | Condition::Unchanged(_))
                if rados.is_not_found() =>
            {
                Error::NoSuchKey
            }
            _ => error,
        }
    }
}

/// Takes a head's attribute out of a reply.
fn head_of(reply: &mut OpReply, part: usize, name: &str) -> Result<Head> {
    record::decode(name, &reply.output(part)?)
}

impl Gateway {
    /// The newest version of an object and its head's RADOS version; `None` where there is none. It may be a delete marker.
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
        Ok(self.stand(bucket, key).await?.map(|stand| stand.entry()))
    }

    /// Removes an object, or where the bucket has versions hides it behind a delete marker of `owner`.
    pub(crate) async fn remove_object(
        self: &Arc<Gateway>,
        bucket: &Arc<Bucket>,
        key: &str,
        owner: &str,
        condition: Condition,
    ) -> Result<Removal> {
        let (gateway, bucket, key) = (Arc::clone(self), Arc::clone(bucket), key.to_owned());
        let tag = gateway.tag();
        if bucket.versioning != Versioning::Off {
            let (marker, owner) = (true, owner.to_owned());
            let head = Head { tag, marker, owner, mtime_ns: now_ns(), ..Head::default() };
            let put = Put { bucket, key, head, condition };
            let head = put.commit(&gateway, None, Pieces::default(), Vec::new()).await?;
            return Ok(Removal { there: true, marker: Some(head.version) });
        }
        // Whoever asked for it may go away in between.
        let removal = tokio::spawn(async move {
            let begun = Begun::begin(&gateway, &bucket, &key, &tag, None).await?;
            let mut op = WriteOp::new();
            condition.guard(&mut op);
            op.remove();
            let reply = gateway.pools.data.operate(&head_name(&bucket, &key), op).await;
            match reply.and_then(|reply| reply.success()) {
                Ok(reply) => {
                    begun.settle(Outcome::Removed(reply.version)).await;
                    Ok(Removal { there: true, marker: None })
                }
                Err(error) if error.is_not_found() && condition == Condition::None => {
                    begun.settle(Outcome::Nothing).await;
                    Ok(Removal { there: false, marker: None })
                }
                Err(error) => {
                    let error = condition.failure(error.into());
                    begun.fail(&error).await;
                    Err(error)
                }
            }
        });
        removal.await.map_err(Error::task("the removal of an object"))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket() -> Bucket {
        Bucket { id: "0123456789abcdef0123456789abcdef".into(), ..Bucket::default() }
    }

    #[test]
    fn names_of_heads_tails_and_uploads_differ() {
        let bucket = bucket();
        let tag = "fedcba9876543210fedcba9876543210";
        for key in
            ["a", "_a", "__a", "_shadow_x_0", "__shadow_x_0", "_multipart_k.u", "multipart_k.u", "/", "a_0"]
        {
            let name = head_name(&bucket, key);
            assert_eq!(role_of(&bucket, &name), Some(Role::Head(key.to_owned())), "{name}");
            let upload = multipart::upload_name(&bucket, key, tag);
            assert_eq!(role_of(&bucket, &upload), Some(Role::Upload(key.into(), tag.into())), "{upload}");
        }
        let run = tails_name(&bucket, tag);
        assert_eq!(role_of(&bucket, &format!("{run}_17")), Some(Role::Tail(run.clone())));
        // A key can't name it.
        assert_ne!(head_name(&bucket, &format!("_shadow_{tag}_17")), format!("{run}_17"));
        assert_eq!(role_of(&bucket, "other_a"), None);
    }
}
