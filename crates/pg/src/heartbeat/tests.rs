//! Heartbeats of single machines, and of pairs that exchange messages.

use super::*;
use crate::lease::LeaseSettings;
use nacre_crush::CrushMap;
use nacre_types::osdmap::OsdInfo;

const SECOND: u64 = 1_000_000_000;
const A: OsdId = OsdId(1);
const B: OsdId = OsdId(2);
const C: OsdId = OsdId(3);
const SETTINGS: HeartbeatSettings =
    HeartbeatSettings { interval_ns: 6 * SECOND, grace_ns: 20 * SECOND, report_interval_ns: 5 * SECOND };
const LEASES: LeaseSettings = LeaseSettings { term_ns: 16 * SECOND, drift_ppm: 1000 };

/// A machine with its leases. The process of osd.N is 100·N unless a test says otherwise.
struct Osd {
    id: OsdId,
    machine: Heartbeat,
    leases: LeaseTable,
}

impl Osd {
    fn new(id: OsdId) -> Osd {
        let nonce = u64::from(id.0) * 100;
        Osd { id, machine: Heartbeat::new(id, nonce, SETTINGS), leases: LeaseTable::new(LEASES, nonce, 0) }
    }

    fn feed(&mut self, now_ns: u64, event: HbEvent) -> Vec<HbCommand> {
        let mut out = Vec::new();
        self.machine.handle(now_ns, &mut self.leases, event, &mut out);
        out
    }

    fn next_wake(&self) -> u64 {
        self.machine.next_wake(&self.leases).unwrap()
    }
}

fn map_of(epoch: u32, up: &[(OsdId, u64, u32)]) -> HeartbeatMap {
    let up: BTreeMap<OsdId, UpOsd> = up
        .iter()
        .map(|(osd, boot_nonce, up_from)| {
            let incarnation = Some(Incarnation(uuid::Uuid::from_u128(u128::from(osd.0))));
            (*osd, UpOsd { boot_nonce: *boot_nonce, incarnation, up_from: Epoch(*up_from) })
        })
        .collect();
    HeartbeatMap { epoch: Epoch(epoch), peers: up.keys().copied().collect(), up }
}

fn all_up(epoch: u32) -> HbEvent {
    HbEvent::Map(map_of(epoch, &[(A, 100, 2), (B, 200, 2), (C, 300, 2)]))
}

fn pings(commands: &[HbCommand]) -> Vec<(OsdId, HbMsg)> {
    commands
        .iter()
        .filter_map(|c| match c {
            HbCommand::SendPing { to, msg } => Some((*to, *msg)),
            _ => None,
        })
        .collect()
}

fn failures(commands: &[HbCommand]) -> Vec<OsdFailure> {
    commands
        .iter()
        .filter_map(|c| match c {
            HbCommand::ReportFailure(failure) => Some(*failure),
            _ => None,
        })
        .collect()
}

/// Delivers `from`'s pings for `to` and the answers. Returns the commands that the answers cause on `from`.
fn answer(from: &mut Osd, to: &mut Osd, now_ns: u64, commands: &[HbCommand]) -> Vec<HbCommand> {
    let (mut done, peer) = (Vec::new(), to.id);
    for (_, msg) in pings(commands).into_iter().filter(|(target, _)| *target == peer) {
        for reply in to.feed(now_ns, HbEvent::Message { from: from.id, msg }) {
            if let HbCommand::SendReply { to: back, msg } = reply {
                assert_eq!(back, from.id);
                done.extend(from.feed(now_ns, HbEvent::Message { from: to.id, msg }));
            }
        }
    }
    done
}

fn trio() -> (Osd, Osd, Osd, Vec<HbCommand>) {
    let (mut a, mut b, mut c) = (Osd::new(A), Osd::new(B), Osd::new(C));
    let first = a.feed(0, all_up(5));
    b.feed(0, all_up(5));
    c.feed(0, all_up(5));
    (a, b, c, first)
}

