//! Which objects of cache tiers something is under way for, and who waits for them.

use super::super::ops::{InflightOp, Outcome};
use super::agent::PgCopies;
use super::dirty_log::LogRequest;
use crate::copy::HeldCopy;
use nacre_exec::tier::Change;
use nacre_tier::hit_set::history::Recorded;
use nacre_types::id_map::IdMap;
use nacre_types::ids::{Epoch, Eversion, Interval};
use nacre_types::object::ObjectId;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

/// What a tier knows of an operation.
#[derive(Default)]
pub(in super::super) struct TierState {
    /// The base's answer: all that is left is to tell it.
    pub(in super::super) answer: Option<Outcome>,
    /// The other pool did not execute it.
    pub(in super::super) is_checked: bool,
    /// The object is absent in the base, where it had at most this user version.
    pub(in super::super) absent: Option<u64>,
    /// It is proxied: its object can't be promoted.
    pub(in super::super) goes_past: bool,
    /// Its access was recorded: it counts once, however often it is executed.
    pub(in super::super) recorded: Option<Recorded>,
    /// It waited for the agent to make room.
    pub(in super::super) has_waited: bool,
    /// It is answered so once the base has its object in this version or a later one.
    pub(in super::super) after_flush: Option<(Outcome, Eversion)>,
    /// The base has what it was executed on.
    pub(in super::super) is_flushed: bool,
    /// The OSD's own change.
    pub(in super::super) own: Option<Own>,
}

impl TierState {
    /// Of a change of the PG's own objects.
    pub(super) fn internal() -> TierState {
        TierState { own: Some(Own::Internal), ..TierState::default() }
    }
}

/// A change of an object that no client asked for: see [`nacre_exec::tier::Change`].
pub(in super::super) enum Own {
    /// It becomes a copy of the base's.
    Promote {
        /// What was read.
        copy: HeldCopy,
        /// By which map.
        epoch: Epoch,
    },
    /// Another change.
    Change(Change<'static>),
    /// An object of the PG's own is written or removed, by ops.
    Internal,
}

/// What an object is busy with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// The base's is read and becomes the cache's.
    Promote,
    /// So many operations are with the base.
    Proxy(usize),
    /// The other pool is asked about a resend.
    Query,
    /// The OSD changes it itself.
    Own,
    /// Writes wait for room in the cache.
    Room,
    /// Its name is on its way to the base, which has the names of what is dirty.
    Log,
    /// Nothing: what waited goes on once no machine waits for an execution. Operations that waited in the PG's machine meanwhile
    /// come after it.
    Resume,
    /// Its changes are on their way to the base, and operations wait for that: those that come now are executed after it, so that
    /// the next flush has the changes of all of them.
    Flush,
}

/// A busy object.
pub(super) struct Busy {
    slot: u32,
    work: Work,
    /// It is promoted when the base has answered.
    promotes_then: bool,
    waiting: VecDeque<Box<InflightOp>>,
}

impl Busy {
    pub(super) fn new(slot: u32, work: Work) -> Busy {
        Busy { slot, work, promotes_then: false, waiting: VecDeque::new() }
    }
}

/// A question to the other pool. Each names the interval in which it was asked: in another one its answer does not count.
pub(super) enum Ask {
    Promotion { slot: u32, object: ObjectId, interval: Interval, epoch: Epoch },
    Proxied { slot: u32, interval: Interval, op: Box<InflightOp> },
    Query { slot: u32, interval: Interval, op: Box<InflightOp> },
    Confirm { op: Box<InflightOp>, outcome: Outcome },
    Flush { slot: u32, interval: Interval, object: ObjectId, epoch: Epoch },
    Log { slot: u32, interval: Interval, what: LogRequest },
}

/// An object whose changes are on their way to the base.
pub(super) struct Flush {
    pub(super) slot: u32,
    /// When it began.
    pub(super) began_ns: u64,
    /// The version that is flushed.
    pub(super) version: Eversion,
    pub(super) is_whiteout: bool,
    /// Operations that are answered or go on when it is done, and whether they insist.
    pub(super) waiting: Vec<(Box<InflightOp>, bool)>,
    /// How often it started over since the object was changed.
    pub(super) restarts: u32,
    /// How often the base refused it.
    pub(super) refusals: u32,
    /// When it is tried again, if the base refused it.
    pub(super) retry_ns: Option<u64>,
}

impl Flush {
    /// Takes out the operations that are answered now that the base has the object in `version`.
    pub(super) fn take_flushed(&mut self, version: Eversion) -> Vec<(Box<InflightOp>, Outcome)> {
        let is_done = |op: &mut Box<InflightOp>| {
            op.tier.after_flush.take_if(|(_, needed)| *needed <= version).map(|(outcome, _)| outcome)
        };
        let (mut done, mut rest) = (Vec::new(), Vec::new());
        for (mut op, insists) in std::mem::take(&mut self.waiting) {
            match is_done(&mut op) {
                Some(outcome) => done.push((op, outcome)),
                None => rest.push((op, insists)),
            }
        }
        self.waiting = rest;
        done
    }

