//! Health checks with Ceph's codes and texts. A pure function of the map state and the time.

mod tiers;

use crate::logic::{Fullness, MapState, Mutes, Now, location_text};
use crate::pgview::PgView;
use crate::text::{age, bracketed_list, float, plural, stamp};
use nacre_crush::CrushMap;
use nacre_types::ids::OsdId;
use nacre_types::osdmap::flag;
use nacre_types::pool::flag as pool_flag;
use nacre_types::stats::pg_state;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The number of daemons with slow ops that a summary lists.
const SLOW_DAEMONS: usize = 10;

/// The usage of the map store from which health warns, in percent of its limit.
const MAP_STORE_NEARFULL_PERCENT: u64 = 60;

/// The severity of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Something needs attention.
    Warn,
    /// Something does not work.
    Error,
}

impl Severity {
    /// `HEALTH_WARN` or `HEALTH_ERR`.
    pub fn as_str(self) -> &'static str {
        match self {
            Severity::Warn => "HEALTH_WARN",
            Severity::Error => "HEALTH_ERR",
        }
    }

    fn tag(self) -> &'static str {
        match self {
            Severity::Warn => "[WRN]",
            Severity::Error => "[ERR]",
        }
    }
}

/// One failed check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// `OSD_DOWN` and so on.
    pub code: String,
    /// Its severity.
    pub severity: Severity,
    /// A summary in one line.
    pub summary: String,
    /// The number of affected things.
    pub count: usize,
    /// One line for each of them.
    pub detail: Vec<String>,
    /// Whether it is muted and does not count.
    pub muted: bool,
}

/// All checks, by code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// The failed checks; empty if all is well.
    pub checks: Vec<HealthCheck>,
    /// The muted checks, whether they fail now or not.
    pub mutes: Mutes,
}

impl Health {
    /// `HEALTH_OK`, `HEALTH_WARN` or `HEALTH_ERR`.
    pub fn status(&self) -> &'static str {
        self.checks
            .iter()
            .filter(|c| !c.muted)
            .map(|c| c.severity)
            .max()
            .map_or("HEALTH_OK", Severity::as_str)
    }

    /// The text of `health` or `health detail`.
    pub(crate) fn text(&self, detail: bool, now: Now) -> String {
        let summaries = self.summaries(now);
        let mut out = self.status().to_owned();
        if !summaries.is_empty() {
            out.push(' ');
            out.push_str(&summaries.join("; "));
        }
        out.push('\n');
        if detail {
            for check in &self.checks {
                if let Some(mute) = self.mutes.get(&check.code) {
                    let ttl = mute.until_ns.map(|until| format!(" ttl {}", left(until, now)));
                    let sticky = if mute.sticky { ", STICKY" } else { "" };
                    out.push_str(&format!("(MUTED{}{sticky}) ", ttl.unwrap_or_default()));
                }
                out.push_str(&format!("{} {}: {}\n", check.severity.tag(), check.code, check.summary));
                check.detail.iter().for_each(|line| out.push_str(&format!("    {line}\n")));
            }
        }
        out
    }

    /// One line for each check that counts, and one for the muted checks.
    pub(crate) fn summaries(&self, now: Now) -> Vec<String> {
        let counting = self.checks.iter().filter(|check| !check.muted);
        let mut lines: Vec<String> = counting.map(|check| check.summary.clone()).collect();
        if !self.mutes.is_empty() {
            let muted = self.mutes.iter().map(|(code, mute)| match mute.until_ns {
                Some(until) => format!("{code}({})", left(until, now)),
                None => code.clone(),
            });
            lines.push(format!("(muted: {})", muted.collect::<Vec<_>>().join(" ")));
        }
        lines
    }

    pub(crate) fn json(&self, detail: bool) -> Value {
        let mut checks = Map::new();
        for check in &self.checks {
            let mut entry = Map::new();
            entry.insert("severity".into(), check.severity.as_str().into());
            entry.insert("summary".into(), json!({ "message": check.summary, "count": check.count }));
            if detail {
                let lines: Vec<Value> = check.detail.iter().map(|line| json!({ "message": line })).collect();
                entry.insert("detail".into(), Value::Array(lines));
            }
            entry.insert("muted".into(), check.muted.into());
            checks.insert(check.code.clone(), Value::Object(entry));
        }
        let mutes = self.mutes.iter().map(|(code, mute)| {
            let mut entry = Map::new();
            entry.insert("code".into(), code.as_str().into());
            entry.extend(mute.until_ns.map(|until| ("ttl".into(), stamp(until).into())));
            entry.insert("sticky".into(), mute.sticky.into());
            entry.insert("summary".into(), mute.summary.as_str().into());
            entry.insert("count".into(), mute.count.into());
            Value::Object(entry)
        });
        json!({ "status": self.status(), "checks": checks, "mutes": mutes.collect::<Value>() })
    }

    fn add(&mut self, code: &str, severity: Severity, summary: String, count: usize, detail: Vec<String>) {
        let muted = self.mutes.contains_key(code);
        self.checks.push(HealthCheck { code: code.to_owned(), severity, summary, count, detail, muted });
    }

    fn limit_detail(&mut self, lines: usize) {
        for check in self.checks.iter_mut().filter(|check| check.detail.len() > lines) {
            let more = check.detail.len() - lines;
            check.detail.truncate(lines);
            check.detail.push(format!("{more} more {}", if more == 1 { "entry" } else { "entries" }));
        }
    }

    fn add_each(&mut self, code: &str, severity: Severity, what: &str, detail: Vec<String>) {
        if !detail.is_empty() {
            let count = detail.len();
            self.add(code, severity, format!("{count} {what}"), count, detail);
        }
    }
}

