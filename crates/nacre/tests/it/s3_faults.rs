//! S3 while OSDs and gateways are killed: no acknowledged change is lost, no torn object is read, listings agree with GET, and
//! nothing is left behind.

use crate::s3_object_store;
use crate::s3_programs::{self, Client};
use crate::support::{Daemon, TEST_TIMEOUT, TestCluster, free_port, nacre};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A gateway's process, always on the same port.
pub(crate) struct Gateway {
    port: u16,
    /// Further arguments.
    args: Vec<String>,
    child: Option<Child>,
}

impl Gateway {
    pub(crate) fn new() -> Gateway {
        Gateway { port: free_port(), args: Vec::new(), child: None }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Starts it and waits until it serves.
    pub(crate) fn start(&mut self, cluster: &TestCluster) {
        let log = cluster.folder().join(format!("gateway.{}.out", self.port));
        let log = File::options().create(true).append(true).open(log).unwrap();
        let mut child = Command::new(nacre())
            .args(["gateway", "--rgw_frontends", &format!("endpoint=127.0.0.1:{}", self.port), "-c"])
            .arg(cluster.conf())
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.find_map(|line| line.ok().filter(|line| line.starts_with("gateway is ready")));
        assert!(ready.is_some(), "the gateway ended before it was ready: {}", self.log(cluster));
        assert!(self.child.replace(child).is_none());
    }

    pub(crate) fn log(&self, cluster: &TestCluster) -> String {
        let text = std::fs::read_to_string(cluster.folder().join(format!("gateway.{}.out", self.port)));
        text.unwrap_or_default()
    }

    /// kill -9.
    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().expect("a running gateway");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if self.child.is_some() {
            self.kill();
        }
    }
}

/// A running faults.py.
struct Load {
    child: Child,
    stdin: Option<ChildStdin>,
    said: Arc<Mutex<Vec<String>>>,
}

impl Load {
    fn start(keys: (&str, &str), bucket: &str, gateways: &[&Gateway]) -> Load {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/s3/faults.py");
        let mut child = Command::new("/usr/bin/python3")
            .args([script, keys.0, keys.1, bucket])
            .args(gateways.iter().map(|gateway| gateway.endpoint()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = Arc::new(Mutex::new(Vec::new()));
        let outputs: [Box<dyn std::io::Read + Send>; 2] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        for output in outputs {
            let said = Arc::clone(&said);
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    said.lock().unwrap_or_else(PoisonError::into_inner).push(line);
                }
            });
        }
        Load { stdin: child.stdin.take(), child, said }
    }

    fn text(&self) -> String {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).join("\n")
    }

    fn acked(&self) -> u64 {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = said.iter().filter_map(|line| line.strip_prefix("acked ")?.parse().ok());
        counts.max().unwrap_or(0)
    }

    /// Waits until `more` further writes are acknowledged.
    fn expect_progress(&mut self, more: u64) {
        let (goal, deadline) = (self.acked() + more, Instant::now() + TEST_TIMEOUT);
        while self.acked() < goal {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "the load ended: {}", self.text());
            assert!(Instant::now() < deadline, "no progress: {}", self.text());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends it, with its check of everything.
    fn finish(mut self) {
        drop(self.stdin.take().map(|mut stdin| stdin.write_all(b"e")));
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{}", self.text());
        println!("{}", self.text());
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

const CONF: &str = "[global]
osd_heartbeat_interval = 1
osd_heartbeat_grace = 4
mon_osd_down_out_interval = 600
osd_pool_default_pg_num = 8
rgw_pending_bucket_index_op_expiration = 2
rgw_gateway_lease_duration = 2
rgw_gc_obj_min_wait = 20
rgw_gc_processor_period = 5
";

/// A cluster, two gateways, and the first user's keys.
fn served() -> (TestCluster, Gateway, Gateway, (String, String)) {
    let cluster = TestCluster::start_with(3, "bluestore", CONF);
    let (mut a, mut b) = (Gateway::new(), Gateway::new());
    a.start(&cluster);
    b.start(&cluster);
    let user = cluster.ok(&["user", "create", "--uid", "u", "--display-name", "U"]);
    let user: serde_json::Value = serde_json::from_str(&user).unwrap();
    let key = |name: &str| user["keys"][0][name].as_str().unwrap().to_owned();
    let keys = (key("access_key"), key("secret_key"));
    (cluster, a, b, keys)
}

/// The problems of a bucket.
fn problems(cluster: &TestCluster, bucket: &str) -> String {
    let out = cluster.run(&["bucket", "check", "--bucket", bucket]);
    if out.status.success() { String::new() } else { String::from_utf8_lossy(&out.stdout).into_owned() }
}

/// Checks that the remains of killed gateways are recovered and nothing is wrong then. Removing the bucket removes everything.
fn nothing_is_left(cluster: &TestCluster, bucket: &str) {
    becomes_sound(cluster, bucket);
    cluster.ok(&["bucket", "rm", "--bucket", bucket, "--purge-objects"]);
    cluster.ok(&["gc", "process", "--include-all"]);
    for pool in ["default.rgw.buckets.data", "default.rgw.buckets.index"] {
        assert_eq!(cluster.ok(&["rados", "-p", pool, "ls"]), "", "objects in {pool} that belong to nothing");
    }
}

/// Checks that the remains of killed gateways are recovered and nothing is wrong then.
fn becomes_sound(cluster: &TestCluster, bucket: &str) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        let wrong = problems(cluster, bucket);
        if wrong.is_empty() {
            break;
        }
        // Changes that were in progress, and uploads that were listed but had not started.
        let left = |line: &str| line.contains("stale_pending") || line.contains("missing_upload");
        let temporary = wrong.lines().filter(|line| line.contains("\"type\"")).all(left);
        if !temporary {
            // Details for the analysis of a failure: whether it persists, and what is stored.
            std::thread::sleep(Duration::from_secs(3));
            let (later, map) = (problems(cluster, bucket), cluster.ok(&["osd", "dump"]));
            let pool = ["rados", "-p", "default.rgw.buckets.index"];
            let listed = cluster.ok(&[&pool[..], &["ls"]].concat());
            let dump = |shard: &str| cluster.ok(&[&pool[..], &["listomapvals", shard]].concat());
            let index: String = listed.lines().map(dump).collect();
            panic!("{wrong}\nand 3 s later: {later}\nthe map: {map}\nthe index: {index}");
        }
        assert!(Instant::now() < deadline, "what gateways left is never seen through: {wrong}");
        // Gateways recover when they list; so does this.
        cluster.run(&["bucket", "check", "--bucket", bucket, "--fix"]);
    }
}

