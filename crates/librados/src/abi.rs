//! The types that cross the C interface: texts, buffers and places for results, as C passes them.
//!
//! All memory of callers is read and written here. Values of these types come from C callers only; this crate never makes one
//! from an address of its own. By `librados.h` the callers promise that pointers are null or valid: texts end with a zero,
//! buffers have the length that is passed with them, and both remain valid until the call returns or, if the call takes a
//! completion or fills an operation, until that is complete. The safety comments below call this "the caller's promise".

use crate::guard::ApiResult;
use bytes::Bytes;
use nacre_types::errno::Errno;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

/// A number for an object of the library, where C has a `void *` (see [`crate::handles`]).
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Handle(pub(crate) usize);

impl Handle {
    pub(crate) const NULL: Handle = Handle(0);
}

impl crate::guard::ApiReturn for Handle {
    fn from_error(_: crate::guard::ApiError) -> Handle {
        Handle::NULL
    }
}

/// A `const char *` that ends with a zero.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct CStrPtr(*const c_char);

impl CStrPtr {
    pub(crate) const NULL: CStrPtr = CStrPtr(ptr::null());

    /// The bytes before the zero, or `None` if the pointer is null.
    pub(crate) fn optional_bytes(&self) -> Option<&[u8]> {
        // SAFETY: the caller's promise: not null, so it points to a text that ends with a zero.
        (!self.0.is_null()).then(|| unsafe { CStr::from_ptr(self.0) }.to_bytes())
    }

    /// The bytes before the zero. EINVAL if the pointer is null.
    pub(crate) fn bytes(&self) -> ApiResult<&[u8]> {
        Ok(self.optional_bytes().ok_or(Errno::EINVAL)?)
    }

    /// The text. EINVAL if the pointer is null or the text is not UTF-8.
    pub(crate) fn text(&self) -> ApiResult<&str> {
        Ok(std::str::from_utf8(self.bytes()?).map_err(|_| Errno::EINVAL)?)
    }

    /// The text, empty if the pointer is null. EINVAL if it is not UTF-8.
    pub(crate) fn text_or_empty(&self) -> ApiResult<&str> {
        if self.0.is_null() { Ok("") } else { self.text() }
    }

    /// The first `len` bytes, which may contain zeros.
    pub(crate) fn sized(&self, len: usize) -> ApiResult<&[u8]> {
        // SAFETY: the caller's promise, for as long as the argument lives.
        unsafe { slice(self.0.cast::<u8>(), len) }
    }

    /// Pairs of texts up to an empty one: `"foo\0bar\0this\0that\0\0"`. EINVAL if one is not UTF-8.
    pub(crate) fn pairs(&self) -> ApiResult<Vec<(String, String)>> {
        let mut pairs = Vec::new();
        let mut at = CStrPtr(self.0);
        loop {
            let key = at.text()?;
            if key.is_empty() {
                return Ok(pairs);
            }
            // SAFETY: the caller's promise: after a text that is not empty, and its zero, another one starts.
            let value = CStrPtr(unsafe { at.0.add(key.len() + 1) });
            let text = value.text()?;
            pairs.push((key.to_owned(), text.to_owned()));
            // SAFETY: as above, each key having a value.
            at = CStrPtr(unsafe { value.0.add(text.len() + 1) });
        }
    }

    /// Whether it is null.
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// A text, in the form that a C caller passes.
    #[cfg(test)]
    pub(crate) fn of(text: &'static CStr) -> CStrPtr {
        CStrPtr(text.as_ptr())
    }
}

/// A `const char *` to data whose length is passed with it.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct InBuf(*const c_char);

impl InBuf {
    #[cfg(test)]
    pub(crate) const NULL: InBuf = InBuf(ptr::null());

    /// The data.
    pub(crate) fn slice(&self, len: usize) -> ApiResult<&[u8]> {
        // SAFETY: the caller's promise, for as long as the argument lives.
        unsafe { slice(self.0.cast::<u8>(), len) }
    }

    /// A copy of the data, because callers may reuse their buffer at once.
    pub(crate) fn copy(&self, len: usize) -> ApiResult<Bytes> {
        Ok(Bytes::copy_from_slice(self.slice(len)?))
    }

    /// Whether it is null.
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }
}

/// A pointer to the first of several values whose number is passed with it.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct InArray<T>(*const T);