impl MapState {
    /// The health at `now`.
    pub fn health(&self, now: Now) -> Health {
        self.health_of(now, &self.pg_views())
    }

    pub(crate) fn health_of(&self, now: Now, views: &[PgView]) -> Health {
        let mut health = Health { mutes: self.mutes().clone(), ..Health::default() };
        self.check_osds_down(&mut health);
        self.check_flags(&mut health);
        self.check_osds_full(&mut health);
        self.check_pools(&mut health);
        self.check_tiers(views, &mut health);
        self.check_counts(&mut health);
        self.check_reports(now, &mut health);
        self.check_slow_ops(&mut health);
        self.check_pgs(now, views, &mut health);
        let rolled_back: Vec<String> = self.rolled_back.values().cloned().collect();
        health.add_each(
            "MAP_STORE_ROLLED_BACK",
            Severity::Error,
            "daemon(s) have seen a map that the map store does not hold; nothing is committed",
            rolled_back,
        );
        self.check_map_store(now, &mut health);
        health.limit_detail(self.tuning.health_max_detail);
        health.checks.sort_by(|a, b| a.code.cmp(&b.code));
        health
    }

    /// The checks of the map store, which Ceph does not have.
    fn check_map_store(&self, now: Now, health: &mut Health) {
        if self.map_store.no_space {
            let text = "the map store refuses writes because its database has reached its limit".to_owned();
            let detail =
                "remove old revisions (etcdctl compact, defrag), then etcdctl alarm disarm".to_owned();
            health.add("MAP_STORE_FULL", Severity::Error, text, 1, vec![detail]);
        } else if let Some(error) = &self.map_store.unavailable {
            let text = "the map store does not answer; changes of the map and commands wait".to_owned();
            let tickets = match self.ticket_grace_left_ms(now) {
                Some(0) => "tickets are no longer renewed (mon_ticket_grace): clients end when theirs expire"
                    .to_owned(),
                left => format!("tickets are renewed for {} more seconds", left.unwrap_or_default() / 1000),
            };
            health.add("MAP_STORE_UNAVAILABLE", Severity::Error, text, 1, vec![error.clone(), tickets]);
        }
        if let Some((used, limit)) = self.map_store.usage
            && used * 100 >= limit * MAP_STORE_NEARFULL_PERCENT
        {
            let text = format!("the map store uses {} of {} MiB", used >> 20, limit >> 20);
            health.add("MAP_STORE_NEARFULL", Severity::Warn, text, 1, Vec::new());
        }
    }

