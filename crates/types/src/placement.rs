//! Maps a PG to the OSDs that should hold it: CRUSH, then the existence of OSDs, upmap overrides, up states and primary
//! affinity, in the order and with the results of Ceph's `OSDMap::pg_to_up_acting_osds`.
//!
//! Pure: [`OsdStates`] supplies the states. The OSDs that *currently* hold a PG are its membership, which is separate.

use crate::hash::{pg_of_hash, placement_seed};
use crate::ids::{OsdId, PgId};
use crate::osdmap::{OsdMap, WEIGHT_ONE};
use crate::pool::{Pool, PoolKind, flag};
use nacre_crush::{CrushMap, ITEM_NONE, RuleType, Workspace, hash32_2};

/// The states of OSDs that placement needs.
pub trait OsdStates {
    /// In/out reweights by OSD id, 16.16. 0 is out, as are ids beyond the end.
    fn weights(&self) -> &[u32];
    /// Whether the map has this OSD.
    fn exists(&self, osd: i32) -> bool;
    /// Whether it exists and is up.
    fn is_up(&self, osd: i32) -> bool;
    /// Its primary affinity, 16.16; [`WEIGHT_ONE`] by default.
    fn primary_affinity(&self, osd: i32) -> u32;
}

/// The parameters of a pool that placement needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolPlacement {
    /// The pool's id.
    pub pool: i64,
    /// Number of PGs to which objects are hashed.
    pub pg_num: u32,
    /// Number of PGs that placement distinguishes.
    pub pgp_num: u32,
    /// Number of copies or chunks.
    pub size: u32,
    /// The pool's `crush_rule`.
    pub rule: u8,
    /// Replicated pools close gaps; erasure-coded ones keep positions.
    pub kind: RuleType,
    /// Whether the pool's id is included in the hash of the seed.
    pub hashpspool: bool,
}

impl PoolPlacement {
    /// Returns the placement parameters of `pool`.
    pub fn of(id: crate::ids::PoolId, pool: &Pool) -> Self {
        Self {
            pool: id.0,
            pg_num: pool.pg_num,
            pgp_num: pool.pgp_num,
            size: pool.size,
            rule: pool.crush_rule,
            kind: match pool.kind {
                PoolKind::Replicated => RuleType::Replicated,
                PoolKind::Erasure => RuleType::Erasure,
            },
            hashpspool: pool.has_flag(flag::HASHPSPOOL),
        }
    }

    /// Whether the OSDs after a missing one move up.
    fn can_shift(&self) -> bool {
        self.kind == RuleType::Replicated
    }
}

/// The operator's overrides for one PG.
#[derive(Clone, Copy, Debug, Default)]
pub struct Upmap<'a> {
    /// `pg-upmap`: all OSDs.
    pub all: Option<&'a [i32]>,
    /// `pg-upmap-items`: replacements (from, to).
    pub items: &'a [(i32, i32)],
}

/// The placement of a PG.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PgMapping {
    /// The result of CRUSH and overrides, whether up or not. Holes are [`ITEM_NONE`].
    pub raw: Vec<i32>,
    /// The OSDs of `raw` that are up: without gaps for replicated pools, with holes for erasure-coded ones.
    pub up: Vec<i32>,
    /// The preferred primary; `None` if no OSD is up.
    pub up_primary: Option<i32>,
}

/// Maps PG `seed` of `pool`. `work` reuses buffers between calls.
pub fn map_pg(
    crush: &CrushMap,
    pool: &PoolPlacement,
    seed: u32,
    osds: &impl OsdStates,
    upmap: Upmap<'_>,
    work: &mut Workspace,
) -> PgMapping {
    let pps = placement_seed(seed, pool.pgp_num, pool.pool, pool.hashpspool);
    let mut raw = Vec::new();
    if let Some(rule) = crush.find_rule(pool.rule, pool.kind, pool.size) {
        let args = crush.choose_args_with_fallback(pool.pool);
        crush.do_rule_with(work, rule, pps, pool.size as usize, osds.weights(), args, &mut raw);
    }
    keep_or_leave_hole(&mut raw, pool.can_shift(), |osd| osds.exists(osd));
    apply_upmap(&mut raw, osds.weights(), upmap);

    let mut up = raw.clone();
    keep_or_leave_hole(&mut up, pool.can_shift(), |osd| osds.is_up(osd));
    let mut up_primary = up.iter().copied().find(|osd| *osd != ITEM_NONE);
    if let Some(at) = preferred_primary(&up, pps, osds) {
        up_primary = Some(up[at]);
        if pool.can_shift() {
            up[..=at].rotate_right(1);
        }
    }
    PgMapping { raw, up, up_primary }
}

