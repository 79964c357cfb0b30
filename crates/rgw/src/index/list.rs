//! Lists a bucket: merges the entries of its shards in the order of their keys.
//!
//! The heads of keys with pending changes are read, unless this gateway knows the outcomes of all these changes. So the
//! listing shows what a reader of the object would find. Pending records and entries of a shard are read in one operation,
//! so that a change that is finished meanwhile is not missed.

use super::{BucketIndex, ListingEntry, StaleIntent};
use crate::bucket::Bucket;
use crate::error::Result;
use crate::record;
use crate::shards::shard_name;
use bytes::Bytes;
use futures::stream::{StreamExt, TryStreamExt};
use nacre_client::ReadOp;
use nacre_index::finish::ChangeOutcome;
use nacre_index::key::{self, IndexRecordKind};
use nacre_index::record::{ChangeEffect, CommitRecord, Entry, Pending, VersionKind};
use nacre_types::op::OmapValsReply;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The maximum number of entries that are read from a shard at once.
const MAX_PAGE: usize = 1000;
/// Pending records that are read with them.
const PENDING_PAGE: u64 = 1000;
/// Heads read concurrently.
const HEADS: usize = 16;

/// Selects what to list.
#[derive(Clone, Debug, Default)]
pub struct ListQuery {
    /// Keys with this prefix.
    pub prefix: String,
    /// Keys are rolled up to the first occurrence of the delimiter after the prefix; empty for no roll-up.
    pub delimiter: String,
    /// Keys after this one.
    pub after: String,
    /// Whether keys that begin with `after` are skipped, too, because it is a prefix that was listed.
    pub after_group: bool,
    /// The maximum number of keys and rolled-up prefixes.
    pub max: usize,
    /// Whether to list keys whose current version is a delete marker.
    pub markers: bool,
}

/// The result of a listing.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// Keys.
    pub entries: Vec<(String, ListingEntry)>,
    /// Rolled-up prefixes.
    pub prefixes: Vec<String>,
    /// If there is more: the last key or prefix listed, and whether it is a prefix.
    pub next: Option<(String, bool)>,
}

/// The state of the listing in a shard.
struct Cursor {
    name: String,
    ready: VecDeque<(String, ListingEntry)>,
    /// The position in the order of objects' keys after which to continue.
    after: Vec<u8>,
    ended: bool,
    /// Pending changes that are older than they should be.
    stale: Vec<StaleIntent>,
}

impl BucketIndex {
    /// Lists a bucket.
    pub async fn list(&self, bucket: &Bucket, query: &ListQuery) -> Result<Listing> {
        if query.max == 0 {
            return Ok(Listing::default());
        }
        let mut stale = Vec::new();
        let listing = self.merge(bucket, query, &mut stale).await;
        if !stale.is_empty() {
            let (recovery, bucket) = (Arc::clone(&self.recovery), bucket.clone());
            tokio::spawn(async move {
                if let Err(error) = recovery.recover_stale(&bucket, stale).await {
                    tracing::warn!(%error, bucket = bucket.name, "rgw: pending changes can't be recovered yet");
                }
            });
        }
        listing
    }

