//! `osd crush …` commands that change the hierarchy, its rules, classes and tunables.
//!
//! Each command edits a copy of the CRUSH map, which takes effect as a whole. A request for the current state succeeds and
//! changes nothing, as in Ceph.

use super::crush::tunables;
use super::{CommandAnswer, CommandFailure, CommandOutcome, unhandled};
use crate::logic::MapState;
use crate::text::float;
use nacre_crush::{CrushError, CrushMap, Location, RuleType, TunablesProfile, weight_from_f32};
use nacre_types::command::Call;
use nacre_types::errno::Errno;
use nacre_types::ids::OsdId;
use serde_json::json;

impl MapState {
    pub(super) fn crush_edit_command(&mut self, call: &Call<'_>) -> CommandOutcome {
        match call.prefix() {
            "osd crush add" | "osd crush set" | "osd crush create-or-move" => self.crush_place(call),
            "osd crush move" => self.crush_move(call),
            "osd crush link" => self.crush_link(call),
            "osd crush unlink" | "osd crush rm" | "osd crush remove" => self.crush_remove(call),
            "osd crush add-bucket" => self.crush_add_bucket(call),
            "osd crush rename-bucket" => {
                let (from, to) = (call.required_text("srcname"), call.required_text("dstname"));
                if self.working.crush.item_id(from).is_none() && self.working.crush.item_id(to).is_some() {
                    // The request is resent.
                    return Ok(CommandAnswer::status(format!("renamed bucket {from} into {to}")));
                }
                self.edit_crush(|crush| crush.rename_bucket(from, to))?;
                Ok(CommandAnswer::status(format!("renamed bucket {from} into {to}")))
            }
            "osd crush reweight" => self.crush_reweight(call),
            "osd crush reweight-all" => {
                self.edit_crush(CrushMap::reweight_all)?;
                Ok(CommandAnswer::status("reweighted crush hierarchy"))
            }
            "osd crush reweight-subtree" => self.crush_reweight_subtree(call),
            "osd crush tunables" => {
                let profile = call.required_text("profile");
                let named = match profile {
                    "legacy" => Some(TunablesProfile::Argonaut),
                    "optimal" | "default" => Some(TunablesProfile::Jewel),
                    name => TunablesProfile::from_name(name),
                };
                let named = named
                    .ok_or_else(|| CommandFailure::invalid(format!("unrecognized profile '{profile}'")))?;
                self.edit_crush(|crush| {
                    crush.set_tunables_profile(named);
                    Ok(())
                })?;
                Ok(CommandAnswer::status(format!("adjusted tunables profile to {profile}")))
            }
            "osd crush set-tunable" => {
                let (name, value) = (call.required_text("tunable"), call.int("value").unwrap_or(0));
                if !(0..=1).contains(&value) {
                    return Err(CommandFailure::invalid(format!("value must be 0 or 1; got {value}")));
                }
                self.edit_crush(|crush| {
                    crush.tunables.straw_calc_version = value as u8;
                    Ok(())
                })?;
                Ok(CommandAnswer::status(format!("adjusted tunable {name} to {value}")))
            }
            "osd crush get-tunable" => {
                let value = self.committed.crush.tunables.straw_calc_version;
                Ok(CommandAnswer::json(json!({ "straw_calc_version": value })))
            }
            "osd crush show-tunables" => Ok(CommandAnswer::json(tunables(&self.committed.crush))),
            prefix if prefix.starts_with("osd crush rule ") => self.crush_rule_edit(call),
            _ => self.crush_class_command(call),
        }
    }

    /// Edits the CRUSH map; a failed edit changes nothing.
    fn edit_crush<T>(
        &mut self,
        edit: impl FnOnce(&mut CrushMap) -> Result<T, CrushError>,
    ) -> Result<T, CommandFailure> {
        let mut crush = (*self.working.crush).clone();
        let result = edit(&mut crush)?;
        if crush != *self.working.crush {
            self.set_crush(crush);
        }
        Ok(result)
    }

