//! How the map is written to the map store and read back (docs/format/mapstore.md).
//!
//! An epoch is one incremental. It becomes durable, together with everything else of its proposal, in the transaction that
//! moves `osdmap/last` to it. What does not fit into one transaction is written before it, under keys that are not read yet:
//! chunks of the incremental, and the proposal's other changes as one staged record. A crash before the transaction leaves
//! nothing visible; after it, the changes of a staged record are applied to their keys, if necessary by the next owner.
//!
//! Each transaction compares the fencing key, and has a number that it compares and stores. So a transaction whose outcome
//! is unknown can be repeated: the number tells whether it took effect, and a late first attempt changes nothing.
//!
//! The full map is written periodically, chunks first. Older full maps and incrementals are then deleted.

use crate::error::PersistError;
use crate::identity::{ClusterRecord, Identity, identify};
use crate::incrementals::IncrementalCache;
use crate::retrying::RetryingStore;
use crate::transfer;
use crate::values::{self, BYTES_PER_TXN, KeyValue, OPS_PER_TXN, batch, number, put, read_number};
use crate::{Compare, MapStore, MapStoreError, Op, Txn, TxnOutcome, prefix_end, read_prefix};
use bytes::Bytes;
use nacre_common::auth::{KeyRecord, Keyring, RotatingSecrets};
use nacre_mon::auth_db::{self, AuthDb};
use nacre_mon::keys;
use nacre_mon::logic::{ClusterLogEntry, Databases, EpochHistories, LastReportedDirty, Mutes, Proposal};
use nacre_mon::{ConfigDb, ConfigTarget, ConfigVersion};
use nacre_types::encoding;
use nacre_types::ids::Epoch;
use nacre_types::osdmap::{Incremental, OsdMap};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use uuid::Uuid;

type Result<T> = std::result::Result<T, PersistError>;

// A longer value would not fit into any transaction, and its proposal could never be committed.
const _: () = assert!(keys::MAX_VALUE_BYTES + (8 << 10) < BYTES_PER_TXN);
/// Epochs between full maps.
const FULL_EVERY: u32 = 100;
/// Minimum number of incrementals to keep, for peers that were away (`mon_min_osdmap_epochs`).
const KEPT_INCREMENTALS: u32 = 500;
/// Maximum number of log lines in one commit.
pub const MAX_COMMIT_LOG_LINES: usize = 32;
/// Transactions per round that delete old log lines, besides those for as many lines as were stored since the last round.
const LOG_TRIMS: usize = 4;
/// Number of client ids reserved at a time.
const CLIENT_BLOCK: u64 = 1_000;
/// The first client id, as in Ceph.
const FIRST_CLIENT: u64 = 4_100;
/// The staged record has chunks like a map, but no epoch.
const STAGED_EPOCH: Epoch = Epoch(0);

/// The changes of a proposal that exceeds a transaction: keys with their new values, `None` to remove the key.
type StagedChanges = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// The map store, owned by the one map authority that may commit.
pub struct Persistence {
    store: RetryingStore,
    fence: Vec<u8>,
    /// The number of the last transaction; 0 in a store that has none yet.
    sequence: u64,
    last: Epoch,
    last_full: Epoch,
    first_incremental: Epoch,
    trimmed_log: u64,
    /// Log lines stored since old ones were last deleted.
    stored_log: usize,
}

/// The contents of the store.
pub struct LoadedState {
    /// The newest map.
    pub map: OsdMap,
    /// Everything else that the map's logic keeps.
    pub databases: Databases,
    /// The service keys of tickets, if they were stored already.
    pub service_keys: Option<RotatingSecrets>,
    /// The incrementals since the newest full map.
    pub incrementals: IncrementalCache,
}

/// An incremental that is durable: the epoch that it makes, and its encoding.
pub type CommittedIncremental = (Epoch, Bytes);

