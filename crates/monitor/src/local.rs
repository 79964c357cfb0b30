//! The embedded store: RocksDB in its own directory, with every transaction synced.
//!
//! A lock file excludes other processes. A store that has lost acknowledged transactions is refused: the file of
//! [`watermark`](crate::watermark) records up to which revision it was durable. Values are stored with their revisions and
//! protected by RocksDB's checksums. The history for watchers is kept only in memory, with a bound, so a watch can't start
//! before the process did. Calls block their thread.

use crate::watermark::Watermark;
use async_trait::async_trait;
use nacre_mapstore::{
    Compare, LeaseId, MAX_PAGE, MapStore, MapStoreError, Op, PAGE_BYTES, RangePage, StoredEntry, Txn,
    TxnOutcome, Watch, WatchEvent,
};
use parking_lot::{Condvar, Mutex};
use rocksdb::{DB, DBRecoveryMode, Direction, IteratorMode, Options, WriteBatch, WriteOptions};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{File, TryLockError};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum number of changes kept for watchers.
const HISTORY_CHANGES: usize = 16_384;
/// Maximum bytes of changes kept for watchers.
const HISTORY_BYTES: usize = 32 << 20;

/// Key prefix of entries. Other keys of the database start differently.
const ENTRY: u8 = b'k';
/// Key prefix of leases.
const LEASE: u8 = b'l';
/// The key of the revision counter.
const REVISION_KEY: &[u8] = b"r";

/// See the module's documentation.
pub struct LocalStore {
    shared: Arc<Shared>,
    reaper: Option<JoinHandle<()>>,
    // Declared last, so that the lock outlives the database.
    _lock: File,
}

struct Shared {
    db: DB,
    watermark: Watermark,
    state: Mutex<State>,
    changed: Condvar,
    /// Wakes the reaper when a lease was granted or the store closes.
    leases_changed: Condvar,
    closing: AtomicBool,
}

struct State {
    revision: u64,
    next_lease: u64,
    leases: BTreeMap<LeaseId, Lease>,
    history: VecDeque<WatchEvent>,
    history_bytes: usize,
    /// The oldest revision whose changes are all in `history`.
    oldest: u64,
    /// The error of an earlier write. The state on disk is unknown, so nothing more is written or read.
    failed: Option<MapStoreError>,
}

struct Lease {
    ttl: Duration,
    deadline: Instant,
    keys: BTreeSet<Vec<u8>>,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    create_revision: u64,
    mod_revision: u64,
    lease: Option<u64>,
    value: Vec<u8>,
}

impl LocalStore {
    /// Opens the store in `dir` and creates it if it does not exist. The time of all leases restarts. A store that lacks
    /// acknowledged transactions is corrupt.
    pub fn open(dir: &Path) -> Result<LocalStore, MapStoreError> {
        LocalStore::open_with(dir, false)
    }

    /// Like [`LocalStore::open`], but accepts a store that lacks transactions: the caller compensates for the loss, then
    /// calls [`LocalStore::accept_loss`]. Until then, other attempts to open the store fail.
    pub fn open_allowing_loss(dir: &Path) -> Result<LocalStore, MapStoreError> {
        LocalStore::open_with(dir, true)
    }

    /// Marks the store as complete from here on. Durable on return.
    pub fn accept_loss(&self) -> Result<(), MapStoreError> {
        self.shared.watermark.accept_loss()
    }

