//! Operations on objects.

use super::access::{Requester, bucket_of};
use super::acl::acl_for_object;
use super::checksums::{ClientChecksum, to_s3_checksum};
use super::encryption::{
    refuse_sse_header, requested_encryption, set_decryption_secret, with_encryption_headers,
};
use super::lock::{lock_headers, requested_lock};
use super::{S3Api, timestamp};
use crate::tags::tags_of_header;
use futures::stream;
use http::HeaderMap;
use http::header::{self, HeaderName, HeaderValue};
use nacre_rgw::bucket::{Bucket, Versioning};
use nacre_rgw::error::{BodyFault, Error};
use nacre_rgw::object::multipart::MAX_PART_BYTES;
use nacre_rgw::object::{BodyStream, Digests, PutOp, WriteCondition};
use nacre_rgw::stored::{Head, ObjectReader};
use nacre_rgw::zone::DEFAULT_STORAGE_CLASS;
use nacre_topics::event::EventType;
#[allow(clippy::wildcard_imports, reason = "S3's structures, all by their own names")]
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};
use std::ops::Range as Bytes;
use std::sync::Arc;
use sync_wrapper::SyncStream;

/// The most bytes that the names and values of `x-amz-meta-` headers may have in total.
const MAX_METADATA_BYTES: usize = 2048;
/// Checks the size of the `x-amz-meta-` headers and returns them sorted.
pub(super) fn check_metadata(metadata: Option<Metadata>) -> S3Result<Vec<(String, String)>> {
    let mut all: Vec<(String, String)> = metadata.into_iter().flatten().collect();
    if all.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > MAX_METADATA_BYTES {
        return Err(s3_error!(MetadataTooLarge));
    }
    all.sort_unstable();
    Ok(all)
}

/// Returns the storage class that a request names; empty for STANDARD. Whether the class exists is checked when its pool is
/// opened.
pub(super) fn requested_class(headers: &HeaderMap) -> S3Result<String> {
    let Some(asked) = headers.get("x-amz-storage-class") else { return Ok(String::new()) };
    let class = asked.to_str().map_err(|_| Error::NoSuchStorageClass("it is no name".into()))?;
    Ok(if class == DEFAULT_STORAGE_CLASS { "" } else { class }.to_owned())
}

/// Returns the S3 name of a storage class.
pub(super) fn class_name(class: &str) -> &str {
    if class.is_empty() { DEFAULT_STORAGE_CLASS } else { class }
}

/// Returns the storage class for the answer to GET or HEAD. As in S3, STANDARD is omitted.
fn told_class(head: &Head) -> Option<StorageClass> {
    (!head.class.is_empty()).then(|| head.class.clone().into())
}

/// Returns the headers that are stored with an object and returned as they were sent. `aws-chunked` is removed from
/// `content-encoding`: it describes the transfer, not the object.
pub(super) fn stored_headers(headers: &HeaderMap) -> Vec<(String, String)> {
    const KEPT: [&str; 7] = [
        "cache-control",
        "content-disposition",
        "content-encoding",
        "content-language",
        "content-type",
        "expires",
        "x-amz-website-redirect-location",
    ];
    let mut kept = Vec::new();
    for name in KEPT {
        let Some(value) = headers.get(name).and_then(|value| std::str::from_utf8(value.as_bytes()).ok())
        else {
            continue;
        };
        let value = if name == "content-encoding" {
            let codings = value.split(',').map(str::trim).filter(|coding| *coding != "aws-chunked");
            codings.collect::<Vec<_>>().join(",")
        } else {
            value.to_owned()
        };
        if !value.is_empty() {
            kept.push((name.to_owned(), value));
        }
    }
    kept
}

/// Converts `If-Match` and `If-None-Match` of a write to a condition on the current object.
pub(super) fn parse_write_condition(
    if_match: Option<&ETagCondition>,
    if_none_match: Option<&ETagCondition>,
) -> S3Result<WriteCondition> {
    match (if_match, if_none_match) {
        (None, None) => Ok(WriteCondition::None),
        (None, Some(ETagCondition::Any)) => Ok(WriteCondition::Absent),
        (Some(ETagCondition::Any), None) => Ok(WriteCondition::Present),
        (Some(ETagCondition::ETag(etag)), None) => Ok(WriteCondition::Etag(etag.value().to_owned())),
        _ => Err(s3_error!(NotImplemented, "either If-Match or If-None-Match")),
    }
}

/// Returns a request's body, or an empty source without one.
pub(super) fn body_stream(body: Option<StreamingBlob>) -> BodyStream {
    match body {
        Some(body) => Box::pin(body),
        None => Box::pin(stream::empty()),
    }
}

