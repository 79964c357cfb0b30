//! `osd utilization`, `osd blocked-by`, `osd info`, `osd ls-tree`, and less common changes of the map.

use super::osd_show::{osd_json, osd_line};
use super::{CommandAnswer, CommandFailure, CommandOutcome, Context, unhandled};
use crate::logic::MapState;
use crate::text::{Align, Table, float};
use nacre_types::command::Call;
use nacre_types::errno::Errno;
use nacre_types::ids::{EntityName, OsdId};
use nacre_types::osdmap::WEIGHT_ONE;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use uuid::Uuid;

/// The releases that `osd require-osd-release` takes, and the one that is required.
const RELEASES: [&str; 5] = ["luminous", "mimic", "nautilus", "octopus", "pacific"];
const REQUIRED: &str = "pacific";

impl MapState {
    pub(super) fn osd_misc_command(&mut self, call: &Call<'_>, ctx: &Context) -> CommandOutcome {
        match call.prefix() {
            "osd utilization" => self.osd_utilization(ctx),
            "osd blocked-by" => Ok(self.osd_blocked_by(ctx)),
            "osd info" => self.osd_info(call, ctx),
            "osd ls-tree" => {
                self.require_current_epoch(call)?;
                self.osd_ls_tree(call.required_text("name"), ctx)
            }
            "osd setmaxosd" => self.osd_setmaxosd(call),
            "osd require-osd-release" => require_osd_release(call),
            "osd destroy" => self.osd_destroy(call),
            "osd reweightn" => self.osd_reweightn(call.required_text("weights"), ctx),
            _ => unhandled(call),
        }
    }

    /// How evenly PGs are distributed over the OSDs that are up and in (`OSDMap::summarize_mapping_stats`).
    fn osd_utilization(&self, ctx: &Context) -> CommandOutcome {
        let per_osd = self.pgs_per_osd();
        let shares: Vec<(OsdId, u64)> = self
            .committed
            .osds
            .iter()
            .filter(|(_, info)| info.up && info.is_in())
            .map(|(osd, _)| (*osd, per_osd.get(osd).copied().unwrap_or(0)))
            .collect();
        let Some(min) = shares.iter().min_by_key(|(_, pgs)| *pgs) else {
            return Ok(CommandAnswer::either(ctx, || json!({}), || "no osds\n".to_owned()));
        };
        // The first of the OSDs with the most PGs.
        let max = shares.iter().rev().max_by_key(|(_, pgs)| *pgs).unwrap_or(min);
        let n = shares.len() as f64;
        let average = shares.iter().map(|(_, pgs)| *pgs as f64).sum::<f64>() / n;
        let deviation =
            (shares.iter().map(|(_, pgs)| (*pgs as f64 - average).powi(2)).sum::<f64>() / n).sqrt();
        let expected = (average * (1.0 - 1.0 / n)).sqrt();
        Ok(CommandAnswer::either(
            ctx,
            || {
                json!({
                    "avg_pgs": average,
                    "std_dev": deviation,
                    "expected_baseline_std_dev": expected,
                    "min_osd": min.0.0,
                    "min_osd_pgs": min.1,
                    "max_osd": max.0.0,
                    "max_osd_pgs": max.1,
                })
            },
            || {
                let mean = |pgs: u64| float(if average > 0.0 { pgs as f64 / average } else { 0.0 });
                format!(
                    "avg {}\nstddev {} (expected baseline {})\nmin {} with {} pgs ({} * mean)\nmax {} with {} pgs ({} * mean)\n",
                    float(average),
                    float(deviation),
                    float(expected),
                    min.0,
                    min.1,
                    mean(min.1),
                    max.0,
                    max.1,
                    mean(max.1),
                )
            },
        ))
    }

    /// Members that are down and whose absence keeps PGs inactive.
    fn osd_blocked_by(&self, ctx: &Context) -> CommandAnswer {
        let mut counts: BTreeMap<OsdId, u64> = BTreeMap::new();
        for view in self.pg_views().iter().filter(|v| !v.has_state(nacre_types::stats::pg_state::ACTIVE)) {
            let members = self.committed.membership(view.pg).map(|m| &m.in_sync[..]).unwrap_or_default();
            for member in members.iter().filter(|member| !self.committed.is_member_up(**member)) {
                *counts.entry(member.osd).or_default() += 1;
            }
        }
        CommandAnswer::either(
            ctx,
            || {
                let infos: Vec<Value> =
                    counts.iter().map(|(osd, n)| json!({ "osd": osd.0, "num_blocked": n })).collect();
                json!({ "pg_ready": true, "osd_blocked_by": { "osd_blocked_by_infos": infos } })
            },
            || {
                let mut table = Table::new(&[
                    ("osd", Align::Left, Align::Right),
                    ("num_blocked", Align::Left, Align::Right),
                ]);
                counts.iter().for_each(|(osd, n)| table.row(vec![osd.0.to_string(), n.to_string()]));
                table.render()
            },
        )
    }

