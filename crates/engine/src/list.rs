//! Listings of a pool's objects in hash order, as a whole or in slices that several tasks list concurrently.
//!
//! A PG has the objects whose hashes end in its bits, which are contiguous in the order of reversed hashes: the pool is listed
//! PG by PG in that order. A cursor is a position in it, not a PG: it stays valid when PGs split.

use crate::engine::{Cursor, Engine};
use crate::error::Result;
use nacre_types::hash::pg_mask;
use nacre_types::{ObjectId, PgId, PoolId};
use std::collections::VecDeque;
use std::sync::Arc;

/// Objects per request.
const PAGE: u64 = 1000;

/// A contiguous part of a pool's listing order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListRange {
    begin: ObjectId,
    /// Exclusive; `None` means the pool's end.
    end: Option<ObjectId>,
}

impl ListRange {
    /// The whole pool.
    pub fn whole(pool: PoolId) -> ListRange {
        ListRange { begin: ObjectId::min_at_hash(pool, 0), end: None }
    }

    /// The part from a position that an earlier listing reported to the pool's end.
    pub fn from(cursor: ObjectId) -> ListRange {
        ListRange { begin: cursor, end: None }
    }

    /// The part from one position up to another, exclusive.
    pub fn between(begin: ObjectId, end: ObjectId) -> ListRange {
        ListRange { begin, end: Some(end) }
    }

    /// Slice `n` of `of` equal parts of a pool's hashes.
    ///
    /// # Panics
    /// If `of` is 0 or `n` is not below it.
    pub fn slice(pool: PoolId, n: u32, of: u32) -> ListRange {
        assert!(n < of, "slice {n} of {of}");
        let at = |part: u32| ((u64::from(part) << 32) / u64::from(of)) as u32;
        let begin = ObjectId::min_at_hash(pool, at(n).reverse_bits());
        let end = (n + 1 < of).then(|| ObjectId::min_at_hash(pool, at(n + 1).reverse_bits()));
        ListRange { begin, end }
    }
}

/// Returns the position after the last object of a PG, for the number of PGs at the time; `None` at the pool's end.
pub fn pg_end(pg: PgId, pg_num: u32) -> Option<ObjectId> {
    let mask = pg_mask(pg_num);
    // A PG that is not split yet by the highest bit has the hashes of one bit less.
    let mask = if (pg.seed | (mask ^ (mask >> 1))) < pg_num { mask } else { mask >> 1 };
    let bits = mask.count_ones();
    let width = 1_u64 << (32 - bits);
    let next = u64::from(pg.seed.reverse_bits()) + width;
    u32::try_from(next).ok().map(|sorted| ObjectId::min_at_hash(pg.pool, sorted.reverse_bits()))
}

/// A listing in progress.
pub struct Lister {
    engine: Arc<dyn Engine>,
    namespace: Option<String>,
    end: Option<ObjectId>,
    next: Cursor,
    page: VecDeque<ObjectId>,
}

impl Lister {
    pub(crate) fn new(engine: Arc<dyn Engine>, range: ListRange, namespace: Option<String>) -> Lister {
        Lister { engine, namespace, end: range.end, next: Cursor::At(range.begin), page: VecDeque::new() }
    }

    /// Returns the next object, or `None` at the end.
    pub async fn next(&mut self) -> Result<Option<ObjectId>> {
        while self.page.is_empty() {
            match self.next_page().await? {
                Some(objects) => self.page = objects.into(),
                None => return Ok(None),
            }
        }
        Ok(self.page.pop_front())
    }

    /// Returns the objects of one more request, which may be none; `None` at the end.
    pub async fn next_page(&mut self) -> Result<Option<Vec<ObjectId>>> {
        if !self.page.is_empty() {
            return Ok(Some(std::mem::take(&mut self.page).into()));
        }
        let Cursor::At(cursor) = self.next.clone() else { return Ok(None) };
        let mut page = self.engine.list(cursor, PAGE, self.namespace.clone()).await?;
        if let Some(end) = &self.end {
            page.objects.retain(|object| object < end);
            if matches!(&page.next, Cursor::At(next) if next >= end) {
                page.next = Cursor::End;
            }
        }
        self.next = page.next;
        Ok(Some(page.objects))
    }

    /// The position after the returned objects, where the listing continues.
    pub fn cursor(&self) -> Cursor {
        self.page.front().map_or_else(|| self.next.clone(), |object| Cursor::At(object.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::hash::pg_of_hash;
    use nacre_types::object::SNAP_HEAD;

    const POOL: PoolId = PoolId(1);

    #[test]
    fn walking_pg_ends_visits_every_pg_once_in_order() {
        for pg_num in 1..70 {
            let mut seen = Vec::new();
            let mut at = Some(ObjectId::min_at_hash(POOL, 0));
            while let Some(position) = at {
                let seed = pg_of_hash(position.hash(), pg_num);
                seen.push(seed);
                let end = pg_end(PgId::new(POOL, seed), pg_num);
                assert!(end.as_ref().is_none_or(|end| *end > position));
                at = end;
            }
            seen.sort_unstable();
            assert_eq!(seen, (0..pg_num).collect::<Vec<_>>(), "pg_num {pg_num}");
        }
    }

    #[test]
    fn a_pg_ends_where_its_hashes_end() {
        for pg_num in [1, 2, 3, 5, 8, 12, 33, 100] {
            for hash in (0..2000_u32).map(|i| i.wrapping_mul(2_654_435_761)) {
                let object = ObjectId::with_hash(POOL, "", "", "x", SNAP_HEAD, hash);
                let end = pg_end(PgId::new(POOL, pg_of_hash(hash, pg_num)), pg_num);
                assert!(end.is_none_or(|end| object < end), "hash {hash:x} of {pg_num} PGs");
            }
        }
    }

    #[test]
    fn slices_cover_the_pool_without_overlap() {
        for of in [1, 2, 3, 7] {
            let slices: Vec<_> = (0..of).map(|n| ListRange::slice(POOL, n, of)).collect();
            assert_eq!(slices[0].begin, ListRange::whole(POOL).begin);
            assert_eq!(slices[of as usize - 1].end, None);
            for pair in slices.windows(2) {
                assert_eq!(pair[0].end.as_ref(), Some(&pair[1].begin));
            }
        }
    }
}
