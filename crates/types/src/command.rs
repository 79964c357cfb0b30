//! Ceph's command language: the tables of signatures with which the CLI parses words and the daemons check JSON.
//!
//! There is one table per kind of daemon ([`mon_commands`], [`osd_commands`], [`mon_daemon_commands`]). The CLI uses it to
//! convert words to JSON ([`Table::parse_words`]), a daemon uses it to convert JSON to a checked [`Call`] ([`Table::parse_json`]),
//! and `get_command_descriptions` prints it. A command that a daemon does not implement has no row here: Ceph's commands that
//! the map authority refuses by name are in [`mon_command_support`]. Each signature states how far it is supported.

mod call;
mod daemon;
mod mon;
mod osd;
mod refused;
mod words;

use crate::support_level::SupportLevel;
pub use call::{Call, CommandError};
pub use refused::mon_command_support;
use serde_json::{Map, Value, json};
use std::fmt;
use std::sync::LazyLock;

/// The map authority's commands.
pub fn mon_commands() -> &'static Table {
    static TABLE: LazyLock<Table> =
        LazyLock::new(|| Table::new(Owner::Mon, &[(mon::COMMANDS, mon::SUPPORT_EXCEPTIONS)]));
    &TABLE
}

/// Whether the map authority has a command with this prefix. Does not create the table, which would stay in a client's memory.
pub fn is_mon_command(prefix: &str) -> bool {
    let words = |text: &'static str| text.split(' ').take_while(|word| !word.contains('='));
    mon::COMMANDS.iter().any(|line| words(line.0).eq(prefix.split(' ')))
}

/// An OSD's commands (`tell osd.N`, and `pg PGID …` at the PG's primary).
pub fn osd_commands() -> &'static Table {
    static TABLE: LazyLock<Table> = LazyLock::new(|| {
        Table::new(
            Owner::Daemon,
            &[(daemon::COMMANDS, daemon::SUPPORT_EXCEPTIONS), (osd::COMMANDS, osd::SUPPORT_EXCEPTIONS)],
        )
    });
    &TABLE
}

/// The map authority's commands about itself as a daemon (`tell mon.a`, `daemon mon.a`).
pub fn mon_daemon_commands() -> &'static Table {
    static TABLE: LazyLock<Table> = LazyLock::new(|| {
        Table::new(
            Owner::Daemon,
            &[
                (daemon::COMMANDS, daemon::SUPPORT_EXCEPTIONS),
                (daemon::MON_COMMANDS, daemon::MON_SUPPORT_EXCEPTIONS),
            ],
        )
    });
    &TABLE
}

/// One row of a table: the signature in the notation below, its help, the module and the permission it needs.
///
/// Notation: prefix words, then parameters `name=type`; `[name=type]` is optional, `name...=type` repeats. Types:
/// `int(LO..HI)`, `float(LO..HI)` (bounds optional), `string`, `bool`, `choice(a|b)`, `words(a|b)`, `poolname`, `objectname`, `pgid`,
/// `osdname`, `entityaddr`, `uuid`, `name`.
pub(crate) type CommandRow = (&'static str, &'static str, &'static str, &'static str);

