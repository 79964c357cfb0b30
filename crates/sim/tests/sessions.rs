//! The events that sessions and connections handle occur in simulations.

use nacre_sim::scenario::Scenario;
use nacre_sim::sessions::SessionTrouble;
use nacre_sim::{Options, run};
use std::collections::BTreeMap;

const SEEDS: u64 = 150;

#[test]
fn every_trouble_of_sessions_happens() {
    let mut happened: BTreeMap<SessionTrouble, u64> = BTreeMap::new();
    for seed in 1..=SEEDS {
        let report = run(&Scenario::of(seed), &Options::default());
        assert_eq!(report.failure, None, "seed {seed}");
        for (trouble, times) in report.sessions {
            *happened.entry(trouble).or_default() += times;
        }
    }
    println!("{happened:?}");
    let missing: Vec<_> = SessionTrouble::ALL.iter().filter(|kind| !happened.contains_key(kind)).collect();
    assert!(missing.is_empty(), "{missing:?} never happened; {happened:?}");
}
