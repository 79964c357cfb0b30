//! An OSD's commands.

use super::Line;

#[rustfmt::skip]
pub(super) const LINES: &[Line] = &[
    ("get_command_descriptions", "list available commands", "osd", "r"),
    ("version", "report version of OSD", "osd", "r"),
    ("status", "high-level status of OSD", "osd", "r"),
    ("query [pgid=pgid]", "show details of a specific pg", "osd", "r"),
    ("pg pgid=pgid cmd=choice(query)", "show details of a specific pg", "osd", "r"),
    ("perf dump", "dump non-labeled counters and their values", "osd", "r"),
    ("dump_ops_in_flight", "show the ops currently in flight", "osd", "r"),
    ("flush_pg_stats", "flush pg stats", "osd", "r"),
    ("config show", "dump current config settings", "osd", "r"),
    ("config get var=string", "config get <field>: get the config value", "osd", "r"),
    ("config set var=string val=string", "config set <field> <val>: set a config variable", "osd", "rw"),
];
