//! The text form of a map, as printed and parsed by `crushtool` of release 16.2.
//!
//! [`CrushMap::decompile`] is byte-identical to `crushtool -d`; [`CrushMap::compile`] accepts its grammar and produces the same
//! binary map as `crushtool -c`. Text has only three decimals of weights, so it is not lossless.

mod compile;

pub use compile::CompileError;

use crate::model::{
    Bucket, BucketAlg, ChooseArg, CrushMap, RuleType, Step, StepOp, Tunables, TunablesProfile, bucket_id_of,
};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Formats a weight with three decimals, computed in single precision from a signed word as in Ceph.
fn fixed_point(weight: u32) -> String {
    format!("{:.3}", weight as i32 as f32 / 65_536.0)
}

/// The names of tunables in text maps, in the order in which they are printed.
pub(super) const TUNABLE_NAMES: [&str; 8] = [
    "choose_local_tries",
    "choose_local_fallback_tries",
    "choose_total_tries",
    "chooseleaf_descend_once",
    "chooseleaf_vary_r",
    "chooseleaf_stable",
    "straw_calc_version",
    "allowed_bucket_algs",
];

impl Tunables {
    /// Returns the value of a tunable by its name in text maps.
    pub fn by_name(&self, name: &str) -> Option<u32> {
        Some(match name {
            "choose_local_tries" => self.choose_local_tries,
            "choose_local_fallback_tries" => self.choose_local_fallback_tries,
            "choose_total_tries" => self.choose_total_tries,
            "chooseleaf_descend_once" => self.chooseleaf_descend_once,
            "chooseleaf_vary_r" => u32::from(self.chooseleaf_vary_r),
            "chooseleaf_stable" => u32::from(self.chooseleaf_stable),
            "straw_calc_version" => u32::from(self.straw_calc_version),
            "allowed_bucket_algs" => self.allowed_bucket_algs,
            _ => return None,
        })
    }

    /// Sets a tunable by its name in text maps. Returns false if the name is unknown. One-byte tunables are truncated as in
    /// Ceph.
    pub fn set_by_name(&mut self, name: &str, value: u32) -> bool {
        match name {
            "choose_local_tries" => self.choose_local_tries = value,
            "choose_local_fallback_tries" => self.choose_local_fallback_tries = value,
            "choose_total_tries" => self.choose_total_tries = value,
            "chooseleaf_descend_once" => self.chooseleaf_descend_once = value,
            "chooseleaf_vary_r" => self.chooseleaf_vary_r = value as u8,
            "chooseleaf_stable" => self.chooseleaf_stable = value as u8,
            "straw_calc_version" => self.straw_calc_version = value as u8,
            "allowed_bucket_algs" => self.allowed_bucket_algs = value,
            _ => return false,
        }
        true
    }
}

impl CrushMap {
    /// Returns the text form.
    pub fn decompile(&self) -> String {
        let mut p = Printer { map: self, out: String::new(), printed: BTreeSet::new() };
        p.all().expect("invariant: writing to a String can't fail");
        p.out
    }

    /// Returns the name of an item, or a generated one.
    pub(crate) fn item_label(&self, item: i32) -> String {
        match self.item_name(item) {
            Some(name) => name.to_owned(),
            None if item >= 0 => format!("device{item}"),
            None => format!("bucket{}", -1 - item),
        }
    }

    /// Returns the name of a type, or a generated one.
    pub(crate) fn type_label(&self, type_id: i32) -> String {
        match self.type_name(type_id) {
            Some(name) => name.to_owned(),
            None if type_id == 0 => "device".to_owned(),
            None => format!("type{type_id}"),
        }
    }
}

struct Printer<'a> {
    map: &'a CrushMap,
    out: String,
    printed: BTreeSet<i32>,
}

