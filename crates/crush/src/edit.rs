//! Changes to the hierarchy: adding, moving, removing and reweighting items.
//!
//! Every edit keeps the map's invariants: bucket weights are sums, ancestors are updated, no bucket contains itself, weight
//! sets have one weight per item, and the shadow trees of device classes are rebuilt (with the same ids). An edit that fails
//! leaves the map unchanged.

mod links;

use crate::bucket_body::{BodyError, build_body};
use crate::model::{
    Bucket, BucketAlg, ChooseArg, ChooseArgs, CrushMap, MAX_BUCKETS, MAX_DEVICES, TunablesProfile,
    WEIGHT_ONE, bucket_id_of, bucket_slot,
};
use std::collections::BTreeMap;

/// The location of an item: type name to bucket name, as in `root=default host=a`.
pub type Location = BTreeMap<String, String>;

/// Types of a new cluster's map, from 0 up.
const DEFAULT_TYPES: [&str; 12] =
    ["osd", "host", "chassis", "rack", "row", "pdu", "pod", "room", "datacenter", "zone", "region", "root"];

/// The maximum weight of a device (16.16) in the text form; as in Ceph, edits may exceed it.
pub const MAX_DEVICE_WEIGHT: u32 = 100 * WEIGHT_ONE;
/// The maximum weight of a bucket as an item (16.16).
pub const MAX_BUCKET_WEIGHT: u32 = 65_535 * WEIGHT_ONE;

/// Why an edit was refused. The map is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CrushError {
    /// A named item does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The item to be created already exists.
    #[error("{0}")]
    Exists(String),
    /// The item is still referenced.
    #[error("{0}")]
    InUse(String),
    /// The bucket still has items.
    #[error("{0}")]
    NotEmpty(String),
    /// An argument is invalid.
    #[error("{0}")]
    Invalid(String),
    /// A bucket would contain itself.
    #[error("{0}")]
    Loop(String),
    /// A weight or number exceeds its limit.
    #[error("{0}")]
    OutOfRange(String),
}

/// Whether `name` is valid for a type, item, class or rule: `[-_.0-9a-zA-Z]+`.
pub fn is_valid_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// Converts a user's weight to 16.16, truncated as in Ceph. Fails above [`MAX_BUCKET_WEIGHT`] and below 0.
pub fn weight_from_f32(weight: f32) -> Result<u32, CrushError> {
    let scaled = weight * WEIGHT_ONE as f32;
    if (0.0..=MAX_BUCKET_WEIGHT as f32).contains(&scaled) {
        Ok(scaled as u32)
    } else {
        Err(CrushError::OutOfRange(format!("weight {weight} is out of range")))
    }
}

impl CrushMap {
    /// Creates an empty map with the default (`jewel`) tunables and no types.
    pub fn empty() -> Self {
        Self { tunables: TunablesProfile::Jewel.tunables(), ..Self::default() }
    }

    /// Creates a new cluster's map: Ceph's types, the root `default` and the rule `replicated_rule`, which distributes replicas
    /// over buckets of type `failure_domain` (`osd` for a single machine).
    pub fn new_cluster(failure_domain: &str) -> Result<Self, CrushError> {
        let mut map = Self::empty();
        for (id, name) in DEFAULT_TYPES.into_iter().enumerate() {
            map.set_type_name(id as i32, name)?;
        }
        let root = (DEFAULT_TYPES.len() - 1) as u16;
        map.add_bucket(None, map.default_bucket_alg(), 0, root, &[], "default")?;
        map.add_simple_rule(
            "replicated_rule",
            "default",
            failure_domain,
            None,
            true,
            crate::RuleType::Replicated,
        )?;
        Ok(map)
    }

    /// Returns the best algorithm for new buckets that `allowed_bucket_algs` permits.
    pub fn default_bucket_alg(&self) -> BucketAlg {
        [BucketAlg::Straw2, BucketAlg::Straw, BucketAlg::Tree, BucketAlg::List]
            .into_iter()
            .find(|alg| self.tunables.allowed_bucket_algs & (1 << *alg as u32) != 0)
            .unwrap_or(BucketAlg::Uniform)
    }