    async fn merge(
        &self,
        bucket: &Bucket,
        query: &ListQuery,
        stale: &mut Vec<StaleIntent>,
    ) -> Result<Listing> {
        let mut listing = Listing::default();
        let shards = bucket.shards.max(1);
        // A little more than the share of each shard, so that few shards are read twice.
        let page = (query.max * 5 / 4 / shards as usize + 16).min(MAX_PAGE);
        let mut begin = query.after.clone().into_bytes();
        if query.after_group {
            begin.push(0xff);
        }
        let mut cursors: Vec<Cursor> = (0..shards)
            .map(|shard| Cursor {
                name: shard_name(bucket, shard),
                ready: VecDeque::new(),
                after: begin.clone(),
                ended: false,
                stale: Vec::new(),
            })
            .collect();
        let mut last: Option<(String, bool)> = None;
        loop {
            let empty = cursors.iter_mut().filter(|cursor| cursor.ready.is_empty() && !cursor.ended);
            futures::future::try_join_all(empty.map(|cursor| self.fill(bucket, query, cursor, page))).await?;
            stale.extend(cursors.iter_mut().flat_map(|cursor| cursor.stale.drain(..)));
            if cursors.iter().any(|cursor| cursor.ready.is_empty() && !cursor.ended) {
                continue;
            }
            let first = cursors
                .iter_mut()
                .filter(|cursor| !cursor.ready.is_empty())
                .min_by(|a, b| a.ready[0].0.cmp(&b.ready[0].0));
            let Some((key, entry)) = first.and_then(|cursor| cursor.ready.pop_front()) else {
                return Ok(listing);
            };
            if listing.entries.len() + listing.prefixes.len() == query.max {
                listing.next = last;
                return Ok(listing);
            }
            let Some(group) = group_of(&key, query) else {
                last = Some((key.clone(), false));
                listing.entries.push((key, entry));
                continue;
            };
            let group = group.to_owned();
            for cursor in &mut cursors {
                while cursor.ready.front().is_some_and(|(key, _)| key.starts_with(&group)) {
                    cursor.ready.pop_front();
                }
                let behind = [group.as_bytes(), &[0xff]].concat();
                if cursor.ready.is_empty() && cursor.after < behind {
                    cursor.after = behind;
                }
            }
            last = Some((group.clone(), true));
            listing.prefixes.push(group);
        }
    }

    /// Reads entries and pending changes of a shard in one operation.
    async fn read_page(
        &self,
        bucket: &Bucket,
        query: &ListQuery,
        cursor: &Cursor,
        page: usize,
    ) -> Result<(OmapValsReply, OmapValsReply)> {
        let prefix = query.prefix.as_bytes();
        let mut pending_after = key::position(IndexRecordKind::Pending, &cursor.after);
        loop {
            let mut op = ReadOp::new();
            let entries = (
                key::position(IndexRecordKind::Entry, &cursor.after),
                key::position(IndexRecordKind::Entry, prefix),
            );
            op.omap_get_vals(entries.0, entries.1, page as u64);
            op.omap_get_vals(pending_after, key::position(IndexRecordKind::Pending, prefix), PENDING_PAGE);
            let reply = self.shards.pool().operate_read(&cursor.name, op).await;
            let reply = reply.and_then(|reply| reply.success());
            let mut reply = reply.map_err(|error| self.shards.unavailable(bucket, error))?;
            let pending = reply.omap_vals(1)?;
            match pending.entries.last() {
                // The page contains only changes of the key listed last, of which there may be any number.
                Some((last, _)) if pending.more && !behind(&pending.entries, &cursor.after).any(|_| true) => {
                    pending_after = last.clone();
                }
                _ => return Ok((reply.omap_vals(0)?, pending)),
            }
        }
    }

