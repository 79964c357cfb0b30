//! Commands about the whole cluster: status, health, df, versions, the monitor itself, the cluster log.

use super::{CommandAnswer, CommandFailure, CommandOutcome, Context, unhandled};
use crate::logic::{LogLevel, MapState, Now};
use crate::pgview::PgSums;
use crate::text::{Align, Table, age, bytes, count, plural, stamp, stamp_z};
use nacre_types::ceph::nacre_version;
use nacre_types::command::Call;
use nacre_types::osdmap::flag;
use serde_json::{Map, Value, json};

impl MapState {
    pub(super) fn cluster_command(&mut self, call: &Call<'_>, ctx: &Context) -> CommandOutcome {
        match call.prefix() {
            "status" => Ok(self.status(ctx)),
            "df" => Ok(self.df(call.text("detail").is_some(), ctx)),
            "fsid" => {
                let fsid = self.committed.fsid;
                Ok(CommandAnswer::either(ctx, || json!({ "fsid": fsid.to_string() }), || format!("{fsid}\n")))
            }
            "version" => Ok(CommandAnswer::either(
                ctx,
                || json!({ "version": nacre_version() }),
                || format!("{}\n", nacre_version()),
            )),
            "mon stat" => Ok(self.mon_stat(ctx)),
            "mon dump" => self.mon_dump(call.int("epoch"), ctx),
            "quorum_status" => Ok(CommandAnswer::json(self.quorum_status(ctx))),
            "log" => {
                let text = call.texts("logtext").join(" ");
                self.log.append(ctx.now, &ctx.entity.to_string(), LogLevel::Info, text);
                Ok(CommandAnswer::default())
            }
            "log last" => Ok(self.log_last(call, ctx)),
            _ => unhandled(call),
        }
    }

    fn status(&self, ctx: &Context) -> CommandAnswer {
        let views = self.pg_views();
        let health = self.health_of(ctx.now, &views);
        let sums = self.pg_sums(&views);
        if ctx.is_json() {
            return CommandAnswer::json(self.status_json(ctx, &health, &sums));
        }
        let map = &self.committed;
        let mut out = format!("  cluster:\n    id:     {}\n    health: {}\n", map.fsid, health.status());
        for line in health.summaries(ctx.now) {
            out.push_str(&format!("            {line}\n"));
        }
        let uptime_s = ctx.now.wall_ns.saturating_sub(self.started_ns) / 1_000_000_000;
        let space = " ".repeat(self.services.name_width() - "mon".len() + 1);
        out.push_str(&format!(
            " \n  services:\n    mon:{space}1 daemons, quorum {} (age {})\n    osd:{space}{}\n",
            self.mon_name,
            age(uptime_s),
            self.osd_summary(ctx, &sums).replace("; epoch", "")
        ));
        let flags = operator_flags(map.flags);
        if !flags.is_empty() {
            out.push_str(&format!("        {space}flags {flags}\n"));
        }
        out.push_str(&self.services.lines());
        out.push_str(&self.status_data(&sums));
        out.push_str(&self.status_io());
        out.push_str(" \n");
        CommandAnswer::text(out)
    }

    fn status_data(&self, sums: &PgSums) -> String {
        let (raw, _) = self.raw_usage();
        let mut out = format!(
            " \n  data:\n    pools:   {} pools, {} pgs\n    objects: {} objects, {}\n    usage:   {} used, {} / {} avail\n    pgs:     ",
            self.committed.pools.len(),
            sums.pgs,
            count(sums.objects),
            bytes(sums.bytes),
            bytes(raw.used),
            bytes(raw.avail),
            bytes(raw.total),
        );
        let mut lines = Vec::new();
        let share = |part: usize| 100.0 * part as f64 / sums.pgs.max(1) as f64;
        if sums.unknown > 0 {
            lines.push(format!("{:.3}% pgs unknown", share(sums.unknown)));
        }
        if sums.inactive > 0 {
            lines.push(format!("{:.3}% pgs not active", share(sums.inactive)));
        }
        lines.extend(degraded_lines(sums));
        let width = sums.by_state.first().map_or(0, |(_, n)| n.to_string().len());
        lines.extend(sums.by_state.iter().map(|(state, n)| format!("{n:<width$} {state}")));
        out.push_str(&lines.join("\n             "));
        out.push('\n');
        out
    }

