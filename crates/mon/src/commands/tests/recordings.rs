//! JSON fields compared with recordings of Ceph.

use super::*;
use nacre_types::msg::{ConfigReport, ReportedOption};
use std::path::Path;

/// Objects whose keys are names, not fields; their contents are not compared.
const FREE: &[&str] = &[
    "/checks",
    "/stats_by_class",
    "/mon",
    "/mgr",
    "/osd",
    "/mds",
    "/overall",
    "/crush_location",
    "/pool_weights",
    "/options",
    "/application_metadata",
    "/caps",
    "/mask",
    "/hit_set_params",
    "/blocklist",
    "/erasure_code_profiles",
    "/choose_args",
    "/services",
    "/progress_events",
    "/tunables",
    "/addrs",
    "/recovery",
    "/servicemap",
    "osd_pool_application_get",
    "osd_versions",
    "config_key_dump",
    "config_help/min",
    "config_help/max",
    "config_help/default",
    "config_help/daemon_default",
];

/// Fields without a counterpart in Nacre, or present only in some states.
const ABSENT: &[&str] = &[
    "available",
    "num_standbys",
    "modules",
    "degraded_objects",
    "degraded_total",
    "degraded_ratio",
    "misplaced_objects",
    "misplaced_total",
    "misplaced_ratio",
    "device_class",
    "location_type",
    "location_value",
    "container_name",
    "compression_algorithms",
    "mgr",
    "device_ids",
    "device_paths",
    "devices",
    "previous_value",
    "overrides",
    "rank",
    "unknown_pgs_ratio",
    "inactive_pgs_ratio",
    "write_bytes_sec",
    "read_op_per_sec",
    "write_op_per_sec",
    "enum_values",
];

/// Compares the sets of fields at every level, in lists only of the first entries; records the differences.
fn compare_fields(path: &str, recorded: &Value, ours: &Value, differences: &mut Vec<String>) {
    if FREE.iter().any(|free| path.ends_with(free)) {
        return;
    }
    match (recorded, ours) {
        (Value::Object(recorded), Value::Object(ours)) => {
            for (key, value) in recorded.iter().filter(|(key, _)| !ABSENT.contains(&key.as_str())) {
                match ours.get(key) {
                    Some(found) => compare_fields(&format!("{path}/{key}"), value, found, differences),
                    None => differences.push(format!("{path}/{key} is missing")),
                }
            }
            let extra =
                ours.keys().filter(|key| !recorded.contains_key(*key) && !ABSENT.contains(&key.as_str()));
            differences.extend(extra.map(|key| format!("{path}/{key} is no field of Ceph's")));
        }
        (Value::Array(recorded), Value::Array(ours)) => {
            if let (Some(recorded), Some(ours)) = (recorded.first(), ours.first()) {
                compare_fields(&format!("{path}[]"), recorded, ours, differences);
            }
        }
        (Value::Null, _) => {}
        (Value::String(_), Value::String(_))
        | (Value::Number(_), Value::Number(_))
        | (Value::Bool(_), Value::Bool(_)) => {}
        (recorded, ours) => differences.push(format!("{path} is {ours}, Ceph's is {recorded}")),
    }
}

