//! Names of objects, and the order in which a PG lists them.

use crate::hash::ceph_str_hash_rjenkins;
use crate::ids::PoolId;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// The snapshot id of an object's current state (`CEPH_NOSNAP`).
pub const SNAP_HEAD: u64 = u64::MAX - 1;
/// The snapshot id of the snapshot directory object (`CEPH_SNAPDIR`).
pub const SNAP_DIR: u64 = u64::MAX;

/// Separates the parts in the input of the hash, as in Ceph (`pg_pool_t::hash_key`).
const NAMESPACE_SEPARATOR: u8 = 0x1f;

/// The default maximum length of an object name in bytes (`osd_max_object_name_len`).
pub const MAX_OBJECT_NAME_BYTES: usize = 2048;
/// The default maximum length of a namespace in bytes (`osd_max_object_namespace_len`).
pub const MAX_NAMESPACE_BYTES: usize = 256;

/// A RADOS object: pool, namespace, locator key, name and snapshot, with the hash that places it.
///
/// Cloning costs one reference count. Ordered as a PG lists its objects: by pool, bit-reversed hash, namespace, locator key (or
/// name if there is none), name, snapshot. So a split of a PG keeps each child's objects together.
#[derive(Clone, PartialEq, Eq)]
pub struct ObjectId {
    pool: PoolId,
    hash: u32,
    snap: u64,
    namespace_len: u16,
    key_len: u16,
    text: Arc<str>,
}

/// Uses the placement hash, which is known already, instead of the name.
impl Hash for ObjectId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(u64::from(self.hash) ^ (self.pool.0 as u64).rotate_left(40) ^ !self.snap);
    }
}

impl ObjectId {
    /// Creates the head object `name` of `namespace` in `pool`, placed by `locator` if that is not empty, else by its name.
    ///
    /// # Panics
    /// If the namespace or locator exceeds 65 535 bytes. Callers that accept input must check Ceph's lower limits first.
    pub fn new(pool: PoolId, namespace: &str, locator: &str, name: &str) -> ObjectId {
        Self::with_hash(pool, namespace, locator, name, SNAP_HEAD, placement_hash(namespace, locator, name))
    }

    /// Like [`ObjectId::new`] with all parts given, including the hash (the hashes of listing cursors are not of a name).
    pub fn with_hash(
        pool: PoolId,
        namespace: &str,
        locator: &str,
        name: &str,
        snap: u64,
        hash: u32,
    ) -> ObjectId {
        let namespace_len =
            u16::try_from(namespace.len()).expect("invariant: namespaces are limited on input");
        let key_len = u16::try_from(locator.len()).expect("invariant: locators are limited on input");
        let text: Arc<str> = if namespace.is_empty() && locator.is_empty() {
            name.into()
        } else {
            [namespace, locator, name].concat().into()
        };
        ObjectId { pool, hash, snap, namespace_len, key_len, text }
    }

    /// Returns the same object at another snapshot.
    pub fn with_snap(&self, snap: u64) -> ObjectId {
        ObjectId { snap, ..self.clone() }
    }

    /// Returns the same name, hash and snapshot in another pool (cache tiers share names and hashes).
    pub fn with_pool(&self, pool: PoolId) -> ObjectId {
        ObjectId { pool, ..self.clone() }
    }

    /// Returns the lowest position at `hash` in `pool`: an open lower bound for listings.
    pub fn min_at_hash(pool: PoolId, hash: u32) -> ObjectId {
        Self::with_hash(pool, "", "", "", 0, hash)
    }

    /// The pool.
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// The 32-bit placement hash.
    pub fn hash(&self) -> u32 {
        self.hash
    }

    /// The hash with its bits reversed: the first sort key within a pool.
    pub fn sort_hash(&self) -> u32 {
        self.hash.reverse_bits()
    }

    /// The snapshot id, [`SNAP_HEAD`] for the current state.
    pub fn snap(&self) -> u64 {
        self.snap
    }

    /// The namespace, empty for the default one.
    pub fn namespace(&self) -> &str {
        &self.text[..usize::from(self.namespace_len)]
    }

