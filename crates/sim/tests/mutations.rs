//! Rules broken on purpose are noticed; the same scenarios pass with the rules intact.

use nacre_sim::mutation::Mutation;
use nacre_sim::mutation_test::detect;
use nacre_sim::scenario::Scenario;
use nacre_sim::{Options, run};

/// The number of seeds within which a breach must be noticed.
const SEEDS: u64 = 2000;
/// The number of seeds of a mutation's scenarios that must pass with the rule intact.
const SOUND: u64 = 8;

/// Checks that every breach of a rule is noticed by an invariant that its mutation names, and that the rule has a breach.
fn breaches_are_noticed(rule: &str) -> Result<(), String> {
    // A panic is caught and counts as noticed; its backtrace is not needed. So this returns errors instead of asserting.
    std::panic::set_hook(Box::new(|_| {}));
    let of_rule =
        Mutation::ALL.iter().filter(|mutation| mutation.rule() == rule && !mutation.is_compensated());
    let mut count = 0;
    for mutation in of_rule {
        count += 1;
        let name = mutation.name();
        let Some(noticed) = detect(*mutation, 1, SEEDS) else {
            return Err(format!("{name} is unnoticed in {SEEDS} seeds"));
        };
        let is_expected = mutation.noticed_by().iter().any(|invariant| noticed.by.starts_with(invariant));
        if !is_expected {
            return Err(format!("{name} is noticed by: {}", noticed.by));
        }
        // Clocks belong to no machine, so breaches are not counted there.
        if noticed.breaches == 0 && *mutation != Mutation::WildClocks {
            return Err(format!("nothing came to {name}"));
        }
    }
    match count {
        0 => Err(format!("no breach of {rule}")),
        _ => Ok(()),
    }
}

#[test]
fn breaches_of_r1_are_noticed() -> Result<(), String> {
    breaches_are_noticed("R1")
}

#[test]
fn breaches_of_r2_are_noticed() -> Result<(), String> {
    breaches_are_noticed("R2")
}

#[test]
fn breaches_of_r3_are_noticed() -> Result<(), String> {
    breaches_are_noticed("R3")
}

#[test]
fn breaches_of_r4_are_noticed() -> Result<(), String> {
    breaches_are_noticed("R4")
}

#[test]
fn breaches_of_r5_are_noticed() -> Result<(), String> {
    breaches_are_noticed("R5")
}

#[test]
fn breaches_of_r6_are_noticed() -> Result<(), String> {
    breaches_are_noticed("R6")
}

#[test]
fn breaches_of_r7_are_noticed() -> Result<(), String> {
    breaches_are_noticed("R7")
}

#[test]
fn breaches_of_r8_are_noticed() -> Result<(), String> {
    breaches_are_noticed("R8")
}

#[test]
fn breaches_of_r9_are_noticed() -> Result<(), String> {
    breaches_are_noticed("R9")
}

#[test]
fn breaches_of_r10_are_noticed() -> Result<(), String> {
    breaches_are_noticed("R10")
}

#[test]
fn breaches_of_sessions_are_noticed() -> Result<(), String> {
    breaches_are_noticed("sessions")
}

#[test]
fn breaches_of_tiers_are_noticed() -> Result<(), String> {
    breaches_are_noticed("tiers")
}

#[test]
fn scenarios_of_breaches_are_sound_without_them() {
    for mutation in Mutation::ALL.iter().filter(|m| **m != Mutation::WildClocks) {
        for seed in 1..=SOUND {
            let scenario = mutation.adjust_scenario(Scenario::of(seed));
            let report = run(&scenario, &Options::default());
            assert_eq!(report.failure, None, "seed {seed} in the scenario of {}", mutation.name());
        }
    }
}
