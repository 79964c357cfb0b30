//! Rules broken on purpose are noticed, and the same scenarios with the rules kept are not.

use nacre_sim::mutation::Mutation;
use nacre_sim::scenario::Scenario;
use nacre_sim::{Options, run};

/// Seeds within which a breach must show. The rarest, a wiped member that is trusted, shows in about one of five hundred.
const SEEDS: u64 = 2000;
/// Breaches that another rule makes good, so that nobody sees them: late acks by the lease that every answer needs, late
/// requests by the dup records; and those that cost copies or work, but no data while the last intact copy is spared.
const MADE_GOOD: [Mutation; 4] = [
    Mutation::AcceptOldIntervalOps,
    Mutation::ExecuteStaleOps,
    Mutation::DropBeforeFilled,
    Mutation::ApplyPastCursor,
];
/// Seeds of a mutation's scenarios that must pass with the rule kept.
const SOUND: u64 = 8;

fn fails(mutation: Mutation, seed: u64, broken: bool) -> Option<String> {
    let scenario = mutation.shape(Scenario::of(seed));
    let report = run(&scenario, &Options { mutation: broken.then_some(mutation), trace: false });
    report.failure.map(|failure| format!("{}: {}", failure.rule, failure.detail))
}

#[test]
fn every_breach_is_noticed() {
    // What panics is caught and counts as noticed; its backtrace is of no interest.
    std::panic::set_hook(Box::new(|_| {}));
    let unnoticed: Vec<&str> = Mutation::ALL
        .iter()
        .filter(|mutation| !MADE_GOOD.contains(mutation))
        .filter(|mutation| !(1..=SEEDS).any(|seed| fails(**mutation, seed, true).is_some()))
        .map(|mutation| mutation.name())
        .collect();
    assert!(unnoticed.is_empty(), "unnoticed in {SEEDS} seeds: {unnoticed:?}");
}

#[test]
fn scenarios_of_breaches_are_sound_without_them() {
    for mutation in Mutation::ALL.iter().filter(|m| **m != Mutation::WildClocks) {
        for seed in 1..=SOUND {
            let failure = fails(*mutation, seed, false);
            assert_eq!(failure, None, "seed {seed} in the scenario of {}", mutation.name());
        }
    }
}

#[test]
fn every_rule_has_a_breach() {
    for rule in ["R1", "R2", "R3", "R4", "R5", "R6", "R7", "R8", "R10"] {
        let seen = |mutation: &&Mutation| !MADE_GOOD.contains(mutation) && mutation.rule() == rule;
        assert!(Mutation::ALL.iter().any(|mutation| seen(&mutation)), "{rule}");
    }
}
