//! The map's data and its lookups. No placement, no encoding, no edits.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `CRUSH_ITEM_NONE`: a hole in an erasure-coded mapping.
pub const ITEM_NONE: i32 = 0x7fff_ffff;
/// Weight 1.0 in the 16.16 fixed-point format of all CRUSH weights.
pub const WEIGHT_ONE: u32 = 0x1_0000;
/// The id of the choose_args that apply to pools without their own.
pub const DEFAULT_CHOOSE_ARGS: i64 = -1;
/// The maximum number of bucket slots of a map in Nacre. Ceph has no bound and allocates any number that an id requires.
pub const MAX_BUCKETS: usize = 1 << 20;
/// The maximum device count of a map in Nacre.
pub const MAX_DEVICES: i32 = 1 << 24;

/// A cluster's hierarchy of devices, its rules and its tunables.
///
/// Serialized as its binary form, so that deserialized maps are checked like any other binary map.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<u8>", into = "Vec<u8>")]
pub struct CrushMap {
    /// Slot `i` holds the bucket of id `-1 - i`.
    pub(crate) buckets: Vec<Option<Bucket>>,
    pub(crate) rules: Vec<Option<Rule>>,
    /// One more than the highest device id that was ever in the map.
    pub(crate) max_devices: i32,
    pub(crate) type_names: BTreeMap<i32, String>,
    pub(crate) item_names: BTreeMap<i32, String>,
    pub(crate) rule_names: BTreeMap<i32, String>,
    /// Retry counts and algorithm variants.
    pub tunables: Tunables,
    /// Device id to class id.
    pub(crate) device_classes: BTreeMap<i32, i32>,
    pub(crate) class_names: BTreeMap<i32, String>,
    /// Bucket id to (class id to the id of its shadow bucket).
    pub(crate) class_buckets: BTreeMap<i32, BTreeMap<i32, i32>>,
    /// Weight sets and substitute ids: by pool id, or [`DEFAULT_CHOOSE_ARGS`] for all.
    pub(crate) choose_args: BTreeMap<i64, ChooseArgs>,
}

/// An inner node of the hierarchy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// Negative.
    pub id: i32,
    /// Index into the map's type names; 0 is the device type.
    pub type_id: u16,
    /// 0 is `rjenkins1`, the only hash. Draws with another one are all 0.
    pub hash: u8,
    /// Sum of the items' weights, 16.16.
    pub weight: u32,
    /// Devices (from 0) and buckets (below 0).
    pub items: Vec<i32>,
    /// The algorithm and its per-item state.
    pub body: BucketBody,
}

/// How a bucket chooses among its items, with the weights (16.16) in the form that the algorithm uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BucketBody {
    /// All items have the same weight; one is chosen by a permutation.
    Uniform {
        /// Weight of each item.
        item_weight: u32,
    },
    /// Cheap to append to.
    List {
        /// Weight of each item.
        item_weights: Vec<u32>,
        /// Weight of the items up to and including this one.
        sum_weights: Vec<u32>,
    },
    /// A binary tree; item `i` is node `2 i + 1`. Node 0 is not used.
    Tree {
        /// Weight below each node. Their number is a power of two, or 0 without items.
        node_weights: Vec<u32>,
    },
    /// Lengths of straws computed from all weights.
    Straw {
        /// Weight of each item.
        item_weights: Vec<u32>,
        /// Scaled straw lengths, see [`crate::bucket_body`].
        straws: Vec<u32>,
    },
    /// Independent exponential draws: a weight change moves nothing between other items.
    Straw2 {
        /// Weight of each item.
        item_weights: Vec<u32>,
    },
}

/// A bucket's algorithm, with Ceph's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(u8)]
pub enum BucketAlg {
    /// Same weight for all items.
    Uniform = 1,
    /// Linked list.
    List = 2,
    /// Binary tree.
    Tree = 3,
    /// The original straws.
    Straw = 4,
    /// Straws with independent draws.
    Straw2 = 5,
}