    fn status_io(&self) -> String {
        let io = self.total_io_rates();
        let mut out = String::new();
        let mut client = Vec::new();
        if io.read_bytes_s > 0 {
            client.push(format!("{}/s rd", bytes(io.read_bytes_s)));
        }
        if io.write_bytes_s > 0 {
            client.push(format!("{}/s wr", bytes(io.write_bytes_s)));
        }
        if io.reads_s > 0 || io.writes_s > 0 {
            client.push(format!("{} op/s rd, {} op/s wr", count(io.reads_s), count(io.writes_s)));
        }
        let recovers = io.recovered_objects_s > 0 || io.recovered_bytes_s > 0;
        if client.is_empty() && !recovers {
            return out;
        }
        out.push_str(" \n  io:\n");
        if !client.is_empty() {
            out.push_str(&format!("    client:   {}\n", client.join(", ")));
        }
        if recovers {
            out.push_str(&format!(
                "    recovery: {}/s, {} objects/s\n",
                bytes(io.recovered_bytes_s),
                count(io.recovered_objects_s)
            ));
        }
        out
    }

    fn status_json(&self, ctx: &Context, health: &crate::health::Health, sums: &PgSums) -> Value {
        let map = &self.committed;
        let (raw, _) = self.raw_usage();
        let uptime_s = ctx.now.wall_ns.saturating_sub(self.started_ns) / 1_000_000_000;
        let mut pgmap = Map::new();
        let states = sums.by_state.iter().map(|(name, n)| json!({ "state_name": name, "count": n }));
        pgmap.insert("pgs_by_state".into(), states.collect());
        pgmap.insert("num_pgs".into(), sums.pgs.into());
        pgmap.insert("num_pools".into(), map.pools.len().into());
        pgmap.insert("num_objects".into(), sums.objects.into());
        pgmap.insert("data_bytes".into(), sums.bytes.into());
        pgmap.insert("bytes_used".into(), raw.used.into());
        pgmap.insert("bytes_avail".into(), raw.avail.into());
        pgmap.insert("bytes_total".into(), raw.total.into());
        let share = |part: usize| part as f64 / sums.pgs.max(1) as f64;
        if sums.unknown > 0 {
            pgmap.insert("unknown_pgs_ratio".into(), share(sums.unknown).into());
        }
        if sums.inactive > 0 {
            pgmap.insert("inactive_pgs_ratio".into(), share(sums.inactive).into());
        }
        pgmap.extend(degraded_fields(sums));
        pgmap.extend(self.io_fields());
        json!({
            "fsid": map.fsid.to_string(),
            "health": health.json(false),
            "election_epoch": 1,
            "quorum": [0],
            "quorum_names": [self.mon_name],
            "quorum_age": uptime_s,
            "monmap": { "epoch": 1, "min_mon_release_name": "pacific", "num_mons": 1 },
            "osdmap": self.osd_stat_json(sums),
            "pgmap": pgmap,
            "fsmap": { "epoch": 1, "by_rank": [], "up:standby": 0 },
            // There is no manager; the map authority executes its commands.
            "mgrmap": { "available": false, "num_standbys": 0, "modules": [], "services": {} },
            "servicemap": self.services.json(),
            "progress_events": {},
        })
    }

