//! The query APIs: a form posted to `/` is answered by IAM and STS ([`crate::iam`]) or by SNS ([`crate::topics`]), whichever
//! its `Action` belongs to.

use crate::forms::{QueryError, Service, authenticate};
use crate::request::RequestInfo;
use crate::{iam, signature, topics};
use http::{HeaderValue, Request, Response, StatusCode, header};
use nacre_rgw::gateway::Gateway;
use s3s::Body;
use std::sync::Arc;

/// Answers a form.
pub(crate) async fn respond(gateway: &Arc<Gateway>, request: Request<Body>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let info = head.extensions.get::<Arc<RequestInfo>>().cloned().unwrap_or_default();
    let id = info.id().to_owned();
    // Until the action is known, the service in the signature determines the format of errors.
    let signed_for = signature::read(&head.headers).ok().and_then(|signed| Service::named(signed.service));
    let mut is_sns = signed_for == Some(Service::Sns);
    let answered = match authenticate(gateway, &head, body, info).await {
        Ok(form) => {
            let action = action_of(&form.body);
            is_sns |= nacre_topics::sns::is_action(&action);
            if is_sns { topics::answer(gateway, &form).await } else { iam::answer(gateway, &form).await }
        }
        Err(failure) => Err(failure),
    };
    let (status, text) = match answered {
        Ok(text) => (StatusCode::OK, text),
        Err(QueryError { status, code, message }) if is_sns => {
            (status, nacre_topics::sns::error(status.as_u16(), code, &message, &id))
        }
        Err(failure) => (failure.status, iam::error_xml(&failure)),
    };
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/xml"));
    response
}

/// Returns the `Action` of a form, or an empty text if it has none. Only the choice of the API depends on it; the API parses
/// the form itself.
fn action_of(body: &[u8]) -> String {
    let fields = body.split(|byte| *byte == b'&');
    let action = fields.filter_map(|field| field.strip_prefix(b"Action=")).next().unwrap_or_default();
    String::from_utf8_lossy(action).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_action_of_a_form_is_found_wherever_it_stands() {
        assert_eq!(action_of(b"Action=CreateTopic&Name=a"), "CreateTopic");
        assert_eq!(action_of(b"Name=a&Action=GetUser"), "GetUser");
        assert_eq!(action_of(b"Name=Action=x"), "");
        assert_eq!(action_of(b""), "");
    }
}
