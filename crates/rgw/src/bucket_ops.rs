//! Creation and removal of buckets, and changes that concern all of a bucket's objects.
//!
//! The index of a bucket is created before its record and removed after it. If its owner creates a bucket of the same name
//! again, this replaces a list entry that an interrupted attempt left.

use crate::acl::Acl;
use crate::bucket::{Bucket, FreezeReason, LIFECYCLE, OBJECT_LOCK, Versioning};
use crate::error::{Error, Result};
use crate::gateway::Gateway;
use crate::index::ListQuery;
use crate::message::GatewayMessage;
use crate::object::{RemovalEventTypes, WriteCondition};
use crate::record;
use crate::shards::shard_name;
use crate::stored::Head;
use crate::time::now_ns;
use crate::user_buckets::UserBucketEntry;
use nacre_index::key::IndexRecordKind;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Objects or uploads per page.
const PAGE: usize = 1000;
/// How long the removal of a bucket waits for its heads to be tidied, and for its events.
const FINISH_TIMEOUT: Duration = Duration::from_secs(10);

impl Gateway {
    /// Reads the bucket of that name. Converts an index of an older format first.
    pub async fn bucket(&self, name: &str) -> Result<Bucket> {
        self.converted.get(name).await
    }

    /// Returns the bucket of that name, as of the beginning of the call or later.
    pub async fn cached_bucket(&self, name: &str) -> Result<Arc<Bucket>> {
        self.converted.cached(name).await
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
        self.shards.create(&bucket).await?;
        // The list entry is written first: an entry without a bucket can be removed, but a bucket without an entry would be
        // lost.
        let own = UserBucketEntry { id: bucket.id.clone(), created_ns: bucket.created_ns };
        let listed = self.users.buckets.add(owner, name, &own).await?;
        let creating = record::create(&self.pools.buckets, name, &bucket);
        if self.peers.with_best_effort_invalidation(GatewayMessage::Bucket(name.to_owned()), creating).await?
        {
            return bucket.parse_documents();
        }
        // Another request has created a bucket of this name first.
        self.shards.remove(&bucket).await?;
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
        let bucket = self.shards.begin_freeze(&bucket, FreezeReason::Removal, &tag).await?;
        let empty = async {
            self.check_empty(&bucket).await?;
            // While the bucket exists, the entry of that name belongs to it.
            self.users.buckets.get(&bucket.owner, name).await
        };
        let listed = match empty.await {
            Ok(listed) => listed,
            Err(error) => {
                self.shards.abort_freeze(&bucket, &tag).await?;
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
            self.lifecycle.register(&bucket, false).await?;
        }
        if let Some(listed) = listed {
            self.users.buckets.replace(&bucket.owner, name, listed, None).await?;
        }
        self.shards.remove(&bucket).await?;
        for (generation, shards) in bucket.resharding.into_iter().chain(bucket.stale_generation) {
            self.shards.remove(&Bucket { generation, shards, ..bucket.clone() }).await?;
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
            return self.buckets.modify(name, set).await.map(drop);
        }
        let tag = self.new_tag();
        let bucket = self.shards.begin_freeze(&bucket, FreezeReason::Versioning, &tag).await?;
        if let Err(error) = self.index.wait_no_pending(&bucket).await {
            self.shards.abort_freeze(&bucket, &tag).await?;
            return Err(error);
        }
        let set = |now: &mut Bucket| {
            if !now.is_frozen_by(&tag) {
                return Err(Error::IndexBusy(name.to_owned()));
            }
            (now.versioning, now.closing) = (versioning, None);
            Ok(())
        };
        let bucket = self.buckets.modify(name, set).await?;
        self.shards.thaw(&bucket, &tag).await
    }

    /// Waits until the pending changes of a closed bucket are finished, its heads are tidied and its events are in their
    /// queues. Fails if the bucket has objects then; otherwise aborts its uploads.
    async fn check_empty(self: &Arc<Gateway>, bucket: &Bucket) -> Result<()> {
        if !self.index.is_empty(bucket).await? {
            return Err(Error::BucketNotEmpty(bucket.name.clone()));
        }
        // A pending change may still create an object.
        self.index.wait_no_pending(bucket).await?;
        if !self.index.is_empty(bucket).await? {
            return Err(Error::BucketNotEmpty(bucket.name.clone()));
        }
        self.index.wait_no_records(bucket, IndexRecordKind::Tidy, FINISH_TIMEOUT).await?;
        if self.shards.has_records(bucket, IndexRecordKind::Outbox).await? {
            for shard in 0..bucket.shards.max(1) {
                self.index.finisher.outbox_written(&bucket.name, &shard_name(bucket, shard), &[]);
            }
            self.index.wait_no_records(bucket, IndexRecordKind::Outbox, FINISH_TIMEOUT).await?;
        }
        self.abort_uploads(bucket).await
    }

    /// Aborts all uploads of a bucket.
    async fn abort_uploads(self: &Arc<Gateway>, bucket: &Bucket) -> Result<()> {
        loop {
            let (found, _) = self.uploads.list(bucket, "", None, PAGE).await?;
            if found.is_empty() {
                return Ok(());
            }
            for (key, id, _) in &found {
                match self.writer.abort_upload(bucket, key, id).await {
                    // The upload is listed but does not exist: an attempt to abort it was interrupted.
                    Err(Error::NoSuchUpload) => self.uploads.remove_entry(bucket, key, id).await?,
                    ended => ended?,
                }
            }
        }
    }

    /// Removes all objects of a bucket without writers, in all versions, and all its uploads. Fails if object lock protects
    /// a version, which stays.
    pub async fn purge_bucket(self: &Arc<Gateway>, name: &str) -> Result<()> {
        let bucket = Arc::new(self.bucket(name).await?);
        let query = ListQuery { max: PAGE, markers: true, ..ListQuery::default() };
        loop {
            let found = self.index.list_versions(&bucket, &query, None).await?;
            if found.versions.is_empty() {
                break;
            }
            for listed in &found.versions {
                let cause = self.notifications.administration_cause();
                if bucket.versioning == Versioning::Off {
                    let (key, events) = ((&*listed.key, ""), (&cause, RemovalEventTypes::REQUEST));
                    self.writer.remove_object(&bucket, key, WriteCondition::None, events).await?;
                    continue;
                }
                let may = |head: &Head, _| head.check_lock(true);
                let version = (&*listed.key, listed.head.version_id());
                let events = (&cause, RemovalEventTypes::REQUEST.removed);
                self.writer.remove_version(&bucket, version, events, may).await?;
            }
        }
        self.abort_uploads(&bucket).await
    }
}
