//! `osd pool get` and `osd pool set`: every variable of Ceph 16.2, with its type and checks. [`support`] lists which of them
//! have an effect. Values for functions that Nacre lacks are refused; values that unset such a variable are accepted.

mod support;

pub use support::variables;

use super::numbers::{strict_iec, strict_integer, strict_si};
use super::pool::{check_rule, parse_si};
use super::pool_show::option_json;
use super::tier::memstore_refusal;
use super::{CommandAnswer, CommandFailure, CommandOutcome, Context};
use crate::logic::MapState;
use crate::text::float;
use nacre_crush::{Rule, RuleType};
use nacre_types::command::Call;
use nacre_types::errno::Errno;
use nacre_types::ids::{OsdId, PoolId};
use nacre_types::pool::{HitSetKind, MAX_HIT_SETS, Pool, flag};
use nacre_types::support_level::SupportLevel;
use serde_json::{Map, Value, json};

/// The type of a variable of [`Pool::options`].
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Int(i64, i64),
    Float(f64, f64),
    Choice(&'static [&'static str]),
}

use Kind::{Choice, Float, Int, Text};

/// The variables kept as options, in the order of `osd pool get … all`.
const OPTIONS: &[(&str, Kind)] = &[
    ("scrub_min_interval", Float(f64::MIN, f64::MAX)),
    ("scrub_max_interval", Float(f64::MIN, f64::MAX)),
    ("deep_scrub_interval", Float(f64::MIN, f64::MAX)),
    ("recovery_priority", Int(-10, 10)),
    ("recovery_op_priority", Int(i64::MIN, i64::MAX)),
    ("scrub_priority", Int(i64::MIN, i64::MAX)),
    ("compression_mode", Choice(&["none", "passive", "aggressive", "force"])),
    ("compression_algorithm", Choice(&["none", "snappy", "zstd", "lz4"])),
    ("compression_required_ratio", Float(0.0, 1.0)),
    ("compression_max_blob_size", Int(0, i64::MAX)),
    ("compression_min_blob_size", Int(0, i64::MAX)),
    ("csum_type", Choice(&["none", "xxhash32", "xxhash64", "crc32c", "crc32c_16", "crc32c_8"])),
    ("csum_max_block", Int(0, i64::MAX)),
    ("csum_min_block", Int(0, i64::MAX)),
    ("fingerprint_algorithm", Choice(&["none", "sha1", "sha256", "sha512"])),
    ("pg_num_min", Int(1, i64::MAX)),
    ("pg_num_max", Int(0, i64::MAX)),
    ("target_size_bytes", Int(0, i64::MAX)),
    ("target_size_ratio", Float(0.0, f64::MAX)),
    ("pg_autoscale_bias", Float(0.0, 1000.0)),
    ("dedup_tier", Text),
    ("dedup_chunk_algorithm", Choice(&["fixed", "fastcdc"])),
    ("dedup_cdc_chunk_size", Int(1, i64::MAX)),
];

/// Variables that are flags.
const FLAGS: &[(&str, u64)] = &[
    ("hashpspool", flag::HASHPSPOOL),
    ("nodelete", flag::NODELETE),
    ("nopgchange", flag::NOPGCHANGE),
    ("nosizechange", flag::NOSIZECHANGE),
    ("write_fadvise_dontneed", flag::WRITE_FADVISE_DONTNEED),
    ("noscrub", flag::NOSCRUB),
    ("nodeep-scrub", flag::NODEEP_SCRUB),
];

/// Variables of cache tiers only.
const TIER_VARS: &[&str] = &[
    "hit_set_type",
    "hit_set_period",
    "hit_set_count",
    "hit_set_fpp",
    "target_max_objects",
    "target_max_bytes",
    "cache_target_dirty_ratio",
    "cache_target_dirty_high_ratio",
    "cache_target_full_ratio",
    "cache_min_flush_age",
    "cache_min_evict_age",
    "min_read_recency_for_promote",
    "min_write_recency_for_promote",
    "hit_set_grade_decay_rate",
    "hit_set_search_last_n",
    WRITE_THROUGH,
    DIRTY_LOG,
];

