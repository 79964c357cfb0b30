//! Striped objects on real clusters through `rados --striper`, while clients and OSDs fail. Tests of Ceph's C interface to them
//! are in `librados.rs`.

use crate::support::{Daemon, TestCluster, nacre};
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};

const CONF: &str = "[global]\nosd_pool_default_size = 2\nosd_pool_default_pg_num = 8";

fn cluster(objectstore: &str) -> TestCluster {
    let cluster = TestCluster::start_with(2, objectstore, CONF);
    cluster.create_pool("p", 8, 2, 1);
    cluster
}

/// `rados -p p ARGS`, which must succeed.
fn rados(cluster: &TestCluster, args: &[&str]) -> String {
    cluster.ok(&[&["rados", "-p", "p"], args].concat())
}

fn names(cluster: &TestCluster) -> Vec<String> {
    let mut names: Vec<_> = rados(cluster, &["ls"]).lines().map(str::to_owned).collect();
    names.sort_unstable();
    names
}

/// A file of `len` pseudorandom bytes.
fn noise(cluster: &TestCluster, name: &str, len: usize) -> String {
    let mut state = 0x1234_5678_9abc_def1_u64 ^ len as u64;
    let mut data = Vec::with_capacity(len);
    while data.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        data.extend_from_slice(&state.to_le_bytes()[..8.min(len - data.len())]);
    }
    let path = cluster.folder().join(name);
    fs::write(&path, data).unwrap();
    path.into_os_string().into_string().unwrap()
}

#[test]
fn the_published_layout_is_made_as_published() {
    const MIB: u64 = 1 << 20;
    let cluster = cluster("memstore");
    let file = noise(&cluster, "128m", 128 << 20);
    let layout = ["--striper", "--stripe-unit", "8M", "--stripe-count", "4", "-O", "24M"];
    rados(&cluster, &[&layout[..], &["put", "Full-5409", &file]].concat());
    let pieces = names(&cluster);
    let wanted: Vec<String> = (0..8).map(|n| format!("Full-5409.{n:016x}")).collect();
    assert_eq!(pieces, wanted);
    let sizes: Vec<u64> = pieces
        .iter()
        .map(|piece| {
            let stat = rados(&cluster, &["stat", piece]);
            stat.trim().rsplit_once("size ").unwrap().1.parse().unwrap()
        })
        .collect();
    assert_eq!(sizes, [24, 24, 24, 24, 8, 8, 8, 8].map(|mib| mib * MIB));
    let attr = |name: &str| rados(&cluster, &["getxattr", "Full-5409.0000000000000000", name]);
    let attrs =
        ["stripe_unit", "stripe_count", "object_size"].map(|part| attr(&format!("striper.layout.{part}")));
    assert_eq!(attrs, ["8388608", "4", "25165824"]);
    assert_eq!(attr("striper.size"), (128 * MIB).to_string());
    // Through a handle with another layout.
    let back = cluster.folder().join("back");
    rados(&cluster, &["--striper", "get", "Full-5409", back.to_str().unwrap()]);
    assert!(fs::read(&back).unwrap() == fs::read(&file).unwrap());
    rados(&cluster, &["--striper", "rm", "Full-5409"]);
    assert_eq!(names(&cluster), Vec::<String>::new());
}

#[test]
fn the_rados_program_works_on_striped_objects() {
    let cluster = cluster("memstore");
    let striped = |args: &[&str]| rados(&cluster, &[&["--striper"], args].concat());
    let file = noise(&cluster, "10m", 10 << 20);
    striped(&["put", "a", &file]);
    striped(&["put", "b", &file, "--offset", "4194304"]);
    rados(&cluster, &["put", "plain", &file]);
    let listed = striped(&["ls"]);
    assert_eq!(listed.lines().collect::<std::collections::BTreeSet<_>>(), ["a", "b"].into());
    assert_eq!(names(&cluster).len(), 1 + 3 + 4);
    assert!(
        striped(&["stat", "a"]).starts_with("p/a mtime ")
            && striped(&["stat", "a"]).ends_with("size 10485760\n")
    );
    assert!(striped(&["stat2", "b"]).ends_with("size 14680064\n"));
    striped(&["append", "a", &file]);
    striped(&["truncate", "a", "15000000"]);
    let back = cluster.folder().join("back");
    striped(&["get", "a", back.to_str().unwrap(), "-b", "1M"]);
    let wanted = fs::read(&file).unwrap().repeat(2);
    assert!(fs::read(&back).unwrap() == wanted[..15_000_000]);
    striped(&["setxattr", "a", "k", "v"]);
    assert_eq!((striped(&["listxattr", "a"]), striped(&["getxattr", "a", "k"])), ("k\n".into(), "v".into()));
    striped(&["rmxattr", "a", "k"]);
    assert_eq!(striped(&["listxattr", "a"]), "");
    rados(&cluster, &["--striper", "-N", "ns", "put", "c", &file]);
    assert_eq!(striped(&["ls", "--all"]).lines().count(), 3);
    for (args, code, text) in [
        (&["get", "none", "-"][..], 1, "error getting p/none: (2) No such file or directory"),
        (&["rm", "none"], 1, "error removing p>none: (2) No such file or directory"),
        (&["omapset", "a"], 1, "unrecognized command"),
        (&["listomapkeys", "a"], 1, "does not work on striped objects"),
        (&["-O", "6M", "--stripe-unit", "4M", "put", "d", "-"], 234, "not a multiple"),
    ] {
        let out = cluster.run(&[&["rados", "-p", "p", "--striper"], args].concat());
        let stderr = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "{args:?}: {stderr}");
        assert!(stderr.contains(text), "{args:?}: {stderr}");
    }
    striped(&["rm", "a", "b"]);
    rados(&cluster, &["--striper", "-N", "ns", "rm", "c"]);
    assert_eq!(names(&cluster), ["plain"]);
}

