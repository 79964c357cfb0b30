//! Server-side encryption as requests specify it: SSE-C with a key in each request, SSE-S3 with the cluster's key, and the
//! default encryption of buckets.

use super::access::bucket_of;
use super::{S3Api, answer};
use crate::request::RequestOrigin;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue};
use nacre_rgw::bucket::{Bucket, ENCRYPTION};
use nacre_rgw::error::Error;
use nacre_rgw::gateway::Gateway;
use nacre_rgw::object::{Encryption, SECRET_BYTES, Secret, SseKeySource};
use nacre_rgw::stored::{Head, ObjectReader};
use s3s::crypto::{Checksum as _, Md5};
#[allow(clippy::wildcard_imports, reason = "S3's structures, all by their own names")]
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result, s3_error};

/// The only supported algorithm.
const AES256: &str = "AES256";
pub(super) const SSE_HEADER: &str = "x-amz-server-side-encryption";
const KMS_KEY: &str = "x-amz-server-side-encryption-aws-kms-key-id";
/// Headers that are valid only with a KMS.
const KMS: [&str; 2] = [KMS_KEY, "x-amz-server-side-encryption-context"];
const CUSTOMER: &str = "x-amz-server-side-encryption-customer-";
/// The prefix of the headers with the key for the source of a copy.
const COPY_CUSTOMER: &str = "x-amz-copy-source-server-side-encryption-customer-";

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// If `required`, refuses customer-provided keys that arrive over a connection that is neither TLS nor loopback.
pub(super) fn check_key_transport(
    required: bool,
    headers: &HeaderMap,
    peer: Option<&RequestOrigin>,
) -> S3Result<()> {
    let is_safe = peer.is_some_and(|peer| peer.secure || peer.address.to_canonical().is_loopback());
    let mut names = headers.keys().map(HeaderName::as_str);
    let mut brings_key = || names.any(|name| name.starts_with(CUSTOMER) || name.starts_with(COPY_CUSTOMER));
    if required && !is_safe && brings_key() {
        return Err(s3_error!(
            InvalidRequest,
            "Requests specifying Server Side Encryption with Customer provided keys must be made over a secure \
             connection."
        ));
    }
    Ok(())
}

/// Returns the customer-provided key in the headers with the given prefix; `None` without one.
fn customer_key(headers: &HeaderMap, prefix: &str) -> S3Result<Option<Secret>> {
    let header = |name: &str| text(headers, &format!("{prefix}{name}"));
    let (algorithm, key, md5) = match (header("algorithm"), header("key"), header("key-md5")) {
        (None, None, None) => return Ok(None),
        (Some(algorithm), Some(key), Some(md5)) => (algorithm, key, md5),
        _ => {
            return Err(s3_error!(
                InvalidArgument,
                "Requests specifying Server Side Encryption with Customer provided keys must provide an algorithm, a \
                 key and the key's MD5."
            ));
        }
    };
    if algorithm != AES256 {
        return Err(s3_error!(
            InvalidEncryptionAlgorithmError,
            "The encryption request you specified is not valid."
        ));
    }
    let wrong = || s3_error!(InvalidArgument, "The secret key was invalid for the specified algorithm.");
    let bytes = STANDARD.decode(key).map_err(|_| wrong())?;
    if STANDARD.encode(Md5::checksum(&bytes)) != md5 {
        return Err(s3_error!(
            InvalidArgument,
            "The calculated MD5 hash of the key did not match the hash that was provided."
        ));
    }
    let bytes: [u8; SECRET_BYTES] = bytes.try_into().map_err(|_| wrong())?;
    Ok(Some(Secret::new(SseKeySource::Customer, bytes)))
}

/// Refuses a header that is valid only on writes.
pub(super) fn refuse_sse_header(headers: &HeaderMap) -> S3Result<()> {
    if headers.contains_key(SSE_HEADER) {
        return Err(s3_error!(InvalidArgument, "{SSE_HEADER} is not for requests that read"));
    }
    Ok(())
}

