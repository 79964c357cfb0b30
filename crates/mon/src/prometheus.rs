//! The cluster's metrics under the names of Ceph's manager module `prometheus`, so that its dashboards and alerts work.

use crate::health::Severity;
use crate::logic::{MapState, Now};
use nacre_common::metrics::MetricKind::{Counter, Gauge};
use nacre_common::metrics::{Exposition, Metric, MetricKind};
use nacre_types::osdmap::{WEIGHT_ONE, flag};
use nacre_types::stats::pg_state;
use std::collections::{BTreeMap, BTreeSet};

/// OSDMap flags that have a metric.
const FLAGS: &[(u32, &str)] = &[
    (flag::NOUP, "noup"),
    (flag::NODOWN, "nodown"),
    (flag::NOOUT, "noout"),
    (flag::NOIN, "noin"),
    (flag::NOBACKFILL, "nobackfill"),
    (flag::NOREBALANCE, "norebalance"),
    (flag::NORECOVER, "norecover"),
    (flag::NOSCRUB, "noscrub"),
    (flag::NODEEP_SCRUB, "nodeep_scrub"),
];

/// Adds values with one set of labels.
struct Writer<'a, 'l> {
    out: &'a mut Exposition,
    labels: &'l [(&'l str, &'l str)],
}

impl Writer<'_, '_> {
    fn put(&mut self, name: &str, kind: MetricKind, help: &str, value: f64) {
        self.out.add(name, kind, help, self.labels, value);
    }
}

fn flag_value(on: bool) -> f64 {
    if on { 1.0 } else { 0.0 }
}

impl MapState {
    /// Adds the cluster's metrics at `now`.
    pub fn expose(&self, now: Now, out: &mut Exposition) {
        self.expose_health(now, out);
        self.expose_mon(out);
        self.expose_osds(out);
        self.expose_pools(out);
        self.expose_cluster(out);
    }

    /// The metrics endpoints of the daemons that are up, each once.
    pub fn metrics_targets(&self) -> Vec<String> {
        let own = self.mon_metadata.get("exporter_addr");
        let up = self.map().osds.values().filter(|info| info.up);
        let osds = up.filter_map(|info| info.metadata.get("exporter_addr"));
        let targets: BTreeSet<&String> = own.into_iter().chain(osds).collect();
        targets.into_iter().cloned().collect()
    }

    fn expose_health(&self, now: Now, out: &mut Exposition) {
        let health = self.health(now);
        let status = match health.status() {
            "HEALTH_OK" => 0.0,
            "HEALTH_WARN" => 1.0,
            _ => 2.0,
        };
        out.add("ceph_health_status", Gauge, "Cluster health status", &[], status);
        for check in &health.checks {
            let severity = match check.severity {
                Severity::Warn => "HEALTH_WARN",
                Severity::Error => "HEALTH_ERR",
            };
            let labels = [("name", check.code.as_str()), ("severity", severity)];
            let help = "healthcheck status by type (0=inactive, 1=active)";
            out.add("ceph_health_detail", Gauge, help, &labels, flag_value(!check.muted));
        }
        let slow: u64 = self.stats().osds.values().map(|stats| stats.slow_ops.count).sum();
        out.add(
            "ceph_healthcheck_slow_ops",
            Gauge,
            "OSD or Monitor requests taking a long time to process",
            &[],
            slow as f64,
        );
        for (osd, stats) in self.stats().osds.iter().filter(|(osd, _)| self.map().is_up(**osd)) {
            let daemon = osd.to_string();
            let labels = [("ceph_daemon", daemon.as_str()), ("type", "SLOW_OPS")];
            let help = "Health metrics for Ceph daemons";
            out.add("ceph_daemon_health_metrics", Gauge, help, &labels, stats.slow_ops.count as f64);
        }
    }

    fn expose_mon(&self, out: &mut Exposition) {
        let daemon = format!("mon.{}", self.mon_name);
        let labels = [("ceph_daemon", daemon.as_str())];
        out.add("ceph_mon_quorum_status", Gauge, "Monitors in quorum", &labels, 1.0);
        let fact = |name: &str| self.mon_metadata.get(name).map_or("", String::as_str);
        let addr = self.mon_addr.map(|addr| addr.to_string()).unwrap_or_default();
        let labels = [
            ("ceph_daemon", daemon.as_str()),
            ("ceph_version", fact("ceph_version")),
            ("hostname", fact("hostname")),
            ("public_addr", addr.as_str()),
            ("rank", "0"),
        ];
        out.add("ceph_mon_metadata", Gauge, "MON Metadata", &labels, 1.0);
    }