/// Specific to Nacre: a cache answers a write only after the base pool has it.
const WRITE_THROUGH: &str = "cache_write_through";
/// Specific to Nacre: the base pool records the names of a cache's dirty objects.
const DIRTY_LOG: &str = "cache_dirty_log";

/// Variables of erasure-coded pools only.
const EC_VARS: &[&str] = &["erasure_code_profile", "allow_ec_overwrites"];

/// The other variables of `osd pool get`, in the order of `all`.
const PLAIN_VARS: &[&str] = &["size", "min_size", "pg_num", "pgp_num", "crush_rule"];

/// The rule by its ruleset number, the variable's name before Ceph 12.2; commands from then still use it.
const CRUSH_RULESET: &str = "crush_ruleset";

fn is_variable(name: &str) -> bool {
    PLAIN_VARS.contains(&name)
        || TIER_VARS.contains(&name)
        || EC_VARS.contains(&name)
        || FLAGS.iter().any(|(n, _)| *n == name)
        || OPTIONS.iter().any(|(n, _)| *n == name)
        || matches!(
            name,
            "use_gmt_hitset"
                | "fast_read"
                | "pg_autoscale_mode"
                | "bulk"
                | "all"
                | "pgp_num_actual"
                | "pg_num_actual"
                | CRUSH_RULESET
        )
}

fn unknown(name: &str) -> CommandFailure {
    let mut names: Vec<&str> = PLAIN_VARS.to_vec();
    names.extend(FLAGS.iter().map(|(n, _)| *n));
    names.extend(TIER_VARS);
    names.extend(["use_gmt_hitset", "fast_read", "pg_autoscale_mode", "bulk"]);
    names.extend(OPTIONS.iter().map(|(n, _)| *n));
    CommandFailure::invalid(format!("{name} not in {}", names.join("|")))
}

impl MapState {
    pub(super) fn pool_get(&self, name: &str, var: &str, ctx: &Context) -> CommandOutcome {
        let (id, pool) = self.committed_pool(name)?;
        if !is_variable(var) {
            return Err(unknown(var));
        }
        let is_tier = pool.tiering.tier_of.is_some();
        let not_applicable = |what: &str| {
            CommandFailure::new(
                Errno::EACCES,
                format!("pool '{name}' is not a {what} pool: variable not applicable"),
            )
        };
        if TIER_VARS.contains(&var) && !is_tier {
            return Err(not_applicable("tier"));
        }
        if EC_VARS.contains(&var) {
            return Err(not_applicable("erasure"));
        }
        let mut values: Vec<(&str, Value, String)> = Vec::new();
        if var == "all" {
            let tier: &[&str] = if is_tier { TIER_VARS } else { &[] };
            let flags = FLAGS.iter().map(|(n, _)| *n);
            let names = PLAIN_VARS.iter().copied().chain(flags).chain(tier.iter().copied());
            let options = OPTIONS.iter().map(|(n, _)| *n);
            let names = names
                .chain(["use_gmt_hitset", "fast_read"])
                .chain(options)
                .chain(["pg_autoscale_mode", "bulk"]);
            values.extend(names.filter_map(|n| self.value_of(pool, n).map(|(json, text)| (n, json, text))));
        } else {
            if var == "hit_set_fpp" && !matches!(pool.tiering.hit_set, HitSetKind::Bloom { .. }) {
                let text = "hit set is not of type Bloom; invalid to get a false positive rate!";
                return Err(CommandFailure::invalid(text));
            }
            let (json, text) = self.value_of(pool, var).ok_or_else(|| {
                CommandFailure::not_found(format!("option '{var}' is not set on pool '{name}'"))
            })?;
            values.push((var, json, text));
        }
        Ok(CommandAnswer::either(
            ctx,
            || {
                let mut fields = Map::new();
                fields.insert("pool".into(), name.into());
                fields.insert("pool_id".into(), id.0.into());
                fields.extend(values.iter().map(|(n, json, _)| ((*n).to_owned(), json.clone())));
                Value::Object(fields)
            },
            || values.iter().map(|(n, _, text)| format!("{n}: {text}\n")).collect(),
        ))
    }

