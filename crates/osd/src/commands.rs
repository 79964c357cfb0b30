//! Answers commands on the OSD's admin socket (`ceph daemon`) and from `ceph tell osd.N`.

mod bench;
mod unfound;

use crate::clock;
use crate::shared::Shared;
use nacre_runtime::admin::socket::CommandHandler;
use nacre_runtime::admin::{AdminReply, CommandAnswer, CommandFailure, CommandResult, DaemonCommands};
use nacre_shard::shard::{PgAccesses, Shard, ShardCell, advise};
use nacre_shard::tracker::ClockReading;
use nacre_store::FreeSpace;
use nacre_types::command::{self, Call};
use nacre_types::errno::Errno;
use nacre_types::ids::PgId;
use nacre_types::msg::{DaemonCommand, DaemonCommandReply, LogAppend, MonSubscribe, OsdBeacon};
use nacre_types::time::stamp;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a dump of ops waits for a shard to end its turn.
const SHARD_PATIENCE: Duration = Duration::from_secs(1);
/// Maximum number of free extents in a listing.
const MAX_EXTENTS: usize = 65_536;

/// Executes a command. `allowed` determines whether the caller has the right to.
pub(crate) fn run(
    shared: &Shared,
    cells: &[ShardCell],
    command: &DaemonCommand,
    allowed: bool,
) -> DaemonCommandReply {
    let reply = if allowed {
        carry_out(shared, cells, &command.cmd)
    } else {
        CommandFailure(Errno::EACCES, "access denied: commands need osd 'allow *'".into()).into()
    };
    let AdminReply { code, status, output } = reply;
    DaemonCommandReply { tid: command.tid, code, status, output: output.into() }
}

/// Executes commands from the admin socket. Its owner has every right.
pub(crate) fn socket_handler(shared: &Arc<Shared>, cells: &Arc<Vec<ShardCell>>) -> CommandHandler {
    // The OSD owns the socket, so strong references would be a cycle.
    let (shared, cells) = (Arc::downgrade(shared), Arc::downgrade(cells));
    Arc::new(move |json| match (shared.upgrade(), cells.upgrade()) {
        (Some(shared), Some(cells)) => carry_out(&shared, &cells, json),
        _ => CommandFailure(Errno::ESHUTDOWN, "the daemon is going".into()).into(),
    })
}

fn carry_out(shared: &Shared, cells: &[ShardCell], json: &str) -> AdminReply {
    let admin = DaemonCommands {
        config: shared.config.clone(),
        perf: shared.perf.clone(),
        table: command::osd_commands(),
    };
    admin.run(json, |call| own(shared, cells, call))
}

/// The commands that only OSDs have.
fn own(shared: &Shared, cells: &[ShardCell], call: &Call<'_>) -> CommandResult {
    let ops = Ops { shared, cells };
    match call.prefix() {
        "status" => Ok(status(shared, cells).into()),
        // `tell PGID query` and `pg PGID query`.
        "query" | "pg" => query(cells, call),
        "list_unfound" => unfound::list(cells, call),
        "mark_unfound_lost" => unfound::mark_lost(shared, cells, call),
        "dump_ops_in_flight" | "ops" => Ok(ops.in_flight(call, false).into()),
        "dump_blocked_ops" => Ok(ops.in_flight(call, true).into()),
        "dump_historic_ops" => Ok(ops.historic(call, false).into()),
        "dump_historic_ops_by_duration" => Ok(ops.historic(call, true).into()),
        "dump_historic_slow_ops" => Ok(ops.slow(call).into()),
        "dump_watchers" => {
            let watchers = cells.iter().flat_map(|cell| cell.inspect(Shard::dump_watchers));
            Ok(watchers.collect::<Value>().into())
        }
        "dump_blocklist" => Ok(blocklist(shared).into()),
        "dump_recovery_reservations" => Ok(reservations(shared).into()),
        "dump_tier_advice" => tier_advice(shared, cells, call.required_text("pool")),
        "get_mapped_pools" => {
            let mut pools = BTreeSet::new();
            cells
                .iter()
                .for_each(|cell| cell.inspect(|shard| pools.extend(shard.pools().map(|pool| pool.0))));
            Ok(json!(pools).into())
        }
        "get_latest_osdmap" => {
            let next_epoch = shared.map.load().as_ref().map_or_else(Default::default, |map| map.epoch.next());
            shared.to_mon(&MonSubscribe { next_epoch, config: false });
            Ok(CommandAnswer::from(json!({})))
        }
        "send_beacon" => {
            let map = shared.map.load().as_ref().map_or_else(Default::default, |map| map.version());
            shared.to_mon(&OsdBeacon { boot_nonce: shared.boot_nonce, map, full: shared.is_full() });
            Ok(json!({}).into())
        }
        "flush_pg_stats" => {
            shared.report.notify_one();
            Ok(json!({}).into())
        }
        "cluster_log" => {
            let level = match call.required_text("level") {
                "warning" => "warn",
                other => other,
            };
            shared.to_mon(&LogAppend { level: level.to_owned(), text: call.texts("message").join(" ") });
            Ok(json!({}).into())
        }
        "bench" => bench::run(shared, call),
        "compact" => compact(shared),
        "bluestore allocator dump block" => allocator_dump(shared),
        "bluestore allocator fragmentation block" => fragmentation(shared),
        other => Err(CommandFailure(Errno::EINVAL, format!("command not known: {other}"))),
    }
}

