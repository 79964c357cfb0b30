//! A shard: the PGs of one thread, with all state that they need.
//!
//! A shard owns its PGs' machines, the client requests that they hold, the object contexts and the timers. Its thread also runs
//! the connections of its messenger lane, so that most messages are handled on the thread that reads them. Its own thread takes
//! the mutex around a [`Shard`] for each event, and others only for admin dumps: it is never contended on the hot path.
//!
//! Invariants: a machine's commands are executed in order, and its commands in answer to [`PgEvent::Executed`] before the rest;
//! no lock of another shard is ever taken; the store is called with no lock except the shard's own.

mod background;
mod copies;
mod hosting;
mod inflight;
mod map_wait;
mod ops;
mod space;
mod sums;
mod tier;
/// Whether a message exceeds the connection's limit, which is no sign of a broken connection.
fn is_too_big(error: &nacre_common::error::Error) -> bool {
    matches!(error, nacre_common::error::Error::TooBig { .. })
}

/// Reports a message that can't be sent. It is lost only to its PG. The machine treats the silence like a lost message: it
/// repeats its requests after a while, and the receiver accepts nothing that depends on the lost message.
fn refuse_message(envelope: &PgEnvelope, to: OsdId, error: &nacre_common::error::Error) {
    tracing::error!(pg = %envelope.pg, %to, %error, "a message to a peer is too long: it was not sent");
}

#[cfg(test)]
mod tests;
mod unfound;
mod watches;

pub use tier::{PgAccesses, advise};

use crate::host::Observation;
use crate::inbox::{Inbox, PgUpSets, ShardMessage};
use crate::metrics::Metrics;
use crate::shared::Shared;
use crate::tracker::{OpTracker, TrackerLimits};
use background::BackgroundWork;
use copies::PendingCopies;
use inflight::{InflightTxns, token_slot, txn_token};
use map_wait::WaitingForMap;
use nacre_common::conn::ConnRef;
use nacre_common::options::Options;
use nacre_exec::ContextCache;
use nacre_objectstore::{CommitSink, Completion, SpaceReservation, StoreError};
use nacre_pg::{ExecuteReply, Mutation, PeerMsg, Pg, PgCommand, PgEnvelope, PgEvent, StoreRefusal};
use nacre_types::id_map::IdMap;
use nacre_types::ids::{Epoch, Interval, OsdId, PgId};
use nacre_types::msg::PgCas;
use nacre_types::osdmap::OsdMap;
use nacre_types::stats::{IoCounters, PgStats};
use nacre_types::txn::Transaction;
use ops::InflightOps;
use parking_lot::Mutex;
use space::MemberSpace;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use sums::SumsTracker;
use tier::TierObjects;
use watches::WatchTable;

/// Pieces of background work before sockets get their turn again.
const WORK_PER_TURN: usize = 1;
/// Messages and batches of completions that are handled before timers and sockets get their turn again.
const MESSAGES_PER_TURN: usize = 256;
/// How long a turn takes more of them, in nanoseconds.
const TURN_NS: u64 = 10_000_000;
/// Messages that are taken from the inbox at a time, and handled between two readings of the clock.
const MESSAGES_PER_BATCH: usize = 16;

/// A PG on this OSD.
struct Hosted {
    pg: PgId,
    machine: Pg,
    /// The generation under which its object contexts are valid; a new one for each interval.
    generation: u64,
    interval: Interval,
    /// The time of its next tick; `u64::MAX` for never.
    tick_ns: u64,
    active: bool,
    /// The highest id in the current batch of completions.
    committed: Option<u64>,
    sums: SumsTracker,
    io: IoCounters,
    /// The last statistics that were sent, without values that change with every report.
    reported: Option<PgStats>,
    report_seq: u64,
    /// The epoch of the last report.
    reported_at: Epoch,
    /// The role of its pool in a tier, according to the shard's map.
    role: Option<Arc<tier::TierRole>>,
    /// The state of a cache's PG while it is active here.
    cache: Option<Box<tier::CacheState>>,
}

