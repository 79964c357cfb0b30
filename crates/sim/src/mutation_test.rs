//! Measures how soon broken rules are noticed.

use crate::mutation::Mutation;
use crate::scenario::Scenario;
use crate::{Options, run};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Mutex;
use std::thread;

/// The number of measurements for each mutation, from different first seeds.
pub const REPETITIONS: u64 = 9;
/// The distance between the first seeds of two repetitions.
const APART: u64 = 1_000_000;

/// A mutation that was noticed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detection {
    /// The number of seeds that it took, at least 1.
    pub seeds: u64,
    /// The invariant, as [`crate::Failure::rule`] names it.
    pub by: String,
    /// How often machines reached a point where the rule is broken.
    pub breaches: u64,
}

/// Breaks a rule in its scenarios of the seeds `first..first + most`; `None` if it is not noticed.
pub fn detect(mutation: Mutation, first: u64, most: u64) -> Option<Detection> {
    let mut breaches = 0;
    (first..first.saturating_add(most)).find_map(|seed| {
        let scenario = mutation.adjust_scenario(Scenario::of(seed));
        let report = run(&scenario, &Options { mutation: Some(mutation), ..Options::default() });
        breaches += report.breaches;
        report.failure.map(|failure| Detection { seeds: seed - first + 1, by: failure.rule, breaches })
    })
}

/// A Markdown table of all mutations that must be noticed: the invariants that noticed them, and within how many of at most
/// `most` seeds, as the median of [`REPETITIONS`].
pub fn report(most: u64, jobs: usize) -> String {
    let mutations: Vec<Mutation> = Mutation::ALL.iter().copied().filter(|m| !m.is_compensated()).collect();
    let mut work: Vec<(Mutation, u64)> =
        mutations.iter().flat_map(|m| (0..REPETITIONS).map(|number| (*m, number))).collect();
    work.reverse();
    let (work, found) = (Mutex::new(work), Mutex::new(Vec::new()));
    let next = || work.lock().ok()?.pop();
    thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                while let Some((mutation, number)) = next() {
                    let noticed = detect(mutation, 1 + number * APART, most);
                    if let Ok(mut found) = found.lock() {
                        found.push((mutation, noticed));
                    }
                }
            });
        }
    });
    let found = found.into_inner().unwrap_or_default();
    let mut text =
        "| rule | mutation | noticed by | seeds, median | seeds, most | breaches until then, median |\n|---|---|---|---|---|---|\n"
            .to_owned();
    for mutation in mutations {
        let of_it = found.iter().filter(|(of, _)| *of == mutation).map(|(_, noticed)| noticed.as_ref());
        let mut seeds: Vec<u64> =
            of_it.clone().map(|noticed| noticed.map_or(u64::MAX, |noticed| noticed.seeds)).collect();
        seeds.sort_unstable();
        let mut breaches: Vec<u64> = of_it.clone().flatten().map(|noticed| noticed.breaches).collect();
        breaches.sort_unstable();
        let breaches = breaches.get(breaches.len() / 2).copied().unwrap_or_default();
        let mut by: BTreeMap<&str, u64> = BTreeMap::new();
        of_it.flatten().for_each(|noticed| *by.entry(noticed.by.as_str()).or_default() += 1);
        let by: Vec<String> = by.into_iter().map(|(rule, count)| format!("{rule} ({count})")).collect();
        let shown = |seeds: Option<&u64>| match seeds {
            Some(seeds) if *seeds < u64::MAX => seeds.to_string(),
            _ => format!("more than {most}"),
        };
        let (rule, name) = (mutation.rule(), mutation.name());
        let (median, last) = (shown(seeds.get(seeds.len() / 2)), shown(seeds.last()));
        // Writing to a string does not fail.
        let _ = writeln!(text, "| {rule} | `{name}` | {} | {median} | {last} | {breaches} |", by.join("; "));
    }
    text
}
