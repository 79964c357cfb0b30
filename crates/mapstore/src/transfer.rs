//! Fills a store with the contents of a cluster, so that it can be opened only when it is complete.
//!
//! A mark (`meta/transfer`) names the operation that fills the store and counts its transactions. Each transaction compares the
//! mark and raises the count: it takes effect once, however often it is sent, and none of an earlier operation takes effect
//! after a later one has started. The last transaction replaces the mark by the cluster's record, which makes the store openable.

use crate::error::PersistError;
use crate::identity::{ClusterRecord, Identity, identify};
use crate::values::{KeyValue, batch, put};
use crate::{Compare, MapStore, MapStoreError, Op, Txn, TxnOutcome, read_prefix};
use nacre_mon::keys;
use nacre_types::encoding::{self, Versioned};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

type Result<T> = std::result::Result<T, PersistError>;

/// How often a transaction without an answer is repeated before the operation fails. It can be repeated as a whole.
const MAX_ATTEMPTS: usize = 30;

/// Marks a store that is being filled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Transfer {
    /// The operation; random. It becomes the id of the store.
    pub(crate) operation: Uuid,
    /// The store that the contents come from; nil for a new cluster.
    pub(crate) source: Uuid,
    /// The operation is being aborted, and will never be completed.
    pub(crate) is_aborted: bool,
    /// The number of transactions so far.
    step: u64,
}

impl Versioned for Transfer {
    const NAME: &'static str = "mon::Transfer";
}

/// Reads the mark of a store.
pub(crate) async fn read_transfer(store: &dyn MapStore) -> Result<Option<Transfer>> {
    let Some(entry) = store.get(keys::TRANSFER).await? else { return Ok(None) };
    Ok(Some(encoding::decode(&entry.value)?))
}

/// A store that this operation fills.
pub(crate) struct Filling<'a> {
    store: &'a dyn MapStore,
    mark: Transfer,
}

