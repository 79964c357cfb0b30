//! The machine's state, and the handling of an event.
//!
//! [`Pg::handle`] dispatches; `membership` decides on proposals, `peering` brings the in-sync members to one log, `primary`
//! orders clients' operations, `replica` follows, `recovery` fills members that catch up, `tail` moves the last updates between
//! in-sync members.

use crate::api::{LeaseView, LimitHits, MemberInfo, PeerMsg, PgCommand, PgEvent, PgQuery, PieceCursor};
use crate::damage::MAX_REPORTED_MISSING;
use crate::log::{DupCheck, LogError, PgLog};
use crate::membership::PromotionProposal;
use crate::pg_info::{self, PgCopyInfo};
use crate::primary::{Primary, PrimaryPhase};
use crate::replica::{IncomingTail, ReceivedObject, Replica};
use crate::restore::RestoreQuery;
use crate::settings::{Mutation, PgSettings};
use crate::tail::TailSender;
use bytes::Bytes;
use nacre_types::encoding::DecodeError;
use nacre_types::ids::{Eversion, Incarnation, Interval, OsdId, PgId, ReqId};
use nacre_types::object::ObjectId;
use nacre_types::osdmap::{Member, OsdMap, PgMembership};
use nacre_types::stats::{PgStats, pg_state};
use nacre_types::txn::{Transaction, TxnOp};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

/// The action when a transaction is durable.
#[derive(Clone, Debug)]
pub(crate) enum OnCommit {
    /// Nothing.
    Nothing,
    /// A new membership is recorded.
    Record,
    /// An update is durable, and the log up to it.
    Head(Eversion),
    /// The log was rolled back or replaced, which removed objects; it is durable up to here.
    Rewritten(Eversion),
    /// Answer the primary's query.
    Info { to: OsdId, interval: Interval, round: u64, head: Eversion, versions_after: Option<Eversion> },
    /// The primary's tail took effect.
    TailDone { to: OsdId, interval: Interval, head: Eversion },
    /// A piece of an object of a tail was stored.
    TailPiece { to: OsdId, interval: Interval, object: ObjectId },
    /// A piece of an object was stored, and other pieces follow.
    Piece { to: OsdId, interval: Interval, object: ObjectId },
    /// The catch-up log took effect, or a backfill is complete.
    CaughtLog { to: OsdId, interval: Interval },
    /// An object was put in place.
    Pushed { to: OsdId, interval: Interval, object: ObjectId, version: Eversion },
}

/// The purpose of reading an object.
#[derive(Clone, Debug)]
pub(crate) enum ReadPurpose {
    /// The next object of a tail.
    Tail { to: OsdId },
    /// A member that catches up.
    Push { to: OsdId, object: ObjectId },
}

/// The purpose of listing objects.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ListPurpose {
    /// The source's side of a backfill of `osd`: scan number `scan`.
    Backfill { osd: OsdId, scan: u64 },
    /// A primary's scan of this copy, requested in `interval`.
    Scan { to: OsdId, interval: Interval, scan: u64 },
}

