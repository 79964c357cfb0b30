//! Failure detection: which OSDs are marked down and out.
//!
//! An OSD is marked down when enough peers in different subtrees have received nothing from it for the grace time, when its
//! address refuses connections, when it requests it, or when the map authority itself has received nothing from it for
//! `mon_osd_report_timeout`. Nothing else marks an OSD down; in particular a lost lease does not (rule R7).
//!
//! If the cluster has fewer subtrees of the configured level than required reporters (all OSDs on one host, for example),
//! OSDs count individually. The grace time is not extended for OSDs that were slow before
//! (`mon_osd_adjust_heartbeat_grace`).
//!
//! Silence is measured only while the map authority runs. Time in which it was suspended does not count: see
//! [`MapState::discount_suspension`].

use super::{LogLevel, MapState, Now};
use nacre_crush::CrushMap;
use nacre_types::ids::{EntityName, OsdId};
use nacre_types::msg::{OsdBeacon, OsdFailure, OsdMarkMeDown};
use nacre_types::osdmap::{OsdInfo, flag};
use std::collections::{BTreeMap, BTreeSet};

/// If the time between two ticks exceeds this, in milliseconds, this map authority did not run in between: the caller sends
/// one every second.
const PAUSE_MS: u64 = 5_000;
/// A report is valid for this many times the grace time, or its reporter's report interval if that is longer, after it was
/// made or repeated. Reporters repeat a report while it holds; a report that is not repeated was withdrawn by a lost message.
const REPORT_LIFE: u64 = 3;

/// One OSD's report of another one's failure.
#[derive(Clone, Copy, Debug)]
pub(super) struct FailureReport {
    /// Since when the other one has been silent, in milliseconds of the monotonic clock.
    since_ms: u64,
    /// When the report expires unless it is repeated, likewise.
    expires_ms: u64,
}

/// Reports that have not been withdrawn: by silent OSD, then by reporter.
#[derive(Clone, Debug, Default)]
pub(super) struct FailureReports {
    pub(super) by_target: BTreeMap<OsdId, BTreeMap<OsdId, FailureReport>>,
}

impl FailureReports {
    /// Removes the reports about `osd` and those made by it.
    pub(super) fn forget(&mut self, osd: OsdId) {
        self.by_target.remove(&osd);
        self.by_target.values_mut().for_each(|reports| {
            reports.remove(&osd);
        });
        self.by_target.retain(|_, reports| !reports.is_empty());
    }

    fn take_back(&mut self, target: OsdId, reporter: OsdId) {
        self.retain(target, |by, _| *by != reporter);
    }

    /// Removes reports about `target` that were not repeated in time.
    fn expire(&mut self, now: Now, target: OsdId) {
        self.retain(target, |_, report| now.mono_ms < report.expires_ms);
    }

    fn retain(&mut self, target: OsdId, mut keep: impl FnMut(&OsdId, &FailureReport) -> bool) {
        if let Some(reports) = self.by_target.get_mut(&target) {
            reports.retain(|reporter, report| keep(reporter, report));
            if reports.is_empty() {
                self.by_target.remove(&target);
            }
        }
    }
}

impl MapState {
    pub(super) fn failure(&mut self, now: Now, reporter: OsdId, report: &OsdFailure) {
        let target = report.target;
        let known = self.working.osds.get(&target);
        let applies = known.is_some_and(|info| info.up && info.boot_nonce == report.boot_nonce);
        if !applies || !self.working.is_up(reporter) || reporter == target {
            return;
        }
        if report.refused {
            if self.may_mark_down(now, target) {
                let text = format!(
                    "{target} failed ({}) (connection refused reported by {reporter})",
                    self.location_text(target)
                );
                self.log.append(now, "mon", LogLevel::Info, text);
                self.mark_down(now, target);
            }
            return;
        }
        if report.silent_ms == 0 {
            self.failures.take_back(target, reporter);
            return;
        }
        let since_ms = now.mono_ms.saturating_sub(report.silent_ms);
        let expires_ms = now.mono_ms.saturating_add(self.report_life_ms(reporter));
        let report = FailureReport { since_ms, expires_ms };
        self.failures.by_target.entry(target).or_default().insert(reporter, report);
        self.check_failure(now, target);
    }

    /// How long a report of `reporter` is valid.
    fn report_life_ms(&self, reporter: OsdId) -> u64 {
        let configured = self.config_of(&EntityName::osd(reporter));
        let interval_s =
            configured.get("osd_mon_report_interval").and_then(|value| value.parse::<u64>().ok());
        let interval_ms = interval_s.unwrap_or(0).saturating_mul(1_000);
        self.tuning.heartbeat_grace_ms.max(interval_ms).saturating_mul(REPORT_LIFE)
    }