/// Whether a command takes so long that nothing else may wait for it.
pub(crate) fn is_long_running(command: &DaemonCommand) -> bool {
    let json: Value = serde_json::from_str(&command.cmd).unwrap_or_default();
    ["compact", "bench", "dump_tier_advice"].iter().any(|prefix| json["prefix"] == *prefix)
}

fn compact(shared: &Shared) -> CommandResult {
    let running = RunningGuard::begin(&shared.compacting, "a compaction is under way")?;
    let started = Instant::now();
    let say = |text: String| {
        tracing::info!("{text}");
        shared.to_mon(&LogAppend { level: "info".into(), text });
    };
    let outcome = shared
        .store
        .compact(&mut |part, number, count| say(format!("compacting {part} ({number} of {count})")));
    drop(running);
    let elapsed = started.elapsed().as_secs_f64();
    match outcome {
        Ok(()) => {
            say(format!("compacted the database in {elapsed:.1} s"));
            Ok(json!({ "elapsed_time": elapsed }).into())
        }
        Err(error) => Err(CommandFailure(error.errno(), error.to_string())),
    }
}

/// Reads the shards one after the other. The simulation runs without their locks.
fn tier_advice(shared: &Shared, cells: &[ShardCell], name: &str) -> CommandResult {
    let map = shared.map.load_full();
    let mut pools = map.iter().flat_map(|map| &map.pools);
    let pool = pools.find(|(_, pool)| pool.name == name);
    let Some((id, pool)) = pool else {
        return Err(CommandFailure(Errno::ENOENT, format!("unrecognized pool '{name}'")));
    };
    if pool.tiering.tier_of.is_none() {
        return Err(CommandFailure(Errno::EINVAL, format!("pool '{name}' is not a cache tier")));
    }
    let _running = RunningGuard::begin(&shared.advising, "a cache tier is being simulated already")?;
    let pgs: Vec<PgAccesses> =
        cells.iter().flat_map(|cell| cell.inspect(|shard| shard.tier_accesses(*id))).collect();
    Ok(advise(&pgs).into())
}

/// A command that runs at most once at a time.
struct RunningGuard<'a>(&'a AtomicBool);

impl<'a> RunningGuard<'a> {
    /// Marks the command as running until the guard is dropped. Fails with `text` if it runs already.
    fn begin(running: &'a AtomicBool, text: &str) -> Result<RunningGuard<'a>, CommandFailure> {
        match running.swap(true, Ordering::AcqRel) {
            true => Err(CommandFailure(Errno::EBUSY, text.into())),
            false => Ok(RunningGuard(running)),
        }
    }
}

impl Drop for RunningGuard<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// The tracked ops of all shards.
struct Ops<'a> {
    shared: &'a Shared,
    cells: &'a [ShardCell],
}

