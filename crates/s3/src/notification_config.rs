//! Notification configurations of buckets (`?notification`): S3's requests, and Ceph's for single configurations.
//!
//! They do not use the protocol's own operations, whose structures lack Ceph's filters by metadata and tags.

use crate::ops::{AccessChecker, Requester};
use crate::request::{bucket_level_target, content_length};
use crate::topics::may_publish;
use http::{Extensions, HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use nacre_rgw::bucket::NOTIFICATIONS;
use nacre_rgw::{BodyFault, Error, Gateway};
use nacre_topics::notification_config::{Matcher, NotificationConfig};
use s3s::route::S3Route;
use s3s::{Body, S3Request, S3Response, S3Result, s3_error};
use std::sync::Arc;

/// The parameter of these requests; its value names a configuration.
const PARAMETER: &str = "notification";
/// The largest document.
const MAX_DOCUMENT_BYTES: usize = 256 << 10;

/// Handles the requests for buckets' notification configurations.
pub(crate) struct NotificationRoute {
    pub(crate) gateway: Arc<Gateway>,
}

/// The configuration that a query names; empty for all. `None` if the query is for something else.
fn configuration_of(query: &str) -> Option<String> {
    let decode = |text: &str| {
        let text = text.replace('+', " ");
        urlencoding::decode(&text).map_or_else(|_| text.clone(), |text| text.into_owned())
    };
    let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let mut named = pairs.filter(|(name, _)| decode(name) == PARAMETER);
    named.next().map(|(_, id)| decode(id))
}

fn operation_of(method: &Method) -> &'static str {
    match *method {
        Method::PUT => "PutBucketNotificationConfiguration",
        Method::DELETE => "DeleteBucketNotificationConfiguration",
        _ => "GetBucketNotificationConfiguration",
    }
}

#[async_trait::async_trait]
impl S3Route for NotificationRoute {
    fn is_match(&self, method: &Method, uri: &Uri, _: &HeaderMap, marks: &mut Extensions) -> bool {
        [Method::GET, Method::PUT, Method::DELETE].contains(method)
            && uri.query().is_some_and(|query| configuration_of(query).is_some())
            && bucket_level_target(uri, marks).is_some()
    }

    /// [`NotificationRoute::call`] checks access, because it has the bucket.
    async fn check_access(&self, _: &mut S3Request<Body>) -> S3Result<()> {
        Ok(())
    }

    async fn call(&self, mut req: S3Request<Body>) -> S3Result<S3Response<Body>> {
        let name = bucket_level_target(&req.uri, &req.extensions).ok_or_else(|| s3_error!(InvalidURI))?;
        let id = configuration_of(req.uri.query().unwrap_or_default()).filter(|id| !id.is_empty());
        let access = AccessChecker(Arc::clone(&self.gateway));
        let (requester, bucket) = access.check_bucket_request(&req, &name, operation_of(&req.method)).await?;
        match req.method {
            Method::PUT if id.is_some() => Err(s3_error!(
                InvalidArgument,
                "a PUT replaces all configurations: their ids are in the document"
            )),
            Method::PUT => {
                if content_length(&req.headers) > MAX_DOCUMENT_BYTES as u64 {
                    return Err(s3_error!(MaxMessageLengthExceeded, "Your request was too big."));
                }
                let document = std::mem::take(&mut req.input).store_all_limited(MAX_DOCUMENT_BYTES).await;
                let document = document.map_err(|error| Error::Body(BodyFault::of(&*error)))?;
                self.put(&requester, &name, &document).await?;
                Ok(answer(StatusCode::OK, None))
            }
            Method::DELETE => {
                self.gateway.notifications.remove(&name, id.as_deref()).await?;
                Ok(answer(StatusCode::NO_CONTENT, None))
            }
            _ => {
                let config: NotificationConfig = bucket.document(NOTIFICATIONS)?;
                if id.as_deref().is_some_and(|id| config.get(id).is_none()) {
                    return Err(s3_error!(
                        NoSuchKey,
                        "The bucket has no notification configuration of that id"
                    ));
                }
                Ok(answer(StatusCode::OK, Some(config.to_xml(id.as_deref()))))
            }
        }
    }
}

fn answer(status: StatusCode, document: Option<String>) -> S3Response<Body> {
    let mut headers = HeaderMap::new();
    if document.is_some() {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    }
    let mut response = S3Response::with_headers(document.map_or_else(Body::empty, Body::from), headers);
    response.status = Some(status);
    response
}

impl NotificationRoute {
    /// Replaces all configurations of a bucket.
    async fn put(&self, requester: &Requester, bucket: &str, document: &[u8]) -> S3Result<()> {
        let mut config = NotificationConfig::from_xml(document).map_err(Error::from)?;
        let caller = requester.caller().ok_or_else(|| s3_error!(AccessDenied))?;
        for configuration in &mut config.configurations {
            let arn = &configuration.topic;
            let topic = self.gateway.topics.cached(arn).await?;
            let topic = topic.ok_or_else(|| Error::NoSuchTopic(arn.to_string()))?;
            if !may_publish(&caller, &topic, bucket)? {
                return Err(s3_error!(AccessDenied, "not authorized to perform sns:Publish on {arn}"));
            }
            configuration.topic = topic.arn.clone();
        }
        // Every gateway that reads the bucket compiles what is stored.
        Matcher::new(config.clone()).map_err(Error::from)?;
        self.gateway.notifications.set(bucket, &config).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_name_one_configuration_or_all() {
        assert_eq!(configuration_of("notification"), Some(String::new()));
        assert_eq!(configuration_of("notification="), Some(String::new()));
        assert_eq!(configuration_of("a=b&notification=my%20id"), Some("my id".into()));
        assert_eq!(configuration_of("notif%69cation=x"), Some("x".into()));
        assert_eq!(configuration_of("notifications"), None);
        assert_eq!(configuration_of(""), None);
    }
}
