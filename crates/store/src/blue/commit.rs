//! Group commit: the queue of applied transactions, and the thread that makes them durable.
//!
//! Each batch does the following, in this order: one merged direct write of all fresh blocks and one flush of the device
//! (unless the data is small enough to be deferred, see [`super::deferred`]), then one synced database write. After that,
//! freed blocks become reusable as far as rule B1 allows, and completions are sent. Meanwhile the next batch accumulates, so
//! under load one flush serves many transactions.
//!
//! Any failure stops the store (rule B5).

use super::Inner;
use super::allocation::ledger::FreelistManager;
use super::apply::UsageChange;
use super::db::{Family, RawBatch, WalPrefill};
use super::deferred::{Deferred, MAX_DEFERRED_AGE};
use super::label::Watermark;
use super::onode::{BLOCK_BYTES, Run};
use crate::error::{Result, StoreError};
use crate::{CommitSink, Completion, PoolUsage};
use bytes::Bytes;
use nacre_types::ids::{PgId, PoolId};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Numbers are reserved in the database in steps of this size.
pub(super) const ID_PREALLOC: u64 = 1 << 20;
/// Maximum number of transactions in one batch.
const MAX_BATCH: usize = 4096;

/// A transaction to be committed.
#[derive(Debug)]
pub(super) struct QueuedTxn {
    pub(super) batch: RawBatch,
    /// (first block on the device, whole blocks).
    pub(super) writes: Vec<(u64, Bytes)>,
    /// Writes that overwrite blocks in place, in the same form.
    pub(super) overwrites: Vec<(u64, Bytes)>,
    pub(super) allocated: Vec<Run>,
    pub(super) freed: Vec<Run>,
    pub(super) pool: PoolId,
    pub(super) usage: UsageChange,
    /// The collection's number of objects, if it changed. The inner value is `None` if the collection was removed.
    pub(super) collection: Option<(PgId, Option<u64>)>,
    pub(super) on_commit: Option<Completion>,
}

impl QueuedTxn {
    fn bytes(&self) -> u64 {
        let writes = self.writes.iter().chain(&self.overwrites);
        self.batch.size_in_bytes() as u64 + writes.map(|(_, bytes)| bytes.len() as u64).sum::<u64>()
    }
}

/// Counters of the commit thread since the store was mounted.
#[derive(Debug, Default)]
pub(super) struct CommitCounters {
    pub(super) transactions: AtomicU64,
    pub(super) batches: AtomicU64,
    pub(super) flushes: AtomicU64,
}

/// Applied transactions in order.
#[derive(Debug)]
pub(super) struct CommitQueue {
    state: Mutex<State>,
    /// The commit thread waits here for work.
    work: Condvar,
    /// Submitters wait here for room, flushes for their transactions.
    progress: Condvar,
    committed: AtomicU64,
    placed: AtomicU64,
    limit_bytes: u64,
}

#[derive(Debug)]
struct State {
    transactions: Vec<QueuedTxn>,
    /// Bytes that are queued or being committed.
    bytes: u64,
    last_seq: u64,
    committed: u64,
    /// The last transaction of the deferred epochs that have ended, and the last transaction up to which no deferred state
    /// remains.
    sealed: u64,
    settled: u64,
    idle: bool,
    /// Number of threads that wait for progress.
    waiting: usize,
    /// Whether there are deferred copies, or blocks that they hold back.
    deferred: bool,
    /// Whether a thread waits for the deferred copies to be removed.
    settle_wanted: bool,
    /// Whether an epoch of deferred data is being written to its place.
    placing: bool,
    /// Whether the placer has finished or failed since the last batch.
    news: bool,
    end: End,
    /// Usage including all queued transactions.
    usage: BTreeMap<PoolId, PoolUsage>,
    /// The error with which new transactions are refused.
    failed: Option<StoreError>,
}

/// How long the commit thread waits for work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    No,
    /// For [`MAX_DEFERRED_AGE`].
    Briefly,
    Forever,
}

/// How the commit thread ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Running,
    /// When everything queued is committed.
    Drained,
    /// Immediately, without committing what is queued, as after a crash.
    Abandoned,
}

