//! Effects of an item's place in a bucket: bucket weights up to the roots, and weight sets.

use super::{CrushError, body_error, no_bucket};
use crate::bucket_body::build_body;
use crate::model::{BucketAlg, BucketBody, ChooseArg, ChooseArgs, CrushMap, bucket_slot};

impl CrushMap {
    /// Replaces a bucket's items. Does not update its weight sets and ancestors.
    pub(super) fn set_bucket_items(&mut self, id: i32, items: &[(i32, u32)]) -> Result<(), CrushError> {
        let version = self.tunables.straw_calc_version;
        let Some(bucket) = self.bucket_mut(id) else {
            return Err(CrushError::NotFound(format!("bucket {id} does not exist")));
        };
        let (ids, weights): (Vec<i32>, Vec<u32>) = items.iter().copied().unzip();
        let (body, weight) = build_body(bucket.alg(), &weights, version).map_err(body_error)?;
        (bucket.items, bucket.body, bucket.weight) = (ids, body, weight);
        Ok(())
    }

    /// Appends an item to a bucket and to its weight sets.
    pub(super) fn link(&mut self, bucket_id: i32, item: i32, weight: u32) -> Result<(), CrushError> {
        let bucket = self.bucket(bucket_id).ok_or_else(|| no_bucket(bucket_id))?;
        let mut items: Vec<_> = bucket.weighted_items().collect();
        items.push((item, weight));
        self.set_bucket_items(bucket_id, &items)?;
        for args in self.choose_args.values_mut() {
            let sums = weight_set_sums(args, item);
            if let Some(arg) = args.get_mut(!bucket_id as usize) {
                for (position, weights) in arg.weight_set.iter_mut().enumerate() {
                    weights.push(sums.get(position).or(sums.last()).copied().unwrap_or(weight));
                }
                if !arg.ids.is_empty() {
                    arg.ids.push(item);
                }
            }
        }
        self.propagate_weight(bucket_id)?;
        self.recompute_weight_sets();
        Ok(())
    }

    /// Removes an item from a bucket and its weight sets.
    pub(super) fn unlink(&mut self, bucket_id: i32, item: i32) -> Result<(), CrushError> {
        let bucket = self.bucket(bucket_id).ok_or_else(|| no_bucket(bucket_id))?;
        let Some(at) = bucket.position(item) else { return Ok(()) };
        let mut items: Vec<_> = bucket.weighted_items().collect();
        items.remove(at);
        self.set_bucket_items(bucket_id, &items)?;
        let slot = !bucket_id as usize;
        for args in self.choose_args.values_mut() {
            let Some(arg) = args.get(slot) else { continue };
            let mut arg: ChooseArg = arg.clone();
            for weights in &mut arg.weight_set {
                weights.remove(at);
            }
            if !arg.ids.is_empty() {
                arg.ids.remove(at);
            }
            args.set(slot, arg);
        }
        self.propagate_weight(bucket_id)?;
        self.recompute_weight_sets();
        Ok(())
    }

    /// Sets the weight of an item in one bucket, optionally with its weight sets, and updates the ancestors.
    pub(super) fn set_weight_in(
        &mut self,
        bucket_id: i32,
        item: i32,
        weight: u32,
        with_sets: bool,
    ) -> Result<(), CrushError> {
        let bucket = self.bucket(bucket_id).ok_or_else(|| no_bucket(bucket_id))?;
        let Some(at) = bucket.position(item) else { return Ok(()) };
        let mut items: Vec<_> = bucket.weighted_items().collect();
        match bucket.body {
            BucketBody::Uniform { .. } => items.iter_mut().for_each(|(_, w)| *w = weight),
            _ => items[at].1 = weight,
        }
        self.set_bucket_items(bucket_id, &items)?;
        if with_sets {
            for args in self.choose_args.values_mut() {
                if let Some(arg) = args.get_mut(!bucket_id as usize) {
                    arg.weight_set.iter_mut().for_each(|weights| weights[at] = weight);
                }
            }
        }
        self.propagate_weight(bucket_id)
    }

