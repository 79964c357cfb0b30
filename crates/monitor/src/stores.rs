//! Opens map stores, and works on them while no map authority runs.

use crate::error::MonError;
use crate::etcd::{EtcdAccess, EtcdStore, EtcdUrl};
use crate::local::LocalStore;
use nacre_common::auth::Keyring;
use nacre_common::clock::{Clock, SystemClock};
use nacre_common::config::Config;
use nacre_crush::CrushMap;
use nacre_mapstore::{MapBackup, MapStore, Migrated, PersistError};
use nacre_types::ids::OsdId;
use nacre_types::osdmap::OsdMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uuid::Uuid;

/// Creates a cluster in the map store: an empty map with the options' CRUSH failure domain and full ratios, and the entities
/// of `keyring`. Durable on return. Refuses a store that contains a cluster.
pub fn mkfs(config: &Config, data_dir: &Path, fsid: Uuid, keyring: &Keyring) -> Result<(), MonError> {
    let store = open(config, data_dir)?;
    let options = config.snapshot();
    let types = CrushMap::new_cluster("osd").map_err(|e| MonError::Invalid(e.to_string()))?;
    let domain = types.type_name(options.mon.osd_crush_chooseleaf_type as i32).unwrap_or("host").to_owned();
    let crush = CrushMap::new_cluster(&domain).map_err(|e| MonError::Invalid(e.to_string()))?;
    let mut map = OsdMap::new(fsid, SystemClock.wall_ns(), crush);
    map.full_ratio = options.mon.mon_osd_full_ratio as f32;
    map.backfillfull_ratio = options.mon.mon_osd_backfillfull_ratio as f32;
    map.nearfull_ratio = options.mon.mon_osd_nearfull_ratio as f32;
    block_on(nacre_mapstore::mkfs(store.as_ref(), &map, keyring))
}

/// The id of the cluster in the map store, if there is one.
pub fn stored_fsid(config: &Config, data_dir: &Path) -> Result<Option<Uuid>, MonError> {
    if is_local(config) && !data_dir.join(STORE_DIR).exists() {
        return Ok(None);
    }
    let store = open(config, data_dir)?;
    Ok(block_on(nacre_mapstore::read_cluster(store.as_ref()))?.map(|cluster| cluster.fsid))
}

/// Declares that the map store was restored from an old copy (rule R7): its history continues in a new generation. Also used
/// if the embedded store is refused because it lacks acknowledged changes. The authority must not run. `osds` are the OSDs
/// that the cluster has besides those in the copy, as far as the operator knows: PGs wait until each of them has reported its
/// contents or was declared lost. Returns the generation.
pub fn mint_generation(config: &Config, data_dir: &Path, osds: &[OsdId]) -> Result<u64, MonError> {
    let mint = |store| block_on(nacre_mapstore::mint_generation(store, SystemClock.wall_ns(), osds));
    if !is_local(config) {
        return mint(open(config, data_dir)?);
    }
    if !data_dir.join(STORE_DIR).is_dir() {
        return Err(PersistError::NotInitialised.into());
    }
    let store = Arc::new(LocalStore::open_allowing_loss(&store_dir(data_dir)?)?);
    let generation = mint(store.clone())?;
    store.accept_loss()?;
    Ok(generation)
}

/// Runs a request to the map store to its end. May be called on any thread.
fn block_on<T: Send>(request: impl Future<Output = Result<T, PersistError>> + Send) -> Result<T, MonError> {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| MonError::Invalid(format!("map store: {e}")))?;
        Ok(runtime.block_on(request)?)
    };
    // A thread of a runtime may not run another one.
    let result = std::thread::scope(|scope| scope.spawn(run).join());
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The directory of the map store within the data directory.
const STORE_DIR: &str = "store.db";
/// The name of the embedded map store.
const LOCAL: &str = "local";

/// Whether the map store is embedded.
fn is_local(config: &Config) -> bool {
    config.snapshot().mon.mon_map_store == LOCAL
}

/// Opens the map store that the options name.
pub(crate) fn open(config: &Config, data_dir: &Path) -> Result<Arc<dyn MapStore>, MonError> {
    open_named(config, data_dir, &config.snapshot().mon.mon_map_store)
}

/// Likewise, without creating it.
fn open_existing(config: &Config, data_dir: &Path) -> Result<Arc<dyn MapStore>, MonError> {
    if is_local(config) && !data_dir.join(STORE_DIR).is_dir() {
        return Err(PersistError::NotInitialised.into());
    }
    open(config, data_dir)
}

/// Opens the map store with a name as in `mon_map_store`.
fn open_named(config: &Config, data_dir: &Path, name: &str) -> Result<Arc<dyn MapStore>, MonError> {
    if name == LOCAL {
        return Ok(Arc::new(LocalStore::open(&store_dir(data_dir)?)?));
    }
    let url = name.parse::<EtcdUrl>();
    let url = url.map_err(|e| MonError::Invalid(format!("{e}; a map store is 'local' or etcd://…")))?;
    let quota = config.snapshot().mon.mon_map_store_quota;
    Ok(Arc::new(EtcdStore::new(url, etcd_access(config)?, quota)))
}

