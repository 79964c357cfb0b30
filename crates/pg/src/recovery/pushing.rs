//! Transfer of objects, in pieces, to members that catch up.

use super::SILENT_RETRIES;
use crate::api::{ObjectPiece, PeerMsg, PgCommand, PieceCursor};
use crate::log::EntryKind;
use crate::pg::{Pg, ReadPurpose};
use nacre_types::errno::Errno;
use nacre_types::ids::{Eversion, Interval, OsdId};
use nacre_types::object::ObjectId;

/// A piece of an object in transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PushStep {
    /// The first one, which may be the whole object.
    First,
    /// A later one, or the first of several after it was sent: writes wait.
    Later,
    /// A piece that was sent before and not answered.
    Again,
}

/// An object in transfer.
#[derive(Clone, Debug)]
pub(super) struct InflightPush {
    /// The current or last read; answers to other reads belong to an attempt that was given up.
    read: u64,
    /// Which piece it is.
    piece: PushStep,
    /// The piece that is being read or was sent last.
    pub(super) at: PieceCursor,
    /// The next piece, which is read when the member has stored the previous one.
    next: Option<PieceCursor>,
    /// When the piece was sent. Other messages of the member since then may say nothing about it.
    sent_at: u64,
}

impl InflightPush {
    /// Whether writes to the object wait for the copy.
    pub(super) fn is_in_pieces(&self) -> bool {
        self.piece != PushStep::First
    }

    /// Whether the member must answer. This includes the time while an unanswered piece is read again.
    pub(super) fn is_awaited(&self) -> bool {
        self.next.is_some() || self.piece == PushStep::Again
    }

    /// Whether the piece, or its answer, counts as lost.
    pub(super) fn is_lost(&self, now: u64, retry: u64) -> bool {
        self.next.is_some() && now >= self.sent_at + SILENT_RETRIES * retry
    }
}

impl Pg {
    pub(super) fn read_push(
        &mut self,
        to: OsdId,
        object: ObjectId,
        (cursor, piece): (PieceCursor, PushStep),
        out: &mut Vec<PgCommand>,
    ) {
        let purpose = ReadPurpose::Push { to, object: object.clone() };
        let at = cursor.clone();
        let read = self.read_object(purpose, object.clone(), cursor, out);
        let sent_at = self.now;
        if let Some(catching_up) = self.primary.as_mut().and_then(|p| p.catching_up.get_mut(&to)) {
            catching_up.pushing.insert(object, InflightPush { read, piece, at, next: None, sent_at });
        }
    }

    pub(crate) fn on_object_read(
        &mut self,
        read: u64,
        piece: Result<Option<ObjectPiece>, Errno>,
        out: &mut Vec<PgCommand>,
    ) {
        match self.reads.remove(&read) {
            Some(ReadPurpose::Tail { to }) => self.on_tail_read(to, read, piece, out),
            Some(ReadPurpose::Push { to, object }) => self.push(to, read, object, piece, out),
            None => {}
        }
    }

    fn push(
        &mut self,
        to: OsdId,
        read: u64,
        object: ObjectId,
        piece: Result<Option<ObjectPiece>, Errno>,
        out: &mut Vec<PgCommand>,
    ) {
        let interval = self.interval();
        // A write may have replaced what was read; the copy must have the newest version.
        let newest = self.log.latest_for_object(&object);
        let expected = newest.map(|e| match e.kind {
            EntryKind::Delete | EntryKind::Error => Eversion::default(),
            EntryKind::Modify => e.version,
        });
        let Some(catching_up) = self.primary.as_mut().and_then(|p| p.catching_up.get_mut(&to)) else {
            return;
        };
        let pushing = catching_up.pushing.get(&object).filter(|pushing| pushing.read == read);
        let Some((at, which)) = pushing.map(|pushing| (pushing.at.clone(), pushing.piece)) else { return };
        if which != PushStep::Again {
            // The read counts as progress, however long the store took. A piece that the member does not answer shows no
            // progress of it.
            catching_up.heard_at = self.now;
        }
        // The data of an object that is now known to be damaged is not used.
        let piece = match piece {
            Ok(piece) if !self.missing.contains_key(&object) => piece,
            other => {
                catching_up.pushing.remove(&object);
                if let Some(backfill) = &mut catching_up.backfill {
                    backfill.work.insert(object.clone());
                }
                // It is tried again later, unless it is known to be damaged then.
                catching_up.unreadable.insert(object.clone());
                if other == Err(Errno::EIO) {
                    self.mark_damaged(&object, out);
                }
                return;
            }
        };
        let version = piece.as_ref().map_or(Eversion::default(), |p| p.version);
        if expected.is_some_and(|expected| expected != version) {
            return self.read_push(to, object, (PieceCursor::default(), PushStep::First), out);
        }
        let next = piece.as_ref().and_then(|p| p.next.clone());
        out.push(PgCommand::Send {
            to,
            msg: PeerMsg::Push { interval, object: object.clone(), version, piece },
        });
        match next {
            Some(cursor) => {
                let piece = if which == PushStep::First { PushStep::Later } else { which };
                let waiting = InflightPush { read, piece, at, next: Some(cursor), sent_at: self.now };
                catching_up.pushing.insert(object, waiting);
            }
            None => {
                catching_up.pushing.remove(&object);
                catching_up.missing.remove(&object);
                catching_up.unconfirmed.insert(object.clone());
                if let Some(backfill) = &mut catching_up.backfill {
                    backfill.work.remove(&object);
                    backfill.done.insert(object);
                }
            }
        }
    }

    pub(crate) fn on_push_done(
        &mut self,
        from: OsdId,
        interval: Interval,
        object: &ObjectId,
        _version: Eversion,
    ) {
        let known = self.reign_includes(interval);
        if let Some(catching_up) = self.primary.as_mut().and_then(|p| p.catching_up.get_mut(&from))
            && known
        {
            catching_up.unconfirmed.remove(object);
            catching_up.heard_at = self.now;
        }
    }

    /// Handles a member's report that it stored a piece: the object's next piece is read.
    pub(crate) fn on_push_piece_done(
        &mut self,
        from: OsdId,
        interval: Interval,
        object: ObjectId,
        out: &mut Vec<PgCommand>,
    ) {
        if !self.reign_includes(interval) {
            return;
        }
        let now = self.now;
        let Some(catching_up) = self.primary.as_mut().and_then(|p| p.catching_up.get_mut(&from)) else {
            return;
        };
        let Some(pushing) = catching_up.pushing.get_mut(&object) else { return };
        catching_up.heard_at = now;
        if let Some(cursor) = pushing.next.take() {
            self.read_push(from, object, (cursor, PushStep::Later), out);
        }
    }
}
