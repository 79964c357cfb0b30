//! Bounds and times of delivery, which are fixed at the start, and what topics without attributes of their own have, which may
//! change at any time. The gateway makes both of its options.

use nacre_queues::dead::LetterLimit;
use nacre_queues::retry::{Backoff, BreakerPolicy, RetryPolicy};
use nacre_queues::spill::SpillLimits;
use nacre_queues::window::WindowLimits;
use nacre_topics::attributes::Attributes;
use std::time::Duration;
use tokio::sync::watch;

const SECOND_NS: u64 = 1_000_000_000;
/// The shortest time between two tries of an event, whatever its topic says.
const SHORTEST_SLEEP_NS: u64 = SECOND_NS / 10;

/// Bounds and times of delivery.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long a mover waits for more events before it moves those that it was told of.
    pub linger: Duration,
    /// The same after a turn that moved [`Settings::busy_turn`] records or more, and as long as more come: what is enqueued at a
    /// time costs about the same for one event as for many.
    pub busy_linger: Duration,
    /// Records of a turn that show that a bucket is busy.
    pub busy_turn: u64,
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
    /// Queue shards that are delivered at the same time; 0 for a process that delivers none.
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
    /// The backoff of events that fail.
    pub backoff: Backoff,
    /// When an endpoint is left alone.
    pub breaker: BreakerPolicy,
    /// The bounds of a topic's dead-letter queue.
    pub letters: LetterLimit,
    /// When queue shards are spilled.
    pub spill: SpillLimits,
    /// Bytes of events that this gateway admits to a topic that refuses, without seeing them in its queue.
    pub allowance_bytes: u64,
    /// What counts now where topics say nothing. Owners take up a change at once.
    pub defaults: watch::Receiver<TopicDefaults>,
}

/// What options say of topics without attributes of their own.
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
    /// `rgw_topic_push_timeout`: how long an operation waits for the endpoint of a topic that is not persistent.
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
            letters: LetterLimit { entries: 10_000, bytes: 64 << 20 },
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

    /// What counts now where topics say nothing.
    pub fn topic_defaults(&self) -> TopicDefaults {
        *self.defaults.borrow()
    }

    /// How often and how long events of a topic are tried.
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
