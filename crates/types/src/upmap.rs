//! The upmap balancer: finds `pg-upmap-items` entries that even out the numbers of PGs on OSDs (`osdmaptool --upmap`), and
//! invalid or ineffective entries to be removed (`--upmap-cleanup`).
//!
//! The search is that of Ceph 16.2's `OSDMap::calc_pg_upmaps`: it tries small changes one after another, first from the fullest
//! OSD, and keeps a change only if it lowers the sum of squared deviations. Without [`BalanceParams::shuffle`] the result is
//! identical to Ceph's. Pure: the map itself does not change.

use crate::ids::{OsdId, PgId, PoolId};
use crate::osdmap::{OsdMap, WEIGHT_ONE};
use crate::placement::PgMapper;
use crate::pool::PoolKind;
use nacre_crush::remap::PgImbalance;
use nacre_crush::{ITEM_NONE, RuleType};
use std::collections::{BTreeMap, BTreeSet};

/// Number of consecutive changes without progress before the search continues with the underfull OSDs.
const DEFAULT_RETRIES: u64 = 100;

/// A change of a PG's `pg-upmap-items`.
pub type ItemChanges = BTreeMap<PgId, Option<Vec<(OsdId, OsdId)>>>;

/// Reorders PGs.
pub type Shuffle<'a> = &'a mut dyn FnMut(&mut [PgId]);

/// The parameters of a balance.
pub struct BalanceParams<'a> {
    /// Number of PGs by which an OSD may exceed or fall below its share; at least 1.
    pub max_deviation: u32,
    /// The maximum number of changes.
    pub max_changes: usize,
    /// Pools whose PGs count; all pools if empty.
    pub pools: &'a BTreeSet<PoolId>,
    /// `osd_calc_pg_upmaps_aggressively`: tries PGs in random order and continues after a change that does not help.
    pub shuffle: Option<Shuffle<'a>>,
    /// `osd_calc_pg_upmaps_local_fallback_retries`.
    pub retries: u64,
}

impl<'a> BalanceParams<'a> {
    /// Returns Ceph's defaults, without random order.
    pub fn new(pools: &'a BTreeSet<PoolId>) -> BalanceParams<'a> {
        BalanceParams { max_deviation: 5, max_changes: 10, pools, shuffle: None, retries: DEFAULT_RETRIES }
    }
}

/// The result of [`OsdMap::calc_pg_upmaps`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BalanceResult {
    /// New entries, and entries to remove.
    pub items: ItemChanges,
    /// Number of changes; several may concern one PG.
    pub changes: usize,
    /// Whether there is no OSD on which to place PGs.
    pub no_weight: bool,
}

/// Entries to remove or to shorten.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleanup {
    /// PGs whose `pg-upmap` is to be removed.
    pub upmaps: BTreeSet<PgId>,
    /// Changes of `pg-upmap-items`.
    pub items: ItemChanges,
}

type PgsByOsd = BTreeMap<i32, BTreeSet<PgId>>;

/// The deviation of each OSD from its share.
#[derive(Clone, Default)]
struct Deviations {
    by_osd: BTreeMap<i32, f32>,
    /// The emptiest first; the lower id first if equal.
    ordered: Vec<(f32, i32)>,
    squares: f32,
    max: f32,
}

impl Deviations {
    fn of(pgs_by_osd: &PgsByOsd, shares: &BTreeMap<i32, f32>, pgs_per_weight: f32) -> Deviations {
        let mut out = Deviations::default();
        for (osd, pgs) in pgs_by_osd {
            // OSDs outside the rules' roots have no share.
            let Some(share) = shares.get(osd) else { continue };
            let deviation = pgs.len() as f32 - share * pgs_per_weight;
            out.by_osd.insert(*osd, deviation);
            out.ordered.push((deviation, *osd));
            out.squares += deviation * deviation;
            out.max = out.max.max(deviation.abs());
        }
        out.ordered.sort_by(|a, b| a.0.total_cmp(&b.0));
        out
    }
}

