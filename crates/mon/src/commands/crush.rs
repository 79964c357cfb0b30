//! `osd crush …`, `osd getcrushmap`, `osd setcrushmap`.

use super::osd_show::{node_cells, node_json, tree};
use super::{CommandAnswer, CommandFailure, CommandOutcome, Context};
use crate::logic::MapState;
use crate::text::{Align, Table};
use nacre_crush::{CrushDecodeError, CrushError, CrushMap, Rule, StepOp, TunablesProfile};
use nacre_types::command::Call;
use nacre_types::errno::Errno;
use nacre_types::ids::OsdId;
use serde_json::{Map, Value, json};

impl From<CrushError> for CommandFailure {
    fn from(error: CrushError) -> CommandFailure {
        CommandFailure::new(Errno::from(&error), error.to_string())
    }
}

impl MapState {
    pub(super) fn crush_command(&mut self, call: &Call<'_>, ctx: &Context) -> CommandOutcome {
        match call.prefix() {
            "osd getcrushmap" => {
                self.require_current_epoch(call)?;
                Ok(CommandAnswer::bytes(self.committed.crush.encode())
                    .with_status(self.crush_version.to_string()))
            }
            "osd setcrushmap" => self.set_crush_map(call, ctx),
            "osd crush dump" => Ok(CommandAnswer::json(dump(&self.committed.crush))),
            "osd crush tree" => Ok(self.crush_tree(call.text("shadow").is_some(), ctx)),
            "osd crush rule ls" | "osd crush rule list" => {
                let crush = &self.committed.crush;
                let names: Vec<&str> = crush.rules().filter_map(|(id, _)| crush.rule_name(id)).collect();
                Ok(CommandAnswer::either(
                    ctx,
                    || json!(names),
                    || names.iter().map(|n| format!("{n}\n")).collect(),
                ))
            }
            "osd crush rule dump" => self.rule_dump(call.text("name")),
            _ => self.crush_edit_command(call),
        }
    }

    fn set_crush_map(&mut self, call: &Call<'_>, ctx: &Context) -> CommandOutcome {
        let cut_short = || CommandFailure::invalid("Failed to parse crushmap: End of buffer");
        if ctx.input.is_empty() {
            return Err(cut_short());
        }
        let crush = CrushMap::decode(&ctx.input).map_err(|error| match error {
            CrushDecodeError::BadMagic => {
                CommandFailure::invalid("Failed to parse crushmap: bad magic number: Malformed input")
            }
            CrushDecodeError::CutShort(_) => cut_short(),
            CrushDecodeError::Corrupt(detail) => {
                CommandFailure::invalid(format!("Failed to parse crushmap: {detail}"))
            }
        })?;
        if let Some(prior) = call.int("prior_version") {
            let current = self.crush_version as i64;
            if prior == current - 1 && *self.working.crush == crush {
                // The request is resent because its first answer was lost.
                return Ok(CommandAnswer::status(self.crush_version.to_string()));
            }
            if prior != current {
                return Err(CommandFailure::new(
                    Errno::EPERM,
                    format!("prior_version {prior} != crush version {current}"),
                ));
            }
        }
        self.check_crush_map(&crush)?;
        if *self.working.crush != crush {
            self.set_crush(crush);
        }
        Ok(CommandAnswer::status(self.crush_version.to_string()))
    }

    /// Refuses a map that is not valid for the existing pools and OSDs.
    fn check_crush_map(&self, crush: &CrushMap) -> Result<(), CommandFailure> {
        for pool in self.working.pools.values() {
            let rule = u32::from(pool.crush_rule);
            if crush.rule(rule).is_none() {
                return Err(CommandFailure::invalid(format!(
                    "the crush rule no {rule} has been deleted, but is in use by pool '{}'",
                    pool.name
                )));
            }
            let roots = crush.rule_roots(rule);
            if roots.iter().all(|root| crush.devices_below(*root).is_empty()) && !self.working.osds.is_empty()
            {
                return Err(CommandFailure::invalid(format!(
                    "crush rule {rule} of pool '{}' reaches no device",
                    pool.name
                )));
            }
        }
        let unknown = |id: i32| !self.working.osds.contains_key(&OsdId(id as u32));
        let missing: Vec<i32> = crush
            .buckets()
            .flat_map(|b| b.items.iter().copied())
            .filter(|id| *id >= 0 && unknown(*id) && !self.working.crush.is_linked(*id))
            .collect();
        if let Some(id) = missing.first() {
            return Err(CommandFailure::invalid(format!("osd.{id} in the crush map does not exist")));
        }
        Ok(())
    }

    fn crush_tree(&self, shadows: bool, ctx: &Context) -> CommandAnswer {
        let crush = &self.committed.crush;
        let nodes = tree(crush, shadows, &|_| true, true);
        if ctx.is_json() {
            let nodes: Vec<Value> = nodes.iter().map(|node| Value::Object(node_json(crush, node))).collect();
            return CommandAnswer::json(json!({ "nodes": nodes, "stray": [] }));
        }
        use Align::{Left, Right};
        let mut table = Table::new(&[
            ("ID", Left, Right),
            ("CLASS", Right, Right),
            ("WEIGHT", Left, Right),
            ("TYPE NAME", Left, Left),
        ]);
        nodes.iter().for_each(|node| table.row(node_cells(crush, node)));
        CommandAnswer::text(table.render())
    }

