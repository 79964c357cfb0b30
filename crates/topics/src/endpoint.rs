//! Push endpoints: the destination of a topic's events, built from its `push-endpoint` URI and its other attributes.
//!
//! An [`Endpoint`] is complete: its defaults are filled in, and its attributes are checked together. [`EndpointPolicy`]
//! decides whether the gateway's options allow it, and checks the addresses of its host names at each connection. Errors,
//! `Debug` and `Display` never show a password, or the path of an HTTP endpoint, which may contain one.

mod policy;

pub use crate::uri::{Credentials, HostPort, KAFKA_PORT, PushEndpoint};
pub use policy::{CA_FOLDER_OPTION, CLEARTEXT_OPTION, EndpointPolicy, LOCAL_OPTION};

use crate::attributes::{AmqpAckLevel, Attributes, KafkaAckLevel, Mechanism};
use crate::error::{Error, Result};
use crate::secret::{MASK, Secret};
use crate::uri::{self, Uri};
use std::fmt;

const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;
const AMQP_PORT: u16 = 5672;
const AMQPS_PORT: u16 = 5671;
/// The host of `kafka://` without a host and without `kafka-brokers`.
const DEFAULT_KAFKA_HOST: &str = "localhost";
/// AMQP's user and password if none is given.
const AMQP_GUEST: &str = "guest";
/// The longest name of a Kafka topic, in bytes.
const MAX_KAFKA_TOPIC_BYTES: usize = 249;
/// The longest routing key and the longest virtual host of AMQP, in bytes.
const MAX_AMQP_BYTES: usize = 255;

/// The destination of a topic's events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Requests to an HTTP server.
    Http(HttpEndpoint),
    /// Messages to a Kafka topic.
    Kafka(KafkaEndpoint),
    /// Messages to an AMQP 0-9-1 exchange.
    Amqp(AmqpEndpoint),
}

/// An HTTP server that takes events by POST.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpEndpoint {
    /// The server.
    pub server: HostPort,
    /// Whether connections use TLS.
    pub tls: bool,
    /// Path and query, with a leading `/`. It is secret because many services accept a token there.
    pub target: Secret,
    /// For HTTP's basic authentication.
    pub credentials: Option<Credentials>,
    /// Whether the server's certificate is verified.
    pub verify_ssl: bool,
    /// The file with the CA certificates; `None` for those of the system.
    pub ca_location: Option<String>,
    /// Whether requests have the headers of CloudEvents.
    pub cloudevents: bool,
    /// The most events in one request, at least 1.
    pub batch_size: u32,
}

/// A topic of Kafka.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KafkaEndpoint {
    /// The bootstrap brokers, at least one.
    pub brokers: Vec<HostPort>,
    /// Kafka's topic: the name of the gateway's topic.
    pub topic: String,
    /// Whether connections use TLS.
    pub tls: bool,
    /// Whether the brokers' certificates are verified.
    pub verify_ssl: bool,
    /// The file with the CA certificates; `None` for those of the system.
    pub ca_location: Option<String>,
    /// For SASL.
    pub credentials: Option<Credentials>,
    /// The SASL mechanism; `None` if the client does not authenticate.
    pub mechanism: Option<Mechanism>,
    /// When an event counts as delivered.
    pub ack_level: KafkaAckLevel,
    /// Whether events are written in transactions.
    pub transactional: bool,
}

/// An exchange of an AMQP 0-9-1 broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AmqpEndpoint {
    /// The broker.
    pub server: HostPort,
    /// Whether connections use TLS.
    pub tls: bool,
    /// The virtual host.
    pub vhost: String,
    /// The exchange.
    pub exchange: String,
    /// The routing key of every message: the name of the gateway's topic.
    pub routing_key: String,
    /// The user; `guest` if none is given.
    pub credentials: Credentials,
    /// Whether the broker's certificate is verified.
    pub verify_ssl: bool,
    /// The file with the CA certificates; `None` for those of the system.
    pub ca_location: Option<String>,
    /// When an event counts as delivered.
    pub ack_level: AmqpAckLevel,
}

impl Attributes {
    /// The endpoint of the topic `topic` with these attributes; `None` if they name none. Checks all attributes together.
    /// [`EndpointPolicy::check`] checks whether the gateway's options allow the endpoint.
    pub fn endpoint(&self, topic: &str) -> Result<Option<Endpoint>> {
        match &self.push_endpoint {
            Some(push_endpoint) => Endpoint::new(push_endpoint, topic, self).map(Some),
            None => Ok(None),
        }
    }
}

