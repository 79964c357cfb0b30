//! The records of topics in RADOS (docs/format/queues.md).
//!
//! All topics of a tenant are in the omap of one object, so they are listed in the order of their names. A change compares
//! the complete record that was read, and no record content is ever written twice. So changes of one topic conflict, and
//! changes of different topics do not. Deleting a topic removes its record from its name and stores it under its id in one
//! operation: the name can be reused immediately, and the record remains until its queues are removed.

use crate::error::{Error, Result};
use bytes::Bytes;
use nacre_engine::{IoCtx, OpReply, WriteOp};
use nacre_queues::layout::{BeginResult, LayoutTarget, QueueLayout};
use nacre_topics::arn::TopicArn;
use nacre_topics::topic::{Topic, TopicId};
use nacre_types::cls::lock::MAY_RENEW;
use nacre_types::encoding::{self, Versioned};
use nacre_types::errno::Errno;
use nacre_types::op::CmpOp;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The pool of topic records.
pub const TOPIC_POOL: &str = "default.rgw.meta";
/// The namespace of topic records.
pub const TOPIC_NAMESPACE: &str = "topics";
/// The most topics in a page.
pub const MAX_PAGE: u64 = 1000;

/// The prefix of the objects' names; the tenant follows.
const OBJECT_PREFIX: &str = "topics.";
/// The cookie of the lock on changes of generations.
const LOCK_COOKIE: &str = "change";
/// The prefix of the keys of topics; the name follows.
const LIVE: &str = "t";
/// The prefix of the keys of topics that are being deleted; the id follows.
const DELETED: &str = "d";

/// A topic and the generations of its queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicRecord {
    /// The topic.
    pub topic: Topic,
    /// The layout of its queues. A topic that was never persistent has none.
    pub layout: QueueLayout,
}

/// The stored form. Each part has its own envelope, so that either can be extended.
#[derive(Serialize, Deserialize)]
struct StoredRecord {
    topic: Bytes,
    layout: Bytes,
}

impl Versioned for StoredRecord {
    const NAME: &'static str = "topic record";
}

impl TopicRecord {
    /// The record of a new topic. If it is persistent, its first generation of queues must still be created.
    pub fn new(topic: Topic) -> Result<TopicRecord> {
        let mut record = TopicRecord { topic, layout: QueueLayout::default() };
        record.begin_change()?;
        Ok(record)
    }

    /// The target of its queues according to its attributes.
    pub fn target(&self) -> LayoutTarget {
        if self.topic.is_queued() {
            LayoutTarget::Shards(self.topic.shards)
        } else {
            LayoutTarget::NotPersistent
        }
    }

    /// Starts the change of generations that its attributes require, if any. Must be called after each change of the
    /// attributes.
    pub fn begin_change(&mut self) -> Result<BeginResult> {
        Ok(self.layout.begin(self.target())?)
    }

    /// Whether a change of generations is in progress or must be started.
    pub fn needs_change(&self) -> bool {
        let begin = self.layout.clone().begin(self.target());
        self.layout.next.is_some() || matches!(begin, Ok(BeginResult::Started))
    }

    fn encode(&self) -> Bytes {
        let topic = encoding::encode(&self.topic).into();
        let layout = encoding::encode(&self.layout).into();
        encoding::encode(&StoredRecord { topic, layout }).into()
    }

    fn decode(object: &str, bytes: &[u8]) -> Result<TopicRecord> {
        let corrupt = |source| Error::Corrupt { object: object.to_owned(), source };
        let stored: StoredRecord = encoding::decode(bytes).map_err(corrupt)?;
        let topic = encoding::decode(&stored.topic).map_err(corrupt)?;
        let layout = encoding::decode(&stored.layout).map_err(corrupt)?;
        Ok(TopicRecord { topic, layout })
    }
}

/// A record as it was read or written. Changes compare it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTopic {
    /// The decoded record.
    pub record: TopicRecord,
    key: Bytes,
    raw: Bytes,
}

impl StoredTopic {
    /// Whether the topic is being deleted: requests treat it as absent.
    pub fn is_deleted(&self) -> bool {
        self.key.starts_with(DELETED.as_bytes())
    }
}

