//! Topics as this gateway knows them: records that were read not long ago, or since somebody said that they changed.
//!
//! A record that is out of date does no harm: generations that are closed take no events, and what an event's topic says
//! about delivery may change at any time anyway. It never takes the place of a newer one. That a topic is gone is only ever
//! concluded from a new reading.

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

/// How long a record is used without being read again.
const FRESH: Duration = Duration::from_secs(10);
/// Records that are kept. Beyond it those are forgotten that were not read lately.
const MAX_CACHED: usize = 16_384;

/// Orders the records of one topic: no record has a smaller one than those that it replaced.
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
    /// Counts invalidations, so that a reading that was under way meanwhile is not kept.
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

    /// The topic, from memory if it was read not long ago; `None` where it is gone.
    pub(crate) async fn get(&self, arn: &TopicArn, id: TopicId) -> Result<Option<Arc<StoredTopic>>> {
        let now = self.env.now();
        let known = self.entries.lock().by_id.get(&id).cloned();
        if let Some(entry) = known.filter(|entry| now - entry.read_at < FRESH) {
            return Ok(Some(entry.stored));
        }
        self.fresh(arn, id).await
    }

    /// The topic as it is now; `None` where it is gone or being deleted.
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

    /// A record that was just read or written.
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
        // Whoever read the record before another task changed it may come later.
        if let Some(entry) = entries.by_id.get(&stored.record.topic.id)
            && order_of(&entry.stored) > order_of(&stored)
        {
            return;
        }
        if entries.by_id.len() >= MAX_CACHED {
            entries.by_id.retain(|_, entry| now - entry.read_at < FRESH);
        }
        if entries.by_id.len() < MAX_CACHED {
            entries.by_id.insert(stored.record.topic.id, Entry { stored, read_at: now });
        }
    }

    /// The record at hand, however old.
    pub(crate) fn peek(&self, id: TopicId) -> Option<Arc<StoredTopic>> {
        self.entries.lock().by_id.get(&id).map(|entry| Arc::clone(&entry.stored))
    }

    /// The topics of that name changed. Returns their ids, as far as they are known here.
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
