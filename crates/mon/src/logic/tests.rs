//! The map logic by example, on a cluster of a few OSDs.

mod random;

use super::*;
use crate::testing::{at, boot_of};
use nacre_crush::CrushMap;
use nacre_types::ids::{Incarnation, Interval, PgId, PoolId};
use nacre_types::osdmap::{MapVersion, Member, PgMembership, flag};
use nacre_types::placement::PgMapper;
use nacre_types::pool::Pool;
use uuid::Uuid;

pub(crate) const POOL: PoolId = PoolId(1);

pub(crate) fn member(osd: u32) -> Member {
    Member { osd: OsdId(osd), incarnation: boot_of(osd, 0).incarnation }
}

/// Makes all collected changes durable and returns the answers that waited for them.
pub(crate) fn commit(state: &mut MapState, now: Now) -> Vec<MapEffect> {
    let mut effects = Vec::new();
    while let Some(proposal) = state.propose(now) {
        if let Some(inc) = &proposal.incremental {
            assert_eq!(inc.epoch, state.map().epoch.next());
        }
        effects.extend(state.on_committed(proposal.number));
    }
    effects
}

/// A cluster of `osds` OSDs that are up, two per host, with a pool of 8 PGs, size 3, min_size 2.
pub(crate) fn cluster(osds: u32) -> MapState {
    let map = OsdMap::new(Uuid::from_u128(1), 1, CrushMap::new_cluster("osd").unwrap());
    let mut state = MapState::new(map, Tuning::default(), at(0));
    for osd in 0..osds {
        assert_eq!(state.handle(at(0), MapEvent::Boot(boot_of(osd, 1))), []);
    }
    assert_eq!(state.add_pool(Pool::replicated("p", 3, 2, 0, 8, Epoch(0))), POOL);
    commit(&mut state, at(0));
    state
}

fn failure(target: u32, silent_ms: u64, refused: bool) -> OsdFailure {
    OsdFailure { target: OsdId(target), boot_nonce: 1, silent_ms, refused, epoch: Epoch(2) }
}

fn report(state: &mut MapState, now: Now, reporter: u32, what: OsdFailure) {
    state.handle(now, MapEvent::Failure { reporter: OsdId(reporter), report: what });
    commit(state, now);
}

fn membership(interval: u64, primary: u32, in_sync: &[u32]) -> PgMembership {
    let in_sync = in_sync.iter().map(|osd| member(*osd)).collect();
    PgMembership { interval: Interval(interval), primary: OsdId(primary), in_sync }
}

fn propose(state: &mut MapState, by: u32, seed: u32, proposed: PgMembership) -> PgCasReply {
    let pg = PgId::new(POOL, seed);
    let cas =
        PgCas { tid: 7, pg, proposer: member(by), expected: state.map().membership(pg).cloned(), proposed };
    swap(state, by, cas)
}

fn swap(state: &mut MapState, by: u32, cas: PgCas) -> PgCasReply {
    let mut effects = state.handle(at(1), MapEvent::Cas { origin: ConnToken(3), osd: OsdId(by), cas });
    effects.extend(commit(state, at(1)));
    match effects.as_slice() {
        [MapEffect::CasReply { to: ConnToken(3), reply }] => reply.clone(),
        other => panic!("expected one answer, got {other:?}"),
    }
}

/// Advances the time to `to`, with a tick every four seconds and at the end.
fn pass(state: &mut MapState, from: u64, to: u64) {
    (from..to).step_by(4_000).skip(1).chain([to]).for_each(|t| {
        state.handle(at(t), MapEvent::Tick);
    });
}

/// The up set of a PG of the pool.
fn up(state: &MapState, seed: u32) -> Vec<u32> {
    PgMapper::new(state.map()).up(PgId::new(POOL, seed)).iter().map(|o| o.0).collect()
}

#[test]
fn new_osds_come_up_in_and_get_a_place_by_host_size_and_class() {
    let state = cluster(4);
    let map = state.map();
    assert!(map.osds.values().all(|info| info.up && info.is_in()));
    assert_eq!(map.max_osd, 4);
    let location = map.crush.full_location(3);
    assert_eq!((location["host"].as_str(), location["root"].as_str()), ("host1", "default"));
    assert_eq!(map.crush.item_weight(3), Some(WEIGHT));
    assert_eq!(map.crush.device_class(3), Some("ssd"));
}
const WEIGHT: u32 = 0x1_0000;

