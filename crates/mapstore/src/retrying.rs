//! A store whose reads wait until it answers.

use crate::{LeaseId, MapStore, MapStoreError, RangePage, StoreHealth, StoredEntry, Txn, TxnOutcome, Watch};
use async_trait::async_trait;
use std::sync::Arc;
use std::time::Duration;

/// See the module's documentation. Implementations of [`MapStore`] pause before they report that they are unavailable, so there is
/// no pause here.
pub(crate) struct RetryingStore(pub(crate) Arc<dyn MapStore>);

#[async_trait]
impl MapStore for RetryingStore {
    async fn transact(&self, txn: &Txn) -> Result<TxnOutcome, MapStoreError> {
        self.0.transact(txn).await
    }

    async fn get(&self, key: &[u8]) -> Result<Option<StoredEntry>, MapStoreError> {
        loop {
            match self.0.get(key).await {
                Err(MapStoreError::Unavailable(error)) => {
                    tracing::warn!(%error, "a read of the map store is repeated");
                }
                other => return other,
            }
        }
    }

    async fn range(
        &self,
        start: &[u8],
        end: &[u8],
        limit: usize,
        revision: Option<u64>,
    ) -> Result<RangePage, MapStoreError> {
        loop {
            match self.0.range(start, end, limit, revision).await {
                Err(MapStoreError::Unavailable(error)) => {
                    tracing::warn!(%error, "a read of the map store is repeated");
                }
                other => return other,
            }
        }
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<LeaseId, MapStoreError> {
        self.0.grant_lease(ttl).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), MapStoreError> {
        self.0.keep_alive(lease).await
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<(), MapStoreError> {
        self.0.revoke_lease(lease).await
    }

    async fn watch(&self, start: &[u8], end: &[u8], revision: u64) -> Result<Box<dyn Watch>, MapStoreError> {
        self.0.watch(start, end, revision).await
    }

    async fn maintain(&self) {
        self.0.maintain().await;
    }

    fn health(&self) -> StoreHealth {
        self.0.health()
    }
}
