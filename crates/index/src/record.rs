//! The records of the protocol, each in a versioned envelope (docs/format/index.md has the tables).
//!
//! Records of shards have version 2 or higher if format 1 had a record of the same name, and older readers refuse them: a
//! gateway that does not know events must not finish a change that has one.

use crate::error::{Error, Result};
use crate::seq::Seq;
use bytes::Bytes;
use nacre_types::encoding::{self, DecodeError, Versioned};
use serde::{Deserialize, Serialize};

/// A sequence of RADOS objects that hold data: `NAME_0`, `NAME_1`, …
///
/// A name is `BUCKET__shadow_TAG`, or `BUCKET__shadow_CLASS_TAG` if the data is in the pool of a storage class. Readers
/// that do not support classes refuse records with such names: they would look for the data in another pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Tails {
    /// The prefix of their names.
    pub name: String,
    /// The most objects that can exist.
    pub count: u64,
}

/// Separates the bucket's id from the rest of a name of tails.
const SHADOW: &str = "__shadow_";

impl Tails {
    /// The name of the tails that the write `tag` creates for a bucket in the storage class `class`, which is empty for the
    /// pool of heads.
    pub fn name_for(bucket: &str, class: &str, tag: &str) -> String {
        let separator = if class.is_empty() { "" } else { "_" };
        format!("{bucket}{SHADOW}{class}{separator}{tag}")
    }

    /// The storage class in whose pool the tails are; empty for the pool of heads.
    pub fn storage_class(&self) -> &str {
        storage_class_of(&self.name)
    }
}

/// The storage class in the name of tails; empty for the pool of heads.
pub fn storage_class_of(run: &str) -> &str {
    let rest = run.split_once(SHADOW).map_or("", |(_, rest)| rest);
    // A tag has no underscores; a class may have some.
    rest.rsplit_once('_').map_or("", |(class, _)| class)
}

fn any_class<'a>(tails: impl IntoIterator<Item = &'a Tails>) -> bool {
    tails.into_iter().any(|tails| !tails.storage_class().is_empty())
}

/// Sums over objects. Each version counts separately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stats {
    /// The number of objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Stats {
    /// Adds `other`.
    pub fn add(&mut self, other: Stats) {
        self.objects += other.objects;
        self.bytes += other.bytes;
    }

    /// Subtracts `other`, not below zero.
    pub fn subtract(&mut self, other: Stats) {
        self.objects = self.objects.saturating_sub(other.objects);
        self.bytes = self.bytes.saturating_sub(other.bytes);
    }
}

/// The kind of a key's current version. Records from before [`VersionKind::Plain`] have a boolean here, which tells whether
/// it is a delete marker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum VersionKind {
    /// An object that may have user metadata and tags.
    #[default]
    Object,
    /// A delete marker.
    DeleteMarker,
    /// An object without user metadata and tags: the entry contains all that an event needs.
    Plain,
}

/// What a listing shows for a key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ListingEntry {
    /// The tag of the write that made the current version.
    pub tag: String,
    /// Bytes.
    pub size: u64,
    /// Nanoseconds since 1970.
    pub mtime_ns: u64,
    /// Without quotes.
    pub etag: String,
    /// The owner's id.
    pub owner: String,
    /// The kind of the current version.
    pub kind: VersionKind,
    /// Sums over all versions, if the object has versions.
    pub held: Option<Stats>,
    /// The storage class of the current version; empty for STANDARD. Records of objects without a class do not have this
    /// field and have the previous version ([`Versioned::envelope`]).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub class: String,
}

/// [`ListingEntry`] without a class.
#[derive(Deserialize)]
struct UnclassedListed {
    tag: String,
    size: u64,
    mtime_ns: u64,
    etag: String,
    owner: String,
    kind: VersionKind,
    held: Option<Stats>,
}

impl From<UnclassedListed> for ListingEntry {
    fn from(old: UnclassedListed) -> ListingEntry {
        let UnclassedListed { tag, size, mtime_ns, etag, owner, kind, held } = old;
        ListingEntry { tag, size, mtime_ns, etag, owner, kind, held, class: String::new() }
    }
}

impl ListingEntry {
    /// What the key adds to its shard's sums.
    pub fn counted(&self) -> Stats {
        self.held.unwrap_or(Stats { objects: 1, bytes: self.size })
    }
}