impl<'a> Filling<'a> {
    /// Begins to fill a store with contents of the store `source`, and empties it. Refuses a store that holds a cluster or
    /// anything else, except the rest of an earlier attempt with the same source, and the store that the cluster of `source`
    /// has moved from.
    pub(crate) async fn begin(store: &'a dyn MapStore, source: Uuid) -> Result<Filling<'a>> {
        let previous = store.get(keys::TRANSFER).await?;
        let unmarked = match &previous {
            Some(entry) => {
                if encoding::decode::<Transfer>(&entry.value)?.source != source {
                    return Err(PersistError::InUse("it is being filled from another store".into()));
                }
                Compare::Value { key: keys::TRANSFER.to_vec(), value: entry.value.clone() }
            }
            None => Compare::Absent { key: keys::TRANSFER.to_vec() },
        };
        let identity = identify(store).await?;
        match &identity {
            Identity::Cluster(_) => return Err(PersistError::AlreadyInitialised),
            Identity::Sealed(seal) if seal.operation != source => {
                return Err(PersistError::AlreadyInitialised);
            }
            Identity::Sealed(_) => {}
            Identity::None => {
                let present = read_prefix(store, b"").await?;
                if previous.is_none() && !present.is_empty() {
                    let key = String::from_utf8_lossy(&present[0].key).into_owned();
                    return Err(PersistError::InUse(format!("it holds other keys, such as '{key}'")));
                }
            }
        }
        let mark = Transfer { operation: Uuid::new_v4(), source, is_aborted: false, step: 0 };
        let begin = Txn::default()
            .when(unmarked)
            .when(identity.unchanged())
            .put(keys::TRANSFER, encoding::encode(&mark))
            .delete(keys::SEAL)
            .delete(keys::FENCE);
        transact(store, &begin, keys::TRANSFER, &encoding::encode(&mark)).await?;
        let mut filling = Filling { store, mark };
        filling.clear().await?;
        Ok(filling)
    }

    /// Continues an operation that has marked the store.
    pub(crate) fn resume(store: &'a dyn MapStore, mark: Transfer) -> Filling<'a> {
        Filling { store, mark }
    }

    /// The operation.
    pub(crate) fn operation(&self) -> Uuid {
        self.mark.operation
    }

    /// Marks the operation as aborted.
    pub(crate) async fn abort(&mut self) -> Result<()> {
        let next = Transfer { is_aborted: true, step: self.mark.step + 1, ..self.mark.clone() };
        self.advance(Vec::new(), next).await
    }

    /// Puts entries, and reads everything again to compare it.
    pub(crate) async fn fill(&mut self, contents: &[KeyValue]) -> Result<()> {
        for ops in batch(contents.iter().map(|(key, value)| put(key.clone(), value.clone())).collect()) {
            self.run(ops).await?;
        }
        if read_contents(self.store).await? == contents {
            Ok(())
        } else {
            Err(PersistError::corrupt(
                keys::TRANSFER,
                "the store holds something else than was written to it",
            ))
        }
    }

    /// Removes everything but the mark.
    pub(crate) async fn clear(&mut self) -> Result<()> {
        let mut present = read_prefix(self.store, b"").await?;
        present.retain(|entry| entry.key != keys::TRANSFER);
        for ops in batch(present.into_iter().map(|entry| Op::Delete { key: entry.key }).collect()) {
            self.run(ops).await?;
        }
        Ok(())
    }

    /// Makes the store openable.
    pub(crate) async fn complete(self, cluster: &ClusterRecord) -> Result<()> {
        let record = ClusterRecord { store_id: self.mark.operation, ..cluster.clone() };
        let last = Txn::default()
            .when(self.unchanged())
            .when(Compare::Absent { key: keys::CLUSTER.to_vec() })
            .put(keys::CLUSTER, encoding::encode(&record))
            .delete(keys::TRANSFER);
        transact(self.store, &last, keys::CLUSTER, &encoding::encode(&record)).await
    }

    /// Removes the mark from an empty store.
    pub(crate) async fn end(self) -> Result<()> {
        let last = Txn::default().when(self.unchanged()).delete(keys::TRANSFER);
        match transact(self.store, &last, keys::TRANSFER, &[]).await {
            Err(PersistError::InUse(_)) if read_transfer(self.store).await?.is_none() => Ok(()),
            other => other,
        }
    }

    fn unchanged(&self) -> Compare {
        Compare::Value { key: keys::TRANSFER.to_vec(), value: encoding::encode(&self.mark) }
    }

    async fn run(&mut self, ops: Vec<Op>) -> Result<()> {
        let next = Transfer { step: self.mark.step + 1, ..self.mark.clone() };
        self.advance(ops, next).await
    }

    async fn advance(&mut self, ops: Vec<Op>, next: Transfer) -> Result<()> {
        let value = encoding::encode(&next);
        let txn = Txn { compares: vec![self.unchanged()], ops }.put(keys::TRANSFER, value.clone());
        transact(self.store, &txn, keys::TRANSFER, &value).await?;
        self.mark = next;
        Ok(())
    }
}

/// Runs a transaction once. It has taken effect if `key` has `value`.
async fn transact(store: &dyn MapStore, txn: &Txn, key: &[u8], value: &[u8]) -> Result<()> {
    let mut unanswered = None;
    for _ in 0..MAX_ATTEMPTS {
        match store.transact(txn).await {
            Ok(TxnOutcome::Committed { .. }) => return Ok(()),
            Ok(TxnOutcome::Conflict { .. }) => {
                let took_effect =
                    unanswered.is_some() && store.get(key).await?.is_some_and(|entry| entry.value == value);
                let changed = || PersistError::InUse("another operation has changed it meanwhile".into());
                return if took_effect { Ok(()) } else { Err(changed()) };
            }
            Err(error @ MapStoreError::Unavailable(_)) => unanswered = Some(error),
            Err(error) => return Err(error.into()),
        }
    }
    Err(unanswered.unwrap_or(MapStoreError::Unavailable("no answer".into())).into())
}

/// Fills a store with a cluster.
pub(crate) async fn fill_store(
    store: &dyn MapStore,
    source: Uuid,
    cluster: &ClusterRecord,
    contents: &[KeyValue],
) -> Result<()> {
    let mut filling = Filling::begin(store, source).await?;
    filling.fill(contents).await?;
    filling.complete(cluster).await
}

/// All keys with their values, except those that belong to one store or its owner.
pub(crate) async fn read_contents(store: &dyn MapStore) -> Result<Vec<KeyValue>> {
    let mut entries = read_prefix(store, b"").await?;
    entries.retain(|entry| !entry.key.starts_with(keys::META));
    Ok(entries.into_iter().map(|entry| (entry.key, entry.value)).collect())
}