    /// Reads more from a shard. Afterwards entries are ready, or the shard has ended, or it must be read again.
    async fn fill(&self, bucket: &Bucket, query: &ListQuery, cursor: &mut Cursor, page: usize) -> Result<()> {
        let (entries, pending) = self.read_page(bucket, query, cursor, page).await?;
        let keyed = entries.entries.iter().filter_map(|(name, value)| Some((key::parse(name)?.key, value)));
        let keyed: Vec<(String, &Bytes)> = keyed.collect();
        // The key up to which both are complete; `None` if they are complete to the end.
        let entries_to =
            if entries.more { keyed.last().map(|(key, _)| key.clone().into_bytes()) } else { None };
        let (pending_to, crowded) =
            if pending.more { complete_to(&pending.entries, &cursor.after) } else { (None, None) };
        let to = match (entries_to, pending_to) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let within = |key: &[u8]| to.as_ref().is_none_or(|to| key <= to.as_slice());
        let mut found: BTreeMap<String, Entry> = BTreeMap::new();
        for (key, value) in keyed {
            if within(key.as_bytes()) {
                let entry = record::decode::<Entry>(&cursor.name, value)?;
                found.insert(key, entry);
            }
        }
        let mut unfinished: BTreeMap<String, Vec<(String, &Bytes)>> = BTreeMap::new();
        for (name, value) in &pending.entries {
            if let Some(change) = key::parse(name)
                && within(change.key.as_bytes())
                && change.key.as_bytes() > cursor.after.as_slice()
            {
                unfinished.entry(change.key).or_default().push((change.suffix, value));
            }
        }
        let mut asked = Vec::new();
        for (key, changes) in unfinished {
            let outcome = match &crowded {
                Some(crowded) if *crowded == key => None,
                _ => {
                    let known = self.finisher.unfinished_outcomes(&cursor.name, &key);
                    outcome(found.get(&key), changes.iter().map(|(tag, _)| tag.as_str()), &known)
                }
            };
            if let Some(listed) = outcome {
                set(&mut found, key, listed);
                continue;
            }
            for (tag, value) in changes {
                let pending = record::decode::<Pending>(&cursor.name, value)?;
                let intent = StaleIntent { key: key.clone(), tag, pending };
                let expiration = self.pending_expiration;
                cursor.stale.extend(Some(intent).filter(|intent| intent.is_older(expiration)));
            }
            asked.push(key);
        }
        let heads: Vec<(String, Option<ListingEntry>)> = futures::stream::iter(asked)
            .map(|key| async move {
                let listed = self.objects.head_listing_entry(&bucket.id, &key).await;
                listed.map(|listed| (key, listed))
            })
            .buffer_unordered(HEADS)
            .try_collect()
            .await?;
        for (key, listed) in heads {
            set(&mut found, key, listed);
        }
        let shown = found.into_iter().filter_map(|(key, entry)| Some((key, entry.object?)));
        cursor
            .ready
            .extend(shown.filter(|(_, listed)| query.markers || listed.kind != VersionKind::DeleteMarker));
        match to {
            Some(to) => cursor.after = to,
            None => cursor.ended = true,
        }
        Ok(())
    }
}

/// Sets what is listed of a key to what was found out about it.
fn set(found: &mut BTreeMap<String, Entry>, key: String, listed: Option<ListingEntry>) {
    match listed {
        Some(listed) => drop(found.insert(key, Entry { object: Some(listed), ..Entry::default() })),
        None => drop(found.remove(&key)),
    }
}

/// Returns what a listing shows of a key if the outcomes of all its pending changes are known. Returns `None` if its head
/// must be read.
fn outcome<'a>(
    entry: Option<&Entry>,
    mut pending: impl Iterator<Item = &'a str>,
    known: &BTreeMap<String, ChangeOutcome>,
) -> Option<Option<ListingEntry>> {
    if !pending.all(|tag| known.contains_key(tag)) {
        return None;
    }
    let mut committed: Vec<&CommitRecord> = known
        .values()
        .filter_map(|outcome| match outcome {
            ChangeOutcome::Committed(evidence) => Some(&**evidence),
            ChangeOutcome::Cancelled => None,
        })
        .filter(|evidence| entry.is_none_or(|entry| evidence.seq > entry.seq))
        .collect();
    committed.sort_unstable_by_key(|evidence| evidence.seq);
    let mut shown = entry.and_then(|entry| entry.object.clone());
    for evidence in committed {
        match &evidence.content {
            ChangeEffect::Object(listed) => shown = Some(listed.clone()),
            // The change may have left an object unchanged whose entry was lost.
            ChangeEffect::Unchanged if shown.is_none() => return None,
            ChangeEffect::Unchanged => {}
            ChangeEffect::Tombstone | ChangeEffect::Removed => shown = None,
        }
    }
    Some(shown)
}

/// Returns the keys of pending changes after `after`, in order.
fn behind<'a>(entries: &'a [(Bytes, Bytes)], after: &'a [u8]) -> impl Iterator<Item = String> + 'a {
    let keys = entries.iter().filter_map(|(name, _)| key::parse(name).map(|change| change.key));
    keys.filter(move |key| key.as_bytes() > after)
}

