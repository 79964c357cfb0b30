//! Tails: the last updates, with the objects that they changed, from one in-sync member to another.
//!
//! The receiver's copy is complete at all times: objects are assembled under temporary names, and one transaction renames them
//! into place and appends the log entries. A crash leaves the state before or after this transaction.

use crate::api::{ObjectPiece, PeerMsg, PgCommand, PieceCursor};
use crate::log::{EntryKind, LogEntry};
use crate::pg::{OnCommit, Pg, ReadPurpose};
use crate::pg_info::{self, TEMP_NAMESPACE};
use crate::primary::{Primary, PrimaryPhase};
use crate::replica::{Assembly, FollowedPrimary, IncomingObject, IncomingTail, ReceivedObject};
use bytes::Bytes;
use nacre_types::errno::Errno;
use nacre_types::ids::{Eversion, Interval, OsdId};
use nacre_types::object::{ObjectId, SNAP_HEAD};
use nacre_types::txn::{Transaction, TxnOp};
use std::collections::{BTreeSet, VecDeque};

/// The most pieces of a tail that are in flight to its receiver.
const MAX_INFLIGHT_PIECES: usize = 8;

/// A tail that is sent to a member.
#[derive(Debug)]
pub(crate) struct TailSender {
    interval: Interval,
    /// Objects that are still to be read; the first is being read.
    queue: VecDeque<ObjectId>,
    /// The current read; answers to other reads belong to a tail that was given up.
    read: u64,
    /// Pieces that the receiver has not stored yet, as far as is known.
    under_way: usize,
    /// The next piece, which is read when fewer are in flight.
    next: Option<PieceCursor>,
}

impl Pg {
    /// Sends `to` everything above `after`, and the objects `more` that it lacks.
    pub(crate) fn send_tail(
        &mut self,
        to: OsdId,
        after: Eversion,
        more: &[ObjectId],
        out: &mut Vec<PgCommand>,
    ) {
        let interval = self.interval().max(self.promised);
        let (mut entries, mut objects) = (Vec::new(), BTreeSet::from_iter(more.iter().cloned()));
        for entry in self.log.entries_after(after) {
            entries.push(entry.encode());
            if entry.kind != EntryKind::Error {
                objects.insert(entry.object.clone());
            }
        }
        let queue: VecDeque<ObjectId> = objects.into_iter().collect();
        let msg = PeerMsg::Tail { interval, after, entries, objects: queue.len() as u64 };
        out.push(PgCommand::Send { to, msg });
        let next = Some(PieceCursor::default());
        self.tail_senders.insert(to, TailSender { interval, queue, read: 0, under_way: 0, next });
        self.send_next_tail_piece(to, out);
    }

    /// Reads the next piece, if the receiver has stored enough of the previous ones.
    fn send_next_tail_piece(&mut self, to: OsdId, out: &mut Vec<PgCommand>) {
        let Some(sender) = self.tail_senders.get_mut(&to) else { return };
        while let Some(object) = sender.queue.pop_front_if(|object| self.missing.contains_key(object)) {
            let msg = PeerMsg::TailUnreadable { interval: sender.interval, object };
            out.push(PgCommand::Send { to, msg });
            sender.next = Some(PieceCursor::default());
        }
        let Some(object) = sender.queue.front().cloned() else {
            self.tail_senders.remove(&to);
            return;
        };
        if sender.under_way >= MAX_INFLIGHT_PIECES {
            return;
        }
        if let Some(cursor) = sender.next.take() {
            let read = self.read_object(ReadPurpose::Tail { to }, object, cursor, out);
            if let Some(sender) = self.tail_senders.get_mut(&to) {
                sender.read = read;
            }
        }
    }

    /// Handles the receiver's report that it stored a piece.
    pub(crate) fn on_tail_piece_done(&mut self, from: OsdId, interval: Interval, out: &mut Vec<PgCommand>) {
        self.note_tail_progress(from);
        if let Some(sender) = self.tail_senders.get_mut(&from).filter(|sender| sender.interval == interval) {
            sender.under_way = sender.under_way.saturating_sub(1);
            self.send_next_tail_piece(from, out);
        }
    }

    /// Records progress of a tail to or from `osd`, which restarts peering's timeout.
    fn note_tail_progress(&mut self, osd: OsdId) {
        let now = self.now;
        if let Some(primary) = &mut self.primary
            && primary.peering.is_transferring_tail(osd)
        {
            primary.peering.asked_at = now;
        }
    }