impl BucketAlg {
    /// All algorithms, by number.
    pub const ALL: [BucketAlg; 5] = [Self::Uniform, Self::List, Self::Tree, Self::Straw, Self::Straw2];

    /// Converts Ceph's number.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|alg| *alg as u32 == number)
    }

    /// Converts its name in text maps.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|alg| alg.name() == name)
    }

    /// Returns its name in text maps.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::List => "list",
            Self::Tree => "tree",
            Self::Straw => "straw",
            Self::Straw2 => "straw2",
        }
    }
}

impl Bucket {
    /// Returns the algorithm.
    pub fn alg(&self) -> BucketAlg {
        match self.body {
            BucketBody::Uniform { .. } => BucketAlg::Uniform,
            BucketBody::List { .. } => BucketAlg::List,
            BucketBody::Tree { .. } => BucketAlg::Tree,
            BucketBody::Straw { .. } => BucketAlg::Straw,
            BucketBody::Straw2 { .. } => BucketAlg::Straw2,
        }
    }

    /// Returns the weight (16.16) of the item at `pos`; 0 beyond the end.
    pub fn item_weight(&self, pos: usize) -> u32 {
        if pos >= self.items.len() {
            return 0;
        }
        match &self.body {
            BucketBody::Uniform { item_weight } => *item_weight,
            BucketBody::List { item_weights, .. }
            | BucketBody::Straw { item_weights, .. }
            | BucketBody::Straw2 { item_weights } => item_weights[pos],
            BucketBody::Tree { node_weights } => node_weights.get(2 * pos + 1).copied().unwrap_or(0),
        }
    }

    /// Returns all items with their weights (16.16).
    pub fn weighted_items(&self) -> impl Iterator<Item = (i32, u32)> + '_ {
        self.items.iter().enumerate().map(|(pos, &item)| (item, self.item_weight(pos)))
    }

    /// Returns the position of `item` in this bucket.
    pub fn position(&self, item: i32) -> Option<usize> {
        self.items.iter().position(|&i| i == item)
    }
}

/// A named sequence of placement steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// The legacy number by which pools referred to it; the same as the rule's id in every current map.
    pub ruleset: u8,
    /// The kind of pools that may use it.
    pub kind: RuleType,
    /// The minimum pool size to which it applies.
    pub min_size: u8,
    /// The maximum pool size to which it applies.
    pub max_size: u8,
    /// The steps, in order.
    pub steps: Vec<Step>,
}

/// The kind of pool that a rule is for, with Ceph's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RuleType {
    /// 1.
    Replicated,
    /// 3.
    Erasure,
    /// A number that no release assigns, kept unchanged.
    Other(u8),
}

impl RuleType {
    /// Converts Ceph's number.
    pub fn from_number(number: u8) -> Self {
        match number {
            1 => Self::Replicated,
            3 => Self::Erasure,
            n => Self::Other(n),
        }
    }

    /// Returns Ceph's number.
    pub fn number(self) -> u8 {
        match self {
            Self::Replicated => 1,
            Self::Erasure => 3,
            Self::Other(n) => n,
        }
    }
}

/// One step of a rule: an operation and two arguments that it may ignore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The operation.
    pub op: StepOp,
    /// Item to take, number to choose (0 and below: relative to the pool's size), or a setting's value.
    pub arg1: i32,
    /// Type to choose.
    pub arg2: i32,
}

/// Operations of rule steps, with Ceph's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum StepOp {
    Noop = 0,
    Take = 1,
    ChooseFirstn = 2,
    ChooseIndep = 3,
    Emit = 4,
    ChooseleafFirstn = 6,
    ChooseleafIndep = 7,
    SetChooseTries = 8,
    SetChooseleafTries = 9,
    SetChooseLocalTries = 10,
    SetChooseLocalFallbackTries = 11,
    SetChooseleafVaryR = 12,
    SetChooseleafStable = 13,
}

