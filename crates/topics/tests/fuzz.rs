//! Damaged inputs for every decoder of this crate: see `nacre_fuzz`.

#![allow(clippy::unwrap_used)]

use nacre_fuzz::{CountingAllocator, Target};
use nacre_topics::attributes::Attributes;
use nacre_topics::endpoint::PushEndpoint;
use nacre_topics::event::{EventPattern, EventType};
use nacre_topics::names::QueueName;
use nacre_topics::notification_config::{Matcher, NotificationConfig};
use nacre_topics::pending::{PendingEvent, PendingEvents};
use nacre_topics::record::{self, BucketInfo, DeliveredEvent, Event, ObjectInfo, RequestInfo};
use nacre_topics::sns::Request;
use nacre_topics::topic::{Topic, TopicId};
use nacre_types::encoding::{self, Versioned};
use std::path::Path;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn corpus() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"))
}

fn text_target<'a>(name: &'a str, seeds: &[&str], words: &'a [&'a str]) -> Target<'a> {
    let seeds = seeds.iter().map(|seed| seed.as_bytes().to_vec()).collect();
    Target { dictionary: words, max_alloc_per_input_byte: 1024, ..Target::new(name, corpus(), seeds) }
}

/// A record that must be usable once it is decoded.
fn versioned<T: Versioned>(name: &str, seeds: &[T], used: impl Fn(&T)) {
    let seeds = seeds.iter().map(encoding::encode).collect();
    Target::new(name, corpus(), seeds).run(|input| {
        let value = encoding::decode::<T>(input).ok()?;
        used(&value);
        Some(encoding::encode(&value))
    });
}

fn attributes(list: &[(&str, &str)]) -> Attributes {
    let pairs: Vec<_> = list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Attributes::from_pairs(&pairs).unwrap()
}

const CONFIG: &str = "<NotificationConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><TopicConfiguration>\
    <Id>a &amp; b</Id><Topic>arn:aws:sns:default:acme:t</Topic><Filter><S3Key><FilterRule><Name>prefix</Name>\
    <Value>images/</Value></FilterRule><FilterRule><Name>regex</Name><Value>([a-z]+/)*\\w{1,9}</Value></FilterRule></S3Key>\
    <S3Metadata><FilterRule><Name>x-amz-meta-foo</Name><Value>bar</Value></FilterRule></S3Metadata><S3Tags><FilterRule>\
    <Name>c</Name><Value></Value></FilterRule></S3Tags></Filter><Event>s3:ObjectCreated:*</Event></TopicConfiguration>\
    <TopicConfiguration><Topic>arn:aws:sns:default::u</Topic></TopicConfiguration></NotificationConfiguration>";

fn config() -> NotificationConfig {
    NotificationConfig::from_xml(CONFIG.as_bytes()).unwrap()
}

fn use_config(config: &NotificationConfig) {
    let types: Vec<EventType> = EventType::all().collect();
    // What was stored may have a regular expression that is refused.
    if let Ok(matcher) = Matcher::new(config.clone()) {
        let found = matcher.candidates(&types, "images/a/b").count();
        assert!(found <= config.configurations.len() * types.len());
    }
}

#[test]
fn fuzz_configurations_as_documents() {
    let words = [
        "<!DOCTYPE a [<!ENTITY b \"c\">]>",
        "&b;",
        "&#x0;",
        "&#13;",
        "<![CDATA[",
        "]]>",
        "<!--",
        "</",
        "/>",
        "s3:ObjectRemoved:*",
        "<Filter>",
        "(?i)",
        "{1000}",
        "(",
        "|",
    ];
    let empty = "<NotificationConfiguration/>";
    text_target("notification-xml", &[CONFIG, empty], &words).run(|input| {
        let config = NotificationConfig::from_xml(input).ok()?;
        use_config(&config);
        let written = config.to_xml(None).into_bytes();
        // Printed with escapes and namespaces, a document at the limit may be longer than the limit.
        if written.len() > 256 << 10 {
            return None;
        }
        assert_eq!(NotificationConfig::from_xml(&written).unwrap(), config);
        Some(written)
    });
}

#[test]
fn fuzz_stored_configurations() {
    versioned("notification-config", &[config(), NotificationConfig::default()], use_config);
}

#[test]
fn fuzz_stored_topics() {
    let list = [
        ("push-endpoint", "amqps://bob:secret@mq:5673/v"),
        ("amqp-exchange", "ex1"),
        ("persistent", "true"),
        ("user-name", "u"),
        ("password", "p"),
        ("mechanism", "SCRAM-SHA-256"),
        ("kafka-brokers", "k1,k2:9093"),
        ("time_to_live", "60"),
        ("OpaqueData", "me@example.com"),
    ];
    let topic = |list: &[(&str, &str)]| {
        let arn = "arn:aws:sns:default:acme:t".parse().unwrap();
        Topic::new(TopicId::from_random([7; 16]), arn, "alice", 9, 11, attributes(list)).unwrap()
    };
    let mut resharded = topic(&list);
    resharded.reshard(101).unwrap();
    versioned("topic", &[topic(&[]), topic(&list), resharded], |topic| {
        assert!(nacre_topics::names::shard_of("bucket", "key", topic.shards) < topic.shards);
        assert!(!format!("{topic:?} {} {:?}", topic.describe(), topic.endpoint()).is_empty());
    });
}

