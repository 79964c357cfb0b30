//! Buckets: records in `default.rgw.meta`, and the lists of users' buckets (docs/format/rgw.md).
//!
//! A bucket exists while its record exists. Its index is created before the record and removed after it. If its owner
//! creates a bucket of the same name again, this replaces a list entry that an interrupted attempt left.

use crate::acl::Acl;
use crate::error::{Error, Result};
use crate::gateway::Gateway;
use crate::index::{self, FreezeLease, FreezeReason, IndexFormat};
use crate::lifecycle::LifecycleConfig;
use crate::message::GatewayMessage;
use crate::notifications::Cause;
use crate::object::{Head, RemovalEvents, WriteCondition};
use crate::policy::Policy;
use crate::public_access::{Ownership, PublicAccessBlock};
use crate::quota::Quota;
use crate::ratelimit::RateLimit;
use crate::record;
use crate::time::now_ns;
use crate::user_buckets::UserBucketEntry;
use nacre_index::key::IndexRecordKind;
use nacre_topics::config::{Matcher, NotificationConfig};
use nacre_types::encoding::{self, DecodeError, Versioned};
use s3s::dto::{CORSConfiguration, ObjectLockConfiguration, WebsiteConfiguration};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Objects or uploads per page.
const PAGE: usize = 1000;
/// How long the removal of a bucket, or a first change of its versioning, waits for pending changes and their events, and
/// how often it checks.
const FINISH_TIMEOUT: Duration = Duration::from_secs(10);
const FINISH_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The object lock document of a bucket that is created with object lock enabled.
pub const EMPTY_OBJECT_LOCK: &str = r#"{"object_lock_enabled":"Enabled","rule":null}"#;

/// The versioning state of a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Versioning {
    /// Versioning was never enabled.
    #[default]
    Off,
    /// Every write creates a version.
    Enabled,
    /// Existing versions stay; new writes replace the version `null`.
    Suspended,
}

/// A bucket.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    /// Its name.
    pub name: String,
    /// Unique in the cluster and never reused; names of RADOS objects begin with it.
    pub id: String,
    /// Its owner's id.
    pub owner: String,
    /// When it was created, in nanoseconds since 1970.
    pub created_ns: u64,
    /// The generation of its index. Each resharding increments it.
    pub generation: u32,
    /// The number of shards of its index.
    pub shards: u32,
    /// The generation to which it is being resharded, and the number of shards of that generation.
    pub(crate) resharding: Option<(u32, u32)>,
    /// The previous generation and its number of shards, until these are removed; or a generation that was abandoned, until
    /// another one is created.
    pub(crate) stale_generation: Option<(u32, u32)>,
    /// The attempt that keeps its index closed.
    pub(crate) closing: Option<FreezeLease>,
    /// Its versioning state.
    pub versioning: Versioning,
    /// The users besides its owner that may list it and write into it.
    pub acl: Acl,
    /// Its tags.
    pub tags: Vec<(String, String)>,
    /// Its other settings, as JSON, by the name of the request's parameter (`policy`, `cors`, `object-lock`, `lifecycle`,
    /// `publicAccessBlock`, …) or of the administrator's command (`ratelimit`).
    pub documents: BTreeMap<String, String>,
    /// The format of its index.
    pub index_format: IndexFormat,
    /// The policy of the bucket. Parsed from the documents, as the following fields are.
    #[serde(skip)]
    pub policy: Option<Arc<Policy>>,
    /// The rules for cross-origin requests.
    #[serde(skip)]
    pub cors: Option<Arc<CORSConfiguration>>,
    /// What public access the bucket refuses.
    #[serde(skip)]
    pub public_access: PublicAccessBlock,
    /// Who owns objects that others write.
    #[serde(skip)]
    pub ownership: Ownership,
    /// The quota of the bucket; `None` if it has none of its own.
    #[serde(skip)]
    pub quota: Option<Quota>,
    /// The object lock configuration; `None` if the bucket has no object lock.
    #[serde(skip)]
    pub object_lock: Option<Arc<ObjectLockConfiguration>>,
    /// The lifecycle rules.
    #[serde(skip)]
    pub lifecycle: Option<Arc<LifecycleConfig>>,
    /// Whether data is encrypted if a request does not specify encryption.
    #[serde(skip)]
    pub encrypted: bool,
    /// The website configuration.
    #[serde(skip)]
    pub website: Option<Arc<WebsiteConfiguration>>,
    /// The rate limit of the bucket.
    #[serde(skip)]
    pub ratelimit: RateLimit,
    /// Selects the notification configurations of a change; `None` if the bucket has none.
    #[serde(skip)]
    pub notifications: Option<Arc<Matcher>>,
}

