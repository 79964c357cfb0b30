//! Iterators over extended attributes and omap entries. A list is complete in memory once its operation is complete. Memory that
//! callers are lent remains valid until they end the iterator.

use crate::abi::{BorrowedPtr, Handle, OutPtr};
use crate::guard::{ApiResult, exports};
use crate::handles::HandleTable;
use bytes::Bytes;
use parking_lot::Mutex;
use std::ffi::{c_int, c_uint};

/// All iterators that have not ended.
pub(crate) static ITERATORS: HandleTable<KeyValueIter> = HandleTable::new();

/// A list and the position in it.
#[derive(Default)]
pub(crate) struct KeyValueIter {
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    /// Keys, each followed by a zero, and values.
    entries: Vec<(Box<[u8]>, Bytes)>,
    next: usize,
}

impl KeyValueIter {
    /// Creates an empty list, in the table.
    pub(crate) fn create() -> Handle {
        ITERATORS.insert(KeyValueIter::default())
    }

    /// Stores the results of an operation. Does nothing if the iterator has ended.
    pub(crate) fn store(handle: Handle, entries: impl IntoIterator<Item = (Bytes, Bytes)>) {
        if let Ok(found) = ITERATORS.get(handle) {
            let with_zero = |key: Bytes| [&key[..], &[0]].concat().into_boxed_slice();
            let entries = entries.into_iter().map(|(key, value)| (with_zero(key), value)).collect();
            *found.list.lock() = List { entries, next: 0 };
        }
    }
}

/// Lends the next entry: key, its length, value and its length; nulls at the end.
fn next(iter: Handle) -> ApiResult<(BorrowedPtr, usize, BorrowedPtr, usize)> {
    let found = ITERATORS.get(iter)?;
    let mut list = found.list.lock();
    let at = list.next;
    let Some((key, value)) = list.entries.get(at) else {
        return Ok((BorrowedPtr::NULL, 0, BorrowedPtr::NULL, 0));
    };
    let entry = (BorrowedPtr::data(key), key.len() - 1, BorrowedPtr::data(value), value.len());
    list.next += 1;
    Ok(entry)
}

/// The next attribute, or a null name at the end.
pub(crate) fn next_xattr(
    iter: Handle,
    name: OutPtr<BorrowedPtr>,
    val: OutPtr<BorrowedPtr>,
    len: OutPtr<usize>,
) -> ApiResult<c_int> {
    let (key, _, value, value_len) = next(iter)?;
    name.set(key);
    val.set(value);
    len.set(value_len);
    Ok(0)
}

exports! {
    /// The next attribute, or a null name at the end.
    fn rados_getxattrs_next(iter: Handle, name: OutPtr<BorrowedPtr>, val: OutPtr<BorrowedPtr>, len: OutPtr<usize>) -> c_int {
        next_xattr(iter, name, val, len)
    }

    /// Ends an iteration.
    fn rados_getxattrs_end(iter: Handle) {
        ITERATORS.remove(iter).map(drop)
    }

    /// The next entry, or a null key at the end.
    fn rados_omap_get_next(iter: Handle, key: OutPtr<BorrowedPtr>, val: OutPtr<BorrowedPtr>, len: OutPtr<usize>) -> c_int {
        let (entry, _, value, value_len) = next(iter)?;
        key.set(entry);
        val.set(value);
        len.set(value_len);
        Ok(0)
    }

    /// The next entry with the length of its key, or a null key at the end.
    fn rados_omap_get_next2(
        iter: Handle,
        key: OutPtr<BorrowedPtr>,
        val: OutPtr<BorrowedPtr>,
        key_len: OutPtr<usize>,
        val_len: OutPtr<usize>,
    ) -> c_int {
        let (entry, entry_len, value, value_len) = next(iter)?;
        key.set(entry);
        val.set(value);
        key_len.set(entry_len);
        val_len.set(value_len);
        Ok(0)
    }

    /// Number of entries, including those already returned.
    fn rados_omap_iter_size(iter: Handle) -> c_uint {
        Ok(c_uint::try_from(ITERATORS.get(iter)?.list.lock().entries.len()).unwrap_or(c_uint::MAX))
    }

    /// Ends an iteration.
    fn rados_omap_get_end(iter: Handle) {
        ITERATORS.remove(iter).map(drop)
    }
}
