//! The Debian packages and the tarball, on a minimal Debian with systemd: the steps of a new user.

mod machine;

use crate::support::nacre;
use machine::Machine;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const UNITS: [&str; 5] =
    ["nacre.target", "nacre.service", "nacre-mon@.service", "nacre-osd@.service", "nacre-rgw@.service"];

/// Runs `scripts/package KIND` on the binaries under test. Returns the created files.
fn package(kind: &str, version: Option<&str>, out: &Path) -> Vec<PathBuf> {
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/package"));
    command.arg(kind).arg(out).env("NACRE", nacre()).env("LIBRADOS", crate::librados::librados_path());
    // Compression takes longer than everything else.
    command.env("DPKG_DEB_COMPRESSOR_TYPE", "none").env_remove("VERSION");
    command.envs(version.map(|version| ("VERSION", version)));
    let made = command.output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    String::from_utf8(made.stdout).unwrap().lines().map(PathBuf::from).collect()
}

/// Copies the files to the machine's `/root`. Returns their names.
fn copy_in(machine: &Machine, files: &[PathBuf]) -> String {
    files.iter().for_each(|file| machine.copy_in(file));
    let names = files.iter().map(|file| format!(" ./{}", file.file_name().unwrap().to_str().unwrap()));
    names.collect()
}

fn install(machine: &Machine, debs: &str) -> String {
    machine.ok(&format!("apt-get install --no-install-recommends {debs} 2>&1"))
}

/// The block of commands with this text in the section on packages of docs/operations.md, as a script for root, without sudo.
fn documented(text: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operations.md");
    let page = fs::read_to_string(page).unwrap();
    let section = page.split("\n## ").find(|section| section.starts_with("Packages and systemd\n")).unwrap();
    let mut blocks = section.split("```sh\n").skip(1).map(|block| block.split("```").next().unwrap());
    let commands = blocks.find(|block| block.contains(text)).expect("a block with this text");
    format!("sudo() {{ \"$@\"; }}\n{commands}")
}

