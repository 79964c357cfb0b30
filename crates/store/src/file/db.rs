//! The metadata database in `current/omap`: its column families, its keys, and batches that record their position.
//!
//! Only the applying thread writes. RocksDB runs without its own log, because the store's journal takes that role. The
//! memtables of all families are flushed together, by the store's sync or when one is full. After a crash the database is
//! therefore in the state of a single moment, which is identified by its [`SequencerPosition`], a part of every batch.

use super::step::Family;
use crate::PoolUsage;
use crate::blue::keys;
use crate::error::{Result, StoreError};
use crate::watched::WatchdogDb;
use bytes::Bytes;
use nacre_types::crc32c::crc32c;
use nacre_types::ids::PoolId;
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, DB, DBCompressionType, FlushOptions,
    LogLevel, Options, ReadOptions, WriteBatch, WriteOptions,
};
use std::collections::BTreeMap;
use std::path::Path;

const FAMILIES: [(Family, &str); 7] = [
    (Family::Objects, "objects"),
    (Family::Sums, "csum"),
    (Family::Attrs, "attrs"),
    (Family::Omap, "omap"),
    (Family::Log, "pglog"),
    (Family::Collections, "collections"),
    (Family::Super, "super"),
];

/// In the super family: the position of the database.
const POSITION: &[u8] = b"m/position";
/// In the super family: the uuid of the store that the database belongs to.
const UUID: &[u8] = b"m/uuid";
/// In the super family: every number in use is below this value.
const NEXT_NUMBER: &[u8] = b"m/next_number";
/// Prefix of the keys for the usage of pools.
const USAGE_PREFIX: &[u8] = b"p/";

/// The first step that is not in the database: the sequence number of its record, and its index in the record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SequencerPosition {
    pub(super) seq: u64,
    pub(super) step: u32,
}

/// The open database.
pub(super) struct Db {
    db: WatchdogDb,
}

/// The store's state as recorded in the database.
#[derive(Clone, Debug, Default)]
pub(super) struct DbState {
    pub(super) position: SequencerPosition,
    pub(super) next_number: u64,
    pub(super) usage: BTreeMap<PoolId, PoolUsage>,
}

impl Db {
    /// Opens the database, and creates it if `create` is set.
    pub(super) fn open(
        path: &Path,
        cache_bytes: usize,
        write_buffer_bytes: usize,
        create: bool,
    ) -> Result<Db> {
        let cache = Cache::new_lru_cache(cache_bytes);
        let mut options = Options::default();
        options.create_if_missing(create);
        options.set_error_if_exists(create);
        options.create_missing_column_families(create);
        options.set_atomic_flush(true);
        options.set_max_background_jobs(2);
        options.set_max_open_files(256);
        options.set_keep_log_file_num(2);
        options.set_max_log_file_size(4 << 20);
        options.set_log_level(LogLevel::Warn);
        options.set_stats_dump_period_sec(0);
        options.set_stats_persist_period_sec(0);
        let families = FAMILIES.map(|(family, name)| {
            ColumnFamilyDescriptor::new(name, family_options(family, write_buffer_bytes, &cache))
        });
        let db = DB::open_cf_descriptors(&options, path, families)
            .map_err(|e| crate::error::database("open the metadata database", &e))?;
        Ok(Db { db: WatchdogDb::new(db)? })
    }

    fn family(&self, family: Family) -> &ColumnFamily {
        self.db.cf_handle(FAMILIES[family as usize].1).expect("invariant: open() opened every family")
    }

    pub(super) fn get(&self, family: Family, key: &[u8]) -> Result<Option<Bytes>> {
        let value = self.db.get_pinned_cf(self.family(family), key);
        let value = value.map_err(|e| crate::error::database("read the metadata database", &e))?;
        Ok(value.map(|value| Bytes::copy_from_slice(&value)))
    }

    /// The values of `keys`.
    pub(super) fn get_many(&self, family: Family, keys: &[Vec<u8>]) -> Result<Vec<Option<Bytes>>> {
        let values = self.db.batched_multi_get_cf(self.family(family), keys, false);
        values
            .into_iter()
            .map(|value| {
                let value = value.map_err(|e| crate::error::database("read the metadata database", &e))?;
                Ok(value.map(|value| Bytes::copy_from_slice(&value)))
            })
            .collect()
    }