#[test]
fn json_has_the_fields_that_ceph_prints() {
    let mut desk = Desk::busy();
    for (who, value) in [("global", "4"), ("osd/class:hdd", "7")] {
        desk.ok("config set", json!({ "who": who, "name": "osd_max_backfills", "value": value }));
    }
    desk.ok("osd set", json!({ "key": "noscrub" }));
    desk.ok("log", json!({ "logtext": ["foo", "bar"] }));
    desk.ok("config-key set", json!({ "key": "k", "val": "v" }));
    let values = vec![("file".to_owned(), "2".to_owned())];
    let options = vec![ReportedOption { name: "osd_max_backfills".into(), values }];
    desk.state.set_client_sessions(2);
    let entity = EntityName::osd(OsdId(0));
    desk.state.handle(desk.now, MapEvent::Config { entity, report: ConfigReport { options } });
    let cases = [
        (
            "auth_get_or_create",
            "auth get-or-create",
            json!({ "entity": "client.x", "caps": ["mon", "allow r"] }),
        ),
        ("config_dump", "config dump", json!({})),
        ("config_get", "config get", json!({ "who": "osd.0" })),
        ("config_help", "config help", json!({ "key": "osd_max_backfills" })),
        ("df", "df", json!({})),
        ("df_detail", "df", json!({ "detail": "detail" })),
        ("fsid", "fsid", json!({})),
        ("health", "health", json!({})),
        ("health_detail", "health", json!({ "detail": "detail" })),
        ("log_last", "log last", json!({ "num": 1 })),
        ("mon_dump", "mon dump", json!({})),
        ("mon_stat", "mon stat", json!({})),
        ("osd_crush_dump", "osd crush dump", json!({})),
        ("osd_crush_rule_dump", "osd crush rule dump", json!({})),
        ("osd_crush_rule_ls", "osd crush rule ls", json!({})),
        ("osd_crush_tree", "osd crush tree", json!({})),
        ("osd_df", "osd df", json!({})),
        ("osd_dump", "osd dump", json!({})),
        ("osd_find", "osd find", json!({ "id": "0" })),
        ("osd_getmaxosd", "osd getmaxosd", json!({})),
        ("osd_ls", "osd ls", json!({})),
        ("osd_lspools", "osd lspools", json!({})),
        ("osd_map", "osd map", json!({ "pool": "p1", "object": "foo" })),
        ("osd_perf", "osd perf", json!({})),
        ("osd_pool_application_get", "osd pool application get", json!({})),
        ("osd_pool_get_all", "osd pool get", json!({ "pool": "p1", "var": "all" })),
        ("osd_pool_get_quota", "osd pool get-quota", json!({ "pool": "p1" })),
        ("osd_pool_get_size", "osd pool get", json!({ "pool": "p1", "var": "size" })),
        ("osd_pool_ls", "osd pool ls", json!({})),
        ("osd_pool_ls_detail", "osd pool ls", json!({ "detail": "detail" })),
        ("osd_pool_stats", "osd pool stats", json!({})),
        ("osd_stat", "osd stat", json!({})),
        ("osd_tree", "osd tree", json!({})),
        ("pg_dump_all", "pg dump", json!({})),
        ("pg_dump_osds", "pg dump", json!({ "dumpcontents": ["osds"] })),
        ("pg_dump_pgs", "pg dump", json!({ "dumpcontents": ["pgs"] })),
        ("pg_dump_pgs_brief", "pg dump", json!({ "dumpcontents": ["pgs_brief"] })),
        ("pg_dump_pools", "pg dump", json!({ "dumpcontents": ["pools"] })),
        ("pg_dump_stuck", "pg dump_stuck", json!({ "threshold": 0, "stuckops": ["unclean"] })),
        ("pg_dump_sum", "pg dump", json!({ "dumpcontents": ["sum"] })),
        ("pg_dump_summary", "pg dump", json!({ "dumpcontents": ["summary"] })),
        ("pg_ls", "pg ls", json!({})),
        ("pg_map", "pg map", json!({ "pgid": "1.0" })),
        ("pg_stat", "pg stat", json!({})),
        ("quorum_status", "quorum_status", json!({})),
        ("status", "status", json!({})),
        ("version", "version", json!({})),
        ("versions", "versions", json!({})),
        ("osd_utilization", "osd utilization", json!({})),
        ("osd_blocked_by", "osd blocked-by", json!({})),
        ("osd_info", "osd info", json!({})),
        ("osd_versions", "osd versions", json!({})),
        ("mon_metadata", "mon metadata", json!({})),
        ("node_ls", "node ls", json!({})),
        ("features", "features", json!({})),
        ("time_sync_status", "time-sync-status", json!({})),
        ("config_log", "config log", json!({})),
        ("config_show", "config show", json!({ "who": "osd.0" })),
        ("config_key_dump", "config-key dump", json!({})),
        ("mgr_stat", "mgr stat", json!({})),
        ("balancer_status", "balancer status", json!({})),
        ("log_last_cluster", "log last", json!({ "num": 2, "level": "debug", "channel": "cluster" })),
    ];
    let mut differences = Vec::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings");
    for (name, prefix, args) in cases {
        let recorded = std::fs::read_to_string(folder.join(format!("{name}.json"))).unwrap();
        if name == "pg_dump_stuck" {
            desk.report(pg_state::ACTIVE | pg_state::UNDERSIZED);
        }
        let ours = desk.json(prefix, args);
        compare_fields(name, &serde_json::from_str(&recorded).unwrap(), &ours, &mut differences);
    }
    desk.ok("health mute", json!({ "code": "NONESUCH", "ttl": "5m", "sticky": true }));
    for (name, ours) in
        [("health_muted", desk.json("health", json!({}))), ("mon_status", desk.state.mon_status_at(desk.now))]
    {
        let recorded = std::fs::read_to_string(folder.join(format!("{name}.json"))).unwrap();
        compare_fields(name, &serde_json::from_str(&recorded).unwrap(), &ours, &mut differences);
    }
    assert!(differences.is_empty(), "{differences:#?}");
}
