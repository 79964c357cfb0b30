//! Random but reproducible maps with all features: algorithms, depths, weights, classes, weight sets, tunables, rules with all
//! steps.

use nacre_crush::{
    BucketAlg, ChooseArg, ChooseArgs, CrushMap, DEFAULT_CHOOSE_ARGS, Rule, RuleType, Step, StepOp,
    TunablesProfile, WEIGHT_ONE,
};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const TYPES: [&str; 6] = ["osd", "host", "rack", "room", "datacenter", "root"];
const ROOT_TYPE: i32 = 5;
const CLASSES: [&str; 3] = ["hdd", "ssd", "nvme"];

/// A map and the parameters of its tests.
pub(crate) struct Case {
    pub(crate) map: CrushMap,
    /// Devices that are out or reweighted, as 16.16.
    pub(crate) reweights: Vec<(i32, u32)>,
    /// Result sizes by rule id.
    pub(crate) sizes: Vec<(u32, usize)>,
}

pub(crate) fn rng(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

/// Returns case number `seed`, which is the same on every machine and in every run.
pub(crate) fn case(seed: u64) -> Case {
    let mut rng = rng(seed);
    let mut map = CrushMap::empty();
    match seed % 6 {
        n @ 0..5 => map.set_tunables_profile(TunablesProfile::ALL[n as usize]),
        _ => {
            map.tunables.choose_local_tries = rng.random_range(0..4);
            map.tunables.choose_local_fallback_tries = rng.random_range(0..6);
            map.tunables.choose_total_tries = rng.random_range(1..60);
            map.tunables.chooseleaf_descend_once = rng.random_range(0..2);
            map.tunables.chooseleaf_vary_r = rng.random_range(0..5);
            map.tunables.chooseleaf_stable = rng.random_range(0..2);
        }
    }
    map.tunables.straw_calc_version = rng.random_range(0..2);
    map.tunables.allowed_bucket_algs = 62;
    for (id, name) in TYPES.into_iter().enumerate() {
        map.set_type_name(id as i32, name).unwrap();
    }

    // crushtool 16.2 fails for the shadows of uniform buckets and leaves uninitialised memory in those of tree buckets, so maps
    // have either classes or these algorithms.
    let with_classes = rng.random_bool(0.5);
    let algs: &[BucketAlg] =
        if with_classes { &[BucketAlg::List, BucketAlg::Straw, BucketAlg::Straw2] } else { &BucketAlg::ALL };
    let mut tree = Tree { map, rng, algs, next_device: 0, buckets: 0 };
    let roots = if tree.rng.random_bool(0.2) { 2 } else { 1 };
    let root_ids: Vec<i32> = (0..roots).map(|_| tree.grow(ROOT_TYPE).0).collect();
    let Tree { mut map, mut rng, .. } = tree;

    if with_classes {
        for device in 0..map.max_devices() {
            if rng.random_bool(0.8) && map.item_name(device).is_some() {
                map.set_device_class(device, CLASSES.choose(&mut rng).unwrap()).unwrap();
            }
        }
    }
    if rng.random_bool(0.4) {
        add_choose_args(&mut map, &mut rng);
    }
    let sizes = add_rules(&mut map, &root_ids, &mut rng);
    let reweights = (0..map.max_devices())
        .filter_map(|device| match rng.random_range(0..8) {
            0 => Some((device, 0)),
            1 => Some((device, rng.random_range(1..32) * WEIGHT_ONE / 32)),
            _ => None,
        })
        .collect();
    Case { map, reweights, sizes }
}

struct Tree<'a> {
    map: CrushMap,
    rng: ChaCha8Rng,
    algs: &'a [BucketAlg],
    next_device: i32,
    buckets: i32,
}

impl Tree<'_> {
    /// Creates a bucket of this type with everything below it. Returns its id and weight.
    fn grow(&mut self, type_id: i32) -> (i32, u32) {
        let alg = *self.algs.choose(&mut self.rng).unwrap();
        let alg = if self.rng.random_bool(0.4) { BucketAlg::Straw2 } else { alg };
        let count = match self.rng.random_range(0..20) {
            0 => 0,
            1 => self.rng.random_range(6..14),
            _ => self.rng.random_range(1..6),
        };
        let uniform_weight = self.device_weight();
        let mut items: Vec<(i32, u32)> = Vec::new();
        for _ in 0..count {
            // Levels may be omitted; each level is closer to the devices.
            let below = if self.rng.random_bool(0.15) { 0 } else { self.rng.random_range(0..type_id) };
            if below > 0 && self.next_device < 150 {
                items.push(self.grow(below));
            } else {
                let weight = if alg == BucketAlg::Uniform { uniform_weight } else { self.device_weight() };
                items.push((self.next_device, weight));
                let name = format!("osd.{}", self.next_device);
                self.map.set_item_name(self.next_device, &name).unwrap();
                self.next_device += if self.rng.random_bool(0.05) { 2 } else { 1 };
            }
        }
        // crushtool leaves the item weight of an empty uniform bucket undefined, and aborts if it is 0.
        let is_uniform = items.iter().any(|(_, weight)| *weight > 0)
            && items.iter().all(|(_, weight)| *weight == items[0].1);
        let alg = if alg == BucketAlg::Uniform && !is_uniform { BucketAlg::Straw2 } else { alg };
        self.buckets += 1;
        let name = format!("{}-{}", TYPES[type_id as usize], self.buckets);
        let id = if self.rng.random_bool(0.1) { Some(-(200 + self.buckets)) } else { None };
        let id = self.map.add_bucket(id, alg, 0, type_id as u16, &items, &name).unwrap();
        (id, self.map.bucket(id).unwrap().weight)
    }

    fn device_weight(&mut self) -> u32 {
        match self.rng.random_range(0..10) {
            0 => 0,
            1..5 => WEIGHT_ONE,
            5..8 => self.rng.random_range(1..4 * WEIGHT_ONE),
            _ => self.rng.random_range(1..20) * WEIGHT_ONE,
        }
    }
}

