//! Compares the events of one topic with the operations of the clients. A pure function of both.
//!
//! Operations overlap, so their order is not known in advance. An event's sequencer claims the position of its operation in the
//! order of its key's changes. The claim holds if each operation can be assigned a moment between its invocation and its answer
//! so that the moments are in that order, each operation's answer matches the state at its moment, and the last state is the one
//! that is read at the end. Since the order is given, one pass finds such moments.

mod order;
#[cfg(test)]
mod tests;

use super::history::{
    Event, FinalState, History, OpInterval, OpKind, OpOutcome, Operation, PLAIN, VERSIONED, Version,
};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Display, Formatter};

/// Where the events were observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A consumer received them, in this order, possibly several times.
    Delivered,
    /// They are in a queue, each once, in any order.
    Queued,
}

/// A violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HistoryViolation {
    /// The operation took effect, but there is no event for it.
    Missing(Operation),
    /// There are several events for one change of a key.
    Duplicate(Vec<Event>),
    /// The operation was refused or changes nothing, but there is an event for it.
    NotExpected(Operation, Event),
    /// The event belongs to no operation, or its fields do not match its operation.
    Foreign(Event, &'static str),
    /// An event was received again, with the same id and different fields.
    Changed(Event, Event),
    /// An event was received after a later one of its key.
    OutOfOrder(Event, Event),
    /// The order of the sequencers can't be the order of the clients' operations.
    Impossible(Event, &'static str),
    /// The final state does not match the events.
    End { bucket: String, key: String, why: String },
    /// Two topics do not have the same events.
    Topics { number: u32, bucket: String, key: String },
}

impl Display for HistoryViolation {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            HistoryViolation::Missing(operation) => write!(f, "no event of {operation:?}"),
            HistoryViolation::Duplicate(events) => write!(f, "several events of one change: {events:?}"),
            HistoryViolation::NotExpected(operation, event) => {
                write!(f, "an event of what has no effect: {operation:?}: {event:?}")
            }
            HistoryViolation::Foreign(event, why) => write!(f, "an event {why}: {event:?}"),
            HistoryViolation::Changed(first, second) => {
                write!(f, "delivered with other fields: {first:?}, {second:?}")
            }
            HistoryViolation::OutOfOrder(first, second) => {
                write!(f, "out of order: {second:?} after {first:?}")
            }
            HistoryViolation::Impossible(event, why) => write!(f, "an impossible order: {event:?} {why}"),
            HistoryViolation::End { bucket, key, why } => write!(f, "{bucket}/{key}: {why}"),
            HistoryViolation::Topics { number, bucket, key } => {
                write!(f, "topics differ in operation {number} on {bucket}/{key}")
            }
        }
    }
}

/// The result of a check.
type Verdict<T> = Result<T, Box<HistoryViolation>>;

/// The change that an event reports: number, bucket, key.
pub(super) type Change = (u32, String, String);

/// The changes that have events, with their sequencers.
pub(super) fn changes(events: &[Event]) -> BTreeMap<Change, &str> {
    let change = |event: &Event| Some((event.number?, event.bucket.clone(), event.key.clone()));
    events.iter().filter_map(|event| Some((change(event)?, event.sequencer.as_str()))).collect()
}

/// The changes whose events differ, or differ in order, between two topics with the same configurations.
pub(super) fn compare_topics(one: &[Event], other: &[Event]) -> Vec<HistoryViolation> {
    let (one, other) = (changes(one), changes(other));
    let changes: BTreeSet<&Change> = one.keys().chain(other.keys()).collect();
    let differing = changes.into_iter().filter(|change| one.get(*change) != other.get(*change));
    differing
        .map(|(number, bucket, key)| HistoryViolation::Topics {
            number: *number,
            bucket: bucket.clone(),
            key: key.clone(),
        })
        .collect()
}

