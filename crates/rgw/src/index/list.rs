//! Listing a bucket: its shards' entries merged in the order of their keys.
//!
//! Of a key with changes pending its head is asked, unless all of them are known here: the listing then shows what a
//! reader of the object would find. Pending entries and entries of a shard are read at one moment, so that nothing that
//! moves from the ones to the others is missed.

use super::heal::Suspect;
use super::{Entry, Outcome, Pending, pending_of, shard_name};
use crate::bucket::Bucket;
use crate::error::Result;
use crate::gateway::Gateway;
use crate::record;
use bytes::Bytes;
use futures::stream::{StreamExt, TryStreamExt};
use nacre_client::ReadOp;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The most entries asked of a shard at once.
const MAX_PAGE: usize = 1000;
/// Pending entries asked for with them.
const PENDING_PAGE: u64 = 1000;
/// Heads asked at the same time.
const HEADS: usize = 16;

/// What to list.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListQuery {
    /// Keys that begin with it.
    pub(crate) prefix: String,
    /// Keys are rolled up to their first occurrence of it behind the prefix; empty for not at all.
    pub(crate) delimiter: String,
    /// Keys behind this one.
    pub(crate) after: String,
    /// Whether keys that begin with `after` are left out too: it is a prefix that was listed.
    pub(crate) after_group: bool,
    /// The most keys and rolled up prefixes.
    pub(crate) max: usize,
    /// Whether keys are listed whose current version is a delete marker.
    pub(crate) markers: bool,
}

/// What is there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listing {
    /// Keys.
    pub(crate) entries: Vec<(String, Entry)>,
    /// Prefixes of rolled up keys.
    pub(crate) prefixes: Vec<String>,
    /// Where there is more: the last one listed, and whether it is a prefix.
    pub(crate) next: Option<(String, bool)>,
}

/// What is known of a shard.
struct Cursor {
    name: String,
    ready: VecDeque<(String, Entry)>,
    /// Where to go on asking, as bytes behind the prefix of entries' keys.
    after: Vec<u8>,
    ended: bool,
    /// Pending entries that are older than they should be.
    suspects: Vec<Suspect>,
}

impl Gateway {
    /// Lists a bucket.
    pub(crate) async fn list(self: &Arc<Gateway>, bucket: &Bucket, query: &ListQuery) -> Result<Listing> {
        if query.max == 0 {
            return Ok(Listing::default());
        }
        let mut suspects = Vec::new();
        let listing = self.merge(bucket, query, &mut suspects).await;
        if !suspects.is_empty() {
            let (gateway, bucket) = (Arc::clone(self), bucket.clone());
            tokio::spawn(async move {
                if let Err(error) = gateway.heal(&bucket, suspects).await {
                    tracing::warn!(%error, bucket = bucket.name, "rgw: what a gateway left can't be seen through yet");
                }
            });
        }
        listing
    }

