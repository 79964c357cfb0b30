//! The role of a replica: applying a primary's updates, and becoming equal to the primary after an absence.
//!
//! A session begins with the primary's query in an interval that is not below the promised one. Updates are accepted only
//! within a session, in order, without gaps. An update of an object that is missing here is logged, not applied: the whole
//! object arrives later (R8).

use crate::api::{MemberInfo, ObjectPiece, PeerMsg, PgCommand, PieceCursor};
use crate::log::{DupSnapshot, EntryKind, LogEntry};
use crate::pg::{ListPurpose, OnCommit, Pg};
use crate::pg_info;
use crate::settings::{Mutation, PgSettings};
use crate::tail::put_piece;
use bytes::Bytes;
use nacre_types::ids::{Eversion, Interval, OsdId};
use nacre_types::object::ObjectId;
use nacre_types::txn::{Transaction, TxnOp};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The primary that this member follows, its process, and the first interval of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FollowedPrimary {
    pub(crate) primary: OsdId,
    pub(crate) boot_nonce: u64,
    pub(crate) since: Interval,
}

/// The state of a member as a replica.
#[derive(Debug, Default)]
pub(crate) struct Replica {
    pub(crate) session: Option<FollowedPrimary>,
    /// Attributes of objects whose last piece has not arrived.
    open: BTreeMap<ObjectId, IncomingObject>,
    pub(crate) announced_at: u64,
    /// The session for whose backfill a slot was requested, and whether it is held.
    target: Option<(FollowedPrimary, bool)>,
}

/// What has arrived of a tail's object.
#[derive(Clone, Debug)]
pub(crate) enum ReceivedObject {
    /// The whole object, stored in this temporary object.
    In(ObjectId),
    /// The object does not exist.
    Absent,
    /// The sender lacks the object.
    Unreadable,
}

/// A tail being received.
#[derive(Debug)]
pub(crate) struct IncomingTail {
    pub(crate) from: OsdId,
    pub(crate) interval: Interval,
    pub(crate) after: Eversion,
    pub(crate) entries: Vec<LogEntry>,
    pub(crate) awaited: u64,
    /// Objects that have arrived.
    pub(crate) ready: Vec<(ObjectId, ReceivedObject)>,
    /// The object that is arriving.
    pub(crate) open: Option<(ObjectId, IncomingObject)>,
}

/// An object of which some pieces have arrived.
#[derive(Debug)]
pub(crate) struct IncomingObject {
    version: Eversion,
    /// Set with the last piece.
    attrs: Vec<(String, Bytes)>,
    /// Where the next piece begins.
    next: PieceCursor,
}

/// What a piece does for an object that arrives.
pub(crate) enum Assembly {
    /// Further pieces follow.
    Open(IncomingObject),
    /// It is the last piece; the attributes of the object.
    Complete(Vec<(String, Bytes)>),
}

impl IncomingObject {
    /// Adds a piece to what has arrived of its object. `None` if the piece does not continue that.
    pub(crate) fn assemble(
        open: Option<IncomingObject>,
        piece: &ObjectPiece,
        settings: &PgSettings,
    ) -> Option<Assembly> {
        let attrs = if piece.is_first() {
            piece.attrs.clone()
        } else {
            let continues = |open: &IncomingObject| open.version == piece.version && open.next == piece.start;
            open.filter(|open| continues(open) || settings.breaks(Mutation::TakeAnyPiece))?.attrs
        };
        Some(match piece.next.clone() {
            Some(next) => Assembly::Open(IncomingObject { version: piece.version, attrs, next }),
            None => Assembly::Complete(attrs),
        })
    }
}

impl Replica {
    /// Discards what has arrived of an object that is incomplete.
    pub(crate) fn discard_incomplete(&mut self, object: &ObjectId) {
        self.open.remove(object);
    }
}

