//! Moves a cluster's map from one store to another, so that at no time both can be opened.
//!
//! The steps: the source is taken over, which fences off its map authority; the destination is filled (see
//! [`transfer`](crate::transfer)); the source is sealed, that is, its cluster's record is replaced by a seal with the number of
//! the operation; the destination is completed. A migration that was interrupted is repeated or aborted. An abort marks the
//! operation in the destination as aborted, so that nothing can complete it, and then unseals the source.

use crate::error::PersistError;
use crate::identity::{ClusterRecord, Identity, Seal, identify};
use crate::persistence::Persistence;
use crate::retrying::RetryingStore;
use crate::transfer::{Filling, read_contents, read_transfer};
use crate::values::KeyValue;
use crate::{MapStore, Txn};
use nacre_mon::keys;
use nacre_types::encoding;
use std::sync::Arc;
use uuid::Uuid;

type Result<T> = std::result::Result<T, PersistError>;

/// What a migration has moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migrated {
    /// The id of the cluster.
    pub fsid: Uuid,
    /// The number of keys.
    pub keys: usize,
    /// Bytes of keys and values.
    pub bytes: usize,
}

impl Migrated {
    fn new(cluster: &ClusterRecord, contents: &[KeyValue]) -> Migrated {
        let bytes = contents.iter().map(|(key, value)| key.len() + value.len()).sum();
        Migrated { fsid: cluster.fsid, keys: contents.len(), bytes }
    }
}

/// Moves the cluster in `source` to `destination`, which must be empty, or the store that the cluster has moved from. `name` is
/// the destination as operators know it: it is shown to whoever opens the source. May be repeated after a failure; it also
/// completes a migration that was interrupted.
///
/// The source's map authority is fenced off when the destination was found suitable.
pub async fn migrate(source: Arc<dyn MapStore>, destination: &dyn MapStore, name: &str) -> Result<Migrated> {
    match identify(source.as_ref()).await? {
        Identity::None => Err(PersistError::NotInitialised),
        Identity::Sealed(seal) => complete(destination, seal).await,
        Identity::Cluster(cluster) => {
            let mut filling = Filling::begin(destination, cluster.store_id).await?;
            let (mut owner, cluster) = Persistence::take_over(source).await?;
            let contents = read_contents(owner.store()).await?;
            filling.fill(&contents).await?;
            let reason = format!("its cluster has moved to {name}");
            let seal = Seal { cluster: cluster.clone(), operation: filling.operation(), reason };
            owner.run(Txn::default().put(keys::SEAL, encoding::encode(&seal)).delete(keys::CLUSTER)).await?;
            filling.complete(&cluster).await?;
            Ok(Migrated::new(&cluster, &contents))
        }
    }
}

/// Completes a migration whose source is sealed.
async fn complete(destination: &dyn MapStore, seal: Seal) -> Result<Migrated> {
    let contents = match identify(destination).await? {
        Identity::Cluster(found) if found.store_id == seal.operation => read_contents(destination).await?,
        _ => {
            let mark = read_transfer(destination).await?;
            let mark = mark.filter(|mark| mark.operation == seal.operation && !mark.is_aborted);
            let filling = Filling::resume(destination, mark.ok_or(PersistError::Sealed(seal.reason))?);
            let contents = read_contents(destination).await?;
            filling.complete(&seal.cluster).await?;
            contents
        }
    };
    Ok(Migrated::new(&seal.cluster, &contents))
}

/// Gives up a migration that was interrupted: empties the destination and unseals the source. Refused if the migration is
/// complete, because the destination may have changed since, and if the destination does not know it. With `force`, a
/// destination without any cluster need not know it: for one that was lost.
pub async fn abort_migration(
    source: Arc<dyn MapStore>,
    destination: &dyn MapStore,
    force: bool,
) -> Result<()> {
    let identity = identify(source.as_ref()).await?;
    let cluster = identity.cluster().ok_or(PersistError::NotInitialised)?.clone();
    let sealed_by = match &identity {
        Identity::Sealed(seal) => Some(seal.operation),
        _ => None,
    };
    let mark = read_transfer(destination).await?.filter(|mark| {
        mark.source == cluster.store_id && sealed_by.is_none_or(|operation| operation == mark.operation)
    });
    let is_lost = force && identify(destination).await? == Identity::None;
    if mark.is_none() && !is_lost {
        let text = "the destination is not being filled from this store: there is nothing to abort, or it is complete";
        return Err(PersistError::InUse(text.into()));
    }
    // From here on, no migration that started earlier can seal the source.
    let mut owner = Persistence::own(RetryingStore(source), identity.unchanged()).await?;
    let mut filling = mark.map(|mark| Filling::resume(destination, mark));
    if let Some(filling) = &mut filling {
        filling.abort().await?;
        filling.clear().await?;
    }
    if sealed_by.is_some() {
        let unseal = Txn::default().put(keys::CLUSTER, encoding::encode(&cluster)).delete(keys::SEAL);
        owner.run(unseal).await?;
    }
    match filling {
        Some(filling) => filling.end().await,
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