#[test]
fn noup_noin_and_a_running_namesake_hold_a_boot_up() {
    let mut state = cluster(3);
    state.set_flags(flag::NOUP);
    commit(&mut state, at(1));
    state.handle(at(1), MapEvent::Boot(boot_of(5, 1)));
    assert!(!state.has_changes());
    state.clear_flags(flag::NOUP);
    commit(&mut state, at(1));
    let impostor = OsdBoot { uuid: Uuid::from_u128(999), boot_nonce: 8, ..boot_of(1, 8) };
    state.handle(at(1), MapEvent::Boot(impostor));
    assert!(!state.has_changes());
    state.set_flags(flag::NOIN);
    state.handle(at(1), MapEvent::Boot(boot_of(5, 1)));
    commit(&mut state, at(1));
    assert!(state.map().is_up(OsdId(5)) && !state.map().osds[&OsdId(5)].is_in());
}

#[test]
fn an_osd_that_saw_a_later_history_is_refused_and_remembered() {
    let mut state = cluster(3);
    let seen = |generation| MapVersion { generation, epoch: Epoch(900), ..MapVersion::default() };
    state.handle(at(1), MapEvent::Boot(OsdBoot { seen: seen(1), ..boot_of(0, 2) }));
    assert!(!state.can_propose() && state.rolled_back.contains_key(&EntityName::osd(OsdId(0))));
    // Nothing is committed meanwhile.
    state.handle(at(1), MapEvent::Boot(boot_of(1, 2)));
    assert!(state.propose(at(1)).is_none());
    // The OSD has got another disk.
    state.handle(at(1), MapEvent::Boot(OsdBoot { seen: seen(0), ..boot_of(0, 2) }));
    assert!(state.can_propose() && !state.is_rolled_back());
}

#[test]
fn a_store_that_continued_from_an_old_copy_commits_nothing_once_an_osd_has_reported_the_lost_history() {
    let start = cluster(3).map().clone();
    let history = |lost: bool| {
        let mut state = MapState::new(start.clone(), Tuning::default(), at(1));
        let bit = if lost { flag::NOOUT } else { flag::NOIN };
        for _ in 0..3 {
            state.set_flags(bit);
            commit(&mut state, at(1));
            state.clear_flags(bit);
            commit(&mut state, at(1));
        }
        state
    };
    let (lost, mut state) = (history(true), history(false));
    assert_eq!(lost.map().epoch, state.map().epoch);
    let seen = lost.map().version();
    // The same is seen for an epoch before the newest one.
    state.set_flags(flag::NODEEP_SCRUB);
    commit(&mut state, at(1));
    let own = OsdBeacon { boot_nonce: 1, map: state.map().version(), full: false };
    state.handle(at(2), MapEvent::Alive { osd: OsdId(0), alive: own });
    assert!(!state.is_rolled_back());
    state.handle(at(2), MapEvent::Alive { osd: OsdId(1), alive: OsdBeacon { map: seen, ..own } });
    assert!(state.is_rolled_back());
    state.set_flags(flag::NOOUT);
    assert!(!state.can_propose() && state.propose(at(3)).is_none());
    // No membership is accepted that can't become durable.
    let (pg, proposed) = (PgId::new(POOL, 0), membership(1, 0, &[0, 1, 2]));
    let cas = PgCas { tid: 7, pg, proposer: member(0), expected: None, proposed };
    assert_eq!(state.handle(at(3), MapEvent::Cas { origin: ConnToken(3), osd: OsdId(0), cas }), []);
    // In a new generation, OSDs are expected to have seen other histories.
    let mut restored = MapState::new(new_generation(state.map(), 2, at(3), &[]), Tuning::default(), at(3));
    assert!(restored.check_history(at(3), &EntityName::osd(OsdId(1)), seen));
}

