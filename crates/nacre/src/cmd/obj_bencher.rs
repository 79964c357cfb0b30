//! The common part of `rados bench` and `rest-bench`, like Ceph's `ObjBencher`: load with a bounded number of operations in
//! flight, measured and printed as in Ceph; the record that a write benchmark leaves; and the removal of its objects.
//!
//! An operation's completion starts the next one on the store's own thread; the calling thread only prints. Each write contains
//! its number, and reads check it, so a benchmark also tests integrity.

mod load;
mod report;

use super::output::Format;
use super::rados::{RadosFailure, formatting, out};
use super::steady::WarmUp;
use crate::progress::{Progress, Unit};
use bytes::Bytes;
use load::Load;
pub(super) use load::{BenchKind, BenchPlan};
use nacre_types::errno::Errno;
use report::Report;
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The object in which a write benchmark records the objects that it left, unless `--run-name` names another one.
pub(super) const LAST_RUN_OBJECT: &str = "benchmark_last_metadata";
/// Prefix of the objects' names.
pub(super) const OBJECT_PREFIX: &str = "benchmark_data";
/// Concurrent removals.
const REMOVALS: usize = 64;

/// Why an operation of a store failed.
#[derive(Debug)]
pub(super) struct BackendError {
    pub(super) text: String,
    pub(super) errno: Errno,
}

/// Called when an operation ends.
pub(super) type BackendCallback<T> = Box<dyn FnOnce(Result<T, BackendError>) + Send>;

/// Access to the objects. Copies share one session.
pub(super) trait BenchBackend: Clone + Send + 'static {
    /// Writes `data` at an offset of an object.
    fn write(&self, plan: &BenchPlan, name: &str, offset: u64, data: Bytes, done: BackendCallback<()>);

    /// Reads a part of an object.
    fn read(&self, name: &str, offset: u64, len: u64, done: BackendCallback<Bytes>);

    /// Removes an object. Reports whether it existed, as far as the store knows.
    fn remove(&self, name: &str, done: BackendCallback<bool>);

    /// Replaces a small object.
    fn save(&self, name: &str, data: Vec<u8>) -> Result<(), BackendError>;

    /// Reads a whole small object, or `None` if it does not exist.
    fn load(&self, name: &str) -> Result<Option<Bytes>, BackendError>;
}

/// The parameters and the output of a benchmark.
pub(super) struct Settings<'a> {
    pub(super) run_name: Option<&'a str>,
    pub(super) seconds: u64,
    /// The maximum warm-up in seconds, or 0 for none.
    pub(super) warm_up: u64,
    /// Seconds per slice of the curve.
    pub(super) slice: u64,
    pub(super) format: Format,
    pub(super) show_time: bool,
    pub(super) no_cleanup: bool,
}

impl Settings<'_> {
    fn record(&self) -> &str {
        self.run_name.unwrap_or(LAST_RUN_OBJECT)
    }
}

/// The record of a write benchmark, in Ceph's encoding: object size u64, objects i32, pid i32, op size u64, all little-endian.
#[derive(Debug, PartialEq)]
pub(in crate::cmd) struct RunRecord {
    pub(in crate::cmd) object_size: u64,
    pub(in crate::cmd) objects: u32,
    pub(in crate::cmd) pid: u32,
    pub(in crate::cmd) op_size: u64,
}

impl RunRecord {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(24);
        out.extend(self.object_size.to_le_bytes());
        out.extend(self.objects.to_le_bytes());
        out.extend(self.pid.to_le_bytes());
        out.extend(self.op_size.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Option<RunRecord> {
        let long = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let short = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let run =
            RunRecord { object_size: long(0)?, objects: short(8)?, pid: short(12)?, op_size: long(16)? };
        (run.op_size > 0 && run.object_size >= run.op_size).then_some(run)
    }

    pub(in crate::cmd) fn prefix(&self) -> String {
        object_prefix(self.pid)
    }
}

fn object_prefix(pid: u32) -> String {
    format!("{OBJECT_PREFIX}_{}_{pid}", host())
}

fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().split('.').next().unwrap_or_default().to_owned()
}

