//! Checks what the signatures of requests cover. The protocol's library verifies signatures. It would also honour headers
//! and parameters that are not signed; such requests are refused here first.
//!
//! Every `x-amz-` header of a signed request must be among the signed ones, and so must the host
//! (<https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html>). With a signature in the header, only
//! `x-amz-content-sha256` may be missing there: the canonical request has its value in place of the body. A request has one
//! signature, in its header or in its URL.
//!
//! A signature of version 2 covers all `x-amz-` headers, but only the query parameters that S3 had at the time. In a
//! header, it does not limit the age of the request either. A request is refused if it has another parameter that would
//! change the operation, or if its time is too far from ours.

use http::{HeaderMap, StatusCode, header};
use s3s::dto::{Timestamp, TimestampFormat};
use std::fmt;
use std::time::{Duration, SystemTime};
use time::OffsetDateTime;

/// Signature parameters of presigned URLs. Each may occur only once.
const PARAMETERS: [&str; 6] = [
    "X-Amz-Algorithm",
    "X-Amz-Credential",
    "X-Amz-Date",
    "X-Amz-Expires",
    "X-Amz-Signature",
    "X-Amz-SignedHeaders",
];

/// Parameters that a signature of version 2 covers
/// (<https://docs.aws.amazon.com/AmazonS3/latest/userguide/RESTAuthentication.html>), and parameters that only select what
/// an answer shows.
const OLD_PARAMETERS: [&str; 51] = [
    "AWSAccessKeyId",
    "Expires",
    "Signature",
    "accelerate",
    "acl",
    "allow-unordered",
    "analytics",
    "continuation-token",
    "cors",
    "defaultObjectAcl",
    "delete",
    "delimiter",
    "encoding-type",
    "fetch-owner",
    "inventory",
    "key-marker",
    "lifecycle",
    "list-type",
    "location",
    "logging",
    "marker",
    "max-keys",
    "max-parts",
    "max-uploads",
    "metrics",
    "notification",
    "object-lock",
    "part-number-marker",
    "partNumber",
    "policy",
    "prefix",
    "replication",
    "requestPayment",
    "response-cache-control",
    "response-content-disposition",
    "response-content-encoding",
    "response-content-language",
    "response-content-type",
    "response-expires",
    "restore",
    "select",
    "select-type",
    "start-after",
    "storageClass",
    "tagging",
    "torrent",
    "upload-id-marker",
    "uploadId",
    "uploads",
    "version-id-marker",
    "versionId",
];
/// More parameters that version 2 covers.
const OLD_RESOURCES: [&str; 3] = ["versioning", "versions", "website"];
/// The longest validity of a presigned URL.
const WEEK_SECS: u64 = 7 * 24 * 3600;
/// How far the time of a request with a version 2 header may be from ours.
const MAX_SKEW: Duration = Duration::from_secs(15 * 60);

/// Why the signature of a request is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SignatureError {
    /// A header that must be signed is not.
    NotSigned(String),
    /// The request has more than one signature.
    Twice,
    /// A part of the header is missing, repeated or malformed.
    Malformed(&'static str),
    /// A signature parameter is missing, repeated or invalid.
    Parameters(&'static str),
    /// The request has a parameter that a signature of version 2 does not cover.
    NotCovered(String),
    /// The time of a version 2 request differs from ours by this many seconds.
    Skewed(u64),
    /// A version 2 request has no valid time.
    NoTime,
}

impl SignatureError {
    /// Returns the HTTP status and S3's error code.
    pub(super) fn code(&self) -> (StatusCode, &'static str) {
        match self {
            SignatureError::NotSigned(_) => (StatusCode::FORBIDDEN, "AccessDenied"),
            SignatureError::Twice => (StatusCode::BAD_REQUEST, "InvalidArgument"),
            SignatureError::Malformed(_) => (StatusCode::BAD_REQUEST, "AuthorizationHeaderMalformed"),
            SignatureError::Parameters(_) => (StatusCode::BAD_REQUEST, "AuthorizationQueryParametersError"),
            SignatureError::NotCovered(_) => (StatusCode::BAD_REQUEST, "InvalidRequest"),
            SignatureError::Skewed(_) => (StatusCode::FORBIDDEN, "RequestTimeTooSkewed"),
            SignatureError::NoTime => (StatusCode::FORBIDDEN, "AccessDenied"),
        }
    }
}

impl fmt::Display for SignatureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SignatureError::NotSigned(name) => {
                write!(f, "There were headers present in the request which were not signed: {name}")
            }
            SignatureError::Twice => f.write_str(
                "Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter, Signature query string \
                 parameter or the Authorization header should be specified",
            ),
            SignatureError::Malformed(what) => write!(f, "The authorization is malformed: {what}"),
            SignatureError::Parameters(what) => f.write_str(what),
            SignatureError::NotCovered(name) => {
                write!(f, "The parameter {name} needs a signature with AWS4-HMAC-SHA256.")
            }
            SignatureError::Skewed(secs) => write!(
                f,
                "The difference between the request time and the current time is too large: the clocks of both differ by \
                 {secs} s."
            ),
            SignatureError::NoTime => {
                f.write_str("AWS authentication requires a valid Date or x-amz-date header")
            }
        }
    }
}

