//! Debian's unmodified programs on Nacre's `librados.so.2` and `libradosstriper.so.1`.

use crate::support::{TestCluster, nacre};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Paths of Ceph's two libraries in Debian. Nacre's library replaces both.
const DEBIANS: [&str; 2] =
    ["/usr/lib/x86_64-linux-gnu/librados.so.2", "/usr/lib/x86_64-linux-gnu/libradosstriper.so.1"];

/// The library under test: the one that Cargo builds for this crate's tests in the same folder, or the one beside the binary in
/// `NACRE_TEST_BINARY`.
pub(crate) fn librados_path() -> PathBuf {
    let beside = std::env::var_os("NACRE_TEST_BINARY").map(PathBuf::from);
    let library = beside.unwrap_or_else(|| std::env::current_exe().unwrap()).with_file_name("librados.so");
    assert!(library.is_file(), "{} is not built", library.display());
    library
}

/// A folder with the library under the names by which programs load it.
pub(crate) fn library_folder(inside: &Path) -> PathBuf {
    let folder = inside.join("lib");
    fs::create_dir_all(&folder).unwrap();
    for name in ["librados.so.2", "libradosstriper.so.1"] {
        let link = folder.join(name);
        if !link.exists() {
            std::os::unix::fs::symlink(librados_path(), &link).unwrap();
        }
    }
    folder
}

/// Compiles a C source of this folder to a file in the cluster's folder.
fn compile(cluster: &TestCluster, source: &str, output: &str, args: &[&str]) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/librados").join(source);
    let output = cluster.folder().join(output);
    let strict = ["-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations", "-o"];
    let out = Command::new("clang").args(strict).arg(&output).arg(source).args(args).output().unwrap();
    assert!(out.status.success(), "clang: {}", String::from_utf8_lossy(&out.stderr));
    output.into_os_string().into_string().unwrap()
}

/// Runs a program on the cluster, with Nacre's library instead of Ceph's.
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

/// Like [`run`], but the program must succeed. Returns its output.
pub(crate) fn ok(cluster: &TestCluster, program: &str, args: &[&str]) -> String {
    let out = run(cluster, program, args);
    let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{program} {}: {}\n{stdout}{stderr}", args.join(" "), out.status);
    stdout.into_owned()
}

/// Defined C functions of a library with their versions, as `objdump -T` prints them. Versions in parentheses are for programs
/// that request no version; in Nacre's library they have a name.
fn functions(library: &Path) -> BTreeSet<(String, String)> {
    let out = Command::new("objdump").arg("-T").arg(library).output().unwrap();
    assert!(out.status.success(), "objdump: {}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).unwrap();
    let defined = text.lines().filter(|line| !line.contains("*UND*"));
    let words = defined.map(|line| line.split_whitespace().rev().take(2).collect::<Vec<_>>());
    words
        .filter(|words| words.len() == 2 && words[0].starts_with("rados_"))
        .map(|words| (words[0].to_owned(), words[1].replace("(LIBRADOS_BASE)", "(Base)")))
        .collect()
}

#[test]
fn every_c_function_of_cephs_library_is_there_in_its_version() {
    let [rados, striper] = DEBIANS.map(|library| functions(Path::new(library)));
    assert!(rados.len() > 240 && striper.len() == 36, "objdump was not understood: {rados:?} {striper:?}");
    let (theirs, ours) = (&rados | &striper, functions(&librados_path()));
    let missing: Vec<_> = theirs.difference(&ours).collect();
    assert!(missing.is_empty(), "missing: {missing:?}");
    // Names from later releases of Ceph.
    let more: Vec<_> = ours.difference(&theirs).map(|(name, _)| name.as_str()).collect();
    assert_eq!(more, ["rados_aio_stat2", "rados_stat2", "rados_striper_aio_stat2", "rados_striper_stat2"]);
}

/// The C programs of this folder, one for each group of functions.
const PROGRAMS: [&str; 8] = ["aio", "client", "commands", "compound", "forks", "objects", "pools", "striper"];

fn source(program: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/it/librados/{program}.c"))
}

/// Tests that the programs call every function.
#[test]
fn every_c_function_is_called_by_a_c_program() {
    let text: String = PROGRAMS.iter().map(|program| fs::read_to_string(source(program)).unwrap()).collect();
    let called: BTreeSet<&str> = text
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|w| w.starts_with("rados_"))
        .collect();
    let all = DEBIANS.map(|library| functions(Path::new(library)));
    let names = all.iter().flatten().map(|(name, _)| name.as_str());
    let untried: Vec<_> = names.filter(|name| !called.contains(name)).collect();
    assert!(untried.is_empty(), "{untried:?}");
}

