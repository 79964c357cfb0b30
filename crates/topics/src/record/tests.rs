use super::*;
use nacre_types::encoding;
use serde_json::Value;
use std::collections::BTreeSet;

/// The example in Ceph's documentation.
fn example() -> Event {
    Event {
        event: EventType::ObjectCreatedPut,
        configuration: "mynotif1".into(),
        change: "0123456789abcdef".into(),
        ordinal: 0,
        request: RequestInfo {
            time_ns: 1_574_430_455_124_724_999,
            user: "tester".into(),
            source_ip: String::new(),
            id: "503a4c37-85eb-47cd-8681-2817e80b4281.5330.903595".into(),
            host_id: "14d2-zone1-zonegroup1".into(),
            position: 0,
        },
        bucket: BucketInfo {
            name: "mybucket1".into(),
            owner: "tester".into(),
            id: "503a4c37-85eb-47cd-8681-2817e80b4281.5332.38".into(),
            tenant: String::new(),
            zonegroup: "zonegroup1".into(),
        },
        key: "myimage1.jpg".into(),
        object: ObjectInfo {
            size: 1024,
            etag: "37b51d194a7513e45b56f6524f2d51f2".into(),
            version_id: String::new(),
            sequencer: "0000000700000000000010320000000000000001".into(),
            metadata: Vec::new(),
            tags: Vec::new(),
        },
    }
}

fn changed(change: impl FnOnce(&mut Event)) -> Event {
    let mut event = example();
    change(&mut event);
    event
}

fn delivery<'a>(event: &'a Event, opaque_data: &'a str) -> DeliveredEvent<'a> {
    DeliveredEvent { event, opaque_data, is_replayed: false }
}

