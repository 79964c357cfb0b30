//! The guarded requests of the striper, and the meaning of their answers.

use super::meta::{
    EPOCH, EPOCH_INVERSE, INSTANCE, INSTANCE_INVERSE, LAST_TRUNCATION, LastTruncation, PIECE_BOUND,
    PieceIdentity, SIZE, UNFINISHED,
};
use bytes::Bytes;
use nacre_engine::{OpReply, ReadOp, Result, WriteOp};
use nacre_types::errno::Errno;
use nacre_types::op::CmpOp;

/// The outcome of a guarded request.
#[derive(Debug)]
pub(super) enum GuardOutcome {
    /// It took effect.
    Done,
    /// The part with this number, a guard, did not hold, or the object does not exist. Nothing was changed. Like a read, the
    /// answer waited until earlier writes to the object were durable.
    GuardFailed(usize),
}

/// Interprets an answer. Errors other than a failed guard are returned.
pub(super) fn verdict(answer: Result<OpReply>) -> Result<GuardOutcome> {
    let reply = answer?;
    match Errno::from_result(reply.result) {
        Ok(_) => Ok(GuardOutcome::Done),
        Err(Errno::ECANCELED | Errno::ENOENT) => {
            Ok(GuardOutcome::GuardFailed(reply.ops.iter().position(|part| part.code < 0).unwrap_or(0)))
        }
        Err(errno) => Err(errno.into()),
    }
}

fn text(number: u64) -> Bytes {
    number.to_string().into()
}

/// A write to the first piece that is valid only in `epoch`.
pub(super) fn in_epoch(epoch: u64) -> WriteOp {
    let mut op = WriteOp::new();
    op.cmp_xattr_u64(EPOCH, CmpOp::Eq, epoch);
    op
}

/// Parts 1 and 2: set the size to `end`. The guard holds if the size is less.
pub(super) fn grow(op: &mut WriteOp, end: u64) {
    op.cmp_xattr_u64(SIZE, CmpOp::Gt, end).set_xattr(SIZE, text(end));
}

/// Part 1: a guard that holds if the size is at least `end`.
pub(super) fn guard_min_size(op: &mut WriteOp, end: u64) {
    op.cmp_xattr_u64(SIZE, CmpOp::Lte, end);
}

/// A request that changes nothing. Part 0 holds only in `epoch`, part 1 if the size is at least `end`.
pub(super) fn check(epoch: u64, end: u64) -> ReadOp {
    let mut op = ReadOp::new();
    op.cmp_xattr_u64(EPOCH, CmpOp::Eq, epoch).cmp_xattr_u64(SIZE, CmpOp::Lte, end);
    op
}

/// The claim of an append: sets the size to `end`. Part 1 holds if the size is `from`.
pub(super) fn claim_append(epoch: u64, from: u64, end: u64) -> WriteOp {
    let mut op = in_epoch(epoch);
    op.cmp_xattr_u64(SIZE, CmpOp::Eq, from).set_xattr(SIZE, text(end));
    op
}

/// Announces that pieces below `pieces` may exist. Part 1 holds if fewer were announced.
pub(super) fn announce(epoch: u64, pieces: u64) -> WriteOp {
    let mut op = in_epoch(epoch);
    op.cmp_xattr_u64(PIECE_BOUND, CmpOp::Gt, pieces).set_xattr(PIECE_BOUND, text(pieces));
    op
}

/// Writes data to a piece other than the first. If the piece is not known to carry the epoch (`marked`), the request also
/// creates it and sets its epoch. It does not hold if a later epoch has marked the piece, or if the piece is a stray
/// ([`is_stray_guard`]).
pub(super) fn write_piece(stamp: PieceIdentity, marked: bool, offset: u64, data: Bytes) -> WriteOp {
    let mut op = WriteOp::new();
    if marked {
        op.cmp_xattr_u64(EPOCH, CmpOp::Eq, stamp.epoch);
    } else {
        take(&mut op, stamp);
    }
    op.write(offset, data);
    op
}

/// The part of [`read_piece`] that reads.
pub(super) const READ_PART: usize = 3;

/// Reads from a piece other than the first. It does not hold if the piece is a stray: of another object of this name, or of an
/// epoch before `floor`.
pub(super) fn read_piece(identity: PieceIdentity, offset: u64, len: u64) -> ReadOp {
    let mut op = ReadOp::new();
    op.cmp_xattr_u64(INSTANCE, CmpOp::Gte, identity.born);
    op.cmp_xattr_u64(INSTANCE_INVERSE, CmpOp::Gte, u64::MAX - identity.born);
    op.cmp_xattr_u64(EPOCH_INVERSE, CmpOp::Gte, u64::MAX - identity.floor);
    op.read(offset, len);
    op
}

