//! The text of event records. The order and the names of the fields are Ceph's.

use super::{DeliveredEvent, Event};
use crate::arn;
use crate::notification_config::METADATA_PREFIX;
use serde::ser::{Serialize, SerializeSeq as _, Serializer};

/// The version of S3's record format.
const EVENT_VERSION: &str = "2.2";
pub(super) const EVENT_SOURCE: &str = "ceph:s3";
const SCHEMA_VERSION: &str = "1.0";

pub(super) fn body(deliveries: &[DeliveredEvent<'_>]) -> Vec<u8> {
    let message = Message { records: deliveries.iter().map(Record::new).collect() };
    serde_json::to_vec(&message).expect("invariant: structures of texts and numbers have a JSON form")
}

#[derive(serde::Serialize)]
struct Message<'a> {
    #[serde(rename = "Records")]
    records: Vec<Record<'a>>,
}

#[derive(serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct Record<'a> {
    event_version: &'static str,
    event_source: &'static str,
    aws_region: &'a str,
    event_time: String,
    event_name: &'static str,
    user_identity: Identity<'a>,
    request_parameters: RequestParameters<'a>,
    response_elements: ResponseElements<'a>,
    s3: S3<'a>,
    event_id: String,
    opaque_data: &'a str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    replayed: bool,
}

#[derive(serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct Identity<'a> {
    principal_id: &'a str,
}

#[derive(serde::Serialize)]
struct RequestParameters<'a> {
    #[serde(rename = "sourceIPAddress")]
    source_ip: &'a str,
}

#[derive(serde::Serialize)]
struct ResponseElements<'a> {
    #[serde(rename = "x-amz-request-id")]
    request_id: &'a str,
    #[serde(rename = "x-amz-id-2")]
    host_id: &'a str,
}

#[derive(serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct S3<'a> {
    s3_schema_version: &'static str,
    configuration_id: &'a str,
    bucket: Bucket<'a>,
    object: Object<'a>,
}

#[derive(serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct Bucket<'a> {
    name: &'a str,
    owner_identity: Identity<'a>,
    arn: String,
    id: &'a str,
}

#[derive(serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct Object<'a> {
    key: &'a str,
    size: u64,
    e_tag: &'a str,
    version_id: &'a str,
    sequencer: &'a str,
    metadata: Pairs<'a>,
    tags: Pairs<'a>,
}

/// Pairs in Ceph's format for maps: a list of `{"key": …, "val": …}`.
struct Pairs<'a> {
    prefix: &'static str,
    pairs: &'a [(String, String)],
}

#[derive(serde::Serialize)]
struct Pair<'a> {
    key: String,
    val: &'a str,
}

impl Serialize for Pairs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.pairs.len()))?;
        for (name, value) in self.pairs {
            list.serialize_element(&Pair { key: format!("{}{name}", self.prefix), val: value })?;
        }
        list.end()
    }
}

impl<'a> Record<'a> {
    fn new(delivery: &DeliveredEvent<'a>) -> Record<'a> {
        let event: &'a Event = delivery.event;
        let (request, bucket, object) = (&event.request, &event.bucket, &event.object);
        Record {
            event_version: EVENT_VERSION,
            event_source: EVENT_SOURCE,
            aws_region: &bucket.zonegroup,
            event_time: nacre_types::time::stamp_z(request.time_ns),
            event_name: event.event.name(),
            user_identity: Identity { principal_id: &request.user },
            request_parameters: RequestParameters { source_ip: &request.source_ip },
            response_elements: ResponseElements { request_id: &request.id, host_id: &request.host_id },
            s3: S3 {
                s3_schema_version: SCHEMA_VERSION,
                configuration_id: &event.configuration,
                bucket: Bucket {
                    name: &bucket.name,
                    owner_identity: Identity { principal_id: &bucket.owner },
                    arn: arn::bucket(&bucket.zonegroup, &bucket.tenant, &bucket.name),
                    id: &bucket.id,
                },
                object: Object {
                    key: &event.key,
                    size: object.size,
                    e_tag: &object.etag,
                    version_id: &object.version_id,
                    sequencer: &object.sequencer,
                    metadata: Pairs { prefix: METADATA_PREFIX, pairs: &object.metadata },
                    tags: Pairs { prefix: "", pairs: &object.tags },
                },
            },
            event_id: event.id(),
            opaque_data: delivery.opaque_data,
            replayed: delivery.is_replayed,
        }
    }
}
