//! Which OSDs may hold copies: what an OSD remembers of the maps that it saw, across MapStore restores (R7).
//!
//! A restored map does not list OSDs that joined after the copy was made, yet they may hold the newest records. So every
//! OSD keeps, durably, the ids that the maps of earlier generations listed, and tells those that the present map lacks
//! to whoever asks for records. The host stores this record before it lets any PG act on the map it came from.

use nacre_types::encoding::Versioned;
use nacre_types::ids::OsdId;
use nacre_types::osdmap::OsdMap;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// OSDs that this one has heard of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KnownOsds {
    /// The newest generation seen; 0 for none.
    generation: u64,
    /// What the newest map lists.
    listed: BTreeSet<OsdId>,
    /// What maps of earlier generations listed and no map of this one has listed yet.
    earlier: BTreeSet<OsdId>,
}

impl Versioned for KnownOsds {
    const NAME: &'static str = "known OSDs";
}

impl KnownOsds {
    /// Notes a map; returns whether that is news, to be made durable.
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
        // Once this generation lists an OSD, its maps decide: an operator may remove it for good.
        self.earlier.retain(|osd| !map.osds.contains_key(osd));
        true
    }

    /// OSDs of earlier generations that the present one has not listed.
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
        map.osds = osds.iter().map(|id| (OsdId(*id), OsdInfo::absent())).collect();
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
        // osd.1 was removed by an operator: nobody waits for it.
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
