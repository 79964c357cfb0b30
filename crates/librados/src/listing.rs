//! Lists a pool's objects: with the stateful list of `rados_nobjects_list_*`, and between cursors.

use crate::abi::{BorrowedPtr, Handle, InBuf, MallocBuf, ObjectItem, OutArray, OutPtr};
use crate::guard::{ApiResult, exports};
use crate::handles::HandleTable;
use crate::ioctx::{ALL_NAMESPACES, IOCTXS, IoCtxState};
use nacre_client::{Cursor, IoCtx, ListRange, Lister, block_on};
use nacre_types::errno::Errno;
use nacre_types::hash::pg_of_hash;
use nacre_types::{ObjectId, PoolId};
use parking_lot::Mutex;
use std::cmp::Ordering;
use std::ffi::{CString, c_int};
use std::sync::Arc;

static LISTS: HandleTable<List> = HandleTable::new();
static CURSORS: HandleTable<Cursor> = HandleTable::new();

/// Maximum number of items that one call lists. It bounds the memory that a caller can request.
const MOST_ITEMS: usize = 1 << 20;

struct List {
    io: Arc<IoCtxState>,
    running: Mutex<Running>,
}

struct Running {
    lister: Lister,
    /// Name, locator and namespace that the caller was lent.
    lent: [CString; 3],
}

fn lister(place: &IoCtx, range: ListRange) -> Lister {
    let namespace = place.namespace();
    place.list_range(range, (namespace != ALL_NAMESPACES).then_some(namespace))
}

/// The position where a listing from a hash starts, as in Ceph: the order is that of the hashes with their bits reversed.
fn at_hash(pool: PoolId, hash: u32) -> ObjectId {
    ObjectId::min_at_hash(pool, hash)
}

impl List {
    fn open(io: Handle) -> ApiResult<Handle> {
        let io = IOCTXS.get(io)?;
        let lister = {
            let place = io.ioctx.read();
            lister(&place, ListRange::whole(place.pool()))
        };
        let lent = std::array::from_fn(|_| CString::default());
        Ok(LISTS.insert(List { io, running: Mutex::new(Running { lister, lent }) }))
    }

    fn seek(&self, range: ListRange) {
        let lister = lister(&self.io.ioctx.read(), range);
        self.running.lock().lister = lister;
    }

    /// The PG that contains a hash.
    fn pg_of(&self, hash: u32) -> ApiResult<u32> {
        let pool = self.io.ioctx.read().pool();
        let map = self.io.client.osdmap()?;
        Ok(pg_of_hash(hash, map.pools.get(&pool).ok_or(Errno::ENOENT)?.pg_num))
    }

    /// Lends the next object's name, locator and namespace. ENOENT at the end.
    fn next(&self) -> ApiResult<[(BorrowedPtr, usize); 3]> {
        let mut running = self.running.lock();
        let object = block_on(running.lister.next())?.ok_or(Errno::ENOENT)?;
        let texts = [object.name(), object.locator(), object.namespace()];
        for (place, text) in running.lent.iter_mut().zip(texts) {
            // A name that contains a zero, which C can't create, is cut before it.
            let end = text.find('\0').unwrap_or(text.len());
            *place = CString::new(&text[..end]).unwrap_or_default();
        }
        let [name, locator, namespace] = &running.lent;
        let lent = |text: &CString| (BorrowedPtr::text(text), text.as_bytes().len());
        let locator = if locator.is_empty() { (BorrowedPtr::NULL, 0) } else { lent(locator) };
        Ok([lent(name), locator, lent(namespace)])
    }

    /// The hash at which the list continues, or 0 at the end, as in Ceph.
    fn position(&self) -> u32 {
        match self.running.lock().lister.cursor() {
            Cursor::At(object) => object.hash(),
            Cursor::End => 0,
        }
    }
}

fn range_of(pool: PoolId, start: &Cursor, finish: &Cursor) -> Option<ListRange> {
    let Cursor::At(begin) = start else { return None };
    // A cursor of another pool is not a position in this one.
    let begin = begin.with_pool(pool);
    Some(match finish {
        Cursor::At(end) => ListRange::between(begin, end.with_pool(pool)),
        Cursor::End => ListRange::from(begin),
    })
}