impl StepOp {
    const ALL: [StepOp; 13] = [
        Self::Noop,
        Self::Take,
        Self::ChooseFirstn,
        Self::ChooseIndep,
        Self::Emit,
        Self::ChooseleafFirstn,
        Self::ChooseleafIndep,
        Self::SetChooseTries,
        Self::SetChooseleafTries,
        Self::SetChooseLocalTries,
        Self::SetChooseLocalFallbackTries,
        Self::SetChooseleafVaryR,
        Self::SetChooseleafStable,
    ];

    /// Converts Ceph's number.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|op| *op as u32 == number)
    }

    /// Returns its name in dumps. The settings have the same names in text maps.
    pub fn name(self) -> &'static str {
        match self {
            Self::Noop => "noop",
            Self::Take => "take",
            Self::ChooseFirstn => "choose_firstn",
            Self::ChooseIndep => "choose_indep",
            Self::Emit => "emit",
            Self::ChooseleafFirstn => "chooseleaf_firstn",
            Self::ChooseleafIndep => "chooseleaf_indep",
            Self::SetChooseTries => "set_choose_tries",
            Self::SetChooseleafTries => "set_chooseleaf_tries",
            Self::SetChooseLocalTries => "set_choose_local_tries",
            Self::SetChooseLocalFallbackTries => "set_choose_local_fallback_tries",
            Self::SetChooseleafVaryR => "set_chooseleaf_vary_r",
            Self::SetChooseleafStable => "set_chooseleaf_stable",
        }
    }
}

impl Step {
    /// `step take item`.
    pub fn take(item: i32) -> Self {
        Self { op: StepOp::Take, arg1: item, arg2: 0 }
    }

    /// `step choose…`: `op` is one of the four, `count` is as for [`Step::arg1`].
    pub fn choose(op: StepOp, count: i32, type_id: i32) -> Self {
        Self { op, arg1: count, arg2: type_id }
    }

    /// `step set_…`: `op` is one of the settings.
    pub fn set(op: StepOp, value: i32) -> Self {
        Self { op, arg1: value, arg2: 0 }
    }

    /// `step emit`.
    pub fn emit() -> Self {
        Self { op: StepOp::Emit, arg1: 0, arg2: 0 }
    }
}

/// Retry counts and algorithm variants that the whole map uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tunables {
    /// Retries within a bucket after a collision, before the descent starts again.
    pub choose_local_tries: u32,
    /// Tries with a permutation of the bucket after that.
    pub choose_local_fallback_tries: u32,
    /// Retries of the whole descent.
    pub choose_total_tries: u32,
    /// 1: `chooseleaf` tries its inner descent once.
    pub chooseleaf_descend_once: u32,
    /// Above 0: the inner descent's seed varies with the outer one's, shifted right by this value minus 1.
    pub chooseleaf_vary_r: u8,
    /// 0 keeps the defects of the original straw lengths.
    pub straw_calc_version: u8,
    /// Bit mask of [`BucketAlg`] numbers that may be created.
    pub allowed_bucket_algs: u32,
    /// 1: the inner descent does not depend on the replica's position.
    pub chooseleaf_stable: u8,
}

/// Bit mask of the algorithms that every client supports.
pub const LEGACY_ALLOWED_BUCKET_ALGS: u32 =
    1 << BucketAlg::Uniform as u32 | 1 << BucketAlg::List as u32 | 1 << BucketAlg::Straw as u32;
const HAMMER_ALLOWED_BUCKET_ALGS: u32 = LEGACY_ALLOWED_BUCKET_ALGS | 1 << BucketAlg::Straw2 as u32;

impl Default for Tunables {
    /// `jewel`, which `optimal` and `default` mean since that release.
    fn default() -> Self {
        TunablesProfile::Jewel.tunables()
    }
}

/// Named sets of tunables; `optimal` and `default` are `jewel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum TunablesProfile {
    Argonaut,
    Bobtail,
    Firefly,
    Hammer,
    Jewel,
}

