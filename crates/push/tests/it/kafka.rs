//! Kafka endpoints against a broker. Each test starts one, which takes seconds: so a test has several parts.

use crate::events::{PATIENT, endpoint, endpoints, event, eventually, open, outage, read, refusal};
use crate::servers::kafka::{Kafka, USER};
use nacre_notify::push::{Connection, PushFailure, PushMessage};
use nacre_push::EndpointClients;
use nacre_topics::endpoint::EndpointPolicy;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::{ClientConfig, Message as _};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A message of Kafka: its partition, its key, and the key and the number of its event.
type Consumed = (i32, String, (String, u64));

/// The messages of a topic, once there are `count` of them or more; those of aborted transactions are left out.
async fn consume(kafka: &Kafka, topic: &str, count: usize) -> Vec<Consumed> {
    let (address, topic) = (kafka.address(), topic.to_owned());
    tokio::task::spawn_blocking(move || {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", address)
            .set("group.id", format!("test-{topic}-{:?}", Instant::now()))
            .set("auto.offset.reset", "earliest")
            .set("isolation.level", "read_committed")
            .create()
            .unwrap();
        consumer.subscribe(&[&topic]).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut consumed = Vec::new();
        // Some more time, for what should not be there.
        let mut quiet = None;
        while quiet.is_none_or(|since: Instant| since.elapsed() < Duration::from_millis(500)) {
            assert!(Instant::now() < deadline, "{topic}: {consumed:?}");
            if let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) {
                let key = String::from_utf8(message.key().unwrap().to_vec()).unwrap();
                consumed.push((message.partition(), key, read(message.payload().unwrap())));
            }
            if consumed.len() >= count {
                quiet.get_or_insert_with(Instant::now);
            }
        }
        consumed
    })
    .await
    .unwrap()
}

fn numbers(consumed: &[Consumed]) -> Vec<u64> {
    consumed.iter().map(|(_, _, (_, number))| *number).collect()
}

