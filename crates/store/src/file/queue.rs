//! Transactions in flight: first applied in memory, then journalled, then applied to the files.
//!
//! The journal thread takes the waiting transactions as one entry, writes and syncs it, and completes them. The applying thread
//! then executes the steps ([`super::apply`]). The total size of both queues is limited.

use super::Inner;
use super::collection::Collection;
use super::step::{JournalRecord, UsageChange};
use crate::error::{Result, StoreError};
use crate::{CommitSink, Completion, PoolUsage};
use nacre_types::ids::PoolId;
use nacre_types::object::ObjectId;
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Maximum number of records in one journal entry.
const MAX_RECORDS: usize = 512;
/// Maximum size of one journal entry in bytes. A single larger record is allowed.
const MAX_ENTRY_BYTES: u64 = 8 << 20;
/// Minimum time between updates of the journal's watermark.
const WATERMARK_INTERVAL: Duration = Duration::from_millis(100);

/// A resolved transaction.
pub(super) struct QueuedTxn {
    pub(super) seq: u64,
    pub(super) record: JournalRecord,
    pub(super) bytes: u64,
    pub(super) collection: Arc<Mutex<Collection>>,
    /// Objects whose pending changes it contains.
    pub(super) touched: Vec<ObjectId>,
    /// Files of prepared clones, which must be durable before the record.
    pub(super) clones: Vec<File>,
    pub(super) on_commit: Option<Completion>,
}

/// How the threads end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopMode {
    Not,
    /// After everything is in the files.
    Drained,
    /// Immediately, as after a crash.
    Abandoned,
}

/// The transactions in flight.
pub(super) struct TxnQueue {
    state: Mutex<State>,
    /// The journal thread waits here for transactions and for room.
    journal: Condvar,
    /// The applying thread waits here for work.
    apply: Condvar,
    /// Submitters wait here for room, readers and flushes for progress.
    progress: Condvar,
    applied: AtomicU64,
    limit_bytes: u64,
    limit_ops: usize,
}

struct State {
    waiting: VecDeque<QueuedTxn>,
    journalled: VecDeque<QueuedTxn>,
    bytes: u64,
    ops: usize,
    last_seq: u64,
    /// The last record that is durable in the journal.
    durable: u64,
    sync_wanted: bool,
    journal_done: bool,
    end: StopMode,
    usage: BTreeMap<PoolId, PoolUsage>,
    failed: Option<StoreError>,
}

/// Work for the applying thread.
pub(super) enum ApplyWork {
    Apply(Vec<QueuedTxn>),
    /// Make everything that was applied durable and trim the journal.
    Sync,
    /// Like `Sync`, then end.
    Finish,
    /// End immediately.
    Abandon,
}

impl TxnQueue {
    pub(super) fn new(
        limit_bytes: u64,
        limit_ops: usize,
        last_seq: u64,
        usage: BTreeMap<PoolId, PoolUsage>,
    ) -> TxnQueue {
        let state = State {
            waiting: VecDeque::new(),
            journalled: VecDeque::new(),
            bytes: 0,
            ops: 0,
            last_seq,
            durable: last_seq,
            sync_wanted: false,
            journal_done: false,
            end: StopMode::Not,
            usage,
            failed: None,
        };
        TxnQueue {
            state: Mutex::new(state),
            journal: Condvar::new(),
            apply: Condvar::new(),
            progress: Condvar::new(),
            applied: AtomicU64::new(last_seq),
            limit_bytes,
            limit_ops: limit_ops.max(1),
        }
    }

    /// The last transaction whose changes are in the files and the database.
    pub(super) fn applied(&self) -> u64 {
        self.applied.load(Ordering::Acquire)
    }

    /// Adds a transaction and returns its number. Fails only if the store has stopped.
    pub(super) fn push(&self, mut queued: QueuedTxn, pool: PoolId, usage: UsageChange) -> Result<u64> {
        let mut state = self.state.lock();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        usage.apply_to(state.usage.entry(pool).or_default());
        state.last_seq += 1;
        queued.seq = state.last_seq;
        state.bytes += queued.bytes;
        state.ops += 1;
        state.waiting.push_back(queued);
        self.journal.notify_one();
        Ok(state.last_seq)
    }

    /// Waits until there is room. Must be called without a collection's lock.
    pub(super) fn wait_for_room(&self, inner: &Inner) -> Result<()> {
        let mut state = self.state.lock();
        while state.bytes > self.limit_bytes || state.ops > self.limit_ops {
            inner.check_running()?;
            self.progress.wait(&mut state);
        }
        Ok(())
    }

