//! Configurations of buckets that S3 has and this gateway lacks. Requests are answered as S3 answers for a bucket that does
//! not use the feature.

use super::access::bucket_of;
use super::{S3Api, answer};
#[allow(clippy::wildcard_imports, reason = "S3's structures, all by their own names")]
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result, s3_error};

impl S3Api {
    pub(super) async fn do_get_bucket_accelerate_configuration(
        &self,
        req: S3Request<GetBucketAccelerateConfigurationInput>,
    ) -> S3Result<S3Response<GetBucketAccelerateConfigurationOutput>> {
        bucket_of(&req)?;
        answer(GetBucketAccelerateConfigurationOutput::default())
    }

    pub(super) async fn do_get_bucket_logging(
        &self,
        req: S3Request<GetBucketLoggingInput>,
    ) -> S3Result<S3Response<GetBucketLoggingOutput>> {
        bucket_of(&req)?;
        answer(GetBucketLoggingOutput::default())
    }

    pub(super) async fn do_put_bucket_logging(
        &self,
        req: S3Request<PutBucketLoggingInput>,
    ) -> S3Result<S3Response<PutBucketLoggingOutput>> {
        bucket_of(&req)?;
        match req.input.bucket_logging_status.logging_enabled {
            // Disabling logging succeeds, since it is never enabled.
            None => answer(PutBucketLoggingOutput::default()),
            Some(_) => Err(s3_error!(
                NotImplemented,
                "requests are not logged into buckets; the gateway's own log is rgw_ops_log_file_path"
            )),
        }
    }

    pub(super) async fn do_get_bucket_replication(
        &self,
        req: S3Request<GetBucketReplicationInput>,
    ) -> S3Result<S3Response<GetBucketReplicationOutput>> {
        bucket_of(&req)?;
        Err(s3_error!(ReplicationConfigurationNotFoundError, "The replication configuration was not found"))
    }

    pub(super) async fn do_get_bucket_request_payment(
        &self,
        req: S3Request<GetBucketRequestPaymentInput>,
    ) -> S3Result<S3Response<GetBucketRequestPaymentOutput>> {
        bucket_of(&req)?;
        answer(GetBucketRequestPaymentOutput { payer: Some(Payer::from_static(Payer::BUCKET_OWNER)) })
    }

    pub(super) async fn do_put_bucket_request_payment(
        &self,
        req: S3Request<PutBucketRequestPaymentInput>,
    ) -> S3Result<S3Response<PutBucketRequestPaymentOutput>> {
        bucket_of(&req)?;
        match req.input.request_payment_configuration.payer.as_str() {
            Payer::BUCKET_OWNER => answer(PutBucketRequestPaymentOutput::default()),
            Payer::REQUESTER => Err(s3_error!(NotImplemented, "requests are not paid for here")),
            _ => Err(s3_error!(MalformedXML)),
        }
    }
}
