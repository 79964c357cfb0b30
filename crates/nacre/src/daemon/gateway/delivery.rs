//! How a gateway or a command handles the queues of notification topics: options, and the clients of endpoints.

use nacre_client::Cluster;
use nacre_common::config::Config;
use nacre_common::options::Options;
use nacre_notify::{Settings, TopicDefaults};
use nacre_push::{ClientLimits, EndpointClients, Timeouts};
use nacre_rgw::{DeliveryConfig, EndpointRules};
use nacre_topics::endpoint::{CA_FOLDER_OPTION, CLEARTEXT_OPTION, LOCAL_OPTION};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// An interval that no command reaches.
const NEVER: Duration = Duration::from_secs(24 * 3600);
/// The options for [`TopicDefaults`].
const DEFAULTS: [&str; 5] = [
    "rgw_topic_persistency_time_to_live",
    "rgw_topic_persistency_max_retries",
    "rgw_topic_persistency_sleep_duration",
    "rgw_topic_queue_max_bytes",
    "rgw_topic_push_timeout",
];

/// The configuration for a gateway, which delivers.
pub(crate) fn delivery(config: &Config, cluster: &Cluster) -> DeliveryConfig {
    let rules = EndpointRules::new(cluster);
    let pusher = Arc::new(EndpointClients::new(rules.policy(), limits(&config.snapshot())));
    let clients = Arc::downgrade(&pusher);
    rules.on_change(move |policy| {
        if let Some(clients) = clients.upgrade() {
            clients.set_policy(policy);
        }
    });
    let changed = rules.clone();
    config.observe(&[CLEARTEXT_OPTION, LOCAL_OPTION, CA_FOLDER_OPTION], move |_, _| changed.option_changed());
    let sender = watch::Sender::new(topic_defaults(&config.snapshot()));
    let defaults = sender.subscribe();
    config.observe(&DEFAULTS, move |options, _| {
        sender.send_replace(topic_defaults(options));
    });
    DeliveryConfig { rules, pusher, settings: Settings { defaults, ..Settings::default() } }
}

/// The configuration for a command, which changes and shows queues, and leaves delivery and maintenance to gateways.
pub(crate) fn passive_delivery(config: &Config, cluster: &Cluster) -> DeliveryConfig {
    let DeliveryConfig { rules, pusher, settings } = delivery(config, cluster);
    let settings = Settings { active_shards: 0, watch: NEVER, scan: NEVER, sweep: NEVER, ..settings };
    DeliveryConfig { rules, pusher, settings }
}

fn topic_defaults(options: &Options) -> TopicDefaults {
    let options = &options.rgw;
    let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    TopicDefaults {
        time_to_live_s: seconds(options.rgw_topic_persistency_time_to_live),
        max_retries: u32::try_from(options.rgw_topic_persistency_max_retries).unwrap_or(u32::MAX),
        retry_sleep_s: seconds(options.rgw_topic_persistency_sleep_duration),
        queue_max_bytes: Some(options.rgw_topic_queue_max_bytes),
        sync_timeout: options.rgw_topic_push_timeout,
    }
}

/// Limits for the clients of endpoints. The ranges of the options keep the numbers small.
fn limits(options: &Options) -> ClientLimits {
    let options = &options.rgw;
    let number = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    let limits = ClientLimits::default();
    ClientLimits {
        http: Timeouts {
            push: Duration::from_secs(options.rgw_http_notif_message_timeout),
            connect: Duration::from_secs(options.rgw_http_notif_connection_timeout),
        },
        kafka: Timeouts { push: Duration::from_millis(options.rgw_kafka_message_timeout), ..limits.kafka },
        amqp: Timeouts {
            push: Duration::from_secs(options.rgw_amqp_message_timeout),
            connect: Duration::from_secs(options.rgw_amqp_connection_timeout),
        },
        kafka_idle_timeout: Duration::from_secs(options.rgw_kafka_connection_idle),
        kafka_batch_bytes: u32::try_from(options.rgw_kafka_max_batch_size).ok().filter(|bytes| *bytes > 0),
        http_connections: number(options.rgw_http_notif_max_connections),
        events_in_flight: number(options.rgw_notification_max_inflight),
        ..limits
    }
}
