//! Bucket notifications: topics, buckets' notification configurations, and the events that a change of an object may have.
//!
//! A change calls [`Notifications::change_events`] before it is prepared. The events of persistent topics go into the index with
//! the prepare, and are delivered from there, whichever gateway finishes the change. Events of other topics are pushed once
//! the change is committed ([`Notifications::push_immediately`]). A configuration applies to every change that begins after its
//! PUT has returned, on every gateway: it is part of the bucket's record, and all gateways are notified of changes of that
//! record.

mod bucket;
mod delivery;

pub use delivery::DeliveryConfig;

use crate::bucket::{Bucket, Buckets};
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::index::{ConvertedBuckets, IndexParts};
use crate::notifying_buckets::NotifyingBuckets;
use crate::peers::Peers;
use crate::shards::IndexShards;
use crate::time::now_ns;
use crate::topics::Topics;
use nacre_index::record::{Event as IndexEvent, EventSubject};
use nacre_index::seq::Seq;
use nacre_notify::QueueReservation;
use nacre_topics::attributes::FullQueuePolicy;
use nacre_topics::event::EventType;
use nacre_topics::pending::{PendingEvent, PendingEvents};
use nacre_topics::record::{BucketInfo, ObjectInfo, RequestInfo};
use nacre_topics::topic::Topic;
use nacre_types::encoding;
use parking_lot::Mutex;
use std::sync::Arc;

/// The bytes of a queued event in addition to the texts that are known before its change: the encoding of numbers and
/// lengths, the tag, ETag, version and sequencer.
const EVENT_BYTES: usize = 256;

/// Returns the maximum number of bytes of a queued event, without metadata and tags.
fn bytes_before(pending: &PendingEvents, event: &PendingEvent, key: &str) -> u64 {
    let PendingEvents { request, bucket, .. } = pending;
    let request = [&request.user, &request.source_ip, &request.id, &request.host_id];
    let bucket = [&bucket.name, &bucket.owner, &bucket.id, &bucket.tenant, &bucket.zonegroup];
    let texts: usize = request.into_iter().chain(bucket).map(String::len).sum();
    (EVENT_BYTES + texts + event.configuration.len() + key.len()) as u64
}

/// The cause of a change: what an event says about the request and its sender. Built once per request, cloned per key.
#[derive(Clone, Debug, Default)]
pub struct Cause {
    pub(crate) request: RequestInfo,
}

impl Cause {
    /// Returns the cause of the request's change number `position`, counted from 0, which is made now.
    pub fn nth_change(&self, position: u32) -> Cause {
        Cause { request: RequestInfo { time_ns: now_ns(), position, ..self.request.clone() } }
    }
}

/// The events that a change may have; determined before its prepare.
#[derive(Clone, Default)]
pub(crate) struct ChangeEvents {
    /// Events of persistent topics.
    pub(crate) queued: Option<PendingEvents>,
    /// Events of other topics.
    pub(crate) immediate: Option<PendingEvents>,
    /// The space that events reserve in queues with a limit, by their numbers among the events of persistent topics. It is
    /// released if the change is not committed.
    admitted: Arc<Mutex<Vec<(u16, QueueReservation)>>>,
}

impl std::fmt::Debug for ChangeEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChangeEvents")
            .field("queued", &self.queued)
            .field("immediate", &self.immediate)
            .finish_non_exhaustive()
    }
}

impl ChangeEvents {
    /// Returns the events of a change that has none.
    pub(crate) fn none() -> ChangeEvents {
        ChangeEvents::default()
    }

    /// Whether the change can't have an event.
    pub(crate) fn is_none(&self) -> bool {
        self.queued.is_none() && self.immediate.is_none()
    }

    /// Whether the change may have an event. If so, the metadata and tags of its version must be available, for filters and
    /// for the event's record.
    pub(crate) fn wants_attributes(&self) -> bool {
        !self.is_none()
    }

