//! The guarded requests that the striper is made of, and what their answers mean.

use super::meta::{AGE, BORN, BORN_INVERSE, CUT, Cut, EPOCH, PIECES, SIZE, Stamp, UNFINISHED};
use bytes::Bytes;
use nacre_engine::{OpReply, ReadOp, Result, WriteOp};
use nacre_types::errno::Errno;
use nacre_types::op::CmpOp;

/// What became of a guarded request.
#[derive(Debug)]
pub(super) enum Verdict {
    /// It took effect.
    Done,
    /// The part of this number, a guard, did not hold (or there is no such object): nothing was changed. The answer
    /// waited for earlier writes to the object to be durable, as reads do.
    Held(usize),
}

/// Reads an answer; errors other than a guard's are the caller's.
pub(super) fn verdict(answer: Result<OpReply>) -> Result<Verdict> {
    let reply = answer?;
    match Errno::from_result(reply.result) {
        Ok(_) => Ok(Verdict::Done),
        Err(Errno::ECANCELED | Errno::ENOENT) => {
            Ok(Verdict::Held(reply.ops.iter().position(|part| part.code < 0).unwrap_or(0)))
        }
        Err(errno) => Err(errno.into()),
    }
}

fn text(number: u64) -> Bytes {
    number.to_string().into()
}

/// A write to the first piece that holds in `epoch` only.
pub(super) fn in_epoch(epoch: u64) -> WriteOp {
    let mut op = WriteOp::new();
    op.cmp_xattr_u64(EPOCH, CmpOp::Eq, epoch);
    op
}

/// Parts 1 and 2: the size becomes `end`; holds where it is less.
pub(super) fn grow(op: &mut WriteOp, end: u64) {
    op.cmp_xattr_u64(SIZE, CmpOp::Gt, end).set_xattr(SIZE, text(end));
}

/// Part 1: holds where the size is `end` at least.
pub(super) fn reaches(op: &mut WriteOp, end: u64) {
    op.cmp_xattr_u64(SIZE, CmpOp::Lte, end);
}

/// Changes nothing; part 0 holds in `epoch` only, part 1 where the size is `end` at least.
pub(super) fn check(epoch: u64, end: u64) -> ReadOp {
    let mut op = ReadOp::new();
    op.cmp_xattr_u64(EPOCH, CmpOp::Eq, epoch).cmp_xattr_u64(SIZE, CmpOp::Lte, end);
    op
}

/// An append's claim: part 1 holds where the size is `from`; it becomes `end`.
pub(super) fn claim(epoch: u64, from: u64, end: u64) -> WriteOp {
    let mut op = in_epoch(epoch);
    op.cmp_xattr_u64(SIZE, CmpOp::Eq, from).set_xattr(SIZE, text(end));
    op
}

/// Announces that pieces below `pieces` may exist; part 1 holds where fewer were announced.
pub(super) fn announce(epoch: u64, pieces: u64) -> WriteOp {
    let mut op = in_epoch(epoch);
    op.cmp_xattr_u64(PIECES, CmpOp::Gt, pieces).set_xattr(PIECES, text(pieces));
    op
}

/// Data for a piece other than the first. Where the piece is not known to carry the epoch (`marked`), it is made to, and
/// made to exist; where a later epoch has marked it, or it is a stray ([`is_stray`]), the request does not hold.
pub(super) fn piece(stamp: Stamp, marked: bool, offset: u64, data: Bytes) -> WriteOp {
    let mut op = WriteOp::new();
    if marked {
        op.cmp_xattr_u64(EPOCH, CmpOp::Eq, stamp.epoch);
    } else {
        take(&mut op, stamp);
    }
    op.write(offset, data);
    op
}

