//! The commands of `nacre` and `ceph` that the map authority answers, with Ceph 16.2's words, fields and errors.
//!
//! [`nacre_types::command`] defines the commands and checks their arguments; this module executes them on the map state.
//! A command either fails and changes nothing, or succeeds and is answered once its change is durable. Commands show the durable map.

mod auth;
mod cluster;
mod config;
mod config_history;
mod config_key;
mod config_show;
mod crush;
mod crush_edit;
mod daemons;
mod health;
mod numbers;
mod osd;
mod osd_df;
mod osd_misc;
mod osd_safety;
mod osd_show;
mod pg;
mod pg_create;
mod pool;
mod pool_show;
mod pool_vars;
mod service;
mod tier;

use crate::logic::{CommandRequest, LogChannel, LogLevel, MapEffect, MapState, Now};
use bytes::Bytes;
use nacre_common::auth::Key;
use nacre_types::caps::mon::{self, MonAccess, Perm};
use nacre_types::command::{Call, mon_commands};
use nacre_types::errno::Errno;
use nacre_types::ids::{EntityName, PoolId};
use nacre_types::msg::MonCommandReply;
use serde_json::Value;

pub use pool_vars::variables as pool_variables;

/// Longest command. Any part of it that becomes a key or a value in the map store fits into a transaction.
const MAX_COMMAND: usize = 1 << 20;

/// The formats of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Plain,
    Json,
    JsonPretty,
}

/// What a command needs besides its arguments.
pub(crate) struct Context {
    now: Now,
    format: Format,
    entity: EntityName,
    input: Bytes,
    fresh_key: Key,
}

impl Context {
    fn is_json(&self) -> bool {
        self.format != Format::Plain
    }
}

/// A command's success.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CommandAnswer {
    /// Text for people (Ceph's `outs`).
    status: String,
    output: Output,
}

#[derive(Clone, Debug, Default, PartialEq)]
enum Output {
    #[default]
    Nothing,
    Text(String),
    Json(Value),
    Bytes(Vec<u8>),
}

impl CommandAnswer {
    fn status(text: impl Into<String>) -> CommandAnswer {
        CommandAnswer { status: text.into(), output: Output::Nothing }
    }

    fn text(text: impl Into<String>) -> CommandAnswer {
        CommandAnswer { status: String::new(), output: Output::Text(text.into()) }
    }

    /// Data that is JSON in every format.
    fn json(value: Value) -> CommandAnswer {
        CommandAnswer { status: String::new(), output: Output::Json(value) }
    }

    fn bytes(bytes: Vec<u8>) -> CommandAnswer {
        CommandAnswer { status: String::new(), output: Output::Bytes(bytes) }
    }

    fn with_status(mut self, status: impl Into<String>) -> CommandAnswer {
        self.status = status.into();
        self
    }

    /// JSON if it was requested, otherwise text.
    fn either(ctx: &Context, json: impl FnOnce() -> Value, text: impl FnOnce() -> String) -> CommandAnswer {
        if ctx.is_json() { CommandAnswer::json(json()) } else { CommandAnswer::text(text()) }
    }
}

/// A command's failure; nothing has changed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CommandFailure {
    errno: Errno,
    text: String,
}

impl CommandFailure {
    fn new(errno: Errno, text: impl Into<String>) -> CommandFailure {
        CommandFailure { errno, text: text.into() }
    }

    fn invalid(text: impl Into<String>) -> CommandFailure {
        CommandFailure::new(Errno::EINVAL, text)
    }

    fn not_found(text: impl Into<String>) -> CommandFailure {
        CommandFailure::new(Errno::ENOENT, text)
    }
}

type CommandOutcome = Result<CommandAnswer, CommandFailure>;

impl MapState {
    pub(crate) fn command(&mut self, now: Now, request: CommandRequest) {
        let to = request.origin;
        let reply = self.reply_to(now, request);
        self.answer_when_durable(MapEffect::CommandReply { to, reply });
    }