#[test]
fn answered_pings_keep_leases_and_raise_no_report() {
    let (mut a, mut b, mut c, mut commands) = trio();
    assert_eq!(pings(&commands).iter().map(|(to, _)| *to).collect::<Vec<_>>(), [B, C]);
    let mut now = 0;
    let mut gained = Vec::new();
    for _ in 0..50 {
        for peer in [&mut b, &mut c] {
            gained.extend(answer(&mut a, peer, now + 1000, &commands));
        }
        assert!(a.leases.holds_all(&[B, C], now + 1000));
        let next = a.next_wake();
        assert_eq!(next - now, 4 * SECOND, "a quarter of the term is sooner than the interval");
        assert!(a.leases.holds_all(&[B, C], next));
        now = next;
        commands = a.feed(now, HbEvent::Tick);
        assert!(failures(&commands).is_empty());
    }
    assert_eq!(gained, [HbCommand::LeaseGained(B), HbCommand::LeaseGained(C)]);
}

#[test]
fn silence_beyond_the_grace_is_reported_again_and_taken_back() {
    let (mut a, mut b, mut c, mut commands) = trio();
    let (mut now, mut reports) = (0, Vec::new());
    while now < 32 * SECOND {
        answer(&mut a, &mut b, now, &commands);
        now = a.next_wake();
        commands = a.feed(now, HbEvent::Tick);
        reports.extend(failures(&commands).into_iter().map(|failure| (now, failure)));
    }
    let at = |ms: u64| {
        let failure =
            OsdFailure { target: C, boot_nonce: 300, silent_ms: ms, refused: false, epoch: Epoch(5) };
        (ms * 1_000_000, failure)
    };
    assert_eq!(reports, [at(20_000), at(25_000), at(30_000)]);
    assert!(!a.leases.holds(C, now) && a.leases.holds(B, now));

    now += 4 * SECOND;
    commands = a.feed(now, HbEvent::Tick);
    let done = answer(&mut a, &mut c, now, &commands);
    let cancel = OsdFailure { target: C, boot_nonce: 300, silent_ms: 0, refused: false, epoch: Epoch(5) };
    assert_eq!(done, [HbCommand::CancelFailure(cancel), HbCommand::LeaseGained(C)]);
    assert!(a.next_wake() > now + 3 * SECOND, "nothing is left to report");
}

#[test]
fn a_refused_connection_is_reported_at_once() {
    let (mut a, _, mut c, _) = trio();
    let refused = |boot_nonce| HbEvent::Refused { target: C, boot_nonce };
    assert_eq!(a.feed(SECOND, refused(999)), [], "another process's address");
    let expected = OsdFailure { target: C, boot_nonce: 300, silent_ms: 1000, refused: true, epoch: Epoch(5) };
    assert_eq!(a.feed(SECOND, refused(300)), [HbCommand::ReportFailure(expected)]);
    assert_eq!(a.feed(2 * SECOND, refused(300)), [], "once per report interval");
    assert_eq!(failures(&a.feed(6 * SECOND, refused(300))).len(), 1);
    assert_eq!(failures(&a.feed(6 * SECOND, HbEvent::MonReset)).len(), 1);
    let commands = a.feed(10 * SECOND, HbEvent::Tick);
    let done = answer(&mut a, &mut c, 10 * SECOND, &commands);
    assert!(matches!(done[..], [HbCommand::CancelFailure(_), HbCommand::LeaseGained(C)]), "{done:?}");
}

#[test]
fn only_the_process_that_was_pinged_can_answer() {
    let (mut a, _, _, commands) = trio();
    let (_, HbMsg::Ping { lease, .. }) = pings(&commands)[1] else { panic!("no ping") };
    let pong = |boot_nonce, for_boot_nonce, sent_at_ns| HbEvent::Message {
        from: C,
        msg: HbMsg::Pong { boot_nonce, epoch: Epoch(5), for_boot_nonce, sent_at_ns, lease: None },
    };
    for wrong in [pong(301, 100, 0), pong(300, 99, 0), pong(300, 100, lease.sent_at_ns + 1)] {
        a.feed(0, wrong);
        assert!(a.machine.peers[&C].unanswered_since_ns.is_some());
    }
    a.feed(0, pong(300, 100, lease.sent_at_ns));
    assert!(a.machine.peers[&C].unanswered_since_ns.is_none());
}

