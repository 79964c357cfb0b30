//! Delivery of topics' queues by this process: the notifier of `nacre-notify`, and what it needs from the gateway.

use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::gateway::Gateway;
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

/// Starts delivery, as the gateway's configuration says.
pub(crate) fn start(gateway: &Arc<Gateway>, delivery: &DeliveryConfig, session: u64) -> Arc<Notifier> {
    Notifier::start(NotifierConfig {
        env: tokio_environment(tokio::runtime::Handle::current()),
        log: gateway.pools.log.clone(),
        index: gateway.pools.index.clone(),
        topics: gateway.pools.topics.clone(),
        pusher: Arc::clone(&delivery.pusher),
        outboxes: Arc::new(Buckets(Arc::downgrade(gateway))),
        session,
        settings: delivery.settings.clone(),
    })
}

/// Provides the notifier with the buckets that have notifications, and with the running gateways.
struct Buckets(Weak<Gateway>);

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

impl Buckets {
    /// Asks the gateway; fails with [`nacre_client::Error::ShutDown`] if it is gone.
    fn ask<T: Send + 'static, F: Future<Output = Result<T>> + Send + 'static>(
        &self,
        ask: impl FnOnce(Arc<Gateway>) -> F + Send + 'static,
    ) -> BoxFuture<'static, nacre_client::Result<T>> {
        let gateway = self.0.upgrade();
        Box::pin(async move {
            let gateway = gateway.ok_or(nacre_client::Error::ShutDown)?;
            ask(gateway).await.map_err(rados_error)
        })
    }
}

impl Outboxes for Buckets {
    fn list(&self) -> BoxFuture<'static, nacre_client::Result<Vec<BucketOutbox>>> {
        self.ask(|gateway| async move { Ok(gateway.notifying.all().await?.iter().map(outbox_of).collect()) })
    }

    fn find(&self, bucket: &str) -> BoxFuture<'static, nacre_client::Result<Option<BucketOutbox>>> {
        let id = bucket.to_owned();
        self.ask(|gateway| async move { Ok(gateway.notifying.get(&id).await?.as_ref().map(outbox_of)) })
    }

    fn open_left(&self, bucket: &str, shard: &str) -> BoxFuture<'static, nacre_client::Result<()>> {
        let (id, shard) = (bucket.to_owned(), shard.to_owned());
        self.ask(|gateway| async move {
            match gateway.notifying.get(&id).await? {
                // A shard of another generation is frozen for good.
                Some(bucket) if outbox_of(&bucket).shards.contains(&shard) => {
                    gateway.shards.thaw_abandoned(&bucket, &shard).await
                }
                _ => Ok(()),
            }
        })
    }

    fn gateways(&self) -> BoxFuture<'static, nacre_client::Result<Vec<u64>>> {
        self.ask(|gateway| async move {
            let sessions = gateway.peers.live_gateways().await?;
            Ok(sessions.iter().filter_map(|name| name.strip_prefix("client.")?.parse().ok()).collect())
        })
    }
}
