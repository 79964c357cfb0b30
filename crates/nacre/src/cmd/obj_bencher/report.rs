//! The output of a benchmark, with the lines of Ceph's program.

use super::load::{BenchKind, BenchPlan, BenchResult, IntervalStats, RunningStats, Sample};
use crate::cmd::output::Format;
use crate::cmd::rados::{RadosFailure, formatting, out};
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::time::Duration;

const MIB: f64 = 1_048_576.0;
/// Lines after which the heading is repeated.
const HEADING_EVERY: u64 = 20;

pub(super) struct Report {
    kind: BenchKind,
    concurrent: u32,
    op_size: u64,
    object_size: u64,
    max_objects: u64,
    prefix: String,
    seconds: u64,
    format: Format,
    show_time: bool,
    lines: u64,
    before: (u64, Duration),
    bandwidth: RunningStats,
    iops: RunningStats,
    json: Map<String, Value>,
    datas: Vec<Value>,
    slices: Vec<Value>,
}

impl Report {
    pub(super) fn new(
        plan: &BenchPlan,
        clients: u32,
        seconds: u64,
        format: Format,
        show_time: bool,
    ) -> Report {
        Report {
            kind: plan.kind,
            concurrent: plan.concurrent * clients,
            op_size: plan.op_size,
            object_size: plan.object_size,
            max_objects: plan.max_objects,
            prefix: plan.prefix.clone(),
            seconds,
            format,
            show_time,
            lines: 0,
            before: (0, Duration::ZERO),
            bandwidth: RunningStats::default(),
            iops: RunningStats::default(),
            json: Map::new(),
            datas: Vec::new(),
            slices: Vec::new(),
        }
    }

    fn is_plain(&self) -> bool {
        self.format == Format::Plain
    }

    fn say(&self, line: &str) -> Result<(), RadosFailure> {
        let time = if self.show_time { formatting::time(formatting::now_ns()) + " " } else { String::new() };
        out(format!("{time}{line}\n"))
    }

    /// Announces the benchmark. Ceph's program does so only for writes.
    pub(super) fn head(&mut self) -> Result<(), RadosFailure> {
        if self.kind != BenchKind::Write {
            return Ok(());
        }
        if self.is_plain() {
            self.say(&format!(
                "Maintaining {} concurrent writes of {} bytes to objects of size {} for up to {} seconds or {} objects",
                self.concurrent, self.op_size, self.object_size, self.seconds, self.max_objects
            ))?;
            return self.say(&format!("Object prefix: {}", self.prefix));
        }
        let fields = [
            ("concurrent_ios", self.concurrent.to_string()),
            ("object_size", self.object_size.to_string()),
            ("op_size", self.op_size.to_string()),
            ("seconds_to_run", self.seconds.to_string()),
            ("max_objects", self.max_objects.to_string()),
            ("object_prefix", self.prefix.clone()),
        ];
        self.json.extend(fields.map(|(name, value)| (name.to_owned(), Value::String(value))));
        Ok(())
    }

    /// The line of one second.
    pub(super) fn line(&mut self, sample: &Sample, elapsed: Duration) -> Result<(), RadosFailure> {
        let second = self.lines;
        let (finished_before, time_before) = self.before;
        let since = (elapsed - time_before).as_secs_f64();
        let new = sample.finished - finished_before;
        let rate = |ops: u64, seconds: f64| if seconds > 0.0 { ops as f64 / seconds } else { 0.0 };
        let to_mib = self.op_size as f64 / MIB;
        let average = rate(sample.finished, elapsed.as_secs_f64()) * to_mib;
        let current = rate(new, since) * to_mib;
        if second > 0 {
            self.bandwidth.add(current);
            self.iops.add(rate(new, since));
        }
        self.before = (sample.finished, elapsed);
        self.lines += 1;
        if !self.is_plain() {
            self.datas.push(json!({
                "sec": second.to_string(),
                "cur_ops": sample.in_flight.to_string(),
                "started": sample.started.to_string(),
                "finished": sample.finished.to_string(),
                "avg_bw": format!("{:.6}", if second > 0 { average } else { 0.0 }),
                "cur_bw": format!("{:.6}", if second > 0 { current } else { 0.0 }),
                "last_lat": format!("{:.6}", sample.last_latency),
                "avg_lat": format!("{:.6}", sample.mean_latency),
            }));
            return Ok(());
        }
        if second.is_multiple_of(HEADING_EVERY) {
            self.say(HEADING)?;
        }
        let fresh = second > 0 && new > 0;
        let average = if second > 0 { average } else { 0.0 };
        self.say(&columns(second, sample, average, fresh.then_some(current)))
    }

