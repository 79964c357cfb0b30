//! Attributes of topics: names, defaults and meanings as in Ceph, and some of Nacre's own.
//!
//! An attribute that is absent or empty has its default. CreateTopic sets all attributes of a topic at once,
//! SetTopicAttributes a single one. [`Attributes::set`] checks a single value; [`Attributes::endpoint`] checks the
//! attributes together.

mod table;

pub use table::{ATTRIBUTE_TABLE, AttributeInfo};

use crate::error::{Error, Result, quoted};
use crate::secret::{MASK, Secret};
use crate::uri::{HostPort, KAFKA_PORT, PushEndpoint};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt::Write as _;

/// The longest `OpaqueData`, in bytes.
pub const MAX_OPAQUE_BYTES: usize = 8 << 10;
/// The longest `Policy`, in bytes: S3's limit for bucket policies.
pub const MAX_POLICY_BYTES: usize = 20 << 10;
/// The most events in one push.
pub const MAX_BATCH_SIZE: u32 = 1000;
/// The most entries of `kafka-brokers`.
const MAX_BROKERS: usize = 32;
/// The longest user name, password and path of a CA file, in bytes.
const MAX_TEXT_BYTES: usize = 1024;
/// The longest AMQP exchange, in bytes: the limit of the protocol.
const MAX_EXCHANGE_BYTES: usize = 255;
/// The text that clients and Ceph write for the default of a number.
pub(crate) const DEFAULT_NUMBER: &str = "None";

/// Defines an enumeration for one attribute, whose values have names.
macro_rules! named {
    ($(#[$meta:meta])* $name:ident, $attribute:literal { $($(#[$variant_meta:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$variant_meta])* $variant,)+
        }

        impl $name {
            /// The value's name in the attribute.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }

            fn parse(text: &str) -> Result<$name> {
                match text {
                    $($text => Ok(Self::$variant),)+
                    _ => {
                        let known = [$($text),+].join(", ");
                        Err(Error::invalid($attribute, format!("{} is not one of {known}", quoted(text))))
                    }
                }
            }
        }
    };
}

named! {
    /// When an event counts as delivered to Kafka (`kafka-ack-level`).
    KafkaAckLevel, "kafka-ack-level" {
        /// When it was sent. It may be lost.
        None = "none",
        /// When all in-sync replicas of the broker's partition have it.
        #[default]
        Broker = "broker",
    }
}

named! {
    /// When an event counts as delivered to AMQP (`amqp-ack-level`).
    AmqpAckLevel, "amqp-ack-level" {
        /// When it was sent. It may be lost.
        None = "none",
        /// When the broker confirmed it.
        #[default]
        Broker = "broker",
        /// When the broker confirmed it and a queue was bound for it.
        Routable = "routable",
    }
}

named! {
    /// How a client authenticates to Kafka (`mechanism`).
    Mechanism, "mechanism" {
        /// User name and password.
        #[default]
        Plain = "PLAIN",
        /// Challenge and response with SHA-256.
        ScramSha256 = "SCRAM-SHA-256",
        /// Challenge and response with SHA-512.
        ScramSha512 = "SCRAM-SHA-512",
    }
}

named! {
    /// The action if the events of a topic exceed the size limit of its queues (`queue-full-policy`).
    FullQueuePolicy, "queue-full-policy" {
        /// Additional objects hold the excess events: no operation fails because a consumer is slow.
        #[default]
        Spill = "spill",
        /// Operations that would have events are refused with SlowDown before they start.
        Refuse = "refuse",
        /// The oldest events are dropped and counted.
        DropOldest = "drop-oldest",
    }
}

