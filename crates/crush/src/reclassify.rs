//! `crushtool --reclassify`: converts a hierarchy per device class, from before there were classes, to one hierarchy with
//! classes.
//!
//! A reclassified root keeps its old ids for the shadow tree of its class and gets new ids for itself. A reclassified bucket
//! becomes the shadow of the bucket to which its items move. Placement hashes ids and rules refer to them, so PGs do not move.

use crate::bucket_body::build_body;
use crate::classes::ClassBuckets;
use crate::edit::{CrushError, Location};
use crate::model::{Bucket, ChooseArg, CrushMap, StepOp, bucket_id_of, bucket_slot};
use std::collections::BTreeMap;

/// Buckets with the devices of one class, and the place to which they belong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketMatch {
    /// A bucket's name, or a pattern with `%` as its first or last character. The part that `%` matches is the name of the
    /// bucket to which the items move.
    pub pattern: String,
    /// The class of the devices.
    pub class: String,
    /// The place where a missing bucket is created; the target of a pattern without `%`.
    pub default_parent: String,
}

impl BucketMatch {
    /// Returns the name of the bucket to which the items of bucket `name` move, if the pattern matches.
    fn target<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        if name.len() < self.pattern.len() {
            return None;
        }
        if let Some(suffix) = self.pattern.strip_prefix('%') {
            name.strip_suffix(suffix)
        } else if let Some(prefix) = self.pattern.strip_suffix('%') {
            name.strip_prefix(prefix)
        } else {
            (name == self.pattern).then_some(&self.default_parent)
        }
    }
}

impl CrushMap {
    /// Sets the class of all devices below bucket `item`, regardless of their class. If `item` is a device, it is not changed,
    /// as in `crushtool`. Shadow trees are updated by the next edit or [`CrushMap::rebuild_class_roots`].
    pub fn set_subtree_class(&mut self, item: i32, class: &str) -> Result<(), CrushError> {
        let class = self.get_or_create_class(class)?;
        if item < 0 {
            for device in self.devices_below(item) {
                self.device_classes.insert(device, class);
            }
        }
        Ok(())
    }

    /// Reclassifies whole roots (name to class) and then buckets (`buckets`, by pattern). `log` receives the messages of
    /// `crushtool`, also before an error. An error leaves the map unchanged.
    pub fn reclassify(
        &mut self,
        roots: &BTreeMap<String, String>,
        buckets: &[BucketMatch],
        log: &mut Vec<String>,
    ) -> Result<(), CrushError> {
        let mut next = self.clone();
        for (root, class) in roots {
            next.reclassify_root(root, class, log)?;
        }
        next.reclassify_buckets(buckets, log)?;
        next.recompute_max_devices();
        next.check_structure().map_err(|error| CrushError::OutOfRange(error.to_string()))?;
        *self = next;
        Ok(())
    }

    fn reclassify_root(&mut self, root: &str, class: &str, log: &mut Vec<String>) -> Result<(), CrushError> {
        let refuse = |log: &mut Vec<String>, why: String| {
            log.push(why.clone());
            Err(CrushError::Invalid(why))
        };
        let Some(root_id) = self.item_id(root) else {
            return refuse(log, format!("root {root} does not exist"));
        };
        let class_id = self.get_or_create_class(class)?;
        log.push(format!("classify_root {root} ({root_id}) as {class}"));
        let takes_class = self.rules().find_map(|(id, rule)| {
            let taken = rule.steps.iter().filter(|step| step.op == StepOp::Take);
            let mut shadows = taken.filter_map(|step| self.split_id_class(step.arg1));
            shadows.find(|(bucket, _)| *bucket == root_id).map(|(_, class)| (id, class))
        });
        if let Some((rule, class)) = takes_class {
            return refuse(log, format!("  rule {rule} includes take on root {root} class {class}"));
        }

        let mut renumbered: BTreeMap<i32, i32> = BTreeMap::new();
        let mut queue = vec![root_id];
        while let Some(id) = queue.pop() {
            let Some(bucket) = self.bucket(id).cloned() else {
                return refuse(log, format!("cannot find bucket {id}"));
            };
            let new_id = self.new_bucket_id();
            log.push(format!("  renumbering bucket {id} -> {new_id}"));
            renumbered.insert(id, new_id);
            queue.extend(bucket.items.iter().filter(|item| **item < 0));
            self.put_empty_bucket(id, &bucket)?;
            self.put_bucket(Bucket { id: new_id, ..bucket });
            for args in self.choose_args.values_mut() {
                if let Some(arg) = args.get(!id as usize).cloned() {
                    args.set(!new_id as usize, arg);
                    args.set(!id as usize, ChooseArg::default());
                }
            }
            self.class_buckets.remove(&id);
            self.class_buckets.entry(new_id).or_default().insert(class_id, id);
            let name = self.item_name(id).unwrap_or_default().to_owned();
            self.item_names.insert(id, format!("{name}~{class}"));
            self.item_names.insert(new_id, name);
        }
        for bucket in self.buckets.iter_mut().flatten() {
            for item in &mut bucket.items {
                *item = renumbered.get(item).copied().unwrap_or(*item);
            }
        }
        self.rebuild_class_roots()
    }

    fn reclassify_buckets(
        &mut self,
        matches: &[BucketMatch],
        log: &mut Vec<String>,
    ) -> Result<(), CrushError> {
        let mut moves = Moves::default();
        for one in matches {
            self.match_buckets(one, &mut moves, log)?;
        }
        self.move_items(&moves, log)?;
        for (id, parent) in &moves.created {
            if !self.is_linked(*id) {
                let place: Vec<String> = parent.iter().map(|(kind, name)| format!("{kind}={name}")).collect();
                log.push(format!("new bucket {id} missing parent, adding at {{{}}}", place.join(",")));
                let name = self.item_name(*id).unwrap_or_default().to_owned();
                self.link_bucket(&name, parent)?;
            }
        }
        for (bucket, classes) in moves.shadows {
            self.class_buckets.entry(bucket).or_default().extend(classes);
        }
        for (id, name) in moves.shadow_names {
            self.item_names.insert(id, name);
        }
        self.rebuild_class_roots()
    }

