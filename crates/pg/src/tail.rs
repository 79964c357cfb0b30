//! Tails: the last updates, with the objects that they changed, from one in-sync member to another.
//!
//! The receiver stays whole at every instant: objects are put together under temporary names, and one transaction
//! renames them into place and appends the log entries. A crash before it leaves the old state, after it the new one.

use crate::api::{Command, ObjectPiece, PeerMsg, PieceCursor};
use crate::copy::{self, TEMP_NAMESPACE};
use crate::log::{EntryKind, LogEntry};
use crate::pg::{Durable, Pg, ReadFor};
use crate::replica::{Session, Staged};
use bytes::Bytes;
use nacre_types::errno::Errno;
use nacre_types::ids::{Eversion, Interval, OsdId};
use nacre_types::object::{ObjectId, SNAP_HEAD};
use nacre_types::txn::{Transaction, TxnOp};
use std::collections::{BTreeSet, VecDeque};

/// A tail being sent to a member.
#[derive(Debug)]
pub(crate) struct TailSender {
    interval: Interval,
    /// Objects still to be read; the first is being read.
    queue: VecDeque<ObjectId>,
    /// The read whose answer is awaited; answers to others belong to a tail that was given up.
    read: u64,
}

impl Pg {
    /// Sends `to` everything above `after`.
    pub(crate) fn send_tail(&mut self, to: OsdId, after: Eversion, out: &mut Vec<Command>) {
        let interval = self.interval().max(self.promised);
        let (mut entries, mut objects) = (Vec::new(), BTreeSet::new());
        for entry in self.log.entries_after(after) {
            entries.push(entry.encode());
            if entry.kind != EntryKind::Error {
                objects.insert(entry.object.clone());
            }
        }
        let queue: VecDeque<ObjectId> = objects.into_iter().collect();
        let msg = PeerMsg::Tail { interval, after, entries, objects: queue.len() as u64 };
        out.push(Command::Send { to, msg });
        self.senders.insert(to, TailSender { interval, queue, read: 0 });
        self.send_next_tail_object(to, out);
    }

    fn send_next_tail_object(&mut self, to: OsdId, out: &mut Vec<Command>) {
        match self.senders.get(&to).and_then(|sender| sender.queue.front().cloned()) {
            Some(object) => self.read_tail_object(to, object, PieceCursor::default(), out),
            None => drop(self.senders.remove(&to)),
        }
    }

    fn read_tail_object(&mut self, to: OsdId, object: ObjectId, cursor: PieceCursor, out: &mut Vec<Command>) {
        let read = self.read_object(ReadFor::Tail { to }, object, cursor, out);
        if let Some(sender) = self.senders.get_mut(&to) {
            sender.read = read;
        }
    }

    pub(crate) fn on_tail_read(
        &mut self,
        to: OsdId,
        read: u64,
        piece: Result<Option<ObjectPiece>, Errno>,
        out: &mut Vec<Command>,
    ) {
        let Some(sender) = self.senders.get_mut(&to).filter(|sender| sender.read == read) else { return };
        let Ok(piece) = piece else {
            // The copy is damaged: the tail can't be sent, the primary's retry asks again or another.
            self.senders.remove(&to);
            return;
        };
        let Some(object) = sender.queue.front().cloned() else { return };
        let next = piece.as_ref().and_then(|p| p.next.clone());
        let msg = PeerMsg::TailObject { interval: sender.interval, object: object.clone(), piece };
        out.push(Command::Send { to, msg });
        match next {
            Some(cursor) => self.read_tail_object(to, object, cursor, out),
            None => {
                sender.queue.pop_front();
                self.send_next_tail_object(to, out);
            }
        }
    }

    pub(crate) fn on_get_tail(
        &mut self,
        from: OsdId,
        interval: Interval,
        after: Eversion,
        out: &mut Vec<Command>,
    ) {
        if self.replica.session != Some(Session { primary: from, since: interval })
            || !self.log.contains(after)
        {
            return;
        }
        self.send_tail(from, after, out);
    }

