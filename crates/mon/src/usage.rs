//! Stored, used and available space: for `df`, `osd df` and `status`.

use crate::logic::MapState;
use nacre_crush::{CrushMap, StepOp};
use nacre_types::ids::{OsdId, PoolId};
use nacre_types::pool::Pool;
use nacre_types::stats::PoolCompression;
use std::collections::BTreeMap;

/// Raw space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RawUsage {
    pub(crate) total: u64,
    pub(crate) avail: u64,
    pub(crate) used: u64,
}

impl RawUsage {
    fn add(&mut self, total: u64, avail: u64) {
        self.total += total;
        self.avail += avail;
        self.used += total.saturating_sub(avail);
    }

    /// The used fraction, from 0 to 1.
    pub(crate) fn ratio(&self) -> f64 {
        if self.total == 0 { 0.0 } else { self.used as f64 / self.total as f64 }
    }
}

/// The usage of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct PoolUsage {
    /// Bytes of data and omap, counted once.
    pub(crate) stored: u64,
    pub(crate) stored_omap: u64,
    pub(crate) objects: u64,
    pub(crate) dirty: u64,
    /// Bytes on all members together.
    pub(crate) used: u64,
    /// Bytes that compressed data takes on all members together, and what it would take uncompressed.
    pub(crate) compressed_used: u64,
    pub(crate) compressed_original: u64,
    /// Bytes that can still be stored, counted once.
    pub(crate) max_avail: u64,
    /// The used fraction of the space that the pool could use, from 0 to 1.
    pub(crate) percent: f64,
}

impl MapState {
    /// Raw space of the OSDs that are in: the total and by device class.
    pub(crate) fn raw_usage(&self) -> (RawUsage, BTreeMap<String, RawUsage>) {
        let map = &self.committed;
        let mut all = RawUsage::default();
        let mut by_class: BTreeMap<String, RawUsage> = BTreeMap::new();
        for (osd, stats) in &self.stats.osds {
            if !map.osds.get(osd).is_some_and(|info| info.is_in()) {
                continue;
            }
            all.add(stats.total_bytes, stats.available_bytes);
            let class = map.crush.device_class(osd.0 as i32).unwrap_or("");
            by_class.entry(class.to_owned()).or_default().add(stats.total_bytes, stats.available_bytes);
        }
        (all, by_class)
    }

    pub(crate) fn pool_usage(&self, id: PoolId, pool: &Pool) -> PoolUsage {
        let mut usage = PoolUsage { max_avail: self.max_avail(pool), ..PoolUsage::default() };
        for (_, stats) in self.stats.pgs.iter().filter(|(pg, _)| pg.pool == id) {
            let copies = stats.acting.len().max(1) as u64;
            let logical = stats.sums.bytes + stats.sums.omap_bytes;
            usage.stored += logical;
            usage.stored_omap += stats.sums.omap_bytes;
            usage.objects += stats.sums.objects;
            usage.dirty += stats.sums.dirty;
            usage.used += stats.stored_bytes.max(if stats.stored_bytes == 0 { logical } else { 0 }) * copies;
        }
        let compression = self.compression(id);
        usage.compressed_used = compression.allocated_bytes;
        usage.compressed_original = compression.original_bytes;
        let saved = usage.compressed_original.saturating_sub(usage.compressed_used);
        usage.used = usage.used.saturating_sub(saved);
        let possible = usage.used as f64 + usage.max_avail as f64 * f64::from(pool.size);
        usage.percent = if possible > 0.0 { usage.used as f64 / possible } else { 0.0 };
        usage
    }

    /// The compression of a pool, summed over all OSDs.
    pub(crate) fn compression(&self, id: PoolId) -> PoolCompression {
        let mut sum = PoolCompression { pool: id, ..PoolCompression::default() };
        let all = self.stats.osds.values().flat_map(|osd| &osd.compressed);
        for one in all.filter(|one| one.pool == id) {
            sum.compressed_bytes += one.compressed_bytes;
            sum.allocated_bytes += one.allocated_bytes;
            sum.original_bytes += one.original_bytes;
        }
        sum
    }

    /// Bytes that fit into the pool until the first of its OSDs is full (`PGMap::get_rule_avail`): the minimum over the OSDs of
    /// the room below the full ratio divided by the OSD's share of the rule's weight, divided by the number of copies.
    fn max_avail(&self, pool: &Pool) -> u64 {
        let map = &self.committed;
        let shares = rule_shares(&map.crush, u32::from(pool.crush_rule));
        let mut least: Option<f64> = None;
        for (device, share) in shares.into_iter().filter(|(_, share)| *share > 0.0) {
            let osd = OsdId(device as u32);
            let Some(stats) = self.stats.osds.get(&osd).filter(|s| s.total_bytes > 0) else { continue };
            if !map.osds.get(&osd).is_some_and(|info| info.is_in()) {
                continue;
            }
            let unusable = stats.total_bytes as f64 * (1.0 - f64::from(map.full_ratio));
            let room = (stats.available_bytes as f64 - unusable).max(0.0) / share;
            least = Some(least.map_or(room, |l| l.min(room)));
        }
        (least.unwrap_or(0.0) / f64::from(pool.size.max(1))) as u64
    }
}

/// The share of a rule's weight that each device has (`get_rule_weight_osd_map`).
fn rule_shares(crush: &CrushMap, rule: u32) -> BTreeMap<i32, f64> {
    let mut weights: BTreeMap<i32, f64> = BTreeMap::new();
    let Some(rule) = crush.rule(rule) else { return weights };
    for step in rule.steps.iter().filter(|step| step.op == StepOp::Take) {
        if step.arg1 >= 0 {
            *weights.entry(step.arg1).or_default() += 1.0;
            continue;
        }
        let mut queue = vec![step.arg1];
        while let Some(bucket) = queue.pop().and_then(|id| crush.bucket(id)) {
            for (item, weight) in bucket.weighted_items() {
                if item >= 0 {
                    *weights.entry(item).or_default() += f64::from(weight);
                } else {
                    queue.push(item);
                }
            }
        }
    }
    let sum: f64 = weights.values().sum();
    weights.values_mut().for_each(|weight| *weight = if sum > 0.0 { *weight / sum } else { 0.0 });
    weights
}