/// The name of the policy among a bucket's documents.
pub const POLICY: &str = "policy";
/// The name of the CORS rules among a bucket's documents.
pub const CORS: &str = "cors";
/// The name of the public access block among a bucket's documents.
pub const PUBLIC_ACCESS: &str = "publicAccessBlock";
/// The name of the ownership controls among a bucket's documents.
pub const OWNERSHIP: &str = "ownershipControls";
/// The name of the quota among a bucket's documents.
pub(crate) const QUOTA: &str = "quota";
/// The name of the object lock configuration among a bucket's documents.
pub const OBJECT_LOCK: &str = "object-lock";
/// The name of the lifecycle rules among a bucket's documents.
pub const LIFECYCLE: &str = "lifecycle";
/// The name of the default encryption among a bucket's documents.
pub const ENCRYPTION: &str = "encryption";
/// The name of the website configuration among a bucket's documents.
pub const WEBSITE: &str = "website";
/// The name of the rate limit among a bucket's documents.
const RATELIMIT: &str = "ratelimit";
/// The name of the notification configurations among a bucket's documents.
pub const NOTIFICATIONS: &str = "notification";

impl Bucket {
    /// Returns its rate limit, per minute and gateway.
    pub fn ratelimit(&self) -> RateLimit {
        self.ratelimit
    }

    /// Parses the documents. A document that can't be parsed fails the bucket's requests, because it may be one that
    /// protects the bucket.
    fn read_documents(mut self) -> Result<Bucket> {
        let corrupt = |detail: String| Error::Corrupt {
            name: self.name.clone(),
            source: DecodeError::Corrupt { what: "a bucket's document", detail },
        };
        if let Some(text) = self.documents.get(POLICY) {
            self.policy = Some(Arc::new(Policy::read(text, &self.name).map_err(corrupt)?));
        }
        if let Some(text) = self.documents.get(CORS) {
            self.cors = Some(Arc::new(serde_json::from_str(text).map_err(|e| corrupt(e.to_string()))?));
        }
        self.public_access = self.document(PUBLIC_ACCESS)?;
        self.ownership = self.document(OWNERSHIP)?;
        self.quota = self.document(QUOTA)?;
        self.encrypted = self.documents.contains_key(ENCRYPTION);
        if let Some(text) = self.documents.get(LIFECYCLE) {
            let rules = serde_json::from_str(text).map_err(|e| e.to_string());
            self.lifecycle =
                Some(Arc::new(rules.and_then(|rules| LifecycleConfig::read(&rules)).map_err(corrupt)?));
        }
        if let Some(text) = self.documents.get(OBJECT_LOCK) {
            self.object_lock =
                Some(Arc::new(serde_json::from_str(text).map_err(|e| corrupt(e.to_string()))?));
        }
        self.ratelimit = self.document(RATELIMIT)?;
        let notifications: NotificationConfig = self.document(NOTIFICATIONS)?;
        if !notifications.configurations.is_empty() {
            let matcher = Matcher::new(notifications).map_err(|error| corrupt(error.to_string()))?;
            self.notifications = Some(Arc::new(matcher));
        }
        if let Some(text) = self.documents.get(WEBSITE) {
            self.website = Some(Arc::new(serde_json::from_str(text).map_err(|e| corrupt(e.to_string()))?));
        }
        Ok(self)
    }

    /// Parses one of the documents, for changes of the record. Returns the default if the document is absent.
    pub fn document<T: Default + DeserializeOwned>(&self, name: &str) -> Result<T> {
        let Some(text) = self.documents.get(name) else { return Ok(T::default()) };
        serde_json::from_str(text).map_err(|error| Error::Corrupt {
            name: self.name.clone(),
            source: DecodeError::Corrupt { what: "a bucket's document", detail: error.to_string() },
        })
    }
}

/// A bucket record of format 1. The bucket's index is of format 1, too.
#[derive(Deserialize)]
struct BucketV1 {
    name: String,
    id: String,
    owner: String,
    created_ns: u64,
    generation: u32,
    shards: u32,
    resharding: Option<(u32, u32)>,
    left: Option<(u32, u32)>,
    closing: Option<FreezeLease>,
    versioning: Versioning,
    acl: Acl,
    tags: Vec<(String, String)>,
    documents: BTreeMap<String, String>,
}

