//! Daemons and what they run: `node ls`, `features`, `… metadata`, `… versions`, and commands of Ceph's manager.

use super::{CommandAnswer, CommandFailure, CommandOutcome, unhandled};
use crate::logic::MapState;
use nacre_types::command::Call;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The features that Ceph's programs attribute to Nacre's daemons and clients.
const FEATURES: &str = "0x3f01cfbdfffdffff";
const FEATURE_RELEASE: &str = "luminous";

impl MapState {
    pub(super) fn daemons_command(&self, call: &Call<'_>) -> CommandOutcome {
        Ok(match call.prefix() {
            "node ls" => self.node_ls(call.text("type").unwrap_or("all")),
            "features" => CommandAnswer::json(self.feature_map()),
            "time-sync-status" => {
                // There is one monitor, so there are no clocks to compare.
                CommandAnswer::json(
                    json!({ "timechecks": { "epoch": 1, "round": 0, "round_status": "finished" } }),
                )
            }
            "versions" => CommandAnswer::json(self.versions()),
            "mon versions" => CommandAnswer::json(count(self.mon_metadata_values("ceph_version"))),
            "osd versions" => CommandAnswer::json(count(self.osd_metadata_values("ceph_version"))),
            "mgr versions" => CommandAnswer::json(json!({})),
            "mon count-metadata" => {
                CommandAnswer::json(count(self.mon_metadata_values(call.required_text("property"))))
            }
            "osd count-metadata" => {
                CommandAnswer::json(count(self.osd_metadata_values(call.required_text("property"))))
            }
            "mon metadata" => return self.mon_metadata(call.text("id")),
            "mgr metadata" => CommandAnswer::json(json!([])),
            // There is no manager; the map authority does its work.
            "mgr stat" => CommandAnswer::json(json!({
                "epoch": 1, "available": false, "active_name": "", "num_standby": 0,
            })),
            "mgr services" => CommandAnswer::json(json!({})),
            "balancer status" => CommandAnswer::json(json!({
                "active": false,
                "last_optimize_duration": "",
                "last_optimize_started": "",
                "mode": "none",
                "no_optimization_needed": false,
                "optimize_result": "",
                "plans": [],
            })),
            _ => return unhandled(call),
        })
    }

    fn node_ls(&self, which: &str) -> CommandAnswer {
        let mon = json!({ (self.mon_host()): [self.mon_name] });
        let mut hosts: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for (osd, info) in &self.committed.osds {
            let host = info.metadata.get("hostname").map_or("unknown", String::as_str);
            hosts.entry(host).or_default().push(osd.0);
        }
        let osd = json!(hosts);
        CommandAnswer::json(match which {
            "mon" => mon,
            "osd" => osd,
            "mds" | "mgr" => json!({}),
            _ => json!({ "mon": mon, "osd": osd, "mgr": {} }),
        })
    }

    fn mon_host(&self) -> &str {
        self.mon_metadata.get("hostname").map_or("unknown", String::as_str)
    }

    pub(super) fn feature_map(&self) -> Value {
        let group = |num: usize| json!([{ "features": FEATURES, "release": FEATURE_RELEASE, "num": num }]);
        let up = self.committed.osds.values().filter(|info| info.up).count();
        let mut out = Map::new();
        for (kind, num) in [("mon", 1), ("osd", up), ("client", self.client_sessions)] {
            if num > 0 {
                out.insert(kind.to_owned(), group(num));
            }
        }
        Value::Object(out)
    }

    fn mon_metadata_values<'a>(&'a self, property: &'a str) -> impl Iterator<Item = &'a str> {
        std::iter::once(self.mon_metadata.get(property).map_or("unknown", String::as_str))
    }

    fn osd_metadata_values<'a>(&'a self, property: &'a str) -> impl Iterator<Item = &'a str> {
        let up = self.committed.osds.values().filter(|info| info.up);
        up.map(move |info| info.metadata.get(property).map_or("unknown", String::as_str))
    }

    fn mon_metadata(&self, id: Option<&str>) -> CommandOutcome {
        let mut fields = Map::new();
        fields.insert("addrs".into(), format!("[v2:{}/0]", self.mon_addr()).into());
        fields.extend(self.mon_metadata.iter().map(|(name, value)| (name.clone(), value.as_str().into())));
        match id {
            Some(id) if id == self.mon_name => Ok(CommandAnswer::json(fields.into())),
            Some(_) => Err(CommandFailure::not_found("requested mon not found")),
            None => {
                let mut all = Map::new();
                all.insert("name".into(), self.mon_name.as_str().into());
                all.extend(fields);
                Ok(CommandAnswer::json(json!([all])))
            }
        }
    }

    fn versions(&self) -> Value {
        let (mon, osd) = (
            count(self.mon_metadata_values("ceph_version")),
            count(self.osd_metadata_values("ceph_version")),
        );
        let overall =
            self.mon_metadata_values("ceph_version").chain(self.osd_metadata_values("ceph_version"));
        json!({ "mon": mon, "mgr": {}, "osd": osd, "mds": {}, "overall": count(overall) })
    }

    /// The output of `tell mon.a mon_status`.
    pub fn mon_status_at(&self, now: crate::logic::Now) -> Value {
        let quorum = self.quorum_status_at(now);
        let persistent = &quorum["monmap"]["features"]["persistent"];
        json!({
            "name": self.mon_name,
            "rank": 0,
            "state": "leader",
            "election_epoch": 1,
            "quorum": [0],
            "quorum_age": quorum["quorum_age"],
            "features": {
                "required_con": "0", "required_mon": persistent, "quorum_con": "0", "quorum_mon": persistent,
            },
            "outside_quorum": [],
            "extra_probe_peers": [],
            "sync_provider": [],
            "monmap": quorum["monmap"],
            "feature_map": self.feature_map(),
            "stretch_mode": false,
        })
    }
}

fn count<'a>(values: impl Iterator<Item = &'a str>) -> Value {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    values.for_each(|value| *counts.entry(value).or_default() += 1);
    json!(counts)
}