    /// Sets the values of a profile. As in Ceph, straw lengths are recomputed only when buckets change next.
    pub fn set_tunables_profile(&mut self, profile: TunablesProfile) {
        let kept = self.tunables.straw_calc_version;
        self.tunables = profile.tunables();
        if matches!(profile, TunablesProfile::Argonaut | TunablesProfile::Bobtail | TunablesProfile::Firefly)
        {
            self.tunables.straw_calc_version = kept.min(self.tunables.straw_calc_version);
        }
    }

    /// Names a type; 0 is the device type.
    pub fn set_type_name(&mut self, type_id: i32, name: &str) -> Result<(), CrushError> {
        check_name(name)?;
        if !(0..=i32::from(u16::MAX)).contains(&type_id) {
            return Err(CrushError::OutOfRange(format!("type {type_id} is out of range")));
        }
        self.type_names.insert(type_id, name.to_owned());
        Ok(())
    }

    /// Names or renames a device or bucket; a device need not be in the hierarchy. Shadow buckets are renamed too.
    pub fn set_item_name(&mut self, item: i32, name: &str) -> Result<(), CrushError> {
        check_name(name)?;
        match self.item_id(name) {
            Some(owner) if owner == item => return Ok(()),
            Some(_) => return Err(CrushError::Exists(format!("item '{name}' already exists"))),
            None => {}
        }
        if item >= MAX_DEVICES {
            return Err(CrushError::OutOfRange(format!("device {item} is out of range")));
        }
        self.item_names.insert(item, name.to_owned());
        self.recompute_max_devices();
        if let Some(shadows) = self.class_buckets.get(&item) {
            for (class, &shadow) in shadows {
                if let Some(class) = self.class_names.get(class) {
                    self.item_names.insert(shadow, format!("{name}~{class}"));
                }
            }
        }
        Ok(())
    }

    /// `osd crush rename-bucket`.
    pub fn rename_bucket(&mut self, from: &str, to: &str) -> Result<(), CrushError> {
        let Some(id) = self.item_id(from) else {
            return Err(CrushError::NotFound(format!("srcname = '{from}' does not exist")));
        };
        if self.item_id(to).is_some() {
            return Err(CrushError::Exists(format!("dstname = '{to}' already exists")));
        }
        if id >= 0 {
            let why = format!("srcname = '{from}' is not a bucket because its id = {id} is >= 0");
            return Err(CrushError::Invalid(why));
        }
        self.set_item_name(id, to)
    }

    /// Adds a bucket outside the hierarchy, with its items' weights (16.16). Chooses the id if none is given.
    pub fn add_bucket(
        &mut self,
        id: Option<i32>,
        alg: BucketAlg,
        hash: u8,
        type_id: u16,
        items: &[(i32, u32)],
        name: &str,
    ) -> Result<i32, CrushError> {
        check_name(name)?;
        if self.item_id(name).is_some() {
            return Err(CrushError::Exists(format!("item '{name}' already exists")));
        }
        let id = self.insert_unnamed_bucket(id, alg, hash, type_id, items)?;
        self.item_names.insert(id, name.to_owned());
        self.recompute_max_devices();
        Ok(id)
    }

    /// Adds a bucket without a name.
    pub(crate) fn insert_unnamed_bucket(
        &mut self,
        id: Option<i32>,
        alg: BucketAlg,
        hash: u8,
        type_id: u16,
        items: &[(i32, u32)],
    ) -> Result<i32, CrushError> {
        if type_id == 0 {
            return Err(CrushError::Invalid("a bucket can't have the devices' type 0".into()));
        }
        let slot = match id {
            Some(id) => {
                bucket_slot(id).ok_or_else(|| CrushError::Invalid(format!("{id} is not a bucket id")))?
            }
            None => self.buckets.iter().position(Option::is_none).unwrap_or(self.buckets.len()),
        };
        if slot >= MAX_BUCKETS {
            return Err(CrushError::OutOfRange(format!("bucket {} is out of range", bucket_id_of(slot))));
        }
        if self.bucket(bucket_id_of(slot)).is_some() {
            return Err(CrushError::Exists(format!("bucket {} exists", bucket_id_of(slot))));
        }
        let (ids, weights): (Vec<i32>, Vec<u32>) = items.iter().copied().unzip();
        for &item in &ids {
            if item >= MAX_DEVICES || (item < 0 && self.bucket(item).is_none()) {
                return Err(CrushError::NotFound(format!("item {item} does not exist")));
            }
        }
        let (body, weight) =
            build_body(alg, &weights, self.tunables.straw_calc_version).map_err(body_error)?;
        // Slots grow as in Ceph, because the map's encoding contains their number.
        while slot >= self.buckets.len() {
            let grown = (self.buckets.len() * 2).max(8);
            self.buckets.resize(grown, None);
        }
        self.buckets[slot] = Some(Bucket { id: bucket_id_of(slot), type_id, hash, weight, items: ids, body });
        self.recompute_max_devices();
        Ok(bucket_id_of(slot))
    }

