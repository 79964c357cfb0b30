use super::*;
use crate::testing::{TestCluster, create_bucket, index_on, index_parts};
use nacre_index::record::Attributes;
use nacre_index::seq::HeadIncarnation;
use nacre_topics::arn::TopicArn;
use nacre_topics::notification_config::{MetadataTagFilter, NotificationConfig};
use nacre_topics::topic::TopicId;

fn candidate(configuration: &str, filter: MetadataTagFilter) -> PendingEvent {
    PendingEvent {
        topic_id: TopicId::from_random([1; 16]),
        topic: TopicArn { zonegroup: "default".into(), tenant: String::new(), name: "t".into() },
        configuration: configuration.to_owned(),
        event: EventType::ObjectCreatedPut,
        filter,
    }
}

fn subject() -> EventSubject {
    let attributes =
        Attributes { metadata: vec![("m".into(), "v".into())], tags: vec![("t".into(), "w".into())] };
    EventSubject { version_id: "v1".into(), size: 5, etag: "e".into(), attributes: Some(attributes) }
}

#[test]
fn the_index_gets_the_events_of_persistent_topics_only() {
    let pending = PendingEvents {
        candidates: vec![
            candidate("a", MetadataTagFilter::default()),
            candidate("b", MetadataTagFilter::default()),
        ],
        ..PendingEvents::default()
    };
    let queued = ChangeEvents { queued: Some(pending.clone()), ..ChangeEvents::none() };
    let event = queued.index_event(subject()).unwrap();
    assert_eq!((event.candidates, &event.subject), (vec!["a".to_owned(), "b".to_owned()], &subject()));
    assert_eq!(encoding::decode::<PendingEvents>(&event.fixed).unwrap(), pending);
    assert!(queued.wants_attributes() && !queued.is_none());
    let immediate = ChangeEvents { immediate: Some(pending), ..ChangeEvents::none() };
    assert!(immediate.index_event(subject()).is_none() && immediate.wants_attributes());
    assert!(ChangeEvents::none().is_none() && !ChangeEvents::none().wants_attributes());
    assert!(ChangeEvents::none().index_event(subject()).is_none());
}

#[test]
fn events_describe_the_version_that_the_change_was_about() {
    let seq = Seq { incarnation: HeadIncarnation { generation: 1, version: 2 }, number: 3 };
    let object = object_of(seq, &subject());
    assert_eq!((object.size, object.etag.as_str(), object.version_id.as_str()), (5, "e", "v1"));
    assert_eq!(object.sequencer, seq.to_string());
    assert_eq!((&object.metadata[0].0[..], &object.tags[0].1[..]), ("m", "w"));
    let bare = object_of(seq, &EventSubject { attributes: None, ..subject() });
    assert!(bare.metadata.is_empty() && bare.tags.is_empty());
}

#[test]
fn an_event_without_metadata_and_tags_is_not_larger_than_was_reckoned() {
    let text = |len| "x".repeat(len);
    let request = RequestInfo {
        time_ns: u64::MAX,
        user: text(64),
        source_ip: text(39),
        id: text(60),
        host_id: text(40),
        position: u32::MAX,
    };
    let bucket =
        BucketInfo { name: text(63), owner: text(64), id: text(50), tenant: text(20), zonegroup: text(30) };
    let mut pending = PendingEvents { request, bucket, candidates: Vec::new() };
    let (key, event) = (text(1024), candidate(&text(255), MetadataTagFilter::default()));
    let reckoned = bytes_before(&pending, &event, &key);
    pending.candidates.push(event);
    let number = u64::MAX;
    let seq = Seq { incarnation: HeadIncarnation { generation: u32::MAX, version: number }, number };
    let subject = EventSubject {
        version_id: text(32),
        size: number,
        etag: format!("{}-10000", text(32)),
        attributes: None,
    };
    let found = pending.complete(&text(32), &key, &object_of(seq, &subject));
    let size = encoding::encode(&found[0].event).len() as u64;
    assert!(size <= reckoned && size + 100 > reckoned, "{size} of {reckoned}");
}

#[test]
fn causes_of_one_request_differ_by_position() {
    let request = RequestInfo { id: "tx".into(), user: "alice".into(), ..RequestInfo::default() };
    let cause = Cause { request };
    let second = cause.nth_change(1).request;
    assert_eq!((second.id.as_str(), second.user.as_str(), second.position), ("tx", "alice", 1));
    assert!(second.time_ns > 0);
}

#[test]
fn configurations_of_a_bucket_outlive_their_topics() {
    let cluster = TestCluster::new();
    let (connection, peers) = cluster.connect();
    cluster.run_on_tokio(async {
        let parts = index_parts(&connection, &peers);
        let bucket = create_bucket(&parts, "b", "alice").await;
        let notifications = Notifications::new(&parts, &index_on(&parts).1, "default");
        let text = "<NotificationConfiguration><TopicConfiguration><Id>n</Id><Topic>arn:aws:sns:default::t</Topic>\
            </TopicConfiguration></NotificationConfiguration>";
        let config = NotificationConfig::from_xml(text.as_bytes()).unwrap();
        notifications.set("b", &config).await.unwrap();
        assert_eq!(parts.notifying.get(&bucket.id).await.unwrap().unwrap().name, "b");
        let shown = notifications.describe("b", Some("n")).await.unwrap();
        assert_eq!(shown["TopicArn"], "arn:aws:sns:default::t");
        let now = parts.buckets.record("b").await.unwrap();
        assert!(now.notifications.is_some());
        let cause = notifications.administration_cause();
        let types = &[EventType::ObjectCreatedPut];
        assert!(notifications.change_events(&now, "k", types, &cause).await.unwrap().is_none());
        notifications.remove("b", Some("n")).await.unwrap();
        assert!(parts.buckets.record("b").await.unwrap().notifications.is_none());
        assert!(notifications.describe("b", Some("n")).await.is_err());
    });
}
