//! Operations on objects.

use super::access::{Requester, bucket_of};
use super::acl::of_headers;
use super::{Protocol, answer, timestamp};
use crate::bucket::Bucket;
use crate::error::Error;
use crate::object::multipart::MAX_PART_BYTES;
use crate::object::{Body, Condition, Digests, Head, Put, Reader, Source, StoredChecksum};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::stream::{self, StreamExt};
use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use s3s::checksum::ChecksumHasher;
#[allow(clippy::wildcard_imports, reason = "S3's structures, all by their own names")]
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result, TrailingHeaders, s3_error};
use std::ops::Range as Bytes;
use std::sync::Arc;
use sync_wrapper::SyncStream;

/// The most objects in one removal of several.
const MAX_DELETES: usize = 1000;
/// Of those, how many are removed at the same time.
const DELETES: usize = 16;
/// The most bytes of `x-amz-meta-` headers, names and values.
const MAX_METADATA_BYTES: usize = 2048;
/// The most tags of an object, and the longest name and value of a tag, in characters.
const MAX_OBJECT_TAGS: usize = 10;
const MAX_TAG_KEY_CHARS: usize = 128;
const MAX_TAG_VALUE_CHARS: usize = 256;

/// Checks tags as S3 does.
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
    Ok(checked)
}

/// Tags as the header `x-amz-tagging` has them.
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

/// Checks `x-amz-meta-` headers.
pub(super) fn check_metadata(metadata: Option<Metadata>) -> S3Result<Vec<(String, String)>> {
    let mut all: Vec<(String, String)> = metadata.into_iter().flatten().collect();
    if all.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > MAX_METADATA_BYTES {
        return Err(s3_error!(MetadataTooLarge));
    }
    all.sort_unstable();
    Ok(all)
}

/// The headers that come back as they were sent. `aws-chunked` says how the body travelled, not what it is.
pub(super) fn kept_headers(headers: &HeaderMap) -> Vec<(String, String)> {
    const KEPT: [&str; 8] = [
        "cache-control",
        "content-disposition",
        "content-encoding",
        "content-language",
        "content-type",
        "expires",
        "x-amz-storage-class",
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

/// What a write asks of what is there.
pub(super) fn condition(
    if_match: Option<&ETagCondition>,
    if_none_match: Option<&ETagCondition>,
) -> S3Result<Condition> {
    match (if_match, if_none_match) {
        (None, None) => Ok(Condition::None),
        (None, Some(ETagCondition::Any)) => Ok(Condition::Absent),
        (Some(ETagCondition::Any), None) => Ok(Condition::Present),
        (Some(ETagCondition::ETag(etag)), None) => Ok(Condition::Etag(etag.value().to_owned())),
        _ => {
            Err(s3_error!(NotImplemented, "of conditions on writes there are If-Match and If-None-Match: *"))
        }
    }
}

/// The checksum that comes with data.
#[derive(Debug, Default)]
pub(super) struct Sent {
    algorithm: Option<&'static str>,
    value: Option<String>,
    trailer: Option<TrailingHeaders>,
    md5: Option<String>,
}

const ALGORITHMS: [&str; 5] = ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"];

/// The algorithm of that name, in whatever case.
pub(super) fn algorithm_of(name: &str) -> Option<&'static str> {
    ALGORITHMS.into_iter().find(|known| known.eq_ignore_ascii_case(name))
}

/// The field of `sums` that an algorithm's value is in.
pub(super) fn field<'a>(sums: &'a mut Checksum, algorithm: &str) -> &'a mut Option<String> {
    match algorithm {
        "CRC32" => &mut sums.checksum_crc32,
        "CRC32C" => &mut sums.checksum_crc32c,
        "CRC64NVME" => &mut sums.checksum_crc64nvme,
        "SHA1" => &mut sums.checksum_sha1,
        _ => &mut sums.checksum_sha256,
    }
}

