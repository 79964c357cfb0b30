//! Determines which single objects the agent may flush or evict.
//!
//! An object's temperature is estimated from the hit sets, as in Ceph. The current set adds a million if it contains the object. Each
//! sealed set that contains it, newest first and at most `hit_set_search_last_n` of them, adds a grade that decreases by
//! `hit_set_grade_decay_rate` percent from set to set.
//!
//! The agent adds the temperatures of the objects it checks to a [`TemperatureHistogram`], whose bins are powers of two. It evicts an
//! object if the share of objects in colder bins is below the evict effort: the coldest share is evicted, in whole bins.
//!
//! This differs from Reef, which compares `1000000 - upper` with the effort, where `upper` is the share of objects that are *at most* as
//! warm. That is 0 for the hottest bin, so that at a low effort it evicts the hottest objects.

use crate::MICRO;
use crate::hit_set::history::HitSetHistory;
use nacre_types::ObjectId;

/// The grade of the current hit set.
const CURRENT_GRADE: u32 = MICRO as u32;
const NS_PER_S: u64 = 1_000_000_000;

/// The grades of sealed hit sets (`pg_pool_t::calc_grade_table`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grades {
    /// The factor from one set's grade to that of the set before it.
    kept: f64,
    search_last_n: usize,
}

impl Grades {
    /// Creates the grades for the pool's `hit_set_grade_decay_rate` (0 to 100) and `hit_set_search_last_n`.
    pub fn new(decay_rate: u32, search_last_n: u32) -> Grades {
        Grades { kept: 1.0 - f64::from(decay_rate.min(100)) / 100.0, search_last_n: search_last_n as usize }
    }

    /// The grades of the sealed sets, newest first. Each is truncated to a whole number before the next is computed.
    fn of_sealed(&self) -> impl Iterator<Item = u32> {
        let next = |grade: &u32| Some((f64::from(*grade) * self.kept) as u32);
        std::iter::successors(Some(CURRENT_GRADE), next).skip(1)
    }

    /// Returns the object's temperature.
    pub fn temperature(&self, history: &HitSetHistory, object: &ObjectId) -> u32 {
        let current = if history.is_in_current(object) { CURRENT_GRADE } else { 0 };
        let graded = history.sealed().zip(self.of_sealed());
        let found = graded.filter(|(set, _)| set.contains(object)).map(|(_, grade)| grade);
        found.take(self.search_last_n).fold(current, u32::saturating_add)
    }
}

/// The number of objects by temperature (`pow2_hist_t`). Bin `n` has the temperatures of `n` bits: 0, 1, 2 to 3, 4 to 7 and so on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemperatureHistogram {
    bins: [u64; u32::BITS as usize + 1],
}

impl Default for TemperatureHistogram {
    fn default() -> TemperatureHistogram {
        TemperatureHistogram { bins: [0; _] }
    }
}

fn bin(temperature: u32) -> usize {
    (u32::BITS - temperature.leading_zeros()) as usize
}

impl TemperatureHistogram {
    /// Adds an object.
    pub fn add(&mut self, temperature: u32) {
        self.bins[bin(temperature)] += 1;
    }

    /// Halves all counts. The agent calls it every [`HALFLIFE_ROUNDS`](crate::agent_policy::HALFLIFE_ROUNDS) rounds.
    pub fn decay(&mut self) {
        self.bins.iter_mut().for_each(|count| *count /= 2);
    }

    /// Returns the shares of objects in colder bins and in bins that are not warmer, in millionths: the quantised position of a
    /// temperature. Both are 0 for an empty histogram.
    pub fn position_micro(&self, temperature: u32) -> (u64, u64) {
        let sum = |bins: &[u64]| bins.iter().map(|count| u128::from(*count)).sum::<u128>();
        let total = sum(&self.bins).max(1);
        let share = |count| (count * u128::from(MICRO) / total) as u64;
        let bin = bin(temperature);
        (share(sum(&self.bins[..bin])), share(sum(&self.bins[..=bin])))
    }

    /// Whether the temperature is among the coldest share of `effort_micro`.
    pub fn is_cold(&self, temperature: u32, effort_micro: u32) -> bool {
        self.position_micro(temperature).0 < u64::from(effort_micro)
    }
}

/// The state of an object in the cache that the agent needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Candidate {
    /// When this OSD last changed it (`local_mtime`), in nanoseconds since 1970.
    pub local_mtime_ns: u64,
    /// It has changes that the base lacks. Whiteouts are dirty until the base's object is removed.
    pub is_dirty: bool,
    /// It is pinned (`rados cache pin`).
    pub is_pinned: bool,
    /// Whether clients watch it.
    pub has_watchers: bool,
    /// Whether a flush, a promotion or parked requests block it.
    pub is_blocked: bool,
    /// Whether it is internal to the PG: an archived hit set.
    pub is_internal: bool,
}

