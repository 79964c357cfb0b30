//! Changes of the map that operators request, after their commands were checked.

use super::{MapState, Now};
use nacre_types::ids::{Epoch, OsdId, PoolId};
use nacre_types::osdmap::{OsdInfo, OsdMap};

/// Epochs that a new generation skips: more than can have been published since the copy was made.
const RESTORED_EPOCH_GAP: u32 = 1_000_000;
/// Pool ids that a new generation skips, likewise (rule R2: they are never reused).
const RESTORED_POOL_GAP: i64 = 10_000;

/// Generations below this are counted, and spaced by [`RESTORED_EPOCH_GAP`]; those above it are seconds since 1970.
const COUNTED_GENERATIONS: u64 = 2_000;
/// The generation, a time in 2023, from which epochs are spaced by [`EPOCHS_PER_SECOND`].
const FIRST_TIMED_GENERATION: u64 = 1_700_000_000;
/// Epochs between two generations, for each second from one to the other.
const EPOCHS_PER_SECOND: u64 = 2;
/// The time alone leads to no epoch beyond this one (in 2053), so that some epochs are left.
const MAX_TIMED_EPOCH: u64 = 3_900_000_000;

/// Returns the first map of generation `generation`, after the MapStore was restored from an older copy that held `map` (rule
/// R7). Epochs and pool ids start above any that the lost history can have used. So no daemon takes the restored map for an old
/// one, and no new pool gets the id of a pool whose copies OSDs still hold. OSDs are down until they boot again. None is lost:
/// an OSD may have come back in the lost history and hold updates acknowledged then. The operator can declare it lost again.
///
/// If one copy is restored twice, the second restore must start beyond the history that followed the first one, which the copy
/// does not contain. The generation, the time of the restore, ensures this: pool ids differ by 10000 for each second between
/// the two. Epochs are 32 bits wide and have no room for that: they differ by 2 for each second. If the first history published
/// more epochs than that on average, the second one uses its newest epochs again. A peer that still has such a map subscribes
/// to the epochs after it. It receives none until they exist, and then changes of a map that it does not have. So an operator
/// who restores a copy twice within minutes has to restart OSDs and clients.
///
/// `osds` are OSDs that belong to the cluster according to its operator: older PGs wait for them too before they act. OSDs
/// remember one another, so leaving some out is safe unless the OSDs that remember them have lost their disks.
pub fn new_generation(map: &OsdMap, generation: u64, now: Now, osds: &[OsdId]) -> OsdMap {
    let mut restored = map.clone();
    restored.generation = generation;
    restored.epoch = Epoch(map.epoch.0.saturating_add(RESTORED_EPOCH_GAP).max(epoch_by_number(generation)));
    restored.generation_from = restored.epoch;
    let by_number = i64::from(u32::try_from(generation).unwrap_or(u32::MAX)) * RESTORED_POOL_GAP;
    restored.pool_max = PoolId(map.pool_max.0.saturating_add(RESTORED_POOL_GAP).max(by_number));
    restored.modified_ns = now.wall_ns;
    for info in restored.osds.values_mut() {
        info.lost_at = Epoch(0);
        if info.up {
            info.up = false;
            info.down_at = restored.epoch;
        }
    }
    for osd in osds {
        restored.osds.entry(*osd).or_insert_with(OsdInfo::never_up);
        restored.max_osd = restored.max_osd.max(osd.0 + 1);
    }
    restored
}

/// The lowest first epoch of a generation, derived from its number alone.
fn epoch_by_number(generation: u64) -> u32 {
    let counted = generation.min(COUNTED_GENERATIONS) * u64::from(RESTORED_EPOCH_GAP);
    let timed = generation.saturating_sub(FIRST_TIMED_GENERATION).saturating_mul(EPOCHS_PER_SECOND);
    u32::try_from(counted.saturating_add(timed).min(MAX_TIMED_EPOCH)).unwrap_or(u32::MAX)
}

impl MapState {
    /// Sets the CRUSH weight of a device (16.16 fixed point). Returns whether the hierarchy contains it. Uncommitted changes of
    /// the hierarchy are kept.
    pub fn set_crush_weight(&mut self, osd: OsdId, weight: u32) -> bool {
        let mut crush = (*self.working.crush).clone();
        let found = crush.reweight_item(&osd.to_string(), weight).is_ok();
        if found {
            self.set_crush(crush);
        }
        found
    }

