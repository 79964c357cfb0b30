//! `osd pool …` commands that show pools, and the formatting of pools in other commands' output.

use super::cluster::{degraded_fields, degraded_lines};
use super::{CommandAnswer, CommandFailure, CommandOutcome, Context, unhandled};
use crate::logic::{MapState, PoolIoRates};
use crate::text::{bytes, count, stamp};
use nacre_types::command::Call;
use nacre_types::ids::{Epoch, PoolId};
use nacre_types::pool::{CacheMode, HitSetKind, Pool, PoolKind, flag};
use serde_json::{Map, Value, json};

impl MapState {
    pub(super) fn pool_show(&self, call: &Call<'_>, ctx: &Context) -> CommandOutcome {
        let pools = &self.committed.pools;
        match call.prefix() {
            "osd pool ls" if call.text("detail").is_some() => Ok(CommandAnswer::either(
                ctx,
                || pools.iter().map(|(id, pool)| pool_json(*id, pool, "pool_id")).collect(),
                || pools.iter().map(|(id, pool)| pool_line(*id, pool)).chain(["\n".to_owned()]).collect(),
            )),
            "osd pool ls" => Ok(CommandAnswer::either(
                ctx,
                || pools.values().map(|pool| pool.name.as_str()).collect(),
                || pools.values().map(|pool| format!("{}\n", pool.name)).collect(),
            )),
            "osd lspools" => Ok(CommandAnswer::either(
                ctx,
                || pools.iter().map(|(id, pool)| json!({ "poolnum": id.0, "poolname": pool.name })).collect(),
                || pools.iter().map(|(id, pool)| format!("{id} {}\n", pool.name)).collect(),
            )),
            "osd pool get" => self.pool_get(call.required_text("pool"), call.required_text("var"), ctx),
            "osd pool get-quota" => self.pool_get_quota(call.required_text("pool"), ctx),
            "osd pool application get" => self.application_get(call),
            "osd pool stats" => self.pool_stats(call.text("pool_name"), ctx),
            _ => unhandled(call),
        }
    }

    /// The durable pool `name`.
    pub(super) fn committed_pool(&self, name: &str) -> Result<(PoolId, &Pool), CommandFailure> {
        let found = self.committed.pool_by_name(name).map(|(id, pool)| (id, &**pool));
        found.ok_or_else(|| CommandFailure::not_found(format!("unrecognized pool '{name}'")))
    }

    fn pool_get_quota(&self, name: &str, ctx: &Context) -> CommandOutcome {
        let (id, pool) = self.committed_pool(name)?;
        let sums = self.pool_sums(id);
        Ok(CommandAnswer::either(
            ctx,
            || {
                json!({
                    "pool_name": name,
                    "pool_id": id.0,
                    "quota_max_objects": pool.quota_max_objects,
                    "current_num_objects": sums.objects,
                    "quota_max_bytes": pool.quota_max_bytes,
                    "current_num_bytes": sums.bytes,
                })
            },
            || {
                let objects = match pool.quota_max_objects {
                    0 => "N/A".to_owned(),
                    n => format!("{} objects  (current num objects: {} objects)", count(n), sums.objects),
                };
                let space = match pool.quota_max_bytes {
                    0 => "N/A".to_owned(),
                    n => format!("{}  (current num bytes: {} bytes)", bytes(n), sums.bytes),
                };
                format!("quotas for pool '{name}':\n  max objects: {objects}\n  max bytes  : {space}\n")
            },
        ))
    }

    fn application_get(&self, call: &Call<'_>) -> CommandOutcome {
        let Some(name) = call.text("pool") else {
            let all = self.committed.pools.values().map(|pool| (pool.name.clone(), json!(pool.applications)));
            return Ok(CommandAnswer::json(Value::Object(all.collect())));
        };
        let (_, pool) = self.committed_pool(name)?;
        let Some(app) = call.text("app") else { return Ok(CommandAnswer::json(json!(pool.applications))) };
        let keys = pool
            .applications
            .get(app)
            .ok_or_else(|| CommandFailure::not_found(format!("pool '{name}' has no application '{app}'")))?;
        let Some(key) = call.text("key") else { return Ok(CommandAnswer::json(json!(keys))) };
        let value = keys.get(key).ok_or_else(|| {
            CommandFailure::not_found(format!(
                "application '{app}' on pool '{name}' does not have key '{key}'"
            ))
        })?;
        Ok(CommandAnswer::text(format!("{value}\n")))
    }

