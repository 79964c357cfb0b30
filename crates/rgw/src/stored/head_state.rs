//! The state of an object's head: the current version, which other versions there are, and what the index protocol needs.

use super::versions::VersionsAttr;
use super::{DataLocation, HEAD, Head, Manifest, StoredObjects, head_name};
use crate::error::{Error, Result};
use crate::execute;
use crate::record;
use bytes::Bytes;
use nacre_client::ReadOp;
use nacre_index::commit::AssumedHead;
use nacre_index::head;
use nacre_index::record::CommitRecord;
use nacre_index::record::{ListingEntry, Stats, Tails};
use nacre_index::seq::Seq;
use std::collections::BTreeMap;

/// Attempts at a read of a head that changes meanwhile.
const READ_ATTEMPTS: u32 = 40;
/// The attribute of a head that describes its versions; absent if the object never had any.
pub(crate) const VERSIONS: &str = "rgw.versions";

/// Identifies a state of a head: every change of the head gives it another mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadStateId {
    /// The sequence of the last change.
    seq: Seq,
    /// The RADOS version. It is compared only for heads of format 1, because tidying changes it.
    version: u64,
}

impl HeadStateId {
    /// Whether both marks identify the same state.
    pub(crate) fn is_same_state(self, other: HeadStateId) -> bool {
        if self.seq == Seq::LEGACY { self == other } else { self.seq == other.seq }
    }

    /// The sequence of the last change.
    pub(crate) fn seq(self) -> Seq {
        self.seq
    }
}

/// An object's current version.
pub(crate) struct CurrentObject {
    pub(crate) head: Head,
    pub(crate) versions: Option<VersionsAttr>,
    /// The RADOS version of the head.
    pub(crate) version: u64,
    pub(crate) mark: HeadStateId,
}

/// The state of a head that a commit is built on.
pub(crate) struct HeadState {
    /// The state for the index protocol; `None` if there is no RADOS object.
    pub(crate) protocol: Option<head::ObjectHead>,
    /// The object; `None` if there is none, also for a tombstone.
    pub(crate) object: Option<CurrentObject>,
}

/// The index entry that a head corresponds to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeadEntry {
    pub(crate) seq: Seq,
    pub(crate) listed: ListingEntry,
    /// The tails of the object, if it never had versions.
    pub(crate) tails: Vec<Tails>,
}

impl CurrentObject {
    /// Decodes the current version from a head's attributes; `None` for a tombstone.
    pub(crate) fn decode(
        name: &str,
        version: u64,
        attributes: &BTreeMap<Bytes, Bytes>,
    ) -> Result<Option<CurrentObject>> {
        let evidence = attributes.get(head::CHANGE.as_bytes());
        let evidence =
            evidence.map(|bytes| nacre_index::record::decode::<CommitRecord>(name, bytes)).transpose()?;
        let Some(stored) = attributes.get(HEAD.as_bytes()) else {
            return if evidence.is_some() { Ok(None) } else { Err(no_head(name)) };
        };
        let versions = attributes.get(VERSIONS.as_bytes());
        let versions = versions.map(|bytes| record::decode(name, bytes)).transpose()?;
        let mark = HeadStateId { seq: evidence.map_or(Seq::LEGACY, |evidence| evidence.seq), version };
        Ok(Some(CurrentObject { head: record::decode(name, stored)?, versions, version, mark }))
    }

    /// What a listing shows of the object.
    pub(crate) fn listed(&self) -> ListingEntry {
        self.head.listed(self.version_totals())
    }

    /// The totals of all versions, if the object has versions.
    pub(crate) fn version_totals(&self) -> Option<Stats> {
        self.versions.map(|versions| versions.held)
    }
}

/// The error for a head without [`HEAD`] that is no tombstone.
fn no_head(name: &str) -> Error {
    let detail = "there is none".to_owned();
    let source = nacre_types::encoding::DecodeError::Corrupt { what: "object head", detail };
    Error::Corrupt { name: name.to_owned(), source }
}

