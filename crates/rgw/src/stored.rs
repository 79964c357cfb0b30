//! The objects of buckets as they are stored, for reading. The head of an object is in `default.rgw.buckets.data`, named by
//! bucket and key; an attribute of the head describes the object. Data of up to [`MAX_INLINE_BYTES`] is in the head. More data is
//! in tails of [`STRIPE_BYTES`] each, which only the head references (docs/format/rgw.md).
//!
//! Tails are never changed. So a reader of an object that is replaced meanwhile reads the old data, until it is collected as
//! garbage.

mod get;
mod head_state;
mod read_size;
pub(crate) mod versions;

pub use get::ObjectReader;
pub use head_state::HeadStateId;
pub(crate) use head_state::{CurrentObject, HeadEntry, HeadState, VERSIONS};

use crate::acl::Acl;
use crate::crypt::{Encryption, Salt};
use crate::error::{Error, Result};
use crate::record;
use crate::storage_classes::StorageClasses;
use crate::time::now_ns;
use nacre_client::{IoCtx, OpReply};
use nacre_index::record::{ListingEntry, Stats, Tails, VersionKind};
use nacre_types::encoding::{self, DecodeError, Versioned};
use read_size::ReadSizeEstimator;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The maximum size of data in the head (`rgw_max_chunk_size`).
pub(crate) const MAX_INLINE_BYTES: usize = 4 << 20;
/// The maximum size of the manifest of an object that was uploaded in parts.
pub(crate) const MAX_MANIFEST_BYTES: usize = 2 << 20;
/// The maximum size of a head's data.
pub(crate) const MAX_HEAD_BYTES: u64 =
    if MAX_INLINE_BYTES > MAX_MANIFEST_BYTES { MAX_INLINE_BYTES } else { MAX_MANIFEST_BYTES } as u64;
/// The size of the pieces in which data is received and read.
pub(crate) const PIECE_BYTES: usize = 1 << 20;
/// Size of a tail (`rgw_obj_stripe_size`).
pub(crate) const STRIPE_BYTES: u64 = 4 << 20;
/// The attribute of a head that describes the object.
pub(crate) const HEAD: &str = "rgw.head";
/// The attribute of a head that contains the ETag, for conditions.
pub(crate) const ETAG: &str = "rgw.etag";

/// An object without its data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The tag of the write that created it.
    pub tag: String,
    /// Bytes of data.
    pub size: u64,
    /// Nanoseconds since 1970.
    pub mtime_ns: u64,
    /// Without quotes.
    pub etag: String,
    /// The owner's id.
    pub owner: String,
    /// Headers that are returned as they were sent, by their names in lower case.
    pub headers: Vec<(String, String)>,
    /// User metadata (`x-amz-meta-…`), by name without that prefix.
    pub metadata: Vec<(String, String)>,
    /// Tags.
    pub tags: Vec<(String, String)>,
    /// A checksum besides the ETag.
    pub checksum: Option<StoredChecksum>,
    /// The users besides its owner that may read it.
    pub acl: Acl,
    /// The upload that created it; empty if it was not uploaded in parts.
    pub upload: String,
    /// The id of this version; empty in a bucket that never had versions.
    pub version: String,
    /// Whether this is a delete marker: there is no object, only the record of its removal.
    pub marker: bool,
    /// Until when this version must not be removed.
    pub retention: Option<Retention>,
    /// Whether a legal hold forbids the removal of this version.
    pub legal_hold: bool,
    /// How its data is encrypted. Sizes are those of the unencrypted data.
    pub encryption: Option<Encryption>,
    /// Where the data is.
    pub data: DataLocation,
    /// The storage class; empty for STANDARD. Heads with an empty class are encoded without it, in the previous format
    /// ([`Versioned::envelope`]).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub class: String,
}