    /// The answer of a command that only shows something, without waiting for changes that are not durable yet. `None` if the
    /// command changes something, or shows entities or options while a change of the databases is not durable.
    pub fn answer_at_once(&mut self, now: Now, request: CommandRequest) -> Option<MonCommandReply> {
        let call = mon_commands().parse_json(&request.command.cmd).ok()?;
        if call.signature.perm.contains('w') {
            return None;
        }
        let is_durable = self.keys.is_empty() && !self.has_keys_in_flight();
        let shows_databases = ["auth", "config"].iter().any(|word| call.signature.prefix.starts_with(word));
        (is_durable || !shows_databases).then(|| self.reply_to(now, request))
    }

    fn reply_to(&mut self, now: Now, request: CommandRequest) -> MonCommandReply {
        let tid = request.command.tid;
        match self.run(now, request) {
            Ok((answer, form)) => MonCommandReply {
                tid,
                code: 0,
                status: answer.status,
                output: Bytes::from(render(answer.output, form)),
            },
            Err(failure) => MonCommandReply {
                tid,
                code: failure.errno.negated(),
                status: failure.text,
                output: Bytes::new(),
            },
        }
    }

    fn run(
        &mut self,
        now: Now,
        request: CommandRequest,
    ) -> Result<(CommandAnswer, OutputForm), CommandFailure> {
        let json = request.command.cmd;
        if json.len() > MAX_COMMAND {
            let text = format!("the command has {} bytes, the limit is {MAX_COMMAND}", json.len());
            return Err(CommandFailure::new(Errno::E2BIG, text));
        }
        let call =
            mon_commands().parse_json(&json).map_err(|e| CommandFailure::new(e.errno(), e.to_string()))?;
        let signature = call.signature;
        let args = mon::constraint_args(&call);
        let access = MonAccess {
            service: signature.module,
            command: call.prefix(),
            args: &args,
            perm: Perm::of_letters(signature.perm),
            entity: &request.entity,
            peer: request.peer,
        };
        // The list of commands is public: programs request it before they know their capabilities.
        if call.prefix() != "get_command_descriptions" && !request.caps.allows(&access) {
            return Err(CommandFailure::new(Errno::EACCES, "access denied"));
        }
        let format = match call.format() {
            None | Some("plain" | "") => Format::Plain,
            Some("json") => Format::Json,
            Some("json-pretty") => Format::JsonPretty,
            Some(other) => return Err(CommandFailure::invalid(format!("format '{other}' is not supported"))),
        };
        let writes = signature.perm.contains('w');
        if writes {
            if self.is_rolled_back() {
                let text = "the map store was restored from an old copy, so nothing can be changed: mint a new generation";
                return Err(CommandFailure::new(Errno::EROFS, text));
            }
            let text = audit_text(&request.entity, &call, &json);
            self.log.append_to(LogChannel::Audit, now, "mon", LogLevel::Info, text);
        }
        let ctx = Context {
            now,
            format,
            entity: request.entity,
            input: request.command.input,
            fresh_key: request.fresh_key,
        };
        let newline = ENDS_WITH_NEWLINE.contains(&call.prefix());
        self.dispatch(&call, &ctx).map(|answer| (answer, OutputForm { format, newline }))
    }

