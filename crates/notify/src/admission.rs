//! Admission control in bytes, for topics that refuse operations when their queue is full (`nacre_queues::admission`).

use crate::core::Core;
use crate::error::Result;
use crate::metrics::add;
use crate::outbox::event_id;
use crate::queue_shard::locate;
use crate::topic_store::StoredTopic;
use nacre_queues::admission::{Admission, AdmitDecision};
use nacre_queues::op::ObjectRead;
use nacre_queues::record::EventId;
use nacre_task::{Env, Instant};
use nacre_topics::attributes::FullQueuePolicy;
use nacre_topics::topic::TopicId;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// The time for which a reading of a queue's size is used.
const SIZE_TTL: Duration = Duration::from_secs(1);
/// The time after which admitted events count as enqueued, because another gateway must have moved them.
const FOREIGN_ENQUEUE_TIMEOUT: Duration = Duration::from_secs(30);
/// The most readings for one decision.
const MAX_SIZE_READS: usize = 2;

/// The topics that refuse operations, as known to this gateway.
pub(crate) struct TopicAdmissions {
    core: Arc<Core>,
    topics: Mutex<BTreeMap<TopicId, Arc<TopicAdmission>>>,
}

struct TopicAdmission {
    state: Mutex<State>,
    reading: futures::lock::Mutex<()>,
}

struct State {
    admission: Admission,
    read_at: Option<Instant>,
    /// Admitted events that are in outboxes: their bytes, and the time since when.
    committed: BTreeMap<EventId, (u64, Instant)>,
}

/// An admitted event of an operation. If this is dropped without [`QueueReservation::commit`], the operation has no event.
#[must_use = "dropped, it gives the admission back"]
pub struct QueueReservation {
    place: Option<Place>,
}

/// The room that an event occupies.
struct Place {
    topic: Arc<TopicAdmission>,
    bytes: u64,
    env: Env,
}

impl QueueReservation {
    pub(crate) fn unlimited() -> QueueReservation {
        QueueReservation { place: None }
    }

    /// The bytes with which the event was admitted; 0 if the topic has no limit.
    pub fn bytes(&self) -> u64 {
        self.place.as_ref().map_or(0, |place| place.bytes)
    }

    /// The operation took effect: the event `ordinal` of the change `change` is in an outbox and has `bytes` bytes.
    pub fn commit(mut self, change: &str, ordinal: u16, bytes: u64) {
        // An event without an id is not in an outbox.
        let Ok(id) = event_id(change, ordinal) else { return };
        if let Some(place) = self.place.take() {
            let mut state = place.topic.state.lock();
            state.admission.adjust(place.bytes, bytes);
            state.committed.insert(id, (bytes, place.env.now()));
        }
    }
}

impl Drop for QueueReservation {
    fn drop(&mut self) {
        if let Some(Place { topic, bytes, .. }) = self.place.take() {
            topic.state.lock().admission.release(bytes);
        }
    }
}

impl State {
    /// These events were enqueued.
    fn enqueued<'a>(&mut self, ids: impl IntoIterator<Item = &'a EventId>) {
        for id in ids {
            if let Some((bytes, _)) = self.committed.remove(id) {
                self.admission.commit(bytes);
            }
        }
    }
}

impl TopicAdmissions {
    pub(crate) fn new(core: &Arc<Core>) -> TopicAdmissions {
        TopicAdmissions { core: Arc::clone(core), topics: Mutex::default() }
    }

    /// Decides whether an operation that may have an event of `bytes` bytes for a topic may start; `None` means SlowDown.
    pub(crate) async fn admit(&self, stored: &StoredTopic, bytes: u64) -> Result<Option<QueueReservation>> {
        let core = &self.core;
        let topic = &stored.record.topic;
        let now = core.env.now();
        let limit = match core.settings.queue_limit_bytes(&topic.attributes) {
            Some(limit) if topic.attributes.full_queue_policy() == FullQueuePolicy::Refuse => limit,
            _ => return Ok(Some(QueueReservation::unlimited())),
        };
        let known = self.of(topic.id, limit, core.settings.allowance_bytes);
        for reading in 0..=MAX_SIZE_READS {
            let decision = {
                let mut state = known.state.lock();
                if state.read_at.is_none_or(|read_at| now - read_at > SIZE_TTL) {
                    state.admission.expire();
                }
                state.admission.admit(bytes)
            };
            match decision {
                AdmitDecision::Admitted => {
                    let place = Place { topic: known, bytes, env: core.env.clone() };
                    return Ok(Some(QueueReservation { place: Some(place) }));
                }
                AdmitDecision::Full => break,
                AdmitDecision::NeedsSize if reading == MAX_SIZE_READS => break,
                AdmitDecision::NeedsSize => read(core, stored, &known).await?,
            }
        }
        add(&core.metrics.refused_full, 1);
        Ok(None)
    }

