//! Bucket notifications: topics, buckets' notification configurations, and which events a change of an object may have.
//!
//! A change asks [`Gateway::change_events`] before it is prepared. What that says of persistent topics goes into the index with the
//! prepare, and is delivered from there, whichever gateway finishes the change; events of other topics are pushed once the
//! change is committed ([`Gateway::push_immediately`]). A configuration counts for every change that begins after its PUT has
//! returned, on every gateway: both are part of the bucket's record, whose changes all gateways are told of.

mod admission;
pub(crate) mod api;
mod bucket;
mod immediate;
mod outboxes;
mod queues;
mod rules;
mod topics;

pub(crate) use admission::{Admissions, Ticket};
pub(crate) use bucket::BucketRoute;
pub(crate) use immediate::Connections;
pub use immediate::Push;
pub use rules::EndpointRules;
pub(crate) use rules::note_gateways;

use crate::bucket::Bucket;
use crate::error::Result;
use crate::gateway::{Gateway, now_ns};
use crate::s3::{Peer, Requester};
use crate::server::RequestId;
use http::Extensions;
use nacre_topics::event::EventType;
use nacre_topics::pending::{PendingEvent, PendingEvents};
use nacre_topics::record::{BucketInfo, RequestInfo};
use nacre_types::encoding;

/// The types of the events that each change has.
pub(crate) mod types {
    use nacre_topics::event::EventType::{self, *};

    /// PUT of an object.
    pub(crate) const PUT: &[EventType] = &[ObjectCreatedPut];
    /// An object that a form brought.
    pub(crate) const POST: &[EventType] = &[ObjectCreatedPost];
    /// CopyObject.
    pub(crate) const COPY: &[EventType] = &[ObjectCreatedCopy];
    /// CompleteMultipartUpload. To begin an upload has no event: there is no object.
    pub(crate) const COMPLETE: &[EventType] = &[ObjectCreatedCompleteMultipartUpload];
    /// Removal of an object or of a version, a delete marker included.
    pub(crate) const REMOVE: &[EventType] = &[ObjectRemovedDelete];
    /// Creation of a delete marker.
    pub(crate) const MARKER: &[EventType] = &[ObjectRemovedDeleteMarkerCreated];
    /// PutObjectTagging.
    pub(crate) const PUT_TAGS: &[EventType] = &[ObjectTaggingPut];
    /// DeleteObjectTagging.
    pub(crate) const REMOVE_TAGS: &[EventType] = &[ObjectTaggingDelete];
    /// PutObjectAcl.
    pub(crate) const PUT_ACL: &[EventType] = &[ObjectAclPut];
    /// A lifecycle rule removes the object of a bucket without versions.
    pub(crate) const EXPIRE: &[EventType] = &[ObjectExpirationCurrent, LifecycleExpirationDelete];
    /// A lifecycle rule hides the current version behind a delete marker.
    pub(crate) const EXPIRE_BY_MARKER: &[EventType] =
        &[ObjectExpirationCurrent, LifecycleExpirationDeleteMarkerCreated];
    /// A lifecycle rule removes a noncurrent version.
    pub(crate) const EXPIRE_NONCURRENT: &[EventType] =
        &[ObjectExpirationNoncurrent, LifecycleExpirationDelete];
    /// A lifecycle rule removes a delete marker that hides nothing.
    pub(crate) const EXPIRE_MARKER: &[EventType] =
        &[ObjectExpirationDeleteMarker, LifecycleExpirationDelete];
    /// What has no event: retention and legal holds, what an administrator's command removes, and a lifecycle rule's abortion of an
    /// upload, which changes no object.
    pub(crate) const NONE: &[EventType] = &[];
}

/// Who and what makes a change: what an event says of the request. Built once per request, cloned per key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cause {
    pub(crate) request: RequestInfo,
}

