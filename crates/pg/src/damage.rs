//! Damage of single objects (R10).
//!
//! A member that can't read an object, or can't apply an update to it, records this durably: the object is missing from
//! its copy until a whole one has arrived. Peering repairs it before anything else is served or acknowledged: members
//! that lack objects receive them with the tail of the log, and a primary fetches its own from a member that has them.
//! So all in-sync members of an active PG are complete, except for objects that none of them has. Those are *unfound*:
//! operations on them fail with EIO, except removals, and all other operations continue.

use crate::api::{ClientOp, DropReason, LeaseView, PeerMsg, PgCommand, StoreRefusal};
use crate::log::{EntryKind, LogEntry};
use crate::pg::{OnCommit, Pg};
use crate::pg_info;
use crate::primary::dup_result;
use crate::settings::Mutation;
use bytes::Bytes;
use nacre_types::errno::Errno;
use nacre_types::ids::{Eversion, Interval, OsdId};
use nacre_types::object::ObjectId;
use nacre_types::osdmap::Member;
use nacre_types::txn::{Transaction, TxnOp};

/// The most missing objects that a member names. A member that lacks more has lost its copy, not single objects.
pub(crate) const MAX_REPORTED_MISSING: usize = 4096;
/// The version of a missing object that has no entry in the log: older than any version in it.
pub(crate) const UNKNOWN_VERSION: Eversion = Eversion { interval: Interval(0), version: 1 };
/// The most repairs of an object within a time in nanoseconds: every arriving copy may become unreadable again.
const REPAIR_LIMIT: (u32, u64) = (5, 10_000_000_000);

impl Pg {
    /// Handles a transaction of [`PgCommand::Persist`] that the store refused without any change. Must be called before
    /// any later command is executed. Returns whether the machine continues without it; if not, the OSD must stop.
    pub fn on_store_refused(
        &mut self,
        now_ns: u64,
        persist: u64,
        txn: Transaction,
        why: StoreRefusal,
        out: &mut Vec<PgCommand>,
    ) -> bool {
        self.now = now_ns;
        let Some(at) = self.pending.iter().position(|(id, _)| *id == persist) else { return false };
        // Only changes of objects can be left out.
        if !txn.ops.iter().any(TxnOp::changes_object) {
            return false;
        }
        let in_sync = self.in_sync().contains(&self.me);
        match (self.pending[at].1.clone(), why) {
            // The primary checks the space of in-sync members before it orders an update. A member that is being filled
            // starts over.
            (OnCommit::Head(version), why) if why == StoreRefusal::Damaged || !in_sync => {
                let entry = self.log.find(version).filter(|entry| entry.kind == EntryKind::Modify);
                let Some(object) = entry.map(|entry| entry.object.clone()) else { return false };
                let mut rest = Transaction::new(self.id);
                rest.ops = txn.ops.into_iter().filter(|op| !op.changes_object()).collect();
                pg_info::put_missing(&object, version, &mut rest);
                self.missing.insert(object.clone(), version);
                out.push(PgCommand::Invalidate { object: Some(object.clone()) });
                out.push(PgCommand::Persist { id: persist, txn: rest });
                self.repair_pending = true;
                if let Some(session) = self.replica.session.filter(|_| self.primary.is_none()) {
                    let interval = session.since.max(self.interval().min(self.promised));
                    out.push(PgCommand::Send { to: session.primary, msg: PeerMsg::Lacks { interval } });
                }
                true
            }
            // A piece of an object that the primary copies here. This member sends the primary nothing more, and starts
            // over. A full store grants the slot for that when it has space.
            (OnCommit::Piece { object, .. } | OnCommit::Pushed { object, .. }, _) => {
                self.replica.discard_incomplete(&object);
                self.replica.session = None;
                self.release_remote_backfill(out);
                if let OnCommit::Pushed { version, .. } = self.pending[at].1
                    && self.copy.complete
                    && version != Eversion::default()
                {
                    // On disk, the object is still recorded as missing.
                    self.missing.insert(object, version);
                }
                self.pending[at].1 = OnCommit::Nothing;
                out.push(PgCommand::Persist { id: persist, txn: Transaction::new(self.id) });
                true
            }
            // A transaction that removes the objects of rolled back updates must be applied as a whole: an object that
            // remains would count as a copy.
            _ => false,
        }
    }

