//! Objects. The head of an object is in `default.rgw.buckets.data`, named by bucket and key; an attribute of the head
//! describes the object. Data of up to [`INLINE_BYTES`] is in the head. More data is in tails of [`STRIPE_BYTES`] each,
//! which only the head references (docs/format/rgw.md).
//!
//! Writing the head commits a change; [`IndexOp`] is the change in the index. Tails are written before the head, under names
//! that were never used, and are never changed. So a reader of an object that is replaced meanwhile reads the old data,
//! until it is collected as garbage.

mod body;
mod commit;
mod get;
mod head_state;
mod index_op;
mod md5;
pub mod multipart;
mod put;
mod read_size;
mod remove;
mod transition;
pub(crate) mod versions;

use crate::crypt;
pub use crate::crypt::{Cipher, Encryption, SECRET_BYTES, Salt, Secret, SseKeySource, random_salt};
pub(crate) use body::BufferList;
pub use body::{BodyStream, Digests, UploadBody};
pub(crate) use commit::LastCommits;
pub use get::ObjectReader;
pub(crate) use head_state::HeadEntry;
pub use head_state::HeadStateId;
pub use index_op::IndexOp;
pub use put::PutOp;
pub(crate) use read_size::ReadSizeEstimator;
pub use remove::{RemovalEvents, RemovalResult};

use crate::acl::Acl;
use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::index::{ListingEntry, Stats, Tails};
use crate::record;
use crate::time::now_ns;
use bytes::Bytes;
use nacre_client::OpReply;
use nacre_index::commit::AssumedHead;
use nacre_index::op::{Guard, Step};
use nacre_index::record::VersionKind;
use nacre_types::encoding::{self, DecodeError, Versioned};
use serde::{Deserialize, Serialize};

/// The maximum size of data in the head (`rgw_max_chunk_size`).
pub(crate) const INLINE_BYTES: usize = 4 << 20;
/// The maximum size of the manifest of an object that was uploaded in parts.
const MANIFEST_BYTES: usize = 2 << 20;
/// The maximum size of a head's data.
const HEAD_BYTES: u64 = if INLINE_BYTES > MANIFEST_BYTES { INLINE_BYTES } else { MANIFEST_BYTES } as u64;
/// The size of the pieces in which data is received and read.
pub(crate) const PIECE_BYTES: usize = 1 << 20;
/// Size of a tail (`rgw_obj_stripe_size`).
pub(crate) const STRIPE_BYTES: u64 = 4 << 20;
/// The attribute of a head that describes the object.
const HEAD: &str = "rgw.head";
/// The attribute of a head that contains the ETag, for conditions.
const ETAG: &str = "rgw.etag";

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
struct UnclassedHead {
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

impl From<UnclassedHead> for Head {
    fn from(old: UnclassedHead) -> Head {
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
        encoding::decode_body::<UnclassedHead>(Self::NAME, body).map(Head::from)
    }
}

impl Versioned for Manifest {
    const NAME: &'static str = "object manifest";
    const VERSION: u8 = 3;
    /// A reader can't skip fields of a part that it does not know.
    const COMPAT: u8 = 3;

