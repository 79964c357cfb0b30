use super::*;
use nacre_types::encoding;

fn topic(list: &[(&str, &str)]) -> Topic {
    let pairs: Vec<_> = list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let arn = "arn:aws:sns:default::fishtopic".parse().unwrap();
    let attributes = Attributes::from_pairs(&pairs).unwrap();
    Topic::new(TopicId::from_random([7; 16]), arn, "testid", 5, names::DEFAULT_SHARDS, attributes).unwrap()
}

const QUEUED: [(&str, &str); 2] = [("push-endpoint", "kafka://k"), ("persistent", "true")];

#[test]
fn topics_are_stored_whole() {
    let mut topic = topic(&[
        ("push-endpoint", "amqps://bob:hunter2@mq/v"),
        ("amqp-exchange", "ex1"),
        ("persistent", "true"),
        ("password", "p"),
        ("time_to_live", "9"),
    ]);
    topic.reshard(3).unwrap();
    let read: Topic = encoding::decode(&encoding::encode(&topic)).unwrap();
    assert_eq!(read, topic);
    assert_eq!(read.attributes.push_endpoint.as_ref().unwrap().reveal(), "amqps://bob:hunter2@mq/v");
}

#[test]
fn stored_topics_with_shards_that_none_can_have_are_corrupt() {
    for shards in [0, names::MAX_SHARDS + 1] {
        let read = encoding::decode::<Topic>(&encoding::encode(&Topic { shards, ..topic(&QUEUED) }));
        assert!(matches!(read, Err(encoding::DecodeError::Corrupt { .. })));
    }
}

#[test]
fn ids_are_written_and_read() {
    let id = TopicId::from_random([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0xff]);
    assert_eq!(id.to_string(), "000102030405060708090a0b0c0d0eff");
    assert_eq!(id.to_string().parse::<TopicId>(), Ok(id));
    for text in ["", "7", "000102030405060708090A0B0C0D0EFF", "+00102030405060708090a0b0c0d0eff"] {
        assert!(text.parse::<TopicId>().is_err(), "{text}");
    }
}

#[test]
fn attributes_that_do_not_go_together_make_no_topic() {
    let make = |shards, name: &str, list: &[(&str, &str)]| {
        let pairs: Vec<_> =
            list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let arn = TopicArn { zonegroup: "default".into(), tenant: String::new(), name: name.into() };
        Topic::new(
            TopicId::from_random([7; 16]),
            arn,
            "u",
            0,
            shards,
            Attributes::from_pairs(&pairs).unwrap(),
        )
    };
    assert!(make(11, "t", &QUEUED).is_ok());
    assert!(make(0, "t", &QUEUED).is_err());
    assert!(make(11, "t.1", &QUEUED).is_err());
    assert!(make(11, "t", &[("push-endpoint", "amqp://mq")]).is_err());
}

#[test]
fn creating_an_existing_topic_replaces_attributes_and_keeps_the_rest() {
    let mut topic = topic(&[("push-endpoint", "kafka://k"), ("persistent", "true"), ("OpaqueData", "x")]);
    let before = topic.clone();
    let pairs =
        [("push-endpoint".to_owned(), "http://sink".to_owned()), ("persistent".to_owned(), "1".to_owned())];
    let attributes = Attributes::from_pairs(&pairs).unwrap();
    assert_eq!(topic.replace(attributes.clone()), Ok(()));
    assert_eq!(topic, Topic { attributes: attributes.clone(), version: before.version + 1, ..before });
    assert_eq!(topic.attributes.opaque_data, "", "what is not named has its default");
    // Setting the same attributes again is not a change.
    let before = topic.clone();
    assert_eq!(topic.replace(attributes), Ok(()));
    assert_eq!(topic, before);
}

#[test]
fn a_topic_has_queues_while_it_is_persistent_and_has_an_endpoint() {
    let mut topic = topic(&[("push-endpoint", "kafka://k")]);
    let mut queued = Vec::new();
    for (name, value) in [("persistent", "true"), ("push-endpoint", ""), ("push-endpoint", "kafka://other")] {
        topic.set(name, value).unwrap();
        queued.push(topic.is_queued());
    }
    assert_eq!(queued, [true, false, true]);
    assert_eq!(topic.shards, names::DEFAULT_SHARDS);
}

#[test]
fn a_refused_change_changes_nothing() {
    let mut topic = topic(&QUEUED);
    let before = topic.clone();
    assert!(topic.set("push-endpoint", "amqp://mq").is_err());
    assert!(topic.set("persistent", "perhaps").is_err());
    assert!(topic.set("Nothing", "x").is_err());
    assert!(topic.reshard(0).is_err());
    assert_eq!(topic, before);
}

#[test]
fn every_change_has_a_version_of_its_own() {
    let mut topic = topic(&QUEUED);
    let mut versions = vec![topic.version];
    topic.set("OpaqueData", "x").unwrap();
    versions.push(topic.version);
    topic.reshard(3).unwrap();
    versions.push(topic.version);
    topic.reshard(3).unwrap();
    versions.push(topic.version);
    assert_eq!(versions, [1, 2, 3, 3]);
}

#[test]
fn topics_are_described_as_radosgw_admin_does() {
    let shown = topic(&[
        ("push-endpoint", "kafka://bob:hunter2@k:9093"),
        ("use-ssl", "true"),
        ("persistent", "true"),
        ("max_retries", "3"),
        ("OpaqueData", "me@example.com"),
    ])
    .describe();
    let wanted = serde_json::json!({
        "user": "testid",
        "name": "fishtopic",
        "dest": {
            "push_endpoint": "kafka://bob:****@k:9093",
            "push_endpoint_args": "use-ssl=true",
            "push_endpoint_topic": "fishtopic",
            "stored_secret": true,
            "persistent": true,
            "persistent_queue": ":fishtopic",
            "time_to_live": "None",
            "max_retries": "3",
            "retry_sleep_duration": "None",
        },
        "arn": "arn:aws:sns:default::fishtopic",
        "opaqueData": "me@example.com",
        "policy": "",
        "id": "07070707070707070707070707070707",
        "shards": 11,
    });
    assert_eq!(shown, wanted);
    assert_eq!(shown.to_string(), wanted.to_string(), "the order of the fields is Ceph's");
    assert_eq!(topic(&[]).describe()["dest"]["persistent_queue"], "");
}
