//! What an OSD counts: the one list of names, for `perf dump` (Ceph's names) and for metrics (with units).
//!
//! Every shard counts in a set of its own, so that no cache line is shared on the hot path; readers add them up.

use serde_json::{Map, Value, json};
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only rises.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        // One thread writes a shard's counters; others only read.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Adds one.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A sum of durations and their number.
#[derive(Debug, Default)]
pub struct Latency {
    count: Counter,
    sum_ns: Counter,
}

impl Latency {
    /// Adds one duration in nanoseconds.
    pub fn record(&self, ns: u64) {
        self.count.inc();
        self.sum_ns.add(ns);
    }
}

/// One metric, summed over shards.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// Its name in `perf dump`'s `osd` section.
    pub perf_name: &'static str,
    /// Its name as a metric, with unit.
    pub name: &'static str,
    /// What it counts.
    pub help: &'static str,
    /// Its value.
    pub value: MetricValue,
}

/// A [`Metric`]'s value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetricValue {
    /// A rising count.
    Count(u64),
    /// Durations: how many, and their sum in nanoseconds.
    Durations(u64, u64),
}

macro_rules! metrics {
    (counters { $($counter:ident, $counter_name:literal, $counter_help:literal;)* }
     latencies { $($latency:ident, $latency_name:literal, $latency_help:literal;)* }) => {
        /// One shard's metrics.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $(#[doc = concat!($counter_help, ".")] pub $counter: Counter,)*
            $(#[doc = concat!($latency_help, ".")] pub $latency: Latency,)*
        }

        /// All metrics, added up over `shards`.
        pub fn collect<'a>(shards: impl Iterator<Item = &'a Metrics> + Clone) -> Vec<Metric> {
            vec![
                $(Metric {
                    perf_name: stringify!($counter),
                    name: $counter_name,
                    help: $counter_help,
                    value: MetricValue::Count(shards.clone().map(|m| m.$counter.get()).sum()),
                },)*
                $(Metric {
                    perf_name: stringify!($latency),
                    name: $latency_name,
                    help: $latency_help,
                    value: MetricValue::Durations(
                        shards.clone().map(|m| m.$latency.count.get()).sum(),
                        shards.clone().map(|m| m.$latency.sum_ns.get()).sum(),
                    ),
                },)*
            ]
        }
    };
}

metrics! {
    counters {
        op, "osd_ops_total", "Client operations";
        op_in_bytes, "osd_op_in_bytes_total", "Bytes written by client operations";
        op_out_bytes, "osd_op_out_bytes_total", "Bytes read by client operations";
        op_r, "osd_op_reads_total", "Client read operations";
        op_w, "osd_op_writes_total", "Client write operations";
        op_errors, "osd_op_errors_total", "Client operations answered with an error";
        op_denied, "osd_op_denied_total", "Client operations refused for lack of capabilities";
        op_backoffs, "osd_op_backoffs_total", "Client operations sent back for a newer map";
        op_dropped, "osd_op_dropped_total", "Client operations dropped because their interval had passed";
        subop, "osd_subops_total", "Messages of other OSDs about a PG";
        transactions, "osd_transactions_total", "Transactions given to the store";
        commit_batches, "osd_commit_batches_total", "Group commits of the store that completed transactions";
        context_hits, "osd_context_hits_total", "Object contexts found in the cache";
        context_misses, "osd_context_misses_total", "Object contexts read from the store";
        recovered_objects, "osd_recovered_objects_total", "Objects written by recovery and backfill";
        recovered_bytes, "osd_recovered_bytes_total", "Bytes written by recovery and backfill";
        map_epochs, "osd_map_epochs_total", "Map epochs applied";
    }
    latencies {
        op_latency, "osd_op_latency_seconds", "Time from a client operation's arrival to its answer";
        op_r_latency, "osd_op_read_latency_seconds", "The same of reads";
        op_w_latency, "osd_op_write_latency_seconds", "The same of writes";
        commit_latency, "osd_commit_latency_seconds", "Time from giving a transaction to the store to its commit";
        apply_latency, "osd_apply_latency_seconds", "Time that the store takes to accept a transaction";
    }
}

/// `perf dump`'s `osd` section.
pub fn perf_dump<'a>(shards: impl Iterator<Item = &'a Metrics> + Clone) -> Value {
    let mut out = Map::new();
    for metric in collect(shards) {
        let value = match metric.value {
            MetricValue::Count(count) => json!(count),
            MetricValue::Durations(count, sum_ns) => {
                let sum = sum_ns as f64 / 1e9;
                let average = if count == 0 { 0.0 } else { sum / count as f64 };
                json!({ "avgcount": count, "sum": sum, "avgtime": average })
            }
        };
        out.insert(metric.perf_name.to_owned(), value);
    }
    Value::Object(out)
}

/// Average of a duration metric in whole milliseconds, as `osd perf` reports it.
pub fn average_ms<'a>(shards: impl Iterator<Item = &'a Metrics>, of: fn(&Metrics) -> &Latency) -> u32 {
    let (count, sum_ns) = shards.fold((0, 0), |(count, sum), metrics| {
        let latency = of(metrics);
        (count + latency.count.get(), sum + latency.sum_ns.get())
    });
    sum_ns.checked_div(count).map_or(0, |average| u32::try_from(average / 1_000_000).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_add_up_under_cephs_names() {
        let shards = [Metrics::default(), Metrics::default()];
        shards[0].op.add(2);
        shards[1].op.inc();
        shards[0].op_latency.record(4_000_000);
        shards[1].op_latency.record(8_000_000);
        let dump = perf_dump(shards.iter());
        assert_eq!(dump["op"], 3);
        assert_eq!(dump["op_latency"]["avgcount"], 2);
        assert!((dump["op_latency"]["avgtime"].as_f64().unwrap() - 0.006).abs() < 1e-9);
        assert_eq!(average_ms(shards.iter(), |m| &m.op_latency), 6);
    }

    #[test]
    fn names_are_unique_and_carry_units() {
        let metrics = collect([Metrics::default()].iter());
        let names: std::collections::BTreeSet<_> = metrics.iter().map(|m| m.name).collect();
        assert_eq!(names.len(), metrics.len());
        assert!(
            names.iter().all(|n| n.starts_with("osd_") && (n.ends_with("_total") || n.ends_with("_seconds")))
        );
    }
}
