//! Removal of the queues of deleted topics, and of objects that belong to no topic.

use crate::core::Core;
use crate::error::{Error, Result};
use crate::metrics::add;
use crate::queue_shard::{locate, queue_id};
use crate::rados::WriteOutcome;
use crate::topic_state::TopicStates;
use crate::topic_store::{MAX_PAGE, StoredTopic};
use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _};
use nacre_queues::name::{
    self, CLOSED_NAMESPACE, DEAD_LETTER_NAMESPACE, QUEUE_NAMESPACE, QueueRecordKind, SPILL_NAMESPACE, TopicId,
};
use nacre_queues::op::{ObjectKey, ObjectOp, ObjectRead, ObjectReply, Step};
use nacre_queues::record::{COPY, RESERVED};
use nacre_queues::shard::{self, ObjectContent, Shard};
use nacre_queues::{settle, spill};
use nacre_topics::names::QueueName;
use std::collections::{BTreeMap, BTreeSet};

/// The number of objects that are removed concurrently.
const REMOVALS: usize = 16;
/// The number of manifests in a page.
const MANIFESTS: u64 = 256;

/// Removes the queues of a deleted topic, then its record. May be repeated.
pub(crate) async fn remove_topic(core: &Core, states: &TopicStates, deleted: &StoredTopic) -> Result<()> {
    let topic = &deleted.record.topic;
    let id = queue_id(topic.id);
    states.forget(topic.id);
    let objects = deleted.record.layout.objects(&topic.arn.tenant, &topic.arn.name, &id);
    let mut removals = Vec::new();
    for object in &objects {
        removals.push(remove_shard(core, object, &id).boxed());
    }
    let mut removals = futures::stream::iter(removals).buffered(REMOVALS);
    while let Some(removed) = removals.next().await {
        removed?;
    }
    core.rados.write(ObjectOp::on(&name::dead_letter_object(&id)).then(Step::Remove)).await?;
    core.topics.store.remove_deleted(deleted).await?;
    Ok(())
}

/// Removes an object that is a shard of a topic, a copy of a shard, or reserved for a shard, together with its segments.
pub(crate) async fn remove_shard(core: &Core, object: &ObjectKey, topic: &TopicId) -> Result<()> {
    // Retried, because an owner that does not know of the removal yet may change the object.
    for _ in 0..16 {
        let Some(reply) = core.rados.read(&ObjectRead::attributes(object)).await? else { return Ok(()) };
        let op = match classify(object, &reply)? {
            FoundObject::Reserved(token) if object.namespace == CLOSED_NAMESPACE => {
                shard::remove_reserved(object, &token)
            }
            // A visible object may be reserved for another topic that has the name now.
            FoundObject::Reserved(_) => return Ok(()),
            FoundObject::Copy(state) => ObjectOp::on(object).if_xattr(COPY, &state).then(Step::Remove),
            FoundObject::Shard(shard) if shard.id.value.topic == *topic => {
                remove_segments(core, &shard).await?;
                shard.remove()
            }
            FoundObject::Shard(_) => return Ok(()),
        };
        match core.rados.write(op).await? {
            WriteOutcome::Done | WriteOutcome::Absent => return Ok(()),
            _ => {}
        }
    }
    Err(Error::Contended(object.to_string()))
}

enum FoundObject {
    Reserved(Bytes),
    /// An incomplete copy.
    Copy(Bytes),
    Shard(Box<Shard>),
}

fn classify(object: &ObjectKey, reply: &ObjectReply) -> Result<FoundObject> {
    let is_reserved = reply.xattrs.get(RESERVED).is_some_and(|token| !token.is_empty());
    if !is_reserved && !reply.xattrs.contains_key(nacre_queues::record::ID) {
        return Ok(FoundObject::Copy(reply.xattrs.get(COPY).cloned().unwrap_or_default()));
    }
    Ok(match shard::classify(object, reply)? {
        ObjectContent::Reserved(token) => FoundObject::Reserved(token),
        ObjectContent::Shard(_) => FoundObject::Shard(Box::new(Shard::from_reply(object, &[], reply)?)),
    })
}

