//! What operators change in the map, once their commands have been checked.

use super::{MapState, Now};
use nacre_types::ids::{Epoch, OsdId, PoolId};
use nacre_types::osdmap::{OsdInfo, OsdMap};

/// Epochs that a new generation leaves out: more than can have been published since the copy was made.
const RESTORED_EPOCH_GAP: u32 = 1_000_000;
/// Pool ids that a new generation leaves out, likewise (rule R2: they are never reused).
const RESTORED_POOL_GAP: i64 = 10_000;

/// How many generations have epochs and pool ids of their own by their number alone.
const MAX_SPACED_GENERATIONS: u32 = 2000;

/// The first map of generation `generation`, after the MapStore was restored from an older copy that held `map` (rule
/// R7). Epochs and pool ids go on above any that the lost history can have used, so that nobody takes the restored map
/// for an old one, and no new pool for one whose copies OSDs still hold; nor do they meet those of a later generation
/// than the copy's that was lost with this restore. OSDs count as down until they boot again.
///
/// `osds` are OSDs that the cluster has by what its operator knows: older PGs wait for them too before they act. OSDs
/// remember one another, so that leaving out some is safe unless those that remember them have lost their disks.
pub fn new_generation(map: &OsdMap, generation: u64, now: Now, osds: &[OsdId]) -> OsdMap {
    let mut restored = map.clone();
    restored.generation = generation;
    let nth = u32::try_from(generation).unwrap_or(u32::MAX).min(MAX_SPACED_GENERATIONS);
    let epoch = map.epoch.0.saturating_add(RESTORED_EPOCH_GAP).max(nth * RESTORED_EPOCH_GAP);
    restored.epoch = Epoch(epoch);
    restored.generation_from = restored.epoch;
    let pool_max = map.pool_max.0.saturating_add(RESTORED_POOL_GAP).max(i64::from(nth) * RESTORED_POOL_GAP);
    restored.pool_max = PoolId(pool_max);
    restored.modified_ns = now.wall_ns;
    for info in restored.osds.values_mut().filter(|info| info.up) {
        info.up = false;
        info.down_at = restored.epoch;
    }
    for osd in osds {
        restored.osds.entry(*osd).or_insert_with(OsdInfo::absent);
        restored.max_osd = restored.max_osd.max(osd.0 + 1);
    }
    restored
}

impl MapState {
    /// Sets the CRUSH weight of a device (16.16 fixed point). Returns whether the hierarchy has it. What has changed in the
    /// hierarchy and is not committed yet stays.
    pub fn set_crush_weight(&mut self, osd: OsdId, weight: u32) -> bool {
        let mut crush = (*self.working.crush).clone();
        let found = crush.reweight_item(&osd.to_string(), weight).is_ok();
        if found {
            self.set_crush(crush);
        }
        found
    }

    /// Sets an OSD's reweight (`osd out`, `osd in`, `osd reweight`). Returns whether there is such an OSD.
    pub fn set_weight(&mut self, now: Now, osd: OsdId, weight: u32) -> bool {
        let Some(info) = self.working.osds.get_mut(&osd) else { return false };
        if info.weight != weight || info.weight_before_auto_out.is_some() {
            info.weight = weight;
            info.weight_before_auto_out = None;
            self.changes.osds.insert(osd);
            if weight > 0 && !info.up {
                self.down_since.insert(osd, now.mono_ms);
            }
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
        // The same old copy once more, after the restored history has gone on.
        let again = new_generation(state.map(), 5, at(6), &[]);
        assert!(again.epoch.0 > restored.epoch.0 + RESTORED_EPOCH_GAP && again.pool_max > restored.pool_max);
    }

    #[test]
    fn reweights_are_published() {
        let mut state = cluster(3);
        assert!(state.set_weight(at(5), OsdId(1), 0) && !state.set_weight(at(5), OsdId(9), 0));
        commit(&mut state, at(6));
        assert!(!state.map().osds[&OsdId(1)].is_in());
        state.set_weight(at(7), OsdId(1), WEIGHT_ONE);
        commit(&mut state, at(8));
        assert!(state.map().osds[&OsdId(1)].is_in());
    }
}
