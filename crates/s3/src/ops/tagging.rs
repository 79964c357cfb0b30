//! Tags of objects.

use super::access::{Requester, bucket_of};
use super::object::version_of;
use super::{S3Api, answer};
use nacre_rgw::object::Head;
use nacre_topics::event::EventType;
#[allow(clippy::wildcard_imports, reason = "S3's structures, all by their own names")]
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result, s3_error};

/// The most tags of an object, and the longest key and value of a tag, in characters.
pub(super) const MAX_OBJECT_TAGS: usize = 10;
const MAX_TAG_KEY_CHARS: usize = 128;
const MAX_TAG_VALUE_CHARS: usize = 256;

/// Checks tags by S3's rules and returns them sorted.
pub(super) fn check_tags(tags: Vec<Tag>, max: usize) -> S3Result<Vec<(String, String)>> {
    if tags.len() > max {
        return Err(s3_error!(InvalidTag, "no more than {max} tags"));
    }
    let mut checked: Vec<(String, String)> = Vec::with_capacity(tags.len());
    for tag in tags {
        let (key, value) = (tag.key.unwrap_or_default(), tag.value.unwrap_or_default());
        let sound = !key.is_empty()
            && key.chars().count() <= MAX_TAG_KEY_CHARS
            && value.chars().count() <= MAX_TAG_VALUE_CHARS
            && checked.iter().all(|(known, _)| *known != key);
        if !sound {
            return Err(s3_error!(InvalidTag, "the tag '{key}' is empty, too long or there twice"));
        }
        checked.push((key, value));
    }
    checked.sort_unstable();
    Ok(checked)
}

/// Parses the value of the header `x-amz-tagging`.
pub(super) fn tags_of_header(header: Option<&str>) -> S3Result<Vec<(String, String)>> {
    let Some(header) = header else { return Ok(Vec::new()) };
    let decode = |text: &str| {
        let text = text.replace('+', " ");
        urlencoding::decode(&text).map(|text| text.into_owned()).map_err(|_| s3_error!(InvalidTag))
    };
    let mut tags = Vec::new();
    for pair in header.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        tags.push(Tag { key: Some(decode(key)?), value: Some(decode(value)?) });
    }
    check_tags(tags, MAX_OBJECT_TAGS)
}

impl S3Api {
    pub(super) async fn do_get_object_tagging(
        &self,
        req: S3Request<GetObjectTaggingInput>,
    ) -> S3Result<S3Response<GetObjectTaggingOutput>> {
        let (requester, bucket) = (Requester::from_request(&req), bucket_of(&req)?);
        let (key, version) = (&req.input.key, req.input.version_id.as_deref());
        let head = self.head_of_owner(&requester, &bucket, key, version).await?;
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
        self.head_of_owner(&requester, &bucket, key, version).await?;
        let change = |head: &mut Head| {
            head.tags.clone_from(&tags);
            Ok(())
        };
        let events = (&self.cause(&req), &[EventType::ObjectTaggingPut][..]);
        let head = self.gateway.modify_version(&bucket, (key, version), events, change).await?;
        answer(PutObjectTaggingOutput { version_id: version_of(&bucket, &head) })
    }

    pub(super) async fn do_delete_object_tagging(
        &self,
        req: S3Request<DeleteObjectTaggingInput>,
    ) -> S3Result<S3Response<DeleteObjectTaggingOutput>> {
        let (requester, bucket) = (Requester::from_request(&req), bucket_of(&req)?);
        let (key, version) = (&req.input.key, req.input.version_id.as_deref());
        self.head_of_owner(&requester, &bucket, key, version).await?;
        let change = |head: &mut Head| {
            head.tags.clear();
            Ok(())
        };
        let events = (&self.cause(&req), &[EventType::ObjectTaggingDelete][..]);
        let head = self.gateway.modify_version(&bucket, (key, version), events, change).await?;
        let version_id = version_of(&bucket, &head);
        let mut response = S3Response::new(DeleteObjectTaggingOutput { version_id });
        response.status = Some(http::StatusCode::NO_CONTENT);
        Ok(response)
    }
}