impl<T> InArray<T> {
    /// The values. EINVAL if the pointer is null and `len` is not 0.
    pub(crate) fn slice(&self, len: usize) -> ApiResult<&[T]> {
        // SAFETY: the caller's promise, for as long as the argument lives.
        unsafe { slice(self.0, len) }
    }
}

/// The `len` values at `first`. EINVAL if `first` is null and `len` is not 0.
///
/// # Safety
/// If `first` is not null, it must point to `len` values that are valid for `'a`.
unsafe fn slice<'a, T>(first: *const T, len: usize) -> ApiResult<&'a [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    if first.is_null() || len > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(Errno::EINVAL.into());
    }
    // SAFETY: not null, so by this function's contract there are `len` values; the length was checked to fit.
    Ok(unsafe { std::slice::from_raw_parts(first, len) })
}

/// The place for a result, or null if the caller does not want it.
#[repr(transparent)]
pub(crate) struct OutPtr<T>(*mut T);

impl<T> Clone for OutPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for OutPtr<T> {}

// SAFETY: the caller's promise: the place remains valid until the operation is complete, and only the thread that completes the
// operation writes there.
unsafe impl<T: Send> Send for OutPtr<T> {}

impl<T> OutPtr<T> {
    #[cfg(test)]
    pub(crate) const NULL: OutPtr<T> = OutPtr(ptr::null_mut());

    /// Stores the result, unless the place is null.
    pub(crate) fn set(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: the caller's promise: not null, so it points to a place for a `T`, which needs no dropping.
            unsafe { self.0.write(value) };
        }
    }

    /// Returns EINVAL if the place is null.
    pub(crate) fn required(self) -> ApiResult<Self> {
        if self.0.is_null() { Err(Errno::EINVAL.into()) } else { Ok(self) }
    }
}

impl<T: Copy> OutPtr<T> {
    /// The value that the caller put there, if the place is not null.
    pub(crate) fn get(self) -> Option<T> {
        // SAFETY: the caller's promise: not null, so it points to an initialised `T`.
        (!self.0.is_null()).then(|| unsafe { self.0.read() })
    }
}

/// A caller's buffer for data.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct OutBuf(*mut c_char);

// SAFETY: as for `OutPtr`.
unsafe impl Send for OutBuf {}

impl OutBuf {
    #[cfg(test)]
    pub(crate) const NULL: OutBuf = OutBuf(ptr::null_mut());

    /// Copies `data` into the buffer. ERANGE if `capacity`, the size of the buffer, is too small.
    pub(crate) fn fill(self, capacity: usize, data: &[u8]) -> ApiResult<usize> {
        if data.len() > capacity {
            return Err(Errno::ERANGE.into());
        }
        self.put(0, data)?;
        Ok(data.len())
    }

    /// Copies runs of data into the buffer, one after the other. ERANGE if `capacity` is too small for all of them.
    pub(crate) fn fill_runs(self, capacity: usize, runs: &[Bytes]) -> ApiResult<usize> {
        if runs.iter().map(Bytes::len).sum::<usize>() > capacity {
            return Err(Errno::ERANGE.into());
        }
        let mut at = 0;
        for run in runs {
            self.put(at, run)?;
            at += run.len();
        }
        Ok(at)
    }

    /// Copies `text` and a zero into the buffer. ERANGE if `capacity` is too small. Returns the text's length.
    pub(crate) fn fill_text(self, capacity: usize, text: &[u8]) -> ApiResult<usize> {
        if text.len() >= capacity {
            return Err(Errno::ERANGE.into());
        }
        self.put(0, text)?;
        self.put(text.len(), &[0])?;
        Ok(text.len())
    }

    /// Copies `data` to position `at`. The caller must have checked that it fits into the buffer.
    fn put(self, at: usize, data: &[u8]) -> ApiResult<()> {
        if data.is_empty() {
            return Ok(());
        }
        if self.0.is_null() {
            return Err(Errno::EINVAL.into());
        }
        // SAFETY: the caller's promise: not null, so the buffer has its capacity, and all callers checked that the data fits;
        // `data` is memory of this library and does not overlap the buffer.
        unsafe { ptr::copy_nonoverlapping(data.as_ptr(), self.0.cast::<u8>().add(at), data.len()) };
        Ok(())
    }