    /// A slice of the warm-up or of the measurement that ended at `elapsed`.
    pub(super) fn slice(&mut self, slice: &IntervalStats, took: Duration, elapsed: Duration, warm_up: bool) {
        let ms = |seconds: f64| (seconds * 1e6).round() / 1e3;
        let quantile = |share| ms(slice.times.quantile(share).min(slice.latency.max));
        self.slices.push(json!({
            "end_s": (elapsed.as_secs_f64() * 1e3).round() / 1e3,
            "warm_up": warm_up,
            "ops": slice.finished,
            "iops": (slice.finished as f64 / took.as_secs_f64().max(1e-9)).round(),
            "mean_ms": ms(slice.latency.mean),
            "p50_ms": quantile(0.5),
            "p99_ms": quantile(0.99),
            "p999_ms": quantile(0.999),
            "max_ms": ms(slice.latency.max),
        }));
    }

    /// The end of the warm-up. Earlier operations do not count.
    pub(super) fn warmed_up(&mut self, elapsed: Duration, steady: bool) -> Result<(), RadosFailure> {
        (self.bandwidth, self.iops) = (RunningStats::default(), RunningStats::default());
        if self.is_plain() {
            let state = if steady { "steady" } else { "not steady" };
            return self.say(&format!("Warmed up for {:.0} seconds, {state}", elapsed.as_secs_f64()));
        }
        self.json.insert("warm_up_seconds".into(), format!("{:.6}", elapsed.as_secs_f64()).into());
        self.json.insert("warm_up_steady".into(), steady.into());
        Ok(())
    }

    /// The figures of the whole measurement.
    pub(super) fn totals(
        &mut self,
        outcome: &BenchResult,
        elapsed: Duration,
        cpu_us_per_op: f64,
    ) -> Result<(), RadosFailure> {
        let seconds = elapsed.as_secs_f64();
        let rate = |amount: f64| if seconds > 0.0 { amount / seconds } else { 0.0 };
        let bandwidth = rate(outcome.bytes as f64 / MIB);
        let iops = rate(outcome.finished as f64) as u64;
        let lines = self.total_lines(outcome, seconds, bandwidth, iops, cpu_us_per_op);
        if self.is_plain() {
            let width = if self.kind == BenchKind::Write { 24 } else { 22 };
            let mut text = String::new();
            for (at, (label, _, plain, _)) in lines.iter().enumerate() {
                let line = format!("{:<width$} {plain}", format!("{label}:"), width = width - 1);
                if at == 0 && self.show_time {
                    let _ = write!(text, "{} ", formatting::time(formatting::now_ns()));
                }
                let _ = writeln!(text, "{line}");
            }
            return out(text);
        }
        self.json.insert("datas".into(), Value::Array(std::mem::take(&mut self.datas)));
        self.json.insert("slices".into(), Value::Array(std::mem::take(&mut self.slices)));
        for (_, key, _, json) in lines {
            self.json.insert(key.to_owned(), Value::String(json));
        }
        Ok(())
    }

