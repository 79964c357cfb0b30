//! Kafka endpoints.
//!
//! The key of a message is `BUCKET/KEY`. Kafka's standard partitioner (murmur2) selects the partition by this key, so a
//! key's events stay in order. With the ack level `broker`, the producer is idempotent, and an event is delivered when all
//! in-sync replicas have it; with `none`, an event counts as delivered when it was sent.
//!
//! A producer has a bounded queue and several threads, and keeps no event longer than the timeout of a push. If librdkafka
//! declares the producer broken (a fatal error), the next push creates another one.

mod native;
mod transactional;

pub(crate) use transactional::TransactionalConnection;

use crate::tls::read_ca;
use crate::{Context, body, timed_out, unavailable};
use futures::future::{BoxFuture, join_all};
use nacre_notify::push::{Connection, PushFailure, PushMessage};
use nacre_topics::attributes::KafkaAckLevel;
use nacre_topics::endpoint::KafkaEndpoint;
use native::Producer;
use rdkafka::ClientConfig;
use rdkafka::error::RDKafkaErrorCode;
use std::ffi::CString;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout_at};

/// The most that librdkafka delays the report of a timeout: it checks once a second.
const REPORT_DELAY: Duration = Duration::from_secs(2);
/// The wait for room in a producer's queue.
const ROOM_WAIT: Duration = Duration::from_millis(5);
/// The most bytes of events that a producer holds.
const MAX_QUEUE_BYTES: usize = 64 << 20;

/// A producer for all topics of the same brokers, created on first use.
pub(crate) struct SharedProducer {
    context: Arc<Context>,
    config: ClientConfig,
    current: Mutex<Option<Arc<Producer>>>,
}

/// A connection to a Kafka topic.
pub(crate) struct KafkaConnection {
    producer: Arc<SharedProducer>,
    topic: Arc<CString>,
}

/// The endpoint without the properties that topics of the same brokers do not share.
pub(crate) fn producer_key(endpoint: &KafkaEndpoint) -> KafkaEndpoint {
    KafkaEndpoint { topic: String::new(), ..endpoint.clone() }
}

impl KafkaConnection {
    pub(crate) fn new(producer: Arc<SharedProducer>, topic: &str) -> Result<KafkaConnection, PushFailure> {
        Ok(KafkaConnection { producer, topic: Arc::new(topic_name(topic)?) })
    }
}

impl Connection for KafkaConnection {
    fn push(&self, messages: Vec<PushMessage>) -> BoxFuture<'static, Vec<Result<(), PushFailure>>> {
        let (shared, topic) = (self.producer.clone(), self.topic.clone());
        Box::pin(async move {
            match shared.producer().await {
                Ok(producer) => {
                    let outcomes = send(&producer, &topic, &messages, &shared.context).await;
                    if producer.fatal_error().is_some() {
                        shared.discard(&producer).await;
                    }
                    outcomes
                }
                Err(failure) => messages.iter().map(|_| Err(failure.clone())).collect(),
            }
        })
    }
}

impl SharedProducer {
    pub(crate) fn new(
        context: &Arc<Context>,
        endpoint: &KafkaEndpoint,
    ) -> Result<SharedProducer, PushFailure> {
        let config = config_of(context, endpoint)?;
        Ok(SharedProducer { context: context.clone(), config, current: Mutex::new(None) })
    }

    async fn producer(&self) -> Result<Arc<Producer>, PushFailure> {
        let mut current = self.current.lock().await;
        if let Some(producer) = &*current {
            return Ok(producer.clone());
        }
        let producer = start(&self.context, self.config.clone()).await?;
        Ok(current.insert(producer).clone())
    }

    /// Lets the next push create another producer, unless this was already done.
    async fn discard(&self, broken: &Arc<Producer>) {
        let mut current = self.current.lock().await;
        if current.as_ref().is_some_and(|known| Arc::ptr_eq(known, broken)) {
            *current = None;
        }
    }
}

/// Starts a producer on a thread for blocking operations.
async fn start(context: &Arc<Context>, config: ClientConfig) -> Result<Arc<Producer>, PushFailure> {
    let context = context.clone();
    let started = spawn_blocking(move || Producer::start(&config, &context).map(Arc::new)).await;
    started.unwrap_or_else(|_| Err(unavailable("the runtime ends")))
}

/// Sends events in order and waits for the outcome of each one.
async fn send(
    producer: &Arc<Producer>,
    topic: &CString,
    messages: &[PushMessage],
    context: &Context,
) -> Vec<Result<(), PushFailure>> {
    let timeout = context.limits.kafka.push;
    let room_until = Instant::now() + timeout / 2;
    let mut receipts = Vec::with_capacity(messages.len());
    for message in messages {
        let (key, body) = (message.event.message_key(), body(std::iter::once(message)));
        // Other topics of the same brokers may have filled the queue.
        let receipt = loop {
            match producer.send(topic, key.as_bytes(), &body) {
                Err(RDKafkaErrorCode::QueueFull) if Instant::now() < room_until => sleep(ROOM_WAIT).await,
                sent => break sent,
            }
        };
        receipts.push(receipt);
    }
    let deadline = Instant::now() + timeout + REPORT_DELAY;
    join_all(receipts.into_iter().map(|receipt| async {
        let report = match receipt {
            Ok(receipt) => match timeout_at(deadline, receipt).await {
                Ok(Ok(report)) => report,
                Ok(Err(_)) => return Err(unavailable("the producer ended")),
                Err(_) => return Err(timed_out(&context.limits.kafka)),
            },
            Err(code) => Err(code),
        };
        report.map_err(|code| failure_of(code, producer))
    }))
    .await
}

