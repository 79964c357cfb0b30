//! How the map is written to the map store and read back (docs/format/mapstore.md).
//!
//! An epoch is one incremental. It becomes durable, together with everything else of its proposal, in the transaction that
//! moves `osdmap/last` to it. That transaction, like all others, compares the fencing key. Whatever does not fit into one
//! transaction is written before it in others: chunks of the incremental under keys that are not read while `osdmap/last`
//! is lower, and keys of databases, each of which is complete in itself. A crash in between leaves chunks that the next
//! attempt at the same epoch overwrites.
//!
//! The full map is written periodically in the same way, chunks first. Older full maps and incrementals are then deleted.

use crate::error::MonError;
use crate::mapstore::{
    Compare, MAX_TXN_BYTES, MAX_TXN_OPS, MapStore, Op, Txn, TxnOutcome, prefix_end, read_prefix,
};
use bytes::Bytes;
use nacre_common::auth::{KeyRecord, Keyring, RotatingSecrets, ServiceKey};
use nacre_mon::auth_db::{self, AuthDb};
use nacre_mon::keys;
use nacre_mon::logic::{ClusterLogEntry, Databases, LastReportedDirty, Mutes, Now, Proposal, new_generation};
use nacre_mon::{ConfigDb, ConfigTarget, ConfigVersion};
use nacre_types::crc32c::crc32c;
use nacre_types::encoding::{self, Versioned};
use nacre_types::ids::{Epoch, OsdId};
use nacre_types::osdmap::{Incremental, OsdMap};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use uuid::Uuid;

/// Bytes of a map per key. A transaction holds at most two such values.
const CHUNK_BYTES: usize = 512 << 10;
/// Maximum number of operations for chunks and keys in a transaction, besides the fixed ones.
const OPS_PER_TXN: usize = MAX_TXN_OPS - 8;
/// The same limit in bytes.
const BYTES_PER_TXN: usize = MAX_TXN_BYTES - (64 << 10);
// A longer value would not fit into any transaction, and its proposal could never be committed.
const _: () = assert!(keys::MAX_VALUE_BYTES + (8 << 10) < BYTES_PER_TXN);
/// Epochs between full maps.
const FULL_EVERY: u32 = 100;
/// Minimum number of incrementals to keep, for peers that were away (`mon_min_osdmap_epochs`).
const KEPT_INCREMENTALS: u32 = 500;
/// Maximum number and bytes of incrementals kept in memory for subscribers.
const CACHED_INCREMENTALS: usize = 1_000;
const CACHED_BYTES: usize = 32 << 20;
/// Maximum number of log lines in one proposal.
const MAX_LOG_LINES: usize = 32;
/// Transactions per round that delete old log lines, besides those for as many lines as were stored since the last round.
const LOG_TRIMS: usize = 4;
/// Number of client ids reserved at a time.
const CLIENT_BLOCK: u64 = 1_000;
/// The first client id, as in Ceph.
const FIRST_CLIENT: u64 = 4_100;
/// The client ids and service key numbers of a generation start at the generation shifted by this number of bits.
/// Generations are seconds since 1970, so the ids stay below 2^53, which every JSON reader represents exactly.
const IDS_PER_GENERATION_BITS: u32 = 20;
/// Minimum number of ids that a new generation skips: more than the lost history can have assigned in a second. Needed if
/// the clock was set back and the generation alone does not exceed the lost ids.
const RESTORED_ID_GAP: u64 = 1 << IDS_PER_GENERATION_BITS;

/// The identity of the cluster that a map store belongs to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ClusterRecord {
    pub(crate) fsid: Uuid,
    /// Identity of this store; random.
    store_id: Uuid,
    created_ns: u64,
}

impl Versioned for ClusterRecord {
    const NAME: &'static str = "mon::Cluster";
}

/// The head of a stored map: the map itself if it is small, otherwise the number of its chunks.
#[derive(Serialize, Deserialize)]
struct MapHead {
    chunks: u32,
    bytes: u64,
    crc: u32,
    inline: Vec<u8>,
}

impl Versioned for MapHead {
    const NAME: &'static str = "mon::Head";
}

