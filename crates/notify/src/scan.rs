//! Periodic checks: which gateways run, shards of other gateways that have events, and all topics and outboxes, to find the
//! work that dead gateways left.

use crate::core::Core;
use crate::error::Result;
use crate::generations::GenerationChanges;
use crate::mover::Movers;
use crate::queue_shard::{ShardKey, locate};
use crate::removal;
use crate::schedule::WatchedShard;
use crate::shard_tasks::ShardTasks;
use crate::topic_state::TopicStates;
use crate::topic_store::{MAX_PAGE, StoredTopic};
use futures::future::{Either, select};
use nacre_queues::layout::Generation;
use nacre_queues::lease::is_leased;
use nacre_queues::op::{ObjectKey, ObjectRead, ObjectReply};
use nacre_queues::shard::Shard;
use nacre_topics::arn::TopicArn;
use nacre_topics::topic::TopicId;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// The number of checks without an owner after which a gateway takes a shard that prefers another gateway.
const MAX_UNOWNED_CHECKS: u32 = 3;
/// The number of reads without a pause.
const UNPACED_READS: u32 = 50;

/// Limits the rate of reads.
struct Pace<'a> {
    core: &'a Core,
    done: u32,
}

impl Pace<'_> {
    /// Called before each read; returns `false` once delivery is stopped.
    async fn next(&mut self) -> bool {
        self.done += 1;
        if !self.done.is_multiple_of(UNPACED_READS) {
            return !self.core.tasks.is_stopped();
        }
        let rate = f64::from(self.core.settings.scan_rate.max(1));
        self.core.tasks.sleep(Duration::from_secs_f64(f64::from(UNPACED_READS) / rate)).await
    }
}

/// Reads a shard's attributes and whether it has dead letters.
fn figures(object: &ObjectKey) -> ObjectRead {
    ObjectRead::page(object, Default::default(), "d", 1)
}

fn is_busy(shard: &Shard, reply: &ObjectReply) -> bool {
    !shard.is_drained() || !reply.page.is_empty()
}

/// Whether a gateway that may be running holds the lease of a shard, according to this gateway's clock. If the clock is
/// slow, leases of dead gateways seem to last longer.
fn is_held(core: &Core, shard: &Shard, reply: &ObjectReply) -> bool {
    is_leased(reply, core.env.wall_ns()) && core.gateways.may_be_running(shard.owner.value.client)
}

/// The periodic checks of a gateway.
pub(crate) struct Scanner {
    core: Arc<Core>,
    states: Arc<TopicStates>,
    changes: Arc<GenerationChanges>,
    shard_tasks: Arc<ShardTasks>,
    movers: Arc<Movers>,
    /// Notified if the next scan is to start now.
    sooner: Notify,
}

impl Scanner {
    pub(crate) fn new(
        core: &Arc<Core>,
        states: &Arc<TopicStates>,
        changes: &Arc<GenerationChanges>,
        shard_tasks: &Arc<ShardTasks>,
        movers: &Arc<Movers>,
    ) -> Scanner {
        Scanner {
            core: Arc::clone(core),
            states: Arc::clone(states),
            changes: Arc::clone(changes),
            shard_tasks: Arc::clone(shard_tasks),
            movers: Arc::clone(movers),
            sooner: Notify::new(),
        }
    }

    /// Starts the next scan now.
    pub(crate) fn scan_now(&self) {
        self.sooner.notify_one();
    }

    /// The task that watches other gateways and their shards.
    pub(crate) async fn watch_gateways(self: Arc<Self>) {
        let core = &self.core;
        while core.tasks.sleep(core.settings.watch).await {
            // The clock for the ages of events follows slow corrections only if it is read regularly.
            core.window_time();
            match core.outboxes.gateways().await {
                Ok(running) => core.gateways.set_running(running),
                Err(error) => tracing::warn!(%error, "notifications: which gateways run is not known"),
            }
            let mut pace = Pace { core, done: 0 };
            for (key, watched) in core.schedule.watched() {
                if !pace.next().await {
                    return;
                }
                if let Err(error) = self.check_watched(key, watched).await {
                    tracing::warn!(?key, %error, "notifications: a queue shard of another gateway is not watched");
                }
            }
        }
    }

