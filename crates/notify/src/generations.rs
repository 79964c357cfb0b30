//! Changes of the generations of a topic's queue: the topic is made persistent or non-persistent, or is resharded. Any
//! gateway may continue from any step where another one died (`nacre_queues::reshard`).

use crate::core::Core;
use crate::error::{Error, Result};
use crate::outbox::remove_enqueued_records;
use crate::queue_shard::{ShardKey, queue_id, read_shard};
use crate::rados::WriteOutcome;
use crate::removal;
use crate::topic_state::TopicStates;
use crate::topic_store::StoredTopic;
use bytes::Bytes;
use nacre_queues::dead_letters;
use nacre_queues::layout::{BeginResult, Generation};
use nacre_queues::name::{self, SourceId};
use nacre_queues::op::{ObjectKey, ObjectRead};
use nacre_queues::reshard::{self, BeginCopy, ShardStep};
use nacre_queues::shard::{self, ObjectContent, Shard};
use nacre_topics::arn::TopicArn;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// The duration of the lock on a change if it is not renewed.
const CHANGE_LOCK_DURATION: Duration = Duration::from_secs(10);
/// The delay after a failed change.
const CHANGE_RETRY: Duration = Duration::from_secs(2);
/// The delay between two attempts to get the lock, or to take the lease of a shard.
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// The number of attempts before an owner's lease is broken.
const LEASE_BREAK_ATTEMPTS: usize = 15;
/// The most attempts of a step that fails because of concurrent changes.
const STEP_ATTEMPTS: usize = 100;
/// The number of entries in a page of a shard that is copied: about 4 MiB with batches of 64 KiB.
const COPY_PAGE_ENTRIES: u64 = 64;

/// The changes of generations by this gateway.
pub(crate) struct GenerationChanges {
    core: Arc<Core>,
    states: Arc<TopicStates>,
    /// Topics whose generations a task is changing.
    changing: Mutex<BTreeSet<TopicArn>>,
    /// Topics whose generations a scheduled task changes.
    scheduled: Mutex<BTreeSet<TopicArn>>,
}

impl GenerationChanges {
    pub(crate) fn new(core: &Arc<Core>, states: &Arc<TopicStates>) -> GenerationChanges {
        let (core, states) = (Arc::clone(core), Arc::clone(states));
        GenerationChanges { core, states, changing: Mutex::default(), scheduled: Mutex::default() }
    }

    /// Starts a task that makes the changes of a topic's queue that its record requires, including changes that other gateways
    /// left incomplete.
    pub(crate) fn schedule(self: &Arc<Self>, stored: &StoredTopic) {
        let arn = stored.record.topic.arn.clone();
        if !self.scheduled.lock().insert(arn.clone()) {
            return;
        }
        let changes = Arc::clone(self);
        self.core.tasks.spawn(async move {
            if let Err(error) = changes.reconcile(&arn).await {
                tracing::warn!(topic = %arn, %error, "notifications: the change of a topic's queues is tried again later");
                // Owners and movers call this several times a second.
                changes.core.tasks.sleep(CHANGE_RETRY).await;
            }
            changes.scheduled.lock().remove(&arn);
        });
    }

    /// Adapts the queues of a topic to its attributes. Returns when this is done.
    pub(crate) async fn reconcile(&self, arn: &TopicArn) -> Result<()> {
        let core = &self.core;
        for _ in 0..STEP_ATTEMPTS {
            core.tasks.check_running()?;
            let Some(stored) = core.topics.store.get(arn).await? else { return Ok(()) };
            let stored = core.topics.put(stored);
            if stored.record.layout.next.is_none() {
                let mut record = stored.record.clone();
                match record.begin_change()? {
                    BeginResult::Unchanged | BeginResult::Deleted => return Ok(()),
                    BeginResult::TooMany => return Err(Error::TooManyGenerations(arn.clone())),
                    BeginResult::Busy => {}
                    BeginResult::Started => {
                        if let Some(stored) = core.topics.store.update(&stored, &record).await? {
                            core.topics.put(stored);
                        }
                    }
                }
                continue;
            }
            // The lock excludes other gateways, but not another task of this gateway.
            let Some(_alone) = ChangeGuard::new(&self.changing, &stored.record.topic.arn) else {
                core.tasks.sleep(RETRY_DELAY).await;
                continue;
            };
            if !core.topics.store.lock_change(&stored.record.topic, CHANGE_LOCK_DURATION).await? {
                core.tasks.sleep(RETRY_DELAY).await;
                continue;
            }
            let changed = change(core, &self.states, &stored).await;
            core.topics.store.unlock_change(&stored.record.topic).await?;
            match changed {
                Ok(()) => {}
                Err(Error::Changed(_) | Error::Contended(_)) => {
                    core.tasks.sleep(RETRY_DELAY).await;
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::Contended(arn.to_string()))
    }
}

/// Guard: no other task of this gateway changes the queues of the topic.
struct ChangeGuard<'a> {
    changing: &'a Mutex<BTreeSet<TopicArn>>,
    arn: &'a TopicArn,
}

impl<'a> ChangeGuard<'a> {
    fn new(changing: &'a Mutex<BTreeSet<TopicArn>>, arn: &'a TopicArn) -> Option<ChangeGuard<'a>> {
        // A guard that is created ends the change when it is dropped.
        changing.lock().insert(arn.clone()).then(|| ChangeGuard { changing, arn })
    }
}