/// The map store, owned by the one map authority that may commit.
pub(crate) struct Persistence {
    store: Arc<dyn MapStore>,
    fence: Vec<u8>,
    last: Epoch,
    last_full: Epoch,
    first_incremental: Epoch,
    cached: VecDeque<(Epoch, Bytes)>,
    cached_bytes: usize,
    clients: Range<u64>,
    trimmed_log: u64,
    /// Log lines stored since old ones were last deleted.
    stored_log: usize,
}

/// The contents of the store.
pub(crate) struct LoadedState {
    pub(crate) map: OsdMap,
    pub(crate) databases: Databases,
    pub(crate) service_keys: Option<RotatingSecrets>,
}

/// Creates a cluster in an empty store.
pub(crate) fn mkfs(store: &dyn MapStore, map: &OsdMap, keyring: &Keyring) -> Result<(), MonError> {
    let cluster = ClusterRecord { fsid: map.fsid, store_id: Uuid::new_v4(), created_ns: map.created_ns };
    let entities: Vec<KeyValue> = keyring
        .iter()
        .map(|(entity, e)| {
            let record = KeyRecord { key: e.key.clone(), caps: e.caps.clone() };
            (keys::auth(entity), auth_db::encode(&record))
        })
        .collect();
    let absent = || Compare::Absent { key: keys::CLUSTER.to_vec() };
    for some in entities.chunks(OPS_PER_TXN) {
        let txn = some.iter().fold(Txn::default().when(absent()), |t, (k, v)| t.put(k.clone(), v.clone()));
        run(store, &txn)?;
    }
    let (head, chunks) = split(keys::FULL_MAPS, map.epoch, &encoding::encode(map));
    for some in chunks.chunks(2) {
        let txn = some.iter().fold(Txn::default().when(absent()), |t, (k, v)| t.put(k.clone(), v.clone()));
        run(store, &txn)?;
    }
    let txn = Txn::default()
        .when(absent())
        .put(keys::CLUSTER, encoding::encode(&cluster))
        .put(head_key(keys::FULL_MAPS, map.epoch), head)
        .put(keys::LAST_EPOCH, number(u64::from(map.epoch.0)))
        .put(keys::LAST_FULL, number(u64::from(map.epoch.0)))
        .put(keys::FIRST_INCREMENTAL, number(u64::from(map.epoch.0) + 1))
        .put(keys::NEXT_CLIENT, number(FIRST_CLIENT))
        .put(keys::CRUSH_VERSION, number(1));
    run(store, &txn)
}

/// Declares that a store was restored from an old copy: its history continues in a new generation, at an epoch that was
/// never published (rule R7). `osds` as for [`new_generation`]. Returns the generation.
///
/// Client ids continue above those of the lost history: OSDs remember its clients' requests and would answer requests of a
/// new client with the same id as duplicates, without executing them. The same applies to the numbers of service keys.
pub(crate) fn mint_generation(
    store: Arc<dyn MapStore>,
    now_ns: u64,
    osds: &[OsdId],
) -> Result<u64, MonError> {
    let (mut persistence, loaded) = Persistence::open(store, "a")?;
    // The time makes the generations of two restores of the same copy different.
    let generation = (loaded.map.generation + 1).max(now_ns / 1_000_000_000);
    let map = new_generation(&loaded.map, generation, Now { mono_ms: 0, wall_ns: now_ns }, osds);
    let next_client = read_number(persistence.store.as_ref(), keys::NEXT_CLIENT)?
        .ok_or_else(|| missing(keys::NEXT_CLIENT))?;
    let first_client = restored_id(next_client, generation)?;
    let service_keys =
        loaded.service_keys.map(|old| restored_service_keys(&old, generation, now_ns)).transpose()?;
    let from = persistence.last;
    persistence.write_full(&map, |txn| {
        let txn = txn
            .when(Compare::Value { key: keys::LAST_EPOCH.to_vec(), value: number(u64::from(from.0)) })
            .put(keys::LAST_EPOCH, number(u64::from(map.epoch.0)))
            .put(keys::FIRST_INCREMENTAL, number(u64::from(map.epoch.0) + 1))
            .put(keys::NEXT_CLIENT, number(first_client));
        service_keys.into_iter().fold(txn, |txn, encoded| txn.put(keys::SERVICE_KEYS, encoded))
    })?;
    Ok(generation)
}

