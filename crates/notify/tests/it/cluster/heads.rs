//! What gateways were told of objects, and what must hold of it: each head is a register that PUT and DELETE write.

use nacre_sim::schedule::Nanos;
use std::collections::BTreeMap;

struct Change {
    head: String,
    removes: bool,
    begin: Nanos,
    /// When it was answered, and whether it had an effect.
    end: Option<(Nanos, bool)>,
}

impl Change {
    fn done(&self) -> Option<Nanos> {
        self.end.filter(|(_, has_effect)| *has_effect).map(|(at, _)| at)
    }

    /// Whether it may take effect after `since`.
    fn may_follow(&self, since: Nanos) -> bool {
        self.end.is_none_or(|(at, has_effect)| has_effect && at > since)
    }
}

/// All changes, by tag, and the first promise that was broken.
#[derive(Default)]
pub(crate) struct Heads {
    changes: BTreeMap<String, Change>,
    pub(crate) broken: Option<String>,
}

impl Heads {
    /// A change of a head is asked for.
    pub(crate) fn begin(&mut self, now: Nanos, head: &str, tag: &str, removes: bool) {
        let change = Change { head: head.to_owned(), removes, begin: now, end: None };
        self.changes.insert(tag.to_owned(), change);
    }

    /// A change is answered.
    pub(crate) fn end(&mut self, now: Nanos, tag: &str, has_effect: bool) {
        if let Some(change) = self.changes.get_mut(tag) {
            change.end = Some((now, has_effect));
        }
    }

    /// A head was read: the object of this change is there, or none is.
    pub(crate) fn read(&mut self, (begin, end): (Nanos, Nanos), head: &str, tag: Option<&str>) {
        let of_head = || self.changes.iter().filter(|(_, change)| change.head == head);
        let wrong = match tag {
            Some(tag) => {
                match self.changes.get(tag).filter(|change| change.head == head && !change.removes) {
                    None => Some("it was never written".to_owned()),
                    Some(change) if change.end.is_some_and(|(_, has_effect)| !has_effect) => {
                        Some("that was refused".to_owned())
                    }
                    Some(change) => {
                        let since = change.done().unwrap_or(Nanos::MAX);
                        let is_over =
                            |other: &Change| other.begin > since && other.done().is_some_and(|at| at < begin);
                        let over = of_head().find(|(_, other)| is_over(other));
                        over.map(|(over, _)| format!("{over} was answered since"))
                    }
                }
            }
            None => {
                let is_there = |put: &Change| {
                    let removed = of_head()
                        .any(|(_, other)| other.removes && other.begin < end && other.may_follow(put.begin));
                    !put.removes && put.done().is_some_and(|at| at < begin) && !removed
                };
                let lost = of_head().find(|(_, put)| is_there(put));
                lost.map(|(lost, _)| format!("{lost} was answered and not removed"))
            }
        };
        if let Some(wrong) = wrong {
            self.broken.get_or_insert(format!("{head} is {tag:?} at {end}: {wrong}"));
        }
    }
}

#[test]
fn histories_that_break_a_promise_are_refused() {
    let read = |tags: &[(&str, bool)], tag: Option<&str>| {
        let mut heads = Heads::default();
        for (at, (tag, removes)) in (0..).step_by(10).zip(tags) {
            heads.begin(at, "h", tag, *removes);
            heads.end(at + 5, tag, true);
        }
        heads.read((100, 110), "h", tag);
        heads.broken.is_none()
    };
    assert!(read(&[("a", false), ("b", false)], Some("b")));
    assert!(!read(&[("a", false), ("b", false)], Some("a")), "stale");
    assert!(!read(&[("a", false), ("b", true)], Some("a")), "removed");
    assert!(!read(&[("a", false)], None), "lost");
    assert!(read(&[("a", false), ("b", true)], None));
    assert!(!read(&[("a", false)], Some("c")), "never written");
}
