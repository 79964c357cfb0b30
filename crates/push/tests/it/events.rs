//! Endpoints and events of the tests.

use nacre_notify::push::{Connection, EndpointConnector as _, PushFailure, PushMessage, PushTarget};
use nacre_push::{ClientLimits, EndpointClients, Timeouts};
use nacre_topics::attributes::Attributes;
use nacre_topics::endpoint::{Endpoint, EndpointPolicy};
use nacre_topics::event::EventType;
use nacre_topics::record::{BucketInfo, Event, ObjectInfo, RequestInfo};
use nacre_topics::topic::TopicId;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub(crate) type Outcomes = Vec<Result<(), PushFailure>>;

/// A timeout that a busy machine does not reach by itself.
pub(crate) const PATIENT: Duration = Duration::from_secs(30);

/// The event number `number` of a key. Numbers tell its changes apart.
pub(crate) fn event(key: &str, number: u64) -> PushMessage {
    let event = Event {
        event: EventType::all().find(|event| event.name() == "ObjectCreated:Put").unwrap(),
        configuration: "c".to_owned(),
        change: format!("change{number}"),
        ordinal: 0,
        request: RequestInfo {
            time_ns: 1_574_430_455_124_724_000,
            id: "tx1".to_owned(),
            host_id: "gw".to_owned(),
            ..Default::default()
        },
        bucket: BucketInfo {
            name: "photos".to_owned(),
            id: "b1".to_owned(),
            zonegroup: "default".to_owned(),
            ..Default::default()
        },
        key: key.to_owned(),
        object: ObjectInfo { sequencer: format!("{number:040X}"), ..Default::default() },
    };
    PushMessage { event: Arc::new(event), opaque_data: "".into(), is_replayed: false }
}

/// The number and key of the only event of a text.
pub(crate) fn read(text: &[u8]) -> (String, u64) {
    let events = read_all(text);
    assert_eq!(events.len(), 1, "{events:?}");
    events.into_iter().next().unwrap()
}

/// Keys and numbers of a text's events.
pub(crate) fn read_all(text: &[u8]) -> Vec<(String, u64)> {
    let value: serde_json::Value = serde_json::from_slice(text).unwrap();
    let number = |record: &serde_json::Value| {
        let sequencer = record["s3"]["object"]["sequencer"].as_str().unwrap();
        (
            record["s3"]["object"]["key"].as_str().unwrap().to_owned(),
            u64::from_str_radix(sequencer, 16).unwrap(),
        )
    };
    value["Records"].as_array().unwrap().iter().map(number).collect()
}

/// The endpoint that the attributes name, for the topic `topic`.
pub(crate) fn endpoint(topic: &str, attributes: &[(&str, &str)]) -> Endpoint {
    let pairs: Vec<_> =
        attributes.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Attributes::from_pairs(&pairs).unwrap().endpoint(topic).unwrap().unwrap()
}

/// Clients with files of a folder, and a timeout of pushes.
pub(crate) fn endpoints(ca: Option<&Path>, push_timeout: Duration) -> EndpointClients {
    let ca_folder = ca.map(|file| file.parent().unwrap().to_owned());
    let policy = EndpointPolicy { ca_folder, ..EndpointPolicy::default() };
    EndpointClients::new(policy, limits(push_timeout))
}

/// Limits with this timeout of pushes for all kinds of endpoints.
pub(crate) fn limits(push_timeout: Duration) -> ClientLimits {
    let limits = ClientLimits::default();
    let with = |timeouts: Timeouts| Timeouts { push: push_timeout, ..timeouts };
    ClientLimits { http: with(limits.http), kafka: with(limits.kafka), amqp: with(limits.amqp), ..limits }
}

/// Opens a connection.
pub(crate) fn open(
    endpoints: &EndpointClients,
    endpoint: &Endpoint,
    queue: Option<&str>,
) -> Arc<dyn Connection> {
    try_open(endpoints, endpoint, queue).unwrap()
}

pub(crate) fn try_open(
    endpoints: &EndpointClients,
    endpoint: &Endpoint,
    queue: Option<&str>,
) -> Result<Arc<dyn Connection>, PushFailure> {
    let topic = TopicId::from_random([7; 16]);
    endpoints.open(&PushTarget { endpoint: endpoint.clone(), topic, queue: queue.map(str::to_owned) })
}

/// The text of the only failure, which is an outage.
pub(crate) fn outage(outcomes: &Outcomes) -> &str {
    match outcomes.as_slice() {
        [Err(PushFailure::Unavailable(reason))] => reason,
        other => panic!("{other:?}"),
    }
}

/// The text of the only failure, which is a refusal.
pub(crate) fn refusal(outcomes: &Outcomes) -> &str {
    match outcomes.as_slice() {
        [Err(PushFailure::Refused(reason))] => reason,
        other => panic!("{other:?}"),
    }
}

/// Polls until `condition` holds.
pub(crate) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while !condition().await {
        assert!(std::time::Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