async fn remove_segments(core: &Core, shard: &Shard) -> Result<()> {
    let mut after = Bytes::new();
    loop {
        let read = settle::read_records(&shard.object, QueueRecordKind::Segment, after, MANIFESTS);
        let Some(reply) = core.rados.read(&read).await? else { return Ok(()) };
        for object in spill::parse_segments(shard, &reply.page)? {
            core.rados.write(ObjectOp::on(&object).then(Step::Remove)).await?;
        }
        let Some((last, _)) = reply.page.last().filter(|_| reply.more) else { return Ok(()) };
        after = last.clone();
    }
}

/// Removes objects that belong to no topic: leftovers of dead gateways, and objects created by late operations.
pub(crate) async fn sweep(core: &Core) -> Result<u64> {
    let mut objects = Vec::new();
    for namespace in [CLOSED_NAMESPACE, SPILL_NAMESPACE, DEAD_LETTER_NAMESPACE, QUEUE_NAMESPACE] {
        let mut lister = core.rados.namespace(namespace).list();
        while let Some(object) = lister.next().await? {
            objects.push(ObjectKey { namespace, name: object.name().to_owned() });
        }
    }
    // The records are read after the objects. A topic's record is written before its objects, so an object whose topic is
    // not found belongs to none.
    let mut topics = Topics::new();
    let mut names = BTreeSet::new();
    for tenant in core.topics.store.tenants().await? {
        let mut after: Option<String> = None;
        loop {
            let page = core.topics.store.list(&tenant, after.as_deref(), MAX_PAGE).await?;
            for stored in &page.topics {
                topics.insert(queue_id(stored.record.topic.id), Some(generations_of(stored)));
                names.insert((tenant.clone(), stored.record.topic.arn.name.clone()));
            }
            after = page.topics.last().map(|last| last.record.topic.arn.name.clone()).filter(|_| page.more);
            if after.is_none() {
                break;
            }
        }
        let mut after = None;
        loop {
            let page = core.topics.store.list_deleted(&tenant, after, MAX_PAGE).await?;
            topics.extend(page.topics.iter().map(|stored| (queue_id(stored.record.topic.id), None)));
            after = page.topics.last().map(|last| last.record.topic.id).filter(|_| page.more);
            if after.is_none() {
                break;
            }
        }
    }
    let mut removed = 0;
    for object in objects {
        core.tasks.check_running()?;
        let is_removed = if object.namespace == QUEUE_NAMESPACE {
            sweep_visible(core, &object, &topics, &names).await?
        } else {
            match name::topic_of(&object) {
                Some(topic) => match topics.get(&topic) {
                    None => core.rados.write(ObjectOp::on(&object).then(Step::Remove)).await?.is_done(),
                    Some(generations) => sweep_hidden(core, &object, &topic, generations.as_ref()).await?,
                },
                // The object does not have the name of a queue object.
                None => false,
            }
        };
        if is_removed {
            removed += 1;
            tracing::info!(%object, "notifications: an object without an owner is removed");
        }
    }
    add(&core.metrics.orphans_removed, removed);
    Ok(removed)
}

/// The existing topics, with the numbers of their generations; `None` for topics that are being deleted.
type Topics = BTreeMap<TopicId, Option<BTreeSet<u64>>>;

fn generations_of(stored: &StoredTopic) -> BTreeSet<u64> {
    let layout = &stored.record.layout;
    layout.deliverable().chain(layout.next).map(|generation| generation.number).collect()
}

/// Removes an object of an existing topic if it is a closed shard of a generation that the topic does not have (the remains
/// of a copy that was started late), or an unreferenced segment.
async fn sweep_hidden(
    core: &Core,
    object: &ObjectKey,
    topic: &TopicId,
    generations: Option<&BTreeSet<u64>>,
) -> Result<bool> {
    // Numbers are not reused. The record was read after the object existed, so a generation that it does not name has
    // ended.
    let number = object.name.split('.').nth(1).and_then(|number| number.parse::<u64>().ok());
    let (Some(generations), Some(number)) = (generations, number) else { return Ok(false) };
    match object.namespace {
        CLOSED_NAMESPACE if !generations.contains(&number) => {
            remove_shard(core, object, topic).await?;
            Ok(true)
        }
        SPILL_NAMESPACE => sweep_segment(core, object).await,
        _ => Ok(false),
    }
}

