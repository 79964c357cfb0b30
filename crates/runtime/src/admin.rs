//! The commands that every daemon has: versions, counters, configuration, log. They are served on the admin socket and for
//! `tell`, with Ceph 16.2's words, fields and errors.
//!
//! [`DaemonCommands`] checks a command's JSON by the daemon's table, executes the common commands and leaves the rest to the daemon.
//! [`socket::AdminSocket`] serves them on a Unix socket.

pub mod socket;

use crate::log;
use nacre_common::config::{Config, ConfigSource};
use nacre_common::error::Error;
use nacre_common::metrics::PerfCounters;
use nacre_common::options::{self, OptionSpec, OptionType};
use nacre_types::command::{Call, Table, render_json};
use nacre_types::errno::Errno;
use serde_json::{Map, Value, json};

/// A command's output.
#[derive(Clone, Debug, PartialEq)]
pub enum CommandOutput {
    /// Printed in the requested format.
    Json(Value),
    /// Printed unchanged.
    Text(String),
}

/// A command's success: text for users (Ceph's `outs`) and output.
#[derive(Clone, Debug, PartialEq)]
pub struct CommandAnswer {
    /// For users.
    pub status: String,
    /// For programs.
    pub output: CommandOutput,
}

impl From<Value> for CommandAnswer {
    fn from(value: Value) -> CommandAnswer {
        CommandAnswer { status: String::new(), output: CommandOutput::Json(value) }
    }
}

/// A command's failure: its error number, and text for users.
#[derive(Clone, Debug, PartialEq)]
pub struct CommandFailure(pub Errno, pub String);

impl From<Error> for CommandFailure {
    fn from(error: Error) -> CommandFailure {
        CommandFailure(error.errno(), error.to_string())
    }
}

/// The outcome of a command.
pub type CommandResult = Result<CommandAnswer, CommandFailure>;

/// An answer in its encoded form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdminReply {
    /// 0 or a negated errno.
    pub code: i32,
    /// For users.
    pub status: String,
    /// For programs.
    pub output: Vec<u8>,
}

impl From<CommandFailure> for AdminReply {
    fn from(CommandFailure(errno, status): CommandFailure) -> AdminReply {
        AdminReply { code: errno.negated(), status, output: Vec::new() }
    }
}

/// The state of a daemon that the common commands use.
#[derive(Clone, Debug)]
pub struct DaemonCommands {
    /// Its options.
    pub config: Config,
    /// Its counters.
    pub perf: PerfCounters,
    /// Its commands, including the common ones.
    pub table: &'static Table,
}