fn next_in_list(
    ctx: Handle,
    entry: OutPtr<BorrowedPtr>,
    key: OutPtr<BorrowedPtr>,
    nspace: OutPtr<BorrowedPtr>,
    sizes: Option<[OutPtr<usize>; 3]>,
) -> ApiResult<c_int> {
    let lent = LISTS.get(ctx)?.next()?;
    for (out, (text, _)) in [entry, key, nspace].into_iter().zip(lent) {
        out.set(text);
    }
    for (out, (_, size)) in sizes.into_iter().flatten().zip(lent) {
        out.set(size);
    }
    Ok(0)
}

fn seek_hash(ctx: Handle, pos: u32) -> ApiResult<u32> {
    let list = LISTS.get(ctx)?;
    let pool = list.io.ioctx.read().pool();
    list.seek(ListRange::from(at_hash(pool, pos)));
    list.pg_of(pos)
}

/// The position of a cursor among all hashes, from 0 to 2^32.
fn rank(cursor: &Cursor) -> u64 {
    match cursor {
        Cursor::At(object) => object.sort_hash().into(),
        Cursor::End => 1 << 32,
    }
}

/// The cursor at a rank.
fn at_rank(pool: PoolId, rank: u64) -> Cursor {
    u32::try_from(rank).map_or(Cursor::End, |sorted| Cursor::At(at_hash(pool, sorted.reverse_bits())))
}

fn item(object: &ObjectId) -> ApiResult<ObjectItem> {
    Ok(ObjectItem {
        oid_length: object.name().len(),
        oid: MallocBuf::nul_terminated(object.name().as_bytes())?,
        nspace_length: object.namespace().len(),
        nspace: MallocBuf::nul_terminated(object.namespace().as_bytes())?,
        locator_length: object.locator().len(),
        locator: MallocBuf::nul_terminated(object.locator().as_bytes())?,
    })
}

/// An element without an object: nothing to free.
const NO_ITEM: ObjectItem = ObjectItem {
    oid_length: 0,
    oid: MallocBuf::NULL,
    nspace_length: 0,
    nspace: MallocBuf::NULL,
    locator_length: 0,
    locator: MallocBuf::NULL,
};

/// Moves the cursor in `ioctx`, as Ceph does. If there is none, stores a new one.
fn store_cursor(place: OutPtr<Handle>, position: Cursor) {
    if let Err(position) = CURSORS.replace(place.get().unwrap_or(Handle::NULL), position) {
        place.set(CURSORS.insert(position));
    }
}

fn free(item: ObjectItem) {
    item.oid.free();
    item.nspace.free();
    item.locator.free();
}

