//! Commands on a small cluster: texts and errors as the real program printed them, JSON fields against recordings of it
//! (`tests/recordings`, Ceph 16.2).

use super::*;
use crate::logic::tests::{at, boot_of, commit, member};
use crate::logic::{Databases, Event, Tuning};
use nacre_types::crush::CrushMap;
use nacre_types::ids::{Epoch, Interval, OsdId, PgId};
use nacre_types::msg::{ConfigReport, PgCas, ReportedOption, StatsReport};
use nacre_types::osdmap::{OsdMap, PgMembership};
use nacre_types::placement::PgMapper;
use nacre_types::stats::{ObjectSums, OsdStats, PgStats, pg_state};
use proptest::prelude::*;
use std::net::Ipv4Addr;
use std::path::Path;
use uuid::Uuid;

/// A cluster and somebody who may do everything.
pub(crate) struct Desk {
    pub(crate) state: MapState,
    pub(crate) now: Now,
    caps: Arc<MonCaps>,
}

/// Code, status, output.
type Said = (i32, String, String);

impl Desk {
    /// Three OSDs on one host, no pool.
    pub(crate) fn new() -> Desk {
        let map = OsdMap::new(Uuid::from_u128(7), at(0).wall_ns, CrushMap::new_cluster("osd").unwrap());
        let tuning = Tuning { allow_pool_delete: true, allow_pool_size_one: true, ..Tuning::default() };
        let databases = Databases {
            mon_name: "a".into(),
            mon_metadata: nacre_runtime::host::metadata(
                &nacre_runtime::config::ConfigBuilder::new(EntityName::mon()).build().unwrap(),
            ),
            ..Databases::default()
        };
        let state = MapState::with_databases(map, tuning, at(0), databases);
        let mut desk = Desk { state, now: at(0), caps: Arc::new(MonCaps::all()) };
        for osd in 0..3 {
            let mut boot = boot_of(osd, 1);
            boot.metadata = [("hostname".to_owned(), "vm".to_owned())].into();
            boot.total_bytes = 4 << 30;
            boot.device_class = "hdd".into();
            desk.state.handle(desk.now, Event::Boot(boot));
        }
        commit(&mut desk.state, desk.now);
        desk
    }

    /// With the pools p1 (8 PGs, an application, eight objects) and p2 (size 2), all clean.
    pub(crate) fn busy() -> Desk {
        let mut desk = Desk::new();
        desk.ok("osd pool create", json!({ "pool": "p1", "pg_num": 8 }));
        desk.ok("osd pool create", json!({ "pool": "p2", "pg_num": 4, "size": 2 }));
        desk.ok("osd pool application enable", json!({ "pool": "p1", "app": "rbd" }));
        desk.create_pgs();
        desk.report(pg_state::ACTIVE | pg_state::CLEAN);
        desk
    }

    /// Creates all PGs on their up sets.
    pub(crate) fn create_pgs(&mut self) {
        let pgs: Vec<PgId> = self.state.map().pg_ids().collect();
        for pg in pgs {
            let up = PgMapper::new(self.state.map()).up(pg);
            let in_sync = up.iter().map(|osd| member(osd.0)).collect();
            let proposed = PgMembership { interval: Interval(1), primary: up[0], in_sync };
            let cas = PgCas { tid: 1, pg, proposer: member(up[0].0), expected: None, proposed };
            self.state.handle(self.now, Event::Cas { origin: Origin(1), osd: up[0], cas });
        }
        commit(&mut self.state, self.now);
    }

    /// Ends every PG's first interval, with the same members.
    pub(crate) fn raise_intervals(&mut self) {
        let pgs: Vec<PgId> = self.state.map().pg_ids().collect();
        for pg in pgs {
            let now = self.state.map().membership(pg).expect("created before").clone();
            let proposed = PgMembership { interval: now.interval.next(), ..now.clone() };
            let (osd, proposer) = (now.primary, member(now.primary.0));
            let cas = PgCas { tid: 2, pg, proposer, expected: Some(now), proposed };
            self.state.handle(self.now, Event::Cas { origin: Origin(1), osd, cas });
        }
        commit(&mut self.state, self.now);
    }

    /// Every primary reports its PGs in `state`, with one object of 1000 bytes per PG, and its disk.
    pub(crate) fn report(&mut self, state: u64) {
        let osds: Vec<OsdId> = self.state.map().osds.keys().copied().collect();
        for osd in osds {
            let pgs = self
                .state
                .map()
                .pg_ids()
                .filter(|pg| self.state.map().membership(*pg).is_some_and(|m| m.primary == osd));
            let pgs = pgs
                .map(|pg| PgStats {
                    pg,
                    state,
                    acting: self.state.map().membership(pg).map(|m| m.acting()).unwrap_or_default(),
                    sums: ObjectSums { bytes: 1000, objects: 1, ..ObjectSums::default() },
                    stored_bytes: 4096,
                    last_active_ns: self.now.wall_ns,
                    last_clean_ns: self.now.wall_ns,
                    ..PgStats::default()
                })
                .collect();
            let osd_stats =
                OsdStats { total_bytes: 4 << 30, available_bytes: 3 << 30, ..OsdStats::default() };
            self.state.handle(
                self.now,
                Event::Stats { osd, report: StatsReport { osd: osd_stats, pgs, starting: false } },
            );
        }
        commit(&mut self.state, self.now);
    }

