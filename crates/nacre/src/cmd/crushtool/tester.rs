//! `--test` and `--compare`.

pub(super) mod csv;
mod random;

use super::args::TestArgs;
use csv::PlacementTables;
use nacre_crush::{Bucket, CrushMap, ITEM_NONE, Rule, Step, StepOp, WEIGHT_ONE, Workspace, hash32_2};
use random::Rand48;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// A number as C++ streams print it: six significant digits, no trailing zeros.
pub(in crate::cmd) fn format_g(number: f64) -> String {
    if number == 0.0 {
        return "0".to_owned();
    }
    if !number.is_finite() {
        return number.to_string().to_lowercase();
    }
    let scientific = format!("{number:.5e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trim = |digits: &str| {
        if digits.contains('.') {
            digits.trim_end_matches('0').trim_end_matches('.').to_owned()
        } else {
            digits.to_owned()
        }
    };
    if (-4..6).contains(&exponent) {
        trim(&format!("{number:.*}", (5 - exponent) as usize))
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{}e{sign}{:02}", trim(mantissa), exponent.abs())
    }
}

fn list(items: &[i32], text: &mut String) {
    use std::fmt::Write;
    text.clear();
    text.push('[');
    for (at, item) in items.iter().enumerate() {
        let comma = if at == 0 { "" } else { "," };
        let _ = write!(text, "{comma}{item}");
    }
    text.push(']');
}

/// Maximum number of batches of `--batches`.
const MAX_BATCHES: i64 = 1 << 16;

/// The parameters of a run: the given ranges completed with defaults, and the devices' weights.
struct Plan<'a> {
    args: &'a TestArgs,
    rules: std::ops::RangeInclusive<i64>,
    inputs: std::ops::RangeInclusive<i64>,
    weights: Vec<u32>,
}

impl<'a> Plan<'a> {
    fn new(map: &CrushMap, args: &'a TestArgs) -> Self {
        let rules = if args.min_rule < 0 || args.max_rule < 0 {
            0..=map.max_rules() as i64 - 1
        } else {
            args.min_rule..=args.max_rule.min(map.max_rules() as i64 - 1)
        };
        let inputs = if args.min_x < 0 || args.max_x < 0 { 0..=1023 } else { args.min_x..=args.max_x };
        let given: BTreeMap<i64, u32> = args
            .weights
            .iter()
            .map(|(device, weight)| {
                (*device, ((weight * WEIGHT_ONE as f32) as i64).clamp(0, WEIGHT_ONE.into()) as u32)
            })
            .collect();
        let mut present = vec![false; map.max_devices() as usize];
        for device in map.buckets().flat_map(|b| b.items.iter()).filter(|item| **item >= 0) {
            present[*device as usize] = true;
        }
        let weights = present
            .iter()
            .enumerate()
            .map(|(device, present)| {
                given.get(&(device as i64)).copied().unwrap_or(if *present { WEIGHT_ONE } else { 0 })
            })
            .collect();
        Self { args, rules, inputs, weights }
    }

    fn sizes(&self, rule: &Rule) -> std::ops::RangeInclusive<i64> {
        if self.args.min_rep < 0 || self.args.max_rep < 0 {
            rule.min_size.into()..=rule.max_size.into()
        } else {
            self.args.min_rep..=self.args.max_rep
        }
    }

    fn seed(&self, x: i64) -> u32 {
        match self.args.pool_id {
            -1 => x as u32,
            pool => hash32_2(x as u32, pool as u32),
        }
    }

    fn skips(&self, rule: &Rule) -> bool {
        self.args.ruleset >= 0 && i64::from(rule.ruleset) != self.args.ruleset
    }

    fn input_count(&self) -> i64 {
        self.inputs.end() - self.inputs.start() + 1
    }
}