    pub(crate) fn on_tail(
        &mut self,
        from: OsdId,
        interval: Interval,
        after: Eversion,
        entries: Vec<Bytes>,
        objects: u64,
        out: &mut Vec<Command>,
    ) {
        let as_primary = self.primary.is_some() && interval == self.interval();
        let as_replica = self.replica.session.is_some_and(|s| s.primary == from && s.since <= interval);
        if !(as_primary || as_replica) || after != self.log.head() {
            return;
        }
        let entries: Result<Vec<LogEntry>, _> = entries.iter().map(|bytes| LogEntry::decode(bytes)).collect();
        let Ok(entries) = entries else { return };
        self.staged =
            Some(Staged { from, interval, after, entries, awaited: objects, ready: Vec::new(), open: None });
        self.finish_tail(out);
    }

    pub(crate) fn on_tail_object(
        &mut self,
        from: OsdId,
        interval: Interval,
        object: ObjectId,
        piece: Option<ObjectPiece>,
        out: &mut Vec<Command>,
    ) {
        let Some(staged) = &mut self.staged else { return };
        if staged.from != from || staged.interval != interval {
            return;
        }
        let Some(piece) = piece else {
            staged.ready.push((object, None));
            return self.finish_tail(out);
        };
        let name = format!("tail.{}", staged.ready.len());
        let temp = ObjectId::with_hash(object.pool(), TEMP_NAMESPACE, "", &name, SNAP_HEAD, object.hash());
        let mut txn = Transaction::new(self.id);
        if piece.first {
            staged.open = Some(piece.attrs.clone());
            if !self.temps.contains(&temp) {
                self.temps.push(temp.clone());
                copy::put_temps(&self.temps, &mut txn);
            }
        }
        let last = piece.next.is_none();
        let attrs = if last { staged.open.take().unwrap_or_default() } else { Vec::new() };
        put_piece(&temp, piece, attrs, &mut txn);
        if last {
            staged.ready.push((object, Some(temp)));
        }
        self.persist(txn, Durable::Nothing, out);
        self.finish_tail(out);
    }

    /// Puts the tail into effect once all of its objects are there.
    fn finish_tail(&mut self, out: &mut Vec<Command>) {
        if self.staged.as_ref().is_none_or(|s| (s.ready.len() as u64) < s.awaited) {
            return;
        }
        let Some(staged) = self.staged.take() else { return };
        if staged.after != self.log.head() {
            return;
        }
        let mut txn = Transaction::new(self.id);
        if !self.exists {
            self.create_copy(&mut txn);
        }
        for (object, temp) in staged.ready {
            match temp {
                Some(temp) => {
                    self.temps.retain(|t| *t != temp);
                    txn.push(TxnOp::Rename { from: temp, to: object.clone() });
                }
                None => {
                    txn.push(TxnOp::Remove(object.clone()));
                }
            }
            out.push(Command::Invalidate { object: Some(object) });
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
        let to = if self.primary.is_some() { self.me.osd } else { staged.from };
        self.persist(txn, Durable::TailDone { to, interval: staged.interval }, out);
    }
}

/// Adds the steps that put `piece` into `object`; `attrs` go with the last one, so that an object that was not finished
/// has no version.
pub(crate) fn put_piece(
    object: &ObjectId,
    piece: ObjectPiece,
    attrs: Vec<(String, Bytes)>,
    txn: &mut Transaction,
) {
    let oid = object.clone();
    if piece.first {
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
        txn.push(TxnOp::Write { oid: oid.clone(), offset: piece.offset, data: piece.data.into() });
    }
    if !piece.omap.is_empty() {
        txn.push(TxnOp::OmapSet { oid: oid.clone(), entries: piece.omap });
    }
    if !attrs.is_empty() {
        txn.push(TxnOp::SetAttrs { oid, attrs });
    }
}