    fn osd_info(&self, call: &Call<'_>, ctx: &Context) -> CommandOutcome {
        let osds = &self.committed.osds;
        match call.osd("id") {
            Some(id) => {
                let info =
                    osds.get(&id).ok_or_else(|| CommandFailure::invalid(format!("{id} does not exist")))?;
                Ok(CommandAnswer::either(ctx, || osd_json(id, info), || osd_line(id, info)))
            }
            None => Ok(CommandAnswer::either(
                ctx,
                || osds.iter().map(|(id, info)| osd_json(*id, info)).collect(),
                || osds.iter().map(|(id, info)| osd_line(*id, info)).collect(),
            )),
        }
    }

    fn osd_ls_tree(&self, name: &str, ctx: &Context) -> CommandOutcome {
        let crush = &self.committed.crush;
        let id = crush
            .item_id(name)
            .ok_or_else(|| CommandFailure::not_found(format!("\"{name}\" does not exist")))?;
        let devices = crush.devices_below(id);
        Ok(CommandAnswer::either(
            ctx,
            || json!(devices),
            || devices.iter().map(|device| format!("{device}\n")).collect(),
        ))
    }

    fn osd_setmaxosd(&mut self, call: &Call<'_>) -> CommandOutcome {
        let wanted = call.int("newmax").and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
        if wanted > self.tuning.max_osd {
            return Err(CommandFailure::new(
                Errno::ERANGE,
                format!(
                    "cannot set max_osd to {wanted} which is > conf.mon_max_osd ({})",
                    self.tuning.max_osd
                ),
            ));
        }
        let first = self.working.osds.keys().find(|osd| osd.0 >= wanted);
        if let Some(first) = first {
            return Err(CommandFailure::new(
                Errno::EBUSY,
                format!(
                    "cannot shrink max_osd to {wanted} because {first} (and possibly others) still in use"
                ),
            ));
        }
        self.changes.max_osd |= self.working.max_osd != wanted;
        self.working.max_osd = wanted;
        Ok(CommandAnswer::status(format!("set new max_osd = {wanted}")))
    }

    /// Marks an OSD's disk as permanently gone. Its id and its place in CRUSH remain for the replacement disk.
    fn osd_destroy(&mut self, call: &Call<'_>) -> CommandOutcome {
        let Some(osd) = call.osd("id") else { return Err(CommandFailure::invalid("invalid osd id")) };
        let sure = call.flag("force") || call.flag("yes_i_really_mean_it");
        let Some(info) = self.working.osds.get(&osd) else {
            return Ok(CommandAnswer::status(format!("{osd} does not exist")));
        };
        if !sure {
            self.check_safe_to_destroy(osd)?;
            return Err(CommandFailure::new(
                Errno::EPERM,
                "Are you SURE? This will mean real, permanent data loss, as well as deletion of cephx and lockbox keys. \
                 Pass --yes-i-really-mean-it if you really do.",
            ));
        }
        if info.up {
            return Err(CommandFailure::new(Errno::EBUSY, format!("{osd} is not `down`.")));
        }
        if info.is_destroyed() {
            return Ok(CommandAnswer::status(format!("destroyed {osd}")));
        }
        if let Some(info) = self.working.osds.get_mut(&osd) {
            info.uuid = Uuid::nil();
        }
        self.changes.osds.insert(osd);
        let entity = EntityName::osd(osd);
        if self.auth.remove(&entity) {
            self.keys.insert(crate::keys::auth(&entity), None);
        }
        Ok(CommandAnswer::status(format!("destroyed {osd}")))
    }