/// Removes items that fail `keep`, or replaces them by holes if positions matter.
fn keep_or_leave_hole(items: &mut Vec<i32>, shift: bool, keep: impl Fn(i32) -> bool) {
    if shift {
        items.retain(|&osd| keep(osd));
    } else {
        items.iter_mut().filter(|osd| !keep(**osd)).for_each(|osd| *osd = ITEM_NONE);
    }
}

/// Applies the overrides. One with a target that is marked out is ignored.
fn apply_upmap(raw: &mut Vec<i32>, weights: &[u32], upmap: Upmap<'_>) {
    let is_marked_out =
        |osd: i32| osd != ITEM_NONE && usize::try_from(osd).is_ok_and(|o| weights.get(o) == Some(&0));
    if let Some(all) = upmap.all {
        if all.iter().any(|&osd| is_marked_out(osd)) {
            return;
        }
        *raw = all.to_vec();
    }
    for &(from, to) in upmap.items {
        if !raw.contains(&to)
            && !is_marked_out(to)
            && let Some(at) = raw.iter().position(|&osd| osd == from)
        {
            raw[at] = to;
        }
    }
}

/// Returns the position of the primary by primary affinity, or `None` if all have the default. An OSD of affinity `a` declines
/// a share `1 - a` of the PGs, pseudo-randomly by PG. If every one declines, the first is chosen.
fn preferred_primary(up: &[i32], pps: u32, osds: &impl OsdStates) -> Option<usize> {
    let is_osd = |osd: &i32| *osd != ITEM_NONE;
    if up.iter().copied().filter(is_osd).all(|osd| osds.primary_affinity(osd) == WEIGHT_ONE) {
        return None;
    }
    let accepts = |osd: i32| {
        let affinity = osds.primary_affinity(osd);
        affinity >= WEIGHT_ONE || hash32_2(pps, osd as u32) >> 16 < affinity
    };
    up.iter().position(|osd| is_osd(osd) && accepts(*osd)).or_else(|| up.iter().position(is_osd))
}

/// Maps PGs of one OSDMap. Keep it for mapping many of them.
pub struct PgMapper<'a> {
    map: &'a OsdMap,
    states: MapStates<'a>,
    work: Workspace,
}

struct MapStates<'a> {
    map: &'a OsdMap,
    weights: Vec<u32>,
}

impl MapStates<'_> {
    fn info(&self, osd: i32) -> Option<&crate::osdmap::OsdInfo> {
        self.map.osds.get(&OsdId(u32::try_from(osd).ok()?))
    }
}

impl OsdStates for MapStates<'_> {
    fn weights(&self) -> &[u32] {
        &self.weights
    }

    fn exists(&self, osd: i32) -> bool {
        self.info(osd).is_some()
    }

    fn is_up(&self, osd: i32) -> bool {
        self.info(osd).is_some_and(|info| info.up)
    }

    fn primary_affinity(&self, osd: i32) -> u32 {
        self.info(osd).map_or(WEIGHT_ONE, |info| info.primary_affinity)
    }
}

impl<'a> PgMapper<'a> {
    /// Creates a mapper for this epoch.
    pub fn new(map: &'a OsdMap) -> Self {
        let devices = map.crush.max_devices().max(0) as u32;
        let mut weights = vec![0; devices.min(map.max_osd) as usize];
        for (id, info) in map.osds.range(..OsdId(weights.len() as u32)) {
            weights[id.0 as usize] = info.weight;
        }
        Self { map, states: MapStates { map, weights }, work: Workspace::new() }
    }

