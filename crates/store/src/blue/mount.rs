//! Making a store, and opening one: what must fit together, what was lost, and the scan that finds out which blocks
//! are free.

use super::BlueStoreConfig;
use super::alloc::Allocator;
use super::collection::Collection;
use super::commit::ID_STEP;
use super::db::{Db, DbConfig, Family, RawBatch};
use super::device::{self, Device};
use super::keys;
use super::label::{FIRST_DATA_BLOCK, Label, Watermark};
use super::onode::{BLOCK_BYTES, OnodeView, Run, SharedBlob};
use super::state::{self, State};
use crate::error::{Result, StoreError};
use crate::files::{StoreLock, read_if_present, sync_directory, write_atomically};
use bytes::Bytes;
use nacre_types::ids::{Incarnation, PgId};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use uuid::Uuid;

/// What a store directory is recognised by: the file `type`, as in Ceph.
const TYPE: &str = "bluestore\n";
/// The smallest store, in bytes.
const MIN_BYTES: u64 = 8 << 20;

impl BlueStoreConfig {
    pub(super) fn db(&self) -> DbConfig {
        DbConfig { cache_bytes: self.db_cache_bytes, write_buffer_bytes: self.write_buffer_bytes }
    }
}

/// Makes an empty store of `size` bytes in `directory`. Data goes to the file `block` there, or to the device that a
/// symbolic link `block` points to.
pub(super) fn mkfs(directory: &Path, size: u64, config: &BlueStoreConfig) -> Result<Incarnation> {
    std::fs::create_dir_all(directory)
        .map_err(|e| StoreError::io(format!("create {}", directory.display()), &e))?;
    let _lock = StoreLock::take(directory)?;
    let wrong = |reason: &str| StoreError::WrongStore {
        path: directory.display().to_string(),
        reason: reason.to_owned(),
    };
    if directory.join("type").exists() || directory.join("db").exists() {
        return Err(wrong("already holds a store"));
    }
    let path = directory.join("block");
    if !path.exists() {
        device::create(&path, size / BLOCK_BYTES * BLOCK_BYTES)?;
    }
    let device = Device::open(&path)?;
    let size = device.size()?.min(size) / BLOCK_BYTES * BLOCK_BYTES;
    if size < MIN_BYTES {
        return Err(wrong("the device is too small for a store"));
    }
    if Label::read(&device, &path.display().to_string()).is_ok() {
        return Err(wrong("the device already holds a store: clear its first blocks to use it again"));
    }
    device.grow(0, FIRST_DATA_BLOCK * BLOCK_BYTES)?;
    let label = Label { uuid: Uuid::new_v4(), size };
    let incarnation = Incarnation(Uuid::new_v4());
    label.write(&device)?;
    let db = Db::open(&directory.join("db"), config.db(), true)?;
    let (ids, mut batch) = (db.ids(), RawBatch::default());
    batch.put(ids, Family::Super, state::FORMAT, &state::FORMAT_VERSION.to_le_bytes());
    batch.put(ids, Family::Super, state::UUID, label.uuid.as_bytes());
    batch.put(ids, Family::Super, state::INCARNATION, incarnation.0.as_bytes());
    batch.put(ids, Family::Super, state::CLEAN, &[1]);
    batch.put(ids, Family::Super, state::ID_MAX, &1_u64.to_le_bytes());
    batch.put(ids, Family::Super, state::FRONTIER, &FIRST_DATA_BLOCK.to_le_bytes());
    batch.finish();
    db.write(&batch)?;
    drop(db);
    // Last: what makes the directory a store.
    write_atomically(&directory.join("type"), &[TYPE.as_bytes()])?;
    sync_directory(directory)?;
    Ok(incarnation)
}

/// Fails where `directory` holds no BlueStore.
pub(super) fn check_type(directory: &Path) -> Result<()> {
    if read_if_present(&directory.join("type"))?.as_deref() == Some(TYPE.as_bytes()) {
        return Ok(());
    }
    Err(StoreError::WrongStore { path: directory.display().to_string(), reason: "holds no bluestore".into() })
}

/// A store's parts, opened and found to belong together.
pub(super) struct Opened {
    pub(super) lock: StoreLock,
    pub(super) device: Device,
    pub(super) db: Db,
    pub(super) label: Label,
    pub(super) watermark: Watermark,
    pub(super) state: State,
    /// What the database lost of what was synced (rule B3).
    pub(super) loss: Option<String>,
}

/// Opens the store in `directory` and brings deferred data to its place.
pub(super) fn open(directory: &Path, config: &BlueStoreConfig) -> Result<Opened> {
    let path = directory.display().to_string();
    check_type(directory)?;
    let lock = StoreLock::take(directory)?;
    let device = Device::open(&directory.join("block"))?;
    let label = Label::read(&device, &path)?;
    let db = Db::open(&directory.join("db"), config.db(), false)?;
    let state = State::read(&db, &path)?;
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
    super::deferred::replay(&db, &device, label.size / BLOCK_BYTES)?;
    Ok(Opened { lock, device, db, label, watermark, state, loss })
}