    /// Sets an OSD's reweight (`osd out`, `osd in`, `osd reweight`). Returns whether the OSD exists. For an OSD that is down,
    /// the time until it is marked out starts when it comes in; while it is out, no time is measured.
    pub fn set_reweight(&mut self, now: Now, osd: OsdId, weight: u32) -> bool {
        let Some(info) = self.working.osds.get_mut(&osd) else { return false };
        let was_in = info.is_in();
        if info.weight != weight || info.weight_before_auto_out.is_some() {
            info.weight = weight;
            info.weight_before_auto_out = None;
            self.changes.osds.insert(osd);
        }
        match (info.is_in(), info.up) {
            (true, false) => {
                self.down_since.entry(osd).or_insert(now.mono_ms);
            }
            _ => {
                self.down_since.remove(&osd);
            }
        }
        if info.is_in() != was_in {
            self.last_in_change_ns = now.wall_ns;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{cluster, commit};
    use super::*;
    use crate::testing::at;
    use nacre_types::osdmap::WEIGHT_ONE;

    #[test]
    fn a_new_generation_reuses_nothing() {
        let state = cluster(3);
        let restored = new_generation(state.map(), 2, at(5), &[OsdId(1), OsdId(7)]);
        assert_eq!((restored.generation, restored.generation_from), (2, restored.epoch));
        assert!(restored.epoch > state.map().epoch && restored.pool_max > state.map().pool_max);
        assert!(restored.osds.values().all(|info| !info.up));
        assert_eq!((restored.osds.len(), restored.max_osd), (4, 8), "osd.7 is waited for although it is new");
        // The same old copy is restored again, after the restored history has continued.
        let again = new_generation(state.map(), 5, at(6), &[]);
        assert!(again.epoch.0 > restored.epoch.0 + RESTORED_EPOCH_GAP && again.pool_max > restored.pool_max);
    }

    #[test]
    fn two_restores_of_one_copy_at_different_times_share_no_pool_ids_and_hardly_epochs() {
        let state = cluster(3);
        let first = 1_800_000_000;
        let at_time = |generation| new_generation(state.map(), generation, at(5), &[]);
        assert_eq!(at_time(first + 1).pool_max.0, at_time(first).pool_max.0 + RESTORED_POOL_GAP);
        assert_eq!(at_time(first + 3_600).epoch.0, at_time(first).epoch.0 + 7_200);
        // Restores can follow each other for as long as there are epochs.
        let latest = at_time(u64::MAX);
        assert_eq!(u64::from(latest.epoch.0), MAX_TIMED_EPOCH);
        let next = new_generation(&latest, u64::MAX, at(6), &[]);
        assert!(next.epoch > latest.epoch && next.pool_max > latest.pool_max);
    }

    #[test]
    fn no_osd_counts_as_lost_after_a_restore() {
        let mut state = cluster(3);
        let lost_at = state.map().epoch;
        state.mark_down(at(5), OsdId(1));
        state.working.osds.get_mut(&OsdId(1)).unwrap().lost_at = lost_at.next();
        commit(&mut state, at(6));
        let restored = new_generation(state.map(), 2, at(7), &[]);
        assert!(restored.osds.values().all(|info| info.lost_at == Epoch(0)));
    }

    #[test]
    fn the_time_until_an_osd_is_marked_out_begins_when_it_comes_in() {
        let mut state = cluster(3);
        state.mark_down(at(1_000), OsdId(1));
        let since = |state: &MapState| state.down_since.get(&OsdId(1)).copied();
        state.set_reweight(at(2_000), OsdId(1), WEIGHT_ONE / 2);
        assert_eq!(since(&state), Some(1_000), "it has been down and in all the time");
        state.set_reweight(at(3_000), OsdId(1), 0);
        assert_eq!(since(&state), None);
        state.set_reweight(at(4_000), OsdId(1), WEIGHT_ONE);
        assert_eq!(since(&state), Some(4_000));
        state.set_reweight(at(4_000), OsdId(2), WEIGHT_ONE / 2);
        assert_eq!(state.down_since.len(), 1, "osd.2 is up");
    }

    #[test]
    fn reweights_are_published() {
        let mut state = cluster(3);
        assert!(state.set_reweight(at(5), OsdId(1), 0) && !state.set_reweight(at(5), OsdId(9), 0));
        commit(&mut state, at(6));
        assert!(!state.map().osds[&OsdId(1)].is_in());
        state.set_reweight(at(7), OsdId(1), WEIGHT_ONE);
        commit(&mut state, at(8));
        assert!(state.map().osds[&OsdId(1)].is_in());
    }
}