    /// Waits until everything queued so far is durable.
    pub(super) fn flush(&self, inner: &Inner) -> Result<()> {
        let mut state = self.state.lock();
        let wanted = state.last_seq;
        while state.durable < wanted {
            inner.check_running()?;
            self.progress.wait(&mut state);
        }
        inner.check_running()
    }

    /// Waits until a transaction is in the files and the database. Must be called without a collection's lock.
    pub(super) fn wait_applied(&self, inner: &Inner, seq: u64) -> Result<()> {
        let mut state = self.state.lock();
        while self.applied() < seq {
            inner.check_running()?;
            self.progress.wait(&mut state);
        }
        Ok(())
    }

    /// Usage of the pools, including all queued transactions.
    pub(super) fn usage(&self) -> BTreeMap<PoolId, PoolUsage> {
        let mut usage = self.state.lock().usage.clone();
        usage.retain(|_, pool| *pool != PoolUsage::default());
        usage
    }

    /// Bytes allocated in all pools, including all queued transactions.
    pub(super) fn allocated(&self) -> u64 {
        self.state.lock().usage.values().map(|pool| pool.allocated_bytes).sum()
    }

    /// Bytes of transactions that are not yet in the files.
    pub(super) fn pending_bytes(&self) -> u64 {
        self.state.lock().bytes
    }

    /// Tells the threads to end.
    pub(super) fn end(&self, end: StopMode) {
        let mut state = self.state.lock();
        state.end = end;
        drop(state);
        self.wake_all();
    }

    fn wake_all(&self) {
        // A thread between its check and its wait holds this lock, so it can't miss the notification.
        let _state = self.state.lock();
        self.journal.notify_all();
        self.apply.notify_all();
        self.progress.notify_all();
    }

    /// Fails all transactions that are not journalled, and refuses new ones from now on.
    pub(super) fn fail(&self, error: &StoreError) {
        let mut state = self.state.lock();
        state.failed = Some(error.clone());
        state.bytes = 0;
        state.ops = 0;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        self.wake_all();
        complete(waiting.into(), Some(error));
    }

    /// Takes waiting transactions of up to `limit` bytes in total, or a single larger one. `None` if the thread must end.
    fn take_for_journal(&self, limit: u64) -> Option<Vec<QueuedTxn>> {
        let mut state = self.state.lock();
        loop {
            if state.end == StopMode::Abandoned || state.failed.is_some() {
                return None;
            }
            if !state.waiting.is_empty() {
                let mut bytes = 0;
                let mut count = 0;
                for queued in state.waiting.iter().take(MAX_RECORDS) {
                    bytes += queued.bytes;
                    if count > 0 && bytes > limit {
                        break;
                    }
                    count += 1;
                }
                return Some(state.waiting.drain(..count).collect());
            }
            if state.end == StopMode::Drained {
                return None;
            }
            self.journal.wait(&mut state);
        }
    }

    /// Waits until the journal has room for `bytes`.
    fn wait_for_journal_room(&self, inner: &Inner, bytes: u64) -> Result<()> {
        let mut state = self.state.lock();
        while !inner.journal.has_room(bytes) {
            inner.check_running()?;
            if state.end == StopMode::Abandoned {
                return Err(StoreError::NotMounted);
            }
            state.sync_wanted = true;
            self.apply.notify_one();
            self.journal.wait(&mut state);
        }
        Ok(())
    }

    fn journalled(&self, batch: Vec<QueuedTxn>) {
        let mut state = self.state.lock();
        state.durable = batch.last().map_or(state.durable, |queued| queued.seq);
        state.journalled.extend(batch);
        self.apply.notify_one();
        self.progress.notify_all();
    }

    fn journal_done(&self) {
        self.state.lock().journal_done = true;
        self.wake_all();
    }

    /// The next work of the applying thread; `sync_at` is when the next sync is due, if anything is to be synced.
    pub(super) fn take_for_apply(&self, sync_at: Option<Instant>) -> ApplyWork {
        let mut state = self.state.lock();
        loop {
            if state.end == StopMode::Abandoned || state.failed.is_some() {
                return ApplyWork::Abandon;
            }
            if sync_at.is_some_and(|at| Instant::now() >= at) {
                return ApplyWork::Sync;
            }
            if !state.journalled.is_empty() {
                let count = state.journalled.len().min(64);
                return ApplyWork::Apply(state.journalled.drain(..count).collect());
            }
            // A sync is only useful now: records that are not applied keep their space in the journal.
            if std::mem::take(&mut state.sync_wanted) {
                return ApplyWork::Sync;
            }
            if state.end == StopMode::Drained && state.journal_done {
                return ApplyWork::Finish;
            }
            match sync_at {
                None => self.apply.wait(&mut state),
                Some(at) => _ = self.apply.wait_until(&mut state, at),
            }
        }
    }

