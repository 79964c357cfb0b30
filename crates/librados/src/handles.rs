//! Handles: the numbers that C callers hold for objects of the library.
//!
//! Each use looks the handle up in the table of its kind. A number is never reused and belongs to one kind. A handle that is
//! null, already destroyed or of another kind is not found, and the call fails with EINVAL.

use crate::abi::Handle;
use crate::guard::ApiResult;
use nacre_types::errno::Errno;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

/// Tables are divided so that threads with different handles rarely contend.
const SHARDS: usize = 16;

static NEXT: AtomicUsize = AtomicUsize::new(1);

/// Handles are consecutive numbers: a multiplication distributes them well enough.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_usize(usize::from(*byte));
        }
    }

    fn write_usize(&mut self, number: usize) {
        self.0 = (self.0 ^ number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

type Shard<T> = RwLock<HashMap<usize, Arc<T>, BuildHasherDefault<Spread>>>;

/// The objects of one kind that are in use.
pub(crate) struct HandleTable<T> {
    shards: LazyLock<[Shard<T>; SHARDS]>,
}

impl<T> HandleTable<T> {
    /// No objects.
    pub(crate) const fn new() -> HandleTable<T> {
        HandleTable { shards: LazyLock::new(|| std::array::from_fn(|_| Shard::default())) }
    }

    fn shard(&self, handle: Handle) -> &Shard<T> {
        // Aligned as pointers are, so the low bits carry no information.
        &self.shards[(handle.0 >> 4) % SHARDS]
    }

    /// Inserts an object. `make` receives its handle.
    pub(crate) fn insert_with(&self, make: impl FnOnce(Handle) -> T) -> Handle {
        let handle = Handle(NEXT.fetch_add(1, Ordering::Relaxed) << 4);
        let object = Arc::new(make(handle));
        self.shard(handle).write().insert(handle.0, object);
        handle
    }

    /// Inserts an object.
    pub(crate) fn insert(&self, object: T) -> Handle {
        self.insert_with(|_| object)
    }

    /// Replaces the object of a handle. Returns the new one if the handle does not exist.
    pub(crate) fn replace(&self, handle: Handle, object: T) -> Result<(), T> {
        match self.shard(handle).write().get_mut(&handle.0) {
            Some(place) => {
                *place = Arc::new(object);
                Ok(())
            }
            None => Err(object),
        }
    }

    /// The object. EINVAL if it does not exist.
    pub(crate) fn get(&self, handle: Handle) -> ApiResult<Arc<T>> {
        Ok(self.shard(handle).read().get(&handle.0).cloned().ok_or(Errno::EINVAL)?)
    }

    /// Removes and returns the object. EINVAL if it does not exist.
    pub(crate) fn remove(&self, handle: Handle) -> ApiResult<Arc<T>> {
        Ok(self.shard(handle).write().remove(&handle.0).ok_or(Errno::EINVAL)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destroyed_and_foreign_handles_find_nothing() {
        static NUMBERS: HandleTable<u32> = HandleTable::new();
        static TEXTS: HandleTable<&str> = HandleTable::new();
        let (number, text) = (NUMBERS.insert(1), TEXTS.insert("x"));
        assert_eq!(NUMBERS.get(number).as_deref(), Ok(&1));
        assert!(NUMBERS.get(text).is_err() && NUMBERS.get(Handle::NULL).is_err());
        assert_eq!(NUMBERS.remove(number).as_deref(), Ok(&1));
        assert!(NUMBERS.remove(number).is_err() && NUMBERS.get(number).is_err());
        assert_ne!(NUMBERS.insert(2), number);
        assert_eq!(TEXTS.get(text).as_deref(), Ok(&"x"));
    }

    #[test]
    fn an_object_is_replaced_under_its_handle() {
        static NUMBERS: HandleTable<u32> = HandleTable::new();
        let number = NUMBERS.insert(1);
        assert_eq!(NUMBERS.replace(number, 2), Ok(()));
        assert_eq!(NUMBERS.get(number).as_deref(), Ok(&2));
        assert_eq!(NUMBERS.replace(Handle::NULL, 3), Err(3));
        assert_eq!(NUMBERS.remove(number).as_deref(), Ok(&2));
        assert_eq!(NUMBERS.replace(number, 4), Err(4));
    }
}
