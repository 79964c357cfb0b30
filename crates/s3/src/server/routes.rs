//! Requests that the protocol's own operations do not handle: those of the admin API, and those for a bucket's notification
//! configurations, whose documents have elements that the protocol's structures lack.

use super::VirtualHostBucket;
use crate::admin_api::AdminApi;
use crate::notification_config::NotificationRoute;
use http::{Extensions, HeaderMap, Method, Uri};
use nacre_rgw::gateway::Gateway;
use s3s::route::S3Route;
use s3s::{Body, S3Request, S3Response, S3Result};
use std::sync::Arc;

/// The routes in addition to the protocol's.
pub(super) struct Routes {
    admin: AdminApi,
    notifications: NotificationRoute,
}

/// The route of a request, kept among its extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RouteChoice {
    Admin,
    Notifications,
}

impl Routes {
    pub(super) fn new(gateway: &Arc<Gateway>) -> Routes {
        Routes {
            admin: AdminApi { gateway: Arc::clone(gateway) },
            notifications: NotificationRoute { gateway: Arc::clone(gateway) },
        }
    }

    fn route(&self, req: &S3Request<Body>) -> &dyn S3Route {
        match req.extensions.get::<RouteChoice>() {
            Some(RouteChoice::Admin) => &self.admin,
            _ => &self.notifications,
        }
    }
}

#[async_trait::async_trait]
impl S3Route for Routes {
    fn is_match(&self, method: &Method, uri: &Uri, headers: &HeaderMap, marks: &mut Extensions) -> bool {
        let taken = if self.admin.is_match(method, uri, headers, marks) {
            RouteChoice::Admin
        } else if self.notifications.is_match(method, uri, headers, marks) {
            RouteChoice::Notifications
        } else {
            return false;
        };
        marks.insert(taken);
        true
    }

    async fn check_access(&self, req: &mut S3Request<Body>) -> S3Result<()> {
        self.route(req).check_access(req).await
    }

    async fn call(&self, req: S3Request<Body>) -> S3Result<S3Response<Body>> {
        self.route(&req).call(req).await
    }
}

/// Returns the bucket that a request concerns as a whole, by its host or its path; `None` for other requests.
pub(crate) fn bucket_of(uri: &Uri, marks: &Extensions) -> Option<String> {
    let path = uri.path().strip_prefix('/')?;
    if let Some(VirtualHostBucket(bucket)) = marks.get::<VirtualHostBucket>() {
        return path.is_empty().then(|| bucket.clone());
    }
    let name = path.strip_suffix('/').unwrap_or(path);
    if name.is_empty() || name.contains('/') {
        return None;
    }
    urlencoding::decode(name).ok().map(|name| name.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_named_by_host_or_path() {
        let by_path = |path: &str| bucket_of(&path.parse().unwrap(), &Extensions::new());
        assert_eq!(by_path("/photos?notification"), Some("photos".into()));
        assert_eq!(by_path("/photos/?notification=a"), Some("photos".into()));
        assert_eq!(by_path("/ph%6ftos?notification"), Some("photos".into()));
        assert_eq!(by_path("/photos/key?notification"), None);
        assert_eq!(by_path("/?notification"), None);
        let by_host = |path: &str| {
            let mut marks = Extensions::new();
            marks.insert(VirtualHostBucket("photos".into()));
            bucket_of(&path.parse().unwrap(), &marks)
        };
        assert_eq!(by_host("/?notification"), Some("photos".into()));
        assert_eq!(by_host("/key?notification"), None);
    }
}
