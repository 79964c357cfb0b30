//! `pg …`: the state of PGs, as their primaries last reported it.

use super::cluster::{degraded_fields, degraded_lines};
use super::{CommandAnswer, CommandFailure, CommandOutcome, Context, unhandled};
use crate::logic::MapState;
use crate::pgview::PgView;
use crate::text::{Align, Table, bracketed_list, bytes, stamp};
use nacre_types::command::Call;
use nacre_types::ids::{OsdId, PoolId};
use nacre_types::placement::PgMapper;
use nacre_types::stats::{OsdStats, pg_state};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

const OMAP_NOTE: &str = "\n* NOTE: Omap statistics are gathered during deep scrub and may be inaccurate soon afterwards depending on \
utilization. See http://docs.ceph.com/en/latest/dev/placement-group/#omap-statistics for further details.\n";

impl MapState {
    pub(super) fn pg_command(&mut self, call: &Call<'_>, ctx: &Context) -> CommandOutcome {
        match call.prefix() {
            "pg stat" => Ok(self.pg_stat(ctx)),
            "pg dump" => Ok(self.pg_dump(&call.texts("dumpcontents"), ctx)),
            "pg map" => self.pg_map(call, ctx),
            "pg ls" | "pg ls-by-pool" | "pg ls-by-primary" | "pg ls-by-osd" => self.pg_ls(call, ctx),
            "pg dump_stuck" => Ok(self.pg_dump_stuck(call, ctx)),
            _ => unhandled(call),
        }
    }

    fn pg_stat(&self, ctx: &Context) -> CommandAnswer {
        let sums = self.pg_sums(&self.pg_views());
        let (raw, _) = self.raw_usage();
        CommandAnswer::either(
            ctx,
            || {
                let states = sums.by_state.iter().map(|(name, num)| json!({ "name": name, "num": num }));
                let mut summary = Map::new();
                summary.insert("num_pg_by_state".into(), states.collect());
                summary.insert("num_pgs".into(), sums.pgs.into());
                summary.insert("num_bytes".into(), sums.bytes.into());
                summary.insert("total_bytes".into(), raw.total.into());
                summary.insert("total_avail_bytes".into(), raw.avail.into());
                summary.insert("total_used_bytes".into(), raw.used.into());
                summary.insert("total_used_raw_bytes".into(), raw.used.into());
                summary.extend(degraded_fields(&sums));
                summary.extend(self.io_fields());
                json!({ "pg_ready": true, "pg_summary": summary })
            },
            || {
                let states: Vec<String> =
                    sums.by_state.iter().map(|(name, n)| format!("{n} {name}")).collect();
                let mut parts = vec![format!(
                    "{} pgs: {}; {} data, {} used, {} / {} avail",
                    sums.pgs,
                    states.join(", "),
                    bytes(sums.bytes),
                    bytes(raw.used),
                    bytes(raw.avail),
                    bytes(raw.total)
                )];
                parts.extend(self.io_lines());
                parts.extend(degraded_lines(&sums));
                format!("{}\n", parts.join("; "))
            },
        )
    }

    fn pg_map(&self, call: &Call<'_>, ctx: &Context) -> CommandOutcome {
        let map = &self.committed;
        let pg = call.pg("pgid").ok_or_else(|| CommandFailure::invalid("invalid pgid"))?;
        let pool = map
            .pools
            .get(&pg.pool)
            .ok_or_else(|| CommandFailure::not_found(format!("pg '{pg}' does not exist")))?;
        let actual = pool.pg_of_hash(pg.pool, pg.seed);
        let up: Vec<u32> = PgMapper::new(map).up(actual).iter().map(|o| o.0).collect();
        let acting: Vec<u32> =
            map.membership(actual).map_or_else(|| up.clone(), |m| m.acting().iter().map(|o| o.0).collect());
        Ok(CommandAnswer::either(
            ctx,
            || {
                json!({
                    "epoch": map.epoch.0, "raw_pgid": pg.to_string(), "pgid": actual.to_string(), "up": up,
                    "acting": acting,
                })
            },
            || {
                format!(
                    "osdmap e{} pg {pg} ({actual}) -> up {} acting {}\n",
                    map.epoch,
                    bracketed_list(&up),
                    bracketed_list(&acting)
                )
            },
        ))
    }

