//! Pools: what `osd pool create`, `get` and `set` act on. Field meanings and defaults are those of Ceph 16.2's
//! `pg_pool_t`.

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
    /// Mix the pool id into the placement seed.
    pub const HASHPSPOOL: u64 = 1 << 0;
    /// Out of space or over quota.
    pub const FULL: u64 = 1 << 1;
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
    /// The flag FULL came from a quota.
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

    /// Flag names in the order in which `osd dump` prints them.
    pub const NAMES: &[(u64, &str)] = &[
        (HASHPSPOOL, "hashpspool"),
        (FULL, "full"),
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
    ];
}

/// What a cache tier does with reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CacheMode {
    /// Not a cache.
    #[default]
    None,
    /// Writes go to the cache and are flushed later.
    Writeback,
    /// Forward all to the base pool (obsolete).
    Forward,
    /// Cache reads, forward writes (obsolete form).
    Readonly,
    /// Forward reads, cache writes (obsolete).
    Readforward,
    /// Proxy reads and writes to the base pool.
    Proxy,
    /// Proxy reads, cache writes.
    Readproxy,
}

impl CacheMode {
    /// Ceph's spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            CacheMode::None => "none",
            CacheMode::Writeback => "writeback",
            CacheMode::Forward => "forward",
            CacheMode::Readonly => "readonly",
            CacheMode::Readforward => "readforward",
            CacheMode::Proxy => "proxy",
            CacheMode::Readproxy => "readproxy",
        }
    }
}

/// How accesses to a cache pool are remembered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum HitSetKind {
    /// Not at all.
    #[default]
    None,
    /// The hashes of the objects.
    ExplicitHash,
    /// The names of the objects.
    ExplicitObject,
    /// A bloom filter with this false positive probability.
    Bloom {
        /// `hit_set_fpp`.
        fpp: f64,
    },
}

/// Everything that makes a pool a cache tier or the base of one; defaults describe a pool outside any tier.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tiering {
    /// Pools that are caches of this one.
    pub tiers: Vec<PoolId>,
    /// The pool that this one caches.
    pub tier_of: Option<PoolId>,
    /// Where clients send reads instead.
    pub read_tier: Option<PoolId>,
    /// Where clients send writes instead.
    pub write_tier: Option<PoolId>,
    /// `cache_mode`.
    pub cache_mode: CacheMode,
    /// `target_max_bytes`; 0 is no limit.
    pub target_max_bytes: u64,
    /// `target_max_objects`; 0 is no limit.
    pub target_max_objects: u64,
    /// `cache_target_dirty_ratio` in millionths.
    pub dirty_ratio_micro: u32,
    /// `cache_target_dirty_high_ratio` in millionths.
    pub dirty_high_ratio_micro: u32,
    /// `cache_target_full_ratio` in millionths.
    pub full_ratio_micro: u32,
    /// `cache_min_flush_age` in seconds.
    pub min_flush_age_s: u32,
    /// `cache_min_evict_age` in seconds.
    pub min_evict_age_s: u32,
    /// `hit_set_type` and its parameters.
    pub hit_set: HitSetKind,
    /// `hit_set_period` in seconds.
    pub hit_set_period_s: u32,
    /// `hit_set_count`.
    pub hit_set_count: u32,
    /// `min_read_recency_for_promote`.
    pub min_read_recency_for_promote: u32,
    /// `min_write_recency_for_promote`.
    pub min_write_recency_for_promote: u32,
    /// `hit_set_grade_decay_rate`.
    pub hit_set_grade_decay_rate: u32,
    /// `hit_set_search_last_n`.
    pub hit_set_search_last_n: u32,
    /// `use_gmt_hitset`.
    pub use_gmt_hitset: bool,
    /// The epoch of the map in which the overlay was last set or removed: OSDs send back clients' requests of older maps.
    pub overlay_epoch: Epoch,
}

impl Default for Tiering {
    fn default() -> Self {
        Tiering {
            tiers: Vec::new(),
            tier_of: None,
            read_tier: None,
            write_tier: None,
            cache_mode: CacheMode::None,
            target_max_bytes: 0,
            target_max_objects: 0,
            dirty_ratio_micro: 400_000,
            dirty_high_ratio_micro: 600_000,
            full_ratio_micro: 800_000,
            min_flush_age_s: 0,
            min_evict_age_s: 0,
            hit_set: HitSetKind::None,
            hit_set_period_s: 0,
            hit_set_count: 0,
            min_read_recency_for_promote: 0,
            min_write_recency_for_promote: 0,
            hit_set_grade_decay_rate: 0,
            hit_set_search_last_n: 0,
            use_gmt_hitset: true,
            overlay_epoch: Epoch(0),
        }
    }
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
    /// Fewest in-sync copies with which the pool accepts I/O.
    pub min_size: u32,
    /// The CRUSH rule's id.
    pub crush_rule: u8,
    /// Number of PGs.
    pub pg_num: u32,
    /// Number of PGs for placement; at most `pg_num`.
    pub pgp_num: u32,
    /// Bits of [`flag`].
    pub flags: u64,
    /// `quota_max_bytes`; 0 is no limit.
    pub quota_max_bytes: u64,
    /// `quota_max_objects`; 0 is no limit.
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
    /// The last snapshot id given out (pool or self-managed).
    pub snap_seq: u64,
    /// Pool snapshots: id to (name, creation time in nanoseconds since 1970).
    pub snaps: BTreeMap<u64, (String, u64)>,
}

impl Pool {
    /// A replicated pool with Ceph's defaults.
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

    /// `flags_string` of `osd dump`.
    pub fn flags_string(&self) -> String {
        let names: Vec<_> =
            flag::NAMES.iter().filter(|(bit, _)| self.has_flag(*bit)).map(|(_, n)| *n).collect();
        names.join(",")
    }
}
