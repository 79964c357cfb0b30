//! Commands for operators: figures, queued events, dead letters.

mod dump;
mod reservations;

pub(crate) use dump::dump;

use crate::core::Core;
use crate::error::Result;
use crate::queue_shard::{locate, queue_id};
use crate::topic_store::StoredTopic;
use bytes::Bytes;
use nacre_queues::dead_letters::{
    self, DeadLetterCounters, DeadLetterQueue, LetterKind, MAX_LETTERS_PER_OP, NumberedLetter,
};
use nacre_queues::name::QueueRecordKind;
use nacre_queues::op::{ObjectKey, ObjectRead};
use nacre_queues::record::DeadLetter;
use nacre_queues::retry::BreakerState;
use nacre_queues::settle;
use nacre_queues::shard::Shard;
use nacre_queues::stats::{self, ShardStats, TopicStats};
use nacre_topics::record::Event;
use nacre_types::encoding;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The most failed attempts to purge or replay letters while others change them.
const MAX_LETTER_FAILURES: usize = 16;

/// The figures of a topic's queue.
#[derive(Clone, Debug)]
pub struct TopicReport {
    /// The topic's record.
    pub stored: Arc<StoredTopic>,
    /// Sums, including Ceph's `Reservations`, `Size` and `Entries`.
    pub totals: TopicStats,
    /// The figures of each shard of each generation.
    pub shards: Vec<ShardStats>,
    /// Shards that should exist but do not, because the change that creates them is not complete.
    pub missing: Vec<(u64, u32)>,
    /// The dead-letter queue's counters.
    pub letters: DeadLetterCounters,
}

impl TopicReport {
    /// Sets the states of circuit breakers as reported by gateways, by session. A shard has the state that its owner
    /// reported. If the owner reported none, or if there is no owner yet, it has the worst state that a gateway reported.
    pub fn set_breakers(&mut self, reported: &BTreeMap<u64, BreakerState>) {
        let worst = reported.values().copied().max();
        for shard in &mut self.shards {
            shard.breaker = reported.get(&shard.owner).copied().or(worst);
        }
    }
}

/// An event in a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedEvent {
    /// The generation of its shard.
    pub generation: u64,
    /// Its shard.
    pub shard: u32,
    /// Its place in the shard.
    pub sequence: u64,
    /// The event.
    pub event: Event,
    /// Whether it is replayed from the dead letters.
    pub is_replayed: bool,
    /// The number of failed attempts, if it is parked.
    pub attempts: Option<u32>,
    /// The failure of the last attempt.
    pub detail: String,
}

/// A dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterInfo {
    /// Its number in the dead-letter queue.
    pub number: u64,
    /// The event.
    pub event: Event,
    /// The reason, the number of attempts, and the time.
    pub letter: DeadLetter,
}

/// Which dead letters are purged or replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LetterSelection {
    /// All letters that exist now.
    All,
    /// The letter with this number.
    One(u64),
}

fn decode(object: &ObjectKey, payload: &[u8]) -> Result<Event> {
    let corrupt = |source| nacre_queues::Error::Corrupt { object: object.to_string(), source };
    Ok(encoding::decode(payload).map_err(corrupt)?)
}

/// The figures of a topic.
pub(crate) async fn report(core: &Core, stored: &Arc<StoredTopic>) -> Result<TopicReport> {
    let layout = &stored.record.layout;
    let (mut shards, mut missing) = (Vec::new(), Vec::new());
    for generation in layout.deliverable() {
        for index in 0..generation.shards {
            match locate(&core.rados, stored, generation, index, ObjectRead::attributes).await? {
                Some((shard, _)) => shards.push(figures(core, &shard).await?),
                None if layout.current == Some(generation) => missing.push((generation.number, index)),
                None => {}
            }
        }
    }
    let current = layout.current.map_or(0, |current| current.number);
    let reservations = reservations::count(core, stored.record.topic.id).await?;
    let totals = TopicStats::new(&shards, current, reservations, core.env.wall_ns());
    let letters = read_letters(core, stored, None, 1)
        .await?
        .map_or(DeadLetterCounters::default(), |(queue, _)| queue.counters.value);
    Ok(TopicReport { stored: Arc::clone(stored), totals, shards, missing, letters })
}