    /// Applies `edit` to a copy, rebuilds what depends on the hierarchy, and keeps the copy if everything succeeded.
    fn transact<T>(
        &mut self,
        edit: impl FnOnce(&mut Self) -> Result<T, CrushError>,
    ) -> Result<T, CrushError> {
        let mut next = self.clone();
        let result = edit(&mut next)?;
        next.rebuild_class_roots()?;
        next.recompute_max_devices();
        next.check_structure().map_err(|error| CrushError::OutOfRange(error.to_string()))?;
        *self = next;
        Ok(result)
    }

    /// `osd crush add`: adds an item that is not in the hierarchy at a location. Creates the missing buckets of `loc`.
    pub fn insert_item(
        &mut self,
        item: i32,
        weight: u32,
        name: &str,
        loc: &Location,
    ) -> Result<(), CrushError> {
        self.transact(|map| map.insert(item, weight, name, loc))
    }

    fn insert(&mut self, item: i32, weight: u32, name: &str, loc: &Location) -> Result<(), CrushError> {
        check_name(name)?;
        self.check_location_names(loc)?;
        self.item_type(item).ok_or_else(|| no_bucket(item))?;
        match self.item_id(name) {
            Some(owner) if owner != item => {
                return Err(CrushError::Exists(format!("device name '{name}' already exists as id {owner}")));
            }
            Some(_) => {}
            None => self.set_item_name(item, name)?,
        }
        let levels: Vec<(i32, String)> =
            self.type_names().filter(|(id, _)| *id > 0).map(|(id, n)| (id, n.to_owned())).collect();
        let mut lowest = item;
        for (type_id, type_name) in levels {
            let Some(bucket_name) = loc.get(&type_name) else { continue };
            let Some(id) = self.item_id(bucket_name) else {
                let new =
                    self.add_bucket(None, self.default_bucket_alg(), 0, type_id as u16, &[], bucket_name)?;
                self.init_weight_sets(new);
                self.link(new, lowest, self.weight_below(lowest, item, weight))?;
                lowest = new;
                continue;
            };
            let bucket = self.bucket(id).ok_or_else(|| {
                CrushError::Invalid(format!("{bucket_name} is a device, not a {type_name}"))
            })?;
            if i32::from(bucket.type_id) != type_id {
                let is = self.type_name(i32::from(bucket.type_id)).unwrap_or("unknown");
                return Err(CrushError::Invalid(format!("{bucket_name} is a {is}, not a {type_name}")));
            }
            if self.subtree_contains(lowest, id) {
                return Err(CrushError::Loop(format!(
                    "{name} can't be moved below itself, to {bucket_name}"
                )));
            }
            if bucket.items.contains(&lowest) {
                return Err(CrushError::Exists(format!("{name} is already in {bucket_name}")));
            }
            self.link(id, lowest, self.weight_below(lowest, item, weight))?;
            return Ok(());
        }
        if lowest == item {
            return Err(CrushError::Invalid(format!("no location given for {name}")));
        }
        Ok(())
    }

    /// Returns the weight with which `lowest` (the new item, or a new bucket around it) is added to its parent.
    fn weight_below(&self, lowest: i32, item: i32, weight: u32) -> u32 {
        if lowest == item { weight } else { self.bucket(lowest).map_or(0, |b| b.weight) }
    }

    fn check_location_names(&self, loc: &Location) -> Result<(), CrushError> {
        for (type_name, bucket_name) in loc {
            if self.type_id(type_name).is_none_or(|id| id == 0) {
                return Err(CrushError::Invalid(format!("unknown bucket type '{type_name}'")));
            }
            check_name(bucket_name)?;
        }
        Ok(())
    }

