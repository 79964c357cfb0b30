//! Notifies with watchers that answer, leave, come back and stop answering.

use super::*;
use nacre_types::ids::PoolId;

const SECOND: u64 = 1_000_000_000;
const LIMITS: WatchLimits = WatchLimits { notifies: 4, bytes: 1000 };
const ANN: WatchId = (ClientId(1), 10);
const BOB: WatchId = (ClientId(2), 10);

type Table = Watches<u32, &'static str>;

fn oid() -> ObjectId {
    ObjectId::new(PoolId(1), "", "", "o")
}

fn info(watch: WatchId) -> WatchInfo {
    WatchInfo { client: watch.0, cookie: watch.1, timeout_s: 30, addr: String::new() }
}

fn reqid(tid: u64) -> ReqId {
    ReqId { client: ClientId(9), tid }
}

/// The actions as text.
fn text(out: Vec<WatchAction<u32, &'static str>>) -> Vec<String> {
    out.into_iter()
        .map(|action| match action {
            WatchAction::Tell(conn, n) => {
                format!("tell {conn}: {} of {}: {:?}", n.notify_id, n.cookie, n.payload)
            }
            WatchAction::TellLost(conn, cookie) => format!("lost {conn}: {cookie}"),
            WatchAction::Complete { notifier, reply, timed_out } => {
                let acks: Vec<_> = reply.acks.iter().map(|(c, _, a)| format!("{c}={a:?}")).collect();
                format!("{notifier} done {}: {acks:?} missed {:?} {timed_out}", reply.notify_id, reply.missed)
            }
            WatchAction::Lapse { watch, .. } => format!("lapse {}", watch.0.0),
        })
        .collect()
}

struct Bench {
    table: Table,
    now: u64,
}

impl Bench {
    fn new() -> Bench {
        Bench { table: Watches::new(LIMITS, Arc::default(), 0), now: 0 }
    }

    fn connect(&mut self, watch: WatchId, conn: u32) -> Vec<String> {
        let mut out = Vec::new();
        self.table.connect((0, &oid()), watch, 30, conn, self.now, &mut out);
        text(out)
    }

    fn notify(&mut self, tid: u64, notifier: &'static str) -> Vec<String> {
        self.attempt(tid, 0, notifier)
    }

    fn attempt(&mut self, tid: u64, attempt: u32, notifier: &'static str) -> Vec<String> {
        let mut out = Vec::new();
        let when = (self.now, 10 * SECOND);
        let payload = Bytes::from_static(b"hi");
        self.table.notify((0, &oid()), (reqid(tid), attempt), notifier, payload, when, &mut out).unwrap();
        text(out)
    }

    fn ack(&mut self, id: u64, watch: WatchId, answer: &'static str) -> Vec<String> {
        let mut out = Vec::new();
        self.table.ack(&oid(), id, watch, answer.into(), &mut out);
        text(out)
    }

    fn pass(&mut self, seconds: u64) -> Vec<String> {
        self.now += seconds * SECOND;
        let mut out = Vec::new();
        self.table.on_tick(self.now, |_| true, &mut out);
        text(out)
    }

    /// The same while no PG answers.
    fn pass_unanswered(&mut self, seconds: u64) -> Vec<String> {
        self.now += seconds * SECOND;
        let mut out = Vec::new();
        self.table.on_tick(self.now, |_| false, &mut out);
        text(out)
    }
}

