//! What an object's head is: the current version, which other versions there are, and what the index protocol needs to know.

use super::versions::Versions;
use super::{Data, HEAD, Head, Manifest, head_name, head_name_in};
use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::gateway::Gateway;
use crate::index::{Listed, Stats, Tails, execute};
use crate::record;
use bytes::Bytes;
use nacre_client::ReadOp;
use nacre_index::commit::Base;
use nacre_index::head;
use nacre_index::record::Evidence;
use nacre_index::seq::Seq;
use std::collections::BTreeMap;

/// Attempts at a read of a head that is changed meanwhile.
const ATTEMPTS: u32 = 40;
/// The attribute of a head that says which versions there are; absent where the object never had any.
pub(super) const VERSIONS: &str = "rgw.versions";

/// Which state of a head it is: a head that was changed has another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeadMark {
    /// The sequence of the last change.
    seq: Seq,
    /// The RADOS version; only heads of format 1 are told apart by it, since tidying changes it.
    version: u64,
}

impl HeadMark {
    /// Whether this is the same state as the other one.
    pub(super) fn is(self, other: HeadMark) -> bool {
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
    pub(super) versions: Option<Versions>,
    /// The RADOS version of the head.
    pub(super) version: u64,
    pub(crate) mark: HeadMark,
}

/// A head as a commit needs it.
pub(super) struct HeadState {
    /// What the protocol needs; `None` where there is no RADOS object.
    pub(super) protocol: Option<head::Head>,
    /// The object; `None` for a tombstone, too.
    pub(super) object: Option<CurrentObject>,
}

/// What a head stands for in the index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeadEntry {
    pub(crate) seq: Seq,
    pub(crate) listed: Listed,
    /// Tails that the object has, where it never had versions.
    pub(crate) tails: Vec<Tails>,
}

impl CurrentObject {
    /// The current version as a head's attributes have it; `None` for a tombstone.
    pub(super) fn of(
        name: &str,
        version: u64,
        attributes: &BTreeMap<Bytes, Bytes>,
    ) -> Result<Option<CurrentObject>> {
        let evidence = attributes.get(head::CHANGE.as_bytes());
        let evidence =
            evidence.map(|bytes| nacre_index::record::decode::<Evidence>(name, bytes)).transpose()?;
        let Some(stored) = attributes.get(HEAD.as_bytes()) else {
            return if evidence.is_some() { Ok(None) } else { Err(no_head(name)) };
        };
        let versions = attributes.get(VERSIONS.as_bytes());
        let versions = versions.map(|bytes| record::decode(name, bytes)).transpose()?;
        let mark = HeadMark { seq: evidence.map_or(Seq::LEGACY, |evidence| evidence.seq), version };
        Ok(Some(CurrentObject { head: record::decode(name, stored)?, versions, version, mark }))
    }

    /// What a listing shows of it.
    pub(crate) fn listed(&self) -> Listed {
        self.head.listed(self.held())
    }

    /// What all its versions come to, where it has versions.
    pub(super) fn held(&self) -> Option<Stats> {
        self.versions.map(|versions| versions.held)
    }
}

/// A head without the attribute that makes it one.
fn no_head(name: &str) -> Error {
    let detail = "there is none".to_owned();
    let source = nacre_types::encoding::DecodeError::Corrupt { what: "object head", detail };
    Error::Corrupt { name: name.to_owned(), source }
}

impl HeadState {
    /// What a commit builds on.
    pub(super) fn base(&self) -> Base {
        Base::read(self.protocol.clone())
    }

    /// The RADOS version; 0 where there is no RADOS object.
    pub(super) fn version(&self) -> u64 {
        self.protocol.as_ref().map_or(0, |head| head.version)
    }
}

impl Gateway {
    /// A head for a commit, read now.
    pub(super) async fn head_state(&self, name: &str) -> Result<HeadState> {
        let reply = execute::read(&self.pools.data, name, &head::read()).await?;
        let Some(reply) = reply else { return Ok(HeadState { protocol: None, object: None }) };
        let protocol = head::parse(name, Some(&reply))?;
        let attributes = reply.pairs(0).map_err(nacre_index::Error::from)?;
        let object = CurrentObject::of(name, reply.version, attributes)?;
        Ok(HeadState { protocol, object })
    }

    /// A head as the index protocol sees it.
    pub(crate) async fn protocol_head(&self, id: &str, key: &str) -> Result<Option<head::Head>> {
        let name = head_name_in(id, key);
        let reply = execute::read(&self.pools.data, &name, &head::read()).await?;
        Ok(head::parse(&name, reply.as_ref())?)
    }

    /// An object's current version, which may be a delete marker; `None` where there is none.
    pub(crate) async fn current(&self, bucket: &Bucket, key: &str) -> Result<Option<CurrentObject>> {
        let name = head_name(bucket, key);
        let mut op = ReadOp::new();
        op.get_xattrs();
        match self.pools.data.operate_read(&name, op).await.and_then(|reply| reply.success()) {
            Err(error) if error.is_not_found() => Ok(None),
            reply => {
                let mut reply = reply?;
                CurrentObject::of(&name, reply.version, &reply.pairs(0)?)
            }
        }
    }

    /// The current version of an object and the state of its head; `None` where there is none. It may be a delete marker.
    pub(crate) async fn head(&self, bucket: &Bucket, key: &str) -> Result<Option<(Head, HeadMark)>> {
        Ok(self.current(bucket, key).await?.map(|current| (current.head, current.mark)))
    }

    /// What a listing shows of a key as its head is now.
    pub(crate) async fn listed_head(&self, bucket: &Bucket, key: &str) -> Result<Option<Listed>> {
        Ok(self.current(bucket, key).await?.map(|current| current.listed()))
    }

    /// What a key's head stands for now, with the tails of an object that never had versions.
    pub(crate) async fn head_with_tails(&self, bucket: &Bucket, key: &str) -> Result<Option<HeadEntry>> {
        let name = head_name(bucket, key);
        for _ in 0..ATTEMPTS {
            let Some(current) = self.current(bucket, key).await? else { return Ok(None) };
            let (seq, listed) = (current.mark.seq, current.listed());
            if listed.held.is_some() {
                return Ok(Some(HeadEntry { seq, listed, tails: Vec::new() }));
            }
            let tails = match &current.head.data {
                Data::Inline => Vec::new(),
                Data::Tails(tails) => vec![tails.clone()],
                Data::Parts(_) => {
                    // Read again where it was changed meanwhile.
                    let inline = self.inline(&name, &current.head, current.version).await?;
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