/// A tentative change.
struct Trial {
    pgs_by_osd: PgsByOsd,
    pg: PgId,
    /// The PG's new items; if empty, its entry is removed.
    items: Vec<(OsdId, OsdId)>,
}

impl OsdMap {
    /// Finds `pg-upmap-items` that bring the OSDs' numbers of PGs closer to their shares.
    pub fn calc_pg_upmaps<'a>(&'a self, balance: BalanceParams<'a>) -> BalanceResult {
        Balancer::new(self, balance).map_or_else(
            || BalanceResult { no_weight: true, ..BalanceResult::default() },
            |mut balancer| {
                balancer.run();
                BalanceResult { items: balancer.changed, changes: balancer.changes, no_weight: false }
            },
        )
    }

    /// Finds upmap entries that are invalid (the PG does not exist, they violate the rule, or an OSD is out or elsewhere) or
    /// have no effect.
    pub fn upmap_cleanup(&self) -> Cleanup {
        let mut out = Cleanup::default();
        let mut mapper = PgMapper::new(self);
        let mut shares: BTreeMap<u32, BTreeMap<i32, f32>> = BTreeMap::new();
        let pgs: Vec<PgId> = self.pg_upmap.keys().chain(self.pg_upmap_items.keys()).copied().collect();
        for pg in pgs {
            let kept = self.kept_items(pg, &mut mapper, &mut shares);
            match kept {
                None => {
                    if self.pg_upmap.contains_key(&pg) {
                        out.upmaps.insert(pg);
                    }
                    if self.pg_upmap_items.contains_key(&pg) {
                        out.items.insert(pg, None);
                    }
                }
                Some(items) => {
                    let now = self.pg_upmap_items.get(&pg);
                    if now.is_some_and(|now| *now != items) {
                        out.items.insert(pg, Some(items));
                    }
                }
            }
        }
        out
    }

    /// Returns the items of a PG that are to be kept, or `None` if its entries are invalid.
    fn kept_items(
        &self,
        pg: PgId,
        mapper: &mut PgMapper<'_>,
        shares: &mut BTreeMap<u32, BTreeMap<i32, f32>>,
    ) -> Option<Vec<(OsdId, OsdId)>> {
        let pool = self.pools.get(&pg.pool).filter(|pool| pg.seed < pool.pg_num)?;
        let rule = self.rule_of(pg.pool)?;
        let (raw, up) = (mapper.raw_without_upmap(pg), mapper.map(pg).raw);
        self.crush.verify_upmap(rule, pool.size, &up).ok()?;
        let shares = shares.entry(rule).or_insert_with(|| self.crush.rule_weight_shares(rule));
        let has_share = |osd: &i32| shares.get(osd).is_some_and(|share| self.reweight(*osd) * share != 0.0);
        if !up.iter().all(has_share) {
            return None;
        }
        let is_raw = |osds: &[OsdId]| osds.iter().map(|osd| osd.0 as i32).eq(raw.iter().copied());
        if let Some(all) = self.pg_upmap.get(&pg)
            && (is_raw(all) || all.len() != pool.size as usize)
        {
            return None;
        }
        let Some(items) = self.pg_upmap_items.get(&pg) else { return Some(Vec::new()) };
        let is_out =
            |osd: OsdId| osd.0 < self.max_osd && self.osds.get(&osd).is_none_or(|info| !info.is_in());
        let worth = |(from, to): &&(OsdId, OsdId)| raw.contains(&(from.0 as i32)) && !is_out(*to);
        let kept: Vec<(OsdId, OsdId)> = items.iter().filter(worth).copied().collect();
        if kept.is_empty() { None } else { Some(kept) }
    }

    fn rule_of(&self, pool_id: PoolId) -> Option<u32> {
        let pool = self.pools.get(&pool_id)?;
        let kind = match pool.kind {
            PoolKind::Replicated => RuleType::Replicated,
            PoolKind::Erasure => RuleType::Erasure,
        };
        self.crush.find_rule(pool.crush_rule, kind, pool.size)
    }

    /// The in/out weight; 1.0 means fully in.
    fn reweight(&self, osd: i32) -> f32 {
        let info = u32::try_from(osd).ok().and_then(|id| self.osds.get(&OsdId(id)));
        info.map_or(0.0, |info| info.weight as f32 / WEIGHT_ONE as f32)
    }

    /// Returns the number of PGs on each OSD (up set).
    pub fn pg_count_by_osd(&self, pools: &BTreeSet<PoolId>) -> BTreeMap<OsdId, usize> {
        let mut counts = BTreeMap::new();
        for (osd, pgs) in count(self, &mut PgMapper::new(self), pools) {
            counts.extend(u32::try_from(osd).ok().map(|osd| (OsdId(osd), pgs.len())));
        }
        counts
    }
}