    fn pg_dump(&self, what: &[&str], ctx: &Context) -> CommandAnswer {
        let all = what.is_empty() || what.contains(&"all");
        let shown = if what.is_empty() { "all".to_owned() } else { what.join(",") };
        let views = self.pg_views();
        let answer = if ctx.is_json() {
            self.pg_dump_json(what, all, &views)
        } else {
            self.pg_dump_text(what, all, &views)
        };
        answer.with_status(format!("dumped {shown}"))
    }

    fn pg_dump_json(&self, what: &[&str], all: bool, views: &[PgView]) -> CommandAnswer {
        let has = |word: &str| what.contains(&word);
        let pgs = || views.iter().map(pg_json).collect::<Vec<_>>();
        let mut out = Map::new();
        out.insert("pg_ready".into(), true.into());
        if all || has("summary") || has("sum") || has("delta") {
            let mut map = Map::new();
            map.insert("version".into(), self.stats.version.into());
            map.insert("stamp".into(), stamp(self.stats.stamp_ns).into());
            map.insert("last_osdmap_epoch".into(), 0.into());
            map.insert("last_pg_scan".into(), 0.into());
            map.insert("pg_stats_sum".into(), sum_json(views));
            map.insert("osd_stats_sum".into(), self.osd_stats_sum());
            let mut delta = sum_json(&[]);
            delta["stamp_delta"] = "0.000000".into();
            map.insert("pg_stats_delta".into(), delta);
            if all {
                map.insert("pg_stats".into(), pgs().into());
                map.insert("pool_stats".into(), self.pool_stats_json(views));
                map.insert("osd_stats".into(), self.osd_stats_json());
                map.insert("pool_statfs".into(), json!([]));
            }
            out.insert("pg_map".into(), Value::Object(map));
        } else {
            if has("pools") {
                out.insert("pool_stats".into(), self.pool_stats_json(views));
            }
            if has("osds") {
                out.insert("osd_stats".into(), self.osd_stats_json());
                out.insert("pool_statfs".into(), json!([]));
            }
            if has("pgs") {
                out.insert("pg_stats".into(), pgs().into());
            } else if has("pgs_brief") {
                out.insert("pg_stats".into(), views.iter().map(brief_json).collect());
            }
        }
        CommandAnswer::json(Value::Object(out))
    }

    fn pg_dump_text(&self, what: &[&str], all: bool, views: &[PgView]) -> CommandAnswer {
        let has = |word: &str| what.contains(&word);
        let mut out = String::new();
        let mut noted = false;
        if all || has("summary") || has("sum") {
            out.push_str(&format!(
                "version {}\nstamp {}\nlast_osdmap_epoch 0\nlast_pg_scan 0\n",
                self.stats.version,
                stamp(self.stats.stamp_ns)
            ));
        }
        if all || has("pgs") {
            out.push_str(&pg_table(views));
            noted = true;
        } else if has("pgs_brief") {
            out.push_str(&brief_table(views));
        }
        if all {
            out.push('\n');
        }
        if all || has("pools") {
            out.push_str(&self.pool_table(views));
            noted = true;
        }
        if all {
            out.push('\n');
        }
        if all || has("summary") || has("sum") {
            out.push_str(&sums_table("PG_STAT", &[("sum".to_owned(), views.iter().collect())]));
            noted = true;
        }
        if all || has("osds") {
            out.push_str(&self.osd_table());
        } else if has("summary") || has("sum") {
            out.push_str(&self.osd_sum_table());
        }
        if noted {
            out.push_str(OMAP_NOTE);
        }
        CommandAnswer::text(out)
    }

    fn pool_table(&self, views: &[PgView]) -> String {
        let mut groups: BTreeMap<PoolId, Vec<&PgView>> = BTreeMap::new();
        self.committed.pools.keys().for_each(|id| {
            groups.insert(*id, Vec::new());
        });
        views.iter().for_each(|view| groups.entry(view.pg.pool).or_default().push(view));
        let rows: Vec<(String, Vec<&PgView>)> =
            groups.into_iter().rev().map(|(id, v)| (id.to_string(), v)).collect();
        sums_table("POOLID", &rows)
    }

