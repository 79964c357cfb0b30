//! The admin API: users, buckets, usage and metadata over HTTP, on the port that serves S3 (Ceph's "Admin Operations").
//!
//! Requests are signed as S3's are. The sender needs the capability for the operation; neither the ownership of a bucket nor
//! a policy replaces it. Parameters, responses and errors are radosgw's, in JSON.

mod buckets;
mod users;

use crate::request::{RequestInfo, VirtualHostBucket};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use nacre_rgw::caps::{self, Perm};
use nacre_rgw::error::{Error, log_server_error};
use nacre_rgw::gateway::Gateway;
use nacre_rgw::usage::UsageFilter;
use s3s::route::S3Route;
use s3s::{Body, S3Request, S3Response, S3Result};
use serde_json::{Value, json};
use std::sync::Arc;

/// The maximum length of a request's body.
const MAX_BODY_BYTES: usize = 64 << 10;

/// Handles requests whose path begins with the admin entry (`rgw_admin_entry`).
pub(crate) struct AdminApi {
    pub(crate) gateway: Arc<Gateway>,
}

/// A response: no body, or JSON.
type Answer = Result<Option<Value>, AdminApiError>;

/// Why a request was refused: HTTP status and radosgw's error code.
#[derive(Debug)]
struct AdminApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
}

impl AdminApiError {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> AdminApiError {
        AdminApiError { status, code, message: message.into() }
    }

    fn invalid(message: impl Into<String>) -> AdminApiError {
        AdminApiError::new(StatusCode::BAD_REQUEST, "InvalidArgument", message)
    }

    fn denied() -> AdminApiError {
        AdminApiError::new(StatusCode::FORBIDDEN, "AccessDenied", "")
    }

    fn no_method() -> AdminApiError {
        AdminApiError::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", "")
    }
}

impl From<Error> for AdminApiError {
    fn from(error: Error) -> AdminApiError {
        let (status, code) = match &error {
            Error::NoSuchUser(_) => (StatusCode::NOT_FOUND, "NoSuchUser"),
            Error::KeyExists(_) => (StatusCode::CONFLICT, "KeyExists"),
            Error::UserExists(_) => (StatusCode::CONFLICT, "UserAlreadyExists"),
            Error::NoSuchBucket(_) => (StatusCode::NOT_FOUND, "NoSuchBucket"),
            Error::NoSuchKey => (StatusCode::NOT_FOUND, "NoSuchObject"),
            Error::NoSuchMetadata(_) => (StatusCode::NOT_FOUND, "NoSuchKey"),
            Error::BucketNotEmpty(_) => (StatusCode::CONFLICT, "BucketNotEmpty"),
            Error::IndexBusy(_) | Error::Contended(_) => {
                (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable")
            }
            error if error.is_unavailable() => (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable"),
            Error::Denied(_) => (StatusCode::FORBIDDEN, "AccessDenied"),
            Error::Invalid(_) => (StatusCode::BAD_REQUEST, "InvalidArgument"),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "InternalError"),
        };
        if status.is_server_error() {
            log_server_error(&error);
            return AdminApiError::new(status, code, "");
        }
        AdminApiError { status, code, message: error.to_string() }
    }
}

/// The query parameters of a request, in order, with their names as they were sent.
struct Params(Vec<(String, String)>);

impl Params {
    fn of(query: &str) -> Params {
        let decode = |text: &str| {
            let text = text.replace('+', " ");
            urlencoding::decode(&text).map_or_else(|_| text.clone(), |text| text.into_owned())
        };
        let pair = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name), decode(value))
        };
        Params(query.split('&').filter(|pair| !pair.is_empty()).map(pair).collect())
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(known, _)| known == name)
    }

    /// Returns the value of a parameter, or `None` if it is absent or empty.
    fn text(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    fn needed(&self, name: &str) -> Result<&str, AdminApiError> {
        self.text(name).ok_or_else(|| AdminApiError::invalid(format!("{name} is needed")))
    }

    /// Returns a boolean parameter. A parameter without a value is true.
    fn flag(&self, name: &str) -> Result<Option<bool>, AdminApiError> {
        match self.text(name).map(str::to_ascii_lowercase).as_deref() {
            None => Ok(self.has(name).then_some(true)),
            Some("true" | "1" | "yes" | "on") => Ok(Some(true)),
            Some("false" | "0" | "no" | "off") => Ok(Some(false)),
            Some(other) => {
                Err(AdminApiError::invalid(format!("{name}: '{other}' is neither true nor false")))
            }
        }
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, AdminApiError> {
        let wrong =
            |text: &str| AdminApiError::invalid(format!("{name}: '{text}' is not a number that it may be"));
        self.text(name).map(|text| text.parse().map_err(|_| wrong(text))).transpose()
    }

    fn date(&self, name: &str) -> Result<Option<u64>, AdminApiError> {
        let wrong = |text: &str| {
            AdminApiError::new(StatusCode::BAD_REQUEST, "InvalidDate", format!("{name}: '{text}'"))
        };
        self.text(name).map(|text| nacre_rgw::admin::parse_epoch(text).ok_or_else(|| wrong(text))).transpose()
    }
}

/// Returns the page of names after `marker` that `max-entries` requests. Without `max-entries`, returns all names as a plain
/// array.
fn page(params: &Params, names: Vec<String>) -> Answer {
    let Some(max) = params.number::<usize>("max-entries")? else { return Ok(Some(json!(names))) };
    let marker = params.text("marker").unwrap_or_default();
    let rest = names.into_iter().filter(|name| name.as_str() > marker);
    let mut keys: Vec<String> = rest.take(max.saturating_add(1)).collect();
    let truncated = keys.len() > max;
    keys.truncate(max);
    let mut shown = json!({ "count": keys.len(), "truncated": truncated });
    if let (true, Some(last)) = (truncated, keys.last()) {
        shown["marker"] = json!(last);
    }
    shown["keys"] = json!(keys);
    Ok(Some(shown))
}

/// A request, and the capabilities of its sender.
struct AdminRequest<'a> {
    gateway: &'a Arc<Gateway>,
    caps: &'a caps::Caps,
    method: &'a Method,
    params: &'a Params,
    body: &'a [u8],
}