    fn crush_place(&mut self, call: &Call<'_>) -> CommandOutcome {
        let osd = call.osd("id").ok_or_else(|| CommandFailure::invalid("no OSD is named"))?;
        let (item, name) = (osd.0 as i32, osd.to_string());
        if !self.working.osds.contains_key(&osd) {
            let text = format!("{name} does not exist. Create it before updating the crush map");
            return Err(CommandFailure::not_found(text));
        }
        let weight = call.float("weight").unwrap_or(0.0);
        let raw = weight_from_f32(weight as f32)?;
        let loc = location(&call.texts("args"))?;
        let shown = show_location(&loc);
        let weight = float(weight);
        match call.prefix() {
            "osd crush create-or-move" => {
                let changed = self.edit_crush(|crush| crush.create_or_move_item(item, raw, &name, &loc))?;
                let done = if changed { "create-or-move updating" } else { "create-or-move updated" };
                Ok(CommandAnswer::status(format!(
                    "{done} item name '{name}' weight {weight} at location {shown} to crush map"
                )))
            }
            "osd crush set" => {
                if self.working.crush.item_id(&name).is_none() {
                    return Err(CommandFailure::not_found(format!(
                        "unable to set item id {item} name '{name}' weight {weight} at location {shown}: does not \
                         exist"
                    )));
                }
                let changed = self.edit_crush(|crush| crush.update_item(item, raw, &name, &loc))?;
                let end = if changed { " to crush map" } else { ": no change" };
                Ok(CommandAnswer::status(format!(
                    "set item id {item} name '{name}' weight {weight} at location {shown}{end}"
                )))
            }
            _ => {
                if self.working.crush.weight_at(item, &loc) != Some(raw) {
                    self.edit_crush(|crush| crush.insert_item(item, raw, &name, &loc))?;
                }
                Ok(CommandAnswer::status(format!(
                    "add item id {item} name '{name}' weight {weight} at location {shown} to crush map"
                )))
            }
        }
    }

    fn crush_item(&self, name: &str) -> Result<i32, CommandFailure> {
        let item = self.working.crush.item_id(name);
        item.ok_or_else(|| CommandFailure::not_found(format!("item {name} does not exist")))
    }

    fn crush_move(&mut self, call: &Call<'_>) -> CommandOutcome {
        let name = call.required_text("name");
        let item = self.crush_item(name)?;
        let loc = location(&call.texts("args"))?;
        let shown = show_location(&loc);
        if self.working.crush.weight_at(item, &loc).is_some() {
            return Ok(CommandAnswer::status(format!(
                "no need to move item id {item} name '{name}' to location {shown} in crush map"
            )));
        }
        self.edit_crush(|crush| crush.move_item(name, &loc))?;
        Ok(CommandAnswer::status(format!(
            "moved item id {item} name '{name}' to location {shown} in crush map"
        )))
    }

    fn crush_link(&mut self, call: &Call<'_>) -> CommandOutcome {
        let name = call.required_text("name");
        let item = self.crush_item(name)?;
        let loc = location(&call.texts("args"))?;
        let shown = show_location(&loc);
        if self.working.crush.weight_at(item, &loc).is_none() {
            self.edit_crush(|crush| crush.link_bucket(name, &loc))?;
        }
        Ok(CommandAnswer::status(format!(
            "linked item id {item} name '{name}' to location {shown} in crush map"
        )))
    }

    fn crush_remove(&mut self, call: &Call<'_>) -> CommandOutcome {
        let name = call.required_text("name");
        let Some(item) = self.working.crush.item_id(name) else {
            return Ok(CommandAnswer::status(format!("device '{name}' does not appear in the crush map")));
        };
        let unlink = call.prefix() == "osd crush unlink";
        match call.text("ancestor") {
            Some(ancestor) => self.edit_crush(|crush| crush.remove_item_under(name, ancestor))?,
            None if unlink && item < 0 => {
                let parents: Vec<String> = self
                    .working
                    .crush
                    .parents(item)
                    .filter_map(|parent| self.working.crush.item_name(parent.id).map(str::to_owned))
                    .filter(|parent| !parent.contains('~'))
                    .collect();
                self.edit_crush(|crush| {
                    parents.iter().try_for_each(|parent| crush.remove_item_under(name, parent))
                })?;
            }
            None => self.edit_crush(|crush| crush.remove_item(name))?,
        }
        let done = if unlink { "unlinked" } else { "removed" };
        Ok(CommandAnswer::status(format!("{done} item id {item} name '{name}' from crush map")))
    }

