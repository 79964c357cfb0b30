//! The objects of cache tiers with work in progress, and the operations that wait for them.

use super::super::ops::{InflightOp, OpOutcome};
use super::agent::PgCopyCounts;
use super::dirty_log::DirtyLogRequest;
use crate::copy::AdmittedCopy;
use nacre_exec::tier::TierChange;
use nacre_tier::hit_set::history::AccessRecord;
use nacre_types::id_map::IdMap;
use nacre_types::ids::{Epoch, Eversion, Interval};
use nacre_types::object::ObjectId;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

/// The state of an operation in a tier.
#[derive(Default)]
pub(in super::super) struct TierOpState {
    /// The base's answer, which only has to be sent.
    pub(in super::super) answer: Option<OpOutcome>,
    /// Whether the other pool did not execute it.
    pub(in super::super) is_checked: bool,
    /// If the object is absent in the base, its highest user version there.
    pub(in super::super) absent: Option<u64>,
    /// Whether it is proxied because its object can't be promoted.
    pub(in super::super) must_proxy: bool,
    /// Its recorded access: it counts once, however often it is executed.
    pub(in super::super) recorded: Option<AccessRecord>,
    /// Whether it waited for the agent to make room.
    pub(in super::super) has_waited: bool,
    /// Its outcome, sent once the base has its object in this version or a later one.
    pub(in super::super) after_flush: Option<(OpOutcome, Eversion)>,
    /// Whether the base has the state that it was executed on.
    pub(in super::super) is_flushed: bool,
    /// The OSD's own change.
    pub(in super::super) own: Option<InternalChange>,
}

impl TierOpState {
    /// Creates the state of a change of the PG's own objects.
    pub(super) fn internal() -> TierOpState {
        TierOpState { own: Some(InternalChange::Internal), ..TierOpState::default() }
    }
}

/// A change of an object that no client requested: see [`nacre_exec::tier::TierChange`].
pub(in super::super) enum InternalChange {
    /// The object becomes a copy of the base's object.
    Promote {
        /// The copy.
        copy: AdmittedCopy,
        /// The epoch of the map under which it was read.
        epoch: Epoch,
    },
    /// Another change.
    Change(TierChange<'static>),
    /// Ops write or remove an object of the PG's own.
    Internal,
}

/// The work in progress on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObjectWork {
    /// The base's object is read and becomes the cache's.
    Promote,
    /// This many operations are proxied to the base.
    Proxy(usize),
    /// The other pool is queried about a resend.
    Query,
    /// The OSD changes it without a client's request.
    Own,
    /// Writes wait for room in the cache.
    Room,
    /// Its name is being recorded in the base.
    Log,
    /// None: the waiting operations resume once no machine waits for an execution. Operations that waited in the PG's machine
    /// in the meantime follow them.
    Resume,
    /// Its changes are being flushed, and operations wait for that. Operations that arrive now are executed after the flush, so
    /// that the next flush has the changes of all of them.
    Flush,
}

/// A busy object.
pub(super) struct BusyObject {
    slot: u32,
    work: ObjectWork,
    /// Whether it is promoted when the base has answered.
    promotes_then: bool,
    waiting: VecDeque<Box<InflightOp>>,
}

impl BusyObject {
    pub(super) fn new(slot: u32, work: ObjectWork) -> BusyObject {
        BusyObject { slot, work, promotes_then: false, waiting: VecDeque::new() }
    }
}

/// A request to the other pool. Each names the interval in which it was sent: in another interval, its answer does not count.
pub(super) enum TierRequest {
    Promotion { slot: u32, object: ObjectId, interval: Interval, epoch: Epoch },
    Proxied { slot: u32, interval: Interval, op: Box<InflightOp> },
    Query { slot: u32, interval: Interval, op: Box<InflightOp> },
    Confirm { op: Box<InflightOp>, outcome: OpOutcome },
    Flush { slot: u32, interval: Interval, object: ObjectId, epoch: Epoch },
    Log { slot: u32, interval: Interval, what: DirtyLogRequest },
}

