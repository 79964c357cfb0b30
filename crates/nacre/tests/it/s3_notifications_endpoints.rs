//! Bucket notifications at a Kafka broker, at RabbitMQ and at HTTPS servers, through a gateway.

use crate::notifications::{EventConsumer, Expected, TestGateway, put, remove, run, text, wait_for};
use crate::s3::S3;
use crate::servers::kafka::Kafka;
use crate::servers::rabbitmq::RabbitMq;
use crate::servers::sink::Sink;
use crate::support::TEST_TIMEOUT;
use futures::future::join_all;
use http::StatusCode;
use lapin::options::{BasicGetOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, ConnectionProperties, ExchangeKind};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::{ClientConfig, Message as _};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Fewer queues than by default, because it takes time to start a transactional producer for each.
const SHARDS: &str = "rgw_bucket_persistent_notif_num_shards=5";
const BUCKET: &str = "bucket";
/// Clients that work at the same time.
const CLIENTS: usize = 8;
/// How long no further event may arrive once all have arrived.
const QUIET: Duration = Duration::from_millis(500);
/// The steps for each key: put with that size, or remove.
const STEPS: [Option<usize>; 4] = [Some(1), Some(2), None, Some(3)];

/// Creates, replaces, removes and creates again `keys` keys. Returns the expected events.
fn change_keys(site: &TestGateway, keys: usize) -> Expected {
    let names: Vec<String> = (0..keys).map(|number| format!("key-{number:03}")).collect();
    let work = names.chunks(keys.div_ceil(CLIENTS)).map(|names| async move {
        let mut connection = site.connect();
        for size in STEPS {
            for name in names {
                let request = size.map_or_else(|| remove(BUCKET, name), |size| put(BUCKET, name, size));
                site.carry_out(&mut connection, &request).await;
            }
        }
    });
    run(join_all(work));
    let mut expected = Expected::default();
    for (name, size) in names.iter().flat_map(|name| STEPS.map(|size| (name, size))) {
        match size {
            Some(size) => expected.created(name, size),
            None => expected.removed(name),
        }
    }
    expected
}

/// The events in the body of a message or a request.
fn records_of(body: &[u8]) -> Vec<Value> {
    let mut body: Value = serde_json::from_slice(body).unwrap();
    match body["Records"].take() {
        Value::Array(records) => records,
        _ => panic!("no events: {body}"),
    }
}

/// The contents of a topic of Kafka.
#[derive(Default)]
struct Consumed {
    /// The events, in order within each partition.
    records: Vec<Value>,
    /// The partitions of each message key.
    partitions: BTreeMap<String, BTreeSet<i32>>,
}

/// Reads a topic of Kafka, without events of uncommitted transactions, until exactly the expected events have arrived.
fn consume(kafka: &Kafka, topic: &str, expected: &Expected) -> Consumed {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", kafka.address())
        .set("group.id", format!("test-{topic}"))
        .set("auto.offset.reset", "earliest")
        .set("isolation.level", "read_committed")
        // The gateway may not have created the topic yet.
        .set("allow.auto.create.topics", "true")
        .set("topic.metadata.refresh.interval.ms", "500")
        .create()
        .unwrap();
    consumer.subscribe(&[topic]).unwrap();
    let deadline = Instant::now() + TEST_TIMEOUT;
    let mut consumed = Consumed::default();
    let mut whole_since: Option<Instant> = None;
    loop {
        // The error may be that the topic does not exist.
        if let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) {
            let key = String::from_utf8(message.key().unwrap().to_vec()).unwrap();
            let records = records_of(message.payload().unwrap());
            assert_eq!(records.len(), 1, "{records:?}");
            assert_eq!(key, format!("{BUCKET}/{}", text(&records[0], "/s3/object/key")));
            consumed.partitions.entry(key).or_default().insert(message.partition());
            consumed.records.extend(records);
            continue;
        }
        if let Err(wrong) = expected.check(&consumed.records) {
            assert!(Instant::now() < deadline, "{topic}: {wrong}");
        } else if whole_since.get_or_insert_with(Instant::now).elapsed() > QUIET {
            return consumed;
        }
    }
}

#[test]
fn kafka_has_every_event_in_the_order_of_each_key() {
    let kafka = Kafka::start();
    let s3 = S3::start_with(&[SHARDS]);
    let site = TestGateway::of(&s3);
    let uri = format!("kafka://{}", kafka.address());
    site.create_topic("plain", &uri, &[("kafka-ack-level", "broker")]);
    site.create_topic("transactions", &uri, &[("transactional", "true")]);
    site.create_bucket(BUCKET, &["plain", "transactions"]);
    assert_eq!(site.objects("notif").len(), 10);
    let expected = change_keys(&site, 40);
    for topic in ["plain", "transactions"] {
        let consumed = consume(&kafka, topic, &expected);
        assert!(consumed.partitions.values().all(|of_key| of_key.len() == 1), "{:?}", consumed.partitions);
        let used: BTreeSet<&i32> = consumed.partitions.values().flatten().collect();
        assert!(used.len() > 1, "all keys of {topic} are in one partition");
        site.wait_entries(topic, 0);
        // An owner that lost its lease does not know its last commit.
        let log = std::fs::read_to_string(s3.path("serve.err")).unwrap();
        let is_repeated = consumed.records.len() > expected.count();
        assert!(topic == "plain" || !is_repeated || log.contains("a queue shard is not delivered"), "{log}");
    }
}

