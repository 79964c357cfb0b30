//! Periodic checks: which gateways run, shards of other gateways that have events, and all topics and outboxes, to find the
//! work that dead gateways left.

use crate::core::{Core, ShardKey};
use crate::error::Result;
use crate::mover;
use crate::owner::{self, locate};
use crate::shard_tasks::{self, WatchedShard};
use crate::topic_store::{MAX_PAGE, StoredTopic};
use futures::future::{Either, select};
use nacre_queues::layout::Generation;
use nacre_queues::lease::is_leased;
use nacre_queues::op::{ObjectKey, ObjectRead, ObjectReply};
use nacre_queues::shard::Shard;
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
            return !self.core.is_stopped();
        }
        let rate = f64::from(self.core.settings.scan_rate.max(1));
        self.core.sleep_unless_stopped(Duration::from_secs_f64(f64::from(UNPACED_READS) / rate)).await
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
    is_leased(reply, core.env.wall_ns()) && core.may_be_running(shard.owner.value.client)
}

/// The task that watches other gateways and their shards.
pub(crate) async fn watch_gateways(core: Arc<Core>) {
    while core.sleep_unless_stopped(core.settings.watch).await {
        // The clock for the ages of events follows slow corrections only if it is read regularly.
        core.window_time();
        match core.outboxes.gateways().await {
            Ok(running) => core.set_running_gateways(running),
            Err(error) => tracing::warn!(%error, "notifications: which gateways run is not known"),
        }
        let mut pace = Pace { core: &core, done: 0 };
        for (key, watched) in core.owners.watched() {
            if !pace.next().await {
                return;
            }
            if let Err(error) = check_watched(&core, key, watched).await {
                tracing::warn!(?key, %error, "notifications: a queue shard of another gateway is not watched");
            }
        }
    }
}

async fn check_watched(core: &Arc<Core>, key: ShardKey, watched: WatchedShard) -> Result<()> {
    let take = || {
        core.owners.update_watched(key, None);
        shard_tasks::check_shard(core, key, false);
    };
    let Some(known) = core.topics.peek(key.topic) else {
        core.owners.update_watched(key, None);
        return Ok(());
    };
    let generation = known.record.layout.deliverable().find(|one| one.number == key.generation);
    let Some(generation) = generation else {
        core.owners.update_watched(key, None);
        return Ok(());
    };
    let Some((shard, reply)) = locate(core, &known, generation, key.shard, figures).await? else {
        take();
        return Ok(());
    };
    let owner = shard.owner.value;
    if core.is_gateway_ended(owner.client) {
        take();
    } else if !is_busy(&shard, &reply) && known.record.layout.current == Some(generation) {
        core.owners.update_watched(key, None);
    } else if is_held(core, &shard, &reply) {
        core.owners.update_watched(key, Some(WatchedShard { owner, unowned_checks: 0 }));
    } else {
        let unowned_checks = if owner == watched.owner { watched.unowned_checks + 1 } else { 1 };
        if core.is_preferred(&key) || unowned_checks >= MAX_UNOWNED_CHECKS {
            take();
        } else {
            core.owners.update_watched(key, Some(WatchedShard { owner, unowned_checks }));
        }
    }
    Ok(())
}

/// The task that scans all outboxes and topics.
pub(crate) async fn scan(core: Arc<Core>, sooner: Arc<Notify>) {
    let first = core.env.jitter(core.settings.watch);
    let mut wait = first;
    loop {
        let sooner = sooner.notified();
        match select(pin!(core.sleep_unless_stopped(wait)), pin!(sooner)).await {
            Either::Left((true, _)) | Either::Right(_) if !core.is_stopped() => {}
            _ => return,
        }
        wait = core.settings.scan + core.env.jitter(core.settings.scan / 4);
        if let Err(error) = scan_outboxes(&core).await {
            tracing::warn!(%error, "notifications: outboxes are not looked through; tried again");
        }
        if let Err(error) = scan_topics(&core).await {
            tracing::warn!(%error, "notifications: topics are not looked through; tried again");
        }
    }
}

