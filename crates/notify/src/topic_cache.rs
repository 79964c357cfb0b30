//! A cache of topic records that were read recently, or since another gateway reported a change.
//!
//! An outdated record does no harm: closed generations accept no events, and delivery attributes may change at any time
//! anyway. An outdated record never replaces a newer one. A topic is considered gone only after a new read.

use crate::error::Result;
use crate::topic_store::{StoredTopic, TopicStore};
use nacre_task::{Env, Instant};
use nacre_topics::arn::TopicArn;
use nacre_topics::topic::TopicId;
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The time for which a record is used without being read again.
const RECORD_TTL: Duration = Duration::from_secs(10);
/// The most cached records. Beyond it, records that were not read recently are dropped.
const MAX_CACHED: usize = 16_384;

/// Orders the records of one topic: a record never has a lower order than the records that it replaced.
fn order_of(stored: &StoredTopic) -> (u64, bool, Reverse<usize>, u64) {
    let layout = &stored.record.layout;
    (layout.last_number, layout.next.is_none(), Reverse(layout.older.len()), stored.record.topic.version)
}

#[derive(Clone)]
struct Entry {
    stored: Arc<StoredTopic>,
    read_at: Instant,
}

#[derive(Default)]
struct Entries {
    by_id: BTreeMap<TopicId, Entry>,
    /// Counts invalidations, so that the result of a read that was in progress during one is not cached.
    invalidations: u64,
}

pub(crate) struct TopicCache {
    pub(crate) store: TopicStore,
    env: Env,
    entries: Mutex<Entries>,
}

impl TopicCache {
    pub(crate) fn new(store: TopicStore, env: Env) -> TopicCache {
        TopicCache { store, env, entries: Mutex::default() }
    }

    /// The topic, from memory if it was read recently; `None` if it no longer exists.
    pub(crate) async fn get(&self, arn: &TopicArn, id: TopicId) -> Result<Option<Arc<StoredTopic>>> {
        let now = self.env.now();
        let known = self.entries.lock().by_id.get(&id).cloned();
        if let Some(entry) = known.filter(|entry| now - entry.read_at < RECORD_TTL) {
            return Ok(Some(entry.stored));
        }
        self.fresh(arn, id).await
    }

    /// The current record of the topic; `None` if it no longer exists or is being deleted.
    pub(crate) async fn fresh(&self, arn: &TopicArn, id: TopicId) -> Result<Option<Arc<StoredTopic>>> {
        let before = self.entries.lock().invalidations;
        let read = self.store.get(arn).await?.filter(|stored| stored.record.topic.id == id);
        let Some(stored) = read else {
            self.entries.lock().by_id.remove(&id);
            return Ok(None);
        };
        let stored = Arc::new(stored);
        let mut entries = self.entries.lock();
        if entries.invalidations == before {
            self.insert(&mut entries, Arc::clone(&stored));
        }
        Ok(Some(stored))
    }

    /// Caches a record that was just read or written.
    pub(crate) fn put(&self, stored: StoredTopic) -> Arc<StoredTopic> {
        let stored = Arc::new(stored);
        let mut entries = self.entries.lock();
        if stored.is_deleted() {
            entries.by_id.remove(&stored.record.topic.id);
        } else {
            self.insert(&mut entries, Arc::clone(&stored));
        }
        stored
    }

    fn insert(&self, entries: &mut Entries, stored: Arc<StoredTopic>) {
        let now = self.env.now();
        // A task that read the record before another one changed it may insert it later.
        if let Some(entry) = entries.by_id.get(&stored.record.topic.id)
            && order_of(&entry.stored) > order_of(&stored)
        {
            return;
        }
        if entries.by_id.len() >= MAX_CACHED {
            entries.by_id.retain(|_, entry| now - entry.read_at < RECORD_TTL);
        }
        if entries.by_id.len() < MAX_CACHED {
            entries.by_id.insert(stored.record.topic.id, Entry { stored, read_at: now });
        }
    }

    /// The cached record, regardless of its age.
    pub(crate) fn peek(&self, id: TopicId) -> Option<Arc<StoredTopic>> {
        self.entries.lock().by_id.get(&id).map(|entry| Arc::clone(&entry.stored))
    }

    /// Removes the topics of that name from the cache. Returns the ids that were cached.
    pub(crate) fn invalidate(&self, arn: &TopicArn) -> Vec<TopicId> {
        let mut entries = self.entries.lock();
        entries.invalidations += 1;
        let is_named = |entry: &Entry| entry.stored.record.topic.arn.is_same_topic(arn);
        let named = entries.by_id.iter().filter(|(_, entry)| is_named(entry));
        let ids: Vec<TopicId> = named.map(|(id, _)| *id).collect();
        for id in &ids {
            entries.by_id.remove(id);
        }
        ids
    }
}
