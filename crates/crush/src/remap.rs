//! Functions of a rule for balancers: other devices for a mapping, whether a mapping complies with the rule, and the share of
//! each device in the weight below the rule's roots.

use crate::model::{CrushMap, Rule, StepOp};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Devices with too many PGs, and devices with too few, in order of preference.
#[derive(Clone, Copy, Debug)]
pub struct PgImbalance<'a> {
    /// Devices to move away from.
    pub overfull: &'a BTreeSet<i32>,
    /// Devices to move to.
    pub underfull: &'a [i32],
    /// Devices to move to if none of `underfull` is suitable.
    pub more_underfull: &'a [i32],
}

/// Why a mapping does not comply with its rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpmapError {
    /// The rule does not exist.
    #[error("rule {0} does not exist")]
    NoRule(u32),
    /// Two devices of one failure domain.
    #[error("multiple osds {0:?} come from same failure domain {1}")]
    SameDomain(Vec<i32>, i32),
    /// More buckets of a type than the rule chooses.
    #[error("number of buckets {0} exceeds desired {1}")]
    TooManyBuckets(usize, i64),
    /// A device outside the rule's root.
    #[error("osd.{0} not in bucket {1}")]
    Outside(i32, i32),
}

impl CrushMap {
    /// Returns each device's share of the weight below a rule's roots. The shares of each root add up to 1.
    pub fn rule_weight_shares(&self, rule: u32) -> BTreeMap<i32, f32> {
        let mut shares = BTreeMap::new();
        for root in self.rule_roots(rule) {
            let mut weights: BTreeMap<i32, f32> = BTreeMap::new();
            let mut sum = 0.0_f32;
            if root >= 0 {
                weights.insert(root, 1.0);
                sum = 1.0;
            }
            let mut queue = VecDeque::from([root]);
            while let Some(bucket) = queue.pop_front().and_then(|id| self.bucket(id)) {
                for (item, weight) in bucket.weighted_items() {
                    if item < 0 {
                        queue.push_back(item);
                    } else {
                        weights.insert(item, weight as f32);
                        sum += weight as f32;
                    }
                }
            }
            for (device, weight) in weights {
                *shares.entry(device).or_insert(0.0) += weight / sum;
            }
        }
        shares
    }

    /// Returns the bucket of `type_id` that contains `item` below one of the rule's roots; 0 if there is none.
    fn ancestor_for_rule(&self, item: i32, type_id: i32, rule: u32) -> i32 {
        let roots: BTreeSet<i32> = self.rule_roots(rule).into_iter().collect();
        let mut candidates = Vec::new();
        for root in roots {
            self.buckets_of_type(root, type_id, &mut candidates);
        }
        candidates.into_iter().find(|bucket| self.subtree_contains(*bucket, item)).unwrap_or(0)
    }

    /// Finds the topmost buckets of a type in and below `id`; for type 0 the devices.
    fn buckets_of_type(&self, id: i32, type_id: i32, found: &mut Vec<i32>) {
        match self.bucket(id) {
            None if id >= 0 && type_id == 0 => found.push(id),
            Some(bucket) if i32::from(bucket.type_id) == type_id => found.push(id),
            Some(bucket) if i32::from(bucket.type_id) > type_id => {
                bucket.items.iter().for_each(|item| self.buckets_of_type(*item, type_id, found));
            }
            _ => {}
        }
    }

    /// Returns `mapping` with overfull devices replaced by underfull ones as the rule permits, or `None` if the rule does not
    /// exist.
    pub fn try_remap(
        &self,
        rule_id: u32,
        size: u32,
        imbalance: PgImbalance<'_>,
        mapping: &[i32],
    ) -> Option<Vec<i32>> {
        let rule = self.rule(rule_id)?;
        let mut remap = Remap { map: self, rule: rule_id, imbalance, mapping, at: 0, used: BTreeSet::new() };
        Some(remap.run(rule, size))
    }

