//! `config help` in Ceph's JSON and text, and the reference page.

use super::spec::{OptionSpec, OptionType};
use super::{GROUPS, all};
use serde_json::{Value, json};
use std::fmt::Write;

impl OptionSpec {
    fn json_value(&self, text: Option<&str>) -> Value {
        let Some(text) = text else { return json!("") };
        let text = self.canonical(text).unwrap_or_else(|_| text.to_owned());
        match self.ty {
            OptionType::Int => text.parse::<i64>().map_or_else(|_| json!(text), Value::from),
            OptionType::Uint => text.parse::<u64>().map_or_else(|_| json!(text), Value::from),
            OptionType::Float => text.parse::<f64>().map_or_else(|_| json!(text), Value::from),
            OptionType::Bool => json!(text == "true"),
            _ => json!(text),
        }
    }

    fn flag_names(&self) -> Vec<&'static str> {
        let flags = self.flags;
        [
            (flags.runtime, "runtime"),
            (flags.no_mon_update, "no_mon_update"),
            (flags.startup, "startup"),
            (flags.cluster_create, "cluster_create"),
            (flags.create, "create"),
        ]
        .into_iter()
        .filter_map(|(set, name)| set.then_some(name))
        .collect()
    }

    fn service_names(&self) -> Vec<&'static str> {
        self.services.iter().map(|s| s.as_str()).collect()
    }

    fn tags(&self) -> &'static [&'static str] {
        if self.nacre_only { &["nacre"] } else { &[] }
    }

    /// `config help NAME --format json`, with Ceph's fields.
    pub fn help_json(&self) -> Value {
        json!({
            "name": self.name,
            "type": self.ty.as_str(),
            "level": self.level.as_str(),
            "desc": self.desc,
            "long_desc": self.long_desc,
            "default": self.json_value(Some(self.default)),
            "daemon_default": self.json_value(self.daemon_default),
            "tags": self.tags(),
            "services": self.service_names(),
            "see_also": self.see_also,
            "enum_values": self.choices,
            "min": self.json_value(self.min),
            "max": self.json_value(self.max),
            "can_update_at_runtime": self.can_update_at_runtime(),
            "flags": self.flag_names(),
        })
    }

    /// `config help NAME`, in Ceph's layout.
    pub fn help_text(&self) -> String {
        let shown = |text: &str| self.canonical(text).unwrap_or_else(|_| text.to_owned());
        let mut out = format!("{} - {}\n", self.name, self.desc);
        let line = |out: &mut String, label: &str, value: &str| {
            out.push_str("  ");
            out.push_str(label);
            out.push_str(value);
            out.push('\n');
        };
        line(&mut out, "", &format!("({}, {})", self.ty.as_str(), self.level.as_str()));
        match self.daemon_default {
            Some(daemon) => {
                line(&mut out, "Default (non-daemon): ", &shown(self.default));
                line(&mut out, "Default (daemon): ", &shown(daemon));
            }
            None => line(&mut out, "Default: ", &shown(self.default)),
        }
        if !self.choices.is_empty() {
            line(&mut out, "Possible values:  ", &self.choices.join(" "));
        }
        if let Some(min) = self.min {
            line(&mut out, "Minimum: ", &shown(min));
        }
        if let Some(max) = self.max {
            line(&mut out, "Maximum: ", &shown(max));
        }
        line(
            &mut out,
            "Can update at runtime: ",
            if self.can_update_at_runtime() { "true" } else { "false" },
        );
        line(&mut out, "Services: ", &format!("[{}]", self.service_names().join(",")));
        if !self.tags().is_empty() {
            line(&mut out, "Tags: ", &format!("[{}]", self.tags().join(",")));
        }
        if !self.see_also.is_empty() {
            line(&mut out, "See also: ", &format!("[{}]", self.see_also.join(",")));
        }
        if !self.long_desc.is_empty() {
            out.push('\n');
            out.push_str(&wrap(self.long_desc, 72));
        }
        out
    }
}

fn wrap(text: &str, width: usize) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    let mut column = 0;
    for word in text.split_whitespace() {
        if column > 0 && column + 1 + word.len() > width {
            out.push('\n');
            column = 0;
        }
        if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += word.len();
    }
    out.push('\n');
    out
}

/// The reference page of all options, in Markdown.
pub fn reference_markdown() -> String {
    let mut out = String::from(
        "# Options\n\nGenerated from the option table; `nacre config help NAME` shows the same. Options marked *Nacre* \
         do not exist in Ceph.\n\n",
    );
    let titles = ["Every program", "Debug levels", "Messenger", "Map authority and pool defaults"];
    let titles =
        titles.into_iter().chain(["OSD", "BlueStore", "MemStore", "FileStore", "Clients", "S3 gateway"]);
    for (title, group) in titles.zip(GROUPS) {
        let _ = writeln!(out, "## {title}\n\n| option | type | default | range | runtime | what |");
        out.push_str("|---|---|---|---|---|---|\n");
        for spec in group {
            let range = match (spec.min, spec.max) {
                _ if !spec.choices.is_empty() => spec.choices.join(", "),
                (Some(min), Some(max)) => format!("{min} to {max}"),
                (Some(min), None) => format!("from {min}"),
                (None, Some(max)) => format!("to {max}"),
                (None, None) => String::new(),
            };
            let default = if spec.default.is_empty() { String::new() } else { format!("`{}`", spec.default) };
            let daemon = spec.daemon_default.map(|d| format!(", daemons `{d}`")).unwrap_or_default();
            let own = if spec.nacre_only { " *Nacre.*" } else { "" };
            let more = if spec.long_desc.is_empty() { String::new() } else { format!(" {}", spec.long_desc) };
            let _ = writeln!(
                out,
                "| `{}` | {} | {default}{daemon} | {range} | {} | {}.{more}{own} |",
                spec.name,
                spec.ty.as_str(),
                if spec.can_update_at_runtime() { "yes" } else { "no" },
                spec.desc,
            );
        }
        out.push('\n');
    }
    out
}

/// `config ls`: all names, sorted.
pub fn names() -> Vec<&'static str> {
    let mut names: Vec<&str> = all().map(|spec| spec.name).collect();
    names.sort_unstable();
    names
}
