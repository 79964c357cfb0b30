//! Topics: their records, what this gateway caches of them, and the notifier that serves their queues.
//!
//! A topic's record is changed by compare-and-swap. All gateways are notified of a change before its request succeeds, so that
//! their caches are not stale.

mod commands;
mod rules;

pub use commands::{DeadLetterAction, DeadLetterSelection};
pub use rules::EndpointRules;
pub(crate) use rules::refresh_endpoint_rules;

use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::message::GatewayMessage;
use crate::peers::{MessageListener, MetadataCache, Peers};
use nacre_client::Cluster;
use nacre_notify::Notifier;
use nacre_notify::topic_store::{StoredTopic, TopicStore};
use nacre_topics::arn::TopicArn;
use nacre_topics::attributes::Attributes;
use nacre_topics::names::DEFAULT_SHARDS;
use nacre_topics::topic::Topic;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock, Weak};

/// The option for the number of shards of a new topic.
const SHARDS_OPTION: &str = "rgw_bucket_persistent_notif_num_shards";
/// The name by which endpoints on the gateway's own host are usually called.
const LOCALHOST: &str = "localhost";

/// A topic's name within the cluster, as the cache and notifies use it.
fn key_of(arn: &TopicArn) -> String {
    format!("{}:{}", arn.tenant, arn.name)
}

/// The ARN of the topic that [`GatewayMessage::Topic`] names.
fn arn_of_key(key: &str, zonegroup: &str) -> TopicArn {
    let (tenant, name) = key.split_once(':').unwrap_or(("", key));
    TopicArn { zonegroup: zonegroup.to_owned(), tenant: tenant.to_owned(), name: name.to_owned() }
}

/// The topics of the cluster.
pub struct Topics {
    cluster: Cluster,
    store: TopicStore,
    peers: Arc<Peers>,
    /// Also caches that a topic does not exist, because configurations outlive their topics.
    cache: MetadataCache<Option<Arc<Topic>>>,
    /// The zone group in the ARNs of topics.
    zonegroup: String,
    rules: EndpointRules,
    /// Serves the topics' queues, if this process does so.
    notifier: OnceLock<Arc<Notifier>>,
}

/// Acts on what other gateways say about topics.
struct TopicListener(Weak<Topics>);

impl MessageListener for TopicListener {
    fn changed(&self, change: &GatewayMessage) {
        let Some(topics) = self.0.upgrade() else { return };
        if let (GatewayMessage::Topic(key), Some(notifier)) = (change, topics.notifier()) {
            notifier.topic_changed(&arn_of_key(key, &topics.zonegroup));
        }
    }

    fn answer(&self, question: &GatewayMessage) -> Option<&'static str> {
        match question {
            GatewayMessage::AskBreaker(topic) => Some(self.0.upgrade()?.local_breaker_state(topic)),
            _ => None,
        }
    }
}

impl Topics {
    /// The topics of a cluster whose endpoints obey `rules`. `zonegroup` is in the ARNs of topics.
    pub(crate) fn new(
        connection: &Connection,
        peers: &Arc<Peers>,
        zonegroup: &str,
        rules: EndpointRules,
    ) -> Arc<Topics> {
        let topics = Arc::new(Topics {
            cluster: connection.cluster.clone(),
            store: connection.pools.topics.clone(),
            peers: Arc::clone(peers),
            cache: MetadataCache::new(peers, |topics, change| {
                if let GatewayMessage::Topic(key) = change {
                    topics.remove(key);
                }
            }),
            zonegroup: zonegroup.to_owned(),
            rules,
            notifier: OnceLock::new(),
        });
        peers.add_listener(Arc::new(TopicListener(Arc::downgrade(&topics))));
        topics
    }

    /// Sets the notifier. To be called at most once.
    pub(crate) fn set_notifier(&self, notifier: Arc<Notifier>) {
        let is_first = self.notifier.set(notifier).is_ok();
        debug_assert!(is_first, "there is a notifier already");
    }

    /// The notifier, which serves topics' queues; `None` in a process that does not.
    pub fn notifier(&self) -> Option<&Arc<Notifier>> {
        self.notifier.get()
    }

    /// Notes that a gateway is known to have ended: what it delivered is taken over at once.
    pub(crate) fn gateway_ended(&self, session: &str) {
        let number = session.strip_prefix("client.").and_then(|number| number.parse().ok());
        if let (Some(notifier), Some(number)) = (self.notifier(), number) {
            notifier.gateway_ended(number);
        }
    }

    /// Records that the gateway listens on these addresses.
    pub fn add_listen_addresses(&self, addresses: impl Iterator<Item = IpAddr>) {
        self.rules.add_listen_addresses(addresses);
    }

    /// The ARN of the default tenant's topic with that name. Users have no tenants here.
    pub fn arn(&self, name: &str) -> TopicArn {
        TopicArn { zonegroup: self.zonegroup.clone(), tenant: String::new(), name: name.to_owned() }
    }