/// One PG on one OSD.
#[derive(Debug)]
pub struct Pg {
    pub(crate) id: PgId,
    pub(crate) me: Member,
    pub(crate) boot_nonce: u64,
    pub(crate) settings: Arc<PgSettings>,
    pub(crate) now: u64,
    pub(crate) map: Option<Arc<OsdMap>>,
    pub(crate) up: Vec<OsdId>,
    /// OSDs of earlier generations that the map does not list (R7).
    pub(crate) unlisted: Arc<[OsdId]>,
    /// The newest MapStore generation seen; earlier generations have no effect here.
    pub(crate) generation: u64,
    /// Whether the collection exists here.
    pub(crate) exists: bool,
    pub(crate) copy: PgCopyInfo,
    /// The stores with which the lease holders of `pg_info` were primary, as far as this process knows (R4).
    pub(crate) holder_stores: BTreeMap<OsdId, BTreeSet<Incarnation>>,
    pub(crate) missing: BTreeMap<ObjectId, Eversion>,
    pub(crate) temps: Vec<ObjectId>,
    pub(crate) log: PgLog,
    pub(crate) durable_head: Eversion,
    /// Everything up to this version is acknowledged, as far as this member knows.
    pub(crate) committed_to: Eversion,
    pub(crate) next_persist: u64,
    pub(crate) pending: VecDeque<(u64, OnCommit)>,
    /// The transaction that records the membership in effect: nothing is acknowledged before it is durable (R7).
    pub(crate) record_persist: u64,
    /// The membership in effect.
    pub(crate) membership: Option<PgMembership>,
    /// Whether peering must start because in-sync members lack objects (R10).
    pub(crate) repair_pending: bool,
    /// The recent number of repairs per object, and since when they are counted.
    pub(crate) mended: BTreeMap<ObjectId, (u32, u64)>,
    /// The member takes part in no interval below this one (R3).
    pub(crate) promised: Interval,
    pub(crate) restoring: Option<RestoreQuery>,
    /// A promotion or creation that this member proposed.
    pub(crate) own_proposal: Option<PromotionProposal>,
    pub(crate) primary: Option<Primary>,
    pub(crate) replica: Replica,
    pub(crate) staged: Option<IncomingTail>,
    pub(crate) tail_senders: BTreeMap<OsdId, TailSender>,
    pub(crate) next_read: u64,
    pub(crate) reads: BTreeMap<u64, ReadPurpose>,
    pub(crate) listings: BTreeMap<u64, ListPurpose>,
    pub(crate) removing: bool,
    /// The interval, if its primary is not up, and since when.
    pub(crate) vacant: Option<(Interval, u64)>,
    pub(crate) reached: LimitHits,
    state_since: (u64, u64),
}

impl Pg {
    /// Creates a PG of which this OSD has nothing yet.
    pub fn new(pg: PgId, me: Member, boot_nonce: u64, settings: Arc<PgSettings>) -> Pg {
        Pg {
            id: pg,
            me,
            boot_nonce,
            now: 0,
            map: None,
            up: Vec::new(),
            unlisted: Arc::from([]),
            generation: 0,
            exists: false,
            copy: PgCopyInfo { complete: true, ..PgCopyInfo::default() },
            holder_stores: BTreeMap::new(),
            missing: BTreeMap::new(),
            temps: Vec::new(),
            log: PgLog::new(Eversion::default(), settings.dups),
            settings,
            durable_head: Eversion::default(),
            committed_to: Eversion::default(),
            next_persist: 1,
            pending: VecDeque::new(),
            record_persist: 0,
            membership: None,
            repair_pending: false,
            mended: BTreeMap::new(),
            promised: Interval(0),
            restoring: None,
            own_proposal: None,
            primary: None,
            replica: Replica::default(),
            staged: None,
            tail_senders: BTreeMap::new(),
            next_read: 1,
            reads: BTreeMap::new(),
            listings: BTreeMap::new(),
            removing: false,
            vacant: None,
            reached: LimitHits::default(),
            state_since: (0, 0),
        }
    }

    /// Loads a PG from its collection: all of its metadata and log. A copy that can't be read is corrupt: it must not be used,
    /// and the OSD must not act as if it had none.
    pub fn load(
        pg: PgId,
        me: Member,
        boot_nonce: u64,
        settings: Arc<PgSettings>,
        meta: &[(String, Bytes)],
        log: Vec<(Eversion, Bytes)>,
    ) -> Result<Pg, DecodeError> {
        let loaded = pg_info::load(meta)?;
        let log = PgLog::load(loaded.record.tail, log, &loaded.dups, settings.dups).map_err(corrupt_log)?;
        let mut machine = Pg::new(pg, me, boot_nonce, settings);
        machine.exists = true;
        machine.durable_head = log.head();
        machine.log = log;
        machine.missing = loaded.missing;
        machine.temps = loaded.temps;
        machine.committed_to = loaded.record.committed_to;
        let highest = loaded.record.highest.as_ref().map_or(Interval(0), |m| m.interval);
        machine.promised = loaded.record.promised.max(highest);
        machine.copy = loaded.record;
        Ok(machine)
    }