/// `O`: the state of a key up to its last finished change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Entry {
    /// The last finished change: all changes up to it are finished, and no later one is.
    pub seq: Seq,
    /// The object; `None` if that change removed it and left a tombstone.
    pub object: Option<ListingEntry>,
}

impl Entry {
    /// What the key adds to its shard's sums.
    pub fn counted(&self) -> Stats {
        self.object.as_ref().map_or_else(Stats::default, ListingEntry::counted)
    }
}

/// `T`: what the object of an entry has in addition to its head; absent if it has nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EntryTails {
    /// The tails.
    pub tails: Vec<Tails>,
}

/// Attributes that notification filters evaluate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Attributes {
    /// `x-amz-meta-…`, without that prefix.
    pub metadata: Vec<(String, String)>,
    /// Tags.
    pub tags: Vec<(String, String)>,
}

/// The version of an object that an event is about: the one that was created, changed or removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EventSubject {
    /// Its id; empty in a bucket that never had versions.
    pub version_id: String,
    /// Bytes.
    pub size: u64,
    /// Without quotes.
    pub etag: String,
    /// Its metadata and tags; `None` if it has none, or if no event needs them.
    pub attributes: Option<Attributes>,
}

/// The event that a change has if it takes effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Event {
    /// The properties known at the prepare (type, time, requester and its address); this crate does not read them.
    pub fixed: Bytes,
    /// The ids of the configurations that may select the event.
    pub candidates: Vec<String>,
    /// The version that it is about, as far as it is known at the prepare. For a removal it is complete, because afterwards
    /// no other record has it.
    pub subject: EventSubject,
}

/// `P`: a change that was prepared and is not finished.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pending {
    /// When it was prepared, in nanoseconds since 1970.
    pub begun_ns: u64,
    /// The RADOS session of the gateway, as blocklists name it.
    pub session: String,
    /// Tails that it may write.
    pub tails: Option<Tails>,
    /// Tails that are unreferenced once the change is committed, in addition to those of the entry.
    pub replaced: Vec<Tails>,
    /// Tails of the parts that the object gets from the upload that the change completes. Without an upload: tails that the
    /// change may write, unreferenced if it does not take effect.
    pub parts: Vec<Tails>,
    /// The upload that the change completes.
    pub upload: Option<String>,
    /// The change holds the key's removal slot: no other change may remove the head's RADOS object.
    pub slot: bool,
    /// Its event.
    pub event: Option<Event>,
}

/// What a change did to the key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ChangeEffect {
    /// It wrote an object: a listing shows this.
    Object(ListingEntry),
    /// It left the listing as it was: a change of tags, ACL or retention, or of a version that is not the current one.
    Unchanged,
    /// It removed the object. The head remains as a tombstone, which readers treat as absent.
    Tombstone,
    /// It removed the object and its head. No head contains this evidence.
    Removed,
}

/// Proof that a change took effect, and how. The commit writes it; it is kept until the change is finished.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CommitRecord {
    /// Its place among the key's changes.
    pub seq: Seq,
    /// Its tag.
    pub tag: String,
    /// What the change did to the key.
    pub content: ChangeEffect,
    /// The version that its event is about, if it has an event.
    pub subject: Option<EventSubject>,
    /// Tails that the object has; those of parts are in the [`Pending`] record.
    pub tails: Option<Tails>,
    /// The commit left earlier evidence or a tombstone in the head, to be removed later.
    pub untidy: bool,
}

/// `X`: an event to be delivered.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OutboxRecord {
    /// The change's tag. The event is enqueued once, however often it is moved.
    pub tag: String,
    /// The change's place in the order of its key's changes.
    pub seq: Seq,
    /// When the change was prepared, in nanoseconds since 1970.
    pub prepared_ns: u64,
    /// The properties known at the prepare.
    pub fixed: Bytes,
    /// The ids of the configurations that may select the event.
    pub candidates: Vec<String>,
    /// The version that it is about.
    pub subject: EventSubject,
}

/// `Y`: the head holds evidence or a tombstone that may be removed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tidy {
    /// All changes up to this one are finished.
    pub up_to: Seq,
}

/// [`Entry`] of an object without a class.
#[derive(Deserialize)]
struct UnclassedEntry {
    seq: Seq,
    object: Option<UnclassedListed>,
}