/// Creates a cluster in an empty store. May be repeated after a failure.
pub async fn mkfs(store: &dyn MapStore, map: &OsdMap, keyring: &Keyring) -> Result<()> {
    let cluster = ClusterRecord { fsid: map.fsid, store_id: Uuid::new_v4(), created_ns: map.created_ns };
    let mut contents: Vec<KeyValue> = keyring
        .iter()
        .map(|(entity, e)| {
            let record = KeyRecord { key: e.key.clone(), caps: e.caps.clone() };
            (keys::auth(entity), auth_db::encode(&record))
        })
        .collect();
    let (head, chunks) = values::split(keys::FULL_MAPS, map.epoch, &encoding::encode(map));
    contents.extend(chunks);
    contents.extend([
        (values::head_key(keys::FULL_MAPS, map.epoch), head),
        (keys::LAST_EPOCH.to_vec(), number(u64::from(map.epoch.0))),
        (keys::LAST_FULL.to_vec(), number(u64::from(map.epoch.0))),
        (keys::FIRST_INCREMENTAL.to_vec(), number(u64::from(map.epoch.0) + 1)),
        (keys::NEXT_CLIENT.to_vec(), number(FIRST_CLIENT)),
        (keys::CRUSH_VERSION.to_vec(), number(1)),
    ]);
    contents.sort_unstable();
    transfer::fill_store(store, Uuid::nil(), &cluster, &contents).await
}

impl Persistence {
    /// Takes over the store, fences off its previous owner, and reads everything. While the store is unavailable, this waits.
    pub async fn open(store: Arc<dyn MapStore>, mon_name: &str) -> Result<(Persistence, LoadedState)> {
        let (persistence, cluster) = Persistence::take_over(store).await?;
        persistence.load(cluster.fsid, mon_name).await
    }

    /// Takes over the store and fences off its previous owner. Reads nothing of the map.
    pub(crate) async fn take_over(store: Arc<dyn MapStore>) -> Result<(Persistence, ClusterRecord)> {
        let store = RetryingStore(store);
        let cluster = match identify(&store).await? {
            Identity::Cluster(cluster) => cluster,
            Identity::Sealed(seal) => return Err(PersistError::Sealed(seal.reason)),
            Identity::None => return Err(PersistError::NotInitialised),
        };
        let condition = Compare::Value { key: keys::CLUSTER.to_vec(), value: encoding::encode(&cluster) };
        let mut persistence = Persistence::own(store, condition).await?;
        persistence.finish_staged().await?;
        Ok((persistence, cluster))
    }

    /// Takes over a store as long as `condition` holds.
    pub(crate) async fn own(store: RetryingStore, condition: Compare) -> Result<Persistence> {
        let fence = take_over(&store, condition).await?;
        let sequence = read_number(&store, keys::SEQUENCE).await?.unwrap_or(0);
        Ok(Persistence {
            store,
            fence,
            sequence,
            last: Epoch(0),
            last_full: Epoch(0),
            first_incremental: Epoch(0),
            trimmed_log: 0,
            stored_log: 0,
        })
    }

    /// Reads everything.
    async fn load(mut self, fsid: Uuid, mon_name: &str) -> Result<(Persistence, LoadedState)> {
        let persistence = &mut self;
        persistence.last = persistence.read_epoch(keys::LAST_EPOCH).await?;
        persistence.last_full = persistence.read_epoch(keys::LAST_FULL).await?;
        persistence.first_incremental = persistence.read_epoch(keys::FIRST_INCREMENTAL).await?;
        let (mut incrementals, mut histories) = persistence.read_old_incrementals().await?;
        let map = persistence.read_newest_map(fsid, &mut incrementals, &mut histories).await?;
        let databases = Databases { histories, ..persistence.read_databases(mon_name).await? };
        let service_keys = match persistence.store.get(keys::SERVICE_KEYS).await? {
            None => None,
            Some(entry) => {
                let decoded = postcard::from_bytes(&entry.value);
                Some(decoded.map_err(|e| PersistError::corrupt(keys::SERVICE_KEYS, &e.to_string()))?)
            }
        };
        Ok((self, LoadedState { map, databases, service_keys, incrementals }))
    }

