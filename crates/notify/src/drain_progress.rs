//! The remaining events of older generations, for the shards of later generations that wait for them.
//!
//! All shards of a topic share a reading. The progress of a closed shard never goes back, so a drained shard is not read
//! again.

use crate::core::{Core, ShardKey};
use crate::error::Result;
use crate::owner::locate;
use crate::topic_store::StoredTopic;
use futures::{FutureExt as _, StreamExt as _};
use nacre_queues::layout::Generation;
use nacre_queues::name::QueueRecordKind;
use nacre_queues::op::{ObjectKey, ObjectRead};
use nacre_queues::settle;
use nacre_queues::shard::{self, DrainProgress};
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

#[derive(Default)]
pub(crate) struct DrainProgressCache {
    generations: Mutex<BTreeMap<(TopicId, u64), SharedKnown>>,
}

/// The known progress of a generation, locked by one reader at a time.
type SharedKnown = Arc<futures::lock::Mutex<Known>>;

#[derive(Default)]
struct Known {
    shards: BTreeMap<u32, DrainProgress>,
    read_at_ns: Option<u64>,
}

impl DrainProgressCache {
    fn of(&self, topic: TopicId, generation: u64) -> SharedKnown {
        Arc::clone(self.generations.lock().entry((topic, generation)).or_default())
    }

    /// A shard made progress in this gateway: its generation must be read again.
    pub(crate) fn forget(&self, key: &ShardKey) {
        let known = self.generations.lock().get(&(key.topic, key.generation)).cloned();
        if let Some(known) = known
            && let Some(mut known) = known.try_lock()
        {
            known.read_at_ns = None;
        }
    }

    /// Removes all generations of a topic except those in `older`, which are not drained.
    pub(crate) fn retain(&self, topic: TopicId, older: &[Generation]) {
        self.generations.lock().retain(|(of, number), _| {
            *of != topic || older.iter().any(|generation| generation.number == *number)
        });
    }
}

/// The progress of the generations before `generation`.
pub(crate) async fn read_older_generations(
    core: &Core,
    stored: &StoredTopic,
    generation: Generation,
) -> Result<OlderGenerations> {
    let mut older = OlderGenerations::default();
    for before in stored.record.layout.before(generation.number) {
        let known = core.progress.of(stored.record.topic.id, before.number);
        let mut known = known.lock().await;
        let now_ns = core.mono_ns();
        if known.read_at_ns.is_none_or(|read_at_ns| now_ns > read_at_ns + PROGRESS_TTL_NS) {
            read(core, stored, before, &mut known).await?;
            known.read_at_ns = Some(now_ns);
        }
        if !known.shards.values().all(|progress| *progress == DrainProgress::Drained) {
            older.generations.push((before.shards, known.shards.clone()));
        }
    }
    Ok(older)
}

async fn read(core: &Core, stored: &StoredTopic, generation: Generation, known: &mut Known) -> Result<()> {
    let mut reads = Vec::new();
    for index in 0..generation.shards {
        if known.shards.get(&index) != Some(&DrainProgress::Drained) {
            reads.push(read_one(core, stored, generation, index).boxed());
        }
    }
    let mut reads = futures::stream::iter(reads).buffered(READS);
    while let Some(read) = reads.next().await {
        let (index, progress) = read?;
        known.shards.insert(index, progress);
    }
    Ok(())
}

async fn read_one(
    core: &Core,
    stored: &StoredTopic,
    generation: Generation,
    index: u32,
) -> Result<(u32, DrainProgress)> {
    let progress = match locate(core, stored, generation, index, parked).await? {
        None => DrainProgress::Drained,
        Some((_, reply)) if reply.more => DrainProgress::Busy,
        Some((shard, reply)) => DrainProgress::of(&shard, &shard::parse_parked(&shard.object, &reply.page)?),
    };
    Ok((index, progress))
}

fn parked(object: &ObjectKey) -> ObjectRead {
    settle::read_records(object, QueueRecordKind::Parked, Default::default(), MAX_PARKED)
}