/// The first id of `generation`, if the restored copy would have assigned `next`.
fn restored_id(next: u64, generation: u64) -> Result<u64, MonError> {
    let by_time = generation.min(u64::from(u32::MAX)) << IDS_PER_GENERATION_BITS;
    let id = next.saturating_add(RESTORED_ID_GAP).max(by_time);
    // Client names in Ceph contain signed numbers.
    if id > i64::MAX as u64 / 2 {
        return Err(MonError::Invalid(format!("the map store has given out client or key ids up to {next}")));
    }
    Ok(id)
}

/// The service keys of a new generation, encoded. Keeps the keys of the copy except the oldest, so that clients that ran
/// during the restore can renew their tickets and keep their ids. Later keys get numbers that differ from those of the
/// lost history, which belong to other secrets.
fn restored_service_keys(old: &RotatingSecrets, generation: u64, now_ns: u64) -> Result<Vec<u8>, MonError> {
    let [_, current, next] = old.keys() else { return Err(corrupt(keys::SERVICE_KEYS, "not three keys")) };
    let now_unix = now_ns / 1_000_000_000;
    let ttl = next.valid_from_unix.saturating_sub(current.valid_from_unix).max(1);
    let made = RotatingSecrets::generate(now_unix, ttl).map_err(|e| MonError::Invalid(e.to_string()))?;
    let last = made.keys().last().ok_or_else(|| corrupt(keys::SERVICE_KEYS, "no keys"))?;
    let keys: [ServiceKey; 3] = [
        current.clone(),
        ServiceKey { valid_from_unix: now_unix, ..next.clone() },
        ServiceKey { id: restored_id(next.id, generation)?, ..last.clone() },
    ];
    // A keyring is stored as its three keys.
    Ok(postcard::to_extend(&keys, Vec::new()).expect("invariant: a plain structure always encodes"))
}

impl Persistence {
    /// Takes over the store, fences off its previous owner, and reads everything.
    pub(crate) fn open(
        store: Arc<dyn MapStore>,
        mon_name: &str,
    ) -> Result<(Persistence, LoadedState), MonError> {
        let cluster = store.get(keys::CLUSTER)?;
        let cluster = cluster.ok_or_else(|| MonError::NotInitialised("the map store".into()))?;
        let fsid = encoding::decode::<ClusterRecord>(&cluster.value)?.fsid;
        let fence = Uuid::new_v4().as_bytes().to_vec();
        let take = Txn::default()
            .when(Compare::Value { key: keys::CLUSTER.to_vec(), value: cluster.value })
            .put(keys::FENCE, fence.clone());
        run(store.as_ref(), &take)?;
        let epoch = |key: &[u8]| -> Result<Epoch, MonError> {
            let value = read_number(store.as_ref(), key)?.ok_or_else(|| missing(key))?;
            u32::try_from(value).map(Epoch).map_err(|_| missing(key))
        };
        let (last, last_full) = (epoch(keys::LAST_EPOCH)?, epoch(keys::LAST_FULL)?);
        let mut persistence = Persistence {
            fence,
            last,
            last_full,
            first_incremental: epoch(keys::FIRST_INCREMENTAL)?,
            cached: VecDeque::new(),
            cached_bytes: 0,
            clients: 0..0,
            trimmed_log: 0,
            stored_log: 0,
            store,
        };
        let bytes = persistence.read_map(keys::FULL_MAPS, last_full)?;
        let mut map: OsdMap = encoding::decode(&bytes)?;
        if map.fsid != fsid || map.epoch != last_full {
            return Err(MonError::Corrupt {
                what: format!("full map {last_full}"),
                detail: format!("it is epoch {} of cluster {}", map.epoch, map.fsid),
            });
        }
        for epoch in last_full.0 + 1..=last.0 {
            let bytes = persistence.read_map(keys::INCREMENTALS, Epoch(epoch))?;
            map = map.apply(&encoding::decode::<Incremental>(&bytes)?)?;
            persistence.cache(Epoch(epoch), Bytes::from(bytes));
        }
        let databases = persistence.read_databases(mon_name)?;
        let service_keys = match persistence.store.get(keys::SERVICE_KEYS)? {
            None => None,
            Some(entry) => {
                let decoded = postcard::from_bytes(&entry.value);
                Some(decoded.map_err(|e| corrupt(keys::SERVICE_KEYS, &e.to_string()))?)
            }
        };
        Ok((persistence, LoadedState { map, databases, service_keys }))
    }