/// The attributes of a topic. `None` and empty texts mean the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// `push-endpoint`: the destination of events. A topic without one has no events.
    pub push_endpoint: Option<PushEndpoint>,
    /// `persistent`: whether events are queued and delivered asynchronously.
    pub persistent: bool,
    /// `OpaqueData`: text that every event of the topic carries.
    pub opaque_data: String,
    /// `time_to_live`: seconds after which an event that could not be delivered expires; 0 for never.
    pub time_to_live: Option<u32>,
    /// `max_retries`: retries after which an event expires; 0 for any number.
    pub max_retries: Option<u32>,
    /// `retry_sleep_duration`: seconds between two attempts to deliver an event.
    pub retry_sleep_duration: Option<u32>,
    /// `Policy`: who else may use the topic. JSON in AWS's policy language. Only its outer form is checked here; the
    /// gateway parses and evaluates it.
    pub policy: String,
    /// `verify-ssl`: whether the endpoint's certificate is verified.
    pub verify_ssl: Option<bool>,
    /// `use-ssl`: whether connections to Kafka use TLS.
    pub use_ssl: Option<bool>,
    /// `ca-location`: a file with the CA certificates for verifying the endpoint's certificate.
    pub ca_location: Option<String>,
    /// `mechanism`: how the gateway authenticates to Kafka.
    pub mechanism: Option<Mechanism>,
    /// `user-name`: the user that the gateway authenticates as. Used only together with `password`.
    pub user_name: Option<Secret>,
    /// `password`: that user's password.
    pub password: Option<Secret>,
    /// `cloudevents`: whether HTTP requests have the headers of CloudEvents.
    pub cloudevents: Option<bool>,
    /// `kafka-ack-level`.
    pub kafka_ack_level: Option<KafkaAckLevel>,
    /// `kafka-brokers`: brokers in addition to those of `push-endpoint`.
    pub kafka_brokers: Vec<HostPort>,
    /// `amqp-exchange`: the exchange that receives the events.
    pub amqp_exchange: Option<String>,
    /// `amqp-ack-level`.
    pub amqp_ack_level: Option<AmqpAckLevel>,
    /// `batch-size`: the most events in one HTTP request. Not in Ceph.
    pub batch_size: Option<u32>,
    /// `transactional`: whether events are written to Kafka in transactions. Not in Ceph.
    pub transactional: Option<bool>,
    /// `queue-full-policy`. Not in Ceph.
    pub full_queue_policy: Option<FullQueuePolicy>,
    /// `queue-max-bytes`: the size limit of all queues of the topic together. Not in Ceph.
    pub queue_max_bytes: Option<u64>,
}

impl Attributes {
    /// The attributes of CreateTopic. Attributes that are not in `pairs` have their defaults.
    pub fn from_pairs(pairs: &[(String, String)]) -> Result<Attributes> {
        let mut attributes = Attributes::default();
        for (at, (name, value)) in pairs.iter().enumerate() {
            if pairs[..at].iter().any(|(earlier, _)| earlier == name) {
                return Err(Error::invalid("Attributes", format!("{} is given twice", quoted(name))));
            }
            attributes.set(name, value)?;
        }
        Ok(attributes)
    }