    /// The store.
    pub(crate) fn store(&self) -> &dyn MapStore {
        &self.store
    }

    /// What tells whether the store still belongs to this owner.
    pub fn ownership(&self) -> Ownership {
        Ownership { store: self.store.0.clone(), fence: self.fence.clone() }
    }

    /// Reads the incrementals up to the newest full map, for subscribers that have older maps. If some are missing or damaged,
    /// those after them are used.
    async fn read_old_incrementals(&self) -> Result<(IncrementalCache, EpochHistories)> {
        let mut histories = EpochHistories::default();
        let mut incrementals = IncrementalCache::new(Epoch(self.first_incremental.0.saturating_sub(1)));
        for epoch in (self.first_incremental.0..=self.last_full.0).map(Epoch) {
            let read = values::read(&self.store, keys::INCREMENTALS, epoch).await;
            match read.and_then(|bytes| Ok((encoding::decode::<Incremental>(&bytes)?, bytes))) {
                Ok((incremental, bytes)) => {
                    histories.add(epoch, incremental.history);
                    incrementals.push(epoch, Bytes::from(bytes));
                }
                Err(PersistError::Store(error)) => return Err(error.into()),
                // The first ones may have been deleted.
                Err(_) => incrementals = IncrementalCache::new(epoch),
            }
        }
        Ok((incrementals, histories))
    }

    async fn read_newest_map(
        &self,
        fsid: Uuid,
        incrementals: &mut IncrementalCache,
        histories: &mut EpochHistories,
    ) -> Result<OsdMap> {
        let last_full = self.last_full;
        let bytes = values::read(&self.store, keys::FULL_MAPS, last_full).await?;
        let mut map: OsdMap = encoding::decode(&bytes)?;
        if map.fsid != fsid || map.epoch != last_full {
            return Err(PersistError::Corrupt {
                what: format!("full map {last_full}"),
                detail: format!("it is epoch {} of cluster {}", map.epoch, map.fsid),
            });
        }
        histories.add(map.epoch, map.history);
        for epoch in last_full.0 + 1..=self.last.0 {
            let bytes = values::read(&self.store, keys::INCREMENTALS, Epoch(epoch)).await?;
            map = map.apply(&encoding::decode::<Incremental>(&bytes)?)?;
            histories.add(map.epoch, map.history);
            incrementals.push(map.epoch, Bytes::from(bytes));
        }
        Ok(map)
    }

