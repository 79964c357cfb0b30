//! The interface to the store of the cluster's map: a small ordered key-value store with compare-and-swap transactions.
//!
//! The contract ([`MapStore`]) is a subset of etcd's v3 API, limits included, so that both an embedded store and etcd can
//! implement it. The whole store has one revision counter, which each transaction that changes something raises by one. Every
//! key has the revisions of its creation and of its last change. Implementations pass the suite in [`conformance`]. The
//! contract does not know about maps: keys and values are bytes.
//!
//! [`Persistence`] writes the map to such a store and reads it back. It has no clock and no threads.

mod backup;
pub mod conformance;
mod error;
#[cfg(test)]
mod faulty;
mod generation;
mod identity;
mod incrementals;
mod memory;
mod migration;
mod persistence;
mod retrying;
mod transfer;
mod values;

pub use backup::{MapBackup, export, import};
pub use error::PersistError;
pub use generation::{mint_generation, rebuild};
pub use identity::{ClusterRecord, read_cluster};
pub use incrementals::IncrementalCache;
pub use memory::MemoryStore;
pub use migration::{Migrated, abort_migration, migrate};
pub use persistence::{
    CommittedIncremental, LoadedState, MAX_COMMIT_LOG_LINES, Ownership, Persistence, mkfs,
};

use async_trait::async_trait;
pub use nacre_mon::logic::StoreHealth;
use nacre_types::errno::Errno;
use std::collections::BTreeSet;
use std::time::Duration;

/// Maximum number of comparisons, and of operations, in one transaction (etcd's `--max-txn-ops`).
pub const MAX_TXN_OPS: usize = 128;
/// Maximum bytes of keys and values in one transaction: etcd's `--max-request-bytes`, 1.5 MiB, less 32 KiB for the encoding.
pub const MAX_TXN_BYTES: usize = (1536 - 32) << 10;
/// Maximum number of entries that one page of a range read returns.
pub const MAX_PAGE: usize = 1000;
/// How often a range is read if its revision is removed meanwhile.
const READ_ATTEMPTS: usize = 5;
/// Bytes of keys and values after which a page ends early.
pub const PAGE_BYTES: usize = 1 << 20;

/// Why a call of the store failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MapStoreError {
    /// Another process uses the store.
    #[error("{0} is in use by another process")]
    Locked(String),
    /// The transaction exceeds the store's limits. Nothing changed.
    #[error(
        "transaction of {ops} operations and {bytes} bytes exceeds the limits ({MAX_TXN_OPS} operations, {MAX_TXN_BYTES} bytes)"
    )]
    TooLarge {
        /// Number of operations or of comparisons, whichever is greater.
        ops: usize,
        /// Bytes of keys and values.
        bytes: usize,
    },
    /// A key appears twice in a transaction, or is empty. Nothing changed.
    #[error("malformed transaction: {0}")]
    Malformed(&'static str),
    /// The lease has expired or never existed.
    #[error("lease {0:x} does not exist")]
    NoLease(u64),
    /// A watch asked for changes that are no longer kept: read the range again and watch from its revision.
    #[error("changes before revision {oldest} are no longer kept")]
    Compacted {
        /// The oldest revision that can be watched from.
        oldest: u64,
    },
    /// The store did not answer in time, or can't be reached, or refuses writes for a while. Whether a transaction took effect,
    /// or will, is unknown. Worth another attempt.
    #[error("map store unavailable: {0}")]
    Unavailable(String),
    /// The store refuses the caller: wrong credentials, or no permission for its keys. Nothing changed.
    #[error("map store refuses access: {0}")]
    Denied(String),
    /// The medium failed. Whether the transaction took effect is unknown.
    #[error("I/O: {0}")]
    Io(String),
    /// Stored bytes are damaged. Never retried.
    #[error("corrupt: {0}")]
    Corrupt(String),
}

impl MapStoreError {
    /// The error number for callers that need one.
    pub fn errno(&self) -> Errno {
        match self {
            MapStoreError::Locked(_) => Errno::EBUSY,
            MapStoreError::TooLarge { .. } => Errno::E2BIG,
            MapStoreError::Malformed(_) => Errno::EINVAL,
            MapStoreError::NoLease(_) => Errno::ENOENT,
            MapStoreError::Compacted { .. } => Errno::ESTALE,
            MapStoreError::Unavailable(_) => Errno::EAGAIN,
            MapStoreError::Denied(_) => Errno::EACCES,
            MapStoreError::Io(_) | MapStoreError::Corrupt(_) => Errno::EIO,
        }
    }
}

