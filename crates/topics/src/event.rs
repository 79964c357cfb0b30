//! Types of events, and the patterns by which configurations select them.
//!
//! A type is one bit and a pattern is a set of bits. Types that Ceph has use Ceph's bits. The bits are stored, so they
//! can't change.

use crate::error::{Error, Result, quoted};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The prefix of type names in configurations. Event records do not have it.
const SERVICE: &str = "s3:";

/// The type of an event. Each type is one bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
#[repr(u32)]
pub enum EventType {
    /// A PUT wrote an object.
    ObjectCreatedPut = 1,
    /// A form upload wrote an object, or a multipart upload was started.
    ObjectCreatedPost = 1 << 1,
    /// A copy wrote an object.
    ObjectCreatedCopy = 1 << 2,
    /// A multipart upload was completed.
    ObjectCreatedCompleteMultipartUpload = 1 << 3,
    /// An object or a version was removed.
    ObjectRemovedDelete = 1 << 4,
    /// A delete marker was created.
    ObjectRemovedDeleteMarkerCreated = 1 << 5,
    /// A lifecycle rule expired the current version. Ceph only.
    ObjectExpirationCurrent = 1 << 8,
    /// A lifecycle rule removed a noncurrent version. Ceph only.
    ObjectExpirationNoncurrent = 1 << 9,
    /// A lifecycle rule removed an expired delete marker. Ceph only.
    ObjectExpirationDeleteMarker = 1 << 10,
    /// A lifecycle rule aborted a multipart upload. Ceph only; Ceph defines this type but never sends it.
    ObjectExpirationAbortMultipartUpload = 1 << 11,
    /// A lifecycle rule moved the current version to another storage class. Ceph only.
    ObjectTransitionCurrent = 1 << 12,
    /// A lifecycle rule moved a noncurrent version to another storage class. Ceph only.
    ObjectTransitionNoncurrent = 1 << 13,
    /// An object arrived from another zone. Ceph only.
    ObjectSyncedCreate = 1 << 16,
    /// A removal arrived from another zone. Ceph only.
    ObjectSyncedDelete = 1 << 17,
    /// A delete marker arrived from another zone. Ceph only.
    ObjectSyncedDeletionMarkerCreated = 1 << 18,
    /// A lifecycle rule removed an object or a version. S3 only.
    LifecycleExpirationDelete = 1 << 20,
    /// A lifecycle rule created a delete marker. S3 only.
    LifecycleExpirationDeleteMarkerCreated = 1 << 21,
    /// A lifecycle rule moved an object to another storage class. S3 only.
    LifecycleTransition = 1 << 24,
    /// An object's tags were set. S3 only.
    ObjectTaggingPut = 1 << 28,
    /// An object's tags were removed. S3 only.
    ObjectTaggingDelete = 1 << 29,
    /// An object's access control list was set. S3 only.
    ObjectAclPut = 1 << 30,
}

use EventType as T;

/// All types with their names.
const TYPES: &[(EventType, &str)] = &[
    (T::ObjectCreatedPut, "ObjectCreated:Put"),
    (T::ObjectCreatedPost, "ObjectCreated:Post"),
    (T::ObjectCreatedCopy, "ObjectCreated:Copy"),
    (T::ObjectCreatedCompleteMultipartUpload, "ObjectCreated:CompleteMultipartUpload"),
    (T::ObjectRemovedDelete, "ObjectRemoved:Delete"),
    (T::ObjectRemovedDeleteMarkerCreated, "ObjectRemoved:DeleteMarkerCreated"),
    (T::ObjectExpirationCurrent, "ObjectLifecycle:Expiration:Current"),
    (T::ObjectExpirationNoncurrent, "ObjectLifecycle:Expiration:Noncurrent"),
    (T::ObjectExpirationDeleteMarker, "ObjectLifecycle:Expiration:DeleteMarker"),
    (T::ObjectExpirationAbortMultipartUpload, "ObjectLifecycle:Expiration:AbortMultipartUpload"),
    (T::ObjectTransitionCurrent, "ObjectLifecycle:Transition:Current"),
    (T::ObjectTransitionNoncurrent, "ObjectLifecycle:Transition:Noncurrent"),
    (T::ObjectSyncedCreate, "ObjectSynced:Create"),
    (T::ObjectSyncedDelete, "ObjectSynced:Delete"),
    (T::ObjectSyncedDeletionMarkerCreated, "ObjectSynced:DeletionMarkerCreated"),
    (T::LifecycleExpirationDelete, "LifecycleExpiration:Delete"),
    (T::LifecycleExpirationDeleteMarkerCreated, "LifecycleExpiration:DeleteMarkerCreated"),
    (T::LifecycleTransition, "LifecycleTransition"),
    (T::ObjectTaggingPut, "ObjectTagging:Put"),
    (T::ObjectTaggingDelete, "ObjectTagging:Delete"),
    (T::ObjectAclPut, "ObjectAcl:Put"),
];

