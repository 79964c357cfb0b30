//! Replay of dead letters: from the dead-letter queue of a topic into its current generation.

use super::Movers;
use crate::error::Result;
use crate::producer::NotMovedReason;
use crate::queue_shard::{ShardKey, queue_id};
use crate::topic_store::StoredTopic;
use nacre_queues::dead_letters::{self, DeadLetterQueue, LetterKind, MAX_LETTERS_PER_OP};
use nacre_queues::enqueue::OutboxEvent;
use nacre_queues::name::{self, SourceId};
use nacre_queues::settle::dead_letter_id;
use nacre_topics::topic::TopicId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The most turns of one replay. Letters that are left after that wait for the next one.
const TURNS: usize = 64;
/// The delay between two attempts to start a replay while another task replays letters of the topic.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// Replays the topic's letters that are marked for it. Only one task at a time may do this: a token does not cover what
/// another task with the same token enqueued and removed since the letters were read.
pub(super) async fn replay(movers: &Movers, stored: &StoredTopic) -> Result<()> {
    let topic = stored.record.topic.id;
    while !movers.replays.lock().insert(topic) {
        if !movers.core.tasks.sleep(RETRY_DELAY).await {
            return Ok(());
        }
    }
    let _guard = ReplayGuard { movers, topic };
    replay_letters(movers, stored, &queue_id(topic)).await
}

/// Guard: no other task of this gateway replays the letters of the topic.
struct ReplayGuard<'a> {
    movers: &'a Movers,
    topic: TopicId,
}

impl Drop for ReplayGuard<'_> {
    fn drop(&mut self) {
        self.movers.replays.lock().remove(&self.topic);
    }
}

/// Moves all letters that are to be replayed into the queue.
async fn replay_letters(movers: &Movers, stored: &StoredTopic, id: &name::TopicId) -> Result<()> {
    let (core, producers) = (&movers.core, &movers.states.producers);
    let record = &stored.record;
    let Some(generation) = record.layout.current else { return Ok(()) };
    let source = SourceId::replay(id);
    let mut tokens = BTreeMap::new();
    for _ in 0..TURNS {
        core.tasks.check_running()?;
        let read = dead_letters::read_letters(id, LetterKind::Replayed, None, MAX_LETTERS_PER_OP as u64);
        let Some(reply) = core.rados.read(&read).await? else { return Ok(()) };
        let queue = DeadLetterQueue::from_reply(id, &[], &reply)?;
        let letters = queue.letters(LetterKind::Replayed, &reply.page)?;
        if letters.is_empty() {
            return Ok(());
        }
        let present: BTreeSet<u64> = letters.iter().map(|(number, _)| *number).collect();
        let mut by_shard: BTreeMap<u32, Vec<OutboxEvent>> = BTreeMap::new();
        for (number, letter) in letters {
            let event = OutboxEvent { id: dead_letter_id(number), event: letter.event };
            by_shard.entry(generation.shard_of(event.event.key)).or_default().push(event);
        }
        // As with outboxes, letters that were read before a producer's token was taken are not used.
        let mut is_early = false;
        for shard in by_shard.keys() {
            if !tokens.contains_key(shard) {
                let producer = producers.get(&record.topic, generation, *shard);
                let Some(token) = producer.epoch_token(&source).await? else { return Ok(()) };
                tokens.insert(*shard, token);
                is_early = true;
            }
        }
        if is_early {
            continue;
        }
        for (shard, events) in by_shard {
            let Some(token) = tokens.get(&shard) else { continue };
            let producer = producers.get(&record.topic, generation, shard);
            let taken = producer.enqueue(*token, source.clone(), events).await;
            let numbers: Vec<u64> = taken.moved.iter().filter_map(dead_letters::letter_number).collect();
            if !numbers.is_empty() {
                core.rados.write_or_fail(dead_letters::remove_replayed(id, &numbers)).await?;
                producer.drop_receipts(&source, taken.moved).await;
                let key = ShardKey { topic: record.topic.id, generation: generation.number, shard };
                movers.shard_tasks.wake(key);
            }
            match taken.left {
                None => {}
                Some(NotMovedReason::Stale) => drop(tokens.remove(&shard)),
                Some(NotMovedReason::Failed(error)) => return Err(error),
                Some(NotMovedReason::TooManyReceipts) => {
                    let last = if reply.more { present.last().copied() } else { None };
                    let is_gone =
                        |number: u64| !present.contains(&number) && last.is_none_or(|last| number <= last);
                    let receipts = producer.receipts(&source).await.unwrap_or_default();
                    let gone = receipts
                        .into_iter()
                        .filter(|id| dead_letters::letter_number(id).is_some_and(is_gone));
                    producer.drop_receipts(&source, gone).await;
                }
                // The next check of the topic retries this.
                Some(NotMovedReason::NotSpilled) => {
                    let key = ShardKey { topic: record.topic.id, generation: generation.number, shard };
                    movers.shard_tasks.request_spill(key);
                    return Ok(());
                }
                Some(NotMovedReason::Closed) => return Ok(()),
            }
        }
    }
    Ok(())
}