    pub(crate) fn raw(&mut self, cmd: &str, input: &[u8]) -> Said {
        let request = CommandRequest {
            origin: Origin(9),
            entity: EntityName::client("admin"),
            peer: Ipv4Addr::LOCALHOST.into(),
            caps: self.caps.clone(),
            command: MonCommand { tid: 5, cmd: cmd.to_owned(), input: Bytes::copy_from_slice(input) },
            fresh_key: Key::generate().unwrap(),
        };
        let mut effects = self.state.handle(self.now, Event::Command(Box::new(request)));
        effects.extend(commit(&mut self.state, self.now));
        match effects.as_slice() {
            [Effect::CommandReply { to: Origin(9), reply }] if reply.tid == 5 => {
                (reply.code, reply.status.clone(), String::from_utf8_lossy(&reply.output).into_owned())
            }
            other => panic!("expected one answer to {cmd}, got {other:?}"),
        }
    }

    pub(crate) fn run(&mut self, prefix: &str, args: Value) -> Said {
        self.with_input(prefix, args, b"")
    }

    pub(crate) fn with_input(&mut self, prefix: &str, mut args: Value, input: &[u8]) -> Said {
        args["prefix"] = prefix.into();
        self.raw(&args.to_string(), input)
    }

    /// The status and output of a command that must succeed.
    pub(crate) fn ok(&mut self, prefix: &str, args: Value) -> (String, String) {
        let (code, status, output) = self.run(prefix, args.clone());
        assert_eq!(code, 0, "{prefix} {args}: {status}");
        (status, output)
    }

    pub(crate) fn status(&mut self, prefix: &str, args: Value) -> String {
        self.ok(prefix, args).0
    }

    pub(crate) fn text(&mut self, prefix: &str, args: Value) -> String {
        self.ok(prefix, args).1
    }

    pub(crate) fn json(&mut self, prefix: &str, mut args: Value) -> Value {
        args["format"] = "json".into();
        serde_json::from_str(&self.text(prefix, args)).unwrap()
    }

    /// A command that must fail, and leave no trace.
    pub(crate) fn fails(&mut self, prefix: &str, args: Value, errno: Errno, text: &str) {
        let before =
            (self.state.working.clone(), self.state.config.iter().count(), self.state.auth.iter().count());
        let (code, status, _) = self.run(prefix, args.clone());
        assert_eq!((code, status.as_str()), (errno.negated(), text), "{prefix} {args}");
        assert!(!self.state.has_changes(), "{prefix} {args}");
        let after =
            (self.state.working.clone(), self.state.config.iter().count(), self.state.auth.iter().count());
        assert_eq!(before, after, "{prefix} {args}");
    }
}

use serde_json::json;

/// Where a recording's keys are names of things, not fields: compared no further.
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

/// Fields that have no counterpart here, or that only show in some states.
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

/// Compares the sets of fields, at every level, of the first entries of lists; notes what differs.
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
    desk.state.handle(desk.now, Event::Config { entity, report: ConfigReport { options } });
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