    /// The topic with that tenant and name, as it was when the call began or later; `None` if there is none. The zone group is
    /// ignored.
    pub async fn cached(&self, arn: &TopicArn) -> Result<Option<Arc<Topic>>> {
        let asking = async { Ok(self.stored(arn).await?.map(|stored| Arc::new(stored.record.topic))) };
        let known = self.cache.get(&key_of(arn), asking).await?;
        Ok(known.as_ref().clone())
    }

    /// Reads the record of a topic, bypassing the cache; `None` if there is none.
    pub async fn stored(&self, arn: &TopicArn) -> Result<Option<StoredTopic>> {
        Ok(self.store.get(arn).await?)
    }

    /// Reads a topic, bypassing the cache.
    pub async fn get(&self, name: &str) -> Result<Topic> {
        let arn = self.arn(name);
        let found = self.stored(&arn).await?;
        Ok(found.ok_or_else(|| Error::NoSuchTopic(arn.to_string()))?.record.topic)
    }

    /// At most `max` topics after `after`, by name, and whether there are more.
    pub async fn list(&self, after: Option<&str>, max: u64) -> Result<(Vec<Topic>, bool)> {
        let page = self.store.list("", after, max).await?;
        Ok((page.topics.into_iter().map(|stored| stored.record.topic).collect(), page.more))
    }

    /// The number of shards of a new topic. Includes options that the monitors were told before this call.
    pub async fn default_shard_count(&self) -> Result<u32> {
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
    pub async fn reshard(&self, name: &str, shards: u32) -> Result<Topic> {
        let arn = self.arn(name);
        let resharded = self.require_notifier()?.reshard_topic(&arn, shards).await;
        let told = self.notify_change(&arn).await;
        let topic = resharded?.record.topic.clone();
        told.map(|()| topic)
    }

    /// Removes the topic with that name, its queues and the events in them. Returns whether there was one.
    pub async fn remove(&self, name: &str) -> Result<bool> {
        let arn = self.arn(name);
        let removed = self.require_notifier()?.delete_topic(&arn).await;
        let told = self.notify_change(&arn).await;
        let was_there = removed?;
        told.map(|()| was_there)
    }

    /// The notifier of this process, which serves topics' queues. Fails if there is none.
    pub fn require_notifier(&self) -> Result<&Arc<Notifier>> {
        self.notifier().ok_or_else(|| Error::Internal {
            what: "notifications",
            detail: "this process does nothing with topics' queues".to_owned(),
        })
    }

    /// Notifies all gateways of a topic that was changed, or may have been.
    pub async fn notify_change(&self, arn: &TopicArn) -> Result<()> {
        self.peers.notify(GatewayMessage::Topic(key_of(arn))).await
    }

    /// Notifies all gateways that a topic has queued events.
    async fn notify_events(&self, arn: &TopicArn) {
        // Gateways also check by themselves.
        let _ = self.notify_change(arn).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestCluster;
    use nacre_notify::topic_store::TopicRecord;
    use nacre_topics::topic::TopicId;

    #[test]
    fn topics_are_read_and_their_shards_follow_the_option() {
        let cluster = TestCluster::new();
        let (connection, peers) = cluster.connect();
        let rules = EndpointRules::new(&connection.cluster);
        let topics = Topics::new(&connection, &peers, "region", rules);
        cluster.set_option(SHARDS_OPTION, "5");
        cluster.run(async move {
            for (number, name) in [(1, "b"), (2, "a")] {
                let (id, attributes) = (TopicId::from_random([number; 16]), Attributes::default());
                let topic = Topic::new(id, topics.arn(name), "alice", 7, 3, attributes).unwrap();
                assert!(topics.cached(&topic.arn).await.unwrap().is_none());
                topics.store.create(&TopicRecord::new(topic).unwrap()).await.unwrap().unwrap();
            }
            assert_eq!(topics.get("a").await.unwrap().arn.to_string(), "arn:aws:sns:region::a");
            assert_eq!(
                topics.cached(&topics.arn("b")).await.unwrap().unwrap().id,
                TopicId::from_random([1; 16])
            );
            let (page, more) = topics.list(None, 1).await.unwrap();
            assert_eq!((page[0].arn.name.as_str(), more), ("a", true));
            let (page, more) = topics.list(Some("a"), 9).await.unwrap();
            assert_eq!((page[0].arn.name.as_str(), page.len(), more), ("b", 1, false));
            assert!(matches!(topics.get("c").await, Err(Error::NoSuchTopic(_))));
            assert_eq!(topics.default_shard_count().await.unwrap(), 5);
            // Queues are served by processes with a notifier only.
            assert!(matches!(topics.remove("a").await, Err(Error::Internal { .. })));
            assert!(topics.get("a").await.is_ok());
        });
    }
}