    /// Label, JSON key, plain value, JSON value.
    fn total_lines(
        &self,
        outcome: &BenchResult,
        seconds: f64,
        bandwidth: f64,
        iops: u64,
        cpu_us_per_op: f64,
    ) -> Vec<(&'static str, &'static str, String, String)> {
        let float = |value: f64| (formatting::format_g(value), format!("{value:.6}"));
        let whole = |value: u64| (value.to_string(), value.to_string());
        let write = self.kind == BenchKind::Write;
        let least_iops = if self.iops.count > 0 { self.iops.min as u64 } else { iops };
        let most_iops = if self.iops.count > 0 { self.iops.max as u64 } else { iops };
        let mut lines = Vec::new();
        let mut add = |label, key, (plain, json): (String, String)| lines.push((label, key, plain, json));
        add("Total time run", "total_time_run", float(seconds));
        if write {
            add("Total writes made", "total_writes_made", whole(outcome.finished));
            add("Write size", "write_size", whole(self.op_size));
        } else {
            add("Total reads made", "total_reads_made", whole(outcome.finished));
            add("Read size", "read_size", whole(self.op_size));
        }
        add("Object size", "object_size", whole(self.object_size));
        add("Bandwidth (MB/sec)", "bandwidth", float(bandwidth));
        if write {
            add("Stddev Bandwidth", "stddev_bandwidth", float(self.bandwidth.deviation()));
            add("Max bandwidth (MB/sec)", "max_bandwidth", float(self.bandwidth.max));
            let least = if self.bandwidth.count > 0 { self.bandwidth.min } else { bandwidth };
            add("Min bandwidth (MB/sec)", "min_bandwidth", float(least));
        }
        add("Average IOPS", "average_iops", whole(iops));
        add("Stddev IOPS", "stddev_iops", float(self.iops.deviation()));
        add("Max IOPS", "max_iops", whole(most_iops));
        add("Min IOPS", "min_iops", whole(least_iops));
        let latency = &outcome.latency;
        add("Average Latency(s)", "average_latency", float(latency.mean));
        if write {
            add("Stddev Latency(s)", "stddev_latency", float(latency.deviation()));
        }
        add("Max latency(s)", "max_latency", float(latency.max));
        let least = if latency.count > 0 { latency.min } else { 0.0 };
        add("Min latency(s)", "min_latency", float(least));
        add("Median Latency(s)", "median_latency", float(outcome.times.quantile(0.5)));
        add("99th percentile Latency(s)", "p99_latency", float(outcome.times.quantile(0.99)));
        add("99.9th percentile Latency(s)", "p999_latency", float(outcome.times.quantile(0.999)));
        add("Client CPU (us/op)", "client_cpu_us_per_op", float(cpu_us_per_op));
        lines
    }

    /// Announces the removal of the objects.
    pub(super) fn cleaning(&self) -> Result<(), RadosFailure> {
        if self.is_plain() { self.say("Cleaning up (deleting benchmark objects)") } else { Ok(()) }
    }

    /// The end, with the number of removed objects and the time of the removal.
    pub(super) fn end(self, cleaned: Option<(u64, Duration)>) -> Result<(), RadosFailure> {
        if !self.is_plain() {
            return out(formatting::json(&Value::Object(self.json), self.format) + "\n");
        }
        let Some((removed, took)) = cleaned else { return Ok(()) };
        self.say(&format!("Removed {removed} objects"))?;
        let took = formatting::format_g(took.as_secs_f64());
        self.say(&format!("Clean up completed and total clean up time :{took}"))
    }
}

const HEADING: &str = "  sec Cur ops   started  finished  avg MB/s  cur MB/s last lat(s)  avg lat(s)";