    /// Whether clients' answers wait for it.
    pub(super) fn holds_answers(&self) -> bool {
        self.waiting.iter().any(|(op, _)| op.tier.after_flush.is_some())
    }

    /// Whether an operation waits that an earlier state in the base does not satisfy.
    pub(super) fn must_go_on(&self) -> bool {
        self.waiting.iter().any(|(op, insists)| *insists || op.tier.after_flush.is_some())
    }
}

/// Something to be done once no machine waits for an execution.
pub(super) enum Deferred {
    /// What waited for an object goes on.
    Resume(ObjectId),
    /// An operation is answered.
    Tell { slot: u32, op: Box<InflightOp>, outcome: Outcome },
    /// An operation is executed although it was before.
    Repeat { slot: u32, op: Box<InflightOp> },
    /// An object changes on the OSD's own account.
    Change { slot: u32, object: ObjectId, own: Own },
}

/// See the module's documentation.
#[derive(Default)]
pub(in super::super) struct TierObjects {
    busy: BTreeMap<ObjectId, Busy>,
    asks: IdMap<u64, Ask>,
    pub(super) flushes: BTreeMap<ObjectId, Flush>,
    /// Clients' evictions under way.
    pub(super) evictions: BTreeMap<ObjectId, Box<InflightOp>>,
    /// How many copies of caches' PGs OSDs have.
    pub(super) copies: PgCopies,
    /// When agents look at their PGs, by slot.
    pub(super) agents: BinaryHeap<Reverse<(u64, u32)>>,
    pub(super) deferred: VecDeque<Deferred>,
    /// When a client's request came last.
    pub(in super::super) client_ns: u64,
    /// Until when flushing at low speed rests beside clients.
    pub(super) flush_rests_until_ns: u64,
    last_ticket: u64,
    parked: usize,
    asked: usize,
}

impl TierObjects {
    /// Whether something is under way that keeps operations on the object waiting.
    pub(super) fn is_busy(&self, object: &ObjectId) -> bool {
        !self.busy.is_empty() && self.busy.contains_key(object)
    }

    /// Whether operations are in the base's hands.
    pub(super) fn is_proxying(&self, object: &ObjectId) -> bool {
        self.busy.get(object).is_some_and(|busy| matches!(busy.work, Work::Proxy(_)))
    }

    /// Whether all that is under way is operations in the base's hands.
    pub(super) fn only_proxies(&self, object: &ObjectId) -> bool {
        let proxies = |busy: &Busy| matches!(busy.work, Work::Proxy(_)) && busy.waiting.is_empty();
        self.busy.get(object).is_some_and(proxies)
    }

    /// Likewise, but for writes that wait for the agent.
    pub(super) fn is_at_work(&self, object: &ObjectId) -> bool {
        self.busy.get(object).is_some_and(|busy| busy.work != Work::Room)
    }

    /// Whether operations on the object wait until the base has its name.
    pub(super) fn is_logging(&self, object: &ObjectId) -> bool {
        self.busy.get(object).is_some_and(|busy| busy.work == Work::Log)
    }

    /// Whether operations on the object wait for its flush.
    pub(super) fn waits_for_flush(&self, object: &ObjectId) -> bool {
        self.busy.get(object).is_some_and(|busy| busy.work == Work::Flush)
    }

    /// Flushes of a PG that are to be tried again by now.
    pub(super) fn flushes_to_retry(&self, slot: u32, now_ns: u64) -> Vec<ObjectId> {
        let is_due = |flush: &Flush| flush.slot == slot && flush.retry_ns.is_some_and(|at| at <= now_ns);
        self.flushes.iter().filter(|(_, flush)| is_due(flush)).map(|(object, _)| object.clone()).collect()
    }

    pub(super) fn is_promoting(&self, object: &ObjectId) -> bool {
        self.busy.get(object).is_some_and(|busy| busy.work == Work::Promote)
    }

    /// Whether what waited for the object is about to go on, and nothing else is under way.
    pub(super) fn is_resuming(&self, object: &ObjectId) -> bool {
        self.busy.get(object).is_some_and(|busy| busy.work == Work::Resume)
    }

    /// Operations of clients that are kept here.
    pub(in super::super) fn held(&self) -> usize {
        let flushes: usize = self.flushes.values().map(|flush| flush.waiting.len()).sum();
        self.parked + self.asked + flushes + self.evictions.len()
    }

