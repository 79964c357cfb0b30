//! Direct access to the key-value database of a store that is not in use, for `kvstore-tool`.
//!
//! Prefixes are column families. A change to a BlueStore's records may change the owners of blocks. Therefore each change
//! discards the recorded allocation state, and the next start reads it from the objects' records.

use crate::blue::offline;
use crate::error::{Result, StoreError};
use nacre_objectstore::files::StoreLock;
use nacre_types::crc32c;
use rocksdb::{
    BottommostLevelCompaction, CompactOptions, DB, IteratorMode, Options, ReadOptions, WriteBatch,
    WriteOptions,
};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// The kind of database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvKind {
    /// A RocksDB directory.
    RocksDb,
    /// A BlueStore directory.
    BlueStoreKv,
}

/// An open database. No other process has it open.
pub struct KvStore {
    db: DB,
    prefixes: Vec<String>,
    directory: PathBuf,
    /// The lock of the BlueStore that the database belongs to.
    store: Option<StoreLock>,
}

impl std::fmt::Debug for KvStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KvStore").field("directory", &self.directory).finish_non_exhaustive()
    }
}

/// Sizes in bytes of a database's files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvSize {
    /// Write-ahead logs.
    pub log: u64,
    /// Sorted tables.
    pub sst: u64,
    /// Everything else.
    pub misc: u64,
}

impl KvSize {
    /// The size of all files.
    pub fn total(&self) -> u64 {
        self.log + self.sst + self.misc
    }
}

/// The space that a prefix takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvUsage {
    /// The prefix.
    pub prefix: String,
    /// Approximate number of keys.
    pub keys: u64,
    /// Size of its sorted tables in bytes.
    pub table_bytes: u64,
    /// Bytes of it in memory and in the log.
    pub memtable_bytes: u64,
}

/// The amount of data copied by [`KvStore::copy_to`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvCopyStats {
    /// Keys.
    pub keys: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
    /// Write batches.
    pub transactions: u64,
}

fn failed(what: &'static str) -> impl Fn(rocksdb::Error) -> StoreError {
    move |error| crate::error::database(what, &error)
}

/// Refuses the database of a BlueStore. Opened as a plain database, it would be changed without the store's knowledge.
fn plain(path: &Path) -> Result<()> {
    match std::fs::canonicalize(path).ok().as_deref().and_then(Path::parent) {
        Some(store) if offline::is_bluestore(store) => Err(StoreError::WrongStore {
            path: path.display().to_string(),
            reason: format!("is the database of a BlueStore: use bluestore-kv {}", store.display()),
        }),
        _ => Ok(()),
    }
}

impl KvStore {
    /// Opens the database in `path`. Fails with [`StoreError::InUse`] if its store is in use, and with
    /// [`StoreError::WrongStore`] if `path` should hold a BlueStore but does not.
    pub fn open(kind: KvKind, path: &Path) -> Result<KvStore> {
        let (directory, store) = match kind {
            KvKind::BlueStoreKv => (path.join("db"), Some(offline::lock(path)?)),
            KvKind::RocksDb => {
                plain(path)?;
                (path.to_owned(), None)
            }
        };
        let prefixes = DB::list_cf(&Options::default(), &directory)
            .map_err(failed("list the column families of a database"))?;
        let db = match kind {
            KvKind::BlueStoreKv => offline::open_database(&directory)?,
            KvKind::RocksDb => {
                DB::open_cf(&Options::default(), &directory, &prefixes).map_err(failed("open a database"))?
            }
        };
        Ok(KvStore { db, prefixes, directory, store })
    }

    /// The prefixes, in order.
    pub fn prefixes(&self) -> impl Iterator<Item = &str> {
        self.prefixes.iter().map(String::as_str)
    }

    fn family(&self, prefix: &str) -> Option<&rocksdb::ColumnFamily> {
        self.db.cf_handle(prefix)
    }

    fn existing(&self, prefix: &str) -> Result<&rocksdb::ColumnFamily> {
        self.family(prefix).ok_or_else(|| StoreError::WrongStore {
            path: self.directory.display().to_string(),
            reason: format!("has no prefix '{prefix}'; there are: {}", self.prefixes.join(", ")),
        })
    }

