//! An OSD's commands, in addition to those of every daemon.

use super::{CommandRow, SupportException};
use crate::support_level::SupportLevel::Partial;

/// Commands that are not fully supported.
pub(super) const SUPPORT_EXCEPTIONS: &[SupportException] = &[
    ("query", Partial("the fields of Nacre's replication, not those of Ceph's peering")),
    ("pg", Partial("the fields of Nacre's replication, not those of Ceph's peering")),
    (
        "mark_unfound_lost",
        Partial(
            "only `delete`: there are no prior versions. Copies on OSDs that are down are not waited for",
        ),
    ),
];

#[rustfmt::skip]
pub(super) const COMMANDS: &[CommandRow] = &[
    ("status", "high-level status of OSD", "osd", "r"),
    ("query [pgid=pgid]", "show details of a specific pg", "osd", "r"),
    ("pg pgid=pgid cmd=choice(query)", "show details of a specific pg", "osd", "r"),
    ("list_unfound [pgid=pgid] [offset=string]", "list unfound objects on this pg, perhaps starting at an offset given in JSON", "osd", "r"),
    ("mark_unfound_lost [pgid=pgid] mulcmd=choice(revert|delete)",
        "mark all unfound objects in this pg as lost, either removing or reverting to a prior version if one is available", "osd", "rw"),
    ("dump_ops_in_flight [filterstr...=string]", "show the ops currently in flight", "osd", "r"),
    ("ops [filterstr...=string]", "show the ops currently in flight", "osd", "r"),
    ("dump_blocked_ops [filterstr...=string]", "show the blocked ops currently in flight", "osd", "r"),
    ("dump_historic_ops [filterstr...=string]", "show recent ops", "osd", "r"),
    ("dump_historic_ops_by_duration [filterstr...=string]", "show slowest recent ops, sorted by duration", "osd", "r"),
    ("dump_historic_slow_ops [filterstr...=string]", "show slowest recent ops", "osd", "r"),
    ("dump_watchers", "show clients which have active watches, and on which objects", "osd", "r"),
    ("dump_blocklist", "dump blocklisted clients and times", "osd", "r"),
    ("dump_recovery_reservations", "show recovery reservations", "osd", "r"),
    ("dump_tier_advice pool=poolname",
        "dump measured and predicted hits of the PGs of a cache pool whose primary is this OSD, for `tier advise`", "osd", "r"),
    ("get_mapped_pools", "dump pools whose PG(s) are mapped to this OSD.", "osd", "r"),
    ("get_latest_osdmap", "force osd to update the latest map from the mon", "osd", "r"),
    ("send_beacon", "send OSD beacon to mon immediately", "osd", "r"),
    ("flush_pg_stats", "flush pg stats", "osd", "r"),
    ("cluster_log level=choice(info|warning|error|debug) message...=string", "log a message to the cluster log", "osd", "rw"),
    ("bench [count=int] [size=int] [object_size=int] [object_num=int]",
        "OSD benchmark: write <count> <size>-byte objects(with <obj_size> <obj_num>), (default count=1G default size=4MB). Results in log.", "osd", "rw"),
    ("compact", "compact object store's omap. WARNING: Compaction probably slows your requests", "osd", "rw"),
    ("bluestore allocator dump block", "dump allocator free regions", "osd", "r"),
    ("bluestore allocator fragmentation block",
        "give allocator fragmentation (0-no fragmentation, 1-absolute fragmentation)", "osd", "r"),
];