    fn crush_add_bucket(&mut self, call: &Call<'_>) -> CommandOutcome {
        let (name, kind) = (call.required_text("name"), call.required_text("type"));
        let loc = location(&call.texts("args"))?;
        let shown = show_location(&loc);
        if self.working.crush.item_id(name).is_some() {
            return Ok(CommandAnswer::status(format!("bucket '{name}' already exists")));
        }
        self.edit_crush(|crush| crush.add_empty_bucket(name, kind, &loc))?;
        let at = if loc.is_empty() { "crush map".to_owned() } else { format!("location {shown}") };
        Ok(CommandAnswer::status(format!("added bucket {name} type {kind} to {at}")))
    }

    fn crush_reweight(&mut self, call: &Call<'_>) -> CommandOutcome {
        let name = call.required_text("name");
        let item = self.working.crush.item_id(name).ok_or_else(|| {
            CommandFailure::not_found(format!("device '{name}' does not appear in the crush map"))
        })?;
        if item < 0 {
            return Err(CommandFailure::invalid(format!("device '{name}' is not a leaf in the crush map")));
        }
        let weight = call.float("weight").unwrap_or(0.0);
        let raw = weight_from_f32(weight as f32)?;
        self.edit_crush(|crush| crush.reweight_item(name, raw))?;
        Ok(CommandAnswer::status(format!(
            "reweighted item id {item} name '{name}' to {} in crush map",
            float(weight)
        )))
    }

    fn crush_reweight_subtree(&mut self, call: &Call<'_>) -> CommandOutcome {
        let name = call.required_text("name");
        let item = self.working.crush.item_id(name).ok_or_else(|| {
            CommandFailure::not_found(format!("device '{name}' does not appear in the crush map"))
        })?;
        if item >= 0 {
            return Err(CommandFailure::invalid(format!(
                "device '{name}' is not a subtree in the crush map"
            )));
        }
        let weight = call.float("weight").unwrap_or(0.0);
        let raw = weight_from_f32(weight as f32)?;
        self.edit_crush(|crush| crush.reweight_subtree(name, raw))?;
        Ok(CommandAnswer::status(format!(
            "reweighted subtree id {item} name '{name}' to {} in crush map",
            float(weight)
        )))
    }

    fn crush_rule_edit(&mut self, call: &Call<'_>) -> CommandOutcome {
        match call.prefix() {
            "osd crush rule create-simple" | "osd crush rule create-replicated" => {
                let name = call.required_text("name");
                if self.working.crush.rule_id(name).is_some() {
                    return Ok(CommandAnswer::status(format!("rule {name} already exists")));
                }
                let (root, domain) = (call.required_text("root"), call.required_text("type"));
                let (class, firstn) = match call.prefix() {
                    "osd crush rule create-simple" => (None, call.text("mode") != Some("indep")),
                    _ => (call.text("class"), true),
                };
                self.edit_crush(|crush| {
                    crush.add_simple_rule(name, root, domain, class, firstn, RuleType::Replicated)
                })?;
                Ok(CommandAnswer::status(""))
            }
            "osd crush rule rm" => {
                let name = call.required_text("name");
                let Some(id) = self.working.crush.rule_id(name) else {
                    return Ok(CommandAnswer::status(format!("rule {name} does not exist")));
                };
                if self.working.pools.values().any(|pool| u32::from(pool.crush_rule) == id) {
                    return Err(CommandFailure::new(Errno::EBUSY, format!("crush rule '{name}' is in use")));
                }
                self.edit_crush(|crush| crush.remove_rule(name))?;
                Ok(CommandAnswer::status(""))
            }
            "osd crush rule rename" => {
                let (from, to) = (call.required_text("srcname"), call.required_text("dstname"));
                let crush = &self.working.crush;
                if crush.rule_id(from).is_some() || crush.rule_id(to).is_none() {
                    self.edit_crush(|crush| crush.rename_rule(from, to))?;
                }
                Ok(CommandAnswer::status(""))
            }
            "osd crush rule ls-by-class" => {
                let class = call.required_text("class");
                let crush = &self.committed.crush;
                let wanted = crush.class_id(class).ok_or_else(|| {
                    CommandFailure::not_found(format!("failed to get rules by class '{class}'"))
                })?;
                let of_class = |root: &i32| crush.split_id_class(*root).is_some_and(|(_, c)| c == wanted);
                let rules: Vec<&str> = crush
                    .rules()
                    .filter(|(id, _)| crush.rule_roots(*id).iter().any(of_class))
                    .filter_map(|(id, _)| crush.rule_name(id))
                    .collect();
                Ok(CommandAnswer::json(json!(rules)))
            }
            _ => unhandled(call),
        }
    }

