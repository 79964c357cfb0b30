//! Clients of notification endpoints: HTTP, Kafka and AMQP 0-9-1.
//!
//! They implement the interface of `nacre-notify` ([`nacre_notify::push`]). [`EndpointPolicy`] decides which servers may be
//! connected to. It is checked for each connection, after host names are resolved.
//!
//! Connections to the same endpoint share a client: one pool of HTTP connections for all shards of a topic, one producer
//! for all topics of the same Kafka brokers with the same attributes, one AMQP connection for all topics of the same broker
//! and user. A client ends with the last of its connections. [`ClientLimits`] bounds its memory, however many events are pushed.
//! This crate neither retries events nor manages queues.

mod amqp;
mod dial;
mod http;
mod kafka;
mod registry;
mod tls;

use nacre_notify::push::{Connection, EndpointConnector, PushFailure, PushMessage, PushTarget};
use nacre_topics::endpoint::{Endpoint, EndpointPolicy};
use nacre_topics::record::{self, DeliveredEvent};
use parking_lot::RwLock;
use registry::Registry;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Timeouts for one kind of endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// The longest time from the start of a push to its outcome; at least one second for Kafka.
    pub push: Duration,
    /// The longest time to connect, including TLS; at least one second for Kafka.
    pub connect: Duration,
}

impl Timeouts {
    const fn seconds(push: u64, connect: u64) -> Timeouts {
        Timeouts { push: Duration::from_secs(push), connect: Duration::from_secs(connect) }
    }
}

/// Limits of time and memory, which the gateway derives from its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// `rgw_http_notif_message_timeout` and `rgw_http_notif_connection_timeout`.
    pub http: Timeouts,
    /// `rgw_kafka_message_timeout`.
    pub kafka: Timeouts,
    /// `rgw_amqp_message_timeout` and `rgw_amqp_connection_timeout`.
    pub amqp: Timeouts,
    /// The time after which unused HTTP connections are closed.
    pub http_idle_timeout: Duration,
    /// `rgw_kafka_connection_idle`: the time after which unused Kafka connections are closed.
    pub kafka_idle_timeout: Duration,
    /// `rgw_kafka_max_batch_size`: the most bytes of events in one request to Kafka; `None` for librdkafka's default.
    pub kafka_batch_bytes: Option<u32>,
    /// `rgw_http_notif_max_connections`: the most simultaneous connections to one HTTP endpoint. Further requests wait for
    /// one of them.
    pub http_connections: usize,
    /// The number of connections to one HTTP endpoint that are used first. Additional ones are opened only for requests
    /// that had to wait.
    pub http_first_connections: usize,
    /// `rgw_notification_max_inflight`: the most events that one Kafka producer or AMQP connection holds. Further events
    /// wait for room, and fail if there is none in time.
    pub events_in_flight: usize,
}

/// The defaults of the options.
impl Default for ClientLimits {
    fn default() -> ClientLimits {
        ClientLimits {
            http: Timeouts::seconds(10, 5),
            kafka: Timeouts::seconds(5, 5),
            amqp: Timeouts::seconds(10, 5),
            http_idle_timeout: Duration::from_secs(60),
            kafka_idle_timeout: Duration::from_secs(300),
            kafka_batch_bytes: None,
            http_connections: 32,
            http_first_connections: 8,
            events_in_flight: 8192,
        }
    }
}

/// Opens connections to endpoints. Connections must be used within a tokio runtime.
pub struct EndpointClients {
    context: Arc<Context>,
    http: Registry<Endpoint, http::HttpClient>,
    producers: Registry<Endpoint, kafka::SharedProducer>,
    exchanges: Registry<Endpoint, amqp::Exchange>,
    brokers: Registry<Endpoint, amqp::Broker>,
}

/// State that all clients share.
struct Context {
    policy: RwLock<Arc<EndpointPolicy>>,
    limits: ClientLimits,
    /// The system's CA certificates, read when the first client needs them.
    system_roots: OnceLock<Arc<tls::RootCerts>>,
}

impl EndpointClients {
    /// Creates clients that may connect to the endpoints that `policy` allows.
    pub fn new(policy: EndpointPolicy, limits: ClientLimits) -> EndpointClients {
        let context =
            Context { policy: RwLock::new(Arc::new(policy)), limits, system_roots: OnceLock::new() };
        EndpointClients {
            context: Arc::new(context),
            http: Registry::default(),
            producers: Registry::default(),
            exchanges: Registry::default(),
            brokers: Registry::default(),
        }
    }

    /// Replaces the policy for all connections that are opened from now on.
    pub fn set_policy(&self, policy: EndpointPolicy) {
        *self.context.policy.write() = Arc::new(policy);
    }

    fn amqp_broker(
        &self,
        endpoint: &nacre_topics::endpoint::AmqpEndpoint,
    ) -> Result<Arc<amqp::Broker>, PushFailure> {
        let key = Endpoint::Amqp(amqp::broker_key(endpoint));
        self.brokers.get_or_make(&key, || amqp::Broker::new(&self.context, endpoint))
    }
}

impl EndpointConnector for EndpointClients {
    fn open(&self, target: &PushTarget) -> Result<Arc<dyn Connection>, PushFailure> {
        let key = &target.endpoint;
        match key {
            Endpoint::Http(endpoint) => {
                let client = self.http.get_or_make(key, || http::HttpClient::new(&self.context, endpoint))?;
                Ok(Arc::new(http::HttpConnection(client)))
            }
            Endpoint::Kafka(endpoint) => {
                if let (true, Some(queue)) = (endpoint.transactional, &target.queue) {
                    return Ok(Arc::new(kafka::TransactionalConnection::new(
                        &self.context,
                        endpoint,
                        queue,
                    )?));
                }
                let key = Endpoint::Kafka(kafka::producer_key(endpoint));
                let make = || kafka::SharedProducer::new(&self.context, endpoint);
                let producer = self.producers.get_or_make(&key, make)?;
                Ok(Arc::new(kafka::KafkaConnection::new(producer, &endpoint.topic)?))
            }
            Endpoint::Amqp(endpoint) => {
                let make = || Ok(amqp::Exchange::new(self.amqp_broker(endpoint)?, endpoint));
                let exchange = self.exchanges.get_or_make(key, make)?;
                Ok(Arc::new(amqp::AmqpConnection(exchange)))
            }
        }
    }
}

impl Context {
    fn policy(&self) -> Arc<EndpointPolicy> {
        self.policy.read().clone()
    }
}

/// The body of a message or request with these events.
fn body<'a>(messages: impl Iterator<Item = &'a PushMessage>) -> Vec<u8> {
    record::body(&messages.map(delivery).collect::<Vec<_>>())
}

fn delivery(message: &PushMessage) -> DeliveredEvent<'_> {
    DeliveredEvent {
        event: &message.event,
        opaque_data: &message.opaque_data,
        is_replayed: message.is_replayed,
    }
}

fn unavailable(reason: impl Into<String>) -> PushFailure {
    PushFailure::Unavailable(reason.into())
}

fn timed_out(timeouts: &Timeouts) -> PushFailure {
    unavailable(format!("no answer within {:?}", timeouts.push))
}

/// The text of an error, including its causes.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let reason = error.to_string();
        // Some errors repeat their cause.
        if !text.ends_with(&reason) {
            text = format!("{text}: {reason}");
        }
        cause = error.source();
    }
    text
}