    fn read_databases(&mut self, mon_name: &str) -> Result<Databases, MonError> {
        let store = self.store.as_ref();
        let mut auth = AuthDb::default();
        for entry in read_prefix(store, keys::AUTH)? {
            let name = String::from_utf8_lossy(&entry.key[keys::AUTH.len()..]).into_owned();
            let record = auth_db::decode(&entry.value).ok_or_else(|| corrupt(&entry.key, "not an entity"))?;
            auth.insert(name.parse().map_err(|_| corrupt(&entry.key, "not an entity's name"))?, record);
        }
        let mut config = ConfigDb::default();
        for entry in read_prefix(store, keys::CONFIG)? {
            let parsed = std::str::from_utf8(&entry.key[keys::CONFIG.len()..])
                .ok()
                .and_then(|path| path.rsplit_once('/'))
                .and_then(|(who, name)| Some((ConfigTarget::parse(who)?, name.to_owned())));
            let (who, name) = parsed.ok_or_else(|| corrupt(&entry.key, "not a configuration key"))?;
            let value = String::from_utf8(entry.value).map_err(|_| corrupt(&entry.key, "not text"))?;
            config.set(who, &name, &value);
        }
        let mut log = Vec::new();
        for entry in read_prefix(store, keys::LOG)? {
            log.push(ClusterLogEntry::decode(&entry.value).map_err(|e| corrupt(&entry.key, &e.to_string()))?);
        }
        let mut history: Vec<ConfigVersion> = Vec::new();
        for entry in read_prefix(store, keys::CONFIG_HISTORY)? {
            let version =
                postcard::from_bytes(&entry.value).map_err(|e| corrupt(&entry.key, &e.to_string()))?;
            history.push(version);
        }
        config.restore_history(history);
        let mut mutes = Mutes::new();
        for entry in read_prefix(store, keys::MUTES)? {
            let code = String::from_utf8_lossy(&entry.key[keys::MUTES.len()..]).into_owned();
            let mute = postcard::from_bytes(&entry.value).map_err(|e| corrupt(&entry.key, &e.to_string()))?;
            mutes.insert(code, mute);
        }
        let mut last_dirty = LastReportedDirty::default();
        for entry in read_prefix(store, keys::TIER_DIRTY)? {
            let added = last_dirty.load_record(&entry.value);
            added.map_err(|error| corrupt(&entry.key, &error.to_string()))?;
        }
        let mut config_keys = BTreeMap::new();
        for entry in read_prefix(store, keys::CONFIG_KEY)? {
            let key = String::from_utf8_lossy(&entry.key[keys::CONFIG_KEY.len()..]).into_owned();
            config_keys.insert(key, entry.value);
        }
        self.trimmed_log = log.first().map_or(0, |line| line.seq);
        Ok(Databases {
            config,
            auth,
            log,
            crush_version: read_number(store, keys::CRUSH_VERSION)?.unwrap_or(1),
            mon_name: mon_name.to_owned(),
            mutes,
            last_dirty,
            config_keys,
            ..Databases::default()
        })
    }

