//! `nacre bench s3`: loads any S3 server, with the modes and per-second figures of hsbench.
//!
//! Each connection has one request in flight, signed in its headers. The time to connect counts, because it does for clients.

mod load;

use super::backup::{is_json, size};
use super::s3_client::{Payload, S3Endpoint};
use super::steady;
use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use load::{Mode, OpStats, S3BenchPlan};
use rand::RngCore;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

pub(super) const USAGE: &str = "\
usage: nacre bench s3 [--endpoint URL] [--bucket NAME] [--mode put,list,get,del] [--size 4K] [--threads 32]
                      [--duration 10] [OPTION]...

Loads an S3 server and prints, per second and in total for each mode: operations, MB/s, operations per second, latencies in milliseconds,
and the number of SlowDown answers. The keys are taken from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN), the region
from AWS_REGION or AWS_DEFAULT_REGION. The exit code is 1 if a request failed.

  --endpoint URL     URL of the server [default: http://127.0.0.1:8000]
  --bucket NAME      bucket; created if it does not exist, and removed at the end if this run created and emptied it [default: nacre-bench]
  --mode LIST        modes to run, in this order [default: put,list,get,del]
                     put   writes new objects   get  reads random objects
                     list  lists 1 000 keys from a random key on   del  removes each object once
  --size BYTES       size of an object: 4096, 64K, 4M [default: 4K]
  --threads N        number of connections, each with one request in flight [default: 32]
  --duration SECONDS duration of each mode; del ends when no object is left [default: 10]
  --warm-up SECONDS  maximum warm-up before a mode is measured; it ends when the rates of three consecutive slices differ by at most 10 %;
                     del has none [default: 0]
  --slice SECONDS    length of a slice of the warm-up [default: 5]
  --objects N        maximum number of objects that put writes [default: no limit]
  --prefix TEXT      prefix of the keys [default: bench-]
  --loops N          number of runs of all modes [default: 1]
  --sign-payload     include the SHA-256 of the data in the signature of puts (computed once per run)
  --format json, --json
                     JSON on standard output: an array of hsbench's records, with more percentiles
  -h, --help         print this

Without put, the modes get, list and del use the objects of an earlier run with the same bucket and prefix.
";

/// Maximum number of connections.
const MAX_THREADS: u64 = 10_000;
/// Maximum size of an object in one PUT.
const MAX_SIZE: u64 = 5 << 30;

struct Args {
    endpoint: String,
    bucket: String,
    modes: Vec<Mode>,
    size: u64,
    threads: u64,
    duration: f64,
    warm_up: u64,
    slice: u64,
    objects: u64,
    prefix: String,
    loops: u64,
    sign_payload: bool,
    json: bool,
}

impl Args {
    /// Parses the arguments. `None` if help is requested.
    fn parse(args: &[String]) -> Result<Option<Args>> {
        let mut parsed = Args {
            endpoint: "http://127.0.0.1:8000".into(),
            bucket: "nacre-bench".into(),
            modes: vec![Mode::Put, Mode::List, Mode::Get, Mode::Del],
            size: 4096,
            threads: 32,
            duration: 10.0,
            warm_up: 0,
            slice: steady::SLICE_SECONDS,
            objects: u64::MAX,
            prefix: "bench-".into(),
            loops: 1,
            sign_payload: false,
            json: false,
        };
        let mut words = args.iter().map(String::as_str);
        let mut what = None;
        while let Some(word) = words.next() {
            let (flag, inline) = match word.split_once('=') {
                Some((flag, value)) if word.starts_with("--") => (flag, Some(value)),
                _ => (word, None),
            };
            let mut value =
                || inline.or_else(|| words.next()).with_context(|| format!("{flag} needs a value\n{USAGE}"));
            let number = |text: &str, most: u64| {
                let number = text.parse().ok().filter(|number| (1..=most).contains(number));
                number.with_context(|| format!("{flag}: '{text}' is not a number from 1 to {most}"))
            };
            match flag {
                "-h" | "--help" => return Ok(None),
                "--endpoint" => parsed.endpoint = value()?.to_owned(),
                "--bucket" => parsed.bucket = value()?.to_owned(),
                "--mode" => {
                    let mode =
                        |name| Mode::from_name(name).with_context(|| format!("bad mode '{name}'\n{USAGE}"));
                    parsed.modes = value()?.split(',').map(mode).collect::<Result<_>>()?;
                }
                "--size" => {
                    let text = value()?;
                    let bytes = size(text).filter(|bytes| *bytes <= MAX_SIZE);
                    parsed.size =
                        bytes.with_context(|| format!("--size: '{text}' is not a size up to 5G"))?;
                }
                "--threads" => parsed.threads = number(value()?, MAX_THREADS)?,
                "--duration" => {
                    let text = value()?;
                    let seconds = text.trim_end_matches('s').parse().ok().filter(|s| (0.1..=1e6).contains(s));
                    parsed.duration = seconds
                        .with_context(|| format!("--duration: '{text}' is not a number of seconds"))?;
                }
                "--warm-up" => parsed.warm_up = steady::seconds(flag, value()?, 0)?,
                "--slice" => parsed.slice = steady::seconds(flag, value()?, 1)?,
                "--objects" => parsed.objects = number(value()?, 1 << 39)?,
                "--prefix" => parsed.prefix = value()?.to_owned(),
                "--loops" => parsed.loops = number(value()?, 1 << 20)?,
                "--sign-payload" => parsed.sign_payload = true,
                "--json" => parsed.json = true,
                "-f" | "--format" => parsed.json = is_json(value()?)?,
                "s3" if what.is_none() => what = Some(()),
                _ => bail!("unknown argument '{word}'\n{USAGE}"),
            }
        }
        what.with_context(|| format!("no target given: use nacre bench s3\n{USAGE}"))?;
        let sound = |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
        if parsed.bucket.is_empty() || !sound(&parsed.bucket) {
            bail!("'{}' is not a valid bucket name", parsed.bucket);
        }
        Ok(Some(parsed))
    }
}

/// `nacre bench ARGS`.
pub(crate) fn main(args: Vec<OsString>) -> ExitCode {
    let args: Vec<String> = args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let outcome = Args::parse(&args).and_then(|args| match args {
        Some(args) => bench(&args),
        None => {
            print!("{USAGE}");
            Ok(())
        }
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nacre bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn bench(args: &Args) -> Result<()> {
    let mut data = vec![0; usize::try_from(args.size)?];
    // Data that can't be compressed, so that compression gives no server an advantage.
    rand::rng().fill_bytes(&mut data);
    let plan = Arc::new(S3BenchPlan {
        target: S3Endpoint::from_env(&args.endpoint)?,
        bucket: args.bucket.clone(),
        prefix: args.prefix.clone(),
        payload: Payload::new(data.into(), args.sign_payload),
        threads: usize::try_from(args.threads)?,
        duration: Duration::from_secs_f64(args.duration),
        warm_up: Duration::from_secs(args.warm_up),
        slice: Duration::from_secs(args.slice),
        max_objects: args.objects,
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(measure(args, &plan))
}

async fn measure(args: &Args, plan: &Arc<S3BenchPlan>) -> Result<()> {
    let made = plan.make_bucket().await?;
    let mut records = Vec::new();
    let (mut errors, mut first_error) = (0, None);
    let mut emptied = false;
    for lap in 0..args.loops {
        let mut written = None;
        for mode in &args.modes {
            let objects = match (mode, written) {
                (Mode::Put, _) => 0,
                (_, Some(written)) => written,
                (_, None) => plan.object_count().await?,
            };
            if *mode != Mode::Put && objects == 0 {
                bail!(
                    "{} found no objects in bucket {} with prefix '{}'",
                    mode.name(),
                    args.bucket,
                    args.prefix
                );
            }
            let limit = if *mode == Mode::Del { Duration::ZERO } else { plan.warm_up };
            let bar = progress(*mode, limit + plan.duration);
            let mut second = 0;
            let outcome = load::run(plan, *mode, objects, |figures, took, warm_up| {
                let mut record = record(lap, &second.to_string(), *mode, &figures, took);
                record["WarmUp"] = warm_up.into();
                second += 1;
                bar.set_position(second.min(bar.length().unwrap_or(second)));
                bar.set_message(format!("{:.0} op/s", figures.ops as f64 / took.as_secs_f64()));
                if !args.json {
                    bar.suspend(|| say(&record));
                }
                records.push(record);
            })
            .await;
            bar.finish_and_clear();
            let mut total = record(lap, "TOTAL", *mode, &outcome.total, outcome.took);
            if let Some((took, steady)) = outcome.warm_up {
                total["WarmUpSeconds"] = took.as_secs_f64().into();
                total["WarmUpSteady"] = steady.into();
            }
            if !args.json {
                say(&total);
            }
            records.push(total);
            errors += outcome.total.errors;
            first_error = first_error.or(outcome.first_error);
            match mode {
                Mode::Put => written = Some(outcome.numbers),
                Mode::Del if outcome.numbers == objects => (written, emptied) = (None, true),
                _ => {}
            }
        }
    }
    if args.json {
        let text = serde_json::to_string_pretty(&records)?;
        writeln!(std::io::stdout().lock(), "{text}")?;
    }
    if made && emptied {
        plan.remove_bucket().await?;
    }
    match first_error {
        Some(first) => bail!("{errors} requests failed, the first with: {first}"),
        None => Ok(()),
    }
}

fn progress(mode: Mode, duration: Duration) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:4} [{bar:40}] {pos}/{len} s {msg}");
    let bar = ProgressBar::new(duration.as_secs().max(1)).with_prefix(mode.name());
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// A record with hsbench's names, and more percentiles. Latencies are in milliseconds; MB means 1024 × 1024 bytes.
fn record(lap: u64, name: &str, mode: Mode, figures: &OpStats, took: Duration) -> Value {
    let seconds = took.as_secs_f64().max(1e-9);
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    let mean = if figures.ops > 0 { ms(figures.sum) / figures.ops as f64 } else { 0.0 };
    // The end of a step may be greater than the actual maximum.
    let quantile = |share: f64| (figures.times.quantile(share) * 1e3).min(ms(figures.max));
    json!({
        "Loop": lap, "IntervalName": name, "Seconds": seconds, "Mode": mode.name(), "Ops": figures.ops,
        "Mbps": figures.bytes as f64 / seconds / 1_048_576.0, "Iops": figures.ops as f64 / seconds,
        "MinLat": ms(figures.min.unwrap_or_default()), "AvgLat": mean, "MedianLat": quantile(0.5),
        "NinetyFiveLat": quantile(0.95), "NinetyNineLat": quantile(0.99), "NinetyNineNineLat": quantile(0.999),
        "MaxLat": ms(figures.max), "Slowdowns": figures.slowdowns, "Errors": figures.errors,
    })
}

/// Prints a record in hsbench's format.
fn say(record: &Value) {
    let number = |name: &str| record[name].as_f64().unwrap_or_default();
    let text = |name: &str| record[name].as_str().unwrap_or_default();
    let warm_up = if record["WarmUp"] == true { " (warm-up)" } else { "" };
    let line = format!(
        "Loop: {}, Int: {}{warm_up}, Dur(s): {:.1}, Mode: {}, Ops: {}, MB/s: {:.2}, IO/s: {:.0}, Lat(ms): [ min: {:.1}, avg: {:.1}, \
         50%: {:.1}, 95%: {:.1}, 99%: {:.1}, 99.9%: {:.1}, max: {:.1} ], Slowdowns: {}, Errors: {}\n",
        number("Loop"),
        text("IntervalName"),
        number("Seconds"),
        text("Mode"),
        number("Ops"),
        number("Mbps"),
        number("Iops"),
        number("MinLat"),
        number("AvgLat"),
        number("MedianLat"),
        number("NinetyFiveLat"),
        number("NinetyNineLat"),
        number("NinetyNineNineLat"),
        number("MaxLat"),
        number("Slowdowns"),
        number("Errors"),
    );
    // A closed standard output is not an error.
    _ = std::io::stdout().lock().write_all(line.as_bytes());
}