impl Drop for ChangeGuard<'_> {
    fn drop(&mut self) {
        self.changing.lock().remove(self.arn);
    }
}

/// Makes the next generation the current one.
async fn change(core: &Core, states: &TopicStates, stored: &StoredTopic) -> Result<()> {
    let layout = &stored.record.layout;
    let Some(next) = layout.next else { return Ok(()) };
    let topic = &stored.record.topic;
    let id = queue_id(topic.id);
    for index in reshard::affected_indices(layout.current, next) {
        let object = name::queue_object(&topic.arn.tenant, &topic.arn.name, index);
        repeat(core, states, stored, &object, index, |found| {
            reshard::next_step(&id, layout.current, next, index, found)
        })
        .await?;
    }
    if let Some(hidden) = layout.current.filter(|current| !current.is_visible) {
        for index in 0..hidden.shards {
            let object = name::closed_object(&id, hidden.number, index);
            close(core, stored, &object, hidden, index).await?;
        }
    }
    if !next.is_visible {
        let object = name::closed_object(&id, next.number, 0);
        repeat(core, states, stored, &object, 0, |found| reshard::hidden_step(&id, next, found)).await?;
    }
    let mut record = stored.record.clone();
    if !record.layout.commit(next.number) {
        return Err(Error::Changed(topic.arn.to_string()));
    }
    let Some(stored) = core.topics.store.update(stored, &record).await? else {
        return Err(Error::Changed(topic.arn.to_string()));
    };
    let stored = core.topics.put(stored);
    tracing::info!(topic = %topic.arn, generation = next.number, shards = next.shards, "notifications: a topic has new queues");
    core.schedule.wake_all();
    let older = stored.record.layout.older.iter();
    let shards = older.flat_map(|older| (0..older.shards).map(|shard| (older.number, shard)));
    let keys = shards.map(|(generation, shard)| ShardKey { topic: topic.id, generation, shard });
    core.schedule.schedule_checks(keys.filter(|key| !core.schedule.is_watched(key)).collect());
    Ok(())
}

/// Repeats steps on an object until it is done.
async fn repeat(
    core: &Core,
    states: &TopicStates,
    stored: &StoredTopic,
    object: &ObjectKey,
    index: u32,
    step: impl Fn(Option<&ObjectContent>) -> ShardStep,
) -> Result<()> {
    for _ in 0..STEP_ATTEMPTS {
        core.tasks.check_running()?;
        let found = match core.rados.read(&ObjectRead::attributes(object)).await? {
            None => None,
            Some(reply) => Some(shard::classify(object, &reply)?),
        };
        let written = match step(found.as_ref()) {
            ShardStep::Done => return Ok(()),
            ShardStep::Stale => return Err(Error::Changed(object.to_string())),
            ShardStep::Reserve => {
                let token = format!("{}.{:016x}", core.session, core.env.random_u64().unwrap_or_default());
                core.rados.write(shard::reserve(object, &token)).await?
            }
            ShardStep::Activate(token, identity) => {
                // The change is not complete yet. An activation that arrives after the completion finds another token.
                is_under_way(core, stored).await?;
                core.rados.write(shard::activate(object, &token, &identity)).await?
            }
            ShardStep::RemoveReserved(token) => {
                core.rados.write(shard::remove_reserved(object, &token)).await?
            }
            ShardStep::Relocate(then) => {
                let Some(current) = stored.record.layout.current else {
                    return Err(Error::Changed(object.to_string()));
                };
                let Some(shard) = close(core, stored, object, current, index).await? else { continue };
                copy(core, &shard).await?;
                core.topics.store.lock_change(&stored.record.topic, CHANGE_LOCK_DURATION).await?;
                let written = core.rados.write(reshard::switch_over(&shard, then.as_ref())).await?;
                if let (WriteOutcome::Done, Some(_)) = (written, &then) {
                    release(core, object).await?;
                }
                written
            }
            ShardStep::Foreign(owner) => {
                remove_foreign(core, states, stored, object, &owner).await?;
                WriteOutcome::Done
            }
        };
        if !written.is_done() {
            core.tasks.sleep(Duration::from_millis(10)).await;
        }
    }
    Err(Error::Contended(object.to_string()))
}