    /// Handles an event and appends the resulting commands to `out`. `now_ns` is CLOCK_BOOTTIME.
    pub fn handle(&mut self, now_ns: u64, leases: &dyn LeaseView, event: PgEvent, out: &mut Vec<PgCommand>) {
        self.now = now_ns;
        if self.removing {
            return self.refuse_while_removing(event, out);
        }
        let hot = matches!(
            event,
            PgEvent::Committed { .. }
                | PgEvent::Peer { msg: PeerMsg::RepOp { .. } | PeerMsg::RepAck { .. }, .. }
        );
        match event {
            PgEvent::Executed { token, outcome } => return self.on_executed(leases, token, outcome, out),
            PgEvent::Client(op) => return self.on_client(leases, op, out),
            PgEvent::Committed { persist } => self.on_committed(leases, persist, out),
            PgEvent::Peer { from, msg } => self.on_peer(leases, from, msg, out),
            PgEvent::Map { map, up, unlisted } => self.on_map(map, up, unlisted, out),
            PgEvent::PeerReset(osd) => self.on_peer_reset(osd, out),
            PgEvent::Cas(reply) => self.on_cas(&reply),
            PgEvent::ObjectRead { read, piece } => self.on_object_read(read, piece, out),
            PgEvent::Listed { list, objects, end } => self.on_listed(list, objects, end, out),
            PgEvent::Reserved => self.on_reserved(),
            PgEvent::RemoteBackfillReserved => self.on_remote_backfill_reserved(out),
            PgEvent::RemoteBackfillTooFull => self.on_remote_backfill_too_full(out),
            PgEvent::Leases => self.release_lease_waiters(leases, out),
            PgEvent::Tick => self.on_tick(leases, out),
        }
        if hot && self.is_settled() {
            self.resume_waiting(leases, out);
        } else {
            self.advance(leases, out);
        }
    }

    /// Whether only clients' operations are in progress, so that events of the hot path need no further checks.
    fn is_settled(&self) -> bool {
        match &self.primary {
            Some(primary) => {
                primary.phase == PrimaryPhase::Active
                    && primary.proposal.is_none()
                    && !primary.is_recovering()
                    && !self.repair_pending
            }
            None => self.own_proposal.is_none() && self.restoring.is_none() && !self.interval().is_creation(),
        }
    }

    /// Advances everything that can advance, until nothing changes.
    fn advance(&mut self, leases: &dyn LeaseView, out: &mut Vec<PgCommand>) {
        // With a smaller set, more updates may be committed.
        self.ack_durable_writes(leases, out);
        self.consider_restore(out);
        self.consider_promotion(out);
        self.start_repair(out);
        self.advance_peering(leases, out);
        self.consider_proposals(out);
        self.update_below_min_size();
        self.step_recovery(out);
        self.resume_waiting(leases, out);
        self.shed_waiting(out);
        self.check_remote_backfill(out);
    }

    fn refuse_while_removing(&mut self, event: PgEvent, out: &mut Vec<PgCommand>) {
        match event {
            PgEvent::Client(op) => {
                out.push(PgCommand::Drop { token: op.token, reason: crate::api::DropReason::StaleInterval });
            }
            PgEvent::Peer { from, msg: PeerMsg::Query { interval, round, .. } } => {
                let info = MemberInfo { boot_nonce: self.boot_nonce, ..MemberInfo::default() };
                out.push(PgCommand::Send {
                    to: from,
                    msg: PeerMsg::Info { interval, round, info, versions: None },
                });
            }
            _ => {}
        }
    }