    /// Sets the reweights of several OSDs at once, in 16.16 fixed point: `{"0": 65536, …}`.
    fn osd_reweightn(&mut self, text: &str, ctx: &Context) -> CommandOutcome {
        let weights: BTreeMap<String, u32> = serde_json::from_str(text)
            .map_err(|_| CommandFailure::invalid(format!("unable to parse 'weights' value '{text}'")))?;
        let mut wanted = Vec::new();
        for (name, weight) in weights {
            let osd: OsdId = name
                .parse()
                .map_err(|_| CommandFailure::invalid(format!("unable to parse 'weights' value '{text}'")))?;
            if !self.working.osds.contains_key(&osd) {
                return Err(CommandFailure::not_found(format!("{osd} does not exist")));
            }
            wanted.push((osd, weight.min(WEIGHT_ONE)));
        }
        for (osd, weight) in wanted {
            self.set_reweight(ctx.now, osd, weight);
        }
        Ok(CommandAnswer::default())
    }
}

fn require_osd_release(call: &Call<'_>) -> CommandOutcome {
    let rank = |name: &str| RELEASES.iter().position(|release| *release == name);
    if rank(call.required_text("release")) < rank(REQUIRED) {
        return Err(CommandFailure::new(
            Errno::EPERM,
            "require_osd_release cannot be lowered once it has been set",
        ));
    }
    Ok(CommandAnswer::default())
}

#[cfg(test)]
mod tests {
    use super::super::tests::Desk;
    use crate::logic::MapEvent;
    use nacre_types::errno::Errno;
    use nacre_types::ids::OsdId;
    use nacre_types::msg::OsdMarkMeDown;
    use serde_json::json;

    #[test]
    fn pgs_per_osd_are_summed_up_as_ceph_does() {
        let mut desk = Desk::new();
        desk.ok("osd pool create", json!({ "pool": "p", "pg_num": 9 }));
        desk.create_pgs();
        let expected = "avg 9\nstddev 0 (expected baseline 2.44949)\nmin osd.0 with 9 pgs (1 * mean)\n\
                        max osd.0 with 9 pgs (1 * mean)\n";
        assert_eq!(desk.text("osd utilization", json!({})), expected);
    }

    #[test]
    fn a_destroyed_osd_keeps_its_id_for_the_next_disk() {
        let mut desk = Desk::busy();
        let (code, text, _) = desk.run("osd destroy", json!({ "id": "2" }));
        assert_eq!(code, Errno::EBUSY.negated());
        assert!(
            text.starts_with("OSD(s) 2 have ") && text.contains("You can proceed by passing --force"),
            "{text}"
        );
        let sure = json!({ "id": "2", "yes_i_really_mean_it": true });
        desk.fails("osd destroy", sure.clone(), Errno::EBUSY, "osd.2 is not `down`.");
        desk.state.handle(
            desk.now,
            MapEvent::MarkMeDown { osd: OsdId(2), request: OsdMarkMeDown { boot_nonce: 1 } },
        );
        assert_eq!(desk.status("osd destroy", sure), "destroyed osd.2");
        assert!(
            desk.text("osd tree", json!({})).contains("osd.2  destroyed"),
            "{}",
            desk.text("osd tree", json!({}))
        );
        assert_eq!(desk.json("osd info", json!({ "id": "2" }))["state"], json!(["destroyed", "exists"]));
        let uuid = "00000000-0000-0000-0000-00000000beef";
        assert_eq!(desk.text("osd new", json!({ "uuid": uuid, "id": "2" })), "2\n");
        assert_eq!(desk.json("osd info", json!({ "id": "2" }))["uuid"], uuid);
        let text = desk.status("osd destroy", json!({ "id": "77", "force": true }));
        assert_eq!(text, "osd.77 does not exist");
    }

    #[test]
    fn bounds_of_ids_follow_the_osds_there_are() {
        let mut desk = Desk::new();
        assert_eq!(desk.status("osd setmaxosd", json!({ "newmax": 10 })), "set new max_osd = 10");
        let text = "cannot shrink max_osd to 1 because osd.1 (and possibly others) still in use";
        desk.fails("osd setmaxosd", json!({ "newmax": 1 }), Errno::EBUSY, text);
        assert_eq!(desk.status("osd setmaxosd", json!({ "newmax": 3 })), "set new max_osd = 3");
        let text = "require_osd_release cannot be lowered once it has been set";
        desk.fails("osd require-osd-release", json!({ "release": "octopus" }), Errno::EPERM, text);
        desk.ok("osd require-osd-release", json!({ "release": "pacific" }));
        desk.ok("osd reweightn", json!({ "weights": "{\"0\":32768}" }));
        assert_eq!(desk.json("osd info", json!({ "id": "0" }))["weight"], 0.5);
        assert_eq!(desk.text("osd ls-tree", json!({ "name": "default" })), "0\n1\n2\n");
    }
}
