//! Listings of pools and their check: an object that exists during the whole listing is in it, one that is absent during the
//! whole listing is not, and no name is in it twice.

use super::{Action, Entry, GuaranteeViolation, Outcome};
use crate::schedule::Nanos;
use nacre_types::object::ObjectId;
use nacre_types::op::{ListReply, Op};
use nacre_types::{PgId, PoolId};
use std::collections::BTreeSet;

/// A running listing: one PG after another, in pages.
#[derive(Clone, Debug)]
pub struct Listing {
    /// The pool.
    pub pool: PoolId,
    call: Nanos,
    /// The current PG.
    seed: u32,
    pg_num: u32,
    cursor: Option<ObjectId>,
    page: u64,
    found: BTreeSet<ObjectId>,
}

impl Listing {
    /// Starts a listing at `call`, with pages of `page` names.
    pub fn new(call: Nanos, pool: PoolId, pg_num: u32, page: u64) -> Listing {
        Listing { pool, call, seed: 0, pg_num, cursor: None, page, found: BTreeSet::new() }
    }

    /// The next request: the position that determines its target, and the op. `None` at the end.
    pub fn next(&self, at: impl Fn(PgId) -> ObjectId) -> Option<(ObjectId, Op)> {
        let pg = PgId { pool: self.pool, seed: self.seed };
        let op = Op::PgList { cursor: self.cursor.clone(), max: self.page, namespace: None };
        (self.seed < self.pg_num).then(|| (at(pg), op))
    }

    /// Adds a page.
    pub fn add(&mut self, reply: ListReply) -> Result<(), GuaranteeViolation> {
        for object in reply.objects {
            if let Some(twice) = self.found.replace(object) {
                return Err(GuaranteeViolation {
                    rule: "a listing repeats a name",
                    detail: twice.to_string(),
                });
            }
        }
        self.seed += u32::from(reply.next.is_none());
        self.cursor = reply.next;
        Ok(())
    }

    /// Checks a listing that ended at `reply` against the requests on the pool's objects.
    pub fn check_listing<'a>(
        &self,
        reply: Nanos,
        objects: impl Iterator<Item = (&'a ObjectId, &'a [Entry])>,
    ) -> Result<(), GuaranteeViolation> {
        let span = (self.call, reply);
        for (object, entries) in objects {
            let is_listed = self.found.contains(object);
            let (rule, entry) = if is_listed {
                ("a listing shows an absent object", unchanging(entries, span, is_absent, Action::creates))
            } else {
                let removes = |action: &Action| *action == Action::Remove;
                ("a listing misses an object", unchanging(entries, span, exists, removes))
            };
            if let Some(entry) = entry {
                let detail = format!("{object}, from {} to {} ns, after {entry}", self.call, reply);
                return Err(GuaranteeViolation { rule, detail });
            }
        }
        Ok(())
    }
}

/// An entry that shows the object's state before `span`, if nothing that `changes` it can have happened between the entry and
/// the span's end.
fn unchanging(
    entries: &[Entry],
    (call, reply): (Nanos, Nanos),
    shows: impl Fn(&Entry) -> bool,
    changes: impl Fn(&Action) -> bool,
) -> Option<&Entry> {
    let may_change = |change: &Entry, since: Nanos| {
        let effective = change.reply.is_none() || change.outcome.took_effect();
        changes(&change.action)
            && effective
            && change.call <= reply
            && change.reply.is_none_or(|at| at >= since)
    };
    entries.iter().rev().filter(|entry| entry.reply.is_some_and(|at| at < call) && shows(entry)).find(
        |entry| !entries.iter().any(|other| !std::ptr::eq(other, *entry) && may_change(other, entry.call)),
    )
}

fn exists(entry: &Entry) -> bool {
    let may_be_absent = matches!(entry.action, Action::Truncate(_) | Action::Remove);
    match &entry.outcome {
        Outcome::Saw(value) => value.is_some(),
        Outcome::Exists => true,
        outcome => outcome.took_effect() && !may_be_absent,
    }
}

fn is_absent(entry: &Entry) -> bool {
    match &entry.outcome {
        Outcome::Saw(value) => value.is_none(),
        Outcome::Absent => true,
        outcome => entry.action == Action::Remove && outcome.took_effect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Value;

    fn object() -> ObjectId {
        ObjectId::new(PoolId(1), "", "", "o")
    }

    fn listed(names: &[ObjectId], entries: &[Entry]) -> Result<(), &'static str> {
        let mut listing = Listing::new(100, PoolId(1), 1, 10);
        let reply = ListReply { objects: names.to_vec(), next: None };
        listing.add(reply).map_err(|broken| broken.rule)?;
        assert!(listing.next(|_| object()).is_none());
        listing.check_listing(200, [(&object(), entries)].into_iter()).map_err(|broken| broken.rule)
    }

    fn entry(action: Action, call: Nanos, reply: Option<Nanos>, outcome: Outcome) -> Entry {
        Entry::new(0, call, action, (call, reply), outcome)
    }

    #[test]
    fn what_exists_throughout_must_be_listed() {
        let made = entry(Action::Append(1), 10, Some(20), Outcome::Done);
        assert_eq!(listed(&[object()], std::slice::from_ref(&made)), Ok(()));
        let misses = Err("a listing misses an object");
        assert_eq!(listed(&[], std::slice::from_ref(&made)), misses);
        for (call, reply, outcome, expected) in [
            (5, Some(9), Outcome::Done, misses),
            (15, Some(30), Outcome::Done, Ok(())),
            (30, None, Outcome::Unknown, Ok(())),
            (30, Some(40), Outcome::Refused, misses),
            (150, Some(160), Outcome::Done, Ok(())),
            (201, Some(210), Outcome::Done, misses),
        ] {
            let removed = entry(Action::Remove, call, reply, outcome);
            assert_eq!(listed(&[], &[made.clone(), removed.clone()]), expected, "{removed}");
        }
    }

    #[test]
    fn what_is_absent_throughout_must_not_be_listed() {
        let read = entry(Action::Read, 10, Some(20), Outcome::Saw(None));
        assert_eq!(listed(&[object()], std::slice::from_ref(&read)), Err("a listing shows an absent object"));
        assert_eq!(listed(&[], std::slice::from_ref(&read)), Ok(()));
        let made = entry(Action::Count, 30, None, Outcome::Unknown);
        assert_eq!(listed(&[object()], &[read.clone(), made]), Ok(()));
        let seen = entry(Action::Read, 30, Some(40), Outcome::Saw(Some(Value::default())));
        assert_eq!(listed(&[object()], &[seen]), Ok(()));
    }

    #[test]
    fn a_name_must_not_come_twice() {
        assert_eq!(listed(&[object(), object()], &[]), Err("a listing repeats a name"));
    }
}