    async fn read_databases(&mut self, mon_name: &str) -> Result<Databases> {
        let store = &self.store;
        let mut auth = AuthDb::default();
        for entry in read_prefix(store, keys::AUTH).await? {
            let name = String::from_utf8_lossy(&entry.key[keys::AUTH.len()..]).into_owned();
            let record = auth_db::decode(&entry.value)
                .ok_or_else(|| PersistError::corrupt(&entry.key, "not an entity"))?;
            auth.insert(
                name.parse().map_err(|_| PersistError::corrupt(&entry.key, "not an entity's name"))?,
                record,
            );
        }
        let mut config = ConfigDb::default();
        for entry in read_prefix(store, keys::CONFIG).await? {
            let parsed = std::str::from_utf8(&entry.key[keys::CONFIG.len()..])
                .ok()
                .and_then(|path| path.rsplit_once('/'))
                .and_then(|(who, name)| Some((ConfigTarget::parse(who)?, name.to_owned())));
            let (who, name) =
                parsed.ok_or_else(|| PersistError::corrupt(&entry.key, "not a configuration key"))?;
            let value =
                String::from_utf8(entry.value).map_err(|_| PersistError::corrupt(&entry.key, "not text"))?;
            config.set(who, &name, &value);
        }
        let mut log = Vec::new();
        for entry in read_prefix(store, keys::LOG).await? {
            log.push(
                ClusterLogEntry::decode(&entry.value)
                    .map_err(|e| PersistError::corrupt(&entry.key, &e.to_string()))?,
            );
        }
        let mut history: Vec<ConfigVersion> = Vec::new();
        for entry in read_prefix(store, keys::CONFIG_HISTORY).await? {
            let version = postcard::from_bytes(&entry.value)
                .map_err(|e| PersistError::corrupt(&entry.key, &e.to_string()))?;
            history.push(version);
        }
        config.restore_history(history);
        let mut mutes = Mutes::new();
        for entry in read_prefix(store, keys::MUTES).await? {
            let code = String::from_utf8_lossy(&entry.key[keys::MUTES.len()..]).into_owned();
            let mute = postcard::from_bytes(&entry.value)
                .map_err(|e| PersistError::corrupt(&entry.key, &e.to_string()))?;
            mutes.insert(code, mute);
        }
        let mut last_dirty = LastReportedDirty::default();
        for entry in read_prefix(store, keys::TIER_DIRTY).await? {
            let added = last_dirty.load_record(&entry.value);
            added.map_err(|error| PersistError::corrupt(&entry.key, &error.to_string()))?;
        }
        let mut config_keys = BTreeMap::new();
        for entry in read_prefix(store, keys::CONFIG_KEY).await? {
            let key = String::from_utf8_lossy(&entry.key[keys::CONFIG_KEY.len()..]).into_owned();
            config_keys.insert(key, entry.value);
        }
        self.trimmed_log = log.first().map_or(0, |line| line.seq);
        Ok(Databases {
            config,
            auth,
            log,
            crush_version: read_number(store, keys::CRUSH_VERSION).await?.unwrap_or(1),
            mon_name: mon_name.to_owned(),
            mutes,
            last_dirty,
            config_keys,
            ..Databases::default()
        })
    }

    /// Makes a proposal and log lines durable. After an error the outcome is unknown, or another authority has taken over: the
    /// caller must stop. If the store is unavailable, this waits until it answers.
    pub async fn commit(
        &mut self,
        proposal: &Proposal,
        log: &[ClusterLogEntry],
    ) -> Result<Option<CommittedIncremental>> {
        let mut changes: StagedChanges = log
            .iter()
            .map(|line| {
                let value = postcard::to_extend(line, Vec::new())
                    .expect("invariant: a plain structure always encodes");
                (keys::log(line.seq), Some(value))
            })
            .collect();
        changes.extend(proposal.keys.iter().map(|(key, value)| (key.clone(), value.clone())));
        let encoded =
            proposal.incremental.as_ref().map(|inc| (inc.epoch, Bytes::from(encoding::encode(inc))));
        let mut last = Txn::default();
        if let Some((epoch, bytes)) = &encoded {
            let (head, chunks) = values::split(keys::INCREMENTALS, *epoch, bytes);
            self.write_unread(chunks).await?;
            last = last
                .when(Compare::Value {
                    key: keys::LAST_EPOCH.to_vec(),
                    value: number(u64::from(self.last.0)),
                })
                .put(values::head_key(keys::INCREMENTALS, *epoch), head)
                .put(keys::LAST_EPOCH, number(u64::from(epoch.0)));
        }
        let ops = changes.iter().map(change);
        let bytes = last.bytes() + ops.clone().map(|op| op.bytes()).sum::<usize>();
        if last.ops.len() + changes.len() <= OPS_PER_TXN && bytes <= BYTES_PER_TXN {
            last.ops.extend(ops);
            if !last.ops.is_empty() {
                self.run(last).await?;
            }
        } else {
            let staged = postcard::to_extend(&changes, Vec::new())
                .expect("invariant: a plain structure always encodes");
            let (head, chunks) = values::split(keys::STAGED, STAGED_EPOCH, &staged);
            self.write_unread(chunks).await?;
            self.run(last.put(values::head_key(keys::STAGED, STAGED_EPOCH), head)).await?;
            self.apply_staged(&changes).await?;
        }
        self.stored_log += log.len();
        if let Some((epoch, _)) = &encoded {
            self.last = *epoch;
        }
        Ok(encoded)
    }