    fn crush_class_command(&mut self, call: &Call<'_>) -> CommandOutcome {
        match call.prefix() {
            "osd crush class ls" => {
                let names: Vec<&str> = self.committed.crush.class_names().map(|(_, name)| name).collect();
                Ok(CommandAnswer::json(json!(names)))
            }
            "osd crush class ls-osd" => Ok(CommandAnswer::json(json!(
                self.committed.crush.devices_of_class(call.required_text("class"))
            ))),
            "osd crush class create" => {
                let class = call.required_text("class");
                if self.working.crush.class_id(class).is_some() {
                    return Ok(CommandAnswer::status(format!("class '{class}' already exists")));
                }
                let id = self.edit_crush(|crush| crush.create_class(class))?;
                Ok(CommandAnswer::status(format!("created class {class} with id {id} to crush map")))
            }
            "osd crush class rm" => self.crush_class_remove(call.required_text("class")),
            "osd crush set-device-class" => {
                let class = call.required_text("class");
                let osds = self.crush_osds(&call.texts("ids"))?;
                self.edit_crush(|crush| {
                    osds.iter().try_for_each(|osd| crush.set_device_class(osd.0 as i32, class).map(drop))
                })?;
                Ok(CommandAnswer::status(format!("set osd(s) {} to class '{class}'", join(&osds))))
            }
            "osd crush rm-device-class" => {
                let osds = self.crush_osds(&call.texts("ids"))?;
                self.edit_crush(|crush| {
                    osds.iter().try_for_each(|osd| crush.remove_device_class(osd.0 as i32).map(drop))
                })?;
                Ok(CommandAnswer::status(format!("done removing class of osd(s): {}", join(&osds))))
            }
            "osd crush get-device-class" => {
                let osds = self.crush_osds(&call.texts("ids"))?;
                let class = |osd: &OsdId| self.committed.crush.device_class(osd.0 as i32).unwrap_or("");
                Ok(CommandAnswer::json(
                    osds.iter().map(|osd| json!({ "osd": osd.0, "device_class": class(osd) })).collect(),
                ))
            }
            "osd crush ls" => {
                let node = call.required_text("node");
                let crush = &self.committed.crush;
                let id = crush
                    .item_id(node)
                    .ok_or_else(|| CommandFailure::not_found(format!("node '{node}' does not exist")))?;
                let names: Vec<&str> = match crush.bucket(id) {
                    Some(bucket) => bucket.items.iter().filter_map(|item| crush.item_name(*item)).collect(),
                    None => vec![node],
                };
                Ok(CommandAnswer::json(json!(names)))
            }
            _ => unhandled(call),
        }
    }

