//! Copies of objects.

use super::access::{Requester, bucket_of, check_owner_not_suspended, denied};
use super::acl::acl_for_object;
use super::checksums::{ClientChecksum, to_s3_checksum};
use super::encryption::{
    SSE_HEADER, requested_encryption, set_source_decryption_secret, with_encryption_headers,
};
use super::lock::requested_lock;
use super::object::{ReadConditions, check_metadata, requested_class, stored_headers, version_of};
use super::{S3Api, timestamp};
use crate::tags::tags_of_header;
use futures::stream::StreamExt;
use nacre_rgw::object::multipart::MAX_PART_BYTES;
use nacre_rgw::object::{Digests, PutOp};
use nacre_rgw::stored::{Head, ObjectReader};
use nacre_topics::event::EventType;
#[allow(clippy::wildcard_imports, reason = "S3's structures, all by their own names")]
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response, S3Result, s3_error};
use std::sync::Arc;

const STORAGE_CLASS: &str = "x-amz-storage-class";
/// A header that a copy never takes from its source.
const REDIRECT: &str = "x-amz-website-redirect-location";

/// Returns the headers of a copy that keeps the metadata of its source. The redirect location comes from the request only.
fn copied_headers(source: &Head, sent: Vec<(String, String)>) -> Vec<(String, String)> {
    let is_own = |name: &str| name == REDIRECT;
    let copied = source.headers.iter().filter(|(name, _)| !is_own(name)).cloned();
    copied.chain(sent.into_iter().filter(|(name, _)| is_own(name))).collect()
}

impl S3Api {
    /// Opens the source of a copy and checks the copy's conditions. Also returns the id of the source's version if its
    /// bucket has versions. Policies judge the source by its own tags. With `with_tags` the copy gets these tags, which
    /// needs permission to read them.
    pub(super) async fn open_copy_source(
        &self,
        requester: &Requester,
        (source, headers, with_tags): (&CopySource, &http::HeaderMap, bool),
        conditions: (Option<&ETagCondition>, Option<&ETagCondition>, Option<&Timestamp>, Option<&Timestamp>),
    ) -> S3Result<(ObjectReader, Option<String>)> {
        let CopySource::Bucket { bucket, key, version_id } = source else {
            return Err(s3_error!(NotImplemented, "a copy's source is named by bucket and key"));
        };
        let bucket = self.gateway.cached_bucket(bucket).await?;
        let expected = headers.get("x-amz-source-expected-bucket-owner");
        if expected.is_some_and(|expected| expected.as_bytes() != bucket.owner.as_bytes()) {
            return Err(denied());
        }
        check_owner_not_suspended(&self.gateway, &bucket).await?;
        let version = version_id.as_deref();
        let action = if version.is_some() { "s3:GetObjectVersion" } else { "s3:GetObject" };
        let reading = requester.clone().with_source_version(version);
        let reading = reading.with_object_tags(&self.gateway, &bucket, (key, version)).await?;
        let reading = reading.evaluate_action(&bucket, action, Some(key))?;
        let reader = match self.open_if_readable(&reading, &bucket, key, version).await {
            // MethodNotAllowed would refer to the request's own method, but the source is at fault.
            Err(error) if *error.code() == S3ErrorCode::MethodNotAllowed => {
                return Err(s3_error!(
                    InvalidRequest,
                    "The source of a copy request may not specifically refer to a delete marker by version id."
                ));
            }
            opened => opened?,
        };
        let mut reader = reader;
        if with_tags && !reader.head.tags.is_empty() {
            reading.reevaluate_with_tags(&bucket, key, &reader.head)?.authorize_tag_copy(
                &bucket,
                key,
                version.is_some(),
            )?;
        }
        set_source_decryption_secret(&self.gateway, headers, &mut reader).await?;
        let read = version_of(&bucket, &reader.head);
        let (if_match, if_none_match, if_modified_since, if_unmodified_since) = conditions;
        let conditions = ReadConditions { if_match, if_none_match, if_modified_since, if_unmodified_since };
        match conditions.check(&reader.head) {
            // A copy is not answered with 304.
            Err(error) if *error.code() == S3ErrorCode::NotModified => Err(s3_error!(PreconditionFailed)),
            checked => checked.map(|()| (reader, read)),
        }
    }

