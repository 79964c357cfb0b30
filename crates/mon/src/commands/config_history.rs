//! `config log`, `config reset`, `config assimilate-conf`, `config generate-minimal-conf`.

use super::config::MAX_OPTION_BYTES;
use super::{CommandAnswer, CommandFailure, CommandOutcome, Context};
use crate::config_db::{ConfigTarget, ConfigVersion};
use crate::keys::MAX_VALUE_BYTES;
use crate::logic::MapState;
use crate::text::stamp;
use nacre_common::config::ConfFile;
use nacre_common::options;
use nacre_types::command::Call;
use serde_json::{Map, Value, json};
use std::path::Path;

/// Number of changes listed by default.
const LISTED: usize = 10;
/// Longest file that is accepted.
const MAX_CONF: usize = 1 << 20;

impl MapState {
    pub(super) fn config_log(&self, call: &Call<'_>, ctx: &Context) -> CommandAnswer {
        let wanted = call.int("num").map_or(LISTED, |n| usize::try_from(n).unwrap_or(0));
        let versions: Vec<&ConfigVersion> = self.config.history().rev().take(wanted).collect();
        CommandAnswer::either(
            ctx,
            || versions.iter().map(|version| version_json(version)).collect(),
            || {
                let mut out = String::new();
                for version in &versions {
                    let when =
                        if version.stamp_ns == 0 { "0.000000".into() } else { stamp(version.stamp_ns) };
                    let note = if version.note.is_empty() {
                        String::new()
                    } else {
                        format!(" --- {}", version.note)
                    };
                    out.push_str(&format!("--- {} --- {when} ---{note}\n", version.number));
                    for change in &version.changes {
                        let line = |sign: char, value: &Option<String>| {
                            value
                                .as_ref()
                                .map(|value| format!("{sign} {}/{} = {value}\n", change.who, change.name))
                        };
                        out.extend(line('-', &change.before));
                        out.extend(line('+', &change.after));
                    }
                }
                out
            },
        )
    }

    /// Reverts every change after a version.
    pub(super) fn config_reset(&mut self, number: i64, ctx: &Context) -> CommandOutcome {
        let newest = self.config.history().next_back().map_or(0, |version| version.number);
        let oldest = self.config.history().next().map_or(0, |version| version.number);
        let number = u64::try_from(number).unwrap_or(0);
        // The state before the oldest kept version is unknown.
        if number > newest || number < oldest.saturating_sub(1) {
            return Err(CommandFailure::invalid(
                "must specify a valid historical version to revert to; see 'ceph config log' for a list of avialable \
                 configuration historical versions",
            ));
        }
        let mut wanted: Vec<(ConfigTarget, String, Option<String>)> = Vec::new();
        for version in self.config.history().rev().take_while(|version| version.number > number) {
            for change in version.changes.iter().rev() {
                let who = ConfigTarget::parse(&change.who).ok_or_else(|| {
                    CommandFailure::invalid(format!("unrecognized config target '{}'", change.who))
                })?;
                wanted.retain(|(w, name, _)| *w != who || *name != change.name);
                wanted.push((who, change.name.clone(), change.before.clone()));
            }
        }
        self.change_config(wanted, &format!("reset to {number}"), ctx)?;
        Ok(CommandAnswer::default())
    }

    /// Sets those options of a `ceph.conf` that the database can hold; returns a file with the rest.
    pub(super) fn config_assimilate(&mut self, ctx: &Context) -> CommandOutcome {
        if ctx.input.len() > MAX_CONF {
            return Err(CommandFailure::invalid(format!("the file exceeds {MAX_CONF} bytes")));
        }
        let text =
            std::str::from_utf8(&ctx.input).map_err(|_| CommandFailure::invalid("the file is not text"))?;
        let conf = ConfFile::parse(Path::new("-"), text)
            .map_err(|error| CommandFailure::invalid(error.to_string()))?;
        let mut wanted = Vec::new();
        let mut rest = String::new();
        for section in conf.section_names() {
            let mut left = String::new();
            for entry in conf.section(section) {
                let spec = options::find(&entry.name).filter(|spec| !spec.flags.no_mon_update);
                let value = spec.and_then(|spec| Some((spec.name, spec.canonical(&entry.value).ok()?)));
                let value = value.filter(|(_, value)| value.len() <= MAX_OPTION_BYTES);
                match (ConfigTarget::parse(section), value) {
                    (Some(who), Some((name, value))) => wanted.push((who, name.to_owned(), Some(value))),
                    _ => left.push_str(&format!(
                        "\t{} = {}\n",
                        options::normalize_name(&entry.name),
                        entry.value
                    )),
                }
            }
            if !left.is_empty() {
                rest.push_str(&format!("[{section}]\n{left}\n"));
            }
        }
        self.change_config(wanted, "assimilate-conf", ctx)?;
        Ok(CommandAnswer::text(format!("\n{rest}")))
    }

