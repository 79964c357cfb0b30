//! Multipart uploads.

use super::access::{Requester, bucket_of};
use super::acl::acl_for_object;
use super::checksums::{ClientChecksum, checksum_field_mut, parse_algorithm, to_s3_checksum};
use super::encryption::{part_secret, requested_encryption, with_encryption_headers};
use super::list::{KeyEncoder, non_empty_delimiter};
use super::lock::requested_lock;
use super::object::{body_stream, check_metadata, class_name, requested_class, stored_headers, version_of};
use super::owners::{OwnerNames, distinct};
use super::{S3Api, answer, timestamp};
use crate::request::RequestOrigin;
use crate::tags::tags_of_header;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::StreamExt;
use http::header;
use http::uri::Authority;
use nacre_rgw::error::Error;
use nacre_rgw::object::multipart::{MAX_PART_BYTES, MAX_PARTS, PartId, RequestedPart};
use nacre_rgw::object::{Salt, UploadBody, random_salt};
use nacre_rgw::stored::{Head, StoredChecksum};
use nacre_rgw::uploads::{Part as StoredPart, Upload, UploadEntry};
use s3s::crypto::{Checksum as _, Crc32, Crc32c, Sha1, Sha256};
#[allow(clippy::wildcard_imports, reason = "S3's structures, all by their own names")]
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result, s3_error};
use std::collections::HashMap;

/// The most parts or uploads in one answer.
const MAX_PAGE: i32 = 1000;

fn part_number(number: i32) -> S3Result<u32> {
    let sound = u32::try_from(number).ok().filter(|number| (1..=MAX_PARTS).contains(number));
    sound
        .ok_or_else(|| s3_error!(InvalidArgument, "Part number must be an integer between 1 and {MAX_PARTS}"))
}

/// Returns the URL of a request's object, as the client addressed it.
fn location_of<T>(req: &S3Request<T>) -> String {
    let is_secure = req.extensions.get::<RequestOrigin>().is_some_and(|peer| peer.secure);
    let said = req.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = said.or(req.uri.authority().map(Authority::as_str)).unwrap_or_default();
    format!("{}://{host}{}", if is_secure { "https" } else { "http" }, req.uri.path())
}

/// Returns the checksum of the parts' checksums, composed as in S3. `None` if the upload has no composite checksum.
fn composite(upload: &Upload, parts: &[(u32, StoredPart)]) -> nacre_rgw::Result<Option<StoredChecksum>> {
    if upload.algorithm.is_empty() || upload.whole {
        return Ok(None);
    }
    let mut sums = Vec::new();
    for (number, part) in parts {
        let sum = part.checksum.as_ref().and_then(|sum| STANDARD.decode(&sum.value).ok());
        sums.extend(sum.ok_or(Error::InvalidPart(*number as i32))?);
    }
    let value = match upload.algorithm.as_str() {
        "CRC32" => STANDARD.encode(Crc32::checksum(&sums)),
        "CRC32C" => STANDARD.encode(Crc32c::checksum(&sums)),
        "SHA1" => STANDARD.encode(Sha1::checksum(&sums)),
        "SHA256" => STANDARD.encode(Sha256::checksum(&sums)),
        _ => return Ok(None),
    };
    let value = format!("{value}-{}", parts.len());
    Ok(Some(StoredChecksum { algorithm: upload.algorithm.clone(), value, whole: false }))
}

/// Returns the checksum of the whole object, combined from the checksums and sizes of its parts. Only CRCs can be combined.
/// `None` if the upload has no full-object checksum.
fn combined(upload: &Upload, parts: &[(u32, StoredPart)]) -> nacre_rgw::Result<Option<StoredChecksum>> {
    let algorithm = match upload.algorithm.as_str() {
        "CRC32" => crc_fast::CrcAlgorithm::Crc32IsoHdlc,
        "CRC32C" => crc_fast::CrcAlgorithm::Crc32Iscsi,
        "CRC64NVME" => crc_fast::CrcAlgorithm::Crc64Nvme,
        _ => return Ok(None),
    };
    if !upload.whole {
        return Ok(None);
    }
    let width = if upload.algorithm == "CRC64NVME" { 8 } else { 4 };
    let mut sum = 0;
    for (at, (number, part)) in parts.iter().enumerate() {
        let bytes = part.checksum.as_ref().and_then(|sum| STANDARD.decode(&sum.value).ok());
        let bytes = bytes.filter(|bytes| bytes.len() == width).ok_or(Error::InvalidPart(*number as i32))?;
        let own = bytes.iter().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
        sum = if at == 0 { own } else { crc_fast::checksum_combine(algorithm, sum, own, part.size) };
    }
    let value = STANDARD.encode(&sum.to_be_bytes()[8 - width..]);
    Ok(Some(StoredChecksum { algorithm: upload.algorithm.clone(), value, whole: true }))
}