    fn check_osds_down(&self, health: &mut Health) {
        let map = &self.committed;
        let down: Vec<OsdId> =
            map.osds.iter().filter(|(_, info)| info.is_in() && !info.up).map(|(id, _)| *id).collect();
        let detail = down.iter().map(|osd| format!("{osd} ({}) is down", location_text(&map.crush, *osd)));
        health.add_each("OSD_DOWN", Severity::Warn, "osds down", detail.collect());

        let mut by_type: BTreeMap<i32, BTreeSet<i32>> = BTreeMap::new();
        for osd in &down {
            let mut item = osd.0 as i32;
            while let Some(parent) = map.crush.parents(item).find(|b| !map.crush.is_shadow(b.id)) {
                let devices = map.crush.devices_below(parent.id);
                if devices.iter().any(|device| map.is_up(OsdId(*device as u32))) {
                    break;
                }
                by_type.entry(i32::from(parent.type_id)).or_default().insert(parent.id);
                item = parent.id;
            }
        }
        for (type_id, buckets) in by_type {
            let type_name = map.crush.type_name(type_id).unwrap_or("bucket");
            let osds: usize = buckets.iter().map(|id| map.crush.devices_below(*id).len()).sum();
            let detail = buckets.iter().map(|id| {
                let name = map.crush.item_name(*id).unwrap_or("?");
                let osds = map.crush.devices_below(*id).len();
                format!("{type_name} {name} ({}) ({osds} osds) is down", ancestors_text(&map.crush, *id))
            });
            let count = buckets.len();
            let summary = format!("{count} {} ({osds} osds) down", plural(count, type_name));
            let code = format!("OSD_{}_DOWN", type_name.to_uppercase());
            health.add(&code, Severity::Warn, summary, count, detail.collect());
        }
        let orphans =
            map.crush.item_names().filter(|(id, _)| *id >= 0 && !map.osds.contains_key(&OsdId(*id as u32)));
        let orphans = orphans.map(|(id, _)| format!("osd.{id} exists in crush map but not in osdmap"));
        health.add_each(
            "OSD_ORPHAN",
            Severity::Warn,
            "osds exist in the crush map but not in the osdmap",
            orphans.collect(),
        );
    }

    fn check_flags(&self, health: &mut Health) {
        const WARNED: u32 = flag::PAUSERD
            | flag::PAUSEWR
            | flag::NOUP
            | flag::NODOWN
            | flag::NOOUT
            | flag::NOIN
            | flag::NOBACKFILL
            | flag::NORECOVER
            | flag::NOSCRUB
            | flag::NODEEP_SCRUB
            | flag::NOTIERAGENT
            | flag::NOREBALANCE
            | flag::NOSNAPTRIM;
        let set: Vec<&str> = flag::NAMES
            .iter()
            .filter(|(bit, _)| self.committed.flags & bit & WARNED != 0)
            .map(|(_, name)| *name)
            .collect();
        if !set.is_empty() {
            health.add(
                "OSDMAP_FLAGS",
                Severity::Warn,
                format!("{} flag(s) set", set.join(",")),
                set.len(),
                vec![],
            );
        }
    }

    fn check_osds_full(&self, health: &mut Health) {
        let map = &self.committed;
        let mut order = Vec::new();
        if map.backfillfull_ratio < map.nearfull_ratio {
            order.push(format!(
                "backfillfull_ratio ({}) < nearfull_ratio ({}), increased",
                float(f64::from(map.backfillfull_ratio)),
                float(f64::from(map.nearfull_ratio))
            ));
        }
        if map.full_ratio < map.backfillfull_ratio {
            order.push(format!(
                "full_ratio ({}) < backfillfull_ratio ({}), increased",
                float(f64::from(map.full_ratio)),
                float(f64::from(map.backfillfull_ratio))
            ));
        }
        if !order.is_empty() {
            let count = order.len();
            health.add(
                "OSD_OUT_OF_ORDER_FULL",
                Severity::Error,
                "full ratio(s) out of order".into(),
                count,
                order,
            );
        }
        for (level, code, severity, word) in [
            (Fullness::Full, "OSD_FULL", Severity::Error, "full"),
            (Fullness::Backfill, "OSD_BACKFILLFULL", Severity::Warn, "backfillfull"),
            (Fullness::Near, "OSD_NEARFULL", Severity::Warn, "nearfull"),
        ] {
            let osds = map.osds.keys().filter(|osd| map.is_up(**osd) && self.fullness(**osd) == level);
            let detail: Vec<String> = osds
                .map(|osd| match level {
                    Fullness::Near => format!("{osd} is near full"),
                    Fullness::Backfill => format!("{osd} is backfill full"),
                    _ => format!("{osd} is full"),
                })
                .collect();
            health.add_each(code, severity, &format!("{word} osd(s)"), detail);
        }
    }