    /// Sets one attribute, or resets it to its default if the value is empty.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        match name {
            "push-endpoint" => self.push_endpoint = given(value).map(PushEndpoint::parse).transpose()?,
            "persistent" => {
                self.persistent = given(value).map(|v| boolean(name, v)).transpose()?.unwrap_or(false)
            }
            "OpaqueData" => self.opaque_data = bounded(name, value, MAX_OPAQUE_BYTES)?.to_owned(),
            "time_to_live" => self.time_to_live = number(name, value)?,
            "max_retries" => self.max_retries = number(name, value)?,
            "retry_sleep_duration" => self.retry_sleep_duration = number(name, value)?,
            "Policy" => self.policy = policy(value)?.to_owned(),
            "verify-ssl" => self.verify_ssl = given(value).map(|v| boolean(name, v)).transpose()?,
            "use-ssl" => self.use_ssl = given(value).map(|v| boolean(name, v)).transpose()?,
            "ca-location" => self.ca_location = line(name, value, MAX_TEXT_BYTES)?.map(str::to_owned),
            "mechanism" => self.mechanism = given(value).map(mechanism).transpose()?,
            "user-name" => self.user_name = line(name, value, MAX_TEXT_BYTES)?.map(Secret::new),
            "password" => self.password = password(value)?,
            "cloudevents" => self.cloudevents = given(value).map(|v| boolean(name, v)).transpose()?,
            "kafka-ack-level" => self.kafka_ack_level = given(value).map(KafkaAckLevel::parse).transpose()?,
            "kafka-brokers" => self.kafka_brokers = brokers(value)?,
            "amqp-exchange" => self.amqp_exchange = line(name, value, MAX_EXCHANGE_BYTES)?.map(str::to_owned),
            "amqp-ack-level" => self.amqp_ack_level = given(value).map(AmqpAckLevel::parse).transpose()?,
            "batch-size" => self.batch_size = batch_size(value)?,
            "transactional" => self.transactional = given(value).map(|v| boolean(name, v)).transpose()?,
            "queue-full-policy" => {
                self.full_queue_policy = given(value).map(FullQueuePolicy::parse).transpose()?
            }
            "queue-max-bytes" => self.queue_max_bytes = queue_max_bytes(value)?,
            _ => {
                return Err(Error::invalid(
                    "AttributeName",
                    format!("there is no attribute {}", quoted(name)),
                ));
            }
        }
        Ok(())
    }

    /// Whether the topic has queues: it is persistent and has an endpoint.
    pub fn is_queued(&self) -> bool {
        self.persistent && self.push_endpoint.is_some()
    }

    /// Whether an attribute holds a secret: credentials in the endpoint's URI, or a password.
    pub fn has_secret(&self) -> bool {
        self.password.is_some() || self.push_endpoint.as_ref().is_some_and(PushEndpoint::has_credentials)
    }

    /// The action for events that exceed the size limit.
    pub fn full_queue_policy(&self) -> FullQueuePolicy {
        self.full_queue_policy.unwrap_or_default()
    }

    /// The attributes of the endpoint that were set, as Ceph prints them (`EndpointArgs`): `NAME=VALUE` joined by `&`, in
    /// the order of the names. Credentials are left out.
    pub fn endpoint_args(&self) -> String {
        let boolean = |value: Option<bool>| value.map(|value| value.to_string());
        let brokers: Vec<String> = self.kafka_brokers.iter().map(HostPort::to_string).collect();
        let pairs = [
            ("amqp-ack-level", self.amqp_ack_level.map(|level| level.as_str().to_owned())),
            ("amqp-exchange", self.amqp_exchange.clone()),
            ("batch-size", self.batch_size.map(|size| size.to_string())),
            ("ca-location", self.ca_location.clone()),
            ("cloudevents", boolean(self.cloudevents)),
            ("kafka-ack-level", self.kafka_ack_level.map(|level| level.as_str().to_owned())),
            ("kafka-brokers", (!brokers.is_empty()).then(|| brokers.join(","))),
            ("mechanism", self.mechanism.map(|mechanism| mechanism.as_str().to_owned())),
            ("queue-full-policy", self.full_queue_policy.map(|policy| policy.as_str().to_owned())),
            ("queue-max-bytes", self.queue_max_bytes.map(|bytes| bytes.to_string())),
            ("transactional", boolean(self.transactional)),
            ("use-ssl", boolean(self.use_ssl)),
            ("verify-ssl", boolean(self.verify_ssl)),
        ];
        let mut text = String::new();
        for (name, value) in pairs.iter().filter_map(|(name, value)| Some((name, value.as_ref()?))) {
            let separator = if text.is_empty() { "" } else { "&" };
            _ = write!(text, "{separator}{name}={value}");
        }
        text
    }
}

/// A value that is not empty.
fn given(value: &str) -> Option<&str> {
    Some(value).filter(|value| !value.is_empty())
}

fn boolean(name: &str, value: &str) -> Result<bool> {
    let is = |words: &[&str]| words.iter().any(|word| value.eq_ignore_ascii_case(word));
    if is(&["true", "yes", "on", "1"]) {
        return Ok(true);
    }
    if is(&["false", "no", "off", "0"]) {
        return Ok(false);
    }
    Err(Error::invalid(name, format!("{} is neither true nor false", quoted(value))))
}

/// A number, `None` for the default.
fn number<N: std::str::FromStr>(name: &str, value: &str) -> Result<Option<N>> {
    let Some(value) = given(value).filter(|value| *value != DEFAULT_NUMBER) else { return Ok(None) };
    let is_number = value.bytes().all(|byte| byte.is_ascii_digit());
    let number = value.parse::<N>().ok().filter(|_| is_number);
    number
        .map(Some)
        .ok_or_else(|| Error::invalid(name, format!("{} is not a number in its range", quoted(value))))
}

