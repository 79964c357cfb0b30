//! Real etcd members on this host.

#[allow(clippy::duplicate_mod, reason = "the tests of programs have it for other servers, too")]
#[path = "../../../push/tests/it/servers/ports.rs"]
mod ports;

use nacre_mapstore::MapStore;
use nacre_monitor::{EtcdAccess, EtcdStore};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Maximum wait for a member or a leader.
const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster of etcd. Its processes end with it.
pub(crate) struct EtcdCluster {
    dir: tempfile::TempDir,
    members: Vec<Member>,
    /// Further arguments of each member.
    args: Vec<String>,
    scheme: &'static str,
    /// Arguments of `etcdctl`.
    ctl_args: Vec<String>,
}

struct Member {
    name: String,
    client_port: u16,
    peer_port: u16,
    process: Option<Child>,
}

impl Member {
    fn new(name: String) -> Member {
        let (client_port, peer_port) = free_ports();
        Member { name, client_port, peer_port, process: None }
    }
}

/// Two ports that no other test is given, outside the range from which the system gives ports to connections: a member that was
/// killed finds them free when it starts again.
fn free_ports() -> (u16, u16) {
    let first = ports::free_ports(2);
    (first, first + 1)
}

impl EtcdCluster {
    /// Starts a cluster with arguments for each member, and waits until it has a leader.
    pub(crate) fn start(size: usize, args: &[&str]) -> EtcdCluster {
        EtcdCluster::start_with(size, args, "http", &[])
    }

    /// Likewise, with TLS for clients: `scheme` is `https`, and `ctl_args` are the arguments of `etcdctl` that it takes.
    pub(crate) fn start_with(
        size: usize,
        args: &[&str],
        scheme: &'static str,
        ctl_args: &[&str],
    ) -> EtcdCluster {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let mut cluster = EtcdCluster {
            dir: tempfile::tempdir().unwrap(),
            members: (0..size).map(|at| Member::new(format!("m{at}"))).collect(),
            args: owned(args),
            scheme,
            ctl_args: owned(ctl_args),
        };
        for at in 0..size {
            cluster.start_member(at, "new");
        }
        cluster.wait_for_leader();
        cluster
    }