/// Makes a piece exist and carry the epoch.
fn take(op: &mut WriteOp, stamp: Stamp) {
    op.create(false);
    of_object(op, stamp);
    op.cmp_xattr_u64(AGE, CmpOp::Gte, u64::MAX - stamp.floor);
    let mut set = |name, inverse, number: u64| {
        if number > 0 {
            op.set_xattr(name, text(number)).set_xattr(inverse, text(u64::MAX - number));
        }
    };
    set(BORN, BORN_INVERSE, stamp.born);
    set(EPOCH, AGE, stamp.epoch);
}

/// Parts 1 to 3: the piece is of the object, or does not say of which, and of no later epoch.
fn of_object(op: &mut WriteOp, stamp: Stamp) {
    op.cmp_xattr_u64(BORN, CmpOp::Gte, stamp.born);
    op.cmp_xattr_u64(BORN_INVERSE, CmpOp::Gte, u64::MAX - stamp.born);
    op.cmp_xattr_u64(EPOCH, CmpOp::Gte, stamp.epoch);
}

/// Whether the part that did not hold, of a request to a piece not known to carry the epoch, says that the piece is of another
/// object of this name or of an epoch before `floor`.
pub(super) fn is_stray(part: usize) -> bool {
    matches!(part, 1 | 2 | 4)
}

/// Removes a piece of this object and epoch.
pub(super) fn remove_of(born: u64, epoch: u64) -> WriteOp {
    let mut op = WriteOp::new();
    op.cmp_xattr_u64(EPOCH, CmpOp::Eq, epoch).cmp_xattr_u64(BORN, CmpOp::Eq, born);
    op.remove().full_force();
    op
}

/// Sets the age of a piece that a release wrote which knows no ages.
pub(super) fn renew_age(born: u64, epoch: u64) -> WriteOp {
    let mut op = WriteOp::new();
    op.cmp_xattr_u64(EPOCH, CmpOp::Eq, epoch).cmp_xattr_u64(BORN, CmpOp::Eq, born);
    op.set_xattr(AGE, text(u64::MAX - epoch)).full_force();
    op
}

/// Removes a piece unless a later epoch than the stamp's has marked it or it is of another object ([`is_stray`]).
pub(super) fn remove_piece(stamp: Stamp) -> WriteOp {
    let mut op = WriteOp::new();
    op.assert_exists();
    of_object(&mut op, stamp);
    op.remove().full_force();
    op
}

/// Cuts a piece unless a later epoch than the stamp's has marked it. It then carries the epoch, so that writes of earlier
/// ones that are still on their way can't put anything behind the cut: an absent piece is made for that.
pub(super) fn cut_piece(stamp: Stamp, len: u64) -> WriteOp {
    let mut op = WriteOp::new();
    take(&mut op, stamp);
    op.truncate(len).full_force();
    op
}

/// Begins a removal or truncation: the epoch `from` ends, and what is to be done is noted.
pub(super) fn begin(from: u64, unfinished: &str) -> WriteOp {
    let mut op = in_epoch(from);
    op.set_xattr(EPOCH, text(from + 1)).set_xattr(UNFINISHED, unfinished.to_owned()).full_force();
    op
}

/// Ends a removal.
pub(super) fn end_removal(epoch: u64) -> WriteOp {
    let mut op = in_epoch(epoch);
    op.remove().full_force();
    op
}

/// Ends a truncation that leaves `pieces` pieces: part 1 holds where it is the one that goes on. The epoch ends, so that
/// whoever else carries it out can't touch what is written from now on.
pub(super) fn end_truncation(epoch: u64, size: u64, pieces: u64) -> WriteOp {
    let mut op = in_epoch(epoch);
    op.cmp_xattr(UNFINISHED, CmpOp::Eq, text(size));
    let cut = Cut { pieces, epoch: epoch + 1 };
    op.rm_xattr(UNFINISHED).set_xattr(EPOCH, text(epoch + 1)).set_xattr(CUT, cut.text());
    op.set_xattr(PIECES, text(pieces)).full_force();
    op
}