/// Why the agent skips an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// It is an archived hit set.
    Internal,
    /// It is clean: there is nothing to flush.
    Clean,
    /// It is dirty: evicting it would lose changes.
    Dirty,
    /// It is pinned.
    Pinned,
    /// Clients watch it.
    Watched,
    /// Another operation blocks it.
    Blocked,
    /// It is younger than `cache_min_flush_age` or `cache_min_evict_age`.
    TooYoung,
    /// Too many other objects are colder.
    TooHot,
}

impl Candidate {
    /// Whether the agent may flush it. In a full cache `min_age_s` (`cache_min_flush_age`) does not apply.
    pub fn may_flush(&self, now_ns: u64, min_age_s: u32, is_full: bool) -> Result<(), SkipReason> {
        let obstacles = [
            (self.is_internal, SkipReason::Internal),
            (!self.is_dirty, SkipReason::Clean),
            (self.is_pinned, SkipReason::Pinned),
            (self.is_blocked, SkipReason::Blocked),
            (!is_full && self.is_younger(now_ns, min_age_s), SkipReason::TooYoung),
        ];
        first(obstacles)
    }

    /// Whether the object's state permits its eviction. In a full cache `min_age_s` (`cache_min_evict_age`) does not apply; otherwise
    /// [`TemperatureHistogram::is_cold`] must hold too.
    pub fn may_evict(&self, now_ns: u64, min_age_s: u32, is_full: bool) -> Result<(), SkipReason> {
        let obstacles = [
            (self.is_internal, SkipReason::Internal),
            (self.is_dirty, SkipReason::Dirty),
            (self.has_watchers, SkipReason::Watched),
            (self.is_blocked, SkipReason::Blocked),
            (self.is_pinned, SkipReason::Pinned),
            (!is_full && self.is_younger(now_ns, min_age_s), SkipReason::TooYoung),
        ];
        first(obstacles)
    }

    fn is_younger(&self, now_ns: u64, min_age_s: u32) -> bool {
        self.local_mtime_ns.saturating_add(u64::from(min_age_s) * NS_PER_S) > now_ns
    }
}

