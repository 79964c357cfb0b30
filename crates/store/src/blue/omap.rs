//! Omap reads: the contents of the database, with the overlay of queued changes applied.
//!
//! Inside this crate an omap key is a kind byte (header or entry) followed by the user's key. In the database it is preceded
//! by the omap's id.

use super::Inner;
use super::collection::OmapOverlay;
use super::db::{Family, Range};
use super::keys::{self, OMAP_ENTRY, OMAP_HEADER};
use crate::Page;
use crate::error::Result;
use bytes::Bytes;
use std::sync::Arc;

/// The key of the header.
pub(super) fn header_key() -> Arc<[u8]> {
    Arc::from([OMAP_HEADER])
}

/// The key of the entry with a user's key.
pub(super) fn entry_key(key: &[u8]) -> Arc<[u8]> {
    let mut full = Vec::with_capacity(key.len() + 1);
    full.push(OMAP_ENTRY);
    full.extend_from_slice(key);
    full.into()
}

/// The lower bound of all keys of an omap.
pub(super) fn first_key() -> Arc<[u8]> {
    header_key()
}

/// The upper bound of all keys of an omap, exclusive.
pub(super) fn end_key() -> Arc<[u8]> {
    Arc::from([OMAP_ENTRY + 1])
}

/// One value, or `None` if the key does not exist.
pub(super) fn get(
    inner: &Inner,
    id: u64,
    overlay: Option<&OmapOverlay>,
    key: &[u8],
) -> Result<Option<Bytes>> {
    if let Some(overlay) = overlay {
        if let Some((_, value)) = overlay.entries.get(key) {
            return Ok(value.clone());
        }
        if overlay.hides(key) {
            return Ok(None);
        }
    }
    let full = [&id.to_be_bytes()[..], key].concat();
    Ok(inner.db.get(Family::Omap, &full)?.map(|value| Bytes::copy_from_slice(&value)))
}

/// The start and the limits of a listing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds<'a> {
    pub(super) start_after: Option<&'a [u8]>,
    pub(super) prefix: &'a [u8],
    pub(super) max: usize,
    pub(super) max_bytes: usize,
}

/// A page of entries of the omap `id`. `make` converts the user's key and value and returns the number of bytes that count.
pub(super) fn page<T>(
    inner: &Inner,
    id: u64,
    overlay: Option<&OmapOverlay>,
    bounds: Bounds<'_>,
    make: impl Fn(&[u8], &[u8]) -> (T, usize),
) -> Result<Page<T>> {
    let start = match bounds.start_after {
        // The smallest key above `after`.
        Some(after) if after >= bounds.prefix => [after, &[0]].concat(),
        _ => bounds.prefix.to_vec(),
    };
    // Without an upper bound, the iterator would step over all tombstones after the prefix.
    let end = keys::prefix_end(&entry_key(bounds.prefix));
    let mut merged = Merged::new(inner, id, overlay, &entry_key(&start), &end);
    let mut page = Page { entries: Vec::new(), more: false };
    let mut bytes = 0;
    while let Some((key, value)) = merged.next()? {
        if !key.starts_with(bounds.prefix) {
            break;
        }
        let (entry, entry_bytes) = make(key, value);
        if page.entries.len() >= bounds.max
            || (!page.entries.is_empty() && bytes + entry_bytes > bounds.max_bytes)
        {
            page.more = true;
            break;
        }
        bytes += entry_bytes;
        page.entries.push(entry);
    }
    Ok(page)
}

/// The header and all entries of an omap, with keys as in [`entry_key`].
pub(super) fn read_all(
    inner: &Inner,
    id: u64,
    overlay: Option<&OmapOverlay>,
) -> Result<Vec<(Arc<[u8]>, Bytes)>> {
    let mut all = Vec::new();
    if let Some(header) = get(inner, id, overlay, &[OMAP_HEADER])? {
        all.push((header_key(), header));
    }
    let mut merged = Merged::new(inner, id, overlay, &entry_key(b""), &end_key());
    while let Some((key, value)) = merged.next()? {
        all.push((entry_key(key), Bytes::copy_from_slice(value)));
    }
    Ok(all)
}

/// The entries of an omap in key order: those of the database, hidden or replaced by those of the overlay.
struct Merged<'a> {
    range: Range<'a>,
    overlay: Option<&'a OmapOverlay>,
    queued: Box<dyn Iterator<Item = (&'a [u8], Option<&'a Bytes>)> + 'a>,
    next_queued: Option<(&'a [u8], Option<&'a Bytes>)>,
    /// The next entry of the database, read in advance. The key is without the omap's id.
    stored: Option<(Vec<u8>, Vec<u8>)>,
    current: (Vec<u8>, Vec<u8>),
}

impl<'a> Merged<'a> {
    /// Entries from `start` on. `end` limits the entries of the database.
    fn new(
        inner: &'a Inner,
        id: u64,
        overlay: Option<&'a OmapOverlay>,
        start: &[u8],
        end: &[u8],
    ) -> Merged<'a> {
        let full = |key: &[u8]| [&id.to_be_bytes()[..], key].concat();
        let range = inner.db.range(Family::Omap, &full(start), Some(full(end)));
        let start = start.to_vec();
        let mut queued: Box<dyn Iterator<Item = _>> = match overlay {
            Some(overlay) => Box::new(
                overlay
                    .entries
                    .range::<[u8], _>((std::ops::Bound::Included(&start[..]), std::ops::Bound::Unbounded))
                    .map(|(key, (_, value))| (&**key, value.as_ref())),
            ),
            None => Box::new(std::iter::empty()),
        };
        let next_queued = queued.next();
        Merged { range, overlay, queued, next_queued, stored: None, current: Default::default() }
    }

    /// The next entry: the user's key and the value.
    fn next(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        loop {
            if self.stored.is_none()
                && let Some((key, value)) = self.range.next()?
            {
                self.stored = Some((key[8..].to_vec(), value.to_vec()));
            }
            let take_queued = match (&self.stored, &self.next_queued) {
                (None, None) => return Ok(None),
                (Some((stored, _)), Some((queued, _))) => *queued <= &stored[..],
                (stored, _) => stored.is_none(),
            };
            if take_queued {
                let Some((key, value)) = self.next_queued.take() else { return Ok(None) };
                self.next_queued = self.queued.next();
                if self.stored.as_ref().is_some_and(|(stored, _)| stored == key) {
                    self.stored = None;
                }
                if let Some(value) = value {
                    self.current = (key.to_vec(), value.to_vec());
                    break;
                }
            } else if let Some(entry) = self.stored.take()
                && !self.overlay.is_some_and(|overlay| overlay.hides(&entry.0))
            {
                self.current = entry;
                break;
            }
        }
        Ok(Some((&self.current.0[1..], &self.current.1)))
    }
}
