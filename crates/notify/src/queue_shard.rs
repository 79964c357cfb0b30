//! The shards of topics' queues: their keys, and how their objects are found.

use crate::error::Result;
use crate::rados::ObjectIo;
use crate::topic_store::StoredTopic;
use nacre_queues::layout::{self, Generation};
use nacre_queues::name;
use nacre_queues::op::{ObjectKey, ObjectRead, ObjectReply};
use nacre_queues::shard::{self, Shard};
use nacre_topics::topic::TopicId;

/// A shard of a topic's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ShardKey {
    /// The topic.
    pub(crate) topic: TopicId,
    /// The generation.
    pub(crate) generation: u64,
    /// The shard.
    pub(crate) shard: u32,
}

/// The id of a topic in the form that queues use.
pub(crate) fn queue_id(id: TopicId) -> name::TopicId {
    name::TopicId::new(&id.to_string()).expect("invariant: an id has hexadecimal digits only")
}

/// Finds a shard, and returns it with the reply to `read`. `None` if the shard is gone, which is only possible in a closed
/// generation.
pub(crate) async fn locate(
    rados: &ObjectIo,
    stored: &StoredTopic,
    generation: Generation,
    index: u32,
    read: impl Fn(&ObjectKey) -> ObjectRead,
) -> Result<Option<(Shard, ObjectReply)>> {
    let topic = &stored.record.topic;
    let id = queue_id(topic.id);
    let (visible, hidden) =
        layout::candidate_objects(&topic.arn.tenant, &topic.arn.name, &id, generation, index);
    let wanted = generation.identity(&id, index);
    for object in visible.into_iter().chain([hidden]) {
        let Some(reply) = rados.read(&read(&object)).await? else { continue };
        // An object that is reserved, or a copy that is not complete, has no identity.
        if shard::identity_of(&object, &reply).is_ok_and(|id| id.value == wanted) {
            return Ok(Some((Shard::from_reply(&object, &[], &reply)?, reply)));
        }
    }
    Ok(None)
}

/// Reads a shard again from its object; `None` if the object has other content now.
pub(crate) async fn read_shard(rados: &ObjectIo, of: &Shard) -> Result<Option<Shard>> {
    let Some(reply) = rados.read(&ObjectRead::attributes(&of.object)).await? else { return Ok(None) };
    if !shard::identity_of(&of.object, &reply).is_ok_and(|id| id == of.id) {
        return Ok(None);
    }
    Ok(Some(Shard::from_reply(&of.object, &[], &reply)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use crate::testing;

    #[test]
    fn a_shard_is_found_by_its_identity() {
        testing::run(Settings::default(), |core| async move {
            let stored = testing::create_topic(&core, &[1, 2], &[]).await;
            let (older, current) = (stored.record.layout.older[0], stored.record.layout.current.unwrap());
            let find = async |generation: Generation, shard: u32| {
                let found = locate(&core.rados, &stored, generation, shard, ObjectRead::attributes).await;
                found.unwrap().map(|(shard, _)| shard)
            };
            let found = find(current, 1).await.unwrap();
            assert_eq!((found.id.value.generation, found.id.value.shard), (current.number, 1));
            assert!(read_shard(&core.rados, &found).await.unwrap().is_some());
            // The visible object of the shard is one of the current generation now.
            assert!(find(older, 0).await.is_none());
            let (_, hidden) = testing::objects_of(&stored, older.number, 0);
            testing::create_shard(&core, &stored, older.number, 0, &hidden).await;
            assert_eq!(find(older, 0).await.unwrap().object, hidden);
        });
    }
}
