//! Closed generations of topics' queues: their remaining events, for which shards of later generations wait, and their removal
//! from the topic's record when they are drained.
//!
//! All shards of a topic share a reading. The progress of a closed shard never goes back, so a drained shard is not read
//! again.

use crate::core::Core;
use crate::error::Result;
use crate::queue_shard::{ShardKey, locate};
use crate::topic_store::StoredTopic;
use futures::{FutureExt as _, StreamExt as _};
use nacre_queues::layout::Generation;
use nacre_queues::name::QueueRecordKind;
use nacre_queues::op::{ObjectKey, ObjectRead};
use nacre_queues::settle;
use nacre_queues::shard::{self, RemainingEvents};
use nacre_queues::window::OlderGenerations;
use nacre_topics::topic::TopicId;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The time for which a reading is used, in nanoseconds.
const PROGRESS_TTL_NS: u64 = 200_000_000;
/// The most parked events of a shard that are read. A shard with more counts as busy.
const MAX_PARKED: u64 = 1024;
/// The number of shards that are read concurrently.
const READS: usize = 16;
/// The most attempts to change a record that others change concurrently.
const CHANGE_ATTEMPTS: usize = 100;

/// The closed generations of all topics.
pub(crate) struct ClosedGenerations {
    core: Arc<Core>,
    progress: Mutex<BTreeMap<(TopicId, u64), SharedProgress>>,
}

/// The known progress of a generation, locked by one reader at a time.
type SharedProgress = Arc<futures::lock::Mutex<Progress>>;

#[derive(Default)]
struct Progress {
    shards: BTreeMap<u32, RemainingEvents>,
    read_at_ns: Option<u64>,
}

impl ClosedGenerations {
    pub(crate) fn new(core: &Arc<Core>) -> ClosedGenerations {
        ClosedGenerations { core: Arc::clone(core), progress: Mutex::default() }
    }

    /// The progress of the generations before `generation` that are not drained.
    pub(crate) async fn older_than(
        &self,
        stored: &StoredTopic,
        generation: Generation,
    ) -> Result<OlderGenerations> {
        let mut older = OlderGenerations::default();
        for before in stored.record.layout.before(generation.number) {
            let progress = self.progress_of(stored.record.topic.id, before.number);
            let mut progress = progress.lock().await;
            let now_ns = self.core.mono_ns();
            if progress.read_at_ns.is_none_or(|read_at_ns| now_ns > read_at_ns + PROGRESS_TTL_NS) {
                read(&self.core, stored, before, &mut progress).await?;
                progress.read_at_ns = Some(now_ns);
            }
            if !progress.shards.values().all(|progress| *progress == RemainingEvents::None) {
                older.generations.push((before.shards, progress.shards.clone()));
            }
        }
        Ok(older)
    }

    fn progress_of(&self, topic: TopicId, generation: u64) -> SharedProgress {
        Arc::clone(self.progress.lock().entry((topic, generation)).or_default())
    }

    /// A shard made progress in this gateway: its generation must be read again.
    pub(crate) fn forget_progress(&self, key: &ShardKey) {
        let known = self.progress.lock().get(&(key.topic, key.generation)).cloned();
        if let Some(known) = known
            && let Some(mut known) = known.try_lock()
        {
            known.read_at_ns = None;
        }
    }

    /// Removes the progress of all generations of a topic except those in `older`, which are not drained.
    pub(crate) fn retain(&self, topic: TopicId, older: &[Generation]) {
        self.progress.lock().retain(|(of, number), _| {
            *of != topic || older.iter().any(|generation| generation.number == *number)
        });
    }