/// Names a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

/// A condition of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    /// The key has exactly this value.
    Value {
        /// The key.
        key: Vec<u8>,
        /// Its value.
        value: Vec<u8>,
    },
    /// The key was last changed in exactly this revision.
    ModRevision {
        /// The key.
        key: Vec<u8>,
        /// The revision.
        revision: u64,
    },
    /// The key does not exist.
    Absent {
        /// The key.
        key: Vec<u8>,
    },
}

impl Compare {
    /// The key that is compared.
    pub fn key(&self) -> &[u8] {
        match self {
            Compare::Value { key, .. } | Compare::ModRevision { key, .. } | Compare::Absent { key } => key,
        }
    }

    /// Whether it holds for an entry, or for none.
    pub fn holds(&self, found: Option<&StoredEntry>) -> bool {
        match self {
            Compare::Value { value, .. } => found.is_some_and(|entry| entry.value == *value),
            Compare::ModRevision { revision, .. } => found.map_or(0, |entry| entry.mod_revision) == *revision,
            Compare::Absent { .. } => found.is_none(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Compare::Value { key, value } => key.len() + value.len(),
            Compare::ModRevision { key, .. } | Compare::Absent { key } => key.len(),
        }
    }
}

/// A change of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Sets a key.
    Put {
        /// The key.
        key: Vec<u8>,
        /// Its new value.
        value: Vec<u8>,
        /// The lease on which the key depends. With `None` the key is permanent.
        lease: Option<LeaseId>,
    },
    /// Removes a key, if it exists.
    Delete {
        /// The key.
        key: Vec<u8>,
    },
}

impl Op {
    /// The key that changes.
    pub fn key(&self) -> &[u8] {
        match self {
            Op::Put { key, .. } | Op::Delete { key } => key,
        }
    }

    /// Bytes of its key and value.
    pub fn bytes(&self) -> usize {
        match self {
            Op::Put { key, value, .. } => key.len() + value.len(),
            Op::Delete { key } => key.len(),
        }
    }
}

/// Changes that take effect together if all conditions hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// All must hold.
    pub compares: Vec<Compare>,
    /// Applied in order. No key may appear twice.
    pub ops: Vec<Op>,
}

impl Txn {
    /// Adds a condition.
    pub fn when(mut self, compare: Compare) -> Txn {
        self.compares.push(compare);
        self
    }

    /// Adds a permanent key.
    pub fn put(mut self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Txn {
        self.ops.push(Op::Put { key: key.into(), value: value.into(), lease: None });
        self
    }

    /// Adds a removal.
    pub fn delete(mut self, key: impl Into<Vec<u8>>) -> Txn {
        self.ops.push(Op::Delete { key: key.into() });
        self
    }

    /// The lease that its keys depend on, if it has one.
    pub fn lease(&self) -> Option<LeaseId> {
        self.ops.iter().find_map(|op| match op {
            Op::Put { lease, .. } => *lease,
            Op::Delete { .. } => None,
        })
    }

    /// Bytes of keys and values, as the limit counts them.
    pub fn bytes(&self) -> usize {
        self.compares.iter().map(Compare::bytes).sum::<usize>()
            + self.ops.iter().map(Op::bytes).sum::<usize>()
    }

    /// Refuses transactions that etcd would refuse. Every implementation calls this first.
    pub fn check_limits(&self) -> Result<(), MapStoreError> {
        let ops = self.ops.len().max(self.compares.len());
        let bytes = self.bytes();
        if ops > MAX_TXN_OPS || bytes > MAX_TXN_BYTES {
            return Err(MapStoreError::TooLarge { ops, bytes });
        }
        if self.ops.iter().map(Op::key).chain(self.compares.iter().map(Compare::key)).any(<[u8]>::is_empty) {
            return Err(MapStoreError::Malformed("empty key"));
        }
        let mut keys = BTreeSet::new();
        if !self.ops.iter().all(|op| keys.insert(op.key())) {
            return Err(MapStoreError::Malformed("key given twice"));
        }
        Ok(())
    }
}

/// The outcome of a transaction. Returned when it is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxnOutcome {
    /// Everything took effect, in this revision.
    Committed {
        /// The store's revision after it.
        revision: u64,
    },
    /// A condition did not hold; nothing changed.
    Conflict {
        /// The store's revision at that moment.
        revision: u64,
    },
}

/// A key with its value and history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEntry {
    /// The key.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
    /// Revision of its creation.
    pub create_revision: u64,
    /// Revision of its last change.
    pub mod_revision: u64,
    /// The lease that it depends on.
    pub lease: Option<LeaseId>,
}