/// A stored checksum in the fields of S3's answers.
pub(super) fn fields(stored: Option<&StoredChecksum>) -> Checksum {
    let mut sums = Checksum::default();
    if let Some(stored) = stored {
        *field(&mut sums, &stored.algorithm) = Some(stored.value.clone());
        let kind = if stored.whole { ChecksumType::FULL_OBJECT } else { ChecksumType::COMPOSITE };
        sums.checksum_type = Some(ChecksumType::from_static(kind));
    }
    sums
}

impl Sent {
    /// What headers say; trailers have their say when the body was read.
    pub(super) fn of(
        headers: &HeaderMap,
        trailer: Option<TrailingHeaders>,
        md5: Option<String>,
    ) -> S3Result<Sent> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let mut sent = Sent { trailer, md5, ..Sent::default() };
        for algorithm in ALGORITHMS {
            let name = format!("x-amz-checksum-{}", algorithm.to_ascii_lowercase());
            if let Some(value) = text(&name) {
                if sent.algorithm.is_some() {
                    return Err(s3_error!(InvalidRequest, "Expecting a single x-amz-checksum- header"));
                }
                (sent.algorithm, sent.value) = (Some(algorithm), Some(value.to_owned()));
            }
            let announced = text("x-amz-trailer").is_some_and(|trailer| {
                trailer.split(',').any(|part| part.trim().eq_ignore_ascii_case(&name))
            });
            if announced && sent.algorithm.is_none() {
                sent.algorithm = Some(algorithm);
            }
        }
        if sent.algorithm.is_none()
            && let Some(name) = text("x-amz-sdk-checksum-algorithm").or(text("x-amz-checksum-algorithm"))
        {
            let known = algorithm_of(name);
            sent.algorithm = Some(known.ok_or_else(|| s3_error!(InvalidRequest, "unknown checksum {name}"))?);
        }
        Ok(sent)
    }

    /// Prefers `algorithm` where the request names none.
    pub(super) fn or(mut self, algorithm: &str) -> Sent {
        self.algorithm = self.algorithm.or_else(|| algorithm_of(algorithm));
        self
    }

    /// A body that is summed up as it is read.
    pub(super) fn body(&self, source: Source) -> Body {
        use s3s::crypto::{Checksum as _, Crc32, Crc32c, Crc64Nvme, Sha1, Sha256};
        let mut hasher = ChecksumHasher::default();
        match self.algorithm {
            Some("CRC32") => hasher.crc32 = Some(Crc32::new()),
            Some("CRC32C") => hasher.crc32c = Some(Crc32c::new()),
            Some("CRC64NVME") => hasher.crc64nvme = Some(Crc64Nvme::new()),
            Some("SHA1") => hasher.sha1 = Some(Sha1::new()),
            Some(_) => hasher.sha256 = Some(Sha256::new()),
            None => {}
        }
        Body::new(source, MAX_PART_BYTES, hasher)
    }

    /// Compares what was sent with what was read: ETag and checksum to be stored.
    pub(super) fn check(self, body: Body) -> crate::Result<(String, Option<StoredChecksum>)> {
        let Digests { md5, mut checksums } = body.digests();
        if self.md5.is_some_and(|sent| sent != STANDARD.encode(md5)) {
            return Err(Error::BadDigest("Content-MD5"));
        }
        let etag = format!("{:032x}", u128::from_be_bytes(md5));
        let Some(algorithm) = self.algorithm else { return Ok((etag, None)) };
        let value = field(&mut checksums, algorithm).take().unwrap_or_default();
        let name = format!("x-amz-checksum-{}", algorithm.to_ascii_lowercase());
        let trailed = self
            .trailer
            .and_then(|trailer| trailer.take())
            .and_then(|headers| headers.get(&name).and_then(|value| value.to_str().ok().map(str::to_owned)));
        if self.value.or(trailed).is_some_and(|sent| sent != value) {
            return Err(Error::BadDigest("x-amz-checksum"));
        }
        Ok((etag, Some(StoredChecksum { algorithm: algorithm.to_owned(), value, whole: true })))
    }
}