    fn pool_stats(&self, name: Option<&str>, ctx: &Context) -> CommandOutcome {
        let wanted = name.map(|name| self.committed_pool(name)).transpose()?.map(|(id, _)| id);
        let views = self.pg_views();
        let rates = self.stats.io_rates();
        let pools = self.committed.pools.iter().filter(|(id, _)| wanted.is_none_or(|w| w == **id));
        let entries = pools.map(|(id, pool)| {
            let of_pool: Vec<_> = views.iter().filter(|v| v.pg.pool == *id).cloned().collect();
            (*id, pool, self.pg_sums(&of_pool), rates.get(id).copied().unwrap_or_default())
        });
        if ctx.is_json() {
            let entries = entries.map(|(id, pool, sums, io)| {
                json!({
                    "pool_name": pool.name,
                    "pool_id": id.0,
                    "recovery": degraded_fields(&sums),
                    "recovery_rate": recovery_fields(&io),
                    "client_io_rate": client_fields(&io),
                })
            });
            return Ok(CommandAnswer::json(entries.collect()));
        }
        let mut out = String::new();
        for (id, pool, sums, io) in entries {
            out.push_str(&format!("pool {} id {id}\n", pool.name));
            let mut lines = degraded_lines(&sums);
            lines.extend(io_lines(&io));
            if lines.is_empty() {
                lines.push("nothing is going on".into());
            }
            lines.iter().for_each(|line| out.push_str(&format!("  {line}\n")));
            out.push('\n');
        }
        Ok(CommandAnswer::text(out))
    }

    /// The summed rates of all pools.
    pub(super) fn total_io_rates(&self) -> PoolIoRates {
        let mut total = PoolIoRates::default();
        for io in self.stats.io_rates().values() {
            total.read_bytes_s += io.read_bytes_s;
            total.write_bytes_s += io.write_bytes_s;
            total.reads_s += io.reads_s;
            total.writes_s += io.writes_s;
            total.recovered_objects_s += io.recovered_objects_s;
            total.recovered_bytes_s += io.recovered_bytes_s;
        }
        total
    }

    pub(super) fn io_fields(&self) -> Map<String, Value> {
        let io = self.total_io_rates();
        let mut fields = recovery_fields(&io);
        fields.extend(client_fields(&io));
        fields
    }

    pub(super) fn io_lines(&self) -> Vec<String> {
        let io = self.total_io_rates();
        let mut lines = Vec::new();
        let mut client = Vec::new();
        if io.read_bytes_s > 0 {
            client.push(format!("{}/s rd", bytes(io.read_bytes_s)));
        }
        if io.write_bytes_s > 0 {
            client.push(format!("{}/s wr", bytes(io.write_bytes_s)));
        }
        if io.reads_s + io.writes_s > 0 {
            client.push(format!("{} op/s", count(io.reads_s + io.writes_s)));
        }
        if !client.is_empty() {
            lines.push(client.join(", "));
        }
        if io.recovered_bytes_s + io.recovered_objects_s > 0 {
            lines.push(format!(
                "{}/s, {} objects/s recovering",
                bytes(io.recovered_bytes_s),
                count(io.recovered_objects_s)
            ));
        }
        lines
    }
}

fn io_lines(io: &PoolIoRates) -> Vec<String> {
    let mut lines = Vec::new();
    if io.recovered_bytes_s + io.recovered_objects_s > 0 {
        lines.push(format!(
            "recovery io {}/s, {} objects/s",
            bytes(io.recovered_bytes_s),
            count(io.recovered_objects_s)
        ));
    }
    if io.reads_s + io.writes_s > 0 {
        let mut parts = Vec::new();
        if io.read_bytes_s > 0 {
            parts.push(format!("{}/s rd", bytes(io.read_bytes_s)));
        }
        if io.write_bytes_s > 0 {
            parts.push(format!("{}/s wr", bytes(io.write_bytes_s)));
        }
        parts.push(format!("{} op/s rd, {} op/s wr", count(io.reads_s), count(io.writes_s)));
        lines.push(format!("client io {}", parts.join(", ")));
    }
    lines
}