/// Creates a piece and sets its epoch.
fn take(op: &mut WriteOp, stamp: PieceIdentity) {
    op.create(false);
    of_object(op, stamp);
    op.cmp_xattr_u64(EPOCH_INVERSE, CmpOp::Gte, u64::MAX - stamp.floor);
    let mut set = |name, inverse, number: u64| {
        if number > 0 {
            op.set_xattr(name, text(number)).set_xattr(inverse, text(u64::MAX - number));
        }
    };
    set(INSTANCE, INSTANCE_INVERSE, stamp.born);
    set(EPOCH, EPOCH_INVERSE, stamp.epoch);
}

/// Parts 1 to 3: the piece is of this object or names no object, and its epoch is not later.
fn of_object(op: &mut WriteOp, stamp: PieceIdentity) {
    op.cmp_xattr_u64(INSTANCE, CmpOp::Gte, stamp.born);
    op.cmp_xattr_u64(INSTANCE_INVERSE, CmpOp::Gte, u64::MAX - stamp.born);
    op.cmp_xattr_u64(EPOCH, CmpOp::Gte, stamp.epoch);
}

/// Whether the failed part, of a request to a piece that is not known to carry the epoch, shows that the piece is of another
/// object of this name or of an epoch before `floor`.
pub(super) fn is_stray_guard(part: usize) -> bool {
    matches!(part, 1 | 2 | 4)
}

/// Removes a piece of this object and epoch.
pub(super) fn remove_piece_in_epoch(born: u64, epoch: u64) -> WriteOp {
    let mut op = WriteOp::new();
    op.cmp_xattr_u64(EPOCH, CmpOp::Eq, epoch).cmp_xattr_u64(INSTANCE, CmpOp::Eq, born);
    op.remove().full_force();
    op
}

/// Sets [`EPOCH_INVERSE`] on a piece that was written by a release without it.
pub(super) fn set_epoch_inverse(born: u64, epoch: u64) -> WriteOp {
    let mut op = WriteOp::new();
    op.cmp_xattr_u64(EPOCH, CmpOp::Eq, epoch).cmp_xattr_u64(INSTANCE, CmpOp::Eq, born);
    op.set_xattr(EPOCH_INVERSE, text(u64::MAX - epoch)).full_force();
    op
}

/// Removes a piece, unless a later epoch than the stamp's has marked it or it is of another object ([`is_stray_guard`]).
pub(super) fn remove_piece(stamp: PieceIdentity) -> WriteOp {
    let mut op = WriteOp::new();
    op.assert_exists();
    of_object(&mut op, stamp);
    op.remove().full_force();
    op
}

/// Truncates a piece, unless a later epoch than the stamp's has marked it, and sets its epoch. Delayed writes of earlier epochs then
/// can't write behind the cut. For this purpose an absent piece is created.
pub(super) fn truncate_piece(stamp: PieceIdentity, len: u64) -> WriteOp {
    let mut op = WriteOp::new();
    take(&mut op, stamp);
    op.truncate(len).full_force();
    op
}

/// Begins a removal or truncation: ends the epoch `from` and records the operation.
pub(super) fn record_unfinished(from: u64, unfinished: &str) -> WriteOp {
    let mut op = in_epoch(from);
    op.set_xattr(EPOCH, text(from + 1)).set_xattr(UNFINISHED, unfinished.to_owned()).full_force();
    op
}

/// Completes a removal.
pub(super) fn end_removal(epoch: u64) -> WriteOp {
    let mut op = in_epoch(epoch);
    op.remove().full_force();
    op
}

/// Completes a truncation that leaves `pieces` pieces. Part 1 holds if this truncation is the one in progress. The epoch ends, so
/// that other clients that execute the same truncation can't change data that is written from now on.
pub(super) fn end_truncation(epoch: u64, size: u64, pieces: u64) -> WriteOp {
    let mut op = in_epoch(epoch);
    op.cmp_xattr(UNFINISHED, CmpOp::Eq, text(size));
    let cut = LastTruncation { pieces, epoch: epoch + 1 };
    op.rm_xattr(UNFINISHED).set_xattr(EPOCH, text(epoch + 1)).set_xattr(LAST_TRUNCATION, cut.text());
    op.set_xattr(PIECE_BOUND, text(pieces)).full_force();
    op
}
