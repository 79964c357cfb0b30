//! Admission: topics that refuse when their queue is full (`nacre_queues::admission`), in bytes.

use crate::core::Core;
use crate::error::Result;
use crate::metrics::add;
use crate::owner::locate;
use crate::topic_store::StoredTopic;
use nacre_queues::admission::{Admission, Decision};
use nacre_queues::op::ObjectRead;
use nacre_queues::record::EventId;
use nacre_task::Instant;
use nacre_topics::attributes::FullQueuePolicy;
use nacre_topics::topic::TopicId;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// How long a reading of a queue's size is used.
const FRESH: Duration = Duration::from_secs(1);
/// After which time admitted events count as enqueued, by whoever that was.
const MOVED_BY_OTHERS: Duration = Duration::from_secs(30);
/// Readings for one decision.
const READINGS: usize = 2;

/// The topics that refuse, as this gateway knows them.
#[derive(Default)]
pub(crate) struct Admissions {
    topics: Mutex<BTreeMap<TopicId, Arc<TopicAdmission>>>,
}

struct TopicAdmission {
    state: Mutex<State>,
    reading: futures::lock::Mutex<()>,
    limit: u64,
}

struct State {
    admission: Admission,
    read_at: Option<Instant>,
    /// Changes with admitted events that are in outboxes, by the change's tag: bytes, and since when.
    committed: BTreeMap<String, (u64, Instant)>,
}

/// An operation that may have events for a topic. Dropped without [`Admitted::commit`], it has none.
#[must_use = "dropped, it gives the admission back"]
pub struct Admitted {
    of: Option<(Arc<TopicAdmission>, u64)>,
    now: Instant,
}

impl Admitted {
    pub(crate) fn freely(now: Instant) -> Admitted {
        Admitted { of: None, now }
    }

    /// The operation took effect, and the change with that tag has its events in an outbox.
    pub fn commit(mut self, change: &str) {
        if let Some((topic, bytes)) = self.of.take() {
            topic.state.lock().committed.insert(change.to_owned(), (bytes, self.now));
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        if let Some((topic, bytes)) = self.of.take() {
            topic.state.lock().admission.given_up(bytes);
        }
    }
}

impl State {
    /// These changes' events are in the queue.
    fn enqueued(&mut self, changes: impl IntoIterator<Item = String>) {
        for change in changes {
            if let Some((bytes, _)) = self.committed.remove(&change) {
                self.admission.enqueued(bytes);
            }
        }
    }
}

impl Admissions {
    /// Events of a topic are in its queue.
    pub(crate) fn moved(&self, topic: TopicId, ids: &BTreeSet<EventId>) {
        let Some(topic) = self.topics.lock().get(&topic).cloned() else { return };
        let mut state = topic.state.lock();
        if state.committed.is_empty() {
            return;
        }
        // An id is the change's tag, a dot, and two bytes.
        let tag = |id: &EventId| {
            let tag = id.as_bytes().get(..id.as_bytes().len().saturating_sub(3))?;
            Some(std::str::from_utf8(tag).ok()?.to_owned())
        };
        let changes: Vec<String> = ids.iter().filter_map(tag).collect();
        state.enqueued(changes);
    }

    fn of(&self, topic: TopicId, limit: u64, allowance: u64) -> Arc<TopicAdmission> {
        let mut topics = self.topics.lock();
        if let Some(known) = topics.get(&topic).filter(|known| known.limit == limit) {
            return Arc::clone(known);
        }
        let admission = Admission::new(limit, allowance.min(limit.div_ceil(4)));
        let state = Mutex::new(State { admission, read_at: None, committed: BTreeMap::new() });
        let made = Arc::new(TopicAdmission { state, reading: futures::lock::Mutex::new(()), limit });
        topics.insert(topic, Arc::clone(&made));
        made
    }
}

/// Whether an operation with so many bytes of events for a topic may begin; `None` for SlowDown.
pub(crate) async fn admit(core: &Core, stored: &StoredTopic, bytes: u64) -> Result<Option<Admitted>> {
    let topic = &stored.record.topic;
    let now = core.env.now();
    let limit = match core.queue_limit_bytes(topic) {
        Some(limit) if topic.attributes.full_queue_policy() == FullQueuePolicy::Refuse => limit,
        _ => return Ok(Some(Admitted::freely(now))),
    };
    let known = core.admissions.of(topic.id, limit, core.settings.allowance_bytes);
    for reading in 0..=READINGS {
        let decision = {
            let mut state = known.state.lock();
            if state.read_at.is_none_or(|read_at| now - read_at > FRESH) {
                state.admission.expire();
            }
            state.admission.admit(bytes)
        };
        match decision {
            Decision::Admitted => return Ok(Some(Admitted { of: Some((known, bytes)), now })),
            Decision::Full => break,
            Decision::ReadFirst if reading == READINGS => break,
            Decision::ReadFirst => read(core, stored, &known).await?,
        }
    }
    add(&core.metrics.refused_full, 1);
    Ok(None)
}

/// Reads the size of a topic's queue.
async fn read(core: &Core, stored: &StoredTopic, known: &TopicAdmission) -> Result<()> {
    let _reading = known.reading.lock().await;
    let now = core.env.now();
    {
        let mut state = known.state.lock();
        let old = state.committed.iter().filter(|(_, (_, since))| now - *since > MOVED_BY_OTHERS);
        let old: Vec<String> = old.map(|(change, _)| change.clone()).collect();
        state.enqueued(old);
        state.admission.reading_begins();
    }
    let mut bytes = 0;
    for generation in stored.record.layout.delivered() {
        for shard in 0..generation.shards {
            if let Some((shard, _)) = locate(core, stored, generation, shard, ObjectRead::attributes).await? {
                bytes += shard.size_bytes();
            }
        }
    }
    let mut state = known.state.lock();
    state.admission.reading_ended(bytes);
    state.read_at = Some(core.env.now());
    Ok(())
}