    /// A variable's value as JSON and as text.
    fn value_of(&self, pool: &Pool, var: &str) -> Option<(Value, String)> {
        let number = |n: u64| Some((json!(n), n.to_string()));
        let micro = |n: u32| Some((json!(f64::from(n) / 1e6), float(f64::from(n) / 1e6)));
        let text = |t: &str| Some((json!(t), t.to_owned()));
        let switch = |on: bool| Some((json!(on), on.to_string()));
        if let Some((_, bit)) = FLAGS.iter().find(|(n, _)| *n == var) {
            return switch(pool.has_flag(*bit));
        }
        let t = &pool.tiering;
        match var {
            "size" => number(pool.size.into()),
            "min_size" => number(pool.min_size.into()),
            "pg_num" => number(pool.pg_num.into()),
            "pgp_num" => number(pool.pgp_num.into()),
            "crush_rule" => match self.committed.crush.rule_name(pool.crush_rule.into()) {
                Some(name) => text(name),
                None => text(&pool.crush_rule.to_string()),
            },
            CRUSH_RULESET => number(
                self.committed.crush.rule(pool.crush_rule.into()).map_or(0, |rule| rule.ruleset.into()),
            ),
            "use_gmt_hitset" => Some((json!(t.use_gmt_hitset), u8::from(t.use_gmt_hitset).to_string())),
            "fast_read" => number(0),
            "pg_autoscale_mode" => text(&pool.pg_autoscale_mode),
            "bulk" => switch(pool.has_flag(flag::BULK)),
            "hit_set_type" => text(t.hit_set.as_str()),
            "hit_set_fpp" => match t.hit_set {
                HitSetKind::Bloom { fpp } => Some((json!(fpp), float(fpp))),
                _ => None,
            },
            "hit_set_period" => number(t.hit_set_period_s.into()),
            "hit_set_count" => number(t.hit_set_count.into()),
            "target_max_objects" => number(t.target_max_objects),
            "target_max_bytes" => number(t.target_max_bytes),
            "cache_target_dirty_ratio" => micro(t.dirty_ratio_micro),
            "cache_target_dirty_high_ratio" => micro(t.dirty_high_ratio_micro),
            "cache_target_full_ratio" => micro(t.full_ratio_micro),
            "cache_min_flush_age" => number(t.min_flush_age_s.into()),
            "cache_min_evict_age" => number(t.min_evict_age_s.into()),
            "min_read_recency_for_promote" => number(t.min_read_recency_for_promote.into()),
            "min_write_recency_for_promote" => number(t.min_write_recency_for_promote.into()),
            "hit_set_grade_decay_rate" => number(t.hit_set_grade_decay_rate.into()),
            "hit_set_search_last_n" => number(t.hit_set_search_last_n.into()),
            WRITE_THROUGH => switch(pool.has_flag(flag::CACHE_WRITE_THROUGH)),
            DIRTY_LOG => switch(pool.has_flag(flag::CACHE_DIRTY_LOG)),
            option => pool.options.get(option).map(|value| (option_json(value), value.clone())),
        }
    }

    pub(super) fn pool_set(&mut self, call: &Call<'_>) -> CommandOutcome {
        let (name, var, text) =
            (call.required_text("pool"), call.required_text("var"), call.required_text("val"));
        let id = self.pool_named(name)?;
        if !is_variable(var) || var == "all" {
            return Err(unknown(var));
        }
        let pool = (*self.working.pools[&id]).clone();
        let sure = call.flag("yes_i_really_mean_it");
        let next = match var {
            CRUSH_RULESET => self.changed_pool(id, pool, "crush_rule", self.rule_of_ruleset(text)?, sure)?,
            _ => self.changed_pool(id, pool, var, text, sure)?,
        };
        self.change_pool(id, |pool| *pool = next);
        Ok(CommandAnswer::status(format!("set pool {id} {var} to {text}")))
    }

