//! Topics: permissions, creation and changes, and what this gateway caches of them.
//!
//! A topic's record is changed by compare-and-swap. All gateways are notified of a change before its request succeeds, so that
//! their caches are not stale.

use crate::caps::{self, Perm};
use crate::error::{Error, Result};
use crate::forms::{Caller, FormError};
use crate::gateway::{Gateway, GatewayMessage, now_ns};
use crate::policy::{Decision, Policy};
use crate::s3::is_known_key;
use http::StatusCode;
use nacre_notify::Notifier;
use nacre_notify::topic_store::StoredTopic;
use nacre_topics::arn::TopicArn;
use nacre_topics::attributes::Attributes;
use nacre_topics::names::DEFAULT_SHARDS;
use nacre_topics::sns::PUBLISH_PERMISSION;
use nacre_topics::topic::{Topic, TopicId};
use nacre_types::encoding::DecodeError;
use std::net::IpAddr;
use std::sync::Arc;

/// The option for the number of shards of a new topic.
const SHARDS_OPTION: &str = "rgw_bucket_persistent_notif_num_shards";
/// Attempts at a change of a topic that conflicts with concurrent changes.
const ATTEMPTS: usize = 16;
/// The condition key for the bucket whose configuration is to name the topic.
const SOURCE_ARN: &str = "aws:sourcearn";
/// Attributes that decide where a topic's password is sent, or how safely.
const DESTINATION: [&str; 6] =
    ["push-endpoint", "kafka-brokers", "use-ssl", "verify-ssl", "ca-location", "mechanism"];
/// The name by which endpoints on the gateway's own host are usually called.
const LOCALHOST: &str = "localhost";

/// A topic's name within the cluster, as the cache and notifies use it.
fn key_of(arn: &TopicArn) -> String {
    format!("{}:{}", arn.tenant, arn.name)
}

fn invalid(parameter: &str, reason: impl Into<String>) -> Error {
    Error::Topic(nacre_topics::Error::Invalid { parameter: parameter.to_owned(), reason: reason.into() })
}

/// A topic's policy; `None` if it has none. A policy that can't be read fails the request, because it might deny it.
fn policy_of(topic: &Topic) -> Result<Option<Policy>> {
    let text = topic.attributes.policy.as_str();
    if text.is_empty() {
        return Ok(None);
    }
    let policy = Policy::read_topic(text).map_err(|detail| Error::Corrupt {
        name: topic.arn.to_string(),
        source: DecodeError::Corrupt { what: "a topic's policy", detail },
    });
    policy.map(Some)
}

/// Refuses attributes whose policy can't be evaluated.
fn check_policy(attributes: &Attributes) -> Result<()> {
    if attributes.policy.is_empty() {
        return Ok(());
    }
    let policy = Policy::read_topic(&attributes.policy).map_err(|reason| invalid("Policy", reason))?;
    match policy.keys().find(|key| !is_known_key(key) && *key != SOURCE_ARN) {
        Some(key) => Err(invalid("Policy", format!("conditions can't ask for {key}"))),
        None => Ok(()),
    }
}

/// Whether the caller may perform the action on the topic. The caller's policies and the topic's policy decide; if they say
/// nothing, ownership and capabilities do.
fn is_permitted(caller: &Caller, topic: &Topic, action: &str) -> Result<bool> {
    let policy = policy_of(topic)?;
    Ok(match caller.decision(policy.as_ref(), action, &topic.arn.to_string()) {
        Decision::Deny => caller.is_administrator(),
        Decision::Allow => true,
        Decision::Pass => {
            let perm = if action == "sns:GetTopicAttributes" { Perm::READ } else { Perm::WRITE };
            caller.is_user(&topic.owner) || caller.is_capable(caps::TOPICS, perm)
        }
    })
}

fn denied(action: &str, topic: &TopicArn) -> FormError {
    let message = format!("not authorized to perform {action} on {topic}");
    FormError::new(StatusCode::FORBIDDEN, "AuthorizationError", message)
}

