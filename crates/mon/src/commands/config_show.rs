//! `config show`: the options of a running daemon, as it reported them.

use super::{CommandAnswer, CommandFailure, CommandOutcome, Context};
use crate::logic::MapState;
use crate::text::{Align, Table};
use nacre_common::options;
use nacre_types::command::Call;
use nacre_types::ids::{EntityKind, EntityName};
use nacre_types::msg::ReportedOption;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

impl MapState {
    pub(super) fn config_show(&self, call: &Call<'_>, with_defaults: bool, ctx: &Context) -> CommandOutcome {
        let who = call.required_text("who");
        let invalid = || CommandFailure::invalid("invalid daemon name: use <type>.<id>");
        if !who.contains('.') {
            return Err(invalid());
        }
        let entity: EntityName = who.parse().map_err(|_| invalid())?;
        let reported = self
            .running_config(&entity)
            .ok_or_else(|| CommandFailure::not_found(format!("no config state for daemon {who}")))?;
        let by_name: BTreeMap<&str, &ReportedOption> =
            reported.iter().map(|option| (option.name.as_str(), option)).collect();
        let daemon = entity.kind != EntityKind::Client;
        if !with_defaults && let Some(key) = call.text("key") {
            let Some(spec) = options::find(key) else {
                let option = options::ceph_only_option(key).ok_or_else(|| CommandFailure::not_found(""))?;
                let value = option.default(daemon);
                return Ok(CommandAnswer::either(ctx, || json!(value), || format!("{value}\n")));
            };
            let value = by_name.get(spec.name).and_then(|option| option.values.last());
            let value = value.map_or_else(|| default_of(spec, daemon), |(_, value)| value.clone());
            let shown = options::redacted(spec.name, &value);
            return Ok(CommandAnswer::either(ctx, || json!(shown), || format!("{shown}\n")));
        }
        let mut rows: Vec<Row<'_>> = Vec::new();
        for spec in options::all() {
            match by_name.get(spec.name) {
                Some(option) => rows.push(Row::of(option)),
                None if with_defaults => rows.push(Row {
                    name: spec.name,
                    value: default_of(spec, daemon),
                    source: "default",
                    overrides: Vec::new(),
                }),
                None => {}
            }
        }
        rows.sort_by_key(|row| row.name);
        Ok(CommandAnswer::either(ctx, || rows.iter().map(Row::json).collect(), || table(&rows)))
    }

    fn running_config(&self, entity: &EntityName) -> Option<&Vec<ReportedOption>> {
        let is_mon = entity.kind == EntityKind::Mon && entity.id == self.mon_name;
        let entity = if is_mon { EntityName::mon() } else { entity.clone() };
        self.running.get(&entity)
    }
}

fn default_of(spec: &'static options::OptionSpec, daemon: bool) -> String {
    let default = spec.daemon_default.filter(|_| daemon).unwrap_or(spec.default);
    spec.canonical(default).unwrap_or_else(|_| default.to_owned())
}

struct Row<'a> {
    name: &'a str,
    value: String,
    source: &'a str,
    /// Sources with values that are overridden, and these values.
    overrides: Vec<(&'a str, &'a str)>,
}

impl<'a> Row<'a> {
    fn of(option: &'a ReportedOption) -> Row<'a> {
        let shown = |value: &'a str| options::redacted(&option.name, value);
        let mut values = option.values.iter().map(|(source, value)| (source.as_str(), shown(value)));
        let (source, value) = values.next_back().unwrap_or(("default", ""));
        Row { name: &option.name, value: value.to_owned(), source, overrides: values.collect() }
    }

    fn json(&self) -> Value {
        let mut entry = Map::new();
        entry.insert("name".into(), self.name.into());
        entry.insert("value".into(), self.value.as_str().into());
        entry.insert("source".into(), self.source.into());
        if !self.overrides.is_empty() {
            let overrides =
                self.overrides.iter().map(|(source, value)| json!({ "source": source, "value": value }));
            entry.insert("overrides".into(), overrides.collect());
        }
        Value::Object(entry)
    }
}

fn table(rows: &[Row<'_>]) -> String {
    let columns =
        ["NAME", "VALUE", "SOURCE", "OVERRIDES", "IGNORES"].map(|name| (name, Align::Left, Align::Left));
    let mut table = Table::new(&columns);
    for row in rows {
        let overrides: Vec<&str> = row.overrides.iter().map(|(source, _)| *source).collect();
        table.row(vec![
            row.name.to_owned(),
            row.value.clone(),
            row.source.to_owned(),
            overrides.join(","),
            String::new(),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::super::tests::Desk;
    use crate::logic::MapEvent;
    use nacre_types::errno::Errno;
    use nacre_types::ids::{EntityName, OsdId};
    use nacre_types::msg::{ConfigReport, ReportedOption};
    use serde_json::json;

    #[test]
    fn running_daemons_options_are_shown_with_their_sources() {
        let mut desk = Desk::new();
        let text = "no config state for daemon osd.0";
        desk.fails("config show", json!({ "who": "osd.0" }), Errno::ENOENT, text);
        let text = "invalid daemon name: use <type>.<id>";
        desk.fails("config show", json!({ "who": "foo" }), Errno::EINVAL, text);
        let value = |source: &str, value: &str| (source.to_owned(), value.to_owned());
        let option = ReportedOption {
            name: "osd_max_backfills".into(),
            values: vec![value("mon", "2"), value("override", "3")],
        };
        let report = ConfigReport { options: vec![option] };
        desk.state.handle(desk.now, MapEvent::Config { entity: EntityName::osd(OsdId(0)), report });
        assert_eq!(
            desk.json("config show", json!({ "who": "osd.0" })),
            json!([{
                "name": "osd_max_backfills", "value": "3", "source": "override",
                "overrides": [{ "source": "mon", "value": "2" }],
            }])
        );
        assert_eq!(desk.text("config show", json!({ "who": "osd.0", "key": "osd_max_backfills" })), "3\n");
        assert_eq!(desk.text("config show", json!({ "who": "osd.0", "key": "osd_op_history_size" })), "20\n");
        let all = desk.json("config show-with-defaults", json!({ "who": "osd.0" }));
        assert!(all.as_array().unwrap().len() > 100);
        let shown = desk.text("config show", json!({ "who": "osd.0" }));
        assert!(shown.starts_with("NAME               VALUE  SOURCE    OVERRIDES  IGNORES\nosd_max_backfills  3      override  mon"), "{shown}");
    }
}
