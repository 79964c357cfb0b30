//! Device classes and the shadow trees that rules for one class use.
//!
//! For every root and every class there is a copy of the tree, with bucket `NAME~CLASS` for bucket `NAME`, that contains only
//! the class's devices. The copies are derived. They are rebuilt with the same ids after each edit, because rules refer to
//! those ids and placement hashes them.

use crate::edit::{CrushError, is_valid_name};
use crate::model::{ChooseArg, CrushMap, StepOp, bucket_id_of};
use std::collections::{BTreeMap, BTreeSet};

/// Bucket id to (class id to shadow id).
pub(super) type ClassBuckets = BTreeMap<i32, BTreeMap<i32, i32>>;

impl CrushMap {
    /// Returns the class `name`, and creates it if it does not exist.
    pub fn get_or_create_class(&mut self, name: &str) -> Result<i32, CrushError> {
        if let Some(id) = self.class_id(name) {
            return Ok(id);
        }
        if !is_valid_name(name) {
            return Err(CrushError::Invalid(format!("invalid device class '{name}'")));
        }
        let id = match self.class_names.last_key_value() {
            None => 0,
            Some((&last, _)) => last
                .checked_add(1)
                .ok_or_else(|| CrushError::OutOfRange("no number left for a device class".into()))?,
        };
        self.class_names.insert(id, name.to_owned());
        Ok(id)
    }

    /// `osd crush class create`: creates a class without devices. The next edit removes it unless it is used.
    pub fn create_class(&mut self, name: &str) -> Result<i32, CrushError> {
        let id = self.get_or_create_class(name)?;
        self.rebuild_keeping_classes()?;
        Ok(id)
    }

    /// `osd crush set-device-class`: returns true if the map changed. A device's existing class must be removed first.
    pub fn set_device_class(&mut self, device: i32, class: &str) -> Result<bool, CrushError> {
        let name = match self.item_name(device) {
            Some(name) if device >= 0 => name.to_owned(),
            _ => return Err(CrushError::NotFound(format!("device {device} does not exist"))),
        };
        match self.device_class(device) {
            Some(now) if now == class => return Ok(false),
            Some(now) => {
                let why = format!(
                    "{name} has already bound to class '{now}', can not reset class to '{class}'; use 'ceph osd \
                     crush rm-device-class <id>' to remove old class first"
                );
                return Err(CrushError::InUse(why));
            }
            None => {}
        }
        let mut next = self.clone();
        let class = next.get_or_create_class(class)?;
        next.device_classes.insert(device, class);
        next.rebuild_class_roots()?;
        *self = next;
        Ok(true)
    }

    /// `osd crush rm-device-class`: returns true if the device had a class.
    pub fn remove_device_class(&mut self, device: i32) -> Result<bool, CrushError> {
        if !self.device_classes.contains_key(&device) || device < 0 {
            return Ok(false);
        }
        let mut next = self.clone();
        next.device_classes.remove(&device);
        next.rebuild_class_roots()?;
        *self = next;
        Ok(true)
    }

    /// The devices of a class, in ascending order.
    pub fn devices_of_class(&self, class: &str) -> Vec<i32> {
        let Some(id) = self.class_id(class) else { return Vec::new() };
        self.device_classes
            .iter()
            .filter(|&(&item, &c)| item >= 0 && c == id)
            .map(|(&item, _)| item)
            .collect()
    }

    /// Returns the bucket and class in a shadow's name: `default~ssd` is (`default`, `ssd`).
    pub fn split_id_class(&self, id: i32) -> Option<(i32, i32)> {
        let (bucket, class) = self.item_name(id)?.split_once('~')?;
        Some((self.item_id(bucket)?, self.class_id(class)?))
    }

    /// Rebuilds all shadow trees and removes unused classes.
    pub fn rebuild_class_roots(&mut self) -> Result<(), CrushError> {
        let taken: BTreeSet<i32> = self
            .rules()
            .flat_map(|(_, rule)| rule.steps.iter().filter(|s| s.op == StepOp::Take).map(|s| s.arg1))
            .collect();
        let shadows = &self.class_buckets;
        let is_dead = |class: &i32| {
            !self.device_classes.iter().any(|(&item, c)| item >= 0 && c == class)
                && !shadows.values().filter_map(|of| of.get(class)).any(|shadow| taken.contains(shadow))
        };
        let dead: Vec<i32> = self.class_names.keys().copied().filter(is_dead).collect();
        for class in dead {
            self.class_names.remove(&class);
        }
        self.rebuild_keeping_classes()
    }

