//! Health scenarios: problems of a cluster and the resulting checks.

use crate::commands::tests::Desk;
use crate::logic::tests::commit;
use crate::logic::{LogLevel, MapEvent};
use crate::testing::{at, boot_of};
use nacre_types::ids::{Epoch, Incarnation, OsdId};
use nacre_types::msg::{OsdBeacon, OsdBoot, OsdMarkMeDown, StatsReport};
use nacre_types::osdmap::MapVersion;
use nacre_types::stats::{OsdStats, pg_state};
use serde_json::json;
use uuid::Uuid;

/// A healthy cluster of three OSDs and two pools.
fn healthy() -> Desk {
    let mut desk = Desk::busy();
    desk.ok("osd pool application enable", json!({ "pool": "p2", "app": "x" }));
    assert_eq!(text(&mut desk), "HEALTH_OK\n");
    desk
}

fn text(desk: &mut Desk) -> String {
    desk.text("health", json!({ "detail": "detail" }))
}

fn stop(desk: &mut Desk, osd: u32) {
    let request = OsdMarkMeDown { boot_nonce: 1 };
    desk.state.handle(desk.now, MapEvent::MarkMeDown { osd: OsdId(osd), request });
    commit(&mut desk.state, desk.now);
}

fn disk(desk: &mut Desk, osd: u32, used_percent: u64, health: &[(&str, &str)]) {
    let stats = OsdStats {
        total_bytes: 100 << 20,
        available_bytes: (100 - used_percent) << 20,
        health: health.iter().map(|(code, text)| ((*code).to_owned(), (*text).to_owned())).collect(),
        ..OsdStats::default()
    };
    let report = StatsReport { osd: stats, pgs: Vec::new(), starting: false };
    desk.state.handle(desk.now, MapEvent::Stats { osd: OsdId(osd), report });
    commit(&mut desk.state, desk.now);
}

#[test]
fn osds_that_are_starting_tell_what_takes_them_long() {
    let mut desk = healthy();
    let starting = |desk: &mut Desk, osd: u32, text: &str| {
        let health = vec![("BLUESTORE_ALLOCATION_SCAN".to_owned(), text.to_owned())];
        let stats = OsdStats { health, ..OsdStats::default() };
        let report = StatsReport { osd: stats, pgs: Vec::new(), starting: true };
        desk.state.handle(desk.now, MapEvent::Stats { osd: OsdId(osd), report });
        commit(&mut desk.state, desk.now);
    };
    stop(&mut desk, 1);
    starting(&mut desk, 1, "a start: 40%");
    let said = text(&mut desk);
    assert!(said.contains("[WRN] BLUESTORE_ALLOCATION_SCAN: osd.1 has a start: 40%"), "{said}");
    // An OSD whose crash was not noticed yet still has its size.
    disk(&mut desk, 0, 40, &[]);
    starting(&mut desk, 0, "a start: 5%");
    let said = text(&mut desk);
    assert!(said.contains("osd.0: a start: 5%\n    osd.1: a start: 40%"), "{said}");
    assert_eq!(desk.state.stats.osds[&OsdId(0)].total_bytes, 100 << 20);
    // A report expires after a while, or when the OSD is up. Reports of OSDs that do not exist are ignored.
    starting(&mut desk, 77, "nonsense");
    desk.now.mono_ms += 8_000;
    starting(&mut desk, 1, "a start: 80%");
    desk.now.mono_ms += 8_000;
    let said = text(&mut desk);
    assert!(said.contains("80%") && !said.contains("5%") && !said.contains("nonsense"), "{said}");
    disk(&mut desk, 0, 40, &[]);
    desk.now.mono_ms += 8_000;
    assert!(!text(&mut desk).contains("BLUESTORE_ALLOCATION_SCAN"));
}

#[test]
fn a_down_osd_is_named_with_its_place_and_its_pgs_turn_stale() {
    let mut desk = healthy();
    let primaries: usize = desk.state.pg_views().iter().filter(|v| v.acting[0] == OsdId(1)).count();
    stop(&mut desk, 1);
    let said = text(&mut desk);
    assert!(said.starts_with("HEALTH_WARN 1 osds down"), "{said}");
    assert!(
        said.contains("[WRN] OSD_DOWN: 1 osds down\n    osd.1 (root=default,host=vm) is down\n"),
        "{said}"
    );
    assert!(said.contains(&format!("Reduced data availability: {primaries} pgs stale")), "{said}");
    let stale = desk.state.pg_views().iter().filter(|v| v.state_text() == "stale+active+clean").count();
    assert_eq!(stale, primaries);
    // An OSD that is out is not expected to be up.
    desk.ok("osd out", json!({ "ids": ["1"] }));
    assert!(!text(&mut desk).contains("OSD_DOWN"));
}

