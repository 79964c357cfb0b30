//! Tags of objects.

use super::access::{Requester, bucket_of};
use super::object::version_of;
use super::{S3Api, answer};
use crate::tags::{MAX_OBJECT_TAGS, check_tags};
use nacre_rgw::stored::Head;
use nacre_topics::event::EventType;
#[allow(clippy::wildcard_imports, reason = "S3's structures, all by their own names")]
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result};

impl S3Api {
    pub(super) async fn do_get_object_tagging(
        &self,
        req: S3Request<GetObjectTaggingInput>,
    ) -> S3Result<S3Response<GetObjectTaggingOutput>> {
        let (requester, bucket) = (Requester::from_request(&req), bucket_of(&req)?);
        let (key, version) = (&req.input.key, req.input.version_id.as_deref());
        let head = self.head_if_owner(&requester, &bucket, key, version).await?;
        let version_id = version_of(&bucket, &head);
        let tag = |(key, value)| Tag { key: Some(key), value: Some(value) };
        answer(GetObjectTaggingOutput { tag_set: head.tags.into_iter().map(tag).collect(), version_id })
    }

    pub(super) async fn do_put_object_tagging(
        &self,
        req: S3Request<PutObjectTaggingInput>,
    ) -> S3Result<S3Response<PutObjectTaggingOutput>> {
        let (requester, bucket) = (Requester::from_request(&req), bucket_of(&req)?);
        let (key, version) = (&req.input.key, req.input.version_id.as_deref());
        let tags = check_tags(req.input.tagging.tag_set.clone(), MAX_OBJECT_TAGS)?;
        let requester = requester.evaluate_tagging(&bucket, (key, version), &tags)?;
        self.head_if_owner(&requester, &bucket, key, version).await?;
        let change = |head: &mut Head| {
            head.tags.clone_from(&tags);
            Ok(())
        };
        let events = (&self.cause(&req), &[EventType::ObjectTaggingPut][..]);
        let head = self.gateway.writer.modify_version(&bucket, (key, version), events, change).await?;
        answer(PutObjectTaggingOutput { version_id: version_of(&bucket, &head) })
    }

    pub(super) async fn do_delete_object_tagging(
        &self,
        req: S3Request<DeleteObjectTaggingInput>,
    ) -> S3Result<S3Response<DeleteObjectTaggingOutput>> {
        let (requester, bucket) = (Requester::from_request(&req), bucket_of(&req)?);
        let (key, version) = (&req.input.key, req.input.version_id.as_deref());
        self.head_if_owner(&requester, &bucket, key, version).await?;
        let change = |head: &mut Head| {
            head.tags.clear();
            Ok(())
        };
        let events = (&self.cause(&req), &[EventType::ObjectTaggingDelete][..]);
        let head = self.gateway.writer.modify_version(&bucket, (key, version), events, change).await?;
        let version_id = version_of(&bucket, &head);
        let mut response = S3Response::new(DeleteObjectTaggingOutput { version_id });
        response.status = Some(http::StatusCode::NO_CONTENT);
        Ok(response)
    }
}
