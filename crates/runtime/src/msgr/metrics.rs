//! The messenger's metrics: names, units and help.

use super::{Counters, Inner, Messenger};
use crate::metrics::Metrics;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

type Row = (&'static str, &'static str, fn(&Counters) -> &AtomicU64);

const COUNTERS: [Row; 8] = [
    ("ms_messages_received", "Messages handed to handlers", |c| &c.messages_received),
    ("ms_bytes_received", "Bytes of messages received, headers included", |c| &c.bytes_received),
    ("ms_messages_sent", "Messages written to sockets, repeats included", |c| &c.messages_sent),
    ("ms_bytes_sent", "Bytes of messages written, headers included", |c| &c.bytes_sent),
    ("ms_faults", "Sockets lost", |c| &c.faults),
    ("ms_refusals", "Peers refused at authentication", |c| &c.refusals),
    ("ms_duplicates", "Messages received again after a reconnect and dropped", |c| &c.duplicates),
    ("ms_throttle_waits", "Waits of readers for room in a throttle", |c| &c.throttle_waits),
];
const CONNECTIONS: (&str, &str) = ("ms_connections", "Connections and lossless sessions");

struct Collected(Weak<Inner>);

impl fmt::Debug for Collected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Collected")
    }
}

impl Collector for Collected {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(inner) = self.0.upgrade() else { return Ok(()) };
        for (name, help, value) in COUNTERS {
            let counter = ConstCounter::new(value(&inner.counters).load(Ordering::Relaxed));
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
        }
        let connections = ConstGauge::new(inner.conns.lock().len() as i64);
        let (name, help) = CONNECTIONS;
        connections.encode(encoder.encode_descriptor(name, help, None, connections.metric_type())?)
    }
}

impl Messenger {
    /// Shows the messenger's counters among `metrics`.
    pub fn export(&self, metrics: &Metrics) {
        metrics.collect(Collected(Arc::downgrade(&self.0)));
    }
}
