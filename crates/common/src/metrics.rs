//! A daemon's counters: one list for `perf dump`, `perf schema`, `perf reset` and the Prometheus endpoint.
//!
//! Parts of a daemon count in the way that is cheapest for them and return their values on request ([`PerfCounters::add_source`]); nothing
//! here is on a hot path. Each crate has its names, with unit and help, in one file. A name is Ceph's if Ceph has the counter:
//! `perf dump` shows it in its section, Prometheus as `ceph_SECTION_NAME`, as Ceph's exporter does.

use parking_lot::Mutex;
use serde_json::{Map, Value as Json, json};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;

/// The meaning of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Only increases.
    Counter,
    /// Increases and decreases.
    Gauge,
    /// Durations: their number and sum.
    Average,
}

/// The unit of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A count.
    None,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
}

/// A number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Of a [`MetricKind::Counter`] or [`MetricKind::Gauge`].
    Number(u64),
    /// Of a [`MetricKind::Average`]: the number of durations and their sum in nanoseconds.
    Durations(u64, u64),
}

/// One counter and its value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric {
    /// Its section of `perf dump`: `osd`, `bluestore`, `msgr`.
    pub section: &'static str,
    /// Its name there.
    pub name: &'static str,
    /// A description.
    pub help: &'static str,
    /// The meaning of the number.
    pub kind: MetricKind,
    /// The unit of the number.
    pub unit: Unit,
    /// The number.
    pub value: Value,
}

impl Metric {
    /// Creates a count that only increases.
    pub fn counter(section: &'static str, name: &'static str, help: &'static str, value: u64) -> Metric {
        Metric {
            section,
            name,
            help,
            kind: MetricKind::Counter,
            unit: unit_of(name),
            value: Value::Number(value),
        }
    }

    /// Creates a count that increases and decreases.
    pub fn gauge(section: &'static str, name: &'static str, help: &'static str, value: u64) -> Metric {
        Metric {
            section,
            name,
            help,
            kind: MetricKind::Gauge,
            unit: unit_of(name),
            value: Value::Number(value),
        }
    }

    /// Creates a metric of durations: their number and sum.
    pub fn average(
        section: &'static str,
        name: &'static str,
        help: &'static str,
        count: u64,
        sum_ns: u64,
    ) -> Metric {
        let value = Value::Durations(count, sum_ns);
        Metric { section, name, help, kind: MetricKind::Average, unit: Unit::Seconds, value }
    }

    /// The name for Prometheus, without the suffixes of an average.
    pub fn prometheus_name(&self) -> String {
        format!("ceph_{}_{}", self.section, self.name)
    }

    fn key(&self) -> (&'static str, &'static str) {
        (self.section, self.name)
    }

    fn dump(&self) -> Json {
        match self.value {
            Value::Number(number) => json!(number),
            Value::Durations(count, sum_ns) => {
                let sum = sum_ns as f64 / 1e9;
                let average = if count > 0 { sum / count as f64 } else { 0.0 };
                json!({ "avgcount": count, "sum": sum, "avgtime": average })
            }
        }
    }

    /// Formats as in `perf schema`; `type` has Ceph's bits (`perf_counters.h`).
    fn schema(&self) -> Json {
        const TIME: u32 = 1;
        const U64: u32 = 2;
        const LONG_RUN_AVERAGE: u32 = 4;
        const COUNTER: u32 = 8;
        let (bits, metric, value) = match self.kind {
            MetricKind::Counter => (U64 | COUNTER, "counter", "integer"),
            MetricKind::Gauge => (U64, "gauge", "integer"),
            MetricKind::Average => (TIME | LONG_RUN_AVERAGE, "gauge", "real-integer-pair"),
        };
        let units = if self.unit == Unit::Bytes { "bytes" } else { "none" };
        json!({
            "type": bits, "metric_type": metric, "value_type": value,
            "description": self.help, "nick": "", "priority": 5, "units": units,
        })
    }

    /// Returns the increase since `base`.
    fn since(mut self, base: Option<&Value>) -> Metric {
        self.value = match (self.kind, self.value, base) {
            (MetricKind::Counter, Value::Number(now), Some(Value::Number(then))) => {
                Value::Number(now.saturating_sub(*then))
            }
            (_, Value::Durations(count, sum), Some(Value::Durations(count_then, sum_then))) => {
                Value::Durations(count.saturating_sub(*count_then), sum.saturating_sub(*sum_then))
            }
            (_, value, _) => value,
        };
        self
    }
}