fn recovery_fields(io: &PoolIoRates) -> Map<String, Value> {
    let mut fields = Map::new();
    if io.recovered_bytes_s + io.recovered_objects_s > 0 {
        fields.insert("recovering_objects_per_sec".into(), io.recovered_objects_s.into());
        fields.insert("recovering_bytes_per_sec".into(), io.recovered_bytes_s.into());
        fields.insert("recovering_keys_per_sec".into(), 0.into());
    }
    fields
}

fn client_fields(io: &PoolIoRates) -> Map<String, Value> {
    let mut fields = Map::new();
    if io.read_bytes_s > 0 {
        fields.insert("read_bytes_sec".into(), io.read_bytes_s.into());
    }
    if io.write_bytes_s > 0 {
        fields.insert("write_bytes_sec".into(), io.write_bytes_s.into());
    }
    if io.reads_s + io.writes_s > 0 {
        fields.insert("read_op_per_sec".into(), io.reads_s.into());
        fields.insert("write_op_per_sec".into(), io.writes_s.into());
    }
    fields
}

/// A pool's line in `osd dump` and `osd pool ls detail`.
pub(super) fn pool_line(id: PoolId, pool: &Pool) -> String {
    let mut line = format!(
        "pool {id} '{}' {} size {} min_size {} crush_rule {} object_hash rjenkins pg_num {} pgp_num {} \
         autoscale_mode {} last_change {}{} flags {}",
        pool.name,
        match pool.kind {
            PoolKind::Replicated => "replicated",
            PoolKind::Erasure => "erasure",
        },
        pool.size,
        pool.min_size,
        pool.crush_rule,
        pool.pg_num,
        pool.pgp_num,
        pool.pg_autoscale_mode,
        pool.last_change,
        match pool.tiering.overlay_epoch {
            Epoch(0) => String::new(),
            epoch => format!(" lfor {epoch}/{epoch}/{epoch}"),
        },
        pool.flags_string(),
    );
    let mut add = |present: bool, text: String| {
        if present {
            line.push(' ');
            line.push_str(&text);
        }
    };
    add(pool.quota_max_bytes > 0, format!("max_bytes {}", pool.quota_max_bytes));
    add(pool.quota_max_objects > 0, format!("max_objects {}", pool.quota_max_objects));
    let t = &pool.tiering;
    let tiers: Vec<String> = t.tiers.iter().map(PoolId::to_string).collect();
    add(!tiers.is_empty(), format!("tiers {}", tiers.join(",")));
    add(t.tier_of.is_some(), format!("tier_of {}", id_or_none(t.tier_of)));
    add(t.read_tier.is_some(), format!("read_tier {}", id_or_none(t.read_tier)));
    add(t.write_tier.is_some(), format!("write_tier {}", id_or_none(t.write_tier)));
    add(t.cache_mode != CacheMode::None, format!("cache_mode {}", t.cache_mode.as_str()));
    add(t.target_max_bytes > 0, format!("target_bytes {}", t.target_max_bytes));
    add(t.target_max_objects > 0, format!("target_objects {}", t.target_max_objects));
    add(
        t.hit_set != HitSetKind::None,
        format!(
            "hit_set {} {}s x{} decay_rate {} search_last_n {}",
            hit_set_text(&t.hit_set),
            t.hit_set_period_s,
            t.hit_set_count,
            t.hit_set_grade_decay_rate,
            t.hit_set_search_last_n
        ),
    );
    add(
        t.min_read_recency_for_promote > 0,
        format!("min_read_recency_for_promote {}", t.min_read_recency_for_promote),
    );
    add(
        t.min_write_recency_for_promote > 0,
        format!("min_write_recency_for_promote {}", t.min_write_recency_for_promote),
    );
    add(true, "stripe_width 0".into());
    for (name, value) in &pool.options {
        add(true, format!("{name} {value}"));
    }
    let apps: Vec<&str> = pool.applications.keys().map(String::as_str).collect();
    add(!apps.is_empty(), format!("application {}", apps.join(",")));
    line.push('\n');
    line
}

fn hit_set_text(kind: &HitSetKind) -> String {
    match kind {
        HitSetKind::Bloom { fpp } => {
            format!("bloom{{false_positive_probability: {fpp}, target_size: 0, seed: 0}}")
        }
        other => format!("{}{{}}", other.as_str()),
    }
}

fn id_or_none(id: Option<PoolId>) -> i64 {
    id.map_or(-1, |id| id.0)
}

