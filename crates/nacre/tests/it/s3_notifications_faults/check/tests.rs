//! Tests the checker with sound histories, and with the same histories and a fault that it must find.

use super::super::history::{NEVER, ReadObservation};
use super::*;

/// A sound run with one key in each bucket, which the tests damage.
struct Run {
    history: History,
    events: Vec<Event>,
    ends: FinalState,
}

fn operation(number: u32, bucket: &str, kind: OpKind, span: (u64, u64), outcome: OpOutcome) -> Operation {
    let span = OpInterval { invoked: span.0, answered: span.1 };
    Operation { number, bucket: bucket.to_owned(), key: "k".to_owned(), kind, span, outcome }
}

fn acknowledged(number: u32, version: Option<&str>) -> OpOutcome {
    OpOutcome::Acknowledged { version: version.map(str::to_owned), request_id: format!("r{number}") }
}

fn put() -> OpKind {
    OpKind::Put { only_new: false }
}

/// The event of an operation, with a sequencer.
fn event(operation: &Operation, sequencer: u32, version: &str) -> Event {
    Event {
        id: format!("e{}", operation.number),
        name: operation.kind.event_name(&operation.bucket).unwrap_or("ObjectCreated:Put").to_owned(),
        bucket: operation.bucket.clone(),
        key: operation.key.clone(),
        version: version.to_owned(),
        sequencer: format!("{sequencer:08X}"),
        number: Some(operation.number),
        request_id: format!("r{}", operation.number),
    }
}

/// PUT 1, tags 2, concurrent DELETE 3 and 4 of which one finds nothing, PUT 5 that is refused, PUT 6 without an answer.
fn plain() -> Run {
    let operations = vec![
        operation(1, PLAIN, put(), (10, 20), acknowledged(1, None)),
        operation(2, PLAIN, OpKind::Tag, (21, 30), acknowledged(2, None)),
        operation(3, PLAIN, OpKind::Delete, (31, 40), acknowledged(3, None)),
        operation(4, PLAIN, OpKind::Delete, (32, 50), acknowledged(4, None)),
        operation(5, PLAIN, put(), (51, 55), OpOutcome::Refused),
        operation(6, PLAIN, put(), (60, NEVER), OpOutcome::Unknown),
    ];
    let of = |number: usize, sequencer| event(&operations[number - 1], sequencer, "");
    let events = vec![of(1, 1), of(2, 2), of(3, 3), of(6, 4)];
    let ends = FinalState { objects: [("k".to_owned(), (6, None))].into(), ..FinalState::default() };
    Run { history: History { operations, reads: Vec::new() }, events, ends }
}

fn version(id: &str, is_marker: bool, is_latest: bool, number: Option<u32>) -> Version {
    Version { id: id.to_owned(), is_marker, is_latest, number }
}

/// PUT 1 creates a; DELETE 2 a marker b; DELETE 3 removes a; copy 4 without an answer creates c; DELETE 5 of a finds nothing.
fn versioned() -> Run {
    let removal = || OpKind::DeleteVersion("a".to_owned());
    let operations = vec![
        operation(1, VERSIONED, put(), (10, 20), acknowledged(1, Some("a"))),
        operation(2, VERSIONED, OpKind::Delete, (30, 40), acknowledged(2, Some("b"))),
        operation(3, VERSIONED, removal(), (50, 60), acknowledged(3, Some("a"))),
        operation(4, VERSIONED, OpKind::Copy, (70, NEVER), OpOutcome::Unknown),
        operation(5, VERSIONED, removal(), (80, 90), acknowledged(5, Some("a"))),
    ];
    let of = |number: usize, sequencer, version| event(&operations[number - 1], sequencer, version);
    let events = vec![of(1, 1, "a"), of(2, 2, "b"), of(3, 3, "a"), of(4, 4, "c")];
    let listed = vec![version("c", false, true, Some(4)), version("b", true, false, None)];
    let ends = FinalState { versions: [("k".to_owned(), listed)].into(), ..FinalState::default() };
    Run { history: History { operations, reads: Vec::new() }, events, ends }
}

fn both() -> [Run; 2] {
    [plain(), versioned()]
}

impl Run {
    fn check(&self) -> Vec<HistoryViolation> {
        check(&self.history, &self.events, &self.ends, Source::Delivered)
    }

    /// The problems that the checker finds after `damage`. There must be some.
    fn damaged(mut self, damage: impl FnOnce(&mut Run)) -> Vec<HistoryViolation> {
        assert_eq!(self.check(), []);
        damage(&mut self);
        let problems = self.check();
        assert_ne!(problems, []);
        problems
    }
}

