//! The protocol's view of a head: evidence of the changes that were committed to it.
//!
//! The attribute [`CHANGE`] has the evidence of the last change; the attribute [`SEQ`] repeats its sequence, for
//! comparisons. The omap has the evidence of earlier changes that may be unfinished, by sequence. So the head proves, for
//! every change that is committed and not finished, that it took effect. The only exception is the removal of the head
//! itself ([`crate::commit::remove`]).

use crate::error::{Error, Result};
use crate::key;
use crate::op::{Fetch, Read, ReadReply};
use crate::record::{self, ChangeEffect, CommitRecord};
use crate::seq::{HeadIncarnation, Seq};
use bytes::Bytes;

/// The attribute that holds the evidence of the last change; absent in heads of format 1.
pub const CHANGE: &str = "rgw.change";
/// The attribute that holds the sequence of the last change as text.
pub const SEQ: &str = "rgw.seq";
/// The most commit records of earlier changes in a head, and so the most unfinished changes of a key.
pub const MAX_EARLIER_COMMITS: usize = 512;

/// A head that was read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectHead {
    /// The RADOS version.
    pub version: u64,
    /// The last change; `None` if format 1 wrote the head.
    pub last: Option<CommitRecord>,
    /// Earlier changes, in their order.
    pub earlier: Vec<CommitRecord>,
}

/// Reads what [`parse`] needs. A gateway may append parts of its own.
pub fn read() -> Read {
    let prefix = Bytes::from_static(key::COMMIT_RECORD_PREFIX);
    let page = Fetch::Page { prefix, after: Bytes::new(), max: MAX_EARLIER_COMMITS as u64 + 1 };
    Read::of(vec![Fetch::Attrs, page])
}

/// The head in `reply` to [`read`]; `None` if there is no such RADOS object.
pub fn parse(name: &str, reply: Option<&ReadReply>) -> Result<Option<ObjectHead>> {
    let Some(reply) = reply else { return Ok(None) };
    let last = reply.pairs(0)?.get(CHANGE.as_bytes());
    let last = last.map(|value| record::decode::<CommitRecord>(name, value)).transpose()?;
    let page = reply.page(1)?;
    if page.more {
        return Err(Error::corrupt(name, "evidence of changes", "there is more than is ever written"));
    }
    let earlier = page.entries.iter().map(|(_, value)| record::decode::<CommitRecord>(name, value));
    let earlier = earlier.collect::<Result<Vec<_>>>()?;
    Ok(Some(ObjectHead { version: reply.version, last, earlier }))
}

impl ObjectHead {
    /// The sequence of the last change.
    pub fn last_seq(&self) -> Seq {
        self.last.as_ref().map_or(Seq::LEGACY, |last| last.seq)
    }

    /// The incarnation of the RADOS object.
    pub fn incarnation(&self) -> HeadIncarnation {
        self.last_seq().incarnation
    }

    /// Whether readers must treat the object as absent.
    pub fn is_tombstone(&self) -> bool {
        self.last.as_ref().is_some_and(|last| last.content == ChangeEffect::Tombstone)
    }

    /// The records of the last changes, in the order of the changes.
    pub fn commit_records(&self) -> impl Iterator<Item = &CommitRecord> {
        self.earlier.iter().chain(&self.last)
    }

    /// The evidence of a change.
    pub fn find(&self, tag: &str) -> Option<&CommitRecord> {
        self.commit_records().find(|evidence| evidence.tag == tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{Fetched, Page};
    use std::collections::BTreeMap;

    fn commit_record(number: u64, content: ChangeEffect) -> CommitRecord {
        let incarnation = HeadIncarnation { generation: 0, version: 3 };
        let seq = Seq { incarnation, number };
        CommitRecord { seq, tag: format!("t{number}"), content, subject: None, tails: None, untidy: false }
    }

    #[test]
    fn a_head_proves_its_last_change_and_those_before_it() {
        let (first, last) =
            (commit_record(1, ChangeEffect::Unchanged), commit_record(2, ChangeEffect::Tombstone));
        let attrs = BTreeMap::from([(Bytes::from_static(CHANGE.as_bytes()), record::encode(&last))]);
        let entries = vec![(key::commit_record(first.seq), record::encode(&first))];
        let parts = vec![Fetched::Pairs(attrs), Fetched::Page(Page { entries, more: false })];
        let head = parse("h", Some(&ReadReply { version: 9, parts })).unwrap().unwrap();
        assert_eq!((head.version, head.last_seq()), (9, last.seq));
        assert!(head.is_tombstone());
        assert_eq!(head.find("t1"), Some(&first));
        assert_eq!(head.find("t2"), Some(&last));
        assert_eq!(head.find("t3"), None);
    }

    #[test]
    fn heads_of_format_1_have_no_evidence() {
        let parts = vec![Fetched::Pairs(BTreeMap::new()), Fetched::Page(Page::default())];
        let head = parse("h", Some(&ReadReply { version: 9, parts })).unwrap().unwrap();
        assert_eq!(
            (head.last_seq(), head.is_tombstone(), head.commit_records().count()),
            (Seq::LEGACY, false, 0)
        );
        assert_eq!(parse("h", None), Ok(None));
    }
}
