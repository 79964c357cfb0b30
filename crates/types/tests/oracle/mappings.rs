//! Compares `do_rule` with `crushtool --test --show-mappings`.

use super::{MAPS, generate, in_parallel, run_ok};
use nacre_crush::{WEIGHT_ONE, Workspace};
use std::fmt::Write;

const INPUTS: u32 = 10_000;

#[test]
fn every_rule_maps_every_input_as_crushtool_does() {
    let dir = tempfile::tempdir().unwrap();
    in_parallel(MAPS, |seed| {
        let case = generate::case(seed);
        let map = &case.map;
        let file = dir.path().join(format!("map{seed}"));
        std::fs::write(&file, map.encode()).unwrap();

        let mut weights: Vec<u32> =
            (0..map.max_devices()).map(|device| if map.is_linked(device) { WEIGHT_ONE } else { 0 }).collect();
        let mut words = Vec::new();
        for &(device, weight) in &case.reweights {
            weights[device as usize] = weight;
            words.extend([
                "--weight".into(),
                device.to_string(),
                (weight as f64 / WEIGHT_ONE as f64).to_string(),
            ]);
        }
        let last = (INPUTS - 1).to_string();
        let (mut work, mut out) = (Workspace::new(), Vec::new());
        for &(rule, size) in &case.sizes {
            let (rule_word, size_word) = (rule.to_string(), size.to_string());
            let mut args = vec!["-i", file.to_str().unwrap(), "--test", "--show-mappings", "--min-x", "0"];
            args.extend(["--max-x", &last, "--rule", &rule_word, "--num-rep", &size_word]);
            args.extend(words.iter().map(String::as_str));
            let theirs = String::from_utf8(run_ok("crushtool", &args).stdout).unwrap();

            let choose_args = map.choose_args_with_fallback(0);
            let mut ours = String::new();
            for x in 0..INPUTS {
                map.do_rule_with(&mut work, rule, x, size, &weights, choose_args, &mut out);
                write!(ours, "CRUSH rule {rule} x {x} [").unwrap();
                for (at, item) in out.iter().enumerate() {
                    write!(ours, "{}{item}", if at == 0 { "" } else { "," }).unwrap();
                }
                ours.push_str("]\n");
            }
            if weights.iter().all(|weight| *weight == 0) {
                assert_eq!(theirs, "", "crushtool maps nothing where all devices are out");
                continue;
            }
            if ours != theirs {
                let (a, b) = ours.lines().zip(theirs.lines()).find(|(a, b)| a != b).unwrap_or_default();
                panic!(
                    "map {seed} rule {rule} size {size}: '{a}', crushtool says '{b}'\n{}",
                    map.decompile()
                );
            }
        }
    });
}