    fn expose_osds(&self, out: &mut Exposition) {
        let map = self.map();
        let pgs = self.pgs_per_osd();
        for (osd, info) in &map.osds {
            let daemon = osd.to_string();
            let mut writer = Writer { out, labels: &[("ceph_daemon", &daemon)] };
            writer.put("ceph_osd_up", Gauge, "OSD status up", flag_value(info.up));
            writer.put("ceph_osd_in", Gauge, "OSD status in", flag_value(info.is_in()));
            let weight = f64::from(info.weight) / f64::from(WEIGHT_ONE);
            writer.put("ceph_osd_weight", Gauge, "OSD status weight", weight);
            writer.put(
                "ceph_osd_pgs",
                Gauge,
                "PGs that the OSD is an acting member of",
                pgs.get(osd).map_or(0.0, |n| *n as f64),
            );
            if let Some(stats) = self.stats().osds.get(osd) {
                let (total, available) = (stats.total_bytes, stats.available_bytes);
                writer.put(
                    "ceph_osd_apply_latency_ms",
                    Gauge,
                    "OSD stat apply_latency_ms",
                    f64::from(stats.apply_latency_ms),
                );
                writer.put(
                    "ceph_osd_commit_latency_ms",
                    Gauge,
                    "OSD stat commit_latency_ms",
                    f64::from(stats.commit_latency_ms),
                );
                writer.put("ceph_osd_total_bytes", Gauge, "Size of the OSD's store", total as f64);
                writer.put(
                    "ceph_osd_used_bytes",
                    Gauge,
                    "Used space of the OSD's store",
                    total.saturating_sub(available) as f64,
                );
            }
            let fact = |name: &str| info.metadata.get(name).map_or("", String::as_str);
            let addr = info.addr.map(|addr| addr.to_string()).unwrap_or_default();
            let class = map.crush.device_class(osd.0 as i32).unwrap_or("");
            let labels = [
                ("ceph_daemon", daemon.as_str()),
                ("ceph_version", fact("ceph_version")),
                ("cluster_addr", addr.as_str()),
                ("device_class", class),
                ("hostname", fact("hostname")),
                ("objectstore", fact("osd_objectstore")),
                ("public_addr", addr.as_str()),
            ];
            out.add("ceph_osd_metadata", Gauge, "OSD Metadata", &labels, 1.0);
        }
        for (bit, name) in FLAGS {
            let metric = format!("ceph_osd_flag_{name}");
            out.add(&metric, Gauge, &format!("OSD Flag {name}"), &[], flag_value(map.has_flag(*bit)));
        }
    }

    fn expose_pools(&self, out: &mut Exposition) {
        let map = self.map();
        let views = self.pg_views();
        let mut states: BTreeMap<(i64, &str), u64> = BTreeMap::new();
        for view in &views {
            *states.entry((view.pg.pool.0, "total")).or_default() += 1;
            if view.state == 0 {
                *states.entry((view.pg.pool.0, "unknown")).or_default() += 1;
            }
            for (_, name) in pg_state::NAMES.iter().filter(|(bit, _)| view.has_state(*bit)) {
                *states.entry((view.pg.pool.0, name)).or_default() += 1;
            }
        }
        let names = pg_state::NAMES.iter().map(|(_, name)| *name).chain(["total", "unknown"]);
        let names: Vec<&str> = names.collect();
        for (id, pool) in &map.pools {
            let pool_id = id.to_string();
            let usage = self.pool_usage(*id, pool);
            let io = self.stats().pool_io_counters(*id);
            let size = f64::from(pool.size);
            let mut writer = Writer { out, labels: &[("pool_id", &pool_id)] };
            let mut gauge = |name: &str, what: &str, value: f64| {
                writer.put(&format!("ceph_pool_{name}"), Gauge, &format!("DF pool {what}"), value);
            };
            gauge("stored", "stored", usage.stored as f64);
            gauge("stored_raw", "stored_raw", usage.stored as f64 * size);
            gauge("bytes_used", "bytes_used", usage.used as f64);
            gauge("max_avail", "max_avail", usage.max_avail as f64);
            gauge("avail_raw", "avail_raw", usage.max_avail as f64 * size);
            gauge("percent_used", "percent_used", usage.percent);
            gauge("objects", "objects", usage.objects as f64);
            gauge("dirty", "dirty", usage.dirty as f64);
            gauge("quota_bytes", "quota_bytes", pool.quota_max_bytes as f64);
            gauge("quota_objects", "quota_objects", pool.quota_max_objects as f64);
            for (name, value) in [
                ("rd", io.reads),
                ("rd_bytes", io.read_bytes),
                ("wr", io.writes),
                ("wr_bytes", io.write_bytes),
                ("recovered_objects", io.recovered_objects),
                ("recovered_bytes", io.recovered_bytes),
            ] {
                writer.put(&format!("ceph_pool_{name}"), Counter, &format!("DF pool {name}"), value as f64);
            }
            for name in &names {
                let value = states.get(&(id.0, *name)).copied().unwrap_or(0);
                writer.put(&format!("ceph_pg_{name}"), Gauge, &format!("PG {name} per pool"), value as f64);
            }
            let labels = [("pool_id", pool_id.as_str()), ("name", &pool.name), ("type", "replicated")];
            out.add("ceph_pool_metadata", Gauge, "POOL Metadata", &labels, 1.0);
        }
    }

