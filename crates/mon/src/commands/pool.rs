//! `osd pool …` commands that change pools.

use super::{CommandAnswer, CommandFailure, CommandOutcome, Context, unhandled};
use crate::logic::{LogLevel, MapState};
use crate::text::float;
use nacre_crush::{CrushMap, RuleType};
use nacre_types::command::Call;
use nacre_types::errno::Errno;
use nacre_types::ids::{Epoch, PoolId};
use nacre_types::pool::{Pool, flag};

/// The longest pool name in bytes. Ceph has no limit; longer ones do not fit where names are shown and stored.
const MAX_NAME: usize = 4096;
/// The most applications of a pool, and keys of an application (`MAX_POOL_APPLICATIONS`).
const MAX_APPLICATIONS: usize = 4;
/// The longest application name, key or value.
const MAX_APPLICATION_TEXT: usize = 128;

impl MapState {
    pub(super) fn pool_command(&mut self, call: &Call<'_>, ctx: &Context) -> CommandOutcome {
        match call.prefix() {
            "osd pool create" => self.pool_create(call, ctx),
            "osd pool rm" | "osd pool delete" => self.pool_rm(call, ctx),
            "osd pool rename" => {
                self.pool_rename(call.required_text("srcpool"), call.required_text("destpool"))
            }
            "osd pool set" => self.pool_set(call),
            "osd pool set-quota" => self.pool_set_quota(call, ctx),
            "osd pool application enable" => self.application_enable(call),
            "osd pool application disable" => self.application_disable(call),
            "osd pool application set" => self.application_set(call),
            "osd pool application rm" => self.application_rm(call),
            "osd pool ls"
            | "osd lspools"
            | "osd pool get"
            | "osd pool get-quota"
            | "osd pool application get"
            | "osd pool stats" => self.pool_show(call, ctx),
            _ => unhandled(call),
        }
    }

    fn pool_create(&mut self, call: &Call<'_>, ctx: &Context) -> CommandOutcome {
        let name = call.required_text("pool");
        // `osd pool create NAME PG_NUM RULE`: the words before a rule may be omitted, as in Ceph.
        let erasure = call.text("pool_type") == Some("erasure");
        if let Some((_, pool)) = self.working.pool_by_name(name) {
            if erasure {
                return Err(CommandFailure::invalid(format!(
                    "pool '{}' cannot change to type erasure",
                    pool.name
                )));
            }
            return Ok(CommandAnswer::status(format!("pool '{name}' already exists")));
        }
        check_name(name)?;
        if erasure {
            return Err(CommandFailure::new(
                Errno::ENOTSUP,
                "erasure-coded pools are not supported by this release",
            ));
        }
        let number =
            |name: &str| call.int(name).filter(|n| *n > 0).map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        let pg_num = number("pg_num").unwrap_or(self.tuning.pool_default_pg_num);
        self.check_pg_num_range(pg_num)?;
        let default_pgp = match self.tuning.pool_default_pgp_num {
            n if n > 0 && call.int("pg_num").is_none_or(|n| n <= 0) => n,
            _ => pg_num,
        };
        let pgp_num = number("pgp_num").unwrap_or(default_pgp);
        if pgp_num > pg_num {
            return Err(CommandFailure::new(
                Errno::ERANGE,
                "'pgp_num' must be greater than 0 and lower or equal than 'pg_num', which in this case is "
                    .to_owned()
                    + &pg_num.to_string(),
            ));
        }
        // As in Ceph, configuring `osd_pool_default_size = 1` counts as confirmation.
        let asked = number("size");
        let size = asked.unwrap_or(self.tuning.pool_default_size);
        self.check_size(size, asked.is_none() || call.flag("yes_i_really_mean_it"))?;
        let rule = self.rule_for_new_pool(call.text("rule").or(call.text("erasure_code_profile")), size)?;
        self.check_pg_num(None, pg_num, size)?;
        let min_size = self.default_min_size(size);
        let mut pool = Pool::replicated(name, size, min_size, rule, pg_num, Epoch(0));
        pool.pgp_num = pgp_num;
        pool.created_ns = ctx.now.wall_ns;
        let tuning = &self.tuning;
        pool.tiering.dirty_ratio_micro = tuning.pool_default_dirty_ratio_micro;
        pool.tiering.dirty_high_ratio_micro = tuning.pool_default_dirty_high_ratio_micro;
        pool.tiering.full_ratio_micro = tuning.pool_default_full_ratio_micro;
        pool.tiering.min_flush_age_s = tuning.pool_default_min_flush_age_s;
        pool.tiering.min_evict_age_s = tuning.pool_default_min_evict_age_s;
        if let Some(mode) = call.text("autoscale_mode") {
            super::pool_vars::check_autoscale_mode(mode)?;
        }
        for name in ["pg_num_min", "pg_num_max", "target_size_bytes"] {
            if let Some(value) = call.int(name).filter(|value| *value > 0) {
                pool.options.insert(name.into(), value.to_string());
            }
        }
        if let Some(ratio) = call.float("target_size_ratio").filter(|ratio| *ratio > 0.0) {
            pool.options.insert("target_size_ratio".into(), float(ratio));
        }
        if call.flag("bulk") {
            pool.flags |= flag::BULK;
        }
        for (on, bit) in [
            (self.tuning.pool_default_nodelete, flag::NODELETE),
            (self.tuning.pool_default_nopgchange, flag::NOPGCHANGE),
            (self.tuning.pool_default_nosizechange, flag::NOSIZECHANGE),
        ] {
            pool.flags |= if on { bit } else { 0 };
        }
        if !self.tuning.pool_default_hashpspool {
            pool.flags &= !flag::HASHPSPOOL;
        }
        self.add_pool(pool);
        self.update_fullness(ctx.now);
        Ok(CommandAnswer::status(format!("pool '{name}' created")))
    }

