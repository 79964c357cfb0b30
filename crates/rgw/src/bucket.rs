//! Buckets: records in `default.rgw.meta`, and the lists of users' buckets (docs/format/rgw.md).
//!
//! A bucket exists from the moment its record is made to the moment it is removed. Before that its index is made, after
//! that it is removed; what an interrupted attempt leaves is taken up by the next one of that name.

use crate::acl::Acl;
use crate::error::{Error, Result};
use crate::gateway::{Change, Gateway, now_ns};
use crate::index;
use crate::policy::Policy;
use crate::record;
use bytes::Bytes;
use nacre_types::encoding::{DecodeError, Versioned};
use s3s::dto::CORSConfiguration;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Objects or uploads looked at at a time.
const PAGE: usize = 1000;
/// How long the removal of a bucket waits for what was begun in it, and how often it looks.
const FINISH_TIMEOUT: Duration = Duration::from_secs(10);
const FINISH_LOOK: Duration = Duration::from_millis(50);
/// What the names of users' lists of buckets end with.
pub(crate) const OF_USER: &str = ".buckets";

/// Whether objects have versions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Versioning {
    /// They never had.
    #[default]
    Off,
    /// Every write makes a version.
    Enabled,
    /// Versions stay; new writes replace the version `null`.
    Suspended,
}

/// A bucket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    /// Its name.
    pub name: String,
    /// Unique in the cluster, never used again; names of RADOS objects begin with it.
    pub id: String,
    /// Its owner's id.
    pub owner: String,
    /// When it was made, in nanoseconds since 1970.
    pub created_ns: u64,
    /// Counted up with each resharding.
    pub generation: u32,
    /// Shards of its index.
    pub shards: u32,
    /// Whether objects have versions.
    pub versioning: Versioning,
    /// Who besides its owner may list it and write into it.
    pub acl: Acl,
    /// Its tags.
    pub tags: Vec<(String, String)>,
    /// What else was set for it, by the name of the request's parameter: `policy`, `cors`. JSON.
    pub documents: BTreeMap<String, String>,
    /// Of these what was read of them.
    #[serde(skip)]
    pub(crate) policy: Option<Arc<Policy>>,
    #[serde(skip)]
    pub(crate) cors: Option<Arc<CORSConfiguration>>,
}

/// The name of the policy among a bucket's documents.
pub(crate) const POLICY: &str = "policy";
/// The name of the rules for browsers among a bucket's documents.
pub(crate) const CORS: &str = "cors";

impl Bucket {
    /// Reads the documents. One that can't be read fails the bucket's requests: it may be what protects it.
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
        Ok(self)
    }
}

impl Versioned for Bucket {
    const NAME: &'static str = "bucket";
}

/// An entry of a user's list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnBucket {
    /// The bucket's id.
    pub id: String,
    /// When it was made, in nanoseconds since 1970.
    pub created_ns: u64,
}

impl Versioned for OwnBucket {
    const NAME: &'static str = "a user's bucket";
}

fn list_of(user: &str) -> String {
    format!("{user}{OF_USER}")
}

impl Gateway {
    /// The bucket of that name, asked for anew.
    pub async fn bucket(&self, name: &str) -> Result<Bucket> {
        let found = record::read::<Bucket>(&self.pools.buckets, name).await?;
        let (bucket, _) = found.ok_or_else(|| Error::NoSuchBucket(name.to_owned()))?;
        bucket.read_documents()
    }

    /// Makes a bucket of `owner`.
    pub async fn create_bucket(&self, name: &str, owner: &str, acl: Acl) -> Result<Bucket> {
        let there = |bucket: &Bucket| {
            let name = name.to_owned();
            if bucket.owner == owner { Error::BucketIsYours(name) } else { Error::BucketExists(name) }
        };
        if let Some((bucket, _)) = record::read::<Bucket>(&self.pools.buckets, name).await? {
            return Err(there(&bucket));
        }
        let user = self.user(owner).await?;
        if user.max_buckets > 0 {
            let own = self.buckets_of(owner, "", u64::from(user.max_buckets)).await?;
            if own.len() >= user.max_buckets as usize {
                return Err(Error::TooManyBuckets(user.max_buckets));
            }
        }
        let bucket = Bucket {
            name: name.to_owned(),
            id: self.tag(),
            owner: owner.to_owned(),
            created_ns: now_ns(),
            generation: 0,
            shards: self.config.index_shards.max(1),
            versioning: Versioning::Off,
            acl,
            tags: Vec::new(),
            documents: BTreeMap::new(),
            policy: None,
            cors: None,
        };
        index::create(&self.pools.index, &bucket).await?;
        // Listed first: an entry without a bucket is seen through and removed, a bucket without an entry would be lost.
        let own = OwnBucket { id: bucket.id.clone(), created_ns: bucket.created_ns };
        let entry = (Bytes::from(name.to_owned()), record::encode(&own));
        self.pools.users.omap_set(&list_of(owner), vec![entry]).await?;
        if record::create(&self.pools.buckets, name, &bucket).await? {
            self.tell_others(Change::Bucket(name.to_owned())).await;
            return Ok(bucket);
        }
        // Somebody else was faster.
        index::remove(&self.pools.index, &bucket).await?;
        let winner = self.bucket(name).await?;
        if winner.owner != owner {
            self.pools.users.omap_rm_keys(&list_of(owner), vec![Bytes::from(name.to_owned())]).await?;
        }
        Err(there(&winner))
    }