#[test]
fn fuzz_stored_events() {
    let event = Event {
        event: EventType::ObjectCreatedPut,
        configuration: "notif1".into(),
        change: "0123".into(),
        ordinal: 1,
        request: RequestInfo {
            time_ns: 1_700_000_000_000_000_000,
            user: "alice".into(),
            ..RequestInfo::default()
        },
        bucket: BucketInfo { name: "b".into(), ..BucketInfo::default() },
        key: "k\r\né".into(),
        object: ObjectInfo { metadata: vec![("a".into(), "b".into())], ..ObjectInfo::default() },
    };
    versioned("notification-event", &[event], |event| {
        let delivery = DeliveredEvent { event, opaque_data: "x", is_replayed: false };
        let text = String::from_utf8(record::body(&[delivery])).unwrap();
        assert!(text.starts_with("{\"Records\":[{\"eventVersion\":"), "{text}");
        for (name, value) in record::cloudevents_headers(event) {
            assert!(value.bytes().all(|byte| byte.is_ascii_graphic()), "{name}: {value}");
        }
    });
}

#[test]
fn fuzz_requests() {
    let create = "Action=CreateTopic&Version=2010-03-31&Name=fishtopic0&Attributes.entry.1.key=push-endpoint\
                  &Attributes.entry.1.value=kafka%3A%2F%2F&Attributes.entry.2.key=persistent&Attributes.entry.2.value=true";
    let set = "Action=SetTopicAttributes&TopicArn=arn%3Aaws%3Asns%3Adefault%3A%3At&AttributeName=password&AttributeValue=a+b";
    let words =
        ["Attributes.entry.", ".key=", ".value=", "%", "+", "&", "=", "4294967296", "Action=", "ListTopics"];
    text_target("sns-request", &[create, set, "Action=ListTopics&NextToken=t"], &words).run(|input| {
        let request = Request::parse(input).ok()?;
        if let Request::CreateTopic { attributes, .. } = &request {
            _ = Attributes::from_pairs(attributes).map(|attributes| attributes.endpoint("t"));
        }
        _ = (request.contains_secret(), format!("{request:?}"));
        Some(input.to_vec())
    });
}

#[test]
fn fuzz_stored_pending_events() {
    let config = config();
    let matcher = Matcher::new(config).unwrap();
    let found = matcher.candidates(&[EventType::ObjectCreatedPut], "images/a/b");
    let candidates: Vec<_> =
        found.map(|candidate| PendingEvent::new(&candidate, TopicId::from_random([1; 16]))).collect();
    assert_eq!(candidates.len(), 2);
    let pending = PendingEvents { candidates, ..PendingEvents::default() };
    versioned("pending-events", &[pending, PendingEvents::default()], |pending| {
        let object = ObjectInfo { metadata: vec![("foo".into(), "bar".into())], ..ObjectInfo::default() };
        let events = pending.complete("0123", "images/a/b", &object);
        assert!(events.len() <= pending.candidates.len());
    });
}

/// Lines of a name and a value.
#[test]
fn fuzz_attributes() {
    let seed = "push-endpoint=kafka://u:p@k1:9092\nkafka-brokers=k2,[::1]:9093\nPolicy={\"Statement\":{\"Effect\":\"Allow\",\
                \"Action\":\"sns:Publish\"}}\ntime_to_live=7\nverify-ssl=no\nca-location=/a/b\nbatch-size=1\nuse-ssl=1";
    let words = ["amqp-exchange=e\n", "push-endpoint=amqps://", "None", "4294967296", "{", "[", "\n", "****"];
    text_target("topic-attributes", &[seed], &words).run(|input| {
        let text = std::str::from_utf8(input).ok()?;
        let pairs: Vec<_> = text
            .split('\n')
            .filter_map(|line| line.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let attributes = Attributes::from_pairs(&pairs).ok()?;
        if let Ok(Some(endpoint)) = attributes.endpoint("t") {
            assert!(!endpoint.servers().is_empty(), "{endpoint}");
        }
        Some(input.to_vec())
    });
}

#[test]
fn fuzz_endpoints() {
    let seeds = [
        "https://bob:secret@sink:8443/a?b=c",
        "kafka://u:p@k1:9092,[::1]",
        "amqp://mq/%2f",
        "http://[2001:db8::1]",
    ];
    let words = ["://", "@", ":", "[", "]", "%", "****", ",", "/", "?", "#", "65536"];
    text_target("push-endpoint", &seeds, &words).run(|input| {
        let uri = PushEndpoint::parse(std::str::from_utf8(input).ok()?).ok()?;
        let shown = uri.to_string();
        // What is shown is not taken for a URI with a password.
        assert_eq!(PushEndpoint::parse(&shown).is_ok(), !uri.has_credentials(), "{shown}");
        Some(uri.reveal().as_bytes().to_vec())
    });
}

#[test]
fn fuzz_names() {
    let words = [":", ".", "0", "4096", "-", "arn:aws:sns:", "s3:", "*"];
    text_target("queue-name", &["acme:t.10", ":fishtopic"], &words)
        .run(|input| Some(QueueName::parse(std::str::from_utf8(input).ok()?)?.to_string().into_bytes()));
    text_target("topic-arn", &["arn:aws:sns:default:acme:t"], &words).run(|input| {
        let arn: nacre_topics::arn::TopicArn = std::str::from_utf8(input).ok()?.parse().ok()?;
        Some(arn.to_string().into_bytes())
    });
    text_target("event-pattern", &["s3:ObjectCreated:*", "s3:LifecycleTransition"], &words).run(|input| {
        let pattern: EventPattern = std::str::from_utf8(input).ok()?.parse().ok()?;
        Some(pattern.to_string().into_bytes())
    });
}
