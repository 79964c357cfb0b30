//! `nacre-sim`: simulates whole clusters for a range of seeds, and prints one line that replays a failure.

use nacre_sim::bounds::Bound;
use nacre_sim::mutation::Mutation;
use nacre_sim::mutation_test;
use nacre_sim::scenario::profile::Profile;
use nacre_sim::scenario::{Fault, Scenario};
use nacre_sim::sweep::{FailingSeed, Runner, Totals, hashes, sweep};
use nacre_sim::{Options, Report, run};
use std::io::{IsTerminal, Write, stderr, stdout};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const USAGE: &str = "\
usage: nacre-sim [options]
  --seeds N          simulate N clusters (default 1000)
  --first-seed S     the first seed (default 1)
  --jobs N           threads (default: one per core)
  --replay SEED      simulate one seed
  --long             seeds have the profiles of long tests
  --profile NAME     all seeds have this profile
  --faults A,B,...   only these kinds of fault (or none)
  --mutation NAME    with this rule broken
  --mutations        break each rule, and print within how many seeds (--seeds, at most) that is noticed
  --hashes           print a hash of all messages and disks of each seed
  --reversed         the last seed first (with --hashes)
  --trace            print every event (with --replay)
  --list             print the kinds of fault, the profiles and the mutations";

struct Arguments {
    seeds: u64,
    first_seed: u64,
    jobs: usize,
    replay: Option<u64>,
    long: bool,
    profile: Option<Profile>,
    faults: Option<Vec<Fault>>,
    mutation: Option<Mutation>,
    measures: bool,
    hashes: bool,
    reversed: bool,
    trace: bool,
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(Some(arguments)) => arguments,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nacre-sim: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    if !arguments.trace {
        // A panic is reported as a failure with its replay line.
        std::panic::set_hook(Box::new(|_| {}));
    }
    if arguments.measures {
        print!("{}", mutation_test::report(arguments.seeds, arguments.jobs));
        return ExitCode::SUCCESS;
    }
    if arguments.hashes {
        let mut seeds: Vec<u64> = (arguments.first_seed..).take(arguments.seeds as usize).collect();
        if arguments.reversed {
            seeds.reverse();
        }
        for (seed, hash) in hashes(&arguments, &seeds, arguments.jobs) {
            println!("{seed} {hash:016x}");
        }
        return ExitCode::SUCCESS;
    }
    if arguments.replay.is_some() { replay(&arguments) } else { many(&arguments) }
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Option<Arguments>, String> {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut parsed = Arguments {
        seeds: 1000,
        first_seed: 1,
        jobs: cores,
        replay: None,
        long: false,
        profile: None,
        faults: None,
        mutation: None,
        measures: false,
        hashes: false,
        reversed: false,
        trace: false,
    };
    while let Some(option) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{option} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|_| format!("'{text}' is not a number"));
        match option.as_str() {
            "--seeds" => parsed.seeds = number(value()?)?,
            "--first-seed" => parsed.first_seed = number(value()?)?,
            "--jobs" => parsed.jobs = number(value()?)?.clamp(1, 1024) as usize,
            "--replay" => parsed.replay = Some(number(value()?)?),
            "--faults" => {
                let list = value()?;
                let kinds = list.split(',').filter(|name| !name.is_empty() && *name != NONE).map(str::parse);
                parsed.faults = Some(kinds.collect::<Result<_, _>>()?);
            }
            "--long" => parsed.long = true,
            "--profile" => parsed.profile = Some(value()?.parse()?),
            "--mutations" => parsed.measures = true,
            "--mutation" => parsed.mutation = Some(value()?.parse()?),
            "--hashes" => parsed.hashes = true,
            "--reversed" => parsed.reversed = true,
            "--trace" => parsed.trace = true,
            "--list" => {
                let faults: Vec<_> = Fault::ALL.iter().map(|f| f.name()).collect();
                let mutations: Vec<_> = Mutation::ALL.iter().map(|m| m.name()).collect();
                let profiles: Vec<_> = Profile::ALL.iter().map(|p| p.name()).collect();
                println!(
                    "faults: {}\nprofiles: {}\nmutations: {}",
                    faults.join(" "),
                    profiles.join(" "),
                    mutations.join(" ")
                );
                return Ok(None);
            }
            "--help" | "-h" => {
                println!("{USAGE}");
                return Ok(None);
            }
            _ => return Err(format!("unknown option {option}")),
        }
    }
    Ok(Some(parsed))
}

/// The spelling of an empty list in options.
const NONE: &str = "none";
/// The number of seeds in which each kind of fault has an effect, each profile is drawn, and each bound is reached.
const WHOLE: u64 = 1000;
/// The same for long tests.
const WHOLE_LONG: u64 = 200;

impl Arguments {
    /// Whether each kind of fault must have an effect in this many seeds.
    fn is_whole(&self) -> bool {
        let whole = if self.long { WHOLE_LONG } else { WHOLE };
        let is_bent = self.faults.is_some() || self.mutation.is_some() || self.profile.is_some();
        self.seeds >= whole && !is_bent
    }