/// Pushes until the broker takes the events: it may have started a moment ago.
async fn push_until_taken(connection: &Arc<dyn Connection>, messages: Vec<PushMessage>) {
    eventually("the broker takes events", async || {
        connection.push(messages.clone()).await.iter().all(Result::is_ok)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kafka_has_what_was_acknowledged_in_the_order_of_each_key() {
    let mut kafka = Kafka::start();
    let ca = kafka.ca();
    let clients = endpoints(Some(&ca), PATIENT);
    keys_keep_their_order(&kafka, &clients).await;
    a_message_that_is_too_large_fails_alone(&kafka, &clients).await;
    mechanisms_and_certificates_count(&kafka, &clients).await;
    addresses_are_checked(&kafka).await;
    a_broker_that_comes_back_takes_the_next_push(&mut kafka).await;
}

async fn keys_keep_their_order(kafka: &Kafka, clients: &EndpointClients) {
    let uri = format!("kafka://{}", kafka.address());
    for level in ["broker", "none"] {
        let topic = format!("order-{level}");
        let attributes = [("push-endpoint", &*uri), ("kafka-ack-level", level)];
        let connection = open(clients, &endpoint(&topic, &attributes), None);
        // Makes the topic: what is sent without acknowledgement before it has a leader is lost.
        let acknowledged = open(clients, &endpoint(&topic, &[("push-endpoint", &*uri)]), None);
        push_until_taken(&acknowledged, vec![event("first", 0)]).await;
        let keys = ["a", "b", "c", "d", "e", "f"];
        let pushes = (1..=20).map(|number| keys.iter().map(|key| event(key, number)).collect::<Vec<_>>());
        // At the same time, as several shards would.
        let outcomes = futures::future::join_all(pushes.map(|messages| connection.push(messages))).await;
        assert!(outcomes.iter().flatten().all(Result::is_ok), "{outcomes:?}");
        let mut by_key: BTreeMap<String, Vec<Consumed>> = BTreeMap::new();
        let consumed = consume(kafka, &topic, 121).await;
        for message in consumed.into_iter().filter(|(_, key, _)| key != "photos/first") {
            by_key.entry(message.1.clone()).or_default().push(message);
        }
        assert_eq!(
            by_key.keys().collect::<Vec<_>>(),
            keys.map(|key| format!("photos/{key}")).iter().collect::<Vec<_>>()
        );
        for (key, consumed) in &by_key {
            assert_eq!(numbers(consumed), (1..=20).collect::<Vec<_>>(), "{level} {key}");
            assert!(
                consumed.iter().all(|(partition, ..)| *partition == consumed[0].0),
                "{key}: {consumed:?}"
            );
        }
        let partitions: std::collections::BTreeSet<_> =
            by_key.values().map(|consumed| consumed[0].0).collect();
        assert!(partitions.len() > 1, "all keys are in one partition");
    }
}

async fn a_message_that_is_too_large_fails_alone(kafka: &Kafka, clients: &EndpointClients) {
    let uri = format!("kafka://{}", kafka.address());
    let connection = open(clients, &endpoint("sizes", &[("push-endpoint", &uri)]), None);
    push_until_taken(&connection, vec![event("cat", 1)]).await;
    let large = PushMessage { opaque_data: "x".repeat(2 << 20).into(), ..event("large", 1) };
    let outcomes = connection.push(vec![event("cat", 2), large, event("cat", 3)]).await;
    assert!(matches!(outcomes.as_slice(), [Ok(()), Err(PushFailure::Refused(_)), Ok(())]), "{outcomes:?}");
    assert!(refusal(&outcomes[1..2].to_vec()).contains("size"), "{outcomes:?}");
}

async fn mechanisms_and_certificates_count(kafka: &Kafka, clients: &EndpointClients) {
    let ca = kafka.ca().display().to_string();
    let (user, password) = USER;
    let (tls, sasl, both) = (
        format!("kafka://{}", kafka.tls_address()),
        format!("kafka://{user}:{password}@{}", kafka.sasl_address()),
        format!("kafka://{user}:{password}@{}", kafka.sasl_tls_address()),
    );
    for attributes in [
        vec![("push-endpoint", tls.as_str()), ("use-ssl", "true"), ("ca-location", &ca)],
        vec![("push-endpoint", &tls), ("use-ssl", "true"), ("verify-ssl", "false")],
        vec![("push-endpoint", &sasl)],
        vec![("push-endpoint", &sasl), ("mechanism", "SCRAM-SHA-256")],
        vec![
            ("push-endpoint", &both),
            ("use-ssl", "true"),
            ("ca-location", &ca),
            ("mechanism", "SCRAM-SHA-512"),
        ],
    ] {
        let connection = open(clients, &endpoint("secure", &attributes), None);
        let outcomes = connection.push(vec![event("cat", 1)]).await;
        assert_eq!(outcomes, [Ok(())], "{attributes:?}");
    }
    let impatient = endpoints(Some(&kafka.ca()), Duration::from_secs(2));
    let wrong = sasl.replace(password, "wrong");
    for (attributes, reason) in [
        (vec![("push-endpoint", tls.as_str()), ("use-ssl", "true")], "certificate"),
        (vec![("push-endpoint", &wrong), ("mechanism", "SCRAM-SHA-256")], "uthentication"),
    ] {
        let connection = open(&impatient, &endpoint("secure", &attributes), None);
        let outcomes = connection.push(vec![event("cat", 1)]).await;
        assert!(outage(&outcomes).contains(reason), "{outcomes:?}");
        assert!(!outage(&outcomes).contains("wrong"), "{outcomes:?}");
    }
}

async fn addresses_are_checked(kafka: &Kafka) {
    let clients = endpoints(None, Duration::from_secs(2));
    clients.set_policy(EndpointPolicy { listens_beyond_loopback: true, ..EndpointPolicy::default() });
    let uri = format!("kafka://{}", kafka.address());
    let connection = open(&clients, &endpoint("addresses", &[("push-endpoint", &uri)]), None);
    let outcomes = connection.push(vec![event("cat", 1)]).await;
    assert!(outage(&outcomes).contains("rgw_allow_notification_local_endpoints"), "{outcomes:?}");
    // The policy of the time of each connection counts.
    clients.set_policy(EndpointPolicy::default());
    push_until_taken(&connection, vec![event("cat", 1)]).await;
}

async fn a_broker_that_comes_back_takes_the_next_push(kafka: &mut Kafka) {
    let clients = endpoints(None, Duration::from_secs(2));
    let uri = format!("kafka://{}", kafka.address());
    let connection = open(&clients, &endpoint("restart", &[("push-endpoint", &uri)]), None);
    push_until_taken(&connection, vec![event("cat", 1)]).await;
    kafka.kill();
    let started = Instant::now();
    let outcomes = connection.push(vec![event("cat", 2)]).await;
    outage(&outcomes);
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    kafka.restart();
    push_until_taken(&connection, vec![event("cat", 2)]).await;
    // One that failed may have arrived nevertheless: the first ones are in order.
    let mut seen = numbers(&consume(kafka, "restart", 2).await);
    seen.dedup();
    assert_eq!(seen, [1, 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_fence_earlier_owners_and_repeat_nothing() {
    let kafka = Kafka::start();
    let clients = endpoints(None, PATIENT);
    let uri = format!("kafka://{}", kafka.address());
    let attributes = [("push-endpoint", &*uri), ("transactional", "true"), ("persistent", "true")];
    let endpoint = endpoint("transactions", &attributes);
    let first = open(&clients, &endpoint, Some("queue-1"));
    push_until_taken(&first, vec![event("cat", 1), event("dog", 1)]).await;
    assert_eq!(first.push(vec![event("cat", 2)]).await, [Ok(())]);
    let other = open(&clients, &endpoint, Some("queue-2"));
    assert_eq!(other.push(vec![event("bird", 1)]).await, [Ok(())]);

    // An event that is refused costs the others nothing.
    let large = PushMessage { opaque_data: "x".repeat(2 << 20).into(), ..event("large", 1) };
    let outcomes = first.push(vec![event("cat", 3), large, event("dog", 2)]).await;
    assert!(matches!(outcomes.as_slice(), [Ok(()), Err(PushFailure::Refused(_)), Ok(())]), "{outcomes:?}");

    // The next owner takes over; the late push of the first one is not in the topic.
    let second = open(&clients, &endpoint, Some("queue-1"));
    assert_eq!(second.push(vec![event("cat", 4)]).await, [Ok(())]);
    for _ in 0..2 {
        let outcomes = first.push(vec![event("cat", 99)]).await;
        assert!(outage(&outcomes).contains("fenced"), "{outcomes:?}");
    }
    assert_eq!(second.push(vec![event("cat", 5)]).await, [Ok(())]);
    assert_eq!(other.push(vec![event("bird", 2)]).await, [Ok(())]);

    // A push whose future is dropped ends its transaction all the same.
    drop(tokio::time::timeout(Duration::from_millis(1), second.push(vec![event("cat", 6)])).await);
    assert_eq!(second.push(vec![event("cat", 7)]).await, [Ok(())]);

    let consumed = consume(&kafka, "transactions", 11).await;
    let of = |key: &str| {
        let of_key = consumed.iter().filter(|(_, _, (k, _))| k == key);
        of_key.map(|(_, _, (_, number))| *number).collect::<Vec<_>>()
    };
    assert_eq!(of("cat"), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!((of("dog"), of("bird"), of("large")), (vec![1, 2], vec![1, 2], vec![]));
}
