//! The options of Ceph's `vstart.sh`, and how far each is supported.

use nacre_types::support::Support;
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
    pub(super) support: Support,
}

const fn flag(names: &'static [&'static str], help: &'static str) -> Flag {
    Flag { names, value: None, help, support: Support::Full }
}

const fn valued(names: &'static [&'static str], value: &'static str, help: &'static str) -> Flag {
    Flag { names, value: Some(value), help, support: Support::Full }
}

const fn advisory(names: &'static [&'static str], why: &'static str) -> Flag {
    Flag { names, value: None, help: "", support: Support::Advisory(why) }
}

const fn refused(names: &'static [&'static str], why: &'static str) -> Flag {
    Flag { names, value: None, help: "", support: Support::Refused(why) }
}

const STORES: &str = "OSDs have BlueStore, FileStore or MemStore";
const NO_FILE_SYSTEM: &str = "there is no CephFS";
const NO_TIERS: &str = "there are no cache tiers";
const ONE_PROTOCOL: &str = "there is one messenger protocol";
const NOTHING: &str = "Nacre has nothing of the kind";

pub(super) const FLAGS: &[Flag] = &[
    flag(&["-n", "--new"], "make a new cluster; the data of the one in this folder is lost"),
    flag(&["-k"], "keep the cluster in this folder (default)"),
    valued(&["-o"], "NAME=VALUE", "an option for the ceph.conf of a new cluster"),
    flag(&["-b", "--bluestore"], "OSDs keep their data in BlueStore (default)"),
    flag(&["-f", "--filestore"], "OSDs keep their data in FileStore"),
    flag(&["--memstore"], "OSDs keep their data in memory"),
    valued(
        &["--bluestore-devs"],
        "DEVICE,...",
        "block devices for the data of the first OSDs of a new cluster;\none that bears a file system, partitions or a \
         store is refused,\nunless -n is given: then its data is lost",
    ),
    flag(&["-l", "--localhost"], "listen on 127.0.0.1 (default)"),
    valued(&["-i"], "IP", "listen on this address"),
    valued(&["-m"], "IP:PORT", "the address of the map authority"),
    valued(
        &["--rgw_port"],
        "PORT",
        "the port of S3 (default: CEPH_RGW_PORT, else 8000); 8000s is port\n8000 by TLS, with the certificate and key in \
         server.pem",
    ),
    valued(&["--rgw_frontend"], "WORDS", "how S3 is served, in the words of rgw_frontends"),
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
    advisory(&["--short"], "names of objects are not names of files"),
    advisory(&["--no-parallel"], "OSDs start together"),
    advisory(&["--no-restart"], "a daemon that ends is not started again"),
    advisory(&["--redirect-output"], "output goes to log/serve.out"),
    refused(&["-e"], "there are no erasure-coded pools"),
    refused(&["-g", "--gssapi"], NOTHING),
    refused(&["-t", "--trace"], NOTHING),
    refused(&["-s", "--standby_mds"], NO_FILE_SYSTEM),
    refused(&["--smallmds"], NO_FILE_SYSTEM),
    refused(&["--multimds"], NO_FILE_SYSTEM),
    refused(&["--hitset"], NO_TIERS),
    refused(&["--cache"], NO_TIERS),
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
MGR is ignored, for the map authority does a manager's work. CEPH_PORT is the port of the map authority.

";

pub(super) fn usage() -> String {
    const COLUMN: usize = 32;
    let mut out = HEAD.to_owned();
    for flag in FLAGS.iter().filter(|flag| flag.support == Support::Full) {
        let names = flag.names.join(", ");
        let left = format!("  {}", flag.value.map_or(names.clone(), |value| format!("{names} {value}")));
        let mut lines = flag.help.lines();
        let _ = writeln!(out, "{left:<COLUMN$}{}", lines.next().unwrap_or_default());
        lines.for_each(|line| _ = writeln!(out, "{:COLUMN$}{line}", ""));
    }
    out.push_str("\nAccepted without effect:\n\n");
    for flag in FLAGS {
        if let Support::Advisory(why) = flag.support {
            let _ = writeln!(out, "{:<COLUMN$}{why}", format!("  {}", flag.names.join(", ")));
        }
    }
    out
}

/// Each option by its last name, which is the long one.
pub(super) fn rows() -> Vec<(&'static str, Support)> {
    FLAGS.iter().filter_map(|flag| Some((*flag.names.last()?, flag.support))).collect()
}
