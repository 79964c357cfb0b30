//! Output of the map: the JSON of `crushtool --dump` and `ceph osd crush dump`, and the tree order of `--tree` and `ceph osd
//! tree`.

use crate::model::{
    Bucket, ChooseArgs, CrushMap, Rule, Step, StepOp, Tunables, TunablesProfile, WEIGHT_ONE, bucket_id_of,
};
use serde_json::{Map, Value, json};

/// An item at its place in the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeItem {
    /// Device or bucket.
    pub id: i32,
    /// The bucket under which it is listed; `None` for a root.
    pub parent: Option<i32>,
    /// 0 for roots.
    pub depth: usize,
    /// Weight (16.16) in that parent; the own weight of a root.
    pub weight: u32,
    /// Items directly below, in the order of the listing.
    pub children: Vec<i32>,
}

impl CrushMap {
    /// Returns all items from the roots down, in Ceph's order: roots by id; below a bucket, devices by class and id, buckets by
    /// name. With `shadows`, the trees of device classes are included.
    pub fn tree(&self, shadows: bool) -> Vec<TreeItem> {
        let mut items = Vec::new();
        for root in self.roots(shadows) {
            self.tree_below(root, shadows, &mut items);
        }
        items
    }

    /// Returns the part of [`CrushMap::tree`] from one bucket down.
    pub fn subtree(&self, root: i32) -> Vec<TreeItem> {
        let mut items = Vec::new();
        self.tree_below(root, true, &mut items);
        items
    }

    fn tree_below(&self, root: i32, shadows: bool, items: &mut Vec<TreeItem>) {
        let weight = self.bucket(root).map_or(0, |b| b.weight);
        let mut queue = vec![(root, None, 0, weight)];
        while let Some((id, parent, depth, weight)) = queue.pop() {
            let mut below: Vec<(String, i32, u32)> = self
                .bucket(id)
                .into_iter()
                .flat_map(Bucket::weighted_items)
                .filter(|(item, _)| shadows || !self.is_shadow(*item))
                .map(|(item, weight)| (self.listing_key(item), item, weight))
                .collect();
            below.sort();
            below.dedup_by(|a, b| a.0 == b.0);
            // Ids are unique in maps created here; the depth bounds the effect of a cycle in other maps.
            if depth <= self.max_buckets() {
                queue
                    .extend(below.iter().rev().map(|&(_, item, weight)| (item, Some(id), depth + 1, weight)));
            }
            let children = below.iter().map(|(_, item, _)| *item).collect();
            items.push(TreeItem { id, parent, depth, weight, children });
        }
    }

    fn listing_key(&self, item: i32) -> String {
        if item >= 0 {
            format!("{}_osd.{item:08}", self.device_class(item).unwrap_or_default())
        } else {
            format!("_{}", self.item_name(item).unwrap_or_default())
        }
    }

    /// Returns the whole map, with the fields of `crushtool --dump`.
    pub fn dump(&self) -> Value {
        let mut devices = Vec::new();
        for id in 0..self.max_devices() {
            let mut device = json!({"id": id, "name": self.item_label(id)});
            if let Some(class) = self.device_class(id) {
                device["class"] = class.into();
            }
            devices.push(device);
        }
        let mut types = Vec::new();
        if !self.type_names.is_empty() && self.type_name(0).is_none() {
            types.push(json!({"type_id": 0, "name": "device"}));
        }
        types.extend(self.type_names().map(|(id, name)| json!({"type_id": id, "name": name})));
        let buckets: Vec<Value> = self.buckets().map(|bucket| self.dump_bucket(bucket)).collect();
        let rules: Vec<Value> = self.rules().map(|(id, rule)| self.dump_rule(id, rule)).collect();
        let choose_args: Map<String, Value> =
            self.choose_args().map(|(id, args)| (id.to_string(), dump_choose_args(args))).collect();
        json!({
            "devices": devices,
            "types": types,
            "buckets": buckets,
            "rules": rules,
            "tunables": self.dump_tunables(),
            "choose_args": choose_args,
        })
    }

    fn dump_bucket(&self, bucket: &Bucket) -> Value {
        let mut out = Map::new();
        out.insert("id".into(), bucket.id.into());
        if let Some(name) = self.item_name(bucket.id) {
            out.insert("name".into(), name.into());
        }
        out.insert("type_id".into(), bucket.type_id.into());
        if let Some(name) = self.type_name(i32::from(bucket.type_id)) {
            out.insert("type_name".into(), name.into());
        }
        out.insert("weight".into(), bucket.weight.into());
        out.insert("alg".into(), bucket.alg().name().into());
        out.insert("hash".into(), if bucket.hash == 0 { "rjenkins1" } else { "unknown" }.into());
        let items: Vec<Value> = bucket
            .weighted_items()
            .enumerate()
            .map(|(pos, (id, weight))| json!({"id": id, "weight": weight, "pos": pos}))
            .collect();
        out.insert("items".into(), items.into());
        out.into()
    }