    /// Maps `pg`; empty if its pool does not exist. `pg` may be a raw PG (an object's full hash).
    pub fn map(&mut self, pg: PgId) -> PgMapping {
        let Some(pool) = self.map.pools.get(&pg.pool) else { return PgMapping::default() };
        let placement = PoolPlacement::of(pg.pool, pool);
        let actual = PgId::new(pg.pool, pg_of_hash(pg.seed, pool.pg_num));
        let as_item = |osd: &OsdId| osd.0 as i32;
        let all: Option<Vec<i32>> =
            self.map.pg_upmap.get(&actual).map(|osds| osds.iter().map(as_item).collect());
        let items: Vec<(i32, i32)> = self
            .map
            .pg_upmap_items
            .get(&actual)
            .map_or_else(Vec::new, |pairs| pairs.iter().map(|(a, b)| (as_item(a), as_item(b))).collect());
        let upmap = Upmap { all: all.as_deref(), items: &items };
        map_pg(&self.map.crush, &placement, pg.seed, &self.states, upmap, &mut self.work)
    }

    /// Returns the result of CRUSH alone for `pg`, without OSDs that do not exist.
    pub fn raw_without_upmap(&mut self, pg: PgId) -> Vec<i32> {
        let Some(pool) = self.map.pools.get(&pg.pool) else { return Vec::new() };
        let placement = PoolPlacement::of(pg.pool, pool);
        map_pg(&self.map.crush, &placement, pg.seed, &self.states, Upmap::default(), &mut self.work).raw
    }

    /// Returns `raw` after replacements (from, to), unless one of them goes to an OSD that is marked out.
    pub fn apply_upmap_items(&self, raw: &[i32], items: &[(i32, i32)]) -> Vec<i32> {
        let mut mapping = raw.to_vec();
        apply_upmap(&mut mapping, self.states.weights(), Upmap { all: None, items });
        mapping
    }

    /// Returns the up OSDs of `pg` without holes, the preferred primary first.
    pub fn up(&mut self, pg: PgId) -> Vec<OsdId> {
        let mapping = self.map(pg);
        let mut up: Vec<OsdId> =
            mapping.up.iter().filter(|osd| **osd != ITEM_NONE).map(|osd| OsdId(*osd as u32)).collect();
        if let Some(at) = mapping.up_primary.and_then(|p| up.iter().position(|osd| osd.0 as i32 == p)) {
            up[..=at].rotate_right(1);
        }
        up
    }
}