impl Endpoint {
    /// Builds the endpoint of the topic `topic` from the URI `push_endpoint` and the other attributes.
    pub fn new(push_endpoint: &PushEndpoint, topic: &str, attributes: &Attributes) -> Result<Endpoint> {
        let uri = push_endpoint.uri()?;
        let endpoint = match uri.scheme {
            "http" | "https" => Endpoint::Http(HttpEndpoint::new(&uri, attributes)?),
            "kafka" => Endpoint::Kafka(KafkaEndpoint::new(&uri, topic, attributes)?),
            _ => Endpoint::Amqp(AmqpEndpoint::new(&uri, topic, attributes)?),
        };
        let (is_http, is_kafka) =
            (matches!(endpoint, Endpoint::Http(_)), matches!(endpoint, Endpoint::Kafka(_)));
        if !is_http && attributes.batch_size.is_some_and(|size| size > 1) {
            return Err(Error::invalid("batch-size", "only HTTP endpoints take several events at once"));
        }
        if !is_kafka && attributes.transactional == Some(true) {
            return Err(Error::invalid("transactional", "only Kafka endpoints have transactions"));
        }
        Ok(endpoint)
    }

    /// The servers for the first connections. Kafka's brokers may name others later.
    pub fn servers(&self) -> &[HostPort] {
        match self {
            Endpoint::Http(http) => std::slice::from_ref(&http.server),
            Endpoint::Kafka(kafka) => &kafka.brokers,
            Endpoint::Amqp(amqp) => std::slice::from_ref(&amqp.server),
        }
    }

    /// Whether connections use TLS.
    pub fn is_tls(&self) -> bool {
        match self {
            Endpoint::Http(http) => http.tls,
            Endpoint::Kafka(kafka) => kafka.tls,
            Endpoint::Amqp(amqp) => amqp.tls,
        }
    }

    /// The file with the CA certificates for verifying the endpoint's certificate.
    pub fn ca_location(&self) -> Option<&str> {
        match self {
            Endpoint::Http(http) => http.ca_location.as_deref(),
            Endpoint::Kafka(kafka) => kafka.ca_location.as_deref(),
            Endpoint::Amqp(amqp) => amqp.ca_location.as_deref(),
        }
    }

    /// The credentials that are sent to the endpoint; `None` for AMQP's `guest`, which is public.
    pub fn secret_credentials(&self) -> Option<&Credentials> {
        match self {
            Endpoint::Http(http) => http.credentials.as_ref(),
            Endpoint::Kafka(kafka) => kafka.credentials.as_ref(),
            Endpoint::Amqp(amqp) => Some(&amqp.credentials).filter(|known| !known.is_guest()),
        }
    }
}

