//! Object contexts: the metadata of an object that ops need before they run, and a bounded cache of it.

use bytes::Bytes;
use nacre_objectstore::{ReadStore, StoreError};
use nacre_types::id_map::IdMap;
use nacre_types::ids::PgId;
use nacre_types::object::ObjectId;
use nacre_types::op::{OI_ATTR, ObjectInfo, object_flag};

/// An object's existence, size and info.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectContext {
    /// Whether the store has the object (including whiteouts).
    pub exists: bool,
    /// Size in bytes.
    pub size: u64,
    /// Its info; the default if it does not exist.
    pub info: ObjectInfo,
}

impl ObjectContext {
    /// Whether the object exists for users. A whiteout of a cache tier counts as absent.
    pub fn exists_for_users(&self) -> bool {
        self.exists && self.info.flags & object_flag::WHITEOUT == 0
    }

    /// Returns the user version for replies, or `absent` if there is no object.
    pub fn user_version(&self, absent: u64) -> u64 {
        if self.exists { self.info.user_version } else { absent }
    }
}

/// Reads an object's context from the store. An object without a valid info is corrupt.
pub fn load_context(store: &dyn ReadStore, pg: PgId, oid: &ObjectId) -> Result<ObjectContext, StoreError> {
    let stat = match store.stat(pg, oid) {
        Ok(stat) => stat,
        Err(StoreError::NotFound(_)) => return Ok(ObjectContext::default()),
        Err(error) => return Err(error),
    };
    let attr = store.get_attr(pg, oid, OI_ATTR)?;
    let info = decode_info(oid, attr)?;
    Ok(ObjectContext { exists: true, size: stat.size, info })
}

/// Decodes the info in an object's attribute.
pub(crate) fn decode_info(oid: &ObjectId, attr: Option<Bytes>) -> Result<ObjectInfo, StoreError> {
    let corrupt = |detail: String| StoreError::Corrupt { what: oid.to_string(), detail };
    let attr = attr.ok_or_else(|| corrupt("no object info".into()))?;
    nacre_types::encoding::decode(&attr).map_err(|error| corrupt(error.to_string()))
}

/// A bounded cache of contexts, for one shard.
///
/// An entry is valid for one generation of its PG: the PG's host starts a new generation with each interval, so no entry survives a change
/// of membership. Eviction is second-chance (CLOCK).
#[derive(Debug)]
pub struct ContextCache {
    index: IdMap<ObjectId, u32>,
    slots: Vec<Slot>,
    hand: usize,
    capacity: usize,
}

#[derive(Debug)]
struct Slot {
    oid: ObjectId,
    generation: u64,
    used: bool,
    context: ObjectContext,
}

impl ContextCache {
    /// Creates a cache of at most `capacity` objects.
    pub fn new(capacity: usize) -> ContextCache {
        ContextCache { index: IdMap::default(), slots: Vec::new(), hand: 0, capacity: capacity.max(1) }
    }

    /// Returns the context of `oid` if it was cached in this generation.
    pub fn get(&mut self, oid: &ObjectId, generation: u64) -> Option<&ObjectContext> {
        let slot = &mut self.slots[*self.index.get(oid)? as usize];
        if slot.generation != generation {
            return None;
        }
        slot.used = true;
        Some(&slot.context)
    }

    /// Adds or replaces a context.
    pub fn put(&mut self, oid: &ObjectId, generation: u64, context: ObjectContext) {
        if let Some(at) = self.index.get(oid) {
            let slot = &mut self.slots[*at as usize];
            (slot.generation, slot.used, slot.context) = (generation, true, context);
            return;
        }
        let slot = Slot { oid: oid.clone(), generation, used: false, context };
        let at = if self.slots.len() < self.capacity {
            self.slots.push(slot);
            self.slots.len() - 1
        } else {
            let at = self.victim();
            self.index.remove(&self.slots[at].oid);
            self.slots[at] = slot;
            at
        };
        self.index.insert(oid.clone(), at as u32);
    }

    /// Invalidates the entry of one object, whose state may have changed.
    pub fn forget(&mut self, oid: &ObjectId) {
        if let Some(at) = self.index.get(oid) {
            // Generations start at 1, so 0 never matches. The clock hand reclaims the slot.
            self.slots[*at as usize].generation = 0;
            self.slots[*at as usize].used = false;
        }
    }

    /// Number of cached objects, including stale ones.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    fn victim(&mut self) -> usize {
        loop {
            let at = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            if !std::mem::take(&mut self.slots[at].used) {
                return at;
            }
        }
    }
}