impl Ops<'_> {
    fn clocks() -> ClockReading {
        ClockReading { now_ns: clock::boot_ns(), wall_ns: clock::wall_ns() }
    }

    fn in_flight(&self, call: &Call<'_>, blocked: bool) -> Value {
        let filters = call.texts("filterstr");
        let (mut ops, busy) =
            self.gather(|shard| shard.tracker().dump_in_flight(Self::clocks(), &filters, blocked));
        ops.sort_by_key(|(age, _)| std::cmp::Reverse(*age));
        let ops: Vec<Value> = ops.into_iter().map(|(_, op)| op).collect();
        let count = ops.len();
        let complaint = self.shared.config.get().osd.osd_op_complaint_time;
        let mut shown = match blocked {
            false => json!({ "ops": ops, "num_ops": count }),
            true => {
                json!({ "ops": ops, "complaint_time": complaint.as_secs_f64(), "num_blocked_ops": count })
            }
        };
        if !busy.is_empty() {
            shown["busy_shards"] = busy.into();
        }
        shown
    }

    /// Returns the dumps of the shards that end their turns in time, and descriptions of the other shards, whose ops can't be read.
    fn gather<T>(&self, dump: impl Fn(&Shard) -> Vec<T>) -> (Vec<T>, Vec<Value>) {
        let (mut found, mut busy) = (Vec::new(), Vec::new());
        for (number, cell) in self.cells.iter().enumerate() {
            match cell.try_with(SHARD_PATIENCE, |shard| dump(shard)) {
                Some(of_shard) => found.extend(of_shard),
                None => busy.push(self.busy_shard(number)),
            }
        }
        (found, busy)
    }

    /// Describes a shard that does not answer, with the start of its turn.
    fn busy_shard(&self, number: usize) -> Value {
        let ClockReading { now_ns, wall_ns } = Self::clocks();
        let since_ns = self.shared.progress.turn_since_ns(number).unwrap_or(now_ns);
        let age_ns = now_ns.saturating_sub(since_ns);
        json!({ "shard": number, "since": stamp(wall_ns.saturating_sub(age_ns)), "age": age_ns as f64 / 1e9 })
    }

    fn historic(&self, call: &Call<'_>, by_duration: bool) -> Value {
        let options = self.shared.config.snapshot();
        let size = options.osd.osd_op_history_size as usize;
        let mut ops = self.finished(call, false);
        ops.sort_by_key(|(_, (took, _))| std::cmp::Reverse(*took));
        // Each shard keeps up to this number.
        ops.truncate(size);
        if !by_duration {
            ops.sort_by_key(|(started, _)| *started);
        }
        let ops: Vec<Value> = ops.into_iter().map(|(_, (_, op))| op).collect();
        json!({ "size": size, "duration": options.osd.osd_op_history_duration.as_secs(), "ops": ops })
    }

    fn slow(&self, call: &Call<'_>) -> Value {
        let options = self.shared.config.snapshot();
        let mut ops = self.finished(call, true);
        ops.sort_by_key(|(_, (took, _))| std::cmp::Reverse(*took));
        let size = options.osd.osd_op_history_slow_op_size as usize;
        ops.truncate(size);
        json!({
            "num to keep": size,
            "threshold to keep": options.osd.osd_op_history_slow_op_threshold.as_secs_f64(),
            "Ops": ops.into_iter().map(|(_, (_, op))| op).collect::<Vec<_>>(),
        })
    }

    fn finished(&self, call: &Call<'_>, slow: bool) -> Vec<(u64, (u64, Value))> {
        let filters = call.texts("filterstr");
        self.gather(|shard| shard.tracker().dump_history(Self::clocks(), &filters, slow)).0
    }
}

fn blocklist(shared: &Shared) -> Value {
    let map = shared.map.load_full();
    let entries = map.iter().flat_map(|map| map.blocklist.iter());
    entries.map(|(who, until_ns)| json!({ "entity_addr": who, "expire_time": stamp(*until_ns) })).collect()
}

