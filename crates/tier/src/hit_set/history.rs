//! A PG's hit sets over time: the current one, the sealed ones in memory, and the archive objects in the store.
//!
//! The history does no I/O. Its owner, the PG's primary, drives it:
//!
//! 1. [`HitSetHistory::activate`] when the PG becomes active, with the [`HitSetIndex`] that was stored with the PG. The owner then reads
//!    the archives in [`HitSetHistory::unread`] and passes them to [`HitSetHistory::load`]. It passes the writes in the PG's log after
//!    [`HitSetIndex::covered`] to [`HitSetHistory::replay`].
//! 2. [`HitSetHistory::record`] for each access.
//! 3. When that reports a due rotation and archives can be written, [`HitSetHistory::rotate`]. One transaction writes the new archive,
//!    removes the superfluous ones, and stores [`HitSetHistory::index`]. While archives can't be written, the owner waits and the current
//!    set continues.
//! 4. [`HitSetHistory::reconfigure`] when the pool's variables change, then [`HitSetHistory::trim`].
//!
//! The store keeps `hit_set_count` archives. Memory holds the current set and the `hit_set_count - 1` sealed sets before it, so queries use
//! `hit_set_count` sets. Each holds at most `osd_hit_set_max_size` objects.

use super::{HitSet, SealedHitSet};
use nacre_types::encoding::{DecodeError, Versioned};
use nacre_types::object::SNAP_HEAD;
use nacre_types::pool::{HitSetKind, Tiering};
use nacre_types::{Eversion, ObjectId, PgId, time};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The namespace of archive objects (`osd_hit_set_namespace`).
pub const ARCHIVE_NAMESPACE: &str = nacre_types::tier::INTERNAL_NAMESPACE;

/// The false positive probability if the pool's share rounds to 0.
const FALLBACK_FPP: f64 = 0.01;
/// The highest false positive probability for which a Bloom filter can be sized.
const MAX_FPP: f64 = 0.9;

/// Times in the names of archives are in microseconds.
const NS_PER_US: u64 = 1000;
const NS_PER_S: u64 = 1_000_000_000;

/// The maximum number of sets that a PG keeps, regardless of the pool's `hit_set_count`.
pub const MAX_SETS: u32 = 1024;

/// The configuration of a PG's hit sets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HitSetConfig {
    /// `hit_set_type`, with `hit_set_fpp`.
    pub kind: HitSetKind,
    /// `hit_set_period` in seconds.
    pub period_s: u32,
    /// `hit_set_count`.
    pub count: u32,
    /// `osd_hit_set_min_size`: a Bloom filter is sized for at least this many objects.
    pub min_size: u32,
    /// `osd_hit_set_max_size`: a set records at most this many objects.
    pub max_size: u32,
}

impl HitSetConfig {
    /// Combines the pool's variables with the OSD's options. The count is limited to [`MAX_SETS`].
    pub fn new(tiering: &Tiering, min_size: u32, max_size: u32) -> HitSetConfig {
        HitSetConfig {
            kind: tiering.hit_set,
            period_s: tiering.hit_set_period_s,
            count: tiering.hit_set_count.min(MAX_SETS),
            min_size,
            max_size,
        }
    }

    /// Whether accesses are recorded: type, period and count are all set.
    pub fn is_enabled(&self) -> bool {
        self.kind != HitSetKind::None && self.period_s > 0 && self.count > 0
    }

    /// The probability of one Bloom filter: the pool's is for all sets together, so each gets its share, in whole millionths.
    fn fpp_per_set(&self, fpp: f64) -> f64 {
        let share = (fpp / f64::from(self.count) * 1e6).round() / 1e6;
        if share > 0.0 { share.min(MAX_FPP) } else { FALLBACK_FPP }
    }

    /// Creates a set that begins at `now_ns`. Bloom filters are sized for as many objects as the previous set would have recorded in a full
    /// period, within the options' limits.
    fn new_set(&self, now_ns: u64, before: Option<&CurrentSet>) -> Option<HitSet> {
        if !self.is_enabled() {
            return None;
        }
        match self.kind {
            HitSetKind::None => None,
            HitSetKind::ExplicitHash => Some(HitSet::explicit_hash(self.max_size)),
            HitSetKind::ExplicitObject => Some(HitSet::explicit_object(self.max_size)),
            HitSetKind::Bloom { fpp } => {
                let expected = before.map_or(0, |before| {
                    let period = u128::from(self.period_s) * u128::from(NS_PER_S);
                    let duration = u128::from(now_ns.saturating_sub(before.begin_ns).max(1));
                    u32::try_from(u128::from(before.set.unique()) * period / duration).unwrap_or(u32::MAX)
                });
                let target = expected.max(self.min_size).min(self.max_size);
                Some(HitSet::bloom(target, self.fpp_per_set(fpp), now_ns / NS_PER_S))
            }
        }
    }
}