/// [`CommitRecord`] of an object without a class.
#[derive(Deserialize)]
struct UnclassedEvidence {
    seq: Seq,
    tag: String,
    content: UnclassedContent,
    subject: Option<EventSubject>,
    tails: Option<Tails>,
    untidy: bool,
}

#[derive(Deserialize)]
enum UnclassedContent {
    Object(UnclassedListed),
    Unchanged,
    Tombstone,
    Removed,
}

impl Versioned for Entry {
    const NAME: &'static str = "index entry";
    const VERSION: u8 = 4;
    const COMPAT: u8 = 4;

    fn envelope(&self) -> (u8, u8) {
        let has_class = self.object.as_ref().is_some_and(|listed| !listed.class.is_empty());
        if has_class { (4, 4) } else { (3, 3) }
    }

    fn decode_old(version: u8, body: &[u8]) -> std::result::Result<Entry, DecodeError> {
        match version {
            // Version 2 has booleans in place of the kinds; the encoding is the same.
            2 | 3 => {
                let old: UnclassedEntry = encoding::decode_body(Self::NAME, body)?;
                Ok(Entry { seq: old.seq, object: old.object.map(ListingEntry::from) })
            }
            _ => Err(DecodeError::TooOld { what: Self::NAME, version }),
        }
    }
}

impl Versioned for EntryTails {
    const NAME: &'static str = "tails of an index entry";
    const VERSION: u8 = 2;
    const COMPAT: u8 = 2;

    fn envelope(&self) -> (u8, u8) {
        if any_class(&self.tails) { (2, 2) } else { (1, 1) }
    }

    fn decode_old(_version: u8, body: &[u8]) -> std::result::Result<EntryTails, DecodeError> {
        encoding::decode_body(Self::NAME, body)
    }
}

impl Versioned for Stats {
    const NAME: &'static str = "index sums";
}

impl Versioned for Pending {
    const NAME: &'static str = "pending index entry";
    const VERSION: u8 = 3;
    const COMPAT: u8 = 3;

    fn envelope(&self) -> (u8, u8) {
        let all = self.tails.iter().chain(&self.replaced).chain(&self.parts);
        // Earlier releases do not remove such parts.
        let writes_parts = self.upload.is_none() && !self.parts.is_empty();
        if writes_parts || any_class(all) { (3, 3) } else { (2, 2) }
    }

    fn decode_old(version: u8, body: &[u8]) -> std::result::Result<Pending, DecodeError> {
        match version {
            2 => encoding::decode_body(Self::NAME, body),
            _ => Err(DecodeError::TooOld { what: Self::NAME, version }),
        }
    }
}

impl Versioned for CommitRecord {
    const NAME: &'static str = "evidence of a change";
    const VERSION: u8 = 3;
    const COMPAT: u8 = 3;

    /// An object has tails in the pool of a class only if the object has that class.
    fn envelope(&self) -> (u8, u8) {
        match &self.content {
            ChangeEffect::Object(listed) if !listed.class.is_empty() => (3, 3),
            ChangeEffect::Object(_)
            | ChangeEffect::Unchanged
            | ChangeEffect::Tombstone
            | ChangeEffect::Removed => (2, 2),
        }
    }

    fn decode_old(_version: u8, body: &[u8]) -> std::result::Result<CommitRecord, DecodeError> {
        let old: UnclassedEvidence = encoding::decode_body(Self::NAME, body)?;
        let UnclassedEvidence { seq, tag, content, subject, tails, untidy } = old;
        let content = match content {
            UnclassedContent::Object(listed) => ChangeEffect::Object(listed.into()),
            UnclassedContent::Unchanged => ChangeEffect::Unchanged,
            UnclassedContent::Tombstone => ChangeEffect::Tombstone,
            UnclassedContent::Removed => ChangeEffect::Removed,
        };
        Ok(CommitRecord { seq, tag, content, subject, tails, untidy })
    }
}

impl Versioned for OutboxRecord {
    const NAME: &'static str = "outbox record";
}

impl Versioned for Tidy {
    const NAME: &'static str = "tidy record";
}

/// Encodes a record in its envelope.
pub fn encode<T: Versioned>(value: &T) -> Bytes {
    Bytes::from(encoding::encode(value))
}

