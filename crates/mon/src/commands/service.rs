//! `service …`: services that run beside the cluster and register themselves (Ceph's service map).
//!
//! A service sends `service beacon` every few seconds (`rados_service_register`); a daemon that falls silent is removed. The
//! map is not stored: after a restart of the map authority the next beacons fill it.

use super::{CommandAnswer, CommandFailure, CommandOutcome, Context, unhandled};
use crate::logic::services::{Daemon, DaemonAttrs, ServiceMap};
use crate::logic::{MapState, Now};
use crate::text::{plural, stamp};
use nacre_types::command::Call;
use nacre_types::errno::Errno;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The most registered daemons.
const MOST_DAEMONS: usize = 1_000;
/// The most bytes of one daemon's metadata and status.
const MOST_BYTES: usize = 64 << 10;
/// Names of the cluster's own daemons, which no service may use.
const OWN: [&str; 5] = ["osd", "mds", "client", "mon", "mgr"];

impl ServiceMap {
    fn beacon(&mut self, now: Now, call: &Call<'_>) -> CommandOutcome {
        let (service, name) = (call.required_text("service"), call.required_text("daemon"));
        if service.is_empty() || name.is_empty() || OWN.contains(&service) {
            return Err(CommandFailure::invalid(format!(
                "'{service}.{name}' is no name of a service's daemon"
            )));
        }
        let addr = call.text("addr").unwrap_or("-");
        let (metadata, status) = (facts(call, "metadata")?, facts(call, "status")?);
        let bytes =
            |facts: &DaemonAttrs| facts.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
        if service.len() + name.len() + addr.len() + bytes(&metadata) + bytes(&status) > MOST_BYTES {
            return Err(CommandFailure::new(
                Errno::E2BIG,
                format!("a daemon may tell {MOST_BYTES} bytes of itself"),
            ));
        }
        let gid = call.int("gid").and_then(|gid| u64::try_from(gid).ok()).unwrap_or(0);
        let known = self.services.get(service).and_then(|daemons| daemons.get(name));
        let is_new = known.is_none_or(|daemon| daemon.gid != gid || daemon.metadata != metadata);
        if known.is_none() && self.daemon_count() >= MOST_DAEMONS {
            return Err(CommandFailure::new(
                Errno::ENOSPC,
                format!("there are {MOST_DAEMONS} daemons of services"),
            ));
        }
        if is_new {
            self.bump_epoch(now);
        }
        let epoch = self.epoch;
        let daemon = self.services.entry(service.to_owned()).or_default().entry(name.to_owned()).or_default();
        if is_new {
            let (start_epoch, start_ns) = (epoch, now.wall_ns);
            *daemon =
                Daemon { gid, metadata, start_epoch, start_ns, status_ns: start_ns, ..Daemon::default() };
        }
        if daemon.status != status {
            (daemon.status, daemon.status_ns) = (status, now.wall_ns);
        }
        addr.clone_into(&mut daemon.addr);
        (daemon.beacon_ns, daemon.beacon_ms) = (now.wall_ns, now.mono_ms);
        Ok(CommandAnswer::default())
    }

    /// The output of `service dump`, also part of `status`.
    pub(super) fn json(&self) -> Value {
        let services = self.services.iter().map(|(service, daemons)| {
            let mut shown = Map::from_iter([("summary".to_owned(), Value::from(""))]);
            shown.extend(daemons.iter().map(|(name, daemon)| {
                let facts = json!({
                    "start_epoch": daemon.start_epoch,
                    "start_stamp": stamp(daemon.start_ns),
                    "gid": daemon.gid,
                    "addr": daemon.addr,
                    "metadata": daemon.metadata,
                    "task_status": {},
                });
                (name.clone(), facts)
            }));
            (service.clone(), json!({ "daemons": shown }))
        });
        let services: Map<String, Value> = services.collect();
        json!({ "epoch": self.epoch, "modified": stamp(self.modified_ns), "services": services })
    }

    fn status_json(&self) -> Value {
        let shown = |daemon: &Daemon| {
            json!({
                "status_stamp": stamp(daemon.status_ns),
                "last_beacon": stamp(daemon.beacon_ns),
                "status": daemon.status,
            })
        };
        let services = self.services.iter().map(|(service, daemons)| {
            let daemons: Map<String, Value> =
                daemons.iter().map(|(name, daemon)| (name.clone(), shown(daemon))).collect();
            (service.clone(), Value::Object(daemons))
        });
        Value::Object(services.collect())
    }

    /// The length of the longest name in the services of `status`, including the cluster's own.
    pub(super) fn name_width(&self) -> usize {
        self.services.keys().map(String::len).max().unwrap_or(0).max("mon".len())
    }

