//! The stores under test, behind one factory, and shorthands for transactions.

pub(crate) use crate::reference::{pattern, soft};
use bytes::Bytes;
use nacre_store::{
    BlueStore, BlueStoreConfig, ChecksumType, CommitSink, CompressionAlgorithm, CompressionMode, DataOptions,
    FileStore, FileStoreConfig, IgnoreEvents, MemStore, MemStoreConfig, MountReport, ObjectStore, StoreError,
};
use nacre_types::ids::{Eversion, Interval, PgId, PoolId};
use nacre_types::object::ObjectId;
use nacre_types::payload::Payload;
use nacre_types::txn::{Transaction, TxnOp};
use parking_lot::{Condvar, Mutex};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A kind of store: how to make one and open it.
pub(crate) trait Kind: Send + Sync {
    fn name(&self) -> &'static str;
    fn mkfs(&self, directory: &Path);
    fn mount(&self, directory: &Path) -> (Arc<dyn ObjectStore>, MountReport);
    /// Checks an unmounted store's consistency.
    fn fsck(&self, directory: &Path);
}

/// MemStore with a limit in bytes.
pub(crate) struct Mem(pub(crate) u64);

impl Kind for Mem {
    fn name(&self) -> &'static str {
        "memstore"
    }

    fn mkfs(&self, directory: &Path) {
        MemStore::mkfs(directory).unwrap();
    }

    fn mount(&self, directory: &Path) -> (Arc<dyn ObjectStore>, MountReport) {
        let config = MemStoreConfig { device_bytes: self.0, ..MemStoreConfig::default() };
        let (store, report) = MemStore::mount(directory, config).unwrap();
        (Arc::new(store), report)
    }

    fn fsck(&self, _directory: &Path) {}
}

/// BlueStore of a size in bytes.
pub(crate) struct Blue(pub(crate) u64);

/// A configuration for small stores.
pub(crate) fn blue_config() -> BlueStoreConfig {
    BlueStoreConfig {
        cache_bytes: 8 << 20,
        db_cache_bytes: 4 << 20,
        write_buffer_bytes: 4 << 20,
        grow_bytes: 4 << 20,
        ballast_bytes: 1 << 20,
        ..BlueStoreConfig::default()
    }
}

impl Kind for Blue {
    fn name(&self) -> &'static str {
        "bluestore"
    }

    fn mkfs(&self, directory: &Path) {
        BlueStore::mkfs(directory, self.0, &blue_config()).unwrap();
    }

    fn mount(&self, directory: &Path) -> (Arc<dyn ObjectStore>, MountReport) {
        let (store, report) = BlueStore::mount(directory, blue_config(), Arc::new(IgnoreEvents)).unwrap();
        (Arc::new(store), report)
    }

    fn fsck(&self, directory: &Path) {
        let report = BlueStore::fsck(directory, &blue_config(), true).unwrap();
        assert_eq!(report.findings, []);
    }
}

/// BlueStore of a size in bytes that compresses, checks and allocates in other ways than it does by itself.
pub(crate) struct Services(pub(crate) u64, pub(crate) usize);

/// Ways to keep data.
pub(crate) const SERVICES: usize = 3;

impl Services {
    fn config(&self) -> BlueStoreConfig {
        let min_alloc_bytes = [4096, 65_536, 16_384][self.1];
        BlueStoreConfig { min_alloc_bytes, discard: self.1 == 2, ..blue_config() }
    }

    fn options(&self) -> DataOptions {
        let any = DataOptions { mode: CompressionMode::Force, ..DataOptions::default() };
        match self.1 {
            0 => DataOptions {
                algorithm: CompressionAlgorithm::Lz4,
                checksum: ChecksumType::Crc32c16,
                min_chunk_bytes: 16 << 10,
                max_blob_bytes: 128 << 10,
                ..any
            },
            1 => DataOptions { algorithm: CompressionAlgorithm::Zstd, max_blob_bytes: 1 << 20, ..any },
            _ => DataOptions { checksum: ChecksumType::Xxhash64, min_chunk_bytes: 64 << 10, ..any },
        }
    }
}

impl Kind for Services {
    fn name(&self) -> &'static str {
        "bluestore with compression"
    }

    fn mkfs(&self, directory: &Path) {
        BlueStore::mkfs(directory, self.0, &self.config()).unwrap();
    }

    fn mount(&self, directory: &Path) -> (Arc<dyn ObjectStore>, MountReport) {
        let (store, report) = BlueStore::mount(directory, self.config(), Arc::new(IgnoreEvents)).unwrap();
        store.set_data_options([(POOL, self.options())].into());
        (Arc::new(store), report)
    }

    fn fsck(&self, directory: &Path) {
        let report = BlueStore::fsck(directory, &self.config(), true).unwrap();
        assert_eq!(report.findings, []);
        for threads in [0, 2] {
            let scanned = BlueStore::scan(directory, &self.config(), threads, &IgnoreEvents).unwrap();
            assert_eq!(scanned.health, []);
        }
    }
}