impl TunablesProfile {
    /// All profiles with their own values, oldest first.
    pub const ALL: [TunablesProfile; 5] =
        [Self::Argonaut, Self::Bobtail, Self::Firefly, Self::Hammer, Self::Jewel];

    /// Converts a name as in `ceph osd crush tunables`, including `legacy`, `optimal` and `default`.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "argonaut" | "legacy" => Self::Argonaut,
            "bobtail" => Self::Bobtail,
            "firefly" => Self::Firefly,
            "hammer" => Self::Hammer,
            "jewel" | "optimal" | "default" => Self::Jewel,
            _ => return None,
        })
    }

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Argonaut => "argonaut",
            Self::Bobtail => "bobtail",
            Self::Firefly => "firefly",
            Self::Hammer => "hammer",
            Self::Jewel => "jewel",
        }
    }

    /// Returns the values. `straw_calc_version` belongs to `hammer` and later; a change to an older profile does not change it.
    pub fn tunables(self) -> Tunables {
        let argonaut = Tunables {
            choose_local_tries: 2,
            choose_local_fallback_tries: 5,
            choose_total_tries: 19,
            chooseleaf_descend_once: 0,
            chooseleaf_vary_r: 0,
            straw_calc_version: 0,
            allowed_bucket_algs: LEGACY_ALLOWED_BUCKET_ALGS,
            chooseleaf_stable: 0,
        };
        let bobtail = Tunables {
            choose_local_tries: 0,
            choose_local_fallback_tries: 0,
            choose_total_tries: 50,
            chooseleaf_descend_once: 1,
            ..argonaut
        };
        let firefly = Tunables { chooseleaf_vary_r: 1, ..bobtail };
        let hammer =
            Tunables { straw_calc_version: 1, allowed_bucket_algs: HAMMER_ALLOWED_BUCKET_ALGS, ..firefly };
        match self {
            Self::Argonaut => argonaut,
            Self::Bobtail => bobtail,
            Self::Firefly => firefly,
            Self::Hammer => hammer,
            Self::Jewel => Tunables { chooseleaf_stable: 1, ..hammer },
        }
    }
}

/// Substitute weights and ids for one bucket's straw2 draws.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChooseArg {
    /// One vector of weights (16.16, one per item) per replica position; later positions use the last one.
    pub weight_set: Vec<Vec<u32>>,
    /// The ids to hash instead of the items' ids; empty for the items' ids.
    pub ids: Vec<i32>,
}

impl ChooseArg {
    /// Whether there are no substitutes.
    pub fn is_empty(&self) -> bool {
        self.weight_set.is_empty() && self.ids.is_empty()
    }
}

/// Substitutes for any number of buckets. Canonical: without empty entries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChooseArgs {
    /// Bucket slots (`-1 - id`) and their substitutes, ascending.
    by_slot: Vec<(usize, ChooseArg)>,
}

impl ChooseArgs {
    /// The substitutes for the bucket in `slot`.
    #[inline]
    pub fn get(&self, slot: usize) -> Option<&ChooseArg> {
        self.place(slot).ok().map(|at| &self.by_slot[at].1)
    }

    #[inline]
    fn place(&self, slot: usize) -> Result<usize, usize> {
        // If every bucket has substitutes, as with those of the balancer, the slot is the index.
        match self.by_slot.get(slot) {
            Some((at, _)) if *at == slot => Ok(slot),
            _ => self.by_slot.binary_search_by_key(&slot, |(at, _)| *at),
        }
    }

