//! `--print`, `--dump`, `--tree` and `--health`: the map as the map authority shows it.

use super::args::{Args, DisplayFormat};
use super::{ExitError, ME, now};
use crate::cmd::formatter::{self, DumpFormat, ElementNames};
use bytes::Bytes;
use nacre_common::auth::Key;
use nacre_mon::CommandRequest;
use nacre_mon::logic::{ConnToken, Databases, MapEffect, MapEvent, MapState, Tuning};
use nacre_types::EntityName;
use nacre_types::caps::mon::MonCaps;
use nacre_types::msg::MonCommand;
use nacre_types::osdmap::{OsdMap, flag};
use serde_json::{Map, Value, json};
use std::io::Write;
use std::sync::Arc;

/// The names of a dump's parts in XML and tables.
const DUMP_NAMES: ElementNames = ElementNames {
    root: "osdmap",
    element: |array| match array {
        "pools" => "pool",
        "osds" => "osd_info",
        "osd_xinfo" => "xinfo",
        "pg_upmap" | "pg_upmap_items" | "mappings" => "mapping",
        "state" => "state",
        "tiers" => "pool_id",
        "flags_set" => "flag",
        "pool_snaps" => "pool_snap_info",
        "addrvec" => "addr",
        _ => "osd",
    },
    // Ceph's tables print the last text of this section after its end.
    outer_fields: &["target_version"],
};

/// The names of a tree's parts.
const TREE_NAMES: ElementNames = ElementNames {
    root: "tree",
    element: |array| match array {
        "nodes" | "stray" => "item",
        "children" => "child",
        _ => "weight",
    },
    outer_fields: &[],
};

/// Checks that Ceph derives from the map alone, besides those by failure domain (`OSD_HOST_DOWN`).
const MAP_CHECKS: [&str; 12] = [
    "OSD_DOWN",
    "OSD_ORPHAN",
    "OSD_OUT_OF_ORDER_FULL",
    "OSD_FULL",
    "OSD_BACKFILLFULL",
    "OSD_NEARFULL",
    "OSDMAP_FLAGS",
    "POOL_FULL",
    "POOL_NEARFULL",
    "POOL_BACKFILLFULL",
    "POOL_NO_REDUNDANCY",
    "CACHE_POOL_NO_HIT_SET",
];
/// `mon_crush_min_required_version`.
const MIN_CRUSH_VERSION: &str = "hammer";
/// The page of Ceph's documentation about tunables.
const TUNABLES_HELP: &str = "see http://docs.ceph.com/en/latest/rados/operations/crush-map/#tunables";

/// Shows what the options request.
pub(super) fn run(
    map: &OsdMap,
    crush_version: u64,
    args: &Args,
    out: &mut dyn Write,
) -> Result<(), ExitError> {
    if args.health {
        let health = health(map, crush_version)?;
        out.write_all(formatter::render(&health, DUMP_NAMES, DumpFormat::JsonPretty).as_bytes())?;
    }
    match args.dump {
        None => {}
        Some(DisplayFormat::Plain) => out.write_all(&command(map, crush_version, "osd dump", "plain")?)?,
        Some(DisplayFormat::As(format)) => {
            let mut dump = document(map, crush_version, "osd dump")?;
            // A map does not contain when OSDs last came up or in.
            for stamp in ["last_up_change", "last_in_change"] {
                dump[stamp] = "0.000000".into();
            }
            out.write_all(formatter::render(&dump, DUMP_NAMES, format).as_bytes())?;
        }
    }
    match args.tree {
        None => {}
        Some(DisplayFormat::Plain) => out.write_all(&command(map, crush_version, "osd tree", "plain")?)?,
        Some(DisplayFormat::As(format)) => {
            let tree = document(map, crush_version, "osd tree")?;
            writeln!(out, "{}", formatter::render(&tree, TREE_NAMES, format))?;
        }
    }
    Ok(())
}