    pub(super) fn minimal_conf(&self) -> CommandAnswer {
        let fsid = self.committed.fsid;
        let addr = self.mon_addr.map_or_else(String::new, |addr| format!("[v2:{addr}/0]"));
        CommandAnswer::text(format!(
            "# minimal ceph.conf for {fsid}\n[global]\n\tfsid = {fsid}\n\tmon_host = {addr}\n"
        ))
    }

    /// Sets and removes values as one version of the configuration. Fails without changes if the version is too large for a record.
    pub(super) fn change_config(
        &mut self,
        wanted: Vec<(ConfigTarget, String, Option<String>)>,
        note: &str,
        ctx: &Context,
    ) -> Result<(), CommandFailure> {
        let Some(version) = self.config.plan(wanted, ctx.now.wall_ns, note) else { return Ok(()) };
        let record =
            postcard::to_extend(&version, Vec::new()).expect("invariant: a plain structure always encodes");
        if record.len() > MAX_VALUE_BYTES {
            return Err(CommandFailure::invalid(format!(
                "the change takes {} bytes with the values before and after it, the limit is {MAX_VALUE_BYTES}; \
                 change fewer options at a time",
                record.len()
            )));
        }
        for change in &version.changes {
            let Some(who) = ConfigTarget::parse(&change.who) else { continue };
            let key = crate::keys::config(&who, &change.name);
            self.keys.insert(key, change.after.as_ref().map(|value| value.clone().into_bytes()));
        }
        self.keys.insert(crate::keys::config_history(version.number), Some(record));
        self.config.apply(version);
        for number in self.config.trim_history() {
            self.keys.insert(crate::keys::config_history(number), None);
        }
        self.config_version += 1;
        Ok(())
    }
}

fn version_json(version: &ConfigVersion) -> Value {
    let changes: Vec<Value> = version
        .changes
        .iter()
        .map(|change| {
            let mut entry = Map::new();
            entry.insert("name".into(), format!("{}/{}", change.who, change.name).into());
            entry.extend(change.before.iter().map(|value| ("previous_value".into(), value.as_str().into())));
            entry.extend(change.after.iter().map(|value| ("new_value".into(), value.as_str().into())));
            Value::Object(entry)
        })
        .collect();
    let when = if version.stamp_ns == 0 { "0.000000".into() } else { stamp(version.stamp_ns) };
    json!({ "version": version.number, "timestamp": when, "name": version.note, "changes": changes })
}

#[cfg(test)]
mod tests {
    use super::super::tests::Desk;
    use nacre_types::errno::Errno;
    use serde_json::json;

    fn set(desk: &mut Desk, value: &str) {
        desk.ok("config set", json!({ "who": "osd", "name": "osd_max_backfills", "value": value }));
    }