/// A pool in `osd dump` (`id_key` "pool") and `osd pool ls detail` ("pool_id").
pub(super) fn pool_json(id: PoolId, pool: &Pool, id_key: &str) -> Value {
    let t = &pool.tiering;
    let mut hit_set = json!({ "type": t.hit_set.as_str() });
    if let HitSetKind::Bloom { fpp } = t.hit_set {
        hit_set["false_positive_probability"] = fpp.into();
        hit_set["target_size"] = 0.into();
        hit_set["seed"] = 0.into();
    }
    let options: Map<String, Value> = pool.options.iter().map(|(k, v)| (k.clone(), option_json(v))).collect();
    let snaps: Vec<Value> = pool
        .snaps
        .iter()
        .map(|(snap, (name, ns))| json!({ "snapid": snap, "stamp": stamp(*ns), "name": name }))
        .collect();
    json!({
        id_key: id.0,
        "pool_name": pool.name,
        "create_time": if pool.created_ns == 0 { "0.000000".to_owned() } else { stamp(pool.created_ns) },
        "flags": pool.flags,
        "flags_names": pool.flags_string(),
        "type": match pool.kind { PoolKind::Replicated => 1, PoolKind::Erasure => 3 },
        "size": pool.size,
        "min_size": pool.min_size,
        "crush_rule": pool.crush_rule,
        "peering_crush_bucket_count": 0,
        "peering_crush_bucket_target": 0,
        "peering_crush_bucket_barrier": 0,
        "peering_crush_bucket_mandatory_member": 2_147_483_647,
        "object_hash": 2,
        "pg_autoscale_mode": pool.pg_autoscale_mode,
        "pg_num": pool.pg_num,
        "pg_placement_num": pool.pgp_num,
        "pg_placement_num_target": pool.pgp_num,
        "pg_num_target": pool.pg_num,
        "pg_num_pending": pool.pg_num,
        "last_pg_merge_meta": {
            "source_pgid": "0.0", "ready_epoch": 0, "last_epoch_started": 0, "last_epoch_clean": 0,
            "source_version": "0'0", "target_version": "0'0",
        },
        "last_change": pool.last_change.to_string(),
        "last_force_op_resend": t.overlay_epoch.to_string(),
        "last_force_op_resend_prenautilus": t.overlay_epoch.to_string(),
        "last_force_op_resend_preluminous": t.overlay_epoch.to_string(),
        "auid": pool.auid,
        "snap_mode": if pool.has_flag(flag::POOL_SNAPS) { "pool" } else { "selfmanaged" },
        "snap_seq": pool.snap_seq,
        "snap_epoch": 0,
        "pool_snaps": snaps,
        "removed_snaps": "[]",
        "quota_max_bytes": pool.quota_max_bytes,
        "quota_max_objects": pool.quota_max_objects,
        "tiers": t.tiers.iter().map(|id| id.0).collect::<Vec<_>>(),
        "tier_of": id_or_none(t.tier_of),
        "read_tier": id_or_none(t.read_tier),
        "write_tier": id_or_none(t.write_tier),
        "cache_mode": t.cache_mode.as_str(),
        "target_max_bytes": t.target_max_bytes,
        "target_max_objects": t.target_max_objects,
        "cache_target_dirty_ratio_micro": t.dirty_ratio_micro,
        "cache_target_dirty_high_ratio_micro": t.dirty_high_ratio_micro,
        "cache_target_full_ratio_micro": t.full_ratio_micro,
        "cache_min_flush_age": t.min_flush_age_s,
        "cache_min_evict_age": t.min_evict_age_s,
        "erasure_code_profile": "",
        "hit_set_params": hit_set,
        "hit_set_period": t.hit_set_period_s,
        "hit_set_count": t.hit_set_count,
        "use_gmt_hitset": t.use_gmt_hitset,
        "min_read_recency_for_promote": t.min_read_recency_for_promote,
        "min_write_recency_for_promote": t.min_write_recency_for_promote,
        "hit_set_grade_decay_rate": t.hit_set_grade_decay_rate,
        "hit_set_search_last_n": t.hit_set_search_last_n,
        "grade_table": t.grade_table(),
        "stripe_width": 0,
        "expected_num_objects": 0,
        "fast_read": false,
        "options": options,
        "application_metadata": pool.applications,
    })
}

/// An option's text as JSON: a number if it is one.
pub(super) fn option_json(text: &str) -> Value {
    if let Ok(number) = text.parse::<i64>() {
        return number.into();
    }
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() => number.into(),
        _ => text.into(),
    }
}
