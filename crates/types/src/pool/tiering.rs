//! Cache tiers: the settings that make a pool a cache of another one, or the base of caches.

use crate::ids::{Epoch, PoolId};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// How a cache tier handles reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CacheMode {
    /// Not a cache.
    #[default]
    None,
    /// Writes go to the cache and are flushed later.
    Writeback,
    /// Forward everything to the base pool (obsolete; can no longer be set).
    Forward,
    /// Cache reads, forward writes. Reads may return older data than the base pool's.
    Readonly,
    /// Forward reads, cache writes (obsolete; can no longer be set).
    Readforward,
    /// Proxy reads and writes to the base pool.
    Proxy,
    /// Proxy reads, cache writes.
    Readproxy,
}

impl CacheMode {
    /// All modes, in Ceph's order.
    pub const ALL: [CacheMode; 7] = [
        CacheMode::None,
        CacheMode::Writeback,
        CacheMode::Forward,
        CacheMode::Readonly,
        CacheMode::Readforward,
        CacheMode::Proxy,
        CacheMode::Readproxy,
    ];

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

    /// Parses a mode's name.
    pub fn parse(name: &str) -> Option<CacheMode> {
        CacheMode::ALL.into_iter().find(|mode| mode.as_str() == name)
    }

    /// Whether only the cache may have acknowledged writes: the modes in which objects become dirty.
    pub fn allows_dirty(self) -> bool {
        match self {
            CacheMode::Writeback | CacheMode::Readproxy | CacheMode::Readforward => true,
            CacheMode::None | CacheMode::Proxy | CacheMode::Readonly | CacheMode::Forward => false,
        }
    }
}

/// How accesses to a cache pool are recorded.
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

impl HitSetKind {
    /// Ceph's spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            HitSetKind::None => "none",
            HitSetKind::ExplicitHash => "explicit_hash",
            HitSetKind::ExplicitObject => "explicit_object",
            HitSetKind::Bloom { .. } => "bloom",
        }
    }

    /// Parses a kind's name. A bloom filter gets the false positive probability `fpp`.
    pub fn parse(name: &str, fpp: f64) -> Option<HitSetKind> {
        Some(match name {
            "none" => HitSetKind::None,
            "explicit_hash" => HitSetKind::ExplicitHash,
            "explicit_object" => HitSetKind::ExplicitObject,
            "bloom" => HitSetKind::Bloom { fpp },
            _ => return None,
        })
    }
}

/// The settings of a cache tier or base pool. The defaults are for a pool outside any tier.
///
/// Two epochs make changes of tiers safe. Both are epochs of the map with the change:
/// - From `overlay_epoch` on, both pools refuse requests of older maps: no client uses an overlay that was removed, or bypasses
///   a new one.
/// - A PG of the cache that reports with a map of `mode_epoch` or later uses `cache_mode`. In a mode that does not keep writes
///   (see [`CacheMode::allows_dirty`]) it makes no clean object dirty. So a PG that has reported no dirty object will not have
///   any later, and the overlay may be removed.
#[derive(Clone, Debug, PartialEq)]
pub struct Tiering {
    /// Pools that are caches of this one.
    pub tiers: Vec<PoolId>,
    /// The pool that this one caches.
    pub tier_of: Option<PoolId>,
    /// The pool to which clients send reads instead.
    pub read_tier: Option<PoolId>,
    /// The pool to which clients send writes instead.
    pub write_tier: Option<PoolId>,
    /// `cache_mode`.
    pub cache_mode: CacheMode,
    /// `target_max_bytes`; 0 means no limit.
    pub target_max_bytes: u64,
    /// `target_max_objects`; 0 means no limit.
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
    /// The epoch of the last change of an overlay that this pool is or has; 0 if there was none.
    pub overlay_epoch: Epoch,
    /// The epoch of the last change of `cache_mode`; 0 if there was none.
    pub mode_epoch: Epoch,
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
            mode_epoch: Epoch(0),
        }
    }
}

/// The maximum number of hit sets of a pool. Ceph has no bound; the table of grades has an entry for each.
pub const MAX_HIT_SETS: u32 = 1_024;

impl Tiering {
    /// Returns the grade, in millionths, of a hit in each hit set, newest first (`calc_grade_table`).
    pub fn grade_table(&self) -> Vec<u32> {
        let keep = 1.0 - f64::from(self.hit_set_grade_decay_rate) / 100.0;
        let grades = std::iter::successors(Some(1_000_000.0), |grade: &f64| Some((grade * keep).trunc()));
        grades.skip(1).take(self.hit_set_count.min(MAX_HIT_SETS) as usize).map(|grade| grade as u32).collect()
    }
}

