//! Commands of Ceph's monitor and manager that the map authority refuses by name, with the reasons.

use super::mon_commands;
use crate::support_level::SupportLevel;
use std::sync::LazyLock;

/// Prefixes of all commands of Ceph 16.2, from its monitor and manager.
const CEPH: &str = include_str!("ceph-mon.txt");

const NO_MODULE: &str = "there is no manager with modules";
const NO_FS: &str = "there is no CephFS";
const NO_SCRUB: &str = "there is no scrub; reads and recovery verify checksums";
const NO_EC: &str = "there are no erasure-coded pools";
const ONE_MON: &str = "there is one map authority, whose address does not change";
const NO_UPMAP: &str = "placement follows CRUSH alone";
const NO_FORCE: &str = "a PG's recovery can't be put before others'; recovery_priority of its pool can";
const NO_STRETCH: &str = "there is no stretch mode";
const NO_SNAPS: &str = "there are no snapshots";

/// The reasons for refusing commands with a prefix. The longest matching prefix counts; the empty one matches all others.
const REASONS: &[(&str, &str)] = &[
    ("", "it is not implemented"),
    ("add_bootstrap_peer", ONE_MON),
    ("alerts ", NO_MODULE),
    ("auth export", "use auth get for each entity"),
    ("balancer ", "there is no balancer"),
    ("compact", "the map store compacts itself"),
    ("connection scores ", ONE_MON),
    ("crash ", NO_MODULE),
    ("device ", NO_MODULE),
    ("dump_historic_", "ask the daemon: tell osd.N"),
    ("fs ", NO_FS),
    ("healthcheck history ", NO_MODULE),
    ("heap", "the allocator has no profiler"),
    ("influx ", NO_MODULE),
    ("injectargs", "use tell mon.ID injectargs"),
    ("insights", NO_MODULE),
    ("iostat", NO_MODULE),
    ("mds ", NO_FS),
    ("mgr ", NO_MODULE),
    ("mon ", ONE_MON),
    ("mon_status", "use tell mon.ID mon_status"),
    ("nfs ", NO_MODULE),
    ("ops", "use tell mon.ID ops"),
    ("orch", NO_MODULE),
    ("osd add-no", "use osd set with the flag"),
    ("osd create", "use osd new"),
    ("osd crush rule create-erasure", NO_EC),
    ("osd crush weight-set ", "there are no weight sets"),
    ("osd deep-scrub", NO_SCRUB),
    ("osd erasure-code-profile ", NO_EC),
    ("osd force_", NO_STRETCH),
    ("osd pg-", NO_UPMAP),
    ("osd pool autoscale-status", "there is no PG autoscaler"),
    ("osd pool cancel-force-", NO_FORCE),
    ("osd pool deep-scrub", NO_SCRUB),
    ("osd pool force-", NO_FORCE),
    ("osd pool get noautoscale", "there is no PG autoscaler"),
    ("osd pool mksnap", NO_SNAPS),
    ("osd pool repair", NO_SCRUB),
    ("osd pool rmsnap", NO_SNAPS),
    ("osd pool scrub", NO_SCRUB),
    ("osd pool set noautoscale", "there is no PG autoscaler"),
    ("osd pool unset noautoscale", "there is no PG autoscaler"),
    ("osd primary-temp", NO_UPMAP),
    ("osd purge-new", "use osd purge"),
    ("osd repair", NO_SCRUB),
    ("osd rm-no", "use osd unset with the flag"),
    ("osd rm-pg-", NO_UPMAP),
    ("osd scrub", NO_SCRUB),
    ("osd set-group", "flags are set for the whole cluster"),
    ("osd status", NO_MODULE),
    ("osd unset-group", "flags are set for the whole cluster"),
    ("pg cancel-force-", NO_FORCE),
    ("pg deep-scrub", NO_SCRUB),
    ("pg force-", NO_FORCE),
    ("pg repair", NO_SCRUB),
    ("pg scrub", NO_SCRUB),
    ("progress", NO_MODULE),
    ("prometheus ", "the exporter is built in; see exporter_http_port"),
    ("quorum ", ONE_MON),
    ("rbd ", NO_MODULE),
    ("restful ", NO_MODULE),
    ("sessions", "use tell mon.ID sessions"),
    ("smart", "the disks' health is not read"),
    ("sync_force", ONE_MON),
    ("telegraf ", NO_MODULE),
    ("telemetry ", NO_MODULE),
    ("tell", "its parts are sent to the daemon by the ceph program"),
    ("test_orchestrator ", NO_MODULE),
    ("zabbix ", NO_MODULE),
];

fn reason(prefix: &str) -> &'static str {
    let fitting = REASONS.iter().filter(|(beginning, _)| prefix.starts_with(beginning));
    fitting.max_by_key(|(beginning, _)| beginning.len()).map_or("", |(_, reason)| *reason)
}

/// Returns every command of Ceph's monitor and manager, then those that only Nacre has, with their support.
pub fn mon_command_support() -> &'static [(&'static str, SupportLevel)] {
    static ALL: LazyLock<Vec<(&'static str, SupportLevel)>> = LazyLock::new(|| {
        let names: Vec<&str> = CEPH.lines().filter(|line| !line.starts_with('#')).collect();
        let support = |name: &'static str| match mon_commands().find(name) {
            Some(signature) => signature.support,
            None => SupportLevel::Refused(reason(name)),
        };
        let mut all: Vec<_> = names.iter().map(|name| (*name, support(name))).collect();
        let own = mon_commands().signatures().iter().filter(|s| !names.contains(&s.prefix.as_str()));
        all.extend(own.map(|signature| (signature.prefix.as_str(), signature.support)));
        all
    });
    &ALL
}

/// Returns the refused command with this prefix, and the reason.
pub(super) fn find(prefix: &str) -> Option<(&'static str, &'static str)> {
    let found = mon_command_support().iter().find(|(name, support)| *name == prefix && support.is_refused());
    found.map(|(name, support)| (*name, support.note()))
}

/// Returns the longest refused command that is a prefix of the words.
pub(super) fn find_by_words(words: &[String]) -> Option<(&'static str, &'static str)> {
    (1..=words.len()).rev().find_map(|count| find(&words[..count].join(" ")))
}