    /// What a sweep of this many seeds must reach and did not.
    fn missing(&self, totals: &Totals) -> Option<String> {
        let struck = |fault: &&Fault| totals.struck.get(fault).copied().unwrap_or_default() > 0;
        // A cache loss is possible in few seeds.
        let mut faults = Fault::ALL.iter().filter(|fault| **fault != Fault::CacheLoss);
        let fault = faults.find(|fault| !struck(fault));
        let drawn =
            |profile: &&Profile| totals.profiles.contains_key(profile) || !profile.is_drawn(self.long);
        let profile = Profile::ALL.iter().find(|profile| !drawn(profile));
        let reached = |bound: &&Bound| totals.reached.of(**bound) > 0 || !self.long && !bound.is_usual();
        let bound = Bound::ALL.iter().find(|bound| !reached(bound));
        let fault = fault.map(|fault| format!("no {fault} had an effect"));
        let profile = profile.map(|profile| format!("no seed has the profile {profile}"));
        let bound = bound.map(|bound| format!("nothing reached the bound {bound}"));
        fault.or(profile).or(bound).filter(|_| self.is_whole())
    }
}

impl Runner for Arguments {
    fn scenario(&self, seed: u64) -> Scenario {
        let scenario = Scenario::of(seed);
        let profile = self.profile.unwrap_or_else(|| Profile::of(seed, self.long));
        let scenario = match self.mutation {
            Some(mutation) => mutation.adjust_scenario(scenario),
            None => profile.adjust_scenario(scenario),
        };
        self.faults.as_ref().map_or(scenario.clone(), |faults| scenario.with_only(faults))
    }

    fn run(&self, scenario: &Scenario) -> Report {
        run(scenario, &Options { mutation: self.mutation, trace: self.trace, thorough: self.hashes })
    }
}

fn replay(arguments: &Arguments) -> ExitCode {
    let seed = arguments.replay.unwrap_or_default();
    let scenario = arguments.scenario(seed);
    let report = arguments.run(&scenario);
    println!(
        "seed {seed}: {}, {} OSDs, {} clients, faults {}; {} events, {} requests answered, {:.1} s of virtual time, trace {:016x}",
        scenario.profile,
        scenario.osds,
        scenario.clients,
        scenario.fault_list(),
        report.events,
        report.answered,
        report.virtual_ns as f64 / 1e9,
        report.hash,
    );
    match report.failure {
        None => ExitCode::SUCCESS,
        Some(failure) => {
            println!("FAILED at {:.6} s: {}\n{}", failure.at as f64 / 1e9, failure.rule, failure.detail);
            ExitCode::FAILURE
        }
    }
}

fn many(arguments: &Arguments) -> ExitCode {
    let (started, mut shown) = (Instant::now(), Instant::now());
    let terminal = stderr().is_terminal();
    let (totals, found) = sweep(arguments, arguments.first_seed, arguments.seeds, arguments.jobs, |totals| {
        let pause = if terminal { Duration::from_millis(200) } else { Duration::from_secs(30) };
        if shown.elapsed() > pause {
            shown = Instant::now();
            let (start, end) = if terminal { ("\r", "") } else { ("", "\n") };
            eprint!("{start}{} of {} seeds{end}", totals.seeds, arguments.seeds);
            // Progress is only informative: a closed stderr must not stop the sweep.
            stderr().flush().ok();
        }
    });
    if terminal {
        eprint!("\r");
    }
    let Some(found) = found else {
        println!(
            "{} seeds passed: {:.1} h of virtual time, {} events, {} requests answered, in {:.1} s",
            totals.seeds,
            totals.virtual_ns as f64 / 3.6e12,
            totals.events,
            totals.answered,
            started.elapsed().as_secs_f64(),
        );
        print_counts(&totals);
        return match arguments.missing(&totals) {
            Some(missing) => {
                println!("FAILED: {missing}");
                ExitCode::FAILURE
            }
            None => ExitCode::SUCCESS,
        };
    };
    println!("{}", replay_line(arguments, &found));
    println!("violated: {}\n{}", found.failure.rule, found.failure.detail);
    stdout().flush().ok();
    ExitCode::FAILURE
}

/// Prints the counts of a sweep.
fn print_counts(totals: &Totals) {
    let share = |(profile, (seeds, took)): (&Profile, &(u64, Duration))| {
        let percent = 100 * seeds / totals.seeds.max(1);
        let each = took.as_millis() / u128::from((*seeds).max(1));
        format!("{profile} {seeds} ({percent} %, {each} ms each)")
    };
    let profiles: Vec<_> = totals.profiles.iter().map(share).collect();
    println!("profiles: {}", profiles.join(", "));
    let struck = |fault: &Fault| totals.struck.get(fault).copied().unwrap_or_default();
    let kinds: Vec<_> = Fault::ALL.iter().map(|fault| format!("{fault} {}", struck(fault))).collect();
    println!("faults: {}", kinds.join(", "));
    let bounds: Vec<_> =
        Bound::ALL.iter().map(|bound| format!("{bound} {}", totals.reached.of(*bound))).collect();
    println!("bounds: {}", bounds.join(", "));
}

/// The one line that replays a failure.
fn replay_line(arguments: &Arguments, found: &FailingSeed) -> String {
    let mut line = format!("make sim SEED={}", found.scenario.seed);
    if let Some(mutation) = arguments.mutation {
        line += &format!(" MUTATION={}", mutation.name());
    }
    let mut options = Vec::new();
    if arguments.long {
        options.push("--long".to_owned());
    }
    options.extend(arguments.profile.map(|profile| format!("--profile {profile}")));
    if found.reduced || arguments.faults.is_some() {
        let list = found.scenario.fault_list();
        options.push(format!("--faults {}", if list.is_empty() { NONE } else { &list }));
    }
    if !options.is_empty() {
        line += &format!(" ARGS='{}'", options.join(" "));
    }
    line
}