    /// Slots and their substitutes, in the order of slots.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &ChooseArg)> {
        self.by_slot.iter().map(|(slot, arg)| (*slot, arg))
    }

    /// Replaces the substitutes of a slot; an empty `arg` removes them.
    pub fn set(&mut self, slot: usize, arg: ChooseArg) {
        match (self.place(slot), arg.is_empty()) {
            (Ok(at), false) => self.by_slot[at].1 = arg,
            (Ok(at), true) => drop(self.by_slot.remove(at)),
            (Err(at), false) => self.by_slot.insert(at, (slot, arg)),
            (Err(_), true) => {}
        }
    }

    pub(crate) fn get_mut(&mut self, slot: usize) -> Option<&mut ChooseArg> {
        let at = self.place(slot).ok()?;
        Some(&mut self.by_slot[at].1)
    }

    /// Whether no bucket has substitutes.
    pub fn is_empty(&self) -> bool {
        self.by_slot.is_empty()
    }
}

/// Returns the slot of a bucket id, or `None` for a device.
#[inline]
pub(crate) fn bucket_slot(id: i32) -> Option<usize> {
    (id < 0).then_some(!id as usize)
}

/// Returns the bucket id of a slot.
#[inline]
pub(crate) fn bucket_id_of(slot: usize) -> i32 {
    !(slot as i32)
}

impl CrushMap {
    /// Returns the bucket with this (negative) id.
    #[inline]
    pub fn bucket(&self, id: i32) -> Option<&Bucket> {
        self.buckets.get(bucket_slot(id)?)?.as_ref()
    }

    pub(crate) fn bucket_mut(&mut self, id: i32) -> Option<&mut Bucket> {
        self.buckets.get_mut(bucket_slot(id)?)?.as_mut()
    }

    /// All buckets, from id -1 downwards.
    pub fn buckets(&self) -> impl Iterator<Item = &Bucket> {
        self.buckets.iter().flatten()
    }

    /// The number of bucket slots, used or not.
    pub fn max_buckets(&self) -> usize {
        self.buckets.len()
    }

    /// One more than the highest device id.
    pub fn max_devices(&self) -> i32 {
        self.max_devices
    }

    /// Returns the rule with this id.
    pub fn rule(&self, rule: u32) -> Option<&Rule> {
        self.rules.get(rule as usize)?.as_ref()
    }

    /// Rules with their ids.
    pub fn rules(&self) -> impl Iterator<Item = (u32, &Rule)> {
        self.rules.iter().enumerate().filter_map(|(id, rule)| Some((id as u32, rule.as_ref()?)))
    }

    /// The number of rule slots, used or not.
    pub fn max_rules(&self) -> usize {
        self.rules.len()
    }

    /// The name of a rule.
    pub fn rule_name(&self, rule: u32) -> Option<&str> {
        self.rule_names.get(&(rule as i32)).map(String::as_str)
    }

    /// Returns the id of the rule `name`.
    pub fn rule_id(&self, name: &str) -> Option<u32> {
        self.rule_names.iter().find(|(_, n)| *n == name).map(|(&id, _)| id as u32)
    }

    /// `find_rule`: returns the rule that a pool with this rule number, kind and size uses.
    pub fn find_rule(&self, ruleset: u8, kind: RuleType, size: u32) -> Option<u32> {
        let fits = |r: &Rule| {
            r.ruleset == ruleset
                && r.kind == kind
                && u32::from(r.min_size) <= size
                && size <= u32::from(r.max_size)
        };
        self.rules().find(|(_, rule)| fits(rule)).map(|(id, _)| id)
    }

    /// The name of a device or bucket.
    pub fn item_name(&self, item: i32) -> Option<&str> {
        self.item_names.get(&item).map(String::as_str)
    }

    /// Returns the device or bucket `name`.
    pub fn item_id(&self, name: &str) -> Option<i32> {
        self.item_names.iter().find(|(_, n)| *n == name).map(|(&id, _)| id)
    }

    /// All names of devices and buckets, by id.
    pub fn item_names(&self) -> impl Iterator<Item = (i32, &str)> {
        self.item_names.iter().map(|(&id, name)| (id, name.as_str()))
    }

    /// The name of a type.
    pub fn type_name(&self, type_id: i32) -> Option<&str> {
        self.type_names.get(&type_id).map(String::as_str)
    }