    fn on_peer(&mut self, leases: &dyn LeaseView, from: OsdId, msg: PeerMsg, out: &mut Vec<PgCommand>) {
        match msg {
            PeerMsg::RepOp { interval, entry, txn, committed_to, trim_to, oldest_tid, boot_nonce } => {
                let sender = (from, boot_nonce);
                self.on_rep_op(sender, interval, &entry, txn, committed_to, trim_to, oldest_tid, out);
            }
            PeerMsg::RepAck { interval, head } => self.on_rep_ack(leases, from, interval, head, out),
            PeerMsg::Query { interval, round, versions_after, boot_nonce } => {
                self.on_query((from, boot_nonce), interval, round, versions_after, out);
            }
            PeerMsg::Info { interval, round, info, versions } => {
                self.on_info(from, interval, round, info, versions, out);
            }
            PeerMsg::GetTail { interval, after, objects } => {
                self.on_get_tail(from, interval, after, &objects, out);
            }
            PeerMsg::Tail { interval, after, entries, objects } => {
                self.on_tail(from, interval, after, entries, objects, out);
            }
            PeerMsg::TailObject { interval, object, piece } => {
                self.on_tail_object(from, interval, object, piece, out);
            }
            PeerMsg::Promised { interval, promised } => self.on_promised(from, interval, promised),
            PeerMsg::TailDone { interval, head } => self.on_tail_done(from, interval, head),
            PeerMsg::CatchUp { interval, common, tail, entries, dups, backfill } => {
                self.on_catch_up(from, interval, common, tail, entries, &dups, backfill, out);
            }
            PeerMsg::CaughtLog { interval, missing } => self.on_log_caught_up(from, interval, missing),
            PeerMsg::Push { interval, object, version, piece } => {
                self.on_push(from, interval, object, version, piece, out);
            }
            PeerMsg::PushDone { interval, object, version } => {
                self.on_push_done(from, interval, &object, version)
            }
            PeerMsg::Scan { interval, scan, from: start, max } => {
                self.on_scan(from, interval, scan, start, max, out);
            }
            PeerMsg::ScanReply { interval, scan, objects, end } => {
                self.on_scan_reply(from, interval, scan, objects, end);
            }
            PeerMsg::BackfillCursor { interval, cursor } => {
                self.on_backfill_cursor(from, interval, cursor, out)
            }
            PeerMsg::Stray { interval } => self.on_stray(from, interval, out),
            PeerMsg::RemoveStray { interval } => self.on_remove_stray(from, interval, out),
            PeerMsg::HighestQuery { generation } => self.on_restore_query(from, generation, out),
            PeerMsg::HighestReply { generation, answer } => self.on_restore_info(from, generation, answer),
            PeerMsg::Record { record } => self.on_membership_record(from, record, out),
            PeerMsg::ReserveBackfill { interval, priority } => {
                self.on_reserve_backfill(from, interval, priority, out);
            }
            PeerMsg::BackfillReserved { interval, granted } => {
                self.on_backfill_reserved(from, interval, granted, out);
            }
            PeerMsg::ReleaseBackfill { interval } => {
                if self.accepts_primary(from, interval) {
                    self.release_remote_backfill(out);
                }
            }
            PeerMsg::Lacks { interval } => self.on_missing_object(from, interval),
            PeerMsg::TailUnreadable { interval, object } => {
                self.on_tail_object_done(from, interval, object, ReceivedObject::Unreadable, out);
            }
            PeerMsg::Unfound { interval, object, version } => {
                self.on_unfound(from, interval, object, version, out);
            }
            PeerMsg::PieceDone { interval, object } => {
                self.on_tail_piece_done(from, interval, out);
                self.on_push_piece_done(from, interval, object, out);
            }
        }
    }

    fn on_committed(&mut self, leases: &dyn LeaseView, persist: u64, out: &mut Vec<PgCommand>) {
        let mut acked = false;
        while self.pending.front().is_some_and(|(id, _)| *id <= persist) {
            let Some((_, durable)) = self.pending.pop_front() else { break };
            match durable {
                OnCommit::Nothing => {}
                OnCommit::Record => acked = true,
                OnCommit::Head(head) | OnCommit::Rewritten(head) => {
                    self.durable_head = self.durable_head.max(head);
                    acked = true;
                }
                OnCommit::Info { to, interval, round, head, versions_after } => {
                    self.send_info(to, interval, round, head, versions_after, out);
                }
                OnCommit::TailDone { to, interval, head } => {
                    self.durable_head = self.durable_head.max(head);
                    if to != self.me.osd {
                        out.push(PgCommand::Send { to, msg: PeerMsg::TailDone { interval, head } });
                    }
                }
                OnCommit::Piece { to, interval, object } | OnCommit::TailPiece { to, interval, object } => {
                    out.push(PgCommand::Send { to, msg: PeerMsg::PieceDone { interval, object } });
                }
                OnCommit::CaughtLog { to, interval } => {
                    let missing = self.missing.iter().map(|(o, v)| (o.clone(), *v)).collect();
                    out.push(PgCommand::Send { to, msg: PeerMsg::CaughtLog { interval, missing } });
                }
                OnCommit::Pushed { to, interval, object, version } => {
                    out.push(PgCommand::Send { to, msg: PeerMsg::PushDone { interval, object, version } });
                }
            }
        }
        if !acked {
            return;
        }
        if self.primary.is_some() {
            self.ack_durable_writes(leases, out);
        } else {
            self.ack(out);
        }
    }

