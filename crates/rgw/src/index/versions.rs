//! Lists a bucket's versions: the keys as in a listing and, for keys with versions, the versions in their heads.

use super::{BucketIndex, ListQuery, ListingEntry};
use crate::bucket::Bucket;
use crate::error::Result;
use crate::stored::Head;
use crate::stored::versions::VersionPage;
use futures::stream::{self, StreamExt};

/// Heads read concurrently.
const HEADS: usize = 16;

/// A version as it is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedVersion {
    /// The name of the object.
    pub key: String,
    /// For an object that never had versions, only what its index entry contains.
    pub head: Head,
    /// Whether it is the latest version of its key.
    pub latest: bool,
}

/// The result of a listing: versions by key, newer versions first.
#[derive(Clone, Debug, Default)]
pub struct VersionListing {
    /// The versions and delete markers.
    pub versions: Vec<ListedVersion>,
    /// Rolled-up prefixes.
    pub prefixes: Vec<String>,
    /// If there is more: the last key listed and its version, or a prefix and an empty text.
    pub next: Option<(String, String)>,
}

enum Item {
    Key(String, ListingEntry),
    Prefix(String),
}

impl Item {
    fn name(&self) -> &str {
        match self {
            Item::Key(name, _) | Item::Prefix(name) => name,
        }
    }
}

/// Returns what an entry says about an object without versions.
fn plain(entry: ListingEntry) -> VersionPage {
    let ListingEntry { tag, size, mtime_ns, etag, owner, class, .. } = entry;
    let head = Head { tag, size, mtime_ns, etag, owner, class, ..Head::default() };
    VersionPage { newest: head.version_id().to_owned(), heads: vec![head], more: false }
}

/// The versions of a page of the versions of `key`.
fn listed(key: &str, page: VersionPage) -> impl Iterator<Item = ListedVersion> {
    let VersionPage { heads, newest, .. } = page;
    heads.into_iter().map(move |head| {
        let latest = head.version_id() == newest;
        ListedVersion { key: key.to_owned(), head, latest }
    })
}

impl BucketIndex {
    /// Lists versions. `after` is the id of a version of the key `query.after`; older versions of that key come first. If
    /// that version is `null` and was removed, its position is not known, and all versions of the key come.
    pub async fn list_versions(
        &self,
        bucket: &Bucket,
        query: &ListQuery,
        after: Option<&str>,
    ) -> Result<VersionListing> {
        let mut listing = VersionListing::default();
        if query.max == 0 {
            return Ok(listing);
        }
        if let Some(after) = after {
            let key = &query.after;
            let page = match self.objects.versions(&bucket.id, key, Some(after), query.max).await? {
                Some(page) => page,
                None => self.objects.versions(&bucket.id, key, None, query.max).await?.unwrap_or_default(),
            };
            let more = page.more;
            listing.versions.extend(listed(key, page));
            if more {
                listing.next =
                    listing.versions.last().map(|last| (key.clone(), last.head.version_id().to_owned()));
                return Ok(listing);
            }
        }
        // One more than there is room for, to find out whether there is more.
        let room = query.max - listing.versions.len();
        let keys = ListQuery { max: room + 1, markers: true, ..query.clone() };
        let found = self.list(bucket, &keys).await?;
        let mut items: Vec<Item> =
            found.entries.into_iter().map(|(key, entry)| Item::Key(key, entry)).collect();
        items.extend(found.prefixes.into_iter().map(Item::Prefix));
        items.sort_unstable_by(|a, b| a.name().cmp(b.name()));
        let mut items = stream::iter(items)
            .map(|item| async move {
                Ok::<_, crate::Error>(match item {
                    Item::Prefix(prefix) => (prefix, None),
                    Item::Key(key, entry) if entry.held.is_none() => (key, Some(plain(entry))),
                    Item::Key(key, _) => {
                        let versions = self.objects.versions(&bucket.id, &key, None, room + 1).await?;
                        (key, Some(versions.unwrap_or_default()))
                    }
                })
            })
            .buffered(HEADS);
        let of = |listed: &ListedVersion| (listed.key.clone(), listed.head.version_id().to_owned());
        let mut last = listing.versions.last().map(of);
        let mut room = room;
        while let Some(item) = items.next().await {
            let (name, page) = item?;
            let Some(page) = page else {
                if room == 0 {
                    listing.next = last;
                    return Ok(listing);
                }
                room -= 1;
                last = Some((name.clone(), String::new()));
                listing.prefixes.push(name);
                continue;
            };
            let more = page.more;
            for version in listed(&name, page) {
                if room == 0 {
                    listing.next = last;
                    return Ok(listing);
                }
                room -= 1;
                last = Some(of(&version));
                listing.versions.push(version);
            }
            if more {
                listing.next = last;
                return Ok(listing);
            }
        }
        Ok(listing)
    }
}