/// A sealed set in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HitSetArchive {
    /// When its recording began, in nanoseconds since 1970.
    pub begin_ns: u64,
    /// When it was sealed.
    pub end_ns: u64,
}

impl HitSetArchive {
    /// Returns the archive's object: Ceph's name, in the internal namespace, at the hash of the PG itself. Times in names are in GMT even
    /// if the pool's `use_gmt_hitset` is off, because local times occur twice when summer time ends.
    pub fn object(&self, pg: PgId) -> ObjectId {
        let name = format!("hit_set_{pg}_archive_{}_{}", stamp(self.begin_ns), stamp(self.end_ns));
        ObjectId::with_hash(pg.pool, ARCHIVE_NAMESPACE, "", &name, SNAP_HEAD, pg.seed)
    }
}

/// `2026-11-21 20:57:43.602914Z`, the format from before Octopus that Ceph still uses in the names of hit sets.
fn stamp(ns: u64) -> String {
    let text = time::stamp(ns);
    if text.contains('T') { time::stamp_z(ns).replace('T', " ") } else { text }
}

/// The archives of a PG, as stored with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HitSetIndex {
    /// Accesses up to this version of the PG are archived.
    pub covered: Eversion,
    /// The archives, oldest first.
    pub archives: VecDeque<HitSetArchive>,
}

impl Versioned for HitSetIndex {
    const NAME: &'static str = "HitSetIndex";
}

/// The result of [`HitSetHistory::record`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessRecord {
    /// Whether the current set contained the object before this access, for promotion.
    pub was_in_current: bool,
    /// Whether the current set is full or its period has ended.
    pub rotation_due: bool,
}

/// The changes of the transaction that archives the current set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// The archive object to create.
    pub object: ObjectId,
    /// Its data.
    pub data: Vec<u8>,
    /// Archive objects to remove.
    pub remove: Vec<ObjectId>,
}

#[derive(Clone, Debug)]
struct CurrentSet {
    set: HitSet,
    begin_ns: u64,
}

/// The hit sets of one PG on its primary.
#[derive(Clone, Debug)]
pub struct HitSetHistory {
    pg: PgId,
    config: HitSetConfig,
    current: Option<CurrentSet>,
    /// Oldest first, by the start of their periods.
    sealed: VecDeque<(HitSetArchive, SealedHitSet)>,
    index: HitSetIndex,
}

impl HitSetHistory {
    /// Creates the history when the PG becomes active. Accesses since the last archive are lost with the previous primary;
    /// [`HitSetHistory::replay`] restores the writes among them.
    pub fn activate(pg: PgId, config: HitSetConfig, index: HitSetIndex, now_ns: u64) -> HitSetHistory {
        let mut history = HitSetHistory { pg, config, current: None, sealed: VecDeque::new(), index };
        history.begin(now_ns);
        history
    }

    /// Starts a set. If the clock went back, its period begins at the end of the last archive, so that names stay unique.
    fn begin(&mut self, now_ns: u64) {
        let last_end = self.index.archives.back().map_or(0, |archive| archive.end_ns);
        let set = self.config.new_set(now_ns, self.current.as_ref());
        self.current = set.map(|set| CurrentSet { set, begin_ns: now_ns.max(last_end) });
    }

    /// The index to be stored with the PG.
    pub fn index(&self) -> &HitSetIndex {
        &self.index
    }

    /// Whether accesses are recorded.
    pub fn is_enabled(&self) -> bool {
        self.current.is_some()
    }

    /// Maximum number of sealed sets in memory.
    fn most_in_memory(&self) -> usize {
        self.config.count.saturating_sub(1) as usize
    }

