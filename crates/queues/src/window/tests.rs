//! Tests of delivery windows.

use super::*;
use crate::retry::Backoff;
use bytes::Bytes;

const LIMITS: WindowLimits = WindowLimits { window: 8, in_flight: 4, parked: 3 };
const POLICY: RetryPolicy = RetryPolicy {
    time_to_live_ns: Some(1000),
    max_retries: Some(2),
    sleep_ns: Some(10),
    backoff: Backoff { base_ns: 1, max_ns: 100 },
};

fn event(key: u32) -> Event {
    Event { key: KeyHash(key), time_ns: 100, replayed: false, payload: Bytes::from_static(b"event") }
}

fn at(ns: u64) -> WindowTime {
    WindowTime { steady_ns: 100 + ns, mono_ns: ns }
}

/// A window with events of these keys, loaded from sequence number 0 on.
fn window(keys: &[u32]) -> Window {
    let mut window = Window::new(LIMITS, POLICY, &QueueHead::default());
    load(&mut window, 0, keys);
    window
}

fn load(window: &mut Window, first: u64, keys: &[u32]) {
    let events = (first..).zip(keys.iter().map(|key| event(*key)));
    window.load(events, first + keys.len() as u64, at(0));
}

fn next(window: &mut Window, ns: u64) -> Vec<u64> {
    let sent = window.next(at(ns), &OlderGenerations::default(), 100);
    sent.into_iter().map(|sendable| sendable.sequence).collect()
}

/// Writes the pending outcomes, and returns them.
fn write(window: &mut Window, head: &mut QueueHead) -> Vec<(u64, &'static str)> {
    let settlements = window.settlements(0);
    for settlement in &settlements {
        if settlement.place == EventPlace::Log {
            head.settle(settlement.sequence);
        }
    }
    window.settled(&settlements, head);
    let name = |fate: &EventOutcome| match fate {
        EventOutcome::Delivered => "delivered",
        EventOutcome::Parked(_) => "parked",
        EventOutcome::Dead(_) => "dead",
    };
    settlements.iter().map(|settlement| (settlement.sequence, name(&settlement.fate))).collect()
}

#[test]
fn one_event_of_a_key_is_in_flight_and_others_pass() {
    let mut window = window(&[1, 1, 2, 3, 2]);
    assert_eq!(next(&mut window, 0), [0, 2, 3]);
    window.delivered(2);
    assert_eq!(next(&mut window, 0), [4]);
    window.delivered(0);
    assert_eq!(next(&mut window, 0), [1]);
    assert!(next(&mut window, 0).is_empty());
}