/// Every file of the cluster's folder, with its owner, mode and size, and a digest of all of them. Stores are sparse files of
/// 100 GiB: the digest is of a copy whose holes depend only on the content.
fn data(machine: &Machine) -> String {
    machine.ok("rm -rf /tmp/copy; cp -a --sparse=always /var/lib/nacre /tmp/copy; cd /var/lib/nacre; find . -printf '%p %u %m %s\n' | sort
         cd /tmp/copy; tar --sparse --sort=name --mtime=@0 -cf - . | sha256sum")
}

fn check_units(machine: &Machine, folder: &str) {
    let paths = UNITS.map(|unit| format!("{folder}/{unit}"));
    machine.ok(&format!("systemd-analyze verify {}", paths.join(" ")));
}

fn greeting(machine: &Machine) -> String {
    machine.ok("nacre rados -p files get greeting -")
}

/// The first S3 user's access key and secret key.
fn first_keys(machine: &Machine) -> (String, String) {
    let user: serde_json::Value = serde_json::from_str(&machine.ok("nacre user info --uid admin")).unwrap();
    let key = |name: &str| user["keys"][0][name].as_str().unwrap().to_owned();
    (key("access_key"), key("secret_key"))
}

/// Runs aws on the machine's network with the first user's keys.
fn aws(machine: &Machine, port: u16, words: &[&str]) -> String {
    let (access, secret) = first_keys(machine);
    let out = machine
        .command_from_outside("env")
        .arg(format!("AWS_ACCESS_KEY_ID={access}"))
        .arg(format!("AWS_SECRET_ACCESS_KEY={secret}"))
        .args(["AWS_DEFAULT_REGION=us-east-1", "aws", "--endpoint-url"])
        .arg(format!("http://127.0.0.1:{port}"))
        .args(words)
        .output()
        .unwrap();
    assert!(
        out.status.success(),
        "aws {words:?}: {}\n{}",
        String::from_utf8_lossy(&out.stderr),
        machine.journal()
    );
    String::from_utf8(out.stdout).unwrap()
}

/// Checks that Debian's packages of Ceph are unmodified and found as before.
fn check_debians_ceph(machine: &Machine) {
    assert_eq!(machine.ok("dpkg --verify librados2 libradosstriper1 python3-rados ceph-common"), "");
    assert!(machine.ok("dpkg -S /usr/bin/ceph").starts_with("ceph-common: "));
    let cached = machine.ok("ldconfig; ldconfig -p | grep librados.so.2");
    assert!(!cached.contains("nacre"), "{cached}");
}

#[test]
#[ignore = "makes a Debian system, which takes minutes, and needs root; `make test-long` runs it"]
fn packages_serve_a_cluster_and_never_touch_its_data() {
    let folder = tempfile::Builder::new().prefix("nacre-packages-").tempdir().unwrap();
    let included = ["adduser", "ceph-common", "libstdc++6", "man-db", "procps", "systemd"];
    let debs = package("deb", None, &folder.path().join("old"));
    let machine = Machine::boot(folder.path(), &included);
    let debs = copy_in(&machine, &debs);
    // At the paths used in the documentation, with an apt that asks no questions.
    machine.ok("mkdir -p target; ln -s .. target/packages; echo 'APT::Get::Assume-Yes \"true\";' >/etc/apt/apt.conf.d/yes");

    install(&machine, &debs);
    check_debians_ceph(&machine);
    check_units(&machine, "/usr/lib/systemd/system");
    machine.ok("man -w nacre nacre-serve nacre-ceph && test -x /usr/lib/nacre/bin/ceph");
    assert_eq!(machine.ok("stat -c '%U %G %a' /var/lib/nacre"), "nacre nacre 750\n");
    assert_eq!(machine.ok("find /var/lib/nacre -mindepth 1"), "", "installing makes no cluster");
    assert!(!machine.run("systemctl is-active nacre").status.success());

    let said = machine.ok(&documented("enable --now nacre "));
    assert!(said.contains("3 osds: 3 up") && said.contains("secret_key"), "{said}");
    machine.ok("nacre osd pool create files 8; echo hello | nacre rados -p files put greeting -");
    assert_eq!(greeting(&machine), "hello\n");
    check_service(&machine);
    let object = folder.path().join("object");
    fs::write(&object, "by S3").unwrap();
    aws(&machine, 8000, &["s3", "mb", "s3://bucket"]);
    aws(&machine, 8000, &["s3", "cp", object.to_str().unwrap(), "s3://bucket/key"]);
    check_clients(&machine);

    let newer = package("deb", Some("99.0-1"), &folder.path().join("new"));
    let newer = copy_in(&machine, &newer);
    let conf = machine.ok("sha256sum /var/lib/nacre/ceph.conf /var/lib/nacre/*keyring");
    let before = machine.ok("systemctl show -p MainPID -p ActiveEnterTimestampMonotonic nacre");
    machine.ok("echo 'NACRE_SERVE_ARGS=\"--s3 127.0.0.1:8001\"' >/etc/nacre/serve.env");
    let said = install(&machine, &newer);
    assert!(said.contains("systemctl restart nacre"), "{said}");
    assert_eq!(machine.ok("dpkg-query -W -f '${Version}' nacre"), "99.0-1");
    let after = machine.ok("systemctl show -p MainPID -p ActiveEnterTimestampMonotonic nacre");
    assert_eq!(before, after, "an upgrade restarts nothing");
    assert_eq!(greeting(&machine), "hello\n");
    machine.ok("systemctl restart nacre");
    assert_eq!(machine.ok("sha256sum /var/lib/nacre/ceph.conf /var/lib/nacre/*keyring"), conf);
    assert_eq!(aws(&machine, 8001, &["s3", "cp", "s3://bucket/key", "-"]), "by S3");

    check_separate_daemons(&machine);

    // Removed while it runs.
    machine.ok("systemctl enable --now nacre; echo here >/etc/nacre/mine");
    assert_eq!(greeting(&machine), "hello\n");
    machine.ok("apt-get remove nacre nacre-librados");
    assert_eq!(machine.ok("pgrep -u nacre || true"), "");
    assert!(machine.ok("cat /etc/nacre/serve.env").contains("8001"));
    let left = data(&machine);
    assert!(
        left.contains("./ceph.client.admin.keyring nacre 600") && left.contains("./osd/2/block"),
        "{left}"
    );
    let said = machine.ok("apt-get purge nacre nacre-librados 2>&1");
    assert!(said.contains("/var/lib/nacre keeps the cluster's data"), "{said}");
    assert_eq!(data(&machine), left, "purging leaves data alone");
    assert_eq!(machine.ok("cd /etc; find nacre logrotate.d/nacre systemd -name '*nacre*' -o -path 'nacre/*' 2>/dev/null || true"), "nacre\nnacre/mine\n");
    check_debians_ceph(&machine);

    install(&machine, &debs);
    machine.ok("systemctl start nacre");
    assert_eq!(greeting(&machine), "hello\n");
    assert_eq!(aws(&machine, 8000, &["s3", "cp", "s3://bucket/key", "-"]), "by S3");
    machine.ok("apt-get purge nacre nacre-librados");

    check_tarball(&machine, folder.path());
}

/// Checks the state of the service in systemd, and its lines in the journal.
fn check_service(machine: &Machine) {
    let shown = machine.ok("systemctl show -p StatusText nacre");
    assert_eq!(shown, "StatusText=3 OSDs up, mon on 127.0.0.1:3300, S3 on http://127.0.0.1:8000\n");
    assert_eq!(machine.ok("ps -o user= -p $(systemctl show -P MainPID nacre)"), "nacre\n");
    machine.ok("systemctl reload nacre; nacre log 'a line for the journal'");
    // The monitor writes the cluster log after its answer.
    let journal = machine.wait_for("journalctl --sync; journalctl -u nacre -o json", |journal| {
        journal.contains("a line for the journal") && journal.contains("Health check failed: ")
    });
    let lines: Vec<serde_json::Value> =
        journal.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let has = |text: &str, priority: &str| {
        lines
            .iter()
            .any(|line| line["MESSAGE"].as_str().unwrap().contains(text) && line["PRIORITY"] == priority)
    };
    assert!(has("cluster is ready", "6"), "{journal}");
    assert!(has("log files are reopened", "6"), "{journal}");
    // The cluster log is also written there, with a health check as a warning.
    assert!(has("a line for the journal", "6"), "{journal}");
    assert!(has("Health check failed: ", "4"), "{journal}");
    for line in lines.iter().filter(|line| line["_SYSTEMD_UNIT"] == "nacre.service") {
        let message = line["MESSAGE"].as_str().unwrap();
        let starts_like_a_time = message.starts_with(|c: char| c.is_ascii_digit());
        assert!(!starts_like_a_time && !message.contains('\x1b') && !message.starts_with('<'), "{message}");
    }
    assert!(!journal.contains(&first_keys(machine).1), "the journal has the secret key");
    assert_eq!(machine.ok("find /var/lib/nacre/log -type f"), "", "logs go to the journal only");
}

/// Checks Ceph's programs and names, and a user without rights.
fn check_clients(machine: &Machine) {
    let by_ceph = machine.ok("LD_LIBRARY_PATH=/usr/lib/nacre /usr/bin/ceph -s");
    assert!(by_ceph.contains("3 osds: 3 up"), "{by_ceph}");
    assert!(machine.ok("/usr/lib/nacre/bin/ceph -s").contains("3 osds: 3 up"));
    assert!(machine.ok("nacre daemon osd.0 version").contains("version"));
    for refused in ["nacre status", "cat /var/lib/nacre/ceph.client.admin.keyring", "ls /var/lib/nacre"] {
        assert!(
            !machine.run(&format!("setpriv --reuid=65534 --clear-groups {refused}")).status.success(),
            "{refused}"
        );
    }
}

/// The same cluster with one process per daemon, and a gateway with its own key.
fn check_separate_daemons(machine: &Machine) {
    machine.ok(&documented("nacre-mon@a"));
    assert_eq!(greeting(machine), "hello\n");
    assert_eq!(aws(machine, 8000, &["s3", "cp", "s3://bucket/key", "-"]), "by S3");
    let active = "systemctl list-units --plain --no-legend --state=active 'nacre*.service' | wc -l";
    assert_eq!(machine.ok(active), "5\n");
    machine.ok("systemctl stop nacre.target");
    // systemctl waits for the target itself; the units that are part of it stop after it, OSDs before the map authority.
    let left = "systemctl list-units --plain --no-legend --state=active,deactivating 'nacre*.service'";
    let left = machine.wait_for(left, str::is_empty);
    assert_eq!(left, "", "the target stops all daemons: {}", machine.journal());
    assert_eq!(machine.ok("systemctl list-units --plain --no-legend --state=failed 'nacre*'"), "");
}

/// Installs the tarball in /usr/local according to its own instructions.
fn check_tarball(machine: &Machine, folder: &Path) {
    let tarball = package("tarball", None, &folder.join("tarball"));
    let name = copy_in(machine, &tarball);
    let name = name.trim().trim_start_matches("./");
    let instructions = machine.ok(&format!("tar --wildcards -xOf {name} '*/share/doc/nacre/INSTALL'"));
    let command = |start: &str| {
        let line = instructions
            .lines()
            .find_map(|line| line.strip_prefix("  ").filter(|line| line.starts_with(start)));
        line.unwrap_or_else(|| panic!("{start} is not in {instructions}")).to_owned()
    };
    for start in ["tar -C", "systemd-sysusers", "systemctl daemon-reload", "systemctl enable"] {
        machine.ok(&command(start));
    }
    check_units(machine, "/usr/local/lib/systemd/system");
    assert_eq!(machine.ok("command -v nacre"), "/usr/local/bin/nacre\n");
    assert_eq!(greeting(machine), "hello\n");
    machine.ok(&command("systemctl disable"));
    machine.ok(&command("tar -tf"));
    assert_eq!(machine.ok("find /usr/local -name '*nacre*' ! -type d"), "");
}