/// A page of uploads: keys, ids and index entries, common prefixes, and the marker of the next page.
#[derive(Default)]
struct UploadPage {
    uploads: Vec<(String, String, UploadEntry)>,
    groups: Vec<String>,
    next: Option<(String, String)>,
}

impl S3Api {
    /// Encrypts a part's data if its upload is encrypted. Also returns the salt of the part's key.
    async fn encrypted_part(
        &self,
        headers: &http::HeaderMap,
        head: &Head,
        body: UploadBody,
    ) -> S3Result<(UploadBody, Option<Salt>)> {
        let Some(secret) = part_secret(&self.gateway, headers, head).await? else {
            return Ok((body, None));
        };
        let salt = random_salt()?;
        Ok((body.encrypted(secret.part_cipher(&salt)), Some(salt)))
    }

    pub(super) async fn do_create_multipart_upload(
        &self,
        req: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        let (requester, bucket) = (Requester::from_request(&req), bucket_of(&req)?);
        let (headers, class) = (stored_headers(&req.headers), requested_class(&req.headers)?);
        let input = req.input;
        let algorithm = match &input.checksum_algorithm {
            Some(name) => {
                let known = parse_algorithm(name.as_str());
                known.ok_or_else(|| s3_error!(InvalidRequest, "unknown checksum {}", name.as_str()))?
            }
            None => "",
        };
        let whole = match input.checksum_type.as_ref().map(ChecksumType::as_str) {
            Some(ChecksumType::FULL_OBJECT) if algorithm.starts_with("SHA") => {
                return Err(s3_error!(InvalidRequest, "{algorithm} can't be that of a full object"));
            }
            Some(ChecksumType::COMPOSITE) if algorithm == "CRC64NVME" => {
                return Err(s3_error!(InvalidRequest, "CRC64NVME is always that of a full object"));
            }
            Some(kind) => kind == ChecksumType::FULL_OBJECT,
            None => algorithm == "CRC64NVME",
        };
        let (owner, acl) = acl_for_object(&self.gateway, &req.headers, &requester, &bucket).await?;
        let (retention, legal_hold) = requested_lock(
            &bucket,
            input.object_lock_mode.as_ref(),
            input.object_lock_retain_until_date.as_ref(),
            input.object_lock_legal_hold_status.as_ref(),
        )?;
        let encryption = requested_encryption(&self.gateway, &req.headers, &bucket).await?;
        let encryption = encryption.map(|(encryption, _)| encryption);
        let head = Head {
            owner,
            headers,
            encryption: encryption.clone(),
            metadata: check_metadata(input.metadata)?,
            tags: tags_of_header(input.tagging.as_deref())?,
            acl,
            retention,
            legal_hold,
            class,
            ..Head::default()
        };
        let upload = Upload::new(head, algorithm, whole);
        let id = self.gateway.uploads.create(&bucket, &input.key, upload).await?;
        let output = CreateMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(id),
            checksum_type: input.checksum_algorithm.as_ref().map(|_| {
                let kind = if whole { ChecksumType::FULL_OBJECT } else { ChecksumType::COMPOSITE };
                ChecksumType::from_static(kind)
            }),
            checksum_algorithm: input.checksum_algorithm,
            ..CreateMultipartUploadOutput::default()
        };
        Ok(with_encryption_headers(S3Response::new(output), encryption.as_ref(), &req.headers))
    }

    pub(super) async fn do_upload_part(
        &self,
        req: S3Request<UploadPartInput>,
    ) -> S3Result<S3Response<UploadPartOutput>> {
        let bucket = bucket_of(&req)?;
        let sent = ClientChecksum::from_headers(
            &req.headers,
            req.trailing_headers.clone(),
            req.input.content_md5.clone(),
        )?;
        let input = req.input;
        let number = part_number(input.part_number)?;
        let upload = self.gateway.uploads.read(&bucket, &input.key, &input.upload_id).await?;
        let class = &upload.head.class;
        let place = PartId { key: &input.key, upload: &input.upload_id, number, class };
        let sent = sent.of_part(&upload.algorithm)?;
        let length = input.content_length.map(|length| u64::try_from(length).unwrap_or(0));
        if length.is_some_and(|length| length > MAX_PART_BYTES) {
            return Err(s3_error!(EntityTooLarge));
        }
        let body = sent.body(body_stream(input.body));
        let body = self.encrypted_part(&req.headers, &upload.head, body).await?;
        let part =
            self.gateway.writer.put_part(&bucket, place, body, length, |digests| sent.check(digests)).await?;
        let sums = to_s3_checksum(part.checksum.as_ref());
        let output = UploadPartOutput {
            e_tag: Some(ETag::Strong(part.etag)),
            checksum_crc32: sums.checksum_crc32,
            checksum_crc32c: sums.checksum_crc32c,
            checksum_crc64nvme: sums.checksum_crc64nvme,
            checksum_sha1: sums.checksum_sha1,
            checksum_sha256: sums.checksum_sha256,
            ..UploadPartOutput::default()
        };
        Ok(with_encryption_headers(S3Response::new(output), upload.head.encryption.as_ref(), &req.headers))
    }

    pub(super) async fn do_upload_part_copy(
        &self,
        req: S3Request<UploadPartCopyInput>,
    ) -> S3Result<S3Response<UploadPartCopyOutput>> {
        let (requester, bucket) = (Requester::from_request(&req), bucket_of(&req)?);
        let input = req.input;
        let number = part_number(input.part_number)?;
        let conditions = (
            input.copy_source_if_match.as_ref(),
            input.copy_source_if_none_match.as_ref(),
            input.copy_source_if_modified_since.as_ref(),
            input.copy_source_if_unmodified_since.as_ref(),
        );
        let (reader, read) =
            self.open_copy_source(&requester, (&input.copy_source, &req.headers, false), conditions).await?;
        let range = match &input.copy_source_range {
            Some(text) => {
                let wrong = |_| s3_error!(InvalidArgument, "the range of a copy is bytes=first-last");
                let range = Range::parse(text).map_err(wrong)?;
                let Range::Int { last: Some(last), .. } = range else {
                    return Err(s3_error!(InvalidArgument, "the range of a copy is bytes=first-last"));
                };
                if last >= reader.head.size {
                    return Err(s3_error!(InvalidRange, "The range is not within the source of the copy."));
                }
                range.check(reader.head.size)?
            }
            None => 0..reader.head.size,
        };
        let length = range.end - range.start;
        if length > MAX_PART_BYTES {
            return Err(s3_error!(EntityTooLarge));
        }
        let upload = self.gateway.uploads.read(&bucket, &input.key, &input.upload_id).await?;
        let class = &upload.head.class;
        let place = PartId { key: &input.key, upload: &input.upload_id, number, class };
        let sent = ClientChecksum::computed_only(&upload.algorithm);
        let body = sent.body(Box::pin(reader.data(range).map(|piece| piece.map_err(Into::into))));
        let body = self.encrypted_part(&req.headers, &upload.head, body).await?;
        let part = self
            .gateway
            .writer
            .put_part(&bucket, place, body, Some(length), |digests| sent.check(digests))
            .await?;
        let sums = to_s3_checksum(part.checksum.as_ref());
        let result = CopyPartResult {
            e_tag: Some(ETag::Strong(part.etag)),
            last_modified: Some(timestamp(part.mtime_ns)),
            checksum_crc32: sums.checksum_crc32,
            checksum_crc32c: sums.checksum_crc32c,
            checksum_crc64nvme: sums.checksum_crc64nvme,
            checksum_sha1: sums.checksum_sha1,
            checksum_sha256: sums.checksum_sha256,
        };
        let output = UploadPartCopyOutput {
            copy_part_result: Some(result),
            copy_source_version_id: read,
            ..UploadPartCopyOutput::default()
        };
        Ok(with_encryption_headers(S3Response::new(output), upload.head.encryption.as_ref(), &req.headers))
    }

    pub(super) async fn do_complete_multipart_upload(
        &self,
        req: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let bucket = bucket_of(&req)?;
        let (location, cause) = (location_of(&req), self.cause(&req));
        let mut input = req.input;
        let conditions = (input.if_match.as_ref(), input.if_none_match.as_ref());
        let condition = self.write_condition(&bucket, &input.key, conditions).await?;
        let listed = input.multipart_upload.take().and_then(|upload| upload.parts).unwrap_or_default();
        let (mut named, mut sums_of_parts) = (Vec::with_capacity(listed.len()), HashMap::new());
        for part in listed {
            let number = part.part_number.ok_or_else(|| s3_error!(MalformedXML, "a part without number"))?;
            let sums = Checksum {
                checksum_crc32: part.checksum_crc32,
                checksum_crc32c: part.checksum_crc32c,
                checksum_crc64nvme: part.checksum_crc64nvme,
                checksum_sha1: part.checksum_sha1,
                checksum_sha256: part.checksum_sha256,
                checksum_type: None,
            };
            let number = part_number(number)?;
            sums_of_parts.insert(number, sums);
            named.push(RequestedPart { number, etag: part.e_tag.map(ETag::into_value) });
        }
        if named.is_empty() {
            return Err(s3_error!(MalformedXML, "a completion names at least one part"));
        }
        let mut said = Checksum {
            checksum_crc32: input.checksum_crc32.take(),
            checksum_crc32c: input.checksum_crc32c.take(),
            checksum_crc64nvme: input.checksum_crc64nvme.take(),
            checksum_sha1: input.checksum_sha1.take(),
            checksum_sha256: input.checksum_sha256.take(),
            checksum_type: None,
        };
        let size = input.mpu_object_size;
        let seal = move |upload: &Upload, parts: &[(u32, StoredPart)], head: &mut Head| {
            if size.is_some_and(|size| u64::try_from(size) != Ok(head.size)) {
                return Err(Error::Invalid("the parts do not have the size that was sent".into()));
            }
            for (number, part) in parts {
                let said = sums_of_parts.get_mut(number).zip(part.checksum.as_ref());
                let said = said.and_then(|(sums, stored)| {
                    Some((checksum_field_mut(sums, &stored.algorithm).as_ref()?, stored))
                });
                if said.is_some_and(|(said, stored)| *said != stored.value) {
                    return Err(Error::InvalidPart(*number as i32));
                }
            }
            head.checksum = match composite(upload, parts)? {
                Some(sum) => Some(sum),
                None => combined(upload, parts)?,
            };
            if let Some(sum) = &head.checksum
                && checksum_field_mut(&mut said, &sum.algorithm).as_ref().is_some_and(|said| {
                    // The client may omit the number of parts.
                    *said != sum.value && sum.value.split('-').next() != Some(said)
                })
            {
                return Err(Error::BadDigest("x-amz-checksum"));
            }
            Ok(())
        };
        let head = self
            .gateway
            .writer
            .complete_upload(&bucket, (&input.key, &input.upload_id), named, (condition, cause), seal)
            .await?;
        let sums = to_s3_checksum(head.checksum.as_ref());
        let output = CompleteMultipartUploadOutput {
            version_id: version_of(&bucket, &head),
            location: Some(location),
            bucket: Some(input.bucket),
            key: Some(input.key),
            e_tag: Some(ETag::Strong(head.etag.clone())),
            checksum_crc32: sums.checksum_crc32,
            checksum_crc32c: sums.checksum_crc32c,
            checksum_crc64nvme: sums.checksum_crc64nvme,
            checksum_sha1: sums.checksum_sha1,
            checksum_sha256: sums.checksum_sha256,
            checksum_type: sums.checksum_type,
            ..CompleteMultipartUploadOutput::default()
        };
        Ok(with_encryption_headers(S3Response::new(output), head.encryption.as_ref(), &req.headers))
    }

    pub(super) async fn do_abort_multipart_upload(
        &self,
        req: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        let bucket = bucket_of(&req)?;
        self.gateway.writer.abort_upload(&bucket, &req.input.key, &req.input.upload_id).await?;
        answer(AbortMultipartUploadOutput::default())
    }

    pub(super) async fn do_list_parts(
        &self,
        req: S3Request<ListPartsInput>,
    ) -> S3Result<S3Response<ListPartsOutput>> {
        let bucket = bucket_of(&req)?;
        let input = req.input;
        let upload = self.gateway.uploads.read(&bucket, &input.key, &input.upload_id).await?;
        let max = input.max_parts.unwrap_or(MAX_PAGE).clamp(0, MAX_PAGE);
        let after = u32::try_from(input.part_number_marker.unwrap_or(0)).unwrap_or(0);
        let (parts, more) =
            self.gateway.uploads.parts(&bucket, &input.key, &input.upload_id, after, max as u64).await?;
        let part = |(number, part): (u32, StoredPart)| {
            let sums = to_s3_checksum(part.checksum.as_ref());
            Part {
                part_number: Some(number as i32),
                e_tag: Some(ETag::Strong(part.etag)),
                size: Some(part.size as i64),
                last_modified: Some(timestamp(part.mtime_ns)),
                checksum_crc32: sums.checksum_crc32,
                checksum_crc32c: sums.checksum_crc32c,
                checksum_crc64nvme: sums.checksum_crc64nvme,
                checksum_sha1: sums.checksum_sha1,
                checksum_sha256: sums.checksum_sha256,
            }
        };
        let next = parts.last().map(|(number, _)| *number as i32);
        let owner = upload.head.owner;
        let owners = OwnerNames::find(&self.gateway, distinct([owner.as_str()])).await;
        answer(ListPartsOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(input.upload_id),
            max_parts: Some(max),
            part_number_marker: Some(after as i32),
            next_part_number_marker: next,
            is_truncated: Some(more),
            parts: Some(parts.into_iter().map(part).collect()),
            initiator: owners.initiator(&owner),
            owner: owners.owner(&owner),
            storage_class: Some(class_name(&upload.head.class).to_owned().into()),
            ..ListPartsOutput::default()
        })
    }

    /// Returns the uploads after `after`. Keys with the delimiter behind the prefix are rolled up into common prefixes.
    async fn page_of_uploads(
        &self,
        bucket: &nacre_rgw::bucket::Bucket,
        prefix: &str,
        delimiter: Option<&str>,
        after: Option<(&str, &str)>,
        max: usize,
    ) -> S3Result<UploadPage> {
        let mut page = UploadPage::default();
        let mut at = after.map(|(key, id)| (key.to_owned(), id.to_owned()));
        while page.uploads.len() + page.groups.len() < max {
            let left = max - page.uploads.len() - page.groups.len();
            let from = at.as_ref().map(|(key, id)| (key.as_str(), id.as_str()));
            let (found, more) = self.gateway.uploads.list(bucket, prefix, from, left).await?;
            at = found.last().map(|(key, id, _)| (key.clone(), id.clone())).or(at);
            for (key, id, entry) in found {
                let rest = key.strip_prefix(prefix).unwrap_or_default();
                let group = delimiter.and_then(|delimiter| Some((rest.find(delimiter)?, delimiter.len())));
                match group.map(|(found, len)| key[..prefix.len() + found + len].to_owned()) {
                    None => page.uploads.push((key, id, entry)),
                    // The previous page has this common prefix.
                    Some(group) if after.is_some_and(|(key, _)| key.starts_with(&group)) => {}
                    Some(group) if page.groups.last() == Some(&group) => {}
                    Some(group) => page.groups.push(group),
                }
            }
            page.next = at.clone().filter(|_| more);
            if !more {
                break;
            }
        }
        Ok(page)
    }

    pub(super) async fn do_list_multipart_uploads(
        &self,
        req: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        let bucket = bucket_of(&req)?;
        let input = req.input;
        let max = input.max_uploads.unwrap_or(MAX_PAGE).clamp(0, MAX_PAGE);
        let prefix = input.prefix.clone().unwrap_or_default();
        let id = input.upload_id_marker.clone().unwrap_or_default();
        let after = input.key_marker.as_deref().map(|key| (key, id.as_str()));
        let names = KeyEncoder::for_encoding(input.encoding_type.as_ref())?;
        let delimiter = non_empty_delimiter(input.delimiter);
        let page = self.page_of_uploads(&bucket, &prefix, delimiter.as_deref(), after, max as usize).await?;
        let owners = page.uploads.iter().map(|(_, _, entry)| entry.owner.as_str());
        let owners = OwnerNames::find(&self.gateway, distinct(owners)).await;
        let (next_key_marker, next_upload_id_marker) = page.next.clone().unzip();
        let upload = |(key, id, entry): (String, String, UploadEntry)| MultipartUpload {
            key: Some(names.encode(key)),
            upload_id: Some(id),
            initiated: Some(timestamp(entry.begun_ns)),
            owner: owners.owner(&entry.owner),
            initiator: owners.initiator(&entry.owner),
            storage_class: Some(class_name(&entry.class).to_owned().into()),
            ..MultipartUpload::default()
        };
        answer(ListMultipartUploadsOutput {
            bucket: Some(input.bucket),
            prefix: input.prefix.map(|prefix| names.encode(prefix)),
            key_marker: input.key_marker.map(|marker| names.encode(marker)),
            upload_id_marker: input.upload_id_marker,
            next_key_marker: next_key_marker.map(|marker| names.encode(marker)),
            next_upload_id_marker,
            max_uploads: Some(max),
            is_truncated: Some(page.next.is_some()),
            uploads: Some(page.uploads.into_iter().map(upload).collect()),
            common_prefixes: Some(names.prefixes(page.groups)),
            delimiter: delimiter.map(|delimiter| names.encode(delimiter)),
            encoding_type: input.encoding_type,
            ..ListMultipartUploadsOutput::default()
        })
    }
}