/// The support level of the command with this prefix, if it is not [`SupportLevel::Full`].
pub(crate) type SupportException = (&'static str, SupportLevel);

/// The values that a parameter accepts.
#[derive(Clone, Debug, PartialEq)]
pub enum ParamKind {
    /// A whole number within bounds, both included.
    Int {
        /// Minimum value.
        min: i64,
        /// Maximum value.
        max: i64,
    },
    /// A number within bounds, both included.
    Float {
        /// Minimum value.
        min: f64,
        /// Maximum value.
        max: f64,
    },
    /// Any text.
    String,
    /// A switch: `--name`, or `true` and `false`.
    Bool,
    /// One of some words.
    Choice(Vec<&'static str>),
    /// One of some words. The command itself reports errors for others, as in Ceph.
    Words(Vec<&'static str>),
    /// A pool's name.
    PoolName,
    /// An object's name.
    ObjectName,
    /// A placement group, `2.1f`.
    PgId,
    /// An OSD, `osd.3` or `3`; sent as its number.
    OsdName,
    /// An address with an optional port.
    EntityAddr,
    /// A uuid.
    Uuid,
    /// An entity, `client.admin`.
    Name,
}

/// One parameter of a command.
#[derive(Clone, Debug, PartialEq)]
pub struct Param {
    /// Its key in the JSON form.
    pub name: &'static str,
    /// Its values.
    pub kind: ParamKind,
    /// Whether it must be given.
    pub required: bool,
    /// Whether it accepts several values.
    pub repeats: bool,
}

/// One command.
#[derive(Clone, Debug, PartialEq)]
pub struct Signature {
    /// The words of its name, joined by blanks: the `prefix` of the JSON form.
    pub prefix: String,
    /// Its parameters in order.
    pub params: Vec<Param>,
    /// One line of help.
    pub help: &'static str,
    /// Ceph's module (`mon`, `osd`, `pg`, `config-key`, …).
    pub module: &'static str,
    /// Required capability: some of `r`, `w`, `x`.
    pub perm: &'static str,
    /// How far it does what Ceph's command does.
    pub support: SupportLevel,
}

/// The daemon that answers the commands of a table; errors for unknown commands depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// The map authority as the cluster's monitor and manager.
    Mon,
    /// A daemon about itself.
    Daemon,
}

/// All commands of one kind of daemon.
#[derive(Clone, Debug)]
pub struct Table {
    owner: Owner,
    signatures: Vec<Signature>,
}

impl Table {
    fn new(owner: Owner, parts: &[(&[CommandRow], &[SupportException])]) -> Table {
        let mut signatures: Vec<Signature> = Vec::new();
        for (lines, exceptions) in parts {
            let first = signatures.len();
            signatures.extend(lines.iter().map(|line| Signature::parse(*line)));
            for (prefix, support) in *exceptions {
                let found = signatures[first..].iter_mut().find(|signature| signature.prefix == *prefix);
                found.expect("invariant: exceptions name commands of their table (tested)").support =
                    *support;
            }
        }
        Table { owner, signatures }
    }

    /// The commands, in the table's order.
    pub fn signatures(&self) -> &[Signature] {
        &self.signatures
    }

    /// The command whose prefix is exactly `prefix`.
    pub fn find(&self, prefix: &str) -> Option<&Signature> {
        self.signatures.iter().find(|s| s.prefix == prefix)
    }

    /// The output of `get_command_descriptions`.
    pub fn descriptions(&self) -> Value {
        let entries = self.signatures.iter().enumerate().map(|(at, signature)| {
            let description = json!({
                "sig": signature.description(),
                "help": signature.help,
                "module": signature.module,
                "perm": signature.perm,
                "flags": 0,
            });
            (format!("cmd{at:03}"), description)
        });
        Value::Object(entries.collect())
    }
}

impl Signature {
    fn parse((text, help, module, perm): CommandRow) -> Signature {
        let mut words = Vec::new();
        let mut params = Vec::new();
        for part in text.split(' ') {
            match Param::parse(part) {
                Some(param) => params.push(param),
                None => words.push(part),
            }
        }
        Signature { prefix: words.join(" "), params, help, module, perm, support: SupportLevel::Full }
    }

    /// Number of words in the prefix.
    pub(crate) fn prefix_words(&self) -> usize {
        self.prefix.split(' ').count()
    }

    fn description(&self) -> Value {
        let words = self.prefix.split(' ').map(Value::from);
        words.chain(self.params.iter().map(Param::description)).collect()
    }
}

impl fmt::Display for Signature {
    /// Formats as in Ceph's help: `osd pool create <pool> [<pg_num:int>] …`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.prefix)?;
        self.params.iter().try_for_each(|param| write!(f, " {param}"))
    }
}

impl Param {
    fn parse(part: &'static str) -> Option<Param> {
        let (inner, required) = match part.strip_prefix('[').and_then(|p| p.strip_suffix(']')) {
            Some(inner) => (inner, false),
            None => (part, true),
        };
        let (name, kind) = inner.split_once('=')?;
        let (name, repeats) = match name.strip_suffix("...") {
            Some(name) => (name, true),
            None => (name, false),
        };
        let kind =
            ParamKind::parse(kind).expect("invariant: every line of the tables names a known type (tested)");
        Some(Param { name, kind, required, repeats })
    }

    fn description(&self) -> Value {
        let mut entry = Map::new();
        entry.insert("name".into(), self.name.into());
        entry.insert("type".into(), self.kind.ceph_name().into());
        match &self.kind {
            ParamKind::Int { min, max } if (*min, *max) != (i64::MIN, i64::MAX) => {
                let upper = if *max == i64::MAX { String::new() } else { format!("|{max}") };
                entry.insert("range".into(), format!("{min}{upper}").into());
            }
            ParamKind::Float { min, max } if (*min, *max) != (f64::MIN, f64::MAX) => {
                let upper = if *max == f64::MAX { String::new() } else { format!("|{max}") };
                entry.insert("range".into(), format!("{min}{upper}").into());
            }
            ParamKind::Choice(words) | ParamKind::Words(words) => {
                entry.insert("strings".into(), words.join("|").into());
            }
            _ => {}
        }
        if self.repeats {
            entry.insert("n".into(), "N".into());
        }
        if !self.required {
            entry.insert("req".into(), false.into());
        }
        Value::Object(entry)
    }

    /// The form of a switch on the command line: `--yes-i-really-mean-it`.
    pub(crate) fn cli_switch(&self) -> String {
        format!("--{}", self.name.replace('_', "-"))
    }
}

impl fmt::Display for Param {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name;
        let mut text = match &self.kind {
            ParamKind::Int { .. } => format!("<{name}:int>"),
            ParamKind::Float { .. } => format!("<{name}:float>"),
            ParamKind::Bool => self.cli_switch(),
            ParamKind::Choice(words) | ParamKind::Words(words) => words.join("|"),
            ParamKind::OsdName => format!("<{name}:osd.N>"),
            ParamKind::PgId => "<pgid>".to_owned(),
            _ => format!("<{name}>"),
        };
        if self.repeats {
            text.push_str("...");
        }
        if self.required { f.write_str(&text) } else { write!(f, "[{text}]") }
    }
}