fn add_choose_args(map: &mut CrushMap, rng: &mut ChaCha8Rng) {
    let mut args = ChooseArgs::default();
    for bucket in map.buckets() {
        let size = bucket.items.len();
        if size == 0 || rng.random_bool(0.4) {
            continue;
        }
        let positions = rng.random_range(0..4);
        let mut weights = || (0..size).map(|_| rng.random_range(0..8 * WEIGHT_ONE)).collect();
        let weight_set = (0..positions).map(|_| weights()).collect();
        let ids = if rng.random_bool(0.3) {
            (0..size).map(|_| rng.random_range(-5000..5000)).collect()
        } else {
            vec![]
        };
        args.set((-1 - bucket.id) as usize, ChooseArg { weight_set, ids });
    }
    // crushtool maps with the choose_args of pool 0, or with the default ones.
    let id = if rng.random_bool(0.5) { 0 } else { DEFAULT_CHOOSE_ARGS };
    map.set_choose_args(id, args).unwrap();
    if rng.random_bool(0.3) {
        map.set_choose_args(7, ChooseArgs::default()).unwrap();
    }
}

fn add_rules(map: &mut CrushMap, roots: &[i32], rng: &mut ChaCha8Rng) -> Vec<(u32, usize)> {
    let mut sizes = Vec::new();
    let shadows: Vec<i32> = map.roots(true).into_iter().filter(|id| map.is_shadow(*id)).collect();
    let mut next_id = 0;
    for shape in 0..5 {
        let kind = if shape % 2 == 0 { RuleType::Replicated } else { RuleType::Erasure };
        let mut steps = Vec::new();
        for (op, values) in [
            (StepOp::SetChooseTries, 1..120),
            (StepOp::SetChooseleafTries, 1..12),
            (StepOp::SetChooseLocalTries, 0..5),
            (StepOp::SetChooseLocalFallbackTries, 0..8),
            (StepOp::SetChooseleafVaryR, 0..4),
            (StepOp::SetChooseleafStable, 0..2),
        ] {
            if rng.random_bool(0.15) {
                steps.push(Step::set(op, rng.random_range(values)));
            }
        }
        let take = match shadows.choose(rng) {
            Some(shadow) if rng.random_bool(0.5) => *shadow,
            _ => *roots.choose(rng).unwrap(),
        };
        steps.push(Step::take(take));
        let (choose, leaf) = match kind {
            RuleType::Replicated => (StepOp::ChooseFirstn, StepOp::ChooseleafFirstn),
            _ => (StepOp::ChooseIndep, StepOp::ChooseleafIndep),
        };
        let some_type = rng.random_range(0..ROOT_TYPE);
        match shape {
            0 | 1 => steps.push(Step::choose(leaf, rng.random_range(-1..4).min(2), some_type)),
            2 | 3 => {
                let upper = rng.random_range(1..ROOT_TYPE);
                steps.push(Step::choose(choose, rng.random_range(0..4), upper));
                let op = if rng.random_bool(0.5) { leaf } else { choose };
                let below = if op == leaf { rng.random_range(0..upper) } else { 0 };
                steps.push(Step::choose(op, rng.random_range(0..3), below));
            }
            _ => {
                steps.push(Step::choose(leaf, 1, some_type));
                steps.push(Step::emit());
                steps.push(Step::take(*roots.choose(rng).unwrap()));
                steps.push(Step::choose(StepOp::ChooseIndep, -1, 0));
            }
        }
        steps.push(Step::emit());
        let rule = Rule { ruleset: next_id as u8, kind, min_size: 1, max_size: 10, steps };
        map.add_rule(next_id, &format!("rule-{shape}"), rule).unwrap();
        sizes.push((next_id, rng.random_range(1..8)));
        next_id += if rng.random_bool(0.1) { 2 } else { 1 };
    }
    sizes
}
