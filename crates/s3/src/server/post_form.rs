//! Objects that browsers upload as forms (`POST` of `multipart/form-data` to a bucket).
//!
//! The fields precede the file and are limited in size and number. The file is streamed, so a form takes no more memory
//! than any other upload. The object's headers are taken from the fields, which the form's user signs, and not from the
//! request's own headers.

use super::{Handler, refusal};
use crate::ops::{AccessChecker, S3Api, SecretKeyProvider};
use crate::post_policy::{Fields, PostSignature, length_error};
use crate::server::RequestInfo;
use bytes::Bytes;
use futures::stream;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode, request};
use multer::{Constraints, Field, Multipart, SizeLimit};
use s3s::auth::S3Auth as _;
use s3s::dto::{ETag, PutObjectInput, StreamingBlob, Tagging};
use s3s::{Body, S3Error, S3ErrorCode, S3Request, S3Result, s3_error};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};
use sync_wrapper::SyncStream;

/// Limits on a form: the bytes of a field, the bytes of all fields, and the number of fields.
const MAX_FIELD_BYTES: u64 = 64 << 10;
const MAX_FIELDS_BYTES: usize = 256 << 10;
const MAX_FIELDS: usize = 100;
/// How long a client may take for the fields.
const FIELDS_TIMEOUT: Duration = Duration::from_secs(60);
/// The content type of forms.
const MULTIPART: &str = "multipart/form-data";

/// Fields that correspond to the headers of other uploads.
const HEADERS: [&str; 25] = [
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-type",
    "expires",
    "x-amz-storage-class",
    "x-amz-website-redirect-location",
    "x-amz-checksum-algorithm",
    "x-amz-checksum-crc32",
    "x-amz-checksum-crc32c",
    "x-amz-checksum-crc64nvme",
    "x-amz-checksum-sha1",
    "x-amz-checksum-sha256",
    "x-amz-acl",
    "x-amz-grant-full-control",
    "x-amz-grant-read",
    "x-amz-grant-read-acp",
    "x-amz-grant-write-acp",
    "x-amz-server-side-encryption",
    "x-amz-server-side-encryption-aws-kms-key-id",
    "x-amz-server-side-encryption-context",
    "x-amz-server-side-encryption-customer-algorithm",
    "x-amz-server-side-encryption-customer-key",
    "x-amz-server-side-encryption-customer-key-md5",
];

/// The prefix of fields for object lock, which forms do not support.
const UNSUPPORTED: &str = "x-amz-object-lock-";

/// Returns whether a request is the upload of a form.
pub(super) fn is_post_form<B>(request: &Request<B>) -> bool {
    let kind = request.headers().get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let prefix = kind.trim_ascii_start().get(..MULTIPART.len());
    *request.method() == Method::POST
        && prefix.is_some_and(|prefix| prefix.eq_ignore_ascii_case(MULTIPART.as_bytes()))
}

/// Stores the object of a form; `in_host` is the bucket that the host names.
pub(super) async fn post_object(handler: &Handler, in_host: &str, request: Request<Body>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let answered = store(handler, in_host, &head, body).await;
    answered.unwrap_or_else(|error| {
        let status = error.status_code().unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        refusal(status, error.code().as_str(), error.message().unwrap_or_default())
    })
}