/// Returns the key up to which a page, which is not the last one, contains all pending changes. If the page has only one key
/// after `after`, also returns that key: there may be more changes of it.
fn complete_to(entries: &[(Bytes, Bytes)], after: &[u8]) -> (Option<Vec<u8>>, Option<String>) {
    let keys: Vec<String> = behind(entries, after).collect();
    let Some(last) = keys.last() else { return (None, None) };
    // There may be more changes of the last key, but not of the ones before it.
    match keys.iter().rev().find(|key| *key != last) {
        Some(before) => (Some(before.clone().into_bytes()), None),
        // The head of this key is read, so it does not matter that there may be more changes.
        None => (Some(last.clone().into_bytes()), Some(last.clone())),
    }
}

/// Returns the prefix that a key is rolled up to.
fn group_of<'a>(key: &'a str, query: &ListQuery) -> Option<&'a str> {
    if query.delimiter.is_empty() {
        return None;
    }
    let rest = key.strip_prefix(query.prefix.as_str())?;
    let at = rest.find(&query.delimiter)?;
    Some(&key[..query.prefix.len() + at + query.delimiter.len()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_index::seq::{HeadIncarnation, Seq};

    #[test]
    fn a_page_of_pending_changes_ends_before_a_key_that_may_have_more() {
        let page = |keys: &[&str]| -> Vec<(Bytes, Bytes)> {
            let entry =
                |(tag, key): (usize, &&str)| (key::pending(key, &format!("{tag:032x}")), Bytes::new());
            keys.iter().enumerate().map(entry).collect()
        };
        let entries = page(&["a", "b", "b", "c", "c"]);
        assert_eq!(complete_to(&entries, b""), (Some(b"b".to_vec()), None));
        // Changes of the key listed last do not count.
        assert_eq!(complete_to(&entries, b"b"), (Some(b"c".to_vec()), Some("c".to_owned())));
        assert_eq!(complete_to(&entries, b"c"), (None, None));
        assert_eq!(complete_to(&page(&["k"; 5]), b""), (Some(b"k".to_vec()), Some("k".to_owned())));
    }

    #[test]
    fn a_key_is_shown_as_its_last_commit_left_it() {
        let incarnation = HeadIncarnation { generation: 0, version: 3 };
        let seq = |number| Seq { incarnation, number };
        let listed = |size| ListingEntry { size, ..ListingEntry::default() };
        let entry = Entry { seq: seq(2), object: Some(listed(2)) };
        let committed = |number: u64, content| {
            let (tag, subject, tails) = (number.to_string(), None, None);
            let evidence =
                CommitRecord { seq: seq(number), tag: tag.clone(), content, subject, tails, untidy: false };
            (tag, ChangeOutcome::Committed(Box::new(evidence)))
        };
        let shown = |known: &[(String, ChangeOutcome)], pending: &[&str]| {
            outcome(Some(&entry), pending.iter().copied(), &known.iter().cloned().collect())
        };
        let put = committed(4, ChangeEffect::Object(listed(4)));
        let removal = committed(3, ChangeEffect::Removed);
        // Finished already, and cancelled.
        let old = committed(1, ChangeEffect::Tombstone);
        let cancelled = ("9".to_owned(), ChangeOutcome::Cancelled);
        assert_eq!(shown(&[put.clone(), removal.clone()], &["4", "3"]), Some(Some(listed(4))));
        assert_eq!(shown(&[removal, old.clone()], &["3"]), Some(None));
        assert_eq!(shown(&[old, cancelled], &["1", "9"]), Some(Some(listed(2))));
        assert_eq!(shown(&[put], &["4", "7"]), None);
        let tagged = committed(3, ChangeEffect::Unchanged);
        assert_eq!(outcome(None, ["3"].into_iter(), &[tagged].into_iter().collect()), None);
    }
}