    /// `size` minus half of it, unless configured.
    pub(super) fn default_min_size(&self, size: u32) -> u32 {
        match self.tuning.pool_default_min_size {
            0 => size - size / 2,
            n => n.min(size),
        }
    }

    pub(super) fn check_pg_num_range(&self, pg_num: u32) -> Result<(), CommandFailure> {
        let max = self.tuning.max_pool_pg_num;
        if pg_num == 0 || pg_num > max {
            return Err(CommandFailure::new(
                Errno::ERANGE,
                format!(
                    "'pg_num' must be greater than 0 and less than or equal to {max} (you may adjust 'mon max pool pg num' for higher values)"
                ),
            ));
        }
        Ok(())
    }

    /// Whether this many PGs are within the limits of the OSDs (`OSDMonitor::check_pg_num`).
    pub(super) fn check_pg_num(
        &self,
        pool: Option<PoolId>,
        pg_num: u32,
        size: u32,
    ) -> Result<(), CommandFailure> {
        let replicas = |pg_num: u32, size: u32| u64::from(pg_num) * u64::from(size);
        let others: u64 = self
            .working
            .pools
            .iter()
            .filter(|(id, _)| Some(**id) != pool)
            .map(|(_, p)| replicas(p.pg_num, p.size))
            .sum();
        let osds = self.working.osds.values().filter(|info| info.is_in()).count().max(3) as u64;
        let max = u64::from(self.tuning.max_pg_per_osd) * osds;
        let projected = others + replicas(pg_num, size);
        if projected > max {
            let (what, id) = match pool {
                Some(id) => ("pool id ", id.to_string()),
                None => ("", String::new()),
            };
            return Err(CommandFailure::new(
                Errno::ERANGE,
                format!(
                    "{what}{id} pg_num {pg_num} size {size} would mean {projected} total pgs, which exceeds max {max} \
                     (mon_max_pg_per_osd {} * num_in_osds {osds})",
                    self.tuning.max_pg_per_osd
                )
                .trim_start()
                .to_owned(),
            ));
        }
        Ok(())
    }