    /// Records that an object of this copy can't be read, and is missing from now on. Returns `false` if this changes
    /// nothing: the object is already missing, should not exist, or was repaired too often.
    pub(crate) fn mark_damaged(&mut self, object: &ObjectId, out: &mut Vec<PgCommand>) -> bool {
        let newest = self.log.latest_for_object(object);
        let mended = self.mended.get(object);
        if !self.exists
            || self.missing.contains_key(object)
            || newest.is_some_and(|e| e.kind == EntryKind::Delete)
            || mended
                .is_some_and(|(count, since)| *count >= REPAIR_LIMIT.0 && self.now < since + REPAIR_LIMIT.1)
        {
            return false;
        }
        let modified = newest.filter(|e| e.kind == EntryKind::Modify);
        let needed = modified.map_or(UNKNOWN_VERSION, |e| e.version);
        let mut txn = Transaction::new(self.id);
        pg_info::put_missing(object, needed, &mut txn);
        self.missing.insert(object.clone(), needed);
        self.repair_pending = true;
        self.persist(txn, OnCommit::Nothing, out);
        out.push(PgCommand::Invalidate { object: Some(object.clone()) });
        true
    }

    /// Counts the arrival of a whole copy of an object.
    pub(crate) fn mark_repaired(&mut self, object: &ObjectId) {
        let now = self.now;
        self.mended.retain(|_, (_, since)| now < *since + REPAIR_LIMIT.1);
        if self.mended.len() < MAX_REPORTED_MISSING {
            self.mended.entry(object.clone()).or_insert((0, now)).0 += 1;
        }
    }

    /// Handles an operation on an object that can't be read, or that this copy lacks.
    pub(crate) fn on_damaged_op(
        &mut self,
        leases: &dyn LeaseView,
        op: ClientOp,
        version: Eversion,
        removal: Option<Bytes>,
        out: &mut Vec<PgCommand>,
    ) {
        let lacked = self.missing.get(&op.object).copied();
        let is_mended = match lacked {
            Some(_) => self.repair_pending,
            None => self.in_sync().len() > 1 && self.mark_damaged(&op.object, out),
        };
        match (lacked, removal) {
            _ if is_mended => {
                if let Some(primary) = &mut self.primary {
                    primary.waiting.push_front(op);
                }
            }
            (lacked, Some(result)) => {
                let needed = lacked.unwrap_or(UNKNOWN_VERSION);
                let mut txn = Transaction::new(self.id);
                txn.push(TxnOp::Remove(op.object.clone()));
                self.missing.remove(&op.object);
                pg_info::remove_missing(&op.object, &mut txn);
                out.push(PgCommand::Invalidate { object: Some(op.object.clone()) });
                let entry = LogEntry {
                    version,
                    prior: needed,
                    object: op.object.clone(),
                    kind: EntryKind::Delete,
                    reqid: op.reqid,
                    user_version: 0,
                    mtime_ns: 0,
                    result: dup_result(result),
                };
                self.replicate(entry, txn, &op, out);
            }
            _ => out.push(PgCommand::Refuse { token: op.token, errno: Errno::EIO }),
        }
        self.resume_waiting(leases, out);
    }

    /// Handles the report of a member that lacks an object because it could not apply an update.
    pub(crate) fn on_missing_object(&mut self, from: OsdId, interval: Interval) {
        let required = self.required_members().any(|m| m.osd == from);
        // A member may know the next interval of this reign before its primary does.
        let Some(primary) = self.primary.as_mut().filter(|p| interval >= p.since) else { return };
        if required {
            self.repair_pending = true;
        } else {
            // Its recovery starts over, and its next answer names the objects that it lacks.
            primary.catching_up.remove(&from);
        }
    }

    /// Starts peering if an in-sync member lacks something.
    pub(crate) fn start_repair(&mut self, out: &mut Vec<PgCommand>) {
        let skips = self.settings.breaks(Mutation::SkipMending);
        if std::mem::take(&mut self.repair_pending)
            && !skips
            && self.primary.as_ref().is_some_and(|p| !p.needs_new_interval)
        {
            self.start_peering(out);
        }
    }