    /// Returns the weight (16.16) of the item in the lowest bucket of `loc`, or `None` if it is not directly in it.
    pub fn weight_at(&self, item: i32, loc: &Location) -> Option<u32> {
        let (_, bucket_name) =
            self.type_names().filter(|(id, _)| *id > 0).find_map(|(id, name)| Some((id, loc.get(name)?)))?;
        let bucket = self.bucket(self.item_id(bucket_name)?)?;
        bucket.position(item).map(|at| bucket.item_weight(at))
    }

    /// `osd crush set`: moves an item from any place to `loc`, with this weight. Returns true if the map changed.
    pub fn update_item(
        &mut self,
        item: i32,
        weight: u32,
        name: &str,
        loc: &Location,
    ) -> Result<bool, CrushError> {
        if let Some(now) = self.weight_at(item, loc) {
            let renamed = self.item_name(item) != Some(name);
            if now == weight && !renamed {
                return Ok(false);
            }
            self.transact(|map| {
                map.set_item_name(item, name)?;
                map.set_weight_everywhere(item, weight, Some(loc))
            })?;
            return Ok(true);
        }
        self.transact(|map| {
            map.detach(item)?;
            map.insert(item, weight, name, loc)
        })?;
        Ok(true)
    }

    /// `osd crush create-or-move`: leaves an item that is at `loc` unchanged, moves it there with its weight, or adds it with
    /// `weight`. Returns true if the map changed.
    pub fn create_or_move_item(
        &mut self,
        item: i32,
        weight: u32,
        name: &str,
        loc: &Location,
    ) -> Result<bool, CrushError> {
        if self.weight_at(item, loc).is_some() {
            return Ok(false);
        }
        let weight = self.item_weight(item).unwrap_or(weight);
        self.transact(|map| {
            map.detach(item)?;
            map.insert(item, weight, name, loc)
        })?;
        Ok(true)
    }

    /// `osd crush move`: moves a bucket or device, with its weight, to `loc`.
    pub fn move_item(&mut self, name: &str, loc: &Location) -> Result<(), CrushError> {
        let item = self.item_id(name).ok_or_else(|| no_item(name))?;
        let weight = self.item_weight(item).or(self.bucket(item).map(|b| b.weight)).unwrap_or(0);
        self.transact(|map| {
            map.detach(item)?;
            map.insert(item, weight, name, loc)
        })
    }

    /// `osd crush link`: adds a bucket at an additional place.
    pub fn link_bucket(&mut self, name: &str, loc: &Location) -> Result<(), CrushError> {
        let item = self.item_id(name).ok_or_else(|| no_item(name))?;
        let weight =
            self.bucket(item).ok_or_else(|| CrushError::Invalid(format!("{name} is not a bucket")))?.weight;
        self.transact(|map| map.insert(item, weight, name, loc))
    }

    /// `osd crush add-bucket`: adds an empty bucket, at `loc` if that is not empty.
    pub fn add_empty_bucket(
        &mut self,
        name: &str,
        type_name: &str,
        loc: &Location,
    ) -> Result<i32, CrushError> {
        let type_id = self
            .type_id(type_name)
            .ok_or_else(|| CrushError::Invalid(format!("type '{type_name}' does not exist")))?;
        self.transact(|map| {
            let id = map.add_bucket(None, map.default_bucket_alg(), 0, type_id as u16, &[], name)?;
            if !loc.is_empty() {
                map.init_weight_sets(id);
                map.insert(id, 0, name, loc)?;
            }
            Ok(id)
        })
    }

    /// Sets the weight sets and ids of a pool, or of all pools ([`crate::DEFAULT_CHOOSE_ARGS`]). They must fit the buckets.
    /// Those of other algorithms than straw2 have no effect and are dropped.
    pub fn set_choose_args(&mut self, id: i64, args: ChooseArgs) -> Result<(), CrushError> {
        let mut kept = ChooseArgs::default();
        for (slot, arg) in args.iter() {
            let Some(bucket) = self.bucket(bucket_id_of(slot)) else {
                return Err(no_bucket(bucket_id_of(slot)));
            };
            let size = bucket.items.len();
            if arg.weight_set.iter().any(|weights| weights.len() != size)
                || !(arg.ids.is_empty() || arg.ids.len() == size)
            {
                let why = format!("choose_args of bucket {} need exactly {size} weights and ids", bucket.id);
                return Err(CrushError::Invalid(why));
            }
            if bucket.alg() == BucketAlg::Straw2 {
                kept.set(slot, arg.clone());
            }
        }
        self.choose_args.insert(id, kept);
        Ok(())
    }

