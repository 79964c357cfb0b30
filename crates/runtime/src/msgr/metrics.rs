//! The messenger's metrics: names, units and help.

use super::{Messenger, MessengerCounters};
use nacre_common::metrics::Metric;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

type Row = (&'static str, &'static str, fn(&MessengerCounters) -> &AtomicU64);

const COUNTERS: [Row; 8] = [
    ("recv_messages", "Messages handed to handlers", |c| &c.messages_received),
    ("recv_bytes", "Bytes of messages received, headers included", |c| &c.bytes_received),
    ("send_messages", "Messages written to sockets, repeats included", |c| &c.messages_sent),
    ("send_bytes", "Bytes of messages written, headers included", |c| &c.bytes_sent),
    ("faults", "Sockets lost", |c| &c.faults),
    ("refusals", "Peers refused at authentication", |c| &c.refusals),
    ("duplicates", "Messages received again after a reconnect and dropped", |c| &c.duplicates),
    ("throttle_waits", "Waits of readers for room in a throttle", |c| &c.throttle_waits),
];

/// The sum of the metrics of a daemon's messengers, as a source for [`nacre_common::metrics::PerfCounters::add_source`]. Does not keep the
/// messengers alive.
pub fn collector(messengers: &[Messenger]) -> impl Fn(&mut Vec<Metric>) + Send + Sync + 'static {
    let inner: Vec<_> = messengers.iter().map(|messenger| Arc::downgrade(&messenger.0)).collect();
    move |out| {
        let alive: Vec<_> = inner.iter().filter_map(std::sync::Weak::upgrade).collect();
        for (name, help, of) in COUNTERS {
            let sum = alive.iter().map(|inner| of(&inner.counters).load(Ordering::Relaxed)).sum();
            out.push(Metric::counter("msgr", name, help, sum));
        }
        let connections = alive.iter().map(|inner| inner.conns.lock().len() as u64).sum();
        out.push(Metric::gauge(
            "msgr",
            "active_connections",
            "Connections and lossless sessions",
            connections,
        ));
    }
}