/// Decodes a record that `name` holds.
pub fn decode<T: Versioned>(name: &str, bytes: &[u8]) -> Result<T> {
    encoding::decode(bytes).map_err(|source| Error::Corrupt { name: name.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Serialize, Deserialize)]
    struct OldPending {
        begun_ns: u64,
    }

    impl Versioned for OldPending {
        const NAME: &'static str = "pending index entry";
    }

    /// An [`Entry`] as version 2 has it: a boolean tells whether the current version is a delete marker.
    #[derive(Serialize, Deserialize)]
    struct BooleanEntry(Seq, Option<BooleanListed>);

    type BooleanListed = (String, u64, u64, String, String, bool, Option<Stats>);

    impl Versioned for BooleanEntry {
        const NAME: &'static str = "index entry";
        const VERSION: u8 = 2;
        const COMPAT: u8 = 2;
    }

    #[test]
    fn entries_with_booleans_are_read() {
        for (marker, kind) in [(false, VersionKind::Object), (true, VersionKind::DeleteMarker)] {
            let held = Some(Stats { objects: 1, bytes: 2 });
            let old =
                BooleanEntry(Seq::LEGACY, Some(("t".into(), 7, 8, "e".into(), "o".into(), marker, held)));
            let entry: Entry = decode("shard", &encode(&old)).unwrap();
            let object = entry.object.unwrap();
            assert_eq!((object.kind, object.size, object.held), (kind, 7, held));
            // A reader of version 2 must refuse the record, because it can't tell the new kind from damage.
            let new = encode(&Entry { seq: Seq::LEGACY, object: Some(object) });
            assert!(decode::<BooleanEntry>("shard", &new).is_err());
        }
    }

    /// Whether releases that know this version read the record.
    fn is_read_by(bytes: &[u8], version: u8) -> bool {
        bytes[1] <= version
    }

    #[test]
    fn records_with_a_class_refuse_readers_that_know_none() {
        let tails = |class: &str| Tails { name: Tails::name_for("b", class, "0f"), count: 2 };
        for class in ["", "COLD", "STANDARD_IA"] {
            assert_eq!(tails(class).storage_class(), class);
            let listed = ListingEntry { tag: "t".into(), class: class.into(), ..ListingEntry::default() };
            let none = class.is_empty();
            let entry = Entry { seq: Seq::LEGACY, object: Some(listed.clone()) };
            let bytes = encode(&entry);
            assert_eq!(is_read_by(&bytes, 3), none, "{class}");
            assert_eq!(decode::<Entry>("shard", &bytes).unwrap(), entry);
            let own = EntryTails { tails: vec![tails(""), tails(class)] };
            let bytes = encode(&own);
            assert_eq!(is_read_by(&bytes, 1), none, "{class}");
            assert_eq!(decode::<EntryTails>("shard", &bytes).unwrap(), own);
            for (at, pending) in [
                Pending { tails: Some(tails(class)), ..Pending::default() },
                Pending { replaced: vec![tails(""), tails(class)], ..Pending::default() },
                Pending { parts: vec![tails(class)], upload: Some("u".into()), ..Pending::default() },
            ]
            .into_iter()
            .enumerate()
            {
                let bytes = encode(&pending);
                assert_eq!(is_read_by(&bytes, 2), none, "{class} {at}");
                assert_eq!(decode::<Pending>("shard", &bytes).unwrap(), pending);
            }
            let evidence = CommitRecord {
                seq: Seq::LEGACY,
                tag: "t".into(),
                content: ChangeEffect::Object(listed),
                subject: Some(EventSubject::default()),
                tails: Some(tails(class)),
                untidy: true,
            };
            let bytes = encode(&evidence);
            assert_eq!(is_read_by(&bytes, 2), none, "{class}");
            assert_eq!(decode::<CommitRecord>("head", &bytes).unwrap(), evidence);
        }
        assert_eq!(storage_class_of("b"), "");
    }

    #[test]
    fn readers_of_format_1_refuse_pending_changes() {
        let bytes = encode(&Pending { begun_ns: 7, ..Pending::default() });
        let error = decode::<OldPending>("shard", &bytes).unwrap_err();
        let too_new = DecodeError::TooNew { what: "pending index entry", compat: 2, supported: 1 };
        assert_eq!(error, Error::Corrupt { name: "shard".into(), source: too_new });
        let old = encode(&OldPending { begun_ns: 7 });
        assert!(decode::<Pending>("shard", &old).is_err());
    }
}