    fn check_pools(&self, health: &mut Health) {
        let map = &self.committed;
        let (mut full, mut backfill, mut near) = (Vec::new(), Vec::new(), Vec::new());
        let (mut alone, mut apps, mut pgp, mut targets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (id, pool) in &map.pools {
            let name = &pool.name;
            if pool.has_flag(pool_flag::FULL) {
                let why =
                    if pool.has_flag(pool_flag::FULL_QUOTA) { "running out of quota" } else { "no space" };
                full.push(format!("pool '{name}' is full ({why})"));
            } else if pool.has_flag(pool_flag::BACKFILLFULL) {
                backfill.push(format!("pool '{name}' is backfillfull"));
            } else if pool.has_flag(pool_flag::NEARFULL) {
                near.push(format!("pool '{name}' is nearfull"));
            }
            if pool.size == 1 && self.tuning.warn_on_pool_no_redundancy {
                alone.push(format!("pool '{name}' has no replicas configured"));
            }
            let used = self.pool_sums(*id).objects > 0;
            if used
                && pool.applications.is_empty()
                && pool.tiering.tier_of.is_none()
                && self.tuning.warn_on_pool_no_app
            {
                apps.push(format!("application not enabled on pool '{name}'"));
            }
            if pool.pg_num > pool.pgp_num {
                pgp.push(format!("pool {name} pg_num {} > pgp_num {}", pool.pg_num, pool.pgp_num));
            }
            if pool.options.contains_key("target_size_bytes")
                && pool.options.contains_key("target_size_ratio")
            {
                targets.push(format!("Pool {name} has target_size_bytes and target_size_ratio set"));
            }
        }
        health.add_each("POOL_FULL", Severity::Warn, "pool(s) full", full);
        health.add_each("POOL_BACKFILLFULL", Severity::Warn, "pool(s) backfillfull", backfill);
        health.add_each("POOL_NEARFULL", Severity::Warn, "pool(s) nearfull", near);
        health.add_each("POOL_NO_REDUNDANCY", Severity::Warn, "pool(s) have no replicas configured", alone);
        health.add_each("SMALLER_PGP_NUM", Severity::Warn, "pools have pg_num > pgp_num", pgp);
        health.add_each(
            "POOL_HAS_TARGET_SIZE_BYTES_AND_RATIO",
            Severity::Warn,
            "pools have both target_size_bytes and target_size_ratio set",
            targets,
        );
        if !apps.is_empty() {
            let count = apps.len();
            apps.push(
                "use 'ceph osd pool application enable <pool-name> <app-name>', where <app-name> is 'cephfs', \
                 'rbd', 'rgw', or freeform for custom applications."
                    .into(),
            );
            let summary = format!("{count} pool(s) do not have an application enabled");
            health.add("POOL_APP_NOT_ENABLED", Severity::Warn, summary, count, apps);
        }
    }

    fn check_counts(&self, health: &mut Health) {
        let map = &self.committed;
        let osds = map.osds.len();
        let wanted = self.tuning.pool_default_size as usize;
        if self.tuning.warn_on_too_few_osds && osds < wanted {
            let summary = format!("OSD count {osds} < osd_pool_default_size {wanted}");
            health.add("TOO_FEW_OSDS", Severity::Warn, summary, 0, vec![]);
        }
        if self.tuning.warn_on_down_out_interval_zero && self.tuning.down_out_interval_ms == 0 {
            let summary = format!("mon.{} has mon_osd_down_out_interval set to 0", self.mon_name);
            let detail = "this has the same effect as the 'noout' flag".to_owned();
            health.add("OSD_NO_DOWN_OUT_INTERVAL", Severity::Warn, summary, 1, vec![detail]);
        }
        let in_osds = map.osds.values().filter(|info| info.is_in()).count() as u64;
        let replicas: u64 =
            map.pools.values().map(|pool| u64::from(pool.pg_num) * u64::from(pool.size)).sum();
        let max = u64::from(self.tuning.max_pg_per_osd);
        if in_osds > 0 && replicas / in_osds > max {
            let summary = format!("too many PGs per OSD ({} > max {max})", replicas / in_osds);
            health.add("TOO_MANY_PGS", Severity::Warn, summary, 0, vec![]);
        }
    }

    /// Adds the health reports of OSDs.
    fn check_reports(&self, now: Now, health: &mut Health) {
        let mut by_code: BTreeMap<&str, Vec<(OsdId, &str)>> = BTreeMap::new();
        for (osd, stats) in self.stats.osds.iter().filter(|(osd, _)| self.committed.is_up(**osd)) {
            for (code, text) in &stats.health {
                by_code.entry(code).or_default().push((*osd, text));
            }
        }
        for (osd, code, text) in self.stats.starting(now) {
            by_code.entry(code).or_default().push((osd, text));
        }
        for (code, lines) in by_code {
            let first = lines[0].1;
            let alike = lines.iter().all(|(_, text)| *text == first);
            let summary = match lines.len() {
                1 => format!("{} has {first}", lines[0].0),
                n if alike => format!("{n} osd(s) have {first}"),
                n => format!("{n} reports from osds"),
            };
            let detail = lines.iter().map(|(osd, text)| format!("{osd}: {text}")).collect();
            health.add(code, Severity::Warn, summary, lines.len(), detail);
        }
    }

    /// Adds requests that take too long, in Ceph's words. The details list the oldest one of each OSD and what it waits for.
    fn check_slow_ops(&self, health: &mut Health) {
        let up = self.stats.osds.iter().filter(|(osd, _)| self.committed.is_up(**osd));
        let slow: Vec<_> = up.filter(|(_, stats)| stats.slow_ops.count > 0).collect();
        let count: u64 = slow.iter().map(|(_, stats)| stats.slow_ops.count).sum();
        let oldest_s = slow.iter().map(|(_, stats)| stats.slow_ops.oldest_ms / 1000).max().unwrap_or(0);
        let names: Vec<String> = slow.iter().map(|(osd, _)| osd.to_string()).collect();
        let who = match &names[..] {
            [] => return,
            [one] => format!("{one} has slow ops"),
            some if some.len() <= SLOW_DAEMONS => format!("daemons {} have slow ops.", bracketed_list(some)),
            many => format!("daemons {}... have slow ops.", bracketed_list(&many[..SLOW_DAEMONS])),
        };
        let summary = format!("{count} slow ops, oldest one blocked for {oldest_s} sec, {who}");
        let detail = slow.iter().map(|(osd, stats)| {
            let slow = &stats.slow_ops;
            format!(
                "{osd}: {} slow ops, oldest one blocked for {} sec: {}",
                slow.count,
                slow.oldest_ms / 1000,
                slow.oldest
            )
        });
        health.add("SLOW_OPS", Severity::Warn, summary, count as usize, detail.collect());
    }

    fn check_pgs(&self, now: Now, views: &[PgView], health: &mut Health) {
        let mut found = PgFindings::default();
        for view in views {
            self.judge(now, view, &mut found);
        }
        let sums = self.pg_sums(views);
        let percent = |part: u64, of: u64| 100.0 * part as f64 / of.max(1) as f64;
        let mut degraded = String::new();
        if sums.degraded > 0 {
            degraded = format!(
                "{}/{} objects degraded ({:.3}%)",
                sums.degraded,
                sums.copies,
                percent(sums.degraded, sums.copies)
            );
        }
        found.report(health, "PG_AVAILABILITY", Severity::Warn, "Reduced data availability", "");
        found.report(health, "PG_DEGRADED", Severity::Warn, "Degraded data redundancy", &degraded);
        found.report(health, "PG_DAMAGED", Severity::Error, "Possible data damage", "");
        found.report(health, "PG_RECOVERY_FULL", Severity::Error, "Full OSDs blocking recovery", "");
        found.report(
            health,
            "PG_BACKFILL_FULL",
            Severity::Warn,
            "Low space hindering backfill (add storage if this doesn't resolve itself)",
            "",
        );
        if sums.unfound > 0 {
            let summary = format!(
                "{}/{} objects unfound ({:.3}%)",
                sums.unfound,
                sums.objects,
                percent(sums.unfound, sums.objects)
            );
            let detail = views
                .iter()
                .filter(|view| view.stats.unfound > 0)
                .map(|view| format!("pg {} has {} unfound objects", view.pg, view.stats.unfound));
            health.add("OBJECT_UNFOUND", Severity::Warn, summary, sums.unfound as usize, detail.collect());
        }
    }

    fn judge(&self, now: Now, view: &PgView, found: &mut PgFindings) {
        const AT_ONCE: &[(u64, &str, &str)] = &[
            (pg_state::INCOMPLETE, "PG_AVAILABILITY", "incomplete"),
            (pg_state::DOWN, "PG_AVAILABILITY", "down"),
            (pg_state::STALE, "PG_AVAILABILITY", "stale"),
            (pg_state::PEERING, "PG_AVAILABILITY", "peering"),
            (pg_state::DEGRADED, "PG_DEGRADED", "degraded"),
            (pg_state::INCONSISTENT, "PG_DAMAGED", "inconsistent"),
            (pg_state::RECOVERY_TOOFULL, "PG_RECOVERY_FULL", "recovery_toofull"),
            (pg_state::BACKFILL_TOOFULL, "PG_BACKFILL_FULL", "backfill_toofull"),
        ];
        let acting = bracketed_list(view.acting.iter().map(|osd| osd.0));
        for (bit, code, word) in AT_ONCE {
            // Short peering is normal.
            if view.has_state(*bit)
                && (*bit != pg_state::PEERING || self.stuck_s(now, view) >= self.tuning.pg_stuck_threshold_s)
            {
                let detail = format!("pg {} is {}, acting {acting}", view.pg, view.state_text());
                found.add(code, word, view, detail);
            }
        }
        if !view.lost_by.is_empty() {
            let names: Vec<String> = view.lost_by.iter().map(OsdId::to_string).collect();
            let detail = format!(
                "pg {} has lost all copies: {} lost their contents; reads and writes wait",
                view.pg,
                names.join(", ")
            );
            found.add("PG_DAMAGED", "lost", view, detail);
        }
        let stuck_s = self.stuck_s(now, view);
        if stuck_s < self.tuning.pg_stuck_threshold_s {
            return;
        }
        let stuck = [
            (!view.has_state(pg_state::ACTIVE), "PG_AVAILABILITY", "inactive"),
            (view.has_state(pg_state::UNDERSIZED), "PG_DEGRADED", "undersized"),
        ];
        for (applies, code, word) in stuck {
            if applies {
                let detail = format!(
                    "pg {} is stuck {word} for {}, current state {}, last acting {acting}",
                    view.pg,
                    age(stuck_s),
                    view.state_text()
                );
                found.add(code, word, view, detail);
            }
        }
    }

    /// Seconds for which a PG has not been healthy: since it was last clean (or last active, if it is not active now), but at
    /// most the age of the pool, or of this map authority if the PG never was.
    pub(crate) fn stuck_s(&self, now: Now, view: &PgView) -> u64 {
        let good_ns = if view.has_state(pg_state::ACTIVE) {
            view.stats.last_clean_ns
        } else {
            view.stats.last_active_ns
        };
        let born_ns = self.committed.pools.get(&view.pg.pool).map_or(0, |pool| pool.created_ns);
        let since = good_ns.max(born_ns).max(if good_ns == 0 { self.started_ns } else { 0 });
        now.wall_ns.saturating_sub(since) / 1_000_000_000
    }
}

/// Ceph's short timespan from now until `until_ns`.
fn left(until_ns: u64, now: Now) -> String {
    age(until_ns.saturating_sub(now.wall_ns) / 1_000_000_000)
}

/// The ancestors of the bucket `id`, such as `root=default`, topmost first.
fn ancestors_text(crush: &CrushMap, id: i32) -> String {
    let mut parts = Vec::new();
    let mut item = id;
    while let Some(parent) = crush.parents(item).find(|b| !crush.is_shadow(b.id)) {
        let type_name = crush.type_name(i32::from(parent.type_id)).unwrap_or("?");
        parts.push(format!("{type_name}={}", crush.item_name(parent.id).unwrap_or("?")));
        item = parent.id;
    }
    parts.reverse();
    parts.join(",")
}

/// Problems of PGs, by check, then by word.
#[derive(Default)]
struct PgFindings {
    words: BTreeMap<&'static str, BTreeMap<&'static str, usize>>,
    detail: BTreeMap<&'static str, BTreeMap<(i64, u32), String>>,
}

impl PgFindings {
    fn add(&mut self, code: &'static str, word: &'static str, view: &PgView, detail: String) {
        *self.words.entry(code).or_default().entry(word).or_default() += 1;
        self.detail.entry(code).or_default().insert((view.pg.pool.0, view.pg.seed), detail);
    }

    fn report(
        &mut self,
        health: &mut Health,
        code: &'static str,
        severity: Severity,
        title: &str,
        lead: &str,
    ) {
        let words = self.words.remove(code).unwrap_or_default();
        if words.is_empty() && lead.is_empty() {
            return;
        }
        let counts = words.iter().map(|(word, n)| format!("{n} {} {word}", plural(*n, "pg")));
        let parts: Vec<String> =
            (!lead.is_empty()).then(|| lead.to_owned()).into_iter().chain(counts).collect();
        let detail = self.detail.remove(code).unwrap_or_default().into_values().collect();
        health.add(code, severity, format!("{title}: {}", parts.join(", ")), words.values().sum(), detail);
    }
}

#[cfg(test)]
mod tests;