    async fn merge(
        &self,
        bucket: &Bucket,
        query: &ListQuery,
        suspects: &mut Vec<Suspect>,
    ) -> Result<Listing> {
        let mut listing = Listing::default();
        let shards = bucket.shards.max(1);
        // Somewhat more than the share of each, so that few are asked twice.
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
                suspects: Vec::new(),
            })
            .collect();
        let mut last: Option<(String, bool)> = None;
        loop {
            let empty = cursors.iter_mut().filter(|cursor| cursor.ready.is_empty() && !cursor.ended);
            futures::future::try_join_all(empty.map(|cursor| self.fill(bucket, query, cursor, page))).await?;
            suspects.extend(cursors.iter_mut().flat_map(|cursor| cursor.suspects.drain(..)));
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

    /// Asks a shard for more; afterwards something is ready, or it has ended, or has to be asked again.
    async fn fill(&self, bucket: &Bucket, query: &ListQuery, cursor: &mut Cursor, page: usize) -> Result<()> {
        let at = |kind: u8, bytes: &[u8]| Bytes::from([&[kind], bytes].concat());
        let prefix = query.prefix.as_bytes();
        let mut pending_after = at(b'p', &cursor.after);
        let (mut reply, pending) = loop {
            let mut op = ReadOp::new();
            op.omap_get_vals(at(b'o', &cursor.after), at(b'o', prefix), page as u64);
            op.omap_get_vals(pending_after, at(b'p', prefix), PENDING_PAGE);
            let reply =
                self.pools.index.operate_read(&cursor.name, op).await.and_then(|reply| reply.success());
            let mut reply = match reply {
                Err(error) => return Err(super::moved(self, bucket, error)),
                Ok(reply) => reply,
            };
            let pending = reply.omap_vals(1)?;
            match pending.entries.last() {
                // Those of the key listed last come again, and there may be any number of them.
                Some((last, _))
                    if pending.more && behind(&pending.entries, &cursor.after).next().is_none() =>
                {
                    pending_after = last.clone();
                }
                _ => break (reply, pending),
            }
        };
        let entries = reply.omap_vals(0)?;
        // Up to where both are known; `None`: to the end.
        let known_to = |more: bool, last: Option<&[u8]>| if more { last.map(<[u8]>::to_vec) } else { None };
        let entries_to = known_to(entries.more, entries.entries.last().map(|(key, _)| &key[1..]));
        let (pending_to, crowded) =
            if pending.more { complete_to(&pending.entries, &cursor.after) } else { (None, None) };
        let to = match (entries_to, pending_to) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let within = |key: &[u8]| to.as_ref().is_none_or(|to| key <= to.as_slice());
        let mut found = BTreeMap::new();
        for (key, value) in &entries.entries {
            let key = &key[1..];
            if within(key) {
                let entry = record::decode::<Entry>(&cursor.name, value)?;
                found.insert(String::from_utf8_lossy(key).into_owned(), entry);
            }
        }
        let mut unsettled: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, _) in &pending.entries {
            if let Some((key, tag)) = pending_of(name)
                && within(key.as_bytes())
                && key.as_bytes() > cursor.after.as_slice()
            {
                unsettled.entry(key.to_owned()).or_default().push(tag.to_owned());
            }
        }
        let mut asked = Vec::new();
        for (key, tags) in unsettled {
            let settled = match crowded {
                Some(crowded) if crowded == key.as_bytes() => None,
                _ => self.settled(&cursor.name, &key, found.get(&key), &tags),
            };
            match settled {
                Some(entry) => drop(found.insert(key, entry)),
                None => asked.push(key),
            }
        }
        for (name, value) in &pending.entries {
            if let Some((key, tag)) = pending_of(name)
                && asked.iter().any(|asked| asked == key)
            {
                let pending = record::decode::<Pending>(&cursor.name, value)?;
                let suspect = Suspect { key: key.to_owned(), tag: tag.to_owned(), pending };
                let expiration = self.config.pending_expiration;
                cursor.suspects.extend(Some(suspect).filter(|suspect| suspect.is_older(expiration)));
            }
        }
        let heads: Vec<(String, Option<Entry>)> = futures::stream::iter(asked)
            .map(|key| async move {
                let entry = self.head_entry(bucket, &key).await;
                entry.map(|entry| (key, entry))
            })
            .buffer_unordered(HEADS)
            .try_collect()
            .await?;
        for (key, entry) in heads {
            match entry {
                Some(entry) => drop(found.insert(key, entry)),
                None => drop(found.remove(&key)),
            }
        }
        let shown = |entry: &Entry| !entry.removed && (query.markers || !entry.marker);
        cursor.ready.extend(found.into_iter().filter(|(_, entry)| shown(entry)));
        match to {
            Some(to) => cursor.after = to,
            None => cursor.ended = true,
        }
        Ok(())
    }

    /// What a key's entry will be, where all that is pending of it is known here.
    fn settled(&self, shard: &str, key: &str, entry: Option<&Entry>, tags: &[String]) -> Option<Entry> {
        let known = self.finisher.known(shard, key);
        if !tags.iter().all(|tag| known.contains_key(tag)) {
            return None;
        }
        let changes = known.into_values().filter_map(|outcome| match outcome {
            Outcome::Put(entry) => Some(entry),
            Outcome::Removed(version) => Some(Entry { version, removed: true, ..Entry::default() }),
            Outcome::Nothing => None,
        });
        // Nothing was there, and nothing came of it.
        let nothing = Entry { removed: true, ..Entry::default() };
        // A removal has the version of what it removes.
        let newest =
            entry.cloned().into_iter().chain(changes).max_by_key(|entry| (entry.version, entry.removed));
        newest.or(Some(nothing))
    }
}

/// The keys behind `after` that pending entries are of, in order.
fn behind<'a>(entries: &'a [(Bytes, Bytes)], after: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let keys = entries.iter().filter_map(|(name, _)| pending_of(name).map(|(key, _)| key.as_bytes()));
    keys.filter(move |key| *key > after)
}

/// Up to which key nothing is pending but what a page has, which is not the last one, and which key is the only one behind
/// `after` in it: of that there may be more.
fn complete_to<'a>(entries: &'a [(Bytes, Bytes)], after: &'a [u8]) -> (Option<Vec<u8>>, Option<&'a [u8]>) {
    let keys: Vec<&[u8]> = behind(entries, after).collect();
    let Some(last) = keys.last() else { return (None, None) };
    // Of the last one there may be more; what is before it is known.
    match keys.iter().rev().find(|key| *key != last) {
        Some(before) => (Some(before.to_vec()), None),
        // Its head is asked: that there are more does not matter.
        None => (Some(last.to_vec()), Some(last)),
    }
}

/// What a key is rolled up to.
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
    use super::super::pending_key;
    use super::*;

    #[test]
    fn a_page_of_what_is_pending_ends_before_a_key_that_may_have_more() {
        let page = |keys: &[&str]| -> Vec<(Bytes, Bytes)> {
            let entry = |(tag, key): (usize, &&str)| (pending_key(key, &format!("{tag:032x}")), Bytes::new());
            keys.iter().enumerate().map(entry).collect()
        };
        let entries = page(&["a", "b", "b", "c", "c"]);
        assert_eq!(complete_to(&entries, b""), (Some(b"b".to_vec()), None));
        // Of the key listed last there is nothing to be known.
        assert_eq!(complete_to(&entries, b"b"), (Some(b"c".to_vec()), Some(&b"c"[..])));
        assert_eq!(complete_to(&entries, b"c"), (None, None));
        assert_eq!(complete_to(&page(&["k"; 5]), b""), (Some(b"k".to_vec()), Some(&b"k"[..])));
    }
}