    fn open_with(dir: &Path, accept_loss: bool) -> Result<LocalStore, MapStoreError> {
        std::fs::create_dir_all(dir).map_err(|e| io(&e))?;
        let lock = File::create(dir.join("nacre.lock")).map_err(|e| io(&e))?;
        lock.try_lock().map_err(|e| match e {
            TryLockError::WouldBlock => MapStoreError::Locked(dir.display().to_string()),
            TryLockError::Error(e) => io(&e),
        })?;
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_paranoid_checks(true);
        // Recovery stops at a torn tail; the watermark shows whether it reached every acknowledged transaction. The
        // stricter modes can't distinguish a torn tail from damage.
        options.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
        options.set_track_and_verify_wals_in_manifest(!accept_loss);
        options.set_keep_log_file_num(2);
        options.set_max_total_wal_size(64 << 20);
        options.set_write_buffer_size(16 << 20);
        let db = DB::open(&options, dir.join("db")).map_err(|e| rocks(&e))?;
        let state = State::load(&db)?;
        let watermark = Watermark::open(dir, state.revision, accept_loss)?;
        let shared = Arc::new(Shared {
            db,
            watermark,
            state: Mutex::new(state),
            changed: Condvar::new(),
            leases_changed: Condvar::new(),
            closing: AtomicBool::new(false),
        });
        let reaper = std::thread::Builder::new()
            .name("mapstore-leases".into())
            .spawn({
                let shared = shared.clone();
                move || shared.reap_leases()
            })
            .map_err(|e| io(&e))?;
        Ok(LocalStore { shared, reaper: Some(reaper), _lock: lock })
    }
}

impl Drop for LocalStore {
    fn drop(&mut self) {
        {
            let _state = self.shared.state.lock();
            self.shared.closing.store(true, Ordering::Release);
        }
        self.shared.leases_changed.notify_all();
        self.shared.changed.notify_all();
        if let Some(reaper) = self.reaper.take() {
            // A panic of the reaper has been printed already.
            let _ = reaper.join();
        }
    }
}

impl State {
    fn load(db: &DB) -> Result<State, MapStoreError> {
        let revision = match db.get(REVISION_KEY).map_err(|e| rocks(&e))? {
            None => 0,
            Some(bytes) => number(&bytes)?,
        };
        let now = Instant::now();
        let mut leases = BTreeMap::new();
        for item in db.iterator(IteratorMode::From(&[LEASE], Direction::Forward)) {
            let (key, value) = item.map_err(|e| rocks(&e))?;
            let Some((&LEASE, id)) = key.split_first() else { break };
            let ttl = Duration::from_millis(number(&value)?);
            leases.insert(LeaseId(number(id)?), Lease { ttl, deadline: now + ttl, keys: BTreeSet::new() });
        }
        for item in db.iterator(IteratorMode::From(&[ENTRY], Direction::Forward)) {
            let (key, value) = item.map_err(|e| rocks(&e))?;
            let Some((&ENTRY, key)) = key.split_first() else { break };
            let stored = decode(key, &value)?;
            if let Some(lease) = stored.lease.and_then(|id| leases.get_mut(&LeaseId(id))) {
                lease.keys.insert(key.to_vec());
            }
        }
        let next_lease = leases.keys().next_back().map_or(1, |id| id.0 + 1);
        Ok(State {
            revision,
            next_lease,
            leases,
            history: VecDeque::new(),
            history_bytes: 0,
            oldest: revision + 1,
            failed: None,
        })
    }

    fn remember(&mut self, change: WatchEvent) {
        self.history_bytes += change_bytes(&change);
        self.history.push_back(change);
        while self.history.len() > HISTORY_CHANGES || self.history_bytes > HISTORY_BYTES {
            let Some(old) = self.history.pop_front() else { return };
            self.history_bytes -= change_bytes(&old);
            self.oldest = old.revision + 1;
        }
    }

    fn usable(&self) -> Result<(), MapStoreError> {
        self.failed.clone().map_or(Ok(()), Err)
    }
}

fn change_bytes(change: &WatchEvent) -> usize {
    64 + change.key.len() + change.value.as_ref().map_or(0, Vec::len)
}

impl Shared {
    fn read(&self, key: &[u8]) -> Result<Option<Stored>, MapStoreError> {
        let bytes = self.db.get(entry_key(key)).map_err(|e| rocks(&e))?;
        bytes.map(|bytes| decode(key, &bytes)).transpose()
    }

    fn holds(&self, compare: &Compare) -> Result<bool, MapStoreError> {
        let found = self.read(compare.key())?;
        Ok(match compare {
            Compare::Value { value, .. } => found.is_some_and(|f| f.value == *value),
            Compare::ModRevision { revision, .. } => found.map_or(0, |f| f.mod_revision) == *revision,
            Compare::Absent { .. } => found.is_none(),
        })
    }

