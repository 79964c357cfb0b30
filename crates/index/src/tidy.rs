//! Tidying: removing evidence of finished changes, and tombstones, from heads.
//!
//! The finish writes a `Y` record if a head has something to remove. So a crash loses nothing: any gateway that finds the
//! record continues. Evidence of finished changes is removed by sequence. This can't affect evidence of another change,
//! because sequences are never reused and changes are finished in order. A tombstone is removed only if it is the one in
//! the index, and only while no change of the key is pending.

use crate::error::Result;
use crate::head;
use crate::key::{self, IndexRecordKind};
use crate::op::{Fetch, Guard, Page, Read, ReadReply, Step, Write};
use crate::record::{self, Entry, Tidy};
use crate::seq::Seq;
use crate::state;
use bytes::Bytes;

/// The work to be done for a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TidyWork {
    /// Nothing.
    Nothing,
    /// Changes of the key are pending. The gateway that finishes the last of them tidies the key.
    Wait,
    /// `head` is executed first. If it succeeds, or if there is no such RADOS object (ENOENT), `shard` is executed. If
    /// either of them is refused with ECANCELED, the key was changed, and the gateway that finishes that change tidies the
    /// key.
    Remove {
        /// The write of the head.
        head: Write,
        /// The write of the shard.
        shard: Write,
    },
}

/// Reads the keys after `after` that have something to tidy.
pub fn scan(after: Bytes, max: u64) -> Read {
    Read::of(vec![Fetch::Page { prefix: IndexRecordKind::Tidy.prefix(), after, max }])
}

/// The keys in a page of [`scan`].
pub fn keys(page: &Page) -> Vec<String> {
    page.entries.iter().filter_map(|(name, _)| Some(key::parse(name)?.key)).collect()
}

/// The read that [`plan`] needs.
pub fn read(key: &str) -> Read {
    let pending =
        Fetch::Page { prefix: key::prefix(IndexRecordKind::Pending, key), after: Bytes::new(), max: 1 };
    Read::of(vec![Fetch::Keys(vec![key::entry(key), key::tidy(key)]), pending])
}

/// Decides the work from `reply` to [`read`].
pub fn plan(key: &str, reply: &ReadReply) -> Result<TidyWork> {
    let found = reply.pairs(0)?;
    let (entry_name, tidy_name) = (key::entry(key), key::tidy(key));
    let Some(tidy) = found.get(&tidy_name) else { return Ok(TidyWork::Nothing) };
    let up_to = record::decode::<Tidy>(key, tidy)?.up_to;
    let mut guards =
        vec![Guard::Exists, state::guard_not_frozen(), Guard::OmapEquals(tidy_name.clone(), tidy.clone())];
    let mut gone = vec![tidy_name];
    let stored = found.get(&entry_name);
    let entry = stored.map(|value| record::decode::<Entry>(key, value)).transpose()?;
    let head = match (entry, stored) {
        (Some(Entry { seq, object: None }), Some(stored)) => {
            if !reply.page(1)?.entries.is_empty() {
                return Ok(TidyWork::Wait);
            }
            guards.push(Guard::OmapEquals(entry_name.clone(), stored.clone()));
            gone.push(entry_name);
            remove_tombstone(seq)
        }
        (entry, _) => remove_evidence(entry.map_or(up_to, |entry| entry.seq.max(up_to))),
    };
    Ok(TidyWork::Remove { head, shard: Write { guards, steps: vec![Step::OmapRemove(gone)] } })
}

/// Removes a head that is the tombstone of the change `seq`.
fn remove_tombstone(seq: Seq) -> Write {
    let is_it = Guard::AttrEquals(head::SEQ, Bytes::from(seq.to_string()));
    Write { guards: vec![Guard::Exists, is_it], steps: vec![Step::Remove] }
}

/// Removes the evidence of all changes up to `up_to`.
fn remove_evidence(up_to: Seq) -> Write {
    let (first, end) = (Bytes::from_static(key::COMMIT_RECORD_PREFIX), key::commit_record_end(up_to));
    Write { guards: vec![Guard::Exists], steps: vec![Step::OmapRemoveRange { first, end }] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Fetched;
    use crate::record::ListingEntry;
    use crate::seq::HeadIncarnation;
    use std::collections::BTreeMap;

    const SEQ: Seq = Seq { incarnation: HeadIncarnation { generation: 0, version: 4 }, number: 2 };

    fn reply(entry: Option<Entry>, tidy: bool, pending: bool) -> ReadReply {
        let mut found = BTreeMap::new();
        if let Some(entry) = entry {
            found.insert(key::entry("k"), record::encode(&entry));
        }
        if tidy {
            found.insert(key::tidy("k"), record::encode(&Tidy { up_to: SEQ }));
        }
        let entries = pending.then(|| (key::pending("k", "t"), Bytes::new())).into_iter().collect();
        let page = Page { entries, more: false };
        ReadReply { version: 1, parts: vec![Fetched::Pairs(found), Fetched::Page(page)] }
    }

    fn removed_head(work: &TidyWork) -> Option<&Write> {
        match work {
            TidyWork::Remove { head, .. } => Some(head),
            TidyWork::Nothing | TidyWork::Wait => None,
        }
    }

    #[test]
    fn a_tombstone_goes_only_as_the_one_that_the_index_knows() {
        let buried = Some(Entry { seq: SEQ, object: None });
        let found = plan("k", &reply(buried.clone(), true, false)).unwrap();
        let is_it = Guard::AttrEquals(head::SEQ, Bytes::from(SEQ.to_string()));
        let expected = Write { guards: vec![Guard::Exists, is_it], steps: vec![Step::Remove] };
        assert_eq!(removed_head(&found), Some(&expected));
        assert_eq!(plan("k", &reply(buried, true, true)).unwrap(), TidyWork::Wait);
    }

    #[test]
    fn evidence_goes_as_far_as_changes_are_finished() {
        let seq = SEQ.successor();
        let shown = Entry { seq, object: Some(ListingEntry::default()) };
        let found = plan("k", &reply(Some(shown), true, true)).unwrap();
        let first = Bytes::from_static(b"e");
        let range = Step::OmapRemoveRange { first, end: key::commit_record_end(seq) };
        assert_eq!(removed_head(&found).unwrap().steps, [range]);
    }

    #[test]
    fn nothing_is_tidied_without_a_record() {
        let buried = Entry { seq: SEQ, object: None };
        assert_eq!(plan("k", &reply(Some(buried), false, false)).unwrap(), TidyWork::Nothing);
    }

    #[test]
    fn keys_are_found_by_their_records() {
        let entries = vec![(key::tidy("a\0b"), Bytes::new()), (key::tidy("c"), Bytes::new())];
        assert_eq!(keys(&Page { entries, more: false }), ["a\0b", "c"]);
    }
}