fn check_managed(algorithm: &str) -> S3Result<()> {
    match algorithm {
        AES256 => Ok(()),
        "aws:kms" | "aws:kms:dsse" => Err(s3_error!(NotImplemented, "there is no KMS; AES256 is")),
        _ => Err(s3_error!(
            InvalidEncryptionAlgorithmError,
            "The encryption method specified is not supported"
        )),
    }
}

/// Returns how to encrypt the data of a write, and the secret: as the request says, or else by the bucket's default. `None`
/// if the data is not encrypted.
pub(super) async fn requested_encryption(
    gateway: &Gateway,
    headers: &HeaderMap,
    bucket: &Bucket,
) -> S3Result<Option<(Encryption, Secret)>> {
    let managed = text(headers, SSE_HEADER);
    let secret = match (customer_key(headers, CUSTOMER)?, managed) {
        (Some(_), Some(_)) => {
            return Err(s3_error!(InvalidArgument, "either a customer's key or server side encryption"));
        }
        (Some(secret), None) => secret,
        (None, Some(algorithm)) => {
            check_managed(algorithm)?;
            if headers.contains_key(KMS_KEY) {
                return Err(s3_error!(InvalidArgument, "{AES256} goes without {KMS_KEY}"));
            }
            gateway.sse_secret.get().await?
        }
        // A request with a KMS header asks for encryption by a KMS.
        (None, None) if KMS.iter().any(|name| headers.contains_key(*name)) => {
            return Err(s3_error!(NotImplemented, "there is no KMS; AES256 is"));
        }
        (None, None) if bucket.encrypted => gateway.sse_secret.get().await?,
        (None, None) => return Ok(None),
    };
    let encryption = secret.new_encryption()?;
    Ok(Some((encryption, secret)))
}

/// Returns the secret for a part's data; `None` if its upload is not encrypted.
pub(super) async fn part_secret(
    gateway: &Gateway,
    headers: &HeaderMap,
    head: &Head,
) -> S3Result<Option<Secret>> {
    secret_for(gateway, head, customer_key(headers, CUSTOMER)?).await
}

async fn secret_for(gateway: &Gateway, head: &Head, customer: Option<Secret>) -> S3Result<Option<Secret>> {
    let secret = match (&head.encryption, customer) {
        (None, None) => return Ok(None),
        (None | Some(Encryption { holder: SseKeySource::Cluster, .. }), Some(_)) => {
            return Err(s3_error!(
                InvalidRequest,
                "The encryption parameters are not applicable to this object."
            ));
        }
        (Some(Encryption { holder: SseKeySource::Cluster, .. }), None) => gateway.sse_secret.get().await?,
        (Some(_), Some(secret)) => secret,
        (Some(_), None) => {
            return Err(s3_error!(
                InvalidRequest,
                "The object was stored using a form of Server Side Encryption. The correct parameters must be provided \
                 to retrieve the object."
            ));
        }
    };
    if let Some(encryption) = &head.encryption {
        match secret.check(encryption) {
            // A wrong cluster key is a fault of the server, not of the client.
            Err(Error::WrongKey) if *secret.holder() == SseKeySource::Customer => {
                return Err(Error::WrongKey.into());
            }
            Err(_) => return Err(s3_error!(InternalError, "the cluster's key is another one")),
            Ok(()) => {}
        }
    }
    Ok(Some(secret))
}

/// Sets the secret that a reader decrypts its object with. Fails if the request's key does not match the object's
/// encryption.
pub(super) async fn set_decryption_secret(
    gateway: &Gateway,
    headers: &HeaderMap,
    reader: &mut ObjectReader,
) -> S3Result<()> {
    reader.secret = secret_for(gateway, &reader.head, customer_key(headers, CUSTOMER)?).await?;
    Ok(())
}

/// As [`set_decryption_secret`], with the headers for the source of a copy.
pub(super) async fn set_source_decryption_secret(
    gateway: &Gateway,
    headers: &HeaderMap,
    reader: &mut ObjectReader,
) -> S3Result<()> {
    reader.secret = secret_for(gateway, &reader.head, customer_key(headers, COPY_CUSTOMER)?).await?;
    Ok(())
}