/// Fails unless the caller may perform the action on the topic.
pub(super) fn check_permission(caller: &Caller, topic: &Topic, action: &str) -> Result<(), FormError> {
    if is_permitted(caller, topic, action)? { Ok(()) } else { Err(denied(action, &topic.arn)) }
}

/// Refuses a change that sends the topic's password elsewhere if the caller is only permitted to change the topic: the caller
/// would learn the password.
fn check_destination(caller: &Caller, topic: &Topic, attribute: &str) -> Result<(), FormError> {
    let attributes = &topic.attributes;
    let stays = match attribute {
        // Credentials in the endpoint itself are replaced together with it.
        "push-endpoint" => attributes.password.is_some(),
        _ => attributes.has_secret(),
    };
    let is_own = caller.is_user(&topic.owner) || caller.is_capable(caps::TOPICS, Perm::WRITE);
    if is_own || !stays || !DESTINATION.contains(&attribute) {
        return Ok(());
    }
    let message = format!("only the owner of {} may change where its password is sent", topic.arn);
    Err(FormError::new(StatusCode::FORBIDDEN, "AuthorizationError", message))
}

/// Whether the caller may name the topic in a configuration of that bucket.
pub(super) fn may_publish(caller: &Caller, topic: &Topic, bucket: &str) -> Result<bool> {
    let mut asking = caller.clone();
    asking.context.set(SOURCE_ARN, &format!("arn:aws:s3:::{bucket}"));
    is_permitted(&asking, topic, PUBLISH_PERMISSION)
}

impl Gateway {
    /// The ARN of the default tenant's topic with that name. Users have no tenants here.
    pub(crate) fn topic_arn(&self, name: &str) -> TopicArn {
        TopicArn { zonegroup: self.config.region.clone(), tenant: String::new(), name: name.to_owned() }
    }

    /// The topic with that tenant and name, as it was when the call began or later; `None` if there is none. The zone group is
    /// ignored.
    pub(crate) async fn cached_topic(&self, arn: &TopicArn) -> Result<Option<Arc<Topic>>> {
        let asking = async { Ok(self.stored_topic(arn).await?.map(|stored| Arc::new(stored.record.topic))) };
        let known = self.get_cached(&self.caches.topics, &key_of(arn), asking).await?;
        Ok(known.as_ref().clone())
    }

