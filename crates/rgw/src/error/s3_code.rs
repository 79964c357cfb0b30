//! S3's codes for errors.

use super::{BodyFault, Error};
use nacre_types::errno::Errno;
use s3s::dto::{Timestamp, TimestampFormat};
use s3s::{S3Error, S3ErrorCode};
use std::time::{Duration, UNIX_EPOCH};

/// Messages for clients about faults of the server.
const INTERNAL: &str = "We encountered an internal error. Please try again.";
const UNAVAILABLE: &str = "Service is unable to handle request.";
const SLOW_DOWN: &str = "Please reduce your request rate.";

/// Logs an error that is answered with a 5xx status. Operators find the details in the log; clients get a generic message.
pub fn log_server_error(error: &Error) {
    match error {
        // Overload and transient conflicts.
        Error::IndexBusy(_) | Error::Contended(_) | Error::QueueFull(_) => {
            tracing::debug!(%error, "rgw: a request is refused");
        }
        error if error.is_unavailable() => {
            tracing::warn!(%error, "rgw: a request failed, the cluster can't serve it");
        }
        _ => tracing::error!(%error, "rgw: a request failed"),
    }
}

impl From<Error> for S3Error {
    fn from(error: Error) -> S3Error {
        use S3ErrorCode as Code;
        let code = match &error {
            Error::Rados(rados) if rados.errno() == Errno::ENAMETOOLONG => Code::KeyTooLongError,
            error if error.is_unavailable() => Code::ServiceUnavailable,
            Error::Rados(_) | Error::Corrupt { .. } | Error::Internal { .. } => Code::InternalError,
            Error::Body(BodyFault::Sha256Mismatch) => Code::Custom("XAmzContentSHA256Mismatch".into()),
            Error::Body(BodyFault::ChunkSignature) => Code::SignatureDoesNotMatch,
            Error::Body(BodyFault::Incomplete) => Code::IncompleteBody,
            Error::NoSuchUser(_) => Code::InvalidAccessKeyId,
            Error::UserExists(_) | Error::RoleExists(_) => Code::Custom("UserAlreadyExists".into()),
            Error::KeyExists(_) => Code::Custom("KeyExists".into()),
            Error::InvalidToken => Code::InvalidToken,
            Error::ExpiredToken => Code::ExpiredToken,
            Error::NoSuchRole(_) | Error::LimitExceeded(_) => Code::InvalidArgument,
            Error::NoSuchMetadata(_) => Code::NoSuchKey,
            // S3 answers this to a configuration whose destination it can't use.
            Error::NoSuchTopic(_) => Code::InvalidArgument,
            Error::Topic(error) => {
                Code::from_bytes(error.s3_code().as_bytes()).unwrap_or(Code::InvalidArgument)
            }
            Error::NoSuchBucket(_) => Code::NoSuchBucket,
            Error::BucketAlreadyOwned(_) => Code::BucketAlreadyOwnedByYou,
            Error::BucketExists(_) => Code::BucketAlreadyExists,
            Error::BucketNotEmpty(_) => Code::BucketNotEmpty,
            Error::IndexBusy(_) | Error::Contended(_) | Error::QueueFull(_) => Code::SlowDown,
            Error::AclWithOwnership(_) => Code::InvalidBucketAclWithObjectOwnership,
            Error::BucketState(_) => Code::InvalidBucketState,
            Error::TooManyBuckets(_) => Code::TooManyBuckets,
            Error::NoSuchKey | Error::DeleteMarker { named: false, .. } => Code::NoSuchKey,
            Error::DeleteMarker { named: true, .. } => Code::MethodNotAllowed,
            Error::InvalidVersionId => Code::InvalidArgument,
            Error::NoSuchVersion => Code::NoSuchVersion,
            Error::Locked | Error::WrongKey => Code::AccessDenied,
            Error::NoSuchUpload => Code::NoSuchUpload,
            Error::InvalidPart(_) => Code::InvalidPart,
            Error::InvalidPartOrder => Code::InvalidPartOrder,
            Error::PartTooSmall(_) => Code::EntityTooSmall,
            Error::Precondition(_) => Code::PreconditionFailed,
            Error::BadDigest(_) => Code::BadDigest,
            Error::TooLarge => Code::EntityTooLarge,
            Error::QuotaExceeded => Code::Custom("QuotaExceeded".into()),
            Error::Denied(_) => Code::AccessDenied,
            Error::NoSuchStorageClass(_) => Code::InvalidStorageClass,
            Error::Invalid(_) | Error::ZoneInUse(_) | Error::ClassInUse { .. } => Code::InvalidArgument,
        };
        let text = match &code {
            Code::InternalError => Some(INTERNAL),
            Code::ServiceUnavailable => Some(UNAVAILABLE),
            Code::SlowDown => Some(SLOW_DOWN),
            _ => None,
        };
        if text.is_some() {
            log_server_error(&error);
        }
        let text = match (&error, text) {
            (_, Some(text)) => text.to_owned(),
            (Error::Rados(_), None) => "Your key is too long".to_owned(),
            (error, None) => error.to_string(),
        };
        let status = match &error {
            Error::Body(BodyFault::Sha256Mismatch) => Some(http::StatusCode::BAD_REQUEST),
            Error::QuotaExceeded => Some(http::StatusCode::FORBIDDEN),
            Error::UserExists(_) | Error::RoleExists(_) | Error::KeyExists(_) => {
                Some(http::StatusCode::CONFLICT)
            }
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

/// Returns the headers of the answer to a read of a delete marker.
fn marker_headers(version: &str, mtime_ns: u64) -> http::HeaderMap {
    let mut headers = http::HeaderMap::new();
    headers.insert("x-amz-delete-marker", http::HeaderValue::from_static("true"));
    if let Ok(version) = http::HeaderValue::from_str(version) {
        headers.insert("x-amz-version-id", version);
    }
    let mut text = Vec::new();
    let modified = Timestamp::from(UNIX_EPOCH + Duration::from_nanos(mtime_ns));
    let formatted = modified.format(TimestampFormat::HttpDate, &mut text);
    if let (Ok(()), Ok(modified)) = (formatted, http::HeaderValue::from_bytes(&text)) {
        headers.insert(http::header::LAST_MODIFIED, modified);
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::encoding::DecodeError;

    fn answer(error: Error) -> (u16, String, String) {
        let error = S3Error::from(error);
        let status = error.status_code().map_or(0, |status| status.as_u16());
        (status, error.code().as_str().to_owned(), error.message().unwrap_or_default().to_owned())
    }

    #[test]
    fn faults_of_the_server_are_5xx_without_internal_text() {
        let corrupt = DecodeError::Corrupt { what: "user", detail: "secret detail".into() };
        let internal = Error::Internal { what: "the write of an object", detail: "secret detail".into() };
        for error in [internal, Error::Corrupt { name: "secret.object".into(), source: corrupt }] {
            let said = answer(error);
            assert_eq!(said, (500, "InternalError".into(), INTERNAL.into()));
        }
        let (status, code, text) = answer(Error::Contended("secret.shard".into()));
        assert_eq!((status, &*code, &*text), (503, "SlowDown", SLOW_DOWN));
        let timed_out = nacre_client::Error::TimedOut("secret.object".into());
        let (status, code, text) = answer(timed_out.into());
        assert_eq!((status, &*code, &*text), (503, "ServiceUnavailable", UNAVAILABLE));
    }

    #[tokio::test]
    async fn a_panic_is_a_fault_of_the_server() {
        let ended = tokio::spawn(async { panic!("secret detail") }).await;
        let error: Error = ended.map_err(Error::task_failed("the write of an object")).unwrap_err();
        assert_eq!(answer(error), (500, "InternalError".into(), INTERNAL.into()));
    }

    #[test]
    fn faults_of_bodies_have_their_codes() {
        assert_eq!(answer(BodyFault::Sha256Mismatch.into()).1, "XAmzContentSHA256Mismatch");
        assert_eq!(answer(BodyFault::ChunkSignature.into()).1, "SignatureDoesNotMatch");
        assert_eq!(answer(BodyFault::Incomplete.into()).1, "IncompleteBody");
    }
}
