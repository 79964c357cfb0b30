//! CloudEvents in binary mode: attributes of an event as headers of its HTTP request, as Ceph sends them. They follow the
//! CloudEvents adapter for S3 and the HTTP protocol binding, version 1.0.

use super::{Event, json};
use std::fmt::Write as _;

/// The headers of a request with that event, including `content-type`. Values are printable ASCII.
///
/// As in Ceph, `ce-id` consists of the ids of the request and of the gateway, for the first event of a request. Other
/// events of the request append the numbers of the change and of the event, because CloudEvents treats events with the same
/// source and id as duplicates.
pub fn headers(event: &Event) -> [(&'static str, String); 7] {
    let (request, bucket) = (&event.request, &event.bucket);
    let mut id = format!("{}.{}", request.id, request.host_id);
    if (request.position, event.ordinal) != (0, 0) {
        _ = write!(id, ".{}.{}", request.position, event.ordinal);
    }
    [
        ("ce-specversion", "1.0".to_owned()),
        ("ce-type", format!("com.amazonaws.{}", event.event.name())),
        ("ce-time", nacre_types::time::stamp_z(request.time_ns)),
        ("ce-id", encoded(&id)),
        ("ce-source", encoded(&format!("{}.{}.{}", json::EVENT_SOURCE, bucket.zonegroup, bucket.name))),
        ("ce-subject", encoded(&event.key)),
        ("content-type", "application/json".to_owned()),
    ]
}

/// Encodes a value as the binding requires: spaces, `"`, `%` and all bytes other than printable ASCII are percent-encoded.
fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_graphic() && byte != b'"' && byte != b'%' {
            out.push(char::from(byte));
        } else {
            _ = write!(out, "%{byte:02X}");
        }
    }
    out
}
