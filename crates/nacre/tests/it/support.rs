//! A cluster of separate `nacre` processes in a temporary folder: one mon and N OSDs that a test may kill, wipe and restart. The
//! processes end when the value is dropped.

pub(crate) use crate::servers::ports::free_ports;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// Maximum time for a cluster to reach a state without intervention.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// Identifies a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Daemon {
    Mon,
    Osd(usize),
}

pub(crate) struct TestCluster {
    folder: tempfile::TempDir,
    mon: Option<Child>,
    osds: Vec<Option<Child>>,
}

impl TestCluster {
    /// Creates a cluster of `osds` OSDs on `objectstore` with additional lines for ceph.conf, and starts all daemons.
    pub(crate) fn start_with(osds: usize, objectstore: &str, conf: &str) -> TestCluster {
        Self::start_with_options(osds, objectstore, &[], conf)
    }

    /// Like [`TestCluster::start_with`], with options for the creation of the cluster.
    pub(crate) fn start_with_options(
        osds: usize,
        objectstore: &str,
        options: &[&str],
        conf: &str,
    ) -> TestCluster {
        let folder = tempfile::Builder::new().prefix("nacre-it-").tempdir().unwrap();
        let listen = format!("127.0.0.1:{}", free_port());
        let made = Command::new(nacre())
            .args(["serve", "--mkfs-only", "--listen", &listen, "--objectstore", objectstore])
            .args(["-o", "exporter_http_port=0"])
            .args(options)
            .args(["--osds", &osds.to_string(), "--data"])
            .arg(folder.path())
            .output()
            .unwrap();
        assert!(made.status.success(), "mkfs: {}", String::from_utf8_lossy(&made.stderr));
        let path = folder.path().join("ceph.conf");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{text}\n{conf}\n")).unwrap();
        let mut cluster = TestCluster { folder, mon: None, osds: (0..osds).map(|_| None).collect() };
        cluster.spawn(Daemon::Mon);
        for osd in 0..osds {
            cluster.spawn(Daemon::Osd(osd));
        }
        cluster.wait_for("all OSDs up", |c| c.up_osds() == osds);
        cluster
    }

    pub(crate) fn conf(&self) -> PathBuf {
        self.folder.path().join("ceph.conf")
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn slot(&mut self, daemon: Daemon) -> &mut Option<Child> {
        match daemon {
            Daemon::Mon => &mut self.mon,
            Daemon::Osd(osd) => &mut self.osds[osd],
        }
    }

    /// Starts a daemon's process. Its output is written to its own file.
    pub(crate) fn spawn(&mut self, daemon: Daemon) {
        self.spawn_with(daemon, &[]);
    }

    /// The same with additional environment variables.
    pub(crate) fn spawn_with(&mut self, daemon: Daemon, environment: &[(&str, &Path)]) {
        let (args, name) = match daemon {
            Daemon::Mon => (vec!["mon".to_owned()], "mon".to_owned()),
            Daemon::Osd(osd) => (vec!["osd".into(), "--id".into(), osd.to_string()], format!("osd.{osd}")),
        };
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.path().join(format!("{name}.out")))
            .unwrap();
        let child = Command::new(nacre())
            .args(args)
            .arg("-c")
            .arg(self.conf())
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let old = self.slot(daemon).replace(child);
        assert!(old.is_none(), "{daemon:?} runs already");
    }

    /// The process id of a running OSD.
    pub(crate) fn pid(&self, osd: usize) -> u32 {
        self.osds[osd].as_ref().expect("a running daemon").id()
    }

