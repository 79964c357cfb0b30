//! Topics: their records, and what this gateway caches of them.
//!
//! A topic's record is changed by compare-and-swap. All gateways are notified of a change before its request succeeds, so that
//! their caches are not stale.

use crate::error::{Error, Result};
use crate::gateway::Gateway;
use crate::message::GatewayMessage;
use nacre_notify::Notifier;
use nacre_notify::topic_store::StoredTopic;
use nacre_topics::arn::TopicArn;
use nacre_topics::attributes::Attributes;
use nacre_topics::names::DEFAULT_SHARDS;
use nacre_topics::topic::Topic;
use std::net::IpAddr;
use std::sync::Arc;

/// The option for the number of shards of a new topic.
const SHARDS_OPTION: &str = "rgw_bucket_persistent_notif_num_shards";
/// The name by which endpoints on the gateway's own host are usually called.
const LOCALHOST: &str = "localhost";

/// A topic's name within the cluster, as the cache and notifies use it.
fn key_of(arn: &TopicArn) -> String {
    format!("{}:{}", arn.tenant, arn.name)
}

impl Gateway {
    /// The ARN of the default tenant's topic with that name. Users have no tenants here.
    pub fn topic_arn(&self, name: &str) -> TopicArn {
        TopicArn { zonegroup: self.config.region.clone(), tenant: String::new(), name: name.to_owned() }
    }

    /// The topic with that tenant and name, as it was when the call began or later; `None` if there is none. The zone group is
    /// ignored.
    pub async fn cached_topic(&self, arn: &TopicArn) -> Result<Option<Arc<Topic>>> {
        let asking = async { Ok(self.stored_topic(arn).await?.map(|stored| Arc::new(stored.record.topic))) };
        let known = self.topics.get(&key_of(arn), asking).await?;
        Ok(known.as_ref().clone())
    }

    /// Reads the record of a topic, bypassing the cache; `None` if there is none.
    pub async fn stored_topic(&self, arn: &TopicArn) -> Result<Option<StoredTopic>> {
        Ok(self.pools.topics.get(arn).await?)
    }

    /// Reads a topic, bypassing the cache.
    pub async fn topic(&self, name: &str) -> Result<Topic> {
        let arn = self.topic_arn(name);
        let found = self.stored_topic(&arn).await?;
        Ok(found.ok_or_else(|| Error::NoSuchTopic(arn.to_string()))?.record.topic)
    }

    /// At most `max` topics after `after`, by name, and whether there are more.
    pub async fn topics(&self, after: Option<&str>, max: u64) -> Result<(Vec<Topic>, bool)> {
        let page = self.pools.topics.list("", after, max).await?;
        Ok((page.topics.into_iter().map(|stored| stored.record.topic).collect(), page.more))
    }

    /// The number of shards of a new topic. Includes options that the monitors were told before this call.
    pub async fn new_shards(&self) -> Result<u32> {
        // The monitors' answer comes after the configuration that they sent before it on the same connection.
        self.cluster.engine().refresh_map().await?;
        let text = self.cluster.option(SHARDS_OPTION);
        Ok(text.and_then(|text| text.parse().ok()).unwrap_or(DEFAULT_SHARDS))
    }

    /// Refuses an endpoint that this gateway must not connect to. `came_safely` tells whether the request that names it came by
    /// TLS or names no secret.
    pub fn check_endpoint(&self, topic: &str, attributes: &Attributes, came_safely: bool) -> Result<()> {
        let Some(endpoint) = attributes.endpoint(topic)? else { return Ok(()) };
        let policy = self.rules.policy();
        policy.check(&endpoint, came_safely)?;
        // Names are resolved when the gateway connects; addresses can be checked now.
        for server in endpoint.servers() {
            let address = match server.host.parse::<IpAddr>() {
                Ok(address) => Some(address),
                Err(_) => (server.host == LOCALHOST).then_some(IpAddr::from([127, 0, 0, 1])),
            };
            if let Some(address) = address {
                policy.check_address(address)?;
            }
        }
        Ok(())
    }

    /// Changes the number of shards of a topic's queue.
    pub async fn reshard_topic(&self, name: &str, shards: u32) -> Result<Topic> {
        let arn = self.topic_arn(name);
        let resharded = self.serving_notifier()?.reshard_topic(&arn, shards).await;
        let told = self.notify_topic_change(&arn).await;
        let topic = resharded?.record.topic.clone();
        told.map(|()| topic)
    }

    /// Removes the topic with that name, its queues and the events in them. Returns whether there was one.
    pub async fn remove_topic(&self, name: &str) -> Result<bool> {
        let arn = self.topic_arn(name);
        let removed = self.serving_notifier()?.delete_topic(&arn).await;
        let told = self.notify_topic_change(&arn).await;
        let was_there = removed?;
        told.map(|()| was_there)
    }

    /// The notifier of this process, which serves topics' queues. Fails if there is none.
    pub fn serving_notifier(&self) -> Result<&Arc<Notifier>> {
        self.notifier().ok_or_else(|| Error::Internal {
            what: "notifications",
            detail: "this process does nothing with topics' queues".to_owned(),
        })
    }

    /// Notifies all gateways of a topic that was changed, or may have been.
    pub async fn notify_topic_change(&self, arn: &TopicArn) -> Result<()> {
        self.peers.notify(GatewayMessage::Topic(key_of(arn))).await
    }

    /// Notifies all gateways that a topic has queued events.
    pub(super) async fn notify_topic_events(&self, arn: &TopicArn) {
        // Gateways also check by themselves.
        let _ = self.notify_topic_change(arn).await;
    }
}

/// The ARN of the topic that [`GatewayMessage::Topic`] names.
pub(crate) fn arn_of_key(key: &str, zonegroup: &str) -> TopicArn {
    let (tenant, name) = key.split_once(':').unwrap_or(("", key));
    TopicArn { zonegroup: zonegroup.to_owned(), tenant: tenant.to_owned(), name: name.to_owned() }
}
