//! Cross-origin requests of browsers: answers preflights, and adds the headers that a bucket's rules specify to responses.

use crate::response::plain_response;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Response, StatusCode};
use nacre_rgw::bucket::Bucket;
use s3s::Body;
use s3s::dto::CORSRule;

/// The maximum number of rules of a bucket.
pub(crate) const MAX_RULES: usize = 100;

/// Methods that rules may allow.
const METHODS: [&str; 5] = ["GET", "PUT", "POST", "DELETE", "HEAD"];

/// Checks a rule that is to be set; the error says what is wrong with it.
pub(crate) fn check(rule: &CORSRule) -> Result<(), String> {
    if let Some(method) = rule.allowed_methods.iter().find(|method| !METHODS.contains(&method.as_str())) {
        return Err(format!("Found unsupported HTTP method in CORS config. Unsupported method is {method}"));
    }
    let stars = |text: &String| text.matches('*').count() > 1;
    let headers = rule.allowed_headers.iter().flatten();
    match rule.allowed_origins.iter().chain(headers).find(|text| stars(text)) {
        Some(text) => Err(format!("'{text}' can not have more than one wildcard")),
        None if rule.allowed_methods.is_empty() || rule.allowed_origins.is_empty() => {
            Err("a rule has at least one origin and one method".into())
        }
        None => Ok(()),
    }
}

/// Whether `text` matches `pattern`, which has at most one `*` for any text.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        Some((begin, end)) => {
            text.len() >= begin.len() + end.len() && text.starts_with(begin) && text.ends_with(end)
        }
        None => pattern == text,
    }
}

/// A cross-origin request, or the one that a preflight asks about.
struct PreflightRequest<'a> {
    origin: &'a str,
    method: &'a str,
    /// In lower case.
    headers: Vec<String>,
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn rule_for<'a>(bucket: &'a Bucket, asked: &PreflightRequest<'_>) -> Option<&'a CORSRule> {
    let rules = bucket.cors.as_ref()?;
    rules.cors_rules.iter().find(|rule| {
        let allowed = rule.allowed_headers.as_deref().unwrap_or_default();
        rule.allowed_origins.iter().any(|origin| matches(origin, asked.origin))
            && rule.allowed_methods.iter().any(|method| method == asked.method)
            && asked
                .headers
                .iter()
                .all(|header| allowed.iter().any(|pattern| matches(&pattern.to_ascii_lowercase(), header)))
    })
}

fn add(headers: &mut HeaderMap, rule: &CORSRule, asked: &PreflightRequest<'_>) {
    let any = rule.allowed_origins.iter().any(|origin| origin == "*");
    let mut set = |name: HeaderName, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    };
    set(header::ACCESS_CONTROL_ALLOW_ORIGIN, if any { "*" } else { asked.origin });
    if !any {
        set(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, "true");
    }
    set(header::VARY, "Origin, Access-Control-Request-Headers, Access-Control-Request-Method");
    set(header::ACCESS_CONTROL_ALLOW_METHODS, &rule.allowed_methods.join(", "));
    if let Some(exposed) = rule.expose_headers.as_ref().filter(|exposed| !exposed.is_empty()) {
        set(header::ACCESS_CONTROL_EXPOSE_HEADERS, &exposed.join(", "));
    }
    if let Some(seconds) = rule.max_age_seconds {
        set(header::ACCESS_CONTROL_MAX_AGE, &seconds.to_string());
    }
    if !asked.headers.is_empty() {
        set(header::ACCESS_CONTROL_ALLOW_HEADERS, &asked.headers.join(", "));
    }
}

/// Returns the response to a preflight about a resource in `bucket`.
pub(crate) fn preflight(bucket: Option<&Bucket>, request: &HeaderMap) -> Response<Body> {
    let method = text(request, &header::ACCESS_CONTROL_REQUEST_METHOD);
    let (Some(origin), Some(method)) = (text(request, &header::ORIGIN), method) else {
        return refused(
            StatusCode::BAD_REQUEST,
            "BadRequest",
            "Insufficient information. Origin request header needed.",
        );
    };
    let listed = text(request, &header::ACCESS_CONTROL_REQUEST_HEADERS).unwrap_or_default();
    let headers =
        listed.split(',').map(|name| name.trim().to_ascii_lowercase()).filter(|name| !name.is_empty());
    let asked = PreflightRequest { origin, method, headers: headers.collect() };
    match bucket.and_then(|bucket| rule_for(bucket, &asked)) {
        Some(rule) => {
            let mut response = Response::new(Body::empty());
            add(response.headers_mut(), rule, &asked);
            response
        }
        None => refused(
            StatusCode::FORBIDDEN,
            "AccessForbidden",
            "CORSResponse: This CORS request is not allowed. This is usually because the evalution of Origin, request \
             method / Access-Control-Request-Method or Access-Control-Request-Headers are not whitelisted by the resource's \
             CORS spec.",
        ),
    }
}

fn refused(status: StatusCode, code: &str, message: &str) -> Response<Body> {
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
    );
    plain_response(status, "application/xml", text)
}

/// Adds the CORS headers to the response to a browser's request.
pub(crate) fn add_response_headers(
    bucket: &Bucket,
    method: &Method,
    origin: &str,
    response: &mut Response<Body>,
) {
    let asked = PreflightRequest { origin, method: method.as_str(), headers: Vec::new() };
    if let Some(rule) = rule_for(bucket, &asked) {
        add(response.headers_mut(), rule, &asked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_have_one_wildcard() {
        for (pattern, text, expected) in [
            ("*", "http://a", true),
            ("http://*.example.com", "http://www.example.com", true),
            ("http://*.example.com", "http://example.com", false),
            ("http://a", "http://ab", false),
            ("a*a", "a", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
        let rule = |origin: &str, method: &str| CORSRule {
            allowed_methods: vec![method.into()],
            allowed_origins: vec![origin.into()],
            ..CORSRule::default()
        };
        assert!(check(&rule("http://*.a", "GET")).is_ok());
        assert!(check(&rule("http://*.*", "GET")).is_err());
        assert!(check(&rule("*", "PATCH")).is_err());
    }
}