    /// Writes keys that are not read before another key names them.
    async fn write_unread(&mut self, chunks: Vec<KeyValue>) -> Result<()> {
        for ops in batch(chunks.into_iter().map(|(key, value)| put(key, value)).collect()) {
            self.run(Txn { compares: Vec::new(), ops }).await?;
        }
        Ok(())
    }

    /// Applies the changes of the staged record to their keys, and removes the record.
    async fn apply_staged(&mut self, changes: &StagedChanges) -> Result<()> {
        for ops in batch(changes.iter().map(change).collect()) {
            self.run(Txn { compares: Vec::new(), ops }).await?;
        }
        // The head is the first key of the range, so chunks without their head are all that a crash in between leaves.
        while !self.delete_range_chunk(keys::STAGED, &prefix_end(keys::STAGED), None).await? {}
        Ok(())
    }

    /// Completes a proposal that was committed by the previous owner of the store, and removes what other proposals left.
    async fn finish_staged(&mut self) -> Result<()> {
        let head = values::head_key(keys::STAGED, STAGED_EPOCH);
        if self.store.get(&head).await?.is_none() {
            while !self.delete_range_chunk(keys::STAGED, &prefix_end(keys::STAGED), None).await? {}
            return Ok(());
        }
        let bytes = values::read(&self.store, keys::STAGED, STAGED_EPOCH).await?;
        let changes: StagedChanges =
            postcard::from_bytes(&bytes).map_err(|e| PersistError::corrupt(&head, &e.to_string()))?;
        self.apply_staged(&changes).await
    }

    /// Whether [`Persistence::trim`] needs the map at `epoch` to write it.
    pub fn is_full_map_due(last_full: Epoch, epoch: Epoch) -> bool {
        epoch.0.saturating_sub(last_full.0) >= FULL_EVERY
    }

    /// The epoch of the newest full map.
    pub fn last_full(&self) -> Epoch {
        self.last_full
    }

    /// Writes a full map if one is given, and deletes obsolete entries, a few at a time. `log_from` is the first log line that
    /// is kept.
    pub async fn trim(&mut self, full: Option<&OsdMap>, log_from: u64) -> Result<()> {
        if let Some(map) = full {
            let before = self.last_full;
            self.write_full(map, Txn::default()).await?;
            let end = values::head_key(keys::FULL_MAPS, Epoch(before.0 + 1));
            self.delete_range_chunk(keys::FULL_MAPS, &end, None).await?;
        }
        let keep_from = self.last.0.saturating_sub(KEPT_INCREMENTALS).min(self.last_full.0) + 1;
        if self.first_incremental.0 + FULL_EVERY <= keep_from {
            let end = values::head_key(keys::INCREMENTALS, Epoch(keep_from));
            let first = (keys::FIRST_INCREMENTAL, u64::from(keep_from));
            if self.delete_range_chunk(keys::INCREMENTALS, &end, Some(first)).await? {
                self.first_incremental = Epoch(keep_from);
            }
        }
        self.trim_log(log_from).await
    }

    /// Deletes log lines below `from`, faster than they are stored.
    async fn trim_log(&mut self, from: u64) -> Result<()> {
        let most = LOG_TRIMS + std::mem::take(&mut self.stored_log).div_ceil(OPS_PER_TXN);
        for _ in 0..most {
            if from < self.trimmed_log + OPS_PER_TXN as u64 {
                break;
            }
            if self.delete_range_chunk(keys::LOG, &keys::log(from), None).await? {
                self.trimmed_log = from;
            }
        }
        Ok(())
    }