    pub(super) fn check_size(&self, size: u32, sure: bool) -> Result<(), CommandFailure> {
        if !(1..=10).contains(&size) {
            return Err(CommandFailure::invalid("pool size must be between 1 and 10"));
        }
        if size == 1 && !self.tuning.allow_pool_size_one {
            return Err(CommandFailure::new(
                Errno::EPERM,
                "configuring pool size as 1 is disabled by default.",
            ));
        }
        if size == 1 && !sure {
            return Err(CommandFailure::new(
                Errno::EPERM,
                "WARNING: setting pool size 1 could lead to data loss without recovery. If you are *ABSOLUTELY CERTAIN* \
                 that is what you want, pass the flag --yes-i-really-mean-it.",
            ));
        }
        Ok(())
    }

    fn rule_for_new_pool(&self, name: Option<&str>, size: u32) -> Result<u8, CommandFailure> {
        let crush = &self.working.crush;
        let id = match name {
            Some(name) => crush
                .rule_id(name)
                .ok_or_else(|| CommandFailure::not_found(format!("specified rule {name} doesn't exist")))?,
            None => {
                match u32::try_from(self.tuning.pool_default_crush_rule) {
                    Ok(id) => id,
                    Err(_) => {
                        let replicated = crush.rules().find(|(_, rule)| rule.kind == RuleType::Replicated);
                        replicated.map(|(id, _)| id).ok_or_else(|| {
                        CommandFailure::not_found("No suitable CRUSH rule exists, check 'osd pool default crush *' config options")
                    })?
                    }
                }
            }
        };
        check_rule(crush, id, size)
    }

    fn pool_rm(&mut self, call: &Call<'_>, ctx: &Context) -> CommandOutcome {
        let name = call.required_text("pool");
        let Some((id, pool)) = self.working.pool_by_name(name) else {
            return Ok(CommandAnswer::status(format!("pool '{name}' does not exist")));
        };
        let sure =
            call.flag("yes_i_really_really_mean_it") || call.flag("yes_i_really_really_mean_it_not_faking");
        if call.text("pool2") != Some(name) || !sure {
            return Err(CommandFailure::new(
                Errno::EPERM,
                format!(
                    "WARNING: this will *PERMANENTLY DESTROY* all data stored in pool {name}.  If you are *ABSOLUTELY \
                     CERTAIN* that is what you want, pass the pool name *twice*, followed by --yes-i-really-really-mean-it."
                ),
            ));
        }
        let tiering = &pool.tiering;
        if let Some(base) = tiering.tier_of {
            let base = self.working.pools.get(&base).map_or("?", |p| p.name.as_str());
            return Err(CommandFailure::new(Errno::EBUSY, format!("pool '{name}' is a tier of '{base}'")));
        }
        if !tiering.tiers.is_empty() {
            let tiers: Vec<&str> = tiering
                .tiers
                .iter()
                .filter_map(|id| self.working.pools.get(id).map(|p| p.name.as_str()))
                .collect();
            return Err(CommandFailure::new(
                Errno::EBUSY,
                format!("pool '{name}' has tiers {}", tiers.join(" ")),
            ));
        }
        if !self.tuning.allow_pool_delete {
            return Err(CommandFailure::new(
                Errno::EPERM,
                "pool deletion is disabled; you must first set the mon_allow_pool_delete config option to true before you \
                 can destroy a pool",
            ));
        }
        if pool.has_flag(flag::NODELETE) {
            return Err(CommandFailure::new(
                Errno::EPERM,
                "pool deletion is disabled; you must unset nodelete flag for the pool first",
            ));
        }
        self.remove_pool(id);
        self.log.append(
            ctx.now,
            "mon",
            LogLevel::Info,
            format!("pool '{name}' ({id}) removed by {}", ctx.entity),
        );
        Ok(CommandAnswer::status(format!("pool '{name}' removed")))
    }

    fn pool_rename(&mut self, from: &str, to: &str) -> CommandOutcome {
        let target_exists = self.working.pool_by_name(to).is_some();
        let Some(id) = self.working.pool_by_name(from).map(|(id, _)| id) else {
            if target_exists {
                return Ok(CommandAnswer::status(format!(
                    "pool '{from}' does not exist; pool '{to}' does -- assuming successful rename"
                )));
            }
            return Err(CommandFailure::not_found(format!("unrecognized pool '{from}'")));
        };
        if target_exists {
            return Err(CommandFailure::new(Errno::EEXIST, format!("pool '{to}' already exists")));
        }
        check_name(to)?;
        self.change_pool(id, |pool| to.clone_into(&mut pool.name));
        Ok(CommandAnswer::status(format!("pool '{from}' renamed to '{to}'")))
    }