    /// Removes an empty bucket.
    pub async fn remove_bucket(self: &Arc<Gateway>, name: &str) -> Result<()> {
        let bucket = self.bucket(name).await?;
        // From here on nothing is put into it.
        index::close(&self.pools.index, &bucket).await?;
        if let Err(error) = self.check_empty(&bucket).await {
            index::open(&self.pools.index, &bucket).await?;
            return Err(error);
        }
        record::remove(&self.pools.buckets, name).await?;
        self.pools.users.omap_rm_keys(&list_of(&bucket.owner), vec![Bytes::from(name.to_owned())]).await?;
        self.tell_others(Change::Bucket(name.to_owned())).await;
        index::remove(&self.pools.index, &bucket).await
    }

    /// Waits until what was begun in a closed bucket is finished; fails where it holds objects then. Its uploads are ended.
    async fn check_empty(self: &Arc<Gateway>, bucket: &Bucket) -> Result<()> {
        let begun = Instant::now();
        // What is begun may still become an object.
        while index::has_pending(&self.pools.index, bucket).await? {
            // Listing has what gateways left that are gone seen through.
            if !self.is_empty(bucket).await? {
                return Err(Error::BucketNotEmpty(bucket.name.clone()));
            }
            if begun.elapsed() > FINISH_TIMEOUT {
                return Err(Error::IndexBusy(bucket.name.clone()));
            }
            tokio::time::sleep(FINISH_LOOK).await;
        }
        if !self.is_empty(bucket).await? {
            return Err(Error::BucketNotEmpty(bucket.name.clone()));
        }
        self.abort_uploads(bucket).await
    }

    /// Ends all uploads of a bucket.
    async fn abort_uploads(&self, bucket: &Bucket) -> Result<()> {
        loop {
            let (found, _) = self.uploads(bucket, "", None, PAGE).await?;
            if found.is_empty() {
                return Ok(());
            }
            for (key, id, _) in &found {
                match self.abort_upload(bucket, key, id).await {
                    // Listed, but not there: an attempt to end it was cut short.
                    Err(Error::NoSuchUpload) => index::remove_upload(self, bucket, key, id).await?,
                    ended => ended?,
                }
            }
        }
    }

    /// Removes all objects and uploads of a bucket that nobody writes into any more.
    pub async fn purge_bucket(self: &Arc<Gateway>, name: &str) -> Result<()> {
        let bucket = Arc::new(self.bucket(name).await?);
        loop {
            let found =
                self.list(&bucket, &index::ListQuery { max: PAGE, ..index::ListQuery::default() }).await?;
            if found.entries.is_empty() {
                break;
            }
            for (key, _) in &found.entries {
                self.remove_object(&bucket, key, crate::object::Condition::None).await?;
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
        let changed = record::update(&self.pools.buckets, name, change).await?;
        self.tell_others(Change::Bucket(name.to_owned())).await;
        changed.ok_or_else(|| Error::NoSuchBucket(name.to_owned()))
    }

    /// At most `max` buckets of a user behind `after`, by name.
    pub async fn buckets_of(&self, user: &str, after: &str, max: u64) -> Result<Vec<(String, OwnBucket)>> {
        let list = list_of(user);
        let (mut found, mut after) = (Vec::new(), after.to_owned());
        while (found.len() as u64) < max {
            let asked = max - found.len() as u64;
            let reply = self.pools.users.omap_get_vals(&list, after.clone(), "", asked.min(1000)).await;
            let page = match reply {
                Err(error) if error.is_not_found() => break,
                page => page?,
            };
            for (key, value) in &page.entries {
                let name = String::from_utf8_lossy(key).into_owned();
                found.push((name.clone(), record::decode::<OwnBucket>(&list, value)?));
                after = name;
            }
            if !page.more {
                break;
            }
        }
        Ok(found)
    }

    /// All buckets' names.
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
