//! The topic API: SNS's requests on the S3 port, as awscli and boto3 send them, and who may make them.

use crate::caller::Caller;
use crate::conditions::is_known_key;
use crate::forms::{QueryError, SignedQuery};
use http::StatusCode;
use nacre_rgw::caps::{self, Perm};
use nacre_rgw::policy::{Decision, Policy};
use nacre_rgw::time::now_ns;
use nacre_rgw::{Error, Gateway, Result};
use nacre_topics::arn::TopicArn;
use nacre_topics::attributes::Attributes;
use nacre_topics::sns::{self, LIST_PAGE, PUBLISH_PERMISSION, Request};
use nacre_topics::topic::{Topic, TopicId};
use nacre_types::encoding::DecodeError;
use std::sync::Arc;

/// Attempts at a change of a topic that conflicts with concurrent changes.
const CHANGE_ATTEMPTS: usize = 16;
/// The condition key for the bucket whose configuration is to name the topic.
const SOURCE_ARN: &str = "aws:sourcearn";
/// Attributes that decide where a topic's password is sent, or how safely.
const DESTINATION: [&str; 6] =
    ["push-endpoint", "kafka-brokers", "use-ssl", "verify-ssl", "ca-location", "mechanism"];

/// Answers a form that asks for an action of SNS.
pub(crate) async fn answer(gateway: &Arc<Gateway>, form: &SignedQuery) -> Result<String, QueryError> {
    let request = Request::parse(&form.body).map_err(Error::from)?;
    let (caller, id) = (&form.caller, form.info.id());
    form.info.set_operation(request.action(), &caller.assumed.user.id);
    tracing::debug!(?request, user = caller.assumed.user.id, "rgw: a request for topics");
    let topics = TopicApi { gateway };
    let came_safely = form.secure || !request.contains_secret();
    let permission = request.permission();
    let shown = async |arn: &TopicArn| {
        let topic = gateway.topics.cached(arn).await?;
        let topic = topic.ok_or_else(|| Error::NoSuchTopic(arn.to_string()))?;
        check_permission(caller, &topic, permission)?;
        Ok::<Arc<Topic>, QueryError>(topic)
    };
    Ok(match request {
        Request::CreateTopic { name, attributes } => {
            let attributes = Attributes::from_pairs(&attributes).map_err(Error::from)?;
            sns::create_topic(&topics.create_topic(caller, &name, &attributes, came_safely).await?, id)
        }
        Request::DeleteTopic { topic } => {
            topics.remove_topic_for(caller, &topic).await?;
            sns::delete_topic(id)
        }
        Request::GetTopic { topic } => sns::get_topic(&*shown(&topic).await?, id),
        Request::GetTopicAttributes { topic } => sns::get_topic_attributes(&*shown(&topic).await?, id),
        Request::SetTopicAttributes { topic, name, value } => {
            topics.set_topic_attribute(caller, &topic, (&name, &value), came_safely).await?;
            sns::set_topic_attributes(id)
        }
        Request::ListTopics { after } => {
            let (found, more) = topics.visible_topics(caller, after.as_deref(), LIST_PAGE).await?;
            sns::list_topics(&found, more, id)
        }
    })
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
    match policy.condition_keys().find(|key| !is_known_key(key) && *key != SOURCE_ARN) {
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
            caller.is_user(&topic.owner) || caller.has_capability(caps::TOPICS, perm)
        }
    })
}

fn denied(action: &str, topic: &TopicArn) -> QueryError {
    let message = format!("not authorized to perform {action} on {topic}");
    QueryError::new(StatusCode::FORBIDDEN, "AuthorizationError", message)
}

/// Fails unless the caller may perform the action on the topic.
pub(crate) fn check_permission(caller: &Caller, topic: &Topic, action: &str) -> Result<(), QueryError> {
    if is_permitted(caller, topic, action)? { Ok(()) } else { Err(denied(action, &topic.arn)) }
}

/// Refuses a change that sends the topic's password elsewhere if the caller is only permitted to change the topic: the caller
/// would learn the password.
fn check_destination(caller: &Caller, topic: &Topic, attribute: &str) -> Result<(), QueryError> {
    let attributes = &topic.attributes;
    let stays = match attribute {
        // Credentials in the endpoint itself are replaced together with it.
        "push-endpoint" => attributes.password.is_some(),
        _ => attributes.has_secret(),
    };
    let is_own = caller.is_user(&topic.owner) || caller.has_capability(caps::TOPICS, Perm::WRITE);
    if is_own || !stays || !DESTINATION.contains(&attribute) {
        return Ok(());
    }
    let message = format!("only the owner of {} may change where its password is sent", topic.arn);
    Err(QueryError::new(StatusCode::FORBIDDEN, "AuthorizationError", message))
}