    fn dispatch(&mut self, call: &Call<'_>, ctx: &Context) -> CommandOutcome {
        match call.prefix() {
            "get_command_descriptions" => Ok(CommandAnswer::json(mon_commands().descriptions())),
            prefix if prefix.starts_with("auth ") => self.auth_command(call, ctx),
            prefix if prefix.starts_with("config ") => self.config_command(call, ctx),
            prefix if prefix.starts_with("config-key ") => self.config_key_command(call, ctx),
            prefix if prefix == "health" || prefix.starts_with("health ") => self.health_command(call, ctx),
            prefix if prefix.starts_with("pg ") => self.pg_command(call, ctx),
            prefix if prefix.starts_with("osd pool ") || prefix == "osd lspools" => {
                self.pool_command(call, ctx)
            }
            prefix if prefix.starts_with("osd tier ") => self.tier_command(call),
            prefix if prefix.starts_with("osd crush ") => self.crush_command(call, ctx),
            "osd getcrushmap" | "osd setcrushmap" => self.crush_command(call, ctx),
            "osd utilization"
            | "osd blocked-by"
            | "osd info"
            | "osd ls-tree"
            | "osd setmaxosd"
            | "osd require-osd-release"
            | "osd destroy"
            | "osd reweightn" => self.osd_misc_command(call, ctx),
            "node ls" | "features" | "time-sync-status" | "versions" | "osd versions"
            | "osd count-metadata" | "balancer status" | "mon versions" | "mon count-metadata"
            | "mon metadata" => self.daemons_command(call),
            prefix if prefix.starts_with("mgr ") => self.daemons_command(call),
            prefix if prefix.starts_with("osd ") => self.osd_command(call, ctx),
            prefix if prefix.starts_with("service ") => self.service_command(call, ctx),
            _ => self.cluster_command(call, ctx),
        }
    }

    /// The pool `name`, or Ceph's error.
    fn pool_named(&self, name: &str) -> Result<PoolId, CommandFailure> {
        let found = self.working.pool_by_name(name).map(|(id, _)| id);
        found.ok_or_else(|| CommandFailure::not_found(format!("unrecognized pool '{name}'")))
    }
}

/// The text for the audit log, as in Ceph. Omits values that may be secrets; keys arrive as input, never as arguments.
fn audit_text(entity: &EntityName, call: &Call<'_>, json: &str) -> String {
    let secret = call.prefix().starts_with("config-key ") || call.prefix().starts_with("auth ");
    let shown = if secret {
        let named =
            ["key", "entity"].into_iter().find(|name| call.signature.params.iter().any(|p| p.name == *name));
        let mut fields = serde_json::Map::new();
        fields.insert("prefix".into(), call.prefix().into());
        fields.extend(named.and_then(|name| Some((name.to_owned(), call.text(name)?.into()))));
        Value::Object(fields).to_string()
    } else {
        json.to_owned()
    };
    format!("from='client.?' entity='{entity}' cmd=[{shown}]: dispatch")
}

/// The outcome of a command that is in the table and has no implementation; a test finds such commands.
fn unhandled(call: &Call<'_>) -> CommandOutcome {
    Err(CommandFailure::new(Errno::ENOTSUP, format!("command '{}' is not available", call.prefix())))
}

/// Commands whose answers in the format `json` end with a newline, as in Ceph; programs compare answers byte by byte.
const ENDS_WITH_NEWLINE: &[&str] = &[
    "balancer status",
    "config-key dump",
    "config-key list",
    "config-key ls",
    "df",
    "fs ls",
    "mds stat",
    "mon dump",
    "mon feature ls",
    "mon metadata",
    "mon stat",
    "node ls",
    "osd crush dump",
    "osd crush show-tunables",
    "osd df",
    "osd erasure-code-profile ls",
    "osd get-require-min-compat-client",
    "osd info",
    "osd ls",
    "osd lspools",
    "osd ok-to-stop",
    "osd pool autoscale-status",
    "osd pool get-quota",
    "osd tree",
    "quorum_status",
    "status",
    "version",
];

/// How an answer is printed.
#[derive(Clone, Copy)]
struct OutputForm {
    format: Format,
    /// JSON that is not indented ends with a newline too.
    newline: bool,
}

fn render(output: Output, form: OutputForm) -> Vec<u8> {
    match output {
        Output::Nothing => Vec::new(),
        Output::Text(text) => text.into_bytes(),
        Output::Bytes(bytes) => bytes,
        Output::Json(value) if form.format == Format::Json => {
            let mut out = nacre_types::command::render_json(&value, Some("json"));
            out.extend(form.newline.then_some(b'\n'));
            out
        }
        Output::Json(value) => nacre_types::command::render_json(&value, None),
    }
}

#[cfg(test)]
pub(crate) mod tests;