/// A page of topics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicPage {
    /// The topics, in the order of their names, or of their ids if they are being deleted.
    pub topics: Vec<StoredTopic>,
    /// Whether there are more.
    pub more: bool,
}

/// The records of topics. Cheap to clone.
#[derive(Clone)]
pub struct TopicStore {
    io: IoCtx,
}

fn object_of(tenant: &str) -> String {
    format!("{OBJECT_PREFIX}{tenant}")
}

fn live_key(name: &str) -> Bytes {
    format!("{LIVE}{name}").into()
}

fn deleted_key(id: TopicId) -> Bytes {
    format!("{DELETED}{id}").into()
}

impl TopicStore {
    /// The records in the pool `meta`, which is [`TOPIC_POOL`].
    pub fn new(meta: &IoCtx) -> TopicStore {
        TopicStore { io: meta.with_namespace(TOPIC_NAMESPACE) }
    }

    /// The topic of that tenant and name; `None` if it does not exist or is being deleted. The zone group is not compared:
    /// a topic has one name in a tenant, and what a caller caches under that name must not depend on the zone group of the
    /// first request.
    pub async fn get(&self, arn: &TopicArn) -> Result<Option<StoredTopic>> {
        let found = self.read(&arn.tenant, live_key(&arn.name)).await?;
        Ok(found.filter(|stored| stored.record.topic.arn.is_same_topic(arn)))
    }

    /// The topic of that name and id, even if it is being deleted.
    pub async fn get_by_id(&self, arn: &TopicArn, id: TopicId) -> Result<Option<StoredTopic>> {
        if let Some(stored) = self.get(arn).await?
            && stored.record.topic.id == id
        {
            return Ok(Some(stored));
        }
        self.read(&arn.tenant, deleted_key(id)).await
    }

    async fn read(&self, tenant: &str, key: Bytes) -> Result<Option<StoredTopic>> {
        let object = object_of(tenant);
        let values = match self.io.omap_get_vals_by_keys(&object, vec![key.clone()]).await {
            Err(error) if error.is_not_found() => return Ok(None),
            values => values?,
        };
        let Some(raw) = values.get(&key) else { return Ok(None) };
        Ok(Some(StoredTopic { record: TopicRecord::decode(&object, raw)?, key, raw: raw.clone() }))
    }

