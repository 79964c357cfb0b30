//! Metrics of a gateway's requests, by S3 operation: counts, bytes and times, for the process's metrics endpoint.
//!
//! Metrics have Ceph's names where Ceph's gateways have the same counter (section `rgw`). Metrics by operation have the
//! label `operation`.

use nacre_common::metrics::{Exposition, MetricKind};
use nacre_notify::Notifier;
use nacre_rgw::gateway::Gateway;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The upper ends of the histogram's steps, in microseconds. Longer times are only in the sum and the count.
const STEPS_US: [u64; 15] = [
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    5_000_000, 10_000_000, 30_000_000,
];

/// A gateway's counters.
#[derive(Debug, Default)]
pub struct Metrics {
    operations: Mutex<BTreeMap<String, Counts>>,
    active: AtomicU64,
    slowed: AtomicU64,
    connections: AtomicU64,
    open_connections: AtomicU64,
    given_up_connections: AtomicU64,
    refused_connections: AtomicU64,
    lost_lines: AtomicU64,
    /// Counters that the gateway increments.
    damaged_garbage: Arc<AtomicU64>,
    outbox_writes: Arc<AtomicU64>,
    delivery: Delivery,
}

/// The source of the metrics of the delivery of notifications.
#[derive(Default)]
struct Delivery(Option<Arc<Notifier>>);

impl std::fmt::Debug for Delivery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Delivery").field(&self.0.is_some()).finish()
    }
}

#[derive(Debug, Default)]
struct Counts {
    requests: u64,
    client_errors: u64,
    server_errors: u64,
    received: u64,
    sent: u64,
    slow: u64,
    time: Duration,
    steps: [u64; STEPS_US.len()],
}

/// A request that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestSummary<'a> {
    /// S3's operation; empty if it is not known.
    pub(crate) operation: &'a str,
    pub(crate) status: u16,
    /// Bytes of the bodies of the request and of the response.
    pub(crate) received: u64,
    pub(crate) sent: u64,
    /// The time until the response began.
    pub(crate) took: Duration,
    /// Whether that time was too long.
    pub(crate) slow: bool,
}

/// A request in progress. It is counted until this is dropped.
#[derive(Debug)]
pub(crate) struct ActiveRequest(Arc<Metrics>);