    fn pool_stats_json(&self, views: &[PgView]) -> Value {
        let entry = |id: &PoolId| {
            let of_pool: Vec<PgView> = views.iter().filter(|v| v.pg.pool == *id).cloned().collect();
            let mut sums = sum_json(&of_pool);
            let compression = self.compression(*id);
            let stored = &mut sums["store_stats"];
            stored["data_compressed"] = compression.compressed_bytes.into();
            stored["data_compressed_allocated"] = compression.allocated_bytes.into();
            stored["data_compressed_original"] = compression.original_bytes.into();
            let mut entry = Map::new();
            entry.insert("poolid".into(), id.0.into());
            entry.insert("num_pg".into(), of_pool.len().into());
            if let Some(fields) = sums.as_object_mut() {
                entry.append(fields);
            }
            Value::Object(entry)
        };
        self.committed.pools.keys().rev().map(entry).collect()
    }

    fn osd_stats_json(&self) -> Value {
        let pgs = self.pgs_per_osd();
        let entry = |(osd, stats): (&OsdId, &OsdStats)| {
            let mut fields = Map::new();
            fields.insert("osd".into(), osd.0.into());
            let up_from = self.committed.osds.get(osd).map_or(0, |info| info.up_from.0);
            fields.extend(osd_stats_fields(stats, pgs.get(osd).copied().unwrap_or(0), up_from, 1));
            Value::Object(fields)
        };
        self.stats.osds.iter().rev().map(entry).collect()
    }

    fn osd_stats_sum(&self) -> Value {
        let mut sum = OsdStats::default();
        for stats in self.stats.osds.values() {
            sum.total_bytes += stats.total_bytes;
            sum.available_bytes += stats.available_bytes;
            sum.data_bytes += stats.data_bytes;
            sum.omap_bytes += stats.omap_bytes;
            sum.meta_bytes += stats.meta_bytes;
        }
        let pgs = self.pgs_per_osd().values().sum();
        Value::Object(osd_stats_fields(&sum, pgs, 0, self.stats.osds.len()))
    }

    fn osd_table(&self) -> String {
        use Align::{Left, Right};
        let mut table = Table::new(&[
            ("OSD_STAT", Left, Left),
            ("USED", Left, Right),
            ("AVAIL", Left, Right),
            ("USED_RAW", Left, Right),
            ("TOTAL", Left, Right),
            ("HB_PEERS", Left, Right),
            ("PG_SUM", Left, Right),
            ("PRIMARY_PG_SUM", Left, Right),
        ]);
        let pgs = self.pgs_per_osd();
        let mut primaries: BTreeMap<OsdId, u64> = BTreeMap::new();
        for view in self.pg_views() {
            if let Some(primary) = view.acting.first() {
                *primaries.entry(*primary).or_default() += 1;
            }
        }
        for (osd, s) in self.stats.osds.iter().rev() {
            let used = bytes(s.total_bytes.saturating_sub(s.available_bytes));
            table.row(vec![
                osd.0.to_string(),
                used.clone(),
                bytes(s.available_bytes),
                used,
                bytes(s.total_bytes),
                bracketed_list(s.heartbeat_peers.iter().map(|o| o.0)),
                pgs.get(osd).copied().unwrap_or(0).to_string(),
                primaries.get(osd).copied().unwrap_or(0).to_string(),
            ]);
        }
        let mut sum = self.osd_sum_cells();
        sum.resize(8, String::new());
        table.row(sum);
        table.render()
    }

    fn osd_sum_cells(&self) -> Vec<String> {
        let total: u64 = self.stats.osds.values().map(|s| s.total_bytes).sum();
        let avail: u64 = self.stats.osds.values().map(|s| s.available_bytes).sum();
        let used = bytes(total.saturating_sub(avail));
        vec!["sum".into(), used.clone(), bytes(avail), used, bytes(total)]
    }

    fn osd_sum_table(&self) -> String {
        let columns =
            ["OSD_STAT", "USED", "AVAIL", "USED_RAW", "TOTAL"].map(|n| (n, Align::Left, Align::Right));
        let mut table = Table::new(&columns);
        table.row(self.osd_sum_cells());
        table.render()
    }