async fn scan_outboxes(core: &Arc<Core>) -> Result<()> {
    let mut pace = Pace { core, done: 0 };
    for bucket in core.outboxes.list().await? {
        for shard in bucket.shards {
            if !pace.next().await {
                return Ok(());
            }
            mover::mark_shards_dirty(core, &bucket.bucket, [shard]);
        }
    }
    Ok(())
}

async fn scan_topics(core: &Arc<Core>) -> Result<()> {
    let mut pace = Pace { core, done: 0 };
    for tenant in core.topics.store.tenants().await? {
        let mut after: Option<String> = None;
        loop {
            let page = core.topics.store.list(&tenant, after.as_deref(), MAX_PAGE).await?;
            after = page.topics.last().map(|last| last.record.topic.arn.name.clone()).filter(|_| page.more);
            for stored in page.topics {
                let stored = core.topics.put(stored);
                match scan_topic(core, &stored, &mut pace).await {
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
        for deleted in core.topics.store.list_deleted(&tenant, None, MAX_PAGE).await?.topics {
            if let Err(error) = crate::removal::remove_topic(core, &deleted).await {
                tracing::warn!(topic = %deleted.record.topic.arn, %error, "notifications: the queues of a deleted topic are removed later");
            }
        }
    }
    Ok(())
}

/// Checks all shards of a topic; the first [`UNPACED_READS`] reads need no pause.
pub(crate) async fn check_topic_shards(core: &Arc<Core>, stored: &Arc<StoredTopic>) -> Result<()> {
    scan_topic(core, stored, &mut Pace { core, done: 0 }).await.map(drop)
}

/// Returns `false` once delivery is stopped.
async fn scan_topic(core: &Arc<Core>, stored: &Arc<StoredTopic>, pace: &mut Pace<'_>) -> Result<bool> {
    if stored.record.needs_change() {
        core.schedule_reconcile(stored);
    }
    let layout = &stored.record.layout;
    core.progress.retain(stored.record.topic.id, &layout.older);
    for generation in layout.deliverable() {
        let mut is_gone = layout.current != Some(generation);
        for shard in 0..generation.shards {
            if !pace.next().await {
                return Ok(false);
            }
            is_gone &= !scan_shard(core, stored, generation, shard).await?;
        }
        // The owner of a closed shard removes it; a closed generation is removed when it has no shards.
        if is_gone {
            crate::generations::retire(core, stored, generation, 0).await?;
        }
    }
    if layout.current.is_some() {
        mover::replay(core, stored).await?;
    }
    Ok(!core.is_stopped())
}

/// Checks a shard. Returns whether it exists.
async fn scan_shard(
    core: &Arc<Core>,
    stored: &Arc<StoredTopic>,
    generation: Generation,
    shard: u32,
) -> Result<bool> {
    let key = ShardKey { topic: stored.record.topic.id, generation: generation.number, shard };
    if core.owners.is_running(&key) {
        // Its task may be about to end.
        shard_tasks::check_shard(core, key, false);
        return Ok(true);
    }
    if core.owners.is_watched(&key) {
        return Ok(true);
    }
    let is_older = stored.record.layout.current != Some(generation);
    match locate(core, stored, generation, shard, figures).await? {
        None => return Ok(false),
        Some((shard, reply)) if is_older || is_busy(&shard, &reply) => {
            let owner = shard.owner.value.client;
            let is_held = owner != core.session && is_held(core, &shard, &reply);
            if core.is_gateway_ended(owner) || (core.is_preferred(&key) && !is_held) {
                owner::wake_shard(core, key);
            } else {
                core.owners.watch_remote_shard(key);
            }
        }
        Some(_) => {}
    }
    Ok(true)
}