impl OsdMap {
    /// Maps a PG to its up set and preferred primary. For many PGs use a [`PgMapper`].
    pub fn pg_to_up(&self, pg: PgId) -> PgMapping {
        PgMapper::new(self).map(pg)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Osds {
        weights: Vec<u32>,
        down: Vec<i32>,
        affinity: Vec<u32>,
    }

    impl OsdStates for Osds {
        fn weights(&self) -> &[u32] {
            &self.weights
        }
        fn exists(&self, osd: i32) -> bool {
            (osd as usize) < self.weights.len()
        }
        fn is_up(&self, osd: i32) -> bool {
            self.exists(osd) && !self.down.contains(&osd)
        }
        fn primary_affinity(&self, osd: i32) -> u32 {
            self.affinity.get(osd as usize).copied().unwrap_or(WEIGHT_ONE)
        }
    }

    fn flat_map(osds: i32) -> CrushMap {
        let mut map = CrushMap::new_cluster("osd").unwrap();
        for osd in 0..osds {
            let loc = [("root".to_string(), "default".to_string())].into();
            map.insert_item(osd, WEIGHT_ONE, &format!("osd.{osd}"), &loc).unwrap();
        }
        map
    }

    fn pool(kind: RuleType) -> PoolPlacement {
        PoolPlacement { pool: 1, pg_num: 64, pgp_num: 64, size: 3, rule: 0, kind, hashpspool: true }
    }

    fn all_in(n: usize) -> Osds {
        Osds { weights: vec![WEIGHT_ONE; n], down: vec![], affinity: vec![] }
    }

    #[test]
    fn down_osds_close_up_in_replicated_pools() {
        let (crush, mut work) = (flat_map(5), Workspace::new());
        let osds = Osds { down: vec![2], ..all_in(5) };
        for seed in 0..64 {
            let m = map_pg(&crush, &pool(RuleType::Replicated), seed, &osds, Upmap::default(), &mut work);
            assert_eq!(m.raw.len(), 3);
            let expected: Vec<i32> = m.raw.iter().copied().filter(|o| *o != 2).collect();
            assert_eq!((m.up_primary, m.up), (Some(expected[0]), expected));
        }
    }

    #[test]
    fn upmap_moves_a_replica_unless_its_target_is_out() {
        let (crush, mut work) = (flat_map(6), Workspace::new());
        let pool = pool(RuleType::Replicated);
        let mut osds = all_in(6);
        let before = map_pg(&crush, &pool, 7, &osds, Upmap::default(), &mut work);
        let to = (0..6).find(|o| !before.raw.contains(o)).unwrap();
        let items = [(before.raw[1], to)];
        let moved = map_pg(&crush, &pool, 7, &osds, Upmap { all: None, items: &items }, &mut work);
        assert_eq!(moved.raw, [before.raw[0], to, before.raw[2]]);
        osds.weights[to as usize] = 0;
        let refused = map_pg(&crush, &pool, 7, &osds, Upmap { all: None, items: &items }, &mut work);
        assert!(!refused.raw.contains(&to));
        let all =
            map_pg(&crush, &pool, 7, &all_in(6), Upmap { all: Some(&[5, 4, 3]), items: &[] }, &mut work);
        assert_eq!(all.up, [5, 4, 3]);
    }

    #[test]
    fn an_osdmap_maps_as_its_parts_do() {
        use crate::ids::{Epoch, PoolId};
        let mut map = OsdMap::new(uuid::Uuid::nil(), 0, flat_map(6));
        map.max_osd = 6;
        for id in 0..6 {
            let weight = if id == 3 { 0 } else { WEIGHT_ONE };
            map.osds.insert(OsdId(id), crate::osdmap::OsdInfo { up: id != 1, weight, ..osd_info() });
        }
        map.pools.insert(PoolId(1), Pool::replicated("p", 3, 2, 0, 64, Epoch(1)).into());
        map.pg_upmap_items.insert(PgId::new(PoolId(1), 5), vec![(OsdId(0), OsdId(4)), (OsdId(2), OsdId(5))]);
        let mut states = Osds { down: vec![1], ..all_in(6) };
        states.weights[3] = 0;
        let (mut mapper, mut work) = (PgMapper::new(&map), Workspace::new());
        for seed in 0..64 {
            let items: &[(i32, i32)] = if seed == 5 { &[(0, 4), (2, 5)] } else { &[] };
            let upmap = Upmap { all: None, items };
            let expected = map_pg(&map.crush, &pool(RuleType::Replicated), seed, &states, upmap, &mut work);
            let pg = PgId::new(PoolId(1), seed);
            assert_eq!(mapper.map(pg), expected);
            assert_eq!(map.pg_to_up(pg), expected);
            assert!(expected.up.iter().all(|osd| *osd != 1 && *osd != 3));
            let up: Vec<i32> = mapper.up(pg).into_iter().map(|osd| osd.0 as i32).collect();
            assert_eq!((up.first().copied(), up.len()), (expected.up_primary, expected.up.len()));
        }
        assert_eq!(mapper.map(PgId::new(PoolId(9), 0)), PgMapping::default(), "no such pool");
    }

    fn osd_info() -> crate::osdmap::OsdInfo {
        use crate::ids::Epoch;
        crate::osdmap::OsdInfo {
            uuid: uuid::Uuid::nil(),
            up: true,
            weight: WEIGHT_ONE,
            weight_before_auto_out: None,
            primary_affinity: WEIGHT_ONE,
            addr: None,
            incarnation: None,
            boot_nonce: 0,
            up_from: Epoch(0),
            up_thru: Epoch(0),
            down_at: Epoch(0),
            lost_at: Epoch(0),
            full: false,
            metadata: Default::default(),
        }
    }

    #[test]
    fn an_osd_without_affinity_is_primary_of_nothing() {
        let (crush, mut work) = (flat_map(4), Workspace::new());
        let osds = Osds { affinity: vec![WEIGHT_ONE, 0, WEIGHT_ONE, WEIGHT_ONE / 2], ..all_in(4) };
        let mut primaries = [0; 4];
        for seed in 0..64 {
            let m = map_pg(&crush, &pool(RuleType::Replicated), seed, &osds, Upmap::default(), &mut work);
            assert_eq!(m.up_primary, Some(m.up[0]));
            primaries[m.up[0] as usize] += 1;
        }
        assert_eq!(primaries[1], 0);
        assert!(primaries[3] < primaries[0] && primaries[3] > 0, "{primaries:?}");
    }
}