/// Maps the inputs and prints the results.
pub(super) fn test(
    map: &CrushMap,
    args: &TestArgs,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> io::Result<()> {
    let plan = Plan::new(map, args);
    if args.utilization_all {
        let words: Vec<String> = plan.weights.iter().map(|weight| format!("{weight:x}")).collect();
        writeln!(err, "devices weights (hex): [{}]", words.join(","))?;
    }
    let statistics = args.statistics || args.utilization || args.utilization_all;
    let mut run = Run { work: Workspace::new(), random: Rand48::default() };
    if args.choose_tries {
        run.work.start_choose_profile(map.tunables.choose_total_tries.min(1 << 20) as usize);
    }
    for id in plan.rules.clone() {
        let Some(rule) = map.rule(id as u32) else {
            if statistics {
                writeln!(out, "rule {id} dne")?;
            }
            continue;
        };
        if plan.skips(rule) {
            continue;
        }
        let sizes = plan.sizes(rule);
        if statistics {
            let name = map.rule_name(id as u32).unwrap_or_default();
            let ((min_x, max_x), (min, max)) = (plan.inputs.clone().into_inner(), sizes.clone().into_inner());
            writeln!(out, "rule {id} ({name}), x = {min_x}..{max_x}, numrep = {min}..{max}")?;
        }
        for size in sizes {
            test_size(map, &plan, id as u32, size, statistics, &mut run, out)?;
        }
    }
    if args.choose_tries {
        for (retries, count) in run.work.take_choose_profile().into_iter().enumerate() {
            writeln!(out, "{retries:2}: {count:9}")?;
        }
    }
    Ok(())
}

/// The state of a run between mappings.
struct Run {
    work: Workspace,
    random: Rand48,
}

fn test_size(
    map: &CrushMap,
    plan: &Plan<'_>,
    rule: u32,
    size: i64,
    statistics: bool,
    run: &mut Run,
    out: &mut dyn Write,
) -> io::Result<()> {
    let args = plan.args;
    let total: i32 = plan.weights.iter().fold(0_i32, |sum, weight| sum.wrapping_add(*weight as i32));
    if total == 0 {
        return Ok(());
    }
    let expected_objects = (size.min(most_affected(map, rule)) * plan.input_count()) as f32;
    let shares: Vec<f32> = plan.weights.iter().map(|weight| *weight as f32 / total as f32).collect();
    let expected: Vec<f32> = shares.iter().map(|share| share * expected_objects).collect();
    let name = map.rule_name(rule).unwrap_or_default();

    let choose_args = map.choose_args_with_fallback(0);
    let mut stored = vec![0_u64; plan.weights.len()];
    let mut result_sizes: BTreeMap<usize, u64> = BTreeMap::new();
    let (mut mapped, mut text) = (Vec::new(), String::new());
    let rounds = args.batches.clamp(1, MAX_BATCHES) as usize;
    let mut batches = vec![vec![0_u64; if args.csv { plan.weights.len() } else { 0 }]; rounds];
    let per_batch = plan.input_count() as usize / rounds;
    let mut placements = Vec::new();
    for (at, x) in plan.inputs.clone().enumerate() {
        if args.simulate {
            run.random.random_placement(map, rule, size, &plan.weights, &mut mapped);
        } else {
            let (seed, size) = (plan.seed(x), size.max(0) as usize);
            map.do_rule_with(&mut run.work, rule, seed, size, &plan.weights, choose_args, &mut mapped);
        }
        let is_bad = mapped.len() as i64 != size || mapped.contains(&ITEM_NONE);
        if args.mappings || (args.bad_mappings && is_bad) {
            list(&mapped, &mut text);
        }
        if args.mappings {
            let by = if args.simulate { "RNG" } else { "CRUSH" };
            writeln!(out, "{by} rule {rule} x {x} {text}")?;
        }
        for item in &mapped {
            if let Some(count) = usize::try_from(*item).ok().and_then(|device| stored.get_mut(device)) {
                *count += 1;
            }
        }
        if args.csv {
            let batch = &mut batches[at.checked_div(per_batch).unwrap_or(rounds).min(rounds - 1)];
            for item in &mapped {
                if let Some(count) = usize::try_from(*item).ok().and_then(|device| batch.get_mut(device)) {
                    *count += 1;
                }
            }
            placements.push((x, mapped.clone()));
        }
        *result_sizes.entry(mapped.len()).or_default() += 1;
        if args.bad_mappings && is_bad {
            writeln!(out, "bad mapping rule {rule} x {x} num_rep {size} result {text}")?;
        }
    }
    if args.csv {
        let figures = PlacementTables {
            weights: &plan.weights,
            shares: &shares,
            stored: &stored,
            expected: &expected,
            batches: &batches,
            placements: &placements,
            replicas: args.max_rep,
        };
        figures.write(&format!("{}{name}", args.csv_prefix))?;
    }
    if !statistics {
        return Ok(());
    }
    for (result_size, count) in result_sizes {
        let inputs = plan.input_count();
        writeln!(out, "rule {rule} ({name}) num_rep {size} result size == {result_size}:\t{count}/{inputs}")?;
    }
    for (device, (stored, expected)) in stored.iter().zip(&expected).enumerate() {
        let shown = if args.utilization { *expected > 0.0 && *stored > 0 } else { args.utilization_all };
        if shown {
            let expected = format_g(f64::from(*expected));
            writeln!(out, "  device {device}:\t\t stored : {stored}\t expected : {expected}")?;
        }
    }
    Ok(())
}

/// Maximum number of replicas that a rule can place, as crushtool estimates it: by the named buckets of the types in its steps.
/// Like crushtool, treats settings as choices of devices and counts a type again for each step.
fn most_affected(map: &CrushMap, rule: u32) -> i64 {
    let steps = map.rule(rule).map_or(&[][..], |rule| &rule.steps);
    let speaking = |step: &&Step| !matches!(step.op, StepOp::Noop | StepOp::Take | StepOp::Emit);
    // For each type: number of steps, and the number that the last one chooses.
    let mut types: BTreeMap<i32, (i64, i64)> = BTreeMap::new();
    for step in steps.iter().filter(speaking) {
        let entry = types.entry(step.arg2).or_default();
        *entry = (entry.0 + 1, i64::from(step.arg1));
    }
    let mut most = (map.max_buckets() as i64).max(i64::from(map.max_devices()));
    for (type_id, (times, wanted)) in types {
        let is_named =
            |bucket: &&Bucket| i32::from(bucket.type_id) == type_id && map.item_name(bucket.id).is_some();
        let named = times * map.buckets().filter(is_named).count() as i64;
        let available = if wanted > 0 && wanted < named { wanted } else { named };
        if available > 0 && available < most {
            most = available;
        }
    }
    most
}

/// Maps with both maps. Returns true if all results are equal.
pub(super) fn compare(
    map: &CrushMap,
    other: &CrushMap,
    args: &TestArgs,
    out: &mut dyn Write,
) -> io::Result<bool> {
    let plan = Plan::new(map, args);
    let (mut work, mut other_work) = (Workspace::new(), Workspace::new());
    let (mut mapped, mut other_mapped) = (Vec::new(), Vec::new());
    let mut same = true;
    for id in plan.rules.clone() {
        let Some(rule) = map.rule(id as u32) else {
            if args.statistics {
                writeln!(out, "rule {id} dne")?;
            }
            continue;
        };
        if plan.skips(rule) {
            continue;
        }
        let (mut bad, mut all) = (0_i64, 0_i64);
        for size in plan.sizes(rule) {
            let max = size.max(0) as usize;
            for x in plan.inputs.clone() {
                let (seed, w) = (plan.seed(x), &plan.weights);
                let (ours, theirs) = (map.choose_args_with_fallback(0), other.choose_args_with_fallback(0));
                map.do_rule_with(&mut work, id as u32, seed, max, w, ours, &mut mapped);
                other.do_rule_with(&mut other_work, id as u32, seed, max, w, theirs, &mut other_mapped);
                bad += i64::from(mapped != other_mapped);
                all += 1;
            }
        }
        same &= bad == 0;
        let ratio = format_g(bad as f64 / all as f64);
        writeln!(out, "rule {id} had {bad}/{all} mismatched mappings ({ratio})")?;
    }
    if same {
        writeln!(out, "maps appear equivalent")?;
    }
    Ok(same)
}