/// See the module's documentation.
pub struct Shard {
    shared: Arc<Shared>,
    index: usize,
    inbox: Arc<Inbox>,
    metrics: Arc<Metrics>,
    map: Option<Arc<OsdMap>>,
    up: PgUpSets,
    unlisted: Arc<[OsdId]>,
    by_pg: IdMap<PgId, u32>,
    /// Slots are never reused: late completions and answers for a PG that is gone find nothing.
    slots: Vec<Option<Box<Hosted>>>,
    /// Collections that are being removed; their PGs are not hosted until that is done.
    removing: IdMap<PgId, ()>,
    ops: InflightOps,
    contexts: ContextCache,
    watches: WatchTable,
    copies: PendingCopies,
    tiers: TierObjects,
    next_generation: u64,
    tracker: OpTracker,
    early: WaitingForMap,
    timers: BinaryHeap<Reverse<(u64, u32)>>,
    background: VecDeque<BackgroundWork>,
    links: IdMap<OsdId, ConnRef>,
    space: MemberSpace,
    inflight: InflightTxns,
    reservations: Vec<SpaceReservation>,
    /// Reusable buffers for machines' commands.
    spare: Vec<Vec<PgCommand>>,
    messages: Vec<ShardMessage>,
    committed: Vec<u64>,
    /// Whether the store refused a change that a machine needs to continue: the OSD stops.
    halted: bool,
    /// The last reading of CLOCK_BOOTTIME: when the turn began, and again after the store was read for a client.
    now_ns: u64,
}

/// A shard as its thread and the dispatcher hold it.
pub struct ShardCell {
    inbox: Arc<Inbox>,
    shared: Arc<Shared>,
    /// Whether the shard must not be used: a panic left its state inconsistent, or its store refused a change.
    broken: AtomicBool,
    shard: Mutex<Shard>,
}

/// Marks the shard as broken when a panic unwinds.
struct PanicGuard<'a>(&'a ShardCell);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.broken.store(true, Ordering::Release);
            self.0.shared.fatal("a shard panicked: an invariant does not hold");
        }
    }
}

impl ShardCell {
    /// Creates a shard that hosts nothing yet.
    pub fn new(shared: &Arc<Shared>, index: usize) -> ShardCell {
        let limits = tracker_limits(&shared.config.snapshot());
        let inbox = Arc::clone(&shared.inboxes[index]);
        let shard = Shard {
            shared: Arc::clone(shared),
            index,
            inbox: Arc::clone(&inbox),
            metrics: Arc::clone(&shared.metrics[index]),
            map: None,
            up: PgUpSets::default(),
            unlisted: Arc::from([]),
            by_pg: IdMap::default(),
            slots: Vec::new(),
            removing: IdMap::default(),
            ops: InflightOps::default(),
            contexts: ContextCache::new(CONTEXTS_PER_SHARD),
            watches: watches::new_watch_table(shared),
            copies: PendingCopies::default(),
            tiers: TierObjects::default(),
            next_generation: 1,
            tracker: OpTracker::new(limits),
            early: WaitingForMap::default(),
            timers: BinaryHeap::new(),
            background: VecDeque::new(),
            links: IdMap::default(),
            space: MemberSpace::default(),
            inflight: InflightTxns::default(),
            reservations: Vec::new(),
            spare: Vec::new(),
            messages: Vec::new(),
            committed: Vec::new(),
            halted: false,
            now_ns: shared.world.boot_ns(),
        };
        let shared = Arc::clone(shared);
        ShardCell { inbox, shared, broken: AtomicBool::new(false), shard: Mutex::new(shard) }
    }