/// The directory of the map store. Created if it does not exist.
pub(crate) fn store_dir(data_dir: &Path) -> Result<PathBuf, MonError> {
    use std::os::unix::fs::DirBuilderExt;
    // The store contains the keys of all entities.
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700);
    let dir = data_dir.join(STORE_DIR);
    builder.create(&dir).map_err(|e| MonError::Invalid(format!("{}: {e}", data_dir.display())))?;
    Ok(dir)
}

/// How the options authenticate a client of etcd.
fn etcd_access(config: &Config) -> Result<EtcdAccess, MonError> {
    let options = &config.snapshot().mon;
    let path = |text: &str| (!text.is_empty()).then(|| PathBuf::from(text));
    let ca_file = path(&options.mon_map_store_cacert);
    let certificate = match (path(&options.mon_map_store_cert), path(&options.mon_map_store_key)) {
        (None, None) => None,
        (Some(certificate), Some(key)) if ca_file.is_some() => Some((certificate, key)),
        _ => {
            let text = "mon_map_store_cert needs mon_map_store_key and mon_map_store_cacert";
            return Err(MonError::Invalid(text.into()));
        }
    };
    let user = match options.mon_map_store_user.as_str() {
        "" => None,
        name => {
            let file = &options.mon_map_store_password_file;
            let password = std::fs::read_to_string(file)
                .map_err(|e| MonError::Invalid(format!("mon_map_store_password_file {file}: {e}")))?;
            if ca_file.is_none() {
                tracing::warn!(
                    "the password of mon_map_store_user is sent unencrypted: set mon_map_store_cacert"
                );
            }
            Some((name.to_owned(), password.trim_end().to_owned()))
        }
    };
    Ok(EtcdAccess { ca_file, certificate, user })
}

/// Moves the cluster from the map store that the options name to `destination`, which is named as in `mon_map_store`. The
/// source can't be opened afterwards, and its map authority ends. May be repeated after a failure.
pub fn migrate_map_store(config: &Config, data_dir: &Path, destination: &str) -> Result<Migrated, MonError> {
    let (source, other) = both(config, data_dir, destination)?;
    block_on(async move { nacre_mapstore::migrate(source, other.as_ref(), destination).await })
}

/// Gives up an interrupted migration to `destination`: empties it, and makes the source usable again.
/// With `force` also if the destination is empty, because what it held was lost.
pub fn abort_migration(
    config: &Config,
    data_dir: &Path,
    destination: &str,
    force: bool,
) -> Result<(), MonError> {
    let (source, other) = both(config, data_dir, destination)?;
    block_on(async move { nacre_mapstore::abort_migration(source, other.as_ref(), force).await })
}

/// The map store that the options name, and another one.
#[allow(clippy::type_complexity, reason = "a pair")]
fn both(
    config: &Config,
    data_dir: &Path,
    other: &str,
) -> Result<(Arc<dyn MapStore>, Arc<dyn MapStore>), MonError> {
    if config.snapshot().mon.mon_map_store == other {
        return Err(MonError::Invalid(format!("mon_map_store is {other} already")));
    }
    let other = open_named(config, data_dir, other)?;
    Ok((open_existing(config, data_dir)?, other))
}

/// Reads a backup of the map store. The map authority may run if the store is etcd.
pub fn export_map_store(config: &Config, data_dir: &Path) -> Result<MapBackup, MonError> {
    let store = open_existing(config, data_dir)?;
    block_on(async move { nacre_mapstore::export(store.as_ref()).await })
}

/// Creates the cluster of a map again in the empty map store that the options name, in a new generation. `keyring` has the
/// entities; `osds` as for [`mint_generation`]. Returns the generation. May be repeated after a failure.
pub fn rebuild_map_store(
    config: &Config,
    data_dir: &Path,
    map: &OsdMap,
    keyring: &Keyring,
    osds: &[OsdId],
) -> Result<u64, MonError> {
    let store = open(config, data_dir)?;
    block_on(async move {
        nacre_mapstore::rebuild(store.as_ref(), map, keyring, SystemClock.wall_ns(), osds).await
    })
}

/// Puts a backup into the empty map store that the options name, and begins a new generation. `osds` as for
/// [`mint_generation`]. Returns the generation. May be repeated after a failure.
pub fn import_map_store(
    config: &Config,
    data_dir: &Path,
    backup: &MapBackup,
    osds: &[OsdId],
) -> Result<u64, MonError> {
    let store = open(config, data_dir)?;
    block_on(async move { nacre_mapstore::import(store.as_ref(), backup, SystemClock.wall_ns(), osds).await })
}
