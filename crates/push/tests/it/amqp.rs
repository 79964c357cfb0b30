//! AMQP endpoints against RabbitMQ.

use crate::events::{PATIENT, endpoint, endpoints, event, eventually, open, outage, read};
use crate::servers::rabbitmq::RabbitMq;
use lapin::options::{
    BasicGetOptions, ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};
use nacre_push::EndpointClients;
use nacre_topics::endpoint::EndpointPolicy;
use std::time::Duration;

/// An exchange with a queue for the topics.
async fn declare(uri: &str, topics: &[&str]) -> (Connection, Channel) {
    let mut connected = None;
    eventually("RabbitMQ is ready", async || {
        connected = Connection::connect(uri, ConnectionProperties::default()).await.ok();
        connected.is_some()
    })
    .await;
    let connection = connected.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let durable = ExchangeDeclareOptions { durable: true, ..Default::default() };
    channel
        .exchange_declare("events".into(), ExchangeKind::Topic, durable, FieldTable::default())
        .await
        .unwrap();
    let durable = QueueDeclareOptions { durable: true, ..Default::default() };
    channel.queue_declare("queue".into(), durable, FieldTable::default()).await.unwrap();
    for topic in topics {
        let (queue, exchange, key) = ("queue".into(), "events".into(), (*topic).into());
        channel
            .queue_bind(queue, exchange, key, QueueBindOptions::default(), FieldTable::default())
            .await
            .unwrap();
    }
    (connection, channel)
}