    /// Runs `f` on the shard and then the resulting work, as far as one turn allows; `None` if the shard is broken.
    pub fn enter<R>(&self, f: impl FnOnce(&mut Shard) -> R) -> Option<R> {
        let _at_work = self.inbox.enter_turn();
        let mut shard = self.shard.lock();
        if self.broken.load(Ordering::Acquire) {
            return None;
        }
        let _broken = PanicGuard(self);
        shard.now_ns = self.shared.world.boot_ns();
        self.shared.progress.begin_turn(shard.index, shard.now_ns);
        let result = f(&mut shard);
        shard.settle();
        if shard.halted {
            self.broken.store(true, Ordering::Release);
        }
        self.shared.progress.end_turn(shard.index, shard.inflight.oldest_ns());
        Some(result)
    }

    /// Reads the shard from another thread, without a change.
    pub fn inspect<R>(&self, f: impl FnOnce(&Shard) -> R) -> R {
        f(&self.shard.lock())
    }

    /// Runs `f` on the shard from another thread. The resulting work is left to the shard's own thread.
    pub fn with<R>(&self, f: impl FnOnce(&mut Shard) -> R) -> R {
        f(&mut self.shard.lock())
    }

    /// Like [`ShardCell::with`]; `None` if the shard is busy for longer than `wait`.
    pub fn try_with<R>(&self, wait: Duration, f: impl FnOnce(&mut Shard) -> R) -> Option<R> {
        self.shard.try_lock_for(wait).map(|mut shard| f(&mut shard))
    }

    /// Does what is due: ticks, one piece of background work, timeouts, and the inbox. `None` if the shard is broken.
    pub fn turn(&self) -> Option<Turn> {
        self.enter(|shard| {
            shard.due_ticks();
            for _ in 0..WORK_PER_TURN {
                shard.run_background();
            }
            shard.check_watch_timeouts();
            shard.expire_waiting_for_map();
            shard.run_due_agents();
        })?;
        Some(self.pending())
    }

    /// When the shard needs its next turn.
    pub fn pending(&self) -> Turn {
        let (next_ns, busy) = self.inspect(|shard| (shard.next_ns(), !shard.background.is_empty()));
        Turn { next_ns, busy: busy || !self.inbox.is_empty() }
    }

    /// The inbox for messages to the shard; the shard's driver waits on it.
    pub fn inbox(&self) -> &Inbox {
        &self.inbox
    }
}

/// When a shard needs its next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The time of the next deadline, CLOCK_BOOTTIME.
    pub next_ns: Option<u64>,
    /// Whether there is more work now; other tasks may run in between.
    pub busy: bool,
}

/// The limits of the op tracker from the options.
pub fn tracker_limits(options: &Options) -> TrackerLimits {
    let osd = &options.osd;
    TrackerLimits {
        complaint_ns: osd.osd_op_complaint_time.as_nanos() as u64,
        history_size: osd.osd_op_history_size as usize,
        history_ns: osd.osd_op_history_duration.as_nanos() as u64,
        slow_size: osd.osd_op_history_slow_op_size as usize,
        slow_ns: osd.osd_op_history_slow_op_threshold.as_nanos() as u64,
    }
}

/// The most object contexts that a shard caches.
const CONTEXTS_PER_SHARD: usize = 16 * 1024;

/// Passing events and executing commands.
impl Shard {
    /// Handles the messages in the inbox, but no more than one turn allows. The shard's task is woken for the rest, so that
    /// timers and sockets are served in between.
    fn settle(&mut self) {
        let end_ns = self.now_ns + TURN_NS;
        let (mut handled, mut looked) = (0, 0);
        self.run_deferred();
        loop {
            let mut messages = std::mem::take(&mut self.messages);
            let mut committed = std::mem::take(&mut self.committed);
            let some = self.inbox.take(MESSAGES_PER_BATCH, &mut messages, &mut committed);
            handled += messages.len() + usize::from(!committed.is_empty());
            if some {
                if !self.shared.settings.breaks(Mutation::JudgeByTurn) {
                    // However long the turn waited for the store: messages that arrived in the meantime are judged by a time
                    // after their arrival.
                    self.now_ns = self.shared.world.boot_ns();
                }
                self.on_committed(&mut committed);
                self.run_deferred();
                for message in messages.drain(..) {
                    self.on_message(message);
                    self.run_deferred();
                }
            }
            (self.messages, self.committed) = (messages, committed);
            if !some {
                return;
            }
            if handled - looked >= MESSAGES_PER_BATCH {
                looked = handled;
                self.now_ns = self.shared.world.boot_ns();
            }
            if handled >= MESSAGES_PER_TURN || self.now_ns >= end_ns {
                self.inbox.wake_task();
                return;
            }
        }
    }