    /// Makes a proposal durable. After an error the outcome is unknown, or it was fenced off: the caller must stop.
    pub(crate) fn commit(&mut self, proposal: &Proposal, log: &[ClusterLogEntry]) -> Result<(), MonError> {
        let mut ops: Vec<Op> = log
            .iter()
            .map(|line| {
                let value = postcard::to_extend(line, Vec::new())
                    .expect("invariant: a plain structure always encodes");
                put(keys::log(line.seq), value)
            })
            .collect();
        ops.extend(proposal.keys.iter().map(|(key, value)| match value {
            Some(value) => put(key.clone(), value.clone()),
            None => Op::Delete { key: key.clone() },
        }));
        let encoded =
            proposal.incremental.as_ref().map(|inc| (inc.epoch, Bytes::from(encoding::encode(inc))));
        let mut last_ops = Vec::new();
        if let Some((epoch, bytes)) = &encoded {
            let (head, chunks) = split(keys::INCREMENTALS, *epoch, bytes);
            ops.splice(0..0, chunks.into_iter().map(|(key, value)| put(key, value)));
            last_ops.push(put(head_key(keys::INCREMENTALS, *epoch), head));
            last_ops.push(put(keys::LAST_EPOCH.to_vec(), number(u64::from(epoch.0))));
        }
        let mut batches = batch(ops);
        let fits = batches.last().is_some_and(|b| bytes_of(b) + bytes_of(&last_ops) <= BYTES_PER_TXN);
        if !fits {
            batches.push(Vec::new());
        }
        let count = batches.len();
        for (at, mut ops) in batches.into_iter().enumerate() {
            let mut compares = vec![self.fence_compare()];
            if at + 1 == count {
                ops.append(&mut last_ops);
                compares.push(Compare::Value {
                    key: keys::LAST_EPOCH.to_vec(),
                    value: number(u64::from(self.last.0)),
                });
            }
            self.run(&Txn { compares, ops })?;
        }
        self.stored_log += log.len();
        if let Some((epoch, bytes)) = encoded {
            self.last = epoch;
            self.cache(epoch, bytes);
        }
        Ok(())
    }

    /// Maximum number of log lines in the next proposal.
    pub(crate) const MAX_COMMIT_LOG_LINES: usize = MAX_LOG_LINES;

    /// Writes the full map if it is due, and deletes obsolete entries, a few at a time.
    pub(crate) fn trim(&mut self, map: &OsdMap, log_from: u64) -> Result<(), MonError> {
        if map.epoch.0.saturating_sub(self.last_full.0) >= FULL_EVERY {
            let before = self.last_full;
            self.write_full(map, |txn| txn)?;
            let end = head_key(keys::FULL_MAPS, Epoch(before.0 + 1));
            self.delete_range_chunk(keys::FULL_MAPS, &end, None)?;
        }
        let keep_from = self.last.0.saturating_sub(KEPT_INCREMENTALS).min(self.last_full.0) + 1;
        if self.first_incremental.0 + FULL_EVERY <= keep_from {
            let end = head_key(keys::INCREMENTALS, Epoch(keep_from));
            let first = (keys::FIRST_INCREMENTAL, u64::from(keep_from));
            if self.delete_range_chunk(keys::INCREMENTALS, &end, Some(first))? {
                self.first_incremental = Epoch(keep_from);
            }
        }
        self.trim_log(log_from)
    }

    /// Deletes log lines below `from`, faster than they are stored.
    fn trim_log(&mut self, from: u64) -> Result<(), MonError> {
        let most = LOG_TRIMS + std::mem::take(&mut self.stored_log).div_ceil(OPS_PER_TXN);
        for _ in 0..most {
            if from < self.trimmed_log + OPS_PER_TXN as u64 {
                break;
            }
            if self.delete_range_chunk(keys::LOG, &keys::log(from), None)? {
                self.trimmed_log = from;
            }
        }
        Ok(())
    }

    /// Deletes keys from `prefix` to `end`, as many as fit into a transaction. Returns true if none is left.
    fn delete_range_chunk(
        &self,
        prefix: &[u8],
        end: &[u8],
        then: Option<(&[u8], u64)>,
    ) -> Result<bool, MonError> {
        debug_assert!(end <= prefix_end(prefix).as_slice(), "invariant: the range stays within its prefix");
        let page = self.store.range(prefix, end, OPS_PER_TXN)?;
        let mut txn = Txn { compares: vec![self.fence_compare()], ops: Vec::new() };
        txn.ops.extend(page.entries.into_iter().map(|e| Op::Delete { key: e.key }));
        if let (false, Some((key, value))) = (page.more, then) {
            txn = txn.put(key, number(value));
        }
        if !txn.ops.is_empty() {
            self.run(&txn)?;
        }
        Ok(!page.more)
    }