#[test]
fn whole_subtrees_are_named_when_all_of_them_is_down() {
    let mut desk = healthy();
    (0..3).for_each(|osd| stop(&mut desk, osd));
    let said = text(&mut desk);
    assert!(
        said.contains(
            "[WRN] OSD_HOST_DOWN: 1 host (3 osds) down\n    host vm (root=default) (3 osds) is down\n"
        ),
        "{said}"
    );
    assert!(said.contains("OSD_ROOT_DOWN: 1 root (3 osds) down"), "{said}");
}

#[test]
fn flags_and_ratios_out_of_order_are_warned_about() {
    let mut desk = healthy();
    desk.ok("osd set", json!({ "key": "noout" }));
    desk.ok("osd set", json!({ "key": "noscrub" }));
    assert!(text(&mut desk).contains("[WRN] OSDMAP_FLAGS: noout,noscrub flag(s) set\n"));
    desk.ok("osd set-nearfull-ratio", json!({ "ratio": 0.99 }));
    let said = text(&mut desk);
    assert!(said.contains("[ERR] OSD_OUT_OF_ORDER_FULL: full ratio(s) out of order\n    backfillfull_ratio (0.9) < nearfull_ratio (0.99), increased\n"), "{said}");
    assert!(said.starts_with("HEALTH_ERR "), "{said}");
}

#[test]
fn fullness_goes_from_near_over_backfill_to_full_and_back() {
    let mut desk = healthy();
    for (percent, code, line, pool_line) in [
        (86, "[WRN] OSD_NEARFULL: 1 nearfull osd(s)", "osd.2 is near full", "pool 'p1' is nearfull"),
        (
            91,
            "[WRN] OSD_BACKFILLFULL: 1 backfillfull osd(s)",
            "osd.2 is backfill full",
            "pool 'p1' is backfillfull",
        ),
        (96, "[ERR] OSD_FULL: 1 full osd(s)", "osd.2 is full", "pool 'p1' is full (no space)"),
    ] {
        disk(&mut desk, 2, percent, &[]);
        let said = text(&mut desk);
        assert!(said.contains(&format!("{code}\n    {line}\n")), "{said}");
        assert!(said.contains(&format!("    {pool_line}\n")), "{said}");
    }
    disk(&mut desk, 2, 10, &[]);
    assert_eq!(text(&mut desk), "HEALTH_OK\n");
    // The store's own full state counts as much as the numbers.
    let alive = OsdBeacon { boot_nonce: 1, map: MapVersion::default(), full: true };
    desk.state.handle(desk.now, MapEvent::Alive { osd: OsdId(2), alive });
    commit(&mut desk.state, desk.now);
    assert!(text(&mut desk).contains("OSD_FULL: 1 full osd(s)"));
    assert!(desk.state.map().osds[&OsdId(2)].full);
}

#[test]
fn pgs_that_are_not_well_are_counted_and_listed() {
    let mut desk = healthy();
    desk.report(pg_state::ACTIVE | pg_state::UNDERSIZED | pg_state::DEGRADED);
    let said = text(&mut desk);
    assert!(said.contains("[WRN] PG_DEGRADED: Degraded data redundancy: 12 pgs degraded\n"), "{said}");
    assert!(said.contains("    pg 1.0 is active+undersized+degraded, acting ["), "{said}");
    desk.now = at(70_000);
    let said = text(&mut desk);
    assert!(said.contains("Degraded data redundancy: 12 pgs degraded, 12 pgs undersized\n"), "{said}");
    assert!(
        said.contains(
            "    pg 1.0 is stuck undersized for 70s, current state active+undersized+degraded, last acting ["
        ),
        "{said}"
    );
    desk.report(pg_state::PEERING);
    desk.now = at(140_000);
    let said = text(&mut desk);
    assert!(
        said.contains("[WRN] PG_AVAILABILITY: Reduced data availability: 12 pgs inactive, 12 pgs peering\n"),
        "{said}"
    );
    desk.report(pg_state::ACTIVE | pg_state::CLEAN);
    assert_eq!(text(&mut desk), "HEALTH_OK\n");
}