    /// Removes the choose_args of a pool. Returns true if there were any.
    pub fn remove_choose_args(&mut self, id: i64) -> bool {
        self.choose_args.remove(&id).is_some()
    }

    fn detach(&mut self, item: i32) -> Result<(), CrushError> {
        let parents: Vec<i32> = self.parents(item).map(|b| b.id).filter(|id| !self.is_shadow(*id)).collect();
        parents.into_iter().try_for_each(|parent| self.unlink(parent, item))
    }

    /// `osd crush rm`: removes an item from the map. A bucket must be empty and must not be a rule's root.
    pub fn remove_item(&mut self, name: &str) -> Result<(), CrushError> {
        let item = self.item_id(name).ok_or_else(|| no_item(name))?;
        if let Some(bucket) = self.bucket(item) {
            if !bucket.items.is_empty() {
                return Err(CrushError::NotEmpty(format!("bucket '{name}' is not empty")));
            }
            if self.is_taken_by_rule(item) || self.is_shadow(item) {
                return Err(CrushError::InUse(format!("bucket '{name}' is in use")));
            }
        }
        self.transact(|map| {
            map.detach(item)?;
            map.erase_item(item);
            Ok(())
        })
    }

    /// `osd crush rm NAME ANCESTOR`, `osd crush unlink`: removes an item from one ancestor; it remains at other places.
    pub fn remove_item_under(&mut self, name: &str, ancestor: &str) -> Result<(), CrushError> {
        let item = self.item_id(name).ok_or_else(|| no_item(name))?;
        let root = self.item_id(ancestor).ok_or_else(|| no_item(ancestor))?;
        self.transact(|map| {
            let parents: Vec<i32> =
                map.parents(item).map(|b| b.id).filter(|&id| map.subtree_contains(root, id)).collect();
            if parents.is_empty() {
                return Err(CrushError::NotFound(format!("{name} is not below {ancestor}")));
            }
            parents.into_iter().try_for_each(|parent| map.unlink(parent, item))?;
            if item >= 0 && !map.is_linked(item) {
                map.erase_item(item);
            }
            Ok(())
        })
    }

    /// Removes an unlinked item's name, class and bucket.
    pub(crate) fn erase_item(&mut self, item: i32) {
        self.item_names.remove(&item);
        self.device_classes.remove(&item);
        if let Some(slot) = bucket_slot(item) {
            self.class_buckets.remove(&item);
            if let Some(bucket) = self.buckets.get_mut(slot) {
                *bucket = None;
            }
            for args in self.choose_args.values_mut() {
                if args.get(slot).is_some() {
                    args.set(slot, ChooseArg::default());
                }
            }
        }
    }

    /// Whether a rule takes this bucket or one of its shadows.
    pub fn is_taken_by_rule(&self, bucket: i32) -> bool {
        let is_it = |taken: i32| {
            taken == bucket
                || self
                    .class_buckets
                    .get(&bucket)
                    .is_some_and(|shadows| shadows.values().any(|&s| s == taken))
        };
        self.rules().any(|(_, rule)| rule.steps.iter().any(|s| s.op == crate::StepOp::Take && is_it(s.arg1)))
    }

    /// Returns the weight (16.16) of an item in the first bucket that contains it.
    pub fn item_weight(&self, item: i32) -> Option<u32> {
        let bucket = self.parents(item).find(|b| !self.is_shadow(b.id))?;
        bucket.position(item).map(|at| bucket.item_weight(at))
    }

    /// `osd crush reweight`: sets the weight (16.16) of an item at all places. A bucket's weight is the sum of its items and
    /// can't be set.
    pub fn reweight_item(&mut self, name: &str, weight: u32) -> Result<(), CrushError> {
        let item = self.item_id(name).ok_or_else(|| no_item(name))?;
        if item < 0 {
            return Err(CrushError::Invalid(format!("device '{name}' is not a leaf in the crush map")));
        }
        self.transact(|map| map.set_weight_everywhere(item, weight, None))
    }

