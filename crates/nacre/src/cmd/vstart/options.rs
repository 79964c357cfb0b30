//! The options of Ceph's `vstart.sh`, and how far each is supported.

use nacre_types::support_level::SupportLevel;
use std::fmt::Write;

/// An option.
pub(super) struct Flag {
    /// All its names, as given on the command line.
    pub(super) names: &'static [&'static str],
    /// The name of its value, if it takes one.
    pub(super) value: Option<&'static str>,
    /// Its effect, in lines.
    help: &'static str,
    /// Compared with Ceph.
    pub(super) support: SupportLevel,
}

const fn flag(names: &'static [&'static str], help: &'static str) -> Flag {
    Flag { names, value: None, help, support: SupportLevel::Full }
}

const fn valued(names: &'static [&'static str], value: &'static str, help: &'static str) -> Flag {
    Flag { names, value: Some(value), help, support: SupportLevel::Full }
}

const fn advisory(names: &'static [&'static str], why: &'static str) -> Flag {
    Flag { names, value: None, help: "", support: SupportLevel::Advisory(why) }
}

const fn refused(names: &'static [&'static str], why: &'static str) -> Flag {
    Flag { names, value: None, help: "", support: SupportLevel::Refused(why) }
}

const STORES: &str = "OSDs support only BlueStore, FileStore and MemStore";
const NO_FILE_SYSTEM: &str = "there is no CephFS";
const TIERS: &str = "set up cache tiers with `ceph osd tier add`";
const ONE_PROTOCOL: &str = "there is one messenger protocol";
const NOTHING: &str = "Nacre has no equivalent";

pub(super) const FLAGS: &[Flag] = &[
    flag(&["-n", "--new"], "create a new cluster; the data of an existing one in this folder is lost"),
    flag(&["-k"], "keep the cluster in this folder (default)"),
    valued(&["-o"], "NAME=VALUE", "add an option to the ceph.conf of a new cluster"),
    flag(&["-b", "--bluestore"], "use BlueStore for the OSDs (default)"),
    flag(&["-f", "--filestore"], "use FileStore for the OSDs"),
    flag(&["--memstore"], "use MemStore for the OSDs"),
    valued(
        &["--bluestore-devs"],
        "DEVICE,...",
        "block devices for the data of the first OSDs of a new cluster;\ndevices that contain a file system, partitions or a \
         store are\nrefused, unless -n is given: then their data is lost",
    ),
    flag(&["-l", "--localhost"], "listen on 127.0.0.1 (default)"),
    valued(&["-i"], "IP", "listen on this address"),
    valued(&["-m"], "IP:PORT", "address of the map authority"),
    valued(
        &["--rgw_port"],
        "PORT",
        "port of S3 (default: CEPH_RGW_PORT, else 8000); 8000s is port\n8000 with TLS, with the certificate and key in \
         server.pem",
    ),
    valued(&["--rgw_frontend"], "WORDS", "endpoints and settings of S3, in the syntax of rgw_frontends"),
    flag(&["--nodaemon"], "stay in the foreground"),
    flag(&["-h", "--help"], "print this"),
    advisory(&["-X"], "connections are always authenticated, by the keyring"),
    advisory(&["-x"], "connections are always authenticated"),
    advisory(&["-G"], "there is no GSSAPI"),
    advisory(&["-d", "--debug"], "log levels are options: -o debug_osd=20"),
    advisory(&["--nolockdep"], "there is no lock checker"),
    advisory(&["--without-dashboard"], "there is no dashboard"),
    advisory(&["--msgr1"], ONE_PROTOCOL),
    advisory(&["--msgr2"], ONE_PROTOCOL),
    advisory(&["--msgr21"], ONE_PROTOCOL),
    advisory(&["--short"], "object names are not used as file names"),
    advisory(&["--no-parallel"], "OSDs start together"),
    advisory(&["--no-restart"], "a daemon that ends is not restarted"),
    advisory(&["--redirect-output"], "output goes to log/serve.out"),
    refused(&["-e"], "there are no erasure-coded pools"),
    refused(&["-g", "--gssapi"], NOTHING),
    refused(&["-t", "--trace"], NOTHING),
    refused(&["-s", "--standby_mds"], NO_FILE_SYSTEM),
    refused(&["--smallmds"], NO_FILE_SYSTEM),
    refused(&["--multimds"], NO_FILE_SYSTEM),
    refused(&["--hitset"], TIERS),
    refused(&["--cache"], TIERS),
    refused(&["-K", "--kstore"], STORES),
    refused(&["--cyanstore"], STORES),
    refused(&["--seastore"], STORES),
    refused(&["--seastore-devs"], STORES),
    refused(&["--crimson"], "there is one OSD program"),
    refused(&["--valgrind"], NOTHING),
    refused(&["--rgw_compression"], NOTHING),
    refused(&["--rgw_arrow_flight"], NOTHING),
    refused(&["--bluestore-spdk"], NOTHING),
    refused(&["--bluestore-pmem"], NOTHING),
    refused(&["--bluestore-zoned"], NOTHING),
    refused(&["--bluestore-io-uring"], NOTHING),
    refused(&["--osd-args"], "the OSDs share a process: use -o"),
    refused(&["--inc-osd"], "`nacre osd --mkfs` makes more OSDs"),
    refused(&["--cephadm"], NOTHING),
    refused(&["--cephexporter"], "each process exports its metrics"),
    refused(&["--jaeger"], NOTHING),
];

const HEAD: &str = "\
usage: [MON=1] [OSD=3] [RGW=0] vstart.sh [OPTION]...

Starts a cluster in the background, in this folder: ceph.conf, keyring, bin/ceph, bin/rados, bin/radosgw-admin and the
data. MON, OSD and RGW are numbers of daemons: one map authority, at most one S3 gateway (client.rgw.8000, by its port).
MGR is ignored, because the map authority also acts as manager. CEPH_PORT is the port of the map authority.

";

pub(super) fn usage() -> String {
    const COLUMN: usize = 32;
    let mut out = HEAD.to_owned();
    for flag in FLAGS.iter().filter(|flag| flag.support == SupportLevel::Full) {
        let names = flag.names.join(", ");
        let left = format!("  {}", flag.value.map_or(names.clone(), |value| format!("{names} {value}")));
        let mut lines = flag.help.lines();
        let _ = writeln!(out, "{left:<COLUMN$}{}", lines.next().unwrap_or_default());
        lines.for_each(|line| _ = writeln!(out, "{:COLUMN$}{line}", ""));
    }
    out.push_str("\nAccepted without effect:\n\n");
    for flag in FLAGS {
        if let SupportLevel::Advisory(why) = flag.support {
            let _ = writeln!(out, "{:<COLUMN$}{why}", format!("  {}", flag.names.join(", ")));
        }
    }
    out
}

/// Each option by its last name, which is the long one.
pub(super) fn rows() -> Vec<(&'static str, SupportLevel)> {
    FLAGS.iter().filter_map(|flag| Some((*flag.names.last()?, flag.support))).collect()
}
