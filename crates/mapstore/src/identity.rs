//! Which cluster a store belongs to, and whether it may be opened.

use crate::error::PersistError;
use crate::{Compare, MapStore};
use nacre_mon::keys;
use nacre_types::encoding::{self, Versioned};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The identity of the cluster that a map store belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterRecord {
    /// The id of the cluster.
    pub fsid: Uuid,
    /// Identity of this store; random.
    pub(crate) store_id: Uuid,
    pub(crate) created_ns: u64,
}

impl Versioned for ClusterRecord {
    const NAME: &'static str = "mon::Cluster";
}

/// Why a store may not be opened, in place of its cluster's record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Seal {
    /// The cluster's record.
    pub(crate) cluster: ClusterRecord,
    /// The migration that has sealed it, and the id of the store that the cluster has moved to.
    pub(crate) operation: Uuid,
    /// What an operator is told.
    pub(crate) reason: String,
}

impl Versioned for Seal {
    const NAME: &'static str = "mon::Seal";
}

/// What a store says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    /// It holds no cluster, or a part of one.
    None,
    /// It holds a cluster.
    Cluster(ClusterRecord),
    /// Its cluster has moved, or is moving.
    Sealed(Seal),
}

impl Identity {
    /// The cluster, moved or not.
    pub(crate) fn cluster(&self) -> Option<&ClusterRecord> {
        match self {
            Identity::None => None,
            Identity::Cluster(cluster) => Some(cluster),
            Identity::Sealed(seal) => Some(&seal.cluster),
        }
    }

    /// The condition that it has not changed.
    pub(crate) fn unchanged(&self) -> Compare {
        match self {
            Identity::None => Compare::Absent { key: keys::CLUSTER.to_vec() },
            Identity::Cluster(cluster) => {
                Compare::Value { key: keys::CLUSTER.to_vec(), value: encoding::encode(cluster) }
            }
            Identity::Sealed(seal) => {
                Compare::Value { key: keys::SEAL.to_vec(), value: encoding::encode(seal) }
            }
        }
    }
}

/// Reads what a store says of itself.
pub(crate) async fn identify(store: &dyn MapStore) -> Result<Identity, PersistError> {
    if let Some(entry) = store.get(keys::CLUSTER).await? {
        return Ok(Identity::Cluster(encoding::decode(&entry.value)?));
    }
    match store.get(keys::SEAL).await? {
        Some(entry) => Ok(Identity::Sealed(encoding::decode(&entry.value)?)),
        None => Ok(Identity::None),
    }
}

/// Reads the record of the cluster in a store, if there is one.
pub async fn read_cluster(store: &dyn MapStore) -> Result<Option<ClusterRecord>, PersistError> {
    match identify(store).await? {
        Identity::Cluster(cluster) => Ok(Some(cluster)),
        Identity::None | Identity::Sealed(_) => Ok(None),
    }
}
