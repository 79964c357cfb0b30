//! Creating a store, and opening one: checks that its parts belong together, and detects losses. [`super::allocation::start`]
//! determines what is allocated.

use super::allocation::checkpoint::BitmapPrefetch;
use super::allocation::start::{self, AllocationState};
use super::collection::Collection;
use super::commit::ID_PREALLOC;
use super::db::{Db, DbConfig, Family, RawBatch};
use super::device::{self, Device};
use super::keys;
use super::label::{FIRST_DATA_BLOCK, Label, Watermark};
use super::onode::BLOCK_BYTES;
use super::state::{self, SuperMeta};
use super::{BlueStoreConfig, ballast, database_space};
use crate::error::{Result, StoreError};
use bytes::Bytes;
use nacre_objectstore::files::{StoreLock, read_if_present, sync_directory, write_atomically};
use nacre_types::ids::{Incarnation, PgId};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// Contents of the file `type`, which identifies a store directory, as in Ceph.
const TYPE: &str = "bluestore\n";
/// Minimum size of a store, in bytes.
const MIN_BYTES: u64 = 8 << 20;

impl BlueStoreConfig {
    pub(super) fn db(&self) -> DbConfig {
        DbConfig { cache_bytes: self.db_cache_bytes, write_buffer_bytes: self.write_buffer_bytes }
    }

    /// Transactions that write data are refused if the database's file system has less than this free. The range between this
    /// value and `db_min_free_bytes` is for transactions that were ordered before all members of a PG learnt that there is no
    /// space.
    pub(super) fn min_free_for_writes(&self) -> u64 {
        self.db_min_free_bytes / 2
    }

    /// The ballast is removed if the database's file system has less than this free.
    pub(super) fn ballast_release_bytes(&self) -> u64 {
        self.db_min_free_bytes / 4
    }
}

/// Creates an empty store of `size` bytes in `directory`. Data goes to the file `block` there, or to the device that a
/// symbolic link `block` points to.
pub(super) fn mkfs(directory: &Path, size: u64, config: &BlueStoreConfig) -> Result<Incarnation> {
    std::fs::create_dir_all(directory)
        .map_err(|e| StoreError::io(format!("create {}", directory.display()), &e))?;
    let _lock = StoreLock::take(directory)?;
    let wrong = |reason: &str| StoreError::WrongStore {
        path: directory.display().to_string(),
        reason: reason.to_owned(),
    };
    if directory.join("type").exists() || directory.join("db").symlink_metadata().is_ok() {
        return Err(wrong("already holds a store"));
    }
    let unit = config.min_alloc_bytes;
    if !unit.is_power_of_two() || !(BLOCK_BYTES..=state::MAX_UNIT_BYTES).contains(&unit) {
        return Err(wrong("the unit of allocation must be a power of two from 4096 to 65536"));
    }
    let path = directory.join("block");
    if !path.exists() {
        device::create(&path, size / BLOCK_BYTES * BLOCK_BYTES)?;
    }
    let device = Device::open(&path)?;
    let size = device.size()?.min(size) / unit * unit;
    if size < MIN_BYTES {
        return Err(wrong("the device is too small for a store"));
    }
    if Label::read(&device, &path.display().to_string()).is_ok() {
        return Err(wrong("the device already holds a store: clear its first blocks to use it again"));
    }
    device.ensure_allocated(0, FIRST_DATA_BLOCK * BLOCK_BYTES)?;
    let label = Label { uuid: Uuid::new_v4(), size };
    let incarnation = Incarnation(Uuid::new_v4());
    label.write(&device)?;
    if let Some(path) = &config.db_path {
        link_database(directory, path)?;
    }
    let db = Db::open(&directory.join("db"), config.db(), true)?;
    let (ids, mut batch) = (db.ids(), RawBatch::default());
    batch.put(ids, Family::Super, state::FORMAT, &state::FORMAT_VERSION.to_le_bytes());
    batch.put(ids, Family::Super, state::UUID, label.uuid.as_bytes());
    batch.put(ids, Family::Super, state::INCARNATION, incarnation.0.as_bytes());
    batch.put(ids, Family::Super, state::CLEAN, &[1]);
    batch.put(ids, Family::Super, state::ID_MAX, &1_u64.to_le_bytes());
    batch.put(ids, Family::Super, state::FRONTIER, &FIRST_DATA_BLOCK.to_le_bytes());
    batch.put(ids, Family::Super, state::UNIT, &unit.to_le_bytes());
    start::create_first_checkpoint(directory, label.uuid, size / BLOCK_BYTES, &db, &mut batch)?;
    batch.finish();
    db.write(&batch)?;
    drop(db);
    // Written last: this file makes the directory a store.
    write_atomically(&directory.join("type"), &[TYPE.as_bytes()])?;
    sync_directory(directory)?;
    Ok(incarnation)
}

/// Creates the directory `path`, which must be empty, and links the database to it.
fn link_database(directory: &Path, path: &Path) -> Result<()> {
    let failed =
        |what: &str, error: &std::io::Error| StoreError::io(format!("{what} {}", path.display()), error);
    std::fs::create_dir_all(path).map_err(|e| failed("create", &e))?;
    if std::fs::read_dir(path).map_err(|e| failed("list", &e))?.next().is_some() {
        let reason = "the directory for the database is not empty".to_owned();
        return Err(StoreError::WrongStore { path: path.display().to_string(), reason });
    }
    let path = path.canonicalize().map_err(|e| failed("find", &e))?;
    std::os::unix::fs::symlink(&path, directory.join("db")).map_err(|e| failed("link", &e))?;
    sync_directory(directory)
}

