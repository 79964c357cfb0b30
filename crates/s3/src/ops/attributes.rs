//! GetObjectAttributes: returns the attributes of an object that the request names.

use super::access::{Requester, bucket_of};
use super::checksums::to_s3_checksum;
use super::encryption::set_decryption_secret;
use super::object::{class_name, version_of};
use super::{S3Api, answer, timestamp};
use http::{Method, Request, Response, header};
use nacre_rgw::stored::DataLocation;
#[allow(clippy::wildcard_imports, reason = "S3's structures, all by their own names")]
use s3s::dto::*;
use s3s::{Body, S3Request, S3Response, S3Result, s3_error};

/// Returns whether a request is GetObjectAttributes.
pub(crate) fn is_get_object_attributes<B>(request: &Request<B>) -> bool {
    let mut names = request.uri().query().unwrap_or_default().split('&');
    *request.method() == Method::GET && names.any(|pair| pair == "attributes" || pair == "attributes=")
}

/// Removes the quotes around the ETag in an answer. S3 writes none here; s3s always writes them.
pub(crate) fn unquote_etag(response: Response<Body>) -> Response<Body> {
    let (mut head, body) = response.into_parts();
    let unquoted = body.bytes().and_then(|text| {
        let text = str::from_utf8(&text).ok()?;
        let (before, rest) = text.split_once("<ETag>")?;
        let (etag, after) = rest.split_once("</ETag>")?;
        let etag = etag.trim_start_matches("&quot;").trim_end_matches("&quot;").trim_matches('"');
        Some(format!("{before}<ETag>{etag}</ETag>{after}"))
    });
    let Some(text) = unquoted else { return Response::from_parts(head, body) };
    if head.headers.contains_key(header::CONTENT_LENGTH) {
        head.headers.insert(header::CONTENT_LENGTH, text.len().into());
    }
    Response::from_parts(head, Body::from(text))
}

/// The most parts in one answer.
const MAX_PARTS: i32 = 1000;

impl S3Api {
    pub(super) async fn do_get_object_attributes(
        &self,
        req: S3Request<GetObjectAttributesInput>,
    ) -> S3Result<S3Response<GetObjectAttributesOutput>> {
        let (requester, bucket) = (Requester::from_request(&req), bucket_of(&req)?);
        let input = req.input;
        let mut reader =
            self.open_if_readable(&requester, &bucket, &input.key, input.version_id.as_deref()).await?;
        set_decryption_secret(&self.gateway, &req.headers, &mut reader).await?;
        // A header may list several names, separated by commas.
        let named: Vec<&str> =
            input.object_attributes.iter().flat_map(|name| name.as_str().split(',')).map(str::trim).collect();
        let known = [
            ObjectAttributes::ETAG,
            ObjectAttributes::CHECKSUM,
            ObjectAttributes::OBJECT_PARTS,
            ObjectAttributes::STORAGE_CLASS,
            ObjectAttributes::OBJECT_SIZE,
        ];
        if named.is_empty() || named.iter().any(|name| !known.contains(name)) {
            return Err(s3_error!(InvalidArgument, "Invalid attribute name specified."));
        }
        let wants = |name: &str| named.contains(&name);
        let head = &reader.head;
        let mut output = GetObjectAttributesOutput {
            last_modified: Some(timestamp(head.mtime_ns)),
            version_id: version_of(&bucket, head),
            ..GetObjectAttributesOutput::default()
        };
        if wants(ObjectAttributes::ETAG) {
            output.e_tag = Some(ETag::Strong(head.etag.clone()));
        }
        if wants(ObjectAttributes::CHECKSUM) && head.checksum.is_some() {
            output.checksum = Some(to_s3_checksum(head.checksum.as_ref()));
        }
        if wants(ObjectAttributes::STORAGE_CLASS) {
            output.storage_class = Some(class_name(&head.class).to_owned().into());
        }
        if wants(ObjectAttributes::OBJECT_SIZE) {
            output.object_size = Some(head.size as i64);
        }
        if wants(ObjectAttributes::OBJECT_PARTS) && matches!(head.data, DataLocation::Parts(_)) {
            let count = Some(reader.manifest.parts.len() as i32);
            output.object_parts =
                Some(GetObjectAttributesParts { total_parts_count: count, ..Default::default() });
        }
        // As in S3, parts are listed only if they have checksums.
        let has_checksums = reader.manifest.parts.iter().any(|part| part.checksum.is_some());
        if let Some(listed) = output.object_parts.as_mut().filter(|_| has_checksums) {
            let max = input.max_parts.unwrap_or(MAX_PARTS).clamp(0, MAX_PARTS);
            let after = input.part_number_marker.unwrap_or(0);
            // The parts of a completed object are numbered from 1.
            let mut parts = (1..).zip(&reader.manifest.parts).skip_while(|(number, _)| *number <= after);
            let shown: Vec<ObjectPart> = parts
                .by_ref()
                .take(max as usize)
                .map(|(number, part)| {
                    let sums = to_s3_checksum(part.checksum.as_ref());
                    ObjectPart {
                        part_number: Some(number),
                        size: Some(part.size as i64),
                        checksum_crc32: sums.checksum_crc32,
                        checksum_crc32c: sums.checksum_crc32c,
                        checksum_crc64nvme: sums.checksum_crc64nvme,
                        checksum_sha1: sums.checksum_sha1,
                        checksum_sha256: sums.checksum_sha256,
                    }
                })
                .collect();
            listed.is_truncated = Some(parts.next().is_some());
            listed.max_parts = Some(max);
            listed.part_number_marker = Some(after);
            listed.next_part_number_marker = shown.last().and_then(|part| part.part_number);
            listed.parts = Some(shown);
        }
        answer(output)
    }
}