async fn store(
    handler: &Handler,
    in_host: &str,
    head: &request::Parts,
    body: Body,
) -> S3Result<Response<Body>> {
    let info = head.extensions.get::<Arc<RequestInfo>>().cloned().unwrap_or_default();
    let name = bucket_named(in_host, head.uri.path())?;
    info.set_bucket(&name);
    let bucket = handler.gateway.cached_bucket(&name).await?;
    info.set_owner(&bucket.owner);
    let kind = head.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let boundary = multer::parse_boundary(kind)
        .map_err(|_| s3_error!(MalformedPOSTRequest, "The body of your POST request has no boundary."))?;
    let limits = SizeLimit::new().per_field(MAX_FIELD_BYTES).for_field("file", u64::MAX);
    let form = Multipart::with_constraints(body, boundary, Constraints::new().size_limit(limits));
    let reading = tokio::time::timeout(FIELDS_TIMEOUT, fields(form));
    let (mut fields, form, file) = reading
        .await
        .map_err(|_| s3_error!(RequestTimeout, "The fields of the form did not come in time."))??;
    let key = fields.get("key").ok_or_else(|| {
        s3_error!(
            InvalidArgument,
            "Bucket POST must contain a field named 'key'.  If it is specified, please check the order of the fields."
        )
    })?;
    let filename = file.file_name().unwrap_or_default();
    let filename = filename.rsplit(['/', '\\']).next().unwrap_or_default();
    let key = key.replace("${filename}", filename);
    if key.is_empty() {
        return Err(s3_error!(InvalidArgument, "User key must have a length greater than 0."));
    }
    if !s3s::path::check_key(&key) {
        return Err(s3_error!(KeyTooLongError));
    }
    fields.insert("key".to_owned(), key.clone());
    if let Some(name) = fields.keys().find(|name| name.starts_with(UNSUPPORTED)) {
        return Err(s3_error!(NotImplemented, "forms can't have the field {name}"));
    }

    let signed = PostSignature::of(&fields)?;
    let lengths = match &signed {
        None => (0, u64::MAX),
        Some(signed) => {
            let secret =
                SecretKeyProvider(Arc::clone(&handler.gateway)).get_secret_key(signed.access_key).await?;
            if !signed.is_signed_with(secret.expose()) {
                return Err(s3_error!(SignatureDoesNotMatch));
            }
            signed.check_policy(&fields, &bucket.name, SystemTime::now())?
        }
    };
    let headers = headers(&fields)?;
    let access = AccessChecker(Arc::clone(&handler.gateway));
    let token = fields.get("x-amz-security-token").map(String::as_str);
    let signer = signed.as_ref().map(|signed| (signed.access_key, token));
    let requester = access.check_post_object(signer, head, &headers, &bucket, &key).await?;
    let verdict = Arc::new(OnceLock::new());
    let input = input(&bucket.name, &key, &fields, limited(form, file, lengths, Arc::clone(&verdict)))?;
    let mut extensions = head.extensions.clone();
    extensions.insert(requester);
    extensions.insert(bucket);
    let request = S3Request {
        input,
        method: Method::POST,
        uri: head.uri.clone(),
        headers,
        extensions,
        credentials: None,
        region: None,
        service: None,
        trailing_headers: None,
    };
    let stored = S3Api { gateway: Arc::clone(&handler.gateway) }.post_object(request).await;
    // An error of the file itself is more precise than the error of the write.
    let stored = stored.map_err(|error| match verdict.get() {
        Some((code, text)) => S3Error::with_message(S3ErrorCode::clone(code), *text),
        None => error,
    })?;
    let etag = stored.output.e_tag.map(|etag| etag.value().to_owned()).unwrap_or_default();
    let mut answer = answer(&fields, head, in_host, &name, &key, &etag);
    for (name, value) in &stored.headers {
        answer.headers_mut().insert(name.clone(), value.clone());
    }
    if let Some(version) = stored.output.version_id.and_then(|version| HeaderValue::try_from(version).ok()) {
        answer.headers_mut().insert("x-amz-version-id", version);
    }
    Ok(answer)
}

/// Returns the bucket that a form is sent to.
fn bucket_named(in_host: &str, path: &str) -> S3Result<String> {
    let path = path.trim_start_matches('/').trim_end_matches('/');
    let named = urlencoding::decode(path).map_err(|_| s3_error!(InvalidURI))?;
    match (in_host, named.as_ref()) {
        ("", "") => Err(s3_error!(MethodNotAllowed)),
        ("", named) if !named.contains('/') => Ok(named.to_owned()),
        (in_host, "") => Ok(in_host.to_owned()),
        _ => Err(s3_error!(MethodNotAllowed)),
    }
}

fn malformed(error: &multer::Error) -> S3Error {
    match error {
        multer::Error::FieldSizeExceeded { .. } | multer::Error::StreamSizeExceeded { .. } => {
            s3_error!(MaxPostPreDataLengthExceededError)
        }
        _ => s3_error!(
            MalformedPOSTRequest,
            "The body of your POST request is not well-formed multipart/form-data."
        ),
    }
}

/// Reads the fields up to the file.
async fn fields(mut form: Multipart<'static>) -> S3Result<(Fields, Multipart<'static>, Field<'static>)> {
    let mut fields = Fields::new();
    let mut taken = 0;
    while let Some(field) = form.next_field().await.map_err(|error| malformed(&error))? {
        let name = field.name().unwrap_or_default().to_ascii_lowercase();
        if name == "file" {
            return Ok((fields, form, field));
        }
        let value = field.bytes().await.map_err(|error| malformed(&error))?;
        taken += name.len() + value.len();
        if taken > MAX_FIELDS_BYTES || fields.len() >= MAX_FIELDS {
            return Err(s3_error!(MaxPostPreDataLengthExceededError));
        }
        let value = String::from_utf8(value.into())
            .map_err(|_| s3_error!(InvalidArgument, "the field {name} is not UTF-8"))?;
        if fields.contains_key(&name) {
            return Err(s3_error!(InvalidArgument, "the field {name} is there twice"));
        }
        fields.insert(name, value);
    }
    Err(s3_error!(InvalidArgument, "POST requires exactly one file upload per request."))
}