impl ParamKind {
    fn parse(text: &'static str) -> Option<ParamKind> {
        let (word, inner) = match text.split_once('(') {
            Some((word, rest)) => (word, rest.strip_suffix(')')?),
            None => (text, ""),
        };
        let (low, high) = inner.split_once("..").unwrap_or((inner, ""));
        Some(match word {
            "int" => ParamKind::Int { min: bound(low, i64::MIN)?, max: bound(high, i64::MAX)? },
            "float" => ParamKind::Float { min: bound(low, f64::MIN)?, max: bound(high, f64::MAX)? },
            "string" => ParamKind::String,
            "bool" => ParamKind::Bool,
            "choice" => ParamKind::Choice(inner.split('|').collect()),
            "words" => ParamKind::Words(inner.split('|').collect()),
            "poolname" => ParamKind::PoolName,
            "objectname" => ParamKind::ObjectName,
            "pgid" => ParamKind::PgId,
            "osdname" => ParamKind::OsdName,
            "entityaddr" => ParamKind::EntityAddr,
            "uuid" => ParamKind::Uuid,
            "name" => ParamKind::Name,
            _ => return None,
        })
    }

    /// Ceph's name of the type, as `get_command_descriptions` prints it.
    pub fn ceph_name(&self) -> &'static str {
        match self {
            ParamKind::Int { .. } => "CephInt",
            ParamKind::Float { .. } => "CephFloat",
            ParamKind::String => "CephString",
            ParamKind::Bool => "CephBool",
            ParamKind::Choice(_) | ParamKind::Words(_) => "CephChoices",
            ParamKind::PoolName => "CephPoolname",
            ParamKind::ObjectName => "CephObjectname",
            ParamKind::PgId => "CephPgid",
            ParamKind::OsdName => "CephOsdName",
            ParamKind::EntityAddr => "CephEntityAddr",
            ParamKind::Uuid => "CephUUID",
            ParamKind::Name => "CephName",
        }
    }
}

fn bound<T: std::str::FromStr>(text: &str, missing: T) -> Option<T> {
    if text.is_empty() { Some(missing) } else { text.parse().ok() }
}

/// Formats JSON as Ceph does: compact and without a newline for `json`, else with an indentation of four blanks and a newline.
pub fn render_json(value: &Value, format: Option<&str>) -> Vec<u8> {
    use serde::Serialize;
    if format == Some("json") {
        return value.to_string().into_bytes();
    }
    let mut out = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, formatter);
    value.serialize(&mut serializer).expect("invariant: a JSON value always serializes into memory");
    out.push(b'\n');
    out
}

#[cfg(test)]
mod tests;
