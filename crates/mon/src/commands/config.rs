//! `config …`.

use super::{CommandAnswer, CommandFailure, CommandOutcome, Context, unhandled};
use crate::config_db::{ConfigMask, ConfigSubject, ConfigTarget};
use crate::logic::MapState;
use crate::text::{Align, Table};
use nacre_common::options::{self, OptionSpec};
use nacre_types::command::Call;
use nacre_types::ids::{EntityKind, EntityName};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Longest value of an option, as for `config-key`.
pub(super) const MAX_OPTION_BYTES: usize = 64 << 10;

impl MapState {
    pub(super) fn config_command(&mut self, call: &Call<'_>, ctx: &Context) -> CommandOutcome {
        match call.prefix() {
            "config set" => self.config_set(call, ctx),
            "config rm" => self.config_rm(call.required_text("who"), call.required_text("name"), ctx),
            "config log" => Ok(self.config_log(call, ctx)),
            "config reset" => self.config_reset(call.int("num").unwrap_or(-1), ctx),
            "config assimilate-conf" => self.config_assimilate(ctx),
            "config generate-minimal-conf" => Ok(self.minimal_conf()),
            "config show" => self.config_show(call, false, ctx),
            "config show-with-defaults" => self.config_show(call, true, ctx),
            "config dump" => Ok(self.config_dump(ctx)),
            "config get" => self.config_get(call.required_text("who"), call.text("key"), ctx),
            "config help" => config_help(call.required_text("key"), ctx),
            "config ls" => {
                let mut names: Vec<&str> = options::all().map(|spec| spec.name).collect();
                names.sort_unstable();
                Ok(CommandAnswer::either(
                    ctx,
                    || json!(names),
                    || names.iter().map(|name| format!("{name}\n")).collect(),
                ))
            }
            _ => unhandled(call),
        }
    }

    fn config_set(&mut self, call: &Call<'_>, ctx: &Context) -> CommandOutcome {
        let (name, value, force) =
            (call.required_text("name"), call.required_text("value"), call.flag("force"));
        let unknown = || CommandFailure::invalid(format!("unrecognized config option '{name}'"));
        let (name, value) = match options::find(name) {
            Some(spec) if spec.flags.no_mon_update => {
                return Err(CommandFailure::invalid(format!(
                    "{} is special and cannot be stored by the mon",
                    spec.name
                )));
            }
            Some(spec) => (spec.name, check_value(spec, value)?),
            // With force, an option of another release is stored; no daemon of this release uses it.
            None if force && crush_like_name(name) => (name, value.to_owned()),
            None => match options::ceph_only_option(name) {
                Some(option) => {
                    return Err(CommandFailure::invalid(format!(
                        "{} is an option of Ceph that has no effect here; --force stores it all the same",
                        option.name
                    )));
                }
                None => return Err(unknown()),
            },
        };
        if value.len() > MAX_OPTION_BYTES {
            let text = format!("the value has {} bytes, the limit is {MAX_OPTION_BYTES}", value.len());
            return Err(CommandFailure::invalid(text));
        }
        let who = parse_who(call.required_text("who"))?;
        if let ConfigMask::Location(type_name, _) = &who.mask
            && self.working.crush.type_id(type_name).is_none()
        {
            return Err(CommandFailure::invalid(format!("unrecognized config target '{who}'")));
        }
        self.change_config(vec![(who, name.to_owned(), Some(value))], "", ctx)?;
        Ok(CommandAnswer::default())
    }

    fn config_rm(&mut self, who: &str, name: &str, ctx: &Context) -> CommandOutcome {
        let name = options::find(name).map_or(name, |spec| spec.name);
        let who = parse_who(who)?;
        self.change_config(vec![(who, name.to_owned(), None)], "", ctx)?;
        Ok(CommandAnswer::default())
    }

    fn config_dump(&self, ctx: &Context) -> CommandAnswer {
        if ctx.is_json() {
            let entries: Vec<Value> = self
                .config
                .iter()
                .map(|(who, name, value)| {
                    let mut entry = Map::new();
                    entry.insert("section".into(), who.section.as_str().into());
                    entry.insert("name".into(), name.into());
                    entry.insert("value".into(), value.into());
                    entry.insert("level".into(), level(name).into());
                    entry.insert("can_update_at_runtime".into(), runtime(name).into());
                    entry.insert("mask".into(), who.mask.to_string().into());
                    entry.extend(mask_fields(&who.mask));
                    Value::Object(entry)
                })
                .collect();
            return CommandAnswer::json(Value::Array(entries));
        }
        let rows = self.config.iter().map(|(who, name, value)| {
            let indent = "  ".repeat(usize::from(who.rank));
            (format!("{indent}{}", who.section), who, name, value)
        });
        CommandAnswer::text(table(rows))
    }