    /// The name of the rule for replicated pools that has this ruleset number.
    fn rule_of_ruleset(&self, text: &str) -> Result<&str, CommandFailure> {
        let number = integer(text)?;
        let crush = &self.working.crush;
        let of_set = |rule: &Rule| i64::from(rule.ruleset) == number && rule.kind == RuleType::Replicated;
        let found = crush.rules().find(|(_, rule)| of_set(rule)).and_then(|(id, _)| crush.rule_name(id));
        found.ok_or_else(|| CommandFailure::not_found(format!("crush ruleset {number} does not exist")))
    }

    fn changed_pool(
        &self,
        id: PoolId,
        mut pool: Pool,
        var: &str,
        text: &str,
        sure: bool,
    ) -> Result<Pool, CommandFailure> {
        let is_tier = pool.tiering.tier_of.is_some();
        if (TIER_VARS.contains(&var) || var == "use_gmt_hitset") && !is_tier {
            return Err(CommandFailure::new(Errno::EACCES, "(13) Permission denied"));
        }
        if let Some((_, bit)) = FLAGS.iter().find(|(n, _)| *n == var) {
            if var == "hashpspool" && !sure {
                return Err(CommandFailure::new(
                    Errno::EPERM,
                    "are you SURE?  this will remap all placement groups in this pool, this triggers large data movement, \
                     pass --yes-i-really-mean-it if you really do.",
                ));
            }
            set_bit(&mut pool, *bit, text)?;
            return Ok(pool);
        }
        match var {
            "size" => {
                if pool.has_flag(flag::NOSIZECHANGE) {
                    return Err(CommandFailure::new(
                        Errno::EPERM,
                        "pool size change is disabled; you must unset nosizechange flag for the pool first",
                    ));
                }
                let size = self.size_value(text)?;
                self.check_size(size, sure)?;
                check_rule(&self.working.crush, pool.crush_rule.into(), size)?;
                if size > pool.size {
                    self.check_pg_num(Some(id), pool.pg_num, size)?;
                }
                pool.size = size;
                // As in Ceph: growing keeps min_size, shrinking below it resets it.
                if size < pool.min_size {
                    pool.min_size = self.default_min_size(size);
                }
            }
            "min_size" => {
                let n = integer(text)?;
                if n < 1 || n > i64::from(pool.size) {
                    return Err(CommandFailure::invalid(format!(
                        "pool min_size must be between 1 and size, which is set to {}",
                        pool.size
                    )));
                }
                pool.min_size = n as u32;
            }
            "pg_num" | "pg_num_actual" => self.set_pg_num(id, &mut pool, text)?,
            "pgp_num" | "pgp_num_actual" => {
                if pool.has_flag(flag::NOPGCHANGE) {
                    return Err(CommandFailure::new(
                        Errno::EPERM,
                        "pool pgp_num change is disabled; you must unset nopgchange flag for the pool first",
                    ));
                }
                let n = integer(text)?;
                if n <= 0 {
                    return Err(CommandFailure::invalid(format!(
                        "specified pgp_num must > 0, but you set to {n}"
                    )));
                }
                if n > i64::from(pool.pg_num) {
                    return Err(CommandFailure::invalid(format!(
                        "specified pgp_num {n} > pg_num {}",
                        pool.pg_num
                    )));
                }
                pool.pgp_num = n as u32;
            }
            "crush_rule" => {
                let crush = &self.working.crush;
                let rule = crush
                    .rule_id(text)
                    .ok_or_else(|| CommandFailure::not_found(format!("crush rule {text} does not exist")))?;
                let before = self.cache_memstore_osds(&pool);
                pool.crush_rule = check_rule(crush, rule, pool.size)?;
                self.check_becomes_volatile(&pool, &before, sure)?;
            }
            "pg_autoscale_mode" => {
                check_autoscale_mode(text)?;
                text.clone_into(&mut pool.pg_autoscale_mode);
            }
            "bulk" => set_bit(&mut pool, flag::BULK, text)?,
            DIRTY_LOG => set_bit(&mut pool, flag::CACHE_DIRTY_LOG, text)?,
            WRITE_THROUGH => {
                let before = self.cache_memstore_osds(&pool);
                set_bit(&mut pool, flag::CACHE_WRITE_THROUGH, text)?;
                self.check_becomes_volatile(&pool, &before, sure)?;
            }
            "fast_read" => {
                if switch(text)? {
                    return Err(CommandFailure::invalid("fast read is not supported in replication pool"));
                }
            }
            "allow_ec_overwrites" => {
                return Err(CommandFailure::invalid(
                    "ec overwrites can only be enabled for an erasure coded pool",
                ));
            }
            "erasure_code_profile" => {
                return Err(CommandFailure::invalid("erasure_code_profile can't be changed"));
            }
            _ if TIER_VARS.contains(&var) || var == "use_gmt_hitset" => {
                set_tiering(&mut pool, var, text, self.tuning.hit_set_bloom_fpp)?;
            }
            _ => self.set_option(&mut pool, var, text)?,
        }
        Ok(pool)
    }