impl DaemonCommands {
    /// Executes a command in its JSON form. `own` executes those that are not common to all daemons.
    pub fn run(&self, json: &str, own: impl FnOnce(&Call<'_>) -> CommandResult) -> AdminReply {
        let call = match self.table.parse_json(json) {
            Ok(call) => call,
            Err(error) => return CommandFailure(error.errno(), error.to_string()).into(),
        };
        let outcome = self.common(&call).unwrap_or_else(|| own(&call));
        match outcome {
            Ok(CommandAnswer { status, output: CommandOutput::Text(text) }) => {
                AdminReply { code: 0, status, output: text.into_bytes() }
            }
            Ok(CommandAnswer { status, output: CommandOutput::Json(value) }) => {
                AdminReply { code: 0, status, output: render_json(&value, call.format()) }
            }
            Err(refused) => refused.into(),
        }
    }

    /// Executes a common command. `None` if it is not one.
    fn common(&self, call: &Call<'_>) -> Option<CommandResult> {
        Some(match call.prefix() {
            "get_command_descriptions" => Ok(self.table.descriptions().into()),
            "help" => {
                let help = self.table.signatures().iter().map(|s| (s.prefix.clone(), s.help.into()));
                Ok(Value::Object(help.collect()).into())
            }
            "version" => Ok(json!({
                "version": env!("CARGO_PKG_VERSION"), "release": "nacre", "release_type": "stable",
            })
            .into()),
            "git_version" => Ok(json!({ "git_version": "no_version" }).into()),
            "perf dump" => Ok(self.perf.dump(call.text("logger"), call.text("counter")).into()),
            "perf schema" => Ok(self.perf.schema(None, None).into()),
            "perf reset" => self.perf_reset(call.required_text("var")),
            "config show" => Ok(self.config_show().into()),
            "config get" => self.config_get(call.required_text("var")),
            "config set" => self.config_set(call.required_text("var"), &call.texts("val").join(" ")),
            "config unset" => self.config_unset(call.required_text("var")),
            "config help" => config_help(call.text("var")),
            "config diff" => Ok(json!({ "diff": self.config_diff(None) }).into()),
            "config diff get" => match options::find(call.required_text("var")) {
                Some(spec) => Ok(json!({ "diff": self.config_diff(Some(spec.name)) }).into()),
                None => Err(unknown("getting", call.required_text("var"))),
            },
            "injectargs" => self.injectargs(&call.texts("injected_args")),
            // Lines are written immediately, so there is nothing to flush.
            "log flush" => Ok(json!({}).into()),
            "log reopen" => {
                log::reopen();
                Ok(json!({}).into())
            }
            _ => return None,
        })
    }

    fn perf_reset(&self, what: &str) -> CommandResult {
        if self.perf.reset(what) {
            Ok(json!({ "success": format!("perf reset {what}") }).into())
        } else {
            Ok(json!({ "error": format!("Not find: {what}") }).into())
        }
    }

    fn config_show(&self) -> Value {
        let mut out = Map::new();
        out.insert("name".into(), self.config.entity().to_string().into());
        out.insert("cluster".into(), self.config.cluster().into());
        out.extend(self.config.show().into_iter().map(|shown| (shown.name.to_owned(), shown.value.into())));
        Value::Object(out)
    }

    fn config_get(&self, name: &str) -> CommandResult {
        match options::find(name) {
            Some(spec) => {
                let value = self.config.display_value(spec.name)?;
                Ok(Value::Object(Map::from_iter([(name.to_owned(), value.into())])).into())
            }
            None => {
                let option = options::ceph_only_option(name).ok_or_else(|| unknown("getting", name))?;
                let value = option.default(self.config.is_daemon());
                Ok(Value::Object(Map::from_iter([(name.to_owned(), value.into())])).into())
            }
        }
    }

    fn config_set(&self, name: &str, value: &str) -> CommandResult {
        let Some(spec) = options::find(name) else {
            return Err(CommandFailure(
                Errno::ENOENT,
                format!("error setting '{name}' to '{value}': (2) {}", Errno::ENOENT.text()),
            ));
        };
        let changed = self.config.set(spec.name, value).map_err(|error| {
            let reason = match &error {
                Error::BadValue { reason, .. } => reason.clone(),
                other => other.to_string(),
            };
            let number = error.errno();
            CommandFailure(
                number,
                format!("error setting '{name}' to '{value}': ({}) {}: {reason}", number.0, number.text()),
            )
        })?;
        tracing::info!(
            option = spec.name,
            value = options::redacted(spec.name, value),
            "option set by a command"
        );
        let shown = self.config.display_value(spec.name)?;
        let text = if changed.is_empty() { String::new() } else { format!("{} = '{shown}' ", spec.name) };
        Ok(json!({ "success": text }).into())
    }

    fn config_unset(&self, name: &str) -> CommandResult {
        let spec = options::find(name).ok_or_else(|| unknown("unsetting", name))?;
        let changed = self.config.unset(spec.name)?;
        let shown = self.config.display_value(spec.name)?;
        let text = if changed.is_empty() { String::new() } else { format!("{} = '{shown}' ", spec.name) };
        Ok(json!({ "success": text }).into())
    }

    /// `--name=value` and `--name value`, one or several per text.
    fn injectargs(&self, args: &[&str]) -> CommandResult {
        let words: Vec<&str> = args.iter().flat_map(|text| text.split_whitespace()).collect();
        let mut pairs = Vec::new();
        let mut rest = words.iter().peekable();
        while let Some(word) = rest.next() {
            let invalid = || CommandFailure(Errno::EINVAL, format!("failed to parse arguments: {word}"));
            let bare = word.strip_prefix("--").ok_or_else(invalid)?;
            let (name, value) = match bare.split_once('=') {
                Some((name, value)) => (name, value),
                None => (bare, *rest.next().ok_or_else(invalid)?),
            };
            let spec = options::find(name).ok_or_else(invalid)?;
            spec.canonical(value)?;
            pairs.push((spec.name, value));
        }
        let mut status = String::new();
        for (name, value) in pairs {
            self.config.set(name, value)?;
            tracing::info!(option = name, value = options::redacted(name, value), "option injected");
            status.push_str(&format!("{name} = '{}' ", self.config.display_value(name)?));
        }
        Ok(CommandAnswer { status, output: CommandOutput::Json(json!({})) })
    }

    fn config_diff(&self, only: Option<&str>) -> Value {
        let mut out = Map::new();
        for (name, layers) in self.config.layers() {
            if only.is_some_and(|only| only != name) {
                continue;
            }
            let Some(spec) = options::find(name) else { continue };
            if only.is_none() && layers.iter().all(|(source, _)| *source == ConfigSource::Default) {
                continue;
            }
            let shown = |text: &str| typed(spec, options::redacted(name, text));
            let mut entry: Map<String, Value> =
                layers.iter().map(|(source, text)| (source.as_str().to_owned(), shown(text))).collect();
            let value = self.config.display_value(name).unwrap_or_default();
            entry.insert("final".into(), typed(spec, &value));
            out.insert(name.to_owned(), entry.into());
        }
        Value::Object(out)
    }
}

fn unknown(what: &str, name: &str) -> CommandFailure {
    CommandFailure(Errno::ENOENT, format!("error {what} '{name}': (2) {}", Errno::ENOENT.text()))
}

fn config_help(name: Option<&str>) -> CommandResult {
    match name {
        Some(name) => {
            let spec = options::find(name)
                .ok_or_else(|| CommandFailure(Errno::EINVAL, format!("Setting not found: '{name}'")))?;
            Ok(json!({ "option": spec.help_json() }).into())
        }
        None => {
            Ok(json!({ "options": options::all().map(OptionSpec::help_json).collect::<Vec<_>>() }).into())
        }
    }
}

/// A value as `config diff` shows it: booleans and numbers have their JSON types, sizes and times are text.
fn typed(spec: &OptionSpec, text: &str) -> Value {
    match spec.ty {
        OptionType::Bool => text.parse::<bool>().map_or_else(|_| text.into(), Value::from),
        OptionType::Int | OptionType::Uint => text.parse::<i64>().map_or_else(|_| text.into(), Value::from),
        OptionType::Float => text.parse::<f64>().map_or_else(|_| text.into(), Value::from),
        _ => text.into(),
    }
}

#[cfg(test)]
mod tests;