/// Converts an error: refused if it concerns a single event, unavailable if it concerns all events.
fn failure_of(code: RDKafkaErrorCode, producer: &Producer) -> PushFailure {
    match code {
        RDKafkaErrorCode::MessageSizeTooLarge
        | RDKafkaErrorCode::MessageBatchTooLarge
        | RDKafkaErrorCode::InvalidMessageSize
        | RDKafkaErrorCode::InvalidRecord
        | RDKafkaErrorCode::PolicyViolation => PushFailure::Refused(code.to_string()),
        // A broker may refuse an event whose timestamp or format the topic does not allow. All other errors concern every
        // event of the topic.
        RDKafkaErrorCode::InvalidTimestamp => PushFailure::Refused(code.to_string()),
        RDKafkaErrorCode::MessageTimedOut | RDKafkaErrorCode::Fatal => match producer.last_error() {
            Some(reason) => unavailable(format!("{code}: {reason}")),
            None => unavailable(code.to_string()),
        },
        _ => unavailable(code.to_string()),
    }
}

fn topic_name(topic: &str) -> Result<CString, PushFailure> {
    CString::new(topic).map_err(|_| unavailable("the topic has a name that Kafka can't have"))
}

/// librdkafka's configuration for the endpoint.
fn config_of(context: &Context, endpoint: &KafkaEndpoint) -> Result<ClientConfig, PushFailure> {
    let limits = &context.limits;
    let millis = |duration: Duration, least: u128| duration.as_millis().max(least).to_string();
    let brokers: Vec<String> = endpoint.brokers.iter().map(ToString::to_string).collect();
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", brokers.join(","))
        .set("client.id", "nacre")
        .set("partitioner", "murmur2_random")
        .set("linger.ms", "1")
        .set("message.timeout.ms", millis(limits.kafka.push, 1000))
        .set("request.timeout.ms", millis(limits.kafka.push, 1000))
        .set("socket.timeout.ms", millis(limits.kafka.push, 1000))
        .set("socket.connection.setup.timeout.ms", millis(limits.kafka.connect, 1000))
        .set("socket.keepalive.enable", "true")
        .set("socket.nagle.disable", "true")
        .set("connections.max.idle.ms", millis(limits.kafka_idle_timeout, 0))
        .set("reconnect.backoff.max.ms", "2000")
        .set("queue.buffering.max.messages", limits.events_in_flight.max(1).to_string())
        .set("queue.buffering.max.kbytes", (MAX_QUEUE_BYTES >> 10).to_string())
        .set("enable.metrics.push", "false");
    if let Some(bytes) = limits.kafka_batch_bytes {
        config.set("batch.size", bytes.to_string());
    }
    match endpoint.ack_level {
        KafkaAckLevel::Broker => config.set("enable.idempotence", "true"),
        KafkaAckLevel::None => config.set("acks", "0"),
    };
    let protocol = match (endpoint.tls, endpoint.mechanism.is_some()) {
        (false, false) => "plaintext",
        (true, false) => "ssl",
        (false, true) => "sasl_plaintext",
        (true, true) => "sasl_ssl",
    };
    config.set("security.protocol", protocol);
    if endpoint.tls {
        config.set("enable.ssl.certificate.verification", endpoint.verify_ssl.to_string());
        if let Some(path) = &endpoint.ca_location {
            // The checked content is passed, not the path, which may lead to another file later.
            let text = String::from_utf8(read_ca(context, path)?);
            config
                .set("ssl.ca.pem", text.map_err(|_| unavailable(format!("ca-location {path}: not a text")))?);
        }
    }
    if let Some(mechanism) = endpoint.mechanism {
        config.set("sasl.mechanism", mechanism.as_str());
    }
    if let Some(credentials) = &endpoint.credentials {
        config.set("sasl.username", &credentials.user).set("sasl.password", credentials.password.reveal());
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClientLimits, EndpointClients, Timeouts};
    use nacre_topics::attributes::Attributes;
    use nacre_topics::endpoint::{Endpoint, EndpointPolicy};

    #[test]
    fn limits_are_properties_of_librdkafka() {
        let pairs = [("push-endpoint".to_owned(), "kafka://broker".to_owned())];
        let endpoint = Attributes::from_pairs(&pairs).unwrap().endpoint("t").unwrap();
        let Some(Endpoint::Kafka(endpoint)) = endpoint else { panic!("not an endpoint of Kafka") };
        let properties = |limits| {
            let clients = EndpointClients::new(EndpointPolicy::default(), limits);
            config_of(&clients.context, &endpoint).unwrap()
        };
        let config = properties(ClientLimits {
            kafka: Timeouts { push: Duration::from_secs(7), connect: Duration::from_millis(10) },
            kafka_idle_timeout: Duration::from_secs(60),
            kafka_batch_bytes: Some(4096),
            events_in_flight: 9,
            ..ClientLimits::default()
        });
        for (name, value) in [
            ("message.timeout.ms", "7000"),
            ("socket.connection.setup.timeout.ms", "1000"),
            ("connections.max.idle.ms", "60000"),
            ("batch.size", "4096"),
            ("queue.buffering.max.messages", "9"),
        ] {
            assert_eq!(config.get(name), Some(value), "{name}");
        }
        let config = properties(ClientLimits::default());
        assert_eq!((config.get("message.timeout.ms"), config.get("batch.size")), (Some("5000"), None));
    }
}