/// A request's body; without one, no data.
pub(super) fn source_of(body: Option<StreamingBlob>) -> Source {
    match body {
        Some(body) => Box::pin(body),
        None => Box::pin(stream::empty()),
    }
}

/// How much data a request says that it has.
fn length_of(length: Option<i64>) -> S3Result<Option<u64>> {
    let length = length.map(u64::try_from).transpose().map_err(|_| s3_error!(InvalidArgument))?;
    if length.is_some_and(|length| length > MAX_PART_BYTES) {
        return Err(s3_error!(EntityTooLarge));
    }
    Ok(length)
}

/// Whether a read's conditions hold, in the order of RFC 9110.
struct ReadConditions<'a> {
    if_match: Option<&'a ETagCondition>,
    if_none_match: Option<&'a ETagCondition>,
    if_modified_since: Option<&'a Timestamp>,
    if_unmodified_since: Option<&'a Timestamp>,
}

impl ReadConditions<'_> {
    fn check(&self, head: &Head) -> S3Result<()> {
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
            headers.insert(http::header::ETAG, etag);
        }
        error.set_headers(headers);
        Err(error)
    }
}

/// The part of an object that is asked for, and what `Content-Range` says of it.
fn asked_range(
    reader: &Reader,
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

/// The headers that were kept, under their own names.
fn response_headers(head: &Head) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in &head.headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            headers.insert(name, value);
        }
    }
    headers
}

fn metadata_of(head: &Head) -> Option<Metadata> {
    (!head.metadata.is_empty()).then(|| head.metadata.iter().cloned().collect())
}

/// The answer to who asks for a part that the object has not.
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
        crate::object::Data::Parts(count) if part.is_some() => Some(count as i32),
        _ => None,
    }
}

impl Protocol {
    pub(super) async fn do_put_object(
        &self,
        req: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        let (requester, bucket) = (Requester::of(&req), bucket_of(&req)?);
        let sent = Sent::of(&req.headers, req.trailing_headers.clone(), req.input.content_md5.clone())?;
        let input = req.input;
        let condition = condition(input.if_match.as_ref(), input.if_none_match.as_ref())?;
        let acl = of_headers(&self.gateway, &req.headers, requester.id(), &bucket.owner).await?;
        let head = Head {
            owner: requester.id().to_owned(),
            headers: kept_headers(&req.headers),
            metadata: check_metadata(input.metadata)?,
            tags: tags_of_header(input.tagging.as_deref())?,
            acl,
            ..Head::default()
        };
        let length = length_of(input.content_length)?;
        let body = sent.body(source_of(input.body));
        let put = Put { bucket, key: input.key, head, condition };
        let seal = |body: Body, head: &mut Head| {
            // Clients that go away leave less than they said.
            if length.is_some_and(|length| length != head.size) {
                return Err(Error::Body(format!("{} bytes of {}", head.size, length.unwrap_or(0))));
            }
            (head.etag, head.checksum) = sent.check(body)?;
            Ok(())
        };
        let head = put.run(&self.gateway, body, length, seal).await?;
        let sums = fields(head.checksum.as_ref());
        answer(PutObjectOutput {
            e_tag: Some(ETag::Strong(head.etag)),
            checksum_crc32: sums.checksum_crc32,
            checksum_crc32c: sums.checksum_crc32c,
            checksum_crc64nvme: sums.checksum_crc64nvme,
            checksum_sha1: sums.checksum_sha1,
            checksum_sha256: sums.checksum_sha256,
            checksum_type: sums.checksum_type,
            ..PutObjectOutput::default()
        })
    }

    /// An object that the requester may read.
    async fn readable(&self, requester: &Requester, bucket: &Bucket, key: &str) -> S3Result<Reader> {
        match self.gateway.open_object(bucket, key).await {
            // Who may not list the bucket does not learn what is in it.
            Err(Error::NoSuchKey) => {
                requester.may_list(bucket)?;
                Err(Error::NoSuchKey.into())
            }
            opened => {
                let reader = opened?;
                requester.may_read(&reader.head)?;
                Ok(reader)
            }
        }
    }