    /// Writes `ops` as one revision and notifies watchers. The caller holds the lock on the state.
    fn commit(&self, state: &mut State, ops: &[Op], mut batch: WriteBatch) -> Result<u64, MapStoreError> {
        let revision = state.revision + 1;
        let mut changes = Vec::with_capacity(ops.len());
        let mut unleased = Vec::new();
        for op in ops {
            let old = self.read(op.key())?;
            if let Some(lease) = old.as_ref().and_then(|o| o.lease) {
                unleased.push((LeaseId(lease), op.key().to_vec()));
            }
            match op {
                Op::Put { key, value, lease } => {
                    let stored = Stored {
                        create_revision: old.map_or(revision, |o| o.create_revision),
                        mod_revision: revision,
                        lease: lease.map(|l| l.0),
                        value: value.clone(),
                    };
                    let bytes = postcard::to_extend(&stored, Vec::with_capacity(value.len() + 32))
                        .expect("invariant: a plain structure always encodes");
                    batch.put(entry_key(key), bytes);
                    changes.push(WatchEvent { revision, key: key.clone(), value: Some(value.clone()) });
                }
                Op::Delete { key } if old.is_some() => {
                    batch.delete(entry_key(key));
                    changes.push(WatchEvent { revision, key: key.clone(), value: None });
                }
                Op::Delete { .. } => {}
            }
        }
        if changes.is_empty() && batch.is_empty() {
            return Ok(state.revision);
        }
        let revision = if changes.is_empty() { state.revision } else { revision };
        batch.put(REVISION_KEY, revision.to_be_bytes());
        let mut options = WriteOptions::default();
        options.set_sync(true);
        let written = self.db.write_opt(batch, &options).map_err(|e| rocks(&e));
        if let Err(error) = written.and_then(|()| self.watermark.advance(revision)) {
            // After a failed sync the kernel may have dropped the pages, so neither retry nor continue to read.
            state.failed = Some(error.clone());
            return Err(error);
        }
        state.revision = revision;
        for (lease, key) in unleased {
            if let Some(lease) = state.leases.get_mut(&lease) {
                lease.keys.remove(&key);
            }
        }
        for op in ops {
            if let Op::Put { key, lease: Some(lease), .. } = op
                && let Some(lease) = state.leases.get_mut(lease)
            {
                lease.keys.insert(key.clone());
            }
        }
        changes.into_iter().for_each(|change| state.remember(change));
        self.changed.notify_all();
        Ok(revision)
    }

    fn end_lease(&self, state: &mut State, id: LeaseId) -> Result<(), MapStoreError> {
        let lease = state.leases.remove(&id).ok_or(MapStoreError::NoLease(id.0))?;
        let ops: Vec<Op> = lease.keys.into_iter().map(|key| Op::Delete { key }).collect();
        let mut batch = WriteBatch::default();
        batch.delete(lease_key(id));
        self.commit(state, &ops, batch).map(|_| ())
    }

    fn reap_leases(&self) {
        let mut state = self.state.lock();
        while !self.closing.load(Ordering::Acquire) {
            let now = Instant::now();
            let due = state.leases.iter().find(|(_, lease)| lease.deadline <= now).map(|(id, _)| *id);
            if let Some(id) = due {
                if self.end_lease(&mut state, id).is_err() {
                    // The error is kept in the state, and the next call on the store returns it.
                    return;
                }
                continue;
            }
            match state.leases.values().map(|lease| lease.deadline).min() {
                Some(deadline) => {
                    self.leases_changed.wait_until(&mut state, deadline);
                }
                None => self.leases_changed.wait(&mut state),
            }
        }
    }
}

#[async_trait]
impl MapStore for LocalStore {
    async fn transact(&self, txn: &Txn) -> Result<TxnOutcome, MapStoreError> {
        txn.check_limits()?;
        let mut state = self.shared.state.lock();
        state.usable()?;
        for compare in &txn.compares {
            if !self.shared.holds(compare)? {
                return Ok(TxnOutcome::Conflict { revision: state.revision });
            }
        }
        for op in &txn.ops {
            if let Op::Put { lease: Some(lease), .. } = op
                && !state.leases.contains_key(lease)
            {
                return Err(MapStoreError::NoLease(lease.0));
            }
        }
        let revision = self.shared.commit(&mut state, &txn.ops, WriteBatch::default())?;
        Ok(TxnOutcome::Committed { revision })
    }