/// Fails if the topic's record no longer names the same change.
async fn is_under_way(core: &Core, stored: &StoredTopic) -> Result<()> {
    let topic = &stored.record.topic;
    let now = core.topics.store.get(&topic.arn).await?;
    let is_same = |now: &StoredTopic| {
        now.record.topic.id == topic.id && now.record.layout.next == stored.record.layout.next
    };
    if now.is_some_and(|now| is_same(&now)) { Ok(()) } else { Err(Error::Changed(topic.arn.to_string())) }
}

/// Releases the lease of a new shard, which it inherited from its predecessor's owner.
async fn release(core: &Core, object: &ObjectKey) -> Result<()> {
    if let Some(reply) = core.rados.read(&ObjectRead::attributes(object)).await? {
        let shard = Shard::from_reply(object, &[], &reply)?;
        core.rados.write(shard.release_lease()).await?;
    }
    Ok(())
}

/// Removes a shard that is in the way and belongs to a deleted topic with the same name.
async fn remove_foreign(
    core: &Core,
    states: &TopicStates,
    stored: &StoredTopic,
    object: &ObjectKey,
    owner: &name::TopicId,
) -> Result<()> {
    let foreign = || Error::Foreign { object: object.to_string(), owner: owner.to_string() };
    let id = owner.as_str().parse().map_err(|_| foreign())?;
    match core.topics.store.get_by_id(&stored.record.topic.arn, id).await? {
        Some(other) if other.is_deleted() => removal::remove_topic(core, states, &other).await,
        Some(_) => Err(foreign()),
        None => removal::remove_shard(core, object, owner).await,
    }
}

/// Takes over a shard of the current generation, closes it, and removes the outbox records of its receipts. `None` if the
/// shard is no longer in this object: then a copy of it exists elsewhere, which must not be changed.
async fn close(
    core: &Core,
    stored: &StoredTopic,
    object: &ObjectKey,
    generation: Generation,
    index: u32,
) -> Result<Option<Shard>> {
    let key = ShardKey { topic: stored.record.topic.id, generation: generation.number, shard: index };
    core.schedule.release(&key);
    let wanted = generation.identity(&queue_id(stored.record.topic.id), index);
    let lease = u64::try_from(CHANGE_LOCK_DURATION.as_nanos()).unwrap_or(u64::MAX);
    let mut taken = None;
    for attempt in 0..2 * LEASE_BREAK_ATTEMPTS {
        let Some(reply) = core.rados.read(&ObjectRead::attributes(object)).await? else { return Ok(None) };
        if !shard::identity_of(object, &reply).is_ok_and(|id| id.value == wanted) {
            return Ok(None);
        }
        let shard = Shard::from_reply(object, &[], &reply)?;
        let must_break = core.gateways.is_ended(shard.owner.value.client) || attempt >= LEASE_BREAK_ATTEMPTS;
        let (take, owner) = if must_break {
            shard.take_over_lease(core.session, lease)
        } else {
            shard.take_lease(core.session, lease)
        };
        let mut written = core.rados.write(take).await?;
        if must_break && written == WriteOutcome::Absent {
            written = core.rados.write(shard.take_lease(core.session, lease).0).await?;
        }
        if written.is_done() {
            taken = Some((shard, owner));
            break;
        }
        core.tasks.sleep(RETRY_DELAY).await;
        core.topics.store.lock_change(&stored.record.topic, CHANGE_LOCK_DURATION).await?;
    }
    let changed = |shard: &Shard| Error::Changed(shard.object.to_string());
    let Some((shard, owner)) = taken else {
        return Err(Error::Contended(stored.record.topic.arn.to_string()));
    };
    let shard = read_shard(&core.rados, &shard)
        .await?
        .filter(|shard| shard.is_owned_by(owner))
        .ok_or_else(|| changed(&shard))?;
    if shard.is_open {
        core.rados.write_or_fail(reshard::close(&shard).0).await?;
    }
    let shard = read_shard(&core.rados, &shard)
        .await?
        .filter(|shard| shard.is_owned_by(owner))
        .ok_or_else(|| changed(&shard))?;
    let mut after = Bytes::new();
    loop {
        let reply = core.rados.read(&reshard::read_page(&shard.object, after, COPY_PAGE_ENTRIES)).await?;
        let reply = reply.filter(|reply| shard.has_same_owner(reply)).ok_or_else(|| changed(&shard))?;
        for (source, ids) in reshard::parse_receipts(&shard.object, &reply.page)? {
            if source == SourceId::replay(&shard.id.value.topic) {
                let numbers: Vec<u64> = ids.iter().filter_map(dead_letters::letter_number).collect();
                core.rados.write(dead_letters::remove_replayed(&shard.id.value.topic, &numbers)).await?;
            } else {
                remove_enqueued_records(core, &source, &ids).await?;
            }
        }
        let Some((last, _)) = reply.page.last().filter(|_| reply.more) else { return Ok(Some(shard)) };
        after = last.clone();
    }
}

