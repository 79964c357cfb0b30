//! The metrics of an OSD: the one list of names, for `perf dump` (Ceph's names) and for metrics (with units).
//!
//! Every shard has its own set of counters, so that no cache line is shared on the hot path. Readers add them up.

use nacre_common::metrics::Metric;
use std::sync::atomic::{AtomicU64, Ordering};

/// The section of `perf dump`.
const SECTION: &str = "osd";

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

/// The sum and the number of durations.
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

macro_rules! metrics {
    (counters { $($counter:ident, $counter_help:literal;)* }
     latencies { $($latency:ident, $latency_help:literal;)* }) => {
        /// One shard's metrics.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $(#[doc = concat!($counter_help, ".")] pub $counter: Counter,)*
            $(#[doc = concat!($latency_help, ".")] pub $latency: Latency,)*
        }

        /// Returns all metrics, added up over `shards`.
        pub fn collect<'a>(shards: impl Iterator<Item = &'a Metrics> + Clone) -> Vec<Metric> {
            vec![
                $(Metric::counter(
                    SECTION,
                    stringify!($counter),
                    $counter_help,
                    shards.clone().map(|m| m.$counter.get()).sum(),
                ),)*
                $(Metric::average(
                    SECTION,
                    stringify!($latency),
                    $latency_help,
                    shards.clone().map(|m| m.$latency.count.get()).sum(),
                    shards.clone().map(|m| m.$latency.sum_ns.get()).sum(),
                ),)*
            ]
        }
    };
}

metrics! {
    counters {
        op, "Client operations";
        op_in_bytes, "Client operations total write size";
        op_out_bytes, "Client operations total read size";
        op_r, "Client read operations";
        op_r_out_bytes, "Client data read";
        op_w, "Client write operations";
        op_w_in_bytes, "Client data written";
        op_errors, "Client operations answered with an error";
        op_denied, "Client operations refused for lack of capabilities";
        op_backoffs, "Client operations sent back for a newer map";
        op_dropped, "Client operations dropped because their interval had passed";
        tier_hits, "Client operations executed on what a cache tier has";
        tier_misses, "Client operations whose object a cache tier lacks";
        tier_proxied, "Client operations of a cache tier that its base executed";
        tier_promotions, "Objects promoted into a cache tier";
        tier_flushes, "Objects of a cache tier written to its base";
        tier_evictions, "Objects that left a cache tier";
        op_slow, "Client operations that took longer than osd_op_complaint_time, counted while they did";
        subop, "Messages of other OSDs about a PG";
        transactions, "Transactions given to the store";
        commit_batches, "Group commits of the store that completed transactions";
        context_hits, "Object contexts found in the cache";
        context_misses, "Object contexts read from the store";
        recovery_ops, "Objects written by recovery and backfill";
        recovery_bytes, "Bytes written by recovery and backfill";
        map_message_epochs, "Map epochs applied";
    }
    latencies {
        op_latency, "Latency of client operations, from arrival to answer";
        op_r_latency, "Latency of read operations";
        op_w_latency, "Latency of write operations";
        commit_latency, "Time from giving a transaction to the store to its commit";
        apply_latency, "Time that the store takes to accept a transaction";
    }
}

/// Values that are not counted but measured on request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gauges {
    /// Requests in flight.
    pub op_wip: u64,
    /// The numbers of PGs that the OSD is primary of, replica of, and has a copy of without being a member.
    pub pgs: [u64; 3],
    /// Peers with which heartbeats are exchanged.
    pub heartbeat_peers: u64,
    /// The store's size, the used and the available space, in bytes.
    pub space: [u64; 3],
    /// The newest map's epoch.
    pub map_epoch: u64,
}

impl Gauges {
    /// Adds the gauges under Ceph's names.
    pub fn collect(&self, out: &mut Vec<Metric>) {
        let [primary, replica, stray] = self.pgs;
        let [size, used, available] = self.space;
        let mut gauge = |name, help, value| out.push(Metric::gauge(SECTION, name, help, value));
        gauge("op_wip", "Replication operations currently being processed (primary)", self.op_wip);
        gauge("numpg", "Placement groups", primary + replica + stray);
        gauge("numpg_primary", "Placement groups for which this osd is primary", primary);
        gauge("numpg_replica", "Placement groups for which this osd is replica", replica);
        gauge("numpg_stray", "Placement groups ready to be deleted from this osd", stray);
        gauge("heartbeat_to_peers", "Heartbeat (ping) peers we send to", self.heartbeat_peers);
        gauge("stat_bytes", "OSD size", size);
        gauge("stat_bytes_used", "Used space", used);
        gauge("stat_bytes_avail", "Available space", available);
        gauge("map_epoch", "Epoch of the newest map", self.map_epoch);
    }
}

/// The average of a duration metric in whole milliseconds, as `osd perf` reports it.
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
    use nacre_common::metrics::Value;

    #[test]
    fn shards_add_up_under_cephs_names() {
        let shards = [Metrics::default(), Metrics::default()];
        shards[0].op.add(2);
        shards[1].op.inc();
        shards[0].op_latency.record(4_000_000);
        shards[1].op_latency.record(8_000_000);
        let metrics = collect(shards.iter());
        let of = |name| metrics.iter().find(|metric| metric.name == name).unwrap().value;
        assert_eq!(of("op"), Value::Number(3));
        assert_eq!(of("op_latency"), Value::Durations(2, 12_000_000));
        assert_eq!(average_ms(shards.iter(), |m| &m.op_latency), 6);
    }

    #[test]
    fn names_are_unique() {
        let mut metrics = collect([Metrics::default()].iter());
        Gauges::default().collect(&mut metrics);
        let names: std::collections::BTreeSet<_> = metrics.iter().map(|m| m.name).collect();
        assert_eq!(names.len(), metrics.len());
    }
}
