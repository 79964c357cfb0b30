//! Operations on buckets.

use super::access::{Requester, bucket_of};
use super::{S3Api, answer, timestamp};
use crate::conditions::is_known_key;
use crate::cors;
use futures::{StreamExt, future, stream};
use http::HeaderValue;
use nacre_rgw::bucket::{
    CORS, EMPTY_OBJECT_LOCK, LIFECYCLE, OBJECT_LOCK, OWNERSHIP, POLICY, PUBLIC_ACCESS, WEBSITE,
};
use nacre_rgw::policy::Policy;
use nacre_rgw::public_access::{Ownership, PublicAccessBlock};
#[allow(clippy::wildcard_imports, reason = "S3's structures, all by their own names")]
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result, s3_error};
use std::collections::BTreeMap;

/// The most buckets in one answer, and the default.
const DEFAULT_MAX_BUCKETS: i32 = 10_000;
/// The most tags of a bucket.
const MAX_BUCKET_TAGS: usize = 50;

/// The region whose name answers omit.
const NAMELESS_REGION: &str = "us-east-1";

/// Refuses a document that exceeds its size limit. All documents of a bucket are in one record.
fn check_document(name: &str, text: &str) -> S3Result<()> {
    let most = match name {
        POLICY => 20 << 10,
        CORS => 64 << 10,
        WEBSITE => 128 << 10,
        LIFECYCLE => 1 << 20,
        _ => 16 << 10,
    };
    if text.len() > most {
        return Err(s3_error!(EntityTooLarge, "the bucket's {name} is larger than {most} bytes"));
    }
    Ok(())
}

/// The parameter that asks HeadBucket for the number and size of the bucket's objects, however many shards the bucket has.
const READ_STATS: &str = "read-stats";
/// The most shards of a bucket for which HeadBucket reports them without this parameter.
const SUMMED: u32 = 16;
/// Number of buckets of a list that are looked up concurrently.
const CHECKED_BUCKETS: usize = 16;

impl S3Api {
    pub(super) async fn do_list_buckets(
        &self,
        req: S3Request<ListBucketsInput>,
    ) -> S3Result<S3Response<ListBucketsOutput>> {
        let requester = Requester::from_request(&req);
        let user = requester.user()?;
        let max = req.input.max_buckets.unwrap_or(DEFAULT_MAX_BUCKETS).clamp(1, DEFAULT_MAX_BUCKETS) as usize;
        let prefix = req.input.prefix.clone().unwrap_or_default();
        let after = req.input.continuation_token.unwrap_or_default();
        let mut found = self.gateway.users.buckets.list(&user.id, &after, u64::MAX).await?;
        found.retain(|(name, _)| name.starts_with(&prefix));
        let more = found.len() > max;
        found.truncate(max);
        let next = found.last().filter(|_| more).map(|(name, _)| name.clone());
        let bucket = |(name, own): (String, nacre_rgw::UserBucketEntry)| Bucket {
            name: Some(name),
            creation_date: Some(timestamp(own.created_ns)),
            ..Bucket::default()
        };
        // An entry is written before its bucket is created and removed after its bucket, so a crash may leave it without a bucket.
        let checked = stream::iter(found).map(|entry| async move {
            match self.gateway.cached_bucket(&entry.0).await {
                Ok(bucket) => (bucket.owner == user.id).then_some(entry),
                Err(nacre_rgw::Error::NoSuchBucket(_)) => None,
                Err(_) => Some(entry),
            }
        });
        let found: Vec<_> = checked.buffered(CHECKED_BUCKETS).filter_map(future::ready).collect().await;
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
        let requester = Requester::from_request(&req);
        let (owner, name) = (&requester.user()?.id, &req.input.bucket);
        if name.contains(".-") || name.contains("-.") {
            return Err(s3_error!(InvalidBucketName));
        }
        let acl = super::acl::acl_from_headers(&self.gateway, &req.headers, owner, owner).await?;
        let mut documents = BTreeMap::new();
        if let Some(said) = &req.input.object_ownership {
            let ownership = super::ownership::ownership_of(said)?;
            if ownership == Ownership::BucketOwnerEnforced && !acl.is_private(owner) {
                return Err(nacre_rgw::Error::AclWithOwnership(name.clone()).into());
            }
            documents.insert(OWNERSHIP.to_owned(), format!("\"{}\"", ownership.name()));
        }
        if req.input.object_lock_enabled_for_bucket.unwrap_or(false) {
            documents.insert(OBJECT_LOCK.to_owned(), EMPTY_OBJECT_LOCK.to_owned());
        }
        match self.gateway.create_bucket(name, owner, acl.clone(), documents).await {
            Ok(_) => {}
            // As in us-east-1 and in radosgw, creating a bucket that the requester owns already succeeds if its ACL is the
            // same.
            Err(nacre_rgw::Error::BucketAlreadyOwned(_))
                if self.gateway.cached_bucket(name).await?.acl == acl => {}
            Err(nacre_rgw::Error::BucketAlreadyOwned(_)) => return Err(s3_error!(BucketAlreadyExists)),
            Err(error) => return Err(error.into()),
        }
        answer(CreateBucketOutput { location: Some(format!("/{name}")) })
    }

