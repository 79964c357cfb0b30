//! The metrics of delivery, which the gateway exports.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! metrics {
    ($($(#[doc = $help:literal])+ $name:ident: $kind:ident = $exported:literal,)+) => {
        /// Metrics of delivery in this gateway since it was started.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $($(#[doc = $help])+ pub $name: AtomicU64,)+
        }

        impl Metrics {
            /// Name, kind, help and value of each metric, in a fixed order.
            pub fn export(&self) -> Vec<Metric> {
                vec![$(Metric {
                    name: $exported,
                    kind: MetricKind::$kind,
                    help: concat!($($help),+).trim_ascii(),
                    value: self.$name.load(Ordering::Relaxed),
                },)+]
            }
        }
    };
}

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// It only rises.
    Counter,
    /// It rises and falls.
    Gauge,
}

/// A metric in exported form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// Its kind.
    pub kind: MetricKind,
    /// Its help text.
    pub help: &'static str,
    /// Its current value.
    pub value: u64,
}

metrics! {
    /// Events that were moved from outboxes into queues.
    enqueued: Counter = "rgw_notify_enqueued_total",
    /// Outbox records that were removed.
    outbox_removed: Counter = "rgw_notify_outbox_records_removed_total",
    /// Events that were dropped because their topic is gone.
    dropped_topic_gone: Counter = "rgw_notify_dropped_topic_gone_total",
    /// Events that were dropped because no queue takes them: too large, or of a topic that never was persistent.
    dropped_unqueueable: Counter = "rgw_notify_dropped_unqueueable_total",
    /// Oldest events that were dropped to make room.
    dropped_oldest: Counter = "rgw_notify_dropped_oldest_total",
    /// Enqueueing operations that another gateway overtook.
    enqueue_conflicts: Counter = "rgw_notify_enqueue_conflicts_total",
    /// Events that endpoints acknowledged.
    delivered: Counter = "rgw_notify_delivered_total",
    /// Pushes of events that failed.
    failed: Counter = "rgw_notify_failed_total",
    /// Events that became dead letters.
    dead: Counter = "rgw_notify_dead_letters_total",
    /// Dead letters that were dropped because their queue was full.
    dead_dropped: Counter = "rgw_notify_dead_letters_dropped_total",
    /// Events of topics that are not persistent and that were delivered.
    sync_delivered: Counter = "rgw_notify_sync_delivered_total",
    /// Events of topics that are not persistent and that were lost.
    sync_failed: Counter = "rgw_notify_sync_failed_total",
    /// Times that a circuit breaker was opened.
    breaker_opened: Counter = "rgw_notify_breaker_opened_total",
    /// Leases of queue shards that were taken.
    leases_taken: Counter = "rgw_notify_leases_taken_total",
    /// Leases of queue shards that were lost.
    leases_lost: Counter = "rgw_notify_leases_lost_total",
    /// Queue shards that this gateway delivers.
    shards_owned: Gauge = "rgw_notify_shards_owned",
    /// Bytes of events that are loaded for delivery.
    loaded_bytes: Gauge = "rgw_notify_loaded_bytes",
    /// Pushes that are under way or wait for their turn.
    pushes: Gauge = "rgw_notify_pushes",
    /// Segments that were spilled.
    spilled: Counter = "rgw_notify_spilled_segments_total",
    /// Operations that were refused because a topic's queue is full.
    refused_full: Counter = "rgw_notify_refused_queue_full_total",
    /// Objects without an owner that were removed.
    orphans_removed: Counter = "rgw_notify_orphans_removed_total",
    /// Age of the oldest event that this gateway delivered last, in milliseconds.
    lag_ms: Gauge = "rgw_notify_lag_milliseconds",
}

pub(crate) fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

/// Counts something in a gauge while it exists.
pub(crate) struct GaugeGuard<'a>(&'a AtomicU64);

impl<'a> GaugeGuard<'a> {
    pub(crate) fn new(gauge: &'a AtomicU64) -> GaugeGuard<'a> {
        add(gauge, 1);
        GaugeGuard(gauge)
    }
}

impl Drop for GaugeGuard<'_> {
    fn drop(&mut self) {
        subtract(self.0, 1);
    }
}

pub(crate) fn subtract(gauge: &AtomicU64, less: u64) {
    gauge.fetch_sub(less, Ordering::Relaxed);
}
