//! Commands of every daemon on its admin socket and for `tell`.

use super::{CommandRow, SupportException};
use crate::support_level::SupportLevel::{Advisory, Partial};

/// Commands that are not fully supported.
pub(super) const SUPPORT_EXCEPTIONS: &[SupportException] = &[
    ("git_version", Partial("there is no commit: the answer is no_version")),
    ("log flush", Advisory("lines are written as they are logged; there is nothing to flush")),
];

/// The map authority's own commands that are not fully supported.
pub(super) const MON_SUPPORT_EXCEPTIONS: &[SupportException] =
    &[("quorum_status", Partial("there is one map authority: the quorum is always that one"))];

#[rustfmt::skip]
pub(super) const COMMANDS: &[CommandRow] = &[
    ("get_command_descriptions", "list available commands", "daemon", "r"),
    ("help", "list available commands", "daemon", "r"),
    ("version", "get ceph version", "daemon", "r"),
    ("git_version", "get git sha1", "daemon", "r"),
    ("perf dump [logger=string] [counter=string]", "dump perfcounters value", "daemon", "r"),
    ("perf schema", "dump perfcounters schema", "daemon", "r"),
    ("perf reset var=string", "perf reset <name>: perf reset all or one perfcounter name", "daemon", "rw"),
    ("config show", "dump current config settings", "daemon", "r"),
    ("config help [var=string]", "get config setting schema and descriptions", "daemon", "r"),
    ("config get var=string", "config get <field>: get the config value", "daemon", "r"),
    ("config set var=string val...=string", "config set <field> <val> [<val> ...]: set a config variable", "daemon", "rw"),
    ("config unset var=string", "config unset <field>: unset a config variable", "daemon", "rw"),
    ("config diff", "dump diff of current config and default config", "daemon", "r"),
    ("config diff get var=string",
        "dump diff get <field>: dump diff of current and default config setting <field>", "daemon", "r"),
    ("injectargs injected_args...=string", "inject configuration arguments into running daemon", "daemon", "rw"),
    ("log flush", "flush log entries to log file", "daemon", "rw"),
    ("log reopen", "reopen log file", "daemon", "rw"),
];

/// The map authority's own commands.
#[rustfmt::skip]
pub(super) const MON_COMMANDS: &[CommandRow] = &[
    ("mon_status", "report status of monitors", "mon", "r"),
    ("quorum_status", "report status of monitor quorum", "mon", "r"),
    ("sessions", "list existing sessions", "mon", "r"),
    ("ops", "show the ops currently in flight", "mon", "r"),
];