fn columns(second: u64, sample: &Sample, average: f64, current: Option<f64>) -> String {
    let (current, last) = match current {
        Some(current) => (formatting::format_g(current), formatting::format_g(sample.last_latency)),
        None => ("0".to_owned(), "-".to_owned()),
    };
    format!(
        "{second:>5}{:>8}{:>10}{:>10}{:>10}{current:>10} {last:>11} {:>11}",
        sample.in_flight,
        sample.started,
        sample.finished,
        formatting::format_g(average),
        formatting::format_g(sample.mean_latency)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::latency::LatencyHistogram;
    use nacre_types::errno::Errno;
    use std::time::Instant;

    fn plan(kind: BenchKind) -> BenchPlan {
        BenchPlan {
            kind,
            prefix: "benchmark_data_h_1".into(),
            op_size: 4096,
            ops_per_object: 1,
            object_size: 4096,
            objects: 0,
            max_objects: 0,
            concurrent: 4,
            verify: true,
            hints: true,
            seed: None,
        }
    }

    #[test]
    fn lines_have_the_columns_of_rados_bench() {
        let sample = Sample {
            in_flight: 4,
            started: 8890,
            finished: 8886,
            last_latency: 0.000491937,
            mean_latency: 0.00044916,
        };
        assert_eq!(
            columns(1, &sample, 34.7012, Some(34.7109)),
            "    1       4      8890      8886   34.7012   34.7109 0.000491937  0.00044916"
        );
        assert_eq!(
            columns(0, &Sample { in_flight: 4, started: 4, ..Sample::default() }, 0.0, None),
            "    0       4         4         0         0         0           -           0"
        );
        assert_eq!(HEADING.len(), columns(1, &sample, 34.7012, Some(34.7109)).len());
    }

    #[test]
    fn totals_have_the_labels_and_keys_of_rados_bench() {
        let mut latency = RunningStats::default();
        latency.add(0.000444357);
        let outcome = BenchResult {
            finished: 26946,
            warmed_up: 0,
            bytes: 26946 * 4096,
            last_completion: Instant::now(),
            latency,
            times: LatencyHistogram::default(),
            failure: None::<(String, Errno)>,
        };
        let mut report = Report::new(&plan(BenchKind::Write), 2, 3, Format::Json, false);
        report.head().unwrap();
        report.line(&Sample::default(), Duration::ZERO).unwrap();
        let mut slice = IntervalStats { finished: 10, ..IntervalStats::default() };
        slice.latency.add(0.002);
        slice.times.add(Duration::from_millis(2));
        report.slice(&slice, Duration::from_secs(2), Duration::from_secs(2), true);
        report.warmed_up(Duration::from_secs(2), true).unwrap();
        report.totals(&outcome, Duration::from_secs_f64(3.00022), 12.5).unwrap();
        let json = Value::Object(report.json);
        for (key, value) in [
            ("total_time_run", "3.000220"),
            ("total_writes_made", "26946"),
            ("average_iops", "8981"),
            ("average_latency", "0.000444"),
            ("client_cpu_us_per_op", "12.500000"),
            ("concurrent_ios", "8"),
            ("median_latency", "0.000000"),
        ] {
            assert_eq!(json[key], value, "{key}");
        }
        assert!(json["bandwidth"].as_str().unwrap().starts_with("35.083"));
        assert_eq!(json["datas"].as_array().unwrap().len(), 1);
        assert_eq!(json["warm_up_steady"], true);
        let slice = &json["slices"][0];
        assert_eq!(
            (&slice["iops"], &slice["p999_ms"], &slice["warm_up"]),
            (&json!(5.0), &json!(2.0), &json!(true))
        );

        let report = Report::new(&plan(BenchKind::Sequential), 1, 3, Format::Plain, false);
        let labels: Vec<_> = report.total_lines(&outcome, 1.0, 1.0, 1, 1.0).iter().map(|l| l.0).collect();
        assert_eq!(
            labels,
            [
                "Total time run",
                "Total reads made",
                "Read size",
                "Object size",
                "Bandwidth (MB/sec)",
                "Average IOPS",
                "Stddev IOPS",
                "Max IOPS",
                "Min IOPS",
                "Average Latency(s)",
                "Max latency(s)",
                "Min latency(s)",
                "Median Latency(s)",
                "99th percentile Latency(s)",
                "99.9th percentile Latency(s)",
                "Client CPU (us/op)"
            ]
        );
    }
}