impl CommitQueue {
    pub(super) fn new(limit_bytes: u64, usage: BTreeMap<PoolId, PoolUsage>) -> CommitQueue {
        let state = State {
            transactions: Vec::new(),
            bytes: 0,
            last_seq: 0,
            committed: 0,
            sealed: 0,
            settled: 0,
            idle: false,
            waiting: 0,
            deferred: false,
            settle_wanted: false,
            placing: false,
            news: false,
            end: End::Running,
            usage,
            failed: None,
        };
        CommitQueue {
            state: Mutex::new(state),
            work: Condvar::new(),
            progress: Condvar::new(),
            committed: AtomicU64::new(0),
            placed: AtomicU64::new(0),
            limit_bytes,
        }
    }

    /// The last committed sequence number. All transactions up to it are in the database.
    pub(super) fn committed_seq(&self) -> u64 {
        self.committed.load(Ordering::Acquire)
    }

    /// The last sequence number up to which everything is committed and all data is in its place on the device, so that reads
    /// do not need cached data.
    pub(super) fn in_place_seq(&self) -> u64 {
        self.placed.load(Ordering::Acquire)
    }

    fn set_placed(&self, seq: u64) {
        self.placed.store(seq, Ordering::Release);
    }

    /// Adds a transaction and returns its sequence number. Fails only if the store has stopped.
    pub(super) fn push(&self, queued: QueuedTxn) -> Result<u64> {
        let mut state = self.state.lock();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        queued.usage.apply_to(state.usage.entry(queued.pool).or_default());
        state.bytes += queued.bytes();
        state.transactions.push(queued);
        state.last_seq += 1;
        let seq = state.last_seq;
        if std::mem::take(&mut state.idle) {
            self.work.notify_one();
        }
        Ok(seq)
    }

    /// Waits until the queue has room. Must be called without a collection's lock.
    pub(super) fn wait_for_room(&self, inner: &Inner) -> Result<()> {
        let mut state = self.state.lock();
        while state.bytes > self.limit_bytes {
            inner.check()?;
            state.waiting += 1;
            self.progress.wait(&mut state);
            state.waiting -= 1;
        }
        Ok(())
    }

    /// Waits until everything queued before is durable and in its place, and the blocks that it freed are free. Does not wait for
    /// transactions queued meanwhile.
    pub(super) fn flush(&self, inner: &Inner) -> Result<()> {
        let mut state = self.state.lock();
        let wanted = state.last_seq;
        while state.settled < wanted {
            if state.committed >= wanted && state.sealed < wanted {
                state.settle_wanted = true;
                self.work.notify_one();
            }
            inner.check()?;
            state.waiting += 1;
            self.progress.wait(&mut state);
            state.waiting -= 1;
        }
        inner.check()
    }

    /// Usage including all queued transactions.
    pub(super) fn usage(&self) -> BTreeMap<PoolId, PoolUsage> {
        let mut usage = self.state.lock().usage.clone();
        usage.retain(|_, pool| *pool != PoolUsage::default());
        usage
    }

    /// Tells the commit thread to end, after committing what is queued if `drain` is set.
    pub(super) fn end(&self, drain: bool) {
        let mut state = self.state.lock();
        state.end = if drain { End::Drained } else { End::Abandoned };
        state.idle = false;
        self.work.notify_one();
    }

    /// Requests that blocks held back by deferred copies be freed soon.
    pub(super) fn request_deferred_flush(&self) {
        let mut state = self.state.lock();
        if state.deferred {
            state.settle_wanted = true;
            self.work.notify_one();
        }
    }

    /// Notifies the commit thread that deferred data is in its place, or that the store has stopped.
    pub(super) fn wake(&self) {
        let mut state = self.state.lock();
        (state.news, state.placing, state.idle) = (true, false, false);
        self.work.notify_one();
    }