    /// Queues `txn`; `durable` is executed when it is durable.
    pub(crate) fn persist(&mut self, txn: Transaction, durable: OnCommit, out: &mut Vec<PgCommand>) {
        let id = self.next_persist;
        self.next_persist += 1;
        self.pending.push_back((id, durable));
        out.push(PgCommand::Persist { id, txn });
    }

    /// Writes the copy's record, if there is a copy.
    pub(crate) fn persist_record(&mut self, durable: OnCommit, out: &mut Vec<PgCommand>) {
        let mut txn = Transaction::new(self.id);
        if self.exists {
            if self.staged.is_none() && !self.temps.is_empty() {
                self.drop_temps(&mut txn);
            }
            self.put_record(&mut txn);
        }
        self.persist(txn, durable, out);
    }

    pub(crate) fn put_record(&mut self, txn: &mut Transaction) {
        self.copy.promised = self.promised;
        self.copy.tail = self.log.tail();
        self.copy.committed_to = self.committed_to;
        pg_info::put_record(&self.copy, txn);
    }

    /// Creates the collection in `txn`.
    pub(crate) fn create_copy(&mut self, txn: &mut Transaction) {
        self.exists = true;
        // The primary may have sent a newer record than the map that this member has.
        let told = self.copy.highest.take();
        self.copy.highest = self.membership.iter().cloned().chain(told).max_by_key(|m| m.interval);
        self.copy.generation = self.generation;
        txn.push(TxnOp::CreateCollection);
    }

    /// Removes the temporary objects of a tail that was never completed.
    pub(crate) fn drop_temps(&mut self, txn: &mut Transaction) {
        for temp in std::mem::take(&mut self.temps) {
            txn.push(TxnOp::Remove(temp));
        }
        pg_info::put_temps(&[], txn);
    }

    pub(crate) fn read_object(
        &mut self,
        purpose: ReadPurpose,
        object: ObjectId,
        cursor: PieceCursor,
        out: &mut Vec<PgCommand>,
    ) -> u64 {
        let read = self.next_read;
        self.next_read += 1;
        self.reads.insert(read, purpose);
        out.push(PgCommand::ReadObject { read, object, cursor, max_bytes: self.settings.push_bytes });
        read
    }

    pub(crate) fn list_objects(
        &mut self,
        purpose: ListPurpose,
        from: Option<ObjectId>,
        max: usize,
        out: &mut Vec<PgCommand>,
    ) {
        let list = self.next_read;
        self.next_read += 1;
        self.listings.insert(list, purpose);
        out.push(PgCommand::ListObjects { list, from, max });
    }

    /// The interval in effect; 0 before the PG is created.
    pub fn interval(&self) -> Interval {
        self.membership.as_ref().map_or(Interval(0), |m| m.interval)
    }

    /// The membership in effect.
    pub fn membership(&self) -> Option<&PgMembership> {
        self.membership.as_ref()
    }

    /// The log's head.
    pub fn head(&self) -> Eversion {
        self.log.head()
    }

    /// The log.
    pub fn log(&self) -> &PgLog {
        &self.log
    }

    /// Whether this OSD has a copy, complete or not.
    pub fn has_copy(&self) -> bool {
        self.exists
    }

    /// Whether the copy is complete: no object is missing and no backfill is in progress.
    pub fn is_whole(&self) -> bool {
        self.exists && self.copy.complete && self.missing.is_empty()
    }

    /// Whether the copy lacks an object (R10): operations on it must not be executed
    /// ([`ExecuteReply::Damaged`](crate::ExecuteReply::Damaged)).
    pub fn lacks(&self, object: &ObjectId) -> bool {
        !self.missing.is_empty() && self.missing.contains_key(object)
    }

    /// Objects from `first` up to, but not including, `end` that exist and that the copy lacks or can't read, in order.
    pub fn missing_in(&self, first: &ObjectId, end: Option<&ObjectId>) -> impl Iterator<Item = &ObjectId> {
        let end = end.map_or(Bound::Unbounded, Bound::Excluded);
        self.missing.range::<ObjectId, _>((Bound::Included(first), end)).map(|(object, _)| object)
    }