/// All problems with the events of a topic. `events` are in the order in which they were received.
pub(super) fn check(
    history: &History,
    events: &[Event],
    ends: &FinalState,
    source: Source,
) -> Vec<HistoryViolation> {
    let mut problems = Vec::new();
    let firsts = first_occurrences(events, source, &mut problems);
    let operations: BTreeMap<(u32, &str, &str), &Operation> = history
        .operations
        .iter()
        .map(|operation| ((operation.number, operation.bucket.as_str(), operation.key.as_str()), operation))
        .collect();
    assert_eq!(operations.len(), history.operations.len(), "operations are not unique");

    let mut by_change: BTreeMap<(u32, &str, &str), Vec<&Event>> = BTreeMap::new();
    let mut by_key: BTreeMap<(&str, &str), Vec<(&Event, &Operation)>> = BTreeMap::new();
    for event in firsts {
        let change = event.number.map(|number| (number, event.bucket.as_str(), event.key.as_str()));
        let operation = change.and_then(|change| operations.get(&change));
        let (Some(change), Some(operation)) = (change, operation) else {
            problems.push(HistoryViolation::Foreign(event.clone(), "of no operation"));
            continue;
        };
        if operation.outcome == OpOutcome::Refused || operation.kind == OpKind::Nothing {
            problems.push(HistoryViolation::NotExpected((*operation).clone(), event.clone()));
            continue;
        }
        if let Err(why) = compare_fields(operation, event) {
            problems.push(HistoryViolation::Foreign(event.clone(), why));
        }
        by_change.entry(change).or_default().push(event);
        by_key.entry((&event.bucket, &event.key)).or_default().push((event, *operation));
    }
    for events in by_change.values().filter(|events| events.len() > 1) {
        problems.push(HistoryViolation::Duplicate(events.iter().map(|event| (*event).clone()).collect()));
    }

    let mut seen = Vec::new();
    for sighting in &history.reads {
        let Some(number) = sighting.number else { continue };
        match operations.get(&(number, sighting.bucket.as_str(), sighting.key.as_str())) {
            Some(operation) => seen.push(*operation),
            None => problems.push(HistoryViolation::End {
                bucket: sighting.bucket.clone(),
                key: sighting.key.clone(),
                why: format!("what operation {number} wrote elsewhere was read there"),
            }),
        }
    }
    let acknowledged = history.operations.iter().filter(|operation| {
        matches!(operation.outcome, OpOutcome::Acknowledged { .. })
            && operation.kind.has_certain_effect(&operation.bucket)
    });
    let mut missing = BTreeSet::new();
    for operation in seen.into_iter().chain(acknowledged) {
        let change = (operation.number, operation.bucket.as_str(), operation.key.as_str());
        if !by_change.contains_key(&change) && missing.insert(change) {
            problems.push(HistoryViolation::Missing(operation.clone()));
        }
    }

    for events in by_key.values_mut() {
        check_arrivals(events, source, &mut problems);
        events.sort_by(|(a, _), (b, _)| a.sequencer.cmp(&b.sequencer));
    }
    let absences = absences(history, &by_change);
    let nothing = Vec::new();
    let mut keys: BTreeSet<(&str, &str)> = by_key.keys().copied().collect();
    keys.extend(absences.keys().map(|key| (PLAIN, *key)));
    keys.extend(ends.objects.keys().map(|key| (PLAIN, key.as_str())));
    keys.extend(ends.versions.keys().map(|key| (VERSIONED, key.as_str())));
    for (bucket, key) in keys {
        let events = by_key.get(&(bucket, key)).unwrap_or(&nothing);
        let found = if bucket == VERSIONED {
            check_versions(key, events, ends.versions.get(key).map_or(&[], Vec::as_slice))
        } else {
            order::check_absences(events, absences.get(key).map_or(&[], Vec::as_slice))
                .and_then(|()| check_object(key, events, ends.objects.get(key)))
        };
        problems.extend(found.err().map(|problem| *problem));
    }
    for (key, removals) in acknowledged_removals(history) {
        let listed = ends.versions.get(key).is_some_and(|all| all.iter().any(|one| one.id == removals));
        if listed {
            let why = format!("version {removals} is listed after its removal was acknowledged");
            problems.push(HistoryViolation::End { bucket: VERSIONED.to_owned(), key: key.to_owned(), why });
        }
    }
    problems
}

