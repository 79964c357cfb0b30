//! The texts of status, health, trees and tables.

use super::*;

#[test]
fn status_and_health_read_like_cephs() {
    let mut desk = Desk::busy();
    desk.now = at(125_000);
    let text = desk.text("status", json!({}));
    assert_eq!(
        text,
        "  cluster:\n    id:     00000000-0000-0000-0000-000000000007\n    health: HEALTH_WARN\n            1 pool(s) do not \
         have an application enabled\n \n  services:\n    mon: 1 daemons, quorum a (age 2m)\n    osd: 3 osds: 3 up (since \
         2m), 3 in (since 2m)\n \n  data:\n    pools:   2 pools, 12 pgs\n    objects: 12 objects, 12 KiB\n    usage:   3 GiB \
         used, 9 GiB / 12 GiB avail\n    pgs:     12 active+clean\n \n"
    );
    assert_eq!(
        desk.text("health", json!({ "detail": "detail" })),
        "HEALTH_WARN 1 pool(s) do not have an application enabled\n[WRN] POOL_APP_NOT_ENABLED: 1 pool(s) do not have an \
         application enabled\n    application not enabled on pool 'p2'\n    use 'ceph osd pool application enable \
         <pool-name> <app-name>', where <app-name> is 'cephfs', 'rbd', 'rgw', or freeform for custom applications.\n"
    );
    desk.ok("osd pool application enable", json!({ "pool": "p2", "app": "x" }));
    assert_eq!(desk.text("health", json!({})), "HEALTH_OK\n");
}

#[test]
fn trees_and_tables_look_like_cephs() {
    let mut desk = Desk::busy();
    desk.ok("osd out", json!({ "ids": ["2"] }));
    desk.ok("osd reweight", json!({ "id": "1", "weight": 0.5 }));
    let tree = "\
ID  CLASS  WEIGHT   TYPE NAME      STATUS  REWEIGHT  PRI-AFF
-1         0.01172  root default                            \n\
-2         0.01172      host vm                             \n 0    hdd  0.00391          osd.0      up   1.00000  1.00000
 1    hdd  0.00391          osd.1      up   0.50000  1.00000
 2    hdd  0.00391          osd.2      up         0  1.00000
";
    assert_eq!(desk.text("osd tree", json!({})), tree);
    assert_eq!(desk.text("osd tree", json!({ "states": ["down"] })).lines().count(), 1);
    desk.fails(
        "osd tree",
        json!({ "states": ["up", "down"] }),
        Errno::EINVAL,
        "cannot specify both 'up' and 'down'",
    );
    let df = desk.text("df", json!({}));
    assert!(df.starts_with(
        "--- RAW STORAGE ---\nCLASS   SIZE  AVAIL   USED  RAW USED  %RAW USED\nhdd    8 GiB  6 GiB  2 GiB     2 GiB      25.00\n\
         TOTAL  8 GiB  6 GiB  2 GiB     2 GiB      25.00\n \n--- POOLS ---\n"
    ), "{df}");
    assert!(df.contains("POOL  ID  PGS   STORED  OBJECTS    USED  %USED  MAX AVAIL\n"), "{df}");
    let epoch = desk.state.map().epoch;
    let map = desk.text("osd map", json!({ "pool": "p1", "object": "foo" }));
    assert!(
        map.starts_with(&format!(
            "osdmap e{epoch} pool 'p1' (1) object 'foo' -> pg 1.7fc1f406 (1.6) -> up ("
        )),
        "{map}"
    );
    let map = desk.text("osd map", json!({ "pool": "p1", "object": "foo", "nspace": "ns" }));
    assert!(map.contains("object 'ns/foo' -> pg 1.ac17f0b6 (1.6)"), "{map}");
    let brief = desk.text("pg dump", json!({ "dumpcontents": ["pgs_brief"] }));
    let words: Vec<&str> = brief.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(words, ["PG_STAT", "STATE", "UP", "UP_PRIMARY", "ACTING", "ACTING_PRIMARY"]);
    assert!(brief.lines().nth(1).unwrap().starts_with("2.3      active+clean  "), "{brief}");
}