    async fn stored_topic(&self, arn: &TopicArn) -> Result<Option<StoredTopic>> {
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

    /// A page of the topics that the caller may see, and whether there are more.
    pub(super) async fn visible_topics(
        &self,
        caller: &Caller,
        after: Option<&str>,
        max: usize,
    ) -> Result<(Vec<Topic>, bool), FormError> {
        let (mut found, mut after) = (Vec::new(), after.map(str::to_owned));
        loop {
            let (topics, more) = self.topics(after.as_deref(), max as u64 + 1).await?;
            after = topics.last().map(|topic| topic.arn.name.clone());
            for topic in topics {
                // Evaluating expensive policies takes milliseconds, in which other requests may run.
                tokio::task::yield_now().await;
                match is_permitted(caller, &topic, "sns:GetTopicAttributes") {
                    Ok(true) if found.len() == max => return Ok((found, true)),
                    Ok(true) => found.push(topic),
                    // A damaged topic must not hide the others.
                    Ok(false) | Err(Error::Corrupt { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            if !more {
                return Ok((found, false));
            }
        }
    }

    /// The number of shards of a new topic. Includes options that the monitors were told before this call.
    async fn new_shards(&self) -> Result<u32> {
        // The monitors' answer comes after the configuration that they sent before it on the same connection.
        self.cluster.engine().refresh_map().await?;
        let text = self.cluster.option(SHARDS_OPTION);
        Ok(text.and_then(|text| text.parse().ok()).unwrap_or(DEFAULT_SHARDS))
    }

    /// Refuses an endpoint that this gateway must not connect to. `came_safely` tells whether the request that names it came by
    /// TLS or names no secret.
    fn check_endpoint(&self, topic: &str, attributes: &Attributes, came_safely: bool) -> Result<()> {
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

    /// Creates a topic, or replaces the attributes of an existing one, which keeps its owner and its number of shards.
    pub(super) async fn create_topic(
        &self,
        caller: &Caller,
        name: &str,
        attributes: &Attributes,
        came_safely: bool,
    ) -> Result<Topic, FormError> {
        const ACTION: &str = "sns:CreateTopic";
        check_policy(attributes)?;
        self.check_endpoint(name, attributes, came_safely)?;
        let (arn, notifier) = (self.topic_arn(name), self.serving_notifier()?);
        for _ in 0..ATTEMPTS {
            if self.stored_topic(&arn).await?.is_some() {
                let replacing = notifier.update_topic(&arn, |topic| -> Result<(), FormError> {
                    check_permission(caller, topic, ACTION)?;
                    Ok(topic.replace(attributes.clone()).map_err(Error::from)?)
                });
                match replacing.await {
                    // It was deleted meanwhile.
                    Err(failure) if failure.status == StatusCode::NOT_FOUND => continue,
                    Err(failure) => return self.notify_topic_change(&arn, Err(failure)).await,
                    Ok(stored) => {
                        return self.notify_topic_change(&arn, Ok(stored.record.topic.clone())).await;
                    }
                }
            }
            let allowed = match caller.decision(None, ACTION, &arn.to_string()) {
                Decision::Deny => caller.is_administrator(),
                Decision::Allow => true,
                // Every user may create topics. A role or a limited session may only if a policy allows it.
                Decision::Pass => caller.is_plain_user(),
            };
            if !allowed {
                return Err(denied(ACTION, &arn));
            }
            let mut id = [0; 16];
            getrandom::fill(&mut id).map_err(Error::no_random_numbers)?;
            let (id, owner) = (TopicId::from_random(id), &caller.assumed.user.id);
            let shards = self.new_shards().await?;
            let topic = Topic::new(id, arn.clone(), owner, now_ns(), shards, attributes.clone());
            let created = notifier.create_topic(topic.map_err(Error::from)?).await;
            match created.map_err(|error| FormError::from(Error::from(error))) {
                // Another request created one with that name.
                Ok(None) => {}
                Ok(Some(stored)) => {
                    return self.notify_topic_change(&arn, Ok(stored.record.topic.clone())).await;
                }
                Err(failure) => return self.notify_topic_change(&arn, Err(failure)).await,
            }
        }
        Err(Error::Contended(arn.to_string()).into())
    }

    /// Sets one attribute of a topic, or resets it to its default if the value is empty.
    pub(super) async fn set_topic_attribute(
        &self,
        caller: &Caller,
        arn: &TopicArn,
        (name, value): (&str, &str),
        came_safely: bool,
    ) -> Result<(), FormError> {
        let changing = self.serving_notifier()?.update_topic(arn, |topic| -> Result<(), FormError> {
            check_permission(caller, topic, "sns:SetTopicAttributes")?;
            check_destination(caller, topic, name)?;
            topic.set(name, value).map_err(Error::from)?;
            check_policy(&topic.attributes)?;
            Ok(self.check_endpoint(&arn.name, &topic.attributes, came_safely)?)
        });
        let changed = changing.await.map(drop);
        self.notify_topic_change(arn, changed).await
    }

    /// Changes the number of shards of a topic's queue.
    pub async fn reshard_topic(&self, name: &str, shards: u32) -> Result<Topic> {
        let arn = self.topic_arn(name);
        let resharded = self.serving_notifier()?.reshard_topic(&arn, shards).await;
        let told = self.notify_gateways(GatewayMessage::Topic(key_of(&arn))).await;
        let topic = resharded?.record.topic.clone();
        told.map(|()| topic)
    }

    /// Removes the topic with that name, its queues and the events in them. Returns whether there was one.
    pub async fn remove_topic(&self, name: &str) -> Result<bool> {
        let arn = self.topic_arn(name);
        let removed = self.serving_notifier()?.delete_topic(&arn).await;
        let told = self.notify_gateways(GatewayMessage::Topic(key_of(&arn))).await;
        let was_there = removed?;
        told.map(|()| was_there)
    }

    /// Like [`Gateway::remove_topic`], if the caller is permitted to. It is not an error if there is no such topic.
    pub(super) async fn remove_topic_for(&self, caller: &Caller, arn: &TopicArn) -> Result<(), FormError> {
        let Some(stored) = self.stored_topic(arn).await? else { return Ok(()) };
        let topic = &stored.record.topic;
        check_permission(caller, topic, "sns:DeleteTopic")?;
        // A topic created with its name meanwhile may belong to another user.
        let removed = self.serving_notifier()?.delete_topic_with_id(&topic.arn, topic.id).await;
        let told = self.notify_gateways(GatewayMessage::Topic(key_of(&topic.arn))).await;
        removed?;
        Ok(told?)
    }

    /// The notifier of this process, which serves topics' queues. Fails if there is none.
    pub(super) fn serving_notifier(&self) -> Result<&Arc<Notifier>> {
        self.notifier().ok_or_else(|| Error::Internal {
            what: "notifications",
            detail: "this process does nothing with topics' queues".to_owned(),
        })
    }

    /// Notifies all gateways that a topic has queued events.
    pub(super) async fn notify_topic_events(&self, arn: &TopicArn) {
        // Gateways also check by themselves.
        let _ = self.notify_gateways(GatewayMessage::Topic(key_of(arn))).await;
    }

    /// Notifies all gateways of a topic that was changed, or may have been.
    async fn notify_topic_change<T>(
        &self,
        arn: &TopicArn,
        outcome: Result<T, FormError>,
    ) -> Result<T, FormError> {
        if outcome.as_ref().map_or_else(|failure| failure.status.is_server_error(), |_| true) {
            let told = self.notify_gateways(GatewayMessage::Topic(key_of(arn))).await;
            if outcome.is_ok() {
                told?;
            }
        }
        outcome
    }
}

/// The ARN of the topic that [`GatewayMessage::Topic`] names.
pub(crate) fn arn_of_key(key: &str, zonegroup: &str) -> TopicArn {
    let (tenant, name) = key.split_once(':').unwrap_or(("", key));
    TopicArn { zonegroup: zonegroup.to_owned(), tenant: tenant.to_owned(), name: name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::s3::ConditionContext;
    use crate::session::CallerIdentity;
    use crate::user::User;

    fn caller(user: User) -> Caller {
        let assumed = CallerIdentity { user: Arc::new(user), role: None, policy: None };
        Caller { assumed, temporary: false, context: ConditionContext::default() }
    }

    #[test]
    fn only_owners_change_where_a_password_is_sent() {
        let topic = |pairs: &[(&str, &str)]| {
            let pairs: Vec<_> =
                pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let arn = TopicArn { zonegroup: "default".into(), tenant: String::new(), name: "t".into() };
            let (id, attributes) = (TopicId::from_random([1; 16]), Attributes::from_pairs(&pairs).unwrap());
            Topic::new(id, arn, "alice", 1, DEFAULT_SHARDS, attributes).unwrap()
        };
        let own = topic(&[("push-endpoint", "kafka://k"), ("user-name", "u"), ("password", "hunter2")]);
        let in_uri = topic(&[("push-endpoint", "kafka://u:hunter2@k")]);
        let bare = topic(&[("push-endpoint", "kafka://k")]);
        let bob = caller(User::new("bob", "Bob"));
        let may = |caller: &Caller, topic: &Topic, name| check_destination(caller, topic, name).is_ok();
        assert!(!may(&bob, &own, "push-endpoint") && !may(&bob, &own, "kafka-brokers"));
        assert!(!may(&bob, &in_uri, "use-ssl") && may(&bob, &in_uri, "push-endpoint"));
        assert!(may(&bob, &own, "OpaqueData") && may(&bob, &own, "password") && may(&bob, &bare, "use-ssl"));
        let admin = caller(User { admin: true, ..User::new("root", "Root") });
        for caller in [caller(User::new("alice", "Alice")), admin] {
            assert!(may(&caller, &own, "push-endpoint") && may(&caller, &in_uri, "verify-ssl"));
        }
    }
}