impl Versioned for Bucket {
    const NAME: &'static str = "bucket";
    const VERSION: u8 = 2;
    /// A gateway that does not know the index's format must not change it.
    const COMPAT: u8 = 2;

    fn decode_old(_version: u8, body: &[u8]) -> Result<Bucket, DecodeError> {
        let old: BucketV1 = encoding::decode_body(Self::NAME, body)?;
        Ok(Bucket {
            name: old.name,
            id: old.id,
            owner: old.owner,
            created_ns: old.created_ns,
            generation: old.generation,
            shards: old.shards,
            resharding: old.resharding,
            stale_generation: old.left,
            closing: old.closing,
            versioning: old.versioning,
            acl: old.acl,
            tags: old.tags,
            documents: old.documents,
            index_format: IndexFormat::V1,
            ..Bucket::default()
        })
    }
}

impl Gateway {
    /// Reads the bucket of that name. Converts an index of an older format first.
    pub async fn bucket(&self, name: &str) -> Result<Bucket> {
        let bucket = self.bucket_record(name).await?;
        if bucket.index_format == IndexFormat::V2 {
            return Ok(bucket);
        }
        self.shared()?.with_current_index(bucket).await
    }

    /// Reads the bucket of that name, whatever the format of its index.
    pub(crate) async fn bucket_record(&self, name: &str) -> Result<Bucket> {
        self.bucket_without_documents(name).await?.read_documents()
    }

    /// Like [`Gateway::bucket_record`], but does not parse the documents. It is for callers that need only the place of the
    /// index. Parsing the documents of a bucket may be expensive: they contain regular expressions.
    pub(crate) async fn bucket_without_documents(&self, name: &str) -> Result<Bucket> {
        let found = record::read::<Bucket>(&self.pools.buckets, name).await?;
        found.map(|(bucket, _)| bucket).ok_or_else(|| Error::NoSuchBucket(name.to_owned()))
    }

    /// Creates a bucket of `owner` with its initial documents.
    pub async fn create_bucket(
        &self,
        name: &str,
        owner: &str,
        acl: Acl,
        documents: BTreeMap<String, String>,
    ) -> Result<Bucket> {
        let there = |bucket: &Bucket| {
            let name = name.to_owned();
            if bucket.owner == owner { Error::BucketAlreadyOwned(name) } else { Error::BucketExists(name) }
        };
        if let Some((bucket, _)) = record::read::<Bucket>(&self.pools.buckets, name).await? {
            return Err(there(&bucket));
        }
        let user = self.users.get(owner).await?;
        match u32::try_from(user.max_buckets) {
            Ok(0) => {}
            Ok(max) => {
                let own = self.users.buckets.list(owner, "", u64::from(max)).await?;
                if own.len() >= max as usize {
                    return Err(Error::TooManyBuckets(max));
                }
            }
            Err(_) => return Err(Error::TooManyBuckets(0)),
        }
        let bucket = Bucket {
            name: name.to_owned(),
            id: self.new_tag(),
            owner: owner.to_owned(),
            created_ns: now_ns(),
            generation: 0,
            shards: self.config.index_shards.max(1),
            versioning: if documents.contains_key(OBJECT_LOCK) {
                Versioning::Enabled
            } else {
                Versioning::Off
            },
            acl,
            documents,
            ..Bucket::default()
        };
        index::create(&self.pools.index, &bucket).await?;
        // The list entry is written first: an entry without a bucket can be removed, but a bucket without an entry would be
        // lost.
        let own = UserBucketEntry { id: bucket.id.clone(), created_ns: bucket.created_ns };
        let listed = self.users.buckets.add(owner, name, &own).await?;
        let creating = record::create(&self.pools.buckets, name, &bucket);
        if self.peers.with_best_effort_invalidation(GatewayMessage::Bucket(name.to_owned()), creating).await?
        {
            return bucket.read_documents();
        }
        // Another request has created a bucket of this name first.
        index::remove(&self.pools.index, &bucket).await?;
        let winner = self.bucket(name).await?;
        let wanted = (winner.owner == owner)
            .then(|| UserBucketEntry { id: winner.id.clone(), created_ns: winner.created_ns });
        self.users.buckets.replace(owner, name, listed, wanted.as_ref()).await?;
        Err(there(&winner))
    }