/// The first event of each id, in order of arrival.
fn first_occurrences<'a>(
    events: &'a [Event],
    source: Source,
    problems: &mut Vec<HistoryViolation>,
) -> Vec<&'a Event> {
    let (mut by_id, mut firsts) = (BTreeMap::new(), Vec::new());
    for event in events {
        match by_id.entry(event.id.as_str()) {
            Entry::Vacant(entry) => {
                entry.insert(event);
                firsts.push(event);
            }
            Entry::Occupied(first) if source == Source::Queued => {
                problems.push(HistoryViolation::Duplicate(vec![(*first.get()).clone(), event.clone()]));
            }
            Entry::Occupied(first) if *first.get() != event => {
                problems.push(HistoryViolation::Changed((*first.get()).clone(), event.clone()));
            }
            Entry::Occupied(_) => {}
        }
    }
    firsts
}

fn compare_fields(operation: &Operation, event: &Event) -> Result<(), &'static str> {
    if operation.kind.event_name(&operation.bucket) != Some(event.name.as_str()) {
        return Err("with another operation's name");
    }
    if (operation.bucket == VERSIONED) == event.version.is_empty() {
        return Err("with a version in a bucket without versions, or without one");
    }
    if matches!(&operation.kind, OpKind::DeleteVersion(version) if *version != event.version) {
        return Err("with another version than the removed one");
    }
    if let OpOutcome::Acknowledged { version, request_id } = &operation.outcome {
        if *request_id != event.request_id {
            return Err("with another request's id");
        }
        if version.as_ref().is_some_and(|version| *version != event.version) {
            return Err("with another version than the answer's");
        }
    }
    Ok(())
}

/// Checks one key's events, in the order of their first occurrences.
fn check_arrivals(events: &[(&Event, &Operation)], source: Source, problems: &mut Vec<HistoryViolation>) {
    let mut sequencers = BTreeMap::new();
    for (event, _) in events {
        if let Some(other) = sequencers.insert(event.sequencer.as_str(), *event) {
            problems.push(HistoryViolation::OutOfOrder(other.clone(), (*event).clone()));
        }
    }
    if source == Source::Delivered {
        for pair in events.windows(2) {
            let [(before, _), (after, _)] = pair else { continue };
            if before.sequencer > after.sequencer {
                problems.push(HistoryViolation::OutOfOrder((*before).clone(), (*after).clone()));
            }
        }
    }
}

/// By key of [`PLAIN`], when requests found no object: their answers said so, or they were removals without an effect.
fn absences<'a>(
    history: &'a History,
    by_change: &BTreeMap<(u32, &str, &str), Vec<&Event>>,
) -> BTreeMap<&'a str, Vec<OpInterval>> {
    let sightings = history.reads.iter().filter(|one| one.bucket == PLAIN && one.number.is_none());
    let sightings = sightings.map(|one| (one.key.as_str(), one.span));
    let removals = history.operations.iter().filter(|operation| {
        operation.bucket == PLAIN
            && operation.kind == OpKind::Delete
            && matches!(operation.outcome, OpOutcome::Acknowledged { .. })
            && !by_change.contains_key(&(operation.number, operation.bucket.as_str(), operation.key.as_str()))
    });
    let removals = removals.map(|operation| (operation.key.as_str(), operation.span));
    let mut absences: BTreeMap<&str, Vec<OpInterval>> = BTreeMap::new();
    for (key, span) in sightings.chain(removals) {
        absences.entry(key).or_default().push(span);
    }
    absences
}

/// The versions whose removal was acknowledged, with their keys.
fn acknowledged_removals(history: &History) -> impl Iterator<Item = (&str, &str)> {
    history.operations.iter().filter_map(|operation| match (&operation.kind, &operation.outcome) {
        (OpKind::DeleteVersion(version), OpOutcome::Acknowledged { .. }) => {
            Some((operation.key.as_str(), version.as_str()))
        }
        _ => None,
    })
}