    #[test]
    fn changes_are_listed_and_taken_back() {
        let mut desk = Desk::new();
        set(&mut desk, "2");
        set(&mut desk, "3");
        set(&mut desk, "3");
        desk.ok("config set", json!({ "who": "osd.0", "name": "debug_osd", "value": "2/5" }));
        let log = desk.text("config log", json!({ "num": 2 }));
        let lines: Vec<_> = log.lines().collect();
        assert!(lines[0].starts_with("--- 3 --- ") && lines[2].starts_with("--- 2 --- "), "{log}");
        assert_eq!(
            (lines[1], &lines[3..]),
            ("+ osd.0/debug_osd = 2/5", &["- osd/osd_max_backfills = 2", "+ osd/osd_max_backfills = 3"][..])
        );
        desk.ok("config reset", json!({ "num": 1 }));
        assert_eq!(desk.text("config get", json!({ "who": "osd.0", "key": "osd_max_backfills" })), "2\n");
        assert_eq!(desk.json("config dump", json!({})).as_array().unwrap().len(), 1);
        desk.ok("config reset", json!({ "num": 3 }));
        assert_eq!(desk.text("config get", json!({ "who": "osd.0", "key": "debug_osd" })), "2/5\n");
        desk.ok("config reset", json!({ "num": 0 }));
        assert_eq!(desk.json("config dump", json!({})), json!([]));
        let text = "must specify a valid historical version to revert to; see 'ceph config log' for a list of avialable \
                    configuration historical versions";
        desk.fails("config reset", json!({ "num": 99 }), Errno::EINVAL, text);
    }

    #[test]
    fn what_is_too_long_to_be_recorded_is_refused() {
        let mut desk = Desk::new();
        let set =
            |value: String| json!({ "who": "client.a", "name": "other", "value": value, "force": true });
        let text = "the value has 65537 bytes, the limit is 65536";
        desk.fails("config set", set("x".repeat(65_537)), Errno::EINVAL, text);
        desk.ok("config set", set("x".repeat(65_536)));
        desk.ok("config set", set("y".repeat(65_536)));

        // Each value may be set alone, but not all of them at once.
        let options = ["rgw_dns_name", "log_file", "pid_file", "crush_location", "rgw_ops_log_file_path"];
        let conf = |letter: &str| -> String {
            let section = |n: usize| {
                let values = options.map(|name| format!("{name} = {}\n", letter.repeat(60_000)));
                format!("[client.c{n}]\n{}", values.concat())
            };
            (0..3).map(section).collect()
        };
        let (code, status, rest) = desk.with_input("config assimilate-conf", json!({}), conf("x").as_bytes());
        assert_eq!((code, status.as_str()), (0, ""));
        let taken = desk.json("config dump", json!({})).as_array().unwrap().len();
        assert_eq!((taken, rest.len()), (16, 1), "all are taken");
        let before = (desk.json("config log", json!({})), desk.json("config dump", json!({})));
        let (code, status, _) = desk.with_input("config assimilate-conf", json!({}), conf("y").as_bytes());
        assert_eq!(code, Errno::EINVAL.negated());
        assert!(status.contains("change fewer options at a time"), "{status}");
        assert_eq!((desk.json("config log", json!({})), desk.json("config dump", json!({}))), before);

        let long = format!("[client.b]\nlog_file = {}\n", "x".repeat(65_537));
        let (code, _, rest) = desk.with_input("config assimilate-conf", json!({}), long.as_bytes());
        assert_eq!((code, rest.len() > 65_537), (0, true), "it is given back");
    }

    #[test]
    fn a_file_is_taken_in_and_the_rest_given_back() {
        let mut desk = Desk::new();
        let conf = "[global]\nfsid = 00000000-0000-0000-0000-000000000007\nosd max backfills = 5\n[osd.1]\nnonesuch = 1\n\
                    osd_op_complaint_time = 7\n";
        let (code, status, rest) = desk.with_input("config assimilate-conf", json!({}), conf.as_bytes());
        assert_eq!(code, 0, "{status}");
        assert_eq!(
            rest,
            "\n[global]\n\tfsid = 00000000-0000-0000-0000-000000000007\n\n[osd.1]\n\tnonesuch = 1\n\n"
        );
        assert_eq!(desk.text("config get", json!({ "who": "osd.1", "key": "osd_max_backfills" })), "5\n");
        assert!(
            desk.text("config get", json!({ "who": "osd.1", "key": "osd_op_complaint_time" }))
                .starts_with('7')
        );
        let minimal = desk.text("config generate-minimal-conf", json!({}));
        assert!(minimal.starts_with(
            "# minimal ceph.conf for 00000000-0000-0000-0000-000000000007\n[global]\n\tfsid = "
        ));
    }
}