/// FileStore of a size in bytes.
pub(crate) struct Files(pub(crate) u64);

/// A configuration for small stores.
pub(crate) fn file_config(device_bytes: u64) -> FileStoreConfig {
    FileStoreConfig {
        journal_bytes: 64 << 20,
        max_sync_interval: Duration::from_millis(200),
        device_bytes,
        min_free_bytes: 64 << 20,
        db_cache_bytes: 4 << 20,
        write_buffer_bytes: 4 << 20,
        // Few, so that directories split and records and descriptors come and go.
        split_multiple: 1,
        merge_threshold: 2,
        open_files: 8,
        cached_objects: 64,
        ..FileStoreConfig::default()
    }
}

impl Kind for Files {
    fn name(&self) -> &'static str {
        "filestore"
    }

    fn mkfs(&self, directory: &Path) {
        FileStore::mkfs(directory, &file_config(self.0)).unwrap();
    }

    fn mount(&self, directory: &Path) -> (Arc<dyn ObjectStore>, MountReport) {
        let (store, report) =
            FileStore::mount(directory, file_config(self.0), Arc::new(IgnoreEvents)).unwrap();
        (Arc::new(store), report)
    }

    fn fsck(&self, directory: &Path) {
        let report = FileStore::fsck(directory, &file_config(self.0), true).unwrap();
        assert_eq!(report.findings, []);
    }
}

/// One of each kind, with room for `bytes`.
pub(crate) fn kinds(bytes: u64) -> Vec<Box<dyn Kind>> {
    vec![Box::new(Mem(bytes)), Box::new(Files(bytes)), Box::new(Blue(bytes))]
}

/// A mounted store in a directory of its own.
pub(crate) struct Fixture {
    kind: Box<dyn Kind>,
    directory: TempDir,
    store: Option<Arc<dyn ObjectStore>>,
    pub(crate) report: MountReport,
}

impl Fixture {
    pub(crate) fn new(kind: Box<dyn Kind>) -> Fixture {
        let directory = tempfile::Builder::new().prefix("nacre-store-").tempdir().unwrap();
        kind.mkfs(directory.path());
        let (store, report) = kind.mount(directory.path());
        Fixture { kind, directory, store: Some(store), report }
    }

    /// Unmounts, checks and mounts again.
    pub(crate) fn remount(&mut self) {
        let store = self.store.take().unwrap();
        store.umount().unwrap();
        drop(store);
        self.kind.fsck(self.directory.path());
        let (store, report) = self.kind.mount(self.directory.path());
        (self.store, self.report) = (Some(store), report);
    }

    pub(crate) fn name(&self) -> &'static str {
        self.kind.name()
    }
}

impl std::ops::Deref for Fixture {
    type Target = dyn ObjectStore;

    fn deref(&self) -> &Self::Target {
        &**self.store.as_ref().unwrap()
    }
}

/// Runs `test` on one store of each kind.
pub(crate) fn on_every_store(bytes: u64, test: impl Fn(&mut Fixture)) {
    for kind in kinds(bytes) {
        let mut fixture = Fixture::new(kind);
        eprintln!("on {}", fixture.name());
        test(&mut fixture);
        fixture.remount();
    }
}

pub(crate) const POOL: PoolId = PoolId(3);

pub(crate) fn pg(seed: u32) -> PgId {
    PgId::new(POOL, seed)
}

pub(crate) fn oid(name: &str) -> ObjectId {
    ObjectId::new(POOL, "", "", name)
}

pub(crate) fn version(interval: u64, version: u64) -> Eversion {
    Eversion::new(Interval(interval), version)
}

pub(crate) fn txn(coll: PgId, ops: Vec<TxnOp>) -> Transaction {
    Transaction { collection: coll, ops }
}

pub(crate) fn write(name: &str, offset: u64, data: impl Into<Bytes>) -> TxnOp {
    TxnOp::Write { oid: oid(name), offset, data: Payload::with_checksums(data.into()) }
}

/// Collects completions.
#[derive(Default)]
pub(crate) struct Collect {
    pub(crate) groups: Mutex<Vec<Vec<u64>>>,
    pub(crate) failures: Mutex<Vec<(Vec<u64>, StoreError)>>,
    changed: Condvar,
}

impl Collect {
    /// Waits until `done` says so of the tokens seen so far.
    pub(crate) fn wait(&self, done: impl Fn(&[u64]) -> bool) -> Vec<u64> {
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut groups = self.groups.lock();
        loop {
            let tokens = groups.concat();
            if done(&tokens) {
                return tokens;
            }
            assert!(!self.changed.wait_until(&mut groups, deadline).timed_out(), "no completion: {tokens:?}");
        }
    }
}

impl CommitSink for Collect {
    fn committed(&self, tokens: &[u64]) {
        self.groups.lock().push(tokens.to_vec());
        self.changed.notify_all();
    }

    fn failed(&self, tokens: &[u64], error: &StoreError) {
        self.failures.lock().push((tokens.to_vec(), error.clone()));
        self.changed.notify_all();
    }
}
