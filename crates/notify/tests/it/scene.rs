//! What happens in histories, counted, so that a test can tell that its scenes are played.

use std::collections::BTreeMap;

/// Something that must happen now and then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scene {
    /// A gateway ends where it is.
    Crash,
    /// A lease gets another owner.
    Takeover,
    /// A consumer gets an event again.
    Redelivery,
    /// A shard of a topic's queue is copied to its hidden object.
    Relocation,
    /// An event is parked.
    Parked,
    /// An event ends as a dead letter.
    Letter,
    /// A dead letter is delivered after all.
    Replay,
    /// A push fails.
    Failure,
    /// Batches are moved into a segment.
    Spill,
    /// A segment is removed.
    Drained,
    /// An operation is refused because a queue is full.
    Refused,
    /// An event is dropped to make room.
    Dropped,
    /// An event's time to live is over.
    Expired,
    /// A clock jumps by an hour.
    Jump,
    /// A bucket's index has moved to other shards.
    Moved,
    /// An outbox record is copied to another shard.
    Carried,
    /// The move of an index that another gateway left is taken up.
    Resumed,
    /// A pending change of a gateway that ended is finished or cancelled.
    Recovered,
}

impl Scene {
    const ALL: [Scene; 18] = [
        Scene::Crash,
        Scene::Takeover,
        Scene::Redelivery,
        Scene::Relocation,
        Scene::Parked,
        Scene::Letter,
        Scene::Replay,
        Scene::Failure,
        Scene::Spill,
        Scene::Drained,
        Scene::Refused,
        Scene::Dropped,
        Scene::Expired,
        Scene::Jump,
        Scene::Moved,
        Scene::Carried,
        Scene::Resumed,
        Scene::Recovered,
    ];
}

/// How often each happened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scenes(BTreeMap<Scene, u64>);

impl Scenes {
    pub(crate) fn note(&mut self, scene: Scene, count: usize) {
        *self.0.entry(scene).or_default() += count as u64;
    }

    pub(crate) fn add(&mut self, more: &Scenes) {
        for (scene, count) in &more.0 {
            *self.0.entry(*scene).or_default() += count;
        }
    }

    /// Those that never happened.
    pub(crate) fn missing(&self) -> Vec<Scene> {
        let is_missing = |scene: &Scene| self.0.get(scene).is_none_or(|count| *count == 0);
        Scene::ALL.into_iter().filter(is_missing).collect()
    }
}
