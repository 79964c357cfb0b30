//! Websites of buckets: objects as pages, for anonymous clients that may read them.
//!
//! A page is fetched as an anonymous `GetObject` of the same service that serves S3, so that ACLs, policies, ranges and
//! conditions apply as they do there. This module adds the mapping from paths to objects, redirections, and errors that
//! people can read.

use super::{Handler, escaped, plain_response};
use crate::request::RequestOrigin;
use http::{HeaderValue, Method, Request, Response, StatusCode, header, request};
use nacre_rgw::bucket::Bucket;
use nacre_rgw::error::Error;
use s3s::Body;
use s3s::dto::{Redirect, RoutingRule, WebsiteConfiguration};
use std::fmt::Write as _;
use std::sync::Arc;

/// The header of an object that redirects to another location.
const REDIRECT_LOCATION: &str = "x-amz-website-redirect-location";
/// Request headers that are passed on to fetch the page.
const PASSED: [header::HeaderName; 7] = [
    header::RANGE,
    header::IF_MATCH,
    header::IF_NONE_MATCH,
    header::IF_MODIFIED_SINCE,
    header::IF_UNMODIFIED_SINCE,
    header::REFERER,
    header::USER_AGENT,
];

/// An error in S3's terms.
struct WebsiteError {
    status: StatusCode,
    code: String,
    message: String,
}

impl WebsiteError {
    fn new(status: StatusCode, code: &str, message: &str) -> WebsiteError {
        WebsiteError { status, code: code.to_owned(), message: message.to_owned() }
    }
}

/// Answers a request to the website of the bucket with the given name.
pub(super) async fn serve(handler: &Handler, bucket: &str, request: Request<()>) -> Response<Body> {
    let (head, ()) = request.into_parts();
    if !matches!(head.method, Method::GET | Method::HEAD) {
        let message = "The specified method is not allowed against this resource.";
        return page(
            &head,
            &WebsiteError::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message),
            "",
        );
    }
    let path = head.uri.path().trim_start_matches('/');
    let Ok(key) = urlencoding::decode(path).map(|key| key.into_owned()) else {
        return page(
            &head,
            &WebsiteError::new(StatusCode::BAD_REQUEST, "InvalidURI", "Couldn't parse the specified URI."),
            "",
        );
    };
    let bucket = match handler.gateway.cached_bucket(bucket).await {
        Ok(bucket) => bucket,
        Err(Error::NoSuchBucket(_)) => {
            let message = "The specified bucket does not exist";
            return page(&head, &WebsiteError::new(StatusCode::NOT_FOUND, "NoSuchBucket", message), &key);
        }
        Err(error) => {
            tracing::error!(%error, bucket, "rgw: a website's bucket can't be read");
            let message = "We encountered an internal error. Please try again.";
            let failure = WebsiteError::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message);
            return page(&head, &failure, &key);
        }
    };
    let Some(website) = bucket.website.clone() else {
        let message = "The specified bucket does not have a website configuration";
        let failure = WebsiteError::new(StatusCode::NOT_FOUND, "NoSuchWebsiteConfiguration", message);
        return page(&head, &failure, &key);
    };
    let site = Site { handler, bucket, website, head };
    site.answer(&key).await
}

/// A request to a bucket that is a website.
struct Site<'a> {
    handler: &'a Handler,
    bucket: Arc<Bucket>,
    website: Arc<WebsiteConfiguration>,
    head: request::Parts,
}