    /// Records that the transactions up to `seq` are in the files and the database.
    pub(super) fn mark_applied(&self, seq: u64, bytes: u64, ops: usize) {
        let mut state = self.state.lock();
        self.applied.store(seq, Ordering::Release);
        state.bytes = state.bytes.saturating_sub(bytes);
        state.ops = state.ops.saturating_sub(ops);
        self.progress.notify_all();
    }

    /// Notifies waiters that the journal has room again.
    pub(super) fn notify_trimmed(&self) {
        self.wake_all();
    }
}

/// The journal thread. Runs until the queue ends or an error occurs.
pub(super) fn run_journal(inner: &Inner) {
    let mut watermark_at = Instant::now();
    let mut durable = inner.queue.state.lock().durable;
    // A batch larger than the ring would wait for room forever. No transaction is larger than half of the ring.
    let limit = MAX_ENTRY_BYTES.min(inner.journal.max_entry());
    while let Some(mut batch) = inner.queue.take_for_journal(limit) {
        let due = watermark_at.elapsed() >= WATERMARK_INTERVAL;
        if due {
            watermark_at = Instant::now();
        }
        match write_entry(inner, &batch, due.then_some(durable)) {
            Ok(()) => {
                durable = batch.last().map_or(durable, |queued| queued.seq);
                let counters = &inner.counters;
                counters.transactions.fetch_add(batch.len() as u64, Ordering::Relaxed);
                counters.batches.fetch_add(1, Ordering::Relaxed);
                let completions = batch.iter_mut().map(|queued| queued.on_commit.take()).collect();
                inner.queue.journalled(batch);
                tell(completions, None);
            }
            // Abandoned while it waited for room: the store is being dropped.
            Err(StoreError::NotMounted) => break,
            Err(error) => {
                let stopped = inner.stop(error);
                complete(batch, Some(&stopped));
                inner.queue.fail(&stopped);
                break;
            }
        }
    }
    inner.queue.journal_done();
}

fn write_entry(inner: &Inner, batch: &[QueuedTxn], watermark: Option<u64>) -> Result<()> {
    inner.check_running()?;
    let mut clones = batch.iter().flat_map(|queued| &queued.clones).peekable();
    if clones.peek().is_some() && clone_sync_is_on() {
        for file in clones {
            file.sync_data().map_err(|e| StoreError::io("fsync a clone", &e))?;
            inner.counters.syncs.fetch_add(1, Ordering::Relaxed);
        }
        inner.backend.sync_clones()?;
    }
    inner.queue.wait_for_journal_room(inner, batch.iter().map(|queued| queued.bytes).sum())?;
    let records: Vec<&JournalRecord> = batch.iter().map(|queued| &queued.record).collect();
    let first = batch.first().map_or(0, |queued| queued.seq);
    inner.journal.append(first, &records)?;
    if let Some(seq) = watermark {
        inner.journal.set_watermark(seq)?;
    }
    inner.counters.syncs.fetch_add(1, Ordering::Relaxed);
    inner.journal.sync()
}

fn clone_sync_is_on() -> bool {
    fail::fail_point!("filestore::skip_clone_sync", |_| false);
    true
}

/// Completes transactions, which have failed if `error` is set.
fn complete(batch: Vec<QueuedTxn>, error: Option<&StoreError>) {
    tell(batch.into_iter().map(|queued| queued.on_commit).collect(), error);
}

/// Notifies each sink once, with all its transactions in order.
fn tell(completions: Vec<Option<Completion>>, error: Option<&StoreError>) {
    let mut sinks: Vec<(Arc<dyn CommitSink>, Vec<u64>)> = Vec::new();
    for completion in completions.into_iter().flatten() {
        let address = Arc::as_ptr(&completion.sink).cast::<()>();
        match sinks.iter_mut().find(|(sink, _)| Arc::as_ptr(sink).cast::<()>() == address) {
            Some((_, tokens)) => tokens.push(completion.token),
            None => sinks.push((completion.sink, vec![completion.token])),
        }
    }
    for (sink, tokens) in sinks {
        match error {
            None => sink.committed(&tokens),
            Some(error) => sink.failed(&tokens, error),
        }
    }
}
