//! Signature version 4 where s3s does not check it: for services and regions that it does not know
//! (<https://docs.aws.amazon.com/IAM/latest/UserGuide/create-signed-request.html>).

use hmac::{Hmac, Mac};
use http::HeaderMap;
use s3s::crypto::{Checksum as _, Sha256 as BodySha256};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use time::macros::format_description;
use time::{Duration, OffsetDateTime, PrimitiveDateTime};

/// The maximum difference between a request's time and the current time.
const MAX_SKEW: Duration = Duration::minutes(15);

/// Why a signature is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SigV4Error {
    /// The request has no signature.
    Missing,
    /// The signature can't be parsed, or covers too little.
    Malformed,
    /// Its time differs too much from the current time.
    Skewed,
    /// It does not match the request.
    Wrong,
}

/// A request's signature, as its header has it.
#[derive(Debug)]
pub(crate) struct Signature<'a> {
    pub(crate) access_key: &'a str,
    date: &'a str,
    pub(crate) region: &'a str,
    pub(crate) service: &'a str,
    signed: Vec<&'a str>,
    signature: Vec<u8>,
    amz_date: &'a str,
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        _ = write!(out, "{byte:02x}");
        out
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    (digits.len().is_multiple_of(2) && digits.iter().all(u8::is_ascii_hexdigit))
        .then(|| digits.chunks(2).map(pair).collect())
        .flatten()
}

fn mac(key: &[u8], text: &[u8]) -> Hmac<Sha256> {
    let mut mac =
        <Hmac<Sha256> as Mac>::new_from_slice(key).expect("invariant: HMAC takes keys of any length");
    mac.update(text);
    mac
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    // If there were two headers of that name, it would be unclear which one was signed.
    let mut all = headers.get_all(name).iter();
    let value = all.next()?;
    if all.next().is_some() { None } else { value.to_str().ok() }
}

/// Parses the signature in a request's headers.
pub(crate) fn read(headers: &HeaderMap) -> Result<Signature<'_>, SigV4Error> {
    if !headers.contains_key(http::header::AUTHORIZATION) {
        return Err(SigV4Error::Missing);
    }
    let read = || {
        let value = text(headers, "authorization")?.strip_prefix("AWS4-HMAC-SHA256")?;
        let field = |name: &str| {
            let mut found =
                value.split(',').filter_map(|part| part.trim().strip_prefix(name)?.strip_prefix('='));
            let first = found.next()?;
            found.next().is_none().then_some(first)
        };
        let credential: Vec<&str> = field("Credential")?.rsplitn(5, '/').collect();
        let [end, service, region, date, access_key] = credential[..] else { return None };
        let mut signed: Vec<&str> = field("SignedHeaders")?.split(';').collect();
        signed.sort_unstable();
        let signature = unhex(field("Signature")?)?;
        let amz_date = text(headers, "x-amz-date")?;
        let covers = ["host", "x-amz-date"].iter().all(|needed| signed.contains(needed))
            && headers
                .keys()
                .all(|name| !name.as_str().starts_with("x-amz-") || signed.contains(&name.as_str()));
        (end == "aws4_request" && amz_date.starts_with(date) && date.len() == 8 && covers)
            .then_some(Signature { access_key, date, region, service, signed, signature, amz_date })
    };
    read().ok_or(SigV4Error::Malformed)
}

impl Signature<'_> {
    /// Checks the signature of a form that is posted to `/` without parameters in its URI. The body is in memory, so its
    /// digest is always checked, too.
    pub(crate) fn check_query_form(
        &self,
        headers: &HeaderMap,
        body: &[u8],
        secret: &str,
        now: OffsetDateTime,
    ) -> Result<(), SigV4Error> {
        let digest = hex(BodySha256::checksum(body).as_ref());
        if text(headers, "x-amz-content-sha256").is_some_and(|said| said != digest) {
            return Err(SigV4Error::Wrong);
        }
        self.check(
            &CanonicalRequest { method: "POST", path: "/", query: "", headers, payload: &digest },
            secret,
            now,
        )
    }

    /// Checks the signature of a request.
    pub(crate) fn check(
        &self,
        request: &CanonicalRequest<'_>,
        secret: &str,
        now: OffsetDateTime,
    ) -> Result<(), SigV4Error> {
        let format = format_description!("[year][month][day]T[hour][minute][second]Z");
        let at =
            PrimitiveDateTime::parse(self.amz_date, format).map_err(|_| SigV4Error::Malformed)?.assume_utc();
        if (now - at).abs() > MAX_SKEW {
            return Err(SigV4Error::Skewed);
        }
        self.compute(request, self.region, secret)?
            .verify_slice(&self.signature)
            .map_err(|_| SigV4Error::Wrong)
    }

    /// Computes the signature of the request with that secret in a region.
    pub(crate) fn compute(
        &self,
        request: &CanonicalRequest<'_>,
        region: &str,
        secret: &str,
    ) -> Result<Hmac<Sha256>, SigV4Error> {
        let CanonicalRequest { method, path, query, headers, payload } = request;
        let mut canonical = format!("{method}\n{}\n{}\n", canonical_path(path), canonical_query(query));
        for name in &self.signed {
            let value = text(headers, name).ok_or(SigV4Error::Malformed)?;
            let value = value.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
            _ = writeln!(canonical, "{name}:{value}");
        }
        _ = write!(canonical, "\n{}\n{payload}", self.signed.join(";"));
        let scope = format!("{}/{region}/{}/aws4_request", self.date, self.service);
        let to_sign = format!(
            "AWS4-HMAC-SHA256\n{}\n{scope}\n{}",
            self.amz_date,
            hex(&Sha256::digest(canonical.as_bytes()))
        );
        let mut key = format!("AWS4{secret}").into_bytes();
        for part in [self.date, region, self.service, "aws4_request"] {
            key = mac(&key, part.as_bytes()).finalize().into_bytes().to_vec();
        }
        Ok(mac(&key, to_sign.as_bytes()))
    }
}

