//! `bench` and `cleanup`: load with a bounded number of operations in flight, measured as the real program measures it.
//!
//! An operation's completion starts the next one on the client's own thread; the calling thread only prints. Each write
//! carries its number, and reads check it, so that a benchmark is a test of integrity too.

mod load;
mod report;

use super::args::Format;
use super::{Context, Failure, out, pools, print};
use crate::cmd::steady::{SLICE_SECONDS, WarmUp};
use crate::progress::{Progress, Unit};
use load::{Kind, Load, Plan};
use nacre_client::{IoCtx, Network};
use nacre_types::errno::Errno;
use report::Report;
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;
use std::time::{Duration, Instant};

/// Where a write benchmark says what it left behind, unless `--run-name` names another object.
const LAST_RUN: &str = "benchmark_last_metadata";
/// The most sessions that one benchmark opens; each has a thread.
const MAX_CLIENTS: u32 = 1024;
/// What the objects' names begin with.
const PREFIX: &str = "benchmark_data";

/// What a write benchmark left behind, in the real program's encoding: object size u64, objects i32, pid i32, op size
/// u64, all little-endian.
#[derive(Debug, PartialEq)]
struct Run {
    object_size: u64,
    objects: u32,
    pid: u32,
    op_size: u64,
}

impl Run {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(24);
        out.extend(self.object_size.to_le_bytes());
        out.extend(self.objects.to_le_bytes());
        out.extend(self.pid.to_le_bytes());
        out.extend(self.op_size.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Option<Run> {
        let long = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let short = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let run = Run { object_size: long(0)?, objects: short(8)?, pid: short(12)?, op_size: long(16)? };
        (run.op_size > 0 && run.object_size >= run.op_size).then_some(run)
    }

    fn prefix(&self) -> String {
        object_prefix(self.pid)
    }
}

fn object_prefix(pid: u32) -> String {
    format!("{PREFIX}_{}_{pid}", host())
}

fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().split('.').next().unwrap_or_default().to_owned()
}

/// The last line as the real program ends a failed benchmark.
fn bench_failed(what: &str, errno: Errno) -> Failure {
    let errno_line = format!("error {}: {errno}", errno.0);
    Failure::new(format!("error during {what}: {errno}\n{errno_line}"))
}

/// CPU time of this process so far.
fn cpu_time() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(spent.tv_sec.unsigned_abs(), u32::try_from(spent.tv_nsec).unwrap_or(0))
}

pub(super) fn bench(context: &Context<'_>, operands: &[&str]) -> Result<(), Failure> {
    let kind = match operands[1] {
        "write" => Kind::Write,
        "seq" => Kind::Sequential,
        "rand" => Kind::Random,
        _ => return Err(Failure::usage()),
    };
    let seconds: u64 = operands[0]
        .parse()
        .map_err(|_| Failure::new(format!("Invalid value for seconds: '{}'", operands[0])))?;
    let args = context.args;
    let hints = !args.no_hints;
    if args.format == Format::Plain {
        out(format!("hints = {}\n", u8::from(hints)))?;
    }
    let concurrent = args.concurrent.unwrap_or(16);
    if concurrent == 0 {
        return Err(bench_failed("benchmark", Errno::EINVAL));
    }
    let clients = args.clients.unwrap_or(1);
    if !(1..=MAX_CLIENTS).contains(&clients) {
        eprintln!("--clients must be from 1 to {MAX_CLIENTS}");
        return Err(bench_failed("benchmark", Errno::EINVAL));
    }
    let run = match kind {
        Kind::Write => {
            let op_size = context.op_size();
            let object_size = args.object_size.unwrap_or(op_size);
            if object_size < op_size {
                eprintln!("objects must be at least as large as ops: -O {object_size} is below -b {op_size}");
                return Err(bench_failed("benchmark", Errno::EINVAL));
            }
            Run { object_size, objects: 0, pid: std::process::id(), op_size }
        }
        Kind::Sequential | Kind::Random => last_run(context)?,
    };
    let plan = Plan {
        kind,
        prefix: run.prefix(),
        op_size: run.op_size,
        ops_per_object: run.object_size / run.op_size,
        object_size: run.object_size,
        objects: run.objects,
        max_objects: args.max_objects,
        concurrent,
        verify: !args.no_verify,
        hints,
    };
    let report = Report::new(&plan, clients, seconds, args.format, args.show_time);
    // A thread for each of hundreds of sessions would measure the switching between them.
    let others = if clients == 1 {
        Vec::new()
    } else {
        let network = Network::start().map_err(|e| Failure::new(e.to_string()))?;
        (1..clients).map(|_| context.another_session(&network)).collect::<Result<_, _>>()?
    };
    let pools = std::iter::once(context.pool()).chain(others.iter().map(|(_, pool)| pool));
    let result = run_plan(context, pools.cloned().collect(), plan, report, run, seconds);
    for (cluster, _) in others {
        cluster.shut_down();
    }
    result
}