    /// Removes a closed generation from the topic's record if all its shards are gone. The shard `gone` is; the others are
    /// checked starting after it.
    pub(crate) async fn retire(&self, stored: &StoredTopic, generation: Generation, gone: u32) -> Result<()> {
        let core = &self.core;
        let topic = &stored.record.topic;
        for _ in 0..CHANGE_ATTEMPTS {
            let Some(fresh) = core.topics.store.get(&topic.arn).await? else { return Ok(()) };
            let stored = core.topics.put(fresh);
            let is_older =
                stored.record.layout.older.contains(&generation) && stored.record.topic.id == topic.id;
            if !is_older {
                return Ok(());
            }
            for offset in 1..=generation.shards {
                let index = (gone + offset) % generation.shards;
                let found = locate(&core.rados, &stored, generation, index, ObjectRead::attributes).await?;
                if found.is_some() {
                    return Ok(());
                }
            }
            let mut record = stored.record.clone();
            if !record.layout.retire(generation.number) {
                return Ok(());
            }
            if let Some(stored) = core.topics.store.update(&stored, &record).await? {
                let stored = core.topics.put(stored);
                self.retain(topic.id, &stored.record.layout.older);
                core.schedule.wake_all();
                return Ok(());
            }
        }
        Ok(())
    }
}

async fn read(
    core: &Core,
    stored: &StoredTopic,
    generation: Generation,
    progress: &mut Progress,
) -> Result<()> {
    let mut reads = Vec::new();
    for index in 0..generation.shards {
        if progress.shards.get(&index) != Some(&RemainingEvents::None) {
            reads.push(read_one(core, stored, generation, index).boxed());
        }
    }
    let mut reads = futures::stream::iter(reads).buffered(READS);
    while let Some(read) = reads.next().await {
        let (index, of_shard) = read?;
        progress.shards.insert(index, of_shard);
    }
    Ok(())
}

async fn read_one(
    core: &Core,
    stored: &StoredTopic,
    generation: Generation,
    index: u32,
) -> Result<(u32, RemainingEvents)> {
    let progress = match locate(&core.rados, stored, generation, index, parked).await? {
        None => RemainingEvents::None,
        Some((_, reply)) if reply.more => RemainingEvents::Any,
        Some((shard, reply)) => {
            RemainingEvents::of(&shard, &shard::parse_parked(&shard.object, &reply.page)?)
        }
    };
    Ok((index, progress))
}

fn parked(object: &ObjectKey) -> ObjectRead {
    settle::read_records(object, QueueRecordKind::Parked, Default::default(), MAX_PARKED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use crate::testing;

    #[test]
    fn a_generation_is_removed_when_all_its_shards_are_gone() {
        testing::run(Settings::default(), |core| async move {
            let stored = testing::create_topic(&core, &[2, 1], &[]).await;
            let (older, current) = (stored.record.layout.older[0], stored.record.layout.current.unwrap());
            let (_, hidden) = testing::objects_of(&stored, older.number, 1);
            testing::create_shard(&core, &stored, older.number, 1, &hidden).await;
            let closed = ClosedGenerations::new(&core);
            let layout = async || {
                let arn = &stored.record.topic.arn;
                core.topics.store.get(arn).await.unwrap().unwrap().record.layout
            };
            closed.retire(&stored, older, 0).await.unwrap();
            assert_eq!(layout().await.older, [older]);
            let (shard, _) =
                locate(&core.rados, &stored, older, 1, ObjectRead::attributes).await.unwrap().unwrap();
            core.rados.write_or_fail(shard.remove()).await.unwrap();
            closed.retire(&stored, older, 1).await.unwrap();
            assert_eq!((layout().await.older, layout().await.current), (vec![], Some(current)));
        });
    }

    #[test]
    fn progress_is_read_again_after_a_shard_made_progress() {
        testing::run(Settings::default(), |core| async move {
            let stored = testing::create_topic(&core, &[1, 2], &[]).await;
            let (older, current) = (stored.record.layout.older[0], stored.record.layout.current.unwrap());
            let (_, hidden) = testing::objects_of(&stored, older.number, 0);
            testing::create_shard(&core, &stored, older.number, 0, &hidden).await;
            let closed = ClosedGenerations::new(&core);
            let waits = async || !closed.older_than(&stored, current).await.unwrap().generations.is_empty();
            assert!(waits().await);
            let (shard, _) =
                locate(&core.rados, &stored, older, 0, ObjectRead::attributes).await.unwrap().unwrap();
            core.rados.write_or_fail(shard.remove()).await.unwrap();
            assert!(waits().await, "the last reading is used for a while");
            let topic = stored.record.topic.id;
            closed.forget_progress(&ShardKey { topic, generation: older.number, shard: 0 });
            assert!(!waits().await);
        });
    }
}
