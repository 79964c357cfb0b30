//! A map store in memory: for imports, tests and the simulator.
//!
//! It has no clock: its time passes only while a watcher waits.

use crate::{
    Compare, LeaseId, MAX_PAGE, MapStore, MapStoreError, Op, PAGE_BYTES, RangePage, StoredEntry, Txn,
    TxnOutcome, Watch, WatchEvent,
};
use async_trait::async_trait;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// See the module's documentation. Clones share their contents.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore(Arc<Mutex<State>>);

impl MemoryStore {
    /// A copy with contents of its own.
    pub fn snapshot(&self) -> MemoryStore {
        MemoryStore(Arc::new(Mutex::new(self.0.lock().clone())))
    }
}

#[derive(Clone, Debug, Default)]
struct State {
    revision: u64,
    entries: BTreeMap<Vec<u8>, StoredEntry>,
    history: Vec<WatchEvent>,
    now: Duration,
    last_lease: u64,
    /// The leases with their time to live and their ends.
    leases: BTreeMap<LeaseId, (Duration, Duration)>,
}

impl State {
    fn holds(&self, compare: &Compare) -> bool {
        compare.holds(self.entries.get(compare.key()))
    }

    fn apply(&mut self, ops: &[Op]) -> u64 {
        let revision = self.revision + 1;
        for op in ops {
            let value = match op {
                Op::Put { key, value, lease } => {
                    let create_revision = self.entries.get(key).map_or(revision, |old| old.create_revision);
                    let entry = StoredEntry {
                        key: key.clone(),
                        value: value.clone(),
                        create_revision,
                        mod_revision: revision,
                        lease: *lease,
                    };
                    self.entries.insert(key.clone(), entry);
                    Some(value.clone())
                }
                Op::Delete { key } if self.entries.remove(key).is_some() => None,
                Op::Delete { .. } => continue,
            };
            self.revision = revision;
            self.history.push(WatchEvent { revision, key: op.key().to_vec(), value });
        }
        self.revision
    }

    fn end_lease(&mut self, id: LeaseId) -> Result<(), MapStoreError> {
        self.leases.remove(&id).ok_or(MapStoreError::NoLease(id.0))?;
        let ops: Vec<Op> = self
            .entries
            .values()
            .filter(|entry| entry.lease == Some(id))
            .map(|entry| Op::Delete { key: entry.key.clone() })
            .collect();
        self.apply(&ops);
        Ok(())
    }
}

#[async_trait]
impl MapStore for MemoryStore {
    async fn transact(&self, txn: &Txn) -> Result<TxnOutcome, MapStoreError> {
        txn.check_limits()?;
        let mut state = self.0.lock();
        if !txn.compares.iter().all(|compare| state.holds(compare)) {
            return Ok(TxnOutcome::Conflict { revision: state.revision });
        }
        for op in &txn.ops {
            if let Op::Put { lease: Some(lease), .. } = op
                && !state.leases.contains_key(lease)
            {
                return Err(MapStoreError::NoLease(lease.0));
            }
        }
        Ok(TxnOutcome::Committed { revision: state.apply(&txn.ops) })
    }

    async fn get(&self, key: &[u8]) -> Result<Option<StoredEntry>, MapStoreError> {
        Ok(self.0.lock().entries.get(key).cloned())
    }

    async fn range(
        &self,
        start: &[u8],
        end: &[u8],
        limit: usize,
        revision: Option<u64>,
    ) -> Result<RangePage, MapStoreError> {
        let state = self.0.lock();
        if revision.is_some_and(|revision| revision != state.revision) {
            return Err(MapStoreError::Compacted { oldest: state.revision });
        }
        let mut page = RangePage { entries: Vec::new(), more: false, revision: state.revision };
        let mut bytes = 0;
        for (_, entry) in state.entries.range(start.to_vec()..end.to_vec()) {
            if page.entries.len() >= limit.min(MAX_PAGE) || bytes > PAGE_BYTES {
                page.more = true;
                break;
            }
            bytes += entry.key.len() + entry.value.len();
            page.entries.push(entry.clone());
        }
        Ok(page)
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<LeaseId, MapStoreError> {
        let mut state = self.0.lock();
        state.last_lease += 1;
        let (id, end) = (LeaseId(state.last_lease), state.now + ttl);
        state.leases.insert(id, (ttl, end));
        Ok(id)
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), MapStoreError> {
        let mut state = self.0.lock();
        let now = state.now;
        let (ttl, end) = state.leases.get_mut(&lease).ok_or(MapStoreError::NoLease(lease.0))?;
        *end = now + *ttl;
        Ok(())
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<(), MapStoreError> {
        self.0.lock().end_lease(lease)
    }

    async fn watch(&self, start: &[u8], end: &[u8], revision: u64) -> Result<Box<dyn Watch>, MapStoreError> {
        let at = self.0.lock().history.partition_point(|event| event.revision < revision);
        Ok(Box::new(MemoryWatch { store: self.clone(), start: start.to_vec(), end: end.to_vec(), at }))
    }
}

struct MemoryWatch {
    store: MemoryStore,
    start: Vec<u8>,
    end: Vec<u8>,
    /// The position of the next event in the history.
    at: usize,
}

#[async_trait]
impl Watch for MemoryWatch {
    async fn next(&mut self, timeout: Duration) -> Result<Option<WatchEvent>, MapStoreError> {
        let mut state = self.store.0.lock();
        let until = state.now + timeout;
        loop {
            while let Some(event) = state.history.get(self.at) {
                self.at += 1;
                if event.key >= self.start && event.key < self.end {
                    return Ok(Some(event.clone()));
                }
            }
            let next = state.leases.iter().map(|(id, (_, end))| (*end, *id)).min();
            let Some((end, lease)) = next.filter(|(end, _)| *end <= until) else {
                state.now = until;
                return Ok(None);
            };
            state.now = end;
            state.end_lease(lease)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_keeps_the_contract() {
        futures::executor::block_on(crate::conformance::run(&|| {
            (Box::new(MemoryStore::default()) as Box<dyn MapStore>, Box::new(()) as Box<dyn std::any::Any>)
        }));
    }
}
