//! Capabilities, keys and tickets with real processes and Debian's python3-rados on Nacre's `librados.so.2`.

use crate::librados;
use crate::support::{Daemon, TEST_TIMEOUT, TestCluster};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PYTHON: &str = "/usr/bin/python3";

fn recordings() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../types/tests/recordings")
}

fn read(folder: &Path, name: &str) -> Value {
    let path = folder.join(format!("{name}.json"));
    serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap()
}

/// Records Nacre's answers with the script that recorded those of Ceph.
#[test]
fn capabilities_bind_clients_as_on_ceph() {
    // All take a minute or two, because a client that may not read the maps waits for them in vain; types::caps compares all
    // decisions with the recordings each time.
    let every: usize =
        if std::env::var("NEXTEST_PROFILE").is_ok_and(|profile| profile == "long") { 1 } else { 7 };
    let cluster = TestCluster::start_with(
        1,
        "memstore",
        "[global]\nosd_pool_default_size = 1\nmon_allow_pool_size_one = true\nmon_allow_pool_delete = true",
    );
    for pool in ["x", "y"] {
        cluster.create_pool(pool, 4, 1, 1);
    }
    cluster.ok(&["osd", "pool", "application", "enable", "x", "rgw", "--yes-i-really-mean-it"]);
    cluster.ok(&["osd", "pool", "application", "set", "x", "rgw", "zone", "a"]);
    let script = recordings().join("record-caps.py").into_os_string().into_string().unwrap();
    let out = cluster.folder().join("recorded");
    fs::create_dir(&out).unwrap();
    let conf = cluster.conf().into_os_string().into_string().unwrap();
    librados::ok(&cluster, PYTHON, &[&script, &conf, out.to_str().unwrap(), &every.to_string()]);

    assert_eq!(read(&out, "caps-parse"), read(&recordings(), "caps-parse"));

    let rows = |value: &Value, key: &str| value[key].as_array().unwrap().clone();
    // Classes that do not exist are refused with another error: here all classes may be loaded.
    let without_unknown = |row: &Value| {
        let mut row = row.clone();
        row[4].as_array_mut().unwrap().retain(|op| op != "nosuch.method");
        row
    };
    let theirs: Vec<Value> =
        rows(&read(&recordings(), "caps-osd"), "allowed").iter().map(without_unknown).collect();
    let ours = rows(&read(&out, "caps-osd"), "allowed");
    // Six places per text.
    assert_eq!(ours.len(), (theirs.len() / 6).div_ceil(every) * 6);
    for row in ours.iter().map(without_unknown) {
        let same = theirs.iter().find(|other| (0..4).all(|at| other[at] == row[at]));
        assert_eq!(Some(&row), same);
    }

    let theirs = read(&recordings(), "caps-mon");
    let commands = rows(&theirs, "commands");
    let known: Vec<usize> = (0..commands.len())
        .filter(|at| {
            let table = nacre_types::command::mon_commands();
            table.find(commands[*at]["prefix"].as_str().unwrap()).is_some()
        })
        .collect();
    let allowed = |row: &Value| -> Option<Vec<usize>> {
        let all = row[1].as_array()?.iter().map(|at| at.as_u64().unwrap() as usize);
        Some(all.filter(|at| known.contains(at)).collect())
    };
    let theirs = rows(&theirs, "allowed");
    let ours = rows(&read(&out, "caps-mon"), "allowed");
    assert_eq!(ours.len(), theirs.len().div_ceil(every));
    assert!(
        ours.iter().filter_map(allowed).count() > ours.len() / 3,
        "hardly anybody could connect: {ours:?}"
    );
    for row in ours {
        let same = theirs.iter().find(|other| other[0] == row[0]).unwrap();
        // A client that may not read the OSD map can't connect here.
        let Some(ours) = allowed(&row) else { continue };
        assert_eq!(Some(ours), allowed(same), "{}", row[0]);
    }

    let theirs = rows(&read(&recordings(), "caps-tell"), "outcomes");
    let ours = rows(&read(&out, "caps-tell"), "outcomes");
    assert_eq!(ours.len(), theirs.len().div_ceil(every));
    for row in ours {
        // Ceph ignores the network there.
        if row[0] != "allow * network 10.0.0.0/8" {
            assert!(theirs.contains(&row), "{row}");
        }
    }
}

