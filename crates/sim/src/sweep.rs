//! Runs many seeds; reduces a failing one and describes how to replay it.

use crate::bounds::BoundCounts;
use crate::scenario::profile::Profile;
use crate::scenario::{Fault, Scenario};
use crate::{Failure, Report};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// The way in which a sweep runs a seed.
pub trait Runner: Sync {
    /// The seed's scenario.
    fn scenario(&self, seed: u64) -> Scenario {
        Scenario::of(seed)
    }

    /// Runs a scenario to its end or to the first failure.
    fn run(&self, scenario: &Scenario) -> Report;
}

/// A failing seed, minimised.
#[derive(Clone, Debug)]
pub struct FailingSeed {
    /// The scenario with the fewest kinds of faults found that fail in the same way.
    pub scenario: Scenario,
    /// Whether it has fewer kinds of faults than the seed's own scenario, so that a replay must name them.
    pub reduced: bool,
    /// The failure.
    pub failure: Failure,
}

/// Sums over a sweep.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// The number of seeds that passed.
    pub seeds: u64,
    /// The number of simulated events.
    pub events: u64,
    /// The number of answered requests.
    pub answered: u64,
    /// Virtual nanoseconds.
    pub virtual_ns: u128,
    /// How often each kind of fault had an effect.
    pub struck: BTreeMap<Fault, u64>,
    /// How often bounds were reached.
    pub reached: BoundCounts,
    /// The number of seeds of each profile, and their duration.
    pub profiles: BTreeMap<Profile, (u64, Duration)>,
}

impl Totals {
    fn add(&mut self, scenario: &Scenario, report: Report, took: Duration) {
        self.seeds += 1;
        self.events += report.events;
        self.answered += report.answered;
        self.virtual_ns += u128::from(report.virtual_ns);
        for (fault, count) in report.struck {
            *self.struck.entry(fault).or_default() += count;
        }
        self.reached.merge(&report.reached);
        let of_profile = self.profiles.entry(scenario.profile).or_default();
        of_profile.0 += 1;
        of_profile.1 += took;
    }
}

/// Runs seeds `first..first + count` on `jobs` threads until one fails; `progress` is called for each that passes. The
/// failing seed is the lowest that any thread had reached, so the result is almost always the same in each run.
pub fn sweep(
    runner: &impl Runner,
    first: u64,
    count: u64,
    jobs: usize,
    mut progress: impl FnMut(&Totals),
) -> (Totals, Option<FailingSeed>) {
    let (next, stop) = (AtomicU64::new(first), AtomicBool::new(false));
    let (send, receive) = mpsc::channel();
    let mut totals = Totals::default();
    let mut failed: Option<(Scenario, Failure)> = None;
    thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            let (send, next, stop) = (send.clone(), &next, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first.saturating_add(count) {
                        return;
                    }
                    let scenario = runner.scenario(seed);
                    let started = Instant::now();
                    let report = runner.run(&scenario);
                    let took = started.elapsed();
                    if report.failure.is_some() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    if send.send((scenario, report, took)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        for (scenario, mut report, took) in receive {
            match report.failure.take() {
                None => {
                    totals.add(&scenario, report, took);
                    progress(&totals);
                }
                Some(failure) if failed.as_ref().is_none_or(|(s, _)| scenario.seed < s.seed) => {
                    failed = Some((scenario, failure));
                }
                Some(_) => {}
            }
        }
    });
    let found = failed.map(|(scenario, failure)| minimise(runner, scenario, failure));
    (totals, found)
}

/// Each seed's hash, for `seeds` in their order on `jobs` threads.
pub fn hashes(runner: &impl Runner, seeds: &[u64], jobs: usize) -> BTreeMap<u64, u64> {
    let (next, found) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let hash = runner.run(&runner.scenario(*seed)).hash;
                    if let Ok(mut found) = found.lock() {
                        found.insert(*seed, hash);
                    }
                }
            });
        }
    });
    found.into_inner().unwrap_or_default()
}

/// Removes kinds of faults, one at a time, as long as the same rule is broken.
pub fn minimise(runner: &impl Runner, scenario: Scenario, failure: Failure) -> FailingSeed {
    let mut found = FailingSeed { scenario, reduced: false, failure };
    let mut kinds: Vec<Fault> = found.scenario.faults.iter().copied().collect();
    let mut at = 0;
    while at < kinds.len() {
        let less = found.scenario.without(kinds[at]);
        match runner.run(&less).failure {
            Some(failure) if failure.rule == found.failure.rule => {
                found = FailingSeed { scenario: less, reduced: true, failure };
                kinds.remove(at);
                // Kinds that were needed together with this one may not be needed without it.
                at = 0;
            }
            _ => at += 1,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails from seed 40 on, if crashes and partitions occur together.
    struct Fake;

    impl Runner for Fake {
        fn run(&self, scenario: &Scenario) -> Report {
            let bad = [Fault::Crash, Fault::Partition].iter().all(|f| scenario.faults.contains(f));
            let failure = (bad && scenario.seed >= 40).then(|| Failure {
                rule: "made up".into(),
                detail: String::new(),
                at: 1,
            });
            Report { failure, events: 1, ..Report::default() }
        }
    }

    #[test]
    fn a_failing_seed_is_found_and_reduced_to_what_it_needs() {
        let (totals, found) = sweep(&Fake, 0, 2000, 2, |_| {});
        let found = found.expect("some seed has both kinds of fault");
        assert!(totals.seeds >= 40 && found.scenario.seed >= 40);
        assert_eq!(found.scenario.fault_list(), "partition,crash");
    }

    #[test]
    fn a_sweep_without_failure_runs_every_seed() {
        let (totals, found) = sweep(&Fake, 10, 20, 3, |_| {});
        assert!(found.is_none());
        assert_eq!((totals.seeds, totals.events), (20, 20));
        assert_eq!(totals.profiles[&Profile::Common].0, 20);
    }
}
