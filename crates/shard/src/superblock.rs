//! The store's record of its owner.

use crate::error::LoadError;
use nacre_objectstore::{ObjectStore, Result};
use nacre_pg::KnownOsds;
use nacre_types::encoding::{self, Versioned};
use nacre_types::ids::{Epoch, OsdId};
use nacre_types::osdmap::{MapVersion, OsdMap};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

const KEY: &str = "osd_superblock";
const KNOWN_KEY: &str = "known_osds";
const MAP_KEY: &str = "newest_map";

/// The OSD and the cluster that a store belongs to, and the newest map that it received (rule R7).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Superblock {
    /// The cluster.
    pub fsid: Uuid,
    /// The OSD.
    pub osd: OsdId,
    /// The OSD's own id, as passed to `osd new`.
    pub uuid: Uuid,
    /// The newest map applied, as of the last orderly stop or change of generation.
    pub epoch: Epoch,
    /// The highest MapStore generation seen; 0 for none.
    pub generation: u64,
}

/// What a store records about its OSD.
pub struct OsdRecords {
    /// The owner.
    pub superblock: Superblock,
    /// The OSDs that the owner knows from maps.
    pub known: KnownOsds,
    /// The newest map that was recorded.
    pub newest_map: MapVersion,
}

impl OsdRecords {
    /// The records of a new store.
    pub fn new(superblock: Superblock) -> OsdRecords {
        OsdRecords { superblock, known: KnownOsds::default(), newest_map: MapVersion::default() }
    }

    /// Reads them; `None` if the store was never assigned to an OSD.
    pub fn read(store: &dyn ObjectStore) -> Result<Option<OsdRecords>, LoadError> {
        let Some(superblock) = Superblock::read(store)? else { return Ok(None) };
        let known = read_known_osds(store)?;
        // A store of an earlier release has no recorded map.
        let (generation, epoch) = (superblock.generation, superblock.epoch);
        let of_superblock = MapVersion { generation, epoch, ..MapVersion::default() };
        let newest_map = read_newest_map(store)?.map_or(of_superblock, |map| map.version());
        Ok(Some(OsdRecords { superblock, known, newest_map }))
    }
}

impl Versioned for Superblock {
    const NAME: &'static str = "OSD superblock";
}

impl Superblock {
    /// Reads a store's superblock; `None` if the store was never assigned to an OSD.
    pub fn read(store: &dyn ObjectStore) -> Result<Option<Superblock>, LoadError> {
        let Some(bytes) = store.super_get(KEY)? else { return Ok(None) };
        Ok(Some(encoding::decode(&bytes)?))
    }

    /// Writes it; durable on return.
    pub fn write(&self, store: &dyn ObjectStore) -> Result<()> {
        store.super_set(&[(KEY, Some(encoding::encode(self).into()))])
    }
}

/// Reads the OSDs that this one knows from maps (rule R7); empty if the store has no record.
pub fn read_known_osds(store: &dyn ObjectStore) -> Result<KnownOsds, LoadError> {
    match store.super_get(KNOWN_KEY)? {
        Some(bytes) => Ok(encoding::decode(&bytes)?),
        None => Ok(KnownOsds::default()),
    }
}

/// Reads the newest map that was recorded; `None` if the store has no record.
pub fn read_newest_map(store: &dyn ObjectStore) -> Result<Option<OsdMap>, LoadError> {
    let Some(bytes) = store.super_get(MAP_KEY)? else { return Ok(None) };
    Ok(Some(encoding::decode(&bytes)?))
}

/// Records the newest map; durable on return. A map authority that has lost its store is rebuilt from it.
pub(crate) fn write_newest_map(map: &OsdMap, store: &dyn ObjectStore) -> Result<()> {
    store.super_set(&[(MAP_KEY, Some(encoding::encode(map).into()))])
}

/// Records them; durable on return.
pub(crate) fn write_known_osds(known: &KnownOsds, store: &dyn ObjectStore) -> Result<()> {
    store.super_set(&[(KNOWN_KEY, Some(encoding::encode(known).into()))])
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_fuzz::{CountingAllocator, Target};

    #[global_allocator]
    static ALLOCATOR: CountingAllocator = CountingAllocator;

    #[test]
    fn fuzz_superblocks() {
        let superblock = Superblock {
            fsid: Uuid::from_u128(1),
            osd: OsdId(3),
            uuid: Uuid::from_u128(2),
            epoch: Epoch(300),
            generation: 1,
        };
        let corpus = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"));
        Target::new("superblock", corpus, vec![encoding::encode(&superblock)])
            .run(|input| Some(encoding::encode(&encoding::decode::<Superblock>(input).ok()?)));
    }
}