/// The last line of a failed benchmark, as in Ceph's program.
pub(in crate::cmd) fn bench_failed(what: &str, errno: Errno) -> RadosFailure {
    let errno_line = format!("error {}: {errno}", errno.0);
    RadosFailure::new(format!("error during {what}: {errno}\n{errno_line}"))
}

/// CPU time of this process so far.
fn cpu_time() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(spent.tv_sec.unsigned_abs(), u32::try_from(spent.tv_nsec).unwrap_or(0))
}

/// The record of the last write benchmark, which a read benchmark needs.
pub(super) fn last_run(store: &impl BenchBackend, run_name: Option<&str>) -> Result<RunRecord, RadosFailure> {
    let name = run_name.unwrap_or(LAST_RUN_OBJECT);
    match store.load(name) {
        Ok(Some(bytes)) => RunRecord::decode(&bytes).ok_or_else(|| {
            eprintln!("{name} does not contain the metadata of a write benchmark");
            bench_failed("benchmark", Errno::EINVAL)
        }),
        Ok(None) => {
            eprintln!("Must write data before running a read benchmark!");
            Err(bench_failed("benchmark", Errno::ENOENT))
        }
        Err(failed) => Err(failed.print_and_fail("benchmark")),
    }
}

impl BackendError {
    /// Prints the error and returns the program's failure.
    pub(super) fn print_and_fail(self, what: &str) -> RadosFailure {
        eprintln!("{}", self.text);
        bench_failed(what, self.errno)
    }
}