/// Removes a visible object if it is a shard of a topic that no longer exists, or is reserved for no existing topic.
async fn sweep_visible(
    core: &Core,
    object: &ObjectKey,
    topics: &Topics,
    names: &BTreeSet<(String, String)>,
) -> Result<bool> {
    let Some(parsed) = QueueName::parse(&object.name) else { return Ok(false) };
    let Some(reply) = core.rados.read(&ObjectRead::attributes(object)).await? else { return Ok(false) };
    // Queues of other programs are not touched.
    let Ok(found) = shard::classify(object, &reply) else { return Ok(false) };
    match found {
        ObjectContent::Shard(identity) if !topics.contains_key(&identity.topic) => {
            remove_shard(core, object, &identity.topic).await?;
            Ok(true)
        }
        ObjectContent::Reserved(token) if !names.contains(&(parsed.tenant, parsed.topic)) => {
            Ok(core.rados.write(shard::remove_reserved(object, &token)).await?.is_done())
        }
        _ => Ok(false),
    }
}

/// Removes a segment of a topic if its shard is gone, or if no manifest names it and a fenced owner wrote it.
async fn sweep_segment(core: &Core, object: &ObjectKey) -> Result<bool> {
    let parts: Vec<&str> = object.name.split('.').collect();
    let [topic, generation, shard, first, epoch] = parts[..] else { return Ok(false) };
    let (generation, shard) = (generation.parse::<u64>(), shard.parse::<u32>());
    let numbers = (generation, shard, u64::from_str_radix(first, 16), epoch.parse::<u64>());
    let (Ok(generation), Ok(shard), Ok(first), Ok(epoch)) = numbers else { return Ok(false) };
    let Ok(id) = topic.parse() else { return Ok(false) };
    let Some(known) = core.topics.peek(id) else { return Ok(false) };
    let Some(stored) = core.topics.fresh(&known.record.topic.arn, id).await? else { return Ok(false) };
    let generation_of = stored.record.layout.deliverable().find(|one| one.number == generation);
    let is_used = match generation_of {
        None => false,
        Some(generation) => {
            let key = QueueRecordKind::Segment.key(first);
            let read = |object: &ObjectKey| ObjectRead::keys(object, vec![key.clone()]);
            match locate(&core.rados, &stored, generation, shard, read).await? {
                None => false,
                Some((shard, reply)) => {
                    let is_named = match reply.values.get(&key) {
                        Some(value) => {
                            spill::parse_segments(&shard, &[(key.clone(), value.clone())])?.contains(object)
                        }
                        None => false,
                    };
                    is_named || epoch >= shard.owner.value.epoch
                }
            }
        }
    };
    if is_used {
        return Ok(false);
    }
    Ok(core.rados.write(ObjectOp::on(object).then(Step::Remove)).await?.is_done())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use crate::testing::{self, TestEndpoint};

    #[test]
    fn a_deleted_topic_leaves_nothing() {
        testing::run(Settings::default(), |core| async move {
            let stored = testing::create_topic(&core, &[2], &[]).await;
            let states = TopicStates::new(&core, TestEndpoint::default().connector());
            assert!(states.endpoints.get(&stored).is_some());
            let deleted = core.topics.store.delete(&stored).await.unwrap().unwrap();
            remove_topic(&core, &states, &deleted).await.unwrap();
            let topic = &stored.record.topic;
            assert!(states.endpoints.peek(topic.id).is_none());
            assert_eq!(core.topics.store.get_by_id(&topic.arn, topic.id).await.unwrap(), None);
            for shard in 0..2 {
                let (object, _) = testing::objects_of(&stored, 1, shard);
                let found = core.rados.read(&ObjectRead::attributes(&object)).await.unwrap();
                assert!(found.is_none(), "{object}");
            }
        });
    }

    #[test]
    fn a_sweep_removes_shards_without_a_topic() {
        testing::run(Settings::default(), |core| async move {
            let stored = testing::create_topic(&core, &[1], &[]).await;
            assert_eq!(sweep(&core).await.unwrap(), 0);
            let deleted = core.topics.store.delete(&stored).await.unwrap().unwrap();
            assert!(core.topics.store.remove_deleted(&deleted).await.unwrap());
            assert_eq!(sweep(&core).await.unwrap(), 1);
            assert_eq!(sweep(&core).await.unwrap(), 0);
        });
    }
}