    /// Refuses that a cache starts to keep writes in memory. `before`: the OSDs with MemStores if it did so already.
    fn check_becomes_volatile(
        &self,
        pool: &Pool,
        before: &[OsdId],
        sure: bool,
    ) -> Result<(), CommandFailure> {
        let after = self.cache_memstore_osds(pool);
        if !before.is_empty() || after.is_empty() || sure {
            return Ok(());
        }
        let base = pool.tiering.tier_of.and_then(|base| self.working.pools.get(&base));
        let (base, mode) = (base.map(|base| base.name.as_str()), pool.tiering.cache_mode);
        let how = "pass --yes-i-really-mean-it to accept that.";
        Err(CommandFailure::new(Errno::EPERM, memstore_refusal(&pool.name, base, mode, &after, how)))
    }

    fn size_value(&self, text: &str) -> Result<u32, CommandFailure> {
        u32::try_from(integer(text)?)
            .map_err(|_| CommandFailure::invalid("pool size must be between 1 and 10"))
    }

    fn set_pg_num(&self, id: PoolId, pool: &mut Pool, text: &str) -> Result<(), CommandFailure> {
        if pool.has_flag(flag::NOPGCHANGE) {
            return Err(CommandFailure::new(
                Errno::EPERM,
                "pool pg_num change is disabled; you must unset nopgchange flag for the pool first",
            ));
        }
        let n = integer(text)?;
        if n == i64::from(pool.pg_num) {
            return Ok(());
        }
        self.check_pg_num_range(u32::try_from(n).unwrap_or(0))?;
        let n = n as u32;
        if n > pool.pg_num {
            self.check_pg_num(Some(id), n, pool.size)?;
        }
        Err(CommandFailure::new(
            Errno::ENOTSUP,
            format!(
                "pg_num of pool '{}' stays at {}: this release can't split or merge placement groups; create a pool with \
                 pg_num {n} and copy the objects",
                pool.name, pool.pg_num
            ),
        ))
    }