    fn pg_ls(&self, call: &Call<'_>, ctx: &Context) -> CommandOutcome {
        let states = call.texts("states");
        let mut wanted = 0_u64;
        for state in &states {
            let bit = pg_state::NAMES.iter().find(|(_, name)| name == state).map(|(bit, _)| *bit);
            wanted |=
                bit.ok_or_else(|| CommandFailure::invalid(format!("{state} is not a valid pg state")))?;
        }
        let pool = match call.prefix() {
            "pg ls-by-pool" => {
                let name = call.required_text("poolstr");
                let found = self.committed.pool_by_name(name).map(|(id, _)| id);
                Some(found.ok_or_else(|| CommandFailure::not_found(format!("pool {name} does not exist")))?)
            }
            _ => call.int("pool").map(PoolId),
        };
        if let Some(id) = pool.filter(|id| !self.committed.pools.contains_key(id)) {
            return Err(CommandFailure::not_found(format!("pool {id} does not exist")));
        }
        let osd = match call.prefix() {
            "pg ls-by-osd" | "pg ls-by-primary" => Some(self.existing_osd_of(call, "osd")?),
            _ => None,
        };
        let by_primary = call.prefix() == "pg ls-by-primary";
        let picked = |view: &PgView| {
            pool.is_none_or(|id| view.pg.pool == id)
                && (states.is_empty() || view.has_state(wanted))
                && osd.is_none_or(|osd| match by_primary {
                    true => view.acting.first() == Some(&osd),
                    false => view.acting.contains(&osd) || view.up.contains(&osd),
                })
        };
        let views: Vec<PgView> = self.pg_views().into_iter().filter(|view| picked(view)).collect();
        Ok(CommandAnswer::either(
            ctx,
            || json!({ "pg_ready": true, "pg_stats": views.iter().map(pg_json).collect::<Vec<_>>() }),
            || {
                let mut text = self.ls_table(&views, ctx);
                text.push_str(OMAP_NOTE);
                text
            },
        ))
    }

    fn ls_table(&self, views: &[PgView], ctx: &Context) -> String {
        let names = [
            "PG",
            "OBJECTS",
            "DEGRADED",
            "MISPLACED",
            "UNFOUND",
            "BYTES",
            "OMAP_BYTES*",
            "OMAP_KEYS*",
            "LOG",
            "STATE",
            "SINCE",
            "VERSION",
            "REPORTED",
            "UP",
            "ACTING",
            "SCRUB_STAMP",
            "DEEP_SCRUB_STAMP",
        ];
        let columns: Vec<_> = names
            .iter()
            .map(|n| {
                (
                    *n,
                    Align::Left,
                    if matches!(*n, "PG" | "SCRUB_STAMP" | "DEEP_SCRUB_STAMP") {
                        Align::Left
                    } else {
                        Align::Right
                    },
                )
            })
            .collect();
        let mut table = Table::new(&columns);
        for view in views {
            let s = &view.stats;
            let osds = |osds: &[OsdId]| {
                format!(
                    "{}p{}",
                    bracketed_list(osds.iter().map(|o| o.0)),
                    osds.first().map_or(-1, |o| i64::from(o.0))
                )
            };
            let since = ctx.now.wall_ns.saturating_sub(s.last_change_ns.max(self.started_ns)) / 1_000_000_000;
            table.row(vec![
                view.pg.to_string(),
                s.sums.objects.to_string(),
                s.degraded.to_string(),
                s.misplaced.to_string(),
                s.unfound.to_string(),
                s.sums.bytes.to_string(),
                s.sums.omap_bytes.to_string(),
                s.sums.omap_keys.to_string(),
                s.log_size.to_string(),
                view.state_text(),
                crate::text::age(since),
                s.last_update.to_string(),
                format!("{}:{}", s.reported_epoch, s.reported_seq),
                osds(&view.up),
                osds(&view.acting),
                stamp(0),
                stamp(0),
            ]);
        }
        table.render()
    }

    fn pg_dump_stuck(&self, call: &Call<'_>, ctx: &Context) -> CommandAnswer {
        let kinds = call.texts("stuckops");
        let threshold = call.int("threshold").map_or(self.tuning.pg_stuck_threshold_s, |t| t.unsigned_abs());
        let stuck_as = |view: &PgView, kind: &str| match kind {
            "inactive" => !view.has_state(pg_state::ACTIVE),
            "unclean" => !view.has_state(pg_state::CLEAN),
            "stale" => view.has_state(pg_state::STALE),
            "undersized" => view.has_state(pg_state::UNDERSIZED),
            "degraded" => view.has_state(pg_state::DEGRADED),
            _ => false,
        };
        let all = ["inactive", "unclean", "stale", "undersized", "degraded"];
        let kinds: &[&str] = if kinds.is_empty() { &all } else { &kinds };
        let views: Vec<PgView> = self
            .pg_views()
            .into_iter()
            .filter(|view| {
                self.stuck_s(ctx.now, view) >= threshold && kinds.iter().any(|k| stuck_as(view, k))
            })
            .collect();
        let answer = CommandAnswer::either(
            ctx,
            || json!({ "pg_ready": true, "stuck_pg_stats": views.iter().map(pg_json).collect::<Vec<_>>() }),
            || if views.is_empty() { String::new() } else { brief_table(&views) },
        );
        answer.with_status("ok")
    }
}