/// The health checks of the map, by code.
fn health(map: &OsdMap, crush_version: u64) -> Result<Value, ExitError> {
    let mut all = document(map, crush_version, "health")?;
    let Some(Value::Object(raised)) = all.get_mut("checks").map(Value::take) else { return Ok(json!({})) };
    let of_map =
        |code: &str| MAP_CHECKS.contains(&code) || (code.starts_with("OSD_") && code.ends_with("_DOWN"));
    let mut checks: std::collections::BTreeMap<String, Value> =
        raised.into_iter().filter(|(code, _)| of_map(code)).collect();
    for check in checks.values_mut().filter_map(Value::as_object_mut) {
        check.remove("muted");
    }
    let mut add = |code: &str, message: String, count: usize, detail: Vec<String>| {
        let detail: Vec<Value> = detail.into_iter().map(|line| json!({ "message": line })).collect();
        let summary = json!({ "message": message, "count": count });
        let check = json!({ "severity": "HEALTH_WARN", "summary": summary, "detail": detail });
        checks.insert(code.to_owned(), check);
    };
    if !map.has_flag(flag::SORTBITWISE) {
        add("OSD_NO_SORTBITWISE", "'sortbitwise' flag is not set".to_owned(), 0, Vec::new());
    }
    let mut add_each = |code: &str, what: &str, detail: Vec<String>| {
        if !detail.is_empty() {
            add(code, format!("{} {what}", detail.len()), detail.len(), detail);
        }
    };
    let uneven = map.pools.values().filter(|pool| !pool.pg_num.is_power_of_two());
    let uneven =
        uneven.map(|pool| format!("pool '{}' pg_num {} is not a power of two", pool.name, pool.pg_num));
    add_each("POOL_PG_NUM_NOT_POWER_OF_TWO", "pool(s) have non-power-of-two pg_num", uneven.collect());
    let tunables = map.crush.dump_tunables();
    if let Some(required) = tunables["minimum_required_version"].as_str().filter(|v| *v < MIN_CRUSH_VERSION) {
        let text = format!("crush map has legacy tunables (require {required}, min is {MIN_CRUSH_VERSION})");
        add("OLD_CRUSH_TUNABLES", text, 0, vec![TUNABLES_HELP.to_owned()]);
    }
    if map.crush.tunables.straw_calc_version == 0 {
        let text = "crush map has straw_calc_version=0".to_owned();
        add("OLD_CRUSH_STRAW_CALC_VERSION", text, 0, vec![TUNABLES_HELP.to_owned()]);
    }
    Ok(Value::Object(checks.into_iter().collect::<Map<_, _>>()))
}

/// The answer of the map authority, as JSON.
fn document(map: &OsdMap, crush_version: u64, prefix: &str) -> Result<Value, ExitError> {
    let text = command(map, crush_version, prefix, "json")?;
    serde_json::from_slice(&text).map_err(|error| ExitError::failed(format!("{ME}: {prefix}: {error}"), 1))
}

/// The output of the map authority.
fn command(map: &OsdMap, crush_version: u64, prefix: &str, format: &str) -> Result<Vec<u8>, ExitError> {
    let key = Key::generate().map_err(|error| ExitError::failed(format!("{ME}: {error}"), 1))?;
    let mut words = json!({ "prefix": prefix, "format": format });
    if prefix == "health" {
        words["detail"] = "detail".into();
    }
    let request = CommandRequest {
        origin: ConnToken(0),
        entity: EntityName::client("admin"),
        peer: std::net::Ipv4Addr::LOCALHOST.into(),
        caps: Arc::new(MonCaps::all()),
        command: MonCommand { tid: 1, cmd: words.to_string(), input: Bytes::new() },
        fresh_key: key,
    };
    let databases = Databases { crush_version, ..Databases::default() };
    let mut state = MapState::with_databases(map.clone(), Tuning::default(), now(), databases);
    let answers = state.handle(now(), MapEvent::Command(Box::new(request)));
    match answers.into_iter().next() {
        Some(MapEffect::CommandReply { reply, .. }) if reply.code == 0 => Ok(reply.output.to_vec()),
        Some(MapEffect::CommandReply { reply, .. }) => {
            Err(ExitError::failed(format!("{ME}: {}", reply.status), 1))
        }
        _ => Err(ExitError::failed(format!("{ME}: '{prefix}' gave no answer"), 1)),
    }
}
