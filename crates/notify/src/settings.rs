//! Bounds and times of delivery. The gateway makes them of its options.

use nacre_queues::dead::LetterLimit;
use nacre_queues::retry::{Backoff, BreakerPolicy, RetryPolicy};
use nacre_queues::window::WindowLimits;
use nacre_topics::attributes::Attributes;
use std::time::Duration;

const SECOND_NS: u64 = 1_000_000_000;

/// Bounds and times of delivery.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long a mover waits for more events before it moves those that it was told of.
    pub linger: Duration,
    /// How long an owner waits for more outcomes before it settles events.
    pub settle_linger: Duration,
    /// The term of leases on queue shards.
    pub lease: Duration,
    /// How long an owner keeps a shard that is empty.
    pub idle: Duration,
    /// How often an owner looks whether other gateways enqueued events.
    pub poll: Duration,
    /// How often gateways, and shards of other gateways that have events, are looked at.
    pub watch: Duration,
    /// How often topics and outboxes are looked through for what gateways that ended have left.
    pub scan: Duration,
    /// Readings in a second that such a look takes at most.
    pub scan_rate: u32,
    /// How often hidden namespaces are searched for objects without an owner.
    pub sweep: Duration,
    /// The bounds of a shard's window.
    pub window: WindowLimits,
    /// Queue shards that are delivered at the same time.
    pub active_shards: usize,
    /// How long a shard is delivered while others wait for their turn.
    pub turn: Duration,
    /// Buckets whose outboxes are moved at the same time.
    pub active_buckets: usize,
    /// Bytes of events that are loaded for delivery. A shard may exceed it by one page.
    pub memory_bytes: u64,
    /// Pushes to one endpoint at the same time.
    pub pushes: usize,
    /// Events in one push to an endpoint that takes them one by one.
    pub push_events: usize,
    /// `rgw_topic_persistency_time_to_live` in seconds; 0 for no limit.
    pub time_to_live_s: u32,
    /// `rgw_topic_persistency_max_retries`; 0 for no limit.
    pub max_retries: u32,
    /// `rgw_topic_persistency_sleep_duration` in seconds; 0 for exponential backoff.
    pub retry_sleep_s: u32,
    /// The backoff of events that fail.
    pub backoff: Backoff,
    /// When an endpoint is left alone.
    pub breaker: BreakerPolicy,
    /// The bounds of a topic's dead-letter queue.
    pub letters: LetterLimit,
    /// The size limit of a topic's queue where the topic has none; `None` for none.
    pub queue_max_bytes: Option<u64>,
    /// Bytes of events that this gateway admits to a topic that refuses, without seeing them in its queue.
    pub allowance_bytes: u64,
    /// How long an operation waits for the endpoint of a topic that is not persistent.
    pub sync_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            linger: Duration::from_millis(40),
            settle_linger: Duration::from_millis(100),
            lease: Duration::from_secs(3),
            idle: Duration::from_secs(3),
            poll: Duration::from_millis(50),
            watch: Duration::from_secs(1),
            scan: Duration::from_secs(10),
            scan_rate: 500,
            sweep: Duration::from_secs(3600),
            window: WindowLimits { window: 1024, in_flight: 512, parked: 4096 },
            active_shards: 256,
            turn: Duration::from_secs(2),
            active_buckets: 32,
            memory_bytes: 64 << 20,
            pushes: 64,
            push_events: 64,
            time_to_live_s: 0,
            max_retries: 0,
            retry_sleep_s: 0,
            backoff: Backoff { base_ns: SECOND_NS / 2, max_ns: 30 * SECOND_NS },
            breaker: BreakerPolicy {
                failures: 8,
                backoff: Backoff { base_ns: SECOND_NS / 2, max_ns: 15 * SECOND_NS },
            },
            letters: LetterLimit { entries: 10_000, bytes: 64 << 20 },
            queue_max_bytes: None,
            allowance_bytes: 1 << 20,
            sync_timeout: Duration::from_secs(5),
        }
    }
}

impl Settings {
    /// How often and how long events of a topic are tried.
    pub(crate) fn retry_policy(&self, attributes: &Attributes) -> RetryPolicy {
        let limit = |own: Option<u32>, default: u32| Some(own.unwrap_or(default)).filter(|value| *value > 0);
        let seconds = |value: u32| u64::from(value) * SECOND_NS;
        RetryPolicy {
            time_to_live_ns: limit(attributes.time_to_live, self.time_to_live_s).map(seconds),
            max_retries: limit(attributes.max_retries, self.max_retries),
            sleep_ns: match attributes.retry_sleep_duration {
                Some(own) => Some(seconds(own)),
                None => Some(self.retry_sleep_s).filter(|value| *value > 0).map(seconds),
            },
            backoff: self.backoff,
        }
    }
}