fn primary(osds: &[OsdId]) -> i64 {
    osds.first().map_or(-1, |osd| i64::from(osd.0))
}

fn ids(osds: &[OsdId]) -> Vec<u32> {
    osds.iter().map(|osd| osd.0).collect()
}

fn brief_table(views: &[PgView]) -> String {
    let names = ["PG_STAT", "STATE", "UP", "UP_PRIMARY", "ACTING", "ACTING_PRIMARY"];
    let columns = names.map(|n| (n, Align::Left, if n == "PG_STAT" { Align::Left } else { Align::Right }));
    let mut table = Table::new(&columns);
    for view in views.iter().rev() {
        table.row(vec![
            view.pg.to_string(),
            view.state_text(),
            bracketed_list(ids(&view.up)),
            primary(&view.up).to_string(),
            bracketed_list(ids(&view.acting)),
            primary(&view.acting).to_string(),
        ]);
    }
    table.render()
}

fn brief_json(view: &PgView) -> Value {
    json!({
        "pgid": view.pg.to_string(),
        "state": view.state_text(),
        "up": ids(&view.up),
        "acting": ids(&view.acting),
        "up_primary": primary(&view.up),
        "acting_primary": primary(&view.acting),
    })
}

fn pg_table(views: &[PgView]) -> String {
    let names = [
        "PG_STAT",
        "OBJECTS",
        "MISSING_ON_PRIMARY",
        "DEGRADED",
        "MISPLACED",
        "UNFOUND",
        "BYTES",
        "OMAP_BYTES*",
        "OMAP_KEYS*",
        "LOG",
        "DISK_LOG",
        "STATE",
        "STATE_STAMP",
        "VERSION",
        "REPORTED",
        "UP",
        "UP_PRIMARY",
        "ACTING",
        "ACTING_PRIMARY",
        "LAST_SCRUB",
        "SCRUB_STAMP",
        "LAST_DEEP_SCRUB",
        "DEEP_SCRUB_STAMP",
        "SNAPTRIMQ_LEN",
    ];
    let columns: Vec<_> = names
        .iter()
        .map(|n| (*n, Align::Left, if *n == "PG_STAT" { Align::Left } else { Align::Right }))
        .collect();
    let mut table = Table::new(&columns);
    for view in views.iter().rev() {
        let s = &view.stats;
        table.row(vec![
            view.pg.to_string(),
            s.sums.objects.to_string(),
            "0".into(),
            s.degraded.to_string(),
            s.misplaced.to_string(),
            s.unfound.to_string(),
            s.sums.bytes.to_string(),
            s.sums.omap_bytes.to_string(),
            s.sums.omap_keys.to_string(),
            s.log_size.to_string(),
            s.log_size.to_string(),
            view.state_text(),
            stamp(s.last_change_ns),
            s.last_update.to_string(),
            format!("{}:{}", s.reported_epoch, s.reported_seq),
            bracketed_list(ids(&view.up)),
            primary(&view.up).to_string(),
            bracketed_list(ids(&view.acting)),
            primary(&view.acting).to_string(),
            "0'0".into(),
            stamp(0),
            "0'0".into(),
            stamp(0),
            "0".into(),
        ]);
    }
    table.render()
}

