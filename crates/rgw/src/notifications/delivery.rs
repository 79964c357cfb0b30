//! Delivery of topics' queues by this process: the notifier of `nacre-notify`, and what it needs to know of buckets and gateways.

use super::Notifications;
use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::shards::shard_name;
use crate::topics::EndpointRules;
use futures::future::BoxFuture;
use nacre_client::tokio_environment;
use nacre_notify::push::EndpointConnector;
use nacre_notify::{BucketOutbox, Notifier, NotifierConfig, Outboxes, Settings};
use std::sync::{Arc, Weak};

/// What a process needs to serve topics' queues.
#[derive(Clone)]
pub struct DeliveryConfig {
    /// The policy for endpoints, which is checked when topics are created and by the clients at each connection.
    pub rules: EndpointRules,
    /// The clients of endpoints.
    pub pusher: Arc<dyn EndpointConnector>,
    /// Limits and times of delivery.
    pub settings: Settings,
}

impl std::fmt::Debug for DeliveryConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Delivery")
            .field("rules", &self.rules)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Notifications {
    /// Starts delivery.
    pub(crate) fn start_delivery(self: &Arc<Notifications>, delivery: &DeliveryConfig) {
        let pools = &self.connection.pools;
        self.topics.set_notifier(Notifier::start(NotifierConfig {
            env: tokio_environment(tokio::runtime::Handle::current()),
            log: pools.log.clone(),
            index: pools.index.clone(),
            topics: pools.topics.clone(),
            pusher: Arc::clone(&delivery.pusher),
            outboxes: Arc::new(BucketOutboxes(Arc::downgrade(self))),
            session: self.connection.number,
            settings: delivery.settings.clone(),
        }));
    }
}

/// Provides the notifier with the buckets that have notifications, and with the running gateways.
struct BucketOutboxes(Weak<Notifications>);

/// The shards of a bucket's index, which may hold events.
fn outbox_of(bucket: &Bucket) -> BucketOutbox {
    let shards = (0..bucket.shards).map(|shard| shard_name(bucket, shard)).collect();
    BucketOutbox { bucket: bucket.id.clone(), shards }
}

/// The notifier knows only errors of RADOS. Other errors are logged here, and retried later as those are.
fn rados_error(error: Error) -> nacre_client::Error {
    match error {
        Error::Rados(error) => error,
        error => {
            tracing::error!(%error, "rgw: a bucket with notifications can't be read");
            nacre_client::Error::TimedOut(error.to_string())
        }
    }
}

impl BucketOutboxes {
    /// Asks the gateway; fails with [`nacre_client::Error::ShutDown`] if it has ended.
    fn ask<T: Send + 'static, F: Future<Output = Result<T>> + Send + 'static>(
        &self,
        ask: impl FnOnce(Arc<Notifications>) -> F + Send + 'static,
    ) -> BoxFuture<'static, nacre_client::Result<T>> {
        let notifications = self.0.upgrade();
        Box::pin(async move {
            let notifications = notifications.ok_or(nacre_client::Error::ShutDown)?;
            ask(notifications).await.map_err(rados_error)
        })
    }
}

impl Outboxes for BucketOutboxes {
    fn list(&self) -> BoxFuture<'static, nacre_client::Result<Vec<BucketOutbox>>> {
        self.ask(|notifications| async move {
            Ok(notifications.notifying.all().await?.iter().map(outbox_of).collect())
        })
    }

    fn find(&self, bucket: &str) -> BoxFuture<'static, nacre_client::Result<Option<BucketOutbox>>> {
        let id = bucket.to_owned();
        self.ask(|notifications| async move {
            Ok(notifications.notifying.get(&id).await?.as_ref().map(outbox_of))
        })
    }

    fn open_left(&self, bucket: &str, shard: &str) -> BoxFuture<'static, nacre_client::Result<()>> {
        let (id, shard) = (bucket.to_owned(), shard.to_owned());
        self.ask(|notifications| async move {
            match notifications.notifying.get(&id).await? {
                // A shard of another generation is frozen for good.
                Some(bucket) if outbox_of(&bucket).shards.contains(&shard) => {
                    notifications.shards.thaw_abandoned(&bucket, &shard).await
                }
                _ => Ok(()),
            }
        })
    }

    fn gateways(&self) -> BoxFuture<'static, nacre_client::Result<Vec<u64>>> {
        self.ask(|notifications| async move {
            let sessions = notifications.peers.live_gateways().await?;
            Ok(sessions.iter().filter_map(|name| name.strip_prefix("client.")?.parse().ok()).collect())
        })
    }
}
