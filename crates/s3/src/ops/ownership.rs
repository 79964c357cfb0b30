//! Operations on a bucket's public access block and ownership controls.

use super::access::bucket_of;
use super::{S3Api, answer};
use nacre_rgw::bucket::{OWNERSHIP, PUBLIC_ACCESS};
use nacre_rgw::error::Error;
use nacre_rgw::public_access::{Ownership, PublicAccessBlock};
#[allow(clippy::wildcard_imports, reason = "S3's structures, all by their own names")]
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};

/// Returns the object ownership with the given name.
pub(super) fn ownership_of(name: &ObjectOwnership) -> S3Result<Ownership> {
    let known = Ownership::named(name.as_str());
    known.ok_or_else(|| s3_error!(InvalidArgument, "unknown object ownership {}", name.as_str()))
}

fn no_block() -> S3Error {
    let mut error = S3Error::with_message(
        S3ErrorCode::Custom("NoSuchPublicAccessBlockConfiguration".into()),
        "The public access block configuration was not found",
    );
    error.set_status_code(http::StatusCode::NOT_FOUND);
    error
}

fn document<T: serde::Serialize>(value: &T) -> S3Result<String> {
    serde_json::to_string(value).map_err(|error| s3_error!(error, InternalError))
}

impl S3Api {
    pub(super) async fn do_get_public_access_block(
        &self,
        req: S3Request<GetPublicAccessBlockInput>,
    ) -> S3Result<S3Response<GetPublicAccessBlockOutput>> {
        let bucket = bucket_of(&req)?;
        if !bucket.documents.contains_key(PUBLIC_ACCESS) {
            return Err(no_block());
        }
        let block = bucket.public_access;
        let public_access_block_configuration = Some(PublicAccessBlockConfiguration {
            block_public_acls: Some(block.block_public_acls),
            ignore_public_acls: Some(block.ignore_public_acls),
            block_public_policy: Some(block.block_public_policy),
            restrict_public_buckets: Some(block.restrict_public_buckets),
        });
        answer(GetPublicAccessBlockOutput { public_access_block_configuration })
    }

    pub(super) async fn do_put_public_access_block(
        &self,
        req: S3Request<PutPublicAccessBlockInput>,
    ) -> S3Result<S3Response<PutPublicAccessBlockOutput>> {
        let said = &req.input.public_access_block_configuration;
        let block = PublicAccessBlock {
            block_public_acls: said.block_public_acls.unwrap_or(false),
            ignore_public_acls: said.ignore_public_acls.unwrap_or(false),
            block_public_policy: said.block_public_policy.unwrap_or(false),
            restrict_public_buckets: said.restrict_public_buckets.unwrap_or(false),
        };
        self.set_bucket_document(&req.input.bucket, PUBLIC_ACCESS, Some(document(&block)?)).await?;
        answer(PutPublicAccessBlockOutput::default())
    }

    pub(super) async fn do_delete_public_access_block(
        &self,
        req: S3Request<DeletePublicAccessBlockInput>,
    ) -> S3Result<S3Response<DeletePublicAccessBlockOutput>> {
        self.set_bucket_document(&req.input.bucket, PUBLIC_ACCESS, None).await?;
        answer(DeletePublicAccessBlockOutput::default())
    }

    pub(super) async fn do_get_bucket_ownership_controls(
        &self,
        req: S3Request<GetBucketOwnershipControlsInput>,
    ) -> S3Result<S3Response<GetBucketOwnershipControlsOutput>> {
        let bucket = bucket_of(&req)?;
        if !bucket.documents.contains_key(OWNERSHIP) {
            return Err(s3_error!(
                OwnershipControlsNotFoundError,
                "The bucket ownership controls were not found"
            ));
        }
        let object_ownership = ObjectOwnership::from_static(bucket.ownership.name());
        let rules = vec![OwnershipControlsRule { object_ownership }];
        answer(GetBucketOwnershipControlsOutput { ownership_controls: Some(OwnershipControls { rules }) })
    }

    pub(super) async fn do_put_bucket_ownership_controls(
        &self,
        req: S3Request<PutBucketOwnershipControlsInput>,
    ) -> S3Result<S3Response<PutBucketOwnershipControlsOutput>> {
        let [rule] = &req.input.ownership_controls.rules[..] else {
            return Err(s3_error!(MalformedXML, "ownership controls have one rule"));
        };
        let ownership = ownership_of(&rule.object_ownership)?;
        let text = document(&ownership)?;
        self.gateway
            .buckets
            .modify(&req.input.bucket, |bucket| {
                // Users with grants in the ACL would lose access without notice.
                if ownership == Ownership::BucketOwnerEnforced && !bucket.acl.is_private(&bucket.owner) {
                    return Err(Error::AclWithOwnership(bucket.name.clone()));
                }
                bucket.documents.insert(OWNERSHIP.to_owned(), text.clone());
                Ok(())
            })
            .await?;
        answer(PutBucketOwnershipControlsOutput::default())
    }

    pub(super) async fn do_delete_bucket_ownership_controls(
        &self,
        req: S3Request<DeleteBucketOwnershipControlsInput>,
    ) -> S3Result<S3Response<DeleteBucketOwnershipControlsOutput>> {
        self.set_bucket_document(&req.input.bucket, OWNERSHIP, None).await?;
        answer(DeleteBucketOwnershipControlsOutput::default())
    }
}