    fn expose_cluster(&self, out: &mut Exposition) {
        let (raw, by_class) = self.raw_usage();
        let sums = self.pg_sums(&self.pg_views());
        let mut writer = Writer { out, labels: &[] };
        let mut gauge = |name: &str, help: &str, value: u64| writer.put(name, Gauge, help, value as f64);
        gauge("ceph_cluster_total_bytes", "DF total_bytes", raw.total);
        gauge("ceph_cluster_total_used_bytes", "DF total_used_bytes", raw.used);
        gauge("ceph_cluster_total_used_raw_bytes", "DF total_used_raw_bytes", raw.used);
        gauge("ceph_num_objects_degraded", "Number of degraded objects", sums.degraded);
        gauge("ceph_num_objects_misplaced", "Number of misplaced objects", sums.misplaced);
        gauge("ceph_num_objects_unfound", "Number of unfound objects", sums.unfound);
        gauge("ceph_osdmap_epoch", "Epoch of the OSDMap", u64::from(self.map().epoch.0));
        for (class, usage) in by_class {
            let mut writer = Writer { out, labels: &[("device_class", &class)] };
            writer.put("ceph_cluster_by_class_total_bytes", Gauge, "DF total_bytes", usage.total as f64);
            writer.put(
                "ceph_cluster_by_class_total_used_bytes",
                Gauge,
                "DF total_used_bytes",
                usage.used as f64,
            );
        }
    }

    /// The monitor's `cluster` section of `perf dump`.
    pub fn cluster_counters(&self) -> Vec<Metric> {
        let map = self.map();
        let (raw, _) = self.raw_usage();
        let views = self.pg_views();
        let sums = self.pg_sums(&views);
        let active = views.iter().filter(|view| view.has_state(pg_state::ACTIVE));
        let clean = active.clone().filter(|view| view.has_state(pg_state::CLEAN)).count();
        let gauge = |name, help, value: usize| Metric::gauge("cluster", name, help, value as u64);
        let bytes = |name, help, value| Metric::gauge("cluster", name, help, value);
        vec![
            gauge("num_mon", "Monitors", 1),
            gauge("num_mon_quorum", "Monitors in quorum", 1),
            gauge("num_osd", "OSDs", map.osds.len()),
            gauge("num_osd_up", "OSDs that are up", map.osds.values().filter(|info| info.up).count()),
            gauge(
                "num_osd_in",
                "OSD in state \"in\" (they are in cluster)",
                map.osds.values().filter(|info| info.is_in()).count(),
            ),
            gauge("osd_epoch", "Current epoch of OSD map", map.epoch.0 as usize),
            bytes("osd_bytes", "Total capacity of cluster", raw.total),
            bytes("osd_bytes_used", "Used space", raw.used),
            bytes("osd_bytes_avail", "Available space", raw.avail),
            gauge("num_pool", "Pools", map.pools.len()),
            gauge("num_pg", "Placement groups", views.len()),
            gauge("num_pg_active_clean", "Placement groups in active+clean state", clean),
            gauge("num_pg_active", "Placement groups in active state", active.count()),
            gauge(
                "num_pg_peering",
                "Placement groups in peering state",
                views.iter().filter(|view| view.has_state(pg_state::PEERING)).count(),
            ),
            bytes("num_object", "Objects", sums.objects),
            bytes("num_object_degraded", "Degraded (missing replicas) objects", sums.degraded),
            bytes(
                "num_object_misplaced",
                "Misplaced (wrong location in the cluster) objects",
                sums.misplaced,
            ),
            bytes("num_object_unfound", "Unfound objects", sums.unfound),
            bytes("num_bytes", "Size of all objects", sums.bytes),
        ]
    }
}

#[cfg(test)]
mod tests {
    use crate::commands::tests::Desk;
    use nacre_common::metrics::Exposition;
    use serde_json::json;

    #[test]
    fn the_cluster_shows_under_cephs_names() {
        let mut desk = Desk::busy();
        desk.ok("osd set", json!({ "key": "noout" }));
        desk.ok("osd out", json!({ "ids": ["2"] }));
        let mut out = Exposition::default();
        desk.state.expose(desk.now, &mut out);
        let text = out.render();
        for line in [
            "ceph_health_status 1",
            "ceph_health_detail{name=\"OSDMAP_FLAGS\",severity=\"HEALTH_WARN\"} 1",
            "ceph_osd_up{ceph_daemon=\"osd.2\"} 1",
            "ceph_osd_in{ceph_daemon=\"osd.2\"} 0",
            "ceph_osd_flag_noout 1",
            "ceph_osd_flag_noin 0",
            "ceph_pool_objects{pool_id=\"1\"} 8",
            "ceph_pg_total{pool_id=\"1\"} 8",
            "ceph_pg_active{pool_id=\"2\"} 4",
            "ceph_pg_degraded{pool_id=\"2\"} 0",
            "ceph_pool_metadata{pool_id=\"1\",name=\"p1\",type=\"replicated\"} 1",
            "ceph_mon_quorum_status{ceph_daemon=\"mon.a\"} 1",
        ] {
            assert!(text.contains(&format!("\n{line}\n")), "{line} is missing in\n{text}");
        }
        desk.ok("osd unset", json!({ "key": "noout" }));
        let counters = desk.state.cluster_counters();
        assert!(counters.iter().any(|metric| metric.name == "num_osd_in"));
    }
}
