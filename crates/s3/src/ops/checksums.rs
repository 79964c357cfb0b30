//! Checksums that are sent with data or requested: CRC32, CRC32C, CRC64NVME, SHA1, SHA256, and Content-MD5.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use nacre_rgw::error::Error;
use nacre_rgw::object::multipart::MAX_PART_BYTES;
use nacre_rgw::object::{BodyStream, Digests, UploadBody};
use nacre_rgw::stored::StoredChecksum;
use s3s::checksum::ChecksumHasher;
use s3s::dto::{Checksum, ChecksumType};
use s3s::{S3Result, TrailingHeaders, s3_error};

/// The checksum that a request sends or asks for, and its Content-MD5.
#[derive(Debug, Default)]
pub(super) struct ClientChecksum {
    algorithm: Option<&'static str>,
    value: Option<String>,
    trailer: Option<TrailingHeaders>,
    md5: Option<String>,
}

const ALGORITHMS: [&str; 5] = ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"];

/// Returns the algorithm with the given name, ignoring case.
pub(super) fn parse_algorithm(name: &str) -> Option<&'static str> {
    ALGORITHMS.into_iter().find(|known| known.eq_ignore_ascii_case(name))
}

/// Returns the length of an algorithm's value, in bytes.
fn length_of(algorithm: &str) -> usize {
    match algorithm {
        "CRC32" | "CRC32C" => 4,
        "CRC64NVME" => 8,
        "SHA1" => 20,
        _ => 32,
    }
}

fn is_base64_of(text: &str, bytes: usize) -> bool {
    STANDARD.decode(text).is_ok_and(|decoded| decoded.len() == bytes)
}

/// Returns the field of `sums` for the value of an algorithm.
pub(super) fn checksum_field_mut<'a>(sums: &'a mut Checksum, algorithm: &str) -> &'a mut Option<String> {
    match algorithm {
        "CRC32" => &mut sums.checksum_crc32,
        "CRC32C" => &mut sums.checksum_crc32c,
        "CRC64NVME" => &mut sums.checksum_crc64nvme,
        "SHA1" => &mut sums.checksum_sha1,
        _ => &mut sums.checksum_sha256,
    }
}

/// Converts a stored checksum to the fields of S3's answers.
pub(super) fn to_s3_checksum(stored: Option<&StoredChecksum>) -> Checksum {
    let mut sums = Checksum::default();
    if let Some(stored) = stored {
        *checksum_field_mut(&mut sums, &stored.algorithm) = Some(stored.value.clone());
        let kind = if stored.whole { ChecksumType::FULL_OBJECT } else { ChecksumType::COMPOSITE };
        sums.checksum_type = Some(ChecksumType::from_static(kind));
    }
    sums
}

impl ClientChecksum {
    /// Reads the checksum in the headers. [`ClientChecksum::check`] reads the trailers, after the body.
    pub(super) fn from_headers(
        headers: &HeaderMap,
        trailer: Option<TrailingHeaders>,
        md5: Option<String>,
    ) -> S3Result<ClientChecksum> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        // An empty value is not the digest of any data.
        if text("content-md5").is_some_and(|md5| !is_base64_of(md5, 16)) {
            return Err(s3_error!(InvalidDigest, "The Content-MD5 you specified was invalid."));
        }
        let mut sent = ClientChecksum { trailer, md5, ..ClientChecksum::default() };
        for algorithm in ALGORITHMS {
            let name = format!("x-amz-checksum-{}", algorithm.to_ascii_lowercase());
            if let Some(value) = text(&name) {
                if !is_base64_of(value, length_of(algorithm)) {
                    return Err(s3_error!(InvalidRequest, "Value for {name} header is invalid."));
                }
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
            let known = parse_algorithm(name);
            sent.algorithm = Some(known.ok_or_else(|| s3_error!(InvalidRequest, "unknown checksum {name}"))?);
        }
        Ok(sent)
    }

    /// A checksum that is computed by `algorithm` and compared with nothing.
    pub(super) fn computed_only(algorithm: &str) -> ClientChecksum {
        ClientChecksum { algorithm: parse_algorithm(algorithm), ..ClientChecksum::default() }
    }

    /// Adapts the checksum to an upload whose parts have checksums by `algorithm`; empty if they have none. The upload's
    /// algorithm applies if the request names none. Fails if the request names another one.
    pub(super) fn of_part(mut self, algorithm: &str) -> S3Result<ClientChecksum> {
        match (parse_algorithm(algorithm), self.algorithm) {
            (Some(expected), Some(named)) if expected != named => {
                return Err(s3_error!(
                    InvalidRequest,
                    "Checksum Type mismatch occurred, expected checksum Type: {}, actual checksum Type: {}",
                    expected.to_ascii_lowercase(),
                    named.to_ascii_lowercase()
                ));
            }
            (expected, named) => self.algorithm = named.or(expected),
        }
        Ok(self)
    }

    /// Returns a body that computes the checksum while it is read.
    pub(super) fn body(&self, source: BodyStream) -> UploadBody {
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
        UploadBody::new(source, MAX_PART_BYTES, hasher)
    }

    /// Compares the sent checksums with the computed ones, and returns the ETag and the checksum to store. Fails with
    /// [`Error::BadDigest`] if they differ.
    pub(super) fn check(self, digests: Digests) -> nacre_rgw::Result<(String, Option<StoredChecksum>)> {
        let Digests { md5, mut checksums } = digests;
        if self.md5.is_some_and(|sent| sent != STANDARD.encode(md5)) {
            return Err(Error::BadDigest("Content-MD5"));
        }
        let etag = format!("{:032x}", u128::from_be_bytes(md5));
        let Some(algorithm) = self.algorithm else { return Ok((etag, None)) };
        let value = checksum_field_mut(&mut checksums, algorithm).take().unwrap_or_default();
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
