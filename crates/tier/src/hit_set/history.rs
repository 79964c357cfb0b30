//! A PG's hit sets over time: the current one, the sealed ones in memory, and the archive objects in the store.
//!
//! The history does no I/O. Its owner, the PG's primary, drives it:
//!
//! 1. [`HitSetHistory::activate`] when the PG becomes active, with the [`HitSetIndex`] that was stored with the PG. The
//!    owner then reads the archives in [`HitSetHistory::unread`] and hands them to [`HitSetHistory::load`]; it replays
//!    the writes that the PG's log holds after [`HitSetIndex::covered`] with [`HitSetHistory::replay`].
//! 2. [`HitSetHistory::record`] for each access.
//! 3. When that says so and archives can be written, [`HitSetHistory::rotate`]. One transaction writes the new archive,
//!    removes those that are not kept, and stores [`HitSetHistory::index`]. Where archives can't be written yet, the
//!    owner waits: the current set goes on.
//! 4. [`HitSetHistory::reconfigure`] when the pool's variables change, then [`HitSetHistory::trim`].
//!
//! `hit_set_count` archives are kept in the store. The current set and the `hit_set_count - 1` sealed sets before it are
//! in memory: `hit_set_count` sets answer questions. Each holds at most `osd_hit_set_max_size` objects.

use super::{HitSet, SealedHitSet};
use nacre_types::encoding::{DecodeError, Versioned};
use nacre_types::object::SNAP_HEAD;
use nacre_types::pool::{HitSetKind, Tiering};
use nacre_types::{Eversion, ObjectId, PgId, time};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The namespace of archive objects (`osd_hit_set_namespace`).
pub const ARCHIVE_NAMESPACE: &str = nacre_types::tier::INTERNAL_NAMESPACE;

/// The false positive probability where the pool's comes to nothing.
const FALLBACK_FPP: f64 = 0.01;
/// The highest that a Bloom filter can be laid out for.
const MOST_FPP: f64 = 0.9;

/// Times in names of archives are in microseconds.
const NS_PER_US: u64 = 1000;
const NS_PER_S: u64 = 1_000_000_000;

/// The most sets that a PG keeps, whatever the pool's `hit_set_count` says.
pub const MOST_SETS: u32 = 1024;

/// What decides how accesses are recorded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HitSetConfig {
    /// `hit_set_type`, with `hit_set_fpp`.
    pub kind: HitSetKind,
    /// `hit_set_period` in seconds.
    pub period_s: u32,
    /// `hit_set_count`.
    pub count: u32,
    /// `osd_hit_set_min_size`: a Bloom filter is made for at least so many objects.
    pub min_size: u32,
    /// `osd_hit_set_max_size`: a set takes at most so many objects.
    pub max_size: u32,
}

impl HitSetConfig {
    /// The pool's variables with the OSD's options. The count is limited to [`MOST_SETS`].
    pub fn new(tiering: &Tiering, min_size: u32, max_size: u32) -> HitSetConfig {
        HitSetConfig {
            kind: tiering.hit_set,
            period_s: tiering.hit_set_period_s,
            count: tiering.hit_set_count.min(MOST_SETS),
            min_size,
            max_size,
        }
    }

    /// Whether accesses are recorded: type, period and count are all set.
    pub fn is_enabled(&self) -> bool {
        self.kind != HitSetKind::None && self.period_s > 0 && self.count > 0
    }

    /// A Bloom filter's probability: the pool's holds for all sets together, so that each gets its share, in whole
    /// millionths.
    fn fpp_per_set(&self, fpp: f64) -> f64 {
        let share = (fpp / f64::from(self.count) * 1e6).round() / 1e6;
        if share > 0.0 { share.min(MOST_FPP) } else { FALLBACK_FPP }
    }

    /// A new set that begins at `now_ns`. Bloom filters are made for as many objects as the set before would have seen
    /// in a full period, within the options' limits.
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
pub struct Archive {
    /// When its first access could be recorded, in nanoseconds since 1970.
    pub begin_ns: u64,
    /// When it was sealed.
    pub end_ns: u64,
}

impl Archive {
    /// The object that holds it: Ceph's name, in the internal namespace, at the hash of the PG itself. Times in names are
    /// in GMT also where the pool's `use_gmt_hitset` is off, since local times occur twice when summer time ends.
    pub fn object(&self, pg: PgId) -> ObjectId {
        let name = format!("hit_set_{pg}_archive_{}_{}", stamp(self.begin_ns), stamp(self.end_ns));
        ObjectId::with_hash(pg.pool, ARCHIVE_NAMESPACE, "", &name, SNAP_HEAD, pg.seed)
    }
}

/// `2026-11-21 20:57:43.602914Z`, the form from before Octopus in which Ceph still names hit sets.
fn stamp(ns: u64) -> String {
    let text = time::stamp(ns);
    if text.contains('T') { time::stamp_z(ns).replace('T', " ") } else { text }
}

/// The archives of a PG, as stored with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HitSetIndex {
    /// Accesses up to this version of the PG are in an archive.
    pub covered: Eversion,
    /// The archives, the oldest first.
    pub archives: VecDeque<Archive>,
}