impl AdminRequest<'_> {
    fn may(&self, kind: &str, wanted: Perm) -> Result<(), AdminApiError> {
        if caps::allow(self.caps, kind, wanted) { Ok(()) } else { Err(AdminApiError::denied()) }
    }

    async fn answer(&self, resource: &str) -> Answer {
        let (first, rest) = resource.split_once('/').unwrap_or((resource, ""));
        match (first, rest) {
            ("user", "") => users::answer(self).await,
            ("bucket", "") => buckets::answer(self).await,
            ("usage", "") => self.usage().await,
            ("metadata", rest) => self.metadata(rest).await,
            ("info", "") => self.info(),
            _ => {
                Err(AdminApiError::new(StatusCode::NOT_FOUND, "NoSuchKey", format!("there is no {resource}")))
            }
        }
    }

    fn info(&self) -> Answer {
        if *self.method != Method::GET {
            return Err(AdminApiError::no_method());
        }
        self.may("info", Perm::READ)?;
        let backend = json!({ "name": "rados", "cluster_id": self.gateway.cluster.fsid() });
        Ok(Some(json!({ "info": { "storage_backends": [backend] } })))
    }

    async fn usage(&self) -> Answer {
        let params = self.params;
        let categories = params.text("categories").unwrap_or_default();
        let filter = UsageFilter {
            user: params.text("uid").map(str::to_owned),
            bucket: params.text("bucket").map(str::to_owned),
            start: params.date("start")?.unwrap_or(0),
            end: params.date("end")?,
            categories: categories.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect(),
        };
        match *self.method {
            Method::GET => {
                self.may("usage", Perm::READ)?;
                let entries = params.flag("show-entries")?.unwrap_or(true);
                let summary = params.flag("show-summary")?.unwrap_or(true);
                Ok(Some(self.gateway.usage.report(&filter, entries, summary).await?))
            }
            Method::DELETE => {
                self.may("usage", Perm::WRITE)?;
                if filter.user.is_none() && params.flag("remove-all")? != Some(true) {
                    return Err(AdminApiError::invalid("remove-all is needed where no user is named"));
                }
                self.gateway.usage.trim(&filter).await?;
                Ok(None)
            }
            _ => Err(AdminApiError::no_method()),
        }
    }

    async fn metadata(&self, rest: &str) -> Answer {
        if *self.method != Method::GET {
            return Err(AdminApiError::no_method());
        }
        self.may("metadata", Perm::READ)?;
        let (section, in_path) = rest.split_once('/').unwrap_or((rest, ""));
        let key = self.params.text("key").or(Some(in_path).filter(|key| !key.is_empty()));
        match (section, key) {
            ("", _) => Ok(Some(json!(Gateway::metadata_sections()))),
            (section, None) => page(self.params, self.gateway.metadata_keys(section).await?),
            (section, Some(key)) => Ok(Some(self.gateway.metadata(section, key).await?)),
        }
    }
}