/// Sums per group of PGs, one line each.
fn sums_table(first: &'static str, groups: &[(String, Vec<&PgView>)]) -> String {
    let mut columns = vec![(first, Align::Left, Align::Left)];
    for name in [
        "OBJECTS",
        "MISSING_ON_PRIMARY",
        "DEGRADED",
        "MISPLACED",
        "UNFOUND",
        "BYTES",
        "OMAP_BYTES*",
        "OMAP_KEYS*",
        "LOG",
        "DISK_LOG",
    ] {
        columns.push((name, Align::Left, Align::Right));
    }
    let mut table = Table::new(&columns);
    for (name, views) in groups {
        let sum = |of: fn(&PgView) -> u64| views.iter().map(|v| of(v)).sum::<u64>().to_string();
        table.row(vec![
            name.clone(),
            sum(|v| v.stats.sums.objects),
            "0".into(),
            sum(|v| v.stats.degraded),
            sum(|v| v.stats.misplaced),
            sum(|v| v.stats.unfound),
            sum(|v| v.stats.sums.bytes),
            sum(|v| v.stats.sums.omap_bytes),
            sum(|v| v.stats.sums.omap_keys),
            sum(|v| v.stats.log_size),
            sum(|v| v.stats.log_size),
        ]);
    }
    table.render()
}

/// `stat_sum` and the fields beside it, over some PGs.
fn sum_json(views: &[PgView]) -> Value {
    let sum = |of: fn(&PgView) -> u64| views.iter().map(of).sum::<u64>();
    json!({
        "stat_sum": stat_sum(views),
        "store_stats": store_stats(sum(|v| v.stats.stored_bytes)),
        "log_size": sum(|v| v.stats.log_size),
        "ondisk_log_size": sum(|v| v.stats.log_size),
        "up": sum(|v| v.up.len() as u64),
        "acting": sum(|v| v.acting.len() as u64),
        "num_store_stats": 0,
    })
}

fn store_stats(stored: u64) -> Value {
    json!({
        "total": 0, "available": 0, "internally_reserved": 0, "allocated": stored, "data_stored": stored,
        "data_compressed": 0, "data_compressed_allocated": 0, "data_compressed_original": 0, "omap_allocated": 0,
        "internal_metadata": 0,
    })
}

fn stat_sum(views: &[PgView]) -> Value {
    let sum = |of: fn(&PgView) -> u64| -> Value { views.iter().map(of).sum::<u64>().into() };
    let mut fields = Map::new();
    let mut put = |name: &str, value: Value| {
        fields.insert(name.to_owned(), value);
    };
    put("num_bytes", sum(|v| v.stats.sums.bytes));
    put("num_objects", sum(|v| v.stats.sums.objects));
    put("num_object_clones", sum(|v| v.stats.sums.clones));
    put("num_object_copies", sum(|v| v.stats.sums.objects * v.acting.len().max(v.up.len()) as u64));
    put("num_objects_missing_on_primary", 0.into());
    put("num_objects_missing", 0.into());
    put("num_objects_degraded", sum(|v| v.stats.degraded));
    put("num_objects_misplaced", sum(|v| v.stats.misplaced));
    put("num_objects_unfound", sum(|v| v.stats.unfound));
    put("num_objects_dirty", sum(|v| v.stats.sums.dirty));
    put("num_whiteouts", sum(|v| v.stats.sums.whiteouts));
    put("num_read", sum(|v| v.stats.io.reads));
    put("num_read_kb", sum(|v| v.stats.io.read_bytes / 1024));
    put("num_write", sum(|v| v.stats.io.writes));
    put("num_write_kb", sum(|v| v.stats.io.write_bytes / 1024));
    for name in ["num_scrub_errors", "num_shallow_scrub_errors", "num_deep_scrub_errors"] {
        put(name, 0.into());
    }
    put("num_objects_recovered", sum(|v| v.stats.io.recovered_objects));
    put("num_bytes_recovered", sum(|v| v.stats.io.recovered_bytes));
    put("num_keys_recovered", 0.into());
    put("num_objects_omap", sum(|v| v.stats.sums.omap_objects));
    for name in [
        "num_objects_hit_set_archive",
        "num_bytes_hit_set_archive",
        "num_flush",
        "num_flush_kb",
        "num_evict",
        "num_evict_kb",
        "num_promote",
        "num_flush_mode_high",
        "num_flush_mode_low",
        "num_evict_mode_some",
        "num_evict_mode_full",
        "num_objects_pinned",
        "num_legacy_snapsets",
        "num_large_omap_objects",
        "num_objects_manifest",
    ] {
        put(name, 0.into());
    }
    put("num_omap_bytes", sum(|v| v.stats.sums.omap_bytes));
    put("num_omap_keys", sum(|v| v.stats.sums.omap_keys));
    put("num_objects_repaired", 0.into());
    Value::Object(fields)
}