impl Site<'_> {
    async fn answer(&self, key: &str) -> Response<Body> {
        if let Some(all) = &self.website.redirect_all_requests_to {
            let protocol = all.protocol.as_ref().map(|protocol| protocol.as_str());
            return self.redirect(StatusCode::MOVED_PERMANENTLY, protocol, Some(&all.host_name), key);
        }
        if let Some(rule) = rule_for(&self.website, key, None) {
            return self.follow(rule, key);
        }
        let suffix = self.website.index_document.as_ref().map_or("", |index| &index.suffix);
        let is_folder = key.is_empty() || key.ends_with('/');
        let shown = if is_folder { format!("{key}{suffix}") } else { key.to_owned() };
        let mut response = self.fetch(self.head.method.clone(), &shown, true).await;
        let status = response.status();
        if !status.is_client_error() && !status.is_server_error() {
            let location = response.headers_mut().remove(REDIRECT_LOCATION);
            return match location {
                Some(location) => see(StatusCode::MOVED_PERMANENTLY, location),
                None => response,
            };
        }
        if status.is_client_error() && !is_folder && !suffix.is_empty() {
            let index = self.fetch(Method::HEAD, &format!("{key}/{suffix}"), false).await;
            if index.status().is_success() {
                return self.redirect(StatusCode::FOUND, None, None, &format!("{key}/"));
            }
        }
        if let Some(rule) = rule_for(&self.website, key, Some(status)) {
            return self.follow(rule, key);
        }
        let failure = failure_of(&mut response);
        // The result of a condition or a range matters to the client only, so the error document is not shown.
        let plain = matches!(status, StatusCode::PRECONDITION_FAILED | StatusCode::RANGE_NOT_SATISFIABLE);
        if let Some(document) = self.website.error_document.as_ref().filter(|_| !plain) {
            let mut page = self.fetch(self.head.method.clone(), &document.key, false).await;
            if page.status().is_success() {
                *page.status_mut() = status;
                return page;
            }
        }
        page(&self.head, &failure, &shown)
    }

    /// Returns S3's answer to an anonymous client that asks for an object.
    async fn fetch(&self, method: Method, key: &str, with_conditions: bool) -> Response<Body> {
        let path = format!("/{}/{}", self.bucket.name, encoded(key));
        let mut request = Request::new(Body::empty());
        *request.method_mut() = method;
        match path.parse() {
            Ok(uri) => *request.uri_mut() = uri,
            Err(_) => return plain_response(StatusCode::BAD_REQUEST, "text/plain", String::new()),
        }
        for name in PASSED.into_iter().take(if with_conditions { PASSED.len() } else { 0 }) {
            if let Some(value) = self.head.headers.get(&name) {
                request.headers_mut().insert(name, value.clone());
            }
        }
        *request.extensions_mut() = self.head.extensions.clone();
        let answered = self.handler.service.call(request).await;
        answered.unwrap_or_else(|error| {
            tracing::error!(?error, "rgw: no answer could be made");
            plain_response(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", String::new())
        })
    }

    fn follow(&self, rule: &RoutingRule, key: &str) -> Response<Body> {
        let Redirect { host_name, http_redirect_code, protocol, .. } = &rule.redirect;
        let code = http_redirect_code.as_ref().and_then(|code| code.parse().ok());
        let status = code.unwrap_or(StatusCode::MOVED_PERMANENTLY);
        let protocol = protocol.as_ref().map(|protocol| protocol.as_str());
        self.redirect(status, protocol, host_name.as_deref(), &target(rule, key))
    }

    fn redirect(
        &self,
        status: StatusCode,
        protocol: Option<&str>,
        host: Option<&str>,
        key: &str,
    ) -> Response<Body> {
        let path = format!("/{}", encoded(key));
        let location = if protocol.is_none() && host.is_none() {
            path
        } else {
            let secure = self.head.extensions.get::<RequestOrigin>().is_some_and(|peer| peer.secure);
            let protocol = protocol.unwrap_or(if secure { "https" } else { "http" });
            let own = || self.head.headers.get(header::HOST).and_then(|host| host.to_str().ok());
            let host = host.or_else(own).unwrap_or_default();
            format!("{protocol}://{host}{path}")
        };
        match HeaderValue::try_from(location) {
            Ok(location) => see(status, location),
            // Configurations are checked when they are set, so this does not occur.
            Err(_) => plain_response(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", String::new()),
        }
    }
}

/// Returns the first rule that matches a key: before the object is fetched, or, with `failed`, after that failed with this
/// status.
fn rule_for<'a>(
    website: &'a WebsiteConfiguration,
    key: &str,
    failed: Option<StatusCode>,
) -> Option<&'a RoutingRule> {
    website.routing_rules.iter().flatten().find(|rule| {
        let condition = rule.condition.as_ref();
        let prefix = condition.and_then(|condition| condition.key_prefix_equals.as_deref());
        let code = condition.and_then(|condition| condition.http_error_code_returned_equals.as_deref());
        let of_status = match (code, failed) {
            (None, None) => true,
            (Some(code), Some(status)) => code == status.as_str(),
            _ => false,
        };
        of_status && prefix.is_none_or(|prefix| key.starts_with(prefix))
    })
}

/// Returns the key to which a rule redirects.
fn target(rule: &RoutingRule, key: &str) -> String {
    let prefix = rule.condition.as_ref().and_then(|condition| condition.key_prefix_equals.as_deref());
    match (&rule.redirect.replace_key_with, &rule.redirect.replace_key_prefix_with) {
        (Some(key), _) => key.trim_start_matches('/').to_owned(),
        (None, Some(other)) => {
            let rest = key.strip_prefix(prefix.unwrap_or_default()).unwrap_or(key);
            format!("{}{rest}", other.trim_start_matches('/'))
        }
        (None, None) => key.to_owned(),
    }
}