    /// Deletes keys from `prefix` to `end`, as many as fit into a transaction. Returns true if none is left.
    async fn delete_range_chunk(
        &mut self,
        prefix: &[u8],
        end: &[u8],
        then: Option<(&[u8], u64)>,
    ) -> Result<bool> {
        debug_assert!(end <= prefix_end(prefix).as_slice(), "invariant: the range stays within its prefix");
        let page = self.store.range(prefix, end, OPS_PER_TXN, None).await?;
        let mut txn = Txn::default();
        txn.ops.extend(page.entries.into_iter().map(|e| Op::Delete { key: e.key }));
        if let (false, Some((key, value))) = (page.more, then) {
            txn = txn.put(key, number(value));
        }
        if !txn.ops.is_empty() {
            self.run(txn).await?;
        }
        Ok(!page.more)
    }

    /// Writes a full map, its head in the transaction `last`.
    async fn write_full(&mut self, map: &OsdMap, last: Txn) -> Result<()> {
        let (head, chunks) = values::split(keys::FULL_MAPS, map.epoch, &encoding::encode(map));
        self.write_unread(chunks).await?;
        let last = last
            .put(values::head_key(keys::FULL_MAPS, map.epoch), head)
            .put(keys::LAST_FULL, number(u64::from(map.epoch.0)));
        self.run(last).await?;
        self.last_full = map.epoch;
        Ok(())
    }

    /// Stores new service keys. Returns when they are durable and may be used.
    pub async fn put_service_keys(&mut self, service_keys: &RotatingSecrets) -> Result<()> {
        let value = postcard::to_extend(service_keys, Vec::new())
            .expect("invariant: a plain structure always encodes");
        self.run(Txn::default().put(keys::SERVICE_KEYS, value)).await
    }

    /// Reserves client ids that were never assigned before.
    pub async fn reserve_client_ids(&mut self) -> Result<Range<u64>> {
        let next = self.next_client().await?;
        let txn = Txn::default()
            .when(Compare::Value { key: keys::NEXT_CLIENT.to_vec(), value: number(next) })
            .put(keys::NEXT_CLIENT, number(next + CLIENT_BLOCK));
        self.run(txn).await?;
        Ok(next..next + CLIENT_BLOCK)
    }

    /// The client id that is assigned next.
    pub(crate) async fn next_client(&self) -> Result<u64> {
        let next = read_number(&self.store, keys::NEXT_CLIENT).await?;
        next.ok_or_else(|| PersistError::missing(keys::NEXT_CLIENT))
    }

    /// Continues with a map of a new generation, at an epoch that was never published.
    pub(crate) async fn begin_generation(
        &mut self,
        map: &OsdMap,
        next_client: u64,
        service_keys: Option<Vec<u8>>,
    ) -> Result<()> {
        let mut last = Txn::default()
            .when(Compare::Value { key: keys::LAST_EPOCH.to_vec(), value: number(u64::from(self.last.0)) })
            .put(keys::LAST_EPOCH, number(u64::from(map.epoch.0)))
            .put(keys::FIRST_INCREMENTAL, number(u64::from(map.epoch.0) + 1))
            .put(keys::NEXT_CLIENT, number(next_client));
        if let Some(encoded) = service_keys {
            last = last.put(keys::SERVICE_KEYS, encoded);
        }
        self.write_full(map, last).await?;
        self.last = map.epoch;
        Ok(())
    }

    async fn read_epoch(&self, key: &[u8]) -> Result<Epoch> {
        let value = read_number(&self.store, key).await?.ok_or_else(|| PersistError::missing(key))?;
        u32::try_from(value).map(Epoch).map_err(|_| PersistError::corrupt(key, "not an epoch"))
    }