    fn df(&self, detail: bool, ctx: &Context) -> CommandAnswer {
        let (raw, by_class) = self.raw_usage();
        if ctx.is_json() {
            let raw_fields = |u: &crate::usage::RawUsage| {
                json!({
                    "total_bytes": u.total,
                    "total_avail_bytes": u.avail,
                    "total_used_bytes": u.used,
                    "total_used_raw_bytes": u.used,
                    "total_used_raw_ratio": u.ratio(),
                })
            };
            let mut stats = raw_fields(&raw);
            stats["num_osds"] = self.committed.osds.len().into();
            stats["num_per_pool_osds"] = self.committed.osds.len().into();
            stats["num_per_pool_omap_osds"] = self.committed.osds.len().into();
            let classes: Map<String, Value> =
                by_class.iter().map(|(name, u)| (name.clone(), raw_fields(u))).collect();
            let pools: Vec<Value> =
                self.committed.pools.keys().map(|id| self.df_pool_json(*id, detail)).collect();
            return CommandAnswer::json(json!({ "stats": stats, "stats_by_class": classes, "pools": pools }));
        }
        use Align::{Left, Right};
        let mut table = Table::new(&[
            ("CLASS", Left, Left),
            ("SIZE", Right, Right),
            ("AVAIL", Right, Right),
            ("USED", Right, Right),
            ("RAW USED", Right, Right),
            ("%RAW USED", Right, Right),
        ]);
        let mut row = |name: &str, u: &crate::usage::RawUsage| {
            let used = bytes(u.used);
            table.row(vec![
                name.into(),
                bytes(u.total),
                bytes(u.avail),
                used.clone(),
                used,
                percent(u.ratio()),
            ]);
        };
        by_class.iter().for_each(|(name, usage)| row(name, usage));
        row("TOTAL", &raw);
        let text =
            format!("--- RAW STORAGE ---\n{} \n--- POOLS ---\n{}", table.render(), self.df_pools(detail));
        CommandAnswer::text(text)
    }

    fn df_pool_json(&self, id: nacre_types::ids::PoolId, detail: bool) -> Value {
        let pool = &self.committed.pools[&id];
        let usage = self.pool_usage(id, pool);
        let data = usage.stored - usage.stored_omap;
        let mut stats = Map::new();
        let mut put = |name: &str, value: Value| {
            stats.insert(name.to_owned(), value);
        };
        put("stored", usage.stored.into());
        if detail {
            put("stored_data", data.into());
            put("stored_omap", usage.stored_omap.into());
        }
        put("objects", usage.objects.into());
        put("kb_used", usage.used.div_ceil(1024).into());
        put("bytes_used", usage.used.into());
        if detail {
            put("data_bytes_used", usage.used.saturating_sub(usage.stored_omap).into());
            put("omap_bytes_used", usage.stored_omap.into());
        }
        put("percent_used", usage.percent.into());
        put("max_avail", usage.max_avail.into());
        if detail {
            let io = self.stats.pool_io_counters(id);
            put("quota_objects", pool.quota_max_objects.into());
            put("quota_bytes", pool.quota_max_bytes.into());
            put("dirty", usage.dirty.into());
            put("rd", io.reads.into());
            put("rd_bytes", io.read_bytes.into());
            put("wr", io.writes.into());
            put("wr_bytes", io.write_bytes.into());
            put("compress_bytes_used", usage.compressed_used.into());
            put("compress_under_bytes", usage.compressed_original.into());
            put("stored_raw", (usage.stored * u64::from(pool.size)).into());
            put("avail_raw", (usage.max_avail * u64::from(pool.size)).into());
        }
        json!({ "name": pool.name, "id": id.0, "stats": stats })
    }