    /// Subtracts the time since the last tick from all intervals if this map authority did not run in it (SIGSTOP, a
    /// suspended machine; the clock continues): the OSDs were not silent.
    pub(super) fn discount_suspension(&mut self, now: Now) {
        let last_ms = self.last_tick_ms.replace(now.mono_ms).unwrap_or(now.mono_ms);
        let pause_ms = now.mono_ms.saturating_sub(last_ms);
        if pause_ms <= PAUSE_MS {
            return;
        }
        let text = format!("this monitor did not run for {} seconds", pause_ms / 1_000);
        self.log.append(now, "mon", LogLevel::Warn, text);
        // What arrived after the suspension is recent and stays unchanged.
        let later = |at: &mut u64| *at = at.saturating_add(pause_ms).min(now.mono_ms);
        self.last_beacon.values_mut().for_each(later);
        self.down_since.values_mut().for_each(later);
        for report in self.failures.by_target.values_mut().flat_map(BTreeMap::values_mut) {
            later(&mut report.since_ms);
            report.expires_ms = report.expires_ms.saturating_add(pause_ms);
        }
    }

    pub(super) fn check_failures(&mut self, now: Now) {
        let targets: Vec<OsdId> = self.failures.by_target.keys().copied().collect();
        targets.into_iter().for_each(|target| self.check_failure(now, target));
    }

    fn check_failure(&mut self, now: Now, target: OsdId) {
        self.failures.expire(now, target);
        let Some(reports) = self.failures.by_target.get(&target) else { return };
        // The silence starts with the last reporter that lost contact, as in Ceph.
        let since = reports.values().map(|report| report.since_ms).max().unwrap_or(now.mono_ms);
        let silent_ms = now.mono_ms.saturating_sub(since);
        if silent_ms < self.tuning.heartbeat_grace_ms {
            return;
        }
        let level = self.reporting_level(target);
        let subtrees: BTreeSet<String> =
            reports.keys().map(|osd| subtree_of(&self.working.crush, *osd, level.as_deref())).collect();
        if subtrees.len() < self.tuning.min_down_reporters || !self.may_mark_down(now, target) {
            return;
        }
        let text = format!(
            "{target} failed ({}) ({} reporters from different {} after {:.6} >= grace {:.6})",
            self.location_text(target),
            subtrees.len(),
            level.as_deref().unwrap_or("osd"),
            silent_ms as f64 / 1e3,
            self.tuning.heartbeat_grace_ms as f64 / 1e3,
        );
        self.log.append(now, "mon", LogLevel::Info, text);
        self.mark_down(now, target);
    }

    /// The CRUSH type that distinguishes reporters of `target`; `None` if OSDs count individually.
    fn reporting_level(&self, target: OsdId) -> Option<String> {
        let level = self.tuning.reporter_subtree_level.as_str();
        let up = self.working.osds.iter().filter(|(id, info)| info.up && **id != target);
        let possible: BTreeSet<String> =
            up.map(|(id, _)| subtree_of(&self.working.crush, *id, Some(level))).collect();
        (possible.len() >= self.tuning.min_down_reporters).then(|| level.to_owned())
    }

    pub(super) fn alive(&mut self, now: Now, osd: OsdId, alive: &OsdBeacon) {
        let is_process = |info: &OsdInfo| info.up && info.boot_nonce == alive.boot_nonce;
        if !self.working.osds.get(&osd).is_some_and(is_process) {
            return;
        }
        self.last_beacon.insert(osd, now.mono_ms);
        if !self.check_history(now, &EntityName::osd(osd), alive.map) {
            return;
        }
        let Some(info) = self.working.osds.get_mut(&osd) else { return };
        if info.full != alive.full {
            info.full = alive.full;
            self.changes.osds.insert(osd);
            self.update_fullness(now);
        }
    }

    pub(super) fn check_beacons(&mut self, now: Now) {
        let timeout = self.tuning.report_timeout_ms;
        let silent = self.last_beacon.iter().filter(|(_, at)| now.mono_ms.saturating_sub(**at) > timeout);
        let silent: Vec<OsdId> = silent.map(|(osd, _)| *osd).collect();
        for osd in silent {
            if self.working.is_up(osd) && self.may_mark_down(now, osd) {
                let text =
                    format!("{osd} marked down after no beacon for {:.6} seconds", timeout as f64 / 1e3);
                self.log.append(now, "mon", LogLevel::Info, text);
                self.mark_down(now, osd);
            }
        }
    }

    pub(super) fn mark_me_down(&mut self, now: Now, osd: OsdId, request: &OsdMarkMeDown) {
        let known = self.working.osds.get(&osd);
        // An orderly shutdown is certain, so `nodown` does not prevent it.
        if known.is_some_and(|info| info.up && info.boot_nonce == request.boot_nonce) {
            self.log.append(now, "mon", LogLevel::Info, format!("{osd} marked itself down and dead"));
            self.mark_down(now, osd);
        }
    }

