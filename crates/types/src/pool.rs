//! Pools: the objects of `osd pool create`, `get` and `set`. Field meanings and defaults are those of Ceph 16.2's `pg_pool_t`.

mod tiering;

pub use tiering::{CacheMode, HitSetKind, MAX_HIT_SETS, Tiering};

use crate::hash::{pg_mask, stable_mod};
use crate::ids::{Epoch, PgId, PoolId};
use crate::object::ObjectId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How a pool spreads data over the OSDs of a PG.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PoolKind {
    /// Whole copies.
    #[default]
    Replicated,
    /// Erasure-coded chunks.
    Erasure,
}

/// Bits of [`Pool::flags`], numbered as in Ceph.
pub mod flag {
    /// Include the pool id in the placement seed.
    pub const HASHPSPOOL: u64 = 1 << 0;
    /// Out of space or over quota.
    pub const FULL: u64 = 1 << 1;
    /// Is or was a cache tier: set with each change of its cache mode, never cleared.
    pub const INCOMPLETE_CLONES: u64 = 1 << 3;
    /// `nodelete` is set.
    pub const NODELETE: u64 = 1 << 4;
    /// `nopgchange` is set.
    pub const NOPGCHANGE: u64 = 1 << 5;
    /// `nosizechange` is set.
    pub const NOSIZECHANGE: u64 = 1 << 6;
    /// `write_fadvise_dontneed` is set.
    pub const WRITE_FADVISE_DONTNEED: u64 = 1 << 7;
    /// `noscrub` is set.
    pub const NOSCRUB: u64 = 1 << 8;
    /// `nodeep-scrub` is set.
    pub const NODEEP_SCRUB: u64 = 1 << 9;
    /// The flag FULL was set because of a quota.
    pub const FULL_QUOTA: u64 = 1 << 10;
    /// Close to full.
    pub const NEARFULL: u64 = 1 << 11;
    /// Too full for backfill.
    pub const BACKFILLFULL: u64 = 1 << 12;
    /// Uses self-managed snapshots.
    pub const SELFMANAGED_SNAPS: u64 = 1 << 13;
    /// Uses pool snapshots.
    pub const POOL_SNAPS: u64 = 1 << 14;
    /// `bulk` is set.
    pub const BULK: u64 = 1 << 17;
    /// `cache_write_through` is set: a cache answers requests only when the base has their changes. Nacre only.
    pub const CACHE_WRITE_THROUGH: u64 = 1 << 48;
    /// `cache_dirty_log` is set: the base has the names of a cache's dirty objects. Nacre only.
    pub const CACHE_DIRTY_LOG: u64 = 1 << 49;

    /// Flag names in the order in which `osd dump` prints them.
    pub const NAMES: &[(u64, &str)] = &[
        (HASHPSPOOL, "hashpspool"),
        (FULL, "full"),
        (INCOMPLETE_CLONES, "incomplete_clones"),
        (NODELETE, "nodelete"),
        (NOPGCHANGE, "nopgchange"),
        (NOSIZECHANGE, "nosizechange"),
        (WRITE_FADVISE_DONTNEED, "write_fadvise_dontneed"),
        (NOSCRUB, "noscrub"),
        (NODEEP_SCRUB, "nodeep-scrub"),
        (FULL_QUOTA, "full_quota"),
        (NEARFULL, "nearfull"),
        (BACKFILLFULL, "backfillfull"),
        (SELFMANAGED_SNAPS, "selfmanaged_snaps"),
        (POOL_SNAPS, "pool_snaps"),
        (BULK, "bulk"),
        (CACHE_WRITE_THROUGH, "cache_write_through"),
        (CACHE_DIRTY_LOG, "cache_dirty_log"),
    ];
}

/// A pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pool {
    /// The name, unique in the cluster.
    pub name: String,
    /// Replicated or erasure-coded.
    pub kind: PoolKind,
    /// Number of copies.
    pub size: u32,
    /// Minimum number of in-sync copies with which the pool accepts I/O.
    pub min_size: u32,
    /// The CRUSH rule's id.
    pub crush_rule: u8,
    /// Number of PGs.
    pub pg_num: u32,
    /// Number of PGs for placement; at most `pg_num`.
    pub pgp_num: u32,
    /// Bits of [`flag`].
    pub flags: u64,
    /// `quota_max_bytes`; 0 means no limit.
    pub quota_max_bytes: u64,
    /// `quota_max_objects`; 0 means no limit.
    pub quota_max_objects: u64,
    /// The epoch in which the pool was created.
    pub created: Epoch,
    /// When it was created, nanoseconds since 1970.
    pub created_ns: u64,
    /// The epoch of the last change.
    pub last_change: Epoch,
    /// The owner (`auid`), 0 unless set by an old client.
    pub auid: u64,
    /// `pg_autoscale_mode`: `off`, `warn` or `on`.
    pub pg_autoscale_mode: String,
    /// Tier and hit set parameters.
    pub tiering: Tiering,
    /// Other `osd pool set` options by name (`compression_mode`, `scrub_min_interval`, …) with their values as text.
    pub options: BTreeMap<String, String>,
    /// `osd pool application`: application name to its keys and values.
    pub applications: BTreeMap<String, BTreeMap<String, String>>,
    /// The last assigned snapshot id (pool or self-managed).
    pub snap_seq: u64,
    /// Pool snapshots: id to (name, creation time in nanoseconds since 1970).
    pub snaps: BTreeMap<u64, (String, u64)>,
}

impl Pool {
    /// Creates a replicated pool with Ceph's defaults.
    pub fn replicated(
        name: &str,
        size: u32,
        min_size: u32,
        crush_rule: u8,
        pg_num: u32,
        created: Epoch,
    ) -> Pool {
        Pool {
            name: name.to_owned(),
            kind: PoolKind::Replicated,
            size,
            min_size,
            crush_rule,
            pg_num,
            pgp_num: pg_num,
            flags: flag::HASHPSPOOL,
            quota_max_bytes: 0,
            quota_max_objects: 0,
            created,
            created_ns: 0,
            last_change: created,
            auid: 0,
            pg_autoscale_mode: "off".into(),
            tiering: Tiering::default(),
            options: BTreeMap::new(),
            applications: BTreeMap::new(),
            snap_seq: 0,
            snaps: BTreeMap::new(),
        }
    }

    /// Whether all bits of `flag` are set.
    pub fn has_flag(&self, flag: u64) -> bool {
        self.flags & flag == flag
    }

    /// The PG that holds an object with this placement hash (`raw_pg_to_pg`).
    pub fn pg_of_hash(&self, pool: PoolId, hash: u32) -> PgId {
        PgId::new(pool, stable_mod(hash, self.pg_num, pg_mask(self.pg_num)))
    }

    /// The PG that holds `object`.
    pub fn pg_of(&self, object: &ObjectId) -> PgId {
        self.pg_of_hash(object.pool(), object.hash())
    }

    /// Whether the pool has snapshots, or has assigned snapshot ids.
    pub fn has_snapshots(&self) -> bool {
        self.snap_seq > 0
            || !self.snaps.is_empty()
            || self.flags & (flag::SELFMANAGED_SNAPS | flag::POOL_SNAPS) != 0
    }

    /// Formats `flags_string` of `osd dump`.
    pub fn flags_string(&self) -> String {
        let names: Vec<_> =
            flag::NAMES.iter().filter(|(bit, _)| self.has_flag(*bit)).map(|(_, n)| *n).collect();
        names.join(",")
    }
}