    fn write_full(&mut self, map: &OsdMap, and: impl FnOnce(Txn) -> Txn) -> Result<(), MonError> {
        let (head, chunks) = split(keys::FULL_MAPS, map.epoch, &encoding::encode(map));
        for ops in batch(chunks.into_iter().map(|(key, value)| put(key, value)).collect()) {
            self.run(&Txn { compares: vec![self.fence_compare()], ops })?;
        }
        let txn = Txn { compares: vec![self.fence_compare()], ops: Vec::new() }
            .put(head_key(keys::FULL_MAPS, map.epoch), head)
            .put(keys::LAST_FULL, number(u64::from(map.epoch.0)));
        self.run(&and(txn))?;
        self.last_full = map.epoch;
        Ok(())
    }

    /// Stores new service keys. Returns when they are durable and may be used.
    pub(crate) fn put_service_keys(&self, service_keys: &RotatingSecrets) -> Result<(), MonError> {
        let value = postcard::to_extend(service_keys, Vec::new())
            .expect("invariant: a plain structure always encodes");
        self.run(&Txn {
            compares: vec![self.fence_compare()],
            ops: vec![put(keys::SERVICE_KEYS.to_vec(), value)],
        })
    }

    /// Returns a client id that was never assigned before.
    pub(crate) fn allocate_client_id(&mut self) -> Result<u64, MonError> {
        if self.clients.is_empty() {
            let next = read_number(self.store.as_ref(), keys::NEXT_CLIENT)?
                .ok_or_else(|| missing(keys::NEXT_CLIENT))?;
            let txn = Txn { compares: vec![self.fence_compare()], ops: Vec::new() }
                .when(Compare::Value { key: keys::NEXT_CLIENT.to_vec(), value: number(next) })
                .put(keys::NEXT_CLIENT, number(next + CLIENT_BLOCK));
            self.run(&txn)?;
            self.clients = next..next + CLIENT_BLOCK;
        }
        Ok(self.clients.next().expect("invariant: the block was filled"))
    }

    /// The newest durable epoch.
    #[cfg(test)]
    pub(crate) fn last(&self) -> Epoch {
        self.last
    }

    /// The encoded incrementals from `first` on, at most `bytes` of them but at least one, or `None` if they are no longer
    /// cached.
    pub(crate) fn incrementals(&self, first: Epoch, bytes: usize) -> Option<Vec<Bytes>> {
        if first > self.last {
            return Some(Vec::new());
        }
        let start = self.cached.iter().position(|(epoch, _)| *epoch == first)?;
        let mut taken = Vec::new();
        let mut total = 0;
        for (_, blob) in self.cached.range(start..) {
            total += blob.len();
            if total > bytes && !taken.is_empty() {
                break;
            }
            taken.push(blob.clone());
        }
        Some(taken)
    }

    fn cache(&mut self, epoch: Epoch, bytes: Bytes) {
        self.cached_bytes += bytes.len();
        self.cached.push_back((epoch, bytes));
        while self.cached.len() > CACHED_INCREMENTALS || self.cached_bytes > CACHED_BYTES {
            let Some((_, old)) = self.cached.pop_front() else { return };
            self.cached_bytes -= old.len();
        }
    }

    fn read_map(&self, prefix: &[u8], epoch: Epoch) -> Result<Vec<u8>, MonError> {
        let key = head_key(prefix, epoch);
        let head = self.store.get(&key)?.ok_or_else(|| missing(&key))?;
        let bytes = join(&head.value, |at| {
            let key = keys::chunk(prefix, epoch, at);
            Ok(self.store.get(&key)?.ok_or_else(|| missing(&key))?.value)
        })?;
        bytes.ok_or_else(|| corrupt(&key, "its checksum does not match"))
    }

