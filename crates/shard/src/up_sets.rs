//! The PGs that CRUSH wants on this OSD: up sets of all PGs, computed again only when an input of CRUSH has changed.
//!
//! Most epochs of a busy cluster are membership changes; none of them changes an up set.

use nacre_types::id_map::IdMap;
use nacre_types::ids::{OsdId, PgId};
use nacre_types::osdmap::OsdMap;
use nacre_types::placement::PgMapper;
use std::sync::Arc;

/// The up sets of one map.
#[derive(Debug, Default)]
pub struct UpSets {
    of: Option<Arc<OsdMap>>,
    sets: Arc<IdMap<PgId, Vec<OsdId>>>,
}

impl UpSets {
    /// The up sets, preferred primary first, of all PGs of `map`; shared with the previous call if no relevant input changed.
    pub fn update(&mut self, map: &Arc<OsdMap>) -> Arc<IdMap<PgId, Vec<OsdId>>> {
        let same = self.of.as_ref().is_some_and(|before| same_placement(before, map));
        if !same {
            let mut mapper = PgMapper::new(map);
            self.sets = Arc::new(map.pg_ids().map(|pg| (pg, mapper.up(pg))).collect());
        }
        self.of = Some(Arc::clone(map));
        Arc::clone(&self.sets)
    }
}

/// Whether both maps have the same inputs for CRUSH.
fn same_placement(a: &OsdMap, b: &OsdMap) -> bool {
    Arc::ptr_eq(&a.crush, &b.crush)
        && a.max_osd == b.max_osd
        && a.pg_upmap == b.pg_upmap
        && a.pg_upmap_items == b.pg_upmap_items
        && a.pools.len() == b.pools.len()
        && a.pools.iter().zip(&b.pools).all(|((ida, pa), (idb, pb))| {
            ida == idb
                && (Arc::ptr_eq(pa, pb)
                    || (pa.size, pa.pg_num, pa.pgp_num, pa.crush_rule, pa.flags, pa.kind)
                        == (pb.size, pb.pg_num, pb.pgp_num, pb.crush_rule, pb.flags, pb.kind))
        })
        && a.osds.len() == b.osds.len()
        && a.osds.iter().zip(&b.osds).all(|((ida, oa), (idb, ob))| {
            ida == idb && (oa.up, oa.weight, oa.primary_affinity) == (ob.up, ob.weight, ob.primary_affinity)
        })
}
