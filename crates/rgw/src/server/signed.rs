//! What signatures of requests must cover. The protocol's library checks signatures; what it would honour though it is not
//! signed is refused here before.
//!
//! Every `x-amz-` header of a signed request must be among the signed ones, and so must the host
//! (<https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html>). Only `x-amz-content-sha256` may be
//! missing there in a signed header: the canonical request has its value in place of the body. A request is signed once,
//! in its header or in its address. A signature of version 2 covers all `x-amz-` headers, but of the address only what S3
//! knew then, and not how old it is in a header: what else would change what is done is refused, and what is too old.

use http::{HeaderMap, StatusCode, header};
use s3s::dto::{Timestamp, TimestampFormat};
use std::fmt;
use std::time::{Duration, SystemTime};
use time::OffsetDateTime;

/// Parameters of signed addresses; each counts once.
const PARAMETERS: [&str; 6] = [
    "X-Amz-Algorithm",
    "X-Amz-Credential",
    "X-Amz-Date",
    "X-Amz-Expires",
    "X-Amz-Signature",
    "X-Amz-SignedHeaders",
];

/// Parameters that a signature of version 2 covers
/// (<https://docs.aws.amazon.com/AmazonS3/latest/userguide/RESTAuthentication.html>), and those that only choose what of an
/// answer is shown.
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
/// More of them.
const OLD_RESOURCES: [&str; 3] = ["versioning", "versions", "website"];
/// How long an address may count.
const WEEK_SECS: u64 = 7 * 24 * 3600;
/// How far the time in a header of version 2 may be from ours.
const MAX_SKEW: Duration = Duration::from_secs(15 * 60);

/// Why the signature of a request is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SignatureError {
    /// A header counts that is not signed.
    NotSigned(String),
    /// It is signed in more than one way.
    Twice,
    /// Something of the header is there twice, or not at all.
    Malformed(&'static str),
    /// A parameter of the signature is there twice, not at all, or not as it may be.
    Parameters(&'static str),
    /// A parameter counts that a signature of version 2 does not cover.
    NotCovered(String),
    /// The time of a signature of version 2 is so many seconds from ours.
    Skewed(u64),
    /// It has none.
    NoTime,
}

impl SignatureError {
    /// Status and S3's code.
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

/// Refuses a request whose signature does not cover what it must. Whether it is right is not looked at.
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
        // The signature leaves out values that are not UTF-8, whatever is listed.
        if counts(name.as_str())
            && (!is_covered(name.as_str()) || std::str::from_utf8(value.as_bytes()).is_err())
        {
            return Err(SignatureError::NotSigned(name.as_str().to_owned()));
        }
    }
    Ok(())
}

/// Refuses a request of version 2 whose time, which is signed, is far from ours.
fn check_time(headers: &HeaderMap, now: SystemTime) -> Result<(), SignatureError> {
    // As the signature has it: the one counts only where the other is not there.
    let value = headers.get("x-amz-date").or_else(|| headers.get(header::DATE));
    let text = value.and_then(|value| value.to_str().ok()).ok_or(SignatureError::NoTime)?;
    let time = Timestamp::parse(TimestampFormat::HttpDate, text)
        .or_else(|_| Timestamp::parse(TimestampFormat::DateTime, text))
        .map_err(|_| SignatureError::NoTime)?;
    let (time, now) = (OffsetDateTime::from(time), OffsetDateTime::from(now));
    let difference = (now - time).unsigned_abs();
    if difference > MAX_SKEW { Err(SignatureError::Skewed(difference.as_secs())) } else { Ok(()) }
}

/// What of a query counts for signatures.
#[derive(Debug, Default)]
struct Query {
    /// The headers that a signed address lists; `None` where it is not signed by version 4.
    listed: Option<String>,
    /// It is signed by version 2.
    is_old: bool,
    /// The first parameter that version 2 does not cover.
    uncovered: Option<String>,
}

impl Query {
    fn read(query: &str) -> Result<Query, SignatureError> {
        let mut read = Query::default();
        let mut found: [Option<String>; PARAMETERS.len()] = Default::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            // Names may be written in more than one way, and mean the same.
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

/// Text of an address as forms have it. What is not UTF-8 is nothing that counts.
fn decoded(text: &str) -> String {
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
        // Written otherwise, it means the same.
        let query = Some("X-Amz-Expires=60&X-Amz-Signatur%65=00&X-Amz-Signed%48eaders=host");
        assert_eq!(check(&headers(&[DATE]), query), Err(SignatureError::NotSigned("x-amz-date".into())));
        // The digest of the body is in the signature, whether it is listed or not, but not in an address.
        let digest = ("x-amz-content-sha256", "UNSIGNED-PAYLOAD");
        assert_eq!(check(&headers(&[("authorization", SIGNED), DATE, digest]), None), Ok(()));
        let address = Some("X-Amz-Expires=60&X-Amz-Signature=00&X-Amz-SignedHeaders=host");
        let loose = Err(SignatureError::NotSigned("x-amz-content-sha256".into()));
        assert_eq!(check(&headers(&[digest]), address), loose);
        // A value that the signature leaves out, beside one that it covers.
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
