//! Decides whether operations can have happened in the order of their events.

use super::super::history::{Event, NEVER, OpInterval, OpKind, Operation};
use super::{HistoryViolation, Verdict};

type Claim<'a> = (&'a Event, &'a Operation);

/// The earliest moment after `now` for an operation.
fn moment(now: u64, (event, operation): &Claim<'_>) -> Verdict<u64> {
    let moment = now.max(operation.span.invoked);
    if moment > operation.span.answered {
        return Err(Box::new(HistoryViolation::Impossible(
            (*event).clone(),
            "was answered before an earlier one was invoked",
        )));
    }
    Ok(moment)
}

/// Whether there are moments for these operations in this order.
pub(super) fn check_linearization(events: &[Claim<'_>]) -> Verdict<()> {
    events.iter().try_fold(0, moment).map(drop)
}

/// Whether there are moments for the operations on one key without versions in this order, such that the object exists whenever
/// an operation needs it, and does not exist at some moment of each of `absences`.
///
/// The object exists in periods, each from a creation to the next removal. An absence is refuted if it lies completely within
/// one period. Each period starts as early as possible, because its end is then early, too. It starts later only as far as an
/// absence within it requires. No other choice leaves more room for later periods.
pub(super) fn check_absences(events: &[Claim<'_>], absences: &[OpInterval]) -> Verdict<()> {
    let (mut now, mut rest) = (0, events);
    while let Some(first) = rest.first() {
        if !first.1.kind.is_creation() {
            return Err(Box::new(HistoryViolation::Impossible(
                first.0.clone(),
                "changes an object that is not there",
            )));
        }
        let removal = rest.iter().position(|(_, operation)| operation.kind == OpKind::Delete);
        let turn = &rest[..removal.map_or(rest.len(), |at| at + 1)];
        let again = turn[1..].iter().find(|(_, operation)| operation.kind == OpKind::Put { only_new: true });
        if let Some((event, _)) = again {
            return Err(Box::new(HistoryViolation::Impossible(
                (*event).clone(),
                "needs that no object is there",
            )));
        }
        now = end_of_turn(now, turn, removal.is_some(), absences)?;
        rest = &rest[turn.len()..];
    }
    Ok(())
}

/// The earliest end of a period that starts at `now` or later.
fn end_of_turn(mut now: u64, turn: &[Claim<'_>], is_removed: bool, absences: &[OpInterval]) -> Verdict<u64> {
    loop {
        let start = moment(now, &turn[0])?;
        let last = turn[1..].iter().try_fold(start, moment)?;
        let end = if is_removed { last } else { NEVER };
        let refuted = absences.iter().filter(|span| span.invoked > start && span.answered < end);
        match refuted.map(|span| span.invoked).max() {
            None => return Ok(end),
            Some(later) => now = later,
        }
    }
}