/// Refuses a request whose signature does not cover what it must. Does not verify the signature.
pub(crate) fn check(headers: &HeaderMap, query: Option<&str>, now: SystemTime) -> Result<(), SignatureError> {
    let mut in_header = headers.get_all(header::AUTHORIZATION).iter();
    let authorization = in_header.next();
    if in_header.next().is_some() {
        return Err(SignatureError::Twice);
    }
    let query = Query::read(query.unwrap_or_default())?;
    let in_address = query.listed.is_some();
    let listed = match (authorization, query.listed) {
        (Some(_), listed) if listed.is_some() || query.is_old => return Err(SignatureError::Twice),
        (None, Some(_)) if query.is_old => return Err(SignatureError::Twice),
        (None, Some(listed)) => listed,
        (None, None) if query.is_old => {
            return query.uncovered.map_or(Ok(()), |name| Err(SignatureError::NotCovered(name)));
        }
        (None, None) => return Ok(()),
        (Some(value), _) => {
            let value = value.to_str().map_err(|_| SignatureError::Malformed("the header is not text"))?;
            if value.starts_with("AWS ") {
                check_time(headers, now)?;
                return query.uncovered.map_or(Ok(()), |name| Err(SignatureError::NotCovered(name)));
            }
            let mut lists = value.split("SignedHeaders=").skip(1);
            let list = lists.next().ok_or(SignatureError::Malformed("no SignedHeaders"))?;
            if lists.next().is_some() {
                return Err(SignatureError::Malformed("SignedHeaders is there twice"));
            }
            list.split([',', ' ']).next().unwrap_or_default().to_owned()
        }
    };
    let is_signed = |name: &str| listed.split(';').any(|listed| listed.eq_ignore_ascii_case(name));
    if !is_signed("host") {
        return Err(SignatureError::NotSigned("host".to_owned()));
    }
    let is_covered = |name: &str| is_signed(name) || (!in_address && name == "x-amz-content-sha256");
    let counts = |name: &str| name.starts_with("x-amz-") || name == "host";
    for (name, value) in headers {
        // The signature omits values that are not UTF-8, even of listed headers.
        if counts(name.as_str())
            && (!is_covered(name.as_str()) || std::str::from_utf8(value.as_bytes()).is_err())
        {
            return Err(SignatureError::NotSigned(name.as_str().to_owned()));
        }
    }
    Ok(())
}

/// Refuses a version 2 request whose signed time is too far from ours.
fn check_time(headers: &HeaderMap, now: SystemTime) -> Result<(), SignatureError> {
    // As in the signature, `Date` counts only without `x-amz-date`.
    let value = headers.get("x-amz-date").or_else(|| headers.get(header::DATE));
    let text = value.and_then(|value| value.to_str().ok()).ok_or(SignatureError::NoTime)?;
    let time = Timestamp::parse(TimestampFormat::HttpDate, text)
        .or_else(|_| Timestamp::parse(TimestampFormat::DateTime, text))
        .map_err(|_| SignatureError::NoTime)?;
    let (time, now) = (OffsetDateTime::from(time), OffsetDateTime::from(now));
    let difference = (now - time).unsigned_abs();
    if difference > MAX_SKEW { Err(SignatureError::Skewed(difference.as_secs())) } else { Ok(()) }
}