    /// Checks that `up` complies with the rule's failure domains and roots.
    pub fn verify_upmap(&self, rule_id: u32, size: u32, up: &[i32]) -> Result<(), UpmapError> {
        let rule = self.rule(rule_id).ok_or(UpmapError::NoRule(rule_id))?;
        let (mut root, mut cursor) = (0, 0);
        let mut fan_out: BTreeMap<i32, i64> = BTreeMap::new();
        for step in &rule.steps {
            match step.op {
                StepOp::Take => root = step.arg1,
                StepOp::ChooseleafFirstn
                | StepOp::ChooseleafIndep
                | StepOp::ChooseFirstn
                | StepOp::ChooseIndep => {
                    let type_id = step.arg2;
                    let count = replicas(step.arg1, size);
                    fan_out.entry(type_id).or_insert(count);
                    if type_id == 0 {
                        continue;
                    }
                    let mut by_bucket: BTreeMap<i32, BTreeSet<i32>> = BTreeMap::new();
                    for osd in up {
                        let bucket = self.ancestor_for_rule(*osd, type_id, rule_id);
                        if bucket < 0 {
                            by_bucket.entry(bucket).or_default().insert(*osd);
                        }
                    }
                    let leaves = matches!(step.op, StepOp::ChooseleafFirstn | StepOp::ChooseleafIndep);
                    if leaves {
                        if let Some((bucket, osds)) = by_bucket.iter().find(|(_, osds)| osds.len() > 1) {
                            return Err(UpmapError::SameDomain(osds.iter().copied().collect(), *bucket));
                        }
                    } else if by_bucket.len() as i64 > count {
                        return Err(UpmapError::TooManyBuckets(by_bucket.len(), count));
                    }
                }
                StepOp::Emit => {
                    if root < 0 {
                        let chosen: i64 = fan_out.values().product();
                        for osd in up.iter().skip(cursor).take(chosen.max(0) as usize) {
                            cursor += 1;
                            if !self.subtree_contains(root, *osd) {
                                return Err(UpmapError::Outside(*osd, root));
                            }
                        }
                    }
                    fan_out.clear();
                    root = 0;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns the number of items that a step chooses. Numbers up to 0 are relative to the pool's size.
fn replicas(count: i32, size: u32) -> i64 {
    if count <= 0 { i64::from(count) + i64::from(size) } else { i64::from(count) }
}

/// A type, and the number of its items chosen below each bucket of the level above.
type Level = (i32, i64);

struct Remap<'a> {
    map: &'a CrushMap,
    rule: u32,
    imbalance: PgImbalance<'a>,
    mapping: &'a [i32],
    /// The position in `mapping` to decide next.
    at: usize,
    /// Replacements used so far.
    used: BTreeSet<i32>,
}

impl Remap<'_> {
    fn run(&mut self, rule: &Rule, size: u32) -> Vec<i32> {
        let mut out = Vec::new();
        let mut working: Vec<i32> = Vec::new();
        let mut levels: Vec<Level> = Vec::new();
        for step in &rule.steps {
            match step.op {
                StepOp::Take => {
                    let exists = match step.arg1 {
                        device if device >= 0 => device < self.map.max_devices(),
                        bucket => self.map.bucket(bucket).is_some(),
                    };
                    if exists {
                        working = vec![step.arg1];
                    }
                }
                StepOp::ChooseFirstn | StepOp::ChooseIndep => {
                    levels.push((step.arg2, replicas(step.arg1, size)));
                }
                StepOp::ChooseleafFirstn | StepOp::ChooseleafIndep => {
                    levels.push((step.arg2, replicas(step.arg1, size)));
                    if step.arg2 > 0 {
                        levels.push((0, 1));
                    }
                    working = self.choose(&levels, working);
                    levels.clear();
                }
                StepOp::Emit => {
                    if !levels.is_empty() {
                        working = self.choose(&levels, working);
                        levels.clear();
                    }
                    out.append(&mut working);
                }
                _ => {}
            }
        }
        out
    }

    /// Descends through the levels from the buckets of `working`. Buckets are those of the mapping, unless a bucket has
    /// overfull and no underfull devices and another bucket of the same parent has underfull ones.
    fn choose(&mut self, levels: &[Level], mut working: Vec<i32>) -> Vec<i32> {
        let ancestor = |map: &CrushMap, item: i32, level: usize, rule: u32| {
            map.ancestor_for_rule(item, levels[level].0, rule)
        };
        // Buckets of each level except the last that contain underfull devices.
        let mut underfull = vec![BTreeSet::new(); levels.len().saturating_sub(1)];
        for osd in self.imbalance.underfull {
            let mut item = *osd;
            for level in (0..underfull.len()).rev() {
                item = ancestor(self.map, item, level, self.rule);
                underfull[level].insert(item);
            }
        }
        for (level, &(type_id, fan_out)) in levels.iter().enumerate() {
            if self.at >= self.mapping.len() {
                break;
            }
            let below: i64 = levels[level + 1..].iter().map(|(_, fan_out)| fan_out).product();
            let (mut chosen, mut ahead): (Vec<i32>, usize) = (Vec::new(), self.at);
            for &from in &working {
                let fan_out = fan_out.max(0) as usize;
                // The devices below each chosen bucket.
                let mut leaves: Vec<Vec<i32>> = vec![Vec::new(); fan_out];
                for leaves in &mut leaves {
                    if type_id == 0 {
                        let Some(&osd) = self.mapping.get(self.at) else { break };
                        chosen.push(self.replacement(osd, from).unwrap_or(osd));
                        self.at += 1;
                        if self.at >= self.mapping.len() {
                            break;
                        }
                    } else if let Some(osd) = self.mapping.get(ahead) {
                        chosen.push(ancestor(self.map, *osd, level, self.rule));
                        for _ in 0..below.max(0) {
                            leaves.extend(self.mapping.get(ahead));
                            ahead = (ahead + 1).min(self.mapping.len());
                        }
                    }
                }
                if level + 1 < levels.len() {
                    self.swap_buckets(levels, level, &leaves, &underfull[level], &mut chosen);
                }
                if self.at >= self.mapping.len() {
                    break;
                }
            }
            working = chosen;
        }
        working
    }

    /// Replaces chosen buckets that have overfull and no underfull devices.
    fn swap_buckets(
        &self,
        levels: &[Level],
        level: usize,
        leaves: &[Vec<i32>],
        underfull: &BTreeSet<i32>,
        chosen: &mut [i32],
    ) {
        for (at, leaves) in leaves.iter().enumerate().take(chosen.len()) {
            let is_overfull = leaves.iter().any(|osd| self.imbalance.overfull.contains(osd));
            if !is_overfull || underfull.contains(&chosen[at]) {
                continue;
            }
            let parent = |bucket: i32| match level {
                0 => 0,
                _ => self.map.ancestor_for_rule(bucket, levels[level - 1].0, self.rule),
            };
            let fits = |other: &&i32| !chosen.contains(other) && parent(**other) == parent(chosen[at]);
            if let Some(other) = underfull.iter().find(fits) {
                chosen[at] = *other;
            }
        }
    }

    /// Returns a device below `from` that replaces `osd` if that is overfull.
    fn replacement(&mut self, osd: i32, from: i32) -> Option<i32> {
        if !self.imbalance.overfull.contains(&osd) {
            return None;
        }
        let candidates = self.imbalance.underfull.iter().chain(self.imbalance.more_underfull);
        let fits = |other: &&i32| {
            !self.used.contains(other)
                && !self.mapping.contains(other)
                && self.map.subtree_contains(from, **other)
        };
        let found = *candidates.into_iter().find(fits)?;
        self.used.insert(found);
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three_hosts() -> CrushMap {
        let mut map = CrushMap::new_cluster("host").unwrap();
        for osd in 0..6 {
            let place = [("root", "default".to_owned()), ("host", format!("h{}", osd / 2))];
            let place = place.into_iter().map(|(kind, name)| (kind.to_owned(), name)).collect();
            map.insert_item(osd, crate::WEIGHT_ONE, &format!("osd.{osd}"), &place).unwrap();
        }
        map
    }

    #[test]
    fn a_mapping_moves_within_the_rule_only() {
        let map = three_hosts();
        let overfull = BTreeSet::from([0]);
        let remap = |underfull: &[i32], more_underfull: &[i32]| {
            let imbalance = PgImbalance { overfull: &overfull, underfull, more_underfull };
            map.try_remap(0, 2, imbalance, &[0, 2]).unwrap()
        };
        assert_eq!(remap(&[1], &[]), [1, 2], "the other device of the host");
        assert_eq!(remap(&[3], &[]), [0, 2], "its host holds a replica");
        assert_eq!(remap(&[4], &[1]), [4, 2], "another host");
        assert_eq!(remap(&[], &[1]), [1, 2], "less underfull");
        assert_eq!(
            map.try_remap(
                7,
                2,
                PgImbalance { overfull: &overfull, underfull: &[], more_underfull: &[] },
                &[]
            ),
            None
        );
    }

    #[test]
    fn what_breaks_the_rule_is_refused() {
        let map = three_hosts();
        assert_eq!(map.verify_upmap(0, 2, &[0, 2]), Ok(()));
        assert!(matches!(map.verify_upmap(0, 2, &[0, 1]), Err(UpmapError::SameDomain(..))));
        assert!(matches!(map.verify_upmap(0, 2, &[0, 77]), Err(UpmapError::Outside(77, _))));
        assert_eq!(map.verify_upmap(9, 2, &[0, 1]), Err(UpmapError::NoRule(9)));
    }

    #[test]
    fn shares_of_weight_add_up_to_one() {
        let shares = three_hosts().rule_weight_shares(0);
        assert_eq!(shares.len(), 6);
        assert!((shares.values().sum::<f32>() - 1.0).abs() < 1e-5);
    }
}