    fn on_message(&mut self, message: ShardMessage) {
        if self.halted {
            return;
        }
        match message {
            ShardMessage::Map { map, up, unlisted } => self.on_map(map, up, unlisted),
            ShardMessage::Client(arrival) => self.on_request(*arrival),
            ShardMessage::Peer { from, envelope, permit } => {
                self.on_peer(from, *envelope);
                drop(permit);
            }
            ShardMessage::Cas(reply) => {
                if let Some(slot) = self.by_pg.get(&reply.pg) {
                    self.feed(*slot, PgEvent::Cas(reply));
                }
            }
            ShardMessage::PeerReset(osd) => {
                self.links.remove(&osd);
                self.feed_all(|| PgEvent::PeerReset(osd));
            }
            ShardMessage::Fetched { arrival, fetched } => self.on_fetched(*arrival, fetched),
            ShardMessage::PromotionRead { ticket, fetched } => self.on_promotion_read(ticket, fetched),
            ShardMessage::TierReply { ticket, reply } => self.on_tier_reply(ticket, reply),
            ShardMessage::WatchConnClosed(conn) => self.on_watch_conn_closed(conn),
            ShardMessage::RemoveUnfound(pg) => self.remove_unfound(pg),
            ShardMessage::Reserved(pg) => match self.by_pg.get(&pg) {
                Some(slot) => self.feed(*slot, PgEvent::Reserved),
                None => self.shared.release_recovery(pg),
            },
            ShardMessage::TargetReserved(pg) => match self.by_pg.get(&pg) {
                // Its primary repeats the request until there is room.
                Some(_) if self.shared.backfill_full.load(Ordering::Relaxed) => {
                    self.shared.release_remote_backfill(pg)
                }
                Some(slot) => self.feed(*slot, PgEvent::RemoteBackfillReserved),
                None => self.shared.release_remote_backfill(pg),
            },
            ShardMessage::TargetTooFull(pg) => {
                if let Some(slot) = self.by_pg.get(&pg) {
                    self.feed(*slot, PgEvent::RemoteBackfillTooFull);
                }
            }
            ShardMessage::Space { from, space_bytes } => self.space.set_available(from, space_bytes),
            ShardMessage::Leases => self.feed_all(|| PgEvent::Leases),
            ShardMessage::TrackerLimits(limits) => self.tracker.set_limits(limits),
        }
    }

    fn feed_all(&mut self, event: impl Fn() -> PgEvent) {
        for slot in 0..self.slots.len() as u32 {
            if self.slots[slot as usize].is_some() {
                self.feed(slot, event());
            }
        }
    }

    /// Passes an event to a machine and executes its commands.
    fn feed(&mut self, slot: u32, event: PgEvent) {
        if self.halted {
            return;
        }
        let mut commands = self.spare.pop().unwrap_or_default();
        self.tell_machine(slot, event, &mut commands);
        self.carry_out_all(slot, &mut commands);
        self.spare.push(commands);
        self.after_event(slot);
    }

    fn tell_machine(&mut self, slot: u32, event: PgEvent, commands: &mut Vec<PgCommand>) {
        let Some(hosted) = self.slots[slot as usize].as_mut() else { return };
        let heartbeats = self.shared.heartbeats.lock();
        hosted.machine.handle(self.now_ns, &heartbeats.lease_snapshot(self.now_ns), event, commands);
    }