/// Adds the headers that describe an object's encryption to an answer. `headers` are the request's.
pub(super) fn with_encryption_headers<T>(
    mut response: S3Response<T>,
    encryption: Option<&Encryption>,
    headers: &HeaderMap,
) -> S3Response<T> {
    match encryption.map(|encryption| &encryption.holder) {
        None => {}
        Some(SseKeySource::Cluster) => {
            response.headers.insert(HeaderName::from_static(SSE_HEADER), HeaderValue::from_static(AES256));
        }
        Some(SseKeySource::Customer) => {
            for name in ["algorithm", "key-md5"] {
                let name = format!("{CUSTOMER}{name}");
                if let (Some(value), Ok(name)) = (headers.get(&name), HeaderName::try_from(&name)) {
                    response.headers.insert(name, value.clone());
                }
            }
        }
    }
    response
}

impl S3Api {
    pub(super) async fn do_get_bucket_encryption(
        &self,
        req: S3Request<GetBucketEncryptionInput>,
    ) -> S3Result<S3Response<GetBucketEncryptionOutput>> {
        let bucket = bucket_of(&req)?;
        if !bucket.encrypted {
            return Err(s3_error!(
                ServerSideEncryptionConfigurationNotFoundError,
                "The server side encryption configuration was not found"
            ));
        }
        let default = ServerSideEncryptionByDefault {
            kms_master_key_id: None,
            sse_algorithm: ServerSideEncryption::from_static(AES256),
        };
        let rule = ServerSideEncryptionRule {
            apply_server_side_encryption_by_default: Some(default),
            bucket_key_enabled: Some(false),
        };
        let configuration = ServerSideEncryptionConfiguration { rules: vec![rule] };
        answer(GetBucketEncryptionOutput { server_side_encryption_configuration: Some(configuration) })
    }

    pub(super) async fn do_put_bucket_encryption(
        &self,
        req: S3Request<PutBucketEncryptionInput>,
    ) -> S3Result<S3Response<PutBucketEncryptionOutput>> {
        let bucket = bucket_of(&req)?;
        let [rule] = &req.input.server_side_encryption_configuration.rules[..] else {
            return Err(s3_error!(MalformedXML, "exactly one rule"));
        };
        let default = rule.apply_server_side_encryption_by_default.as_ref();
        let default = default.ok_or_else(|| s3_error!(MalformedXML, "a rule without default"))?;
        check_managed(default.sse_algorithm.as_str())?;
        // If the cluster's key can't be used, this request fails instead of every later write.
        self.gateway.sse_secret.get().await?;
        self.set_bucket_document(&bucket.name, ENCRYPTION, Some(format!("\"{AES256}\""))).await?;
        answer(PutBucketEncryptionOutput::default())
    }

    pub(super) async fn do_delete_bucket_encryption(
        &self,
        req: S3Request<DeleteBucketEncryptionInput>,
    ) -> S3Result<S3Response<DeleteBucketEncryptionOutput>> {
        let bucket = bucket_of(&req)?;
        self.set_bucket_document(&bucket.name, ENCRYPTION, None).await?;
        let mut response = S3Response::new(DeleteBucketEncryptionOutput::default());
        response.status = Some(http::StatusCode::NO_CONTENT);
        Ok(response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_do_not_travel_in_the_clear() {
        let mut bringing = HeaderMap::new();
        bringing
            .insert("x-amz-copy-source-server-side-encryption-customer-key", HeaderValue::from_static("k"));
        let taken = |required, headers: &HeaderMap, address: &str, secure| {
            let peer = RequestOrigin { address: address.parse().unwrap(), secure };
            check_key_transport(required, headers, Some(&peer)).is_ok()
        };
        assert!(!taken(true, &bringing, "192.0.2.1", false));
        assert!(taken(false, &bringing, "192.0.2.1", false));
        assert!(taken(true, &bringing, "192.0.2.1", true));
        assert!(taken(true, &HeaderMap::new(), "192.0.2.1", false));
        for own in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            assert!(taken(true, &bringing, own, false), "{own}");
        }
        assert!(check_key_transport(true, &bringing, None).is_err());
    }
}
