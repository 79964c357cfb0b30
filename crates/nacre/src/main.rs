//! The nacre binary: daemons and all commands, selected by the first word or by the name of the program.

mod cluster_dir;
mod cmd;
mod daemon;
mod progress;
mod serve;

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

/// The system's allocator takes a fifth of a write's time, mostly for returning memory and requesting it again. RocksDB's C++
/// code uses this allocator, too.
#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Counts allocations, for tests that damage encoded input.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: nacre_fuzz::CountingAllocator = nacre_fuzz::CountingAllocator;

const USAGE: &str = "\
Nacre: Ceph's object layer in one binary.

usage: nacre COMMAND [ARGS]...

  serve                run a whole cluster in one process: map authority, OSDs and S3 gateway
  mon                  run the map authority
  osd --id N           run one OSD
  gateway              run an S3 gateway
  user, key, bucket, quota, usage, caps, object, metadata, gc, lc, reshard, ratelimit, topic, notification, zone,
  zonegroup
                       manage S3 users, keys, buckets, quotas, maintenance, notifications, pools (Ceph's radosgw-admin)
  backup               store streams in striped volumes with checksums, and read them back: create, append, cat, verify
  bench s3             load any S3 server with puts, listings, gets and deletes, and print figures per second
  rest-bench           load an S3 gateway, as rados bench does: write, seq, rand, cleanup (Ceph's rest-bench)
  rados                access objects: put, get, ls, rm, xattrs, omap, bench (Ceph's rados)
  crushtool            compile, decompile and test CRUSH maps (Ceph's crushtool)
  osdmaptool           print cluster maps in files and test placement (Ceph's osdmaptool)
  kvstore-tool         compact, list and change the database of a stopped OSD (Ceph's ceph-kvstore-tool)
  map-store            move the cluster's map between local and etcd, save and restore it: migrate, export, import
  bluestore-tool       check, repair and copy the BlueStore of a stopped OSD (Ceph's ceph-bluestore-tool)
  ceph                 run cluster commands; the word ceph may be omitted:
                       nacre status, nacre osd tree, nacre osd pool create P 32, …
  dplcompat            the program for Bareos' dplcompat device (docs/backup.md); also nacre-dplcompat
  vstart.sh            start a development cluster in the current folder (Ceph's vstart.sh)
  doctor               check whether this build and this machine are suitable for fast and safe operation

  completions SHELL    print completions for bash, zsh or fish
  man DIR              write manual pages to DIR/man8

A link to nacre with the name rados, ceph, crushtool, osdmaptool, ceph-kvstore-tool, ceph-bluestore-tool, radosgw-admin,
rest-bench or vstart.sh runs that command.
Commands find the cluster by -c FILE, CEPH_CONF, CEPH_ARGS, /etc/nacre/ceph.conf, /var/lib/nacre/ceph.conf (the cluster
of nacre.service), /etc/ceph/ceph.conf, ./ceph.conf or ./data/ceph.conf.
See `nacre COMMAND --help` for details. `nacre --version` prints the version.
";

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    let name = args.next().unwrap_or_default();
    let mut args: Vec<OsString> = args.collect();
    if let Some(program) = named_program(&name) {
        return program(args);
    }
    // Shared options may come before the command, as in `nacre -c FILE status`.
    let at = command_position(&args);
    let Some(command) = at.map(|at| args.remove(at)) else {
        return no_command(&args);
    };
    let word = command.to_str().unwrap_or_default();
    if let Some(program) = program(word) {
        return program(args);
    }
    match word {
        "serve" => run(serve::main, args),
        "mon" if texts(&args).is_ok_and(|args| daemon::is_mon_daemon(&args)) => run(daemon::mon, args),
        "osd" if texts(&args).is_ok_and(|args| daemon::is_osd_daemon(&args)) => run(daemon::osd, args),
        "gateway" => run(daemon::gateway, args),
        "doctor" => run(cmd::doctor::main, args),
        "completions" => run(cmd::pages::completions, args),
        "man" => run(cmd::pages::man, args),
        "option-reference" => {
            print!("{}", nacre_common::options::reference_markdown());
            ExitCode::SUCCESS
        }
        "compatibility-reference" => {
            print!("{}", cmd::compatibility::page());
            ExitCode::SUCCESS
        }
        "help" => no_command(&["--help".into()]),
        _ => {
            args.insert(at.unwrap_or(0), command);
            cmd::ceph::main(args)
        }
    }
}

type Program = fn(Vec<OsString>) -> ExitCode;

/// The equivalent of Ceph's program with this name.
fn program(name: &str) -> Option<Program> {
    Some(match name {
        "rados" => cmd::rados::main,
        "rest-bench" => cmd::rest_bench::main,
        "backup" => cmd::backup::main,
        "bench" => cmd::bench::main,
        "user" => cmd::radosgw_admin::user,
        "key" => cmd::radosgw_admin::key,
        "bucket" => cmd::radosgw_admin::bucket,
        "gc" => cmd::radosgw_admin::gc,
        "quota" => cmd::radosgw_admin::quota,
        "usage" => cmd::radosgw_admin::usage,
        "caps" => cmd::radosgw_admin::caps,
        "object" => cmd::radosgw_admin::object,
        "metadata" => cmd::radosgw_admin::metadata,
        "lc" => cmd::radosgw_admin::lc,
        "reshard" => cmd::radosgw_admin::reshard,
        "ratelimit" => cmd::radosgw_admin::ratelimit,
        "topic" => cmd::radosgw_admin::topic,
        "notification" => cmd::radosgw_admin::notification,
        "zone" => cmd::radosgw_admin::zone,
        "zonegroup" => cmd::radosgw_admin::zonegroup,
        "radosgw-admin" => cmd::radosgw_admin::main,
        "dplcompat" | "nacre-dplcompat" => cmd::dplcompat::main,
        "ceph" => cmd::ceph::main,
        "crushtool" => cmd::crushtool::main,
        "osdmaptool" => cmd::osdmaptool::main,
        "kvstore-tool" | "ceph-kvstore-tool" => cmd::kvstore_tool::main,
        "map-store" => cmd::map_store::main,
        "bluestore-tool" | "ceph-bluestore-tool" => cmd::bluestore_tool::main,
        "vstart.sh" => cmd::vstart::main,
        _ => return None,
    })
}

/// The program for the name in the first argument, in any folder.
fn named_program(name: &OsStr) -> Option<Program> {
    program(Path::new(name).file_name()?.to_str()?)
}

/// The position of the first word that is neither an option nor an option's value.
fn command_position(args: &[OsString]) -> Option<usize> {
    let takes_value =
        ["-c", "--conf", "-n", "--name", "--id", "--user", "-m", "-k", "--keyring", "--cluster", "--path"];
    let mut at = 0;
    while at < args.len() {
        let text = args[at].to_string_lossy();
        if takes_value.contains(&text.as_ref()) {
            at += 2;
        } else if text.starts_with('-') {
            at += 1;
        } else {
            return Some(at);
        }
    }
    None
}

fn no_command(args: &[OsString]) -> ExitCode {
    let has = |names: &[&str]| args.iter().any(|arg| names.iter().any(|name| arg == name));
    if has(&["--version", "-v"]) {
        println!("nacre {}", env!("CARGO_PKG_VERSION"));
    } else if has(&["--help", "-h"]) {
        print!("{USAGE}");
    } else if has(&["-s", "--status", "-w", "-W"])
        || args.iter().any(|arg| arg.to_string_lossy().starts_with("--watch"))
    {
        return cmd::ceph::main(args.to_vec());
    } else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    }
    ExitCode::SUCCESS
}

fn texts(args: &[OsString]) -> Result<Vec<String>, OsString> {
    args.iter().map(|arg| arg.clone().into_string()).collect()
}

fn run(command: impl FnOnce(&[String]) -> anyhow::Result<()>, args: Vec<OsString>) -> ExitCode {
    let outcome = match texts(&args) {
        Ok(args) => command(&args),
        Err(arg) => Err(anyhow::anyhow!("argument '{}' is not UTF-8", arg.to_string_lossy())),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nacre: {error:#}");
            ExitCode::FAILURE
        }
    }
}
