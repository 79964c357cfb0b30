//! Operations that remove objects and their versions.

use super::access::{Requester, bucket_of};
use super::object::parse_write_condition;
use super::{S3Api, answer, timestamp};
use futures::stream::{self, StreamExt};
use nacre_rgw::bucket::Bucket;
use nacre_rgw::notifications::Cause;
use nacre_rgw::object::{RemovalEventTypes, WriteCondition};
use nacre_rgw::stored::Head;
#[allow(clippy::wildcard_imports, reason = "S3's structures, all by their own names")]
use s3s::dto::*;
use s3s::{S3Error, S3Request, S3Response, S3Result, s3_error};
use std::sync::Arc;
use time::OffsetDateTime;

/// The most objects in one DeleteObjects request.
const MAX_DELETES: usize = 1000;
/// How many objects of one DeleteObjects request are removed concurrently.
const DELETES: usize = 16;

/// The result of a removal, in S3's terms.
#[derive(Default)]
struct Removed {
    /// Whether a delete marker was created or removed.
    marker: bool,
    /// The id of the delete marker that was created, or of the version that was removed.
    version: Option<String>,
}

/// The conditions of a removal on the current object.
struct Wanted {
    condition: WriteCondition,
    size: Option<i64>,
    mtime: Option<Timestamp>,
}

impl Wanted {
    fn check(&self, head: &Head) -> nacre_rgw::Result<()> {
        let is_etag = match &self.condition {
            WriteCondition::Etag(etag) => *etag == head.etag,
            _ => true,
        };
        let is_size = self.size.is_none_or(|size| u64::try_from(size) == Ok(head.size));
        // Times in requests are whole seconds.
        let second = |time: &Timestamp| OffsetDateTime::from(time.clone()).unix_timestamp();
        let is_mtime =
            self.mtime.as_ref().is_none_or(|mtime| second(mtime) == second(&timestamp(head.mtime_ns)));
        if is_etag && is_size && is_mtime { Ok(()) } else { Err(nacre_rgw::Error::Precondition("If-Match")) }
    }
}

impl S3Api {
    /// Removes an object, or the version if one is named.
    async fn remove(
        &self,
        requester: &Requester,
        bucket: &Arc<Bucket>,
        (key, version): (&str, Option<&str>),
        (wanted, bypass): (Wanted, bool),
        cause: &Cause,
    ) -> S3Result<Removed> {
        let Some(version) = version else {
            let condition = match wanted {
                Wanted { size: None, mtime: None, condition } => condition,
                // The object that was checked must not change before it is removed.
                wanted => match self.gateway.objects.head(&bucket.id, key).await? {
                    Some((head, mark)) if !head.marker => {
                        wanted.check(&head)?;
                        WriteCondition::Unchanged(mark)
                    }
                    _ => return Err(nacre_rgw::Error::NoSuchKey.into()),
                },
            };
            // Removing an object that does not exist succeeds.
            let events = (cause, RemovalEventTypes::REQUEST);
            let removal =
                self.gateway.writer.remove_object(bucket, (key, requester.id()), condition, events).await?;
            return Ok(Removed { marker: removal.marker.is_some(), version: removal.marker });
        };
        let bypass = bypass && requester.may_bypass_governance(bucket, key)?;
        let may = move |head: &Head, _| {
            wanted.check(head)?;
            head.check_lock(bypass)
        };
        let events = (cause, RemovalEventTypes::REQUEST.removed);
        let removed = self.gateway.writer.remove_version(bucket, (key, version), events, may).await?;
        Ok(Removed { marker: removed.is_some_and(|head| head.marker), version: Some(version.to_owned()) })
    }

    pub(super) async fn do_delete_object(
        &self,
        req: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        let (requester, bucket) = (Requester::from_request(&req), bucket_of(&req)?);
        let cause = self.cause(&req);
        let input = req.input;
        let wanted = Wanted {
            condition: parse_write_condition(input.if_match.as_ref(), None)?,
            size: input.if_match_size,
            mtime: input.if_match_last_modified_time,
        };
        let bypass = input.bypass_governance_retention.unwrap_or(false);
        let what = (&*input.key, input.version_id.as_deref());
        let Removed { marker, version } =
            self.remove(&requester, &bucket, what, (wanted, bypass), &cause).await?;
        answer(DeleteObjectOutput {
            delete_marker: marker.then_some(true),
            version_id: version,
            request_charged: None,
        })
    }

    pub(super) async fn do_delete_objects(
        &self,
        req: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        let (requester, bucket) = (Requester::from_request(&req), bucket_of(&req)?);
        let cause = self.cause(&req);
        let bypass = req.input.bypass_governance_retention.unwrap_or(false);
        let Delete { objects, quiet } = req.input.delete;
        if objects.is_empty() || objects.len() > MAX_DELETES {
            return Err(s3_error!(MalformedXML, "between 1 and {MAX_DELETES} objects"));
        }
        let removals = stream::iter((0..).zip(objects)).map(|(position, object)| {
            let bucket = Arc::clone(&bucket);
            let cause = cause.nth_change(position);
            let requester = requester.clone();
            async move {
                // Evaluating costly policies takes milliseconds, and a request may need 1 000 evaluations. Yielding lets
                // other requests run.
                tokio::task::yield_now().await;
                let ObjectIdentifier { key, version_id, e_tag, size, last_modified_time: mtime } = object;
                let action = if version_id.is_some() { "s3:DeleteObjectVersion" } else { "s3:DeleteObject" };
                let named = (&*key, version_id.as_deref());
                let asking =
                    requester.with_version(named.1).with_object_tags(&self.gateway, &bucket, named).await;
                let asking = asking.and_then(|asking| asking.evaluate_action(&bucket, action, Some(&key)));
                let removed = match asking.and_then(|asking| asking.authorize_write(&bucket).map(|()| asking))
                {
                    Ok(asking) => {
                        let condition = match e_tag.map(ETag::into_value) {
                            None => WriteCondition::None,
                            Some(any) if any == "*" => WriteCondition::Present,
                            Some(etag) => WriteCondition::Etag(etag),
                        };
                        let wanted = Wanted { condition, size, mtime };
                        let version = (&*key, version_id.as_deref());
                        self.remove(&asking, &bucket, version, (wanted, bypass), &cause).await
                    }
                    Err(error) => Err(error),
                };
                (key, version_id, removed)
            }
        });
        let (mut deleted, mut errors) = (Vec::new(), Vec::new());
        let mut removals = removals.buffered(DELETES);
        while let Some((key, version_id, removed)) = removals.next().await {
            match removed {
                Ok(_) if quiet.unwrap_or(false) => {}
                Ok(Removed { marker, version }) => deleted.push(DeletedObject {
                    key: Some(key),
                    delete_marker: marker.then_some(true),
                    delete_marker_version_id: version.filter(|_| marker),
                    version_id,
                }),
                Err(error) => errors.push(refusal(key, version_id, &error)),
            }
        }
        answer(DeleteObjectsOutput {
            deleted: Some(deleted),
            errors: (!errors.is_empty()).then_some(errors),
            request_charged: None,
        })
    }
}

fn refusal(key: String, version_id: Option<String>, error: &S3Error) -> Error {
    Error {
        code: Some(error.code().as_str().to_owned()),
        key: Some(key),
        message: error.message().map(str::to_owned),
        version_id,
    }
}
