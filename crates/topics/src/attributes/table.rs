//! The list of all attributes.

/// Properties of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttributeInfo {
    /// Its name in requests.
    pub name: &'static str,
    /// Its default, as written in a request; empty if it has none.
    pub default: &'static str,
    /// Whether Ceph has this attribute.
    pub is_ceph: bool,
}

const fn ceph(name: &'static str, default: &'static str) -> AttributeInfo {
    AttributeInfo { name, default, is_ceph: true }
}

const fn nacre(name: &'static str, default: &'static str) -> AttributeInfo {
    AttributeInfo { name, default, is_ceph: false }
}

/// All attributes. docs/notifications.md has a row for each; a test compares them.
pub const ATTRIBUTE_TABLE: &[AttributeInfo] = &[
    ceph("push-endpoint", ""),
    ceph("persistent", "false"),
    ceph("OpaqueData", ""),
    ceph("time_to_live", "None"),
    ceph("max_retries", "None"),
    ceph("retry_sleep_duration", "None"),
    ceph("Policy", ""),
    ceph("verify-ssl", "true"),
    ceph("use-ssl", "false"),
    ceph("ca-location", ""),
    ceph("mechanism", "PLAIN"),
    ceph("user-name", ""),
    ceph("password", ""),
    ceph("cloudevents", "false"),
    ceph("kafka-ack-level", "broker"),
    ceph("kafka-brokers", ""),
    ceph("amqp-exchange", ""),
    ceph("amqp-ack-level", "broker"),
    nacre("batch-size", "1"),
    nacre("transactional", "false"),
    nacre("queue-full-policy", "spill"),
    nacre("queue-max-bytes", "None"),
];