fn last_run(context: &Context<'_>) -> Result<Run, Failure> {
    let name = context.args.run_name.as_deref().unwrap_or(LAST_RUN);
    match context.pool().read(name, 0, 0).wait() {
        Ok(bytes) => Run::decode(&bytes).ok_or_else(|| {
            eprintln!("{} does not say what a write benchmark left behind", context.name(name));
            bench_failed("benchmark", Errno::EINVAL)
        }),
        Err(error) if error.is_not_found() => {
            eprintln!("Must write data before running a read benchmark!");
            Err(bench_failed("benchmark", Errno::ENOENT))
        }
        Err(error) => Err(bench_failed("benchmark", error.errno())),
    }
}

fn run_plan(
    context: &Context<'_>,
    pools: Vec<IoCtx>,
    plan: Plan,
    mut report: Report,
    mut run: Run,
    seconds: u64,
) -> Result<(), Failure> {
    let kind = plan.kind;
    let ops_per_object = plan.ops_per_object;
    let in_flight = u64::from(plan.concurrent) * pools.len() as u64;
    report.head()?;
    let (limit, length) = (context.args.warm_up, context.args.slice.unwrap_or(SLICE_SECONDS));
    let mut warm_up = (limit > 0).then(|| WarmUp::new(Duration::from_secs(limit)));
    let started = Instant::now();
    let (mut measured, mut cpu) = (started, cpu_time());
    let mut end = started + Duration::from_secs(limit + seconds);
    let load = Load::start(pools, plan, end);
    let (mut second, mut sliced) = (0, started);
    loop {
        report.line(&load.sample(), started.elapsed())?;
        second += 1;
        let over = load.wait_idle_until(started + Duration::from_secs(second)) || Instant::now() >= end;
        let now = Instant::now();
        if over || second.is_multiple_of(length) {
            let (slice, took, elapsed) = (load.take_slice(), now - sliced, now - started);
            sliced = now;
            // The rest of a slice at the end says little; a run that is shorter than a slice has no other.
            if took.as_secs() + 1 >= length || elapsed == took {
                report.slice(&slice, took, elapsed, warm_up.is_some());
            }
            let rate = slice.finished as f64 / took.as_secs_f64().max(1e-9);
            if let Some(state) = &mut warm_up
                && state.add(rate, elapsed)
            {
                end = now + Duration::from_secs(seconds);
                load.measure(end);
                report.warmed_up(elapsed, state.is_steady())?;
                (measured, cpu, warm_up) = (now, cpu_time(), None);
                continue;
            }
        }
        if over {
            break;
        }
    }
    let outcome = load.finish();
    let elapsed = outcome.last_completion.saturating_duration_since(measured);
    let cpu_us_per_op = match outcome.finished {
        0 => 0.0,
        ops => (cpu_time() - cpu).as_secs_f64() * 1e6 / ops as f64,
    };
    let name = context.args.run_name.as_deref().unwrap_or(LAST_RUN);
    // Where a write failed, those in flight with it may have been stored.
    let uncounted = if outcome.failure.is_some() { in_flight } else { 0 };
    let written = outcome.warmed_up + outcome.finished + uncounted;
    run.objects = u32::try_from(written.div_ceil(ops_per_object)).unwrap_or(u32::MAX);
    if let Some((what, errno)) = &outcome.failure {
        report.totals(&outcome, elapsed, cpu_us_per_op)?;
        eprintln!("{what}");
        let mut cleaned = None;
        if kind == Kind::Write && !context.args.no_cleanup {
            report.cleaning()?;
            let began = Instant::now();
            // What stays is less than the failure that is told.
            let removed = remove_run(context.pool(), &run, context.args.run_name.as_deref()).ok();
            cleaned = removed.map(|removed| (removed, began.elapsed()));
        } else if kind == Kind::Write {
            // `cleanup` finds the objects by this; a full store may refuse it.
            let _ = context.pool().with_full_try().write_full(name, run.encode()).wait();
        }
        report.end(cleaned)?;
        return Err(bench_failed("benchmark", *errno));
    }
    let mut cleaned = None;
    if kind == Kind::Write {
        let written = context.pool().write_full(name, run.encode()).wait();
        written.map_err(|error| bench_failed("benchmark", error.errno()))?;
    }
    report.totals(&outcome, elapsed, cpu_us_per_op)?;
    if kind == Kind::Write && !context.args.no_cleanup {
        report.cleaning()?;
        let began = Instant::now();
        let removed = remove_run(context.pool(), &run, context.args.run_name.as_deref())
            .map_err(|errno| bench_failed("benchmark", errno))?;
        cleaned = Some((removed, began.elapsed()));
    }
    report.end(cleaned)
}