/// Checks that there is a problem of some variant.
macro_rules! found {
    ($problems:expr, $variant:pat) => {{
        let problems = $problems;
        assert!(problems.iter().any(|problem| matches!(problem, $variant)), "{problems:?}");
    }};
}

#[test]
fn sound_histories_pass() {
    for run in both() {
        assert_eq!(run.check(), []);
        assert_eq!(check(&run.history, &run.events, &run.ends, Source::Queued), []);
    }
    assert_eq!(check(&History::default(), &[], &FinalState::default(), Source::Delivered), []);
}

#[test]
fn redeliveries_are_no_problem_at_a_consumer() {
    for mut run in both() {
        let (first, last) = (run.events[0].clone(), run.events[3].clone());
        run.events.extend([last, first]);
        assert_eq!(run.check(), []);
        found!(check(&run.history, &run.events, &run.ends, Source::Queued), HistoryViolation::Duplicate(_));
    }
}

#[test]
fn missing_events_are_found() {
    for lost in [0, 1, 2] {
        // The removal of a version may find nothing, but then the version must exist.
        let problems = versioned().damaged(|run| drop(run.events.remove(lost)));
        if lost == 2 {
            found!(problems, HistoryViolation::End { .. });
        } else {
            found!(problems, HistoryViolation::Missing(_));
        }
    }
    found!(plain().damaged(|run| drop(run.events.remove(0))), HistoryViolation::Missing(_));
    found!(plain().damaged(|run| drop(run.events.remove(1))), HistoryViolation::Missing(_));
    // One of two removals found the object.
    found!(plain().damaged(|run| drop(run.events.remove(2))), HistoryViolation::Impossible(..));
}

#[test]
fn missing_events_of_unanswered_operations_are_found() {
    for run in both() {
        found!(run.damaged(|run| drop(run.events.pop())), HistoryViolation::End { .. });
    }
    // Overwritten before the end, but read by a client.
    let seen = |run: &mut Run| {
        let overwritten = operation(6, PLAIN, put(), (60, NEVER), OpOutcome::Unknown);
        run.history.operations[5] = overwritten;
        let last = operation(7, PLAIN, put(), (80, 90), acknowledged(7, None));
        run.events[3] = event(&last, 5, "");
        run.history.operations.push(last);
        run.ends.objects.insert("k".to_owned(), (7, None));
        let span = OpInterval { invoked: 61, answered: 70 };
        let sighting =
            |number| ReadObservation { bucket: PLAIN.to_owned(), key: "k".to_owned(), span, number };
        run.history.reads.push(sighting(Some(6)));
    };
    found!(plain().damaged(seen), HistoryViolation::Missing(_));
}

#[test]
fn events_of_operations_without_an_effect_are_found() {
    let unanswered = |run: &mut Run| {
        run.ends.objects.clear();
    };
    found!(plain().damaged(unanswered), HistoryViolation::End { .. });
    let unlisted = |run: &mut Run| {
        run.ends.versions.insert("k".to_owned(), vec![version("b", true, true, None)]);
    };
    found!(versioned().damaged(unlisted), HistoryViolation::End { .. });
    let second_removal = |run: &mut Run| {
        let removal = event(&run.history.operations[3], 4, "");
        run.events.insert(3, removal);
        run.events[4].sequencer = "00000005".to_owned();
    };
    found!(plain().damaged(second_removal), HistoryViolation::Impossible(..));
    let second_removal = |run: &mut Run| {
        let removal = event(&run.history.operations[4], 5, "a");
        run.events.push(removal);
    };
    found!(versioned().damaged(second_removal), HistoryViolation::Impossible(..));
}

#[test]
fn events_of_refused_operations_are_found() {
    let refused = |run: &mut Run| {
        let wrong = event(&run.history.operations[4], 9, "");
        run.events.push(wrong);
    };
    found!(plain().damaged(refused), HistoryViolation::NotExpected(..));
    let nothing = |run: &mut Run| {
        let aborted = operation(9, PLAIN, OpKind::Nothing, (91, 92), acknowledged(9, None));
        run.events.push(event(&aborted, 9, ""));
        run.history.operations.push(aborted);
    };
    found!(plain().damaged(nothing), HistoryViolation::NotExpected(..));
}

#[test]
fn doubled_events_are_found() {
    for run in both() {
        let doubled = |run: &mut Run| {
            let mut again = run.events[1].clone();
            again.id = "another".to_owned();
            again.sequencer = "00000009".to_owned();
            run.events.push(again);
        };
        found!(run.damaged(doubled), HistoryViolation::Duplicate(_));
    }
}