fn reservations(shared: &Shared) -> Value {
    let dump = |slots: &nacre_pg::reserve::Reserver<PgId>, max: u64| {
        let pgs = |pgs: Vec<&PgId>| pgs.iter().map(ToString::to_string).collect::<Vec<_>>();
        json!({
            "max_allowed": max,
            "min_priority": 0,
            "queues": pgs(slots.queued().collect()),
            "in_progress": pgs(slots.holders().collect()),
        })
    };
    let options = shared.config.snapshot();
    json!({
        "local_reservations": dump(&shared.local_backfill_reserver.lock(), options.osd.osd_max_backfills),
        "remote_reservations": dump(&shared.remote_backfill_reserver.lock(), options.osd.osd_max_backfills),
        "recovery_reservations": dump(&shared.recovery_reserver.lock(), nacre_shard::shared::max_recoveries(&options) as u64),
    })
}

fn no_allocator(shared: &Shared) -> CommandFailure {
    CommandFailure(Errno::ENOTSUP, format!("{} has no allocator", shared.store.kind()))
}

fn allocator_dump(shared: &Shared) -> CommandResult {
    let space = shared.store.free_space(MAX_EXTENTS).ok_or_else(|| no_allocator(shared))?;
    Ok(dump_free_space(&space).into())
}

/// Formats free space as Ceph dumps an allocator.
pub fn dump_free_space(space: &FreeSpace) -> Value {
    let extents = space.extents.iter();
    let mut out = json!({
        "capacity": space.capacity_bytes,
        "alloc_unit": space.unit_bytes,
        "alloc_type": "bitmap",
        "alloc_name": "block",
        "extents": extents
            .map(|(offset, len)| json!({ "offset": format!("{offset:#x}"), "length": format!("{len:#x}") }))
            .collect::<Value>(),
    });
    if space.more {
        out["truncated"] = true.into();
    }
    out
}

/// Ceph's rating: the share of the neighbouring free units that are not in one extent.
fn fragmentation(shared: &Shared) -> CommandResult {
    let space = shared.store.free_space(usize::MAX).ok_or_else(|| no_allocator(shared))?;
    let (extents, units) = (space.extents.len() as f64, (space.free_bytes / space.unit_bytes) as f64);
    let rating = if units > 1.0 { ((extents - 1.0) / (units - 1.0)).max(0.0) } else { 0.0 };
    Ok(json!({ "fragmentation_rating": rating }).into())
}

fn status(shared: &Shared, cells: &[ShardCell]) -> Value {
    let map = shared.map.load_full();
    let pgs: usize = cells.iter().map(|cell| cell.inspect(|shard| shard.pg_count())).sum();
    let up = map.as_ref().is_some_and(|map| {
        map.osds.get(&shared.whoami).is_some_and(|info| info.up && info.boot_nonce == shared.boot_nonce)
    });
    json!({
        "cluster_fsid": map.as_ref().map(|map| map.fsid.to_string()),
        "osd_fsid": shared.uuid.to_string(),
        "whoami": shared.whoami.0,
        "state": if up { "active" } else { "booting" },
        "oldest_map": map.as_ref().map_or(0, |map| map.epoch.0),
        "cluster_osdmap_trim_lower_bound": map.as_ref().map_or(0, |map| map.epoch.0),
        "newest_map": map.as_ref().map_or(0, |map| map.epoch.0),
        "num_pgs": pgs,
        "objectstore": shared.store.kind(),
        "incarnation": shared.me.incarnation.to_string(),
    })
}

fn required_pg(call: &Call<'_>) -> Result<PgId, CommandFailure> {
    call.pg("pgid").ok_or_else(|| CommandFailure(Errno::EINVAL, "missing required parameter pgid".into()))
}

fn unknown_pg(pg: PgId) -> CommandFailure {
    CommandFailure(Errno::ENOENT, format!("i don't have pgid {pg}"))
}

fn query(cells: &[ShardCell], call: &Call<'_>) -> CommandResult {
    let pg = required_pg(call)?;
    let query =
        cells.iter().find_map(|cell| cell.with(|shard| shard.query(pg))).ok_or_else(|| unknown_pg(pg))?;
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
        "catching_up": query.catching_up.iter().map(|member| json!({
            "osd": member.osd.0,
            "stage": member.stage,
            "missing": member.missing,
            "backfill_position": member.backfill_position,
            "pushing": member.pushing,
            "unconfirmed": member.unconfirmed,
            "acked": member.acked.to_string(),
        })).collect::<Vec<_>>(),
    })
    .into())
}