#[test]
fn only_the_process_that_the_map_shows_is_granted_a_lease() {
    let (_, mut b, _, _) = trio();
    let mut lease_for = |boot_nonce, to_boot_nonce| {
        let lease = LeaseRequest { boot_nonce, epoch: Epoch(5), sent_at_ns: 7 };
        let ping = HbMsg::Ping { to_boot_nonce, lease };
        match b.feed(SECOND, HbEvent::Message { from: A, msg: ping })[..] {
            [HbCommand::SendReply { to: A, msg: HbMsg::Pong { boot_nonce: 200, lease, .. } }] => lease,
            ref other => panic!("{other:?}"),
        }
    };
    assert!(lease_for(100, 200).is_some());
    assert_eq!(lease_for(101, 200), None, "an unknown process");
    assert_eq!(lease_for(100, 201), None, "it asked another process");
}

#[test]
fn an_osd_marked_down_gets_no_lease_until_it_is_back_and_knows() {
    let (mut a, mut b, _, commands) = trio();
    answer(&mut a, &mut b, 0, &commands);
    let quiet = b.leases.grants_expire_at(A);
    b.feed(SECOND, HbEvent::Map(map_of(6, &[(B, 200, 2), (C, 300, 2)])));
    let commands = a.feed(4 * SECOND, HbEvent::Tick);
    assert_eq!(answer(&mut a, &mut b, 4 * SECOND, &commands), [HbCommand::NewerMap(Epoch(6))]);
    let asked = LeaseRequest { boot_nonce: 100, epoch: Epoch(6), sent_at_ns: 1 };
    assert_eq!(b.leases.grant(A, &asked, 4 * SECOND), None);
    assert_eq!(b.leases.grants_expire_at(A), quiet);

    // It is up again in the same process, but A has not received the map.
    let back = map_of(8, &[(A, 100, 8), (B, 200, 2), (C, 300, 2)]);
    b.feed(20 * SECOND, HbEvent::Map(back.clone()));
    let commands = a.feed(20 * SECOND, HbEvent::Tick);
    answer(&mut a, &mut b, 20 * SECOND, &commands);
    assert!(!a.leases.holds(B, 20 * SECOND));
    let commands = a.feed(21 * SECOND, HbEvent::Map(back));
    assert!(commands.contains(&HbCommand::LeaseGained(B)));
}

#[test]
fn a_new_process_is_known_to_hold_nothing_of_its_predecessor() {
    let (mut a, mut b, _, commands) = trio();
    answer(&mut a, &mut b, SECOND, &commands);
    let boot_wait = b.leases.boot_wait_until();
    assert!(b.leases.grants_expire_at(A) > boot_wait);
    b.feed(2 * SECOND, HbEvent::Map(map_of(7, &[(A, 101, 7), (B, 200, 2), (C, 300, 2)])));
    assert_eq!(b.leases.grants_expire_at(A), 0, "both processes of A were up after B had booted");

    // Here, B sees the change in maps that may be older than its own boot: an earlier process of B may have granted leases to
    // the new A.
    let mut b = Osd::new(B);
    b.feed(0, HbEvent::Map(map_of(4, &[(A, 100, 2)])));
    b.feed(0, HbEvent::Map(map_of(6, &[(A, 101, 5), (B, 200, 6)])));
    assert_eq!(b.leases.grants_expire_at(A), boot_wait);
}

#[test]
fn a_new_store_under_an_id_does_not_end_the_process_on_the_old_one() {
    let (mut a, mut b, _, commands) = trio();
    answer(&mut a, &mut b, SECOND, &commands);
    let quiet = b.leases.grants_expire_at(A);
    let replaced = |epoch, boot_nonce| {
        let mut map = map_of(epoch, &[(A, boot_nonce, epoch), (B, 200, 2), (C, 300, 2)]);
        map.up.get_mut(&A).unwrap().incarnation = Some(Incarnation(uuid::Uuid::from_u128(77)));
        HbEvent::Map(map)
    };
    b.feed(2 * SECOND, HbEvent::Map(map_of(6, &[(B, 200, 2), (C, 300, 2)])));
    b.feed(3 * SECOND, replaced(7, 101));
    assert_eq!(b.leases.grants_expire_at(A), quiet, "the process on the old store may hold its lease");
    // Neither does a restart of the process on the new store.
    b.feed(4 * SECOND, replaced(8, 102));
    assert_eq!(b.leases.grants_expire_at(A), quiet);
}