fn goes_on_while_gateways_are_killed(bucket: &str) {
    let (cluster, mut a, mut b, keys) = served();
    let mut load = Load::start((&keys.0, &keys.1), bucket, &[&a, &b]);
    load.expect_progress(30);
    for round in 0..6 {
        let victim = if round % 2 == 0 { &mut a } else { &mut b };
        victim.kill();
        load.expect_progress(20);
        victim.start(&cluster);
        load.expect_progress(20);
    }
    load.finish();
    nothing_is_left(&cluster, bucket);
    // Killed gateways are on the blocklist by their sessions' numbers, for as long as they might come back.
    let out = cluster.ok(&["osd", "blocklist", "ls"]);
    let soon = Command::new("date").args(["-u", "-d", "+23 hours", "+%FT%T"]).output().unwrap();
    let soon = String::from_utf8(soon.stdout).unwrap();
    for line in out.lines().filter(|line| !line.is_empty()) {
        let (who, until) = line.split_once(' ').unwrap();
        assert!(who.starts_with("client.") && until > soon.trim(), "{out}");
    }
    let said = format!("{}{}", a.log(&cluster), b.log(&cluster));
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn s3_goes_on_while_gateways_are_killed() {
    goes_on_while_gateways_are_killed("faults");
}

#[test]
fn versions_stay_while_gateways_are_killed() {
    goes_on_while_gateways_are_killed("versions");
}

#[test]
fn s3_goes_on_while_osds_are_killed() {
    let (mut cluster, a, b, keys) = served();
    let mut load = Load::start((&keys.0, &keys.1), "faults", &[&a, &b]);
    load.expect_progress(30);
    for osd in [1, 2] {
        cluster.kill(Daemon::Osd(osd));
        load.expect_progress(30);
        cluster.spawn(Daemon::Osd(osd));
        cluster.wait_healthy();
        load.expect_progress(30);
    }
    load.finish();
    nothing_is_left(&cluster, "faults");
}

#[test]
fn uploads_of_clients_that_go_away_are_completed_or_can_be() {
    let (cluster, a, _b, keys) = served();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/s3/gone.py");
    let endpoint = a.endpoint();
    let args = [script, &endpoint, &keys.0, &keys.1, "gone"];
    let out = Command::new("/usr/bin/python3").args(args).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    nothing_is_left(&cluster, "gone");
}

/// A gateway loses its watch during a write while others look for failed gateways: none assumes that it failed.
fn stands_still_in_the_middle_of_a_write(
    cluster: &TestCluster,
    (own, session): (&Gateway, &str),
    other: &Gateway,
    keys: &(String, String),
) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/s3/stalled.py");
    let mut put = Command::new("/usr/bin/python3")
        .args([script, &own.endpoint(), &keys.0, &keys.1, "blips"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let half = BufReader::new(put.stdout.take().unwrap()).lines().next();
    assert_eq!(half.unwrap().unwrap(), "half");
    let pending = |_: &TestCluster| problems(cluster, "blips").contains("stale_pending");
    cluster.wait_for("the write to be older than it should be", pending);
    let pid = own.child.as_ref().unwrap().id().to_string();
    let signal = |name: &str| assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    signal("-STOP");
    cluster.wait_for("the watch to be lost", |_| {
        let watchers = cluster.ok(&["rados", "-p", "default.rgw.control", "listwatchers", "notify.0"]);
        !watchers.split_whitespace().any(|word| word == session)
    });
    let folder = tempfile::tempdir().unwrap();
    let endpoint = other.endpoint();
    let client = Client { endpoint: &endpoint, access: &keys.0, secret: &keys.1, folder: folder.path() };
    client.ok("/usr/bin/aws", &["--endpoint-url", &endpoint, "s3api", "list-objects", "--bucket", "blips"]);
    cluster.run(&["bucket", "check", "--bucket", "blips", "--fix"]);
    signal("-CONT");
    assert_eq!(cluster.ok(&["osd", "blocklist", "ls"]).trim(), "");
    put.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(put.wait().unwrap().success(), "{}", own.log(cluster));
    becomes_sound(cluster, "blips");
}

#[test]
fn only_a_gateway_that_is_blocklisted_ends_and_may_come_back() {
    let (cluster, a, _b, keys) = served();
    // With the same rights as a gateway of radosgw.
    let keyring = cluster.folder().join("rgw.keyring");
    let keyring = keyring.to_str().unwrap();
    let caps = ["mon", "allow rw", "osd", "allow rwx"];
    cluster.ok(&[&["auth", "get-or-create", "client.rgw.a", "-o", keyring], &caps[..]].concat());
    let watchers = || -> BTreeSet<String> {
        let out = cluster.ok(&["rados", "-p", "default.rgw.control", "listwatchers", "notify.0"]);
        out.split_whitespace().filter(|word| word.starts_with("client.")).map(str::to_owned).collect()
    };
    cluster.wait_for("both gateways to watch", |_| watchers().len() == 2);
    let others = watchers();
    let mut own = Gateway::new();
    let lease = ["--rgw_gateway_lease_duration", "60"];
    own.args =
        ["-n", "client.rgw.a", "--keyring", keyring].iter().chain(&lease).map(ToString::to_string).collect();
    own.start(&cluster);
    cluster.wait_for("the gateway to watch", |_| watchers().len() > 2);
    let session = watchers().difference(&others).next().unwrap().clone();
    stands_still_in_the_middle_of_a_write(&cluster, (&own, &session), &a, &keys);
    cluster.wait_for("the gateway to watch again", |_| watchers().contains(&session));
    cluster.ok(&["osd", "blocklist", "add", &session]);
    let status = own.child.take().unwrap().wait().unwrap();
    let said = own.log(&cluster);
    assert!(!status.success() && said.contains("has blocklisted the gateway"), "{status}: {said}");
    own.start(&cluster);
    let endpoint = own.endpoint();
    let folder = tempfile::tempdir().unwrap();
    let client = Client { endpoint: &endpoint, access: &keys.0, secret: &keys.1, folder: folder.path() };
    client.awscli();
}

/// Kills OSDs in turn, and a gateway with each, until `done`. Returns how often.
fn kill_in_turn(cluster: &mut TestCluster, gateway: &mut Gateway, done: &AtomicBool) -> u32 {
    let log = cluster.folder().join("ops.log");
    gateway.args = vec!["--rgw_ops_log_file_path".to_owned(), log.display().to_string()];
    gateway.kill();
    gateway.start(cluster);
    // Waits until `more` further requests are answered, for at most `limit`.
    let answered = |more: usize, limit: Duration| {
        let lines = || std::fs::read_to_string(&log).unwrap_or_default().lines().count();
        let (goal, deadline) = (lines() + more, Instant::now() + limit);
        while lines() < goal && Instant::now() < deadline && !done.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let mut kills = 0;
    while !done.load(Ordering::Acquire) {
        let osd = 1 + kills as usize % 2;
        cluster.kill(Daemon::Osd(osd));
        answered(20, Duration::from_secs(2));
        gateway.kill();
        gateway.start(cluster);
        cluster.spawn(Daemon::Osd(osd));
        cluster.wait_healthy();
        // Programs wait longer after each failure. They must make progress between failures.
        answered(200, Duration::from_secs(5));
        kills += 1;
    }
    kills
}

#[test]
fn programs_work_while_daemons_are_killed() {
    let (mut cluster, mut a, _b, keys) = served();
    let folder = tempfile::tempdir().unwrap();
    let endpoint = a.endpoint();
    let client = Client { endpoint: &endpoint, access: &keys.0, secret: &keys.1, folder: folder.path() };
    let done = AtomicBool::new(false);
    let kills = std::thread::scope(|scope| {
        let killer = scope.spawn(|| kill_in_turn(&mut cluster, &mut a, &done));
        // Ends the killer even if the work fails.
        let worked = std::panic::catch_unwind(|| {
            let started = Instant::now();
            let done = |program: &str| println!("{program}: at {} s", started.elapsed().as_secs());
            client.awscli();
            done("awscli");
            client.rclone();
            done("rclone");
            client.s3cmd();
            done("s3cmd");
            client.restic();
            done("restic");
            s3_object_store::run_object_store(&client);
            done("object_store");
        });
        done.store(true, Ordering::Release);
        let kills = killer.join().unwrap();
        worked.map(|_| kills).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    println!("{kills} kills of an OSD and of the gateway");
    assert!(kills > 2, "{kills}");
    for bucket in s3_programs::BUCKETS {
        becomes_sound(&cluster, bucket);
    }
    let said = a.log(&cluster);
    assert!(!said.contains("panicked"), "{said}");
}