    fn crush_class_remove(&mut self, class: &str) -> CommandOutcome {
        let Some(id) = self.working.crush.class_id(class) else {
            return Ok(CommandAnswer::status(format!("class '{class}' does not exist")));
        };
        let crush = &self.working.crush;
        let of_class = |root: &i32| crush.split_id_class(*root).is_some_and(|(_, c)| c == id);
        let user = crush.rules().find(|(rule, _)| crush.rule_roots(*rule).iter().any(of_class));
        if let Some((rule, _)) = user {
            let rule = crush.rule_name(rule).unwrap_or_default();
            let text = format!("class '{class}' still referenced by crush_rule '{rule}'");
            return Err(CommandFailure::new(Errno::EBUSY, text));
        }
        self.edit_crush(|crush| {
            // A class is removed with its last device.
            crush
                .devices_of_class(class)
                .into_iter()
                .try_for_each(|osd| crush.remove_device_class(osd).map(drop))?;
            crush.rebuild_class_roots()
        })?;
        Ok(CommandAnswer::status(format!("removed class {class} with id {id} from crush map")))
    }

    /// The OSDs that `words` name; `all` and `any` mean all OSDs.
    fn crush_osds(&self, words: &[&str]) -> Result<Vec<OsdId>, CommandFailure> {
        let mut osds = Vec::new();
        for word in words {
            if matches!(*word, "all" | "any" | "*") {
                osds.extend(self.working.osds.keys().copied());
                continue;
            }
            let osd: OsdId = word
                .parse()
                .map_err(|_| CommandFailure::invalid(format!("unable to parse osd id: \"{word}\"")))?;
            if !self.working.osds.contains_key(&osd) {
                return Err(CommandFailure::not_found(format!("{osd} does not exist")));
            }
            osds.push(osd);
        }
        Ok(osds)
    }
}

fn join(osds: &[OsdId]) -> String {
    osds.iter().map(|osd| osd.0.to_string()).collect::<Vec<_>>().join(",")
}

/// Parses a location such as `root=default host=a`.
fn location(words: &[&str]) -> Result<Location, CommandFailure> {
    words
        .iter()
        .map(|word| {
            let parts = word.split_once('=').filter(|(kind, name)| !kind.is_empty() && !name.is_empty());
            let (kind, name) = parts.ok_or_else(|| {
                CommandFailure::invalid(format!("unable to parse location '{word}': want type=name"))
            })?;
            Ok((kind.to_owned(), name.to_owned()))
        })
        .collect()
}

/// As Ceph prints a location.
fn show_location(loc: &Location) -> String {
    let parts: Vec<String> = loc.iter().map(|(kind, name)| format!("{kind}={name}")).collect();
    format!("{{{}}}", parts.join(","))
}

#[cfg(test)]
mod tests {
    use super::super::tests::Desk;
    use serde_json::{Value, json};

    fn json_of(desk: &mut Desk, prefix: &str, mut args: Value) -> Value {
        args["format"] = "json".into();
        serde_json::from_str(&desk.text(prefix, args)).unwrap()
    }

    #[test]
    fn a_hierarchy_is_built_and_osds_move_in_it() {
        let mut desk = Desk::new();
        let added = desk.status("osd crush add-bucket", json!({ "name": "r1", "type": "rack" }));
        assert_eq!(added, "added bucket r1 type rack to crush map");
        let again = desk.status("osd crush add-bucket", json!({ "name": "r1", "type": "rack" }));
        assert_eq!(again, "bucket 'r1' already exists");
        let moved = desk.status("osd crush move", json!({ "name": "r1", "args": ["root=default"] }));
        assert!(moved.ends_with("name 'r1' to location {root=default} in crush map"), "{moved}");
        let set = json!({ "id": "osd.1", "weight": 2.0, "args": ["root=default", "rack=r1", "host=h9"] });
        let text = desk.status("osd crush set", set.clone());
        assert_eq!(
            text,
            "set item id 1 name 'osd.1' weight 2 at location {host=h9,rack=r1,root=default} to crush map"
        );
        assert!(desk.status("osd crush set", set).ends_with(": no change"));
        assert_eq!(json_of(&mut desk, "osd crush ls", json!({ "node": "h9" })), json!(["osd.1"]));
        assert_eq!(json_of(&mut desk, "osd crush ls", json!({ "node": "r1" })), json!(["h9"]));

        let (code, text, _) = desk.run("osd crush rm", json!({ "name": "r1" }));
        assert_eq!((code, text.as_str()), (-39, "bucket 'r1' is not empty"));
        let (code, ..) =
            desk.run("osd crush add", json!({ "id": "9", "weight": 1, "args": ["root=default"] }));
        assert_eq!(code, -2);
        let (code, ..) = desk.run("osd crush move", json!({ "name": "osd.1", "args": ["nonsense"] }));
        assert_eq!(code, -22);
        assert_eq!(
            desk.status("osd crush rename-bucket", json!({ "srcname": "h9", "dstname": "h10" })),
            "renamed bucket h9 into h10"
        );
        let text = desk.status("osd crush reweight-subtree", json!({ "name": "r1", "weight": 0.5 }));
        assert!(text.ends_with("name 'r1' to 0.5 in crush map"), "{text}");
        assert!(desk.status("osd crush rm", json!({ "name": "osd.1" })).starts_with("removed item id 1"));
        assert_eq!(
            desk.status("osd crush rm", json!({ "name": "osd.1" })),
            "device 'osd.1' does not appear in the crush map"
        );
    }