fn unit_of(name: &str) -> Unit {
    if name.contains("bytes") { Unit::Bytes } else { Unit::None }
}

/// Appends a part's values.
pub type MetricSource = Box<dyn Fn(&mut Vec<Metric>) + Send + Sync>;

/// A daemon's counters. Cloning shares them.
#[derive(Clone)]
pub struct PerfCounters(Arc<Inner>);

struct Inner {
    daemon: String,
    sources: Mutex<Vec<MetricSource>>,
    /// The values at the last `perf reset`. The counters themselves are written only by their owners.
    base: Mutex<HashMap<(&'static str, &'static str), Value>>,
}

impl std::fmt::Debug for PerfCounters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Perf").field("daemon", &self.0.daemon).finish_non_exhaustive()
    }
}

impl PerfCounters {
    /// Creates an empty set. `daemon` (`osd.0`) becomes the label `ceph_daemon`.
    pub fn new(daemon: impl ToString) -> PerfCounters {
        PerfCounters(Arc::new(Inner {
            daemon: daemon.to_string(),
            sources: Mutex::default(),
            base: Mutex::default(),
        }))
    }

    /// Adds a source: a part of the daemon that returns its values.
    pub fn add_source(&self, source: impl Fn(&mut Vec<Metric>) + Send + Sync + 'static) {
        self.0.sources.lock().push(Box::new(source));
    }

    /// Removes all sources, which may have references to the owner of this.
    pub fn remove_sources(&self) {
        self.0.sources.lock().clear();
    }

    /// All values since the daemon started.
    pub fn collect(&self) -> Vec<Metric> {
        let mut all = Vec::new();
        self.0.sources.lock().iter().for_each(|source| source(&mut all));
        all
    }

    /// `perf dump [SECTION [NAME]]`: values since the last reset.
    pub fn dump(&self, section: Option<&str>, name: Option<&str>) -> Json {
        let base = self.0.base.lock();
        self.sections(section, name, |metric| metric.since(base.get(&metric.key())).dump())
    }

    /// `perf schema [SECTION [NAME]]`.
    pub fn schema(&self, section: Option<&str>, name: Option<&str>) -> Json {
        self.sections(section, name, |metric| metric.schema())
    }

    fn sections(&self, section: Option<&str>, name: Option<&str>, show: impl Fn(Metric) -> Json) -> Json {
        let wanted = |given: Option<&str>, have: &str| given.is_none_or(|g| g.is_empty() || g == have);
        let mut sections: BTreeMap<&str, Map<String, Json>> = BTreeMap::new();
        for metric in self.collect() {
            if wanted(section, metric.section) && wanted(name, metric.name) {
                sections.entry(metric.section).or_default().insert(metric.name.into(), show(metric));
            }
        }
        sections
            .into_iter()
            .map(|(name, fields)| (name.to_owned(), fields.into()))
            .collect::<Map<_, _>>()
            .into()
    }

    /// `perf reset all`, or of one section: `perf dump` then counts from this point. Returns whether the section exists.
    /// Prometheus values are not affected.
    pub fn reset(&self, section: &str) -> bool {
        let mut found = section == "all";
        let mut base = self.0.base.lock();
        for metric in self.collect() {
            if section == "all" || metric.section == section {
                found = true;
                base.insert(metric.key(), metric.value);
            }
        }
        found
    }

    /// The daemon's name.
    pub fn daemon(&self) -> &str {
        &self.0.daemon
    }

    /// Adds all values since the daemon started, labelled with its name.
    pub fn expose(&self, out: &mut Exposition) {
        let labels = [("ceph_daemon", self.daemon())];
        for metric in self.collect() {
            let name = metric.prometheus_name();
            match metric.value {
                Value::Number(value) => out.add(&name, metric.kind, metric.help, &labels, value as f64),
                Value::Durations(count, sum_ns) => {
                    let (count_name, sum_name) = (format!("{name}_count"), format!("{name}_sum"));
                    out.add(&sum_name, MetricKind::Counter, metric.help, &labels, sum_ns as f64 / 1e9);
                    out.add(&count_name, MetricKind::Counter, metric.help, &labels, count as f64);
                }
            }
        }
    }
}

/// The text exposition format 0.0.4: each metric's description once, then the values of all daemons.
///
/// Implemented here because Ceph's counter names do not end in `_total`, which OpenMetrics libraries require.
#[derive(Debug, Default)]
pub struct Exposition {
    families: BTreeMap<String, (MetricKind, String, String)>,
}

