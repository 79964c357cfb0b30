//! Event records: the description of a change for consumers, in S3's format with Ceph's fields.
//!
//! Queues store [`Event`]s. An event's text is created at delivery, with the topic's `OpaqueData` at that time. All other
//! fields are determined together with the change, so they are the same at each delivery.

mod cloudevents;
mod json;

pub use cloudevents::headers as cloudevents_headers;

use crate::event::EventType;
use nacre_types::encoding::Versioned;
use serde::{Deserialize, Serialize};

/// An event for one configuration of a bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The event's type.
    pub event: EventType,
    /// The id of the configuration (`s3.configurationId`).
    pub configuration: String,
    /// The change's name, unique in the cluster: the tag of its index entry.
    pub change: String,
    /// The event's number among the events of its change.
    pub ordinal: u16,
    /// The request.
    pub request: RequestInfo,
    /// The bucket.
    pub bucket: BucketInfo,
    /// The object's key.
    pub key: String,
    /// The version that was created or removed.
    pub object: ObjectInfo,
}

/// The request or the background work that made a change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestInfo {
    /// When the change was made, in nanoseconds since 1970 (`eventTime`).
    pub time_ns: u64,
    /// The user who made the change (`userIdentity.principalId`).
    pub user: String,
    /// The client's address (`requestParameters.sourceIPAddress`); empty for background work.
    pub source_ip: String,
    /// The request's id (`responseElements.x-amz-request-id`).
    pub id: String,
    /// The gateway (`responseElements.x-amz-id-2`).
    pub host_id: String,
    /// The change's number in the request, from 0. DeleteObjects has a change for each key.
    pub position: u32,
}

/// The bucket of a changed object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketInfo {
    /// Its name.
    pub name: String,
    /// Its owner (`s3.bucket.ownerIdentity.principalId`).
    pub owner: String,
    /// Its id (`s3.bucket.id`).
    pub id: String,
    /// Its tenant, empty for the default one.
    pub tenant: String,
    /// The zone group (`awsRegion`).
    pub zonegroup: String,
}

/// The version of an object that a change created or removed. It is known once the change took effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectInfo {
    /// Its size in bytes.
    pub size: u64,
    /// Its ETag, without quotes.
    pub etag: String,
    /// Its version id; empty in a bucket without versions.
    pub version_id: String,
    /// The change's place in the order of the key's changes: 40 hexadecimal digits that sort in the order of the changes
    /// (`s3.object.sequencer`).
    pub sequencer: String,
    /// Names of metadata in lower case without `x-amz-meta-`, and their values.
    pub metadata: Vec<(String, String)>,
    /// Tags.
    pub tags: Vec<(String, String)>,
}

impl Versioned for Event {
    const NAME: &'static str = "notification event";
}

impl Event {
    /// `eventId`: unique for each event and the same at each delivery. `SECONDS.MICROSECONDS.CHANGE.ORDINAL`, the first two
    /// with leading zeros as in Ceph.
    pub fn id(&self) -> String {
        let (seconds, micros) =
            (self.request.time_ns / 1_000_000_000, self.request.time_ns % 1_000_000_000 / 1_000);
        format!("{seconds:010}.{micros:06}.{}.{}", self.change, self.ordinal)
    }

    /// The key of the event's message in Kafka, which decides the partition: `BUCKET/KEY`.
    pub fn message_key(&self) -> String {
        format!("{}/{}", self.bucket.name, self.key)
    }
}

/// An event with the fields that are added at delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveredEvent<'a> {
    /// The event.
    pub event: &'a Event,
    /// The topic's `OpaqueData`.
    pub opaque_data: &'a str,
    /// Whether an operator replays the event from the dead letters: it is marked with `"replayed":true`.
    pub is_replayed: bool,
}

/// The body of a message or request with these events: `{"Records":[…]}`.
pub fn body(deliveries: &[DeliveredEvent<'_>]) -> Vec<u8> {
    json::body(deliveries)
}

/// The `Idempotency-Key` of an HTTP request with these events: the id of a single event, or the ids of the first and the
/// last event and the number of events. A repeated request has the same key.
pub fn idempotency_key(deliveries: &[DeliveredEvent<'_>]) -> String {
    match deliveries {
        [] => String::new(),
        [only] => only.event.id(),
        [first, .., last] => format!("{}-{}-{}", first.event.id(), last.event.id(), deliveries.len()),
    }
}

#[cfg(test)]
mod tests;