/// Patterns of more than one type.
const FAMILIES: &[(EventPattern, &str)] = &[
    (EventPattern::OBJECT_CREATED, "ObjectCreated:*"),
    (EventPattern::OBJECT_REMOVED, "ObjectRemoved:*"),
    (EventPattern(0xff00), "ObjectLifecycle:*"),
    (EventPattern(0x0f00), "ObjectLifecycle:Expiration:*"),
    (EventPattern(0xf000), "ObjectLifecycle:Transition:*"),
    (EventPattern(0xf_0000), "ObjectSynced:*"),
    (EventPattern(0xf0_0000), "LifecycleExpiration:*"),
    (EventPattern(0x3000_0000), "ObjectTagging:*"),
];

/// Other spellings that Ceph accepts or documents.
const ALIASES: &[(&str, &str)] = &[
    ("ObjectLifecycle:Expiration:NonCurrent", "ObjectLifecycle:Expiration:Noncurrent"),
    ("ObjectLifecycle:Expiration:AbortMPU", "ObjectLifecycle:Expiration:AbortMultipartUpload"),
    ("ObjectLifecycle:Transition:NonCurrent", "ObjectLifecycle:Transition:Noncurrent"),
];

/// Types of S3 for which the gateway has no operation. An entry is a prefix.
const UNSUPPORTED_TYPES: &[&str] = &[
    "ReducedRedundancyLostObject",
    "ObjectRestore:",
    "Replication:",
    "IntelligentTiering",
    "ObjectAnnotation:",
];

impl EventType {
    /// All types.
    pub fn all() -> impl Iterator<Item = EventType> {
        TYPES.iter().map(|(event, _)| *event)
    }

    /// The name in event records, without `s3:`: `ObjectCreated:Put`.
    pub fn name(self) -> &'static str {
        let found = TYPES.iter().find(|(event, _)| *event == self);
        found.map(|(_, name)| *name).expect("invariant: TYPES lists every type, as a test checks")
    }

    /// The type's bit in stored records.
    pub const fn bit(self) -> u32 {
        self as u32
    }
}

impl fmt::Display for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SERVICE}{}", self.name())
    }
}

impl From<EventType> for u32 {
    fn from(event: EventType) -> u32 {
        event.bit()
    }
}

impl TryFrom<u32> for EventType {
    type Error = String;

    fn try_from(bit: u32) -> Result<EventType, String> {
        EventType::all()
            .find(|event| event.bit() == bit)
            .ok_or_else(|| format!("no event has the number {bit:#x}"))
    }
}

/// One type of events or a family of types, as configurations name them: `s3:ObjectCreated:*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct EventPattern(u32);

impl EventPattern {
    /// `s3:ObjectCreated:*`.
    pub const OBJECT_CREATED: EventPattern = EventPattern(0x0f);
    /// `s3:ObjectRemoved:*`.
    pub const OBJECT_REMOVED: EventPattern = EventPattern(0xf0);
    /// The patterns of a configuration that names no patterns.
    pub const DEFAULT: [EventPattern; 2] = [EventPattern::OBJECT_CREATED, EventPattern::OBJECT_REMOVED];

    /// Whether events of the type `event` match.
    pub fn matches(self, event: EventType) -> bool {
        self.0 & event.bit() != 0
    }

    /// All patterns: first the types, then the families.
    pub fn all() -> impl Iterator<Item = EventPattern> {
        EventType::all().map(EventPattern::from).chain(FAMILIES.iter().map(|(pattern, _)| *pattern))
    }