    /// Takes the next batch, and whether to start writing deferred data to its place with it. An empty batch serves deferred data
    /// only, or means that no work arrived within the time given by `wait`. `None` if the thread must end.
    fn take(&self, wait: Wait) -> Option<(Vec<QueuedTxn>, u64, bool)> {
        let mut state = self.state.lock();
        let (mut waited, mut yielded) = (false, false);
        loop {
            if !state.transactions.is_empty() && !yielded {
                // If processors are scarce, threads that are about to submit run first, so that one flush serves more of them.
                MutexGuard::unlocked(&mut state, std::thread::yield_now);
                yielded = true;
            }
            let empty = state.transactions.is_empty();
            if state.end == End::Abandoned || (state.end == End::Drained && empty && !state.deferred) {
                return None;
            }
            let settle =
                state.deferred && !state.placing && (state.settle_wanted || state.end == End::Drained);
            let news = std::mem::take(&mut state.news);
            if !empty || settle || news {
                let rest = state.transactions.len().min(MAX_BATCH);
                let rest = state.transactions.split_off(rest);
                let batch = std::mem::replace(&mut state.transactions, rest);
                let last = state.last_seq - state.transactions.len() as u64;
                return Some((batch, last, settle));
            }
            if wait == Wait::No || waited {
                return Some((Vec::new(), state.last_seq, false));
            }
            state.idle = true;
            let may_settle = state.deferred && !state.placing;
            if wait == Wait::Forever && !may_settle {
                self.work.wait(&mut state);
            } else if self.work.wait_for(&mut state, MAX_DEFERRED_AGE).timed_out() {
                state.settle_wanted |= may_settle;
                waited = wait == Wait::Briefly;
            }
        }
    }

    fn finish(&self, seq: u64, bytes: u64, deferred: &Deferred) {
        let (pending, placing) = (deferred.is_pending(), deferred.is_placing());
        self.committed.store(seq, Ordering::Release);
        let mut state = self.state.lock();
        state.committed = seq;
        (state.deferred, state.placing) = (pending, placing);
        // The end of an epoch fulfils the request. Flushes whose transactions are not in that epoch request again.
        state.settle_wanted &= pending && state.sealed == deferred.sealed_seq();
        state.sealed = deferred.sealed_seq();
        state.settled = if pending { deferred.cleaned_up_seq() } else { seq };
        state.bytes -= bytes;
        if state.waiting > 0 {
            self.progress.notify_all();
        }
    }

    /// Takes everything queued, refuses new transactions from now on, and wakes all waiting threads.
    fn fail(&self, error: StoreError) -> Vec<QueuedTxn> {
        let mut state = self.state.lock();
        state.failed = Some(error);
        state.bytes = 0;
        self.progress.notify_all();
        std::mem::take(&mut state.transactions)
    }
}

/// The state of the commit thread between batches.
pub(super) struct Committer {
    pub(super) watermark: Watermark,
    watermark_at: Instant,
    /// The database's sequence number up to which everything was synced.
    synced: u64,
    /// The sequence number in the last flushed watermark, and since when there are batches that it does not cover.
    marked: u64,
    unmarked_since: Option<Instant>,
    /// The part of the log that remains to be filled in advance while the store is idle.
    prefill: Option<WalPrefill>,
    /// Whether the last step filled the log in advance: the store has been idle since.
    prefilling: bool,
    /// Numbers below this one are reserved in the database.
    pub(super) id_max: u64,
    /// The frontier that is recorded in the database.
    pub(super) frontier: u64,
    ledger: FreelistManager,
    batch: RawBatch,
    deferred: Deferred,
    space_checked: Instant,
}

/// Maximum time for batches without a flush of the device. The watermark lags behind them by at most this time.
const MAX_WATERMARK_LAG: Duration = Duration::from_secs(1);
/// Interval between checks of the file system's free space.
const SPACE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

impl Committer {
    pub(super) fn new(
        watermark: Watermark,
        synced: u64,
        id_max: u64,
        frontier: u64,
        ledger: FreelistManager,
        prefill: Option<WalPrefill>,
    ) -> Committer {
        let now = Instant::now();
        let batch = RawBatch::default();
        let deferred = Deferred::new();
        let marked = watermark.sequence;
        Committer {
            watermark,
            watermark_at: now,
            synced,
            marked,
            unmarked_since: None,
            prefill,
            prefilling: false,
            id_max,
            frontier,
            ledger,
            batch,
            deferred,
            space_checked: now,
        }
    }

