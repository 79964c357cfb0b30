//! A store whose transactions are lost, executed late or interrupted.

use crate::{LeaseId, MapStore, MapStoreError, MemoryStore, RangePage, StoredEntry, Txn, TxnOutcome, Watch};
use async_trait::async_trait;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// What happens to a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is executed and answered.
    Answered,
    /// It is lost, and there is no answer.
    RequestLost,
    /// It is executed, and the answer is lost.
    AnswerLost,
    /// There is no answer, and it is executed late: after the next transaction.
    Late,
    /// The process ends before it. Nothing is executed from here on.
    Crash,
}

/// A store whose transactions have fates: those given, in order, then the last one.
pub(crate) struct FaultyStore {
    store: MemoryStore,
    fates: Mutex<VecDeque<Fate>>,
    pub(crate) late: Mutex<Vec<Txn>>,
    pub(crate) count: Mutex<usize>,
    reads: Mutex<usize>,
    loses_reads: bool,
}

impl FaultyStore {
    pub(crate) fn new(store: &MemoryStore, fates: impl IntoIterator<Item = Fate>) -> Arc<FaultyStore> {
        Arc::new(FaultyStore {
            store: store.clone(),
            fates: Mutex::new(fates.into_iter().collect()),
            late: Mutex::default(),
            count: Mutex::default(),
            reads: Mutex::default(),
            loses_reads: false,
        })
    }

    /// Lets every third read fail, if that was requested.
    fn lose_some_reads(&self) -> Result<(), MapStoreError> {
        let mut reads = self.reads.lock();
        *reads += 1;
        if self.loses_reads && reads.is_multiple_of(3) {
            return Err(MapStoreError::Unavailable("no answer".into()));
        }
        Ok(())
    }

    /// The same store, whose reads fail sometimes.
    pub(crate) fn losing_reads(
        store: &MemoryStore,
        fates: impl IntoIterator<Item = Fate>,
    ) -> Arc<FaultyStore> {
        let mut faulty = FaultyStore::new(store, fates);
        Arc::get_mut(&mut faulty).expect("it is the only reference").loses_reads = true;
        faulty
    }

    fn next_fate(&self) -> Fate {
        *self.count.lock() += 1;
        let mut fates = self.fates.lock();
        if fates.len() > 1 { fates.pop_front().unwrap() } else { fates[0] }
    }
}

#[async_trait]
impl MapStore for FaultyStore {
    async fn transact(&self, txn: &Txn) -> Result<TxnOutcome, MapStoreError> {
        let unanswered = Err(MapStoreError::Unavailable("no answer".into()));
        let fate = self.next_fate();
        let late = if fate == Fate::Crash { Vec::new() } else { std::mem::take(&mut *self.late.lock()) };
        let outcome = match fate {
            Fate::Answered => self.store.transact(txn).await,
            Fate::AnswerLost => {
                self.store.transact(txn).await?;
                unanswered
            }
            Fate::RequestLost => unanswered,
            Fate::Late => {
                self.late.lock().push(txn.clone());
                unanswered
            }
            Fate::Crash => Err(MapStoreError::Io("crashed".into())),
        };
        for txn in late {
            self.store.transact(&txn).await?;
        }
        outcome
    }
    async fn get(&self, key: &[u8]) -> Result<Option<StoredEntry>, MapStoreError> {
        self.lose_some_reads()?;
        self.store.get(key).await
    }
    async fn range(
        &self,
        start: &[u8],
        end: &[u8],
        limit: usize,
        revision: Option<u64>,
    ) -> Result<RangePage, MapStoreError> {
        self.lose_some_reads()?;
        self.store.range(start, end, limit, revision).await
    }
    async fn grant_lease(&self, ttl: Duration) -> Result<LeaseId, MapStoreError> {
        self.store.grant_lease(ttl).await
    }
    async fn keep_alive(&self, lease: LeaseId) -> Result<(), MapStoreError> {
        self.store.keep_alive(lease).await
    }
    async fn revoke_lease(&self, lease: LeaseId) -> Result<(), MapStoreError> {
        self.store.revoke_lease(lease).await
    }
    async fn watch(&self, start: &[u8], end: &[u8], revision: u64) -> Result<Box<dyn Watch>, MapStoreError> {
        self.store.watch(start, end, revision).await
    }
}