    /// One line for each service, as in `status`: `    rgw: 2 daemons active (1 hosts, 1 zones)`.
    pub(super) fn lines(&self) -> String {
        let width = self.name_width() + 1;
        let line = |(service, daemons): (&String, &BTreeMap<String, Daemon>)| {
            let kind = daemons.values().find_map(|daemon| daemon.metadata.get("daemon_type"));
            let kind = kind.map_or("daemon", String::as_str);
            let groups = [("host", "hostname"), ("zone", "zone_id")].map(|(group, key)| {
                let values: BTreeSet<_> = daemons.values().filter_map(|d| d.metadata.get(key)).collect();
                (!values.is_empty()).then(|| format!("{} {group}s", values.len()))
            });
            let groups: Vec<String> = groups.into_iter().flatten().collect();
            let groups = if groups.is_empty() { String::new() } else { format!(" ({})", groups.join(", ")) };
            let named = format!("{service}:");
            format!("    {named:<width$} {} {} active{groups}\n", daemons.len(), plural(daemons.len(), kind))
        };
        self.services.iter().map(line).collect()
    }
}

/// Parses a parameter that is a JSON object of texts; empty if it is absent.
fn facts(call: &Call<'_>, name: &str) -> Result<DaemonAttrs, CommandFailure> {
    let text = call.text(name).unwrap_or("{}");
    serde_json::from_str(text).map_err(|error| CommandFailure::invalid(format!("{name}: {error}")))
}

impl MapState {
    pub(super) fn service_command(&mut self, call: &Call<'_>, ctx: &Context) -> CommandOutcome {
        match call.prefix() {
            "service dump" => Ok(CommandAnswer::json(self.services.json())),
            "service status" => Ok(CommandAnswer::json(self.services.status_json())),
            "service beacon" => self.services.beacon(ctx.now, call),
            _ => unhandled(call),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Desk;
    use super::*;
    use crate::logic::services::BEACON_GRACE_MS;

    fn beacon(daemon: &str, gid: u64, status: &str) -> Value {
        let metadata = r#"{"hostname":"h1","zone_id":"z"}"#;
        json!({ "service": "rgw", "daemon": daemon, "gid": gid, "addr": "127.0.0.1:0/7",
            "metadata": metadata, "status": status })
    }

    #[test]
    fn daemons_are_known_while_they_give_signs_of_life() {
        let mut desk = Desk::new();
        assert_eq!(desk.json("service dump", json!({}))["services"], json!({}));
        desk.ok("service beacon", beacon("a", 7, "{}"));
        desk.ok("service beacon", beacon("b", 8, r#"{"busy":"yes"}"#));
        let dump = desk.json("service dump", json!({}));
        assert_eq!(dump["epoch"], 3);
        let a = &dump["services"]["rgw"]["daemons"]["a"];
        assert_eq!(
            (&a["gid"], &a["addr"], &a["start_epoch"]),
            (&7.into(), &"127.0.0.1:0/7".into(), &2.into())
        );
        assert_eq!(a["metadata"]["hostname"], "h1");
        assert_eq!(desk.json("service status", json!({}))["rgw"]["b"]["status"], json!({ "busy": "yes" }));
        assert_eq!(desk.json("status", json!({}))["servicemap"], dump);
        let shown = desk.text("status", json!({}));
        assert!(shown.contains("    rgw: 2 daemons active (1 hosts, 1 zones)\n"), "{shown}");

        let mut longer = beacon("c", 9, "{}");
        longer["service"] = "gateway".into();
        desk.ok("service beacon", longer);
        let shown = desk.text("status", json!({}));
        for line in [
            "    mon:     1 daemons",
            "    osd:     3 osds",
            "    gateway: 1 daemon active",
            "    rgw:     2 daemons",
        ] {
            assert!(shown.contains(line), "{line}: {shown}");
        }

        desk.now.mono_ms += BEACON_GRACE_MS / 2;
        desk.ok("service beacon", beacon("b", 8, "{}"));
        desk.now.mono_ms += BEACON_GRACE_MS / 2;
        desk.state.services.expire(desk.now);
        let dump = desk.json("service dump", json!({}));
        assert_eq!((&dump["epoch"], &dump["services"]["rgw"]["daemons"]["a"]), (&5.into(), &Value::Null));
        assert_eq!(dump["services"]["rgw"]["daemons"]["b"]["gid"], 8);
    }

    #[test]
    fn what_daemons_tell_is_bounded() {
        let mut desk = Desk::new();
        let mut osd = beacon("0", 1, "{}");
        osd["service"] = "osd".into();
        assert_eq!(desk.run("service beacon", osd).0, Errno::EINVAL.negated());
        assert_eq!(desk.run("service beacon", beacon("a", 1, "[1]")).0, Errno::EINVAL.negated());
        let long = format!(r#"{{"x":"{}"}}"#, "y".repeat(MOST_BYTES));
        assert_eq!(desk.run("service beacon", beacon("a", 1, &long)).0, Errno::E2BIG.negated());
        for n in 0..MOST_DAEMONS {
            desk.ok("service beacon", beacon(&n.to_string(), 1, "{}"));
        }
        assert_eq!(desk.run("service beacon", beacon("more", 1, "{}")).0, Errno::ENOSPC.negated());
        desk.ok("service beacon", beacon("0", 1, "{}"));
    }
}