    /// Calls `each` with the entries `first <= key < end` in order, until it returns false.
    pub(super) fn scan(
        &self,
        family: Family,
        first: &[u8],
        end: &[u8],
        mut each: impl FnMut(&[u8], &[u8]) -> Result<bool>,
    ) -> Result<()> {
        let mut options = ReadOptions::default();
        if !end.is_empty() {
            options.set_iterate_upper_bound(end);
        }
        let mut iterator = self.db.raw_iterator_cf_opt(self.family(family), options);
        iterator.seek(first);
        while let Some((key, value)) = iterator.item() {
            if !each(key, value)? {
                return Ok(());
            }
            iterator.next();
        }
        iterator.status().map_err(|e| crate::error::database("read the metadata database", &e))
    }

    /// Adds an entry to a batch for this database.
    pub(super) fn put(&self, batch: &mut WriteBatch, family: Family, key: &[u8], value: &[u8]) {
        batch.put_cf(self.family(family), key, value);
    }

    pub(super) fn delete(&self, batch: &mut WriteBatch, family: Family, key: &[u8]) {
        batch.delete_cf(self.family(family), key);
    }

    pub(super) fn delete_range(&self, batch: &mut WriteBatch, family: Family, first: &[u8], end: &[u8]) {
        batch.delete_range_cf(self.family(family), first, end);
    }

    /// Writes a batch that brings the database to `position`. Not yet durable on return.
    pub(super) fn write(&self, mut batch: WriteBatch, position: SequencerPosition) -> Result<()> {
        fail::fail_point!("filestore::db_write", |_| Err(StoreError::Database {
            what: "write the metadata database",
            detail: "failpoint".into()
        }));
        batch.put_cf(self.family(Family::Super), POSITION, encode_position(position));
        self.write_without_log(batch)
    }

    fn write_without_log(&self, batch: WriteBatch) -> Result<()> {
        let mut options = WriteOptions::default();
        options.disable_wal(true);
        self.db.write_opt(batch, &options).map_err(|e| self.db.write_error("write the metadata database", &e))
    }

    /// Adds the state of the store to a batch.
    pub(super) fn put_state(
        &self,
        batch: &mut WriteBatch,
        next_number: u64,
        usage: impl Iterator<Item = (PoolId, PoolUsage)>,
    ) {
        let family = self.family(Family::Super);
        batch.put_cf(family, NEXT_NUMBER, next_number.to_le_bytes());
        for (pool, usage) in usage {
            let key = [USAGE_PREFIX, &pool.0.to_be_bytes()].concat();
            let numbers = [usage.stored_bytes, usage.allocated_bytes, usage.objects];
            batch.put_cf(family, key, numbers.map(u64::to_le_bytes).concat());
        }
    }

    /// Makes everything written durable.
    pub(super) fn sync(&self) -> Result<()> {
        fail::fail_point!("filestore::skip_database_sync", |_| Ok(()));
        let families: Vec<_> = FAMILIES.iter().map(|(family, _)| self.family(*family)).collect();
        self.db
            .flush_cfs_opt(&families, &FlushOptions::default())
            .map_err(|e| self.db.write_error("flush the metadata database", &e))
    }

    /// Records the store that a new database belongs to. Durable on return.
    pub(super) fn set_uuid(&self, uuid: uuid::Uuid) -> Result<()> {
        let mut batch = WriteBatch::default();
        batch.put_cf(self.family(Family::Super), UUID, uuid.as_bytes());
        batch.put_cf(
            self.family(Family::Super),
            POSITION,
            encode_position(SequencerPosition { seq: 1, step: 0 }),
        );
        self.write_without_log(batch)?;
        self.sync()
    }

    /// The store that the database belongs to.
    pub(super) fn uuid(&self) -> Result<Option<uuid::Uuid>> {
        Ok(self.get(Family::Super, UUID)?.and_then(|value| uuid::Uuid::from_slice(&value).ok()))
    }

