//! Dead letters: moving them from beside a shard's log to the dead-letter queue of the topic.

use super::Ownership;
use crate::error::Result;
use crate::metrics::add;
use crate::queue_shard::queue_id;
use crate::rados::WriteOutcome;
use bytes::Bytes;
use nacre_queues::dead_letters::{
    self, AddLettersResult, DeadLetterPage, DeadLetterQueue, LetterKind, MAX_LETTERS_PER_OP,
};
use nacre_queues::name::{self, QueueRecordKind, SourceId};
use nacre_queues::op::ObjectRead;
use nacre_queues::settle;

/// The most attempts at one page while others change the dead-letter queue.
const PAGE_ATTEMPTS: usize = 8;

impl Ownership<'_> {
    /// Moves a page of dead letters. Returns whether there may be more to do immediately.
    pub(super) async fn move_dead_letters(&mut self) -> Result<bool> {
        let core = self.core;
        let topic = queue_id(self.key.topic);
        let source = SourceId::dead(&topic, self.key.generation, self.key.shard);
        let sources = std::slice::from_ref(&source);
        let mut oldest = 0;
        for _ in 0..PAGE_ATTEMPTS {
            let read = dead_letters::read(&topic, &source);
            let page = dead_letters::read_letters(&topic, LetterKind::Kept, None, oldest).page;
            let read = ObjectRead { page: page.filter(|_| oldest > 0), ..read };
            let Some(reply) = core.rados.read(&read).await? else {
                // The queue is not created if there are no letters.
                let read = settle::read_records(&self.shard.object, QueueRecordKind::Dead, Bytes::new(), 1);
                if self.read_as_owner(&read).await?.page.is_empty() {
                    self.has_letters = false;
                    return Ok(false);
                }
                core.rados.write(dead_letters::create(&topic)).await?;
                continue;
            };
            let queue = DeadLetterQueue::from_reply(&topic, sources, &reply)?;
            let kept = queue.letters(LetterKind::Kept, &reply.page)?;
            let read = settle::read_records(
                &self.shard.object,
                QueueRecordKind::Dead,
                Bytes::new(),
                MAX_LETTERS_PER_OP as u64,
            );
            let reply = self.read_as_owner(&read).await?;
            let letters = settle::parse_dead_letters(&self.shard.object, &reply.page)?;
            if letters.is_empty() {
                self.has_letters = false;
                return Ok(false);
            }
            let revision = queue.counters.value.revision;
            let page = DeadLetterPage { source: source.clone(), revision, letters, is_complete: !reply.more };
            let moved = match queue.add(page, core.settings.letters, &kept) {
                AddLettersResult::Write(plan) => {
                    if core.rados.write(plan.op).await? != WriteOutcome::Done {
                        continue;
                    }
                    let dropped = plan.after.counters.value.dropped - queue.counters.value.dropped;
                    add(&core.metrics.dead_dropped, dropped);
                    plan.moved
                }
                AddLettersResult::Nothing(moved) => moved,
                AddLettersResult::Stale => continue,
                AddLettersResult::NeedsOldest(wanted) => {
                    oldest = wanted.max(oldest * 2).max(1);
                    continue;
                }
            };
            let numbers: Vec<u64> = moved.ids.iter().filter_map(dead_letters::letter_number).collect();
            core.rados.write_or_fail(settle::remove_dead_letters(&self.shard, &numbers)).await?;
            return Ok(true);
        }
        tracing::debug!(object = %name::dead_letter_object(&topic), "notifications: dead letters are moved later");
        Ok(false)
    }
}