    fn df_pools(&self, detail: bool) -> String {
        use Align::{Left, Right};
        let mut columns =
            vec![("POOL", Left, Left), ("ID", Right, Right), ("PGS", Right, Right), ("STORED", Right, Right)];
        let right = |names: &[&'static str]| names.iter().map(|n| (*n, Right, Right)).collect::<Vec<_>>();
        if detail {
            columns.extend(right(&["(DATA)", "(OMAP)"]));
        }
        columns.extend(right(&["OBJECTS", "USED"]));
        if detail {
            columns.extend(right(&["(DATA)", "(OMAP)"]));
        }
        columns.extend(right(&["%USED", "MAX AVAIL"]));
        if detail {
            columns.extend(right(&["QUOTA OBJECTS", "QUOTA BYTES", "DIRTY", "USED COMPR", "UNDER COMPR"]));
        }
        let mut table = Table::new(&columns);
        for (id, pool) in &self.committed.pools {
            let usage = self.pool_usage(*id, pool);
            let mut row =
                vec![pool.name.clone(), id.to_string(), pool.pg_num.to_string(), bytes(usage.stored)];
            if detail {
                row.extend([bytes(usage.stored - usage.stored_omap), bytes(usage.stored_omap)]);
            }
            row.extend([count(usage.objects), bytes(usage.used)]);
            if detail {
                row.extend([bytes(usage.used.saturating_sub(usage.stored_omap)), bytes(usage.stored_omap)]);
            }
            row.extend([percent(usage.percent), bytes(usage.max_avail)]);
            if detail {
                let limit = |value: u64, shown: fn(u64) -> String| {
                    if value == 0 { "N/A".into() } else { shown(value) }
                };
                let is_tier = pool.tiering.tier_of.is_some();
                row.push(limit(pool.quota_max_objects, count));
                row.push(limit(pool.quota_max_bytes, bytes));
                row.push(if is_tier { count(usage.dirty) } else { "N/A".into() });
                row.extend([bytes(usage.compressed_used), bytes(usage.compressed_original)]);
            }
            table.row(row);
        }
        table.render()
    }

    pub(super) fn mon_addr(&self) -> String {
        self.mon_addr.map_or_else(|| "-".to_owned(), |addr| addr.to_string())
    }

    fn mon_stat(&self, ctx: &Context) -> CommandAnswer {
        let name = &self.mon_name;
        CommandAnswer::either(
            ctx,
            || {
                json!({
                    "epoch": 1, "min_mon_release_name": "pacific", "num_mons": 1, "leader": name,
                    "quorum": [{ "rank": 0, "name": name }],
                })
            },
            || {
                format!(
                    "e1: 1 mons at {{{name}=[v2:{}/0]}} removed_ranks: {{}}, election epoch 1, leader 0 {name}, quorum 0 {name}\n",
                    self.mon_addr()
                )
            },
        )
    }

    fn monmap_json(&self) -> Value {
        let created = stamp_z(self.committed.created_ns);
        let features = [
            "kraken",
            "luminous",
            "mimic",
            "osdmap-prune",
            "nautilus",
            "octopus",
            "pacific",
            "elector-pinging",
        ];
        json!({
            "epoch": 1,
            "fsid": self.committed.fsid.to_string(),
            "modified": created,
            "created": created,
            "min_mon_release": 16,
            "min_mon_release_name": "pacific",
            "election_strategy": 1,
            "disallowed_leaders: ": "",
            "stretch_mode": false,
            "tiebreaker_mon": "",
            "removed_ranks: ": "",
            "features": { "persistent": features, "optional": [] },
            "mons": [{
                "rank": 0,
                "name": self.mon_name,
                "public_addrs": { "addrvec": [{ "type": "v2", "addr": self.mon_addr(), "nonce": 0 }] },
                "addr": format!("{}/0", self.mon_addr()),
                "public_addr": format!("{}/0", self.mon_addr()),
                "priority": 0,
                "weight": 0,
                "crush_location": "{}",
            }],
        })
    }

    fn mon_dump(&self, epoch: Option<i64>, ctx: &Context) -> CommandOutcome {
        // There is one monmap, which never changes; epoch 0 means the newest.
        if let Some(epoch) = epoch.filter(|epoch| !matches!(epoch, 0 | 1)) {
            return Err(CommandFailure::not_found(format!("there is no map for epoch {epoch}")));
        }
        let answer = CommandAnswer::either(
            ctx,
            || {
                let mut map = self.monmap_json();
                map["quorum"] = json!([0]);
                map
            },
            || {
                let created = stamp(self.committed.created_ns);
                format!(
                    "epoch 1\nfsid {}\nlast_changed {created}\ncreated {created}\nmin_mon_release 16 (pacific)\n\
                     election_strategy: 1\n0: [v2:{}/0] mon.{}\n",
                    self.committed.fsid,
                    self.mon_addr(),
                    self.mon_name
                )
            },
        );
        Ok(answer.with_status("dumped monmap epoch 1"))
    }

    fn quorum_status(&self, ctx: &Context) -> Value {
        self.quorum_status_at(ctx.now)
    }

    /// The output of `tell mon.a quorum_status`.
    pub fn quorum_status_at(&self, now: Now) -> Value {
        let uptime_s = now.wall_ns.saturating_sub(self.started_ns) / 1_000_000_000;
        let monmap = self.monmap_json();
        json!({
            "election_epoch": 1,
            "quorum": [0],
            "quorum_names": [self.mon_name],
            "quorum_leader_name": self.mon_name,
            "quorum_age": uptime_s,
            "features": { "quorum_con": "0", "quorum_mon": monmap["features"]["persistent"] },
            "monmap": monmap,
        })
    }

    fn log_last(&self, call: &Call<'_>, ctx: &Context) -> CommandAnswer {
        let wanted = call.int("num").map_or(20, |n| usize::try_from(n).unwrap_or(usize::MAX));
        let level = call.text("level").map_or(LogLevel::Info, LogLevel::parse);
        let lines = self.log.last(wanted, level, call.text("channel").unwrap_or("cluster"));
        let rank = |name: &str| match name.strip_prefix("mon.") {
            Some(_) => "mon.0".to_owned(),
            None => name.to_owned(),
        };
        CommandAnswer::either(
            ctx,
            || {
                let entry = |e: &&crate::logic::ClusterLogEntry| {
                    json!({
                        "name": e.name,
                        "rank": rank(&e.name),
                        "addrs": { "addrvec": [] },
                        "stamp": stamp(e.stamp_ns),
                        "seq": e.seq,
                        "channel": e.channel.as_str(),
                        "priority": e.level.tag(),
                        "message": e.text,
                    })
                };
                lines.iter().map(entry).collect()
            },
            || {
                let line = |e: &&crate::logic::ClusterLogEntry| {
                    format!(
                        "{} {} ({}) {} : {} {} {}\n",
                        stamp(e.stamp_ns),
                        e.name,
                        rank(&e.name),
                        e.seq,
                        e.channel.as_str(),
                        e.level.tag(),
                        e.text
                    )
                };
                lines.iter().map(line).collect()
            },
        )
    }
}

/// A ratio as `df` prints it: `0.03`, or `0` for zero.
pub(super) fn percent(ratio: f64) -> String {
    if ratio == 0.0 { "0".into() } else { format!("{:.2}", ratio * 100.0) }
}

/// `2/24 objects degraded (8.333%)` and so on.
pub(super) fn degraded_lines(sums: &PgSums) -> Vec<String> {
    let line = |part: u64, of: u64, word: &str| {
        let share = 100.0 * part as f64 / of.max(1) as f64;
        (part > 0).then(|| format!("{part}/{of} {} {word} ({share:.3}%)", plural(2, "object")))
    };
    [
        line(sums.degraded, sums.copies, "degraded"),
        line(sums.misplaced, sums.copies, "misplaced"),
        line(sums.unfound, sums.objects, "unfound"),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The same as JSON fields.
pub(super) fn degraded_fields(sums: &PgSums) -> Map<String, Value> {
    let mut fields = Map::new();
    for (word, part, of) in [
        ("degraded", sums.degraded, sums.copies),
        ("misplaced", sums.misplaced, sums.copies),
        ("unfound", sums.unfound, sums.objects),
    ] {
        if part > 0 {
            fields.insert(format!("{word}_objects"), part.into());
            fields.insert(format!("{word}_total"), of.into());
            fields.insert(format!("{word}_ratio"), (part as f64 / of.max(1) as f64).into());
        }
    }
    fields
}

/// The flags that `status` shows, which are those that operators set.
pub(super) fn operator_flags(flags: u32) -> String {
    const HIDDEN: u32 =
        flag::SORTBITWISE | flag::RECOVERY_DELETES | flag::PURGED_SNAPDIRS | flag::PGLOG_HARDLIMIT;
    let names = flag::NAMES.iter().filter(|(bit, _)| flags & !HIDDEN & bit != 0).map(|(_, name)| *name);
    names.collect::<Vec<_>>().join(",")
}