    /// Whether an object that can't be read here is on no other in-sync member either, as far as is known: it can only be
    /// removed.
    pub fn is_unfound(&self, object: &ObjectId) -> bool {
        self.is_active() && !self.repair_pending && (self.lacks(object) || self.in_sync().len() < 2)
    }

    /// Objects that no in-sync member has, as far as is known, with the versions that are needed; `None` if this is not the
    /// primary of an active PG.
    pub fn unfound(&self) -> Option<impl Iterator<Item = (&ObjectId, Eversion)>> {
        (self.is_active() && !self.repair_pending)
            .then(|| self.missing.iter().map(|(object, needed)| (object, *needed)))
    }

    /// Whether clients' operations are served here now.
    pub fn is_active(&self) -> bool {
        self.primary.as_ref().is_some_and(|primary| primary.phase == PrimaryPhase::Active)
    }

    /// The highest membership that is recorded in the copy (R7).
    pub fn highest_recorded(&self) -> Option<&PgMembership> {
        self.copy.highest.as_ref()
    }

    /// Whether this OSD is the PG's primary.
    pub fn is_primary(&self) -> bool {
        self.primary.is_some()
    }

    pub(crate) fn in_sync(&self) -> &[Member] {
        self.membership.as_ref().map_or(&[], |m| &m.in_sync)
    }

    /// The members whose acks a write needs in addition to this member's: the in-sync set, and every proposed set whose outcome
    /// is unknown (R1). A member may occur twice.
    pub(crate) fn required_members(&self) -> impl Iterator<Item = &Member> {
        let proposed = self.primary.iter().flat_map(Primary::proposals).flat_map(|m| &m.in_sync);
        let proposed = proposed.filter(|_| !self.settings.breaks(Mutation::IgnoreProposedMembers));
        let unproven = self.settings.breaks(Mutation::AckBeforeCasOutcome)
            && self.primary.as_ref().is_some_and(|p| p.proposal.is_some());
        let confirmed = if unproven { &[] } else { self.in_sync() };
        confirmed.iter().chain(proposed).filter(|m| m.osd != self.me.osd)
    }

    /// The required members that are up, each once.
    pub(crate) fn live_required(&self) -> Vec<Member> {
        let mut live: Vec<Member> =
            self.required_members().copied().filter(|m| self.is_member_up(*m)).collect();
        live.sort_unstable();
        live.dedup();
        live
    }

    pub(crate) fn min_size(&self) -> usize {
        self.pool().map_or(1, |pool| pool.min_size as usize)
    }

    pub(crate) fn size(&self) -> usize {
        self.pool().map_or(1, |pool| pool.size as usize)
    }

    fn pool(&self) -> Option<&nacre_types::pool::Pool> {
        self.map.as_ref()?.pools.get(&self.id.pool).map(Arc::as_ref)
    }

    pub(crate) fn is_member_up(&self, member: Member) -> bool {
        let by_id = self.settings.breaks(Mutation::IgnoreIncarnation);
        self.map.as_ref().is_some_and(|map| map.is_member_up(member) || by_id && map.is_up(member.osd))
    }

    pub(crate) fn info(&self) -> MemberInfo {
        MemberInfo {
            exists: self.exists,
            highest: self.copy.highest.clone(),
            head: self.log.head(),
            tail: self.log.tail(),
            committed_to: self.committed_to,
            complete: self.copy.complete,
            missing: self.missing.len() as u64,
            lacks: self.missing.keys().take(MAX_REPORTED_MISSING).cloned().collect(),
            boot_nonce: self.boot_nonce,
        }
    }

    fn on_tick(&mut self, leases: &dyn LeaseView, out: &mut Vec<PgCommand>) {
        self.retry_promotion(out);
        self.retry_primary(out);
        self.release_lease_waiters(leases, out);
        self.announce_stray(out);
        if self.is_active() {
            let early = self.settings.breaks(Mutation::ExpireEarly);
            let expiry_ns = self.settings.session_expiry_ns / if early { 20 } else { 1 };
            let expired = self.log.expire_sessions(self.now, expiry_ns);
            self.reached.sessions_expired += expired.len() as u64;
        }
    }

    /// How often limits were reached.
    pub fn limit_hits(&self) -> LimitHits {
        self.reached
    }