/// Writes and reads in a loop as one client. Prints a line each time that the result changes.
const LOOP: &str = r#"
import os, rados, sys, time
c = rados.Rados(conffile="", rados_id=sys.argv[1], conf={"keyring": sys.argv[2], "rados_osd_op_timeout": "2"})
c.connect()
i = c.open_ioctx("x")
said, count = None, 0
while not os.path.exists(sys.argv[3]):
    try:
        i.write_full(sys.argv[1], b"%d" % count)
        assert i.read(sys.argv[1]) == b"%d" % count
        outcome = "OK"
    except rados.Error as e:
        outcome = type(e).__name__
    count += 1
    if outcome != said or count % 50 == 0:
        said = outcome
        print(outcome, count, flush=True)
    time.sleep(0.01)
os._exit(0)
"#;

struct Worker {
    child: Child,
    output: PathBuf,
}

impl Worker {
    fn start(cluster: &TestCluster, id: &str) -> Worker {
        let output = cluster.folder().join(format!("{id}.said"));
        let child = Command::new(PYTHON)
            .args(["-c", LOOP, id])
            .arg(cluster.folder().join(format!("{id}.keyring")))
            .arg(cluster.folder().join("stop"))
            .env("LD_LIBRARY_PATH", librados::library_folder(cluster.folder()))
            .env("CEPH_CONF", cluster.conf())
            .env_remove("CEPH_ARGS")
            .stdin(Stdio::null())
            .stdout(fs::File::create(&output).unwrap())
            .spawn()
            .unwrap();
        Worker { child, output }
    }

    fn said(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.output).unwrap();
        text.lines().map(|line| line.split(' ').next().unwrap_or_default().to_owned()).collect()
    }

    fn wait_for(&self, outcome: &str) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        while self.said().last().map(String::as_str) != Some(outcome) {
            assert!(Instant::now() < deadline, "no {outcome}: {:?}", self.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for `lines` more successes, without any other result.
    fn wait_for_progress(&self, lines: usize) {
        let before = self.said().len();
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            let said = self.said();
            assert!(said[before..].iter().all(|outcome| outcome == "OK"), "{said:?}");
            if said.len() >= before + lines {
                return;
            }
            assert!(Instant::now() < deadline, "no progress: {said:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended on its own.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn write_private(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    let temporary = path.with_extension("new");
    fs::write(&temporary, text).unwrap();
    fs::set_permissions(&temporary, fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(&temporary, path).unwrap();
}

#[test]
fn keys_and_tickets_change_while_io_goes_on() {
    let conf = "[global]\nauth_service_ticket_ttl = 2\nauth_clock_skew = 1\nosd_pool_default_size = 1\nmon_allow_pool_size_one = true";
    let cluster = TestCluster::start_with(1, "memstore", conf);
    cluster.create_pool("x", 4, 1, 1);
    let keyring = |id: &str| cluster.folder().join(format!("{id}.keyring"));
    for id in ["steady", "changed", "removed"] {
        let entity = format!("client.{id}");
        let text =
            cluster.ok(&["auth", "get-or-create", &entity, "mon", "allow r", "osd", "allow rw pool=x"]);
        write_private(&keyring(id), &text);
    }
    let steady = Worker::start(&cluster, "steady");
    let changed = Worker::start(&cluster, "changed");
    let removed = Worker::start(&cluster, "removed");
    for worker in [&steady, &changed, &removed] {
        worker.wait_for("OK");
    }
    let started = Instant::now();

    // The client's own key, whose file is written later: the ticket is valid until then.
    let text = cluster.ok(&["auth", "rotate", "client.steady"]);
    write_private(&keyring("steady"), &text);
    // The OSD's.
    let text = cluster.ok(&["auth", "rotate", "osd.0"]);
    write_private(&cluster.folder().join("osd/0/keyring"), &text);

    // Revoked rights end with the ticket; granted rights are in the next one.
    cluster.ok(&["auth", "caps", "client.changed", "mon", "allow r", "osd", "allow r pool=x"]);
    cluster.ok(&["auth", "rm", "client.removed"]);
    changed.wait_for("PermissionError");
    removed.wait_for("TimedOut");
    cluster.ok(&["auth", "caps", "client.changed", "mon", "allow r", "osd", "allow rw pool=x"]);
    changed.wait_for("OK");

    // Several generations of service keys later.
    while started.elapsed() < Duration::from_secs(12) {
        steady.wait_for_progress(1);
    }
    assert!(steady.said().iter().all(|outcome| outcome == "OK"), "{:?}", steady.said());
    assert_eq!(removed.said().last().map(String::as_str), Some("TimedOut"));
    fs::write(cluster.folder().join("stop"), "").unwrap();
    let log = cluster.log_of(Daemon::Osd(0));
    assert!(!log.contains("panicked"), "{log}");
}