fn count(map: &OsdMap, mapper: &mut PgMapper<'_>, pools: &BTreeSet<PoolId>) -> PgsByOsd {
    let mut out = PgsByOsd::new();
    let counted = map.pools.iter().filter(|(id, _)| pools.is_empty() || pools.contains(id));
    for (id, pool) in counted {
        for seed in 0..pool.pg_num {
            let pg = PgId::new(*id, seed);
            for osd in mapper.map(pg).up.into_iter().filter(|osd| *osd != ITEM_NONE) {
                out.entry(osd).or_default().insert(pg);
            }
        }
    }
    out
}

struct Balancer<'a> {
    map: &'a OsdMap,
    max_deviation: f32,
    max_changes: usize,
    pools: &'a BTreeSet<PoolId>,
    shuffle: Option<Shuffle<'a>>,
    retries: u64,
    mapper: PgMapper<'a>,
    /// The current items.
    items: BTreeMap<PgId, Vec<(OsdId, OsdId)>>,
    changed: ItemChanges,
    changes: usize,
    shares: BTreeMap<i32, f32>,
    pgs_per_weight: f32,
    pgs_by_osd: PgsByOsd,
    deviations: Deviations,
    raw: BTreeMap<PgId, Vec<i32>>,
}

impl<'a> Balancer<'a> {
    /// Returns `None` if no OSD has a share.
    fn new(map: &'a OsdMap, balance: BalanceParams<'a>) -> Option<Balancer<'a>> {
        let mut mapper = PgMapper::new(map);
        let mut pgs_by_osd = count(map, &mut mapper, balance.pools);
        let mut shares: BTreeMap<i32, f32> = BTreeMap::new();
        let (mut total_weight, mut total_pgs) = (0.0_f32, 0_u32);
        for (id, pool) in &map.pools {
            if !balance.pools.is_empty() && !balance.pools.contains(id) {
                continue;
            }
            total_pgs = total_pgs.saturating_add(pool.size.saturating_mul(pool.pg_num));
            let Some(rule) = map.rule_of(*id) else { continue };
            for (osd, share) in map.crush.rule_weight_shares(rule) {
                let share = map.reweight(osd) * share;
                if share != 0.0 {
                    *shares.entry(osd).or_insert(0.0) += share;
                    total_weight += share;
                }
            }
        }
        if total_weight == 0.0 {
            return None;
        }
        for osd in shares.keys() {
            pgs_by_osd.entry(*osd).or_default();
        }
        let pgs_per_weight = total_pgs as f32 / total_weight;
        let deviations = Deviations::of(&pgs_by_osd, &shares, pgs_per_weight);
        Some(Balancer {
            map,
            max_deviation: balance.max_deviation.max(1) as f32,
            max_changes: balance.max_changes,
            pools: balance.pools,
            shuffle: balance.shuffle,
            retries: balance.retries,
            mapper,
            items: map.pg_upmap_items.clone(),
            changed: ItemChanges::new(),
            changes: 0,
            shares,
            pgs_per_weight,
            pgs_by_osd,
            deviations,
            raw: BTreeMap::new(),
        })
    }

    fn run(&mut self) {
        if self.deviations.max <= self.max_deviation {
            return;
        }
        let mut skip_overfull = false;
        for _ in 0..self.max_changes {
            let Some(fullness) = Fullness::of(&self.deviations, self.max_deviation) else { return };
            let (mut to_skip, mut retried) = (BTreeSet::new(), 0);
            loop {
                let skip = skip_overfull && !fullness.underfull.is_empty();
                let relieved = if skip { None } else { self.relieve_overfull(&fullness, &to_skip) };
                let Some(trial) = relieved.or_else(|| self.fill_underfull(&fullness, &to_skip)) else {
                    if self.shuffle.is_none() || !skip_overfull {
                        return;
                    }
                    skip_overfull = false;
                    break;
                };
                let next = Deviations::of(&trial.pgs_by_osd, &self.shares, self.pgs_per_weight);
                if next.squares < self.deviations.squares {
                    self.accept(trial, next);
                    if self.deviations.max <= self.max_deviation {
                        return;
                    }
                    break;
                }
                if self.shuffle.is_none() {
                    return;
                }
                retried += 1;
                if retried >= self.retries {
                    // Overfull and underfull OSDs are handled alternately.
                    skip_overfull = !skip_overfull;
                    break;
                }
                to_skip.insert(trial.pg);
            }
        }
    }

    fn accept(&mut self, trial: Trial, deviations: Deviations) {
        let Trial { pgs_by_osd, pg, items } = trial;
        (self.pgs_by_osd, self.deviations) = (pgs_by_osd, deviations);
        self.changes += 1;
        if items.is_empty() {
            self.items.remove(&pg);
            self.changed.insert(pg, None);
        } else {
            self.items.insert(pg, items.clone());
            self.changed.insert(pg, Some(items));
        }
    }

    /// Returns the PG without the items that `drop` selects, or `None` if it selects none.
    fn without_items(&self, pg: PgId, drop: impl Fn(&(OsdId, OsdId)) -> bool) -> Option<Trial> {
        let now = self.items.get(&pg)?;
        let (gone, items): (Vec<_>, Vec<_>) = now.iter().partition(|item| drop(item));
        if gone.is_empty() {
            return None;
        }
        let mut pgs_by_osd = self.pgs_by_osd.clone();
        for (from, to) in gone {
            move_pg(&mut pgs_by_osd, pg, to.0 as i32, from.0 as i32);
        }
        Some(Trial { pgs_by_osd, pg, items })
    }

    /// Finds a change that removes a PG from an overfull OSD, the fullest first: it removes an existing item that moved one
    /// there, or adds a new item.
    fn relieve_overfull(&mut self, fullness: &Fullness, to_skip: &BTreeSet<PgId>) -> Option<Trial> {
        let fullest: Vec<(f32, i32)> = self.deviations.ordered.iter().rev().copied().collect();
        for (deviation, osd) in fullest {
            if !fullness.less_overfull && deviation <= self.max_deviation {
                break;
            }
            let held = self.pgs_by_osd.get(&osd).into_iter().flatten();
            let mut pgs: Vec<PgId> = held.filter(|pg| !to_skip.contains(pg)).copied().collect();
            if let Some(shuffle) = &mut self.shuffle {
                shuffle(&mut pgs);
            }
            let back = pgs.iter().find_map(|pg| self.without_items(*pg, |(_, to)| to.0 as i32 == osd));
            if back.is_some() {
                return back;
            }
            let moved = pgs.iter().find_map(|pg| self.with_item(*pg, fullness));
            if moved.is_some() {
                return moved;
            }
        }
        None
    }

    /// Returns the PG with one more item, the one that relieves the fullest OSD.
    fn with_item(&mut self, pg: PgId, fullness: &Fullness) -> Option<Trial> {
        if self.map.pg_upmap.contains_key(&pg) {
            return None;
        }
        let size = self.map.pools.get(&pg.pool)?.size;
        let rule = self.map.rule_of(pg.pool)?;
        let now = self.items.get(&pg).cloned().unwrap_or_default();
        if !now.is_empty() && now.len() >= size as usize {
            return None;
        }
        let as_item = |(from, to): &(OsdId, OsdId)| (from.0 as i32, to.0 as i32);
        let raw = self.raw.entry(pg).or_insert_with(|| self.mapper.raw_without_upmap(pg));
        let items: Vec<(i32, i32)> = now.iter().map(as_item).collect();
        let mapping = self.mapper.apply_upmap_items(raw, &items);
        if !mapping.iter().any(|osd| fullness.overfull.contains(osd)) {
            return None;
        }
        let imbalance = PgImbalance {
            overfull: &fullness.overfull,
            underfull: &fullness.underfull,
            more_underfull: &fullness.more_underfull,
        };
        let better = self.map.crush.try_remap(rule, size, imbalance, &mapping)?;

        let existing: BTreeSet<i32> = items.iter().flat_map(|(from, to)| [*from, *to]).collect();
        let mut best: Option<(f32, (i32, i32))> = None;
        for (from, to) in mapping.iter().copied().zip(better) {
            if from == to || existing.contains(&from) || existing.contains(&to) {
                continue;
            }
            let deviation = self.deviations.by_osd.get(&from).copied().unwrap_or(0.0);
            if deviation > best.map_or(0.0, |(most, _)| most) {
                best = Some((deviation, (from, to)));
            }
        }
        let (_, (from, to)) = best?;
        let pair = (OsdId(u32::try_from(from).ok()?), OsdId(u32::try_from(to).ok()?));
        let mut pgs_by_osd = self.pgs_by_osd.clone();
        move_pg(&mut pgs_by_osd, pg, from, to);
        Some(Trial { pgs_by_osd, pg, items: now.into_iter().chain([pair]).collect() })
    }

    /// Finds a change that returns a PG to an underfull OSD, the emptiest first, from which an item had moved it.
    fn fill_underfull(&mut self, fullness: &Fullness, to_skip: &BTreeSet<PgId>) -> Option<Trial> {
        let emptiest: Vec<(f32, i32)> = self.deviations.ordered.clone();
        for (deviation, osd) in emptiest {
            if !fullness.underfull.contains(&osd) || deviation.abs() < self.max_deviation {
                break;
            }
            let in_scope = |pg: &&PgId| self.pools.is_empty() || self.pools.contains(&pg.pool);
            let with_items = self.items.keys().filter(|pg| !to_skip.contains(pg)).filter(in_scope);
            let mut pgs: Vec<PgId> = with_items.copied().collect();
            if let Some(shuffle) = &mut self.shuffle {
                shuffle(&mut pgs);
            }
            let back = pgs.iter().find_map(|pg| self.without_items(*pg, |(from, _)| from.0 as i32 == osd));
            if back.is_some() {
                return back;
            }
        }
        None
    }
}

