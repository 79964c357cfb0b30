//! The keys of the map store (`docs/format/mapstore.md`).

use crate::config_db::ConfigTarget;
use nacre_types::ids::{EntityName, Epoch, PoolId};

/// The longest value of a key in a proposal. It fits into one transaction of a map store; maps are not among these keys and are split.
pub const MAX_VALUE_BYTES: usize = 1400 << 10;

/// Prefix of the keys that belong to a store and its owner, and not to the cluster's contents.
pub const META: &[u8] = b"meta/";
/// The session of the map authority that may commit.
pub const FENCE: &[u8] = b"meta/fence";
/// The number of the last transaction of the map authority that may commit, in eight big-endian bytes.
pub const SEQUENCE: &[u8] = b"meta/sequence";
/// Prefix of the changes of a proposal that is committed, but exceeds a transaction: they are being applied.
pub const STAGED: &[u8] = b"staged/";
/// Present in place of [`CLUSTER`] in a store whose cluster has moved.
pub const SEAL: &[u8] = b"meta/seal";
/// Present in a store that is being filled.
pub const TRANSFER: &[u8] = b"meta/transfer";
/// The cluster: fsid, store id and format.
pub const CLUSTER: &[u8] = b"meta/cluster";
/// The newest epoch, in eight big-endian bytes.
pub const LAST_EPOCH: &[u8] = b"osdmap/last";
/// The newest full map's epoch, likewise.
pub const LAST_FULL: &[u8] = b"osdmap/last_full";
/// The oldest incremental's epoch, likewise.
pub const FIRST_INCREMENTAL: &[u8] = b"osdmap/first_inc";
/// The first client id that is not reserved yet, likewise.
pub const NEXT_CLIENT: &[u8] = b"ids/client";
/// The rotating service keys.
pub const SERVICE_KEYS: &[u8] = b"auth_rotating/osd";
/// The number of changes of the CRUSH map, in eight big-endian bytes.
pub const CRUSH_VERSION: &[u8] = b"osdmap/crush_version";

/// Prefix of incrementals.
pub const INCREMENTALS: &[u8] = b"osdmap/inc/";
/// Prefix of full maps.
pub const FULL_MAPS: &[u8] = b"osdmap/full/";
/// Prefix of configuration values.
pub const CONFIG: &[u8] = b"config/";
/// Prefix of the configuration's versions.
pub const CONFIG_HISTORY: &[u8] = b"config-history/";
/// Prefix of the values that programs store.
pub const CONFIG_KEY: &[u8] = b"config-key/";
/// Prefix of muted health checks.
pub const MUTES: &[u8] = b"health/mute/";
/// Prefix of the dirty objects of PGs of cache tiers.
pub const TIER_DIRTY: &[u8] = b"tier/dirty/";
/// Prefix of entities.
pub const AUTH: &[u8] = b"auth/";
/// Prefix of cluster log lines.
pub const LOG: &[u8] = b"log/";

/// A chunk of a map: prefix, epoch, number of the chunk.
pub fn chunk(prefix: &[u8], epoch: Epoch, chunk: u32) -> Vec<u8> {
    [prefix, &epoch.0.to_be_bytes(), &chunk.to_be_bytes()].concat()
}

/// A configuration value.
pub(crate) fn config(who: &ConfigTarget, name: &str) -> Vec<u8> {
    format!("config/{who}/{name}").into_bytes()
}

/// An entity.
pub fn auth(entity: &EntityName) -> Vec<u8> {
    format!("auth/{entity}").into_bytes()
}

/// A version of the configuration.
pub(crate) fn config_history(number: u64) -> Vec<u8> {
    [CONFIG_HISTORY, &number.to_be_bytes()].concat()
}

/// A value of `config-key`.
pub(crate) fn config_key(key: &str) -> Vec<u8> {
    [CONFIG_KEY, key.as_bytes()].concat()
}

/// A muted health check.
pub(crate) fn mute(code: &str) -> Vec<u8> {
    [MUTES, code.as_bytes()].concat()
}

/// The dirty objects of the PGs of a cache.
pub(crate) fn tier_dirty(cache: PoolId) -> Vec<u8> {
    [TIER_DIRTY, &cache.0.to_be_bytes()].concat()
}

/// A line of the cluster log.
pub fn log(seq: u64) -> Vec<u8> {
    [LOG, &seq.to_be_bytes()].concat()
}