    /// When to pass [`PgEvent::Tick`] at the latest; `None` while nothing waits for a time.
    pub fn next_wake(&self) -> Option<u64> {
        let own_proposal =
            self.own_proposal.as_ref().map(|own_proposal| own_proposal.sent_at + self.settings.cas_retry_ns);
        let asking = self.restoring.as_ref().filter(|_| self.may_restore());
        let restoring = asking.map(|r| r.asked_at + self.settings.retry_ns);
        let primary = self.primary.as_ref().and_then(|p| p.next_wake(&self.settings));
        let stray = self.is_stray().then_some(self.replica.announced_at + self.settings.retry_ns);
        let mend = (self.repair_pending && self.primary.is_some()).then_some(self.now);
        let bids = self.primary.is_none() && self.own_proposal.is_none();
        let bid = self.promotion_due_at().filter(|at| bids && *at > self.now);
        [own_proposal, restoring, primary, stray, mend, bid].into_iter().flatten().min()
    }

    /// Bits of [`pg_state`].
    pub fn state(&self) -> u64 {
        let Some(primary) = &self.primary else {
            return if self.restoring.is_some() {
                pg_state::PEERING
            } else if self.membership.is_none() {
                pg_state::CREATING
            } else {
                0
            };
        };
        self.primary_state(primary)
    }

    /// Decides about a client's request: see [`PgLog::admit`].
    pub fn admit(&self, reqid: ReqId, attempt: u32) -> DupCheck {
        self.log.admit(reqid, attempt)
    }

    /// The last update that was ordered or received.
    pub fn last_update(&self) -> Eversion {
        self.log.head()
    }

    /// See [`PgLog::user_version`].
    pub fn user_version(&self) -> u64 {
        self.log.user_version()
    }

    /// Clients' requests that changed `object` recently: see [`PgLog::object_reqids`].
    pub fn requests_of(&self, object: &ObjectId, max: usize) -> Vec<(ReqId, u64)> {
        self.log.object_reqids(object, max)
    }

    /// Statistics and state. `objects` is the number of objects in the collection; the host fills in sums and I/O.
    pub fn stats(&mut self, objects: u64, wall_ns: u64) -> PgStats {
        let state = self.state();
        if self.state_since.0 != state || self.state_since.1 == 0 {
            self.state_since = (state, wall_ns);
        }
        let acting = self.membership.as_ref().map_or_else(Vec::new, PgMembership::acting);
        let (degraded, misplaced, targets) = self.recovery_counts(objects);
        PgStats {
            pg: self.id,
            state,
            reported_epoch: self.map.as_ref().map_or_else(Default::default, |m| m.epoch),
            interval: self.interval(),
            up: self.up.clone(),
            acting,
            backfill_targets: targets,
            last_update: self.log.head(),
            last_complete: self.committed_to,
            log_tail: self.log.tail(),
            log_size: self.log.len() as u64,
            degraded,
            misplaced,
            unfound: if self.is_active() { self.missing.len() as u64 } else { 0 },
            last_change_ns: self.state_since.1,
            last_active_ns: if state & pg_state::ACTIVE != 0 { wall_ns } else { 0 },
            last_clean_ns: if state & pg_state::CLEAN != 0 { wall_ns } else { 0 },
            ..PgStats::default()
        }
    }

    /// The state of the PG for `pg query`.
    pub fn query(&mut self, objects: u64, wall_ns: u64) -> PgQuery {
        let stats = self.stats(objects, wall_ns);
        let phase = match &self.primary {
            Some(primary) => format!("primary, {}", primary.phase_name()),
            None if self.restoring.is_some() => "waiting for records after a MapStore restore".to_owned(),
            None if self.in_sync().contains(&self.me) => "replica".to_owned(),
            None if self.membership.is_none() => "not created".to_owned(),
            None => "stray or catching up".to_owned(),
        };
        PgQuery {
            stats,
            info: self.info(),
            membership: self.membership.clone(),
            proposals: self.outstanding_proposals().cloned().collect(),
            phase,
            catching_up: self.catching_up(),
            blocked_by: self.blocked_by(),
        }
    }
}

fn corrupt_log(error: LogError) -> DecodeError {
    DecodeError::Corrupt { what: "PG log", detail: error.to_string() }
}