/// Bits of the last byte of the encoding (docs/format/osdmap-file.md). Before the epochs were added, the byte was a boolean.
mod tail {
    /// [`super::Tiering::use_gmt_hitset`].
    pub(super) const USE_GMT_HITSET: u8 = 1 << 0;
    /// `overlay_epoch` and `mode_epoch` follow.
    pub(super) const HAS_EPOCHS: u8 = 1 << 1;
}

/// The last byte and the data after it.
struct Tail {
    use_gmt_hitset: bool,
    epochs: Option<(Epoch, Epoch)>,
}

impl Serialize for Tail {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let byte = if self.use_gmt_hitset { tail::USE_GMT_HITSET } else { 0 };
        match self.epochs {
            None => byte.serialize(to),
            Some(epochs) => (byte | tail::HAS_EPOCHS, epochs).serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for Tail {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> serde::de::Visitor<'de> for Fields {
            type Value = Tail;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("the end of a pool's tier parameters")
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut fields: A) -> Result<Tail, A::Error> {
                let cut_short = || A::Error::custom("cut short");
                let byte: u8 = fields.next_element()?.ok_or_else(cut_short)?;
                if byte & !(tail::USE_GMT_HITSET | tail::HAS_EPOCHS) != 0 {
                    return Err(A::Error::custom(
                        "tier parameters of a newer release: upgrade before reading them",
                    ));
                }
                let epochs = match byte & tail::HAS_EPOCHS {
                    0 => None,
                    _ => Some(fields.next_element()?.ok_or_else(cut_short)?),
                };
                if epochs == Some((Epoch(0), Epoch(0))) {
                    return Err(A::Error::custom("epochs of tiers that say nothing"));
                }
                Ok(Tail { use_gmt_hitset: byte & tail::USE_GMT_HITSET != 0, epochs })
            }
        }
        from.deserialize_tuple(2, Fields)
    }
}

/// The fields before [`Tail`] in their stored order. Tuples do not change the encoding.
type Places = (Vec<PoolId>, Option<PoolId>, Option<PoolId>, Option<PoolId>, CacheMode);
type Targets = (u64, u64, u32, u32, u32, u32, u32);
type Hits = (HitSetKind, u32, u32, u32, u32, u32, u32);

impl Serialize for Tiering {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let epochs = (self.overlay_epoch, self.mode_epoch);
        let places = (&self.tiers, self.tier_of, self.read_tier, self.write_tier, self.cache_mode);
        let targets: Targets = (
            self.target_max_bytes,
            self.target_max_objects,
            self.dirty_ratio_micro,
            self.dirty_high_ratio_micro,
            self.full_ratio_micro,
            self.min_flush_age_s,
            self.min_evict_age_s,
        );
        let hits: Hits = (
            self.hit_set,
            self.hit_set_period_s,
            self.hit_set_count,
            self.min_read_recency_for_promote,
            self.min_write_recency_for_promote,
            self.hit_set_grade_decay_rate,
            self.hit_set_search_last_n,
        );
        let tail = Tail {
            use_gmt_hitset: self.use_gmt_hitset,
            epochs: (epochs != (Epoch(0), Epoch(0))).then_some(epochs),
        };
        (places, targets, hits, tail).serialize(to)
    }
}