    pub(super) async fn do_copy_object(
        &self,
        req: S3Request<CopyObjectInput>,
    ) -> S3Result<S3Response<CopyObjectOutput>> {
        let (requester, bucket) = (Requester::from_request(&req), bucket_of(&req)?);
        let cause = self.cause(&req);
        let input = req.input;
        let conditions = (
            input.copy_source_if_match.as_ref(),
            input.copy_source_if_none_match.as_ref(),
            input.copy_source_if_modified_since.as_ref(),
            input.copy_source_if_unmodified_since.as_ref(),
        );
        let retagged = input.tagging_directive.as_ref().is_some_and(|said| said.as_str() == "REPLACE");
        let source = (&input.copy_source, &req.headers, !retagged);
        let (reader, read) = self.open_copy_source(&requester, source, conditions).await?;
        if !retagged && !reader.head.tags.is_empty() {
            // The copy gets the source's tags, which are judged as if the request named them.
            let requester = requester.clone().with_request_tags(&reader.head.tags);
            requester.evaluate_action(&bucket, "s3:PutObject", Some(&input.key))?.authorize_write(&bucket)?;
            requester.authorize_tagging(&bucket, &input.key)?;
        }
        if reader.head.size > MAX_PART_BYTES {
            return Err(s3_error!(
                InvalidRequest,
                "the source is larger than a copy may be; copy it in parts"
            ));
        }
        let replaced = input.metadata_directive.as_ref().is_some_and(|said| said.as_str() == "REPLACE");
        let onto_itself = matches!(&input.copy_source, CopySource::Bucket { bucket, key, version_id: None }
            if **bucket == *input.bucket && **key == *input.key);
        let changes =
            [STORAGE_CLASS, REDIRECT, SSE_HEADER, "x-amz-server-side-encryption-customer-algorithm"];
        let class = requested_class(&req.headers)?;
        // As in S3, naming the storage class that the object already has is enough: programs use it to touch objects.
        let changed = replaced || changes.iter().any(|name| req.headers.contains_key(*name));
        if onto_itself && !changed {
            return Err(s3_error!(
                InvalidRequest,
                "This copy request is illegal because it is trying to copy an object to itself without changing the \
                 object's metadata, storage class, website redirect location or encryption attributes."
            ));
        }
        let asked = |name: &str| {
            let value = req.headers.get(name).map(|value| ETagCondition::parse_http_header(value.as_bytes()));
            value.transpose().map_err(|_| s3_error!(InvalidArgument, "{name} is no ETag"))
        };
        let (if_match, if_none_match) = (asked("if-match")?, asked("if-none-match")?);
        let conditions = (if_match.as_ref(), if_none_match.as_ref());
        let condition = self.write_condition(&bucket, &input.key, conditions).await?;
        let (owner, acl) = acl_for_object(&self.gateway, &req.headers, &requester, &bucket).await?;
        let (retention, legal_hold) = requested_lock(
            &bucket,
            input.object_lock_mode.as_ref(),
            input.object_lock_retain_until_date.as_ref(),
            input.object_lock_legal_hold_status.as_ref(),
        )?;
        let encryption = requested_encryption(&self.gateway, &req.headers, &bucket).await?;
        let sent_headers = stored_headers(&req.headers);
        let head = Head {
            owner,
            encryption: encryption.as_ref().map(|(encryption, _)| encryption.clone()),
            headers: if replaced { sent_headers } else { copied_headers(&reader.head, sent_headers) },
            metadata: if replaced { check_metadata(input.metadata)? } else { reader.head.metadata.clone() },
            tags: if retagged { tags_of_header(input.tagging.as_deref())? } else { reader.head.tags.clone() },
            acl,
            retention,
            legal_hold,
            class,
            ..Head::default()
        };
        let stored = reader.head.checksum.as_ref().map_or("", |stored| &stored.algorithm);
        let asked = input.checksum_algorithm.as_ref().map_or(stored, ChecksumAlgorithm::as_str);
        let sent = ClientChecksum::computed_only(asked);
        let size = reader.head.size;
        let mut body = sent.body(Box::pin(reader.data(0..size).map(|piece| piece.map_err(Into::into))));
        if let Some((encryption, secret)) = &encryption {
            body = body.encrypted(secret.cipher(encryption));
        }
        let types = &[EventType::ObjectCreatedCopy];
        let put = PutOp { bucket: Arc::clone(&bucket), key: input.key, head, condition, cause, types };
        let seal = |digests: Digests, head: &mut Head| {
            (head.etag, head.checksum) = sent.check(digests)?;
            Ok(())
        };
        let head = put.run(&self.gateway.writer, body, Some(size), seal).await?;
        let (sums, version_id) = (to_s3_checksum(head.checksum.as_ref()), version_of(&bucket, &head));
        let result = CopyObjectResult {
            e_tag: Some(ETag::Strong(head.etag.clone())),
            last_modified: Some(timestamp(head.mtime_ns)),
            checksum_crc32: sums.checksum_crc32,
            checksum_crc32c: sums.checksum_crc32c,
            checksum_crc64nvme: sums.checksum_crc64nvme,
            checksum_sha1: sums.checksum_sha1,
            checksum_sha256: sums.checksum_sha256,
            checksum_type: sums.checksum_type,
        };
        let output = CopyObjectOutput {
            copy_object_result: Some(result),
            copy_source_version_id: read,
            version_id,
            ..CopyObjectOutput::default()
        };
        Ok(with_encryption_headers(S3Response::new(output), head.encryption.as_ref(), &req.headers))
    }
}
