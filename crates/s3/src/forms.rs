//! Forms posted to `/`, as the query protocols of IAM, STS and SNS have them ([`crate::query_api`]): their signatures and
//! their errors.
//!
//! A form's parameters are all in its body, whose digest every signature covers.

use crate::caller::Caller;
use crate::conditions::ConditionContext;
use crate::request::{RequestInfo, RequestOrigin};
use crate::signature::{self, SigV4Error};
use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode, header, request};
use nacre_rgw::error::{Error, log_server_error};
use nacre_rgw::gateway::Gateway;
use s3s::Body;
use std::sync::Arc;
use time::OffsetDateTime;

/// The maximum length of a form.
const MAX_BODY_BYTES: usize = nacre_topics::sns::MAX_FORM_BYTES;

/// Why a query request was refused: HTTP status, AWS's error code, and a message.
#[derive(Debug)]
pub(crate) struct QueryError {
    pub(crate) status: StatusCode,
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

impl QueryError {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> QueryError {
        QueryError { status, code, message: message.into() }
    }

    pub(crate) fn validation(message: impl Into<String>) -> QueryError {
        QueryError::new(StatusCode::BAD_REQUEST, "ValidationError", message)
    }

    pub(crate) fn denied(action: &str) -> QueryError {
        QueryError::new(StatusCode::FORBIDDEN, "AccessDenied", format!("not authorized to perform {action}"))
    }
}

impl From<Error> for QueryError {
    fn from(error: Error) -> QueryError {
        let (status, code) = match &error {
            Error::NoSuchUser(_) | Error::NoSuchRole(_) => (StatusCode::NOT_FOUND, "NoSuchEntity"),
            Error::UserExists(_) | Error::KeyExists(_) | Error::RoleExists(_) => {
                (StatusCode::CONFLICT, "EntityAlreadyExists")
            }
            Error::NoSuchTopic(_) => (StatusCode::NOT_FOUND, "NotFound"),
            Error::Topic(error) => {
                (StatusCode::from_u16(error.status()).unwrap_or(StatusCode::BAD_REQUEST), error.sns_code())
            }
            Error::LimitExceeded(_) => (StatusCode::CONFLICT, "LimitExceeded"),
            Error::Invalid(_) => (StatusCode::BAD_REQUEST, "ValidationError"),
            Error::InvalidToken => (StatusCode::FORBIDDEN, "InvalidClientTokenId"),
            Error::ExpiredToken => (StatusCode::FORBIDDEN, "ExpiredToken"),
            Error::Denied(_) => (StatusCode::FORBIDDEN, "AccessDenied"),
            Error::IndexBusy(_) | Error::Contended(_) => {
                (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable")
            }
            error if error.is_unavailable() => (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable"),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "InternalFailure"),
        };
        if status.is_server_error() {
            log_server_error(&error);
            return QueryError::new(
                status,
                code,
                "The request processing has failed because of an internal error.",
            );
        }
        QueryError { status, code, message: error.to_string() }
    }
}

impl From<nacre_notify::Error> for QueryError {
    fn from(error: nacre_notify::Error) -> QueryError {
        Error::from(error).into()
    }
}

impl From<SigV4Error> for QueryError {
    fn from(refusal: SigV4Error) -> QueryError {
        let (code, message) = match refusal {
            SigV4Error::Missing => ("MissingAuthenticationToken", "the request is not signed"),
            SigV4Error::Malformed => {
                ("IncompleteSignature", "the signature can't be understood, or covers too little")
            }
            SigV4Error::Skewed => ("RequestExpired", "the request's time is too far from this server's"),
            SigV4Error::Wrong => ("SignatureDoesNotMatch", "the signature is not that of the request"),
        };
        QueryError::new(StatusCode::FORBIDDEN, code, message)
    }
}

/// A query request with a valid signature.
pub(crate) struct SignedQuery {
    pub(crate) body: Bytes,
    pub(crate) caller: Caller,
    /// The service that it was signed for.
    pub(crate) service: Service,
    /// Whether it was sent over TLS.
    pub(crate) secure: bool,
    /// Collects information about the request while it is served.
    pub(crate) info: Arc<RequestInfo>,
}

/// The services that forms are signed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    Iam,
    Sts,
    Sns,
    /// For clients that sign all requests to this endpoint as requests of S3.
    S3,
}

impl Service {
    pub(crate) fn named(name: &str) -> Option<Service> {
        Some(match name {
            "iam" => Service::Iam,
            "sts" => Service::Sts,
            "sns" => Service::Sns,
            "s3" => Service::S3,
            _ => return None,
        })
    }
}

/// Whether a request is a query request: a form posted to `/`.
pub(crate) fn is_query_request(method: &Method, path: &str, headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    *method == Method::POST
        && path == "/"
        && kind
            .split(';')
            .next()
            .is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/x-www-form-urlencoded"))
}

/// Checks the signature of a form and identifies its sender.
pub(crate) async fn authenticate(
    gateway: &Arc<Gateway>,
    head: &request::Parts,
    mut body: Body,
    info: Arc<RequestInfo>,
) -> Result<SignedQuery, QueryError> {
    if head.uri.query().is_some_and(|query| !query.is_empty()) {
        return Err(QueryError::new(
            StatusCode::BAD_REQUEST,
            "InvalidParameterCombination",
            "parameters are in the form",
        ));
    }
    let body = body.store_all_limited(MAX_BODY_BYTES).await;
    let body = body.map_err(|_| QueryError::validation("the form is cut short or too long"))?;
    let signature = signature::read(&head.headers)?;
    let other_service = || {
        QueryError::new(
            StatusCode::FORBIDDEN,
            "SignatureDoesNotMatch",
            "the signature is for another service",
        )
    };
    let service = Service::named(signature.service).ok_or_else(other_service)?;
    let unknown =
        || QueryError::new(StatusCode::FORBIDDEN, "InvalidClientTokenId", "there is no such access key");
    let secret = match gateway.authenticator.secret_key(signature.access_key).await {
        Err(Error::NoSuchUser(_)) => return Err(unknown()),
        secret => secret?,
    };
    signature.check_query_form(&head.headers, &body, &secret, OffsetDateTime::now_utc())?;
    let token = head.headers.get("x-amz-security-token").and_then(|token| token.to_str().ok());
    let assumed = match gateway.authenticator.authenticate(signature.access_key, token).await {
        Err(Error::NoSuchUser(_)) => return Err(unknown()),
        assumed => assumed?,
    };
    let peer = head.extensions.get::<RequestOrigin>();
    let context =
        ConditionContext::of(&head.headers, "", peer, Some(assumed.user.as_ref()), assumed.role.as_ref());
    let temporary = nacre_rgw::user::is_temporary(signature.access_key);
    Ok(SignedQuery {
        body,
        caller: Caller { assumed, temporary, context },
        service,
        secure: peer.is_some_and(|peer| peer.secure),
        info,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_told_from_objects() {
        let headers = |kind: &str| HeaderMap::from_iter([(header::CONTENT_TYPE, kind.parse().unwrap())]);
        let form = "application/x-www-form-urlencoded; charset=utf-8";
        assert!(is_query_request(&Method::POST, "/", &headers(form)));
        assert!(!is_query_request(&Method::POST, "/bucket", &headers(form)));
        assert!(!is_query_request(&Method::PUT, "/", &headers(form)));
        assert!(!is_query_request(&Method::POST, "/", &headers("multipart/form-data")));
    }
}