    /// Executes commands in order, but the machine's commands in answer to an execution before the rest. Each execution may
    /// start the next one: a stack of commands keeps the call depth independent of the number of waiting requests.
    fn carry_out_all(&mut self, slot: u32, commands: &mut Vec<PgCommand>) {
        commands.reverse();
        while let Some(command) = commands.pop() {
            if self.halted {
                commands.clear();
                break;
            }
            let PgCommand::Execute { token, version } = command else {
                self.carry_out(slot, command);
                continue;
            };
            // The changes of earlier executions have been queued by now.
            self.reservations.clear();
            let outcome = self.execute(slot, token, version);
            if !matches!(
                outcome,
                ExecuteReply::Read | ExecuteReply::Withdrawn | ExecuteReply::Damaged { removal: None }
            ) && let Some(hosted) = self.slots[slot as usize].as_ref()
            {
                let (pg, interval) = (hosted.pg, version.interval);
                self.shared.world.observe(Observation::Ordered { pg, interval });
            }
            let breaks = |rule| self.shared.settings.breaks(rule);
            let is_read = matches!(outcome, ExecuteReply::Read);
            if is_read && !breaks(Mutation::JudgeBeforeRead) && !breaks(Mutation::JudgeByTurn) {
                // However long the store took: leases are judged by a time after the read (rule R4).
                self.now_ns = self.shared.world.boot_ns();
            }
            let mut said = self.spare.pop().unwrap_or_default();
            self.tell_machine(slot, PgEvent::Executed { token, outcome }, &mut said);
            commands.extend(said.drain(..).rev());
            self.spare.push(said);
        }
        self.reservations.clear();
    }

    /// Handles the consequences of a machine's new state.
    fn after_event(&mut self, slot: u32) {
        let Some(hosted) = self.slots[slot as usize].as_mut() else { return };
        if let Some(at) = hosted.machine.next_wake()
            && at < hosted.tick_ns
        {
            hosted.tick_ns = at;
            self.timers.push(Reverse((at, slot)));
            // The task sleeps until the earliest timer that it knows.
            if self.timers.peek() == Some(&Reverse((at, slot))) {
                self.inbox.wake_task();
            }
        }
        let active = hosted.machine.is_active();
        if active != hosted.active {
            hosted.active = active;
            if active {
                self.background.push_back(BackgroundWork::Sums { slot });
                self.inbox.wake_task();
            } else {
                hosted.sums = SumsTracker::default();
            }
            self.shared.report.notify_one();
            self.update_cache_state(slot);
        }
    }

    fn carry_out(&mut self, slot: u32, command: PgCommand) {
        // The machine assumes that the refused change was made, so its commands do not count any more.
        if self.halted {
            return;
        }
        match command {
            PgCommand::Execute { .. } => self.carry_out_all(slot, &mut vec![command]),
            PgCommand::Persist { id, txn } => self.persist(slot, id, txn),
            PgCommand::Send { to, msg } => self.send(slot, to, msg),
            PgCommand::Reply { token } => self.reply(slot, token),
            PgCommand::ReplyDup { token, version, result } => self.reply_dup(slot, token, version, &result),
            PgCommand::Drop { token, reason } => self.backoff_request(slot, token, reason),
            PgCommand::Refuse { token, errno } => self.refuse(slot, token, errno),
            PgCommand::Forget { token } => self.forget_superseded(slot, token),
            PgCommand::Propose(cas) => self.propose(cas),
            PgCommand::ReadObject { read, object, cursor, max_bytes } => {
                self.background.push_back(BackgroundWork::Read { slot, read, object, cursor, max_bytes });
                self.inbox.wake_task();
            }
            PgCommand::ListObjects { list, from, max } => {
                self.background.push_back(BackgroundWork::List { slot, list, from, max });
                self.inbox.wake_task();
            }
            PgCommand::Reserve { backfill, priority } => {
                if let Some(hosted) = self.slots[slot as usize].as_ref() {
                    self.shared.reserve_recovery(hosted.pg, backfill, priority);
                }
            }
            PgCommand::Release => {
                if let Some(hosted) = self.slots[slot as usize].as_ref() {
                    self.shared.release_recovery(hosted.pg);
                }
            }
            PgCommand::ReserveRemoteBackfill { priority } => {
                if let Some(hosted) = self.slots[slot as usize].as_ref() {
                    self.shared.reserve_remote_backfill(hosted.pg, priority);
                }
            }
            PgCommand::ReleaseRemoteBackfill => {
                if let Some(hosted) = self.slots[slot as usize].as_ref() {
                    self.shared.release_remote_backfill(hosted.pg);
                }
            }
            PgCommand::Invalidate { object } => self.invalidate_contexts(slot, object.as_ref()),
            PgCommand::RemovePg => self.remove_pg(slot),
        }
    }