    /// Fills the buffer with as many of `texts` as fit completely, each with its zero, and the rest with zeros. Returns the
    /// capacity required for all of them, with one more zero at the end.
    pub(crate) fn fill_list<'a>(
        self,
        capacity: usize,
        texts: impl Iterator<Item = &'a str>,
    ) -> ApiResult<usize> {
        let mut list = Vec::with_capacity(capacity.min(1 << 20));
        let (mut needed, mut full) = (1, false);
        for text in texts {
            needed += text.len() + 1;
            full |= list.len() + text.len() + 1 > capacity;
            if !full {
                list.extend_from_slice(text.as_bytes());
                list.push(0);
            }
        }
        list.resize(capacity, 0);
        self.put(0, &list)?;
        Ok(needed)
    }

    /// Whether it is null.
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }
}

/// A caller's `void *`, which is passed to its callback.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct CallbackArg(*mut c_void);

#[cfg(test)]
impl CallbackArg {
    pub(crate) const NULL: CallbackArg = CallbackArg(ptr::null_mut());
}

// SAFETY: never dereferenced here; callers know that librados' callbacks run on the library's threads.
unsafe impl Send for CallbackArg {}
// SAFETY: as above.
unsafe impl Sync for CallbackArg {}

/// `rados_callback_t`.
pub(crate) type Callback = Option<extern "C" fn(Handle, CallbackArg)>;

/// `rados_watchcb_t`: two unused numbers, and the caller's argument.
pub(crate) type WatchCallback = extern "C" fn(u8, u64, CallbackArg);

/// `rados_watchcb2_t`: the caller's argument, the notify, the watch, the notifier's session, the payload.
pub(crate) type WatchCallback2 = extern "C" fn(CallbackArg, u64, u64, u64, BorrowedPtr, usize);

/// `rados_watcherrcb_t`: the caller's argument, the watch, the negated error number.
pub(crate) type WatchErrorCallback = extern "C" fn(CallbackArg, u64, c_int);

/// Memory from `malloc` that the caller frees (`rados_buffer_free`). Null for no data.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct MallocBuf(*mut c_char);

// SAFETY: memory from malloc belongs to no thread.
unsafe impl Send for MallocBuf {}

impl MallocBuf {
    pub(crate) const NULL: MallocBuf = MallocBuf(ptr::null_mut());

    /// A copy of `data`. ENOMEM if there is no memory.
    pub(crate) fn data(data: &[u8]) -> ApiResult<MallocBuf> {
        if data.is_empty() { Ok(MallocBuf::NULL) } else { MallocBuf::nul_terminated(data) }
    }

    /// A copy of `text`, followed by a zero that is not part of its length.
    pub(crate) fn nul_terminated(text: &[u8]) -> ApiResult<MallocBuf> {
        // SAFETY: malloc may be called with any size.
        let memory = unsafe { libc::malloc(text.len() + 1) }.cast::<u8>();
        if memory.is_null() {
            return Err(Errno::ENOMEM.into());
        }
        // SAFETY: `memory` is new and one byte longer than `text`.
        unsafe {
            ptr::copy_nonoverlapping(text.as_ptr(), memory, text.len());
            memory.add(text.len()).write(0);
        }
        Ok(MallocBuf(memory.cast::<c_char>()))
    }

    /// Frees the memory.
    pub(crate) fn free(self) {
        // SAFETY: the caller's promise: null, or memory that this library returned, all of which is from malloc.
        unsafe { libc::free(self.0.cast::<c_void>()) };
    }
}

/// An array from `malloc` that the caller returns for freeing. Null for no elements.
#[repr(transparent)]
pub(crate) struct MallocArray<T>(*mut T);

impl<T: Copy> MallocArray<T> {
    /// A copy of `values`. ENOMEM if there is no memory.
    pub(crate) fn of(values: &[T]) -> ApiResult<MallocArray<T>> {
        if values.is_empty() {
            return Ok(MallocArray(ptr::null_mut()));
        }
        // SAFETY: malloc may be called with any size; a slice's fits.
        let memory = unsafe { libc::malloc(size_of_val(values)) }.cast::<T>();
        if memory.is_null() {
            return Err(Errno::ENOMEM.into());
        }
        // SAFETY: `memory` is new, as large as `values`, and aligned for all that C structures hold.
        unsafe { ptr::copy_nonoverlapping(values.as_ptr(), memory, values.len()) };
        Ok(MallocArray(memory))
    }