    fn fence_compare(&self) -> Compare {
        Compare::Value { key: keys::FENCE.to_vec(), value: self.fence.clone() }
    }

    fn run(&self, txn: &Txn) -> Result<(), MonError> {
        run(self.store.as_ref(), txn)
    }
}

/// Runs a transaction. A failed condition means that another owner has changed keys of this authority.
fn run(store: &dyn MapStore, txn: &Txn) -> Result<(), MonError> {
    match store.transact(txn)? {
        TxnOutcome::Committed { .. } => Ok(()),
        TxnOutcome::Conflict { .. } => Err(MonError::Fenced),
    }
}

/// A key with its value.
type KeyValue = (Vec<u8>, Vec<u8>);

/// The head of a map and, if the map is too long for that, its chunks.
fn split(prefix: &[u8], epoch: Epoch, bytes: &[u8]) -> (Vec<u8>, Vec<KeyValue>) {
    let crc = crc32c(bytes);
    let length = bytes.len() as u64;
    if bytes.len() <= CHUNK_BYTES {
        let head = MapHead { chunks: 0, bytes: length, crc, inline: bytes.to_vec() };
        return (encoding::encode(&head), Vec::new());
    }
    let chunks: Vec<_> = bytes
        .chunks(CHUNK_BYTES)
        .enumerate()
        .map(|(at, chunk)| (keys::chunk(prefix, epoch, at as u32), chunk.to_vec()))
        .collect();
    let head = MapHead { chunks: chunks.len() as u32, bytes: length, crc, inline: Vec::new() };
    (encoding::encode(&head), chunks)
}

/// Reverses [`split`]. Returns `None` if the data is damaged.
fn join(
    head: &[u8],
    mut chunk: impl FnMut(u32) -> Result<Vec<u8>, MonError>,
) -> Result<Option<Vec<u8>>, MonError> {
    let head: MapHead = encoding::decode(head)?;
    let mut bytes = head.inline;
    for at in 0..head.chunks {
        bytes.extend(chunk(at)?);
        if bytes.len() as u64 > head.bytes {
            return Ok(None);
        }
    }
    Ok((bytes.len() as u64 == head.bytes && crc32c(&bytes) == head.crc).then_some(bytes))
}

/// Divides operations into batches that each fit into a transaction.
fn batch(ops: Vec<Op>) -> Vec<Vec<Op>> {
    let mut batches: Vec<Vec<Op>> = Vec::new();
    let mut bytes = 0;
    for op in ops {
        let size = bytes_of(std::slice::from_ref(&op));
        match batches.last_mut() {
            Some(last) if last.len() < OPS_PER_TXN && bytes + size <= BYTES_PER_TXN => last.push(op),
            _ => {
                batches.push(vec![op]);
                bytes = 0;
            }
        }
        bytes += size;
    }
    batches
}

fn bytes_of(ops: &[Op]) -> usize {
    let size = |op: &Op| match op {
        Op::Put { key, value, .. } => key.len() + value.len(),
        Op::Delete { key } => key.len(),
    };
    ops.iter().map(size).sum()
}

fn put(key: Vec<u8>, value: Vec<u8>) -> Op {
    Op::Put { key, value, lease: None }
}

fn head_key(prefix: &[u8], epoch: Epoch) -> Vec<u8> {
    [prefix, &epoch.0.to_be_bytes()].concat()
}

fn number(value: u64) -> Vec<u8> {
    value.to_be_bytes().to_vec()
}

fn read_number(store: &dyn MapStore, key: &[u8]) -> Result<Option<u64>, MonError> {
    let Some(entry) = store.get(key)? else { return Ok(None) };
    let bytes: [u8; 8] = entry.value.try_into().map_err(|_| corrupt(key, "not a number"))?;
    Ok(Some(u64::from_be_bytes(bytes)))
}

fn missing(key: &[u8]) -> MonError {
    corrupt(key, "it is missing")
}

fn corrupt(key: &[u8], detail: &str) -> MonError {
    MonError::Corrupt { what: String::from_utf8_lossy(key).into_owned(), detail: detail.to_owned() }
}

#[cfg(test)]
mod tests;