#[test]
fn redeliveries_with_other_fields_are_found() {
    for run in both() {
        let changed = |run: &mut Run| {
            let mut again = run.events[0].clone();
            again.sequencer = "00000009".to_owned();
            run.events.push(again);
        };
        found!(run.damaged(changed), HistoryViolation::Changed(..));
    }
}

#[test]
fn events_out_of_order_are_found() {
    for run in both() {
        found!(run.damaged(|run| run.events.swap(1, 2)), HistoryViolation::OutOfOrder(..));
    }
    for run in both() {
        let same = |run: &mut Run| run.events[1].sequencer = run.events[0].sequencer.clone();
        found!(run.damaged(same), HistoryViolation::OutOfOrder(..));
    }
    // A later redelivery does not compensate for that.
    let late = |run: &mut Run| {
        let second = run.events.remove(1);
        run.events.push(second);
    };
    found!(plain().damaged(late), HistoryViolation::OutOfOrder(..));
}

#[test]
fn sequencers_against_the_order_of_answers_are_found() {
    let reversed = |run: &mut Run| {
        let (first, second) = (run.events[0].sequencer.clone(), run.events[1].sequencer.clone());
        (run.events[0].sequencer, run.events[1].sequencer) = (second, first);
        run.events.swap(0, 1);
    };
    found!(plain().damaged(reversed), HistoryViolation::Impossible(..));
    found!(versioned().damaged(reversed), HistoryViolation::Impossible(..));
}

#[test]
fn absences_decide_between_orders() {
    // PUT 1 and DELETE 2 overlap with DELETE 3, which found nothing: before the PUT or after the removal.
    let of = |number, kind, span| operation(number, PLAIN, kind, span, acknowledged(number, None));
    let run = |span| {
        let operations =
            vec![of(1, put(), (10, 40)), of(2, OpKind::Delete, (50, 90)), of(3, OpKind::Delete, span)];
        let events = vec![event(&operations[0], 1, ""), event(&operations[1], 2, "")];
        Run { history: History { operations, reads: Vec::new() }, events, ends: FinalState::default() }
    };
    for span in [(5, 8), (5, 45), (20, 45), (45, 50), (60, 70), (40, 49)] {
        assert_eq!(run(span).check(), [], "{span:?}");
    }
    found!(run((41, 49)).check(), HistoryViolation::Impossible(..));
}

#[test]
fn conditions_are_checked_in_the_order_of_events() {
    let conditional = |run: &mut Run| {
        let put = operation(9, PLAIN, OpKind::Put { only_new: true }, (22, 29), acknowledged(9, None));
        run.events.insert(2, Event { sequencer: "00000002A".to_owned(), ..event(&put, 2, "") });
        run.history.operations.push(put);
    };
    found!(plain().damaged(conditional), HistoryViolation::Impossible(..));
}

#[test]
fn events_with_others_fields_are_found() {
    let damages: [fn(&mut Event); 6] = [
        |event| event.number = None,
        |event| event.number = Some(77),
        |event| event.name = "ObjectCreated:Post".to_owned(),
        |event| event.request_id = "r9".to_owned(),
        |event| event.key = "other".to_owned(),
        |event| event.version = if event.version.is_empty() { "x".to_owned() } else { String::new() },
    ];
    for damage in damages {
        for run in both() {
            found!(run.damaged(|run| damage(&mut run.events[0])), HistoryViolation::Foreign(..));
        }
    }
}

#[test]
fn listings_are_compared_with_events() {
    let relisted =
        |run: &mut Run, listed: Vec<Version>| drop(run.ends.versions.insert("k".to_owned(), listed));
    let (c, b) = (version("c", false, true, Some(4)), version("b", true, false, None));
    let listings = [
        vec![],
        vec![c.clone()],
        vec![c.clone(), version("x", false, false, None), b.clone()],
        vec![c.clone(), version("a", false, false, None), b.clone()],
        vec![Version { is_latest: false, ..c.clone() }, Version { is_latest: true, ..b.clone() }],
        vec![Version { number: Some(1), ..c }, b],
    ];
    for listed in listings {
        found!(versioned().damaged(|run| relisted(run, listed)), HistoryViolation::End { .. });
    }
}

#[test]
fn topics_are_compared() {
    let events = plain().events;
    assert_eq!(compare_topics(&events, &events), []);
    found!(compare_topics(&events, &events[..3]), HistoryViolation::Topics { .. });
    let mut other = events.clone();
    other[1].sequencer = "other".to_owned();
    found!(compare_topics(&events, &other), HistoryViolation::Topics { .. });
}