#[test]
fn a_boot_of_a_process_before_the_one_that_is_up_is_not_believed() {
    let mut state = cluster(3);
    let before = OsdBoot { epoch: state.map().epoch, ..boot_of(1, 2) };
    state.handle(at(1), MapEvent::Boot(before.clone()));
    commit(&mut state, at(1));
    let after = OsdBoot { epoch: state.map().epoch, ..boot_of(1, 3) };
    state.handle(at(2), MapEvent::Boot(after));
    commit(&mut state, at(2));
    // A delayed request of the dead process arrives.
    state.handle(at(3), MapEvent::Boot(before));
    assert!(!state.has_changes());
    state.mark_down(at(4), OsdId(1));
    commit(&mut state, at(4));
    // The process that was marked down boots again, whatever it has seen.
    state.handle(at(5), MapEvent::Boot(OsdBoot { epoch: Epoch(0), ..boot_of(1, 3) }));
    assert!(state.has_changes());
}

#[test]
fn a_restart_that_nobody_noticed_is_one_epoch_with_a_new_boot() {
    let mut state = cluster(3);
    let before = state.map().epoch;
    state.handle(at(1), MapEvent::Boot(boot_of(1, 2)));
    commit(&mut state, at(1));
    let info = &state.map().osds[&OsdId(1)];
    assert_eq!(
        (info.boot_nonce, info.up_from, info.down_at, info.up_thru),
        (2, before.next(), before.next(), before)
    );
    state.handle(at(2), MapEvent::Boot(boot_of(1, 2)));
    assert!(!state.has_changes(), "a resent boot changes nothing");
}

#[test]
fn one_reporter_or_one_host_of_reporters_is_not_enough() {
    let mut state = cluster(6);
    let late = at(100_000);
    report(&mut state, late, 0, failure(5, 30_000, false));
    report(&mut state, late, 1, failure(5, 30_000, false));
    assert!(state.map().is_up(OsdId(5)), "both reporters are on host0");
    report(&mut state, late, 2, failure(5, 30_000, false));
    assert!(!state.map().is_up(OsdId(5)));
    assert!(
        state.log().last(1, LogLevel::Info, "cluster")[0].text.contains("2 reporters from different host")
    );
}

#[test]
fn reports_wait_for_the_grace_time_and_can_be_taken_back() {
    let mut state = cluster(6);
    report(&mut state, at(50_000), 0, failure(5, 15_000, false));
    report(&mut state, at(50_000), 2, failure(5, 15_000, false));
    state.handle(at(54_999), MapEvent::Tick);
    assert!(!state.has_changes());
    report(&mut state, at(54_999), 0, failure(5, 0, false));
    pass(&mut state, 54_999, 60_000);
    assert!(!state.has_changes());
    report(&mut state, at(60_000), 0, failure(5, 20_000, false));
    state.handle(at(60_000), MapEvent::Tick);
    assert!(!state.map().is_up(OsdId(5)));
}

#[test]
fn a_report_that_is_not_repeated_expires() {
    let mut state = cluster(6);
    // The message that withdraws the report never arrives.
    report(&mut state, at(50_000), 0, failure(5, 15_000, false));
    pass(&mut state, 50_000, 109_999);
    report(&mut state, at(109_999), 2, failure(5, 30_000, false));
    assert!(!state.map().is_up(OsdId(5)), "it counts for three times the grace time");

    let mut state = cluster(6);
    report(&mut state, at(50_000), 0, failure(5, 15_000, false));
    pass(&mut state, 50_000, 110_000);
    assert!(state.failures.by_target.is_empty());
    report(&mut state, at(110_000), 2, failure(5, 30_000, false));
    assert!(state.map().is_up(OsdId(5)));

    // Reports of an OSD that reports less often are valid for longer.
    let mut state = cluster(6);
    state.put_option(&crate::ConfigTarget::parse("osd").unwrap(), "osd_mon_report_interval", "60");
    report(&mut state, at(50_000), 0, failure(5, 15_000, false));
    pass(&mut state, 50_000, 229_999);
    report(&mut state, at(229_999), 2, failure(5, 30_000, false));
    assert!(!state.map().is_up(OsdId(5)));
}

