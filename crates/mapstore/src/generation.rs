//! New generations of a store that was restored from an old copy (rule R7).

use crate::error::PersistError;
use crate::identity::read_cluster;
use crate::persistence::{Persistence, mkfs};
use crate::transfer::{fill_store, read_contents};
use crate::{MapStore, MemoryStore};
use nacre_common::auth::{Keyring, RotatingSecrets, ServiceKey};
use nacre_mon::keys;
use nacre_mon::logic::{Now, new_generation};
use nacre_types::ids::OsdId;
use nacre_types::osdmap::OsdMap;
use std::sync::Arc;

/// The client ids and service key numbers of a generation start at the generation shifted by this number of bits.
/// Generations are seconds since 1970, so the ids stay below 2^53, which every JSON reader represents exactly.
const IDS_PER_GENERATION_BITS: u32 = 20;
/// Minimum number of ids that a new generation skips: more than the lost history can have assigned in a second. Needed if
/// the clock was set back and the generation alone does not exceed the lost ids.
const RESTORED_ID_GAP: u64 = 1 << IDS_PER_GENERATION_BITS;

/// Declares that a store was restored from an old copy: its history continues in a new generation, at an epoch that was
/// never published (rule R7). `osds` as for [`new_generation`]. Returns the generation.
///
/// Client ids continue above those of the lost history: OSDs remember its clients' requests and would answer requests of a
/// new client with the same id as duplicates, without executing them. The same applies to the numbers of service keys.
pub async fn mint_generation(
    store: Arc<dyn MapStore>,
    now_ns: u64,
    osds: &[OsdId],
) -> Result<u64, PersistError> {
    let (mut persistence, loaded) = Persistence::open(store, "a").await?;
    // The time makes the generations of two restores of the same copy different.
    let generation = (loaded.map.generation + 1).max(now_ns / 1_000_000_000);
    let map = new_generation(&loaded.map, generation, Now { mono_ms: 0, wall_ns: now_ns }, osds);
    let next_client = restored_id(persistence.next_client().await?, generation)?;
    let service_keys =
        loaded.service_keys.map(|old| restored_service_keys(&old, generation, now_ns)).transpose()?;
    persistence.begin_generation(&map, next_client, service_keys).await?;
    Ok(generation)
}

/// Creates the cluster of a map again in an empty store, in a new generation, after its own store was lost. `keyring` has the
/// entities; `osds` as for [`mint_generation`]. Returns the generation. May be repeated after a failure; until then, the store
/// can't be opened.
pub async fn rebuild(
    store: &dyn MapStore,
    map: &OsdMap,
    keyring: &Keyring,
    now_ns: u64,
    osds: &[OsdId],
) -> Result<u64, PersistError> {
    let rebuilt = MemoryStore::default();
    mkfs(&rebuilt, map, keyring).await?;
    let cluster = read_cluster(&rebuilt).await?.ok_or(PersistError::NotInitialised)?;
    let generation = mint_generation(Arc::new(rebuilt.clone()), now_ns, osds).await?;
    let contents = read_contents(&rebuilt).await?;
    fill_store(store, map.fsid, &cluster, &contents).await?;
    Ok(generation)
}

/// The first id of `generation`, if the restored copy would have assigned `next`.
fn restored_id(next: u64, generation: u64) -> Result<u64, PersistError> {
    let by_time = generation.min(u64::from(u32::MAX)) << IDS_PER_GENERATION_BITS;
    let id = next.saturating_add(RESTORED_ID_GAP).max(by_time);
    // Client names in Ceph contain signed numbers.
    if id > i64::MAX as u64 / 2 {
        return Err(PersistError::Invalid(format!(
            "the map store has given out client or key ids up to {next}"
        )));
    }
    Ok(id)
}

/// The service keys of a new generation, encoded. Keeps the keys of the copy except the oldest, so that clients that ran
/// during the restore can renew their tickets and keep their ids. Later keys get numbers that differ from those of the
/// lost history, which belong to other secrets.
fn restored_service_keys(
    old: &RotatingSecrets,
    generation: u64,
    now_ns: u64,
) -> Result<Vec<u8>, PersistError> {
    let [_, current, next] = old.keys() else {
        return Err(PersistError::corrupt(keys::SERVICE_KEYS, "not three keys"));
    };
    let now_unix = now_ns / 1_000_000_000;
    let ttl = next.valid_from_unix.saturating_sub(current.valid_from_unix).max(1);
    let made = RotatingSecrets::generate(now_unix, ttl).map_err(|e| PersistError::Invalid(e.to_string()))?;
    let last = made.keys().last().ok_or_else(|| PersistError::corrupt(keys::SERVICE_KEYS, "no keys"))?;
    let keys: [ServiceKey; 3] = [
        current.clone(),
        ServiceKey { valid_from_unix: now_unix, ..next.clone() },
        ServiceKey { id: restored_id(next.id, generation)?, ..last.clone() },
    ];
    // A keyring is stored as its three keys.
    Ok(postcard::to_extend(&keys, Vec::new()).expect("invariant: a plain structure always encodes"))
}