impl AdminApi {
    /// Whether a path belongs to this API, whose paths begin with `entry`.
    pub(crate) fn is_at(entry: &str, path: &str) -> bool {
        AdminApi::resource_at(entry, path).is_some()
    }

    fn resource<'a>(&self, path: &'a str) -> Option<&'a str> {
        AdminApi::resource_at(&self.gateway.config.admin_entry, path)
    }

    /// Returns the part of a path after `entry`, or `None` if the path does not belong to this API.
    fn resource_at<'a>(entry: &str, path: &'a str) -> Option<&'a str> {
        if entry.is_empty() {
            return None;
        }
        let rest = path.strip_prefix('/')?.strip_prefix(entry)?.strip_prefix('/')?;
        Some(rest.trim_end_matches('/'))
    }

    async fn serve(&self, req: &mut S3Request<Body>) -> Answer {
        let body = std::mem::take(&mut req.input).store_all_limited(MAX_BODY_BYTES).await;
        let body = body.map_err(|_| AdminApiError::invalid("the request's body is cut short or too long"))?;
        let Some(credentials) = &req.credentials else { return Err(AdminApiError::denied()) };
        let user = match self.gateway.users.cached_by_key(&credentials.access_key).await {
            Err(Error::NoSuchUser(_)) => return Err(AdminApiError::denied()),
            user => user?,
        };
        if user.suspended {
            return Err(AdminApiError::new(StatusCode::FORBIDDEN, "UserSuspended", ""));
        }
        let path = urlencoding::decode(req.uri.path())
            .map_err(|_| AdminApiError::invalid("the path is not UTF-8"))?;
        let resource = self.resource(&path).unwrap_or_default();
        let info = req.extensions.get::<Arc<RequestInfo>>().cloned().unwrap_or_default();
        info.set_operation("AdminOperation", &user.id);
        let params = Params::of(req.uri.query().unwrap_or_default());
        let asked = AdminRequest {
            gateway: &self.gateway,
            caps: &user.caps,
            method: &req.method,
            params: &params,
            body: &body,
        };
        asked.answer(resource).await
    }
}

fn respond(status: StatusCode, value: Option<&Value>) -> S3Response<Body> {
    let body = value.map_or_else(Body::empty, |value| Body::from(value.to_string()));
    let mut headers = HeaderMap::new();
    if value.is_some() {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    let mut response = S3Response::with_headers(body, headers);
    response.status = Some(status);
    response
}

#[async_trait::async_trait]
impl S3Route for AdminApi {
    fn is_match(&self, _: &Method, uri: &Uri, _: &HeaderMap, marks: &mut http::Extensions) -> bool {
        marks.get::<VirtualHostBucket>().is_none() && self.resource(uri.path()).is_some()
    }

    /// [`AdminApi::call`] checks access instead, because refusals have this API's format too.
    async fn check_access(&self, _: &mut S3Request<Body>) -> S3Result<()> {
        Ok(())
    }

    async fn call(&self, mut req: S3Request<Body>) -> S3Result<S3Response<Body>> {
        Ok(match self.serve(&mut req).await {
            Ok(value) => respond(StatusCode::OK, value.as_ref()),
            Err(AdminApiError { status, code, message }) => {
                let shown = json!({ "Code": code, "Message": message, "HostId": "default" });
                respond(status, Some(&shown))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_read_as_radosgw_reads_them() {
        let params = Params::of("quota&uid=a%20b+c&stats=True&sync=0&n=-1&empty=");
        assert!(params.has("quota") && !params.has("key"));
        assert_eq!(params.text("uid"), Some("a b c"));
        assert_eq!(params.text("empty"), None);
        assert_eq!(params.flag("stats").unwrap(), Some(true));
        assert_eq!(params.flag("sync").unwrap(), Some(false));
        assert_eq!(params.flag("quota").unwrap(), Some(true));
        assert_eq!(params.flag("none").unwrap(), None);
        assert_eq!(params.number::<i32>("n").unwrap(), Some(-1));
        assert!(
            params.number::<u32>("n").is_err() && params.flag("n").is_err() && params.date("uid").is_err()
        );
    }

    #[test]
    fn names_come_in_pages() {
        let names = || ["a", "b", "c"].map(str::to_owned).to_vec();
        let ask = |query: &str| page(&Params::of(query), names()).unwrap().unwrap();
        assert_eq!(ask(""), json!(["a", "b", "c"]));
        assert_eq!(
            ask("max-entries=2"),
            json!({ "keys": ["a", "b"], "count": 2, "truncated": true, "marker": "b" })
        );
        assert_eq!(ask("max-entries=2&marker=b"), json!({ "keys": ["c"], "count": 1, "truncated": false }));
    }
}
