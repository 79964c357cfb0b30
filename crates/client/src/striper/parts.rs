//! The guarded requests that the striper is made of, and what their answers mean.

use super::meta::{AGE, CUT, Cut, EPOCH, PIECES, SIZE, UNFINISHED};
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
/// made to exist; where a later epoch has marked it, the request does not hold, and where what is there is of an epoch before
/// `floor`, its part [`STRAY`] does not.
pub(super) fn piece(epoch: u64, floor: u64, marked: bool, offset: u64, data: Bytes) -> WriteOp {
    let mut op = WriteOp::new();
    if marked {
        up_to_epoch(&mut op, epoch);
    } else {
        take(&mut op, epoch, floor);
    }
    op.write(offset, data);
    op
}

/// The part of a request to a piece not known to carry the epoch that does not hold where the piece is a stray.
pub(super) const STRAY: usize = 2;

/// Makes a piece exist and carry the epoch.
fn take(op: &mut WriteOp, epoch: u64, floor: u64) {
    op.create(false);
    up_to_epoch(op, epoch);
    op.cmp_xattr_u64(AGE, CmpOp::Gte, u64::MAX - floor);
    if epoch > 0 {
        op.set_xattr(EPOCH, text(epoch)).set_xattr(AGE, text(u64::MAX - epoch));
    }
}

fn up_to_epoch(op: &mut WriteOp, epoch: u64) {
    op.cmp_xattr_u64(EPOCH, CmpOp::Gte, epoch);
}

/// Removes a piece of an epoch before `floor`, which is not 0. Part 1 does not hold where only the age is of such an epoch: a
/// release that knows no ages has written the piece since.
pub(super) fn remove_stray(floor: u64) -> WriteOp {
    let mut op = WriteOp::new();
    op.cmp_xattr_u64(AGE, CmpOp::Lt, u64::MAX - floor);
    up_to_epoch(&mut op, floor - 1);
    op.remove().full_force();
    op
}

/// Sets the age of a piece whose epoch is `floor` or later.
pub(super) fn renew_age(floor: u64) -> WriteOp {
    let mut op = WriteOp::new();
    op.cmp_xattr_u64(EPOCH, CmpOp::Lte, floor).set_xattr(AGE, text(u64::MAX - floor)).full_force();
    op
}

/// Removes a piece unless a later epoch than `epoch` has marked it.
pub(super) fn remove_piece(epoch: u64) -> WriteOp {
    let mut op = WriteOp::new();
    up_to_epoch(&mut op, epoch);
    op.remove().full_force();
    op
}

/// Cuts a piece unless a later epoch than `epoch` has marked it. It then carries the epoch, so that writes of earlier
/// ones that are still on their way can't put anything behind the cut: an absent piece is made for that.
pub(super) fn cut_piece(epoch: u64, floor: u64, len: u64) -> WriteOp {
    let mut op = WriteOp::new();
    take(&mut op, epoch, floor);
    op.truncate(len).full_force();
    op
}

/// Takes a piece back that a write of `epoch`, which has passed, made: nobody else's is touched.
pub(super) fn take_back(epoch: u64) -> WriteOp {
    let mut op = WriteOp::new();
    op.cmp_xattr_u64(EPOCH, CmpOp::Eq, epoch).remove().full_force();
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