    fn data_dir(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn start_member(&mut self, at: usize, state: &str) {
        let initial: Vec<String> =
            self.members.iter().map(|m| format!("{}=http://127.0.0.1:{}", m.name, m.peer_port)).collect();
        let member = &self.members[at];
        let client = format!("{}://127.0.0.1:{}", self.scheme, member.client_port);
        let peer = format!("http://127.0.0.1:{}", member.peer_port);
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.path().join(format!("{}.log", member.name)))
            .unwrap();
        let process = Command::new("etcd")
            .args(["--name", &member.name])
            .arg("--data-dir")
            .arg(self.data_dir(&member.name))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &initial.join(","), "--initial-cluster-state", state])
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("etcd is installed (etcd-server)");
        self.members[at].process = Some(process);
    }

    /// The option `mon_map_store` for this cluster and a prefix of keys.
    pub(crate) fn url(&self, prefix: &str) -> String {
        let hosts: Vec<String> =
            self.members.iter().map(|member| format!("127.0.0.1:{}", member.client_port)).collect();
        format!("etcd://{}/{prefix}", hosts.join(","))
    }

    /// A store of this cluster. Used on the caller's runtime.
    pub(crate) fn store(&self, prefix: &str) -> Box<dyn MapStore> {
        Box::new(EtcdStore::new(self.url(prefix).parse().unwrap(), EtcdAccess::default(), 2 << 30))
    }

    /// Runs `etcdctl` on one member, and returns what it prints.
    pub(crate) fn ctl(&self, at: usize, args: &[&str]) -> Result<String, String> {
        let endpoint = format!("{}://127.0.0.1:{}", self.scheme, self.members[at].client_port);
        let output = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &endpoint, "--command-timeout", "2s", "--dial-timeout", "1s"])
            .args(&self.ctl_args)
            .args(args)
            .output()
            .expect("etcdctl is installed (etcd-client)");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// The numbers of the leader and of its term, as a running member knows them.
    fn leader(&self) -> Option<(usize, u64)> {
        let status = |at: usize| -> Option<(u64, u64, u64)> {
            let json = self.ctl(at, &["endpoint", "status", "--write-out", "json"]).ok()?;
            let json: serde_json::Value = serde_json::from_str(&json).ok()?;
            let status = &json[0]["Status"];
            let id = status["header"]["member_id"].as_u64()?;
            Some((id, status["leader"].as_u64()?, status["raftTerm"].as_u64()?))
        };
        let running = (0..self.members.len()).filter(|at| self.members[*at].process.is_some());
        running
            .filter_map(|at| Some((at, status(at)?)))
            .find_map(|(at, (id, leader, term))| (id == leader).then_some((at, term)))
    }

    /// Waits until there is a leader, and returns its number.
    pub(crate) fn wait_for_leader(&self) -> usize {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some((at, _)) = self.leader() {
                return at;
            }
            assert!(Instant::now() < deadline, "etcd has no leader; its logs are in {:?}", self.dir.path());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Makes another member the leader. Returns the numbers of both.
    pub(crate) fn move_leader(&self) -> (usize, usize) {
        let old = self.wait_for_leader();
        let new = (old + 1) % self.members.len();
        let json = self.ctl(new, &["endpoint", "status", "--write-out", "json"]).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let id = json[0]["Status"]["header"]["member_id"].as_u64().unwrap();
        self.ctl(old, &["move-leader", &format!("{id:x}")]).unwrap();
        (old, new)
    }

    /// Ends a member's process at once.
    pub(crate) fn kill(&mut self, at: usize) {
        let mut process = self.members[at].process.take().expect("it runs");
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Starts a member again.
    pub(crate) fn restart(&mut self, at: usize) {
        self.start_member(at, "existing");
    }

    /// Sends a signal to a member: STOP or CONT.
    pub(crate) fn signal(&self, at: usize, signal: &str) {
        let pid = self.members[at].process.as_ref().expect("it runs").id().to_string();
        assert!(Command::new("kill").args([&format!("-{signal}"), &pid]).status().unwrap().success());
    }

    /// Replaces a member that was killed by a new one without data, at the same address.
    pub(crate) fn replace(&mut self, at: usize) {
        let leader = self.wait_for_leader();
        let list = self.ctl(leader, &["member", "list", "--write-out", "json"]).unwrap();
        let list: serde_json::Value = serde_json::from_str(&list).unwrap();
        let name = self.members[at].name.clone();
        let member = list["members"].as_array().unwrap().iter().find(|m| m["name"] == name.as_str()).unwrap();
        let id = member["ID"].as_u64().unwrap();
        self.ctl(leader, &["member", "remove", &format!("{id:x}")]).unwrap();
        std::fs::remove_dir_all(self.data_dir(&name)).unwrap();
        self.members[at].name = format!("{name}b");
        let peer = format!("--peer-urls=http://127.0.0.1:{}", self.members[at].peer_port);
        let name = self.members[at].name.clone();
        // A leader that has just lost a member may refuse for a moment.
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = self.ctl(leader, &["member", "add", &name, &peer]) {
            assert!(Instant::now() < deadline, "{error}");
            std::thread::sleep(Duration::from_millis(500));
        }
        self.start_member(at, "existing");
    }

    /// The size of the database of a member in bytes.
    pub(crate) fn db_bytes(&self, at: usize) -> u64 {
        let path: &Path = &self.data_dir(&self.members[at].name);
        std::fs::metadata(path.join("member/snap/db")).unwrap().len()
    }
}

impl Drop for EtcdCluster {
    fn drop(&mut self) {
        for member in &mut self.members {
            if let Some(mut process) = member.process.take() {
                // It may be stopped, or have ended on its own.
                let _ = process.kill();
                let _ = process.wait();
            }
        }
    }
}