#[test]
fn a_pause_of_this_osd_is_no_evidence_against_its_peers() {
    let (mut a, _, _, _) = trio();
    a.feed(4 * SECOND, HbEvent::Tick);
    let after = 60 * SECOND;
    assert!(failures(&a.feed(after, HbEvent::Tick)).is_empty(), "answers may wait unread");
    let mut reports = Vec::new();
    let mut now = after;
    while reports.is_empty() {
        now = a.next_wake();
        reports = failures(&a.feed(now, HbEvent::Tick));
    }
    assert_eq!(now, after + SETTINGS.grace_ns);
}

#[test]
fn who_is_not_up_stays_silent() {
    let (mut a, _, _, _) = trio();
    let down = HbEvent::Map(map_of(6, &[(B, 200, 2), (C, 300, 2)]));
    assert_eq!(a.feed(30 * SECOND, down), []);
    assert_eq!(a.machine.next_wake(&a.leases), None);
    assert_eq!(a.feed(60 * SECOND, HbEvent::Tick), []);
}

#[test]
fn peers_share_pgs_or_are_neighbours() {
    let mut map = OsdMap::new(Default::default(), 0, CrushMap::default());
    for id in 0..20 {
        map.osds.insert(OsdId(id), OsdInfo { up: id != 6, boot_nonce: 1, ..OsdInfo::never_up() });
    }
    let sharing = BTreeSet::from([OsdId(5), OsdId(6), OsdId(12), OsdId(99)]);
    let peers = |min| {
        let picked = HeartbeatMap::new(&map, OsdId(5), &sharing, min);
        assert_eq!(picked.up.len(), 19);
        picked.peers.iter().map(|osd| osd.0).collect::<Vec<_>>()
    };
    assert_eq!(peers(0), [4, 7, 12]);
    assert_eq!(peers(5), [4, 7, 8, 9, 12]);
    assert_eq!(peers(100).len(), 18);
    assert!(HeartbeatMap::new(&map, OsdId(6), &BTreeSet::new(), 0).peers.contains(&OsdId(5)));
}

#[test]
fn a_peer_that_granted_no_lease_is_pinged_again_soon() {
    let (mut a, mut b) = (Osd::new(A), Osd::new(B));
    let map = |epoch| HbEvent::Map(map_of(epoch, &[(A, 100, 2), (B, 200, epoch)]));
    // B's boot reaches A first: B does not know yet that it is up, nor the process of A.
    let mut commands = a.feed(0, map(5));
    answer(&mut a, &mut b, 0, &commands);
    assert!(!a.leases.holds(B, 0));
    b.feed(10_000_000, map(5));
    let again = a.next_wake();
    assert_eq!(again, 50_000_000);
    commands = a.feed(again, HbEvent::Tick);
    assert_eq!(answer(&mut a, &mut b, again, &commands), [HbCommand::LeaseGained(B)]);
    assert_eq!(a.next_wake() - again, 4 * SECOND, "from then on as usual");
}

#[test]
fn pings_to_a_peer_that_grants_no_lease_back_off() {
    let mut a = Osd::new(A);
    a.feed(0, HbEvent::Map(map_of(5, &[(A, 100, 2), (B, 200, 2)])));
    let mut times = Vec::new();
    for _ in 0..9 {
        times.push(a.next_wake());
        a.feed(a.next_wake(), HbEvent::Tick);
    }
    let gaps: Vec<u64> = times.windows(2).map(|pair| (pair[1] - pair[0]) / 1_000_000).collect();
    assert_eq!(gaps, [100, 200, 400, 800, 1600, 3200, 4000, 4000]);
}
