//! Objects: a head in `default.rgw.buckets.data`, named by bucket and key, whose attribute says what the object is; data of
//! up to [`INLINE_BYTES`] is in it, more is in tails of [`STRIPE_BYTES`] each that nothing but the head names
//! (docs/format/rgw.md).
//!
//! Writing the head commits a change; [`IndexOp`] is the change in the index. Tails are written before the head, under names
//! that were never used, and are never changed: a reader of an object that is replaced meanwhile reads the old one, until
//! the garbage is collected.

mod body;
mod commit;
mod crypt;
mod get;
mod head_state;
mod index_op;
mod md5;
pub(crate) mod multipart;
mod put;
mod read_size;
mod remove;
mod transition;
pub(crate) mod versions;

pub(crate) use body::{Body, Digests, Pieces, Source};
pub(crate) use commit::LastCommits;
pub(crate) use crypt::{Encryption, Holder, SECRET_BYTES, Salt, Secret, salt};
pub(crate) use get::Reader;
pub(crate) use head_state::{HeadEntry, HeadMark};
pub(crate) use index_op::IndexOp;
pub(crate) use put::Put;
pub(crate) use read_size::ReadSizes;
pub(crate) use remove::RemovalEvents;

use crate::acl::Acl;
use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::index::{Listed, Stats, Tails};
use crate::record;
use bytes::Bytes;
use nacre_client::OpReply;
use nacre_index::commit::Base;
use nacre_index::op::{Guard, Step};
use nacre_index::record::VersionKind;
use nacre_types::encoding::{self, DecodeError, Versioned};
use serde::{Deserialize, Serialize};

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
    /// The storage class; empty for STANDARD. Heads where it is empty do not have it: they have the format before
    /// ([`Versioned::envelope`]).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) class: String,
}

/// [`Head`] without a class.
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
    data: Data,
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

/// How long a version must stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Retention {
    /// It may not be shortened, and the version may not be removed before it ends.
    pub(crate) compliance: bool,
    /// Nanoseconds since 1970.
    pub(crate) until_ns: u64,
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
    const VERSION: u8 = 2;
    /// Readers that know no classes look for the data in another pool.
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
    /// What each part holds can't be skipped.
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
    /// That its head is in this state.
    Unchanged(HeadMark),
}

/// The RADOS object of a key's head. Tails and uploads have an underscore behind that of the bucket's id; a key that
/// begins with one gets a second one, so that it can't name them.
fn head_name(bucket: &Bucket, key: &str) -> String {
    head_name_in(&bucket.id, key)
}

/// As [`head_name`], in the bucket of that id.
pub(crate) fn head_name_in(id: &str, key: &str) -> String {
    let escape = if key.starts_with('_') { "_" } else { "" };
    format!("{id}_{escape}{key}")
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

/// What the names of tails in a storage class that belong to `tag` begin with.
fn tails_name(bucket: &Bucket, class: &str, tag: &str) -> String {
    Tails::name_in(&bucket.id, class, tag)
}

/// How many tails hold so many bytes.
fn tail_count(bytes: u64) -> u64 {
    bytes.div_ceil(STRIPE_BYTES)
}

impl Head {
    /// What a listing shows of it; `held` is what all versions come to, where the object has versions.
    fn listed(&self, held: Option<Stats>) -> Listed {
        Listed {
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

/// The steps that write data and attributes of a head.
fn written(head: &Head, data: impl IntoIterator<Item = Bytes>) -> Vec<Step> {
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

impl Condition {
    /// Whether a commit on `base` is refused where the condition does not hold, given [`Condition::guards`]. Else the head has
    /// to be read.
    fn is_decided_on(&self, base: &Base) -> bool {
        let is_object = match base {
            Base::Absent => false,
            Base::Entry(_) => true,
            Base::Head(head) => !head.is_tombstone(),
        };
        match self {
            Condition::None => true,
            Condition::Absent => !is_object,
            Condition::Present | Condition::Etag(_) => is_object,
            Condition::Unchanged(mark) => is_object && base.seq() == Some(mark.seq()),
        }
    }

    /// Guards of a commit that is built without a read of the head.
    fn guards(&self) -> Vec<Guard> {
        match self {
            Condition::Etag(etag) => vec![Guard::AttrEquals(ETAG, Bytes::from(etag.clone().into_bytes()))],
            Condition::None | Condition::Absent | Condition::Present | Condition::Unchanged(_) => Vec::new(),
        }
    }

    /// Fails where it does not hold of the head that was read.
    fn check(&self, there: Option<(&Head, HeadMark)>) -> Result<()> {
        match (self, there) {
            (Condition::Unchanged(wanted), Some((_, mark))) if wanted.is(mark) => Ok(()),
            (Condition::Unchanged(_), _) => Err(Error::Precondition("unchanged")),
            (Condition::None, _) | (Condition::Absent, None) | (Condition::Present, Some(_)) => Ok(()),
            (Condition::Absent, Some(_)) => Err(Error::Precondition("If-None-Match")),
            (Condition::Present | Condition::Etag(_), None) => Err(Error::NoSuchKey),
            (Condition::Etag(etag), Some((head, _))) if *etag == head.etag => Ok(()),
            (Condition::Etag(_), Some(_)) => Err(Error::Precondition("If-Match")),
        }
    }
}

/// Takes a head's attribute out of a reply.
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
        let entry = Base::Entry(seq(3));
        let etag = Condition::Etag("e".into());
        for (condition, absent, there) in [
            (&Condition::None, true, true),
            (&Condition::Absent, true, false),
            (&Condition::Present, false, true),
            (&etag, false, true),
        ] {
            let decided = [&Base::Absent, &entry].map(|base| condition.is_decided_on(base));
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
            assert_eq!(role_of(&bucket, &name), Some(Role::Head(key.to_owned())), "{name}");
            let upload = multipart::upload_name(&bucket, key, tag);
            assert_eq!(role_of(&bucket, &upload), Some(Role::Upload(key.into(), tag.into())), "{upload}");
        }
        let run = tails_name(&bucket, "", tag);
        assert_eq!(run, format!("{}__shadow_{tag}", bucket.id), "data that is there already keeps its name");
        for run in [run.clone(), tails_name(&bucket, "COLD", tag), tails_name(&bucket, "STANDARD_IA", tag)] {
            assert_eq!(role_of(&bucket, &format!("{run}_17")), Some(Role::Tail(run.clone())));
        }
        // A key can't name it.
        assert_ne!(head_name(&bucket, &format!("_shadow_{tag}_17")), format!("{run}_17"));
        assert_eq!(role_of(&bucket, "other_a"), None);
    }
}