impl Pg {
    pub(crate) fn on_query(
        &mut self,
        (from, boot_nonce): (OsdId, u64),
        interval: Interval,
        round: u64,
        versions_after: Option<Eversion>,
        out: &mut Vec<PgCommand>,
    ) {
        if self.restoring.is_some() || self.is_former_process(from, boot_nonce) {
            return;
        }
        if interval < self.promised {
            out.push(PgCommand::Send {
                to: from,
                msg: PeerMsg::Promised { interval, promised: self.promised },
            });
            return;
        }
        self.promised = interval;
        let shown =
            self.map.as_ref().and_then(|map| map.osds.get(&from)).filter(|i| i.boot_nonce == boot_nonce);
        let store = shown.and_then(|info| info.incarnation);
        self.note_lease_holder(from, store);
        if interval > self.interval() {
            // Another OSD is primary in a later interval, and answers the requests that wait here. The map follows.
            self.depose(out);
        }
        let session = Some(FollowedPrimary { primary: from, boot_nonce, since: interval });
        if self.replica.session != session {
            self.replica.session = session;
            self.replica.open.clear();
        }
        // The primary must request a backfill again.
        self.release_remote_backfill(out);
        self.staged = None;
        // Requests from before this query are sent again.
        self.tail_senders.remove(&from);
        // The reported state must be durable: the answer waits for everything before it.
        let head = self.log.head();
        if self.settings.breaks(Mutation::VolatilePromise) {
            self.send_info(from, interval, round, head, versions_after, out);
            return self.persist_record(OnCommit::Nothing, out);
        }
        self.persist_record(OnCommit::Info { to: from, interval, round, head, versions_after }, out);
    }

    pub(crate) fn send_info(
        &self,
        to: OsdId,
        interval: Interval,
        round: u64,
        head: Eversion,
        versions_after: Option<Eversion>,
        out: &mut Vec<PgCommand>,
    ) {
        let versions = versions_after.map(|after| {
            let same = self.log.contains(after).then_some(after);
            same.into_iter().chain(self.log.entries_after(after).map(|entry| entry.version)).collect()
        });
        let info = MemberInfo { head, ..self.info() };
        out.push(PgCommand::Send { to, msg: PeerMsg::Info { interval, round, info, versions } });
    }

    /// Whether this member follows another process of `from`, and the map shows that process.
    fn is_former_process(&self, from: OsdId, boot_nonce: u64) -> bool {
        let followed = self.replica.session.filter(|s| s.primary == from && s.boot_nonce != boot_nonce);
        let shown = self.map.as_ref().and_then(|map| map.osds.get(&from)).map(|info| info.boot_nonce);
        followed.is_some_and(|s| shown == Some(s.boot_nonce))
    }

    pub(crate) fn accepts_primary(&self, from: OsdId, interval: Interval) -> bool {
        let stale = self.settings.breaks(Mutation::AcceptOldIntervalOps);
        self.replica.session.is_some_and(|s| s.primary == from && interval >= s.since)
            && (interval >= self.promised || self.same_reign(from) || stale)
    }

