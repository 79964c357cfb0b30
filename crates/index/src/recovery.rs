//! Recovery of the pending changes of a dead gateway.
//!
//! A gateway that recovers a shard pages through its pending records ([`scan`], [`parse`]) and fences the dead sessions:
//! their leases have expired, they are on the blocklist, and the OSDs know it. It passes the changes of these sessions to
//! [`crate::finish::FinishBatch::add_orphan`]. From then on recovery is the same as finishing: the shard is read, then the
//! heads, then the shard again, and one write finishes the committed changes and cancels the others.
//!
//! The order matters. The session is fenced first: a change without evidence after that can never get any. The shard is
//! read before the head: the absence of the head of an entry's object proves its removal only if the entry existed before
//! the head was read.

use crate::error::{Error, Result};
use crate::key::{self, IndexRecordKind};
use crate::op::{Fetch, Page, Read};
use crate::record::{self, Pending};
use bytes::Bytes;

/// A pending change.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PendingChange {
    /// Its omap key, which is the cursor of the next page.
    pub name: Bytes,
    /// The object's key.
    pub key: String,
    /// Its tag.
    pub tag: String,
    /// Its record.
    pub pending: Pending,
}

/// Reads the pending changes after `after`; those of one key if `prefix` is its [`key::prefix`].
pub fn scan(prefix: Bytes, after: Bytes, max: u64) -> Read {
    Read::of(vec![Fetch::Page { prefix, after, max }])
}

/// The pending changes of a page of [`scan`].
pub fn parse(shard: &str, page: &Page) -> Result<Vec<PendingChange>> {
    let change = |(name, value): &(Bytes, Bytes)| {
        let parsed = key::parse(name).filter(|parsed| parsed.kind == IndexRecordKind::Pending);
        let Some(parsed) = parsed else {
            return Err(Error::corrupt(shard, "pending index entry", "the key is none of a pending entry"));
        };
        let pending = record::decode(shard, value)?;
        Ok(PendingChange { name: name.clone(), key: parsed.key, tag: parsed.suffix, pending })
    };
    page.entries.iter().map(change).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pending_changes_are_read_with_their_keys_and_tags() {
        let pending = Pending { session: "client.7".into(), ..Pending::default() };
        let name = key::pending("a\0b", "0123456789abcdef0123456789abcdef");
        let page = Page { entries: vec![(name.clone(), record::encode(&pending))], more: false };
        let [change] = &parse("shard", &page).unwrap()[..] else { panic!("one change") };
        assert_eq!((change.key.as_str(), change.tag.len(), &change.pending), ("a\0b", 32, &pending));
        let wrong = Page { entries: vec![(key::entry("a"), Bytes::new())], more: false };
        assert!(parse("shard", &wrong).is_err());
    }
}
