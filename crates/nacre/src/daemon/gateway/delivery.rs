//! How a gateway, or a command, takes care of the queues of notification topics: options, and the clients of endpoints.

use nacre_client::Cluster;
use nacre_notify::Settings;
use nacre_push::{Endpoints, Limits};
use nacre_rgw::{Delivery, EndpointRules};
use nacre_runtime::config::Config;
use nacre_topics::endpoint::{CA_FOLDER_OPTION, CLEARTEXT_OPTION, LOCAL_OPTION};
use std::sync::Arc;
use std::time::Duration;

/// What a command never gets to.
const NEVER: Duration = Duration::from_secs(24 * 3600);

/// Of a gateway, which delivers.
pub(crate) fn delivery(config: &Config, cluster: &Cluster) -> Delivery {
    let rules = EndpointRules::new(cluster);
    let pusher = Arc::new(Endpoints::new(rules.policy(), Limits::default()));
    let clients = Arc::downgrade(&pusher);
    rules.on_change(move |policy| {
        if let Some(clients) = clients.upgrade() {
            clients.set_policy(policy);
        }
    });
    let changed = rules.clone();
    config.observe(&[CLEARTEXT_OPTION, LOCAL_OPTION, CA_FOLDER_OPTION], move |_, _| changed.option_changed());
    Delivery { rules, pusher, settings: settings(config) }
}

/// Of a command, which changes and shows queues, and leaves delivery and upkeep to gateways.
pub(crate) fn idle_delivery(config: &Config, cluster: &Cluster) -> Delivery {
    let Delivery { rules, pusher, settings } = delivery(config, cluster);
    let settings = Settings { active_shards: 0, watch: NEVER, scan: NEVER, sweep: NEVER, ..settings };
    Delivery { rules, pusher, settings }
}

fn settings(config: &Config) -> Settings {
    let options = config.snapshot();
    let options = &options.rgw;
    let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    Settings {
        time_to_live_s: seconds(options.rgw_topic_persistency_time_to_live),
        max_retries: u32::try_from(options.rgw_topic_persistency_max_retries).unwrap_or(u32::MAX),
        retry_sleep_s: seconds(options.rgw_topic_persistency_sleep_duration),
        queue_max_bytes: Some(options.rgw_topic_queue_max_bytes),
        sync_timeout: options.rgw_topic_push_timeout,
        ..Settings::default()
    }
}
