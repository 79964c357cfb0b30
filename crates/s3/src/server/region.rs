//! Signatures for region names that the protocol's library does not accept. The library accepts lower-case letters, digits
//! and dashes; s3cmd, for example, uses `US`.
//!
//! As in radosgw, there is one region, whatever it is called. A signature for such a name is therefore checked here and, if
//! it is valid, replaced by a signature for the usual region. An invalid signature is passed on unchanged and refused like
//! any other.

use crate::signature::{self, CanonicalRequest, hex};
use hmac::Mac as _;
use http::{HeaderMap, HeaderValue, Method, Request, Uri, header};
use nacre_rgw::gateway::Gateway;
use s3s::Body;
use time::OffsetDateTime;

/// The region that clients name by default.
const USUAL: &str = "us-east-1";

/// Returns whether a request is signed for a region name that the library does not accept.
pub(super) fn needs_region_rewrite(headers: &HeaderMap) -> bool {
    let is_taken = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let authorization = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let credential = authorization.and_then(|text| text.split_once("Credential=")?.1.split(',').next());
    let region = credential.and_then(|credential| credential.rsplit('/').nth(2));
    region.is_some_and(|region| !region.bytes().all(is_taken))
}

/// Replaces a valid signature for such a region by one that the library accepts.
pub(super) async fn rewrite_signature(gateway: &Gateway, request: &mut Request<Body>) {
    let (method, uri, headers) = (request.method().clone(), request.uri().clone(), request.headers().clone());
    if let Some(adapted) = adapted(gateway, &method, &uri, &headers).await {
        request.headers_mut().insert(header::AUTHORIZATION, adapted);
    }
}

async fn adapted(gateway: &Gateway, method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<HeaderValue> {
    let authorization = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let signature = signature::read(headers).ok()?;
    let region = signature.region;
    let payload = headers.get("x-amz-content-sha256")?.to_str().ok()?;
    // The signatures of chunks depend on the request's signature and would become invalid.
    if payload.starts_with("STREAMING-") || signature.service != "s3" {
        return None;
    }
    let secret = gateway.authenticator.secret_key(signature.access_key).await.ok()?;
    let (path, query) = (uri.path(), uri.query().unwrap_or_default());
    let request = CanonicalRequest { method: method.as_str(), path, query, headers, payload };
    signature.check(&request, &secret, OffsetDateTime::now_utc()).ok()?;
    let made = signature.compute(&request, USUAL, &secret).ok()?.finalize().into_bytes();
    let (before, _) = authorization.split_once("Signature=")?;
    let before = before.replacen(&format!("/{region}/s3/"), &format!("/{USUAL}/s3/"), 1);
    HeaderValue::try_from(format!("{before}Signature={}", hex(&made))).ok()
}