#[test]
fn in_flight_and_window_are_bounded() {
    let mut window = window(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    assert_eq!((window.len(), window.load_range()), (8, None));
    assert_eq!(next(&mut window, 0), [0, 1, 2, 3]);
    assert!(next(&mut window, 0).is_empty());
    window.delivered(1);
    let mut head = QueueHead::default();
    assert_eq!(write(&mut window, &mut head), [(1, "delivered")]);
    assert_eq!(window.load_range(), None, "the cursor is where it was");
    window.delivered(0);
    assert_eq!(write(&mut window, &mut head), [(0, "delivered")]);
    assert_eq!(window.load_range(), Some((8, 10)));
}

#[test]
fn a_failed_event_is_parked_and_delays_only_its_key() {
    let mut window = window(&[1, 2, 1]);
    let mut head = QueueHead::default();
    assert_eq!(next(&mut window, 0), [0, 1]);
    window.failed(0, "refused", 500, at(0), 0);
    window.delivered(1);
    assert_eq!(write(&mut window, &mut head), [(0, "parked"), (1, "delivered")]);
    assert_eq!((head.cursor, window.parked()), (2, 1));
    assert!(next(&mut window, 9).is_empty(), "it was tried too early, or another of its key was");
    assert_eq!(window.next_due_ns(), Some(10));
    assert_eq!(next(&mut window, 10), [0]);
    window.delivered(0);
    assert_eq!(next(&mut window, 10), [2]);
    assert_eq!(write(&mut window, &mut head), [(0, "delivered")]);
    assert_eq!(window.parked(), 0);
}

#[test]
fn an_event_that_is_never_answered_does_not_stop_the_others() {
    let mut window = window(&[1, 2, 3, 4, 5, 6, 7, 8]);
    let mut head = QueueHead::default();
    for batch in [[0, 1, 2, 3], [4, 5, 6, 7]] {
        assert_eq!(next(&mut window, 0), batch);
        for sequence in batch {
            match sequence {
                0 => window.unreachable(0, "no answer", at(0), 0),
                _ => window.delivered(sequence),
            }
        }
    }
    assert!(window.is_stuck(at(0)) && window.load_range().is_none());
    assert_eq!(write(&mut window, &mut head)[0], (0, "parked"));
    assert_eq!((head.cursor, window.parked(), window.load_range()), (8, 1, Some((8, 16))));
    assert_eq!(next(&mut window, 10), [0]);
}

#[test]
fn the_events_of_a_dead_endpoint_keep_their_places() {
    let mut window = window(&[1, 2, 3, 4, 5, 6, 7, 8]);
    for _ in 0..2 {
        let sent = next(&mut window, 0);
        sent.into_iter().for_each(|sequence| window.unreachable(sequence, "no answer", at(0), 0));
    }
    assert!(window.is_stuck(at(0)));
    assert!(window.settlements(0).is_empty());
}

#[test]
fn a_probe_may_be_any_event_that_may_be_sent() {
    let mut window = window(&[1, 2, 1, 3]);
    let mut probe = |random| {
        let sent = window.next_probe(at(0), &OlderGenerations::default(), random)?;
        window.unreachable(sent.sequence, "no answer", at(0), 0);
        Some(sent.sequence)
    };
    assert_eq!([probe(4), probe(1), probe(7), probe(0)], [Some(1), Some(3), Some(0), None]);
}

#[test]
fn a_dead_letter_blocks_its_key_until_it_is_durable() {
    let mut window = window(&[1, 1]);
    let mut head = QueueHead::default();
    for attempt in 0..3 {
        assert_eq!(next(&mut window, attempt * 10), [0]);
        window.failed(0, "refused", 500, at(attempt * 10), 0);
    }
    assert!(next(&mut window, 1000).is_empty());
    let settlements = window.settlements(77);
    let [Settlement { sequence: 0, place: EventPlace::Log, fate: EventOutcome::Dead(letter), .. }] =
        &settlements[..]
    else {
        panic!("{settlements:?}")
    };
    assert_eq!((letter.reason, letter.attempts, letter.dead_ns), (DeadReason::Retries, 3, 77));
    assert_eq!(letter.detail, "refused");
    assert!(next(&mut window, 1000).is_empty(), "it is not written yet");
    write(&mut window, &mut head);
    assert_eq!(next(&mut window, 1000), [1]);
}

#[test]
fn expired_events_become_dead_letters_except_in_flight() {
    let mut window = window(&[1, 1, 2]);
    assert_eq!(next(&mut window, 0), [0, 2]);
    assert_eq!(window.expire(at(1000)), 0);
    assert_eq!(window.expire(at(1001)), 1);
    window.failed(2, "timeout", 0, at(1001), 0);
    assert_eq!(window.expire(at(1002)), 1);
    assert_eq!(write(&mut window, &mut QueueHead::default()), [(1, "dead"), (2, "dead")]);
    window.delivered(0);
    assert_eq!(write(&mut window, &mut QueueHead::default()), [(0, "delivered")]);
    assert!(window.is_empty());
    assert_eq!(window.parked(), 0);
}

#[test]
fn events_behind_parked_ones_are_parked_when_they_fill_the_window() {
    let mut window = window(&[1, 1, 1, 2, 3, 3, 4, 5]);
    let mut head = QueueHead::default();
    assert_eq!(next(&mut window, 0), [0, 3, 4, 6]);
    window.failed(0, "refused", 0, at(0), 0);
    [3, 4, 6].into_iter().for_each(|sequence| window.delivered(sequence));
    assert_eq!(next(&mut window, 0), [5, 7]);
    [5, 7].into_iter().for_each(|sequence| window.delivered(sequence));
    let written = write(&mut window, &mut head);
    assert_eq!(written.iter().filter(|(_, what)| *what == "parked").count(), 3, "{written:?}");
    assert_eq!((head.cursor, window.parked()), (8, 3));
    // The bound of parked events is reached: a fourth event keeps its place in the log.
    load(&mut window, 8, &[1, 6, 7, 8, 9, 10, 11, 12]);
    assert_eq!(next(&mut window, 0), [9, 10, 11, 12]);
    [9, 10, 11, 12].into_iter().for_each(|sequence| window.delivered(sequence));
    assert_eq!(next(&mut window, 0), [13, 14, 15]);
    [13, 14, 15].into_iter().for_each(|sequence| window.delivered(sequence));
    let written = write(&mut window, &mut head);
    assert!(written.iter().all(|(_, what)| *what == "delivered"), "{written:?}");
    assert_eq!((head.cursor, window.load_range()), (8, None));
    // The window continues when the parked events are delivered, in their order.
    for sequence in [0, 1, 2, 8] {
        assert_eq!(next(&mut window, 10), [sequence]);
        window.delivered(sequence);
    }
    write(&mut window, &mut head);
    assert_eq!(head.cursor, 16);
}

#[test]
fn a_window_full_of_one_key_is_not_parked() {
    let mut window = window(&[1; 8]);
    assert_eq!(next(&mut window, 0), [0]);
    assert!(window.settlements(0).is_empty());
}

#[test]
fn parked_events_come_back_with_attempts_and_a_wait_that_is_bounded() {
    let mut window = Window::new(LIMITS, POLICY, &QueueHead { cursor: 5, ..QueueHead::default() });
    let parked =
        |attempts, next_ns| ParkedEvent { event: event(1), attempts, next_ns, detail: "refused".into() };
    window.load_parked(2, parked(2, 10), 0, at(0));
    // The time is an hour ahead, as after a jump of the clock.
    window.load_parked(3, ParkedEvent { event: event(3), ..parked(2, 3_600_000_000_000) }, 0, at(0));
    load(&mut window, 5, &[1, 2]);
    assert_eq!(next(&mut window, 0), [3, 6]);
    assert_eq!(next(&mut window, 10), [2]);
    window.failed(2, "refused", 0, at(10), 0);
    let fates = window.settlements(0);
    assert!(
        matches!(&fates[..], [Settlement { place: EventPlace::Parked, fate: EventOutcome::Dead(_), .. }]),
        "{fates:?}"
    );
}

#[test]
fn events_wait_for_their_key_in_older_generations() {
    let mut window = window(&[0, 1, 2, 3]);
    let only = RemainingEvents::OnlyParked([KeyHash(3)].into());
    let known = |first: RemainingEvents| BTreeMap::from([(0, first), (1, only.clone())]);
    let older = |first| OlderGenerations { generations: vec![(2, known(first))] };
    let sent = |window: &mut Window, older: &OlderGenerations| -> Vec<u64> {
        window.next(at(0), older, 9).iter().map(|sendable| sendable.sequence).collect()
    };
    assert_eq!(sent(&mut window, &older(RemainingEvents::Any)), [1]);
    assert!(
        sent(&mut window, &older(RemainingEvents::None)).is_empty(),
        "nothing changed as far as it knows"
    );
    window.recheck_held();
    assert_eq!(sent(&mut window, &older(RemainingEvents::None)), [0, 2]);
    window.recheck_held();
    assert_eq!(sent(&mut window, &OlderGenerations::default()), [3]);
    let unknown = OlderGenerations { generations: vec![(2, BTreeMap::new())] };
    assert_eq!(unknown.hold(KeyHash(7)), OrderingHold::Busy);
}

#[test]
fn dropped_events_are_forgotten() {
    let mut window = window(&[1, 1, 2, 3]);
    assert_eq!(next(&mut window, 0), [0, 2, 3]);
    window.not_sent(3);
    let mut head = QueueHead::default();
    for dropped in [0, 3] {
        head.settle(dropped);
    }
    window.skip_dropped(&head);
    assert_eq!((window.in_flight(), window.len()), (2, 2));
    // The dropped event in flight may still arrive, so the next event of its key waits for it.
    assert!(next(&mut window, 0).is_empty());
    window.unreachable(0, "no answer", at(0), 0);
    assert_eq!((window.in_flight(), next(&mut window, 0)), (1, vec![1]));
}

#[test]
fn an_event_whose_endpoint_was_not_reached_keeps_its_place_and_waits() {
    let mut window = window(&[1, 2]);
    assert_eq!(window.size_bytes(), 10);
    assert_eq!(next(&mut window, 0), [0, 1]);
    window.unreachable(0, "no answer", at(0), 0);
    window.delivered(1);
    assert!(!window.has_ready(at(0)) && window.has_ready(at(10)));
    let mut head = QueueHead::default();
    assert!(window.is_unsettled());
    assert_eq!(write(&mut window, &mut head), [(1, "delivered")]);
    assert!(!window.is_unsettled());
    assert_eq!((window.parked(), window.size_bytes()), (0, 5));
    assert_eq!(next(&mut window, 10), [0]);
}

#[test]
fn the_next_expiry_is_that_of_the_oldest_event_that_waits() {
    let window = window(&[1, 2]);
    assert_eq!(window.time_to_expiry_ns(at(0)), Some(1000));
    assert_eq!(window.time_to_expiry_ns(at(400)), Some(600));
    assert_eq!(window.time_to_expiry_ns(at(5000)), Some(0));
}