    /// Sets every parent's entry for this bucket to the bucket's weight. [`CrushMap::recompute_weight_sets`] updates weight sets.
    fn propagate_weight(&mut self, bucket_id: i32) -> Result<(), CrushError> {
        let weight = self.bucket(bucket_id).ok_or_else(|| no_bucket(bucket_id))?.weight;
        let parents: Vec<i32> = self.parents(bucket_id).map(|b| b.id).collect();
        parents.into_iter().try_for_each(|parent| self.set_weight_in(parent, bucket_id, weight, false))
    }

    /// Gives every bucket weight sets if one has them, and sets their entries for a bucket to the sum of that bucket's own.
    /// Ceph does this whenever an item is added or removed or changes its weight. Buckets of other algorithms than straw2 have
    /// sets only for these sums.
    pub(super) fn recompute_weight_sets(&mut self) {
        for args in self.choose_args.values_mut() {
            let positions = args.iter().map(|(_, arg)| arg.weight_set.len()).find(|n| *n > 0);
            let Some(positions) = positions else { continue };
            let mut replaced = Vec::new();
            for bucket in self.buckets.iter().flatten() {
                let slot = !bucket.id as usize;
                let is_straw2 = bucket.alg() == BucketAlg::Straw2;
                if is_straw2 && args.get(slot).is_some_and(|arg| !arg.weight_set.is_empty()) {
                    continue;
                }
                let arg = args.get(slot).cloned().unwrap_or_default();
                if !is_straw2 {
                    replaced.push((slot, arg.clone()));
                }
                let weights: Vec<u32> = bucket.weighted_items().map(|(_, weight)| weight).collect();
                args.set(slot, ChooseArg { weight_set: vec![weights; positions], ids: arg.ids });
            }
            // Each round propagates sums by at least one level.
            for _ in 0..self.buckets.len() {
                let mut is_settled = true;
                for bucket in self.buckets.iter().flatten() {
                    for (at, item) in bucket.items.iter().enumerate() {
                        let sums = weight_set_sums(args, *item);
                        let Some(arg) = args.get_mut(!bucket.id as usize) else { continue };
                        for (position, weights) in arg.weight_set.iter_mut().enumerate() {
                            let sum = sums.get(position).or(sums.last());
                            if let (Some(&sum), Some(weight)) = (sum, weights.get_mut(at)) {
                                is_settled &= *weight == sum;
                                *weight = sum;
                            }
                        }
                    }
                }
                if is_settled {
                    break;
                }
            }
            replaced.into_iter().for_each(|(slot, arg)| args.set(slot, arg));
        }
    }

    /// Gives a new, empty bucket as many (empty) weight sets as the other buckets have.
    pub(crate) fn init_weight_sets(&mut self, id: i32) {
        if self.bucket(id).is_none_or(|bucket| bucket.alg() != BucketAlg::Straw2) {
            return;
        }
        for args in self.choose_args.values_mut() {
            let positions = args.iter().map(|(_, arg)| arg.weight_set.len()).find(|n| *n > 0).unwrap_or(0);
            args.set(!id as usize, ChooseArg { weight_set: vec![Vec::new(); positions], ids: Vec::new() });
        }
    }

    pub(super) fn reweight_below(&mut self, id: i32) -> Result<(), CrushError> {
        let Some(bucket) = self.bucket(id) else { return Ok(()) };
        let mut items: Vec<_> = bucket.weighted_items().collect();
        for (item, weight) in items.iter_mut().filter(|(item, _)| *item < 0) {
            self.reweight_below(*item)?;
            *weight = self.bucket(*item).map_or(*weight, |b| b.weight);
        }
        self.set_bucket_items(id, &items)
    }
}

/// Returns the sums of a bucket's weight sets; empty for a device or a bucket without them.
fn weight_set_sums(args: &ChooseArgs, item: i32) -> Vec<u32> {
    let arg = bucket_slot(item).and_then(|slot| args.get(slot));
    let sum = |weights: &Vec<u32>| weights.iter().fold(0_u32, |a, &b| a.saturating_add(b));
    arg.map_or_else(Vec::new, |arg| arg.weight_set.iter().map(sum).collect())
}
