//! Synchronous pushes: events of non-persistent topics are pushed to the endpoint while the operation waits for a bounded
//! time. Events that fail are lost, as in Ceph.

use crate::core::Core;
use crate::endpoints::{self, EndpointTable};
use crate::error::Result;
use crate::metrics::add;
use crate::push::{PushFailure, PushMessage};
use futures::FutureExt as _;
use futures::future::join_all;
use nacre_topics::arn::TopicArn;
use nacre_topics::pending::TopicEvent;
use nacre_topics::record::Event;
use nacre_topics::topic::TopicId;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The result of a synchronous push.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncPushResult {
    /// The number of events that were delivered.
    pub delivered: u64,
    /// The number of events that were lost.
    pub failed: u64,
}

/// Pushes events. Returns when the outcome of each is known, or after the timeout.
pub(crate) async fn push_now(
    core: &Core,
    endpoints: &EndpointTable,
    events: Vec<TopicEvent>,
) -> SyncPushResult {
    let mut topics: BTreeMap<TopicId, (TopicArn, Vec<Event>)> = BTreeMap::new();
    for one in events {
        topics.entry(one.topic_id).or_insert_with(|| (one.topic, Vec::new())).1.push(one.event);
    }
    let mut pushes = Vec::new();
    for (id, (arn, events)) in topics {
        pushes.push(push_in_time(core, endpoints, (arn, id), events).boxed());
    }
    let mut sum = SyncPushResult::default();
    for one in join_all(pushes).await {
        sum.delivered += one.delivered;
        sum.failed += one.failed;
    }
    add(&core.metrics.sync_delivered, sum.delivered);
    add(&core.metrics.sync_failed, sum.failed);
    sum
}

/// Pushes events of one topic, within the timeout.
async fn push_in_time(
    core: &Core,
    endpoints: &EndpointTable,
    (arn, id): (TopicArn, TopicId),
    events: Vec<Event>,
) -> SyncPushResult {
    let count = events.len() as u64;
    let lost = SyncPushResult { delivered: 0, failed: count };
    let limit = core.settings.topic_defaults().sync_timeout;
    let is_sent = AtomicBool::new(false);
    match core.env.timeout(limit, push(core, endpoints, (&arn, id), events, &is_sent)).await {
        Ok(Ok(delivered)) => SyncPushResult { delivered, failed: count - delivered.min(count) },
        Ok(Err(error)) => {
            tracing::warn!(topic = %arn, %error, "notifications: events of a topic without queues are lost");
            lost
        }
        Err(_) => {
            // Otherwise the time went by before the endpoint was asked.
            if let Some(endpoint) = endpoints.peek(id).filter(|_| is_sent.load(Ordering::Relaxed)) {
                endpoint.failed("it did not answer in time");
            }
            lost
        }
    }
}

/// Pushes events of one topic; returns the number of delivered events. Sets `is_sent` when it begins to send.
async fn push(
    core: &Core,
    endpoints: &EndpointTable,
    (arn, id): (&TopicArn, TopicId),
    events: Vec<Event>,
    is_sent: &AtomicBool,
) -> Result<u64> {
    let Some(stored) = core.topics.get(arn, id).await? else { return Ok(0) };
    let Some(endpoint) = endpoints.get(&stored) else { return Ok(0) };
    if endpoint.permits() == 0 {
        return Ok(0);
    }
    let Ok(_permit) = endpoint.pushes.acquire().await else { return Ok(0) };
    let connection = match endpoint.connection() {
        Ok(connection) => connection,
        Err(failure) => {
            endpoint.failed(&failure.to_string());
            return Ok(0);
        }
    };
    let opaque_data: Arc<str> = Arc::from(stored.record.topic.attributes.opaque_data.as_str());
    let message = |event| PushMessage {
        event: Arc::new(event),
        opaque_data: Arc::clone(&opaque_data),
        is_replayed: false,
    };
    let messages: Vec<PushMessage> = events.into_iter().map(message).collect();
    let mut delivered = 0;
    is_sent.store(true, Ordering::Relaxed);
    for part in messages.chunks(endpoint.max_batch_size()) {
        let outcomes = endpoints::push(Arc::clone(&connection), part.to_vec()).await;
        delivered += outcomes.iter().filter(|outcome| outcome.is_ok()).count() as u64;
        let unavailable = outcomes.iter().find_map(|outcome| match outcome {
            Err(PushFailure::Unavailable(detail)) => Some(detail),
            _ => None,
        });
        match unavailable {
            Some(detail) => {
                endpoint.failed(detail);
                break;
            }
            None => endpoint.succeeded(),
        }
    }
    Ok(delivered)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use crate::testing::{self, TestEndpoint};

    #[test]
    fn the_outcome_of_each_event_is_counted() {
        testing::run(Settings::default(), |core| async move {
            let record = testing::topic_record(1, &[]);
            let stored = core.topics.store.create(&record).await.unwrap().unwrap();
            let endpoint = TestEndpoint::default();
            let endpoints = EndpointTable::new(&core, endpoint.connector());
            let event = |change| testing::topic_event(&stored.record.topic, change);
            let result = push_now(&core, &endpoints, vec![event("one"), event("two")]).await;
            assert_eq!(result, SyncPushResult { delivered: 2, failed: 0 });
            endpoint.set_unavailable(true);
            let result = push_now(&core, &endpoints, vec![event("three")]).await;
            assert_eq!(result, SyncPushResult { delivered: 0, failed: 1 });
            assert_eq!(endpoint.received(), ["one", "two"]);
        });
    }
}