#[test]
fn a_map_authority_that_was_suspended_blames_nobody_for_the_silence() {
    let mut state = cluster(6);
    report(&mut state, at(1_000), 0, failure(4, 1, true));
    pass(&mut state, 1_000, 20_000);
    report(&mut state, at(20_000), 0, failure(5, 10_000, false));
    report(&mut state, at(20_000), 2, failure(5, 10_000, false));
    let awake = 10_000_000;
    state.handle(at(awake), MapEvent::Tick);
    assert_eq!(state.working.osds.values().filter(|info| info.up).count(), 5);
    assert!(state.working.osds[&OsdId(4)].is_in());
    // Time before the suspension counts: 10 s of the grace time of 20 s, 19 s of the 600 s until it is marked out.
    pass(&mut state, awake, awake + 9_999);
    assert!(state.working.is_up(OsdId(5)));
    pass(&mut state, awake + 9_999, awake + 10_000);
    assert!(!state.working.is_up(OsdId(5)) && state.working.is_up(OsdId(3)));
    pass(&mut state, awake + 10_000, awake + 580_999);
    assert!(state.working.osds[&OsdId(4)].is_in());
    pass(&mut state, awake + 580_999, awake + 581_000);
    assert!(!state.working.osds[&OsdId(4)].is_in());
}

#[test]
fn on_one_host_osds_count_one_by_one() {
    let mut state = cluster(3);
    for osd in 0..3 {
        let boot = OsdBoot {
            location: [("root", "default"), ("host", "one")].map(|(a, b)| (a.into(), b.into())).into(),
            ..boot_of(osd, 2)
        };
        state.handle(at(0), MapEvent::Boot(boot));
    }
    commit(&mut state, at(0));
    let said = |silent_ms| OsdFailure { boot_nonce: 2, ..failure(2, silent_ms, false) };
    report(&mut state, at(90_000), 0, said(25_000));
    assert!(state.map().is_up(OsdId(2)));
    report(&mut state, at(90_000), 1, said(25_000));
    assert!(!state.map().is_up(OsdId(2)));
}

#[test]
fn a_refused_connection_is_enough_but_not_of_an_earlier_boot_nor_from_the_dead() {
    let mut state = cluster(4);
    report(&mut state, at(1), 0, OsdFailure { boot_nonce: 0, ..failure(3, 1, true) });
    report(&mut state, at(1), 3, failure(3, 1, true));
    report(&mut state, at(1), 77, failure(3, 1, true));
    assert!(state.map().is_up(OsdId(3)));
    report(&mut state, at(1), 0, failure(3, 1, true));
    assert!(!state.map().is_up(OsdId(3)));
    report(&mut state, at(1), 3, failure(0, 1, true));
    assert!(state.map().is_up(OsdId(0)), "a dead OSD's word does not count");
}

#[test]
fn nodown_keeps_suspects_up_but_not_those_that_leave() {
    let mut state = cluster(4);
    state.set_flags(flag::NODOWN);
    report(&mut state, at(1), 0, failure(3, 1, true));
    state.handle(at(2_000_000), MapEvent::Tick);
    assert!(state.working.is_up(OsdId(3)));
    state.handle(at(1), MapEvent::MarkMeDown { osd: OsdId(3), request: OsdMarkMeDown { boot_nonce: 1 } });
    assert!(!state.working.is_up(OsdId(3)));
}

#[test]
fn silence_towards_the_map_authority_ends_after_the_report_timeout() {
    let mut state = cluster(4);
    let alive = OsdBeacon { boot_nonce: 1, map: MapVersion::default(), full: false };
    for osd in 0..3 {
        state.handle(at(800_000), MapEvent::Alive { osd: OsdId(osd), alive });
    }
    state.handle(at(900_000), MapEvent::Tick);
    assert!(state.working.is_up(OsdId(3)));
    state.handle(at(900_001), MapEvent::Tick);
    assert!(!state.working.is_up(OsdId(3)) && state.working.is_up(OsdId(0)));
}

#[test]
fn down_becomes_out_after_the_interval_and_in_again_at_the_return() {
    let mut state = cluster(4);
    report(&mut state, at(1_000), 0, failure(3, 1, true));
    pass(&mut state, 1_000, 600_999);
    assert!(state.working.osds[&OsdId(3)].is_in());
    state.set_flags(flag::NOOUT);
    state.handle(at(601_000), MapEvent::Tick);
    assert!(state.working.osds[&OsdId(3)].is_in());
    state.clear_flags(flag::NOOUT);
    state.handle(at(601_000), MapEvent::Tick);
    assert!(!state.working.osds[&OsdId(3)].is_in());
    state.handle(at(602_000), MapEvent::Boot(boot_of(3, 2)));
    let info = &state.working.osds[&OsdId(3)];
    assert_eq!((info.up, info.weight, info.weight_before_auto_out), (true, WEIGHT, None));
}