type Verdict = Arc<OnceLock<(S3ErrorCode, &'static str)>>;

/// Streams the file. The stream fails if the size is outside `lengths`, the minimum and the maximum, and sets `verdict` to
/// the error.
fn limited(
    form: Multipart<'static>,
    file: Field<'static>,
    lengths: (u64, u64),
    verdict: Verdict,
) -> StreamingBlob {
    let (min, max) = lengths;
    // The file is read from the form, so the stream keeps both.
    let begin = Some((form, file, 0_u64));
    let data = stream::unfold(begin, move |state| {
        let verdict = Arc::clone(&verdict);
        async move {
            let (form, mut file, mut taken) = state?;
            let refuse = |code: S3ErrorCode, text: &'static str| {
                _ = verdict.set((code, text));
                Some((Err::<Bytes, std::io::Error>(std::io::Error::other(text)), None))
            };
            match file.chunk().await {
                Ok(Some(chunk)) => {
                    taken += chunk.len() as u64;
                    if taken > max {
                        let (code, text) = length_error(taken, min);
                        return refuse(code, text);
                    }
                    Some((Ok(chunk), Some((form, file, taken))))
                }
                Ok(None) if taken < min => {
                    let (code, text) = length_error(taken, min);
                    refuse(code, text)
                }
                Ok(None) => None,
                Err(_) => refuse(S3ErrorCode::IncompleteBody, "The form ended within the file."),
            }
        }
    });
    StreamingBlob::wrap(SyncStream::new(Box::pin(data)))
}

/// Converts the fields to the headers of another upload.
fn headers(fields: &Fields) -> S3Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    let mut set = |name: &'static str, value: &str| {
        let value = HeaderValue::try_from(value);
        let value = value.map_err(|_| s3_error!(InvalidArgument, "the field {name} can't be a header"))?;
        headers.insert(HeaderName::from_static(name), value);
        Ok::<(), S3Error>(())
    };
    for name in HEADERS {
        if let Some(value) = fields.get(name) {
            set(name, value)?;
        }
    }
    if let Some(acl) = fields.get("acl") {
        set("x-amz-acl", acl)?;
    }
    if let Some(xml) = fields.get("tagging") {
        set("x-amz-tagging", &tags_of(xml)?)?;
    }
    Ok(headers)
}

fn input(bucket: &str, key: &str, fields: &Fields, body: StreamingBlob) -> S3Result<PutObjectInput> {
    let metadata: HashMap<String, String> = fields
        .iter()
        .filter_map(|(name, value)| Some((name.strip_prefix("x-amz-meta-")?.to_owned(), value.clone())))
        .filter(|(name, _)| !name.is_empty())
        .collect();
    let tagging = fields.get("tagging").map(|xml| tags_of(xml)).transpose()?;
    let input = PutObjectInput::builder()
        .bucket(bucket.to_owned())
        .key(key.to_owned())
        .body(Some(body))
        .metadata((!metadata.is_empty()).then_some(metadata))
        .tagging(tagging)
        .content_md5(fields.get("content-md5").cloned())
        .build();
    input.map_err(|error| s3_error!(error, InternalError))
}

/// Converts the tags of a form from XML to the format of the header.
fn tags_of(xml: &str) -> S3Result<String> {
    let mut reader = s3s::xml::Deserializer::new(xml.as_bytes());
    let read = <Tagging as s3s::xml::Deserialize>::deserialize(&mut reader);
    let tagging = read.and_then(|tagging| reader.expect_eof().map(|()| tagging));
    let tagging = tagging.map_err(|_| s3_error!(MalformedXML, "the field tagging is not a Tagging"))?;
    let pair = |tag: &s3s::dto::Tag| {
        let (key, value) = (tag.key.as_deref().unwrap_or_default(), tag.value.as_deref().unwrap_or_default());
        format!("{}={}", urlencoding::encode(key), urlencoding::encode(value))
    };
    Ok(tagging.tag_set.iter().map(pair).collect::<Vec<_>>().join("&"))
}