/// Encodes a key for a path and keeps its slashes.
fn encoded(key: &str) -> String {
    key.split('/').map(urlencoding::encode).collect::<Vec<_>>().join("/")
}

fn see(status: StatusCode, location: HeaderValue) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response.headers_mut().insert(header::LOCATION, location);
    response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
    response
}

/// Extracts the error from S3's answer. The answer to a HEAD has no body, so its status stands for the error.
fn failure_of(response: &mut Response<Body>) -> WebsiteError {
    let status = response.status();
    let text = response.body_mut().take_bytes().unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let within = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        rest.split_once(&format!("</{name}>")).map(|(value, _)| value.to_owned())
    };
    let reason = status.canonical_reason().unwrap_or_default();
    WebsiteError {
        status,
        code: within("Code").unwrap_or_else(|| reason.replace(' ', "")),
        message: within("Message").unwrap_or_else(|| reason.to_owned()),
    }
}

/// Returns a page that describes an error.
fn page(head: &request::Parts, failure: &WebsiteError, key: &str) -> Response<Body> {
    let title =
        format!("{} {}", failure.status.as_str(), failure.status.canonical_reason().unwrap_or_default());
    let mut text = format!(
        "<html>\n<head><title>{title}</title></head>\n<body>\n<h1>{title}</h1>\n<ul>\n<li>Code: {}</li>\n\
         <li>Message: {}</li>\n",
        escaped(&failure.code),
        escaped(&failure.message)
    );
    if !key.is_empty() {
        // Writing into a String can't fail.
        _ = writeln!(text, "<li>Key: {}</li>", escaped(key));
    }
    text.push_str("</ul>\n<hr/>\n</body>\n</html>\n");
    if head.method == Method::HEAD {
        text.clear();
    }
    let mut response = plain_response(failure.status, "text/html; charset=utf-8", text);
    if let Ok(code) = HeaderValue::from_str(&failure.code) {
        response.headers_mut().insert("x-amz-error-code", code);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use s3s::dto::Condition;

    fn rule(prefix: Option<&str>, code: Option<&str>, redirect: Redirect) -> RoutingRule {
        let condition = Condition {
            key_prefix_equals: prefix.map(str::to_owned),
            http_error_code_returned_equals: code.map(str::to_owned),
        };
        RoutingRule { condition: (prefix.is_some() || code.is_some()).then_some(condition), redirect }
    }

    #[test]
    fn rules_hold_before_or_after_the_page_was_looked_for() {
        let to = |key: &str| Redirect { replace_key_with: Some(key.into()), ..Redirect::default() };
        let website = WebsiteConfiguration {
            routing_rules: Some(vec![
                rule(Some("docs/"), None, to("a")),
                rule(Some("old/"), Some("404"), to("b")),
                rule(None, Some("403"), to("c")),
            ]),
            ..WebsiteConfiguration::default()
        };
        let found = |key: &str, failed: Option<u16>| {
            let failed = failed.map(|code| StatusCode::from_u16(code).unwrap());
            rule_for(&website, key, failed).map(|rule| target(rule, key))
        };
        assert_eq!(found("docs/x", None).as_deref(), Some("a"));
        assert_eq!(found("docs/x", Some(404)), None);
        assert_eq!(found("old/x", None), None);
        assert_eq!(found("old/x", Some(404)).as_deref(), Some("b"));
        assert_eq!(found("x", Some(404)), None);
        assert_eq!(found("x", Some(403)).as_deref(), Some("c"));
    }

    #[test]
    fn rules_replace_keys_and_prefixes() {
        let prefix =
            |with: &str| Redirect { replace_key_prefix_with: Some(with.into()), ..Redirect::default() };
        assert_eq!(target(&rule(Some("docs/"), None, prefix("documents/")), "docs/a/b"), "documents/a/b");
        assert_eq!(target(&rule(None, Some("404"), prefix("/report/")), "a"), "report/a");
        assert_eq!(target(&rule(None, None, Redirect::default()), "a/b"), "a/b");
    }

    #[test]
    fn what_a_page_shows_is_text() {
        assert_eq!(escaped("<script>'\"&"), "&lt;script&gt;&#39;&quot;&amp;");
        assert_eq!(encoded("a b/ü/?\r\n"), "a%20b/%C3%BC/%3F%0D%0A");
    }
}
