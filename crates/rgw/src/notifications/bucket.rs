//! Notification configurations of buckets (`?notification`): S3's requests, and Ceph's for single configurations.
//!
//! They do not use the protocol's own operations, whose structures lack Ceph's filters by metadata and tags.

use super::topics::may_publish;
use crate::bucket::{Bucket, NOTIFICATIONS};
use crate::error::{BodyFault, Error, Result};
use crate::gateway::Gateway;
use crate::s3::{AccessChecker, Requester};
use crate::server::{content_length, route_bucket};
use http::{Extensions, HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use nacre_topics::config::{Configuration, METADATA_PREFIX, Matcher, NotificationConfig};
use s3s::route::S3Route;
use s3s::{Body, S3Request, S3Response, S3Result, s3_error};
use serde_json::{Value, json};
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
            && route_bucket(uri, marks).is_some()
    }

    /// [`NotificationRoute::call`] checks access, because it has the bucket.
    async fn check_access(&self, _: &mut S3Request<Body>) -> S3Result<()> {
        Ok(())
    }

    async fn call(&self, mut req: S3Request<Body>) -> S3Result<S3Response<Body>> {
        let name = route_bucket(&req.uri, &req.extensions).ok_or_else(|| s3_error!(InvalidURI))?;
        let id = configuration_of(req.uri.query().unwrap_or_default()).filter(|id| !id.is_empty());
        let access = AccessChecker(Arc::clone(&self.gateway));
        let (requester, bucket) = access.of_bucket(&req, &name, operation_of(&req.method)).await?;
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
                self.gateway.remove_notifications(&name, id.as_deref()).await?;
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
            let topic = self.gateway.cached_topic(arn).await?;
            let topic = topic.ok_or_else(|| Error::NoSuchTopic(arn.to_string()))?;
            if !may_publish(&caller, &topic, bucket)? {
                return Err(s3_error!(AccessDenied, "not authorized to perform sns:Publish on {arn}"));
            }
            configuration.topic = topic.arn.clone();
        }
        // Every gateway that reads the bucket compiles what is stored.
        Matcher::new(config.clone()).map_err(Error::from)?;
        self.gateway.set_notifications(bucket, &config).await?;
        Ok(())
    }
}

impl Gateway {
    async fn set_notifications(&self, name: &str, config: &NotificationConfig) -> Result<()> {
        let listed = self.bucket(name).await?;
        if !config.configurations.is_empty() {
            self.register_notifying_bucket(&listed).await?;
        }
        self.change_notifications(name, |bucket, now| {
            // Another bucket created with that name is not listed.
            if bucket.id != listed.id {
                return Err(Error::Contended(name.to_owned()));
            }
            now.clone_from(config);
            Ok(())
        })
        .await
    }

    /// Removes a bucket's notification configuration `id`, or all of them without an id. It is not an error if there is none.
    pub async fn remove_notifications(&self, bucket: &str, id: Option<&str>) -> Result<()> {
        self.change_notifications(bucket, |_, now| {
            now.remove(id);
            Ok(())
        })
        .await
    }

    async fn change_notifications(
        &self,
        bucket: &str,
        change: impl Fn(&Bucket, &mut NotificationConfig) -> Result<()>,
    ) -> Result<()> {
        let changed = self.modify_bucket(bucket, |bucket| {
            let mut config: NotificationConfig = bucket.document(NOTIFICATIONS)?;
            change(bucket, &mut config)?;
            if config.configurations.is_empty() {
                bucket.documents.remove(NOTIFICATIONS);
            } else {
                let text = serde_json::to_string(&config).expect("invariant: configurations are texts");
                bucket.documents.insert(NOTIFICATIONS.to_owned(), text);
            }
            Ok(())
        });
        changed.await.map(drop)
    }

    /// A bucket's notification configurations, as radosgw-admin prints them; only the one with `id` if it is given.
    pub async fn describe_notifications(&self, bucket: &str, id: Option<&str>) -> Result<Value> {
        let config: NotificationConfig = self.bucket(bucket).await?.document(NOTIFICATIONS)?;
        match id {
            Some(id) => {
                let found = config.configurations.iter().find(|configuration| configuration.id == id);
                let absent = || Error::Invalid(format!("bucket {bucket} has no notification {id}"));
                Ok(describe(found.ok_or_else(absent)?))
            }
            None => {
                Ok(json!({ "notifications": config.configurations.iter().map(describe).collect::<Vec<_>>() }))
            }
        }
    }
}

fn describe(configuration: &Configuration) -> Value {
    let rules = |pairs: &mut dyn Iterator<Item = (String, &String)>| {
        let rules: Vec<Value> = pairs.map(|(name, value)| json!({ "Name": name, "Value": value })).collect();
        json!({ "FilterRules": rules })
    };
    let (key, attributes) = (&configuration.key, &configuration.attributes);
    let key = [("prefix", &key.prefix), ("suffix", &key.suffix), ("regex", &key.regex)];
    let mut key =
        key.into_iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| (name.to_owned(), value));
    let mut metadata =
        attributes.metadata.iter().map(|(name, value)| (format!("{METADATA_PREFIX}{name}"), value));
    let mut tags = attributes.tags.iter().map(|(name, value)| (name.clone(), value));
    json!({
        "Id": configuration.id,
        "TopicArn": configuration.topic.to_string(),
        "Filter": {
            "S3Key": rules(&mut key), "S3Metadata": rules(&mut metadata), "S3Tags": rules(&mut tags),
        },
        "Events": configuration.events.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
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

    #[test]
    fn commands_show_configurations_as_radosgw_admin_does() {
        let text = "<NotificationConfiguration><TopicConfiguration><Id>n</Id><Topic>arn:aws:sns:default::t</Topic>\
            <Filter><S3Key><FilterRule><Name>prefix</Name><Value>a/</Value></FilterRule></S3Key>\
            <S3Metadata><FilterRule><Name>x-amz-meta-m</Name><Value>v</Value></FilterRule></S3Metadata></Filter>\
            </TopicConfiguration></NotificationConfiguration>";
        let config = NotificationConfig::from_xml(text.as_bytes()).unwrap();
        let shown = json!({
            "Id": "n",
            "TopicArn": "arn:aws:sns:default::t",
            "Filter": {
                "S3Key": { "FilterRules": [{ "Name": "prefix", "Value": "a/" }] },
                "S3Metadata": { "FilterRules": [{ "Name": "x-amz-meta-m", "Value": "v" }] },
                "S3Tags": { "FilterRules": [] },
            },
            "Events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"],
        });
        assert_eq!(describe(&config.configurations[0]), shown);
    }
}