    /// `crushtool --reweight-item`: like [`CrushMap::reweight_item`], but also for a bucket, whose weight in its parent is then
    /// not a sum until [`CrushMap::reweight_all`].
    pub fn adjust_item_weight(&mut self, name: &str, weight: u32) -> Result<(), CrushError> {
        let item = self.item_id(name).ok_or_else(|| no_item(name))?;
        self.transact(|map| map.set_weight_everywhere(item, weight, None))
    }

    /// `osd crush reweight-subtree`: sets the weight (16.16) of all devices below a bucket.
    pub fn reweight_subtree(&mut self, name: &str, weight: u32) -> Result<(), CrushError> {
        let root = self.item_id(name).ok_or_else(|| no_item(name))?;
        self.transact(|map| {
            let devices = map.devices_below(root);
            devices.into_iter().try_for_each(|device| map.set_weight_everywhere(device, weight, None))
        })
    }

    fn set_weight_everywhere(
        &mut self,
        item: i32,
        weight: u32,
        loc: Option<&Location>,
    ) -> Result<(), CrushError> {
        let wanted = |b: &Bucket| match loc {
            None => true,
            Some(loc) => self.item_name(b.id).is_some_and(|name| loc.values().any(|n| n == name)),
        };
        let parents: Vec<i32> =
            self.parents(item).filter(|b| !self.is_shadow(b.id) && wanted(b)).map(|b| b.id).collect();
        if parents.is_empty() {
            let name = self.item_name(item).unwrap_or("item").to_owned();
            return Err(CrushError::NotFound(format!("{name} is not in the hierarchy")));
        }
        parents.into_iter().try_for_each(|parent| self.set_weight_in(parent, item, weight, true))?;
        self.recompute_weight_sets();
        Ok(())
    }

    /// `osd crush reweight-all`: sets every bucket's weight to the sum of its items.
    pub fn reweight_all(&mut self) -> Result<(), CrushError> {
        self.transact(|map| {
            let roots = map.roots(true);
            roots.into_iter().try_for_each(|root| map.reweight_below(root))
        })
    }

    /// Returns all devices in or below `item`, each once, in descending order of the walk.
    pub fn devices_below(&self, item: i32) -> Vec<i32> {
        let mut devices = Vec::new();
        let mut seen = std::collections::BTreeSet::new();
        let mut queue = vec![item];
        while let Some(next) = queue.pop() {
            if !seen.insert(next) {
                continue;
            }
            match self.bucket(next) {
                Some(bucket) => queue.extend(bucket.items.iter().rev()),
                None if next >= 0 => devices.push(next),
                None => {}
            }
        }
        devices
    }

    /// Returns the location of an item: all ancestors through first parents, without shadows.
    pub fn full_location(&self, item: i32) -> Location {
        let mut loc = Location::new();
        let mut at = item;
        while let Some(parent) = self.parents(at).find(|b| !self.is_shadow(b.id)) {
            if let (Some(kind), Some(name)) =
                (self.type_name(i32::from(parent.type_id)), self.item_name(parent.id))
            {
                loc.insert(kind.to_owned(), name.to_owned());
            }
            at = parent.id;
        }
        loc
    }
}

fn check_name(name: &str) -> Result<(), CrushError> {
    if is_valid_name(name) {
        Ok(())
    } else {
        Err(CrushError::Invalid(format!("invalid name '{name}': it must match [-_.0-9a-zA-Z]+")))
    }
}

fn no_item(name: &str) -> CrushError {
    CrushError::NotFound(format!("item '{name}' does not exist"))
}

fn no_bucket(id: i32) -> CrushError {
    CrushError::NotFound(format!("bucket {id} does not exist"))
}

fn body_error(error: BodyError) -> CrushError {
    match error {
        BodyError::WeightOverflow => CrushError::OutOfRange("bucket weight overflows".into()),
        BodyError::TreeTooBig => CrushError::OutOfRange(format!(
            "a tree bucket holds at most {} items",
            crate::bucket_body::MAX_TREE_BUCKET_ITEMS
        )),
        BodyError::NotUniform => {
            CrushError::Invalid("items of a uniform bucket must have identical weights".into())
        }
    }
}