/// One page of a range read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangePage {
    /// Entries in ascending order of keys.
    pub entries: Vec<StoredEntry>,
    /// Whether the range contains more: continue after the last key.
    pub more: bool,
    /// The store's revision at the read. A watch from the next one misses nothing.
    pub revision: u64,
}

/// One change reported to a watcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchEvent {
    /// The revision that made it.
    pub revision: u64,
    /// The key.
    pub key: Vec<u8>,
    /// Its new value, or `None` if it was removed.
    pub value: Option<Vec<u8>>,
}

/// A running watch. Dropping it ends it.
#[async_trait]
pub trait Watch: Send {
    /// Returns the next change, in order of revisions. Waits at most `timeout`, then returns `None`. A watcher that falls
    /// too far behind gets [`MapStoreError::Compacted`].
    async fn next(&mut self, timeout: Duration) -> Result<Option<WatchEvent>, MapStoreError>;
}

/// An ordered key-value store with compare-and-swap transactions, leases and watches.
///
/// Reads are linearizable: they show every transaction that was acknowledged before they began.
#[async_trait]
pub trait MapStore: Send + Sync {
    /// Executes `txn` if its conditions hold. Durable on return. After [`MapStoreError::Unavailable`] and
    /// [`MapStoreError::Io`] the outcome is unknown, and the transaction may still take effect later: the conditions of a
    /// transaction that is repeated must make sure that it takes effect once.
    async fn transact(&self, txn: &Txn) -> Result<TxnOutcome, MapStoreError>;

    /// Reads one key.
    async fn get(&self, key: &[u8]) -> Result<Option<StoredEntry>, MapStoreError>;

    /// Reads keys in `start..end`: at most `limit` and [`MAX_PAGE`] entries, and about [`PAGE_BYTES`]. All are read at one
    /// revision: the one given, or the newest. A revision that is no longer kept is [`MapStoreError::Compacted`].
    async fn range(
        &self,
        start: &[u8],
        end: &[u8],
        limit: usize,
        revision: Option<u64>,
    ) -> Result<RangePage, MapStoreError>;

    /// Grants a lease that expires unless it is renewed within each `ttl`. Its keys are removed with it.
    async fn grant_lease(&self, ttl: Duration) -> Result<LeaseId, MapStoreError>;

    /// Restarts a lease's time.
    async fn keep_alive(&self, lease: LeaseId) -> Result<(), MapStoreError>;

    /// Ends a lease now and removes its keys.
    async fn revoke_lease(&self, lease: LeaseId) -> Result<(), MapStoreError>;

    /// Watches changes to keys in `start..end` from `revision` on, past changes first.
    async fn watch(&self, start: &[u8], end: &[u8], revision: u64) -> Result<Box<dyn Watch>, MapStoreError>;

    /// Does what the store needs done from time to time, such as the removal of old revisions. Called about once a second
    /// by the map authority that may commit.
    async fn maintain(&self) {}

    /// The condition of the store, as far as it is known from earlier calls.
    fn health(&self) -> StoreHealth {
        StoreHealth::default()
    }
}

/// The end of the range of all keys with `prefix`: the smallest key that is greater than all of them.
pub fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // Nothing is greater than a prefix of only 0xff bytes; no such prefix is in use.
    vec![u8::MAX; prefix.len() + 1]
}

/// All entries whose keys start with `prefix`, all at one revision.
pub async fn read_prefix(store: &dyn MapStore, prefix: &[u8]) -> Result<Vec<StoredEntry>, MapStoreError> {
    for _ in 1..READ_ATTEMPTS {
        match read_prefix_once(store, prefix).await {
            // The revision was removed between two pages.
            Err(MapStoreError::Compacted { .. }) => {}
            other => return other,
        }
    }
    read_prefix_once(store, prefix).await
}

async fn read_prefix_once(store: &dyn MapStore, prefix: &[u8]) -> Result<Vec<StoredEntry>, MapStoreError> {
    let end = prefix_end(prefix);
    let mut start = prefix.to_vec();
    let mut entries = Vec::new();
    let mut revision = None;
    loop {
        let page = store.range(&start, &end, MAX_PAGE, revision).await?;
        revision = Some(page.revision);
        if let Some(last) = page.entries.last() {
            start = last.key.clone();
            start.push(0);
        }
        entries.extend(page.entries);
        if !page.more {
            return Ok(entries);
        }
    }
}