    fn match_buckets(
        &mut self,
        one: &BucketMatch,
        moves: &mut Moves,
        log: &mut Vec<String>,
    ) -> Result<(), CrushError> {
        let parent = &one.default_parent;
        let Some(parent_id) = self.item_id(parent) else {
            let why = format!("default parent {parent} does not exist");
            log.push(why.clone());
            return Err(CrushError::Invalid(why));
        };
        let Some(parent_type) = self.bucket(parent_id).map(|bucket| i32::from(bucket.type_id)) else {
            let why = format!("default parent {parent} is not a bucket");
            log.push(why.clone());
            return Err(CrushError::Invalid(why));
        };
        let parent_type = self.type_name(parent_type).unwrap_or_default().to_owned();
        let (pattern, class) = (&one.pattern, &one.class);
        log.push(format!("classify_bucket {pattern} as {class} default bucket {parent} ({parent_type})"));
        let class_id = self.get_or_create_class(class)?;

        for slot in 0..self.max_buckets() {
            let id = bucket_id_of(slot);
            let Some(bucket) = self.bucket(id).filter(|_| !self.is_shadow(id)).cloned() else { continue };
            let name = self.item_name(id).unwrap_or_default().to_owned();
            let Some(target) = one.target(&name).map(str::to_owned) else { continue };
            log.push(format!("match {pattern} to {name} basename {target}"));
            let target_id = match self.item_id(&target) {
                Some(existing) if moves.created.contains_key(&existing) => {
                    log.push(format!("  already creating base {existing}"));
                    existing
                }
                Some(existing) => {
                    log.push(format!("  have base {existing}"));
                    existing
                }
                None => {
                    let new_id = self.new_bucket_id();
                    self.put_empty_bucket(new_id, &bucket)?;
                    self.init_weight_sets(new_id);
                    self.item_names.insert(new_id, target.clone());
                    log.push(format!("  created base {new_id}"));
                    moves.created.insert(new_id, Location::from([(parent_type.clone(), parent.clone())]));
                    new_id
                }
            };
            moves.targets.insert(id, target_id);
            moves.shadows.entry(target_id).or_default().insert(class_id, id);
            moves.shadow_names.insert(id, format!("{target}~{class}"));
            for device in bucket.items.iter().filter(|item| **item >= 0) {
                self.device_classes.insert(*device, class_id);
            }
        }
        Ok(())
    }

    fn move_items(&mut self, moves: &Moves, log: &mut Vec<String>) -> Result<(), CrushError> {
        for (&from, &to) in &moves.targets {
            let name = |map: &Self, id: i32| map.item_name(id).unwrap_or_default().to_owned();
            let (from_name, to_name) = (name(self, from), name(self, to));
            log.push(format!("moving items from {from} ({from_name}) to {to} ({to_name})"));
            let items: Vec<(i32, u32)> =
                self.bucket(from).into_iter().flat_map(Bucket::weighted_items).collect();
            let kind = self.item_type(to).and_then(|kind| self.type_name(kind)).unwrap_or_default();
            let place = Location::from([(kind.to_owned(), to_name.clone())]);
            for (item, weight) in items {
                let target = match moves.targets.get(&item) {
                    _ if item >= 0 => item,
                    Some(target) => *target,
                    None => {
                        let why = format!("item {item} in bucket {from} is not also a reclassified bucket");
                        return Err(CrushError::Invalid(why));
                    }
                };
                if self.subtree_contains(to, target) {
                    continue;
                }
                let target_name = name(self, target);
                if target >= 0 {
                    self.insert_item(target, weight, &target_name, &place)?;
                } else {
                    self.link_bucket(&target_name, &place)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the highest free bucket id. Slots grow by one, because the map's encoding contains their number.
    fn new_bucket_id(&mut self) -> i32 {
        let slot = self.buckets.iter().position(Option::is_none).unwrap_or_else(|| {
            self.buckets.push(None);
            self.buckets.len() - 1
        });
        bucket_id_of(slot)
    }

    fn put_bucket(&mut self, bucket: Bucket) {
        if let Some(slot) = bucket_slot(bucket.id).and_then(|slot| self.buckets.get_mut(slot)) {
            *slot = Some(bucket);
        }
    }

    /// Adds a bucket without items, of the same kind as `like`.
    fn put_empty_bucket(&mut self, id: i32, like: &Bucket) -> Result<(), CrushError> {
        let (body, weight) = build_body(like.alg(), &[], self.tunables.straw_calc_version)
            .map_err(|_| CrushError::Invalid(format!("bucket {id} can't be empty")))?;
        self.put_bucket(Bucket {
            id,
            type_id: like.type_id,
            hash: like.hash,
            weight,
            items: Vec::new(),
            body,
        });
        Ok(())
    }
}

/// The changes for the bucket patterns.
#[derive(Default)]
struct Moves {
    /// Bucket to the bucket that its items move to.
    targets: BTreeMap<i32, i32>,
    /// New buckets, and where they are placed if nothing else places them.
    created: BTreeMap<i32, Location>,
    /// Shadows by the bucket whose shadow they become.
    shadows: ClassBuckets,
    /// The new names of shadows.
    shadow_names: BTreeMap<i32, String>,
}