impl<'de> Deserialize<'de> for Tiering {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let (places, targets, hits, tail): (Places, Targets, Hits, Tail) = Deserialize::deserialize(from)?;
        let (tiers, tier_of, read_tier, write_tier, cache_mode) = places;
        let (target_max_bytes, target_max_objects, dirty, dirty_high, full, flush_age, evict_age) = targets;
        let (hit_set, period, count, read_recency, write_recency, decay_rate, last_n) = hits;
        let (overlay_epoch, mode_epoch) = tail.epochs.unwrap_or_default();
        Ok(Tiering {
            tiers,
            tier_of,
            read_tier,
            write_tier,
            cache_mode,
            target_max_bytes,
            target_max_objects,
            dirty_ratio_micro: dirty,
            dirty_high_ratio_micro: dirty_high,
            full_ratio_micro: full,
            min_flush_age_s: flush_age,
            min_evict_age_s: evict_age,
            hit_set,
            hit_set_period_s: period,
            hit_set_count: count,
            min_read_recency_for_promote: read_recency,
            min_write_recency_for_promote: write_recency,
            hit_set_grade_decay_rate: decay_rate,
            hit_set_search_last_n: last_n,
            use_gmt_hitset: tail.use_gmt_hitset,
            overlay_epoch,
            mode_epoch,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The structure as stored before it had epochs.
    #[derive(Serialize, Deserialize)]
    struct WithoutEpochs {
        tiers: Vec<PoolId>,
        tier_of: Option<PoolId>,
        read_tier: Option<PoolId>,
        write_tier: Option<PoolId>,
        cache_mode: CacheMode,
        target_max_bytes: u64,
        target_max_objects: u64,
        dirty_ratio_micro: u32,
        dirty_high_ratio_micro: u32,
        full_ratio_micro: u32,
        min_flush_age_s: u32,
        min_evict_age_s: u32,
        hit_set: HitSetKind,
        hit_set_period_s: u32,
        hit_set_count: u32,
        min_read_recency_for_promote: u32,
        min_write_recency_for_promote: u32,
        hit_set_grade_decay_rate: u32,
        hit_set_search_last_n: u32,
        use_gmt_hitset: bool,
    }

    fn filled() -> Tiering {
        Tiering {
            tiers: vec![PoolId(3), PoolId(200)],
            tier_of: Some(PoolId(4)),
            read_tier: Some(PoolId(5)),
            write_tier: None,
            cache_mode: CacheMode::Readproxy,
            target_max_bytes: 1 << 40,
            target_max_objects: 6,
            dirty_ratio_micro: 7,
            dirty_high_ratio_micro: 8,
            full_ratio_micro: 9,
            min_flush_age_s: 10,
            min_evict_age_s: 11,
            hit_set: HitSetKind::Bloom { fpp: 0.25 },
            hit_set_period_s: 12,
            hit_set_count: 13,
            min_read_recency_for_promote: 14,
            min_write_recency_for_promote: 15,
            hit_set_grade_decay_rate: 16,
            hit_set_search_last_n: 17,
            use_gmt_hitset: false,
            ..Tiering::default()
        }
    }

    fn old(t: &Tiering) -> WithoutEpochs {
        WithoutEpochs {
            tiers: t.tiers.clone(),
            tier_of: t.tier_of,
            read_tier: t.read_tier,
            write_tier: t.write_tier,
            cache_mode: t.cache_mode,
            target_max_bytes: t.target_max_bytes,
            target_max_objects: t.target_max_objects,
            dirty_ratio_micro: t.dirty_ratio_micro,
            dirty_high_ratio_micro: t.dirty_high_ratio_micro,
            full_ratio_micro: t.full_ratio_micro,
            min_flush_age_s: t.min_flush_age_s,
            min_evict_age_s: t.min_evict_age_s,
            hit_set: t.hit_set,
            hit_set_period_s: t.hit_set_period_s,
            hit_set_count: t.hit_set_count,
            min_read_recency_for_promote: t.min_read_recency_for_promote,
            min_write_recency_for_promote: t.min_write_recency_for_promote,
            hit_set_grade_decay_rate: t.hit_set_grade_decay_rate,
            hit_set_search_last_n: t.hit_set_search_last_n,
            use_gmt_hitset: t.use_gmt_hitset,
        }
    }

    #[test]
    fn pools_of_maps_without_epochs_are_read_and_written_as_before() {
        for tiering in [filled(), Tiering::default()] {
            let before = postcard::to_allocvec(&old(&tiering)).unwrap();
            assert_eq!(postcard::from_bytes::<Tiering>(&before).unwrap(), tiering);
            assert_eq!(postcard::to_allocvec(&tiering).unwrap(), before);
        }
    }

    #[test]
    fn epochs_are_stored_and_an_older_release_refuses_them() {
        let with = Tiering { overlay_epoch: Epoch(300), mode_epoch: Epoch(7), ..filled() };
        let bytes = postcard::to_allocvec(&with).unwrap();
        assert_eq!(postcard::from_bytes::<Tiering>(&bytes).unwrap(), with);
        assert!(postcard::from_bytes::<WithoutEpochs>(&bytes).is_err());
        for cut in 0..bytes.len() {
            assert!(postcard::from_bytes::<Tiering>(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        let mut newer = postcard::to_allocvec(&filled()).unwrap();
        *newer.last_mut().unwrap() |= 1 << 2;
        assert!(postcard::from_bytes::<Tiering>(&newer).is_err(), "a bit that this release does not know");
    }

    #[test]
    fn grades_decay_from_the_newest_hit_set_on() {
        let tiering = Tiering { hit_set_count: 4, hit_set_grade_decay_rate: 20, ..Tiering::default() };
        assert_eq!(tiering.grade_table(), [800_000, 640_000, 512_000, 409_600]);
        let all = Tiering { hit_set_count: 2, hit_set_grade_decay_rate: 100, ..Tiering::default() };
        assert_eq!(all.grade_table(), [0, 0]);
    }

    #[test]
    fn modes_go_by_their_names() {
        for mode in CacheMode::ALL {
            assert_eq!(CacheMode::parse(mode.as_str()), Some(mode));
        }
        assert_eq!(CacheMode::parse("write"), None);
    }
}