    /// The archives that are not in memory but should be, newest first.
    pub fn unread(&self) -> Vec<HitSetArchive> {
        if !self.is_enabled() {
            return Vec::new();
        }
        let wanted = self.index.archives.iter().rev().take(self.most_in_memory());
        wanted.filter(|wanted| self.sealed.iter().all(|(archive, _)| archive != *wanted)).copied().collect()
    }

    /// Loads the data of an archive that was read. An archive that is no longer kept is ignored.
    ///
    /// # Errors
    /// If the data is not a hit set. The history continues without it.
    pub fn load(&mut self, archive: &HitSetArchive, data: &[u8]) -> Result<(), DecodeError> {
        if !self.unread().contains(archive) {
            return Ok(());
        }
        let set = SealedHitSet::decode(data)?;
        let at = self.sealed.partition_point(|(other, _)| other < archive);
        self.sealed.insert(at, (*archive, set));
        Ok(())
    }

    /// Records a write from the PG's log.
    pub fn replay(&mut self, object: &ObjectId) {
        if let Some(current) = &mut self.current {
            current.set.insert(object);
        }
    }

    /// Records an access. Each request counts once, even if it is executed again after it waited.
    pub fn record(&mut self, object: &ObjectId, now_ns: u64) -> AccessRecord {
        let Some(current) = &mut self.current else {
            return AccessRecord { was_in_current: false, rotation_due: false };
        };
        let was_in_current = current.set.contains(object);
        if !was_in_current {
            current.set.insert(object);
        }
        AccessRecord { was_in_current, rotation_due: self.is_rotation_due(now_ns) }
    }

    /// Whether the current set is full or its period has ended.
    pub fn is_rotation_due(&self, now_ns: u64) -> bool {
        let period_ns = u64::from(self.config.period_s) * NS_PER_S;
        self.current
            .as_ref()
            .is_some_and(|set| set.set.is_full() || set.begin_ns.saturating_add(period_ns) <= now_ns)
    }

    /// Seals the current set and starts the next one; `None` if nothing is recorded. `last_update` is the PG's last version, up to which
    /// the sealed set has the accesses.
    pub fn rotate(&mut self, now_ns: u64, last_update: Eversion) -> Option<Rotation> {
        let begin_ns = self.current.as_ref()?.begin_ns;
        let archive = HitSetArchive { begin_ns, end_ns: now_ns.max(begin_ns + NS_PER_US) };
        // The next set is sized by the current one.
        let next = self.config.new_set(archive.end_ns, self.current.as_ref());
        let ended = std::mem::replace(
            &mut self.current,
            next.map(|set| CurrentSet { set, begin_ns: archive.end_ns }),
        )?;
        let sealed = ended.set.seal();
        let data = sealed.encode();
        self.sealed.push_back((archive, sealed));
        self.index.archives.push_back(archive);
        self.index.covered = last_update;
        Some(Rotation { object: archive.object(self.pg), data, remove: self.trim() })
    }

    /// Drops the sets beyond `hit_set_count`, or all of them if nothing is recorded. Returns the archive objects that the transaction that
    /// stores the index must remove.
    pub fn trim(&mut self) -> Vec<ObjectId> {
        let (archives, in_memory) =
            if self.is_enabled() { (self.config.count as usize, self.most_in_memory()) } else { (0, 0) };
        self.sealed.drain(..self.sealed.len().saturating_sub(in_memory));
        let superfluous = self.index.archives.len().saturating_sub(archives);
        self.index.archives.drain(..superfluous).map(|archive| archive.object(self.pg)).collect()
    }

    /// Applies the pool's changed variables. The current set is dropped only if the kind or probability changes or recording ends.
    /// [`HitSetHistory::trim`] removes superfluous archives.
    pub fn reconfigure(&mut self, config: HitSetConfig, now_ns: u64) {
        let before = std::mem::replace(&mut self.config, config);
        if before.kind != config.kind || self.current.is_some() != config.is_enabled() {
            self.begin(now_ns);
        }
    }

    /// Whether the current set contains the object.
    pub fn is_in_current(&self, object: &ObjectId) -> bool {
        self.current.as_ref().is_some_and(|current| current.set.contains(object))
    }

    /// The sealed sets in memory, newest first.
    pub fn sealed(&self) -> impl ExactSizeIterator<Item = &SealedHitSet> {
        self.sealed.iter().rev().map(|(_, set)| set)
    }
}

#[cfg(test)]
mod tests;