/// Fails if `directory` holds no BlueStore.
pub(super) fn check_type(directory: &Path) -> Result<()> {
    if read_if_present(&directory.join("type"))?.as_deref() == Some(TYPE.as_bytes()) {
        return Ok(());
    }
    Err(StoreError::WrongStore { path: directory.display().to_string(), reason: "holds no bluestore".into() })
}

/// The parts of a store, opened and checked to belong together.
pub(super) struct OpenedStore {
    pub(super) directory: PathBuf,
    pub(super) lock: StoreLock,
    pub(super) device: Device,
    pub(super) db: Db,
    pub(super) label: Label,
    pub(super) watermark: Watermark,
    pub(super) state: SuperMeta,
    /// The bitmap of a checkpoint that is being read in advance.
    pub(super) ahead: Mutex<Option<BitmapPrefetch>>,
    /// Description of synced data that the database lost (rule B3).
    pub(super) loss: Option<String>,
}

/// Opens the store in `directory` and writes deferred data to its place.
pub(super) fn open(directory: &Path, config: &BlueStoreConfig) -> Result<OpenedStore> {
    let path = directory.display().to_string();
    check_type(directory)?;
    let lock = StoreLock::take(directory)?;
    let device = Device::open(&directory.join("block"))?;
    let label = Label::read(&device, &path)?;
    let ahead = start::prefetch_bitmap(directory, label.uuid, label.size / BLOCK_BYTES);
    if database_space(directory)? < config.ballast_release_bytes() {
        // Opening the database takes some space.
        _ = std::fs::remove_file(ballast(directory));
    }
    let db = Db::open(&directory.join("db"), config.db(), false)?;
    let mut state = SuperMeta::read(&db, &path)?;
    if state.uuid != label.uuid {
        let reason = format!("the device belongs to store {}, the database to {}", label.uuid, state.uuid);
        return Err(StoreError::WrongStore { path, reason });
    }
    let watermark = Watermark::read(&device, label.uuid)?;
    let sequence = db.sequence();
    let loss = (sequence < watermark.sequence).then(|| {
        format!(
            "the database's log is damaged: it ends at {sequence}, but was durable up to {}",
            watermark.sequence
        )
    });
    let loss = match loss {
        None => start::lost_deltas(directory, &db, label.uuid)?,
        known => known,
    };
    if loss.is_some() {
        // A new identity immediately, because any later use of the store may remove the evidence of the loss.
        state.incarnation = Incarnation(Uuid::new_v4());
        let mut batch = RawBatch::default();
        batch.put(db.ids(), Family::Super, state::INCARNATION, state.incarnation.0.as_bytes());
        batch.finish();
        db.write(&batch)?;
    }
    super::deferred::replay(&db, &device, label.size / BLOCK_BYTES)?;
    Ok(OpenedStore {
        directory: directory.to_owned(),
        lock,
        device,
        db,
        label,
        watermark,
        state,
        ahead: Mutex::new(ahead),
        loss,
    })
}

/// Loads all collections with their values. Their logs and objects are loaded when they are needed.
pub(super) fn load_collections(db: &Db) -> Result<BTreeMap<PgId, Collection>> {
    let mut collections = BTreeMap::new();
    for entry in db.scan(Family::Collections) {
        let (key, value) = entry?;
        let Some((coll, rest)) = keys::split_collection(&key) else { continue };
        match rest.split_first() {
            Some((&keys::COLLECTION_RECORD, [])) => {
                let mut collection = Collection::new(coll);
                collection.removed = false;
                collection.log.set_unloaded();
                collections.insert(coll, collection);
            }
            Some((&keys::COLLECTION_META, name)) => {
                // Records sort before values, so the collection exists unless its record is lost.
                if let (Some(collection), Ok(name)) = (collections.get_mut(&coll), std::str::from_utf8(name))
                {
                    collection.meta.insert(name.to_owned(), Bytes::copy_from_slice(&value));
                }
            }
            _ => {}
        }
    }
    Ok(collections)
}

/// Raises the recorded high-water marks of numbers and blocks to those that a start found in use. Adds the records to `batch`.
pub(super) fn raise_high_water_marks(
    opened: &mut OpenedStore,
    known: &AllocationState,
    batch: &mut RawBatch,
) {
    let (ids, state) = (opened.db.ids(), &mut opened.state);
    if known.id_max > state.id_max {
        tracing::warn!(
            recorded = state.id_max,
            found = known.id_max,
            "bluestore: numbers in use were not recorded"
        );
        state.id_max = known.id_max;
        batch.put(ids, Family::Super, state::ID_MAX, &state.id_max.to_le_bytes());
    }
    if known.frontier > state.frontier {
        tracing::warn!(
            recorded = state.frontier,
            found = known.frontier,
            "bluestore: blocks in use were not recorded"
        );
        // These blocks had space once. It may have been returned, and the file system may be short of it now.
        let (from, to) = (state.frontier * BLOCK_BYTES, known.frontier * BLOCK_BYTES);
        if let Err(error) = opened.device.ensure_allocated(from, to) {
            tracing::warn!(%error, "bluestore: can't take all space below the last used block");
        }
        state.frontier = known.frontier;
        batch.put(ids, Family::Super, state::FRONTIER, &state.frontier.to_le_bytes());
    }
}

/// Writes `batch` and marks the store as in use.
pub(super) fn mark_mounted(opened: &OpenedStore, mut batch: RawBatch) -> Result<()> {
    let ids = opened.db.ids();
    batch.put(ids, Family::Super, state::FORMAT, &state::FORMAT_VERSION.to_le_bytes());
    batch.put(ids, Family::Super, state::CLEAN, &[0]);
    batch.put(ids, Family::Super, state::ID_MAX, &(opened.state.id_max + ID_PREALLOC).to_le_bytes());
    batch.finish();
    opened.db.write(&batch)
}