/// A SASL mechanism. Mechanisms that Ceph supports but the Kafka client is built without are refused by name.
fn mechanism(value: &str) -> Result<Mechanism> {
    match value {
        "GSSAPI" | "OAUTHBEARER" => Err(Error::invalid("mechanism", format!("{value} is not supported"))),
        _ => Mechanism::parse(value),
    }
}

fn batch_size(value: &str) -> Result<Option<u32>> {
    let size = number("batch-size", value)?;
    match size {
        Some(size) if !(1..=MAX_BATCH_SIZE).contains(&size) => {
            Err(Error::invalid("batch-size", format!("{size} is not between 1 and {MAX_BATCH_SIZE}")))
        }
        size => Ok(size),
    }
}

fn queue_max_bytes(value: &str) -> Result<Option<u64>> {
    match number("queue-max-bytes", value)? {
        Some(0) => Err(Error::invalid("queue-max-bytes", "a queue of no bytes takes no events")),
        bytes => Ok(bytes),
    }
}

/// A text of at most `most` bytes.
fn bounded<'a>(name: &str, value: &'a str, most: usize) -> Result<&'a str> {
    if value.len() > most {
        return Err(Error::invalid(name, format!("longer than {most} bytes")));
    }
    // XML replies could not contain other characters.
    if value.chars().all(crate::xml::is_allowed) {
        return Ok(value);
    }
    Err(Error::invalid(name, "has control characters"))
}

/// A text of one line that is not empty.
fn line<'a>(name: &str, value: &'a str, most: usize) -> Result<Option<&'a str>> {
    let value = bounded(name, value, most)?;
    if value.chars().any(char::is_control) {
        return Err(Error::invalid(name, "has control characters"));
    }
    Ok(given(value))
}

fn password(value: &str) -> Result<Option<Secret>> {
    if value == MASK {
        return Err(Error::invalid("password", "this is the mask that answers show in its place"));
    }
    Ok(line("password", value, MAX_TEXT_BYTES)?.map(Secret::new))
}

fn brokers(value: &str) -> Result<Vec<HostPort>> {
    let Some(value) = line("kafka-brokers", value, MAX_TEXT_BYTES * 8)? else { return Ok(Vec::new()) };
    let brokers: Vec<HostPort> = value
        .split(',')
        .map(|broker| HostPort::parse(broker.trim(), KAFKA_PORT))
        .collect::<Option<_>>()
        .ok_or_else(|| Error::invalid("kafka-brokers", "not a list of HOST:PORT with commas between them"))?;
    if brokers.len() > MAX_BROKERS {
        return Err(Error::TooLarge { what: "the number of kafka-brokers", limit: MAX_BROKERS });
    }
    Ok(brokers)
}

/// Checks the outer form of a policy: a JSON object with one statement or a list of statements, each with an effect and
/// actions. The gateway parses the rest.
fn policy(text: &str) -> Result<&str> {
    let wrong = |reason: &str| Error::invalid("Policy", reason);
    let Some(text) = given(text) else { return Ok("") };
    if text.len() > MAX_POLICY_BYTES {
        return Err(Error::TooLarge { what: "Policy in bytes", limit: MAX_POLICY_BYTES });
    }
    let document = bounded("Policy", text, MAX_POLICY_BYTES)?;
    let document: Value =
        serde_json::from_str(document).map_err(|error| wrong(&format!("not JSON: {error}")))?;
    let statements = match document.get("Statement") {
        Some(Value::Array(statements)) if !statements.is_empty() => statements.as_slice(),
        Some(statement @ Value::Object(_)) => std::slice::from_ref(statement),
        _ => return Err(wrong("has no Statement")),
    };
    for statement in statements {
        if !matches!(statement.get("Effect").and_then(Value::as_str), Some("Allow" | "Deny")) {
            return Err(wrong("a statement's Effect is neither Allow nor Deny"));
        }
        if statement.get("Action").or_else(|| statement.get("NotAction")).is_none() {
            return Err(wrong("a statement has no Action"));
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