/// Returns the body length that a request declares. Fails with EntityTooLarge above [`MAX_PART_BYTES`].
fn length_of(length: Option<i64>) -> S3Result<Option<u64>> {
    let length = length.map(u64::try_from).transpose().map_err(|_| s3_error!(InvalidArgument))?;
    if length.is_some_and(|length| length > MAX_PART_BYTES) {
        return Err(s3_error!(EntityTooLarge));
    }
    Ok(length)
}

/// The conditions of a read, evaluated in the order of RFC 9110.
pub(super) struct ReadConditions<'a> {
    pub(super) if_match: Option<&'a ETagCondition>,
    pub(super) if_none_match: Option<&'a ETagCondition>,
    pub(super) if_modified_since: Option<&'a Timestamp>,
    pub(super) if_unmodified_since: Option<&'a Timestamp>,
}

impl ReadConditions<'_> {
    pub(super) fn check(&self, head: &Head) -> S3Result<()> {
        let is = |condition: &ETagCondition| match condition {
            ETagCondition::Any => true,
            ETagCondition::ETag(etag) => etag.value() == head.etag,
        };
        // Times in headers are whole seconds.
        let second = |time: time::OffsetDateTime| time.unix_timestamp();
        let modified = second(timestamp(head.mtime_ns).into());
        let since = |time: &Timestamp| second(time.clone().into());
        match (self.if_match, self.if_unmodified_since) {
            (Some(condition), _) if !is(condition) => return Err(s3_error!(PreconditionFailed)),
            (None, Some(time)) if modified > since(time) => return Err(s3_error!(PreconditionFailed)),
            _ => {}
        }
        let same = match (self.if_none_match, self.if_modified_since) {
            (Some(condition), _) => is(condition),
            (None, Some(time)) => modified <= since(time),
            (None, None) => false,
        };
        if !same {
            return Ok(());
        }
        let mut error = s3_error!(NotModified);
        let mut headers = HeaderMap::new();
        if let Ok(etag) = HeaderValue::from_str(&format!("\"{}\"", head.etag)) {
            headers.insert(header::ETAG, etag);
        }
        error.set_headers(headers);
        Err(error)
    }
}

/// Returns the bytes that a range names; `None` for a suffix range, which depends on the object's size.
fn named_range(range: Option<&Range>) -> Option<Bytes<u64>> {
    match range? {
        Range::Int { first, last } => {
            let end = last.map_or(u64::MAX, |last| last.saturating_add(1));
            (*first < end).then_some(*first..end)
        }
        Range::Suffix { .. } => None,
    }
}

/// Returns the byte range of the object that a request asks for, and the value of `Content-Range` if the answer has one.
fn asked_range(
    reader: &ObjectReader,
    range: Option<&Range>,
    part: Option<i32>,
) -> S3Result<(Bytes<u64>, Option<String>)> {
    let size = reader.head.size;
    let range = match (range, part) {
        (Some(_), Some(_)) => return Err(s3_error!(InvalidRequest, "either a range or a part")),
        (None, None) => return Ok((0..size, None)),
        (Some(range), None) => range.check(size)?,
        (None, Some(part)) if reader.manifest.parts.is_empty() => {
            if part != 1 {
                return Err(no_part());
            }
            0..size
        }
        (None, Some(part)) => {
            let at = usize::try_from(part - 1).ok().filter(|at| *at < reader.manifest.parts.len());
            let at = at.ok_or_else(no_part)?;
            let begin: u64 = reader.manifest.parts[..at].iter().map(|part| part.size).sum();
            begin..begin + reader.manifest.parts[at].size
        }
    };
    let said = (range.start < range.end).then(|| format!("bytes {}-{}/{size}", range.start, range.end - 1));
    Ok((range, said))
}

/// Returns the version id for an answer; `None` if the bucket's versioning is off.
pub(super) fn version_of(bucket: &Bucket, head: &Head) -> Option<String> {
    (bucket.versioning != Versioning::Off).then(|| head.version_id().to_owned())
}

/// Returns the headers that are stored with the object, replaced where the request says so (`response-content-type`, …).
fn response_headers(head: &Head, asked: [(HeaderName, Option<String>); 6]) -> S3Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("binary/octet-stream"));
    for (name, value) in &head.headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            headers.insert(name, value);
        }
    }
    for (name, value) in asked {
        if let Some(value) = value {
            let value = HeaderValue::try_from(value);
            headers.insert(name, value.map_err(|_| s3_error!(InvalidArgument, "a header's value"))?);
        }
    }
    if !head.tags.is_empty() {
        headers.insert("x-amz-tagging-count", head.tags.len().into());
    }
    Ok(headers)
}

