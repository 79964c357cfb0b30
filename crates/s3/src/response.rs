//! Responses that are not S3's own.

use http::{HeaderValue, Response, StatusCode, header};
use s3s::Body;

/// Returns a response with that text as its body.
pub(crate) fn plain_response(status: StatusCode, kind: &'static str, text: String) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
