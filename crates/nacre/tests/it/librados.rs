//! Debian's unmodified programs on our `librados.so.2`.

use crate::support::TestCluster;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Where Debian has Ceph's library.
const DEBIANS: &str = "/usr/lib/x86_64-linux-gnu/librados.so.2";

/// The library under test, which Cargo builds for this crate's tests beside them.
fn ours() -> PathBuf {
    let library = std::env::current_exe().unwrap().with_file_name("librados.so");
    assert!(library.is_file(), "{} is not built", library.display());
    library
}

/// A folder with the library under the name that programs load it by.
fn library_folder(inside: &Path) -> PathBuf {
    let folder = inside.join("lib");
    fs::create_dir_all(&folder).unwrap();
    let link = folder.join("librados.so.2");
    if !link.exists() {
        std::os::unix::fs::symlink(ours(), &link).unwrap();
    }
    folder
}

/// Runs a program with our library in the place of Ceph's, on the cluster.
fn run(cluster: &TestCluster, program: &str, args: &[&str]) -> Output {
    Command::new(program)
        .args(args)
        .env("LD_LIBRARY_PATH", library_folder(cluster.folder()))
        .env("CEPH_CONF", cluster.conf())
        .env_remove("CEPH_ARGS")
        .current_dir(cluster.folder())
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// As [`run`]; the program must succeed. Returns what it prints.
fn ok(cluster: &TestCluster, program: &str, args: &[&str]) -> String {
    let out = run(cluster, program, args);
    let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{program} {}: {}\n{stdout}{stderr}", args.join(" "), out.status);
    stdout.into_owned()
}

/// Defined C functions of a library with their versions, as `objdump -T` prints them: `(Base)` is a hidden version.
fn functions(library: &Path) -> BTreeSet<(String, String)> {
    let out = Command::new("objdump").arg("-T").arg(library).output().unwrap();
    assert!(out.status.success(), "objdump: {}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).unwrap();
    let defined = text.lines().filter(|line| !line.contains("*UND*"));
    let words = defined.map(|line| line.split_whitespace().rev().take(2).collect::<Vec<_>>());
    words
        .filter(|words| words.len() == 2 && words[0].starts_with("rados_"))
        .map(|words| (words[0].to_owned(), words[1].trim_matches(['(', ')']).to_owned()))
        .collect()
}

#[test]
fn every_c_function_of_cephs_library_is_there_in_its_version() {
    let (theirs, ours) = (functions(Path::new(DEBIANS)), functions(&ours()));
    assert!(theirs.len() > 240, "objdump was not understood: {theirs:?}");
    let missing: Vec<_> = theirs.difference(&ours).collect();
    assert!(missing.is_empty(), "missing: {missing:?}");
    // Names of later releases of Ceph.
    let more: Vec<_> = ours.difference(&theirs).map(|(name, _)| name.as_str()).collect();
    assert_eq!(more, ["rados_aio_stat2", "rados_stat2"]);
}

#[test]
fn the_ceph_program_runs_unchanged() {
    let cluster = TestCluster::start_with(2, "memstore", "osd_pool_default_size = 2");
    let ceph = |args: &[&str]| ok(&cluster, "/usr/bin/ceph", args);
    assert!(ceph(&["-s"]).contains("osd: 2 osds: 2 up"));
    assert!(ceph(&["osd", "tree"]).contains("osd.1"));
    ceph(&["osd", "pool", "create", "x", "8"]);
    assert_eq!(ceph(&["osd", "pool", "ls"]), "x\n");
    ceph(&["config", "set", "osd.0", "debug_osd", "7"]);
    assert!(ceph(&["config", "get", "osd.0", "debug_osd"]).contains('7'));
    assert!(ceph(&["health"]).starts_with("HEALTH_"));
    let version: serde_json::Value = serde_json::from_str(&ceph(&["tell", "osd.0", "version"])).unwrap();
    assert!(version["version"].is_string(), "{version}");
}