/// The parts of a query that matter for signatures.
#[derive(Debug, Default)]
struct Query {
    /// The signed headers of a presigned URL; `None` if it has no signature of version 4.
    listed: Option<String>,
    /// Whether the query has a signature of version 2.
    is_old: bool,
    /// The first parameter that a signature of version 2 does not cover.
    uncovered: Option<String>,
}

impl Query {
    fn read(query: &str) -> Result<Query, SignatureError> {
        let mut read = Query::default();
        let mut found: [Option<String>; PARAMETERS.len()] = Default::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            // The same name can be encoded in several ways.
            let name = decoded(name);
            if let Some(at) = PARAMETERS.iter().position(|known| *known == name)
                && found[at].replace(decoded(value)).is_some()
            {
                return Err(SignatureError::Parameters(
                    "Query parameters of a signature may not be there twice.",
                ));
            }
            read.is_old |= name == "Signature";
            let is_covered = OLD_PARAMETERS.contains(&name.as_str())
                || OLD_RESOURCES.contains(&name.as_str())
                || name.starts_with("x-amz-");
            if !is_covered && read.uncovered.is_none() {
                read.uncovered = Some(name);
            }
        }
        let [.., expires, signature, listed] = found;
        if signature.is_some()
            && expires.and_then(|expires| expires.parse().ok()).is_none_or(|secs: u64| secs > WEEK_SECS)
        {
            return Err(SignatureError::Parameters(
                "X-Amz-Expires must be a number of seconds, and no more than a week.",
            ));
        }
        read.listed = match (signature, listed) {
            (None, _) => None,
            (Some(_), Some(listed)) => Some(listed),
            (Some(_), None) => return Err(SignatureError::Parameters("X-Amz-SignedHeaders is missing.")),
        };
        Ok(read)
    }
}