fn pg_json(view: &PgView) -> Value {
    let s = &view.stats;
    let mut fields = Map::new();
    let mut put = |name: &str, value: Value| {
        fields.insert(name.to_owned(), value);
    };
    put("pgid", view.pg.to_string().into());
    put("version", s.last_update.to_string().into());
    put("reported_seq", s.reported_seq.into());
    put("reported_epoch", s.reported_epoch.0.into());
    put("state", view.state_text().into());
    let (change, active, clean) = (stamp(s.last_change_ns), stamp(s.last_active_ns), stamp(s.last_clean_ns));
    put("last_fresh", change.clone().into());
    put("last_change", change.clone().into());
    put("last_active", active.clone().into());
    put("last_peered", active.clone().into());
    put("last_clean", clean.clone().into());
    put("last_became_active", active.clone().into());
    put("last_became_peered", active.clone().into());
    put("last_unstale", change.into());
    put("last_undegraded", clean.clone().into());
    put("last_fullsized", clean.into());
    put("mapping_epoch", s.interval.0.into());
    put("log_start", s.log_tail.to_string().into());
    put("ondisk_log_start", s.log_tail.to_string().into());
    put("created", 0.into());
    put("last_epoch_clean", 0.into());
    put("parent", "0.0".into());
    put("parent_split_bits", 0.into());
    put("last_scrub", "0'0".into());
    put("last_scrub_stamp", stamp(0).into());
    put("last_deep_scrub", "0'0".into());
    put("last_deep_scrub_stamp", stamp(0).into());
    put("last_clean_scrub_stamp", stamp(0).into());
    put("log_size", s.log_size.into());
    put("ondisk_log_size", s.log_size.into());
    put("stats_invalid", (!view.reported).into());
    put("dirty_stats_invalid", (!view.reported || !s.sums_complete).into());
    for name in [
        "omap_stats_invalid",
        "hitset_stats_invalid",
        "hitset_bytes_stats_invalid",
        "pin_stats_invalid",
        "manifest_stats_invalid",
    ] {
        put(name, false.into());
    }
    put("snaptrimq_len", 0.into());
    put("stat_sum", stat_sum(std::slice::from_ref(view)));
    put("up", json!(ids(&view.up)));
    put("acting", json!(ids(&view.acting)));
    for name in ["avail_no_missing", "object_location_counts", "blocked_by"] {
        put(name, json!([]));
    }
    put("up_primary", primary(&view.up).into());
    put("acting_primary", primary(&view.acting).into());
    put("purged_snaps", json!([]));
    Value::Object(fields)
}

fn osd_stats_fields(s: &OsdStats, pgs: u64, up_from: u32, osds: usize) -> Map<String, Value> {
    let kb = |bytes: u64| Value::from(bytes / 1024);
    let used = s.total_bytes.saturating_sub(s.available_bytes);
    let mut statfs = store_stats(s.data_bytes);
    statfs["total"] = s.total_bytes.into();
    statfs["available"] = s.available_bytes.into();
    let fields = json!({
        "up_from": up_from,
        "seq": 0,
        "num_pgs": pgs,
        "num_osds": osds,
        "num_per_pool_osds": osds,
        "num_per_pool_omap_osds": osds,
        "kb": kb(s.total_bytes),
        "kb_used": kb(used),
        "kb_used_data": kb(s.data_bytes),
        "kb_used_omap": kb(s.omap_bytes),
        "kb_used_meta": kb(s.meta_bytes),
        "kb_avail": kb(s.available_bytes),
        "statfs": statfs,
        "hb_peers": ids(&s.heartbeat_peers),
        "snap_trim_queue_len": 0,
        "num_snap_trimming": 0,
        "num_shards_repaired": 0,
        "op_queue_age_hist": { "histogram": [], "upper_bound": 1 },
        "perf_stat": {
            "commit_latency_ms": s.commit_latency_ms,
            "apply_latency_ms": s.apply_latency_ms,
            "commit_latency_ns": u64::from(s.commit_latency_ms) * 1_000_000,
            "apply_latency_ns": u64::from(s.apply_latency_ms) * 1_000_000,
        },
        "alerts": s.health.iter().map(|(code, _)| code.clone()).collect::<Vec<_>>(),
        "network_ping_times": [],
    });
    match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}