/// Clients and OSDs are killed during writes. Removing the object leaves nothing behind.
#[test]
fn removal_finds_what_killed_clients_left() {
    let mut cluster = cluster("bluestore");
    let layout = ["--stripe-unit", "64K", "--stripe-count", "3", "-O", "128K", "-b", "64K"];
    for round in 0..8 {
        let args = [&["rados", "-p", "p", "--striper", "put", "v", "-"], &layout[..]].concat();
        let mut child = Command::new(nacre())
            .args(args)
            .arg("-c")
            .arg(cluster.conf())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let feeder = std::thread::spawn(move || {
            // Ends with the client.
            let _ = std::io::copy(&mut std::io::repeat(7).take(256 << 20), &mut input);
        });
        let wanted = 1 + round * 9;
        cluster.wait_for("some pieces", |cluster| names(cluster).len() > wanted);
        child.kill().unwrap();
        child.wait().unwrap();
        feeder.join().unwrap();
        if round == 5 {
            cluster.kill(Daemon::Osd(1));
            cluster.spawn(Daemon::Osd(1));
        }
        // The written data exists, without holes except those of writes in flight.
        let stat = rados(&cluster, &["--striper", "stat", "v"]);
        let size: u64 = stat.trim().rsplit_once("size ").unwrap().1.parse().unwrap();
        let contents = cluster.run(&["rados", "-p", "p", "--striper", "get", "v", "-"]).stdout;
        assert_eq!(contents.len() as u64, size);
        let zeros = contents.iter().filter(|byte| **byte != 7).count();
        assert!(zeros <= 64 * 65536, "{zeros} bytes of {size} are not there");
        rados(&cluster, &["--striper", "rm", "v"]);
        assert_eq!(names(&cluster), Vec::<String>::new(), "round {round}");
    }
}

#[test]
fn appenders_in_many_processes_never_overlap() {
    let cluster = cluster("memstore");
    let layout = ["--stripe-unit", "64K", "--stripe-count", "2", "-O", "64K"];
    let appenders: Vec<_> = (1..=6_u8)
        .map(|mark| {
            let path = cluster.folder().join(format!("part{mark}"));
            fs::write(&path, vec![mark; 30_000 * usize::from(mark)]).unwrap();
            let conf = cluster.conf();
            std::thread::spawn(move || {
                for _ in 0..5 {
                    let out = Command::new(nacre())
                        .args(["rados", "-p", "p", "--striper", "append", "log"])
                        .arg(&path)
                        .args(layout)
                        .arg("-c")
                        .arg(&conf)
                        .output()
                        .unwrap();
                    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
                }
            })
        })
        .collect();
    appenders.into_iter().for_each(|appender| appender.join().unwrap());
    let contents = cluster.run(&["rados", "-p", "p", "--striper", "get", "log", "-"]).stdout;
    let mut bytes: BTreeMap<u8, usize> = BTreeMap::new();
    for run in contents.chunk_by(|a, b| a == b) {
        assert_eq!(run.len() % (30_000 * usize::from(run[0])), 0, "an append is torn");
        *bytes.entry(run[0]).or_default() += run.len();
    }
    assert!((1..=6).all(|mark| bytes[&mark] == 5 * 30_000 * usize::from(mark)), "{bytes:?}");
}
