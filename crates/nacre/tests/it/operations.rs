//! Operators' tasks on a running cluster: commands to daemons through their admin sockets, following the log, rotating logs,
//! finding slow requests.

use crate::support::{Daemon, TEST_TIMEOUT, TestCluster, nacre};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Instant;

/// Debian's own `ceph` program, for commands that need no connection.
fn debians_ceph(cluster: &TestCluster, args: &[&str]) -> Output {
    Command::new("/usr/bin/ceph")
        .args(args)
        .env("CEPH_CONF", cluster.conf())
        .env_remove("CEPH_ARGS")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text.trim()).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// A program whose lines are read as they arrive. Killed when dropped.
struct Follower {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Follower {
    fn start(cluster: &TestCluster, args: &[&str]) -> Follower {
        let mut child = Command::new(nacre())
            .args(args)
            .arg("-c")
            .arg(cluster.conf())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (told, lines) = mpsc::channel();
        std::thread::spawn(move || {
            stdout.lines().map_while(Result::ok).all(|line| told.send(line).is_ok());
        });
        Follower { child, lines }
    }

    /// Waits for a line that contains `text`. Returns it.
    fn wait_for(&self, text: &str) -> String {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).unwrap_or_else(|_| panic!("no line with '{text}'"));
            if line.contains(text) {
                return line;
            }
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn daemons_answer_on_their_admin_sockets() {
    let mut cluster = TestCluster::start_with(1, "memstore", "[mon]\nmon_allow_pool_size_one = true\n");
    cluster.create_pool("p", 4, 1, 1);
    cluster.ok(&["rados", "-p", "p", "put", "o", cluster.conf().to_str().unwrap()]);
    let socket = cluster.folder().join("run/ceph-osd.0.asok");
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);