    /// Creates a topic; `None` if its name is taken. Returns when the record is durable.
    pub async fn create(&self, record: &TopicRecord) -> Result<Option<StoredTopic>> {
        let arn = &record.topic.arn;
        let (key, raw) = (live_key(&arn.name), record.encode());
        // Runs at most twice: the object of a tenant is created with its first topic.
        loop {
            let mut op = WriteOp::new();
            // An absent entry counts as empty.
            op.assert_exists().omap_cmp(vec![(key.clone(), CmpOp::Eq, Bytes::new())]);
            op.omap_set(vec![(key.clone(), raw.clone())]);
            match self.io.operate(&object_of(&arn.tenant), op).await.and_then(OpReply::success) {
                Ok(_) => return Ok(Some(StoredTopic { record: record.clone(), key, raw })),
                Err(error) if error.errno() == Errno::ECANCELED => return Ok(None),
                Err(error) if error.is_not_found() => {
                    match self.io.create(&object_of(&arn.tenant), true).await {
                        Err(error) if error.errno() != Errno::EEXIST => return Err(error.into()),
                        _ => {}
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Replaces a record; `None` if the record is no longer the one that was read. Returns when the new record is durable.
    pub async fn update(&self, old: &StoredTopic, record: &TopicRecord) -> Result<Option<StoredTopic>> {
        let raw = record.encode();
        let mut op = self.changing(old);
        op.omap_set(vec![(old.key.clone(), raw.clone())]);
        let is_done = self.write(&old.record.topic.arn.tenant, op).await?;
        Ok(is_done.then(|| StoredTopic { record: record.clone(), key: old.key.clone(), raw }))
    }

    /// Deletes a topic: its name is free immediately, and its record remains under its id until [`TopicStore::remove_deleted`].
    /// `None` if the record is no longer the one that was read.
    pub async fn delete(&self, old: &StoredTopic) -> Result<Option<StoredTopic>> {
        let mut record = old.record.clone();
        record.layout.delete();
        let (key, raw) = (deleted_key(record.topic.id), record.encode());
        let mut op = self.changing(old);
        op.omap_rm_keys(vec![old.key.clone()]).omap_set(vec![(key.clone(), raw.clone())]);
        let is_done = self.write(&record.topic.arn.tenant, op).await?;
        Ok(is_done.then_some(StoredTopic { record, key, raw }))
    }

    /// Removes the record of a topic whose queues are gone. Returns whether it was still the record that was read.
    pub async fn remove_deleted(&self, old: &StoredTopic) -> Result<bool> {
        let mut op = self.changing(old);
        op.omap_rm_keys(vec![old.key.clone()]);
        self.write(&old.record.topic.arn.tenant, op).await
    }

    fn changing(&self, old: &StoredTopic) -> WriteOp {
        let mut op = WriteOp::new();
        op.assert_exists().omap_cmp(vec![(old.key.clone(), CmpOp::Eq, old.raw.clone())]);
        op
    }

    async fn write(&self, tenant: &str, op: WriteOp) -> Result<bool> {
        let reply = self.io.operate(&object_of(tenant), op).await.and_then(OpReply::success);
        match reply {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.errno(), Errno::ECANCELED | Errno::ENOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Prevents other gateways from changing the generations of a topic's queues for `duration`; `false` if another gateway
    /// has this lock. Changes are safe without it; it only saves work.
    pub(crate) async fn lock_change(&self, topic: &Topic, duration: Duration) -> Result<bool> {
        let (object, lock) = (object_of(&topic.arn.tenant), format!("change.{}", topic.id));
        let taken = self.io.lock_exclusive(&object, &lock, LOCK_COOKIE, "", duration, MAY_RENEW).await;
        match taken {
            Ok(()) => Ok(true),
            Err(error) if error.errno() == Errno::EBUSY => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Releases the lock of [`TopicStore::lock_change`].
    pub(crate) async fn unlock_change(&self, topic: &Topic) -> Result<()> {
        let (object, lock) = (object_of(&topic.arn.tenant), format!("change.{}", topic.id));
        match self.io.unlock(&object, &lock, LOCK_COOKIE).await {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Up to `max` topics of a tenant whose names sort after `after`.
    pub async fn list(&self, tenant: &str, after: Option<&str>, max: u64) -> Result<TopicPage> {
        self.page(tenant, LIVE, after.map(live_key), max).await
    }

    /// Up to `max` topics of a tenant that are being deleted and whose ids sort after `after`.
    pub async fn list_deleted(&self, tenant: &str, after: Option<TopicId>, max: u64) -> Result<TopicPage> {
        self.page(tenant, DELETED, after.map(deleted_key), max).await
    }

    async fn page(
        &self,
        tenant: &str,
        prefix: &'static str,
        after: Option<Bytes>,
        max: u64,
    ) -> Result<TopicPage> {
        let object = object_of(tenant);
        let after = after.unwrap_or_default();
        let page = match self.io.omap_get_vals(&object, after, prefix, max.clamp(1, MAX_PAGE)).await {
            Err(error) if error.is_not_found() => return Ok(TopicPage::default()),
            page => page?,
        };
        let stored = |(key, raw): (Bytes, Bytes)| {
            Ok(StoredTopic { record: TopicRecord::decode(&object, &raw)?, key, raw })
        };
        let topics: Result<Vec<StoredTopic>> = page.entries.into_iter().map(stored).collect();
        Ok(TopicPage { topics: topics?, more: page.more })
    }

    /// The tenants that have or had topics.
    pub async fn tenants(&self) -> Result<Vec<String>> {
        let mut lister = self.io.list();
        let mut tenants = Vec::new();
        while let Some(object) = lister.next().await? {
            tenants.extend(object.name().strip_prefix(OBJECT_PREFIX).map(str::to_owned));
        }
        tenants.sort_unstable();
        Ok(tenants)
    }
}
