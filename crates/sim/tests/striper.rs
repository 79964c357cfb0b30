//! Clients of striped objects on simulated clusters: some seeds, and guards that are omitted on purpose.

#![allow(clippy::unwrap_used)]

use nacre_sim::program::striper::{Breach, StriperProgram};
use nacre_sim::scenario::Scenario;
use nacre_sim::scenario::profile::Profile;
use nacre_sim::{Options, Report, run, run_program};

/// Seeds in which a breach must be noticed.
const SEEDS: u64 = 60;

fn scenario(seed: u64) -> Scenario {
    Profile::Striper.adjust_scenario(Scenario::of(seed))
}

/// The first rule that is broken when a guard is omitted, with its seed.
fn noticed(breach: Breach) -> (u64, String) {
    let broken = |seed: u64| -> Report {
        let scenario = scenario(seed);
        let program = StriperProgram::breaking(&scenario, breach);
        run_program(&scenario, &Options::default(), Some(Box::new(program)))
    };
    let found = (1..=SEEDS).find_map(|seed| Some((seed, broken(seed).failure?.rule)));
    found.unwrap_or_else(|| panic!("{breach:?} is unnoticed in {SEEDS} seeds"))
}

#[test]
fn striped_objects_are_what_was_written_to_them() {
    for seed in 1..=20 {
        assert_eq!(run(&scenario(seed), &Options::default()).failure, None, "seed {seed}");
    }
}

#[test]
fn one_seed_names_one_history() {
    let hash = |seed| run(&scenario(seed), &Options { thorough: true, ..Options::default() }).hash;
    assert_eq!(hash(2), hash(2));
    assert_ne!(hash(2), hash(4));
}

#[test]
fn appends_that_do_not_compare_the_size_are_noticed() {
    let (seed, rule) = noticed(Breach::UnguardedAppends);
    let by = [
        "two appends overlap",
        "an acknowledged write to a striped object is lost",
        "striped data comes back",
    ];
    assert!(by.contains(&rule.as_str()), "seed {seed}: {rule}");
}

#[test]
fn requests_that_do_not_compare_the_epoch_are_noticed() {
    let (seed, rule) = noticed(Breach::UnguardedEpochs);
    let by = [
        "an acknowledged write to a striped object is lost",
        "striped data comes back",
        "striped data is in another place",
        "two appends overlap",
        "pieces of a striped object are left",
    ];
    assert!(by.contains(&rule.as_str()), "seed {seed}: {rule}");
}