/// The page lists the functions that fail with EOPNOTSUPP. A C program calls exactly these and checks that.
#[test]
fn the_list_of_what_is_missing_is_true() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/librados.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, list) = page.split_once("EOPNOTSUPP:\n\n```\n").unwrap();
    let listed: BTreeSet<&str> = list.split_once("```").unwrap().0.split_whitespace().collect();
    let text = fs::read_to_string(source("objects")).unwrap();
    let (_, missing) = text.split_once("static void missing(void)").unwrap();
    let body = missing.split_once("\n}\n").unwrap().0;
    let words = body.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let completions = |word: &&str| word.starts_with("rados_aio") && !word.contains("snap");
    let called: BTreeSet<&str> =
        words.filter(|w| w.starts_with("rados_") && !w.ends_with("_t")).filter(|w| !completions(w)).collect();
    assert_eq!(listed, called);
}

/// A cluster with the compiled programs, linked with Debian's libraries, and a pool for each.
fn with_programs() -> (TestCluster, Vec<(&'static str, String)>) {
    let conf =
        "[global]\nosd_pool_default_size = 2\nosd_pool_default_pg_num = 8\nmon_allow_pool_delete = true";
    let cluster = TestCluster::start_with(2, "memstore", conf);
    let libraries = ["-lradosstriper", "-lrados", "-lpthread"];
    let compiled = PROGRAMS.map(|program| {
        cluster.create_pool(program, 8, 2, 1);
        (program, compile(&cluster, &format!("{program}.c"), program, &libraries))
    });
    (cluster, compiled.into())
}

#[test]
fn c_programs_run_unchanged() {
    let (cluster, programs) = with_programs();
    for (pool, program) in programs {
        assert_eq!(ok(&cluster, &program, &[pool]), "done\n");
    }
}

/// What valgrind is not to report. The compiler may compare the content of an `Option` before it checks whether there is one,
/// and use the result only if there is: a jump that depends on uninitialised memory and changes nothing. Jumps of the programs
/// themselves count, so that what the library returns to them is initialised.
const SUPPRESSIONS: &str = "{\n  comparison before the check\n  Memcheck:Cond\n  obj:*/librados*.so*\n}\n";

/// Memory that remains allocated at the end because it lives as long as the process: the log and tables of handles.
const LEFT_BYTES: u64 = 128 << 10;

#[test]
fn c_programs_leak_nothing_and_touch_no_foreign_memory() {
    let (cluster, programs) = with_programs();
    for (pool, program) in programs {
        let log = cluster.folder().join("valgrind.log");
        let log_file = format!("--log-file={}", log.display());
        let suppressions = cluster.folder().join("valgrind.supp");
        fs::write(&suppressions, SUPPRESSIONS).unwrap();
        let suppressions = format!("--suppressions={}", suppressions.display());
        // Only unreachable memory counts: tables of handles point into the middle of their objects.
        let checks = [
            "--leak-check=full",
            "--errors-for-leak-kinds=definite,indirect",
            "--error-exitcode=99",
            &log_file,
            &suppressions,
        ];
        let out = run(&cluster, "valgrind", &[&checks[..], &[&program, pool]].concat());
        let report = fs::read_to_string(&log).unwrap();
        let stderr = String::from_utf8_lossy(&out.stderr);
        assert!(
            out.status.success() && out.stdout == b"done\n",
            "{pool}: {}: {stderr}\n{report}",
            out.status
        );
        let left = report.lines().find_map(|line| line.split_once("in use at exit: ")).unwrap().1;
        let left: u64 = left.split_once(" bytes").unwrap().0.replace(',', "").parse().unwrap();
        assert!(left <= LEFT_BYTES, "{pool}: {left} bytes are left\n{report}");
    }
}

#[test]
fn what_make_install_installs_serves_programs() {
    let folder = tempfile::Builder::new().prefix("nacre-it-").tempdir().unwrap();
    let prefix = folder.path().join("prefix");
    let done = |command: &mut Command| {
        let out = command.output().unwrap();
        assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    let assigned = |name: &str, path: &Path| format!("{name}={}", path.display());
    done(
        Command::new("make")
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
            .arg("install-files")
            .args([assigned("NACRE", Path::new(nacre())), assigned("LIBRADOS", &librados_path())])
            .args([assigned("PREFIX", &prefix), "DESTDIR=".to_owned()]),
    );
    let libraries = prefix.join("lib/nacre");
    for name in ["ceph", "rados"] {
        assert!(done(Command::new(libraries.join("bin").join(name)).arg("--version")).contains("nacre"));
    }
    let options = done(Command::new(prefix.join("bin/nacre-dplcompat")).arg("options"));
    assert!(options.contains("poolname"));

    // Compiled with pkg-config's flags and Ceph's headers, and run with the installed library.
    let mut flags = Command::new("pkg-config");
    flags.args(["--cflags", "--libs", "libradosstriper"]).env("PKG_CONFIG_PATH", libraries.join("pkgconfig"));
    let flags = done(&mut flags);
    let program = folder.path().join("program");
    let mut compiler = Command::new("clang");
    compiler.arg("-Wno-deprecated-declarations").arg("-o").arg(&program).arg(source("striper"));
    done(compiler.args(flags.split_whitespace()));
    let linked = done(Command::new("ldd").arg(&program).env("LD_LIBRARY_PATH", &libraries));
    // One library with two names: a program that is linked with either loads it under the first.
    assert!(linked.contains(libraries.join("librados.so.2").to_str().unwrap()), "{linked}");
    assert!(functions(&libraries.join("libradosstriper.so.1")).len() >= 278);
    let versions = done(Command::new("readelf").arg("-d").arg(libraries.join("librbd.so.1")));
    assert!(versions.contains("[librbd.so.1]"), "{versions}");
}

#[test]
fn the_ceph_program_runs_unchanged() {
    let cluster = TestCluster::start_with(2, "memstore", "[global]\nosd_pool_default_size = 2");
    let ceph = |args: &[&str]| ok(&cluster, "/usr/bin/ceph", args);
    let json = |args: &[&str]| -> serde_json::Value {
        let text = ceph(args);
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}: {text}", args.join(" ")))
    };
    assert!(ceph(&["-s"]).contains("osd: 2 osds: 2 up"));
    assert!(json(&["status", "-f", "json-pretty"])["fsid"].is_string());
    assert!(ceph(&["osd", "tree"]).contains("osd.1"));
    ceph(&["osd", "pool", "create", "x", "8"]);
    ceph(&["osd", "pool", "create", "old", "8", "8", "replicated"]);
    assert_eq!(ceph(&["osd", "pool", "ls"]), "x\nold\n");
    assert_eq!(json(&["osd", "pool", "get", "x", "size", "--format", "json"])["size"], 2);
    ceph(&["osd", "pool", "set", "x", "min_size", "1", "--yes-i-really-mean-it"]);
    ceph(&["osd", "pool", "application", "enable", "x", "test"]);
    ceph(&["config", "set", "osd.0", "debug_osd", "7"]);
    assert!(ceph(&["config", "get", "osd.0", "debug_osd"]).contains('7'));
    assert!(ceph(&["health", "detail"]).starts_with("HEALTH_"));
    assert!(ceph(&["-h", "osd", "pool"]).contains("osd pool create <pool>"));
    ceph(&["osd", "out", "osd.1"]);
    ceph(&["osd", "in", "1"]);

    let version = json(&["tell", "osd.0", "version"]);
    assert!(version["version"].is_string(), "{version}");
    assert_eq!(json(&["tell", "osd.0", "config", "get", "debug_osd"])["debug_osd"], "7/7");
    // One answer per OSD, each preceded by its name.
    let all = ceph(&["tell", "osd.*", "version"]);
    assert!(all.contains("osd.0: {") && all.contains("osd.1: {"), "{all}");
    let mon = json(&["mon", "dump", "-f", "json"])["mons"][0]["name"].as_str().unwrap().to_owned();
    assert!(ceph(&["tell", &format!("mon.{mon}"), "version"]).contains("version"));
    let pool = json(&["osd", "pool", "ls", "detail", "-f", "json"])[0]["pool_id"].to_string();
    assert_eq!(json(&["pg", &format!("{pool}.0"), "query"])["pgid"], format!("{pool}.0"));
    assert_eq!(json(&["tell", &format!("{pool}.0"), "query"])["pgid"], format!("{pool}.0"));
    assert!(json(&["ping", &format!("mon.{mon}")])["health"].is_object());

    let map = cluster.folder().join("crush").into_os_string().into_string().unwrap();
    ceph(&["osd", "getcrushmap", "-o", &map]);
    ceph(&["osd", "setcrushmap", "-i", &map]);

    for (args, code, text) in [
        (&["osd", "pool", "get", "none", "size"][..], 2, "Error ENOENT: unrecognized pool 'none'"),
        (&["osd", "pool", "create"], 22, "Invalid command: missing required parameter pool"),
        (&["tell", "osd.9", "version"], 2, "problem getting command descriptions from osd.9"),
        (&["--id", "stranger", "-s"], 1, "error connecting to the cluster"),
    ] {
        let out = run(&cluster, "/usr/bin/ceph", args);
        let stderr = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "{args:?}: {stderr}");
        assert!(stderr.contains(text), "{args:?}: {stderr}");
    }
}