    fn name(self) -> Option<&'static str> {
        let families = FAMILIES.iter().map(|(pattern, name)| (pattern.0, *name));
        let types = TYPES.iter().map(|(event, name)| (event.bit(), *name));
        families.chain(types).find(|(bits, _)| *bits == self.0).map(|(_, name)| name)
    }
}

impl From<EventType> for EventPattern {
    fn from(event: EventType) -> EventPattern {
        EventPattern(event.bit())
    }
}

impl From<EventPattern> for u32 {
    fn from(pattern: EventPattern) -> u32 {
        pattern.0
    }
}

impl TryFrom<u32> for EventPattern {
    type Error = String;

    fn try_from(bits: u32) -> Result<EventPattern, String> {
        let pattern = EventPattern(bits);
        pattern
            .name()
            .map(|_| pattern)
            .ok_or_else(|| format!("no pattern of events has the number {bits:#x}"))
    }
}

impl fmt::Display for EventPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SERVICE}{}", self.name().expect("invariant: patterns are made of the tables only"))
    }
}

impl FromStr for EventPattern {
    type Err = Error;

    fn from_str(text: &str) -> Result<EventPattern> {
        let unknown = |reason: &str| Error::invalid("Event", format!("{} {reason}", quoted(text)));
        let name =
            text.strip_prefix(SERVICE).ok_or_else(|| unknown("is not an event type: it has no 's3:'"))?;
        let name = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, name)| *name);
        if let Some(pattern) = EventPattern::all().find(|pattern| pattern.name() == Some(name)) {
            return Ok(pattern);
        }
        if UNSUPPORTED_TYPES.iter().any(|never| name.starts_with(never)) {
            return Err(unknown("is an event type that never occurs here"));
        }
        Err(unknown("is not an event type"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_type_has_one_bit_and_one_name() {
        let bits: BTreeSet<u32> = EventType::all().map(EventType::bit).collect();
        let names: BTreeSet<&str> = EventType::all().map(EventType::name).collect();
        assert_eq!((bits.len(), names.len()), (TYPES.len(), TYPES.len()));
        assert!(bits.iter().all(|bit| bit.is_power_of_two()));
        for event in EventType::all() {
            assert_eq!(EventType::try_from(event.bit()), Ok(event));
            assert_eq!(event.to_string(), format!("s3:{}", event.name()));
        }
        assert!(EventType::try_from(0).is_err() && EventType::try_from(3).is_err());
    }

    #[test]
    fn patterns_are_read_as_they_are_written_and_stored() {
        let names: BTreeSet<String> = EventPattern::all().map(|pattern| pattern.to_string()).collect();
        assert_eq!(names.len(), TYPES.len() + FAMILIES.len());
        for pattern in EventPattern::all() {
            assert_eq!(pattern.to_string().parse::<EventPattern>(), Ok(pattern));
            assert_eq!(EventPattern::try_from(u32::from(pattern)), Ok(pattern));
        }
        assert!(EventPattern::try_from(0x11).is_err());
    }

    #[test]
    fn families_match_their_types_and_no_others() {
        for (family, name) in FAMILIES {
            let prefix = name.strip_suffix('*').unwrap();
            for event in EventType::all() {
                assert_eq!(family.matches(event), event.name().starts_with(prefix), "{name} {event}");
            }
        }
        for event in EventType::all() {
            let matched: Vec<_> =
                EventType::all().filter(|other| EventPattern::from(event).matches(*other)).collect();
            assert_eq!(matched, [event]);
        }
    }

    #[test]
    fn spellings_of_ceph_are_taken() {
        for (alias, name) in ALIASES {
            let read: EventPattern = format!("s3:{alias}").parse().unwrap();
            assert_eq!(read.to_string(), format!("s3:{name}"));
        }
    }

    #[test]
    fn types_that_never_occur_are_refused_by_name() {
        let error = "s3:ObjectRestore:Post".parse::<EventPattern>().unwrap_err();
        assert!(error.to_string().contains("never occurs"), "{error}");
        for text in [
            "",
            "s3:",
            "s3:*",
            "ObjectCreated:Put",
            "s3:objectcreated:put",
            "s3:ObjectCreated",
            "s3:UnknownEvent",
        ] {
            assert!(text.parse::<EventPattern>().is_err(), "{text}");
        }
    }
}