/// Copies a closed shard to its hidden object.
async fn copy(core: &Core, shard: &Shard) -> Result<()> {
    let changed = || Error::Changed(shard.object.to_string());
    let found = core.rados.read(&ObjectRead::attributes(&reshard::copy_object(shard))).await?;
    match reshard::begin_copy(shard, found.as_ref())? {
        BeginCopy::Write(op) => core.rados.write_or_fail(op).await?,
        BeginCopy::Complete => return Ok(()),
        BeginCopy::Fenced => return Err(changed()),
    }
    let mut after = Bytes::new();
    loop {
        let page = core.rados.read(&reshard::read_page(&shard.object, after, COPY_PAGE_ENTRIES)).await?;
        let page = page.filter(|page| shard.has_same_owner(page)).ok_or_else(changed)?;
        core.rados.write_or_fail(reshard::copy_page(shard, &page.page)).await?;
        let Some((last, _)) = page.page.last().filter(|_| page.more) else { break };
        after = last.clone();
    }
    core.rados.write_or_fail(reshard::finish_copy(shard)).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue_shard::locate;
    use crate::schedule::CheckTarget;
    use crate::settings::Settings;
    use crate::testing::{self, TestEndpoint};

    /// Whether a shard accepts events; `None` if it does not exist.
    async fn is_open(core: &Core, stored: &StoredTopic, generation: Generation, shard: u32) -> Option<bool> {
        let found = locate(&core.rados, stored, generation, shard, ObjectRead::attributes).await;
        found.unwrap().map(|(shard, _)| shard.is_open)
    }

    #[test]
    fn a_change_creates_the_queues_and_schedules_checks_of_closed_ones() {
        testing::run(Settings::default(), |core| async move {
            let states = Arc::new(TopicStates::new(&core, TestEndpoint::default().connector()));
            let changes = Arc::new(GenerationChanges::new(&core, &states));
            let record = testing::topic_record(2, &[("persistent", "true")]);
            let arn = record.topic.arn.clone();
            let stored = core.topics.store.create(&record).await.unwrap().unwrap();
            // The task, and this one.
            changes.schedule(&stored);
            changes.reconcile(&arn).await.unwrap();
            let stored = core.topics.store.get(&arn).await.unwrap().unwrap();
            let first = stored.record.layout.current.unwrap();
            assert_eq!((first.shards, is_open(&core, &stored, first, 1).await), (2, Some(true)));

            let mut record = stored.record.clone();
            record.topic.reshard(3).unwrap();
            record.begin_change().unwrap();
            core.topics.store.update(&stored, &record).await.unwrap().unwrap();
            core.schedule.take_due(u64::MAX);
            changes.reconcile(&arn).await.unwrap();
            let stored = core.topics.store.get(&arn).await.unwrap().unwrap();
            let layout = &stored.record.layout;
            assert_eq!((layout.current.unwrap().shards, &layout.older[..]), (3, &[first][..]));
            let topic = stored.record.topic.id;
            for shard in 0..2 {
                assert_eq!(is_open(&core, &stored, first, shard).await, Some(false));
            }
            let check = |shard| CheckTarget::Shard(ShardKey { topic, generation: first.number, shard });
            assert_eq!(core.schedule.take_due(0), [check(0), check(1)]);
        });
    }

    #[test]
    fn one_task_changes_the_queues_of_a_topic() {
        let changing = Mutex::default();
        let arn = TopicArn { zonegroup: "default".into(), tenant: String::new(), name: "topic".into() };
        let first = ChangeGuard::new(&changing, &arn);
        assert!(first.is_some());
        // A refused attempt must not end the change that is in progress.
        assert!(ChangeGuard::new(&changing, &arn).is_none());
        assert!(ChangeGuard::new(&changing, &arn).is_none());
        drop(first);
        assert!(ChangeGuard::new(&changing, &arn).is_some());
    }
}
