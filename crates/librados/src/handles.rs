//! Handles: the numbers that C callers hold for objects of ours.
//!
//! A handle is looked up in its kind's table at each use. A number is never used twice and belongs to one kind, so a
//! handle that is null, destroyed already, or of another kind finds nothing and the call fails with EINVAL.

use crate::abi::Handle;
use crate::guard::Outcome;
use nacre_types::errno::Errno;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

/// Tables are split so that threads which use different handles seldom meet.
const SHARDS: usize = 16;

static NEXT: AtomicUsize = AtomicUsize::new(1);

/// Handles are numbers in order: a multiplication spreads them well enough.
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

/// The live objects of one kind.
pub(crate) struct Table<T> {
    shards: LazyLock<[Shard<T>; SHARDS]>,
}

impl<T> Table<T> {
    /// No objects.
    pub(crate) const fn new() -> Table<T> {
        Table { shards: LazyLock::new(|| std::array::from_fn(|_| Shard::default())) }
    }

    fn shard(&self, handle: Handle) -> &Shard<T> {
        // Aligned as pointers are, so that the low bits say nothing.
        &self.shards[(handle.0 >> 4) % SHARDS]
    }

    /// Takes an object in. `make` learns its handle.
    pub(crate) fn insert_with(&self, make: impl FnOnce(Handle) -> T) -> Handle {
        let handle = Handle(NEXT.fetch_add(1, Ordering::Relaxed) << 4);
        let object = Arc::new(make(handle));
        self.shard(handle).write().insert(handle.0, object);
        handle
    }

    /// Takes an object in.
    pub(crate) fn insert(&self, object: T) -> Handle {
        self.insert_with(|_| object)
    }

    /// Puts another object in the place of one; gives it back where there is none of that handle.
    pub(crate) fn replace(&self, handle: Handle, object: T) -> Result<(), T> {
        match self.shard(handle).write().get_mut(&handle.0) {
            Some(place) => {
                *place = Arc::new(object);
                Ok(())
            }
            None => Err(object),
        }
    }

    /// The object; EINVAL where there is none.
    pub(crate) fn get(&self, handle: Handle) -> Outcome<Arc<T>> {
        Ok(self.shard(handle).read().get(&handle.0).cloned().ok_or(Errno::EINVAL)?)
    }

    /// Takes the object out; EINVAL where there is none (any more).
    pub(crate) fn remove(&self, handle: Handle) -> Outcome<Arc<T>> {
        Ok(self.shard(handle).write().remove(&handle.0).ok_or(Errno::EINVAL)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destroyed_and_foreign_handles_find_nothing() {
        static NUMBERS: Table<u32> = Table::new();
        static TEXTS: Table<&str> = Table::new();
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
        static NUMBERS: Table<u32> = Table::new();
        let number = NUMBERS.insert(1);
        assert_eq!(NUMBERS.replace(number, 2), Ok(()));
        assert_eq!(NUMBERS.get(number).as_deref(), Ok(&2));
        assert_eq!(NUMBERS.replace(Handle::NULL, 3), Err(3));
        assert_eq!(NUMBERS.remove(number).as_deref(), Ok(&2));
        assert_eq!(NUMBERS.replace(number, 4), Err(4));
    }
}
