//! The events of a change in progress.
//!
//! Before a change, the gateway decides by type and key which configurations may have an event of it, and stores them with
//! the change's index entry as [`PendingEvents`]. The gateway that finishes the change (after a crash another one) adds
//! what is known only then: the version that was created or removed. The configurations are not read again: those from
//! before the change apply.

use crate::arn::TopicArn;
use crate::event::EventType;
use crate::notification_config::{Candidate, MetadataTagFilter};
use crate::record::{BucketInfo, Event, ObjectInfo, RequestInfo};
use crate::topic::TopicId;
use nacre_types::encoding::Versioned;
use serde::{Deserialize, Serialize};

/// The properties of a change's events that are known before the change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingEvents {
    /// The request.
    pub request: RequestInfo,
    /// The bucket.
    pub bucket: BucketInfo,
    /// The events that the change may have. An event's index is its ordinal.
    pub candidates: Vec<PendingEvent>,
}

/// An event that a change may have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingEvent {
    /// The id of the topic that had the name before the change. If a newer topic has the name by now, the event is dropped
    /// with the queues of the old topic.
    pub topic_id: TopicId,
    /// The topic's ARN.
    pub topic: TopicArn,
    /// The id of the configuration.
    pub configuration: String,
    /// The type of the event.
    pub event: EventType,
    /// The rules that the version must satisfy.
    pub filter: MetadataTagFilter,
}

/// An event that a change has, and its topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicEvent {
    /// The topic's id.
    pub topic_id: TopicId,
    /// The topic's ARN.
    pub topic: TopicArn,
    /// The event.
    pub event: Event,
}

impl Versioned for PendingEvents {
    const NAME: &'static str = "pending events";
}

impl PendingEvent {
    /// Creates a candidate whose topic has the id `topic_id`.
    pub fn new(candidate: &Candidate<'_>, topic_id: TopicId) -> PendingEvent {
        let configuration = candidate.configuration;
        PendingEvent {
            topic_id,
            topic: configuration.topic.clone(),
            configuration: configuration.id.clone(),
            event: candidate.event,
            filter: configuration.attributes.clone(),
        }
    }
}

impl PendingEvents {
    /// Whether the change has no event, regardless of the version that it creates or removes.
    pub fn is_empty(&self) -> bool {
        self.candidates.is_empty()
    }

    /// The events of the change `change` to `key`, which took effect and created or removed the version `object`. The same
    /// arguments give the same events, so duplicates from finishing a change twice can be recognized by their ids.
    pub fn complete(&self, change: &str, key: &str, object: &ObjectInfo) -> Vec<TopicEvent> {
        let numbered = self.candidates.iter().zip(0..=u16::MAX);
        let selected = numbered.filter(|(pending, _)| pending.filter.matches(&object.metadata, &object.tags));
        selected
            .map(|(pending, ordinal)| TopicEvent {
                topic_id: pending.topic_id,
                topic: pending.topic.clone(),
                event: Event {
                    event: pending.event,
                    configuration: pending.configuration.clone(),
                    change: change.to_owned(),
                    ordinal,
                    request: self.request.clone(),
                    bucket: self.bucket.clone(),
                    key: key.to_owned(),
                    object: object.clone(),
                },
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notification_config::{Matcher, NotificationConfig};
    use nacre_types::encoding;
    use std::slice::from_ref;

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    /// Three configurations for PUT: one filters by metadata, one by tags, and one has no filter.
    fn pending() -> PendingEvents {
        let part = |id: &str, filter: &str| {
            let topic = format!("<Topic>arn:aws:sns:default::{id}</Topic>");
            format!("<TopicConfiguration><Id>{id}</Id>{topic}{filter}</TopicConfiguration>")
        };
        let rule = |kind: &str, name: &str| {
            let rule = format!("<FilterRule><Name>{name}</Name><Value>v</Value></FilterRule>");
            format!("<Filter><{kind}>{rule}</{kind}></Filter>")
        };
        let parts =
            [part("a", &rule("S3Metadata", "x-amz-meta-m")), part("b", &rule("S3Tags", "t")), part("c", "")];
        let text = format!("<NotificationConfiguration>{}</NotificationConfiguration>", parts.concat());
        let matcher = Matcher::new(NotificationConfig::from_xml(text.as_bytes()).unwrap()).unwrap();
        let candidates = matcher.candidates(&[EventType::ObjectCreatedPut], "k");
        let id_of =
            |candidate: &Candidate<'_>| TopicId::from_random([candidate.configuration.id.as_bytes()[0]; 16]);
        PendingEvents {
            request: RequestInfo { user: "alice".into(), ..RequestInfo::default() },
            bucket: BucketInfo { name: "photos".into(), ..BucketInfo::default() },
            candidates: candidates.map(|found| PendingEvent::new(&found, id_of(&found))).collect(),
        }
    }

    fn configurations(object: &ObjectInfo) -> Vec<(String, u16)> {
        let events = pending().complete("change", "k", object);
        events.into_iter().map(|found| (found.event.configuration, found.event.ordinal)).collect()
    }

    #[test]
    fn metadata_and_tags_of_the_version_decide_which_events_there_are() {
        let object = |metadata: &[(String, String)], tags: &[(String, String)]| ObjectInfo {
            metadata: metadata.to_vec(),
            tags: tags.to_vec(),
            ..ObjectInfo::default()
        };
        let (m, t) = (pair("m", "v"), pair("t", "v"));
        let named = |id: &str, ordinal| (id.to_owned(), ordinal);
        assert_eq!(configurations(&object(&[], &[])), [named("c", 2)]);
        assert_eq!(configurations(&object(from_ref(&m), &[])), [named("a", 0), named("c", 2)]);
        assert_eq!(configurations(&object(&[], from_ref(&t))), [named("b", 1), named("c", 2)]);
        assert_eq!(configurations(&object(&[m], &[t])), [named("a", 0), named("b", 1), named("c", 2)]);
    }

    #[test]
    fn events_carry_what_was_known_before_and_after_the_change() {
        let object = ObjectInfo { size: 5, etag: "e".into(), sequencer: "7".into(), ..ObjectInfo::default() };
        let found = pending().complete("change", "k", &object);
        let [only] = &found[..] else { panic!("{found:?}") };
        assert_eq!((only.topic_id, only.topic.name.as_str()), (TopicId::from_random([b'c'; 16]), "c"));
        assert_eq!((only.event.request.user.as_str(), only.event.bucket.name.as_str()), ("alice", "photos"));
        assert_eq!((only.event.key.as_str(), &only.event.object), ("k", &object));
        assert_eq!(only.event.event, EventType::ObjectCreatedPut);
    }

    #[test]
    fn a_change_that_another_gateway_ends_has_the_same_events() {
        let stored: PendingEvents = encoding::decode(&encoding::encode(&pending())).unwrap();
        assert_eq!(stored, pending());
        let object = ObjectInfo { size: 5, ..ObjectInfo::default() };
        assert_eq!(stored.complete("change", "k", &object), pending().complete("change", "k", &object));
        assert!(!stored.is_empty() && PendingEvents::default().is_empty());
        assert!(PendingEvents::default().complete("change", "k", &object).is_empty());
    }
}