/// Formats the requested value of `Expires` as an HTTP date.
fn expires(asked: Option<Timestamp>) -> Option<String> {
    let mut text = Vec::new();
    asked?.format(TimestampFormat::HttpDate, &mut text).ok()?;
    String::from_utf8(text).ok()
}

fn metadata_of(head: &Head) -> Option<Metadata> {
    (!head.metadata.is_empty()).then(|| head.metadata.iter().cloned().collect())
}

/// Returns the error for a part number that the object does not have.
fn no_part() -> S3Error {
    let mut error = S3Error::with_message(
        S3ErrorCode::Custom("InvalidPartNumber".into()),
        "The requested partnumber is not satisfiable",
    );
    error.set_status_code(http::StatusCode::RANGE_NOT_SATISFIABLE);
    error
}

fn parts_count(head: &Head, part: Option<i32>) -> Option<i32> {
    match head.data {
        nacre_rgw::stored::DataLocation::Parts(count) if part.is_some() => Some(count as i32),
        _ => None,
    }
}

/// Returns the opened object if the requester may read it.
fn readable_by(
    requester: &Requester,
    (bucket, key): (&Bucket, &str),
    opened: nacre_rgw::error::Result<ObjectReader>,
) -> S3Result<ObjectReader> {
    match opened {
        // A requester that may not list the bucket must not learn which keys exist.
        Err(error @ (Error::NoSuchKey | Error::NoSuchVersion | Error::DeleteMarker { .. })) => {
            requester.authorize_list(bucket)?;
            Err(error.into())
        }
        opened => {
            let reader = opened?;
            requester.reevaluate_with_tags(bucket, key, &reader.head)?.authorize_read(&reader.head)?;
            Ok(reader)
        }
    }
}

impl S3Api {
    /// Stores an object. `types` are the types of the events that it may cause.
    pub(super) async fn do_put_object(
        &self,
        req: S3Request<PutObjectInput>,
        types: &'static [EventType],
    ) -> S3Result<S3Response<PutObjectOutput>> {
        let (requester, bucket) = (Requester::from_request(&req), bucket_of(&req)?);
        let cause = self.cause(&req);
        let sent = ClientChecksum::from_headers(
            &req.headers,
            req.trailing_headers.clone(),
            req.input.content_md5.clone(),
        )?;
        let input = req.input;
        let conditions = (input.if_match.as_ref(), input.if_none_match.as_ref());
        let condition = self.write_condition(&bucket, &input.key, conditions).await?;
        let (owner, acl) = acl_for_object(&self.gateway, &req.headers, &requester, &bucket).await?;
        let (retention, legal_hold) = requested_lock(
            &bucket,
            input.object_lock_mode.as_ref(),
            input.object_lock_retain_until_date.as_ref(),
            input.object_lock_legal_hold_status.as_ref(),
        )?;
        let encryption = requested_encryption(&self.gateway, &req.headers, &bucket).await?;
        let head = Head {
            owner,
            encryption: encryption.as_ref().map(|(encryption, _)| encryption.clone()),
            headers: stored_headers(&req.headers),
            class: requested_class(&req.headers)?,
            metadata: check_metadata(input.metadata)?,
            tags: tags_of_header(input.tagging.as_deref())?,
            acl,
            retention,
            legal_hold,
            ..Head::default()
        };
        let length = length_of(input.content_length)?;
        let mut body = sent.body(body_stream(input.body));
        if let Some((encryption, secret)) = &encryption {
            body = body.encrypted(secret.cipher(encryption));
        }
        let key = input.key.clone();
        let put = PutOp { bucket: Arc::clone(&bucket), key: input.key, head, condition, cause, types };
        let seal = |digests: Digests, head: &mut Head| {
            // A client that disconnects sends less than it declared.
            if length.is_some_and(|length| length != head.size) {
                return Err(BodyFault::Incomplete.into());
            }
            (head.etag, head.checksum) = sent.check(digests)?;
            Ok(())
        };
        let head = put.run(&self.gateway.writer, body, length, seal).await?;
        let sums = to_s3_checksum(head.checksum.as_ref());
        let output = PutObjectOutput {
            expiration: self.expiration_of(&bucket, &key, &head),
            version_id: version_of(&bucket, &head),
            e_tag: Some(ETag::Strong(head.etag.clone())),
            checksum_crc32: sums.checksum_crc32,
            checksum_crc32c: sums.checksum_crc32c,
            checksum_crc64nvme: sums.checksum_crc64nvme,
            checksum_sha1: sums.checksum_sha1,
            checksum_sha256: sums.checksum_sha256,
            checksum_type: sums.checksum_type,
            ..PutObjectOutput::default()
        };
        Ok(with_encryption_headers(S3Response::new(output), head.encryption.as_ref(), &req.headers))
    }

