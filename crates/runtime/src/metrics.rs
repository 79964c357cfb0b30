//! Metrics: one registry per daemon, text exposition for Prometheus, and JSON as `perf dump` prints it.
//!
//! Each crate keeps its metric names, with unit and help, in one file; this one's are in `msgr/metrics.rs`.

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A daemon's metrics. Cloning shares them.
#[derive(Debug, Clone)]
pub struct Metrics {
    daemon: String,
    registry: Arc<Mutex<Registry>>,
}

/// Upper bounds of latency histograms, in seconds: 16 µs to 8 s, each twice the one before.
pub fn latency_buckets() -> impl Iterator<Item = f64> {
    (0..20).map(|power| 16e-6 * f64::from(1u32 << power))
}

impl Metrics {
    /// Empty metrics of `daemon`, which becomes the label `ceph_daemon` of all of them.
    pub fn new(daemon: impl ToString) -> Metrics {
        let daemon = daemon.to_string();
        let labels = std::iter::once(("ceph_daemon".into(), daemon.clone().into()));
        Metrics { registry: Arc::new(Mutex::new(Registry::with_labels(labels))), daemon }
    }

    /// Registers a metric of any type.
    pub fn register<M: Metric + Clone>(&self, name: &str, help: &str, metric: M) -> M {
        self.registry.lock().register(name, help, metric.clone());
        metric
    }

    /// A counter; `_total` is appended to its name.
    pub fn counter(&self, name: &str, help: &str) -> Counter {
        self.register(name, help, Counter::default())
    }

    /// A value that goes up and down.
    pub fn gauge(&self, name: &str, help: &str) -> Gauge {
        self.register(name, help, Gauge::default())
    }

    /// A histogram of latencies in seconds, with [`latency_buckets`].
    pub fn latency(&self, name: &str, help: &str) -> Histogram {
        self.register(name, help, Histogram::new(latency_buckets()))
    }

    /// Values that are asked for when they are shown.
    pub fn collect(&self, collector: impl Collector) {
        self.registry.lock().register_collector(Box::new(collector));
    }

    fn text(&self) -> String {
        let mut out = String::new();
        prometheus_client::encoding::text::encode(&mut out, &self.registry.lock())
            .expect("invariant: writing into a String can't fail");
        out
    }

    /// `perf dump`: metrics by the first word of their names (`osd`, `ms`, `bluestore`), histograms as Ceph's
    /// averages (`avgcount`, `sum`, `avgtime`).
    pub fn perf_dump(&self) -> Value {
        let mut sections: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
        for line in self.text().lines().filter(|line| !line.starts_with('#')) {
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let labels: Vec<&str> = labels
                .trim_end_matches('}')
                .split(',')
                .filter(|label| !label.is_empty() && !label.starts_with("ceph_daemon="))
                .collect();
            let (section, field) = name.split_once('_').unwrap_or((name, name));
            let entry = sections.entry(section.to_owned()).or_default();
            let number = || match value.parse::<u64>() {
                Ok(number) => json!(number),
                Err(_) => json!(value.parse::<f64>().unwrap_or_default()),
            };
            if field.ends_with("_bucket") {
                continue;
            }
            let labelled = |field: &str| {
                if labels.is_empty() { field.to_owned() } else { format!("{field}{{{}}}", labels.join(",")) }
            };
            match field
                .strip_suffix("_sum")
                .map(|f| (f, "sum"))
                .or(field.strip_suffix("_count").map(|f| (f, "avgcount")))
            {
                Some((histogram, part)) => {
                    let average = entry.entry(labelled(histogram)).or_insert_with(|| json!({}));
                    average[part] = number();
                    let of = |part: &str| average[part].as_f64().unwrap_or_default();
                    let (sum, count) = (of("sum"), of("avgcount"));
                    average["avgtime"] = json!(if count > 0.0 { sum / count } else { 0.0 });
                }
                None => {
                    entry.insert(labelled(field.strip_suffix("_total").unwrap_or(field)), number());
                }
            }
        }
        sections
            .into_iter()
            .map(|(name, section)| (name, Value::Object(section)))
            .collect::<Map<_, _>>()
            .into()
    }

    /// Whose metrics they are.
    pub fn daemon(&self) -> &str {
        &self.daemon
    }
}

/// The text exposition of all daemons of a process: each metric's description once, then everybody's values.
pub fn exposition(daemons: &[Metrics]) -> String {
    let mut families: BTreeMap<String, (Vec<String>, Vec<String>)> = BTreeMap::new();
    for metrics in daemons {
        let mut family = String::new();
        for line in metrics.text().lines() {
            if let Some(comment) = line.strip_prefix("# ") {
                let Some(name) = comment.split(' ').nth(1) else { continue };
                family = name.to_owned();
                let (head, _) = families.entry(family.clone()).or_default();
                if !head.iter().any(|known| known == line) {
                    head.push(line.to_owned());
                }
            } else if !family.is_empty() {
                families.entry(family.clone()).or_default().1.push(line.to_owned());
            }
        }
    }
    let mut out = String::new();
    for line in families.into_values().flat_map(|(head, values)| head.into_iter().chain(values)) {
        out.push_str(&line);
        out.push('\n');
    }
    out.push_str("# EOF\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemons_of_one_process_share_descriptions() {
        let (a, b) = (Metrics::new("osd.0"), Metrics::new("osd.1"));
        a.counter("osd_ops", "Requests").inc_by(3);
        b.counter("osd_ops", "Requests").inc();
        a.gauge("osd_pgs", "PGs hosted").set(-2);
        let text = exposition(&[a, b]);
        assert_eq!(text.matches("# HELP osd_ops ").count(), 1, "{text}");
        assert!(text.contains("osd_ops_total{ceph_daemon=\"osd.0\"} 3\n"), "{text}");
        assert!(text.contains("osd_ops_total{ceph_daemon=\"osd.1\"} 1\n"), "{text}");
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn perf_dump_groups_by_subsystem() {
        let metrics = Metrics::new("osd.0");
        metrics.counter("osd_ops", "Requests").inc_by(3);
        let latency = metrics.latency("osd_op_latency_seconds", "From receipt to reply");
        latency.observe(0.5);
        latency.observe(1.5);
        metrics.gauge("ms_connections", "Connections").set(2);
        let dump = metrics.perf_dump();
        assert_eq!(dump["osd"]["ops"], 3);
        assert_eq!(dump["osd"]["op_latency_seconds"], json!({"sum": 2.0, "avgcount": 2, "avgtime": 1.0}));
        assert_eq!(dump["ms"]["connections"], 2);
    }
}