    fn pool_set_quota(&mut self, call: &Call<'_>, ctx: &Context) -> CommandOutcome {
        let name = call.required_text("pool");
        let id = self.pool_named(name)?;
        let (field, text) = (call.required_text("field"), call.required_text("val"));
        let value = match field {
            "max_bytes" => {
                parse_si(text, &[("k", 10), ("M", 20), ("G", 30), ("T", 40), ("P", 50), ("E", 60)], true)
            }
            _ => parse_si(text, &[], false),
        };
        let value = value
            .map_err(|reason| CommandFailure::invalid(format!("error parsing value '{text}': {reason}")))?;
        self.change_pool(id, |pool| match field {
            "max_bytes" => pool.quota_max_bytes = value,
            _ => pool.quota_max_objects = value,
        });
        self.update_fullness(ctx.now);
        Ok(CommandAnswer::status(format!("set-quota {field} = {value} for pool {name}")))
    }

    fn application_enable(&mut self, call: &Call<'_>) -> CommandOutcome {
        let (name, app) = (call.required_text("pool"), call.required_text("app"));
        let id = self.pool_named(name)?;
        let pool = &self.working.pools[&id];
        if app.is_empty() {
            return Err(CommandFailure::invalid("application name must be provided"));
        }
        if pool.tiering.tier_of.is_some() {
            return Err(CommandFailure::invalid("application must be enabled on base tier"));
        }
        if !pool.applications.contains_key(app) {
            if !pool.applications.is_empty() && !call.flag("yes_i_really_mean_it") {
                return Err(CommandFailure::new(
                    Errno::EPERM,
                    format!(
                        "Are you SURE? Pool '{name}' already has an enabled application; pass --yes-i-really-mean-it to \
                         proceed anyway"
                    ),
                ));
            }
            if pool.applications.len() >= MAX_APPLICATIONS {
                return Err(CommandFailure::invalid(
                    "too many enabled applications on pool '".to_owned() + name + "'; max 4",
                ));
            }
            if app.len() > MAX_APPLICATION_TEXT {
                return Err(CommandFailure::invalid(format!(
                    "application name '{app}' too long; max length 128"
                )));
            }
        }
        self.change_pool(id, |pool| {
            pool.applications.entry(app.to_owned()).or_default();
        });
        Ok(CommandAnswer::status(format!("enabled application '{app}' on pool '{name}'")))
    }

    fn application_disable(&mut self, call: &Call<'_>) -> CommandOutcome {
        let (name, app) = (call.required_text("pool"), call.required_text("app"));
        let id = self.pool_named(name)?;
        if !call.flag("yes_i_really_mean_it") {
            return Err(CommandFailure::new(
                Errno::EPERM,
                "Are you SURE? Disabling an application within a pool might result in loss of application functionality; \
                 pass --yes-i-really-mean-it to proceed anyway",
            ));
        }
        if !self.working.pools[&id].applications.contains_key(app) {
            return Ok(CommandAnswer::status(format!("application '{app}' is not enabled on pool '{name}'")));
        }
        self.change_pool(id, |pool| {
            pool.applications.remove(app);
        });
        Ok(CommandAnswer::status(format!("disable application '{app}' on pool '{name}'")))
    }
}

/// Metadata of applications.
impl MapState {
    /// The pool, if `app` is enabled on it.
    fn pool_of_application(&self, name: &str, app: &str) -> Result<PoolId, CommandFailure> {
        let id = self.pool_named(name)?;
        if !self.working.pools[&id].applications.contains_key(app) {
            return Err(CommandFailure::not_found(format!(
                "application '{app}' is not enabled on pool '{name}'"
            )));
        }
        Ok(id)
    }