    /// Returns the condition that `If-Match` and `If-None-Match` of a write put on the current object.
    pub(super) async fn write_condition(
        &self,
        bucket: &Bucket,
        key: &str,
        (if_match, if_none_match): (Option<&ETagCondition>, Option<&ETagCondition>),
    ) -> S3Result<WriteCondition> {
        let (None, Some(ETagCondition::ETag(unwanted))) = (if_match, if_none_match) else {
            return parse_write_condition(if_match, if_none_match);
        };
        // The current object must have another ETag, and must not change before the write.
        match self.gateway.objects.head(&bucket.id, key).await? {
            Some((head, version)) if !head.marker => {
                if head.etag == unwanted.value() {
                    return Err(s3_error!(PreconditionFailed));
                }
                Ok(WriteCondition::Unchanged(version))
            }
            _ => Ok(WriteCondition::Absent),
        }
    }

    /// Opens a version of an object if the requester may read it.
    pub(super) async fn open_if_readable(
        &self,
        requester: &Requester,
        bucket: &Bucket,
        key: &str,
        version: Option<&str>,
    ) -> S3Result<ObjectReader> {
        readable_by(
            requester,
            (bucket, key),
            self.gateway.objects.open_version(&bucket.id, key, version).await,
        )
    }

    pub(super) async fn do_get_object(
        &self,
        req: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        let (requester, bucket) = (Requester::from_request(&req), bucket_of(&req)?);
        let input = req.input;
        refuse_sse_header(&req.headers)?;
        let (version, range) = (input.version_id.as_deref(), named_range(input.range.as_ref()));
        let opened = self.gateway.objects.open_range_of_version(&bucket.id, &input.key, version, range).await;
        let mut reader = readable_by(&requester, (&bucket, &input.key), opened)?;
        set_decryption_secret(&self.gateway, &req.headers, &mut reader).await?;
        let conditions = ReadConditions {
            if_match: input.if_match.as_ref(),
            if_none_match: input.if_none_match.as_ref(),
            if_modified_since: input.if_modified_since.as_ref(),
            if_unmodified_since: input.if_unmodified_since.as_ref(),
        };
        conditions.check(&reader.head)?;
        let (range, content_range) = asked_range(&reader, input.range.as_ref(), input.part_number)?;
        let head = &reader.head;
        let lock = lock_headers(head);
        let whole = range == (0..head.size);
        let wanted = input.checksum_mode.is_some() && whole;
        let sums = to_s3_checksum(head.checksum.as_ref().filter(|_| wanted));
        let body = StreamingBlob::wrap(SyncStream::new(reader.data(range.clone())));
        let headers = response_headers(
            head,
            [
                (header::CACHE_CONTROL, input.response_cache_control),
                (header::CONTENT_DISPOSITION, input.response_content_disposition),
                (header::CONTENT_ENCODING, input.response_content_encoding),
                (header::CONTENT_LANGUAGE, input.response_content_language),
                (header::CONTENT_TYPE, input.response_content_type),
                (header::EXPIRES, expires(input.response_expires)),
            ],
        )?;
        let output = GetObjectOutput {
            body: Some(body),
            accept_ranges: Some("bytes".into()),
            content_length: Some((range.end - range.start) as i64),
            content_range,
            e_tag: Some(ETag::Strong(head.etag.clone())),
            last_modified: Some(timestamp(head.mtime_ns)),
            metadata: metadata_of(head),
            parts_count: parts_count(head, input.part_number),
            tag_count: (!head.tags.is_empty()).then_some(head.tags.len() as i32),
            version_id: version_of(&bucket, head),
            expiration: self.expiration_of(&bucket, &input.key, head),
            object_lock_mode: lock.mode,
            object_lock_retain_until_date: lock.until,
            object_lock_legal_hold_status: lock.hold,
            checksum_crc32: sums.checksum_crc32,
            checksum_crc32c: sums.checksum_crc32c,
            checksum_crc64nvme: sums.checksum_crc64nvme,
            checksum_sha1: sums.checksum_sha1,
            checksum_sha256: sums.checksum_sha256,
            checksum_type: sums.checksum_type,
            storage_class: told_class(head),
            ..GetObjectOutput::default()
        };
        Ok(with_encryption_headers(
            S3Response::with_headers(output, headers),
            head.encryption.as_ref(),
            &req.headers,
        ))
    }