/// Whether the caller may name the topic in a configuration of that bucket.
pub(crate) fn may_publish(caller: &Caller, topic: &Topic, bucket: &str) -> Result<bool> {
    let mut asking = caller.clone();
    asking.context.set(SOURCE_ARN, &format!("arn:aws:s3:::{bucket}"));
    is_permitted(&asking, topic, PUBLISH_PERMISSION)
}

/// Topics, as a caller may see and change them.
struct TopicApi<'a> {
    gateway: &'a Gateway,
}

impl TopicApi<'_> {
    /// A page of the topics that the caller may see, and whether there are more.
    async fn visible_topics(
        &self,
        caller: &Caller,
        after: Option<&str>,
        max: usize,
    ) -> Result<(Vec<Topic>, bool), QueryError> {
        let (mut found, mut after) = (Vec::new(), after.map(str::to_owned));
        loop {
            let (topics, more) = self.gateway.topics.list(after.as_deref(), max as u64 + 1).await?;
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

    /// Creates a topic, or replaces the attributes of an existing one, which keeps its owner and its number of shards.
    async fn create_topic(
        &self,
        caller: &Caller,
        name: &str,
        attributes: &Attributes,
        came_safely: bool,
    ) -> Result<Topic, QueryError> {
        const ACTION: &str = "sns:CreateTopic";
        check_policy(attributes)?;
        self.gateway.topics.check_endpoint(name, attributes, came_safely)?;
        let (arn, notifier) = (self.gateway.topics.arn(name), self.gateway.topics.require_notifier()?);
        for _ in 0..CHANGE_ATTEMPTS {
            if self.gateway.topics.stored(&arn).await?.is_some() {
                let replacing = notifier.update_topic(&arn, |topic| -> Result<(), QueryError> {
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
            let shards = self.gateway.topics.default_shard_count().await?;
            let topic = Topic::new(id, arn.clone(), owner, now_ns(), shards, attributes.clone());
            let created = notifier.create_topic(topic.map_err(Error::from)?).await;
            match created.map_err(|error| QueryError::from(Error::from(error))) {
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
    async fn set_topic_attribute(
        &self,
        caller: &Caller,
        arn: &TopicArn,
        (name, value): (&str, &str),
        came_safely: bool,
    ) -> Result<(), QueryError> {
        let changing =
            self.gateway.topics.require_notifier()?.update_topic(arn, |topic| -> Result<(), QueryError> {
                check_permission(caller, topic, "sns:SetTopicAttributes")?;
                check_destination(caller, topic, name)?;
                topic.set(name, value).map_err(Error::from)?;
                check_policy(&topic.attributes)?;
                Ok(self.gateway.topics.check_endpoint(&arn.name, &topic.attributes, came_safely)?)
            });
        let changed = changing.await.map(drop);
        self.notify_topic_change(arn, changed).await
    }

    /// Removes a topic if the caller is permitted to. It is not an error if there is no such topic.
    async fn remove_topic_for(&self, caller: &Caller, arn: &TopicArn) -> Result<(), QueryError> {
        let Some(stored) = self.gateway.topics.stored(arn).await? else { return Ok(()) };
        let topic = &stored.record.topic;
        check_permission(caller, topic, "sns:DeleteTopic")?;
        // A topic created with its name meanwhile may belong to another user.
        let removed =
            self.gateway.topics.require_notifier()?.delete_topic_with_id(&topic.arn, topic.id).await;
        let told = self.gateway.topics.notify_change(&topic.arn).await;
        removed?;
        Ok(told?)
    }

    /// Notifies all gateways of a topic that was changed, or may have been.
    async fn notify_topic_change<T>(
        &self,
        arn: &TopicArn,
        outcome: Result<T, QueryError>,
    ) -> Result<T, QueryError> {
        if outcome.as_ref().map_or_else(|failure| failure.status.is_server_error(), |_| true) {
            let told = self.gateway.topics.notify_change(arn).await;
            if outcome.is_ok() {
                told?;
            }
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conditions::ConditionContext;
    use nacre_rgw::User;
    use nacre_rgw::session::CallerIdentity;
    use nacre_topics::names::DEFAULT_SHARDS;

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