#[test]
fn programs_that_are_linked_with_cephs_library_run_unchanged() {
    let conf =
        "[global]\nosd_pool_default_size = 2\nosd_pool_default_pg_num = 8\nmon_allow_pool_delete = true";
    let cluster = TestCluster::start_with(2, "memstore", conf);
    // Debian's Python, to which the binding belongs, even if there is another Python.
    let bindings = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/librados/bindings.py");
    assert_eq!(ok(&cluster, "/usr/bin/python3", &[bindings.to_str().unwrap()]), "done\n");

    cluster.create_pool("it", 8, 2, 1);
    library_folder(cluster.folder());
    compile(
        &cluster,
        "../../../../librados/librbd.c",
        "lib/librbd.so.1",
        &["-shared", "-fPIC", "-Wl,-soname,librbd.so.1"],
    );
    let conf = format!("--conf={}", cluster.conf().display());
    let job = ["--name=t", "--rw=randwrite", "--bs=4k", "--size=1M", "--iodepth=16", "--verify=crc32c"];
    let engine = ["--ioengine=rados", "--clientname=admin", "--pool=it", "--output-format=json"];
    let report = ok(&cluster, "fio", &[&engine[..], &job, &[&conf]].concat());
    let report: serde_json::Value = serde_json::from_str(&report[report.find('{').unwrap()..]).unwrap();
    let job = &report["jobs"][0];
    assert_eq!((&job["error"], &job["write"]["total_ios"]), (&0.into(), &256.into()), "{job}");
    assert_eq!(job["read"]["total_ios"], 256, "what was written was not read back: {job}");
}