    /// Returns one rule, with the fields of `ceph osd crush rule dump`.
    pub fn dump_rule(&self, id: u32, rule: &Rule) -> Value {
        let mut out = Map::new();
        out.insert("rule_id".into(), id.into());
        if let Some(name) = self.rule_name(id) {
            out.insert("rule_name".into(), name.into());
        }
        out.insert("ruleset".into(), rule.ruleset.into());
        out.insert("type".into(), rule.kind.number().into());
        out.insert("min_size".into(), rule.min_size.into());
        out.insert("max_size".into(), rule.max_size.into());
        let steps: Vec<Value> = rule.steps.iter().map(|step| self.dump_step(step)).collect();
        out.insert("steps".into(), steps.into());
        out.into()
    }

    fn dump_step(&self, step: &Step) -> Value {
        let op = step.op.name();
        match step.op {
            StepOp::Noop | StepOp::Emit => json!({"op": op}),
            StepOp::Take => {
                json!({"op": op, "item": step.arg1, "item_name": self.item_name(step.arg1).unwrap_or_default()})
            }
            StepOp::ChooseFirstn
            | StepOp::ChooseIndep
            | StepOp::ChooseleafFirstn
            | StepOp::ChooseleafIndep => {
                json!({"op": op, "num": step.arg1, "type": self.type_name(step.arg2).unwrap_or_default()})
            }
            StepOp::SetChooseTries | StepOp::SetChooseleafTries => json!({"op": op, "num": step.arg1}),
            // Ceph's dump has no names for the others.
            other => json!({"opcode": other as u32, "arg1": step.arg1, "arg2": step.arg2}),
        }
    }

    /// Returns the tunables and the features that clients need for this map, with the fields of `ceph osd crush show-tunables`.
    pub fn dump_tunables(&self) -> Value {
        let t = &self.tunables;
        let legacy = TunablesProfile::Argonaut.tunables();
        let any_step =
            |ops: &[StepOp]| self.rules().any(|(_, r)| r.steps.iter().any(|s| ops.contains(&s.op)));
        let v2 = any_step(&[
            StepOp::ChooseIndep,
            StepOp::ChooseleafIndep,
            StepOp::SetChooseTries,
            StepOp::SetChooseleafTries,
        ]);
        let v3 = any_step(&[StepOp::SetChooseleafVaryR]);
        let v5 = any_step(&[StepOp::SetChooseleafStable]);
        let v4_buckets = self.buckets().any(|b| b.alg() == crate::BucketAlg::Straw2);
        let tunables = t.choose_local_tries != legacy.choose_local_tries
            || t.choose_local_fallback_tries != legacy.choose_local_fallback_tries
            || t.choose_total_tries != legacy.choose_total_tries;
        let tunables2 = t.chooseleaf_descend_once != 0;
        let tunables3 = t.chooseleaf_vary_r != 0;
        let tunables5 = t.chooseleaf_stable != 0;
        let profile = t.profile();
        let minimum = if v5 || tunables5 {
            "jewel"
        } else if v4_buckets {
            "hammer"
        } else if tunables3 {
            "firefly"
        } else if tunables2 || tunables {
            "bobtail"
        } else {
            "argonaut"
        };
        let mut out = Map::new();
        for name in crate::text::TUNABLE_NAMES {
            out.insert(name.into(), t.by_name(name).unwrap_or_default().into());
        }
        out.insert("profile".into(), profile.map_or("unknown", TunablesProfile::name).into());
        out.insert("optimal_tunables".into(), u8::from(profile == Some(TunablesProfile::Jewel)).into());
        out.insert("legacy_tunables".into(), u8::from(profile == Some(TunablesProfile::Argonaut)).into());
        out.insert("minimum_required_version".into(), minimum.into());
        for (name, value) in [
            ("require_feature_tunables", tunables),
            ("require_feature_tunables2", tunables2),
            ("has_v2_rules", v2),
            ("require_feature_tunables3", tunables3),
            ("has_v3_rules", v3),
            ("has_v4_buckets", v4_buckets),
            ("require_feature_tunables5", tunables5),
            ("has_v5_rules", v5),
        ] {
            out.insert(name.into(), u8::from(value).into());
        }
        out.into()
    }
}

impl Tunables {
    /// Returns the profile with these values; `straw_calc_version` is ignored.
    pub fn profile(&self) -> Option<TunablesProfile> {
        let is = |profile: &TunablesProfile| {
            *self == Tunables { straw_calc_version: self.straw_calc_version, ..profile.tunables() }
        };
        TunablesProfile::ALL.into_iter().find(|profile| is(profile))
    }
}

fn dump_choose_args(args: &ChooseArgs) -> Value {
    let mut out = Vec::new();
    for (slot, arg) in args.iter() {
        let mut one = Map::new();
        one.insert("bucket_id".into(), bucket_id_of(slot).into());
        if !arg.weight_set.is_empty() {
            let sets: Vec<Value> =
                arg.weight_set.iter().map(|set| set.iter().map(|w| weight_number(*w)).collect()).collect();
            one.insert("weight_set".into(), sets.into());
        }
        if !arg.ids.is_empty() {
            one.insert("ids".into(), arg.ids.clone().into());
        }
        out.push(one.into());
    }
    Value::Array(out)
}

/// Converts a weight as Ceph's JSON does: whole numbers without a fraction.
fn weight_number(weight: u32) -> Value {
    if weight.is_multiple_of(WEIGHT_ONE) {
        (weight / WEIGHT_ONE).into()
    } else {
        (f64::from(weight) / f64::from(WEIGHT_ONE)).into()
    }
}