/// Executes `plan` on each of `backends`, and prints the results.
pub(super) fn run<S: BenchBackend>(
    backends: &[S],
    plan: BenchPlan,
    mut run: RunRecord,
    settings: &Settings<'_>,
) -> Result<(), RadosFailure> {
    let clients = u32::try_from(backends.len()).unwrap_or(u32::MAX);
    let (seconds, store) = (settings.seconds, &backends[0]);
    let mut report = Report::new(&plan, clients, seconds, settings.format, settings.show_time);
    let kind = plan.kind;
    let ops_per_object = plan.ops_per_object;
    let in_flight = u64::from(plan.concurrent) * backends.len() as u64;
    report.head()?;
    let (limit, length) = (settings.warm_up, settings.slice);
    let mut warm_up = (limit > 0).then(|| WarmUp::new(Duration::from_secs(limit)));
    let started = Instant::now();
    let (mut measured, mut cpu) = (started, cpu_time());
    let mut end = started + Duration::from_secs(limit + seconds);
    let load = Load::start(backends, plan, end);
    let (mut second, mut sliced) = (0, started);
    loop {
        report.line(&load.sample(), started.elapsed())?;
        second += 1;
        let over = load.wait_idle_until(started + Duration::from_secs(second)) || Instant::now() >= end;
        let now = Instant::now();
        if over || second.is_multiple_of(length) {
            let (slice, took, elapsed) = (load.take_slice(), now - sliced, now - started);
            sliced = now;
            // An incomplete slice at the end is not significant, but it is the only one of a run that is shorter than a slice.
            if took.as_secs() + 1 >= length || elapsed == took {
                report.slice(&slice, took, elapsed, warm_up.is_some());
            }
            let rate = slice.finished as f64 / took.as_secs_f64().max(1e-9);
            if let Some(state) = &mut warm_up
                && state.add(rate, elapsed)
            {
                end = now + Duration::from_secs(seconds);
                load.start_measuring(end);
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
    // After a failed write, the writes in flight with it may have been stored.
    let uncounted = if outcome.failure.is_some() { in_flight } else { 0 };
    let written = outcome.warmed_up + outcome.finished + uncounted;
    run.objects = u32::try_from(written.div_ceil(ops_per_object)).unwrap_or(u32::MAX);
    if let Some((what, errno)) = &outcome.failure {
        report.totals(&outcome, elapsed, cpu_us_per_op)?;
        eprintln!("{what}");
        let mut cleaned = None;
        if kind == BenchKind::Write && !settings.no_cleanup {
            report.cleaning()?;
            let began = Instant::now();
            // An error of the cleanup matters less than the reported failure.
            let removed = remove_run(backends, &run, settings.run_name).ok();
            cleaned = removed.map(|removed| (removed, began.elapsed()));
        } else if kind == BenchKind::Write {
            // `cleanup` finds the objects by this record. A full store may refuse it.
            let _ = store.save(settings.record(), run.encode());
        }
        report.end(cleaned)?;
        return Err(bench_failed("benchmark", *errno));
    }
    let mut cleaned = None;
    if kind == BenchKind::Write {
        store.save(settings.record(), run.encode()).map_err(|failed| failed.print_and_fail("benchmark"))?;
    }
    report.totals(&outcome, elapsed, cpu_us_per_op)?;
    if kind == BenchKind::Write && !settings.no_cleanup {
        report.cleaning()?;
        let began = Instant::now();
        let removed = remove_run(backends, &run, settings.run_name)
            .map_err(|failed| failed.print_and_fail("benchmark"))?;
        cleaned = Some((removed, began.elapsed()));
    }
    report.end(cleaned)
}

/// Removes the objects of the last run. Returns how many there were, or `None` if there is no record.
pub(super) fn clean_up_last_run(
    ways: &[impl BenchBackend],
    run_name: Option<&str>,
) -> Result<Option<u64>, RadosFailure> {
    let loaded = ways[0]
        .load(run_name.unwrap_or(LAST_RUN_OBJECT))
        .map_err(|failed| failed.print_and_fail("cleanup"))?;
    let Some(bytes) = loaded else { return Ok(None) };
    let run = RunRecord::decode(&bytes).ok_or_else(|| bench_failed("cleanup", Errno::EINVAL))?;
    remove_run(ways, &run, run_name).map(Some).map_err(|failed| failed.print_and_fail("cleanup"))
}

/// Prints what a cleanup removed. As text, prints nothing if there was no record.
pub(super) fn print_removed(removed: Option<u64>, format: Format) -> Result<(), RadosFailure> {
    match (format, removed) {
        (Format::Plain, None) => Ok(()),
        (Format::Plain, Some(removed)) => out(format!("Removed {removed} objects\n")),
        (format, removed) => out(formatting::json(&json!({ "removed": removed.unwrap_or(0) }), format)),
    }
}

/// Removes the objects of a run by name, and its record. Returns how many objects there were.
fn remove_run(
    ways: &[impl BenchBackend],
    run: &RunRecord,
    run_name: Option<&str>,
) -> Result<u64, BackendError> {
    let prefix = run.prefix();
    let names = (0..u64::from(run.objects)).map(|object| load::object_name(&prefix, object));
    let removed = remove_all(ways, names, Some(run.objects.into()))?;
    remove_all(ways, [run_name.unwrap_or(LAST_RUN_OBJECT).to_owned()], Some(1))?;
    Ok(removed)
}

/// Removes objects with bounded concurrency. Returns how many there were.
pub(super) fn remove_all(
    ways: &[impl BenchBackend],
    names: impl IntoIterator<Item = String>,
    total: Option<u64>,
) -> Result<u64, BackendError> {
    let progress = Progress::start("removing", Unit::Items("objects"), total);
    let (sender, over) = mpsc::channel();
    let (mut in_flight, mut removed) = (0, 0);
    let mut wait = |in_flight: &mut usize| {
        *in_flight -= 1;
        progress.add(1);
        let outcome = over.recv().unwrap_or(Ok(false));
        outcome.map(|there| removed += u64::from(there))
    };
    for (at, name) in names.into_iter().enumerate() {
        if in_flight == REMOVALS {
            wait(&mut in_flight)?;
        }
        let sender = sender.clone();
        in_flight += 1;
        // A caller that has failed does not wait for it.
        ways[at % ways.len()].remove(&name, Box::new(move |outcome| drop(sender.send(outcome))));
    }
    while in_flight > 0 {
        wait(&mut in_flight)?;
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_recorded_in_the_real_programs_form() {
        let run = RunRecord { object_size: 65536, objects: 3, pid: 77, op_size: 4096 };
        let bytes = run.encode();
        assert_eq!(bytes.len(), 24);
        assert_eq!(RunRecord::decode(&bytes).unwrap(), run);
        assert!(RunRecord::decode(&bytes[..23]).is_none());
        assert!(RunRecord::decode(&[0; 24]).is_none());
    }
}