    /// Returns the events of persistent topics for the change's index entry; `None` if there can't be any.
    pub(crate) fn index_event(&self, subject: EventSubject) -> Option<IndexEvent> {
        let pending = self.queued.as_ref()?;
        Some(IndexEvent {
            fixed: encoding::encode(pending).into(),
            candidates: pending.candidates.iter().map(|candidate| candidate.configuration.clone()).collect(),
            subject,
        })
    }

    /// Notes that the change with that tag is committed: the events that it has use their reservations. Must be called
    /// before the change is finished, so that no mover takes the events earlier.
    pub(crate) fn note_committed(&self, key: &str, tag: &str, seq: Seq, subject: &EventSubject) {
        let admitted = self.take_admitted();
        let Some(pending) = self.queued.as_ref().filter(|_| !admitted.is_empty()) else { return };
        let found = pending.complete(tag, key, &object_of(seq, subject));
        for (ordinal, admitted) in admitted {
            // An event that a filter excludes takes no space.
            if let Some(one) = found.iter().find(|one| one.event.ordinal == ordinal) {
                admitted.commit(tag, ordinal, encoding::encode(&one.event).len() as u64);
            }
        }
    }

    /// Notes that it is not known whether the change with that tag is committed: its events keep their reservations for a
    /// while.
    pub(crate) fn note_in_doubt(&self, tag: &str) {
        for (ordinal, admitted) in self.take_admitted() {
            let bytes = admitted.bytes();
            admitted.commit(tag, ordinal, bytes);
        }
    }

    fn take_admitted(&self) -> Vec<(u16, QueueReservation)> {
        std::mem::take(&mut *self.admitted.lock())
    }
}

/// Returns the version of an object that a change was about, as events describe it.
fn object_of(seq: Seq, subject: &EventSubject) -> ObjectInfo {
    let attributes = subject.attributes.clone().unwrap_or_default();
    ObjectInfo {
        size: subject.size,
        etag: subject.etag.clone(),
        version_id: subject.version_id.clone(),
        sequencer: seq.to_string(),
        metadata: attributes.metadata,
        tags: attributes.tags,
    }
}

/// The notifications of all buckets.
pub struct Notifications {
    connection: Arc<Connection>,
    peers: Arc<Peers>,
    topics: Arc<Topics>,
    records: Arc<Buckets>,
    buckets: Arc<ConvertedBuckets>,
    notifying: Arc<NotifyingBuckets>,
    shards: Arc<IndexShards>,
    /// The region, which events name as the zone group.
    region: String,
}

impl Notifications {
    pub(crate) fn new(parts: &IndexParts, buckets: &Arc<ConvertedBuckets>, region: &str) -> Notifications {
        Notifications {
            connection: Arc::clone(&parts.connection),
            peers: Arc::clone(&parts.peers),
            topics: Arc::clone(&parts.topics),
            records: Arc::clone(&parts.buckets),
            buckets: Arc::clone(buckets),
            notifying: Arc::clone(&parts.notifying),
            shards: Arc::clone(&parts.shards),
            region: region.to_owned(),
        }
    }

    /// Returns the cause for a request with that id, which that user sent from that address.
    pub fn cause_of_request(&self, user: &str, source_ip: String, id: String) -> Cause {
        let request = RequestInfo {
            time_ns: now_ns(),
            user: user.to_owned(),
            source_ip,
            id,
            host_id: self.host_id(),
            position: 0,
        };
        Cause { request }
    }

    /// Returns the cause for work of lifecycle rules, with an id of its own.
    pub(crate) fn lifecycle_cause(&self) -> Cause {
        self.cause_of_work("lifecycle")
    }

    /// Returns the cause for an administrator's command, with an id of its own. It does not name the administrator.
    pub fn administration_cause(&self) -> Cause {
        self.cause_of_work("")
    }

    /// Returns the cause for a change that no S3 client requests. CloudEvents tell events apart by the id.
    fn cause_of_work(&self, user: &str) -> Cause {
        let request = RequestInfo {
            time_ns: now_ns(),
            user: user.to_owned(),
            id: self.connection.new_tag(),
            host_id: self.host_id(),
            ..RequestInfo::default()
        };
        Cause { request }
    }

