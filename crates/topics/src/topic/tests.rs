use super::*;
use nacre_types::encoding;
use std::collections::BTreeSet;

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
fn stored_topics_without_queues_to_use_are_corrupt() {
    let good = topic(&QUEUED);
    let one = Generation { number: 1, shards: 1 };
    let is_corrupt = |topic: &Topic| {
        let read = encoding::decode::<Topic>(&encoding::encode(topic));
        matches!(read, Err(encoding::DecodeError::Corrupt { .. }))
    };
    for list in
        [vec![one, one], vec![Generation { shards: 0, ..one }], vec![Generation { number: u64::MAX, ..one }]]
    {
        assert!(is_corrupt(&Topic { generations: list.clone(), ..good.clone() }));
        assert!(is_corrupt(&Topic { removals: list, ..good.clone() }));
    }
    assert!(is_corrupt(&Topic { generations: Vec::new(), ..good.clone() }));
    assert!(!is_corrupt(&good));
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
    assert_eq!(topic.replace(attributes.clone()), Ok(QueueChange::None));
    assert_eq!(topic, Topic { attributes: attributes.clone(), version: before.version + 1, ..before });
    assert_eq!(topic.attributes.opaque_data, "", "what is not named has its default");
    // The same again is no change.
    let before = topic.clone();
    assert_eq!(topic.replace(attributes), Ok(QueueChange::None));
    assert_eq!(topic, before);
}

#[test]
fn switching_persistence_creates_and_removes_queues() {
    let mut topic = topic(&[("push-endpoint", "kafka://k")]);
    assert_eq!(topic.set("persistent", "true"), Ok(QueueChange::Create));
    assert_eq!(topic.set("persistent", "true"), Ok(QueueChange::None));
    assert_eq!(topic.set("push-endpoint", "kafka://other"), Ok(QueueChange::None));
    assert_eq!(topic.set("push-endpoint", ""), Ok(QueueChange::Remove));
    assert_eq!(topic.set("push-endpoint", "kafka://k"), Ok(QueueChange::Create));
    assert_eq!(topic.set("persistent", "false"), Ok(QueueChange::Remove));
    assert_eq!(topic.set("persistent", ""), Ok(QueueChange::None));
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
fn resharding_opens_generations_that_end_in_order() {
    let mut topic = topic(&QUEUED);
    assert_eq!(topic.generations(), [Generation { number: 0, shards: 11 }]);
    assert_eq!(topic.reshard(101), Ok(Generation { number: 1, shards: 101 }));
    assert_eq!(topic.reshard(11), Ok(Generation { number: 2, shards: 11 }));
    assert_eq!(topic.shards(), 11);
    assert!(!topic.retire(1), "an older one is there");
    assert!(topic.retire(0) && !topic.retire(0) && topic.retire(1));
    assert!(!topic.retire(2), "it takes new events");
    assert_eq!(topic.generations(), [Generation { number: 2, shards: 11 }]);
    let (generation, shard) = topic.queue_of("photos", "2026/01/cat.jpg");
    assert_eq!((generation.number, shard), (2, 10));
}

#[test]
fn generations_that_wait_are_bounded() {
    let mut topic = topic(&QUEUED);
    (1..MAX_GENERATIONS).for_each(|_| _ = topic.reshard(5).unwrap());
    assert!(matches!(topic.reshard(5), Err(Error::TooLarge { .. })));
    assert!(topic.retire(0));
    assert_eq!(topic.reshard(5).unwrap().number, MAX_GENERATIONS as u64);
}

#[test]
fn numbers_of_generations_are_never_used_again() {
    let mut topic = topic(&QUEUED);
    let mut seen = BTreeSet::from([topic.current().number]);
    topic.reshard(101).unwrap();
    assert!(seen.insert(topic.current().number));
    assert_eq!(topic.set("persistent", "false"), Ok(QueueChange::Remove));
    assert!(seen.insert(topic.current().number));
    assert_eq!((topic.generations().len(), topic.shards()), (1, 101));
    // Without queues there is nothing to wait for.
    topic.reshard(3).unwrap();
    assert!(seen.insert(topic.current().number));
    assert_eq!((topic.generations().len(), topic.shards()), (1, 3));
}

#[test]
fn queues_that_are_switched_off_are_listed_until_they_are_removed() {
    let mut topic = topic(&QUEUED);
    topic.reshard(101).unwrap();
    let old = topic.generations().to_vec();
    topic.set("persistent", "false").unwrap();
    assert_eq!(topic.removals(), old);
    // Also if queues are switched on again before.
    assert_eq!(topic.set("persistent", "true"), Ok(QueueChange::Create));
    assert_eq!((topic.removals(), topic.current()), (&old[..], Generation { number: 2, shards: 101 }));
    assert!(topic.removed(1) && !topic.removed(1) && topic.removed(0) && !topic.removed(2));
    assert!(topic.removals().is_empty());
}

#[test]
fn removals_that_wait_are_bounded() {
    let mut topic = topic(&QUEUED);
    for _ in 0..MAX_GENERATIONS {
        topic.set("persistent", "false").unwrap();
        topic.set("persistent", "true").unwrap();
    }
    let before = topic.clone();
    assert!(matches!(topic.set("persistent", "false"), Err(Error::TooLarge { .. })));
    assert_eq!(topic, before);
    // Deleting is always possible.
    assert_eq!(topic.delete(), QueueChange::Remove);
    assert_eq!(topic.removals().len(), MAX_GENERATIONS + 1);
}

#[test]
fn deleting_removes_all_queues_once() {
    let mut queued = topic(&QUEUED);
    queued.reshard(3).unwrap();
    assert_eq!(queued.delete(), QueueChange::Remove);
    assert!(queued.deleted);
    let numbers: Vec<_> = queued.removals().iter().map(|generation| generation.number).collect();
    assert_eq!(numbers, [0, 1]);
    assert_eq!(queued.delete(), QueueChange::Remove);
    assert_eq!(queued.removals().len(), 2);
    let mut plain = topic(&[("push-endpoint", "kafka://k")]);
    assert_eq!(plain.delete(), QueueChange::None);
    assert!(plain.deleted && plain.removals().is_empty());
}

#[test]
fn every_change_has_a_version_of_its_own() {
    let mut topic = topic(&QUEUED);
    let mut versions = vec![topic.version];
    topic.set("OpaqueData", "x").unwrap();
    versions.push(topic.version);
    topic.reshard(3).unwrap();
    versions.push(topic.version);
    topic.retire(0);
    versions.push(topic.version);
    topic.delete();
    versions.push(topic.version);
    topic.removed(1);
    versions.push(topic.version);
    assert_eq!(versions, [1, 2, 3, 4, 5, 6]);
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
        "generations": [{ "number": 0, "shards": 11 }],
    });
    assert_eq!(shown, wanted);
    assert_eq!(shown.to_string(), wanted.to_string(), "the order of the fields is Ceph's");
    assert_eq!(topic(&[]).describe()["dest"]["persistent_queue"], "");
}