    /// Returns the type `name`.
    pub fn type_id(&self, name: &str) -> Option<i32> {
        self.type_names.iter().find(|(_, n)| *n == name).map(|(&id, _)| id)
    }

    /// All types, by number.
    pub fn type_names(&self) -> impl Iterator<Item = (i32, &str)> {
        self.type_names.iter().map(|(&id, name)| (id, name.as_str()))
    }

    /// The type of a device (0) or bucket.
    pub fn item_type(&self, item: i32) -> Option<i32> {
        if item >= 0 { Some(0) } else { self.bucket(item).map(|b| i32::from(b.type_id)) }
    }

    /// The name of a device class.
    pub fn class_name(&self, class: i32) -> Option<&str> {
        self.class_names.get(&class).map(String::as_str)
    }

    /// Returns the device class `name`.
    pub fn class_id(&self, name: &str) -> Option<i32> {
        self.class_names.iter().find(|(_, n)| *n == name).map(|(&id, _)| id)
    }

    /// All device classes, by id.
    pub fn class_names(&self) -> impl Iterator<Item = (i32, &str)> {
        self.class_names.iter().map(|(&id, name)| (id, name.as_str()))
    }

    /// The class of a device.
    pub fn device_class(&self, device: i32) -> Option<&str> {
        self.class_name(*self.device_classes.get(&device)?)
    }

    /// Returns the shadow bucket with only `bucket`'s devices of `class`.
    pub fn class_bucket(&self, bucket: i32, class: i32) -> Option<i32> {
        self.class_buckets.get(&bucket)?.get(&class).copied()
    }

    /// Whether `id` is the shadow of another bucket (its name has a `~`).
    pub fn is_shadow(&self, id: i32) -> bool {
        self.item_name(id).is_some_and(|name| name.contains('~'))
    }

    /// Returns the choose_args with exactly this id.
    pub fn choose_args_of(&self, id: i64) -> Option<&ChooseArgs> {
        self.choose_args.get(&id)
    }

    /// Returns the choose_args for a pool's mapping: its own, else the default ones.
    pub fn choose_args_with_fallback(&self, pool: i64) -> Option<&ChooseArgs> {
        self.choose_args.get(&pool).or_else(|| self.choose_args.get(&DEFAULT_CHOOSE_ARGS))
    }

    /// All choose_args, by id.
    pub fn choose_args(&self) -> impl Iterator<Item = (i64, &ChooseArgs)> {
        self.choose_args.iter().map(|(&id, args)| (id, args))
    }

    /// Returns the buckets that directly contain `item`, from id -1 downwards.
    pub fn parents(&self, item: i32) -> impl Iterator<Item = &Bucket> {
        self.buckets().filter(move |b| b.items.contains(&item))
    }

    /// Whether a bucket contains `item`.
    pub fn is_linked(&self, item: i32) -> bool {
        self.parents(item).next().is_some()
    }

    /// Returns the buckets that no bucket contains, in ascending order of ids. With `shadows`, those of device classes are
    /// included.
    pub fn roots(&self, shadows: bool) -> Vec<i32> {
        let held: std::collections::BTreeSet<i32> =
            self.buckets().flat_map(|b| b.items.iter().copied()).collect();
        let mut roots: Vec<i32> = self
            .buckets()
            .map(|b| b.id)
            .filter(|id| !held.contains(id) && (shadows || !self.is_shadow(*id)))
            .collect();
        roots.sort_unstable();
        roots
    }

    /// Whether `item` is `root` or is below it.
    pub fn subtree_contains(&self, root: i32, item: i32) -> bool {
        let mut seen = std::collections::BTreeSet::new();
        let mut queue = vec![root];
        while let Some(next) = queue.pop() {
            if next == item {
                return true;
            }
            if let Some(bucket) = self.bucket(next).filter(|_| seen.insert(next)) {
                queue.extend(&bucket.items);
            }
        }
        false
    }
}
