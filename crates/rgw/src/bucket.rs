//! Buckets: records in `default.rgw.meta`, and the lists of users' buckets (docs/format/rgw.md).
//!
//! A bucket exists from the moment its record is made to the moment it is removed. Before that its index is made, after
//! that it is removed; what an interrupted attempt leaves is taken up by the next one of that name.

use crate::acl::Acl;
use crate::error::{Error, Result};
use crate::gateway::{Change, Gateway, now_ns};
use crate::index;
use crate::record;
use bytes::Bytes;
use nacre_types::encoding::Versioned;
use serde::{Deserialize, Serialize};

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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
        found.map(|(bucket, _)| bucket).ok_or_else(|| Error::NoSuchBucket(name.to_owned()))
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
    pub async fn remove_bucket(self: &std::sync::Arc<Gateway>, name: &str) -> Result<()> {
        let bucket = self.bucket(name).await?;
        // From here on nothing is put into it.
        index::close(&self.pools.index, &bucket).await?;
        let emptied = match self.is_empty(&bucket).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::BucketNotEmpty(name.to_owned())),
            Err(error) => Err(error),
        };
        if let Err(error) = emptied {
            index::open(&self.pools.index, &bucket).await?;
            return Err(error);
        }
        record::remove(&self.pools.buckets, name).await?;
        self.pools.users.omap_rm_keys(&list_of(&bucket.owner), vec![Bytes::from(name.to_owned())]).await?;
        self.tell_others(Change::Bucket(name.to_owned())).await;
        index::remove(&self.pools.index, &bucket).await
    }

    /// Removes all objects and uploads of a bucket that nobody writes into any more.
    pub async fn purge_bucket(self: &std::sync::Arc<Gateway>, name: &str) -> Result<()> {
        const PAGE: usize = 1000;
        let bucket = std::sync::Arc::new(self.bucket(name).await?);
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
        loop {
            let (found, _) = self.uploads(&bucket, "", None, PAGE).await?;
            if found.is_empty() {
                return Ok(());
            }
            for (key, id, _) in &found {
                self.abort_upload(&bucket, key, id).await?;
            }
        }
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