#[test]
fn a_pg_is_created_once_and_only_by_its_up_set() {
    let mut state = cluster(4);
    let up = up(&state, 0);
    let outsider = (0..4).find(|o| !up.contains(o)).unwrap();
    assert!(!propose(&mut state, outsider, 0, membership(1, outsider, &[outsider])).accepted);
    assert!(!propose(&mut state, up[0], 0, membership(2, up[0], &up)).accepted, "interval must be 1");
    let created = propose(&mut state, up[0], 0, membership(1, up[0], &up));
    assert!(created.accepted);
    assert_eq!(created.epoch, state.map().epoch);
    let again = PgCas {
        tid: 8,
        pg: PgId::new(POOL, 0),
        proposer: member(up[1]),
        expected: None,
        proposed: membership(1, up[1], &up),
    };
    let lost = swap(&mut state, up[1], again);
    assert_eq!((lost.accepted, lost.current), (false, Some(membership(1, up[0], &up))));
}

#[test]
fn the_in_sync_set_never_shrinks_below_min_size_by_itself() {
    let mut state = cluster(3);
    let up = up(&state, 0);
    propose(&mut state, up[0], 0, membership(1, up[0], &up));
    assert!(propose(&mut state, up[0], 0, membership(2, up[0], &up[..2])).accepted);
    assert!(!propose(&mut state, up[0], 0, membership(3, up[0], &up[..1])).accepted);
    // Once the operator declares the missing member lost, it may be dropped.
    let info = state.working.osds.get_mut(&OsdId(up[1])).unwrap();
    (info.up, info.lost_at) = (false, Epoch(99));
    state.changes.osds.insert(OsdId(up[1]));
    assert!(propose(&mut state, up[0], 0, membership(3, up[0], &up[..1])).accepted);
}

#[test]
fn only_members_change_a_pg_and_a_replica_promotes_only_itself() {
    let mut state = cluster(4);
    let up = up(&state, 0);
    let outsider = (0..4).find(|o| !up.contains(o)).unwrap();
    propose(&mut state, up[0], 0, membership(1, up[0], &up));
    let everyone: Vec<u32> = up.iter().copied().chain([outsider]).collect();
    for (by, proposed) in [
        (outsider, membership(2, outsider, &everyone)),
        (up[1], membership(2, up[2], &up[1..])),
        (up[1], membership(2, up[1], &[up[1], up[2], outsider])),
        (up[1], membership(2, up[1], &[])),
        (up[1], membership(2, up[0], &up[1..])),
        (up[0], membership(2, up[0], &[up[0], up[0], up[1]])),
        (up[0], membership(3, up[0], &up)),
        (up[0], membership(2, outsider, &[outsider, outsider])),
    ] {
        let reply = propose(&mut state, by, 0, proposed.clone());
        assert!(!reply.accepted, "osd.{by} got {proposed:?}");
        assert_eq!(reply.current, Some(membership(1, up[0], &up)));
    }
    assert!(propose(&mut state, up[1], 0, membership(2, up[1], &up[1..])).accepted);
    assert!(!propose(&mut state, up[0], 0, membership(3, up[0], &up)).accepted, "the old primary is out");
    assert!(propose(&mut state, up[1], 0, membership(3, up[1], &everyone[1..])).accepted);
}