/// For logs and commands: scheme, user and servers, without passwords, paths and queries.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match (self, self.is_tls()) {
            (Endpoint::Http(_), false) => "http",
            (Endpoint::Http(_), true) => "https",
            (Endpoint::Kafka(_), _) => "kafka",
            (Endpoint::Amqp(_), false) => "amqp",
            (Endpoint::Amqp(_), true) => "amqps",
        };
        write!(f, "{scheme}://")?;
        if let Some(credentials) = self.secret_credentials() {
            write!(f, "{}:{MASK}@", urlencoding::encode(&credentials.user))?;
        }
        for (at, server) in self.servers().iter().enumerate() {
            write!(f, "{}{server}", if at > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

impl Credentials {
    fn guest() -> Credentials {
        Credentials { user: AMQP_GUEST.to_owned(), password: Secret::new(AMQP_GUEST) }
    }

    fn is_guest(&self) -> bool {
        self.user == AMQP_GUEST && self.password.reveal() == AMQP_GUEST
    }

    /// The credentials of the attributes `user-name` and `password` if both are set, otherwise those of the URI.
    fn of(uri: &Uri<'_>, attributes: &Attributes) -> Option<Credentials> {
        match (&attributes.user_name, &attributes.password) {
            (Some(user), Some(password)) => {
                Some(Credentials { user: user.reveal().to_owned(), password: password.clone() })
            }
            _ => uri.credentials.clone(),
        }
    }
}

impl HttpEndpoint {
    fn new(uri: &Uri<'_>, attributes: &Attributes) -> Result<HttpEndpoint> {
        let tls = uri.scheme == "https";
        let (cloudevents, batch_size) =
            (attributes.cloudevents.unwrap_or(false), attributes.batch_size.unwrap_or(1));
        if cloudevents && batch_size > 1 {
            return Err(Error::invalid("batch-size", "CloudEvents in binary mode go one by one"));
        }
        let slash = if uri.target.starts_with('/') { "" } else { "/" };
        let credentials = Credentials::of(uri, attributes);
        if credentials.as_ref().is_some_and(|known| known.user.contains(':')) {
            return Err(Error::invalid("user-name", "HTTP's basic authentication has no way to send a ':'"));
        }
        Ok(HttpEndpoint {
            server: uri.single_server(if tls { HTTPS_PORT } else { HTTP_PORT })?,
            tls,
            target: Secret::new(format!("{slash}{}", uri.target)),
            credentials,
            verify_ssl: attributes.verify_ssl.unwrap_or(true),
            ca_location: attributes.ca_location.clone(),
            cloudevents,
            batch_size,
        })
    }

    /// The URL of requests, without the credentials. It may hold secrets.
    pub fn url(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}{}", self.server, self.target.reveal())
    }
}

impl KafkaEndpoint {
    fn new(uri: &Uri<'_>, topic: &str, attributes: &Attributes) -> Result<KafkaEndpoint> {
        if !matches!(uri.target, "" | "/") {
            return Err(Error::invalid(
                "push-endpoint",
                "a kafka URI has no path: the topic is the gateway's",
            ));
        }
        if topic.len() > MAX_KAFKA_TOPIC_BYTES {
            return Err(Error::invalid(
                "Name",
                format!("Kafka's topics have names of at most {MAX_KAFKA_TOPIC_BYTES} bytes"),
            ));
        }
        let mut brokers = uri.servers(KAFKA_PORT)?;
        for broker in &attributes.kafka_brokers {
            if !brokers.contains(broker) {
                brokers.push(broker.clone());
            }
        }
        if brokers.is_empty() {
            brokers.push(HostPort { host: DEFAULT_KAFKA_HOST.to_owned(), port: KAFKA_PORT });
        }
        let ack_level = attributes.kafka_ack_level.unwrap_or_default();
        let transactional = attributes.transactional.unwrap_or(false);
        if transactional && ack_level == KafkaAckLevel::None {
            return Err(Error::invalid("transactional", "transactions need the kafka-ack-level broker"));
        }
        if transactional && !attributes.persistent {
            return Err(Error::invalid("transactional", "transactions need a persistent topic"));
        }
        let credentials = Credentials::of(uri, attributes);
        // Every mechanism needs credentials, so PLAIN is the default only if there are some.
        let mechanism = credentials.is_some().then(|| attributes.mechanism.unwrap_or_default());
        Ok(KafkaEndpoint {
            brokers,
            topic: topic.to_owned(),
            tls: attributes.use_ssl.unwrap_or(false),
            verify_ssl: attributes.verify_ssl.unwrap_or(true),
            ca_location: attributes.ca_location.clone(),
            credentials,
            mechanism,
            ack_level,
            transactional,
        })
    }
}

impl AmqpEndpoint {
    fn new(uri: &Uri<'_>, topic: &str, attributes: &Attributes) -> Result<AmqpEndpoint> {
        let tls = uri.scheme == "amqps";
        let exchange = attributes
            .amqp_exchange
            .clone()
            .ok_or_else(|| Error::invalid("amqp-exchange", "an AMQP endpoint needs an exchange"))?;
        if topic.len() > MAX_AMQP_BYTES {
            let reason = format!("AMQP's routing keys have at most {MAX_AMQP_BYTES} bytes");
            return Err(Error::invalid("Name", reason));
        }
        Ok(AmqpEndpoint {
            server: uri.single_server(if tls { AMQPS_PORT } else { AMQP_PORT })?,
            tls,
            vhost: vhost(uri.target)?,
            exchange,
            routing_key: topic.to_owned(),
            credentials: Credentials::of(uri, attributes).unwrap_or_else(Credentials::guest),
            verify_ssl: attributes.verify_ssl.unwrap_or(true),
            ca_location: attributes.ca_location.clone(),
            ack_level: attributes.amqp_ack_level.unwrap_or_default(),
        })
    }
}

/// The virtual host in a URI's path; `/` if the path is empty.
fn vhost(path: &str) -> Result<String> {
    let wrong =
        || Error::invalid("push-endpoint", "an amqp URI has one virtual host as its path, and no query");
    let encoded = path.strip_prefix('/').unwrap_or(path);
    if encoded.contains(['/', '?']) {
        return Err(wrong());
    }
    let vhost = uri::percent_decode(encoded).ok_or_else(wrong)?;
    if vhost.len() > MAX_AMQP_BYTES {
        return Err(wrong());
    }
    Ok(if vhost.is_empty() { "/".to_owned() } else { vhost })
}

#[cfg(test)]
mod tests;
