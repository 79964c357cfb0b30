//! The topic API: SNS's requests on the S3 port, as awscli and boto3 send them.

use super::topics::check_permission;
use crate::error::Error;
use crate::forms::{FormError, SignedForm};
use crate::gateway::Gateway;
use nacre_topics::arn::TopicArn;
use nacre_topics::attributes::Attributes;
use nacre_topics::sns::{self, LIST_PAGE, Request};
use nacre_topics::topic::Topic;
use std::sync::Arc;

/// Answers a form that asks for an action of SNS.
pub(crate) async fn answer(gateway: &Arc<Gateway>, form: &SignedForm) -> Result<String, FormError> {
    let request = Request::parse(&form.body).map_err(Error::from)?;
    let (caller, id) = (&form.caller, form.info.id());
    form.info.set_operation(request.action(), &caller.assumed.user.id);
    tracing::debug!(?request, user = caller.assumed.user.id, "rgw: a request for topics");
    let came_safely = form.secure || !request.contains_secret();
    let permission = request.permission();
    let shown = async |arn: &TopicArn| {
        let topic = gateway.cached_topic(arn).await?;
        let topic = topic.ok_or_else(|| Error::NoSuchTopic(arn.to_string()))?;
        check_permission(caller, &topic, permission)?;
        Ok::<Arc<Topic>, FormError>(topic)
    };
    Ok(match request {
        Request::CreateTopic { name, attributes } => {
            let attributes = Attributes::from_pairs(&attributes).map_err(Error::from)?;
            sns::create_topic(&gateway.create_topic(caller, &name, &attributes, came_safely).await?, id)
        }
        Request::DeleteTopic { topic } => {
            gateway.remove_topic_for(caller, &topic).await?;
            sns::delete_topic(id)
        }
        Request::GetTopic { topic } => sns::get_topic(&*shown(&topic).await?, id),
        Request::GetTopicAttributes { topic } => sns::get_topic_attributes(&*shown(&topic).await?, id),
        Request::SetTopicAttributes { topic, name, value } => {
            gateway.set_topic_attribute(caller, &topic, (&name, &value), came_safely).await?;
            sns::set_topic_attributes(id)
        }
        Request::ListTopics { after } => {
            let (topics, more) = gateway.visible_topics(caller, after.as_deref(), LIST_PAGE).await?;
            sns::list_topics(&topics, more, id)
        }
    })
}