    /// Passes every entry of `prefix`, or of all prefixes, to `see` in key order, until `see` returns a break.
    pub fn for_each(
        &self,
        prefix: Option<&str>,
        mut see: impl FnMut(&str, &[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        for name in self.prefixes.iter().filter(|name| prefix.is_none_or(|prefix| prefix == **name)) {
            let mut options = ReadOptions::default();
            options.fill_cache(false);
            options.set_readahead_size(2 << 20);
            for entry in self.db.iterator_cf_opt(self.existing(name)?, options, IteratorMode::Start) {
                let (key, value) = entry.map_err(failed("read a database"))?;
                if see(name, &key, &value).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The value of a key.
    pub fn get(&self, prefix: &str, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let Some(family) = self.family(prefix) else { return Ok(None) };
        self.db.get_cf(family, key).map_err(failed("read a database"))
    }

    /// Sets a key. Durable on return.
    pub fn set(&self, prefix: &str, key: &[u8], value: &[u8]) -> Result<()> {
        let family = self.existing(prefix)?;
        let mut batch = WriteBatch::default();
        if self.single_deletes(prefix) {
            // Keys of this family are put only once between removals.
            batch.single_delete_cf(family, key);
        }
        batch.put_cf(family, key, value);
        self.change(batch)
    }

    /// Removes a key. Durable on return. Removing an absent key is not an error.
    pub fn rm(&self, prefix: &str, key: &[u8]) -> Result<()> {
        let Some(family) = self.family(prefix) else { return Ok(()) };
        let mut batch = WriteBatch::default();
        if self.single_deletes(prefix) {
            batch.single_delete_cf(family, key);
        } else {
            batch.delete_cf(family, key);
        }
        self.change(batch)
    }

    /// Removes all keys of a prefix. Durable on return.
    pub fn rm_prefix(&self, prefix: &str) -> Result<()> {
        let Some(family) = self.family(prefix) else { return Ok(()) };
        let mut batch = WriteBatch::default();
        for entry in self.db.iterator_cf(family, IteratorMode::Start) {
            let (key, _) = entry.map_err(failed("read a database"))?;
            if self.single_deletes(prefix) {
                batch.single_delete_cf(family, key);
            } else {
                batch.delete_cf(family, key);
            }
        }
        self.change(batch)
    }

    /// Whether keys of `prefix` are removed by single deletes, which must not be mixed with other deletes.
    fn single_deletes(&self, prefix: &str) -> bool {
        self.store.is_some() && prefix == offline::SINGLE_DELETE_PREFIX
    }

    fn change(&self, mut batch: WriteBatch) -> Result<()> {
        if self.store.is_some() {
            offline::invalidate_allocation(&self.db, &mut batch);
        }
        let mut synced = WriteOptions::default();
        synced.set_sync(true);
        self.db.write_opt(batch, &synced).map_err(failed("write a database"))
    }

    /// Compacts `prefix`, or all prefixes, optionally only from `start` to `end`, which removes deleted and overwritten
    /// entries from disk. Calls `begin` with each prefix.
    pub fn compact(
        &self,
        prefix: Option<&str>,
        range: (Option<&[u8]>, Option<&[u8]>),
        mut begin: impl FnMut(&str),
    ) -> Result<()> {
        let mut options = CompactOptions::default();
        options.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
        for name in self.prefixes.iter().filter(|name| prefix.is_none_or(|prefix| prefix == **name)) {
            begin(name);
            self.db.compact_range_cf_opt(self.existing(name)?, range.0, range.1, &options);
        }
        Ok(())
    }

    /// Copies all entries to a new database in `path`, in batches of `keys_per_transaction` keys. Calls `progress` after each
    /// batch.
    pub fn copy_to(
        &self,
        path: &Path,
        keys_per_transaction: u64,
        mut progress: impl FnMut(&KvCopyStats),
    ) -> Result<KvCopyStats> {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_error_if_exists(true);
        options.create_missing_column_families(true);
        let copy = DB::open_cf(&options, path, &self.prefixes).map_err(failed("create a database"))?;
        let (mut copied, mut batch) = (KvCopyStats::default(), WriteBatch::default());
        let mut outcome = Ok(());
        let mut write = |batch: &mut WriteBatch, copied: &mut KvCopyStats| -> Result<()> {
            copied.transactions += 1;
            copy.write(std::mem::take(batch)).map_err(failed("write a database"))?;
            progress(copied);
            Ok(())
        };
        self.for_each(None, |prefix, key, value| {
            let family = copy.cf_handle(prefix).expect("invariant: opened with these");
            batch.put_cf(family, key, value);
            copied.keys += 1;
            copied.bytes += (key.len() + value.len()) as u64;
            if batch.len() as u64 >= keys_per_transaction {
                outcome = write(&mut batch, &mut copied);
            }
            if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        outcome?;
        if !batch.is_empty() {
            write(&mut batch, &mut copied)?;
        }
        for prefix in &self.prefixes {
            let family = copy.cf_handle(prefix).expect("invariant: opened with these");
            copy.flush_cf(family).map_err(failed("flush a database"))?;
        }
        Ok(copied)
    }

    /// The crc32c of all prefixes, keys and values in order, with seed −1 and without the final inversion, as in Ceph.
    pub fn crc(&self) -> Result<u32> {
        let mut crc = 0;
        self.for_each(None, |prefix, key, value| {
            for part in [prefix.as_bytes(), key, value] {
                crc = crc32c::append(crc, part);
            }
            ControlFlow::Continue(())
        })?;
        Ok(!crc)
    }

    /// Sizes of the database's files.
    pub fn size(&self) -> Result<KvSize> {
        let error = |e: std::io::Error| StoreError::io(format!("list {}", self.directory.display()), &e);
        let mut size = KvSize::default();
        for entry in std::fs::read_dir(&self.directory).map_err(error)? {
            let entry = entry.map_err(error)?;
            let bytes = entry.metadata().map_err(error)?.len();
            match entry.path().extension().and_then(|extension| extension.to_str()) {
                Some("log") => size.log += bytes,
                Some("sst") => size.sst += bytes,
                _ => size.misc += bytes,
            }
        }
        Ok(size)
    }

    /// The space that each prefix takes.
    pub fn usage(&self) -> Result<Vec<KvUsage>> {
        let usage = |name: &String| {
            let family = self.existing(name)?;
            let property = |property: &str| {
                let value =
                    self.db.property_int_value_cf(family, property).map_err(failed("ask a database"))?;
                Ok::<_, StoreError>(value.unwrap_or(0))
            };
            Ok(KvUsage {
                prefix: name.clone(),
                keys: property("rocksdb.estimate-num-keys")?,
                table_bytes: property("rocksdb.live-sst-files-size")?,
                memtable_bytes: property("rocksdb.cur-size-all-mem-tables")?,
            })
        };
        self.prefixes.iter().map(usage).collect()
    }

    /// RocksDB's compaction statistics by prefix, as multi-line text.
    pub fn stats(&self) -> Result<Vec<(String, String)>> {
        let property = |name: &String| {
            let text = self.db.property_value_cf(self.existing(name)?, "rocksdb.stats");
            Ok((name.clone(), text.map_err(failed("ask a database"))?.unwrap_or_default()))
        };
        self.prefixes.iter().map(property).collect()
    }

    /// Salvages the readable part of the database in `path` and drops the rest. This is the last resort: data that only the
    /// write-ahead log held is lost. A database that can be read completely is left unchanged. Returns whether it was
    /// changed. A changed BlueStore gets a new identity, so its PGs are backfilled from other members.
    pub fn repair(kind: KvKind, path: &Path) -> Result<bool> {
        match KvStore::open(kind, path)
            .and_then(|store| store.for_each(None, |_, _, _| ControlFlow::Continue(())))
        {
            Ok(()) => return Ok(false),
            Err(error @ (StoreError::InUse(_) | StoreError::WrongStore { .. })) => return Err(error),
            Err(error) => tracing::warn!(%error, path = %path.display(), "repairing a database"),
        }
        match kind {
            KvKind::RocksDb => {
                plain(path)?;
                DB::repair(&Options::default(), path).map_err(failed("repair a database"))?;
            }
            KvKind::BlueStoreKv => {
                let store = offline::lock(path)?;
                let directory = path.join("db");
                DB::repair(&Options::default(), &directory).map_err(failed("repair a database"))?;
                offline::add_missing_families(&directory)?;
                drop(store);
                // The dropped records may have owned blocks, and may have been acknowledged.
                let repaired = KvStore::open(kind, path)?;
                let mut batch = WriteBatch::default();
                offline::mint_incarnation(&repaired.db, &mut batch);
                repaired.change(batch)?;
            }
        }
        Ok(true)
    }
}