fn move_pg(pgs_by_osd: &mut PgsByOsd, pg: PgId, from: i32, to: i32) {
    pgs_by_osd.entry(from).or_default().remove(&pg);
    pgs_by_osd.entry(to).or_default().insert(pg);
}

/// The OSDs with too many and too few PGs.
struct Fullness {
    overfull: BTreeSet<i32>,
    /// No OSD exceeds the limit: `overfull` has those above their share.
    less_overfull: bool,
    /// The emptiest first.
    underfull: Vec<i32>,
    /// Below their share, but within the limit.
    more_underfull: Vec<i32>,
}

impl Fullness {
    /// Returns `None` if all OSDs are within the limit.
    fn of(deviations: &Deviations, max_deviation: f32) -> Option<Fullness> {
        let ordered = || deviations.ordered.iter();
        let above = |least: f32, most: f32| -> BTreeSet<i32> {
            ordered().filter(|(d, _)| *d > least && *d <= most).map(|(_, osd)| *osd).collect()
        };
        let below = |least: f32, most: f32| -> Vec<i32> {
            ordered().filter(|(d, _)| *d >= least && *d < most).map(|(_, osd)| *osd).collect()
        };
        let mut overfull = above(max_deviation, f32::INFINITY);
        let underfull = below(f32::NEG_INFINITY, -max_deviation);
        if overfull.is_empty() && underfull.is_empty() {
            return None;
        }
        let less_overfull = overfull.is_empty();
        if less_overfull {
            overfull = above(0.0, max_deviation);
        }
        Some(Fullness { overfull, less_overfull, underfull, more_underfull: below(-max_deviation, 0.0) })
    }
}