    /// Removes an empty bucket.
    pub async fn remove_bucket(self: &Arc<Gateway>, name: &str) -> Result<()> {
        let bucket = self.bucket(name).await?;
        // From here on, no change is prepared in it.
        let tag = self.new_tag();
        let bucket = index::begin_freeze(self, &bucket, FreezeReason::Removal, &tag).await?;
        let empty = async {
            self.check_empty(&bucket).await?;
            // While the bucket exists, the entry of that name belongs to it.
            self.users.buckets.get(&bucket.owner, name).await
        };
        let listed = match empty.await {
            Ok(listed) => listed,
            Err(error) => {
                index::abort_freeze(self, &bucket, &tag).await?;
                return Err(error);
            }
        };
        // Removes this bucket, not another one of its name, and only if this attempt still keeps it closed.
        let removing = record::remove_if(&self.pools.buckets, name, |bucket: &Bucket| {
            if bucket.is_frozen_by(&tag) { Ok(()) } else { Err(Error::IndexBusy(name.to_owned())) }
        });
        let removed = self
            .peers
            .with_best_effort_invalidation(GatewayMessage::Bucket(name.to_owned()), removing)
            .await?;
        let bucket = removed.ok_or_else(|| Error::NoSuchBucket(name.to_owned()))?;
        if bucket.documents.contains_key(LIFECYCLE) {
            self.register_lifecycle(&bucket, false).await?;
        }
        if let Some(listed) = listed {
            self.users.buckets.replace(&bucket.owner, name, listed, None).await?;
        }
        index::remove(&self.pools.index, &bucket).await?;
        for (generation, shards) in bucket.resharding.into_iter().chain(bucket.stale_generation) {
            index::remove(&self.pools.index, &Bucket { generation, shards, ..bucket.clone() }).await?;
        }
        Ok(())
    }

    /// Enables or suspends versioning. The first change closes the index and waits for pending changes, so that each write
    /// is made either without versions or with them.
    pub async fn set_versioning(self: &Arc<Gateway>, name: &str, versioning: Versioning) -> Result<()> {
        let bucket = self.bucket(name).await?;
        if bucket.versioning != Versioning::Off {
            let set = |now: &mut Bucket| {
                // This may be another bucket of the same name, in which versioning was never enabled.
                if now.versioning == Versioning::Off {
                    return Err(Error::IndexBusy(name.to_owned()));
                }
                if versioning == Versioning::Suspended && now.documents.contains_key(OBJECT_LOCK) {
                    return Err(Error::BucketState(
                        "An Object Lock configuration is present on this bucket, so the versioning state cannot be changed.",
                    ));
                }
                now.versioning = versioning;
                Ok(())
            };
            return self.modify_bucket(name, set).await.map(drop);
        }
        let tag = self.new_tag();
        let bucket = index::begin_freeze(self, &bucket, FreezeReason::Versioning, &tag).await?;
        if let Err(error) = self.wait_no_pending(&bucket).await {
            index::abort_freeze(self, &bucket, &tag).await?;
            return Err(error);
        }
        let set = |now: &mut Bucket| {
            if !now.is_frozen_by(&tag) {
                return Err(Error::IndexBusy(name.to_owned()));
            }
            (now.versioning, now.closing) = (versioning, None);
            Ok(())
        };
        let bucket = self.modify_bucket(name, set).await?;
        index::thaw(&self.pools.index, &bucket, &tag).await
    }

    /// Waits until a closed bucket has no pending changes.
    pub(crate) async fn wait_no_pending(self: &Arc<Gateway>, bucket: &Bucket) -> Result<()> {
        self.wait_no_records(bucket, IndexRecordKind::Pending, FINISH_TIMEOUT).await
    }