async fn figures(core: &Core, shard: &Shard) -> Result<ShardStats> {
    let mut oldest: Option<u64> = None;
    if !shard.is_empty() {
        for kind in [QueueRecordKind::Segment, QueueRecordKind::Batch, QueueRecordKind::Parked] {
            let read = settle::read_records(&shard.object, kind, Bytes::new(), 4);
            if let Some(reply) = core.rados.read(&read).await? {
                oldest = oldest.into_iter().chain(stats::oldest_ns(shard, &reply.page)?).min();
            }
        }
    }
    let mut figures = ShardStats::new(shard, oldest);
    let io = core.rados.namespace(shard.object.namespace);
    if let (Some(map), Ok(object)) = (io.cluster().osdmap(), io.object(&shard.object.name))
        && let Some(pool) = map.pools.get(&object.pool())
    {
        let pg = pool.pg_of(&object);
        figures.placement =
            map.membership(pg).map(|membership| (pg.to_string(), membership.primary.0 as i32));
    }
    Ok(figures)
}

/// Reads a page of the dead-letter queue; `None` if there is no such queue.
async fn read_letters(
    core: &Core,
    stored: &StoredTopic,
    after: Option<u64>,
    max: u64,
) -> Result<Option<(DeadLetterQueue, Vec<NumberedLetter>)>> {
    let id = queue_id(stored.record.topic.id);
    let Some(reply) = core.rados.read(&dead_letters::read_letters(&id, LetterKind::Kept, after, max)).await?
    else {
        return Ok(None);
    };
    let queue = DeadLetterQueue::from_reply(&id, &[], &reply)?;
    let letters = queue.letters(LetterKind::Kept, &reply.page)?;
    Ok(Some((queue, letters)))
}

/// Up to `max` dead letters after a number.
pub(crate) async fn letters(
    core: &Core,
    stored: &StoredTopic,
    after: Option<u64>,
    max: u64,
) -> Result<Vec<DeadLetterInfo>> {
    let Some((queue, letters)) =
        read_letters(core, stored, after, max.min(MAX_LETTERS_PER_OP as u64)).await?
    else {
        return Ok(Vec::new());
    };
    let shown = letters.into_iter().map(|(number, letter)| {
        Ok(DeadLetterInfo { number, event: decode(&queue.object, &letter.event.payload)?, letter })
    });
    shown.collect()
}

/// The action on dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LetterAction {
    Purge,
    Replay,
}

/// Purges or replays letters; returns their number.
pub(crate) async fn apply_to_letters(
    core: &Core,
    stored: &StoredTopic,
    which: LetterSelection,
    how: LetterAction,
) -> Result<u64> {
    let mut done = 0;
    let mut last = None;
    let mut failures = 0;
    loop {
        core.tasks.check_running()?;
        let (after, max) = match which {
            LetterSelection::All => (None, MAX_LETTERS_PER_OP as u64),
            LetterSelection::One(number) => (number.checked_sub(1), 1),
        };
        let Some((queue, mut letters)) = read_letters(core, stored, after, max).await? else {
            return Ok(done);
        };
        if let LetterSelection::One(number) = which {
            letters.retain(|(found, _)| *found == number);
        }
        // Letters that arrived after the first read are left.
        let last = *last.get_or_insert(queue.counters.value.next);
        letters.retain(|(number, _)| *number < last);
        if letters.is_empty() {
            return Ok(done);
        }
        let (op, _) = match how {
            LetterAction::Purge => queue.purge(&letters),
            LetterAction::Replay => queue.replay(&letters, core.env.wall_ns()),
        };
        if core.rados.write(op).await?.is_done() {
            done += letters.len() as u64;
            if which != LetterSelection::All {
                return Ok(done);
            }
        } else {
            failures += 1;
            if failures > MAX_LETTER_FAILURES {
                return Err(crate::Error::Contended(queue.object.to_string()));
            }
        }
    }
}