    fn application_set(&mut self, call: &Call<'_>) -> CommandOutcome {
        let (name, app) = (call.required_text("pool"), call.required_text("app"));
        let (key, value) = (call.required_text("key"), call.required_text("value"));
        let of_tier = |pool: &Pool| pool.tiering.tier_of.is_some();
        if self.working.pool_by_name(name).is_some_and(|(_, pool)| of_tier(pool)) {
            return Err(CommandFailure::invalid("application metadata must be set on base tier"));
        }
        let id = self.pool_of_application(name, app)?;
        if key.is_empty() {
            return Err(CommandFailure::invalid("key must be provided"));
        }
        let keys = &self.working.pools[&id].applications[app];
        if !keys.contains_key(key) && keys.len() >= MAX_APPLICATIONS {
            let text = format!("too many keys set for application '{app}' on pool '{name}'; max 4");
            return Err(CommandFailure::invalid(text));
        }
        for (what, text) in [("key", key), ("value", value)] {
            if text.len() > MAX_APPLICATION_TEXT {
                return Err(CommandFailure::invalid(format!("{what} '{text}' too long; max length 128")));
            }
        }
        self.change_pool(id, |pool| {
            pool.applications.entry(app.to_owned()).or_default().insert(key.to_owned(), value.to_owned());
        });
        Ok(CommandAnswer::status(format!(
            "set application '{app}' key '{key}' to '{value}' on pool '{name}'"
        )))
    }

    fn application_rm(&mut self, call: &Call<'_>) -> CommandOutcome {
        let (name, app, key) =
            (call.required_text("pool"), call.required_text("app"), call.required_text("key"));
        let id = self.pool_of_application(name, app)?;
        if !self.working.pools[&id].applications[app].contains_key(key) {
            return Ok(CommandAnswer::status(format!(
                "application '{app}' on pool '{name}' does not have key '{key}'"
            )));
        }
        self.change_pool(id, |pool| {
            pool.applications.entry(app.to_owned()).or_default().remove(key);
        });
        Ok(CommandAnswer::status(format!("removed application '{app}' key '{key}' on pool '{name}'")))
    }
}

/// A rule's number for a replicated pool of this size.
pub(super) fn check_rule(crush: &CrushMap, id: u32, size: u32) -> Result<u8, CommandFailure> {
    let rule =
        crush.rule(id).ok_or_else(|| CommandFailure::not_found(format!("crush rule {id} does not exist")))?;
    let name = crush.rule_name(id).unwrap_or("?");
    if rule.kind != RuleType::Replicated {
        return Err(CommandFailure::invalid(format!("crush rule {name} type does not match pool")));
    }
    if !(u32::from(rule.min_size)..=u32::from(rule.max_size)).contains(&size) {
        return Err(CommandFailure::invalid(format!(
            "pool size {size} is not between {} and {}, which crush rule {name} allows",
            rule.min_size, rule.max_size
        )));
    }
    u8::try_from(id)
        .map_err(|_| CommandFailure::invalid(format!("crush rule id {id} is too high for a pool")))
}

/// Checks the length. Ceph accepts any name that is not empty.
fn check_name(name: &str) -> Result<(), CommandFailure> {
    if name.len() > MAX_NAME {
        return Err(CommandFailure::new(
            Errno::ENAMETOOLONG,
            format!("a pool name has at most {MAX_NAME} bytes"),
        ));
    }
    Ok(())
}

/// Parses a number with an optional unit, like `strict_iec_cast` and `strict_si_cast`.
pub(super) fn parse_si(text: &str, units: &[(&str, u32)], iec: bool) -> Result<u64, String> {
    let cast = if iec { "strict_iec_cast" } else { "strict_si_cast" };
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(format!("{cast}: value not specified"));
    }
    let value: u64 = number.parse().map_err(|_| format!("{cast}: value too large"))?;
    let unit = unit.strip_suffix('B').unwrap_or(unit);
    let unit = unit.strip_suffix('i').unwrap_or(unit);
    let unit = if unit == "K" { "k" } else { unit };
    if unit.is_empty() {
        return Ok(value);
    }
    let (_, shift) = units
        .iter()
        .find(|(name, _)| *name == unit)
        .ok_or_else(|| format!("{cast}: unit prefix not recognized"))?;
    value.checked_mul(1 << shift).ok_or_else(|| format!("{cast}: value seems to be too large"))
}
