//! Operations on buckets.

use super::access::{Requester, bucket_of};
use super::{Protocol, answer, timestamp};
use crate::bucket::Versioning;
#[allow(clippy::wildcard_imports, reason = "S3's structures, all by their own names")]
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result, s3_error};

/// Buckets listed where no number is named.
const DEFAULT_MAX_BUCKETS: i32 = 10_000;
/// The most tags of a bucket.
const MAX_BUCKET_TAGS: usize = 50;

/// The region that has no name in answers.
const NAMELESS_REGION: &str = "us-east-1";

impl Protocol {
    pub(super) async fn do_list_buckets(
        &self,
        req: S3Request<ListBucketsInput>,
    ) -> S3Result<S3Response<ListBucketsOutput>> {
        let requester = Requester::of(&req);
        let user = requester.user()?;
        let max = req.input.max_buckets.unwrap_or(DEFAULT_MAX_BUCKETS).clamp(1, DEFAULT_MAX_BUCKETS) as usize;
        let prefix = req.input.prefix.clone().unwrap_or_default();
        let after = req.input.continuation_token.unwrap_or_default();
        let mut found = self.gateway.buckets_of(&user.id, &after, u64::MAX).await?;
        found.retain(|(name, _)| name.starts_with(&prefix));
        let more = found.len() > max;
        found.truncate(max);
        let next = found.last().filter(|_| more).map(|(name, _)| name.clone());
        let bucket = |(name, own): (String, crate::bucket::OwnBucket)| Bucket {
            name: Some(name),
            creation_date: Some(timestamp(own.created_ns)),
            ..Bucket::default()
        };
        answer(ListBucketsOutput {
            buckets: Some(found.into_iter().map(bucket).collect()),
            owner: Some(Owner { id: Some(user.id.clone()), display_name: Some(user.display_name.clone()) }),
            continuation_token: next,
            prefix: req.input.prefix,
        })
    }

    pub(super) async fn do_create_bucket(
        &self,
        req: S3Request<CreateBucketInput>,
    ) -> S3Result<S3Response<CreateBucketOutput>> {
        let requester = Requester::of(&req);
        let (owner, name) = (&requester.user()?.id, &req.input.bucket);
        let acl = super::acl::of_headers(&self.gateway, &req.headers, owner, owner).await?;
        match self.gateway.create_bucket(name, owner, acl).await {
            // As in us-east-1, and as radosgw does: who has it already gets it.
            Ok(_) | Err(crate::Error::BucketIsYours(_)) => {}
            Err(error) => return Err(error.into()),
        }
        answer(CreateBucketOutput { location: Some(format!("/{name}")) })
    }

    pub(super) async fn do_head_bucket(
        &self,
        req: S3Request<HeadBucketInput>,
    ) -> S3Result<S3Response<HeadBucketOutput>> {
        bucket_of(&req)?;
        let bucket_region = Some(self.gateway.config.region.clone());
        answer(HeadBucketOutput { bucket_region, ..HeadBucketOutput::default() })
    }

    pub(super) async fn do_delete_bucket(
        &self,
        req: S3Request<DeleteBucketInput>,
    ) -> S3Result<S3Response<DeleteBucketOutput>> {
        self.gateway.remove_bucket(&req.input.bucket).await?;
        answer(DeleteBucketOutput::default())
    }

    pub(super) async fn do_get_bucket_location(
        &self,
        _req: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        let region = self.gateway.config.region.clone();
        let location_constraint = (region != NAMELESS_REGION).then(|| BucketLocationConstraint::from(region));
        answer(GetBucketLocationOutput { location_constraint })
    }

    pub(super) async fn do_get_bucket_versioning(
        &self,
        req: S3Request<GetBucketVersioningInput>,
    ) -> S3Result<S3Response<GetBucketVersioningOutput>> {
        let status = match bucket_of(&req)?.versioning {
            Versioning::Off => None,
            Versioning::Enabled => Some(BucketVersioningStatus::ENABLED),
            Versioning::Suspended => Some(BucketVersioningStatus::SUSPENDED),
        };
        let status = status.map(BucketVersioningStatus::from_static);
        answer(GetBucketVersioningOutput { status, ..GetBucketVersioningOutput::default() })
    }

    pub(super) async fn do_get_bucket_tagging(
        &self,
        req: S3Request<GetBucketTaggingInput>,
    ) -> S3Result<S3Response<GetBucketTaggingOutput>> {
        let tags = bucket_of(&req)?.tags.clone();
        if tags.is_empty() {
            return Err(s3_error!(NoSuchTagSet));
        }
        let tag_set =
            tags.into_iter().map(|(key, value)| Tag { key: Some(key), value: Some(value) }).collect();
        answer(GetBucketTaggingOutput { tag_set })
    }

    pub(super) async fn do_put_bucket_tagging(
        &self,
        req: S3Request<PutBucketTaggingInput>,
    ) -> S3Result<S3Response<PutBucketTaggingOutput>> {
        let tags = super::object::check_tags(req.input.tagging.tag_set, MAX_BUCKET_TAGS)?;
        self.gateway
            .modify_bucket(&req.input.bucket, |bucket| {
                bucket.tags.clone_from(&tags);
                Ok(())
            })
            .await?;
        answer(PutBucketTaggingOutput::default())
    }

    pub(super) async fn do_delete_bucket_tagging(
        &self,
        req: S3Request<DeleteBucketTaggingInput>,
    ) -> S3Result<S3Response<DeleteBucketTaggingOutput>> {
        let clear = |bucket: &mut crate::bucket::Bucket| {
            bucket.tags.clear();
            Ok(())
        };
        self.gateway.modify_bucket(&req.input.bucket, clear).await?;
        answer(DeleteBucketTaggingOutput::default())
    }
}