/// What the scan found.
pub(super) struct Scanned {
    pub(super) collections: BTreeMap<PgId, Collection>,
    pub(super) allocator: Allocator,
    pub(super) objects: u64,
    /// Findings for health; each also logged.
    pub(super) health: Vec<(String, String)>,
}

/// Reads all records: collections, logs' versions, and which blocks are in use. What can't be trusted is quarantined.
pub(super) fn scan(opened: &Opened) -> Result<Scanned> {
    let db = &opened.db;
    let device_blocks = opened.label.size / BLOCK_BYTES;
    let mut scanned = Scanned {
        collections: scan_collections(db)?,
        allocator: Allocator::new(FIRST_DATA_BLOCK, opened.state.frontier, device_blocks),
        objects: 0,
        health: Vec::new(),
    };
    for entry in db.scan(Family::PgLog) {
        let (key, _) = entry?;
        if let Some((coll, version)) = keys::split_log(&key)
            && let Some(collection) = scanned.collections.get_mut(&coll)
        {
            collection.log.load(version);
        }
    }
    let shared = scanned.scan_shared(db)?;
    let mut unreadable = 0_u64;
    for entry in db.scan(Family::Onodes) {
        let (key, value) = entry?;
        scanned.objects += 1;
        match keys::split_onode(&key) {
            Some((coll, _)) => {
                if let Some(collection) = scanned.collections.get_mut(&coll) {
                    collection.objects += 1;
                }
            }
            None => unreadable += 1,
        }
        if scanned.claim_onode(&value, &shared).is_err() {
            tracing::error!(key = ?keys::split_onode(&key), "bluestore: an object's record can't be decoded");
            unreadable += 1;
        }
    }
    if unreadable > 0 {
        // Such a record could own any block that no other owns.
        scanned.allocator.quarantine_all_free();
        scanned.damage(format!(
            "{unreadable} object records can't be decoded; all free space below them is withheld"
        ));
    }
    Ok(scanned)
}

fn scan_collections(db: &Db) -> Result<BTreeMap<PgId, Collection>> {
    let mut collections = BTreeMap::new();
    for entry in db.scan(Family::Collections) {
        let (key, value) = entry?;
        let Some((coll, rest)) = keys::split_collection(&key) else { continue };
        match rest.split_first() {
            Some((&keys::COLLECTION_RECORD, [])) => {
                let mut collection = Collection::new(coll);
                collection.removed = false;
                collections.insert(coll, collection);
            }
            Some((&keys::COLLECTION_META, name)) => {
                // Records sort before values, so the collection is there unless its record is lost.
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

impl Scanned {
    fn damage(&mut self, text: String) {
        tracing::error!("bluestore: {text}");
        self.health.push(("BLUESTORE_QUARANTINE".into(), text));
    }

    fn claim(&mut self, run: Run, owner: &str) {
        if !self.allocator.claim(run) {
            self.allocator.quarantine(run);
            self.damage(format!(
                "blocks {}..{} of {owner} have another owner too or lie outside the store",
                run.start,
                run.start.saturating_add(run.blocks)
            ));
        }
    }

    fn scan_shared(&mut self, db: &Db) -> Result<HashMap<u64, Run>> {
        let mut shared = HashMap::new();
        for entry in db.scan(Family::Shared) {
            let (key, value) = entry?;
            let id = key.as_ref().try_into().map(u64::from_be_bytes);
            match (id, SharedBlob::decode(&value)) {
                (Ok(id), Some(blob)) => {
                    self.claim(blob.run, &format!("shared blob {id}"));
                    shared.insert(id, blob.run);
                }
                // Its blocks are claimed as disputed by the onodes that name it.
                _ => self.damage(format!("shared blob record {key:?} can't be decoded")),
            }
        }
        Ok(shared)
    }

    /// Claims what a record owns; fails where it can't be decoded.
    fn claim_onode(&mut self, value: &[u8], shared: &HashMap<u64, Run>) -> Result<(), &'static str> {
        let view = OnodeView::parse(value)?;
        for blob in view.blobs() {
            let blob = blob?;
            if !blob.shared {
                self.claim(blob.run, &format!("blob {} of onode {}", blob.id, view.nid));
            } else if shared.get(&blob.id) != Some(&blob.run) {
                self.allocator.quarantine(blob.run);
                self.damage(format!(
                    "blob {} of onode {} is shared but has no such record",
                    blob.id, view.nid
                ));
            }
        }
        Ok(())
    }
}

/// Marks the store in use, with a new identity where contents were lost.
pub(super) fn mark_mounted(opened: &Opened) -> Result<Incarnation> {
    let incarnation = match opened.loss {
        Some(_) => Incarnation(Uuid::new_v4()),
        None => opened.state.incarnation,
    };
    let (ids, mut batch) = (opened.db.ids(), RawBatch::default());
    batch.put(ids, Family::Super, state::INCARNATION, incarnation.0.as_bytes());
    batch.put(ids, Family::Super, state::CLEAN, &[0]);
    batch.put(ids, Family::Super, state::ID_MAX, &(opened.state.id_max + ID_STEP).to_le_bytes());
    batch.finish();
    opened.db.write(&batch)?;
    Ok(incarnation)
}