    /// The locator key, empty if the name places the object.
    pub fn locator(&self) -> &str {
        &self.text
            [usize::from(self.namespace_len)..usize::from(self.namespace_len) + usize::from(self.key_len)]
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.text[usize::from(self.namespace_len) + usize::from(self.key_len)..]
    }

    /// The text that places the object: the locator if there is one, else the name.
    pub fn effective_key(&self) -> &str {
        if self.key_len == 0 { self.name() } else { self.locator() }
    }
}

/// Returns the hash that places an object (`pg_pool_t::hash_key` with rjenkins): of the locator or name, preceded by the
/// namespace and a separator if there is a namespace.
pub fn placement_hash(namespace: &str, locator: &str, name: &str) -> u32 {
    let key = if locator.is_empty() { name } else { locator };
    if namespace.is_empty() {
        return ceph_str_hash_rjenkins(key.as_bytes());
    }
    let mut text = Vec::with_capacity(namespace.len() + 1 + key.len());
    text.extend_from_slice(namespace.as_bytes());
    text.push(NAMESPACE_SEPARATOR);
    text.extend_from_slice(key.as_bytes());
    ceph_str_hash_rjenkins(&text)
}

impl Ord for ObjectId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.pool
            .cmp(&other.pool)
            .then_with(|| self.sort_hash().cmp(&other.sort_hash()))
            .then_with(|| self.namespace().cmp(other.namespace()))
            .then_with(|| self.effective_key().cmp(other.effective_key()))
            .then_with(|| self.name().cmp(other.name()))
            .then_with(|| self.locator().cmp(other.locator()))
            .then_with(|| self.snap.cmp(&other.snap))
    }
}

impl PartialOrd for ObjectId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for ObjectId {
    /// Formats as Ceph does: `pool:reversed-hash:namespace:key:name:snap`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pool, .. } = self;
        write!(
            f,
            "{pool}:{:08x}:{}:{}:{}:",
            self.sort_hash(),
            self.namespace(),
            self.locator(),
            self.name()
        )?;
        match self.snap {
            SNAP_HEAD => f.write_str("head"),
            SNAP_DIR => f.write_str("snapdir"),
            snap => write!(f, "{snap:x}"),
        }
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for ObjectId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.pool, self.hash, !self.snap, self.namespace_len, self.key_len, &*self.text)
            .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ObjectId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (pool, hash, not_snap, namespace_len, key_len, text) =
            <(PoolId, u32, u64, u16, u16, Arc<str>)>::deserialize(deserializer)?;
        let name_at = usize::from(namespace_len) + usize::from(key_len);
        if !text.is_char_boundary(usize::from(namespace_len)) || !text.is_char_boundary(name_at) {
            return Err(serde::de::Error::custom("object name parts do not fit their text"));
        }
        Ok(ObjectId { pool, hash, snap: !not_snap, namespace_len, key_len, text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_kept_apart_and_survive_encoding() {
        let oid = ObjectId::new(PoolId(3), "ns", "loc", "naïve");
        assert_eq!(
            (oid.namespace(), oid.locator(), oid.name(), oid.effective_key()),
            ("ns", "loc", "naïve", "loc")
        );
        let bytes = postcard::to_extend(&oid, Vec::new()).unwrap();
        assert_eq!(postcard::from_bytes::<ObjectId>(&bytes).unwrap(), oid);
        assert_eq!(oid.hash(), ObjectId::new(PoolId(3), "ns", "", "loc").hash());
    }

    #[test]
    fn order_is_by_reversed_hash_first() {
        let at = |hash, name| ObjectId::with_hash(PoolId(1), "", "", name, SNAP_HEAD, hash);
        assert!(at(0x8000_0000, "z") < at(1, "a"));
        assert!(at(1, "a") < at(1, "b"));
        assert!(ObjectId::min_at_hash(PoolId(1), 1) < at(1, ""));
    }

    #[test]
    fn lengths_beyond_the_text_are_refused() {
        let bytes = postcard::to_extend(&(PoolId(1), 0u32, 0u64, 9u16, 9u16, "short"), Vec::new()).unwrap();
        assert!(postcard::from_bytes::<ObjectId>(&bytes).is_err());
    }
}
