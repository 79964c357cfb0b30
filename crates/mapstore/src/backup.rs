//! Backups of a map store (`docs/format/mapstore.md`, "Backups").

use crate::error::PersistError;
use crate::generation::mint_generation;
use crate::identity::{ClusterRecord, read_cluster};
use crate::transfer::{fill_store, read_contents};
use crate::{MapStore, MemoryStore};
use nacre_types::crc32c::crc32c;
use nacre_types::encoding::{self, Versioned};
use nacre_types::ids::OsdId;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use uuid::Uuid;

/// The contents of a map store at one revision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MapBackup {
    cluster: ClusterRecord,
    /// Keys and values, in ascending order of keys.
    entries: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Versioned for MapBackup {
    const NAME: &'static str = "mon::Backup";
}

impl MapBackup {
    /// The id of the cluster.
    pub fn fsid(&self) -> Uuid {
        self.cluster.fsid
    }

    /// The number of keys.
    pub fn keys(&self) -> usize {
        self.entries.len()
    }

    /// The contents of a file: the encoding and its checksum. They include the keys of all entities.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = encoding::encode(self);
        let crc = crc32c(&bytes);
        bytes.extend(crc.to_le_bytes());
        bytes
    }

    /// Reverses [`MapBackup::encode`].
    pub fn decode(bytes: &[u8]) -> Result<MapBackup, PersistError> {
        let (encoded, crc) = bytes
            .split_last_chunk::<4>()
            .ok_or_else(|| PersistError::corrupt(b"the backup", "it is too short"))?;
        if crc32c(encoded) != u32::from_le_bytes(*crc) {
            return Err(PersistError::corrupt(b"the backup", "its checksum does not match"));
        }
        Ok(encoding::decode(encoded)?)
    }
}

/// Reads a backup of a store. The map authority may run, if the store allows other readers.
pub async fn export(store: &dyn MapStore) -> Result<MapBackup, PersistError> {
    let cluster = read_cluster(store).await?.ok_or(PersistError::NotInitialised)?;
    Ok(MapBackup { cluster, entries: read_contents(store).await? })
}

/// Puts a backup into an empty store, in a new generation (rule R7), because the cluster may have gone on since. Parameters and
/// result as for [`mint_generation`]. May be repeated after a failure; until then, the store can't be opened.
pub async fn import(
    store: &dyn MapStore,
    backup: &MapBackup,
    now_ns: u64,
    osds: &[OsdId],
) -> Result<u64, PersistError> {
    let restored = MemoryStore::default();
    fill_store(&restored, Uuid::nil(), &backup.cluster, &backup.entries).await?;
    let generation = mint_generation(Arc::new(restored.clone()), now_ns, osds).await?;
    let contents = read_contents(&restored).await?;
    fill_store(store, backup.cluster.store_id, &backup.cluster, &contents).await?;
    Ok(generation)
}