#[test]
fn pools_without_redundancy_and_too_many_pgs_are_warned_about() {
    let mut desk = healthy();
    desk.ok("osd pool set", json!({ "pool": "p2", "var": "size", "val": "1", "yes_i_really_mean_it": true }));
    assert!(text(&mut desk).contains("[WRN] POOL_NO_REDUNDANCY: 1 pool(s) have no replicas configured\n    pool 'p2' has no replicas configured\n"));
    desk.ok("osd pool set", json!({ "pool": "p2", "var": "size", "val": "2" }));
    desk.ok("osd pool set", json!({ "pool": "p1", "var": "pgp_num", "val": "4" }));
    assert!(text(&mut desk).contains(
        "[WRN] SMALLER_PGP_NUM: 1 pools have pg_num > pgp_num\n    pool p1 pg_num 8 > pgp_num 4\n"
    ));
    desk.ok("osd pool set", json!({ "pool": "p1", "var": "pgp_num", "val": "8" }));
    desk.state.tuning.max_pg_per_osd = 5;
    assert!(text(&mut desk).contains("[WRN] TOO_MANY_PGS: too many PGs per OSD (10 > max 5)\n"));
    desk.state.tuning.max_pg_per_osd = 250;
    desk.state.tuning.pool_default_size = 4;
    assert!(text(&mut desk).contains("[WRN] TOO_FEW_OSDS: OSD count 3 < osd_pool_default_size 4\n"));
    desk.state.tuning.down_out_interval_ms = 0;
    assert!(
        text(&mut desk).contains("OSD_NO_DOWN_OUT_INTERVAL: mon.a has mon_osd_down_out_interval set to 0\n")
    );
    desk.report(pg_state::ACTIVE | pg_state::DEGRADED);
    desk.state.tuning.health_max_detail = 5;
    assert!(text(&mut desk).contains("    7 more entries\n"));
}

#[test]
fn what_osds_report_of_themselves_is_passed_on_while_they_are_up() {
    let mut desk = healthy();
    disk(&mut desk, 0, 10, &[("BLUESTORE_QUARANTINE", "2 records can't be decoded")]);
    let said = text(&mut desk);
    assert!(said.contains("[WRN] BLUESTORE_QUARANTINE: osd.0 has 2 records can't be decoded\n    osd.0: 2 records can't be decoded\n"), "{said}");
    stop(&mut desk, 0);
    assert!(!text(&mut desk).contains("BLUESTORE_QUARANTINE"));
}

#[test]
fn a_store_that_went_back_in_time_is_an_error() {
    let mut desk = healthy();
    let seen = MapVersion { generation: 1, epoch: Epoch(10_000), ..MapVersion::default() };
    let boot = OsdBoot { seen, ..boot_of(0, 2) };
    desk.state.handle(desk.now, MapEvent::Boot(boot));
    let said = text(&mut desk);
    assert!(
        said.contains(
            "[ERR] MAP_STORE_ROLLED_BACK: 1 daemon(s) have seen a map that the map store does not hold"
        ),
        "{said}"
    );
    assert!(desk.state.log().last(1, LogLevel::Error, "cluster")[0].text.contains("mint a new generation"));
}

/// The OSD comes back with an empty store.
fn boot_wiped(desk: &mut Desk, osd: u32) {
    let incarnation = Incarnation(Uuid::from_u128(0x900 + u128::from(osd)));
    desk.state.handle(desk.now, MapEvent::Boot(OsdBoot { incarnation, ..boot_of(osd, 2) }));
    commit(&mut desk.state, desk.now);
}

#[test]
fn pgs_all_of_whose_members_lost_their_contents_are_told_as_lost() {
    let mut desk = healthy();
    // Members of a PG in its first interval have nothing to lose.
    for osd in 0..3 {
        stop(&mut desk, osd);
        boot_wiped(&mut desk, osd);
    }
    assert!(!text(&mut desk).contains("lost"));
    let mut desk = healthy();
    desk.raise_intervals();
    stop(&mut desk, 0);
    boot_wiped(&mut desk, 0);
    assert!(!text(&mut desk).contains("lost"), "two copies are left");
    for osd in [1, 2] {
        stop(&mut desk, osd);
        boot_wiped(&mut desk, osd);
    }
    let said = text(&mut desk);
    let pgs = desk.state.pg_views().len();
    assert!(said.starts_with("HEALTH_ERR"), "{said}");
    assert!(said.contains(&format!("[ERR] PG_DAMAGED: Possible data damage: {pgs} pgs lost\n")), "{said}");
    assert!(said.contains(" has lost all copies: osd."), "{said}");
    assert!(
        said.contains(&format!("[WRN] OBJECT_UNFOUND: {pgs}/{pgs} objects unfound (100.000%)\n")),
        "{said}"
    );
    assert!(desk.state.pg_views().iter().all(|view| view.state_text() == "incomplete"));
}