    /// Events of a topic were enqueued.
    pub(crate) fn mark_enqueued(&self, topic: TopicId, ids: &BTreeSet<EventId>) {
        let Some(topic) = self.topics.lock().get(&topic).cloned() else { return };
        topic.state.lock().enqueued(ids);
    }

    /// The topic no longer exists.
    pub(crate) fn forget(&self, topic: TopicId) {
        self.topics.lock().remove(&topic);
    }

    fn of(&self, topic: TopicId, limit: u64, allowance: u64) -> Arc<TopicAdmission> {
        let allowance = allowance.min(limit.div_ceil(4));
        let mut topics = self.topics.lock();
        if let Some(known) = topics.get(&topic) {
            known.state.lock().admission.set_limit(limit, allowance);
            return Arc::clone(known);
        }
        let admission = Admission::new(limit, allowance);
        let state = Mutex::new(State { admission, read_at: None, committed: BTreeMap::new() });
        let made = Arc::new(TopicAdmission { state, reading: futures::lock::Mutex::new(()) });
        topics.insert(topic, Arc::clone(&made));
        made
    }
}

/// Reads the size of a topic's queue, unless another task did so since this call started.
async fn read(core: &Core, stored: &StoredTopic, known: &TopicAdmission) -> Result<()> {
    let called_at = core.env.now();
    let _reading = known.reading.lock().await;
    let now = core.env.now();
    {
        let mut state = known.state.lock();
        if state.read_at.is_some_and(|read_at| read_at > called_at) && !state.admission.needs_size_read() {
            return Ok(());
        }
        let old = state.committed.iter().filter(|(_, (_, since))| now - *since > FOREIGN_ENQUEUE_TIMEOUT);
        let old: Vec<EventId> = old.map(|(id, _)| id.clone()).collect();
        state.enqueued(&old);
        state.admission.begin_size_read();
    }
    let mut bytes = 0;
    let topic = &stored.record.topic;
    // An outdated record may lack the generation that other gateways enqueue into.
    if let Some(stored) = core.topics.fresh(&topic.arn, topic.id).await? {
        for generation in stored.record.layout.deliverable() {
            for shard in 0..generation.shards {
                let found = locate(&core.rados, &stored, generation, shard, ObjectRead::attributes).await?;
                bytes += found.map_or(0, |(shard, _)| shard.size_bytes());
            }
        }
    }
    let mut state = known.state.lock();
    state.admission.end_size_read(bytes);
    state.read_at = Some(core.env.now());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use crate::testing;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_topic_refuses_operations_while_its_queue_is_full() {
        testing::run(Settings::default(), |core| async move {
            let attributes = [("queue-full-policy", "refuse"), ("queue-max-bytes", "1000")];
            let stored = testing::create_topic(&core, &[1], &attributes).await;
            let admissions = TopicAdmissions::new(&core);
            let admit = async |bytes| admissions.admit(&stored, bytes).await.unwrap();
            let first = admit(800).await.expect("the queue is empty");
            assert!(admit(300).await.is_none());
            assert_eq!(core.metrics.refused_full.load(Ordering::Relaxed), 1);
            // The operation has no event.
            drop(first);
            let second = admit(900).await.expect("the queue is empty");
            second.commit("change", 0, 900);
            assert!(admit(900).await.is_none());
            // The queue does not have the event, so another operation may start once it was enqueued and delivered.
            let ids = BTreeSet::from([event_id("change", 0).unwrap()]);
            admissions.mark_enqueued(stored.record.topic.id, &ids);
            assert!(admit(900).await.is_some());
        });
    }
}