pub(super) fn cleanup(context: &Context<'_>, _: &[&str]) -> Result<(), Failure> {
    let args = context.args;
    let pool = context.pool();
    let removed = match &args.prefix {
        Some(prefix) if !prefix.starts_with(PREFIX) => {
            eprintln!("Specified --prefix invalid, it must begin with \"{PREFIX}\"");
            return Err(bench_failed("cleanup", Errno::EINVAL));
        }
        Some(prefix) => {
            let namespace = pool.namespace().to_owned();
            let matches = |object: &nacre_types::ObjectId| {
                object.namespace() == namespace
                    && (object.name().starts_with(prefix.as_str()) || object.name() == LAST_RUN)
            };
            let removed = pools::remove_all(pool, matches);
            let removed = removed.map_err(|error| bench_failed("cleanup", error.errno()))?;
            // The record of the last run is not one of the benchmark's objects.
            Some(removed.saturating_sub(1))
        }
        None => {
            let name = args.run_name.as_deref().unwrap_or(LAST_RUN);
            match pool.read(name, 0, 0).wait() {
                Err(error) if error.is_not_found() => None,
                Err(error) => return Err(bench_failed("cleanup", error.errno())),
                Ok(bytes) => match Run::decode(&bytes) {
                    None => return Err(bench_failed("cleanup", Errno::EINVAL)),
                    Some(run) => {
                        let removed = remove_run(pool, &run, args.run_name.as_deref());
                        Some(removed.map_err(|errno| bench_failed("cleanup", errno))?)
                    }
                },
            }
        }
    };
    match (args.format, removed) {
        (Format::Plain, None) => Ok(()),
        (Format::Plain, Some(removed)) => out(format!("Removed {removed} objects\n")),
        (format, removed) => out(print::json(&json!({ "removed": removed.unwrap_or(0) }), format)),
    }
}

/// Removes what a run wrote, by name; returns how many objects there were.
fn remove_run(pool: &IoCtx, run: &Run, run_name: Option<&str>) -> Result<u64, Errno> {
    const IN_FLIGHT: usize = 64;
    let prefix = run.prefix();
    let mut removed = 0;
    let mut in_flight = std::collections::VecDeque::with_capacity(IN_FLIGHT);
    let mut wait = |pending: nacre_client::Pending<()>| match pending.wait() {
        Ok(()) => {
            removed += 1;
            Ok(())
        }
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error.errno()),
    };
    let progress = Progress::start("removing", Unit::Items("objects"), Some(run.objects.into()));
    for object in 0..run.objects {
        progress.set(u64::from(object));
        if in_flight.len() == IN_FLIGHT
            && let Some(oldest) = in_flight.pop_front()
        {
            wait(oldest)?;
        }
        in_flight.push_back(pool.remove(&load::object_name(&prefix, u64::from(object))));
    }
    in_flight.into_iter().try_for_each(&mut wait)?;
    match pool.remove(run_name.unwrap_or(LAST_RUN)).wait() {
        Err(error) if !error.is_not_found() => Err(error.errno()),
        _ => Ok(removed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_recorded_in_the_real_programs_form() {
        let run = Run { object_size: 65536, objects: 3, pid: 77, op_size: 4096 };
        let bytes = run.encode();
        assert_eq!(bytes.len(), 24);
        assert_eq!(Run::decode(&bytes).unwrap(), run);
        assert!(Run::decode(&bytes[..23]).is_none());
        assert!(Run::decode(&[0; 24]).is_none());
    }
}