    /// Copies of the `len` elements.
    pub(crate) fn load(&self, len: usize) -> ApiResult<Vec<T>> {
        Ok(InArray(self.0.cast_const()).slice(len)?.to_vec())
    }

    /// Frees the memory.
    pub(crate) fn free(self) {
        // SAFETY: the caller's promise: null, or memory that this library returned, all of which is from malloc.
        unsafe { libc::free(self.0.cast::<c_void>()) };
    }
}

/// Memory of the library that a C caller may read until it ends an iterator or requests the next entry.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct BorrowedPtr(*const c_char);

impl BorrowedPtr {
    pub(crate) const NULL: BorrowedPtr = BorrowedPtr(ptr::null());

    /// Lends `data`, which its owner keeps in place. Null if it is empty.
    pub(crate) fn data(data: &[u8]) -> BorrowedPtr {
        if data.is_empty() { BorrowedPtr::NULL } else { BorrowedPtr(data.as_ptr().cast::<c_char>()) }
    }

    /// Lends a text with its zero.
    pub(crate) fn text(text: &CStr) -> BorrowedPtr {
        BorrowedPtr(text.as_ptr())
    }
}

/// `struct rados_cluster_stat_t`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct ClusterStat {
    pub(crate) kb: u64,
    pub(crate) kb_used: u64,
    pub(crate) kb_avail: u64,
    pub(crate) num_objects: u64,
}

/// `struct rados_pool_stat_t` before Ceph 14.2: the first fields of [`PoolStat`].
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct PoolStatBase {
    pub(crate) num_bytes: u64,
    pub(crate) num_kb: u64,
    pub(crate) num_objects: u64,
    pub(crate) num_object_clones: u64,
    pub(crate) num_object_copies: u64,
    pub(crate) num_objects_missing_on_primary: u64,
    pub(crate) num_objects_unfound: u64,
    pub(crate) num_objects_degraded: u64,
    pub(crate) num_rd: u64,
    pub(crate) num_rd_kb: u64,
    pub(crate) num_wr: u64,
    pub(crate) num_wr_kb: u64,
}

/// `struct rados_pool_stat_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct PoolStat {
    pub(crate) base: PoolStatBase,
    pub(crate) num_user_bytes: u64,
    pub(crate) compressed_bytes_orig: u64,
    pub(crate) compressed_bytes: u64,
    pub(crate) compressed_bytes_alloc: u64,
}

/// `rados_object_list_item`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ObjectItem {
    pub(crate) oid_length: usize,
    pub(crate) oid: MallocBuf,
    pub(crate) nspace_length: usize,
    pub(crate) nspace: MallocBuf,
    pub(crate) locator_length: usize,
    pub(crate) locator: MallocBuf,
}

/// `struct notify_ack_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct NotifyAck {
    pub(crate) notifier_id: u64,
    pub(crate) cookie: u64,
    pub(crate) payload: MallocBuf,
    pub(crate) payload_len: u64,
}

/// `struct notify_timeout_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct NotifyTimeout {
    pub(crate) notifier_id: u64,
    pub(crate) cookie: u64,
}

/// A caller's array for results.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct OutArray<T>(*mut T);

impl<T: Copy> OutArray<T> {
    /// Stores the values in the array, which has `len` elements. EINVAL if it is null.
    pub(crate) fn store(self, len: usize, values: &[T]) -> ApiResult<()> {
        if values.is_empty() {
            return Ok(());
        }
        if self.0.is_null() || values.len() > len {
            return Err(Errno::EINVAL.into());
        }
        // SAFETY: the caller's promise: not null, so there is room for `len` values, and there are no more values than that.
        unsafe { ptr::copy_nonoverlapping(values.as_ptr(), self.0, values.len()) };
        Ok(())
    }

    /// Sets all `len` elements. EINVAL if the array is null and `len` is not 0.
    pub(crate) fn fill(self, len: usize, value: T) -> ApiResult<()> {
        if len > 0 && self.0.is_null() {
            return Err(Errno::EINVAL.into());
        }
        for at in 0..len {
            // SAFETY: the caller's promise: not null, so there is room for `len` values.
            unsafe { self.0.add(at).write(value) };
        }
        Ok(())
    }