    pub(crate) fn on_tail_read(
        &mut self,
        to: OsdId,
        read: u64,
        piece: Result<Option<ObjectPiece>, Errno>,
        out: &mut Vec<PgCommand>,
    ) {
        let Some(sender) = self.tail_senders.get_mut(&to).filter(|sender| sender.read == read) else {
            return;
        };
        let Some(object) = sender.queue.front().cloned() else { return };
        let piece = match piece {
            Ok(piece) => piece,
            // A primary first fetches it from another member.
            Err(Errno::EIO) if self.mark_damaged(&object, out) && self.primary.is_none() => {
                return self.send_next_tail_piece(to, out);
            }
            // The tail is requested again.
            Err(_) => {
                self.tail_senders.remove(&to);
                return;
            }
        };
        let next = piece.as_ref().and_then(|p| p.next.clone());
        let msg = PeerMsg::TailObject { interval: sender.interval, object: object.clone(), piece };
        out.push(PgCommand::Send { to, msg });
        if next.is_none() {
            sender.queue.pop_front();
        }
        sender.under_way += 1;
        sender.next = Some(next.unwrap_or_default());
        self.note_tail_progress(to);
        self.send_next_tail_piece(to, out);
    }

    pub(crate) fn on_get_tail(
        &mut self,
        from: OsdId,
        interval: Interval,
        after: Eversion,
        objects: &[ObjectId],
        out: &mut Vec<PgCommand>,
    ) {
        let asked = |s: FollowedPrimary| s.primary == from && s.since == interval;
        if !self.replica.session.is_some_and(asked) || !self.log.contains(after) {
            return;
        }
        self.send_tail(from, after, objects, out);
    }

    pub(crate) fn on_tail(
        &mut self,
        from: OsdId,
        interval: Interval,
        after: Eversion,
        entries: Vec<Bytes>,
        objects: u64,
        out: &mut Vec<PgCommand>,
    ) {
        // A tail that was requested in an earlier round may arrive late: it must not replace later changes.
        let adopts = |p: &Primary| p.phase == PrimaryPhase::Peering && p.peering.adopting == Some(from);
        let as_primary = self.primary.as_ref().is_some_and(adopts) && interval == self.interval();
        let as_replica = self.replica.session.is_some_and(|s| s.primary == from && s.since <= interval);
        // A member with fewer updates may have objects that this copy lacks.
        let fits = after == self.log.head() || entries.is_empty() && self.log.contains(after);
        if !(as_primary || as_replica) || !fits {
            return;
        }
        let entries: Result<Vec<LogEntry>, _> = entries.iter().map(|bytes| LogEntry::decode(bytes)).collect();
        let Ok(entries) = entries else { return };
        self.staged = Some(IncomingTail {
            from,
            interval,
            after,
            entries,
            awaited: objects,
            ready: Vec::new(),
            open: None,
        });
        self.note_tail_progress(from);
        self.finish_tail(out);
    }

    pub(crate) fn on_tail_object(
        &mut self,
        from: OsdId,
        interval: Interval,
        object: ObjectId,
        piece: Option<ObjectPiece>,
        out: &mut Vec<PgCommand>,
    ) {
        let Some(staged) = &mut self.staged else { return };
        if staged.from != from || staged.interval != interval {
            return;
        }
        let Some(piece) = piece else {
            out.push(PgCommand::Send {
                to: from,
                msg: PeerMsg::PieceDone { interval, object: object.clone() },
            });
            return self.on_tail_object_done(from, interval, object, ReceivedObject::Absent, out);
        };
        let name = format!("tail.{}", staged.ready.len());
        let temp = ObjectId::with_hash(object.pool(), TEMP_NAMESPACE, "", &name, SNAP_HEAD, object.hash());
        let open = staged.open.take().filter(|(opened, _)| *opened == object).map(|(_, open)| open);
        // Pieces in between are lost with a session. The tail is requested again.
        let Some(assembly) = IncomingObject::assemble(open, &piece, &self.settings) else {
            self.staged = None;
            return;
        };
        let mut txn = Transaction::new(self.id);
        if piece.is_first() && !self.temps.contains(&temp) {
            self.temps.push(temp.clone());
            pg_info::put_temps(&self.temps, &mut txn);
        }
        let attrs = match assembly {
            Assembly::Complete(attrs) => {
                staged.ready.push((object.clone(), ReceivedObject::In(temp.clone())));
                attrs
            }
            Assembly::Open(open) => {
                staged.open = Some((object.clone(), open));
                Vec::new()
            }
        };
        put_piece(&temp, piece, attrs, &mut txn);
        self.persist(txn, OnCommit::TailPiece { to: from, interval, object }, out);
        self.note_tail_progress(from);
        self.finish_tail(out);
    }