    fn set_option(&self, pool: &mut Pool, var: &str, text: &str) -> Result<(), CommandFailure> {
        let kind =
            OPTIONS.iter().find(|(n, _)| *n == var).map(|(_, kind)| *kind).ok_or_else(|| unknown(var))?;
        let (value, unset) = match kind {
            Text => {
                let base = self.working.pool_by_name(text).map(|(id, _)| id);
                let base = base.ok_or_else(|| CommandFailure::invalid("expecting value 'pool name'"))?;
                (base.to_string(), false)
            }
            Choice(words) => {
                if !words.contains(&text) && text != "unset" {
                    let spelled = if var == "compression_mode" { "compression mode" } else { var };
                    return Err(CommandFailure::invalid(format!("unrecognized {spelled} '{text}'")));
                }
                (text.to_owned(), text == "unset")
            }
            Int(min, max) => {
                let n = match var {
                    "target_size_bytes" | "compression_max_blob_size" | "compression_min_blob_size" => {
                        iec(text)? as i64
                    }
                    _ => integer(text)?,
                };
                if n < min || n > max {
                    return Err(CommandFailure::invalid(match var {
                        "recovery_priority" => {
                            format!("pool recovery_priority must be between {min} and {max}")
                        }
                        _ => format!("{var} is out of range: '{text}'"),
                    }));
                }
                (n.to_string(), n == 0)
            }
            Float(min, max) => {
                let n = number(text)?;
                if n < min || n > max {
                    return Err(CommandFailure::invalid(match var {
                        "compression_required_ratio" => {
                            format!("compression_required_ratio is out of range (0-1): '{text}'")
                        }
                        "target_size_ratio" => "target_size_ratio cannot be negative".to_owned(),
                        "pg_autoscale_bias" => "pg_autoscale_bias must be between 0 and 1000".to_owned(),
                        _ => format!("{var} is out of range: '{text}'"),
                    }));
                }
                (float(n), n == 0.0)
            }
        };
        if let SupportLevel::Refused(reason) = support::of(var)
            && !unset
        {
            return Err(not_supported(var, reason));
        }
        // In Ceph too, an empty text and 0 unset an option.
        if unset {
            pool.options.remove(var);
        } else {
            pool.options.insert(var.to_owned(), value);
        }
        Ok(())
    }
}

/// Refuses modes other than `off`, the only one that is supported.
pub(super) fn check_autoscale_mode(mode: &str) -> Result<(), CommandFailure> {
    match mode {
        "off" => Ok(()),
        "on" | "warn" => Err(not_supported(
            &format!("pg_autoscale_mode {mode}"),
            "there is no PG autoscaler; the mode stays off",
        )),
        _ => Err(CommandFailure::invalid(format!("specified invalid mode {mode}"))),
    }
}

fn not_supported(what: &str, reason: &str) -> CommandFailure {
    CommandFailure::new(Errno::EOPNOTSUPP, format!("{what} is not supported: {reason}"))
}

fn set_tiering(pool: &mut Pool, var: &str, text: &str, default_fpp: f64) -> Result<(), CommandFailure> {
    let t = &mut pool.tiering;
    let out_of_range = || CommandFailure::invalid(format!("{var} is out of range: '{text}'"));
    let whole = || u32::try_from(integer(text)?).map_err(|_| out_of_range());
    let not_negative = || match integer(text)? {
        n if n < 0 => Err(CommandFailure::invalid(format!("{var} should be non-negative"))),
        n => u32::try_from(n).map_err(|_| out_of_range()),
    };
    let micro = || -> Result<u32, CommandFailure> {
        let n = text.parse::<f64>().ok().filter(|n| n.is_finite()).ok_or_else(|| {
            CommandFailure::invalid(format!(
                "error parsing float '{text}': strict_strtod: expected double, got: '{text}'"
            ))
        })?;
        if !(0.0..=1.0).contains(&n) {
            return Err(CommandFailure::new(Errno::ERANGE, "value must be in the range 0..1"));
        }
        Ok((n * 1e6) as u32)
    };
    match var {
        "hit_set_type" => {
            t.hit_set = HitSetKind::parse(text, default_fpp)
                .ok_or_else(|| CommandFailure::invalid(format!("unrecognized hit_set type '{text}'")))?;
        }
        "hit_set_fpp" => {
            let fpp = number(text)?;
            if !(0.0..=1.0).contains(&fpp) {
                return Err(CommandFailure::invalid("hit_set_fpp should be in the range 0..1"));
            }
            let HitSetKind::Bloom { fpp: current } = &mut t.hit_set else {
                return Err(CommandFailure::invalid(
                    "hit set is not of type Bloom; invalid to set a false positive rate!",
                ));
            };
            // Stored in millionths, as in Ceph.
            *current = (fpp * 1e6).round() / 1e6;
        }
        "hit_set_period" => t.hit_set_period_s = not_negative()?,
        "hit_set_count" => {
            let n = not_negative()?;
            if n > MAX_HIT_SETS {
                return Err(CommandFailure::invalid(format!("hit_set_count is at most {MAX_HIT_SETS}")));
            }
            t.hit_set_count = n;
        }
        "target_max_objects" => t.target_max_objects = target(text, strict_si(text))?,
        "target_max_bytes" => t.target_max_bytes = target(text, strict_iec(text))?,
        "cache_target_dirty_ratio" => t.dirty_ratio_micro = micro()?,
        "cache_target_dirty_high_ratio" => t.dirty_high_ratio_micro = micro()?,
        "cache_target_full_ratio" => t.full_ratio_micro = micro()?,
        "cache_min_flush_age" => t.min_flush_age_s = age(var, text)?,
        "cache_min_evict_age" => t.min_evict_age_s = age(var, text)?,
        "min_read_recency_for_promote" => t.min_read_recency_for_promote = whole()?,
        "min_write_recency_for_promote" => t.min_write_recency_for_promote = whole()?,
        "hit_set_grade_decay_rate" => {
            t.hit_set_grade_decay_rate = u32::try_from(integer(text)?)
                .ok()
                .filter(|n| *n <= 100)
                .ok_or_else(|| CommandFailure::invalid("value out of range,valid range is 0 - 100"))?;
        }
        "hit_set_search_last_n" => {
            t.hit_set_search_last_n =
                u32::try_from(integer(text)?).ok().filter(|n| *n <= t.hit_set_count).ok_or_else(|| {
                    CommandFailure::invalid("value out of range,valid range is 0 - hit_set_count")
                })?;
        }
        "use_gmt_hitset" => {
            if !matches!(text, "true" | "1") {
                return Err(CommandFailure::invalid("expecting value 'true' or '1'"));
            }
            t.use_gmt_hitset = true;
        }
        _ => return Err(unknown(var)),
    }
    Ok(())
}