fn first<const N: usize>(obstacles: [(bool, SkipReason); N]) -> Result<(), SkipReason> {
    obstacles.into_iter().find(|(holds, _)| *holds).map_or(Ok(()), |(_, skip)| Err(skip))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hit_set::history::{HitSetConfig, HitSetIndex};
    use nacre_types::pool::HitSetKind;
    use nacre_types::{Eversion, PgId, PoolId};
    use proptest::prelude::*;

    const S: u64 = NS_PER_S;

    fn object(n: u32) -> ObjectId {
        ObjectId::new(PoolId(1), "", "", &format!("object-{n}"))
    }

    /// A history of 4 sets. Object n is in the sets whose bits are set in n; the current set has the lowest bit.
    fn history() -> HitSetHistory {
        let config = HitSetConfig {
            kind: HitSetKind::ExplicitObject,
            period_s: 60,
            count: 4,
            min_size: 1,
            max_size: 100,
        };
        let mut history = HitSetHistory::activate(PgId::new(PoolId(1), 0), config, HitSetIndex::default(), S);
        for age in (0..4).rev() {
            for n in (0..16).filter(|n| n >> age & 1 == 1) {
                history.record(&object(n), S);
            }
            if age > 0 {
                history.rotate(S * (10 - age), Eversion::default()).unwrap();
            }
        }
        history
    }

    #[test]
    fn temperatures_are_cephs() {
        let history = history();
        let temperature = |grades: &Grades, n| grades.temperature(&history, &object(n));
        // Grades of 800 000, 640 000 and 512 000.
        let grades = Grades::new(20, 3);
        assert_eq!(
            [0b0000, 0b0001, 0b0010, 0b0100, 0b1000, 0b1111].map(|n| temperature(&grades, n)),
            [0, 1_000_000, 800_000, 640_000, 512_000, 2_952_000]
        );
        // Only sets that contain the object count for the number of sets searched.
        let one = Grades::new(20, 1);
        assert_eq!([0b0001, 0b1111, 0b1100].map(|n| temperature(&one, n)), [1_000_000, 1_800_000, 640_000]);
        assert_eq!(temperature(&Grades::new(20, 0), 0b1111), 1_000_000);
        // Without decay each set counts equally; with full decay the sealed sets do not count.
        assert_eq!(temperature(&Grades::new(0, 4), 0b1111), 4_000_000);
        assert_eq!(temperature(&Grades::new(100, 4), 0b1111), 1_000_000);
    }

    #[test]
    fn grades_are_cut_to_whole_numbers_at_each_step() {
        // 1 - 33 / 100.0 is slightly below 0.67.
        let grades: Vec<u32> = Grades::new(33, 6).of_sealed().take(5).collect();
        assert_eq!(grades, [669_999, 448_899, 300_762, 201_510, 135_011]);
    }

    #[test]
    fn positions_are_those_of_pow2_hist() {
        let mut histogram = TemperatureHistogram::default();
        assert_eq!(histogram.position_micro(5), (0, 0));
        histogram.add(1);
        histogram.add(1);
        assert_eq!(histogram.position_micro(0), (0, 0));
        histogram.add(0);
        assert_eq!(histogram.position_micro(0), (0, 333_333));
        assert_eq!(histogram.position_micro(1), (333_333, 1_000_000));
        histogram.add(10);
        assert_eq!(histogram.position_micro(4), (750_000, 750_000));
        assert_eq!(histogram.position_micro(8), histogram.position_micro(15));
        assert_eq!(histogram.position_micro(u32::MAX), (1_000_000, 1_000_000));
    }

    #[test]
    fn the_coldest_are_evicted_first() {
        let mut histogram = TemperatureHistogram::default();
        for (objects, temperature) in [(70, 0), (20, 500_000), (10, 2_000_000)] {
            (0..objects).for_each(|_| histogram.add(temperature));
        }
        let cold = |effort| [0, 500_000, 2_000_000].map(|temperature| histogram.is_cold(temperature, effort));
        assert_eq!(cold(0), [false, false, false]);
        assert_eq!(cold(100_000), [true, false, false]);
        assert_eq!(cold(700_000), [true, false, false]);
        assert_eq!(cold(700_001), [true, true, false]);
        assert_eq!(cold(1_000_000), [true, true, true]);
    }

    #[test]
    fn old_counts_fade() {
        let mut histogram = TemperatureHistogram::default();
        (0..8).for_each(|_| histogram.add(0));
        histogram.decay();
        (0..4).for_each(|_| histogram.add(1));
        assert_eq!(histogram.position_micro(0), (0, 500_000));
        (0..4).for_each(|_| histogram.decay());
        assert_eq!(histogram, TemperatureHistogram::default());
    }

    #[test]
    fn ages_hold_until_the_cache_is_full() {
        let dirty = Candidate { local_mtime_ns: 100 * S, is_dirty: true, ..Candidate::default() };
        assert_eq!(dirty.may_flush(159 * S, 60, false), Err(SkipReason::TooYoung));
        assert_eq!(dirty.may_flush(160 * S, 60, false), Ok(()));
        assert_eq!(dirty.may_flush(100 * S, 60, true), Ok(()));
        assert_eq!(dirty.may_flush(100 * S, 0, false), Ok(()));
        let clean = Candidate { is_dirty: false, ..dirty };
        assert_eq!(clean.may_evict(159 * S, 60, false), Err(SkipReason::TooYoung));
        assert_eq!(clean.may_evict(160 * S, 60, false), Ok(()));
        assert_eq!(clean.may_evict(100 * S, 60, true), Ok(()));
    }

    #[test]
    fn what_must_stay_stays_in_a_full_cache_too() {
        let clean = Candidate::default();
        for (candidate, skip) in [
            (Candidate { is_dirty: true, ..clean }, SkipReason::Dirty),
            (Candidate { is_pinned: true, ..clean }, SkipReason::Pinned),
            (Candidate { has_watchers: true, ..clean }, SkipReason::Watched),
            (Candidate { is_blocked: true, ..clean }, SkipReason::Blocked),
            (Candidate { is_internal: true, ..clean }, SkipReason::Internal),
        ] {
            assert_eq!(candidate.may_evict(S, 0, true), Err(skip));
        }
        let dirty = Candidate { is_dirty: true, ..clean };
        for (candidate, skip) in [
            (clean, SkipReason::Clean),
            (Candidate { is_pinned: true, ..dirty }, SkipReason::Pinned),
            (Candidate { is_blocked: true, ..dirty }, SkipReason::Blocked),
            (Candidate { is_internal: true, ..dirty }, SkipReason::Internal),
        ] {
            assert_eq!(candidate.may_flush(S, 0, true), Err(skip));
        }
        assert_eq!(Candidate { has_watchers: true, ..dirty }.may_flush(S, 0, true), Ok(()));
    }

    proptest! {
        #[test]
        fn whoever_is_warmer_is_evicted_later(
            added in proptest::collection::vec(0..3_000_000_u32, 1..100),
            one: u32, other: u32, effort in 0..1_000_001_u32,
        ) {
            let mut histogram = TemperatureHistogram::default();
            added.iter().for_each(|temperature| histogram.add(*temperature));
            let (colder, warmer) = (one.min(other), one.max(other));
            prop_assert!(histogram.is_cold(colder, effort) || !histogram.is_cold(warmer, effort));
            // Some object can always be evicted, and all of them with the full effort.
            let coldest = *added.iter().min().unwrap();
            prop_assert!(effort == 0 || histogram.is_cold(coldest, effort));
            prop_assert!(added.iter().all(|temperature| histogram.is_cold(*temperature, 1_000_000)));
        }
    }
}