    /// Handles the arrival of a tail's object without data.
    pub(crate) fn on_tail_object_done(
        &mut self,
        from: OsdId,
        interval: Interval,
        object: ObjectId,
        arrived: ReceivedObject,
        out: &mut Vec<PgCommand>,
    ) {
        if let Some(staged) = self.staged.as_mut().filter(|s| s.from == from && s.interval == interval) {
            let lacks = matches!(arrived, ReceivedObject::Unreadable).then(|| object.clone());
            staged.ready.push((object, arrived));
            if let Some(info) = self.primary.as_mut().and_then(|p| p.peering.infos.get_mut(&from))
                && let Some(object) = lacks
            {
                // The member may have discovered this only now.
                info.missing += u64::from(info.lacks.insert(object));
            }
            self.note_tail_progress(from);
            self.finish_tail(out);
        }
    }

    /// Applies the tail once all of its objects have arrived.
    fn finish_tail(&mut self, out: &mut Vec<PgCommand>) {
        if self.staged.as_ref().is_none_or(|s| (s.ready.len() as u64) < s.awaited) {
            return;
        }
        let Some(staged) = self.staged.take() else { return };
        if staged.after != self.log.head() && !staged.entries.is_empty() {
            return;
        }
        let mut txn = Transaction::new(self.id);
        if !self.exists {
            self.create_copy(&mut txn);
        }
        for (object, arrived) in staged.ready {
            match arrived {
                ReceivedObject::In(temp) => {
                    self.temps.retain(|t| *t != temp);
                    // The existing object may be damaged: a removal does not read it.
                    txn.push(TxnOp::Remove(object.clone()));
                    txn.push(TxnOp::Rename { from: temp, to: object.clone() });
                }
                ReceivedObject::Absent => {
                    txn.push(TxnOp::Remove(object.clone()));
                }
                ReceivedObject::Unreadable => {
                    let names = |entry: &&LogEntry| entry.object == object && entry.kind == EntryKind::Modify;
                    let newest = staged.entries.iter().rev().find(names);
                    if let Some(needed) = newest.map(|entry| entry.version) {
                        pg_info::put_missing(&object, needed, &mut txn);
                        self.missing.insert(object, needed);
                    }
                    continue;
                }
            }
            if self.missing.remove(&object).is_some() {
                pg_info::remove_missing(&object, &mut txn);
                self.mark_repaired(&object);
            }
            out.push(PgCommand::Invalidate { object: Some(object) });
        }
        self.drop_temps(&mut txn);
        let mut encoded = Vec::with_capacity(staged.entries.len());
        for entry in staged.entries {
            if !self.log.accepts(entry.version) {
                break;
            }
            encoded.push((entry.version, entry.encode()));
            self.log.append(entry);
        }
        if !encoded.is_empty() {
            txn.push(TxnOp::LogAppend(encoded));
        }
        self.put_record(&mut txn);
        if let Some(primary) = &mut self.primary {
            primary.peering.adopting = None;
        }
        let to = if self.primary.is_some() { self.me.osd } else { staged.from };
        let head = self.log.head();
        self.persist(txn, OnCommit::TailDone { to, interval: staged.interval, head }, out);
    }
}

/// Adds the steps that store `piece` in `object`. `attrs` are set with the last piece, so that an incomplete object has no
/// version.
pub(crate) fn put_piece(
    object: &ObjectId,
    piece: ObjectPiece,
    attrs: Vec<(String, Bytes)>,
    txn: &mut Transaction,
) {
    let oid = object.clone();
    if piece.is_first() {
        txn.push(TxnOp::Remove(oid.clone()));
        txn.push(TxnOp::Touch(oid.clone()));
        if piece.size > 0 {
            txn.push(TxnOp::Truncate { oid: oid.clone(), size: piece.size });
        }
        if !piece.omap_header.is_empty() {
            txn.push(TxnOp::OmapSetHeader { oid: oid.clone(), header: piece.omap_header });
        }
    }
    if !piece.data.is_empty() {
        txn.push(TxnOp::Write { oid: oid.clone(), offset: piece.start.offset, data: piece.data.into() });
    }
    if !piece.omap.is_empty() {
        txn.push(TxnOp::OmapSet { oid: oid.clone(), entries: piece.omap });
    }
    if !attrs.is_empty() {
        txn.push(TxnOp::SetAttrs { oid, attrs });
    }
}