    /// The commit thread. Runs until the queue ends or an error occurs.
    pub(super) fn run(mut self, inner: &Inner) {
        while let Some((mut batch, last_seq, settle)) = inner.queue.take(self.wait()) {
            self.prefilling = false;
            if let Some(done) = inner.placer.take_done() {
                self.deferred.mark_written(done.epoch, done.seq);
                inner.queue.set_placed(done.seq);
            } else if batch.is_empty() && !settle && inner.check().is_ok() {
                if let Err(error) = self.idle(inner) {
                    // The next batch detects that the store has stopped.
                    inner.stop(error);
                    self.prefill = None;
                }
                continue;
            }
            let bytes = batch.iter().map(QueuedTxn::bytes).sum();
            let committed = inner.check().and_then(|()| self.commit(inner, &mut batch));
            match committed {
                Ok(()) => {
                    if settle || self.deferred.is_due() {
                        self.place(inner, last_seq);
                    }
                    if !self.deferred.has_unplaced() {
                        inner.queue.set_placed(last_seq);
                    }
                    if self
                        .prefill
                        .as_mut()
                        .is_some_and(|prefill| prefill.count_logged(self.batch.size_in_bytes()))
                    {
                        self.prefill = None;
                    }
                    let freed: Vec<Run> = match is_early_reuse_enabled() {
                        false => batch.iter_mut().flat_map(|queued| queued.freed.drain(..)).collect(),
                        true => Vec::new(),
                    };
                    let reusable = self.deferred.on_batch_durable(freed);
                    if !reusable.is_empty() {
                        inner.give_back(inner.gate.retire(reusable));
                    }
                    inner.queue.finish(last_seq, bytes, &self.deferred);
                    let counters = &inner.counters;
                    counters.transactions.fetch_add(batch.len() as u64, Ordering::Relaxed);
                    counters.batches.fetch_add(1, Ordering::Relaxed);
                    inner.batches.put(batch.iter_mut().map(|queued| std::mem::take(&mut queued.batch)));
                    complete(batch, None);
                    inner.trim_next_overlay();
                    self.ledger.committed(&inner.checkpoints, self.frontier);
                    // Done while the submitters process their completions.
                    if let Some(fresh) = self.deferred.take_fresh() {
                        match write_coalesced(inner, fresh) {
                            Ok(()) if !self.deferred.has_unplaced() => inner.queue.set_placed(last_seq),
                            Ok(()) => {}
                            // The next batch detects that the store has stopped.
                            Err(error) => _ = inner.stop(error),
                        }
                    }
                    if self.space_checked.elapsed() > SPACE_CHECK_INTERVAL {
                        self.space_checked = Instant::now();
                        inner.check_file_system();
                    }
                }
                Err(error) => {
                    let stopped = inner.stop(error);
                    batch.extend(inner.queue.fail(stopped.clone()));
                    complete(batch, Some(&stopped));
                    return;
                }
            }
        }
    }

    /// How long to wait for work. The log is filled in advance only while the store is idle: between the batches of a busy
    /// store it would delay their syncs, and their own writes fill the log as well.
    fn wait(&self) -> Wait {
        match self.prefill {
            None if self.marked == self.synced => Wait::Forever,
            None => Wait::Briefly,
            Some(_) if self.prefilling => Wait::No,
            Some(_) => Wait::Briefly,
        }
    }

    /// Runs while nothing is queued. Writes and flushes a watermark for everything that was synced, or fills a part of the
    /// log in advance.
    fn idle(&mut self, inner: &Inner) -> Result<()> {
        if self.marked != self.synced {
            self.write_watermark(inner)?;
            self.flush(inner)
        } else if let Some(prefill) = &mut self.prefill {
            self.prefilling = inner.db.wal_prefill_step(prefill)?;
            if !self.prefilling {
                self.prefill = None;
            }
            Ok(())
        } else {
            Ok(())
        }
    }

    /// Writes a watermark for the synced metadata. It is durable with the next flush.
    fn write_watermark(&mut self, inner: &Inner) -> Result<()> {
        self.watermark_at = Instant::now();
        self.watermark = Watermark { generation: self.watermark.generation + 1, sequence: self.synced };
        let (block, bytes) = self.watermark.block(inner.uuid);
        inner.device.write(block * BLOCK_BYTES, &[bytes])
    }