    fn rule_dump(&self, name: Option<&str>) -> CommandOutcome {
        let crush = &self.committed.crush;
        let Some(name) = name else {
            return Ok(CommandAnswer::json(
                crush.rules().map(|(id, rule)| rule_json(crush, id, rule)).collect(),
            ));
        };
        let found = crush.rule_id(name).and_then(|id| Some((id, crush.rule(id)?)));
        let (id, rule) =
            found.ok_or_else(|| CommandFailure::not_found(format!("unknown crush rule '{name}'")))?;
        Ok(CommandAnswer::json(rule_json(crush, id, rule)))
    }
}

fn rule_json(crush: &CrushMap, id: u32, rule: &Rule) -> Value {
    let steps = rule.steps.iter().map(|step| {
        let type_name = || crush.type_name(step.arg2).unwrap_or("").to_owned();
        match step.op {
            StepOp::Take => json!({
                "op": "take", "item": step.arg1, "item_name": crush.item_name(step.arg1).unwrap_or(""),
            }),
            StepOp::ChooseFirstn
            | StepOp::ChooseIndep
            | StepOp::ChooseleafFirstn
            | StepOp::ChooseleafIndep => {
                json!({ "op": step.op.name(), "num": step.arg1, "type": type_name() })
            }
            StepOp::Emit | StepOp::Noop => json!({ "op": step.op.name() }),
            _ => json!({ "op": step.op.name(), "num": step.arg1 }),
        }
    });
    json!({
        "rule_id": id,
        "rule_name": crush.rule_name(id).unwrap_or(""),
        "ruleset": rule.ruleset,
        "type": rule.kind.number(),
        "min_size": rule.min_size,
        "max_size": rule.max_size,
        "steps": steps.collect::<Vec<_>>(),
    })
}

fn dump(crush: &CrushMap) -> Value {
    let devices = (0..crush.max_devices()).filter_map(|id| {
        let name = crush.item_name(id)?;
        let mut device = json!({ "id": id, "name": name });
        if let Some(class) = crush.device_class(id) {
            device["class"] = class.into();
        }
        Some(device)
    });
    let types = crush.type_names().map(|(id, name)| json!({ "type_id": id, "name": name }));
    let buckets = crush.buckets().map(|bucket| {
        let items = bucket
            .weighted_items()
            .enumerate()
            .map(|(pos, (id, weight))| json!({ "id": id, "weight": weight, "pos": pos }));
        json!({
            "id": bucket.id,
            "name": crush.item_name(bucket.id).unwrap_or(""),
            "type_id": bucket.type_id,
            "type_name": crush.type_name(i32::from(bucket.type_id)).unwrap_or(""),
            "weight": bucket.weight,
            "alg": bucket.alg().name(),
            "hash": "rjenkins1",
            "items": items.collect::<Vec<_>>(),
        })
    });
    let choose_args: Map<String, Value> = crush
        .choose_args()
        .map(|(id, args)| {
            let entries = args.iter().map(|(slot, arg)| {
                let mut entry = json!({ "bucket_id": -1 - slot as i64 });
                if !arg.weight_set.is_empty() {
                    let shown = |w: &u32| f64::from(*w) / 65_536.0;
                    entry["weight_set"] =
                        arg.weight_set.iter().map(|set| set.iter().map(shown).collect::<Vec<_>>()).collect();
                }
                if !arg.ids.is_empty() {
                    entry["ids"] = json!(arg.ids);
                }
                entry
            });
            (id.to_string(), entries.collect())
        })
        .collect();
    json!({
        "devices": devices.collect::<Vec<_>>(),
        "types": types.collect::<Vec<_>>(),
        "buckets": buckets.collect::<Vec<_>>(),
        "rules": crush.rules().map(|(id, rule)| rule_json(crush, id, rule)).collect::<Vec<_>>(),
        "tunables": tunables(crush),
        "choose_args": choose_args,
    })
}

pub(super) fn tunables(crush: &CrushMap) -> Value {
    let t = &crush.tunables;
    let profile = TunablesProfile::ALL.into_iter().find(|p| p.tunables() == *t);
    let at_least = |wanted: TunablesProfile| u8::from(profile.is_none_or(|p| p as u8 >= wanted as u8));
    json!({
        "choose_local_tries": t.choose_local_tries,
        "choose_local_fallback_tries": t.choose_local_fallback_tries,
        "choose_total_tries": t.choose_total_tries,
        "chooseleaf_descend_once": t.chooseleaf_descend_once,
        "chooseleaf_vary_r": t.chooseleaf_vary_r,
        "chooseleaf_stable": t.chooseleaf_stable,
        "straw_calc_version": t.straw_calc_version,
        "allowed_bucket_algs": t.allowed_bucket_algs,
        "profile": profile.map_or("unknown", TunablesProfile::name),
        "optimal_tunables": u8::from(profile == Some(TunablesProfile::Jewel)),
        "legacy_tunables": u8::from(profile == Some(TunablesProfile::Argonaut)),
        "minimum_required_version": profile.map_or("jewel", TunablesProfile::name),
        "require_feature_tunables": at_least(TunablesProfile::Bobtail),
        "require_feature_tunables2": at_least(TunablesProfile::Bobtail),
        "has_v2_rules": 0,
        "require_feature_tunables3": at_least(TunablesProfile::Firefly),
        "has_v3_rules": 0,
        "has_v4_buckets": at_least(TunablesProfile::Hammer),
        "require_feature_tunables5": at_least(TunablesProfile::Jewel),
        "has_v5_rules": 0,
    })
}
