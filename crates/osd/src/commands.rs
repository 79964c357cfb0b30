//! `ceph tell osd.N …` and `ceph daemon`: what an OSD says about itself.

use crate::metrics;
use crate::shard::ShardCell;
use crate::shared::Shared;
use nacre_types::command::{self, Call};
use nacre_types::errno::Errno;
use nacre_types::msg::{DaemonCommand, DaemonCommandReply};
use serde_json::{Map, Value, json};

struct Refused(Errno, String);

/// Carries a command out; `allowed` tells whether the caller may.
pub(crate) fn run(
    shared: &Shared,
    cells: &[ShardCell],
    command: &DaemonCommand,
    allowed: bool,
) -> DaemonCommandReply {
    let answer = if allowed {
        carry_out(shared, cells, &command.cmd)
    } else {
        Err(Refused(Errno::EACCES, "access denied: commands need osd 'allow *'".into()))
    };
    let (code, status, output) = match answer {
        Ok(value) => (0, String::new(), text_of(&value)),
        Err(Refused(errno, text)) => (errno.negated(), text, String::new()),
    };
    DaemonCommandReply { tid: command.tid, code, status, output: output.into() }
}

fn text_of(value: &Value) -> String {
    // Serializing a Value to text has nothing to fail on.
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}

fn carry_out(shared: &Shared, cells: &[ShardCell], json: &str) -> Result<Value, Refused> {
    let table = command::osd_commands();
    let call = table.resolve(json).map_err(|error| Refused(error.errno(), error.to_string()))?;
    match call.prefix() {
        "get_command_descriptions" => Ok(table.descriptions()),
        "version" => Ok(json!({ "version": env!("CARGO_PKG_VERSION"), "release": "nacre" })),
        "status" => Ok(status(shared, cells)),
        // `tell PGID query` and `pg PGID query`.
        "query" | "pg" => query(cells, &call),
        "perf dump" => Ok(json!({ "osd": metrics::perf_dump(shared.metrics.iter().map(|m| &**m)) })),
        "dump_ops_in_flight" => {
            let now_ns = crate::clock::boot_ns();
            Ok(dump(cells, |shard| shard.tracker().dump_in_flight(now_ns)))
        }
        "dump_historic_ops" => Ok(dump(cells, |shard| shard.tracker().dump_history())),
        "flush_pg_stats" => {
            shared.report.notify_one();
            Ok(json!({}))
        }
        "config show" => {
            let shown = shared.config.show();
            Ok(Value::Object(
                shown.into_iter().map(|s| (s.name.to_owned(), Value::String(s.value))).collect(),
            ))
        }
        "config get" => {
            let name = call.required("var");
            let value =
                shared.config.text(name).map_err(|error| Refused(error.errno(), error.to_string()))?;
            Ok(Value::Object(Map::from_iter([(name.to_owned(), Value::String(value))])))
        }
        "config set" => {
            let (name, value) = (call.required("var"), call.required("val"));
            shared.config.set(name, value).map_err(|error| Refused(error.errno(), error.to_string()))?;
            Ok(json!({ "success": format!("{name} = '{value}'") }))
        }
        other => Err(Refused(Errno::EINVAL, format!("command not known: {other}"))),
    }
}

fn dump(cells: &[ShardCell], of: impl Fn(&crate::shard::Shard) -> Vec<Value>) -> Value {
    let ops: Vec<Value> = cells.iter().flat_map(|cell| cell.inspect(&of)).collect();
    json!({ "num_ops": ops.len(), "ops": ops })
}

fn status(shared: &Shared, cells: &[ShardCell]) -> Value {
    let map = shared.map.load_full();
    let pgs: usize = cells.iter().map(|cell| cell.inspect(|shard| shard.pg_count())).sum();
    let up = map.as_ref().is_some_and(|map| {
        map.osds.get(&shared.whoami).is_some_and(|info| info.up && info.boot_nonce == shared.boot_nonce)
    });
    json!({
        "cluster_fsid": map.as_ref().map(|map| map.fsid.to_string()),
        "whoami": shared.whoami.0,
        "state": if up { "active" } else { "booting" },
        "newest_map": map.as_ref().map_or(0, |map| map.epoch.0),
        "num_pgs": pgs,
        "objectstore": shared.store.kind(),
        "incarnation": shared.me.incarnation.to_string(),
    })
}

fn query(cells: &[ShardCell], call: &Call<'_>) -> Result<Value, Refused> {
    let pg =
        call.pg("pgid").ok_or_else(|| Refused(Errno::EINVAL, "missing required parameter pgid".into()))?;
    let query = cells
        .iter()
        .find_map(|cell| cell.with(|shard| shard.query(pg)))
        .ok_or_else(|| Refused(Errno::ENOENT, format!("i don't have pgid {pg}")))?;
    let stats = &query.stats;
    let ids = |osds: &[nacre_types::OsdId]| osds.iter().map(|osd| osd.0).collect::<Vec<_>>();
    Ok(json!({
        "pgid": pg.to_string(),
        "state": nacre_types::stats::pg_state::to_text(stats.state),
        "interval": stats.interval.0,
        "up": ids(&stats.up),
        "acting": ids(&stats.acting),
        "backfill_targets": ids(&stats.backfill_targets),
        "phase": query.phase,
        "blocked_by": query.blocked_by,
        "info": {
            "last_update": stats.last_update.to_string(),
            "last_complete": stats.last_complete.to_string(),
            "log_tail": stats.log_tail.to_string(),
            "log_size": stats.log_size,
            "missing": query.info.missing,
            "complete": query.info.complete,
            "stat_sum": {
                "num_bytes": stats.sums.bytes,
                "num_objects": stats.sums.objects,
                "num_objects_degraded": stats.degraded,
                "num_objects_misplaced": stats.misplaced,
                "num_objects_unfound": stats.unfound,
                "num_objects_omap": stats.sums.omap_objects,
                "num_read": stats.io.reads,
                "num_write": stats.io.writes,
            },
        },
        "membership": query.membership.as_ref().map(|m| json!({
            "interval": m.interval.0,
            "primary": m.primary.0,
            "in_sync": m.in_sync.iter().map(|member| member.osd.0).collect::<Vec<_>>(),
        })),
        "proposals": query.proposals.len(),
        "catching_up": query.catching_up.iter().map(|(osd, missing, position)| json!({
            "osd": osd.0,
            "missing": missing,
            "backfill_position": position,
        })).collect::<Vec<_>>(),
    }))
}