#[test]
fn every_command_of_the_table_is_carried_out() {
    let mut desk = Desk::busy();
    for signature in mon_commands().signatures() {
        let mut args = json!({});
        for param in signature.params.iter().filter(|p| p.required) {
            use nacre_types::command::ParamKind;
            args[param.name] = match (&param.kind, param.name) {
                (ParamKind::Choice(words), _) => words[0].into(),
                (ParamKind::PgId, _) => "1.0".into(),
                (ParamKind::Name, _) => "client.t".into(),
                (ParamKind::Uuid, _) => Uuid::from_u128(5).to_string().into(),
                (ParamKind::Int { .. } | ParamKind::Float { .. } | ParamKind::OsdName, _) => "0".into(),
                (_, "who") => "osd".into(),
                (_, "key") => "osd_max_backfills".into(),
                _ => "x".into(),
            };
        }
        let (code, status, _) = desk.run(&signature.prefix, args);
        assert!(code != Errno::ENOTSUP.negated(), "{}: {status}", signature.prefix);
    }
}

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
fn applications_keep_metadata_within_bounds() {
    let mut desk = Desk::busy();
    let (set, rm) = ("osd pool application set", "osd pool application rm");
    let pair = |key: &str, value: &str| json!({ "pool": "p1", "app": "rbd", "key": key, "value": value });
    let (status, _) = desk.ok(set, pair("k", "v"));
    assert_eq!(status, "set application 'rbd' key 'k' to 'v' on pool 'p1'");
    desk.ok(set, pair("k", "w"));
    assert_eq!(
        desk.json("osd pool application get", json!({ "pool": "p1" })),
        json!({ "rbd": { "k": "w" } })
    );
    for key in ["k2", "k3", "k4"] {
        desk.ok(set, pair(key, ""));
    }
    let text = "too many keys set for application 'rbd' on pool 'p1'; max 4";
    desk.fails(set, pair("k5", "v"), Errno::EINVAL, text);
    desk.fails(set, pair("", "v"), Errno::EINVAL, "key must be provided");
    let long = "v".repeat(129);
    desk.fails(set, pair("k", &long), Errno::EINVAL, &format!("value '{long}' too long; max length 128"));
    let other = json!({ "pool": "p2", "app": "x", "key": "k", "value": "v" });
    desk.fails(set, other, Errno::ENOENT, "application 'x' is not enabled on pool 'p2'");
    for key in ["k", "k2", "k3", "k4"] {
        desk.ok(rm, json!({ "pool": "p1", "app": "rbd", "key": key }));
    }
    let (status, _) = desk.ok(rm, json!({ "pool": "p1", "app": "rbd", "key": "k" }));
    assert_eq!(status, "application 'rbd' on pool 'p1' does not have key 'k'");
    assert_eq!(desk.json("osd pool application get", json!({ "pool": "p1" })), json!({ "rbd": {} }));
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

#[test]
fn osd_commands_answer_in_cephs_words() {
    let mut desk = Desk::busy();
    let ids = |ids: &[&str]| json!({ "ids": ids });
    assert_eq!(desk.status("osd out", ids(&["0"])), "marked out osd.0. ");
    assert_eq!(desk.status("osd out", ids(&["0"])), "osd.0 is already out. ");
    assert_eq!(desk.status("osd in", ids(&["osd.0"])), "marked in osd.0. ");
    assert_eq!(
        desk.status("osd out", ids(&["all"])),
        "marked out osd.0. marked out osd.1. marked out osd.2. "
    );
    assert_eq!(desk.status("osd in", ids(&["any"])), "marked in osd.0. marked in osd.1. marked in osd.2. ");
    assert_eq!(desk.status("osd down", ids(&["77"])), "osd.77 does not exist. ");
    assert_eq!(desk.status("osd down", ids(&["2"])), "marked down osd.2. ");
    let dead = json!({ "ids": ["2"], "definitely_dead": true });
    assert_eq!(desk.status("osd down", dead), "osd.2 is already down. ");
    assert!(!desk.state.map().is_up(OsdId(2)));
    let bad = "Expected option value to be integer, got 'foo'invalid osd id-1";
    desk.fails("osd out", ids(&["0", "foo"]), Errno::EINVAL, bad);
    assert_eq!(
        desk.status("osd reweight", json!({ "id": "1", "weight": "0.5" })),
        "reweighted osd.1 to 0.5 (8000)"
    );
    desk.fails("osd reweight", json!({ "id": "77", "weight": 1 }), Errno::ENOENT, "osd.77 does not exist");
    assert_eq!(desk.status("osd set", json!({ "key": "pause" })), "pauserd,pausewr is set");
    assert_eq!(desk.status("osd unset", json!({ "key": "pause" })), "pauserd,pausewr is unset");
    desk.fails("osd set", json!({ "key": "full" }), Errno::EINVAL, "unrecognized flag 'full'");
    assert_eq!(desk.status("osd set-nearfull-ratio", json!({ "ratio": 0.8 })), "osd set-nearfull-ratio 0.8");
    desk.fails("osd rm", ids(&["0"]), Errno::EBUSY, "osd.0 is still up; must be down before removal. ");
    let sure = "are you SURE?  this might mean real, permanent data loss.  pass --yes-i-really-mean-it if you really do.";
    desk.fails("osd lost", json!({ "id": 2 }), Errno::EPERM, sure);
    desk.fails(
        "osd lost",
        json!({ "id": 0, "yes_i_really_mean_it": true }),
        Errno::EBUSY,
        "osd.0 is not down",
    );
    desk.ok("osd lost", json!({ "id": 2, "yes_i_really_mean_it": true }));
    assert!(desk.state.map().osds[&OsdId(2)].lost_at > Epoch(0));
    desk.ok("osd purge", json!({ "id": 2, "yes_i_really_mean_it": true }));
    assert!(
        !desk.state.map().osds.contains_key(&OsdId(2)) && desk.state.map().crush.item_id("osd.2").is_none()
    );
    assert_eq!(desk.text("osd new", json!({ "uuid": Uuid::from_u128(3).to_string() })), "2\n");
    assert_eq!(desk.text("osd new", json!({ "uuid": Uuid::from_u128(3).to_string() })), "2\n");
    desk.fails("osd metadata", json!({ "id": 77 }), Errno::ENOENT, "osd.77 does not exist");
    desk.fails(
        "osd map",
        json!({ "pool": "nope", "object": "x" }),
        Errno::ENOENT,
        "pool nope does not exist",
    );
    for wrong in ["nonsense", "1.2.3.4:x", "1.2.3.4:0/", "client."] {
        let add = json!({ "blocklistop": "add", "addr": wrong });
        desk.fails("osd blocklist", add, Errno::EINVAL, &format!("unable to parse address {wrong}"));
    }
    let add = json!({ "blocklistop": "add", "addr": "1.2.3.4:0/5" });
    assert!(
        desk.status("osd blocklist", add).starts_with("blocklisting 1.2.3.4:0/5 until 2023-11-14T23:13:20")
    );
    assert!(desk.text("osd blocklist ls", json!({})).starts_with("1.2.3.4:0/5 2023-"));
    let rm = json!({ "blocklistop": "rm", "addr": "1.2.3.4:0/5" });
    assert_eq!(desk.status("osd blocklist", rm.clone()), "un-blocklisting 1.2.3.4:0/5");
    assert_eq!(desk.status("osd blocklist", rm), "1.2.3.4:0/5 isn't blocklisted");
    let range = |op: &str, addr: &str| json!({ "range": "range", "blocklistop": op, "addr": addr });
    for wrong in ["1.2.3.4", "1.2.3.4/0", "x/8", "1.2.3.4:80/8"] {
        let text = format!("You specified a range command, but {wrong} does not parse as a CIDR range");
        desk.fails("osd blocklist", range("add", wrong), Errno::EINVAL, &text);
    }
    let text = "Too many bits in range for that protocol!";
    desk.fails("osd blocklist", range("add", "1.2.0.0/33"), Errno::EINVAL, text);
    let text = desk.status("osd blocklist", range("add", "1.2.0.0/16"));
    assert!(text.starts_with("blocklisting cidr:1.2.0.0:0/16 until 2023-"), "{text}");
    assert_eq!(desk.json("osd blocklist ls", json!({}))[0]["range"], "cidr:1.2.0.0:0/16");
    let dump = desk.json("osd dump", json!({}));
    assert!(dump["blocklist"].as_object().unwrap().is_empty(), "{dump}");
    assert!(dump["range_blocklist"]["cidr:1.2.0.0:0/16"].is_string(), "{dump}");
    let text = desk.status("osd blocklist", range("rm", "1.2.0.0/16"));
    assert_eq!(text, "un-blocklisting cidr:1.2.0.0:0/16");
}

#[test]
fn pools_are_made_changed_and_removed_only_as_ceph_would() {
    let mut desk = Desk::new();
    assert_eq!(desk.status("osd pool create", json!({ "pool": "p" })), "pool 'p' created");
    assert_eq!(
        desk.status("osd pool create", json!({ "pool": "p", "pg_num": 9 })),
        "pool 'p' already exists"
    );
    let (id, pool) = desk.state.map().pool_by_name("p").map(|(id, p)| (id, p.clone())).unwrap();
    assert_eq!((id.0, pool.size, pool.min_size, pool.pg_num, pool.pgp_num), (1, 3, 2, 32, 32));
    let range = "'pg_num' must be greater than 0 and less than or equal to 65536 (you may adjust 'mon max pool pg num' for higher values)";
    desk.fails("osd pool create", json!({ "pool": "q", "pg_num": 65537 }), Errno::ERANGE, range);
    let many = "pg_num 700 size 3 would mean 2196 total pgs, which exceeds max 750 (mon_max_pg_per_osd 250 * num_in_osds 3)";
    desk.fails("osd pool create", json!({ "pool": "q", "pg_num": 700 }), Errno::ERANGE, many);
    desk.fails(
        "osd pool create",
        json!({ "pool": "q", "pg_num": 8, "size": 20 }),
        Errno::EINVAL,
        "pool size must be between 1 and 10",
    );
    desk.fails(
        "osd pool create",
        json!({ "pool": "q", "pg_num": 8, "rule": "no" }),
        Errno::ENOENT,
        "specified rule no doesn't exist",
    );
    let erasure = json!({ "pool": "p", "pg_num": 8, "pool_type": "erasure" });
    let long = "x".repeat(5000);
    desk.fails(
        "osd pool create",
        json!({ "pool": long }),
        Errno::ENAMETOOLONG,
        "a pool name has at most 4096 bytes",
    );
    for name in ["a/b".to_owned(), "a\tb".to_owned(), "x".repeat(300)] {
        let created = desk.status("osd pool create", json!({ "pool": name, "pg_num": 1 }));
        assert_eq!(created, format!("pool '{name}' created"));
    }
    desk.fails("osd pool create", erasure, Errno::EINVAL, "pool 'p' cannot change to type erasure");
    let (code, ..) = desk.run("osd pool create", json!({ "pool": "q", "pool_type": "erasure" }));
    assert_eq!(code, Errno::ENOTSUP.negated());

    assert_eq!(
        desk.status("osd pool rename", json!({ "srcpool": "p", "destpool": "r" })),
        "pool 'p' renamed to 'r'"
    );
    assert_eq!(
        desk.status("osd pool rename", json!({ "srcpool": "p", "destpool": "r" })),
        "pool 'p' does not exist; pool 'r' does -- assuming successful rename"
    );
    desk.fails(
        "osd pool rename",
        json!({ "srcpool": "x", "destpool": "y" }),
        Errno::ENOENT,
        "unrecognized pool 'x'",
    );

    let warning = "WARNING: this will *PERMANENTLY DESTROY* all data stored in pool r.  If you are *ABSOLUTELY CERTAIN* that is \
                   what you want, pass the pool name *twice*, followed by --yes-i-really-really-mean-it.";
    for args in [
        json!({ "pool": "r" }),
        json!({ "pool": "r", "pool2": "r" }),
        json!({ "pool": "r", "pool2": "x", "yes_i_really_really_mean_it": true }),
    ] {
        desk.fails("osd pool rm", args, Errno::EPERM, warning);
    }
    let sure = json!({ "pool": "r", "pool2": "r", "yes_i_really_really_mean_it": true });
    desk.ok("osd pool set", json!({ "pool": "r", "var": "nodelete", "val": "1" }));
    let locked = "pool deletion is disabled; you must unset nodelete flag for the pool first";
    desk.fails("osd pool rm", sure.clone(), Errno::EPERM, locked);
    desk.ok("osd pool set", json!({ "pool": "r", "var": "nodelete", "val": "0" }));
    desk.state.tuning.allow_pool_delete = false;
    let disabled = "pool deletion is disabled; you must first set the mon_allow_pool_delete config option to true before you can destroy a pool";
    desk.fails("osd pool rm", sure.clone(), Errno::EPERM, disabled);
    desk.state.tuning.allow_pool_delete = true;
    assert_eq!(desk.status("osd pool rm", sure.clone()), "pool 'r' removed");
    assert_eq!(desk.status("osd pool rm", sure), "pool 'r' does not exist");
    desk.ok("osd pool create", json!({ "pool": "p" }));
    assert_eq!(desk.state.map().pool_by_name("p").unwrap().0.0, 5, "ids are never used again");
}

#[test]
fn pool_variables_are_typed_and_checked_like_cephs() {
    let mut desk = Desk::busy();
    let set = |var: &str, val: &str| json!({ "pool": "p1", "var": var, "val": val });
    let get = |var: &str| json!({ "pool": "p1", "var": var });
    assert_eq!(desk.status("osd pool set", set("size", "2")), "set pool 1 size to 2");
    assert_eq!(desk.text("osd pool get", get("size")), "size: 2\n");
    let one = "WARNING: setting pool size 1 could lead to data loss without recovery. If you are *ABSOLUTELY CERTAIN* that is what \
               you want, pass the flag --yes-i-really-mean-it.";
    let bad = [
        ("size", "0", Errno::EINVAL, "pool size must be between 1 and 10"),
        ("size", "11", Errno::EINVAL, "pool size must be between 1 and 10"),
        (
            "size",
            "x",
            Errno::EINVAL,
            "error parsing integer value 'x': Expected option value to be integer, got 'x'",
        ),
        ("size", "1", Errno::EPERM, one),
        ("min_size", "4", Errno::EINVAL, "pool min_size must be between 1 and size, which is set to 2"),
        ("pgp_num", "1000", Errno::EINVAL, "specified pgp_num 1000 > pg_num 8"),
        ("pgp_num", "0", Errno::EINVAL, "specified pgp_num must > 0, but you set to 0"),
        ("crush_rule", "nope", Errno::ENOENT, "crush rule nope does not exist"),
        ("nodelete", "maybe", Errno::EINVAL, "expecting value 'true', 'false', '0', or '1'"),
        ("hit_set_type", "bloom", Errno::EACCES, "(13) Permission denied"),
        ("target_max_bytes", "1", Errno::EACCES, "(13) Permission denied"),
        ("fast_read", "1", Errno::EINVAL, "fast read is not supported in replication pool"),
        ("compression_mode", "foo", Errno::EINVAL, "unrecognized compression mode 'foo'"),
        ("compression_algorithm", "foo", Errno::EINVAL, "unrecognized compression_algorithm 'foo'"),
        (
            "compression_required_ratio",
            "3",
            Errno::EINVAL,
            "compression_required_ratio is out of range (0-1): '3'",
        ),
        ("csum_type", "foo", Errno::EINVAL, "unrecognized csum_type 'foo'"),
        (
            "scrub_min_interval",
            "x",
            Errno::EINVAL,
            "error parsing floating point value 'x': strict_strtod: expected double, got: 'x'",
        ),
        ("recovery_priority", "50", Errno::EINVAL, "pool recovery_priority must be between -10 and 10"),
        ("pg_autoscale_mode", "foo", Errno::EINVAL, "specified invalid mode foo"),
        ("target_size_ratio", "-1", Errno::EINVAL, "target_size_ratio cannot be negative"),
        (
            "allow_ec_overwrites",
            "true",
            Errno::EINVAL,
            "ec overwrites can only be enabled for an erasure coded pool",
        ),
        ("dedup_tier", "nope", Errno::EINVAL, "expecting value 'pool name'"),
    ];
    for (var, val, errno, text) in bad {
        desk.fails("osd pool set", set(var, val), errno, text);
    }
    let (code, status, _) = desk.run("osd pool set", set("pg_num", "16"));
    assert_eq!(code, Errno::ENOTSUP.negated());
    assert!(status.contains("can't split"), "{status}");
    desk.fails(
        "osd pool set",
        json!({ "pool": "nope", "var": "size", "val": "1" }),
        Errno::ENOENT,
        "unrecognized pool 'nope'",
    );
    for (var, val) in [
        ("compression_mode", "force"),
        ("recovery_priority", "5"),
        ("target_size_ratio", "0.5"),
        ("bulk", "1"),
        ("csum_max_block", "3"),
    ] {
        desk.ok("osd pool set", set(var, val));
    }
    let all = desk.text("osd pool get", get("all"));
    assert_eq!(
        all,
        "size: 2\nmin_size: 2\npg_num: 8\npgp_num: 8\ncrush_rule: replicated_rule\nhashpspool: true\nnodelete: \
         false\nnopgchange: false\nnosizechange: false\nwrite_fadvise_dontneed: false\nnoscrub: false\nnodeep-scrub: \
         false\nuse_gmt_hitset: 1\nfast_read: 0\nrecovery_priority: 5\ncompression_mode: \
         force\ncsum_max_block: 3\ntarget_size_ratio: 0.5\npg_autoscale_mode: off\nbulk: true\n"
    );
    desk.fails("osd pool get", get("csum_type"), Errno::ENOENT, "option 'csum_type' is not set on pool 'p1'");
    let tier = "pool 'p1' is not a tier pool: variable not applicable";
    desk.fails("osd pool get", get("hit_set_type"), Errno::EACCES, tier);
    // Once it is a tier, its parameters can be set, typed.
    desk.state.change_pool(PoolId(1), |pool| pool.tiering.tier_of = Some(PoolId(2)));
    commit(&mut desk.state, desk.now);
    for (var, val) in [
        ("hit_set_type", "bloom"),
        ("hit_set_fpp", "0.1"),
        ("hit_set_count", "4"),
        ("hit_set_search_last_n", "2"),
        ("target_max_bytes", "1G"),
        ("cache_target_dirty_ratio", "0.25"),
    ] {
        desk.ok("osd pool set", set(var, val));
    }
    assert_eq!(desk.text("osd pool get", get("target_max_bytes")), "target_max_bytes: 1073741824\n");
    assert_eq!(
        desk.text("osd pool get", get("cache_target_dirty_ratio")),
        "cache_target_dirty_ratio: 0.25\n"
    );
    desk.fails(
        "osd pool set",
        set("hit_set_search_last_n", "9"),
        Errno::EINVAL,
        "value out of range,valid range is 0 - 4",
    );
    desk.fails(
        "osd pool set",
        set("hit_set_fpp", "2"),
        Errno::EINVAL,
        "hit_set_fpp must be in the range 0..1",
    );
}

#[test]
fn quotas_stop_a_pool_and_let_it_go_again() {
    let mut desk = Desk::busy();
    let quota = |val: &str| json!({ "pool": "p1", "field": "max_objects", "val": val });
    let bad = "error parsing value '1k': strict_si_cast: unit prefix not recognized";
    desk.fails("osd pool set-quota", quota("1k"), Errno::EINVAL, bad);
    assert_eq!(desk.status("osd pool set-quota", quota("4")), "set-quota max_objects = 4 for pool p1");
    let full = nacre_types::pool::flag::FULL | nacre_types::pool::flag::FULL_QUOTA;
    assert!(desk.state.map().pools[&PoolId(1)].has_flag(full));
    assert!(
        desk.text("health", json!({ "detail": "detail" }))
            .contains("    pool 'p1' is full (running out of quota)\n")
    );
    desk.ok("osd pool set-quota", quota("0"));
    assert!(!desk.state.map().pools[&PoolId(1)].has_flag(nacre_types::pool::flag::FULL));
    let bytes = json!({ "pool": "p1", "field": "max_bytes", "val": "1G" });
    assert_eq!(desk.status("osd pool set-quota", bytes), "set-quota max_bytes = 1073741824 for pool p1");
    assert_eq!(
        desk.text("osd pool get-quota", json!({ "pool": "p1" })),
        "quotas for pool 'p1':\n  max objects: N/A\n  max bytes  : 1 GiB  (current num bytes: 8000 bytes)\n"
    );
}

#[test]
fn configuration_is_checked_shown_and_resolved() {
    let mut desk = Desk::busy();
    let set = |who: &str, name: &str, value: &str| json!({ "who": who, "name": name, "value": value });
    desk.fails("config set", set("osd", "nope", "1"), Errno::EINVAL, "unrecognized config option 'nope'");
    desk.fails(
        "config set",
        set("foo", "osd_max_backfills", "1"),
        Errno::EINVAL,
        "unrecognized config target 'foo'",
    );
    desk.fails(
        "config set",
        set("osd", "osd_data", "/x"),
        Errno::EINVAL,
        "osd_data is special and cannot be stored by the mon",
    );
    let (code, status, _) = desk.run("config set", set("osd", "osd_max_backfills", "abc"));
    assert!(code == Errno::EINVAL.negated() && status.starts_with("error parsing value: "), "{status}");
    for (who, value) in [("global", "4"), ("osd", "5"), ("osd.1", "6"), ("osd/class:ssd", "7")] {
        desk.ok("config set", set(who, "osd_max_backfills", value));
    }
    assert_eq!(
        desk.text("config dump", json!({})),
        "WHO        MASK       LEVEL     OPTION             VALUE  RO\nglobal                advanced  osd_max_backfills  4        \n  \
         osd      class:ssd  advanced  osd_max_backfills  7        \n  osd                 advanced  osd_max_backfills  5        \n    \
         osd.1             advanced  osd_max_backfills  6        \n"
    );
    let key = |who: &str| json!({ "who": who, "key": "osd_max_backfills" });
    assert_eq!(desk.text("config get", key("osd.0")), "5\n");
    assert_eq!(desk.text("config get", key("osd.1")), "6\n");
    assert_eq!(desk.text("config get", key("mon")), "4\n");
    desk.fails(
        "config get",
        json!({ "who": "osd.0", "key": "nope" }),
        Errno::ENOENT,
        "unrecognized key 'nope'",
    );
    desk.ok("config rm", json!({ "who": "osd.1", "name": "osd_max_backfills" }));
    desk.ok("config rm", json!({ "who": "osd.1", "name": "osd_max_backfills" }));
    assert_eq!(desk.text("config get", key("osd.1")), "5\n");
    assert_eq!(desk.state.config_of(&"osd.1".parse().unwrap())["osd_max_backfills"], "5");
    assert!(desk.text("config help", json!({ "key": "osd_objectstore" })).starts_with("osd_objectstore - "));
    assert!(desk.text("config ls", json!({})).contains("mon_osd_down_out_interval\n"));
}

#[test]
fn keys_are_made_once_and_caps_are_checked() {
    let mut desk = Desk::new();
    let who = |entity: &str, caps: &[&str]| json!({ "entity": entity, "caps": caps });
    let made =
        desk.text("auth get-or-create", who("client.x", &["mon", "allow r", "osd", "allow rw pool=p1"]));
    assert!(made.starts_with("[client.x]\n\tkey = AQ"), "{made}");
    assert_eq!(desk.text("auth get-or-create", who("client.x", &[])), made);
    let differs = "key for client.x exists but cap mon does not match";
    desk.fails("auth get-or-create", who("client.x", &["mon", "allow rw"]), Errno::EINVAL, differs);
    let stopped = "mon capability parse failed, stopped at 'foo' of 'foo'";
    desk.fails("auth caps", who("client.x", &["mon", "foo"]), Errno::EINVAL, stopped);
    desk.fails(
        "auth caps",
        who("client.no", &["mon", "allow r"]),
        Errno::ENOENT,
        "couldn't find entry client.no",
    );
    assert_eq!(desk.status("auth caps", who("client.x", &["mon", "allow *"])), "updated caps for client.x");
    let odd = "bad capabilities request; odd number of arguments";
    desk.fails("auth get-or-create", who("client.z", &["mon"]), Errno::EINVAL, odd);
    let exported = desk.ok("auth get", json!({ "entity": "client.x" }));
    assert_eq!(exported.0, "exported keyring for client.x");
    assert!(exported.1.ends_with("\tcaps mon = \"allow *\"\n"), "{}", exported.1);
    assert_eq!(desk.status("auth add", who("client.y", &["mon", "allow r"])), "added key for client.y");
    desk.fails(
        "auth add",
        who("client.y", &[]),
        Errno::EINVAL,
        "entity client.y exists but caps do not match",
    );
    assert!(desk.text("auth ls", json!({})).contains("client.y\n\tkey: AQ"));
    assert_eq!(desk.status("auth rm", json!({ "entity": "client.y" })), "updated");
    assert_eq!(desk.status("auth rm", json!({ "entity": "client.y" })), "entity client.y does not exist");
    desk.fails(
        "auth get",
        json!({ "entity": "client.y" }),
        Errno::ENOENT,
        "failed to find client.y in keyring",
    );
    desk.fails("auth get-key", json!({ "entity": "client.y" }), Errno::ENOENT, "don't have client.y");
    let renamed = exported.1.replace("client.x", "client.new");
    let (code, status, _) = desk.with_input("auth import", json!({}), renamed.as_bytes());
    assert_eq!((code, status.as_str()), (0, "imported keyring"));
    let key = desk.text("auth get-key", json!({ "entity": "client.x" }));
    assert_eq!(desk.text("auth print-key", json!({ "entity": "client.new" })), key);
    for (name, older, args) in [
        ("auth ls", "auth list", json!({})),
        ("auth print-key", "auth print_key", json!({ "entity": "client.new" })),
        ("config-key ls", "config-key list", json!({})),
        ("osd crush rule ls", "osd crush rule list", json!({})),
    ] {
        assert_eq!(desk.ok(older, args.clone()), desk.ok(name, args), "{older}");
    }
    let (code, status, _) = desk.with_input("auth import", json!({}), b"xx");
    assert_eq!((code, status.as_str()), (-22, "error decoding keyring cannot parse buffer: Malformed input"));
}

#[test]
fn crush_maps_go_out_and_only_usable_ones_come_in() {
    let mut desk = Desk::busy();
    let request =
        |desk: &mut Desk, args: Value, input: &[u8]| desk.with_input("osd setcrushmap", args, input);
    let version = desk.state.crush_version();
    let mut crush = (*desk.state.map().crush).clone();
    assert_eq!(request(&mut desk, json!({}), &crush.encode()), (0, version.to_string(), String::new()));
    crush.reweight_item("osd.0", 0x1_0000).unwrap();
    let later = (version + 1).to_string();
    assert_eq!(
        request(&mut desk, json!({ "prior_version": version }), &crush.encode()),
        (0, later.clone(), String::new())
    );
    assert_eq!(*desk.state.map().crush, crush);
    assert_eq!(
        request(&mut desk, json!({ "prior_version": version }), &crush.encode()).1,
        later,
        "a resent request"
    );
    assert_eq!(desk.status("osd getcrushmap", json!({})), later);
    let text = |said: Said| (said.0, said.1);
    assert_eq!(
        text(request(&mut desk, json!({}), b"garbage")),
        (-22, "Failed to parse crushmap: bad magic number: Malformed input".into())
    );
    assert_eq!(
        text(request(&mut desk, json!({}), b"")),
        (-22, "Failed to parse crushmap: End of buffer".into())
    );
    crush.remove_rule("replicated_rule").unwrap();
    assert_eq!(
        text(request(&mut desk, json!({}), &crush.encode())),
        (-22, "the crush rule no 0 has been deleted, but is in use by pool 'p1'".into())
    );
    let mut stranger = (*desk.state.map().crush).clone();
    let place = [("root".to_owned(), "default".to_owned())].into();
    stranger.insert_item(9, 0x1_0000, "osd.9", &place).unwrap();
    assert_eq!(
        text(request(&mut desk, json!({}), &stranger.encode())),
        (-22, "osd.9 in the crush map does not exist".into())
    );
    desk.fails("osd crush rule dump", json!({ "name": "nope" }), Errno::ENOENT, "unknown crush rule 'nope'");
    assert_eq!(
        desk.status("osd crush reweight", json!({ "name": "osd.0", "weight": 0.5 })),
        "reweighted item id 0 name 'osd.0' to 0.5 in crush map"
    );
}

#[test]
fn what_is_not_allowed_is_denied() {
    let mut desk = Desk::busy();
    desk.caps = Arc::new(MonCaps::parse("allow r").unwrap());
    desk.ok("osd tree", json!({}));
    desk.fails("osd out", json!({ "ids": ["0"] }), Errno::EACCES, "access denied");
    desk.fails("auth ls", json!({}), Errno::EACCES, "access denied");
}

#[test]
fn hostile_requests_are_refused_and_change_nothing() {
    let mut desk = Desk::busy();
    let before = desk.state.working.clone();
    for bad in [
        "",
        "{",
        "[]",
        "{}",
        "null",
        "{\"prefix\":5}",
        "{\"prefix\":\"nope\"}",
        "{\"prefix\":\"osd pool create\"}",
        "{\"prefix\":\"osd pool create\",\"pool\":[1]}",
        "{\"prefix\":\"osd pool create\",\"pool\":\"\"}",
        "{\"prefix\":\"osd pool create\",\"pool\":\"q\",\"pg_num\":\"abc\"}",
        "{\"prefix\":\"osd pool create\",\"pool\":\"q\",\"pg_num\":-1}",
        "{\"prefix\":\"osd out\",\"ids\":[]}",
        "{\"prefix\":\"osd out\",\"ids\":{\"a\":1}}",
        "{\"prefix\":\"osd reweight\",\"id\":0,\"weight\":1.5}",
        "{\"prefix\":\"osd reweight\",\"id\":-1,\"weight\":1}",
        "{\"prefix\":\"osd set\",\"key\":\"zzz\"}",
        "{\"prefix\":\"status\",\"format\":\"zzz\"}",
        "{\"prefix\":\"osd new\",\"uuid\":\"x\"}",
    ] {
        let (code, status, output) = desk.raw(bad, b"");
        assert_eq!((code, output.as_str()), (-22, ""), "{bad}: {status}");
        assert!(!status.is_empty(), "{bad}");
    }
    assert_eq!(desk.state.working, before);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_in_any_argument_gets_an_answer(at in 0_usize..200, text in "\\PC{0,24}", number in any::<i64>()) {
        let mut desk = Desk::busy();
        let signatures = mon_commands().signatures();
        let signature = &signatures[at % signatures.len()];
        let mut args = json!({});
        for (i, param) in signature.params.iter().enumerate() {
            args[param.name] = match i % 3 {
                0 => text.as_str().into(),
                1 => number.into(),
                _ => json!([text, number]),
            };
        }
        let (code, ..) = desk.with_input(&signature.prefix, args, text.as_bytes());
        prop_assert!(code <= 0);
    }
}
