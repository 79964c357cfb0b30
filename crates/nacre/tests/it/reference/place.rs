//! The environment of lines: a cluster, a working folder, and Ceph's names for the binary on PATH.

use super::table;
use crate::support::{Serve, TEST_TIMEOUT, free_port, nacre};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

const NAMES: [&str; 8] = [
    "ceph",
    "rados",
    "radosgw-admin",
    "crushtool",
    "osdmaptool",
    "ceph-kvstore-tool",
    "ceph-bluestore-tool",
    "nacre-dplcompat",
];
/// The end of lines that require consent.
const CONSENT: &str = "--yes-i-really-mean-it";
/// The other programs that lines call. PATH has no more, so that no program of Ceph's runs instead of Nacre's.
const OTHERS: [&str; 8] = ["aws", "sh", "awk", "cut", "grep", "head", "sort", "xargs"];

pub(super) struct ReferenceCluster {
    home: tempfile::TempDir,
    pub(super) listen: String,
    /// Where the cluster's data is.
    data: PathBuf,
    environment: Vec<(&'static str, String)>,
    /// Text in lines, and its replacement.
    substitutions: Vec<(&'static str, String)>,
    _serve: Option<Serve>,
    /// The process that vstart.sh started.
    vstart: Option<u32>,
    /// The line that started the cluster, and its output.
    started: Option<(String, String)>,
}

impl ReferenceCluster {
    fn new(data: &str) -> ReferenceCluster {
        let home = tempfile::Builder::new().prefix("nacre.reference.").tempdir().unwrap();
        let data = home.path().join(data);
        let path = home.path().join("path");
        for folder in [&data, &path, &home.path().join("build")] {
            fs::create_dir_all(folder).unwrap();
        }
        for name in NAMES {
            symlink(nacre(), path.join(name)).unwrap();
        }
        for name in OTHERS {
            // Debian's program, whatever else has the name.
            let real = ["/usr/bin", "/bin"].map(|folder| Path::new(folder).join(name));
            symlink(real.iter().find(|path| path.exists()).unwrap(), path.join(name)).unwrap();
        }
        let shown = data.display();
        let substitutions = vec![
            ("/ceph.conf", format!("{shown}/ceph.conf")),
            ("/var/lib/ceph/osd", format!("{shown}/osd")),
            ("<osd-data-path>", format!("{shown}/stopped-osd")),
            ("{cachepool}", "cachepool".to_owned()),
            ("{0.0..1.0}", "0.4".to_owned()),
            ("{#objects}", "1000".to_owned()),
            ("{#seconds}", "600".to_owned()),
        ];
        let environment = vec![
            ("PATH", path.display().to_string()),
            ("HOME", home.path().display().to_string()),
            ("CEPH_CONF", format!("{shown}/ceph.conf")),
        ];
        let listen = format!("127.0.0.1:{}", free_port());
        ReferenceCluster {
            home,
            listen,
            data,
            environment,
            substitutions,
            _serve: None,
            vstart: None,
            started: None,
        }
    }

    /// A cluster of three OSDs in memory, in the folder `data` next to the working folder.
    pub(super) fn start() -> ReferenceCluster {
        let mut place = ReferenceCluster::new("data");
        let options = [
            "exporter_http_port=0",
            "mon_max_pg_per_osd=32768",
            "osd_pool_default_pg_num=8",
            "osd_pool_default_pg_autoscale_mode=off",
        ];
        let mut args = vec!["--listen", place.listen.as_str(), "--objectstore", "memstore", "--osds", "3"];
        options.iter().for_each(|option| args.extend(["-o", option]));
        let (serve, _) = Serve::start(&place.data, &args);
        place._serve = Some(serve);
        // A machine whose disks are mounted at the folders of the OSDs.
        place.script("df", &format!("echo /dev/sdb 1 1 1 1% {}/osd/ceph-0", place.data.display()));
        symlink(place.conf(), place.work().join("ceph.conf")).unwrap();
        place
    }

    /// The cluster that a call of vstart.sh starts in the working folder, with S3 over TLS. The ports are free ones, the devices
    /// files.
    pub(super) fn start_by(call: &str) -> ReferenceCluster {
        let mut place = ReferenceCluster::new("build");
        let port = free_port();
        place.script("sudo", "exec /usr/bin/env \"$@\"");
        let home = place.home.path().to_owned();
        fs::create_dir_all(home.join("src")).unwrap();
        symlink(nacre(), home.join("src/vstart.sh")).unwrap();
        fs::create_dir_all(home.join("dev")).unwrap();
        for device in call.split(['"', ',']).filter_map(|word| word.strip_prefix("/dev/")) {
            fs::File::create(home.join("dev").join(device)).unwrap().set_len(1 << 30).unwrap();
        }
        place.substitutions.extend([
            ("https://:8000", format!("https://127.0.0.1:{port}")),
            ("client.rgw.8000", format!("client.rgw.{port}")),
            ("/dev/", format!("{}/dev/", home.display())),
            ("kafka://", "kafka://127.0.0.1:9092".to_owned()),
        ]);
        let certificate = place.certificate();
        let mon = place.listen.rsplit_once(':').unwrap().1.to_owned();
        place.environment.extend([
            ("CEPH_RGW_PORT", format!("{port}s")),
            ("CEPH_PORT", mon),
            ("AWS_CA_BUNDLE", certificate.display().to_string()),
            ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
        ]);
        let said = place.ok(&place.substituted(call));
        let pid = fs::read_to_string(place.work().join("vstart.pid")).unwrap();
        place.vstart = Some(pid.trim().parse().unwrap());
        let user = place.json("radosgw-admin user info --uid admin");
        let key = |name: &str| user["keys"][0][name].as_str().unwrap().to_owned();
        let keys = [("AWS_ACCESS_KEY_ID", key("access_key")), ("AWS_SECRET_ACCESS_KEY", key("secret_key"))];
        place.environment.extend(keys);
        place.started = Some((call.to_owned(), said));
        place
    }

    /// Creates a self-signed certificate for the gateway. Returns the file that clients need to trust it.
    fn certificate(&self) -> PathBuf {
        let (folder, name) = (self.work(), "certificate.pem");
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"])
            .args(["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "server.pem", "-out", name])
            .current_dir(&folder)
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        let key = fs::read(folder.join("server.pem")).unwrap();
        let certificate = fs::read(folder.join(name)).unwrap();
        fs::write(folder.join("server.pem"), [key, certificate].concat()).unwrap();
        folder.join(name)
    }

    /// Puts a shell script on PATH.
    fn script(&self, name: &str, text: &str) {
        let path = self.home.path().join("path").join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// The folder with everything.
    pub(super) fn home(&self) -> &Path {
        self.home.path()
    }

    /// The working folder.
    pub(super) fn work(&self) -> PathBuf {
        self.home.path().join("build")
    }

    pub(super) fn conf(&self) -> PathBuf {
        self.data.join("ceph.conf")
    }

    /// Runs a line in a shell.
    pub(super) fn run(&self, line: &str) -> Output {
        Command::new("/bin/sh")
            .args(["-c", line])
            .current_dir(self.work())
            .env_clear()
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// Runs a line that must succeed. Returns its output.
    pub(super) fn ok(&self, line: &str) -> String {
        let out = self.run(line);
        assert!(out.status.success(), "{line}: {}: {}", out.status, String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    pub(super) fn json(&self, line: &str) -> Value {
        let text = self.ok(&format!("{line} --format json"));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{line}: {error}: {text}"))
    }

    /// A line with this cluster's paths, hosts and ports, and with values instead of the documents' placeholders.
    pub(super) fn substituted(&self, line: &str) -> String {
        let each = |line: String, (from, to): &(&str, String)| line.replace(from, to);
        self.substitutions.iter().fold(line.to_owned(), each)
    }

    /// Runs the table's lines of a document: those that work are checked with their contracts. Returns the pending lines that
    /// work now.
    pub(super) fn run_lines(&self, document: &str, contracts: &[Contract]) -> Vec<String> {
        let mut began_to_work = Vec::new();
        for line in table::lines().into_iter().filter(|line| line.document == document) {
            let contract = contracts.iter().find(|contract| contract.line == line.text);
            let text = self.substituted(&line.text);
            match line.verdict {
                table::Verdict::Works => {
                    let contract = contract.expect("a test finds lines without a check");
                    (contract.before)(self);
                    let output = match &self.started {
                        Some((call, said)) if *call == line.text => said.clone(),
                        _ => self.ok(&text),
                    };
                    (contract.after)(self, &output);
                }
                table::Verdict::Consent => {
                    let contract = contract.expect("a test finds lines without a check");
                    (contract.before)(self);
                    let refused = self.run(&text);
                    let said = String::from_utf8_lossy(&refused.stderr);
                    assert!(!refused.status.success() && said.contains(CONSENT), "{text}: {refused:?}");
                    let output = self.ok(&format!("{text} {CONSENT}"));
                    (contract.after)(self, &output);
                }
                table::Verdict::Pending => {
                    contract.inspect(|contract| (contract.before)(self));
                    if self.run(&text).status.success() {
                        began_to_work.push(line.text);
                    }
                }
                _ => {}
            }
        }
        began_to_work
    }
}

impl Drop for ReferenceCluster {
    fn drop(&mut self) {
        let Some(pid) = self.vstart else { return };
        let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
        // Its folder is removed next.
        let deadline = Instant::now() + TEST_TIMEOUT;
        while Path::new(&format!("/proc/{pid}/exe")).exists() && Instant::now() < deadline {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

/// The preconditions and postconditions of a line.
pub(super) struct Contract {
    pub(super) line: &'static str,
    pub(super) before: fn(&ReferenceCluster),
    pub(super) after: fn(&ReferenceCluster, &str),
}

pub(super) fn nothing(_: &ReferenceCluster) {}