    /// Whether `from` is primary in the membership in effect, so that its updates of an earlier interval of the same reign
    /// still count.
    fn same_reign(&self, from: OsdId) -> bool {
        self.promised == self.interval() && self.membership.as_ref().is_some_and(|m| m.primary == from)
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    pub(crate) fn on_rep_op(
        &mut self,
        (from, boot_nonce): (OsdId, u64),
        interval: Interval,
        entry: &Bytes,
        txn: Arc<Transaction>,
        committed_to: Eversion,
        trim_to: Eversion,
        oldest_tid: u64,
        out: &mut Vec<PgCommand>,
    ) {
        let same_process = self.replica.session.is_some_and(|s| s.boot_nonce == boot_nonce);
        if !self.accepts_primary(from, interval) || !same_process || !self.exists {
            return;
        }
        let Ok(decoded) = LogEntry::decode(entry) else {
            self.replica.session = None;
            return;
        };
        if !self.log.accepts(decoded.version) {
            // There is a gap: the primary sends the missing updates again when it peers.
            return;
        }
        let mut txn = Arc::try_unwrap(txn).unwrap_or_else(|shared| (*shared).clone());
        let (object, version) = (decoded.object.clone(), decoded.version);
        let logged_only = txn.ops.is_empty();
        if decoded.kind == EntryKind::Error {
            txn.ops.clear();
        } else if decoded.kind == EntryKind::Delete {
            if self.missing.remove(&object).is_some() {
                pg_info::remove_missing(&object, &mut txn);
            }
        } else if self.missing.contains_key(&object) || logged_only && self.copy.complete {
            txn.ops.clear();
            self.missing.insert(object.clone(), version);
            pg_info::put_missing(&object, version, &mut txn);
        }
        if self.settings.breaks(Mutation::LogWithoutChange) && version.version.is_multiple_of(16) {
            txn.ops.clear();
        }
        self.log.update_oldest_tid(decoded.reqid.client, oldest_tid, self.now);
        self.log.append(decoded);
        self.committed_to = self.committed_to.max(committed_to.min(self.log.head()));
        txn.push(TxnOp::LogAppend(vec![(version, entry.clone())]));
        self.trim(trim_to, &mut txn);
        self.persist(txn, OnCommit::Head(version), out);
        if self.settings.breaks(Mutation::AckUndurable) {
            self.durable_head = version;
            self.ack(out);
        }
    }

    /// Reports to the primary up to which version the log is durable.
    pub(crate) fn ack(&mut self, out: &mut Vec<PgCommand>) {
        let Some(session) = self.replica.session else { return };
        let interval = session.since.max(self.interval().min(self.promised));
        out.push(PgCommand::Send {
            to: session.primary,
            msg: PeerMsg::RepAck { interval, head: self.durable_head },
        });
    }

    // Catching up.

    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    pub(crate) fn on_catch_up(
        &mut self,
        from: OsdId,
        interval: Interval,
        common: Eversion,
        tail: Eversion,
        entries: Vec<Bytes>,
        dups: &DupSnapshot,
        backfill: bool,
        out: &mut Vec<PgCommand>,
    ) {
        // Objects of an in-sync member are not removed: a primary that requests this does not know yet that the member is in
        // sync.
        let in_sync = self.in_sync().contains(&self.me) && self.interval() >= interval;
        if !self.accepts_primary(from, interval) || in_sync {
            return;
        }
        let decoded: Result<Vec<LogEntry>, _> = entries.iter().map(|bytes| LogEntry::decode(bytes)).collect();
        let Ok(decoded) = decoded else { return };
        let mut txn = Transaction::new(self.id);
        if !self.exists {
            self.create_copy(&mut txn);
        }
        self.drop_temps(&mut txn);
        self.replica.open.clear();
        if backfill {
            let none = DupSnapshot::default();
            let dups = if self.settings.breaks(Mutation::FillWithoutDups) { &none } else { dups };
            if self.log.install(tail, decoded, dups).is_err() {
                return;
            }
            for object in std::mem::take(&mut self.missing).into_keys() {
                pg_info::remove_missing(&object, &mut txn);
                // Remains of it must not count as a copy.
                txn.push(TxnOp::Remove(object));
            }
            self.copy.complete = false;
            txn.push(TxnOp::LogTruncate(Eversion::default()));
        } else {
            if !self.log.contains(common) {
                return;
            }
            self.adopt_log(common, &decoded, &mut txn, out);
            txn.push(TxnOp::LogTruncate(common));
        }
        let kept = if backfill { Eversion::default() } else { common };
        let appended: Vec<_> =
            self.log.entries_after(kept).map(|entry| (entry.version, entry.encode())).collect();
        if !appended.is_empty() {
            txn.push(TxnOp::LogAppend(appended));
        }
        self.put_dups(&mut txn);
        self.committed_to = self.committed_to.min(self.log.head());
        self.durable_head = Eversion::default();
        self.put_record(&mut txn);
        self.persist(txn, OnCommit::Rewritten(self.log.head()), out);
        self.persist(Transaction::new(self.id), OnCommit::CaughtLog { to: from, interval }, out);
        out.push(PgCommand::Invalidate { object: None });
    }

    /// Makes the log equal to the primary's: removes divergent entries above `common` and appends `entries`. Every object that
    /// either names becomes missing, unless it is known to be absent.
    pub(crate) fn adopt_log(
        &mut self,
        common: Eversion,
        entries: &[LogEntry],
        txn: &mut Transaction,
        out: &mut Vec<PgCommand>,
    ) {
        let mut needed: BTreeMap<ObjectId, Eversion> = BTreeMap::new();
        let divergent = self.log.truncate_after(common);
        for divergent in divergent.into_iter().filter(|entry| entry.kind != EntryKind::Error) {
            // Entries are newest first: the oldest divergent entry's prior version is the common one.
            if !self.settings.breaks(Mutation::KeepDivergent) {
                needed.insert(divergent.object, divergent.prior);
            }
        }
        for entry in entries {
            if !self.log.accepts(entry.version) {
                break;
            }
            match entry.kind {
                EntryKind::Modify => drop(needed.insert(entry.object.clone(), entry.version)),
                EntryKind::Delete => drop(needed.insert(entry.object.clone(), Eversion::default())),
                EntryKind::Error => {}
            }
            self.log.append(entry.clone());
        }
        for (object, version) in needed {
            if version == Eversion::default() {
                txn.push(TxnOp::Remove(object.clone()));
                if self.missing.remove(&object).is_some() {
                    pg_info::remove_missing(&object, txn);
                }
                out.push(PgCommand::Invalidate { object: Some(object) });
            } else {
                pg_info::put_missing(&object, version, txn);
                self.missing.insert(object, version);
            }
        }
    }

    pub(crate) fn on_push(
        &mut self,
        from: OsdId,
        interval: Interval,
        object: ObjectId,
        version: Eversion,
        piece: Option<ObjectPiece>,
        out: &mut Vec<PgCommand>,
    ) {
        if !self.accepts_primary(from, interval) || !self.exists {
            return;
        }
        let mut txn = Transaction::new(self.id);
        let last = match piece {
            None => {
                txn.push(TxnOp::Remove(object.clone()));
                true
            }
            Some(piece) => {
                let open = self.replica.open.remove(&object);
                let Some(assembly) = IncomingObject::assemble(open, &piece, &self.settings) else { return };
                let last = piece.next.is_none();
                // The primary may send an object that it considers missing but that is present, because it was removed and created
                // again in the meantime. The first piece replaces that copy, and the others may never arrive.
                if piece.is_first()
                    && !last
                    && self.copy.complete
                    && self.missing.insert(object.clone(), version).is_none()
                {
                    pg_info::put_missing(&object, version, &mut txn);
                }
                let attrs = match assembly {
                    Assembly::Complete(attrs) => attrs,
                    Assembly::Open(open) => {
                        self.replica.open.insert(object.clone(), open);
                        Vec::new()
                    }
                };
                put_piece(&object, piece, attrs, &mut txn);
                last
            }
        };
        out.push(PgCommand::Invalidate { object: Some(object.clone()) });
        if !last {
            self.persist(txn, OnCommit::Piece { to: from, interval, object }, out);
            return;
        }
        if self.missing.remove(&object).is_some() {
            pg_info::remove_missing(&object, &mut txn);
        }
        self.persist(txn, OnCommit::Pushed { to: from, interval, object, version }, out);
    }

    /// Handles the primary's request to fill this copy.
    pub(crate) fn on_reserve_backfill(
        &mut self,
        from: OsdId,
        interval: Interval,
        priority: u8,
        out: &mut Vec<PgCommand>,
    ) {
        let Some(session) = self.replica.session.filter(|_| self.accepts_primary(from, interval)) else {
            return;
        };
        if self.replica.target.is_some_and(|(of, _)| of != session) {
            self.release_remote_backfill(out);
        }
        let granted = self.replica.target.is_some_and(|(_, held)| held);
        if !granted {
            self.replica.target = Some((session, false));
            out.push(PgCommand::ReserveRemoteBackfill { priority });
        }
        // The answer also shows that this member is alive while it waits.
        out.push(PgCommand::Send { to: from, msg: PeerMsg::BackfillReserved { interval, granted } });
    }

    pub(crate) fn on_remote_backfill_reserved(&mut self, out: &mut Vec<PgCommand>) {
        // Otherwise the slot was released before this event.
        let Some((session, held)) = &mut self.replica.target else { return };
        *held = true;
        let msg = PeerMsg::BackfillReserved { interval: session.since, granted: true };
        out.push(PgCommand::Send { to: session.primary, msg });
    }

    /// Releases the slot. The primary requests one again, and gets it when there is space.
    pub(crate) fn on_remote_backfill_too_full(&mut self, out: &mut Vec<PgCommand>) {
        let Some((session, true)) = self.replica.target else { return };
        self.release_remote_backfill(out);
        let msg = PeerMsg::BackfillReserved { interval: session.since, granted: false };
        out.push(PgCommand::Send { to: session.primary, msg });
    }

    /// Releases the slot once no primary fills this copy.
    pub(crate) fn check_remote_backfill(&mut self, out: &mut Vec<PgCommand>) {
        let Some((session, _)) = self.replica.target else { return };
        let goes_on = self.replica.session == Some(session)
            && self.up.contains(&self.me.osd)
            && self.map.as_ref().is_some_and(|map| map.is_up(session.primary));
        if !goes_on {
            self.release_remote_backfill(out);
        }
    }

    pub(crate) fn release_remote_backfill(&mut self, out: &mut Vec<PgCommand>) {
        if self.replica.target.take().is_some() {
            out.push(PgCommand::ReleaseRemoteBackfill);
        }
    }

    pub(crate) fn on_scan(
        &mut self,
        from: OsdId,
        interval: Interval,
        scan: u64,
        start: Option<ObjectId>,
        max: u64,
        out: &mut Vec<PgCommand>,
    ) {
        if self.accepts_primary(from, interval) {
            self.list_objects(ListPurpose::Scan { to: from, interval, scan }, start, max as usize, out);
        }
    }

    pub(crate) fn on_backfill_cursor(
        &mut self,
        from: OsdId,
        interval: Interval,
        cursor: Option<ObjectId>,
        out: &mut Vec<PgCommand>,
    ) {
        if !self.accepts_primary(from, interval) || cursor.is_some() {
            return;
        }
        self.release_remote_backfill(out);
        self.copy.complete = true;
        self.persist_record(OnCommit::CaughtLog { to: from, interval }, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_piece_that_continues_an_object_is_added() {
        let piece = |version, start, next: Option<u64>| ObjectPiece {
            start: PieceCursor { offset: start, omap_after: None },
            version: Eversion::new(Interval(1), version),
            size: 12,
            data: Bytes::from_static(b"data"),
            attrs: vec![("_".to_owned(), Bytes::new())],
            omap_header: Bytes::new(),
            omap: Vec::new(),
            next: next.map(|offset| PieceCursor { offset, omap_after: None }),
        };
        let settings = PgSettings::default();
        let assemble = |open, piece| IncomingObject::assemble(open, &piece, &settings);
        let open = || match assemble(None, piece(1, 0, Some(4))) {
            Some(Assembly::Open(open)) => Some(open),
            _ => None,
        };
        assert!(open().is_some());
        assert!(assemble(None, piece(1, 4, Some(8))).is_none());
        assert!(assemble(open(), piece(1, 8, None)).is_none());
        assert!(assemble(open(), piece(2, 4, None)).is_none());
        let complete = assemble(open(), piece(1, 4, None));
        assert!(matches!(complete, Some(Assembly::Complete(attrs)) if attrs.len() == 1));
        // The first piece begins the object again.
        assert!(matches!(assemble(open(), piece(2, 0, Some(4))), Some(Assembly::Open(_))));
    }
}
