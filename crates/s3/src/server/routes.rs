//! Requests that the protocol's own operations do not handle: those of the admin API, and those for a bucket's notification
//! configurations, whose documents have elements that the protocol's structures lack.

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