    async fn get(&self, key: &[u8]) -> Result<Option<StoredEntry>, MapStoreError> {
        let state = self.shared.state.lock();
        state.usable()?;
        Ok(self.shared.read(key)?.map(|stored| stored.entry(key)))
    }

    async fn range(
        &self,
        start: &[u8],
        end: &[u8],
        limit: usize,
        revision: Option<u64>,
    ) -> Result<RangePage, MapStoreError> {
        let state = self.shared.state.lock();
        state.usable()?;
        // Only the newest revision is kept.
        if revision.is_some_and(|revision| revision != state.revision) {
            return Err(MapStoreError::Compacted { oldest: state.revision });
        }
        let limit = limit.min(MAX_PAGE);
        let (from, until) = (entry_key(start), entry_key(end));
        let mut page = RangePage { entries: Vec::new(), more: false, revision: state.revision };
        let mut bytes = 0;
        for item in self.shared.db.iterator(IteratorMode::From(&from, Direction::Forward)) {
            let (key, value) = item.map_err(|e| rocks(&e))?;
            if key.as_ref() >= until.as_slice() || key.first() != Some(&ENTRY) {
                break;
            }
            if page.entries.len() >= limit || bytes > PAGE_BYTES {
                page.more = true;
                break;
            }
            let key = &key[1..];
            bytes += key.len() + value.len();
            page.entries.push(decode(key, &value)?.entry(key));
        }
        Ok(page)
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<LeaseId, MapStoreError> {
        let mut state = self.shared.state.lock();
        state.usable()?;
        let id = LeaseId(state.next_lease);
        let mut batch = WriteBatch::default();
        batch.put(lease_key(id), (ttl.as_millis() as u64).to_be_bytes());
        self.shared.commit(&mut state, &[], batch)?;
        state.next_lease += 1;
        state.leases.insert(id, Lease { ttl, deadline: Instant::now() + ttl, keys: BTreeSet::new() });
        self.shared.leases_changed.notify_all();
        Ok(id)
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), MapStoreError> {
        let mut state = self.shared.state.lock();
        state.usable()?;
        let entry = state.leases.get_mut(&lease).ok_or(MapStoreError::NoLease(lease.0))?;
        entry.deadline = Instant::now() + entry.ttl;
        Ok(())
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<(), MapStoreError> {
        let mut state = self.shared.state.lock();
        state.usable()?;
        self.shared.end_lease(&mut state, lease)
    }

    async fn watch(&self, start: &[u8], end: &[u8], revision: u64) -> Result<Box<dyn Watch>, MapStoreError> {
        let state = self.shared.state.lock();
        state.usable()?;
        if revision < state.oldest {
            return Err(MapStoreError::Compacted { oldest: state.oldest });
        }
        Ok(Box::new(LocalWatch {
            shared: self.shared.clone(),
            start: start.to_vec(),
            end: end.to_vec(),
            next: (revision, 0),
        }))
    }
}

struct LocalWatch {
    shared: Arc<Shared>,
    start: Vec<u8>,
    end: Vec<u8>,
    /// The next revision to examine, and how many of its changes were returned already.
    next: (u64, usize),
}

#[async_trait]
impl Watch for LocalWatch {
    async fn next(&mut self, timeout: Duration) -> Result<Option<WatchEvent>, MapStoreError> {
        let deadline = Instant::now() + timeout;
        let mut state = self.shared.state.lock();
        loop {
            state.usable()?;
            let (revision, skip) = self.next;
            if revision < state.oldest {
                return Err(MapStoreError::Compacted { oldest: state.oldest });
            }
            let first = state.history.partition_point(|change| change.revision < revision);
            let mut seen =
                if state.history.get(first).is_some_and(|c| c.revision == revision) { skip } else { 0 };
            let mut at = first + seen;
            while let Some(change) = state.history.get(at) {
                if change.revision != self.next.0 {
                    (self.next, seen) = ((change.revision, 0), 0);
                }
                seen += 1;
                at += 1;
                self.next.1 = seen;
                if change.key >= self.start && change.key < self.end {
                    return Ok(Some(change.clone()));
                }
            }
            if self.shared.closing.load(Ordering::Acquire)
                || self.shared.changed.wait_until(&mut state, deadline).timed_out()
            {
                return Ok(None);
            }
        }
    }
}

impl Stored {
    fn entry(self, key: &[u8]) -> StoredEntry {
        StoredEntry {
            key: key.to_vec(),
            value: self.value,
            create_revision: self.create_revision,
            mod_revision: self.mod_revision,
            lease: self.lease.map(LeaseId),
        }
    }
}

fn decode(key: &[u8], bytes: &[u8]) -> Result<Stored, MapStoreError> {
    postcard::from_bytes(bytes)
        .map_err(|e| MapStoreError::Corrupt(format!("value of '{}': {e}", String::from_utf8_lossy(key))))
}

fn number(bytes: &[u8]) -> Result<u64, MapStoreError> {
    let bytes: [u8; 8] =
        bytes.try_into().map_err(|_| MapStoreError::Corrupt(format!("number of {} bytes", bytes.len())))?;
    Ok(u64::from_be_bytes(bytes))
}

fn entry_key(key: &[u8]) -> Vec<u8> {
    [&[ENTRY], key].concat()
}

fn lease_key(id: LeaseId) -> Vec<u8> {
    [&[LEASE][..], &id.0.to_be_bytes()].concat()
}

fn io(error: &std::io::Error) -> MapStoreError {
    MapStoreError::Io(error.to_string())
}

fn rocks(error: &rocksdb::Error) -> MapStoreError {
    match error.kind() {
        rocksdb::ErrorKind::Corruption => MapStoreError::Corrupt(error.to_string()),
        _ => MapStoreError::Io(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::executor::block_on;
    use nacre_mapstore::conformance;

    #[test]
    fn fuzz_stored_values() {
        let corpus = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"));
        let stored =
            Stored { create_revision: 3, mod_revision: 400, lease: Some(1 << 40), value: b"value".to_vec() };
        let encoded = |stored: &Stored| postcard::to_extend(stored, Vec::new()).unwrap();
        nacre_fuzz::Target::new("stored", corpus, vec![encoded(&stored)])
            .run(|input| decode(b"key", input).ok().map(|stored| encoded(&stored)));
    }

    #[test]
    fn local_store_keeps_the_contract() {
        block_on(conformance::run(&|| {
            let dir = tempfile::tempdir().unwrap();
            let store = LocalStore::open(dir.path()).unwrap();
            (Box::new(store) as Box<dyn MapStore>, Box::new(dir) as Box<dyn std::any::Any>)
        }));
    }

    #[test]
    fn a_second_user_is_kept_out() {
        let dir = tempfile::tempdir().unwrap();
        let first = LocalStore::open(dir.path()).unwrap();
        assert!(matches!(LocalStore::open(dir.path()), Err(MapStoreError::Locked(_))));
        drop(first);
        LocalStore::open(dir.path()).unwrap();
    }

    #[test]
    fn entries_revisions_and_leases_survive_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let lease = {
            let store = LocalStore::open(dir.path()).unwrap();
            block_on(store.transact(&Txn::default().put("a", "1"))).unwrap();
            let lease = block_on(store.grant_lease(Duration::from_secs(60))).unwrap();
            let leased = Op::Put { key: b"b".to_vec(), value: b"2".to_vec(), lease: Some(lease) };
            block_on(store.transact(&Txn { compares: vec![], ops: vec![leased] })).unwrap();
            lease
        };
        let store = LocalStore::open(dir.path()).unwrap();
        let a = block_on(store.get(b"a")).unwrap().unwrap();
        assert_eq!((a.value.as_slice(), a.create_revision, a.mod_revision), (&b"1"[..], 1, 1));
        block_on(store.revoke_lease(lease)).unwrap();
        assert_eq!(block_on(store.get(b"b")).unwrap(), None);
        assert!(matches!(block_on(store.watch(b"a", b"z", 1)), Err(MapStoreError::Compacted { .. })));
    }
}