    /// kill -9, and waits until the process has ended.
    pub(crate) fn kill(&mut self, daemon: Daemon) {
        let mut child = self.slot(daemon).take().expect("a running daemon");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Waits until a daemon ends on its own.
    pub(crate) fn wait_ended(&mut self, daemon: Daemon) -> ExitStatus {
        let deadline = Instant::now() + TEST_TIMEOUT;
        let mut child = self.slot(daemon).take().expect("a running daemon");
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status;
            }
            if Instant::now() > deadline {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("{daemon:?} did not end: {}", self.log_of(daemon));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// SIGHUP.
    pub(crate) fn send_sighup(&self, daemon: Daemon) {
        let child = match daemon {
            Daemon::Mon => &self.mon,
            Daemon::Osd(osd) => &self.osds[osd],
        };
        signal(child.as_ref().expect("a running daemon"), "HUP");
    }

    /// SIGTERM, and waits for an orderly end.
    pub(crate) fn terminate(&mut self, daemon: Daemon) {
        signal(self.slot(daemon).as_ref().expect("a running daemon"), "TERM");
        let status = self.wait_ended(daemon);
        assert!(status.success(), "{daemon:?} ended with {status}: {}", self.log_of(daemon));
    }

    /// Empties a stopped OSD's disk: it returns as a new store with the old id and key.
    pub(crate) fn wipe(&mut self, osd: usize) {
        assert!(self.osds[osd].is_none(), "stop osd.{osd} before wiping it");
        let made = Command::new(nacre())
            .args(["osd", "--id", &osd.to_string(), "--mkfs", "--force", "-c"])
            .arg(self.conf())
            .output()
            .unwrap();
        assert!(made.status.success(), "mkfs: {}", String::from_utf8_lossy(&made.stderr));
    }

    /// The last lines of a daemon's output.
    pub(crate) fn log_of(&self, daemon: Daemon) -> String {
        let name = match daemon {
            Daemon::Mon => "mon.out".to_owned(),
            Daemon::Osd(osd) => format!("osd.{osd}.out"),
        };
        let text = fs::read_to_string(self.folder.path().join(name)).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    /// Runs the binary with `-c CONF` and returns its output.
    pub(crate) fn run(&self, args: &[&str]) -> Output {
        Command::new(nacre()).args(args).arg("-c").arg(self.conf()).stdin(Stdio::null()).output().unwrap()
    }

    /// Runs the binary, which must succeed. Returns its standard output.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let out = self.run(args);
        let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(out.status.success(), "nacre {}: {}\n{stdout}{stderr}", args.join(" "), out.status);
        stdout.into_owned()
    }

    fn up_osds(&self) -> usize {
        let out = self.run(&["ceph", "osd", "stat", "--format", "json"]);
        let value: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap_or_default();
        value["num_up_osds"].as_u64().unwrap_or(0) as usize
    }

    /// Polls until `reached` holds.
    pub(crate) fn wait_for(&self, what: &str, reached: impl Fn(&TestCluster) -> bool) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        while !reached(self) {
            if Instant::now() > deadline {
                let health = self.run(&["ceph", "health", "detail"]);
                let logs: Vec<_> = std::iter::once(Daemon::Mon)
                    .chain((0..self.osds.len()).map(Daemon::Osd))
                    .map(|d| format!("--- {d:?}\n{}", self.log_of(d)))
                    .collect();
                let health = String::from_utf8_lossy(&health.stdout).into_owned();
                panic!("never reached: {what}\n{health}\n{}\n{}", self.unclean_pgs(), logs.join("\n"));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// The states of PGs that are not clean, and which of them hold slots.
    fn unclean_pgs(&self) -> String {
        let pgs = self.run(&["ceph", "pg", "ls", "--format", "json"]);
        let pgs: serde_json::Value = serde_json::from_slice(&pgs.stdout).unwrap_or_default();
        let pgs = pgs["pg_stats"].as_array().cloned().unwrap_or_default();
        let unclean =
            pgs.iter().filter(|pg| pg["state"] != "active+clean").filter_map(|pg| pg["pgid"].as_str());
        let query = |pg: &str| self.run(&["ceph", "pg", pg, "query"]);
        let slots =
            |osd: usize| self.run(&["ceph", "tell", &format!("osd.{osd}"), "dump_recovery_reservations"]);
        let answers = unclean.take(20).map(query).chain((0..self.osds.len()).map(slots));
        answers.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).collect()
    }

    /// Waits until every PG is active+clean and health is HEALTH_OK.
    pub(crate) fn wait_healthy(&self) {
        self.wait_for("HEALTH_OK with all PGs active+clean", |c| {
            let out = c.run(&["ceph", "status", "--format", "json"]);
            let Ok(status) = serde_json::from_slice::<serde_json::Value>(&out.stdout) else { return false };
            let states = status["pgmap"]["pgs_by_state"].as_array().cloned().unwrap_or_default();
            let clean = states.iter().all(|s| s["state_name"] == "active+clean");
            status["health"]["status"] == "HEALTH_OK" && clean
        });
    }

    /// Creates a replicated pool and waits until it is usable.
    pub(crate) fn create_pool(&self, name: &str, pgs: u32, size: u32, min_size: u32) {
        self.ok(&["ceph", "osd", "pool", "create", name, &pgs.to_string(), &pgs.to_string(), "replicated"]);
        let sure = "--yes-i-really-mean-it";
        self.ok(&["ceph", "osd", "pool", "set", name, "size", &size.to_string(), sure]);
        self.ok(&["ceph", "osd", "pool", "set", name, "min_size", &min_size.to_string()]);
        self.ok(&["ceph", "osd", "pool", "application", "enable", name, "test"]);
    }
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        for child in self.osds.iter_mut().chain([&mut self.mon]).filter_map(Option::as_mut) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The binary under test: the one that Cargo built with the tests, or the one in `NACRE_TEST_BINARY` (`make test` also runs the
/// tests of programs against the product).
pub(crate) fn nacre() -> &'static str {
    static PATH: LazyLock<String> = LazyLock::new(|| {
        std::env::var("NACRE_TEST_BINARY").unwrap_or_else(|_| env!("CARGO_BIN_EXE_nacre").to_owned())
    });
    &PATH
}

/// Sends a signal by name to a process that the test started.
pub(crate) fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// A free port above 40000 that no other test uses while this process runs.
pub(crate) fn free_port() -> u16 {
    free_ports(1)
}

/// A served cluster. Killed when dropped.
pub(crate) struct Serve {
    child: Child,
}

impl Serve {
    /// Starts `nacre serve` and waits until it reports that it is ready. Returns how long that took.
    pub(crate) fn start(folder: &Path, args: &[&str]) -> (Serve, Duration) {
        let began = Instant::now();
        let log = fs::File::options().create(true).append(true).open(folder.join("../serve.err")).unwrap();
        let mut child = Command::new(nacre())
            .args(["serve", "--data"])
            .arg(folder)
            .args(args)
            .args(if args.contains(&"--s3") { &[][..] } else { &["--s3", "none"] })
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let serve = Serve { child };
        let mut lines = stdout.lines();
        let ready = lines.find_map(|line| line.ok().filter(|line| line.starts_with("cluster is ready")));
        let errors = || fs::read_to_string(folder.join("../serve.err")).unwrap_or_default();
        assert!(ready.is_some(), "serve ended before it was ready: {}", errors());
        // The rest of its output must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        (serve, began.elapsed())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn interrupt(mut self) {
        signal(&self.child, "INT");
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                assert!(status.success(), "serve ended with {status}");
                return;
            }
            assert!(Instant::now() < deadline, "serve did not stop at SIGINT");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