/// Decodes form-encoded text. Text that is not UTF-8 matches no known name.
pub(super) fn decoded(text: &str) -> String {
    let text = text.replace('+', " ");
    String::from_utf8_lossy(&urlencoding::decode_binary(text.as_bytes())).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNED: &str = "AWS4-HMAC-SHA256 Credential=k/20260101/default/s3/aws4_request, \
                          SignedHeaders=host;x-amz-date, Signature=00";
    const DATE: (&str, &str) = ("x-amz-date", "20260101T000000Z");

    fn check(headers: &HeaderMap, query: Option<&str>) -> Result<(), SignatureError> {
        super::check(headers, query, std::time::UNIX_EPOCH)
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn headers_that_count_must_be_signed() {
        assert_eq!(check(&headers(&[("authorization", SIGNED), DATE]), None), Ok(()));
        let more = headers(&[("authorization", SIGNED), DATE, ("x-amz-acl", "public-read")]);
        assert_eq!(check(&more, None), Err(SignatureError::NotSigned("x-amz-acl".into())));
        let query = Some("X-Amz-Expires=60&X-Amz-Signature=00&X-Amz-SignedHeaders=host%3Bx-amz-acl");
        assert_eq!(check(&headers(&[("x-amz-acl", "private")]), query), Ok(()));
        assert_eq!(check(&headers(&[DATE]), query), Err(SignatureError::NotSigned("x-amz-date".into())));
        // An encoded name means the same.
        let query = Some("X-Amz-Expires=60&X-Amz-Signatur%65=00&X-Amz-Signed%48eaders=host");
        assert_eq!(check(&headers(&[DATE]), query), Err(SignatureError::NotSigned("x-amz-date".into())));
        // A signature in the header covers the body's digest even if it is not listed; one in the URL does not.
        let digest = ("x-amz-content-sha256", "UNSIGNED-PAYLOAD");
        assert_eq!(check(&headers(&[("authorization", SIGNED), DATE, digest]), None), Ok(()));
        let address = Some("X-Amz-Expires=60&X-Amz-Signature=00&X-Amz-SignedHeaders=host");
        let loose = Err(SignatureError::NotSigned("x-amz-content-sha256".into()));
        assert_eq!(check(&headers(&[digest]), address), loose);
        // A value that the signature omits, next to one that it covers.
        let mut doubled = headers(&[("authorization", SIGNED), DATE]);
        doubled.append("x-amz-date", http::HeaderValue::from_bytes(b"\xff").unwrap());
        assert_eq!(check(&doubled, None), Err(SignatureError::NotSigned("x-amz-date".into())));
        let hostless = headers(&[("authorization", "AWS4-HMAC-SHA256 SignedHeaders=x-amz-date"), DATE]);
        assert_eq!(check(&hostless, None), Err(SignatureError::NotSigned("host".into())));
    }

    #[test]
    fn requests_without_a_signature_pass() {
        assert_eq!(check(&headers(&[DATE]), None), Ok(()));
        assert_eq!(check(&headers(&[DATE]), Some("prefix=a&X-Amz-SignedHeaders=host")), Ok(()));
    }

    #[test]
    fn requests_are_signed_once() {
        let query = Some("X-Amz-Expires=60&X-Amz-Signature=00&X-Amz-SignedHeaders=host");
        let generous = "AWS4-HMAC-SHA256 SignedHeaders=host;x-amz-acl, Signature=00";
        let both = headers(&[("authorization", generous), ("x-amz-acl", "public-read")]);
        assert_eq!(check(&both, query), Err(SignatureError::Twice));
        let doubled = headers(&[("authorization", SIGNED), ("authorization", generous)]);
        assert_eq!(check(&doubled, None), Err(SignatureError::Twice));
        for query in [
            "X-Amz-Expires=60&X-Amz-Signature=00&X-Amz-SignedHeaders=host&X-Amz-SignedHeaders=host%3Bx-amz-acl",
            "X-Amz-Expires=60&X-Amz-Signature=00",
            "X-Amz-Expires=60&X-Amz-Signature=00&X-Amz-SignedHeaders=host&X-Amz-Signature=01",
            "X-Amz-Expires=604801&X-Amz-Signature=00&X-Amz-SignedHeaders=host",
            "X-Amz-Expires=-1&X-Amz-Signature=00&X-Amz-SignedHeaders=host",
            "X-Amz-Signature=00&X-Amz-SignedHeaders=host",
        ] {
            assert!(
                matches!(check(&HeaderMap::new(), Some(query)), Err(SignatureError::Parameters(_))),
                "{query}"
            );
        }
        for value in ["AWS4-HMAC-SHA256 SignedHeaders=host, SignedHeaders=host;x-amz-acl", "AWS4-HMAC-SHA256"]
        {
            let unsound = check(&headers(&[("authorization", value)]), None);
            assert!(matches!(unsound, Err(SignatureError::Malformed(_))), "{value}");
        }
    }

    #[test]
    fn version_2_covers_less() {
        assert_eq!(check(&HeaderMap::new(), Some("AWSAccessKeyId=AK&Expires=1&Signature=a&acl")), Ok(()));
        let more = Some("AWSAccessKeyId=AK&Expires=1&Sign%61ture=a&retention");
        assert_eq!(check(&HeaderMap::new(), more), Err(SignatureError::NotCovered("retention".into())));
        let both = Some("Signature=a&X-Amz-Expires=60&X-Amz-Signature=00&X-Amz-SignedHeaders=host");
        assert_eq!(check(&HeaderMap::new(), both), Err(SignatureError::Twice));
        let old = ("authorization", "AWS AK:c2ln");
        let at = |date| check(&headers(&[old, ("date", date)]), Some("uploads"));
        assert_eq!(at("Thu, 01 Jan 1970 00:10:00 GMT"), Ok(()));
        assert_eq!(at("Thu, 01 Jan 1970 00:20:00 GMT"), Err(SignatureError::Skewed(1200)));
        assert_eq!(at("yesterday"), Err(SignatureError::NoTime));
        assert_eq!(check(&headers(&[old]), None), Err(SignatureError::NoTime));
        let signed_twice = check(&headers(&[old]), Some("Signature=a"));
        assert_eq!(signed_twice, Err(SignatureError::Twice));
        let uncovered =
            check(&headers(&[old, ("date", "Thu, 01 Jan 1970 00:00:00 GMT")]), Some("legal-hold"));
        assert_eq!(uncovered, Err(SignatureError::NotCovered("legal-hold".into())));
    }
}
