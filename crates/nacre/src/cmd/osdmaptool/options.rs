//! The options of `osdmaptool`: the source for `--help`, the manual page and docs/compatibility.md.

use crate::cmd::tool_options::{Section, ToolOption, differences, options_help};

const fn full(usage: &'static str, help: &'static str) -> ToolOption {
    ToolOption::full(usage, help)
}

const NO_TEMPS: &str = "maps have no temporary mappings";
const UNKNOWN_OSD: &str = "an OSD beyond max_osd is an error; Ceph's ignores it";
const MARKED_IN: &str = "an OSD beyond max_osd is an error, Ceph's ignores it; Ceph's marks the OSD of --mark-up instead, and \
                         crashes where there is none";

/// All options.
pub(crate) const OPTIONS: &[Section] = &[(
    "",
    &[
        full("--create-from-conf", "creates an osd map with default configurations"),
        full(
            "--createsimple <numosd> [--clobber] [--pg-bits <bitsperosd>] [--pgp-bits <bits>]",
            "creates a relatively generic OSD map with <numosd> devices",
        ),
        full("--pgp-bits <bits>", "pgp_num map attribute will be shifted by <bits>"),
        full("--pg-bits <bits>", "pg_num map attribute will be shifted by <bits>"),
        full("--clobber", "allows osdmaptool to overwrite <mapfilename> if it already exists"),
        full("--export-crush <file>", "write osdmap's crush map to <file>"),
        full("--import-crush <file>", "replace osdmap's crush map with <file>"),
        full("--health", "dump health checks"),
        full(
            "--test-map-pgs [--pool <poolid>] [--pg_num <pg_num>] [--range-first <first> --range-last <last>]",
            "map all pgs",
        ),
        full("--test-map-pgs-dump [--pool <poolid>]", "map all pgs"),
        ToolOption::partial(
            "--test-map-pgs-dump-all [--pool <poolid>]",
            "map all pgs to osds",
            "the acting set is the in-sync set where the map has one; with --test-random it prints what \
             --test-map-pgs-dump prints",
        ),
        full("--mark-up-in", "mark osds up and in (written only with another change)"),
        ToolOption::partial(
            "--mark-out <osdid>",
            "mark an osd as up and out (written only with another change)",
            UNKNOWN_OSD,
        ),
        ToolOption::partial(
            "--mark-up <osdid>",
            "mark an osd as up (written only with another change)",
            UNKNOWN_OSD,
        ),
        ToolOption::partial(
            "--mark-in <osdid>",
            "mark an osd as in (written only with another change)",
            MARKED_IN,
        ),
        full("--with-default-pool", "include default pool when creating map"),
        ToolOption::advisory("--clear-temp", "clear pg_temp and primary_temp", NO_TEMPS),
        ToolOption::advisory("--clean-temps", "clean pg_temps", NO_TEMPS),
        full("--test-random", "do random placements"),
        full("--test-map-pg <pgid>", "map a pgid to osds"),
        full("--test-map-object <objectname> [--pool <poolid>]", "map an object to osds"),
        full(
            "--upmap-cleanup <file>",
            "clean up pg_upmap[_items] entries, writing\ncommands to <file> [default: - for stdout]",
        ),
        full(
            "--upmap <file>",
            "calculate pg upmap entries to balance pg layout\nwriting commands to <file> [default: - for stdout]",
        ),
        full("--upmap-max <max-count>", "set max upmap entries to calculate [default: 10]"),
        full("--upmap-deviation <max-deviation>", "max deviation from target [default: 5]"),
        full("--upmap-pool <poolname>", "restrict upmap balancing to 1 or more pools"),
        full("--upmap-active", "Act like an active balancer, keep applying changes until balanced"),
        full(
            "--osd-calc-pg-upmaps-aggressively=<true|false>",
            "try pgs in random order, and go on after a change that does not help [default: true]",
        ),
        full(
            "--osd-calc-pg-upmaps-local-fallback-retries <count>",
            "changes without progress that are tried in a row [default: 100]",
        ),
        ToolOption::partial(
            "--print",
            "displays the map in plain text (also -p)",
            "fields of features that Nacre lacks (snapshots to purge, EC profiles, stretch mode) have their empty value",
        ),
        ToolOption::partial(
            "--dump <format>",
            "displays the map in plain text when <format> is 'plain', in xml, xml-pretty, html,\nhtml-pretty, table, \
             table-kv, json-pretty or json, 'json' if specified format is not supported",
            "fields of features that Nacre lacks (snapshots to purge, EC profiles, stretch mode) have their empty value",
        ),
        full("--tree[=<format>]", "displays a tree of the map, in the formats of --dump"),
        full(
            "--test-crush [--range-first <first> --range-last <last>]",
            "map pgs to acting osds, until it is stopped",
        ),
        full("--range-first <first>", "first map of the folder <mapfilename> to read"),
        full("--range-last <last>", "last map of the folder <mapfilename> to read"),
        ToolOption::partial(
            "--adjust-crush-weight <osdid:weight>[,<osdid:weight>,<...>]",
            "change <osdid> CRUSH <weight> (but do not persist)",
            "an OSD outside of the CRUSH map is an error; Ceph's reports success",
        ),
        full("--save", "write modified osdmap with upmap or crush-adjust changes"),
        full("--conf|-c <file>", "the ceph.conf that new maps take their defaults and OSDs from"),
    ],
)];

/// What `--help` prints.
pub(in crate::cmd) fn usage() -> String {
    format!(
        " usage: [--print] <mapfilename>\n{}\nMaps are those that 'ceph osd getmap -o <mapfilename>' writes.\n{}",
        options_help(OPTIONS),
        differences(OPTIONS)
    )
}