/// The parts of a request that signatures cover.
#[derive(Debug)]
pub(crate) struct CanonicalRequest<'a> {
    pub(crate) method: &'a str,
    /// The path as in the request.
    pub(crate) path: &'a str,
    pub(crate) query: &'a str,
    pub(crate) headers: &'a HeaderMap,
    /// What the signature covers in place of the body, for example its digest.
    pub(crate) payload: &'a str,
}

/// Percent-encodes everything in a text except unreserved characters (RFC 3986) and those in `kept`. Parts that are already
/// encoded are decoded first.
fn encoded(text: &str, kept: &[u8]) -> String {
    let bytes = urlencoding::decode_binary(text.as_bytes());
    bytes.iter().fold(String::with_capacity(text.len()), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) || kept.contains(byte) {
            out.push(char::from(*byte));
        } else {
            _ = write!(out, "%{byte:02X}");
        }
        out
    })
}

fn canonical_path(path: &str) -> String {
    encoded(path, b"/")
}

fn canonical_query(query: &str) -> String {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let mut pairs: Vec<_> = pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (encoded(name, b""), encoded(value, b"")))
        .collect();
    pairs.sort_unstable();
    pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = b"Action=ListUsers&Version=2010-05-08";
    /// Made by botocore 1.43.11 for the body above.
    const AUTHORIZATION: &str = "AWS4-HMAC-SHA256 Credential=AKID/20260102/us-east-1/iam/aws4_request, \
        SignedHeaders=content-type;host;x-amz-date, Signature=SIGNATURE";

    fn headers(signature: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", AUTHORIZATION.replace("SIGNATURE", signature).parse().unwrap());
        headers.insert("content-type", "application/x-www-form-urlencoded; charset=utf-8".parse().unwrap());
        headers.insert("host", "127.0.0.1:8000".parse().unwrap());
        headers.insert("x-amz-date", "20260102T030405Z".parse().unwrap());
        headers
    }

    fn at() -> OffsetDateTime {
        time::macros::datetime!(2026-01-02 03:05 UTC)
    }

    const RIGHT: &str = "e041d985d3c4b0f2b67763ce75af7e6250a34c6165b6c4d552ca3642a765227f";

    #[test]
    fn a_signature_of_botocore_is_right() {
        let headers = headers(RIGHT);
        let signature = read(&headers).unwrap();
        assert_eq!((signature.access_key, signature.service), ("AKID", "iam"));
        assert_eq!(signature.check_query_form(&headers, BODY, "secret", at()), Ok(()));
        assert_eq!(signature.check_query_form(&headers, BODY, "other", at()), Err(SigV4Error::Wrong));
        assert_eq!(
            signature.check_query_form(&headers, b"Action=DeleteUser", "secret", at()),
            Err(SigV4Error::Wrong)
        );
        let later = at() + Duration::minutes(16);
        assert_eq!(signature.check_query_form(&headers, BODY, "secret", later), Err(SigV4Error::Skewed));
    }

    #[test]
    fn what_a_signature_does_not_cover_is_refused() {
        let mut loose = headers(RIGHT);
        loose.insert("x-amz-security-token", "t".parse().unwrap());
        assert_eq!(read(&loose).unwrap_err(), SigV4Error::Malformed);
        let mut twice = headers(RIGHT);
        twice.append("host", "evil".parse().unwrap());
        assert_eq!(
            read(&twice).unwrap().check_query_form(&twice, BODY, "secret", at()),
            Err(SigV4Error::Malformed)
        );
        let mut changed = headers(RIGHT);
        changed.insert("host", "evil".parse().unwrap());
        assert_eq!(
            read(&changed).unwrap().check_query_form(&changed, BODY, "secret", at()),
            Err(SigV4Error::Wrong)
        );
        for wrong in ["", "zz", "00"] {
            let headers = headers(wrong);
            let checked = read(&headers)
                .and_then(|signature| signature.check_query_form(&headers, BODY, "secret", at()));
            assert!(checked.is_err(), "{wrong}");
        }
        assert_eq!(read(&HeaderMap::new()).unwrap_err(), SigV4Error::Missing);
    }
}