    /// Waits until a closed bucket's index has no record of that kind.
    pub(crate) async fn wait_no_records(
        self: &Arc<Gateway>,
        bucket: &Bucket,
        kind: IndexRecordKind,
        timeout: Duration,
    ) -> Result<()> {
        let started = Instant::now();
        while index::has_records(&self.pools.index, bucket, kind).await? {
            match kind {
                // A listing starts the recovery of changes of dead gateways.
                IndexRecordKind::Pending => drop(self.is_empty(bucket).await?),
                IndexRecordKind::Tidy => self.tidy_bucket(bucket).await?,
                _ => {}
            }
            if started.elapsed() > timeout {
                return Err(Error::IndexBusy(bucket.name.clone()));
            }
            tokio::time::sleep(FINISH_POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Waits until the pending changes of a closed bucket are finished, its heads are tidied and its events are in their
    /// queues. Fails if the bucket has objects then; otherwise aborts its uploads.
    async fn check_empty(self: &Arc<Gateway>, bucket: &Bucket) -> Result<()> {
        if !self.is_empty(bucket).await? {
            return Err(Error::BucketNotEmpty(bucket.name.clone()));
        }
        // A pending change may still create an object.
        self.wait_no_pending(bucket).await?;
        if !self.is_empty(bucket).await? {
            return Err(Error::BucketNotEmpty(bucket.name.clone()));
        }
        self.wait_no_records(bucket, IndexRecordKind::Tidy, FINISH_TIMEOUT).await?;
        if index::has_records(&self.pools.index, bucket, IndexRecordKind::Outbox).await? {
            for shard in 0..bucket.shards.max(1) {
                self.outbox_written(&bucket.name, &index::shard_name(bucket, shard), &[]);
            }
            self.wait_no_records(bucket, IndexRecordKind::Outbox, FINISH_TIMEOUT).await?;
        }
        self.abort_uploads(bucket).await
    }

    /// Aborts all uploads of a bucket.
    async fn abort_uploads(self: &Arc<Gateway>, bucket: &Bucket) -> Result<()> {
        loop {
            let (found, _) = self.uploads(bucket, "", None, PAGE).await?;
            if found.is_empty() {
                return Ok(());
            }
            for (key, id, _) in &found {
                match self.abort_upload(bucket, key, id).await {
                    // The upload is listed but does not exist: an attempt to abort it was interrupted.
                    Err(Error::NoSuchUpload) => index::remove_upload(self, bucket, key, id).await?,
                    ended => ended?,
                }
            }
        }
    }

    /// Removes all objects of a bucket without writers, in all versions, and all its uploads. Fails if object lock protects
    /// a version, which stays.
    pub async fn purge_bucket(self: &Arc<Gateway>, name: &str) -> Result<()> {
        let bucket = Arc::new(self.bucket(name).await?);
        let query = index::ListQuery { max: PAGE, markers: true, ..index::ListQuery::default() };
        loop {
            let found = self.list_versions(&bucket, &query, None).await?;
            if found.versions.is_empty() {
                break;
            }
            for listed in &found.versions {
                let cause = Cause::administration(self);
                if bucket.versioning == Versioning::Off {
                    let (key, events) = ((&*listed.key, ""), (&cause, RemovalEvents::REQUEST));
                    self.remove_object(&bucket, key, WriteCondition::None, events).await?;
                    continue;
                }
                let may = |head: &Head, _| head.check_lock(true);
                let version = (&*listed.key, listed.head.version_id());
                let events = (&cause, RemovalEvents::REQUEST.removed);
                self.remove_version(&bucket, version, events, may).await?;
            }
        }
        self.abort_uploads(&bucket).await
    }

    /// Changes a bucket's record.
    pub async fn modify_bucket(
        &self,
        name: &str,
        change: impl FnMut(&mut Bucket) -> Result<()>,
    ) -> Result<Bucket> {
        let changing = record::update(&self.pools.buckets, name, change);
        let changed = self.peers.with_invalidation(GatewayMessage::Bucket(name.to_owned()), changing).await?;
        changed.ok_or_else(|| Error::NoSuchBucket(name.to_owned()))
    }

    /// Changes the rate limit of a bucket, which applies per minute and gateway.
    pub async fn set_bucket_ratelimit(
        &self,
        name: &str,
        change: impl Fn(&mut RateLimit),
    ) -> Result<RateLimit> {
        let changed = self.modify_bucket(name, |bucket| {
            let mut limit: RateLimit = bucket.document(RATELIMIT)?;
            change(&mut limit);
            let text = serde_json::to_string(&limit).expect("invariant: numbers can be encoded");
            bucket.documents.insert(RATELIMIT.to_owned(), text);
            Ok(())
        });
        changed.await?.document(RATELIMIT)
    }

    /// Returns the names of all buckets.
    pub async fn buckets(&self) -> Result<Vec<String>> {
        let mut lister = self.pools.buckets.list();
        let mut names = Vec::new();
        while let Some(object) = lister.next().await? {
            names.push(object.name().to_owned());
        }
        names.sort_unstable();
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_format_1_stand_for_indexes_of_format_1() {
        let bucket = Bucket { name: "b".into(), shards: 11, owner: "o".into(), ..Bucket::default() };
        let new = record::encode(&bucket);
        assert_eq!(record::decode::<Bucket>("b", &new).unwrap(), bucket);
        let body = &new[encoding::ENVELOPE_HEADER_BYTES..new.len() - 1];
        let old = [&[1, 1][..], &(body.len() as u32).to_le_bytes(), body].concat();
        let read = record::decode::<Bucket>("b", &old).unwrap();
        assert_eq!(read, Bucket { index_format: IndexFormat::V1, ..bucket });
    }
}