    fn config_get(&self, who: &str, key: Option<&str>, ctx: &Context) -> CommandOutcome {
        let entity = entity_of(who)?;
        let osd = entity.osd_id();
        let device = osd.map(|osd| osd.0 as i32);
        let subject = ConfigSubject {
            entity: &entity,
            location: device.map_or_else(BTreeMap::new, |d| self.committed.crush.full_location(d)),
            device_class: device.and_then(|d| self.committed.crush.device_class(d)),
        };
        let resolved = self.config.resolve(&subject);
        if let Some(key) = key {
            if key == "fsid" {
                return Ok(CommandAnswer::text(format!("{}\n", self.committed.fsid)));
            }
            let daemon = entity.kind != EntityKind::Client;
            let Some(spec) = options::find(key) else {
                let option = options::ceph_only_option(key)
                    .ok_or_else(|| CommandFailure::not_found(format!("unrecognized key '{key}'")))?;
                let forced = resolved.get(option.name).map(|(value, _)| *value);
                let value = forced.unwrap_or_else(|| option.default(daemon));
                return Ok(CommandAnswer::either(ctx, || json!(value), || format!("{value}\n")));
            };
            let default = spec.daemon_default.filter(|_| daemon).unwrap_or(spec.default);
            let default = spec.canonical(default).unwrap_or_else(|_| default.to_owned());
            let value = resolved.get(spec.name).map_or(default, |(value, _)| (*value).to_owned());
            return Ok(CommandAnswer::either(ctx, || json!(value), || format!("{value}\n")));
        }
        Ok(CommandAnswer::either(
            ctx,
            || {
                let entry = |(name, (value, who)): (&&str, &(&str, &ConfigTarget))| {
                    let fields = json!({
                        "value": value,
                        "section": who.section,
                        "mask": mask_fields(&who.mask),
                        "can_update_at_runtime": runtime(name),
                    });
                    ((*name).to_owned(), fields)
                };
                Value::Object(resolved.iter().map(entry).collect())
            },
            || table(resolved.iter().map(|(name, (value, who))| (who.section.clone(), *who, *name, *value))),
        ))
    }

    /// The configuration of one entity, as `ConfigPublish` carries it.
    pub fn config_of(&self, entity: &EntityName) -> BTreeMap<String, String> {
        let device = entity.osd_id().map(|osd| osd.0 as i32);
        let subject = ConfigSubject {
            entity,
            location: device.map_or_else(BTreeMap::new, |d| self.committed.crush.full_location(d)),
            device_class: device.and_then(|d| self.committed.crush.device_class(d)),
        };
        let resolved = self.config.resolve(&subject);
        resolved.into_iter().map(|(name, (value, _))| (name.to_owned(), value.to_owned())).collect()
    }
}

fn config_help(key: &str, ctx: &Context) -> CommandOutcome {
    let spec = options::find(key).ok_or_else(|| CommandFailure::not_found(""))?;
    Ok(CommandAnswer::either(ctx, || spec.help_json(), || spec.help_text()))
}

fn check_value(spec: &OptionSpec, value: &str) -> Result<String, CommandFailure> {
    spec.canonical(value).map_err(|error| match error {
        nacre_common::error::Error::BadValue { reason, .. } => {
            CommandFailure::invalid(format!("error parsing value: {reason}"))
        }
        other => CommandFailure::invalid(format!("error parsing value: {other}")),
    })
}

/// Whether the name is safe in keys and files: letters, digits and underscores.
fn crush_like_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= 128 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn parse_who(text: &str) -> Result<ConfigTarget, CommandFailure> {
    ConfigTarget::parse(text)
        .ok_or_else(|| CommandFailure::invalid(format!("unrecognized config target '{text}'")))
}

/// `osd.0` as given; `osd` means a daemon of that kind without a section of its own.
fn entity_of(text: &str) -> Result<EntityName, CommandFailure> {
    if let Ok(entity) = text.parse() {
        return Ok(entity);
    }
    let kind = text.parse::<EntityKind>();
    kind.map(|kind| EntityName::new(kind, ""))
        .map_err(|_| CommandFailure::invalid(format!("unrecognized entity '{text}'")))
}

fn level(name: &str) -> &'static str {
    options::find(name).map_or("unknown", |spec| spec.level.as_str())
}

fn runtime(name: &str) -> bool {
    options::find(name).is_some_and(OptionSpec::can_update_at_runtime)
}

fn mask_fields(mask: &ConfigMask) -> Map<String, Value> {
    let mut fields = Map::new();
    match mask {
        ConfigMask::None => {}
        ConfigMask::Class(class) => {
            fields.insert("device_class".into(), class.as_str().into());
        }
        ConfigMask::Location(type_name, name) => {
            fields.insert("location_type".into(), type_name.as_str().into());
            fields.insert("location_value".into(), name.as_str().into());
        }
    }
    fields
}

fn table<'a>(rows: impl Iterator<Item = (String, &'a ConfigTarget, &'a str, &'a str)>) -> String {
    let columns =
        ["WHO", "MASK", "LEVEL", "OPTION", "VALUE", "RO"].map(|name| (name, Align::Left, Align::Left));
    let mut table = Table::new(&columns);
    for (section, who, name, value) in rows {
        let read_only = if runtime(name) { "" } else { "*" };
        let cells = [section.as_str(), &who.mask.to_string(), level(name), name, value, read_only];
        table.row(cells.map(str::to_owned).to_vec());
    }
    table.render()
}