impl Cause {
    /// A request, by its extensions and by who sent it.
    pub(crate) fn of_request(gateway: &Gateway, extensions: &Extensions, requester: &Requester) -> Cause {
        let id = extensions.get::<RequestId>().map(|RequestId(id)| id.clone());
        let peer = extensions.get::<Peer>().map(|peer| peer.address.to_canonical().to_string());
        let request = RequestInfo {
            time_ns: now_ns(),
            user: requester.id().to_owned(),
            source_ip: peer.unwrap_or_default(),
            id: id.unwrap_or_default(),
            host_id: gateway.host_id(),
            position: 0,
        };
        Cause { request }
    }

    /// Work of lifecycle rules, under an id of its own.
    pub(crate) fn lifecycle(gateway: &Gateway) -> Cause {
        let request = RequestInfo {
            time_ns: now_ns(),
            user: "lifecycle".to_owned(),
            id: gateway.tag(),
            host_id: gateway.host_id(),
            ..RequestInfo::default()
        };
        Cause { request }
    }

    /// The cause of the request's change number `position`, counted from 0, which is made now.
    pub(crate) fn at(&self, position: usize) -> Cause {
        let position = u32::try_from(position).unwrap_or(u32::MAX);
        Cause { request: RequestInfo { time_ns: now_ns(), position, ..self.request.clone() } }
    }
}

/// The events that a change may have; made before its prepare.
#[derive(Debug, Default)]
pub(crate) struct ChangeEvents {
    /// Those of persistent topics.
    pub(crate) queued: Option<PendingEvents>,
    /// Those of other topics.
    pub(crate) immediate: Option<PendingEvents>,
    /// The room that they take in queues with a limit. It is given back when this is dropped.
    tickets: Vec<Ticket>,
}

impl ChangeEvents {
    pub(crate) fn none() -> ChangeEvents {
        ChangeEvents::default()
    }

    /// Whether the change may have an event: then the subject's metadata and tags are to be at hand, for filters and for the event's
    /// record.
    pub(crate) fn wants_attributes(&self) -> bool {
        self.queued.is_some() || self.immediate.is_some()
    }

    /// What the change's index entry holds of events of persistent topics; `None` where there can't be any.
    pub(crate) fn index_event(
        &self,
        subject: nacre_index::record::Subject,
    ) -> Option<nacre_index::record::Event> {
        let pending = self.queued.as_ref()?;
        Some(nacre_index::record::Event {
            fixed: encoding::encode(pending).into(),
            candidates: pending.candidates.iter().map(|candidate| candidate.configuration.clone()).collect(),
            subject,
        })
    }
}

impl Gateway {
    /// The events that a change of `key` of these types may have. Fast where the bucket has no configuration.
    ///
    /// Fails with [`crate::Error::QueueFull`] where a topic's queue is full and its policy refuses further events; the operation must
    /// not begin then.
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
            let Some(topic) = self.known_topic(&candidate.configuration.topic).await? else { continue };
            if topic.attributes.push_endpoint.is_none() {
                continue;
            }
            let slot =
                if topic.attributes.is_queued() { &mut events.queued } else { &mut events.immediate };
            let pending = slot.get_or_insert_with(|| self.pending_of(bucket, cause));
            pending.candidates.push(PendingEvent::new(&candidate, topic.id));
            if topic.attributes.is_queued()
                && let Some(ticket) = self.admit(&topic, pending, key).await?
            {
                events.tickets.push(ticket);
            }
        }
        Ok(events)
    }

    fn pending_of(&self, bucket: &Bucket, cause: &Cause) -> PendingEvents {
        let bucket = BucketInfo {
            name: bucket.name.clone(),
            owner: bucket.owner.clone(),
            id: bucket.id.clone(),
            tenant: String::new(),
            zonegroup: self.config.region.clone(),
        };
        PendingEvents { request: cause.request.clone(), bucket, candidates: Vec::new() }
    }

    /// What events call this gateway, as radosgw does: its number in the cluster, the zone and the zone group.
    fn host_id(&self) -> String {
        let number = self.session().trim_start_matches("client.");
        format!("{number}-default-{}", self.config.region)
    }
}
