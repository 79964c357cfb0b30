//! Limits and timeouts of delivery, which are fixed at the start, and defaults for topics, which may change at any time.
//! The gateway derives both from its options.

use nacre_queues::dead_letters::DeadLetterLimit;
use nacre_queues::retry::{Backoff, BreakerPolicy, RetryPolicy};
use nacre_queues::spill::SpillLimits;
use nacre_queues::window::WindowLimits;
use nacre_topics::attributes::Attributes;
use std::time::Duration;
use tokio::sync::watch;

const SECOND_NS: u64 = 1_000_000_000;
/// The shortest time between two attempts of an event, regardless of its topic.
const SHORTEST_SLEEP_NS: u64 = SECOND_NS / 10;

/// Limits and timeouts of delivery.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The time that a mover waits for more events before it moves those that were reported to it.
    pub linger: Duration,
    /// The longest wait after a turn that moved [`Settings::busy_turn`] records or more, while more records arrive:
    /// enqueueing many events together costs about as much as enqueueing one.
    pub busy_linger: Duration,
    /// The number of records in a turn from which a bucket counts as busy.
    pub busy_turn: u64,
    /// The time that an owner waits for more outcomes before it settles events.
    pub settle_linger: Duration,
    /// The term of leases on queue shards.
    pub lease: Duration,
    /// The time for which an owner keeps an empty shard.
    pub idle: Duration,
    /// The interval at which an owner checks whether other gateways enqueued events.
    pub poll: Duration,
    /// The interval at which the running gateways, and shards of other gateways that have events, are checked.
    pub watch: Duration,
    /// The interval at which topics and outboxes are scanned for the work that dead gateways left.
    pub scan: Duration,
    /// The most reads per second of such a scan.
    pub scan_rate: u32,
    /// The interval at which hidden namespaces are searched for objects without an owner.
    pub sweep: Duration,
    /// The limits of a shard's window.
    pub window: WindowLimits,
    /// The number of queue shards that are delivered concurrently; 0 for a process that delivers none.
    pub active_shards: usize,
    /// The time for which a shard is delivered while others wait for their turn.
    pub turn: Duration,
    /// The number of buckets whose outboxes are moved concurrently.
    pub active_buckets: usize,
    /// The most bytes of events loaded for delivery. A shard may exceed it by one page.
    pub memory_bytes: u64,
    /// The most concurrent pushes to one endpoint.
    pub pushes: usize,
    /// The most events in one push to an endpoint that takes events individually.
    pub push_events: usize,
    /// The backoff of failed events.
    pub backoff: Backoff,
    /// The limits of an endpoint's circuit breaker.
    pub breaker: BreakerPolicy,
    /// The bounds of a topic's dead-letter queue.
    pub letters: DeadLetterLimit,
    /// The limits that determine when queue shards are spilled.
    pub spill: SpillLimits,
    /// The most bytes of outstanding events that this gateway admits to a topic that refuses operations when its queue is
    /// full.
    pub allowance_bytes: u64,
    /// The current defaults of topics. Owners adopt a change immediately.
    pub defaults: watch::Receiver<TopicDefaults>,
}

/// The values that options provide for topics that do not set them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicDefaults {
    /// `rgw_topic_persistency_time_to_live` in seconds; 0 for no limit.
    pub time_to_live_s: u32,
    /// `rgw_topic_persistency_max_retries`; 0 for no limit.
    pub max_retries: u32,
    /// `rgw_topic_persistency_sleep_duration` in seconds; 0 for exponential backoff.
    pub retry_sleep_s: u32,
    /// `rgw_topic_queue_max_bytes`: the size limit of a topic's queue; `None` for none.
    pub queue_max_bytes: Option<u64>,
    /// `rgw_topic_push_timeout`: the time that an operation waits for the endpoint of a non-persistent topic.
    pub sync_timeout: Duration,
}

impl Default for TopicDefaults {
    fn default() -> TopicDefaults {
        TopicDefaults {
            time_to_live_s: 0,
            max_retries: 0,
            retry_sleep_s: 0,
            queue_max_bytes: None,
            sync_timeout: Duration::from_secs(5),
        }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            linger: Duration::from_millis(40),
            busy_linger: Duration::from_millis(400),
            busy_turn: 32,
            settle_linger: Duration::from_millis(300),
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
            backoff: Backoff { base_ns: SECOND_NS / 2, max_ns: 30 * SECOND_NS },
            breaker: BreakerPolicy {
                failures: 8,
                backoff: Backoff { base_ns: SECOND_NS / 2, max_ns: 15 * SECOND_NS },
            },
            letters: DeadLetterLimit { entries: 10_000, bytes: 64 << 20 },
            spill: SpillLimits::default(),
            allowance_bytes: 1 << 20,
            defaults: watch::channel(TopicDefaults::default()).1,
        }
    }
}

impl Settings {
    /// Whether this process delivers queued events.
    pub(crate) fn delivers(&self) -> bool {
        self.active_shards > 0
    }

    /// The current defaults of topics.
    pub fn topic_defaults(&self) -> TopicDefaults {
        *self.defaults.borrow()
    }

    /// The size limit of the queue of a topic with these attributes, in bytes; `None` if there is none.
    pub(crate) fn queue_limit_bytes(&self, attributes: &Attributes) -> Option<u64> {
        attributes.queue_max_bytes.or(self.topic_defaults().queue_max_bytes)
    }

    /// The retry policy of a topic with these attributes.
    pub(crate) fn retry_policy(&self, attributes: &Attributes) -> RetryPolicy {
        let defaults = self.topic_defaults();
        let limit = |own: Option<u32>, default: u32| Some(own.unwrap_or(default)).filter(|value| *value > 0);
        let seconds = |value: u32| u64::from(value) * SECOND_NS;
        RetryPolicy {
            time_to_live_ns: limit(attributes.time_to_live, defaults.time_to_live_s).map(seconds),
            max_retries: limit(attributes.max_retries, defaults.max_retries),
            sleep_ns: match attributes.retry_sleep_duration {
                Some(own) => Some(seconds(own).max(SHORTEST_SLEEP_NS)),
                None => Some(defaults.retry_sleep_s).filter(|value| *value > 0).map(seconds),
            },
            backoff: self.backoff,
        }
    }
}