    /// Runs a transaction of this owner, exactly once. A failed condition means that another authority has changed the store.
    /// If the store is unavailable, this waits until it answers.
    pub(crate) async fn run(&mut self, txn: Txn) -> Result<()> {
        let txn_number = self.sequence + 1;
        let previous = match self.sequence {
            0 => Compare::Absent { key: keys::SEQUENCE.to_vec() },
            last => Compare::Value { key: keys::SEQUENCE.to_vec(), value: number(last) },
        };
        let txn = txn
            .when(Compare::Value { key: keys::FENCE.to_vec(), value: self.fence.clone() })
            .when(previous)
            .put(keys::SEQUENCE, number(txn_number));
        let mut is_in_doubt = false;
        loop {
            match self.store.transact(&txn).await {
                Ok(TxnOutcome::Committed { .. }) => break,
                Ok(TxnOutcome::Conflict { .. }) if !is_in_doubt => return Err(PersistError::Fenced),
                Ok(TxnOutcome::Conflict { .. }) => match self.took_effect(txn_number).await {
                    Ok(true) => break,
                    Ok(false) => return Err(PersistError::Fenced),
                    Err(MapStoreError::Unavailable(_)) => {}
                    Err(error) => return Err(error.into()),
                },
                Err(MapStoreError::Unavailable(error)) => {
                    if !is_in_doubt {
                        tracing::warn!(%error, "a transaction of the map store is repeated until it is answered");
                    }
                    is_in_doubt = true;
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.sequence = txn_number;
        Ok(())
    }

    /// Whether an earlier attempt at transaction `number` took effect. False also if another authority has taken over since.
    async fn took_effect(&self, txn_number: u64) -> std::result::Result<bool, MapStoreError> {
        // In this order: as long as the fence is this owner's, no other process changes the number.
        let sequence = self.store.get(keys::SEQUENCE).await?;
        let fence = self.store.get(keys::FENCE).await?;
        Ok(fence.is_some_and(|entry| entry.value == self.fence)
            && sequence.is_some_and(|entry| entry.value == number(txn_number)))
    }
}

/// Makes the caller the owner of the store, as long as `condition` holds. Returns the fencing key.
async fn take_over(store: &RetryingStore, condition: Compare) -> Result<Vec<u8>> {
    let fence = Uuid::new_v4().as_bytes().to_vec();
    loop {
        let current = store.get(keys::FENCE).await?;
        if current.as_ref().is_some_and(|entry| entry.value == fence) {
            return Ok(fence);
        }
        let take = Txn::default()
            .when(condition.clone())
            // A late attempt does not take the store from an owner that came after it.
            .when(Compare::ModRevision {
                key: keys::FENCE.to_vec(),
                revision: current.map_or(0, |entry| entry.mod_revision),
            })
            .put(keys::FENCE, fence.clone());
        match store.transact(&take).await {
            Ok(TxnOutcome::Committed { .. }) => return Ok(fence),
            Err(MapStoreError::Unavailable(_)) => {}
            Err(error) => return Err(error.into()),
            Ok(TxnOutcome::Conflict { .. }) => {
                if !condition.holds(store.get(condition.key()).await?.as_ref()) {
                    return Err(PersistError::Fenced);
                }
            }
        }
    }
}

/// Tells whether a store still belongs to an owner.
pub struct Ownership {
    store: Arc<dyn MapStore>,
    fence: Vec<u8>,
}

impl Ownership {
    /// False if another owner has taken over the store. True also if the store does not answer.
    pub async fn is_kept(&self) -> bool {
        match self.store.get(keys::FENCE).await {
            Ok(entry) => entry.is_some_and(|entry| entry.value == self.fence),
            Err(_) => true,
        }
    }
}

/// The operation of a change.
fn change((key, value): &(Vec<u8>, Option<Vec<u8>>)) -> Op {
    match value {
        Some(value) => put(key.clone(), value.clone()),
        None => Op::Delete { key: key.clone() },
    }
}

#[cfg(test)]
pub(crate) mod tests;