#[test]
fn a_wiped_member_is_nobody_until_it_is_added_anew() {
    let mut state = cluster(3);
    let up = up(&state, 0);
    propose(&mut state, up[0], 0, membership(1, up[0], &up));
    let wiped = Incarnation(Uuid::from_u128(0xdead));
    let boot = OsdBoot { incarnation: wiped, ..boot_of(up[1], 2) };
    state.handle(at(1), MapEvent::Boot(boot));
    commit(&mut state, at(1));
    let promote = PgCas {
        tid: 1,
        pg: PgId::new(POOL, 0),
        proposer: Member { osd: OsdId(up[1]), incarnation: wiped },
        expected: Some(membership(1, up[0], &up)),
        proposed: membership(2, up[1], &up[1..]),
    };
    assert!(!swap(&mut state, up[1], promote.clone()).accepted);
    let old_self = PgCas { proposer: member(up[1]), ..promote };
    assert!(!swap(&mut state, up[1], old_self).accepted);
    let mut readded = membership(2, up[0], &up);
    readded.in_sync[1].incarnation = wiped;
    assert!(propose(&mut state, up[0], 0, readded).accepted);
}

#[test]
fn proposals_of_a_moment_share_an_epoch_and_answers_wait_for_it() {
    let mut state = cluster(3);
    let epoch = state.map().epoch;
    for seed in 0..4 {
        let up = up(&state, seed);
        let pg = PgId::new(POOL, seed);
        let cas = PgCas {
            tid: u64::from(seed),
            pg,
            proposer: member(up[0]),
            expected: None,
            proposed: membership(1, up[0], &up),
        };
        let now = state.handle(at(1), MapEvent::Cas { origin: ConnToken(0), osd: OsdId(up[0]), cas });
        assert_eq!(now, [], "nothing is said before it is durable");
    }
    let proposal = state.propose(at(1)).unwrap();
    assert_eq!(proposal.incremental.as_ref().unwrap().pgs.len(), 4);
    assert_eq!(state.map().epoch, epoch);
    // A change that arrives while the proposal is in flight waits for the next one.
    let up4 = up(&state, 4);
    let pg = PgId::new(POOL, 4);
    let cas =
        PgCas { tid: 4, pg, proposer: member(up4[0]), expected: None, proposed: membership(1, up4[0], &up4) };
    assert_eq!(state.handle(at(1), MapEvent::Cas { origin: ConnToken(0), osd: OsdId(up4[0]), cas }), []);
    assert_eq!(state.propose(at(1)), None);
    assert_eq!(state.on_committed(proposal.number).len(), 4);
    assert_eq!(state.map().epoch, epoch.next());
    assert_eq!(commit(&mut state, at(1)).len(), 1);
    assert_eq!(state.map().epoch, epoch.next().next());
}

#[test]
fn an_entry_of_the_blocklist_goes_when_its_time_is_over_by_both_clocks() {
    const HOUR_NS: u64 = 3_600_000_000_000;
    let who = || "client.4123".to_owned();
    let fenced = |state: &mut MapState, mono_ms: u64, wall_ns: u64| {
        // Ticks continue, so that the map authority does not count as suspended.
        let now = Now { mono_ms, wall_ns };
        state.handle(now, MapEvent::Tick);
        commit(state, now);
        state.map().is_blocklisted("client.4123")
    };
    let mut state = cluster(3);
    let start = at(1_000);
    let until_ns = start.wall_ns + HOUR_NS;
    state.add_to_blocklist(start, who(), until_ns);
    assert!(fenced(&mut state, 2_000, start.wall_ns + 2 * HOUR_NS), "the clock has jumped ahead");
    assert!(fenced(&mut state, 1_000 + 3_599_999, until_ns + HOUR_NS));
    assert!(fenced(&mut state, 1_000 + 3_600_000, until_ns - 1), "it was set back");
    assert!(!fenced(&mut state, 1_000 + 3_600_000, until_ns));

    state.add_to_blocklist(start, who(), until_ns);
    commit(&mut state, start);
    // A map authority that starts has a new monotonic clock.
    let restarted = Now { mono_ms: 5, wall_ns: start.wall_ns + HOUR_NS / 2 };
    let mut state = MapState::new(state.map().clone(), Tuning::default(), restarted);
    assert!(fenced(&mut state, 1_799_999, until_ns + HOUR_NS));
    state.add_to_blocklist(Now { mono_ms: 1_799_999, wall_ns: until_ns }, who(), until_ns + HOUR_NS);
    assert!(fenced(&mut state, 1_800_006, until_ns + HOUR_NS), "it was prolonged");
    assert!(!fenced(&mut state, 1_799_999 + 3_600_000, until_ns + HOUR_NS));
}