/// An object whose changes are being flushed to the base.
pub(super) struct InflightFlush {
    pub(super) slot: u32,
    /// When the flush began.
    pub(super) began_ns: u64,
    /// The version that is flushed.
    pub(super) version: Eversion,
    pub(super) is_whiteout: bool,
    /// Operations that are answered or continue when it is done, and whether they require a clean object.
    pub(super) waiting: Vec<(Box<InflightOp>, bool)>,
    /// How often it started over because the object was changed.
    pub(super) restarts: u32,
    /// How often the base refused it.
    pub(super) refusals: u32,
    /// When it is retried, if the base refused it.
    pub(super) retry_ns: Option<u64>,
}

impl InflightFlush {
    /// Removes and returns the operations that are answered now that the base has the object in `version`.
    pub(super) fn take_flushed(&mut self, version: Eversion) -> Vec<(Box<InflightOp>, OpOutcome)> {
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
    pub(super) fn needs_newer_flush(&self) -> bool {
        self.waiting.iter().any(|(op, insists)| *insists || op.tier.after_flush.is_some())
    }
}

/// Work that is done once no machine waits for an execution.
pub(super) enum Deferred {
    /// Operations that waited for an object resume.
    Resume(ObjectId),
    /// An operation is answered.
    Reply { slot: u32, op: Box<InflightOp>, outcome: OpOutcome },
    /// An operation is executed again.
    Repeat { slot: u32, op: Box<InflightOp> },
    /// An object changes without a client's request.
    Change { slot: u32, object: ObjectId, own: InternalChange },
}

/// See the module's documentation.
#[derive(Default)]
pub(in super::super) struct TierObjects {
    busy: BTreeMap<ObjectId, BusyObject>,
    asks: IdMap<u64, TierRequest>,
    pub(super) flushes: BTreeMap<ObjectId, InflightFlush>,
    /// Clients' evictions in progress.
    pub(super) evictions: BTreeMap<ObjectId, Box<InflightOp>>,
    /// The numbers of copies of caches' PGs that OSDs have.
    pub(super) copies: PgCopyCounts,
    /// The times at which agents run, by slot.
    pub(super) agents: BinaryHeap<Reverse<(u64, u32)>>,
    pub(super) deferred: VecDeque<Deferred>,
    /// When the last client request arrived.
    pub(in super::super) client_ns: u64,
    /// The end of the rest from flushing at low speed beside clients.
    pub(super) flush_rests_until_ns: u64,
    last_ticket: u64,
    parked: usize,
    asked: usize,
}

impl TierObjects {
    /// Whether work in progress makes operations on the object wait.
    pub(super) fn is_busy(&self, object: &ObjectId) -> bool {
        !self.busy.is_empty() && self.busy.contains_key(object)
    }

    /// Whether operations on the object are proxied.
    pub(super) fn is_proxying(&self, object: &ObjectId) -> bool {
        self.busy.get(object).is_some_and(|busy| matches!(busy.work, ObjectWork::Proxy(_)))
    }

    /// Whether the only work in progress is proxied operations.
    pub(super) fn only_proxies(&self, object: &ObjectId) -> bool {
        let proxies =
            |busy: &BusyObject| matches!(busy.work, ObjectWork::Proxy(_)) && busy.waiting.is_empty();
        self.busy.get(object).is_some_and(proxies)
    }

    /// Whether the object is busy with work other than waiting for the agent's room.
    pub(super) fn has_active_work(&self, object: &ObjectId) -> bool {
        self.busy.get(object).is_some_and(|busy| busy.work != ObjectWork::Room)
    }

    /// Whether operations on the object wait until the base has its name.
    pub(super) fn waits_for_dirty_log(&self, object: &ObjectId) -> bool {
        self.busy.get(object).is_some_and(|busy| busy.work == ObjectWork::Log)
    }

    /// Whether operations on the object wait for its flush.
    pub(super) fn waits_for_flush(&self, object: &ObjectId) -> bool {
        self.busy.get(object).is_some_and(|busy| busy.work == ObjectWork::Flush)
    }

    /// The PG's flushes that are due to be retried.
    pub(super) fn flushes_to_retry(&self, slot: u32, now_ns: u64) -> Vec<ObjectId> {
        let is_due =
            |flush: &InflightFlush| flush.slot == slot && flush.retry_ns.is_some_and(|at| at <= now_ns);
        self.flushes.iter().filter(|(_, flush)| is_due(flush)).map(|(object, _)| object.clone()).collect()
    }

    pub(super) fn is_promoting(&self, object: &ObjectId) -> bool {
        self.busy.get(object).is_some_and(|busy| busy.work == ObjectWork::Promote)
    }

