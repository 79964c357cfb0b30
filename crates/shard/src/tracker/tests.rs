//! Tracking, history, complaints and output of ops.

use super::*;
use nacre_types::ids::{ClientId, Epoch, Interval, PoolId};
use nacre_types::object::SNAP_HEAD;

const MS: u64 = 1_000_000;

fn request(tid: u64) -> OsdRequest {
    OsdRequest {
        reqid: ReqId { client: ClientId(1), tid },
        oldest_tid: 0,
        attempt: 0,
        epoch: Epoch(1),
        pg: PgId::new(PoolId(2), 3),
        interval: Interval(1),
        object: ObjectId::new(PoolId(2), "", "", "o"),
        mtime_ns: 0,
        flags: 0,
        snap: SNAP_HEAD,
        snap_context: None,
        ops: vec![Op::Read { offset: 4, len: 8 }.into()],
        tier: None,
    }
}

fn tracker() -> OpTracker {
    OpTracker::new(TrackerLimits {
        complaint_ns: 10 * MS,
        history_size: 3,
        history_ns: 1000 * MS,
        slow_size: 2,
        slow_ns: 8 * MS,
    })
}

fn at(ms: u64) -> ClockReading {
    ClockReading { now_ns: ms * MS, wall_ns: 1_795_294_663_000_000_000 + ms * MS }
}

fn start(t: &mut OpTracker, tid: u64, ms: u64) -> OpHandle {
    t.start(&request(tid), "127.0.0.1:9".parse().ok(), ms * MS, ms * MS)
}

#[test]
fn slow_ops_are_those_above_the_complaint_time() {
    let mut t = tracker();
    let first = start(&mut t, 1, 0);
    start(&mut t, 2, 15);
    let slow = t.slow(20 * MS);
    assert_eq!((slow.count, slow.oldest_ms), (1, 20));
    assert!(slow.oldest.ends_with("[read 4~8]) currently reached pg"), "{}", slow.oldest);
    assert_eq!(t.slow(40 * MS).count, 2);
    assert_eq!(t.dump_in_flight(at(20), &[], true).len(), 1);
    t.finish(first, 41 * MS);
    assert_eq!((t.slow(42 * MS).count, t.in_flight()), (1, 1));
}

#[test]
fn complaints_come_at_the_complaint_time_and_as_ages_double() {
    let mut t = tracker();
    start(&mut t, 1, 0);
    assert!(t.complaints(at(9), 5).is_empty());
    let lines = t.complaints(at(12), 5);
    assert_eq!(lines.len(), 1);
    assert!(
        lines[0].contains(" initiated 2026-11-21T20:57:43.000000+0000 currently reached pg"),
        "{lines:?}"
    );
    assert!(t.complaints(at(23), 5).is_empty());
    assert_eq!(t.complaints(at(24), 5).len(), 1);
    for tid in 2..9 {
        start(&mut t, tid, 24);
    }
    assert_eq!(t.complaints(at(40), 5).len(), 5, "a flood is bounded");
    assert_eq!(t.complaints(at(40), 5).len(), 2, "the others come later");
}

#[test]
fn history_keeps_the_slowest_of_late() {
    let mut t = tracker();
    for (tid, took) in [5, 1, 9, 7, 2, 11, 12].into_iter().enumerate() {
        let op = start(&mut t, tid as u64, 0);
        assert_eq!(t.finish(op, took * MS), took * MS);
    }
    let durations = |t: &OpTracker, ms: u64, slow: bool| {
        let mut all: Vec<_> =
            t.dump_history(at(ms), &[], slow).iter().map(|(_, (took, _))| took / MS).collect();
        all.sort_unstable();
        all
    };
    assert_eq!(durations(&t, 20, false), [9, 11, 12]);
    assert_eq!(durations(&t, 20, true), [11, 12], "the newest of the slow ones");
    let op = start(&mut t, 9, 2000);
    t.finish(op, 2005 * MS);
    assert_eq!(durations(&t, 2006, false), [5], "old ones are forgotten");
    assert_eq!(durations(&t, 2006, true), [11, 12]);
}

#[test]
fn an_op_is_shown_with_its_stages() {
    let mut t = tracker();
    let op = start(&mut t, 7, 0);
    t.stage(op, Stage::WaitingForActive, MS);
    t.stage(op, Stage::Started, 3 * MS);
    t.stage(op, Stage::WaitingForSubOps, 3 * MS);
    let (age, dump) = t.dump_in_flight(at(5), &["client.1:7"], false).remove(0);
    assert_eq!(age, 5 * MS);
    assert!(t.dump_in_flight(at(5), &["client.9"], false).is_empty());
    let text = dump["description"].as_str().unwrap();
    assert!(text.starts_with("osd_op(client.1:7 2.3 2:") && text.ends_with("[read 4~8])"), "{text}");
    assert_eq!(dump["initiated_at"], "2026-11-21T20:57:43.000000+0000");
    assert_eq!(dump["type_data"]["flag_point"], "waiting for sub ops");
    assert_eq!(dump["type_data"]["client_info"]["client_addr"], "127.0.0.1:0/1");
    let events: Vec<_> = dump["type_data"]["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| (event["event"].as_str().unwrap().to_owned(), event["duration"].as_f64().unwrap()))
        .collect();
    let expected = [
        ("initiated", 0.0),
        ("reached_pg", 0.001),
        ("waiting for active", 0.002),
        ("started", 0.0),
        ("waiting for subops", 0.005),
    ];
    assert_eq!(events, expected.map(|(name, took)| (name.to_owned(), took)));
    // However often the op is delayed, the number of stages is bounded.
    for ms in 5..50 {
        t.stage(op, Stage::Delayed, ms * MS);
    }
    let dump = t.dump_in_flight(at(50), &[], false).remove(0).1;
    assert_eq!(dump["type_data"]["events"].as_array().unwrap().len(), STAGES);
    assert_eq!(dump["type_data"]["flag_point"], "delayed");
}
