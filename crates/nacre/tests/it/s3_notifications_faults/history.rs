//! The operations of clients, their answers, and the events that a consumer received. Plain data: no clock and no I/O.

use serde_json::Value;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// The bucket without versions, and the one with versions.
pub(super) const PLAIN: &str = "plain";
pub(super) const VERSIONED: &str = "versioned";

/// The end time of an operation that was never answered.
pub(super) const NEVER: u64 = u64::MAX;

/// When an operation was invoked and answered, in microseconds since the start of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpInterval {
    pub(super) invoked: u64,
    pub(super) answered: u64,
}

/// The change that an operation requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OpKind {
    /// With `If-None-Match: *` if `only_new`.
    Put {
        only_new: bool,
    },
    Copy,
    /// The completion of a multipart upload.
    Complete,
    /// The removal of the object; in a versioned bucket a new delete marker.
    Delete,
    /// The removal of a version.
    DeleteVersion(String),
    /// New tags for the current version, or for a given one.
    Tag,
    /// An aborted upload, or a completion repeated after its answer: never has an event.
    Nothing,
}

impl OpKind {
    /// Whether it creates an object or a version with data.
    pub(super) fn is_creation(&self) -> bool {
        matches!(self, OpKind::Put { .. } | OpKind::Copy | OpKind::Complete)
    }

    /// The `eventName` of its event, or `None` if it has none.
    pub(super) fn event_name(&self, bucket: &str) -> Option<&'static str> {
        Some(match self {
            OpKind::Put { .. } => "ObjectCreated:Put",
            OpKind::Copy => "ObjectCreated:Copy",
            OpKind::Complete => "ObjectCreated:CompleteMultipartUpload",
            OpKind::Delete if bucket == VERSIONED => "ObjectRemoved:DeleteMarkerCreated",
            OpKind::Delete | OpKind::DeleteVersion(_) => "ObjectRemoved:Delete",
            OpKind::Tag => "ObjectTagging:Put",
            OpKind::Nothing => return None,
        })
    }

    /// Whether an acknowledged one certainly took effect. Removals of missing objects are acknowledged, too.
    pub(super) fn has_certain_effect(&self, bucket: &str) -> bool {
        match self {
            OpKind::Put { .. } | OpKind::Copy | OpKind::Complete | OpKind::Tag => true,
            OpKind::Delete => bucket == VERSIONED,
            OpKind::DeleteVersion(_) | OpKind::Nothing => false,
        }
    }
}

/// The outcome of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OpOutcome {
    /// With the version from the answer, and the id of the request.
    Acknowledged { version: Option<String>, request_id: String },
    /// By an error of the client (4xx): it has no effect.
    Refused,
    /// No answer, or an error of the server.
    Unknown,
}

/// One change of one key that a client requested. The keys of one DeleteObjects are operations with the same number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Operation {
    /// The request's number. Its connection has the source address [`address_of`], so events identify it.
    pub(super) number: u32,
    pub(super) bucket: String,
    pub(super) key: String,
    pub(super) kind: OpKind,
    pub(super) span: OpInterval,
    pub(super) outcome: OpOutcome,
}

/// The result of a read: the object that the operation `number` wrote, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReadObservation {
    pub(super) bucket: String,
    pub(super) key: String,
    pub(super) span: OpInterval,
    pub(super) number: Option<u32>,
}

/// All operations of the clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct History {
    pub(super) operations: Vec<Operation>,
    pub(super) reads: Vec<ReadObservation>,
}

/// A version in a bucket's listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) id: String,
    pub(super) is_marker: bool,
    pub(super) is_latest: bool,
    /// The operation whose number is in its metadata, or `None` if that was not read.
    pub(super) number: Option<u32>,
}

/// The final state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FinalState {
    /// The objects of [`PLAIN`] by key: the number of the operation that wrote each, and of the operation that tagged it.
    pub(super) objects: BTreeMap<String, (u32, Option<u32>)>,
    /// The versions of [`VERSIONED`] by key: those with data, newest first, and then the delete markers, newest first.
    pub(super) versions: BTreeMap<String, Vec<Version>>,
}

/// An event as the consumer received it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) bucket: String,
    pub(super) key: String,
    pub(super) version: String,
    pub(super) sequencer: String,
    /// The operation that its source address identifies.
    pub(super) number: Option<u32>,
    pub(super) request_id: String,
}

impl Event {
    /// The event of a record, or `None` if a field is missing.
    pub(super) fn of_record(record: &Value) -> Option<Event> {
        let text = |path: &str| record.pointer(path).and_then(Value::as_str).map(str::to_owned);
        Some(Event {
            id: text("/eventId")?,
            name: text("/eventName")?,
            bucket: text("/s3/bucket/name")?,
            key: text("/s3/object/key")?,
            version: text("/s3/object/versionId")?,
            sequencer: text("/s3/object/sequencer")?,
            number: text("/requestParameters/sourceIPAddress")?.parse().ok().and_then(number_of),
            request_id: text("/responseElements/x-amz-request-id")?,
        })
    }
}

/// Maximum number of operations of a run: the number of usable loopback addresses.
pub(super) const MAX_OPERATIONS: u32 = 100 << 16;

/// The loopback address from which the requests of an operation are sent.
pub(super) fn address_of(number: u32) -> Ipv4Addr {
    assert!(number < MAX_OPERATIONS);
    Ipv4Addr::from((127 << 24) + (100 << 16) + number)
}

/// The operation whose requests are sent from an address.
fn number_of(address: Ipv4Addr) -> Option<u32> {
    let number = u32::from(address).checked_sub((127 << 24) + (100 << 16))?;
    (number < MAX_OPERATIONS).then_some(number)
}

impl History {
    /// The number of operations for each outcome.
    pub(super) fn summary(&self) -> String {
        let count =
            |is: fn(&OpOutcome) -> bool| self.operations.iter().filter(|one| is(&one.outcome)).count();
        format!(
            "{} acknowledged, {} refused, {} of unknown outcome",
            count(|outcome| matches!(outcome, OpOutcome::Acknowledged { .. })),
            count(|outcome| *outcome == OpOutcome::Refused),
            count(|outcome| *outcome == OpOutcome::Unknown),
        )
    }
}