    /// Copies of the first `len` elements, which an earlier call stored.
    pub(crate) fn load(self, len: usize) -> ApiResult<Vec<T>> {
        Ok(InArray(self.0.cast_const()).slice(len)?.to_vec())
    }
}

/// A length as the return value of a C function.
pub(crate) fn c_len(len: usize) -> c_int {
    c_int::try_from(len).unwrap_or(c_int::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled<const N: usize>(fill: impl FnOnce(OutBuf) -> ApiResult<usize>) -> (ApiResult<usize>, [u8; N]) {
        let mut memory = [7_u8; N];
        let result = fill(OutBuf(memory.as_mut_ptr().cast()));
        (result, memory)
    }

    #[test]
    fn buffers_are_never_overrun() {
        assert_eq!(filled::<4>(|out| out.fill(3, b"abcd")), (Err(Errno::ERANGE.into()), [7; 4]));
        assert_eq!(filled::<4>(|out| out.fill(4, b"abcd")), (Ok(4), *b"abcd"));
        assert_eq!(filled::<4>(|out| out.fill_text(3, b"abc")), (Err(Errno::ERANGE.into()), [7; 4]));
        assert_eq!(filled::<4>(|out| out.fill_text(4, b"abc")), (Ok(3), *b"abc\0"));
        assert_eq!(OutBuf(ptr::null_mut()).fill(4, b"abc"), Err(Errno::EINVAL.into()));
    }

    #[test]
    fn lists_hold_whole_texts_and_tell_what_all_need() {
        let (needed, memory) = filled::<6>(|out| out.fill_list(5, ["ab", "cde"].into_iter()));
        assert_eq!((needed, memory), (Ok(8), [b'a', b'b', 0, 0, 0, 7]));
        assert_eq!(OutBuf(ptr::null_mut()).fill_list(0, ["ab"].into_iter()), Ok(4));
    }

    #[test]
    fn null_is_an_invalid_argument_where_a_value_is_needed() {
        assert_eq!(CStrPtr(ptr::null()).text(), Err(Errno::EINVAL.into()));
        assert_eq!(CStrPtr(ptr::null()).text_or_empty(), Ok(""));
        assert_eq!(CStrPtr(c"\xff".as_ptr()).text(), Err(Errno::EINVAL.into()));
        let dict = *b"foo\0bar\0this\0\0\0";
        let pairs = CStrPtr(dict.as_ptr().cast()).pairs();
        assert_eq!(pairs, Ok(vec![("foo".into(), "bar".into()), ("this".into(), String::new())]));
        assert_eq!(CStrPtr(c"".as_ptr()).pairs(), Ok(vec![]));
        assert_eq!(InBuf(ptr::null()).slice(1), Err(Errno::EINVAL.into()));
        assert_eq!(InBuf(ptr::null()).slice(0), Ok(&[][..]));
        assert!(OutPtr::<u64>(ptr::null_mut()).required().is_err());
        OutPtr::<u64>(ptr::null_mut()).set(1);
    }

    #[test]
    fn structures_have_the_sizes_of_the_c_headers() {
        assert_eq!(
            (size_of::<ClusterStat>(), size_of::<PoolStatBase>(), size_of::<PoolStat>()),
            (32, 96, 128)
        );
        assert_eq!(size_of::<ObjectItem>(), 48);
        assert_eq!((size_of::<NotifyAck>(), size_of::<NotifyTimeout>()), (32, 16));
    }

    #[test]
    fn given_arrays_are_copies_and_null_where_there_is_nothing() {
        let given = MallocArray::of(&[1_u64, 2]).unwrap();
        assert_eq!(given.load(2), Ok(vec![1, 2]));
        given.free();
        let none = MallocArray::<u64>::of(&[]).unwrap();
        assert!(none.0.is_null() && none.load(0) == Ok(vec![]) && none.load(1).is_err());
        none.free();
    }

    #[test]
    fn given_memory_ends_with_a_zero() {
        let given = MallocBuf::nul_terminated(b"abc").unwrap();
        assert_eq!(CStrPtr(given.0).bytes(), Ok(&b"abc"[..]));
        given.free();
        MallocBuf::NULL.free();
    }
}