    pub(super) async fn do_head_bucket(
        &self,
        req: S3Request<HeadBucketInput>,
    ) -> S3Result<S3Response<HeadBucketOutput>> {
        let (requester, bucket) = (Requester::from_request(&req), bucket_of(&req)?);
        let bucket_region = Some(self.gateway.config.region.clone());
        let mut response = S3Response::new(HeadBucketOutput { bucket_region, ..HeadBucketOutput::default() });
        let mut say = |name: &'static str, number: HeaderValue| drop(response.headers.insert(name, number));
        // Older releases of radosgw always report the contents, newer ones on request. If they can't be summed up, for
        // example while the bucket's index moves, the answer omits them.
        let is_asked =
            req.uri.query().is_some_and(|query| query.split('&').any(|pair| pair.starts_with(READ_STATS)));
        if is_asked || bucket.shards <= SUMMED {
            match self.gateway.shards.usage(&bucket).await {
                Ok((objects, bytes)) => {
                    say("x-rgw-object-count", objects.into());
                    say("x-rgw-bytes-used", bytes.into());
                }
                Err(error) => tracing::debug!(%error, bucket = bucket.name, "rgw: a bucket is not summed up"),
            }
        }
        if requester.acl_user() == Some(&bucket.owner) {
            let user = requester.user()?;
            let of_bucket = bucket.quota.unwrap_or_default();
            say("x-rgw-quota-user-size", user.user_quota.max_size.into());
            say("x-rgw-quota-user-objects", user.user_quota.max_objects.into());
            say("x-rgw-quota-max-buckets", user.max_buckets.into());
            say("x-rgw-quota-bucket-size", of_bucket.max_size.into());
            say("x-rgw-quota-bucket-objects", of_bucket.max_objects.into());
        }
        Ok(response)
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
        let tags = crate::tags::check_tags(req.input.tagging.tag_set, MAX_BUCKET_TAGS)?;
        self.gateway
            .buckets
            .modify(&req.input.bucket, |bucket| {
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
        let clear = |bucket: &mut nacre_rgw::bucket::Bucket| {
            bucket.tags.clear();
            Ok(())
        };
        self.gateway.buckets.modify(&req.input.bucket, clear).await?;
        answer(DeleteBucketTaggingOutput::default())
    }

    pub(super) async fn do_get_bucket_policy(
        &self,
        req: S3Request<GetBucketPolicyInput>,
    ) -> S3Result<S3Response<GetBucketPolicyOutput>> {
        let bucket = bucket_of(&req)?;
        let policy = bucket.documents.get(POLICY).cloned();
        let policy =
            policy.ok_or_else(|| s3_error!(NoSuchBucketPolicy, "The bucket policy does not exist"))?;
        answer(GetBucketPolicyOutput { policy: Some(policy) })
    }

    pub(super) async fn do_get_bucket_policy_status(
        &self,
        req: S3Request<GetBucketPolicyStatusInput>,
    ) -> S3Result<S3Response<GetBucketPolicyStatusOutput>> {
        let bucket = bucket_of(&req)?;
        // As in radosgw, a public ACL counts too, and a bucket without a policy has a status.
        let by_policy = bucket.policy.as_ref().is_some_and(|policy| policy.is_public());
        let policy_status = Some(PolicyStatus { is_public: Some(by_policy || bucket.acl.is_public()) });
        answer(GetBucketPolicyStatusOutput { policy_status })
    }

    pub(super) async fn do_put_bucket_policy(
        &self,
        req: S3Request<PutBucketPolicyInput>,
    ) -> S3Result<S3Response<PutBucketPolicyOutput>> {
        let input = req.input;
        check_document(POLICY, &input.policy)?;
        let malformed = |text: String| s3_error!(MalformedPolicy, "{text}");
        let policy = Policy::read(&input.policy, &input.bucket).map_err(malformed)?;
        // A policy with a condition on an unsupported key would protect less than it says.
        if let Some(key) = policy.condition_keys().find(|key| !is_known_key(key)) {
            return Err(malformed(format!("conditions can't ask for {key}")));
        }
        self.gateway
            .buckets
            .modify(&input.bucket, |bucket| {
                let block: PublicAccessBlock = bucket.document(PUBLIC_ACCESS)?;
                if block.block_public_policy && policy.is_public() {
                    return Err(nacre_rgw::Error::Denied(
                        "the bucket's public access block refuses public policies",
                    ));
                }
                bucket.documents.insert(POLICY.to_owned(), input.policy.clone());
                Ok(())
            })
            .await?;
        let mut response = S3Response::new(PutBucketPolicyOutput::default());
        response.status = Some(http::StatusCode::NO_CONTENT);
        Ok(response)
    }

    pub(super) async fn do_delete_bucket_policy(
        &self,
        req: S3Request<DeleteBucketPolicyInput>,
    ) -> S3Result<S3Response<DeleteBucketPolicyOutput>> {
        self.set_bucket_document(&req.input.bucket, POLICY, None).await?;
        answer(DeleteBucketPolicyOutput::default())
    }

    pub(super) async fn do_get_bucket_cors(
        &self,
        req: S3Request<GetBucketCorsInput>,
    ) -> S3Result<S3Response<GetBucketCorsOutput>> {
        let bucket = bucket_of(&req)?;
        let cors = bucket.cors.as_ref();
        let cors =
            cors.ok_or_else(|| s3_error!(NoSuchCORSConfiguration, "The CORS configuration does not exist"))?;
        answer(GetBucketCorsOutput { cors_rules: Some(cors.cors_rules.clone()) })
    }

    pub(super) async fn do_put_bucket_cors(
        &self,
        req: S3Request<PutBucketCorsInput>,
    ) -> S3Result<S3Response<PutBucketCorsOutput>> {
        let rules = &req.input.cors_configuration.cors_rules;
        if rules.is_empty() || rules.len() > cors::MAX_RULES {
            return Err(s3_error!(MalformedXML, "between 1 and {} rules", cors::MAX_RULES));
        }
        for rule in rules {
            cors::check(rule).map_err(|text| s3_error!(InvalidRequest, "{text}"))?;
        }
        let text = serde_json::to_string(&req.input.cors_configuration);
        let text = text.map_err(|error| s3_error!(error, InternalError))?;
        self.set_bucket_document(&req.input.bucket, CORS, Some(text)).await?;
        answer(PutBucketCorsOutput::default())
    }

    pub(super) async fn do_delete_bucket_cors(
        &self,
        req: S3Request<DeleteBucketCorsInput>,
    ) -> S3Result<S3Response<DeleteBucketCorsOutput>> {
        self.set_bucket_document(&req.input.bucket, CORS, None).await?;
        answer(DeleteBucketCorsOutput::default())
    }

    pub(super) async fn set_bucket_document(
        &self,
        bucket: &str,
        name: &str,
        text: Option<String>,
    ) -> S3Result<()> {
        if let Some(text) = &text {
            check_document(name, text)?;
        }
        let change = |bucket: &mut nacre_rgw::bucket::Bucket| {
            match &text {
                Some(text) => drop(bucket.documents.insert(name.to_owned(), text.clone())),
                None => drop(bucket.documents.remove(name)),
            }
            Ok(())
        };
        self.gateway.buckets.modify(bucket, change).await?;
        Ok(())
    }
}