#[test]
fn a_notify_ends_when_everybody_has_answered() {
    let mut b = Bench::new();
    assert_eq!(b.notify(1, "n"), ["n done 1: [] missed [] false"], "nobody watches");
    assert!(b.connect(BOB, 2).is_empty());
    assert!(b.connect(ANN, 1).is_empty());
    assert_eq!(b.notify(2, "n"), [r#"tell 1: 2 of 10: b"hi""#, r#"tell 2: 2 of 10: b"hi""#]);
    assert!(b.ack(2, BOB, "b").is_empty());
    assert!(b.ack(2, BOB, "again").is_empty(), "one answer counts");
    assert!(b.ack(7, ANN, "another").is_empty());
    assert_eq!(b.ack(2, ANN, "a"), [r#"n done 2: ["1=b\"a\"", "2=b\"b\""] missed [] false"#]);
    assert_eq!(b.table.len(), (2, 0));
}

#[test]
fn who_does_not_answer_in_time_is_missed() {
    let mut b = Bench::new();
    b.connect(ANN, 1);
    b.connect(BOB, 2);
    b.notify(1, "n");
    b.ack(1, ANN, "a");
    assert!(b.pass(9).is_empty());
    assert_eq!(b.pass(1), [r#"n done 1: ["1=b\"a\""] missed [(2, 10)] true"#]);
    assert!(b.ack(1, BOB, "late").is_empty());
}

#[test]
fn after_failover_a_notify_waits_for_watchers_to_come_back() {
    let mut b = Bench::new();
    b.table.adopt(0, &oid(), &[info(ANN), info(BOB)], b.now);
    assert!(b.notify(1, "n").is_empty(), "both are known but not connected");
    assert_eq!(b.connect(BOB, 2), [r#"tell 2: 1 of 10: b"hi""#]);
    b.table.adopt(0, &oid(), &[info(ANN), info(BOB)], b.now);
    assert!(b.ack(1, BOB, "b").is_empty());
    assert_eq!(b.connect(ANN, 1), [r#"tell 1: 1 of 10: b"hi""#]);
    assert_eq!(b.ack(1, ANN, "a").len(), 1);
}

#[test]
fn a_watcher_that_stays_away_lapses_and_holds_nobody_up() {
    let mut b = Bench::new();
    b.table.adopt(0, &oid(), &[info(ANN)], b.now);
    assert!(b.pass(25).is_empty());
    assert!(b.notify(1, "n").is_empty());
    assert_eq!(b.pass(5), ["lapse 1"]);
    assert!(b.notify(2, "m").is_empty(), "it may come back until it is removed");
    let mut out = Vec::new();
    b.table.remove(&oid(), ANN, true, &mut out);
    assert_eq!(text(out), ["n done 1: [] missed [] false", "m done 2: [] missed [] false"]);
    assert_eq!(b.table.len(), (0, 0));
}

#[test]
fn signs_of_life_put_the_lapse_off_and_silence_does_not() {
    let mut b = Bench::new();
    b.connect(ANN, 1);
    b.connect(BOB, 2);
    for _ in 0..5 {
        assert!(b.pass(20).is_empty() || b.now >= 30 * SECOND);
        assert!(b.table.ping(&oid(), ANN, b.now, |conn| *conn == 1));
    }
    assert!(!b.table.ping(&oid(), ANN, b.now, |conn| *conn == 7), "not over this connection");
    assert!(!b.table.ping(&oid(), BOB, b.now, |_| true), "it has lapsed");
    assert!(!b.table.ping(&oid(), (ClientId(3), 1), b.now, |_| true));
    assert_eq!(b.pass(30), ["lost 1: 10", "lapse 1"]);
}

#[test]
fn lost_connections_leave_the_timeout_to_come_back() {
    let mut b = Bench::new();
    b.connect(ANN, 1);
    b.pass(20);
    b.table.disconnect(b.now, |conn| *conn == 1);
    assert!(!b.table.ping(&oid(), ANN, b.now, |_| true));
    assert!(b.pass(20).is_empty(), "the timeout counts from the loss");
    assert!(b.connect(ANN, 3).is_empty());
    assert!(b.pass(29).is_empty());
    assert_eq!(b.pass(1), ["lost 3: 10", "lapse 1"]);
}

#[test]
fn unwatching_and_removal_end_the_wait() {
    let mut b = Bench::new();
    b.connect(ANN, 1);
    b.connect(BOB, 2);
    b.notify(1, "n");
    let mut out = Vec::new();
    b.table.remove(&oid(), ANN, false, &mut out);
    assert!(text(out).is_empty());
    let mut out = Vec::new();
    b.table.remove_all(&oid(), &mut out);
    assert_eq!(text(out), ["lost 2: 10", "n done 1: [] missed [] false"]);
}

#[test]
fn watches_that_a_replaced_object_lacks_are_lost() {
    let mut b = Bench::new();
    b.connect(ANN, 1);
    b.connect(BOB, 2);
    b.notify(1, "n");
    let mut out = Vec::new();
    b.table.retain(&oid(), &[info(ANN)], &mut out);
    assert_eq!(text(out), ["lost 2: 10"]);
    assert_eq!(b.ack(1, ANN, "a").len(), 1, "the notify waits for no other");
}

#[test]
fn tables_of_one_osd_number_their_notifies_together() {
    let counts: Arc<WatchCounts> = Arc::default();
    let mut tables = [100, 100].map(|first| Table::new(LIMITS, counts.clone(), first));
    let when = (0, 10 * SECOND);
    let mut ids = Vec::new();
    for (tid, table) in tables.iter_mut().enumerate() {
        let mut out = Vec::new();
        table.connect((0, &oid()), ANN, 30, 1, 0, &mut out);
        table.notify((0, &oid()), (reqid(tid as u64), 0), "n", Bytes::new(), when, &mut out).unwrap();
        ids.extend(out.into_iter().filter_map(|action| match action {
            WatchAction::Tell(_, message) => Some(message.notify_id),
            _ => None,
        }));
    }
    assert_eq!(ids, [101, 102]);
}

#[test]
fn resends_take_the_notifiers_place() {
    let mut b = Bench::new();
    b.connect(ANN, 1);
    b.notify(1, "first");
    assert!(b.attempt(1, 1, "second").is_empty());
    assert_eq!(b.ack(1, ANN, "").len(), 1);
    let mut out = Vec::new();
    b.table.end_sessions(|client, conn| client == ClientId(1) && conn == Some(&1), &mut out);
    assert_eq!(text(out), ["lost 1: 10", "lapse 1"]);
}

#[test]
fn a_removal_that_did_not_come_about_is_tried_again() {
    let mut b = Bench::new();
    b.connect(ANN, 1);
    assert_eq!(b.pass(30), ["lost 1: 10", "lapse 1"]);
    b.table.lapse_again(&oid(), ANN, b.now, false);
    assert_eq!(b.pass(1), ["lapse 1"]);
    assert!(b.pass(100).is_empty());
    // If it fails, the first retry is soon, because notifies wait for it; later retries are less and less frequent.
    for seconds in [1, 2, 4, 8, 16, 30, 30] {
        b.table.lapse_again(&oid(), ANN, b.now, true);
        assert!(b.pass(seconds - 1).is_empty());
        assert_eq!(b.pass(1), ["lapse 1"]);
    }
    b.connect(ANN, 2);
    assert_eq!(b.pass(30), ["lost 2: 10", "lapse 1"]);
}

#[test]
fn a_late_earlier_attempt_does_not_take_the_notifiers_place() {
    let mut b = Bench::new();
    b.connect(ANN, 1);
    b.attempt(1, 1, "second");
    assert!(b.attempt(1, 0, "first").is_empty());
    assert!(b.attempt(1, 1, "again").is_empty());
    assert_eq!(b.ack(1, ANN, "a"), [r#"second done 1: ["1=b\"a\""] missed [] false"#]);
}

#[test]
fn watches_do_not_lapse_while_their_pg_does_not_answer() {
    let mut b = Bench::new();
    b.connect(ANN, 1);
    b.table.adopt(0, &oid(), &[info(BOB)], b.now);
    assert!(b.pass_unanswered(30).is_empty());
    assert!(b.pass_unanswered(29).is_empty());
    assert!(b.table.ping(&oid(), ANN, b.now, |_| true), "it is still there");
    assert!(b.pass_unanswered(1000).is_empty());
    assert!(b.pass(29).is_empty(), "the watchers have their timeout again");
    assert_eq!(b.pass(1), ["lost 1: 10", "lapse 1", "lapse 2"]);
}

#[test]
fn another_interval_starts_from_nothing() {
    let mut b = Bench::new();
    b.connect(ANN, 1);
    b.notify(1, "n");
    assert!(b.table.drop_slot(3).is_empty());
    assert_eq!(b.table.drop_slot(0), ["n"]);
    assert_eq!((b.table.len(), b.table.bytes), ((0, 0), 0));
    assert!(b.pass(100).is_empty());
    assert_eq!(b.table.next_ns(), None);
}

#[test]
fn notifies_and_their_bytes_are_bounded() {
    let mut b = Bench::new();
    b.connect(ANN, 1);
    for tid in 0..4 {
        b.notify(tid, "n");
    }
    let mut out = Vec::new();
    let refused = b.table.notify((0, &oid()), (reqid(9), 0), "m", Bytes::new(), (0, SECOND), &mut out);
    assert_eq!(refused, Err(NotifyLimitReached("m")));
    b.ack(1, ANN, "");
    let large = Bytes::from(vec![0; 995]);
    let refused = b.table.notify((0, &oid()), (reqid(9), 0), "m", large, (0, SECOND), &mut out);
    assert_eq!(refused, Err(NotifyLimitReached("m")));
    b.table.ack(&oid(), 2, ANN, Bytes::from(vec![1; 2000]), &mut out);
    assert!(matches!(&out[..], [WatchAction::Complete { reply, .. }] if reply.acks[0].2.is_empty()));
    b.pass(100);
    assert_eq!((b.table.notifies, b.table.bytes), (0, 0));
}

#[test]
fn what_is_watched_is_counted() {
    let counts: Arc<WatchCounts> = Arc::default();
    let mut table: Table = Watches::new(LIMITS, counts.clone(), 0);
    let mut other: Table = Watches::new(LIMITS, counts.clone(), 0);
    let (name, mut out) = (|n: u64| ObjectId::new(PoolId(1), "", "", &n.to_string()), Vec::new());
    for n in 0..3 {
        table.connect((n as u32, &name(n)), ANN, 30, 7, 0, &mut out);
    }
    table.connect((0, &name(0)), ANN, 30, 8, 0, &mut out);
    table.adopt(0, &name(0), &[info(ANN), info(BOB)], 0);
    other.adopt(0, &name(9), &[info(ANN)], 0);
    assert_eq!((counts.of(ANN.0), counts.of(BOB.0)), ((4, 5), (1, 5)));
    // A lapsed watch counts until it is removed.
    table.on_tick(31 * SECOND, |_| true, &mut out);
    assert_eq!(counts.of(ANN.0), (4, 5));
    table.remove(&name(0), ANN, false, &mut out);
    table.remove(&name(0), ANN, false, &mut out);
    assert_eq!((counts.of(ANN.0), counts.of(BOB.0)), ((3, 4), (1, 4)));
    table.remove_all(&name(0), &mut out);
    assert_eq!(counts.of(BOB.0), (0, 3));
    table.drop_slot(1);
    assert_eq!(counts.of(ANN.0), (2, 2));
    drop(table);
    assert_eq!(counts.of(ANN.0), (1, 1));
    drop(other);
    assert_eq!(counts.of(ANN.0), (0, 0));
}

#[test]
fn timers_of_what_is_gone_do_not_pile_up() {
    const ROUNDS: usize = 5 * FEW_TIMERS;
    let mut b = Bench::new();
    b.connect(BOB, 2);
    let mut out = Vec::new();
    for round in 0..ROUNDS {
        b.table.connect((0, &oid()), ANN, u32::MAX, 1, b.now, &mut out);
        let when = (b.now, timeout_ns(u32::MAX));
        let request = (reqid(round as u64), 0);
        b.table.notify((0, &oid()), request, "n", Bytes::new(), when, &mut out).unwrap();
        b.table.ack(&oid(), round as u64 + 1, BOB, Bytes::new(), &mut out);
        b.table.remove(&oid(), ANN, false, &mut out);
        assert!(
            b.table.timers.len() <= FEW_TIMERS + 1,
            "{} timers after {round} rounds",
            b.table.timers.len()
        );
    }
    // Valid timers are kept.
    b.table.notify((0, &oid()), (reqid(1), 0), "late", Bytes::new(), (b.now, 10 * SECOND), &mut out).unwrap();
    assert_eq!(b.pass(10).len(), 1);
    assert_eq!(b.pass(20), ["lost 2: 10", "lapse 2"]);
}

#[test]
fn timeouts_end_after_a_day() {
    let mut b = Bench::new();
    b.table.adopt(0, &oid(), &[WatchInfo { timeout_s: u32::MAX, ..info(ANN) }], b.now);
    assert!(b.pass(u64::from(MAX_TIMEOUT_S) - 1).is_empty());
    assert_eq!(b.pass(1), ["lapse 1"]);
}