    pub(super) async fn do_get_object(
        &self,
        req: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        let (requester, bucket) = (Requester::of(&req), bucket_of(&req)?);
        let input = req.input;
        let reader = self.readable(&requester, &bucket, &input.key).await?;
        let conditions = ReadConditions {
            if_match: input.if_match.as_ref(),
            if_none_match: input.if_none_match.as_ref(),
            if_modified_since: input.if_modified_since.as_ref(),
            if_unmodified_since: input.if_unmodified_since.as_ref(),
        };
        conditions.check(&reader.head)?;
        let (range, content_range) = asked_range(&reader, input.range.as_ref(), input.part_number)?;
        let head = &reader.head;
        let whole = range == (0..head.size);
        let wanted = input.checksum_mode.is_some() && whole;
        let sums = fields(head.checksum.as_ref().filter(|_| wanted));
        let body = StreamingBlob::wrap(SyncStream::new(reader.data(range.clone())));
        let headers = response_headers(head);
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
            checksum_crc32: sums.checksum_crc32,
            checksum_crc32c: sums.checksum_crc32c,
            checksum_crc64nvme: sums.checksum_crc64nvme,
            checksum_sha1: sums.checksum_sha1,
            checksum_sha256: sums.checksum_sha256,
            checksum_type: sums.checksum_type,
            ..GetObjectOutput::default()
        };
        Ok(S3Response::with_headers(output, headers))
    }

    pub(super) async fn do_head_object(
        &self,
        req: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        let (requester, bucket) = (Requester::of(&req), bucket_of(&req)?);
        let input = req.input;
        let reader = self.readable(&requester, &bucket, &input.key).await?;
        let conditions = ReadConditions {
            if_match: input.if_match.as_ref(),
            if_none_match: input.if_none_match.as_ref(),
            if_modified_since: input.if_modified_since.as_ref(),
            if_unmodified_since: input.if_unmodified_since.as_ref(),
        };
        conditions.check(&reader.head)?;
        let (range, content_range) = asked_range(&reader, input.range.as_ref(), input.part_number)?;
        let head = &reader.head;
        let sums = fields(head.checksum.as_ref().filter(|_| input.checksum_mode.is_some()));
        let partial = content_range.is_some() && input.range.is_some();
        let output = HeadObjectOutput {
            accept_ranges: Some("bytes".into()),
            content_length: Some((range.end - range.start) as i64),
            content_range,
            e_tag: Some(ETag::Strong(head.etag.clone())),
            last_modified: Some(timestamp(head.mtime_ns)),
            metadata: metadata_of(head),
            parts_count: parts_count(head, input.part_number),
            checksum_crc32: sums.checksum_crc32,
            checksum_crc32c: sums.checksum_crc32c,
            checksum_crc64nvme: sums.checksum_crc64nvme,
            checksum_sha1: sums.checksum_sha1,
            checksum_sha256: sums.checksum_sha256,
            checksum_type: sums.checksum_type,
            ..HeadObjectOutput::default()
        };
        let mut response = S3Response::with_headers(output, response_headers(head));
        response.status = partial.then_some(http::StatusCode::PARTIAL_CONTENT);
        Ok(response)
    }

    pub(super) async fn do_delete_object(
        &self,
        req: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        let bucket = bucket_of(&req)?;
        let condition = condition(req.input.if_match.as_ref(), None)?;
        // Removing what is not there succeeds.
        self.gateway.remove_object(&bucket, &req.input.key, condition).await?;
        answer(DeleteObjectOutput::default())
    }

    pub(super) async fn do_delete_objects(
        &self,
        req: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        let (requester, bucket) = (Requester::of(&req), bucket_of(&req)?);
        let Delete { objects, quiet } = req.input.delete;
        if objects.is_empty() || objects.len() > MAX_DELETES {
            return Err(s3_error!(MalformedXML, "between 1 and {MAX_DELETES} objects"));
        }
        let removals = stream::iter(objects).map(|object| {
            let bucket = Arc::clone(&bucket);
            let requester = requester.clone();
            async move {
                let asking = requester.asking(&bucket, "s3:DeleteObject", Some(&object.key));
                if let Err(error) = asking.and_then(|requester| requester.may_write(&bucket)) {
                    return (object.key, Err(error));
                }
                let condition =
                    object.e_tag.map_or(Condition::None, |etag| Condition::Etag(etag.into_value()));
                let removed = self.gateway.remove_object(&bucket, &object.key, condition).await;
                (object.key, removed.map_err(S3Error::from))
            }
        });
        let (mut deleted, mut errors) = (Vec::new(), Vec::new());
        let mut removals = removals.buffered(DELETES);
        while let Some((key, removed)) = removals.next().await {
            match removed {
                Ok(_) if quiet.unwrap_or(false) => {}
                Ok(_) => deleted.push(DeletedObject { key: Some(key), ..DeletedObject::default() }),
                Err(error) => {
                    errors.push(s3s::dto::Error {
                        code: Some(error.code().as_str().to_owned()),
                        key: Some(key),
                        message: error.message().map(str::to_owned),
                        version_id: None,
                    });
                }
            }
        }
        answer(DeleteObjectsOutput {
            deleted: Some(deleted),
            errors: (!errors.is_empty()).then_some(errors),
            request_charged: None,
        })
    }

    /// The object that a copy is made of, and its conditions.
    pub(super) async fn copy_source(
        &self,
        requester: &Requester,
        source: &CopySource,
        conditions: (Option<&ETagCondition>, Option<&ETagCondition>, Option<&Timestamp>, Option<&Timestamp>),
    ) -> S3Result<Reader> {
        let CopySource::Bucket { bucket, key, version_id } = source else {
            return Err(s3_error!(NotImplemented, "a copy's source is named by bucket and key"));
        };
        if version_id.as_deref().is_some_and(|version| version != "null") {
            return Err(s3_error!(NoSuchVersion));
        }
        let bucket = self.gateway.known_bucket(bucket).await?;
        let requester = requester.asking(&bucket, "s3:GetObject", Some(key))?;
        let reader = self.readable(&requester, &bucket, key).await?;
        let (if_match, if_none_match, if_modified_since, if_unmodified_since) = conditions;
        let conditions = ReadConditions { if_match, if_none_match, if_modified_since, if_unmodified_since };
        match conditions.check(&reader.head) {
            // A copy has no 304.
            Err(error) if *error.code() == S3ErrorCode::NotModified => Err(s3_error!(PreconditionFailed)),
            checked => checked.map(|()| reader),
        }
    }

    pub(super) async fn do_copy_object(
        &self,
        req: S3Request<CopyObjectInput>,
    ) -> S3Result<S3Response<CopyObjectOutput>> {
        let (requester, bucket) = (Requester::of(&req), bucket_of(&req)?);
        let input = req.input;
        let conditions = (
            input.copy_source_if_match.as_ref(),
            input.copy_source_if_none_match.as_ref(),
            input.copy_source_if_modified_since.as_ref(),
            input.copy_source_if_unmodified_since.as_ref(),
        );
        let reader = self.copy_source(&requester, &input.copy_source, conditions).await?;
        if reader.head.size > MAX_PART_BYTES {
            return Err(s3_error!(
                InvalidRequest,
                "the source is larger than a copy may be; copy it in parts"
            ));
        }
        let replaced = input.metadata_directive.as_ref().is_some_and(|said| said.as_str() == "REPLACE");
        let onto_itself = matches!(&input.copy_source, CopySource::Bucket { bucket, key, .. }
            if **bucket == *input.bucket && **key == *input.key);
        if onto_itself && !replaced {
            return Err(s3_error!(
                InvalidRequest,
                "This copy request is illegal because it is trying to copy an object to itself without changing the \
                 object's metadata"
            ));
        }
        let acl = of_headers(&self.gateway, &req.headers, requester.id(), &bucket.owner).await?;
        let retagged = input.tagging_directive.as_ref().is_some_and(|said| said.as_str() == "REPLACE");
        let head = Head {
            owner: requester.id().to_owned(),
            headers: if replaced { kept_headers(&req.headers) } else { reader.head.headers.clone() },
            metadata: if replaced { check_metadata(input.metadata)? } else { reader.head.metadata.clone() },
            tags: if retagged { tags_of_header(input.tagging.as_deref())? } else { reader.head.tags.clone() },
            acl,
            ..Head::default()
        };
        let stored = reader.head.checksum.as_ref().map_or("", |stored| &stored.algorithm);
        let asked = input.checksum_algorithm.as_ref().map_or(stored, ChecksumAlgorithm::as_str);
        let sent = Sent::default().or(asked);
        let size = reader.head.size;
        let body = sent.body(Box::pin(reader.data(0..size).map(|piece| piece.map_err(Into::into))));
        let put = Put { bucket, key: input.key, head, condition: Condition::None };
        let seal = |body: Body, head: &mut Head| {
            (head.etag, head.checksum) = sent.check(body)?;
            Ok(())
        };
        let head = put.run(&self.gateway, body, Some(size), seal).await?;
        let sums = fields(head.checksum.as_ref());
        let result = CopyObjectResult {
            e_tag: Some(ETag::Strong(head.etag)),
            last_modified: Some(timestamp(head.mtime_ns)),
            checksum_crc32: sums.checksum_crc32,
            checksum_crc32c: sums.checksum_crc32c,
            checksum_crc64nvme: sums.checksum_crc64nvme,
            checksum_sha1: sums.checksum_sha1,
            checksum_sha256: sums.checksum_sha256,
            checksum_type: sums.checksum_type,
        };
        answer(CopyObjectOutput { copy_object_result: Some(result), ..CopyObjectOutput::default() })
    }

    /// An object's head, for who owns it or its bucket.
    async fn own_head(&self, requester: &Requester, bucket: &Bucket, key: &str) -> S3Result<Head> {
        let (head, _) = self.gateway.head(bucket, key).await?.ok_or(Error::NoSuchKey)?;
        let id = requester.id();
        let own = !id.is_empty() && (id == head.owner || id == bucket.owner);
        if own { Ok(head) } else { Err(super::access::denied()) }
    }

    pub(super) async fn do_get_object_tagging(
        &self,
        req: S3Request<GetObjectTaggingInput>,
    ) -> S3Result<S3Response<GetObjectTaggingOutput>> {
        let (requester, bucket) = (Requester::of(&req), bucket_of(&req)?);
        let head = self.own_head(&requester, &bucket, &req.input.key).await?;
        let tag = |(key, value)| Tag { key: Some(key), value: Some(value) };
        answer(GetObjectTaggingOutput { tag_set: head.tags.into_iter().map(tag).collect(), version_id: None })
    }

    pub(super) async fn do_put_object_tagging(
        &self,
        req: S3Request<PutObjectTaggingInput>,
    ) -> S3Result<S3Response<PutObjectTaggingOutput>> {
        let (requester, bucket) = (Requester::of(&req), bucket_of(&req)?);
        self.own_head(&requester, &bucket, &req.input.key).await?;
        let tags = check_tags(req.input.tagging.tag_set, MAX_OBJECT_TAGS)?;
        self.gateway.modify_head(&bucket, &req.input.key, |head| head.tags.clone_from(&tags)).await?;
        answer(PutObjectTaggingOutput::default())
    }

    pub(super) async fn do_delete_object_tagging(
        &self,
        req: S3Request<DeleteObjectTaggingInput>,
    ) -> S3Result<S3Response<DeleteObjectTaggingOutput>> {
        let (requester, bucket) = (Requester::of(&req), bucket_of(&req)?);
        self.own_head(&requester, &bucket, &req.input.key).await?;
        self.gateway.modify_head(&bucket, &req.input.key, |head| head.tags.clear()).await?;
        let mut response = S3Response::new(DeleteObjectTaggingOutput::default());
        response.status = Some(http::StatusCode::NO_CONTENT);
        Ok(response)
    }
}