impl HeadState {
    /// What a commit on this head may assume.
    pub(crate) fn assumed_head(&self) -> AssumedHead {
        AssumedHead::from_head(self.protocol.clone())
    }

    /// The RADOS version; 0 if there is no RADOS object.
    pub(crate) fn version(&self) -> u64 {
        self.protocol.as_ref().map_or(0, |head| head.version)
    }
}

impl StoredObjects {
    /// Reads a head for a commit.
    pub(crate) async fn head_state(&self, name: &str) -> Result<HeadState> {
        let reply = execute::read(&self.data, name, &head::read()).await?;
        let Some(reply) = reply else { return Ok(HeadState { protocol: None, object: None }) };
        let protocol = head::parse(name, Some(&reply))?;
        let attributes = reply.pairs(0).map_err(nacre_index::Error::from)?;
        let object = CurrentObject::decode(name, reply.version, attributes)?;
        Ok(HeadState { protocol, object })
    }

    /// Reads a head as the index protocol sees it; `None` if there is no RADOS object.
    pub(crate) async fn protocol_head(&self, bucket_id: &str, key: &str) -> Result<Option<head::ObjectHead>> {
        let name = head_name(bucket_id, key);
        let reply = execute::read(&self.data, &name, &head::read()).await?;
        Ok(head::parse(&name, reply.as_ref())?)
    }

    /// Reads an object's current version, which may be a delete marker; `None` if there is no object.
    pub(crate) async fn current(&self, bucket_id: &str, key: &str) -> Result<Option<CurrentObject>> {
        let name = head_name(bucket_id, key);
        let mut op = ReadOp::new();
        op.get_xattrs();
        match self.data.operate_read(&name, op).await.and_then(|reply| reply.success()) {
            Err(error) if error.is_not_found() => Ok(None),
            reply => {
                let mut reply = reply?;
                CurrentObject::decode(&name, reply.version, &reply.pairs(0)?)
            }
        }
    }

    /// Reads an object's current version, which may be a delete marker, and the state of its head; `None` if there is no object.
    pub async fn head(&self, bucket_id: &str, key: &str) -> Result<Option<(Head, HeadStateId)>> {
        Ok(self.current(bucket_id, key).await?.map(|current| (current.head, current.mark)))
    }

    /// What a listing shows of a key, according to its head.
    pub(crate) async fn head_listing_entry(
        &self,
        bucket_id: &str,
        key: &str,
    ) -> Result<Option<ListingEntry>> {
        Ok(self.current(bucket_id, key).await?.map(|current| current.listed()))
    }

    /// The index entry that a key's head corresponds to, with the tails if the object never had versions; `None` if there is no
    /// object.
    pub(crate) async fn head_index_entry(&self, bucket_id: &str, key: &str) -> Result<Option<HeadEntry>> {
        let name = head_name(bucket_id, key);
        for _ in 0..READ_ATTEMPTS {
            let Some(current) = self.current(bucket_id, key).await? else { return Ok(None) };
            let (seq, listed) = (current.mark.seq, current.listed());
            if listed.held.is_some() {
                return Ok(Some(HeadEntry { seq, listed, tails: Vec::new() }));
            }
            let tails = match &current.head.data {
                DataLocation::Inline => Vec::new(),
                DataLocation::Tails(tails) => vec![tails.clone()],
                DataLocation::Parts(_) => {
                    // Read again if the head changed meanwhile.
                    let inline = self.read_inline_data(&name, &current.head, current.version).await?;
                    let Some(inline) = inline else { continue };
                    let manifest = record::decode::<Manifest>(&name, &inline)?;
                    manifest.parts.into_iter().map(|part| part.tails).collect()
                }
            };
            return Ok(Some(HeadEntry { seq, listed, tails }));
        }
        Err(Error::Contended(key.to_owned()))
    }
}