    /// Whether the operations that waited for the object are about to resume, with no other work in progress.
    pub(super) fn is_resuming(&self, object: &ObjectId) -> bool {
        self.busy.get(object).is_some_and(|busy| busy.work == ObjectWork::Resume)
    }

    /// The number of clients' operations that are held here.
    pub(in super::super) fn held(&self) -> usize {
        let flushes: usize = self.flushes.values().map(|flush| flush.waiting.len()).sum();
        self.parked + self.asked + flushes + self.evictions.len()
    }

    /// Marks an object as busy. Operations that were about to resume wait again.
    pub(super) fn begin(&mut self, object: &ObjectId, mut busy: BusyObject) {
        if let Some(before) = self.busy.remove(object) {
            debug_assert!(before.work == ObjectWork::Resume, "{object} is busy: {:?}", before.work);
            busy.waiting = before.waiting;
            busy.waiting.iter_mut().for_each(|op| op.tier.absent = None);
        }
        self.busy.insert(object.clone(), busy);
    }

    pub(super) fn begin_proxy(&mut self, object: &ObjectId, slot: u32, promotes_then: bool) {
        let busy =
            self.busy.entry(object.clone()).or_insert_with(|| BusyObject::new(slot, ObjectWork::Proxy(0)));
        busy.promotes_then |= promotes_then;
        if let ObjectWork::Proxy(count) = &mut busy.work {
            *count += 1;
        }
    }

    /// Records that the base answered an operation. After the last one, returns whether the object is to be promoted.
    pub(super) fn end_proxy(&mut self, object: &ObjectId) -> Option<bool> {
        let busy = self.busy.get_mut(object)?;
        let ObjectWork::Proxy(count) = &mut busy.work else { return None };
        *count = count.saturating_sub(1);
        (*count == 0).then_some(busy.promotes_then)
    }

    /// The objects of a PG whose writes wait for room.
    pub(super) fn waiting_for_room(&self, slot: u32) -> Vec<ObjectId> {
        let waits = |busy: &BusyObject| busy.slot == slot && busy.work == ObjectWork::Room;
        self.busy.iter().filter(|(_, busy)| waits(busy)).map(|(object, _)| object.clone()).collect()
    }

    /// The number of the OSD's own changes in progress.
    pub(super) fn internal_changes(&self) -> usize {
        self.busy.values().filter(|busy| busy.work == ObjectWork::Own).count()
    }

    /// Makes an operation wait for a busy object; returns it if the object is not busy.
    pub(super) fn park(&mut self, object: &ObjectId, mut op: Box<InflightOp>) -> Result<(), Box<InflightOp>> {
        // The base may have a different state when it resumes.
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

    /// Resumes operations before all others that wait for the object; if it is busy, after that work. Returns whether they
    /// resume now.
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
        let busy = BusyObject { waiting: ops, ..BusyObject::new(slot, ObjectWork::Resume) };
        self.busy.insert(object.clone(), busy);
        true
    }

    /// Ends the work on an object. Returns the operations that waited, in order.
    pub(super) fn end(&mut self, object: &ObjectId) -> VecDeque<Box<InflightOp>> {
        let waiting = self.busy.remove(object).map(|busy| busy.waiting).unwrap_or_default();
        self.parked -= waiting.len();
        waiting
    }

    /// Records a request; its answer arrives with the returned ticket.
    pub(super) fn add_request(&mut self, ask: TierRequest) -> u64 {
        self.asked += usize::from(matches!(ask, TierRequest::Proxied { .. } | TierRequest::Query { .. }));
        self.last_ticket += 1;
        self.asks.insert(self.last_ticket, ask);
        self.last_ticket
    }

    pub(super) fn take_request(&mut self, ticket: u64) -> Option<TierRequest> {
        let ask = self.asks.remove(&ticket)?;
        self.asked -= usize::from(matches!(ask, TierRequest::Proxied { .. } | TierRequest::Query { .. }));
        Some(ask)
    }

    /// Forgets the work in progress in a PG, except requests to the other pool. Returns the operations that waited.
    pub(super) fn drop_slot(&mut self, slot: u32) -> VecDeque<Box<InflightOp>> {
        let mut dropped = VecDeque::new();
        let of_slot = |busy: &BusyObject| busy.slot == slot;
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
