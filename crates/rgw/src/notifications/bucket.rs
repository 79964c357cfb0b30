//! Notification configurations of buckets, as stored and as radosgw-admin prints them.

use super::Notifications;
use crate::bucket::{Bucket, NOTIFICATIONS};
use crate::error::{Error, Result};
use nacre_topics::notification_config::{METADATA_PREFIX, NotificationConfig, TopicConfiguration};
use serde_json::{Value, json};

impl Notifications {
    /// Replaces all notification configurations of a bucket.
    pub async fn set(&self, name: &str, config: &NotificationConfig) -> Result<()> {
        let listed = self.buckets.get(name).await?;
        if !config.configurations.is_empty() {
            self.notifying.register(&listed).await?;
        }
        self.change(name, |bucket, now| {
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
    pub async fn remove(&self, bucket: &str, id: Option<&str>) -> Result<()> {
        self.change(bucket, |_, now| {
            now.remove(id);
            Ok(())
        })
        .await
    }

    async fn change(
        &self,
        bucket: &str,
        change: impl Fn(&Bucket, &mut NotificationConfig) -> Result<()>,
    ) -> Result<()> {
        let changed = self.records.modify(bucket, |bucket| {
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
    pub async fn describe(&self, bucket: &str, id: Option<&str>) -> Result<Value> {
        let config: NotificationConfig = self.buckets.get(bucket).await?.document(NOTIFICATIONS)?;
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

fn describe(configuration: &TopicConfiguration) -> Value {
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