/// An open connection. It is counted until this is dropped.
#[derive(Debug)]
pub(crate) struct OpenConnection(Arc<Metrics>);

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.open_connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Metrics {
    /// Returns the metrics of a gateway. They include garbage records that can't be decoded, writes that left events in an
    /// outbox, and the delivery of events.
    pub(crate) fn of_gateway(gateway: &Gateway) -> Metrics {
        Metrics {
            damaged_garbage: Arc::clone(&gateway.garbage.damaged),
            outbox_writes: Arc::clone(&gateway.index.outbox_writes),
            delivery: Delivery(gateway.topics.notifier().cloned()),
            ..Metrics::default()
        }
    }

    /// Counts a request in progress; also returns the number of requests in progress, including this one.
    pub(crate) fn request_started(self: &Arc<Metrics>) -> (ActiveRequest, u64) {
        let under_way = self.active.fetch_add(1, Ordering::Relaxed) + 1;
        (ActiveRequest(Arc::clone(self)), under_way)
    }

    pub(crate) fn request_slowed(&self) {
        self.slowed.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a connection.
    pub(crate) fn connection_opened(self: &Arc<Metrics>) -> OpenConnection {
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.open_connections.fetch_add(1, Ordering::Relaxed);
        OpenConnection(Arc::clone(self))
    }

    pub(crate) fn connection_evicted(&self) {
        self.given_up_connections.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn connection_refused(&self) {
        self.refused_connections.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn access_log_line_lost(&self) -> u64 {
        self.lost_lines.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn request_ended(&self, ended: &RequestSummary<'_>) {
        let name = if ended.operation.is_empty() { "Unknown" } else { ended.operation };
        let mut operations = self.operations.lock();
        // The names are those of the protocol's table, so there are few of them.
        if !operations.contains_key(name) {
            operations.insert(name.to_owned(), Counts::default());
        }
        let Some(counts) = operations.get_mut(name) else { return };
        counts.requests += 1;
        counts.client_errors += u64::from((400..500).contains(&ended.status));
        counts.server_errors += u64::from(ended.status >= 500);
        counts.received += ended.received;
        counts.sent += ended.sent;
        counts.slow += u64::from(ended.slow);
        counts.time += ended.took;
        let us = u64::try_from(ended.took.as_micros()).unwrap_or(u64::MAX);
        if let Some(step) = STEPS_US.iter().position(|end| us <= *end) {
            counts.steps[step] += 1;
        }
    }

    /// Adds all values, labelled with the daemon's name.
    pub fn expose(&self, daemon: &str, out: &mut Exposition) {
        let own = [("ceph_daemon", daemon)];
        let load = |value: &AtomicU64| value.load(Ordering::Relaxed) as f64;
        let operations = self.operations.lock();
        let sum = |of: fn(&Counts) -> u64| operations.values().map(of).sum::<u64>() as f64;
        let of = |name: &str, value: fn(&Counts) -> u64| operations.get(name).map_or(0, value) as f64;
        let counter = MetricKind::Counter;
        out.add("ceph_rgw_req", counter, "Requests", &own, sum(|counts| counts.requests));
        let failed = sum(|counts| counts.client_errors + counts.server_errors);
        out.add("ceph_rgw_failed_req", counter, "Requests that were refused or failed", &own, failed);
        out.add("ceph_rgw_get", counter, "Gets", &own, of("GetObject", |counts| counts.requests));
        out.add("ceph_rgw_get_b", counter, "Bytes of gets", &own, of("GetObject", |counts| counts.sent));
        let puts = of("PutObject", |counts| counts.requests) + of("UploadPart", |counts| counts.requests);
        out.add("ceph_rgw_put", counter, "Puts, of objects and of parts", &own, puts);
        let bytes = of("PutObject", |counts| counts.received) + of("UploadPart", |counts| counts.received);
        out.add("ceph_rgw_put_b", counter, "Bytes of puts", &own, bytes);
        out.add("ceph_rgw_qactive", MetricKind::Gauge, "Requests under way", &own, load(&self.active));
        out.add("ceph_rgw_slow_down", counter, "Requests told to slow down", &own, load(&self.slowed));
        out.add("ceph_rgw_connections", counter, "Connections taken", &own, load(&self.connections));
        let damaged = load(&self.damaged_garbage);
        let help = "Records of garbage that can't be decoded, as the last collection found";
        out.add("ceph_rgw_gc_damaged_records", MetricKind::Gauge, help, &own, damaged);
        let written = load(&self.outbox_writes);
        let help = "Writes of bucket indexes that left events in an outbox";
        out.add("ceph_rgw_outbox_writes", counter, help, &own, written);
        let open = load(&self.open_connections);
        out.add("ceph_rgw_connections_open", MetricKind::Gauge, "Connections that are open", &own, open);
        let given_up = load(&self.given_up_connections);
        let help = "Connections closed because their time ran out or to make way for others";
        out.add("ceph_rgw_connections_given_up", counter, help, &own, given_up);
        let refused = load(&self.refused_connections);
        let help = "Connections refused because their address had too many";
        out.add("ceph_rgw_connections_refused", counter, help, &own, refused);
        let lost = load(&self.lost_lines);
        out.add("ceph_rgw_access_log_lost", counter, "Lines that the access log could not take", &own, lost);
        for metric in self.delivery.0.iter().flat_map(|notifier| notifier.metrics().export()) {
            let kind = match metric.kind {
                nacre_notify::MetricKind::Counter => MetricKind::Counter,
                nacre_notify::MetricKind::Gauge => MetricKind::Gauge,
            };
            out.add(&format!("ceph_{}", metric.name), kind, metric.help, &own, metric.value as f64);
        }
        for (name, counts) in operations.iter() {
            let labels = [("ceph_daemon", daemon), ("operation", name.as_str())];
            let mut add = |metric: &str, help: &str, value: u64| {
                out.add(&format!("ceph_rgw_op_{metric}"), counter, help, &labels, value as f64);
            };
            add("requests", "Requests by operation", counts.requests);
            add("client_errors", "Answers from 400 to 499 by operation", counts.client_errors);
            add("server_errors", "Answers from 500 on by operation", counts.server_errors);
            add("received_bytes", "Bytes of requests' bodies by operation", counts.received);
            add("sent_bytes", "Bytes of answers' bodies by operation", counts.sent);
            add("slow", "Requests that took longer than rgw_op_complaint_time by operation", counts.slow);
            let help = "Time until the answer began by operation, in seconds";
            let histogram = "ceph_rgw_op_latency_seconds";
            let mut below = 0;
            for (end, count) in STEPS_US.iter().zip(&counts.steps) {
                below += count;
                let end = (*end as f64 / 1e6).to_string();
                let labels = [labels[0], labels[1], ("le", &end)];
                out.add(&format!("{histogram}_bucket"), counter, help, &labels, below as f64);
            }
            let all = [labels[0], labels[1], ("le", "+Inf")];
            out.add(&format!("{histogram}_bucket"), counter, help, &all, counts.requests as f64);
            out.add(&format!("{histogram}_sum"), counter, help, &labels, counts.time.as_secs_f64());
            out.add(&format!("{histogram}_count"), counter, help, &labels, counts.requests as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::AssertUnwindSafe;

    #[test]
    fn what_is_under_way_is_counted_until_it_is_dropped_or_panics() {
        let metrics = Arc::new(Metrics::default());
        let counts =
            || [&metrics.active, &metrics.open_connections].map(|count| count.load(Ordering::Relaxed));
        let (connection, (request, under_way)) = (metrics.connection_opened(), metrics.request_started());
        assert_eq!((under_way, counts()), (1, [1, 1]));
        let panics = || {
            let (_connection, (_request, under_way)) =
                (metrics.connection_opened(), metrics.request_started());
            assert_eq!((under_way, counts()), (2, [2, 2]));
            std::panic::resume_unwind(Box::new("a request"));
        };
        let panicked: std::thread::Result<()> = std::panic::catch_unwind(AssertUnwindSafe(panics));
        assert!(panicked.unwrap_err().is::<&str>());
        assert_eq!(counts(), [1, 1]);
        drop((connection, request));
        assert_eq!(counts(), [0, 0]);
    }

    #[test]
    fn a_histogram_counts_what_is_below_each_step() {
        let metrics = Metrics::default();
        for (status, us) in [(200, 400), (404, 700), (500, 60_000_000)] {
            let took = Duration::from_micros(us);
            let ended = RequestSummary {
                operation: "GetObject",
                status,
                received: 0,
                sent: 10,
                took,
                slow: us > 30_000_000,
            };
            metrics.request_ended(&ended);
        }
        let mut out = Exposition::default();
        metrics.expose("rgw.a", &mut out);
        let text = out.render();
        let of = "{ceph_daemon=\"rgw.a\",operation=\"GetObject\"";
        for line in [
            format!("ceph_rgw_op_requests{of}}} 3\n"),
            format!("ceph_rgw_op_client_errors{of}}} 1\n"),
            format!("ceph_rgw_op_server_errors{of}}} 1\n"),
            format!("ceph_rgw_op_slow{of}}} 1\n"),
            format!("ceph_rgw_op_sent_bytes{of}}} 30\n"),
            format!("ceph_rgw_op_latency_seconds_bucket{of},le=\"0.0005\"}} 1\n"),
            format!("ceph_rgw_op_latency_seconds_bucket{of},le=\"30\"}} 2\n"),
            format!("ceph_rgw_op_latency_seconds_bucket{of},le=\"+Inf\"}} 3\n"),
            "ceph_rgw_failed_req{ceph_daemon=\"rgw.a\"} 2\n".to_owned(),
            "ceph_rgw_gc_damaged_records{ceph_daemon=\"rgw.a\"} 0\n".to_owned(),
            "ceph_rgw_get_b{ceph_daemon=\"rgw.a\"} 30\n".to_owned(),
        ] {
            assert!(text.contains(&line), "{line}{text}");
        }
    }
}