/// Declares the exchange `events` and a queue of the topic's events.
async fn declare(uri: &str, topic: &str) -> (lapin::Connection, Channel) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    let connection = loop {
        match lapin::Connection::connect(uri, ConnectionProperties::default()).await {
            Ok(connection) => break connection,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let channel = connection.create_channel().await.unwrap();
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare("queue".into(), durable, FieldTable::default()).await.unwrap();
    // The broker drops what it accepts between the declaration of an exchange and the binding of a queue to it. So the
    // exchange has an alternate exchange from the beginning, to which the queue is bound already.
    let mut arguments = FieldTable::default();
    arguments.insert("alternate-exchange".into(), AMQPValue::LongString("unrouted".into()));
    for (exchange, kind, arguments) in [
        ("unrouted", ExchangeKind::Direct, FieldTable::default()),
        ("events", ExchangeKind::Topic, arguments),
    ] {
        let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        channel.exchange_declare(exchange.into(), kind, durable, arguments).await.unwrap();
        let (queue, key) = ("queue".into(), topic.into());
        channel
            .queue_bind(queue, exchange.into(), key, QueueBindOptions::default(), FieldTable::default())
            .await
            .unwrap();
    }
    (connection, channel)
}

/// Receives the waiting messages of the queue.
async fn receive(channel: &Channel, topic: &str, records: &mut Vec<Value>) {
    while let Some(message) =
        channel.basic_get("queue".into(), BasicGetOptions { no_ack: true }).await.unwrap()
    {
        let (delivery, received) = (&message.delivery, records_of(&message.delivery.data));
        assert_eq!(received.len(), 1, "{received:?}");
        assert_eq!(delivery.routing_key.as_str(), topic);
        assert_eq!(*delivery.properties.delivery_mode(), Some(2));
        let id = delivery.properties.message_id().as_ref().map(ShortString::as_str);
        assert_eq!(id, Some(&*text(&received[0], "/eventId")));
        records.extend(received);
    }
}

#[test]
fn rabbitmq_has_every_event_that_left_the_queues() {
    let rabbitmq = RabbitMq::start();
    let s3 = S3::start_with(&[SHARDS]);
    let site = TestGateway::of(&s3);
    let attributes = [("amqp-exchange", "events"), ("amqp-ack-level", "broker")];
    let topics = ["bound", "unbound"];
    topics.iter().for_each(|topic| site.create_topic(topic, &rabbitmq.uri(), &attributes));
    site.create_bucket(BUCKET, &topics);
    let expected = change_keys(&site, 8);
    // The broker accepts nothing as long as the exchange does not exist.
    topics.iter().for_each(|topic| site.wait_entries(topic, expected.count()));
    let (_connection, channel) = run(declare(&rabbitmq.uri(), "bound"));
    let mut records = Vec::new();
    wait_for("the events are in the queue of RabbitMQ", || {
        run(receive(&channel, "bound", &mut records));
        expected.check(&records)
    });
    // Messages that no queue of RabbitMQ receives are confirmed, too.
    topics.iter().for_each(|topic| site.wait_entries(topic, 0));
}

#[test]
fn https_servers_are_verified_as_their_topics_say() {
    // Its certificate is not signed by an authority that the system trusts.
    let consumer = EventConsumer::new(Sink::start_tls());
    let (url, ca) = (consumer.url(), consumer.ca());
    let folder = format!("rgw_notification_ca_folder={}", ca.parent().unwrap().display());
    let s3 = S3::start_with(&[SHARDS, &folder]);
    let site = TestGateway::of(&s3);
    site.create_topic("unverified", &url, &[("verify-ssl", "false")]);
    site.create_topic("verified", &url, &[("ca-location", ca.to_str().unwrap())]);
    site.create_topic("mistrusted", &url, &[]);
    let elsewhere = s3.path("ca.crt");
    std::fs::copy(&ca, &elsewhere).unwrap();
    let attributes = [("push-endpoint", url.as_str()), ("ca-location", elsewhere.to_str().unwrap())];
    let refused = site.try_create_topic("elsewhere", &attributes);
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "{refused:?}");
    assert!(refused.body.contains("rgw_notification_ca_folder"), "{refused:?}");
    site.create_bucket(BUCKET, &["unverified", "verified", "mistrusted"]);
    let expected = change_keys(&site, 8);
    for topic in ["unverified", "verified"] {
        consumer.wait_for(topic, &expected);
        site.wait_entries(topic, 0);
    }
    site.wait_entries("mistrusted", expected.count());
    let stats = site.stats("mistrusted");
    assert!(stats["lag"].as_f64().unwrap() > 0.0 && stats["dead_letters"]["entries"] == 0, "{stats}");
    assert_eq!(consumer.records_of("mistrusted"), Vec::<Value>::new());
    // Queued events are sent to the current endpoint of the topic.
    site.set_attribute("mistrusted", "verify-ssl", "false");
    consumer.wait_for("mistrusted", &expected);
    site.wait_entries("mistrusted", 0);
}