    /// Format 3 is format 2 with tails in the pool of a class.
    fn envelope(&self) -> (u8, u8) {
        if self.parts.iter().all(|part| part.tails.class().is_empty()) { (2, 2) } else { (3, 3) }
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

/// Returns the name of the RADOS object of a key's head. The names of tails and uploads have a second underscore after the
/// one that follows the bucket's id. A key that begins with an underscore gets another one, so that it can't name them.
fn head_name(bucket: &Bucket, key: &str) -> String {
    head_name_in(&bucket.id, key)
}

/// Like [`head_name`], for the bucket of that id.
pub(crate) fn head_name_in(id: &str, key: &str) -> String {
    let escape = if key.starts_with('_') { "_" } else { "" };
    format!("{id}_{escape}{key}")
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

/// Returns the role of the RADOS object of that name in a bucket; `None` if it does not belong to the bucket.
pub(crate) fn classify_data_object(bucket: &Bucket, name: &str) -> Option<DataObjectKind> {
    let rest = name.strip_prefix(bucket.id.as_str())?.strip_prefix('_')?;
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

/// Returns the prefix of the names of the tails that belong to `tag`, in a storage class.
fn tails_name(bucket: &Bucket, class: &str, tag: &str) -> String {
    Tails::name_in(&bucket.id, class, tag)
}

/// Returns the number of tails that hold so many bytes.
fn tail_count(bytes: u64) -> u64 {
    bytes.div_ceil(STRIPE_BYTES)
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
    fn listed(&self, held: Option<Stats>) -> ListingEntry {
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

/// Decodes a head from its attribute in a reply.
fn head_of(reply: &mut OpReply, part: usize, name: &str) -> Result<Head> {
    record::decode(name, &reply.output(part)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket() -> Bucket {
        Bucket { id: "0123456789abcdef0123456789abcdef".into(), ..Bucket::default() }
    }

    #[test]
    fn conditions_are_decided_by_a_base_or_by_the_head() {
        let seq = |number| nacre_index::seq::Seq { number, ..nacre_index::seq::Seq::LEGACY };
        let entry = AssumedHead::Entry(seq(3));
        let etag = WriteCondition::Etag("e".into());
        for (condition, absent, there) in [
            (&WriteCondition::None, true, true),
            (&WriteCondition::Absent, true, false),
            (&WriteCondition::Present, false, true),
            (&etag, false, true),
        ] {
            let decided = [&AssumedHead::Absent, &entry].map(|base| condition.is_decided_on(base));
            assert_eq!(decided, [absent, there], "{condition:?}");
        }
        assert_eq!(etag.guards(), [Guard::AttrEquals(ETAG, Bytes::from_static(b"e"))]);
    }

    #[test]
    fn heads_with_a_class_refuse_readers_that_know_none() {
        for class in ["", "COLD"] {
            let head = Head { tag: "t".into(), legal_hold: true, class: class.into(), ..Head::default() };
            let encoded = record::encode(&head);
            assert_eq!(encoded[1], if class.is_empty() { 1 } else { 2 });
            assert_eq!(record::decode::<Head>("head", &encoded).unwrap(), head);
            let tails = Tails { name: tails_name(&bucket(), class, "0f"), count: 1 };
            let part = ManifestPart { number: 1, size: 5, tails, salt: None, checksum: None };
            let manifest = Manifest { parts: vec![part] };
            let encoded = record::encode(&manifest);
            assert_eq!(encoded[1], if class.is_empty() { 2 } else { 3 });
            assert_eq!(record::decode::<Manifest>("head", &encoded).unwrap(), manifest);
        }
    }

    #[test]
    fn names_of_heads_tails_and_uploads_differ() {
        let bucket = bucket();
        let tag = "fedcba9876543210fedcba9876543210";
        for key in
            ["a", "_a", "__a", "_shadow_x_0", "__shadow_x_0", "_multipart_k.u", "multipart_k.u", "/", "a_0"]
        {
            let name = head_name(&bucket, key);
            assert_eq!(
                classify_data_object(&bucket, &name),
                Some(DataObjectKind::Head(key.to_owned())),
                "{name}"
            );
            let upload = multipart::upload_name(&bucket, key, tag);
            assert_eq!(
                classify_data_object(&bucket, &upload),
                Some(DataObjectKind::Upload(key.into(), tag.into())),
                "{upload}"
            );
        }
        let run = tails_name(&bucket, "", tag);
        assert_eq!(run, format!("{}__shadow_{tag}", bucket.id), "data that is there already keeps its name");
        for run in [run.clone(), tails_name(&bucket, "COLD", tag), tails_name(&bucket, "STANDARD_IA", tag)] {
            assert_eq!(
                classify_data_object(&bucket, &format!("{run}_17")),
                Some(DataObjectKind::Tail(run.clone()))
            );
        }
        // A key can't name it.
        assert_ne!(head_name(&bucket, &format!("_shadow_{tag}_17")), format!("{run}_17"));
        assert_eq!(classify_data_object(&bucket, "other_a"), None);
    }
}