/// For a key without versions: the state that is read is that of the last event.
fn check_object(key: &str, events: &[(&Event, &Operation)], end: Option<&(u32, Option<u32>)>) -> Verdict<()> {
    let mut state: Option<(u32, Option<u32>)> = None;
    for (_, operation) in events {
        state = match (&operation.kind, state) {
            (OpKind::Delete, _) => None,
            (OpKind::Tag, Some((number, _))) => Some((number, Some(operation.number))),
            _ => Some((operation.number, None)),
        };
    }
    if state.as_ref() == end {
        return Ok(());
    }
    let why = format!("operation and tags are {end:?}, {state:?} by the events");
    Err(Box::new(HistoryViolation::End { bucket: PLAIN.to_owned(), key: key.to_owned(), why }))
}

/// For a key with versions: each version has one event for its creation and, if it is not listed, one for its removal.
fn check_versions(key: &str, events: &[(&Event, &Operation)], listed: &[Version]) -> Verdict<()> {
    order::check_linearization(events)?;
    let wrong = |why: String| {
        Box::new(HistoryViolation::End { bucket: VERSIONED.to_owned(), key: key.to_owned(), why })
    };
    // By version: when it was created, by which operation, and whether it exists.
    let mut versions: BTreeMap<&str, (usize, u32, bool)> = BTreeMap::new();
    for (at, (event, operation)) in events.iter().enumerate() {
        let version = event.version.as_str();
        match &operation.kind {
            OpKind::DeleteVersion(_) => match versions.get_mut(version) {
                Some((_, _, is_there)) if *is_there => *is_there = false,
                _ => {
                    return Err(Box::new(HistoryViolation::Impossible(
                        (*event).clone(),
                        "removes what is not there",
                    )));
                }
            },
            OpKind::Tag => {
                if !versions.get(version).is_some_and(|(_, _, is_there)| *is_there) {
                    return Err(Box::new(HistoryViolation::Impossible(
                        (*event).clone(),
                        "tags what is not there",
                    )));
                }
            }
            _ => {
                if versions.insert(version, (at, operation.number, true)).is_some() {
                    return Err(Box::new(HistoryViolation::Impossible(
                        (*event).clone(),
                        "creates a version again",
                    )));
                }
            }
        }
    }
    for version in listed {
        match versions.get(version.id.as_str()) {
            None => return Err(wrong(format!("version {} is listed and has no event", version.id))),
            Some((_, _, false)) => {
                return Err(wrong(format!(
                    "version {} is listed after the event of its removal",
                    version.id
                )));
            }
            Some((_, number, true)) if version.number.is_some_and(|found| found != *number) => {
                return Err(wrong(format!(
                    "version {} is of operation {:?}, {number} by its event",
                    version.id, version.number
                )));
            }
            Some(_) => {}
        }
    }
    let ids: BTreeSet<&str> = listed.iter().map(|version| version.id.as_str()).collect();
    let there = versions.iter().filter(|(_, (_, _, is_there))| *is_there);
    if let Some((lost, _)) = there.clone().find(|(id, _)| !ids.contains(*id)) {
        return Err(wrong(format!("version {lost} is not listed, though no event says that it was removed")));
    }
    let created = |version: &Version| versions[version.id.as_str()].0;
    for is_marker in [false, true] {
        let places: Vec<_> = listed.iter().filter(|one| one.is_marker == is_marker).map(created).collect();
        if !places.is_sorted_by(|newer, older| newer > older) {
            return Err(wrong("versions are listed in another order than that of their events".to_owned()));
        }
    }
    let latest: Vec<_> = listed.iter().filter(|version| version.is_latest).map(created).collect();
    let newest: Vec<_> = there.map(|(_, (at, _, _))| *at).max().into_iter().collect();
    if latest != newest {
        return Err(wrong("the latest version is not that of the last event".to_owned()));
    }
    Ok(())
}