/// The events that wait in the queue.
async fn consume(channel: &Channel) -> Vec<(String, u64)> {
    let mut events = Vec::new();
    while let Some(message) =
        channel.basic_get("queue".into(), BasicGetOptions { no_ack: true }).await.unwrap()
    {
        assert_eq!(*message.delivery.properties.delivery_mode(), Some(2));
        events.push(read(&message.delivery.data));
    }
    events
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rabbitmq_has_what_it_confirmed() {
    let mut rabbitmq = RabbitMq::start();
    let (_connection, channel) = declare(&rabbitmq.uri(), &["bound", "other"]).await;
    let ca = rabbitmq.ca();
    let clients = endpoints(Some(&ca), PATIENT);
    levels_mean_what_they_say(&rabbitmq, &clients, &channel).await;
    an_exchange_that_is_missing_harms_no_other_topic(&rabbitmq, &clients, &channel).await;
    certificates_and_addresses_are_checked(&rabbitmq, &clients).await;
    drop(channel);
    a_broker_that_comes_back_takes_the_next_push(&mut rabbitmq).await;
}

async fn levels_mean_what_they_say(rabbitmq: &RabbitMq, clients: &EndpointClients, channel: &Channel) {
    let uri = rabbitmq.uri();
    for level in ["broker", "routable", "none"] {
        let attributes = [("push-endpoint", &*uri), ("amqp-exchange", "events"), ("amqp-ack-level", level)];
        let bound = open(clients, &endpoint("bound", &attributes), None);
        let messages = (1..=50).map(|number| event("cat", number)).collect();
        let outcomes = bound.push(messages).await;
        assert!(outcomes.iter().all(Result::is_ok), "{level}: {outcomes:?}");
        let mut events = Vec::new();
        eventually("the events arrive", async || {
            events.extend(consume(channel).await);
            events.len() >= 50
        })
        .await;
        assert_eq!(events, (1..=50).map(|number| ("cat".to_owned(), number)).collect::<Vec<_>>(), "{level}");
        let unbound = open(clients, &endpoint("unbound", &attributes), None);
        let outcomes = unbound.push(vec![event("cat", 1)]).await;
        if level == "routable" {
            assert!(outage(&outcomes).contains("no queue is bound"), "{outcomes:?}");
        } else {
            assert_eq!(outcomes, [Ok(())], "{level}");
        }
    }
}

async fn an_exchange_that_is_missing_harms_no_other_topic(
    rabbitmq: &RabbitMq,
    clients: &EndpointClients,
    channel: &Channel,
) {
    let uri = rabbitmq.uri();
    let attributes = [("push-endpoint", &*uri), ("amqp-exchange", "events")];
    let present = open(clients, &endpoint("bound", &attributes), None);
    let attributes = [("push-endpoint", &*uri), ("amqp-exchange", "later")];
    let missing = open(clients, &endpoint("bound", &attributes), None);
    let outcomes = missing.push(vec![event("cat", 1)]).await;
    assert!(outage(&outcomes).contains("later"), "{outcomes:?}");
    assert_eq!(present.push(vec![event("cat", 1)]).await, [Ok(())]);
    // Once it exists the next push finds it, and one that vanishes is noticed.
    let durable = ExchangeDeclareOptions { durable: true, ..Default::default() };
    channel
        .exchange_declare("later".into(), ExchangeKind::Topic, durable, FieldTable::default())
        .await
        .unwrap();
    assert_eq!(missing.push(vec![event("cat", 2)]).await, [Ok(())]);
    channel.exchange_delete("later".into(), ExchangeDeleteOptions::default()).await.unwrap();
    for _ in 0..2 {
        let outcomes = missing.push(vec![event("cat", 3)]).await;
        assert!(outage(&outcomes).contains("later"), "{outcomes:?}");
    }
    assert_eq!(present.push(vec![event("cat", 2)]).await, [Ok(())]);
}

async fn certificates_and_addresses_are_checked(rabbitmq: &RabbitMq, clients: &EndpointClients) {
    let (uri, ca) = (rabbitmq.tls_uri(), rabbitmq.ca().display().to_string());
    let exchange = ("amqp-exchange", "events");
    for attributes in [
        vec![("push-endpoint", &*uri), exchange, ("ca-location", &ca)],
        vec![("push-endpoint", &*uri), exchange, ("verify-ssl", "false")],
    ] {
        let connection = open(clients, &endpoint("bound", &attributes), None);
        assert_eq!(connection.push(vec![event("cat", 1)]).await, [Ok(())], "{attributes:?}");
    }
    let connection = open(clients, &endpoint("bound", &[("push-endpoint", &uri), exchange]), None);
    let outcomes = connection.push(vec![event("cat", 1)]).await;
    assert!(outage(&outcomes).contains("certificate"), "{outcomes:?}");
    let wrong = rabbitmq.uri().replace("amqp://", "amqp://guest:hunter2@");
    let connection = open(clients, &endpoint("bound", &[("push-endpoint", &wrong), exchange]), None);
    let outcomes = connection.push(vec![event("cat", 1)]).await;
    assert!(outage(&outcomes).contains("refused") && !outage(&outcomes).contains("hunter2"), "{outcomes:?}");

    let strict = endpoints(None, PATIENT);
    strict.set_policy(EndpointPolicy { listens_beyond_loopback: true, ..EndpointPolicy::default() });
    let connection = open(&strict, &endpoint("bound", &[("push-endpoint", &rabbitmq.uri()), exchange]), None);
    let outcomes = connection.push(vec![event("cat", 1)]).await;
    assert!(outage(&outcomes).contains("rgw_allow_notification_local_endpoints"), "{outcomes:?}");
}

async fn a_broker_that_comes_back_takes_the_next_push(rabbitmq: &mut RabbitMq) {
    let clients = endpoints(None, Duration::from_secs(2));
    let uri = rabbitmq.uri();
    let attributes = [("push-endpoint", &*uri), ("amqp-exchange", "events")];
    let connection = open(&clients, &endpoint("bound", &attributes), None);
    assert_eq!(connection.push(vec![event("cat", 1)]).await, [Ok(())]);
    rabbitmq.pause();
    let outcomes = connection.push(vec![event("cat", 2)]).await;
    assert!(outage(&outcomes).contains("within"), "{outcomes:?}");
    rabbitmq.resume();
    eventually("the next push is taken", async || connection.push(vec![event("cat", 2)]).await == [Ok(())])
        .await;
    rabbitmq.kill();
    outage(&connection.push(vec![event("cat", 3)]).await);
    rabbitmq.restart();
    eventually("the next push is taken", async || connection.push(vec![event("cat", 3)]).await == [Ok(())])
        .await;
    let (_connection, channel) = declare(&uri, &[]).await;
    let mut numbers: Vec<_> = consume(&channel).await.into_iter().map(|(_, number)| number).collect();
    // Those of other parts, which are of the same key, come first.
    let own = numbers.split_off(numbers.iter().rposition(|number| *number == 1).unwrap());
    assert_eq!(own.first(), Some(&1));
    assert!(own.windows(2).all(|pair| pair[0] <= pair[1]) && own.contains(&3), "{own:?}");
}