    async fn check_watched(&self, key: ShardKey, watched: WatchedShard) -> Result<()> {
        let core = &self.core;
        let take = || {
            core.schedule.update_watched(key, None);
            self.shard_tasks.check(key);
        };
        let Some(known) = core.topics.peek(key.topic) else {
            core.schedule.update_watched(key, None);
            return Ok(());
        };
        let generation = known.record.layout.deliverable().find(|one| one.number == key.generation);
        let Some(generation) = generation else {
            core.schedule.update_watched(key, None);
            return Ok(());
        };
        let Some((shard, reply)) = locate(&core.rados, &known, generation, key.shard, figures).await? else {
            take();
            return Ok(());
        };
        let owner = shard.owner.value;
        if core.gateways.is_ended(owner.client) {
            take();
        } else if !is_busy(&shard, &reply) && known.record.layout.current == Some(generation) {
            core.schedule.update_watched(key, None);
        } else if is_held(core, &shard, &reply) {
            core.schedule.update_watched(key, Some(WatchedShard { owner, unowned_checks: 0 }));
        } else {
            let unowned_checks = if owner == watched.owner { watched.unowned_checks + 1 } else { 1 };
            if core.gateways.is_preferred(&key) || unowned_checks >= MAX_UNOWNED_CHECKS {
                take();
            } else {
                core.schedule.update_watched(key, Some(WatchedShard { owner, unowned_checks }));
            }
        }
        Ok(())
    }

    /// The task that scans all outboxes and topics.
    pub(crate) async fn scan(self: Arc<Self>) {
        let core = &self.core;
        let first = core.env.jitter(core.settings.watch);
        let mut wait = first;
        loop {
            let sooner = self.sooner.notified();
            match select(pin!(core.tasks.sleep(wait)), pin!(sooner)).await {
                Either::Left((true, _)) | Either::Right(_) if !core.tasks.is_stopped() => {}
                _ => return,
            }
            wait = core.settings.scan + core.env.jitter(core.settings.scan / 4);
            if let Err(error) = self.scan_outboxes().await {
                tracing::warn!(%error, "notifications: outboxes are not looked through; tried again");
            }
            if let Err(error) = self.scan_topics().await {
                tracing::warn!(%error, "notifications: topics are not looked through; tried again");
            }
        }
    }

    async fn scan_outboxes(&self) -> Result<()> {
        let core = &self.core;
        let mut pace = Pace { core, done: 0 };
        for bucket in core.outboxes.list().await? {
            for shard in bucket.shards {
                if !pace.next().await {
                    return Ok(());
                }
                self.movers.mark_shards_dirty(&bucket.bucket, [shard]);
            }
        }
        Ok(())
    }