    /// Returns the events that a change of `key` of these types may have. Fast if the bucket has no configuration.
    ///
    /// Fails with [`Error::QueueFull`] if a topic's queue is full and its policy refuses further events. Then the operation
    /// must not begin.
    pub(crate) async fn change_events(
        &self,
        bucket: &Bucket,
        key: &str,
        types: &[EventType],
        cause: &Cause,
    ) -> Result<ChangeEvents> {
        let Some(matcher) = &bucket.notifications else { return Ok(ChangeEvents::none()) };
        let mut events = ChangeEvents::none();
        for candidate in matcher.candidates(types, key) {
            // A configuration outlives its topic.
            let Some(topic) = self.topics.cached(&candidate.configuration.topic).await? else { continue };
            if topic.attributes.push_endpoint.is_none() {
                continue;
            }
            let pending = PendingEvent::new(&candidate, topic.id);
            let slot = if topic.is_queued() { &mut events.queued } else { &mut events.immediate };
            let all = slot.get_or_insert_with(|| self.pending_of(bucket, cause));
            if topic.is_queued() {
                let ordinal = u16::try_from(all.candidates.len()).unwrap_or(u16::MAX);
                if let Some(admitted) = self.admit(&topic, bytes_before(all, &pending, key)).await? {
                    events.admitted.lock().push((ordinal, admitted));
                }
            }
            all.candidates.push(pending);
        }
        Ok(events)
    }

    /// Reserves the space that an event needs in the queue of a topic that refuses events when it is full. Returns `None`
    /// for other topics.
    async fn admit(&self, topic: &Topic, bytes: u64) -> Result<Option<QueueReservation>> {
        if topic.attributes.full_queue_policy() != FullQueuePolicy::Refuse {
            return Ok(None);
        }
        let Some(notifier) = self.topics.notifier() else { return Ok(None) };
        let full = || Error::QueueFull(topic.arn.to_string());
        notifier.admit(&topic.arn, topic.id, bytes).await?.ok_or_else(full).map(Some)
    }

    /// Pushes the events of topics that are not persistent. To be called after the commit of a change with events. Returns
    /// when the fate of each event is known, at the latest after `rgw_topic_push_timeout`; events that can't be delivered by
    /// then are lost.
    pub(crate) async fn push_immediately(
        &self,
        events: ChangeEvents,
        key: &str,
        tag: &str,
        seq: Seq,
        subject: &EventSubject,
    ) {
        let Some(pending) = &events.immediate else { return };
        let mut found = pending.complete(tag, key, &object_of(seq, subject));
        // All events of one change share one numbering, whichever way they are delivered: their ids contain the number.
        let queued = events.queued.as_ref().map_or(0, |queued| queued.candidates.len());
        let queued = u16::try_from(queued).unwrap_or(u16::MAX);
        found.iter_mut().for_each(|found| found.event.ordinal = found.event.ordinal.saturating_add(queued));
        match self.topics.notifier() {
            _ if found.is_empty() => {}
            Some(notifier) => drop(notifier.push_now(found).await),
            None => tracing::warn!(key, "rgw: events are lost, this process pushes none"),
        }
    }

    fn pending_of(&self, bucket: &Bucket, cause: &Cause) -> PendingEvents {
        let bucket = BucketInfo {
            name: bucket.name.clone(),
            owner: bucket.owner.clone(),
            id: bucket.id.clone(),
            tenant: String::new(),
            zonegroup: self.region.clone(),
        };
        PendingEvents { request: cause.request.clone(), bucket, candidates: Vec::new() }
    }

    /// Returns the name of this gateway in events, as in radosgw: its number in the cluster in hexadecimal digits, the zone
    /// and the zone group.
    fn host_id(&self) -> String {
        let number = self.connection.session().trim_start_matches("client.").parse::<u64>();
        let number = number.expect("invariant: sessions are named by numbers");
        format!("{number:x}-default-{}", self.region)
    }
}

#[cfg(test)]
mod tests;