    fn persist(&mut self, slot: u32, id: u64, txn: Transaction) {
        let token = txn_token(slot, id);
        if txn.ops.is_empty() && !self.inflight.has(slot) {
            // A machine without a copy waits for nothing: there is no collection to write to.
            self.inbox.committed(&[token]);
            return;
        }
        self.metrics.transactions.inc();
        self.shared.consume_space(txn.payload_bytes() as u64);
        self.inflight.push(token, self.now_ns);
        let sink = Arc::clone(&self.inbox);
        if let Err(error) = self.shared.store.queue_transaction(&txn, Some(Completion { sink, token })) {
            self.inflight.cancel_last();
            self.refused(slot, id, txn, &error);
        }
    }

    /// Handles a transaction that the store refused. For a damaged object, the machine knows an alternative. Otherwise an
    /// ordered update must be applied, and a member that can't must stop (rule R8).
    fn refused(&mut self, slot: u32, id: u64, txn: Transaction, error: &StoreError) {
        let pg = txn.collection;
        let why = match error {
            StoreError::NoSpace { .. } => Some(StoreRefusal::Full),
            error => error.is_damage().then_some(StoreRefusal::Damaged),
        };
        let mut commands = Vec::new();
        let goes_on = why.is_some_and(|why| {
            let hosted = self.slots[slot as usize].as_mut();
            hosted.is_some_and(|hosted| {
                hosted.machine.on_store_refused(self.now_ns, id, txn, why, &mut commands)
            })
        });
        if !goes_on {
            self.halted = true;
            return self.shared.store_failed(&format!("{pg}: a change could not be applied"), error);
        }
        tracing::error!(%pg, %error, "a change of an object could not be applied: a copy of it is fetched");
        for command in commands {
            self.carry_out(slot, command);
        }
        self.after_event(slot);
    }

    /// Handles the completions of a group commit: each machine gets one event, for its newest.
    fn on_committed(&mut self, tokens: &mut Vec<u64>) {
        if tokens.is_empty() {
            return;
        }
        self.metrics.commit_batches.inc();
        let mut slots: Vec<u32> = Vec::with_capacity(8);
        for token in tokens.drain(..) {
            let (slot, completed) = (token_slot(token), self.inflight.complete(token));
            if let Some(queued_ns) = completed.queued_ns {
                self.metrics.commit_latency.record(self.now_ns.saturating_sub(queued_ns));
            }
            let Some(id) = completed.up_to else { continue };
            if let Some(hosted) = self.slots[slot as usize].as_mut()
                && hosted.committed.replace(id).is_none()
            {
                slots.push(slot);
            }
        }
        for slot in slots {
            if let Some(persist) =
                self.slots[slot as usize].as_mut().and_then(|hosted| hosted.committed.take())
            {
                self.feed(slot, PgEvent::Committed { persist });
            }
        }
    }