/// [`Head`] in the format without a class.
#[derive(Deserialize)]
pub(crate) struct HeadV1 {
    tag: String,
    size: u64,
    mtime_ns: u64,
    etag: String,
    owner: String,
    headers: Vec<(String, String)>,
    metadata: Vec<(String, String)>,
    tags: Vec<(String, String)>,
    checksum: Option<StoredChecksum>,
    acl: Acl,
    upload: String,
    version: String,
    marker: bool,
    retention: Option<Retention>,
    legal_hold: bool,
    encryption: Option<Encryption>,
    data: DataLocation,
}

impl From<HeadV1> for Head {
    fn from(old: HeadV1) -> Head {
        Head {
            tag: old.tag,
            size: old.size,
            mtime_ns: old.mtime_ns,
            etag: old.etag,
            owner: old.owner,
            headers: old.headers,
            metadata: old.metadata,
            tags: old.tags,
            checksum: old.checksum,
            acl: old.acl,
            upload: old.upload,
            version: old.version,
            marker: old.marker,
            retention: old.retention,
            legal_hold: old.legal_hold,
            encryption: old.encryption,
            data: old.data,
            class: String::new(),
        }
    }
}

/// How long a version must be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retention {
    /// Whether the retention may not be shortened, and the version may not be removed before it ends (compliance mode).
    pub compliance: bool,
    /// Nanoseconds since 1970.
    pub until_ns: u64,
}

/// A checksum that S3 keeps with an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredChecksum {
    /// `CRC32`, `CRC32C`, `CRC64NVME`, `SHA1` or `SHA256`.
    pub algorithm: String,
    /// In base64. A composite checksum of several parts is followed by `-` and their number.
    pub value: String,
    /// Whether it is the checksum of the whole data, not of the checksums of its parts.
    pub whole: bool,
}

/// Where an object's data is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataLocation {
    /// In the head.
    #[default]
    Inline,
    /// In tails; all but the last are [`STRIPE_BYTES`] long.
    Tails(Tails),
    /// In the tails of so many parts. The head's data lists the parts ([`Manifest`]).
    Parts(u32),
}

/// The parts of an object that was uploaded in parts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// In the order of their numbers.
    pub parts: Vec<ManifestPart>,
}

/// A part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestPart {
    /// The part's number, as it was uploaded.
    pub number: u32,
    /// The part's size in bytes.
    pub size: u64,
    /// The tails that contain its data.
    pub tails: Tails,
    /// The salt for the derivation of its key, if the object is encrypted.
    pub salt: Option<Salt>,
    /// The checksum of its data, if the upload had checksums.
    pub checksum: Option<StoredChecksum>,
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
    const VERSION: u8 = 2;
    /// Readers that do not know classes would look for the data in another pool.
    const COMPAT: u8 = 2;

    fn envelope(&self) -> (u8, u8) {
        if self.class.is_empty() { (1, 1) } else { (2, 2) }
    }

    fn decode_old(_version: u8, body: &[u8]) -> Result<Head, DecodeError> {
        encoding::decode_body::<HeadV1>(Self::NAME, body).map(Head::from)
    }
}

impl Versioned for Manifest {
    const NAME: &'static str = "object manifest";
    const VERSION: u8 = 3;
    /// A reader can't skip fields of a part that it does not know.
    const COMPAT: u8 = 3;

    /// Format 3 is format 2 with tails in the pool of a class.
    fn envelope(&self) -> (u8, u8) {
        if self.parts.iter().all(|part| part.tails.storage_class().is_empty()) { (2, 2) } else { (3, 3) }
    }