exports! {
    /// Starts a list of the objects in the context's namespace.
    fn rados_nobjects_list_open(io: Handle, ctx: OutPtr<Handle>) -> c_int {
        let ctx = ctx.required()?;
        ctx.set(List::open(io)?);
        Ok(0)
    }

    /// The next object. ENOENT at the end. Lent memory remains valid until the next call.
    fn rados_nobjects_list_next(ctx: Handle, entry: OutPtr<BorrowedPtr>, key: OutPtr<BorrowedPtr>, nspace: OutPtr<BorrowedPtr>) -> c_int {
        next_in_list(ctx, entry, key, nspace, None)
    }

    /// The same with lengths.
    fn rados_nobjects_list_next2(
        ctx: Handle,
        entry: OutPtr<BorrowedPtr>,
        key: OutPtr<BorrowedPtr>,
        nspace: OutPtr<BorrowedPtr>,
        entry_size: OutPtr<usize>,
        key_size: OutPtr<usize>,
        nspace_size: OutPtr<usize>,
    ) -> c_int {
        next_in_list(ctx, entry, key, nspace, Some([entry_size, key_size, nspace_size]))
    }

    /// Ends a list.
    fn rados_nobjects_list_close(ctx: Handle) {
        LISTS.remove(ctx).map(drop)
    }

    /// The hash at which the list continues.
    fn rados_nobjects_list_get_pg_hash_position(ctx: Handle) -> u32 {
        Ok(LISTS.get(ctx)?.position())
    }

    /// Continues at a hash. Returns its PG.
    fn rados_nobjects_list_seek(ctx: Handle, pos: u32) -> u32 {
        seek_hash(ctx, pos)
    }

    /// Continues at a cursor. Returns its PG.
    fn rados_nobjects_list_seek_cursor(ctx: Handle, cursor: Handle) -> u32 {
        let (list, cursor) = (LISTS.get(ctx)?, CURSORS.get(cursor)?);
        let pool = list.io.ioctx.read().pool();
        let position = match &*cursor {
            Cursor::At(object) => object.with_pool(pool),
            // The last position, after all objects.
            Cursor::End => at_hash(pool, u32::MAX).with_snap(u64::MAX),
        };
        let hash = position.hash();
        list.seek(ListRange::from(position));
        list.pg_of(hash)
    }

    /// The cursor at which the list continues.
    fn rados_nobjects_list_get_cursor(ctx: Handle, cursor: OutPtr<Handle>) -> c_int {
        let cursor = cursor.required()?;
        let position = LISTS.get(ctx)?.running.lock().lister.cursor();
        cursor.set(CURSORS.insert(position));
        Ok(0)
    }

    /// The older form of `rados_nobjects_list_open`.
    fn rados_objects_list_open(io: Handle, ctx: OutPtr<Handle>) -> c_int {
        let ctx = ctx.required()?;
        ctx.set(List::open(io)?);
        Ok(0)
    }

    /// The older form of `rados_nobjects_list_next`.
    fn rados_objects_list_next(ctx: Handle, entry: OutPtr<BorrowedPtr>, key: OutPtr<BorrowedPtr>) -> c_int {
        let [(name, _), (locator, _), _] = LISTS.get(ctx)?.next()?;
        entry.set(name);
        key.set(locator);
        Ok(0)
    }

    /// The older form of `rados_nobjects_list_close`.
    fn rados_objects_list_close(ctx: Handle) {
        LISTS.remove(ctx).map(drop)
    }

    /// The older form of `rados_nobjects_list_get_pg_hash_position`.
    fn rados_objects_list_get_pg_hash_position(ctx: Handle) -> u32 {
        Ok(LISTS.get(ctx)?.position())
    }

    /// The older form of `rados_nobjects_list_seek`.
    fn rados_objects_list_seek(ctx: Handle, pos: u32) -> u32 {
        seek_hash(ctx, pos)
    }

    /// A cursor at the start of the pool.
    fn rados_object_list_begin(io: Handle) -> Handle {
        let pool = IOCTXS.get(io)?.ioctx.read().pool();
        Ok(CURSORS.insert(Cursor::At(at_hash(pool, 0))))
    }

    /// A cursor at the end of the pool.
    fn rados_object_list_end(io: Handle) -> Handle {
        IOCTXS.get(io)?;
        Ok(CURSORS.insert(Cursor::End))
    }

    /// Whether a cursor is at the end.
    fn rados_object_list_is_end(_io: Handle, cur: Handle) -> c_int {
        Ok(c_int::from(*CURSORS.get(cur)? == Cursor::End))
    }

    /// Destroys a cursor.
    fn rados_object_list_cursor_free(_io: Handle, cur: Handle) {
        CURSORS.remove(cur).map(drop)
    }

    /// Less than 0 if the first cursor is before the second, 0 if they are equal, otherwise greater than 0.
    fn rados_object_list_cursor_cmp(_io: Handle, lhs: Handle, rhs: Handle) -> c_int {
        let (lhs, rhs) = (CURSORS.get(lhs)?, CURSORS.get(rhs)?);
        Ok(match (&*lhs, &*rhs) {
            (Cursor::At(left), Cursor::At(right)) => left.cmp(right) as c_int,
            (left, right) => rank(left).cmp(&rank(right)) as c_int,
        })
    }

    /// Lists at most `result_size` objects from one cursor up to another. Returns their number and moves the cursor `next` to
    /// where the list continues. Elements after the last object are empty.
    fn rados_object_list(
        io: Handle,
        start: Handle,
        finish: Handle,
        result_size: usize,
        _filter_buf: InBuf,
        filter_buf_len: usize,
        results: OutArray<ObjectItem>,
        next: OutPtr<Handle>,
    ) -> c_int {
        if filter_buf_len > 0 {
            return Err(crate::unsupported::not_supported("a filter in rados_object_list"));
        }
        let (io, start, finish) = (IOCTXS.get(io)?, CURSORS.get(start)?, CURSORS.get(finish)?);
        let next = next.required()?;
        results.fill(result_size, NO_ITEM)?;
        let (mut found, mut position) = (Vec::new(), (*finish).clone());
        let running = {
            let place = io.ioctx.read();
            range_of(place.pool(), &start, &finish).map(|range| lister(&place, range))
        };
        if let Some(mut lister) = running {
            while found.len() < result_size.min(MOST_ITEMS)
                && let Some(object) = block_on(lister.next())?
            {
                found.push(object);
            }
            if let cursor @ Cursor::At(_) = lister.cursor() {
                position = cursor;
            }
        }
        let mut items = Vec::with_capacity(found.len());
        let stored = found.iter().try_for_each(|object| {
            items.push(item(object)?);
            Ok(())
        });
        if let Err(why) = stored.and_then(|()| results.store(result_size, &items)) {
            items.into_iter().for_each(free);
            return Err(why);
        }
        store_cursor(next, position);
        Ok(crate::abi::c_len(items.len()))
    }

    /// Frees what `rados_object_list` stored.
    fn rados_object_list_free(result_size: usize, results: OutArray<ObjectItem>) {
        results.load(result_size)?.into_iter().for_each(free);
        Ok(())
    }

    /// Moves two cursors to the start and the end of part `n` of `m` about equal parts between two others.
    fn rados_object_list_slice(
        io: Handle,
        start: Handle,
        finish: Handle,
        n: usize,
        m: usize,
        split_start: OutPtr<Handle>,
        split_finish: OutPtr<Handle>,
    ) {
        let (pool, start, finish) =
            (IOCTXS.get(io)?.ioctx.read().pool(), CURSORS.get(start)?, CURSORS.get(finish)?);
        let (split_start, split_finish) = (split_start.required()?, split_finish.required()?);
        if n >= m {
            return Err(Errno::EINVAL.into());
        }
        let (from, width) = (rank(&start), rank(&finish).saturating_sub(rank(&start)));
        // Less than 2^32 parts can't overflow: both factors fit into 33 bits.
        let part = |n: usize| from + (u128::from(width) * n as u128 / m as u128) as u64;
        let begin = if n == 0 { (*start).clone() } else { at_rank(pool, part(n)) };
        let end = if n + 1 == m { (*finish).clone() } else { at_rank(pool, part(n + 1)) };
        store_cursor(split_start, begin);
        store_cursor(split_finish, end);
        Ok(())
    }
}

const _: () = assert!(Ordering::Less as c_int == -1 && Ordering::Greater as c_int == 1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_and_cursors_are_each_others_inverse() {
        let pool = PoolId(3);
        for rank_ in [0, 1, 77, (1 << 32) - 1, 1 << 32] {
            assert_eq!(rank(&at_rank(pool, rank_)), rank_);
        }
        assert_eq!(at_rank(pool, 1 << 32), Cursor::End);
    }

    #[test]
    fn a_range_up_to_the_end_has_no_bound() {
        let pool = PoolId(3);
        let begin = Cursor::At(at_hash(pool, 0));
        assert_eq!(range_of(pool, &begin, &Cursor::End), Some(ListRange::whole(pool)));
        assert_eq!(range_of(pool, &Cursor::End, &Cursor::End), None);
    }
}