    fn flush(&mut self, inner: &Inner) -> Result<()> {
        inner.device.flush()?;
        inner.counters.flushes.fetch_add(1, Ordering::Relaxed);
        (self.marked, self.unmarked_since) = (self.watermark.sequence, None);
        Ok(())
    }

    /// Starts writing the deferred data of committed transactions, up to and including `last_seq`, to its place.
    fn place(&mut self, inner: &Inner, last_seq: u64) {
        if self.deferred.is_placing() && self.deferred.is_over_limit() {
            inner.placer.wait();
            // The result is processed with the next batch.
        }
        if let Some(job) = self.deferred.seal(last_seq) {
            inner.placer.start(job);
        }
    }

    fn commit(&mut self, inner: &Inner, batch: &mut [QueuedTxn]) -> Result<()> {
        let writes: Vec<(u64, Bytes)> = batch.iter_mut().flat_map(|queued| queued.writes.drain(..)).collect();
        let overwrites: Vec<(u64, Bytes)> =
            batch.iter_mut().flat_map(|queued| queued.overwrites.drain(..)).collect();
        if self.watermark_at.elapsed() >= inner.config.watermark_interval {
            // Never deferred: the copy would be in the log that the watermark is to verify.
            self.write_watermark(inner)?;
        }
        let ids = inner.ids;
        self.batch.clear();
        let may_defer = self.unmarked_since.is_none_or(|since| since.elapsed() < MAX_WATERMARK_LAG);
        if may_defer && self.deferred.should_defer(&writes, inner.config.prefer_deferred_bytes) {
            self.deferred.defer_fresh(writes, ids, &mut self.batch);
        } else {
            write_coalesced(inner, writes)?;
            self.flush(inner)?;
        }
        self.deferred.defer_overwrites(overwrites, ids, &mut self.batch);
        self.deferred.remove_flushed(ids, &mut self.batch);
        for queued in batch.iter() {
            self.batch.append(&queued.batch);
        }
        self.ledger.record(batch, &inner.checkpoints, ids, &mut self.batch);
        let next_id = inner.next_id.load(Ordering::Relaxed);
        if next_id > self.id_max {
            self.id_max = next_id + ID_PREALLOC;
            self.batch.put(ids, Family::Super, super::state::ID_MAX, &self.id_max.to_le_bytes());
        }
        let frontier = inner.space.lock().frontier();
        if frontier > self.frontier {
            self.frontier = frontier;
            self.batch.put(ids, Family::Super, super::state::FRONTIER, &frontier.to_le_bytes());
        }
        if self.batch.is_empty() {
            return Ok(());
        }
        self.batch.finish();
        inner.db.write(&self.batch)?;
        // Syncing this batch also synced everything before, because only this thread writes.
        self.synced = inner.db.sequence();
        self.unmarked_since.get_or_insert_with(Instant::now);
        Ok(())
    }
}

/// Whether freed blocks are released before the commit. A failpoint that proves that the crash suite detects this.
pub(super) fn is_early_reuse_enabled() -> bool {
    fail::fail_point!("store::reuse_at_once", |_| true);
    false
}

/// Writes the pieces. Contiguous pieces are written with one call.
pub(super) fn write_coalesced(inner: &Inner, mut writes: Vec<(u64, Bytes)>) -> Result<()> {
    writes.sort_unstable_by_key(|(block, _)| *block);
    let blocks = |bytes: &Bytes| bytes.len() as u64 / BLOCK_BYTES;
    let mut pieces = Vec::with_capacity(writes.len());
    let mut start = 0;
    let mut next = 0;
    for (block, bytes) in writes {
        if block != next && !pieces.is_empty() {
            inner.device.write(start * BLOCK_BYTES, &pieces)?;
            pieces.clear();
        }
        if pieces.is_empty() {
            start = block;
        }
        next = block + blocks(&bytes);
        pieces.push(bytes);
    }
    if pieces.is_empty() { Ok(()) } else { inner.device.write(start * BLOCK_BYTES, &pieces) }
}

/// Notifies each sink once, with all its transactions in order.
fn complete(batch: Vec<QueuedTxn>, error: Option<&StoreError>) {
    let mut sinks: Vec<(Arc<dyn CommitSink>, Vec<u64>)> = Vec::new();
    for completion in batch.into_iter().filter_map(|queued| queued.on_commit) {
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