    fn rebuild_keeping_classes(&mut self) -> Result<(), CrushError> {
        if self.class_names.is_empty() && self.class_buckets.is_empty() {
            return Ok(());
        }
        let old = std::mem::take(&mut self.class_buckets);
        // Only whole shadow trees: a root without a class may still contain a reclassified bucket.
        let mut shadows = self.roots(true);
        while let Some(shadow) = shadows.pop() {
            if self.is_shadow(shadow) {
                shadows
                    .extend(self.bucket(shadow).into_iter().flat_map(|b| b.items.iter().filter(|i| **i < 0)));
                self.erase_item(shadow);
            }
        }
        self.populate_classes(&old)
    }

    /// Creates the shadow trees of all roots and classes. `old` contains the ids to reuse for shadows. Others get the highest
    /// ids that neither a bucket nor `old` has.
    pub(crate) fn populate_classes(&mut self, old: &ClassBuckets) -> Result<(), CrushError> {
        let reserved: BTreeSet<i32> = old.values().flat_map(|of| of.values().copied()).collect();
        let classes: Vec<i32> = self.class_names.keys().copied().collect();
        let mut made = BTreeSet::new();
        for root in self.roots(false) {
            for &class in &classes {
                self.clone_for_class(root, class, old, &reserved, &mut made)?;
            }
        }
        Ok(())
    }

    fn clone_for_class(
        &mut self,
        id: i32,
        class: i32,
        old: &ClassBuckets,
        reserved: &BTreeSet<i32>,
        made: &mut BTreeSet<i32>,
    ) -> Result<i32, CrushError> {
        let class_name = self.class_name(class).unwrap_or_default();
        let Some(name) = self.item_name(id) else {
            return Err(CrushError::Invalid(format!("bucket {id} has no name")));
        };
        let shadow_name = format!("{name}~{class_name}");
        if let Some(existing) = self.item_id(&shadow_name) {
            return Ok(existing);
        }
        let original = self
            .bucket(id)
            .cloned()
            .ok_or_else(|| CrushError::NotFound(format!("bucket {id} does not exist")))?;
        let mut items = Vec::new();
        let mut positions = Vec::new();
        for (at, (item, weight)) in original.weighted_items().enumerate() {
            if item < 0 {
                let shadow = self.clone_for_class(item, class, old, reserved, made)?;
                items.push((shadow, self.bucket(shadow).map_or(0, |b| b.weight)));
            } else if self.device_classes.get(&item) == Some(&class) {
                items.push((item, weight));
            } else {
                continue;
            }
            positions.push(at);
        }
        // The shadow children of a uniform bucket may have different weights; Ceph's own builder refuses such a map too.
        let shadow_id = old.get(&id).and_then(|of| of.get(&class)).copied().unwrap_or_else(|| {
            (0..)
                .map(bucket_id_of)
                .find(|id| self.bucket(*id).is_none() && !reserved.contains(id))
                .unwrap_or(i32::MIN)
        });
        self.insert_unnamed_bucket(Some(shadow_id), original.alg(), original.hash, original.type_id, &items)?;
        made.insert(shadow_id);
        self.item_names.insert(shadow_id, shadow_name);
        self.device_classes.insert(shadow_id, class);
        self.class_buckets.entry(id).or_default().insert(class, shadow_id);

        // Weight sets are derived: devices keep theirs; child shadows get the sum of theirs, or no weight if they existed
        // before.
        for args in self.choose_args.values_mut() {
            let Some(arg) = args.get(!id as usize) else { continue };
            let weight_set = (0..arg.weight_set.len())
                .map(|set| {
                    let weight_of = |(&(item, _), &at): (&(i32, u32), &usize)| {
                        if item >= 0 {
                            return arg.weight_set[set][at];
                        }
                        let child = args.get(!item as usize).filter(|_| made.contains(&item));
                        let child = child.and_then(|child| child.weight_set.get(set));
                        child.map_or(0, |weights| weights.iter().fold(0, |a: u32, &b| a.saturating_add(b)))
                    };
                    items.iter().zip(&positions).map(weight_of).collect()
                })
                .collect();
            args.set(!shadow_id as usize, ChooseArg { weight_set, ids: Vec::new() });
        }
        Ok(shadow_id)
    }
}
