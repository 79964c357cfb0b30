//! The description of a topic in replies and commands, in Ceph's formats. Passwords are masked everywhere.

use super::Topic;
use crate::attributes::{Attributes, DEFAULT_NUMBER};
use crate::names;
use crate::xml::Writer;
use serde_json::{Value, json};

/// A number as Ceph prints it: `None` for the default.
fn number(value: Option<u32>) -> String {
    value.map_or_else(|| DEFAULT_NUMBER.to_owned(), |value| value.to_string())
}

fn address(attributes: &Attributes) -> String {
    attributes.push_endpoint.as_ref().map(ToString::to_string).unwrap_or_default()
}

impl Topic {
    /// The `EndPoint` attribute of GetTopicAttributes, a JSON text.
    fn endpoint_json(&self) -> String {
        let attributes = &self.attributes;
        json!({
            "EndpointAddress": address(attributes),
            "EndpointArgs": attributes.endpoint_args(),
            "EndpointTopic": self.arn.name,
            "HasStoredSecret": attributes.has_secret(),
            "Persistent": attributes.persistent,
            "TimeToLive": number(attributes.time_to_live),
            "MaxRetries": number(attributes.max_retries),
            "RetrySleepDuration": number(attributes.retry_sleep_duration),
        })
        .to_string()
    }

    /// The entries of GetTopicAttributes.
    pub(crate) fn attribute_entries(&self) -> [(&'static str, String); 6] {
        [
            ("User", self.owner.clone()),
            ("Name", self.arn.name.clone()),
            ("EndPoint", self.endpoint_json()),
            ("TopicArn", self.arn.to_string()),
            ("OpaqueData", self.attributes.opaque_data.clone()),
            ("Policy", self.attributes.policy.clone()),
        ]
    }

    /// The elements of a topic in GetTopic and ListTopics.
    pub(crate) fn write(&self, xml: &mut Writer) {
        let attributes = &self.attributes;
        // Ceph's format for booleans in XML.
        let boolean = |value| if value { "True" } else { "False" };
        xml.text("User", &self.owner).text("Name", &self.arn.name);
        xml.element("EndPoint", |part| {
            part.text("EndpointAddress", &address(attributes))
                .text("EndpointArgs", &attributes.endpoint_args())
                .text("EndpointTopic", &self.arn.name)
                .text("HasStoredSecret", boolean(attributes.has_secret()))
                .text("Persistent", boolean(attributes.persistent))
                .text("TimeToLive", &number(attributes.time_to_live))
                .text("MaxRetries", &number(attributes.max_retries))
                .text("RetrySleepDuration", &number(attributes.retry_sleep_duration));
        });
        xml.text("TopicArn", &self.arn.to_string())
            .text("OpaqueData", &attributes.opaque_data)
            .text("Policy", &attributes.policy);
    }

    /// The output of `radosgw-admin topic get`, with Nacre's own fields `id` and `shards` after Ceph's.
    pub fn describe(&self) -> Value {
        let attributes = &self.attributes;
        let queue = if attributes.is_queued() {
            names::queue(&self.arn.tenant, &self.arn.name, 0)
        } else {
            String::new()
        };
        json!({
            "user": self.owner,
            "name": self.arn.name,
            "dest": {
                "push_endpoint": address(attributes),
                "push_endpoint_args": attributes.endpoint_args(),
                "push_endpoint_topic": self.arn.name,
                "stored_secret": attributes.has_secret(),
                "persistent": attributes.persistent,
                "persistent_queue": queue,
                "time_to_live": number(attributes.time_to_live),
                "max_retries": number(attributes.max_retries),
                "retry_sleep_duration": number(attributes.retry_sleep_duration),
            },
            "arn": self.arn.to_string(),
            "opaqueData": attributes.opaque_data,
            "policy": attributes.policy,
            "id": self.id.to_string(),
            "shards": self.shards,
        })
    }
}