fn text(deliveries: &[DeliveredEvent<'_>]) -> String {
    String::from_utf8(body(deliveries)).unwrap()
}

#[test]
fn the_example_of_the_documentation_is_printed() {
    let event = example();
    assert_eq!(
        text(&[delivery(&event, "me@example.com")]),
        concat!(
            r#"{"Records":[{"eventVersion":"2.2","eventSource":"ceph:s3","awsRegion":"zonegroup1","#,
            r#""eventTime":"2019-11-22T13:47:35.124724Z","eventName":"ObjectCreated:Put","#,
            r#""userIdentity":{"principalId":"tester"},"requestParameters":{"sourceIPAddress":""},"#,
            r#""responseElements":{"x-amz-request-id":"503a4c37-85eb-47cd-8681-2817e80b4281.5330.903595","#,
            r#""x-amz-id-2":"14d2-zone1-zonegroup1"},"s3":{"s3SchemaVersion":"1.0","configurationId":"mynotif1","#,
            r#""bucket":{"name":"mybucket1","ownerIdentity":{"principalId":"tester"},"#,
            r#""arn":"arn:aws:s3:zonegroup1::mybucket1","id":"503a4c37-85eb-47cd-8681-2817e80b4281.5332.38"},"#,
            r#""object":{"key":"myimage1.jpg","size":1024,"eTag":"37b51d194a7513e45b56f6524f2d51f2","versionId":"","#,
            r#""sequencer":"0000000700000000000010320000000000000001","metadata":[],"tags":[]}},"#,
            r#""eventId":"1574430455.124724.0123456789abcdef.0","opaqueData":"me@example.com"}]}"#,
        )
    );
}

#[test]
fn metadata_and_tags_are_lists_of_pairs() {
    let mut event = example();
    event.object.metadata = vec![("colour".into(), "gr\"ün".into())];
    event.object.tags = vec![("a".into(), "1".into()), ("b".into(), String::new())];
    let read: Value = serde_json::from_slice(&body(&[delivery(&event, "")])).unwrap();
    let object = &read["Records"][0]["s3"]["object"];
    assert_eq!(object["metadata"], serde_json::json!([{"key": "x-amz-meta-colour", "val": "gr\"ün"}]));
    assert_eq!(object["tags"], serde_json::json!([{"key": "a", "val": "1"}, {"key": "b", "val": ""}]));
}

#[test]
fn batches_hold_all_events_in_order() {
    let (mut first, mut second) = (example(), example());
    first.key = "1".into();
    second.key = "2".into();
    let read: Value =
        serde_json::from_slice(&body(&[delivery(&first, "x"), delivery(&second, "y")])).unwrap();
    let records = read["Records"].as_array().unwrap();
    let of = |at: usize| (records[at]["s3"]["object"]["key"].as_str(), records[at]["opaqueData"].as_str());
    assert_eq!((records.len(), of(0), of(1)), (2, (Some("1"), Some("x")), (Some("2"), Some("y"))));
    assert_eq!(text(&[]), r#"{"Records":[]}"#);
}

#[test]
fn an_event_reads_the_same_at_each_delivery_but_for_what_delivery_adds() {
    let event = example();
    let again: Event = encoding::decode(&encoding::encode(&event)).unwrap();
    assert_eq!(again, event);
    assert_eq!(text(&[delivery(&again, "x")]), text(&[delivery(&event, "x")]));
    let replayed = text(&[DeliveredEvent { is_replayed: true, ..delivery(&event, "x") }]);
    assert_eq!(replayed.replace(r#","replayed":true"#, ""), text(&[delivery(&event, "x")]));
    assert!(replayed.contains(r#""replayed":true"#));
}

#[test]
fn ids_of_events_are_distinct() {
    let ids = BTreeSet::from([
        example().id(),
        changed(|event| event.ordinal = 1).id(),
        changed(|event| event.change = "f".into()).id(),
        changed(|event| event.request.time_ns += 1_000).id(),
    ]);
    assert_eq!(ids.len(), 4);
    assert_eq!(
        Event { request: RequestInfo::default(), ..example() }.id(),
        "0000000000.000000.0123456789abcdef.0"
    );
}

#[test]
fn idempotency_keys_are_those_of_the_events() {
    let (first, mut second) = (example(), example());
    second.ordinal = 1;
    let (one, two) = (delivery(&first, ""), delivery(&second, ""));
    assert_eq!(idempotency_key(&[one]), first.id());
    assert_eq!(idempotency_key(&[one, two]), format!("{}-{}-2", first.id(), second.id()));
    assert_ne!(idempotency_key(&[one, one, two]), idempotency_key(&[one, two]));
    assert_eq!(idempotency_key(&[]), "");
}

#[test]
fn messages_are_partitioned_by_bucket_and_key() {
    assert_eq!(example().message_key(), "mybucket1/myimage1.jpg");
}

#[test]
fn headers_of_cloudevents_are_cephs() {
    let wanted = [
        ("ce-specversion", "1.0"),
        ("ce-type", "com.amazonaws.ObjectCreated:Put"),
        ("ce-time", "2019-11-22T13:47:35.124724Z"),
        ("ce-id", "503a4c37-85eb-47cd-8681-2817e80b4281.5330.903595.14d2-zone1-zonegroup1"),
        ("ce-source", "ceph:s3.zonegroup1.mybucket1"),
        ("ce-subject", "myimage1.jpg"),
        ("content-type", "application/json"),
    ];
    let found = cloudevents_headers(&example());
    let found: Vec<_> = found.iter().map(|(name, value)| (*name, value.as_str())).collect();
    assert_eq!(found, wanted);
}

#[test]
fn cloudevents_of_one_request_have_ids_of_their_own() {
    let id_of = |position, ordinal| {
        let event = changed(|event| (event.request.position, event.ordinal) = (position, ordinal));
        cloudevents_headers(&event)[3].1.clone()
    };
    let ids = BTreeSet::from([id_of(0, 0), id_of(0, 1), id_of(1, 0), id_of(1, 1)]);
    assert_eq!(ids.len(), 4);
    assert!(id_of(7, 2).ends_with(".7.2"));
}

#[test]
fn keys_can_not_break_out_of_a_header() {
    let mut event = example();
    event.key = "a b\"%\r\nx: y/ü".into();
    let found = cloudevents_headers(&event);
    assert_eq!(found[5], ("ce-subject", "a%20b%22%25%0D%0Ax:%20y/%C3%BC".to_owned()));
}