/// Returns the answer to a form whose object is stored.
fn answer(
    fields: &Fields,
    head: &request::Parts,
    in_host: &str,
    bucket: &str,
    key: &str,
    etag: &str,
) -> Response<Body> {
    let field = |name: &str| fields.get(name).map(String::as_str);
    let path = key.split('/').map(urlencoding::encode).collect::<Vec<_>>().join("/");
    let path = if in_host.is_empty() { format!("/{bucket}/{path}") } else { format!("/{path}") };
    let host = head.headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let secure = head.extensions.get::<crate::request::RequestOrigin>().is_some_and(|peer| peer.secure);
    let location = format!("http{}://{host}{path}", if secure { "s" } else { "" });
    let mut response = Response::new(Body::empty());
    let redirect = field("success_action_redirect").or(field("redirect"));
    if let Some(target) = redirect.and_then(|target| redirected(target, bucket, key, etag)) {
        *response.status_mut() = StatusCode::SEE_OTHER;
        response.headers_mut().insert(header::LOCATION, target);
    } else {
        *response.status_mut() = match field("success_action_status") {
            Some("200") => StatusCode::OK,
            Some("201") => StatusCode::CREATED,
            _ => StatusCode::NO_CONTENT,
        };
        if response.status() == StatusCode::CREATED {
            let text = format!(
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?><PostResponse><Location>{}</Location><Bucket>{}</Bucket>\
                 <Key>{}</Key><ETag>&quot;{etag}&quot;</ETag></PostResponse>",
                super::escaped(&location),
                super::escaped(bucket),
                super::escaped(key)
            );
            response = super::plain_response(StatusCode::CREATED, "application/xml", text);
        }
        if let Ok(location) = HeaderValue::try_from(location) {
            response.headers_mut().insert(header::LOCATION, location);
        }
    }
    if let Ok(etag) = ETag::Strong(etag.to_owned()).to_http_header() {
        response.headers_mut().insert(header::ETAG, etag);
    }
    response
}

/// Returns the URL to which a form's user is redirected; `None` if `target` is not a valid URL, which is then ignored.
fn redirected(target: &str, bucket: &str, key: &str, etag: &str) -> Option<HeaderValue> {
    let uri: http::Uri = target.parse().ok()?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none() {
        return None;
    }
    let (address, fragment) =
        target.split_once('#').map_or((target, None), |(address, rest)| (address, Some(rest)));
    let joint = if address.contains('?') { '&' } else { '?' };
    let encoded = urlencoding::encode;
    let etag = format!("\"{etag}\"");
    let mut all =
        format!("{address}{joint}bucket={}&key={}&etag={}", encoded(bucket), encoded(key), encoded(&etag));
    if let Some(fragment) = fragment {
        all.push('#');
        all.push_str(fragment);
    }
    HeaderValue::try_from(all).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_go_to_buckets() {
        assert_eq!(bucket_named("", "/photos").unwrap(), "photos");
        assert_eq!(bucket_named("", "/photos/").unwrap(), "photos");
        assert_eq!(bucket_named("photos", "/").unwrap(), "photos");
        for (host, path) in [("", "/"), ("", "/photos/key"), ("photos", "/key"), ("", "/photos%2Fkey")] {
            assert!(bucket_named(host, path).is_err(), "{host} {path}");
        }
    }

    #[test]
    fn users_are_sent_on() {
        let to = |target: &str| {
            redirected(target, "b", "a key", "0f").map(|value| value.to_str().unwrap().to_owned())
        };
        let tail = "bucket=b&key=a%20key&etag=%220f%22";
        assert_eq!(to("https://app.example/done").unwrap(), format!("https://app.example/done?{tail}"));
        assert_eq!(
            to("https://app.example/?x=1#top").unwrap(),
            format!("https://app.example/?x=1&{tail}#top")
        );
        for none in ["", "/done", "javascript:alert(1)", "https://a\r\nset-cookie: x", "nonsense"] {
            assert_eq!(to(none), None, "{none}");
        }
    }

    #[test]
    fn tags_come_as_xml() {
        let xml = "<Tagging><TagSet><Tag><Key>a b</Key><Value>1&amp;2</Value></Tag></TagSet></Tagging>";
        assert_eq!(tags_of(xml).unwrap(), "a%20b=1%262");
        assert!(tags_of("<Tagging>").is_err() && tags_of("a=b").is_err());
    }
}