impl Exposition {
    /// Adds one value. The first call for a name sets its description.
    pub fn add(&mut self, name: &str, kind: MetricKind, help: &str, labels: &[(&str, &str)], value: f64) {
        let family =
            self.families.entry(name.to_owned()).or_insert_with(|| (kind, help.to_owned(), String::new()));
        let lines = &mut family.2;
        lines.push_str(name);
        for (at, (label, text)) in labels.iter().enumerate() {
            let open = if at == 0 { '{' } else { ',' };
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            // Writing into a String can't fail.
            let _ = write!(lines, "{open}{label}=\"{text}\"");
        }
        if !labels.is_empty() {
            lines.push('}');
        }
        let _ = writeln!(lines, " {value}");
    }

    /// The names that have values.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.families.keys().map(String::as_str)
    }

    /// Returns the text.
    pub fn render(&self) -> String {
        let mut out = String::new();
        for (name, (kind, help, lines)) in &self.families {
            let kind = if *kind == MetricKind::Gauge { "gauge" } else { "counter" };
            let help = help.replace('\\', "\\\\").replace('\n', "\\n");
            let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{lines}");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn perf(daemon: &str, count: &Arc<AtomicU64>) -> PerfCounters {
        let perf = PerfCounters::new(daemon);
        let count = count.clone();
        perf.add_source(move |out| {
            let n = count.load(Ordering::Relaxed);
            out.push(Metric::counter("osd", "op_w", "Client write operations", n));
            out.push(Metric::average("osd", "op_w_latency", "Latency of writes", n, n * 500_000_000));
            out.push(Metric::gauge("msgr", "active_connections", "Connections", 2));
        });
        perf
    }

    #[test]
    fn daemons_of_one_process_share_descriptions() {
        let mut out = Exposition::default();
        perf("osd.0", &Arc::new(3.into())).expose(&mut out);
        perf("osd.1", &Arc::new(1.into())).expose(&mut out);
        out.add("ceph_health_detail", MetricKind::Gauge, "a\nb", &[("name", "A\"B"), ("severity", "x")], 1.0);
        let text = out.render();
        assert_eq!(text.matches("# HELP ceph_osd_op_w ").count(), 1, "{text}");
        assert!(text.contains("# TYPE ceph_osd_op_w counter\nceph_osd_op_w{ceph_daemon=\"osd.0\"} 3\n"));
        assert!(text.contains("ceph_osd_op_w{ceph_daemon=\"osd.1\"} 1\n"), "{text}");
        assert!(text.contains("ceph_osd_op_w_latency_sum{ceph_daemon=\"osd.0\"} 1.5\n"), "{text}");
        assert!(text.contains("ceph_osd_op_w_latency_count{ceph_daemon=\"osd.0\"} 3\n"), "{text}");
        assert!(text.contains("ceph_health_detail{name=\"A\\\"B\",severity=\"x\"} 1\n"), "{text}");
        assert!(text.contains("# HELP ceph_health_detail a\\nb\n"), "{text}");
    }

    #[test]
    fn a_reset_counts_from_now_without_touching_the_counters() {
        let count = Arc::new(AtomicU64::new(3));
        let perf = perf("osd.0", &count);
        assert_eq!(perf.dump(None, None)["osd"]["op_w"], 3);
        assert!(perf.reset("osd") && !perf.reset("nonesuch"));
        count.store(5, Ordering::Relaxed);
        let dump = perf.dump(Some("osd"), None);
        assert_eq!(dump["osd"]["op_w"], 2);
        assert_eq!(dump["osd"]["op_w_latency"], json!({ "avgcount": 2, "sum": 1.0, "avgtime": 0.5 }));
        assert!(dump.get("msgr").is_none());
        assert_eq!(perf.dump(Some("msgr"), Some("active_connections"))["msgr"]["active_connections"], 2);
        let mut out = Exposition::default();
        perf.expose(&mut out);
        assert!(out.render().contains("ceph_osd_op_w{ceph_daemon=\"osd.0\"} 5\n"));
    }

    #[test]
    fn the_schema_has_cephs_type_bits() {
        let schema = perf("osd.0", &Arc::new(0.into())).schema(None, None);
        assert_eq!(schema["osd"]["op_w"]["type"], 10);
        assert_eq!(schema["osd"]["op_w_latency"]["type"], 5);
        assert_eq!(schema["msgr"]["active_connections"]["type"], 2);
    }
}
