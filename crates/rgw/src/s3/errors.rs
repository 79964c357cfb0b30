//! S3's codes for the gateway's errors.

use crate::error::Error;
use nacre_types::errno::Errno;
use s3s::{S3Error, S3ErrorCode};

impl From<Error> for S3Error {
    fn from(error: Error) -> S3Error {
        use S3ErrorCode as Code;
        let code = match &error {
            Error::Rados(rados) => match rados.errno() {
                Errno::ENOSPC | Errno::EDQUOT => Code::ServiceUnavailable,
                Errno::ETIMEDOUT | Errno::ENOTCONN | Errno::ESHUTDOWN => Code::ServiceUnavailable,
                Errno::ENAMETOOLONG => Code::KeyTooLongError,
                _ => Code::InternalError,
            },
            Error::Corrupt { .. } => Code::InternalError,
            Error::Body(text) if text.contains("Sha256Mismatch") => {
                Code::Custom("XAmzContentSHA256Mismatch".into())
            }
            Error::Body(text) if text.contains("ignature") => Code::SignatureDoesNotMatch,
            Error::Body(_) => Code::IncompleteBody,
            Error::NoSuchUser(_) => Code::InvalidAccessKeyId,
            Error::UserExists(_) | Error::RoleExists(_) => Code::Custom("UserAlreadyExists".into()),
            Error::InvalidToken => Code::InvalidToken,
            Error::ExpiredToken => Code::ExpiredToken,
            Error::NoSuchRole(_) | Error::LimitExceeded(_) => Code::InvalidArgument,
            Error::NoSuchMetadata(_) => Code::NoSuchKey,
            Error::NoSuchBucket(_) => Code::NoSuchBucket,
            Error::BucketIsYours(_) => Code::BucketAlreadyOwnedByYou,
            Error::BucketExists(_) => Code::BucketAlreadyExists,
            Error::BucketNotEmpty(_) => Code::BucketNotEmpty,
            Error::IndexBusy(_) => Code::SlowDown,
            Error::AclWithOwnership(_) => Code::InvalidBucketAclWithObjectOwnership,
            Error::BucketState(_) => Code::InvalidBucketState,
            Error::TooManyBuckets(_) => Code::TooManyBuckets,
            Error::NoSuchKey | Error::DeleteMarker { named: false, .. } => Code::NoSuchKey,
            Error::DeleteMarker { named: true, .. } => Code::MethodNotAllowed,
            Error::NoSuchVersion => Code::NoSuchVersion,
            Error::Locked | Error::WrongKey => Code::AccessDenied,
            Error::Contended(_) => Code::SlowDown,
            Error::NoSuchUpload => Code::NoSuchUpload,
            Error::InvalidPart(_) => Code::InvalidPart,
            Error::InvalidPartOrder => Code::InvalidPartOrder,
            Error::PartTooSmall(_) => Code::EntityTooSmall,
            Error::Precondition(_) => Code::PreconditionFailed,
            Error::BadDigest(_) => Code::BadDigest,
            Error::TooLarge => Code::EntityTooLarge,
            Error::QuotaExceeded => Code::Custom("QuotaExceeded".into()),
            Error::Denied(_) => Code::AccessDenied,
            Error::Invalid(_) => Code::InvalidArgument,
        };
        let internal = matches!(code, Code::InternalError);
        if internal {
            tracing::error!(%error, "rgw: a request failed");
        }
        // What goes wrong inside is nobody's business outside.
        let text = if internal { "internal error".to_owned() } else { error.to_string() };
        let status = match &code {
            Code::Custom(name) if &**name == "XAmzContentSHA256Mismatch" => {
                Some(http::StatusCode::BAD_REQUEST)
            }
            Code::Custom(name) if &**name == "QuotaExceeded" => Some(http::StatusCode::FORBIDDEN),
            Code::Custom(_) => Some(http::StatusCode::CONFLICT),
            _ => None,
        };
        let mut answer = S3Error::with_message(code, text);
        if let Some(status) = status {
            answer.set_status_code(status);
        }
        if let Error::DeleteMarker { version, mtime_ns, .. } = &error {
            answer.set_headers(marker_headers(version, *mtime_ns));
        }
        answer
    }
}

/// What an answer says of a delete marker that was to be read.
fn marker_headers(version: &str, mtime_ns: u64) -> http::HeaderMap {
    let mut headers = http::HeaderMap::new();
    headers.insert("x-amz-delete-marker", http::HeaderValue::from_static("true"));
    if let Ok(version) = http::HeaderValue::from_str(version) {
        headers.insert("x-amz-version-id", version);
    }
    let mut text = Vec::new();
    let formatted = super::timestamp(mtime_ns).format(s3s::dto::TimestampFormat::HttpDate, &mut text);
    if let (Ok(()), Ok(modified)) = (formatted, http::HeaderValue::from_bytes(&text)) {
        headers.insert(http::header::LAST_MODIFIED, modified);
    }
    headers
}