    /// The store's state as recorded in the database.
    pub(super) fn state(&self) -> Result<DbState> {
        let damaged =
            |what: &str| StoreError::corrupt(format!("{what} in the metadata database"), "wrong length");
        let position = self.get(Family::Super, POSITION)?.and_then(|value| decode_position(&value));
        let position = position.ok_or_else(|| damaged("position"))?;
        let next_number = match self.get(Family::Super, NEXT_NUMBER)? {
            Some(value) => u64::from_le_bytes(value[..].try_into().map_err(|_| damaged("next number"))?),
            None => 1,
        };
        let mut usage = BTreeMap::new();
        let end = keys::prefix_end(USAGE_PREFIX);
        self.scan(Family::Super, USAGE_PREFIX, &end, |key, value| {
            let pool = key[USAGE_PREFIX.len()..].try_into().map_err(|_| damaged("usage"))?;
            let value: [u8; 24] = value.try_into().map_err(|_| damaged("usage"))?;
            let number =
                |at: usize| u64::from_le_bytes(value[at..at + 8].try_into().expect("invariant: 8 bytes"));
            let of_pool = PoolUsage {
                stored_bytes: number(0),
                allocated_bytes: number(8),
                objects: number(16),
                ..PoolUsage::default()
            };
            usage.insert(PoolId(i64::from_be_bytes(pool)), of_pool);
            Ok(true)
        })?;
        Ok(DbState { position, next_number, usage })
    }

    /// Compacts all families in turn, and calls `progress` for each.
    pub(super) fn compact(&self, progress: &mut dyn FnMut(&str, usize, usize)) {
        for (at, (family, name)) in FAMILIES.iter().enumerate() {
            progress(name, at + 1, FAMILIES.len());
            self.db.compact_range_cf(self.family(*family), None::<&[u8]>, None::<&[u8]>);
        }
    }

    /// Approximate number of bytes that a family takes, including memtables.
    pub(super) fn estimated_bytes(&self, family: Family) -> u64 {
        let property =
            |name: &str| self.db.property_int_value_cf(self.family(family), name).ok().flatten().unwrap_or(0);
        property("rocksdb.estimate-live-data-size") + property("rocksdb.cur-size-all-mem-tables")
    }
}

fn encode_position(position: SequencerPosition) -> [u8; 12] {
    let mut out = [0; 12];
    out[..8].copy_from_slice(&position.seq.to_le_bytes());
    out[8..].copy_from_slice(&position.step.to_le_bytes());
    out
}

fn decode_position(value: &[u8]) -> Option<SequencerPosition> {
    let (seq, step) = value.split_first_chunk::<8>()?;
    Some(SequencerPosition { seq: u64::from_le_bytes(*seq), step: u32::from_le_bytes(step.try_into().ok()?) })
}

fn family_options(family: Family, write_buffer_bytes: usize, cache: &Cache) -> Options {
    let busy = !matches!(family, Family::Collections | Family::Super | Family::Attrs);
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(cache);
    table.set_cache_index_and_filter_blocks(true);
    table.set_format_version(6);
    if family != Family::Log {
        table.set_bloom_filter(10.0, false);
    }
    let mut options = Options::default();
    options.set_block_based_table_factory(&table);
    options.set_write_buffer_size(if busy { write_buffer_bytes } else { write_buffer_bytes / 4 });
    options.set_max_write_buffer_number(4);
    options.set_level_compaction_dynamic_level_bytes(true);
    options.set_compression_type(if family == Family::Sums {
        DBCompressionType::None
    } else {
        DBCompressionType::Lz4
    });
    options
}

/// The key of a chunk of an object's checksums.
pub(super) fn sums_key(number: u64, chunk: u32) -> Vec<u8> {
    [&keys::id(number)[..], &chunk.to_be_bytes()].concat()
}

/// The key of an attribute that is stored in the database.
pub(super) fn attr_key(number: u64, name: &str) -> Vec<u8> {
    [&keys::id(number)[..], name.as_bytes()].concat()
}

/// The key of an omap's header.
pub(super) fn omap_header_key(number: u64) -> Vec<u8> {
    [&keys::id(number)[..], &[keys::OMAP_HEADER]].concat()
}

/// The key of an omap entry.
pub(super) fn omap_key(number: u64, key: &[u8]) -> Vec<u8> {
    [&keys::id(number)[..], &[keys::OMAP_ENTRY], key].concat()
}

/// Appends a checksum to a record.
pub(super) fn append_checksum(mut record: Vec<u8>) -> Bytes {
    let crc = crc32c(&record);
    record.extend_from_slice(&crc.to_le_bytes());
    record.into()
}

/// A record without its checksum, or `None` if the checksum does not match.
pub(super) fn verify_checksum(sealed: &[u8]) -> Option<&[u8]> {
    let (record, crc) = sealed.split_last_chunk::<4>()?;
    (u32::from_le_bytes(*crc) == crc32c(record)).then_some(record)
}