/// Parses a target of a cache. Ceph treats negative ones as very large ones.
fn target(text: &str, number: Result<i64, String>) -> Result<u64, CommandFailure> {
    let failed = |why: String| CommandFailure::invalid(format!("error parsing int '{text}': {why}"));
    u64::try_from(number.map_err(failed)?).map_err(|_| failed("a target is not negative".to_owned()))
}

/// Parses an age in seconds.
fn age(var: &str, text: &str) -> Result<u32, CommandFailure> {
    let failed = |why: String| CommandFailure::invalid(format!("error parsing int '{text}': {why}"));
    let seconds = strict_integer(text).map_err(failed)?;
    u32::try_from(seconds).map_err(|_| CommandFailure::invalid(format!("{var} is out of range: '{text}'")))
}

fn set_bit(pool: &mut Pool, bit: u64, text: &str) -> Result<(), CommandFailure> {
    if switch(text)? {
        pool.flags |= bit;
    } else {
        pool.flags &= !bit;
    }
    Ok(())
}

fn switch(text: &str) -> Result<bool, CommandFailure> {
    match text {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(CommandFailure::invalid("expecting value 'true', 'false', '0', or '1'")),
    }
}

fn integer(text: &str) -> Result<i64, CommandFailure> {
    text.parse().map_err(|_| {
        CommandFailure::invalid(format!(
            "error parsing integer value '{text}': Expected option value to be integer, got '{text}'"
        ))
    })
}

fn number(text: &str) -> Result<f64, CommandFailure> {
    text.parse::<f64>().ok().filter(|n| n.is_finite()).ok_or_else(|| {
        CommandFailure::invalid(format!(
            "error parsing floating point value '{text}': strict_strtod: expected double, got: '{text}'"
        ))
    })
}

fn iec(text: &str) -> Result<u64, CommandFailure> {
    let units = [("k", 10), ("M", 20), ("G", 30), ("T", 40), ("P", 50), ("E", 60)];
    parse_si(text, &units, true)
        .map_err(|reason| CommandFailure::invalid(format!("error parsing int value '{text}': {reason}")))
}
