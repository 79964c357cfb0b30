//! `--simulate`: places with a random number generator, for comparison with CRUSH.
//!
//! The numbers are those of C's `lrand48` without a seed, so every run gives the same placements.

use nacre_crush::{CrushMap, Step, StepOp};
use std::collections::BTreeSet;

/// Maximum number of placements that are tried for an input.
const TRIES: usize = 100;

/// `lrand48` and its state.
#[derive(Default)]
pub(super) struct Rand48(u64);

impl Rand48 {
    fn next(&mut self) -> u32 {
        self.0 = (self.0.wrapping_mul(0x5_deec_e66d) + 0xb) & ((1 << 48) - 1);
        (self.0 >> 17) as u32
    }

    /// Stores up to `wanted` devices that rule `rule` could have chosen in `out`, or none if no try finds any.
    pub(super) fn random_placement(
        &mut self,
        map: &CrushMap,
        rule: u32,
        wanted: i64,
        weights: &[u32],
        out: &mut Vec<i32>,
    ) {
        out.clear();
        let wanted = wanted.min(super::most_affected(map, rule)).max(0) as usize;
        let devices = map.max_devices().max(1) as u32;
        for _ in 0..TRIES {
            let trial: Vec<i32> = (0..wanted).map(|_| (self.next() % devices) as i32).collect();
            if is_valid(map, rule, &trial, weights) {
                *out = trial;
                return;
            }
        }
    }
}

/// Whether the devices are distinct, have a weight above 0, and no two are in the same bucket of a type in the rule's steps. As
/// in `crushtool`, settings are treated as choices of devices.
fn is_valid(map: &CrushMap, rule: u32, devices: &[i32], weights: &[u32]) -> bool {
    let weight = |device: &i32| usize::try_from(*device).ok().and_then(|at| weights.get(at)).copied();
    let different: BTreeSet<i32> = devices.iter().copied().collect();
    if different.len() < devices.len() || devices.iter().any(|device| weight(device).unwrap_or(0) == 0) {
        return false;
    }
    let steps = map.rule(rule).map_or(&[][..], |rule| &rule.steps);
    let speaking = |step: &&Step| !matches!(step.op, StepOp::Noop | StepOp::Take | StepOp::Emit);
    let types: Vec<i32> = steps.iter().filter(speaking).map(|step| step.arg2).collect();
    if types == [0] && map.type_name(0) == Some("osd") {
        return true;
    }
    let mut taken: BTreeSet<String> = BTreeSet::new();
    devices.iter().all(|device| {
        let place = map.full_location(*device);
        types.iter().all(|kind| {
            let bucket = map.type_name(*kind).and_then(|kind| place.get(kind));
            taken.insert(bucket.cloned().unwrap_or_default())
        })
    })
}
