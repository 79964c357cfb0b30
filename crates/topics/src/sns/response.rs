//! Replies of the topic API.

use crate::topic::Topic;
use crate::xml::Writer;

const NAMESPACE: &str = "https://sns.amazonaws.com/doc/2010-03-31/";

/// A reply: the element of the action, with its result and the request's id.
fn answer(action: &str, request_id: &str, result: impl FnOnce(&mut Writer)) -> String {
    let mut document = Writer::new();
    document.element_in_namespace(&format!("{action}Response"), NAMESPACE, |root| {
        result(root);
        root.element("ResponseMetadata", |metadata| _ = metadata.text("RequestId", request_id));
    });
    document.finish()
}

/// The reply to CreateTopic.
pub fn create_topic(topic: &Topic, request_id: &str) -> String {
    answer("CreateTopic", request_id, |root| {
        root.element("CreateTopicResult", |result| _ = result.text("TopicArn", &topic.arn.to_string()));
    })
}

/// The reply to DeleteTopic.
pub fn delete_topic(request_id: &str) -> String {
    answer("DeleteTopic", request_id, |_| ())
}

/// The reply to SetTopicAttributes.
pub fn set_topic_attributes(request_id: &str) -> String {
    answer("SetTopicAttributes", request_id, |_| ())
}

/// The reply to GetTopic.
pub fn get_topic(topic: &Topic, request_id: &str) -> String {
    answer("GetTopic", request_id, |root| {
        root.element("GetTopicResult", |result| _ = result.element("Topic", |part| topic.write(part)));
    })
}

/// The reply to GetTopicAttributes.
pub fn get_topic_attributes(topic: &Topic, request_id: &str) -> String {
    answer("GetTopicAttributes", request_id, |root| {
        root.element("GetTopicAttributesResult", |result| {
            result.element("Attributes", |attributes| {
                for (key, value) in topic.attribute_entries() {
                    attributes.element("entry", |entry| _ = entry.text("key", key).text("value", &value));
                }
            });
        });
    })
}

/// The reply to ListTopics: a page of topics in the order of their names. `has_more` tells whether more topics follow; the
/// token for the next page is the name of this page's last topic.
pub fn list_topics(topics: &[Topic], has_more: bool, request_id: &str) -> String {
    answer("ListTopics", request_id, |root| {
        root.element("ListTopicsResult", |result| {
            result.element("Topics", |list| {
                for topic in topics {
                    list.element("member", |member| topic.write(member));
                }
            });
            if let (true, Some(last)) = (has_more, topics.last()) {
                result.text("NextToken", &last.arn.name);
            }
        });
    })
}

/// The reply to a failed request, with SNS's codes: `NotFound`, `AuthorizationError`, and those of
/// [`Error::sns_code`](crate::Error::sns_code). `status` is the HTTP status of the reply.
pub fn error(status: u16, code: &str, message: &str, request_id: &str) -> String {
    let kind = if status >= 500 { "Receiver" } else { "Sender" };
    let mut document = Writer::new();
    document.element_in_namespace("ErrorResponse", NAMESPACE, |root| {
        root.element("Error", |part| _ = part.text("Type", kind).text("Code", code).text("Message", message));
        root.text("RequestId", request_id);
    });
    document.finish()
}