    async fn scan_topics(&self) -> Result<()> {
        let core = &self.core;
        let mut pace = Pace { core, done: 0 };
        for tenant in core.topics.store.tenants().await? {
            let mut after: Option<String> = None;
            loop {
                let page = core.topics.store.list(&tenant, after.as_deref(), MAX_PAGE).await?;
                after =
                    page.topics.last().map(|last| last.record.topic.arn.name.clone()).filter(|_| page.more);
                for stored in page.topics {
                    let stored = core.topics.put(stored);
                    match self.scan_topic(&stored, &mut pace).await {
                        Ok(true) => {}
                        Ok(false) => return Ok(()),
                        // An error must not prevent the scan of the other topics.
                        Err(error) => {
                            tracing::warn!(topic = %stored.record.topic.arn, %error, "notifications: a topic is not looked through; tried again");
                        }
                    }
                }
                if after.is_none() {
                    break;
                }
            }
            let mut after = None;
            loop {
                let page = core.topics.store.list_deleted(&tenant, after, MAX_PAGE).await?;
                after = page.topics.last().map(|last| last.record.topic.id).filter(|_| page.more);
                for deleted in page.topics {
                    if let Err(error) = removal::remove_topic(core, &self.states, &deleted).await {
                        tracing::warn!(topic = %deleted.record.topic.arn, %error, "notifications: the queues of a deleted topic are removed later");
                    }
                }
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Adopts the change of a topic by another gateway, and checks its shards. `cached` are the ids of the topics of that name
    /// that were cached before.
    pub(crate) async fn adopt_topic(&self, arn: &TopicArn, cached: Vec<TopicId>) -> Result<()> {
        let core = &self.core;
        let stored = core.topics.store.get(arn).await?;
        let now = stored.as_ref().map(|stored| stored.record.topic.id);
        for id in cached.into_iter().filter(|id| Some(*id) != now) {
            self.states.forget(id);
        }
        let Some(stored) = stored else { return Ok(()) };
        let stored = core.topics.put(stored);
        // Shards that wait for the old endpoint then check the new one.
        self.states.endpoints.get(&stored);
        core.schedule.wake_all();
        // The first reads need no pause.
        self.scan_topic(&stored, &mut Pace { core, done: 0 }).await.map(drop)
    }

    /// Checks a topic and all its shards. Returns `false` once delivery is stopped.
    async fn scan_topic(&self, stored: &StoredTopic, pace: &mut Pace<'_>) -> Result<bool> {
        if stored.record.needs_change() {
            self.changes.schedule(stored);
        }
        let layout = &stored.record.layout;
        self.states.closed_generations.retain(stored.record.topic.id, &layout.older);
        for generation in layout.deliverable() {
            let mut is_gone = layout.current != Some(generation);
            for shard in 0..generation.shards {
                if !pace.next().await {
                    return Ok(false);
                }
                is_gone &= !self.scan_shard(stored, generation, shard).await?;
            }
            // The owner of a closed shard removes it; a closed generation is removed when it has no shards.
            if is_gone {
                self.states.closed_generations.retire(stored, generation, 0).await?;
            }
        }
        if layout.current.is_some() {
            self.movers.replay(stored).await?;
        }
        Ok(!self.core.tasks.is_stopped())
    }

    /// Checks a shard. Returns whether it exists.
    async fn scan_shard(&self, stored: &StoredTopic, generation: Generation, shard: u32) -> Result<bool> {
        let core = &self.core;
        let key = ShardKey { topic: stored.record.topic.id, generation: generation.number, shard };
        if core.schedule.is_running(&key) {
            // Its task may be about to end.
            self.shard_tasks.check(key);
            return Ok(true);
        }
        if core.schedule.is_watched(&key) {
            return Ok(true);
        }
        let is_older = stored.record.layout.current != Some(generation);
        match locate(&core.rados, stored, generation, shard, figures).await? {
            None => return Ok(false),
            Some((shard, reply)) if is_older || is_busy(&shard, &reply) => {
                let owner = shard.owner.value.client;
                let is_held = owner != core.session && is_held(core, &shard, &reply);
                if core.gateways.is_ended(owner) || (core.gateways.is_preferred(&key) && !is_held) {
                    self.shard_tasks.wake(key);
                } else {
                    core.schedule.watch_remote_shard(key);
                }
            }
            Some(_) => {}
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use crate::testing::{self, TestEndpoint};

    #[test]
    fn a_scan_finds_events_that_were_not_reported() {
        testing::run(Settings::default(), |core| async move {
            let stored = testing::create_topic(&core, &[1], &[]).await;
            let endpoint = TestEndpoint::default();
            let states = Arc::new(TopicStates::new(&core, endpoint.connector()));
            let changes = Arc::new(GenerationChanges::new(&core, &states));
            let shard_tasks = Arc::new(ShardTasks::new(&core, &states, &changes));
            let movers = Arc::new(Movers::new(&core, &states, &changes, &shard_tasks));
            let scanner = Arc::new(Scanner::new(&core, &states, &changes, &shard_tasks, &movers));
            testing::write_outbox_record(&core, &stored.record.topic, "one", 1).await;
            core.tasks.spawn(Arc::clone(&scanner).scan());
            core.env.sleep(core.settings.watch * 2).await;
            assert_eq!((endpoint.received(), movers.backlog()), (vec!["one".to_owned()], 0));
            testing::write_outbox_record(&core, &stored.record.topic, "two", 2).await;
            core.env.sleep(core.settings.watch).await;
            assert_eq!(endpoint.received(), ["one"], "the next scan is later");
            scanner.scan_now();
            core.env.sleep(core.settings.watch).await;
            assert_eq!(endpoint.received(), ["one", "two"]);
        });
    }
}
