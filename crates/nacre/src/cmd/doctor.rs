//! `nacre doctor`: checks whether this program and this machine meet the conditions for fast and safe data.

use super::backup::is_json;
use anyhow::{Context, Result, bail};
use nacre_store::{BuildCheck, SLOW_ITERATOR_STEP};
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(super) const USAGE: &str = "\
usage: nacre doctor [--data DIR] [--format json]

Checks how the key-value store of this program was built (CRC instructions, optimisation) and the limit of open files, and
measures how long a small durable write takes. Prints a line for each check; the exit code is 1 if a check fails.

  --data DIR   measure durable writes in this folder (default: the current one)
  --format F   plain (default) or json: an array of the checks
  -h, --help   print this
";

/// Number of writes to measure.
const WRITES: usize = 50;
/// Slower durable writes cause a warning: the disk has no write cache that survives a power cut, or is busy.
const SLOW_WRITE: Duration = Duration::from_millis(10);
/// A lower limit of open files is too small for an OSD with many clients.
const FEW_FILES: u64 = 1024;

pub(crate) fn main(args: &[String]) -> Result<()> {
    let (mut data, mut json) = (PathBuf::from("."), false);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match (arg.as_str(), arg.strip_prefix("--data=")) {
            ("-h" | "--help", _) => {
                print!("{USAGE}");
                return Ok(());
            }
            ("--data", _) => match args.next() {
                Some(folder) => data = folder.into(),
                None => bail!("--data needs a folder\n{USAGE}"),
            },
            ("-f" | "--format", _) => match args.next() {
                Some(format) => json = is_json(format)?,
                None => bail!("--format needs plain or json\n{USAGE}"),
            },
            (_, Some(folder)) => data = folder.into(),
            (other, None) if other.starts_with("--format=") => json = is_json(&other["--format=".len()..])?,
            (other, None) => bail!("unknown argument '{other}'\n{USAGE}"),
        }
    }
    let mut out = std::io::stdout().lock();
    let (mut wrong, mut checks) = (0, Vec::new());
    let mut say = |good: bool, what: &str, found: String| -> std::io::Result<()> {
        wrong += usize::from(!good);
        if json {
            checks.push(json!({ "check": what, "good": good, "found": found }));
            return Ok(());
        }
        writeln!(out, "{:<4} {what:<16} {found}", if good { "ok" } else { "BAD" })
    };
    let check = BuildCheck::run()?;
    let assertions = if check.assertions { "with" } else { "without" };
    let features = check.features.join(" ");
    let build = format!(
        "{} for {} ({features}), {assertions} assertions",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::ARCH
    );
    say(true, "nacre", build)?;
    say(true, "RocksDB", check.version.clone())?;
    let how = if check.hardware_crc { "by the processor's instructions" } else { "in software" };
    let speed = check.checked_bytes_per_second / 1e9;
    say(check.hardware_crc, "RocksDB's CRC", format!("{how}; reads and checks {speed:.1} GB/s"))?;
    let (step, limit) = (check.step.as_nanos(), SLOW_ITERATOR_STEP.as_nanos());
    let optimised = check.step <= SLOW_ITERATOR_STEP;
    let verdict = if optimised { "optimised" } else { "not optimised" };
    say(optimised, "RocksDB's scan", format!("{step} ns per entry: {verdict} (the limit is {limit})"))?;
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let text = files.map_or("unlimited".to_owned(), |files| files.to_string());
    say(files.is_none_or(|files| files >= FEW_FILES), "open files", format!("at most {text}"))?;
    let (median, worst) = durable_writes(&data)?;
    let text = format!("4 KiB in {}: median {median:.1?}, maximum {worst:.1?}", data.display());
    say(median <= SLOW_WRITE, "durable write", text)?;
    if json {
        writeln!(out, "{:#}", serde_json::Value::Array(checks))?;
    }
    if wrong > 0 {
        bail!("{wrong} checks failed");
    }
    Ok(())
}

/// The time to append 4 KiB durably in `folder`: the median and the maximum.
fn durable_writes(folder: &Path) -> Result<(Duration, Duration)> {
    let mut file = nameless_file_in(folder)?;
    let mut took = Vec::with_capacity(WRITES);
    for _ in 0..WRITES {
        let started = Instant::now();
        file.write_all(&[0; 4096])?;
        file.sync_data()?;
        took.push(started.elapsed());
    }
    took.sort_unstable();
    Ok((took[WRITES / 2], took[WRITES - 1]))
}

/// A file without a name.
fn nameless_file_in(folder: &Path) -> Result<std::fs::File> {
    let path = folder.join(format!(".nacre-doctor.{}", std::process::id()));
    let file = std::fs::OpenOptions::new().write(true).create_new(true).open(&path);
    let file = file.with_context(|| format!("can't create a file in {}", folder.display()))?;
    std::fs::remove_file(&path)?;
    Ok(file)
}