    fn send(&mut self, slot: u32, to: OsdId, msg: PeerMsg) {
        let Some(hosted) = self.slots[slot as usize].as_ref() else { return };
        let space_bytes = self.shared.space_bytes.load(Ordering::Relaxed);
        let envelope = PgEnvelope { pg: hosted.pg, space_bytes, msg };
        tracing::trace!(pg = %envelope.pg, %to, msg = ?envelope.msg, "to a peer");
        if let Some(conn) = self.links.get(&to) {
            match conn.send(&envelope) {
                Ok(()) => return,
                Err(error) if is_too_big(&error) => return refuse_message(&envelope, to, &error),
                Err(error) => self.lose_link(to, &error),
            }
        }
        match self.shared.world.peer(to, self.index) {
            // The map shows no process: the machine learns this from the map.
            Ok(None) => {}
            Ok(Some(conn)) => match conn.send(&envelope) {
                Ok(()) => {
                    self.links.insert(to, conn);
                }
                Err(error) if is_too_big(&error) => {
                    self.links.insert(to, conn);
                    refuse_message(&envelope, to, &error);
                }
                Err(error) => self.lose_link(to, &error),
            },
            Err(error) => tracing::debug!(%to, %error, "no connection to a peer"),
        }
    }

    /// Handles a message that could not be queued: earlier messages count as lost too, for all PGs.
    fn lose_link(&mut self, to: OsdId, error: &nacre_common::error::Error) {
        tracing::warn!(%to, %error, "messages to a peer were lost");
        self.links.remove(&to);
        self.shared.world.drop_peer(to);
        self.shared.post_all(|| ShardMessage::PeerReset(to));
    }

    fn propose(&mut self, mut cas: PgCas) {
        cas.tid = self.shared.next_mon_tid();
        self.shared.to_mon(&cas);
    }

    fn due_ticks(&mut self) {
        while let Some(Reverse((at, slot))) = self.timers.peek().copied() {
            if at > self.now_ns {
                break;
            }
            self.timers.pop();
            let Some(hosted) = self.slots[slot as usize].as_mut() else { continue };
            // An earlier timer may have replaced this one.
            if hosted.tick_ns == at {
                hosted.tick_ns = u64::MAX;
                hosted.machine.set_too_full(|osd| self.space.is_full(osd));
                self.feed(slot, PgEvent::Tick);
            }
        }
    }
}

/// Marks a collection that is being removed: its remaining objects do not count as a copy of the PG.
pub const REMOVING_KEY: &str = "removing";

/// The number of log entries read from the store at a time.
const LOG_PAGE: usize = 1024;

/// Queries and other requests from outside.
impl Shard {
    /// Drops connections and requests, because they keep the owner of the shard alive.
    pub fn close(&mut self) {
        self.links.clear();
        self.early = WaitingForMap::default();
        self.ops = InflightOps::default();
        self.watches = watches::new_watch_table(&self.shared);
        self.copies = PendingCopies::default();
        self.tiers = TierObjects::default();
        let (mut messages, mut committed) = (Vec::new(), Vec::new());
        self.inbox.take(usize::MAX, &mut messages, &mut committed);
    }

    /// The time of the next deadline.
    fn next_ns(&self) -> Option<u64> {
        let tick = self.timers.peek().map(|Reverse((at, _))| *at);
        [tick, self.watches.next_ns(), self.early.next_expiry_ns(), self.next_agent_ns()]
            .into_iter()
            .flatten()
            .min()
    }

    /// The PGs hosted, in no particular order.
    pub fn pgs(&self) -> impl Iterator<Item = PgId> {
        self.by_pg.keys().copied()
    }

    /// A hosted PG's machine.
    pub fn machine(&self, pg: PgId) -> Option<&Pg> {
        let slot = self.by_pg.get(&pg)?;
        self.slots[*slot as usize].as_ref().map(|hosted| &hosted.machine)
    }

    /// The number of requests that the shard holds.
    pub fn held_requests(&self) -> usize {
        self.ops.len() + self.early.len() + self.tiers.held()
    }

    /// The number of PGs hosted.
    pub fn pg_count(&self) -> usize {
        self.by_pg.len()
    }

    /// Adds the OSDs that share a PG with this one to `into`.
    pub fn neighbours(&self, into: &mut std::collections::BTreeSet<OsdId>) {
        let Some(map) = &self.map else { return };
        for pg in self.by_pg.keys() {
            into.extend(self.up.get(pg).into_iter().flatten());
            into.extend(map.membership(*pg).into_iter().flat_map(|m| m.in_sync.iter().map(|m| m.osd)));
        }
    }