impl Versioned for HitSetIndex {
    const NAME: &'static str = "HitSetIndex";
}

/// What [`HitSetHistory::record`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Whether the current set contained the object before this access: what promotion asks for.
    pub was_in_current: bool,
    /// Whether the current set is full or its period is over.
    pub rotation_due: bool,
}

/// What one transaction does when the current set is archived.
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
    /// The oldest first, by the beginning of their periods.
    sealed: VecDeque<(Archive, SealedHitSet)>,
    index: HitSetIndex,
}

impl HitSetHistory {
    /// The history when the PG becomes active. Accesses since the last archive are lost with the primary before; the
    /// writes among them are for [`HitSetHistory::replay`].
    pub fn activate(pg: PgId, config: HitSetConfig, index: HitSetIndex, now_ns: u64) -> HitSetHistory {
        let mut history = HitSetHistory { pg, config, current: None, sealed: VecDeque::new(), index };
        history.begin(now_ns);
        history
    }

    /// Begins a set. Its period begins where the last archive ends if the clock went back, so that names stay unique.
    fn begin(&mut self, now_ns: u64) {
        let last_end = self.index.archives.back().map_or(0, |archive| archive.end_ns);
        let set = self.config.new_set(now_ns, self.current.as_ref());
        self.current = set.map(|set| CurrentSet { set, begin_ns: now_ns.max(last_end) });
    }

    /// What is to be stored with the PG.
    pub fn index(&self) -> &HitSetIndex {
        &self.index
    }

    /// Whether accesses are recorded.
    pub fn is_enabled(&self) -> bool {
        self.current.is_some()
    }

    /// Sealed sets that are kept in memory.
    fn most_in_memory(&self) -> usize {
        self.config.count.saturating_sub(1) as usize
    }

    /// The archives that memory lacks, the newest first.
    pub fn unread(&self) -> Vec<Archive> {
        if !self.is_enabled() {
            return Vec::new();
        }
        let wanted = self.index.archives.iter().rev().take(self.most_in_memory());
        wanted.filter(|wanted| self.sealed.iter().all(|(archive, _)| archive != *wanted)).copied().collect()
    }

    /// Takes the data of an archive that was read. An archive that is not kept any more is ignored.
    ///
    /// # Errors
    /// Where the data is no hit set. The history goes on without it.
    pub fn load(&mut self, archive: &Archive, data: &[u8]) -> Result<(), DecodeError> {
        if !self.unread().contains(archive) {
            return Ok(());
        }
        let set = SealedHitSet::decode(data)?;
        let at = self.sealed.partition_point(|(other, _)| other < archive);
        self.sealed.insert(at, (*archive, set));
        Ok(())
    }

    /// Records a write that the PG's log tells of.
    pub fn replay(&mut self, object: &ObjectId) {
        if let Some(current) = &mut self.current {
            current.set.insert(object);
        }
    }

    /// Records an access. Each request counts once, also where it is executed again after it waited.
    pub fn record(&mut self, object: &ObjectId, now_ns: u64) -> Recorded {
        let Some(current) = &mut self.current else {
            return Recorded { was_in_current: false, rotation_due: false };
        };
        let was_in_current = current.set.contains(object);
        if !was_in_current {
            current.set.insert(object);
        }
        Recorded { was_in_current, rotation_due: self.is_rotation_due(now_ns) }
    }

    /// Whether the current set is full or its period is over.
    pub fn is_rotation_due(&self, now_ns: u64) -> bool {
        let period_ns = u64::from(self.config.period_s) * NS_PER_S;
        self.current
            .as_ref()
            .is_some_and(|set| set.set.is_full() || set.begin_ns.saturating_add(period_ns) <= now_ns)
    }

    /// Seals the current set and begins the next one; `None` where nothing is recorded. `last_update` is the PG's last
    /// version, whose accesses the sealed set has.
    pub fn rotate(&mut self, now_ns: u64, last_update: Eversion) -> Option<Rotation> {
        let begin_ns = self.current.as_ref()?.begin_ns;
        let archive = Archive { begin_ns, end_ns: now_ns.max(begin_ns + NS_PER_US) };
        // The next set is made for what this one saw.
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

    /// Drops what is more than `hit_set_count`, which is everything where nothing is recorded. Returns the archive
    /// objects to remove in the transaction that stores the index.
    pub fn trim(&mut self) -> Vec<ObjectId> {
        let (archives, in_memory) =
            if self.is_enabled() { (self.config.count as usize, self.most_in_memory()) } else { (0, 0) };
        self.sealed.drain(..self.sealed.len().saturating_sub(in_memory));
        let superfluous = self.index.archives.len().saturating_sub(archives);
        self.index.archives.drain(..superfluous).map(|archive| archive.object(self.pg)).collect()
    }

    /// Takes the pool's changed variables. The current set is dropped only where sets of another kind or probability are
    /// to be recorded, or none. Archives that are not kept any more are for [`HitSetHistory::trim`].
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

    /// The sealed sets in memory, the newest first.
    pub fn sealed(&self) -> impl ExactSizeIterator<Item = &SealedHitSet> {
        self.sealed.iter().rev().map(|(_, set)| set)
    }
}

#[cfg(test)]
mod tests;
