//! The records of buckets, in `default.rgw.meta` (docs/format/rgw.md). A bucket exists while its record exists.

use crate::acl::Acl;
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::lifecycle::LifecycleConfig;
use crate::message::GatewayMessage;
use crate::peers::Peers;
use crate::policy::Policy;
use crate::public_access::{Ownership, PublicAccessBlock};
use crate::quota::Quota;
use crate::ratelimit::RateLimit;
use crate::record;
use crate::time::now_ns;
use nacre_client::IoCtx;
use nacre_topics::notification_config::{Matcher, NotificationConfig};
use nacre_types::encoding::{self, DecodeError, Versioned};
use s3s::dto::{CORSConfiguration, ObjectLockConfiguration, WebsiteConfiguration};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

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

/// The format of a bucket's index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum IndexFormat {
    /// The format of releases without notifications. An index of this format is converted before it is used.
    V1,
    /// The format that docs/format/index.md describes.
    #[default]
    V2,
}

/// Why an index is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FreezeReason {
    /// The bucket is being removed.
    Removal,
    /// The bucket's versioning is being enabled.
    Versioning,
    /// The index is being moved.
    Reshard,
    /// The index is converted to the current format.
    Conversion,
}

impl FreezeReason {
    /// Returns how long an attempt may be silent before it gives way (`renew_until_lost` in `shards/freeze.rs`). Most attempts are never renewed.
    fn timeout(self) -> Duration {
        match self {
            FreezeReason::Removal | FreezeReason::Versioning | FreezeReason::Conversion => {
                Duration::from_secs(120)
            }
            FreezeReason::Reshard => Duration::from_secs(3600),
        }
    }
}

/// An attempt that closes an index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FreezeLease {
    /// Unique and never reused.
    pub(crate) tag: String,
    pub(crate) reason: FreezeReason,
    /// When it began or was last renewed, in nanoseconds since 1970.
    pub(crate) since_ns: u64,
}

impl FreezeLease {
    /// Whether the attempt may have died.
    pub(crate) fn is_expired(&self) -> bool {
        u128::from(now_ns().saturating_sub(self.since_ns)) > self.reason.timeout().as_nanos()
    }

    /// Whether it gives way to a new attempt. A gateway that reshards holds the lock for that, so an earlier one has lost
    /// it.
    pub(crate) fn gives_way_to(&self, why: FreezeReason) -> bool {
        self.is_expired() || (self.reason, why) == (FreezeReason::Reshard, FreezeReason::Reshard)
    }
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
    /// Whether its index is closed by the attempt of that tag.
    pub(crate) fn is_frozen_by(&self, tag: &str) -> bool {
        self.closing.as_ref().is_some_and(|closing| closing.tag == tag)
    }

    /// Returns its rate limit, per minute and gateway.
    pub fn ratelimit(&self) -> RateLimit {
        self.ratelimit
    }

    /// Parses the documents. A document that can't be parsed fails the bucket's requests, because it may be one that
    /// protects the bucket.
    pub(crate) fn parse_documents(mut self) -> Result<Bucket> {
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

/// The records of buckets.
pub struct Buckets {
    records: IoCtx,
    peers: Arc<Peers>,
}

impl Buckets {
    pub(crate) fn new(connection: &Connection, peers: &Arc<Peers>) -> Buckets {
        Buckets { records: connection.pools.buckets.clone(), peers: Arc::clone(peers) }
    }

    /// Reads the bucket of that name, whatever the format of its index.
    pub(crate) async fn record(&self, name: &str) -> Result<Bucket> {
        self.record_without_documents(name).await?.parse_documents()
    }

    /// Like [`Buckets::record`], but does not parse the documents. It is for callers that need only the place of the
    /// index. Parsing the documents of a bucket may be expensive: they contain regular expressions.
    pub(crate) async fn record_without_documents(&self, name: &str) -> Result<Bucket> {
        let found = record::read::<Bucket>(&self.records, name).await?;
        found.map(|(bucket, _)| bucket).ok_or_else(|| Error::NoSuchBucket(name.to_owned()))
    }

    /// Changes a bucket's record.
    pub async fn modify(&self, name: &str, change: impl FnMut(&mut Bucket) -> Result<()>) -> Result<Bucket> {
        let changing = record::update(&self.records, name, change);
        let changed = self.peers.with_invalidation(GatewayMessage::Bucket(name.to_owned()), changing).await?;
        changed.ok_or_else(|| Error::NoSuchBucket(name.to_owned()))
    }

    /// Removes a bucket from this gateway's caches.
    pub(crate) fn invalidate(&self, name: &str) {
        self.peers.invalidate_local(&GatewayMessage::Bucket(name.to_owned()));
    }

    /// Changes the rate limit of a bucket, which applies per minute and gateway.
    pub async fn set_ratelimit(&self, name: &str, change: impl Fn(&mut RateLimit)) -> Result<RateLimit> {
        let changed = self.modify(name, |bucket| {
            let mut limit: RateLimit = bucket.document(RATELIMIT)?;
            change(&mut limit);
            let text = serde_json::to_string(&limit).expect("invariant: numbers can be encoded");
            bucket.documents.insert(RATELIMIT.to_owned(), text);
            Ok(())
        });
        changed.await?.document(RATELIMIT)
    }

    /// Returns the names of all buckets.
    pub async fn list(&self) -> Result<Vec<String>> {
        let mut lister = self.records.list();
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
    use crate::testing::TestCluster;

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

    #[test]
    fn records_are_listed_read_and_changed() {
        let cluster = TestCluster::new();
        let (connection, peers) = cluster.connect();
        cluster.run(async move {
            let buckets = Buckets::new(&connection, &peers);
            for name in ["b", "a"] {
                let bucket = Bucket { name: name.into(), owner: "alice".into(), ..Bucket::default() };
                assert!(record::create(&connection.pools.buckets, name, &bucket).await.unwrap());
            }
            assert_eq!(buckets.list().await.unwrap(), ["a", "b"]);
            let limit = buckets.set_ratelimit("a", |limit| limit.enabled = true).await.unwrap();
            assert!(limit.enabled && buckets.record("a").await.unwrap().ratelimit.enabled);
            assert!(!buckets.record("b").await.unwrap().ratelimit.enabled);
            // A change that is refused changes nothing.
            let refused = buckets.modify("b", |bucket| {
                bucket.owner = "bob".into();
                Err(Error::Denied("no"))
            });
            assert!(matches!(refused.await, Err(Error::Denied(_))));
            assert_eq!(buckets.record("b").await.unwrap().owner, "alice");
            assert!(matches!(buckets.record("c").await, Err(Error::NoSuchBucket(_))));
            assert!(matches!(buckets.modify("c", |_| Ok(())).await, Err(Error::NoSuchBucket(_))));
            // A document that can't be parsed fails what depends on it.
            let spoil = |bucket: &mut Bucket| {
                bucket.documents.insert(POLICY.to_owned(), "{".to_owned());
                Ok(())
            };
            buckets.modify("b", spoil).await.unwrap();
            assert!(matches!(buckets.record("b").await, Err(Error::Corrupt { .. })));
            assert!(buckets.record_without_documents("b").await.is_ok());
        });
    }
}