    /// The ops in flight and the recent ones.
    pub fn tracker(&self) -> &OpTracker {
        &self.tracker
    }

    /// The same, mutable, to log ops or to change the limits.
    pub fn tracker_mut(&mut self) -> &mut OpTracker {
        &mut self.tracker
    }

    /// The numbers of PGs that this OSD is primary of, replica of, and has a copy of without being a member.
    pub fn pg_roles(&self) -> [u64; 3] {
        let whoami = self.shared.whoami;
        let mut roles = [0; 3];
        for pg in self.by_pg.keys() {
            let membership = self.map.as_ref().and_then(|map| map.membership(*pg));
            let role = match membership {
                Some(m) if m.primary == whoami => 0,
                Some(m) if m.in_sync.iter().any(|member| member.osd == whoami) => 1,
                _ => 2,
            };
            roles[role] += 1;
        }
        roles
    }

    /// Pools of which this OSD has PGs.
    pub fn pools(&self) -> impl Iterator<Item = nacre_types::PoolId> {
        self.by_pg.keys().map(|pg| pg.pool)
    }

    /// The watchers of objects (`dump_watchers`).
    pub fn dump_watchers(&self) -> Vec<serde_json::Value> {
        self.watches.dump(|conn| conn.peer_addr().to_string())
    }

    /// The answer to `pg query`.
    pub fn query(&mut self, pg: PgId) -> Option<nacre_pg::PgQuery> {
        let hosted = self.slots[*self.by_pg.get(&pg)? as usize].as_mut()?;
        let mut query = hosted.machine.query(hosted.sums.current().objects, self.shared.world.wall_ns());
        hosted.complete(&mut query.stats);
        Some(query)
    }

    /// Statistics of PGs that this OSD is primary of: those that changed since the last call, or all.
    pub fn report(&mut self, all: bool) -> Vec<PgStats> {
        let epoch = self.map.as_ref().map_or(Epoch(0), |map| map.epoch);
        let now_ns = self.shared.world.wall_ns();
        let mut out = Vec::new();
        for slot in 0..self.slots.len() {
            let Some(hosted) = self.slots[slot].as_mut() else { continue };
            let primary = self.map.as_ref().and_then(|map| map.membership(hosted.pg)).map(|m| m.primary);
            if primary != Some(self.shared.whoami) {
                continue;
            }
            let mut stats = hosted.machine.stats(hosted.sums.current().objects, now_ns);
            hosted.complete(&mut stats);
            let times = (stats.last_active_ns, stats.last_clean_ns);
            // Values that change with every report are no reason for a report.
            (stats.reported_epoch, stats.reported_seq) = (Epoch(0), 0);
            (stats.last_active_ns, stats.last_clean_ns) = (0, 0);
            // The map authority waits for reports that were made with a map that contains the change of a tier.
            let changed = self
                .map
                .as_ref()
                .and_then(|map| map.pools.get(&hosted.pg.pool))
                .map_or(Epoch(0), |pool| pool.tiering.mode_epoch.max(pool.tiering.overlay_epoch));
            let told = hosted.reported_at >= changed && hosted.reported.as_ref() == Some(&stats);
            if !all && told {
                continue;
            }
            hosted.reported_at = epoch;
            hosted.report_seq += 1;
            hosted.reported = Some(stats.clone());
            (stats.reported_epoch, stats.reported_seq) = (epoch, hosted.report_seq);
            (stats.last_active_ns, stats.last_clean_ns) = times;
            out.push(stats);
        }
        out
    }
}

impl Hosted {
    /// Adds the values that only the host knows.
    fn complete(&self, stats: &mut PgStats) {
        stats.sums = self.sums.current();
        stats.sums_complete = self.sums.is_complete() && stats.unfound == 0;
        stats.io = self.io;
        stats.stored_bytes = stats.sums.bytes;
    }
}