    fn decode_old(version: u8, body: &[u8]) -> Result<Manifest, DecodeError> {
        if version == 2 {
            return encoding::decode_body(Self::NAME, body);
        }
        let old: ManifestV1 = encoding::decode_body(Self::NAME, body)?;
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

/// Reads the objects of all buckets.
pub struct StoredObjects {
    /// The pool of heads.
    data: IoCtx,
    classes: Arc<StorageClasses>,
    /// How many bytes of a head a GET reads first.
    read_sizes: ReadSizeEstimator,
}

impl StoredObjects {
    pub(crate) fn new(data: IoCtx, classes: &Arc<StorageClasses>) -> StoredObjects {
        StoredObjects { data, classes: Arc::clone(classes), read_sizes: ReadSizeEstimator::default() }
    }
}

/// Returns the name of the RADOS object of a key's head. The names of tails and uploads have a second underscore after the
/// one that follows the bucket's id. A key that begins with an underscore gets another one, so that it can't name them.
pub(crate) fn head_name(bucket_id: &str, key: &str) -> String {
    let escape = if key.starts_with('_') { "_" } else { "" };
    format!("{bucket_id}_{escape}{key}")
}

/// The role of a RADOS object of a data pool in a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DataObjectKind {
    /// The head of this key.
    Head(String),
    /// A tail: the prefix of the names of its run.
    Tail(String),
    /// An upload: key and id.
    Upload(String, String),
}

/// Returns the role of the RADOS object of that name in the bucket of that id; `None` if it does not belong to the bucket.
pub(crate) fn classify_data_object(bucket_id: &str, name: &str) -> Option<DataObjectKind> {
    let rest = name.strip_prefix(bucket_id)?.strip_prefix('_')?;
    let Some(inner) = rest.strip_prefix('_') else { return Some(DataObjectKind::Head(rest.to_owned())) };
    if inner.starts_with('_') {
        return Some(DataObjectKind::Head(inner.to_owned()));
    }
    if inner.starts_with("shadow_") {
        let (run, number) = name.rsplit_once('_')?;
        return number.parse::<u64>().is_ok().then(|| DataObjectKind::Tail(run.to_owned()));
    }
    let (key, id) = inner.strip_prefix("multipart_")?.rsplit_once('.')?;
    Some(DataObjectKind::Upload(key.to_owned(), id.to_owned()))
}

impl Head {
    /// Refuses a removal that object lock forbids; `bypass` overrides retention in governance mode.
    pub fn check_lock(&self, bypass: bool) -> Result<()> {
        let retained = self
            .retention
            .is_some_and(|retention| retention.until_ns > now_ns() && (retention.compliance || !bypass));
        if retained || self.legal_hold { Err(Error::Locked) } else { Ok(()) }
    }

    /// Returns what a listing shows of it. `held` contains the sums of all versions, if the object has versions.
    pub(crate) fn listed(&self, held: Option<Stats>) -> ListingEntry {
        ListingEntry {
            tag: self.tag.clone(),
            size: self.size,
            mtime_ns: self.mtime_ns,
            etag: self.etag.clone(),
            owner: self.owner.clone(),
            kind: match self {
                Head { marker: true, .. } => VersionKind::DeleteMarker,
                _ if self.metadata.is_empty() && self.tags.is_empty() => VersionKind::Plain,
                _ => VersionKind::Object,
            },
            held,
            class: self.class.clone(),
        }
    }
}

/// Decodes a head from its attribute in a reply.
pub(crate) fn decode_head(reply: &mut OpReply, part: usize, name: &str) -> Result<Head> {
    record::decode(name, &reply.output(part)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_with_a_class_refuse_readers_that_know_none() {
        for class in ["", "COLD"] {
            let head = Head { tag: "t".into(), legal_hold: true, class: class.into(), ..Head::default() };
            let encoded = record::encode(&head);
            assert_eq!(encoded[1], if class.is_empty() { 1 } else { 2 });
            assert_eq!(record::decode::<Head>("head", &encoded).unwrap(), head);
            let tails =
                Tails { name: Tails::name_for("0123456789abcdef0123456789abcdef", class, "0f"), count: 1 };
            let part = ManifestPart { number: 1, size: 5, tails, salt: None, checksum: None };
            let manifest = Manifest { parts: vec![part] };
            let encoded = record::encode(&manifest);
            assert_eq!(encoded[1], if class.is_empty() { 2 } else { 3 });
            assert_eq!(record::decode::<Manifest>("head", &encoded).unwrap(), manifest);
        }
    }
}