    pub(super) async fn do_head_object(
        &self,
        req: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        let (requester, bucket) = (Requester::from_request(&req), bucket_of(&req)?);
        let input = req.input;
        refuse_sse_header(&req.headers)?;
        let version = input.version_id.as_deref();
        let mut reader = match input.part_number {
            Some(_) => self.open_if_readable(&requester, &bucket, &input.key, version).await?,
            None => {
                let opened = self.gateway.objects.open_head(&bucket.id, &input.key, version).await;
                readable_by(&requester, (&bucket, &input.key), opened)?
            }
        };
        set_decryption_secret(&self.gateway, &req.headers, &mut reader).await?;
        let conditions = ReadConditions {
            if_match: input.if_match.as_ref(),
            if_none_match: input.if_none_match.as_ref(),
            if_modified_since: input.if_modified_since.as_ref(),
            if_unmodified_since: input.if_unmodified_since.as_ref(),
        };
        conditions.check(&reader.head)?;
        let (range, content_range) = asked_range(&reader, input.range.as_ref(), input.part_number)?;
        let head = &reader.head;
        let lock = lock_headers(head);
        let sums = to_s3_checksum(head.checksum.as_ref().filter(|_| input.checksum_mode.is_some()));
        let partial = content_range.is_some() && input.range.is_some();
        let output = HeadObjectOutput {
            accept_ranges: Some("bytes".into()),
            content_length: Some((range.end - range.start) as i64),
            content_range,
            e_tag: Some(ETag::Strong(head.etag.clone())),
            last_modified: Some(timestamp(head.mtime_ns)),
            metadata: metadata_of(head),
            parts_count: parts_count(head, input.part_number),
            version_id: version_of(&bucket, head),
            expiration: self.expiration_of(&bucket, &input.key, head),
            object_lock_mode: lock.mode,
            object_lock_retain_until_date: lock.until,
            object_lock_legal_hold_status: lock.hold,
            checksum_crc32: sums.checksum_crc32,
            checksum_crc32c: sums.checksum_crc32c,
            checksum_crc64nvme: sums.checksum_crc64nvme,
            checksum_sha1: sums.checksum_sha1,
            checksum_sha256: sums.checksum_sha256,
            checksum_type: sums.checksum_type,
            storage_class: told_class(head),
            ..HeadObjectOutput::default()
        };
        let headers = response_headers(
            head,
            [
                (header::CACHE_CONTROL, input.response_cache_control),
                (header::CONTENT_DISPOSITION, input.response_content_disposition),
                (header::CONTENT_ENCODING, input.response_content_encoding),
                (header::CONTENT_LANGUAGE, input.response_content_language),
                (header::CONTENT_TYPE, input.response_content_type),
                (header::EXPIRES, expires(input.response_expires)),
            ],
        )?;
        let response = S3Response::with_headers(output, headers);
        let mut response = with_encryption_headers(response, head.encryption.as_ref(), &req.headers);
        response.status = partial.then_some(http::StatusCode::PARTIAL_CONTENT);
        Ok(response)
    }

    /// Returns the head of a version; without an id, of the newest one.
    pub(super) async fn read_head(
        &self,
        requester: &Requester,
        bucket: &Bucket,
        key: &str,
        version: Option<&str>,
    ) -> S3Result<Head> {
        match self.gateway.objects.head_of_version(&bucket.id, key, version).await {
            // A requester that may not list the bucket must not learn which keys exist.
            Err(error @ (Error::NoSuchKey | Error::NoSuchVersion | Error::DeleteMarker { .. })) => {
                requester.authorize_list(bucket)?;
                Err(error.into())
            }
            head => Ok(head?),
        }
    }

    /// As [`S3Api::read_head`]. Fails with AccessDenied unless the requester owns the object or its bucket, or a policy
    /// allows the request.
    pub(super) async fn head_if_owner(
        &self,
        requester: &Requester,
        bucket: &Bucket,
        key: &str,
        version: Option<&str>,
    ) -> S3Result<Head> {
        let head = self.read_head(requester, bucket, key, version).await?;
        let requester = requester.reevaluate_with_tags(bucket, key, &head)?;
        if requester.owns(bucket, &head) || requester.is_allowed() {
            Ok(head)
        } else {
            Err(super::access::denied())
        }
    }
}
