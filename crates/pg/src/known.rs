//! OSDs that may hold copies: a record of the maps that an OSD received, across MapStore restores (R7).
//!
//! A restored map does not list OSDs that joined after the copy was made, but they may hold the newest records. So every OSD
//! durably keeps the ids that the maps of earlier generations listed, and reports those that the current map does not list to
//! members that ask for records. The host stores this record before it lets any PG act on the map that changed it.

use nacre_types::encoding::Versioned;
use nacre_types::ids::OsdId;
use nacre_types::osdmap::OsdMap;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The OSDs that this OSD knows from maps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KnownOsds {
    /// The newest generation seen; 0 for none.
    generation: u64,
    /// The OSDs that the newest map lists.
    listed: BTreeSet<OsdId>,
    /// The OSDs that maps of earlier generations listed and no map of this generation has listed yet.
    earlier: BTreeSet<OsdId>,
}

impl Versioned for KnownOsds {
    const NAME: &'static str = "known OSDs";
}

impl KnownOsds {
    /// Records a map. Returns whether the record changed and must be made durable.
    pub fn on_map(&mut self, map: &OsdMap) -> bool {
        let news = map.generation > self.generation;
        if map.generation < self.generation
            || !news && self.listed.len() == map.osds.len() && self.listed.iter().eq(map.osds.keys())
        {
            return false;
        }
        let before = std::mem::replace(&mut self.listed, map.osds.keys().copied().collect());
        if news {
            self.generation = map.generation;
            self.earlier.extend(before);
        }
        // Once this generation lists an OSD, its maps decide: an operator may remove it permanently.
        self.earlier.retain(|osd| !map.osds.contains_key(osd));
        true
    }

    /// OSDs of earlier generations that the current generation has not listed.
    pub fn unlisted(&self) -> impl Iterator<Item = OsdId> + '_ {
        self.earlier.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::osdmap::OsdInfo;
    use uuid::Uuid;

    fn map(generation: u64, osds: &[u32]) -> OsdMap {
        let mut map = OsdMap::new(Uuid::from_u128(7), 0, Default::default());
        map.generation = generation;
        map.osds = osds.iter().map(|id| (OsdId(*id), OsdInfo::never_up())).collect();
        map
    }

    fn unlisted(known: &KnownOsds) -> Vec<u32> {
        known.unlisted().map(|osd| osd.0).collect()
    }

    #[test]
    fn osds_of_a_lost_history_are_remembered_until_they_are_back() {
        let mut known = KnownOsds::default();
        assert!(known.on_map(&map(1, &[0, 1])) && !known.on_map(&map(1, &[0, 1])));
        assert!(known.on_map(&map(1, &[0, 1, 2, 3])));
        // An operator removed osd.1: no PG waits for it.
        assert!(known.on_map(&map(1, &[0, 2, 3])));
        assert!(known.on_map(&map(2, &[0])));
        assert_eq!(unlisted(&known), [2, 3]);
        assert!(known.on_map(&map(2, &[0, 2])));
        assert!(known.on_map(&map(2, &[0])));
        assert_eq!(unlisted(&known), [3], "osd.2 came back and was removed for good");
        assert!(known.on_map(&map(4, &[])));
        assert_eq!(unlisted(&known), [0, 3]);
        assert!(!known.on_map(&map(2, &[5])), "maps of an earlier generation tell nothing");
    }
}