    /// Marks an OSD that is up down.
    pub(crate) fn mark_down(&mut self, now: Now, osd: OsdId) {
        let next = self.next_epoch();
        let epoch = self.working.epoch;
        let Some(info) = self.working.osds.get_mut(&osd).filter(|info| info.up) else { return };
        info.up = false;
        info.down_at = next;
        info.up_thru = epoch;
        if info.is_in() {
            self.down_since.insert(osd, now.mono_ms);
        }
        self.last_up_change_ns = now.wall_ns;
        self.changes.osds.insert(osd);
        self.last_beacon.remove(&osd);
        self.failures.forget(osd);
    }

    fn may_mark_down(&mut self, now: Now, osd: OsdId) -> bool {
        if self.working.has_flag(flag::NODOWN) {
            return false;
        }
        let total = self.working.osds.len();
        let up = self.working.osds.values().filter(|info| info.up).count();
        let ratio = (up as f64 - 1.0) / total.max(1) as f64;
        // The last OSDs of a small cluster may be marked down whatever the ratio is.
        let small = up <= 3;
        if ratio < self.tuning.min_up_ratio && !small {
            let text = format!(
                "not marking {osd} down: only {up} of {total} osds are up (mon_osd_min_up_ratio {})",
                self.tuning.min_up_ratio
            );
            self.log.append_once_a_minute(now, "mon", LogLevel::Warn, text);
            return false;
        }
        true
    }

    pub(super) fn check_down_out(&mut self, now: Now) {
        let interval = self.tuning.down_out_interval_ms;
        if interval == 0 || self.working.has_flag(flag::NOOUT) {
            return;
        }
        let due = self.down_since.iter().filter(|(_, since)| now.mono_ms.saturating_sub(**since) >= interval);
        let due: Vec<OsdId> = due.map(|(osd, _)| *osd).collect();
        for osd in due {
            if !self.may_mark_out(osd) {
                continue;
            }
            self.down_since.remove(&osd);
            let Some(info) = self.working.osds.get_mut(&osd) else { continue };
            if info.up || !info.is_in() {
                continue;
            }
            info.weight_before_auto_out = Some(info.weight);
            info.weight = 0;
            self.last_in_change_ns = now.wall_ns;
            self.changes.osds.insert(osd);
            let text = format!("Marking {osd} out (has been down for {} seconds)", interval / 1000);
            self.log.append(now, "mon", LogLevel::Info, text);
        }
    }

    fn may_mark_out(&self, osd: OsdId) -> bool {
        let total = self.working.osds.len().max(1);
        let in_now = self.working.osds.values().filter(|info| info.is_in()).count();
        if (in_now as f64 / total as f64) < self.tuning.min_in_ratio {
            return false;
        }
        !self.whole_subtree_is_down(osd)
    }

    /// Whether all OSDs in the OSD's subtree of type `mon_osd_down_out_subtree_limit` are down.
    fn whole_subtree_is_down(&self, osd: OsdId) -> bool {
        let crush = &self.working.crush;
        let Some(limit) = crush.type_id(&self.tuning.down_out_subtree_limit) else { return false };
        let mut item = osd.0 as i32;
        while let Some(parent) = crush.parents(item).find(|b| !crush.is_shadow(b.id)) {
            if i32::from(parent.type_id) == limit {
                let devices = crush.devices_below(parent.id);
                return devices.iter().all(|device| !self.working.is_up(OsdId(*device as u32)));
            }
            item = parent.id;
        }
        false
    }

    /// An OSD's location as Ceph's log and health print it: `root=default,host=a`.
    pub(crate) fn location_text(&self, osd: OsdId) -> String {
        location_text(&self.working.crush, osd)
    }
}

/// An item's ancestors, topmost first: `root=default,host=a`.
pub(crate) fn location_text(crush: &CrushMap, osd: OsdId) -> String {
    let mut parts = Vec::new();
    let mut item = osd.0 as i32;
    while let Some(parent) = crush.parents(item).find(|b| !crush.is_shadow(b.id)) {
        let type_name = crush.type_name(i32::from(parent.type_id)).unwrap_or("?");
        parts.push(format!("{type_name}={}", crush.item_name(parent.id).unwrap_or("?")));
        item = parent.id;
    }
    parts.reverse();
    parts.join(",")
}

/// The name of the OSD's ancestor of type `level`, or of the OSD itself if it has none.
fn subtree_of(crush: &CrushMap, osd: OsdId, level: Option<&str>) -> String {
    let location = crush.full_location(osd.0 as i32);
    level.and_then(|level| location.get(level).cloned()).unwrap_or_else(|| osd.to_string())
}