impl Printer<'_> {
    fn all(&mut self) -> std::fmt::Result {
        let map = self.map;
        self.out.push_str("# begin crush map\n");
        let legacy = TunablesProfile::Argonaut.tunables();
        for name in TUNABLE_NAMES {
            if let Some(value) = map.tunables.by_name(name).filter(|v| Some(*v) != legacy.by_name(name)) {
                writeln!(self.out, "tunable {name} {value}")?;
            }
        }

        self.out.push_str("\n# devices\n");
        for (id, name) in map.item_names.range(0..map.max_devices) {
            write!(self.out, "device {id} {name}")?;
            if let Some(class) = map.device_class(*id) {
                write!(self.out, " class {class}")?;
            }
            self.out.push('\n');
        }

        self.out.push_str("\n# types\n");
        if !map.type_names.is_empty() && map.type_name(0).is_none() {
            self.out.push_str("type 0 osd\n");
        }
        for (id, name) in map.type_names() {
            writeln!(self.out, "type {id} {name}")?;
        }

        self.out.push_str("\n# buckets\n");
        for slot in 0..map.max_buckets() {
            self.bucket_after_children(bucket_id_of(slot))?;
        }

        self.out.push_str("\n# rules\n");
        for (id, _) in map.rules() {
            self.rule(id)?;
        }

        if !map.choose_args.is_empty() {
            self.out.push_str("\n# choose_args\n");
            for (id, args) in map.choose_args() {
                // Printed as unsigned, so the default's -1 becomes 18446744073709551615; the compiler accepts this.
                writeln!(self.out, "choose_args {} {{", id as u64)?;
                for (slot, arg) in args.iter() {
                    self.choose_arg(bucket_id_of(slot), arg)?;
                }
                self.out.push_str("}\n");
            }
        }
        self.out.push_str("\n# end crush map\n");
        Ok(())
    }

    fn bucket_after_children(&mut self, id: i32) -> std::fmt::Result {
        let map = self.map;
        let Some(bucket) = map.bucket(id).filter(|_| self.printed.insert(id)) else { return Ok(()) };
        for &item in &bucket.items {
            self.bucket_after_children(item)?;
        }
        if map.is_shadow(id) { Ok(()) } else { self.bucket(bucket) }
    }

    fn bucket(&mut self, bucket: &Bucket) -> std::fmt::Result {
        let map = self.map;
        let id = bucket.id;
        let out = &mut self.out;
        writeln!(out, "{} {} {{", map.type_label(i32::from(bucket.type_id)), map.item_label(id))?;
        writeln!(out, "\tid {id}\t\t# do not change unnecessarily")?;
        for (class, shadow) in map.class_buckets.get(&id).into_iter().flatten() {
            if let Some(class) = map.class_name(*class) {
                writeln!(out, "\tid {shadow} class {class}\t\t# do not change unnecessarily")?;
            }
        }
        writeln!(out, "\t# weight {}", fixed_point(bucket.weight))?;
        let alg = bucket.alg();
        let advice = match alg {
            BucketAlg::Uniform => {
                format!("\t# do not change bucket size ({}) unnecessarily", bucket.items.len())
            }
            BucketAlg::List => "\t# add new items at the end; do not change order unnecessarily".to_owned(),
            BucketAlg::Tree => "\t# do not change pos for existing items unnecessarily".to_owned(),
            BucketAlg::Straw | BucketAlg::Straw2 => String::new(),
        };
        writeln!(out, "\talg {}{advice}", alg.name())?;
        let hash_name = if bucket.hash == 0 { "rjenkins1" } else { "unknown" };
        writeln!(out, "\thash {}\t# {hash_name}", bucket.hash)?;
        for (at, (item, weight)) in bucket.weighted_items().enumerate() {
            write!(out, "\titem {} weight {}", map.item_label(item), fixed_point(weight))?;
            if matches!(alg, BucketAlg::Uniform | BucketAlg::Tree) {
                write!(out, " pos {at}")?;
            }
            out.push('\n');
        }
        out.push_str("}\n");
        Ok(())
    }

    fn rule(&mut self, id: u32) -> std::fmt::Result {
        let map = self.map;
        let Some(rule) = map.rule(id) else { return Ok(()) };
        let out = &mut self.out;
        out.push_str("rule ");
        if let Some(name) = map.rule_name(id) {
            out.push_str(name);
        }
        writeln!(out, " {{\n\tid {id}")?;
        if u32::from(rule.ruleset) != id {
            let ruleset = rule.ruleset;
            writeln!(
                out,
                "\t# WARNING: ruleset {ruleset} != id {id}; this will not recompile to the same map"
            )?;
        }
        match rule.kind {
            RuleType::Replicated => out.push_str("\ttype replicated\n"),
            RuleType::Erasure => out.push_str("\ttype erasure\n"),
            RuleType::Other(number) => writeln!(out, "\ttype {number}")?,
        }
        writeln!(out, "\tmin_size {}\n\tmax_size {}", rule.min_size, rule.max_size)?;
        for step in &rule.steps {
            writeln!(out, "\tstep {}", step_text(map, step))?;
        }
        out.push_str("}\n");
        Ok(())
    }

    fn choose_arg(&mut self, bucket: i32, arg: &ChooseArg) -> std::fmt::Result {
        let out = &mut self.out;
        writeln!(out, "  {{\n    bucket_id {bucket}")?;
        if !arg.weight_set.is_empty() {
            out.push_str("    weight_set [\n");
            for weights in &arg.weight_set {
                out.push_str("      [ ");
                for &weight in weights {
                    write!(out, "{} ", fixed_point(weight))?;
                }
                out.push_str("]\n");
            }
            out.push_str("    ]\n");
        }
        if !arg.ids.is_empty() {
            out.push_str("    ids [ ");
            for id in &arg.ids {
                write!(out, "{id} ")?;
            }
            out.push_str("]\n");
        }
        out.push_str("  }\n");
        Ok(())
    }
}

fn step_text(map: &CrushMap, step: &Step) -> String {
    let choose = |words: &str| format!("{words} {} type {}", step.arg1, map.type_label(step.arg2));
    match step.op {
        StepOp::Noop => "noop".to_owned(),
        StepOp::Emit => "emit".to_owned(),
        StepOp::Take => match map.split_id_class(step.arg1) {
            Some((bucket, class)) => {
                format!("take {} class {}", map.item_label(bucket), map.class_name(class).unwrap_or_default())
            }
            None => format!("take {}", map.item_label(step.arg1)),
        },
        StepOp::ChooseFirstn => choose("choose firstn"),
        StepOp::ChooseIndep => choose("choose indep"),
        StepOp::ChooseleafFirstn => choose("chooseleaf firstn"),
        StepOp::ChooseleafIndep => choose("chooseleaf indep"),
        setting => format!("{} {}", setting.name(), step.arg1),
    }
}