    // Debian's program finds the socket by ceph.conf, gets the commands from the daemon and prints its answer.
    let out = debians_ceph(&cluster, &["daemon", "osd.0", "perf", "dump", "osd"]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let dump = json(&String::from_utf8(out.stdout).unwrap());
    assert!(dump["osd"]["op_w"].as_u64().unwrap() >= 1, "{dump}");
    let out = debians_ceph(&cluster, &["daemon", "mon.a", "config", "get", "mon_tick_interval"]);
    assert_eq!(json(&String::from_utf8(out.stdout).unwrap())["mon_tick_interval"], "5");
    let out = debians_ceph(&cluster, &["daemon", socket.to_str().unwrap(), "dump_historic_ops"]);
    assert_eq!(json(&String::from_utf8(out.stdout).unwrap())["size"], 20);

    // So does Nacre's. The map authority sees options that are set this way.
    cluster.ok(&["daemon", "osd.0", "config", "set", "osd_max_backfills", "7"]);
    let diff = json(&cluster.ok(&["daemon", "osd.0", "config", "diff", "get", "osd_max_backfills"]));
    assert_eq!(diff["diff"]["osd_max_backfills"]["override"], 7);
    cluster.wait_for("config show tells of the override", |c| {
        let out = c.run(&["config", "show", "osd.0", "osd_max_backfills"]);
        String::from_utf8_lossy(&out.stdout).trim() == "7"
    });
    let status = json(&cluster.ok(&["daemon", "mon.a", "mon_status"]));
    assert_eq!((&status["name"], &status["state"]), (&Value::from("a"), &Value::from("leader")));
    assert_eq!(json(&cluster.ok(&["tell", "mon.a", "mon_status"]))["rank"], 0);
    assert_eq!(json(&cluster.ok(&["tell", "osd.0", "status"]))["whoami"], 0);
    let startup = cluster.run(&["daemon", "osd.0", "config", "set", "osd_data", "/elsewhere"]);
    assert_eq!(startup.status.code(), Some(22), "{}", String::from_utf8_lossy(&startup.stderr));

    cluster.terminate(Daemon::Osd(0));
    assert!(!socket.exists(), "a daemon that stops takes its socket away");
    let gone = cluster.run(&["daemon", "osd.0", "version"]);
    assert_eq!(gone.status.code(), Some(22));
    assert!(String::from_utf8_lossy(&gone.stderr).contains("[Errno 2] No such file or directory"));
}

#[test]
fn the_cluster_log_is_followed_across_restarts_of_the_map_authority() {
    let mut cluster = TestCluster::start_with(1, "memstore", "");
    let follower = Follower::start(&cluster, &["-w"]);
    follower.wait_for("  services:");
    let audit = Follower::start(&cluster, &["--watch-channel", "audit", "-w"]);
    audit.wait_for("  services:");
    cluster.ok(&["log", "the", "cat", "is", "in"]);
    let line = follower.wait_for("the cat is in");
    assert!(line.ends_with(" client.admin [INF] the cat is in"), "{line}");
    let line = audit.wait_for("cmd=[{\"prefix\":\"log\"");
    assert!(line.contains("entity='client.admin'") && line.ends_with(": dispatch"), "{line}");
    cluster.terminate(Daemon::Mon);
    cluster.spawn(Daemon::Mon);
    cluster.ok(&["log", "and", "out", "again"]);
    follower.wait_for("and out again");
    let last = cluster.ok(&["log", "last", "5", "info", "audit"]);
    assert!(last.contains(" : audit [INF] from='client.?' entity='client.admin'"), "{last}");
}

#[test]
fn slow_requests_are_named_in_health_with_what_they_wait_for() {
    let mut cluster =
        TestCluster::start_with(2, "memstore", "osd_op_complaint_time = 1\nosd_mon_report_interval = 1\n");
    cluster.create_pool("p", 4, 2, 2);
    cluster.ok(&["rados", "-p", "p", "put", "o", cluster.conf().to_str().unwrap()]);
    cluster.ok(&["osd", "set", "noout"]);
    cluster.kill(Daemon::Osd(1));
    cluster.wait_for("osd.1 is down", |c| c.ok(&["osd", "stat", "-f", "json"]).contains("\"num_up_osds\":1"));
    // Below min_size: the write waits.
    let conf = cluster.conf();
    let mut put = Command::new(nacre())
        .args(["rados", "-p", "p", "put", "o2", conf.to_str().unwrap(), "-c", conf.to_str().unwrap()])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    cluster.wait_for("SLOW_OPS", |c| c.ok(&["health"]).contains("slow ops"));
    let health = json(&cluster.ok(&["health", "detail", "-f", "json"]));
    let check = &health["checks"]["SLOW_OPS"];
    let text = check["summary"]["message"].as_str().unwrap();
    assert!(
        text.starts_with("1 slow ops, oldest one blocked for ") && text.ends_with(" sec, osd.0 has slow ops"),
        "{text}"
    );
    let detail = check["detail"][0]["message"].as_str().unwrap();
    assert!(detail.contains("osd_op(client.") && detail.ends_with("currently delayed"), "{detail}");
    let blocked = json(&cluster.ok(&["daemon", "osd.0", "dump_blocked_ops"]));
    assert_eq!(blocked["num_blocked_ops"], 1, "{blocked}");
    cluster.wait_for("the cluster log tells of it", |c| {
        c.ok(&["log", "last", "50", "warn"])
            .contains("1 slow requests (by type [ 'delayed' : 1 ] most affected pool [ 'p' : 1 ])")
    });
    assert!(
        cluster.log_of(Daemon::Osd(0)).contains("slow request osd_op("),
        "{}",
        cluster.log_of(Daemon::Osd(0))
    );
    cluster.spawn(Daemon::Osd(1));
    assert!(put.wait().unwrap().success());
    cluster.wait_for("no slow ops any more", |c| !c.ok(&["health"]).contains("slow ops"));
    let slow = json(&cluster.ok(&["daemon", "osd.0", "dump_historic_ops_by_duration"]));
    let stages = slow["ops"][0]["type_data"]["events"].to_string();
    assert!(stages.contains("waiting for active") || stages.contains("delayed"), "{stages}");
}

#[test]
fn logs_are_rotated_by_sighup() {
    let cluster = TestCluster::start_with(1, "memstore", "");
    let folder = cluster.folder().join("log");
    let (daemon_log, cluster_log) = (folder.join("mon.a.log"), folder.join("ceph.log"));
    cluster.ok(&["log", "before"]);
    let contains = |path: &Path, text: &str| fs::read_to_string(path).is_ok_and(|log| log.contains(text));
    cluster.wait_for("the cluster log is written", |_| contains(&cluster_log, "before"));
    for log in [&daemon_log, &cluster_log] {
        fs::rename(log, log.with_extension("log.1")).unwrap();
    }
    cluster.send_sighup(Daemon::Mon);
    cluster.wait_for("the daemon's new log", |_| contains(&daemon_log, "log files are reopened"));
    cluster.ok(&["log", "after"]);
    cluster.wait_for("the new cluster log", |_| contains(&cluster_log, "after"));
    assert!(!contains(&cluster_log.with_extension("log.1"), "after"));
    // The same without a signal.
    let osd_log = folder.join("osd.0.log");
    fs::rename(&osd_log, osd_log.with_extension("log.1")).unwrap();
    cluster.ok(&["daemon", "osd.0", "log", "reopen"]);
    assert!(contains(&osd_log, "log files are reopened"));
}

/// The page of an endpoint of the cluster.
fn fetch(addr: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {addr}\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    body.to_owned()
}

/// The metrics that a board's queries name.
fn queried(board: &Value, into: &mut BTreeSet<String>) {
    match board {
        Value::Object(fields) => {
            if let Some(query) = fields.get("expr").and_then(Value::as_str) {
                let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                let metrics = words.filter(|word| word.starts_with("ceph_") && *word != "ceph_daemon");
                into.extend(metrics.map(str::to_owned));
            }
            fields.values().for_each(|value| queried(value, into));
        }
        Value::Array(values) => values.iter().for_each(|value| queried(value, into)),
        _ => {}
    }
}

#[test]
fn every_metric_that_the_board_queries_is_exported() {
    let cluster = TestCluster::start_with(2, "bluestore", "");
    cluster.create_pool("p", 4, 2, 1);
    cluster.ok(&["rados", "-p", "p", "put", "o", cluster.conf().to_str().unwrap()]);
    // An active check, so that its metric exists.
    cluster.ok(&["osd", "set", "noout"]);
    let mon = json(&cluster.ok(&["mon", "metadata", "a"]))["exporter_addr"].as_str().unwrap().to_owned();
    assert!(mon.starts_with("127.0.0.1:"), "{mon}");
    let groups = json(&fetch(&mon, "/sd"));
    let targets: Vec<_> =
        groups[0]["targets"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
    assert_eq!(targets.len(), 3, "one endpoint per process: {targets:?}");
    let text: String = targets.iter().map(|addr| fetch(addr, "/metrics")).collect();
    let exported: BTreeSet<&str> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split(['{', ' ']).next().unwrap())
        .collect();
    let board = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/grafana/nacre.json");
    let mut wanted = BTreeSet::new();
    queried(&json(&fs::read_to_string(board).unwrap()), &mut wanted);
    assert!(wanted.len() > 30, "{wanted:?}");
    let missing: Vec<_> = wanted.iter().filter(|name| !exported.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "{missing:?} of {exported:?}");
    assert!(text.contains("ceph_osd_up{ceph_daemon=\"osd.1\"} 1\n"));
    assert!(
        text.lines()
            .any(|line| line.starts_with("ceph_osd_op_w{ceph_daemon=\"osd.") && !line.ends_with(" 0"))
    );
}

#[test]
fn units_start_daemons_that_exist() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/systemd");
    let temp = tempfile::tempdir().unwrap();
    let mut units = Vec::new();
    for name in ["nacre.service", "nacre-mon@.service", "nacre-osd@.service", "nacre-rgw@.service"] {
        let text = fs::read_to_string(folder.join(name)).unwrap();
        let start =
            text.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/nacre ")).unwrap();
        let word = start.split(' ').next().unwrap();
        let help = Command::new(nacre()).args([word, "--help"]).output().unwrap();
        assert!(help.status.success() && !help.stdout.is_empty(), "{start}");
        let wanted = ["NoNewPrivileges=yes", "ProtectSystem=strict", "User=nacre", "PartOf=nacre.target"];
        for line in wanted.into_iter().chain(["Type=notify", "ExecReload=/bin/kill -HUP $MAINPID"]) {
            assert!(text.lines().any(|found| found == line), "{name} has no {line}");
        }
        let unit = temp.path().join(name);
        // Manual pages exist only where packages are installed.
        let lines = text.lines().filter(|line| !line.starts_with("Documentation="));
        let text: String = lines.map(|line| line.replace("/usr/local/bin/nacre", nacre()) + "\n").collect();
        fs::write(&unit, text).unwrap();
        units.push(unit);
    }
    fs::copy(folder.join("nacre.target"), temp.path().join("nacre.target")).unwrap();
    // Containers have no systemd. If it is installed, it also verifies the units.
    if let Ok(out) = Command::new("systemd-analyze").arg("verify").args(&units).output() {
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }
}

#[test]
fn databases_are_compacted_while_osds_run() {
    let cluster = TestCluster::start_with(2, "bluestore", "");
    cluster.wait_healthy();
    let answer = json(&cluster.ok(&["tell", "osd.0", "compact"]));
    assert!(answer["elapsed_time"].as_f64().unwrap() >= 0.0, "{answer}");
    let lines = cluster.ok(&["osd", "compact", "--all", "--parallel", "2"]);
    let of = |osd: &str| lines.lines().find(|line| line.contains(osd)).unwrap_or_else(|| panic!("{lines}"));
    for osd in ["osd.0: ", "osd.1: "] {
        assert!(of(osd).starts_with('[') && of(osd).contains("compacted in "), "{lines}");
    }
    let answers = json(&cluster.ok(&["osd", "compact", "osd.1", "--format", "json"]));
    assert_eq!((answers.as_array().unwrap().len(), &answers[0]["osd"]), (1, &"osd.1".into()), "{answers}");
    assert!(answers[0]["elapsed_time"].is_number(), "{answers}");
    cluster.wait_for("the cluster log to tell of it", |cluster| {
        cluster.ok(&["log", "last", "50"]).contains("compacting onodes (1 of ")
    });
    let refused = cluster.run(&["osd", "compact", "osd.9"]);
    assert!(!refused.status.success(), "{refused:?}");
    let refused = cluster.run(&["osd", "compact", "osd.9", "-f", "json"]);
    let answers: Value = serde_json::from_slice(&refused.stdout).unwrap();
    assert!(!refused.status.success() && answers[0]["error"].is_string(), "{answers}");
}

/// Builds RocksDB again, without optimisation.
#[test]
#[ignore = "takes many minutes; `make test-long` runs it"]
fn an_unoptimised_build_is_told_of_in_health() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/build-rocksdb");
    let archive = Command::new(script).args(["--print-dir", "-O0"]).output().unwrap();
    assert!(archive.status.success(), "{}", String::from_utf8_lossy(&archive.stderr));
    let archive = String::from_utf8(archive.stdout).unwrap();
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("unoptimised");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--locked", "-p", "nacre", "--bin", "nacre", "--target-dir"])
        .arg(&target)
        .env("ROCKSDB_LIB_DIR", archive.trim())
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let slow = target.join("debug/nacre");
    let doctor = Command::new(&slow).arg("doctor").output().unwrap();
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(!doctor.status.success() && said.contains("BAD  RocksDB's scan"), "{said}");
    let mut cluster = TestCluster::start_with(1, "bluestore", "");
    cluster.wait_healthy();
    cluster.terminate(Daemon::Osd(0));
    let mut osd = Command::new(&slow).args(["osd", "--id", "0", "-c"]).arg(cluster.conf()).spawn().unwrap();
    cluster.wait_for("a warning about the build", |cluster| {
        cluster
            .ok(&["health", "detail"])
            .contains("KVSTORE_UNOPTIMIZED: osd.0 has a RocksDB that was built without")
    });
    osd.kill().unwrap();
    osd.wait().unwrap();
}

#[test]
fn the_doctor_finds_this_build_well() {
    let folder = tempfile::tempdir().unwrap();
    let doctor = Command::new(nacre()).args(["doctor", "--data"]).arg(folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    // The speed of this machine's disk does not matter here.
    for line in ["ok   RocksDB's CRC", "ok   RocksDB's scan", "durable write"] {
        assert!(said.contains(line), "{said}");
    }
    let refused = Command::new(nacre()).args(["doctor", "--nonesuch"]).output().unwrap();
    assert!(
        !refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("usage: nacre doctor")
    );
}