    /// Marks an object as busy. What is about to go on waits again.
    pub(super) fn begin(&mut self, object: &ObjectId, mut busy: Busy) {
        if let Some(before) = self.busy.remove(object) {
            debug_assert!(before.work == Work::Resume, "{object} is busy: {:?}", before.work);
            busy.waiting = before.waiting;
            busy.waiting.iter_mut().for_each(|op| op.tier.absent = None);
        }
        self.busy.insert(object.clone(), busy);
    }

    pub(super) fn begin_proxy(&mut self, object: &ObjectId, slot: u32, promotes_then: bool) {
        let busy = self.busy.entry(object.clone()).or_insert_with(|| Busy::new(slot, Work::Proxy(0)));
        busy.promotes_then |= promotes_then;
        if let Work::Proxy(count) = &mut busy.work {
            *count += 1;
        }
    }

    /// An operation came back from the base. After the last one: whether the object is to be promoted.
    pub(super) fn end_proxy(&mut self, object: &ObjectId) -> Option<bool> {
        let busy = self.busy.get_mut(object)?;
        let Work::Proxy(count) = &mut busy.work else { return None };
        *count = count.saturating_sub(1);
        (*count == 0).then_some(busy.promotes_then)
    }

    /// Objects of a PG whose writes wait for room.
    pub(super) fn waiting_for_room(&self, slot: u32) -> Vec<ObjectId> {
        let waits = |busy: &Busy| busy.slot == slot && busy.work == Work::Room;
        self.busy.iter().filter(|(_, busy)| waits(busy)).map(|(object, _)| object.clone()).collect()
    }

    /// Changes of the OSD's own under way.
    pub(super) fn own_changes(&self) -> usize {
        self.busy.values().filter(|busy| busy.work == Work::Own).count()
    }

    /// Lets an operation wait for a busy object; hands it back where the object is not.
    pub(super) fn park(&mut self, object: &ObjectId, mut op: Box<InflightOp>) -> Result<(), Box<InflightOp>> {
        // What the base has may be another by the time that it goes on.
        op.tier.absent = None;
        match self.busy.get_mut(object) {
            Some(busy) => {
                busy.waiting.push_back(op);
                self.parked += 1;
                Ok(())
            }
            None => Err(op),
        }
    }

    /// Operations that waited go on, before all others that wait for the object: where it is busy, after that. Returns whether they
    /// are to go on now.
    pub(super) fn resume(&mut self, object: &ObjectId, ops: VecDeque<Box<InflightOp>>) -> bool {
        let Some(slot) = ops.front().map(|op| op.slot) else { return false };
        self.parked += ops.len();
        if let Some(busy) = self.busy.get_mut(object) {
            for mut op in ops.into_iter().rev() {
                op.tier.absent = None;
                busy.waiting.push_front(op);
            }
            return false;
        }
        let busy = Busy { waiting: ops, ..Busy::new(slot, Work::Resume) };
        self.busy.insert(object.clone(), busy);
        true
    }

    /// The object is busy no more. Returns who waited, in order.
    pub(super) fn end(&mut self, object: &ObjectId) -> VecDeque<Box<InflightOp>> {
        let waiting = self.busy.remove(object).map(|busy| busy.waiting).unwrap_or_default();
        self.parked -= waiting.len();
        waiting
    }

    /// Notes a question; its answer comes with the ticket.
    pub(super) fn ask(&mut self, ask: Ask) -> u64 {
        self.asked += usize::from(matches!(ask, Ask::Proxied { .. } | Ask::Query { .. }));
        self.last_ticket += 1;
        self.asks.insert(self.last_ticket, ask);
        self.last_ticket
    }

    pub(super) fn answered(&mut self, ticket: u64) -> Option<Ask> {
        let ask = self.asks.remove(&ticket)?;
        self.asked -= usize::from(matches!(ask, Ask::Proxied { .. } | Ask::Query { .. }));
        Some(ask)
    }

    /// Forgets what is under way in a PG, but for what is with the other pool. Returns the operations that waited.
    pub(super) fn drop_slot(&mut self, slot: u32) -> VecDeque<Box<InflightOp>> {
        let mut dropped = VecDeque::new();
        let of_slot = |busy: &Busy| busy.slot == slot;
        let objects: Vec<_> =
            self.busy.iter().filter(|(_, busy)| of_slot(busy)).map(|(o, _)| o.clone()).collect();
        for object in objects {
            dropped.extend(self.end(&object));
        }
        let objects: Vec<_> =
            self.flushes.iter().filter(|(_, flush)| flush.slot == slot).map(|(o, _)| o.clone()).collect();
        for object in objects {
            let flush = self.flushes.remove(&object);
            dropped.extend(flush.into_iter().flat_map(|flush| flush.waiting).map(|(op, _)| op));
        }
        let objects: Vec<_> =
            self.evictions.iter().filter(|(_, op)| op.slot == slot).map(|(o, _)| o.clone()).collect();
        dropped.extend(objects.iter().filter_map(|object| self.evictions.remove(object)));
        dropped
    }
}