    /// Fetches objects that this copy lacks from members that have them. Returns whether some are still outstanding.
    /// Objects that are missing in the end are unfound.
    pub(crate) fn fetch_missing(&mut self, peers: &[Member], out: &mut Vec<PgCommand>) -> bool {
        let (head, interval) = (self.log.head(), self.interval());
        let Some(primary) = self.primary.as_mut().filter(|_| !self.missing.is_empty()) else { return false };
        if primary.peering.adopting.is_some() {
            return true;
        }
        let sound: Vec<_> = peers
            .iter()
            .filter(|m| !primary.lost_copies.contains(&m.osd))
            .filter_map(|m| Some((m.osd, primary.peering.infos.get(&m.osd).filter(|i| i.exists)?)))
            .collect();
        let longest = sound.iter().map(|(_, info)| info.head).max();
        if let Some(longest) = longest
            && self.missing.values().any(|needed| *needed > longest)
            && self.log.contains(longest)
        {
            self.take_back(longest, out);
            return true;
        }
        let tried = &primary.peering.tried;
        let mut asked: Option<(OsdId, Eversion, Vec<ObjectId>)> = None;
        for (object, needed) in &self.missing {
            let has = |(osd, info): &&(OsdId, &crate::MemberInfo)| {
                info.head >= *needed
                    && !info.lacks.contains(object)
                    && !tried.contains(&(*osd, object.clone()))
                    && asked.as_ref().is_none_or(|(of, ..)| of == osd)
            };
            let Some((osd, info)) = sound.iter().find(has) else { continue };
            let (.., objects) = asked.get_or_insert_with(|| (*osd, info.head.min(head), Vec::new()));
            objects.push(object.clone());
            if objects.len() >= MAX_REPORTED_MISSING {
                break;
            }
        }
        let Some((from, after, objects)) = asked else { return false };
        primary.peering.tried.extend(objects.iter().map(|object| (from, object.clone())));
        primary.peering.adopting = Some(from);
        primary.peering.asked_at = self.now;
        out.push(PgCommand::Send { to: from, msg: PeerMsg::GetTail { interval, after, objects } });
        true
    }

    /// Rolls back updates that no other member has and whose contents this copy lacks. They were not acknowledged.
    /// Their versions must not be used again, so the interval rises.
    fn take_back(&mut self, common: Eversion, out: &mut Vec<PgCommand>) {
        let mut txn = Transaction::new(self.id);
        self.adopt_log(common, &[], &mut txn, out);
        txn.push(TxnOp::LogTruncate(common));
        self.put_dups(&mut txn);
        self.committed_to = self.committed_to.min(common);
        self.durable_head = Eversion::default();
        self.put_record(&mut txn);
        self.persist(txn, OnCommit::Rewritten(common), out);
        out.push(PgCommand::Invalidate { object: None });
        if let Some(primary) = &mut self.primary {
            primary.needs_new_interval = true;
            // Members that are being filled follow another log now.
            primary.catching_up.clear();
            // The clients send them again.
            let dropped = primary.take_uncommitted(|version| version > common);
            let reason = DropReason::StaleInterval;
            out.extend(dropped.into_iter().map(|token| PgCommand::Drop { token, reason }));
        }
    }

    /// Fails uncommitted writes to unfound objects.
    pub(crate) fn fail_unfound(&mut self, out: &mut Vec<PgCommand>) {
        let (log, missing) = (&self.log, &self.missing);
        let unfound =
            |version: Eversion| log.find(version).is_some_and(|entry| missing.contains_key(&entry.object));
        if let Some(primary) = self.primary.as_mut().filter(|_| !missing.is_empty()) {
            let failed = primary.take_uncommitted(unfound);
            out.extend(failed.into_iter().map(|token| PgCommand::Refuse { token, errno: Errno::EIO }));
        }
    }

    /// Records that no in-sync member has a whole copy of an object.
    pub(crate) fn on_unfound(
        &mut self,
        from: OsdId,
        interval: Interval,
        object: ObjectId,
        version: Eversion,
        out: &mut Vec<PgCommand>,
    ) {
        if !self.accepts_primary(from, interval) || !self.exists {
            return;
        }
        let mut txn = Transaction::new(self.id);
        pg_info::put_missing(&object, version, &mut txn);
        self.missing.insert(object.clone(), version);
        self.persist(txn, OnCommit::Pushed { to: from, interval, object, version }, out);
    }
}