    #[test]
    fn classes_and_the_rules_that_use_them() {
        let mut desk = Desk::new();
        assert_eq!(
            desk.status("osd crush rm-device-class", json!({ "ids": ["0", "1"] })),
            "done removing class of osd(s): 0,1"
        );
        assert_eq!(
            desk.status("osd crush set-device-class", json!({ "class": "ssd", "ids": ["0", "osd.1"] })),
            "set osd(s) 0,1 to class 'ssd'"
        );
        assert_eq!(json_of(&mut desk, "osd crush class ls-osd", json!({ "class": "ssd" })), json!([0, 1]));
        let (code, ..) = desk.run("osd crush set-device-class", json!({ "class": "nvme", "ids": ["0"] }));
        assert_eq!(code, -16, "a class must be removed first");
        let rule = json!({ "name": "fast", "root": "default", "type": "osd", "class": "ssd" });
        desk.ok("osd crush rule create-replicated", rule.clone());
        assert_eq!(desk.status("osd crush rule create-replicated", rule), "rule fast already exists");
        assert_eq!(
            json_of(&mut desk, "osd crush rule ls-by-class", json!({ "class": "ssd" })),
            json!(["fast"])
        );
        let (code, text, _) = desk.run("osd crush class rm", json!({ "class": "ssd" }));
        assert_eq!((code, text.as_str()), (-16, "class 'ssd' still referenced by crush_rule 'fast'"));

        desk.ok("osd pool create", json!({ "pool": "p", "pg_num": 8, "rule": "fast" }));
        let (code, text, _) = desk.run("osd crush rule rm", json!({ "name": "fast" }));
        assert_eq!((code, text.as_str()), (-16, "crush rule 'fast' is in use"));
        desk.ok("osd crush rule rename", json!({ "srcname": "fast", "dstname": "faster" }));
        desk.ok(
            "osd crush rule create-simple",
            json!({ "name": "plain", "root": "default", "type": "host" }),
        );
        desk.ok("osd crush rule rm", json!({ "name": "plain" }));
        assert_eq!(desk.status("osd crush rule rm", json!({ "name": "plain" })), "rule plain does not exist");
        let rules = json_of(&mut desk, "osd crush rule ls", json!({}));
        assert_eq!(rules, json!(["replicated_rule", "faster"]));
    }

    #[test]
    fn tunables_follow_profiles() {
        let mut desk = Desk::new();
        let text = desk.status("osd crush tunables", json!({ "profile": "firefly" }));
        assert_eq!(text, "adjusted tunables profile to firefly");
        assert_eq!(json_of(&mut desk, "osd crush show-tunables", json!({}))["profile"], "firefly");
        desk.ok("osd crush tunables", json!({ "profile": "optimal" }));
        assert_eq!(json_of(&mut desk, "osd crush show-tunables", json!({}))["profile"], "jewel");
        assert_eq!(desk.run("osd crush tunables", json!({ "profile": "giant" })).0, -22);
    }
}
